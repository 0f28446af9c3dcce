//! Paths, methods, headers, upgrades and the end of a server.

use std::time::Duration;

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Harness;

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn requests_are_answered_over_http2_and_http1() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let answer = client.get(&format!("{PODS}/x")).await;
    assert_eq!((answer.code, answer.text().as_str()), (200, "admin"));
    assert_eq!(answer.header("cache-control"), "no-cache, private");
    assert_eq!(answer.header("audit-id").len(), 36);

    let mut stream = harness.connect(Some(&harness.admin()), "http/1.1").await;
    stream
        .write_all(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    assert!(text.contains("\"gitVersion\": \"v1.37.0\""), "{text}");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused_as_upstream_does() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    for path in [
        "/foo",
        "/logs",
        "/apis/nope.example.com/v1/foos",
        "/api/v2/pods",
        "/apis/nope",
    ] {
        let answer = client.get(path).await;
        assert_eq!(
            (answer.code, answer.text().as_str()),
            (404, "404 page not found\n"),
            "{path}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    let message = "the server does not allow this method on the requested resource";
    for (method, path) in [
        ("POST", "/api/v1"),
        ("DELETE", "/version"),
        ("OPTIONS", PODS),
    ] {
        let answer = client.send(method, path, &[], "").await;
        answer.is_status(405, "MethodNotAllowed", message);
    }
}

#[tokio::test]
async fn routes_are_for_get_and_handlers_for_any_method() {
    let harness = Harness::real().await;
    let client = harness.client(Some(&harness.admin())).await;
    for (method, path, code) in [
        ("HEAD", "/api/v1/namespaces", 405),
        ("HEAD", "/api/v1/namespaces/default", 405),
        ("HEAD", "/api/v1/nosuch", 404),
        ("HEAD", "/apis/apps/v1", 405),
        ("HEAD", "/version", 405),
        ("HEAD", "/api", 405),
        ("HEAD", "/apis", 200),
        ("POST", "/apis/apps", 200),
        ("HEAD", "/healthz", 200),
        ("POST", "/livez/etcd", 200),
        ("OPTIONS", "/api/v1/namespaces", 405),
        // Passed on, had the pod been there.
        ("OPTIONS", "/api/v1/namespaces/default/pods/x/proxy/", 404),
    ] {
        let answer = client.send(method, path, &[], "").await;
        assert_eq!(answer.code, code, "{method} {path}: {}", answer.text());
        if method == "HEAD" {
            assert!(answer.body.is_empty(), "{path}");
            assert_ne!(answer.header("content-length"), "", "{path}");
        }
    }
}

#[tokio::test]
async fn a_server_tells_what_it_is_and_how_its_checks_went() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let text = client.get("/statusz").await.text();
    assert!(text.contains("\nBinary version: 1.37.0\n"), "{text}");
    let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
    let flags = client
        .send("GET", "/flagz", &[("accept", accept)], "")
        .await;
    assert_eq!(flags.json()["kind"], "Flagz");
    assert_eq!(flags.json()["flags"]["event-ttl"], "1h0m0s");
    let refused = client.send("GET", "/flagz", &[("accept", "application/json")], "");
    assert_eq!(refused.await.code, 406);
    client.get("/livez").await;
    let text = client.get("/metrics/slis").await.text();
    let line = r#"kubernetes_healthchecks_total{name="etcd",status="success",type="livez"} 1"#;
    assert!(text.contains(line), "{text}");
    let text = client.get("/metrics").await.text();
    assert!(text.contains("git_version=\"v1.37.0\""), "{text}");
}

#[tokio::test]
async fn discovery_is_served_in_both_forms_and_not_twice() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    assert_eq!(client.get("/api").await.json()["versions"][0], "v1");
    assert_eq!(client.get("/apis").await.json()["kind"], "APIGroupList");
    assert_eq!(
        client.get("/apis/apps/v1/").await.json()["groupVersion"],
        "apps/v1"
    );
    let accept =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let answer = client.send("GET", "/apis", &[("accept", accept)], "").await;
    assert_eq!(answer.json()["apiVersion"], "apidiscovery.k8s.io/v2");
    assert!(
        answer
            .header("content-type")
            .contains("as=APIGroupDiscoveryList")
    );
    let etag = answer.header("etag").to_owned();
    let headers = [("accept", accept), ("if-none-match", etag.as_str())];
    let again = client.send("GET", "/apis", &headers, "").await;
    assert_eq!((again.code, again.body.len()), (304, 0));
}

#[tokio::test]
async fn health_checks_answer_one_by_one_and_together() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    for path in [
        "/healthz",
        "/livez",
        "/readyz",
        "/livez/etcd",
        "/readyz/informer-sync",
    ] {
        assert_eq!(client.get(path).await.text(), "ok", "{path}");
    }
    let verbose = client
        .get("/readyz?verbose&exclude=etcd&exclude=nope")
        .await
        .text();
    assert!(
        verbose.starts_with("[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\n"),
        "{verbose}"
    );
    assert!(
        verbose.contains("warn: some health checks cannot be excluded: no matches for \"nope\"\n")
    );
    assert!(verbose.ends_with("readyz check passed"), "{verbose}");
    assert_eq!(client.get("/livez/nope").await.code, 404);
}

#[tokio::test]
async fn metrics_count_requests_by_resource_but_not_what_clients_make_up() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    client.get(&format!("{PODS}/x")).await;
    client.get("/api/v1/madeup").await;
    let text = client.get("/metrics").await.text();
    let counted = "apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\"} 1";
    assert!(text.contains(counted), "{text}");
    assert!(!text.contains("madeup"));
    assert!(text.contains("process_resident_memory_bytes "));
}

#[tokio::test]
async fn the_index_and_the_issuer_are_documents() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let index = client.get("/").await.json();
    let paths: Vec<_> = index["paths"].as_array().expect("a list").iter().collect();
    assert!(paths.iter().any(|path| *path == "/apis/apps/v1"));
    let issuer = client.get("/.well-known/openid-configuration").await.json();
    assert_eq!(issuer["id_token_signing_alg_values_supported"][0], "ES256");
    let keys = client.get("/openid/v1/jwks").await;
    assert_eq!(keys.header("content-type"), "application/jwk-set+json");
    assert_eq!(keys.json()["keys"][0]["kty"], "EC");
}

#[tokio::test]
async fn warnings_and_compression_are_added_to_responses() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let answer = client.get(&format!("{PODS}/warn")).await;
    assert_eq!(answer.header("warning"), "299 - \"careful\"");
    let answer = client
        .send(
            "GET",
            &format!("{PODS}/big"),
            &[("accept-encoding", "gzip")],
            "",
        )
        .await;
    assert_eq!(answer.header("content-encoding"), "gzip");
    assert!(answer.body.len() < 100_000);
    assert_eq!(
        client.get(&format!("{PODS}/big")).await.body.len(),
        1_000_000
    );
}

#[tokio::test]
async fn connections_can_be_upgraded_over_http1() {
    let harness = Harness::start().await;
    let mut stream = harness.connect(Some(&harness.admin()), "http/1.1").await;
    let request = format!(
        "POST {PODS}/upgrade/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a byte"));
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    stream.write_all(b"ping").await.expect("sent");
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).await.expect("an echo");
    assert_eq!(&echo, b"ping");
}

#[tokio::test]
async fn a_draining_server_ends_watches_and_then_itself() {
    let harness = Harness::start().await;
    let client = harness.client(Some(&harness.admin())).await;
    let watch = client
        .open("GET", &format!("{PODS}?watch=1"), &[], "")
        .await;
    let mut body = watch.into_body();
    let first = body.frame().await.expect("a frame").expect("no error");
    assert_eq!(first.into_data().expect("data"), "first");
    let server = harness.server.clone();
    let ending = tokio::spawn(async move { server.shutdown().await });
    let rest = body.collect().await.expect("a clean end").to_bytes();
    assert_eq!(rest, "last");
    tokio::time::timeout(Duration::from_secs(5), ending)
        .await
        .expect("in time")
        .expect("no panic");
}
