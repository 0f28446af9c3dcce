//! Types of expressions: CEL's own, and those of objects by their tables.

use std::fmt;
use std::rc::Rc;

use apimachinery::schema::{self, Message, Ref};

/// The type of an expression. `Dyn` is what is not known; everything fits it.
#[derive(Clone, Debug)]
pub enum Ty {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Duration,
    Timestamp,
    List(Rc<Ty>),
    Map(Rc<Ty>, Rc<Ty>),
    Optional(Rc<Ty>),
    Type,
    /// An object whose table is known.
    Message(Ref<Message>),
    /// An object whose fields are written down here.
    Fields(Rc<Fields>),
    /// `Object` and what is below it, `JSONPatch`, and what libraries bring.
    Named(String),
}

/// An object type made by hand.
#[derive(Debug)]
pub struct Fields {
    pub name: &'static str,
    pub fields: Vec<(String, Ty)>,
}

impl Ty {
    pub fn list(item: Ty) -> Self {
        Self::List(Rc::new(item))
    }

    /// A map with text keys.
    pub fn texts_to(value: Ty) -> Self {
        Self::Map(Rc::new(Self::Text), Rc::new(value))
    }

    pub fn optional(inner: Ty) -> Self {
        Self::Optional(Rc::new(inner))
    }

    pub fn named(name: &str) -> Self {
        Self::Named(name.to_owned())
    }

    /// An object with these fields.
    pub fn fields<'a>(name: &'static str, fields: impl IntoIterator<Item = (&'a str, Ty)>) -> Self {
        let fields = fields
            .into_iter()
            .map(|(name, ty)| (name.to_owned(), ty))
            .collect();
        Self::Fields(Rc::new(Fields { name, fields }))
    }

    /// The type of a value with a table (`common.SchemaDeclType`).
    pub fn of(ty: &schema::Type) -> Self {
        match ty {
            schema::Type::String | schema::Type::Duration => Self::Text,
            schema::Type::Bytes => Self::Bytes,
            schema::Type::Bool => Self::Bool,
            schema::Type::Int32 | schema::Type::Int64 => Self::Int,
            schema::Type::Double => Self::Double,
            schema::Type::Time | schema::Type::MicroTime => Self::Timestamp,
            schema::Type::Message(message) => Self::Message(message.clone()),
            schema::Type::Map(map) => Self::texts_to(Self::of(&map.value)),
            schema::Type::List(list) => Self::list(Self::of(&list.item)),
            schema::Type::Quantity
            | schema::Type::IntOrString
            | schema::Type::Raw
            | schema::Type::FieldsV1
            | schema::Type::Json
            | schema::Type::SchemaOr(_, _) => Self::Dyn,
        }
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Whether a value of this type can be taken for one of the other.
    pub fn fits(&self, other: &Ty) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            // Whatever is an object may be absent.
            (Self::Null, Self::Message(_) | Self::Fields(_) | Self::Named(_) | Self::Null)
            | (Self::Message(_) | Self::Fields(_) | Self::Named(_), Self::Null) => true,
            (Self::Null, Self::Duration | Self::Timestamp)
            | (Self::Duration | Self::Timestamp, Self::Null) => true,
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.fits(b),
            (Self::Map(a, x), Self::Map(b, y)) => a.fits(b) && x.fits(y),
            (Self::Message(a), Self::Message(b)) => a.name == b.name,
            (Self::Fields(a), Self::Fields(b)) => a.name == b.name,
            (Self::Named(a), Self::Named(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// What both are: the one, where the other fits it, else unknown.
    pub fn join(self, other: Ty) -> Self {
        match (&self, &other) {
            (Self::Dyn, _) | (_, Self::Dyn) => Self::Dyn,
            (Self::Null, _) => other,
            _ if self.fits(&other) => self,
            _ => Self::Dyn,
        }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::Text => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Duration => f.write_str("google.protobuf.Duration"),
            Self::Timestamp => f.write_str("google.protobuf.Timestamp"),
            Self::List(item) => write!(f, "list({item})"),
            Self::Map(key, value) => write!(f, "map({key}, {value})"),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Type => f.write_str("type"),
            Self::Message(message) => f.write_str(message.short_name()),
            Self::Fields(fields) => f.write_str(fields.name),
            Self::Named(name) => f.write_str(name),
        }
    }
}
