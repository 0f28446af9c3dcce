//! Pods counted by node, and by the values of topologies, for the selectors in use; kept current with every pod that
//! comes and goes.

use std::{collections::HashMap, sync::Arc};

use apimachinery::selector::LabelSelector;

use super::topology::{Column, Columns};
use crate::pod::Pod;

/// Selectors whose matches are counted at a time: spread constraints and services of as many workloads being
/// scheduled.
const MAX_SELECTORS: usize = 256;

/// How many pods there are by the value of a topology (see `Column`).
pub type Tally = Vec<i64>;

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
    counted: Counted,
    used: u64,
}

/// Pods counted by node, and derived from that by topology.
#[derive(Default)]
pub(super) struct Counted {
    pub nodes: Arc<HashMap<usize, i64>>,
    /// By label, with the serial of the column they are numbered by.
    tallies: HashMap<String, (u64, Arc<Tally>)>,
}

impl Counted {
    pub fn of(nodes: HashMap<usize, i64>) -> Self {
        Counted {
            nodes: Arc::new(nodes),
            tallies: HashMap::new(),
        }
    }

    /// A pod came to the node (`by` is 1) or went (-1).
    pub fn add(&mut self, node: usize, by: i64, columns: &Columns) {
        let nodes = Arc::make_mut(&mut self.nodes);
        let here = nodes.entry(node).or_default();
        *here += by;
        if *here == 0 {
            nodes.remove(&node);
        }
        self.tallies.retain(|key, (serial, tally)| {
            let Some(column) = columns.find(key).filter(|column| column.serial == *serial) else {
                return false;
            };
            if let Some(value) = column.at(node) {
                add_to(Arc::make_mut(tally), value, by);
            }
            true
        });
    }

    /// The pods by the values of a topology.
    pub fn tally(&mut self, key: &str, column: &Column) -> Arc<Tally> {
        if let Some((serial, tally)) = self.tallies.get(key)
            && *serial == column.serial
        {
            return tally.clone();
        }
        let mut tally = vec![0; column.len()];
        for (node, pods) in self.nodes.iter() {
            if let Some(value) = column.at(*node) {
                add_to(&mut tally, value, *pods);
            }
        }
        let tally = Arc::new(tally);
        self.tallies
            .insert(key.into(), (column.serial, tally.clone()));
        tally
    }

    /// The nodes' labels are others now.
    pub fn forget_tallies(&mut self) {
        self.tallies.clear();
    }
}

fn add_to(tally: &mut Tally, value: usize, by: i64) {
    if tally.len() <= value {
        tally.resize(value + 1, 0);
    }
    tally[value] += by;
}

impl Counts {
    pub fn is_tracked(&self, namespace: &str, key: &CountKey) -> bool {
        self.by_namespace
            .get(namespace)
            .is_some_and(|all| all.contains_key(key))
    }

    /// The counts of a selector; of none if it is not tracked.
    pub fn find(&mut self, namespace: &str, key: CountKey) -> &mut Counted {
        self.clock += 1;
        let all = self.by_namespace.entry(namespace.into()).or_default();
        let new = || Count {
            selector: LabelSelector::nothing(),
            counted: Counted::default(),
            used: 0,
        };
        let count = all.entry(key).or_insert_with(new);
        count.used = self.clock;
        &mut count.counted
    }

    /// Keeps the counts of a selector from now on, in place of those longest out of use.
    pub fn track(
        &mut self,
        namespace: &str,
        key: CountKey,
        selector: LabelSelector,
        counted: Counted,
    ) {
        if self.total == MAX_SELECTORS {
            self.drop_oldest();
        }
        let count = Count {
            selector,
            counted,
            used: self.clock,
        };
        self.by_namespace
            .entry(namespace.into())
            .or_default()
            .insert(key, count);
        self.total += 1;
    }

    fn drop_oldest(&mut self) {
        let all = self.by_namespace.iter().flat_map(|(namespace, all)| {
            all.iter()
                .map(move |(key, count)| (count.used, namespace, key))
        });
        let oldest = all
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

    /// A pod came (`by` is 1) or went (-1).
    pub fn pod(&mut self, pod: &Pod, node: usize, by: i64, columns: &Columns) {
        let counts = self.by_namespace.get_mut(&pod.namespace);
        for ((_, all), count) in counts.into_iter().flatten() {
            if (*all || !pod.is_deleting) && count.selector.matches(&pod.labels) {
                count.counted.add(node, by, columns);
            }
        }
    }

    /// The nodes' labels are others now.
    pub fn forget_tallies(&mut self) {
        for count in self.by_namespace.values_mut().flat_map(HashMap::values_mut) {
            count.counted.forget_tallies();
        }
    }
}
