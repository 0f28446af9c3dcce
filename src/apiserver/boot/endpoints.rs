//! Where the `kubernetes` service leads: every live API server's address, told apart by leases in the store
//! (upstream's lease endpoint reconciler). Servers learn of each other by watching those keys, not by polling.

use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::codec::json;
use apimachinery::{Status, Value, meta};
use bytes::Bytes;
use serde_json::json;
use store::kv::prefix_end;
use store::{Compare, CompareOp, Op, RangeRequest, Txn, WatchRequest};

use crate::kinds::core::services::addresses::Family;
use crate::registry::Registry;

/// How long a server that died is still led to.
const LIFE: Duration = Duration::from_secs(60);
/// How often a lease is kept alive: three chances before it ends.
const RENEW: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(1);

/// Keeps this server among the endpoints for as long as it lives.
pub async fn hold(registry: Weak<Registry>) {
    loop {
        match hold_once(&registry).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "this server's endpoint lease is renewed"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Ends with `Ok` when the registry is gone.
async fn hold_once(weak: &Weak<Registry>) -> Result<(), Status> {
    let Some(registry) = weak.upgrade() else {
        return Ok(());
    };
    let store = registry.options.store.clone();
    let lease = store
        .lease_grant(0, LIFE.as_secs() as i64)
        .await
        .map_err(Status::internal)?;
    let prefix = prefix(&registry);
    let own = Bytes::from(format!(
        "{}{}",
        String::from_utf8_lossy(&prefix),
        registry.options.advertise_address
    ));
    let put = Op::Put {
        key: own.clone(),
        value: marker(&registry).into(),
        lease: lease.id,
    };
    registry
        .store_txn(Txn {
            success: vec![put],
            ..Txn::default()
        })
        .await?;
    let mut watch = store
        .watch(WatchRequest {
            key: prefix.clone(),
            range_end: Some(prefix_end(&prefix)),
            ..WatchRequest::default()
        })
        .await
        .map_err(Status::internal)?;
    reconcile(&registry).await?;
    drop(registry);
    let mut renew = tokio::time::interval(RENEW);
    loop {
        tokio::select! {
            _ = renew.tick() => {
                if weak.upgrade().is_none() {
                    return Ok(());
                }
                store.lease_keep_alive(lease.id).await.map_err(Status::internal)?;
            }
            batch = watch.receiver.recv() => {
                let Some(Ok(batch)) = batch else {
                    return Err(Status::internal("watch of the servers' leases ended"));
                };
                let Some(registry) = weak.upgrade() else {
                    return Ok(());
                };
                if !batch.events.is_empty() {
                    reconcile(&registry).await?;
                }
                if batch.events.iter().any(|event| event.kv.key == own && event.kv.value.is_empty()) {
                    return Err(Status::internal("this server's lease has ended"));
                }
            }
        }
    }
}

fn prefix(registry: &Registry) -> Bytes {
    Bytes::from(format!("{}/masterleases/", registry.options.storage.prefix))
}

fn marker(registry: &Registry) -> Vec<u8> {
    json::encode(&json!({
        "kind": "Endpoints",
        "apiVersion": "v1",
        "metadata": {"generation": 1, "creationTimestamp": null},
        "subsets": [{"addresses": [{"ip": registry.options.advertise_address.to_string()}]}],
    }))
}

/// Writes the endpoints of all live servers, where they differ from what is there.
pub(super) async fn reconcile(registry: &Arc<Registry>) -> Result<(), Status> {
    let prefix = prefix(registry);
    let found = registry
        .range(RangeRequest {
            key: prefix.clone(),
            range_end: Some(prefix_end(&prefix)),
            keys_only: true,
            ..RangeRequest::default()
        })
        .await?;
    let mut addresses: Vec<String> = found
        .kvs
        .iter()
        .filter_map(|kv| {
            Some(
                std::str::from_utf8(kv.key.strip_prefix(&prefix[..])?)
                    .ok()?
                    .to_owned(),
            )
        })
        .collect();
    addresses.sort();
    if addresses.is_empty() {
        return Ok(());
    }
    let port = registry.options.advertise_port;
    write(
        registry,
        "",
        "endpoints",
        endpoints(&addresses, port),
        "subsets",
    )
    .await?;
    let slice = endpoint_slice(&addresses, port);
    write(
        registry,
        "discovery.k8s.io",
        "endpointslices",
        slice,
        "endpoints",
    )
    .await
}

/// Creates the object, or replaces `field` (and the ports) of the one there is.
async fn write(
    registry: &Registry,
    group: &str,
    plural: &str,
    wanted: Value,
    field: &str,
) -> Result<(), Status> {
    let Some(kind) = registry.kind(group, plural) else {
        return Ok(());
    };
    let key = kind.key("default", "kubernetes");
    let found = registry.read_raw(&key).await?;
    let (revision, value) = match &found {
        None => (0, registry.system_object(&kind, wanted, "kube-apiserver")),
        Some(kv) => {
            let old = registry.decode_raw(&kind, kv)?;
            let mut object = old.clone();
            if object[field] == wanted[field] && object["ports"] == wanted["ports"] {
                return Ok(());
            }
            for field in [field, "ports"] {
                if let Some(value) = wanted.get(field) {
                    object[field] = value.clone();
                }
            }
            if kind.strategy.counts_generation() {
                let generation = meta::generation(&object) + 1;
                meta::set_generation(&mut object, generation);
            }
            let value = registry.system_update(&kind, object, &old);
            (kv.mod_revision, value)
        }
    };
    let txn = Txn {
        compare: vec![Compare::ModRevision(
            key.clone(),
            CompareOp::Equal,
            revision,
        )],
        success: vec![Op::Put {
            key,
            value,
            lease: 0,
        }],
        failure: Vec::new(),
    };
    if registry.store_txn(txn).await? {
        Ok(())
    } else {
        Err(Status::modified(group, plural, "kubernetes"))
    }
}

fn endpoints(addresses: &[String], port: u16) -> Value {
    let list: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
    json!({
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": list, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    })
}

fn endpoint_slice(addresses: &[String], port: u16) -> Value {
    let family = addresses
        .first()
        .and_then(|address| address.parse().ok())
        .map_or(Family::V4, Family::of);
    let list: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    json!({
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": family.as_str(),
        "endpoints": list,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}
