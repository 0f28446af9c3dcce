//! Owns: bytes to objects and back: JSON, YAML and Kubernetes protobuf, the media types that name them, and the text
//! a client gets when its body cannot be read. Knows no kind; the protobuf codec is given a table.
//!
//! **Invariant:** every decoder bounds nesting (`MAX_DEPTH`), so that what walks an object may recurse.

pub mod json;
pub mod media;
pub mod protobuf;
pub mod strict;
pub mod yaml;

use crate::field::quote;
use crate::schema::Message;
use crate::status::Status;
use serde_json::Value;

/// Deepest nesting accepted. Upstream stops at 10,000 (encoding/json); nothing valid comes near this, and it keeps
/// recursion over an object within a 2 MiB stack: 512 levels of at most 2 KiB.
pub const MAX_DEPTH: usize = 512;

/// Most findings reported for one object, as sigs.k8s.io/json.
pub const MAX_STRICT_ERRORS: usize = 100;

/// What came out of a body.
#[derive(Debug, Default, PartialEq)]
pub struct Decoded {
    /// The object.
    pub value: Value,
    /// Findings of strict field validation: `duplicate field "spec.x"` (of YAML one for all, by lines), and
    /// `unknown field "spec.y"` once the object went through its table.
    pub strict: Vec<String>,
}

/// Why a body is not an object; the text is the client's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

impl Decoded {
    /// Fits the object to its table: see `schema::conform`. Unknown fields are dropped and added to `strict`.
    ///
    /// # Errors
    /// A value of the wrong type, in the words of Go's JSON decoder.
    pub fn conform(mut self, message: &Message) -> Result<Self, DecodeError> {
        let unknown = crate::schema::conform(&mut self.value, message).map_err(DecodeError)?;
        for path in unknown {
            if self.strict.len() >= MAX_STRICT_ERRORS {
                break;
            }
            self.strict.push(format!("unknown field {}", quote(&path)));
        }
        Ok(self)
    }
}

/// The error of `fieldValidation=Strict`: `strict decoding error: unknown field "spec.foo", …`.
pub fn strict_error(findings: &[String]) -> DecodeError {
    DecodeError(format!("strict decoding error: {}", findings.join(", ")))
}

/// The answer to a body that cannot be read as `kind` (handlers.transformDecodeError). `version` and `body_kind` are
/// what the body says it is, "" when it does not say.
pub fn bad_request(
    body_kind: &str,
    version: &str,
    kind: &str,
    error: &DecodeError,
    body: &[u8],
) -> Status {
    if !body_kind.is_empty() {
        return Status::bad_request(format!(
            "{body_kind} in version {} cannot be handled as a {kind}: {error}",
            quote(version)
        ));
    }
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {error} ({})",
        summarize(body)
    ))
}

/// The first bytes of a body: text of an object, hexadecimal of anything else.
fn summarize(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let head = &body[..body.len().min(SHOWN)];
    let more = if body.len() > SHOWN { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => format!(
            "{}{more}",
            head.iter().map(|b| format!("{b:02x}")).collect::<String>()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_body_is_answered_as_upstream() {
        let error = DecodeError("boom".to_owned());
        assert_eq!(
            bad_request("Pod", "v1", "Pod", &error, b"{}").message,
            "Pod in version \"v1\" cannot be handled as a Pod: boom"
        );
        assert_eq!(
            bad_request("", "", "Pod", &error, b"\x01x").message,
            "the object provided is unrecognized (must be of type Pod): boom (0178)"
        );
    }
}
