//! ServiceAccount: every pod runs as somebody, and finds that somebody's token where clients look for it.

use std::time::Duration;

use apimachinery::{Status, Value, meta, name};
use async_trait::async_trait;
use rand::Rng;
use serde_json::json;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::{at, has, items, items_mut, object_mut, text};

const DEFAULT: &str = "default";
const VOLUME: &str = "kube-api-access";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const ROOT_CA: &str = "kube-root-ca.crt";
/// A second over the hour and some: the kubelet's "warn only" bound tokens (`BoundServiceAccountTokenVolume`).
const TOKEN_SECONDS: i64 = 3607;
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The default account is made by a controller right after its namespace; a first pod waits for it this often.
const ATTEMPTS: usize = 10;

pub struct ServiceAccount;

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_core("pods") && attributes.operation == Operation::Create
    }

    async fn admit(&self, attributes: &Attributes<'_>, pod: &mut Value) -> Result<(), Status> {
        if meta::annotation(pod, MIRROR).is_some() {
            // Nothing is put into it, so it is looked at here, before what others refuse.
            return self.validate(attributes, Some(pod)).await;
        }
        let mut account = text(pod, &["spec", "serviceAccountName"]).to_owned();
        if account.is_empty() {
            account = DEFAULT.to_owned();
            let spec = object_mut(pod, &["spec"]);
            spec.insert("serviceAccountName".to_owned(), DEFAULT.into());
            spec.insert("serviceAccount".to_owned(), DEFAULT.into());
        }
        let found = find(attributes, &account).await?;
        if automounts(&found, pod) {
            mount(pod);
        }
        if !has(pod, &["spec", "imagePullSecrets"]) {
            let secrets: Vec<Value> = items(&found, &["imagePullSecrets"])
                .iter()
                .map(|secret| json!({"name": text(secret, &["name"])}))
                .collect();
            if !secrets.is_empty() {
                object_mut(pod, &["spec"]).insert("imagePullSecrets".to_owned(), secrets.into());
            }
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        pod: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(pod) = pod else { return Ok(()) };
        if meta::annotation(pod, MIRROR).is_none() {
            return Ok(());
        }
        if !text(pod, &["spec", "serviceAccountName"]).is_empty() {
            return Err(attributes.forbidden("a mirror pod may not reference service accounts"));
        }
        for volume in items(pod, &["spec", "volumes"]) {
            let projected = items(volume, &["projected", "sources"])
                .iter()
                .any(|source| has(source, &["serviceAccountToken"]));
            if projected {
                return Err(attributes
                    .forbidden("a mirror pod may not use ServiceAccountToken volume projections"));
            }
            if has(volume, &["secret"]) {
                return Err(attributes.forbidden("a mirror pod may not reference secrets"));
            }
        }
        Ok(())
    }
}

async fn find(attributes: &Attributes<'_>, account: &str) -> Result<Value, Status> {
    let attempts = if account == DEFAULT { ATTEMPTS } else { 1 };
    for attempt in 0..attempts {
        if attempt > 0 {
            let pause = rand::rng().random_range(100..200);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        let found = attributes
            .registry
            .stored_value("", "serviceaccounts", attributes.namespace, account)
            .await?;
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Err(attributes.forbidden(&format!(
        "error looking up service account {}/{account}: serviceaccount {account:?} not found",
        attributes.namespace
    )))
}

/// The pod decides, then the account; the default is yes.
fn automounts(account: &Value, pod: &Value) -> bool {
    at(pod, &["spec", "automountServiceAccountToken"])
        .as_bool()
        .or_else(|| at(account, &["automountServiceAccountToken"]).as_bool())
        .unwrap_or(true)
}

fn mount(pod: &mut Value) {
    let existing = items(pod, &["spec", "volumes"])
        .iter()
        .map(|volume| text(volume, &["name"]))
        .find(|volume| volume.starts_with("kube-api-access-"))
        .map(str::to_owned);
    let volume = existing
        .clone()
        .unwrap_or_else(|| name::generate(&format!("{VOLUME}-")));
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in items_mut(pod, &["spec", list]) {
            let mounted = items(container, &["volumeMounts"])
                .iter()
                .any(|mount| text(mount, &["mountPath"]) == MOUNT_PATH);
            if mounted || !container.is_object() {
                continue;
            }
            needed = true;
            let mounts = object_mut(container, &[])
                .entry("volumeMounts")
                .or_insert_with(|| json!([]));
            if let Value::Array(mounts) = mounts {
                mounts.push(json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}));
            }
        }
    }
    if !needed || existing.is_some() {
        return;
    }
    let volumes = object_mut(pod, &["spec"])
        .entry("volumes")
        .or_insert_with(|| json!([]));
    if let Value::Array(volumes) = volumes {
        volumes.push(token_volume(&volume));
    }
}

/// A token, the CA that signed the API server's certificate, and the pod's namespace.
fn token_volume(volume: &str) -> Value {
    json!({
        "name": volume,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }]}},
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_without_the_mount_get_it_and_one_volume() {
        let mut pod = json!({"spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}],
        }});
        mount(&mut pod);
        let volumes = items(&pod, &["spec", "volumes"]);
        assert_eq!(volumes.len(), 1);
        let volume = text(&volumes[0], &["name"]);
        assert!(volume.starts_with("kube-api-access-") && volume.len() == 21);
        assert_eq!(
            pod["spec"]["containers"][0]["volumeMounts"],
            json!([{"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}])
        );
        assert_eq!(
            pod["spec"]["containers"][1]["volumeMounts"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        assert_eq!(
            pod["spec"]["initContainers"][0]["volumeMounts"][0]["name"],
            volume
        );
    }

    #[test]
    fn the_pod_overrules_the_account() {
        let no = json!({"automountServiceAccountToken": false});
        assert!(automounts(&json!({}), &json!({"spec": {}})));
        assert!(!automounts(&no, &json!({"spec": {}})));
        assert!(automounts(
            &no,
            &json!({"spec": {"automountServiceAccountToken": true}})
        ));
    }
}
