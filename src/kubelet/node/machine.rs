//! What the machine is and has: read from /proc, /sys and the file system.
//! Everything that is read more than once is a few small files.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use nix::sys::statvfs::statvfs;

/// Facts that do not change while the kubelet runs.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// CPUs that are online.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of swap.
    pub swap: u64,
    /// Page sizes as Kubernetes writes them (`2Mi`) and bytes reserved of each.
    pub hugepages: Vec<(String, u64)>,
    /// /etc/machine-id.
    pub machine_id: String,
    /// The firmware's uuid.
    pub system_uuid: String,
    /// A uuid of this boot.
    pub boot_id: String,
    /// uname -r.
    pub kernel_version: String,
    /// PRETTY_NAME of /etc/os-release.
    pub os_image: String,
    /// Go's name of the architecture: `amd64`.
    pub architecture: String,
}

/// Room in a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes that are free for anyone.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

impl Machine {
    /// Reads the facts; what cannot be read is empty or zero.
    pub fn read() -> Self {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let machine_id = first_line("/etc/machine-id");
        let system_uuid = first_line("/sys/class/dmi/id/product_uuid");
        Self {
            cpus: online_cpus(&first_line("/sys/devices/system/cpu/online")),
            memory: meminfo(&memory, "MemTotal"),
            swap: meminfo(&memory, "SwapTotal"),
            hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
            system_uuid: if system_uuid.is_empty() {
                machine_id.clone()
            } else {
                system_uuid
            },
            machine_id,
            boot_id: first_line("/proc/sys/kernel/random/boot_id"),
            kernel_version: first_line("/proc/sys/kernel/osrelease"),
            os_image: os_image(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
            architecture: go_architecture(std::env::consts::ARCH).to_owned(),
        }
    }
}

/// Bytes of memory that could be given to processes now.
pub fn available_memory() -> u64 {
    meminfo(
        &fs::read_to_string("/proc/meminfo").unwrap_or_default(),
        "MemAvailable",
    )
}

/// Room in the file system that holds `path`, which may not exist yet.
pub fn disk(path: &Path) -> Disk {
    let existing = path.ancestors().find(|path| path.exists());
    let Some(Ok(stat)) = existing.map(statvfs) else {
        return Disk::default();
    };
    let unit = stat.fragment_size();
    Disk {
        capacity: stat.blocks() * unit,
        available: stat.blocks_available() * unit,
        inodes: stat.files(),
        inodes_free: stat.files_available(),
    }
}

/// Process ids in use and the most there can be.
pub fn pids() -> (u64, u64) {
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
    let limit = number(&first_line("/proc/sys/kernel/pid_max"));
    // The fourth field of loadavg is running/existing.
    let loadavg = first_line("/proc/loadavg");
    let existing = loadavg
        .split(' ')
        .nth(3)
        .and_then(|field| field.split_once('/'));
    (existing.map_or(0, |(_, existing)| number(existing)), limit)
}

/// The address a packet to the world would leave from. Nothing is sent.
pub fn primary_address() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn meminfo(text: &str, field: &str) -> u64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// Counts a list such as `0-3,8`.
fn online_cpus(list: &str) -> u64 {
    let count = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    });
    count.sum::<u64>().max(1)
}

fn hugepages(folder: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut pages: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kibibytes: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let number = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            let number: u64 = number.trim().parse().ok()?;
            let size = match kibibytes {
                size if size % (1 << 20) == 0 => format!("{}Gi", size >> 20),
                size if size % (1 << 10) == 0 => format!("{}Mi", size >> 10),
                size => format!("{size}Ki"),
            };
            Some((size, number * kibibytes * 1024))
        })
        .collect();
    pages.sort();
    pages
}

fn os_image(os_release: &str) -> String {
    let line = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.unwrap_or("Linux").trim_matches('"').to_owned()
}

fn go_architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn online_cpus_are_counted_over_ranges() {
        assert_eq!(
            (online_cpus("0-3,8"), online_cpus("0"), online_cpus("")),
            (5, 1, 1)
        );
    }

    #[test]
    fn memory_fields_are_read_in_bytes() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\n";
        assert_eq!(
            (meminfo(text, "MemTotal"), meminfo(text, "SwapTotal")),
            (16384 * 1024, 0)
        );
    }

    #[test]
    fn this_machine_has_what_every_machine_has() {
        let machine = Machine::read();
        assert!(machine.cpus >= 1 && machine.memory > 0 && !machine.kernel_version.is_empty());
        assert!(
            disk(Path::new("/no/such/folder")).capacity > 0,
            "the root is used instead"
        );
    }
}
