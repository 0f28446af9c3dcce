//! The `kubernetes` service: the first address of the service range, its IPAddress, and the range's ServiceCIDR object.

use std::sync::Arc;

use apimachinery::{Status, Value, time};
use serde_json::json;
use store::{Compare, CompareOp, Op, Txn};

use crate::kinds::core::services::addresses::{Family, configured, object};
use crate::kinds::core::services::ports::NodePorts;
use crate::registry::Registry;
use crate::registry::strategy::Companions;

pub(super) const NAMESPACE: &str = "default";
pub(super) const NAME: &str = "kubernetes";

/// Makes what is missing of the service, in one transaction.
pub async fn make(registry: &Arc<Registry>) -> Result<(), Status> {
    let ranges = configured(registry);
    let Some(first) = ranges.first() else {
        return Err(Status::internal("no service range is configured"));
    };
    let address = first.first();
    let mut wanted: Vec<(&str, &str, &str, &str, Value)> = Vec::new();
    let cidrs: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    wanted.push((
        "networking.k8s.io",
        "servicecidrs",
        "",
        NAME,
        cidr_object(&cidrs),
    ));
    let port = registry.options.advertise_port;
    wanted.push((
        "",
        "services",
        NAMESPACE,
        NAME,
        service(&address.to_string(), Family::of(address), port),
    ));
    let name = address.to_string();
    wanted.push((
        "networking.k8s.io",
        "ipaddresses",
        "",
        &name,
        object(address, NAMESPACE, NAME),
    ));
    let mut companions = Companions::default();
    for (group, plural, namespace, name, object) in wanted {
        let Some(kind) = registry.kind(group, plural) else {
            continue;
        };
        let key = kind.key(namespace, name);
        if registry.read_raw(&key).await?.is_some() {
            continue;
        }
        companions
            .compare
            .push(Compare::ModRevision(key.clone(), CompareOp::Equal, 0));
        companions.ops.push(Op::Put {
            value: registry.system_object(&kind, object, "kube-apiserver"),
            key,
            lease: 0,
        });
    }
    let ports = NodePorts::read(registry).await?;
    if !ports.is_stored() {
        ports.write(&mut companions);
    }
    if companions.ops.is_empty() {
        return Ok(());
    }
    let txn = Txn {
        compare: companions.compare,
        success: companions.ops,
        failure: Vec::new(),
    };
    if registry.store_txn(txn).await? {
        Ok(())
    } else {
        // Another server is at it; look again.
        Err(Status::modified("", "services", NAME))
    }
}

fn cidr_object(cidrs: &[String]) -> Value {
    json!({
        "metadata": {"name": NAME},
        "spec": {"cidrs": cidrs},
        "status": {"conditions": [{
            "type": "Ready",
            "status": "True",
            "message": "Kubernetes default Service CIDR is ready",
            "lastTransitionTime": time::now_text(),
        }]},
    })
}

fn service(address: &str, family: Family, target: u16) -> Value {
    json!({
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": [family.as_str()],
            "ipFamilyPolicy": "SingleStack",
            "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": target}],
        },
        "status": {"loadBalancer": {}},
    })
}
