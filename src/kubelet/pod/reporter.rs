//! Events about one pod or one of its containers.

use client::events::{EventKind, ObjectReference, Recorder};

use super::spec;
use crate::k8s::Pod;

/// Records events about one object.
#[derive(Clone)]
pub struct Reporter {
    recorder: Recorder,
    object: ObjectReference,
}

impl Reporter {
    /// Events about the pod itself.
    pub fn new(recorder: Recorder, pod: &Pod) -> Self {
        let version = pod.metadata.resource_version.as_deref().unwrap_or_default();
        let object = ObjectReference::pod(
            spec::namespace(pod),
            spec::name(pod),
            spec::uid(pod),
            version,
        );
        Self { recorder, object }
    }

    /// Events about the container at `path`, such as `spec.containers{nginx}`.
    pub fn container(&self, path: String) -> Self {
        Self {
            recorder: self.recorder.clone(),
            object: self.object.clone().with_field_path(path),
        }
    }

    /// Something went as it should.
    pub fn normal(&self, reason: &str, message: impl Into<String>) {
        self.recorder
            .event(&self.object, EventKind::Normal, reason, message);
    }

    /// Something did not.
    pub fn warning(&self, reason: &str, message: impl Into<String>) {
        self.recorder
            .event(&self.object, EventKind::Warning, reason, message);
    }
}
