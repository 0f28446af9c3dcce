//! What emptying a namespace came to, as conditions in upstream's words (namespaceConditionUpdater).

use std::collections::BTreeMap;

use client::ClientError;

use crate::{
    discovery::Served,
    objects::{Condition, Metadata, condition},
};

#[derive(Default)]
pub struct Report {
    /// Groups and versions that could not be asked for their resources.
    pub undiscovered: Vec<String>,
    pub failure: Option<ClientError>,
    /// Objects left of each resource, as `plural.group`.
    pub remaining: BTreeMap<String, usize>,
    /// Objects left that have each finalizer.
    pub finalizers: BTreeMap<String, usize>,
}

impl Report {
    /// Notes what is left of a resource.
    pub fn add(&mut self, resource: &Served, objects: &[Metadata]) {
        if objects.is_empty() {
            return;
        }
        let name = format!("{}.{}", resource.resource, resource.group);
        self.remaining.insert(name, objects.len());
        for finalizer in objects
            .iter()
            .flat_map(|object| &object.metadata.finalizers)
        {
            *self.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
    }

    /// The conditions that are not as they should be.
    pub fn changed(&self, present: &[Condition], now: &str) -> Vec<Condition> {
        let wanted = self.conditions();
        let differs = |new: &Condition| {
            condition(present, &new.kind).is_none_or(|old| {
                (&old.status, &old.reason, &old.message) != (&new.status, &new.reason, &new.message)
            })
        };
        let stamped = |mut new: Condition| {
            let old = condition(present, &new.kind);
            if old.is_none_or(|old| old.status != new.status) {
                new.last_transition_time = Some(now.into());
            }
            new
        };
        wanted.into_iter().filter(differs).map(stamped).collect()
    }

    fn conditions(&self) -> Vec<Condition> {
        let make = |kind: &str, bad: Option<(&str, String)>, good: (&str, &str)| {
            let is_bad = bad.is_some();
            let (reason, message) = bad.unwrap_or((good.0, good.1.to_string()));
            Condition {
                kind: kind.into(),
                status: if is_bad { "True" } else { "False" }.into(),
                reason: reason.into(),
                message,
                ..Condition::default()
            }
        };
        let undiscovered = (!self.undiscovered.is_empty()).then(|| {
            let groups = self.undiscovered.join(", ");
            (
                "DiscoveryFailed",
                format!(
                    "Discovery failed for some groups, {} failing: {groups}",
                    self.undiscovered.len()
                ),
            )
        });
        let failed = self.failure.as_ref().map(|error| {
            (
                "ContentDeletionFailed",
                format!("Failed to delete all resource types, 1 remaining: {error}"),
            )
        });
        let remaining = (!self.remaining.is_empty()).then(|| {
            let parts = self
                .remaining
                .iter()
                .map(|(name, count)| format!("{name} has {count} resource instances"));
            let parts: Vec<String> = parts.collect();
            (
                "SomeResourcesRemain",
                format!("Some resources are remaining: {}", parts.join(", ")),
            )
        });
        let held = (!self.finalizers.is_empty()).then(|| {
            let parts = self
                .finalizers
                .iter()
                .map(|(name, count)| format!("{name} in {count} resource instances"));
            let parts: Vec<String> = parts.collect();
            let message = format!(
                "Some content in the namespace has finalizers remaining: {}",
                parts.join(", ")
            );
            ("SomeFinalizersRemain", message)
        });
        vec![
            make(
                "NamespaceDeletionDiscoveryFailure",
                undiscovered,
                (
                    "ResourcesDiscovered",
                    "All resources successfully discovered",
                ),
            ),
            make(
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                (
                    "ParsedGroupVersions",
                    "All legacy kube types successfully parsed",
                ),
            ),
            make(
                "NamespaceDeletionContentFailure",
                failed,
                (
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                ),
            ),
            make(
                "NamespaceContentRemaining",
                remaining,
                ("ContentRemoved", "All content successfully removed"),
            ),
            make(
                "NamespaceFinalizersRemaining",
                held,
                (
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                ),
            ),
        ]
    }
}
