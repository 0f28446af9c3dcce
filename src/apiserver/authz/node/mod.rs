//! The Node authorizer: a kubelet may do what the `system:node` role allows, and of secrets, config maps, claims and the
//! like it may read those that pods bound to its node refer to (KEP-3330 limits nodes and pods to its own).
//!
//! Upstream keeps a graph of all references; here the few pods of the asking node are looked at when it asks.

pub mod references;

use std::sync::Arc;

use apimachinery::{Value, meta};

use super::rbac::{Rbac, Rule};
use super::{Attributes, Authorizer, Rules, Verdict};
use crate::backend::Backend;
use crate::request::UserInfo;
use references::{Wanted, claims, refers, volume_refers};

const NODES: &str = "system:nodes";
const PREFIX: &str = "system:node:";
const ROLE: &str = "system:node";
const LEASES_NAMESPACE: &str = "kube-node-lease";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The Node authorizer.
pub struct Node {
    backend: Arc<dyn Backend>,
    /// Has the rules of the `system:node` role.
    rbac: Arc<Rbac>,
}

/// The node that `user` is.
pub fn node_of(user: &UserInfo) -> Option<&str> {
    let name = user.name.strip_prefix(PREFIX)?;
    (user.is_in(NODES) && !name.is_empty()).then_some(name)
}

impl Node {
    pub fn new(backend: Arc<dyn Backend>, rbac: Arc<Rbac>) -> Self {
        Self { backend, rbac }
    }

    /// The rules of the role, which say what may be done at all.
    fn may(&self, attributes: &Attributes<'_>) -> Verdict {
        let policy = self.rbac.policy();
        let rules: &[Rule] = policy.rules_of(true, "", ROLE).unwrap_or_default();
        if rules.iter().any(|rule| rule.allows(attributes)) {
            return Verdict::allow("");
        }
        Verdict::no_opinion("")
    }

    fn pods(&self, node: &str, namespace: &str) -> impl Iterator<Item = Arc<Value>> {
        self.backend
            .pods_on(node, namespace)
            .into_iter()
            .filter(|pod| meta::annotation(pod, MIRROR).is_none())
    }

    /// Reads of something in a namespace that a pod of the node has to refer to.
    fn read(&self, node: &str, attributes: &Attributes<'_>, wanted: Wanted) -> Verdict {
        let verbs: &[&str] = match wanted {
            Wanted::Secret | Wanted::ConfigMap => &["get", "list", "watch"],
            _ => &["get"],
        };
        if !verbs.contains(&attributes.verb) || !attributes.subresource.is_empty() {
            return Verdict::no_opinion("can only read resources of this type");
        }
        self.related(node, attributes, wanted)
    }

    fn related(&self, node: &str, attributes: &Attributes<'_>, wanted: Wanted) -> Verdict {
        let (namespace, name) = (attributes.namespace, attributes.name);
        if namespace.is_empty() {
            return Verdict::no_opinion("can only read namespaced object of this type");
        }
        if name.is_empty() {
            return Verdict::no_opinion("No Object name found");
        }
        let referred = self
            .pods(node, namespace)
            .any(|pod| refers(&pod, wanted, name));
        if referred || (wanted == Wanted::Secret && self.mounts_with(node, namespace, name)) {
            return Verdict::allow("");
        }
        unrelated(node)
    }

    /// Whether a volume mounted on the node refers to the secret.
    fn mounts_with(&self, node: &str, namespace: &str, secret: &str) -> bool {
        self.volumes(node)
            .any(|volume| volume_refers(&volume, namespace, secret))
    }

    /// The PersistentVolumes bound to claims of the node's pods.
    fn volumes(&self, node: &str) -> impl Iterator<Item = Arc<Value>> {
        let wanted: Vec<(String, String)> = self
            .pods(node, "")
            .flat_map(|pod| {
                let namespace = meta::namespace(&pod).to_owned();
                let names: Vec<String> = claims(&pod).collect();
                names.into_iter().map(move |name| (namespace.clone(), name))
            })
            .collect();
        let volumes = if wanted.is_empty() {
            Vec::new()
        } else {
            self.backend.cached_list("", "persistentvolumes")
        };
        volumes.into_iter().filter(move |volume| {
            let claim = &volume["spec"]["claimRef"];
            wanted.iter().any(|(namespace, name)| {
                claim["namespace"].as_str() == Some(namespace)
                    && claim["name"].as_str() == Some(name)
            })
        })
    }

    fn volume(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        if attributes.verb != "get" || !attributes.subresource.is_empty() {
            return Verdict::no_opinion("can only get individual resources of this type");
        }
        if self
            .volumes(node)
            .any(|volume| meta::name(&volume) == attributes.name)
        {
            return Verdict::allow("");
        }
        unrelated(node)
    }

    fn attachment(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        if attributes.verb != "get" || !attributes.subresource.is_empty() {
            return Verdict::no_opinion("can only get individual resources of this type");
        }
        let attached = self
            .backend
            .cached_list("storage.k8s.io", "volumeattachments")
            .into_iter()
            .any(|object| {
                meta::name(&object) == attributes.name
                    && object["spec"]["nodeName"].as_str() == Some(node)
            });
        if attached {
            Verdict::allow("")
        } else {
            unrelated(node)
        }
    }

    fn claim(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        if attributes.subresource == "status" {
            if !matches!(attributes.verb, "update" | "patch" | "get") {
                return Verdict::no_opinion("can only update PVC status");
            }
            return self.related(node, attributes, Wanted::Claim);
        }
        self.read(node, attributes, Wanted::Claim)
    }

    fn account(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        match (attributes.subresource, attributes.verb) {
            ("token", "create") | ("", "get") => {
                self.related(node, attributes, Wanted::ServiceAccount)
            }
            _ => Verdict::no_opinion("can only create tokens for individual service accounts"),
        }
    }

    /// Leases and CSINodes have their node's name.
    fn own(&self, node: &str, attributes: &Attributes<'_>, namespace: &str) -> Verdict {
        if !matches!(
            attributes.verb,
            "get" | "create" | "update" | "patch" | "delete"
        ) {
            return Verdict::no_opinion(
                "can only get, create, update, patch, or delete this kind of object",
            );
        }
        if attributes.namespace != namespace {
            return Verdict::no_opinion("can only access the objects of nodes");
        }
        // The name of a new object is not in the request's path; admission looks at it.
        if attributes.verb != "create" && attributes.name != node {
            return Verdict::no_opinion(
                "can only access the object with the same name as the requesting node",
            );
        }
        Verdict::allow("")
    }

    fn nodes(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        let own = attributes.verb == "create" || attributes.name == node;
        if !own {
            return Verdict::no_opinion(format!(
                "node {node:?} cannot {} {:?}, only its own Node object",
                attributes.verb, attributes.name
            ));
        }
        self.may(attributes)
    }

    fn pods_of(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        let reads_many =
            matches!(attributes.verb, "list" | "watch") && attributes.subresource.is_empty();
        if reads_many
            && !selects_node(attributes.field_selector, node)
            && attributes.name.is_empty()
        {
            return Verdict::no_opinion(
                "can only list/watch pods with spec.nodeName field selector",
            );
        }
        let reads_one = attributes.verb == "get" || (reads_many && !attributes.name.is_empty());
        let on_node = || {
            self.backend
                .pods_on(node, attributes.namespace)
                .iter()
                .any(|pod| meta::name(pod) == attributes.name)
        };
        if reads_one && !selects_node(attributes.field_selector, node) && !on_node() {
            return unrelated(node);
        }
        self.may(attributes)
    }

    /// What is created is looked at by admission (`NodeRestriction`).
    fn pod_certificates(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        if !attributes.subresource.is_empty() {
            return Verdict::no_opinion(
                "nodes may not access the status subresource of PodCertificateRequests",
            );
        }
        match attributes.verb {
            "create" => Verdict::allow(""),
            "list" | "watch" if selects_node(attributes.field_selector, node) => Verdict::allow(""),
            "list" | "watch" => Verdict::no_opinion(
                "can only list/watch podcertificaterequests with spec.nodeName field selector",
            ),
            "get" if self.requested(node, attributes) => Verdict::allow(""),
            _ => unrelated(node),
        }
    }

    /// Whether the request for a certificate is of a pod on the node.
    fn requested(&self, node: &str, attributes: &Attributes<'_>) -> bool {
        self.backend
            .cached_list("certificates.k8s.io", "podcertificaterequests")
            .iter()
            .any(|request| {
                meta::namespace(request) == attributes.namespace
                    && meta::name(request) == attributes.name
                    && request["spec"]["nodeName"].as_str() == Some(node)
            })
    }

    fn slices(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        let many = matches!(attributes.verb, "list" | "watch" | "deletecollection");
        if many && !selects_node(attributes.field_selector, node) {
            return Verdict::no_opinion(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            );
        }
        if many || attributes.verb == "create" {
            return Verdict::allow("");
        }
        let owned = self
            .backend
            .cached_list("resource.k8s.io", "resourceslices")
            .iter()
            .any(|slice| {
                meta::name(slice) == attributes.name
                    && slice["spec"]["nodeName"].as_str() == Some(node)
            });
        if owned {
            Verdict::allow("")
        } else {
            unrelated(node)
        }
    }
}

fn unrelated(node: &str) -> Verdict {
    Verdict::no_opinion(format!(
        "no relationship found between node '{node}' and this object"
    ))
}

/// Whether a field selector keeps to the objects of one node.
fn selects_node(selector: &str, node: &str) -> bool {
    selector.split(',').any(|term| {
        let value = term.trim().strip_prefix("spec.nodeName=");
        value.map(|value| value.strip_prefix('=').unwrap_or(value)) == Some(node)
    })
}

impl Authorizer for Node {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        let Some(node) = node_of(attributes.user) else {
            return Verdict::no_opinion("");
        };
        if !attributes.is_resource {
            return self.may(attributes);
        }
        match (attributes.group, attributes.resource) {
            ("", "secrets") => self.read(node, attributes, Wanted::Secret),
            ("", "configmaps") => self.read(node, attributes, Wanted::ConfigMap),
            ("", "persistentvolumeclaims") => self.claim(node, attributes),
            ("", "persistentvolumes") => self.volume(node, attributes),
            ("", "serviceaccounts") => self.account(node, attributes),
            ("", "nodes") => self.nodes(node, attributes),
            ("", "pods") => self.pods_of(node, attributes),
            ("resource.k8s.io", "resourceclaims") => {
                self.read(node, attributes, Wanted::ResourceClaim)
            }
            ("resource.k8s.io", "resourceslices") => self.slices(node, attributes),
            ("certificates.k8s.io", "podcertificaterequests") => {
                self.pod_certificates(node, attributes)
            }
            ("storage.k8s.io", "volumeattachments") => self.attachment(node, attributes),
            ("storage.k8s.io", "csinodes") => self.own(node, attributes, ""),
            ("coordination.k8s.io", "leases") => self.own(node, attributes, LEASES_NAMESPACE),
            _ => self.may(attributes),
        }
    }

    fn rules(&self, user: &UserInfo, _namespace: &str) -> Rules {
        if node_of(user).is_none() {
            return Rules::default();
        }
        Rules {
            rules: Vec::new(),
            incomplete: true,
            error: "node authorizer does not support user rule resolution".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rbac::tests::Objects;
    use super::*;
    use crate::request::RequestInfo;
    use serde_json::json;

    fn node() -> Node {
        let objects = Objects::default();
        objects.add("clusterroles", json!({"metadata": {"name": ROLE}, "rules": [
            {"verbs": ["get", "list", "watch", "create"], "apiGroups": [""], "resources": ["nodes", "services", "pods"]},
            {"verbs": ["patch"], "apiGroups": [""], "resources": ["nodes/status", "pods/status"]},
        ]}));
        objects.add("pods", json!({"metadata": {"name": "p", "namespace": "a"}, "spec": {"nodeName": "n1",
            "serviceAccountName": "sa",
            "volumes": [{"name": "s", "secret": {"secretName": "used"}}, {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}}]}}));
        objects.add(
            "pods",
            json!({"metadata": {"name": "q", "namespace": "a"}, "spec": {"nodeName": "n2",
            "volumes": [{"name": "s", "secret": {"secretName": "elsewhere"}}]}}),
        );
        for (name, on) in [("r1", "n1"), ("r2", "n2")] {
            objects.add(
                "podcertificaterequests",
                json!({"metadata": {"name": name, "namespace": "a"}, "spec": {"nodeName": on}}),
            );
        }
        objects.add("persistentvolumes", json!({"metadata": {"name": "v"}, "spec": {
            "claimRef": {"namespace": "a", "name": "claim"}, "csi": {"nodePublishSecretRef": {"namespace": "a", "name": "publish"}}}}));
        let backend: Arc<dyn Backend> = Arc::new(objects);
        Node::new(backend.clone(), Arc::new(Rbac::new(backend)))
    }

    #[track_caller]
    fn check(node: &Node, method: &str, path: &str, allowed: bool) {
        let method = method.parse().expect("a method");
        let info = RequestInfo::parse(&method, &path.parse().expect("a uri"));
        let user = UserInfo::new("system:node:n1", [NODES]);
        let verdict = node.authorize(&Attributes::of(&user, &info));
        assert_eq!(
            verdict.is_allowed(),
            allowed,
            "{method} {path}: {}",
            verdict.reason
        );
    }

    #[test]
    fn only_objects_that_pods_of_the_node_refer_to_can_be_read() {
        let node = node();
        check(&node, "GET", "/api/v1/namespaces/a/secrets/used", true);
        check(
            &node,
            "GET",
            "/api/v1/namespaces/a/secrets?watch=1&fieldSelector=metadata.name%3Dused",
            true,
        );
        check(&node, "GET", "/api/v1/namespaces/a/secrets/publish", true);
        check(
            &node,
            "GET",
            "/api/v1/namespaces/a/secrets/elsewhere",
            false,
        );
        check(&node, "GET", "/api/v1/namespaces/a/secrets", false);
        check(&node, "DELETE", "/api/v1/namespaces/a/secrets/used", false);
        check(&node, "GET", "/api/v1/persistentvolumes/v", true);
        check(
            &node,
            "POST",
            "/api/v1/namespaces/a/serviceaccounts/sa/token",
            true,
        );
        check(
            &node,
            "POST",
            "/api/v1/namespaces/a/serviceaccounts/other/token",
            false,
        );
    }

    #[test]
    fn nodes_leases_and_pods_are_limited_to_its_own() {
        let node = node();
        check(&node, "GET", "/api/v1/nodes/n1", true);
        check(&node, "GET", "/api/v1/nodes/n2", false);
        check(&node, "PATCH", "/api/v1/nodes/n1/status", true);
        check(&node, "PATCH", "/api/v1/nodes/n2/status", false);
        check(&node, "POST", "/api/v1/nodes", true);
        check(
            &node,
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1",
            true,
        );
        check(
            &node,
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
            false,
        );
        check(
            &node,
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/n1",
            false,
        );
        check(
            &node,
            "GET",
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1",
            true,
        );
        check(&node, "GET", "/api/v1/pods?watch=1", false);
        check(&node, "GET", "/api/v1/namespaces/a/pods/p", true);
        check(&node, "GET", "/api/v1/namespaces/a/pods/q", false);
        check(&node, "PATCH", "/api/v1/namespaces/a/pods/p/status", true);
        check(&node, "GET", "/api/v1/services", true);
    }

    #[test]
    fn certificates_are_asked_for_and_seen_by_the_pods_own_node() {
        const REQUESTS: &str = "/apis/certificates.k8s.io/v1/namespaces/a/podcertificaterequests";
        let node = node();
        let of = |rest: &str| format!("{REQUESTS}{rest}");
        check(&node, "POST", REQUESTS, true);
        check(&node, "GET", &of("/r1"), true);
        check(&node, "GET", &of("/r2"), false);
        check(&node, "GET", &of("?fieldSelector=spec.nodeName%3Dn1"), true);
        check(
            &node,
            "GET",
            &of("?fieldSelector=spec.nodeName%3Dn2"),
            false,
        );
        check(&node, "GET", REQUESTS, false);
        check(&node, "PUT", &of("/r1/status"), false);
        check(&node, "DELETE", &of("/r1"), false);
    }

    #[test]
    fn others_are_not_its_business() {
        let node = node();
        let info = RequestInfo::parse(
            &http::Method::GET,
            &"/api/v1/services".parse().expect("a uri"),
        );
        for user in [
            UserInfo::new("jane", [NODES]),
            UserInfo::new("system:node:n1", []),
        ] {
            let verdict = node.authorize(&Attributes::of(&user, &info));
            assert_eq!(verdict, Verdict::no_opinion(""));
        }
    }
}
