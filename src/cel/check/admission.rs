//! What the expressions of admission policies and of webhooks may use (`admission/plugin/cel`).

use super::{Env, Ty};

/// The variables of a policy. `object` is the type of both objects; `params` is none where a policy takes none.
pub fn policy(object: Ty, params: Option<Ty>) -> Env {
    let check = |name: &str| Ty::named(&format!("kubernetes.authorization.{name}"));
    let mut env = Env::new([
        ("object", object.clone()),
        ("oldObject", object),
        ("request", request()),
        ("namespaceObject", namespace()),
        ("authorizer", check("Authorizer")),
        ("authorizer.requestResource", check("ResourceCheck")),
    ]);
    if let Some(params) = params {
        env.set("params", params);
    }
    env
}

fn request() -> Ty {
    let texts = |name: &'static str, fields: [&'static str; 3]| {
        Ty::fields(name, fields.map(|field| (field, Ty::Text)))
    };
    let kind = || texts("kubernetes.GroupVersionKind", ["group", "version", "kind"]);
    let resource = || {
        texts(
            "kubernetes.GroupVersionResource",
            ["group", "version", "resource"],
        )
    };
    let user = Ty::fields(
        "kubernetes.UserInfo",
        [
            ("username", Ty::Text),
            ("uid", Ty::Text),
            ("groups", Ty::list(Ty::Text)),
            ("extra", Ty::texts_to(Ty::list(Ty::Text))),
        ],
    );
    Ty::fields(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind()),
            ("resource", resource()),
            ("subResource", Ty::Text),
            ("requestKind", kind()),
            ("requestResource", resource()),
            ("requestSubResource", Ty::Text),
            ("name", Ty::Text),
            ("namespace", Ty::Text),
            ("operation", Ty::Text),
            ("userInfo", user),
            ("dryRun", Ty::Bool),
            ("options", Ty::Dyn),
        ],
    )
}

fn namespace() -> Ty {
    let metadata = Ty::fields(
        "kubernetes.NamespaceMetadata",
        [
            ("name", Ty::Text),
            ("generateName", Ty::Text),
            ("namespace", Ty::Text),
            ("labels", Ty::texts_to(Ty::Text)),
            ("annotations", Ty::texts_to(Ty::Text)),
            ("UID", Ty::Text),
            ("uid", Ty::Text),
            ("creationTimestamp", Ty::Timestamp),
            ("deletionGracePeriodSeconds", Ty::Int),
            ("deletionTimestamp", Ty::Timestamp),
            ("generation", Ty::Int),
            ("resourceVersion", Ty::Text),
            ("finalizers", Ty::list(Ty::Text)),
        ],
    );
    let spec = Ty::fields(
        "kubernetes.NamespaceSpec",
        [("finalizers", Ty::list(Ty::Text))],
    );
    let status = Ty::fields("kubernetes.NamespaceStatus", [("phase", Ty::Text)]);
    Ty::fields(
        "kubernetes.Namespace",
        [("metadata", metadata), ("spec", spec), ("status", status)],
    )
}
