//! NodeResourcesBalancedAllocation: nodes whose processors and memory are used to the same degree are better.

use crate::{
    cluster::Cluster,
    framework::{MAX_SCORE, NodeScore, Plugin},
    node::NodeInfo,
    pod::Pod,
};

pub struct BalancedAllocation;

struct Score<'a>(&'a Pod);

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let share = |used: i64, ask: i64, have: i64| {
            (have > 0).then(|| ((used + ask) as f64 / have as f64).min(1.0))
        };
        let (ask, have, used) = (&self.0.requests, &node.allocatable, &info.requested);
        let cpu = share(used.milli_cpu, ask.milli_cpu, have.milli_cpu);
        let memory = share(used.memory, ask.memory, have.memory);
        let deviation = match (cpu, memory) {
            (Some(cpu), Some(memory)) => ((cpu - memory) / 2.0).abs(),
            _ => 0.0,
        };
        ((1.0 - deviation) * MAX_SCORE as f64) as i64
    }
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// A pod that asks for nothing changes no balance.
    fn score<'a>(
        &self,
        pod: &'a Pod,
        _: &'a Cluster,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        if pod.requests.milli_cpu == 0 && pod.requests.memory == 0 {
            return None;
        }
        Some(Box::new(Score(pod)))
    }
}
