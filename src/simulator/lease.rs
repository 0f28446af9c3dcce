//! Renews the nodes' leases in turn, evenly over time.

use std::{sync::Arc, time::Duration};

use api::r::LEASES;
use apimachinery::{Value, time::now_micro_text};
use client::{Client, ClientError, Informer, Patch, WriteOptions};
use futures::StreamExt;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::node::{Node, Ours};

const NAMESPACE: &str = "kube-node-lease";
/// `leaseDurationSeconds`, as the kubelet's.
const DURATION: u32 = 40;
/// The kubelet renews after a quarter of it. Many nodes take longer, so that there are at most so many renewals a
/// second, but never longer than half of it.
const PERIOD: Duration = Duration::from_secs(10);
const LONGEST_PERIOD: Duration = Duration::from_secs(20);
const MAX_RENEWALS: f64 = 250.0;
/// Renewals come in steps of this.
const STEP: Duration = Duration::from_millis(250);
/// Renewals under way at a time: with so many, all are in time as long as a busy server answers each within a second.
const CONCURRENCY: usize = 250;

/// How often each of so many leases is renewed.
fn period(nodes: usize) -> Duration {
    Duration::from_secs_f64(nodes as f64 / MAX_RENEWALS).clamp(PERIOD, LONGEST_PERIOD)
}

/// Renews the leases of the nodes that are there, for ever.
pub async fn run(client: &Client, ours: &Ours, nodes: &Informer<Node>) {
    let names = ours.names();
    let period = period(names.len());
    let mut ticks = interval(STEP);
    // After a pause all are behind: one round for each, not one for each round missed.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let begin = Instant::now();
    let mut renewed: usize = 0;
    loop {
        ticks.tick().await;
        let rounds = begin.elapsed().as_secs_f64() / period.as_secs_f64();
        // At the start each has one at once: there is none, or an old one.
        let due = names.len() + (rounds * names.len() as f64) as usize;
        let first = renewed.max(due.saturating_sub(names.len()));
        let batch = (first..due).map(|turn| names[turn % names.len()].clone());
        futures::stream::iter(batch)
            .for_each_concurrent(CONCURRENCY, |name| renew(client, nodes, name))
            .await;
        renewed = due;
    }
}

async fn renew(client: &Client, nodes: &Informer<Node>, name: Arc<str>) {
    let Some(node) = nodes.get(&name) else { return };
    if let Err(error) = write(client, &name, &node.uid).await {
        tracing::debug!(node = &*name, %error, "cannot renew the lease, will be tried in its next turn");
    }
}

async fn write(client: &Client, name: &str, uid: &str) -> Result<(), ClientError> {
    let options = WriteOptions::default();
    let patch =
        Patch::Merge(json!({"spec": {"renewTime": now_micro_text(), "holderIdentity": name}}));
    match client
        .patch::<Value>(&LEASES, NAMESPACE, name, "", &patch, &options)
        .await
    {
        Err(error) if error.is_not_found() => {}
        other => return other.map(drop),
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": DURATION, "renewTime": now_micro_text()},
    });
    client
        .create::<_, Value>(&LEASES, NAMESPACE, &lease, &options)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_leases_are_renewed_more_slowly_but_in_time() {
        for (nodes, seconds) in [(1, 10), (2_500, 10), (5_000, 20), (50_000, 20)] {
            assert_eq!(period(nodes), Duration::from_secs(seconds), "{nodes}");
        }
    }
}
