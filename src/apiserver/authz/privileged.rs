//! Those who may do more than RBAC's bindings say.

use std::sync::Arc;

use super::rbac::Rbac;
use super::{Attributes, Authorizer, Verdict};
use crate::request::UserInfo;

/// Members of `system:masters` (upstream's `PrivilegedGroups`).
pub struct Masters;

impl Authorizer for Masters {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        if attributes.user.is_in(UserInfo::MASTERS) {
            return Verdict::allow("");
        }
        Verdict::no_opinion("")
    }
}

/// `--authorization-mode=AlwaysAllow`.
pub struct Everyone;

impl Authorizer for Everyone {
    fn authorize(&self, _attributes: &Attributes<'_>) -> Verdict {
        Verdict::allow("")
    }
}

const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
const CONTROLLER_ROLES: &str = "system:controller:";

/// The controller manager may do what any of its controllers may.
///
/// Upstream's runs each controller as a service account of its own, whose tokens it makes for itself: the sum of their
/// rights is its own in the end. A controller manager that uses its own certificate for all of them is served too.
pub struct ControllerManager(pub Arc<Rbac>);

impl Authorizer for ControllerManager {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        if attributes.user.name != CONTROLLER_MANAGER {
            return Verdict::no_opinion("");
        }
        let policy = self.0.policy();
        let allowed = policy
            .cluster_roles
            .with_prefix(CONTROLLER_ROLES)
            .flatten()
            .any(|rule| rule.allows(attributes));
        if allowed {
            return Verdict::allow("one of its controllers may");
        }
        Verdict::no_opinion("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::rbac::tests::Objects;
    use crate::request::RequestInfo;
    use serde_json::json;

    #[test]
    fn the_controller_manager_may_what_its_controllers_may() {
        let objects = Objects::default();
        objects.add(
            "clusterroles",
            json!({"metadata": {"name": "system:controller:job-controller"},
                "rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]}]}),
        );
        let authorizer = ControllerManager(Arc::new(Rbac::new(Arc::new(objects))));
        let allowed = |name: &str, method: http::Method| {
            let uri = "/api/v1/namespaces/a/pods".parse().expect("a uri");
            let info = RequestInfo::parse(&method, &uri);
            let user = UserInfo::new(name, []);
            authorizer
                .authorize(&Attributes::of(&user, &info))
                .is_allowed()
        };
        assert!(allowed(CONTROLLER_MANAGER, http::Method::POST));
        assert!(!allowed(CONTROLLER_MANAGER, http::Method::DELETE));
        assert!(!allowed("jane", http::Method::POST));
    }
}
