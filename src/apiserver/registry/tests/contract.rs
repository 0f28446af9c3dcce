//! What holds for every kind, asked of each one's smallest valid object.

use apimachinery::codec::protobuf::encode_object;
use apimachinery::schema::complete;
use apimachinery::{Value, meta};
use http::Method;
use serde_json::json;
use store::{RangeRequest, Store};

use super::harness::{Answer, Harness};

const NAMESPACE: &str = "etcdstoragepathtestnamespace";
const SMALLEST: &str = include_str!("../../generated/smallest.jsonl");

/// Kinds whose writers of status cannot touch metadata, as upstream's strategies say.
const BARE_STATUS: &[&str] = &[
    "apiservices",
    "deployments",
    "devicetaintrules",
    "flowschemas",
    "podgroups",
    "prioritylevelconfigurations",
    "resourceclaims",
    "servicecidrs",
    "storageversionmigrations",
    "storageversions",
    "volumeattachments",
    "workloads",
];

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

/// What went wrong, of all kinds at once.
#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn check(&mut self, holds: bool, what: impl std::fmt::Display) -> bool {
        if !holds {
            self.0.push(what.to_string());
        }
        holds
    }

    /// Checks an answer's code and gives its body when that is right.
    fn code(&mut self, answer: Answer, code: u16, what: &str) -> Option<Value> {
        let text = String::from_utf8_lossy(&answer.bytes).into_owned();
        self.check(
            answer.code == code,
            format!("{what}: {} {text}", answer.code),
        )
        .then_some(answer.value)
    }
}

impl Drop for Failures {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.0.is_empty(), "{}", self.0.join("\n"));
        }
    }
}

async fn server() -> Harness {
    let server = Harness::with(|options| {
        options.runtime_config.insert("api/all".to_owned(), true);
        // What it writes into flow schemas by itself would come between two requests.
        options.limits.priority_and_fairness = false;
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

/// Whether the server writes the sample's status by itself.
fn is_watched_over(sample: &Sample) -> bool {
    sample.resource.plural == "customresourcedefinitions"
}

/// The sample as it is once the server has written what it writes by itself.
async fn settled(server: &Harness, sample: &Sample) -> Value {
    let told = |object: &Value| object["status"]["conditions"].is_array();
    let good = |object: &Value| !is_watched_over(sample) || told(object);
    server.eventually(&sample.path(), good).await
}

#[tokio::test]
async fn every_served_resource_has_a_sample() {
    let samples = samples();
    let mut failures = Failures::default();
    for resource in api::RESOURCES.iter().filter(|resource| resource.default_on) {
        // Of some the facts only know the version before.
        let sampled = samples.iter().any(|sample| {
            sample.resource.plural == resource.plural && sample.resource.group == resource.group
        });
        let fine = sampled || resource.etcd_prefix.is_empty();
        failures.check(fine, format!("{} has no sample", resource.qualified()));
    }
}

#[tokio::test]
async fn every_kind_is_created_at_its_key_and_read_back() {
    let server = server().await;
    let mut failures = Failures::default();
    for sample in samples() {
        let what = format!(
            "{}@{}",
            sample.resource.qualified(),
            sample.resource.version
        );
        let dry = format!("{}?dryRun=All", sample.collection());
        failures.code(server.post(&dry, &sample.sent()).await, 201, &what);
        let made = server.post(&sample.collection(), &sample.sent()).await;
        let Some(made) = failures.code(made, 201, &what) else {
            continue;
        };
        failures.check(
            meta::kind(&made) == sample.resource.kind,
            format!("{what}: kind"),
        );
        let version = meta::api_version(&made) == sample.resource.api_version();
        failures.check(version, format!("{what}: version"));
        let named = !meta::uid(&made).is_empty() && !meta::creation_timestamp(&made).is_empty();
        failures.check(named, format!("{what}: uid and time"));
        let mut whole = made.clone();
        complete(&mut whole, sample.resource.schema);
        failures.check(
            whole == made,
            format!("{what}: Go writes {whole} of {made}"),
        );
        let read = server.get(&sample.path()).await;
        if let Some(read) = failures.code(read, 200, &what) {
            let same = read == made || is_watched_over(&sample);
            failures.check(same, format!("{what}: read {read} made {made}"));
        }
        let request = RangeRequest {
            key: sample.key.clone().into(),
            ..RangeRequest::default()
        };
        let stored = server.store.range(request).await.expect("a range");
        if failures.check(
            stored.count == 1,
            format!("{what} is not at {}", sample.key),
        ) {
            let stored: Value = serde_json::from_slice(&stored.kvs[0].value).expect("stored JSON");
            let kind = meta::kind(&stored) == sample.resource.storage().kind;
            failures.check(kind, format!("{what}: stored kind"));
            let bare = meta::resource_version(&stored).is_empty();
            failures.check(bare, format!("{what}: stored version"));
        }
        if let Some(list) = failures.code(server.get(&sample.collection()).await, 200, &what) {
            let kind = meta::kind(&list) == sample.resource.list_kind();
            failures.check(kind, format!("{what}: list kind"));
            let items = list["items"].as_array().expect("items");
            let listed = items.iter().any(|item| meta::uid(item) == meta::uid(&made));
            failures.check(listed, format!("{what}: listed"));
        }
        failures.code(
            server.post(&sample.collection(), &sample.sent()).await,
            409,
            &what,
        );
    }
}

#[tokio::test]
async fn every_kind_is_updated_patched_applied_and_deleted() {
    let server = server().await;
    let mut failures = Failures::default();
    for sample in samples() {
        let what = format!(
            "{}@{}",
            sample.resource.qualified(),
            sample.resource.version
        );
        let made = server.post(&sample.collection(), &sample.sent()).await;
        if failures.code(made, 201, &what).is_none() {
            continue;
        }
        change(&server, &sample, &what, &mut failures).await;
        failures.code(server.delete(&sample.path()).await, 200, &what);
    }
}

async fn change(server: &Harness, sample: &Sample, what: &str, failures: &mut Failures) {
    let path = sample.path();
    let mut next = settled(server, sample).await;
    meta::set_label(&mut next, "put", "1");
    failures.code(server.put(&path, &next).await, 200, what);
    failures.code(
        server.put(&path, &next).await,
        409,
        &format!("{what}: stale"),
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
        failures.code(answer, 200, &format!("{what} {kind}"));
    }
    let config = json!({"apiVersion": sample.resource.api_version(), "kind": sample.resource.kind,
        "metadata": {"name": meta::name(&sample.object), "labels": {"apply": "1"}}});
    let apply = format!("{path}?fieldManager=test");
    let applied = server.patch(&apply, "apply", &config).await;
    let Some(applied) = failures.code(applied, 200, &format!("{what} apply")) else {
        return;
    };
    for label in ["put", "merge", "json", "strategic", "apply"] {
        let kept = meta::label(&applied, label) == Some("1");
        failures.check(kept, format!("{what}: label {label}"));
    }
    let again = server.patch(&apply, "apply", &config).await.expect(200);
    failures.check(
        again == applied,
        format!("{what}: apply is idempotent: {again} {applied}"),
    );
    if sample.resource.subresource("status").is_some() {
        let mut marked = applied;
        meta::set_label(&mut marked, "status", "1");
        if sample.resource.plural == "storageversionmigrations" {
            // Its status is none without a version.
            marked["status"]["resourceVersion"] = "1".into();
        }
        let status = server.put(&format!("{path}/status"), &marked).await;
        if let Some(status) = failures.code(status, 200, &format!("{what} status")) {
            let bare = BARE_STATUS.contains(&sample.resource.plural);
            let kept = (meta::label(&status, "status") == Some("1")) != bare;
            failures.check(kept, format!("{what}: metadata through the status"));
        }
    }
}

#[tokio::test]
async fn every_kind_goes_through_protobuf_and_tables() {
    let server = server().await;
    let mut failures = Failures::default();
    for sample in samples() {
        let what = format!(
            "{}@{}",
            sample.resource.qualified(),
            sample.resource.version
        );
        encode(&server, &sample, &what, &mut failures).await;
    }
}

async fn encode(server: &Harness, sample: &Sample, what: &str, failures: &mut Failures) {
    let media = "application/vnd.kubernetes.protobuf";
    let body = encode_object(&sample.sent(), sample.resource.schema);
    let headers = [("content-type", media), ("accept", "application/json")];
    let made = server
        .ask(Method::POST, &sample.collection(), &headers, body)
        .await;
    if failures.code(made, 201, what).is_none() {
        return;
    }
    let made = settled(server, sample).await;
    let read = server
        .ask(Method::GET, &sample.path(), &[("accept", media)], "")
        .await;
    let decoded = apimachinery::codec::protobuf::decode_object(&read.bytes, |_, _| {
        Some(sample.resource.schema)
    });
    let same = decoded.is_ok_and(|decoded| meta::uid(&decoded) == meta::uid(&made));
    failures.check(same, format!("{what}: protobuf"));
    let headers = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server.ask(Method::GET, &sample.path(), &headers, "").await;
    if let Some(table) = failures.code(table, 200, what) {
        let count = |value: &Value| value.as_array().map_or(0, Vec::len);
        let fits = count(&table["rows"]) == 1
            && count(&table["rows"][0]["cells"]) == count(&table["columnDefinitions"]);
        failures.check(fits, format!("{what}: table"));
    }
    let headers = [(
        "accept",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    )];
    let partial = server.ask(Method::GET, &sample.path(), &headers, "").await;
    if let Some(partial) = failures.code(partial, 200, what) {
        failures.check(
            partial["metadata"] == made["metadata"],
            format!("{what}: metadata"),
        );
    }
    let strict = format!("{}?fieldValidation=Strict&dryRun=All", sample.collection());
    let mut odd = sample.sent();
    odd["noSuchField"] = true.into();
    let refused = server.post(&strict, &odd).await;
    let told = String::from_utf8_lossy(&refused.bytes).contains("unknown field \\\"noSuchField");
    failures.check(refused.code == 400 && told, format!("{what}: strict"));
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
    let table = server
        .ask(
            Method::GET,
            &format!("{path}/d/scale"),
            &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
            "",
        )
        .await
        .expect(200);
    assert_eq!(table["columnDefinitions"][1]["name"], "Desired");
    assert_eq!(
        table["rows"][0]["cells"].as_array().expect("cells")[..3],
        [json!("d"), json!(2), json!(0)]
    );
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
    let owner = format!("{path}/d/scale?fieldManager=scaler");
    let config = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"},
        "spec": {"replicas": 3}});
    let refused = server.patch(&owner, "apply", &config).await.expect(409);
    assert!(
        refused["message"]
            .as_str()
            .is_some_and(|text| text.ends_with(": .spec.replicas"))
    );
    let forced = format!("{owner}&force=true");
    let scaled = server.patch(&forced, "apply", &config).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3);
    let read = server.get(&format!("{path}/d")).await.expect(200);
    let owned = read["metadata"]["managedFields"]
        .as_array()
        .and_then(|fields| fields.iter().find(|entry| entry["manager"] == "scaler"))
        .expect("the scaler owns the replicas");
    assert_eq!(
        (&owned["operation"], &owned["subresource"]),
        (&json!("Apply"), &json!("scale"))
    );
}

#[tokio::test]
async fn a_patch_whose_result_does_not_fit_is_refused_with_the_patch() {
    let server = server().await;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    let map =
        json!({"metadata": {"name": "misfit", "ownerReferences": [owner]}, "data": {"a": "b"}});
    server.post(&path, &map).await.expect(201);
    let path = format!("{path}/misfit");
    let wrong = json!({"data": 5});
    for (kind, message) in [
        (
            "strategic",
            " \"\" is invalid: patch: Invalid value: \"map[data:5]\": cannot restore map from int64",
        ),
        (
            "merge",
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string",
        ),
    ] {
        let refused = server.patch(&path, kind, &wrong).await.expect(422);
        assert_eq!(refused["details"]["causes"][0]["field"], "patch");
        let text = refused["message"].as_str().unwrap_or("");
        assert!(text.ends_with(message), "{kind}: {text}");
    }
    let keyless = json!({"metadata": {"ownerReferences": [{"name": "x"}]}});
    let refused = server.patch(&path, "strategic", &keyless).await.expect(500);
    assert_eq!(
        refused["message"],
        "map: map[name:x] does not contain declared merge key: uid"
    );
}

#[tokio::test]
async fn every_served_version_has_an_api_service() {
    let server = Harness::start().await;
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    let last = format!("{path}/v1.storagemigration.k8s.io");
    server
        .eventually(&last, |one| one["spec"]["groupPriorityMinimum"] == 15_800)
        .await;
    let served = server.get("/apis").await.expect(200);
    for group in served["groups"].as_array().expect("groups") {
        for version in group["versions"].as_array().expect("versions") {
            let name = format!(
                "{}.{}",
                version["version"].as_str().expect("a version"),
                group["name"].as_str().expect("a name")
            );
            server.get(&format!("{path}/{name}")).await.expect(200);
        }
    }
}
