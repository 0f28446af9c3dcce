//! CertificateApproval, CertificateSigning, ClusterTrustBundleAttest and CertificateSubjectRestriction: who may act for a signer.

use apimachinery::{Status, Value};
use async_trait::async_trait;

use super::{Attributes, Operation, Plugin};
use crate::kinds::policy::signing_request::SigningRequest;
use crate::kinds::tree::{at, text};

const GROUP: &str = "certificates.k8s.io";

fn is_request(attributes: &Attributes<'_>, subresource: &str) -> bool {
    attributes.resource.group == GROUP
        && attributes.resource.plural == "certificatesigningrequests"
        && attributes.subresource == subresource
}

/// Whether the user may do `verb` for a signer, by its name or by its domain.
async fn may(attributes: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let question = crate::authz::Attributes {
            user: &attributes.request.user,
            verb,
            is_resource: true,
            group: GROUP,
            version: "*",
            resource: "signers",
            subresource: "",
            namespace: "",
            name: &name,
            path: "",
            field_selector: "",
            label_selector: "",
        };
        let verdict = attributes.request.authorizers.authorize(&question).await;
        if verdict.is_allowed() {
            return true;
        }
    }
    false
}

async fn require(attributes: &Attributes<'_>, verb: &str, signer: &str) -> Result<(), Status> {
    if may(attributes, verb, signer).await {
        return Ok(());
    }
    Err(attributes.forbidden(&format!(
        "user not permitted to {verb} requests with signerName {signer:?}"
    )))
}

pub struct CertificateApproval;

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_request(attributes, "approval") && attributes.operation == Operation::Update
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Value>,
    ) -> Result<(), Status> {
        let signer = attributes
            .old
            .map_or("", |old| text(old, &["spec", "signerName"]));
        require(attributes, "approve", signer).await
    }
}

pub struct CertificateSigning;

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_request(attributes, "status") && attributes.operation == Operation::Update
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (object, attributes.old) else {
            return Ok(());
        };
        let same = ["certificate", "conditions"]
            .iter()
            .all(|field| at(new, &["status", field]) == at(old, &["status", field]));
        if same {
            return Ok(());
        }
        require(attributes, "sign", text(old, &["spec", "signerName"])).await
    }
}

pub struct ClusterTrustBundleAttest;

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.resource.group == GROUP
            && attributes.resource.plural == "clustertrustbundles"
            && matches!(attributes.operation, Operation::Create | Operation::Update)
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let signer = object.map_or("", |object| text(object, &["spec", "signerName"]));
        if signer.is_empty() || may(attributes, "attest", signer).await {
            return Ok(());
        }
        Err(attributes.forbidden(&format!(
            "user not permitted to attest for signerName {signer:?}"
        )))
    }
}

pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        is_request(attributes, "") && attributes.operation == Operation::Create
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        if text(object, &["spec", "signerName"]) != "kubernetes.io/kube-apiserver-client" {
            return Ok(());
        }
        // Upstream does not look further at what it cannot read either: validation refused it.
        let Ok(asked) = SigningRequest::parse(text(object, &["spec", "request"])) else {
            return Ok(());
        };
        if asked
            .organizations
            .iter()
            .any(|group| group == "system:masters")
        {
            return Err(attributes.forbidden(
                "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
            ));
        }
        Ok(())
    }
}
