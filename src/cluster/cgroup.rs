//! The cgroups of nodes: `skiff/<cluster>/<node>` in every hierarchy the machine has, version 1, 2 or both.
//!
//! A node's first process joins them before it enters its cgroup namespace, so within the node they are the
//! root. In version 2 the node's own processes sit in the leaf `system`, since a cgroup that hands out
//! controllers may hold no process.
//!
//! **Invariant:** every process of a node is in its cgroups, so what is left of a node can always be found.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The folder of all of skiff's cgroups, under each hierarchy's root.
const TOP: &str = "skiff";
/// The leaf of a node's own processes (version 2 only).
pub const SYSTEM: &str = "system";
/// How long killed processes may take to go.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How often creating begins anew when a parent vanishes: 100 ms in all.
const CREATE_ATTEMPTS: usize = 50;
const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot read the cgroup mounts: {0}")]
    Discover(std::io::Error),
    #[error("no cgroup file system is mounted")]
    None,
    #[error("cannot create cgroup {path}: {source}")]
    Create {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot join cgroup {path}: {source}")]
    Join {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot remove cgroup {path}: {source}")]
    Remove {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("processes are left in cgroup {0}")]
    Busy(PathBuf),
}

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted, such as `/sys/fs/cgroup/memory`.
    pub mount: PathBuf,
    /// The mount options that name it (`cpu,cpuacct`, `name=systemd`); `None` for version 2.
    pub controllers: Option<String>,
}

impl Hierarchy {
    pub fn is_v2(&self) -> bool {
        self.controllers.is_none()
    }
}

/// The machine's hierarchies, each once.
pub fn hierarchies() -> Result<Vec<Hierarchy>, CgroupError> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(CgroupError::Discover)?;
    let found = parse_mounts(&mounts);
    if found.is_empty() {
        Err(CgroupError::None)
    } else {
        Ok(found)
    }
}

fn parse_mounts(mountinfo: &str) -> Vec<Hierarchy> {
    /// Super-block options that are not controllers.
    const OTHER: [&str; 8] = [
        "rw",
        "ro",
        "xattr",
        "clone_children",
        "noprefix",
        "none",
        "nsdelegate",
        "cpuset_v2_mode",
    ];
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let mut right = right.split(' ');
        let kind = right.next().unwrap_or_default();
        let options = right.nth(1).unwrap_or_default();
        let Some(mount) = left.split(' ').nth(4) else {
            continue;
        };
        let controllers = match kind {
            "cgroup2" => None,
            "cgroup" => {
                let named: Vec<&str> = options
                    .split(',')
                    .filter(|option| {
                        !OTHER.contains(option) && !option.starts_with("release_agent=")
                    })
                    .collect();
                Some(named.join(","))
            }
            _ => continue,
        };
        if !found
            .iter()
            .any(|present| present.controllers == controllers)
        {
            found.push(Hierarchy {
                mount: mount.into(),
                controllers,
            });
        }
    }
    found
}

/// The cgroups of one node, or of a whole cluster.
#[derive(Clone, Debug)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    /// Below each hierarchy's mount.
    path: PathBuf,
}

impl Cgroups {
    pub fn of_cluster(cluster: &str) -> Result<Self, CgroupError> {
        Ok(Self {
            hierarchies: hierarchies()?,
            path: Path::new(TOP).join(cluster),
        })
    }

    pub fn of_node(cluster: &str, node: &str) -> Result<Self, CgroupError> {
        let cluster = Self::of_cluster(cluster)?;
        Ok(Self {
            path: cluster.path.join(node),
            ..cluster
        })
    }

    fn directories(&self) -> impl Iterator<Item = (&Hierarchy, PathBuf)> {
        self.hierarchies
            .iter()
            .map(|hierarchy| (hierarchy, hierarchy.mount.join(&self.path)))
    }

    /// Creates them with their parents, able to take processes and to pass controllers on.
    pub fn create(&self) -> Result<(), CgroupError> {
        for (hierarchy, _) in self.directories() {
            self.create_in(hierarchy)?;
        }
        Ok(())
    }

    /// Whoever removes another node takes empty parents along, perhaps between two steps of this: then it begins anew.
    fn create_in(&self, hierarchy: &Hierarchy) -> Result<(), CgroupError> {
        for _ in 1..CREATE_ATTEMPTS {
            match self.try_create_in(hierarchy) {
                Err(CgroupError::Create { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    std::thread::sleep(LOOK_AGAIN);
                }
                done => return done,
            }
        }
        self.try_create_in(hierarchy)
    }

    fn try_create_in(&self, hierarchy: &Hierarchy) -> Result<(), CgroupError> {
        let mut directory = hierarchy.mount.clone();
        for part in &self.path {
            if hierarchy.is_v2() {
                pass_controllers_on(&directory);
            }
            let parent = directory.clone();
            directory.push(part);
            create(&directory)?;
            inherit_cpuset(&parent, &directory);
        }
        Ok(())
    }

    /// Moves this process in. The cgroup namespace entered after this has them as its root.
    pub fn join(&self) -> Result<(), CgroupError> {
        for (_, directory) in self.directories() {
            join(&directory)?;
        }
        Ok(())
    }

    /// Moves this process into the leaf for a node's own processes and lets the node's root pass its
    /// controllers on. In version 1 there is no such leaf.
    pub fn join_system(&self) -> Result<(), CgroupError> {
        for (hierarchy, directory) in self.directories() {
            if hierarchy.is_v2() {
                let leaf = directory.join(SYSTEM);
                create(&leaf)?;
                join(&leaf)?;
                pass_controllers_on(&directory);
            } else {
                join(&directory)?;
            }
        }
        Ok(())
    }

    /// Whether any of them is there.
    pub fn exist(&self) -> bool {
        self.directories().any(|(_, directory)| directory.exists())
    }

    /// Every process in them, by number in this process's namespace.
    pub fn processes(&self) -> Vec<i32> {
        let mut found: Vec<i32> = self
            .directories()
            .flat_map(|(_, directory)| processes_below(&directory))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Kills everything in them, waits until it is gone, and removes them. Those of other clusters stay; the
    /// common parent goes with the last one.
    pub fn destroy(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + KILL_PATIENCE;
        loop {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(CgroupError::Busy(self.path.clone()));
            }
            for pid in left {
                // 0 stands for a process of a namespace that cannot be seen from here.
                if pid > 1 {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        for (hierarchy, directory) in self.directories() {
            remove_tree(&directory, deadline)?;
            // Empty parents go too; one that still has children refuses, and that is right.
            let mut parent = self.path.parent();
            while let Some(path) = parent.filter(|path| !path.as_os_str().is_empty()) {
                let _ = std::fs::remove_dir(hierarchy.mount.join(path));
                parent = path.parent();
            }
        }
        Ok(())
    }
}

fn create(directory: &Path) -> Result<(), CgroupError> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Create {
                path: directory.into(),
                source: error,
            })
        }
        _ => Ok(()),
    }
}

fn join(directory: &Path) -> Result<(), CgroupError> {
    let written = std::fs::write(directory.join("cgroup.procs"), "0");
    written.map_err(|source| CgroupError::Join {
        path: directory.into(),
        source,
    })
}

/// A new version 1 cpuset is empty and takes no process until it has been given processors and memory nodes.
fn inherit_cpuset(parent: &Path, directory: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let Ok(present) = std::fs::read_to_string(directory.join(file)) else {
            continue;
        };
        if present.trim().is_empty()
            && let Ok(inherited) = std::fs::read_to_string(parent.join(file))
        {
            let _ = std::fs::write(directory.join(file), inherited.trim());
        }
    }
}

/// Each controller alone, since one that is refused (busy, threaded) must not take the others with it.
fn pass_controllers_on(directory: &Path) {
    let controllers =
        std::fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_ascii_whitespace() {
        let _ = std::fs::write(
            directory.join("cgroup.subtree_control"),
            format!("+{controller}"),
        );
    }
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn processes_below(directory: &Path) -> Vec<i32> {
    let own = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<i32> = own.lines().filter_map(|line| line.parse().ok()).collect();
    for child in children(directory) {
        found.extend(processes_below(&child));
    }
    found
}

fn remove_tree(directory: &Path, deadline: Instant) -> Result<(), CgroupError> {
    for child in children(directory) {
        remove_tree(&child, deadline)?;
    }
    loop {
        match std::fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // A process that has been reaped still counts for a moment.
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
            {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(source) => {
                return Err(CgroupError::Remove {
                    path: directory.into(),
                    source,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_both_versions_are_told_apart_and_each_counts_once() {
        let mounts = "\
31 30 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
34 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
35 31 0:28 / /elsewhere rw - cgroup cgroup rw,cpu,cpuacct";
        let names: Vec<_> = parse_mounts(mounts)
            .into_iter()
            .map(|found| (found.mount, found.controllers))
            .collect();
        assert_eq!(
            names,
            [
                (
                    "/sys/fs/cgroup/cpu,cpuacct".into(),
                    Some("cpu,cpuacct".into())
                ),
                ("/sys/fs/cgroup/systemd".into(), Some("name=systemd".into())),
                ("/sys/fs/cgroup/unified".into(), None),
            ]
        );
    }
}
