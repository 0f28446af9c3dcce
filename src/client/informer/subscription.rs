//! A reader's own queue of changes: at most one pending change per key.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Delta;

/// Receives changes; see `Informer::subscribe`. Dropping it unsubscribes.
pub struct Subscription<T>(Arc<Shared<T>>);

pub(super) struct Shared<T> {
    pending: Mutex<Pending<T>>,
    changed: Notify,
}

struct Pending<T> {
    /// Keys in the order of their first pending change. A key whose changes cancelled out stays until reached.
    order: VecDeque<Arc<str>>,
    deltas: HashMap<Arc<str>, Delta<T>>,
}

impl<T> Subscription<T> {
    pub(super) fn new(initial: Vec<Delta<T>>) -> (Self, Weak<Shared<T>>) {
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending {
                order: VecDeque::new(),
                deltas: HashMap::new(),
            }),
            changed: Notify::new(),
        });
        shared.push(&initial);
        let weak = Arc::downgrade(&shared);
        (Subscription(shared), weak)
    }

    /// The next change; waits for one. Cancel-safe. One reader at a time.
    pub async fn recv(&mut self) -> Delta<T> {
        loop {
            let changed = self.0.changed.notified();
            if let Some(delta) = self.try_recv() {
                return delta;
            }
            changed.await;
        }
    }

    /// The next change, if there is one now.
    pub fn try_recv(&self) -> Option<Delta<T>> {
        let mut pending = self.0.pending.lock();
        while let Some(key) = pending.order.pop_front() {
            if let Some(delta) = pending.deltas.remove(&key) {
                return Some(delta);
            }
        }
        None
    }
}

impl<T> Shared<T> {
    pub(super) fn push(&self, deltas: &[Delta<T>]) {
        let mut pending = self.pending.lock();
        for delta in deltas {
            pending.push(delta);
        }
        drop(pending);
        self.changed.notify_one();
    }
}

impl<T> Pending<T> {
    fn push(&mut self, delta: &Delta<T>) {
        let Some(earlier) = self.deltas.get_mut(&delta.key) else {
            self.order.push_back(delta.key.clone());
            self.deltas.insert(delta.key.clone(), delta.clone());
            self.trim();
            return;
        };
        if earlier.old.is_none() && delta.new.is_none() {
            // Came and went unseen.
            self.deltas.remove(&delta.key);
        } else {
            earlier.new = delta.new.clone();
            if delta.new.is_none() {
                // The state the server last knew, as a deletion tells it.
                earlier.old = delta.old.clone();
            }
        }
    }

    /// Keeps keys whose changes cancelled out from piling up.
    fn trim(&mut self) {
        const SLACK: usize = 64;
        if self.order.len() > 2 * self.deltas.len() + SLACK {
            let mut seen = std::collections::HashSet::new();
            let deltas = &self.deltas;
            self.order
                .retain(|key| deltas.contains_key(key) && seen.insert(key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(key: &str, old: Option<i32>, new: Option<i32>) -> Delta<i32> {
        Delta {
            key: key.into(),
            old: old.map(Arc::new),
            new: new.map(Arc::new),
        }
    }

    #[tokio::test]
    async fn changes_of_a_key_are_coalesced_in_order_of_the_first() {
        let (mut subscription, shared) = Subscription::new(vec![delta("a", None, Some(1))]);
        let shared = shared.upgrade().unwrap();
        shared.push(&[delta("b", None, Some(5)), delta("a", Some(1), Some(2))]);
        shared.push(&[delta("c", None, Some(1)), delta("c", Some(1), None)]);
        let first = subscription.recv().await;
        assert_eq!((first.old, first.new.as_deref()), (None, Some(&2)));
        assert_eq!(&*subscription.recv().await.key, "b");
        assert!(subscription.try_recv().is_none());
        shared.push(&[delta("a", Some(2), Some(3)), delta("a", Some(3), None)]);
        let gone = subscription.recv().await;
        assert_eq!((gone.old.as_deref(), gone.new), (Some(&3), None));
    }
}
