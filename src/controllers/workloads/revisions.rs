//! ControllerRevisions: the templates a DaemonSet or StatefulSet has had.

use std::sync::Arc;

use api::{
    r::CONTROLLERREVISIONS,
    view::{ObjectMeta, OwnerReference},
};
use apimachinery::Value;
use client::{Client, ClientError, DeleteOptions, Informer, Patch, WriteOptions};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ledger::Ledger;

/// Label of pods (and revisions) that tells which template they are of.
pub const HASH: &str = "controller-revision-hash";
/// Index of revisions by the uid of their owner.
const BY_OWNER: &str = "owner";
/// Revisions that are kept if `revisionHistoryLimit` is absent.
const DEFAULT_LIMIT: i64 = 10;

/// apps/v1 ControllerRevision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerRevision {
    pub metadata: ObjectMeta,
    pub data: Value,
    pub revision: i64,
}

impl ControllerRevision {
    /// The value of `HASH` for pods of this revision.
    pub fn hash(&self) -> &str {
        self.metadata.labels.get(HASH).map_or("", String::as_str)
    }
}

/// The index value of `BY_OWNER`.
fn by_owner(revision: &ControllerRevision) -> Vec<String> {
    let owner = revision.metadata.controller();
    owner.map(|owner| owner.uid.clone()).into_iter().collect()
}

/// The data of a template's revision: a patch that puts the template back.
pub fn data(template: &Value) -> Value {
    let mut template = template.clone();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The revision of a template.
pub enum Current {
    Is(Arc<ControllerRevision>),
    /// Another template has its name.
    Collides,
}

/// What reads and writes the revisions of one kind of controller.
pub struct Revisions {
    client: Client,
    informer: Informer<ControllerRevision>,
    ledger: Ledger,
}

impl Revisions {
    pub fn new(client: Client, informer: Informer<ControllerRevision>) -> Self {
        informer.add_index(BY_OWNER, by_owner);
        Self {
            client,
            informer,
            ledger: Ledger::default(),
        }
    }

    /// Whether the cache shows all that was written for the owner with this key.
    pub fn is_seen(&self, key: &str) -> bool {
        self.ledger.is_seen(key, &self.informer)
    }

    /// The owner with this key is gone.
    pub fn forget(&self, key: &str) {
        self.ledger.forget(key);
    }

    /// The owner's revisions, the oldest first.
    pub fn of(&self, owner: &ObjectMeta) -> Vec<Arc<ControllerRevision>> {
        let mut all = self.informer.by_index(BY_OWNER, &owner.uid);
        all.sort_by_key(|one| (one.revision, one.metadata.name.clone()));
        all
    }

    /// The revision of the present template: found, put on top, or made.
    pub async fn current(
        &self,
        owner: &ObjectMeta,
        reference: OwnerReference,
        template: &Value,
        collisions: Option<i64>,
    ) -> Result<Current, ClientError> {
        let data = data(template);
        let all = self.of(owner);
        let newest = all.last().map_or(0, |one| one.revision);
        let options = WriteOptions::default();
        if let Some(found) = all.iter().rev().find(|one| one.data == data) {
            if found.revision == newest {
                return Ok(Current::Is(found.clone()));
            }
            let meta = &found.metadata;
            let patch = Patch::Merge(json!({"revision": newest + 1}));
            let stored: ControllerRevision = self
                .client
                .patch(
                    &CONTROLLERREVISIONS,
                    &meta.namespace,
                    &meta.name,
                    "",
                    &patch,
                    &options,
                )
                .await?;
            self.ledger
                .wrote(&owner.key(), &stored.metadata.resource_version);
            return Ok(Current::Is(Arc::new(stored)));
        }
        let hash = super::hash(&data, collisions);
        let mut labels = template["metadata"]["labels"].clone();
        if !labels.is_object() {
            labels = json!({});
        }
        labels[HASH] = json!(hash);
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": {
                "name": format!("{}-{hash}", owner.name), "namespace": owner.namespace,
                "labels": labels, "ownerReferences": [reference],
            },
            "data": data, "revision": newest + 1,
        });
        let created = self
            .client
            .create::<_, ControllerRevision>(
                &CONTROLLERREVISIONS,
                &owner.namespace,
                &revision,
                &options,
            )
            .await;
        let stored = match created {
            Ok(stored) => stored,
            Err(error) if error.is_already_exists() => match self.adopt(owner, &revision).await? {
                Some(adopted) => adopted,
                None => return Ok(Current::Collides),
            },
            Err(error) => return Err(error),
        };
        self.ledger
            .wrote(&owner.key(), &stored.metadata.resource_version);
        Ok(Current::Is(Arc::new(stored)))
    }

    /// Takes over the revision that has the wanted one's name, if it is of the same template and nobody else's.
    async fn adopt(
        &self,
        owner: &ObjectMeta,
        wanted: &Value,
    ) -> Result<Option<ControllerRevision>, ClientError> {
        let name = apimachinery::meta::name(wanted);
        let found: ControllerRevision = self
            .client
            .get(&CONTROLLERREVISIONS, &owner.namespace, name)
            .await?;
        if found.data != wanted["data"] {
            return Ok(None);
        }
        match found.metadata.controller() {
            Some(other) if other.uid == owner.uid => return Ok(Some(found)),
            Some(_) => return Ok(None),
            None => {}
        }
        let patch = Patch::Merge(json!({
            "metadata": {
                "uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version,
                "ownerReferences": wanted["metadata"]["ownerReferences"],
            },
            "revision": wanted["revision"],
        }));
        let options = WriteOptions::default();
        self.client
            .patch(
                &CONTROLLERREVISIONS,
                &owner.namespace,
                name,
                "",
                &patch,
                &options,
            )
            .await
            .map(Some)
    }

    /// Deletes the oldest revisions beyond the limit, but none that is `in_use`.
    pub async fn clean_up(
        &self,
        owner: &ObjectMeta,
        limit: Option<i64>,
        in_use: impl Fn(&ControllerRevision) -> bool,
    ) -> Result<(), ClientError> {
        let unused: Vec<_> = self
            .of(owner)
            .into_iter()
            .filter(|one| !in_use(one))
            .collect();
        let limit = usize::try_from(limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(0);
        let surplus = unused.len().saturating_sub(limit);
        for revision in unused.into_iter().take(surplus) {
            let meta = &revision.metadata;
            let options = DeleteOptions::uid(&meta.uid);
            match self
                .client
                .delete(&CONTROLLERREVISIONS, &meta.namespace, &meta.name, &options)
                .await
            {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
