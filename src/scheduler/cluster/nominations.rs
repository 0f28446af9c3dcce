//! Waiting pods that are expected on a node, since others were evicted for them or the API says so.

use std::{collections::HashMap, sync::Arc};

use crate::pod::Pod;

/// The nominator of upstream's scheduling queue.
#[derive(Default)]
pub(super) struct Nominations {
    by_node: HashMap<Arc<str>, Vec<Arc<Pod>>>,
    by_uid: HashMap<Arc<str>, Arc<str>>,
}

impl Nominations {
    /// Expects a pod on a node, and nowhere else.
    pub fn set(&mut self, pod: Arc<Pod>, node: &str) {
        self.remove(&pod.uid);
        let node: Arc<str> = node.into();
        self.by_uid.insert(pod.uid.clone(), node.clone());
        self.by_node.entry(node).or_default().push(pod);
    }

    /// Whether it was expected anywhere.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some(node) = self.by_uid.remove(uid) else {
            return false;
        };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|pod| &*pod.uid != uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
        true
    }

    pub fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.by_uid.get(uid).map(|node| &**node)
    }

    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }
}
