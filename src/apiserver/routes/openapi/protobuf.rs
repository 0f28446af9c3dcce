//! The OpenAPI v2 document in gnostic's protobuf (package `openapi.v2`), which client-go's discovery asks for; `v3` has the
//! tables of the v3 documents.
//!
//! ```text
//! table:  JSON key ─► field number and kind        Operation { "operationId": 5, "parameters": 8, x-…: 13 }
//! ```
//!
//! Only what our documents have is in the tables. Maps are lists of `{1: name, 2: value}`; extensions carry YAML text.

mod v3;

use serde_json::Value;

pub use v3::encode as encode_v3;

/// The fields of one gnostic message.
struct Message {
    fields: &'static [(&'static str, u32, Kind)],
    /// The number of `vendor_extension`, 0 for none.
    extension: u32,
}

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    /// A double.
    Number,
    Int,
    Texts,
    /// An embedded message.
    One(&'static Message),
    Many(&'static Message),
    /// A list whose items are written by hand.
    Each(Writer),
    /// A message of named entries in field 1.
    Map(Writer),
    /// Written by hand.
    By(Writer),
}

type Writer = fn(&Value, &mut Vec<u8>);

use Kind::{By, Each, Flag, Int, Many, Map, Number, One, Text, Texts};

static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, One(&INFO)),
        ("paths", 8, By(paths)),
        ("definitions", 9, Map(schema)),
        ("security", 12, Each(requirement)),
        ("securityDefinitions", 13, Map(security_definition)),
    ],
    extension: 16,
};

static INFO: Message = Message {
    fields: &[("title", 1, Text), ("version", 2, Text)],
    extension: 7,
};

static PATH_ITEM: Message = Message {
    fields: &[
        ("get", 2, One(&OPERATION)),
        ("put", 3, One(&OPERATION)),
        ("post", 4, One(&OPERATION)),
        ("delete", 5, One(&OPERATION)),
        ("options", 6, One(&OPERATION)),
        ("head", 7, One(&OPERATION)),
        ("patch", 8, One(&OPERATION)),
        ("parameters", 9, Each(parameter)),
    ],
    extension: 10,
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Texts),
        ("summary", 2, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("produces", 6, Texts),
        ("consumes", 7, Texts),
        ("parameters", 8, Each(parameter)),
        ("responses", 9, By(responses)),
        ("schemes", 10, Texts),
        ("deprecated", 11, Flag),
    ],
    extension: 13,
};

static BODY_PARAMETER: Message = Message {
    fields: &[
        ("description", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("required", 4, Flag),
        ("schema", 5, One(&SCHEMA)),
    ],
    extension: 6,
};

static QUERY_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, Flag),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 6, Text),
        ("format", 7, Text),
        ("uniqueItems", 20, Flag),
    ],
    extension: 23,
};

static PATH_PARAMETER: Message = Message {
    fields: &[
        ("required", 1, Flag),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 5, Text),
        ("format", 6, Text),
        ("uniqueItems", 19, Flag),
    ],
    extension: 22,
};

static RESPONSE: Message = Message {
    fields: &[("description", 1, Text), ("schema", 2, By(schema_item))],
    extension: 5,
};

static REFERENCE: Message = Message {
    fields: &[("$ref", 1, Text), ("description", 2, Text)],
    extension: 0,
};

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("title", 3, Text),
        ("description", 4, Text),
        ("default", 5, By(any)),
        ("multipleOf", 6, Number),
        ("maximum", 7, Number),
        ("exclusiveMaximum", 8, Flag),
        ("minimum", 9, Number),
        ("exclusiveMinimum", 10, Flag),
        ("maxLength", 11, Int),
        ("minLength", 12, Int),
        ("pattern", 13, Text),
        ("maxItems", 14, Int),
        ("minItems", 15, Int),
        ("uniqueItems", 16, Flag),
        ("maxProperties", 17, Int),
        ("minProperties", 18, Int),
        ("required", 19, Texts),
        ("enum", 20, Each(any)),
        ("additionalProperties", 21, By(additional_properties)),
        ("type", 22, By(type_item)),
        ("items", 23, By(schema_item)),
        ("allOf", 24, Many(&SCHEMA)),
        ("properties", 25, Map(schema)),
        ("readOnly", 27, Flag),
    ],
    extension: 31,
};

static API_KEY: Message = Message {
    fields: &[
        ("type", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("description", 4, Text),
    ],
    extension: 5,
};

/// The document's bytes.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 << 20);
    message(document, &DOCUMENT, &mut out);
    out
}

fn message(value: &Value, of: &'static Message, out: &mut Vec<u8>) {
    for (key, number, kind) in of.fields {
        let Some(value) = value.get(key) else {
            continue;
        };
        match kind {
            Text => text(*number, value, out),
            Flag => flag(*number, value, out),
            Number => self::number(*number, value, out),
            Int => int(*number, value, out),
            Texts => items(value).for_each(|item| text(*number, item, out)),
            One(of) => embed(*number, out, |out| message(value, of, out)),
            Many(of) => {
                items(value).for_each(|item| embed(*number, out, |out| message(item, of, out)));
            }
            Map(write) => embed(*number, out, |out| named(1, value, *write, out)),
            Each(write) => {
                items(value).for_each(|item| embed(*number, out, |out| write(item, out)));
            }
            By(write) => embed(*number, out, |out| write(value, out)),
        }
    }
    if of.extension != 0 {
        extensions(of.extension, value, out);
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn extensions(number: u32, value: &Value, out: &mut Vec<u8>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        if key.starts_with("x-") {
            entry(number, key, out, |out| any(value, out));
        }
    }
}

/// The entries of a map as repeated `{1: name, 2: value}`.
fn named(number: u32, map: &Value, write: Writer, out: &mut Vec<u8>) {
    for (name, value) in map.as_object().into_iter().flatten() {
        entry(number, name, out, |out| write(value, out));
    }
}

fn entry(number: u32, name: &str, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    embed(number, out, |out| {
        bytes(1, name.as_bytes(), out);
        embed(2, out, write);
    });
}

fn paths(value: &Value, out: &mut Vec<u8>) {
    named(2, value, |item, out| message(item, &PATH_ITEM, out), out);
}

fn schema(value: &Value, out: &mut Vec<u8>) {
    message(value, &SCHEMA, out);
}

/// `SchemaItem` and `ItemsItem` both have the schema in field 1.
fn schema_item(value: &Value, out: &mut Vec<u8>) {
    embed(1, out, |out| schema(value, out));
}

fn additional_properties(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Bool(_) => flag(2, value, out),
        _ => schema_item(value, out),
    }
}

fn type_item(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Array(_) => items(value).for_each(|item| text(1, item, out)),
        _ => text(1, value, out),
    }
}

fn responses(value: &Value, out: &mut Vec<u8>) {
    named(
        1,
        value,
        |response, out| match response.get("$ref") {
            Some(_) => embed(2, out, |out| message(response, &REFERENCE, out)),
            None => embed(1, out, |out| message(response, &RESPONSE, out)),
        },
        out,
    );
}

/// Which of the parameter messages it is depends on `in`.
fn parameter(value: &Value, out: &mut Vec<u8>) {
    if value.get("$ref").is_some() {
        return embed(2, out, |out| message(value, &REFERENCE, out));
    }
    embed(1, out, |out| match value["in"].as_str() {
        Some("body") => embed(1, out, |out| message(value, &BODY_PARAMETER, out)),
        Some("path") => embed(2, out, |out| {
            embed(4, out, |out| message(value, &PATH_PARAMETER, out));
        }),
        _ => embed(2, out, |out| {
            embed(3, out, |out| message(value, &QUERY_PARAMETER, out));
        }),
    });
}

/// Names with lists of scopes.
fn requirement(value: &Value, out: &mut Vec<u8>) {
    named(
        1,
        value,
        |scopes, out| items(scopes).for_each(|scope| text(1, scope, out)),
        out,
    );
}

/// Ours are all API keys.
fn security_scheme(value: &Value, out: &mut Vec<u8>) {
    static SCHEME: Message = Message {
        fields: &[
            ("type", 1, Text),
            ("description", 2, Text),
            ("name", 3, Text),
            ("in", 4, Text),
        ],
        extension: 9,
    };
    embed(1, out, |out| message(value, &SCHEME, out));
}

fn security_definition(value: &Value, out: &mut Vec<u8>) {
    embed(2, out, |out| message(value, &API_KEY, out));
}

/// `Any` with the value as YAML, which JSON is.
fn any(value: &Value, out: &mut Vec<u8>) {
    bytes(2, format!("{value}\n").as_bytes(), out);
}

fn text(number: u32, value: &Value, out: &mut Vec<u8>) {
    if let Some(text) = value.as_str() {
        bytes(number, text.as_bytes(), out);
    }
}

fn flag(number: u32, value: &Value, out: &mut Vec<u8>) {
    if value.as_bool() == Some(true) {
        varint(u64::from(number) << 3, out);
        varint(1, out);
    }
}

fn number(number: u32, value: &Value, out: &mut Vec<u8>) {
    if let Some(float) = value.as_f64() {
        varint(u64::from(number) << 3 | 1, out);
        out.extend_from_slice(&float.to_le_bytes());
    }
}

fn int(number: u32, value: &Value, out: &mut Vec<u8>) {
    if let Some(int) = value.as_u64() {
        varint(u64::from(number) << 3, out);
        varint(int, out);
    }
}

fn bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | 2, out);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn embed(number: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut content = Vec::new();
    write(&mut content);
    bytes(number, &content, out);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_written_by_their_tables() {
        let document = json!({
            "swagger": "2.0",
            "definitions": {"A": {"type": "object", "x-k": 1, "properties": {"b": {"$ref": "#/definitions/B"}}}},
        });
        let extension = b"\xfa\x01\x0b\x0a\x03x-k\x12\x04\x12\x021\n";
        let reference = b"\xca\x01\x18\x0a\x16\x0a\x01b\x12\x11\x0a\x0f#/definitions/B";
        let kind = b"\xb2\x01\x08\x0a\x06object";
        let schema = [&kind[..], reference, extension].concat();
        let mut expect = b"\x0a\x032.0".to_vec();
        super::embed(9, &mut expect, |out| {
            super::entry(1, "A", out, |out| out.extend_from_slice(&schema));
        });
        assert_eq!(encode(&document), expect);
    }

    #[test]
    fn parameters_are_told_apart_by_their_place() {
        let write = |value: Value| {
            let mut out = Vec::new();
            parameter(&value, &mut out);
            out
        };
        assert_eq!(
            write(json!({"in": "path", "name": "n"})),
            b"\x0a\x0d\x12\x0b\x22\x09\x12\x04path\x22\x01n"
        );
        assert_eq!(
            write(json!({"in": "query", "name": "n"})),
            b"\x0a\x0e\x12\x0c\x1a\x0a\x12\x05query\x22\x01n"
        );
        assert_eq!(
            write(json!({"in": "body", "name": "n"})),
            b"\x0a\x0b\x0a\x09\x12\x01n\x1a\x04body"
        );
    }
}
