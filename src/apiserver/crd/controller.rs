//! Follows definitions: accepts names, serves what is established, and empties what is being deleted before it goes.
//!
//! The work is level-triggered: each pass looks at all definitions, and writes only what differs.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use apimachinery::{Status, Value, meta, time};
use bytes::Bytes;
use serde_json::json;
use store::kv::prefix_end;
use store::{Compare, CompareOp, KeyValue, Op, RangeRequest, Txn};

use super::definition::Definition;
use super::rules::FINALIZER;
use crate::kinds::tree::{at, items, object_mut, semantically_equal, text};
use crate::registry::Registry;
use crate::registry::codec;
use crate::registry::kind::Kind;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// Tries of one write that others come before.
const MAX_TRIES: usize = 8;
/// Objects removed in one pass of an ending definition.
const BATCH: usize = 500;
/// Pause before a pass that failed, or that did not finish, is made again.
const RETRY: std::time::Duration = std::time::Duration::from_millis(500);

/// What the passes before have made: definitions by name, with the spec they were made from.
#[derive(Default)]
pub struct Known(HashMap<String, (Value, bool, Arc<Definition>)>);

/// Follows definitions until the registry goes away.
pub async fn run(registry: Weak<Registry>) {
    let mut seen = None;
    loop {
        let Some(strong) = registry.upgrade() else {
            return;
        };
        let Some((now, mut changes)) = strong.definitions_changed() else {
            return;
        };
        let mut again = false;
        if seen != Some(now) {
            match sync(&strong).await {
                Ok(finished) => {
                    again = !finished;
                    seen = finished.then_some(now);
                }
                Err(error) => {
                    again = true;
                    tracing::warn!(%error, "definitions cannot be followed yet");
                }
            }
        }
        drop(strong);
        if again {
            tokio::time::sleep(RETRY).await;
        } else if changes.changed().await.is_err() {
            return;
        }
    }
}

/// One pass; whether nothing is left to do.
pub async fn sync(registry: &Registry) -> Result<bool, Status> {
    let mut known = registry.definitions.lock().await;
    let mut objects = registry.all_values(GROUP, PLURAL).await?;
    objects.sort_by(|a, b| {
        let key = |object: &Value| {
            (
                !is_established(object),
                meta::creation_timestamp(object).to_owned(),
                meta::name(object).to_owned(),
            )
        };
        key(a).cmp(&key(b))
    });
    let mut taken = Taken::default();
    let mut served = Vec::new();
    let mut wanted = Vec::new();
    for object in &objects {
        let conflict = taken.conflict(object);
        if conflict.is_none() {
            taken.add(object);
            if let Some(definition) = known.of(object) {
                served.push(definition);
            }
        } else if is_established(object)
            && let Some(definition) = known.of(object)
        {
            served.push(definition);
        }
        wanted.push((object, conflict));
    }
    known
        .0
        .retain(|name, _| objects.iter().any(|object| meta::name(object) == name));
    // Served before it is said to be.
    registry.install(&served);
    let mut finished = true;
    for (object, conflict) in wanted {
        if meta::is_deleting(object) {
            finished &= end(registry, object).await?;
        } else {
            settle(registry, object, conflict.as_deref()).await?;
        }
    }
    Ok(finished)
}

impl Known {
    /// The definition of an object, made anew when what it says has changed.
    fn of(&mut self, object: &Value) -> Option<Arc<Definition>> {
        let (spec, ending) = (at(object, &["spec"]), meta::is_deleting(object));
        if let Some((was, was_ending, definition)) = self.0.get(meta::name(object))
            && was == spec
            && *was_ending == ending
        {
            return Some(definition.clone());
        }
        let definition = Arc::new(Definition::read(object)?);
        let entry = (spec.clone(), ending, definition.clone());
        self.0.insert(meta::name(object).to_owned(), entry);
        Some(definition)
    }
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, &["status", "conditions"])
        .iter()
        .find(|condition| text(condition, &["type"]) == kind)
}

fn is_established(object: &Value) -> bool {
    condition(object, "Established").is_some_and(|condition| text(condition, &["status"]) == "True")
}

/// Names in use, by group.
#[derive(Default)]
struct Taken {
    /// Group and name of resources, group and name of kinds.
    resources: Vec<(String, String)>,
    kinds: Vec<(String, String)>,
}

impl Taken {
    fn names(object: &Value) -> (String, Vec<String>, Vec<String>) {
        let names = at(object, &["spec", "names"]);
        let mut resources: Vec<String> = ["plural", "singular"]
            .iter()
            .map(|field| text(names, &[field]).to_owned())
            .collect();
        resources.extend(
            items(names, &["shortNames"])
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned),
        );
        let kinds = ["kind", "listKind"]
            .iter()
            .map(|field| text(names, &[field]).to_owned())
            .collect();
        (
            text(object, &["spec", "group"]).to_owned(),
            resources,
            kinds,
        )
    }

    fn add(&mut self, object: &Value) {
        let (group, resources, kinds) = Self::names(object);
        let pairs = |names: Vec<String>| names.into_iter().map(|name| (group.clone(), name));
        self.resources.extend(pairs(resources));
        self.kinds.extend(pairs(kinds));
    }

    /// The first name that another definition of the group has.
    fn conflict(&self, object: &Value) -> Option<String> {
        let (group, resources, kinds) = Self::names(object);
        let used = |taken: &[(String, String)], name: &String| {
            taken
                .iter()
                .any(|(of, known)| *of == group && known == name)
        };
        resources
            .iter()
            .find(|name| used(&self.resources, name))
            .or_else(|| kinds.iter().find(|name| used(&self.kinds, name)))
            .cloned()
    }
}

fn made(kind: &str, status: bool, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": if status { "True" } else { "False" }, "reason": reason, "message": message})
}

/// Writes the conditions and accepted names of a definition, when they are not written yet.
async fn settle(registry: &Registry, object: &Value, conflict: Option<&str>) -> Result<(), Status> {
    let (accepted, established) = match conflict {
        None => (
            made("NamesAccepted", true, "NoConflicts", "no conflicts found"),
            made(
                "Established",
                true,
                "InitialNamesAccepted",
                "the initial names have been accepted",
            ),
        ),
        Some(name) => (
            made(
                "NamesAccepted",
                false,
                "NameConflict",
                &format!("{name:?} is already in use"),
            ),
            // What was served stays served.
            made(
                "Established",
                is_established(object),
                "NotAccepted",
                "not all names are accepted",
            ),
        ),
    };
    let names = conflict.is_none().then(|| at(object, &["spec", "names"]));
    let same = |wanted: &Value| {
        condition(object, text(wanted, &["type"])).is_some_and(|have| {
            text(have, &["status"]) == text(wanted, &["status"])
                && (text(wanted, &["type"]) == "Established" && is_established(object)
                    || text(have, &["reason"]) == text(wanted, &["reason"]))
        })
    };
    let named = names
        .is_none_or(|names| semantically_equal(at(object, &["status", "acceptedNames"]), names));
    if named && same(&accepted) && same(&established) {
        return Ok(());
    }
    let now = time::now_text();
    alter(registry, meta::name(object), |fresh| {
        for wanted in [&accepted, &established] {
            put_condition(fresh, wanted, &now);
        }
        if let Some(names) = names {
            object_mut(fresh, &["status"]).insert("acceptedNames".to_owned(), names.clone());
        }
    })
    .await
}

fn put_condition(object: &mut Value, wanted: &Value, now: &str) {
    let kind = text(wanted, &["type"]);
    let same_status = condition(object, kind)
        .filter(|have| text(have, &["status"]) == text(wanted, &["status"]))
        .map(|have| text(have, &["lastTransitionTime"]).to_owned());
    let mut condition = wanted.clone();
    condition["lastTransitionTime"] = same_status.unwrap_or_else(|| now.to_owned()).into();
    let mut list = items(object, &["status", "conditions"]).to_vec();
    match list.iter_mut().find(|have| text(have, &["type"]) == kind) {
        Some(have) => *have = condition,
        None => list.push(condition),
    }
    object_mut(object, &["status"]).insert("conditions".to_owned(), list.into());
}

/// Changes a stored definition; one that is gone is left alone.
async fn alter(registry: &Registry, name: &str, change: impl Fn(&mut Value)) -> Result<(), Status> {
    let Some(kind) = registry.kind(GROUP, PLURAL) else {
        return Ok(());
    };
    let key = kind.key("", name);
    for _ in 0..MAX_TRIES {
        let Some(kv) = registry.read_raw(&key).await? else {
            return Ok(());
        };
        let mut object = registry.decode_raw(&kind, &kv)?;
        change(&mut object);
        let put = Op::Put {
            key: key.clone(),
            value: codec::encode_object(&object, true).into(),
            lease: 0,
        };
        if registry.store_txn(unchanged(&kv, put)).await? {
            return Ok(());
        }
    }
    Err(Status::modified(GROUP, PLURAL, name))
}

fn unchanged(kv: &KeyValue, op: Op) -> Txn {
    Txn {
        compare: vec![Compare::ModRevision(
            kv.key.clone(),
            CompareOp::Equal,
            kv.mod_revision,
        )],
        success: vec![op],
        failure: Vec::new(),
    }
}

fn delete(key: &Bytes) -> Op {
    Op::Delete {
        key: key.clone(),
        range_end: None,
        prev_kv: true,
    }
}

/// Empties an ending definition and lets it go; whether it has gone.
async fn end(registry: &Registry, object: &Value) -> Result<bool, Status> {
    let name = meta::name(object);
    let others = meta::finalizers(object).any(|finalizer| finalizer != FINALIZER);
    let mine = meta::finalizers(object).any(|finalizer| finalizer == FINALIZER);
    if mine {
        let kind = registry.kind(
            text(object, &["spec", "group"]),
            text(object, &["spec", "names", "plural"]),
        );
        if let Some(kind) = kind
            && !empty(registry, &kind).await?
        {
            let terminating = made(
                "Terminating",
                true,
                "InstanceDeletionInProgress",
                "CustomResource deletion is in progress",
            );
            let now = time::now_text();
            if condition(object, "Terminating").is_none() {
                alter(registry, name, |fresh| {
                    put_condition(fresh, &terminating, &now);
                })
                .await?;
            }
            return Ok(false);
        }
    }
    if others {
        if mine {
            alter(registry, name, |fresh| {
                let kept: Vec<String> = meta::finalizers(fresh)
                    .filter(|finalizer| *finalizer != FINALIZER)
                    .map(str::to_owned)
                    .collect();
                meta::set_finalizers(fresh, kept);
            })
            .await?;
        }
        // Who put the other finalizers there takes them off, which is a change.
        return Ok(true);
    }
    let Some(kind) = registry.kind(GROUP, PLURAL) else {
        return Ok(true);
    };
    let Some(kv) = registry.read_raw(&kind.key("", name)).await? else {
        return Ok(true);
    };
    registry.store_txn(unchanged(&kv, delete(&kv.key))).await
}

/// Deletes the objects of a custom kind, marking those that something holds; whether none is left.
async fn empty(registry: &Registry, kind: &Kind) -> Result<bool, Status> {
    let prefix = kind.scope("");
    let range = registry
        .range(RangeRequest {
            key: prefix.clone(),
            range_end: Some(prefix_end(&prefix)),
            limit: BATCH,
            ..RangeRequest::default()
        })
        .await?;
    for kv in &range.kvs {
        let mut object = registry.decode_raw(kind, kv)?;
        if meta::finalizers(&object).next().is_none() {
            registry.store_txn(unchanged(kv, delete(&kv.key))).await?;
        } else if !meta::is_deleting(&object) {
            meta::set_deletion_timestamp(&mut object, Some(&time::now_text()));
            meta::set_deletion_grace_period_seconds(&mut object, Some(0));
            let put = Op::Put {
                key: kv.key.clone(),
                value: codec::encode_object(&object, true).into(),
                lease: kv.lease,
            };
            registry.store_txn(unchanged(kv, put)).await?;
        }
    }
    Ok(range.kvs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(name: &str, kind: &str) -> Value {
        json!({"metadata": {"name": format!("{name}.x.io")}, "spec": {"group": "x.io",
            "names": {"plural": name, "singular": name, "kind": kind, "listKind": format!("{kind}List")}}})
    }

    #[test]
    fn a_name_belongs_to_the_first_of_its_group() {
        let mut taken = Taken::default();
        taken.add(&definition("as", "A"));
        assert_eq!(taken.conflict(&definition("bs", "B")), None);
        assert_eq!(taken.conflict(&definition("bs", "A")), Some("A".to_owned()));
        let mut other = definition("as", "A");
        other["spec"]["group"] = "y.io".into();
        assert_eq!(taken.conflict(&other), None);
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut object = json!({});
        put_condition(&mut object, &made("Established", true, "A", "a"), "1");
        put_condition(&mut object, &made("Established", true, "B", "b"), "2");
        let have = condition(&object, "Established").expect("a condition");
        assert_eq!(
            (have["reason"].as_str(), have["lastTransitionTime"].as_str()),
            (Some("B"), Some("1"))
        );
        put_condition(&mut object, &made("Established", false, "C", "c"), "3");
        assert!(!is_established(&object));
    }
}
