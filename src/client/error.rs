//! Why a call failed: the variant is the step that failed.

use std::time::Duration;

use apimachinery::status::{Reason, Status};

use crate::transport::BoxError;

/// The error of every call. `Api` is the server's answer; all others are about getting one.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with a `metav1.Status` of failure.
    #[error("{0}")]
    Api(Box<Status>),
    /// No connection could be made (refused, unreachable, TLS). The request was not sent.
    #[error("cannot connect to {address}: {source}")]
    Connect { address: String, source: BoxError },
    /// The connection broke with the request under way. Whether the server acted on it is unknown.
    #[error("connection failed: {0}")]
    Transport(#[source] BoxError),
    /// No answer within the request's timeout. Whether the server acted on it is unknown.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The answer is not what was asked for.
    #[error("cannot decode the server's answer: {0}")]
    Decode(#[source] serde_json::Error),
    /// What should be sent cannot be encoded.
    #[error("cannot encode the request: {0}")]
    Encode(#[source] serde_json::Error),
    /// The request itself is malformed, such as an empty name.
    #[error("invalid request: {0}")]
    Request(String),
    /// The answer, or one frame of a watch, exceeds the client's limit (bytes).
    #[error("answer exceeds {0} bytes")]
    TooLarge(usize),
    /// Credentials could not be read.
    #[error("cannot read credentials: {0}")]
    Credentials(String),
}

impl ClientError {
    /// The server's status, if it answered.
    pub fn status(&self) -> Option<&Status> {
        match self {
            ClientError::Api(status) => Some(status),
            _ => None,
        }
    }

    fn has_reason(&self, reason: Reason) -> bool {
        self.status().is_some_and(|status| status.reason == reason)
    }

    fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// 404: no such object (or no such resource).
    pub fn is_not_found(&self) -> bool {
        self.has_reason(Reason::NotFound)
    }

    /// 409 of a stale resourceVersion or a failed precondition.
    pub fn is_conflict(&self) -> bool {
        self.has_reason(Reason::Conflict)
    }

    /// 409 of a create with a name that is taken.
    pub fn is_already_exists(&self) -> bool {
        self.has_reason(Reason::AlreadyExists)
    }

    /// 410: the resourceVersion or continue token is too old; list again.
    pub fn is_gone(&self) -> bool {
        self.code() == 410 || self.has_reason(Reason::Expired) || self.has_reason(Reason::Gone)
    }

    /// 422: the object does not validate.
    pub fn is_invalid(&self) -> bool {
        self.has_reason(Reason::Invalid)
    }

    /// 403.
    pub fn is_forbidden(&self) -> bool {
        self.has_reason(Reason::Forbidden)
    }

    /// Whether the namespace does not take new objects because it is being deleted (cause `NamespaceTerminating`).
    pub fn is_namespace_terminating(&self) -> bool {
        self.status().is_some_and(|status| {
            status.details.as_ref().is_some_and(|details| {
                details
                    .causes
                    .iter()
                    .any(|cause| cause.reason == "NamespaceTerminating")
            })
        })
    }

    /// Whether the same call may well succeed a little later: no connection, overload, a server's passing fault.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Connect { .. }
            | ClientError::Transport(_)
            | ClientError::Timeout(_)
            | ClientError::Credentials(_) => true,
            ClientError::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        ClientError::Api(Box::new(status))
    }
}
