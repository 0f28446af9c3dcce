//! NodeResourcesBalancedAllocation: nodes whose resources are used to the same degree are better.

use crate::{
    framework::{Ask, MAX_SCORE, NodeScore, Plugin},
    node::NodeInfo,
};

use super::amounts::{Amounts, Wanted};

pub struct BalancedAllocation;

struct Score<'a>(Amounts<'a>);

impl NodeScore for Score<'_> {
    /// By the standard deviation of the used shares.
    fn score(&self, info: &NodeInfo) -> i64 {
        let (mut count, mut sum, mut squares, mut first) = (0.0, 0.0, 0.0, 0.0);
        self.0.each(info, Wanted::Requested, |used, have, _| {
            let share = (used as f64 / have as f64).min(1.0);
            if count == 0.0 {
                first = share;
            }
            count += 1.0;
            sum += share;
            squares += share * share;
        });
        let deviation = if count == 2.0 {
            (first - (sum - first)).abs() / 2.0
        } else if count > 2.0 {
            let mean: f64 = sum / count;
            (squares / count - mean * mean).max(0.0).sqrt()
        } else {
            0.0
        };
        ((1.0 - deviation) * MAX_SCORE as f64) as i64
    }
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// A pod that asks for nothing changes no balance.
    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        let amounts = Amounts::new(ask.pod, &ask.args.balanced);
        if amounts.asks_for_none() {
            return None;
        }
        Some(Box::new(Score(amounts)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{args::ResourceWeight, cluster::testing::*, pod::pod};

    #[test]
    fn the_score_falls_with_the_deviation_of_the_used_shares() {
        let mut node = mk_node("a");
        node["status"]["allocatable"]["example.com/gpu"] = json!("4");
        let cluster = cluster(&[node], &[]);
        let mut args = crate::args::PluginArgs::default();
        args.balanced.push(ResourceWeight {
            name: "example.com/gpu".into(),
            weight: 1,
        });
        // Of 4 cores, 8 Gi and 4 devices.
        for (requests, expected) in [
            (json!({"cpu": "2", "memory": "4Gi"}), Some(100)),
            (json!({"cpu": "1", "memory": "4Gi"}), Some(87)),
            (json!({"cpu": "4"}), Some(50)),
            // The deviation of 0.25, 0.25 and 1.
            (
                json!({"cpu": "1", "memory": "2Gi", "example.com/gpu": "4"}),
                Some(64),
            ),
            (json!({}), None),
        ] {
            let mut value = mk_pod("p");
            value["spec"]["containers"][0]["resources"]["requests"] = requests.clone();
            let pod = pod(value);
            let ask = Ask {
                pod: &pod,
                cluster: &cluster,
                args: &args,
            };
            let score = BalancedAllocation.score(ask, &[]).map(|scorer| {
                let node = cluster.find_node("a").expect("it is there");
                scorer.score(node)
            });
            assert_eq!(score, expected, "{requests}");
        }
    }
}
