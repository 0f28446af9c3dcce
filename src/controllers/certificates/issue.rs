//! Makes certificates of requests.
//!
//! The certificate is written in DER here, so that subject, key and names go over byte for byte: a library that takes
//! the subject apart would lose a repeated organization, and with it a user's group.

use std::time::Duration;

use apimachinery::time::Time;
use base64::Engine;
use rand::RngCore;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use x509_parser::{
    extensions::ParsedExtension,
    prelude::{FromDer, X509Certificate},
};

use super::request::Request;

/// How far a peer's clock may be behind (signer's backdate).
const BACKDATE: Duration = Duration::from_secs(5 * 60);

/// A usage in a request that a certificate can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// A bit of the key usage.
    Key(u8),
    /// The end of an object identifier below id-kp.
    Extended(u8),
}

impl Usage {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "signing" | "digital signature" => Usage::Key(0),
            "content commitment" => Usage::Key(1),
            "key encipherment" => Usage::Key(2),
            "data encipherment" => Usage::Key(3),
            "key agreement" => Usage::Key(4),
            "cert sign" => Usage::Key(5),
            "crl sign" => Usage::Key(6),
            "encipher only" => Usage::Key(7),
            "server auth" => Usage::Extended(1),
            "client auth" => Usage::Extended(2),
            "code signing" => Usage::Extended(3),
            "email protection" | "s/mime" => Usage::Extended(4),
            "ipsec end system" => Usage::Extended(5),
            "ipsec tunnel" => Usage::Extended(6),
            "ipsec user" => Usage::Extended(7),
            "timestamping" => Usage::Extended(8),
            "ocsp signing" => Usage::Extended(9),
            _ => return None,
        })
    }
}

/// A certificate authority.
pub struct Issuer {
    key: KeyPair,
    /// DER of the algorithm it signs with, of its name, and its key's identifier.
    algorithm: Vec<u8>,
    name: Vec<u8>,
    key_identifier: Option<Vec<u8>>,
    expires: Time,
}

impl Issuer {
    /// Reads an authority's certificate and key, both PEM.
    ///
    /// # Errors
    /// A text that says what is wrong with them.
    pub fn new(certificate: &str, key: &str) -> Result<Self, String> {
        let key = KeyPair::from_pem(key).map_err(|error| format!("the key: {error}"))?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes())
            .map_err(|error| format!("the certificate: {error}"))?;
        let (_, parsed) =
            X509Certificate::from_der(&pem.contents).map_err(|error| error.to_string())?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
            return Err("the key belongs to another certificate".into());
        }
        let key_identifier =
            parsed
                .extensions()
                .iter()
                .find_map(|extension| match extension.parsed_extension() {
                    ParsedExtension::SubjectKeyIdentifier(identifier) => {
                        Some(identifier.0.to_vec())
                    }
                    _ => None,
                });
        let expires = Time::from_unix_timestamp(parsed.validity().not_after.timestamp())
            .map_err(|error| error.to_string())?;
        let algorithm = algorithm(&key).ok_or("the key is of an unknown kind")?;
        Ok(Issuer {
            name: parsed.subject().as_raw().to_vec(),
            key,
            algorithm,
            key_identifier,
            expires,
        })
    }

    /// A certificate in PEM: valid for `lifetime`, but no longer than the authority.
    ///
    /// # Errors
    /// A text that says why it cannot be made.
    pub fn issue(
        &self,
        request: &Request,
        usages: &[Usage],
        lifetime: Duration,
        now: Time,
    ) -> Result<String, String> {
        if now >= self.expires {
            return Err("the signer has expired".into());
        }
        let not_before = now - BACKDATE;
        let not_after = (now + lifetime).min(self.expires);
        let mut serial = [0u8; 16];
        rand::rng().fill_bytes(&mut serial);
        // Positive, and of full length.
        serial[0] = serial[0] & 0x7f | 0x40;
        let body = sequence(&[
            tagged(0xa0, &tagged(0x02, &[2])),
            tagged(0x02, &serial),
            self.algorithm.clone(),
            self.name.clone(),
            sequence(&[time(not_before), time(not_after)]),
            request.subject.clone(),
            request.public_key.clone(),
            tagged(0xa3, &sequence(&self.extensions(request, usages))),
        ]);
        let signature = self.key.sign(&body).map_err(|error| error.to_string())?;
        let signature = bits(0, &signature);
        let der = sequence(&[body, self.algorithm.clone(), signature]);
        Ok(pem(&der))
    }

    fn extensions(&self, request: &Request, usages: &[Usage]) -> Vec<Vec<u8>> {
        let mut extensions = Vec::new();
        let mut key = 0u8;
        let mut extended = Vec::new();
        for usage in usages {
            match usage {
                Usage::Key(bit) => key |= 0x80 >> bit,
                Usage::Extended(end) => {
                    // id-kp: 1.3.6.1.5.5.7.3
                    let oid = tagged(0x06, &[0x2b, 6, 1, 5, 5, 7, 3, *end]);
                    if !extended.contains(&oid) {
                        extended.push(oid);
                    }
                }
            }
        }
        if key != 0 {
            let unused = u8::try_from(key.trailing_zeros()).unwrap_or(0);
            extensions.push(extension(15, true, &bits(unused, &[key])));
        }
        if !extended.is_empty() {
            extensions.push(extension(37, false, &sequence(&extended)));
        }
        extensions.push(extension(19, true, &sequence(&[])));
        if let Some(identifier) = &self.key_identifier {
            extensions.push(extension(35, false, &sequence(&[tagged(0x80, identifier)])));
        }
        if let Some((names, critical)) = &request.names {
            extensions.push(extension(17, *critical, names));
        }
        extensions
    }
}

/// DER of the algorithm a key signs with.
fn algorithm(key: &KeyPair) -> Option<Vec<u8>> {
    let algorithm = PublicKeyData::algorithm(key);
    let ecdsa = |end: u8| sequence(&[tagged(0x06, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, end])]);
    if *algorithm == rcgen::PKCS_ECDSA_P256_SHA256 {
        Some(ecdsa(2))
    } else if *algorithm == rcgen::PKCS_ECDSA_P384_SHA384 {
        Some(ecdsa(3))
    } else if *algorithm == rcgen::PKCS_RSA_SHA256 {
        let oid = tagged(0x06, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]);
        Some(sequence(&[oid, tagged(0x05, &[])]))
    } else if *algorithm == rcgen::PKCS_ED25519 {
        Some(sequence(&[tagged(0x06, &[0x2b, 0x65, 0x70])]))
    } else {
        None
    }
}

/// An extension of id-ce (2.5.29).
fn extension(end: u8, critical: bool, value: &[u8]) -> Vec<u8> {
    let mut parts = vec![tagged(0x06, &[0x55, 0x1d, end])];
    if critical {
        parts.push(tagged(0x01, &[0xff]));
    }
    parts.push(tagged(0x04, value));
    sequence(&parts)
}

/// A value with its tag and length.
fn tagged(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut der = vec![tag];
    match u8::try_from(value.len()) {
        Ok(length) if length < 0x80 => der.push(length),
        _ => {
            let bytes = value.len().to_be_bytes();
            let bytes: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
            der.push(0x80 | u8::try_from(bytes.len()).unwrap_or(8));
            der.extend(bytes);
        }
    }
    der.extend_from_slice(value);
    der
}

fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tagged(0x30, &parts.concat())
}

fn bits(unused: u8, value: &[u8]) -> Vec<u8> {
    tagged(0x03, &[&[unused], value].concat())
}

/// A time: with two digits of the year until 2049, with four from then on (RFC 5280).
fn time(at: Time) -> Vec<u8> {
    let digits = apimachinery::time::format(at).replace(['-', 'T', ':'], "");
    if at.year() < 2050 {
        tagged(0x17, &digits.as_bytes()[2..])
    } else {
        tagged(0x18, digits.as_bytes())
    }
}

fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}
