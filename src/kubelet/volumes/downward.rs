//! downwardAPI: the pod's own fields as files.

use async_trait::async_trait;

use super::payload::{Defaults, Payload, checked};
use super::{Context, Ready, VolumeError, VolumeKind, atomic, ownership, tmpfs};
use crate::create::fields;
use crate::k8s::{DownwardAPIVolumeFile, Volume};

pub(super) struct DownwardApi;

#[async_trait]
impl VolumeKind for DownwardApi {
    fn plugin(&self) -> &'static str {
        "downward-api"
    }

    fn handles(&self, volume: &Volume) -> bool {
        volume.downward_api.is_some()
    }

    async fn set_up(&self, cx: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError> {
        let source = volume.downward_api.clone().unwrap_or_default();
        let defaults = Defaults {
            mode: source.default_mode,
            user: source.default_user,
        };
        let payload = files(cx, source.items.as_deref().unwrap_or_default(), defaults)?;
        let path = cx.paths.volume(self.plugin(), &volume.name);
        tmpfs::ensure(&path, None)?;
        atomic::write(&path, &payload, ownership::fs_group(cx.pod))?;
        Ok(Ready {
            path,
            read_only: true,
            ..Ready::default()
        })
    }
}

/// The files of the given items.
pub(super) fn files(
    cx: &Context<'_>,
    items: &[DownwardAPIVolumeFile],
    defaults: Defaults,
) -> Result<Payload, VolumeError> {
    let mut payload = Payload::new();
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => fields::field(cx.pod, &cx.addresses, &field.field_path)?,
            (None, Some(selector)) => fields::resource(cx.pod, cx.node, "", selector)?,
            (None, None) => String::new(),
        };
        let file = defaults.file(text.into_bytes(), item.mode, item.user);
        payload.insert(checked(&item.path)?, file);
    }
    Ok(payload)
}
