//! How long failed daemon pods of a node wait for their successor: one second, doubled each time (failedPodsBackoff).

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(15 * 60);
/// Nodes that are remembered, over all sets; beyond so many, what has not failed for longest is forgotten.
const MAX_REMEMBERED: usize = 20_000;

#[derive(Default)]
pub struct Backoff(Mutex<HashMap<(String, String), Entry>>);

struct Entry {
    pause: Duration,
    /// When a pod was last replaced.
    since: Instant,
}

impl Backoff {
    /// What is left of the pause of a set's pods on a node.
    pub fn left(&self, set: &str, node: &str) -> Option<Duration> {
        let entries = self.0.lock();
        let entry = entries.get(&(set.to_string(), node.to_string()))?;
        let left = entry.pause.checked_sub(entry.since.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// Notes that a failed pod is replaced now; one that did not fail for twice the longest pause begins anew.
    pub fn replaced(&self, set: &str, node: &str) {
        let mut entries = self.0.lock();
        if entries.len() >= MAX_REMEMBERED {
            entries.retain(|_, entry| entry.since.elapsed() < entry.pause);
        }
        let entry = entries.entry((set.into(), node.into())).or_insert(Entry {
            pause: Duration::ZERO,
            since: Instant::now(),
        });
        let calm = entry.since.elapsed() > 2 * MAX;
        entry.pause = if calm || entry.pause.is_zero() {
            FIRST
        } else {
            (entry.pause * 2).min(MAX)
        };
        entry.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_are_forgotten_after_a_calm_time() {
        let backoff = Backoff::default();
        assert_eq!(backoff.left("s", "n"), None);
        for expected in [1, 2, 4] {
            backoff.replaced("s", "n");
            assert_eq!(backoff.left("s", "n"), Some(Duration::from_secs(expected)));
        }
        assert_eq!(backoff.left("s", "other"), None);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(backoff.left("s", "n"), None);
        tokio::time::advance(3 * MAX).await;
        backoff.replaced("s", "n");
        assert_eq!(backoff.left("s", "n"), Some(FIRST));
    }
}
