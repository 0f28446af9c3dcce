//! From a pod's resources to what the kernel enforces: QoS class, CPU shares and
//! quota, memory limits, OOM scores. Pure arithmetic, upstream's numbers
//! (`pkg/kubelet/cm/helpers_linux.go`, `pkg/kubelet/qos/policy.go`).

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;

use crate::cri::v1;
use crate::k8s::{Container, Pod, ResourceRequirements};
use crate::pod::spec::{self, Kind};

/// The kernel's bounds of cpu.shares.
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// The CFS period, microseconds.
const QUOTA_PERIOD: i64 = 100_000;
/// The kernel's least CFS quota, microseconds.
const MIN_QUOTA: i64 = 1_000;
/// Pods at or above this priority are node critical (`SystemNodeCritical` - 1000 classes upstream).
const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
const GUARANTEED_OOM_SCORE: i64 = -997;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;

type List = BTreeMap<String, crate::k8s::Quantity>;

/// A named quantity of a resource list; zero when it is missing or unreadable.
pub fn amount(list: Option<&List>, resource: &str) -> Quantity {
    let text = list
        .and_then(|list| list.get(resource))
        .map_or("0", |quantity| &quantity.0);
    text.parse().unwrap_or(Quantity::ZERO)
}

fn limit(resources: Option<&ResourceRequirements>, resource: &str) -> Quantity {
    amount(
        resources.and_then(|resources| resources.limits.as_ref()),
        resource,
    )
}

/// A request; one that is missing is the limit, as the API server defaults it.
fn request(resources: Option<&ResourceRequirements>, resource: &str) -> Quantity {
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    match requests.is_some_and(|requests| requests.contains_key(resource)) {
        true => amount(requests, resource),
        false => limit(resources, resource),
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`. The API server decides it at
/// creation; it is computed for pods that did not come from there.
pub fn qos_class(pod: &Pod) -> &'static str {
    let decided = pod
        .status
        .as_ref()
        .and_then(|status| status.qos_class.as_deref());
    match decided {
        Some("Guaranteed") => return "Guaranteed",
        Some("Burstable") => return "Burstable",
        Some("BestEffort") => return "BestEffort",
        _ => {}
    }
    let slots = spec::slots(pod);
    let resources: Vec<_> = match pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()) {
        Some(whole) => vec![Some(whole)],
        None => slots
            .iter()
            .filter(|slot| slot.kind != Kind::Ephemeral)
            .map(|slot| slot.container.resources.as_ref())
            .collect(),
    };
    let each = |wanted: fn(&Quantity, &Quantity) -> bool| {
        let both = ["cpu", "memory"];
        resources
            .iter()
            .flat_map(|resources| {
                both.map(|name| (request(*resources, name), limit(*resources, name)))
            })
            .all(|(request, limit)| wanted(&request, &limit))
    };
    if each(|request, limit| request.is_zero() && limit.is_zero()) {
        "BestEffort"
    } else if each(|request, limit| !limit.is_zero() && request == limit) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// cpu.shares of a number of thousandths of a CPU.
pub fn shares(milli_cpu: i64) -> i64 {
    (milli_cpu.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// CFS quota in microseconds of a period of 100 ms; 0 is no limit.
pub fn quota(milli_cpu: i64) -> i64 {
    match milli_cpu {
        ..=0 => 0,
        _ => (milli_cpu.saturating_mul(QUOTA_PERIOD) / 1000).max(MIN_QUOTA),
    }
}

/// What the runtime is told of one container. `memory_capacity` is the node's, bytes.
pub fn linux_resources(
    pod: &Pod,
    container: &Container,
    memory_capacity: i64,
) -> v1::LinuxContainerResources {
    let resources = container.resources.as_ref();
    let cpu_limit = limit(resources, "cpu").milli_value();
    v1::LinuxContainerResources {
        cpu_period: QUOTA_PERIOD,
        cpu_quota: quota(cpu_limit),
        cpu_shares: shares(request(resources, "cpu").milli_value()),
        memory_limit_in_bytes: limit(resources, "memory").value(),
        oom_score_adj: oom_score(pod, container, memory_capacity),
        hugepage_limits: hugepages(resources),
        ..Default::default()
    }
}

/// The part of a container's resources that can change while it runs (KEP-1287).
pub fn resizable(pod: &Pod, container: &Container) -> v1::LinuxContainerResources {
    let whole = linux_resources(pod, container, 1);
    v1::LinuxContainerResources {
        cpu_period: whole.cpu_period,
        // Zero means "as it is" to the runtime; no limit is -1.
        cpu_quota: if whole.cpu_quota == 0 {
            -1
        } else {
            whole.cpu_quota
        },
        cpu_shares: whole.cpu_shares,
        memory_limit_in_bytes: whole.memory_limit_in_bytes,
        ..Default::default()
    }
}

/// Which of CPU and memory differ between what a container has and is to have.
pub fn resized(
    has: &ResourceRequirements,
    wants: Option<&ResourceRequirements>,
) -> Vec<&'static str> {
    let differs = |name: &&'static str| {
        request(Some(has), name) != request(wants, name)
            || limit(Some(has), name) != limit(wants, name)
    };
    ["cpu", "memory"]
        .into_iter()
        .filter(|name| differs(name))
        .collect()
}

fn hugepages(resources: Option<&ResourceRequirements>) -> Vec<v1::HugepageLimit> {
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let names = limits.into_iter().flat_map(BTreeMap::keys);
    names
        .filter_map(|name| {
            let size = name.strip_prefix("hugepages-")?;
            let limit = u64::try_from(amount(limits, name).value()).ok()?;
            // The kernel's names: 2MB, 1GB.
            Some(v1::HugepageLimit {
                page_size: format!("{}B", size.trim_end_matches('i')),
                limit,
            })
        })
        .collect()
}

/// How readily the kernel kills the container when memory runs out: the less it
/// asked for, the sooner.
pub fn oom_score(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let priority = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.priority)
        .unwrap_or(0);
    if priority >= SYSTEM_CRITICAL_PRIORITY {
        return GUARANTEED_OOM_SCORE;
    }
    match qos_class(pod) {
        "Guaranteed" => GUARANTEED_OOM_SCORE,
        "BestEffort" => BEST_EFFORT_OOM_SCORE,
        _ => {
            let asked = request(container.resources.as_ref(), "memory").value();
            let share = 1000i64.saturating_mul(asked) / memory_capacity.max(1);
            // Between the guaranteed (3 is 1000 - 997) and the best effort ones.
            (1000 - share).clamp(3, 999)
        }
    }
}

/// Sums of the pod's requests and limits, for its cgroup and for admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Thousandths of a CPU asked for.
    pub cpu_request: i64,
    /// Thousandths of a CPU allowed; 0 is no limit.
    pub cpu_limit: i64,
    /// Bytes asked for.
    pub memory_request: i64,
    /// Bytes allowed; 0 is no limit.
    pub memory_limit: i64,
    /// Bytes of disk asked for.
    pub storage_request: i64,
}

/// What a pod takes: sidecars and containers together, or the largest init
/// step if that is more; pod-level resources and overhead count as upstream's
/// `PodRequests` has it.
pub fn totals(pod: &Pod) -> Totals {
    let slots = spec::slots(pod);
    let (mut running, mut peak) = (Totals::default(), Totals::default());
    let mut unlimited = (false, false);
    for slot in slots.iter().filter(|slot| slot.kind != Kind::Ephemeral) {
        let own = container_totals(slot.container.resources.as_ref());
        unlimited.0 |= own.cpu_limit == 0;
        unlimited.1 |= own.memory_limit == 0;
        match slot.kind {
            Kind::Init => peak = peak.max(running.plus(own)),
            _ => running = running.plus(own),
        }
    }
    let mut sum = running.max(peak);
    if unlimited.0 {
        sum.cpu_limit = 0;
    }
    if unlimited.1 {
        sum.memory_limit = 0;
    }
    let spec = pod.spec.as_ref();
    if let Some(whole) = spec.and_then(|spec| spec.resources.as_ref()) {
        let whole = container_totals(Some(whole));
        let or = |whole: i64, sum: i64| if whole == 0 { sum } else { whole };
        sum.cpu_request = or(whole.cpu_request, sum.cpu_request);
        sum.cpu_limit = or(whole.cpu_limit, sum.cpu_limit);
        sum.memory_request = or(whole.memory_request, sum.memory_request);
        sum.memory_limit = or(whole.memory_limit, sum.memory_limit);
    }
    let overhead = spec.and_then(|spec| spec.overhead.as_ref());
    sum.cpu_request += amount(overhead, "cpu").milli_value();
    sum.memory_request += amount(overhead, "memory").value();
    sum
}

fn container_totals(resources: Option<&ResourceRequirements>) -> Totals {
    Totals {
        cpu_request: request(resources, "cpu").milli_value(),
        cpu_limit: limit(resources, "cpu").milli_value(),
        memory_request: request(resources, "memory").value(),
        memory_limit: limit(resources, "memory").value(),
        storage_request: request(resources, "ephemeral-storage").value(),
    }
}

impl Totals {
    fn each(self, other: Self, f: fn(i64, i64) -> i64) -> Self {
        Self {
            cpu_request: f(self.cpu_request, other.cpu_request),
            cpu_limit: f(self.cpu_limit, other.cpu_limit),
            memory_request: f(self.memory_request, other.memory_request),
            memory_limit: f(self.memory_limit, other.memory_limit),
            storage_request: f(self.storage_request, other.storage_request),
        }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        self.each(other, i64::saturating_add)
    }

    fn max(self, other: Self) -> Self {
        self.each(other, i64::max)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    fn mk(resources: Value) -> Pod {
        mk_pod(json!({"containers": [{"name": "c", "resources": resources}]}))
    }

    #[test]
    fn the_qos_class_is_what_requests_and_limits_say() {
        let cases = [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"limits": {"cpu": "1"}}), "Burstable"),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
                "Guaranteed",
            ),
            (
                json!({"requests": {"cpu": "1000m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1024Mi"}}),
                "Guaranteed",
            ),
            (
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
                "Burstable",
            ),
        ];
        for (resources, expected) in cases {
            assert_eq!(qos_class(&mk(resources.clone())), expected, "{resources}");
        }
    }

    #[test]
    fn shares_and_quota_keep_to_the_kernels_bounds() {
        assert_eq!(
            (shares(0), shares(100), shares(1000), shares(i64::MAX)),
            (2, 102, 1024, 262_144)
        );
        assert_eq!(
            (quota(0), quota(1), quota(500), quota(2000)),
            (0, 1000, 50_000, 200_000)
        );
    }

    #[test]
    fn the_oom_score_falls_with_what_was_asked_for() {
        let capacity = 1 << 30;
        let cases = [
            (json!({}), 1000),
            (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), -997),
            (json!({"requests": {"memory": "512Mi"}}), 500),
            (json!({"requests": {"memory": "1Ki"}}), 999),
            (json!({"requests": {"memory": "4Gi"}}), 3),
        ];
        for (resources, expected) in cases {
            let pod = mk(resources.clone());
            let slot = spec::slot(&pod, "c").expect("c exists");
            assert_eq!(
                oom_score(&pod, &slot.container, capacity),
                expected,
                "{resources}"
            );
        }
    }

    #[test]
    fn a_resize_is_what_differs_in_amount_not_in_spelling() {
        let has: ResourceRequirements =
            serde_json::from_value(json!({"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}))
                .expect("resources");
        let check = |wants: Value, expected: &[&str]| {
            let wants = serde_json::from_value(wants).expect("resources");
            assert_eq!(resized(&has, Some(&wants)), expected);
        };
        check(
            json!({"requests": {"cpu": "1000m"}, "limits": {"memory": "1024Mi"}}),
            &[],
        );
        check(
            json!({"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}),
            &["cpu"],
        );
        check(json!({"requests": {"cpu": "1"}}), &["memory"]);
    }

    #[test]
    fn a_pod_takes_its_containers_or_its_largest_init_step() {
        let pod = mk_pod(json!({
            "initContainers": [
                {"name": "i", "resources": {"requests": {"cpu": "3"}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                {"name": "j", "resources": {"requests": {"cpu": "1"}}},
            ],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}}],
        }));
        let totals = totals(&pod);
        assert_eq!((totals.cpu_request, totals.memory_request), (3000, 1 << 20));
    }
}
