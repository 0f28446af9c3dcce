//! Where the mailbox of each pod's worker is found by the pod's uid.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::k8s::Pod;
use crate::pod::mailbox::{Inbox, Mailbox};
use crate::pod::spec;

/// The mailboxes; clones share them. As many as there are pods on the node.
#[derive(Clone, Default)]
pub struct Board(Arc<Shared>);

#[derive(Default)]
struct Shared {
    mailboxes: Mutex<HashMap<String, Mailbox>>,
    changed: Notify,
}

impl Board {
    /// Adds a pod's mailbox.
    pub fn add(&self, uid: &str, mailbox: Mailbox) {
        self.0.mailboxes.lock().insert(uid.to_owned(), mailbox);
        self.0.changed.notify_one();
    }

    /// Removes it.
    pub fn remove(&self, uid: &str) {
        self.0.mailboxes.lock().remove(uid);
    }

    /// Posts to a pod; says whether it has a worker.
    pub fn post(&self, uid: &str, change: impl FnOnce(&mut Inbox)) -> bool {
        let mailbox = self.0.mailboxes.lock().get(uid).cloned();
        mailbox.map(|mailbox| mailbox.post(change)).is_some()
    }

    /// Posts to every pod.
    pub fn post_all(&self, change: impl Fn(&mut Inbox)) {
        let mailboxes: Vec<_> = self.0.mailboxes.lock().values().cloned().collect();
        mailboxes.iter().for_each(|mailbox| mailbox.post(&change));
    }

    /// Every pod as its worker last showed it.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        let mailboxes: Vec<_> = self.0.mailboxes.lock().values().cloned().collect();
        let pods = mailboxes
            .iter()
            .map(|mailbox| mailbox.published().borrow().clone());
        pods.filter(|pod| pod.metadata.uid.is_some()).collect()
    }

    /// What the worker of the pod of this name shows from now on.
    pub fn find(&self, namespace: &str, name: &str) -> Option<watch::Receiver<Arc<Pod>>> {
        let mailboxes: Vec<_> = self.0.mailboxes.lock().values().cloned().collect();
        let found = mailboxes.into_iter().map(|mailbox| mailbox.published());
        found.into_iter().find(|published| {
            let pod = published.borrow();
            spec::namespace(&pod) == namespace && spec::name(&pod) == name
        })
    }

    /// Whether there is no pod.
    pub fn is_empty(&self) -> bool {
        self.0.mailboxes.lock().is_empty()
    }

    /// Waits until a pod was added.
    pub async fn added(&self) {
        self.0.changed.notified().await;
    }
}
