//! Owns: JSON trees to protobuf bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Envelope, MAGIC};
use crate::schema::{Field, ListType, MapType, Message, SchemaOr, Type, WireTarget};
use crate::time;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

/// The bytes of one message.
pub(super) fn message(object: &Value, table: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    fields(&mut out, object, table);
    out
}

/// The marked envelope.
pub(super) fn envelope(envelope: &Envelope) -> Vec<u8> {
    let mut out = Vec::with_capacity(envelope.raw.len() + 64);
    out.extend_from_slice(MAGIC);
    nested(&mut out, 1, |out| {
        bytes(out, 1, envelope.api_version.as_bytes());
        bytes(out, 2, envelope.kind.as_bytes());
    });
    bytes(&mut out, 2, envelope.raw);
    bytes(&mut out, 3, b"");
    bytes(&mut out, 4, b"");
    out
}

fn fields(out: &mut Vec<u8>, object: &Value, table: &Message) {
    for wire in table.wire.iter() {
        match &wire.target {
            WireTarget::Embed(inner) => nested(out, wire.number, |out| fields(out, object, inner)),
            WireTarget::Field(index) => {
                let Some(field) = table.fields.get(usize::from(*index)) else {
                    continue;
                };
                match object.get(&*field.name) {
                    None | Some(Value::Null) => {}
                    Some(value) => one_field(out, wire.number, value, field),
                }
            }
        }
    }
}

fn one_field(out: &mut Vec<u8>, number: u32, value: &Value, field: &Field) {
    match (&field.ty, value) {
        (Type::List(list), Value::Array(items)) => repeated(out, number, items, list),
        (Type::Map(map), Value::Object(entries)) => {
            for (key, item) in entries {
                entry(out, number, key, item, map);
            }
        }
        (ty, value) => single(out, number, value, ty),
    }
}

fn repeated(out: &mut Vec<u8>, number: u32, items: &[Value], list: &ListType) {
    if list.wrapped {
        nested(out, number, |out| {
            items
                .iter()
                .for_each(|item| single(out, 1, item, &list.item))
        });
        return;
    }
    for item in items {
        single(out, number, item, &list.item);
    }
}

fn entry(out: &mut Vec<u8>, number: u32, key: &str, item: &Value, map: &MapType) {
    nested(out, number, |out| {
        bytes(out, 1, key.as_bytes());
        match (&map.value, item) {
            (Type::List(list), Value::Array(items)) => repeated(out, 2, items, list),
            (ty, item) => single(out, 2, item, ty),
        }
    });
}

/// One value that is neither a list nor a map. What is not of the table's type was refused long before; it is left out.
fn single(out: &mut Vec<u8>, number: u32, value: &Value, ty: &Type) {
    match (ty, value) {
        (Type::String, Value::String(text)) => bytes(out, number, text.as_bytes()),
        (Type::Bytes, Value::String(text)) => {
            bytes(out, number, &STANDARD.decode(text).unwrap_or_default());
        }
        (Type::Bool, Value::Bool(flag)) => varint_field(out, number, u64::from(*flag)),
        (Type::Int32 | Type::Int64, Value::Number(n)) => {
            // Negative numbers travel as their two's complement in 64 bits.
            varint_field(out, number, n.as_i64().unwrap_or(0).cast_unsigned());
        }
        (Type::Double, Value::Number(n)) => {
            tag(out, number, FIXED64);
            out.extend_from_slice(&n.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        (Type::Time | Type::MicroTime, Value::String(text)) => {
            nested(out, number, |out| timestamp(out, text, ty))
        }
        // A zero time among a map's values.
        (Type::Time | Type::MicroTime, Value::Null) => nested(out, number, |_| ()),
        (Type::Duration, Value::String(text)) => nested(out, number, |out| {
            varint_field(
                out,
                1,
                time::parse_go_duration(text).unwrap_or(0).cast_unsigned(),
            );
        }),
        (Type::Quantity, Value::String(text)) => {
            nested(out, number, |out| bytes(out, 1, text.as_bytes()))
        }
        (Type::Quantity, Value::Number(n)) => {
            nested(out, number, |out| bytes(out, 1, n.to_string().as_bytes()))
        }
        (Type::IntOrString, value) => nested(out, number, |out| int_or_string(out, value)),
        (Type::Raw | Type::FieldsV1 | Type::Json, value) => nested(out, number, |out| {
            bytes(out, 1, value.to_string().as_bytes());
        }),
        (Type::SchemaOr(table, which), value) => {
            nested(out, number, |out| schema_or(out, value, table, *which))
        }
        (Type::Message(table), Value::Object(_)) => {
            nested(out, number, |out| fields(out, value, table))
        }
        (Type::List(list), Value::Array(items)) => repeated(out, number, items, list),
        _ => {}
    }
}

fn timestamp(out: &mut Vec<u8>, text: &str, ty: &Type) {
    let Some(time) = time::parse(text) else {
        return;
    };
    let nanos = match ty {
        Type::MicroTime => u64::from(time.microsecond()) * 1_000,
        // metav1.Time has whole seconds on every wire.
        _ => 0,
    };
    varint_field(out, 1, time.unix_timestamp().cast_unsigned());
    varint_field(out, 2, nanos);
}

fn int_or_string(out: &mut Vec<u8>, value: &Value) {
    let (kind, number, text) = match value {
        Value::String(text) => (1, 0, text.as_str()),
        value => (0, value.as_i64().unwrap_or(0), ""),
    };
    varint_field(out, 1, kind);
    varint_field(out, 2, number.cast_unsigned());
    bytes(out, 3, text.as_bytes());
}

fn schema_or(out: &mut Vec<u8>, value: &Value, table: &Message, which: SchemaOr) {
    match (which, value) {
        (SchemaOr::Bool, Value::Bool(allows)) => varint_field(out, 1, u64::from(*allows)),
        (SchemaOr::Bool, Value::Object(_)) => {
            varint_field(out, 1, 1);
            nested(out, 2, |out| fields(out, value, table));
        }
        (SchemaOr::Array, Value::Array(items)) => {
            for item in items {
                nested(out, 2, |out| fields(out, item, table));
            }
        }
        (SchemaOr::StringArray, Value::Array(items)) => {
            for text in items.iter().filter_map(Value::as_str) {
                bytes(out, 2, text.as_bytes());
            }
        }
        (_, Value::Object(_)) => nested(out, 1, |out| fields(out, value, table)),
        _ => {}
    }
}

/// A length-delimited field whose content `fill` writes.
fn nested(out: &mut Vec<u8>, number: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    tag(out, number, LENGTH);
    let start = out.len();
    // Most messages are shorter than 128 bytes: one byte of length, filled in afterwards.
    out.push(0);
    fill(out);
    let length = out.len() - start - 1;
    if let (Ok(short @ 0..=0x7f), Some(byte)) = (u8::try_from(length), out.get_mut(start)) {
        *byte = short;
        return;
    }
    let mut prefix = Vec::with_capacity(10);
    varint(&mut prefix, length as u64);
    out.splice(start..=start, prefix);
}

fn bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    tag(out, number, LENGTH);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    tag(out, number, VARINT);
    varint(out, value);
}

fn tag(out: &mut Vec<u8>, number: u32, wire_type: u32) {
    varint(out, u64::from(number << 3 | wire_type));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}
