//! Who a client certificate stands for: CN is the user, every O is a group (upstream's `CommonNameUserConversion`).

use std::collections::BTreeMap;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use crate::request::UserInfo;

/// KEP-5607: the subject attribute that carries a user's uid.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// The key of `UserInfo::extra` that tells credentials apart (KEP-2799).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The user of a verified certificate; `None` for one without a CN.
pub fn user(certificate: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject();
    let (name, groups) = names(subject);
    if name.is_empty() {
        return None;
    }
    let mut user = UserInfo::new(name, groups.iter().map(String::as_str));
    user.uid = subject
        .iter_attributes()
        .find(|attribute| attribute.attr_type().to_id_string() == UID_OID)
        .and_then(|attribute| attribute.as_str().ok())
        .unwrap_or_default()
        .to_owned();
    user.extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![credential(certificate)])]);
    Some(user)
}

/// The last CN, empty without one, and every O.
pub fn names(subject: &X509Name<'_>) -> (String, Vec<String>) {
    let common_name = subject
        .iter_common_name()
        .last()
        .and_then(|name| name.as_str().ok())
        .unwrap_or_default();
    let organizations = subject
        .iter_organization()
        .filter_map(|name| name.as_str().ok().map(str::to_owned))
        .collect();
    (common_name.to_owned(), organizations)
}

/// The end of a certificate's life, in seconds since 1970.
pub fn expires(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

fn credential(certificate: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::from("X509SHA256=");
    for byte in Sha256::digest(certificate) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    #[test]
    fn the_common_name_is_the_user_and_organizations_are_groups() {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "system:node:n1");
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        let certificate = params.self_signed(&key).expect("a certificate");
        let user = user(certificate.der()).expect("a user");
        assert_eq!(user.name, "system:node:n1");
        assert_eq!(user.groups, ["system:nodes", "system:authenticated"]);
        assert!(user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
    }

    #[test]
    fn a_certificate_without_a_common_name_is_nobody() {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:masters");
        let certificate = params.self_signed(&key).expect("a certificate");
        assert!(user(certificate.der()).is_none());
    }
}
