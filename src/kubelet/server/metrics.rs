//! The kubelet's own metrics, under upstream's names.

use std::fmt::Write;

use super::Backend;
use crate::config::KUBELET_VERSION;

/// In the text format.
pub fn own(backend: &Backend) -> String {
    let pods = backend.board.pods();
    let running = |pod: &crate::k8s::Pod| {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let statuses = statuses.into_iter().flatten();
        statuses
            .filter(|s| {
                s.state
                    .as_ref()
                    .is_some_and(|state| state.running.is_some())
            })
            .count()
    };
    let containers: usize = pods.iter().map(|pod| running(pod)).sum();
    let active = pods.iter().filter(|pod| running(pod) > 0).count();
    let (cpu, memory) = process();
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, labels: &str, value: f64| {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}\n"
        );
    };
    let build = format!(
        "{{git_version=\"{KUBELET_VERSION}\",platform=\"linux/{}\"}}",
        backend.node.machine().architecture
    );
    gauge("kubernetes_build_info", "The version.", &build, 1.0);
    let node = format!("{{node=\"{}\"}}", backend.config.node_name);
    gauge(
        "kubelet_node_name",
        "The node's name. The count is always 1.",
        &node,
        1.0,
    );
    gauge(
        "kubelet_running_pods",
        "Pods that have a running pod sandbox.",
        "",
        active as f64,
    );
    let state = "{container_state=\"running\"}";
    gauge(
        "kubelet_running_containers",
        "Containers currently running.",
        state,
        containers as f64,
    );
    gauge(
        "kubelet_desired_pods",
        "Pods the kubelet is instructed to run.",
        "{static=\"\"}",
        pods.len() as f64,
    );
    gauge(
        "process_cpu_seconds_total",
        "CPU time spent in seconds.",
        "",
        cpu,
    );
    gauge(
        "process_resident_memory_bytes",
        "Resident memory size in bytes.",
        "",
        memory,
    );
    text
}

/// CPU seconds and resident bytes of this process.
fn process() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name, in parentheses, may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<f64> = fields
        .split_whitespace()
        .map(|f| f.parse().unwrap_or(0.0))
        .collect();
    let field = |at: usize| fields.get(at).copied().unwrap_or(0.0);
    // utime and stime in hundredths of a second; pages of 4 KiB.
    ((field(11) + field(12)) / 100.0, field(21) * 4096.0)
}
