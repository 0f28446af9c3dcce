//! What holds for every kind, asked of each one's smallest valid object.

use apimachinery::codec::protobuf::encode_object;
use apimachinery::{Value, meta};
use http::Method;
use serde_json::json;
use store::{RangeRequest, Store};

use super::harness::Harness;

const NAMESPACE: &str = "etcdstoragepathtestnamespace";
const SMALLEST: &str = include_str!("../../generated/smallest.jsonl");

struct Sample {
    resource: &'static api::Resource,
    key: String,
    object: Value,
}

impl Sample {
    fn collection(&self) -> String {
        self.resource.path(NAMESPACE)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), meta::name(&self.object))
    }

    /// The object as a client sends it: with its type and name.
    fn sent(&self) -> Value {
        let mut object = self.object.clone();
        meta::set_type(
            &mut object,
            &self.resource.api_version(),
            self.resource.kind,
        );
        object
    }
}

fn samples() -> Vec<Sample> {
    SMALLEST
        .lines()
        .filter_map(|line| {
            let (version, plural, key, object): (String, String, String, Value) =
                serde_json::from_str(line).expect("a line");
            let (group, version) = meta::group_version(&version);
            // Alpha versions come and go between the facts' release and ours.
            let resource = api::find(group, version, &plural)?;
            Some(Sample {
                resource,
                key,
                object,
            })
        })
        .collect()
}

async fn server() -> Harness {
    let server = Harness::with(|options| {
        options.runtime_config.insert("api/all".to_owned(), true);
    })
    .await;
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    server
        .post("/api/v1/namespaces", &namespace)
        .await
        .expect(201);
    let account = json!({"metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    server.post(&path, &account).await.expect(201);
    server
}

#[tokio::test]
async fn every_served_resource_has_a_sample() {
    let samples = samples();
    for resource in api::RESOURCES.iter().filter(|resource| resource.default_on) {
        let sampled = samples
            .iter()
            .any(|sample| std::ptr::eq(sample.resource, *resource));
        assert!(
            sampled || resource.etcd_prefix.is_empty(),
            "{} has no sample",
            resource.qualified()
        );
    }
}

#[tokio::test]
async fn every_kind_is_created_at_its_key_and_read_back() {
    let server = server().await;
    for sample in samples() {
        let what = sample.resource.qualified();
        let strict = format!("{}?dryRun=All", sample.collection());
        let dry = server.post(&strict, &sample.sent()).await;
        assert_eq!(
            dry.code,
            201,
            "{what}: {}",
            String::from_utf8_lossy(&dry.bytes)
        );
        let made = server.post(&sample.collection(), &sample.sent()).await;
        assert_eq!(
            made.code,
            201,
            "{what}: {}",
            String::from_utf8_lossy(&made.bytes)
        );
        let made = made.value;
        assert_eq!(meta::kind(&made), sample.resource.kind, "{what}");
        assert_eq!(
            meta::api_version(&made),
            sample.resource.api_version(),
            "{what}"
        );
        assert!(!meta::uid(&made).is_empty() && !meta::creation_timestamp(&made).is_empty());
        let read = server.get(&sample.path()).await.expect(200);
        assert_eq!(read, made, "{what}");
        let request = RangeRequest {
            key: sample.key.clone().into(),
            ..RangeRequest::default()
        };
        let stored = server.store.range(request).await.expect("a range");
        assert_eq!(stored.count, 1, "{what} is not at {}", sample.key);
        let stored: Value = serde_json::from_slice(&stored.kvs[0].value).expect("stored JSON");
        assert_eq!(
            meta::kind(&stored),
            sample.resource.storage().kind,
            "{what}"
        );
        assert!(meta::resource_version(&stored).is_empty());
        let list = server.get(&sample.collection()).await.expect(200);
        assert_eq!(meta::kind(&list), sample.resource.list_kind(), "{what}");
        let listed = list["items"].as_array().expect("items").iter();
        assert!(
            listed
                .into_iter()
                .any(|item| meta::uid(item) == meta::uid(&made)),
            "{what}"
        );
        let twice = server.post(&sample.collection(), &sample.sent()).await;
        assert_eq!(twice.code, 409, "{what}");
    }
}

#[tokio::test]
async fn every_kind_is_updated_patched_applied_and_deleted() {
    let server = server().await;
    for sample in samples() {
        let what = sample.resource.qualified();
        server
            .post(&sample.collection(), &sample.sent())
            .await
            .expect(201);
        let path = sample.path();
        let mut next = server.get(&path).await.expect(200);
        meta::set_label(&mut next, "put", "1");
        let put = server.put(&path, &next).await;
        assert_eq!(
            put.code,
            200,
            "{what}: {}",
            String::from_utf8_lossy(&put.bytes)
        );
        assert_eq!(
            server.put(&path, &next).await.code,
            409,
            "{what}: a stale update"
        );
        for (kind, patch) in [
            ("merge", json!({"metadata": {"labels": {"merge": "1"}}})),
            (
                "json",
                json!([{"op": "add", "path": "/metadata/labels/json", "value": "1"}]),
            ),
            (
                "strategic",
                json!({"metadata": {"labels": {"strategic": "1"}}}),
            ),
        ] {
            let answer = server.patch(&path, kind, &patch).await;
            assert_eq!(
                answer.code,
                200,
                "{what} {kind}: {}",
                String::from_utf8_lossy(&answer.bytes)
            );
            assert_eq!(meta::label(&answer.value, kind), Some("1"), "{what}");
        }
        let config = json!({"apiVersion": sample.resource.api_version(), "kind": sample.resource.kind,
            "metadata": {"name": meta::name(&sample.object), "labels": {"apply": "1"}}});
        let applied = server
            .patch(&format!("{path}?fieldManager=test"), "apply", &config)
            .await;
        assert_eq!(
            applied.code,
            200,
            "{what} apply: {}",
            String::from_utf8_lossy(&applied.bytes)
        );
        let applied = applied.value;
        for label in ["put", "merge", "json", "strategic", "apply"] {
            assert_eq!(meta::label(&applied, label), Some("1"), "{what} {label}");
        }
        let again = server
            .patch(&format!("{path}?fieldManager=test"), "apply", &config)
            .await
            .expect(200);
        assert_eq!(again, applied, "{what}: apply is idempotent");
        if sample.resource.subresource("status").is_some() {
            let status = server.put(&format!("{path}/status"), &applied).await;
            assert_eq!(
                status.code,
                200,
                "{what} status: {}",
                String::from_utf8_lossy(&status.bytes)
            );
        }
        let gone = server.delete(&path).await;
        assert_eq!(
            gone.code,
            200,
            "{what}: {}",
            String::from_utf8_lossy(&gone.bytes)
        );
    }
}

#[tokio::test]
async fn every_kind_goes_through_protobuf_and_tables() {
    let server = server().await;
    let media = "application/vnd.kubernetes.protobuf";
    for sample in samples() {
        let what = sample.resource.qualified();
        let body = encode_object(&sample.sent(), sample.resource.schema);
        let headers = [("content-type", media), ("accept", "application/json")];
        let made = server
            .ask(Method::POST, &sample.collection(), &headers, body)
            .await;
        assert_eq!(
            made.code,
            201,
            "{what}: {}",
            String::from_utf8_lossy(&made.bytes)
        );
        let headers = [("accept", media)];
        let read = server.ask(Method::GET, &sample.path(), &headers, "").await;
        let decoded = apimachinery::codec::protobuf::decode_object(&read.bytes, |_, _| {
            Some(sample.resource.schema)
        })
        .expect("valid protobuf");
        assert_eq!(meta::uid(&decoded), meta::uid(&made.value), "{what}");
        let headers = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        let table = server
            .ask(Method::GET, &sample.path(), &headers, "")
            .await
            .expect(200);
        assert_eq!(table["rows"].as_array().expect("rows").len(), 1, "{what}");
        let cells = table["rows"][0]["cells"].as_array().expect("cells").len();
        assert_eq!(
            cells,
            table["columnDefinitions"]
                .as_array()
                .expect("columns")
                .len(),
            "{what}"
        );
        let headers = [(
            "accept",
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        )];
        let partial = server
            .ask(Method::GET, &sample.path(), &headers, "")
            .await
            .expect(200);
        assert_eq!(partial["metadata"], made.value["metadata"], "{what}");
        let strict = format!("{}?fieldValidation=Strict&dryRun=All", sample.collection());
        let mut odd = sample.sent();
        odd["noSuchField"] = true.into();
        let refused = server.post(&strict, &odd).await;
        assert!(
            refused
                .message(400)
                .contains("unknown field \"noSuchField\""),
            "{what}"
        );
    }
}

#[tokio::test]
async fn versions_of_one_kind_show_the_same_object() {
    let server = server().await;
    let old = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": NAMESPACE, "name": "p", "kind": "Pod"},
        "reason": "Started", "message": "hello", "type": "Normal", "source": {"component": "kubelet", "host": "n"}, "count": 2});
    let core = format!("/api/v1/namespaces/{NAMESPACE}/events");
    let new = format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events");
    let made = server.post(&core, &old).await.expect(201);
    let seen = server.get(&format!("{new}/e")).await.expect(200);
    assert_eq!(seen["note"], "hello");
    assert_eq!(seen["regarding"]["name"], "p");
    assert_eq!(seen["deprecatedSource"]["component"], "kubelet");
    assert_eq!(seen["deprecatedCount"], 2);
    assert_eq!(meta::api_version(&seen), "events.k8s.io/v1");
    let found = server
        .get(&format!(
            "{new}?fieldSelector=regarding.name%3Dp,reason%3DStarted"
        ))
        .await
        .expect(200);
    assert_eq!(found["items"][0]["note"], "hello");
    let found = server
        .get(&format!(
            "{core}?fieldSelector=involvedObject.name%3Dp,source%3Dkubelet"
        ))
        .await
        .expect(200);
    assert_eq!(found["items"][0]["metadata"], made["metadata"]);
    let v1 = format!("/apis/autoscaling/v1/namespaces/{NAMESPACE}/horizontalpodautoscalers");
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 70,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let made = server.post(&v1, &scaler).await.expect(201);
    assert_eq!(made["spec"]["targetCPUUtilizationPercentage"], 70);
    let v2 = format!("/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers/h");
    let seen = server.get(&v2).await.expect(200);
    assert_eq!(
        seen["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        70
    );
}

#[tokio::test]
async fn workloads_are_scaled_through_one_shape() {
    let server = server().await;
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments");
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    server.post(&path, &deployment).await.expect(201);
    let scale = server.get(&format!("{path}/d/scale")).await.expect(200);
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"]),
        (&json!("Scale"), &json!(2))
    );
    assert_eq!(scale["status"]["selector"], "a=b");
    let mut more = scale.clone();
    more["spec"]["replicas"] = 5.into();
    let scaled = server
        .put(&format!("{path}/d/scale"), &more)
        .await
        .expect(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    let patched = server
        .patch(
            &format!("{path}/d/scale"),
            "merge",
            &json!({"spec": {"replicas": 1}}),
        )
        .await
        .expect(200);
    assert_eq!(patched["spec"]["replicas"], 1);
    let read = server.get(&format!("{path}/d")).await.expect(200);
    assert_eq!(
        (&read["spec"]["replicas"], &read["metadata"]["generation"]),
        (&json!(1), &json!(3))
    );
    let stale = server.put(&format!("{path}/d/scale"), &more).await;
    assert_eq!(stale.code, 409);
}
