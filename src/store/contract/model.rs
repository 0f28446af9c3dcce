//! Random operations, compared step by step with a model so simple that it is right: a full copy of the keys
//! for every revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fixture, text};
use crate::embedded::Embedded;
use crate::kv::*;

/// Splitmix64: enough of a random generator, and the seed names the run.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    value: String,
    create: i64,
    modified: i64,
    version: i64,
}

type Keys = BTreeMap<String, Held>;

/// A change as a watch shows it: revision, key, and the value or `None` for a delete.
type Change = (i64, String, Option<String>);

struct Model {
    /// By revision, from the compaction floor on.
    states: BTreeMap<i64, Keys>,
    changes: Vec<Change>,
    floor: i64,
}

impl Model {
    fn now(&self) -> (i64, &Keys) {
        let (revision, keys) = self.states.last_key_value().expect("there is a state");
        (*revision, keys)
    }

    fn put(&self, keys: &mut Keys, key: &str, value: &str, revision: i64) {
        let (create, version) = keys
            .get(key)
            .map_or((revision, 1), |held| (held.create, held.version + 1));
        let held = Held {
            value: value.into(),
            create,
            modified: revision,
            version,
        };
        keys.insert(key.into(), held);
    }

    fn commit(&mut self, revision: i64, keys: Keys, changes: Vec<(String, Option<String>)>) {
        self.states.insert(revision, keys);
        let changes = changes
            .into_iter()
            .map(|(key, value)| (revision, key, value));
        self.changes.extend(changes);
    }
}

/// One run: a store, its model, and what happens to them.
pub(crate) struct Run {
    pub fixture: Fixture,
    random: Random,
    model: Model,
}

impl Run {
    pub async fn new(fixture: Fixture, seed: u64) -> Self {
        let revision = fixture.store.revision().await.expect("a revision");
        let model = Model {
            states: BTreeMap::from([(revision, Keys::new())]),
            changes: Vec::new(),
            floor: 0,
        };
        Self {
            fixture,
            random: Random(seed),
            model,
        }
    }

    fn key(&mut self) -> String {
        format!("{:02}", self.random.below(30))
    }

    pub async fn step(&mut self) {
        match self.random.below(20) {
            0..=7 => self.put().await,
            8..=10 => self.delete().await,
            11..=12 => self.transaction().await,
            13 => self.delete_range().await,
            14..=17 => self.read().await,
            18 => self.watch().await,
            _ => self.compact().await,
        }
    }

    async fn put(&mut self) {
        let key = self.key();
        let value = "v".repeat(self.random.below(200) as usize);
        let revision = self.fixture.put(&key, &value).await;
        let (before, keys) = self.model.now();
        assert_eq!(revision, before + 1);
        let mut keys = keys.clone();
        self.model.put(&mut keys, &key, &value, revision);
        self.model.commit(revision, keys, vec![(key, Some(value))]);
    }

    async fn delete(&mut self) {
        let key = self.key();
        let revision = self.fixture.delete(&key).await;
        let (before, keys) = self.model.now();
        let mut keys = keys.clone();
        match keys.remove(&key) {
            Some(_) => {
                assert_eq!(revision, before + 1);
                self.model.commit(revision, keys, vec![(key, None)]);
            }
            None => assert_eq!(revision, before),
        }
    }

    async fn delete_range(&mut self) {
        let (from, to) = (self.key(), self.key());
        let op = Op::Delete {
            key: self.fixture.key(&from),
            range_end: Some(self.fixture.key(&to)),
            prev_kv: false,
        };
        let revision = self.fixture.run(vec![op]).await.revision;
        let (before, keys) = self.model.now();
        let inside = |key: &String| *key >= from && *key < to;
        let gone: Vec<String> = keys.keys().filter(|key| inside(key)).cloned().collect();
        if gone.is_empty() {
            assert_eq!(revision, before);
            return;
        }
        assert_eq!(revision, before + 1);
        let mut keys = keys.clone();
        keys.retain(|key, _| !inside(key));
        let changes = gone.into_iter().map(|key| (key, None)).collect();
        self.model.commit(revision, keys, changes);
    }

    async fn transaction(&mut self) {
        let (guarded, other) = (self.key(), self.key());
        if guarded == other {
            return;
        }
        let (before, keys) = self.model.now();
        let mut keys = keys.clone();
        let actual = keys.get(&guarded).map_or(0, |held| held.modified);
        let expected = actual + self.random.below(2) as i64;
        let txn = Txn {
            compare: vec![Compare::ModRevision(
                self.fixture.key(&guarded),
                CompareOp::Equal,
                expected,
            )],
            success: vec![
                self.fixture.put_op(&guarded, "yes", 0),
                self.fixture.delete_op(&other),
            ],
            failure: vec![self.fixture.put_op(&other, "no", 0)],
        };
        let response = self.fixture.store.txn(txn).await.expect("it runs");
        let revision = before + 1;
        assert_eq!(response.revision, revision);
        assert_eq!(response.succeeded, expected == actual);
        let mut changes = Vec::new();
        if response.succeeded {
            self.model.put(&mut keys, &guarded, "yes", revision);
            changes.push((guarded, Some("yes".into())));
            if keys.remove(&other).is_some() {
                changes.push((other, None));
            }
        } else {
            self.model.put(&mut keys, &other, "no", revision);
            changes.push((other, Some("no".into())));
        }
        self.model.commit(revision, keys, changes);
    }

    /// Compares the keys at a random readable revision, or now.
    pub async fn read(&mut self) {
        let at = self.random_revision();
        let asked = if at == self.model.now().0 { 0 } else { at };
        let limit = self.random.below(8) as usize;
        let request = RangeRequest {
            revision: asked,
            limit,
            ..self.fixture.all()
        };
        let response = self.fixture.store.range(request).await.expect("it reads");
        let keys = &self.model.states[&at];
        assert_eq!(response.count, keys.len() as i64, "count at {at}");
        assert_eq!(response.more, limit > 0 && keys.len() > limit);
        let limit = if limit == 0 { usize::MAX } else { limit };
        let prefix = self.fixture.prefix.len();
        let seen = response.kvs.iter().map(|kv| {
            let held = Held {
                value: text(&kv.value),
                create: kv.create_revision,
                modified: kv.mod_revision,
                version: kv.version,
            };
            (text(&kv.key[prefix..]), held)
        });
        let expected = keys.iter().take(limit);
        let expected = expected.map(|(key, held)| (key.clone(), held.clone()));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            expected.collect::<Vec<_>>(),
            "at {at}"
        );
    }

    /// Watches from a random revision up to now.
    pub async fn watch(&mut self) {
        let from = self.random_revision() + 1;
        let now = self.model.now().0;
        let mut watched = self.fixture.watch(from).await;
        if from > now {
            return;
        }
        let expected: Vec<Change> = self
            .model
            .changes
            .iter()
            .filter(|(revision, ..)| *revision >= from)
            .cloned()
            .collect();
        let prefix = self.fixture.prefix.len();
        let mut seen: Vec<Change> = Vec::new();
        while seen.len() < expected.len() {
            for event in watched.batch().await.expect("it goes on").events {
                let value = (event.kind == EventKind::Put).then(|| text(&event.kv.value));
                let key = text(&event.kv.key[prefix..]);
                self.check_prev(&event, &key);
                seen.push((event.kv.mod_revision, key, value));
            }
        }
        // Within one revision the order is the transaction's, which the model need not know.
        seen.sort();
        let mut expected = expected;
        expected.sort();
        assert_eq!(seen, expected, "from {from}");
    }

    fn check_prev(&self, event: &Event, key: &str) {
        let Some(before) = self.model.states.get(&(event.kv.mod_revision - 1)) else {
            return;
        };
        let expected = before.get(key).map(|held| held.value.clone());
        let seen = event.prev.as_ref().map(|prev| text(&prev.value));
        assert_eq!(seen, expected, "before {} of {key}", event.kv.mod_revision);
    }

    async fn compact(&mut self) {
        let at = self.random_revision();
        let now = self.model.now().0;
        // Not always to the end, so that there is a past to read.
        if at <= self.model.floor || at + 20 > now {
            return;
        }
        self.fixture.store.compact(at).await.expect("it compacts");
        self.model.floor = at;
        self.model.states = self.model.states.split_off(&at);
    }

    fn random_revision(&mut self) -> i64 {
        let nth = self.random.below(self.model.states.len() as u64);
        *self
            .model
            .states
            .keys()
            .nth(nth as usize)
            .expect("in range")
    }
}

const STEPS: usize = 600;

#[tokio::test]
async fn random_operations_agree_with_the_model_in_memory() {
    for seed in 1..=5 {
        println!("seed {seed}");
        let fixture = Fixture::new(Embedded::in_memory(), "model");
        let mut run = Run::new(fixture, seed).await;
        for _ in 0..STEPS {
            run.step().await;
        }
    }
}

#[tokio::test]
async fn random_operations_agree_with_the_model_on_disk_across_restarts() {
    for seed in 1..=5 {
        println!("seed {seed}");
        let dir = tempfile::tempdir().expect("a folder");
        let open = || Embedded::open(dir.path(), super::small_options()).expect("it opens");
        let mut run = Run::new(Fixture::new(open(), "model"), seed).await;
        for _ in 0..STEPS {
            if run.random.below(30) == 0 {
                run.fixture.store = Embedded::in_memory();
                run.fixture.store = open();
            }
            run.step().await;
        }
    }
}

/// The model itself is checked against the real thing where there is one.
pub(crate) async fn agree(store: Arc<dyn Store>, seed: u64) {
    let name = format!("model-{seed}");
    let mut run = Run::new(Fixture::new(store, &name), seed).await;
    for _ in 0..STEPS {
        run.step().await;
    }
}
