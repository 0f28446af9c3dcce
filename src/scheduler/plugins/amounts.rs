//! What a node would have taken of each resource that counts, with the pod on it.

use crate::{args::ResourceWeight, node::NodeInfo, pod::Pod, resources::Resources};

/// Which sums count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// With defaults for containers that ask for nothing.
    Scored,
    /// As asked for.
    Requested,
}

/// The resources of a profile's scoring, with what the pod asks for.
pub struct Amounts<'a> {
    pod: &'a Pod,
    resources: Vec<(Which<'a>, i64)>,
}

#[derive(Clone, Copy)]
enum Which<'a> {
    Cpu,
    Memory,
    Storage,
    Scalar(&'a str, i64),
}

impl<'a> Amounts<'a> {
    /// A resource that nodes need not have counts only for pods that ask for it.
    pub fn new(pod: &'a Pod, resources: &'a [ResourceWeight]) -> Self {
        let which = |name: &'a str| match name {
            "cpu" => Some(Which::Cpu),
            "memory" => Some(Which::Memory),
            "ephemeral-storage" => Some(Which::Storage),
            name => {
                let asked = pod.requests.scalar(name);
                (asked > 0).then_some(Which::Scalar(name, asked))
            }
        };
        let pairs = resources
            .iter()
            .filter_map(|one| Some((which(&one.name)?, one.weight)));
        Amounts {
            pod,
            resources: pairs.collect(),
        }
    }

    /// Whether the pod asks for none of them.
    pub fn asks_for_none(&self) -> bool {
        let ask = &self.pod.requests;
        self.resources.iter().all(|(which, _)| match which {
            Which::Cpu => ask.milli_cpu == 0,
            Which::Memory => ask.memory == 0,
            Which::Storage => ask.ephemeral_storage == 0,
            Which::Scalar(..) => false,
        })
    }

    /// Calls back with what would be used, what the node has, and the weight. A resource it has none of is left out.
    #[inline]
    pub fn each(&self, info: &NodeInfo, wanted: Wanted, mut of: impl FnMut(i64, i64, i64)) {
        let Some(node) = &info.node else { return };
        let have: &Resources = &node.allocatable;
        let (used, ask) = (&info.requested, &self.pod.requests);
        for (which, weight) in &self.resources {
            let (used, have) = match which {
                Which::Cpu if wanted == Wanted::Scored => {
                    (info.scored_cpu + self.pod.scored_cpu, have.milli_cpu)
                }
                Which::Cpu => (used.milli_cpu + ask.milli_cpu, have.milli_cpu),
                Which::Memory if wanted == Wanted::Scored => {
                    (info.scored_memory + self.pod.scored_memory, have.memory)
                }
                Which::Memory => (used.memory + ask.memory, have.memory),
                Which::Storage => (
                    used.ephemeral_storage + ask.ephemeral_storage,
                    have.ephemeral_storage,
                ),
                Which::Scalar(name, asked) => (used.scalar(name) + asked, have.scalar(name)),
            };
            if have > 0 {
                of(used, have, *weight);
            }
        }
    }
}
