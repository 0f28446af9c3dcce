//! Types as schemas: each message that a document refers to, with all it refers to itself.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::Value;
use apimachinery::schema::{Field, ListKind, ListType, Message, SchemaOr, Type};
use serde_json::{Map, json};

use super::Dialect;
use super::descriptions::Descriptions;
use super::enumerations;
use crate::schema::KINDS;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const RESOURCE: &str = "io.k8s.apimachinery.pkg.api.resource.";
const UTIL: &str = "io.k8s.apimachinery.pkg.util.";
const RUNTIME: &str = "io.k8s.apimachinery.pkg.runtime.";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.";

/// Collects the definitions that a document needs.
pub(crate) struct Definitions {
    dialect: Dialect,
    descriptions: Descriptions,
    /// Definition name → the kinds it is (`group`, `version`, `kind`).
    kinds: BTreeMap<&'static str, Vec<(&'static str, &'static str, &'static str)>>,
    done: BTreeMap<String, Value>,
    asked: BTreeSet<String>,
}

impl Definitions {
    pub(crate) fn new(dialect: Dialect) -> Self {
        let mut kinds: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (group, version, kind, message) in KINDS.iter().copied() {
            kinds
                .entry(&*message.name)
                .or_default()
                .push((group, version, kind));
        }
        Self {
            dialect,
            descriptions: Descriptions::unpack(),
            kinds,
            done: BTreeMap::new(),
            asked: BTreeSet::new(),
        }
    }

    /// Names the kind of a resource whose type is in no table (a custom one).
    pub(crate) fn name_kind(&mut self, resource: &'static crate::Resource) {
        let kind = (resource.group, resource.version, resource.kind);
        let kinds = self.kinds.entry(&*resource.schema.name).or_default();
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// A reference to the type, which the document will define.
    pub(crate) fn refer(&mut self, message: &Message) -> Value {
        if self.asked.insert(message.name.to_string()) {
            let schema = self.object(message);
            self.done.insert(message.name.to_string(), schema);
        }
        self.dialect.reference(&message.name)
    }

    /// A reference to `meta.v1.Patch`, what a PATCH's body is.
    pub(crate) fn refer_patch(&mut self) -> Value {
        self.special(META, "Patch", json!({ "type": "object" }))
    }

    pub(crate) fn finish(self) -> BTreeMap<String, Value> {
        self.done
    }

    fn object(&mut self, message: &Message) -> Value {
        let mut schema = Map::new();
        if let Some(words) = self.descriptions.of_type(&message.name) {
            schema.insert("description".into(), words.into());
        }
        schema.insert("type".into(), "object".into());
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in message.fields.iter() {
            properties.insert(field.name.to_string(), self.property(message, field));
            if field.has(Field::REQUIRED) {
                required.push(Value::from(&*field.name));
            }
        }
        if !properties.is_empty() {
            schema.insert("properties".into(), properties.into());
        }
        if !required.is_empty() {
            schema.insert("required".into(), required.into());
        }
        if message.atomic {
            schema.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if message.preserve_unknown {
            schema.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
        }
        if let Some(kinds) = self.kinds.get(&*message.name) {
            let kinds: Vec<Value> = kinds
                .iter()
                .map(|(group, version, kind)| json!({ "group": group, "version": version, "kind": kind }))
                .collect();
            schema.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        schema.into()
    }

    fn property(&mut self, message: &Message, field: &Field) -> Value {
        let is_struct = matches!(field.ty, Type::Message(_)) && field.has(Field::ALWAYS);
        let mut schema = self.with_siblings(&field.ty, is_struct);
        if let Some(words) = self.descriptions.of_field(&message.name, &field.name) {
            schema.insert("description".into(), words.into());
        }
        if let Some(values) = enumerations::values(&message.name, &field.name) {
            enumerate(&mut schema, values);
        }
        if let Type::List(list) = &field.ty {
            list_extensions(list, &mut schema);
        }
        if field.has(Field::ATOMIC) {
            schema.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        let strategies = [
            (Field::MERGE, "merge"),
            (Field::RETAIN_KEYS, "retainKeys"),
            (Field::REPLACE, "replace"),
        ];
        let named: Vec<&str> = strategies
            .iter()
            .filter(|(flag, _)| field.has(*flag))
            .map(|(_, name)| *name)
            .collect();
        if !named.is_empty() {
            schema.insert("x-kubernetes-patch-strategy".into(), named.join(",").into());
        }
        let wants_default = !field.has(Field::POINTER) && field.has(Field::ALWAYS);
        if self.dialect == Dialect::V3 {
            let declared = enumerations::default(&message.name, &field.name).map(Value::from);
            let zero = || wants_default.then(|| zero_of(&field.ty)).flatten();
            if let Some(default) = declared.or_else(zero) {
                schema.insert("default".into(), default);
            }
        }
        schema.into()
    }

    /// A type's schema to which more may be added: OpenAPI 3.0 allows nothing beside a `$ref`.
    fn with_siblings(&mut self, ty: &Type, has_default: bool) -> Map<String, Value> {
        let schema = self.schema(ty);
        let is_reference = schema.get("$ref").is_some();
        let mut map = match schema {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        if is_reference && self.dialect == Dialect::V3 {
            let reference = Value::Object(map);
            map = Map::new();
            map.insert("allOf".into(), json!([reference]));
            if has_default {
                map.insert("default".into(), json!({}));
            }
        }
        map
    }

    fn schema(&mut self, ty: &Type) -> Value {
        match ty {
            Type::String => json!({ "type": "string" }),
            Type::Bytes => json!({ "type": "string", "format": "byte" }),
            Type::Bool => json!({ "type": "boolean" }),
            Type::Int32 => json!({ "type": "integer", "format": "int32" }),
            Type::Int64 => json!({ "type": "integer", "format": "int64" }),
            Type::Double => json!({ "type": "number", "format": "double" }),
            Type::Time => self.special(
                META,
                "Time",
                json!({ "type": "string", "format": "date-time" }),
            ),
            Type::MicroTime => self.special(
                META,
                "MicroTime",
                json!({ "type": "string", "format": "date-time" }),
            ),
            Type::Duration => self.special(META, "Duration", json!({ "type": "string" })),
            Type::Quantity => self.special(RESOURCE, "Quantity", self.quantity()),
            Type::IntOrString => self.special(UTIL, "intstr.IntOrString", self.int_or_string()),
            Type::Raw => self.special(RUNTIME, "RawExtension", json!({ "type": "object" })),
            Type::FieldsV1 => self.special(META, "FieldsV1", json!({ "type": "object" })),
            Type::Json => self.special(EXTENSIONS, "JSON", json!({})),
            Type::SchemaOr(_, which) => {
                let name = match which {
                    SchemaOr::Array => "JSONSchemaPropsOrArray",
                    SchemaOr::Bool => "JSONSchemaPropsOrBool",
                    SchemaOr::StringArray => "JSONSchemaPropsOrStringArray",
                };
                self.special(EXTENSIONS, name, json!({}))
            }
            Type::Message(message) => self.refer(message),
            Type::Map(map) => {
                json!({ "type": "object", "additionalProperties": self.item(&map.value) })
            }
            Type::List(list) => json!({ "type": "array", "items": self.item(&list.item) }),
        }
    }

    /// The schema of a list's items or a map's values.
    fn item(&mut self, ty: &Type) -> Value {
        let mut schema = self.with_siblings(ty, matches!(ty, Type::Message(_)));
        if let Type::List(list) = ty {
            list_extensions(list, &mut schema);
        }
        if self.dialect == Dialect::V3
            && let (false, Some(zero)) = (schema.contains_key("allOf"), zero_of(ty))
        {
            schema.insert("default".into(), zero);
        }
        schema.into()
    }

    fn quantity(&self) -> Value {
        match self.dialect {
            Dialect::V2 => json!({ "type": "string" }),
            Dialect::V3 => json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] }),
        }
    }

    fn int_or_string(&self) -> Value {
        match self.dialect {
            Dialect::V2 => json!({ "type": "string", "format": "int-or-string" }),
            Dialect::V3 => {
                json!({ "format": "int-or-string", "oneOf": [{ "type": "integer" }, { "type": "string" }] })
            }
        }
    }

    /// A reference to a type that has no fields.
    fn special(&mut self, package: &str, name: &str, schema: Value) -> Value {
        let full = format!("{package}{name}");
        if self.asked.insert(full.clone()) {
            let mut schema = schema;
            if let (Some(words), Some(map)) =
                (self.descriptions.of_type(&full), schema.as_object_mut())
            {
                map.insert("description".into(), words.into());
            }
            self.done.insert(full.clone(), schema);
        }
        self.dialect.reference(&full)
    }
}

fn list_extensions(list: &ListType, schema: &mut Map<String, Value>) {
    let kind = match list.kind {
        ListKind::Unset => None,
        ListKind::Atomic => Some("atomic"),
        ListKind::Set => Some("set"),
        ListKind::Map => Some("map"),
    };
    if let Some(kind) = kind {
        schema.insert("x-kubernetes-list-type".into(), kind.into());
    }
    if !list.keys.is_empty() {
        let keys: Vec<Value> = list
            .keys
            .iter()
            .map(|key| Value::from(&*key.name))
            .collect();
        schema.insert("x-kubernetes-list-map-keys".into(), keys.into());
    }
    if let Some(key) = &list.merge_key {
        schema.insert("x-kubernetes-patch-merge-key".into(), Value::from(&**key));
    }
}

/// Says which values a field takes, or the items of it, in the schema and in words (`EnumTypes` of kube-openapi).
fn enumerate(schema: &mut Map<String, Value>, values: &[&str]) {
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(inner).and_then(Value::as_object_mut) {
            inner.insert("enum".into(), values.into());
            return;
        }
    }
    schema.insert("enum".into(), values.into());
    if let Some(Value::String(words)) = schema.get_mut("description") {
        words.push_str("\n\nPossible enum values:");
        for value in values {
            words.push_str(&format!("\n - `{value:?}`"));
        }
    }
}

/// What Go's decoder leaves in a field that is not given.
fn zero_of(ty: &Type) -> Option<Value> {
    match ty {
        Type::String => Some(json!("")),
        Type::Bool => Some(json!(false)),
        Type::Int32 | Type::Int64 => Some(json!(0)),
        _ => None,
    }
}
