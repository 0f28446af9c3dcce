//! Names of signers, and what certificates are written in.

use apimachinery::field::{Error, ErrorList};
use apimachinery::name;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::super::check::Node;

/// Longest domain of a signer, and longest name: a domain, a slash, and a path that is a subdomain and a label.
const MAX_DOMAIN: usize = 253;
const MAX_NAME: usize = MAX_DOMAIN + 1 + 253 + 1 + 63;
/// Most bytes of a bundle (`MaxTrustBundleSize`).
const MAX_BUNDLE: usize = 1024 * 1024;
/// What a block that holds a certificate is labelled.
pub const CERTIFICATE: &str = "CERTIFICATE";

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

/// One block of a PEM text.
pub struct Block {
    pub label: String,
    pub has_headers: bool,
    pub der: Vec<u8>,
}

/// The blocks of a PEM text, as Go's `pem.Decode` comes upon them: what is between blocks is passed over, and so are
/// blocks that do not end or hold no base64.
pub fn blocks(text: &str) -> impl Iterator<Item = Block> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let start = block_start(rest)?;
            let (label, body) = rest[start..].split_once('\n')?;
            rest = body;
            let Some(label) = label.trim_end().strip_suffix("-----") else {
                continue;
            };
            let end = format!("-----END {label}-----");
            let Some((body, after)) = body.split_once(&end) else {
                continue;
            };
            let is_header = |line: &&str| line.contains(':');
            let has_headers = body.lines().take_while(is_header).count() > 0;
            let lines = body.lines().skip_while(is_header);
            let data: String = lines.flat_map(str::split_whitespace).collect();
            if let Ok(der) = STANDARD.decode(data) {
                rest = after;
                return Some(Block {
                    label: label.to_owned(),
                    has_headers,
                    der,
                });
            }
        }
    })
}

/// Where the label of the next block begins: its line begins the text or a line of it.
fn block_start(text: &str) -> Option<usize> {
    const BEGIN: &str = "-----BEGIN ";
    if text.starts_with(BEGIN) {
        return Some(BEGIN.len());
    }
    let line = text.find("\n-----BEGIN ")?;
    Some(line + 1 + BEGIN.len())
}

/// `ValidateClusterTrustBundle`'s anchors: each a certificate of an authority, each once.
pub fn trust_anchors(bundle: &Node<'_, '_>, errors: &mut ErrorList) {
    const OMITTED: &str = "<value omitted>";
    if bundle.text().len() > MAX_BUNDLE {
        errors.push(Error::too_long(&bundle.path(), MAX_BUNDLE));
        return;
    }
    let before = errors.len();
    let mut seen: Vec<(Vec<u8>, Vec<String>)> = Vec::new();
    for (index, block) in blocks(bundle.text()).enumerate() {
        if let Err(why) = anchor(&block) {
            bundle.invalid_as(errors, OMITTED, format!("entry {index} {why}"));
            continue;
        }
        match seen.iter_mut().find(|(der, _)| *der == block.der) {
            Some((_, indices)) => indices.push(index.to_string()),
            None => seen.push((block.der, vec![index.to_string()])),
        }
    }
    if errors.len() > before {
        return;
    }
    if seen.is_empty() {
        bundle.invalid_as(
            errors,
            OMITTED,
            "at least one trust anchor must be provided",
        );
    }
    for (_, indices) in seen.iter().filter(|(_, indices)| indices.len() > 1) {
        let why = format!("duplicate trust anchor (indices [{}])", indices.join(" "));
        bundle.invalid_as(errors, OMITTED, why);
    }
}

fn anchor(block: &Block) -> Result<(), String> {
    if block.label != CERTIFICATE {
        return Err(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Err("has PEM block headers".to_owned());
    }
    match X509Certificate::from_der(&block.der) {
        Ok((rest, certificate)) if rest.is_empty() => match certificate.is_ca() {
            true => Ok(()),
            false => Err("does not have the CA bit set".to_owned()),
        },
        _ => Err("does not parse as X.509".to_owned()),
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
    }

    /// A certificate of an authority, or of anything else.
    fn pem(is_authority: bool) -> String {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        if is_authority {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        params.self_signed(&key).expect("signs").pem()
    }

    #[track_caller]
    fn bundle(text: &str, whys: &[&str]) {
        let mut errors = ErrorList::new();
        trust_anchors(&Node::root(&json!(text), "b"), &mut errors);
        let expect: Vec<String> = whys
            .iter()
            .map(|why| format!("b: Invalid value: \"<value omitted>\": {why}"))
            .collect();
        check(
            errors,
            &expect.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }

    #[test]
    fn anchors_are_certificates_of_authorities_each_once() {
        let (one, other) = (pem(true), pem(true));
        bundle("", &["at least one trust anchor must be provided"]);
        bundle(&format!("words\n{one}\nmore words\n{other}"), &[]);
        bundle(
            &format!("{one}{other}{one}"),
            &["duplicate trust anchor (indices [0 2])"],
        );
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let headed = one.replacen("-----\n", "-----\nA: b\n\n", 1);
        bundle(
            &format!("{one}{key}{junk}{headed}{}", pem(false)),
            &[
                "entry 1 has bad block type: PRIVATE KEY",
                "entry 2 does not parse as X.509",
                "entry 3 has PEM block headers",
                "entry 4 does not have the CA bit set",
            ],
        );
        let mut errors = ErrorList::new();
        let long = json!("x".repeat(MAX_BUNDLE + 1));
        trust_anchors(&Node::root(&long, "b"), &mut errors);
        check(errors, &["b: Too long: may not be more than 1048576 bytes"]);
    }
}
