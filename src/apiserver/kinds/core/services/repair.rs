//! Makes allocations agree with the services that are there: what another server's crash left behind is given back, and
//! what a service has without an allocation is taken.

use std::collections::HashSet;

use apimachinery::{Status, Value, meta};
use store::{Compare, CompareOp, Op, Txn};

use super::super::super::tree::text;
use super::allocate::node_ports;
use super::ports::NodePorts;
use super::{cluster_ips, needs_address};
use crate::registry::Registry;
use crate::registry::strategy::Companions;

/// Most changes in one transaction: etcd takes 128 operations.
const BATCH: usize = 100;

/// One pass over all services.
pub async fn run(registry: &Registry) -> Result<(), Status> {
    let services = registry.all_values("", "services").await?;
    repair_ports(registry, &services).await?;
    repair_addresses(registry, &services).await
}

async fn repair_ports(registry: &Registry, services: &[Value]) -> Result<(), Status> {
    let mut ports = NodePorts::read(registry).await?;
    let wanted: HashSet<i64> = services.iter().flat_map(node_ports).collect();
    for port in ports.taken() {
        if !wanted.contains(&i64::from(port)) {
            ports.release(port.into());
        }
    }
    for port in wanted {
        // Taken already, or outside of a range that was made smaller: both are as they should be.
        let _ = ports.take(port);
    }
    let mut companions = Companions::default();
    ports.write(&mut companions);
    commit(registry, companions).await
}

async fn repair_addresses(registry: &Registry, services: &[Value]) -> Result<(), Status> {
    let Some(kind) = registry.kind("networking.k8s.io", "ipaddresses") else {
        return Ok(());
    };
    let objects = registry
        .all_values("networking.k8s.io", "ipaddresses")
        .await?;
    let mut owned: HashSet<(String, &str, &str)> = HashSet::new();
    for service in services.iter().filter(|service| needs_address(service)) {
        for address in cluster_ips(service) {
            owned.insert((
                address.to_owned(),
                meta::namespace(service),
                meta::name(service),
            ));
        }
    }
    let mut companions = Companions::default();
    for object in &objects {
        let managed = meta::label(object, "ipaddress.kubernetes.io/managed-by");
        if managed != Some("ipallocator.k8s.io") {
            continue;
        }
        let parent = |field: &str| text(object, &["spec", "parentRef", field]);
        let owner = (
            meta::name(object).to_owned(),
            parent("namespace"),
            parent("name"),
        );
        if owned.contains(&owner) {
            continue;
        }
        let revision = meta::resource_version(object).parse().unwrap_or(0);
        let key = kind.key("", meta::name(object));
        companions.compare.push(Compare::ModRevision(
            key.clone(),
            CompareOp::Equal,
            revision,
        ));
        companions.ops.push(Op::Delete {
            key,
            range_end: None,
            prev_kv: false,
        });
        if companions.ops.len() >= BATCH {
            commit(registry, std::mem::take(&mut companions)).await?;
        }
    }
    commit(registry, companions).await
}

/// A pass that lost to another writer is repeated by the next one.
async fn commit(registry: &Registry, companions: Companions) -> Result<(), Status> {
    if companions.ops.is_empty() {
        return Ok(());
    }
    let txn = Txn {
        compare: companions.compare,
        success: companions.ops,
        failure: Vec::new(),
    };
    registry.store_txn(txn).await?;
    Ok(())
}
