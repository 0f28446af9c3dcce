//! PATCH: JSON patch, merge patch, strategic merge patch and apply, each a function from the current object to the next.

use apimachinery::codec::{self as wire, Decoded, yaml};
use apimachinery::patch::{json_patch, merge_patch, strategic_merge};
use apimachinery::schema::Message;
use apimachinery::{Status, Value, meta};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};

use super::codec::{self, Expected};
use super::dispatch::Call;
use super::managed;
use super::options::{FieldValidation, WriteOptions};
use super::scale;
use super::write::{Current, Next, Preconditions};
use crate::body::Body;

const TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// A parsed patch.
enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

impl Patch {
    fn parse(content_type: &str, body: &Bytes) -> Result<(Self, Vec<String>), Status> {
        let name = content_type.split(';').next().unwrap_or("").trim();
        if name == TYPES[3] {
            let decoded = yaml::decode(body)
                .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
            return Ok((Self::Apply(decoded.value), decoded.strict));
        }
        if !TYPES.contains(&name) {
            return Err(Status::unsupported_media_type(&TYPES));
        }
        let decoded = wire::json::decode(body)
            .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
        let patch = match name {
            "application/json-patch+json" => Self::Json(decoded.value),
            "application/merge-patch+json" => Self::Merge(decoded.value),
            _ => Self::Strategic(decoded.value),
        };
        Ok((patch, decoded.strict))
    }

    /// The patched object.
    fn apply(&self, current: Value, message: &Message) -> Result<Value, Status> {
        let mut object = current;
        match self {
            Self::Json(patch) => json_patch(&mut object, patch)?,
            Self::Merge(patch) => merge_patch(&mut object, patch.clone()),
            Self::Strategic(patch) => {
                object = strategic_merge(object, patch.clone(), message)?;
            }
            // Apply is not a function of the object alone: `managed` does it.
            Self::Apply(_) => {}
        }
        Ok(object)
    }
}

/// PATCH of an object or a subresource.
pub async fn handle(call: &Call<'_>, body: &Bytes) -> Result<Response<Body>, Status> {
    let content_type = call
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let is_apply = content_type.trim_start().starts_with(TYPES[3]);
    let options = WriteOptions::parse_patch(&call.context.info.query, is_apply)?;
    let (patch, findings) = Patch::parse(content_type, body)?;
    if matches!(patch, Patch::Strategic(_)) && crate::crd::is_custom(call.resource.schema) {
        return Err(Status::unsupported_media_type(&[
            TYPES[0], TYPES[1], TYPES[3],
        ]));
    }
    if call.subresource() == "scale" {
        return patch_scale(call, &options, &patch, &findings, body).await;
    }
    let format = call.format()?;
    let manager = call.manager(&options);
    let write = call.write(&options, &manager);
    let creates = is_apply && call.subresource().is_empty();
    if creates {
        authorize_create(call).await?;
    }
    let mut reported = false;
    let next = |current: Current<'_>| -> Result<Next, Status> {
        // A retry would only repeat the warnings.
        let validation = if reported {
            FieldValidation::Ignore
        } else {
            options.field_validation
        };
        reported = true;
        let object = match &patch {
            Patch::Apply(applied) => {
                let expected = Expected::of(call.resource);
                let warnings = &call.context.warnings;
                codec::report(expected, &findings, validation, warnings, body)?;
                let mut applied = applied.clone();
                check_kind(call, &applied)?;
                call.check_name(&mut applied)?;
                return managed::apply(&write, &options, &applied, &current);
            }
            patch => patch.apply(current.object.into_owned(), call.resource.schema)?,
        };
        let decoded = Decoded {
            value: object,
            strict: findings.clone(),
        };
        let mut object = fit(call, decoded, body, validation)?;
        call.check_name(&mut object)?;
        Ok(Next {
            object,
            managed: false,
        })
    };
    let written = write
        .update(call.name(), &Preconditions::default(), creates, next)
        .await?;
    let code = if written.created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    format.object(code, &written.entry, written.revision)
}

fn fit(
    call: &Call<'_>,
    decoded: Decoded,
    body: &Bytes,
    validation: FieldValidation,
) -> Result<Value, Status> {
    codec::fit(
        Expected::of(call.resource),
        decoded,
        body,
        validation,
        &call.context.warnings,
    )
}

/// An applied configuration says what it is.
fn check_kind(call: &Call<'_>, applied: &Value) -> Result<(), Status> {
    let kind = meta::kind(applied);
    if kind == call.resource.kind {
        return Ok(());
    }
    if kind.is_empty() {
        return Err(Status::bad_request(
            "error decoding YAML: Object 'Kind' is missing",
        ));
    }
    Err(Status::bad_request(format!(
        "Incorrect kind specified in apply patch. Specified patch kind: {kind}, expected: {}",
        call.resource.kind
    )))
}

/// Applying may create, and that is a right of its own.
async fn authorize_create(call: &Call<'_>) -> Result<(), Status> {
    let key = call.kind.key(call.namespace(), call.name());
    let cache = call.kind.cache(call.registry);
    if cache.get(&key).is_some() {
        return Ok(());
    }
    let mut attributes = crate::authz::Attributes::of(&call.context.user, &call.context.info);
    attributes.verb = "create";
    let verdict = call.context.authorizers.authorize(&attributes).await;
    if verdict.is_allowed() {
        return Ok(());
    }
    let (found, _) = cache.read(&key).await.map_err(super::errors::read)?;
    if found.is_some() {
        return Ok(());
    }
    Err(Status::forbidden(
        call.resource.group,
        call.resource.plural,
        call.name(),
        &verdict.reason,
    ))
}

async fn patch_scale(
    call: &Call<'_>,
    options: &WriteOptions,
    patch: &Patch,
    findings: &[String],
    body: &Bytes,
) -> Result<Response<Body>, Status> {
    let message = api::message_for("autoscaling", "v1", "Scale")
        .ok_or_else(|| Status::internal("no schema of Scale"))?;
    let expected = Expected {
        group: "autoscaling",
        version: "v1",
        kind: "Scale",
        message,
    };
    scale::patch(call, options, |current| {
        let patched = match patch {
            Patch::Apply(applied) => {
                let mut merged = current;
                merge_patch(&mut merged, applied.clone());
                merged
            }
            patch => patch.apply(current, message)?,
        };
        let decoded = Decoded {
            value: patched,
            strict: findings.to_vec(),
        };
        let mut scale = codec::fit(
            expected,
            decoded,
            body,
            options.field_validation,
            &call.context.warnings,
        )?;
        if meta::resource_version(&scale).is_empty() {
            meta::set_resource_version(&mut scale, "");
        }
        call.check_name(&mut scale)?;
        Ok(scale)
    })
    .await
}
