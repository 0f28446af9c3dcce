//! hostPath: a path of the node as it is.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::{Context, Ready, VolumeError, VolumeKind};
use crate::k8s::Volume;

pub(super) struct HostPath;

#[async_trait]
impl VolumeKind for HostPath {
    fn plugin(&self) -> &'static str {
        "host-path"
    }

    fn handles(&self, volume: &Volume) -> bool {
        volume.host_path.is_some()
    }

    async fn set_up(&self, _: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError> {
        let source = volume.host_path.clone().unwrap_or_default();
        let path = PathBuf::from(&source.path);
        check(&path, source.type_.as_deref().unwrap_or_default())?;
        Ok(Ready {
            path,
            ..Ready::default()
        })
    }
}

/// Makes or checks what the type asks for.
pub(super) fn check(path: &Path, kind: &str) -> Result<(), VolumeError> {
    let problem = |problem| {
        Err(VolumeError::HostPathType {
            path: path.display().to_string(),
            problem,
        })
    };
    match kind {
        "" => return Ok(()),
        "DirectoryOrCreate" if !path.exists() => {
            return fs::create_dir_all(path).map_err(VolumeError::io("create", path));
        }
        "FileOrCreate" if !path.exists() => {
            return fs::File::create(path)
                .map(drop)
                .map_err(VolumeError::io("create", path));
        }
        _ => {}
    }
    let Ok(metadata) = fs::metadata(path) else {
        return problem(match kind {
            "Directory" | "DirectoryOrCreate" => "is not a directory",
            "File" | "FileOrCreate" => "is not a file",
            "Socket" => "is not a socket file",
            "CharDevice" => "is not a character device",
            _ => "is not a block device",
        });
    };
    let file = metadata.file_type();
    match kind {
        "Directory" | "DirectoryOrCreate" if !file.is_dir() => problem("is not a directory"),
        "File" | "FileOrCreate" if !file.is_file() => problem("is not a file"),
        "Socket" if !file.is_socket() => problem("is not a socket file"),
        "CharDevice" if !file.is_char_device() => problem("is not a character device"),
        "BlockDevice" if !file.is_block_device() => problem("is not a block device"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_made() {
        let folder = std::env::temp_dir().join(format!("kubelet-hostpath-{}", std::process::id()));
        check(&folder.join("a/b"), "DirectoryOrCreate").expect("made");
        check(&folder.join("a/b"), "Directory").expect("a directory");
        check(&folder.join("f"), "FileOrCreate").expect("made");
        let error = check(&folder.join("f"), "Directory").expect_err("a file");
        let path = folder.join("f");
        assert_eq!(
            error.to_string(),
            format!(
                "hostPath type check failed: {} is not a directory",
                path.display()
            )
        );
        assert!(check(&folder.join("none"), "Socket").is_err());
        assert!(check(Path::new("/dev/null"), "CharDevice").is_ok());
        assert!(check(&folder.join("none"), "").is_ok(), "no type, no check");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
