//! One policy rule: what it allows, what it covers, and how a refusal prints it.

use std::fmt;

use apimachinery::Value;

use crate::authz::Attributes;

/// `rbac.authorization.k8s.io/v1 PolicyRule`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
    pub non_resource_urls: Vec<String>,
}

const ALL: &str = "*";

impl Rule {
    /// Reads the wire form; what is malformed is left out (validation refused it before).
    pub fn read(value: &Value) -> Self {
        let list = |field: &str| -> Vec<String> {
            value[field]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect()
        };
        Self {
            verbs: list("verbs"),
            api_groups: list("apiGroups"),
            resources: list("resources"),
            resource_names: list("resourceNames"),
            non_resource_urls: list("nonResourceURLs"),
        }
    }

    /// The rules of a role.
    pub fn read_all(rules: &Value) -> Vec<Self> {
        rules
            .as_array()
            .into_iter()
            .flatten()
            .map(Self::read)
            .collect()
    }

    /// Upstream's `RuleAllows`.
    pub fn allows(&self, attributes: &Attributes<'_>) -> bool {
        if !has(&self.verbs, attributes.verb) {
            return false;
        }
        if !attributes.is_resource {
            return self.allows_path(attributes.path);
        }
        has(&self.api_groups, attributes.group)
            && self.allows_resource(attributes.resource, attributes.subresource)
            && self.allows_name(attributes.name)
    }

    fn allows_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|url| {
            url == ALL
                || url == path
                || url
                    .strip_suffix('*')
                    .is_some_and(|prefix| path.starts_with(prefix))
        })
    }

    fn allows_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| {
            if rule == ALL {
                return true;
            }
            match rule.split_once('/') {
                None => subresource.is_empty() && rule == resource,
                Some((of, sub)) => {
                    !subresource.is_empty() && sub == subresource && (of == ALL || of == resource)
                }
            }
        })
    }

    fn allows_name(&self, name: &str) -> bool {
        self.resource_names.is_empty() || self.resource_names.iter().any(|allowed| allowed == name)
    }

    /// Whether everything `part` allows is allowed by this rule alone. `part` comes from `parts`.
    fn covers(&self, part: &Self) -> bool {
        let all_in = |have: &[String], want: &[String]| want.iter().all(|item| has(have, item));
        let names = self.resource_names.is_empty()
            || (!part.resource_names.is_empty()
                && part
                    .resource_names
                    .iter()
                    .all(|name| self.resource_names.contains(name)));
        let resources = part.resources.iter().all(|wanted| {
            let (resource, subresource) = wanted.split_once('/').unwrap_or((wanted, ""));
            self.resources.iter().any(|rule| rule == wanted)
                || self.allows_resource(resource, subresource)
        });
        let paths = part.non_resource_urls.iter().all(|wanted| {
            self.non_resource_urls.iter().any(|rule| {
                rule == wanted
                    || rule == ALL
                    || rule
                        .strip_suffix('*')
                        .is_some_and(|prefix| wanted.starts_with(prefix))
            })
        });
        all_in(&self.verbs, &part.verbs)
            && all_in(&self.api_groups, &part.api_groups)
            && resources
            && names
            && paths
    }

    /// The rule as many with one verb, group, resource and name each (upstream's `BreakdownRule`).
    fn parts(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let mut parts = Vec::new();
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    let names: Vec<Vec<String>> = if self.resource_names.is_empty() {
                        vec![Vec::new()]
                    } else {
                        self.resource_names.iter().map(one).collect()
                    };
                    parts.extend(names.into_iter().map(|resource_names| Self {
                        verbs: one(verb),
                        api_groups: one(group),
                        resources: one(resource),
                        resource_names,
                        non_resource_urls: Vec::new(),
                    }));
                }
            }
            parts.extend(self.non_resource_urls.iter().map(|url| Self {
                verbs: one(verb),
                non_resource_urls: one(url),
                ..Self::default()
            }));
        }
        parts
    }
}

/// What of `wanted` no rule of `owned` covers, merged where only the verb differs.
pub fn uncovered(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut missing: Vec<Rule> = Vec::new();
    for part in wanted.iter().flat_map(Rule::parts) {
        if owned.iter().any(|rule| rule.covers(&part)) {
            continue;
        }
        let twin = missing.iter_mut().find(|rule| {
            rule.api_groups == part.api_groups
                && rule.resources == part.resources
                && rule.resource_names == part.resource_names
                && rule.non_resource_urls == part.non_resource_urls
        });
        match twin {
            None => missing.push(part),
            Some(rule) => {
                for verb in part.verbs {
                    if !rule.verbs.contains(&verb) {
                        rule.verbs.push(verb);
                    }
                }
            }
        }
    }
    missing
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == ALL || item == wanted)
}

/// Upstream's `CompactString`: `{APIGroups:["apps"], Resources:["deployments"], Verbs:["get"]}`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown: Vec<String> = fields
            .iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(name, list)| {
                let items: Vec<String> = list.iter().map(|item| format!("{item:?}")).collect();
                format!("{name}:[{}]", items.join(" "))
            })
            .collect();
        write!(f, "{{{}}}", shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{RequestInfo, UserInfo};
    use serde_json::json;

    fn rule(value: Value) -> Rule {
        Rule::read(&value)
    }

    #[track_caller]
    fn check(rule: &Rule, method: &str, path: &str, allowed: bool) {
        let method = method.parse().expect("a method");
        let info = RequestInfo::parse(&method, &path.parse().expect("a uri"));
        let user = UserInfo::default();
        assert_eq!(
            rule.allows(&Attributes::of(&user, &info)),
            allowed,
            "{method} {path}"
        );
    }

    #[test]
    fn verbs_groups_resources_and_names_have_to_match() {
        let pods = rule(
            json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}),
        );
        check(&pods, "GET", "/api/v1/namespaces/a/pods", true);
        check(&pods, "GET", "/api/v1/namespaces/a/pods/p/log", true);
        check(&pods, "GET", "/api/v1/namespaces/a/pods/p/status", false);
        check(&pods, "POST", "/api/v1/namespaces/a/pods", false);
        check(&pods, "GET", "/apis/apps/v1/pods", false);
        let named = rule(
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["x"]}),
        );
        check(&named, "GET", "/api/v1/namespaces/a/secrets/x", true);
        check(&named, "GET", "/api/v1/namespaces/a/secrets/y", false);
        check(&named, "GET", "/api/v1/namespaces/a/secrets", false);
        check(
            &named,
            "GET",
            "/api/v1/secrets?fieldSelector=metadata.name%3Dx&watch=1",
            true,
        );
    }

    #[test]
    fn a_star_subresource_is_of_every_resource() {
        let scale =
            rule(json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["*/scale"]}));
        check(
            &scale,
            "GET",
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            true,
        );
        check(
            &scale,
            "GET",
            "/apis/apps/v1/namespaces/a/deployments/d",
            false,
        );
    }

    #[test]
    fn paths_match_whole_or_by_prefix() {
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/openapi/*"]}));
        check(&paths, "GET", "/healthz", true);
        check(&paths, "GET", "/healthz/etcd", false);
        check(&paths, "GET", "/openapi/v3", true);
        check(&paths, "POST", "/healthz", false);
    }

    #[test]
    fn what_is_not_owned_is_told_with_all_its_verbs() {
        let owned = [
            rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["*"]})),
            rule(json!({"verbs": ["*"], "apiGroups": ["apps"], "resources": ["deployments"]})),
        ];
        let wanted = [
            rule(
                json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}),
            ),
            rule(
                json!({"verbs": ["delete"], "apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["x"]}),
            ),
            rule(json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]})),
        ];
        let missing: Vec<String> = uncovered(&owned, &wanted)
            .iter()
            .map(Rule::to_string)
            .collect();
        assert_eq!(
            missing,
            [
                "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\"]}",
                "{APIGroups:[\"\"], Resources:[\"pods/log\"], Verbs:[\"list\"]}",
                "{NonResourceURLs:[\"/metrics\"], Verbs:[\"get\"]}",
            ]
        );
    }
}
