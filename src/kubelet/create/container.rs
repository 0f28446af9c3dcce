//! One container as the runtime is asked for it. Pure: what must be fetched or
//! made on disk first is in the input.

use std::collections::HashMap;

use super::expand::expand;
use super::security::{self, ImageUser, SecurityError};
use crate::cri::{labels, v1};
use crate::k8s::Pod;
use crate::paths;
use crate::pod::spec::{self, Slot};
use crate::resources;

/// Where a container explains its end, if it says nothing else.
const DEFAULT_TERMINATION_PATH: &str = "/dev/termination-log";

/// What a container is made from.
pub struct Input<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container and its part.
    pub slot: &'a Slot<'a>,
    /// How many instances came before.
    pub restart_count: u32,
    /// The image as the runtime knows it.
    pub image: v1::ImageSpec,
    /// Who the image runs as.
    pub image_user: ImageUser,
    /// Its environment.
    pub environment: Vec<(String, String)>,
    /// Its mounts.
    pub mounts: Vec<v1::Mount>,
    /// The id of the container whose processes it joins.
    pub target: Option<&'a str>,
    /// Bytes of memory of the node.
    pub memory_capacity: i64,
}

/// Makes the configuration.
pub fn config(input: Input<'_>) -> Result<v1::ContainerConfig, SecurityError> {
    let container = &input.slot.container;
    let (pod, name) = (input.pod, container.name.as_str());
    let expanded = |words: Option<&Vec<String>>| -> Vec<String> {
        let lookup = |name: &str| {
            let found = input.environment.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.clone())
        };
        words
            .into_iter()
            .flatten()
            .map(|word| expand(word, lookup))
            .collect()
    };
    let envs = input.environment.iter();
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: name.to_owned(),
            attempt: input.restart_count,
        }),
        command: expanded(container.command.as_ref()),
        args: expanded(container.args.as_ref()),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: envs
            .map(|(key, value)| v1::KeyValue {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
        labels: labels::container_labels(
            name,
            spec::namespace(pod),
            spec::name(pod),
            spec::uid(pod),
        ),
        annotations: annotations(pod, input.slot, input.restart_count),
        log_path: paths::log_file(name, input.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources::linux_resources(
                pod,
                container,
                input.memory_capacity,
            )),
            security_context: Some(security::container(
                pod,
                input.slot,
                &input.image_user,
                input.target,
            )?),
        }),
        image: Some(input.image),
        mounts: input.mounts,
        ..Default::default()
    })
}

/// Where in the container its termination message is read from.
pub fn termination_path<'a>(slot: &'a Slot<'_>) -> &'a str {
    slot.container
        .termination_message_path
        .as_deref()
        .unwrap_or(DEFAULT_TERMINATION_PATH)
}

fn annotations(pod: &Pod, slot: &Slot<'_>, restart_count: u32) -> HashMap<String, String> {
    let container = &slot.container;
    let policy = container
        .termination_message_policy
        .as_deref()
        .unwrap_or("File");
    let mut annotations = HashMap::from([
        (labels::CONTAINER_HASH, spec::hash(container)),
        (labels::RESTART_COUNT, restart_count.to_string()),
        (
            labels::TERMINATION_MESSAGE_PATH,
            termination_path(slot).to_owned(),
        ),
        (labels::TERMINATION_MESSAGE_POLICY, policy.to_owned()),
        (labels::POD_GRACE_PERIOD, spec_grace(pod).to_string()),
    ]);
    if let Some(hook) = container
        .lifecycle
        .as_ref()
        .and_then(|hooks| hooks.pre_stop.as_ref())
    {
        annotations.insert(
            labels::PRE_STOP,
            serde_json::to_string(hook).unwrap_or_default(),
        );
    }
    if let Some(ports) = container.ports.as_ref().filter(|ports| !ports.is_empty()) {
        annotations.insert(
            labels::CONTAINER_PORTS,
            serde_json::to_string(ports).unwrap_or_default(),
        );
    }
    annotations
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// The spec's own grace period: a deletion under way is not what the container was made with.
fn spec_grace(pod: &Pod) -> i64 {
    let spec = spec::spec(pod);
    spec.termination_grace_period_seconds
        .unwrap_or_else(|| spec::grace_seconds(pod))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    #[test]
    fn commands_are_expanded_and_the_restart_count_is_everywhere() {
        let pod = mk_pod(json!({"terminationGracePeriodSeconds": 5, "containers": [{
            "name": "c", "command": ["$(A)"], "args": ["$(B)"], "workingDir": "/w", "tty": true,
            "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
        }]}));
        let slot = spec::slot(&pod, "c").expect("c exists");
        let config = config(Input {
            pod: &pod,
            slot: &slot,
            restart_count: 3,
            image: v1::ImageSpec::default(),
            image_user: ImageUser::default(),
            environment: vec![("A".to_owned(), "run".to_owned())],
            mounts: vec![],
            target: None,
            memory_capacity: 1,
        })
        .expect("a configuration");
        assert_eq!(
            (config.command, config.args),
            (vec!["run".to_owned()], vec!["$(B)".to_owned()])
        );
        assert_eq!(config.log_path, "c/3.log");
        assert_eq!(config.metadata.expect("metadata").attempt, 3);
        assert_eq!(config.annotations[labels::RESTART_COUNT], "3");
        assert_eq!(config.annotations[labels::POD_GRACE_PERIOD], "5");
        assert_eq!(
            config.annotations[labels::PRE_STOP],
            r#"{"exec":{"command":["x"]}}"#
        );
    }
}
