//! Defaults of a pod spec (`pkg/apis/core/v1/defaults.go`): what the stored object says where the request was silent.

use apimachinery::{Value, meta};
use serde_json::json;

use super::super::tree::{
    at, at_mut, default_number, default_text, default_value, has, items_mut, object_mut, text,
};

/// The three lists of containers of a pod spec.
pub const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// File mode of projected files: 0644.
const FILE_MODE: i64 = 0o644;

/// Defaults of a pod template (`SetDefaults_PodSpec` and what it holds); `template` may be absent.
pub fn template(owner: &mut Value, path: &[&str]) {
    if let Some(template) = at_mut(owner, path)
        && let Some(spec) = template.get_mut("spec")
    {
        pod_spec(spec);
    }
}

/// Defaults that only pods get (`SetDefaults_Pod`), and those of their spec.
pub fn pod(object: &mut Value) {
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    pod_spec(spec);
    for list in &CONTAINERS[..2] {
        for container in items_mut(spec, &[list]) {
            requests_from_limits(container);
        }
    }
    requests_from_limits(spec);
    default_value(spec, "enableServiceLinks", true);
    if at(spec, &["hostNetwork"]) == &Value::Bool(true) {
        for list in &CONTAINERS[..2] {
            for container in items_mut(spec, &[list]) {
                for port in items_mut(container, &["ports"]) {
                    let number = port["containerPort"].as_i64().unwrap_or(0);
                    default_number(port, "hostPort", number);
                }
            }
        }
    }
}

/// A limit without a request is requested (`SetDefaults_Pod`).
fn requests_from_limits(holder: &mut Value) {
    let Some(limits) = at(holder, &["resources", "limits"]).as_object().cloned() else {
        return;
    };
    if limits.is_empty() {
        return;
    }
    let requests = object_mut(holder, &["resources", "requests"]);
    for (name, amount) in limits {
        requests.entry(name).or_insert(amount);
    }
}

/// Defaults of a pod spec.
pub fn pod_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    default_text(spec, "dnsPolicy", "ClusterFirst");
    default_text(spec, "restartPolicy", "Always");
    default_value(spec, "securityContext", json!({}));
    default_value(spec, "terminationGracePeriodSeconds", 30);
    default_text(spec, "schedulerName", "default-scheduler");
    mirror_service_account(spec);
    for list in CONTAINERS {
        for item in items_mut(spec, &[list]) {
            container(item);
        }
    }
    for item in items_mut(spec, &["volumes"]) {
        volume(item);
    }
}

/// `serviceAccount` is the old name of `serviceAccountName`; both are always said.
fn mirror_service_account(spec: &mut Value) {
    let name = match text(spec, &["serviceAccountName"]) {
        "" => text(spec, &["serviceAccount"]).to_owned(),
        name => name.to_owned(),
    };
    let Some(map) = spec.as_object_mut() else {
        return;
    };
    for key in ["serviceAccountName", "serviceAccount"] {
        if name.is_empty() {
            map.remove(key);
        } else {
            map.insert(key.to_owned(), name.clone().into());
        }
    }
}

fn container(item: &mut Value) {
    if !item.is_object() {
        return;
    }
    let policy = pull_policy(text(item, &["image"]));
    default_text(item, "imagePullPolicy", policy);
    default_text(item, "terminationMessagePath", "/dev/termination-log");
    default_text(item, "terminationMessagePolicy", "File");
    default_value(item, "resources", json!({}));
    for port in items_mut(item, &["ports"]) {
        default_text(port, "protocol", "TCP");
    }
    for variable in items_mut(item, &["env"]) {
        if let Some(field) = at_mut(variable, &["valueFrom", "fieldRef"]) {
            default_text(field, "apiVersion", "v1");
        }
        if let Some(resource) = at_mut(variable, &["valueFrom", "resourceFieldRef"]) {
            default_text(resource, "divisor", "0");
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = at_mut(item, &[name]) {
            default_number(probe, "timeoutSeconds", 1);
            default_number(probe, "periodSeconds", 10);
            default_number(probe, "successThreshold", 1);
            default_number(probe, "failureThreshold", 3);
            if let Some(get) = at_mut(probe, &["httpGet"]) {
                http_get(get);
            }
            if let Some(grpc) = at_mut(probe, &["grpc"]) {
                default_value(grpc, "service", "");
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(get) = at_mut(item, &["lifecycle", hook, "httpGet"]) {
            http_get(get);
        }
    }
}

fn http_get(get: &mut Value) {
    default_text(get, "path", "/");
    default_text(get, "scheme", "HTTP");
}

/// `Always` for the tag `latest`, said or not; else `IfNotPresent`.
fn pull_policy(image: &str) -> &'static str {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, _)) => (rest, true),
        None => (image, false),
    };
    let last = rest.rsplit('/').next().unwrap_or("");
    match last.split_once(':') {
        Some((_, "latest")) => "Always",
        None if !digest => "Always",
        _ => "IfNotPresent",
    }
}

fn volume(item: &mut Value) {
    let Some(map) = item.as_object_mut() else {
        return;
    };
    let has_source = map
        .iter()
        .any(|(key, value)| key != "name" && !value.is_null());
    if !has_source {
        map.insert("emptyDir".to_owned(), json!({}));
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = at_mut(item, &[name]) {
            default_value(source, "defaultMode", FILE_MODE);
        }
    }
    for file in items_mut(item, &["downwardAPI", "items"]) {
        downward_file(file);
    }
    for source in items_mut(item, &["projected", "sources"]) {
        if let Some(token) = at_mut(source, &["serviceAccountToken"]) {
            default_value(token, "expirationSeconds", 3600);
        }
        for file in items_mut(source, &["downwardAPI", "items"]) {
            downward_file(file);
        }
    }
    if let Some(path) = at_mut(item, &["hostPath"]) {
        default_value(path, "type", "");
    }
    if let Some(claim) = at_mut(item, &["ephemeral", "volumeClaimTemplate", "spec"]) {
        default_value(claim, "volumeMode", "Filesystem");
    }
    if let Some(image) = item.get("image").filter(|image| image.is_object()) {
        let policy = pull_policy(text(image, &["reference"]));
        if let Some(image) = at_mut(item, &["image"]) {
            default_text(image, "pullPolicy", policy);
        }
    }
    network_volume(item);
}

/// Defaults of the volume types that name a server (shared by persistent volumes).
pub fn network_volume(item: &mut Value) {
    if let Some(iscsi) = at_mut(item, &["iscsi"]) {
        default_text(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = at_mut(item, &["rbd"]) {
        default_text(rbd, "pool", "rbd");
        default_text(rbd, "user", "admin");
        default_text(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(disk) = at_mut(item, &["azureDisk"]) {
        default_value(disk, "cachingMode", "ReadWrite");
        default_value(disk, "kind", "Shared");
        default_value(disk, "fsType", "ext4");
        default_value(disk, "readOnly", false);
    }
    if let Some(scale) = at_mut(item, &["scaleIO"]) {
        default_text(scale, "storageMode", "ThinProvisioned");
        default_text(scale, "fsType", "xfs");
    }
}

fn downward_file(file: &mut Value) {
    if let Some(field) = at_mut(file, &["fieldRef"]) {
        default_text(field, "apiVersion", "v1");
    }
    if let Some(resource) = at_mut(file, &["resourceFieldRef"]) {
        default_text(resource, "divisor", "0");
    }
}

/// A workload without labels or a selector takes both from its template (`SetDefaults_ReplicationController`).
pub fn selector_from_template(object: &mut Value) {
    let labels = at(object, &["spec", "template", "metadata", "labels"]).clone();
    if labels.as_object().is_none_or(|map| map.is_empty()) {
        return;
    }
    if !has(object, &["spec", "selector"]) {
        object_mut(object, &["spec"]).insert("selector".to_owned(), labels.clone());
    }
    if meta::labels(object).is_none_or(|map| map.is_empty()) {
        object_mut(object, &["metadata"]).insert("labels".to_owned(), labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_pulled_always_only_when_latest() {
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.25", "IfNotPresent"),
            ("localhost:5000/nginx", "Always"),
            ("localhost:5000/nginx:1", "IfNotPresent"),
            ("nginx@sha256:00", "IfNotPresent"),
            ("nginx:latest@sha256:00", "Always"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn the_articles_pod_gets_upstreams_defaults() {
        let mut pod = json!({"spec": {"containers": [{
            "name": "nginx-demo", "image": "nginx", "ports": [{"containerPort": 80}], "resources": {}}]}});
        super::pod(&mut pod);
        assert_eq!(
            pod,
            json!({"spec": {
                "containers": [{
                    "name": "nginx-demo", "image": "nginx", "imagePullPolicy": "Always",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}], "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30}})
        );
    }

    #[test]
    fn limits_become_requests_and_probes_are_filled_in() {
        let mut pod = json!({"spec": {"containers": [{
            "name": "a", "image": "a:1", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
            "readinessProbe": {"httpGet": {"port": 80}}}], "volumes": [{"name": "v"}]}});
        super::pod(&mut pod);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(
            container["resources"]["requests"],
            json!({"cpu": "500m", "memory": "1Gi"})
        );
        assert_eq!(
            container["readinessProbe"],
            json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(
            pod["spec"]["volumes"][0],
            json!({"name": "v", "emptyDir": {}})
        );
    }
}
