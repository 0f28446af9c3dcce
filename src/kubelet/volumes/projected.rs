//! projected: several sources in one volume, in memory: among them the service
//! account token and cluster CA that every pod gets.

use async_trait::async_trait;

use super::payload::{Defaults, Payload, checked};
use super::{
    Context, Ready, VolumeError, VolumeKind, atomic, config_map, downward, ownership, secret, tmpfs,
};
use crate::k8s::{ServiceAccountTokenProjection, Volume, VolumeProjection};
use crate::pod::view::Nanos;

/// Of a token that only its reader may see.
const OWN_TOKEN_MODE: i32 = 0o600;

pub(super) struct Projected;

#[async_trait]
impl VolumeKind for Projected {
    fn plugin(&self) -> &'static str {
        "projected"
    }

    fn handles(&self, volume: &Volume) -> bool {
        volume.projected.is_some()
    }

    async fn set_up(&self, cx: &Context<'_>, volume: &Volume) -> Result<Ready, VolumeError> {
        let source = volume.projected.clone().unwrap_or_default();
        let defaults = Defaults {
            mode: source.default_mode,
            user: source.default_user,
        };
        let mut payload = Payload::new();
        let mut refresh_at: Option<Nanos> = None;
        for source in source.sources.iter().flatten() {
            let (files, refresh) = project(cx, source, defaults).await?;
            payload.extend(files);
            refresh_at = match (refresh_at, refresh) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        let path = cx.paths.volume(self.plugin(), &volume.name);
        tmpfs::ensure(&path, None)?;
        atomic::write(&path, &payload, ownership::fs_group(cx.pod))?;
        Ok(Ready {
            path,
            refresh_at,
            read_only: true,
        })
    }
}

/// The files of one source, and when they are to be renewed.
async fn project(
    cx: &Context<'_>,
    source: &VolumeProjection,
    defaults: Defaults,
) -> Result<(Payload, Option<Nanos>), VolumeError> {
    let unsupported = |kind: &str| Err(VolumeError::Unsupported(format!("projected {kind}")));
    match source {
        VolumeProjection {
            config_map: Some(source),
            ..
        } => {
            let optional = source.optional.unwrap_or(false);
            let items = source.items.as_ref();
            Ok((
                config_map::files(cx, &source.name, items, optional, defaults).await?,
                None,
            ))
        }
        VolumeProjection {
            secret: Some(source),
            ..
        } => {
            let optional = source.optional.unwrap_or(false);
            let items = source.items.as_ref();
            Ok((
                secret::files(cx, &source.name, items, optional, defaults).await?,
                None,
            ))
        }
        VolumeProjection {
            downward_api: Some(source),
            ..
        } => {
            let items = source.items.as_deref().unwrap_or_default();
            Ok((downward::files(cx, items, defaults)?, None))
        }
        VolumeProjection {
            service_account_token: Some(source),
            ..
        } => token(cx, source, defaults).await,
        VolumeProjection {
            cluster_trust_bundle: Some(_),
            ..
        } => unsupported("clusterTrustBundle"),
        VolumeProjection {
            pod_certificate: Some(_),
            ..
        } => unsupported("podCertificate"),
        _ => Ok((Payload::new(), None)),
    }
}

async fn token(
    cx: &Context<'_>,
    source: &ServiceAccountTokenProjection,
    defaults: Defaults,
) -> Result<(Payload, Option<Nanos>), VolumeError> {
    let audience = source.audience.as_deref().unwrap_or_default();
    let token = cx
        .tokens
        .get(cx.pod, audience, source.expiration_seconds)
        .await?;
    let user = source.user.or_else(|| ownership::common_user(cx.pod));
    let private = user.is_some() || ownership::fs_group(cx.pod).is_some();
    let mode = private.then_some(OWN_TOKEN_MODE);
    let file = defaults.file(token.text.into_bytes(), mode, user);
    Ok((
        Payload::from([(checked(&source.path)?, file)]),
        Some(token.refresh_at),
    ))
}
