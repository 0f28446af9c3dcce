//! May they? SubjectAccessReview in its three forms, and SelfSubjectRulesReview.

use std::collections::BTreeMap;

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::status::Status;
use serde_json::json;

use crate::authz::{Attributes, Decision, Rules};
use crate::request::{RequestContext, UserInfo};

const GROUP: &str = "authorization.k8s.io";

/// `status` of a SubjectAccessReview; of a LocalSubjectAccessReview when `namespace` is given.
pub async fn subject(
    context: &RequestContext,
    object: &Value,
    namespace: Option<&str>,
) -> Result<Value, Status> {
    let spec = &object["spec"];
    let kind = match namespace {
        None => "SubjectAccessReview",
        Some(_) => "LocalSubjectAccessReview",
    };
    let user = user(spec);
    let path = Path::new("spec");
    let mut errors = what_is_asked(spec, &path);
    if user.name.is_empty() && user.groups.is_empty() {
        errors.push(Error::invalid(
            &path.child("user"),
            "",
            "at least one of user or group must be specified",
        ));
    }
    if namespace.is_some() && !spec["nonResourceAttributes"].is_null() {
        errors.push(Error::invalid(
            &path.child("nonResourceAttributes"),
            &spec["nonResourceAttributes"],
            "disallowed on this kind of request",
        ));
    }
    if !errors.is_empty() {
        return Err(Status::invalid(GROUP, kind, "", errors));
    }
    if let Some(namespace) = namespace {
        if spec["resourceAttributes"]["namespace"]
            .as_str()
            .unwrap_or_default()
            != namespace
        {
            return Err(Status::bad_request(format!(
                "spec.resourceAttributes.namespace must match namespace: {namespace}"
            )));
        }
    }
    Ok(decide(context, &user, spec).await)
}

/// `status` of a SelfSubjectAccessReview.
pub async fn self_subject(context: &RequestContext, object: &Value) -> Result<Value, Status> {
    let spec = &object["spec"];
    let errors = what_is_asked(spec, &Path::new("spec"));
    if !errors.is_empty() {
        return Err(Status::invalid(
            GROUP,
            "SelfSubjectAccessReview",
            "",
            errors,
        ));
    }
    Ok(decide(context, &context.user, spec).await)
}

/// `status` of a SelfSubjectRulesReview.
pub fn rules(context: &RequestContext, object: &Value) -> Result<Value, Status> {
    let namespace = object["spec"]["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let Rules {
        rules,
        incomplete,
        error,
    } = context.authorizers.rules(&context.user, namespace);
    let mut resource_rules = Vec::new();
    let mut path_rules = Vec::new();
    for rule in rules {
        if !rule.resources.is_empty() {
            let mut shown = json!({
                "verbs": rule.verbs,
                "apiGroups": rule.api_groups,
                "resources": rule.resources,
            });
            if !rule.resource_names.is_empty() {
                shown["resourceNames"] = json!(rule.resource_names);
            }
            resource_rules.push(shown);
        }
        if !rule.non_resource_urls.is_empty() {
            path_rules
                .push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }
    let mut status = json!({
        "resourceRules": resource_rules,
        "nonResourceRules": path_rules,
        "incomplete": incomplete,
    });
    if !error.is_empty() {
        status["evaluationError"] = error.into();
    }
    Ok(status)
}

fn what_is_asked(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let resource = &spec["resourceAttributes"];
    let other = &spec["nonResourceAttributes"];
    match (resource.is_null(), other.is_null()) {
        (false, false) => errors.push(Error::invalid(
            &path.child("nonResourceAttributes"),
            other,
            "cannot be specified in combination with resourceAttributes",
        )),
        (true, true) => errors.push(Error::invalid(
            &path.child("resourceAttributes"),
            resource,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        )),
        _ => {}
    }
    errors
}

fn user(spec: &Value) -> UserInfo {
    let texts = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item.as_str().map(str::to_owned))
            .collect()
    };
    let extra: BTreeMap<String, Vec<String>> = spec["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.to_lowercase(), texts(values)))
        .collect();
    UserInfo {
        name: spec["user"].as_str().unwrap_or_default().to_owned(),
        uid: spec["uid"].as_str().unwrap_or_default().to_owned(),
        groups: texts(&spec["groups"]),
        extra,
    }
}

async fn decide(context: &RequestContext, user: &UserInfo, spec: &Value) -> Value {
    let resource = &spec["resourceAttributes"];
    let other = &spec["nonResourceAttributes"];
    let is_resource = !resource.is_null();
    let text = |field: &str| resource[field].as_str().unwrap_or_default();
    let verb = if is_resource {
        text("verb")
    } else {
        other["verb"].as_str().unwrap_or_default()
    };
    let attributes = Attributes {
        user,
        verb,
        is_resource,
        group: text("group"),
        version: text("version"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        path: other["path"].as_str().unwrap_or_default(),
        field_selector: resource["fieldSelector"]["rawSelector"]
            .as_str()
            .unwrap_or_default(),
        label_selector: resource["labelSelector"]["rawSelector"]
            .as_str()
            .unwrap_or_default(),
    };
    let verdict = context.authorizers.authorize(&attributes).await;
    let mut status = json!({"allowed": verdict.is_allowed()});
    if verdict.decision == Decision::Deny {
        status["denied"] = true.into();
    }
    if !verdict.reason.is_empty() {
        status["reason"] = verdict.reason.into_owned().into();
    }
    status
}
