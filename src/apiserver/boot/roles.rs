//! Roles and bindings of controllers, and rules of nodes, that were off by default when the objects of a first start
//! were recorded.

use apimachinery::{Value, meta};
use serde_json::json;

const GROUP: &str = "rbac.authorization.k8s.io";
/// Who made it, in the managed fields.
const MANAGER: &str = "kube-apiserver";

/// Group, plural, manager and object, as the recorded ones.
pub(super) fn newer() -> Vec<(String, String, String, Value)> {
    let migrator = json!([
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["create", "list", "patch"]},
        {"apiGroups": ["storagemigration.k8s.io"], "resources": ["storageversionmigrations/status"], "verbs": ["update"]},
    ]);
    let publisher = json!([
        {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["attest"],
         "resourceNames": ["kubernetes.io/kube-apiserver-serving"]},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"],
         "verbs": ["create", "delete", "list", "update", "watch"]},
    ]);
    let roles = [
        ("storage-version-migrator-controller", migrator),
        (
            "kube-apiserver-serving-clustertrustbundle-publisher",
            publisher,
        ),
    ];
    roles
        .into_iter()
        .flat_map(|(account, rules)| [role(account, rules), binding(account)])
        .map(|(plural, object)| (GROUP.into(), plural.into(), MANAGER.into(), object))
        .collect()
}

/// Gives a recorded object what nodes may do since: read the anchors that pods mount, ask for pods' certificates.
pub(super) fn extend(plural: &str, object: &mut Value) {
    if plural != "clusterroles" || meta::name(object) != "system:node" {
        return;
    }
    let newer = [
        json!({"apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"],
            "verbs": ["get", "list", "watch"]}),
        json!({"apiGroups": ["certificates.k8s.io"], "resources": ["podcertificaterequests"],
            "verbs": ["create", "get", "list", "watch"]}),
    ];
    if let Some(rules) = object["rules"].as_array_mut() {
        rules.extend(newer);
    }
}

fn metadata(account: &str) -> Value {
    json!({
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "name": format!("system:controller:{account}"),
    })
}

fn role(account: &str, rules: Value) -> (&'static str, Value) {
    let object = json!({"metadata": metadata(account), "rules": rules});
    ("clusterroles", object)
}

fn binding(account: &str) -> (&'static str, Value) {
    let metadata = metadata(account);
    let role = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": metadata["name"]});
    let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": "kube-system"});
    let object = json!({"metadata": metadata, "roleRef": role, "subjects": [subject]});
    ("clusterrolebindings", object)
}
