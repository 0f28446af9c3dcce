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

/// Changes of many pods are gathered for a time that grows with their number: a reconcile looks at all of them, so that
/// one for each change would cost the square.
const GATHER_PER_POD: Duration = Duration::from_micros(20);
/// The longest time changes are gathered; that of 25,000 pods.
const MAX_GATHER: Duration = Duration::from_millis(500);
/// Changes of fewer pods are not gathered at all.
const FEW: usize = 50;

/// How long to gather changes that are each looked at together with so many pods.
pub fn gather(pods: usize) -> Duration {
    if pods < FEW {
        return Duration::ZERO;
    }
    let pods = u32::try_from(pods).unwrap_or(u32::MAX);
    GATHER_PER_POD.saturating_mul(pods).min(MAX_GATHER)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_gathered_the_longer_the_more_pods_there_are() {
        for (pods, milliseconds) in [(0, 0), (49, 0), (50, 1), (5000, 100), (100_000, 500)] {
            assert_eq!(gather(pods), Duration::from_millis(milliseconds), "{pods}");
        }
    }
}
