//! The life that objects of most kinds share, from discovery to the deletion of a collection, told by a description of the kind.
//!
//! Upstream's "should support X API operations" tests all go this way; a test of ours gives the kind, an object, a change
//! and a status, and then asserts what is the kind's own.

use serde_json::{Value, json};

use crate::cluster::{Cluster, assert_contains, contains, eventually, items, merge, refused, text};
use crate::endpoint::{Endpoint, Watcher, version};
use crate::kinds::Kind;

/// What distinguishes the objects of one kind.
pub struct Lifecycle {
    pub kind: Kind,
    /// Subresources that discovery has to name.
    pub subresources: &'static [&'static str],
    /// A valid object, without metadata.
    pub object: Value,
    /// A merge patch on the object that an update may make; null when nothing but metadata may change.
    pub change: Value,
    /// Merge patches on the object that writers of `/status` make, one as a patch and one as an update.
    pub status: Option<[Value; 2]>,
    /// Whether a write of `/status` may change annotations.
    pub status_annotates: bool,
}

/// One run: the objects made and the watches that follow them.
struct Run<'a> {
    cluster: &'a Cluster,
    what: &'a Lifecycle,
    objects: Endpoint,
    selector: String,
    names: Vec<String>,
    /// Of the collection, and of all namespaces.
    watchers: [Watcher; 2],
}

impl Lifecycle {
    /// A kind without status whose objects nobody changes but in their metadata.
    pub fn of(kind: Kind, object: Value) -> Self {
        Self {
            kind,
            subresources: &[],
            object,
            change: Value::Null,
            status: None,
            status_annotates: true,
        }
    }

    pub fn changed_by(mut self, change: Value) -> Self {
        self.change = change;
        self
    }

    pub fn with_status(mut self, patched: Value, updated: Value) -> Self {
        self.subresources = &["status"];
        self.status = Some([patched, updated]);
        self
    }

    /// A kind whose writers of status cannot touch metadata.
    pub fn with_bare_status(self, patched: Value, updated: Value) -> Self {
        Self {
            status_annotates: false,
            ..self.with_status(patched, updated)
        }
    }

    /// Lives it, in `namespace` if the kind has such.
    pub async fn live(&self, cluster: &Cluster, namespace: Option<&str>) {
        served(cluster, self.kind, self.subresources).await;
        let mut run = self.begin(cluster, namespace).await;
        run.patch_in_every_way().await;
        run.update().await;
        if let Some([patched, updated]) = &self.status {
            run.write_status(patched, updated).await;
        }
        run.end().await;
    }

    /// Creates, gets and lists, and begins to watch.
    async fn begin<'a>(&'a self, cluster: &'a Cluster, namespace: Option<&str>) -> Run<'a> {
        let everywhere = cluster.all(self.kind);
        let objects = match namespace {
            Some(namespace) => cluster.within(namespace, self.kind),
            None => everywhere.clone(),
        };
        let mark = format!("{}-{}", self.kind.resource, namespace.unwrap_or("all"));
        let selector = format!("checklist={mark}");
        let mut object = self.object.clone();
        merge(
            &mut object,
            &json!({"metadata": {"generateName": "checklist-", "labels": {"checklist": mark}}}),
        );
        let mut names = Vec::new();
        for _ in 0..3 {
            let made = objects.create(&object).await.expect("created");
            assert_contains(&made, &self.object);
            let name = text(&made, "/metadata/name");
            assert!(name.starts_with("checklist-") && name.len() == 15, "{name}");
            assert_eq!(made["metadata"]["namespace"].as_str(), namespace);
            assert!(version(&made) > 0 && !text(&made, "/metadata/creationTimestamp").is_empty());
            let got = objects.get(name).await.expect("got");
            assert_eq!(got["metadata"]["uid"], made["metadata"]["uid"]);
            assert_eq!(
                (text(&got, "/apiVersion"), text(&got, "/kind")),
                (self.kind.api_version, self.kind.kind)
            );
            names.push(name.to_owned());
        }
        let list = objects.labelled(&selector).await.expect("listed");
        assert_eq!(text(&list, "/kind"), format!("{}List", self.kind.kind));
        assert_eq!(items(&list).len(), 3, "{list}");
        let wide = everywhere.labelled(&selector).await.expect("listed");
        assert_eq!(items(&wide).len(), 3, "{wide}");
        let one = kube::api::ListParams::default().fields(&format!("metadata.name={}", names[0]));
        let one = everywhere.list(&one).await.expect("listed by name");
        assert_eq!(items(&one).len(), 1, "{one}");
        let from = version(&list).to_string();
        let watchers = [
            objects.watch(&selector, &from).await,
            everywhere.watch(&selector, &from).await,
        ];
        Run {
            cluster,
            what: self,
            objects,
            selector,
            names,
            watchers,
        }
    }
}

impl Run<'_> {
    /// Both watches see a change of the first object.
    async fn seen(&mut self, kind: &str, part: &Value) {
        let name = &self.names[0];
        for watcher in &mut self.watchers {
            watcher
                .until(kind, |object| {
                    text(object, "/metadata/name") == name && contains(object, part)
                })
                .await;
        }
    }

    async fn patch_in_every_way(&mut self) {
        let name = self.names[0].clone();
        let annotation = |key: &str| json!({"metadata": {"annotations": {key: "true"}}});
        let mut last = version(&self.objects.get(&name).await.expect("got"));
        for way in ["merge", "strategic", "json", "apply"] {
            let part = annotation(way);
            let patched = match way {
                "merge" => self.objects.merge(&name, "", &part).await,
                "strategic" => self.objects.strategic(&name, &part).await,
                "json" => {
                    let operations = json!([
                        {"op": "test", "path": "/metadata/annotations/merge", "value": "true"},
                        {"op": "add", "path": "/metadata/annotations/json", "value": "true"},
                    ]);
                    self.objects.json_patch(&name, &operations).await
                }
                _ => self.objects.apply(&name, "checklist", &part).await,
            };
            let patched = patched.unwrap_or_else(|error| panic!("{way}: {error}"));
            assert_contains(&patched, &part);
            assert_contains(&patched, &self.what.object);
            assert!(version(&patched) > last, "{way} writes a newer version");
            last = version(&patched);
            self.seen("MODIFIED", &part).await;
        }
        let owned = self.objects.get(&name).await.expect("got");
        let entry = json!({"metadata": {"managedFields": [{
            "manager": "checklist", "operation": "Apply", "apiVersion": self.what.kind.api_version,
            "fieldsV1": {"f:metadata": {"f:annotations": {"f:apply": {}}}},
        }]}});
        assert_contains(&owned, &entry);
        let wrong = json!([{"op": "test", "path": "/metadata/annotations/merge", "value": "no"}]);
        refused(self.objects.json_patch(&name, &wrong).await, 422, "Invalid");
    }

    async fn update(&mut self) {
        let name = self.names[0].clone();
        let before = self.objects.get(&name).await.expect("got");
        let mut change = json!({"metadata": {"annotations": {"updated": "true"}}});
        merge(
            &mut change,
            if self.what.change.is_null() {
                &self.what.object
            } else {
                &self.what.change
            },
        );
        let updated = self.objects.update(&name, "", &change).await;
        let updated = updated.expect("updated");
        assert_contains(&updated, &change);
        assert!(version(&updated) > version(&before));
        if let Some(generation) = before["metadata"]["generation"].as_i64() {
            let bumps = i64::from(self.what.change.is_object());
            assert_eq!(
                updated["metadata"]["generation"],
                generation + bumps,
                "{updated}"
            );
        }
        self.seen("MODIFIED", &change).await;
        let mut stale = before;
        merge(
            &mut stale,
            &json!({"metadata": {"annotations": {"stale": "true"}}}),
        );
        let message = refused(self.objects.replace(&name, &stale).await, 409, "Conflict");
        assert!(
            message.ends_with(
                "the object has been modified; please apply your changes to the latest version and try again"
            ),
            "{message}"
        );
    }

    async fn write_status(&mut self, patched: &Value, updated: &Value) {
        let name = self.names[0].clone();
        let got = self.objects.get_sub(&name, "status").await.expect("got");
        assert_eq!(text(&got, "/kind"), self.what.kind.kind);
        let generation = got["metadata"]["generation"].clone();
        let spec = got["spec"].clone();
        for (way, part) in [("patched", patched), ("updated", updated)] {
            let annotation =
                json!({"metadata": {"annotations": {format!("status-{way}"): "true"}}});
            let mut change = part.clone();
            merge(&mut change, &annotation);
            // A writer of status cannot change anything else.
            if self.what.change.is_object() {
                merge(&mut change, &self.what.change);
            }
            let answer = if way == "patched" {
                self.objects.merge(&name, "status", &change).await
            } else {
                self.objects.update(&name, "status", &change).await
            };
            let answer = answer.unwrap_or_else(|error| panic!("status {way}: {error}"));
            assert_contains(&answer, part);
            assert_eq!(
                contains(&answer, &annotation),
                self.what.status_annotates,
                "{answer}"
            );
            assert_eq!(answer["spec"], spec, "the spec stays");
            assert_eq!(answer["metadata"]["generation"], generation);
            self.seen("MODIFIED", part).await;
        }
        let without = json!({"status": null, "metadata": {"annotations": {"bare": "true"}}});
        let kept = self.objects.update(&name, "", &without).await;
        assert!(
            kept.expect("updated")["status"].is_object(),
            "the status stays"
        );
    }

    async fn end(&mut self) {
        let name = self.names[0].clone();
        self.objects.delete(&name).await.expect("deleted");
        eventually("the end of the object", async || {
            matches!(self.objects.get(&name).await, Err(kube::Error::Api(status)) if status.code == 404)
        })
        .await;
        let message = refused(self.objects.get(&name).await, 404, "NotFound");
        assert!(
            message.ends_with(&format!("\"{name}\" not found")),
            "{message}"
        );
        self.seen("DELETED", &json!({})).await;
        let left = self.objects.labelled(&self.selector).await.expect("a list");
        assert_eq!(items(&left).len(), 2);
        self.objects
            .delete_labelled(&self.selector)
            .await
            .expect("the collection deleted");
        eventually("the end of the collection", async || {
            let all = self.cluster.all(self.what.kind);
            let left = all.labelled(&self.selector).await.expect("a list");
            items(&left).is_empty()
        })
        .await;
        for watcher in &mut self.watchers {
            let mut gone = Vec::new();
            while gone.len() < 2 {
                let object = watcher.until("DELETED", |_| true).await;
                gone.push(text(&object, "/metadata/name").to_owned());
            }
            gone.sort();
            let mut expected = self.names[1..].to_vec();
            expected.sort();
            assert_eq!(gone, expected);
        }
    }
}

/// Discovery names the group, the version, the resource and its subresources.
pub async fn served(cluster: &Cluster, kind: Kind, subresources: &[&str]) {
    if let Some((group, version)) = kind.api_version.split_once('/') {
        let wanted = json!({"name": group, "versions": [{"groupVersion": kind.api_version, "version": version}]});
        let groups = cluster.get("/apis").await;
        assert_contains(&groups, &json!({"groups": [wanted]}));
        assert_contains(&cluster.get(&format!("/apis/{group}")).await, &wanted);
    }
    let resources = cluster.get(&kind.root()).await;
    assert_contains(
        &resources,
        &json!({"resources": [{"name": kind.resource, "kind": kind.kind}]}),
    );
    for verb in [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ] {
        assert_contains(
            &resources,
            &json!({"resources": [{"name": kind.resource, "verbs": [verb]}]}),
        );
    }
    for subresource in subresources {
        let name = format!("{}/{subresource}", kind.resource);
        assert_contains(
            &resources,
            &json!({"resources": [{"name": name, "verbs": ["get", "patch", "update"]}]}),
        );
    }
}
