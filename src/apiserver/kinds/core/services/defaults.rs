//! What a service gets that it does not say (`SetDefaults_Service`), what follows it through updates, and what a change of
//! type takes away.

use apimachinery::{Map, Value};
use serde_json::json;

use super::super::super::tree::{
    at, default_text, default_value, has, items, items_mut, object_mut, text,
};
use super::{
    cluster_ips, is_headless, needs_address, needs_health_port, needs_node_ports, put, type_of,
};

/// Seconds a client sticks to an endpoint by default.
const AFFINITY_SECONDS: i64 = 10_800;

pub fn set(service: &mut Value) {
    let spec = &mut service["spec"];
    if !spec.is_object() {
        return;
    }
    default_text(spec, "sessionAffinity", "None");
    if text(spec, &["sessionAffinity"]) == "ClientIP" {
        if !has(
            spec,
            &["sessionAffinityConfig", "clientIP", "timeoutSeconds"],
        ) {
            object_mut(spec, &["sessionAffinityConfig", "clientIP"])
                .insert("timeoutSeconds".to_owned(), AFFINITY_SECONDS.into());
        }
    } else if let Some(map) = spec.as_object_mut() {
        map.remove("sessionAffinityConfig");
    }
    default_text(spec, "type", "ClusterIP");
    for port in items_mut(spec, &["ports"]) {
        default_text(port, "protocol", "TCP");
        let number = at(port, &["port"]).clone();
        let target = at(port, &["targetPort"]);
        if target.is_null() || target == &json!(0) || target == &json!("") {
            default_value(port, "targetPort", number.clone());
            if let Some(map) = port.as_object_mut() {
                map.insert("targetPort".to_owned(), number);
            }
        }
    }
    let kind = text(spec, &["type"]).to_owned();
    let has_external = !items(spec, &["externalIPs"]).is_empty();
    let is_external = matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && has_external);
    if is_external {
        default_text(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        default_value(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_value(spec, "allocateLoadBalancerNodePorts", true);
        for ingress in items_mut(service, &["status", "loadBalancer", "ingress"]) {
            if !text(ingress, &["ip"]).is_empty() {
                default_value(ingress, "ipMode", "VIP");
            }
        }
    }
}

/// An update that leaves out what the server had allocated keeps it (`patchAllocatedValues`).
pub fn keep_allocated(new: &mut Value, old: &Value) {
    if needs_address(old) && needs_address(new) {
        for field in ["clusterIP", "clusterIPs"] {
            if !has(new, &["spec", field]) {
                let value = at(old, &["spec", field]).clone();
                put(
                    object_mut(new, &["spec"]),
                    field,
                    Some(value).filter(|value| !value.is_null()),
                );
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let was = items(old, &["spec", "ports"]);
        for port in items_mut(new, &["spec", "ports"]) {
            if at(port, &["nodePort"]).as_i64().unwrap_or(0) != 0 {
                continue;
            }
            let same = was.iter().find(|old| {
                at(old, &["port"]) == at(port, &["port"])
                    && text(old, &["protocol"]) == text(port, &["protocol"])
            });
            if let Some(number) = same.and_then(|old| at(old, &["nodePort"]).as_i64()) {
                default_value(port, "nodePort", number);
                if let Some(map) = port.as_object_mut() {
                    map.insert("nodePort".to_owned(), number.into());
                }
            }
        }
    }
    if needs_health_port(old)
        && needs_health_port(new)
        && !has(new, &["spec", "healthCheckNodePort"])
    {
        let value = at(old, &["spec", "healthCheckNodePort"]).clone();
        put(
            object_mut(new, &["spec"]),
            "healthCheckNodePort",
            Some(value).filter(|value| !value.is_null()),
        );
    }
}

/// Fields that only some types have are dropped when an update changes the type and leaves them as they were
/// (`dropTypeDependentFields`).
pub fn drop_type_dependent(new: &mut Value, old: Option<&Value>) {
    let Some(old) = old else { return };
    let same = |new: &Value, field: &str| at(new, &["spec", field]) == at(old, &["spec", field]);
    let mut drop: Vec<&str> = Vec::new();
    if needs_address(old) && type_of(new) == "ExternalName" {
        let kept = cluster_ips(new) == cluster_ips(old);
        if kept {
            drop.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
        }
    }
    if is_headless(old) && type_of(new) == "ExternalName" && same(new, "clusterIP") {
        drop.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
    }
    if needs_health_port(old) && !needs_health_port(new) && same(new, "healthCheckNodePort") {
        drop.push("healthCheckNodePort");
    }
    if type_of(old) == "LoadBalancer" && type_of(new) != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(new, field) {
                drop.push(field);
            }
        }
    }
    let external = |service: &Value| {
        matches!(type_of(service), "NodePort" | "LoadBalancer")
            || !items(service, &["spec", "externalIPs"]).is_empty()
    };
    if external(old) && !external(new) && same(new, "externalTrafficPolicy") {
        drop.push("externalTrafficPolicy");
    }
    if type_of(old) != "ExternalName"
        && type_of(new) == "ExternalName"
        && same(new, "internalTrafficPolicy")
    {
        drop.push("internalTrafficPolicy");
    }
    if needs_node_ports(old) && !needs_node_ports(new) {
        drop_node_ports(new, old);
    }
    let spec: &mut Map<String, Value> = object_mut(new, &["spec"]);
    for field in drop {
        spec.remove(field);
    }
}

fn drop_node_ports(new: &mut Value, old: &Value) {
    let was: Vec<i64> = items(old, &["spec", "ports"])
        .iter()
        .filter_map(|port| at(port, &["nodePort"]).as_i64())
        .collect();
    for port in items_mut(new, &["spec", "ports"]) {
        let number = at(port, &["nodePort"]).as_i64().unwrap_or(0);
        if was.contains(&number)
            && let Some(map) = port.as_object_mut()
        {
            map.remove("nodePort");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_service_gets_upstreams_defaults() {
        let mut service = json!({"spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
        set(&mut service);
        assert_eq!(
            service,
            json!({"spec": {
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "selector": {"a": "b"},
                "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}})
        );
    }

    #[test]
    fn an_update_keeps_what_was_allocated_and_a_new_type_drops_it() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "externalTrafficPolicy": "Cluster", "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30001}]}});
        let mut new =
            json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}]}});
        keep_allocated(&mut new, &old);
        assert_eq!(new["spec"]["clusterIP"], "10.0.0.1");
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30001);
        let mut plain = old.clone();
        plain["spec"]["type"] = "ClusterIP".into();
        drop_type_dependent(&mut plain, Some(&old));
        assert_eq!(
            plain["spec"],
            json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                "ports": [{"port": 80, "protocol": "TCP"}]})
        );
    }
}
