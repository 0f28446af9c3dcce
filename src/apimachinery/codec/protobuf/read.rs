//! Owns: protobuf bytes to JSON trees.

use std::cell::Cell;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::Envelope;
use crate::codec::{DecodeError, MAX_DEPTH, json};
use crate::schema::{Field, ListType, MapType, Message, SchemaOr, Type, WireTarget};
use crate::time;

type Read<T> = Result<T, DecodeError>;

/// Messages that an object may have whatever its size, and bytes that each further one must take: an empty one takes two
/// bytes here and a kilobyte once its required fields are in place.
const MESSAGES: usize = 64 << 10;
const BYTES_PER_MESSAGE: usize = 8;

/// How deep the reader is, and how many messages it may still read.
#[derive(Clone, Copy)]
struct At<'a> {
    depth: usize,
    left: &'a Cell<usize>,
}

impl At<'_> {
    fn below(self) -> Self {
        Self {
            depth: self.depth + 1,
            ..self
        }
    }

    /// Counts a message.
    fn enter(self) -> Read<()> {
        if self.depth > MAX_DEPTH {
            return Err(DecodeError("exceeded max depth".to_owned()));
        }
        let left = self.left.get().checked_sub(1);
        self.left
            .set(left.ok_or_else(|| DecodeError("too many messages".to_owned()))?);
        Ok(())
    }
}

/// Reads one message.
pub(super) fn message(bytes: &[u8], table: &Message) -> Read<Value> {
    let mut map = Map::new();
    let left = Cell::new(MESSAGES + bytes.len() / BYTES_PER_MESSAGE);
    let at = At {
        depth: 0,
        left: &left,
    };
    fields(&mut map, bytes, table, at)?;
    Ok(map.into())
}

/// Reads the envelope after its mark.
pub(super) fn envelope(bytes: &[u8]) -> Read<Envelope<'_>> {
    let mut found = Envelope {
        api_version: "",
        kind: "",
        raw: &[],
    };
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.field()? {
        match number {
            1 => {
                let mut inner = Reader(value.bytes()?);
                while let Some((number, value)) = inner.field()? {
                    match number {
                        1 => found.api_version = value.text()?,
                        2 => found.kind = value.text()?,
                        _ => {}
                    }
                }
            }
            2 => found.raw = value.bytes()?,
            _ => {}
        }
    }
    Ok(found)
}

/// One field's payload as it is on the wire.
#[derive(Clone, Copy)]
enum Payload<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Other,
}

impl<'a> Payload<'a> {
    fn bytes(self) -> Read<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(wrong_type()),
        }
    }

    fn text(self) -> Read<&'a str> {
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| DecodeError("proto: field contains invalid UTF-8".to_owned()))
    }

    fn number(self) -> Read<i64> {
        match self {
            Self::Varint(value) => Ok(value.cast_signed()),
            _ => Err(wrong_type()),
        }
    }
}

fn wrong_type() -> DecodeError {
    DecodeError("proto: wrong wireType for field".to_owned())
}

fn cut_off() -> DecodeError {
    DecodeError("unexpected EOF".to_owned())
}

/// What is left to read of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next field's number and payload.
    fn field(&mut self) -> Read<Option<(u32, Payload<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| {
            DecodeError(format!(
                "proto: illegal tag {} (wire type {})",
                tag >> 3,
                tag & 7
            ))
        })?;
        let payload = match tag & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?;
                Payload::Fixed64(bytes.try_into().map_err(|_| cut_off())?)
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| cut_off())?;
                Payload::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Payload::Other
            }
            other => return Err(DecodeError(format!("proto: illegal wireType {other}"))),
        };
        Ok(Some((number, payload)))
    }

    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(cut_off)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Read<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or_else(cut_off)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError("proto: integer overflow".to_owned()))
    }
}

fn fields(map: &mut Map<String, Value>, bytes: &[u8], table: &Message, at: At<'_>) -> Read<()> {
    at.enter()?;
    let mut reader = Reader(bytes);
    while let Some((number, payload)) = reader.field()? {
        let Ok(index) = table.wire.binary_search_by_key(&number, |wire| wire.number) else {
            continue;
        };
        match table.wire.get(index).map(|wire| &wire.target) {
            Some(WireTarget::Embed(inner)) => fields(map, payload.bytes()?, inner, at.below())?,
            Some(WireTarget::Field(index)) => {
                if let Some(field) = table.fields.get(usize::from(*index)) {
                    one_field(map, payload, field, at)?;
                }
            }
            None => {}
        }
    }
    Ok(())
}

fn one_field(
    map: &mut Map<String, Value>,
    payload: Payload,
    field: &Field,
    at: At<'_>,
) -> Read<()> {
    match &field.ty {
        Type::List(list) => {
            let slot = map
                .entry(&*field.name)
                .or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(items) = slot {
                repeated(items, payload, list, at)?;
            }
        }
        Type::Map(map_type) => {
            let slot = map
                .entry(&*field.name)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(entries) = slot {
                let (key, value) = entry(payload, map_type, at)?;
                entries.insert(key, value);
            }
        }
        // A message that comes in pieces is one message.
        Type::Message(table) => {
            let slot = map
                .entry(&*field.name)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = slot {
                fields(inner, payload.bytes()?, table, at.below())?;
            }
        }
        ty => {
            let value = single(payload, ty, at)?;
            let is_kept = field.has(Field::ALWAYS) || field.has(Field::POINTER) || !is_zero(&value);
            if is_kept && !value.is_null() {
                map.insert(field.name.to_string(), value);
            } else {
                map.remove(&*field.name);
            }
        }
    }
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn repeated(items: &mut Vec<Value>, payload: Payload, list: &ListType, at: At<'_>) -> Read<()> {
    if list.wrapped {
        let mut reader = Reader(payload.bytes()?);
        while let Some((number, payload)) = reader.field()? {
            if number == 1 {
                items.push(single(payload, &list.item, at.below())?);
            }
        }
        return Ok(());
    }
    // Numbers may come packed.
    if let (Type::Int32 | Type::Int64 | Type::Bool, Payload::Bytes(bytes)) = (&list.item, payload) {
        let mut reader = Reader(bytes);
        while !reader.0.is_empty() {
            let number = reader.varint()?;
            items.push(single(Payload::Varint(number), &list.item, at)?);
        }
        return Ok(());
    }
    items.push(single(payload, &list.item, at)?);
    Ok(())
}

fn entry(payload: Payload, map: &MapType, at: At<'_>) -> Read<(String, Value)> {
    let mut key = "";
    let mut value = None;
    let mut items = Vec::new();
    let mut reader = Reader(payload.bytes()?);
    while let Some((number, payload)) = reader.field()? {
        match (number, &map.value) {
            (1, _) => key = payload.text()?,
            (2, Type::List(list)) => repeated(&mut items, payload, list, at.below())?,
            (2, ty) => value = Some(single(payload, ty, at.below())?),
            _ => {}
        }
    }
    let value = match (&map.value, value) {
        (Type::List(_), _) => Value::Array(items),
        (_, Some(value)) => value,
        (Type::String | Type::Bytes | Type::Quantity, None) => Value::String(String::new()),
        (Type::Message(_), None) => Value::Object(Map::new()),
        (_, None) => Value::Null,
    };
    Ok((key.to_owned(), value))
}

/// One value that is neither a list nor a map; `Null` stands for a zero time.
fn single(payload: Payload, ty: &Type, at: At<'_>) -> Read<Value> {
    Ok(match ty {
        Type::String => payload.text()?.into(),
        Type::Bytes => STANDARD.encode(payload.bytes()?).into(),
        Type::Bool => (payload.number()? != 0).into(),
        Type::Int32 | Type::Int64 => payload.number()?.into(),
        Type::Double => match payload {
            Payload::Fixed64(bytes) => double(f64::from_le_bytes(bytes)),
            _ => return Err(wrong_type()),
        },
        Type::Time | Type::MicroTime => timestamp(payload.bytes()?, ty)?,
        Type::Duration => time::go_duration(first_number(payload.bytes()?)?).into(),
        Type::Quantity => first_bytes(payload.bytes()?)?.text()?.into(),
        Type::IntOrString => int_or_string(payload.bytes()?)?,
        Type::Raw | Type::FieldsV1 | Type::Json => {
            raw_json(first_bytes(payload.bytes()?)?.bytes()?)?
        }
        Type::SchemaOr(table, which) => schema_or(payload.bytes()?, table, *which, at)?,
        Type::Message(table) => {
            let mut map = Map::new();
            fields(&mut map, payload.bytes()?, table, at.below())?;
            map.into()
        }
        Type::List(list) => {
            let mut items = Vec::new();
            repeated(&mut items, payload, list, at.below())?;
            items.into()
        }
        Type::Map(_) => Value::Null,
    })
}

/// Go writes a whole number without a fraction.
fn double(number: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT {
        // Whole and below 2^53: exact in both.
        #[allow(clippy::cast_possible_truncation)]
        return Value::from(number as i64);
    }
    Value::from(number)
}

fn timestamp(bytes: &[u8], ty: &Type) -> Read<Value> {
    let (mut seconds, mut nanos) = (0, 0);
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let mut reader = Reader(bytes);
    while let Some((number, payload)) = reader.field()? {
        match number {
            1 => seconds = payload.number()?,
            2 => nanos = payload.number()?,
            _ => {}
        }
    }
    let time = time::Time::from_unix_timestamp(seconds)
        .ok()
        .and_then(|time| time.replace_nanosecond(u32::try_from(nanos).ok()?).ok())
        .ok_or_else(|| DecodeError("time is out of range".to_owned()))?;
    Ok(match ty {
        Type::MicroTime => time::format_micro(time),
        _ => time::format(time),
    }
    .into())
}

fn int_or_string(bytes: &[u8]) -> Read<Value> {
    let (mut kind, mut number, mut text) = (0, 0, "");
    let mut reader = Reader(bytes);
    while let Some((field, payload)) = reader.field()? {
        match field {
            1 => kind = payload.number()?,
            2 => number = payload.number()?,
            3 => text = payload.text()?,
            _ => {}
        }
    }
    Ok(if kind == 1 {
        text.into()
    } else {
        number.into()
    })
}

fn schema_or(bytes: &[u8], table: &Message, which: SchemaOr, at: At<'_>) -> Read<Value> {
    let mut items = Vec::new();
    let (mut allows, mut schema) = (false, None);
    let mut reader = Reader(bytes);
    while let Some((number, payload)) = reader.field()? {
        match (which, number) {
            (SchemaOr::Bool, 1) => allows = payload.number()? != 0,
            (SchemaOr::Bool, 2) | (_, 1) => schema = Some(single_message(payload, table, at)?),
            (SchemaOr::Array, 2) => items.push(single_message(payload, table, at)?),
            (SchemaOr::StringArray, 2) => items.push(payload.text()?.into()),
            _ => {}
        }
    }
    Ok(match (which, schema) {
        (_, Some(schema)) => schema,
        (SchemaOr::Bool, None) => allows.into(),
        (_, None) => items.into(),
    })
}

fn single_message(payload: Payload, table: &Message, at: At<'_>) -> Read<Value> {
    let mut map = Map::new();
    fields(&mut map, payload.bytes()?, table, at.below())?;
    Ok(map.into())
}

/// Field 1 of a message that has one field.
fn first_bytes(bytes: &[u8]) -> Read<Payload<'_>> {
    let mut found = Payload::Bytes(&[]);
    let mut reader = Reader(bytes);
    while let Some((number, payload)) = reader.field()? {
        if number == 1 {
            found = payload;
        }
    }
    Ok(found)
}

fn first_number(bytes: &[u8]) -> Read<i64> {
    match first_bytes(bytes)? {
        Payload::Bytes([]) => Ok(0),
        payload => payload.number(),
    }
}

fn raw_json(bytes: &[u8]) -> Read<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    Ok(json::decode(bytes)?.value)
}
