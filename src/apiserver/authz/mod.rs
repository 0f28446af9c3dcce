//! Who may do what: the question (`Attributes`), those who answer it (`Authorizer`), and the chain of them.
//!
//! Upstream's order: the first authorizer with an opinion decides; when none has one the answer is no.

pub mod node;
mod privileged;
pub mod rbac;

use std::borrow::Cow;
use std::sync::Arc;

use crate::backend::Backend;
use crate::options::{AuthorizationMode, Options};
use crate::request::{RequestInfo, UserInfo};
use rbac::{Rbac, Rule};

/// One question: may `user` do `verb` on this?
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub user: &'a UserInfo,
    /// A string, not `Verb`: RBAC has verbs no request has (`bind`, `escalate`, `impersonate`, `approve`, …).
    pub verb: &'a str,
    /// False for plain paths; then only `path` and `verb` count.
    pub is_resource: bool,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    /// The raw selectors of list, watch and deletecollection requests; empty when there is none.
    pub field_selector: &'a str,
    pub label_selector: &'a str,
}

impl<'a> Attributes<'a> {
    /// What `info` asks for, asked by `user`.
    pub fn of(user: &'a UserInfo, info: &'a RequestInfo) -> Self {
        Self {
            user,
            verb: info.verb.as_str(),
            is_resource: info.is_resource,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: &info.path,
            field_selector: info.query.get("fieldSelector").unwrap_or(""),
            label_selector: info.query.get("labelSelector").unwrap_or(""),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// No later authorizer is asked.
    Deny,
    NoOpinion,
}

/// A decision and why, for the message and the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    pub reason: Cow<'static, str>,
}

impl Verdict {
    pub fn allow(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            decision: Decision::Allow,
            reason: reason.into(),
        }
    }

    pub fn no_opinion(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            decision: Decision::NoOpinion,
            reason: reason.into(),
        }
    }

    pub fn is_allowed(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// Answers from memory: an authorizer never waits.
pub trait Authorizer: Send + Sync + 'static {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict;

    /// What `user` may do in `namespace`, as far as it can be listed.
    fn rules(&self, _user: &UserInfo, _namespace: &str) -> Rules {
        Rules::default()
    }

    /// The RBAC authorizer, if this is it.
    fn rbac(&self) -> Option<&Rbac> {
        None
    }
}

impl<T: Authorizer> Authorizer for Arc<T> {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        T::authorize(self, attributes)
    }

    fn rules(&self, user: &UserInfo, namespace: &str) -> Rules {
        T::rules(self, user, namespace)
    }

    fn rbac(&self) -> Option<&Rbac> {
        T::rbac(self)
    }
}

/// The rules that apply to a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub rules: Vec<Rule>,
    /// Whether there may be more.
    pub incomplete: bool,
    /// Why; empty when complete.
    pub error: String,
}

/// The configured authorizers in order.
pub struct Authorizers(Vec<Box<dyn Authorizer>>);

impl Authorizers {
    pub fn new(chain: Vec<Box<dyn Authorizer>>) -> Self {
        Self(chain)
    }

    /// The chain that `options` name.
    pub fn configured(options: &Options, backend: &Arc<dyn Backend>) -> Self {
        let mut chain: Vec<Box<dyn Authorizer>> = vec![Box::new(privileged::Masters)];
        let rbac = Arc::new(Rbac::new(backend.clone()));
        for mode in &options.authorization_modes {
            match mode {
                AuthorizationMode::AlwaysAllow => chain.push(Box::new(privileged::Everyone)),
                AuthorizationMode::Node => {
                    chain.push(Box::new(node::Node::new(backend.clone(), rbac.clone())));
                }
                AuthorizationMode::Rbac => {
                    chain.push(Box::new(rbac.clone()));
                    chain.push(Box::new(privileged::ControllerManager(rbac.clone())));
                }
            }
        }
        Self(chain)
    }

    /// Async, because a webhook may come to stand in the chain.
    pub async fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        let mut reasons: Vec<Cow<'static, str>> = Vec::new();
        for authorizer in &self.0 {
            let verdict = authorizer.authorize(attributes);
            if verdict.decision != Decision::NoOpinion {
                return verdict;
            }
            if !verdict.reason.is_empty() {
                reasons.push(verdict.reason);
            }
        }
        Verdict::no_opinion(reasons.join(", "))
    }

    /// All rules that the authorizers can list.
    pub fn rules(&self, user: &UserInfo, namespace: &str) -> Rules {
        let mut all = Rules::default();
        let mut errors = Vec::new();
        for authorizer in &self.0 {
            let Rules {
                rules,
                incomplete,
                error,
            } = authorizer.rules(user, namespace);
            all.rules.extend(rules);
            all.incomplete |= incomplete;
            if !error.is_empty() {
                errors.push(error);
            }
        }
        all.error = match errors.len() {
            0 | 1 => errors.concat(),
            _ => format!("[{}]", errors.join(", ")),
        };
        all
    }

    /// The RBAC authorizer, when it is configured.
    pub fn rbac(&self) -> Option<&Rbac> {
        self.0.iter().find_map(|authorizer| authorizer.rbac())
    }
}
