//! NamespaceLifecycle: nothing is created where no namespace is, or where one is going away, and the namespaces that the
//! system stands on stay.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::status::{Cause, Details};
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Attributes, Operation, Plugin};
use crate::kinds::tree::text;

/// Namespaces nobody may delete.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let is_namespace =
            attributes.resource.group.is_empty() && attributes.resource.plural == "namespaces";
        match attributes.operation {
            Operation::Delete => is_namespace,
            Operation::Create => {
                !is_namespace && !attributes.namespace.is_empty() && !is_review(attributes)
            }
            // Updates and deletes of content must work while a namespace goes away.
            _ => false,
        }
    }

    async fn admit(&self, attributes: &Attributes<'_>, _object: &mut Value) -> Result<(), Status> {
        if attributes.operation != Operation::Create {
            return Ok(());
        }
        let registry = attributes.registry;
        let found = if registry.admission.ending.has(attributes.namespace) {
            registry.fresh_namespace(attributes.namespace).await?
        } else {
            registry.namespace(attributes.namespace).await?
        };
        let Some(namespace) = found else {
            return Err(Status::not_found("", "namespaces", attributes.namespace));
        };
        let phase = text(&namespace, &["status", "phase"]);
        if phase != "Terminating" && !meta::is_deleting(&namespace) {
            return Ok(());
        }
        let mut status = attributes.forbidden(&format!(
            "unable to create new content in namespace {} because it is being terminated",
            attributes.namespace
        ));
        let details = status.details.get_or_insert_with(Details::default);
        details.causes.push(Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {} is being terminated", attributes.namespace),
            field: "metadata.namespace".to_owned(),
        });
        Err(status)
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Value>,
    ) -> Result<(), Status> {
        if attributes.operation == Operation::Delete && IMMORTAL.contains(&attributes.name) {
            return Err(attributes.forbidden("this namespace may not be deleted"));
        }
        if attributes.operation == Operation::Delete {
            attributes.registry.admission.ending.add(attributes.name);
        }
        Ok(())
    }
}

/// How long a namespace is read anew after its deletion was asked for: caches have caught up by then
/// (upstream's `forceLiveLookupTTL`).
const FRESH: Duration = Duration::from_secs(30);
/// Namespaces remembered; past that the oldest are read from the cache again.
const MAX_ENDING: usize = 1024;

/// Namespaces somebody has just asked to delete, which a cache may still show as they were.
#[derive(Default)]
pub struct Ending {
    any: AtomicBool,
    names: Mutex<VecDeque<(String, Instant)>>,
}

impl Ending {
    fn add(&self, name: &str) {
        let mut names = self.names.lock();
        if names.len() == MAX_ENDING {
            names.pop_front();
        }
        names.push_back((name.to_owned(), Instant::now()));
        self.any.store(true, Ordering::Release);
    }

    fn has(&self, name: &str) -> bool {
        // Almost always nobody deletes a namespace.
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut names = self.names.lock();
        while names.front().is_some_and(|(_, at)| at.elapsed() > FRESH) {
            names.pop_front();
        }
        if names.is_empty() {
            self.any.store(false, Ordering::Release);
        }
        names.iter().any(|(known, _)| known == name)
    }
}

/// Reviews are answered, not stored; a namespace in them is a question.
fn is_review(attributes: &Attributes<'_>) -> bool {
    attributes.resource.plural == "localsubjectaccessreviews"
}
