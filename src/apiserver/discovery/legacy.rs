//! The documents of `/api`, `/apis` and below, as clients before aggregated discovery read them.

use api::Resource;
use api::resource::Subresource;
use serde_json::{Map, Value, json};

use crate::served::Served;

/// `/api`.
pub fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`.
pub fn groups(served: &Served) -> Value {
    let groups: Vec<Value> = served
        .groups()
        .into_iter()
        .filter(|group| !group.is_empty())
        .map(|group| Value::Object(group_fields(served, group)))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(served: &Served, group: &str) -> Option<Value> {
    if group.is_empty() || served.versions(group).is_empty() {
        return None;
    }
    let mut fields = group_fields(served, group);
    fields.insert("kind".to_owned(), "APIGroup".into());
    fields.insert("apiVersion".to_owned(), "v1".into());
    Some(Value::Object(fields))
}

fn group_fields(served: &Served, group: &str) -> Map<String, Value> {
    let versions: Vec<Value> = served
        .versions(group)
        .into_iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    let mut fields = Map::new();
    fields.insert("name".to_owned(), group.into());
    fields.insert(
        "preferredVersion".to_owned(),
        versions.first().cloned().unwrap_or_default(),
    );
    fields.insert("versions".to_owned(), versions.into());
    fields
}

/// `/api/v1` and `/apis/GROUP/VERSION`. The core one has no apiVersion, as upstream's.
pub fn resources(served: &Served, group: &str, version: &str) -> Option<Value> {
    if !served.serves(group, version) {
        return None;
    }
    let mut list = Vec::new();
    for of in served.of_version(group, version) {
        list.push(resource(of));
        list.extend(of.subresources.iter().map(|sub| subresource(of, sub)));
    }
    let mut document = json!({
        "kind": "APIResourceList",
        "groupVersion": apimachinery::meta::join_group_version(group, version),
        "resources": list,
    });
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    Some(document)
}

fn resource(of: &Resource) -> Value {
    let mut fields = json!({
        "name": of.plural,
        "singularName": of.singular,
        "namespaced": of.namespaced,
        "kind": of.kind,
        "verbs": of.verbs,
    });
    if !of.short_names.is_empty() {
        fields["shortNames"] = json!(of.short_names);
    }
    if !of.categories.is_empty() {
        fields["categories"] = json!(of.categories);
    }
    if !of.storage_version_hash.is_empty() {
        fields["storageVersionHash"] = of.storage_version_hash.into();
    }
    fields
}

fn subresource(of: &Resource, sub: &Subresource) -> Value {
    let mut fields = json!({
        "name": format!("{}/{}", of.plural, sub.name),
        "singularName": "",
        "namespaced": of.namespaced,
        "kind": sub.kind,
        "verbs": sub.verbs,
    });
    if (sub.group, sub.version) != (of.group, of.version) {
        fields["group"] = sub.group.into();
        fields["version"] = sub.version.into();
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    /// Recorded with everything on; what 1.37 added to or took from it is not compared.
    #[test]
    fn the_documents_equal_the_recorded_ones() {
        let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/facts/discovery");
        if !facts.is_dir() {
            println!("skipped: no recorded discovery documents beside the project");
            return;
        }
        let served = Served::new(&BTreeMap::from([("api/all".to_owned(), true)]));
        let mut compared = 0;
        for entry in std::fs::read_dir(&facts).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_stem()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let recorded = std::fs::read(&path).expect("a file");
            let recorded: Value = serde_json::from_slice(&recorded).expect("JSON");
            let parts: Vec<&str> = name.split("__").collect();
            match parts[..] {
                ["api", version] => compare(&resources(&served, "", version), &recorded),
                ["apis", group, version] => compare(&resources(&served, group, version), &recorded),
                ["apis", name] => {
                    let Some(made) = group(&served, name) else {
                        continue;
                    };
                    if made["versions"] == recorded["versions"] {
                        assert_eq!(
                            made["preferredVersion"], recorded["preferredVersion"],
                            "{name}"
                        );
                    }
                    assert_eq!(
                        (&made["kind"], &made["apiVersion"]),
                        (&recorded["kind"], &recorded["apiVersion"])
                    );
                }
                _ => continue,
            }
            compared += 1;
        }
        assert!(compared > 40, "{compared}");
    }

    #[track_caller]
    fn compare(made: &Option<Value>, recorded: &Value) {
        let Some(made) = made else { return };
        assert_eq!(made["groupVersion"], recorded["groupVersion"]);
        assert_eq!(made["apiVersion"], recorded["apiVersion"]);
        let recorded = recorded["resources"].as_array().expect("a list");
        for resource in made["resources"].as_array().expect("a list") {
            if let Some(twin) = recorded
                .iter()
                .find(|twin| twin["name"] == resource["name"])
            {
                assert_eq!(resource, twin, "{}", made["groupVersion"]);
            }
        }
    }
}
