//! Collecting a pod's view from the runtime. Of what cannot change any more,
//! ended containers, the answer before is kept.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::view::{ContainerView, PodView, SandboxView, State};
use crate::cri::{self, Runtime, labels, v1};
use crate::server::logs::entry;

/// Upstream's `MaxContainerTerminationMessageLength`, bytes.
const MAX_MESSAGE: u64 = 4096;
/// Upstream's `MaxContainerTerminationMessageLogLength`, bytes, and `…LogLines`.
const MAX_LOG_MESSAGE: usize = 2048;
const MAX_LOG_LINES: usize = 80;

/// What the runtime has of the pod `uid` now.
pub async fn observe(runtime: &Runtime, uid: &str, before: &PodView) -> cri::Result<PodView> {
    let sandboxes = runtime.list_sandboxes(labels::of_pod(uid)).await?;
    let containers = runtime.list_containers(labels::of_pod(uid)).await?;
    let mut view = PodView::default();
    for listed in sandboxes {
        if let Some(sandbox) = sandbox(runtime, &listed, before).await? {
            view.sandboxes.push(sandbox);
        }
    }
    for listed in containers {
        if let Some(container) = container(runtime, &listed, before).await? {
            view.containers.push(container);
        }
    }
    view.sort();
    Ok(view)
}

async fn sandbox(
    runtime: &Runtime,
    listed: &v1::PodSandbox,
    before: &PodView,
) -> cri::Result<Option<SandboxView>> {
    let ready = listed.state == v1::PodSandboxState::SandboxReady as i32;
    let known = before.sandboxes.iter().find(|known| known.id == listed.id);
    // A sandbox gets its address before it is ready and never another one.
    if let Some(known) = known.filter(|known| known.ready == ready) {
        return Ok(Some(known.clone()));
    }
    gone_is_none(
        runtime
            .sandbox_status(&listed.id)
            .await
            .map(SandboxView::from),
    )
}

async fn container(
    runtime: &Runtime,
    listed: &v1::Container,
    before: &PodView,
) -> cri::Result<Option<ContainerView>> {
    let state = State::from(listed.state);
    let known = before
        .by_id(&listed.id)
        .filter(|known| known.state == state);
    if let Some(known) = known.filter(|_| matches!(state, State::Exited | State::Running)) {
        return Ok(Some(known.clone()));
    }
    let status = gone_is_none(runtime.container_status(&listed.id).await)?;
    Ok(status.map(|status| {
        let mut container = ContainerView::new(status, &listed.pod_sandbox_id);
        if container.state == State::Exited {
            if let Some(message) = termination_message(&container) {
                container.message = message;
            }
        }
        container
    }))
}

fn gone_is_none<T>(result: cri::Result<T>) -> cri::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        // Removed between the list and the look at it.
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the container left as its last words; none keeps the runtime's message.
fn termination_message(container: &ContainerView) -> Option<String> {
    let file = container.termination_log.as_ref()?;
    let said = match fs::File::open(file) {
        Ok(opened) => {
            let mut bytes = Vec::new();
            opened.take(MAX_MESSAGE).read_to_end(&mut bytes).ok()?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
        Err(error) => format!("Error on reading termination log {file}: {error}"),
    };
    let policy = container.annotation(labels::TERMINATION_MESSAGE_POLICY);
    let from_log = said.is_empty() && container.exit_code != 0 && policy == "FallbackToLogsOnError";
    let message = if from_log {
        log_tail(Path::new(&container.log_path))
    } else {
        said
    };
    (!message.is_empty()).then_some(message)
}

/// The end of a container's log, as its message.
fn log_tail(path: &Path) -> String {
    let Ok(mut file) = fs::File::open(path) else {
        return String::new();
    };
    let length = file.metadata().map(|metadata| metadata.len()).unwrap_or(0);
    // Room for the marks of each line beside its text.
    let wanted = (MAX_LOG_MESSAGE + MAX_LOG_LINES * 64) as u64;
    if file
        .seek(SeekFrom::Start(length.saturating_sub(wanted)))
        .is_err()
    {
        return String::new();
    }
    let mut bytes = Vec::new();
    if file.read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().filter_map(entry::parse).collect();
    let tail = &lines[lines.len().saturating_sub(MAX_LOG_LINES)..];
    let message: String = tail.iter().map(entry::Entry::text).collect();
    let mut start = message.len().saturating_sub(MAX_LOG_MESSAGE);
    while !message.is_char_boundary(start) {
        start += 1;
    }
    message[start..].to_owned()
}
