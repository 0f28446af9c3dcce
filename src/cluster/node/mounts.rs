//! What a node's first process mounts: the machine's root stays its base, everything that is a node's own lies on top.
//!
//! ```text
//!  /            the machine's                    /run /tmp /dev/shm   new tmpfs
//!  /etc         overlay, changes in DIR/etc      /proc /sys           new, for the node's namespaces
//!  /etc/{cni,containerd,kubernetes}  DIR/…       /sys/fs/cgroup       new, the node's cgroups are the root
//!  /var         DIR/var                          /var/log/skiff       DIR/log
//!  /run/skiff/bin   this binary under the names of its components
//! ```
//!
//! **Invariant:** nothing is ever mounted in the machine's namespace, so nothing is left when the node dies.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use super::spec::NodeSpec;
use crate::cgroup::{self, Hierarchy};
use crate::files::{self, FileError};
use crate::paths::NodePaths;

/// The folders of `/etc` that are the node's alone.
pub const OWN_ETC: [&str; 3] = ["cni", "containerd", "kubernetes"];
/// This binary under its components' names.
pub const BIN: &str = "/run/skiff/bin";
/// The names the binary is called by inside a node.
const NAMES: [&str; 5] = [
    "kube-apiserver",
    "kube-scheduler",
    "kube-controller-manager",
    "kubelet",
    "kube-proxy",
];

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot mount {what} on {target}: {source}")]
    Mount {
        what: String,
        target: PathBuf,
        source: nix::Error,
    },
    #[error("cannot find this program's own file: {0}")]
    Executable(std::io::Error),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Cgroup(#[from] cgroup::CgroupError),
}

/// This program's file, opened before anything is mounted over its path.
pub fn open_executable() -> Result<OwnedFd, MountError> {
    let path = std::env::current_exe().map_err(MountError::Executable)?;
    open(&path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|error| MountError::Executable(error.into()))
}

/// Makes the mount namespace this process is in the node's. `executable` comes from `open_executable`,
/// called in this namespace; `hierarchies` from before `/proc` is new.
pub fn set_up(
    spec: &NodeSpec,
    executable: &OwnedFd,
    hierarchies: &[Hierarchy],
) -> Result<(), MountError> {
    let paths = NodePaths::at(&spec.directory);
    flags("/", MsFlags::MS_PRIVATE)?;
    let own_file = std::env::current_exe().map_err(MountError::Executable)?;
    let_go(&[&spec.directory, &own_file]);
    mount_etc(&paths, spec.pki.as_deref())?;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    fresh("proc", "/proc", plain, "")?;
    fresh("sysfs", "/sys", plain, "")?;
    mount_cgroups(hierarchies)?;
    let nosuid = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    fresh("tmpfs", "/run", nosuid, "mode=755")?;
    fresh("tmpfs", "/tmp", nosuid, "mode=1777")?;
    fresh("tmpfs", "/dev/shm", nosuid, "mode=1777")?;
    if Path::new("/dev/mqueue").is_dir() {
        fresh("mqueue", "/dev/mqueue", plain, "")?;
    }
    mount_binary(executable)?;
    // The log folder is under the machine's /var, so it is taken hold of before that is hidden.
    files::create_directory(Path::new("/run/skiff/log"), 0o755)?;
    bind(&paths.log(), Path::new("/run/skiff/log"))?;
    bind(&paths.var(), Path::new("/var"))?;
    bind(Path::new("/run/skiff/log"), Path::new("/var/log/skiff"))?;
    files::create_directory(Path::new("/run/lock"), 0o1777)?;
    // Volumes that kubelet mounts must reach containers that ask for it.
    flags("/", MsFlags::MS_SHARED)
}

/// Lets go of the machine's mounts that will be hidden: this namespace's copies would keep its containers' file systems
/// and network namespaces alive after the machine has unmounted them. Those that `needed` paths are on stay.
fn let_go(needed: &[&Path]) {
    const HIDDEN: [&str; 6] = ["/run", "/var", "/sys", "/proc", "/tmp", "/dev/shm"];
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let targets: Vec<PathBuf> = mountinfo
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(unescape)
        .collect();
    // A mount on another comes after it.
    for target in targets.iter().rev() {
        let hidden = HIDDEN
            .iter()
            .any(|folder| target.starts_with(folder) && target != Path::new("/proc"));
        if hidden && !needed.iter().any(|path| path.starts_with(target)) {
            // One that is busy in a way that does not allow it stays, as it would have.
            let _ = nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// mountinfo writes blanks and backslashes as `\040` and the like.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = rest
            .get(1..4)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Creates the folders that are mounted from, on the machine.
pub fn prepare(paths: &NodePaths) -> Result<(), FileError> {
    for directory in [paths.etc(), paths.etc_work(), paths.log()] {
        files::create_directory(&directory, 0o755)?;
    }
    for name in OWN_ETC {
        files::create_directory(&paths.own_etc(name), 0o755)?;
        files::create_directory(&paths.etc().join(name), 0o755)?;
    }
    for directory in [
        "lib/containerd",
        "lib/kubelet/pki",
        "lib/cni",
        "log/skiff",
        "log/pods",
        "log/containers",
        "cache",
        "spool",
    ] {
        files::create_directory(&paths.var().join(directory), 0o755)?;
    }
    files::create_directory(&paths.var().join("tmp"), 0o1777)?;
    for (name, target) in [("run", "/run"), ("lock", "/run/lock")] {
        let link = paths.var().join(name);
        if std::fs::symlink_metadata(&link).is_err() {
            symlink(target, &link).map_err(|source| FileError::new("create", &link, source))?;
        }
    }
    Ok(())
}

fn mount_etc(paths: &NodePaths, pki: Option<&Path>) -> Result<(), MountError> {
    let (upper, work) = (paths.etc(), paths.etc_work());
    let options = format!(
        "lowerdir=/etc,upperdir={},workdir={}",
        upper.display(),
        work.display()
    );
    fresh("overlay", "/etc", MsFlags::empty(), &options)?;
    for name in OWN_ETC {
        bind(&paths.own_etc(name), &Path::new("/etc").join(name))?;
    }
    if let Some(pki) = pki {
        files::create_directory(Path::new("/etc/kubernetes/pki"), 0o755)?;
        bind(pki, Path::new("/etc/kubernetes/pki"))?;
    }
    Ok(())
}

fn mount_cgroups(hierarchies: &[Hierarchy]) -> Result<(), MountError> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let root = Path::new("/sys/fs/cgroup");
    if let [only] = hierarchies
        && only.is_v2()
    {
        return fresh("cgroup2", "/sys/fs/cgroup", plain, "nsdelegate")
            .or_else(|_| fresh("cgroup2", "/sys/fs/cgroup", plain, ""));
    }
    fresh("tmpfs", "/sys/fs/cgroup", plain, "mode=755")?;
    for hierarchy in hierarchies {
        let name = hierarchy.mount.file_name().unwrap_or_default();
        let target = root.join(name);
        files::create_directory(&target, 0o755)?;
        match &hierarchy.controllers {
            None => fresh_at("cgroup2", &target, plain, "")?,
            Some(named) if named.starts_with("name=") => {
                fresh_at("cgroup", &target, plain, &format!("none,{named}"))?
            }
            Some(controllers) => {
                fresh_at("cgroup", &target, plain, controllers)?;
                // `cpu,cpuacct` is also found as `cpu` and as `cpuacct`.
                for controller in controllers.split(',').filter(|_| controllers.contains(',')) {
                    let link = root.join(controller);
                    if !link.exists() {
                        symlink(name, &link)
                            .map_err(|source| FileError::new("create", &link, source))?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn mount_binary(executable: &OwnedFd) -> Result<(), MountError> {
    let folder = Path::new(BIN);
    files::create_directory(folder, 0o755)?;
    let target = folder.join("skiff");
    files::write(&target, b"", 0o755)?;
    bind(
        Path::new(&format!("/proc/self/fd/{}", executable.as_raw_fd())),
        &target,
    )?;
    for name in NAMES {
        let link = folder.join(name);
        symlink("skiff", &link).map_err(|source| FileError::new("create", &link, source))?;
    }
    Ok(())
}

fn fresh(kind: &str, target: &str, flags: MsFlags, options: &str) -> Result<(), MountError> {
    fresh_at(kind, Path::new(target), flags, options)
}

fn fresh_at(kind: &str, target: &Path, flags: MsFlags, options: &str) -> Result<(), MountError> {
    let options = (!options.is_empty()).then_some(options);
    mount(Some(kind), target, Some(kind), flags, options)
        .map_err(|source| failed(kind, target, source))
}

fn bind(from: &Path, target: &Path) -> Result<(), MountError> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), target, None::<&str>, flags, None::<&str>)
        .map_err(|source| failed(&from.to_string_lossy(), target, source))
}

/// Changes how mounts below `target` pass on to other namespaces.
fn flags(target: &str, flags: MsFlags) -> Result<(), MountError> {
    let changed = mount(
        None::<&str>,
        target,
        None::<&str>,
        MsFlags::MS_REC | flags,
        None::<&str>,
    );
    changed.map_err(|source| failed("its propagation", Path::new(target), source))
}

fn failed(what: &str, target: &Path, source: nix::Error) -> MountError {
    MountError::Mount {
        what: what.into(),
        target: target.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_mount_points_are_read() {
        assert_eq!(unescape("/a\\040b"), PathBuf::from("/a b"));
        assert_eq!(unescape("/plain"), PathBuf::from("/plain"));
        assert_eq!(unescape("/end\\0"), PathBuf::from("/end\\0"));
    }
}
