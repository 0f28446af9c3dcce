//! Rotating container logs: when a log is too big it is renamed, the runtime
//! opens a new one, and of the old ones only so many are kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::k8s::Timestamp;

/// The log and its rotated files, the oldest first.
pub fn files(log: &Path) -> Vec<PathBuf> {
    let mut rotated = rotated(log);
    rotated.push(log.to_owned());
    rotated
}

/// Rotated files by age: `0.log.20261031-142809`.
fn rotated(log: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str()))
    else {
        return Vec::new();
    };
    let prefix = format!("{name}.");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(&prefix))
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Moves a log away if it has more than `max_size` bytes, and removes the
/// oldest so that with the new one `max_files` remain. The runtime is to be
/// told when it says true.
pub fn rotate(log: &Path, max_size: u64, max_files: usize) -> io::Result<bool> {
    if fs::metadata(log)?.len() <= max_size {
        return Ok(false);
    }
    let old = rotated(log);
    // The one that is moved away now and the new one are among those kept.
    let kept = max_files.saturating_sub(2);
    for file in old.iter().take(old.len().saturating_sub(kept)) {
        fs::remove_file(file)?;
    }
    let second = crate::clock::now() / 1_000_000_000;
    let time = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut target = log.as_os_str().to_owned();
    target.push(format!(".{}", time.strftime("%Y%m%d-%H%M%S")));
    fs::rename(log, target)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_too_big_is_moved_and_the_oldest_go() {
        let folder = std::env::temp_dir().join(format!("kubelet-rotate-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let log = folder.join("0.log");
        fs::write(&log, "x".repeat(10)).expect("written");
        assert!(!rotate(&log, 10, 3).expect("looked at"));
        for day in 1..=4 {
            fs::write(folder.join(format!("0.log.2020010{day}-000000")), "old").expect("written");
        }
        assert!(rotate(&log, 5, 3).expect("rotated"));
        assert!(!log.exists());
        let left = rotated(&log);
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0].ends_with("0.log.20200104-000000"));
        fs::remove_dir_all(&folder).expect("removed");
    }
}
