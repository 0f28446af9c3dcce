//! Processes told apart by number and start time, so that a number used again is never mistaken for ours.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Between two looks at whether a process that is not our child has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// CPU time a component asks to be given at once: the least that the kernel grants.
const SLICE: Duration = Duration::from_micros(100);

/// Asks the kernel for short slices of CPU time, for this thread and those it starts from now on.
///
/// A component answers: it wakes, works for microseconds and waits again, and one request passes through several
/// threads. The shorter the slice a thread asks for, the sooner it runs once it woke (EEVDF, Linux 6.12). Its share of
/// a busy machine stays the same. Older kernels ignore it.
pub fn use_short_slices() -> Result<(), Errno> {
    schedule(nice().unwrap_or(0))
}

/// Has this thread yield to those of the process that do not: its niceness grows by `more`, up to 19.
pub fn yield_by(more: i32) -> Result<(), Errno> {
    schedule(nice().unwrap_or(0).saturating_add(more).min(19))
}

/// Sets this thread's niceness and slice; the kernel's call takes both.
fn schedule(nice: i32) -> Result<(), Errno> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SLICE.as_nanos() as u64,
        sched_deadline: 0,
        sched_period: 0,
    };
    #[expect(unsafe_code, reason = "no crate wraps sched_setattr")]
    // SAFETY: the kernel only reads `attributes`, whose size it is told.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    Errno::result(result).map(drop)
}

/// One process of this boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// In clock ticks since boot, field 22 of `/proc/PID/stat`.
    pub started: u64,
    /// `/proc/sys/kernel/random/boot_id` when it was started.
    pub boot: String,
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self {
            pid,
            started: start_time(pid)?,
            boot: boot_id(),
        })
    }

    /// Whether it still runs; one that is ending does not, nor does a zombie.
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.started)
    }

    /// Sends a signal; a process that has ended is no error.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Err(Errno::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// Waits until it has ended; false when it still runs after `patience`.
    pub fn wait_gone(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        true
    }
}

/// This boot's identity.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_string()
}

fn start_time(pid: i32) -> Option<u64> {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    parse_start_time(&stat)
}

/// This thread's niceness, field 19 of its `stat`.
pub fn nice() -> Option<i32> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    fields.nth(16)?.parse().ok()
}

/// `PF_EXITING` of Linux's include/linux/sched.h.
const EXITING: u32 = 0x4;

/// `None` for a zombie, which only waits for its parent, and for one that is ending: the first process of a node does
/// so until all others of the node are gone.
fn parse_start_time(stat: &str) -> Option<u64> {
    // The second field is the name in parentheses and may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    let flags: u32 = fields.nth(5)?.parse().ok()?;
    if flags & EXITING != 0 {
        return None;
    }
    fields.nth(12)?.parse().ok()
}

/// The program's name as `ps` and `ss` show it (at most 15 bytes).
pub fn set_name(name: &str) {
    // Nothing depends on it, so a kernel that refuses is no error.
    let _ = std::fs::write("/proc/self/comm", name);
}

/// This machine's, or this node's, name.
pub fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_start_time() {
        let stat = "17 (a) b) S 1 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 99";
        assert_eq!(parse_start_time(stat), Some(4242));
        assert_eq!(parse_start_time(&stat.replace(" S ", " Z ")), None);
    }

    #[test]
    fn this_process_is_alive_and_another_start_time_is_not() {
        let own = Process::of(std::process::id() as i32).expect("it runs");
        assert!(own.is_alive());
        assert!(
            !Process {
                started: own.started + 1,
                ..own.clone()
            }
            .is_alive()
        );
        assert!(
            !Process {
                boot: "other".into(),
                ..own
            }
            .is_alive()
        );
    }

    #[test]
    fn a_process_that_is_ending_does_not_run() {
        let stat = |state: &str, flags: u32| {
            format!("7 (skiff (node)) {state} 1 7 7 0 -1 {flags} 9 9 9 9 9 9 9 9 20 0 3 0 4711 1 1")
        };
        assert_eq!(parse_start_time(&stat("S", 0x0040_0100)), Some(4711));
        assert_eq!(parse_start_time(&stat("S", 0x0040_0104)), None);
        assert_eq!(parse_start_time(&stat("Z", 0x0040_0100)), None);
        assert_eq!(parse_start_time(""), None);
    }
}
