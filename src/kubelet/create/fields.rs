//! The downward API: a pod's fields and a container's resources as text, for
//! environment variables and volumes alike. Pure.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;

use crate::k8s::{Node, Pod, ResourceFieldSelector};
use crate::pod::spec;
use crate::resources;

/// A field that cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// A path that is not one of the downward API's.
    #[error("unsupported fieldPath: {0}")]
    Path(String),
    /// A resource that is not one of the downward API's.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// A container that the pod does not have.
    #[error("container {0} not found")]
    Container(String),
}

/// What a pod is told of itself that is not in its object.
#[derive(Clone, Debug, Default)]
pub struct Addresses<'a> {
    /// Of the node.
    pub host: &'a [String],
    /// Of the pod; empty before it has a sandbox.
    pub pod: &'a [String],
}

/// The value of a fieldRef.
pub fn field(pod: &Pod, addresses: &Addresses<'_>, path: &str) -> Result<String, FieldError> {
    let spec = spec::spec(pod);
    let meta = &pod.metadata;
    let labels = || meta.labels.clone().unwrap_or_default();
    let annotations = || meta.annotations.clone().unwrap_or_default();
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(labels().get(key).cloned().unwrap_or_default());
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(annotations().get(key).cloned().unwrap_or_default());
    }
    let first = |ips: &[String]| ips.first().cloned().unwrap_or_default();
    match path {
        "metadata.name" => Ok(spec::name(pod).to_owned()),
        "metadata.namespace" => Ok(spec::namespace(pod).to_owned()),
        "metadata.uid" => Ok(spec::uid(pod).to_owned()),
        "metadata.labels" => Ok(lines(&labels())),
        "metadata.annotations" => Ok(lines(&annotations())),
        "spec.nodeName" => Ok(spec.node_name.clone().unwrap_or_default()),
        "spec.serviceAccountName" => Ok(spec.service_account_name.clone().unwrap_or_default()),
        "status.hostIP" => Ok(first(addresses.host)),
        "status.hostIPs" => Ok(addresses.host.join(",")),
        "status.podIP" => Ok(first(addresses.pod)),
        "status.podIPs" => Ok(addresses.pod.join(",")),
        other => Err(FieldError::Path(other.to_owned())),
    }
}

fn subscript<'a>(path: &'a str, map: &str) -> Option<&'a str> {
    path.strip_prefix(map)?
        .strip_prefix("['")?
        .strip_suffix("']")
}

/// `key="value"` a line, sorted and quoted as Go's `%q` (`fieldpath.FormatMap`).
fn lines(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<_> = map
        .iter()
        .map(|(key, value)| format!("{key}={}", quote(value)))
        .collect();
    lines.join("\n")
}

fn quote(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The value of a resourceFieldRef. `container` is who asks; a limit that is
/// not set is what the node can give.
pub fn resource(
    pod: &Pod,
    node: &Node,
    container: &str,
    selector: &ResourceFieldSelector,
) -> Result<String, FieldError> {
    let name = selector
        .container_name
        .as_deref()
        .filter(|name| !name.is_empty());
    let name = name.unwrap_or(container);
    let slot = spec::slot(pod, name).ok_or_else(|| FieldError::Container(name.to_owned()))?;
    let resources = slot.container.resources.clone().unwrap_or_default();
    let unknown = || FieldError::Resource(selector.resource.clone());
    let (list, kind) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let known = matches!(kind, "cpu" | "memory" | "ephemeral-storage");
    if !known && !kind.starts_with("hugepages-") {
        return Err(unknown());
    }
    let amount = match list {
        "requests" => resources::amount(resources.requests.as_ref(), kind),
        "limits" => match resources
            .limits
            .as_ref()
            .is_some_and(|limits| limits.contains_key(kind))
        {
            true => resources::amount(resources.limits.as_ref(), kind),
            false => {
                let status = node.status.as_ref();
                resources::amount(status.and_then(|status| status.allocatable.as_ref()), kind)
            }
        },
        _ => return Err(unknown()),
    };
    let divisor = selector
        .divisor
        .as_ref()
        .and_then(|divisor| divisor.0.parse::<Quantity>().ok());
    Ok(divided(&amount, divisor.as_ref(), kind == "cpu"))
}

/// Rounded up to whole divisors; CPU is counted in thousandths.
fn divided(amount: &Quantity, divisor: Option<&Quantity>, cpu: bool) -> String {
    let number = |quantity: &Quantity| {
        if cpu {
            quantity.milli_value()
        } else {
            quantity.value()
        }
    };
    let one = if cpu { 1000 } else { 1 };
    let divisor = divisor
        .map(number)
        .filter(|divisor| *divisor > 0)
        .unwrap_or(one);
    let amount = number(amount);
    let whole = amount / divisor + i64::from(amount % divisor > 0);
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    #[test]
    fn fields_are_read_from_object_and_addresses() {
        let mut pod =
            mk_pod(json!({"nodeName": "n", "serviceAccountName": "sa", "containers": []}));
        pod.metadata.labels = Some(BTreeMap::from([
            ("b".into(), "2\"".into()),
            ("a".into(), "1".into()),
        ]));
        let host = ["192.0.2.1".to_owned()];
        let addresses = Addresses {
            host: &host,
            pod: &["10.0.0.1".to_owned(), "fd00::1".to_owned()],
        };
        let cases = [
            ("metadata.name", "p"),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['none']", ""),
            ("metadata.labels", "a=\"1\"\nb=\"2\\\"\""),
            ("spec.nodeName", "n"),
            ("status.hostIP", "192.0.2.1"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
        ];
        for (path, expected) in cases {
            assert_eq!(
                field(&pod, &addresses, path).as_deref(),
                Ok(expected),
                "{path}"
            );
        }
        assert!(field(&pod, &addresses, "spec.foo").is_err());
    }

    #[test]
    fn resources_are_divided_and_default_to_the_nodes() {
        let pod = mk_pod(json!({"containers": [{"name": "c", "resources": {
            "requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"},
        }}]}));
        let node: Node = serde_json::from_value(
            json!({"status": {"allocatable": {"cpu": "4", "memory": "1Gi"}}}),
        )
        .expect("a node");
        let get = |selector: Value| {
            let selector = serde_json::from_value(selector).expect("a selector");
            resource(&pod, &node, "c", &selector)
        };
        let cases = [
            (json!({"resource": "requests.cpu"}), "1"),
            (json!({"resource": "requests.cpu", "divisor": "1m"}), "250"),
            (json!({"resource": "limits.cpu"}), "4"),
            (json!({"resource": "limits.memory"}), "67108864"),
            (json!({"resource": "limits.memory", "divisor": "1Mi"}), "64"),
        ];
        for (selector, expected) in cases {
            assert_eq!(get(selector.clone()).as_deref(), Ok(expected), "{selector}");
        }
        assert!(get(json!({"resource": "limits.bogus"})).is_err());
    }
}
