//! Images: whether one is there, pulling it with its credentials, and the
//! events that tell of it. Back-off is the caller's, who knows the pod.

pub mod credentials;
pub mod gc;
pub mod reference;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::create::security::ImageUser;
use crate::cri::{CriError, Runtime, v1};
use crate::k8s::Secret;
use crate::node::NodeState;
use crate::pod::reporter::Reporter;
use crate::text;

/// Pulls under way at a time when they are not serialized. Upstream has no
/// bound; the runtime's own downloads per image are three.
const MAX_PARALLEL_PULLS: usize = 16;

/// An image that containers can be made of.
#[derive(Clone, Debug)]
pub struct Present {
    /// Whom it runs as.
    pub user: ImageUser,
}

/// Why there is no image. The variant is the container's waiting reason.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    /// The name is none.
    #[error("{0}")]
    InvalidName(String),
    /// The runtime does not tell whether it has the image.
    #[error("{0}")]
    Inspect(String),
    /// The policy forbids pulling, and the image is not there.
    #[error("{0}")]
    NeverPull(String),
    /// The pull failed.
    #[error("{0}")]
    Pull(String),
}

impl ImageError {
    /// The `reason` of the container's waiting state.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidName(_) => "InvalidImageName",
            Self::Inspect(_) => "ImageInspectError",
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::Pull(_) => "ErrImagePull",
        }
    }
}

/// Brings images to the node; clones share it.
#[derive(Clone)]
pub struct Images {
    runtime: Runtime,
    node: NodeState,
    slots: Arc<Semaphore>,
}

/// What is asked for.
pub struct Request<'a> {
    /// The container's image as its spec has it.
    pub image: &'a str,
    /// `Always`, `IfNotPresent`, `Never`; none is the default for the name.
    pub policy: Option<&'a str>,
    /// Secrets named by imagePullSecrets.
    pub secrets: &'a [Arc<Secret>],
    /// The sandbox the container will be in.
    pub sandbox: v1::PodSandboxConfig,
}

impl Images {
    /// `serialize` pulls one image at a time.
    pub fn new(runtime: Runtime, node: NodeState, serialize: bool) -> Self {
        let slots = if serialize { 1 } else { MAX_PARALLEL_PULLS };
        Self {
            runtime,
            node,
            slots: Arc::new(Semaphore::new(slots)),
        }
    }

    /// The image, pulled if its policy says so. Dropping the future cancels the pull.
    pub async fn ensure(
        &self,
        request: Request<'_>,
        events: &Reporter,
    ) -> Result<Present, ImageError> {
        let image = request.image;
        let name = reference::with_default_tag(image).map_err(|error| {
            let message = format!(
                "Failed to apply default image tag {}: {error}",
                text::quoted(image)
            );
            events.warning("InspectFailed", message.clone());
            ImageError::InvalidName(message)
        })?;
        let spec = v1::ImageSpec {
            image: name.clone(),
            ..Default::default()
        };
        let found = self
            .runtime
            .image_status(spec.clone())
            .await
            .map_err(|error| {
                let message = format!("Failed to inspect image {}: {error}", text::quoted(image));
                events.warning("InspectFailed", message.clone());
                ImageError::Inspect(message)
            })?;
        let policy = request
            .policy
            .unwrap_or_else(|| reference::default_policy(image));
        match (policy, found) {
            ("Always", _) | ("IfNotPresent", None) => self.pull(&request, spec, events).await,
            (_, Some(found)) => {
                let quoted = text::quoted(image);
                events.normal(
                    "Pulled",
                    format!("Container image {quoted} already present on machine and can be accessed by the pod"),
                );
                Ok(Present { user: user(&found) })
            }
            (_, None) => {
                let quoted = text::quoted(image);
                let message =
                    format!("Container image {quoted} is not present with pull policy of Never");
                events.warning("ErrImageNeverPull", message.clone());
                Err(ImageError::NeverPull(message))
            }
        }
    }

    async fn pull(
        &self,
        request: &Request<'_>,
        spec: v1::ImageSpec,
        events: &Reporter,
    ) -> Result<Present, ImageError> {
        let quoted = text::quoted(request.image);
        events.normal("Pulling", format!("Pulling image {quoted}"));
        let asked = Instant::now();
        let (pulled, elapsed) = self.pull_in_turn(request, &spec).await;
        let waited = asked.elapsed();
        if let Err(error) = pulled {
            events.warning("Failed", format!("Failed to pull image {quoted}: {error}"));
            return Err(ImageError::Pull(error.to_string()));
        }
        let found = self
            .runtime
            .image_status(spec)
            .await
            .ok()
            .flatten()
            .unwrap_or_default();
        events.normal(
            "Pulled",
            format!(
                "Successfully pulled image {quoted} in {} ({} including waiting). Image size: {} bytes.",
                text::milliseconds(elapsed),
                text::milliseconds(waited),
                found.size
            ),
        );
        self.node.images_changed();
        Ok(Present { user: user(&found) })
    }

    /// Waits for a free slot, then pulls with each fitting credential until one works.
    async fn pull_in_turn(
        &self,
        request: &Request<'_>,
        spec: &v1::ImageSpec,
    ) -> (Result<(), CriError>, Duration) {
        // The semaphore is never closed; without a permit the pull goes ahead unbounded.
        let _slot = self.slots.acquire().await.ok();
        let started = Instant::now();
        let parsed = reference::parse(&spec.image).ok();
        let credentials = parsed.map(|image| credentials::matching(request.secrets, &image));
        let credentials = credentials.unwrap_or_default().into_iter().map(Some);
        let mut credentials: Vec<_> = credentials.collect();
        if credentials.is_empty() {
            credentials.push(None);
        }
        let mut result = Ok(());
        for auth in credentials {
            let sandbox = Some(request.sandbox.clone());
            result = self
                .runtime
                .pull_image(spec.clone(), auth, sandbox)
                .await
                .map(drop);
            if result.is_ok() {
                break;
            }
        }
        (result, started.elapsed())
    }
}

/// Whom an image runs as; neither number nor name is root.
fn user(image: &v1::Image) -> ImageUser {
    match (&image.uid, image.username.as_str()) {
        (Some(uid), _) => ImageUser {
            uid: Some(uid.value),
            name: String::new(),
        },
        (None, "") => ImageUser {
            uid: Some(0),
            name: String::new(),
        },
        (None, name) => ImageUser {
            uid: None,
            name: name.to_owned(),
        },
    }
}
