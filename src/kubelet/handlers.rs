//! The actions that probes and lifecycle hooks have in common: run a command,
//! GET a page, connect. Where they go is worked out here.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use crate::k8s::{Container, HTTPGetAction, HTTPHeader, IntOrString};

/// The address and port an action goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// The port: a number, or the name of one of the container's.
pub fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match name.parse() {
            Ok(number) => number,
            Err(_) => {
                let mut ports = container.ports.iter().flatten();
                let found = ports.find(|port| port.name.as_deref() == Some(name));
                found
                    .ok_or_else(|| format!("port {name} not found"))?
                    .container_port
            }
        },
    };
    let valid = u16::try_from(number).ok().filter(|port| *port > 0);
    valid.ok_or_else(|| format!("invalid port number: {number}"))
}

/// Where a TCP or HTTP action goes: its own host, or the pod.
pub fn target(
    host: Option<&str>,
    wanted: &IntOrString,
    container: &Container,
    pod_ip: &str,
) -> Result<Target, String> {
    let host = host.filter(|host| !host.is_empty()).unwrap_or(pod_ip);
    Ok(Target {
        host: host.to_owned(),
        port: port(wanted, container)?,
    })
}

/// The URI and headers of an HTTP action. `agent` is `kube-probe/1.37` or the like.
pub fn http_request(
    action: &HTTPGetAction,
    container: &Container,
    pod_ip: &str,
    agent: &str,
) -> Result<(Uri, HeaderMap), String> {
    let target = target(action.host.as_deref(), &action.port, container, pod_ip)?;
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
    let host = if target.host.contains(':') {
        format!("[{}]", target.host)
    } else {
        target.host
    };
    let path = action.path.as_deref().unwrap_or("/");
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    let uri = format!("{scheme}://{host}:{}{path}", target.port);
    let uri: Uri = uri
        .parse()
        .map_err(|error| format!("invalid URL {uri:?}: {error}"))?;
    Ok((
        uri,
        headers(action.http_headers.as_deref().unwrap_or_default(), agent),
    ))
}

fn headers(own: &[HTTPHeader], agent: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for header in own {
        let name = HeaderName::try_from(header.name.as_str());
        let value = HeaderValue::try_from(header.value.as_str());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let mut default = |name: HeaderName, value: &str| {
        if headers.get(&name).is_some_and(HeaderValue::is_empty) {
            headers.remove(&name);
        } else if !headers.contains_key(&name) {
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
        }
    };
    default(http::header::USER_AGENT, agent);
    default(http::header::ACCEPT, "*/*");
    headers
}

/// Seconds of a field as a duration; `default` when it is missing or not positive.
pub fn seconds(value: Option<i32>, default: u64) -> Duration {
    let given = value
        .and_then(|value| u64::try_from(value).ok())
        .filter(|value| *value > 0);
    Duration::from_secs(given.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_container() -> Container {
        serde_json::from_value(
            json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}),
        )
        .expect("a container")
    }

    #[test]
    fn ports_are_numbers_or_names() {
        let container = mk_container();
        assert_eq!(port(&IntOrString::Int(80), &container), Ok(80));
        assert_eq!(
            port(&IntOrString::String("web".into()), &container),
            Ok(8080)
        );
        assert_eq!(port(&IntOrString::String("81".into()), &container), Ok(81));
        assert!(port(&IntOrString::String("x".into()), &container).is_err());
        assert!(port(&IntOrString::Int(70_000), &container).is_err());
    }

    #[test]
    fn http_actions_go_to_the_pod_with_upstreams_headers() {
        let action: HTTPGetAction = serde_json::from_value(json!({
            "path": "healthz?x=1", "port": "web", "httpHeaders": [{"name": "X-A", "value": "b"}],
        }))
        .expect("an action");
        let (uri, headers) = http_request(&action, &mk_container(), "fd00::1", "kube-probe/1.37")
            .expect("a request");
        assert_eq!(uri.to_string(), "http://[fd00::1]:8080/healthz?x=1");
        assert_eq!(headers["user-agent"], "kube-probe/1.37");
        assert_eq!(headers["x-a"], "b");
    }
}
