//! What wakes a pod's worker. Everything is coalesced, so a mailbox holds at
//! most one of each kind however much happens: its bound is the kinds and, for
//! probe reports, the pod's probes.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::k8s::Pod;
use crate::probes::{Purpose, Report};

/// What came since the last look.
#[derive(Default)]
pub struct Inbox {
    /// The pod's newest object.
    pub pod: Option<Arc<Pod>>,
    /// The API no longer has it.
    pub gone: bool,
    /// The newest state of its mirror, or that there is none.
    pub mirror: Option<Option<Arc<Pod>>>,
    /// Its sandboxes or containers changed.
    pub runtime: bool,
    /// The pod network became ready, or ceased to be.
    pub network: bool,
    /// A ConfigMap or Secret it refers to changed.
    pub objects: bool,
    /// The newest report of each probe.
    pub reports: BTreeMap<(String, Purpose), Report>,
    /// A container runs, and its postStart hook has not returned.
    pub hook_of: Option<(String, String)>,
}

/// The mailbox; clones share it.
#[derive(Clone, Default)]
pub struct Mailbox(Arc<Shared>);

#[derive(Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    notify: Notify,
    /// The pod with the status the worker last found. Written by the worker.
    published: watch::Sender<Arc<Pod>>,
}

impl Mailbox {
    /// Changes what is in it and wakes the worker.
    pub fn post(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.0.inbox.lock());
        self.0.notify.notify_one();
    }

    /// Shows the pod as it is now to whoever asks the kubelet for it.
    pub fn publish(&self, pod: Arc<Pod>) {
        self.0.published.send_replace(pod);
    }

    /// The pod as its worker last showed it.
    pub fn published(&self) -> watch::Receiver<Arc<Pod>> {
        self.0.published.subscribe()
    }

    /// Takes what came.
    pub fn take(&self) -> Inbox {
        std::mem::take(&mut self.0.inbox.lock())
    }

    /// Waits until something came. Cancel-safe.
    pub async fn wait(&self) {
        self.0.notify.notified().await;
    }
}
