//! DynamicResources: pods with resource claims (KEP-4381) run where the claims' devices are, or where there are devices
//! for those that have none yet.
//!
//! Extended resources that a node does not have itself may be devices (KEP-5004): for those a claim is made with the
//! binding, of which there is nothing but a plan before.
//!
//! Filter tries the allocation on each node and throws it away; `reserve` decides it for the node that was chosen and
//! notes it as assumed, so that no other pod is given the same devices before the API shows it.

use std::{cell::RefCell, collections::HashMap, rc::Rc, sync::Arc};

use apimachinery::Value;
use serde::Deserialize;

use crate::{
    cluster::Cluster,
    devices::{
        self, Inventory, Request,
        extended::{self, Mapping},
        view::{ClaimSpec, DeviceClass},
    },
    framework::{Ask, Change, Event, Filter, NodeScore, Plugin, Rejection, normalize_to_max},
    node::{Node, NodeInfo},
    pod::Pod,
    storage::{Consumer, ResourceClaim, Storage},
};

/// As many pods may share a claim (ResourceClaimReservedForMaxSize).
const MAX_CONSUMERS: usize = 256;
pub const NAME: &str = "DynamicResources";
const UNAVAILABLE: &str = "resourceclaim not available on the node";
const STALE: &str = "cannot schedule extended resource claim";
const NOT_ALLOCATED: &str = "cannot allocate all claims";

pub struct DynamicResources;

/// What must be written into a claim before its pod is bound.
#[derive(Clone, Debug)]
pub struct ClaimPlan {
    /// As it was when this was decided; one that is still to be made has no name.
    pub claim: Arc<ResourceClaim>,
    /// `status.allocation`, of one that has none.
    pub allocation: Option<Value>,
    /// Of the one that is made for the pod's extended resources.
    pub extended: Option<ForExtended>,
}

/// The claim that is made for a pod's extended resources (KEP-5004).
#[derive(Clone, Debug)]
pub struct ForExtended {
    /// Its `spec`.
    pub spec: Value,
    /// Which container is given what, as the pod's status tells it.
    pub mappings: Vec<Mapping>,
}

/// What may help a pod that fits nowhere (PostFilter).
#[derive(Clone, Debug)]
pub enum Release {
    /// The devices of this claim are given up.
    Devices(Arc<ResourceClaim>),
    /// This claim of an earlier attempt is deleted.
    Claim(Arc<ResourceClaim>),
}

impl Release {
    /// In upstream's words.
    pub fn told(&self) -> &'static str {
        match self {
            Release::Devices(_) => "deallocation of ResourceClaim completed",
            Release::Claim(_) => "deletion of ResourceClaim completed",
        }
    }
}

/// The extended resources the pod asks for that devices may stand for, in order, with their classes.
pub fn classes(pod: &Pod, storage: &Storage) -> Vec<(Arc<str>, Arc<DeviceClass>)> {
    if pod.device_asks.is_empty() {
        return Vec::new();
    }
    let asked = pod.requests.scalars.iter();
    let asked = asked.filter(|(name, amount)| **amount > 0 && extended::may_be_devices(name));
    asked
        .filter_map(|(name, _)| {
            let class = extended::class_of(name, &storage.device_classes)?;
            Some((name.clone(), class.clone()))
        })
        .collect()
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

/// What is to be allocated on a node: the pod's open claims, and one for the extended resources that the node does not
/// have itself.
struct Open {
    claims: Vec<Arc<ResourceClaim>>,
    requests: Vec<Request>,
    /// Of the last claim.
    extended: Option<ForExtended>,
    known: RefCell<HashMap<(usize, usize, usize), Result<bool, String>>>,
}

impl Open {
    fn new(
        pod: &Pod,
        claims: &[Arc<ResourceClaim>],
        extended: &[(Arc<str>, Arc<DeviceClass>)],
        storage: &Storage,
    ) -> Result<Self, String> {
        let mut open = Open {
            claims: claims.to_vec(),
            requests: Vec::new(),
            extended: None,
            known: RefCell::default(),
        };
        if !extended.is_empty() {
            let (spec, mappings) = extended::claim(&pod.device_asks, extended);
            let mut claim = ResourceClaim::default();
            claim.metadata.namespace.clone_from(&pod.namespace);
            claim.spec = ClaimSpec::deserialize(&spec).map_err(|error| error.to_string())?;
            open.claims.push(Arc::new(claim));
            open.extended = Some(ForExtended { spec, mappings });
        }
        open.requests = Request::all(&open.claims, &storage.device_classes)?;
        Ok(open)
    }
}

/// The pod's claims parted, and what there is for those without devices.
struct Wanted<'a> {
    pod: &'a Pod,
    storage: &'a Storage,
    allocated: Vec<Arc<ResourceClaim>>,
    /// What is to be allocated on nodes that have all extended resources themselves.
    open: Rc<Open>,
    /// Extended resources that devices may stand for.
    classes: Vec<(Arc<str>, Arc<DeviceClass>)>,
    /// On other nodes, by which of `classes` they lack.
    others: RefCell<HashMap<Vec<bool>, Rc<Open>>>,
    /// The claim of an earlier attempt, which must go first.
    stale: Option<Arc<ResourceClaim>>,
    inventory: Inventory,
}

impl<'a> Wanted<'a> {
    fn of(pod: &'a Pod, cluster: &'a Cluster) -> Result<Self, String> {
        let all = claims(pod, cluster)?.into_iter();
        let (allocated, open): (Vec<_>, Vec<_>) =
            all.partition(|claim| claim.status.allocation.is_some());
        let storage = &cluster.storage;
        let open = Open::new(pod, &open, &[], storage)?;
        let classes = classes(pod, storage);
        let stale = storage.special_claim(&pod.uid);
        let stale = stale.filter(|_| !classes.is_empty()).cloned();
        let inventory = if open.requests.is_empty() && classes.is_empty() {
            Inventory::default()
        } else {
            storage.inventory()
        };
        Ok(Wanted {
            pod,
            storage,
            allocated,
            open: Rc::new(open),
            classes,
            others: RefCell::default(),
            stale,
            inventory,
        })
    }

    /// What is to be allocated on a node.
    fn open_on(&self, node: &Node) -> Result<Rc<Open>, String> {
        let lacks = |(name, _): &(Arc<str>, _)| node.allocatable.scalar(name) == 0;
        let lacking: Vec<bool> = self.classes.iter().map(lacks).collect();
        if !lacking.contains(&true) {
            return Ok(self.open.clone());
        }
        if let Some(known) = self.others.borrow().get(&lacking) {
            return Ok(known.clone());
        }
        let classes = self.classes.iter().filter(|one| lacks(one)).cloned();
        let classes: Vec<_> = classes.collect();
        let open = Open::new(self.pod, &self.open.claims, &classes, self.storage)?;
        let open = Rc::new(open);
        self.others.borrow_mut().insert(lacking, open.clone());
        Ok(open)
    }

    /// The open claims on a node with their allocations, or why it will not do.
    fn on(&self, node: &Node) -> Result<(Rc<Open>, Vec<Value>), Rejection> {
        if self.stale.is_some() {
            return Err(Rejection::unresolvable(STALE));
        }
        for claim in &self.allocated {
            let allocation = claim.status.allocation.as_ref();
            let selector = allocation.and_then(|one| one.node_selector.as_ref());
            if selector.is_some_and(|selector| !selector.matches(&node.name, &node.labels)) {
                return Err(Rejection::unresolvable(UNAVAILABLE));
            }
        }
        let open = self.open_on(node).map_err(Rejection::unresolvable)?;
        if open.claims.is_empty() {
            return Ok((open, Vec::new()));
        }
        let ask = devices::Ask {
            claims: &open.claims,
            requests: &open.requests,
            inventory: &self.inventory,
            known: &open.known,
        };
        match devices::allocate(&ask, &node.name, &node.labels) {
            Ok(Some(allocations)) => Ok((open, allocations)),
            Ok(None) => Err(Rejection::unresolvable(NOT_ALLOCATED)),
            Err(why) => Err(Rejection::unresolvable(why)),
        }
    }
}

/// As many alternatives a request has at most (FirstAvailableDeviceRequestMaxSize).
const MAX_ALTERNATIVES: usize = 8;

impl NodeScore for Wanted<'_> {
    /// The earlier the alternatives that a node's devices are, the better (KEP-4816).
    fn score(&self, info: &NodeInfo) -> i64 {
        let allocations = info.node.as_ref().map(|node| self.on(node));
        let Some(Ok((open, allocations))) = allocations else {
            return 0;
        };
        let mut score = 0;
        for (claim, allocation) in open.claims.iter().zip(&allocations) {
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
    if pod.resource_claims.is_empty() && pod.device_asks.is_empty() {
        return Vec::new();
    }
    let plans = plans(pod, cluster, node);
    for plan in &plans {
        match plan.extended {
            Some(_) => cluster.storage.assume_special(&pod.uid, plan),
            None => cluster.storage.assume_claim(plan, consumer(pod)),
        }
    }
    plans
}

fn plans(pod: &Pod, cluster: &Cluster, node: usize) -> Vec<ClaimPlan> {
    let (Ok(wanted), Some(node)) = (Wanted::of(pod, cluster), &cluster.node(node).node) else {
        return Vec::new();
    };
    let Ok((open, allocations)) = wanted.on(node) else {
        return Vec::new();
    };
    let last = open.claims.len().checked_sub(1);
    let given = open.claims.iter().cloned().zip(allocations).enumerate();
    let given = given.map(|(place, (claim, allocation))| ClaimPlan {
        claim,
        allocation: Some(allocation),
        extended: open.extended.clone().filter(|_| Some(place) == last),
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
        extended: None,
    });
    given.chain(unreserved).collect()
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
) -> Option<Release> {
    if !rejected_by.contains(NAME) {
        return None;
    }
    if let Some(stale) = Wanted::of(pod, cluster).ok().and_then(|one| one.stale) {
        return Some(Release::Claim(stale));
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
    .map(Release::Devices)
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
        let storage = &ask.cluster.storage;
        if ask.pod.resource_claims.is_empty() && classes(ask.pod, storage).is_empty() {
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
            .claims
            .iter()
            .flat_map(|one| &one.spec.devices.requests);
        let has_alternatives = requests.any(|one| !one.first_available.is_empty());
        has_alternatives.then(|| Box::new(wanted) as Box<dyn NodeScore + 'a>)
    }

    fn events(&self) -> &'static [Event] {
        &[
            Event::NodeAdded,
            Event::NodeUpdated,
            Event::Devices,
            Event::DeviceClass,
        ]
    }

    fn may_help(&self, _: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::Devices | Change::DeviceClass | Change::NodeAdded(_) => true,
            Change::NodeUpdated { old, new } => {
                old.labels != new.labels || old.allocatable.scalars != new.allocatable.scalars
            }
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

    fn with_gpu(name: &str) -> Value {
        let mut value = mk_pod(name);
        value["spec"]["containers"][0] = json!({"name": "c", "image": "i",
            "resources": {"requests": {"cpu": "1", "example.com/gpu": "1"}}});
        value
    }

    #[test]
    fn an_extended_resource_is_given_devices_where_the_node_does_not_have_it() {
        let mut cluster = two_nodes_one_device();
        let mut own = mk_node("a");
        own["status"]["allocatable"]["example.com/gpu"] = json!("2");
        cluster.set_node(Arc::new(crate::node::node(own)));
        let fit = &super::super::resources_fit::NodeResourcesFit;
        let told = |cluster: &Cluster, pod: &str, node: &str| {
            let mut all = verdict(fit, cluster, with_gpu(pod), node);
            all.extend(verdict(&DynamicResources, cluster, with_gpu(pod), node));
            all
        };
        // No class says what it is.
        assert!(told(&cluster, "p", "a").is_empty());
        assert_eq!(told(&cluster, "p", "b"), ["Insufficient example.com/gpu"]);
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
        let class = Arc::new(serde_json::from_value(class).unwrap());
        cluster.storage.device_classes.insert("gpu".into(), class);
        assert!(told(&cluster, "p", "a").is_empty());
        assert!(told(&cluster, "p", "b").is_empty());
        let index = |name: &str| cluster.find_node(name).unwrap().index;
        let (a, b) = (index("a"), index("b"));
        assert!(reserve(&pod(with_gpu("p")), &mut cluster, a).is_empty());
        let plans = reserve(&pod(with_gpu("p")), &mut cluster, b);
        let extended = plans[0].extended.as_ref().unwrap();
        let request = &extended.spec["devices"]["requests"][0];
        assert_eq!(request["name"], "container-0-request-1");
        assert_eq!(request["exactly"]["deviceClassName"], "gpu");
        let allocation = plans[0].allocation.as_ref().unwrap();
        assert_eq!(allocation["devices"]["results"][0]["device"], "d1");
        // Its device is taken though the claim is still to be made.
        assert_eq!(told(&cluster, "q", "b"), [NOT_ALLOCATED]);
        cluster.storage.forget_special("p");
        assert!(told(&cluster, "q", "b").is_empty());
        // A claim of an earlier attempt must go first.
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "q", "controller": true});
        let claim = json!({"metadata": {"name": "x", "namespace": "default", "resourceVersion": "5",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences": [owner]}});
        let claim = Arc::new(serde_json::from_value(claim).unwrap());
        cluster.storage.set_resource_claim("default/x", Some(claim));
        assert_eq!(told(&cluster, "q", "b"), [STALE]);
        let by = std::collections::BTreeSet::from([NAME]);
        let released = release(&pod(with_gpu("q")), &cluster, &by).unwrap();
        assert!(matches!(&released, Release::Claim(claim) if claim.metadata.name == "x"));
        cluster.storage.set_resource_claim("default/x", None);
        assert!(told(&cluster, "q", "b").is_empty());
    }
}
