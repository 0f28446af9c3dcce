//! Flow schemas and priority levels as data: which schema a request falls under, and what each level may run at once
//! (KEP-1040). Pure; `Flow` reads them from the caches.

use apimachinery::{Value, meta};
use http::HeaderValue;

use crate::kinds::tree::{at, items, text};
use crate::request::{RequestInfo, UserInfo};

/// Everything in force at a time.
#[derive(Debug, Default)]
pub struct Config {
    /// By matching precedence, then name.
    pub schemas: Vec<Schema>,
    pub levels: Vec<Level>,
}

/// A FlowSchema.
#[derive(Debug)]
pub struct Schema {
    pub name: String,
    /// None for those that stand in until the stored ones are read.
    pub uid: Option<HeaderValue>,
    precedence: i64,
    /// Index of its priority level.
    pub level: usize,
    distinguisher: Distinguisher,
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distinguisher {
    None,
    User,
    Namespace,
}

#[derive(Debug)]
struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Debug)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount(String, String),
}

#[derive(Debug)]
struct ResourceRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    cluster_scope: bool,
    namespaces: Vec<String>,
}

#[derive(Debug)]
struct PathRule {
    verbs: Vec<String>,
    paths: Vec<String>,
}

/// A PriorityLevelConfiguration.
#[derive(Clone, Debug)]
pub struct Level {
    pub name: String,
    pub uid: Option<HeaderValue>,
    pub kind: LevelKind,
    /// Part of the server's seats, relative to the other levels' parts.
    pub shares: i64,
    /// Hundredths of its seats that other levels may use while it does not.
    pub lendable_percent: i64,
    /// Hundredths of its seats that it may use of others'; none: as many as there are.
    pub borrowing_percent: Option<i64>,
}

/// What a level does with requests past its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Has no limit.
    Exempt,
    Reject,
    Queue {
        queues: usize,
        /// Queues among which a flow's requests choose.
        hand: usize,
        /// Requests that may wait in one queue.
        length: usize,
    },
}

/// Most queues of a level and most requests waiting in one, whatever its configuration says: upstream's bound is ten
/// million queues, which would be memory for nothing.
const MAX_QUEUES: usize = 1024;
const MAX_LENGTH: usize = 10_000;

const EXEMPT: &str = "exempt";
const CATCH_ALL: &str = "catch-all";

impl Config {
    /// Of the stored objects; the mandatory ones stand in where they are missing, so that every request has a schema.
    pub fn of<'a>(
        schemas: impl Iterator<Item = &'a Value>,
        levels: impl Iterator<Item = &'a Value>,
    ) -> Self {
        let mut levels: Vec<Level> = levels.filter_map(Level::of).collect();
        for (name, kind) in [(EXEMPT, LevelKind::Exempt), (CATCH_ALL, LevelKind::Reject)] {
            if !levels.iter().any(|level| level.name == name) {
                levels.push(Level::mandatory(name, kind));
            }
        }
        levels.sort_by(|a, b| a.name.cmp(&b.name));
        let mut schemas: Vec<Schema> = schemas
            .filter_map(|object| Schema::of(object, &levels))
            .collect();
        let everyone = ["system:authenticated", "system:unauthenticated"];
        let mandatory = [
            (EXEMPT, 1, &[UserInfo::MASTERS][..]),
            (CATCH_ALL, 10_000, &everyone[..]),
        ];
        for (name, precedence, groups) in mandatory {
            if !schemas.iter().any(|schema| schema.name == name) {
                schemas.extend(Schema::mandatory(name, precedence, groups, &levels));
            }
        }
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        Self { schemas, levels }
    }

    /// The schema a request falls under, and what tells its flow from others of the schema.
    pub fn classify<'r>(
        &self,
        user: &'r UserInfo,
        info: &'r RequestInfo,
    ) -> Option<(usize, &'r str)> {
        let at = self
            .schemas
            .iter()
            .position(|schema| schema.rules.iter().any(|rule| rule.matches(user, info)))?;
        let flow = match self.schemas.get(at)?.distinguisher {
            Distinguisher::None => "",
            Distinguisher::User => &user.name,
            Distinguisher::Namespace => &info.namespace,
        };
        Some((at, flow))
    }

    /// What each level gets of the server's seats: as many as its shares say, rounded up.
    pub fn nominal(&self, total: usize) -> Vec<usize> {
        let all: i64 = self.levels.iter().map(|level| level.shares).sum();
        let part = |level: &Level| {
            let seats = (total as f64) * level.shares as f64 / all.max(1) as f64;
            seats.ceil() as usize
        };
        self.levels.iter().map(part).collect()
    }
}

fn number(object: &Value, path: &[&str]) -> Option<i64> {
    at(object, path).as_i64()
}

fn texts(object: &Value, name: &str) -> Vec<String> {
    let list = items(object, &[name]).iter();
    list.filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn header(object: &Value) -> Option<HeaderValue> {
    HeaderValue::from_str(meta::uid(object)).ok()
}

impl Level {
    fn of(object: &Value) -> Option<Self> {
        let spec = at(object, &["spec"]);
        let (part, kind) = match text(spec, &["type"]) {
            "Exempt" => ("exempt", LevelKind::Exempt),
            "Limited" => ("limited", limited(at(spec, &["limited", "limitResponse"]))),
            _ => return None,
        };
        let default = i64::from(kind != LevelKind::Exempt) * 30;
        Some(Self {
            name: meta::name(object).to_owned(),
            uid: header(object),
            kind,
            shares: number(spec, &[part, "nominalConcurrencyShares"])
                .unwrap_or(default)
                .max(0),
            lendable_percent: number(spec, &[part, "lendablePercent"])
                .unwrap_or(0)
                .clamp(0, 100),
            borrowing_percent: number(spec, &[part, "borrowingLimitPercent"]),
        })
    }

    fn mandatory(name: &str, kind: LevelKind) -> Self {
        Self {
            name: name.to_owned(),
            uid: None,
            kind,
            shares: i64::from(kind != LevelKind::Exempt) * 5,
            lendable_percent: 0,
            borrowing_percent: None,
        }
    }
}

fn limited(response: &Value) -> LevelKind {
    if text(response, &["type"]) != "Queue" {
        return LevelKind::Reject;
    }
    let read = |name: &str, default: usize, most: usize| {
        let set = number(response, &["queuing", name]);
        set.and_then(|number| usize::try_from(number).ok())
            .unwrap_or(default)
            .clamp(1, most)
    };
    let queues = read("queues", 64, MAX_QUEUES);
    LevelKind::Queue {
        queues,
        hand: read("handSize", 8, queues),
        length: read("queueLengthLimit", 50, MAX_LENGTH),
    }
}

impl Schema {
    /// None for a schema whose level is not there: it matches nothing.
    fn of(object: &Value, levels: &[Level]) -> Option<Self> {
        let spec = at(object, &["spec"]);
        let wanted = text(spec, &["priorityLevelConfiguration", "name"]);
        Some(Self {
            name: meta::name(object).to_owned(),
            uid: header(object),
            precedence: number(spec, &["matchingPrecedence"]).unwrap_or(1000),
            level: levels.iter().position(|level| level.name == wanted)?,
            distinguisher: match text(spec, &["distinguisherMethod", "type"]) {
                "ByUser" => Distinguisher::User,
                "ByNamespace" => Distinguisher::Namespace,
                _ => Distinguisher::None,
            },
            rules: items(spec, &["rules"]).iter().map(Rule::of).collect(),
        })
    }

    fn mandatory(name: &str, precedence: i64, groups: &[&str], levels: &[Level]) -> Option<Self> {
        let all = || vec!["*".to_owned()];
        Some(Self {
            name: name.to_owned(),
            uid: None,
            precedence,
            level: levels.iter().position(|level| level.name == name)?,
            distinguisher: Distinguisher::User,
            rules: vec![Rule {
                subjects: groups
                    .iter()
                    .map(|group| Subject::Group((*group).to_owned()))
                    .collect(),
                resources: vec![ResourceRule {
                    verbs: all(),
                    groups: all(),
                    resources: all(),
                    cluster_scope: true,
                    namespaces: all(),
                }],
                paths: vec![PathRule {
                    verbs: all(),
                    paths: all(),
                }],
            }],
        })
    }
}

impl Rule {
    fn of(rule: &Value) -> Self {
        let subjects = items(rule, &["subjects"]).iter().filter_map(Subject::of);
        Self {
            subjects: subjects.collect(),
            resources: items(rule, &["resourceRules"])
                .iter()
                .map(|rule| ResourceRule {
                    verbs: texts(rule, "verbs"),
                    groups: texts(rule, "apiGroups"),
                    resources: texts(rule, "resources"),
                    cluster_scope: at(rule, &["clusterScope"]).as_bool().unwrap_or(false),
                    namespaces: texts(rule, "namespaces"),
                })
                .collect(),
            paths: items(rule, &["nonResourceRules"])
                .iter()
                .map(|rule| PathRule {
                    verbs: texts(rule, "verbs"),
                    paths: texts(rule, "nonResourceURLs"),
                })
                .collect(),
        }
    }

    fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        if !self.subjects.iter().any(|subject| subject.matches(user)) {
            return false;
        }
        if info.is_resource {
            self.resources.iter().any(|rule| rule.matches(info))
        } else {
            self.paths.iter().any(|rule| rule.matches(info))
        }
    }
}

impl Subject {
    fn of(subject: &Value) -> Option<Self> {
        let named = |part: &str| text(subject, &[part, "name"]).to_owned();
        match text(subject, &["kind"]) {
            "User" => Some(Self::User(named("user"))),
            "Group" => Some(Self::Group(named("group"))),
            "ServiceAccount" => Some(Self::ServiceAccount(
                text(subject, &["serviceAccount", "namespace"]).to_owned(),
                named("serviceAccount"),
            )),
            _ => None,
        }
    }

    fn matches(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) => name == "*" || *name == user.name,
            Self::Group(name) => name == "*" || user.is_in(name),
            Self::ServiceAccount(namespace, name) => user
                .service_account()
                .is_some_and(|(own, account)| own == namespace && (name == "*" || account == name)),
        }
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl ResourceRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        has(&self.verbs, info.verb.as_str())
            && has(&self.groups, &info.group)
            && self.has_resource(info)
            && match info.namespace.as_str() {
                "" => self.cluster_scope,
                namespace => has(&self.namespaces, namespace),
            }
    }

    fn has_resource(&self, info: &RequestInfo) -> bool {
        self.resources.iter().any(|item| {
            item == "*"
                || match info.subresource.as_str() {
                    "" => *item == info.resource,
                    subresource => item
                        .strip_prefix(&info.resource)
                        .and_then(|rest| rest.strip_prefix('/'))
                        .is_some_and(|rest| rest == subresource),
                }
        })
    }
}

impl PathRule {
    fn matches(&self, info: &RequestInfo) -> bool {
        has(&self.verbs, info.verb.as_str())
            && self.paths.iter().any(|path| match path.strip_suffix('*') {
                Some(prefix) => info.path.starts_with(prefix),
                None => *path == info.path,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    const RECORDED: &str = include_str!("../../generated/boot.jsonl");

    fn recorded() -> Config {
        let mut all: Vec<(String, Value)> = Vec::new();
        for line in RECORDED.lines() {
            let (_, plural, _, object): (String, String, String, Value) =
                serde_json::from_str(line).expect("a line");
            all.push((plural, object));
        }
        let of = |wanted: &'static str| {
            all.iter()
                .filter(move |(plural, _)| plural == wanted)
                .map(|(_, object)| object)
        };
        Config::of(of("flowschemas"), of("prioritylevelconfigurations"))
    }

    #[track_caller]
    fn check(user: &UserInfo, method: Method, path: &str, schema: &str, level: &str, flow: &str) {
        let config = recorded();
        let info = RequestInfo::parse(&method, &path.parse().expect("a path"));
        let (at, got) = config.classify(user, &info).expect("a schema");
        let found = &config.schemas[at];
        let names = (
            found.name.as_str(),
            config.levels[found.level].name.as_str(),
        );
        assert_eq!((names, got), ((schema, level), flow));
    }

    #[test]
    fn requests_fall_under_upstreams_schemas() {
        let user = |name: &str, group: &str| {
            let groups = ["system:authenticated", group];
            UserInfo::new(name, groups)
        };
        let (get, put) = (Method::GET, Method::PUT);
        let pods = "/api/v1/namespaces/a/pods";
        let admin = user("admin", UserInfo::MASTERS);
        check(&admin, get.clone(), pods, "exempt", "exempt", "");
        let anybody = user("jane", "devs");
        check(
            &anybody,
            get.clone(),
            pods,
            "global-default",
            "global-default",
            "jane",
        );
        check(&anybody, get.clone(), "/readyz", "probes", "exempt", "");
        let node = user("system:node:n", "system:nodes");
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        check(
            &node,
            put.clone(),
            lease,
            "system-node-high",
            "node-high",
            "system:node:n",
        );
        check(
            &node,
            put.clone(),
            "/api/v1/nodes/n/status",
            "system-node-high",
            "node-high",
            "system:node:n",
        );
        check(
            &node,
            get.clone(),
            pods,
            "system-nodes",
            "system",
            "system:node:n",
        );
        let scheduler = user("system:kube-scheduler", "x");
        let lock = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler";
        check(
            &scheduler,
            put,
            lock,
            "system-leader-election",
            "leader-election",
            "system:kube-scheduler",
        );
        check(
            &scheduler,
            get.clone(),
            pods,
            "kube-scheduler",
            "workload-high",
            "a",
        );
        let account = user(
            "system:serviceaccount:kube-system:x",
            "system:serviceaccounts",
        );
        check(
            &account,
            get.clone(),
            pods,
            "kube-system-service-accounts",
            "workload-high",
            "a",
        );
        let account = user("system:serviceaccount:a:x", "system:serviceaccounts");
        check(
            &account,
            get,
            pods,
            "service-accounts",
            "workload-low",
            "system:serviceaccount:a:x",
        );
    }

    #[test]
    fn seats_are_given_by_shares_rounded_up() {
        let config = recorded();
        let nominal = config.nominal(600);
        let of = |name: &str| {
            let at = config.levels.iter().position(|level| level.name == name);
            nominal[at.expect("a level")]
        };
        assert_eq!(
            ["catch-all", "workload-low", "workload-high", "exempt"].map(of),
            [13, 245, 98, 0]
        );
    }

    #[test]
    fn without_stored_objects_the_mandatory_ones_stand_in() {
        let config = Config::of([].into_iter(), [].into_iter());
        let names: Vec<_> = config.schemas.iter().map(|schema| &schema.name).collect();
        assert_eq!(names, ["exempt", "catch-all"]);
        assert_eq!(config.nominal(600), [600, 0]);
    }

    #[test]
    fn a_schema_without_its_level_matches_nothing() {
        let schema = serde_json::json!({"metadata": {"name": "s"}, "spec": {"matchingPrecedence": 1,
            "priorityLevelConfiguration": {"name": "gone"}, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "*"}}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}});
        let config = Config::of([&schema].into_iter(), [].into_iter());
        assert!(config.schemas.iter().all(|schema| schema.name != "s"));
    }
}
