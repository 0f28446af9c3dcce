//! The options of the calls, as upstream's ListOptions, DeleteOptions, PatchOptions and so on.

use std::time::Duration;

use apimachinery::Value;
use serde::Serialize;
use serde_json::json;

/// What a list (or a deletecollection) selects and how it is paged.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    /// Objects per page; 0 is no limit.
    pub limit: usize,
    /// Token of the page before, or empty.
    pub continue_token: String,
    /// Empty: a consistent read. `"0"`: any cached state.
    pub resource_version: String,
    /// `Exact`, `NotOlderThan`, or empty.
    pub resource_version_match: String,
}

/// What a watch selects and where it begins.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    pub label_selector: String,
    pub field_selector: String,
    /// Changes after this version; empty starts with the present state as synthetic ADDED events.
    pub resource_version: String,
    /// KEP-3157: ADDED for the present state, then a bookmark annotated `k8s.io/initial-events-end`.
    pub send_initial_events: bool,
    /// The server ends the stream after this long; `None` lets it choose.
    pub timeout: Option<Duration>,
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Empty: the server derives it from the user agent.
    pub field_manager: String,
    pub dry_run: bool,
    /// `Ignore`, `Warn`, `Strict`, or empty for the server's default.
    pub field_validation: String,
    /// Apply only: take fields from other managers.
    pub force: bool,
}

/// What becomes of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// The object must still be this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Seconds; `None` is the kind's (or the pod's) default, 0 removes at once.
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Preconditions,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Only the object with this uid.
    pub fn uid(uid: impl Into<String>) -> Self {
        DeleteOptions {
            preconditions: Preconditions {
                uid: Some(uid.into()),
                resource_version: None,
            },
            ..DeleteOptions::default()
        }
    }

    /// The same with this grace period in seconds.
    pub fn grace(mut self, seconds: i64) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }

    /// The same with this propagation.
    pub fn propagation(mut self, propagation: Propagation) -> Self {
        self.propagation = Some(propagation);
        self
    }

    /// The body of the request, a `meta/v1 DeleteOptions`.
    pub(crate) fn to_body(&self) -> Value {
        let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = self.grace_period_seconds {
            body["gracePeriodSeconds"] = json!(seconds);
        }
        if let Some(uid) = &self.preconditions.uid {
            body["preconditions"]["uid"] = json!(uid);
        }
        if let Some(version) = &self.preconditions.resource_version {
            body["preconditions"]["resourceVersion"] = json!(version);
        }
        if let Some(propagation) = self.propagation {
            body["propagationPolicy"] = json!(propagation);
        }
        if self.dry_run {
            body["dryRun"] = json!(["All"]);
        }
        body
    }
}

/// A patch and its kind.
#[derive(Clone, Debug)]
pub enum Patch {
    /// RFC 6902, an array of operations.
    Json(Value),
    /// RFC 7386.
    Merge(Value),
    /// Kubernetes' strategic merge.
    Strategic(Value),
    /// Server-side apply; needs `WriteOptions::field_manager`.
    Apply(Value),
}

impl Patch {
    pub(crate) fn content_type(&self) -> &'static str {
        match self {
            Patch::Json(_) => "application/json-patch+json",
            Patch::Merge(_) => "application/merge-patch+json",
            Patch::Strategic(_) => "application/strategic-merge-patch+json",
            Patch::Apply(_) => "application/apply-patch+yaml",
        }
    }

    pub(crate) fn body(&self) -> &Value {
        match self {
            Patch::Json(body)
            | Patch::Merge(body)
            | Patch::Strategic(body)
            | Patch::Apply(body) => body,
        }
    }
}

/// Collects query parameters, percent-encoded.
#[derive(Default)]
pub(crate) struct Query(String);

impl Query {
    pub(crate) fn add(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        encode_into(&mut self.0, value);
    }

    pub(crate) fn flag(&mut self, name: &str, value: bool) {
        if value {
            self.add(name, "true");
        }
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

/// Appends `text` percent-encoded for a query or a path segment (RFC 3986 unreserved characters stay).
pub(crate) fn encode_into(out: &mut String, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(byte as char);
        } else {
            out.push('%');
            out.push(HEX[usize::from(byte >> 4)] as char);
            out.push(HEX[usize::from(byte & 15)] as char);
        }
    }
}

impl ListOptions {
    pub(crate) fn query(&self) -> String {
        let mut query = Query::default();
        query.add("labelSelector", &self.label_selector);
        query.add("fieldSelector", &self.field_selector);
        if self.limit > 0 {
            query.add("limit", &self.limit.to_string());
        }
        query.add("continue", &self.continue_token);
        query.add("resourceVersion", &self.resource_version);
        query.add("resourceVersionMatch", &self.resource_version_match);
        query.finish()
    }
}

impl WatchOptions {
    pub(crate) fn query(&self) -> String {
        let mut query = Query::default();
        query.flag("watch", true);
        query.flag("allowWatchBookmarks", true);
        query.add("labelSelector", &self.label_selector);
        query.add("fieldSelector", &self.field_selector);
        query.add("resourceVersion", &self.resource_version);
        if self.send_initial_events {
            query.flag("sendInitialEvents", true);
            query.add("resourceVersionMatch", "NotOlderThan");
        }
        if let Some(timeout) = self.timeout {
            query.add("timeoutSeconds", &timeout.as_secs().max(1).to_string());
        }
        query.finish()
    }
}

impl WriteOptions {
    pub(crate) fn query(&self) -> String {
        let mut query = Query::default();
        query.add("fieldManager", &self.field_manager);
        query.add("fieldValidation", &self.field_validation);
        query.flag("force", self.force);
        if self.dry_run {
            query.add("dryRun", "All");
        }
        query.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_percent_encoded_and_leaves_out_what_is_empty() {
        let options = ListOptions {
            label_selector: "a=b,c in (d,e)".into(),
            limit: 5,
            ..ListOptions::default()
        };
        assert_eq!(
            options.query(),
            "?labelSelector=a%3Db%2Cc%20in%20%28d%2Ce%29&limit=5"
        );
        assert_eq!(ListOptions::default().query(), "");
    }

    #[test]
    fn delete_options_hold_only_what_was_set() {
        assert_eq!(
            DeleteOptions::uid("u").grace(0).to_body(),
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}})
        );
    }
}
