//! Use of resources by node and pods: `/stats/summary` and `/metrics/resource`,
//! from the runtime's statistics.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use serde_json::{Value, json};

use super::Backend;
use crate::cri::{self, labels, v1};
use crate::node::machine;
use crate::pod::status::time;

struct PodStats {
    namespace: String,
    name: String,
    uid: String,
    containers: Vec<v1::ContainerStats>,
}

async fn collect(backend: &Backend) -> cri::Result<Vec<PodStats>> {
    let all = backend.runtime.container_stats(HashMap::new()).await?;
    let mut pods: BTreeMap<String, PodStats> = BTreeMap::new();
    for stats in all {
        let labels = stats.attributes.clone().unwrap_or_default().labels;
        let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
        let uid = label(labels::POD_UID);
        let pod = pods.entry(uid.clone()).or_insert_with(|| PodStats {
            namespace: label(labels::POD_NAMESPACE),
            name: label(labels::POD_NAME),
            uid,
            containers: Vec::new(),
        });
        pod.containers.push(stats);
    }
    Ok(pods.into_values().collect())
}

fn value(value: Option<&v1::UInt64Value>) -> u64 {
    value.map_or(0, |value| value.value)
}

fn cpu(stats: &v1::ContainerStats) -> u64 {
    value(
        stats
            .cpu
            .as_ref()
            .and_then(|cpu| cpu.usage_core_nano_seconds.as_ref()),
    )
}

fn memory(stats: &v1::ContainerStats) -> u64 {
    value(
        stats
            .memory
            .as_ref()
            .and_then(|memory| memory.working_set_bytes.as_ref()),
    )
}

/// The summary API's document.
pub async fn summary(backend: &Backend) -> cri::Result<Value> {
    let pods = collect(backend).await?;
    let now = crate::clock::now_time();
    let disk = machine::disk(&backend.config.root_dir);
    let total = backend.node.machine().memory;
    let available = machine::available_memory();
    let pods = pods.iter().map(|pod| {
        let containers: Vec<_> = pod.containers.iter().map(container).collect();
        let sum = |of: fn(&v1::ContainerStats) -> u64| pod.containers.iter().map(of).sum::<u64>();
        json!({
            "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "startTime": now,
            "containers": containers,
            "cpu": {"time": now, "usageCoreNanoSeconds": sum(cpu)},
            "memory": {"time": now, "workingSetBytes": sum(memory)},
        })
    });
    let pods: Vec<_> = pods.collect();
    Ok(json!({
        "node": {
            "nodeName": backend.config.node_name,
            "startTime": now,
            "cpu": {"time": now, "usageCoreNanoSeconds": node_cpu_nanos()},
            "memory": {
                "time": now,
                "availableBytes": available,
                "workingSetBytes": total.saturating_sub(available),
            },
            "fs": {
                "time": now,
                "availableBytes": disk.available,
                "capacityBytes": disk.capacity,
                "usedBytes": disk.capacity.saturating_sub(disk.available),
                "inodes": disk.inodes,
                "inodesFree": disk.inodes_free,
            },
        },
        "pods": pods,
    }))
}

fn container(stats: &v1::ContainerStats) -> Value {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let layer = stats.writable_layer.as_ref();
    let at = stats.cpu.as_ref().map_or(0, |cpu| cpu.timestamp);
    json!({
        "name": attributes.metadata.unwrap_or_default().name,
        "cpu": {"time": time(at), "usageCoreNanoSeconds": cpu(stats)},
        "memory": {"time": time(at), "workingSetBytes": memory(stats)},
        "rootfs": {
            "time": time(at),
            "usedBytes": value(layer.and_then(|layer| layer.used_bytes.as_ref())),
            "inodesUsed": value(layer.and_then(|layer| layer.inodes_used.as_ref())),
        },
    })
}

/// What metrics-server reads.
pub async fn resource_metrics(backend: &Backend) -> cri::Result<String> {
    let pods = collect(backend).await?;
    let total = backend.node.machine().memory;
    let mut cpu_lines = String::new();
    let mut memory_lines = String::new();
    let mut pod_cpu = String::new();
    let mut pod_memory = String::new();
    for pod in &pods {
        let of_pod = format!("namespace=\"{}\",pod=\"{}\"", pod.namespace, pod.name);
        for stats in &pod.containers {
            let name = stats
                .attributes
                .clone()
                .unwrap_or_default()
                .metadata
                .unwrap_or_default()
                .name;
            let labels = format!("{{container=\"{name}\",{of_pod}}}");
            // Writing to a String cannot fail.
            let _ = writeln!(
                cpu_lines,
                "container_cpu_usage_seconds_total{labels} {}",
                cpu(stats) as f64 / 1e9
            );
            let _ = writeln!(
                memory_lines,
                "container_memory_working_set_bytes{labels} {}",
                memory(stats)
            );
        }
        let sum = |of: fn(&v1::ContainerStats) -> u64| pod.containers.iter().map(of).sum::<u64>();
        let _ = writeln!(
            pod_cpu,
            "pod_cpu_usage_seconds_total{{{of_pod}}} {}",
            sum(cpu) as f64 / 1e9
        );
        let _ = writeln!(
            pod_memory,
            "pod_memory_working_set_bytes{{{of_pod}}} {}",
            sum(memory)
        );
    }
    let node_memory = total.saturating_sub(machine::available_memory());
    Ok(format!(
        "# TYPE container_cpu_usage_seconds_total counter\n{cpu_lines}\
         # TYPE container_memory_working_set_bytes gauge\n{memory_lines}\
         # TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total {}\n\
         # TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes {node_memory}\n\
         # TYPE pod_cpu_usage_seconds_total counter\n{pod_cpu}\
         # TYPE pod_memory_working_set_bytes gauge\n{pod_memory}\
         # TYPE scrape_error gauge\nscrape_error 0\n",
        node_cpu_nanos() as f64 / 1e9
    ))
}

/// CPU time that was not idle since the machine started.
fn node_cpu_nanos() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|f| f.parse().ok())
        .collect();
    // user nice system, then idle iowait, then irq softirq steal; hundredths of a second.
    let busy = fields
        .iter()
        .enumerate()
        .filter(|(at, _)| matches!(at, 0..=2 | 5..=7));
    busy.map(|(_, value)| value).sum::<u64>() * 10_000_000
}
