//! NodeResourcesFit: the node has what the pod asks for; by default the emptier, the better (LeastAllocated).

use std::{borrow::Cow, sync::Arc};

use super::dynamic_resources;
use crate::{
    args::{FitArgs, Strategy},
    devices::extended::may_be_devices,
    framework::{Ask, Change, Event, Filter, MAX_SCORE, NodeScore, Plugin, Rejection},
    node::{Node, NodeInfo},
    pod::Pod,
    resources::Resources,
};

use super::amounts::{Amounts, Wanted};

/// The highest score of a RequestedToCapacityRatio point (MaxCustomPriorityScore).
const MAX_POINT: i64 = 10;

pub struct NodeResourcesFit;

/// Pushes all that is lacking (fitsRequest). What devices stand for, of `by_devices`, counts where the node has it
/// itself; elsewhere DynamicResources sees to it (shouldDelegateResourceToDRA).
fn lacking(
    pod: &Pod,
    info: &NodeInfo,
    args: &FitArgs,
    by_devices: &[Arc<str>],
    why: &mut Vec<Rejection>,
) {
    let Some(node) = &info.node else { return };
    let have = &node.allocatable;
    let used = &info.requested;
    let pods = i64::try_from(info.pods.len()).unwrap_or(i64::MAX);
    if pods >= have.pods {
        why.push(Rejection::resolvable("Too many pods"));
    }
    let ask = &pod.requests;
    let mut check = |reason: &'static str, ask: i64, have: i64, used: i64| {
        if ask > 0 && ask > have - used {
            why.push(short(Cow::Borrowed(reason), ask, have));
        }
    };
    check(
        "Insufficient cpu",
        ask.milli_cpu,
        have.milli_cpu,
        used.milli_cpu,
    );
    check("Insufficient memory", ask.memory, have.memory, used.memory);
    check(
        "Insufficient ephemeral-storage",
        ask.ephemeral_storage,
        have.ephemeral_storage,
        used.ephemeral_storage,
    );
    for (name, amount) in &ask.scalars {
        let (have, used) = (have.scalar(name), used.scalar(name));
        if have == 0 && by_devices.contains(name) {
            continue;
        }
        if *amount > 0 && *amount > have - used && !is_ignored(name, args) {
            why.push(short(format!("Insufficient {name}").into(), *amount, have));
        }
    }
}

/// If it is more than the node has when empty, evicting pods cannot help.
fn short(reason: Cow<'static, str>, ask: i64, have: i64) -> Rejection {
    if ask > have {
        Rejection::unresolvable(reason)
    } else {
        Rejection::resolvable(reason)
    }
}

/// Extended resources that something else looks after.
fn is_ignored(name: &str, args: &FitArgs) -> bool {
    let group = name.split_once('/').map(|(group, _)| group);
    args.ignored_resources.iter().any(|other| other == name)
        || args
            .ignored_resource_groups
            .iter()
            .any(|other| Some(other.as_str()) == group)
}

/// Whether the pod could be had by a node that is empty, which may have devices for what it does not have itself.
fn fits_empty(pod: &Pod, node: &Node) -> bool {
    let (ask, have) = (&pod.requests, &node.allocatable);
    have.pods > 0
        && ask.milli_cpu <= have.milli_cpu
        && ask.memory <= have.memory
        && ask.ephemeral_storage <= have.ephemeral_storage
        && ask
            .scalars
            .iter()
            .all(|(name, amount)| match have.scalar(name) {
                0 if may_be_devices(name) => true,
                have => *amount <= have,
            })
}

/// Whether `new` offers more of anything the pod asks for.
fn offers_more(ask: &Resources, old: &Resources, new: &Resources) -> bool {
    new.pods > old.pods
        || (ask.milli_cpu > 0 && new.milli_cpu > old.milli_cpu)
        || (ask.memory > 0 && new.memory > old.memory)
        || (ask.ephemeral_storage > 0 && new.ephemeral_storage > old.ephemeral_storage)
        || ask
            .scalars
            .keys()
            .any(|name| new.scalar(name) > old.scalar(name))
}

struct Score<'a> {
    amounts: Amounts<'a>,
    strategy: &'a Strategy,
}

/// The share of `have` that is free with `used` taken, of MAX_SCORE.
fn free_share(used: i64, have: i64) -> i64 {
    if used > have {
        return 0;
    }
    share(have - used, have)
}

fn share(part: i64, whole: i64) -> i64 {
    // The product fits for all but absurd amounts; those go the long way.
    match part.checked_mul(MAX_SCORE) {
        Some(product) => product / whole,
        None => {
            i64::try_from(i128::from(part) * i128::from(MAX_SCORE) / i128::from(whole)).unwrap_or(0)
        }
    }
}

/// The height of the broken line through the points (BuildBrokenLinearFunction), scaled to MAX_SCORE.
fn on_line(points: &[super::super::args::ShapePoint], utilization: i64) -> i64 {
    let scale = MAX_SCORE / MAX_POINT;
    for (index, point) in points.iter().enumerate() {
        if utilization <= point.utilization {
            let Some(before) = index.checked_sub(1).and_then(|index| points.get(index)) else {
                return point.score * scale;
            };
            let (rise, run) = (
                point.score - before.score,
                point.utilization - before.utilization,
            );
            return before.score * scale
                + rise * scale * (utilization - before.utilization) / run.max(1);
        }
    }
    points.last().map_or(0, |last| last.score * scale)
}

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        let of = |used: i64, have: i64| match self.strategy {
            Strategy::LeastAllocated => free_share(used, have),
            Strategy::MostAllocated => share(used.min(have), have),
            Strategy::RequestedToCapacityRatio(points) if used > have => on_line(points, MAX_SCORE),
            Strategy::RequestedToCapacityRatio(points) => on_line(points, share(used, have)),
        };
        let skips_zero = matches!(self.strategy, Strategy::RequestedToCapacityRatio(_));
        self.amounts
            .each(info, Wanted::Scored, |used, have, weight| {
                let score = of(used, have);
                if !skips_zero || score > 0 {
                    sum += score * weight;
                    weights += weight;
                }
            });
        if weights == 0 {
            return 0;
        }
        if skips_zero {
            (sum as f64 / weights as f64).round() as i64
        } else {
            sum / weights
        }
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        let classes = dynamic_resources::classes(ask.pod, &ask.cluster.storage);
        let by_devices: Vec<Arc<str>> = classes.into_iter().map(|(name, _)| name).collect();
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            lacking(ask.pod, info, &ask.args.fit, &by_devices, why)
        })
    }

    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        Some(Box::new(Score {
            amounts: Amounts::new(ask.pod, &ask.args.fit.resources),
            strategy: &ask.args.fit.strategy,
        }))
    }

    fn events(&self) -> &'static [Event] {
        &[
            Event::NodeAdded,
            Event::NodeUpdated,
            Event::PodDeleted,
            Event::PodUpdated,
            Event::NominationGone,
            Event::DeviceClass,
        ]
    }

    fn may_help(&self, pod: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::NodeAdded(node) => fits_empty(pod, node),
            Change::NodeUpdated { old, new } => {
                fits_empty(pod, new)
                    && offers_more(&pod.requests, &old.allocatable, &new.allocatable)
            }
            Change::PodDeleted(_) | Change::NominationGone => true,
            Change::DeviceClass => !pod.device_asks.is_empty(),
            Change::PodUpdated { old, new } => {
                offers_more(&pod.requests, &new.requests, &old.requests)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::ShapePoint, cluster::testing::*, pod::pod};
    use serde_json::json;

    #[test]
    fn everything_that_is_lacking_is_told() {
        let mut small = mk_node("a");
        small["status"]["allocatable"] = json!({"cpu": "1", "memory": "1Gi", "pods": "1"});
        let cluster = cluster(&[small], &[on(mk_pod("x"), "a")]);
        let mut value = mk_pod("p");
        value["spec"]["containers"][0]["resources"]["requests"] =
            json!({"cpu": "2", "memory": "512Mi", "example.com/gpu": "1"});
        let told_with = |args: &FitArgs, by_devices: &[Arc<str>]| {
            let mut why = Vec::new();
            lacking(
                &pod(value.clone()),
                cluster.find_node("a").unwrap(),
                args,
                by_devices,
                &mut why,
            );
            why.into_iter()
                .map(|one| (one.reason.to_string(), one.is_resolvable))
                .collect::<Vec<_>>()
        };
        let told = |args: &FitArgs| told_with(args, &[]);
        let mut args = crate::args::PluginArgs::default().fit;
        let expected = [
            ("Too many pods", true),
            ("Insufficient cpu", false),
            ("Insufficient example.com/gpu", false),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(text, helps)| (text.to_string(), helps))
            .collect();
        assert_eq!(told(&args), expected);
        assert_eq!(told_with(&args, &["example.com/gpu".into()]), expected[..2]);
        args.ignored_resource_groups.push("example.com".into());
        assert_eq!(told(&args), expected[..2]);
    }

    #[test]
    fn each_strategy_scores_the_mean_over_its_resources() {
        let cluster = cluster(&[mk_node("a")], &[]);
        let mut value = mk_pod("p");
        value["spec"]["containers"][0]["resources"]["requests"] =
            json!({"cpu": "1", "memory": "4Gi"});
        let pod = pod(value);
        let ratio = Strategy::RequestedToCapacityRatio(vec![
            ShapePoint {
                utilization: 0,
                score: 0,
            },
            ShapePoint {
                utilization: 100,
                score: 10,
            },
        ]);
        for (strategy, expected) in [
            (Strategy::LeastAllocated, (75 + 50) / 2),
            (Strategy::MostAllocated, (25 + 50) / 2),
            (ratio, 38),
        ] {
            let mut args = crate::args::PluginArgs::default();
            args.fit.strategy = strategy.clone();
            let ask = Ask {
                pod: &pod,
                cluster: &cluster,
                args: &args,
            };
            let scorer = NodeResourcesFit.score(ask, &[]).unwrap();
            assert_eq!(
                scorer.score(cluster.find_node("a").unwrap()),
                expected,
                "{strategy:?}"
            );
        }
    }
}
