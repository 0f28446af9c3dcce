//! The one function behind every write, in one order:
//!
//! ```text
//! decode → default → managed fields → mutating admission → system metadata, generateName → drop what gates guard
//!        → prepare → validate → canonicalize
//!        → validating admission → companions → store transaction, retried on conflict
//! ```
//!
//! PUT, PATCH, apply, status, scale and finalize are all a function from the current object to the next one.
//! Upstream: `registry/generic/registry/store.go`, `registry/rest/{create,update}.go`, `storage.GuaranteedUpdate`.

use std::borrow::Cow;
use std::sync::Arc;

use api::Resource;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::status::Reason;
use apimachinery::{Status, Value, meta, name, schema, time};
use bytes::Bytes;
use store::{Compare, CompareOp, KeyValue, Op, OpResponse, RangeRequest, Txn};

use super::codec;
use super::kind::Kind;
use super::managed;
use super::options::WriteOptions;
use super::strategy::{Change, bump_generation, keep_metadata};
use super::{Registry, errors};
use crate::admission::{self, Attributes, Operation};
use crate::cache::Entry;
use crate::kinds::object_meta;
use crate::request::RequestContext;

/// Tries of one write before it gives up with a conflict: each loses to a write that won.
const MAX_TRIES: usize = 64;
/// Names tried for a generateName (`NameGenerationRetries`).
const NAME_TRIES: usize = 8;

/// What is written, and on whose behalf.
pub struct Write<'a> {
    pub registry: &'a Registry,
    pub request: &'a RequestContext,
    pub kind: &'a Kind,
    /// The version of the request.
    pub resource: &'static Resource,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub options: &'a WriteOptions,
    /// Whose managed fields change.
    pub manager: &'a str,
}

/// How a write ended.
pub struct Written {
    pub entry: Arc<Entry>,
    /// 0 where nothing was stored yet (a create's dry run).
    pub revision: i64,
    pub created: bool,
}

/// What an update works on.
pub struct Current<'a> {
    /// In the version of the request, with its resourceVersion; an empty object where there is none yet.
    pub object: Cow<'a, Value>,
    pub exists: bool,
}

/// What a transformation made of the current object.
pub struct Next {
    /// In the version of the request.
    pub object: Value,
    /// managedFields are up to date (apply does them itself).
    pub managed: bool,
}

/// Conditions on the object an update meets.
#[derive(Clone, Debug, Default)]
pub struct Preconditions {
    pub uid: Option<String>,
}

impl<'a> Write<'a> {
    fn change(&self) -> Change<'a> {
        Change {
            registry: self.registry,
            request: self.request,
            resource: self.kind.storage,
            subresource: self.subresource,
            namespace: self.namespace,
            dry_run: self.options.dry_run,
        }
    }

    fn attributes<'b>(
        &'b self,
        operation: Operation,
        name: &'b str,
        old: Option<&'b Value>,
    ) -> Attributes<'b> {
        Attributes {
            registry: self.registry,
            request: self.request,
            resource: self.kind.storage,
            subresource: self.subresource,
            operation,
            namespace: self.namespace,
            name,
            old,
            dry_run: self.options.dry_run,
            reinvocation: Default::default(),
        }
    }

    fn invalid(&self, name: &str, mut errors: ErrorList) -> Status {
        for error in errors.iter_mut().filter(|error| error.value.is_null()) {
            error.value = schema::shown_absent(self.kind.storage.schema, &error.field);
        }
        Status::invalid(
            self.kind.storage.group,
            self.kind.storage.kind,
            name,
            errors,
        )
    }

    fn modified(&self, name: &str) -> Status {
        Status::modified(self.kind.storage.group, self.kind.storage.plural, name)
    }

    /// Creates `object` (decoded, in the request's version).
    pub async fn create(&self, mut object: Value) -> Result<Written, Status> {
        self.settle_namespace(&mut object)?;
        self.to_storage(&mut object);
        managed::on_create(self, &mut object);
        self.create_managed(object).await
    }

    /// Creates an object in the storage version whose managed fields are done.
    async fn create_managed(&self, mut object: Value) -> Result<Written, Status> {
        let requested = meta::name(&object).to_owned();
        let attributes = self.attributes(Operation::Create, &requested, None);
        admission::admit(&attributes, &mut object).await?;
        let generate = meta::name(&object).is_empty() && !meta::generate_name(&object).is_empty();
        if !meta::resource_version(&object).is_empty() {
            return Err(Status::failure(
                500,
                Reason::Unknown,
                "resourceVersion should not be set on objects to be created",
            ));
        }
        self.fill_system_fields(&mut object);
        let change = self.change();
        let gates = &self.registry.gates;
        gates.drop_disabled(self.kind.storage, &mut object, None);
        self.kind.strategy.prepare_create(&change, &mut object);
        if self.kind.strategy.counts_generation() {
            meta::set_generation(&mut object, 1);
        }
        if !generate {
            return self.create_once(&change, object).await;
        }
        let mut tries = 1;
        loop {
            let made = name::generate(meta::generate_name(&object));
            meta::set_name(&mut object, &made);
            match self.create_once(&change, object.clone()).await {
                Err(status) if is_taken(&status) && tries < NAME_TRIES => tries += 1,
                Err(status) if is_taken(&status) => return Err(exhausted(status)),
                other => return other,
            }
        }
    }

    async fn create_once(&self, change: &Change<'_>, mut object: Value) -> Result<Written, Status> {
        let strategy = self.kind.strategy;
        let storage = self.kind.storage;
        let mut errors = object_meta::validate(&object, storage.namespaced, strategy.name_rule());
        errors.extend(strategy.validate_create(change, &object));
        if !errors.is_empty() {
            let name = match meta::name(&object) {
                "" => meta::generate_name(&object),
                name => name,
            };
            return Err(self.invalid(name, errors));
        }
        for text in strategy.warnings(change, &object, None) {
            self.request.warnings.add(text);
        }
        strategy.canonicalize(&mut object);
        let name = meta::name(&object).to_owned();
        let attributes = self.attributes(Operation::Create, &name, None);
        admission::validate(&attributes, Some(&object)).await?;
        let key = self.kind.key(self.namespace, &name);
        for _ in 0..MAX_TRIES {
            let mut companions = Default::default();
            let value = if strategy.has_companions() {
                // A fresh copy for each try: what the last one filled in may be taken.
                let mut filled = object.clone();
                companions = strategy.companions(change, Some(&mut filled), None).await?;
                codec::encode_object(&filled, true)
            } else {
                codec::encode_object(&object, true)
            };
            if self.options.dry_run {
                self.refuse_existing(&key, &name).await?;
                return self.written(key, value, 0, 0, true);
            }
            let lease = self.lease().await?;
            let txn = Txn {
                compare: compares(&key, 0, companions.compare),
                success: puts(&key, &value, lease, companions.ops),
                failure: vec![Op::Range(read_one(&key))],
            };
            let response = self.registry.store.txn(txn).await.map_err(errors::store)?;
            if response.succeeded {
                return self.written(key, value, response.revision, lease, true);
            }
            if found(&response.responses).is_some() {
                return Err(Status::already_exists(storage.group, storage.plural, &name));
            }
        }
        Err(self.modified(&name))
    }

    async fn refuse_existing(&self, key: &Bytes, name: &str) -> Result<(), Status> {
        let response = self
            .registry
            .store
            .range(read_one(key))
            .await
            .map_err(errors::store)?;
        if response.kvs.is_empty() {
            return Ok(());
        }
        let storage = self.kind.storage;
        Err(Status::already_exists(storage.group, storage.plural, name))
    }

    fn written(
        &self,
        key: Bytes,
        value: Bytes,
        revision: i64,
        lease: i64,
        created: bool,
    ) -> Result<Written, Status> {
        Ok(Written {
            entry: codec::written_entry(self.kind.shape(), key, value, revision, lease)?,
            revision,
            created,
        })
    }

    async fn lease(&self) -> Result<i64, Status> {
        match self.kind.strategy.time_to_live(self.registry) {
            Some(life) => self.registry.leases.get(life).await.map_err(errors::store),
            None => Ok(0),
        }
    }

    fn settle_namespace(&self, object: &mut Value) -> Result<(), Status> {
        if !self.kind.storage.namespaced {
            return Ok(());
        }
        match meta::namespace(object) {
            "" => meta::set_namespace(object, self.namespace),
            same if same == self.namespace => {}
            _ => {
                return Err(Status::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
        }
        Ok(())
    }

    fn fill_system_fields(&self, object: &mut Value) {
        meta::set_creation_timestamp(object, &time::now_text());
        meta::set_uid(object, &uuid::Uuid::new_v4().to_string());
        meta::set_deletion_timestamp(object, None);
        meta::set_deletion_grace_period_seconds(object, None);
        meta::set_generation(object, 0);
    }

    fn to_storage(&self, object: &mut Value) {
        self.kind.convert(object, self.resource, self.kind.storage);
        self.kind.strategy.default(object);
    }

    /// Updates the object called `name` to what `next` makes of it. `next` runs again when another write came first.
    /// With `creates`, an object that does not exist is created from what `next` makes of nothing.
    pub async fn update<F>(
        &self,
        name: &str,
        preconditions: &Preconditions,
        creates: bool,
        mut next: F,
    ) -> Result<Written, Status>
    where
        F: FnMut(Current<'_>) -> Result<Next, Status>,
    {
        let key = self.kind.key(self.namespace, name);
        let mut known: Option<KeyValue> = None;
        for _ in 0..MAX_TRIES {
            let kv = match known.take() {
                Some(kv) => kv,
                None => match self.read(&key).await? {
                    Some(kv) => kv,
                    None if creates => match self.create_from(name, &mut next).await {
                        Err(status) if is_taken(&status) => continue,
                        other => return other,
                    },
                    // Upstream compares with what nothing has before it looks whether there is anything.
                    None => match preconditions.uid.as_deref() {
                        Some(uid) => return Err(self.uid_conflict(name, uid, "")),
                        None => return Err(self.kind.not_found(name)),
                    },
                },
            };
            match self
                .update_once(name, &kv, preconditions, &mut next)
                .await?
            {
                Step::Done(written) => return Ok(written),
                Step::Again(newer) => known = newer,
            }
        }
        Err(self.modified(name))
    }

    async fn read(&self, key: &Bytes) -> Result<Option<KeyValue>, Status> {
        let response = self
            .registry
            .store
            .range(read_one(key))
            .await
            .map_err(errors::store)?;
        Ok(response.kvs.into_iter().next())
    }

    async fn create_from<F>(&self, name: &str, next: &mut F) -> Result<Written, Status>
    where
        F: FnMut(Current<'_>) -> Result<Next, Status>,
    {
        let empty = Current {
            object: Cow::Owned(Value::Object(apimachinery::Map::new())),
            exists: false,
        };
        let Next {
            mut object,
            managed,
        } = next(empty)?;
        if !meta::uid(&object).is_empty() {
            return Err(self.uid_conflict(name, meta::uid(&object), ""));
        }
        if meta::name(&object).is_empty() {
            meta::set_name(&mut object, name);
        }
        self.settle_namespace(&mut object)?;
        self.to_storage(&mut object);
        if !managed {
            managed::on_create(self, &mut object);
        }
        self.create_managed(object).await
    }

    fn uid_conflict(&self, name: &str, wanted: &str, has: &str) -> Status {
        let key = self.kind.key(self.namespace, name);
        Status::conflict(
            self.kind.storage.group,
            self.kind.storage.plural,
            name,
            &format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {has}",
                String::from_utf8_lossy(&key)
            ),
        )
    }

    async fn update_once<F>(
        &self,
        name: &str,
        kv: &KeyValue,
        preconditions: &Preconditions,
        next: &mut F,
    ) -> Result<Step, Status>
    where
        F: FnMut(Current<'_>) -> Result<Next, Status>,
    {
        let entry =
            Entry::new(self.kind.shape(), kv).map_err(|error| errors::read(error.into()))?;
        let old = codec::entry_value(&entry)?;
        if let Some(uid) = preconditions.uid.as_deref()
            && uid != meta::uid(&old)
        {
            return Err(self.uid_conflict(name, uid, meta::uid(&old)));
        }
        let mut new = self.transform(name, &old, next)?;
        let attributes = self.attributes(Operation::Update, name, Some(&old));
        admission::admit(&attributes, &mut new).await?;
        self.prepare_update(name, &mut new, &old)?;
        managed::ignore_times(&old, &mut new);
        let attributes = self.attributes(Operation::Update, name, Some(&old));
        admission::validate(&attributes, Some(&new)).await?;
        let change = self.change();
        let vanishes = self.vanishes(&new, &old);
        let mut companions = Default::default();
        if self.kind.strategy.has_companions() {
            let kept = (!vanishes).then_some(&mut new);
            companions = self
                .kind
                .strategy
                .companions(&change, kept, Some(&old))
                .await?;
        }
        let value = codec::encode_object(&new, true);
        let key = entry.key().clone();
        let same = value == *entry.stored() && entry.is_as_stored();
        if !vanishes && same && companions.ops.is_empty() {
            let revision = entry.revision();
            return Ok(Step::Done(Written {
                entry: Arc::new(entry),
                revision,
                created: false,
            }));
        }
        if self.options.dry_run {
            let written = self.written(key, value, kv.mod_revision, kv.lease, false)?;
            return Ok(Step::Done(written));
        }
        let lease = self.lease().await?;
        let success = if vanishes {
            deletes(&key, companions.ops)
        } else {
            puts(&key, &value, lease, companions.ops)
        };
        let txn = Txn {
            compare: compares(&key, kv.mod_revision, companions.compare),
            success,
            failure: vec![Op::Range(read_one(&key))],
        };
        let response = self.registry.store.txn(txn).await.map_err(errors::store)?;
        if response.succeeded {
            let written = self.written(key, value, response.revision, lease, false)?;
            return Ok(Step::Done(written));
        }
        Ok(Step::Again(found(&response.responses)))
    }

    /// Runs `next` on the current object and brings the result into the storage version, metadata settled.
    fn transform<F>(&self, name: &str, old: &Value, next: &mut F) -> Result<Value, Status>
    where
        F: FnMut(Current<'_>) -> Result<Next, Status>,
    {
        let mut object = Cow::Borrowed(old);
        if !std::ptr::eq(self.kind.storage, self.resource) {
            self.kind
                .convert(object.to_mut(), self.kind.storage, self.resource);
        }
        let Next {
            object: mut new,
            managed,
        } = next(Current {
            object,
            exists: true,
        })?;
        self.to_storage(&mut new);
        let sent = meta::resource_version(&new).to_owned();
        if !sent.is_empty() && sent != "0" && sent != meta::resource_version(old) {
            return Err(self.modified(name));
        }
        if (sent.is_empty() || sent == "0") && !self.kind.strategy.updates_unconditionally() {
            let path = Path::new("metadata.resourceVersion");
            let error = Error::invalid(&path, 0, "must be specified for an update");
            return Err(self.invalid(name, error.into()));
        }
        self.settle_namespace(&mut new)?;
        if !managed {
            managed::on_update(self, &mut new, old);
        }
        Ok(new)
    }

    fn prepare_update(&self, name: &str, new: &mut Value, old: &Value) -> Result<(), Status> {
        let strategy = self.kind.strategy;
        keep_system_fields(new, old);
        let change = self.change();
        let gates = &self.registry.gates;
        gates.drop_disabled(self.kind.storage, new, Some(old));
        strategy.prepare_update(&change, new, old);
        if self.subresource == "status" && strategy.status_keeps_metadata() {
            keep_metadata(new, old);
        }
        if strategy.counts_generation() {
            bump_generation(new, old, strategy.status_fields());
        }
        let mut errors = object_meta::validate_update(
            new,
            old,
            self.kind.storage.namespaced,
            strategy.name_rule(),
        );
        errors.extend(strategy.validate_update(&change, new, old));
        if !errors.is_empty() {
            return Err(self.invalid(name, errors));
        }
        for text in strategy.warnings(&change, new, Some(old)) {
            self.request.warnings.add(text);
        }
        strategy.canonicalize(new);
        Ok(())
    }

    /// Whether the update takes away what kept a dying object (`ShouldDeleteDuringUpdate`).
    fn vanishes(&self, new: &Value, old: &Value) -> bool {
        meta::is_deleting(new)
            && meta::finalizers(new).next().is_none()
            && meta::deletion_grace_period_seconds(old) == Some(0)
            && self.kind.strategy.may_vanish(new)
    }
}

impl Registry {
    /// Changes a stored object of a kind's own accord: no defaults, admission or managed fields (binding, eviction).
    pub(crate) async fn modify(
        &self,
        change: &Change<'_>,
        name: &str,
        alter: impl Fn(&mut Value) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let resource = change.resource;
        let kind = self
            .kind(resource.group, resource.plural)
            .ok_or_else(Status::path_not_found)?;
        let key = kind.key(change.namespace, name);
        for _ in 0..MAX_TRIES {
            let kv = self
                .read_raw(&key)
                .await?
                .ok_or_else(|| kind.not_found(name))?;
            let mut object = self.decode_raw(&kind, &kv)?;
            alter(&mut object)?;
            if change.dry_run {
                return Ok(());
            }
            let value = codec::encode_object(&object, true);
            let txn = Txn {
                compare: compares(&key, kv.mod_revision, Vec::new()),
                success: puts(&key, &value, kv.lease, Vec::new()),
                failure: Vec::new(),
            };
            if self.store_txn(txn).await? {
                return Ok(());
            }
        }
        Err(Status::modified(resource.group, resource.plural, name))
    }
}

enum Step {
    Done(Written),
    /// Another write came first; the object as it is now, if the store told.
    Again(Option<KeyValue>),
}

/// What an update cannot change, whatever it sends (`rest.BeforeUpdate`).
fn keep_system_fields(new: &mut Value, old: &Value) {
    let generation = meta::generation(old);
    meta::set_generation(new, generation);
    if meta::uid(new).is_empty() {
        meta::set_uid(new, meta::uid(old));
    }
    meta::set_creation_timestamp(new, meta::creation_timestamp(old));
    if meta::is_deleting(old) {
        meta::set_deletion_timestamp(new, meta::deletion_timestamp(old));
    }
    if meta::deletion_grace_period_seconds(new).is_none() {
        meta::set_deletion_grace_period_seconds(new, meta::deletion_grace_period_seconds(old));
    }
}

fn is_taken(status: &Status) -> bool {
    status.reason == Reason::AlreadyExists
}

fn exhausted(mut status: Status) -> Status {
    status
        .message
        .push_str(", the server was not able to generate a unique name for the object");
    status
}

/// A range of one key.
pub fn read_one(key: &Bytes) -> RangeRequest {
    RangeRequest {
        key: key.clone(),
        ..RangeRequest::default()
    }
}

/// The key is at `revision` (0: absent), and the companions' conditions hold.
pub fn compares(key: &Bytes, revision: i64, mut more: Vec<Compare>) -> Vec<Compare> {
    more.insert(
        0,
        Compare::ModRevision(key.clone(), CompareOp::Equal, revision),
    );
    more
}

pub fn puts(key: &Bytes, value: &Bytes, lease: i64, mut more: Vec<Op>) -> Vec<Op> {
    more.insert(
        0,
        Op::Put {
            key: key.clone(),
            value: value.clone(),
            lease,
        },
    );
    more
}

/// Deletes the key and does what goes with it.
pub fn deletes(key: &Bytes, mut more: Vec<Op>) -> Vec<Op> {
    more.insert(
        0,
        Op::Delete {
            key: key.clone(),
            range_end: None,
            prev_kv: true,
        },
    );
    more
}

/// The object a failed transaction read.
pub fn found(responses: &[OpResponse]) -> Option<KeyValue> {
    responses.iter().find_map(|response| match response {
        OpResponse::Range(range) => range.kvs.first().cloned(),
        _ => None,
    })
}
