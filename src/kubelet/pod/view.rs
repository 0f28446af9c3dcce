//! What the runtime has of one pod: its sandboxes and every instance of its
//! containers, newest first. Built only from CRI answers, so it is the same
//! before and after a restart of the kubelet. [`PodView`] is the type to read.

use std::collections::{BTreeMap, HashMap};

use crate::cri::{labels, v1};

/// Nanoseconds since 1970, as CRI counts time; 0 is "never".
pub type Nanos = i64;

/// Everything of one pod that the runtime knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Newest first.
    pub sandboxes: Vec<SandboxView>,
    /// Newest first, over all containers and sandboxes.
    pub containers: Vec<ContainerView>,
}

/// One sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxView {
    /// The runtime's id.
    pub id: String,
    /// How many sandboxes the pod had before this one.
    pub attempt: u32,
    /// Whether it runs.
    pub ready: bool,
    /// When it was created.
    pub created_at: Nanos,
    /// The pod's addresses; empty with the host's network.
    pub ips: Vec<String>,
    /// Whether it uses the host's network namespace.
    pub host_network: bool,
}

/// The runtime's states of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Created and not started.
    Created,
    /// Its process runs.
    Running,
    /// Its process ended.
    Exited,
    /// The runtime lost track of it.
    #[default]
    Unknown,
}

/// One instance of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerView {
    /// The runtime's id.
    pub id: String,
    /// The sandbox it is in.
    pub sandbox_id: String,
    /// The container's name in the pod.
    pub name: String,
    /// How many instances came before it.
    pub restart_count: u32,
    /// What of the spec it was made from; see [`labels::CONTAINER_HASH`].
    pub hash: String,
    /// Its state.
    pub state: State,
    /// The image as the runtime names it.
    pub image: String,
    /// The image's digest reference.
    pub image_id: String,
    /// When it was created.
    pub created_at: Nanos,
    /// When its process started.
    pub started_at: Nanos,
    /// When its process ended.
    pub finished_at: Nanos,
    /// The exit code, if it ended.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, …
    pub reason: String,
    /// The termination message, or the runtime's words.
    pub message: String,
    /// Absolute path of its log.
    pub log_path: String,
    /// What its cgroup has, where the runtime tells.
    pub resources: Option<v1::LinuxContainerResources>,
    /// Who its first process is, where the runtime tells.
    pub user: Option<v1::LinuxContainerUser>,
    /// The annotations the kubelet gave it; see [`labels`].
    pub annotations: BTreeMap<String, String>,
    /// Where its termination message is on the host.
    pub termination_log: Option<String>,
}

impl ContainerView {
    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Whether it may have a process. One that was only created has none, and
    /// the runtime does not stop it.
    pub fn is_alive(&self) -> bool {
        matches!(self.state, State::Running | State::Unknown)
    }

    /// An annotation, or "".
    pub fn annotation(&self, key: &str) -> &str {
        self.annotations.get(key).map_or("", String::as_str)
    }
}

impl PodView {
    /// The newest sandbox.
    pub fn sandbox(&self) -> Option<&SandboxView> {
        self.sandboxes.first()
    }

    /// The newest sandbox, if it runs.
    pub fn ready_sandbox(&self) -> Option<&SandboxView> {
        self.sandbox().filter(|sandbox| sandbox.ready)
    }

    /// The newest instance of a container.
    pub fn latest(&self, name: &str) -> Option<&ContainerView> {
        self.containers
            .iter()
            .find(|container| container.name == name)
    }

    /// The newest instance of a container in one sandbox.
    pub fn latest_in(&self, sandbox_id: &str, name: &str) -> Option<&ContainerView> {
        let mut containers = self.containers.iter();
        containers.find(|container| container.sandbox_id == sandbox_id && container.name == name)
    }

    /// The newest ended instance of a container, older than `than`.
    pub fn previous(&self, name: &str, than: &ContainerView) -> Option<&ContainerView> {
        self.containers.iter().find(|container| {
            container.name == name && container.id != than.id && container.state == State::Exited
        })
    }

    /// The container with this id.
    pub fn by_id(&self, id: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|container| container.id == id)
    }

    /// Those that may have a process.
    pub fn alive(&self) -> impl Iterator<Item = &ContainerView> {
        self.containers
            .iter()
            .filter(|container| container.is_alive())
    }

    /// Whether nothing of the pod is left running.
    pub fn is_stopped(&self) -> bool {
        self.alive().next().is_none() && !self.sandboxes.iter().any(|sandbox| sandbox.ready)
    }

    /// Whether the runtime has nothing at all of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Puts the newest first; callers that collect a view end with this.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by(|a, b| {
            (b.created_at, b.attempt)
                .cmp(&(a.created_at, a.attempt))
                .then_with(|| a.id.cmp(&b.id))
        });
        self.containers.sort_by(|a, b| {
            let order = (b.created_at, b.restart_count).cmp(&(a.created_at, a.restart_count));
            order.then_with(|| a.id.cmp(&b.id))
        });
    }
}

impl From<v1::PodSandboxStatus> for SandboxView {
    fn from(status: v1::PodSandboxStatus) -> Self {
        let network = status.network.unwrap_or_default();
        let additional = network.additional_ips.into_iter().map(|ip| ip.ip);
        let options = status
            .linux
            .and_then(|linux| linux.namespaces)
            .and_then(|ns| ns.options);
        Self {
            ready: status.state == v1::PodSandboxState::SandboxReady as i32,
            id: status.id,
            attempt: status.metadata.map_or(0, |metadata| metadata.attempt),
            created_at: status.created_at,
            ips: [network.ip]
                .into_iter()
                .chain(additional)
                .filter(|ip| !ip.is_empty())
                .collect(),
            host_network: options
                .is_some_and(|options| options.network == v1::NamespaceMode::Node as i32),
        }
    }
}

impl From<i32> for State {
    fn from(state: i32) -> Self {
        match v1::ContainerState::try_from(state) {
            Ok(v1::ContainerState::ContainerCreated) => Self::Created,
            Ok(v1::ContainerState::ContainerRunning) => Self::Running,
            Ok(v1::ContainerState::ContainerExited) => Self::Exited,
            Ok(v1::ContainerState::ContainerUnknown) | Err(_) => Self::Unknown,
        }
    }
}

impl ContainerView {
    /// A container as its status tells of it. The sandbox comes from the list
    /// call, since a container's status does not name it.
    pub fn new(status: v1::ContainerStatus, sandbox_id: &str) -> Self {
        let annotations = annotations(status.annotations);
        let metadata = status.metadata.unwrap_or_default();
        let restart_count = annotations.get(labels::RESTART_COUNT);
        let termination_path = annotations.get(labels::TERMINATION_MESSAGE_PATH);
        let termination_log = termination_path.and_then(|path| {
            let mount = status
                .mounts
                .iter()
                .find(|mount| mount.container_path == *path)?;
            Some(mount.host_path.clone())
        });
        let image_id = if status.image_id.is_empty() {
            &status.image_ref
        } else {
            &status.image_id
        };
        Self {
            restart_count: restart_count
                .and_then(|count| count.parse().ok())
                .unwrap_or(metadata.attempt),
            hash: annotations
                .get(labels::CONTAINER_HASH)
                .cloned()
                .unwrap_or_default(),
            name: metadata.name,
            sandbox_id: sandbox_id.to_owned(),
            state: State::from(status.state),
            image: status.image.unwrap_or_default().image,
            image_id: if status.image_ref.is_empty() {
                image_id.clone()
            } else {
                status.image_ref
            },
            id: status.id,
            created_at: status.created_at,
            started_at: status.started_at,
            finished_at: status.finished_at,
            exit_code: status.exit_code,
            reason: status.reason,
            message: status.message,
            log_path: status.log_path,
            resources: status.resources.and_then(|resources| resources.linux),
            user: status.user.and_then(|user| user.linux),
            annotations,
            termination_log,
        }
    }
}

/// Only the kubelet's annotations are kept: images and runtimes add large ones.
fn annotations(all: HashMap<String, String>) -> BTreeMap<String, String> {
    all.into_iter()
        .filter(|(key, _)| key.starts_with("io.kubernetes."))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_container(name: &str, created_at: Nanos, state: State) -> ContainerView {
        ContainerView {
            id: format!("{name}-{created_at}"),
            sandbox_id: "s".to_owned(),
            name: name.to_owned(),
            created_at,
            state,
            ..ContainerView::default()
        }
    }

    #[test]
    fn the_newest_instance_comes_first_and_the_previous_one_has_ended() {
        let mut view = PodView {
            sandboxes: vec![],
            containers: vec![
                mk_container("a", 1, State::Exited),
                mk_container("a", 3, State::Running),
                mk_container("a", 2, State::Exited),
                mk_container("b", 9, State::Exited),
            ],
        };
        view.sort();
        let latest = view.latest("a").expect("a exists");
        assert_eq!(latest.id, "a-3");
        assert_eq!(view.previous("a", latest).expect("an older a").id, "a-2");
        assert!(!view.is_stopped());
    }

    #[test]
    fn the_restart_count_comes_from_the_annotation() {
        let status = v1::ContainerStatus {
            metadata: Some(v1::ContainerMetadata {
                name: "c".to_owned(),
                attempt: 1,
            }),
            annotations: HashMap::from([
                (labels::RESTART_COUNT.to_owned(), "7".to_owned()),
                ("org.example/big".to_owned(), "x".repeat(100)),
            ]),
            state: v1::ContainerState::ContainerExited as i32,
            ..Default::default()
        };
        let container = ContainerView::new(status, "s");
        assert_eq!(
            (container.restart_count, container.state),
            (7, State::Exited)
        );
        assert_eq!(container.annotations.len(), 1);
    }
}
