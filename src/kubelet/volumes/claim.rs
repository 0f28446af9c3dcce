//! persistentVolumeClaim and ephemeral: what is behind the volume that the claim is bound to. Of volumes, those that are
//! already on the node can be mounted: `hostPath` and `local`.

use std::path::PathBuf;

use api::r::{PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES};
use async_trait::async_trait;

use super::{Context, Ready, VolumeError, VolumeKind, host_path, ownership};
use crate::k8s::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use crate::pod::spec;

pub(super) struct Claim;

#[async_trait]
impl VolumeKind for Claim {
    fn plugin(&self) -> &'static str {
        "persistent-volume"
    }

    fn handles(&self, volume: &Volume) -> bool {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    async fn set_up(&self, cx: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError> {
        let (name, read_only) = claim_of(cx.pod, volume);
        let namespace = spec::namespace(cx.pod);
        let client = cx.objects.client();
        let claim: PersistentVolumeClaim = client
            .get(&PERSISTENTVOLUMECLAIMS, namespace, &name)
            .await
            .map_err(|source| VolumeError::Claim {
                name: format!("{namespace}/{name}"),
                problem: format!("failed to fetch PVC from API server: {source}"),
            })?;
        let refused = |problem: String| VolumeError::Claim {
            name: format!("{namespace}/{name}"),
            problem,
        };
        let bound_to = bound_to(cx.pod, volume, &claim).map_err(refused)?;
        let persistent: PersistentVolume = client
            .get(&PERSISTENTVOLUMES, "", &bound_to)
            .await
            .map_err(|source| refused(format!("failed to fetch PV {bound_to:?}: {source}")))?;
        let path = path_of(&persistent, &claim).map_err(refused)?;
        if let Some(host_path) = persistent
            .spec
            .as_ref()
            .and_then(|spec| spec.host_path.as_ref())
        {
            let existed = path.exists();
            host_path::check(&path, host_path.type_.as_deref().unwrap_or_default())?;
            if !existed && let Some(group) = ownership::fs_group(cx.pod) {
                ownership::give(&path, group).map_err(VolumeError::io("chown", &path))?;
            }
        } else if !path.exists() {
            return Err(refused(format!("path {:?} does not exist", path.display())));
        }
        Ok(Ready {
            path,
            read_only,
            ..Ready::default()
        })
    }
}

/// The claim's name, and whether the pod only reads.
fn claim_of(pod: &Pod, volume: &Volume) -> (String, bool) {
    match &volume.persistent_volume_claim {
        Some(source) => (source.claim_name.clone(), source.read_only == Some(true)),
        // The ephemeral volume controller makes it under this name.
        None => (format!("{}-{}", spec::name(pod), volume.name), false),
    }
}

/// The PersistentVolume, if the claim is the pod's to use.
fn bound_to(pod: &Pod, volume: &Volume, claim: &PersistentVolumeClaim) -> Result<String, String> {
    let owned = claim
        .metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.controller == Some(true) && owner.uid == spec::uid(pod));
    if volume.ephemeral.is_some() && !owned {
        return Err(format!(
            "PVC {}/{} was not created for pod {}/{} (pod is not owner)",
            spec::namespace(pod),
            claim.metadata.name.as_deref().unwrap_or_default(),
            spec::namespace(pod),
            spec::name(pod),
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("PVC is being deleted".to_owned());
    }
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let name = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.clone());
    match (phase, name.filter(|name| !name.is_empty())) {
        (Some("Bound"), Some(name)) => Ok(name),
        _ => Err("PVC is not bound".to_owned()),
    }
}

/// Where on the node the volume is, if it is bound to this very claim.
fn path_of(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<PathBuf, String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let spec = volume.spec.clone().unwrap_or_default();
    let of = spec.claim_ref.unwrap_or_default();
    if of.uid != claim.metadata.uid {
        return Err(format!(
            "PV {name:?} spec.claimRef.uid {:?} does not equal PVC UID {:?}",
            of.uid.unwrap_or_default(),
            claim.metadata.uid.as_deref().unwrap_or_default()
        ));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!(
            "PV {name:?} is a block device, which this node cannot map"
        ));
    }
    match (spec.host_path, spec.local) {
        (Some(host_path), _) => Ok(host_path.path.into()),
        (_, Some(local)) => Ok(local.path.into()),
        _ => Err(format!("no volume plugin matched PV {name:?}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    fn mk_claim(metadata: Value, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(
            json!({"metadata": metadata, "spec": {"volumeName": "v"}, "status": {"phase": phase}}),
        )
        .expect("a claim")
    }

    fn mk_volume(volume: Value) -> Volume {
        serde_json::from_value(volume).expect("a volume")
    }

    #[test]
    fn a_claim_must_be_bound_and_the_pods_own_if_it_is_ephemeral() {
        let pod = mk_pod(json!({"containers": [{"name": "c"}]}));
        let named = mk_volume(
            json!({"name": "d", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}),
        );
        let own = mk_volume(json!({"name": "d", "ephemeral": {}}));
        assert_eq!(claim_of(&pod, &named), ("data".to_owned(), true));
        assert_eq!(claim_of(&pod, &own).0, format!("{}-d", spec::name(&pod)));
        let claim = |phase| mk_claim(json!({"name": "data", "uid": "c-1"}), phase);
        assert_eq!(bound_to(&pod, &named, &claim("Bound")), Ok("v".to_owned()));
        assert!(bound_to(&pod, &named, &claim("Pending")).is_err());
        assert!(bound_to(&pod, &own, &claim("Bound")).is_err());
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": spec::name(&pod), "uid": spec::uid(&pod), "controller": true}]);
        let owned = mk_claim(json!({"name": "p-d", "ownerReferences": owner}), "Bound");
        assert_eq!(bound_to(&pod, &own, &owned), Ok("v".to_owned()));
    }

    #[test]
    fn a_volume_of_another_claim_or_of_an_unknown_kind_is_refused() {
        let claim = mk_claim(json!({"name": "data", "uid": "c-1"}), "Bound");
        let volume = |uid: &str, source: Value| -> PersistentVolume {
            let mut spec = json!({"claimRef": {"uid": uid}});
            spec.as_object_mut()
                .expect("an object")
                .extend(source.as_object().expect("an object").clone());
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).expect("a PV")
        };
        let host_path = json!({"hostPath": {"path": "/data"}});
        assert_eq!(
            path_of(&volume("c-1", host_path.clone()), &claim),
            Ok("/data".into())
        );
        assert_eq!(
            path_of(&volume("c-1", json!({"local": {"path": "/d"}})), &claim),
            Ok("/d".into())
        );
        for refused in [
            volume("c-2", host_path.clone()),
            volume("c-1", json!({"nfs": {"server": "s", "path": "/"}})),
            volume(
                "c-1",
                json!({"hostPath": {"path": "/data"}, "volumeMode": "Block"}),
            ),
        ] {
            assert!(path_of(&refused, &claim).is_err());
        }
    }
}
