//! secret: the keys of a Secret as files, in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::payload::{Defaults, Payload, select};
use super::{Context, Ready, VolumeError, VolumeKind, atomic, ownership, tmpfs};
use crate::k8s::{KeyToPath, Secret, Volume};
use crate::pod::spec;

pub(super) struct SecretVolume;

#[async_trait]
impl VolumeKind for SecretVolume {
    fn plugin(&self) -> &'static str {
        "secret"
    }

    fn handles(&self, volume: &Volume) -> bool {
        volume.secret.is_some()
    }

    async fn set_up(&self, cx: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError> {
        let source = volume.secret.clone().unwrap_or_default();
        let defaults = Defaults {
            mode: source.default_mode,
            user: source.default_user,
        };
        let optional = source.optional.unwrap_or(false);
        let name = source.secret_name.unwrap_or_default();
        let payload = files(cx, &name, source.items.as_ref(), optional, defaults).await?;
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

/// The files of one Secret of the pod's namespace.
pub(super) async fn files(
    cx: &Context<'_>,
    name: &str,
    items: Option<&Vec<KeyToPath>>,
    optional: bool,
    defaults: Defaults,
) -> Result<Payload, VolumeError> {
    match cx.objects.secret(spec::namespace(cx.pod), name).await? {
        Some(found) => select(data(&found), items, defaults, optional, "secret"),
        None if optional => Ok(Payload::new()),
        None => Err(VolumeError::Missing {
            kind: "secret",
            name: name.to_owned(),
        }),
    }
}

fn data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone()))
        .collect()
}
