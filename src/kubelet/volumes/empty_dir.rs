//! emptyDir: a folder that lives as long as the pod, on disk or in memory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use apimachinery::quantity::Quantity;
use async_trait::async_trait;

use super::{Context, Ready, VolumeError, VolumeKind, ownership, tmpfs};
use crate::k8s::Volume;

/// Anyone in the pod may write.
const MODE: u32 = 0o777;

pub(super) struct EmptyDir;

#[async_trait]
impl VolumeKind for EmptyDir {
    fn plugin(&self) -> &'static str {
        "empty-dir"
    }

    fn handles(&self, volume: &Volume) -> bool {
        volume.empty_dir.is_some()
    }

    async fn set_up(&self, cx: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError> {
        let source = volume.empty_dir.clone().unwrap_or_default();
        let path = cx.paths.volume(self.plugin(), &volume.name);
        let ready = Ready {
            path: path.clone(),
            ..Ready::default()
        };
        let existed = path.exists();
        match source.medium.as_deref().unwrap_or_default() {
            "" => fs::create_dir_all(&path).map_err(VolumeError::io("create", &path))?,
            "Memory" => {
                let limit = source
                    .size_limit
                    .and_then(|limit| limit.0.parse::<Quantity>().ok());
                let size = limit.and_then(|limit| u64::try_from(limit.value()).ok());
                tmpfs::ensure(&path, size.filter(|size| *size > 0))?;
            }
            other => {
                return Err(VolumeError::Unsupported(format!(
                    "emptyDir medium {other:?}"
                )));
            }
        }
        if existed {
            return Ok(ready);
        }
        let mode = source.mode.and_then(|mode| u32::try_from(mode).ok());
        // Memory is open to anyone from the start, and sticky: upstream leaves that alone.
        if let Some(mode) = mode.or((source.medium.as_deref() != Some("Memory")).then_some(MODE)) {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                .map_err(VolumeError::io("chmod", &path))?;
        }
        if let Some(group) = ownership::fs_group(cx.pod) {
            ownership::give(&path, group).map_err(VolumeError::io("chown", &path))?;
        }
        Ok(ready)
    }
}
