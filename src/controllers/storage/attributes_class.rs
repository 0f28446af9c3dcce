//! volumeattributesclass-protection-controller: a VolumeAttributesClass is deleted only when no claim and no volume
//! has it (KEP-3751).

use api::r::{PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, VOLUMEATTRIBUTESCLASSES};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};

use super::{
    protection::{apply, plan},
    view::{Claim, Volume},
};
use crate::{Context, Controller, context::synced, objects::Metadata, writes::modify};

const FINALIZER: &str = "kubernetes.io/vac-protection";
/// Index of claims and of volumes by the classes they have.
const BY_ATTRIBUTES: &str = "attributes-class";

pub struct AttributesClassProtection;

fn of_claim(claim: &Claim) -> Vec<String> {
    let wanted = claim.spec.volume_attributes_class_name.iter();
    let present = claim.status.current_volume_attributes_class_name.iter();
    let mut all: Vec<String> = wanted
        .chain(present)
        .filter(|name| !name.is_empty())
        .cloned()
        .collect();
    all.dedup();
    all
}

fn of_volume(volume: &Volume) -> Vec<String> {
    let class = volume.spec.volume_attributes_class_name.iter();
    class.filter(|name| !name.is_empty()).cloned().collect()
}

#[async_trait]
impl Controller for AttributesClassProtection {
    fn name(&self) -> &'static str {
        "volumeattributesclass-protection-controller"
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let all = Selectors::default;
        let classes: Informer<Metadata> = informers.informer(&VOLUMEATTRIBUTESCLASSES, "", all());
        let claims: Informer<Claim> = informers.informer(&PERSISTENTVOLUMECLAIMS, "", all());
        let volumes: Informer<Volume> = informers.informer(&PERSISTENTVOLUMES, "", all());
        claims.add_index(BY_ATTRIBUTES, of_claim);
        volumes.add_index(BY_ATTRIBUTES, of_volume);
        if !synced!(context, classes, claims, volumes) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        classes.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        // A class may come free when somebody who had it goes, or takes another.
        let keys = queue.clone();
        claims.add_handler(move |change| {
            change
                .old
                .iter()
                .flat_map(|old| of_claim(old))
                .for_each(|name| keys.add(name));
        });
        let keys = queue.clone();
        volumes.add_handler(move |change| {
            change
                .old
                .iter()
                .flat_map(|old| of_volume(old))
                .for_each(|name| keys.add(name));
        });
        let name = "volumeattributesclass-protection";
        workqueue::run(name, &queue, 1, &context.shutdown, |name| {
            let (context, classes, claims, volumes) = (&context, &classes, &claims, &volumes);
            async move {
                let Some(class) = classes.get(&name) else {
                    return Ok::<_, ClientError>(Requeue::No);
                };
                let in_use = || {
                    claims.count_by_index(BY_ATTRIBUTES, &name) > 0
                        || volumes.count_by_index(BY_ATTRIBUTES, &name) > 0
                };
                if let Some(action) = plan(&class.metadata, FINALIZER, in_use) {
                    let resource = &VOLUMEATTRIBUTESCLASSES;
                    modify(&context.client, resource, &class.metadata, |object| {
                        apply(object, FINALIZER, &action);
                    })
                    .await?;
                }
                Ok(Requeue::No)
            }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::fake::Server;
    use serde_json::json;
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    #[tokio::test(start_paused = true)]
    async fn a_class_goes_when_its_last_claim_has_gone() {
        let server = Server::default();
        let config = crate::ControllersConfig {
            controllers: vec!["volumeattributesclass-protection-controller".into()],
            leader_elect: false,
            ..crate::ControllersConfig::default()
        };
        let shutdown = CancellationToken::new();
        let _guard = shutdown.clone().drop_guard();
        tokio::spawn(crate::run(server.client(), config, shutdown));
        let classes = &VOLUMEATTRIBUTESCLASSES;
        server.put(classes, json!({"metadata": {"name": "gold"}}));
        server.put(
            &PERSISTENTVOLUMECLAIMS,
            json!({"metadata": {"name": "c", "namespace": "n"},
            "status": {"currentVolumeAttributesClassName": "gold"}}),
        );
        tokio::time::sleep(Duration::from_secs(5)).await;
        let mut class = server.get(classes, "gold").unwrap();
        assert_eq!(class["metadata"]["finalizers"], json!([FINALIZER]));
        class["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        server.put(classes, class);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(server.get(classes, "gold").is_some());
        server.remove(&PERSISTENTVOLUMECLAIMS, "n/c");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(server.get(classes, "gold").is_none());
    }
}
