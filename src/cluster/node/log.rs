//! A service's log: what it prints, in one file of bounded size and the one before it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// A log larger than this becomes `NAME.log.1`, replacing the one before.
const MAX_SIZE: u64 = 10 << 20;

/// A file that starts anew when it has grown too large.
pub struct BoundedLog {
    path: PathBuf,
    file: File,
    size: u64,
}

impl BoundedLog {
    pub fn open(path: PathBuf) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { path, file, size })
    }

    pub fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.size > 0 && self.size + bytes.len() as u64 > MAX_SIZE {
            std::fs::rename(&self.path, previous(&self.path))?;
            self.file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(())
    }
}

fn previous(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".1");
    name.into()
}

/// Copies a service's output into its log until every process that holds the pipe has ended.
pub async fn pump(reader: OwnedFd, mut log: BoundedLog) -> std::io::Result<()> {
    let mut reader = pipe::Receiver::from_owned_fd(reader)?;
    let mut buffer = vec![0; 16 << 10];
    loop {
        match reader.read(&mut buffer).await? {
            0 => return Ok(()),
            // A full disk must not stop the service: its output is lost, as it would be anyway.
            length => drop(log.append(&buffer[..length])),
        }
    }
}

/// The last lines of a log, for a message about its service's end.
pub fn tail(path: &Path, lines: usize) -> Vec<String> {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_never_grows_past_its_bound_and_one_older_file_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubelet.log");
        let mut log = BoundedLog::open(path.clone()).expect("opened");
        let block = vec![b'x'; 1 << 20];
        for _ in 0..25 {
            log.append(&block).expect("written");
        }
        let size = |path: &Path| std::fs::metadata(path).expect("there").len();
        assert_eq!(size(&path), 5 << 20);
        assert_eq!(size(&previous(&path)), 10 << 20);
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.log");
        std::fs::write(&path, "one\ntwo\nthree\n").expect("written");
        assert_eq!(tail(&path, 2), ["two", "three"]);
        assert!(tail(&folder.path().join("none"), 2).is_empty());
    }
}
