//! Roles and bindings compiled for quick answers: bindings are found by the user's name and groups.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::{Value, meta};

use super::rule::Rule;
use crate::request::UserInfo;

type Rules = Arc<[Rule]>;

/// All roles of one kind: by namespace (`""` for ClusterRoles) and name.
#[derive(Default)]
pub struct Roles(HashMap<String, HashMap<String, Rules>>);

impl Roles {
    pub fn compile(objects: &[Arc<Value>]) -> Self {
        let mut all: HashMap<String, HashMap<String, Rules>> = HashMap::new();
        for object in objects {
            let rules: Rules = Rule::read_all(&object["rules"]).into();
            all.entry(meta::namespace(object).to_owned())
                .or_default()
                .insert(meta::name(object).to_owned(), rules);
        }
        Self(all)
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&[Rule]> {
        self.0.get(namespace)?.get(name).map(AsRef::as_ref)
    }

    /// The rules of each ClusterRole whose name begins so.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a [Rule]> {
        self.0
            .get("")
            .into_iter()
            .flatten()
            .filter(move |(name, _)| name.starts_with(prefix))
            .map(|(_, rules)| rules.as_ref())
    }
}

/// Who a binding binds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

impl Subject {
    /// Subjects without a namespace are taken from the binding's, as upstream does for service accounts.
    fn read(value: &Value, binding_namespace: &str) -> Option<Self> {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        match value["kind"].as_str()? {
            "User" => Some(Self::User(text("name"))),
            "Group" => Some(Self::Group(text("name"))),
            "ServiceAccount" => {
                let namespace = match value["namespace"].as_str() {
                    Some(namespace) if !namespace.is_empty() => namespace,
                    _ => binding_namespace,
                };
                Some(Self::ServiceAccount {
                    namespace: namespace.to_owned(),
                    name: text("name"),
                })
            }
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::User(name) => format!("User {name:?}"),
            Self::Group(name) => format!("Group {name:?}"),
            Self::ServiceAccount { namespace, name } => {
                format!("ServiceAccount {:?}", format!("{name}/{namespace}"))
            }
        }
    }
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Debug)]
pub struct Binding {
    name: String,
    namespace: String,
    /// Whether it refers to a ClusterRole.
    cluster_role: bool,
    role: String,
    subjects: Vec<Subject>,
}

impl Binding {
    fn read(object: &Value) -> Self {
        let namespace = meta::namespace(object);
        Self {
            name: meta::name(object).to_owned(),
            namespace: namespace.to_owned(),
            cluster_role: object["roleRef"]["kind"].as_str() == Some("ClusterRole"),
            role: object["roleRef"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            subjects: object["subjects"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|subject| Subject::read(subject, namespace))
                .collect(),
        }
    }

    /// `ClusterRoleBinding "x" of ClusterRole "y" to Group "z"`.
    fn describe(&self, subject: usize) -> String {
        let kind = if self.cluster_role {
            "ClusterRole"
        } else {
            "Role"
        };
        let to = self
            .subjects
            .get(subject)
            .map(Subject::describe)
            .unwrap_or_default();
        if self.namespace.is_empty() {
            format!(
                "ClusterRoleBinding {:?} of {kind} {:?} to {to}",
                self.name, self.role
            )
        } else {
            let name = format!("{}/{}", self.name, self.namespace);
            format!("RoleBinding {name:?} of {kind} {:?} to {to}", self.role)
        }
    }
}

/// The bindings of one namespace, or of the cluster.
#[derive(Default)]
struct Scope {
    bindings: Vec<Binding>,
    /// Positions of bindings and subjects, by user name.
    by_user: HashMap<String, Vec<(usize, usize)>>,
    by_group: HashMap<String, Vec<(usize, usize)>>,
}

impl Scope {
    fn add(&mut self, binding: Binding) {
        let at = self.bindings.len();
        for (position, subject) in binding.subjects.iter().enumerate() {
            let (index, key) = match subject {
                Subject::User(name) => (&mut self.by_user, name.clone()),
                Subject::Group(name) => (&mut self.by_group, name.clone()),
                Subject::ServiceAccount { namespace, name } => (
                    &mut self.by_user,
                    format!("system:serviceaccount:{namespace}:{name}"),
                ),
            };
            index.entry(key).or_default().push((at, position));
        }
        self.bindings.push(binding);
    }

    fn of<'a>(&'a self, user: &'a UserInfo) -> impl Iterator<Item = (&'a Binding, usize)> {
        let by_name = self.by_user.get(&user.name).into_iter().flatten();
        let by_group = user
            .groups
            .iter()
            .flat_map(|group| self.by_group.get(group).into_iter().flatten());
        by_name
            .chain(by_group)
            .map(|(at, subject)| (&self.bindings[*at], *subject))
    }
}

/// All bindings of one kind, by namespace (`""` for ClusterRoleBindings).
#[derive(Default)]
pub struct Bindings(HashMap<String, Scope>);

impl Bindings {
    pub fn compile(objects: &[Arc<Value>]) -> Self {
        let mut all: HashMap<String, Scope> = HashMap::new();
        for object in objects {
            let binding = Binding::read(object);
            all.entry(binding.namespace.clone())
                .or_default()
                .add(binding);
        }
        Self(all)
    }
}

/// Everything RBAC decides by.
#[derive(Clone, Default)]
pub struct Policy {
    pub cluster_roles: Arc<Roles>,
    pub roles: Arc<Roles>,
    pub cluster_bindings: Arc<Bindings>,
    pub bindings: Arc<Bindings>,
}

/// What a visitor sees: a rule that applies to the user, or a role that a binding names and nobody made.
pub enum Visit<'a> {
    Rule(&'a Rule, &'a Binding, usize),
    Missing(String),
}

impl Visit<'_> {
    /// Where the rule comes from, for the verdict's reason.
    pub fn source(&self) -> String {
        match self {
            Self::Rule(_, binding, subject) => binding.describe(*subject),
            Self::Missing(role) => role.clone(),
        }
    }
}

impl Policy {
    /// Shows every rule that applies to `user` in `namespace` until `visitor` returns false. Rules of the cluster come
    /// first, as upstream's `VisitRulesFor`.
    pub fn visit(
        &self,
        user: &UserInfo,
        namespace: &str,
        mut visitor: impl FnMut(Visit<'_>) -> bool,
    ) {
        let mut scopes: Vec<&Scope> = self.cluster_bindings.0.get("").into_iter().collect();
        if !namespace.is_empty() {
            scopes.extend(self.bindings.0.get(namespace));
        }
        for (binding, subject) in scopes.into_iter().flat_map(|scope| scope.of(user)) {
            let Some(rules) =
                self.rules_of(binding.cluster_role, &binding.namespace, &binding.role)
            else {
                let kind = if binding.cluster_role {
                    "clusterrole"
                } else {
                    "role"
                };
                let missing = format!(
                    "{kind}.rbac.authorization.k8s.io {:?} not found",
                    binding.role
                );
                if !visitor(Visit::Missing(missing)) {
                    return;
                }
                continue;
            };
            for rule in rules {
                if !visitor(Visit::Rule(rule, binding, subject)) {
                    return;
                }
            }
        }
    }

    /// The rules of a ClusterRole, or of a Role in `namespace`.
    pub fn rules_of(&self, cluster_role: bool, namespace: &str, name: &str) -> Option<&[Rule]> {
        if cluster_role {
            self.cluster_roles.get("", name)
        } else {
            self.roles.get(namespace, name)
        }
    }
}
