//! Endpoints and EndpointSlices of Services without pods, and slices that mirror Endpoints.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::cluster::{Space, owners};

const SLICES: &str = "endpointslices?labelSelector=kubernetes.io/service-name=s";

async fn empty_service(space: &Space) -> anyhow::Result<()> {
    let service = json!({"metadata": {"name": "s"}, "spec": {"selector": {"does-not": "match"}, "ports": [{"name": "http", "port": 80}]}});
    space.post(&space.core("services"), service).await?;
    Ok(())
}

pub async fn empty_slices(space: Space) -> anyhow::Result<()> {
    empty_service(&space).await?;
    let path = space.group("discovery.k8s.io/v1", SLICES);
    let slices = space.until_count(&path, 1).await?;
    ensure!(owners(&slices[0]) == ["s"], "{}", slices[0]);
    ensure!(
        slices[0]["endpoints"].as_array().is_none_or(Vec::is_empty),
        "{}",
        slices[0]
    );
    space.delete(&space.core("services/s")).await?;
    space.until_count(&path, 0).await?;
    Ok(())
}

pub async fn empty_endpoints(space: Space) -> anyhow::Result<()> {
    empty_service(&space).await?;
    let path = space.core("endpoints/s");
    let endpoints = space
        .until("endpoints", &path, |found| found.is_some())
        .await?;
    ensure!(
        endpoints["subsets"].as_array().is_none_or(Vec::is_empty),
        "{endpoints}"
    );
    space.delete(&space.core("services/s")).await?;
    space.until_gone(&path).await
}

pub async fn mirror(space: Space) -> anyhow::Result<()> {
    space
        .post(
            &space.core("services"),
            json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "http", "port": 80}]}}),
        )
        .await?;
    let endpoints = |address: &str, port: u16| json!({"metadata": {"name": "s"}, "subsets": [{"addresses": [{"ip": address}], "ports": [{"name": "http", "port": port}]}]});
    space
        .post(&space.core("endpoints"), endpoints("10.1.2.3", 80))
        .await?;
    let path = space.group("discovery.k8s.io/v1", SLICES);
    let mirrored = |address: &'static str, port: i64| {
        move |list: Option<&Value>| {
            list.is_some_and(|list| {
                let slice = &list["items"][0];
                slice["endpoints"][0]["addresses"][0] == address
                    && slice["ports"][0]["port"] == port
            })
        }
    };
    let list = space
        .until("mirror", &path, mirrored("10.1.2.3", 80))
        .await?;
    let by = &list["items"][0]["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"];
    ensure!(by == "endpointslicemirroring-controller.k8s.io", "{by}");
    space
        .put(&space.core("endpoints/s"), endpoints("10.2.3.4", 9090))
        .await?;
    space
        .until("changed mirror", &path, mirrored("10.2.3.4", 9090))
        .await?;
    space.delete(&space.core("endpoints/s")).await?;
    space.until_count(&path, 0).await?;
    Ok(())
}
