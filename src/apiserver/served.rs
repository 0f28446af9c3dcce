//! Which of the known resources this server serves: the stable ones, and what `--runtime-config` turns on or off.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::Resource;
use parking_lot::RwLock;

use crate::crd::Version;

/// The served resources: the built-in ones in the order of `api::RESOURCES`, and the custom ones there are now.
pub struct Served {
    fixed: Vec<&'static Resource>,
    table: RwLock<Arc<Table>>,
}

/// The served resources at one time.
struct Table {
    /// Grows with each change of the custom ones.
    generation: u64,
    resources: Vec<&'static Resource>,
    /// Positions in `resources` by version, plural and group.
    by_name: HashMap<(&'static str, &'static str, &'static str), usize>,
    /// Custom versions, for what their definitions say of them.
    custom: Vec<&'static Version>,
    /// Group and version pairs in discovery's order.
    versions: Vec<(&'static str, &'static str)>,
}

/// Groups in the order discovery shows them (upstream's `groupPriorityMinimum`).
const GROUPS: &[&str] = &[
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "storagemigration.k8s.io",
];

impl Served {
    pub fn new(runtime_config: &BTreeMap<String, bool>) -> Self {
        let resources: Vec<&'static Resource> = api::RESOURCES
            .iter()
            .copied()
            .filter(|resource| is_on(resource, runtime_config))
            .collect();
        let table = Table::new(0, resources.clone(), Vec::new());
        Self {
            fixed: resources,
            table: RwLock::new(Arc::new(table)),
        }
    }

    /// Serves these custom versions from now on, beside the built-in resources.
    pub fn set_custom(&self, custom: Vec<&'static Version>) {
        let mut table = self.table.write();
        let mut resources = self.fixed.clone();
        resources.extend(custom.iter().map(|version| &version.resource));
        *table = Arc::new(Table::new(table.generation + 1, resources, custom));
    }

    /// The custom versions that are served.
    pub fn custom(&self) -> Vec<&'static Version> {
        self.table().custom.clone()
    }

    /// Moves whenever what is served changes.
    pub fn generation(&self) -> u64 {
        self.table.read().generation
    }

    /// Whether nothing but built-in resources is served at a path of a group.
    pub fn is_fixed(&self, group: &str) -> bool {
        self.fixed.iter().any(|resource| resource.group == group)
    }

    fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    pub fn resources(&self) -> Vec<&'static Resource> {
        self.table().resources.clone()
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
        let table = self.table.read();
        table
            .by_name
            .get(&(plural, group, version))
            .map(|at| table.resources[*at])
    }

    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.table.read().versions.contains(&(group, version))
    }

    /// Groups in discovery's order; the core group, `""`, comes first.
    pub fn groups(&self) -> Vec<&'static str> {
        let table = self.table();
        let mut groups: Vec<_> = table.versions.iter().map(|(group, _)| *group).collect();
        groups.dedup();
        groups
    }

    /// A group's versions, the preferred one first.
    pub fn versions(&self, group: &str) -> Vec<&'static str> {
        self.table()
            .versions
            .iter()
            .filter(|(of, _)| *of == group)
            .map(|(_, version)| *version)
            .collect()
    }

    /// The resources of a group version, sorted by plural.
    pub fn of_version(&self, group: &str, version: &str) -> Vec<&'static Resource> {
        let mut resources: Vec<_> = self
            .table()
            .resources
            .iter()
            .copied()
            .filter(|resource| resource.group == group && resource.version == version)
            .collect();
        resources.sort_by_key(|resource| resource.plural);
        resources
    }
}

impl Table {
    fn new(
        generation: u64,
        resources: Vec<&'static Resource>,
        custom: Vec<&'static Version>,
    ) -> Self {
        let by_name = resources
            .iter()
            .enumerate()
            .map(|(at, resource)| ((resource.plural, resource.group, resource.version), at))
            .collect();
        let mut versions: Vec<_> = resources
            .iter()
            .map(|resource| (resource.group, resource.version))
            .collect();
        versions.sort_by(|a, b| {
            group_rank(a.0)
                .cmp(&group_rank(b.0))
                .then(version_rank(b.1).cmp(&version_rank(a.1)))
        });
        versions.dedup();
        Self {
            generation,
            resources,
            by_name,
            custom,
            versions,
        }
    }
}

fn group_rank(group: &str) -> (usize, &str) {
    let at = GROUPS.iter().position(|known| *known == group);
    (at.unwrap_or(GROUPS.len()), group)
}

/// Orders versions as upstream's `CompareKubeAwareVersionStrings`: v2 > v1 > v1beta2 > v1beta1 > v1alpha1.
fn version_rank(version: &str) -> (u8, u32, u32) {
    let rest = version.strip_prefix('v').unwrap_or(version);
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let major = rest[..digits].parse().unwrap_or(0);
    let stage = &rest[digits..];
    let minor = |prefix: &str| {
        stage
            .strip_prefix(prefix)
            .and_then(|number| number.parse().ok())
    };
    match (stage, minor("beta"), minor("alpha")) {
        ("", _, _) => (3, major, 0),
        (_, Some(beta), _) => (2, major, beta),
        (_, _, Some(alpha)) => (1, major, alpha),
        _ => (0, major, 0),
    }
}

/// The most specific setting counts: resource, version, stage, all, and then the default.
fn is_on(resource: &Resource, config: &BTreeMap<String, bool>) -> bool {
    let version = resource.api_version();
    let stage = match version_rank(resource.version).0 {
        3 => "api/ga",
        2 => "api/beta",
        _ => "api/alpha",
    };
    let keys = [
        format!("{version}/{}", resource.plural),
        version.clone(),
        format!("api/{version}"),
        stage.to_owned(),
        "api/all".to_owned(),
    ];
    keys.iter()
        .find_map(|key| config.get(key).copied())
        .unwrap_or(resource.default_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(config: &[(&str, bool)]) -> Served {
        Served::new(
            &config
                .iter()
                .map(|(key, on)| ((*key).to_owned(), *on))
                .collect(),
        )
    }

    #[test]
    fn only_stable_resources_are_served_by_default() {
        let served = served(&[]);
        assert!(served.find("", "v1", "pods").is_some());
        assert!(served.serves("apps", "v1"));
        assert!(!served.serves("internal.apiserver.k8s.io", "v1alpha1"));
        assert_eq!(served.versions("autoscaling"), ["v2", "v1"]);
        assert_eq!(served.groups()[..2], ["", "apiregistration.k8s.io"]);
    }

    #[test]
    fn the_most_specific_runtime_config_counts() {
        let all = served(&[
            ("api/all", true),
            ("api/alpha", false),
            ("storage.k8s.io/v1beta1", false),
        ]);
        assert!(!all.serves("internal.apiserver.k8s.io", "v1alpha1"));
        assert!(all.serves("networking.k8s.io", "v1beta1"));
        assert!(!all.serves("storage.k8s.io", "v1beta1"));
        let one = served(&[("batch/v1/cronjobs", false)]);
        assert!(one.find("batch", "v1", "jobs").is_some());
        assert!(one.find("batch", "v1", "cronjobs").is_none());
    }

    #[test]
    fn versions_are_ordered_by_stability_and_then_by_number() {
        let mut versions = ["v1beta1", "v1", "v1alpha3", "v2", "v1beta2", "v2alpha1"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
        assert_eq!(
            versions,
            ["v2", "v1", "v1beta2", "v1beta1", "v2alpha1", "v1alpha3"]
        );
    }
}
