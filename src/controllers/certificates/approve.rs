//! certificatesigningrequest-approving-controller: approves the client certificates of kubelets whose user may ask
//! for them.

use std::sync::Arc;

use api::r::{CERTIFICATESIGNINGREQUESTS, SUBJECTACCESSREVIEWS};
use apimachinery::{Value, time::now_text};
use async_trait::async_trait;
use client::{
    ClientError, Informer, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use super::{Csr, CsrCondition, KUBELET_CLIENT, request::Request};
use crate::{Context, Controller, context::synced};

const WORKERS: usize = 5;

pub struct Approving;

#[async_trait]
impl Controller for Approving {
    fn name(&self) -> &'static str {
        "certificatesigningrequest-approving-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["csrapproving"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let requests: Informer<Csr> =
            informers.informer(&CERTIFICATESIGNINGREQUESTS, "", Selectors::default());
        if !synced!(context, requests) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        requests.add_handler(move |change| {
            if change
                .new
                .as_ref()
                .is_some_and(|csr| kinds(csr).next().is_some())
            {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run(
            "csr-approving",
            &queue,
            WORKERS,
            &context.shutdown,
            |name| {
                let (context, requests) = (&context, &requests);
                async move { reconcile(context, requests.get(&name)).await }
            },
        )
        .await;
    }
}

/// A kind of request: the subresource its user must be allowed to create, and what is said then.
struct Kind {
    subresource: &'static str,
    message: &'static str,
}

/// Renewed by the kubelet itself, or first asked for by a user who may do so for any node.
const SELF: Kind = Kind {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
const FIRST: Kind = Kind {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};

/// What kinds of request it may be.
fn kinds(csr: &Csr) -> impl Iterator<Item = &'static Kind> {
    let wanted = csr.is_pending()
        && csr.status.certificate.is_empty()
        && csr.spec.signer_name == KUBELET_CLIENT;
    let request = wanted
        .then(|| Request::parse(&csr.spec.request).ok())
        .flatten();
    let request = request.filter(|request| request.kubelet_client(&csr.spec.usages).is_ok());
    let own = request
        .as_ref()
        .is_some_and(|request| request.common_name == csr.spec.username);
    let own = own.then_some(&SELF);
    own.into_iter().chain(request.map(|_| &FIRST))
}

async fn reconcile(context: &Context, csr: Option<Arc<Csr>>) -> Result<Requeue, ClientError> {
    let Some(csr) = csr else {
        return Ok(Requeue::No);
    };
    let mut tried = Vec::new();
    for kind in kinds(&csr) {
        if is_allowed(context, &csr, kind).await? {
            approve(context, &csr, kind).await?;
            return Ok(Requeue::No);
        }
        tried.push(kind.subresource);
    }
    if !tried.is_empty() {
        tracing::info!(csr = %csr.metadata.name, ?tried, "the request looks like a kubelet's, but its user may not ask for it");
    }
    Ok(Requeue::No)
}

async fn is_allowed(context: &Context, csr: &Csr, kind: &Kind) -> Result<bool, ClientError> {
    let mut review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": csr.spec.username, "uid": csr.spec.uid, "groups": csr.spec.groups,
            "resourceAttributes": {
                "group": "certificates.k8s.io", "version": "*", "resource": "certificatesigningrequests",
                "subresource": kind.subresource, "verb": "create",
            },
        },
    });
    if csr.spec.extra.is_object() {
        review["spec"]["extra"] = csr.spec.extra.clone();
    }
    let options = WriteOptions::default();
    let answer: Value = context
        .client
        .create(&SUBJECTACCESSREVIEWS, "", &review, &options)
        .await?;
    Ok(answer["status"]["allowed"] == true)
}

async fn approve(context: &Context, csr: &Csr, kind: &Kind) -> Result<(), ClientError> {
    let mut status = csr.status.clone();
    status.conditions.push(CsrCondition {
        kind: "Approved".into(),
        status: "True".into(),
        reason: "AutoApproved".into(),
        message: kind.message.into(),
        last_update_time: Some(now_text()),
        last_transition_time: Some(now_text()),
    });
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": csr.metadata, "status": status,
    });
    let options = WriteOptions::default();
    let name = &csr.metadata.name;
    let resource = &CERTIFICATESIGNINGREQUESTS;
    let updated = context
        .client
        .update_subresource::<_, Value>(resource, "", name, "approval", &object, &options);
    match updated.await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(super) fn kinds_of(csr: &Csr) -> Vec<&'static str> {
    kinds(csr).map(|kind| kind.subresource).collect()
}
