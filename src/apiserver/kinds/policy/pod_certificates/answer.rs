//! The answer to a pod's request: one end, and with it a chain of certificates for the key of the request, or none
//! (`ValidatePodCertificateRequestStatusUpdate`).

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::time::{self, Time};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::super::super::check::Node;
use super::super::super::status::conditions;
use super::super::super::tree::{at, int, items, semantically_equal, text};
use super::super::signers::{Block, CERTIFICATE, blocks};
use super::super::signing_request::SigningRequest;
use super::proof;

/// How a request may end.
const ENDS: [&str; 3] = ["Issued", "Denied", "Failed"];
/// Bytes of a chain.
const MAX_CHAIN: usize = 100 * 1024;
/// How far a certificate's beginning may be from now, and how near its ends a new one may be asked for (seconds).
const SKEW: i64 = 300;
const MARGIN: i64 = 600;
/// The shortest life of a certificate (seconds).
const MIN_LIFE: i64 = 3600;

/// What is wrong with an answer given at `now`.
pub fn answer(new: &Value, old: &Value, now: Time) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = Node::root(at(new, &["status"]), "status");
    ends(&status.at("conditions"), &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    let was = at(old, &["status"]);
    let omitted = |why: &str| {
        Error::invalid(&status.path(), "", why)
            .without_value()
            .into()
    };
    if end(old).is_some() {
        return match semantically_equal(status.value, was) {
            true => errors,
            false => omitted("immutable after PodCertificateRequest is issued, denied, or failed"),
        };
    }
    match end(new) {
        Some("Issued") => {
            if let Err(error) = issued(&status, new, old, now, &mut errors) {
                errors.push(error);
            }
            errors
        }
        Some(_) if has_more_than_conditions(status.value) => omitted(
            "non-condition status fields must be empty when denying or failing the PodCertificateRequest",
        ),
        None if !semantically_equal(status.value, was) => omitted(
            "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"",
        ),
        _ => errors,
    }
}

fn end(object: &Value) -> Option<&str> {
    items(object, &["status", "conditions"])
        .iter()
        .filter(|condition| text(condition, &["status"]) == "True")
        .map(|condition| text(condition, &["type"]))
        .find(|kind| ENDS.contains(kind))
}

/// Upstream looks at the ends first, then at the conditions as such.
fn ends(list: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut known = 0;
    for (index, condition) in list.list().iter().enumerate() {
        let (kind, status) = (text(condition, &["type"]), text(condition, &["status"]));
        // Upstream takes the index for a name.
        let path = list.path().child(&format!("[{index}]"));
        if !ENDS.contains(&kind) {
            errors.push(Error::not_supported(&path.child("type"), kind, &ENDS));
            continue;
        }
        known += 1;
        if known > 1 {
            let why = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(Error::invalid(&path.child("type"), kind, why));
        }
        if status != "True" {
            errors.push(Error::not_supported(
                &path.child("status"),
                status,
                &["True"],
            ));
        }
    }
    conditions(list, errors);
}

fn has_more_than_conditions(status: &Value) -> bool {
    let mut rest = status.clone();
    super::super::super::tree::remove(&mut rest, "conditions");
    !semantically_equal(&rest, &Value::Null) && rest.as_object().is_some_and(|map| !map.is_empty())
}

/// An error that ends the examination.
fn issued(
    status: &Node<'_, '_>,
    new: &Value,
    old: &Value,
    now: Time,
    errors: &mut ErrorList,
) -> Result<(), Error> {
    let chain = status.at("certificateChain");
    let wrong = |why: &str| Error::invalid(&chain.path(), chain.text(), why);
    if chain.text().len() > MAX_CHAIN {
        return Err(Error::too_long(&chain.path(), MAX_CHAIN));
    }
    let mut pem = blocks(chain.text());
    let first = pem
        .next()
        .ok_or_else(|| wrong("issued certificate chain must contain at least one certificate"))?;
    if first.label != CERTIFICATE {
        return Err(wrong(
            "issued certificate chain must consist entirely of CERTIFICATE PEM blocks",
        ));
    }
    let leaf = certificate(&first)
        .ok_or_else(|| wrong("leaf certificate does not parse as valid X.509"))?;
    names(&chain, &leaf, errors);
    if !is_for(at(old, &["spec"]), &leaf)? {
        return Err(wrong(
            "leaf certificate was not issued to the requested public key",
        ));
    }
    let before = errors.len();
    let times = ["notBefore", "notAfter", "beginRefreshAt"].map(|field| {
        let why = match field {
            "beginRefreshAt" => {
                "must be present and in the range [notbefore+10min, notafter-10min]"
            }
            _ => "must be present and consistent with the issued certificate",
        };
        status.at(field).present_or(errors, why);
        time::parse(status.at(field).text()).map_or(0, |time| time.unix_timestamp())
    });
    if errors.len() > before || before > 0 {
        return Ok(());
    }
    life(status, &leaf, times, now)?;
    let most = int(new, &["spec", "maxExpirationSeconds"]).unwrap_or(0);
    length(status, &leaf, times, most)?;
    for block in pem {
        if block.label != CERTIFICATE {
            return Err(wrong(
                "issued certificate chain must consist entirely of CERTFICATE PEM blocks",
            ));
        }
        certificate(&block)
            .ok_or_else(|| wrong("intermediate certificate does not parse as valid X.509"))?;
    }
    Ok(())
}

/// Whether a certificate has the key that was asked for.
fn is_for(spec: &Value, leaf: &X509Certificate<'_>) -> Result<bool, Error> {
    let given = &leaf.tbs_certificate.subject_pki;
    let field = |name: &str| STANDARD.decode(text(spec, &[name])).unwrap_or_default();
    let (request, key) = (field("stubPKCS10Request"), field("pkixPublicKey"));
    let (name, same, why) = if request.is_empty() {
        let same = proof::parse(&key).map(|asked| proof::is_same(&asked, given));
        let why = "must be a valid PKIX-serialized public key";
        ("pkixPublicKey", same, why)
    } else {
        let request = SigningRequest::from_der(request).ok();
        let same = request.and_then(|request| request.key(|asked| proof::is_same(asked, given)));
        ("stubPKCS10Request", same, "must be a valid PKCS#10 CSR")
    };
    let path = Path::new("spec").child(name);
    same.ok_or_else(|| Error::invalid(&path, text(spec, &[name]), why))
}

fn certificate(block: &Block) -> Option<X509Certificate<'_>> {
    let (rest, certificate) = X509Certificate::from_der(&block.der).ok()?;
    rest.is_empty().then_some(certificate)
}

/// What a leaf may be called.
fn names(chain: &Node<'_, '_>, leaf: &X509Certificate<'_>, errors: &mut ErrorList) {
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    for name in alternatives
        .iter()
        .flat_map(|names| &names.value.general_names)
    {
        match name {
            GeneralName::DNSName(name) => {
                if name.is_empty() {
                    let why = "leaf certificate should not contain empty DNSName";
                    chain.invalid_as(errors, name, why);
                }
                if name.contains("..") {
                    let why = "leaf certificate's DNSName should not contain '..'";
                    chain.invalid_as(errors, name, why);
                }
                if name.starts_with('.') || name.ends_with('.') {
                    let why = "leaf certificate's DNSName should not start or end with '.'";
                    chain.invalid_as(errors, name, why);
                }
            }
            GeneralName::RFC822Name(address) if !is_address(address) => {
                let why = "leaf certificate should not contain invalid EmailAddress";
                chain.invalid_as(errors, address, why);
            }
            _ => {}
        }
    }
}

fn is_address(text: &str) -> bool {
    text.rsplit_once('@').is_some_and(|(user, host)| {
        !user.is_empty() && !host.is_empty() && !text.contains([' ', '<', '>', ','])
    })
}

/// The times that the answer tells are those of the certificate, which begins about now.
fn life(
    status: &Node<'_, '_>,
    leaf: &X509Certificate<'_>,
    [begin, end, _]: [i64; 3],
    now: Time,
) -> Result<(), Error> {
    let wrong = |field: &'static str, why: &str| {
        let field = status.at(field);
        Err(Error::invalid(&field.path(), field.text(), why))
    };
    let validity = leaf.validity();
    if begin != validity.not_before.timestamp() {
        return wrong(
            "notBefore",
            "must be set to the NotBefore time encoded in the leaf certificate",
        );
    }
    if (begin - now.unix_timestamp()).abs() >= SKEW {
        return wrong(
            "notBefore",
            "must be set to within 5 minutes of kube-apiserver's current time",
        );
    }
    if end != validity.not_after.timestamp() {
        return wrong(
            "notAfter",
            "must be set to the NotAfter time encoded in the leaf certificate",
        );
    }
    Ok(())
}

/// How long the certificate lives, and when the next is asked for.
fn length(
    status: &Node<'_, '_>,
    leaf: &X509Certificate<'_>,
    [begin, end, refresh]: [i64; 3],
    most: i64,
) -> Result<(), Error> {
    let validity = leaf.validity();
    let life = validity.not_after.timestamp() - validity.not_before.timestamp();
    let chain = status.at("certificateChain");
    let nanos = life.saturating_mul(1_000_000_000);
    if life < MIN_LIFE {
        let why = "leaf certificate lifetime must be >= 1 hour";
        return Err(Error::invalid(&chain.path(), nanos, why));
    }
    if life > most {
        let why =
            format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most})");
        return Err(Error::invalid(&chain.path(), nanos, why));
    }
    let field = status.at("beginRefreshAt");
    let why = if refresh < begin + MARGIN {
        "must be at least 10 minutes after status.notBefore"
    } else if refresh > end - MARGIN {
        "must be at least 10 minutes before status.notAfter"
    } else {
        return Ok(());
    };
    Err(Error::invalid(&field.path(), field.text(), why))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use serde_json::json;

    use super::*;
    use crate::kinds::testing::check;

    const BEGIN: &str = "2026-01-01T00:00:00Z";
    const END: &str = "2026-01-01T02:00:00Z";

    fn now() -> Time {
        time::parse("2026-01-01T00:01:00Z").expect("a time")
    }

    fn ended(kind: &str) -> Value {
        json!({"status": {"conditions": [{"type": kind, "status": "True", "reason": "R",
            "lastTransitionTime": BEGIN}]}})
    }

    /// A request, and its answer with a certificate for two hours.
    fn request_and_answer() -> (Value, Value) {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let mut params = CertificateParams::new(vec!["a.example.com".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = params.not_before + std::time::Duration::from_secs(7200);
        let chain = params.self_signed(&key).expect("signs").pem();
        let request = CertificateParams::default().serialize_request(&key);
        let request = request.expect("a request").der().to_vec();
        let spec =
            json!({"stubPKCS10Request": STANDARD.encode(request), "maxExpirationSeconds": 86_400});
        let old = json!({"spec": spec});
        let mut new = ended("Issued");
        new["spec"] = spec;
        for (field, value) in [
            ("certificateChain", chain.as_str()),
            ("notBefore", BEGIN),
            ("notAfter", END),
            ("beginRefreshAt", "2026-01-01T01:00:00Z"),
        ] {
            new["status"][field] = value.into();
        }
        (old, new)
    }

    #[test]
    fn a_certificate_is_for_the_key_and_the_time_that_are_told() {
        let (old, new) = request_and_answer();
        check(answer(&new, &old, now()), &[]);
        let with = |field: &str, value: &str| {
            let mut new = new.clone();
            new["status"][field] = value.into();
            answer(&new, &old, now())
        };
        check(
            with("notAfter", BEGIN),
            &[&format!(
                "status.notAfter: Invalid value: \"{BEGIN}\": must be set to the NotAfter time encoded in the leaf certificate"
            )],
        );
        check(
            with("beginRefreshAt", "2026-01-01T00:09:59Z"),
            &[
                "status.beginRefreshAt: Invalid value: \"2026-01-01T00:09:59Z\": must be at least 10 minutes after status.notBefore",
            ],
        );
        check(
            with("beginRefreshAt", ""),
            &[
                "status.beginRefreshAt: Required value: must be present and in the range [notbefore+10min, notafter-10min]",
            ],
        );
        check(
            with("certificateChain", "x"),
            &[
                "status.certificateChain: Invalid value: \"x\": issued certificate chain must contain at least one certificate",
            ],
        );
        let late = time::parse("2026-01-01T00:06:00Z").expect("a time");
        check(
            answer(&new, &old, late),
            &[&format!(
                "status.notBefore: Invalid value: \"{BEGIN}\": must be set to within 5 minutes of kube-apiserver's current time"
            )],
        );
        let (other, _) = request_and_answer();
        let errors = answer(&new, &other, now());
        assert!(
            errors.iter().any(|error| error.detail
                == "leaf certificate was not issued to the requested public key"),
        );
        let mut short = new.clone();
        short["spec"]["maxExpirationSeconds"] = 3600.into();
        check(
            answer(&short, &old, now()),
            &[
                "status.certificateChain: Invalid value: 7200000000000: leaf certificate lifetime must be <= spec.maxExpirationSeconds (3600)",
            ],
        );
    }

    #[test]
    fn a_request_is_answered_once() {
        check(answer(&ended("Denied"), &json!({}), now()), &[]);
        check(
            answer(&ended("Failed"), &ended("Denied"), now()),
            &[
                "status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed",
            ],
        );
        let mut more = ended("Failed");
        more["status"]["notBefore"] = BEGIN.into();
        check(
            answer(&more, &json!({}), now()),
            &[
                "status: Invalid value: non-condition status fields must be empty when denying or failing the PodCertificateRequest",
            ],
        );
        check(
            answer(&json!({"status": {"notBefore": BEGIN}}), &json!({}), now()),
            &[
                "status: Invalid value: status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"",
            ],
        );
        let mut both = ended("Denied");
        let second = json!({"type": "Failed", "status": "False", "reason": "R", "lastTransitionTime": BEGIN});
        both["status"]["conditions"]
            .as_array_mut()
            .expect("a list")
            .push(second);
        check(
            answer(&both, &json!({}), now()),
            &[
                "status.conditions.[1].type: Invalid value: \"Failed\": There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"",
                "status.conditions.[1].status: Unsupported value: \"False\": supported values: \"True\"",
            ],
        );
        check(
            answer(&ended("Done"), &json!({}), now()),
            &[
                "status.conditions.[0].type: Unsupported value: \"Done\": supported values: \"Issued\", \"Denied\", \"Failed\"",
            ],
        );
    }
}
