//! Lists: selectors, pages, versions, forms.

use http::Method;
use serde_json::{Value, json};
use store::Store;

use super::harness::{Harness, config_map, pod};

const MAPS: &str = "/api/v1/namespaces/test/configmaps";
const PODS: &str = "/api/v1/namespaces/test/pods";

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| item["metadata"]["name"].as_str().expect("a name"))
        .collect()
}

#[tokio::test]
async fn a_list_has_a_version_and_items_without_types() {
    let server = Harness::start().await;
    let made = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    let list = server.get(MAPS).await.expect(200);
    assert_eq!(list["kind"], "ConfigMapList");
    // The server writes for itself, too (its leases), so the list may be newer.
    let version = |object: &Value| -> i64 {
        let text = object["metadata"]["resourceVersion"].as_str();
        text.and_then(|text| text.parse().ok()).expect("a version")
    };
    assert!(version(&list) >= version(&made));
    let item = &list["items"][0];
    assert!(item.get("kind").is_none() && item.get("apiVersion").is_none());
    assert_eq!(item["metadata"], made["metadata"]);
    let empty = server.get("/api/v1/namespaces/test/secrets").await;
    assert!(String::from_utf8_lossy(&empty.bytes).ends_with("\"items\":[]}\n"));
}

#[tokio::test]
async fn selectors_filter_by_label_and_field() {
    let server = Harness::start().await;
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x")] {
        server
            .post(MAPS, &config_map(name, json!({ "app": app })))
            .await
            .expect(201);
    }
    let list = server
        .get(&format!("{MAPS}?labelSelector=app%3Dx"))
        .await
        .expect(200);
    assert_eq!(names(&list), ["a", "c"]);
    let list = server
        .get(&format!("{MAPS}?labelSelector=app+notin+(x)"))
        .await
        .expect(200);
    assert_eq!(names(&list), ["b"]);
    let list = server
        .get(&format!("{MAPS}?fieldSelector=metadata.name%3Db"))
        .await
        .expect(200);
    assert_eq!(names(&list), ["b"]);
    let bad = server
        .get(&format!("{MAPS}?fieldSelector=data.k%3Dv"))
        .await;
    assert!(bad.message(400).contains("is not a known field selector"));
    server.post(PODS, &pod("p")).await.expect(201);
    let list = server
        .get(&format!(
            "{PODS}?fieldSelector=status.phase!%3DRunning,spec.nodeName%3D"
        ))
        .await
        .expect(200);
    assert_eq!(names(&list), ["p"]);
    let bad = server
        .get(&format!("{PODS}?fieldSelector=spec.foo%3Dv"))
        .await;
    assert_eq!(bad.message(400), "field label not supported: spec.foo");
}

#[tokio::test]
async fn pages_are_of_one_revision() {
    let server = Harness::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        server
            .post(MAPS, &config_map(name, json!({})))
            .await
            .expect(201);
    }
    let first = server.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    server.delete(&format!("{MAPS}/d")).await.expect(200);
    let second = server
        .get(&format!("{MAPS}?limit=2&continue={token}"))
        .await
        .expect(200);
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let token = second["metadata"]["continue"].as_str().unwrap().to_owned();
    let third = server
        .get(&format!("{MAPS}?limit=2&continue={token}"))
        .await
        .expect(200);
    assert_eq!(names(&third), ["e"]);
    assert!(third["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn an_expired_page_offers_to_go_on_inconsistently() {
    let server = Harness::start().await;
    for name in ["a", "b", "c"] {
        server
            .post(MAPS, &config_map(name, json!({})))
            .await
            .expect(201);
    }
    let first = server.get(&format!("{MAPS}?limit=1")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    server.delete(&format!("{MAPS}/b")).await.expect(200);
    server
        .post(MAPS, &config_map("z", json!({})))
        .await
        .expect(201);
    let now = server.store.revision().await.unwrap();
    server.store.compact(now).await.unwrap();
    // The cache would serve the page as long as it has not heard of a change.
    server.get(MAPS).await.expect(200);
    let expired = server
        .get(&format!("{MAPS}?limit=1&continue={token}"))
        .await
        .expect(410);
    assert_eq!(expired["reason"], "Expired");
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let rest = server
        .get(&format!("{MAPS}?continue={token}"))
        .await
        .expect(200);
    assert_eq!(names(&rest), ["c", "z"]);
}

#[tokio::test]
async fn a_list_is_as_of_the_version_asked_for() {
    let server = Harness::start().await;
    let a = server
        .post(MAPS, &config_map("a", json!({})))
        .await
        .expect(201);
    server
        .post(MAPS, &config_map("b", json!({})))
        .await
        .expect(201);
    let version = a["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(names(&server.get(&exact).await.expect(200)), ["a"]);
    let newer = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    assert_eq!(names(&server.get(&newer).await.expect(200)), ["a", "b"]);
    let future = server.get(&format!("{MAPS}?resourceVersion=99999")).await;
    let message = future.message(504);
    assert!(
        message.starts_with("Timeout: Too large resource version: 99999, current: "),
        "{message}"
    );
    let bad = server.get(&format!("{MAPS}?resourceVersion=x")).await;
    assert_eq!(bad.code, 400);
}

#[tokio::test]
async fn tables_and_metadata_are_made_by_the_server() {
    let server = Harness::start().await;
    server.post(PODS, &pod("p")).await.expect(201);
    let headers = [(
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    )];
    let table = server
        .ask(Method::GET, PODS, &headers, "")
        .await
        .expect(200);
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "p");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["rows"][0]["object"]["metadata"]["name"], "p");
    let headers = [(
        "accept",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    )];
    let list = server
        .ask(Method::GET, PODS, &headers, "")
        .await
        .expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(list["items"][0].get("spec").is_none());
    let headers = [(
        "accept",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    )];
    let refused = server
        .ask(Method::GET, PODS, &headers, "")
        .await
        .expect(406);
    assert_eq!(
        refused["message"],
        "you requested PartialObjectMetadata, but the requested object is a list (*core.PodList)"
    );
    let yaml = server
        .ask(Method::GET, PODS, &[("accept", "application/yaml")], "")
        .await;
    assert_eq!(yaml.headers["content-type"], "application/yaml");
    assert!(String::from_utf8_lossy(&yaml.bytes).starts_with("apiVersion: v1\n"));
    let pretty = server.get(&format!("{PODS}/p?pretty=true")).await;
    assert!(String::from_utf8_lossy(&pretty.bytes).starts_with("{\n  \"kind\": \"Pod\","));
}

#[tokio::test]
async fn protobuf_goes_in_and_out() {
    use apimachinery::codec::protobuf::{Envelope, decode_object, encode_object};
    let server = Harness::start().await;
    let mut object = pod("p");
    object["metadata"]["namespace"] = "test".into();
    let body = encode_object(&object, api::r::PODS.schema);
    let media = "application/vnd.kubernetes.protobuf";
    let headers = [("content-type", media), ("accept", media)];
    let made = server.ask(Method::POST, PODS, &headers, body).await;
    assert_eq!(made.code, 201);
    assert_eq!(made.headers["content-type"], media);
    let decode = |bytes: &[u8]| {
        decode_object(bytes, |version, kind| {
            let (group, version) = apimachinery::meta::group_version(version);
            api::message_for(group, version, kind)
        })
        .expect("valid")
    };
    let read = server.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(decode(&made.bytes), read);
    let list = server
        .ask(Method::GET, PODS, &[("accept", media)], "")
        .await;
    assert_eq!(Envelope::open(&list.bytes).unwrap().kind, "PodList");
    let list = decode(&list.bytes);
    assert_eq!(list["items"][0]["metadata"], read["metadata"]);
    assert_eq!(list["items"][0]["spec"], read["spec"]);
}

#[tokio::test]
async fn component_statuses_are_a_table_for_kubectl() {
    let server = Harness::start().await;
    let path = "/api/v1/componentstatuses";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let headers = [("accept", table)];
    for (path, at) in [(path, 2), ("/api/v1/componentstatuses/etcd-0", 0)] {
        let answer = server
            .ask(Method::GET, path, &headers, "")
            .await
            .expect(200);
        assert_eq!(answer["kind"], "Table");
        assert_eq!(answer["columnDefinitions"][1]["name"], "Status");
        let row = &answer["rows"][at];
        assert_eq!(row["cells"], json!(["etcd-0", "Healthy", "ok", ""]));
        assert_eq!(row["object"]["metadata"]["name"], "etcd-0");
    }
    let plain = server.get(path).await.expect(200);
    assert_eq!(plain["kind"], "ComponentStatusList");
    let names = ["controller-manager", "scheduler", "etcd-0"];
    for (item, name) in plain["items"].as_array().expect("items").iter().zip(names) {
        assert_eq!(item["metadata"]["name"], name);
    }
}
