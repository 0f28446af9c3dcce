//! The tables of OpenAPI v3 documents in gnostic's protobuf (package `openapi.v3`). Nearly everything there is itself or
//! a reference, and nearly every map a message of named entries.

use serde_json::Value;

use super::Kind::{By, Each, Flag, Int, Map, Number, One, Text, Texts};
use super::{Message, any, embed, extensions, flag, message, named, number, security_scheme, text};

static DOCUMENT: Message = Message {
    fields: &[
        ("openapi", 1, Text),
        ("info", 2, One(&INFO)),
        ("paths", 4, By(paths)),
        ("components", 5, One(&COMPONENTS)),
    ],
    extension: 9,
};

static INFO: Message = Message {
    fields: &[
        ("title", 1, Text),
        ("description", 2, Text),
        ("version", 6, Text),
    ],
    extension: 7,
};

static COMPONENTS: Message = Message {
    fields: &[
        ("schemas", 1, Map(schema_or_reference)),
        ("securitySchemes", 7, Map(security_scheme)),
    ],
    extension: 10,
};

static PATH_ITEM: Message = Message {
    fields: &[
        ("summary", 2, Text),
        ("description", 3, Text),
        ("get", 4, One(&OPERATION)),
        ("put", 5, One(&OPERATION)),
        ("post", 6, One(&OPERATION)),
        ("delete", 7, One(&OPERATION)),
        ("options", 8, One(&OPERATION)),
        ("head", 9, One(&OPERATION)),
        ("patch", 10, One(&OPERATION)),
        ("parameters", 13, Each(parameter)),
    ],
    extension: 14,
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Texts),
        ("summary", 2, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("parameters", 6, Each(parameter)),
        ("requestBody", 7, By(request_body)),
        ("responses", 8, By(responses)),
        ("deprecated", 10, Flag),
    ],
    extension: 13,
};

static PARAMETER: Message = Message {
    fields: &[
        ("name", 1, Text),
        ("in", 2, Text),
        ("description", 3, Text),
        ("required", 4, Flag),
        ("schema", 10, By(schema_or_reference)),
    ],
    extension: 14,
};

static REQUEST_BODY: Message = Message {
    fields: &[
        ("description", 1, Text),
        ("content", 2, Map(media_type)),
        ("required", 3, Flag),
    ],
    extension: 4,
};

static MEDIA_TYPE: Message = Message {
    fields: &[("schema", 1, By(schema_or_reference))],
    extension: 5,
};

static RESPONSE: Message = Message {
    fields: &[("description", 1, Text), ("content", 3, Map(media_type))],
    extension: 5,
};

static SCHEMA: Message = Message {
    fields: &[
        ("nullable", 1, Flag),
        ("readOnly", 3, Flag),
        ("example", 7, By(any)),
        ("deprecated", 8, Flag),
        ("title", 9, Text),
        ("multipleOf", 10, Number),
        ("maximum", 11, Number),
        ("exclusiveMaximum", 12, Flag),
        ("minimum", 13, Number),
        ("exclusiveMinimum", 14, Flag),
        ("maxLength", 15, Int),
        ("minLength", 16, Int),
        ("pattern", 17, Text),
        ("maxItems", 18, Int),
        ("minItems", 19, Int),
        ("uniqueItems", 20, Flag),
        ("maxProperties", 21, Int),
        ("minProperties", 22, Int),
        ("required", 23, Texts),
        ("enum", 24, Each(any)),
        ("type", 25, Text),
        ("allOf", 26, Each(schema_or_reference)),
        ("oneOf", 27, Each(schema_or_reference)),
        ("anyOf", 28, Each(schema_or_reference)),
        ("not", 29, One(&SCHEMA)),
        ("items", 30, By(items_item)),
        ("properties", 31, Map(schema_or_reference)),
        ("additionalProperties", 32, By(additional_properties)),
        ("default", 33, By(default)),
        ("description", 34, Text),
        ("format", 35, Text),
    ],
    extension: 36,
};

static REFERENCE: Message = Message {
    fields: &[("$ref", 1, Text), ("description", 3, Text)],
    extension: 0,
};

/// The document's bytes.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 << 20);
    message(document, &DOCUMENT, &mut out);
    out
}

fn paths(value: &Value, out: &mut Vec<u8>) {
    named(1, value, |item, out| message(item, &PATH_ITEM, out), out);
}

/// Wrapped in what could be a reference.
fn parameter(value: &Value, out: &mut Vec<u8>) {
    embed(1, out, |out| message(value, &PARAMETER, out));
}

fn schema_or_reference(value: &Value, out: &mut Vec<u8>) {
    match value.get("$ref") {
        Some(_) => embed(2, out, |out| message(value, &REFERENCE, out)),
        None => embed(1, out, |out| message(value, &SCHEMA, out)),
    }
}

fn items_item(value: &Value, out: &mut Vec<u8>) {
    embed(1, out, |out| schema_or_reference(value, out));
}

fn additional_properties(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Bool(_) => flag(2, value, out),
        _ => embed(1, out, |out| schema_or_reference(value, out)),
    }
}

/// Only numbers, booleans and texts can be told; of other defaults it is only told that there is one.
fn default(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Number(_) => number(1, value, out),
        // Of one of several, false is told, too.
        Value::Bool(is) => out.extend_from_slice(&[2 << 3, u8::from(*is)]),
        _ => text(3, value, out),
    }
}

fn request_body(value: &Value, out: &mut Vec<u8>) {
    embed(1, out, |out| message(value, &REQUEST_BODY, out));
}

fn media_type(value: &Value, out: &mut Vec<u8>) {
    message(value, &MEDIA_TYPE, out);
}

fn responses(value: &Value, out: &mut Vec<u8>) {
    let respond = |response: &Value, out: &mut Vec<u8>| {
        embed(1, out, |out| message(response, &RESPONSE, out));
    };
    if let Some(response) = value.get("default") {
        embed(1, out, |out| respond(response, out));
    }
    for (code, response) in value.as_object().into_iter().flatten() {
        if code != "default" && !code.starts_with("x-") {
            super::entry(2, code, out, |out| respond(response, out));
        }
    }
    extensions(3, value, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bytes_of(of: &'static Message, value: Value) -> Vec<u8> {
        let mut out = Vec::new();
        message(&value, of, &mut out);
        out
    }

    #[test]
    fn schemas_and_references_are_told_apart() {
        let document = json!({"openapi": "3.0.0", "components": {"schemas": {"A": {"type": "object",
            "properties": {"b": {"$ref": "#/components/schemas/B"}}}}}});
        let reference = b"\x12\x18\x0a\x16#/components/schemas/B";
        let mut properties = Vec::new();
        super::super::entry(1, "b", &mut properties, |out| {
            out.extend_from_slice(reference);
        });
        let mut schema = b"\xca\x01\x06object".to_vec();
        super::super::bytes(31, &properties, &mut schema);
        let mut schemas = Vec::new();
        super::super::entry(1, "A", &mut schemas, |out| {
            super::super::bytes(1, &schema, out);
        });
        let mut components = Vec::new();
        super::super::bytes(1, &schemas, &mut components);
        let mut expect = b"\x0a\x053.0.0".to_vec();
        super::super::bytes(5, &components, &mut expect);
        assert_eq!(encode(&document), expect);
    }

    #[test]
    fn defaults_are_numbers_booleans_and_texts() {
        for (value, bytes) in [
            (json!(false), &b"\x8a\x02\x02\x10\x00"[..]),
            (json!(""), b"\x8a\x02\x02\x1a\x00"),
            (json!(1), b"\x8a\x02\x09\x09\0\0\0\0\0\0\xf0\x3f"),
            (json!({}), b"\x8a\x02\x00"),
        ] {
            assert_eq!(bytes_of(&SCHEMA, json!({"default": value})), bytes);
        }
    }

    #[test]
    fn bounds_and_choices_are_written() {
        let schema = json!({"maxLength": 63, "minimum": 1.5, "enum": ["a"], "items": {}, "additionalProperties": true});
        assert_eq!(
            bytes_of(&SCHEMA, schema),
            b"\x69\0\0\0\0\0\0\xf8\x3f\x78\x3f\xc2\x01\x06\x12\x04\"a\"\n\xf2\x01\x04\x0a\x02\x0a\x00\x82\x02\x02\x10\x01"
        );
        assert_eq!(
            bytes_of(
                &OPERATION,
                json!({"responses": {"200": {"description": "OK"}}})
            ),
            b"\x42\x0f\x12\x0d\x0a\x03200\x12\x06\x0a\x04\x0a\x02OK"
        );
    }
}
