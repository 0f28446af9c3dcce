//! Shares informers and watches over their tasks.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::Arc,
};

use api::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{Informer, reflector::Reflector};
use crate::Client;

/// What part of a resource an informer follows; empty selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selectors {
    pub labels: String,
    pub fields: String,
}

impl Selectors {
    /// Selects by a field selector such as `spec.nodeName=n1`.
    pub fn fields(selector: impl Into<String>) -> Self {
        Selectors {
            fields: selector.into(),
            ..Selectors::default()
        }
    }

    /// Selects by a label selector.
    pub fn labels(selector: impl Into<String>) -> Self {
        Selectors {
            labels: selector.into(),
            ..Selectors::default()
        }
    }
}

/// An informer's task ended though nobody asked for it (a handler panicked).
#[derive(Debug, thiserror::Error)]
#[error("an informer ended: {0}")]
pub struct InformerEnded(String);

/// Makes and shares informers; clones share it. Its tasks end with the token given to `new`.
#[derive(Clone)]
pub struct Factory {
    client: Client,
    shutdown: CancellationToken,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    informers: Mutex<HashMap<InformerKey, Box<dyn Any + Send + Sync>>>,
    tasks: Mutex<JoinSet<()>>,
    started: Notify,
}

#[derive(PartialEq, Eq, Hash)]
struct InformerKey {
    resource: (&'static str, &'static str, &'static str),
    namespace: String,
    selectors: Selectors,
    view: TypeId,
}

impl Factory {
    pub fn new(client: Client, shutdown: CancellationToken) -> Self {
        Factory {
            client,
            shutdown,
            shared: Arc::default(),
        }
    }

    /// The informer of a resource as `T`, started now if this is the first call for it. `ns` empty follows all
    /// namespaces. Must be called in a tokio runtime.
    pub fn informer<T>(&self, r: &'static Resource, ns: &str, selectors: Selectors) -> Informer<T>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let key = InformerKey {
            resource: (r.group, r.version, r.plural),
            namespace: ns.to_string(),
            selectors: selectors.clone(),
            view: TypeId::of::<T>(),
        };
        let mut informers = self.shared.informers.lock();
        if let Some(shared) = informers
            .get(&key)
            .and_then(|any| any.downcast_ref::<Informer<T>>())
        {
            return shared.clone();
        }
        let informer = Informer::new();
        let reflector = Reflector::new(
            self.client.clone(),
            r,
            ns.to_string(),
            selectors,
            informer.clone(),
        );
        let shutdown = self.shutdown.clone();
        self.shared.tasks.lock().spawn(async move {
            tokio::select! {
                () = shutdown.cancelled_owned() => {}
                () = reflector.run() => {}
            }
        });
        self.shared.started.notify_one();
        informers.insert(key, Box::new(informer.clone()));
        informer
    }

    /// The client the informers use.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for the informers' tasks: `Ok` after the shutdown, an error if one ended before. A component selects on
    /// this beside its own work.
    pub async fn join(&self) -> Result<(), InformerEnded> {
        loop {
            let started = self.shared.started.notified();
            let ended = std::future::poll_fn(|cx| self.shared.tasks.lock().poll_join_next(cx));
            let ended = tokio::select! {
                ended = ended => ended,
                () = started => continue,
            };
            match ended {
                Some(Err(error)) => return Err(InformerEnded(error.to_string())),
                Some(Ok(())) => {}
                None if self.shutdown.is_cancelled() => return Ok(()),
                None => {
                    tokio::select! {
                        () = self.shared.started.notified() => {}
                        () = self.shutdown.cancelled() => {}
                    }
                }
            }
        }
    }
}
