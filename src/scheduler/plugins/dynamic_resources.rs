//! DynamicResources: pods with resource claims (KEP-4381) run where the claims' devices are, or where there are devices
//! for those that have none yet.
//!
//! Filter tries the allocation on each node and throws it away; `reserve` decides it for the node that was chosen and
//! notes it as assumed, so that no other pod is given the same devices before the API shows it.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use apimachinery::Value;

use crate::{
    cluster::Cluster,
    devices::{self, Inventory, Request},
    framework::{Ask, Change, Event, Filter, NodeScore, Plugin, Rejection, normalize_to_max},
    node::{Node, NodeInfo},
    pod::Pod,
    storage::{Consumer, ResourceClaim},
};

/// As many pods may share a claim (ResourceClaimReservedForMaxSize).
const MAX_CONSUMERS: usize = 256;
pub const NAME: &str = "DynamicResources";
const UNAVAILABLE: &str = "resourceclaim not available on the node";
const NOT_ALLOCATED: &str = "cannot allocate all claims";

pub struct DynamicResources;

/// What must be written into a claim before its pod is bound.
#[derive(Clone, Debug)]
pub struct ClaimPlan {
    /// As it was when this was decided.
    pub claim: Arc<ResourceClaim>,
    /// `status.allocation`, of one that has none.
    pub allocation: Option<Value>,
}

/// The claims of the pod, or why it cannot run anywhere.
fn claims(pod: &Pod, cluster: &Cluster) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let storage = &cluster.storage;
    let mut claims = Vec::new();
    for name in pod.resource_claims.iter().flatten() {
        let key = format!("{}/{name}", pod.namespace);
        let Some(claim) = storage.resource_claim(&key) else {
            return Err(format!("resourceclaim \"{name}\" not found"));
        };
        if claim.metadata.is_deleting() {
            return Err(format!("resourceclaim \"{name}\" is being deleted"));
        }
        let consumers = &claim.status.reserved_for;
        let is_ours = consumers.iter().any(|one| *one.uid == *pod.uid);
        if !is_ours && storage.is_being_allocated(&key) {
            return Err(format!(
                "resource claim {key} is in the process of being allocated"
            ));
        }
        if !is_ours && consumers.len() >= MAX_CONSUMERS {
            return Err(format!("resourceclaim \"{name}\" in use"));
        }
        claims.push(claim.clone());
    }
    Ok(claims)
}

/// The pod's claims parted, and what there is for those without devices.
struct Wanted {
    allocated: Vec<Arc<ResourceClaim>>,
    open: Vec<Arc<ResourceClaim>>,
    requests: Vec<Request>,
    inventory: Inventory,
    known: RefCell<HashMap<(usize, usize, usize), Result<bool, String>>>,
}

impl Wanted {
    fn of(pod: &Pod, cluster: &Cluster) -> Result<Self, String> {
        let all = claims(pod, cluster)?.into_iter();
        let (allocated, open): (Vec<_>, Vec<_>) =
            all.partition(|claim| claim.status.allocation.is_some());
        let requests = Request::all(&open, &cluster.storage.device_classes)?;
        let inventory = if requests.is_empty() {
            Inventory::default()
        } else {
            cluster.storage.inventory()
        };
        Ok(Wanted {
            allocated,
            open,
            requests,
            inventory,
            known: RefCell::default(),
        })
    }

    /// The allocations of the open claims on a node, or why it will not do.
    fn on(&self, node: &Node) -> Result<Vec<Value>, Rejection> {
        for claim in &self.allocated {
            let allocation = claim.status.allocation.as_ref();
            let selector = allocation.and_then(|one| one.node_selector.as_ref());
            if selector.is_some_and(|selector| !selector.matches(&node.name, &node.labels)) {
                return Err(Rejection::unresolvable(UNAVAILABLE));
            }
        }
        if self.open.is_empty() {
            return Ok(Vec::new());
        }
        let ask = devices::Ask {
            claims: &self.open,
            requests: &self.requests,
            inventory: &self.inventory,
            known: &self.known,
        };
        match devices::allocate(&ask, &node.name, &node.labels) {
            Ok(Some(allocations)) => Ok(allocations),
            Ok(None) => Err(Rejection::unresolvable(NOT_ALLOCATED)),
            Err(why) => Err(Rejection::unresolvable(why)),
        }
    }
}

/// As many alternatives a request has at most (FirstAvailableDeviceRequestMaxSize).
const MAX_ALTERNATIVES: usize = 8;

impl NodeScore for Wanted {
    /// The earlier the alternatives that a node's devices are, the better (KEP-4816).
    fn score(&self, info: &NodeInfo) -> i64 {
        let allocations = info.node.as_ref().map(|node| self.on(node));
        let Some(Ok(allocations)) = allocations else {
            return 0;
        };
        let mut score = 0;
        for (claim, allocation) in self.open.iter().zip(&allocations) {
            let results = allocation["devices"]["results"].as_array();
            let is_given = |name: &str| {
                let mut results = results.into_iter().flatten();
                results.any(|one| one["request"] == name)
            };
            for request in &claim.spec.devices.requests {
                for (place, wish) in request.first_available.iter().enumerate() {
                    if is_given(&format!("{}/{}", request.name, wish.name)) {
                        score += MAX_ALTERNATIVES.saturating_sub(place) as i64;
                    }
                }
            }
        }
        score
    }

    fn normalize(&self, _: &[&NodeInfo], scores: &mut [i64]) {
        normalize_to_max(scores, false);
    }
}

/// Decides what the pod's claims are given on its node, and notes it until the API shows it.
pub fn reserve(pod: &Pod, cluster: &mut Cluster, node: usize) -> Vec<ClaimPlan> {
    if pod.resource_claims.is_empty() {
        return Vec::new();
    }
    let (Ok(wanted), Some(node)) = (Wanted::of(pod, cluster), &cluster.node(node).node) else {
        return Vec::new();
    };
    let allocations = wanted.on(node).unwrap_or_default();
    let open = wanted.open.iter().cloned().zip(allocations);
    let open = open.map(|(claim, allocation)| ClaimPlan {
        claim,
        allocation: Some(allocation),
    });
    let unreserved = wanted.allocated.iter().filter(|claim| {
        claim
            .status
            .reserved_for
            .iter()
            .all(|one| *one.uid != *pod.uid)
    });
    let unreserved = unreserved.cloned().map(|claim| ClaimPlan {
        claim,
        allocation: None,
    });
    let plans: Vec<ClaimPlan> = open.chain(unreserved).collect();
    for plan in &plans {
        cluster.storage.assume_claim(plan, consumer(pod));
    }
    plans
}

/// The pod as one who uses a claim.
pub fn consumer(pod: &Pod) -> Consumer {
    Consumer {
        resource: "pods".into(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        ..Consumer::default()
    }
}

/// A claim of a pod that fits nowhere, whose devices bind it to nodes where the pod cannot run: giving them up may help
/// (PostFilter). Only one that nobody else uses.
pub fn release(
    pod: &Pod,
    cluster: &Cluster,
    rejected_by: &std::collections::BTreeSet<&'static str>,
) -> Option<Arc<ResourceClaim>> {
    if !rejected_by.contains(NAME) {
        return None;
    }
    let mut all = claims(pod, cluster).ok()?.into_iter();
    all.find(|claim| {
        let is_bound_to_nodes = claim
            .status
            .allocation
            .as_ref()
            .is_some_and(|one| one.node_selector.is_some());
        let key = claim.metadata.key();
        is_bound_to_nodes
            && !cluster.storage.is_being_allocated(&key)
            && claim
                .status
                .reserved_for
                .iter()
                .all(|one| *one.uid == *pod.uid)
    })
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        NAME
    }

    /// A claim made from a template must have been made.
    fn pre_enqueue(&self, pod: &Pod) -> Result<(), Rejection> {
        if pod.resource_claims.iter().all(Option::is_some) {
            return Ok(());
        }
        let (namespace, name) = (&pod.namespace, &pod.name);
        Err(Rejection::unresolvable(format!(
            "pod \"{namespace}/{name}\": ResourceClaim not created yet"
        )))
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        if ask.pod.resource_claims.is_empty() {
            return Filter::Skip;
        }
        let wanted = match Wanted::of(ask.pod, ask.cluster) {
            Ok(wanted) => wanted,
            Err(reason) => return Filter::Reject(Rejection::unresolvable(reason)),
        };
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            if let Some(node) = &info.node
                && let Err(rejection) = wanted.on(node)
            {
                why.push(rejection);
            }
        })
    }

    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        if ask.pod.resource_claims.is_empty() {
            return None;
        }
        let wanted = Wanted::of(ask.pod, ask.cluster).ok()?;
        let mut requests = wanted
            .open
            .iter()
            .flat_map(|one| &one.spec.devices.requests);
        let has_alternatives = requests.any(|one| !one.first_available.is_empty());
        has_alternatives.then(|| Box::new(wanted) as Box<dyn NodeScore + 'a>)
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::NodeUpdated, Event::Devices]
    }

    fn may_help(&self, _: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::Devices | Change::NodeAdded(_) => true,
            Change::NodeUpdated { old, new } => old.labels != new.labels,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cluster::testing::*, plugins::testing::verdict, pod::pod};

    fn with_claim(name: &str) -> Value {
        let mut value = mk_pod(name);
        value["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": name}]);
        value
    }

    fn put(cluster: &mut Cluster, name: &str, spec: Value, status: Value) {
        let meta = json!({"name": name, "namespace": "default", "resourceVersion": "5"});
        let claim = json!({"metadata": meta, "spec": spec, "status": status});
        let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
        cluster
            .storage
            .set_resource_claim(&format!("default/{name}"), Some(Arc::new(claim)));
    }

    fn two_nodes_one_device() -> Cluster {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.io", "nodeName": "b",
            "pool": {"name": "b", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d1"}]}});
        cluster
            .storage
            .slices
            .insert("s".into(), Arc::new(serde_json::from_value(slice).unwrap()));
        let class = json!({"metadata": {"name": "any"}});
        cluster.storage.device_classes.insert(
            "any".into(),
            Arc::new(serde_json::from_value(class).unwrap()),
        );
        cluster
    }

    fn one_device() -> Value {
        json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}}]}})
    }

    #[test]
    fn a_pod_runs_where_its_allocated_claims_are() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        let mut value = mk_pod("p");
        value["spec"]["resourceClaims"] =
            json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
        assert!(DynamicResources.pre_enqueue(&pod(value.clone())).is_err());
        value["status"]["resourceClaimStatuses"] =
            json!([{"name": "gpu", "resourceClaimName": "p-gpu-x"}]);
        assert!(DynamicResources.pre_enqueue(&pod(value.clone())).is_ok());
        let told =
            |cluster: &Cluster, node| verdict(&DynamicResources, cluster, value.clone(), node);
        assert_eq!(told(&cluster, "a"), ["resourceclaim \"p-gpu-x\" not found"]);
        put(&mut cluster, "p-gpu-x", one_device(), json!({}));
        assert_eq!(
            told(&cluster, "a"),
            ["request r: device class any does not exist"]
        );
        let only_b = json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["b"]}]}]});
        put(
            &mut cluster,
            "p-gpu-x",
            one_device(),
            json!({"allocation": {"nodeSelector": only_b}}),
        );
        assert_eq!(told(&cluster, "a"), [UNAVAILABLE]);
        assert!(told(&cluster, "b").is_empty());
        let index = cluster.find_node("b").unwrap().index;
        let plans = reserve(&pod(value.clone()), &mut cluster, index);
        assert!(plans.len() == 1 && plans[0].allocation.is_none());
        assert!(reserve(&pod(value.clone()), &mut cluster, index).is_empty());
    }

    #[test]
    fn a_device_is_given_to_one_pod_even_before_the_api_shows_it() {
        let mut cluster = two_nodes_one_device();
        for name in ["p", "q"] {
            put(&mut cluster, name, one_device(), json!({}));
        }
        let told = |cluster: &Cluster, name: &str, node: &str| {
            verdict(&DynamicResources, cluster, with_claim(name), node)
        };
        assert_eq!(told(&cluster, "p", "a"), [NOT_ALLOCATED]);
        assert!(told(&cluster, "p", "b").is_empty());
        let index = cluster.find_node("b").unwrap().index;
        let plan = reserve(&pod(with_claim("p")), &mut cluster, index).remove(0);
        let allocation = plan.allocation.clone().unwrap();
        assert_eq!(allocation["devices"]["results"][0]["device"], "d1");
        assert_eq!(told(&cluster, "q", "b"), [NOT_ALLOCATED]);
        // Another pod with the same claim waits until it is written.
        let mut same = with_claim("other");
        same["spec"]["resourceClaims"][0]["resourceClaimName"] = json!("p");
        let why = "resource claim default/p is in the process of being allocated";
        assert_eq!(
            verdict(&DynamicResources, &cluster, same.clone(), "b"),
            [why]
        );
        cluster.storage.claim_written("default/p", "7");
        // A version from before the write does not undo it.
        put(&mut cluster, "p", one_device(), json!({}));
        assert_eq!(told(&cluster, "q", "b"), [NOT_ALLOCATED]);
        assert!(verdict(&DynamicResources, &cluster, same, "b").is_empty());
        // It failed: the device is free again.
        cluster.storage.forget_claim("default/p");
        assert!(told(&cluster, "q", "b").is_empty());
    }

    #[test]
    fn a_node_with_an_earlier_alternative_scores_higher() {
        let mut cluster = two_nodes_one_device();
        let slice = json!({"metadata": {"name": "t"}, "spec": {"driver": "d.io", "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d2"}]}});
        let slice = serde_json::from_value(slice).unwrap();
        cluster.storage.slices.insert("t".into(), Arc::new(slice));
        let one = json!({"name": "one", "deviceClassName": "any", "allocationMode": "ExactCount", "count": 1,
            "selectors": [{"cel": {"expression": "device.driver == 'd.io'"}}]});
        let two = json!({"name": "two", "deviceClassName": "any", "allocationMode": "ExactCount", "count": 2});
        let spec = json!({"devices": {"requests": [{"name": "r", "firstAvailable": [two, one]}]}});
        put(&mut cluster, "p", spec, json!({}));
        // Node a gets a second device, so that it can give the first alternative.
        let more = json!({"metadata": {"name": "u"}, "spec": {"driver": "e.io", "nodeName": "a",
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d3"}]}});
        let more = serde_json::from_value(more).unwrap();
        cluster.storage.slices.insert("u".into(), Arc::new(more));
        let (pod, args) = (pod(with_claim("p")), Default::default());
        let ask = Ask {
            pod: &pod,
            cluster: &cluster,
            args: &args,
        };
        let nodes: Vec<&NodeInfo> = cluster.nodes().collect();
        let scorer = DynamicResources.score(ask, &nodes).unwrap();
        let mut scores = Vec::new();
        scorer.score_all(&nodes, &mut scores);
        assert_eq!(scores, [8, 7]);
        scorer.normalize(&nodes, &mut scores);
        assert_eq!(scores, [100, 87]);
    }

    #[test]
    fn a_claim_that_binds_its_only_pod_to_a_node_that_will_not_do_is_released() {
        let mut cluster = two_nodes_one_device();
        let selector = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]});
        let ours = json!({"resource": "pods", "name": "p", "uid": "p"});
        let other = json!({"resource": "pods", "name": "q", "uid": "q"});
        let by = |names: &[&'static str]| names.iter().copied().collect();
        for (consumers, rejected_by, expected) in [
            (json!([ours]), by(&[NAME]), true),
            (json!([]), by(&[NAME]), true),
            (json!([ours, other]), by(&[NAME]), false),
            (json!([ours]), by(&["NodeResourcesFit"]), false),
        ] {
            let status =
                json!({"allocation": {"nodeSelector": selector}, "reservedFor": consumers});
            put(&mut cluster, "p", one_device(), status);
            let released = release(&pod(with_claim("p")), &cluster, &rejected_by);
            assert_eq!(released.is_some(), expected, "{consumers}");
        }
    }
}
