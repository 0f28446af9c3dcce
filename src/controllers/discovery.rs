//! What the server serves, asked for when it is needed (KEP-3352, aggregated discovery).

use apimachinery::Value;
use client::{Client, ClientError};
use serde::Deserialize;

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A resource as discovery tells of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Served {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub kind: String,
    pub is_namespaced: bool,
    pub verbs: Vec<String>,
}

impl Served {
    pub fn has(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
    }

    /// The path of all its objects, or of those in a namespace.
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if namespace.is_empty() {
            format!("{root}/{}", self.resource)
        } else {
            format!("{root}/namespaces/{namespace}/{}", self.resource)
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Groups {
    items: Vec<Group>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Group {
    metadata: api::view::ObjectMeta,
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Version {
    version: String,
    /// `Stale` when an aggregated server does not answer.
    freshness: String,
    resources: Vec<Resource>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Resource {
    resource: String,
    response_kind: Value,
    scope: String,
    verbs: Vec<String>,
}

/// Every resource once, in its group's preferred version of those that have it. The second part names groups and
/// versions that could not be asked.
pub async fn preferred(client: &Client) -> Result<(Vec<Served>, Vec<String>), ClientError> {
    let mut all: Vec<Served> = Vec::new();
    let mut stale = Vec::new();
    for path in ["/api", "/apis"] {
        let groups: Groups = client.get_path_as(path, ACCEPT).await?;
        for group in groups.items {
            let name = group.metadata.name;
            for version in group.versions {
                if version.freshness == "Stale" {
                    stale.push(format!("{name}/{}", version.version));
                }
                for resource in version.resources {
                    // Versions come in the order of preference.
                    if all
                        .iter()
                        .any(|one| one.group == name && one.resource == resource.resource)
                    {
                        continue;
                    }
                    all.push(Served {
                        group: name.clone(),
                        version: version.version.clone(),
                        kind: resource.response_kind["kind"].as_str().unwrap_or("").into(),
                        resource: resource.resource,
                        is_namespaced: resource.scope == "Namespaced",
                        verbs: resource.verbs,
                    });
                }
            }
        }
    }
    Ok((all, stale))
}
