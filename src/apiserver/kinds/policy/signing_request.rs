//! A PKCS#10 request as it is sent in a CertificateSigningRequest: whom it is for, and whether its own key signed it.

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::authn::certificate;

const LABEL: &str = "CERTIFICATE REQUEST";
const P256: &str = "1.2.840.10045.3.1.7";
const P384: &str = "1.3.132.0.34";
const P521: &str = "1.3.132.0.35";

/// Signature algorithm, the curve of the key where it has one, and who verifies it. Those of `crypto/x509` but RSA-PSS,
/// whose parameters are looked at apart.
static ALGORITHMS: &[(&str, &str, &'static dyn VerificationAlgorithm)] = &[
    (
        "1.2.840.113549.1.1.5",
        "",
        &signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
    ),
    (
        "1.2.840.113549.1.1.11",
        "",
        &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
    ),
    (
        "1.2.840.113549.1.1.12",
        "",
        &signature::RSA_PKCS1_2048_8192_SHA384,
    ),
    (
        "1.2.840.113549.1.1.13",
        "",
        &signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    ),
    (
        "1.2.840.10045.4.3.2",
        P256,
        &signature::ECDSA_P256_SHA256_ASN1,
    ),
    (
        "1.2.840.10045.4.3.3",
        P256,
        &signature::ECDSA_P256_SHA384_ASN1,
    ),
    (
        "1.2.840.10045.4.3.4",
        P256,
        &signature::ECDSA_P256_SHA512_ASN1,
    ),
    (
        "1.2.840.10045.4.3.2",
        P384,
        &signature::ECDSA_P384_SHA256_ASN1,
    ),
    (
        "1.2.840.10045.4.3.3",
        P384,
        &signature::ECDSA_P384_SHA384_ASN1,
    ),
    (
        "1.2.840.10045.4.3.4",
        P384,
        &signature::ECDSA_P384_SHA512_ASN1,
    ),
    (
        "1.2.840.10045.4.3.2",
        P521,
        &signature::ECDSA_P521_SHA256_ASN1,
    ),
    (
        "1.2.840.10045.4.3.3",
        P521,
        &signature::ECDSA_P521_SHA384_ASN1,
    ),
    (
        "1.2.840.10045.4.3.4",
        P521,
        &signature::ECDSA_P521_SHA512_ASN1,
    ),
    ("1.3.101.112", "", &signature::ED25519),
];
const RSA_PSS: &str = "1.2.840.113549.1.1.10";

/// One request, parsed once.
#[derive(Debug)]
pub struct SigningRequest {
    der: Vec<u8>,
    /// The subject's last CN, as Go reads names.
    pub common_name: String,
    /// Every O of the subject.
    pub organizations: Vec<String>,
}

impl SigningRequest {
    /// Reads `spec.request`: PEM text in base64.
    ///
    /// # Errors
    /// What is wrong, in the words of upstream's `ParseCSR` where it has its own.
    pub fn parse(text: &str) -> Result<Self, String> {
        const BLOCK: &str = "PEM block type must be CERTIFICATE REQUEST";
        let pem = STANDARD.decode(text).map_err(|_| BLOCK.to_owned())?;
        let block = Pem::iter_from_buffer(&pem).find_map(Result::ok);
        let block = block.filter(|block| block.label == LABEL);
        Self::from_der(block.ok_or_else(|| BLOCK.to_owned())?.contents)
    }

    /// Reads a request without its PEM.
    ///
    /// # Errors
    /// What is wrong, as Go tells it.
    pub fn from_der(der: Vec<u8>) -> Result<Self, String> {
        let (rest, request) = X509CertificationRequest::from_der(&der)
            .map_err(|_| "asn1: structure error: malformed certificate request".to_owned())?;
        if !rest.is_empty() {
            return Err("asn1: syntax error: trailing data".to_owned());
        }
        let subject = &request.certification_request_info.subject;
        let (common_name, organizations) = certificate::names(subject);
        Ok(Self {
            der,
            common_name,
            organizations,
        })
    }

    /// The key that the request is for, as `read` sees it.
    pub fn key<T>(&self, read: impl FnOnce(&SubjectPublicKeyInfo<'_>) -> T) -> Option<T> {
        let (_, request) = X509CertificationRequest::from_der(&self.der).ok()?;
        Some(read(&request.certification_request_info.subject_pki))
    }

    /// Whether the request is signed by the key it is for.
    ///
    /// # Errors
    /// Why it is not, in the words of Go's `CheckSignature`.
    pub fn check_signature(&self) -> Result<(), &'static str> {
        const UNKNOWN: &str = "x509: cannot verify signature: algorithm unimplemented";
        let Ok((_, request)) = X509CertificationRequest::from_der(&self.der) else {
            return Err(UNKNOWN);
        };
        let key = &request.certification_request_info.subject_pki;
        let curve = key.algorithm.parameters.as_ref();
        let curve = curve
            .and_then(|curve| curve.as_oid().ok())
            .map(|curve| curve.to_id_string())
            .unwrap_or_default();
        let used = request.signature_algorithm.algorithm.to_id_string();
        let verifiers: Vec<&dyn VerificationAlgorithm> = match used.as_str() {
            // The digest is in the parameters; a signature is right for one of them at most.
            RSA_PSS => vec![
                &signature::RSA_PSS_2048_8192_SHA256,
                &signature::RSA_PSS_2048_8192_SHA384,
                &signature::RSA_PSS_2048_8192_SHA512,
            ],
            _ => ALGORITHMS
                .iter()
                .filter(|(algorithm, on, _)| *algorithm == used && *on == curve)
                .map(|(_, _, verifier)| *verifier)
                .collect(),
        };
        if verifiers.is_empty() {
            return Err(UNKNOWN);
        }
        let signed = request.certification_request_info.raw;
        let public = &key.subject_public_key.data;
        let right = verifiers.into_iter().any(|verifier| {
            UnparsedPublicKey::new(verifier, public)
                .verify(signed, &request.signature_value.data)
                .is_ok()
        });
        match used.as_str() {
            _ if right => Ok(()),
            "1.3.101.112" => Err("x509: Ed25519 verification failure"),
            used if used.starts_with("1.2.840.10045.") => Err("x509: ECDSA verification failure"),
            _ => Err("crypto/rsa: verification error"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SignatureAlgorithm};

    fn der(algorithm: &'static SignatureAlgorithm) -> Vec<u8> {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(DnType::CommonName, "system:node:n");
        params
            .serialize_request(&key)
            .expect("a request")
            .der()
            .to_vec()
    }

    fn text(der: &[u8]) -> String {
        let body = STANDARD.encode(der);
        STANDARD.encode(format!(
            "-----BEGIN {LABEL}-----\n{body}\n-----END {LABEL}-----\n"
        ))
    }

    #[track_caller]
    fn check(algorithm: &'static SignatureAlgorithm, refusal: &str) {
        let mut der = der(algorithm);
        let request = SigningRequest::parse(&text(&der)).expect("a request");
        assert_eq!(request.common_name, "system:node:n");
        assert_eq!(request.organizations, ["system:nodes"]);
        assert_eq!(request.check_signature(), Ok(()));
        let at = der
            .windows(8)
            .position(|window| window == b"system:n")
            .expect("the name");
        der[at] = b'S';
        let request = SigningRequest::parse(&text(&der)).expect("a request");
        assert_eq!(request.check_signature(), Err(refusal));
    }

    #[test]
    fn a_request_that_was_changed_after_it_was_signed_is_seen() {
        let curves = "x509: ECDSA verification failure";
        check(&rcgen::PKCS_ECDSA_P256_SHA256, curves);
        check(&rcgen::PKCS_ECDSA_P384_SHA384, curves);
        check(&rcgen::PKCS_ED25519, "x509: Ed25519 verification failure");
        check(&rcgen::PKCS_RSA_SHA256, "crypto/rsa: verification error");
    }

    #[test]
    fn what_is_no_request_is_told_as_upstream_tells_it() {
        let block = "PEM block type must be CERTIFICATE REQUEST";
        let parse = |text: &str| SigningRequest::parse(text).expect_err("no request");
        assert_eq!(parse("???"), block);
        assert_eq!(parse(&STANDARD.encode("text")), block);
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(parse(&STANDARD.encode(key)), block);
        let mut longer = der(&rcgen::PKCS_ECDSA_P256_SHA256);
        longer.push(0);
        assert_eq!(parse(&text(&longer)), "asn1: syntax error: trailing data");
    }
}
