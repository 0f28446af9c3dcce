//! What a claim needs next. Pure.

use std::sync::Arc;

use apimachinery::{Value, selector::LabelSelector};
use client::events::EventKind;
use serde_json::json;

use super::{
    super::view::{Claim, StorageClass, Volume},
    BIND_COMPLETED, BOUND_BY_CONTROLLER, OLD_PROVISIONER, PROVISIONER, SELECTED_NODE, mark,
};

pub struct Observed<'a> {
    pub claim: &'a Claim,
    /// The one it names.
    pub volume: Option<&'a Volume>,
    /// Volumes of its class, and those that name it.
    pub candidates: &'a [Arc<Volume>],
    pub class: Option<&'a StorageClass>,
    pub default_class: Option<&'a StorageClass>,
    /// A pod that is there and uses it.
    pub waiting_pod: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make a volume this claim's.
    TakeVolume(String),
    /// Make the claim the volume's, which is the end of binding.
    SetVolume(String),
    /// Give a claim without a class the default one.
    SetClass(String),
    /// Ask the provisioner for a volume.
    Provision(String),
    /// Fields of the status.
    Status(Value),
}

pub type Event = (EventKind, &'static str, String);

pub fn plan(observed: &Observed<'_>) -> (Vec<Step>, Vec<Event>) {
    let mut plan = Plan {
        observed,
        claim: observed.claim,
        steps: Vec::new(),
        events: Vec::new(),
    };
    if observed
        .claim
        .metadata
        .annotations
        .contains_key(BIND_COMPLETED)
    {
        plan.bound();
    } else if observed.claim.spec.volume_name.is_empty() {
        plan.search();
    } else {
        plan.named();
    }
    (plan.steps, plan.events)
}

struct Plan<'a> {
    observed: &'a Observed<'a>,
    claim: &'a Claim,
    steps: Vec<Step>,
    events: Vec<Event>,
}

impl Plan<'_> {
    fn pending(&mut self) {
        if self.claim.status.phase != "Pending" {
            self.steps.push(Step::Status(json!({"phase": "Pending"})));
        }
    }

    fn lost(&mut self, reason: &'static str, message: &str) {
        if self.claim.status.phase != "Lost" {
            self.steps.push(Step::Status(json!({"phase": "Lost"})));
            self.events
                .push((EventKind::Warning, reason, message.into()));
        }
    }

    /// A claim that was bound stays so, or is lost.
    fn bound(&mut self) {
        if self.claim.spec.volume_name.is_empty() {
            let message =
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return self.lost("ClaimLost", message);
        }
        let Some(volume) = self.observed.volume else {
            let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return self.lost("ClaimLost", message);
        };
        match &volume.spec.claim_ref {
            None => self
                .steps
                .push(Step::TakeVolume(volume.metadata.name.clone())),
            Some(reference) if reference.uid == self.claim.metadata.uid => self.complete(volume),
            Some(_) => {
                let message =
                    "Two claims are bound to the same volume, this one is bound incorrectly";
                self.lost("ClaimMisbound", message);
            }
        }
    }

    /// The status of a bound claim.
    fn complete(&mut self, volume: &Volume) {
        let status = &self.claim.status;
        let mut wanted = json!({});
        if status.phase != "Bound" {
            wanted["phase"] = json!("Bound");
            // Later the capacity is the resizer's.
            wanted["capacity"] = json!(volume.spec.capacity);
        }
        if status.access_modes != volume.spec.access_modes {
            wanted["accessModes"] = json!(volume.spec.access_modes);
        }
        if let Some(class) = &volume.spec.volume_attributes_class_name
            && status.phase != "Bound"
        {
            wanted["currentVolumeAttributesClassName"] = json!(class);
        }
        if wanted != json!({}) {
            self.steps.push(Step::Status(wanted));
        }
    }

    /// A claim that names its volume gets that one, or waits for it.
    fn named(&mut self) {
        let Some(volume) = self.observed.volume else {
            return self.pending();
        };
        match &volume.spec.claim_ref {
            None => match misfit(self.claim, volume) {
                None => self
                    .steps
                    .push(Step::TakeVolume(volume.metadata.name.clone())),
                Some(why) => {
                    let name = &volume.metadata.name;
                    let message = format!("Cannot bind to requested volume {name:?}: {why}");
                    self.events
                        .push((EventKind::Warning, "VolumeMismatch", message));
                    self.pending();
                }
            },
            Some(reference) if volume.is_bound_to(self.claim) => {
                let name = volume.metadata.name.clone();
                if reference.uid.is_empty() {
                    self.steps.push(Step::TakeVolume(name));
                } else {
                    self.steps.push(Step::SetVolume(name));
                }
            }
            Some(_) => {
                if !self
                    .claim
                    .metadata
                    .annotations
                    .contains_key(BOUND_BY_CONTROLLER)
                {
                    let message = format!(
                        "volume {:?} already bound to a different claim.",
                        volume.metadata.name
                    );
                    self.events
                        .push((EventKind::Warning, "FailedBinding", message));
                }
                self.pending();
            }
        }
    }

    /// A claim that names none gets the best there is, or one that is made for it.
    fn search(&mut self) {
        let observed = self.observed;
        let spec = &self.claim.spec;
        if let Some(default) = observed.default_class
            && spec.storage_class_name.is_none()
            && self.claim.class().is_empty()
        {
            self.steps
                .push(Step::SetClass(default.metadata.name.clone()));
            return;
        }
        let selected = self.claim.metadata.annotations.contains_key(SELECTED_NODE);
        let waits = observed.class.is_some_and(StorageClass::waits_for_consumer) && !selected;
        if let Some(volume) = best(self.claim, observed.candidates, waits) {
            let name = volume.metadata.name.clone();
            let taken = volume
                .spec
                .claim_ref
                .as_ref()
                .is_some_and(|one| one.uid == self.claim.metadata.uid);
            self.steps.push(if taken {
                Step::SetVolume(name)
            } else {
                Step::TakeVolume(name)
            });
            return;
        }
        self.pending();
        if waits {
            let (reason, message) = match observed.waiting_pod {
                Some(pod) => (
                    "WaitForPodScheduled",
                    format!("waiting for pod {pod} to be scheduled"),
                ),
                None => (
                    "WaitForFirstConsumer",
                    "waiting for first consumer to be created before binding".into(),
                ),
            };
            self.events.push((EventKind::Normal, reason, message));
        } else if self.claim.class().is_empty() {
            let message =
                "no persistent volumes available for this claim and no storage class is set";
            self.events
                .push((EventKind::Normal, "FailedBinding", message.into()));
        } else {
            self.provision();
        }
    }

    fn provision(&mut self) {
        let Some(class) = self.observed.class else {
            let message = format!(
                "storageclass.storage.k8s.io {:?} not found",
                self.claim.class()
            );
            self.events
                .push((EventKind::Warning, "ProvisioningFailed", message));
            return;
        };
        let provisioner = &class.provisioner;
        if provisioner.starts_with("kubernetes.io/") {
            let message = format!("no volume plugin matched name: {provisioner}");
            self.events
                .push((EventKind::Warning, "ProvisioningFailed", message));
            return;
        }
        let annotations = &self.claim.metadata.annotations;
        let asked = [PROVISIONER, OLD_PROVISIONER];
        if asked
            .iter()
            .any(|key| annotations.get(*key) != Some(provisioner))
        {
            self.steps.push(Step::Provision(provisioner.clone()));
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        self.events
            .push((EventKind::Normal, "ExternalProvisioning", message));
    }
}

/// The volume that serves the claim best: one that is meant for it, else the smallest that is large enough. One that
/// waits for its first consumer only gets what the scheduler chose.
fn best<'a>(claim: &Claim, candidates: &'a [Arc<Volume>], waits: bool) -> Option<&'a Arc<Volume>> {
    let selector = if claim.spec.selector.is_null() {
        LabelSelector::everything()
    } else {
        LabelSelector::from_value(&claim.spec.selector).unwrap_or_else(|_| LabelSelector::nothing())
    };
    let meant = candidates.iter().find(|volume| {
        volume.is_bound_to(claim)
            && !volume.metadata.is_deleting()
            && misfit(claim, volume).is_none()
    });
    if meant.is_some() || waits {
        return meant;
    }
    let fitting = candidates.iter().filter(|volume| {
        volume.spec.claim_ref.is_none()
            && !volume.metadata.is_deleting()
            && volume.status.phase == "Available"
            && selector.matches(&volume.metadata.labels)
            && misfit(claim, volume).is_none()
    });
    fitting.min_by(|a, b| (a.capacity(), &a.metadata.name).cmp(&(b.capacity(), &b.metadata.name)))
}

/// Why the volume cannot serve the claim, if it cannot (checkVolumeSatisfyClaim).
fn misfit(claim: &Claim, volume: &Volume) -> Option<&'static str> {
    if volume.capacity() < claim.request() {
        return Some("requested PV is too small");
    }
    if volume.class() != claim.class() {
        return Some("storageClassName does not match");
    }
    if volume.mode() != claim.mode() {
        return Some("incompatible volumeMode");
    }
    let modes = &volume.spec.access_modes;
    if !claim
        .spec
        .access_modes
        .iter()
        .all(|mode| modes.contains(mode))
    {
        return Some("incompatible accessMode");
    }
    let class = |name: &Option<String>| name.clone().unwrap_or_default();
    if class(&volume.spec.volume_attributes_class_name)
        != class(&claim.spec.volume_attributes_class_name)
    {
        return Some("VolumeAttributesClass does not match");
    }
    None
}

/// Makes the claim the volume's, unless it has another by now.
pub fn set_volume(claim: &mut Value, name: &str) {
    let present = claim["spec"]["volumeName"].as_str().unwrap_or("");
    if present.is_empty() {
        claim["spec"]["volumeName"] = json!(name);
        mark(claim, BOUND_BY_CONTROLLER);
    } else if present != name {
        return;
    }
    mark(claim, BIND_COMPLETED);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(change: Value) -> Claim {
        let mut value = json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "c-uid", "annotations": {}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}, "storageClassName": "std"},
            "status": {"phase": "Pending"},
        });
        merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    fn volume(name: &str, size: &str, change: Value) -> Arc<Volume> {
        let mut value = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "storageClassName": "std"},
            "status": {"phase": "Available"},
        });
        merge(&mut value, change);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn merge(target: &mut Value, change: Value) {
        match change {
            Value::Object(fields) => {
                for (key, value) in fields {
                    merge(&mut target[key], value);
                }
            }
            other => *target = other,
        }
    }

    fn class(mode: &str) -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "std"}, "provisioner": "example.com/disk", "volumeBindingMode": mode})).unwrap()
    }

    fn planned(
        claim: &Claim,
        volumes: &[Arc<Volume>],
        class: Option<&StorageClass>,
    ) -> (Vec<Step>, Vec<&'static str>) {
        let named = volumes
            .iter()
            .find(|one| one.metadata.name == claim.spec.volume_name);
        let (steps, events) = plan(&Observed {
            claim,
            volume: named.map(AsRef::as_ref),
            candidates: volumes,
            class,
            default_class: None,
            waiting_pod: None,
        });
        (
            steps,
            events.into_iter().map(|(_, reason, _)| reason).collect(),
        )
    }

    fn take(name: &str) -> (Vec<Step>, Vec<&'static str>) {
        (vec![Step::TakeVolume(name.into())], vec![])
    }

    #[test]
    fn the_smallest_that_fits_or_the_one_that_is_meant_is_taken() {
        let volumes = [
            volume("large", "9Gi", json!({})),
            volume("small", "1Gi", json!({})),
            volume("fits", "3Gi", json!({})),
            volume("block", "2Gi", json!({"spec": {"volumeMode": "Block"}})),
            volume(
                "other",
                "2Gi",
                json!({"spec": {"claimRef": {"name": "x", "namespace": "n"}}}),
            ),
            volume("used", "2Gi", json!({"status": {"phase": "Released"}})),
        ];
        assert_eq!(planned(&claim(json!({})), &volumes, None), take("fits"));
        let many = claim(json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
        assert_eq!(planned(&many, &volumes, None).1, ["ProvisioningFailed"]);
        let mut meant = volumes.to_vec();
        meant.push(volume(
            "meant",
            "50Gi",
            json!({"spec": {"claimRef": {"name": "c", "namespace": "n"}}}),
        ));
        assert_eq!(planned(&claim(json!({})), &meant, None), take("meant"));
        let labelled = claim(json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}));
        assert!(planned(&labelled, &volumes, None).0.is_empty());
    }

    #[test]
    fn binding_ends_with_the_claim_and_its_status() {
        let reference = json!({"name": "c", "namespace": "n", "uid": "c-uid"});
        let volumes = [volume("v", "3Gi", json!({"spec": {"claimRef": reference}}))];
        let (steps, _) = planned(&claim(json!({})), &volumes, None);
        assert_eq!(steps, [Step::SetVolume("v".into())]);
        let mut raw = json!({"metadata": {}, "spec": {}});
        set_volume(&mut raw, "v");
        assert_eq!(raw["spec"]["volumeName"], "v");
        assert_eq!(
            raw["metadata"]["annotations"],
            json!({BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"})
        );
        let bound = json!({"spec": {"volumeName": "v"}, "metadata": {"annotations": {BIND_COMPLETED: "yes"}}});
        let (steps, _) = planned(&claim(bound.clone()), &volumes, None);
        let expected = json!({"phase": "Bound", "capacity": {"storage": "3Gi"}, "accessModes": ["ReadWriteOnce"]});
        assert_eq!(steps, [Step::Status(expected)]);
        let (steps, events) = planned(&claim(bound), &[], None);
        assert_eq!(
            (steps, events),
            (
                vec![Step::Status(json!({"phase": "Lost"}))],
                vec!["ClaimLost"]
            )
        );
    }

    #[test]
    fn a_claim_that_names_a_volume_waits_for_that_one() {
        let named = claim(json!({"spec": {"volumeName": "v"}, "status": {"phase": ""}}));
        assert_eq!(
            planned(&named, &[], None).0,
            [Step::Status(json!({"phase": "Pending"}))]
        );
        assert_eq!(
            planned(&named, &[volume("v", "3Gi", json!({}))], None),
            take("v")
        );
        let other = volume(
            "v",
            "3Gi",
            json!({"spec": {"claimRef": {"name": "x", "namespace": "n", "uid": "y"}}}),
        );
        assert_eq!(planned(&named, &[other], None).1, ["FailedBinding"]);
        let small = volume("v", "1Gi", json!({}));
        assert_eq!(planned(&named, &[small], None).1, ["VolumeMismatch"]);
    }

    #[test]
    fn a_class_that_waits_leaves_the_choice_to_the_scheduler() {
        let waiting = class("WaitForFirstConsumer");
        let volumes = [volume("fits", "3Gi", json!({}))];
        assert_eq!(
            planned(&claim(json!({})), &volumes, Some(&waiting)),
            (vec![], vec!["WaitForFirstConsumer"])
        );
        let chosen = claim(json!({"metadata": {"annotations": {SELECTED_NODE: "w"}}}));
        let (steps, events) = planned(&chosen, &[], Some(&waiting));
        assert_eq!(
            (steps, events),
            (
                vec![Step::Provision("example.com/disk".into())],
                vec!["ExternalProvisioning"]
            )
        );
        let immediate = class("Immediate");
        assert_eq!(
            planned(&claim(json!({})), &[], Some(&immediate)).1,
            ["ExternalProvisioning"]
        );
    }

    #[test]
    fn a_claim_without_a_class_gets_the_default_one() {
        let bare = claim(json!({"spec": {"storageClassName": null}}));
        let default = class("Immediate");
        let (steps, _) = plan(&Observed {
            claim: &bare,
            volume: None,
            candidates: &[],
            class: None,
            default_class: Some(&default),
            waiting_pod: None,
        });
        assert_eq!(steps, [Step::SetClass("std".into())]);
        let none = claim(json!({"spec": {"storageClassName": ""}}));
        assert_eq!(planned(&none, &[], None).1, ["FailedBinding"]);
    }
}
