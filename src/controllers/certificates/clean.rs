//! certificatesigningrequest-cleaner-controller: deletes requests some time after they were answered, or never were.

use std::{sync::Arc, time::Duration};

use api::r::CERTIFICATESIGNINGREQUESTS;
use apimachinery::time::{Time, now, parse};
use async_trait::async_trait;
use base64::Engine;
use client::{
    ClientError, DeleteOptions, Informer, Selectors,
    workqueue::{self, Queue, Requeue},
};

use super::Csr;
use crate::{Context, Controller, context::synced};

/// How long an answered request stays, and one without an answer.
const ANSWERED: Duration = Duration::from_secs(3600);
const PENDING: Duration = Duration::from_secs(24 * 3600);

pub struct Cleaner;

#[async_trait]
impl Controller for Cleaner {
    fn name(&self) -> &'static str {
        "certificatesigningrequest-cleaner-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["csrcleaner"]
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
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run("csr-cleaner", &queue, 1, &context.shutdown, |name| {
            let (context, requests) = (&context, &requests);
            async move { reconcile(context, requests.get(&name)).await }
        })
        .await;
    }
}

async fn reconcile(context: &Context, csr: Option<Arc<Csr>>) -> Result<Requeue, ClientError> {
    let Some(csr) = csr else {
        return Ok(Requeue::No);
    };
    let Some(due) = due(&csr) else {
        return Ok(Requeue::No);
    };
    let left = Duration::try_from(due - now()).unwrap_or_default();
    if !left.is_zero() {
        return Ok(Requeue::After(left));
    }
    let meta = &csr.metadata;
    let options = DeleteOptions::uid(&meta.uid);
    let resource = &CERTIFICATESIGNINGREQUESTS;
    match context
        .client
        .delete(resource, "", &meta.name, &options)
        .await
    {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(Requeue::No),
    }
}

/// When the request is to go: the earliest of its reasons.
fn due(csr: &Csr) -> Option<Time> {
    let since = |kind: &str| parse(csr.holding(kind)?.last_update_time.as_deref()?);
    if csr.is_pending() {
        let created = parse(csr.metadata.creation_timestamp.as_deref()?)?;
        return Some(created + PENDING);
    }
    let issued = !csr.status.certificate.is_empty();
    let approved = issued.then(|| since("Approved")).flatten();
    let answered = [approved, since("Denied"), since("Failed")];
    let answered = answered.into_iter().flatten().map(|at| at + ANSWERED);
    answered.chain(expiry(csr)).min()
}

/// When the issued certificate expires.
fn expiry(csr: &Csr) -> Option<Time> {
    let pem = base64::engine::general_purpose::STANDARD
        .decode(&csr.status.certificate)
        .ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let certificate = pem.parse_x509().ok()?;
    Time::from_unix_timestamp(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn csr(status: Value) -> Csr {
        let meta = json!({"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap()
    }

    fn said(kind: &str, certificate: &str) -> Value {
        let condition =
            json!({"type": kind, "status": "True", "lastUpdateTime": "2026-01-01T05:00:00Z"});
        json!({"conditions": [condition], "certificate": certificate})
    }

    #[test]
    fn answered_requests_stay_an_hour_and_others_a_day() {
        let at = |text: &str| parse(text);
        assert_eq!(due(&csr(json!({}))), at("2026-01-02T00:00:00Z"));
        assert_eq!(due(&csr(said("Denied", ""))), at("2026-01-01T06:00:00Z"));
        assert_eq!(due(&csr(said("Failed", ""))), at("2026-01-02T00:00:00Z"));
        assert_eq!(
            due(&csr(said("Approved", ""))),
            None,
            "it waits to be signed"
        );
        assert_eq!(
            due(&csr(said("Approved", "bm9uZQ=="))),
            at("2026-01-01T06:00:00Z")
        );
    }
}
