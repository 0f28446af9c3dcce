//! Writing a volume's files so that a reader sees all of the old or all of the
//! new: the files are in a folder of their own, `..data` points at it, and the
//! names in the volume point into `..data` (upstream's `AtomicWriter` layout).
//!
//! ```text
//! volume/key            -> ..data/key
//! volume/..data         -> ..2026_10_31_14_28_09.123456789
//! volume/..2026_…/key
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use super::VolumeError;
use super::ownership;
use super::payload::{File, Payload};
use crate::clock;
use crate::k8s::Timestamp;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// Of the volume itself, which upstream makes as it makes an emptyDir.
const VOLUME_MODE: u32 = 0o777;

/// Makes the volume hold exactly `payload`; says whether anything was written.
/// `group` is the pod's fsGroup.
pub fn write(volume: &Path, payload: &Payload, group: Option<u32>) -> Result<bool, VolumeError> {
    if !volume.exists() {
        fs::create_dir_all(volume).map_err(VolumeError::io("create", volume))?;
        let open = fs::Permissions::from_mode(VOLUME_MODE);
        fs::set_permissions(volume, open).map_err(VolumeError::io("chmod", volume))?;
    }
    let data = volume.join(DATA);
    let old = fs::read_link(&data).ok();
    if let Some(old) = &old {
        if is_current(&volume.join(old), payload, group) {
            link_names(volume, payload)?;
            return Ok(false);
        }
    }
    let fresh = volume.join(folder_name());
    fill(&fresh, payload, group)?;
    let target = fresh.file_name().map(PathBuf::from).unwrap_or_default();
    let next = volume.join(NEW_DATA);
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(VolumeError::io("remove", &next)(error));
        }
        _ => {}
    }
    symlink(&target, &next).map_err(VolumeError::io("link", &next))?;
    fs::rename(&next, &data).map_err(VolumeError::io("rename", &data))?;
    link_names(volume, payload)?;
    remove_stale(volume, payload, &target)?;
    Ok(true)
}

/// `..2006_01_02_15_04_05.123456789`, unique by its nanoseconds.
fn folder_name() -> String {
    let now = clock::now();
    let time = Timestamp::from_second(now / 1_000_000_000).unwrap_or(Timestamp::UNIX_EPOCH);
    format!(
        "..{}.{:09}",
        time.strftime("%Y_%m_%d_%H_%M_%S"),
        now % 1_000_000_000
    )
}

fn is_current(folder: &Path, payload: &Payload, group: Option<u32>) -> bool {
    let mut names = BTreeSet::new();
    if list(folder, folder, &mut names).is_err() || !names.iter().eq(payload.keys()) {
        return false;
    }
    payload.iter().all(|(name, file)| {
        let path = folder.join(name);
        let Ok(metadata) = fs::metadata(&path) else {
            return false;
        };
        let mode = ownership::file_mode(file.mode, group);
        metadata.permissions().mode() & 0o7777 == mode
            && metadata.uid() == owner(file)
            && fs::read(&path).is_ok_and(|content| content == file.content)
    })
}

fn owner(file: &File) -> u32 {
    file.user
        .and_then(|user| u32::try_from(user).ok())
        .unwrap_or(0)
}

fn list(root: &Path, folder: &Path, names: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(root, &entry.path(), names)?;
        } else if let Ok(name) = entry.path().strip_prefix(root) {
            names.insert(name.display().to_string());
        }
    }
    Ok(())
}

fn fill(folder: &Path, payload: &Payload, group: Option<u32>) -> Result<(), VolumeError> {
    fs::create_dir(folder).map_err(VolumeError::io("create", folder))?;
    ownership::folder(folder, group).map_err(VolumeError::io("chmod", folder))?;
    for (name, file) in payload {
        let path = folder.join(name);
        for parent in Path::new(name)
            .ancestors()
            .skip(1)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let parent = folder.join(parent);
            if !parent.exists() {
                fs::create_dir(&parent).map_err(VolumeError::io("create", &parent))?;
                ownership::folder(&parent, group).map_err(VolumeError::io("chmod", &parent))?;
            }
        }
        // Created closed, then given its mode whatever the umask is.
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let written = written.and_then(|mut opened| {
            io::Write::write_all(&mut opened, &file.content)?;
            chown(&path, Some(owner(file)), group)?;
            let mode = ownership::file_mode(file.mode, group);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        });
        written.map_err(VolumeError::io("write", &path))?;
    }
    Ok(())
}

/// The names a container sees: the first component of each path.
fn top_names(payload: &Payload) -> BTreeSet<&str> {
    payload
        .keys()
        .filter_map(|name| name.split('/').next())
        .collect()
}

fn link_names(volume: &Path, payload: &Payload) -> Result<(), VolumeError> {
    for name in top_names(payload) {
        let link = volume.join(name);
        let target = Path::new(DATA).join(name);
        if fs::read_link(&link).is_ok_and(|old| old == target) {
            continue;
        }
        symlink(&target, &link).map_err(VolumeError::io("link", &link))?;
    }
    Ok(())
}

fn remove_stale(volume: &Path, payload: &Payload, current: &Path) -> Result<(), VolumeError> {
    let names = top_names(payload);
    let entries = fs::read_dir(volume).map_err(VolumeError::io("read", volume))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let kept = name == DATA || Path::new(name) == current || names.contains(name);
        if kept {
            continue;
        }
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_folder {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(VolumeError::io("remove", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_payload(files: &[(&str, &str)]) -> Payload {
        let file = |content: &str| File {
            content: content.into(),
            mode: 0o640,
            user: None,
        };
        files
            .iter()
            .map(|(name, content)| ((*name).to_owned(), file(content)))
            .collect()
    }

    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }

    #[test]
    fn files_are_replaced_all_at_once() {
        if !is_root() {
            println!("skipped: giving files an owner needs root");
            return;
        }
        let folder = TestFolder::new("atomic");
        let volume = &folder.0;
        assert!(write(volume, &mk_payload(&[("a", "1"), ("d/b", "2")]), None).expect("written"));
        let first = fs::read_link(volume.join(DATA)).expect("a link");
        assert_eq!(fs::read_to_string(volume.join("a")).expect("a file"), "1");
        assert_eq!(fs::read_to_string(volume.join("d/b")).expect("a file"), "2");
        assert_eq!(
            fs::read_link(volume.join("a")).expect("a link"),
            Path::new("..data/a")
        );

        assert!(!write(volume, &mk_payload(&[("a", "1"), ("d/b", "2")]), None).expect("unchanged"));
        assert_eq!(fs::read_link(volume.join(DATA)).expect("a link"), first);

        assert!(write(volume, &mk_payload(&[("a", "3")]), None).expect("written"));
        assert_eq!(fs::read_to_string(volume.join("a")).expect("a file"), "3");
        assert!(!volume.join("d").exists() && !volume.join(&first).exists());
        let mode = fs::metadata(volume.join("a"))
            .expect("metadata")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn a_volume_is_as_open_as_an_empty_dir() {
        if !is_root() {
            println!("skipped: giving files an owner needs root");
            return;
        }
        let folder = TestFolder::new("atomic-mode");
        let volume = folder.0.join("volume");
        write(&volume, &mk_payload(&[("a", "1")]), None).expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&volume) & 0o7777, 0o777);
        // One that is there keeps what its owner made of it.
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o750)).expect("chmod");
        write(&volume, &mk_payload(&[("a", "2")]), None).expect("written");
        assert_eq!(mode(&volume) & 0o7777, 0o750);
    }

    #[test]
    fn a_write_cut_short_is_finished_by_the_next() {
        if !is_root() {
            println!("skipped: giving files an owner needs root");
            return;
        }
        let folder = TestFolder::new("atomic-cut");
        let volume = &folder.0;
        write(volume, &mk_payload(&[("a", "1")]), None).expect("written");
        symlink("..gone", volume.join(NEW_DATA)).expect("a leftover link");
        fs::create_dir(volume.join("..2000_01_01_00_00_00.1")).expect("a leftover folder");
        write(volume, &mk_payload(&[("a", "2")]), None).expect("written");
        let mut names: Vec<_> = fs::read_dir(volume)
            .expect("a folder")
            .flatten()
            .map(|entry| entry.file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        assert_eq!(
            names.len(),
            3,
            "only the data, its link and the name: {names:?}"
        );
    }

    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("kubelet-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a temporary folder");
            Self(path)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
