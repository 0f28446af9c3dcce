//! Extended resources that devices stand for (KEP-5004): which class a resource means, and the requests of the claim
//! that gives a pod's containers theirs.
//!
//! A resource is its class's `extendedResourceName`, or `deviceclass.resource.kubernetes.io/` and the class's name.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use apimachinery::Value;
use serde::Serialize;
use serde_json::json;

use super::view::DeviceClass;

const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Whether devices may stand for a resource of this name (IsDRAExtendedResourceName).
pub fn may_be_devices(resource: &str) -> bool {
    let is_extended = resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !resource.starts_with("requests.");
    is_extended || resource.starts_with(CLASS_PREFIX)
}

/// The class of the devices that stand for a resource: of several the newest, of equally old ones the first by name.
pub fn class_of<'a>(
    resource: &str,
    classes: &'a HashMap<String, Arc<DeviceClass>>,
) -> Option<&'a Arc<DeviceClass>> {
    if let Some(class) = resource.strip_prefix(CLASS_PREFIX) {
        return classes.get(class);
    }
    let mut named: Vec<_> = classes.values().collect();
    named.retain(|class| class.spec.extended_resource_name.as_deref() == Some(resource));
    let age = |class: &&Arc<DeviceClass>| {
        let meta = &class.metadata;
        (meta.creation_timestamp.clone(), Reverse(meta.name.clone()))
    };
    named.into_iter().max_by_key(age)
}

/// A container that asks for resources that devices may stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerAsk {
    /// Its place among the init containers and the containers.
    pub place: usize,
    pub name: String,
    /// It ends before the containers begin: an init container that is no sidecar.
    pub is_brief: bool,
    /// Each with how many, and its place among all that the container asks for, by name.
    pub resources: Vec<(Arc<str>, i64, usize)>,
}

impl ContainerAsk {
    /// How many of a resource, with the name of the request for it.
    fn of(&self, resource: &str) -> Option<(i64, String)> {
        let mut own = self.resources.iter();
        let (_, count, index) = own.find(|(name, count, _)| **name == *resource && *count > 0)?;
        Some((*count, format!("container-{}-request-{index}", self.place)))
    }
}

/// A container's resource with the request whose devices it is given (ContainerExtendedResourceRequest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mapping {
    container_name: String,
    resource_name: String,
    request_name: String,
}

/// A request by its name, with how many devices.
type Request = (String, i64);

/// What the claim of a pod asks for, each resource of its class: its `spec`, and which container is given what.
///
/// Containers that go on running have a request each. Those that end before may be given what later ones will have,
/// and share one request for the most that any of them needs beyond that.
pub fn claim(
    containers: &[ContainerAsk],
    wanted: &[(Arc<str>, Arc<DeviceClass>)],
) -> (Value, Vec<Mapping>) {
    let mut requests: Vec<Value> = Vec::new();
    let mut mappings = Vec::new();
    for (resource, class) in wanted {
        let (own, given) = of_resource(containers, resource);
        requests.extend(own.into_iter().map(|(name, count)| {
            let class = &class.metadata.name;
            let exactly =
                json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
            json!({"name": name, "exactly": exactly})
        }));
        mappings.extend(given);
    }
    requests.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    (json!({"devices": {"requests": requests}}), mappings)
}

fn of_resource(containers: &[ContainerAsk], resource: &str) -> (Vec<Request>, Vec<Mapping>) {
    let mapping = |container: &ContainerAsk, request: &str| Mapping {
        container_name: container.name.clone(),
        resource_name: resource.into(),
        request_name: request.into(),
    };
    let mut lasting: Vec<(usize, Request)> = Vec::new();
    let mut mappings = Vec::new();
    for container in containers.iter().filter(|one| !one.is_brief) {
        if let Some((count, name)) = container.of(resource) {
            mappings.push(mapping(container, &name));
            lasting.push((container.place, (name, count)));
        }
    }
    let mut largest: Option<Request> = None;
    // Those of `mappings` that are given the largest request, whichever it turns out to be.
    let mut of_largest = Vec::new();
    for container in containers.iter().filter(|one| one.is_brief) {
        let Some((asked, name)) = container.of(resource) else {
            continue;
        };
        let mut had = 0;
        for (_, (later, count)) in lasting
            .iter()
            .filter(|(place, _)| *place >= container.place)
        {
            if had < asked {
                had += count;
                mappings.push(mapping(container, later));
            }
        }
        if had < asked {
            of_largest.push(mappings.len());
            mappings.push(mapping(container, &name));
            if largest.as_ref().is_none_or(|(_, most)| *most < asked - had) {
                largest = Some((name, asked - had));
            }
        }
    }
    if let Some((name, _)) = &largest {
        for place in of_largest {
            mappings[place].request_name.clone_from(name);
        }
    }
    let lasting = lasting.into_iter().map(|(_, request)| request);
    (largest.into_iter().chain(lasting).collect(), mappings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, resource: Option<&str>, created: &str) -> (String, Arc<DeviceClass>) {
        let mut value =
            json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": {}});
        if let Some(resource) = resource {
            value["spec"]["extendedResourceName"] = json!(resource);
        }
        let class = serde_json::from_value(value).expect("a class");
        (name.into(), Arc::new(class))
    }

    #[test]
    fn a_resource_means_the_newest_class_that_names_it_or_the_one_it_names() {
        let classes = HashMap::from([
            class("a", Some("example.com/gpu"), "2026-01-01T00:00:00Z"),
            class("b", Some("example.com/gpu"), "2026-02-01T00:00:00Z"),
            class("c", Some("example.com/gpu"), "2026-02-01T00:00:00Z"),
            class("d", None, "2026-03-01T00:00:00Z"),
        ]);
        let name = |resource: &str| Some(class_of(resource, &classes)?.metadata.name.clone());
        assert_eq!(name("example.com/gpu").as_deref(), Some("b"));
        assert_eq!(
            name("deviceclass.resource.kubernetes.io/d").as_deref(),
            Some("d")
        );
        assert_eq!(
            name("deviceclass.resource.kubernetes.io/a").as_deref(),
            Some("a")
        );
        assert_eq!(name("example.com/other"), None);
        for (resource, expected) in [
            ("example.com/gpu", true),
            ("deviceclass.resource.kubernetes.io/d", true),
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("kubernetes.io/x", false),
            ("requests.example.com/gpu", false),
        ] {
            assert_eq!(may_be_devices(resource), expected, "{resource}");
        }
    }

    fn ask(place: usize, is_brief: bool, count: i64) -> ContainerAsk {
        let name = format!("c{place}");
        let resources = vec![("example.com/gpu".into(), count, 1)];
        ContainerAsk {
            place,
            name,
            is_brief,
            resources,
        }
    }

    /// Requests as `name*count`, mappings as `container>request`.
    #[track_caller]
    fn check(containers: &[ContainerAsk], requests: &[&str], given: &[&str]) {
        let (_, class) = class("gpu", Some("example.com/gpu"), "");
        let (spec, mappings) = claim(containers, &[("example.com/gpu".into(), class)]);
        let told = spec["devices"]["requests"]
            .as_array()
            .expect("a list")
            .iter();
        let told: Vec<String> = told
            .map(|one| {
                let name = one["name"].as_str().unwrap_or("").replace("container-", "");
                format!(
                    "{}*{}",
                    name.replace("-request-1", ""),
                    one["exactly"]["count"]
                )
            })
            .collect();
        assert_eq!(told, requests);
        let told = mappings.iter().map(|one| {
            let request = one.request_name.replace("container-", "");
            format!(
                "{}>{}",
                one.container_name,
                request.replace("-request-1", "")
            )
        });
        assert_eq!(told.collect::<Vec<_>>(), given);
    }

    #[test]
    fn containers_that_end_early_are_given_what_later_ones_will_have() {
        check(
            &[ask(0, false, 1), ask(1, false, 2)],
            &["0*1", "1*2"],
            &["c0>0", "c1>1"],
        );
        check(
            &[ask(0, true, 2), ask(1, false, 2)],
            &["1*2"],
            &["c1>1", "c0>1"],
        );
        // What a sidecar before it has is not its.
        check(
            &[ask(0, false, 2), ask(1, true, 1)],
            &["0*2", "1*1"],
            &["c0>0", "c1>1"],
        );
        // Two that need more share the larger of what they lack.
        check(
            &[ask(0, true, 3), ask(1, true, 5), ask(2, false, 2)],
            &["1*3", "2*2"],
            &["c2>2", "c0>2", "c0>1", "c1>2", "c1>1"],
        );
        check(&[ask(0, true, 0), ask(1, false, 1)], &["1*1"], &["c1>1"]);
    }
}
