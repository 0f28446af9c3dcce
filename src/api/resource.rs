//! Owns: what a resource is (names, scope, verbs, columns, storage) and looking one up. Knows nothing of how it is
//! served.

use apimachinery::schema::Message;

pub use crate::generated::resources::RESOURCES;

/// One resource in one version.
#[derive(Debug)]
pub struct Resource {
    /// API group, "" for the core one.
    pub group: &'static str,
    /// API version, `v1`.
    pub version: &'static str,
    /// Plural name as in paths, `pods`.
    pub plural: &'static str,
    /// Kind, `Pod`.
    pub kind: &'static str,
    /// Singular name, `pod`.
    pub singular: &'static str,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether it is served without `--runtime-config`.
    pub default_on: bool,
    /// Short names, `po`.
    pub short_names: &'static [&'static str],
    /// Categories, `all`.
    pub categories: &'static [&'static str],
    /// Verbs, sorted.
    pub verbs: &'static [&'static str],
    /// What discovery shows as `storageVersionHash`, "" for what is not stored.
    pub storage_version_hash: &'static str,
    /// Key prefix in etcd without a slash at the end, `/registry/pods`; "" for what is not stored.
    pub etcd_prefix: &'static str,
    /// Group objects are stored as (events.k8s.io stores core events).
    pub storage_group: &'static str,
    /// Version objects are stored as.
    pub storage_version: &'static str,
    /// Subresources, sorted by name.
    pub subresources: &'static [Subresource],
    /// Table columns, wide ones included.
    pub columns: &'static [Column],
    /// Field labels accepted in field selectors.
    pub field_labels: &'static [&'static str],
    /// Shape of an object.
    pub schema: &'static Message,
}

/// One subresource.
#[derive(Debug)]
pub struct Subresource {
    /// Name as in paths, `status`.
    pub name: &'static str,
    /// Group of the kind it takes.
    pub group: &'static str,
    /// Version of the kind it takes.
    pub version: &'static str,
    /// Kind it takes, `Scale`.
    pub kind: &'static str,
    /// Verbs, sorted.
    pub verbs: &'static [&'static str],
    /// Shape of what it takes.
    pub schema: &'static Message,
}

impl Subresource {
    /// `v1`, or `authentication.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        apimachinery::meta::join_group_version(self.group, self.version)
    }
}

/// One column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// OpenAPI type of the cells.
    pub ty: &'static str,
    /// OpenAPI format; `name` marks the column with the object's name.
    pub format: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub priority: i32,
}

impl Resource {
    /// `v1`, or `apps/v1`.
    pub fn api_version(&self) -> String {
        apimachinery::meta::join_group_version(self.group, self.version)
    }

    /// `pods`, or `deployments.apps`, as messages name it.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// The kind of a list, `PodList`.
    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }

    /// The path all objects are listed at, or one namespace's: `/apis/apps/v1/namespaces/default/deployments`.
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() {
            "/api/"
        } else {
            "/apis/"
        };
        let version = self.api_version();
        if self.namespaced && !namespace.is_empty() {
            format!("{root}{version}/namespaces/{namespace}/{}", self.plural)
        } else {
            format!("{root}{version}/{}", self.plural)
        }
    }

    /// The key of an object in etcd.
    pub fn etcd_key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("{}/{namespace}/{name}", self.etcd_prefix)
        } else {
            format!("{}/{name}", self.etcd_prefix)
        }
    }

    /// Whether the verb is served.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }

    /// The resource objects are stored as; itself for most.
    pub fn storage(&'static self) -> &'static Resource {
        if self.group == self.storage_group && self.version == self.storage_version {
            return self;
        }
        find(self.storage_group, self.storage_version, self.plural).unwrap_or(self)
    }
}

/// The resource served at this group, version and plural name.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES
        .iter()
        .copied()
        .find(|r| r.plural == plural && r.group == group && r.version == version)
}

/// The resource of this kind.
pub fn find_kind(group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
    RESOURCES
        .iter()
        .copied()
        .find(|r| r.kind == kind && r.group == group && r.version == version)
}

/// The type of this OpenAPI name.
pub fn message(name: &str) -> Option<&'static Message> {
    let all = crate::generated::schema::MESSAGES;
    all.binary_search_by(|message| (*message.name).cmp(name))
        .ok()
        .map(|index| all[index])
}

/// The type of any kind, lists, options and reviews included. Options and the like of metav1 are kinds of every group.
pub fn message_for(group: &str, version: &str, kind: &str) -> Option<&'static Message> {
    let all = crate::generated::schema::KINDS;
    let lookup = |group: &str, version: &str| {
        all.binary_search_by(|(g, v, k, _)| (*g, *v, *k).cmp(&(group, version, kind)))
            .ok()
            .map(|index| all[index].3)
    };
    lookup(group, version).or_else(|| {
        let found = lookup("", "v1")?;
        found
            .name
            .starts_with("io.k8s.apimachinery.pkg.apis.meta.v1.")
            .then_some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::r;

    #[test]
    fn resources_are_found_by_name_and_kind() {
        for resource in RESOURCES {
            let found = find(resource.group, resource.version, resource.plural).expect("itself");
            assert!(std::ptr::eq(found, *resource));
            let found = find_kind(resource.group, resource.version, resource.kind).expect("itself");
            assert!(std::ptr::eq(found, *resource), "{}", resource.kind);
            let message =
                message_for(resource.group, resource.version, resource.kind).expect("has a type");
            assert!(std::ptr::eq(message, resource.schema));
            assert!(std::ptr::eq(
                crate::message(&message.name).expect("named"),
                message
            ));
        }
        assert!(find("", "v1", "deployments").is_none());
    }

    #[test]
    fn stored_resources_have_a_prefix_and_lists() {
        for resource in RESOURCES.iter().filter(|r| r.has_verb("watch")) {
            assert!(
                resource.etcd_prefix.starts_with("/registry/"),
                "{}",
                resource.plural
            );
            assert!(!resource.storage_version_hash.is_empty());
            let list = message_for(resource.group, resource.version, &resource.list_kind());
            assert!(list.is_some(), "{} has no list", resource.kind);
            assert_eq!(resource.storage().etcd_prefix, resource.etcd_prefix);
        }
    }

    #[test]
    fn paths_and_keys_are_upstreams() {
        assert_eq!(r::PODS.path("default"), "/api/v1/namespaces/default/pods");
        assert_eq!(r::DEPLOYMENTS.path(""), "/apis/apps/v1/deployments");
        assert_eq!(r::NODES.etcd_key("", "n"), "/registry/minions/n");
        assert_eq!(
            r::SERVICES.etcd_key("d", "s"),
            "/registry/services/specs/d/s"
        );
        assert_eq!(r::EVENTS_EVENTS.storage().group, "");
        assert_eq!(r::DEPLOYMENTS.qualified(), "deployments.apps");
    }

    #[test]
    fn options_are_kinds_of_every_group() {
        assert!(message_for("apps", "v1", "DeleteOptions").is_some());
        assert!(message_for("example.com", "v3", "DeleteOptions").is_some());
        assert!(message_for("example.com", "v3", "Pod").is_none());
    }

    #[test]
    fn absent_fields_are_shown_as_go_shows_them() {
        let shown = |path: &str| {
            apimachinery::schema::shown_absent(crate::r::DEPLOYMENTS.schema, &path.into())
        };
        assert_eq!(shown("spec.selector"), "null");
        assert_eq!(shown("spec.replicas"), "null");
        assert_eq!(shown("spec.template.spec"), "null");
        assert_eq!(
            shown("spec.template.metadata.labels"),
            serde_json::Value::Null
        );
        assert_eq!(
            shown("spec.template.spec.containers[0].ports"),
            serde_json::Value::Null
        );
        assert_eq!(shown("spec.template.spec.containers[0].image"), "");
        assert_eq!(shown("spec.minReadySeconds"), 0);
        assert_eq!(shown("spec.template.metadata.labels[a.b/c]"), "null");
        assert_eq!(shown("nothing.here"), "null");
    }
}
