//! How many replicas a metric calls for (podautoscaler.ReplicaCalculator). Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apimachinery::time::{Time, parse};

use crate::{
    objects::{Pod, condition},
    pod_resources::{self, Side},
};

/// How long after its start a pod's CPU is not believed (`--horizontal-pod-autoscaler-cpu-initialization-period`).
const INITIALIZATION: Duration = Duration::from_secs(5 * 60);
/// How long after its start a pod may become ready for the first time (`--…-initial-readiness-delay`).
const READINESS_DELAY: Duration = Duration::from_secs(30);

/// What was measured of a pod, in thousandths, over a window that ended at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub value: i64,
    pub at: Time,
    pub window: Duration,
}

pub type Samples = BTreeMap<String, Sample>;

/// How far a ratio may be from 1 before anything is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    pub up: f64,
    pub down: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { up: 0.1, down: 0.1 }
    }
}

impl Tolerance {
    fn holds(&self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// The pods and what there is of them.
pub struct Observed<'a> {
    pub pods: &'a [Arc<Pod>],
    /// As asked for.
    pub current: i64,
    /// As there are, by the target's status.
    pub there: i64,
    pub tolerance: Tolerance,
    pub now: Time,
}

/// What a metric calls for, and what it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answer {
    pub replicas: i64,
    /// Percent of what is requested, of resources.
    pub utilization: Option<i64>,
    /// In thousandths.
    pub average: i64,
}

/// What a goal is for each pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal<'a> {
    /// Percent of what pods request of a resource, or one of their containers does.
    Utilization {
        percent: i64,
        resource: &'a str,
        container: &'a str,
    },
    /// Thousandths.
    Average(i64),
}

/// How the pods are sorted: those that count, those that are not ready, those without a sample.
#[derive(Debug, Default, PartialEq)]
struct Groups {
    ready: i64,
    unready: Vec<String>,
    missing: Vec<String>,
    ignored: Vec<String>,
}

fn group(observed: &Observed<'_>, samples: &Samples, is_cpu: bool) -> Groups {
    let mut groups = Groups::default();
    for pod in observed.pods {
        let name = pod.metadata.name.clone();
        if pod.metadata.is_deleting() || pod.status.phase == "Failed" {
            groups.ignored.push(name);
            continue;
        }
        if pod.status.phase == "Pending" {
            groups.unready.push(name);
            continue;
        }
        let Some(sample) = samples.get(&name) else {
            groups.missing.push(name);
            continue;
        };
        if is_cpu && is_warming_up(pod, sample, observed.now) {
            groups.unready.push(name);
            continue;
        }
        groups.ready += 1;
    }
    groups
}

/// Whether the CPU a pod uses tells of its start and not of its load.
fn is_warming_up(pod: &Pod, sample: &Sample, now: Time) -> bool {
    let ready = condition(&pod.status.conditions, "Ready");
    let started = pod.status.start_time.as_deref().and_then(parse);
    let (Some(ready), Some(started)) = (ready, started) else {
        return true;
    };
    let since = ready.last_transition_time.as_deref().and_then(parse);
    let since = since.unwrap_or(started);
    if started + INITIALIZATION > now {
        // Right after the start, only a window that lies wholly in the time it was ready counts.
        return ready.status == "False" || sample.at < since + sample.window;
    }
    // Later, only one that was never ready.
    ready.status == "False" && started + READINESS_DELAY > since
}

fn ceil(ratio: f64, count: i64) -> i64 {
    (ratio * count as f64).ceil() as i64
}

/// What each pod asks for of the resource, in thousandths.
fn requests(
    pods: &[Arc<Pod>],
    resource: &str,
    container: &str,
) -> Result<BTreeMap<String, i64>, String> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let meta = &pod.metadata;
        let spec = &pod.spec;
        let sidecars = spec
            .init_containers
            .iter()
            .filter(|one| one.restart_policy == "Always");
        let containers = spec.containers.iter().chain(sidecars);
        let whole = spec
            .resources
            .as_ref()
            .and_then(|whole| whole.requests.get(resource));
        if let Some(whole) = whole.filter(|_| container.is_empty()) {
            all.insert(meta.name.clone(), super::view::milli(whole).unwrap_or(0));
            continue;
        }
        let mut sum = 0;
        for one in containers.filter(|one| container.is_empty() || one.name == container) {
            let requests = pod_resources::of_container(one, Side::Requests);
            let Some(amount) = requests.get(resource) else {
                return Err(format!(
                    "missing request for {resource} in container {} of Pod {}",
                    one.name, meta.name
                ));
            };
            sum += amount.milli_value();
        }
        all.insert(meta.name.clone(), sum);
    }
    Ok(all)
}

/// The ratio of what is to what should be, its percent of what is requested, and the average.
fn ratio(
    samples: &Samples,
    goal: Goal<'_>,
    requests: &BTreeMap<String, i64>,
) -> Result<(f64, Option<i64>, i64), String> {
    let count = i64::try_from(samples.len()).unwrap_or(i64::MAX).max(1);
    match goal {
        Goal::Average(target) => {
            let total: i64 = samples.values().map(|sample| sample.value).sum();
            let average = total / count;
            Ok((average as f64 / target.max(1) as f64, None, average))
        }
        Goal::Utilization { percent, .. } => {
            let known = samples
                .iter()
                .filter(|(name, _)| requests.contains_key(*name));
            let (mut total, mut asked) = (0, 0);
            for (name, sample) in known {
                total += sample.value;
                asked += requests[name];
            }
            if asked == 0 {
                return Err("no metrics returned matched known pods".into());
            }
            let utilization = total * 100 / asked;
            Ok((
                utilization as f64 / percent.max(1) as f64,
                Some(utilization),
                total / count,
            ))
        }
    }
}

/// How many replicas samples of pods call for.
///
/// # Errors
/// A text that says why none can be told.
pub fn of_pods(
    observed: &Observed<'_>,
    mut samples: Samples,
    goal: Goal<'_>,
    is_cpu: bool,
) -> Result<Answer, String> {
    if observed.pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".into());
    }
    let groups = group(observed, &samples, is_cpu);
    for name in groups.ignored.iter().chain(&groups.unready) {
        samples.remove(name);
    }
    let requests = match goal {
        Goal::Utilization {
            resource,
            container,
            ..
        } => requests(observed.pods, resource, container)?,
        Goal::Average(_) => BTreeMap::new(),
    };
    if samples.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".into());
    }
    let (usage, utilization, average) = ratio(&samples, goal, &requests)?;
    let answer = |replicas: i64| {
        Ok(Answer {
            replicas,
            utilization,
            average,
        })
    };
    let tolerance = observed.tolerance;
    let unready_matter = !groups.unready.is_empty() && usage > 1.0;
    if !unready_matter && groups.missing.is_empty() {
        if tolerance.holds(usage) {
            return answer(observed.current);
        }
        return answer(ceil(usage, groups.ready));
    }
    // Those without a sample are taken to be such that less is done: busy when it would shrink, idle when it would grow.
    if usage < 1.0 {
        for name in &groups.missing {
            let value = match goal {
                Goal::Average(target) => target,
                Goal::Utilization { percent, .. } => {
                    requests.get(name).copied().unwrap_or(0) * percent.max(100) / 100
                }
            };
            samples.insert(name.clone(), assumed(value, observed.now));
        }
    } else if usage > 1.0 {
        for name in &groups.missing {
            samples.insert(name.clone(), assumed(0, observed.now));
        }
    }
    if unready_matter {
        for name in &groups.unready {
            samples.insert(name.clone(), assumed(0, observed.now));
        }
    }
    let (adjusted, _, _) = ratio(&samples, goal, &requests)?;
    let turned = (usage < 1.0 && adjusted > 1.0) || (usage > 1.0 && adjusted < 1.0);
    if tolerance.holds(adjusted) || turned {
        return answer(observed.current);
    }
    let count = i64::try_from(samples.len()).unwrap_or(i64::MAX);
    let replicas = ceil(adjusted, count);
    let against = (adjusted < 1.0 && replicas > observed.current)
        || (adjusted > 1.0 && replicas < observed.current);
    answer(if against { observed.current } else { replicas })
}

fn assumed(value: i64, at: Time) -> Sample {
    Sample {
        value,
        at,
        window: Duration::ZERO,
    }
}

/// How many replicas a value of something else than pods calls for: the value as a whole should be `target`.
pub fn of_value(observed: &Observed<'_>, value: i64, target: i64) -> Answer {
    let usage = value as f64 / target.max(1) as f64;
    let ready = observed
        .pods
        .iter()
        .filter(|pod| pod.status.phase == "Running" && pod.is_ready());
    let ready = i64::try_from(ready.count()).unwrap_or(i64::MAX);
    let replicas = if observed.current == 0 {
        // From nothing there is no pod to multiply.
        usage.ceil() as i64
    } else if observed.tolerance.holds(usage) {
        observed.current
    } else {
        ceil(usage, ready)
    };
    Answer {
        replicas,
        utilization: None,
        average: value,
    }
}

/// The same where the value divided by the replicas should be `target`.
pub fn of_average(observed: &Observed<'_>, value: i64, target: i64) -> Answer {
    let usage = value as f64 / (target.max(1) * observed.there.max(1)) as f64;
    let replicas = if observed.there > 0 && observed.tolerance.holds(usage) {
        observed.there
    } else {
        (value as f64 / target.max(1) as f64).ceil() as i64
    };
    Answer {
        replicas,
        utilization: None,
        average: (value as f64 / observed.there.max(1) as f64).ceil() as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::time::now;
    use serde_json::json;

    fn pod(name: &str, phase: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
                "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}]},
            }))
            .unwrap(),
        )
    }

    fn cpu(percent: i64) -> Goal<'static> {
        Goal::Utilization {
            percent,
            resource: "cpu",
            container: "",
        }
    }

    #[track_caller]
    fn check(pods: &[(&str, Option<i64>)], goal: Goal<'_>, expected: i64) {
        let all: Vec<Arc<Pod>> = pods
            .iter()
            .enumerate()
            .map(|(index, (phase, _))| pod(&format!("p{index}"), phase))
            .collect();
        let samples = pods
            .iter()
            .enumerate()
            .filter_map(|(index, (_, value))| {
                Some((format!("p{index}"), assumed((*value)?, now())))
            })
            .collect();
        let observed = Observed {
            pods: &all,
            current: i64::try_from(pods.len()).unwrap(),
            there: i64::try_from(pods.len()).unwrap(),
            tolerance: Tolerance::default(),
            now: now(),
        };
        let answer = of_pods(&observed, samples, goal, true).unwrap();
        assert_eq!(answer.replicas, expected);
    }

    const R: &str = "Running";

    #[test]
    fn replicas_follow_the_ratio_outside_the_tolerance() {
        check(&[(R, Some(500)), (R, Some(700))], cpu(30), 4);
        check(&[(R, Some(540)), (R, Some(540))], cpu(50), 2);
        check(
            &[(R, Some(100)), (R, Some(100)), (R, Some(100))],
            cpu(50),
            1,
        );
        check(
            &[(R, Some(20_000)), (R, Some(20_000))],
            Goal::Average(10_000),
            4,
        );
    }

    #[test]
    fn pods_without_samples_and_pending_ones_make_it_careful() {
        // As if the missing one were idle: 60% of 3 pods at a target of 50% becomes 40%, the other way, so nothing.
        check(&[(R, Some(600)), (R, Some(600)), (R, None)], cpu(50), 3);
        // As if it were busy.
        check(&[(R, Some(100)), (R, Some(100)), (R, None)], cpu(50), 3);
        // The pending one counts as idle: 200% over three pods.
        check(
            &[(R, Some(2000)), (R, Some(2000)), ("Pending", None)],
            cpu(50),
            8,
        );
        check(
            &[(R, Some(2000)), (R, Some(2000)), ("Failed", None)],
            cpu(50),
            8,
        );
    }

    #[test]
    fn nothing_can_be_told_without_pods_samples_or_requests() {
        let observed = |pods: &'static [Arc<Pod>]| Observed {
            pods,
            current: 1,
            there: 1,
            tolerance: Tolerance::default(),
            now: now(),
        };
        let none = of_pods(&observed(&[]), Samples::new(), cpu(50), true);
        assert_eq!(
            none.unwrap_err(),
            "no pods returned by selector while calculating replica count"
        );
        let all = [pod("a", R)];
        let mut seen = observed(&[]);
        seen.pods = &all;
        let none = of_pods(&seen, Samples::new(), cpu(50), true);
        assert_eq!(
            none.unwrap_err(),
            "did not receive metrics for targeted pods (pods might be unready)"
        );
        let memory = Goal::Utilization {
            percent: 50,
            resource: "memory",
            container: "",
        };
        let none = of_pods(&seen, Samples::new(), memory, false);
        assert_eq!(
            none.unwrap_err(),
            "missing request for memory in container c of Pod a"
        );
    }

    #[test]
    fn a_pod_that_just_started_is_not_believed_about_its_cpu() {
        let start = parse("2026-01-01T00:00:00Z").unwrap();
        let one = pod("a", R);
        let sample = |seconds: u64| Sample {
            value: 1,
            at: start + Duration::from_secs(seconds),
            window: Duration::from_secs(30),
        };
        assert!(is_warming_up(
            &one,
            &sample(80),
            start + Duration::from_secs(100)
        ));
        assert!(!is_warming_up(
            &one,
            &sample(95),
            start + Duration::from_secs(100)
        ));
        assert!(!is_warming_up(
            &one,
            &sample(80),
            start + Duration::from_secs(600)
        ));
    }

    #[test]
    fn values_of_other_things_are_shared_out() {
        let all = [pod("a", R), pod("b", R)];
        let observed = Observed {
            pods: &all,
            current: 2,
            there: 2,
            tolerance: Tolerance::default(),
            now: now(),
        };
        assert_eq!(of_value(&observed, 200_000, 100_000).replicas, 4);
        assert_eq!(of_value(&observed, 105_000, 100_000).replicas, 2);
        assert_eq!(of_average(&observed, 500_000, 100_000).replicas, 5);
        assert_eq!(of_average(&observed, 210_000, 100_000).replicas, 2);
        // While the last change is under way, it is shared out among those that are there.
        let growing = Observed {
            current: 4,
            ..observed
        };
        let answer = of_average(&growing, 210_000, 100_000);
        assert_eq!((answer.replicas, answer.average), (2, 105_000));
    }
}
