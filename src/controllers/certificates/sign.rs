//! certificatesigningrequest-signing-controller: signs approved requests of Kubernetes' own signers.

use std::sync::Arc;

use api::r::CERTIFICATESIGNINGREQUESTS;
use apimachinery::time::{now, now_text};
use async_trait::async_trait;
use base64::Engine;
use client::{
    ClientError, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};

use super::{
    CLIENT, Csr, CsrCondition, CsrStatus, KUBELET_CLIENT, KUBELET_SERVING, LEGACY,
    issue::{Issuer, Usage},
    request::Request,
};
use crate::{Context, Controller, context::synced, writes::write_status};

const WORKERS: usize = 5;
const SIGNERS: [&str; 4] = [KUBELET_CLIENT, KUBELET_SERVING, CLIENT, LEGACY];

pub struct Signing;

#[async_trait]
impl Controller for Signing {
    fn name(&self) -> &'static str {
        "certificatesigningrequest-signing-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["csrsigning"]
    }

    async fn run(&self, context: Context) {
        let Some((certificate, key)) = &context.config.cluster_signing else {
            context.shutdown.cancelled().await;
            return;
        };
        let issuer = match Issuer::new(certificate, key) {
            Ok(issuer) => issuer,
            Err(why) => {
                tracing::error!(%why, "certificate requests are not signed");
                context.shutdown.cancelled().await;
                return;
            }
        };
        let informers = &context.informers;
        let requests: Informer<Csr> =
            informers.informer(&CERTIFICATESIGNINGREQUESTS, "", Selectors::default());
        if !synced!(context, requests) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        requests.add_handler(move |change| {
            if change.new.as_ref().is_some_and(|csr| is_to_be_signed(csr)) {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run("csr-signing", &queue, WORKERS, &context.shutdown, |name| {
            let (context, requests, issuer) = (&context, &requests, &issuer);
            async move { reconcile(context, issuer, requests.get(&name)).await }
        })
        .await;
    }
}

/// Approved, of one of the signers, and neither signed nor refused.
fn is_to_be_signed(csr: &Csr) -> bool {
    SIGNERS.contains(&csr.spec.signer_name.as_str())
        && csr.holding("Approved").is_some()
        && csr.holding("Denied").is_none()
        && csr.holding("Failed").is_none()
        && csr.status.certificate.is_empty()
}

async fn reconcile(
    context: &Context,
    issuer: &Issuer,
    csr: Option<Arc<Csr>>,
) -> Result<Requeue, ClientError> {
    let Some(csr) = csr.filter(|csr| is_to_be_signed(csr)) else {
        return Ok(Requeue::No);
    };
    let Some(status) = plan(issuer, &csr, context) else {
        return Ok(Requeue::No);
    };
    let resource = &CERTIFICATESIGNINGREQUESTS;
    write_status(&context.client, resource, &csr.metadata, &status).await?;
    Ok(Requeue::No)
}

/// The status with the certificate, or with why there is none.
fn plan(issuer: &Issuer, csr: &Csr, context: &Context) -> Option<CsrStatus> {
    let mut status = csr.status.clone();
    let refused = |mut status: CsrStatus, message: String| {
        status.conditions.push(CsrCondition {
            kind: "Failed".into(),
            status: "True".into(),
            reason: "SignerValidationFailure".into(),
            message,
            last_update_time: Some(now_text()),
            last_transition_time: Some(now_text()),
        });
        Some(status)
    };
    let request = match Request::parse(&csr.spec.request) {
        Ok(request) => request,
        Err(why) => {
            return refused(
                status,
                format!("unable to parse csr {:?}: {why}", csr.metadata.name),
            );
        }
    };
    if let Err(why) = fits(csr, &request) {
        return refused(status, why.into());
    }
    let usages: Vec<Usage> = csr
        .spec
        .usages
        .iter()
        .filter_map(|text| Usage::parse(text))
        .collect();
    let longest = context.config.cluster_signing_duration;
    let asked = csr
        .spec
        .expiration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    let lifetime = asked.map_or(longest, |asked| {
        longest.min(std::time::Duration::from_secs(asked))
    });
    match issuer.issue(&request, &usages, lifetime, now()) {
        Ok(pem) => {
            status.certificate = base64::engine::general_purpose::STANDARD.encode(pem);
            Some(status)
        }
        Err(why) => {
            tracing::error!(csr = %csr.metadata.name, %why, "cannot sign a certificate");
            None
        }
    }
}

/// Why the signer does not sign such a certificate, if it does not.
fn fits(csr: &Csr, request: &Request) -> Result<(), &'static str> {
    let usages = &csr.spec.usages;
    match csr.spec.signer_name.as_str() {
        KUBELET_SERVING => request.kubelet_serving(usages),
        KUBELET_CLIENT => request.kubelet_client(usages),
        CLIENT => {
            let known = ["digital signature", "key encipherment", "client auth"];
            if !usages.iter().all(|usage| known.contains(&usage.as_str())) {
                return Err("usages contain a usage that is not allowed for client certificates");
            }
            if !usages.iter().any(|usage| usage == "client auth") {
                return Err("expected \"client auth\" to be included in usages");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(super) fn plan_of(issuer: &Issuer, csr: &Csr, context: &Context) -> Option<CsrStatus> {
    plan(issuer, csr, context)
}
