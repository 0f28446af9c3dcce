//! Container logs: the format, reading them out, and rotation.

pub mod entry;
pub mod read;
pub mod rotate;

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::Backend;
use super::routes::{Query, text};
use super::stream::status_of;
use crate::k8s::{ContainerState, Pod, Time};
use read::Options;

/// Pieces of log between reader and connection.
const QUEUE: usize = 8;

/// Answers `/containerLogs/{namespace}/{pod}/{container}`.
pub(super) async fn answer(
    backend: &Arc<Backend>,
    namespace: &str,
    name: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let options = match options(query) {
        Ok(options) => options,
        Err(error) => return text(StatusCode::UNPROCESSABLE_ENTITY, error),
    };
    let Some(published) = backend.board.find(namespace, name) else {
        return text(
            StatusCode::NOT_FOUND,
            format!("pod {name:?} does not exist"),
        );
    };
    let pod = published.borrow().clone();
    let id = match instance(&pod, name, container, query.flag("previous")) {
        Ok(id) => id,
        Err(error) => return text(StatusCode::BAD_REQUEST, error),
    };
    let path = match backend.runtime.container_status(&id).await {
        Ok(status) => PathBuf::from(status.log_path),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let ended = Ended {
        published,
        container: container.to_owned(),
        id,
    };
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(QUEUE);
    // It ends with the log, or when the connection drops the receiver.
    tokio::spawn(read::read(path, options, ended, sender));
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(receiver)));
    let plain = header::HeaderValue::from_static("text/plain");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

fn options(query: &Query) -> Result<Options, String> {
    let number = |name: &str| match query.get(name).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => match text.parse::<i64>() {
            Ok(number) if number >= 0 => Ok(Some(number)),
            _ => Err(format!(
                "{name}: Invalid value: {text:?}: must be greater than or equal to 0"
            )),
        },
    };
    let since = match query.get("sinceTime").filter(|text| !text.is_empty()) {
        None => {
            number("sinceSeconds")?.map(|seconds| crate::clock::now() - seconds * 1_000_000_000)
        }
        Some(text) => {
            let time = serde_json::from_value::<Time>(text.into());
            let time = time.map_err(|_| format!("sinceTime: Invalid value: {text:?}"))?;
            Some(crate::clock::nanos(&time))
        }
    };
    Ok(Options {
        follow: query.flag("follow"),
        timestamps: query.flag("timestamps"),
        since,
        tail: number("tailLines")?.and_then(|lines| usize::try_from(lines).ok()),
        limit: number("limitBytes")?.and_then(|limit| usize::try_from(limit).ok()),
        stream: query
            .get("stream")
            .filter(|stream| *stream != "All")
            .map(str::to_lowercase),
    })
}

/// Which instance's log is meant (upstream's `validateContainerLogStatus`).
fn instance(pod: &Pod, pod_name: &str, container: &str, previous: bool) -> Result<String, String> {
    let status = status_of(pod, container)
        .ok_or_else(|| format!("container {container:?} in pod {pod_name:?} is not available"))?;
    let ended = |state: Option<&ContainerState>| {
        let id = state?.terminated.as_ref()?.container_id.as_ref()?;
        id.split_once("://").map(|(_, id)| id.to_owned())
    };
    let last = ended(status.last_state.as_ref());
    if previous {
        return last.ok_or_else(|| {
            format!("previous terminated container {container:?} in pod {pod_name:?} not found")
        });
    }
    let state = status.state.clone().unwrap_or_default();
    if state.running.is_some() {
        let id = status
            .container_id
            .as_ref()
            .and_then(|id| id.split_once("://"));
        return id.map(|(_, id)| id.to_owned()).ok_or_else(String::new);
    }
    if state.terminated.is_some() {
        return ended(status.state.as_ref())
            .or(last)
            .ok_or_else(|| format!("container {container:?} in pod {pod_name:?} is terminated"));
    }
    if let Some(last) = last {
        return Ok(last);
    }
    let reason = state
        .waiting
        .and_then(|waiting| waiting.reason)
        .unwrap_or_default();
    let reason = match reason.as_str() {
        "ErrImagePull" => "trying and failing to pull image".to_owned(),
        "ImagePullBackOff" => "image can't be pulled".to_owned(),
        _ => reason,
    };
    Err(format!(
        "container {container:?} in pod {pod_name:?} is waiting to start: {reason}"
    ))
}

/// Tells when an instance no longer runs, so that following its log ends.
pub struct Ended {
    published: watch::Receiver<Arc<Pod>>,
    container: String,
    id: String,
}

impl Ended {
    fn is_running(&self) -> bool {
        let pod = self.published.borrow();
        status_of(&pod, &self.container).is_some_and(|status| {
            let same = status
                .container_id
                .as_ref()
                .is_some_and(|id| id.ends_with(&self.id));
            same && status
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some())
        })
    }

    /// Waits for the instance's end. Cancel-safe.
    pub async fn wait(&mut self) {
        while self.is_running() {
            if self.published.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(status: Value, previous: bool, expected: Result<&str, &str>) {
        let mut status = status;
        for (key, value) in [
            ("name", json!("c")),
            ("image", json!("")),
            ("imageID", json!("")),
            ("ready", json!(false)),
            ("restartCount", json!(0)),
        ] {
            status[key] = value;
        }
        let pod: Pod = serde_json::from_value(json!({"status": {"containerStatuses": [status]}}))
            .expect("a pod");
        let found = instance(&pod, "p", "c", previous);
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn the_instance_is_the_running_the_ended_or_the_one_before() {
        let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": format!("containerd://{id}")}});
        let running = json!({"containerID": "containerd://now", "state": {"running": {}}, "lastState": ended("old")});
        check(running.clone(), false, Ok("now"));
        check(running, true, Ok("old"));
        check(json!({"state": ended("now")}), false, Ok("now"));
        let looping = json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended("old")});
        check(looping, false, Ok("old"));
    }

    #[test]
    fn what_has_no_log_is_told_in_upstreams_words() {
        let waiting = |reason: &str| json!({"state": {"waiting": {"reason": reason}}});
        check(
            waiting("ContainerCreating"),
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
        );
        check(
            waiting("ImagePullBackOff"),
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
        );
        check(
            waiting("x"),
            true,
            Err("previous terminated container \"c\" in pod \"p\" not found"),
        );
    }
}
