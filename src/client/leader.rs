//! Leader election by a Lease (coordination.k8s.io/v1), compatible with client-go's leaderelection.
//!
//! A candidate takes the lease when nobody holds it or when it has not seen it change for the lease's duration on its
//! own clock; clocks of different machines are never compared. The holder renews every `retry_period` and stops
//! leading when it could not renew for `renew_deadline`, which is before anyone else may take over.

use std::{future::Future, time::Duration};

use api::r::LEASES;
use apimachinery::time::now_micro_text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    Client, ClientError, Result, WriteOptions,
    events::{EventKind, ObjectReference, Recorder},
    metrics,
};

/// Which lease, who, and how fast. `new` has upstream's times (15 s, 10 s, 2 s).
#[derive(Clone, Debug)]
pub struct LeaderConfig {
    pub namespace: String,
    pub name: String,
    /// Unique to this process.
    pub identity: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    /// Give the lease up at shutdown, so that another candidate need not wait it out.
    pub release_on_shutdown: bool,
}

impl LeaderConfig {
    /// `kube-system/<name>` with an identity made of `host` and a random part, as upstream's components do.
    pub fn new(name: &str, host: &str) -> Self {
        LeaderConfig {
            namespace: "kube-system".into(),
            name: name.into(),
            identity: format!("{host}_{}", uuid::Uuid::new_v4()),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            release_on_shutdown: true,
        }
    }
}

/// Why `LeaderElector::run` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The shutdown token was cancelled, before or while leading.
    Shutdown,
    /// The lease was lost; what `lead` started has ended. Upstream's components exit here.
    Lost,
    /// `lead` returned of itself while holding the lease.
    Finished,
}

/// One candidate.
pub struct LeaderElector {
    client: Client,
    config: LeaderConfig,
    recorder: Option<Recorder>,
    /// The lease as last read or written.
    observed: Option<Lease>,
    /// When `observed` last changed, by this process's clock.
    observed_at: Instant,
}

/// A Lease with what is not ours kept as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Lease {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    metadata: Map<String, Value>,
    #[serde(default)]
    spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaseSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_duration_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    acquire_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renew_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_transitions: Option<i64>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl LeaseSpec {
    fn holder(&self) -> &str {
        self.holder_identity.as_deref().unwrap_or("")
    }
}

impl LeaderElector {
    pub fn new(client: Client, config: LeaderConfig) -> Self {
        LeaderElector {
            client,
            config,
            recorder: None,
            observed: None,
            observed_at: Instant::now(),
        }
    }

    /// Records `LeaderElection` events on the Lease with `recorder`.
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Waits for the lease, then runs `lead` while holding it. The token given to `lead` is cancelled when the lease
    /// is lost or `shutdown` is; `lead` is awaited to its end before this returns (and before the lease is released).
    pub async fn run<F, Fut>(&mut self, shutdown: &CancellationToken, lead: F) -> Outcome
    where
        F: FnOnce(CancellationToken) -> Fut,
        Fut: Future<Output = ()>,
    {
        self.tell(false);
        if shutdown.run_until_cancelled(self.acquire()).await.is_none() {
            return Outcome::Shutdown;
        }
        let leading = shutdown.child_token();
        let work = lead(leading.clone());
        tokio::pin!(work);
        let outcome = tokio::select! {
            biased;
            () = shutdown.cancelled() => Outcome::Shutdown,
            () = &mut work => Outcome::Finished,
            () = self.renew() => Outcome::Lost,
        };
        if outcome != Outcome::Finished {
            leading.cancel();
            work.await;
        }
        self.tell(false);
        match outcome {
            Outcome::Lost => {
                tracing::warn!(lease = self.config.name, "lost the lease");
                self.event("stopped leading");
            }
            Outcome::Shutdown | Outcome::Finished => self.release().await,
        }
        outcome
    }

    /// Into the metrics.
    fn tell(&self, is_leader: bool) {
        metrics::lease(&self.config.name, is_leader, self.config.lease_duration);
    }

    /// Tries until the lease is this candidate's.
    async fn acquire(&mut self) {
        /// client-go's JitterFactor: waits up to 2.2 times the period.
        const JITTER: f64 = 1.2;
        loop {
            if self.attempt().await {
                tracing::info!(lease = self.config.name, "became leader");
                self.event("became leader");
                return;
            }
            let factor = 1.0 + JITTER * rand::random::<f64>();
            tokio::time::sleep(self.config.retry_period.mul_f64(factor)).await;
        }
    }

    /// Renews every period; returns when no renewal succeeded for `renew_deadline`.
    async fn renew(&mut self) {
        loop {
            tokio::time::sleep(self.config.retry_period).await;
            let deadline = tokio::time::sleep(self.config.renew_deadline);
            tokio::pin!(deadline);
            loop {
                let renewed = tokio::select! {
                    renewed = self.attempt() => renewed,
                    () = &mut deadline => return,
                };
                if renewed {
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(self.config.retry_period) => {}
                    () = &mut deadline => return,
                }
            }
        }
    }

    async fn attempt(&mut self) -> bool {
        match self.try_acquire_or_renew().await {
            Ok(held) => {
                if held {
                    self.tell(true);
                }
                held
            }
            Err(error) => {
                tracing::debug!(lease = self.config.name, %error, "cannot acquire or renew the lease");
                false
            }
        }
    }

    /// One attempt; true if the lease is (still) ours.
    async fn try_acquire_or_renew(&mut self) -> Result<bool> {
        // The holder first writes against what it wrote last, which saves a read.
        if let Some(observed) = self.held() {
            match self.write(observed, false).await {
                Ok(()) => return Ok(true),
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let LeaderConfig {
            namespace, name, ..
        } = &self.config;
        match self.client.get::<Lease>(&LEASES, namespace, name).await {
            Err(error) if error.is_not_found() => self.create().await.map(|()| true),
            Err(error) => Err(error),
            Ok(lease) => {
                let unchanged = self
                    .observed
                    .as_ref()
                    .is_some_and(|old| old.spec == lease.spec);
                if !unchanged {
                    self.observed_at = Instant::now();
                }
                self.observed = Some(lease.clone());
                if !may_take(
                    &lease.spec,
                    &self.config.identity,
                    self.observed_at.elapsed(),
                ) {
                    return Ok(false);
                }
                let taking = lease.spec.holder() != self.config.identity;
                self.write(lease, taking).await.map(|()| true)
            }
        }
    }

    fn held(&self) -> Option<Lease> {
        self.observed
            .as_ref()
            .filter(|lease| lease.spec.holder() == self.config.identity)
            .cloned()
    }

    async fn create(&mut self) -> Result<()> {
        let now = now_micro_text();
        let mut metadata = Map::new();
        metadata.insert("name".into(), self.config.name.clone().into());
        metadata.insert("namespace".into(), self.config.namespace.clone().into());
        let lease = Lease {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            metadata,
            spec: LeaseSpec {
                holder_identity: Some(self.config.identity.clone()),
                lease_duration_seconds: Some(self.duration_seconds()),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: Some(0),
                other: Map::new(),
            },
        };
        let options = WriteOptions::default();
        let stored = self
            .client
            .create(&LEASES, &self.config.namespace, &lease, &options)
            .await?;
        self.wrote(stored);
        Ok(())
    }

    async fn write(&mut self, mut lease: Lease, taking: bool) -> Result<()> {
        let now = now_micro_text();
        if taking {
            lease.spec.acquire_time = Some(now.clone());
            lease.spec.lease_transitions = Some(lease.spec.lease_transitions.unwrap_or(0) + 1);
        }
        lease.spec.holder_identity = Some(self.config.identity.clone());
        lease.spec.lease_duration_seconds = Some(self.duration_seconds());
        lease.spec.renew_time = Some(now);
        self.put(&lease).await
    }

    async fn put(&mut self, lease: &Lease) -> Result<(), ClientError> {
        let LeaderConfig {
            namespace, name, ..
        } = &self.config;
        let options = WriteOptions::default();
        let stored = self
            .client
            .update(&LEASES, namespace, name, lease, &options)
            .await?;
        self.wrote(stored);
        Ok(())
    }

    fn wrote(&mut self, lease: Lease) {
        self.observed = Some(lease);
        self.observed_at = Instant::now();
    }

    /// Empties the lease if it is ours; failing is harmless, it then expires.
    async fn release(&mut self) {
        let Some(mut lease) = self.held().filter(|_| self.config.release_on_shutdown) else {
            return;
        };
        let now = now_micro_text();
        lease.spec.holder_identity = Some(String::new());
        lease.spec.lease_duration_seconds = Some(1);
        lease.spec.renew_time = Some(now.clone());
        lease.spec.acquire_time = Some(now);
        let limit = self.config.renew_deadline;
        match tokio::time::timeout(limit, self.put(&lease)).await {
            Ok(Ok(())) => self.event("stopped leading"),
            Ok(Err(error)) => {
                tracing::debug!(lease = self.config.name, %error, "cannot release the lease");
            }
            Err(_) => {}
        }
    }

    fn duration_seconds(&self) -> i64 {
        i64::try_from(self.config.lease_duration.as_secs()).unwrap_or(i64::MAX)
    }

    fn event(&self, what: &str) {
        let (Some(recorder), Some(lease)) = (&self.recorder, &self.observed) else {
            return;
        };
        let text = |name: &str| {
            lease
                .metadata
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_string()
        };
        let reference = ObjectReference {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            field_path: String::new(),
        };
        let message = format!("{} {what}", self.config.identity);
        recorder.event(&reference, EventKind::Normal, "LeaderElection", message);
    }
}

/// Whether `identity` may write itself into a lease that has not changed for `unchanged`.
fn may_take(spec: &LeaseSpec, identity: &str, unchanged: Duration) -> bool {
    let holder = spec.holder();
    if holder.is_empty() || holder == identity {
        return true;
    }
    let seconds = spec.lease_duration_seconds.unwrap_or(0).max(0);
    unchanged >= Duration::from_secs(seconds.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Server;

    #[test]
    fn a_lease_is_taken_only_when_free_own_or_unchanged_for_its_duration() {
        let spec = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        let seconds = Duration::from_secs;
        for (holder, unchanged, expected) in [
            ("", 0, true),
            ("me", 0, true),
            ("other", 0, false),
            ("other", 14, false),
            ("other", 15, true),
        ] {
            assert_eq!(
                may_take(&spec(holder), "me", seconds(unchanged)),
                expected,
                "{holder} {unchanged}"
            );
        }
    }

    fn elector(server: &Server, identity: &str) -> LeaderElector {
        let config = LeaderConfig {
            identity: identity.into(),
            ..LeaderConfig::new("kube-test", "host")
        };
        LeaderElector::new(server.client(), config)
    }

    fn holder(server: &Server) -> String {
        let lease = server.get(&LEASES, "kube-system/kube-test");
        lease.map_or(String::new(), |lease| {
            lease["spec"]["holderIdentity"]
                .as_str()
                .unwrap_or("")
                .into()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_candidate_takes_over_after_a_release_and_after_a_crash() {
        let server = Server::default();
        let shutdown = CancellationToken::new();
        let mut first = elector(&server, "one");
        let stop = async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            shutdown.cancel();
        };
        let lead = |token: CancellationToken| async move { token.cancelled().await };
        let (outcome, ()) = tokio::join!(first.run(&shutdown, lead), stop);
        assert_eq!((outcome, holder(&server).as_str()), (Outcome::Shutdown, ""));

        // The second one is dropped while leading, which releases nothing.
        let mut second = elector(&server, "two");
        let never = CancellationToken::new();
        let start = Instant::now();
        let led = tokio::time::timeout(Duration::from_secs(20), second.run(&never, lead)).await;
        assert!(led.is_err());
        assert_eq!(holder(&server), "two");
        let crashed = Instant::now();
        let mut third = elector(&server, "three");
        third.run(&never, |_| async {}).await;
        let waited = crashed.elapsed();
        assert!(
            waited >= Duration::from_secs(15) && waited < Duration::from_secs(20),
            "{waited:?}"
        );
        assert!(crashed - start == Duration::from_secs(20));
        let lease = server.get(&LEASES, "kube-system/kube-test").unwrap();
        assert_eq!(lease["spec"]["leaseTransitions"], 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_stops_before_another_may_take_over() {
        let server = Server::default();
        let mut first = elector(&server, "one");
        let never = CancellationToken::new();
        let cut = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            server.set_down(true);
        };
        let start = Instant::now();
        let lead = |token: CancellationToken| async move { token.cancelled().await };
        let (outcome, ()) = tokio::join!(first.run(&never, lead), cut);
        assert_eq!(outcome, Outcome::Lost);
        assert!(
            start.elapsed() < Duration::from_secs(5 + 15),
            "{:?}",
            start.elapsed()
        );
    }
}
