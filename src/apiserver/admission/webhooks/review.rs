//! AdmissionReview: the question put to a webhook, and what its answer means.

use api::Resource;
use apimachinery::patch::json_patch;
use apimachinery::{Status, Value, meta, schema};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::super::{Attributes, Operation};
use super::matching::{Asked, operation_name};
use crate::kinds::tree::{at, flag, items, text};

/// What a webhook said.
pub struct Answer {
    pub allowed: bool,
    /// A JSON patch, or null.
    pub patch: Value,
    pub warnings: Vec<String>,
    /// A `Status`, or null.
    result: Value,
}

fn group_kind(attributes: &Attributes<'_>, resource: &Resource) -> Value {
    match attributes.posted() {
        Some(sub) => json!({"group": sub.group, "version": sub.version, "kind": sub.kind}),
        None => {
            json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
        }
    }
}

fn group_resource(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "resource": resource.plural})
}

/// An object of the stored version in another.
pub fn in_version(
    attributes: &Attributes<'_>,
    object: &Value,
    resource: &'static Resource,
) -> Value {
    let mut object = object.clone();
    if let Some(posted) = attributes.posted() {
        meta::set_type(&mut object, &posted.api_version(), posted.kind);
        return object;
    }
    if let Some(kind) = attributes
        .registry
        .kind(attributes.resource.group, attributes.resource.plural)
    {
        kind.convert(&mut object, attributes.resource, resource);
    }
    meta::set_type(&mut object, &resource.api_version(), resource.kind);
    object
}

/// The review to send.
pub fn question(
    attributes: &Attributes<'_>,
    known_versions: &[Value],
    asked: &Asked,
    object: Option<&Value>,
) -> Value {
    let knows_v1 = known_versions
        .iter()
        .find_map(|version| version.as_str().filter(|v| matches!(*v, "v1" | "v1beta1")));
    let user = &attributes.request.user;
    let mut info = json!({"username": user.name});
    for (field, value) in [
        ("uid", json!(user.uid)),
        ("groups", json!(user.groups)),
        ("extra", json!(user.extra)),
    ] {
        let empty = matches!(&value, Value::String(text) if text.is_empty())
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(|map| map.is_empty());
        if !empty {
            info[field] = value;
        }
    }
    let options = match attributes.operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        _ => "DeleteOptions",
    };
    let versioned = |object: Option<&Value>| {
        object.map_or(Value::Null, |object| {
            in_version(attributes, object, asked.resource)
        })
    };
    let mut request = json!({
        "uid": uuid::Uuid::new_v4().to_string(),
        "kind": group_kind(attributes, asked.resource),
        "resource": group_resource(asked.resource),
        "requestKind": group_kind(attributes, asked.requested),
        "requestResource": group_resource(asked.requested),
        "operation": operation_name(attributes.operation),
        "userInfo": info,
        "object": versioned(object),
        "oldObject": versioned(attributes.old),
        "dryRun": attributes.dry_run,
        "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
    });
    for (field, value) in [
        ("name", attributes.name),
        ("namespace", attributes.namespace),
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
    ] {
        if !value.is_empty() {
            request[field] = value.into();
        }
    }
    json!({
        "kind": "AdmissionReview",
        "apiVersion": format!("admission.k8s.io/{}", knows_v1.unwrap_or("v1")),
        "request": request,
    })
}

/// Reads the answer to a question (`VerifyAdmissionResponse`).
pub fn answer(question: &Value, body: &[u8]) -> Result<Answer, String> {
    let review: Value = serde_json::from_slice(body)
        .map_err(|error| format!("failed to call webhook: could not get REST client: {error}"))?;
    let version = text(question, &["apiVersion"]);
    let is_v1 = version.ends_with("/v1");
    if is_v1
        && (text(&review, &["kind"]), text(&review, &["apiVersion"]))
            != ("AdmissionReview", version)
    {
        return Err(format!(
            "received invalid webhook response: expected webhook response of {version}, Kind=AdmissionReview, got {}, Kind={}",
            text(&review, &["apiVersion"]),
            text(&review, &["kind"])
        ));
    }
    let response = at(&review, &["response"]);
    if response.is_null() {
        return Err("webhook response was absent".to_owned());
    }
    let uid = text(question, &["request", "uid"]);
    if is_v1 && text(response, &["uid"]) != uid {
        return Err(format!(
            "received invalid webhook response: expected response.uid={uid:?}, got {:?}",
            text(response, &["uid"])
        ));
    }
    let patch = match text(response, &["patch"]) {
        "" => Value::Null,
        encoded => {
            let kind = text(response, &["patchType"]);
            if is_v1 && kind != "JSONPatch" {
                return Err(format!(
                    "received invalid webhook response: webhook returned invalid response.patchType of {kind:?}"
                ));
            }
            let bytes = STANDARD
                .decode(encoded)
                .map_err(|error| format!("received invalid webhook response: {error}"))?;
            serde_json::from_slice(&bytes)
                .map_err(|error| format!("received invalid webhook response: {error}"))?
        }
    };
    Ok(Answer {
        allowed: flag(response, &["allowed"]),
        patch,
        warnings: items(response, &["warnings"])
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        result: at(response, &["status"]).clone(),
    })
}

/// The refusal of a webhook (`webhookerrors.ToStatusErr`).
pub fn denied(hook: &str, answer: Answer) -> Status {
    let by = format!("admission webhook {hook:?} denied the request");
    let mut status: Status =
        serde_json::from_value(answer.result.clone()).unwrap_or_else(|_| Status::bad_request(""));
    if answer.result.is_null() {
        status = Status::failure(400, apimachinery::status::Reason::Unknown, "");
    }
    if status.code < 400 {
        status.code = 400;
    }
    let reason = text(&answer.result, &["reason"]);
    status.message = if !status.message.is_empty() {
        format!("{by}: {}", status.message)
    } else if !reason.is_empty() {
        format!("{by}: {reason}")
    } else {
        format!("{by} without explanation")
    };
    status
}

/// The object a webhook's patch makes, in the stored version, complete and defaulted.
pub fn patched(
    attributes: &Attributes<'_>,
    asked: &Asked,
    object: &Value,
    patch: &Value,
) -> Result<Value, String> {
    let mut changed = in_version(attributes, object, asked.resource);
    json_patch(&mut changed, patch).map_err(|error| error.to_string())?;
    settled(attributes, asked, changed)
}

/// A changed object, given in the version asked about, in the stored version, complete and defaulted.
pub fn settled(
    attributes: &Attributes<'_>,
    asked: &Asked,
    mut changed: Value,
) -> Result<Value, String> {
    if let Some(posted) = attributes.posted() {
        schema::conform(&mut changed, posted.schema)?;
        return Ok(changed);
    }
    let message = asked.resource.schema;
    if crate::crd::is_custom(message) {
        schema::prune(&mut changed, message);
    } else {
        schema::conform(&mut changed, message)?;
    }
    if let Some(kind) = attributes
        .registry
        .kind(attributes.resource.group, attributes.resource.plural)
    {
        kind.convert(&mut changed, asked.resource, attributes.resource);
        kind.strategy.default(&mut changed);
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reviewed(response: Value) -> Result<Answer, String> {
        let question = json!({"apiVersion": "admission.k8s.io/v1", "request": {"uid": "1"}});
        let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        answer(&question, review.to_string().as_bytes())
    }

    #[test]
    fn an_answer_is_to_the_question() {
        let patch = STANDARD.encode(r#"[{"op":"add","path":"/a","value":1}]"#);
        let good = reviewed(
            json!({"uid": "1", "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": ["w"]}),
        );
        let good = good.map_err(|why| assert_eq!(why, "")).expect("an answer");
        assert_eq!(good.patch[0]["path"], "/a");
        assert_eq!(good.warnings, ["w"]);
        let why = reviewed(json!({"uid": "2", "allowed": true}))
            .err()
            .expect("a complaint");
        assert_eq!(
            why,
            "received invalid webhook response: expected response.uid=\"1\", got \"2\""
        );
    }

    #[test]
    fn refusals_are_told_with_the_hooks_words_and_code() {
        let refuse = |status: Value| {
            let said = reviewed(json!({"uid": "1", "allowed": false, "status": status}));
            let status = denied("h.x.io", said.ok().expect("an answer"));
            (status.code, status.message)
        };
        assert_eq!(
            refuse(json!({"message": "no", "code": 403})),
            (
                403,
                "admission webhook \"h.x.io\" denied the request: no".to_owned()
            )
        );
        assert_eq!(
            refuse(Value::Null),
            (
                400,
                "admission webhook \"h.x.io\" denied the request without explanation".to_owned()
            )
        );
    }
}
