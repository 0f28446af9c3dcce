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
}

/// Seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn max_fds() -> Option<f64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
