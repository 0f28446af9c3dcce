//! What upstream's components need of an API server besides single requests: informers that list by watching, metadata
//! alone, leases, and questions about who may; all in protobuf.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::Method;
use integration::asking::{LIST_BY_WATCH, MAPS, ask, initial, map, mk_server, next, watch};
use integration::connection::Connection;
use integration::wire::{self, ACCEPT_METADATA, ACCEPT_METADATA_LIST, Frames, PROTOBUF};
use serde_json::{Value, json};

#[tokio::test]
async fn an_informer_lists_by_watching_and_goes_on() {
    let Some(server) = mk_server().await else {
        return;
    };
    let user = server
        .connect_as("system:kube-controller-manager", None)
        .await;
    let admin = server.connect().await;
    for name in ["a", "b"] {
        ask(&admin, Method::POST, MAPS, map(name, "1"))
            .await
            .expect(201);
    }
    let mut frames = watch(&user, &format!("/api/v1/configmaps?{LIST_BY_WATCH}")).await;
    let (objects, version) = initial(&mut frames).await;
    let in_default: Vec<&str> = objects
        .iter()
        .filter(|object| object["metadata"]["namespace"] == "default")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    assert_eq!(in_default, ["a", "b"]);
    let newest = objects
        .iter()
        .filter_map(|object| {
            object["metadata"]["resourceVersion"]
                .as_str()?
                .parse::<u64>()
                .ok()
        })
        .max();
    assert!(
        version.parse::<u64>().ok() >= newest,
        "{version} {newest:?}"
    );
    let mut changed = ask(&admin, Method::GET, &format!("{MAPS}/a"), Value::Null)
        .await
        .expect(200);
    changed["data"]["a"] = "2".into();
    ask(&admin, Method::PUT, &format!("{MAPS}/a"), changed)
        .await
        .expect(200);
    let (kind, object) = next(&mut frames).await;
    assert_eq!(
        (kind.as_str(), &object["data"]["a"]),
        ("MODIFIED", &json!("2"))
    );
    ask(&admin, Method::DELETE, &format!("{MAPS}/b"), Value::Null)
        .await
        .expect(200);
    let (kind, gone) = next(&mut frames).await;
    assert_eq!(
        (kind.as_str(), &gone["metadata"]["name"]),
        ("DELETED", &json!("b"))
    );
    // Resumed from the bookmark, it sees the same again.
    let mut resumed = watch(
        &user,
        &format!("/api/v1/configmaps?watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=1"),
    )
    .await;
    assert_eq!(next(&mut resumed).await.0, "MODIFIED");
    assert_eq!(next(&mut resumed).await.1, gone);
    let mut rest = Vec::new();
    while let Some((kind, _)) = resumed.next().await.expect("a frame") {
        rest.push(kind);
    }
    assert!(rest.iter().all(|kind| kind == "BOOKMARK"), "{rest:?}");
}

#[tokio::test]
async fn an_informer_that_cannot_falls_back_to_pages_and_a_watch() {
    let Some(server) = mk_server().await else {
        return;
    };
    let admin = server.connect().await;
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let mut names = Vec::new();
    let mut query = "limit=7".to_owned();
    let version = loop {
        let page = ask(&admin, Method::GET, &format!("{path}?{query}"), Value::Null).await;
        assert_eq!(page.media, PROTOBUF);
        let page = page.expect(200);
        let items = page["items"].as_array().expect("items");
        names.extend(
            items
                .iter()
                .filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)),
        );
        match page["metadata"]["continue"].as_str() {
            Some(token) if !token.is_empty() => query = format!("limit=7&continue={token}"),
            _ => {
                break page["metadata"]["resourceVersion"]
                    .as_str()
                    .expect("a version")
                    .to_owned();
            }
        }
    };
    let cached = ask(
        &admin,
        Method::GET,
        &format!("{path}?limit=500&resourceVersion=0"),
        Value::Null,
    )
    .await
    .expect(200);
    assert_eq!(
        cached["items"].as_array().expect("items").len(),
        names.len()
    );
    assert!(names.is_sorted() && names.len() > 50, "{names:?}");
    let mut frames = watch(
        &admin,
        &format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}"),
    )
    .await;
    let role = json!({"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "later"}});
    ask(&admin, Method::POST, path, role).await.expect(201);
    let (kind, object) = next(&mut frames).await;
    assert_eq!(
        (kind.as_str(), &object["metadata"]["name"]),
        ("ADDED", &json!("later"))
    );
}

/// Every resource that can be listed, watched and deleted: what the garbage collector and the quota controller watch.
async fn collectable(connection: &Connection) -> BTreeSet<String> {
    let accept = [(
        "accept",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
    )];
    let mut paths = BTreeSet::new();
    for root in ["/api", "/apis"] {
        let found = wire::send(connection, Method::GET, root, &accept, Bytes::new())
            .await
            .expect("an answer")
            .expect(200);
        assert_eq!(found["kind"], "APIGroupDiscoveryList", "{found}");
        for group in found["items"].as_array().expect("groups") {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            let versions = group["versions"].as_array().expect("versions");
            for version in versions.iter().take(1) {
                let base = match name {
                    "" => format!("/api/{}", version["version"].as_str().expect("a version")),
                    name => format!(
                        "/apis/{name}/{}",
                        version["version"].as_str().expect("a version")
                    ),
                };
                for resource in version["resources"].as_array().expect("resources") {
                    let verbs = resource["verbs"].as_array().expect("verbs");
                    if ["list", "watch", "delete"]
                        .iter()
                        .all(|verb| verbs.contains(&json!(verb)))
                    {
                        paths.insert(format!(
                            "{base}/{}",
                            resource["resource"].as_str().expect("a name")
                        ));
                    }
                }
            }
        }
    }
    paths
}

#[tokio::test]
async fn every_resource_is_listed_and_watched_by_its_metadata_alone() {
    let Some(server) = mk_server().await else {
        return;
    };
    let admin = server.connect().await;
    let paths = collectable(&admin).await;
    assert!(paths.len() > 50, "{paths:?}");
    for path in paths {
        let list = [("accept", ACCEPT_METADATA_LIST)];
        let answer = wire::send(
            &admin,
            Method::GET,
            &format!("{path}?limit=500"),
            &list,
            Bytes::new(),
        )
        .await
        .unwrap_or_else(|error| panic!("{path}: {error:#}"));
        assert_eq!(
            (answer.code, answer.media.as_str()),
            (200, PROTOBUF),
            "{path}"
        );
        assert_eq!(answer.object["kind"], "PartialObjectMetadataList", "{path}");
        let listed = answer.object["items"].as_array().map_or(0, Vec::len);
        let accept = [("accept", ACCEPT_METADATA)];
        let mut frames = Frames::open(&admin, &format!("{path}?{LIST_BY_WATCH}"), &accept)
            .await
            .unwrap_or_else(|error| panic!("{path}: {error:#}"));
        let (objects, _) = initial(&mut frames).await;
        assert_eq!(objects.len(), listed, "{path}");
        for object in objects {
            assert_eq!(object["kind"], "PartialObjectMetadata", "{path}");
            assert!(
                object["metadata"]["uid"].is_string() && object.get("spec").is_none(),
                "{path}: {object}"
            );
        }
    }
}

#[tokio::test]
async fn leaders_hold_leases_by_their_version() {
    let Some(server) = mk_server().await else {
        return;
    };
    let user = server.connect_as("system:kube-scheduler", None).await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let named = format!("{path}/kube-scheduler");
    let missing = ask(&user, Method::GET, &named, Value::Null).await;
    assert_eq!(missing.media, PROTOBUF);
    assert_eq!(missing.expect(404)["reason"], "NotFound");
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 0,
            "acquireTime": "2026-01-01T00:00:00.000001Z", "renewTime": "2026-01-01T00:00:00.000001Z"}});
    let made = ask(&user, Method::POST, path, lease).await.expect(201);
    assert_eq!(made["spec"]["renewTime"], "2026-01-01T00:00:00.000001Z");
    let mut renewed = made.clone();
    renewed["spec"]["renewTime"] = "2026-01-01T00:00:02.000001Z".into();
    ask(&user, Method::PUT, &named, renewed).await.expect(200);
    let late = ask(&user, Method::PUT, &named, made).await.expect(409);
    assert_eq!(late["reason"], "Conflict");
    // Those of its own namespace it may hold, and no others.
    let others = "/apis/coordination.k8s.io/v1/namespaces/default/leases/other";
    ask(&user, Method::GET, others, Value::Null)
        .await
        .expect(403);
}

#[tokio::test]
async fn components_ask_who_calls_them_and_whether_they_may() {
    let Some(server) = mk_server().await else {
        return;
    };
    let admin = server.connect().await;
    let account = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "robot", "namespace": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    ask(&admin, Method::POST, accounts, account)
        .await
        .expect(201);
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 600}});
    let token = ask(
        &admin,
        Method::POST,
        &format!("{accounts}/robot/token"),
        request,
    )
    .await
    .expect(201);
    for (user, group) in [
        ("system:kube-controller-manager", None),
        ("system:kube-scheduler", None),
        ("system:node:n1", Some("system:nodes")),
    ] {
        let component = server.connect_as(user, group).await;
        let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
        let review = |token: &Value| json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": token}});
        let known = ask(
            &component,
            Method::POST,
            reviews,
            review(&token["status"]["token"]),
        )
        .await
        .expect(201);
        assert_eq!(known["status"]["authenticated"], true, "{user}: {known}");
        assert_eq!(
            known["status"]["user"]["username"],
            "system:serviceaccount:default:robot"
        );
        let unknown = ask(
            &component,
            Method::POST,
            reviews,
            review(&json!("nonsense")),
        )
        .await
        .expect(201);
        assert_ne!(
            unknown["status"]["authenticated"], true,
            "{user}: {unknown}"
        );
        let may = json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"user": "system:serviceaccount:default:robot", "groups": ["system:authenticated"],
                "resourceAttributes": {"verb": "get", "resource": "nodes", "subresource": "metrics", "name": "n1"}}});
        let answer = ask(
            &component,
            Method::POST,
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            may,
        )
        .await
        .expect(201);
        assert_ne!(answer["status"]["allowed"], true, "{user}: {answer}");
    }
}
