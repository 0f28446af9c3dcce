//! The rules of a kind: one trait with every method defaulted, a unit struct per kind, a table of them.
//!
//! The defaults are what most kinds do: status belongs to the status subresource, metadata is an object's own, names are
//! DNS subdomains. The order in which the hooks run is in `write`, and nowhere else.

use std::time::Duration;

use api::Resource;
use apimachinery::field::ErrorList;
use apimachinery::schema::zero_field;
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;
use store::{Compare, Op};

use super::Registry;
use crate::kinds::object_meta::{NameRule, dns_subdomain};
use crate::kinds::status::kept_metadata;
use crate::kinds::tree::{restore, semantically_equal, set};
use crate::request::RequestContext;

/// One write as a kind's rules see it.
pub struct Change<'a> {
    pub registry: &'a Registry,
    pub request: &'a RequestContext,
    /// The resource as stored; objects have its version.
    pub resource: &'static Resource,
    /// `""` for the object itself.
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub dry_run: bool,
}

impl Change<'_> {
    /// Tells the client something that does not stop the write.
    pub fn warn(&self, text: impl Into<String>) {
        self.request.warnings.add(text);
    }
}

/// What must be written in the same transaction as an object, so that neither exists without the other.
#[derive(Default)]
pub struct Companions {
    pub compare: Vec<Compare>,
    pub ops: Vec<Op>,
}

/// When an object that was asked to be deleted is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// At once: the kind knows no graceful deletion.
    None,
    /// After this many seconds, or when somebody deletes it with 0.
    Seconds(i64),
}

/// What becomes of dependents when a delete does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Orphan,
}

/// The rules of one kind. See `write` for when each hook runs.
#[async_trait]
pub trait Strategy: Send + Sync + 'static {
    /// Group and plural name.
    fn id(&self) -> (&'static str, &'static str);

    /// What a name may be.
    fn name_rule(&self) -> NameRule {
        dns_subdomain
    }

    /// Fills in what the request left open. Runs on every decoded object, patched or not, and on what is read back
    /// in another version.
    fn default(&self, _object: &mut Value) {}

    /// Makes an object as it is stored what its definition wants of the version it is in now. Custom kinds alone: what
    /// built-in kinds store is complete.
    fn revise(&self, _object: &mut Value) {}

    /// Turns an object of one version into another. Called when the versions' schemas differ; apiVersion and kind are
    /// set by the caller.
    fn convert(&self, _object: &mut Value, _from: &Resource, _to: &Resource) {}

    /// Whether `metadata.generation` counts changes of anything but metadata and status.
    fn counts_generation(&self) -> bool {
        false
    }

    /// Members owned by the status subresource.
    fn status_fields(&self) -> &'static [&'static str] {
        &["status"]
    }

    /// Whether writers of the status subresource cannot touch metadata (`metav1.ResetObjectMetaForStatus`).
    fn status_keeps_metadata(&self) -> bool {
        false
    }

    /// Whether a create may bring a status.
    fn keeps_status_on_create(&self) -> bool {
        false
    }

    fn prepare_create(&self, change: &Change<'_>, object: &mut Value) {
        if !self.keeps_status_on_create() {
            default_prepare_create(self.status_fields(), change, object);
        }
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        default_prepare_update(self.status_fields(), change, new, old);
    }

    fn validate_create(&self, _change: &Change<'_>, _object: &Value) -> ErrorList {
        ErrorList::new()
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        self.validate_create(change, new)
    }

    /// Texts for `Warning:` headers.
    fn warnings(&self, _change: &Change<'_>, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Brings an object that passed validation into its stored form.
    fn canonicalize(&self, _object: &mut Value) {}

    /// Whether PUT on a name that does not exist creates it.
    fn creates_on_update(&self) -> bool {
        false
    }

    /// Whether an update without a resourceVersion is taken.
    fn updates_unconditionally(&self) -> bool {
        true
    }

    /// How long a deletion takes; `asked` is the request's gracePeriodSeconds.
    fn grace(&self, _object: &Value, _asked: Option<i64>) -> Grace {
        Grace::None
    }

    /// What a delete without a policy does to dependents.
    fn propagation(&self) -> Propagation {
        Propagation::Background
    }

    /// A last word before an object is deleted or marked for it; `old` is its state.
    fn validate_delete(&self, _change: &Change<'_>, _old: &Value) -> Result<(), Status> {
        Ok(())
    }

    /// Whether an object with a deletionTimestamp and no finalizer left in its metadata may go (namespaces have more).
    fn may_vanish(&self, _object: &Value) -> bool {
        true
    }

    /// Whether a delete that is done answers with the object instead of a Status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// Changes an object when its deletion begins (namespaces turn Terminating).
    fn begin_delete(&self, _object: &mut Value) {}

    /// What is behind a custom resource; `None` for built-in ones.
    fn custom(&self, _resource: &Resource) -> Option<&'static crate::crd::Version> {
        None
    }

    /// How long an object lives without being written again.
    fn time_to_live(&self, _registry: &Registry) -> Option<Duration> {
        None
    }

    /// Whether `companions` has anything to say; asked first, since it costs nothing.
    fn has_companions(&self) -> bool {
        false
    }

    /// What is written along with an object (cluster IPs). May fill in `new`. Called anew for each try; `new` is
    /// `None` when the object goes away.
    async fn companions(
        &self,
        _change: &Change<'_>,
        _new: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<Companions, Status> {
        Ok(Companions::default())
    }

    /// POST to a subresource (binding, eviction, token). Answers with the object to send.
    async fn post_subresource(
        &self,
        change: &Change<'_>,
        _name: &str,
        _body: Value,
        _options: &super::options::WriteOptions,
    ) -> Result<Value, Status> {
        let resource = change.resource;
        Err(Status::method_not_supported(
            resource.group,
            resource.plural,
            "create",
        ))
    }

    /// Where a field label's value lies in the stored object, tried in order; `None`: where its dots say.
    fn field_paths(&self, _label: &str) -> Option<Vec<Vec<&'static str>>> {
        None
    }

    /// A field label's value where the object has none.
    fn field_default(&self, _label: &str) -> &'static str {
        ""
    }
}

/// A kind without rules of its own.
pub struct Plain(pub &'static Resource);

impl Strategy for Plain {
    fn id(&self) -> (&'static str, &'static str) {
        (self.0.group, self.0.plural)
    }

    fn status_keeps_metadata(&self) -> bool {
        matches!(
            self.0.group,
            "internal.apiserver.k8s.io" | "scheduling.k8s.io" | "storagemigration.k8s.io"
        )
    }
}

/// Puts back what of the metadata a client can set.
pub fn keep_metadata(new: &mut Value, old: &Value) {
    for field in ["annotations", "finalizers", "labels", "ownerReferences"] {
        restore(&mut new["metadata"], &old["metadata"], field);
    }
}

/// What a create does to the status fields of a kind with a status of its own: they begin with nothing.
pub fn default_prepare_create(
    status_fields: &[&'static str],
    change: &Change<'_>,
    object: &mut Value,
) {
    if change.resource.subresource("status").is_some() {
        for field in status_fields {
            set(object, field, zero_field(change.resource.schema, field));
        }
    }
}

/// What updates keep: the object's own endpoint keeps the status, the status endpoint keeps all but the status.
pub fn default_prepare_update(
    status_fields: &[&str],
    change: &Change<'_>,
    new: &mut Value,
    old: &Value,
) {
    match change.subresource {
        "status" => {
            keep_all_but(new, old, status_fields);
            let resource = change.resource;
            for field in kept_metadata(resource.group, resource.plural) {
                restore(&mut new["metadata"], &old["metadata"], field);
            }
        }
        _ if change.resource.subresource("status").is_some() => {
            for field in status_fields {
                restore(new, old, field);
            }
        }
        _ => {}
    }
}

/// Puts back every member of `old` but metadata, the type, and `fields`.
pub fn keep_all_but(new: &mut Value, old: &Value, fields: &[&str]) {
    let kept =
        |key: &str| !matches!(key, "metadata" | "apiVersion" | "kind") && !fields.contains(&key);
    if let Value::Object(map) = new {
        map.retain(|key, _| !kept(key));
    }
    for (key, value) in old.as_object().into_iter().flatten() {
        if kept(key) {
            set(new, key, value.clone());
        }
    }
}

/// Whether anything but type, metadata and status differs: what a generation counts.
pub fn spec_changed(new: &Value, old: &Value, status_fields: &[&str]) -> bool {
    let counted = |key: &str| {
        !matches!(key, "metadata" | "apiVersion" | "kind") && !status_fields.contains(&key)
    };
    let covers = |left: &Value, right: &Value| {
        left.as_object().into_iter().flatten().all(|(key, value)| {
            !counted(key) || semantically_equal(value, right.get(key).unwrap_or(&Value::Null))
        })
    };
    !(covers(new, old) && covers(old, new))
}

/// Sets the generation of an updated object.
pub fn bump_generation(new: &mut Value, old: &Value, status_fields: &[&str]) {
    let was = meta::generation(old);
    let bumped = spec_changed(new, old, status_fields);
    meta::set_generation(new, if bumped { was + 1 } else { was });
}
