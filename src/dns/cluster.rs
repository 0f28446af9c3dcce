//! What the server knows of the cluster: look-ups over the informers' caches.

use std::net::IpAddr;
use std::sync::Arc;

use client::informer::{Factory, Informer, Selectors};

use crate::model::{EndpointSlice, Namespace, Service};

const BY_SERVICE: &str = "service";
const BY_ADDRESS: &str = "address";

/// The look-ups that answering takes. Implemented over informers, and over lists in tests.
pub trait Cluster: Send + Sync {
    /// Whether the first state is complete; before that nobody may be told that a name does not exist.
    fn is_synced(&self) -> bool;
    /// Whether the namespace exists.
    fn has_namespace(&self, name: &str) -> bool;
    /// A Service by namespace and name.
    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>>;
    /// The EndpointSlices of a Service.
    fn slices(&self, namespace: &str, name: &str) -> Vec<Arc<EndpointSlice>>;
    /// The Services with this cluster address.
    fn services_at(&self, ip: IpAddr) -> Vec<Arc<Service>>;
    /// The EndpointSlices with this endpoint address.
    fn slices_at(&self, ip: IpAddr) -> Vec<Arc<EndpointSlice>>;
}

/// The cluster as the API server tells it.
pub struct Watched {
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    namespaces: Informer<Namespace>,
}

impl Watched {
    /// Starts watching. Needs a tokio runtime.
    pub fn start(factory: &Factory) -> Self {
        let services: Informer<Service> =
            factory.informer(&api::r::SERVICES, "", Selectors::default());
        services.add_index(BY_ADDRESS, |s| {
            s.cluster_addresses()
                .iter()
                .map(ToString::to_string)
                .collect()
        });
        let slices: Informer<EndpointSlice> =
            factory.informer(&api::r::ENDPOINTSLICES, "", Selectors::default());
        slices.add_index(BY_SERVICE, |s| s.service_key().into_iter().collect());
        slices.add_index(BY_ADDRESS, |s| {
            s.named_endpoints().map(|(ip, _)| ip.to_string()).collect()
        });
        let namespaces = factory.informer(&api::r::NAMESPACES, "", Selectors::default());
        Self {
            services,
            slices,
            namespaces,
        }
    }
}

impl Cluster for Watched {
    fn is_synced(&self) -> bool {
        self.services.has_synced() && self.slices.has_synced() && self.namespaces.has_synced()
    }

    fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.get(name).is_some()
    }

    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>> {
        self.services.get(&format!("{namespace}/{name}"))
    }

    fn slices(&self, namespace: &str, name: &str) -> Vec<Arc<EndpointSlice>> {
        self.slices
            .by_index(BY_SERVICE, &format!("{namespace}/{name}"))
    }

    fn services_at(&self, ip: IpAddr) -> Vec<Arc<Service>> {
        self.services.by_index(BY_ADDRESS, &ip.to_string())
    }

    fn slices_at(&self, ip: IpAddr) -> Vec<Arc<EndpointSlice>> {
        self.slices.by_index(BY_ADDRESS, &ip.to_string())
    }
}
