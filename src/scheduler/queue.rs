//! Pods that wait for a node: those to be tried now, those in back-off, those that cannot be helped until something
//! changes, and those held by a gate.
//!
//! A pod is in exactly one of the places. Time is given by the caller; nothing here sleeps.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    framework::Change,
    metrics::{Incoming, IntoQueue},
    plugins::{self, PLUGINS, PluginSet},
    pod::Pod,
};

/// The queue of upstream's backend/queue.PriorityQueue.
pub struct SchedulingQueue {
    initial_backoff: Duration,
    max_backoff: Duration,
    /// A pod that nothing helped for so long is tried again (podMaxInUnschedulablePodsDuration).
    max_unschedulable: Duration,
    pods: HashMap<Arc<str>, Waiting>,
    /// In the order of PrioritySort: higher priority, then longer in the queue.
    active: BTreeSet<ActiveKey>,
    backoff: BTreeMap<(Instant, u64), Arc<str>>,
    /// In back-off since something else than the cluster failed them; only time brings them back.
    errors: BTreeMap<(Instant, u64), Arc<str>>,
    unschedulable: BTreeMap<(Instant, u64), Arc<str>>,
    /// How many of the unschedulable each plugin turned down, and how many none.
    stuck: Vec<usize>,
    stuck_by_none: usize,
    /// Pods for which others are being evicted just now; they wait for that.
    preempting: HashSet<Arc<str>>,
    sequence: u64,
    incoming: Arc<Incoming>,
}

/// How many pods are in each place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

type ActiveKey = (Reverse<i32>, Instant, u64, Arc<str>);

/// A pod with its history.
#[derive(Clone, Debug)]
pub struct QueuedPod {
    pub pod: Arc<Pod>,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was tried first, and last; `None` before that.
    pub first_attempt: Option<Instant>,
    pub last_attempt: Option<Instant>,
    /// When it was added, or last failed.
    since: Instant,
    /// Which plugins turned it down last; a change must help one of them. Empty: any change may help.
    rejected_by: PluginSet,
}

struct Waiting {
    queued: QueuedPod,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Active(ActiveKey),
    Backoff((Instant, u64)),
    Errors((Instant, u64)),
    Unschedulable((Instant, u64)),
    Gated,
}

impl SchedulingQueue {
    pub fn new(
        initial_backoff: Duration,
        max_backoff: Duration,
        max_unschedulable: Duration,
        incoming: Arc<Incoming>,
    ) -> Self {
        SchedulingQueue {
            initial_backoff,
            max_backoff,
            max_unschedulable,
            pods: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeMap::new(),
            errors: BTreeMap::new(),
            unschedulable: BTreeMap::new(),
            stuck: vec![0; PLUGINS.len()],
            stuck_by_none: 0,
            preempting: HashSet::new(),
            sequence: 0,
            incoming,
        }
    }

    /// How many pods wait where.
    pub fn sizes(&self) -> Sizes {
        let (active, unschedulable) = (self.active.len(), self.unschedulable.len());
        let backoff = self.backoff.len() + self.errors.len();
        Sizes {
            active,
            backoff,
            unschedulable,
            gated: self.pods.len() - active - backoff - unschedulable,
        }
    }

    /// How many pods each plugin turned down, by scheduler and plugin.
    pub fn stuck_by_plugin(&self) -> BTreeMap<(String, &'static str), usize> {
        let mut counts = BTreeMap::new();
        let stuck = self.unschedulable.values();
        for waiting in stuck.filter_map(|uid| self.pods.get(uid)) {
            let QueuedPod {
                pod, rejected_by, ..
            } = &waiting.queued;
            for (_, plugin) in rejected_by.iter() {
                *counts
                    .entry((pod.scheduler_name.clone(), plugin.name()))
                    .or_default() += 1;
            }
        }
        counts
    }

    /// Adds a pod, or takes a new state of it. A change that may help puts it forward.
    pub fn set(&mut self, pod: Arc<Pod>, now: Instant) {
        let Some(mut waiting) = self.take(&pod.uid) else {
            let queued = QueuedPod {
                pod,
                attempts: 0,
                first_attempt: None,
                last_attempt: None,
                since: now,
                rejected_by: PluginSet::default(),
            };
            self.enter(queued, "UnschedulablePodAdd", now);
            return;
        };
        let changed = pod.differs_for_scheduling(&waiting.queued.pod);
        waiting.queued.pod = pod;
        match waiting.place {
            Place::Unschedulable(key) if !changed => {
                self.put(waiting.queued, Place::Unschedulable(key))
            }
            Place::Backoff(_) | Place::Errors(_) => self.put(waiting.queued, waiting.place),
            Place::Unschedulable(_) => self.retry(waiting.queued, "UnschedulablePodUpdate", now),
            // No move: it stays where it is, or is let in.
            Place::Active(_) => self.enter(waiting.queued, "", now),
            Place::Gated => self.enter(waiting.queued, "UnschedulablePodUpdate", now),
        }
    }

    pub fn remove(&mut self, uid: &str) {
        self.take(uid);
        self.preempting.remove(uid);
    }

    /// The pod to try next. It is in no place until `failed` or `retry_later`. When nothing else is to be done, one
    /// in back-off need not wait (SchedulerPopFromBackoffQ, KEP-5142).
    pub fn pop(&mut self, now: Instant) -> Option<QueuedPod> {
        self.promote(now);
        let uid = match self.active.first() {
            Some(key) => key.3.clone(),
            None => {
                let uid = self.backoff.first_key_value()?.1.clone();
                self.incoming.count("PopFromBackoffQ", IntoQueue::Active);
                uid
            }
        };
        let mut queued = self.take(&uid)?.queued;
        queued.attempts += 1;
        queued.first_attempt.get_or_insert(now);
        queued.last_attempt = Some(now);
        Some(queued)
    }

    /// When `pop` may have a pod though nothing is added; `None` if only a change helps.
    pub fn next_due(&self) -> Option<Instant> {
        let errors = self.errors.first_key_value().map(|((at, _), _)| *at);
        let flush = self
            .unschedulable
            .first_key_value()
            .map(|((since, _), _)| *since + self.max_unschedulable);
        errors.into_iter().chain(flush).min()
    }

    /// Puts back a pod that fits nowhere; `pod` is its newest state.
    pub fn failed(
        &mut self,
        mut queued: QueuedPod,
        pod: Arc<Pod>,
        by: &BTreeSet<&'static str>,
        now: Instant,
    ) {
        // A change of the pod itself while it was tried counts as one that may help.
        let changed = pod.differs_for_scheduling(&queued.pod);
        queued.pod = pod;
        queued.since = now;
        queued.rejected_by = PluginSet::of(by);
        if changed {
            self.retry(queued, "ScheduleAttemptFailure", now);
        } else {
            self.sequence += 1;
            let why = "ScheduleAttemptFailure";
            self.incoming.count(why, IntoQueue::Unschedulable);
            self.put(queued, Place::Unschedulable((now, self.sequence)));
        }
    }

    /// Puts back a pod whose attempt failed for a passing reason.
    pub fn retry_later(&mut self, mut queued: QueuedPod, pod: Arc<Pod>, now: Instant) {
        queued.pod = pod;
        queued.since = now;
        queued.rejected_by = PluginSet::default();
        self.sequence += 1;
        let until = now + self.backoff_of(queued.attempts);
        let why = "ScheduleAttemptFailure";
        self.incoming.count(why, IntoQueue::Backoff);
        self.put(queued, Place::Errors((until, self.sequence)));
    }

    /// Holds a pod back while others are evicted for it, whatever happens.
    pub fn hold(&mut self, uid: Arc<str>) {
        self.preempting.insert(uid);
    }

    /// Ends `hold`. If the evictions failed the pod is tried again at once, else when they show.
    pub fn release(&mut self, uid: &str, has_failed: bool, now: Instant) {
        self.preempting.remove(uid);
        let place = self.pods.get(uid).map(|waiting| waiting.place.clone());
        let again = match place {
            Some(Place::Gated) => true,
            Some(Place::Unschedulable(_)) => has_failed,
            _ => false,
        };
        if again && let Some(waiting) = self.take(uid) {
            self.enter(waiting.queued, "ForceActivate", now);
        }
    }

    /// Puts forward the pods that `change` may help.
    pub fn on_change(&mut self, change: &Change<'_>, now: Instant) {
        let event = change.event();
        let concerned = PLUGINS.iter().zip(&self.stuck);
        let concerns_any = concerned
            .into_iter()
            .any(|((plugin, _), stuck)| *stuck > 0 && plugin.events().contains(&event));
        if self.stuck_by_none == 0 && !concerns_any {
            return;
        }
        let helped = |waiting: &Waiting| {
            let queued = &waiting.queued;
            let mut by = queued.rejected_by.iter();
            queued.rejected_by.is_empty()
                || by.any(|(_, plugin)| {
                    plugin.events().contains(&event) && plugin.may_help(&queued.pod, change)
                })
        };
        let uids = self.unschedulable.values();
        let uids: Vec<Arc<str>> = uids
            .filter(|uid| self.pods.get(*uid).is_some_and(helped))
            .cloned()
            .collect();
        for uid in uids {
            if let Some(waiting) = self.take(&uid) {
                self.retry(waiting.queued, event.move_name(), now);
            }
        }
    }

    /// Pods in all places.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Into the active queue, unless a gate holds it.
    fn enter(&mut self, queued: QueuedPod, why: &str, now: Instant) {
        let is_held = self.preempting.contains(&queued.pod.uid);
        if is_held || plugins::all().any(|plugin| plugin.pre_enqueue(&queued.pod).is_err()) {
            self.incoming.count(why, IntoQueue::Gated);
            self.put(queued, Place::Gated);
            return;
        }
        self.incoming.count(why, IntoQueue::Active);
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
    fn retry(&mut self, queued: QueuedPod, why: &str, now: Instant) {
        let until = queued.since + self.backoff_of(queued.attempts);
        if until <= now {
            self.enter(queued, why, now);
        } else {
            self.incoming.count(why, IntoQueue::Backoff);
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
        type First = fn(&SchedulingQueue, Instant) -> Option<Arc<str>>;
        let places: [(First, &str); 3] = [
            (Self::first_backoff, "BackoffComplete"),
            (Self::first_error, "BackoffComplete"),
            (Self::first_flushed, "UnschedulableTimeout"),
        ];
        for (place, why) in places {
            while let Some(uid) = place(self, now) {
                if let Some(waiting) = self.take(&uid) {
                    self.enter(waiting.queued, why, now);
                }
            }
        }
    }

    fn first_backoff(&self, now: Instant) -> Option<Arc<str>> {
        let ((until, _), uid) = self.backoff.first_key_value()?;
        (*until <= now).then(|| uid.clone())
    }

    fn first_error(&self, now: Instant) -> Option<Arc<str>> {
        let ((until, _), uid) = self.errors.first_key_value()?;
        (*until <= now).then(|| uid.clone())
    }

    fn first_flushed(&self, now: Instant) -> Option<Arc<str>> {
        let ((since, _), uid) = self.unschedulable.first_key_value()?;
        (*since + self.max_unschedulable <= now).then(|| uid.clone())
    }

    /// Counts a stuck pod for the plugins that turned it down (`by` is 1), or no longer (-1).
    fn count_stuck(&mut self, rejected_by: PluginSet, by: isize) {
        for (place, _) in rejected_by.iter() {
            self.stuck[place] = self.stuck[place].saturating_add_signed(by);
        }
        if rejected_by.is_empty() {
            self.stuck_by_none = self.stuck_by_none.saturating_add_signed(by);
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
            Place::Errors(key) => {
                self.errors.insert(*key, uid.clone());
            }
            Place::Unschedulable(key) => {
                self.unschedulable.insert(*key, uid.clone());
                self.count_stuck(queued.rejected_by, 1);
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
            Place::Errors(key) => {
                self.errors.remove(key);
            }
            Place::Unschedulable(key) => {
                self.unschedulable.remove(key);
                self.count_stuck(waiting.queued.rejected_by, -1);
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

    const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);

    fn queue() -> SchedulingQueue {
        SchedulingQueue::new(
            Duration::from_secs(1),
            Duration::from_secs(10),
            MAX_UNSCHEDULABLE,
            Arc::default(),
        )
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
    fn a_rejected_pod_waits_for_a_change_that_helps_and_a_failed_one_for_its_back_off() {
        let mut queue = queue();
        let now = Instant::now();
        let value = arc(mk_pod("a"));
        queue.set(value.clone(), now);
        let queued = queue.pop(now).unwrap();
        queue.failed(
            queued,
            value.clone(),
            &BTreeSet::from(["NodeResourcesFit"]),
            now,
        );
        assert_eq!(popped(&mut queue, now), None);
        assert_eq!(queue.next_due(), Some(now + MAX_UNSCHEDULABLE));

        queue.on_change(&Change::Storage, now);
        assert_eq!(queue.next_due(), Some(now + MAX_UNSCHEDULABLE));
        let added = node(mk_node("n"));
        queue.on_change(&Change::NodeAdded(&added), now);
        assert_eq!(queue.backoff.len(), 1);
        // Others come first while it is in back-off; when there are none it need not wait.
        queue.set(arc(mk_pod("b")), now);
        assert_eq!(popped(&mut queue, now).as_deref(), Some("b"));
        let later = now + Duration::from_millis(100);
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
        queue.failed(queued, value, &BTreeSet::from(["NodeName"]), now);
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
            &BTreeSet::from(["TaintToleration"]),
            now,
        );
        value["status"] = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
        queue.set(arc(value.clone()), now);
        assert_eq!(queue.next_due(), Some(now + MAX_UNSCHEDULABLE));
        value["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        queue.set(arc(value), now);
        assert!(popped(&mut queue, now).is_some());
    }

    #[test]
    fn a_pod_waits_while_others_are_evicted_for_it() {
        let mut queue = queue();
        let now = Instant::now();
        let value = arc(mk_pod("a"));
        let fail = |queue: &mut SchedulingQueue| {
            queue.remove("a");
            queue.set(value.clone(), now);
            let queued = queue.pop(now).unwrap();
            queue.hold(value.uid.clone());
            queue.failed(
                queued,
                value.clone(),
                &BTreeSet::from(["NodeResourcesFit"]),
                now,
            );
        };
        let victim = pod(mk_pod("v"));
        fail(&mut queue);
        queue.on_change(&Change::PodDeleted(&victim), now);
        assert_eq!(popped(&mut queue, now + Duration::from_secs(5)), None);
        queue.release("a", false, now);
        assert!(popped(&mut queue, now).is_some());
        // Nothing has changed yet, and the evictions went well: the changes will come.
        fail(&mut queue);
        queue.release("a", false, now);
        assert_eq!(popped(&mut queue, now), None);
        fail(&mut queue);
        queue.release("a", true, now);
        assert!(popped(&mut queue, now).is_some());
    }
}
