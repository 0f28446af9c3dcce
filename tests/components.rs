//! Every request that upstream's scheduler and controller manager were seen to make, made again as the same user, with
//! the encodings they use: the code must be the one that was recorded. Skipped where the recording is not.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use integration::connection::Connection;
use integration::process::{self, Server};
use integration::wire::{self, ACCEPT_METADATA, ACCEPT_METADATA_LIST, Answer, Frames, PROTOBUF};
use serde_json::{Value, json};

/// One line of the recording.
struct Row {
    user: String,
    verb: String,
    path: String,
    query: String,
    code: u16,
}

/// `../shared/facts/component-requests.tsv`, if it is there.
fn recorded() -> Option<Vec<Row>> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/facts/component-requests.tsv");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("skipped: no recording of upstream's components in ../shared/facts");
        return None;
    };
    let rows = text.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        Row {
            user: fields[0].into(),
            verb: fields[1].into(),
            path: fields[2].into(),
            query: fields[3].into(),
            code: fields[5].parse().expect("a code"),
        }
    });
    Some(rows.collect())
}

/// What a path names.
#[derive(Debug)]
struct Place<'a> {
    /// `v1`, `apps/v1`.
    api_version: String,
    namespace: &'a str,
    plural: &'a str,
    name: &'a str,
    subresource: &'a str,
}

impl<'a> Place<'a> {
    /// `None` for a path that is no resource's.
    fn of(path: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (api_version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..]
                if !matches!(*plural, "status" | "finalize") =>
            {
                (*namespace, [&[*plural], rest].concat())
            }
            rest => ("", rest.to_vec()),
        };
        Some(Self {
            api_version,
            namespace,
            plural: rest.first()?,
            name: rest.get(1).copied().unwrap_or_default(),
            subresource: rest.get(2).copied().unwrap_or_default(),
        })
    }

    fn collection(&self) -> String {
        let root = match self.api_version.contains('/') {
            true => format!("/apis/{}", self.api_version),
            false => format!("/api/{}", self.api_version),
        };
        match self.namespace {
            "" => format!("{root}/{}", self.plural),
            namespace => format!("{root}/namespaces/{namespace}/{}", self.plural),
        }
    }

    fn object(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    /// An object that may be created here.
    fn template(&self, name: &str) -> Value {
        let mut object = template(self, name);
        object["apiVersion"] = self.api_version.as_str().into();
        object["metadata"]["name"] = name.into();
        if !self.namespace.is_empty() {
            object["metadata"]["namespace"] = self.namespace.into();
        }
        object
    }
}

/// The smallest object of a resource, without its version and name.
fn template(place: &Place<'_>, name: &str) -> Value {
    let pod = json!({"containers": [{"name": "c", "image": "i"}]});
    let labels = json!({"a": "b"});
    let workload = |kind: &str| {
        json!({"kind": kind, "spec": {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod}}})
    };
    let mut finite = json!({"spec": {"template": {"spec": pod}}});
    finite["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    match place.plural {
        "namespaces" => json!({"kind": "Namespace"}),
        "nodes" => json!({"kind": "Node"}),
        "pods" => json!({"kind": "Pod", "metadata": {"labels": labels}, "spec": pod}),
        "serviceaccounts" => json!({"kind": "ServiceAccount"}),
        "configmaps" => json!({"kind": "ConfigMap", "data": {"a": "b"}}),
        "leases" => {
            json!({"kind": "Lease", "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
        }
        "replicasets" => workload("ReplicaSet"),
        "deployments" => workload("Deployment"),
        "daemonsets" => workload("DaemonSet"),
        "statefulsets" => {
            let mut set = workload("StatefulSet");
            set["spec"]["serviceName"] = "s".into();
            set
        }
        "replicationcontrollers" => json!({"kind": "ReplicationController",
            "spec": {"selector": labels, "template": {"metadata": {"labels": labels}, "spec": pod}}}),
        "jobs" => json!({"kind": "Job", "spec": finite["spec"]}),
        "cronjobs" => {
            json!({"kind": "CronJob", "spec": {"schedule": "0 0 1 1 *", "jobTemplate": finite}})
        }
        "controllerrevisions" => {
            json!({"kind": "ControllerRevision", "revision": 1, "data": {"spec": {}}})
        }
        "persistentvolumes" => {
            json!({"kind": "PersistentVolume", "spec": {"capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"}}})
        }
        "persistentvolumeclaims" => {
            json!({"kind": "PersistentVolumeClaim", "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
        }
        "resourcequotas" => {
            json!({"kind": "ResourceQuota", "spec": {"hard": {"count/secrets": "100"}}})
        }
        "poddisruptionbudgets" => json!({"kind": "PodDisruptionBudget",
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}}),
        "horizontalpodautoscalers" => {
            json!({"kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d1"}}})
        }
        "endpoints" => json!({"kind": "Endpoints", "subsets": []}),
        "endpointslices" => {
            json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": []})
        }
        "events" if place.api_version == "v1" => json!({"kind": "Event",
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": place.namespace},
            "reason": "Seen", "message": "it was seen", "type": "Normal", "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "me"}}),
        "events" => json!({"kind": "Event", "eventTime": "2026-01-01T00:00:00.000000Z",
            "regarding": {"kind": "Pod", "name": "p", "namespace": place.namespace},
            "reason": "Seen", "action": "Seeing", "note": "it was seen", "type": "Normal",
            "reportingController": "me", "reportingInstance": "me-1"}),
        "certificatesigningrequests" => json!({"kind": "CertificateSigningRequest",
            "spec": {"request": signing_request(), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"]}}),
        "subjectaccessreviews" => json!({"kind": "SubjectAccessReview",
            "spec": {"user": "system:node:n", "groups": ["system:nodes"],
                "resourceAttributes": {"verb": "create", "group": "certificates.k8s.io",
                    "resource": "certificatesigningrequests", "subresource": "selfnodeclient"}}}),
        other => panic!("no template of {other} for {name}"),
    }
}

/// A node's request for a certificate, in base64.
fn signing_request() -> String {
    use rcgen::{CertificateParams, DnType, KeyPair};
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    let name = &mut params.distinguished_name;
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, "system:node:n");
    let pem = params
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .expect("a request");
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem)
}

/// What is asked as whom.
struct World {
    server: Server,
    admin: Connection,
    bare: Connection,
    /// Connections of users with certificates.
    certified: HashMap<String, Connection>,
    /// `Authorization` of service accounts.
    tokens: HashMap<String, String>,
    made: usize,
}

impl World {
    async fn start() -> Self {
        process::install_crypto();
        let server = Server::start(&[
            "--controllers=-*".to_owned(),
            "--disable-scheduler".to_owned(),
        ])
        .await
        .expect("a server");
        let world = Self {
            admin: server.connect().await,
            bare: server.connect_bare().await,
            server,
            certified: HashMap::new(),
            tokens: HashMap::new(),
            made: 0,
        };
        for namespace in ["default", "kube-system", "zz"] {
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
            world.ensure(&Place::of(&path).expect("a resource")).await;
        }
        world
    }

    async fn exists(&self, path: &str) -> Option<Value> {
        let (code, object) = self
            .admin
            .json(Method::GET, path, &Value::Null)
            .await
            .expect("an answer");
        (code == 200).then_some(object)
    }

    /// Makes the object of a place, and the namespace it is in, unless they are there.
    async fn ensure(&self, place: &Place<'_>) {
        if !place.namespace.is_empty() {
            let namespace = format!("/api/v1/namespaces/{}", place.namespace);
            if self.exists(&namespace).await.is_none() {
                let place = Place::of(&namespace).expect("a resource");
                self.make(&place).await;
            }
        }
        if !place.name.is_empty() && self.exists(&place.object()).await.is_none() {
            self.make(place).await;
        }
    }

    async fn make(&self, place: &Place<'_>) {
        let object = place.template(place.name);
        let (code, answer) = self
            .admin
            .json(Method::POST, &place.collection(), &object)
            .await
            .expect("an answer");
        assert_eq!(code, 201, "{}: {answer}", place.collection());
    }

    /// Removes the object of a place.
    async fn remove(&self, place: &Place<'_>) {
        let path = place.object();
        if self.exists(&path).await.is_none() {
            return;
        }
        let merge = [("content-type", "application/merge-patch+json")];
        let free = Bytes::from_static(br#"{"metadata":{"finalizers":null}}"#);
        let freed = self.admin.bytes(Method::PATCH, &path, &merge, free).await;
        freed.expect("an answer");
        let gone = self.admin.json(Method::DELETE, &path, &Value::Null).await;
        gone.expect("an answer");
        assert!(self.exists(&path).await.is_none(), "{path} does not go");
    }

    /// The connection and the `Authorization` of a user.
    async fn user(&mut self, user: &str) -> (Connection, Option<String>) {
        let Some(account) = user.strip_prefix("system:serviceaccount:kube-system:") else {
            if !self.certified.contains_key(user) {
                let connection = self.server.connect_as(user, None).await;
                self.certified.insert(user.to_owned(), connection);
            }
            return (self.certified[user].clone(), None);
        };
        if !self.tokens.contains_key(user) {
            let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{account}");
            self.ensure(&Place::of(&path).expect("a resource")).await;
            let request = token_request();
            let token = wire::ask(
                &self.admin,
                Method::POST,
                &format!("{path}/token"),
                &[],
                Some(&request),
            )
            .await
            .expect("an answer")
            .expect(201)["status"]["token"]
                .as_str()
                .expect("a token")
                .to_owned();
            self.tokens
                .insert(user.to_owned(), format!("Bearer {token}"));
        }
        (self.bare.clone(), Some(self.tokens[user].clone()))
    }

    /// Brings about what a request needs, makes it, and gives the answer.
    async fn replay(&mut self, row: &Row) -> anyhow::Result<Answer> {
        let place = Place::of(&row.path).filter(|place| !place.plural.is_empty());
        if let Some(place) = &place {
            match row.code {
                404 if !place.name.is_empty() => self.remove(place).await,
                404 => {}
                _ => self.ensure(place).await,
            }
        }
        let (connection, token) = self.user(&row.user).await;
        let mut headers: Vec<(&str, &str)> = Vec::new();
        if let Some(token) = &token {
            headers.push(("authorization", token));
        }
        let path = match row.query.as_str() {
            "" => row.path.clone(),
            query => format!("{}?{query}", row.path),
        };
        let Some(place) = place else {
            return wire::ask(&connection, Method::GET, &path, &headers, None).await;
        };
        // These two have metadata clients.
        if ["namespace-controller", "generic-garbage-collector"]
            .iter()
            .any(|controller| row.user.ends_with(controller))
        {
            match row.verb.as_str() {
                "list" => headers.push(("accept", ACCEPT_METADATA_LIST)),
                "get" if place.plural != "namespaces" => headers.push(("accept", ACCEPT_METADATA)),
                _ => {}
            }
        }
        match row.verb.as_str() {
            "get" | "list" => wire::ask(&connection, Method::GET, &path, &headers, None).await,
            "create" => {
                self.made += 1;
                let object = created(&place, &format!("{}-{}", place.plural, self.made));
                wire::ask(&connection, Method::POST, &path, &headers, Some(&object)).await
            }
            "update" => {
                let object = self.updated(&place, row.code).await;
                wire::ask(&connection, Method::PUT, &path, &headers, Some(&object)).await
            }
            "patch" => {
                let (media, patch) = patch(&place, row);
                headers.push(("content-type", media));
                let body = Bytes::from(patch.to_string());
                wire::send(&connection, Method::PATCH, &path, &headers, body).await
            }
            "delete" => {
                let object = self.exists(&place.object()).await.expect("it was made");
                let options = json!({"kind": "DeleteOptions", "apiVersion": "v1",
                    "preconditions": {"uid": object["metadata"]["uid"]}, "propagationPolicy": "Background"});
                wire::ask(&connection, Method::DELETE, &path, &headers, Some(&options)).await
            }
            "deletecollection" => {
                let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
                wire::ask(&connection, Method::DELETE, &path, &headers, Some(&options)).await
            }
            "watch" => {
                let mut frames = Frames::open(&connection, &path, &headers).await?;
                let (_, version) =
                    tokio::time::timeout(Duration::from_secs(10), frames.initial()).await??;
                anyhow::ensure!(!version.is_empty(), "a bookmark without a version");
                Ok(Answer {
                    code: 200,
                    media: PROTOBUF.into(),
                    object: Value::Null,
                })
            }
            other => anyhow::bail!("no verb {other}"),
        }
    }

    /// What a PUT sends: the object as it is, with what its controller would have found out.
    async fn updated(&self, place: &Place<'_>, code: u16) -> Value {
        let mut object = self.exists(&place.object()).await.expect("it was made");
        if code == 409 {
            object["metadata"]["resourceVersion"] = "1".into();
        }
        match (place.plural, place.subresource) {
            ("leases", _) => object["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z".into(),
            (_, "approval") => {
                object["status"]["conditions"] = json!([{"type": "Approved", "status": "True",
                    "reason": "AutoApproved", "message": "by whom it is for"}]);
            }
            ("resourcequotas", "status") => {
                object["status"] =
                    json!({"hard": object["spec"]["hard"], "used": {"count/secrets": "1"}});
            }
            (_, "") => object["metadata"]["annotations"]["replayed"] = "yes".into(),
            _ => {}
        }
        object
    }
}

fn token_request() -> Value {
    json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": 3600}})
}

/// What a POST sends.
fn created(place: &Place<'_>, name: &str) -> Value {
    match place.subresource {
        "token" => token_request(),
        "binding" => json!({"kind": "Binding", "apiVersion": "v1",
            "metadata": {"name": place.name, "namespace": place.namespace}, "target": {"kind": "Node", "name": "node1"}}),
        _ if place.plural == "subjectaccessreviews" => {
            let mut review = place.template("");
            review["metadata"] = json!({});
            review
        }
        _ => place.template(name),
    }
}

/// The type of a patch and the patch.
fn patch(place: &Place<'_>, row: &Row) -> (&'static str, Value) {
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    const APPLY: &str = "application/apply-patch+yaml";
    let metadata = json!({"name": place.name});
    match (place.plural, place.subresource) {
        ("clusterroles", _) => {
            let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
            let role = json!({"kind": "ClusterRole", "apiVersion": place.api_version, "metadata": metadata, "rules": rules});
            (APPLY, role)
        }
        ("servicecidrs", "status") => {
            let ready = json!([{"type": "Ready", "status": "True", "reason": "", "message": "It is ready",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            let range = json!({"kind": "ServiceCIDR", "apiVersion": place.api_version, "metadata": metadata,
                "status": {"conditions": ready}});
            (APPLY, range)
        }
        ("servicecidrs", _) => (
            STRATEGIC,
            json!({"metadata": {"finalizers": ["networking.k8s.io/service-cidr-finalizer"]}}),
        ),
        ("pods", "status") => {
            let status = json!({"$setElementOrder/conditions": [{"type": "PodScheduled"}],
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
            (STRATEGIC, json!({"status": status}))
        }
        ("events", _) => (
            STRATEGIC,
            json!({"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z"}),
        ),
        _ if row.code == 409 => (
            STRATEGIC,
            json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}),
        ),
        _ => (
            STRATEGIC,
            json!({"metadata": {"annotations": {"replayed": "yes"}}}),
        ),
    }
}

#[tokio::test]
async fn upstreams_components_are_answered_as_they_were() {
    let Some(rows) = recorded() else { return };
    if !process::binary().exists() {
        println!("skipped: {} is not built", process::binary().display());
        return;
    }
    assert!(rows.len() > 300, "{} requests", rows.len());
    let mut world = World::start().await;
    let mut differences = Vec::new();
    for row in &rows {
        let asked = format!("{} {} {}?{}", row.user, row.verb, row.path, row.query);
        match world.replay(row).await {
            Ok(answer) if answer.code != row.code => differences.push(format!(
                "{asked}: {} instead of {}: {}",
                answer.code, row.code, answer.object
            )),
            // Objects come as protobuf, which is liked best.
            Ok(answer)
                if answer.media != PROTOBUF
                    && answer.code < 300
                    && Place::of(&row.path).is_some()
                    && row.path != "/apis/events.k8s.io/v1" =>
            {
                differences.push(format!("{asked}: in {}", answer.media));
            }
            Ok(_) => {}
            Err(error) => differences.push(format!("{asked}: {error:#}")),
        }
    }
    assert!(
        differences.is_empty(),
        "{} of {} requests:\n{}",
        differences.len(),
        rows.len(),
        differences.join("\n")
    );
}
