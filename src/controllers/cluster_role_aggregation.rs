//! clusterrole-aggregation-controller: a ClusterRole with an aggregationRule has the rules of the roles it selects.

use std::collections::BTreeMap;

use api::r::CLUSTERROLES;
use api::view::ObjectMeta;
use apimachinery::selector::LabelSelector;
use async_trait::async_trait;
use client::workqueue::{self, Queue, Requeue};
use client::{ClientError, Patch, Selectors, WriteOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Context, Controller, context::synced};

pub struct ClusterRoleAggregation;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClusterRole {
    metadata: ObjectMeta,
    rules: Option<Vec<Value>>,
    aggregation_rule: Option<AggregationRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AggregationRule {
    cluster_role_selectors: Vec<Value>,
}

#[async_trait]
impl Controller for ClusterRoleAggregation {
    fn name(&self) -> &'static str {
        "clusterrole-aggregation-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["clusterrole-aggregation"]
    }

    async fn run(&self, context: Context) {
        let roles =
            context
                .informers
                .informer::<ClusterRole>(&CLUSTERROLES, "", Selectors::default());
        if !synced!(context, roles) {
            return;
        }
        let queue = Queue::default();
        // Any role may be a part of any aggregate; there are only a few of these.
        let (keys, all) = (queue.clone(), roles.clone());
        roles.add_handler(move |_| {
            for role in all.list() {
                if role.aggregation_rule.is_some() {
                    keys.add(role.metadata.name.clone());
                }
            }
        });
        workqueue::run("clusterrole", &queue, 1, &context.shutdown, |name| {
            let (context, roles) = (&context, &roles);
            async move {
                let Some(role) = roles.get(&name) else {
                    return Ok(Requeue::No);
                };
                let all: BTreeMap<String, _> = roles
                    .list()
                    .into_iter()
                    .map(|role| (role.metadata.name.clone(), role))
                    .collect();
                match plan(&role, all.values().map(AsRef::as_ref)) {
                    None => Ok(Requeue::No),
                    Some(rules) => apply(context, &name, rules).await.map(|()| Requeue::No),
                }
            }
        })
        .await;
    }
}

/// The rules the role must have, if it has others: those of the roles each selector selects, in the order of their names
/// (`parts` is), each once.
fn plan<'a>(
    role: &ClusterRole,
    parts: impl Iterator<Item = &'a ClusterRole> + Clone,
) -> Option<Vec<Value>> {
    let aggregation = role.aggregation_rule.as_ref()?;
    let mut rules: Vec<Value> = Vec::new();
    for selector in &aggregation.cluster_role_selectors {
        let Ok(selector) = LabelSelector::from_value(selector) else {
            continue;
        };
        for part in parts.clone() {
            let itself = part.metadata.name == role.metadata.name;
            if itself || !selector.matches(&part.metadata.labels) {
                continue;
            }
            for rule in part.rules.iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    (role.rules.as_deref().unwrap_or_default() != rules).then_some(rules)
}

async fn apply(context: &Context, name: &str, rules: Vec<Value>) -> Result<(), ClientError> {
    let applied = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name}, "rules": rules,
    });
    let options = WriteOptions {
        field_manager: "clusterrole-aggregation-controller".into(),
        force: true,
        ..WriteOptions::default()
    };
    let patch = Patch::Apply(applied);
    let patched = context
        .client
        .patch::<Value>(&CLUSTERROLES, "", name, "", &patch, &options);
    patched.await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_role(object: Value) -> ClusterRole {
        serde_json::from_value(object).expect("a role")
    }

    #[test]
    fn an_aggregate_has_each_rule_of_the_roles_it_selects_once() {
        let rule = |verb: &str| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]});
        let part = |name: &str, label: &str, verbs: &[&str]| {
            let rules: Vec<_> = verbs.iter().map(|verb| rule(verb)).collect();
            mk_role(json!({"metadata": {"name": name, "labels": {"to": label}}, "rules": rules}))
        };
        let parts = [
            part("a", "view", &["get", "list"]),
            part("b", "edit", &["update"]),
            part("c", "view", &["list", "watch"]),
        ];
        let aggregate = |rules: Value| {
            mk_role(json!({
                "metadata": {"name": "view", "labels": {"to": "view"}}, "rules": rules,
                "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]},
            }))
        };
        let wanted = vec![rule("get"), rule("list"), rule("watch")];
        let empty = aggregate(Value::Null);
        assert_eq!(
            plan(&empty, parts.iter().chain([&empty])),
            Some(wanted.clone())
        );
        let complete = aggregate(json!(wanted));
        assert_eq!(plan(&complete, parts.iter().chain([&complete])), None);
        assert_eq!(
            plan(&aggregate(json!([rule("get")])), [].iter()),
            Some(vec![])
        );
        assert_eq!(plan(&parts[0], parts.iter()), None);
    }
}
