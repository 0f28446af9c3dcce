//! RBAC: what the roles bound to a user allow. Reads roles and bindings out of the registry's caches and compiles them
//! anew when they change.
//!
//! ```text
//! registry caches ─ generation moved? ─► Policy (compiled) ─ visit(user, namespace) ─► Verdict, rules, escalation checks
//! ```

mod escalation;
mod policy;
mod rule;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::{Attributes, Authorizer, Rules, Verdict};
use crate::backend::{Backend, Generation};
use crate::request::UserInfo;

pub use escalation::{check_binding, check_role};
pub use policy::{Policy, Visit};
pub use rule::Rule;

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

const CLUSTER_ROLES: &str = "clusterroles";
const ROLES: &str = "roles";
const CLUSTER_BINDINGS: &str = "clusterrolebindings";
const BINDINGS: &str = "rolebindings";

/// A compilation that took longer than this is not repeated at once.
const QUICK: Duration = Duration::from_millis(5);

/// How many times its own cost a slow compilation waits: it then takes a tenth of one core at most.
const REST: u32 = 10;

/// The RBAC authorizer.
pub struct Rbac {
    backend: Arc<dyn Backend>,
    compiled: RwLock<(Generations, Policy)>,
    /// Held while compiling. When the last compilation ended and what it took.
    compiling: Mutex<(Instant, Duration)>,
}

type Generations = [Generation; 4];

/// No cache has this generation.
const NEVER: Generations = [Generation::MAX; 4];

impl Rbac {
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            compiled: RwLock::new((NEVER, Policy::default())),
            compiling: Mutex::new((Instant::now(), Duration::ZERO)),
        }
    }

    /// The policy as the caches have it now.
    pub fn policy(&self) -> Policy {
        let current = self.generations();
        {
            let compiled = self.compiled.read();
            if compiled.0 == current {
                return compiled.1.clone();
            }
        }
        self.compile()
    }

    fn generations(&self) -> Generations {
        [CLUSTER_ROLES, ROLES, CLUSTER_BINDINGS, BINDINGS]
            .map(|plural| self.backend.generation(GROUP, plural))
    }

    fn compile(&self) -> Policy {
        let mut last = self.compiling.lock();
        // Read before the lists: a change in between makes the next call compile again.
        let current = self.generations();
        let (known, mut policy) = self.compiled.read().clone();
        let (ended, took) = *last;
        let resting = took > QUICK && ended.elapsed() < took * REST;
        if known == current || (resting && known != NEVER) {
            return policy;
        }
        let started = Instant::now();
        let list = |plural: &str| self.backend.cached_list(GROUP, plural);
        if known[0] != current[0] {
            policy.cluster_roles = Arc::new(policy::Roles::compile(&list(CLUSTER_ROLES)));
        }
        if known[1] != current[1] {
            policy.roles = Arc::new(policy::Roles::compile(&list(ROLES)));
        }
        if known[2] != current[2] {
            policy.cluster_bindings = Arc::new(policy::Bindings::compile(&list(CLUSTER_BINDINGS)));
        }
        if known[3] != current[3] {
            policy.bindings = Arc::new(policy::Bindings::compile(&list(BINDINGS)));
        }
        *self.compiled.write() = (current, policy.clone());
        *last = (Instant::now(), started.elapsed());
        policy
    }

    /// Every rule that applies to `user` in `namespace`, and what could not be found.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let mut rules = Vec::new();
        let mut missing = Vec::new();
        self.policy().visit(user, namespace, |visit| {
            match visit {
                Visit::Rule(rule, _, _) => rules.push(rule.clone()),
                Visit::Missing(role) => missing.push(role),
            }
            true
        });
        (rules, missing)
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        let mut allowed = None;
        let mut missing = Vec::new();
        let policy = self.policy();
        policy.visit(
            attributes.user,
            attributes.namespace,
            |visit| match &visit {
                Visit::Rule(rule, _, _) if rule.allows(attributes) => {
                    allowed = Some(visit.source());
                    false
                }
                Visit::Rule(..) => true,
                Visit::Missing(role) => {
                    missing.push(role.clone());
                    true
                }
            },
        );
        match allowed {
            Some(source) => Verdict::allow(format!("RBAC: allowed by {source}")),
            None => Verdict::no_opinion(aggregate(&missing)),
        }
    }

    fn rules(&self, user: &UserInfo, namespace: &str) -> Rules {
        let (rules, missing) = self.rules_for(user, namespace);
        Rules {
            rules,
            incomplete: !missing.is_empty(),
            error: aggregate(&missing).trim_start_matches("RBAC: ").to_owned(),
        }
    }

    fn rbac(&self) -> Option<&Rbac> {
        Some(self)
    }
}

/// `RBAC: a`, or `RBAC: [a, b]`.
fn aggregate(errors: &[String]) -> String {
    match errors {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    }
}

#[cfg(test)]
pub(super) mod tests;
