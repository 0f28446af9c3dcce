//! How long to wait before trying again: ten seconds, doubled up to five
//! minutes, forgotten after ten good minutes (upstream's `flowcontrol.Backoff`
//! as the kubelet sets it). Pure: the caller brings the time.

use super::view::Nanos;

/// Nanoseconds in a second.
pub const SECOND: Nanos = 1_000_000_000;
/// The first delay, of crashed containers and failed pulls alike.
pub const BASE: Nanos = 10 * SECOND;
/// Upstream's `MaxCrashLoopBackOff` and `MaxImageBackOff`.
pub const CAP: Nanos = 300 * SECOND;

/// The delay of one container or one image of one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackOff {
    delay: Nanos,
    updated: Nanos,
}

impl BackOff {
    /// When the next try may start, given that the last one ended at `since`;
    /// `None` when that is now or in the past.
    pub fn until(&self, since: Nanos, now: Nanos) -> Option<Nanos> {
        let since = since.min(now);
        if self.delay == 0 || self.expired(since) {
            return None;
        }
        let until = since + self.delay;
        (until > now).then_some(until)
    }

    /// Counts one more failure, which happened at `event`.
    pub fn fail(&mut self, event: Nanos, now: Nanos) {
        self.delay = if self.delay == 0 || self.expired(event) {
            BASE
        } else {
            (self.delay * 2).min(CAP)
        };
        self.updated = now;
    }

    /// The present delay; 0 before the first failure.
    pub fn delay(&self) -> Nanos {
        self.delay
    }

    fn expired(&self, event: Nanos) -> bool {
        event - self.updated > 2 * CAP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_five_minutes() {
        let mut back_off = BackOff::default();
        let mut now = SECOND;
        let mut seen = Vec::new();
        for _ in 0..7 {
            back_off.fail(now, now);
            seen.push(back_off.delay() / SECOND);
            now = back_off.until(now, now).expect("a failure is waited for");
        }
        assert_eq!(seen, [10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn the_first_crash_is_restarted_at_once_and_the_second_waits() {
        let mut back_off = BackOff::default();
        assert_eq!(back_off.until(5 * SECOND, 5 * SECOND), None);
        back_off.fail(5 * SECOND, 5 * SECOND);
        assert_eq!(back_off.until(6 * SECOND, 7 * SECOND), Some(16 * SECOND));
        assert_eq!(back_off.until(6 * SECOND, 16 * SECOND), None);
    }

    #[test]
    fn ten_good_minutes_are_forgiven() {
        let mut back_off = BackOff::default();
        back_off.fail(0, 0);
        back_off.fail(0, 0);
        let later = 2 * CAP + SECOND;
        assert_eq!(back_off.until(later, later), None);
        back_off.fail(later, later);
        assert_eq!(back_off.delay(), BASE);
    }

    #[test]
    fn a_crash_in_the_future_counts_as_now() {
        let mut back_off = BackOff::default();
        back_off.fail(0, 0);
        assert_eq!(back_off.until(1000 * SECOND, SECOND), Some(SECOND + BASE));
    }
}
