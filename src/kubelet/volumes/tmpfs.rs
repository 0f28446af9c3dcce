//! Mounting memory, and unmounting whatever is mounted below a folder.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::VolumeError;

/// Makes sure that a tmpfs is mounted at `path`. `size` is its limit in bytes;
/// without one the kernel's half of memory holds.
pub fn ensure(path: &Path, size: Option<u64>) -> Result<(), VolumeError> {
    fs::create_dir_all(path).map_err(VolumeError::io("create", path))?;
    if mount_points().iter().any(|point| point == path) {
        return Ok(());
    }
    let options = size.map(|size| format!("size={size}"));
    let source = Some("tmpfs");
    mount(source, path, source, MsFlags::empty(), options.as_deref())
        .map_err(|errno| VolumeError::io("mount tmpfs on", path)(errno.into()))
}

/// Unmounts everything at or below `root`, the deepest first. What is busy is
/// detached: it goes with its last user.
pub fn unmount_below(root: &Path) -> Result<(), VolumeError> {
    let mut points: Vec<_> = mount_points();
    points.retain(|point| point.starts_with(root));
    // Later mounts cover earlier ones, and deeper ones come later.
    for point in points.iter().rev() {
        umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|errno| VolumeError::io("unmount", point)(errno.into()))?;
    }
    Ok(())
}

/// Every mount point of this mount namespace, in mount order.
pub fn mount_points() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescape)
        .collect()
}

/// mountinfo writes space, tab, newline and backslash in octal.
fn unescape(field: &str) -> PathBuf {
    let mut out = String::new();
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest
            .get(at + 1..at + 4)
            .and_then(|octal| u8::from_str_radix(octal, 8).ok());
        match code {
            Some(code) => out.push(char::from(code)),
            None => out.push_str(&rest[at..(at + 4).min(rest.len())]),
        }
        rest = rest.get(at + 4..).unwrap_or_default();
    }
    out.push_str(rest);
    PathBuf::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_escapes_of_mountinfo_are_undone() {
        assert_eq!(unescape("/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape("/plain"), Path::new("/plain"));
        assert_eq!(unescape("/end\\"), Path::new("/end\\"));
    }
}
