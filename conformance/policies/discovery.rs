//! What the server says it serves: the documents of groups and versions, and the aggregated one.

use http::Method;
use kube::discovery::{Discovery, Scope, verbs};
use serde_json::{Value, json};

use super::cluster::{Cluster, definition};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Kinds every cluster has, by group, version and resource.
const EXPECTED: [(&str, &str, &str); 18] = [
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
    ),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "v1", "apiservices"),
    ("apps", "v1", "deployments"),
    ("authentication.k8s.io", "v1", "tokenreviews"),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews"),
    ("autoscaling", "v1", "horizontalpodautoscalers"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
    ("batch", "v1", "jobs"),
    ("certificates.k8s.io", "v1", "certificatesigningrequests"),
    ("coordination.k8s.io", "v1", "leases"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("events.k8s.io", "v1", "events"),
    ("networking.k8s.io", "v1", "ingresses"),
    ("node.k8s.io", "v1", "runtimeclasses"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("scheduling.k8s.io", "v1", "priorityclasses"),
    ("storage.k8s.io", "v1", "csinodes"),
];

fn schema() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

async fn aggregated(cluster: &Cluster, path: &str) -> Value {
    let headers = [("accept", AGGREGATED)];
    let (code, list) = cluster.send(Method::GET, path, &headers, "").await;
    assert_eq!(
        (code, &list["kind"]),
        (200, &json!("APIGroupDiscoveryList")),
        "{list}"
    );
    assert_eq!(list["apiVersion"], "apidiscovery.k8s.io/v2");
    list
}

/// What an aggregated document says of a resource.
fn find<'v>(list: &'v Value, group: &str, version: &str, resource: &str) -> Option<&'v Value> {
    let named = |list: &'v Value, is: &dyn Fn(&Value) -> bool| {
        list.as_array()
            .and_then(|items| items.iter().find(|item| is(item)))
    };
    let group = named(&list["items"], &|item| {
        item["metadata"]["name"].as_str().unwrap_or("") == group
    })?;
    let version = named(&group["versions"], &|item| item["version"] == version)?;
    named(&version["resources"], &|item| item["resource"] == resource)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_aggregated_document_is_asked_for_by_its_media_type() {
    let cluster = Cluster::join().await;
    let groups = aggregated(&cluster, "/apis").await;
    for (group, version, resource) in EXPECTED {
        let found = find(&groups, group, version, resource);
        let found = found.unwrap_or_else(|| panic!("{group}/{version} {resource} is missing"));
        assert!(
            found["verbs"]
                .as_array()
                .is_some_and(|verbs| !verbs.is_empty())
        );
        assert!(found["responseKind"]["kind"].is_string());
    }
    let core = aggregated(&cluster, "/api").await;
    let namespaces = find(&core, "", "v1", "namespaces").expect("namespaces");
    assert_eq!(namespaces["scope"], "Cluster");
    let plain = cluster.get("/apis").await;
    assert_eq!(plain["kind"], "APIGroupList", "unasked, it is the old form");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_custom_kind_is_in_the_aggregated_document() {
    let cluster = Cluster::join().await;
    let defined = cluster.define(&definition("Namespaced", &schema())).await;
    let groups = aggregated(&cluster, "/apis").await;
    let found = find(&groups, &defined.group, "v1", &defined.plural).expect("is there");
    assert_eq!(found["responseKind"]["kind"], defined.kind.as_str());
    assert_eq!(found["scope"], "Namespaced");
    cluster.delete(&defined.path).await;
    cluster.gone(&defined.path).await;
    cluster.gone(&format!("/apis/{}", defined.group)).await;
    let groups = aggregated(&cluster, "/apis").await;
    assert_eq!(find(&groups, &defined.group, "v1", &defined.plural), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_finds_all_kinds_in_one_document() {
    let cluster = Cluster::join().await;
    let found = Discovery::new(cluster.client.clone())
        .run_aggregated()
        .await
        .expect("discovery");
    for (group, version, plural) in EXPECTED {
        let group = found
            .get(group)
            .unwrap_or_else(|| panic!("{group} is missing"));
        let resources = group.versioned_resources(version);
        let kind = resources.iter().find(|(kind, _)| kind.plural == plural);
        assert!(kind.is_some(), "{plural} is missing of {version}");
    }
    let core = found.get("").expect("the core group");
    let namespaces = core
        .versioned_resources("v1")
        .into_iter()
        .find(|(kind, _)| kind.plural == "namespaces");
    let (_, namespaces) = namespaces.expect("namespaces");
    assert_eq!(namespaces.scope, Scope::Cluster);
    assert!(namespaces.supports_operation(verbs::WATCH));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_custom_kind_is_found_by_clients() {
    let cluster = Cluster::join().await;
    let defined = cluster.define(&definition("Namespaced", &schema())).await;
    let found = Discovery::new(cluster.client.clone())
        .filter(&[&defined.group])
        .run_aggregated()
        .await
        .expect("discovery");
    let group = found.get(&defined.group).expect("the group");
    let (kind, capabilities) = group.recommended_kind(&defined.kind).expect("the kind");
    assert_eq!(kind.plural, defined.plural);
    assert!(capabilities.supports_operation(verbs::DELETE_COLLECTION));
    cluster.delete(&defined.path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_in_the_documents_of_their_group() {
    let cluster = Cluster::join().await;
    let named = |list: &Value, field: &str, name: &str| {
        list.as_array()
            .into_iter()
            .flatten()
            .any(|item| item[field] == name)
    };
    let groups = cluster.get("/apis").await;
    let group = groups["groups"]
        .as_array()
        .and_then(|groups| {
            groups
                .iter()
                .find(|group| group["name"] == "apiextensions.k8s.io")
        })
        .expect("the group");
    assert!(named(&group["versions"], "version", "v1"));
    let own = cluster.get("/apis/apiextensions.k8s.io").await;
    assert_eq!(
        (&own["kind"], &own["name"]),
        (&json!("APIGroup"), &json!("apiextensions.k8s.io"))
    );
    assert!(named(
        &own["versions"],
        "groupVersion",
        "apiextensions.k8s.io/v1"
    ));
    let resources = cluster.get("/apis/apiextensions.k8s.io/v1").await;
    assert_eq!(resources["groupVersion"], "apiextensions.k8s.io/v1");
    assert!(named(
        &resources["resources"],
        "name",
        "customresourcedefinitions"
    ));
    assert!(named(
        &resources["resources"],
        "name",
        "customresourcedefinitions/status"
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_group_prefers_a_version_that_it_has() {
    let cluster = Cluster::join().await;
    for group in cluster.get("/apis").await["groups"]
        .as_array()
        .expect("groups")
    {
        let name = group["name"].as_str().expect("a name");
        let (code, own) = cluster
            .ask(Method::GET, &format!("/apis/{name}"), &Value::Null)
            .await;
        if name.ends_with(".example.com") && code == 404 {
            continue; // Another test's, which has gone since.
        }
        let preferred = &own["preferredVersion"];
        assert!(
            preferred["groupVersion"]
                .as_str()
                .is_some_and(|text| text.starts_with(name)),
            "{own}"
        );
        let versions = own["versions"].as_array().expect("versions");
        assert!(versions.contains(preferred), "{own}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_of_every_group_has_its_resources() {
    let cluster = Cluster::join().await;
    for group in cluster.get("/apis").await["groups"]
        .as_array()
        .expect("groups")
    {
        let name = group["name"].as_str().expect("a name");
        if name.ends_with(".example.com") {
            continue; // Another test's, which may go at any time.
        }
        for version in group["versions"].as_array().expect("versions") {
            let path = version["groupVersion"].as_str().expect("a version");
            let list = cluster.get(&format!("/apis/{path}")).await;
            assert_eq!(
                (&list["kind"], list["groupVersion"].as_str()),
                (&json!("APIResourceList"), Some(path))
            );
            let resources = list["resources"].as_array().expect("resources");
            assert!(!resources.is_empty(), "{path} has none");
            for (group, version, resource) in EXPECTED {
                if path == format!("{group}/{version}") {
                    assert!(
                        resources.iter().any(|have| have["name"] == resource),
                        "{resource}"
                    );
                }
            }
        }
    }
}
