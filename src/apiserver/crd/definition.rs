//! What a definition says, as tables: a `Resource` for each version, its schema, columns and scale paths.

use api::Resource;
use api::resource::{Column, Subresource};
use apimachinery::schema::{Message, structural};
use apimachinery::time::{self, Time};
use apimachinery::{Value, meta};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::path::JsonPath;
use super::schema::Schema;
use crate::kinds::tree::{at, flag, has, int, items, text};

const VERBS: &[&str] = &[
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];
const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];

/// A text that lives as long as the process.
fn keep(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

/// One version of a custom resource.
pub struct Version {
    pub resource: Resource,
    pub schema: Schema,
    pub scale: Option<Scale>,
    /// What users of the version are told.
    pub deprecation: Option<String>,
    columns: Vec<(JsonPath, &'static str)>,
}

/// Where the scale subresource finds its numbers, by dots.
pub struct Scale {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    pub selector: Option<Vec<String>>,
}

/// A definition whose names were accepted.
pub struct Definition {
    /// The definition's name, `widgets.example.com`.
    pub name: String,
    pub group: &'static str,
    pub plural: &'static str,
    /// Those that are served.
    pub versions: Vec<&'static Version>,
    pub storage: &'static Version,
    /// Whether the definition is being deleted: nothing new may be made.
    pub is_ending: bool,
}

impl Definition {
    /// Reads a valid definition; `None` when it stores nothing.
    pub fn read(object: &Value) -> Option<Self> {
        let group = keep(text(object, &["spec", "group"]));
        let plural = keep(text(object, &["spec", "names", "plural"]));
        let mut versions = Vec::new();
        let mut storage = None;
        for item in items(object, &["spec", "versions"]) {
            let (served, stored) = (flag(item, &["served"]), flag(item, &["storage"]));
            if !served && !stored {
                continue;
            }
            let version = Version::leak(object, item)?;
            if served {
                versions.push(version);
            }
            if stored {
                storage = Some(version);
            }
        }
        Some(Self {
            name: meta::name(object).to_owned(),
            group,
            plural,
            versions,
            storage: storage?,
            is_ending: meta::is_deleting(object),
        })
    }
}

impl Version {
    fn leak(object: &Value, item: &Value) -> Option<&'static Self> {
        let names = at(object, &["spec", "names"]);
        let group = keep(text(object, &["spec", "group"]));
        let kind = keep(text(names, &["kind"]));
        let version = keep(text(item, &["name"]));
        let schema = at(item, &["schema", "openAPIV3Schema"]);
        let object_meta = api::message("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")?;
        let message: &'static Message = Box::leak(Box::new(structural::resource(
            &message_name(group, version, kind),
            schema,
            object_meta,
        )));
        let scale = Scale::read(item);
        let (columns, paths) = columns(item);
        let stored = items(object, &["spec", "versions"])
            .iter()
            .find(|version| flag(version, &["storage"]))?;
        let resource = Resource {
            group,
            version,
            plural: keep(text(names, &["plural"])),
            kind,
            singular: keep(text(names, &["singular"])),
            namespaced: text(object, &["spec", "scope"]) == "Namespaced",
            default_on: true,
            short_names: list(names, "shortNames"),
            categories: list(names, "categories"),
            verbs: VERBS,
            storage_version_hash: keep(&hash(group, version, kind)),
            etcd_prefix: keep(&format!("/registry/{group}/{}", text(names, &["plural"]))),
            storage_group: group,
            storage_version: keep(text(stored, &["name"])),
            subresources: subresources(item, group, version, kind, message, scale.is_some()),
            columns,
            field_labels: field_labels(item),
            schema: message,
        };
        let deprecation =
            flag(item, &["deprecated"]).then(|| match text(item, &["deprecationWarning"]) {
                "" => format!("{group}/{version} {kind} is deprecated"),
                told => told.to_owned(),
            });
        Some(Box::leak(Box::new(Self {
            resource,
            schema: Schema::new(schema),
            scale,
            deprecation,
            columns: paths,
        })))
    }

    /// The cells of an object's row in a table.
    pub fn cells(&self, object: &Value, now: Time) -> Vec<Value> {
        let mut cells = vec![Value::from(meta::name(object))];
        for (path, ty) in &self.columns {
            let found = path.find(object);
            cells.push(match found.as_slice() {
                [] => Value::Null,
                values => cell(values, ty, now),
            });
        }
        cells
    }
}

fn cell(values: &[&Value], ty: &str, now: Time) -> Value {
    let first = values[0];
    match ty {
        "date" => time::age(first.as_str().unwrap_or(""), now).into(),
        "integer" | "number" => match first {
            Value::Number(_) => first.clone(),
            Value::String(text) => text.parse::<i64>().map_or(Value::Null, Value::from),
            _ => Value::Null,
        },
        "boolean" => match first {
            Value::Bool(_) => first.clone(),
            _ => Value::Null,
        },
        _ => {
            let texts: Vec<String> = values
                .iter()
                .map(|value| match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                })
                .collect();
            texts.join(" ").into()
        }
    }
}

/// `com.example.v1.Widget`, as OpenAPI names the type.
fn message_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// `discovery.StorageVersionHash`.
fn hash(group: &str, version: &str, kind: &str) -> String {
    let digest = Sha256::digest(format!("{group}/{version}, Kind={kind}"));
    STANDARD.encode(&digest[..8])
}

fn list(names: &Value, field: &str) -> &'static [&'static str] {
    let list: Vec<&'static str> = items(names, &[field])
        .iter()
        .filter_map(Value::as_str)
        .map(keep)
        .collect();
    Vec::leak(list)
}

fn field_labels(item: &Value) -> &'static [&'static str] {
    let mut labels = vec!["metadata.name", "metadata.namespace"];
    labels.extend(
        items(item, &["selectableFields"])
            .iter()
            .map(|field| keep(text(field, &["jsonPath"]).trim_start_matches('.'))),
    );
    Vec::leak(labels)
}

fn subresources(
    item: &Value,
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    message: &'static Message,
    scales: bool,
) -> &'static [Subresource] {
    let mut list = Vec::new();
    if scales && let Some(schema) = api::message_for("autoscaling", "v1", "Scale") {
        list.push(Subresource {
            name: "scale",
            group: "autoscaling",
            version: "v1",
            kind: "Scale",
            verbs: SUBRESOURCE_VERBS,
            schema,
        });
    }
    if has(item, &["subresources", "status"]) {
        list.push(Subresource {
            name: "status",
            group,
            version,
            kind,
            verbs: SUBRESOURCE_VERBS,
            schema: message,
        });
    }
    Vec::leak(list)
}

type Paths = Vec<(JsonPath, &'static str)>;

/// The name, what the version asks for, or else the age.
fn columns(item: &Value) -> (&'static [Column], Paths) {
    let column = |name, ty, format, priority| Column {
        name,
        ty,
        format,
        priority,
    };
    let mut columns = vec![column("Name", "string", "name", 0)];
    let mut paths = Vec::new();
    for wanted in items(item, &["additionalPrinterColumns"]) {
        let ty = keep(text(wanted, &["type"]));
        let Some(path) = JsonPath::parse(text(wanted, &["jsonPath"])) else {
            continue;
        };
        columns.push(column(
            keep(text(wanted, &["name"])),
            ty,
            keep(text(wanted, &["format"])),
            i32::try_from(int(wanted, &["priority"]).unwrap_or(0)).unwrap_or(0),
        ));
        paths.push((path, ty));
    }
    if paths.is_empty() {
        columns.push(column("Age", "date", "", 0));
        let path = JsonPath::parse(".metadata.creationTimestamp").expect("a path of names");
        paths.push((path, "date"));
    }
    (Vec::leak(columns), paths)
}

impl Scale {
    fn read(item: &Value) -> Option<Self> {
        let scale = at(item, &["subresources", "scale"]);
        let steps = |field: &str| -> Vec<String> {
            text(scale, &[field])
                .split('.')
                .filter(|step| !step.is_empty())
                .map(str::to_owned)
                .collect()
        };
        scale.is_object().then(|| Self {
            spec_replicas: steps("specReplicasPath"),
            status_replicas: steps("statusReplicasPath"),
            selector: has(scale, &["labelSelectorPath"]).then(|| steps("labelSelectorPath")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn widgets() -> Value {
        json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer", "default": 1, "minimum": 0}}}, "status": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}}}}}]}})
    }

    #[test]
    fn a_definition_becomes_a_resource_with_its_columns_and_paths() {
        let definition = Definition::read(&widgets()).expect("a definition");
        let resource = &definition.storage.resource;
        assert_eq!(resource.api_version(), "example.com/v1");
        assert_eq!(resource.etcd_prefix, "/registry/example.com/widgets");
        assert_eq!(resource.short_names, ["wd"]);
        assert!(resource.subresource("status").is_some());
        let object = json!({"metadata": {"name": "w"}, "spec": {"size": 3}});
        assert_eq!(
            definition.storage.cells(&object, time::now()),
            [json!("w"), json!(3), Value::Null]
        );
        let names: Vec<&str> = resource.columns.iter().map(|column| column.name).collect();
        assert_eq!(names, ["Name", "Size", "Age"]);
    }
}
