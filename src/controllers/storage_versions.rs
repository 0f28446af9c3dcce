//! storage-version-migrator-controller: writes every object of a resource anew, unchanged, so that it is stored as the
//! server stores it now (KEP-4192).
//!
//! A migration that is interrupted begins anew: what it has written already is written again, which does no harm.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::{r::STORAGEVERSIONMIGRATIONS, view::ObjectMeta};
use apimachinery::{Value, meta::join_group_version, time::now_text};
use async_trait::async_trait;
use client::{
    ClientError, Informer, ListOptions, Patch, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;

use crate::{
    Context, Controller,
    context::{LAG_RETRY, synced},
    discovery::{self, Served},
    dynamic,
    objects::{Condition, Metadata, condition},
    writes::modify_status,
};

const MANAGER: &str = "storage-version-migrator-controller";
/// Objects listed at a time.
const PAGE: usize = 500;
/// A resource may be about to be served: it is looked for this often, and this many times.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
const LOOKS: u32 = 6;

pub struct StorageVersions;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Migration {
    metadata: ObjectMeta,
    spec: MigrationSpec,
    status: MigrationStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct MigrationSpec {
    resource: GroupResource,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct GroupResource {
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MigrationStatus {
    conditions: Vec<Condition>,
    resource_version: String,
}

impl Migration {
    fn has(&self, kind: &str) -> bool {
        condition(&self.status.conditions, kind).is_some_and(|one| one.status == "True")
    }
}

/// Why a migration ended before its end.
#[derive(Debug, thiserror::Error)]
enum Ended {
    /// It can never succeed.
    #[error("{0}")]
    ForGood(String),
    #[error(transparent)]
    Client(#[from] ClientError),
}

#[async_trait]
impl Controller for StorageVersions {
    fn name(&self) -> &'static str {
        MANAGER
    }

    async fn run(&self, context: Context) {
        let migrations: Informer<Migration> =
            context
                .informers
                .informer(&STORAGEVERSIONMIGRATIONS, "", Selectors::default());
        if !synced!(context, migrations) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        migrations.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        let migrator = Migrator {
            context: context.clone(),
            migrations,
            looks: Mutex::default(),
            written: Mutex::default(),
        };
        // One at a time: each is as much work for the server as all its objects are.
        let name = "storage-version-migrator";
        workqueue::run(name, &queue, 1, &context.shutdown, |name| {
            let migrator = &migrator;
            async move { migrator.reconcile(&name).await }
        })
        .await;
    }
}

struct Migrator {
    context: Context,
    migrations: Informer<Migration>,
    /// How often the resource of a migration was looked for. Those that have ended leave it.
    looks: Mutex<HashMap<String, u32>>,
    /// The version each migration was written as last: what the cache has from before it is no ground to begin anew.
    written: Mutex<HashMap<String, String>>,
}

impl Migrator {
    async fn reconcile(&self, name: &str) -> Result<Requeue, ClientError> {
        let last = self.written.lock().get(name).cloned();
        if last.is_some_and(|last| !self.migrations.has_seen(&last)) {
            return Ok(Requeue::After(LAG_RETRY));
        }
        let migration = self.migrations.get(name);
        let open = |one: &Arc<Migration>| {
            !one.metadata.is_deleting() && !one.has("Succeeded") && !one.has("Failed")
        };
        let Some(migration) = migration.filter(open) else {
            self.looks.lock().remove(name);
            self.written.lock().remove(name);
            return Ok(Requeue::No);
        };
        let Some(served) = find(&self.context, &migration.spec.resource).await? else {
            if self.looked(name) < LOOKS {
                return Ok(Requeue::After(LOOK_AGAIN));
            }
            let GroupResource { group, resource } = &migration.spec.resource;
            let named = match group.as_str() {
                "" => resource.clone(),
                group => format!("{resource}.{group}"),
            };
            let why = format!("resource {named} does not exist or cannot be listed and patched");
            return self.end(&migration, "Failed", &why).await;
        };
        match self.migrate(&migration, &served).await {
            Ok(()) => self.end(&migration, "Succeeded", "").await,
            Err(Ended::ForGood(why)) => self.end(&migration, "Failed", &why).await,
            Err(Ended::Client(error)) => Err(error),
        }
    }

    fn looked(&self, name: &str) -> u32 {
        let mut looks = self.looks.lock();
        let count = looks.entry(name.to_string()).or_default();
        *count += 1;
        *count
    }

    /// Says how it ended, `Succeeded` or `Failed`.
    async fn end(
        &self,
        migration: &Migration,
        how: &str,
        message: &str,
    ) -> Result<Requeue, ClientError> {
        let reason = format!("StorageVersionMigration{how}");
        let told = [
            ("Running", "False", reason.as_str(), message),
            (how, "True", reason.as_str(), message),
        ];
        self.set(migration, &told, None).await?;
        Ok(Requeue::No)
    }

    /// Puts conditions into the status, and the version if there is one.
    async fn set(
        &self,
        migration: &Migration,
        told: &[Told<'_>],
        version: Option<&str>,
    ) -> Result<(), ClientError> {
        let of = &migration.metadata;
        let change = |object: &mut Value| tell(object, told, version, of.generation);
        let client = &self.context.client;
        let written = modify_status(client, &STORAGEVERSIONMIGRATIONS, of, change).await?;
        if let Some(written) = written {
            self.written.lock().insert(of.name.clone(), written);
        }
        Ok(())
    }

    /// Writes all objects anew that are as old as the migration.
    async fn migrate(&self, migration: &Migration, served: &Served) -> Result<(), Ended> {
        let resource = dynamic::resource(served)
            .ok_or_else(|| Ended::ForGood("there are too many kinds to migrate this one".into()))?;
        let client = self.context.client.metadata_only();
        let mut options = ListOptions {
            limit: PAGE,
            ..ListOptions::default()
        };
        let mut until = migration.status.resource_version.clone();
        loop {
            let page = match client.list::<Metadata>(resource, "", &options).await {
                // What changed meanwhile is stored anew already, what did not is listed again.
                Err(error) if error.is_gone() && !options.continue_token.is_empty() => {
                    options.continue_token.clear();
                    continue;
                }
                page => page?,
            };
            if until.is_empty() {
                until.clone_from(&page.metadata.resource_version);
                let running = ("Running", "True", "StorageVersionMigrationInProgress", "");
                self.set(migration, &[running], Some(&until)).await?;
            }
            for object in &page.items {
                if is_older(&object.metadata.resource_version, &until) {
                    rewrite(&self.context, resource, served, &object.metadata).await?;
                }
            }
            options
                .continue_token
                .clone_from(&page.metadata.continue_token);
            if options.continue_token.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Type, status, reason, message.
type Told<'a> = (&'a str, &'a str, &'a str, &'a str);

fn tell(object: &mut Value, told: &[Told<'_>], version: Option<&str>, generation: i64) {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.cloned().unwrap_or_default();
    for (kind, status, reason, message) in told {
        let old = conditions.iter().position(|one| one["type"] == *kind);
        let same = old
            .map(|at| &conditions[at])
            .filter(|old| old["status"] == *status);
        let since = same.map_or_else(
            || json!(now_text()),
            |old| old["lastTransitionTime"].clone(),
        );
        let new = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since, "observedGeneration": generation,
        });
        match old {
            Some(at) => conditions[at] = new,
            None => conditions.push(new),
        }
    }
    object["status"]["conditions"] = json!(conditions);
    let has_version = object["status"]["resourceVersion"]
        .as_str()
        .is_some_and(|version| !version.is_empty());
    if let Some(version) = version {
        object["status"]["resourceVersion"] = json!(version);
    } else if !has_version && object["metadata"]["resourceVersion"].is_string() {
        // No status is taken without a version. One that failed before it had any gets that of the migration itself.
        object["status"]["resourceVersion"] = object["metadata"]["resourceVersion"].clone();
    }
}

async fn find(context: &Context, wanted: &GroupResource) -> Result<Option<Served>, ClientError> {
    let (all, _) = discovery::preferred(&context.client).await?;
    Ok(all.into_iter().find(|one| {
        one.group == wanted.group
            && one.resource == wanted.resource
            && one.has("list")
            && one.has("patch")
    }))
}

/// Whether a version is no later than another; versions that are no numbers cannot be told apart.
fn is_older(version: &str, until: &str) -> bool {
    match (version.parse::<u64>(), until.parse::<u64>()) {
        (Ok(version), Ok(until)) => version <= until,
        _ => true,
    }
}

/// Applies nothing to the object as of this version. One that has changed since, or is gone, needs it no more.
async fn rewrite(
    context: &Context,
    resource: &'static api::Resource,
    served: &Served,
    of: &ObjectMeta,
) -> Result<(), Ended> {
    let mut metadata =
        json!({"name": of.name, "uid": of.uid, "resourceVersion": of.resource_version});
    if !of.namespace.is_empty() {
        metadata["namespace"] = json!(of.namespace);
    }
    let patch = Patch::Apply(json!({
        "apiVersion": join_group_version(&served.group, &served.version), "kind": served.kind, "metadata": metadata,
    }));
    let options = WriteOptions {
        field_manager: MANAGER.into(),
        ..WriteOptions::default()
    };
    let client = &context.client;
    match client
        .patch::<Value>(resource, &of.namespace, &of.name, "", &patch, &options)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) if error.is_invalid() || error.is_forbidden() => Err(Ended::ForGood(format!(
            "cannot migrate {}: {error}",
            of.key()
        ))),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{seconds, start};
    use api::r::CONFIGMAPS;
    use client::fake::Server;

    fn serve(server: &Server) {
        server.set_discovery("/api", json!({"items": [{"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": [
            {"resource": "configmaps", "responseKind": {"kind": "ConfigMap"}, "scope": "Namespaced", "verbs": ["list", "patch"]}]}]}]}));
        server.set_discovery("/apis", json!({"items": []}));
    }

    fn ask(server: &Server, resource: &str) {
        server.put(&STORAGEVERSIONMIGRATIONS, json!({"metadata": {"name": "m", "uid": "m"}, "spec": {"resource": {"group": "", "resource": resource}}}));
    }

    fn conditions(server: &Server) -> Vec<String> {
        let migration = server.get(&STORAGEVERSIONMIGRATIONS, "m").unwrap();
        let all = migration["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.iter()
            .map(|one| {
                format!(
                    "{}={}",
                    one["type"].as_str().unwrap(),
                    one["status"].as_str().unwrap()
                )
            })
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn every_object_is_written_once_at_the_version_it_was_found_at() {
        let server = Server::default();
        serve(&server);
        for name in ["a", "b"] {
            server.put(
                &CONFIGMAPS,
                json!({"metadata": {"name": name, "namespace": "n", "uid": name}}),
            );
        }
        let _guard = start(&server, &[MANAGER]);
        ask(&server, "configmaps");
        seconds(5).await;
        assert_eq!(conditions(&server), ["Running=False", "Succeeded=True"]);
        let writes = server.requests_of("PATCH", "/configmaps");
        assert_eq!(writes.len(), 2);
        assert!(
            server.get(&STORAGEVERSIONMIGRATIONS, "m").unwrap()["status"]["resourceVersion"]
                .is_string()
        );
        // Done once, it is not begun again.
        server.break_watches();
        seconds(60).await;
        assert_eq!(server.requests_of("PATCH", "/configmaps").len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resource_that_nobody_serves_fails_after_a_while() {
        let server = Server::default();
        serve(&server);
        let _guard = start(&server, &[MANAGER]);
        ask(&server, "nonsense");
        seconds(30).await;
        assert!(conditions(&server).is_empty());
        seconds(60).await;
        assert_eq!(conditions(&server), ["Running=False", "Failed=True"]);
        let migration = server.get(&STORAGEVERSIONMIGRATIONS, "m").unwrap();
        assert!(migration["status"]["resourceVersion"].is_string());
    }
}
