//! What a PKCS#10 request asks for, and whether it is one that a kubelet makes. Pure.

use base64::Engine;
use x509_parser::{
    certification_request::X509CertificationRequest,
    extensions::{GeneralName, ParsedExtension},
    prelude::FromDer,
};

/// A request taken apart, its own signature verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// DER of the subject and of the public key, as they go into the certificate.
    pub subject: Vec<u8>,
    pub public_key: Vec<u8>,
    /// DER of the subject alternative names, and whether they are critical.
    pub names: Option<(Vec<u8>, bool)>,
    pub common_name: String,
    pub organizations: Vec<String>,
    /// How many names of each sort there are.
    pub dns_names: usize,
    pub addresses: usize,
    pub emails: usize,
    pub uris: usize,
}

impl Request {
    /// Reads `spec.request`.
    ///
    /// # Errors
    /// A text that says why it is none.
    pub fn parse(base64: &str) -> Result<Self, String> {
        let pem = base64::engine::general_purpose::STANDARD
            .decode(base64)
            .map_err(|error| error.to_string())?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem)
            .map_err(|_| "PEM block type must be CERTIFICATE REQUEST")?;
        if pem.label != "CERTIFICATE REQUEST" {
            return Err("PEM block type must be CERTIFICATE REQUEST".into());
        }
        let (_, csr) =
            X509CertificationRequest::from_der(&pem.contents).map_err(|error| error.to_string())?;
        csr.verify_signature()
            .map_err(|error| format!("unable to verify certificate request signature: {error}"))?;
        let info = &csr.certification_request_info;
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().map(ToString::to_string)
        };
        let mut request = Request {
            subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
            common_name: info
                .subject
                .iter_common_name()
                .find_map(|name| text(name).ok())
                .unwrap_or_default(),
            organizations: info
                .subject
                .iter_organization()
                .filter_map(|name| text(name).ok())
                .collect(),
            ..Request::default()
        };
        for attribute in info.iter_attributes() {
            let x509_parser::cri_attributes::ParsedCriAttribute::ExtensionRequest(asked) =
                attribute.parsed_attribute()
            else {
                continue;
            };
            for extension in &asked.extensions {
                if let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension()
                {
                    request.names = Some((extension.value.to_vec(), extension.critical));
                    for name in &names.general_names {
                        match name {
                            GeneralName::DNSName(_) => request.dns_names += 1,
                            GeneralName::IPAddress(_) => request.addresses += 1,
                            GeneralName::RFC822Name(_) => request.emails += 1,
                            GeneralName::URI(_) => request.uris += 1,
                            _ => {}
                        }
                    }
                }
            }
        }
        Ok(request)
    }

    /// Why this is no client certificate of a kubelet, if it is none (ValidateKubeletClientCSR).
    pub fn kubelet_client(&self, usages: &[String]) -> Result<(), &'static str> {
        self.of_node()?;
        if self.dns_names > 0 {
            return Err("DNS subjectAltNames are not allowed");
        }
        if self.emails > 0 {
            return Err("Email subjectAltNames are not allowed");
        }
        if self.addresses > 0 {
            return Err("IP subjectAltNames are not allowed");
        }
        if self.uris > 0 {
            return Err("URI subjectAltNames are not allowed");
        }
        let wanted = ["digital signature", "client auth"];
        if !are(usages, &wanted) {
            return Err("usages did not match [key encipherment digital signature client auth]");
        }
        Ok(())
    }

    /// Why this is no serving certificate of a kubelet, if it is none (ValidateKubeletServingCSR).
    pub fn kubelet_serving(&self, usages: &[String]) -> Result<(), &'static str> {
        self.of_node()?;
        if self.dns_names + self.addresses == 0 {
            return Err("DNS or IP subjectAltName is required");
        }
        if self.emails > 0 {
            return Err("Email subjectAltNames are not allowed");
        }
        if self.uris > 0 {
            return Err("URI subjectAltNames are not allowed");
        }
        if !are(usages, &["digital signature", "server auth"]) {
            return Err("usages did not match [key encipherment digital signature server auth]");
        }
        Ok(())
    }

    fn of_node(&self) -> Result<(), &'static str> {
        if self.organizations != ["system:nodes"] {
            return Err("subject organization is not system:nodes");
        }
        if !self.common_name.starts_with("system:node:") {
            return Err("subject common name does not begin with system:node:");
        }
        Ok(())
    }
}

/// Whether the usages are these, with or without key encipherment.
fn are(usages: &[String], wanted: &[&str]) -> bool {
    let mut given: Vec<&str> = usages.iter().map(String::as_str).collect();
    given.retain(|usage| *usage != "key encipherment");
    given.sort_unstable();
    given.dedup();
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    given == wanted
}
