//! PATCH: JSON patch, merge patch, strategic merge patch and apply, each a function from the current object to the next.

use apimachinery::codec::{self as wire, Decoded, yaml};
use apimachinery::field::{Error, Path};
use apimachinery::patch::{go_text, json_patch, merge_patch, strategic_merge};
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
        // Upstream reads a strategic patch at another place than the others.
        let prefix = if name == TYPES[2] {
            ""
        } else {
            "error decoding patch: "
        };
        let decoded = wire::json::decode(body)
            .map_err(|error| Status::bad_request(format!("{prefix}{error}")))?;
        let mut findings = decoded.strict;
        let patch = decoded.value;
        let misfit = |into: &str| {
            let is = codec::json_type(&patch);
            Status::bad_request(format!(
                "{prefix}json: cannot unmarshal {is} into Go value of type {into}"
            ))
        };
        if name == TYPES[0] {
            if !patch.is_array() {
                return Err(misfit("[]handlers.jsonPatchOp"));
            }
            findings.extend(unknown_in_operations(&patch));
            for finding in &mut findings {
                finding.insert_str(0, "json patch ");
            }
            return Ok((Self::Json(patch), findings));
        }
        if !patch.is_object() {
            return Err(misfit("map[string]interface {}"));
        }
        Ok(match name == TYPES[1] {
            true => (Self::Merge(patch), findings),
            false => (Self::Strategic(patch), findings),
        })
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

/// Members of JSON patch operations that are none of theirs.
fn unknown_in_operations(patch: &Value) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, operation) in patch.as_array().into_iter().flatten().enumerate() {
        for key in operation
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
        {
            if !["op", "path", "from", "value"].contains(&key.as_str()) {
                findings.push(format!("unknown field \"[{index}].{key}\""));
            }
        }
    }
    findings
}

/// The answer to a patch whose result is no object of its type: with the result, or for a strategic patch with the
/// patch as Go prints a map.
fn unfit(patch: &Patch, patched: &str, why: &str) -> Status {
    let (shown, why) = match patch {
        Patch::Strategic(patch) => (go_text(patch), restored(why)),
        _ => (patched.to_owned(), why.to_owned()),
    };
    let error = Error::invalid(&Path::new("patch"), shown, why);
    Status::invalid("", "", "", error.into())
}

/// A strategic patch is not decoded but restored from maps, which has words of its own for a value of the wrong type.
fn restored(why: &str) -> String {
    let misfit = why
        .strip_prefix("json: cannot unmarshal ")
        .and_then(|rest| rest.split_once(" into Go "))
        .and_then(|(is, rest)| Some((is, rest.rsplit_once(" of type ")?.1)));
    let Some((is, wanted)) = misfit else {
        return why.to_owned();
    };
    let is = match is.split(' ').next().unwrap_or("") {
        "object" => "map",
        "array" => "slice",
        "number" => "int64",
        other => other,
    };
    if wanted.starts_with("[]") {
        format!("cannot restore slice from {is}")
    } else if wanted.starts_with("map[") {
        format!("cannot restore map from {is}")
    } else if wanted.contains('.') {
        format!("cannot restore struct from: {is}")
    } else if (is, wanted) == ("int64", "string") {
        // Go converts a number to text, as a character; that is caught later than what it cannot convert at all.
        format!("cannot convert {is} to {wanted}")
    } else {
        format!("unrecognized type: {wanted}")
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
        return patch_scale(call, &options, &patch, &findings).await;
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
                let mut applied = applied.clone();
                check_kind(call, &applied)?;
                call.name_applied(&mut applied, current.exists)?;
                let next = managed::apply(&write, &options, &applied, &current)?;
                codec::report_applied(&findings, validation, &call.context.warnings)?;
                return Ok(next);
            }
            patch => patch.apply(current.object.into_owned(), call.resource.schema)?,
        };
        let expected = Expected::of(call.resource);
        let object = fit(call, expected, &patch, object, &findings, validation)?;
        call.check_name(&object)?;
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

/// Fits what a patch made to its type.
fn fit(
    call: &Call<'_>,
    expected: Expected<'_>,
    patch: &Patch,
    object: Value,
    findings: &[String],
    validation: FieldValidation,
) -> Result<Value, Status> {
    let decoded = Decoded {
        value: object.clone(),
        strict: findings.to_vec(),
    };
    let warnings = &call.context.warnings;
    codec::fit_patched(expected, decoded, validation, warnings, |why| {
        unfit(patch, &object.to_string(), why)
    })
}

/// An applied configuration of a subresource says what it is.
fn check_type(applied: &Value, version: &str, kind: &str) -> Result<(), Status> {
    let said = (meta::api_version(applied), meta::kind(applied));
    if said.0 != version {
        return Err(Status::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, expected: {version}",
            said.0
        )));
    }
    if said.1 != kind {
        return Err(Status::bad_request(format!(
            "Incorrect kind specified in apply patch. Specified patch kind: {}, expected: {kind}",
            said.1
        )));
    }
    Ok(())
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
) -> Result<Response<Body>, Status> {
    let expected = Expected {
        group: "autoscaling",
        version: "v1",
        kind: "Scale",
        message: api::message_for("autoscaling", "v1", "Scale")
            .ok_or_else(|| Status::internal("no schema of Scale"))?,
    };
    if let Patch::Apply(applied) = patch {
        check_type(applied, "autoscaling/v1", "Scale")?;
        let mut applied = applied.clone();
        call.name_applied(&mut applied, true)?;
        return scale::apply_patch(call, options, &applied).await;
    }
    scale::patch(call, options, |current| {
        let patched = patch.apply(current, expected.message)?;
        let validation = options.field_validation;
        let mut scale = fit(call, expected, patch, patched, findings, validation)?;
        if meta::resource_version(&scale).is_empty() {
            meta::set_resource_version(&mut scale, "");
        }
        call.check_name(&scale)?;
        Ok(scale)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operations_of_a_json_patch_have_four_members() {
        let patch = br#"[{"op":"add","path":"/a","value":1},{"op":"test","path":"/a","x":2}]"#;
        let (_, findings) = Patch::parse(TYPES[0], &Bytes::from_static(patch)).unwrap();
        assert_eq!(findings, ["json patch unknown field \"[1].x\""]);
    }

    #[test]
    fn a_strategic_patch_is_shown_as_a_map_of_go() {
        let patch = Patch::Strategic(json!({"spec": {"replicas": "x", "a": [1, null]}}));
        let why = "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32";
        let status = unfit(&patch, "{}", why);
        assert_eq!(
            status.message,
            " \"\" is invalid: patch: Invalid value: \"map[spec:map[a:[1 <nil>] replicas:x]]\": unrecognized type: int32"
        );
        assert_eq!(status.code, 422);
    }

    #[test]
    fn misfits_are_told_as_the_converter_does() {
        for (why, told) in [
            (
                "json: cannot unmarshal object into Go struct field S.a of type []v1.Container",
                "cannot restore slice from map",
            ),
            (
                "json: cannot unmarshal array into Go struct field S.a of type map[string]string",
                "cannot restore map from slice",
            ),
            (
                "json: cannot unmarshal string into Go struct field S.a of type v1.PodSpec",
                "cannot restore struct from: string",
            ),
            (
                "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
                "cannot convert int64 to string",
            ),
            ("quantities must match", "quantities must match"),
        ] {
            assert_eq!(restored(why), told);
        }
    }
}
