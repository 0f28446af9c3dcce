//! Service-account keys: reads every PEM form kubeadm and openssl write, signs and verifies JWTs, prints JWKs.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::pem::{PemObject, SectionKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("no key found")]
    Missing,
    #[error("unsupported PEM section {0}")]
    Section(String),
    #[error("not a usable RSA or P-256 key: {0}")]
    Rejected(String),
    #[error("no private key found")]
    NotPrivate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Es256,
}

impl Algorithm {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
        }
    }
}

/// Verifies signatures of one key.
#[derive(Clone, Debug)]
pub struct PublicKey {
    pub algorithm: Algorithm,
    /// Upstream's `keyIDFromPublicKey`: the hash of the DER SubjectPublicKeyInfo.
    pub id: String,
    /// RSA: PKCS#1 DER. ECDSA: the uncompressed point.
    key: Vec<u8>,
}

/// Signs with one key.
pub struct PrivateKey {
    pair: Pair,
    public: PublicKey,
}

enum Pair {
    Rsa(aws_lc_rs::rsa::KeyPair),
    Ecdsa(EcdsaKeyPair),
}

impl PublicKey {
    /// Every key in a PEM file; private keys and certificates stand for their public keys.
    pub fn read_all(pem: &[u8]) -> Result<Vec<Self>, KeyError> {
        let mut keys = Vec::new();
        for section in sections(pem) {
            let (kind, der) = section?;
            match kind {
                SectionKind::PublicKey => keys.push(Self::from_spki(&der)?),
                SectionKind::Certificate => keys.push(Self::from_certificate(&der)?),
                kind if is_private(kind) => keys.push(PrivateKey::from_der(kind, &der)?.public),
                _ => {}
            }
        }
        if keys.is_empty() {
            return Err(KeyError::Missing);
        }
        Ok(keys)
    }

    fn from_certificate(der: &[u8]) -> Result<Self, KeyError> {
        let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der)
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        Self::from_spki(certificate.public_key().raw)
    }

    fn from_spki(der: &[u8]) -> Result<Self, KeyError> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der)
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        let parsed = info
            .parsed()
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        let algorithm = match parsed {
            x509_parser::public_key::PublicKey::RSA(_) => Algorithm::Rs256,
            x509_parser::public_key::PublicKey::EC(point) if point.key_size() <= 256 => {
                Algorithm::Es256
            }
            _ => return Err(KeyError::Rejected("unsupported algorithm".to_owned())),
        };
        Ok(Self {
            algorithm,
            id: URL_SAFE_NO_PAD.encode(Sha256::digest(der)),
            key: info.subject_public_key.data.to_vec(),
        })
    }

    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self.algorithm {
            Algorithm::Rs256 => UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.key)
                .verify(message, signature),
            Algorithm::Es256 => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.key)
                .verify(message, signature),
        };
        verified.is_ok()
    }

    /// The key as RFC 7517 writes it.
    pub fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self.algorithm {
            Algorithm::Rs256 => {
                let (n, e) = match x509_parser::der_parser::parse_der(&self.key) {
                    Ok((_, sequence)) => integers(&sequence),
                    Err(_) => Default::default(),
                };
                json!({"use": "sig", "kty": "RSA", "kid": self.id, "alg": "RS256", "n": encode(&n), "e": encode(&e)})
            }
            Algorithm::Es256 => {
                // 0x04, x, y
                let (x, y) = self.key[1..].split_at(self.key.len() / 2);
                json!({"use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256", "x": encode(x), "y": encode(y)})
            }
        }
    }
}

/// Modulus and exponent of a PKCS#1 RSAPublicKey, without leading zeros.
fn integers(sequence: &x509_parser::der_parser::der::DerObject<'_>) -> (Vec<u8>, Vec<u8>) {
    let number = |at: usize| {
        let bytes = sequence
            .as_sequence()
            .ok()
            .and_then(|items| items.get(at))
            .and_then(|item| item.as_slice().ok())
            .unwrap_or_default();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes[zeros..].to_vec()
    };
    (number(0), number(1))
}

impl PrivateKey {
    /// The first private key of a PEM file.
    pub fn read(pem: &[u8]) -> Result<Self, KeyError> {
        for section in sections(pem) {
            let (kind, der) = section?;
            if is_private(kind) {
                return Self::from_der(kind, &der);
            }
        }
        Err(KeyError::NotPrivate)
    }

    fn from_der(kind: SectionKind, der: &[u8]) -> Result<Self, KeyError> {
        let rejected = |error: aws_lc_rs::error::KeyRejected| KeyError::Rejected(error.to_string());
        let pair = match kind {
            SectionKind::RsaPrivateKey => {
                Pair::Rsa(aws_lc_rs::rsa::KeyPair::from_der(der).map_err(rejected)?)
            }
            SectionKind::EcPrivateKey => Pair::Ecdsa(
                EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der)
                    .map_err(rejected)?,
            ),
            _ => match aws_lc_rs::rsa::KeyPair::from_pkcs8(der) {
                Ok(pair) => Pair::Rsa(pair),
                Err(_) => Pair::Ecdsa(
                    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der)
                        .map_err(rejected)?,
                ),
            },
        };
        let public = pair.public()?;
        Ok(Self { pair, public })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// `None` only when the crypto library fails.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let rng = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &rng, message, &mut signature)
                    .ok()?;
                Some(signature)
            }
            Pair::Ecdsa(pair) => {
                let signature = pair.sign(&rng, message).ok()?;
                Some(signature.as_ref().to_vec())
            }
        }
    }
}

impl Pair {
    fn public(&self) -> Result<PublicKey, KeyError> {
        use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
        let der: Result<PublicKeyX509Der<'_>, _> = match self {
            Self::Rsa(pair) => pair.public_key().as_der(),
            Self::Ecdsa(pair) => pair.public_key().as_der(),
        };
        let der = der.map_err(|error| KeyError::Rejected(error.to_string()))?;
        PublicKey::from_spki(der.as_ref())
    }
}

fn sections(pem: &[u8]) -> impl Iterator<Item = Result<(SectionKind, Vec<u8>), KeyError>> + '_ {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(pem)
        .map(|section| section.map_err(|error| KeyError::Section(error.to_string())))
}

fn is_private(kind: SectionKind) -> bool {
    matches!(
        kind,
        SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A fresh P-256 key as PKCS#8 PEM.
    pub fn ec_pem() -> String {
        rcgen::KeyPair::generate().expect("a key").serialize_pem()
    }

    fn rsa_pem() -> String {
        use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
        use base64::engine::general_purpose::STANDARD;
        let pair =
            aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).expect("a key");
        let der: Pkcs8V1Der<'_> = pair.as_der().expect("an encoding");
        format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            STANDARD.encode(der.as_ref())
        )
    }

    #[track_caller]
    fn check(pem: &str, algorithm: &str) {
        let private = PrivateKey::read(pem.as_bytes()).expect("a private key");
        let public = PublicKey::read_all(pem.as_bytes())
            .expect("a key")
            .remove(0);
        assert_eq!(public.id, private.public().id);
        let signature = private.sign(b"message").expect("a signature");
        assert!(public.verify(b"message", &signature));
        assert!(!public.verify(b"massage", &signature));
        let jwk = public.jwk();
        assert_eq!(
            (jwk["alg"].as_str(), jwk["kid"].as_str()),
            (Some(algorithm), Some(public.id.as_str()))
        );
        match algorithm {
            "RS256" => {
                let n = URL_SAFE_NO_PAD
                    .decode(jwk["n"].as_str().expect("n"))
                    .expect("base64");
                assert_eq!((n.len(), jwk["e"].as_str()), (256, Some("AQAB")));
            }
            _ => {
                for field in ["x", "y"] {
                    let part = URL_SAFE_NO_PAD.decode(jwk[field].as_str().expect("a field"));
                    assert_eq!(part.expect("base64").len(), 32);
                }
            }
        }
    }

    #[test]
    fn rsa_and_ec_keys_sign_verify_and_print_as_jwk() {
        check(&rsa_pem(), "RS256");
        check(&ec_pem(), "ES256");
    }

    #[test]
    fn text_without_a_key_is_refused() {
        assert!(matches!(
            PublicKey::read_all(b"hello"),
            Err(KeyError::Missing)
        ));
        assert!(matches!(PrivateKey::read(b""), Err(KeyError::NotPrivate)));
    }
}
