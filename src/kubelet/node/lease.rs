//! The node's Lease in kube-node-lease: renewed four times in its duration, so
//! that the node counts as alive. The one write of an idle node.

use std::time::Duration;

use apimachinery::{Value, meta};
use client::{Client, ClientError, options::WriteOptions};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::clock;

const NAMESPACE: &str = "kube-node-lease";
/// Pause after a failure, doubled up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Upstream's `maxBackoff` of the lease controller.
const MAX_PAUSE: Duration = Duration::from_secs(7);

/// Renews the lease until the shutdown.
pub async fn run(
    client: Client,
    node_name: String,
    node_uid: String,
    duration: Duration,
    shutdown: CancellationToken,
) {
    let mut renewer = Renewer {
        client,
        node_name,
        node_uid,
        duration,
        lease: None,
    };
    let mut pause = FIRST_PAUSE;
    loop {
        let wait = match renewer.renew().await {
            Ok(()) => {
                pause = FIRST_PAUSE;
                duration / 4
            }
            Err(error) => {
                tracing::warn!(%error, "cannot renew the node's lease, will be retried");
                renewer.lease = None;
                let wait = pause;
                pause = (pause * 2).min(MAX_PAUSE);
                wait
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

struct Renewer {
    client: Client,
    node_name: String,
    node_uid: String,
    duration: Duration,
    /// As last written; none makes the next renewal read it first.
    lease: Option<Value>,
}

impl Renewer {
    async fn renew(&mut self) -> Result<(), ClientError> {
        let resource = &api::r::LEASES;
        let options = WriteOptions::default();
        let known = match self.lease.take() {
            Some(lease) => Some(lease),
            None => self.read().await?,
        };
        let renewed = match known {
            None => {
                let lease = self.filled(json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.node_name, "namespace": NAMESPACE},
                }));
                self.client
                    .create(resource, NAMESPACE, &lease, &options)
                    .await?
            }
            Some(lease) => {
                let lease = self.filled(lease);
                self.client
                    .update(resource, NAMESPACE, &self.node_name, &lease, &options)
                    .await?
            }
        };
        self.lease = Some(renewed);
        Ok(())
    }

    async fn read(&self) -> Result<Option<Value>, ClientError> {
        match self
            .client
            .get(&api::r::LEASES, NAMESPACE, &self.node_name)
            .await
        {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn filled(&self, mut lease: Value) -> Value {
        // A lease of a Node that was deleted and made anew would be collected with the old one.
        if !meta::owner_references(&lease).any(|owner| owner.uid == self.node_uid) {
            lease["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "v1", "kind": "Node", "name": self.node_name, "uid": self.node_uid,
            }]);
        }
        lease["spec"]["holderIdentity"] = json!(self.node_name);
        lease["spec"]["leaseDurationSeconds"] = json!(self.duration.as_secs());
        lease["spec"]["renewTime"] = json!(clock::now_micro());
        lease
    }
}
