//! Decisions over small policies kept in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use apimachinery::Value;
use apimachinery::status::Status;
use http::{Method, Request, Response};
use serde_json::json;

use super::*;
use crate::authz::{Authorizers, Decision};
use crate::body::Body;
use crate::request::{RequestContext, RequestInfo, Warnings};

/// Holds the objects of the four kinds.
#[derive(Default)]
pub struct Objects {
    lists: Mutex<HashMap<String, Vec<Arc<Value>>>>,
    generation: AtomicU64,
}

impl Objects {
    pub fn add(&self, plural: &str, object: Value) {
        self.lists
            .lock()
            .entry(plural.to_owned())
            .or_default()
            .push(Arc::new(object));
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Backend for Objects {
    async fn handle(&self, _: RequestContext, _: Request<Body>) -> Result<Response<Body>, Status> {
        Err(Status::path_not_found())
    }

    async fn find(&self, _: &str, _: &str, _: &str, _: &str) -> Result<Option<Arc<Value>>, Status> {
        Ok(None)
    }

    fn cached_list(&self, _: &str, plural: &str) -> Vec<Arc<Value>> {
        self.lists.lock().get(plural).cloned().unwrap_or_default()
    }

    fn generation(&self, _: &str, _: &str) -> Generation {
        self.generation.load(Ordering::Relaxed)
    }

    fn is_synced(&self) -> bool {
        true
    }
}

fn objects() -> Arc<Objects> {
    let objects = Objects::default();
    let reader = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]);
    objects.add(
        "clusterroles",
        json!({"metadata": {"name": "reader"}, "rules": reader}),
    );
    objects.add(
        "roles",
        json!({"metadata": {"name": "writer", "namespace": "a"},
        "rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]}]}),
    );
    objects.add("clusterrolebindings", json!({"metadata": {"name": "readers"},
        "roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [{"kind": "Group", "name": "readers"}]}));
    objects.add("rolebindings", json!({"metadata": {"name": "writers", "namespace": "a"},
        "roleRef": {"kind": "Role", "name": "writer"}, "subjects": [{"kind": "ServiceAccount", "name": "sa", "namespace": "b"}]}));
    objects.add("rolebindings", json!({"metadata": {"name": "broken", "namespace": "a"},
        "roleRef": {"kind": "Role", "name": "gone"}, "subjects": [{"kind": "User", "name": "lost"}]}));
    Arc::new(objects)
}

#[track_caller]
fn check(
    rbac: &Rbac,
    user: &UserInfo,
    method: Method,
    path: &str,
    decision: Decision,
    reason: &str,
) {
    let info = RequestInfo::parse(&method, &path.parse().expect("a uri"));
    let verdict = rbac.authorize(&Attributes::of(user, &info));
    assert_eq!(
        (verdict.decision, verdict.reason.as_ref()),
        (decision, reason)
    );
}

#[test]
fn bindings_allow_their_subjects_where_they_bind() {
    let rbac = Rbac::new(objects());
    let reader = UserInfo::new("jane", ["readers"]);
    let why = "RBAC: allowed by ClusterRoleBinding \"readers\" of ClusterRole \"reader\" to Group \"readers\"";
    check(
        &rbac,
        &reader,
        Method::GET,
        "/api/v1/namespaces/x/pods",
        Decision::Allow,
        why,
    );
    check(
        &rbac,
        &reader,
        Method::POST,
        "/api/v1/namespaces/a/pods",
        Decision::NoOpinion,
        "",
    );
    let writer = UserInfo::new("system:serviceaccount:b:sa", []);
    let why =
        "RBAC: allowed by RoleBinding \"writers/a\" of Role \"writer\" to ServiceAccount \"sa/b\"";
    check(
        &rbac,
        &writer,
        Method::POST,
        "/api/v1/namespaces/a/pods",
        Decision::Allow,
        why,
    );
    check(
        &rbac,
        &writer,
        Method::POST,
        "/api/v1/namespaces/b/pods",
        Decision::NoOpinion,
        "",
    );
}

#[test]
fn a_missing_role_is_named() {
    let rbac = Rbac::new(objects());
    let lost = UserInfo::new("lost", []);
    let why = "RBAC: role.rbac.authorization.k8s.io \"gone\" not found";
    check(
        &rbac,
        &lost,
        Method::GET,
        "/api/v1/namespaces/a/pods",
        Decision::NoOpinion,
        why,
    );
}

#[test]
fn changes_are_seen_at_once() {
    let objects = objects();
    let rbac = Rbac::new(objects.clone());
    let jane = UserInfo::new("jane", []);
    check(
        &rbac,
        &jane,
        Method::GET,
        "/api/v1/pods",
        Decision::NoOpinion,
        "",
    );
    objects.add("clusterrolebindings", json!({"metadata": {"name": "jane"},
        "roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": [{"kind": "User", "name": "jane"}]}));
    let why =
        "RBAC: allowed by ClusterRoleBinding \"jane\" of ClusterRole \"reader\" to User \"jane\"";
    check(
        &rbac,
        &jane,
        Method::GET,
        "/api/v1/pods",
        Decision::Allow,
        why,
    );
}

fn context(user: UserInfo, objects: Arc<Objects>) -> RequestContext {
    RequestContext {
        info: RequestInfo::parse(
            &Method::POST,
            &"/apis/rbac.authorization.k8s.io/v1/clusterroles"
                .parse()
                .expect("a uri"),
        ),
        user: Arc::new(user),
        impersonator: None,
        audit_id: Arc::from(""),
        received: Instant::now(),
        deadline: None,
        remote: None,
        warnings: Warnings::default(),
        authorizers: Arc::new(Authorizers::new(vec![Box::new(Rbac::new(objects))])),
        shutdown: Default::default(),
    }
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    let role = |verbs: Value| json!({"metadata": {"name": "new"}, "rules": [{"verbs": verbs, "apiGroups": [""], "resources": ["pods"]}]});
    let reader = context(UserInfo::new("jane", ["readers"]), objects());
    assert_eq!(
        check_role(&reader, "clusterroles", &role(json!(["get"])), None).await,
        Ok(())
    );
    let status = check_role(
        &reader,
        "clusterroles",
        &role(json!(["get", "delete"])),
        None,
    )
    .await
    .expect_err("refused");
    assert_eq!(
        status.message,
        "clusterroles.rbac.authorization.k8s.io \"new\" is forbidden: user \"jane\" (groups=[\"readers\" \"system:authenticated\"]) \
         is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
    let binding = |kind: &str, name: &str| json!({"metadata": {"name": "new", "namespace": "a"}, "roleRef": {"kind": kind, "name": name}});
    assert_eq!(
        check_binding(
            &reader,
            "rolebindings",
            &binding("ClusterRole", "reader"),
            None
        )
        .await,
        Ok(())
    );
    let status = check_binding(&reader, "rolebindings", &binding("Role", "writer"), None)
        .await
        .expect_err("refused");
    assert_eq!(status.code, 403);
    let status = check_binding(&reader, "rolebindings", &binding("Role", "none"), None)
        .await
        .expect_err("unknown");
    assert_eq!(status.code, 404);
    let master = context(UserInfo::new("root", [UserInfo::MASTERS]), objects());
    assert_eq!(
        check_role(&master, "clusterroles", &role(json!(["*"])), None).await,
        Ok(())
    );
}
