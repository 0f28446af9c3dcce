//! The cluster as the scheduler believes it to be: nodes with their pods, those just decided on included.
//!
//! Everything is kept current change by change; nothing is recomputed over all pods for one decision. `matching`
//! keeps counts per node for the selectors in use.

mod counts;
mod nominations;
mod terms;
mod topology;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use apimachinery::selector::LabelSelector;
use parking_lot::Mutex;

use counts::{Counted, Counts};
use nominations::Nominations;
use terms::Terms;
use topology::Columns;

pub use counts::Tally;
pub use terms::TermKind;
pub use topology::Column;

use crate::{
    budget::PodDisruptionBudget,
    node::{Node, NodeInfo},
    pod::{Pod, Term},
    storage::Storage,
};

/// The scheduler's view. Written by the informers' handlers and by `assume` and `forget`.
#[derive(Default)]
pub struct Cluster {
    nodes: Vec<NodeInfo>,
    by_name: HashMap<String, usize>,
    free: Vec<usize>,
    /// Known nodes, zone by zone in turn; empty when it must be computed anew.
    order: Vec<usize>,
    pods: HashMap<Arc<str>, Placed>,
    by_namespace: HashMap<String, HashSet<Arc<str>>>,
    indexes: Mutex<Indexes>,
    /// On how many nodes each image is.
    image_nodes: HashMap<String, usize>,
    namespaces: HashMap<String, BTreeMap<String, String>>,
    /// Selectors of services by namespace and name, and of workloads by kind as well.
    services: HashMap<String, HashMap<String, BTreeMap<String, String>>>,
    workloads: HashMap<(&'static str, String), LabelSelector>,
    /// How many pods use a claim, `namespace/name`.
    claim_users: HashMap<String, i64>,
    kinds: NodeKinds,
    nominations: Nominations,
    /// By `namespace/name`.
    pub budgets: HashMap<String, Arc<PodDisruptionBudget>>,
    pub storage: Storage,
}

/// How many nodes there are of each kind, so that what concerns none of them is not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeKinds {
    all: usize,
    unschedulable: usize,
    /// With a NoSchedule or NoExecute taint.
    tainted: usize,
    /// With a PreferNoSchedule taint.
    disliked: usize,
}

impl NodeKinds {
    /// Counts `node` (`by` is 1) or no longer (-1).
    fn count(&mut self, node: &Node, by: isize) {
        let add = |count: &mut usize, counts: bool| {
            if counts {
                *count = count.saturating_add_signed(by);
            }
        };
        let has = |soft: bool| {
            node.taints
                .iter()
                .any(|taint| (taint.effect == "PreferNoSchedule") == soft)
        };
        add(&mut self.all, true);
        add(&mut self.unschedulable, node.is_unschedulable);
        add(&mut self.tainted, has(false));
        add(&mut self.disliked, has(true));
    }
}

/// What is counted for the questions that were asked.
#[derive(Default)]
struct Indexes {
    counts: Counts,
    terms: Terms,
    columns: Columns,
}

impl Indexes {
    fn pod(&mut self, pod: &Pod, node: usize, by: i64) {
        self.counts.pod(pod, node, by, &self.columns);
        self.terms.pod(pod, node, by, &self.columns);
    }

    /// The labels of a node become others; `has_pods` tells whether pods are counted by them.
    fn relabel(&mut self, node: usize, old: Option<&Node>, new: Option<&Node>, has_pods: bool) {
        if old.map(|node| &node.labels) == new.map(|node| &node.labels) {
            return;
        }
        if old.is_some() {
            self.columns.take(node);
        }
        if let Some(new) = new {
            self.columns.put(node, &new.labels);
        }
        if has_pods {
            self.counts.forget_tallies();
            self.terms.forget_tallies();
        }
    }
}

struct Placed {
    pod: Arc<Pod>,
    node: usize,
    /// Decided here, not yet seen in the API.
    is_assumed: bool,
}

impl Cluster {
    /// The known nodes in the order they are tried: the zones take turns.
    pub fn order(&mut self) -> &[usize] {
        if self.order.is_empty() {
            let mut zones: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
            for info in &self.nodes {
                if let Some(node) = &info.node {
                    zones.entry(node.zone()).or_default().push(info.index);
                }
            }
            let mut zones: Vec<_> = zones.into_values().map(Vec::into_iter).collect();
            let mut order = Vec::new();
            while !zones.is_empty() {
                zones.retain_mut(|zone| zone.next().map(|index| order.push(index)).is_some());
            }
            self.order = order;
        }
        &self.order
    }

    /// The same as last computed by `order`.
    pub fn ordered(&self) -> &[usize] {
        &self.order
    }

    /// The known nodes, in the order last computed by `order`.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.nodes.iter().filter(|info| info.node.is_some())
    }

    pub fn node(&self, index: usize) -> &NodeInfo {
        &self.nodes[index]
    }

    pub fn find_node(&self, name: &str) -> Option<&NodeInfo> {
        let info = &self.nodes[*self.by_name.get(name)?];
        info.node.is_some().then_some(info)
    }

    /// Pods that have a node, those just decided on included.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// Pods whose node the API does not show yet.
    pub fn assumed_count(&self) -> usize {
        let placed = self.pods.values();
        placed.filter(|placed| placed.is_assumed).count()
    }

    pub fn node_count(&self) -> usize {
        self.kinds.all
    }

    pub fn unschedulable_nodes(&self) -> usize {
        self.kinds.unschedulable
    }

    /// Nodes with a taint that keeps pods away.
    pub fn tainted_nodes(&self) -> usize {
        self.kinds.tainted
    }

    /// Nodes with a taint that pods would rather avoid.
    pub fn disliked_nodes(&self) -> usize {
        self.kinds.disliked
    }

    /// Expects a waiting pod on a node: it counts there for pods of no higher priority.
    pub fn nominate(&mut self, pod: Arc<Pod>, node: &str) {
        self.nominations.set(pod, node);
    }

    /// Returns whether it was expected anywhere.
    pub fn forget_nomination(&mut self, uid: &str) -> bool {
        self.nominations.remove(uid)
    }

    pub fn has_nominations(&self) -> bool {
        !self.nominations.is_empty()
    }

    /// The node a pod is expected on.
    pub fn nomination(&self, uid: &str) -> Option<&str> {
        self.nominations.node_of(uid)
    }

    /// The waiting pods expected on a node.
    pub fn nominated_on(&self, node: &str) -> &[Arc<Pod>] {
        self.nominations.on(node)
    }

    /// Puts a node; returns what it was before.
    pub fn set_node(&mut self, node: Arc<Node>) -> Option<Arc<Node>> {
        let index = self.slot(&node.name);
        for image in node.images.keys() {
            *self.image_nodes.entry(image.clone()).or_default() += 1;
        }
        let old = self.nodes[index].node.replace(node.clone());
        let info = &self.nodes[index];
        let indexes = self.indexes.get_mut();
        indexes.relabel(index, old.as_deref(), Some(&node), !info.pods.is_empty());
        self.kinds.count(&node, 1);
        if let Some(old) = &old {
            self.kinds.count(old, -1);
            self.forget_images(old);
        }
        if old.as_ref().is_none_or(|old| old.zone() != node.zone()) {
            self.order.clear();
        }
        old
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(index) = self.by_name.get(name).copied() else {
            return;
        };
        if let Some(old) = self.nodes[index].node.take() {
            self.kinds.count(&old, -1);
            self.forget_images(&old);
            let has_pods = !self.nodes[index].pods.is_empty();
            self.indexes
                .get_mut()
                .relabel(index, Some(&old), None, has_pods);
        }
        self.order.clear();
        self.drop_if_unused(index);
    }

    /// Puts a pod that has a node, confirming it if it was assumed. Returns what it was before.
    pub fn set_pod(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        let old = self.remove_pod(&pod.uid);
        let index = self.slot(&pod.node_name);
        self.place(pod, index, false);
        old
    }

    /// Puts a pod onto a node it is about to be bound to.
    pub fn assume(&mut self, pod: Arc<Pod>, index: usize) {
        self.remove_pod(&pod.uid);
        self.place(pod, index, true);
    }

    /// Takes back `assume`, unless the pod has been confirmed meanwhile.
    pub fn forget(&mut self, uid: &str) -> bool {
        let assumed = self.is_assumed(uid);
        if assumed {
            self.remove_pod(uid);
        }
        assumed
    }

    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|placed| placed.is_assumed)
    }

    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let placed = self.pods.remove(uid)?;
        self.nodes[placed.node].remove(uid);
        self.drop_if_unused(placed.node);
        if let Some(uids) = self.by_namespace.get_mut(&placed.pod.namespace) {
            uids.remove(uid);
            if uids.is_empty() {
                self.by_namespace.remove(&placed.pod.namespace);
            }
        }
        self.indexes.get_mut().pod(&placed.pod, placed.node, -1);
        self.count_claims(&placed.pod, -1);
        Some(placed.pod)
    }

    fn count_claims(&mut self, pod: &Pod, by: i64) {
        for claim in &pod.claims {
            let key = format!("{}/{}", pod.namespace, claim.name);
            let users = self.claim_users.entry(key.clone()).or_default();
            *users += by;
            if *users == 0 {
                self.claim_users.remove(&key);
            }
        }
    }

    /// How many pods with a node use a claim, `namespace/name`.
    pub fn claim_users(&self, claim: &str) -> i64 {
        self.claim_users.get(claim).copied().unwrap_or(0)
    }

    fn place(&mut self, pod: Arc<Pod>, node: usize, is_assumed: bool) {
        self.nominations.remove(&pod.uid);
        self.nodes[node].add(pod.clone());
        let uids = self.by_namespace.entry(pod.namespace.clone()).or_default();
        uids.insert(pod.uid.clone());
        self.indexes.get_mut().pod(&pod, node, 1);
        self.count_claims(&pod, 1);
        let placed = Placed {
            pod: pod.clone(),
            node,
            is_assumed,
        };
        self.pods.insert(pod.uid.clone(), placed);
    }

    fn slot(&mut self, name: &str) -> usize {
        if let Some(index) = self.by_name.get(name) {
            return *index;
        }
        let index = self.free.pop().unwrap_or(self.nodes.len());
        let info = NodeInfo {
            index,
            name: name.into(),
            ..NodeInfo::default()
        };
        if index == self.nodes.len() {
            self.nodes.push(info);
        } else {
            self.nodes[index] = info;
        }
        self.by_name.insert(name.into(), index);
        index
    }

    fn drop_if_unused(&mut self, index: usize) {
        let info = &self.nodes[index];
        if info.node.is_none() && info.pods.is_empty() && self.by_name.remove(&info.name).is_some()
        {
            self.free.push(index);
        }
    }

    fn forget_images(&mut self, node: &Node) {
        for image in node.images.keys() {
            if let Some(count) = self.image_nodes.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.image_nodes.remove(image);
                }
            }
        }
    }

    /// On how many nodes an image is.
    pub fn image_nodes(&self, image: &str) -> usize {
        self.image_nodes.get(image).copied().unwrap_or(0)
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        match labels {
            Some(labels) => self.namespaces.insert(name.into(), labels),
            None => self.namespaces.remove(name),
        };
    }

    pub fn set_service(
        &mut self,
        namespace: &str,
        name: &str,
        selector: Option<BTreeMap<String, String>>,
    ) {
        let services = self.services.entry(namespace.into()).or_default();
        match selector {
            Some(selector) if !selector.is_empty() => services.insert(name.into(), selector),
            _ => services.remove(name),
        };
        if services.is_empty() {
            self.services.remove(namespace);
        }
    }

    /// `key` is `namespace/name` of a ReplicaSet, StatefulSet or ReplicationController.
    pub fn set_workload(&mut self, kind: &'static str, key: &str, selector: Option<LabelSelector>) {
        match selector {
            Some(selector) => self.workloads.insert((kind, key.into()), selector),
            None => self.workloads.remove(&(kind, key.into())),
        };
    }

    /// What default spreading spreads by: the services that select the pod, together with the workload that owns it
    /// (helper.DefaultSelector). `None` if there is neither.
    pub fn default_selector(&self, pod: &Pod) -> Option<LabelSelector> {
        let services = self
            .services
            .get(&pod.namespace)
            .into_iter()
            .flat_map(HashMap::values);
        let selecting = services.filter(|selector| {
            selector
                .iter()
                .all(|(key, value)| pod.labels.get(key) == Some(value))
        });
        let labels: BTreeMap<&String, &String> = selecting.flatten().collect();
        let mut text =
            LabelSelector::from_labels(labels.into_iter().map(|(k, v)| (k.clone(), v.clone())))
                .to_string();
        let owner = pod.owner.as_ref().and_then(|owner| {
            let kinds = ["ReplicaSet", "StatefulSet", "ReplicationController"];
            let kind = kinds.into_iter().find(|kind| *kind == owner.kind)?;
            self.workloads
                .get(&(kind, format!("{}/{}", pod.namespace, owner.name)))
        });
        if let Some(owner) = owner {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&owner.to_string());
        }
        if text.is_empty() {
            return None;
        }
        LabelSelector::parse(&text).ok()
    }

    /// Whether a term is about a pod.
    pub fn term_matches(&self, term: &Term, pod: &Pod) -> bool {
        let by_labels = || {
            let selector = term.namespace_selector.as_ref();
            selector.is_some_and(|selector| selector.matches(&self.namespaces.get(&pod.namespace)))
        };
        (term.namespaces.contains(&pod.namespace) || by_labels())
            && term.selector.matches(&pod.labels)
    }

    /// The namespaces a term is about.
    pub fn namespaces_of<'a>(&'a self, term: &'a Term) -> BTreeSet<&'a str> {
        let mut names: BTreeSet<&str> = term.namespaces.iter().map(String::as_str).collect();
        if let Some(selector) = &term.namespace_selector {
            let selected = self
                .namespaces
                .iter()
                .filter(|(_, labels)| selector.matches(labels));
            names.extend(selected.map(|(name, _)| name.as_str()));
        }
        names
    }

    /// How many pods of a namespace match on each node that has any. Those being deleted count only if `all`.
    pub fn matching(
        &self,
        namespace: &str,
        selector: &LabelSelector,
        all: bool,
    ) -> Arc<HashMap<usize, i64>> {
        let mut indexes = self.indexes.lock();
        self.counted(&mut indexes.counts, namespace, selector, all)
            .nodes
            .clone()
    }

    /// The same by the values of a topology.
    pub fn tally(
        &self,
        namespace: &str,
        selector: &LabelSelector,
        all: bool,
        column: &Column,
        key: &str,
    ) -> Arc<Tally> {
        let mut indexes = self.indexes.lock();
        self.counted(&mut indexes.counts, namespace, selector, all)
            .tally(key, column)
    }

    fn counted<'a>(
        &self,
        counts: &'a mut Counts,
        namespace: &str,
        selector: &LabelSelector,
        all: bool,
    ) -> &'a mut Counted {
        let key = (selector.to_string(), all);
        if !counts.is_tracked(namespace, &key) {
            let mut nodes = HashMap::new();
            for uid in self.by_namespace.get(namespace).into_iter().flatten() {
                if let Some(placed) = self.pods.get(uid)
                    && (all || !placed.pod.is_deleting)
                    && selector.matches(&placed.pod.labels)
                {
                    *nodes.entry(placed.node).or_default() += 1;
                }
            }
            counts.track(namespace, key.clone(), selector.clone(), Counted::of(nodes));
        }
        counts.find(namespace, key)
    }

    /// The values of a label over all nodes.
    pub fn column(&self, key: &str) -> Arc<Column> {
        self.column_in(&mut self.indexes.lock().columns, key)
    }

    fn column_in(&self, columns: &mut Columns, key: &str) -> Arc<Column> {
        if let Some(column) = columns.find(key) {
            return column;
        }
        let known = self
            .nodes
            .iter()
            .filter_map(|info| Some((info.index, &info.node.as_ref()?.labels)));
        columns.add(key, known)
    }

    /// The terms of running pods that `wanted` wants, with the places of the pods that have them.
    pub fn terms(
        &self,
        wanted: impl Fn(TermKind, &Term) -> bool,
    ) -> Vec<(TermKind, Arc<Column>, Arc<Tally>)> {
        let Indexes { terms, columns, .. } = &mut *self.indexes.lock();
        terms.find(wanted, |key| self.column_in(columns, key))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use serde_json::{Value, json};

    /// A node with 4 cores, 8 GiB and room for 110 pods.
    pub fn mk_node(name: &str) -> Value {
        json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "10Gi"}},
        })
    }

    pub fn mk_pod(name: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "a"}},
            "spec": {"containers": [{"image": "nginx"}], "schedulerName": "default-scheduler"},
        })
    }

    pub fn on(mut pod: Value, node: &str) -> Value {
        pod["spec"]["nodeName"] = json!(node);
        pod
    }

    pub fn cluster(nodes: &[Value], pods: &[Value]) -> Cluster {
        let mut cluster = Cluster::default();
        for value in nodes {
            cluster.set_node(Arc::new(crate::node::node(value.clone())));
        }
        for value in pods {
            cluster.set_pod(Arc::new(crate::pod::pod(value.clone())));
        }
        cluster.order();
        cluster
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};
    use crate::{node::node, pod::pod};

    #[test]
    fn sums_and_counts_follow_every_change() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[on(mk_pod("1"), "a")]);
        let selector = LabelSelector::parse("app=a").unwrap();
        let count = |cluster: &Cluster, node: &str| {
            let index = cluster.find_node(node).unwrap().index;
            cluster
                .matching("default", &selector, false)
                .get(&index)
                .copied()
                .unwrap_or(0)
        };
        assert_eq!((count(&cluster, "a"), count(&cluster, "b")), (1, 0));
        let two = Arc::new(pod(mk_pod("2")));
        let index = cluster.find_node("b").unwrap().index;
        cluster.assume(two.clone(), index);
        assert_eq!(count(&cluster, "b"), 1);
        assert!(cluster.is_assumed("2"));
        cluster.set_pod(Arc::new(pod(on(mk_pod("2"), "b"))));
        assert!(!cluster.forget("2"));
        assert_eq!(cluster.find_node("b").unwrap().scored_cpu, 100);
        let mut dying = on(mk_pod("1"), "a");
        dying["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        cluster.set_pod(Arc::new(pod(dying)));
        assert_eq!(count(&cluster, "a"), 0);
        cluster.remove_pod("2");
        assert_eq!(count(&cluster, "b"), 0);
        assert_eq!(
            cluster.find_node("b").unwrap().requested,
            Default::default()
        );
    }

    #[test]
    fn a_removed_node_is_kept_while_pods_name_it() {
        let mut cluster = cluster(&[mk_node("a")], &[on(mk_pod("1"), "a")]);
        cluster.remove_node("a");
        assert!(cluster.find_node("a").is_none());
        cluster.remove_pod("1");
        cluster.set_node(Arc::new(node(mk_node("b"))));
        assert_eq!(cluster.nodes.len(), 1);
    }

    #[test]
    fn zones_take_turns() {
        let zoned = |name: &str, zone: &str| {
            let mut node = mk_node(name);
            node["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone.into();
            node
        };
        let nodes = [zoned("a1", "a"), zoned("a2", "a"), zoned("b1", "b")];
        let mut cluster = cluster(&nodes, &[]);
        let order: Vec<usize> = cluster.order().to_vec();
        let names: Vec<&str> = order
            .iter()
            .map(|index| cluster.node(*index).name.as_str())
            .collect();
        assert_eq!(names, ["a1", "b1", "a2"]);
    }

    #[test]
    fn services_and_owners_make_the_default_selector() {
        let mut cluster = Cluster::default();
        let labels = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect()
        };
        let plain = pod(mk_pod("p"));
        assert!(cluster.default_selector(&plain).is_none());
        cluster.set_service("default", "s", Some(labels(&[("app", "a")])));
        cluster.set_service("default", "other", Some(labels(&[("app", "b")])));
        assert_eq!(
            cluster.default_selector(&plain).unwrap().to_string(),
            "app=a"
        );
        let mut owned = mk_pod("p");
        owned["metadata"]["ownerReferences"] = serde_json::json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "x", "controller": true}]);
        cluster.set_workload(
            "ReplicaSet",
            "default/r",
            LabelSelector::parse("tier in (x,y)").ok(),
        );
        assert_eq!(
            cluster.default_selector(&pod(owned)).unwrap().to_string(),
            "app=a,tier in (x,y)"
        );
    }
}
