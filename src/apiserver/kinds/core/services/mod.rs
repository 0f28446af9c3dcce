//! Services: defaults, addresses and node ports, validation.
//!
//! A cluster IP is an IPAddress object and a node port a bit in a RangeAllocation, both as upstream stores them; they are
//! written in one transaction with the service, so that neither can be taken twice nor leak, whenever the server dies.

pub mod addresses;
mod allocate;
mod defaults;
mod families;
pub mod ports;
pub mod repair;
pub mod validation;

use apimachinery::field::ErrorList;
use apimachinery::{Map, Status, Value};
use async_trait::async_trait;
use serde_json::json;

use super::super::object_meta::{NameRule, dns_label};
use super::super::status::load_balancer;
use super::super::tree::{at, has, items, set, text};
use crate::registry::strategy::{Change, Companions, Strategy, default_prepare_update};

pub struct Services;

#[async_trait]
impl Strategy for Services {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "services")
    }

    fn name_rule(&self) -> NameRule {
        dns_label
    }

    fn default(&self, object: &mut Value) {
        defaults::set(object);
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({"loadBalancer": {}}));
        normalize_addresses(object, None);
        defaults::drop_type_dependent(object, None);
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        default_prepare_update(&["status"], change, new, old);
        if change.subresource.is_empty() {
            defaults::keep_allocated(new, old);
            normalize_addresses(new, Some(old));
            defaults::drop_type_dependent(new, Some(old));
        }
    }

    fn validate_create(&self, change: &Change<'_>, object: &Value) -> ErrorList {
        validation::service(change, object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return load_balancer(new);
        }
        let mut errors = validation::update(new, old);
        errors.extend(validation::service(change, new));
        errors
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        match change.subresource {
            "" => validation::warnings(new),
            _ => Vec::new(),
        }
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn has_companions(&self) -> bool {
        true
    }

    async fn companions(
        &self,
        change: &Change<'_>,
        new: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<Companions, Status> {
        if change.subresource == "status" {
            return Ok(Companions::default());
        }
        allocate::companions(change, new, old).await
    }
}

/// What `spec.type` says; empty is ClusterIP.
fn type_of(service: &Value) -> &str {
    match text(service, &["spec", "type"]) {
        "" => "ClusterIP",
        other => other,
    }
}

fn is_headless(service: &Value) -> bool {
    text(service, &["spec", "clusterIP"]) == "None"
}

/// Whether the service has a cluster IP.
fn needs_address(service: &Value) -> bool {
    type_of(service) != "ExternalName" && !is_headless(service)
}

/// Whether the service has node ports.
fn needs_node_ports(service: &Value) -> bool {
    match type_of(service) {
        "NodePort" => true,
        "LoadBalancer" => {
            at(service, &["spec", "allocateLoadBalancerNodePorts"]) != &Value::Bool(false)
        }
        _ => false,
    }
}

/// Whether kubelets answer health checks for the service.
fn needs_health_port(service: &Value) -> bool {
    type_of(service) == "LoadBalancer"
        && text(service, &["spec", "externalTrafficPolicy"]) == "Local"
}

/// The cluster IPs, from the list or the single field.
fn cluster_ips(service: &Value) -> Vec<&str> {
    items(service, &["spec", "clusterIPs"])
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

/// `clusterIP` and `clusterIPs` say the same, whichever a client sets (`normalizeClusterIPs`).
fn normalize_addresses(service: &mut Value, old: Option<&Value>) {
    let single = text(service, &["spec", "clusterIP"]).to_owned();
    let mut list: Vec<String> = cluster_ips(service)
        .into_iter()
        .map(str::to_owned)
        .collect();
    match old {
        None => {
            if !single.is_empty() && list.is_empty() {
                list.push(single.clone());
            }
        }
        Some(old) => {
            let was = text(old, &["spec", "clusterIP"]);
            let was_list = cluster_ips(old);
            let same_list = list.iter().map(String::as_str).eq(was_list.iter().copied());
            if single != was && same_list {
                // An old client changed or cleared the one field it knows.
                list = match single.as_str() {
                    "" => Vec::new(),
                    ip => vec![ip.to_owned()],
                };
            }
        }
    }
    let single = match (single.as_str(), list.first()) {
        ("", Some(first)) if !has(service, &["spec", "clusterIP"]) || old.is_none() => {
            first.clone()
        }
        _ => single,
    };
    write_addresses(service, &single, list);
}

fn write_addresses(service: &mut Value, single: &str, list: Vec<String>) {
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    put(
        spec,
        "clusterIP",
        (!single.is_empty()).then(|| single.into()),
    );
    put(spec, "clusterIPs", (!list.is_empty()).then(|| list.into()));
}

fn put(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    match value {
        Some(value) => map.insert(key.to_owned(), value),
        None => map.remove(key),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_single_address_and_the_list_agree() {
        let mut service = json!({"spec": {"clusterIP": "10.0.0.5"}});
        normalize_addresses(&mut service, None);
        assert_eq!(service["spec"]["clusterIPs"], json!(["10.0.0.5"]));
        let old = service.clone();
        let mut cleared = json!({"spec": {"clusterIPs": ["10.0.0.5"]}});
        normalize_addresses(&mut cleared, Some(&old));
        assert!(cleared["spec"].get("clusterIPs").is_none());
    }
}
