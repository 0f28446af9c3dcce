//! Writing files whole: a reader sees the old content or the new one, never half of it.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file or folder that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: std::io::Error,
}

impl FileError {
    pub fn new(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self {
            action,
            path: path.into(),
            source,
        }
    }
}

/// Creates a folder and its parents; one that is there is left as it is.
pub fn create_directory(path: &Path, mode: u32) -> Result<(), FileError> {
    let created = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path);
    created.map_err(|source| FileError::new("create", path, source))
}

/// Replaces `path` by a new file with this content and mode, in one step.
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let failed = |source| FileError::new("write", path, source);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    let written = options
        .open(&temporary)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|source| {
        let _ = std::fs::remove_file(&temporary);
        failed(source)
    })
}

/// Writes `path` only when its content differs; tells whether it did.
pub fn write_if_changed(path: &Path, content: &[u8], mode: u32) -> Result<bool, FileError> {
    if std::fs::read(path).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    write(path, content, mode)?;
    Ok(true)
}

/// Reads a text file, or `None` when it is not there.
pub fn read_optional(path: &Path) -> Result<Option<String>, FileError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::new("read", path, error)),
    }
}

/// Removes a file or a whole folder; one that is not there is no error.
pub fn remove(path: &Path) -> Result<(), FileError> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::new("remove", path, error))
        }
        _ => Ok(()),
    }
}
