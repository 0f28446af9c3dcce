//! The cgroup of each pod: `kubepods[/burstable|/besteffort]/pod<uid>`, with the
//! pod's whole CPU and memory, on cgroup v1 and v2. The runtime makes the
//! containers' cgroups below it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::k8s::Pod;
use crate::pod::spec;
use crate::resources::{self, Totals};

/// v1 controllers that carry a pod's limits.
const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// Where the pods of each class are under `kubepods`.
const CLASSES: [&str; 3] = ["", "/burstable", "/besteffort"];

/// A cgroup could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[error("cgroup {path}: {source}")]
pub struct CgroupError {
    path: String,
    source: io::Error,
}

/// Where cgroups are.
#[derive(Clone, Debug)]
pub struct Cgroups {
    /// `--cgroup-root`; empty leaves everything to the runtime.
    root: String,
    hierarchy: Hierarchy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// One tree for all controllers.
    Unified(PathBuf),
    /// A tree per controller: its name and mount point.
    Legacy(Vec<(String, PathBuf)>),
}

impl Cgroups {
    /// Looks at what is mounted.
    pub fn new(root: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            root: root.trim_end_matches('/').to_owned(),
            hierarchy: hierarchy(&mounts),
        }
        .disabled_if(root.is_empty())
    }

    fn disabled_if(mut self, disabled: bool) -> Self {
        if disabled {
            self.hierarchy = Hierarchy::Legacy(Vec::new());
        }
        self
    }

    fn is_disabled(&self) -> bool {
        self.hierarchy == Hierarchy::Legacy(Vec::new())
    }

    /// The parent of a pod's containers; empty when the runtime's default is used.
    pub fn parent(&self, pod: &Pod) -> String {
        if self.is_disabled() {
            return String::new();
        }
        let [guaranteed, burstable, best_effort] = CLASSES;
        let class = match resources::qos_class(pod) {
            "Guaranteed" => guaranteed,
            "Burstable" => burstable,
            _ => best_effort,
        };
        format!("{}/kubepods{class}/pod{}", self.root, spec::uid(pod))
    }

    /// Makes the pod's cgroup and sets its limits.
    pub fn ensure(&self, pod: &Pod) -> Result<(), CgroupError> {
        let parent = self.parent(pod);
        let totals = resources::totals(pod);
        match &self.hierarchy {
            Hierarchy::Unified(mount) => {
                let folder = below(mount, &parent);
                make(&folder)?;
                delegate(mount, &folder);
                for (file, value) in unified(&totals) {
                    set(&folder, file, &value);
                }
            }
            Hierarchy::Legacy(mounts) => {
                for (controller, mount) in mounts {
                    let folder = below(mount, &parent);
                    make(&folder)?;
                    for (file, value) in legacy(controller, &totals) {
                        set(&folder, file, &value);
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes what is left of the cgroup of the pod `uid`, whatever its class.
    /// Its processes are gone by now.
    pub fn remove(&self, uid: &str) {
        if self.is_disabled() {
            return;
        }
        let trees = match &self.hierarchy {
            Hierarchy::Unified(mount) => vec![mount.clone()],
            // The runtime made it in every tree, not only in those with limits.
            Hierarchy::Legacy(mounts) => {
                let folder = mounts.first().and_then(|(_, mount)| mount.parent());
                let entries = folder.and_then(|folder| fs::read_dir(folder).ok());
                entries
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.path())
                    .collect()
            }
        };
        for tree in trees {
            for class in CLASSES {
                remove(&below(
                    &tree,
                    &format!("{}/kubepods{class}/pod{uid}", self.root),
                ));
            }
        }
    }
}

fn below(mount: &Path, cgroup: &str) -> PathBuf {
    mount.join(cgroup.trim_start_matches('/'))
}

fn make(folder: &Path) -> Result<(), CgroupError> {
    let path = || folder.display().to_string();
    fs::create_dir_all(folder).map_err(|source| CgroupError {
        path: path(),
        source,
    })
}

/// Limits are best effort: a kernel without a controller runs pods all the same.
fn set(folder: &Path, file: &str, value: &str) {
    if let Err(error) = fs::write(folder.join(file), value) {
        tracing::debug!(%error, cgroup = %folder.display(), file, value, "cannot set a limit");
    }
}

/// v2 gives a cgroup only the controllers that each cgroup above hands down.
fn delegate(mount: &Path, folder: &Path) {
    let above: Vec<_> = folder
        .ancestors()
        .skip(1)
        .take_while(|path| path.starts_with(mount))
        .collect();
    for path in above.into_iter().rev() {
        for controller in ["+cpu", "+memory", "+pids", "+cpuset", "+io", "+hugetlb"] {
            set(path, "cgroup.subtree_control", controller);
        }
    }
}

fn unified(totals: &Totals) -> Vec<(&'static str, String)> {
    let shares = resources::shares(totals.cpu_request);
    // The conversion that runtimes use from [2, 262144] to [1, 10000].
    let weight = 1 + (shares - 2) * 9999 / 262_142;
    let quota = match resources::quota(totals.cpu_limit) {
        0 => "max 100000".to_owned(),
        quota => format!("{quota} 100000"),
    };
    let memory = match totals.memory_limit {
        0 => "max".to_owned(),
        limit => limit.to_string(),
    };
    vec![
        ("cpu.weight", weight.to_string()),
        ("cpu.max", quota),
        ("memory.max", memory),
    ]
}

fn legacy(controller: &str, totals: &Totals) -> Vec<(&'static str, String)> {
    match controller {
        CPU => {
            let quota = match resources::quota(totals.cpu_limit) {
                0 => -1,
                quota => quota,
            };
            vec![
                (
                    "cpu.shares",
                    resources::shares(totals.cpu_request).to_string(),
                ),
                ("cpu.cfs_period_us", "100000".to_owned()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ]
        }
        MEMORY if totals.memory_limit > 0 => {
            vec![("memory.limit_in_bytes", totals.memory_limit.to_string())]
        }
        _ => Vec::new(),
    }
}

/// Cgroups are removed from the leaves up, and only as empty folders.
fn remove(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%error, cgroup = %folder.display(), "cannot remove a cgroup");
        }
        _ => {}
    }
}

/// v1 if any of the controllers with limits has a tree of its own, as on hybrid
/// systems where the v2 tree has no controllers.
fn hierarchy(mountinfo: &str) -> Hierarchy {
    let mut legacy = Vec::new();
    let mut unified = None;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let Some(point) = left.split(' ').nth(4) else {
            continue;
        };
        let mut right = right.split(' ');
        let (kind, options) = (
            right.next().unwrap_or_default(),
            right.nth(1).unwrap_or_default(),
        );
        match kind {
            "cgroup2" => unified = Some(PathBuf::from(point)),
            "cgroup" => {
                let mut options = options.split(',');
                let found = options.find(|option| [CPU, MEMORY].contains(option));
                legacy.extend(found.map(|name| (name.to_owned(), PathBuf::from(point))));
            }
            _ => {}
        }
    }
    match unified {
        Some(unified) if legacy.is_empty() => Hierarchy::Unified(unified),
        _ => Hierarchy::Legacy(legacy),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    const V1: &str = "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "40 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn both_kinds_of_hierarchy_are_told_apart() {
        let legacy = Hierarchy::Legacy(vec![
            (
                "cpu".to_owned(),
                PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"),
            ),
            ("memory".to_owned(), PathBuf::from("/sys/fs/cgroup/memory")),
        ]);
        assert_eq!(hierarchy(V1), legacy);
        assert_eq!(hierarchy(&format!("{V1}{HYBRID}")), legacy);
        assert_eq!(
            hierarchy(V2),
            Hierarchy::Unified(PathBuf::from("/sys/fs/cgroup"))
        );
    }

    #[test]
    fn a_pods_cgroup_is_by_its_class_under_the_root() {
        let cgroups = Cgroups {
            root: "/lab".to_owned(),
            hierarchy: hierarchy(V2),
        };
        let pod = mk_pod(json!({"containers": [{"name": "c"}]}));
        assert_eq!(cgroups.parent(&pod), "/lab/kubepods/besteffort/podu-1");
    }

    #[test]
    fn limits_are_written_in_each_kinds_units() {
        let totals = Totals {
            cpu_request: 500,
            cpu_limit: 1000,
            memory_limit: 1 << 20,
            ..Totals::default()
        };
        let expected = [
            ("cpu.weight", "20"),
            ("cpu.max", "100000 100000"),
            ("memory.max", "1048576"),
        ];
        assert_eq!(
            unified(&totals),
            expected.map(|(file, value)| (file, value.to_owned()))
        );
        assert_eq!(
            legacy("cpu", &totals)[2],
            ("cpu.cfs_quota_us", "100000".to_owned())
        );
    }
}
