//! The program of the sandbox container, written down as machine code: a static ELF file with one segment.
//!
//! It ignores SIGCHLD, so that the kernel reaps every orphan of the pod by itself; ends with 0 at SIGTERM or SIGINT; and
//! sleeps for ever. Per architecture it is three `rt_sigaction` calls and `pause` in a loop:
//!
//! ```text
//!  rt_sigaction(SIGCHLD, {SIG_IGN});  rt_sigaction(SIGTERM, {end});  rt_sigaction(SIGINT, {end});
//!  again: pause(); goto again;
//!  end:   exit(0);
//! ```

/// Where the file is loaded.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;

#[cfg(target_arch = "x86_64")]
pub const ARCHITECTURE: &str = "amd64";
#[cfg(target_arch = "aarch64")]
pub const ARCHITECTURE: &str = "arm64";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("The sandbox program is written for x86_64 and aarch64");

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// `struct sigaction` of the kernel: handler, flags, restorer, mask.
#[cfg(target_arch = "x86_64")]
fn code_and_data(origin: u64) -> Vec<u8> {
    const RT_SIGACTION: u8 = 13;
    const PAUSE: u8 = 34;
    const EXIT_GROUP: u8 = 231;
    const SA_RESTORER: u64 = 0x0400_0000;
    // One `rt_sigaction` call is 25 bytes, then `pause` and the jump 9, then `end` 9.
    const CALL: u64 = 25;
    let end = origin + 3 * CALL + 9;
    let data = end + 9;
    let mut code = Vec::new();
    for (signal, action) in [(17_u8, 0_u64), (15, 32), (2, 32)] {
        code.extend([0xb8, RT_SIGACTION, 0, 0, 0]); // mov eax, 13
        code.extend([0xbf, signal, 0, 0, 0]); // mov edi, signal
        code.push(0xbe); // mov esi, action
        code.extend(((data + action) as u32).to_le_bytes());
        code.extend([0x31, 0xd2]); // xor edx, edx
        code.extend([0x41, 0xba, 8, 0, 0, 0]); // mov r10d, 8
        code.extend([0x0f, 0x05]); // syscall
    }
    code.extend([0xb8, PAUSE, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]); // again: mov eax, 34; syscall; jmp again
    code.extend([0x31, 0xff, 0xb8, EXIT_GROUP, 0, 0, 0, 0x0f, 0x05]); // end: xor edi, edi; mov eax, 231; syscall
    for words in [[1, 0, 0, 0], [end, SA_RESTORER, end, 0]] {
        code.extend(words.iter().flat_map(|word: &u64| word.to_le_bytes()));
    }
    code
}

#[cfg(target_arch = "aarch64")]
fn code_and_data(origin: u64) -> Vec<u8> {
    const RT_SIGACTION: u32 = 134;
    const PPOLL: u32 = 73;
    const EXIT_GROUP: u32 = 94;
    // One `rt_sigaction` call is 7 instructions; there is no `pause`, so `ppoll` on nothing sleeps: 7; `end` is 3.
    let end = origin + 4 * (3 * 7 + 7);
    let data = (end + 4 * 3).next_multiple_of(8);
    let mov = |register: u32, value: u32| 0xd280_0000 | (value & 0xffff) << 5 | register; // movz xN, value
    let mov_high = |register: u32, value: u32| 0xf2a0_0000 | (value >> 16) << 5 | register; // movk xN, value, lsl 16
    const SVC: u32 = 0xd400_0001;
    let mut code: Vec<u32> = Vec::new();
    for (signal, action) in [(17_u32, 0_u64), (15, 32), (2, 32)] {
        let action = (data + action) as u32;
        code.extend([
            mov(8, RT_SIGACTION),
            mov(0, signal),
            mov(1, action),
            mov_high(1, action),
            mov(2, 0),
            mov(3, 8),
            SVC,
        ]);
    }
    // again: ppoll(NULL, 0, NULL, NULL, 0); b again
    code.extend([
        mov(8, PPOLL),
        mov(0, 0),
        mov(1, 0),
        mov(2, 0),
        mov(3, 0),
        SVC,
        0x17ff_fffa,
    ]);
    code.extend([mov(8, EXIT_GROUP), mov(0, 0), SVC]); // end
    let mut bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize((data - origin) as usize, 0);
    for words in [[1, 0, 0, 0], [end, 0, 0, 0]] {
        bytes.extend(words.iter().flat_map(|word: &u64| word.to_le_bytes()));
    }
    bytes
}

/// The whole file.
pub fn program() -> Vec<u8> {
    let body = code_and_data(BASE + HEADERS);
    let size = HEADERS + body.len() as u64;
    let mut file = Vec::new();
    file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for half in [2, MACHINE] {
        file.extend(half.to_le_bytes()); // an executable, for this machine
    }
    file.extend(1_u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        file.extend(word.to_le_bytes()); // entry, program headers, section headers
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for word in [1_u32, 5] {
        file.extend(word.to_le_bytes()); // loaded, readable and executable
    }
    for word in [0, BASE, BASE, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.extend(body);
    file
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    fn started() -> (tempfile::TempDir, std::process::Child) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pause");
        std::fs::write(&path, program()).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("executable");
        let child = Command::new(&path).spawn().expect("the kernel takes it");
        (folder, child)
    }

    /// Until it sleeps in its last system call.
    fn wait_asleep(pid: u32) {
        let asleep = || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
            call.starts_with("34 ") || call.starts_with("73 ")
        };
        while !asleep() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn it_sleeps_and_ends_well_when_it_is_told_to() {
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let (_folder, mut child) = started();
            wait_asleep(child.id());
            assert!(child.try_wait().expect("waited").is_none());
            kill(Pid::from_raw(child.id() as i32), signal).expect("sent");
            let status = child.wait().expect("waited");
            assert_eq!(
                (status.code(), status.signal()),
                (Some(0), None),
                "{signal}"
            );
        }
    }

    #[test]
    fn it_ignores_ended_children_so_that_the_kernel_reaps_them() {
        let (_folder, mut child) = started();
        wait_asleep(child.id());
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("there");
        let ignored = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .expect("told")
            .trim();
        let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
        assert_eq!(ignored & (1 << (17 - 1)), 1 << (17 - 1));
        child.kill().expect("killed");
        child.wait().expect("waited");
    }
}
