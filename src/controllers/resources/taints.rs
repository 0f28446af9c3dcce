//! device-taint-eviction-controller: deletes pods that use devices with NoExecute taints their claims do not tolerate,
//! or no longer (KEP-5055). Taints are of the devices themselves, in ResourceSlices, or of DeviceTaintRules.

use std::{collections::HashSet, sync::Arc, time::Duration};

use api::{
    r::{DEVICETAINTRULES, PODS, RESOURCECLAIMS, RESOURCESLICES},
    view::Taint,
};
use apimachinery::{
    meta::join_key,
    time::{Time, now, parse},
};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;

use super::view::{AllocatedDevice, DeviceTaintRule, ResourceClaim, ResourceSlice};
use crate::{
    Context, Controller,
    context::synced,
    objects::Pod,
    taint_eviction::{Told, evict},
};

/// Pods deleted at a time.
const WORKERS: usize = 8;
const REASON: &str = "DeviceTaintManagerEviction";
const EVICTED: Told = Told {
    reason: "DeletionByDeviceTaintManager",
    message: "Device Taint manager: deleting due to NoExecute taint",
};
/// Index of slices by driver and pool.
const BY_POOL: &str = "pool";

pub struct DeviceTaintEviction;

struct Manager {
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    rules: Informer<DeviceTaintRule>,
    queue: Queue<String>,
    /// Uids of pods whose deletion is due some time; told when it is called off. Pods that are gone leave it.
    pending: Mutex<HashSet<String>>,
    recorder: Recorder,
}

#[async_trait]
impl Controller for DeviceTaintEviction {
    fn name(&self) -> &'static str {
        "device-taint-eviction-controller"
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let manager = Arc::new(Manager {
            pods: informers.informer(&PODS, "", Selectors::default()),
            claims: informers.informer(&RESOURCECLAIMS, "", Selectors::default()),
            slices: informers.informer(&RESOURCESLICES, "", Selectors::default()),
            rules: informers.informer(&DEVICETAINTRULES, "", Selectors::default()),
            queue: Queue::default(),
            pending: Mutex::default(),
            recorder: context.recorder("device-taint-eviction"),
        });
        let Manager {
            pods,
            claims,
            slices,
            ..
        } = &*manager;
        slices.add_index(BY_POOL, |slice| {
            vec![pool_key(&slice.spec.driver, &slice.spec.pool.name)]
        });
        // Rules are an API of their own, which a server need not serve.
        if !synced!(context, pods, claims, slices) {
            return;
        }
        manager.follow();
        let name = "device-taint-eviction";
        workqueue::run(name, &manager.queue, WORKERS, &context.shutdown, |key| {
            let (context, manager) = (&context, &manager);
            async move { manager.reconcile(context, &key).await }
        })
        .await;
    }
}

fn pool_key(driver: &str, pool: &str) -> String {
    format!("{driver}/{pool}")
}

/// The pods a claim is reserved for.
fn users(claim: &ResourceClaim) -> impl Iterator<Item = String> {
    let pods = claim.status.reserved_for.iter().filter(|one| one.is_pod());
    pods.map(|pod| join_key(&claim.metadata.namespace, &pod.name))
}

impl Manager {
    fn follow(self: &Arc<Self>) {
        let to = self.clone();
        self.claims.add_handler(move |change| {
            let claims = change.old.iter().chain(&change.new);
            claims
                .flat_map(|claim| users(claim))
                .for_each(|pod| to.queue.add(pod));
        });
        let to = self.clone();
        self.slices.add_handler(move |change| {
            let taints =
                |slice: &Option<Arc<ResourceSlice>>| slice.as_ref().map(|one| one.spec.clone());
            if taints(&change.old) == taints(&change.new) {
                return;
            }
            let spec = &change.object().spec;
            to.all_using(|device| device.driver == spec.driver && device.pool == spec.pool.name);
        });
        let to = self.clone();
        self.rules.add_handler(move |change| {
            let specs =
                |rule: &Option<Arc<DeviceTaintRule>>| rule.as_ref().map(|one| one.spec.clone());
            if specs(&change.old) == specs(&change.new) {
                return;
            }
            for rule in change.old.iter().chain(&change.new) {
                if let Some(selector) = &rule.spec.device_selector {
                    to.all_using(|device| selector.matches(device));
                }
            }
        });
        let to = self.clone();
        self.pods.add_handler(move |change| {
            if change.is_deleted() {
                to.pending.lock().remove(&change.object().metadata.uid);
            }
            let node = |pod: &Arc<Pod>| (pod.spec.node_name.clone(), pod.metadata.uid.clone());
            let has_claims = !change.object().spec.resource_claims.is_empty();
            if has_claims && change.old.as_ref().map(node) != change.new.as_ref().map(node) {
                to.queue.add(change.key.to_string());
            }
        });
    }

    /// Brings the pods that use such a device.
    fn all_using(&self, is_it: impl Fn(&AllocatedDevice) -> bool) {
        for claim in self.claims.list() {
            let allocation = claim.status.allocation.as_ref();
            if allocation.is_some_and(|one| one.devices.results.iter().any(&is_it)) {
                users(&claim).for_each(|pod| self.queue.add(pod));
            }
        }
    }

    /// The NoExecute taints of a device: its own, if the pool's newest slices have it, and those of rules.
    fn taints(&self, device: &AllocatedDevice) -> Vec<Taint> {
        let slices = self
            .slices
            .by_index(BY_POOL, &pool_key(&device.driver, &device.pool));
        let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
        let current = slices
            .iter()
            .filter(|slice| Some(slice.spec.pool.generation) == newest);
        let own = current
            .flat_map(|slice| &slice.spec.devices)
            .filter(|one| one.name == device.device)
            .flat_map(|one| one.taints.clone());
        let rules = self.rules.list();
        let of_rules = rules
            .iter()
            .filter(|rule| {
                rule.spec
                    .device_selector
                    .as_ref()
                    .is_some_and(|one| one.matches(device))
            })
            .map(|rule| rule.spec.taint.clone());
        own.chain(of_rules)
            .filter(|taint| taint.effect == "NoExecute")
            .collect()
    }

    /// When the pod has to go, if at all.
    fn due(&self, pod: &Pod) -> Option<Time> {
        let meta = &pod.metadata;
        let mut due: Option<Time> = None;
        let statuses = &pod.status.resource_claim_statuses;
        let named = pod.spec.resource_claims.iter().chain(statuses);
        for name in named.filter_map(|claim| claim.resource_claim_name.as_ref()) {
            let Some(claim) = self.claims.get(&join_key(&meta.namespace, name)) else {
                continue;
            };
            let Some(allocation) = &claim.status.allocation else {
                continue;
            };
            if !claim
                .status
                .reserved_for
                .iter()
                .any(|one| one.uid == meta.uid)
            {
                continue;
            }
            for device in &allocation.devices.results {
                let at = eviction_time(&self.taints(device), device);
                due = match (due, at) {
                    (Some(due), Some(at)) => Some(due.min(at)),
                    (due, at) => due.or(at),
                };
            }
        }
        due
    }

    async fn reconcile(&self, context: &Context, key: &str) -> Result<Requeue, ClientError> {
        let pod = self.pods.get(key);
        let pod = pod.filter(|pod| pod.is_active() && !pod.spec.node_name.is_empty());
        let Some(pod) = pod else {
            return Ok(Requeue::No);
        };
        let uid = &pod.metadata.uid;
        match self.due(&pod) {
            None => {
                if self.pending.lock().remove(uid) {
                    self.event(&pod, "Cancelling deletion");
                }
                Ok(Requeue::No)
            }
            Some(at) if at > now() => {
                self.pending.lock().insert(uid.clone());
                let left = Duration::try_from(at - now()).unwrap_or_default();
                Ok(Requeue::After(left + Duration::from_millis(1)))
            }
            Some(_) => {
                self.event(&pod, "Marking for deletion");
                evict(context, &pod, &EVICTED).await?;
                self.pending.lock().remove(uid);
                Ok(Requeue::No)
            }
        }
    }

    fn event(&self, pod: &Pod, message: &str) {
        let meta = &pod.metadata;
        let object = ObjectReference::pod(
            &meta.namespace,
            &meta.name,
            &meta.uid,
            &meta.resource_version,
        );
        self.recorder
            .event(&object, EventKind::Normal, REASON, message.to_string());
    }
}

/// When the taints end the use of a device: at once where one is not tolerated, else when the first toleration has run
/// out.
fn eviction_time(taints: &[Taint], device: &AllocatedDevice) -> Option<Time> {
    let times = taints.iter().filter_map(|taint| {
        let added = taint
            .time_added
            .as_deref()
            .and_then(parse)
            .unwrap_or_else(now);
        let mut tolerating = device
            .tolerations
            .iter()
            .filter(|one| one.tolerates(taint))
            .peekable();
        if tolerating.peek().is_none() {
            return Some(added);
        }
        // One that holds for ever outlasts all others.
        let seconds: Option<Vec<i64>> = tolerating.map(|one| one.toleration_seconds).collect();
        let longest = seconds?.into_iter().max()?;
        Some(added + Duration::from_secs(u64::try_from(longest).unwrap_or(0)))
    });
    times.min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::start;
    use apimachinery::{Value, time::now_text};
    use client::fake::Server;
    use serde_json::json;

    #[test]
    fn the_taint_whose_tolerance_ends_first_decides() {
        let added = "2026-01-01T00:00:00Z";
        let taint = |key: &str| Taint {
            time_added: Some(added.into()),
            ..Taint::new(key, "NoExecute")
        };
        let at = |seconds: u64| Some(parse(added).unwrap() + Duration::from_secs(seconds));
        let tolerate = |key: &str, seconds: Value| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        for (tolerations, expected) in [
            (json!([]), at(0)),
            (json!([tolerate("a", json!(10))]), at(0)),
            (
                json!([tolerate("a", json!(10)), tolerate("b", json!(5))]),
                at(5),
            ),
            (
                json!([tolerate("a", json!(10)), tolerate("b", Value::Null)]),
                at(10),
            ),
            (json!([{"operator": "Exists"}]), None),
        ] {
            let device: AllocatedDevice =
                serde_json::from_value(json!({"tolerations": tolerations})).unwrap();
            assert_eq!(
                eviction_time(&[taint("a"), taint("b")], &device),
                expected,
                "{tolerations}"
            );
        }
    }

    fn put(server: &Server, pod: &str, device: &str, tolerations: Value) {
        server.put(&RESOURCECLAIMS, json!({"metadata": {"name": pod, "namespace": "n"}, "status": {
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod}],
            "allocation": {"devices": {"results": [{"driver": "d", "pool": "p", "device": device, "tolerations": tolerations}]}}}}));
        server.put(&PODS, json!({"metadata": {"name": pod, "namespace": "n", "uid": pod},
            "spec": {"nodeName": "w", "resourceClaims": [{"name": "x", "resourceClaimName": pod}]}}));
    }

    #[tokio::test]
    async fn pods_leave_tainted_devices_unless_their_claims_bear_it() {
        let server = Server::default();
        let _guard = start(&server, &["device-taint-eviction-controller"]);
        let taint = || json!({"key": "broken", "effect": "NoExecute", "timeAdded": now_text()});
        put(&server, "own", "d1", json!([]));
        put(&server, "bears", "d1", json!([{"operator": "Exists"}]));
        put(&server, "other", "d2", json!([]));
        put(
            &server,
            "later",
            "d3",
            json!([{"operator": "Exists", "tolerationSeconds": 60}]),
        );
        // An older generation of the pool does not count.
        server.put(&RESOURCESLICES, json!({"metadata": {"name": "old"}, "spec": {"driver": "d", "pool": {"name": "p", "generation": 1},
            "devices": [{"name": "d2", "taints": [taint()]}]}}));
        server.put(&RESOURCESLICES, json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p", "generation": 2},
            "devices": [{"name": "d1", "taints": [taint()]}, {"name": "d3", "taints": [taint()]}]}}));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let deleting = |pod: &str| {
            let pod = server.get(&PODS, &format!("n/{pod}")).unwrap();
            pod["metadata"]["deletionTimestamp"].is_string()
        };
        assert_eq!(
            ["own", "bears", "other", "later"].map(deleting),
            [true, false, false, false]
        );
        let condition = &server.get(&PODS, "n/own").unwrap()["status"]["conditions"][0];
        assert_eq!(condition["reason"], "DeletionByDeviceTaintManager");
        server.put(&RESOURCESLICES, json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p", "generation": 2},
            "devices": []}}));
        server.put(&DEVICETAINTRULES, json!({"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": "d", "device": "d2"}, "taint": taint()}}));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(
            ["bears", "other", "later"].map(deleting),
            [false, true, false]
        );
        let events = server.list(&api::r::EVENTS);
        let said = |pod: &str, message: &str| {
            events.iter().any(|event| {
                event["involvedObject"]["name"] == pod
                    && event["message"] == message
                    && event["reason"] == REASON
            })
        };
        assert!(said("own", "Marking for deletion") && said("later", "Cancelling deletion"));
    }
}
