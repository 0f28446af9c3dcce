//! What every controller is given.

use std::{sync::Arc, time::Duration};

use client::{
    Client, Factory,
    events::{Recorder, Source},
};
use tokio_util::sync::CancellationToken;

use crate::ControllersConfig;

/// How soon to look again when the cache has not seen one's own last write; its arrival usually comes first.
pub const LAG_RETRY: Duration = Duration::from_millis(100);

/// The client, the informers all controllers share, and what they are told.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub informers: Factory,
    pub config: Arc<ControllersConfig>,
    pub shutdown: CancellationToken,
}

impl Context {
    pub(crate) fn new(
        client: Client,
        config: Arc<ControllersConfig>,
        shutdown: CancellationToken,
    ) -> Self {
        Context {
            informers: Factory::new(client.clone(), shutdown.clone()),
            client,
            config,
            shutdown,
        }
    }

    /// A recorder of events of this component, without a host as upstream's controllers record.
    pub fn recorder(&self, component: &str) -> Recorder {
        let source = Source {
            component: component.into(),
            host: String::new(),
        };
        Recorder::new(self.client.clone(), source)
    }

    /// Waits for the informers; false if the shutdown came first.
    pub async fn synced(&self, informers: impl Future<Output = ()>) -> bool {
        tokio::select! {
            () = self.shutdown.cancelled() => false,
            () = informers => true,
        }
    }
}

/// Waits until each of the informers is complete; false if the shutdown came first.
macro_rules! synced {
    ($context:expr, $($informer:expr),+ $(,)?) => {
        $context.synced(async { $($informer.wait_synced().await;)+ }).await
    };
}
pub(crate) use synced;
