//! Times pods on the local cluster that is up: POST answered, and Running seen by a watch, image present.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;

use crate::{percentile, report};
use integration::connection::{Connection, Target};

const PODS: &str = "/api/v1/namespaces/default/pods";
const ROUNDS: usize = 10;

/// `SKIFF_CLUSTER` (default `lab`) must be up with nginx pullable.
pub async fn measure() -> anyhow::Result<()> {
    let name = std::env::var("SKIFF_CLUSTER").unwrap_or_else(|_| "lab".to_owned());
    let pki = Path::new("/var/lib/skiff").join(&name).join("pki");
    let address =
        std::env::var("SKIFF_ADDRESS").context("SKIFF_ADDRESS is the API server's host:port")?;
    let connection = Target::new(&pki, address)?.connect().await?;
    let mut posts = Vec::new();
    let mut starts = Vec::new();
    // The first rounds pull the image onto each node.
    for round in 0..ROUNDS + 4 {
        let (post, start) = one_pod(&connection, &format!("bench-{round}")).await?;
        if round >= 4 {
            posts.push(post.as_secs_f64() * 1e3);
            starts.push(start.as_secs_f64() * 1e3);
        }
    }
    report(
        "POST of kubectl run answered, median",
        format!("{:.2} ms", percentile(&mut posts, 0.5)),
        "10 ms",
    );
    report(
        "POST to Running, image present, median",
        format!("{:.0} ms", percentile(&mut starts, 0.5)),
        "1,500 ms",
    );
    report(
        "POST to Running, image present, worst",
        format!("{:.0} ms", percentile(&mut starts, 1.0)),
        "",
    );
    Ok(())
}

async fn one_pod(connection: &Connection, name: &str) -> anyhow::Result<(Duration, Duration)> {
    let watch = format!("{PODS}?watch=1&fieldSelector=metadata.name%3D{name}&timeoutSeconds=120");
    let mut events = connection
        .open(Method::GET, &watch, &[], Bytes::new())
        .await?
        .into_body();
    let body = format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","labels":{{"run":"{name}"}}}},"spec":{{"containers":[{{"name":"{name}","image":"nginx","imagePullPolicy":"IfNotPresent","resources":{{}}}}],"restartPolicy":"Always","dnsPolicy":"ClusterFirst"}},"status":{{}}}}"#
    );
    let started = Instant::now();
    connection
        .call(
            Method::POST,
            PODS,
            &[("content-type", "application/json")],
            body.into(),
        )
        .await?;
    let posted = started.elapsed();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(r#""phase":"Running""#) {
        let frame = events
            .frame()
            .await
            .context("the watch ended before the pod ran")??;
        if let Ok(data) = frame.into_data() {
            seen.extend_from_slice(&data);
        }
    }
    let running = started.elapsed();
    let path = format!("{PODS}/{name}?gracePeriodSeconds=1");
    connection
        .call(Method::DELETE, &path, &[], Bytes::new())
        .await?;
    Ok((posted, running))
}
