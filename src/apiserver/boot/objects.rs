//! The objects every cluster begins with: namespaces, roles and bindings, priority classes, flow schemas, APIServices
//! (recorded, see `hack/update-apiserver`), and the config maps made from the server's settings.

use std::collections::HashSet;
use std::sync::Arc;

use apimachinery::{Status, Value, meta, time};
use bytes::Bytes;
use serde_json::json;
use store::kv::prefix_end;
use store::{Compare, CompareOp, Op, RangeRequest, Txn};

use super::roles;
use crate::kinds::tree::{items_mut, text};
use crate::registry::Registry;
use crate::registry::kind::Kind;

const RECORDED: &str = include_str!("../generated/boot.jsonl");

/// Objects made in one transaction: etcd takes 128 operations.
const BATCH: usize = 100;

/// What the names of the namespaces that the system uses for itself begin with.
pub(super) const SYSTEM_NAMESPACES: &str = "kube-";

/// Makes what is missing.
pub async fn make(registry: &Arc<Registry>) -> Result<(), Status> {
    let all = recorded(registry)?.into_iter().chain(configured(registry)?);
    make_of(registry, all).await
}

/// Makes the namespaces that are missing, and nothing else: roles may be deleted for good.
pub(super) async fn make_namespaces(registry: &Arc<Registry>) -> Result<(), Status> {
    let namespaces = recorded(registry)?
        .into_iter()
        .filter(|(kind, ..)| kind.storage.group.is_empty() && kind.storage.plural == "namespaces");
    make_of(registry, namespaces).await
}

async fn make_of(
    registry: &Arc<Registry>,
    objects: impl Iterator<Item = Wanted>,
) -> Result<(), Status> {
    let mut wanted: Vec<(Bytes, Bytes)> = Vec::new();
    let mut prefixes: HashSet<Bytes> = HashSet::new();
    for (kind, manager, object) in objects {
        let key = kind.key(meta::namespace(&object), meta::name(&object));
        prefixes.insert(kind.scope(meta::namespace(&object)));
        wanted.push((key, registry.system_object(&kind, object, &manager)));
    }
    let mut have: HashSet<Bytes> = HashSet::new();
    for prefix in prefixes {
        let found = registry.range(RangeRequest {
            range_end: Some(prefix_end(&prefix)),
            key: prefix,
            keys_only: true,
            ..RangeRequest::default()
        });
        have.extend(found.await?.kvs.into_iter().map(|kv| kv.key));
    }
    wanted.retain(|(key, _)| !have.contains(key));
    for batch in wanted.chunks(BATCH) {
        create(registry, batch).await?;
    }
    Ok(())
}

/// Creates all of a batch at once; one by one where another server was faster with some.
async fn create(registry: &Registry, batch: &[(Bytes, Bytes)]) -> Result<(), Status> {
    if registry.store_txn(creation(batch)).await? {
        return Ok(());
    }
    for one in batch {
        registry
            .store_txn(creation(std::slice::from_ref(one)))
            .await?;
    }
    Ok(())
}

fn creation(batch: &[(Bytes, Bytes)]) -> Txn {
    Txn {
        compare: batch
            .iter()
            .map(|(key, _)| Compare::ModRevision(key.clone(), CompareOp::Equal, 0))
            .collect(),
        success: batch
            .iter()
            .map(|(key, value)| Op::Put {
                key: key.clone(),
                value: value.clone(),
                lease: 0,
            })
            .collect(),
        failure: Vec::new(),
    }
}

type Wanted = (Arc<Kind>, String, Value);

fn recorded(registry: &Registry) -> Result<Vec<Wanted>, Status> {
    let now = time::now_text();
    let mut all = Vec::new();
    let lines = RECORDED.lines().map(serde_json::from_str);
    for line in lines.chain(roles::newer().into_iter().map(Ok)) {
        let (group, plural, manager, mut object): (String, String, String, Value) =
            line.map_err(Status::internal)?;
        let Some(kind) = registry.kind(&group, &plural) else {
            continue;
        };
        if plural == "apiservices" && !is_served(registry, &object) {
            continue;
        }
        for condition in items_mut(&mut object, &["status", "conditions"]) {
            condition["lastTransitionTime"] = now.as_str().into();
        }
        roles::extend(&plural, &mut object);
        all.push((kind.clone(), manager, object));
    }
    let services = local_services(registry, &all, &now);
    all.extend(services);
    Ok(all)
}

/// The APIServices of what this server serves itself, as they are made.
pub(super) fn own_services(registry: &Registry) -> Result<Vec<Value>, Status> {
    let all = recorded(registry)?;
    let services = all
        .into_iter()
        .filter(|(kind, ..)| kind.storage.plural == "apiservices");
    Ok(services.map(|(.., object)| object).collect())
}

/// `groupPriorityMinimum` of a group that was not there when the objects were recorded: after all others.
const LAST_GROUP: i64 = 15_800;

/// The APIServices of what this server serves itself and was not recorded.
fn local_services(registry: &Registry, recorded: &[Wanted], now: &str) -> Vec<Wanted> {
    let Some(kind) = registry.kind("apiregistration.k8s.io", "apiservices") else {
        return Vec::new();
    };
    let of = |object: &Value, field: &str| text(object, &["spec", field]).to_owned();
    let known: Vec<(String, String, i64)> = recorded
        .iter()
        .filter(|(of, ..)| Arc::ptr_eq(of, &kind))
        .map(|(.., object)| {
            let priority = object["spec"]["groupPriorityMinimum"].as_i64();
            (
                of(object, "group"),
                of(object, "version"),
                priority.unwrap_or(LAST_GROUP),
            )
        })
        .collect();
    let mut made = Vec::new();
    let served = registry.served();
    for group in served.groups() {
        if !served.is_fixed(group) {
            continue;
        }
        for version in served.versions(group) {
            if known.iter().any(|(g, v, _)| g == group && v == version) {
                continue;
            }
            let priority = known.iter().find(|(g, ..)| g == group);
            let object = local_service(
                group,
                version,
                priority.map_or(LAST_GROUP, |(.., p)| *p),
                now,
            );
            made.push((kind.clone(), "kube-apiserver".to_owned(), object));
        }
    }
    made
}

fn local_service(group: &str, version: &str, priority: i64, now: &str) -> Value {
    let stability = match version {
        version if version.contains("alpha") => 9,
        version if version.contains("beta") => 12,
        _ => 15,
    };
    json!({
        "metadata": {
            "name": format!("{version}.{group}"),
            "labels": {"kube-aggregator.kubernetes.io/automanaged": "onstart"},
        },
        "spec": {"group": group, "version": version, "groupPriorityMinimum": priority, "versionPriority": stability},
        "status": {"conditions": [{
            "type": "Available",
            "status": "True",
            "reason": "Local",
            "message": "Local APIServices are always available",
            "lastTransitionTime": now,
        }]},
    })
}

fn is_served(registry: &Registry, service: &Value) -> bool {
    registry.served().serves(
        text(service, &["spec", "group"]),
        text(service, &["spec", "version"]),
    )
}

/// The config maps that tell extension servers whom to believe, and since when token use is tracked.
fn configured(registry: &Registry) -> Result<Vec<Wanted>, Status> {
    let Some(kind) = registry.kind("", "configmaps") else {
        return Ok(Vec::new());
    };
    let day = &time::now_text()[..10];
    let tracking = json!({
        "metadata": {"name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system"},
        "data": {"since": day},
    });
    let authentication = json!({
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": authentication(registry)?,
    });
    Ok([tracking, authentication]
        .map(|object| (kind.clone(), "kube-apiserver".to_owned(), object))
        .into())
}

/// What aggregated and delegating servers need to know to authenticate callers.
pub fn authentication(registry: &Registry) -> Result<Value, Status> {
    let read = |pem: &crate::options::Pem| -> Result<Value, Status> {
        let bytes = pem.read().map_err(Status::internal)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned().into())
    };
    let mut data = json!({});
    if let Some(ca) = registry
        .options
        .tls
        .as_ref()
        .and_then(|tls| tls.client_ca.as_ref())
    {
        data["client-ca-file"] = read(ca)?;
    }
    let header = &registry.options.request_header;
    if let Some(ca) = &header.client_ca {
        data["requestheader-client-ca-file"] = read(ca)?;
        for (key, list) in [
            ("requestheader-allowed-names", &header.allowed_names),
            ("requestheader-username-headers", &header.username_headers),
            ("requestheader-group-headers", &header.group_headers),
            (
                "requestheader-extra-headers-prefix",
                &header.extra_header_prefixes,
            ),
        ] {
            data[key] = json!(list).to_string().into();
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_line_names_a_resource() {
        for line in RECORDED.lines() {
            let (group, plural, _, object): (String, String, String, Value) =
                serde_json::from_str(line).expect("a line");
            let known = api::RESOURCES
                .iter()
                .any(|resource| resource.group == group && resource.plural == plural);
            assert!(known, "{group}/{plural} {}", meta::name(&object));
        }
    }
}
