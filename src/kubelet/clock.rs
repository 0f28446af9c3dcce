//! The wall clock as the kubelet counts it: nanoseconds since 1970, as CRI does.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::k8s::{Time, Timestamp};
use crate::pod::view::Nanos;

/// Now.
pub fn now() -> Nanos {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Nanos::try_from(since.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Now, as the API writes it: whole seconds.
pub fn now_time() -> Time {
    crate::pod::status::time(now())
}

/// A time of the API.
pub fn nanos(time: &Time) -> Nanos {
    Nanos::try_from(time.0.as_nanosecond()).unwrap_or(Nanos::MAX)
}

/// How long until `at`; zero if that is past.
pub fn until(at: Nanos) -> Duration {
    Duration::from_nanos(u64::try_from(at - now()).unwrap_or(0))
}

/// `2026-10-31T14:28:04.917560Z`: RFC 3339 with microseconds, as a MicroTime has it.
pub fn now_micro() -> String {
    let micros = now() / 1_000;
    let time = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
