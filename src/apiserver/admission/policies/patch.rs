//! What a mutation's expression makes, and what it does to an object: JSON patches as they are, configurations merged as
//! server-side apply merges them (`policy/mutating/patch`).

use apimachinery::Value;
use apimachinery::apply::typed;
use apimachinery::patch::{PatchError, json_patch};
use apimachinery::schema::{Field, ListKind, Message, Type};
use apimachinery::{Map, meta};
use cel::{OBJECT_TYPE, Val};

use super::Evaluation;
use crate::kinds::tree::{has, text};

/// What a mutation's expression made.
#[derive(Debug)]
pub enum Change {
    /// Operations of a JSON patch.
    Json(Value),
    /// A configuration to apply.
    Apply(Value),
}

/// Evaluates a mutation's expression.
///
/// # Errors
/// The expression's own, or of the value's type.
pub fn made(mutation: &Value, evaluation: &Evaluation<'_>) -> Result<Change, String> {
    if has(mutation, &["jsonPatch"]) {
        let value = evaluation.run(text(mutation, &["jsonPatch", "expression"]))?;
        return operations(&value).map(Change::Json);
    }
    let value = evaluation.run(text(mutation, &["applyConfiguration", "expression"]))?;
    match &value {
        Val::Object(object) if object.name == OBJECT_TYPE => {}
        other => {
            return Err(format!(
                "unsupported return type from ApplyConfiguration expression: {}",
                other.type_name()
            ));
        }
    }
    cel::check_type_names(&value, OBJECT_TYPE).map_err(|why| format!("type mismatch: {why}"))?;
    cel::to_json(&value).map(Change::Apply)
}

fn operations(value: &Val<'_>) -> Result<Value, String> {
    let list = match value {
        Val::List(_) | Val::JsonList(_) => value.items().unwrap_or_default(),
        _ => {
            return Err(
                "type mismatch: JSONPatchType.expression should evaluate to array".to_owned(),
            );
        }
    };
    let mut operations = Vec::with_capacity(list.len());
    for item in list {
        let Val::Object(patch) = &item else {
            return Err(format!(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch: cannot convert {} to JSONPatch",
                item.type_name()
            ));
        };
        let mut operation = Map::new();
        for (field, value) in &patch.fields {
            if field == "value" {
                if let Val::Object(inner) = value {
                    cel::check_type_names(value, &inner.name)
                        .map_err(|why| format!("type mismatch: {why}"))?;
                }
                let value = cel::to_json(value).map_err(|why| {
                    format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}")
                })?;
                operation.insert(field.clone(), value);
            } else {
                operation.insert(field.clone(), cel::to_json(value)?);
            }
        }
        operations.push(Value::Object(operation));
    }
    Ok(Value::Array(operations))
}

/// The patched object; nothing where a test does not hold.
pub fn json(object: &Value, operations: &Value) -> Result<Option<Value>, String> {
    let mut changed = object.clone();
    match json_patch(&mut changed, operations) {
        Ok(()) => Ok(Some(changed)),
        Err(PatchError::TestFailed(_)) => Ok(None),
        Err(error) => Err(format!("JSONPath: {error}")),
    }
}

/// The object with a configuration merged in.
///
/// # Errors
/// Fields the type does not have, and those whose merge would take away what was not named: atomic ones.
pub fn apply(object: &Value, configuration: &Value, message: &Message) -> Result<Value, String> {
    let wrong = |why: String| format!("error applying patch: {why}");
    let mut configuration = configuration.clone();
    meta::set_type(
        &mut configuration,
        meta::api_version(object),
        meta::kind(object),
    );
    typed::field_set(&configuration, message).map_err(|why| {
        wrong(format!(
            "failed to convert patch object to typed object: {why}"
        ))
    })?;
    let mut found = Vec::new();
    atomics(&configuration, message, "", &mut found);
    if !found.is_empty() {
        return Err(wrong(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
            found.join(", ")
        )));
    }
    Ok(typed::merge(object.clone(), configuration, message))
}

fn atomics(value: &Value, message: &Message, path: &str, found: &mut Vec<String>) {
    let Value::Object(map) = value else { return };
    for (name, value) in map {
        if let Some(field) = message.field(name) {
            let atomic = field.has(Field::ATOMIC);
            atomic_in(value, &field.ty, atomic, &format!("{path}.{name}"), found);
        }
    }
}

fn atomic_in(value: &Value, ty: &Type, atomic: bool, path: &str, found: &mut Vec<String>) {
    match (ty, value) {
        (Type::Message(message), Value::Object(_)) => {
            if atomic || message.atomic {
                found.push(path.to_owned());
            }
            atomics(value, message, path, found);
        }
        (Type::Map(map), Value::Object(_)) if atomic || map.atomic => found.push(path.to_owned()),
        (Type::List(list), Value::Array(items)) => {
            if atomic || matches!(list.kind, ListKind::Atomic | ListKind::Unset) {
                found.push(path.to_owned());
            }
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                atomic_in(item, &list.item, false, &path, found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"a": "1"}},
            "spec": {"template": {"spec": {"containers": [{"name": "web", "image": "old"}]}}}})
    }

    fn applied(configuration: Value) -> Result<Value, String> {
        let resource = api::find("apps", "v1", "deployments").expect("is known");
        apply(&deployment(), &configuration, resource.schema)
    }

    #[test]
    fn configurations_merge_by_the_keys_of_lists() {
        let changed = applied(
            json!({"metadata": {"labels": {"b": "2"}}, "spec": {"template": {"spec":
            {"containers": [{"name": "web", "image": "new"}, {"name": "side", "image": "x"}]}}}}),
        );
        let changed = changed.expect("merges");
        assert_eq!(changed["metadata"]["labels"], json!({"a": "1", "b": "2"}));
        assert_eq!(
            changed["spec"]["template"]["spec"]["containers"],
            json!([{"name": "web", "image": "new"}, {"name": "side", "image": "x"}])
        );
    }

    #[test]
    fn what_is_atomic_or_unknown_is_not_merged() {
        let why = applied(
            json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "args": ["x"]}]}}}}),
        );
        assert_eq!(
            why.expect_err("atomic"),
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.template.spec.containers[0].args"
        );
        let why = applied(json!({"spec": {"foo": 1}})).expect_err("unknown");
        assert_eq!(
            why,
            "error applying patch: failed to convert patch object to typed object: .spec.foo: field not declared in schema"
        );
    }

    #[test]
    fn a_failed_test_leaves_the_object_and_other_failures_are_told() {
        let test = json!([{"op": "test", "path": "/metadata/name", "value": "other"}, {"op": "remove", "path": "/spec"}]);
        assert_eq!(json(&deployment(), &test), Ok(None));
        let wrong = json!([{"op": "remove", "path": "/none/there"}]);
        let why = json(&deployment(), &wrong).expect_err("no such path");
        assert!(why.starts_with("JSONPath: "), "{why}");
    }
}
