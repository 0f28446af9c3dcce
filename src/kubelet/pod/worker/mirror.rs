//! The mirror of a static pod: created, replaced when it shows another version,
//! and deleted with the pod.

use client::ClientError;
use client::options::{DeleteOptions, WriteOptions};

use super::report::Known;
use super::{Busy, Done, Worker};
use crate::k8s::Pod;
use crate::pod::spec;
use crate::static_pods;

impl Worker {
    /// Takes over what the API now has as the pod's mirror.
    pub(super) fn take_mirror(&mut self, mirror: Option<std::sync::Arc<Pod>>) {
        match &mirror {
            Some(new) => {
                let same = self
                    .mirror
                    .as_ref()
                    .is_some_and(|old| spec::uid(old) == spec::uid(new));
                if !same {
                    self.api = Known::new(new);
                }
                self.api.take(new);
            }
            None => self.api = Known::new(&self.pod),
        }
        self.mirror = mirror;
    }

    /// Whether the API has a mirror to report to; begins making one if not.
    pub(super) fn has_mirror(&mut self) -> bool {
        let current = self.mirror.as_ref().is_some_and(|mirror| {
            static_pods::shows(mirror, &self.pod) && !spec::is_deleting(mirror)
        });
        if current || self.is_busy(&Busy::Mirror) || !self.may_retry() {
            return current;
        }
        let node = self.shared.node.node();
        let Some(node_uid) = node.metadata.uid.clone() else {
            // The node is not registered yet.
            self.retry_later();
            return false;
        };
        let (client, pod, old) = (
            self.shared.client.clone(),
            self.pod.clone(),
            self.mirror.clone(),
        );
        let node_name = self.shared.config.node_name.clone();
        self.begin(Busy::Mirror, async move {
            if let Some(old) = old {
                let deleted = delete_mirror(&client, &old).await;
                if let Err(error) = deleted {
                    return Done::Mirror(Err(error));
                }
            }
            let mirror = static_pods::mirror(&pod, &node_name, &node_uid);
            let namespace = spec::namespace(&pod);
            let options = WriteOptions::default();
            Done::Mirror(
                client
                    .create(&api::r::PODS, namespace, &mirror, &options)
                    .await,
            )
        });
        false
    }

    pub(super) fn mirror_done(&mut self, result: Result<Pod, ClientError>) {
        match result {
            Ok(mirror) => self.take_mirror(Some(mirror.into())),
            // The watch will show it.
            Err(error) if error.is_already_exists() => self.retry_later(),
            Err(error) => {
                tracing::warn!(%error, pod = spec::describe(&self.pod), "cannot create a mirror pod, will be retried");
                self.retry_later();
            }
        }
    }
}

/// Deletes a mirror at once; one that is gone counts as deleted.
pub async fn delete_mirror(client: &client::Client, mirror: &Pod) -> Result<(), ClientError> {
    let options = DeleteOptions::uid(spec::uid(mirror)).grace(0);
    let (namespace, name) = (spec::namespace(mirror), spec::name(mirror));
    match client
        .delete(&api::r::PODS, namespace, name, &options)
        .await
    {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}
