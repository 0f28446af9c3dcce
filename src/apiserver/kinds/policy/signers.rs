//! Names of signers, and what certificates are written in.

use apimachinery::field::{Error, ErrorList};
use apimachinery::name;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::super::check::Node;

/// Longest domain of a signer, and longest name: a domain, a slash, and a path that is a subdomain and a label.
const MAX_DOMAIN: usize = 253;
const MAX_NAME: usize = MAX_DOMAIN + 1 + 253 + 1 + 63;

/// `ValidateSignerName`: a domain and a path below it, `example.com/signer`.
pub fn signer_name(node: &Node<'_, '_>, errors: &mut ErrorList) {
    if !node.present(errors) {
        return;
    }
    let called = node.text();
    let mut segments = called.split('/');
    let (Some(domain), Some(path), None) = (segments.next(), segments.next(), segments.next())
    else {
        node.invalid(
            errors,
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        );
        return;
    };
    if domain.len() > MAX_DOMAIN {
        errors.push(Error::too_long(&node.path(), MAX_DOMAIN));
    }
    labels(node, domain, name::dns_1123_label, errors);
    if !domain.contains('.') {
        node.invalid_as(
            errors,
            domain,
            "should be a domain with at least two segments separated by dots",
        );
    }
    labels(node, path, name::dns_1123_subdomain, errors);
    if called.len() > MAX_NAME {
        errors.push(Error::too_long(&node.path(), MAX_NAME));
    }
}

/// The first label of a segment that is none.
fn labels(
    node: &Node<'_, '_>,
    segment: &str,
    rule: impl Fn(&str) -> Vec<String>,
    errors: &mut ErrorList,
) {
    let wrong = segment
        .split('.')
        .map(|label| (label, rule(label)))
        .find(|(_, wrong)| !wrong.is_empty());
    for (label, why) in wrong
        .into_iter()
        .flat_map(|(label, wrong)| wrong.into_iter().map(move |why| (label, why)))
    {
        node.invalid_as(
            errors,
            segment,
            format!("validating label {label:?}: {why}"),
        );
    }
}

/// A signed certificate and those above it: PEM blocks of certificates and nothing else.
///
/// # Errors
/// What is wrong, in upstream's words (`validateCertificate`).
pub fn certificates(pem: &[u8]) -> Result<(), String> {
    let mut blocks = 0;
    for block in Pem::iter_from_buffer(pem) {
        let block = block.map_err(|_| "malformed PEM".to_owned())?;
        blocks += 1;
        if block.label != "CERTIFICATE" {
            return Err(format!(
                "only CERTIFICATE PEM blocks are allowed, found {:?}",
                block.label
            ));
        }
        X509Certificate::from_der(&block.contents)
            .map_err(|_| "x509: malformed certificate".to_owned())?;
    }
    match blocks {
        0 => Err("must contain at least one CERTIFICATE PEM block".to_owned()),
        _ => Ok(()),
    }
}

/// `ValidateClusterTrustBundle`'s anchors: each a certificate, each once.
pub fn trust_anchors(bundle: &Node<'_, '_>, errors: &mut ErrorList) {
    const OMITTED: &str = "<value omitted>";
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for (index, block) in Pem::iter_from_buffer(bundle.text().as_bytes()).enumerate() {
        let why = match block {
            Err(_) => Some(format!("entry {index} does not parse as PEM")),
            Ok(block) if block.label != "CERTIFICATE" => {
                Some(format!("entry {index} has bad block type: {}", block.label))
            }
            Ok(block) if X509Certificate::from_der(&block.contents).is_err() => {
                Some(format!("entry {index} does not parse as X.509"))
            }
            Ok(block) => match seen.iter().position(|other| *other == block.contents) {
                Some(first) => Some(format!(
                    "duplicate trust anchor (indices [{first} {index}])"
                )),
                None => {
                    seen.push(block.contents);
                    None
                }
            },
        };
        if let Some(why) = why {
            bundle.invalid_as(errors, OMITTED, why);
            return;
        }
    }
    if seen.is_empty() {
        bundle.invalid_as(
            errors,
            OMITTED,
            "at least one trust anchor must be provided",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[track_caller]
    fn named(called: &str, texts: &[&str]) {
        let mut errors = ErrorList::new();
        signer_name(&Node::root(&json!(called), "s"), &mut errors);
        let found: Vec<String> = errors
            .iter()
            .map(|error| error.to_string().chars().take(70).collect())
            .collect();
        assert_eq!(found, texts);
    }

    #[test]
    fn a_signer_is_a_path_below_a_domain() {
        named("example.com/signer", &[]);
        named("", &["s: Required value"]);
        named(
            "example.com",
            &["s: Invalid value: \"example.com\": must be a fully qualified domain and "],
        );
        named(
            "com/signer",
            &["s: Invalid value: \"com\": should be a domain with at least two segments"],
        );
        named(
            "example.com/A",
            &["s: Invalid value: \"A\": validating label \"A\": a lowercase RFC 1123 subd"],
        );
    }

    #[test]
    fn only_certificates_are_certificates() {
        assert_eq!(
            certificates(b"x"),
            Err("must contain at least one CERTIFICATE PEM block".to_owned())
        );
        let key = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(
            certificates(key),
            Err("only CERTIFICATE PEM blocks are allowed, found \"PRIVATE KEY\"".to_owned())
        );
        let bundle = json!("");
        let mut errors = ErrorList::new();
        trust_anchors(&Node::root(&bundle, "b"), &mut errors);
        check(
            errors,
            &["b: Invalid value: \"<value omitted>\": at least one trust anchor must be provided"],
        );
    }
}
