//! The rules of `metadata` that hold for every kind: what is filled in, what is refused, what never changes.
//!
//! Upstream: `apimachinery/pkg/api/validation/objectmeta.go`, `registry/rest/create.go`, `update.go`.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, meta, name};

use super::tree::{at, items, text};

/// Most bytes of all annotations, keys and values together.
const ANNOTATION_BYTES: usize = 256 * 1024;

/// Finalizers without a domain that may be used.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Checks a name, or (`prefix`) the beginning of one, and answers with what is wrong with it.
pub type NameRule = fn(name: &str, prefix: bool) -> Vec<String>;

/// A DNS subdomain: the rule of most kinds (`NameIsDNSSubdomain`).
pub fn dns_subdomain(text: &str, prefix: bool) -> Vec<String> {
    name::dns_1123_subdomain(&mask_dash(text, prefix))
}

/// A DNS label (`NameIsDNSLabel`).
pub fn dns_label(text: &str, prefix: bool) -> Vec<String> {
    name::dns_1123_label(&mask_dash(text, prefix))
}

/// A DNS label that starts with a letter (`NameIsDNS1035Label`), the rule of services once.
pub fn dns_1035_label(text: &str, prefix: bool) -> Vec<String> {
    name::dns_1035_label(&mask_dash(text, prefix))
}

/// Anything that fits into a path (`path.ValidatePathSegmentName`), the rule of RBAC kinds.
pub fn path_segment(text: &str, prefix: bool) -> Vec<String> {
    if prefix {
        // `IsValidPathSegmentPrefix` only looks for forbidden characters.
        return name::path_segment(&format!("{text}x"));
    }
    name::path_segment(text)
}

/// A generateName ends with a dash more often than not, and a suffix follows.
fn mask_dash(text: &str, prefix: bool) -> String {
    if prefix && text.len() > 1 && text.ends_with('-') {
        return format!("{}a", &text[..text.len() - 1]);
    }
    text.to_owned()
}

/// `ValidateObjectMeta`.
pub fn validate(object: &Value, namespaced: bool, rule: NameRule) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata");
    let generate = meta::generate_name(object);
    if !generate.is_empty() {
        errors.push_invalid(&path.child("generateName"), generate, rule(generate, true));
    }
    let own = meta::name(object);
    if own.is_empty() {
        errors.push(Error::required(
            &path.child("name"),
            "name or generateName is required",
        ));
    } else {
        errors.push_invalid(&path.child("name"), own, rule(own, false));
    }
    let namespace = meta::namespace(object);
    if namespaced {
        if namespace.is_empty() {
            errors.push(Error::required(&path.child("namespace"), ""));
        } else {
            errors.push_invalid(
                &path.child("namespace"),
                namespace,
                name::dns_1123_label(namespace),
            );
        }
    } else if !namespace.is_empty() {
        errors.push(Error::forbidden(
            &path.child("namespace"),
            "not allowed on this type",
        ));
    }
    if meta::generation(object) < 0 {
        errors.push(Error::invalid(
            &path.child("generation"),
            meta::generation(object),
            "must be greater than or equal to 0",
        ));
    }
    errors.extend(validate_labels(
        at(object, &["metadata", "labels"]),
        &path.child("labels"),
    ));
    errors.extend(validate_annotations(
        at(object, &["metadata", "annotations"]),
        &path.child("annotations"),
    ));
    errors.extend(validate_owners(object, &path.child("ownerReferences")));
    errors.extend(validate_finalizers(object, &path.child("finalizers")));
    errors
}

/// `ValidateLabels`.
pub fn validate_labels(labels: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        errors.push_invalid(path, key, name::qualified_name(key));
        let value = value.as_str().unwrap_or("");
        errors.push_invalid(path, value, name::label_value(value));
    }
    errors
}

/// `ValidateAnnotations`.
pub fn validate_annotations(annotations: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut size = 0;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        errors.push_invalid(path, key, name::qualified_name(&key.to_lowercase()));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATION_BYTES {
        errors.push(Error::too_long(path, ANNOTATION_BYTES));
    }
    errors
}

fn validate_owners(object: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut controller: Option<&str> = None;
    for owner in items(object, &["metadata", "ownerReferences"]) {
        let (group, version) = meta::group_version(text(owner, &["apiVersion"]));
        if version.is_empty() {
            let field = path.child("apiVersion");
            errors.push(Error::invalid(
                &field,
                text(owner, &["apiVersion"]),
                "version must not be empty",
            ));
        }
        for field in ["kind", "name", "uid"] {
            let value = text(owner, &[field]);
            if value.is_empty() {
                errors.push(Error::invalid(
                    &path.child(field),
                    value,
                    "must not be empty",
                ));
            }
        }
        if group.is_empty() && version == "v1" && text(owner, &["kind"]) == "Event" {
            errors.push(Error::invalid(
                path,
                owner.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let name = text(owner, &["name"]);
            if let Some(other) = controller {
                errors.push(Error::invalid(
                    path,
                    at(object, &["metadata", "ownerReferences"]).clone(),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {other} and {name}"
                    ),
                ));
            } else {
                controller = Some(name);
            }
        }
    }
    errors
}

fn validate_finalizers(object: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (mut orphan, mut foreground) = (false, false);
    for finalizer in meta::finalizers(object) {
        errors.push_invalid(path, finalizer, name::qualified_name(finalizer));
        if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
            errors.push(Error::invalid(
                path,
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
        orphan |= finalizer == "orphan";
        foreground |= finalizer == "foregroundDeletion";
    }
    if orphan && foreground {
        errors.push(Error::invalid(
            path,
            at(object, &["metadata", "finalizers"]).clone(),
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
    errors
}

/// `ValidateObjectMetaAccessorUpdate`: what no update may change.
pub fn validate_update(new: &Value, old: &Value, namespaced: bool, rule: NameRule) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("metadata");
    if meta::is_deleting(old) {
        let added: Vec<&str> = meta::finalizers(new)
            .filter(|finalizer| !meta::finalizers(old).any(|have| have == *finalizer))
            .collect();
        if !added.is_empty() {
            let list: Vec<String> = added
                .iter()
                .map(|finalizer| apimachinery::field::quote(finalizer))
                .collect();
            errors.push(Error::forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    list.join(", ")
                ),
            ));
        }
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let (was, is) = (at(old, &["metadata", field]), at(new, &["metadata", field]));
        if was != is {
            errors.push(Error::invalid(
                &path.child(field),
                is.clone(),
                "field is immutable",
            ));
        }
    }
    // What was stored before a rule was tightened stays acceptable.
    let before = validate(old, namespaced, rule);
    errors.extend(
        validate(new, namespaced, rule)
            .into_iter()
            .filter(|error| !before.iter().any(|old| old == error)),
    );
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(metadata: Value, expect: &[&str]) {
        let errors = validate(&json!({ "metadata": metadata }), true, dns_subdomain);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn names_and_namespaces_are_required_and_checked() {
        check(json!({"name": "a", "namespace": "b"}), &[]);
        check(
            json!({"namespace": "b"}),
            &["metadata.name: Required value: name or generateName is required"],
        );
        check(
            json!({"name": "a"}),
            &["metadata.namespace: Required value"],
        );
        let errors = validate(&json!({"metadata": {"name": "A_b"}}), false, dns_subdomain);
        assert!(
            errors.aggregate().starts_with(
                "metadata.name: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain"
            )
        );
    }

    #[test]
    fn finalizers_and_owners_are_checked() {
        check(
            json!({"name": "a", "namespace": "b", "finalizers": ["x"]}),
            &[
                "metadata.finalizers: Invalid value: \"x\": name is neither a standard finalizer name nor is it fully qualified",
            ],
        );
        check(
            json!({"name": "a", "namespace": "b", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}),
            &["metadata.ownerReferences.uid: Invalid value: \"\": must not be empty"],
        );
    }

    #[test]
    fn system_fields_never_change() {
        let old = json!({"metadata": {"name": "a", "namespace": "b", "uid": "1"}});
        let new = json!({"metadata": {"name": "c", "namespace": "b", "uid": "1"}});
        let errors = validate_update(&new, &old, true, dns_subdomain);
        assert_eq!(
            errors.aggregate(),
            "metadata.name: Invalid value: \"c\": field is immutable"
        );
    }

    #[test]
    fn a_dying_object_takes_no_new_finalizers() {
        let old = json!({"metadata": {"name": "a", "namespace": "b", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let mut new = old.clone();
        meta::set_finalizers(&mut new, ["x/y"]);
        assert!(validate_update(&new, &old, true, dns_subdomain).aggregate().contains(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{\"x/y\"}"
        ));
    }
}
