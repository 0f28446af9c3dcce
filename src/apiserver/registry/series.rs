//! What the caches and the admission chain tell `/metrics`.

use std::sync::{Arc, Weak};

use super::Registry;
use super::kind::Kind;
use crate::cache::{Cache, Traffic};
use crate::metrics::Source;
use crate::metrics::text::{Kind as Family, Text};

impl Registry {
    /// Writes the series of this registry for as long as it lives.
    pub(super) fn source(self: &Arc<Self>) -> Source {
        let weak: Weak<Self> = Arc::downgrade(self);
        Box::new(move |text| {
            if let Some(registry) = weak.upgrade() {
                registry.write_series(text);
            }
        })
    }

    fn write_series(&self, text: &mut Text) {
        let kinds = self.kinds();
        let mut caches: Vec<(&Arc<Kind>, &Arc<Cache>)> = kinds
            .iter()
            .filter_map(|kind| Some((kind, kind.started_cache()?)))
            .collect();
        caches.sort_by_key(|(kind, _)| (kind.storage.group, kind.storage.plural));
        write_objects(text, &caches);
        write_watches(text, &caches);
        self.admission.series.write(text);
    }
}

type Caches<'a> = [(&'a Arc<Kind>, &'a Arc<Cache>)];

fn labels(kind: &Kind) -> [(&'static str, &'static str); 2] {
    [
        ("group", kind.storage.group),
        ("resource", kind.storage.plural),
    ]
}

/// Only resources that somebody asked for have a cache; of the others nothing is known without asking the store.
fn write_objects(text: &mut Text, caches: &Caches<'_>) {
    let sized = caches
        .iter()
        .filter_map(|(kind, cache)| Some((&***kind, cache.size()?)));
    let sized: Vec<(&Kind, (usize, usize))> = sized.collect();
    let counted: Vec<(&Kind, usize)> = sized
        .iter()
        .map(|(kind, (count, _))| (*kind, *count))
        .collect();
    let name = "apiserver_resource_size_estimate_bytes";
    text.family(
        name,
        Family::Gauge,
        "Estimated size of stored objects in database. Estimate is based on sum of last observed sizes of serialized objects. In case of a fetching error, the value will be -1.",
    );
    for (kind, (_, bytes)) in &sized {
        text.sample(name, &labels(kind), bytes);
    }
    let name = "apiserver_resource_objects";
    text.family(
        name,
        Family::Gauge,
        "Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
    );
    for (kind, count) in &counted {
        text.sample(name, &labels(kind), count);
    }
    let name = "apiserver_storage_objects";
    text.family(
        name,
        Family::Gauge,
        "Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
    );
    for (kind, count) in &counted {
        let resource = kind.storage.qualified();
        text.sample(name, &[("resource", &resource)], count);
    }
    let name = "apiserver_watch_cache_resource_version";
    text.family(
        name,
        Family::Gauge,
        "Current resource version of watch cache broken by resource type.",
    );
    for (kind, cache) in caches {
        text.sample(name, &labels(kind), cache.revision());
    }
    let name = "watch_cache_capacity";
    text.family(
        name,
        Family::Gauge,
        "Total capacity of watch cache broken by resource type.",
    );
    for (kind, cache) in caches {
        text.sample(name, &labels(kind), cache.capacity());
    }
}

/// A counter of watches: name, help, value.
type Counter = (&'static str, &'static str, fn(&Traffic) -> u64);

const COUNTERS: [Counter; 2] = [
    (
        "apiserver_watch_cache_events_received_total",
        "Counter of events received in watch cache broken by resource type.",
        |traffic| traffic.received,
    ),
    (
        "apiserver_watch_cache_events_dispatched_total",
        "Counter of events dispatched in watch cache broken by resource type.",
        |traffic| traffic.received,
    ),
];

fn write_watches(text: &mut Text, caches: &Caches<'_>) {
    let traffic: Vec<(&Kind, Traffic)> = caches
        .iter()
        .map(|(kind, cache)| (&***kind, cache.traffic()))
        .collect();
    for (name, help, value) in COUNTERS {
        text.family(name, Family::Counter, help);
        for (kind, traffic) in &traffic {
            text.sample(name, &labels(kind), value(traffic));
        }
    }
    let watch_labels = |kind: &Kind| {
        [
            ("group", kind.storage.group),
            ("resource", kind.storage.plural),
            ("version", kind.storage.version),
        ]
    };
    let name = "apiserver_watch_events_total";
    text.family(
        name,
        Family::Counter,
        "Number of events sent in watch clients",
    );
    for (kind, traffic) in traffic.iter().filter(|(_, traffic)| traffic.delivered > 0) {
        text.sample(name, &watch_labels(kind), traffic.delivered);
    }
}
