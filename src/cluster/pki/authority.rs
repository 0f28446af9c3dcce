//! Issues certificates and tells whether one that is there still serves.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::PkiError;

/// Authorities last ten years and leaves one, as kubeadm's do.
const AUTHORITY_LIFETIME: Duration = Duration::days(3650);
const LEAF_LIFETIME: Duration = Duration::days(365);
/// A leaf with less than this left is made anew.
const RENEW_BEFORE: Duration = Duration::days(30);
/// How far a peer's clock may be behind.
const CLOCK_SKEW: Duration = Duration::minutes(5);

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    Both,
}

/// What a certificate says.
#[derive(Clone, Debug)]
pub struct Profile {
    pub common_name: String,
    pub organization: Option<String>,
    /// DNS names and addresses.
    pub names: Vec<String>,
    pub usage: Usage,
}

impl Profile {
    pub fn server(common_name: &str, names: &[String]) -> Self {
        Self {
            common_name: common_name.into(),
            organization: None,
            names: names.to_vec(),
            usage: Usage::Server,
        }
    }

    pub fn client(common_name: &str, organization: Option<&str>) -> Self {
        Self {
            common_name: common_name.into(),
            organization: organization.map(String::from),
            names: Vec::new(),
            usage: Usage::Client,
        }
    }

    pub fn both(common_name: &str, names: &[String]) -> Self {
        Self {
            usage: Usage::Both,
            ..Self::server(common_name, names)
        }
    }
}

/// A certificate and its key, both PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

/// A certificate authority with its key.
pub struct Authority {
    certificate: String,
    /// The subject key identifier that everything it signed points to.
    key_identifier: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn generate(common_name: &str) -> Result<Self, PkiError> {
        let key = KeyPair::generate().map_err(PkiError::Key)?;
        let failed = |source| PkiError::Issue {
            name: common_name.into(),
            source,
        };
        let mut params = CertificateParams::new(vec![common_name.to_string()]).map_err(failed)?;
        let now = OffsetDateTime::now_utc();
        params.not_before = now - CLOCK_SKEW;
        params.not_after = now + AUTHORITY_LIFETIME;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::KeyCertSign,
        ];
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Self::from_pem(certificate, key).map_err(|reason| PkiError::Authority {
            path: common_name.into(),
            reason,
        })
    }

    pub(super) fn load(certificate: &Path, key: &Path) -> Result<Self, PkiError> {
        let unusable = |reason: String| PkiError::Authority {
            path: certificate.into(),
            reason,
        };
        let pem =
            std::fs::read_to_string(certificate).map_err(|error| unusable(error.to_string()))?;
        let key = std::fs::read_to_string(key).map_err(|error| unusable(error.to_string()))?;
        let key = KeyPair::from_pem(&key).map_err(|error| unusable(format!("its key: {error}")))?;
        Self::from_pem(pem, key).map_err(unusable)
    }

    fn from_pem(certificate: String, key: KeyPair) -> Result<Self, String> {
        let der = decode(&certificate).ok_or("not PEM")?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| error.to_string())?;
        if !parsed.is_ca() {
            return Err("it may not sign".into());
        }
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err("the key belongs to another certificate".into());
        }
        if !parsed.validity().is_valid() {
            return Err("it has expired".into());
        }
        let key_identifier =
            subject_key_identifier(&parsed).ok_or("it has no subject key identifier")?;
        let issuer =
            Issuer::from_ca_cert_der(&der.into(), key).map_err(|error| error.to_string())?;
        Ok(Self {
            certificate,
            key_identifier,
            issuer,
        })
    }

    pub fn certificate_pem(&self) -> &str {
        &self.certificate
    }

    pub(super) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Makes a key and signs a certificate for it.
    pub fn issue(&self, profile: &Profile) -> Result<Issued, PkiError> {
        let failed = |source| PkiError::Issue {
            name: profile.common_name.clone(),
            source,
        };
        let key = KeyPair::generate().map_err(PkiError::Key)?;
        let mut params = CertificateParams::new(profile.names.clone()).map_err(failed)?;
        let now = OffsetDateTime::now_utc();
        params.not_before = now - CLOCK_SKEW;
        params.not_after = now + LEAF_LIFETIME;
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(organization) = &profile.organization {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization.as_str());
        }
        params
            .distinguished_name
            .push(DnType::CommonName, profile.common_name.as_str());
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = match profile.usage {
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Both => vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        };
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Issued {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Whether this authority signed the certificate, it says what `profile` says, its key is `key`, and it
    /// lasts a while yet.
    pub fn accepts(&self, certificate: &str, key: &str, profile: &Profile) -> bool {
        let Some(der) = decode(certificate) else {
            return false;
        };
        let Ok((_, parsed)) = X509Certificate::from_der(&der) else {
            return false;
        };
        let Ok(key) = KeyPair::from_pem(key) else {
            return false;
        };
        let subject = parsed.subject();
        let first = |mut names: Box<dyn Iterator<Item = Option<String>>>| names.next().flatten();
        let common_name = first(Box::new(
            subject
                .iter_common_name()
                .map(|name| name.as_str().ok().map(String::from))
                .collect::<Vec<_>>()
                .into_iter(),
        ));
        let organization = first(Box::new(
            subject
                .iter_organization()
                .map(|name| name.as_str().ok().map(String::from))
                .collect::<Vec<_>>()
                .into_iter(),
        ));
        let wanted: BTreeSet<String> = profile.names.iter().cloned().collect();
        parsed.public_key().subject_public_key.data.as_ref() == key.public_key_raw()
            && authority_key_identifier(&parsed)
                .is_some_and(|identifier| identifier == self.key_identifier)
            && common_name.as_deref() == Some(profile.common_name.as_str())
            && organization == profile.organization
            && parsed.validity().not_after.timestamp()
                > (OffsetDateTime::now_utc() + RENEW_BEFORE).unix_timestamp()
            && wanted.is_subset(&subject_names(&parsed))
    }
}

fn decode(pem: &str) -> Option<Vec<u8>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    Some(pem.contents)
}

fn subject_key_identifier(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
            _ => None,
        })
}

fn authority_key_identifier(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    certificate
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(identifier) => {
                identifier.key_identifier.as_ref().map(|id| id.0.to_vec())
            }
            _ => None,
        })
}

fn subject_names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return BTreeSet::new();
    };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_string()),
        GeneralName::IPAddress(octets) => match octets.len() {
            4 => <[u8; 4]>::try_from(*octets)
                .ok()
                .map(|octets| IpAddr::from(octets).to_string()),
            _ => <[u8; 16]>::try_from(*octets)
                .ok()
                .map(|octets| IpAddr::from(octets).to_string()),
        },
        _ => None,
    };
    names.value.general_names.iter().filter_map(name).collect()
}
