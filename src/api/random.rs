//! Objects made of the tables by chance: any field of any kind, with values that are hard to read back. The same seed makes
//! the same objects.

use std::collections::BTreeSet;

use apimachinery::schema::{ListKind, ListType, Message, SchemaOr, Type, WireTarget, conform};
use apimachinery::{Map, Value};
use serde_json::json;

/// A small generator of numbers (xorshift64*), so that a failure can be repeated.
pub(crate) struct Random(pub(crate) u64);

/// Deepest nesting of messages in a random object; past it only what is required is made, by `conform`.
const MAX_DEPTH: usize = 7;

/// Texts that YAML, JSON or Go could take for something else.
const TEXTS: &[&str] = &[
    "a",
    "yes",
    "null",
    "~",
    "012",
    "0x1f",
    "1e3",
    ".5",
    "true",
    "2026-01-01",
    "- x",
    "a: b",
    "a #b",
    "#",
    "'",
    "\"",
    "\\",
    "{}",
    "[1]",
    "&a",
    "*a",
    "!!str",
    "|",
    ">",
    "%",
    "@",
    "`",
    " lead",
    "trail ",
    "two\nlines",
    "end\n",
    "\n",
    "tab\there",
    "é",
    "😀",
    "\u{1}",
    "\u{85}",
    "\u{2028}",
    "\u{feff}x",
    "x: |\n  y\n",
    "<<",
    "=",
    "1_000",
    "+1",
    "-",
    "a/b",
    "$patch",
    "a.b/c",
    ":",
    "k:{\"a\":1}",
];

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn text(&mut self) -> String {
        TEXTS[self.below(TEXTS.len())].to_owned()
    }

    fn one_of(&mut self, texts: &[&str]) -> Value {
        texts[self.below(texts.len())].into()
    }

    /// An object of a kind, fitted to its table.
    pub(crate) fn object(&mut self, api_version: &str, kind: &str, message: &Message) -> Value {
        let mut object = Value::Object(self.message(message, 0));
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        if message.field("metadata").is_some() {
            if !object["metadata"].is_object() {
                object["metadata"] = json!({});
            }
            object["metadata"]["name"] = "name".into();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
        }
        conform(&mut object, message)
            .unwrap_or_else(|error| panic!("{api_version} {kind}: {error}: {object}"));
        object
    }

    fn message(&mut self, message: &Message, depth: usize) -> Map<String, Value> {
        let mut map = Map::new();
        let numbered = numbered(message);
        for field in message.fields.iter() {
            // Protobuf leaves out the kind of an object inside another; the outer one gets its own.
            if !message.wire.is_empty() && !numbered.contains(&*field.name) {
                continue;
            }
            // Wide types would make objects of megabytes: fewer fields the deeper.
            if self.below(2 + depth) == 0 && depth <= MAX_DEPTH {
                map.extend(
                    self.value(&field.ty, depth)
                        .map(|value| (field.name.to_string(), value)),
                );
            }
        }
        map
    }

    fn value(&mut self, ty: &Type, depth: usize) -> Option<Value> {
        Some(match ty {
            Type::String => self.text().into(),
            Type::Bytes => self.one_of(&["AAEC/w==", "YQ==", "+/+/"]),
            Type::Bool => (self.below(2) == 0).into(),
            Type::Int32 => json!(self.next() as i32),
            Type::Int64 => json!(self.next() as i64),
            Type::Double => json!(self.next() as i32 as f64 / 8.0 + 0.125),
            Type::Time => self.one_of(&["2026-10-31T14:28:09Z", "1969-12-31T23:59:59Z"]),
            Type::MicroTime => {
                self.one_of(&["2026-10-31T14:28:09.000001Z", "2000-02-29T00:00:00.500000Z"])
            }
            Type::Duration => self.one_of(&["1h2m3.5s", "-5s", "1ns"]),
            Type::Quantity => self.one_of(&["1500m", "1Gi", "-3k", "12e6", "0"]),
            Type::IntOrString => match self.below(2) {
                0 => json!(self.next() as i32),
                _ => self.one_of(&["25%", "http", "8080"]),
            },
            Type::Raw => json!({"apiVersion": "v1", "kind": "A", "text": self.text()}),
            Type::FieldsV1 => json!({"f:spec": {".": {}, "f:a": {}}}),
            Type::Json => self.json(0),
            Type::SchemaOr(message, which) => match (which, self.below(2)) {
                (SchemaOr::Bool, 0) => true.into(),
                (SchemaOr::Array, 0) => Value::Array(vec![
                    Value::Object(self.message(message, depth + 2)),
                    json!({}),
                ]),
                (SchemaOr::StringArray, 0) => json!([self.text()]),
                _ => Value::Object(self.message(message, depth + 2)),
            },
            Type::Message(message) => Value::Object(self.message(message, depth + 1)),
            Type::Map(map) => {
                let mut made = Map::new();
                for _ in 0..self.below(3) {
                    let value = self.value(&map.value, depth + 1)?;
                    // As a key this is an order to a patch, which no patch can write.
                    let key = Some(self.text()).filter(|key| key != "$patch");
                    made.insert(key.unwrap_or_default(), value);
                }
                // Protobuf does not tell an empty map from none.
                return (!made.is_empty()).then(|| made.into());
            }
            Type::List(list) => self.list(list, depth)?,
        })
    }

    fn json(&mut self, depth: usize) -> Value {
        match self.below(if depth > 3 { 4 } else { 6 }) {
            0 => self.text().into(),
            1 => json!(self.next() as i64),
            2 => true.into(),
            3 => json!(0.5),
            4 => json!([self.json(depth + 1), self.json(depth + 1)]),
            _ => json!({self.text(): self.json(depth + 1)}),
        }
    }

    /// Items that can be told apart, since two with one key are no object that a server would keep.
    fn list(&mut self, list: &ListType, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        for number in 0..self.below(3) {
            let mut item = self.value(&list.item, depth + 1)?;
            if let (Type::Message(message), Some(map)) = (&list.item, item.as_object_mut()) {
                let keys = list.keys.iter().map(|key| &key.name).chain(&list.merge_key);
                for key in keys {
                    let ty = &message.field(key)?.ty;
                    map.insert(key.to_string(), key_value(ty, number)?);
                }
            }
            let is_new = !items.contains(&item);
            if is_new || list.kind == ListKind::Atomic {
                items.push(item);
            }
        }
        // Protobuf does not tell an empty list from none.
        (!items.is_empty()).then(|| items.into())
    }
}

/// The fields that protobuf has a number for.
pub(crate) fn numbered(message: &Message) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for wire in message.wire.iter() {
        match &wire.target {
            WireTarget::Field(at) => {
                names.extend(
                    message
                        .fields
                        .get(usize::from(*at))
                        .map(|field| &*field.name),
                );
            }
            WireTarget::Embed(inner) => names.extend(numbered(inner)),
        }
    }
    names
}

/// The value of a key in an item of this number.
fn key_value(ty: &Type, number: usize) -> Option<Value> {
    Some(match ty {
        Type::String => format!("key-{number}").into(),
        Type::Int32 | Type::Int64 => (number + 1).into(),
        Type::Message(_) => json!({}),
        Type::Bool if number == 0 => true.into(),
        _ => return None,
    })
}
