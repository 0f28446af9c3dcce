//! Continue tokens: where the next page of a list starts and at which revision (`storage/continue.go`).
//!
//! The token is upstream's, so that a list begun on one server continues on another.

use apimachinery::Status;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const VERSION: &str = "meta.k8s.io/v1";

/// Longest token looked at: a key of etcd's usual size is far shorter.
const MAX_TOKEN: usize = 16 * 1024;

#[derive(Serialize, Deserialize)]
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

/// Takes a token apart; a start outside of the list is refused.
pub fn decode(prefix: &[u8], token: &str) -> Result<Continue, Status> {
    let invalid = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
    if token.len() > MAX_TOKEN {
        return Err(invalid("too long"));
    }
    let bytes = URL_SAFE_NO_PAD
        .decode(token.trim_end_matches('='))
        .map_err(|error| invalid(&error.to_string()))?;
    let wire: Wire = serde_json::from_slice(&bytes).map_err(|error| invalid(&error.to_string()))?;
    if wire.v != VERSION {
        return Err(invalid(&format!(
            "server does not recognize this encoded version {:?}",
            wire.v
        )));
    }
    if wire.rv == 0 {
        return Err(invalid(
            "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ));
    }
    if wire.start.is_empty() {
        return Err(invalid("encoded start key empty (version meta.k8s.io/v1)"));
    }
    // Go cleans the path and compares; a start that climbs out of the list is an attack.
    let climbs = wire.start.split('/').any(|part| matches!(part, "." | ".."));
    if climbs || wire.start.starts_with('/') {
        return Err(invalid(&format!("{:?}", wire.start)));
    }
    let mut start = prefix.to_vec();
    start.extend_from_slice(wire.start.as_bytes());
    Ok(Continue {
        start: start.into(),
        revision: wire.rv,
    })
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
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"/x"}"#, ""),
        ] {
            let error = decode(PREFIX, &URL_SAFE_NO_PAD.encode(json)).expect_err(json);
            assert_eq!(error.code, 400);
            assert!(error.message.contains(why), "{}", error.message);
        }
        assert!(decode(PREFIX, "%%%").is_err());
    }
}
