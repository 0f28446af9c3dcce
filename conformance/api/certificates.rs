//! Certificate signing requests: the object, its approval and its status.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::cluster::{Cluster, assert_contains, refused, text};
use crate::kinds::SIGNING_REQUEST;
use crate::lifecycle::{Lifecycle, served};

/// A request for a certificate and a certificate of the same key, both as PEM in base64.
fn made() -> (String, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["e2e.example.com".to_owned()];
    let parameters = rcgen::CertificateParams::new(names).expect("parameters");
    let request = parameters.serialize_request(&key).expect("a request");
    let certificate = parameters.self_signed(&key).expect("a certificate");
    (
        STANDARD.encode(request.pem().expect("PEM")),
        STANDARD.encode(certificate.pem()),
    )
}

pub async fn signing_requests_live(cluster: &Cluster) {
    let (request, certificate) = made();
    let object = json!({"spec": {
        "request": request, "signerName": "example.com/checklist", "expirationSeconds": 3600,
        "usages": ["digital signature", "key encipherment", "server auth"],
    }});
    served(cluster, SIGNING_REQUEST, &["approval", "status"]).await;
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Checklist", "message": "set by a test"});
    Lifecycle::of(SIGNING_REQUEST, object.clone())
        .with_status(
            json!({"status": {"certificate": certificate}}),
            json!({"status": {"conditions": [condition("StatusUpdate")]}}),
        )
        .live(cluster, None)
        .await;

    let requests = cluster.all(SIGNING_REQUEST);
    let mut named = object;
    named["metadata"] = json!({"name": "approved"});
    let made = requests.create(&named).await.expect("created");
    assert_eq!(text(&made, "/spec/username"), "kubernetes-admin");
    let by_signer =
        kube::api::ListParams::default().fields("spec.signerName=example.com/checklist");
    let listed = requests.list(&by_signer).await.expect("a list");
    assert_contains(
        &listed,
        &json!({"items": [{"metadata": {"name": "approved"}}]}),
    );

    let approval = requests.get_sub("approved", "approval").await;
    let approval = approval.expect("the approval");
    assert_eq!(text(&approval, "/kind"), "CertificateSigningRequest");
    assert_eq!(approval["metadata"]["uid"], made["metadata"]["uid"]);
    let patch = json!({
        "metadata": {"annotations": {"patchedapproval": "true"}},
        "status": {"conditions": [condition("ApprovalPatch")]},
    });
    let patched = requests.merge("approved", "approval", &patch).await;
    assert_contains(&patched.expect("patched"), &patch);
    let update =
        json!({"status": {"conditions": [condition("ApprovalPatch"), condition("Approved")]}});
    let updated = requests.update("approved", "approval", &update).await;
    assert_contains(&updated.expect("approved"), &update);
    // What is approved stays so, and is not denied too.
    let denied =
        json!({"status": {"conditions": [condition("ApprovalPatch"), condition("Denied")]}});
    let denied = requests.update("approved", "approval", &denied).await;
    let message = refused(denied, 422, "Invalid");
    assert!(message.contains("status.conditions"), "{message}");
    // An approver cannot sign, nor a signer approve.
    let signed = json!({"status": {"certificate": certificate}});
    let unsigned = requests.merge("approved", "approval", &signed).await;
    assert_eq!(
        unsigned.expect("patched")["status"].get("certificate"),
        None
    );
    let signed_by = requests.merge("approved", "status", &signed).await;
    assert_contains(&signed_by.expect("signed"), &signed);
    requests.delete("approved").await.expect("deleted");
}
