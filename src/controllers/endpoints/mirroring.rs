//! endpointslice-mirroring-controller: EndpointSlices of the Endpoints that people write for Services without a
//! selector.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use api::{
    r::{ENDPOINTS, ENDPOINTSLICES, SERVICES},
    view::OwnerReference,
};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;

use super::{
    legacy::{Address, Endpoints, Subset},
    service::Service,
    slice_controller::{apply, delete},
    slices::{self, Conditions, Desired, Endpoint, EndpointSlice, Owner, Port},
};
use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Addresses of a subset that are mirrored (`--mirroring-max-endpoints-per-subset`), all of them into one slice.
const MAX_ADDRESSES: usize = 1000;
const WORKERS: usize = 5;

pub struct Mirroring;

struct Observed {
    services: Informer<Service>,
    endpoints: Informer<Endpoints>,
    slices: Informer<EndpointSlice>,
    written: Mutex<HashMap<String, String>>,
    recorder: Recorder,
}

#[async_trait]
impl Controller for Mirroring {
    fn name(&self) -> &'static str {
        "endpointslice-mirroring-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["endpointslicemirroring"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let observed = Arc::new(Observed {
            services: informers.informer(&SERVICES, "", Selectors::default()),
            endpoints: informers.informer(&ENDPOINTS, "", Selectors::default()),
            slices: informers.informer(&ENDPOINTSLICES, "", Selectors::default()),
            written: Mutex::default(),
            recorder: context.recorder("endpoint-slice-mirroring-controller"),
        });
        observed.slices.add_index(MANAGER, endpoints_of);
        let Observed {
            services,
            endpoints,
            slices,
            ..
        } = &*observed;
        if !synced!(context, services, endpoints, slices) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        services.add_handler(move |change| keys.add(change.key.to_string()));
        let keys = queue.clone();
        endpoints.add_handler(move |change| keys.add(change.key.to_string()));
        let keys = queue.clone();
        slices.add_handler(move |change| {
            endpoints_of(change.object())
                .into_iter()
                .for_each(|key| keys.add(key));
        });
        workqueue::run(
            "endpointslice-mirroring",
            &queue,
            WORKERS,
            &context.shutdown,
            |key| {
                let (context, observed) = (&context, &observed);
                async move { observed.reconcile(context, &key).await }
            },
        )
        .await;
    }
}

/// The index value of a slice of this controller: the key of its Endpoints (and service).
fn endpoints_of(slice: &EndpointSlice) -> Vec<String> {
    let labels = &slice.metadata.labels;
    match (
        labels.get(slices::MANAGED_BY),
        labels.get(slices::SERVICE_NAME),
    ) {
        (Some(manager), Some(name)) if manager == MANAGER => {
            vec![format!("{}/{name}", slice.metadata.namespace)]
        }
        _ => Vec::new(),
    }
}

impl Observed {
    async fn reconcile(&self, context: &Context, key: &str) -> Result<Requeue, ClientError> {
        let seen = self
            .written
            .lock()
            .get(key)
            .is_none_or(|version| self.slices.has_seen(version));
        if !seen {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let existing = self.slices.by_index(MANAGER, key);
        let existing: Vec<&EndpointSlice> = existing.iter().map(AsRef::as_ref).collect();
        let (namespace, _) = apimachinery::meta::split_key(key);
        let (service, endpoints) = (self.services.get(key), self.endpoints.get(key));
        let mirrored = service
            .zip(endpoints)
            .filter(|(service, endpoints)| is_mirrored(service, endpoints));
        let Some((service, endpoints)) = mirrored else {
            self.written.lock().remove(key);
            for slice in existing {
                delete(context, namespace, &slice.metadata.name).await?;
            }
            return Ok(Requeue::No);
        };
        let (desired, skipped) = desired(&endpoints.subsets);
        if skipped > 0 {
            self.tell_of_skipped(&endpoints, skipped);
        }
        let owner = owner(&service, &endpoints);
        for action in slices::plan(&owner, &existing, desired, MAX_ADDRESSES) {
            if let Some(version) = apply(context, namespace, action).await? {
                self.written.lock().insert(key.into(), version);
            }
        }
        Ok(Requeue::No)
    }

    fn tell_of_skipped(&self, endpoints: &Endpoints, skipped: usize) {
        let meta = &endpoints.metadata;
        let object = ObjectReference {
            api_version: "v1".into(),
            kind: "Endpoints".into(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: String::new(),
        };
        let message = format!(
            "A max of {MAX_ADDRESSES} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} \
             addresses were skipped"
        );
        let reason = "TooManyAddressesToMirror";
        self.recorder
            .event(&object, EventKind::Warning, reason, message);
    }
}

fn is_mirrored(service: &Service, endpoints: &Endpoints) -> bool {
    service.spec.selector.is_empty()
        && endpoints
            .metadata
            .labels
            .get(SKIP)
            .is_none_or(|value| value != "true")
        && !endpoints.metadata.annotations.contains_key(LEADER)
        && !endpoints.metadata.is_deleting()
}

fn owner(service: &Service, endpoints: &Endpoints) -> Owner {
    /// Annotations that say something of the Endpoints alone.
    const NOT_COPIED: [&str; 2] = [
        "endpoints.kubernetes.io/last-change-trigger-time",
        "kubectl.kubernetes.io/last-applied-configuration",
    ];
    let meta = &endpoints.metadata;
    let mut labels = meta.labels.clone();
    labels.insert(slices::SERVICE_NAME.into(), service.metadata.name.clone());
    labels.insert(slices::MANAGED_BY.into(), MANAGER.into());
    let mut annotations = meta.annotations.clone();
    annotations.retain(|key, _| !NOT_COPIED.contains(&key.as_str()));
    Owner {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        reference: OwnerReference {
            api_version: "v1".into(),
            kind: "Endpoints".into(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        },
        labels,
        annotations: Some(annotations),
    }
}

/// The endpoints of all subsets, and how many addresses are beyond what is mirrored of each.
fn desired(subsets: &[Subset]) -> (Desired, usize) {
    let mut desired = Desired::new();
    let mut skipped = 0;
    for subset in subsets {
        let port = |port: &super::legacy::EndpointPort| Port {
            name: port.name.clone(),
            protocol: if port.protocol.is_empty() {
                "TCP".into()
            } else {
                port.protocol.clone()
            },
            port: Some(port.port),
            app_protocol: port.app_protocol.clone(),
        };
        let mut ports: Vec<Port> = subset.ports.iter().map(port).collect();
        ports.sort();
        let ready = subset.addresses.iter().map(|address| (address, true));
        let unready = subset
            .not_ready_addresses
            .iter()
            .map(|address| (address, false));
        let all = subset.addresses.len() + subset.not_ready_addresses.len();
        skipped += all.saturating_sub(MAX_ADDRESSES);
        let mut seen = BTreeSet::new();
        for (address, ready) in ready.chain(unready).take(MAX_ADDRESSES) {
            if !seen.insert(address.ip.as_str()) {
                continue;
            }
            let family = if address.ip.contains(':') {
                "IPv6"
            } else {
                "IPv4"
            };
            let group = (family.to_string(), ports.clone());
            desired
                .entry(group)
                .or_default()
                .push(endpoint(address, ready));
        }
    }
    (desired, skipped)
}

fn endpoint(address: &Address, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Conditions {
            ready: Some(ready),
            serving: None,
            terminating: None,
        },
        hostname: (!address.hostname.is_empty()).then(|| address.hostname.clone()),
        target_ref: address.target_ref.clone(),
        node_name: address.node_name.clone(),
        zone: None,
        hints: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{seconds, start};
    use client::fake::Server;
    use serde_json::json;

    #[test]
    fn subsets_become_groups_by_family_and_ports() {
        let endpoints: Endpoints = serde_json::from_value(json!({"subsets": [
            {"addresses": [{"ip": "1.2.3.4"}, {"ip": "fd00::1"}], "notReadyAddresses": [{"ip": "1.2.3.5"}],
             "ports": [{"port": 80}]},
        ]}))
        .unwrap();
        let (desired, skipped) = desired(&endpoints.subsets);
        assert_eq!(skipped, 0);
        let count: Vec<(String, usize)> = desired
            .iter()
            .map(|((family, _), all)| (family.clone(), all.len()))
            .collect();
        assert_eq!(count, [("IPv4".to_string(), 2), ("IPv6".to_string(), 1)]);
    }

    #[test]
    fn only_hand_written_endpoints_of_services_without_selector_are_mirrored() {
        let service = |selector: serde_json::Value| -> Service {
            serde_json::from_value(json!({"spec": {"selector": selector}})).unwrap()
        };
        let endpoints = |labels: serde_json::Value| -> Endpoints {
            serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap()
        };
        assert!(is_mirrored(&service(json!({})), &endpoints(json!({}))));
        assert!(!is_mirrored(
            &service(json!({"a": "b"})),
            &endpoints(json!({}))
        ));
        assert!(!is_mirrored(
            &service(json!({})),
            &endpoints(json!({SKIP: "true"}))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_addresses_share_one_slice_with_the_labels_and_annotations_and_the_rest_is_told_of()
     {
        let server = Server::default();
        let _guard = start(&server, &["endpointslice-mirroring-controller"]);
        server.put(
            &SERVICES,
            json!({"metadata": {"name": "m", "namespace": "n"}, "spec": {"clusterIP": "None"}}),
        );
        let addresses: Vec<_> = (0..1003)
            .map(|at| json!({"ip": format!("10.0.{}.{}", at / 250, at % 250)}))
            .collect();
        let mut endpoints = json!({
            "metadata": {"name": "m", "namespace": "n", "uid": "e", "labels": {"a": "b"}, "annotations": {
                "x": "y", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "subsets": [{"addresses": addresses, "ports": [{"port": 80}]}],
        });
        server.put(&ENDPOINTS, endpoints.clone());
        seconds(5).await;
        let slices = server.list(&ENDPOINTSLICES);
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0]["endpoints"].as_array().unwrap().len(), 1000);
        let labels = json!({"a": "b", "kubernetes.io/service-name": "m", "endpointslice.kubernetes.io/managed-by": MANAGER});
        assert_eq!(slices[0]["metadata"]["labels"], labels);
        assert_eq!(slices[0]["metadata"]["annotations"], json!({"x": "y"}));
        let event = &server.list(&api::r::EVENTS)[0];
        let told = "A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. 3 addresses were skipped";
        assert_eq!(
            (event["reason"].as_str(), event["message"].as_str()),
            (Some("TooManyAddressesToMirror"), Some(told))
        );
        endpoints["metadata"]["annotations"] = json!({"z": "1"});
        server.put(&ENDPOINTS, endpoints);
        seconds(5).await;
        let slices = server.list(&ENDPOINTSLICES);
        assert_eq!(slices[0]["metadata"]["annotations"], json!({"z": "1"}));
    }
}
