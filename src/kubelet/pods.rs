//! The pods of this node: an informer of what the API bound to it, and one
//! worker for each, orphans of the runtime included.
//!
//! **Invariant:** there is at most one worker per uid, and a worker's end is
//! always observed here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use client::informer::{Delta, Informer};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::k8s::{Pod, PodSpec};
use crate::pleg::Orphan;
use crate::pod::mailbox::Mailbox;
use crate::pod::shared::Shared;
use crate::pod::spec;
use crate::pod::worker::Worker;

/// Orphans that wait to be taken up; more are found by the next relist.
pub const ORPHAN_QUEUE: usize = 256;

/// Starts workers, tells them of changes and sees them end.
pub struct Pods {
    shared: Arc<Shared>,
    board: Board,
    informer: Informer<Pod>,
    workers: JoinSet<()>,
    /// Which worker is whose.
    uids: HashMap<Id, String>,
    running: HashSet<String>,
    /// Pods this kubelet is done with whose object still exists, as when a
    /// finalizer holds it.
    done: HashSet<String>,
}

impl Pods {
    /// For the pods that `informer` selects.
    pub fn new(shared: Arc<Shared>, board: Board, informer: Informer<Pod>) -> Self {
        Self {
            shared,
            board,
            informer,
            workers: JoinSet::new(),
            uids: HashMap::new(),
            running: HashSet::new(),
            done: HashSet::new(),
        }
    }

    /// Works until the shutdown, which leaves containers as they are.
    pub async fn run(mut self, mut orphans: mpsc::Receiver<Orphan>, shutdown: CancellationToken) {
        let mut changes = self.informer.subscribe();
        let informer = self.informer.clone();
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = informer.wait_synced() => {}
        }
        let mut network = self.shared.node.network_problem();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                delta = changes.recv() => self.take(&delta),
                Some(orphan) = orphans.recv() => self.adopt(orphan),
                Some(ended) = self.workers.join_next_with_id(), if !self.workers.is_empty() => {
                    self.ended(ended);
                }
                // Pods that wait for their network are looked at again.
                Ok(()) = network.changed() => self.board.post_all(|inbox| inbox.runtime = true),
            }
        }
    }

    fn take(&mut self, delta: &Delta<Pod>) {
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
