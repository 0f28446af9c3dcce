//! The key that a pod's certificate is for, and the proof that who asks holds it: a request for a certificate that the
//! key has signed, or, in v1beta1, a signature of the pod's uid.

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use num_bigint::BigUint;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::{PublicKey, RSAPublicKey};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::super::signing_request::SigningRequest;

const ED25519: &str = "1.3.101.112";
const ELLIPTIC: &str = "1.2.840.10045.2.1";
const RSA: &str = "1.2.840.113549.1.1.1";
const P224: &str = "1.3.132.0.33";
/// Curves by the names of their parameters, and who verifies their signatures.
static CURVES: &[(&str, &dyn VerificationAlgorithm)] = &[
    ("1.2.840.10045.3.1.7", &signature::ECDSA_P256_SHA256_ASN1),
    ("1.3.132.0.34", &signature::ECDSA_P384_SHA256_ASN1),
    ("1.3.132.0.35", &signature::ECDSA_P521_SHA256_ASN1),
];
/// Bits of the moduli that RSA keys may have.
const MODULI: [usize; 2] = [3072, 4096];

/// What is wrong with a key or its proof.
#[derive(Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No key at all; the value is the key.
    Key(&'static str),
    /// A key that is not taken, and how it is called.
    Kind(String, &'static str),
    Proof,
}

/// A key as it is sent (`x509.ParsePKIXPublicKey`).
pub fn parse(der: &[u8]) -> Option<SubjectPublicKeyInfo<'_>> {
    let (rest, key) = SubjectPublicKeyInfo::from_der(der).ok()?;
    rest.is_empty().then_some(key)
}

/// Whether two keys are the same one.
pub fn is_same(left: &SubjectPublicKeyInfo<'_>, right: &SubjectPublicKeyInfo<'_>) -> bool {
    left.algorithm.algorithm == right.algorithm.algorithm
        && left.subject_public_key.data == right.subject_public_key.data
}

const MALFORMED: Flaw = Flaw::Key("must be a valid PKIX-serialized public key");

/// A key of a kind that is taken.
enum Kind<'a> {
    Ed25519,
    Elliptic(&'static dyn VerificationAlgorithm),
    Rsa(RSAPublicKey<'a>),
}

fn kind<'a>(key: &'a SubjectPublicKeyInfo<'_>) -> Result<Kind<'a>, Flaw> {
    match key.algorithm.algorithm.to_id_string().as_str() {
        ED25519 => Ok(Kind::Ed25519),
        ELLIPTIC => {
            let curve = key.algorithm.parameters.as_ref();
            let curve = curve.and_then(|curve| curve.as_oid().ok());
            let curve = curve.map(|curve| curve.to_id_string()).unwrap_or_default();
            if curve == P224 {
                return Err(Flaw::Kind(
                    "curve P-224".to_owned(),
                    "elliptic public keys must use curve P256 or P384",
                ));
            }
            let known = CURVES.iter().find(|(name, _)| *name == curve);
            Ok(Kind::Elliptic(known.ok_or(MALFORMED)?.1))
        }
        RSA => {
            let Ok(PublicKey::RSA(key)) = key.parsed() else {
                return Err(MALFORMED);
            };
            let bits = significant(key.modulus).len() * 8;
            if !MODULI.contains(&bits) {
                return Err(Flaw::Kind(
                    format!("{bits}-bit modulus"),
                    "RSA keys must have modulus size 3072 or 4096",
                ));
            }
            Ok(Kind::Rsa(key))
        }
        _ => Err(Flaw::Key(
            "unknown public key type; supported types are Ed25519, ECDSA, and RSA",
        )),
    }
}

/// Whether `der` is a request for a certificate, signed by its own key, of a kind that is taken.
pub fn check_request(der: Vec<u8>) -> Result<(), Flaw> {
    let request =
        SigningRequest::from_der(der).map_err(|_| Flaw::Key("must be a valid PKCS#10 CSR"))?;
    request
        .key(|key| kind(key).map(|_| ()))
        .unwrap_or(Err(MALFORMED))?;
    request.check_signature().map_err(|_| Flaw::Proof)
}

/// Whether `proof` is the signature of `uid` by the key in `der`.
pub fn check(der: &[u8], uid: &str, proof: &[u8]) -> Result<(), Flaw> {
    let key = parse(der).ok_or(MALFORMED)?;
    let public = &key.subject_public_key.data;
    let verify = |verifier: &'static dyn VerificationAlgorithm| {
        let key = UnparsedPublicKey::new(verifier, public);
        key.verify(uid.as_bytes(), proof).is_ok()
    };
    let is_right = match kind(&key)? {
        Kind::Ed25519 => verify(&signature::ED25519),
        Kind::Elliptic(verifier) => verify(verifier),
        Kind::Rsa(key) => is_signed(&key, uid.as_bytes(), proof),
    };
    is_right.then_some(()).ok_or(Flaw::Proof)
}

fn significant(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// RSASSA-PSS with SHA-256 and a salt of any length (RFC 8017, 8.1.2): who signs may take the longest one that fits,
/// which the usual verifiers do not take.
fn is_signed(key: &RSAPublicKey<'_>, message: &[u8], signature: &[u8]) -> bool {
    let modulus = BigUint::from_bytes_be(key.modulus);
    let signed = BigUint::from_bytes_be(signature);
    if signature.len() != significant(key.modulus).len() || signed >= modulus {
        return false;
    }
    let exponent = BigUint::from_bytes_be(key.exponent);
    let bits = usize::try_from(modulus.bits()).map_or(0, |bits| bits.saturating_sub(1));
    let length = bits.div_ceil(8);
    let encoded = signed.modpow(&exponent, &modulus).to_bytes_be();
    let Some(padding) = length.checked_sub(encoded.len()) else {
        return false;
    };
    let mut encoded = [vec![0; padding], encoded].concat();
    is_encoded(&mut encoded, 8 * length - bits, message)
}

/// EMSA-PSS-VERIFY of RFC 8017, 9.1.2; `spare` is how many of the first bits are not used.
fn is_encoded(encoded: &mut [u8], spare: usize, message: &[u8]) -> bool {
    let Some((0xbc, rest)) = encoded.split_last_mut().map(|(last, rest)| (*last, rest)) else {
        return false;
    };
    let Some(split) = rest.len().checked_sub(SHA256_OUTPUT_LEN) else {
        return false;
    };
    let (masked, hash) = rest.split_at_mut(split);
    let used = u8::MAX.checked_shr(spare as u32).unwrap_or(0);
    match masked.first() {
        Some(first) if first & !used == 0 => {}
        _ => return false,
    }
    for (byte, mask) in masked.iter_mut().zip(mask(hash)) {
        *byte ^= mask;
    }
    masked[0] &= used;
    let zeros = masked.iter().take_while(|byte| **byte == 0).count();
    let Some((1, salt)) = masked[zeros..]
        .split_first()
        .map(|(first, rest)| (*first, rest))
    else {
        return false;
    };
    let hashed = digest(&SHA256, message);
    let whole = [&[0; 8], hashed.as_ref(), salt].concat();
    digest(&SHA256, &whole).as_ref() == &*hash
}

/// MGF1 with SHA-256.
fn mask(seed: &[u8]) -> impl Iterator<Item = u8> {
    let seed = seed.to_vec();
    (0u32..).flat_map(move |counter| {
        let whole = [&seed[..], &counter.to_be_bytes()].concat();
        digest(&SHA256, &whole).as_ref().to_vec()
    })
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{RSA_PSS_SHA256, RsaKeyPair};
    use rcgen::{KeyPair, PublicKeyData, SignatureAlgorithm, SigningKey};

    use super::*;

    #[track_caller]
    fn is_proved(algorithm: &'static SignatureAlgorithm) {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let der = key.subject_public_key_info();
        let proof = key.sign(b"uid").expect("signs");
        assert_eq!(check(&der, "uid", &proof), Ok(()));
        assert_eq!(check(&der, "other", &proof), Err(Flaw::Proof));
    }

    #[test]
    fn a_key_signs_the_uid_of_the_pod() {
        is_proved(&rcgen::PKCS_ED25519);
        is_proved(&rcgen::PKCS_ECDSA_P256_SHA256);
    }

    #[test]
    fn keys_of_rsa_are_large_and_sign_with_a_salt() {
        let sizes = [
            (rcgen::RsaKeySize::_2048, false),
            (rcgen::RsaKeySize::_3072, true),
        ];
        for (size, is_taken) in sizes {
            let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).expect("a key");
            let der = key.subject_public_key_info();
            let signer = RsaKeyPair::from_pkcs8(key.serialized_der()).expect("the same key");
            let mut proof = vec![0; signer.public_modulus_len()];
            signer
                .sign(&RSA_PSS_SHA256, &SystemRandom::new(), b"uid", &mut proof)
                .expect("signs");
            if is_taken {
                assert_eq!(check(&der, "uid", &proof), Ok(()));
                assert_eq!(check(&der, "other", &proof), Err(Flaw::Proof));
            } else {
                let flaw = Flaw::Kind(
                    "2048-bit modulus".to_owned(),
                    "RSA keys must have modulus size 3072 or 4096",
                );
                assert_eq!(check(&der, "uid", &proof), Err(flaw));
            }
        }
    }

    #[test]
    fn a_request_is_signed_by_a_key_that_is_taken() {
        let ask = |key: &KeyPair| {
            let request = rcgen::CertificateParams::default().serialize_request(key);
            request.expect("a request").der().to_vec()
        };
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let mut der = ask(&key);
        assert_eq!(check_request(der.clone()), Ok(()));
        *der.last_mut().expect("a signature") ^= 1;
        assert_eq!(check_request(der), Err(Flaw::Proof));
        let size = rcgen::RsaKeySize::_2048;
        let small = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).expect("a key");
        assert!(matches!(check_request(ask(&small)), Err(Flaw::Kind(..))));
        let none = Flaw::Key("must be a valid PKCS#10 CSR");
        assert_eq!(check_request(b"x".to_vec()), Err(none));
    }

    #[test]
    fn what_is_no_key_is_told() {
        let malformed = Flaw::Key("must be a valid PKIX-serialized public key");
        assert_eq!(check(b"x", "uid", b""), Err(malformed));
    }
}
