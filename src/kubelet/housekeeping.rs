//! What is done now and then: rotating logs, and removing images when the disk
//! fills up.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config::KubeletConfig;
use crate::cri::{self, Runtime, v1};
use crate::images::gc;
use crate::node::machine;
use crate::server::logs::rotate;

/// Upstream's `containerLogMonitorInterval`.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Upstream's `ImageGCPeriod`.
const IMAGE_INTERVAL: Duration = Duration::from_secs(300);

/// Works until the shutdown.
pub async fn run(runtime: &Runtime, config: &KubeletConfig, shutdown: CancellationToken) {
    let mut unused = Unused::default();
    let mut logs = tokio::time::interval(LOG_INTERVAL);
    let mut images = tokio::time::interval(IMAGE_INTERVAL);
    logs.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    images.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = logs.tick() => rotate_logs(runtime, config).await,
            _ = images.tick() => {
                if let Err(error) = collect_images(runtime, config, &mut unused).await {
                    tracing::warn!(%error, "cannot look for unused images, will be retried");
                }
            }
        }
    }
}

/// Rotates what is too big under the log folder, and has the runtime reopen it.
/// Only folders are read: the runtime is asked when something was rotated.
async fn rotate_logs(runtime: &Runtime, config: &KubeletConfig) {
    let mut rotated = Vec::new();
    for pod in folders(&config.pod_logs_dir) {
        for container in folders(&pod) {
            let files = std::fs::read_dir(&container)
                .into_iter()
                .flatten()
                .flatten();
            for file in files.map(|file| file.path()) {
                if file.extension().is_none_or(|extension| extension != "log") {
                    continue;
                }
                let (size, files) = (
                    config.container_log_max_size,
                    config.container_log_max_files,
                );
                match rotate::rotate(&file, size, files) {
                    Ok(true) => rotated.push(file),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(%error, log = %file.display(), "cannot rotate a log")
                    }
                }
            }
        }
    }
    if rotated.is_empty() {
        return;
    }
    let containers = runtime
        .list_containers(HashMap::new())
        .await
        .unwrap_or_default();
    let running = v1::ContainerState::ContainerRunning as i32;
    for container in containers
        .iter()
        .filter(|container| container.state == running)
    {
        let Ok(status) = runtime.container_status(&container.id).await else {
            continue;
        };
        if !rotated.iter().any(|log| log == Path::new(&status.log_path)) {
            continue;
        }
        if let Err(error) = runtime.reopen_log(&container.id).await {
            tracing::warn!(%error, container = container.id, "cannot reopen a rotated log");
        }
    }
}

fn folders(path: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// Since when each image was seen unused. Bounded by the images there are.
#[derive(Default)]
struct Unused(HashMap<String, i64>);

async fn collect_images(
    runtime: &Runtime,
    config: &KubeletConfig,
    unused: &mut Unused,
) -> cri::Result<()> {
    let images = runtime.list_images().await?;
    let containers = runtime.list_containers(HashMap::new()).await?;
    let named = containers.into_iter().flat_map(|container| {
        let spec = container.image.unwrap_or_default();
        [container.image_ref, container.image_id, spec.image]
    });
    let mut used: BTreeSet<_> = named.filter(|name| !name.is_empty()).collect();
    // Runtimes before CRI's `pinned` do not protect what every sandbox needs.
    used.extend(runtime.sandbox_image().await?);
    let now = clock::now();
    let before = std::mem::take(&mut unused.0);
    unused.0 = images
        .iter()
        .filter(|image| !gc::is_used(image, &used))
        .map(|image| {
            (
                image.id.clone(),
                before.get(&image.id).copied().unwrap_or(now),
            )
        })
        .collect();
    let disk = machine::disk(&config.root_dir);
    let percent = |percent: u64| disk.capacity / 100 * percent;
    let in_use = disk.capacity.saturating_sub(disk.available);
    let high = config.image_gc_high_threshold_percent;
    if high >= 100 || in_use <= percent(high) {
        return Ok(());
    }
    let to_free = in_use - percent(config.image_gc_low_threshold_percent);
    let since = |id: &str| unused.0.get(id).copied().unwrap_or(now);
    for id in gc::plan(&images, &used, since, now, to_free) {
        tracing::info!(
            image = id,
            "removing an unused image: the disk is nearly full"
        );
        runtime.remove_image(&id).await?;
    }
    Ok(())
}
