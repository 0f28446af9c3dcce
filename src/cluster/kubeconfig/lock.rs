//! client-go's lock of a kubeconfig: a file `NAME.lock` beside it, made with `O_EXCL` (`clientcmd.lockFile`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another program may hold the lock. client-go holds it for the time of one write.
const PATIENCE: Duration = Duration::from_secs(3);
/// The lock is a file of another program, so there is nothing to be woken by.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{0} is held by another program; remove it if no kubectl or skiff is running")]
    Held(PathBuf),
    #[error("cannot create {path}: {source}")]
    Create {
        path: PathBuf,
        source: std::io::Error,
    },
}

/// The lock file goes when this is dropped.
#[derive(Debug)]
pub(super) struct Lock(PathBuf);

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn acquire(path: &Path) -> Result<Lock, LockError> {
    let mut name = path.as_os_str().to_os_string();
    name.push(".lock");
    let lock = PathBuf::from(name);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&lock)
        {
            Ok(mut file) => {
                // client-go writes nothing; the number tells a later skiff that the holder has died.
                let _ = write!(file, "{}", std::process::id());
                return Ok(Lock(lock));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                if holder_has_died(&lock) {
                    let _ = std::fs::remove_file(&lock);
                } else if Instant::now() >= deadline {
                    return Err(LockError::Held(lock));
                } else {
                    std::thread::sleep(RETRY);
                }
            }
            Err(source) => return Err(LockError::Create { path: lock, source }),
        }
    }
}

fn holder_has_died(lock: &Path) -> bool {
    let holder = std::fs::read_to_string(lock)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok());
    holder.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_left_by_a_dead_process_is_taken_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        // Above the largest possible process number.
        std::fs::write(folder.path().join("config.lock"), "4194305").expect("written");
        drop(acquire(&path).expect("taken"));
        assert!(!folder.path().join("config.lock").exists());
    }
}
