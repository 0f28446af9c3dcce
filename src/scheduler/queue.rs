//! Pods that wait for a node: those to be tried now, those in back-off, those that cannot be helped until something
//! changes, and those held by a gate.
//!
//! A pod is in exactly one of the four places. Time is given by the caller; nothing here sleeps.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    framework::{Change, Plugin},
    plugins,
    pod::Pod,
};

/// A pod that nothing helped for so long is tried again (podMaxInUnschedulablePodsDuration).
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);

/// The queue of upstream's backend/queue.PriorityQueue.
pub struct SchedulingQueue {
    initial_backoff: Duration,
    max_backoff: Duration,
    pods: HashMap<Arc<str>, Waiting>,
    /// In the order of PrioritySort: higher priority, then longer in the queue.
    active: BTreeSet<ActiveKey>,
    backoff: BTreeMap<(Instant, u64), Arc<str>>,
    unschedulable: BTreeMap<(Instant, u64), Arc<str>>,
    sequence: u64,
}

type ActiveKey = (Reverse<i32>, Instant, u64, Arc<str>);

/// A pod with its history.
#[derive(Clone, Debug)]
pub struct QueuedPod {
    pub pod: Arc<Pod>,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was added, or last failed.
    since: Instant,
    /// Which plugins turned it down last; a change must help one of them. Empty: any change may help.
    rejected_by: BTreeSet<&'static str>,
}

struct Waiting {
    queued: QueuedPod,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Active(ActiveKey),
    Backoff((Instant, u64)),
    Unschedulable((Instant, u64)),
    Gated,
}

impl SchedulingQueue {
    pub fn new(initial_backoff: Duration, max_backoff: Duration) -> Self {
        SchedulingQueue {
            initial_backoff,
            max_backoff,
            pods: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeMap::new(),
            unschedulable: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// Adds a pod, or takes a new state of it. A change that may help puts it forward.
    pub fn set(&mut self, pod: Arc<Pod>, now: Instant) {
        let Some(mut waiting) = self.take(&pod.uid) else {
            let queued = QueuedPod {
                pod,
                attempts: 0,
                since: now,
                rejected_by: BTreeSet::new(),
            };
            self.enter(queued, now);
            return;
        };
        let changed = pod.differs_for_scheduling(&waiting.queued.pod);
        waiting.queued.pod = pod;
        match waiting.place {
            Place::Unschedulable(key) if !changed => {
                self.put(waiting.queued, Place::Unschedulable(key))
            }
            Place::Backoff(key) => self.put(waiting.queued, Place::Backoff(key)),
            Place::Unschedulable(_) => self.retry(waiting.queued, now),
            Place::Active(_) | Place::Gated => self.enter(waiting.queued, now),
        }
    }

    pub fn remove(&mut self, uid: &str) {
        self.take(uid);
    }

    /// The pod to try next. It is in no place until `failed` or `retry_later`.
    pub fn pop(&mut self, now: Instant) -> Option<QueuedPod> {
        self.promote(now);
        let uid = self.active.first()?.3.clone();
        let mut queued = self.take(&uid)?.queued;
        queued.attempts += 1;
        Some(queued)
    }

    /// When `pop` may have a pod though nothing is added; `None` if only a change helps.
    pub fn next_due(&self) -> Option<Instant> {
        let backoff = self.backoff.first_key_value().map(|((at, _), _)| *at);
        let flush = self
            .unschedulable
            .first_key_value()
            .map(|((since, _), _)| *since + MAX_UNSCHEDULABLE);
        backoff.into_iter().chain(flush).min()
    }

    /// Puts back a pod that fits nowhere; `pod` is its newest state.
    pub fn failed(
        &mut self,
        mut queued: QueuedPod,
        pod: Arc<Pod>,
        by: BTreeSet<&'static str>,
        now: Instant,
    ) {
        // A change of the pod itself while it was tried counts as one that may help.
        let changed = pod.differs_for_scheduling(&queued.pod);
        queued.pod = pod;
        queued.since = now;
        queued.rejected_by = by;
        if changed {
            self.retry(queued, now);
        } else {
            self.sequence += 1;
            self.put(queued, Place::Unschedulable((now, self.sequence)));
        }
    }

    /// Puts back a pod whose attempt failed for a passing reason.
    pub fn retry_later(&mut self, mut queued: QueuedPod, pod: Arc<Pod>, now: Instant) {
        queued.pod = pod;
        queued.since = now;
        queued.rejected_by.clear();
        self.retry(queued, now);
    }

    /// Puts forward the pods that `change` may help.
    pub fn on_change(&mut self, change: &Change<'_>, now: Instant) {
        let helped = |waiting: &Waiting| {
            let queued = &waiting.queued;
            queued.rejected_by.is_empty()
                || plugins::all()
                    .filter(|plugin| queued.rejected_by.contains(plugin.name()))
                    .any(|plugin: &dyn Plugin| plugin.may_help(&queued.pod, change))
        };
        let uids = self.unschedulable.values();
        let uids: Vec<Arc<str>> = uids
            .filter(|uid| self.pods.get(*uid).is_some_and(helped))
            .cloned()
            .collect();
        for uid in uids {
            if let Some(waiting) = self.take(&uid) {
                self.retry(waiting.queued, now);
            }
        }
    }

    /// Pods in all places.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Into the active queue, unless a gate holds it.
    fn enter(&mut self, queued: QueuedPod, now: Instant) {
        if plugins::all().any(|plugin| plugin.pre_enqueue(&queued.pod).is_err()) {
            self.put(queued, Place::Gated);
            return;
        }
        self.sequence += 1;
        let key = (
            Reverse(queued.pod.priority),
            now,
            self.sequence,
            queued.pod.uid.clone(),
        );
        self.put(queued, Place::Active(key));
    }

    /// Into the back-off queue, or the active one if the back-off is over.
    fn retry(&mut self, queued: QueuedPod, now: Instant) {
        let until = queued.since + self.backoff_of(queued.attempts);
        if until <= now {
            self.enter(queued, now);
        } else {
            self.sequence += 1;
            self.put(queued, Place::Backoff((until, self.sequence)));
        }
    }

    fn backoff_of(&self, attempts: u32) -> Duration {
        if attempts == 0 {
            return Duration::ZERO;
        }
        let factor = 2u32.checked_pow(attempts - 1).unwrap_or(u32::MAX);
        self.initial_backoff
            .saturating_mul(factor)
            .min(self.max_backoff)
    }

    fn promote(&mut self, now: Instant) {
        while let Some(((until, _), uid)) = self.backoff.first_key_value()
            && *until <= now
        {
            let uid = uid.clone();
            if let Some(waiting) = self.take(&uid) {
                self.enter(waiting.queued, now);
            }
        }
        while let Some(((since, _), uid)) = self.unschedulable.first_key_value()
            && *since + MAX_UNSCHEDULABLE <= now
        {
            let uid = uid.clone();
            if let Some(waiting) = self.take(&uid) {
                self.enter(waiting.queued, now);
            }
        }
    }

    fn put(&mut self, queued: QueuedPod, place: Place) {
        let uid = queued.pod.uid.clone();
        match &place {
            Place::Active(key) => {
                self.active.insert(key.clone());
            }
            Place::Backoff(key) => {
                self.backoff.insert(*key, uid.clone());
            }
            Place::Unschedulable(key) => {
                self.unschedulable.insert(*key, uid.clone());
            }
            Place::Gated => {}
        }
        self.pods.insert(uid, Waiting { queued, place });
    }

    fn take(&mut self, uid: &str) -> Option<Waiting> {
        let waiting = self.pods.remove(uid)?;
        match &waiting.place {
            Place::Active(key) => {
                self.active.remove(key);
            }
            Place::Backoff(key) => {
                self.backoff.remove(key);
            }
            Place::Unschedulable(key) => {
                self.unschedulable.remove(key);
            }
            Place::Gated => {}
        }
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::testing::{mk_node, mk_pod},
        node::node,
        pod::pod,
    };
    use serde_json::{Value, json};

    fn queue() -> SchedulingQueue {
        SchedulingQueue::new(Duration::from_secs(1), Duration::from_secs(10))
    }

    fn arc(value: Value) -> Arc<Pod> {
        Arc::new(pod(value))
    }

    fn popped(queue: &mut SchedulingQueue, now: Instant) -> Option<String> {
        queue.pop(now).map(|queued| queued.pod.name.clone())
    }

    #[test]
    fn a_higher_priority_comes_first_then_the_older() {
        let mut queue = queue();
        let now = Instant::now();
        let mut high = mk_pod("high");
        high["spec"]["priority"] = json!(10);
        for value in [mk_pod("a"), mk_pod("b"), high] {
            queue.set(arc(value), now);
        }
        let order: Vec<_> = std::iter::from_fn(|| popped(&mut queue, now)).collect();
        assert_eq!(order, ["high", "a", "b"]);
    }

    #[test]
    fn a_rejected_pod_waits_for_a_change_that_helps_and_for_its_back_off() {
        let mut queue = queue();
        let now = Instant::now();
        let value = arc(mk_pod("a"));
        queue.set(value.clone(), now);
        let queued = queue.pop(now).unwrap();
        queue.failed(
            queued,
            value.clone(),
            BTreeSet::from(["NodeResourcesFit"]),
            now,
        );
        assert_eq!(popped(&mut queue, now), None);
        assert_eq!(queue.next_due(), Some(now + MAX_UNSCHEDULABLE));

        queue.on_change(&Change::Storage, now);
        assert_eq!(queue.next_due(), Some(now + MAX_UNSCHEDULABLE));
        let added = node(mk_node("n"));
        queue.on_change(&Change::NodeAdded(&added), now);
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(1)));
        let later = now + Duration::from_secs(1);
        let queued = queue.pop(later).unwrap();
        assert_eq!(queued.attempts, 2);
        queue.retry_later(queued, value, later);
        assert_eq!(queue.next_due(), Some(later + Duration::from_secs(2)));
        assert_eq!(
            popped(&mut queue, later + Duration::from_secs(2)).as_deref(),
            Some("a")
        );
    }

    #[test]
    fn a_pod_nothing_helps_is_tried_again_after_five_minutes() {
        let mut queue = queue();
        let now = Instant::now();
        let value = arc(mk_pod("a"));
        queue.set(value.clone(), now);
        let queued = queue.pop(now).unwrap();
        queue.failed(queued, value, BTreeSet::from(["NodeName"]), now);
        assert!(popped(&mut queue, now + MAX_UNSCHEDULABLE).is_some());
    }

    #[test]
    fn a_gated_pod_is_tried_once_its_gates_are_gone() {
        let mut queue = queue();
        let now = Instant::now();
        let mut value = mk_pod("a");
        value["spec"]["schedulingGates"] = json!([{"name": "x"}]);
        queue.set(arc(value.clone()), now);
        assert_eq!(popped(&mut queue, now), None);
        assert_eq!(queue.next_due(), None);
        value["spec"]["schedulingGates"] = json!([]);
        queue.set(arc(value), now);
        assert!(popped(&mut queue, now).is_some());
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_status_update_does_not_put_forward_a_rejected_pod_but_a_spec_update_does() {
        let mut queue = queue();
        let now = Instant::now();
        let mut value = mk_pod("a");
        queue.set(arc(value.clone()), now);
        let queued = queue.pop(now).unwrap();
        queue.failed(
            queued,
            arc(value.clone()),
            BTreeSet::from(["TaintToleration"]),
            now,
        );
        value["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
        queue.set(arc(value.clone()), now);
        assert_eq!(queue.next_due(), Some(now + MAX_UNSCHEDULABLE));
        value["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        queue.set(arc(value), now);
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(1)));
    }
}
