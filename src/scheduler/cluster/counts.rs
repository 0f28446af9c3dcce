//! Pods counted by node for the selectors in use, kept current with every pod that comes and goes.

use std::{collections::HashMap, sync::Arc};

use apimachinery::selector::LabelSelector;

use crate::pod::Pod;

/// Selectors whose matches are counted at a time: spread constraints and services of as many workloads being
/// scheduled.
const MAX_SELECTORS: usize = 256;

#[derive(Default)]
pub(super) struct Counts {
    by_namespace: HashMap<String, HashMap<CountKey, Count>>,
    total: usize,
    clock: u64,
}

/// A selector's text, and whether pods being deleted count.
pub(super) type CountKey = (String, bool);

struct Count {
    selector: LabelSelector,
    nodes: Arc<HashMap<usize, i64>>,
    used: u64,
}

impl Counts {
    /// The counts of a selector, if it is in use.
    pub fn find(&mut self, namespace: &str, key: &CountKey) -> Option<Arc<HashMap<usize, i64>>> {
        self.clock += 1;
        let count = self.by_namespace.get_mut(namespace)?.get_mut(key)?;
        count.used = self.clock;
        Some(count.nodes.clone())
    }

    /// Keeps the counts of a selector from now on, in place of those longest out of use.
    pub fn track(
        &mut self,
        namespace: &str,
        key: CountKey,
        selector: LabelSelector,
        nodes: Arc<HashMap<usize, i64>>,
    ) {
        if self.total == MAX_SELECTORS {
            let oldest = self
                .by_namespace
                .iter()
                .flat_map(|(namespace, all)| {
                    all.iter()
                        .map(move |(key, count)| (count.used, namespace, key))
                })
                .min()
                .map(|(_, namespace, key)| (namespace.clone(), key.clone()));
            if let Some((namespace, key)) = oldest
                && let Some(all) = self.by_namespace.get_mut(&namespace)
            {
                all.remove(&key);
                self.total -= 1;
                if all.is_empty() {
                    self.by_namespace.remove(&namespace);
                }
            }
        }
        let count = Count {
            selector,
            nodes,
            used: self.clock,
        };
        self.by_namespace
            .entry(namespace.into())
            .or_default()
            .insert(key, count);
        self.total += 1;
    }

    /// A pod came (`by` is 1) or went (-1).
    pub fn pod(&mut self, pod: &Pod, node: usize, by: i64) {
        let counts = self.by_namespace.get_mut(&pod.namespace);
        for ((_, all), count) in counts.into_iter().flatten() {
            if (*all || !pod.is_deleting) && count.selector.matches(&pod.labels) {
                let nodes = Arc::make_mut(&mut count.nodes);
                let here = nodes.entry(node).or_default();
                *here += by;
                if *here == 0 {
                    nodes.remove(&node);
                }
            }
        }
    }
}
