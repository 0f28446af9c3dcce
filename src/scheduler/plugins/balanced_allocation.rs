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
