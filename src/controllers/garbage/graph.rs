//! Who owns whom, and what follows for one object. Pure.

use std::collections::{BTreeSet, HashMap};

use api::view::{ObjectMeta, OwnerReference};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// An object as far as ownership goes.
#[derive(Clone, Debug)]
pub struct Object {
    pub resource: &'static api::Resource,
    pub meta: ObjectMeta,
}

impl Object {
    fn has(&self, finalizer: &str) -> bool {
        self.meta.finalizers.iter().any(|one| one == finalizer)
    }

    /// Being deleted, and waiting for its dependents.
    fn waits(&self) -> bool {
        self.meta.is_deleting() && self.has(FOREGROUND)
    }
}

/// Objects by uid. Every object is here, with or without owners.
#[derive(Default)]
pub struct Graph {
    objects: HashMap<String, Object>,
    dependents: HashMap<String, BTreeSet<String>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Delete the object; `foreground` lets its own dependents go first.
    Delete {
        foreground: bool,
    },
    /// Let none of its owners wait for the object.
    Unblock,
    /// Take these owners (uids) off the object.
    RemoveOwners(Vec<String>),
    /// Take this owner off a dependent (uid).
    Release {
        dependent: String,
        owner: String,
    },
    RemoveFinalizer(&'static str),
}

impl Graph {
    /// The objects that have an owner of this kind.
    pub fn owned_by(&self, group: &str, kind: &str) -> Vec<String> {
        let is_owner = |owner: &OwnerReference| {
            owner.kind == kind && apimachinery::meta::group_version(&owner.api_version).0 == group
        };
        let owned = self
            .objects
            .iter()
            .filter(|(_, object)| object.meta.owner_references.iter().any(is_owner));
        owned.map(|(uid, _)| uid.clone()).collect()
    }

    pub fn get(&self, uid: &str) -> Option<&Object> {
        self.objects.get(uid)
    }

    /// Takes an object's new state; the uids to look at.
    pub fn set(&mut self, object: Object) -> Vec<String> {
        let uid = object.meta.uid.clone();
        let old = self.objects.insert(uid.clone(), object);
        let owners = |object: &Object| -> BTreeSet<String> {
            object
                .meta
                .owner_references
                .iter()
                .map(|owner| owner.uid.clone())
                .collect()
        };
        let object = &self.objects[&uid];
        let (before, after) = (old.as_ref().map(owners).unwrap_or_default(), owners(object));
        let mut look: Vec<String> = before.difference(&after).cloned().collect();
        for owner in &look {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(&uid);
            }
        }
        // An owner that waits for it no more may go.
        let blocked = |object: &Object, owner: &String| {
            let mut owners = object.meta.owner_references.iter();
            owners.any(|one| one.uid == *owner && one.block_owner_deletion == Some(true))
        };
        if let Some(old) = &old {
            let unblocked = after
                .iter()
                .filter(|owner| blocked(old, owner) && !blocked(object, owner));
            look.extend(unblocked.cloned());
        }
        for owner in after {
            self.dependents
                .entry(owner)
                .or_default()
                .insert(uid.clone());
        }
        let began_waiting = object.waits() && !old.is_some_and(|old| old.waits());
        if began_waiting {
            look.extend(self.dependents(&uid));
        }
        if object.meta.is_deleting() || !object.meta.owner_references.is_empty() {
            look.push(uid);
        }
        look
    }

    /// Forgets an object; the uids to look at.
    pub fn remove(&mut self, uid: &str) -> Vec<String> {
        let mut look = self.dependents(uid);
        if let Some(object) = self.objects.remove(uid) {
            for owner in object.meta.owner_references {
                if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                    dependents.remove(uid);
                    if dependents.is_empty() {
                        self.dependents.remove(&owner.uid);
                    }
                }
                look.push(owner.uid);
            }
        }
        look
    }

    fn dependents(&self, uid: &str) -> Vec<String> {
        self.dependents
            .get(uid)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// The owners of an object that are not here, so that the server must be asked about them.
    pub fn unknown_owners(&self, uid: &str) -> Vec<OwnerReference> {
        let owners = self
            .objects
            .get(uid)
            .into_iter()
            .flat_map(|object| &object.meta.owner_references);
        owners
            .filter(|owner| !self.is_here(uid, owner))
            .cloned()
            .collect()
    }

    /// The owners of an object that are here, but in another namespace than it.
    pub fn misplaced(&self, uid: &str) -> Vec<OwnerReference> {
        let Some(object) = self.objects.get(uid) else {
            return Vec::new();
        };
        let is_misplaced = |owner: &&OwnerReference| {
            let namespace = self
                .objects
                .get(&owner.uid)
                .map_or("", |found| &found.meta.namespace);
            !namespace.is_empty() && namespace != object.meta.namespace
        };
        let owners = object.meta.owner_references.iter();
        owners.filter(is_misplaced).cloned().collect()
    }

    /// Whether the owner is known, where the dependent may have it: in its namespace, or in none.
    fn is_here(&self, dependent: &str, owner: &OwnerReference) -> bool {
        let Some(found) = self.objects.get(&owner.uid) else {
            return false;
        };
        let namespace = self
            .objects
            .get(dependent)
            .map_or("", |object| &object.meta.namespace);
        found.meta.name == owner.name
            && (found.meta.namespace.is_empty() || found.meta.namespace == namespace)
    }

    /// What to do about an object, given which of its unknown owners do exist.
    pub fn plan(&self, uid: &str, exists: impl Fn(&OwnerReference) -> bool) -> Vec<Action> {
        let Some(object) = self.objects.get(uid) else {
            return Vec::new();
        };
        if object.meta.is_deleting() {
            return self.plan_deleting(uid, object);
        }
        let owners = &object.meta.owner_references;
        if owners.is_empty() {
            return Vec::new();
        }
        let waits = |owner: &&OwnerReference| {
            self.is_here(uid, owner) && self.objects.get(&owner.uid).is_some_and(Object::waits)
        };
        let here = |owner: &&OwnerReference| self.is_here(uid, owner) || exists(owner);
        let (present, dangling): (Vec<&OwnerReference>, Vec<_>) = owners.iter().partition(here);
        let (waiting, solid): (Vec<&OwnerReference>, Vec<_>) = present.into_iter().partition(waits);
        if !solid.is_empty() {
            let gone: Vec<String> = dangling
                .iter()
                .chain(&waiting)
                .map(|owner| owner.uid.clone())
                .collect();
            return if gone.is_empty() {
                Vec::new()
            } else {
                vec![Action::RemoveOwners(gone)]
            };
        }
        let dependents = self.dependents(uid);
        let delete = Action::Delete {
            foreground: object.has(FOREGROUND) || (!waiting.is_empty() && !dependents.is_empty()),
        };
        // A dependent that waits, too, may be waiting for the owners: a circle, which ends here.
        let is_circle = !waiting.is_empty()
            && dependents
                .iter()
                .any(|one| self.objects.get(one).is_some_and(Object::waits))
            && owners
                .iter()
                .any(|owner| owner.block_owner_deletion == Some(true));
        if is_circle {
            // With its new version it is looked at again, and deleted.
            return vec![Action::Unblock];
        }
        vec![delete]
    }

    fn plan_deleting(&self, uid: &str, object: &Object) -> Vec<Action> {
        let dependents = self.dependents(uid);
        if object.has(ORPHAN) {
            let release = dependents.into_iter().map(|dependent| Action::Release {
                dependent,
                owner: uid.into(),
            });
            return release.chain([Action::RemoveFinalizer(ORPHAN)]).collect();
        }
        if !object.has(FOREGROUND) {
            return Vec::new();
        }
        let blocks = |dependent: &&String| {
            let owners = self
                .objects
                .get(*dependent)
                .map(|object| object.meta.owner_references.as_slice());
            let mut owners = owners.unwrap_or_default().iter();
            owners.any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
        };
        if dependents.iter().any(|dependent| blocks(&dependent)) {
            return Vec::new();
        }
        vec![Action::RemoveFinalizer(FOREGROUND)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::r::{PODS, REPLICASETS};

    fn owner(uid: &str) -> OwnerReference {
        OwnerReference {
            name: uid.into(),
            uid: uid.into(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        }
    }

    fn object(uid: &str, owners: &[&str], finalizers: &[&str], deleting: bool) -> Object {
        Object {
            resource: if owners.is_empty() {
                &REPLICASETS
            } else {
                &PODS
            },
            meta: ObjectMeta {
                name: uid.into(),
                namespace: "default".into(),
                uid: uid.into(),
                owner_references: owners.iter().map(|uid| owner(uid)).collect(),
                finalizers: finalizers.iter().map(ToString::to_string).collect(),
                deletion_timestamp: deleting.then(|| "2026-01-01T00:00:00Z".into()),
                ..ObjectMeta::default()
            },
        }
    }

    fn graph(objects: Vec<Object>) -> Graph {
        let mut graph = Graph::default();
        for object in objects {
            graph.set(object);
        }
        graph
    }

    #[test]
    fn an_object_without_any_of_its_owners_is_deleted() {
        let graph = graph(vec![
            object("rs", &[], &[], false),
            object("p", &["rs"], &[], false),
            object("q", &["x"], &[], false),
        ]);
        assert_eq!(graph.plan("p", |_| false), []);
        assert_eq!(
            graph.plan("q", |_| false),
            [Action::Delete { foreground: false }]
        );
        assert_eq!(graph.plan("q", |_| true), []);
        assert_eq!(graph.unknown_owners("q").len(), 1);
    }

    #[test]
    fn an_owner_that_is_gone_is_taken_off_if_another_is_left() {
        let graph = graph(vec![
            object("rs", &[], &[], false),
            object("p", &["rs", "x"], &[], false),
        ]);
        assert_eq!(
            graph.plan("p", |_| false),
            [Action::RemoveOwners(vec!["x".into()])]
        );
    }

    #[test]
    fn a_foreground_deletion_waits_for_its_dependents() {
        let mut graph = graph(vec![
            object("rs", &[], &[], false),
            object("p", &["rs"], &[], false),
        ]);
        let look = graph.set(object("rs", &[], &[FOREGROUND], true));
        assert_eq!(look, ["p", "rs"]);
        assert_eq!(graph.plan("rs", |_| false), []);
        assert_eq!(
            graph.plan("p", |_| false),
            [Action::Delete { foreground: false }]
        );
        assert_eq!(graph.remove("p"), ["rs"]);
        assert_eq!(
            graph.plan("rs", |_| false),
            [Action::RemoveFinalizer(FOREGROUND)]
        );
    }

    #[test]
    fn a_circle_of_owners_does_not_wait_for_itself() {
        let mut graph = graph(vec![
            object("p1", &["p3"], &[FOREGROUND], true),
            object("p2", &["p1"], &[], false),
            object("p3", &["p2"], &[], false),
        ]);
        let foreground = || Action::Delete { foreground: true };
        assert_eq!(graph.plan("p2", |_| false), [foreground()]);
        graph.set(object("p2", &["p1"], &[FOREGROUND], true));
        assert_eq!(graph.plan("p3", |_| false), [Action::Unblock]);
        let mut unblocked = object("p3", &["p2"], &[], false);
        unblocked.meta.owner_references[0].block_owner_deletion = Some(false);
        assert_eq!(graph.set(unblocked.clone()), ["p2", "p3"]);
        assert_eq!(graph.plan("p3", |_| false), [foreground()]);
        assert_eq!(
            graph.plan("p2", |_| false),
            [Action::RemoveFinalizer(FOREGROUND)]
        );
    }

    #[test]
    fn an_orphaning_deletion_releases_its_dependents() {
        let graph = graph(vec![
            object("rs", &[], &[ORPHAN], true),
            object("p", &["rs"], &[], false),
        ]);
        let release = Action::Release {
            dependent: "p".into(),
            owner: "rs".into(),
        };
        assert_eq!(
            graph.plan("rs", |_| false),
            [release, Action::RemoveFinalizer(ORPHAN)]
        );
    }

    #[test]
    fn an_owner_in_another_namespace_is_none() {
        let mut elsewhere = object("rs", &[], &[], false);
        elsewhere.meta.namespace = "other".into();
        let mut node = object("node", &[], &[], false);
        node.meta.namespace = String::new();
        let graph = graph(vec![
            elsewhere,
            node,
            object("p", &["rs"], &[], false),
            object("q", &["node"], &[], false),
        ]);
        assert_eq!(graph.misplaced("p"), [owner("rs")]);
        assert_eq!(graph.misplaced("q"), []);
        assert_eq!(
            graph.plan("p", |_| false),
            [Action::Delete { foreground: false }]
        );
    }
}
