//! Owns: the tables that describe the shape of objects. Built-in types are statics generated into `api`; a custom
//! resource definition becomes the same tables at run time, with `Ref::Shared` where the built-in ones have
//! `Ref::Static`. Knows no kind and does no work itself: pruning, patching, encoding and explaining are driven by it.

mod conform;
pub mod structural;
mod walk;

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

pub use conform::{complete, conform, prune, shown_absent, zero_field};
pub use walk::unknown_fields;

/// A pointer to a table: to a static for built-in types, counted for types made at run time.
#[derive(Debug)]
pub enum Ref<T: 'static> {
    /// Generated, lives for ever.
    Static(&'static T),
    /// Made at run time.
    Shared(Arc<T>),
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Static(table) => Self::Static(table),
            Self::Shared(table) => Self::Shared(table.clone()),
        }
    }
}

impl<T> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Static(table) => table,
            Self::Shared(table) => table,
        }
    }
}

impl<T> From<T> for Ref<T> {
    fn from(table: T) -> Self {
        Self::Shared(Arc::new(table))
    }
}

/// The shape of one object type.
#[derive(Debug)]
pub struct Message {
    /// OpenAPI definition name, `io.k8s.api.core.v1.PodSpec`.
    pub name: Cow<'static, str>,
    /// Fields sorted by JSON name.
    pub fields: Cow<'static, [Field]>,
    /// Protobuf layout sorted by field number; empty for types that have none.
    pub wire: Cow<'static, [Wire]>,
    /// `x-kubernetes-map-type: atomic`: apply owns the whole struct or nothing of it.
    pub atomic: bool,
    /// Unknown fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// The value is a whole API object with its own metadata (`x-kubernetes-embedded-resource`).
    pub embedded_resource: bool,
}

impl Message {
    /// A built-in type.
    pub const fn new(name: &'static str, fields: &'static [Field], wire: &'static [Wire]) -> Self {
        Self {
            name: Cow::Borrowed(name),
            fields: Cow::Borrowed(fields),
            wire: Cow::Borrowed(wire),
            atomic: false,
            preserve_unknown: false,
            embedded_resource: false,
        }
    }

    /// The same, owned by apply as a whole.
    pub const fn atomic(
        name: &'static str,
        fields: &'static [Field],
        wire: &'static [Wire],
    ) -> Self {
        let mut message = Self::new(name, fields, wire);
        message.atomic = true;
        message
    }

    /// The field of this JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let index = self
            .fields
            .binary_search_by(|field| (*field.name).cmp(name))
            .ok()?;
        self.fields.get(index)
    }

    /// Go's name of the type with its package, `v1.PodSpec`.
    pub fn go_name(&self) -> &str {
        let mut dots = self.name.rmatch_indices('.').map(|(at, _)| at);
        match (dots.next(), dots.next()) {
            (Some(_), Some(second)) => &self.name[second + 1..],
            _ => &self.name,
        }
    }

    /// The type's name alone, `PodSpec`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// One field of a message.
#[derive(Clone, Debug)]
pub struct Field {
    /// JSON name.
    pub name: Cow<'static, str>,
    /// Type of the value.
    pub ty: Type,
    /// What else is known, a set of the constants below.
    pub flags: u16,
}

impl Field {
    /// Must be given (OpenAPI `required`).
    pub const REQUIRED: u16 = 1;
    /// Go writes it even when it holds its zero value (no `omitempty`, or a struct that is not a pointer).
    pub const ALWAYS: u16 = 1 << 1;
    /// A pointer in Go: its zero value is distinct from its absence and is written. With `ALWAYS`, its absence is
    /// written as null.
    pub const POINTER: u16 = 1 << 2;
    /// Strategic merge patch merges the list instead of replacing it.
    pub const MERGE: u16 = 1 << 3;
    /// Strategic merge patch drops what the patch does not name (`retainKeys`).
    pub const RETAIN_KEYS: u16 = 1 << 4;
    /// Apply owns the whole value (`x-kubernetes-map-type: atomic` on the field).
    pub const ATOMIC: u16 = 1 << 5;
    /// `null` is a value of its own (CRDs' `nullable`).
    pub const NULLABLE: u16 = 1 << 6;
    /// Strategic merge patch replaces it (`x-kubernetes-patch-strategy: replace`).
    pub const REPLACE: u16 = 1 << 7;

    /// A field of a built-in type.
    pub const fn new(name: &'static str, ty: Type, flags: u16) -> Self {
        Self {
            name: Cow::Borrowed(name),
            ty,
            flags,
        }
    }

    /// Whether a flag is set.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The type of a value.
#[derive(Clone, Debug)]
pub enum Type {
    String,
    /// Base64 text.
    Bytes,
    Bool,
    Int32,
    Int64,
    Double,
    /// metav1.Time.
    Time,
    /// metav1.MicroTime.
    MicroTime,
    /// metav1.Duration, text such as `5m0s`.
    Duration,
    /// resource.Quantity.
    Quantity,
    /// intstr.IntOrString.
    IntOrString,
    /// Any object (runtime.RawExtension).
    Raw,
    /// Any object with a set of fields (metav1.FieldsV1).
    FieldsV1,
    /// Any JSON value (apiextensions JSON, or a CRD's value without a type).
    Json,
    /// apiextensions JSONSchemaPropsOrArray, OrBool or OrStringArray: an object of this message or the other.
    SchemaOr(Ref<Message>, SchemaOr),
    /// A struct.
    Message(Ref<Message>),
    /// A map with text keys.
    Map(Ref<MapType>),
    /// A list.
    List(Ref<ListType>),
}

/// What a JSON schema may be instead of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaOr {
    Array,
    Bool,
    StringArray,
}

impl Type {
    /// A struct type from a static.
    pub const fn message(message: &'static Message) -> Self {
        Self::Message(Ref::Static(message))
    }

    /// A list type from a static.
    pub const fn list(list: &'static ListType) -> Self {
        Self::List(Ref::Static(list))
    }

    /// A map type from a static.
    pub const fn map(map: &'static MapType) -> Self {
        Self::Map(Ref::Static(map))
    }
}

/// A map with text keys.
#[derive(Clone, Debug)]
pub struct MapType {
    /// Type of the values.
    pub value: Type,
    /// Apply owns the whole map.
    pub atomic: bool,
}

/// How apply tells the items of a list apart (`x-kubernetes-list-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Not said, which apply takes as atomic.
    Unset,
    /// As a whole.
    Atomic,
    /// By value.
    Set,
    /// By the keys.
    Map,
}

/// A list.
#[derive(Clone, Debug)]
pub struct ListType {
    /// Type of the items.
    pub item: Type,
    /// How apply tells items apart.
    pub kind: ListKind,
    /// Keys of a `ListKind::Map`, in the order of `x-kubernetes-list-map-keys`.
    pub keys: Cow<'static, [ListKey]>,
    /// The one key strategic merge patch goes by.
    pub merge_key: Option<Cow<'static, str>>,
    /// In protobuf the list is a message of its own with the items in field 1 (`ExtraValue`, `Verbs`).
    pub wrapped: bool,
}

impl ListType {
    /// A list of a built-in type.
    pub const fn new(
        item: Type,
        kind: ListKind,
        keys: &'static [ListKey],
        merge_key: &'static str,
    ) -> Self {
        let merge_key = if merge_key.is_empty() {
            None
        } else {
            Some(Cow::Borrowed(merge_key))
        };
        Self {
            item,
            kind,
            keys: Cow::Borrowed(keys),
            merge_key,
            wrapped: false,
        }
    }

    /// A list that is a message of its own in protobuf.
    pub const fn wrapped(item: Type, kind: ListKind) -> Self {
        Self {
            item,
            kind,
            keys: Cow::Borrowed(&[]),
            merge_key: None,
            wrapped: true,
        }
    }
}

/// One key of a keyed list.
#[derive(Clone, Debug)]
pub struct ListKey {
    /// JSON name of the item's field.
    pub name: Cow<'static, str>,
    /// What an item without the field is taken to have.
    pub default: Option<KeyDefault>,
}

impl ListKey {
    /// A key without a default.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            default: None,
        }
    }

    /// A key with a default text.
    pub const fn with_default(name: &'static str, default: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            default: Some(KeyDefault::Text(Cow::Borrowed(default))),
        }
    }
}

/// The default of a list key.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyDefault {
    /// A constant text, usable in statics.
    Text(Cow<'static, str>),
    /// Anything else.
    Value(serde_json::Value),
}

/// One field of a message on the protobuf wire.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Field number.
    pub number: u32,
    /// What it holds.
    pub target: WireTarget,
}

/// What a protobuf field holds.
#[derive(Clone, Debug)]
pub enum WireTarget {
    /// The field of this index in `Message::fields`.
    Field(u16),
    /// A struct whose JSON fields stand in the surrounding object (Go's embedded structs).
    Embed(Ref<Message>),
}

impl Wire {
    /// A plain field.
    pub const fn field(number: u32, index: u16) -> Self {
        Self {
            number,
            target: WireTarget::Field(index),
        }
    }

    /// An embedded struct.
    pub const fn embed(number: u32, message: &'static Message) -> Self {
        Self {
            number,
            target: WireTarget::Embed(Ref::Static(message)),
        }
    }
}
