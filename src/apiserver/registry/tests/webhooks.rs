//! Webhooks over TLS: they change, refuse and warn, and their failures count as their policy says.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::harness::Harness;

const MAPS: &str = "/api/v1/namespaces/test/configmaps";

/// A webhook in this process; `url` and the authority that signed it.
struct Hook {
    url: String,
    ca: String,
    _task: AbortOnDropHandle<()>,
}

/// Answers reviews: denies what is labelled so, adds data to the rest.
fn review(question: &Value) -> Value {
    let request = &question["request"];
    let denied = request["object"]["metadata"]["labels"]["deny"] == "yes";
    let patch = json!([{"op": "add", "path": "/data", "value": {"by": request["userInfo"]["username"], "version": request["kind"]["version"]}}]);
    // A binding tells its pod what it was asked about.
    let patch = match request["subResource"].as_str() {
        Some(sub) => {
            let label = format!("{}.{sub}", request["kind"]["kind"].as_str().unwrap_or(""));
            json!([{"op": "add", "path": "/metadata/labels", "value": {"asked": label}}])
        }
        None => patch,
    };
    let mut response = json!({"uid": request["uid"], "allowed": !denied, "warnings": ["seen"]});
    if denied {
        response["status"] = json!({"message": "labelled so", "code": 403, "reason": "Forbidden"});
    } else if request["operation"] == "CREATE" {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(patch.to_string()).into();
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
}

async fn hook() -> Hook {
    let made =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a configuration");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let service = service_fn(
                |request: hyper::Request<hyper::body::Incoming>| async move {
                    let body = request.into_body().collect().await?.to_bytes();
                    let question: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let answer = review(&question).to_string();
                    Ok::<_, hyper::Error>(hyper::Response::new(Full::<Bytes>::from(answer)))
                },
            );
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    });
    Hook {
        url: format!("https://127.0.0.1:{port}/review"),
        ca: STANDARD.encode(made.cert.pem()),
        _task: AbortOnDropHandle::new(task),
    }
}

fn configuration(kind: &str, hook: &Hook) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "c"}, "webhooks": [{
        "name": "a.example.com", "clientConfig": {"url": hook.url, "caBundle": hook.ca}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "objectSelector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]},
        "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps", "pods/binding"]}]}]})
}

/// Creates maps until the hook is seen to act on one.
async fn until_seen(server: &Harness) -> super::harness::Answer {
    for number in 0..1000 {
        let map = json!({"metadata": {"name": format!("probe-{number}")}});
        let answer = server.post(MAPS, &map).await;
        if answer.code != 201 || !answer.warnings().is_empty() {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the hook was never called");
}

#[tokio::test]
async fn a_mutating_hook_changes_and_refuses() {
    let hook = hook().await;
    let server = Harness::start().await;
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let made = configuration("MutatingWebhookConfiguration", &hook);
    server.post(path, &made).await.expect(201);
    let answer = until_seen(&server).await;
    assert!(answer.warnings()[0].contains("seen"));
    let changed = answer.expect(201);
    assert_eq!(changed["data"], json!({"by": "admin", "version": "v1"}));
    let map = json!({"metadata": {"name": "no", "labels": {"deny": "yes"}}});
    let message = server.post(MAPS, &map).await.message(403);
    assert_eq!(
        message,
        "admission webhook \"a.example.com\" denied the request: labelled so"
    );
    let map = json!({"metadata": {"name": "skipped", "labels": {"deny": "yes", "skip": "x"}}});
    let kept = server.post(MAPS, &map).await.expect(201);
    assert!(kept.get("data").is_none());
    let pods = "/api/v1/namespaces/test/pods";
    let containers = json!([{"name": "c", "image": "i"}]);
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": containers}});
    server.post(pods, &pod).await.expect(201);
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}});
    let bound = server.post(&format!("{pods}/a/binding"), &binding).await;
    bound.expect(201);
    let pod = server.get(&format!("{pods}/a")).await.expect(200);
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"asked": "Binding.binding"})
    );
    assert_eq!(pod["spec"]["nodeName"], "n");
}

#[tokio::test]
async fn a_hook_that_cannot_be_called_counts_as_its_policy_says() {
    let hook = hook().await;
    let server = Harness::start().await;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let mut made = configuration("ValidatingWebhookConfiguration", &hook);
    made["webhooks"][0]["clientConfig"] = json!({"service": {"namespace": "test", "name": "none"}});
    server.post(path, &made).await.expect(201);
    let message = until_seen(&server).await.message(500);
    assert_eq!(
        message,
        "Internal error occurred: failed calling webhook \"a.example.com\": service \"none\" not found"
    );
    made["webhooks"][0]["failurePolicy"] = "Ignore".into();
    let stored = server.get(&format!("{path}/c")).await.expect(200);
    made["metadata"] = stored["metadata"].clone();
    server.put(&format!("{path}/c"), &made).await.expect(200);
    for number in 0..1000 {
        let map = json!({"metadata": {"name": format!("open-{number}")}});
        if server.post(MAPS, &map).await.code == 201 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the hook's failure was never ignored");
}
