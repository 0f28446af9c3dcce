//! Mounting a part of a volume: the path is resolved inside the volume by the
//! kernel, whatever links a container has planted there, and what was resolved
//! is bound where no container can change it (CVE-2017-1002101, CVE-2021-25741).

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, fstat, mkdirat};

use super::{VolumeError, tmpfs};

/// Folders that a sub path names and a volume lacks; upstream's `perm`.
const FOLDER_MODE: u32 = 0o755;

/// Binds `sub_path` of the volume at `target`, and answers `target`. What the
/// sub path names is made, as a folder, if it does not exist and the volume is
/// not read-only.
pub fn bind(
    volume: &Path,
    sub_path: &str,
    target: PathBuf,
    read_only: bool,
) -> Result<PathBuf, VolumeError> {
    let components = components(sub_path)?;
    let resolved = resolve(volume, &components, read_only)?;
    if tmpfs::mount_points().contains(&target) {
        return Ok(target);
    }
    let is_folder = fstat(&resolved)
        .map(|stat| stat.st_mode & nix::libc::S_IFMT == nix::libc::S_IFDIR)
        .map_err(|errno| VolumeError::io("stat", volume)(errno.into()))?;
    make_target(&target, is_folder).map_err(VolumeError::io("create", &target))?;
    // The descriptor is what was resolved, whatever the path names by now.
    let source = format!("/proc/self/fd/{}", resolved.as_raw_fd());
    mount(
        Some(source.as_str()),
        &target,
        None::<&str>,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        None::<&str>,
    )
    .map_err(|errno| VolumeError::io("bind", &target)(errno.into()))?;
    Ok(target)
}

fn components(sub_path: &str) -> Result<Vec<&str>, VolumeError> {
    let path = Path::new(sub_path);
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.extend(name.to_str()),
            Component::CurDir => {}
            _ => return Err(VolumeError::Path(sub_path.to_owned())),
        }
    }
    Ok(names)
}

/// Opens the sub path with the volume as the root of every link in it.
fn resolve(volume: &Path, names: &[&str], read_only: bool) -> Result<OwnedFd, VolumeError> {
    let failed = |path: PathBuf| {
        move |errno: nix::Error| VolumeError::Io {
            action: "open",
            path: path.display().to_string(),
            source: errno.into(),
        }
    };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root = open(volume, flags, Mode::empty()).map_err(failed(volume.to_owned()))?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let mut so_far = PathBuf::from(".");
    let mut at = openat2(&root, ".", how).map_err(failed(volume.to_owned()))?;
    for name in names {
        so_far.push(name);
        at = match openat2(&root, &so_far, how) {
            Err(nix::Error::ENOENT) if !read_only => {
                match mkdirat(&at, *name, Mode::from_bits_truncate(FOLDER_MODE)) {
                    Ok(()) | Err(nix::Error::EEXIST) => {}
                    Err(errno) => return Err(failed(volume.join(&so_far))(errno)),
                }
                openat2(&root, &so_far, how)
            }
            other => other,
        }
        .map_err(failed(volume.join(&so_far)))?;
    }
    Ok(at)
}

fn make_target(target: &Path, is_folder: bool) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    match is_folder {
        true => fs::create_dir_all(target),
        false => fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(target)
            .map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mk_folder(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("kubelet-subpath-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a temporary folder");
        path
    }

    fn path_of(fd: &OwnedFd) -> PathBuf {
        fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a path")
    }

    #[test]
    fn links_out_of_the_volume_stay_in_it() {
        let folder = mk_folder("links");
        let volume = folder.join("volume");
        fs::create_dir_all(volume.join("etc")).expect("made");
        symlink("/etc", volume.join("absolute")).expect("a link");
        symlink("../../../../../etc", volume.join("relative")).expect("a link");
        for name in ["absolute", "relative"] {
            let found = resolve(&volume, &[name], true).expect("resolved inside");
            assert_eq!(path_of(&found), volume.join("etc"), "{name}");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn missing_folders_are_made_and_dots_are_refused() {
        let volume = mk_folder("made");
        let found = resolve(&volume, &["a", "b"], false).expect("made");
        assert_eq!(path_of(&found), volume.join("a/b"));
        assert!(
            resolve(&volume, &["c"], true).is_err(),
            "nothing is made in a read-only volume"
        );
        assert!(components("../x").is_err() && components("/x").is_err());
        assert_eq!(components("./a/b").expect("fine"), ["a", "b"]);
        fs::remove_dir_all(&volume).expect("removed");
    }
}
