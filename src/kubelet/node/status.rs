//! A node's status from what was observed: capacity, conditions, addresses,
//! identity. Pure; reasons and messages are upstream's
//! (`pkg/kubelet/nodestatus/setters.go`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use apimachinery::quantity::Quantity;

use super::machine::{Disk, Machine};
use crate::config::{KUBELET_VERSION, KubeletConfig};
use crate::k8s::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus,
    NodeSwapStatus, NodeSystemInfo, Time,
};

/// Upstream's `nodeStatusMaxImages`.
const MAX_IMAGES: usize = 50;
/// Upstream's `MaxNamesPerImageInNodeStatus`.
const MAX_NAMES_PER_IMAGE: usize = 5;
/// Under pressure when less than a tenth of the process ids is left.
const PID_AVAILABLE_PERCENT: u64 = 10;

/// What pods may be told this kubelet can (KEP-5328). No CPU is given to a container alone, so a guaranteed pod's are
/// resized as any other's.
const DECLARED_FEATURES: [&str; 1] = [api::declared_features::GUARANTEED_CPU_RESIZE];

/// What was seen of node and runtime.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The machine.
    pub machine: Machine,
    /// The disk that holds pods.
    pub disk: Disk,
    /// Bytes of memory left.
    pub memory_available: u64,
    /// Process ids in use, and the most.
    pub pids: (u64, u64),
    /// Addresses of the node, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// `containerd://1.7.0`.
    pub runtime_version: String,
    /// Why the runtime cannot run pods; empty when it can.
    pub runtime_problems: Vec<String>,
    /// Images of the runtime.
    pub images: Vec<ContainerImage>,
}

/// The status as it is to be sent. `previous` gives the conditions' last
/// transitions and what others wrote.
pub fn status(
    config: &KubeletConfig,
    observed: &Observed,
    previous: &NodeStatus,
    now: &Time,
) -> NodeStatus {
    let capacity = capacity(config, observed);
    let allocatable = allocatable(config, observed, &capacity);
    NodeStatus {
        addresses: Some(addresses(config, observed)),
        capacity: Some(quantities(&capacity)),
        allocatable: Some(quantities(&allocatable)),
        conditions: Some(conditions(config, observed, previous, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: i32::from(config.port),
            }),
        }),
        images: Some(images(&observed.images)),
        declared_features: Some(DECLARED_FEATURES.map(str::to_owned).to_vec()),
        node_info: Some(node_info(observed)),
        ..previous.clone()
    }
}

type Amounts = BTreeMap<String, Quantity>;

fn quantities(amounts: &Amounts) -> BTreeMap<String, crate::k8s::Quantity> {
    let text = |amount: &Quantity| crate::k8s::Quantity(amount.to_string());
    amounts
        .iter()
        .map(|(name, amount)| (name.clone(), text(amount)))
        .collect()
}

fn bytes(amount: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(amount).unwrap_or(i64::MAX))
}

fn units(amount: u64) -> Quantity {
    let amount = i64::try_from(amount).unwrap_or(i64::MAX);
    Quantity::from_units(amount, apimachinery::quantity::Format::DecimalSi)
}

fn capacity(config: &KubeletConfig, observed: &Observed) -> Amounts {
    let machine = &observed.machine;
    let hugepages = machine.hugepages.iter();
    let hugepages =
        hugepages.map(|(size, reserved)| (format!("hugepages-{size}"), bytes(*reserved)));
    let fixed = [
        ("cpu".to_owned(), units(machine.cpus)),
        ("memory".to_owned(), bytes(machine.memory)),
        (
            "ephemeral-storage".to_owned(),
            bytes(observed.disk.capacity),
        ),
        ("pods".to_owned(), units(u64::from(config.max_pods))),
    ];
    fixed.into_iter().chain(hugepages).collect()
}

/// Capacity without what is reserved and what eviction keeps free.
fn allocatable(config: &KubeletConfig, observed: &Observed, capacity: &Amounts) -> Amounts {
    let percent = config.eviction_disk_available_percent;
    let kept = observed.disk.capacity / 100 * percent;
    capacity
        .iter()
        .map(|(name, whole)| {
            let reserved = config.system_reserved.get(name);
            let mut left = whole.clone();
            if let Some(reserved) = reserved.and_then(|text| text.parse().ok()) {
                left.sub(&reserved);
            }
            match name.as_str() {
                "memory" => left.sub(&bytes(config.eviction_memory_available)),
                "ephemeral-storage" => {
                    left = units(u64::try_from(left.value()).unwrap_or(0) - kept)
                }
                _ => {}
            }
            (name.clone(), if left.sign() < 0 { units(0) } else { left })
        })
        .collect()
}

fn addresses(config: &KubeletConfig, observed: &Observed) -> Vec<NodeAddress> {
    let address = |type_: &str, address: String| NodeAddress {
        address,
        type_: type_.to_owned(),
    };
    let internal = observed
        .addresses
        .iter()
        .map(|ip| address("InternalIP", ip.to_string()));
    internal
        .chain([address("Hostname", config.node_name.clone())])
        .collect()
}

fn node_info(observed: &Observed) -> NodeSystemInfo {
    let machine = observed.machine.clone();
    NodeSystemInfo {
        architecture: machine.architecture,
        boot_id: machine.boot_id,
        container_runtime_version: observed.runtime_version.clone(),
        kernel_version: machine.kernel_version,
        kube_proxy_version: String::new(),
        kubelet_version: KUBELET_VERSION.to_owned(),
        machine_id: machine.machine_id,
        operating_system: "linux".to_owned(),
        os_image: machine.os_image,
        running_in_user_namespace: None,
        swap: (machine.swap > 0).then(|| NodeSwapStatus {
            capacity: i64::try_from(machine.swap).ok(),
        }),
        system_uuid: machine.system_uuid,
    }
}

/// The largest images first, without untagged leftovers.
fn images(all: &[ContainerImage]) -> Vec<ContainerImage> {
    let mut images: Vec<_> = all.to_vec();
    for image in &mut images {
        image
            .names
            .iter_mut()
            .for_each(|names| names.truncate(MAX_NAMES_PER_IMAGE));
    }
    images.sort_by(|a, b| {
        b.size_bytes
            .cmp(&a.size_bytes)
            .then_with(|| a.names.cmp(&b.names))
    });
    images.truncate(MAX_IMAGES);
    images
}

struct Verdict {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

fn pressure(
    kind: &'static str,
    under: bool,
    yes: [&'static str; 2],
    no: [&'static str; 2],
) -> Verdict {
    let [reason, message] = if under { yes } else { no };
    Verdict {
        kind,
        status: under,
        reason,
        message: message.to_owned(),
    }
}

fn conditions(
    config: &KubeletConfig,
    observed: &Observed,
    previous: &NodeStatus,
    now: &Time,
) -> Vec<NodeCondition> {
    let disk = observed.disk;
    let disk_low = disk.available < disk.capacity / 100 * config.eviction_disk_available_percent;
    let (pids, most) = observed.pids;
    let pids_low = most > 0 && most.saturating_sub(pids) < most / 100 * PID_AVAILABLE_PERCENT;
    let verdicts = [
        pressure(
            "MemoryPressure",
            observed.memory_available < config.eviction_memory_available,
            [
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
            ],
            [
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
            ],
        ),
        pressure(
            "DiskPressure",
            disk_low,
            ["KubeletHasDiskPressure", "kubelet has disk pressure"],
            ["KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
        ),
        pressure(
            "PIDPressure",
            pids_low,
            [
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
            ],
            [
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
            ],
        ),
        ready(&observed.runtime_problems),
    ];
    let before = previous.conditions.as_deref().unwrap_or_default();
    let own = verdicts.map(|verdict| dated(before, verdict, now));
    let others = before
        .iter()
        .filter(|other| own.iter().all(|own| own.type_ != other.type_));
    let others: Vec<_> = others.cloned().collect();
    own.into_iter().chain(others).collect()
}

fn ready(problems: &[String]) -> Verdict {
    match problems {
        [] => Verdict {
            kind: "Ready",
            status: true,
            reason: "KubeletReady",
            message: "kubelet is posting ready status".to_owned(),
        },
        [one] => Verdict {
            kind: "Ready",
            status: false,
            reason: "KubeletNotReady",
            message: one.clone(),
        },
        many => Verdict {
            kind: "Ready",
            status: false,
            reason: "KubeletNotReady",
            message: format!("[{}]", many.join(", ")),
        },
    }
}

fn dated(before: &[NodeCondition], verdict: Verdict, now: &Time) -> NodeCondition {
    let status = if verdict.status { "True" } else { "False" };
    let same = before
        .iter()
        .find(|old| old.type_ == verdict.kind && old.status == status);
    NodeCondition {
        type_: verdict.kind.to_owned(),
        status: status.to_owned(),
        reason: Some(verdict.reason.to_owned()),
        message: Some(verdict.message),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: same
            .and_then(|old| old.last_transition_time.clone())
            .or_else(|| Some(now.clone())),
    }
}

/// Whether two statuses differ in more than the times of their heartbeats.
pub fn differs(old: &NodeStatus, new: &NodeStatus) -> bool {
    let timeless = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    timeless(old) != timeless(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::Timestamp;

    fn mk_observed() -> Observed {
        Observed {
            machine: Machine {
                cpus: 2,
                memory: 4 << 30,
                ..Machine::default()
            },
            disk: Disk {
                capacity: 100 << 30,
                available: 50 << 30,
                inodes: 0,
                inodes_free: 0,
            },
            memory_available: 1 << 30,
            pids: (100, 32768),
            addresses: vec![[172, 30, 0, 2].into()],
            runtime_version: "containerd://1.6.20".to_owned(),
            ..Observed::default()
        }
    }

    fn mk_status(observed: &Observed, previous: &NodeStatus, second: i64) -> NodeStatus {
        let now = Time(Timestamp::from_second(second).expect("a valid time"));
        status(&KubeletConfig::new("n"), observed, previous, &now)
    }

    fn condition<'a>(status: &'a NodeStatus, kind: &str) -> &'a NodeCondition {
        status
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == kind)
            .expect(kind)
    }

    #[test]
    fn a_healthy_node_has_upstreams_conditions() {
        let status = mk_status(&mk_observed(), &NodeStatus::default(), 10);
        let seen: Vec<_> = status
            .conditions
            .iter()
            .flatten()
            .map(|c| {
                [&c.type_, &c.status, c.reason.as_ref().expect("a reason")]
                    .map(String::as_str)
                    .join(" ")
            })
            .collect();
        assert_eq!(
            seen,
            [
                "MemoryPressure False KubeletHasSufficientMemory",
                "DiskPressure False KubeletHasNoDiskPressure",
                "PIDPressure False KubeletHasSufficientPID",
                "Ready True KubeletReady",
            ]
        );
        assert_eq!(
            condition(&status, "Ready").message.as_deref(),
            Some("kubelet is posting ready status")
        );
    }

    #[test]
    fn a_node_declares_what_its_kubelet_can() {
        let status = mk_status(&mk_observed(), &NodeStatus::default(), 10);
        let declared = status.declared_features.unwrap_or_default();
        assert_eq!(declared, ["GuaranteedQoSPodCPUResize"]);
    }

    #[test]
    fn allocatable_is_capacity_without_what_is_kept_free() {
        let status = mk_status(&mk_observed(), &NodeStatus::default(), 10);
        let get = |list: &Option<BTreeMap<String, crate::k8s::Quantity>>, name: &str| {
            list.as_ref().expect("a list")[name].0.clone()
        };
        assert_eq!(get(&status.capacity, "memory"), "4Gi");
        assert_eq!(get(&status.allocatable, "memory"), "3996Mi");
        assert_eq!(get(&status.allocatable, "cpu"), "2");
        assert_eq!(get(&status.allocatable, "pods"), "110");
    }

    #[test]
    fn only_a_heartbeat_is_no_difference_and_a_transition_keeps_its_time() {
        let first = mk_status(&mk_observed(), &NodeStatus::default(), 10);
        let second = mk_status(&mk_observed(), &first, 20);
        assert!(!differs(&first, &second));
        let mut broken = mk_observed();
        broken.runtime_problems = vec!["container runtime is down".to_owned()];
        let third = mk_status(&broken, &second, 30);
        assert!(differs(&second, &third));
        let ready = condition(&third, "Ready");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref()),
            ("False", Some("KubeletNotReady"))
        );
        let memory = condition(&third, "MemoryPressure");
        assert_eq!(
            memory.last_transition_time,
            condition(&first, "MemoryPressure").last_transition_time
        );
    }

    #[test]
    fn pressures_are_seen() {
        let mut observed = mk_observed();
        observed.memory_available = 1 << 20;
        observed.disk.available = 1 << 30;
        observed.pids = (32_000, 32_768);
        let status = mk_status(&observed, &NodeStatus::default(), 10);
        for kind in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
            assert_eq!(condition(&status, kind).status, "True", "{kind}");
        }
    }
}
