//! EndpointSlices: their shape, and the fewest writes that make them hold what they should.

use std::collections::{BTreeMap, BTreeSet};

use api::view::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// discovery.k8s.io/v1 EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    pub address_type: String,
    #[serde(deserialize_with = "null_is_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<Port>,
}

/// One backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    pub addresses: Vec<String>,
    pub conditions: Conditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Hints>,
}

/// From where it should be used (discovery/v1 EndpointHints).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<Named>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub for_nodes: Vec<Named>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Named {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Conditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// What all slices of one owner have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owner {
    pub namespace: String,
    /// The service's name, from which the slices' are generated.
    pub name: String,
    pub reference: OwnerReference,
    pub labels: BTreeMap<String, String>,
    /// `None` leaves those that slices have.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Endpoints to be, by address type and ports. An address type without endpoints has one entry without ports.
pub type Desired = BTreeMap<(String, Vec<Port>), Vec<Endpoint>>;

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Create(EndpointSlice),
    Update(EndpointSlice),
    Delete(String),
}

/// The writes that make `existing` (all slices of the owner) hold `desired`, at most `max` endpoints a slice.
/// Endpoints stay in the slice they are in; free places are filled before slices are made.
pub fn plan(
    owner: &Owner,
    existing: &[&EndpointSlice],
    desired: Desired,
    max: usize,
) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut unused: Vec<&EndpointSlice> = Vec::new();
    let mut by_group: BTreeMap<(String, Vec<Port>), Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in existing {
        let mut ports = slice.ports.clone();
        ports.sort();
        let group = (slice.address_type.clone(), ports);
        if desired.contains_key(&group) && !slice.metadata.is_deleting() {
            by_group.entry(group).or_default().push(slice);
        } else if !slice.metadata.is_deleting() {
            unused.push(slice);
        }
    }
    for (group, endpoints) in desired {
        let slices = by_group.remove(&group).unwrap_or_default();
        plan_group(
            owner,
            &group,
            slices,
            endpoints,
            max,
            &mut unused,
            &mut actions,
        );
    }
    actions.extend(
        unused
            .into_iter()
            .map(|slice| Action::Delete(slice.metadata.name.clone())),
    );
    actions
}

fn plan_group<'a>(
    owner: &Owner,
    group: &(String, Vec<Port>),
    slices: Vec<&'a EndpointSlice>,
    endpoints: Vec<Endpoint>,
    max: usize,
    unused: &mut Vec<&'a EndpointSlice>,
    actions: &mut Vec<Action>,
) {
    let was_empty = endpoints.is_empty();
    let mut wanted: BTreeMap<String, Endpoint> = BTreeMap::new();
    for endpoint in endpoints {
        wanted.insert(identity(&endpoint), endpoint);
    }
    let mut kept: Vec<(&EndpointSlice, Vec<Endpoint>)> = Vec::new();
    for slice in slices {
        let stay = slice
            .endpoints
            .iter()
            .filter_map(|endpoint| wanted.remove(&identity(endpoint)));
        let stay: Vec<Endpoint> = stay.take(max).collect();
        kept.push((slice, stay));
    }
    let mut left = wanted.into_values();
    // Slices that must be written anyway are filled first, then any that have room.
    kept.sort_by_key(|(slice, stay)| slice.endpoints == *stay);
    for (_, stay) in &mut kept {
        let room = max.saturating_sub(stay.len());
        stay.extend(left.by_ref().take(room));
    }
    let mut has_slice = false;
    for (slice, stay) in kept {
        if stay.is_empty() && !(was_empty && !has_slice) {
            unused.push(slice);
            continue;
        }
        has_slice = true;
        let mut new = fill(owner, group, stay);
        new.metadata = merged(owner, &slice.metadata);
        if new.metadata != slice.metadata
            || new.endpoints != slice.endpoints
            || new.ports != slice.ports
        {
            actions.push(Action::Update(new));
        }
    }
    let left: Vec<Endpoint> = left.collect();
    if was_empty && !has_slice {
        // A slice that would be deleted otherwise is emptied instead.
        let same_type = unused
            .iter()
            .position(|slice| slice.address_type == group.0);
        match same_type.map(|index| unused.remove(index)) {
            Some(slice) => {
                let mut new = fill(owner, group, Vec::new());
                new.metadata = merged(owner, &slice.metadata);
                actions.push(Action::Update(new));
            }
            None => actions.push(Action::Create(fill(owner, group, Vec::new()))),
        }
    }
    for part in left.chunks(max) {
        actions.push(Action::Create(fill(owner, group, part.to_vec())));
    }
}

/// What makes an endpoint the same one in another state.
fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint
        .target_ref
        .as_ref()
        .map_or("", |target| target.uid.as_str());
    format!("{} {uid}", endpoint.addresses.join(","))
}

fn fill(
    owner: &Owner,
    (address_type, ports): &(String, Vec<Port>),
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    EndpointSlice {
        api_version: "discovery.k8s.io/v1".into(),
        kind: "EndpointSlice".into(),
        metadata: ObjectMeta {
            generate_name: format!("{}-", owner.name),
            namespace: owner.namespace.clone(),
            labels: owner.labels.clone(),
            annotations: owner.annotations.clone().unwrap_or_default(),
            owner_references: vec![owner.reference.clone()],
            ..ObjectMeta::default()
        },
        address_type: address_type.clone(),
        endpoints,
        ports: ports.clone(),
    }
}

/// The metadata of a slice with what the owner decides brought up to date.
fn merged(owner: &Owner, old: &ObjectMeta) -> ObjectMeta {
    let annotations = owner.annotations.as_ref().unwrap_or(&old.annotations);
    ObjectMeta {
        labels: owner.labels.clone(),
        annotations: annotations.clone(),
        owner_references: vec![owner.reference.clone()],
        ..old.clone()
    }
}

/// Labels of a service that go over to its slices, with those the slices need.
pub fn labels(
    of: &ObjectMeta,
    service: &str,
    managed_by: &str,
    is_headless: bool,
) -> BTreeMap<String, String> {
    let reserved: BTreeSet<&str> = [SERVICE_NAME, MANAGED_BY, HEADLESS].into();
    let own = of
        .labels
        .iter()
        .filter(|(key, _)| !reserved.contains(key.as_str()));
    let mut labels: BTreeMap<String, String> = own
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    labels.insert(SERVICE_NAME.into(), service.into());
    labels.insert(MANAGED_BY.into(), managed_by.into());
    if is_headless {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str) -> Endpoint {
        Endpoint {
            addresses: vec![address.into()],
            ..Endpoint::default()
        }
    }

    fn owner() -> Owner {
        Owner {
            namespace: "default".into(),
            name: "web".into(),
            ..Owner::default()
        }
    }

    fn port(number: i32) -> Vec<Port> {
        vec![Port {
            protocol: "TCP".into(),
            port: Some(number),
            ..Port::default()
        }]
    }

    fn slice(name: &str, ports: Vec<Port>, addresses: &[&str]) -> EndpointSlice {
        let endpoints = addresses.iter().map(|address| endpoint(address)).collect();
        let mut slice = fill(&owner(), &("IPv4".into(), ports), endpoints);
        slice.metadata.name = name.into();
        slice.metadata.generate_name = String::new();
        slice
    }

    fn desired(ports: Vec<Port>, addresses: &[&str]) -> Desired {
        let endpoints = addresses.iter().map(|address| endpoint(address)).collect();
        Desired::from([(("IPv4".to_string(), ports), endpoints)])
    }

    fn shape(actions: &[Action]) -> Vec<String> {
        let addresses = |slice: &EndpointSlice| {
            let all: Vec<&str> = slice
                .endpoints
                .iter()
                .map(|one| one.addresses[0].as_str())
                .collect();
            all.join(",")
        };
        let one = |action: &Action| match action {
            Action::Create(slice) => format!("create {}", addresses(slice)),
            Action::Update(slice) => format!("update {} {}", slice.metadata.name, addresses(slice)),
            Action::Delete(name) => format!("delete {name}"),
        };
        actions.iter().map(one).collect()
    }

    #[track_caller]
    fn check(existing: &[EndpointSlice], wanted: Desired, expected: &[&str]) {
        let existing: Vec<&EndpointSlice> = existing.iter().collect();
        assert_eq!(shape(&plan(&owner(), &existing, wanted, 3)), expected);
    }

    #[test]
    fn the_fewest_writes_are_planned() {
        check(&[], desired(port(80), &["1", "2"]), &["create 1,2"]);
        check(
            &[slice("a", port(80), &["1", "2"])],
            desired(port(80), &["1", "2"]),
            &[],
        );
        check(
            &[slice("a", port(80), &["1", "2"])],
            desired(port(80), &["2", "3", "4"]),
            &["update a 2,3,4"],
        );
        check(
            &[],
            desired(port(80), &["1", "2", "3", "4"]),
            &["create 1,2,3", "create 4"],
        );
        let two = [
            slice("a", port(80), &["1", "2", "3"]),
            slice("b", port(80), &["4"]),
        ];
        check(
            &two,
            desired(port(80), &["1", "2", "3", "4", "5"]),
            &["update b 4,5"],
        );
        check(&two, desired(port(80), &["1", "2", "3"]), &["delete b"]);
    }

    #[test]
    fn other_ports_are_other_slices() {
        check(
            &[slice("a", port(80), &["1"])],
            desired(port(81), &["1"]),
            &["create 1", "delete a"],
        );
    }

    #[test]
    fn a_service_without_endpoints_keeps_one_empty_slice() {
        check(&[], desired(Vec::new(), &[]), &["create "]);
        check(
            &[slice("a", port(80), &["1"])],
            desired(Vec::new(), &[]),
            &["update a "],
        );
        check(
            &[slice("a", Vec::new(), &[])],
            desired(Vec::new(), &[]),
            &[],
        );
        check(
            &[slice("a", Vec::new(), &[])],
            desired(port(80), &["1"]),
            &["create 1", "delete a"],
        );
    }

    #[test]
    fn a_changed_condition_is_an_update_in_place() {
        let mut changed = desired(port(80), &["1", "2"]);
        changed.values_mut().next().unwrap()[0].conditions.ready = Some(true);
        check(
            &[slice("a", port(80), &["1", "2"])],
            changed,
            &["update a 1,2"],
        );
    }
}
