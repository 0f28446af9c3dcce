//! Owns: Kubernetes protobuf to and from JSON trees, driven by a type's table (`Message::wire`).
//!
//! ```text
//! bytes on the wire or in etcd:  "k8s\0"  Unknown { 1: TypeMeta { 1: apiVersion, 2: kind }, 2: raw, 3: encoding, 4: type }
//! raw:                           the message's fields in the order of their numbers, maps in the order of their keys
//! ```
//!
//! `encode` writes what Go's generated marshallers write for the fields an object has; a field that it has not is left
//! out, which reads the same. `decode` leaves out what Go's JSON would (`omitempty`). Read `Envelope` first.
//!
//! **Invariant:** decoding costs time and memory in proportion to its input; nesting is bounded by `MAX_DEPTH`.

mod read;
mod write;

use serde_json::Value;

use crate::codec::DecodeError;
use crate::schema::Message;

/// What stored and sent Kubernetes protobuf begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// A message with the kind it is, as `runtime.Unknown` carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// `apps/v1`.
    pub api_version: &'a str,
    /// `Deployment`.
    pub kind: &'a str,
    /// The message's bytes.
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Whether bytes are Kubernetes protobuf.
    pub fn is_marked(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads the envelope.
    ///
    /// # Errors
    /// Bytes that do not begin with the mark, or are cut off.
    pub fn open(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let Some(body) = bytes.strip_prefix(MAGIC) else {
            return Err(DecodeError(
                "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]".to_owned(),
            ));
        };
        read::envelope(body)
    }

    /// Writes the envelope.
    pub fn close(&self) -> Vec<u8> {
        write::envelope(self)
    }
}

/// The bytes of an object without an envelope.
pub fn encode(object: &Value, message: &Message) -> Vec<u8> {
    write::message(object, message)
}

/// The bytes of an object in its envelope; its kind is what its `apiVersion` and `kind` say.
pub fn encode_object(object: &Value, message: &Message) -> Vec<u8> {
    let text = |field: &str| {
        object
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    Envelope {
        api_version: text("apiVersion"),
        kind: text("kind"),
        raw: &encode(object, message),
    }
    .close()
}

/// Reads a message without an envelope.
///
/// # Errors
/// Bytes that are cut off or of another wire type than the table says, text that is not UTF-8, JSON inside that cannot
/// be read, and nesting deeper than `MAX_DEPTH`. Unknown fields are passed over.
pub fn decode(bytes: &[u8], message: &Message) -> Result<Value, DecodeError> {
    read::message(bytes, message)
}

/// Reads an envelope and the message in it, with `apiVersion` and `kind` in place.
///
/// # Errors
/// As `decode`; and a kind that `message_for` (given `apiVersion` and kind) does not know.
pub fn decode_object<'t>(
    bytes: &[u8],
    message_for: impl FnOnce(&str, &str) -> Option<&'t Message>,
) -> Result<Value, DecodeError> {
    let envelope = Envelope::open(bytes)?;
    let Some(message) = message_for(envelope.api_version, envelope.kind) else {
        return Err(DecodeError(format!(
            "no kind {:?} is registered for version {:?}",
            envelope.kind, envelope.api_version
        )));
    };
    let mut object = decode(envelope.raw, message)?;
    if let Value::Object(map) = &mut object {
        for (field, text) in [
            ("apiVersion", envelope.api_version),
            ("kind", envelope.kind),
        ] {
            if !text.is_empty() {
                map.insert(field.to_owned(), text.into());
            }
        }
    }
    Ok(object)
}
