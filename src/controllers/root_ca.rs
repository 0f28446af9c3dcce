//! root-ca-certificate-publisher-controller: every namespace has a ConfigMap `kube-root-ca.crt` with the cluster's CA.

use std::collections::BTreeMap;

use api::{
    r::{CONFIGMAPS, NAMESPACES},
    view::ObjectMeta,
};
use async_trait::async_trait;
use client::{
    ClientError, Patch, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Context, Controller, context::synced, objects::Namespace};

const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
    distributions of Kubernetes clusters.";

pub struct RootCa;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    metadata: ObjectMeta,
    data: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq)]
enum Action {
    Create,
    Correct,
}

#[async_trait]
impl Controller for RootCa {
    fn name(&self) -> &'static str {
        "root-ca-certificate-publisher-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["root-ca-cert-publisher"]
    }

    async fn run(&self, context: Context) {
        let Some(ca) = context.config.root_ca.clone() else {
            context.shutdown.cancelled().await;
            return;
        };
        let namespaces =
            context
                .informers
                .informer::<Namespace>(&NAMESPACES, "", Selectors::default());
        let selectors = Selectors::fields(format!("metadata.name={NAME}"));
        let maps = context
            .informers
            .informer::<ConfigMap>(&CONFIGMAPS, "", selectors);
        if !synced!(context, namespaces, maps) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        namespaces.add_handler(move |change| keys.add(change.key.to_string()));
        let keys = queue.clone();
        maps.add_handler(move |change| keys.add(change.object().metadata.namespace.clone()));
        workqueue::run("root-ca", &queue, 1, &context.shutdown, |namespace| {
            let (context, namespaces, maps, ca) = (&context, &namespaces, &maps, ca.as_str());
            async move {
                let map = maps.get(&format!("{namespace}/{NAME}"));
                match plan(namespaces.get(&namespace).as_deref(), map.as_deref(), ca) {
                    None => Ok(Requeue::No),
                    Some(action) => apply(context, &namespace, ca, &action)
                        .await
                        .map(|()| Requeue::No),
                }
            }
        })
        .await;
    }
}

fn plan(namespace: Option<&Namespace>, map: Option<&ConfigMap>, ca: &str) -> Option<Action> {
    if namespace.is_none_or(Namespace::is_terminating) {
        return None;
    }
    match map {
        None => Some(Action::Create),
        Some(map) => {
            let only =
                map.data.len() == 1 && map.data.get(KEY).is_some_and(|present| present == ca);
            (!only).then_some(Action::Correct)
        }
    }
}

async fn apply(
    context: &Context,
    namespace: &str,
    ca: &str,
    action: &Action,
) -> Result<(), ClientError> {
    let options = WriteOptions::default();
    let client = &context.client;
    let done = match action {
        Action::Create => {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": NAME, "namespace": namespace,
                    "annotations": {"kubernetes.io/description": DESCRIPTION},
                },
                "data": {KEY: ca},
            });
            client
                .create::<_, Value>(&CONFIGMAPS, namespace, &map, &options)
                .await
        }
        Action::Correct => {
            // JSON patch replaces all data; a merge would keep what others added.
            let patch = Patch::Json(json!([{"op": "add", "path": "/data", "value": {KEY: ca}}]));
            client
                .patch(&CONFIGMAPS, namespace, NAME, "", &patch, &options)
                .await
        }
    };
    match done {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() || error.is_namespace_terminating() => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_made_and_kept_as_it_should_be() {
        let map = |data: &[(&str, &str)]| ConfigMap {
            metadata: ObjectMeta::default(),
            data: data
                .iter()
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect(),
        };
        let alive = Namespace::default();
        let mut dying = Namespace::default();
        dying.status.phase = "Terminating".into();
        for (namespace, map, expected) in [
            (Some(&alive), None, Some(Action::Create)),
            (Some(&alive), Some(map(&[("ca.crt", "CA")])), None),
            (
                Some(&alive),
                Some(map(&[("ca.crt", "old")])),
                Some(Action::Correct),
            ),
            (
                Some(&alive),
                Some(map(&[("ca.crt", "CA"), ("x", "y")])),
                Some(Action::Correct),
            ),
            (Some(&dying), None, None),
            (None, None, None),
        ] {
            assert_eq!(plan(namespace, map.as_ref(), "CA"), expected);
        }
    }
}
