//! What the API is told: a status is sent when it differs from what the API
//! has, one at a time, the newest when the one before is answered.

use std::sync::Arc;

use client::{ClientError, Patch, options::WriteOptions};
use serde_json::Value;

use super::{Busy, Done, Worker};
use crate::clock;
use crate::k8s::{Pod, PodStatus};
use crate::pod::plan;
use crate::pod::spec;
use crate::pod::stage::Stage;
use crate::pod::status::{self, Input};
use crate::static_pods;

/// What the API is known to have.
pub(super) struct Known {
    version: u64,
    status: PodStatus,
    /// The last status that the API took, and its version then: what the API
    /// made of it is not sent against.
    sent: Option<(Value, u64)>,
}

impl Known {
    pub(super) fn new(pod: &Pod) -> Self {
        Self {
            version: version(pod),
            status: pod.status.clone().unwrap_or_default(),
            sent: None,
        }
    }

    /// Takes over an object that is newer than the known one.
    pub(super) fn take(&mut self, pod: &Pod) {
        let version = version(pod);
        if version >= self.version {
            self.version = version;
            self.status = pod.status.clone().unwrap_or_default();
        }
    }

    pub(super) fn status(&self) -> &PodStatus {
        &self.status
    }

    fn has(&self, wanted: &Value) -> bool {
        let sent = self.sent.as_ref();
        sent.is_some_and(|(sent, version)| sent == wanted && self.version <= *version)
            || json(&self.status) == *wanted
    }
}

fn version(pod: &Pod) -> u64 {
    let version = pod.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

fn json(status: &PodStatus) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// How sending ended.
pub(super) struct Reported {
    sent: Value,
    result: Result<Pod, ClientError>,
}

impl Worker {
    /// The pod's status now.
    fn wanted_status(&self) -> PodStatus {
        let over = !matches!(
            self.stage,
            Stage::Admitting | Stage::Running | Stage::Stopping
        );
        let now = clock::now();
        let plan = plan::plan(&plan::Input {
            pod: &self.pod,
            view: &self.view,
            memory: &self.memory,
            now,
        });
        status::status(&Input {
            pod: &self.pod,
            view: &self.view,
            memory: &self.memory,
            waiting: &plan.waiting,
            previous: self.api.status(),
            host_ips: &self.shared.host_ips(),
            runtime_name: &self.shared.runtime_name,
            over,
            now,
        })
    }

    /// Whether the API has the pod's status as it is.
    pub(super) fn is_reported(&self) -> bool {
        !self.is_busy(&Busy::Status) && self.api.has(&json(&self.wanted_status()))
    }

    /// Shows the status to the kubelet's server, and sends it if the API does not have it.
    pub(super) fn report(&mut self) {
        let status = self.wanted_status();
        let shown = self.shown.as_ref();
        if shown.is_none_or(|(pod, shown)| !Arc::ptr_eq(pod, &self.pod) || *shown != status) {
            let mut pod = Pod::clone(&self.pod);
            pod.status = Some(status.clone());
            self.mailbox.publish(Arc::new(pod));
            self.shown = Some((self.pod.clone(), status.clone()));
        }
        let silent = matches!(self.stage, Stage::Admitting | Stage::Removing | Stage::Gone);
        if silent || !self.exists || self.is_busy(&Busy::Status) || !self.may_retry() {
            return;
        }
        if static_pods::is_static(&self.pod) && !self.has_mirror() {
            return;
        }
        let wanted = json(&status);
        if self.api.has(&wanted) {
            return;
        }
        let target = self.mirror.clone().unwrap_or_else(|| self.pod.clone());
        let uid = spec::uid(&target);
        let Some(patch) = crate::patch::pod_status(uid, &json(self.api.status()), &wanted) else {
            return;
        };
        let (client, pod) = (self.shared.client.clone(), target);
        self.begin(Busy::Status, async move {
            let (namespace, name) = (spec::namespace(&pod), spec::name(&pod));
            let (patch, options) = (Patch::Strategic(patch), WriteOptions::default());
            let result = client
                .patch(&api::r::PODS, namespace, name, "status", &patch, &options)
                .await;
            Done::Status(Reported {
                sent: wanted,
                result,
            })
        });
    }

    pub(super) fn status_done(&mut self, reported: Reported) {
        match reported.result {
            Ok(pod) => {
                self.api.sent = Some((reported.sent, version(&pod)));
                self.api.take(&pod);
            }
            // It is gone, or another pod has its name: the watch will say so.
            Err(error) if error.is_not_found() || error.is_conflict() => {
                self.api.sent = Some((reported.sent, u64::MAX));
            }
            Err(error) => {
                tracing::warn!(%error, pod = spec::describe(&self.pod), "cannot update a pod's status, will be retried");
                self.retry_later();
            }
        }
    }
}
