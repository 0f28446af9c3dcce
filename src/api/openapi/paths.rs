//! Resources as paths and operations: what can be asked where, with which parameters, and what comes back.

use std::collections::BTreeMap;

use apimachinery::Value;
use serde_json::{Map, json};

use super::Dialect;
use super::definitions::Definitions;
use crate::{Resource, Subresource, message_for};

const READ_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
const WATCH_TYPES: &[&str] = &[
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const PATCH_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Custom objects are not merged strategically: kubectl looks here for what it may send.
const CUSTOM_PATCH_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];

/// A parameter: name, OpenAPI type, what it does.
type Parameter = (&'static str, &'static str, &'static str);

const PRETTY: Parameter = ("pretty", "string", "If 'true', the output is indented.");
const DRY_RUN: Parameter = (
    "dryRun",
    "string",
    "With the value All, nothing is persisted.",
);
const FIELD_MANAGER: Parameter = (
    "fieldManager",
    "string",
    "The name of the actor or entity making these changes.",
);
const FIELD_VALIDATION: Parameter = (
    "fieldValidation",
    "string",
    "What unknown or duplicate fields lead to: Ignore, Warn or Strict.",
);
const FORCE: Parameter = (
    "force",
    "boolean",
    "Takes over fields owned by others; for apply only.",
);
const LIST: &[Parameter] = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "Asks for watch events of type BOOKMARK.",
    ),
    (
        "continue",
        "string",
        "Where an earlier list with a limit left off.",
    ),
    (
        "fieldSelector",
        "string",
        "Restricts the objects by their fields; everything by default.",
    ),
    (
        "labelSelector",
        "string",
        "Restricts the objects by their labels; everything by default.",
    ),
    ("limit", "integer", "The most objects one response holds."),
    (
        "resourceVersion",
        "string",
        "A constraint on the versions a request may be served from.",
    ),
    (
        "resourceVersionMatch",
        "string",
        "How resourceVersion is applied to a list.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Begins a watch with the present state and a bookmark.",
    ),
    (
        "timeoutSeconds",
        "integer",
        "Limits the duration of the call.",
    ),
    ("watch", "boolean", "Streams changes instead of listing."),
];
const DELETE: &[Parameter] = &[
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "Seconds before the object is deleted; zero means at once.",
    ),
    (
        "orphanDependents",
        "boolean",
        "Deprecated: use propagationPolicy.",
    ),
    (
        "propagationPolicy",
        "string",
        "Whether and how dependents are deleted: Orphan, Background or Foreground.",
    ),
];

/// The paths of one group version's resources.
pub(crate) fn of(
    resources: &[&'static Resource],
    definitions: &mut Definitions,
) -> BTreeMap<String, Value> {
    let mut paths = BTreeMap::new();
    for resource in resources {
        let mut collection = Vec::new();
        for verb in ["list", "create", "deletecollection"] {
            if resource.has_verb(verb) {
                collection.push(verb);
            }
        }
        let root = resource.path("{namespace}");
        let place = Place::of(resource, None);
        insert(&mut paths, &root, &place, &collection, definitions);
        if resource.namespaced && resource.has_verb("list") {
            let everywhere = Place {
                all_namespaces: true,
                ..Place::of(resource, None)
            };
            insert(
                &mut paths,
                &resource.path(""),
                &everywhere,
                &["list"],
                definitions,
            );
        }
        let mut single = Vec::new();
        for verb in ["get", "update", "patch", "delete"] {
            if resource.has_verb(verb) {
                single.push(verb);
            }
        }
        let named = format!("{root}/{{name}}");
        insert(
            &mut paths,
            &named,
            &Place {
                named: true,
                ..Place::of(resource, None)
            },
            &single,
            definitions,
        );
        for subresource in resource.subresources {
            let place = Place {
                named: true,
                ..Place::of(resource, Some(subresource))
            };
            insert(
                &mut paths,
                &format!("{named}/{}", subresource.name),
                &place,
                subresource.verbs,
                definitions,
            );
        }
    }
    paths
}

/// What a path addresses.
struct Place {
    resource: &'static Resource,
    subresource: Option<&'static Subresource>,
    named: bool,
    all_namespaces: bool,
}

impl Place {
    fn of(resource: &'static Resource, subresource: Option<&'static Subresource>) -> Self {
        Self {
            resource,
            subresource,
            named: false,
            all_namespaces: false,
        }
    }

    /// Group, version and kind of what is read and written here.
    fn kind(&self) -> (&'static str, &'static str, &'static str) {
        match self.subresource {
            Some(subresource) => (subresource.group, subresource.version, subresource.kind),
            None => (
                self.resource.group,
                self.resource.version,
                self.resource.kind,
            ),
        }
    }

    fn schema(&self, definitions: &mut Definitions) -> Value {
        match self.subresource {
            Some(subresource) => definitions.refer(subresource.schema),
            None => definitions.refer(self.resource.schema),
        }
    }

    /// `CoreV1NamespacedPodStatus`: what operation ids end with.
    fn label(&self) -> String {
        let group = self.resource.group.split('.').next().unwrap_or_default();
        let group = if group.is_empty() { "core" } else { group };
        let scope = if self.resource.namespaced && !self.all_namespaces {
            "Namespaced"
        } else {
            ""
        };
        let tail = self
            .subresource
            .map(|subresource| capital(subresource.name))
            .unwrap_or_default();
        let everywhere = if self.all_namespaces {
            "ForAllNamespaces"
        } else {
            ""
        };
        format!(
            "{}{}{scope}{}{tail}{everywhere}",
            capital(group),
            capital(self.resource.version),
            self.resource.kind
        )
    }
}

fn insert(
    paths: &mut BTreeMap<String, Value>,
    path: &str,
    place: &Place,
    verbs: &[&str],
    definitions: &mut Definitions,
) {
    let mut item = Map::new();
    for verb in verbs {
        // Connecting has no verb of its own; what these subresources take is no object.
        let method = match *verb {
            "list" | "get" => "get",
            "create" => "post",
            "update" => "put",
            "patch" => "patch",
            "delete" | "deletecollection" => "delete",
            _ => continue,
        };
        item.insert(method.into(), operation(verb, place, definitions));
    }
    if item.is_empty() {
        return;
    }
    let mut parameters = Vec::new();
    let dialect = definitions.dialect();
    if place.named {
        parameters.push(path_parameter(
            "name",
            &format!("name of the {}", place.kind().2),
            dialect,
        ));
    }
    if place.resource.namespaced && !place.all_namespaces {
        parameters.push(path_parameter(
            "namespace",
            "the namespace of the objects",
            dialect,
        ));
    }
    parameters.push(query_parameter(PRETTY, dialect));
    item.insert("parameters".into(), parameters.into());
    paths.insert(path.to_owned(), item.into());
}

fn operation(verb: &str, place: &Place, definitions: &mut Definitions) -> Value {
    let dialect = definitions.dialect();
    let (group, version, kind) = place.kind();
    let (action, words) = match verb {
        "list" => ("list", format!("List or watch objects of kind {kind}.")),
        "get" => ("get", format!("Read the specified {kind}.")),
        "create" => ("post", format!("Create a {kind}.")),
        "update" => ("put", format!("Replace the specified {kind}.")),
        "patch" => ("patch", format!("Partially update the specified {kind}.")),
        "delete" => ("delete", format!("Delete a {kind}.")),
        _ => (
            "deletecollection",
            format!("Delete a collection of {kind}."),
        ),
    };
    let verb_name = match verb {
        "update" => "replace",
        "get" => "read",
        "deletecollection" => "deleteCollection",
        other => other,
    };
    let mut parameters: Vec<Value> = Vec::new();
    for parameter in parameters_of(verb) {
        parameters.push(query_parameter(parameter, dialect));
    }
    let mut operation = json!({
        "tags": [tag(place.resource)],
        "description": words,
        "operationId": format!("{verb_name}{}", place.label()),
        "responses": responses(verb, place, definitions),
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": { "group": group, "version": version, "kind": kind },
    });
    if let Some((schema, types)) = body(verb, place, definitions) {
        let required = !matches!(verb, "delete" | "deletecollection");
        match dialect {
            Dialect::V2 => {
                let mut parameter = json!({ "name": "body", "in": "body", "schema": schema });
                if required {
                    parameter["required"] = true.into();
                }
                parameters.push(parameter);
                operation["consumes"] = json!(types);
            }
            Dialect::V3 => {
                operation["requestBody"] = json!({ "content": content(&schema, types) });
                if required {
                    operation["requestBody"]["required"] = true.into();
                }
            }
        }
    }
    if dialect == Dialect::V2 {
        operation["produces"] = json!(produced(verb));
        operation["schemes"] = json!(["https"]);
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

fn parameters_of(verb: &str) -> Vec<Parameter> {
    match verb {
        "list" => LIST.to_vec(),
        "create" | "update" => vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION],
        "patch" => vec![DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE],
        "delete" => DELETE.to_vec(),
        "deletecollection" => {
            let selecting = LIST
                .iter()
                .filter(|(name, ..)| !matches!(*name, "allowWatchBookmarks" | "watch"));
            selecting.chain(DELETE).copied().collect()
        }
        _ => Vec::new(),
    }
}

/// What a request carries and in which types.
fn body(
    verb: &str,
    place: &Place,
    definitions: &mut Definitions,
) -> Option<(Value, &'static [&'static str])> {
    match verb {
        "create" | "update" => Some((place.schema(definitions), READ_TYPES)),
        "patch" => {
            let types = match place.resource.schema.wire.is_empty() {
                true => CUSTOM_PATCH_TYPES,
                false => PATCH_TYPES,
            };
            Some((definitions.refer_patch(), types))
        }
        "delete" | "deletecollection" => {
            let options = message_for("", "v1", "DeleteOptions")?;
            Some((definitions.refer(options), READ_TYPES))
        }
        _ => None,
    }
}

fn responses(verb: &str, place: &Place, definitions: &mut Definitions) -> Value {
    let resource = place.resource;
    let answer = match verb {
        "list" => message_for(resource.group, resource.version, &resource.list_kind()),
        "delete" | "deletecollection" => message_for("", "v1", "Status"),
        _ => None,
    };
    let schema = match answer {
        Some(message) => definitions.refer(message),
        None => place.schema(definitions),
    };
    let codes: &[(&str, &str)] = match verb {
        "create" => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
        "update" | "patch" => &[("200", "OK"), ("201", "Created")],
        "delete" => &[("200", "OK"), ("202", "Accepted")],
        _ => &[("200", "OK")],
    };
    let mut all = Map::new();
    for (code, words) in codes {
        let response = match definitions.dialect() {
            Dialect::V2 => json!({ "description": words, "schema": schema }),
            Dialect::V3 => {
                json!({ "description": words, "content": content(&schema, &produced(verb)) })
            }
        };
        all.insert((*code).into(), response);
    }
    all.insert("401".into(), json!({ "description": "Unauthorized" }));
    all.into()
}

fn produced(verb: &str) -> Vec<&'static str> {
    let mut types = READ_TYPES.to_vec();
    if verb == "list" {
        types.extend(WATCH_TYPES);
    }
    types
}

fn content(schema: &Value, types: &[&str]) -> Value {
    types
        .iter()
        .map(|media| ((*media).to_owned(), json!({ "schema": schema })))
        .collect::<Map<_, _>>()
        .into()
}

fn path_parameter(name: &str, words: &str, dialect: Dialect) -> Value {
    let mut parameter =
        json!({ "name": name, "in": "path", "description": words, "required": true });
    typed(&mut parameter, "string", dialect);
    parameter
}

fn query_parameter((name, ty, words): Parameter, dialect: Dialect) -> Value {
    let mut parameter = json!({ "name": name, "in": "query", "description": words });
    typed(&mut parameter, ty, dialect);
    parameter
}

fn typed(parameter: &mut Value, ty: &str, dialect: Dialect) {
    match dialect {
        Dialect::V2 => parameter["type"] = ty.into(),
        Dialect::V3 => parameter["schema"] = json!({ "type": ty }),
    }
    // Repeating a parameter is as good as giving it once.
    if dialect == Dialect::V2 {
        parameter["uniqueItems"] = true.into();
    } else {
        parameter["schema"]["uniqueItems"] = true.into();
    }
}

/// `core_v1`, `rbacAuthorization_v1`: what upstream groups operations by.
fn tag(resource: &Resource) -> String {
    let group = resource.group.trim_end_matches(".k8s.io");
    let mut words = group.split('.');
    let first = words
        .next()
        .filter(|word| !word.is_empty())
        .unwrap_or("core");
    let rest: String = words.map(capital).collect();
    format!("{first}{rest}_{}", resource.version)
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}
