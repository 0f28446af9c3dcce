//! Who owns the fields of what a server makes at its start, against objects recorded from upstream's first start.

use std::path::Path;

use serde_json::Value;

use super::harness::Harness;

/// What is not alike from server to server: names and addresses of this one, and what its controllers add.
const LEFT_OUT: &[&str] = &["leases", "ipaddresses", "configmaps"];

fn owners(object: &Value) -> Vec<Value> {
    let entries = object["metadata"]["managedFields"].as_array();
    let mut entries = entries.cloned().unwrap_or_default();
    for entry in &mut entries {
        entry.as_object_mut().expect("an entry").remove("time");
    }
    entries
}

fn same_object(a: &Value, b: &Value) -> bool {
    let named = |object: &Value| {
        let metadata = &object["metadata"];
        (metadata["namespace"].clone(), metadata["name"].clone())
    };
    named(a) == named(b)
}

#[tokio::test]
async fn boot_objects_have_the_owners_that_upstreams_have() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/facts/boot-objects.json");
    let Ok(text) = std::fs::read(&file) else {
        println!("skipped: {} is not there", file.display());
        return;
    };
    let facts: serde_json::Map<String, Value> = serde_json::from_slice(&text).expect("JSON");
    let server = Harness::start().await;
    let mut compared = 0;
    for (path, wanted) in &facts {
        let left_out = LEFT_OUT.iter().any(|plural| path.ends_with(plural));
        let answer = server.get(path).await;
        if left_out || answer.code == 404 {
            continue;
        }
        let list = answer.expect(200);
        let made = list["items"].as_array().expect("items");
        for object in wanted.as_array().into_iter().flatten() {
            let Some(have) = made.iter().find(|have| same_object(have, object)) else {
                continue;
            };
            assert_eq!(owners(have), owners(object), "{path} {object}");
            compared += 1;
        }
    }
    assert!(compared > 180, "{compared}");
}
