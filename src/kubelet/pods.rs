//! The pods of this node: an informer of what the API bound to it, and one
//! worker for each, orphans of the runtime included.
//!
//! **Invariant:** there is at most one worker per uid, and a worker's end is
//! always observed here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use client::informer::{Delta, Informer};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::k8s::{Pod, PodSpec};
use crate::paths;
use crate::pleg::Orphan;
use crate::pod::mailbox::Mailbox;
use crate::pod::shared::Shared;
use crate::pod::spec;
use crate::pod::worker::{Worker, delete_mirror};
use crate::static_pods;

/// Orphans that wait to be taken up; more are found by the next relist.
pub const ORPHAN_QUEUE: usize = 256;

/// How long after the start folders of unknown pods are removed. By then the
/// runtime's orphans, whose folders are not to be taken from them, are known.
const LEFTOVERS_AFTER: Duration = Duration::from_secs(30);

/// Starts workers, tells them of changes and sees them end.
pub struct Pods {
    shared: Arc<Shared>,
    board: Board,
    informer: Informer<Pod>,
    workers: JoinSet<()>,
    /// Which worker is whose.
    uids: HashMap<Id, String>,
    running: HashSet<String>,
    /// Pods of the manifest folder, by uid.
    statics: HashMap<String, Arc<Pod>>,
    /// The manifest folder was read, or there is none.
    statics_known: bool,
    /// Deletions of stale mirrors under way; as many as there are such mirrors.
    chores: JoinSet<()>,
    /// Pods this kubelet is done with whose object still exists, as when a
    /// finalizer holds it.
    done: HashSet<String>,
}

impl Pods {
    /// For the pods that `informer` selects.
    pub fn new(shared: Arc<Shared>, board: Board, informer: Informer<Pod>) -> Self {
        Self {
            workers: JoinSet::new(),
            uids: HashMap::new(),
            running: HashSet::new(),
            statics: HashMap::new(),
            statics_known: shared.config.static_pod_path.is_none(),
            chores: JoinSet::new(),
            done: HashSet::new(),
            shared,
            board,
            informer,
        }
    }

    /// Works until the shutdown, which leaves containers as they are.
    pub async fn run(
        mut self,
        mut orphans: mpsc::Receiver<Orphan>,
        mut manifests: mpsc::Receiver<Vec<Arc<Pod>>>,
        shutdown: CancellationToken,
    ) {
        let mut changes = self.informer.subscribe();
        let informer = self.informer.clone();
        let mut synced = informer.has_synced();
        let mut network = self.shared.node.network_problem();
        let leftovers = tokio::time::sleep(LEFTOVERS_AFTER);
        tokio::pin!(leftovers);
        let mut looked = false;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                delta = changes.recv() => self.take(&delta),
                () = informer.wait_synced(), if !synced => synced = true,
                // Until all pods are known, nobody's pod is an orphan.
                Some(orphan) = orphans.recv(), if synced && self.statics_known => self.adopt(orphan),
                Some(_) = self.chores.join_next(), if !self.chores.is_empty() => {}
                Some(pods) = manifests.recv() => self.take_statics(pods),
                Some(ended) = self.workers.join_next_with_id(), if !self.workers.is_empty() => {
                    self.ended(ended);
                }
                () = &mut leftovers, if !looked && synced && self.statics_known => {
                    looked = true;
                    self.take_leftovers();
                }
                // Pods that wait for their network are looked at again.
                Ok(()) = network.changed() => self.board.post_all(|inbox| inbox.network = true),
            }
        }
    }

    /// Removes the folders of pods that ended while no kubelet ran.
    fn take_leftovers(&mut self) {
        let mut known: HashSet<_> = self
            .informer
            .list()
            .iter()
            .map(|pod| spec::uid(pod).to_owned())
            .collect();
        known.extend(self.statics.keys().cloned());
        let folders = std::fs::read_dir(paths::pods(&self.shared.config.root_dir));
        for folder in folders.into_iter().flatten().flatten() {
            let uid = folder.file_name().to_string_lossy().into_owned();
            if !known.contains(&uid) {
                let (namespace, name) = (String::new(), String::new());
                self.adopt(Orphan {
                    uid,
                    namespace,
                    name,
                    grace_seconds: None,
                });
            }
        }
    }

    /// Starts the pods of the manifest folder, and ends those that left it.
    fn take_statics(&mut self, pods: Vec<Arc<Pod>>) {
        let now: HashMap<_, _> = pods
            .into_iter()
            .map(|pod| (spec::uid(&pod).to_owned(), pod))
            .collect();
        let before = std::mem::replace(&mut self.statics, now.clone());
        for uid in before.keys().filter(|uid| !now.contains_key(*uid)) {
            self.board.post(uid, |inbox| inbox.gone = true);
        }
        if !std::mem::replace(&mut self.statics_known, true) {
            for mirror in self
                .informer
                .list()
                .into_iter()
                .filter(|pod| static_pods::is_mirror(pod))
            {
                let shown = now
                    .values()
                    .any(|pod| spec::name(pod) == spec::name(&mirror));
                if !shown {
                    self.unmirror(mirror);
                }
            }
        }
        for (uid, pod) in now.into_iter().filter(|(uid, _)| !before.contains_key(uid)) {
            let mirror =
                self.informer
                    .get(&format!("{}/{}", spec::namespace(&pod), spec::name(&pod)));
            self.start(pod, true);
            self.board.post(&uid, |inbox| inbox.mirror = Some(mirror));
        }
    }

    /// Tells a static pod of its mirror. A mirror of nothing is deleted.
    fn take_mirror(&mut self, delta: &Delta<Pod>) {
        let mirror = delta.object();
        let same = |pod: &&Arc<Pod>| {
            spec::name(pod) == spec::name(mirror) && spec::namespace(pod) == spec::namespace(mirror)
        };
        let newest = delta.new.clone();
        match self.statics.values().find(same) {
            Some(pod) => {
                self.board
                    .post(spec::uid(pod), |inbox| inbox.mirror = Some(newest));
            }
            None => newest
                .filter(|_| self.statics_known)
                .into_iter()
                .for_each(|m| self.unmirror(m)),
        }
    }

    /// Deletes a mirror that shows no pod of this node any more.
    fn unmirror(&mut self, mirror: Arc<Pod>) {
        let client = self.shared.client.clone();
        self.chores.spawn(async move {
            if let Err(error) = delete_mirror(&client, &mirror).await {
                tracing::warn!(%error, pod = spec::describe(&mirror), "cannot delete a mirror pod");
            }
        });
    }

    fn take(&mut self, delta: &Delta<Pod>) {
        if static_pods::is_mirror(delta.object()) {
            return self.take_mirror(delta);
        }
        let uid = |pod: &Option<Arc<Pod>>| pod.as_ref().map(|pod| spec::uid(pod).to_owned());
        let (old, new) = (uid(&delta.old), uid(&delta.new));
        if let Some(old) = old.filter(|old| new.as_ref() != Some(old)) {
            self.done.remove(&old);
            self.board.post(&old, |inbox| inbox.gone = true);
        }
        let Some((uid, pod)) = new.zip(delta.new.clone()) else {
            return;
        };
        if self.done.contains(&uid) {
            return;
        }
        let known = self.board.post(&uid, |inbox| inbox.pod = Some(pod.clone()));
        if !known {
            self.start(pod, true);
        }
    }

    fn start(&mut self, pod: Arc<Pod>, exists: bool) {
        let uid = spec::uid(&pod).to_owned();
        if !self.running.insert(uid.clone()) {
            return;
        }
        let mailbox = Mailbox::default();
        self.board.add(&uid, mailbox.clone());
        let worker = Worker::new(self.shared.clone(), mailbox, pod, exists);
        let task = self.workers.spawn(worker.run());
        self.uids.insert(task.id(), uid);
    }

    /// Ends a pod that the runtime has and the API does not.
    fn adopt(&mut self, orphan: Orphan) {
        let known = self
            .informer
            .get(&format!("{}/{}", orphan.namespace, orphan.name));
        let exists = known.is_some_and(|pod| spec::uid(&pod) == orphan.uid);
        if self.running.contains(&orphan.uid) || exists {
            return;
        }
        let Orphan {
            uid,
            namespace,
            name,
            grace_seconds,
        } = orphan;
        tracing::info!(
            uid,
            namespace,
            name,
            "ending a pod that the API does not know"
        );
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid);
        pod.metadata.namespace = Some(namespace);
        pod.metadata.name = Some(name);
        pod.spec = Some(PodSpec {
            termination_grace_period_seconds: grace_seconds,
            ..PodSpec::default()
        });
        self.start(Arc::new(pod), false);
    }

    fn ended(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(uid) = self.uids.remove(&id) else {
            return;
        };
        self.running.remove(&uid);
        self.board.remove(&uid);
        let pods = self.informer.list();
        let Some(pod) = pods.into_iter().find(|pod| spec::uid(pod) == uid) else {
            return;
        };
        match ended {
            Ok(_) => drop(self.done.insert(uid)),
            Err(error) => {
                tracing::error!(%error, uid, "a pod's worker failed and is started anew");
                self.start(pod, true);
            }
        }
    }
}
