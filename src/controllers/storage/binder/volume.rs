//! What becomes of a volume. Pure.

use apimachinery::Value;
use serde_json::json;

use super::{
    super::view::{Claim, Volume},
    BOUND_BY_CONTROLLER, PROVISIONED_BY, mark,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    Phase {
        phase: &'static str,
        reason: &'static str,
        message: String,
    },
    /// Take the claim away again.
    Release,
}

fn phase(volume: &Volume, phase: &'static str) -> Step {
    if volume.status.phase == phase {
        return Step::Nothing;
    }
    Step::Phase {
        phase,
        reason: "",
        message: String::new(),
    }
}

/// What to do about a volume, and what to tell of it; `claim` is the one under the name the volume has.
pub fn plan(volume: &Volume, claim: Option<&Claim>) -> (Step, Option<(&'static str, String)>) {
    let Some(reference) = &volume.spec.claim_ref else {
        return (phase(volume, "Available"), None);
    };
    // Meant for a claim that has not come, or was not seen with it.
    if reference.uid.is_empty() {
        return (phase(volume, "Available"), None);
    }
    let Some(claim) = claim.filter(|claim| claim.metadata.uid == reference.uid) else {
        return give_up(volume);
    };
    if claim.spec.volume_name == volume.metadata.name {
        return (phase(volume, "Bound"), None);
    }
    if claim.spec.volume_name.is_empty() {
        return (Step::Nothing, None);
    }
    // Its claim has another.
    let provisioned = volume.metadata.annotations.contains_key(PROVISIONED_BY);
    if provisioned && volume.spec.persistent_volume_reclaim_policy == "Delete" {
        return give_up(volume);
    }
    (Step::Release, None)
}

/// The claim is gone: what is left is released, and deleted by whoever made it.
fn give_up(volume: &Volume) -> (Step, Option<(&'static str, String)>) {
    let status = &volume.status.phase;
    if status != "Released" && status != "Failed" {
        return (phase(volume, "Released"), None);
    }
    if volume.spec.persistent_volume_reclaim_policy != "Delete" || volume.metadata.is_deleting() {
        return (Step::Nothing, None);
    }
    let external = volume.metadata.annotations.get(PROVISIONED_BY);
    if volume.spec.csi.is_object() || external.is_some_and(|by| !by.starts_with("kubernetes.io/")) {
        return (Step::Nothing, None);
    }
    let name = &volume.metadata.name;
    let message = format!(
        "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
    );
    if status == "Failed" && volume.status.message == message {
        return (Step::Nothing, None);
    }
    let step = Step::Phase {
        phase: "Failed",
        reason: "",
        message: message.clone(),
    };
    (step, Some(("VolumeFailedDelete", message)))
}

/// Makes the volume the claim's, unless it is another's by now.
pub fn set_claim(volume: &mut Value, claim: &Claim) {
    let meta = &claim.metadata;
    let reference = &volume["spec"]["claimRef"];
    let of_another = reference.is_object()
        && (reference["name"] != json!(meta.name)
            || reference["namespace"] != json!(meta.namespace)
            || reference["uid"]
                .as_str()
                .is_some_and(|uid| !uid.is_empty() && uid != meta.uid));
    if of_another {
        return;
    }
    if !reference.is_object() {
        mark(volume, BOUND_BY_CONTROLLER);
    }
    volume["spec"]["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
        "uid": meta.uid, "resourceVersion": meta.resource_version,
    });
}

/// Takes the claim away: all of it if the controller chose it, else only which one of that name it was.
pub fn release(volume: &mut Value) {
    if apimachinery::meta::annotation(volume, BOUND_BY_CONTROLLER).is_some() {
        apimachinery::meta::remove_annotation(volume, BOUND_BY_CONTROLLER);
        if let Some(spec) = volume["spec"].as_object_mut() {
            spec.remove("claimRef");
        }
    } else if let Some(reference) = volume["spec"]["claimRef"].as_object_mut() {
        reference.remove("uid");
        reference.remove("resourceVersion");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(phase: &str, policy: &str, uid: &str) -> Volume {
        serde_json::from_value(json!({
            "metadata": {"name": "v", "annotations": {}},
            "spec": {"claimRef": {"name": "c", "namespace": "n", "uid": uid}, "persistentVolumeReclaimPolicy": policy},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn claim(uid: &str, volume: &str) -> Claim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": uid}, "spec": {"volumeName": volume}})).unwrap()
    }

    #[track_caller]
    fn check(volume: &Volume, claim: Option<&Claim>, expected: &str) {
        let text = match plan(volume, claim).0 {
            Step::Phase { phase, .. } => phase,
            Step::Nothing => "",
            Step::Release => "release",
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn a_volume_is_free_bound_released_or_failed() {
        let mut free = volume("Pending", "Retain", "u");
        free.spec.claim_ref = None;
        check(&free, None, "Available");
        check(&volume("Pending", "Retain", ""), None, "Available");
        check(
            &volume("Available", "Retain", "u"),
            Some(&claim("u", "v")),
            "Bound",
        );
        check(
            &volume("Available", "Retain", "u"),
            Some(&claim("u", "")),
            "",
        );
        check(
            &volume("Available", "Retain", "u"),
            Some(&claim("u", "other")),
            "release",
        );
        check(&volume("Bound", "Retain", "u"), None, "Released");
        check(
            &volume("Bound", "Retain", "u"),
            Some(&claim("new", "v")),
            "Released",
        );
        check(&volume("Released", "Retain", "u"), None, "");
        check(&volume("Released", "Delete", "u"), None, "Failed");
        let mut external = volume("Released", "Delete", "u");
        external
            .metadata
            .annotations
            .insert(PROVISIONED_BY.into(), "example.com/disk".into());
        check(&external, None, "");
    }

    #[test]
    fn a_volume_is_taken_only_while_it_is_free_or_meant() {
        let c = claim("u", "");
        let mut free = json!({"metadata": {}, "spec": {}});
        set_claim(&mut free, &c);
        assert_eq!(free["spec"]["claimRef"]["uid"], "u");
        assert_eq!(
            free["metadata"]["annotations"],
            json!({BOUND_BY_CONTROLLER: "yes"})
        );
        release(&mut free);
        assert!(free["spec"].get("claimRef").is_none());
        let mut meant =
            json!({"metadata": {}, "spec": {"claimRef": {"name": "c", "namespace": "n"}}});
        set_claim(&mut meant, &c);
        assert_eq!(meant["spec"]["claimRef"]["uid"], "u");
        release(&mut meant);
        assert_eq!(meant["spec"]["claimRef"]["name"], "c");
        assert!(meant["spec"]["claimRef"].get("uid").is_none());
        let taken = json!({"spec": {"claimRef": {"name": "c", "namespace": "n", "uid": "older"}}});
        let mut tried = taken.clone();
        set_claim(&mut tried, &c);
        assert_eq!(tried, taken);
    }
}
