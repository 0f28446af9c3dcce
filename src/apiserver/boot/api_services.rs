//! APIServices of what this server serves itself: kept for the groups of definitions, made or removed at the start for
//! its own, and said to be available (kube-aggregator's autoregister and local availability controllers).
//!
//! ```text
//! label automanaged=onstart   made at the start (`objects`); one that is not served any more goes at the start
//!                   true      made, corrected and removed with the definitions that serve its group and version
//!                   none      somebody else's: left alone
//! ```

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{self, Write};
use apimachinery::{Status, Value, meta, time};
use serde_json::json;

use super::objects;
use crate::kinds::api_services::available;
use crate::kinds::tree::{at, flag, has, items, object_mut, semantically_equal, text};
use crate::registry::Registry;
use crate::registry::codec;
use crate::registry::kind::Kind;
use crate::registry::write::{compares, puts};

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";
const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
const MANAGER: &str = "kube-apiserver";

/// Where groups of definitions are in discovery: after all of Kubernetes' own.
const GROUP_PRIORITY: i64 = 1000;
const VERSION_PRIORITY: i64 = 100;

/// Pause before a pass that failed is made again.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done to one APIService.
#[derive(Debug, PartialEq)]
enum Action {
    Create(Value),
    /// The name and the spec it shall have.
    Correct(String, Value),
    Delete(String),
    /// Its condition is not written yet.
    Avail(String),
}

/// Follows definitions and APIServices until the registry goes away.
pub async fn run(registry: Weak<Registry>) {
    let mut at_start = true;
    loop {
        let Some(strong) = registry.upgrade() else {
            return;
        };
        let (Some(mut services), Some(mut definitions)) = (
            strong.changes(GROUP, PLURAL),
            strong.changes(DEFINITIONS.0, DEFINITIONS.1),
        ) else {
            return;
        };
        let done = sync(&strong, at_start).await;
        drop(strong);
        if let Err(error) = done {
            tracing::warn!(%error, "APIServices cannot be kept yet");
            tokio::time::sleep(RETRY).await;
            continue;
        }
        at_start = false;
        let changed = tokio::select! {
            changed = services.changed() => changed,
            changed = definitions.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// One pass.
pub(super) async fn sync(registry: &Registry, at_start: bool) -> Result<(), Status> {
    let Some(kind) = registry.kind(GROUP, PLURAL) else {
        return Ok(());
    };
    let own = match at_start {
        true => Some(objects::own_services(registry)?),
        false => None,
    };
    let definitions = registry.cached_values(DEFINITIONS.0, DEFINITIONS.1).await?;
    let current = registry.cached_values(GROUP, PLURAL).await?;
    for action in plan(&wanted(&definitions), own.as_deref(), &current) {
        apply(registry, &kind, action).await?;
    }
    Ok(())
}

/// The APIServices of all versions that definitions serve, by name.
fn wanted(definitions: &[Value]) -> BTreeMap<String, Value> {
    let mut wanted = BTreeMap::new();
    for definition in definitions {
        let group = text(definition, &["spec", "group"]);
        for version in items(definition, &["spec", "versions"]) {
            if !flag(version, &["served"]) {
                continue;
            }
            let version = text(version, &["name"]);
            let spec = json!({"group": group, "version": version,
                "groupPriorityMinimum": GROUP_PRIORITY, "versionPriority": VERSION_PRIORITY});
            wanted.insert(format!("{version}.{group}"), spec);
        }
    }
    wanted
}

/// What differs. `own`: at the start, the APIServices this server has for its own groups.
fn plan(wanted: &BTreeMap<String, Value>, own: Option<&[Value]>, current: &[Value]) -> Vec<Action> {
    let mut actions = Vec::new();
    let is_there = |name: &str| current.iter().any(|service| meta::name(service) == name);
    for (name, spec) in wanted {
        if !is_there(name) {
            actions.push(Action::Create(json!({
                "metadata": {"name": name, "labels": {LABEL: "true"}},
                "spec": spec,
                "status": {"conditions": [available(&time::now_text())]},
            })));
        }
    }
    for service in current {
        let name = meta::name(service);
        let own_spec = |own: &[Value]| {
            own.iter()
                .find(|own| meta::name(own) == name)
                .map(|own| at(own, &["spec"]).clone())
        };
        let spec = match (text(service, &["metadata", "labels", LABEL]), own) {
            ("true", _) => Some(wanted.get(name).cloned()),
            ("onstart", Some(own)) => Some(own_spec(own).or_else(|| wanted.get(name).cloned())),
            _ => None,
        };
        match spec {
            Some(None) => actions.push(Action::Delete(name.to_owned())),
            Some(Some(spec)) if !semantically_equal(&spec, at(service, &["spec"])) => {
                actions.push(Action::Correct(name.to_owned(), spec));
            }
            _ if is_unsaid(service) => actions.push(Action::Avail(name.to_owned())),
            _ => {}
        }
    }
    actions
}

/// Whether a local APIService does not say yet that it is available.
fn is_unsaid(service: &Value) -> bool {
    let is_local = !has(service, &["spec", "service"]);
    let is_said = |condition: &Value| {
        text(condition, &["type"]) == "Available"
            && text(condition, &["status"]) == "True"
            && text(condition, &["reason"]) == "Local"
    };
    is_local
        && !items(service, &["status", "conditions"])
            .iter()
            .any(is_said)
}

/// What another write comes before is left for the pass that this write causes.
async fn apply(registry: &Registry, kind: &Kind, action: Action) -> Result<(), Status> {
    let (name, spec) = match action {
        Action::Create(object) => {
            let key = kind.key("", meta::name(&object));
            let value = registry.system_object(kind, object, MANAGER);
            let txn = store::Txn {
                compare: compares(&key, 0, Vec::new()),
                success: puts(&key, &value, 0, Vec::new()),
                failure: Vec::new(),
            };
            registry.store_txn(txn).await?;
            return Ok(());
        }
        Action::Delete(name) => return delete(registry, kind, &name).await,
        Action::Correct(name, spec) => (name, Some(spec)),
        Action::Avail(name) => (name, None),
    };
    let key = kind.key("", &name);
    let Some(kv) = registry.read_raw(&key).await? else {
        return Ok(());
    };
    let stored = registry.decode_raw(kind, &kv)?;
    let object = match spec {
        Some(spec) => written(kind, &stored, "", |new| {
            new["spec"] = spec;
        }),
        None => written(kind, &stored, "status", |new| {
            let now = time::now_text();
            let mut conditions = items(new, &["status", "conditions"]).to_vec();
            conditions.retain(|condition| text(condition, &["type"]) != "Available");
            conditions.push(available(&now));
            object_mut(new, &["status"]).insert("conditions".to_owned(), conditions.into());
        }),
    };
    let value = codec::encode_object(&object, true);
    let txn = store::Txn {
        compare: compares(&key, kv.mod_revision, Vec::new()),
        success: puts(&key, &value, kv.lease, Vec::new()),
        failure: Vec::new(),
    };
    registry.store_txn(txn).await?;
    Ok(())
}

fn written(
    kind: &Kind,
    stored: &Value,
    subresource: &str,
    change: impl FnOnce(&mut Value),
) -> Value {
    let mut new = stored.clone();
    change(&mut new);
    let (reset, now) = (FieldSet::new(), time::now_text());
    let version = meta::api_version(stored).to_owned();
    let write = Write {
        manager: MANAGER,
        api_version: &version,
        subresource,
        now: &now,
        message: kind.storage.schema,
        reset: &reset,
    };
    managed_fields::update(stored, &mut new, &write);
    new
}

async fn delete(registry: &Registry, kind: &Kind, name: &str) -> Result<(), Status> {
    let key = kind.key("", name);
    let Some(kv) = registry.read_raw(&key).await? else {
        return Ok(());
    };
    let txn = store::Txn {
        compare: compares(&key, kv.mod_revision, Vec::new()),
        success: vec![store::Op::Delete {
            key,
            range_end: None,
            prev_kv: true,
        }],
        failure: Vec::new(),
    };
    registry.store_txn(txn).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, label: &str, priority: i64) -> Value {
        let (version, group) = name.split_once('.').expect("a name");
        json!({"metadata": {"name": name, "labels": {LABEL: label}},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": priority,
                "versionPriority": VERSION_PRIORITY},
            "status": {"conditions": [available("then")]}})
    }

    fn definition() -> Value {
        json!({"spec": {"group": "x.io", "versions": [
            {"name": "v1", "served": true}, {"name": "v1alpha1", "served": false}]}})
    }

    #[track_caller]
    fn check(own: Option<&[Value]>, current: &[Value], expected: &[Action]) {
        let wanted = wanted(&[definition()]);
        assert_eq!(plan(&wanted, own, current), expected);
    }

    #[test]
    fn served_versions_of_definitions_have_a_service_and_others_lose_theirs() {
        let created = plan(&wanted(&[definition()]), None, &[]);
        let [Action::Create(made)] = &created[..] else {
            panic!("{created:?}");
        };
        assert_eq!(
            made["metadata"],
            json!({"name": "v1.x.io", "labels": {LABEL: "true"}})
        );
        assert_eq!(made["spec"]["groupPriorityMinimum"], 1000);
        let good = service("v1.x.io", "true", 1000);
        check(None, &[good.clone()], &[]);
        let gone = service("v1alpha1.x.io", "true", 1000);
        check(
            None,
            &[good.clone(), gone],
            &[Action::Delete("v1alpha1.x.io".to_owned())],
        );
        let changed = service("v1.x.io", "true", 7);
        let spec = good["spec"].clone();
        check(
            None,
            &[changed],
            &[Action::Correct("v1.x.io".to_owned(), spec)],
        );
    }

    #[test]
    fn services_of_others_are_left_alone_but_said_to_be_available() {
        let others = service("v1.x.io", "", 7);
        check(None, &[others.clone()], &[]);
        let mut unsaid = others.clone();
        unsaid["status"] = json!({});
        check(
            None,
            &[unsaid.clone()],
            &[Action::Avail("v1.x.io".to_owned())],
        );
        unsaid["spec"]["service"] = json!({"namespace": "n", "name": "s"});
        check(None, &[unsaid], &[]);
    }

    #[test]
    fn what_is_not_served_any_more_goes_at_the_start_alone() {
        let mine = service("v1.x.io", "true", 1000);
        let old = service("v1.old", "onstart", 1000);
        let kept = service("v1.kept", "onstart", 1000);
        let current = [mine, old, kept.clone()];
        check(None, &current, &[]);
        check(
            Some(&[kept]),
            &current,
            &[Action::Delete("v1.old".to_owned())],
        );
    }
}
