//! DELETE: preconditions, grace, finalizers and what becomes of dependents; one object or a collection.
//!
//! An object goes at once when nothing holds it; otherwise it is marked with a deletionTimestamp and goes when the last
//! finalizer or its grace does (`registry/rest/delete.go`, `registry/generic/registry/store.go`).

use std::sync::Arc;

use apimachinery::status::Details;
use apimachinery::{Status, Value, meta, time};
use bytes::Bytes;
use futures::StreamExt;
use http::{Response, StatusCode};
use store::{KeyValue, Op, Txn};

use super::dispatch::Call;
use super::list::Listing;
use super::options::{DeleteOptions, ListOptions, Policy};
use super::output::{self, Format};
use super::strategy::{Change, Grace, Propagation};
use super::write::{compares, deletes, found, read_one};
use super::{Registry, codec, errors};
use crate::admission::{self, Attributes, Operation};
use crate::body::Body;
use crate::cache::Entry;

/// Tries before a delete gives up against other writers.
const MAX_TRIES: usize = 64;
/// Objects of a collection deleted at once (`DeleteCollectionWorkers` is 1 upstream; ours wait for the same disk).
const WORKERS: usize = 16;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// How a delete ended.
struct Deleted {
    entry: Arc<Entry>,
    /// The object's resourceVersion in the answer.
    revision: i64,
    gone: bool,
}

/// DELETE of one object.
pub async fn one(call: &Call<'_>, body: &Bytes) -> Result<Response<Body>, Status> {
    let options = call.delete_options(body)?;
    let format = call.format()?;
    let deleted = delete(call, call.name(), &options).await?;
    let code = match options.policy {
        Some(Policy::Foreground) if !deleted.gone => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    if !deleted.gone || call.kind.strategy.returns_deleted() {
        return format.object(code, &deleted.entry, deleted.revision);
    }
    let object = codec::entry_value(&deleted.entry)?;
    let status = Status::success(Some(Details {
        name: meta::name(&object).to_owned(),
        group: call.kind.storage.group.to_owned(),
        kind: call.kind.storage.plural.to_owned(),
        uid: meta::uid(&object).to_owned(),
        ..Details::default()
    }));
    output::value(
        code,
        &status.to_value(),
        api::message_for("", "v1", "Status"),
        call.headers,
        &call.context.info.query,
    )
}

/// DELETE of a collection: everything that matches, as a list.
pub async fn collection(call: &Call<'_>, body: &Bytes) -> Result<Response<Body>, Status> {
    let options = call.delete_options(body)?;
    let list_options = ListOptions::parse(&call.context.info.query, false)?;
    let format: Format = call.format()?;
    let listing = call
        .registry
        .list(call.kind, call.resource, call.namespace(), &list_options)
        .await?;
    let Listing {
        entries,
        revision,
        next,
        remaining,
    } = listing;
    let options = &options;
    let jobs = entries.clone().into_iter().map(|entry| {
        async move {
            match delete_in(call, entry.namespace(), entry.name(), options).await {
                Ok(_) => Ok(()),
                // Somebody else was faster.
                Err(status) if status.code == 404 => Ok(()),
                Err(status) => Err(status),
            }
        }
    });
    let results: Vec<Result<(), Status>> = futures::stream::iter(jobs)
        .buffer_unordered(WORKERS)
        .collect()
        .await;
    results.into_iter().collect::<Result<(), Status>>()?;
    format.list(Listing {
        entries,
        revision,
        next,
        remaining,
    })
}

async fn delete(call: &Call<'_>, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
    delete_in(call, call.namespace(), name, options).await
}

async fn delete_in(
    call: &Call<'_>,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted, Status> {
    Deletion {
        call,
        namespace,
        name,
        options,
    }
    .run()
    .await
}

impl Registry {
    /// Deletes an object of a kind's own accord (eviction deletes a pod).
    pub(crate) async fn delete(
        &self,
        change: &Change<'_>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Status> {
        let kind = self
            .kind(change.resource.group, change.resource.plural)
            .ok_or_else(Status::path_not_found)?;
        let headers = http::HeaderMap::new();
        let call = Call {
            registry: self,
            context: change.request,
            kind: &kind,
            resource: change.resource,
            headers: &headers,
        };
        delete_in(&call, change.namespace, name, options).await?;
        Ok(())
    }
}

struct Deletion<'a> {
    call: &'a Call<'a>,
    namespace: &'a str,
    name: &'a str,
    options: &'a DeleteOptions,
}

/// What is to be done with an object.
enum Plan {
    /// It goes now.
    Remove,
    /// It is marked: the object as it is stored until then.
    Mark(Value),
    /// It is on its way already.
    Wait,
}

impl Deletion<'_> {
    async fn run(&self) -> Result<Deleted, Status> {
        let kind = self.call.kind;
        let key = kind.key(self.namespace, self.name);
        let mut known: Option<KeyValue> = None;
        for _ in 0..MAX_TRIES {
            let kv = match known.take() {
                Some(kv) => kv,
                None => {
                    let response = self
                        .call
                        .registry
                        .store
                        .range(read_one(&key))
                        .await
                        .map_err(errors::store)?;
                    let first = response.kvs.into_iter().next();
                    first.ok_or_else(|| kind.not_found(self.name))?
                }
            };
            match self.attempt(&kv).await? {
                Ok(deleted) => return Ok(deleted),
                Err(newer) => known = newer,
            }
        }
        Err(Status::modified(
            kind.storage.group,
            kind.storage.plural,
            self.name,
        ))
    }

    fn change(&self) -> Change<'_> {
        Change {
            registry: self.call.registry,
            request: self.call.context,
            resource: self.call.kind.storage,
            subresource: "",
            namespace: self.namespace,
            dry_run: self.options.dry_run,
        }
    }

    /// `Ok(Err(…))`: another write came first; the object as the store has it now.
    async fn attempt(&self, kv: &KeyValue) -> Result<Result<Deleted, Option<KeyValue>>, Status> {
        let kind = self.call.kind;
        let registry = self.call.registry;
        let entry = Entry::new(kind.shape(), kv).map_err(|error| errors::read(error.into()))?;
        let old = codec::entry_value(&entry)?;
        self.check_preconditions(&old)?;
        let attributes = Attributes {
            registry,
            request: self.call.context,
            resource: kind.storage,
            subresource: "",
            operation: Operation::Delete,
            namespace: self.namespace,
            name: self.name,
            old: Some(&old),
            dry_run: self.options.dry_run,
            reinvocation: Default::default(),
        };
        admission::validate(&attributes, None).await?;
        let change = self.change();
        kind.strategy.validate_delete(&change, &old)?;
        let here = |gone: bool| Deleted {
            revision: entry.revision(),
            entry: Arc::new(Entry::new(kind.shape(), kv).expect("made once already")),
            gone,
        };
        let (success, value) = match self.plan(&old) {
            Plan::Wait => return Ok(Ok(here(false))),
            Plan::Remove => {
                let mut more = Vec::new();
                if kind.strategy.has_companions() {
                    more = kind
                        .strategy
                        .companions(&change, None, Some(&old))
                        .await?
                        .ops;
                }
                (deletes(entry.key(), more), None)
            }
            Plan::Mark(object) => {
                let value = codec::encode_object(&object, true);
                let put = Op::Put {
                    key: entry.key().clone(),
                    value: value.clone(),
                    lease: kv.lease,
                };
                (vec![put], Some(value))
            }
        };
        if self.options.dry_run {
            return Ok(Ok(here(value.is_none())));
        }
        let txn = Txn {
            compare: compares(entry.key(), kv.mod_revision, Vec::new()),
            success,
            failure: vec![Op::Range(read_one(entry.key()))],
        };
        let response = registry.store.txn(txn).await.map_err(errors::store)?;
        if !response.succeeded {
            return match found(&response.responses) {
                Some(newer) => Ok(Err(Some(newer))),
                None => Err(kind.not_found(self.name)),
            };
        }
        Ok(Ok(match value {
            None => here(true),
            Some(value) => Deleted {
                entry: codec::written_entry(
                    kind.shape(),
                    entry.key().clone(),
                    value,
                    response.revision,
                    kv.lease,
                )?,
                revision: response.revision,
                gone: false,
            },
        }))
    }

    fn check_preconditions(&self, old: &Value) -> Result<(), Status> {
        let resource = self.call.kind.storage;
        let conflict = |why: String| {
            Err(Status::conflict(
                resource.group,
                resource.kind,
                self.name,
                &why,
            ))
        };
        if let Some(uid) = &self.options.uid
            && uid != meta::uid(old)
        {
            return conflict(format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                meta::uid(old)
            ));
        }
        if let Some(version) = &self.options.resource_version
            && version != meta::resource_version(old)
        {
            return conflict(format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
                meta::resource_version(old)
            ));
        }
        Ok(())
    }

    fn plan(&self, old: &Value) -> Plan {
        let strategy = self.call.kind.strategy;
        let mut object = old.clone();
        let grace = strategy.grace(old, self.options.grace_period_seconds);
        if let Grace::Seconds(seconds) = grace
            && meta::is_deleting(old)
            && let Some(left) = meta::deletion_grace_period_seconds(old)
        {
            return self.plan_sooner(object, left, seconds);
        }
        self.set_finalizers(&mut object);
        let held = meta::finalizers(&object).next().is_some() || !strategy.may_vanish(&object);
        let seconds = match grace {
            Grace::None => 0,
            Grace::Seconds(seconds) => seconds,
        };
        if seconds == 0 && !held {
            return Plan::Remove;
        }
        if !meta::is_deleting(old) {
            mark(&mut object, seconds);
            strategy.begin_delete(&mut object);
        }
        if object == *old {
            Plan::Wait
        } else {
            Plan::Mark(object)
        }
    }

    /// A graceful deletion under way may only be shortened.
    fn plan_sooner(&self, mut object: Value, left: i64, seconds: i64) -> Plan {
        if self.options.grace_period_seconds.is_none() || seconds >= left {
            return Plan::Wait;
        }
        let strategy = self.call.kind.strategy;
        let held = meta::finalizers(&object).next().is_some() || !strategy.may_vanish(&object);
        if seconds == 0 && !held {
            return Plan::Remove;
        }
        shorten(&mut object, left, seconds);
        Plan::Mark(object)
    }

    /// `deletionFinalizersForGarbageCollection`: the policy of the request, or of an earlier one, or of the kind.
    fn set_finalizers(&self, object: &mut Value) {
        let has = |name: &str| meta::finalizers(object).any(|finalizer| finalizer == name);
        let wanted = match self.options.policy {
            Some(Policy::Orphan) => Some(ORPHAN),
            Some(Policy::Foreground) => Some(FOREGROUND),
            Some(Policy::Background) => None,
            None if has(ORPHAN) => Some(ORPHAN),
            None if has(FOREGROUND) => Some(FOREGROUND),
            None if self.call.kind.strategy.propagation() == Propagation::Orphan => Some(ORPHAN),
            None => None,
        };
        let mut list: Vec<String> = meta::finalizers(object)
            .filter(|finalizer| !matches!(*finalizer, ORPHAN | FOREGROUND))
            .map(str::to_owned)
            .collect();
        list.extend(wanted.map(str::to_owned));
        if list.len() != meta::finalizers(object).count() || wanted.is_some_and(|name| !has(name)) {
            meta::set_finalizers(object, list);
        }
    }
}

fn bump(object: &mut Value) {
    let generation = meta::generation(object);
    if generation > 0 {
        meta::set_generation(object, generation + 1);
    }
}

fn mark(object: &mut Value, grace: i64) {
    let when = time::now() + std::time::Duration::from_secs(grace as u64);
    meta::set_deletion_timestamp(object, Some(&time::format(when)));
    meta::set_deletion_grace_period_seconds(object, Some(grace));
    bump(object);
}

fn shorten(object: &mut Value, left: i64, grace: i64) {
    let when = meta::deletion_timestamp(object).and_then(time::parse);
    if let Some(when) = when {
        let sooner = when - std::time::Duration::from_secs((left - grace) as u64);
        meta::set_deletion_timestamp(object, Some(&time::format(sooner)));
    }
    meta::set_deletion_grace_period_seconds(object, Some(grace));
    bump(object);
}
