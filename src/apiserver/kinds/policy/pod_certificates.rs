//! Requests of kubelets for certificates of pods (KEP-4317): asked once, answered once.

mod answer;
mod proof;

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, name, time};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::check::Node;
use super::super::object_meta::validate_annotations;
use super::super::tree::{at, default_value};
use super::signers::signer_name;
use crate::registry::strategy::{Change, Strategy};
use proof::Flaw;

/// Seconds a certificate may live: at least, by default, and at most from the project's own signers and from others.
const MIN_LIFE: i64 = 3600;
const LIFE: i64 = 86_400;
const MAX_OWN_LIFE: i64 = 86_400;
const MAX_LIFE: i64 = 91 * 86_400;
/// Longest uid, and most bytes of a key, of a proof and of a request.
const MAX_UID: usize = 128;
const MAX_KEY: usize = 10 * 1024;

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
            return answer::answer(new, old, time::now());
        }
        let mut errors = ErrorList::new();
        let spec = Node::root(at(new, &["spec"]), "spec");
        spec.unchanged(&mut errors, at(old, &["spec"]));
        errors
    }
}

/// `ValidatePodCertificateRequestCreate`.
fn request(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    let signer = spec.at("signerName");
    signer_name(&signer, &mut errors);
    annotations(&spec.at("unverifiedUserAnnotations"), &mut errors);
    for (called, uid) in [
        ("podName", "podUID"),
        ("serviceAccountName", "serviceAccountUID"),
        ("nodeName", "nodeUID"),
    ] {
        spec.at(called)
            .syntax(&mut errors, name::dns_1123_subdomain);
        let uid = spec.at(uid);
        if uid.text().is_empty() {
            uid.invalid_as(&mut errors, "", "must not be empty");
        }
        if uid.text().len() > MAX_UID {
            errors.push(Error::too_long(&uid.path(), MAX_UID));
        }
    }
    let life = spec.at("maxExpirationSeconds");
    if !life.is_set() {
        life.required(&mut errors, "must be set");
        return errors;
    }
    let most = if is_own(signer.text()) {
        MAX_OWN_LIFE
    } else {
        MAX_LIFE
    };
    let why = format!("must be in the range [{MIN_LIFE}, {most}]");
    life.between(&mut errors, MIN_LIFE, most, &why);
    key(&spec, &mut errors);
    errors
}

/// `IsKubernetesSignerName`.
fn is_own(signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or("");
    domain == "kubernetes.io" || domain.ends_with(".kubernetes.io")
}

/// Annotations like an object's, each with a domain.
fn annotations(node: &Node<'_, '_>, errors: &mut ErrorList) {
    if !node.is_set() {
        return;
    }
    for (key, _) in node.entries() {
        if !key.contains('/') {
            let why = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            errors.push(Error::invalid(&node.path(), key, why));
        }
    }
    errors.extend(validate_annotations(node.value, &node.path()));
}

/// The key, and that who asks has it: a signed request, or in v1beta1 a key and a signature.
fn key(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let fields = ["stubPKCS10Request", "pkixPublicKey", "proofOfPossession"];
    let [request, key, proof] =
        fields.map(|field| STANDARD.decode(spec.at(field).text()).unwrap_or_default());
    for (field, bytes) in fields.iter().zip([&request, &key, &proof]) {
        if bytes.len() > MAX_KEY {
            errors.push(Error::too_long(&spec.at(field).path(), MAX_KEY));
            return;
        }
    }
    let has_pair = !key.is_empty() && !proof.is_empty();
    let has_part = !key.is_empty() || !proof.is_empty();
    let (at, signed, outcome) = match (request.is_empty(), has_pair, has_part) {
        (false, _, false) => (fields[0], fields[0], proof::check_request(request)),
        (true, true, _) => {
            let uid = spec.at("podUID");
            (fields[1], fields[2], proof::check(&key, uid.text(), &proof))
        }
        _ => {
            let why = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
            errors.push(Error::invalid(&spec.path(), "", why).without_value());
            return;
        }
    };
    let (node, proof) = (spec.at(at), spec.at(signed));
    match outcome {
        Ok(()) => {}
        Err(Flaw::Key(why)) => node.invalid_as(errors, node.text(), why),
        Err(Flaw::Kind(kind, why)) => node.invalid_as(errors, kind, why),
        Err(Flaw::Proof) => {
            let why = "could not verify proof-of-possession signature";
            errors.push(Error::invalid(&proof.path(), "", why).without_value());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use rcgen::{CertificateParams, KeyPair, PublicKeyData, SigningKey};
    use serde_json::json;

    #[test]
    fn a_request_says_for_whom_and_how_long_and_proves_its_key() {
        let pair = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let stub = CertificateParams::default().serialize_request(&pair);
        let stub = STANDARD.encode(stub.expect("a request").der());
        let mut object = json!({"spec": {"signerName": "a.b/c", "podName": "p", "podUID": "1",
            "serviceAccountName": "s", "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3",
            "unverifiedUserAnnotations": {"a.b/c": "d"},
            "maxExpirationSeconds": 86_400, "stubPKCS10Request": stub}});
        check(request(&object), &[]);
        object["spec"]["pkixPublicKey"] = STANDARD.encode(pair.subject_public_key_info()).into();
        object["spec"]["proofOfPossession"] =
            STANDARD.encode(pair.sign(b"1").expect("signs")).into();
        check(
            request(&object),
            &[
                "spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
            ],
        );
        object["spec"]["stubPKCS10Request"] = "".into();
        check(request(&object), &[]);
        object["spec"]["signerName"] = "kubernetes.io/x".into();
        object["spec"]["maxExpirationSeconds"] = 86_401.into();
        object["spec"]["podUID"] = "".into();
        object["spec"]["unverifiedUserAnnotations"] = json!({"c": "d"});
        check(
            request(&object),
            &[
                "spec.unverifiedUserAnnotations: Invalid value: \"c\": must be a domain-prefixed key (such as \"acme.io/foo\")",
                "spec.podUID: Invalid value: \"\": must not be empty",
                "spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]",
                "spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature",
            ],
        );
        object["spec"]["maxExpirationSeconds"] = Value::Null;
        let errors = request(&object);
        let last = errors.iter().last().map(ToString::to_string);
        assert_eq!(
            last.as_deref(),
            Some("spec.maxExpirationSeconds: Required value: must be set")
        );
    }
}
