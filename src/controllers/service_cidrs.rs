//! service-cidrs-controller: says of a ServiceCIDR that addresses may be taken from it, and holds one that is being
//! deleted until no Service has an address of it alone (KEP-1880).

use std::{net::IpAddr, sync::Arc};

use api::{
    r::{IPADDRESSES, SERVICECIDRS},
    view::ObjectMeta,
};
use apimachinery::time::now_text;
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    objects::Metadata,
    writes::{modify, write_status},
};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

pub struct ServiceCidrs;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct ServiceCidr {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Spec {
    cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

/// metav1.Condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(skip_serializing_if = "is_zero")]
    observed_generation: i64,
    last_transition_time: String,
    reason: String,
    message: String,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    AddFinalizer,
    RemoveFinalizer,
    Say {
        ready: bool,
        reason: &'static str,
        message: &'static str,
    },
}

#[async_trait]
impl Controller for ServiceCidrs {
    fn name(&self) -> &'static str {
        "service-cidr-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["service-cidrs-controller"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let cidrs: Informer<ServiceCidr> =
            informers.informer(&SERVICECIDRS, "", Selectors::default());
        let addresses: Informer<Metadata> =
            informers.informer(&IPADDRESSES, "", Selectors::default());
        if !synced!(context, cidrs, addresses) {
            return;
        }
        let queue = Queue::default();
        let (keys, all) = (queue.clone(), cidrs.clone());
        cidrs.add_handler(move |change| {
            keys.add(change.key.to_string());
            // Another range that holds the same addresses frees one that goes.
            for one in all.list().iter().filter(|one| one.metadata.is_deleting()) {
                keys.add(one.metadata.name.clone());
            }
        });
        let (keys, all) = (queue.clone(), cidrs.clone());
        addresses.add_handler(move |change| {
            if change.is_deleted() {
                for one in all.list().iter().filter(|one| one.metadata.is_deleting()) {
                    keys.add(one.metadata.name.clone());
                }
            }
        });
        workqueue::run("service-cidrs", &queue, 1, &context.shutdown, |name| {
            let (context, cidrs, addresses) = (&context, &cidrs, &addresses);
            async move { reconcile(context, cidrs, addresses, &name).await }
        })
        .await;
    }
}

async fn reconcile(
    context: &Context,
    cidrs: &Informer<ServiceCidr>,
    addresses: &Informer<Metadata>,
    name: &str,
) -> Result<Requeue, ClientError> {
    let Some(cidr) = cidrs.get(name) else {
        return Ok(Requeue::No);
    };
    let used = || {
        addresses
            .list()
            .iter()
            .filter_map(|one| one.metadata.name.parse().ok())
            .collect()
    };
    let Some(action) = plan(&cidr, &cidrs.list(), used) else {
        return Ok(Requeue::No);
    };
    let (client, meta) = (&context.client, &cidr.metadata);
    match action {
        Action::AddFinalizer | Action::RemoveFinalizer => {
            modify(client, &SERVICECIDRS, meta, |object| {
                let mut finalizers: Vec<String> = apimachinery::meta::finalizers(object)
                    .filter(|one| *one != FINALIZER)
                    .map(ToString::to_string)
                    .collect();
                if action == Action::AddFinalizer {
                    finalizers.push(FINALIZER.into());
                }
                object["metadata"]["finalizers"] = json!(finalizers);
            })
            .await?;
        }
        Action::Say {
            ready,
            reason,
            message,
        } => {
            let mut status = cidr.status.clone();
            status.conditions.retain(|one| one.kind != "Ready");
            status.conditions.push(Condition {
                kind: "Ready".into(),
                status: if ready { "True" } else { "False" }.into(),
                observed_generation: 0,
                last_transition_time: now_text(),
                reason: reason.into(),
                message: message.into(),
            });
            write_status(client, &SERVICECIDRS, meta, &status).await?;
        }
    }
    Ok(Requeue::No)
}

/// What is next for a range; `used` gives the addresses Services have.
fn plan(
    cidr: &ServiceCidr,
    all: &[Arc<ServiceCidr>],
    used: impl FnOnce() -> Vec<IpAddr>,
) -> Option<Action> {
    let held = cidr.metadata.finalizers.iter().any(|one| one == FINALIZER);
    let ready = cidr
        .status
        .conditions
        .iter()
        .find(|one| one.kind == "Ready");
    if !cidr.metadata.is_deleting() {
        if !held {
            return Some(Action::AddFinalizer);
        }
        return ready
            .is_none_or(|one| one.status != "True")
            .then_some(Action::Say {
                ready: true,
                reason: "NetworkReady",
                message: "Kubernetes Service CIDR is ready",
            });
    }
    if !held {
        return None;
    }
    let others: Vec<&Arc<ServiceCidr>> = all
        .iter()
        .filter(|other| other.metadata.name != cidr.metadata.name && !other.metadata.is_deleting())
        .collect();
    let own = |address: &IpAddr| {
        holds(cidr, *address) && !others.iter().any(|other| holds(other, *address))
    };
    if !used().iter().any(own) {
        return Some(Action::RemoveFinalizer);
    }
    ready.is_none_or(|one| one.reason != "Terminating").then_some(Action::Say {
        ready: false,
        reason: "Terminating",
        message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
    })
}

fn holds(cidr: &ServiceCidr, address: IpAddr) -> bool {
    cidr.spec
        .cidrs
        .iter()
        .any(|text| contains(text, address).unwrap_or(false))
}

/// Whether a range in CIDR notation contains an address.
fn contains(cidr: &str, address: IpAddr) -> Option<bool> {
    let (base, length) = cidr.split_once('/')?;
    let length: u32 = length.parse().ok()?;
    match (base.parse().ok()?, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0);
            Some(base.to_bits() & mask == address.to_bits() & mask)
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
            Some(base.to_bits() & mask == address.to_bits() & mask)
        }
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn cidr(name: &str, range: &str, meta: Value) -> Arc<ServiceCidr> {
        let mut value = json!({"metadata": meta, "spec": {"cidrs": [range]}});
        value["metadata"]["name"] = json!(name);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_range_is_held_told_ready_and_let_go_when_nothing_needs_it() {
        let used = |addresses: &'static [&str]| {
            move || addresses.iter().map(|one| one.parse().unwrap()).collect()
        };
        let new = cidr("a", "10.0.0.0/24", json!({}));
        assert_eq!(plan(&new, &[], used(&[])), Some(Action::AddFinalizer));
        let held = cidr("a", "10.0.0.0/24", json!({"finalizers": [FINALIZER]}));
        assert!(matches!(
            plan(&held, &[], used(&[])),
            Some(Action::Say { ready: true, .. })
        ));
        let going = cidr(
            "a",
            "10.0.0.0/24",
            json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}),
        );
        assert_eq!(
            plan(&going, &[], used(&["10.0.1.1"])),
            Some(Action::RemoveFinalizer)
        );
        assert!(matches!(
            plan(&going, &[], used(&["10.0.0.9"])),
            Some(Action::Say {
                reason: "Terminating",
                ..
            })
        ));
        let wider = cidr("b", "10.0.0.0/16", json!({}));
        assert_eq!(
            plan(&going, &[wider], used(&["10.0.0.9"])),
            Some(Action::RemoveFinalizer)
        );
    }

    #[test]
    fn ranges_of_both_families_contain_their_addresses() {
        assert_eq!(
            contains("10.96.0.0/16", "10.96.255.1".parse().unwrap()),
            Some(true)
        );
        assert_eq!(
            contains("10.96.0.0/16", "10.97.0.1".parse().unwrap()),
            Some(false)
        );
        assert_eq!(
            contains("fd00::/108", "fd00::f".parse().unwrap()),
            Some(true)
        );
        assert_eq!(
            contains("fd00::/108", "10.0.0.1".parse().unwrap()),
            Some(false)
        );
        assert_eq!(
            contains("0.0.0.0/0", "1.2.3.4".parse().unwrap()),
            Some(true)
        );
    }
}
