//! Starting one container: image, environment, mounts, create, start, postStart
//! hook, with the event of each step.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::hooks;
use super::reporter::Reporter;
use super::shared::Shared;
use super::spec::{self, Slot};
use crate::create::environment::{self, EnvironmentError, Objects};
use crate::create::fields::Addresses;
use crate::create::{container, dns};
use crate::cri::v1;
use crate::images::{self, ImageError};
use crate::k8s::{Node, Pod, Secret, Service};
use crate::static_pods;
use crate::volumes::{self, Ready, mounts};

/// One container to start.
pub struct Job {
    /// What the kubelet has.
    pub shared: Arc<Shared>,
    /// The pod.
    pub pod: Arc<Pod>,
    /// The container's name.
    pub name: String,
    /// How many instances came before.
    pub restart_count: u32,
    /// An instance that never ran, removed first.
    pub replaces: Option<String>,
    /// The sandbox's id.
    pub sandbox_id: String,
    /// And its number.
    pub sandbox_attempt: u32,
    /// The pod's addresses.
    pub pod_ips: Vec<String>,
    /// The pod's volumes.
    pub volumes: Arc<BTreeMap<String, Ready>>,
    /// The id of the container whose processes it joins.
    pub target: Option<String>,
    /// Called when the container runs and its postStart hook has not returned.
    pub hook_begins: Box<dyn Fn(&str) + Send + Sync>,
    /// Events about the pod.
    pub reporter: Reporter,
}

/// Why a container does not run. The reason is its waiting state's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// There is no image.
    #[error("{0}")]
    Image(#[from] ImageError),
    /// What it is made from is not there.
    #[error("{0}")]
    Config(String),
    /// The runtime did not create it.
    #[error("{0}")]
    Create(String),
    /// The runtime did not start it.
    #[error("{0}")]
    Run(String),
    /// Its postStart hook failed; the container, whose id it is, is to be killed.
    #[error("{message}")]
    PostStart {
        /// The container.
        id: String,
        /// What failed.
        message: String,
    },
    /// The pod no longer has such a container.
    #[error("container {0} is not in the pod's spec")]
    Unknown(String),
}

impl StartError {
    /// The `reason` of the waiting state.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Image(error) => error.reason(),
            Self::Config(_) | Self::Unknown(_) => "CreateContainerConfigError",
            Self::Create(_) => "CreateContainerError",
            Self::Run(_) => "RunContainerError",
            Self::PostStart { .. } => "PostStartHookError",
        }
    }
}

/// Starts the container; answers its id.
pub async fn start(job: Job) -> Result<String, StartError> {
    let pod = job.pod.clone();
    let name = job.name.clone();
    let slot = spec::slot(&pod, &name).ok_or_else(|| StartError::Unknown(name.clone()))?;
    let events = job.reporter.container(slot.field_path());
    let result = try_start(job, &slot, &events).await;
    match &result {
        Err(StartError::PostStart { message, .. }) => {
            events.warning("FailedPostStartHook", message.clone());
        }
        // The image's own events said what happened; this says what it means.
        Err(StartError::Image(error)) => {
            events.warning("Failed", format!("Error: {}", error.reason()))
        }
        Err(error) => events.warning("Failed", format!("Error: {error}")),
        Ok(_) => {}
    }
    result
}

async fn try_start(job: Job, slot: &Slot<'_>, events: &Reporter) -> Result<String, StartError> {
    let runtime = &job.shared.runtime;
    if let Some(unborn) = &job.replaces {
        let removed = runtime.remove_container(unborn).await;
        removed.map_err(|error| StartError::Create(error.to_string()))?;
    }
    let sandbox_config = super::sandbox::config(&job.shared, &job.pod, job.sandbox_attempt);
    let image = slot.container.image.clone().unwrap_or_default();
    let secrets = pull_secrets(&job).await;
    let request = images::Request {
        image: &image,
        policy: slot.container.image_pull_policy.as_deref(),
        secrets: &secrets,
        sandbox: sandbox_config.clone(),
    };
    let present = job.shared.images.ensure(request, events).await?;
    let environment = environment(&job, slot).await?;
    let mounts = make_mounts(&job, slot, &environment)?;
    let memory = i64::try_from(job.shared.node.machine().memory).unwrap_or(i64::MAX);
    let config = container::config(container::Input {
        pod: &job.pod,
        slot,
        restart_count: job.restart_count,
        image: v1::ImageSpec {
            image: images::reference::with_default_tag(&image).unwrap_or(image),
            ..Default::default()
        },
        image_user: present.user,
        environment,
        mounts,
        target: job.target.as_deref(),
        memory_capacity: memory,
    })
    .map_err(|error| StartError::Config(error.to_string()))?;
    let log = job.shared.paths(&job.pod).logs().join(&config.log_path);
    if let Some(folder) = log.parent() {
        let made = std::fs::create_dir_all(folder);
        made.map_err(|error| StartError::Create(format!("create {}: {error}", folder.display())))?;
    }
    let created = runtime
        .create_container(&job.sandbox_id, config, sandbox_config)
        .await;
    let id = created.map_err(|error| StartError::Create(error.description().to_owned()))?;
    events.normal("Created", "Container created");
    let started = runtime.start_container(&id).await;
    started.map_err(|error| StartError::Run(error.description().to_owned()))?;
    events.normal("Started", "Container started");
    link_log(&job, &id, &log);
    post_start(job, slot, &id).await?;
    Ok(id)
}

async fn post_start(job: Job, slot: &Slot<'_>, id: &str) -> Result<(), StartError> {
    let hook = slot
        .container
        .lifecycle
        .as_ref()
        .and_then(|hooks| hooks.post_start.as_ref());
    let Some(hook) = hook else { return Ok(()) };
    (job.hook_begins)(id);
    let pod_ip = job.pod_ips.first().cloned().unwrap_or_default();
    let (runtime, container) = (&job.shared.runtime, &slot.container);
    let result = hooks::run(runtime, &job.pod, container, id, &pod_ip, hook).await;
    result.map_err(|message| StartError::PostStart {
        id: id.to_owned(),
        message,
    })
}

async fn pull_secrets(job: &Job) -> Vec<Arc<Secret>> {
    let spec = spec::spec(&job.pod);
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for reference in spec.image_pull_secrets.iter().flatten() {
        let secret = job
            .shared
            .objects
            .secret(spec::namespace(&job.pod), &reference.name)
            .await;
        match secret {
            Ok(Some(secret)) => found.push(secret),
            _ => missing.push(reference.name.clone()),
        }
    }
    if !missing.is_empty() {
        let names = missing.join(", ");
        job.reporter.warning(
            "FailedToRetrieveImagePullSecret",
            format!("Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."),
        );
    }
    found
}

async fn environment(job: &Job, slot: &Slot<'_>) -> Result<Vec<(String, String)>, StartError> {
    let config = |error: String| StartError::Config(error);
    let (config_maps, secrets) = environment::references(&slot.container);
    let namespace = spec::namespace(&job.pod);
    let mut objects = Objects::default();
    for name in config_maps {
        let found = job.shared.objects.config_map(namespace, &name).await;
        objects
            .config_maps
            .insert(name, found.map_err(|error| config(error.to_string()))?);
    }
    for name in secrets {
        let found = job.shared.objects.secret(namespace, &name).await;
        objects
            .secrets
            .insert(name, found.map_err(|error| config(error.to_string()))?);
    }
    // What the API server itself may need cannot wait for it.
    if !static_pods::is_static(&job.pod) {
        job.shared.services.wait_synced().await;
    }
    let services: Vec<Arc<Service>> = job.shared.services.list();
    let node: Arc<Node> = job.shared.node.node();
    environment::environment(&environment::Input {
        pod: &job.pod,
        container: &slot.container,
        node: &node,
        addresses: Addresses {
            host: &job.shared.host_ips(),
            pod: &job.pod_ips,
        },
        objects: &objects,
        services: &services,
    })
    .map_err(|error: EnvironmentError| config(error.to_string()))
}

fn make_mounts(
    job: &Job,
    slot: &Slot<'_>,
    environment: &[(String, String)],
) -> Result<Vec<v1::Mount>, StartError> {
    let node_hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let domain = &job.shared.config.cluster_domain;
    let etc_hosts = dns::etc_hosts(&job.pod, &job.pod_ips, domain, &node_hosts);
    let mounts = mounts::mounts(&mounts::Input {
        slot,
        paths: &job.shared.paths(&job.pod),
        volumes: &job.volumes,
        environment,
        etc_hosts: Some(&etc_hosts),
    });
    mounts.map_err(|error: volumes::VolumeError| StartError::Config(error.to_string()))
}

/// `/var/log/containers/<pod>_<ns>_<container>-<id>.log`, which log shippers follow.
fn link_log(job: &Job, id: &str, log: &Path) {
    let folder = &job.shared.config.container_logs_dir;
    let (namespace, name) = (spec::namespace(&job.pod), spec::name(&job.pod));
    let link = folder.join(format!("{name}_{namespace}_{}-{id}.log", job.name));
    let made =
        std::fs::create_dir_all(folder).and_then(|()| std::os::unix::fs::symlink(log, &link));
    if let Err(error) = made {
        tracing::debug!(%error, link = %link.display(), "cannot link a container's log");
    }
}
