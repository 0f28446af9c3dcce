//! The affinity terms of pods that have a node, each once with the places of all pods that have it: a decision asks
//! about as many terms as there are workloads, not pods.

use std::{collections::HashMap, sync::Arc};

use super::{
    counts::{Counted, Tally},
    topology::{Column, Columns},
};
use crate::pod::{Pod, PodAffinity, Term};

/// What a term is to the pod that has it; preferences with their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TermKind {
    Required,
    AntiRequired,
    Preferred(i64),
    AntiPreferred(i64),
}

/// Terms of running pods.
#[derive(Default)]
pub(super) struct Terms(HashMap<(TermKind, Arc<str>), Group>);

struct Group {
    term: Term,
    counted: Counted,
    pods: usize,
}

/// All terms of an affinity.
fn terms(affinity: &PodAffinity) -> impl Iterator<Item = (TermKind, &Term)> {
    let required = affinity
        .required
        .iter()
        .map(|term| (TermKind::Required, term));
    let anti = affinity
        .anti_required
        .iter()
        .map(|term| (TermKind::AntiRequired, term));
    let preferred = affinity
        .preferred
        .iter()
        .map(|(weight, term)| (TermKind::Preferred(*weight), term));
    let shunned = affinity
        .anti_preferred
        .iter()
        .map(|(weight, term)| (TermKind::AntiPreferred(*weight), term));
    required.chain(anti).chain(preferred).chain(shunned)
}

impl Terms {
    /// A pod came to a node (`by` is 1) or went (-1).
    pub fn pod(&mut self, pod: &Pod, node: usize, by: i64, columns: &Columns) {
        for (kind, term) in pod.pod_affinity.iter().flat_map(|affinity| terms(affinity)) {
            let key = (kind, term.id.clone());
            let new = || Group {
                term: term.clone(),
                counted: Counted::default(),
                pods: 0,
            };
            let group = self.0.entry(key.clone()).or_insert_with(new);
            group.counted.add(node, by, columns);
            group.pods = if by > 0 {
                group.pods + 1
            } else {
                group.pods.saturating_sub(1)
            };
            if group.pods == 0 {
                self.0.remove(&key);
            }
        }
    }

    /// The terms of the kinds `wanted`, with the places of the pods that have them. `column` gives a topology.
    pub fn find(
        &mut self,
        wanted: impl Fn(TermKind, &Term) -> bool,
        mut column: impl FnMut(&str) -> Arc<Column>,
    ) -> Vec<(TermKind, Arc<Column>, Arc<Tally>)> {
        let found = self
            .0
            .iter_mut()
            .filter(|((kind, _), group)| wanted(*kind, &group.term));
        found
            .map(|((kind, _), group)| {
                let column = column(&group.term.topology_key);
                let tally = group.counted.tally(&group.term.topology_key, &column);
                (*kind, column, tally)
            })
            .collect()
    }

    pub fn forget_tallies(&mut self) {
        for group in self.0.values_mut() {
            group.counted.forget_tallies();
        }
    }
}
