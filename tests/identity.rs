//! Users with certificates of their own, signed by a server's authority.

use std::path::Path;

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
};

use crate::connection::{Connection, Target};
use crate::process::Server;

/// A certificate and its key in PEM: common name and, if any, one organization.
///
/// # Errors
/// An authority that cannot be read.
pub fn issue(pki: &Path, user: &str, group: Option<&str>) -> anyhow::Result<(String, String)> {
    let key = KeyPair::from_pem(&std::fs::read_to_string(pki.join("ca.key"))?)?;
    let issuer = Issuer::from_ca_cert_pem(&std::fs::read_to_string(pki.join("ca.crt"))?, key)?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, user);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let own = KeyPair::generate()?;
    let certificate = params.signed_by(&own, &issuer)?;
    Ok((certificate.pem(), own.serialize_pem()))
}

impl Server {
    /// A connection of a user with a certificate.
    pub async fn connect_as(&self, user: &str, group: Option<&str>) -> Connection {
        let pki = self.data_dir().join("pki");
        let (certificate, key) = issue(&pki, user, group).expect("a certificate");
        self.connect_with(Some((certificate.as_bytes(), key.as_bytes())))
            .await
    }

    /// A connection of whoever its requests' tokens say.
    pub async fn connect_bare(&self) -> Connection {
        self.connect_with(None).await
    }

    async fn connect_with(&self, identity: Option<(&[u8], &[u8])>) -> Connection {
        let admin = self.target().expect("the server made its certificates");
        Target::with(&self.data_dir().join("pki"), identity, admin.address)
            .expect("a target")
            .connect()
            .await
            .expect("the server answers")
    }
}
