//! Finds what a request is to be connected with, and says in upstream's words why it cannot be.

use std::net::IpAddr;
use std::sync::Arc;

use apimachinery::Value;
use apimachinery::status::Status;

use crate::backend::Backend;

/// Port of kubelets that do not say theirs (`ports.KubeletPort`).
const KUBELET_PORT: u16 = 10250;

/// Where a node's kubelet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubeletAddress {
    pub host: String,
    pub port: u16,
}

/// `[scheme:]name[:port]`, as proxies take names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SchemeNamePort<'a> {
    pub scheme: &'a str,
    pub name: &'a str,
    pub port: &'a str,
}

impl<'a> SchemeNamePort<'a> {
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<_> = text.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => return None,
        };
        let known = matches!(scheme, "" | "http" | "https") && !name.is_empty();
        known.then_some(Self { scheme, name, port })
    }

    pub(super) fn is_https(&self) -> bool {
        self.scheme == "https"
    }
}

/// The text at a JSON pointer; empty when there is none.
pub(super) fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or("")
}

/// The elements at a JSON pointer.
pub(super) fn items<'v>(object: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

pub(super) async fn find(
    objects: &dyn Backend,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<Arc<Value>, Status> {
    let found = objects.find("", plural, namespace, name).await?;
    found.ok_or_else(|| Status::not_found("", plural, name))
}

/// The container a request means, checked against the pod (upstream's `validateContainer`).
pub(super) fn container<'v>(pod: &'v Value, asked: &'v str) -> Result<&'v str, Status> {
    let name = text(pod, "/metadata/name");
    let names = |pointer| {
        items(pod, pointer)
            .map(|c| text(c, "/name"))
            .collect::<Vec<_>>()
    };
    let containers = names("/spec/containers");
    let init = names("/spec/initContainers");
    if !asked.is_empty() {
        let ephemeral = names("/spec/ephemeralContainers");
        if [&containers, &init, &ephemeral]
            .iter()
            .any(|names| names.contains(&asked))
        {
            return Ok(asked);
        }
        return Err(Status::bad_request(format!(
            "container {asked} is not valid for pod {name}"
        )));
    }
    match containers.as_slice() {
        [only] => Ok(only),
        [] => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}"
        ))),
        many => {
            let mut message = format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                many.join(" ")
            );
            if !init.is_empty() {
                message.push_str(&format!(
                    " or one of the init containers: [{}]",
                    init.join(" ")
                ));
            }
            Err(Status::bad_request(message))
        }
    }
}

/// The kubelet of a pod's node; None while the pod has no node.
pub(super) async fn kubelet_of(
    objects: &dyn Backend,
    pod: &Value,
    address_types: &[String],
) -> Result<Option<KubeletAddress>, Status> {
    match text(pod, "/spec/nodeName") {
        "" => Ok(None),
        node => kubelet(&*find(objects, "nodes", "", node).await?, address_types).map(Some),
    }
}

/// As `kubelet_of`, for what makes no sense without a node.
pub(super) async fn kubelet_of_bound(
    objects: &dyn Backend,
    pod: &Value,
    address_types: &[String],
) -> Result<KubeletAddress, Status> {
    kubelet_of(objects, pod, address_types)
        .await?
        .ok_or_else(|| {
            Status::bad_request(format!(
                "pod {} does not have a host assigned",
                text(pod, "/metadata/name")
            ))
        })
}

/// Where a node's kubelet is, by the first address of the preferred type.
pub(super) fn kubelet(node: &Value, address_types: &[String]) -> Result<KubeletAddress, Status> {
    let of_type =
        |wanted: &String| items(node, "/status/addresses").find(|a| text(a, "/type") == wanted);
    let Some(address) = address_types.iter().find_map(of_type) else {
        let known: Vec<_> = items(node, "/status/addresses")
            .map(|a| format!("{{{} {}}}", text(a, "/type"), text(a, "/address")))
            .collect();
        return Err(Status::internal(format!(
            "no preferred addresses found; known addresses: [{}]",
            known.join(" ")
        )));
    };
    let port = node
        .pointer("/status/daemonEndpoints/kubeletEndpoint/Port")
        .and_then(Value::as_u64);
    let port = port
        .and_then(|p| u16::try_from(p).ok())
        .filter(|p| *p != 0)
        .unwrap_or(KUBELET_PORT);
    Ok(KubeletAddress {
        host: text(address, "/address").to_owned(),
        port,
    })
}

/// Whether the server may be made to connect there: not to itself, nor to its link's neighbours.
pub(super) fn is_proxyable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(spec: Value, asked: &str, want: Result<&str, &str>) {
        let pod = json!({"metadata": {"name": "web"}, "spec": spec});
        let got = container(&pod, asked).map_err(|status| status.message);
        assert_eq!(got, want.map_err(str::to_owned));
    }

    #[test]
    fn a_container_is_found_or_asked_for_in_upstreams_words() {
        let one = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]});
        check(one.clone(), "", Ok("a"));
        check(one.clone(), "i", Ok("i"));
        check(one, "x", Err("container x is not valid for pod web"));
        let two = json!({"containers": [{"name": "a"}, {"name": "b"}], "ephemeralContainers": [{"name": "e"}]});
        check(two.clone(), "e", Ok("e"));
        check(
            two,
            "",
            Err("a container name must be specified for pod web, choose one of: [a b]"),
        );
        check(
            json!({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}),
            "",
            Err(
                "a container name must be specified for pod web, choose one of: [a b] or one of the init containers: [i]",
            ),
        );
        check(
            json!({}),
            "",
            Err("a container name must be specified for pod web"),
        );
    }

    #[test]
    fn a_kubelet_is_at_the_first_preferred_address() {
        let types = ["InternalIP".to_owned(), "Hostname".to_owned()];
        let node = json!({"status": {
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "172.30.0.2"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10299}}}});
        let want = KubeletAddress {
            host: "172.30.0.2".into(),
            port: 10299,
        };
        assert_eq!(kubelet(&node, &types).unwrap(), want);
        let node =
            json!({"status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}]}});
        let message = kubelet(&node, &types).unwrap_err().message;
        assert!(
            message.ends_with(
                "no preferred addresses found; known addresses: [{ExternalIP 192.0.2.1}]"
            )
        );
    }

    #[test]
    fn names_may_have_a_scheme_and_a_port() {
        let parse = |text| SchemeNamePort::parse(text).map(|p| (p.scheme, p.name, p.port));
        assert_eq!(parse("web"), Some(("", "web", "")));
        assert_eq!(parse("web:80"), Some(("", "web", "80")));
        assert_eq!(parse("https:web:"), Some(("https", "web", "")));
        for bad in ["", ":80", "ftp:web:80", "a:b:c:d"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_server_is_not_made_to_talk_to_itself() {
        for (ip, want) in [
            ("10.244.1.2", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
        ] {
            assert_eq!(is_proxyable(ip.parse().unwrap()), want, "{ip}");
        }
        for (ip, want) in [
            ("fd00::1", true),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_proxyable(ip.parse().unwrap()), want, "{ip}");
        }
    }
}
