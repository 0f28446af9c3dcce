//! Requests from a kubelet's to a signed certificate.

use std::{sync::Arc, time::Duration};

use api::r::CERTIFICATESIGNINGREQUESTS;
use base64::Engine;
use client::fake::Server;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{approve, issue::Issuer, request::Request, sign, *};
use crate::{Context, ControllersConfig};

fn authority() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, "kubernetes");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_after = apimachinery::time::now() + Duration::from_secs(3600 * 24 * 3650);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

/// A request for `CN=name, O=organization` in base64.
fn request(name: &str, organization: &str, names: &[&str]) -> String {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, name);
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    base64::engine::general_purpose::STANDARD.encode(pem)
}

fn csr(request: String, signer: &str, usages: &[&str]) -> Value {
    json!({
        "metadata": {"name": "csr-1"},
        "spec": {"request": request, "signerName": signer, "usages": usages, "username": "system:node:n1"},
    })
}

const CLIENT_USAGES: [&str; 2] = ["digital signature", "client auth"];

fn parsed(value: Value) -> Csr {
    serde_json::from_value(value).unwrap()
}

#[test]
fn kubelets_requests_are_told_from_others() {
    let node = request("system:node:n1", "system:nodes", &[]);
    let kinds = |value: Value| approve::kinds_of(&parsed(value));
    assert_eq!(
        kinds(csr(node.clone(), KUBELET_CLIENT, &CLIENT_USAGES)),
        ["selfnodeclient", "nodeclient"]
    );
    let mut bootstrapping = csr(node.clone(), KUBELET_CLIENT, &CLIENT_USAGES);
    bootstrapping["spec"]["username"] = json!("system:bootstrap:abcdef");
    assert_eq!(kinds(bootstrapping), ["nodeclient"]);
    assert!(kinds(csr(node.clone(), CLIENT, &CLIENT_USAGES)).is_empty());
    assert!(kinds(csr(node, KUBELET_CLIENT, &["server auth"])).is_empty());
    let named = request("system:node:n1", "system:nodes", &["n1.local"]);
    assert!(kinds(csr(named, KUBELET_CLIENT, &CLIENT_USAGES)).is_empty());
    let other = request("system:node:n1", "system:masters", &[]);
    assert!(kinds(csr(other, KUBELET_CLIENT, &CLIENT_USAGES)).is_empty());
    let serving =
        Request::parse(&request("system:node:n1", "system:nodes", &["10.0.0.1"])).unwrap();
    let usages = ["digital signature", "server auth", "key encipherment"].map(String::from);
    assert_eq!(serving.kubelet_serving(&usages), Ok(()));
}

#[test]
fn a_request_with_a_bad_signature_is_refused() {
    let good = request("a", "b", &[]);
    let pem = base64::engine::general_purpose::STANDARD
        .decode(&good)
        .unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let mut der = pem.contents;
    let last = der.len() - 1;
    der[last] ^= 1;
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    let bad =
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n");
    let bad = base64::engine::general_purpose::STANDARD.encode(bad);
    assert!(Request::parse(&good).is_ok());
    assert!(Request::parse(&bad).is_err());
    assert!(Request::parse("bm90IHBlbQ==").is_err());
}

fn context(server: &Server) -> Context {
    let config = Arc::new(ControllersConfig::default());
    Context::new(server.client(), config, CancellationToken::new())
}

#[tokio::test]
async fn a_certificate_says_what_was_asked_and_its_authority_vouches_for_it() {
    let (certificate, key) = authority();
    let issuer = Issuer::new(&certificate, &key).unwrap();
    let serving = request("system:node:n1", "system:nodes", &["n1", "10.0.0.1"]);
    let mut value = csr(
        serving,
        KUBELET_SERVING,
        &["key encipherment", "digital signature", "server auth"],
    );
    value["spec"]["expirationSeconds"] = json!(3600);
    let server = Server::default();
    let status = sign::plan_of(&issuer, &parsed(value), &context(&server)).unwrap();
    let pem = base64::engine::general_purpose::STANDARD
        .decode(&status.certificate)
        .unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let issued = pem.parse_x509().unwrap();
    let (_, authority) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).unwrap();
    let authority = authority.parse_x509().unwrap();
    issued
        .verify_signature(Some(authority.public_key()))
        .unwrap();
    assert_eq!(issued.issuer(), authority.subject());
    assert_eq!(
        issued.subject().to_string(),
        "O=system:nodes, CN=system:node:n1"
    );
    let validity = issued.validity();
    let seconds = validity.not_after.timestamp() - validity.not_before.timestamp();
    assert_eq!(seconds, 3600 + 300);
    let names = issued.subject_alternative_name().unwrap().unwrap();
    assert_eq!(names.value.general_names.len(), 2);
    let usage = issued.extended_key_usage().unwrap().unwrap();
    assert!(usage.value.server_auth && !usage.value.client_auth);
    let usage = issued.key_usage().unwrap().unwrap();
    assert!(
        usage.value.digital_signature()
            && usage.value.key_encipherment()
            && !usage.value.key_cert_sign()
    );
    assert!(!issued.is_ca());
}

#[tokio::test]
async fn a_signer_refuses_what_is_not_its_own() {
    let (certificate, key) = authority();
    let issuer = Issuer::new(&certificate, &key).unwrap();
    let server = Server::default();
    let wrong = csr(request("jane", "dev", &[]), KUBELET_CLIENT, &CLIENT_USAGES);
    let status = sign::plan_of(&issuer, &parsed(wrong), &context(&server)).unwrap();
    assert_eq!(status.conditions[0].kind, "Failed");
    assert_eq!(status.conditions[0].reason, "SignerValidationFailure");
    let jane = csr(request("jane", "dev", &[]), CLIENT, &CLIENT_USAGES);
    let status = sign::plan_of(&issuer, &parsed(jane), &context(&server)).unwrap();
    assert!(!status.certificate.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_approved_request_is_signed_and_a_pending_one_is_not() {
    let server = Server::default();
    let config = ControllersConfig {
        controllers: vec!["certificatesigningrequest-signing-controller".into()],
        leader_elect: false,
        cluster_signing: Some(authority()),
        ..ControllersConfig::default()
    };
    let shutdown = CancellationToken::new();
    let _guard = shutdown.clone().drop_guard();
    tokio::spawn(crate::run(server.client(), config, shutdown));
    let resource = &CERTIFICATESIGNINGREQUESTS;
    let mut value = csr(request("jane", "dev", &[]), CLIENT, &CLIENT_USAGES);
    server.put(resource, value.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(server.get(resource, "csr-1").unwrap()["status"].is_null());
    value["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    server.put(resource, value);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stored = server.get(resource, "csr-1").unwrap();
    assert!(stored["status"]["certificate"].is_string());
    assert_eq!(stored["status"]["conditions"][0]["type"], "Approved");
}
