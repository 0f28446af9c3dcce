//! postStart and preStop hooks.

use std::time::Duration;

use super::spec;
use crate::cri::Runtime;
use crate::handlers;
use crate::k8s::{Container, LifecycleHandler, Pod};
use crate::net;

/// What upstream's hooks call themselves.
const AGENT: &str = "kube-lifecycle/1.37";
/// An HTTP hook that says nothing for so long has failed.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a hook; an error is what the event says.
pub async fn run(
    runtime: &Runtime,
    pod: &Pod,
    container: &Container,
    container_id: &str,
    pod_ip: &str,
    hook: &LifecycleHandler,
) -> Result<(), String> {
    let place = format!(
        "for Container {:?} in Pod {:?}",
        container.name,
        format!("{}({})", spec::name(pod), spec::uid(pod))
    );
    if let Some(action) = &hook.exec {
        let command = action.command.clone().unwrap_or_default();
        let shown = format!("[{}]", command.join(" "));
        let answer = runtime
            .exec_sync(container_id, command, Duration::ZERO)
            .await;
        let failed = |error: String, message: &str| {
            format!(
                "Exec lifecycle hook ({shown}) {place} failed - error: {error}, message: {message:?}"
            )
        };
        return match answer {
            Ok(answer) if answer.exit_code == 0 => Ok(()),
            Ok(answer) => {
                let mut output = answer.stdout;
                output.extend(answer.stderr);
                let error = format!("command '{shown}' exited with {}", answer.exit_code);
                Err(failed(error, &String::from_utf8_lossy(&output)))
            }
            Err(error) => Err(failed(error.to_string(), "")),
        };
    }
    if let Some(action) = &hook.http_get {
        let (uri, headers) = handlers::http_request(action, container, pod_ip, AGENT)?;
        let answer = net::get(&uri, &headers, HTTP_TIMEOUT).await;
        return match answer {
            Ok(answer) if answer.status.as_u16() < 400 => Ok(()),
            Ok(answer) => Err(format!(
                "HTTP lifecycle hook ({}) {place} failed - error: bad status {}",
                uri.path(),
                answer.status.as_u16()
            )),
            Err(error) => Err(format!(
                "HTTP lifecycle hook ({}) {place} failed - error: {error}",
                uri.path()
            )),
        };
    }
    if let Some(action) = &hook.sleep {
        let seconds = u64::try_from(action.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(format!("cannot run handler: {place} has none"))
}
