//! One try of a probe.

use std::time::Duration;

use crate::handlers::{self, seconds};
use crate::k8s::{ExecAction, HTTPGetAction, Probe, TCPSocketAction};
use crate::net;

use super::{Subject, grpc};

/// What upstream's prober calls itself.
const AGENT: &str = "kube-probe/1.37";
/// Bytes of a command's output that an event shows.
const MAX_OUTPUT: usize = 10 * 1024;

/// What a try said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Healthy.
    Passed,
    /// Not healthy, and what it said.
    Failed(String),
    /// The probe itself could not be made.
    Error(String),
}

/// Tries once, within the probe's timeout.
pub async fn check(probe: &Probe, subject: &Subject) -> Outcome {
    let timeout = seconds(probe.timeout_seconds, 1);
    match probe {
        Probe {
            exec: Some(action), ..
        } => exec(action, subject, timeout).await,
        Probe {
            http_get: Some(action),
            ..
        } => http_get(action, subject, timeout).await,
        Probe {
            tcp_socket: Some(action),
            ..
        } => tcp(action, subject, timeout).await,
        Probe {
            grpc: Some(action), ..
        } => {
            let port = u16::try_from(action.port).unwrap_or(0);
            let service = action.service.as_deref().unwrap_or_default();
            grpc::check(&subject.pod_ip, port, service, timeout).await
        }
        _ => Outcome::Error("missing probe handler".to_owned()),
    }
}

async fn exec(action: &ExecAction, subject: &Subject, timeout: Duration) -> Outcome {
    let command = action.command.clone().unwrap_or_default();
    match subject
        .runtime
        .exec_sync(&subject.container_id, command, timeout)
        .await
    {
        Ok(answer) if answer.exit_code == 0 => Outcome::Passed,
        Ok(answer) => {
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            output.truncate(MAX_OUTPUT);
            Outcome::Failed(String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) if error.is_unavailable() => {
            let timeout = crate::text::duration(timeout);
            Outcome::Failed(format!(
                "command timed out: \"{error}\" timed out after {timeout}"
            ))
        }
        Err(error) => Outcome::Error(error.to_string()),
    }
}

async fn http_get(action: &HTTPGetAction, subject: &Subject, timeout: Duration) -> Outcome {
    let request = handlers::http_request(action, &subject.container, &subject.pod_ip, AGENT);
    let (uri, headers) = match request {
        Ok(request) => request,
        Err(error) => return Outcome::Error(error),
    };
    match net::get(&uri, &headers, timeout).await {
        // A redirect to another host counts as success with a warning upstream.
        Ok(answer) if answer.redirected_away => Outcome::Passed,
        Ok(answer) if (200..400).contains(&answer.status.as_u16()) => Outcome::Passed,
        Ok(answer) => Outcome::Failed(format!(
            "HTTP probe failed with statuscode: {}",
            answer.status.as_u16()
        )),
        Err(error) => Outcome::Failed(error),
    }
}

async fn tcp(action: &TCPSocketAction, subject: &Subject, timeout: Duration) -> Outcome {
    let (host, pod_ip) = (action.host.as_deref(), &subject.pod_ip);
    let target = match handlers::target(host, &action.port, &subject.container, pod_ip) {
        Ok(target) => target,
        Err(error) => return Outcome::Error(error),
    };
    match tokio::time::timeout(timeout, net::connect(&target.host, target.port)).await {
        Ok(Ok(_)) => Outcome::Passed,
        Ok(Err(error)) => Outcome::Failed(error),
        Err(_) => Outcome::Failed(format!(
            "dial tcp {}:{}: i/o timeout",
            target.host, target.port
        )),
    }
}
