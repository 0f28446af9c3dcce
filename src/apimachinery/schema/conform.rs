//! Owns: making an object what a Go server would hold after decoding it: values checked against their types, unknown
//! fields dropped, `null` absent, quantities and times canonical, fields without `omitempty` present and zero values of
//! the others gone. One walk does all of it, since it runs on every write.
//!
//! **Invariant:** recursion is bounded by the nesting of the input, which the decoders bound.

use super::{Field, ListType, Message, SchemaOr, Type};
use crate::codec::MAX_STRICT_ERRORS;
use crate::field::{Path, quote};
use serde_json::{Map, Value};

/// Fits an object to its table and returns the paths of the unknown fields it dropped.
///
/// # Errors
/// A value of the wrong type, in the words of Go's JSON decoder:
/// `json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container`.
pub fn conform(object: &mut Value, message: &Message) -> Result<Vec<String>, String> {
    let mut walk = Walk {
        check: true,
        prune: true,
        complete: true,
        unknown: Vec::new(),
    };
    walk.root(object, message)?;
    Ok(walk.unknown)
}

/// Only drops unknown fields and returns their paths.
pub fn prune(object: &mut Value, message: &Message) -> Vec<String> {
    let mut walk = Walk {
        check: false,
        prune: true,
        complete: false,
        unknown: Vec::new(),
    };
    // Without `check` nothing is refused.
    let _ = walk.root(object, message);
    walk.unknown
}

/// Only makes the object look as Go writes it; unknown fields and values of the wrong type are left alone.
pub fn complete(object: &mut Value, message: &Message) {
    let mut walk = Walk {
        check: false,
        prune: false,
        complete: true,
        unknown: Vec::new(),
    };
    // Without `check` nothing is refused.
    let _ = walk.root(object, message);
}

/// What Go writes of the field called `name` when nothing is in it; `null` when it leaves it out.
pub fn zero_field(message: &Message, name: &str) -> Value {
    let field = message.fields.iter().find(|field| field.name == name);
    field.and_then(absent).unwrap_or(Value::Null)
}

/// What Go's validation shows of the field at `path` when nothing is in it: the text `null` of a pointer, null of a list
/// or map, and else the type's zero value (`field.Error.ErrorBody`). A struct, and what no path leads to, counts as a
/// pointer.
pub fn shown_absent(message: &Message, path: &Path) -> Value {
    let pointer = || Value::String("null".to_owned());
    let (mut ty, mut field) = (None, None);
    let mut within = Some(message);
    for name in path.as_str().split('.') {
        let (name, inside) = match name.split_once('[') {
            Some((name, _)) => (name, true),
            None => (name, false),
        };
        let Some(found) = within.and_then(|message| message.field(name)) else {
            return pointer();
        };
        let at = match &found.ty {
            Type::List(list) if inside => &list.item,
            Type::Map(map) if inside => &map.value,
            ty => ty,
        };
        within = match at {
            Type::Message(message) => Some(message),
            _ => None,
        };
        (ty, field) = (Some(at), (!inside).then_some(found));
    }
    match ty {
        Some(Type::Message(_)) => pointer(),
        Some(_) if field.is_some_and(|field| field.has(Field::POINTER)) => pointer(),
        Some(ty) => zero(ty).unwrap_or_else(pointer),
        None => pointer(),
    }
}

/// The value Go gives an absent field of this type when it is always written; none for types it leaves out.
fn zero(ty: &Type) -> Option<Value> {
    Some(match ty {
        Type::String => Value::String(String::new()),
        Type::Bool => Value::Bool(false),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => 0.into(),
        Type::Message(message) => {
            let mut map = Map::new();
            add_missing(&mut map, message);
            Value::Object(map)
        }
        Type::Quantity => Value::String("0".to_owned()),
        Type::Duration => Value::String("0s".to_owned()),
        Type::List(_) | Type::Map(_) | Type::Bytes | Type::Time | Type::MicroTime => Value::Null,
        Type::Raw | Type::FieldsV1 | Type::Json | Type::SchemaOr(..) => return None,
    })
}

/// What an absent field is written as, for fields that are always written.
fn absent(field: &Field) -> Option<Value> {
    if field.has(Field::POINTER) {
        Some(Value::Null)
    } else {
        zero(&field.ty)
    }
}

fn add_missing(map: &mut Map<String, Value>, message: &Message) {
    for field in message
        .fields
        .iter()
        .filter(|field| field.has(Field::ALWAYS))
    {
        if !map.contains_key(&*field.name) {
            if let Some(value) = absent(field) {
                map.insert(field.name.to_string(), value);
            }
        }
    }
}

/// Where the walk is, as a list through the stack: costs nothing until a path is needed.
struct At<'a> {
    above: Option<&'a At<'a>>,
    step: Step<'a>,
}

enum Step<'a> {
    Root,
    Field(&'a Field, &'a Message),
    Key(&'a str),
    Index(usize),
}

impl At<'_> {
    fn path(&self) -> Path {
        let above = || self.above.map(At::path).unwrap_or_default();
        match self.step {
            Step::Root => Path::default(),
            Step::Field(field, _) => above().child(&field.name),
            Step::Key(key) => above().child(key),
            Step::Index(index) => above().index(index),
        }
    }

    /// `PodSpec.spec.containers`: the innermost struct and the names of fields from the root on, as Go tells it.
    fn go_path(&self) -> String {
        let (mut names, mut owner) = (Vec::new(), None);
        let mut at = Some(self);
        while let Some(here) = at {
            if let Step::Field(field, message) = here.step {
                names.push(&*field.name);
                owner = owner.or(Some(message.short_name()));
            }
            at = here.above;
        }
        names.reverse();
        match owner {
            Some(owner) => format!("struct field {owner}.{}", names.join(".")),
            None => "value".to_owned(),
        }
    }
}

fn mismatch(value: &Value, ty: &Type, at: &At<'_>) -> String {
    let what = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if matches!(ty, Type::Int32 | Type::Int64) => {
            format!("number {number}")
        }
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    format!(
        "json: cannot unmarshal {what} into Go {} of type {}",
        at.go_path(),
        go_type(ty)
    )
}

fn go_type(ty: &Type) -> String {
    match ty {
        Type::String => "string".to_owned(),
        Type::Bytes => "[]uint8".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Int32 | Type::IntOrString => "int32".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Double => "float64".to_owned(),
        Type::Time => "v1.Time".to_owned(),
        Type::MicroTime => "v1.MicroTime".to_owned(),
        Type::Duration => "v1.Duration".to_owned(),
        Type::Quantity => "resource.Quantity".to_owned(),
        Type::Raw => "runtime.RawExtension".to_owned(),
        Type::FieldsV1 => "v1.FieldsV1".to_owned(),
        Type::Json => "v1.JSON".to_owned(),
        Type::SchemaOr(message, _) | Type::Message(message) => message.go_name().to_owned(),
        Type::Map(map) => format!("map[string]{}", go_type(&map.value)),
        Type::List(list) => format!("[]{}", go_type(&list.item)),
    }
}

struct Walk {
    check: bool,
    prune: bool,
    complete: bool,
    unknown: Vec<String>,
}

/// Bytes of paths of unknown fields written for one object; past them they go without being named.
const MAX_UNKNOWN: usize = 64 << 10;

impl Walk {
    fn note(&mut self, at: &At<'_>, name: &str) {
        let written: usize = self.unknown.iter().map(String::len).sum();
        if self.unknown.len() < MAX_STRICT_ERRORS && written < MAX_UNKNOWN {
            self.unknown.push(at.path().child(name).to_string());
        }
    }

    fn root(&mut self, object: &mut Value, message: &Message) -> Result<(), String> {
        let at = At {
            above: None,
            step: Step::Root,
        };
        match object {
            Value::Object(map) => self.map(map, message, &at),
            other if self.check => Err(format!(
                "json: cannot unmarshal {} into Go value of type {}",
                kind_of(other),
                message.go_name()
            )),
            _ => Ok(()),
        }
    }

    fn map(
        &mut self,
        map: &mut Map<String, Value>,
        message: &Message,
        at: &At<'_>,
    ) -> Result<(), String> {
        let mut gone: Vec<String> = Vec::new();
        let mut missing = false;
        let mut fields = message.fields.iter().peekable();
        let always = |field: &Field| field.has(Field::ALWAYS);
        for (name, value) in map.iter_mut() {
            while let Some(field) = fields.next_if(|field| *field.name < **name) {
                missing |= always(field);
            }
            match fields.next_if(|field| field.name == name.as_str()) {
                Some(field) => {
                    let here = At {
                        above: Some(at),
                        step: Step::Field(field, message),
                    };
                    if !value.is_null() {
                        self.value(value, &field.ty, &here)?;
                    }
                    if self.complete && !keep(value, field) {
                        missing |= always(field);
                        gone.push(name.clone());
                    }
                }
                None if message.preserve_unknown => {}
                None if message.embedded_resource
                    && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") => {}
                None if self.prune => {
                    self.note(at, name);
                    gone.push(name.clone());
                }
                None => {}
            }
        }
        missing |= fields.any(always);
        for name in gone {
            map.remove(&name);
        }
        if missing && self.complete {
            add_missing(map, message);
        }
        Ok(())
    }

    fn value(&mut self, value: &mut Value, ty: &Type, at: &At<'_>) -> Result<(), String> {
        match (ty, &mut *value) {
            (Type::Message(message), Value::Object(map)) => return self.map(map, message, at),
            (Type::List(list), Value::Array(items)) => return self.list(items, list, at),
            (Type::Map(map), Value::Object(entries)) => {
                if !self.check && is_scalar(&map.value) && !matches!(map.value, Type::Quantity) {
                    return Ok(());
                }
                for (key, value) in entries.iter_mut() {
                    if value.is_null() {
                        *value = zero(&map.value).unwrap_or(Value::Null);
                        continue;
                    }
                    self.value(
                        value,
                        &map.value,
                        &At {
                            above: Some(at),
                            step: Step::Key(key),
                        },
                    )?;
                }
                return Ok(());
            }
            (Type::SchemaOr(message, _), Value::Object(map)) => return self.map(map, message, at),
            (Type::SchemaOr(message, SchemaOr::Array), Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    if let Value::Object(map) = item {
                        self.map(
                            map,
                            message,
                            &At {
                                above: Some(at),
                                step: Step::Index(index),
                            },
                        )?;
                    }
                }
                return Ok(());
            }
            (Type::SchemaOr(_, SchemaOr::Bool), Value::Bool(_))
            | (Type::SchemaOr(_, SchemaOr::StringArray), Value::Array(_)) => return Ok(()),
            _ => {}
        }
        self.scalar(value, ty, at)
    }

    fn list(&mut self, items: &mut [Value], list: &ListType, at: &At<'_>) -> Result<(), String> {
        for (index, item) in items.iter_mut().enumerate() {
            if item.is_null() {
                *item = zero(&list.item).unwrap_or(Value::Null);
                continue;
            }
            self.value(
                item,
                &list.item,
                &At {
                    above: Some(at),
                    step: Step::Index(index),
                },
            )?;
        }
        Ok(())
    }

    fn scalar(&mut self, value: &mut Value, ty: &Type, at: &At<'_>) -> Result<(), String> {
        let fits = match ty {
            Type::String => value.is_string(),
            Type::Bool => value.is_boolean(),
            Type::Int32 => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            Type::Int64 => value.as_i64().is_some(),
            Type::Double => value.is_number(),
            Type::Raw | Type::FieldsV1 => value.is_object(),
            Type::Json => true,
            Type::Quantity => return self.quantity(value, at),
            Type::IntOrString => return self.int_or_string(value),
            Type::Time | Type::MicroTime | Type::Duration | Type::Bytes => match value {
                Value::String(text) => return self.special_text(text, ty),
                _ => false,
            },
            Type::Message(_) | Type::Map(_) | Type::List(_) | Type::SchemaOr(..) => false,
        };
        if fits || !self.check {
            Ok(())
        } else {
            Err(mismatch(value, ty, at))
        }
    }

    fn quantity(&self, value: &mut Value, at: &At<'_>) -> Result<(), String> {
        let parsed = match &*value {
            Value::String(text) if is_canonical_number(text) => return Ok(()),
            Value::String(text) => text.trim().parse::<crate::quantity::Quantity>(),
            Value::Number(number) => number.to_string().parse(),
            _ if self.check => return Err(mismatch(value, &Type::Quantity, at)),
            _ => return Ok(()),
        };
        match parsed {
            Ok(quantity) => {
                if self.complete {
                    let canonical = quantity.to_string();
                    if value.as_str() != Some(&canonical) {
                        *value = Value::String(canonical);
                    }
                }
                Ok(())
            }
            Err(error) if self.check => Err(error.to_string()),
            Err(_) => Ok(()),
        }
    }

    fn int_or_string(&self, value: &Value) -> Result<(), String> {
        match value {
            Value::String(_) => Ok(()),
            Value::Number(number) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => {
                Ok(())
            }
            Value::Number(number) if self.check => Err(format!(
                "json: cannot unmarshal number {number} into Go value of type int32"
            )),
            other if self.check => Err(format!(
                "json: cannot unmarshal {} into Go value of type int32",
                kind_of(other)
            )),
            _ => Ok(()),
        }
    }

    fn special_text(&self, text: &mut String, ty: &Type) -> Result<(), String> {
        let error = match ty {
            Type::Bytes => match illegal_base64_at(text) {
                None => return Ok(()),
                Some(at) => format!("illegal base64 data at input byte {at}"),
            },
            Type::Duration => match crate::time::parse_go_duration(text) {
                Some(nanos) => {
                    if self.complete {
                        *text = crate::time::go_duration(nanos);
                    }
                    return Ok(());
                }
                None => format!("time: invalid duration {}", quote(text)),
            },
            _ => match crate::time::parse(text) {
                Some(time) => {
                    if self.complete {
                        let canonical = match ty {
                            Type::MicroTime => crate::time::format_micro(time),
                            _ => crate::time::format(time),
                        };
                        if *text != canonical {
                            *text = canonical;
                        }
                    }
                    return Ok(());
                }
                None => {
                    let layout = match ty {
                        Type::MicroTime => "2006-01-02T15:04:05.000000Z07:00",
                        _ => "2006-01-02T15:04:05Z07:00",
                    };
                    let text = quote(text);
                    format!("parsing time {text} as \"{layout}\": cannot parse {text} as \"2006\"")
                }
            },
        };
        if self.check { Err(error) } else { Ok(()) }
    }
}

fn is_scalar(ty: &Type) -> bool {
    !matches!(
        ty,
        Type::Message(_) | Type::Map(_) | Type::List(_) | Type::SchemaOr(..)
    )
}

/// Whether a field's value stays as it is; zero values that Go omits do not.
fn keep(value: &Value, field: &Field) -> bool {
    let always = field.has(Field::ALWAYS);
    match value {
        Value::Null => {
            field.has(Field::NULLABLE)
                || matches!(field.ty, Type::Json)
                || always && absent(field).is_some_and(|value| value.is_null())
        }
        _ if always || field.has(Field::POINTER) => true,
        Value::Bool(value) => *value,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => {
            number.as_f64() != Some(0.0) || matches!(field.ty, Type::IntOrString)
        }
        Value::Array(items) => !items.is_empty(),
        // A struct that is here is a pointer that is set; an empty map is left out.
        Value::Object(map) => !map.is_empty() || !matches!(field.ty, Type::Map(_)),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Plain digits that need no shortening, or with one of the common suffixes: most quantities in practice.
fn is_canonical_number(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 || digits > 3 || bytes[0] == b'0' {
        return text == "0";
    }
    matches!(
        &text[digits..],
        "" | "m" | "k" | "M" | "G" | "Ki" | "Mi" | "Gi"
    )
}

/// The first byte that is not standard base64 with padding, as Go's decoder reports it.
fn illegal_base64_at(text: &str) -> Option<usize> {
    let bytes: Vec<u8> = text
        .bytes()
        .filter(|b| !matches!(b, b'\n' | b'\r'))
        .collect();
    let padding = bytes
        .iter()
        .rev()
        .take(2)
        .take_while(|b| **b == b'=')
        .count();
    let body = &bytes[..bytes.len() - padding];
    let bad = body
        .iter()
        .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/')));
    bad.or_else(|| (!bytes.len().is_multiple_of(4)).then_some(bytes.len() / 4 * 4))
}

#[cfg(test)]
pub(super) mod tests;
