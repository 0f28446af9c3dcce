//! Values of expressions. Those of JSON are borrowed, so that looking into an object copies nothing of it.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::rc::Rc;

use apimachinery::quantity::Quantity;
use apimachinery::time::Time;
use apimachinery::{Map, Value};

use super::authorizer::{Answer, Check};
use super::libraries::{Url, Version};

/// The type of one operation of a JSON patch.
pub const PATCH_TYPE: &str = "JSONPatch";
/// The type of the object a policy changes; its fields' types have their paths behind it.
pub const OBJECT_TYPE: &str = "Object";

/// Whether objects of a type can be made.
pub fn is_object_type(name: &str) -> bool {
    name == PATCH_TYPE
        || name
            .strip_prefix(OBJECT_TYPE)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// An object made by an expression.
#[derive(Debug)]
pub struct Object<'v> {
    /// Its type, `Object.spec`.
    pub name: String,
    pub fields: Vec<(String, Val<'v>)>,
}

#[derive(Clone, Debug)]
pub enum Val<'v> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Cow<'v, str>),
    Bytes(Rc<Vec<u8>>),
    JsonList(&'v [Value]),
    JsonMap(&'v Map<String, Value>),
    List(Rc<Vec<Val<'v>>>),
    Map(Rc<Vec<(Val<'v>, Val<'v>)>>),
    /// Nanoseconds.
    Duration(i64),
    Timestamp(Time),
    Quantity(Quantity),
    Address(IpAddr),
    /// Address and bits.
    Range(IpAddr, u8),
    Optional(Option<Rc<Val<'v>>>),
    Object(Rc<Object<'v>>),
    /// Who asks for a permission, or what it is asked of.
    Check(Rc<Check>),
    Decision(Rc<Answer>),
    Url(Rc<Url>),
    /// A named format.
    Format(&'static str),
    Version(Rc<Version>),
    Type(&'static str),
}

impl<'v> Val<'v> {
    pub fn of(value: &'v Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(int), _) => Self::Int(int),
                (None, Some(uint)) => Self::Uint(uint),
                _ => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Self::Text(Cow::Borrowed(text)),
            Value::Array(list) => Self::JsonList(list),
            Value::Object(map) => Self::JsonMap(map),
        }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(Cow::Owned(text.into()))
    }

    pub fn list(items: Vec<Val<'v>>) -> Self {
        Self::List(Rc::new(items))
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::JsonList(_) | Self::List(_) => "list",
            Self::JsonMap(_) | Self::Map(_) => "map",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Address(_) => "net.IP",
            Self::Range(_, _) => "net.CIDR",
            Self::Optional(_) => "optional_type",
            Self::Object(object) if object.name == PATCH_TYPE => PATCH_TYPE,
            Self::Object(_) => OBJECT_TYPE,
            Self::Check(check) => check.type_name(),
            Self::Decision(_) => "kubernetes.authorization.Decision",
            Self::Url(_) => "kubernetes.URL",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Version(_) => "kubernetes.Semver",
            Self::Type(_) => "type",
        }
    }

    /// The items of a list, the keys of a map.
    pub fn items(&self) -> Option<Vec<Val<'v>>> {
        match self {
            Self::JsonList(list) => Some(list.iter().map(Val::of).collect()),
            Self::List(list) => Some(list.to_vec()),
            Self::JsonMap(map) => Some(
                map.keys()
                    .map(|key| Val::Text(Cow::Borrowed(key.as_str())))
                    .collect(),
            ),
            Self::Map(entries) => Some(entries.iter().map(|(key, _)| key.clone()).collect()),
            _ => None,
        }
    }

    pub fn size(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.chars().count()),
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::JsonList(list) => Some(list.len()),
            Self::List(list) => Some(list.len()),
            Self::JsonMap(map) => Some(map.len()),
            Self::Map(entries) => Some(entries.len()),
            _ => None,
        }
    }

    /// A member of a map.
    pub fn member(&self, name: &str) -> Option<Val<'v>> {
        match self {
            Self::JsonMap(map) => map.get(name).map(Val::of),
            Self::Map(entries) => entries
                .iter()
                .find(|(key, _)| matches!(key, Val::Text(key) if key == name))
                .map(|(_, value)| value.clone()),
            Self::Object(object) => object
                .fields
                .iter()
                .find(|(field, _)| field == name)
                .map(|(_, value)| value.clone()),
            Self::Optional(Some(inner)) => inner.member(name),
            _ => None,
        }
    }

    /// What an index leads to.
    pub fn index(&self, index: &Val<'v>) -> Result<Val<'v>, String> {
        match (self, index) {
            (Self::JsonMap(_), Val::Text(name)) => self
                .member(name)
                .ok_or_else(|| format!("no such key: {name}")),
            (Self::Map(entries), key) => entries
                .iter()
                .find(|(have, _)| have.equals(key))
                .map(|(_, value)| value.clone())
                .ok_or_else(|| format!("no such key: {}", key.show())),
            (Self::JsonList(list), Val::Int(at)) => usize::try_from(*at)
                .ok()
                .and_then(|at| list.get(at))
                .map(Val::of)
                .ok_or_else(|| format!("index out of bounds: {at}")),
            (Self::List(list), Val::Int(at)) => usize::try_from(*at)
                .ok()
                .and_then(|at| list.get(at))
                .cloned()
                .ok_or_else(|| format!("index out of bounds: {at}")),
            _ => Err("no such overload".to_owned()),
        }
    }

    pub fn equals(&self, other: &Val<'v>) -> bool {
        if let (Some(a), Some(b)) = (self.number(), other.number()) {
            return match (self, other) {
                (Self::Int(a), Self::Int(b)) => a == b,
                _ => (a - b).abs() < f64::EPSILON,
            };
        }
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Address(a), Self::Address(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a == b,
            (Self::Format(a), Self::Format(b)) => a == b,
            (Self::Version(a), Self::Version(b)) => a == b,
            (Self::Range(a, n), Self::Range(b, m)) => a == b && n == m,
            (Self::Optional(a), Self::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b),
                (None, None) => true,
                _ => false,
            },
            (Self::Object(a), Self::Object(b)) => {
                a.name == b.name
                    && a.fields.len() == b.fields.len()
                    && a.fields.iter().all(|(field, value)| {
                        other
                            .member(field)
                            .is_some_and(|other| value.equals(&other))
                    })
            }
            (Self::JsonList(_) | Self::List(_), Self::JsonList(_) | Self::List(_)) => {
                let (a, b) = (self.items(), other.items());
                match (a, b) {
                    (Some(a), Some(b)) => {
                        a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a.equals(b))
                    }
                    _ => false,
                }
            }
            (Self::JsonMap(_) | Self::Map(_), Self::JsonMap(_) | Self::Map(_)) => {
                self.size() == other.size()
                    && self.items().into_iter().flatten().all(|key| {
                        match (self.index(&key), other.index(&key)) {
                            (Ok(a), Ok(b)) => a.equals(&b),
                            _ => false,
                        }
                    })
            }
            _ => self.compare(other) == Some(Ordering::Equal),
        }
    }

    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Uint(number) => Some(*number as f64),
            Self::Double(number) => Some(*number),
            _ => None,
        }
    }

    pub fn compare(&self, other: &Val<'v>) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (Self::Quantity(a), Self::Quantity(b)) => a.partial_cmp(b),
            _ => self.number()?.partial_cmp(&other.number()?),
        }
    }

    /// The value as a person reads it.
    pub fn show(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(flag) => flag.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Uint(number) => number.to_string(),
            Self::Double(number) => number.to_string(),
            Self::Text(text) => text.to_string(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Duration(nanos) => apimachinery::time::go_duration(*nanos),
            Self::Timestamp(time) => apimachinery::time::format(*time),
            Self::Quantity(quantity) => quantity.to_string(),
            Self::Address(address) => address.to_string(),
            Self::Range(address, bits) => format!("{address}/{bits}"),
            Self::Url(url) => url.text.clone(),
            Self::Type(name) => (*name).to_owned(),
            Self::Optional(Some(inner)) => format!("optional({})", inner.show()),
            Self::Optional(None) => "optional.none()".to_owned(),
            other => format!("<{}>", other.type_name()),
        }
    }
}
