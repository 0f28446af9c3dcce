//! Noticing what happens in the runtime: a list of sandboxes and containers
//! every second while there are pods, or the runtime's own events where it has
//! them. Each change wakes its pod's worker, which looks for itself; a pod that
//! nobody works on is reported as an orphan. Upstream calls it PLEG.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::cri::{self, Runtime, labels, v1};

/// Upstream's `genericPlegRelistPeriod`.
const RELIST: Duration = Duration::from_secs(1);
/// With the runtime's events, relisting only finds what they missed.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(30);

/// A pod that the runtime has and nobody works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The pod's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The grace period its containers were made with, seconds.
    pub grace_seconds: Option<i64>,
}

/// State of each sandbox and container of a pod, by id.
type Fingerprint = BTreeMap<String, i32>;

/// Watches the runtime.
pub struct Pleg {
    runtime: Runtime,
    board: Board,
    orphans: mpsc::Sender<Orphan>,
    known: HashMap<String, Fingerprint>,
    supports_events: bool,
}

impl Pleg {
    /// Orphans go to `orphans`.
    pub fn new(runtime: Runtime, board: Board, orphans: mpsc::Sender<Orphan>) -> Self {
        Self {
            runtime,
            board,
            orphans,
            known: HashMap::new(),
            supports_events: true,
        }
    }

    /// Watches until the shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.watch() => {}
        }
    }

    async fn watch(&mut self) {
        loop {
            if let Err(error) = self.relist().await {
                tracing::warn!(%error, "cannot list the runtime's containers, will be retried");
            }
            if self.board.is_empty() {
                // Nothing can happen to no pods. Orphans were seen just now.
                self.board.added().await;
                continue;
            }
            let mut events = None;
            if self.supports_events {
                match self.runtime.container_events().await {
                    Ok(stream) => events = Some(stream),
                    Err(error) if error.is_unimplemented() => self.supports_events = false,
                    Err(error) => tracing::debug!(%error, "no container events from the runtime"),
                }
            }
            match events {
                None => tokio::time::sleep(RELIST).await,
                Some(events) => self.follow(events).await,
            }
        }
    }

    /// Passes events on until it is time to relist, or the stream ends.
    async fn follow(&self, mut events: tonic::Streaming<v1::ContainerEventResponse>) {
        let relist = tokio::time::sleep(RELIST_WITH_EVENTS);
        tokio::pin!(relist);
        loop {
            tokio::select! {
                () = &mut relist => return,
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        let sandbox = event.pod_sandbox_status.unwrap_or_default();
                        let uid = sandbox.metadata.unwrap_or_default().uid;
                        self.board.post(&uid, |inbox| inbox.runtime = true);
                    }
                    Some(Err(_)) | None => return tokio::time::sleep(RELIST).await,
                },
            }
        }
    }

    async fn relist(&mut self) -> cri::Result<()> {
        let sandboxes = self.runtime.list_sandboxes(HashMap::new()).await?;
        let containers = self.runtime.list_containers(HashMap::new()).await?;
        let found = fingerprints(&sandboxes, &containers);
        for uid in changed(&self.known, &found) {
            let has_worker = self.board.post(&uid, |inbox| inbox.runtime = true);
            if !has_worker && found.contains_key(&uid) {
                let orphan = orphan(&uid, &sandboxes, &containers);
                // With the queue full it is found again by the next list.
                if self.orphans.try_send(orphan).is_err() {
                    self.known.remove(&uid);
                    continue;
                }
            }
        }
        self.known = found;
        Ok(())
    }
}

fn fingerprints(
    sandboxes: &[v1::PodSandbox],
    containers: &[v1::Container],
) -> HashMap<String, Fingerprint> {
    let mut found: HashMap<String, Fingerprint> = HashMap::new();
    let sandboxes = sandboxes
        .iter()
        .map(|item| (&item.labels, &item.id, item.state));
    let containers = containers
        .iter()
        .map(|item| (&item.labels, &item.id, item.state));
    for (labels, id, state) in sandboxes.chain(containers) {
        if let Some(uid) = labels.get(labels::POD_UID) {
            found
                .entry(uid.clone())
                .or_default()
                .insert(id.clone(), state);
        }
    }
    found
}

/// Uids of pods of which something is not as it was.
fn changed(
    before: &HashMap<String, Fingerprint>,
    now: &HashMap<String, Fingerprint>,
) -> Vec<String> {
    let gone = before.keys().filter(|uid| !now.contains_key(*uid));
    let other = now
        .iter()
        .filter(|(uid, print)| before.get(*uid) != Some(*print));
    let mut uids: Vec<_> = gone.chain(other.map(|(uid, _)| uid)).cloned().collect();
    uids.sort();
    uids
}

fn orphan(uid: &str, sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Orphan {
    let of_pod =
        |labels: &HashMap<String, String>| labels.get(labels::POD_UID).is_some_and(|u| u == uid);
    let mut all = sandboxes
        .iter()
        .map(|s| &s.labels)
        .chain(containers.iter().map(|c| &c.labels));
    let labels = all.find(|labels| of_pod(labels));
    let get = |key: &str| {
        labels
            .and_then(|labels| labels.get(key))
            .cloned()
            .unwrap_or_default()
    };
    let mut own = containers
        .iter()
        .filter(|container| of_pod(&container.labels));
    Orphan {
        uid: uid.to_owned(),
        namespace: get(labels::POD_NAMESPACE),
        name: get(labels::POD_NAME),
        grace_seconds: own.find_map(|container| {
            container
                .annotations
                .get(labels::POD_GRACE_PERIOD)?
                .parse()
                .ok()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_container(uid: &str, id: &str, state: i32) -> v1::Container {
        let labels = [
            (labels::POD_UID, uid),
            (labels::POD_NAME, "p"),
            (labels::POD_NAMESPACE, "ns"),
        ];
        v1::Container {
            id: id.to_owned(),
            state,
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            annotations: HashMap::from([(labels::POD_GRACE_PERIOD.to_owned(), "7".to_owned())]),
            ..Default::default()
        }
    }

    #[test]
    fn only_pods_that_changed_are_named() {
        let before = fingerprints(&[], &[mk_container("a", "1", 1), mk_container("b", "2", 1)]);
        let now = fingerprints(
            &[],
            &[
                mk_container("a", "1", 2),
                mk_container("b", "2", 1),
                mk_container("c", "3", 0),
            ],
        );
        assert_eq!(changed(&before, &now), ["a", "c"]);
        assert_eq!(changed(&now, &before), ["a", "c"]);
        assert!(changed(&now, &now).is_empty());
    }

    #[test]
    fn an_orphan_is_known_by_its_labels_and_annotations() {
        let orphan = orphan(
            "a",
            &[],
            &[mk_container("b", "1", 1), mk_container("a", "2", 1)],
        );
        assert_eq!(
            (orphan.namespace.as_str(), orphan.name.as_str()),
            ("ns", "p")
        );
        assert_eq!(orphan.grace_seconds, Some(7));
    }
}
