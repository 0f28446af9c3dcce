//! The mounts of one container: its volumes, its /etc/hosts and the file it
//! leaves its termination message in.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Ready, VolumeError, subpath};
use crate::create::container::termination_path;
use crate::create::expand::expand;
use crate::cri::v1;
use crate::k8s::VolumeMount;
use crate::paths::PodPaths;
use crate::pod::spec::Slot;

/// What the mounts are made from.
pub struct Input<'a> {
    /// The container.
    pub slot: &'a Slot<'a>,
    /// The pod's folders.
    pub paths: &'a PodPaths,
    /// The pod's volumes.
    pub volumes: &'a BTreeMap<String, Ready>,
    /// The container's environment, for subPathExpr.
    pub environment: &'a [(String, String)],
    /// What /etc/hosts says; none leaves the image's or the node's.
    pub etc_hosts: Option<&'a str>,
}

/// Makes the mounts, with the files and binds they need.
pub fn mounts(input: &Input<'_>) -> Result<Vec<v1::Mount>, VolumeError> {
    let mut mounts = Vec::new();
    let own = input
        .slot
        .container
        .volume_mounts
        .as_deref()
        .unwrap_or_default();
    for (index, mount) in own.iter().enumerate() {
        mounts.push(volume_mount(input, index, mount)?);
    }
    let taken = |path: &str, mounts: &[v1::Mount]| mounts.iter().any(|m| m.container_path == path);
    if let Some(text) = input.etc_hosts.filter(|_| !taken("/etc/hosts", &mounts)) {
        mounts.push(etc_hosts(input.paths, text)?);
    }
    let path = termination_path(input.slot);
    if !path.is_empty() && !taken(path, &mounts) {
        mounts.push(termination_log(input.paths, input.slot.name(), path)?);
    }
    Ok(mounts)
}

fn volume_mount(
    input: &Input<'_>,
    index: usize,
    mount: &VolumeMount,
) -> Result<v1::Mount, VolumeError> {
    let unknown = || VolumeError::Unsupported(format!("volume {:?} of mount", mount.name));
    let volume = input.volumes.get(&mount.name).ok_or_else(unknown)?;
    if mount.recursive_read_only.as_deref() == Some("Enabled") {
        let what = "recursiveReadOnly: the container runtime does not support it";
        return Err(VolumeError::Unsupported(what.to_owned()));
    }
    let lookup = |name: &str| {
        let found = input.environment.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.clone())
    };
    let expression = mount
        .sub_path_expr
        .as_deref()
        .filter(|text| !text.is_empty());
    let sub_path = expression
        .map(|text| expand(text, lookup))
        .or_else(|| mount.sub_path.clone());
    let host_path = match sub_path.filter(|path| !path.is_empty()) {
        None => volume.path.clone(),
        Some(sub_path) => {
            let container = input
                .paths
                .subpaths()
                .join(&mount.name)
                .join(input.slot.name());
            let target = container.join(index.to_string());
            subpath::bind(&volume.path, &sub_path, target, volume.read_only)?
        }
    };
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
        _ => v1::MountPropagation::PropagationPrivate,
    };
    // A relative mount path is one from the root, as upstream has it.
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    Ok(v1::Mount {
        container_path,
        host_path: host_path.display().to_string(),
        readonly: mount.read_only.unwrap_or(false) || volume.read_only,
        propagation: propagation as i32,
        ..Default::default()
    })
}

fn etc_hosts(paths: &PodPaths, text: &str) -> Result<v1::Mount, VolumeError> {
    let path = paths.etc_hosts();
    write(&path, text, 0o644)?;
    Ok(v1::Mount {
        container_path: "/etc/hosts".to_owned(),
        host_path: path.display().to_string(),
        ..Default::default()
    })
}

/// A fresh file per instance, which anyone in the container may write.
fn termination_log(paths: &PodPaths, name: &str, path: &str) -> Result<v1::Mount, VolumeError> {
    let file = paths
        .container(name)
        .join(format!("{:08x}", rand::random::<u32>()));
    write(&file, "", 0o666)?;
    Ok(v1::Mount {
        container_path: path.to_owned(),
        host_path: file.display().to_string(),
        ..Default::default()
    })
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), VolumeError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(VolumeError::io("create", parent))?;
    fs::write(path, text).map_err(VolumeError::io("write", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(VolumeError::io("chmod", path))
}
