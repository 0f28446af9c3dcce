//! Owns: `Status`, the one error (and success) answer of the API, with upstream's reasons, codes and message texts
//! (k8s.io/apimachinery/pkg/api/errors). This is the only place where an error text for a client is put together.
//!
//! **Invariant:** a `Status` carries only what its constructor was given for the client; internal errors reach it
//! through `internal`, whose caller decides on the words.

mod reason;

pub use reason::Reason;

use crate::field::{ErrorList, quote};
use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt;

/// One of several causes of a failure (metav1.StatusCause).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// Machine-readable word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Field of the request that caused it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// What the answer is about (metav1.StatusDetails).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Details {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Group of the resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind, or plural resource name for most errors.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Causes, for validation errors and conflicts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// When to try again.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// The answer of the API when there is no object to answer with (metav1.Status).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Text for people.
    pub message: String,
    /// What it is about.
    pub details: Option<Details>,
    /// Continue token offered by an expired list.
    pub continue_token: Option<String>,
}

/// `pods`, or `deployments.apps`.
fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

fn about(group: &str, kind: &str, name: &str) -> Details {
    Details {
        group: group.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        ..Details::default()
    }
}

/// The text of the conflict a stale `resourceVersion` causes (registry.OptimisticLockErrorMsg).
pub const OPTIMISTIC_LOCK_MESSAGE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

impl Status {
    /// A failure with only a message.
    pub fn failure(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
        }
    }

    /// A success; `details` say which object was deleted, for instance.
    pub fn success(details: Option<Details>) -> Self {
        Self {
            code: 200,
            details,
            ..Self::default()
        }
    }

    /// The same with details.
    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(details);
        self
    }

    /// Whether this is a success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// 404: `pods "x" not found`.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(group, plural), quote(name));
        Self::failure(404, Reason::NotFound, message).with_details(about(group, plural, name))
    }

    /// 404 for a path no handler serves.
    pub fn path_not_found() -> Self {
        Self::failure(
            404,
            Reason::NotFound,
            "the server could not find the requested resource",
        )
        .with_details(Details::default())
    }

    /// 409: `pods "x" already exists`.
    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let message = format!(
            "{} {} already exists",
            qualified(group, plural),
            quote(name)
        );
        Self::failure(409, Reason::AlreadyExists, message).with_details(about(group, plural, name))
    }

    /// 409 when `generateName` found no free name; the client should try again.
    pub fn generate_name_conflict(group: &str, plural: &str, name: &str) -> Self {
        let message = format!(
            "{} {} already exists, the server was not able to generate a unique name for the object",
            qualified(group, plural),
            quote(name)
        );
        let details = Details {
            retry_after_seconds: 1,
            ..about(group, plural, name)
        };
        Self::failure(409, Reason::AlreadyExists, message).with_details(details)
    }

    /// 409: `Operation cannot be fulfilled on pods "x": why`.
    pub fn conflict(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: {why}",
            qualified(group, plural),
            quote(name)
        );
        Self::failure(409, Reason::Conflict, message).with_details(about(group, plural, name))
    }

    /// 409 for a stale `resourceVersion`.
    pub fn modified(group: &str, plural: &str, name: &str) -> Self {
        Self::conflict(group, plural, name, OPTIMISTIC_LOCK_MESSAGE)
    }

    /// 409 for fields another manager owns (apierrors.NewApplyConflict).
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        Self::failure(409, Reason::Conflict, message).with_details(Details {
            causes,
            ..Details::default()
        })
    }

    /// 422: `Pod "x" is invalid: …` with one cause per error.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: ErrorList) -> Self {
        let mut message = format!("{} {} is invalid", qualified(group, kind), quote(name));
        if !errors.is_empty() {
            message.push_str(": ");
            message.push_str(&errors.aggregate());
        }
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.kind.reason().to_owned(),
                message: error.body(),
                field: error.field.to_string(),
            })
            .collect();
        Self::failure(422, Reason::Invalid, message).with_details(Details {
            causes,
            ..about(group, kind, name)
        })
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, Reason::BadRequest, message)
    }

    /// 401 as the API server answers it.
    pub fn unauthorized() -> Self {
        Self::failure(401, Reason::Unauthorized, "Unauthorized")
    }

    /// 403: `pods "x" is forbidden: why`; without a name `pods is forbidden: why`.
    pub fn forbidden(group: &str, plural: &str, name: &str, why: &str) -> Self {
        let message = match (plural, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{} is forbidden: {why}", qualified(group, plural)),
            _ => format!(
                "{} {} is forbidden: {why}",
                qualified(group, plural),
                quote(name)
            ),
        };
        Self::failure(403, Reason::Forbidden, message).with_details(about(group, plural, name))
    }

    /// 410 with reason Gone.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(410, Reason::Gone, message)
    }

    /// 410 with reason Expired: a revision or continue token that is too old.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, Reason::Expired, message)
    }

    /// 410 for a watch or list at a revision no longer held: `too old resource version: 1 (5)`.
    pub fn too_old(requested: i64, oldest: i64) -> Self {
        Self::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    /// 504 for a resourceVersion that is in the future (storage.NewTooLargeResourceVersionError).
    pub fn too_large_resource_version(
        requested: i64,
        current: i64,
        retry_after_seconds: i32,
    ) -> Self {
        let details = Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }],
            retry_after_seconds,
            ..Details::default()
        };
        let message =
            format!("Timeout: Too large resource version: {requested}, current: {current}");
        Self::failure(504, Reason::Timeout, message).with_details(details)
    }

    /// 405: `create is not supported on resources of kind "pods"`.
    pub fn method_not_supported(group: &str, plural: &str, action: &str) -> Self {
        let message = format!(
            "{action} is not supported on resources of kind {}",
            quote(&qualified(group, plural))
        );
        Self::failure(405, Reason::MethodNotAllowed, message).with_details(about(group, plural, ""))
    }

    /// 405 for a path that exists but not with this method.
    pub fn method_not_allowed() -> Self {
        Self::failure(
            405,
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
        .with_details(Details::default())
    }

    /// 406 listing what can be had.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!(
            "only the following media types are accepted: {}",
            accepted.join(", ")
        );
        Self::failure(406, Reason::NotAcceptable, message)
    }

    /// 415 listing what can be sent.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, Reason::UnsupportedMediaType, message)
    }

    /// 413.
    pub fn request_entity_too_large(why: &str) -> Self {
        Self::failure(
            413,
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: {why}"),
        )
    }

    /// 504: `Timeout: why`.
    pub fn timeout(why: &str, retry_after_seconds: i32) -> Self {
        Self::failure(504, Reason::Timeout, format!("Timeout: {why}")).with_details(Details {
            retry_after_seconds,
            ..Details::default()
        })
    }

    /// 500: the store did not answer in time; the client should try again.
    pub fn server_timeout(
        group: &str,
        plural: &str,
        operation: &str,
        retry_after_seconds: i32,
    ) -> Self {
        let message = format!(
            "The {operation} operation against {} could not be completed at this time, please try again.",
            qualified(group, plural)
        );
        Self::failure(500, Reason::ServerTimeout, message).with_details(Details {
            retry_after_seconds,
            ..about(group, plural, "")
        })
    }

    /// 429.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        Self::failure(429, Reason::TooManyRequests, message).with_details(Details {
            retry_after_seconds,
            ..Details::default()
        })
    }

    /// 503.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, Reason::ServiceUnavailable, message)
    }

    /// 500: `Internal error occurred: why`. The words go to the client: say nothing secret.
    pub fn internal(why: impl fmt::Display) -> Self {
        let why = why.to_string();
        let causes = vec![Cause {
            message: why.clone(),
            ..Cause::default()
        }];
        Self::failure(
            500,
            Reason::InternalError,
            format!("Internal error occurred: {why}"),
        )
        .with_details(Details {
            causes,
            ..Details::default()
        })
    }

    /// The object as JSON, its members in the order people know them in: compact with a newline, or indented.
    pub fn to_json(&self, pretty: bool) -> Vec<u8> {
        const ORDER: [&str; 8] = [
            "kind",
            "apiVersion",
            "metadata",
            "status",
            "message",
            "reason",
            "details",
            "code",
        ];
        struct Ordered<'a>(Value, Option<&'a Details>);
        impl Serialize for Ordered<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(None)?;
                for key in ORDER {
                    match (key, self.1, self.0.get(key)) {
                        ("details", Some(details), _) => map.serialize_entry(key, details)?,
                        (_, _, Some(value)) => map.serialize_entry(key, value)?,
                        _ => {}
                    }
                }
                map.end()
            }
        }
        let ordered = Ordered(self.to_value(), self.details.as_ref());
        // Writing a tree of JSON into memory has no way to fail.
        if pretty {
            return serde_json::to_vec_pretty(&ordered).unwrap_or_default();
        }
        let mut bytes = serde_json::to_vec(&ordered).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// The object as upstream writes it.
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": if self.is_success() { "Success" } else { "Failure" },
        });
        if let Some(token) = &self.continue_token {
            value["metadata"]["continue"] = token.as_str().into();
        }
        if !self.message.is_empty() {
            value["message"] = self.message.as_str().into();
        }
        if self.reason != Reason::Unknown {
            value["reason"] = self.reason.as_str().into();
        }
        if let Some(details) = &self.details {
            value["details"] = serde_json::to_value(details).unwrap_or(Value::Null);
        }
        // A success has no code unless it is a failure turned around; upstream leaves 0 out.
        if !self.is_success() {
            value["code"] = self.code.into();
        }
        value
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ListMeta {
            r#continue: Option<String>,
        }
        #[derive(Deserialize)]
        struct Wire {
            kind: Option<String>,
            #[serde(default)]
            metadata: ListMeta,
            #[serde(default)]
            status: String,
            #[serde(default)]
            message: String,
            #[serde(default)]
            reason: Reason,
            details: Option<Details>,
            code: Option<u16>,
        }
        let wire = Wire::deserialize(deserializer)?;
        if wire.kind.as_deref().is_some_and(|kind| kind != "Status") {
            return Err(D::Error::custom("not a Status"));
        }
        let otherwise = if wire.status == "Success" { 200 } else { 500 };
        Ok(Self {
            code: wire.code.filter(|code| *code != 0).unwrap_or(otherwise),
            reason: wire.reason,
            message: wire.message,
            details: wire.details,
            continue_token: wire.metadata.r#continue,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Error, Path};

    #[track_caller]
    fn check(status: Status, code: u16, message: &str) {
        assert_eq!((status.code, status.message.as_str()), (code, message));
        let round: Status = serde_json::from_value(status.to_value()).expect("own output");
        assert_eq!(round, status);
    }

    #[test]
    fn members_come_in_the_order_people_know() {
        let text = String::from_utf8(Status::not_found("", "pods", "a").to_json(false));
        assert_eq!(
            text.expect("text"),
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"pods \\\"a\\\" not found\",\"reason\":\"NotFound\",\"details\":{\"name\":\"a\",\"kind\":\"pods\"},\"code\":404}\n"
        );
    }

    #[test]
    fn messages_are_upstreams() {
        check(
            Status::not_found("", "pods", "x"),
            404,
            "pods \"x\" not found",
        );
        check(
            Status::not_found("apps", "deployments", "x"),
            404,
            "deployments.apps \"x\" not found",
        );
        check(
            Status::already_exists("", "pods", "x"),
            409,
            "pods \"x\" already exists",
        );
        check(
            Status::modified("", "pods", "x"),
            409,
            "Operation cannot be fulfilled on pods \"x\": the object has been modified; please apply your changes to \
             the latest version and try again",
        );
        check(
            Status::forbidden("", "pods", "", "no"),
            403,
            "pods is forbidden: no",
        );
        check(
            Status::forbidden("apps", "deployments", "x", "no"),
            403,
            "deployments.apps \"x\" is forbidden: no",
        );
        check(
            Status::method_not_supported("", "pods", "put"),
            405,
            "put is not supported on resources of kind \"pods\"",
        );
        check(
            Status::internal("boom"),
            500,
            "Internal error occurred: boom",
        );
        check(
            Status::too_old(1, 5),
            410,
            "too old resource version: 1 (5)",
        );
    }

    #[test]
    fn validation_errors_become_causes() {
        let errors = ErrorList::from(Error::required(&Path::new("spec.containers"), ""));
        let status = Status::invalid("", "Pod", "x", errors);
        assert_eq!(
            status.message,
            "Pod \"x\" is invalid: spec.containers: Required value"
        );
        assert_eq!(
            status.to_value(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "Pod \"x\" is invalid: spec.containers: Required value", "reason": "Invalid",
                "details": {"name": "x", "kind": "Pod", "causes": [
                    {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers"}]},
                "code": 422})
        );
    }

    #[test]
    fn a_success_has_no_code_and_an_unknown_reason_survives() {
        assert_eq!(
            Status::success(None).to_value(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
        );
        let status: Status =
            serde_json::from_value(json!({"reason": "Strange", "code": 418})).expect("a status");
        assert_eq!(status.reason, Reason::Other("Strange".to_owned()));
    }
}
