//! What becomes of an event: a new object, one more of an old one, part of a summary, or nothing.
//!
//! Pure: time comes with the event. The numbers are client-go's defaults (tools/record/events_cache.go).

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use apimachinery::Value;
use serde_json::json;
use time::{Duration, OffsetDateTime};

use super::{Event, EventKind, ObjectReference, Source, body};
use apimachinery::time::format as timestamp;

/// Keys remembered by each of the three caches.
const CACHE: usize = 4096;
/// Events of one object by one source that pass at once.
const BURST: f64 = 25.0;
/// One more passes after this long.
const REFILL: Duration = Duration::minutes(5);
/// Different messages of similar events before they are combined.
const SIMILAR: usize = 10;
/// Similar events further apart than this are not combined.
const INTERVAL: Duration = Duration::minutes(10);

/// What makes two events the same; `message` is `None` for a combination of similar ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    similar: Similar,
    field_path: String,
    message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Similar {
    object: ObjectReference,
    kind: EventKind,
    reason: String,
}

/// What to write.
#[derive(Debug)]
pub(super) enum Verdict {
    Create(Value),
    /// Patch `name`; if that is gone, create `otherwise`.
    Count {
        namespace: String,
        name: String,
        patch: Value,
        otherwise: Value,
    },
}

#[derive(Default)]
pub(super) struct Correlator {
    buckets: Recent<ObjectReference, Bucket>,
    similar: Recent<Similar, Messages>,
    observed: Recent<Key, Observation>,
}

struct Bucket {
    tokens: f64,
    at: OffsetDateTime,
}

struct Messages {
    messages: HashSet<String>,
    at: OffsetDateTime,
}

#[derive(Clone)]
struct Observation {
    /// Empty until the object has been written.
    name: String,
    count: i64,
    first: OffsetDateTime,
    message: String,
}

impl Correlator {
    /// Counts the event; `None` if it is spam. After writing, `written` must be told the name.
    pub fn correlate(&mut self, event: &Event, source: &Source) -> Option<(Key, Verdict)> {
        let identity = ObjectReference {
            resource_version: String::new(),
            field_path: String::new(),
            ..event.object.clone()
        };
        let (key, message) = self.combine(event, identity.clone());
        let earlier = self.observed.get(&key).cloned();
        let observation = Observation {
            name: earlier
                .as_ref()
                .map_or(String::new(), |old| old.name.clone()),
            count: earlier.as_ref().map_or(1, |old| old.count + 1),
            first: earlier.as_ref().map_or(event.at, |old| old.first),
            message: message.clone(),
        };
        self.observed.put(key.clone(), observation.clone());
        if !self.passes(identity, event.at) {
            return None;
        }
        let Observation {
            name, count, first, ..
        } = observation;
        let created = body(event, source, count, first, &message);
        if name.is_empty() {
            return Some((key, Verdict::Create(created)));
        }
        let mut patch = json!({"count": count, "lastTimestamp": timestamp(event.at)});
        if earlier.is_some_and(|old| old.message != message) {
            patch["message"] = json!(message);
        }
        let namespace = apimachinery::meta::namespace(&created).to_string();
        let verdict = Verdict::Count {
            namespace,
            name,
            patch,
            otherwise: created,
        };
        Some((key, verdict))
    }

    /// Remembers under which name the event is stored.
    pub fn written(&mut self, key: &Key, name: &str) {
        if let Some(observation) = self.observed.get_mut(key) {
            name.clone_into(&mut observation.name);
        }
    }

    fn combine(&mut self, event: &Event, object: ObjectReference) -> (Key, String) {
        let similar = Similar {
            object,
            kind: event.kind,
            reason: event.reason.clone(),
        };
        let mut seen = match self.similar.remove(&similar) {
            Some(seen) if event.at - seen.at <= INTERVAL => seen,
            _ => Messages {
                messages: HashSet::new(),
                at: event.at,
            },
        };
        seen.at = event.at;
        seen.messages.insert(event.message.clone());
        let combined = seen.messages.len() >= SIMILAR;
        if combined {
            // Stays just below the threshold, so that the next different message is combined, too.
            seen.messages.remove(&event.message);
        }
        self.similar.put(similar.clone(), seen);
        let message = if combined {
            format!("(combined from similar events): {}", event.message)
        } else {
            event.message.clone()
        };
        let key = Key {
            similar,
            field_path: if combined {
                String::new()
            } else {
                event.object.field_path.clone()
            },
            message: (!combined).then(|| message.clone()),
        };
        (key, message)
    }

    fn passes(&mut self, object: ObjectReference, at: OffsetDateTime) -> bool {
        let full = Bucket { tokens: BURST, at };
        let mut bucket = self.buckets.remove(&object).unwrap_or(full);
        let refill = (at - bucket.at).as_seconds_f64().max(0.0) / REFILL.as_seconds_f64();
        bucket.tokens = (bucket.tokens + refill).min(BURST);
        bucket.at = at;
        let passes = bucket.tokens >= 1.0;
        if passes {
            bucket.tokens -= 1.0;
        }
        self.buckets.put(object, bucket);
        passes
    }
}

/// A map that forgets what was longest unused once it holds more than `CACHE` entries.
struct Recent<K, V> {
    entries: HashMap<K, (V, u64)>,
    clock: u64,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent {
            entries: HashMap::new(),
            clock: 0,
        }
    }
}

impl<K: Eq + Hash, V> Recent<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key).map(|(value, _)| value)
    }

    fn put(&mut self, key: K, value: V) {
        self.clock += 1;
        self.entries.insert(key, (value, self.clock));
        if self.entries.len() > CACHE {
            // Half goes at once, so that the cost of finding it is shared by as many insertions.
            let mut used: Vec<u64> = self.entries.values().map(|(_, used)| *used).collect();
            let middle = used.len() / 2;
            let (_, median, _) = used.select_nth_unstable(middle);
            let median = *median;
            self.entries.retain(|_, (_, used)| *used >= median);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(message: &str, second: i64) -> Event {
        Event {
            object: ObjectReference::pod("default", "p", "u", &second.to_string()),
            kind: EventKind::Normal,
            reason: "BackOff".into(),
            message: message.into(),
            annotations: Vec::new(),
            at: OffsetDateTime::UNIX_EPOCH + Duration::seconds(second),
        }
    }

    fn source() -> Source {
        Source {
            component: "kubelet".into(),
            host: "n1".into(),
        }
    }

    #[test]
    fn the_same_event_again_is_counted() {
        let mut correlator = Correlator::default();
        let (key, verdict) = correlator.correlate(&event("a", 0), &source()).unwrap();
        assert!(matches!(verdict, Verdict::Create(_)));
        correlator.written(&key, "p.1");
        let (_, verdict) = correlator.correlate(&event("a", 9), &source()).unwrap();
        let Verdict::Count {
            name,
            patch,
            otherwise,
            ..
        } = verdict
        else {
            panic!("{verdict:?}")
        };
        assert_eq!(name, "p.1");
        assert_eq!(
            patch,
            json!({"count": 2, "lastTimestamp": "1970-01-01T00:00:09Z"})
        );
        assert_eq!(otherwise["count"], 2);
        assert_eq!(otherwise["firstTimestamp"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn more_than_25_events_of_an_object_at_once_are_spam_until_5_minutes_later() {
        let mut correlator = Correlator::default();
        let passed = (0..40)
            .filter(|_| correlator.correlate(&event("a", 0), &source()).is_some())
            .count();
        assert_eq!(passed, 25);
        assert!(correlator.correlate(&event("a", 299), &source()).is_none());
        assert!(correlator.correlate(&event("a", 301), &source()).is_some());
    }

    #[test]
    fn ten_different_messages_in_ten_minutes_are_combined() {
        let mut correlator = Correlator::default();
        for number in 0..9 {
            let (key, verdict) = correlator
                .correlate(&event(&number.to_string(), 0), &source())
                .unwrap();
            assert!(matches!(verdict, Verdict::Create(_)));
            correlator.written(&key, "x");
        }
        let (key, verdict) = correlator.correlate(&event("9", 1), &source()).unwrap();
        let Verdict::Create(body) = verdict else {
            panic!()
        };
        assert_eq!(body["message"], "(combined from similar events): 9");
        correlator.written(&key, "sum");
        let (_, verdict) = correlator.correlate(&event("10", 2), &source()).unwrap();
        let Verdict::Count { name, patch, .. } = verdict else {
            panic!()
        };
        assert_eq!(name, "sum");
        assert_eq!(patch["message"], "(combined from similar events): 10");
        let (_, verdict) = correlator.correlate(&event("11", 700), &source()).unwrap();
        assert!(matches!(verdict, Verdict::Create(_)));
    }

    #[test]
    fn a_cache_forgets_the_longest_unused_half() {
        let mut recent = Recent::default();
        (0..=CACHE).for_each(|key| recent.put(key, ()));
        assert!(recent.get(&0).is_none());
        assert!(recent.get(&CACHE).is_some());
        assert!(recent.entries.len() <= CACHE);
    }
}
