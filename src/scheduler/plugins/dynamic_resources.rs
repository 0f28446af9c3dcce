//! DynamicResources: pods with resource claims (KEP-4381) run where the claims' devices are.
//!
//! Claims are not allocated here: a pod whose claims nobody has allocated fits no node, in upstream's words for claims
//! that cannot be. Allocated ones are reserved for the pod before it is bound.

use std::sync::Arc;

use crate::{
    cluster::Cluster,
    framework::{Ask, Change, Event, Filter, Plugin, Rejection},
    node::NodeInfo,
    pod::Pod,
    storage::ResourceClaim,
};

/// As many pods may share a claim (ResourceClaimReservedForMaxSize).
const MAX_CONSUMERS: usize = 256;

pub struct DynamicResources;

/// The claims of the pod, or why it cannot run anywhere.
fn claims(pod: &Pod, cluster: &Cluster) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let mut claims = Vec::new();
    for name in pod.resource_claims.iter().flatten() {
        let Some(claim) = cluster
            .storage
            .resource_claims
            .get(&format!("{}/{name}", pod.namespace))
        else {
            return Err(format!("resourceclaim \"{name}\" not found"));
        };
        if claim.metadata.is_deleting() {
            return Err(format!("resourceclaim \"{name}\" is being deleted"));
        }
        let consumers = &claim.status.reserved_for;
        let is_ours = consumers.iter().any(|one| *one.uid == *pod.uid);
        if !is_ours && consumers.len() >= MAX_CONSUMERS {
            return Err(format!("resourceclaim \"{name}\" in use"));
        }
        claims.push(claim.clone());
    }
    Ok(claims)
}

/// The claims that must be reserved for the pod before it is bound.
pub fn reserve(pod: &Pod, cluster: &Cluster) -> Vec<Arc<ResourceClaim>> {
    let claims = claims(pod, cluster).unwrap_or_default().into_iter();
    claims
        .filter(|claim| {
            claim
                .status
                .reserved_for
                .iter()
                .all(|one| *one.uid != *pod.uid)
        })
        .collect()
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    /// A claim made from a template must have been made.
    fn pre_enqueue(&self, pod: &Pod) -> Result<(), Rejection> {
        if pod.resource_claims.iter().all(Option::is_some) {
            return Ok(());
        }
        let (namespace, name) = (&pod.namespace, &pod.name);
        Err(Rejection::unresolvable(format!(
            "pod \"{namespace}/{name}\": ResourceClaim not created yet"
        )))
    }

    fn filter<'a>(&self, ask: Ask<'a>) -> Filter<'a> {
        if ask.pod.resource_claims.is_empty() {
            return Filter::Skip;
        }
        let claims = match claims(ask.pod, ask.cluster) {
            Ok(claims) => claims,
            Err(reason) => return Filter::Reject(Rejection::unresolvable(reason)),
        };
        Filter::check(move |info: &NodeInfo, why: &mut Vec<Rejection>| {
            let Some(node) = &info.node else { return };
            for claim in &claims {
                let Some(allocation) = &claim.status.allocation else {
                    return why.push(Rejection::unresolvable("cannot allocate all claims"));
                };
                let selector = allocation.node_selector.as_ref();
                if selector.is_some_and(|selector| !selector.matches(&node.name, &node.labels)) {
                    return why.push(Rejection::unresolvable(
                        "resourceclaim not available on the node",
                    ));
                }
            }
        })
    }

    fn events(&self) -> &'static [Event] {
        &[Event::NodeAdded, Event::NodeUpdated, Event::Storage]
    }

    fn may_help(&self, _: &Pod, change: &Change<'_>) -> bool {
        match change {
            Change::Storage | Change::NodeAdded(_) => true,
            Change::NodeUpdated { old, new } => old.labels != new.labels,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cluster::testing::*, plugins::testing::verdict, pod::pod};

    #[test]
    fn a_pod_runs_where_its_allocated_claims_are() {
        let mut cluster = cluster(&[mk_node("a"), mk_node("b")], &[]);
        let mut value = mk_pod("p");
        value["spec"]["resourceClaims"] =
            json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
        assert!(DynamicResources.pre_enqueue(&pod(value.clone())).is_err());
        value["status"]["resourceClaimStatuses"] =
            json!([{"name": "gpu", "resourceClaimName": "p-gpu-x"}]);
        assert!(DynamicResources.pre_enqueue(&pod(value.clone())).is_ok());
        let told =
            |cluster: &Cluster, node| verdict(&DynamicResources, cluster, value.clone(), node);
        assert_eq!(told(&cluster, "a"), ["resourceclaim \"p-gpu-x\" not found"]);
        let put = |cluster: &mut Cluster, status| {
            let claim =
                json!({"metadata": {"name": "p-gpu-x", "namespace": "default"}, "status": status});
            let claim = Arc::new(serde_json::from_value(claim).unwrap());
            cluster
                .storage
                .resource_claims
                .insert("default/p-gpu-x".into(), claim);
        };
        put(&mut cluster, json!({}));
        assert_eq!(told(&cluster, "a"), ["cannot allocate all claims"]);
        let only_b = json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["b"]}]}]});
        put(
            &mut cluster,
            json!({"allocation": {"nodeSelector": only_b}}),
        );
        assert_eq!(
            told(&cluster, "a"),
            ["resourceclaim not available on the node"]
        );
        assert!(told(&cluster, "b").is_empty());
        assert_eq!(reserve(&pod(value.clone()), &cluster).len(), 1);
        put(
            &mut cluster,
            json!({"allocation": {}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]}),
        );
        assert!(reserve(&pod(value.clone()), &cluster).is_empty());
    }
}
