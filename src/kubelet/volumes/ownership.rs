//! A pod's fsGroup: files of its volumes belong to that group, which may do
//! what the owner may (upstream's `SetVolumeOwnership`).

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, lchown};
use std::path::Path;

use crate::k8s::Pod;
use crate::pod::spec;

/// The group reads what the owner reads, and writes what the owner writes.
const READ_WRITE: u32 = 0o660;
const READ: u32 = 0o440;
/// Folders are entered, and what is made in them keeps the group.
const FOLDER: u32 = 0o2110;

/// The pod's fsGroup.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    let context = spec::spec(pod).security_context.clone()?;
    u32::try_from(context.fs_group?).ok()
}

/// The mode of a file that the kubelet writes.
pub fn file_mode(mode: u32, group: Option<u32>) -> u32 {
    if group.is_some() { mode | READ } else { mode }
}

/// Gives a folder that the kubelet made its mode and group.
pub fn folder(path: &Path, group: Option<u32>) -> io::Result<()> {
    let Some(group) = group else {
        return fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    };
    chown(path, None, Some(group))?;
    fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755 | READ_WRITE | FOLDER),
    )
}

/// Gives everything in a volume that the pod writes to the group.
pub fn give(root: &Path, group: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(root)?;
    if metadata.is_symlink() {
        return lchown(root, None, Some(group));
    }
    chown(root, None, Some(group))?;
    let mode = metadata.permissions().mode();
    let extra = if metadata.is_dir() {
        READ_WRITE | FOLDER
    } else {
        READ_WRITE
    };
    fs::set_permissions(root, fs::Permissions::from_mode(mode | extra))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(root)? {
            give(&entry?.path(), group)?;
        }
    }
    Ok(())
}

/// The one user that all containers of the pod run as, if the spec says so: a
/// token can then be that user's alone (`util.FsUserFrom`).
pub fn common_user(pod: &Pod) -> Option<i64> {
    let of_pod = spec::spec(pod)
        .security_context
        .clone()
        .and_then(|context| context.run_as_user);
    let slots = spec::slots(pod);
    let mut users = slots.iter().map(|slot| {
        let own = slot
            .container
            .security_context
            .as_ref()
            .and_then(|context| context.run_as_user);
        own.or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    #[test]
    fn the_common_user_is_the_one_all_containers_share() {
        let mk = |a: Option<i64>, b: Option<i64>, of_pod: Option<i64>| {
            common_user(&mk_pod(json!({
                "securityContext": {"runAsUser": of_pod},
                "containers": [
                    {"name": "a", "securityContext": {"runAsUser": a}},
                    {"name": "b", "securityContext": {"runAsUser": b}},
                ],
            })))
        };
        assert_eq!(mk(Some(1), Some(1), None), Some(1));
        assert_eq!(mk(Some(1), Some(2), None), None);
        assert_eq!(mk(None, Some(1), Some(1)), Some(1));
        assert_eq!(mk(None, None, None), None);
    }
}
