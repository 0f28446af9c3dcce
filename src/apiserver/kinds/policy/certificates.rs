//! Certificate signing requests: who asked is written down by the server; approving and signing are their own endpoints.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, time};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::super::check::Node;
use super::super::object_meta::{NameRule, dns_subdomain, path_segment};
use super::super::tree::{at, items, items_mut, object_mut, restore, set, text};
use super::signers::{certificates, signer_name, trust_anchors};
use super::signing_request::SigningRequest;
use crate::registry::strategy::{Change, Strategy, keep_all_but};

/// What a key may be certified for.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
/// Shortest life of a certificate that may be asked for (seconds).
const MIN_LIFE: i64 = 600;

pub struct CertificateSigningRequests;

impl Strategy for CertificateSigningRequests {
    fn id(&self) -> (&'static str, &'static str) {
        ("certificates.k8s.io", "certificatesigningrequests")
    }

    fn name_rule(&self) -> NameRule {
        path_segment
    }

    fn prepare_create(&self, change: &Change<'_>, object: &mut Value) {
        let user = &change.request.user;
        let spec = object_mut(object, &["spec"]);
        for field in ["uid", "groups", "extra"] {
            spec.remove(field);
        }
        spec.insert("username".to_owned(), user.name.as_str().into());
        if !user.uid.is_empty() {
            spec.insert("uid".to_owned(), user.uid.as_str().into());
        }
        if !user.groups.is_empty() {
            spec.insert("groups".to_owned(), json!(user.groups));
        }
        if !user.extra.is_empty() {
            spec.insert("extra".to_owned(), json!(user.extra));
        }
        set(object, "status", json!({}));
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        match change.subresource {
            "approval" => {
                let conditions = at(new, &["status", "conditions"]).clone();
                keep_all_but(new, old, &[]);
                if !conditions.is_null() {
                    object_mut(new, &["status"]).insert("conditions".to_owned(), conditions);
                }
                stamp(new);
            }
            "status" => {
                keep_all_but(new, old, &["status"]);
                stamp(new);
            }
            _ => {
                restore(new, old, "spec");
                restore(new, old, "status");
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        let request = text(object, &["spec", "request"]);
        let checked = SigningRequest::parse(request)
            .and_then(|request| request.check_signature().map_err(str::to_owned));
        if let Err(why) = checked {
            errors.push(Error::invalid(&path.child("request"), request, why));
        }
        let spec = Node::root(at(object, &["spec"]), "spec");
        let usages = spec.at("usages");
        if usages.list().is_empty() {
            usages.required(&mut errors, "");
        }
        for (index, usage) in usages.items().enumerate() {
            usage.known(&mut errors, &USAGES);
            if usages.list()[..index].contains(usage.value) {
                usage.duplicate(&mut errors);
            }
        }
        let life = spec.at("expirationSeconds");
        if life.int().is_some_and(|seconds| seconds < MIN_LIFE) {
            life.invalid(
                &mut errors,
                "may not specify a duration less than 600 seconds (10 minutes)",
            );
        }
        signer_name(&spec.at("signerName"), &mut errors);
        errors
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("status").child("conditions");
        let status = Node::root(at(new, &["status"]), "status");
        conditions(&status.at("conditions"), &mut errors);
        let certificate = text(new, &["status", "certificate"]);
        if !certificate.is_empty() && certificate != text(old, &["status", "certificate"]) {
            let pem = STANDARD.decode(certificate).unwrap_or_default();
            if let Err(why) = certificates(&pem) {
                let told = status.at("certificate");
                told.invalid_as(&mut errors, "<certificate data>", why);
            }
        }
        let has = |object: &Value, kind: &str| {
            items(object, &["status", "conditions"])
                .iter()
                .any(|condition| text(condition, &["type"]) == kind)
        };
        for kind in ["Approved", "Denied", "Failed"] {
            if has(old, kind) && !has(new, kind) {
                errors.push(Error::forbidden(
                    &path,
                    format!("updates may not remove a condition of type {kind:?}"),
                ));
            }
        }
        errors
    }
}

/// Conditions are of a kind, come once, and those that decide are true; a request is not approved and denied.
fn conditions(conditions: &Node<'_, '_>, errors: &mut ErrorList) {
    const EXCLUSIVE: &str = "Approved and Denied conditions are mutually exclusive";
    let mut seen: Vec<&str> = Vec::new();
    for condition in conditions.items() {
        let (kind, status) = (condition.at("type"), condition.at("status"));
        kind.present(errors);
        let decides = matches!(kind.text(), "Approved" | "Denied" | "Failed");
        let valid = ["False", "True", "Unknown"];
        status.one_of(errors, if decides { &valid[1..2] } else { &valid[..] });
        let other = match kind.text() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if seen.contains(&other) {
            kind.invalid(errors, EXCLUSIVE);
        }
        if seen.contains(&kind.text()) {
            kind.duplicate(errors);
        }
        seen.push(kind.text());
    }
}

pub struct ClusterTrustBundles;

impl Strategy for ClusterTrustBundles {
    fn id(&self) -> (&'static str, &'static str) {
        ("certificates.k8s.io", "clustertrustbundles")
    }

    /// What a name may be depends on the signer: see `bundle_name`.
    fn name_rule(&self) -> NameRule {
        |_, _| Vec::new()
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        bundle(object, true)
    }

    /// Anchors that stay are not looked at again.
    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let anchors = ["spec", "trustBundle"];
        let mut errors = bundle(new, at(new, &anchors) != at(old, &anchors));
        let spec = Node::root(at(new, &["spec"]), "spec");
        let was = at(old, &["spec", "signerName"]);
        let signer = spec.at("signerName");
        if signer.text() != was.as_str().unwrap_or("") {
            signer.invalid_as(&mut errors, signer.text(), "field is immutable");
        }
        errors
    }
}

/// `ValidateClusterTrustBundle`.
fn bundle(object: &Value, with_anchors: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let signer = text(object, &["spec", "signerName"]);
    let metadata = Node::root(at(object, &["metadata"]), "metadata");
    for (field, is_prefix) in [("generateName", true), ("name", false)] {
        let name = metadata.at(field);
        if !name.text().is_empty() {
            for why in bundle_name(signer, name.text(), is_prefix) {
                name.invalid(&mut errors, why);
            }
        }
    }
    let spec = Node::root(at(object, &["spec"]), "spec");
    if !signer.is_empty() {
        signer_name(&spec.at("signerName"), &mut errors);
    }
    if with_anchors {
        trust_anchors(&spec.at("trustBundle"), &mut errors);
    }
    errors
}

/// `ValidateClusterTrustBundleName`: a signer's bundle is called `example.com:signer:name`.
fn bundle_name(signer: &str, name: &str, is_prefix: bool) -> Vec<String> {
    if signer.is_empty() {
        if name.contains(':') {
            let why = "ClusterTrustBundle without signer name must not have \":\" in its name";
            return vec![why.to_owned()];
        }
        return dns_subdomain(name, is_prefix);
    }
    let start = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&start) {
        Some(rest) => dns_subdomain(rest, is_prefix),
        None => vec![format!(
            "ClusterTrustBundle for signerName {signer} must be named with prefix {start}"
        )],
    }
}

/// Conditions get the time they came at.
fn stamp(object: &mut Value) {
    let now = time::now_text();
    for condition in items_mut(object, &["status", "conditions"]) {
        super::super::tree::default_text(condition, "status", "True");
        for field in ["lastUpdateTime", "lastTransitionTime"] {
            super::super::tree::default_value(condition, field, now.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;

    #[test]
    fn a_bundle_is_named_after_its_signer() {
        let named = |signer: &str, name: &str| {
            bundle(
                &json!({"metadata": {"name": name}, "spec": {"signerName": signer}}),
                false,
            )
        };
        check(named("", "a"), &[]);
        check(named("example.com/s", "example.com:s:a"), &[]);
        check(
            named("", "a:b"),
            &[
                "metadata.name: Invalid value: \"a:b\": ClusterTrustBundle without signer name must not have \":\" in its name",
            ],
        );
        check(
            named("example.com/s", "A"),
            &[
                "metadata.name: Invalid value: \"A\": ClusterTrustBundle for signerName example.com/s must be named with prefix example.com:s:",
            ],
        );
        assert_eq!(named("example.com/s", "example.com:s:a:b").len(), 1);
    }
}
