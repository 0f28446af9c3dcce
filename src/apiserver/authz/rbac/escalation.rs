//! Nobody gives more than they have: checks before a role or a binding is written (upstream's `policybased` storage).

use apimachinery::status::Status;
use apimachinery::{Value, meta};

use super::rule::uncovered;
use super::{GROUP, Rule};
use crate::authz::Attributes;
use crate::request::{RequestContext, UserInfo};

/// Before a Role or ClusterRole (`plural`) is written: the user has all its rules already, or may `escalate`. Who makes
/// or changes an aggregation rule must have every right.
///
/// # Errors
/// 403 that names the rules the user lacks.
pub async fn check_role(
    context: &RequestContext,
    plural: &str,
    role: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    let namespace = meta::namespace(role);
    let name = meta::name(role);
    if old.is_some_and(|old| changes_nothing(role, old))
        || is_exempt(context, "escalate", plural, namespace, name).await
    {
        return Ok(());
    }
    let refuse = |why: &str| Status::forbidden(GROUP, plural, name, why);
    let aggregation = &role["aggregationRule"];
    let kept = old.is_some_and(|old| old["aggregationRule"] == *aggregation);
    if !aggregation.is_null() && !kept && check_rules(context, "", &everything()).is_err() {
        return Err(refuse(
            "must have cluster-admin privileges to use an aggregationRule",
        ));
    }
    let rules = Rule::read_all(&role["rules"]);
    check_rules(context, namespace, &rules).map_err(|why| refuse(&why))
}

/// Whether only what garbage collection needs has changed (upstream's `IsOnlyMutatingGCFields`).
fn changes_nothing(new: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            let fields = [
                "ownerReferences",
                "finalizers",
                "managedFields",
                "resourceVersion",
            ];
            metadata.retain(|field, _| !fields.contains(&field.as_str()));
        }
        object
    };
    rest(new) == rest(old)
}

fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    let resources = Rule {
        verbs: all(),
        api_groups: all(),
        resources: all(),
        ..Rule::default()
    };
    let paths = Rule {
        verbs: all(),
        non_resource_urls: all(),
        ..Rule::default()
    };
    [resources, paths]
}

/// Before a RoleBinding or ClusterRoleBinding (`plural`) is written: the user has all rules of the role it names, or
/// may `bind` it.
///
/// # Errors
/// 403 that names the rules the user lacks; 404 for a role that does not exist.
pub async fn check_binding(
    context: &RequestContext,
    plural: &str,
    binding: &Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    if old.is_some_and(|old| changes_nothing(binding, old)) {
        return Ok(());
    }
    let namespace = meta::namespace(binding);
    let reference = &binding["roleRef"];
    let role = reference["name"].as_str().unwrap_or_default();
    let cluster_role = reference["kind"].as_str() == Some("ClusterRole");
    let roles = if cluster_role {
        "clusterroles"
    } else {
        "roles"
    };
    if is_exempt(context, "bind", roles, namespace, role).await {
        return Ok(());
    }
    let Some(rbac) = context.authorizers.rbac() else {
        return Ok(());
    };
    let policy = rbac.policy();
    let Some(rules) = policy.rules_of(cluster_role, namespace, role) else {
        return Err(Status::not_found(GROUP, roles, role));
    };
    let name = meta::name(binding);
    check_rules(context, namespace, rules)
        .map_err(|why| Status::forbidden(GROUP, plural, name, &why))
}

async fn is_exempt(
    context: &RequestContext,
    verb: &str,
    plural: &str,
    namespace: &str,
    name: &str,
) -> bool {
    let user = context.user.as_ref();
    if user.is_in(UserInfo::MASTERS) {
        return true;
    }
    let attributes = Attributes {
        user,
        verb,
        is_resource: true,
        group: GROUP,
        version: "v1",
        resource: plural,
        subresource: "",
        namespace,
        name,
        path: "",
        field_selector: "",
        label_selector: "",
    };
    context
        .authorizers
        .authorize(&attributes)
        .await
        .is_allowed()
}

fn check_rules(context: &RequestContext, namespace: &str, wanted: &[Rule]) -> Result<(), String> {
    let Some(rbac) = context.authorizers.rbac() else {
        return Ok(());
    };
    let user = context.user.as_ref();
    let (owned, missing) = rbac.rules_for(user, namespace);
    let lacking = uncovered(&owned, wanted);
    if lacking.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = user
        .groups
        .iter()
        .map(|group| format!("{group:?}"))
        .collect();
    let lines: Vec<String> = lacking.iter().map(Rule::to_string).collect();
    let mut why = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        lines.join("\n")
    );
    if !missing.is_empty() {
        why.push_str(&format!("; resolution errors: [{}]", missing.join(", ")));
    }
    Err(why)
}
