//! Aggregated discovery: every group, version and resource in one document (KEP-3352).

use api::Resource;
use api::resource::Subresource;
use serde_json::{Value, json};

use crate::served::Served;

/// The versions of apidiscovery.k8s.io; the documents differ in nothing but the version's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V2,
    V2Beta1,
}

impl Version {
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::V2 => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            Self::V2Beta1 => {
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
            }
        }
    }

    const fn api_version(self) -> &'static str {
        match self {
            Self::V2 => "apidiscovery.k8s.io/v2",
            Self::V2Beta1 => "apidiscovery.k8s.io/v2beta1",
        }
    }
}

/// `/api` (the core group alone) or `/apis` (all others).
pub fn list(served: &Served, core: bool, version: Version) -> Value {
    let items: Vec<Value> = served
        .groups()
        .into_iter()
        .filter(|group| group.is_empty() == core)
        .map(|group| group_item(served, group))
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": version.api_version(),
        "metadata": {},
        "items": items,
    })
}

fn group_item(served: &Served, group: &str) -> Value {
    let versions: Vec<Value> = served
        .versions(group)
        .into_iter()
        .map(|version| {
            let resources: Vec<Value> = served
                .of_version(group, version)
                .into_iter()
                .map(resource)
                .collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let mut metadata = json!({});
    if !group.is_empty() {
        metadata["name"] = group.into();
    }
    json!({"metadata": metadata, "versions": versions})
}

/// Empty group and version stand for those of the list.
fn kind_of(of: &Resource, group: &str, version: &str, kind: &str) -> Value {
    if (group, version) == (of.group, of.version) {
        json!({"group": "", "version": "", "kind": kind})
    } else {
        json!({"group": group, "version": version, "kind": kind})
    }
}

fn resource(of: &'static Resource) -> Value {
    let mut fields = json!({
        "resource": of.plural,
        "responseKind": kind_of(of, of.group, of.version, of.kind),
        "scope": if of.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": of.singular,
        "verbs": of.verbs,
    });
    if !of.short_names.is_empty() {
        fields["shortNames"] = json!(of.short_names);
    }
    if !of.categories.is_empty() {
        fields["categories"] = json!(of.categories);
    }
    if !of.subresources.is_empty() {
        let list: Vec<Value> = of
            .subresources
            .iter()
            .map(|sub| subresource(of, sub))
            .collect();
        fields["subresources"] = list.into();
    }
    fields
}

fn subresource(of: &Resource, sub: &Subresource) -> Value {
    json!({
        "subresource": sub.name,
        "responseKind": kind_of(of, sub.group, sub.version, sub.kind),
        "verbs": sub.verbs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    #[test]
    fn the_aggregated_document_equals_the_recorded_one() {
        let file = "shared/facts/discovery/aggregated_v2.json";
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../..")
            .join(file);
        let Ok(recorded) = std::fs::read(path) else {
            println!("skipped: no recorded discovery document beside the project");
            return;
        };
        let recorded: Value = serde_json::from_slice(&recorded).expect("JSON");
        let served = Served::new(&BTreeMap::from([("api/all".to_owned(), true)]));
        let made = list(&served, false, Version::V2);
        let names = |document: &Value| -> Vec<String> {
            let items = document["items"].as_array().expect("a list");
            items
                .iter()
                .map(|item| item["metadata"]["name"].to_string())
                .collect()
        };
        assert_eq!(names(&made), names(&recorded));
        let find = |group: &Value, version: &Value, resource: &Value| -> Option<Value> {
            let group = recorded["items"]
                .as_array()?
                .iter()
                .find(|item| item["metadata"] == *group)?;
            let version = group["versions"]
                .as_array()?
                .iter()
                .find(|item| item["version"] == *version)?;
            version["resources"]
                .as_array()?
                .iter()
                .find(|item| item["resource"] == *resource)
                .cloned()
        };
        let mut compared = 0;
        for group in made["items"].as_array().expect("a list") {
            for version in group["versions"].as_array().expect("a list") {
                for resource in version["resources"].as_array().expect("a list") {
                    if let Some(twin) = find(
                        &group["metadata"],
                        &version["version"],
                        &resource["resource"],
                    ) {
                        assert_eq!(*resource, twin);
                        compared += 1;
                    }
                }
            }
        }
        assert!(compared > 60, "{compared}");
    }
}
