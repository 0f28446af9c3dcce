//! An independent client, kube-rs, against a server alone: typed objects, apply, watches and errors as it expects them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::TryStreamExt;
use integration::process::{self, Server};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

async fn mk_client() -> (Server, Client) {
    process::install_crypto();
    let server = Server::start(&[]).await.expect("a server");
    let client = conformance::administrator(&server).await;
    (server, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn typed_objects_live_their_whole_life() {
    let (_server, client) = mk_client().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let made: ConfigMap = serde_json::from_value(
        json!({"metadata": {"generateName": "settings-"}, "data": {"a": "1"}}),
    )
    .expect("a map");
    let made = maps
        .create(&PostParams::default(), &made)
        .await
        .expect("created");
    let name = made.metadata.name.clone().expect("a name");
    assert!(
        name.starts_with("settings-") && name.len() == "settings-".len() + 5,
        "{name}"
    );
    assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());

    let merged = maps
        .patch(
            &name,
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"b": "2"}})),
        )
        .await
        .expect("merged");
    assert_eq!(
        merged.data,
        Some(BTreeMap::from([
            ("a".into(), "1".into()),
            ("b".into(), "2".into())
        ]))
    );
    let replaced = maps
        .replace(&name, &PostParams::default(), &merged)
        .await
        .expect("replaced");
    assert_eq!(
        replaced.metadata.resource_version, merged.metadata.resource_version,
        "nothing changed, nothing written"
    );
    let stale = maps
        .replace(
            &name,
            &PostParams::default(),
            &ConfigMap { data: None, ..made },
        )
        .await
        .expect_err("stale");
    assert!(
        matches!(stale, kube::Error::Api(ref status) if status.code == 409 && status.reason == "Conflict"),
        "{stale}"
    );
    maps.delete(&name, &DeleteParams::default())
        .await
        .expect("deleted");
    assert!(maps.get_opt(&name).await.expect("an answer").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_owns_fields_and_reports_conflicts() {
    let (_server, client) = mk_client().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": {"a": "1"}});
    maps.patch("shared", &PatchParams::apply("one"), &Patch::Apply(&wanted))
        .await
        .expect("applied");
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"}, "data": {"a": "2"}});
    let conflict = maps
        .patch("shared", &PatchParams::apply("two"), &Patch::Apply(&other))
        .await
        .expect_err("a conflict");
    assert!(
        conflict
            .to_string()
            .contains(r#"conflict with "one": .data.a"#),
        "{conflict}"
    );
    let forced = maps
        .patch(
            "shared",
            &PatchParams::apply("two").force(),
            &Patch::Apply(&other),
        )
        .await
        .expect("forced");
    assert_eq!(
        forced
            .data
            .as_ref()
            .and_then(|data| data.get("a"))
            .map(String::as_str),
        Some("2")
    );
    let managers: Vec<_> = forced
        .metadata
        .managed_fields
        .unwrap_or_default()
        .into_iter()
        .filter_map(|entry| entry.manager)
        .collect();
    assert_eq!(managers, ["two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_sees_each_change_by_list_and_by_streaming_list() {
    let (_server, client) = mk_client().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let name = format!(
            "watched-{}",
            if config == watcher::Config::default() {
                "list"
            } else {
                "stream"
            }
        );
        let stream = watcher(maps.clone(), config).applied_objects();
        let mut stream = std::pin::pin!(stream);
        let object: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": name}})).expect("a map");
        maps.create(&PostParams::default(), &object)
            .await
            .expect("created");
        let seen = tokio::time::timeout(Duration::from_secs(10), async {
            while let Some(object) = stream.try_next().await? {
                if object.metadata.name.as_deref() == Some(&name) {
                    return Ok::<bool, watcher::Error>(true);
                }
            }
            Ok(false)
        });
        assert!(seen.await.expect("in time").expect("a watch"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_pods_and_namespaces_get_what_a_server_gives() {
    let (_server, client) = mk_client().await;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let web: Service = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"selector": {"run": "web"}, "ports": [{"port": 80}]}})).expect("a service");
    let web = services
        .create(&PostParams::default(), &web)
        .await
        .expect("created");
    let spec = web.spec.expect("a spec");
    assert!(spec.cluster_ip.expect("an address").starts_with("10.96."));
    assert_eq!(
        spec.ports.expect("ports")[0].protocol.as_deref(),
        Some("TCP")
    );

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let names: Vec<String> = namespaces
        .list(&ListParams::default())
        .await
        .expect("a list")
        .into_iter()
        .filter_map(|n| n.metadata.name)
        .collect();
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        assert!(
            names.iter().any(|have| have == name),
            "{name} is missing of {names:?}"
        );
    }

    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "nginx"}]}})).expect("a pod");
    let pod = create_once_allowed(&pods, &pod).await;
    let spec = pod.spec.expect("a spec");
    let tolerations = spec.tolerations.expect("tolerations");
    assert!(
        tolerations
            .iter()
            .all(|toleration| toleration.toleration_seconds == Some(300)),
        "{tolerations:?}"
    );
    assert!(
        spec.volumes
            .expect("volumes")
            .iter()
            .any(|volume| volume.name.starts_with("kube-api-access-"))
    );
    assert_eq!(
        pod.status.expect("a status").phase.as_deref(),
        Some("Pending")
    );
}

/// A new namespace takes pods as soon as its service account exists, which a controller makes.
async fn create_once_allowed(pods: &Api<Pod>, pod: &Pod) -> Pod {
    for _ in 0..100 {
        match pods.create(&PostParams::default(), pod).await {
            Ok(pod) => return pod,
            Err(kube::Error::Api(status)) if status.message.contains("serviceaccount") => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the default service account never came")
}
