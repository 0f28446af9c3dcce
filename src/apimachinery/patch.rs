//! Owns: the three patches a client may send: JSON patch (RFC 6902), merge patch (RFC 7386) and strategic merge patch.
//! Server-side apply is in `apply`. Each takes the tree by value and gives the patched one; the caller fits it to its
//! table again.

mod diff;
mod json;
mod strategic;

pub use diff::{create_merge_patch, create_strategic_patch};
pub use json::json_patch;
pub use strategic::strategic_merge;

use crate::status::{Details, Reason, Status};
use serde_json::{Map, Value};

/// Why a patch was not applied; texts are the client's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is not one.
    #[error("{0}")]
    Malformed(String),
    /// More operations or copied bytes than are allowed.
    #[error("{0}")]
    TooLarge(String),
    /// The patch does not fit the object.
    #[error("{0}")]
    Rejected(String),
    /// A strategic patch that cannot be merged, which upstream holds for a fault of the server's.
    #[error("{0}")]
    Unmergeable(String),
    /// A `test` of the patch does not hold.
    #[error("{0}")]
    TestFailed(String),
}

impl From<PatchError> for Status {
    fn from(error: PatchError) -> Self {
        match error {
            PatchError::Malformed(text) => Status::bad_request(text),
            PatchError::Unmergeable(text) => Status::failure(500, Reason::Unknown, text),
            PatchError::TooLarge(text) => Status::request_entity_too_large(&text),
            // Upstream keeps the reason to itself (apierrors.NewGenericServerResponse of 422).
            PatchError::Rejected(_) | PatchError::TestFailed(_) => Status::failure(
                422,
                Reason::Invalid,
                "the server rejected our request due to an error in our request",
            )
            .with_details(Details::default()),
        }
    }
}

/// A value as Go's `%v` prints it, which is how upstream shows patches in messages.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_text).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            let pairs: Vec<String> = keys
                .into_iter()
                .map(|key| format!("{key}:{}", go_text(&map[key])))
                .collect();
            format!("map[{}]", pairs.join(" "))
        }
        other => other.to_string(),
    }
}

/// Applies a merge patch: maps are merged, null removes, everything else replaces.
pub fn merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (name, value) in patch {
        match value {
            Value::Null => {
                map.remove(&name);
            }
            value @ Value::Object(_) => merge_patch(map.entry(name).or_insert(Value::Null), value),
            value => {
                map.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_shown_as_go_prints_maps() {
        assert_eq!(
            go_text(&json!({"b": [1, null], "a": {"c": "x y"}})),
            "map[a:map[c:x y] b:[1 <nil>]]"
        );
    }

    #[test]
    fn merge_patch_follows_the_rfcs_examples() {
        for (mut target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            merge_patch(&mut target, patch);
            assert_eq!(target, result);
        }
    }
}
