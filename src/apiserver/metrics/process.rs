//! The `process_*` series, read from /proc when asked for.

use super::text::{Kind, Text};

/// The kernel's clock ticks a second, fixed for user space on Linux.
const TICKS: f64 = 100.0;
const PAGE: u64 = 4096;

/// Writes what can be read; nothing is written about the rest.
pub fn write(text: &mut Text) {
    let mut sample = |name: &str, kind: Kind, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            text.family(name, kind, help);
            text.sample(name, &[], value);
        }
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command, in parentheses, may hold anything.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    let cpu = number(11)
        .zip(number(12))
        .map(|(user, system)| (user + system) / TICKS);
    sample(
        "process_cpu_seconds_total",
        Kind::Counter,
        "Total user and system CPU time spent in seconds.",
        cpu,
    );
    sample(
        "process_virtual_memory_bytes",
        Kind::Gauge,
        "Virtual memory size in bytes.",
        number(20),
    );
    sample(
        "process_resident_memory_bytes",
        Kind::Gauge,
        "Resident memory size in bytes.",
        number(21).map(|pages| pages * PAGE as f64),
    );
    sample(
        "process_start_time_seconds",
        Kind::Gauge,
        "Start time of the process since unix epoch in seconds.",
        boot_time()
            .zip(number(19))
            .map(|(boot, ticks)| boot + ticks / TICKS),
    );
    let open = std::fs::read_dir("/proc/self/fd")
        .ok()
        .map(|entries| entries.count() as f64);
    sample(
        "process_open_fds",
        Kind::Gauge,
        "Number of open file descriptors.",
        open,
    );
    sample(
        "process_max_fds",
        Kind::Gauge,
        "Maximum number of open file descriptors.",
        max_fds(),
    );
    sample(
        "process_virtual_memory_max_bytes",
        Kind::Gauge,
        "Maximum amount of virtual memory available in bytes.",
        limit("Max address space").or(Some(u64::MAX as f64)),
    );
    let network = network();
    sample(
        "process_network_receive_bytes_total",
        Kind::Counter,
        "Number of bytes received by the process over the network.",
        network.map(|(received, _)| received),
    );
    sample(
        "process_network_transmit_bytes_total",
        Kind::Counter,
        "Number of bytes sent by the process over the network.",
        network.map(|(_, sent)| sent),
    );
}

/// What went over IP in the process's network namespace, as upstream's collector reads it.
fn network() -> Option<(f64, f64)> {
    let table = std::fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let of = |wanted: &str| {
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        pairs.find(|(name, _)| *name == wanted)?.1.parse().ok()
    };
    Some((of("InOctets")?, of("OutOctets")?))
}

/// Seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn max_fds() -> Option<f64> {
    limit("Max open files")
}

/// A soft limit; `None` where there is none.
fn limit(name: &str) -> Option<f64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
