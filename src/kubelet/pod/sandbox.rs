//! Making a pod's sandbox: the steps and their events.

use std::sync::Arc;

use super::reporter::Reporter;
use super::shared::Shared;
use super::spec;
use crate::create::{dns, sandbox};
use crate::cri::v1;
use crate::k8s::{Pod, RuntimeClass};

/// Why there is no sandbox; the text is the event's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SandboxError {
    /// The network is not there yet; tried again when it is.
    #[error("network is not ready: {0}")]
    Network(String),
    /// The RuntimeClass cannot be used.
    #[error("Failed to create pod sandbox: {0}")]
    RuntimeClass(String),
    /// The pod asks for a user namespace, which it cannot have. It does not run as the node's users instead.
    #[error("Failed to create pod sandbox: {0}")]
    UserNamespace(String),
    /// A folder or cgroup cannot be made.
    #[error("Failed to create pod sandbox: {0}")]
    Node(String),
    /// The runtime failed.
    #[error("Failed to create pod sandbox: {0}")]
    Runtime(String),
}

/// The configuration of the pod's sandbox number `attempt`. It is needed for
/// every container too, and is the same each time.
pub fn config(shared: &Shared, pod: &Pod, attempt: u32) -> v1::PodSandboxConfig {
    let resolv_conf = shared.resolv_conf();
    let resolver = dns::Resolver {
        cluster_dns: &shared.config.cluster_dns,
        cluster_domain: &shared.config.cluster_domain,
        resolv_conf: &resolv_conf,
    };
    sandbox::config(sandbox::Input {
        pod,
        paths: &shared.paths(pod),
        dns: dns::config(pod, &resolver),
        cluster_domain: &shared.config.cluster_domain,
        cgroup_parent: shared.cgroups.parent(pod),
        attempt,
    })
}

/// Makes the sandbox; answers its id.
pub async fn create(
    shared: Arc<Shared>,
    pod: Arc<Pod>,
    attempt: u32,
    reporter: Reporter,
) -> Result<String, SandboxError> {
    let result = try_create(&shared, &pod, attempt, &reporter).await;
    if let Err(error) = &result {
        let reason = match error {
            SandboxError::Network(_) => "NetworkNotReady",
            _ => "FailedCreatePodSandBox",
        };
        reporter.warning(reason, error.to_string());
    }
    result
}

async fn try_create(
    shared: &Shared,
    pod: &Pod,
    attempt: u32,
    reporter: &Reporter,
) -> Result<String, SandboxError> {
    let problem = shared.node.network_problem().borrow().clone();
    if !problem.is_empty() && !spec::host_network(pod) {
        return Err(SandboxError::Network(problem));
    }
    let spec = spec::spec(pod);
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    if shared.config.cluster_dns.is_empty() && policy.starts_with("ClusterFirst") {
        reporter.warning(
            "MissingClusterDNS",
            format!(
                "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using {policy:?} policy. Falling back to \"Default\" policy.",
                spec::describe(pod)
            ),
        );
    }
    let handler = runtime_handler(shared, spec.runtime_class_name.as_deref()).await?;
    check_user_namespace(pod, &handler)?;
    let logs = shared.paths(pod).logs().to_owned();
    let node = |error: std::io::Error| SandboxError::Node(format!("{}: {error}", logs.display()));
    std::fs::create_dir_all(&logs).map_err(node)?;
    shared
        .cgroups
        .ensure(pod)
        .map_err(|error| SandboxError::Node(error.to_string()))?;
    let config = config(shared, pod, attempt);
    let created = shared.runtime.run_sandbox(config, &handler).await;
    created.map_err(|error| SandboxError::Runtime(error.to_string()))
}

/// The handler of the pod's RuntimeClass (KEP-585); none is the runtime's default.
async fn runtime_handler(shared: &Shared, class: Option<&str>) -> Result<String, SandboxError> {
    let Some(name) = class.filter(|name| !name.is_empty()) else {
        return Ok(String::new());
    };
    let found = shared
        .client
        .get::<crate::k8s::RuntimeClass>(&api::r::RUNTIMECLASSES, "", name);
    match found.await {
        Ok(RuntimeClass { handler, .. }) => Ok(handler),
        Err(error) => Err(SandboxError::RuntimeClass(format!(
            "get RuntimeClass {name:?}: {error}"
        ))),
    }
}

/// KEP-127. No runtime is given id mappings yet, so to this kubelet none supports them.
fn check_user_namespace(pod: &Pod, handler: &str) -> Result<(), SandboxError> {
    if spec::spec(pod).host_users != Some(false) {
        return Ok(());
    }
    let runtime = match handler {
        "" => "runtime".to_owned(),
        handler => format!("RuntimeClass handler {handler:?}"),
    };
    Err(SandboxError::UserNamespace(format!(
        "can't set `spec.hostUsers: false`, {runtime} does not support user namespaces"
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    #[test]
    fn a_pod_that_asks_for_a_user_namespace_gets_no_sandbox_without_one() {
        let check = |spec, handler| {
            let checked = check_user_namespace(&mk_pod(spec), handler);
            checked.map_err(|error| error.to_string())
        };
        let container = json!([{"name": "c"}]);
        assert_eq!(check(json!({"containers": container}), ""), Ok(()));
        assert_eq!(
            check(json!({"containers": container, "hostUsers": true}), ""),
            Ok(())
        );
        for (handler, runtime) in [("", "runtime"), ("kata", "RuntimeClass handler \"kata\"")] {
            assert_eq!(
                check(
                    json!({"containers": container, "hostUsers": false}),
                    handler
                ),
                Err(format!(
                    "Failed to create pod sandbox: can't set `spec.hostUsers: false`, {runtime} does not support user namespaces"
                ))
            );
        }
    }
}
