//! Certificate signing requests: approving those of kubelets, signing approved ones, removing old ones.
//!
//! `request` reads what is asked for; `approve`, `sign` and `clean` are the three controllers; `issue` makes the
//! certificate. `clean_pods` removes the requests of pods, `publish` tells whom to trust.

pub mod approve;
pub mod clean;
pub mod clean_pods;
mod issue;
pub mod publish;
mod request;
pub mod sign;

use api::view::ObjectMeta;
use apimachinery::Value;
use serde::{Deserialize, Serialize};

pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

/// certificates.k8s.io/v1 CertificateSigningRequest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Csr {
    pub metadata: ObjectMeta,
    pub spec: CsrSpec,
    pub status: CsrStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsrSpec {
    /// PEM in base64.
    pub request: String,
    pub signer_name: String,
    pub expiration_seconds: Option<i64>,
    pub usages: Vec<String>,
    /// Who asks.
    pub username: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CsrStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<CsrCondition>,
    /// PEM in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsrCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub message: String,
    pub last_update_time: Option<String>,
    pub last_transition_time: Option<String>,
}

impl Csr {
    /// The condition of this type if it is true.
    pub fn holding(&self, kind: &str) -> Option<&CsrCondition> {
        let mut all = self.status.conditions.iter();
        all.find(|one| one.kind == kind && one.status == "True")
    }

    pub fn is_pending(&self) -> bool {
        self.holding("Approved").is_none() && self.holding("Denied").is_none()
    }
}

#[cfg(test)]
mod tests;
