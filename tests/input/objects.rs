//! The decoders of objects and patches. An input of two parts (what there is, and what is done to it) is cut at a line
//! `---`.

use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{self, Write};
use apimachinery::codec;
use apimachinery::patch;
use apimachinery::schema::{Message, conform, unknown_fields};
use apimachinery::selector::LabelSelector;
use apimachinery::{Value, meta};
use serde_json::json;

/// Between the two parts of an input.
const CUT: &[u8] = b"\n---\n";

/// Objects nested deeper cannot be read back from YAML (`MAX_YAML_DEPTH` with room for the values of maps).
const YAML_DEPTH: usize = 30;

/// Reads JSON; what it accepts it writes and reads back, and everything that is done with a new object is done.
pub fn json(bytes: &[u8]) {
    let Ok(decoded) = codec::json::decode(bytes) else {
        return;
    };
    let written = codec::json::encode(&decoded.value);
    let again = codec::json::decode(&written).expect("own output");
    assert_eq!(again.value, decoded.value);
    assert!(again.strict.is_empty(), "own output repeats fields");
    let _ = codec::json::encode_pretty(&decoded.value);
    put_through(decoded.value);
}

/// Reads YAML; what it accepts it writes and reads back.
pub fn yaml(bytes: &[u8]) {
    let Ok(decoded) = codec::yaml::decode(bytes) else {
        return;
    };
    let written = codec::yaml::encode(&decoded.value);
    if depth(&decoded.value) <= YAML_DEPTH {
        let again = codec::yaml::decode(&written).expect("own output");
        assert_eq!(
            again.value,
            decoded.value,
            "{}",
            String::from_utf8_lossy(&written)
        );
    }
    put_through(decoded.value);
}

/// Reads protobuf in its envelope; what it accepts it writes and reads back.
pub fn protobuf(bytes: &[u8]) {
    let mut found = None;
    let decoded = codec::protobuf::decode_object(bytes, |version, kind| {
        found = message(version, kind);
        found
    });
    let (Ok(decoded), Some(message)) = (decoded, found) else {
        return;
    };
    let written = codec::protobuf::encode_object(&decoded, message);
    let again = codec::protobuf::decode_object(&written, |_, _| Some(message)).expect("own output");
    assert_eq!(codec::protobuf::encode_object(&again, message), written);
    put_through(decoded);
}

/// Applies a JSON patch.
pub fn json_patch(bytes: &[u8]) {
    if let Some((mut object, patch, _)) = two(bytes) {
        let _ = patch::json_patch(&mut object, &patch);
    }
}

/// Applies a merge patch; doing so twice is doing so once, and so is doing what tells the result from the original.
pub fn merge_patch(bytes: &[u8]) {
    let Some((object, patch, _)) = two(bytes) else {
        return;
    };
    let mut once = object.clone();
    patch::merge_patch(&mut once, patch.clone());
    let mut twice = once.clone();
    patch::merge_patch(&mut twice, patch);
    assert_eq!(once, twice);
}

/// Applies a strategic merge patch.
pub fn strategic_patch(bytes: &[u8]) {
    let Some((object, patch, message)) = two(bytes) else {
        return;
    };
    if let Ok(patched) = patch::strategic_merge(object.clone(), patch, message) {
        let difference = patch::create_strategic_patch(&object, &patched, message);
        let _ = patch::strategic_merge(object, difference, message);
    }
}

/// Applies a configuration to a live object, twice: the second time changes nothing.
pub fn apply(bytes: &[u8]) {
    let Some((mut live, mut config, message)) = two(bytes) else {
        return;
    };
    // As the server does: both fit the table before they are looked at.
    if conform(&mut live, message).is_err() {
        return;
    }
    let version = meta::api_version(&config).to_owned();
    let reset = FieldSet::new();
    let write = mk_write(&version, message, &reset);
    for force in [false, true] {
        let _ = managed_fields::apply(&live, &config, &write, force);
    }
    if conform(&mut config, message).is_err() {
        return;
    }
    let Ok(first) = managed_fields::apply(&live, &config, &write, true) else {
        return;
    };
    let _ = managed_fields::apply(&first, &config, &write, true);
    let mut updated = first;
    managed_fields::update(&live, &mut updated, &write);
}

fn mk_write<'a>(version: &'a str, message: &'a Message, reset: &'a FieldSet) -> Write<'a> {
    Write {
        manager: "m",
        api_version: version,
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        message,
        reset,
    }
}

/// What the server does with a new object, whatever is in it.
fn put_through(object: Value) {
    let _ = LabelSelector::from_value(&object);
    let Some(message) = message_of(&object) else {
        return;
    };
    let _ = unknown_fields(&object, message);
    let mut fitted = object;
    if conform(&mut fitted, message).is_err() {
        return;
    }
    let mut again = fitted.clone();
    let _ = conform(&mut again, message);
    assert_eq!(again, fitted, "what fits is left alone");
    let bytes = codec::protobuf::encode_object(&fitted, message);
    let _ = codec::protobuf::decode_object(&bytes, |_, _| Some(message));
    let version = meta::api_version(&fitted).to_owned();
    let reset = FieldSet::new();
    managed_fields::update(
        &Value::Null,
        &mut fitted,
        &mk_write(&version, message, &reset),
    );
}

fn message_of(object: &Value) -> Option<&'static Message> {
    message(meta::api_version(object), meta::kind(object))
}

fn message(api_version: &str, kind: &str) -> Option<&'static Message> {
    let (group, version) = meta::group_version(api_version);
    api::message_for(group, version, kind)
}

/// Both parts of an input, and the type of the first; a Pod when it does not say.
fn two(bytes: &[u8]) -> Option<(Value, Value, &'static Message)> {
    let at = bytes.windows(CUT.len()).position(|part| part == CUT)?;
    let (first, rest) = bytes.split_at(at);
    let object = codec::json::decode(first).ok()?.value;
    let change = codec::json::decode(rest.strip_prefix(CUT)?).ok()?.value;
    if !object.is_object() {
        return None;
    }
    let message = message_of(&object).or_else(|| message("v1", "Pod"))?;
    Some((object, change, message))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A pod with this many bytes of one field, for inputs made in code.
pub fn mk_pod(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec})
}

/// An input of two parts.
pub fn cut(first: &str, second: &str) -> Vec<u8> {
    [first.as_bytes(), CUT, second.as_bytes()].concat()
}
