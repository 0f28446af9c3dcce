//! Continue tokens: where the next page of a list starts and at which revision (`storage/continue.go`).
//!
//! The token is upstream's, so that a list begun on one server continues on another.

use apimachinery::codec::json;
use apimachinery::{Status, Value};
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine};
use bytes::Bytes;
use serde::Serialize;

const VERSION: &str = "meta.k8s.io/v1";

/// Longest token looked at: a key of etcd's usual size is far shorter.
const MAX_TOKEN: usize = 16 * 1024;

/// As Go reads base64: bits behind the last byte are not looked at.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

#[derive(Serialize)]
struct Wire {
    v: String,
    rv: i64,
    start: String,
}

/// A decoded token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The store key of the first object of the page.
    pub start: Bytes,
    /// The revision of the list; negative: the newest, after an expired token.
    pub revision: i64,
}

/// Makes the token for the page behind `last`; `prefix` is the list's key prefix.
pub fn encode(prefix: &[u8], last: &[u8], revision: i64) -> String {
    let rest = last.strip_prefix(prefix).unwrap_or(last);
    let wire = Wire {
        v: VERSION.to_owned(),
        rv: revision,
        start: format!("{}\0", String::from_utf8_lossy(rest)),
    };
    let json = serde_json::to_vec(&wire).unwrap_or_default();
    URL_SAFE_NO_PAD.encode(json)
}

/// The same page, to be continued at the newest revision.
pub fn encode_inconsistent(prefix: &[u8], start: &[u8]) -> String {
    let start = start.strip_suffix(b"\0").unwrap_or(start);
    encode(prefix, start, -1)
}

/// Takes a token apart; a start outside of the list is refused, in the words of `DecodeContinue`.
pub fn decode(prefix: &[u8], token: &str) -> Result<Continue, Status> {
    let invalid = |why: &str| {
        Status::bad_request(format!(
            "invalid continue token: continue key is not valid: {why}"
        ))
    };
    if token.len() > MAX_TOKEN {
        return Err(invalid("too long"));
    }
    let bytes = LENIENT
        .decode(token)
        .map_err(|error| invalid(&illegal(token, &error)))?;
    let wire = json::decode(&bytes).map_err(|error| invalid(&error.to_string()))?;
    let wire: Value = wire.value;
    let text = |field: &str| wire[field].as_str().unwrap_or_default();
    if text("v") != VERSION {
        return Err(invalid(&format!(
            "server does not recognize this encoded version {}",
            text("v")
        )));
    }
    let revision = wire["rv"].as_i64().unwrap_or(0);
    if revision == 0 {
        return Err(invalid(
            "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ));
    }
    let key = text("start");
    if key.is_empty() {
        return Err(invalid("encoded start key empty (version meta.k8s.io/v1)"));
    }
    if !is_clean(key) {
        return Err(invalid(key));
    }
    let mut start = prefix.to_vec();
    start.extend_from_slice(key.trim_start_matches('/').as_bytes());
    Ok(Continue {
        start: start.into(),
        revision,
    })
}

/// Whether Go's `path.Clean` leaves a key as it is: one that climbs out of the list is an attack.
fn is_clean(key: &str) -> bool {
    let inner = key.strip_prefix('/').unwrap_or(key);
    inner.is_empty()
        || inner
            .split('/')
            .all(|part| !matches!(part, "" | "." | ".."))
}

/// What Go says of text that is not base64, with the place it says.
fn illegal(token: &str, error: &DecodeError) -> String {
    let at = match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => *at,
        // One character too many: where the last group of four begins.
        DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => token.len() / 4 * 4,
    };
    format!("illegal base64 data at input byte {at}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &[u8] = b"/registry/pods/";

    #[test]
    fn a_token_leads_behind_the_last_object() {
        let token = encode(PREFIX, b"/registry/pods/a/b", 7);
        let page = decode(PREFIX, &token).unwrap();
        assert_eq!(page.revision, 7);
        assert_eq!(&page.start[..], b"/registry/pods/a/b\0");
        let again = encode_inconsistent(PREFIX, &page.start);
        assert_eq!(decode(PREFIX, &again).unwrap().revision, -1);
        assert_eq!(decode(PREFIX, &again).unwrap().start, page.start);
    }

    #[test]
    fn forged_tokens_are_refused() {
        for (json, why) in [
            ("{", ""),
            (r#"{"v":"x","rv":1,"start":"a"}"#, "does not recognize"),
            (
                r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#,
                "incorrect encoded start",
            ),
            (
                r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#,
                "start key empty",
            ),
            (
                r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../secrets/a"}"#,
                "../secrets",
            ),
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a//x"}"#, "a//x"),
        ] {
            let error = decode(PREFIX, &URL_SAFE_NO_PAD.encode(json)).expect_err(json);
            assert_eq!(error.code, 400);
            assert!(error.message.contains(why), "{}", error.message);
        }
    }

    #[test]
    fn what_is_no_token_is_told_as_upstream_tells_it() {
        for (token, why) in [
            ("x", "illegal base64 data at input byte 0"),
            ("eyJ2I", "illegal base64 data at input byte 4"),
            ("ab%", "illegal base64 data at input byte 2"),
            ("YQ", "invalid character 'a' looking for beginning of value"),
            ("e30", "server does not recognize this encoded version "),
        ] {
            let error = decode(PREFIX, token).expect_err(token);
            let expected = format!("invalid continue token: continue key is not valid: {why}");
            assert_eq!(error.message, expected);
        }
    }
}
