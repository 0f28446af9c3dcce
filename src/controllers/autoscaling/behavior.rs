//! How fast replicas may change: stabilization and scaling policies (KEP-853). Pure but for what it remembers.

use std::time::Duration;

use apimachinery::time::Time;

use super::{
    replicas::Tolerance,
    view::{Behavior, Policy, Rules},
};

/// How long a lower recommendation must last (`--horizontal-pod-autoscaler-downscale-stabilization`).
const STABILIZATION: u64 = 300;
/// Changes and recommendations that are remembered for each autoscaler.
const MAX_REMEMBERED: usize = 2000;

/// What an autoscaler did and thought lately.
#[derive(Debug, Default)]
pub struct Memory {
    recommendations: Vec<(Time, i64)>,
    /// Replicas that were added, and taken away.
    ups: Vec<(Time, i64)>,
    downs: Vec<(Time, i64)>,
}

/// What came of a recommendation, and the conditions that say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub replicas: i64,
    /// AbleToScale: reason and message.
    pub able: (&'static str, &'static str),
    /// ScalingLimited: whether, reason and message.
    pub limited: (bool, &'static str, &'static str),
}

pub fn tolerance(behavior: Option<&Behavior>) -> Tolerance {
    let of = |rules: Option<&Rules>, default: f64| {
        let text = rules.and_then(|rules| rules.tolerance.as_deref());
        let quantity = text.and_then(|text| text.parse::<apimachinery::quantity::Quantity>().ok());
        quantity.map_or(default, |quantity| quantity.as_f64())
    };
    let default = Tolerance::default();
    Tolerance {
        up: of(behavior.and_then(|one| one.scale_up.as_ref()), default.up),
        down: of(
            behavior.and_then(|one| one.scale_down.as_ref()),
            default.down,
        ),
    }
}

fn default_up() -> Rules {
    Rules {
        stabilization_window_seconds: Some(0),
        policies: vec![policy("Pods", 4), policy("Percent", 100)],
        ..Rules::default()
    }
}

fn default_down() -> Rules {
    Rules {
        policies: vec![policy("Percent", 100)],
        ..Rules::default()
    }
}

fn policy(kind: &str, value: i64) -> Policy {
    Policy {
        kind: kind.into(),
        value,
        period_seconds: 15,
    }
}

impl Memory {
    /// Notes that the replicas changed.
    pub fn scaled(&mut self, from: i64, to: i64, now: Time) {
        if to > from {
            self.ups.push((now, to - from));
        } else {
            self.downs.push((now, from - to));
        }
    }

    /// What a recommendation comes to within the limits of the autoscaler.
    pub fn settle(
        &mut self,
        behavior: Option<&Behavior>,
        current: i64,
        recommended: i64,
        (min, max): (i64, i64),
        now: Time,
    ) -> Outcome {
        let rules = |own: Option<&Rules>, default: Rules| match own {
            None => default,
            Some(own) if own.policies.is_empty() => Rules {
                policies: default.policies,
                ..own.clone()
            },
            Some(own) => own.clone(),
        };
        let up = rules(behavior.and_then(|one| one.scale_up.as_ref()), default_up());
        let down = rules(
            behavior.and_then(|one| one.scale_down.as_ref()),
            default_down(),
        );
        self.forget(&up, &down, now);
        self.recommendations.push((now, recommended));
        let (stable, able) = self.stabilize(&up, &down, current, now);
        let (replicas, limited) = self.limit(&up, &down, current, stable, (min, max), now);
        Outcome {
            replicas,
            able,
            limited,
        }
    }

    /// Of the recommendations within the windows: the lowest when growing, the highest when shrinking.
    fn stabilize(
        &self,
        up: &Rules,
        down: &Rules,
        current: i64,
        now: Time,
    ) -> (i64, (&'static str, &'static str)) {
        let within = |rules: &Rules, default: u64| {
            let seconds = rules.stabilization_window_seconds.unwrap_or(default);
            let since = now - Duration::from_secs(seconds);
            let inside = move |at: &Time| *at >= since;
            self.recommendations
                .iter()
                .filter(move |(at, _)| inside(at))
                .map(|(_, count)| *count)
        };
        let latest = self
            .recommendations
            .last()
            .map_or(current, |(_, count)| *count);
        let lowest = within(up, 0).min().unwrap_or(latest);
        let highest = within(down, STABILIZATION).max().unwrap_or(latest);
        let mut stable = current;
        if stable < lowest {
            stable = lowest;
        }
        if stable > highest {
            stable = highest;
        }
        let able = if stable == latest {
            ("ReadyForNewScale", "recommended size matches current size")
        } else if latest < stable {
            (
                "ScaleDownStabilized",
                "recent recommendations were higher than current one, applying the highest recent recommendation",
            )
        } else {
            (
                "ScaleUpStabilized",
                "recent recommendations were lower than current one, applying the lowest recent recommendation",
            )
        };
        (stable, able)
    }

    fn limit(
        &self,
        up: &Rules,
        down: &Rules,
        current: i64,
        wanted: i64,
        (min, max): (i64, i64),
        now: Time,
    ) -> (i64, (bool, &'static str, &'static str)) {
        let within = (
            false,
            "DesiredWithinRange",
            "the desired count is within the acceptable range",
        );
        if wanted > current {
            let rate = self.up_limit(up, current, now);
            let (limit, limited) = if max > rate {
                (
                    rate,
                    (
                        true,
                        "ScaleUpLimit",
                        "the desired replica count is increasing faster than the maximum scale rate",
                    ),
                )
            } else {
                (
                    max,
                    (
                        true,
                        "TooManyReplicas",
                        "the desired replica count is more than the maximum replica count",
                    ),
                )
            };
            if wanted > limit {
                return (limit.max(current), limited);
            }
        } else if wanted < current {
            let rate = self.down_limit(down, current, now);
            let (limit, limited) = if min < rate {
                (
                    rate,
                    (
                        true,
                        "ScaleDownLimit",
                        "the desired replica count is decreasing faster than the maximum scale rate",
                    ),
                )
            } else {
                (
                    min,
                    (
                        true,
                        "TooFewReplicas",
                        "the desired replica count is less than the minimum replica count",
                    ),
                )
            };
            if wanted < limit {
                return (limit.min(current), limited);
            }
        }
        (wanted, within)
    }

    /// How many replicas there may be now at most.
    fn up_limit(&self, rules: &Rules, current: i64, now: Time) -> i64 {
        let limits = rules.policies.iter().map(|policy| {
            let start =
                current - changed(&self.ups, policy, now) + changed(&self.downs, policy, now);
            match policy.kind.as_str() {
                "Pods" => start + policy.value,
                _ => (start as f64 * (1.0 + policy.value as f64 / 100.0)).ceil() as i64,
            }
        });
        match rules.select_policy.as_deref() {
            Some("Disabled") => current,
            Some("Min") => limits.min().unwrap_or(i64::MAX),
            _ => limits.max().unwrap_or(i64::MAX),
        }
    }

    /// How many replicas there must be now at least.
    fn down_limit(&self, rules: &Rules, current: i64, now: Time) -> i64 {
        let limits = rules.policies.iter().map(|policy| {
            let start =
                current - changed(&self.ups, policy, now) + changed(&self.downs, policy, now);
            match policy.kind.as_str() {
                "Pods" => start - policy.value,
                _ => (start as f64 * (1.0 - policy.value as f64 / 100.0)) as i64,
            }
        });
        match rules.select_policy.as_deref() {
            Some("Disabled") => current,
            Some("Min") => limits.max().unwrap_or(i64::MIN),
            _ => limits.min().unwrap_or(i64::MIN),
        }
    }

    /// Forgets what no window and no period reaches.
    fn forget(&mut self, up: &Rules, down: &Rules, now: Time) {
        let window = up
            .stabilization_window_seconds
            .unwrap_or(0)
            .max(down.stabilization_window_seconds.unwrap_or(STABILIZATION));
        let periods = up.policies.iter().chain(&down.policies);
        let period = periods
            .map(|policy| policy.period_seconds)
            .max()
            .unwrap_or(0);
        for (list, seconds) in [
            (&mut self.recommendations, window),
            (&mut self.ups, period),
            (&mut self.downs, period),
        ] {
            let since = now - Duration::from_secs(seconds);
            list.retain(|(at, _)| *at >= since);
            let excess = list.len().saturating_sub(MAX_REMEMBERED);
            list.drain(..excess);
        }
    }
}

/// How many replicas changed within the policy's period.
fn changed(events: &[(Time, i64)], policy: &Policy, now: Time) -> i64 {
    let since = now - Duration::from_secs(policy.period_seconds);
    let recent = events.iter().filter(|(at, _)| *at > since);
    recent.map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::time::parse;
    use serde_json::{Value, json};

    fn at(seconds: u64) -> Time {
        parse("2026-01-01T00:00:00Z").unwrap() + Duration::from_secs(seconds)
    }

    fn behavior(value: Value) -> Behavior {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn growth_doubles_or_adds_four_and_the_maximum_holds() {
        let mut memory = Memory::default();
        let first = memory.settle(None, 1, 100, (1, 50), at(0));
        assert_eq!((first.replicas, first.limited.1), (5, "ScaleUpLimit"));
        memory.scaled(1, 5, at(0));
        assert_eq!(memory.settle(None, 5, 100, (1, 50), at(1)).replicas, 5);
        assert_eq!(memory.settle(None, 5, 100, (1, 50), at(15)).replicas, 10);
        let full = memory.settle(None, 40, 100, (1, 50), at(60));
        assert_eq!((full.replicas, full.limited.1), (50, "TooManyReplicas"));
    }

    #[test]
    fn shrinking_waits_for_the_window_to_pass() {
        let mut memory = Memory::default();
        assert_eq!(memory.settle(None, 10, 10, (1, 50), at(0)).replicas, 10);
        let held = memory.settle(None, 10, 2, (1, 50), at(60));
        assert_eq!((held.replicas, held.able.0), (10, "ScaleDownStabilized"));
        let later = memory.settle(None, 10, 2, (1, 50), at(301));
        assert_eq!((later.replicas, later.able.0), (2, "ReadyForNewScale"));
        let mut memory = Memory::default();
        let few = memory.settle(None, 10, 0, (3, 50), at(0));
        assert_eq!((few.replicas, few.limited.1), (3, "TooFewReplicas"));
    }

    #[test]
    fn policies_limit_how_much_changes_in_a_period() {
        let slow = behavior(json!({"scaleDown": {"stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}}));
        let mut memory = Memory::default();
        assert_eq!(
            memory.settle(Some(&slow), 10, 1, (1, 50), at(0)).replicas,
            8
        );
        memory.scaled(10, 8, at(0));
        let limited = memory.settle(Some(&slow), 8, 1, (1, 50), at(30));
        assert_eq!((limited.replicas, limited.limited.1), (8, "ScaleDownLimit"));
        assert_eq!(
            memory.settle(Some(&slow), 8, 1, (1, 50), at(61)).replicas,
            6
        );
        let never = behavior(
            json!({"scaleDown": {"selectPolicy": "Disabled", "stabilizationWindowSeconds": 0}}),
        );
        assert_eq!(
            Memory::default()
                .settle(Some(&never), 8, 1, (1, 50), at(0))
                .replicas,
            8
        );
    }

    #[test]
    fn a_window_for_growth_takes_the_lowest() {
        let calm = behavior(json!({"scaleUp": {"stabilizationWindowSeconds": 60}}));
        let mut memory = Memory::default();
        assert_eq!(memory.settle(Some(&calm), 4, 4, (1, 50), at(0)).replicas, 4);
        let held = memory.settle(Some(&calm), 4, 8, (1, 50), at(30));
        assert_eq!((held.replicas, held.able.0), (4, "ScaleUpStabilized"));
        assert_eq!(
            memory.settle(Some(&calm), 4, 8, (1, 50), at(61)).replicas,
            8
        );
    }

    #[test]
    fn tolerances_are_read_for_each_direction() {
        let fine = behavior(json!({"scaleUp": {"tolerance": "50m"}}));
        assert_eq!(
            tolerance(Some(&fine)),
            Tolerance {
                up: 0.05,
                down: 0.1
            }
        );
    }
}
