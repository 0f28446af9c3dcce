//! `hack/bench`: measures skiff against its budgets and prints figures; it never judges.
//!
//! Server CPU and memory are read from `/proc` of the server's process, so that the load's own cost and most of a
//! noisy machine's does not count. `start` times a `skiff server`, `api` drives 10,000 pods, `cluster` times pods on a running local cluster, `writes` drives the embedded store alone,
//! `schedule` times pods on simulated nodes, `workloads` Deployments and namespaces.

mod api;
mod cluster;
mod schedule;
mod start;
mod workloads;
mod writes;

use anyhow::bail;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    integration::process::install_crypto();
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    match what.as_str() {
        "start" => start::measure_start().await,
        "idle" => start::measure_idle().await,
        "api" => api::measure(&rest).await,
        "writes" => writes::measure().await,
        "cluster" => cluster::measure().await,
        "schedule" => schedule::measure(&rest).await,
        "workloads" => workloads::measure(&rest).await,
        other => bail!("bench start|idle|api|writes|cluster|schedule|workloads, not {other:?}"),
    }
}

/// One line of a report: what, the figure, and the budget it is held against.
pub fn report(what: &str, figure: String, budget: &str) {
    println!("{what:<44} {figure:>28}   {budget}");
}

/// The value at `fraction` of sorted `samples`.
pub fn percentile(samples: &mut [f64], fraction: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    let index = (last as f64 * fraction).round() as usize;
    samples.get(index).copied().unwrap_or(f64::NAN)
}
