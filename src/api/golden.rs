//! The golden objects, one fully populated of every kind in JSON, YAML and protobuf: all three are the same object to us.
//! Skips, with a printed reason, where they are absent (`SKIFF_SHARED` or `../shared` beside the project).

use std::path::PathBuf;

use apimachinery::Value;
use apimachinery::codec::{json, protobuf, yaml};
use apimachinery::schema::Message;

use crate::message_for;

/// The folder of golden objects.
pub(crate) fn folder() -> Option<PathBuf> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("SKIFF_SHARED").map_or_else(beside, PathBuf::from);
    let folder = shared.join("fixtures/api-testdata");
    if !folder.is_dir() {
        println!("skipped: no golden objects at {}", folder.display());
        return None;
    }
    Some(folder)
}

/// `(file name without its ending, type)` of every golden object whose type is in the tables.
pub(crate) fn objects(folder: &PathBuf) -> Vec<(String, &'static Message)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)
        .expect("readable")
        .filter_map(Result::ok)
    {
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".json") else {
            continue;
        };
        let mut parts = name.rsplitn(3, '.');
        let (Some(kind), Some(version), Some(group)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let group = if group == "core" { "" } else { group };
        if let Some(message) = message_for(group, version, kind) {
            found.push((name.to_owned(), message));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

pub(crate) fn read(folder: &PathBuf, name: &str, ending: &str) -> Vec<u8> {
    std::fs::read(folder.join(format!("{name}.{ending}"))).expect("a golden file")
}

/// The first place where two objects differ.
pub(crate) fn difference(path: &str, one: &Value, other: &Value) -> Option<String> {
    match (one, other) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
            let null = Value::Null;
            keys.into_iter().find_map(|key| {
                difference(
                    &format!("{path}.{key}"),
                    left.get(key).unwrap_or(&null),
                    right.get(key).unwrap_or(&null),
                )
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find_map(|(i, (l, r))| difference(&format!("{path}[{i}]"), l, r)),
        (left, right) => (left != right).then(|| format!("{path}: {left} / {right}")),
    }
}

#[test]
fn every_golden_protobuf_is_its_json_and_back_to_the_byte() {
    let Some(folder) = folder() else { return };
    let objects = objects(&folder);
    assert!(
        objects.len() > 150,
        "only {} of the golden objects have a table",
        objects.len()
    );
    let mut wrong = Vec::new();
    for (name, message) in objects {
        let golden = json::decode(&read(&folder, &name, "json"))
            .expect("JSON")
            .value;
        let bytes = read(&folder, &name, "pb");
        match protobuf::decode_object(&bytes, |_, _| Some(message)) {
            Ok(decoded) => wrong.extend(difference(&name, &golden, &decoded)),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
        if protobuf::encode_object(&golden, message) != bytes {
            wrong.push(format!("{name}: other bytes"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn every_golden_yaml_is_its_json_and_back_to_the_byte() {
    let Some(folder) = folder() else { return };
    for (name, _) in objects(&folder) {
        let golden = json::decode(&read(&folder, &name, "json"))
            .expect("JSON")
            .value;
        let from_yaml = yaml::decode(&read(&folder, &name, "yaml"))
            .expect("YAML")
            .value;
        assert_eq!(difference(&name, &golden, &from_yaml), None);
        let again = yaml::decode(yaml::encode(&golden).as_ref())
            .expect("YAML")
            .value;
        assert_eq!(difference(&name, &golden, &again), None);
        assert_eq!(
            String::from_utf8_lossy(&yaml::encode(&golden)),
            String::from_utf8_lossy(&read(&folder, &name, "yaml")),
            "{name}: other text"
        );
    }
}
