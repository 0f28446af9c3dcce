//! ConfigMaps and Secrets: data under keys, which may be frozen.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::tree::{at, default_text, flag, has, map, object_mut, remove, text};
use crate::registry::strategy::{Change, Strategy};

/// Most bytes of all values together: one mebibyte.
const MAX_SIZE: usize = 1024 * 1024;

pub struct ConfigMaps;

impl Strategy for ConfigMaps {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "configmaps")
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let mut size = 0;
        for (key, value) in map(object, &["data"]).into_iter().flatten() {
            let path = Path::new("data").key(key);
            errors.push_invalid(&path, key, name::config_map_key(key));
            if has(object, &["binaryData", key]) {
                errors.push(Error::invalid(
                    &path,
                    key,
                    "duplicate of key present in binaryData",
                ));
            }
            size += value.as_str().map_or(0, str::len);
        }
        for (key, value) in map(object, &["binaryData"]).into_iter().flatten() {
            let path = Path::new("binaryData").key(key);
            errors.push_invalid(&path, key, name::config_map_key(key));
            size += decoded_len(value);
        }
        if size > MAX_SIZE {
            errors.push(Error::too_long(&Path::default(), MAX_SIZE));
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = frozen(new, old, &["data", "binaryData"]);
        errors.extend(self.validate_create(change, new));
        errors
    }
}

fn decoded_len(value: &Value) -> usize {
    value.as_str().map_or(0, |text| text.len() / 4 * 3)
}

/// What is immutable stays so, with its data.
fn frozen(new: &Value, old: &Value, fields: &[&str]) -> ErrorList {
    let mut errors = ErrorList::new();
    if !flag(old, &["immutable"]) {
        return errors;
    }
    let why = "field is immutable when `immutable` is set";
    if !flag(new, &["immutable"]) {
        errors.push(Error::forbidden(&Path::new("immutable"), why));
    }
    for field in fields {
        if at(new, &[field]) != at(old, &[field]) {
            errors.push(Error::forbidden(&Path::new(*field), why));
        }
    }
    errors
}

pub struct Secrets;

/// Keys that secrets of a type must have.
const REQUIRED: &[(&str, &[&str])] = &[
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
];

impl Strategy for Secrets {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "secrets")
    }

    fn default(&self, object: &mut Value) {
        default_text(object, "type", "Opaque");
        // What is written as text is stored encoded, and never read back as text.
        let Some(Value::Object(plain)) = remove(object, "stringData") else {
            return;
        };
        for (key, value) in plain {
            let encoded = STANDARD.encode(value.as_str().unwrap_or(""));
            object_mut(object, &["data"]).insert(key, encoded.into());
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("data");
        let mut size = 0;
        for (key, value) in map(object, &["data"]).into_iter().flatten() {
            errors.push_invalid(&path.key(key), key, name::config_map_key(key));
            size += decoded_len(value);
        }
        if size > MAX_SIZE {
            errors.push(Error::too_long(&path, MAX_SIZE));
        }
        let kind = text(object, &["type"]);
        let keys = REQUIRED.iter().find(|(known, _)| *known == kind);
        for key in keys.into_iter().flat_map(|(_, keys)| keys.iter()) {
            if !has(object, &["data", key]) {
                errors.push(Error::required(&path.key(key), ""));
            }
        }
        match kind {
            "kubernetes.io/service-account-token" => {
                let key = "kubernetes.io/service-account.name";
                let path = Path::new("metadata").child("annotations").key(key);
                if text(object, &["metadata", "annotations", key]).is_empty() {
                    errors.push(Error::required(&path, ""));
                }
            }
            "kubernetes.io/basic-auth" => {
                if !has(object, &["data", "username"]) && !has(object, &["data", "password"]) {
                    errors.push(Error::required(&path.key("username"), ""));
                    errors.push(Error::required(&path.key("password"), ""));
                }
            }
            "kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson" => {
                let key = keys.map_or("", |(_, keys)| keys[0]);
                let text = text(object, &["data", key]);
                let is_json = STANDARD
                    .decode(text)
                    .is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok());
                if !text.is_empty() && !is_json {
                    errors.push(Error::invalid(
                        &path.key(key),
                        "<secret contents redacted>",
                        "invalid character looking for beginning of value",
                    ));
                }
            }
            _ => {}
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if at(new, &["type"]) != at(old, &["type"]) {
            let path = Path::new("type");
            errors.push(Error::invalid(
                &path,
                text(new, &["type"]),
                "field is immutable",
            ));
        }
        errors.extend(frozen(new, old, &["data"]));
        errors.extend(self.validate_create(change, new));
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_of_a_secret_is_encoded_over_its_data() {
        let mut secret = json!({"data": {"a": "b2xk", "c": "eA=="}, "stringData": {"a": "new"}});
        Secrets.default(&mut secret);
        assert_eq!(
            secret,
            json!({"type": "Opaque", "data": {"a": "bmV3", "c": "eA=="}})
        );
    }

    #[test]
    fn frozen_data_does_not_change() {
        let old = json!({"immutable": true, "data": {"a": "1"}});
        assert!(frozen(&old, &old, &["data"]).is_empty());
        let new = json!({"data": {"a": "2"}});
        assert_eq!(
            frozen(&new, &old, &["data"]).aggregate(),
            "[immutable: Forbidden: field is immutable when `immutable` is set, data: Forbidden: field is immutable when `immutable` is set]"
        );
    }
}
