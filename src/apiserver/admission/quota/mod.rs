//! ResourceQuota: what a namespace has used up is counted before an object is written, and too much is refused.
//!
//! ```text
//! object ─▶ usage (what it uses, `usage`) ─▶ quotas of the namespace that speak of it (scopes, `hard`)
//!        ─▶ does it fit into each? ─▶ each one's status.used grows, compared and swapped
//! ```
//!
//! What a write that fails later was charged for is given back when the controller counts anew.
//! Upstream: `plugin/pkg/admission/resourcequota`.

mod usage;

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

pub(super) use self::usage::pod_requests;
use self::usage::{Amounts, Evaluator};
use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{at, items, object_mut, text};
use crate::registry::strategy::Change;

/// Counting is done by one write at a time, so that writes of one server do not run into each other.
#[derive(Default)]
pub struct Ledger(tokio::sync::Mutex<()>);

pub struct ResourceQuota;

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let resource = attributes.resource;
        let counted = match attributes.operation {
            Operation::Create => attributes.subresource.is_empty(),
            // Only these can come to use more.
            Operation::Update => {
                resource.group.is_empty()
                    && (matches!(
                        (resource.plural, attributes.subresource),
                        ("services" | "persistentvolumeclaims", "") | ("pods", "resize")
                    ))
            }
            _ => false,
        };
        counted && resource.namespaced && !resource.etcd_prefix.is_empty() && !is_event(attributes)
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        let quotas = attributes
            .registry
            .cached_values("", "resourcequotas")
            .await?;
        let here = in_namespace(&quotas, attributes.namespace);
        if here.is_empty() {
            return Ok(());
        }
        let evaluator = Evaluator::of(attributes.resource);
        let concerned = concerned(here, &evaluator, object);
        if concerned.is_empty() {
            return Ok(());
        }
        for quota in &concerned {
            must_specify(attributes, quota, &evaluator, object)?;
        }
        let before = attributes
            .old
            .map(|old| evaluator.usage(old))
            .unwrap_or_default();
        let delta = growth(evaluator.usage(object), &before);
        if delta.is_empty() {
            return Ok(());
        }
        let _turn = attributes.registry.admission.ledger.0.lock().await;
        for quota in &concerned {
            // Refused is only what the quota as it is stored refuses: the cache may be behind.
            if check(attributes, quota, &delta).is_err() {
                let alter = |fresh: &mut Value| check(attributes, fresh, &delta);
                modify(attributes, quota, true, alter).await?;
            }
        }
        for quota in concerned {
            charge(attributes, quota, &delta).await?;
        }
        Ok(())
    }
}

fn in_namespace<'a>(quotas: &'a [Value], namespace: &str) -> Vec<&'a Value> {
    quotas
        .iter()
        .filter(|quota| meta::namespace(quota) == namespace)
        .collect()
}

fn concerned<'a>(
    mut here: Vec<&'a Value>,
    evaluator: &Evaluator,
    object: &Value,
) -> Vec<&'a Value> {
    here.retain(|quota| speaks_of(quota, evaluator, object));
    here
}

/// Events are not counted: they come and go by themselves.
fn is_event(attributes: &Attributes<'_>) -> bool {
    attributes.resource.plural == "events"
}

/// What grows, if anything does.
fn growth(after: Amounts, before: &Amounts) -> Amounts {
    after
        .into_iter()
        .filter_map(|(resource, mut amount)| {
            if let Some(was) = before.get(&resource) {
                amount.sub(was);
            }
            (amount.sign() > 0).then_some((resource, amount))
        })
        .collect()
}

fn hard(quota: &Value) -> impl Iterator<Item = (&str, Quantity)> {
    amounts(at(quota, &["status", "hard"]))
}

fn amounts(map: &Value) -> impl Iterator<Item = (&str, Quantity)> {
    map.as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            Some((key.as_str(), text.parse().ok()?))
        })
}

/// Whether a quota's limits and scopes concern an object.
fn speaks_of(quota: &Value, evaluator: &Evaluator, object: &Value) -> bool {
    let spec = at(quota, &["spec", "hard"]);
    let names = spec.as_object().into_iter().flatten();
    names
        .map(|(resource, _)| resource.as_str())
        .any(|resource| evaluator.counts(resource))
        && in_scopes(quota, evaluator, object)
}

fn in_scopes(quota: &Value, evaluator: &Evaluator, object: &Value) -> bool {
    let plain = items(quota, &["spec", "scopes"])
        .iter()
        .all(|scope| evaluator.in_scope(scope.as_str().unwrap_or(""), "Exists", &[], object));
    plain
        && items(quota, &["spec", "scopeSelector", "matchExpressions"])
            .iter()
            .all(|expression| {
                evaluator.in_scope(
                    text(expression, &["scopeName"]),
                    text(expression, &["operator"]),
                    items(expression, &["values"]),
                    object,
                )
            })
}

/// Where compute is limited, containers say what they need.
fn must_specify(
    attributes: &Attributes<'_>,
    quota: &Value,
    evaluator: &Evaluator,
    object: &Value,
) -> Result<(), Status> {
    let required: Vec<&str> = at(quota, &["spec", "hard"])
        .as_object()
        .into_iter()
        .flatten()
        .map(|(resource, _)| resource.as_str())
        .filter(|resource| evaluator.counts(resource))
        .collect();
    let missing = evaluator.missing(object, &required);
    if missing.is_empty() {
        return Ok(());
    }
    let told: Vec<String> = missing
        .iter()
        .map(|(resource, containers)| format!("{resource} for: {}", containers.join(",")))
        .collect();
    Err(attributes.forbidden(&format!(
        "failed quota: {}: must specify {}",
        meta::name(quota),
        told.join("; ")
    )))
}

/// `cpu=1,pods=2`.
fn told<'a>(amounts: impl Iterator<Item = (&'a str, &'a Quantity)>) -> String {
    let texts: Vec<String> = amounts
        .map(|(resource, amount)| format!("{resource}={amount}"))
        .collect();
    texts.join(",")
}

/// Whether what is asked for fits into a quota.
fn check(attributes: &Attributes<'_>, quota: &Value, delta: &Amounts) -> Result<(), Status> {
    let limits: BTreeMap<&str, Quantity> = hard(quota).collect();
    let used: BTreeMap<&str, Quantity> = amounts(at(quota, &["status", "used"])).collect();
    let spec = at(quota, &["spec", "hard"]);
    let asked: Vec<(&str, &Quantity)> = delta
        .iter()
        .map(|(resource, amount)| (resource.as_str(), amount))
        .filter(|(resource, _)| spec.get(*resource).is_some())
        .collect();
    let unknown: Vec<&str> = asked
        .iter()
        .map(|(resource, _)| *resource)
        .filter(|resource| !limits.contains_key(resource) || !used.contains_key(resource))
        .collect();
    if !unknown.is_empty() {
        return Err(attributes.forbidden(&format!(
            "status unknown for quota: {}, resources: {}",
            meta::name(quota),
            unknown.join(",")
        )));
    }
    let exceeded: Vec<&(&str, &Quantity)> = asked
        .iter()
        .filter(|(resource, amount)| {
            let mut sum = used[resource].clone();
            sum.add(amount);
            sum > limits[resource]
        })
        .collect();
    if exceeded.is_empty() {
        return Ok(());
    }
    let keys = || exceeded.iter().map(|(resource, _)| *resource);
    Err(attributes.forbidden(&format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        meta::name(quota),
        told(
            exceeded
                .iter()
                .map(|(resource, amount)| (*resource, *amount))
        ),
        told(keys().map(|resource| (resource, &used[resource]))),
        told(keys().map(|resource| (resource, &limits[resource]))),
    )))
}

/// Adds what is asked for to a quota's `status.used`, unless it does not fit any more.
async fn charge(attributes: &Attributes<'_>, quota: &Value, delta: &Amounts) -> Result<(), Status> {
    let alter = |fresh: &mut Value| {
        check(attributes, fresh, delta)?;
        let mut used: BTreeMap<String, Quantity> = amounts(at(fresh, &["status", "used"]))
            .map(|(resource, amount)| (resource.to_owned(), amount))
            .collect();
        for (resource, amount) in delta {
            if let Some(sum) = used.get_mut(resource) {
                sum.add(amount);
            }
        }
        let status = object_mut(fresh, &["status", "used"]);
        for (resource, amount) in used {
            status.insert(resource, amount.to_string().into());
        }
        Ok(())
    };
    modify(attributes, quota, attributes.dry_run, alter).await
}

/// Alters a quota's status as it is stored; a dry run only asks whether that can be done.
async fn modify(
    attributes: &Attributes<'_>,
    quota: &Value,
    dry_run: bool,
    alter: impl Fn(&mut Value) -> Result<(), Status>,
) -> Result<(), Status> {
    let change = Change {
        registry: attributes.registry,
        request: attributes.request,
        resource: &api::r::RESOURCEQUOTAS,
        subresource: "status",
        namespace: attributes.namespace,
        dry_run,
    };
    match attributes
        .registry
        .modify(&change, meta::name(quota), alter)
        .await
    {
        // A quota that was deleted meanwhile limits nothing.
        Err(status) if status.code == 404 => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn amounts_of(list: &[(&str, &str)]) -> Amounts {
        list.iter()
            .map(|(resource, amount)| ((*resource).to_owned(), amount.parse().expect("a quantity")))
            .collect()
    }

    #[test]
    fn only_growth_is_charged() {
        let grown = growth(
            amounts_of(&[("pods", "1"), ("cpu", "2"), ("memory", "1Gi")]),
            &amounts_of(&[("pods", "1"), ("cpu", "1500m"), ("memory", "2Gi")]),
        );
        assert_eq!(grown, amounts_of(&[("cpu", "500m")]));
    }

    #[test]
    fn quotas_concern_what_they_count_in_their_scopes() {
        let pods = Evaluator::of(&api::r::PODS);
        let maps = Evaluator::of(&api::r::CONFIGMAPS);
        let pod = json!({"spec": {"containers": [{"name": "c"}]}});
        let quota = json!({"spec": {"hard": {"pods": "1"}}});
        assert!(speaks_of(&quota, &pods, &pod));
        assert!(!speaks_of(&quota, &maps, &json!({})));
        let scoped = json!({"spec": {"hard": {"pods": "1"}, "scopes": ["NotBestEffort"]}});
        assert!(!speaks_of(&scoped, &pods, &pod));
        let scoped = json!({"spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}});
        assert!(speaks_of(&scoped, &pods, &pod));
    }
}
