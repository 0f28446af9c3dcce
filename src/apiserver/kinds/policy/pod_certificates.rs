//! Requests of kubelets for certificates of pods (KEP-4317): asked once, answered once.

use apimachinery::Value;
use apimachinery::field::ErrorList;
use apimachinery::name;

use super::super::check::Node;
use super::super::status::conditions;
use super::super::tree::{at, default_value, items, text};
use super::signers::{certificates, signer_name};
use crate::registry::strategy::{Change, Strategy};

/// Seconds a certificate may live: at least, by default, and at most from the project's own signers and from others.
const MIN_LIFE: i64 = 3600;
const LIFE: i64 = 86_400;
const MAX_OWN_LIFE: i64 = 86_400;
const MAX_LIFE: i64 = 91 * 86_400;
/// Longest uid.
const MAX_UID: usize = 128;
const ENDS: [&str; 3] = ["Denied", "Failed", "Issued"];

pub struct PodCertificateRequests;

impl Strategy for PodCertificateRequests {
    fn id(&self) -> (&'static str, &'static str) {
        ("certificates.k8s.io", "podcertificaterequests")
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        if object["spec"].is_object() {
            default_value(&mut object["spec"], "maxExpirationSeconds", LIFE);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        request(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return status(new, old);
        }
        let mut errors = ErrorList::new();
        let spec = Node::root(at(new, &["spec"]), "spec");
        spec.unchanged(&mut errors, at(old, &["spec"]));
        errors
    }
}

fn request(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let signer = spec.at("signerName");
    signer_name(&signer, errors);
    for (called, uid) in [
        ("podName", "podUID"),
        ("serviceAccountName", "serviceAccountUID"),
        ("nodeName", "nodeUID"),
    ] {
        spec.at(called).named(errors, name::dns_1123_subdomain);
        let uid = spec.at(uid);
        if uid.present_or(errors, "must not be empty") && uid.text().len() > MAX_UID {
            errors.push(apimachinery::field::Error::too_long(&uid.path(), MAX_UID));
        }
    }
    let own = signer
        .text()
        .split('/')
        .next()
        .is_some_and(|domain| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io"));
    let most = if own { MAX_OWN_LIFE } else { MAX_LIFE };
    let life = spec.at("maxExpirationSeconds");
    life.between(
        errors,
        MIN_LIFE,
        most,
        &format!("must be in the range [{MIN_LIFE}, {most}]"),
    );
    std::mem::take(errors)
}

fn end(object: &Value) -> Option<&str> {
    items(object, &["status", "conditions"])
        .iter()
        .map(|condition| text(condition, &["type"]))
        .find(|kind| ENDS.contains(kind))
}

/// The answer: one end, and a chain of certificates with it or none.
fn status(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let status = Node::root(at(new, &["status"]), "status");
    if end(old).is_some() {
        status.unchanged(errors, at(old, &["status"]));
        return std::mem::take(errors);
    }
    let list = status.at("conditions");
    conditions(&list, errors);
    let mut ends = 0;
    for condition in list.items() {
        condition.at("type").known(errors, &ENDS);
        condition.at("status").known(errors, &["True"]);
        ends += usize::from(ENDS.contains(&condition.at("type").text()));
    }
    if ends > 1 {
        list.invalid(
            errors,
            "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"",
        );
    }
    let chain = status.at("certificateChain");
    match end(new) {
        Some("Issued") => {
            if let Err(why) = certificates(chain.text().as_bytes()) {
                chain.invalid_as(errors, "<value omitted>", why);
            }
            for field in ["notBefore", "beginRefreshAt", "notAfter"] {
                status
                    .at(field)
                    .present_or(errors, "must be present for issued requests");
            }
        }
        _ => {
            for field in [
                "certificateChain",
                "notBefore",
                "beginRefreshAt",
                "notAfter",
            ] {
                if !status.at(field).is_empty() {
                    status
                        .at(field)
                        .forbidden(errors, "may only be set for issued requests");
                }
            }
        }
    }
    std::mem::take(errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn a_request_says_for_whom_and_how_long() {
        let mut object = json!({"spec": {"signerName": "a.b/c", "podName": "p", "podUID": "1",
            "serviceAccountName": "s", "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3",
            "maxExpirationSeconds": 86_400}});
        check(request(&object), &[]);
        object["spec"]["signerName"] = "kubernetes.io/x".into();
        object["spec"]["maxExpirationSeconds"] = 86_401.into();
        object["spec"]["podUID"] = "".into();
        check(
            request(&object),
            &[
                "spec.podUID: Required value: must not be empty",
                "spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]",
            ],
        );
    }

    #[test]
    fn a_request_is_answered_once() {
        let answer = |kind: &str| {
            json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "R",
                "lastTransitionTime": "2020-01-01T00:00:00Z"}]}})
        };
        check(status(&answer("Denied"), &json!({})), &[]);
        assert_eq!(status(&answer("Failed"), &answer("Denied")).len(), 1);
        assert!(!status(&answer("Issued"), &json!({})).is_empty());
    }
}
