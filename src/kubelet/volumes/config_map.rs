//! configMap: the keys of a ConfigMap as files.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::payload::{Defaults, Payload, select};
use super::{Context, Ready, VolumeError, VolumeKind, atomic, ownership};
use crate::k8s::{ConfigMap, KeyToPath, Volume};
use crate::pod::spec;

pub(super) struct ConfigMapVolume;

#[async_trait]
impl VolumeKind for ConfigMapVolume {
    fn plugin(&self) -> &'static str {
        "configmap"
    }

    fn handles(&self, volume: &Volume) -> bool {
        volume.config_map.is_some()
    }

    async fn set_up(&self, cx: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError> {
        let source = volume.config_map.clone().unwrap_or_default();
        let defaults = Defaults {
            mode: source.default_mode,
            user: source.default_user,
        };
        let optional = source.optional.unwrap_or(false);
        let payload = files(cx, &source.name, source.items.as_ref(), optional, defaults).await?;
        let path = cx.paths.volume(self.plugin(), &volume.name);
        atomic::write(&path, &payload, ownership::fs_group(cx.pod))?;
        Ok(Ready {
            path,
            read_only: true,
            ..Ready::default()
        })
    }
}

/// The files of one ConfigMap of the pod's namespace.
pub(super) async fn files(
    cx: &Context<'_>,
    name: &str,
    items: Option<&Vec<KeyToPath>>,
    optional: bool,
    defaults: Defaults,
) -> Result<Payload, VolumeError> {
    match cx.objects.config_map(spec::namespace(cx.pod), name).await? {
        Some(found) => select(data(&found), items, defaults, optional, "config"),
        None if optional => Ok(Payload::new()),
        None => Err(VolumeError::Missing {
            kind: "configmap",
            name: name.to_owned(),
        }),
    }
}

fn data(config_map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = config_map.data.iter().flatten();
    let binary = config_map.binary_data.iter().flatten();
    let text = text.map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    text.chain(binary.map(|(key, value)| (key.clone(), value.0.clone())))
        .collect()
}
