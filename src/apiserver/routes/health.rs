//! `/healthz`, `/livez`, `/readyz`: the checks one by one, all together, verbose, with exclusions.
//!
//! Names are upstream's, since monitoring excludes checks by name. Upstream's many post-start hooks are steps of one
//! start-up here, done when the registry's caches are filled and the boot objects exist.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use store::Store;

use super::ok_text;
use crate::body::Body;
use crate::front::Front;
use crate::front::respond;
use crate::request::RequestInfo;

/// A store that has not answered by then is unhealthy.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a check looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// The process answers.
    Alive,
    Store,
    /// Caches filled, boot objects there.
    Synced,
    /// Not shutting down.
    Serving,
}

struct Check {
    name: &'static str,
    probe: Probe,
    /// Bits of `HEALTHZ`, `LIVEZ`, `READYZ`.
    endpoints: u8,
}

const HEALTHZ: u8 = 1;
const LIVEZ: u8 = 2;
const READYZ: u8 = 4;
const ALL: u8 = HEALTHZ | LIVEZ | READYZ;

const fn check(name: &'static str, probe: Probe, endpoints: u8) -> Check {
    Check {
        name,
        probe,
        endpoints,
    }
}

/// In the order upstream prints them.
const CHECKS: &[Check] = &[
    check("ping", Probe::Alive, ALL),
    check("log", Probe::Alive, ALL),
    check(
        "loopback-serving-certificate",
        Probe::Alive,
        HEALTHZ | LIVEZ,
    ),
    check("etcd", Probe::Store, ALL),
    check("etcd-readiness", Probe::Store, READYZ),
    check("informer-sync", Probe::Synced, READYZ),
    check(
        "poststarthook/start-apiserver-admission-initializer",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/generic-apiserver-start-informers",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/priority-and-fairness-config-consumer",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/priority-and-fairness-filter",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/storage-object-count-tracker-hook",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/start-system-namespaces-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/start-cluster-authentication-info-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/start-kube-apiserver-identity-lease-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
        Probe::Synced,
        ALL,
    ),
    check("poststarthook/storage-readiness", Probe::Synced, ALL),
    check(
        "poststarthook/start-legacy-token-tracking-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/start-service-ip-repair-controllers",
        Probe::Synced,
        ALL,
    ),
    check("poststarthook/rbac/bootstrap-roles", Probe::Synced, ALL),
    check(
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/priority-and-fairness-config-producer",
        Probe::Synced,
        ALL,
    ),
    check("poststarthook/bootstrap-controller", Probe::Synced, ALL),
    check(
        "poststarthook/start-kubernetes-service-cidr-controller",
        Probe::Synced,
        ALL,
    ),
    check("shutdown", Probe::Serving, READYZ),
];

const ENDPOINTS: &[(&str, u8)] = &[("healthz", HEALTHZ), ("livez", LIVEZ), ("readyz", READYZ)];

/// The health endpoints.
pub struct Health {
    store: Arc<dyn Store>,
}

impl Health {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// Every path that is answered.
    pub fn paths(&self) -> impl Iterator<Item = String> + '_ {
        ENDPOINTS.iter().flat_map(|(endpoint, bit)| {
            let checks = CHECKS
                .iter()
                .filter(move |check| check.endpoints & bit != 0);
            std::iter::once(format!("/{endpoint}"))
                .chain(checks.map(move |check| format!("/{endpoint}/{}", check.name)))
        })
    }

    /// `None` when the path is no health check.
    pub async fn answer(&self, front: &Front, info: &RequestInfo) -> Option<Response<Body>> {
        let path = info.path.strip_prefix('/')?;
        let (endpoint, rest) = path.split_once('/').unwrap_or((path, ""));
        let (endpoint, bit) = ENDPOINTS.iter().find(|(name, _)| *name == endpoint)?;
        if rest.is_empty() {
            if path.ends_with('/') {
                return None;
            }
            return Some(self.all(front, info, endpoint, *bit).await);
        }
        let check = CHECKS
            .iter()
            .find(|check| check.endpoints & bit != 0 && check.name == rest)?;
        Some(match self.probe(front, check.probe).await {
            Ok(()) => ok_text(),
            Err(why) => respond::plain_error(
                StatusCode::INTERNAL_SERVER_ERROR,
                &format!("internal server error: {why}"),
            ),
        })
    }

    async fn all(
        &self,
        front: &Front,
        info: &RequestInfo,
        endpoint: &str,
        bit: u8,
    ) -> Response<Body> {
        let mut excluded: Vec<&str> = info.query.all("exclude").collect();
        let mut report = String::new();
        let mut failures: Vec<String> = Vec::new();
        let mut store = None;
        for check in CHECKS.iter().filter(|check| check.endpoints & bit != 0) {
            if let Some(at) = excluded.iter().position(|name| *name == check.name) {
                excluded.swap_remove(at);
                let _ = writeln!(report, "[+]{} excluded: ok", check.name);
                continue;
            }
            let verdict = match (check.probe, &store) {
                (Probe::Store, Some(known)) => Result::clone(known),
                _ => self.probe(front, check.probe).await,
            };
            if check.probe == Probe::Store {
                store = Some(verdict.clone());
            }
            match verdict {
                Ok(()) => {
                    let _ = writeln!(report, "[+]{} ok", check.name);
                }
                Err(why) => {
                    failures.push(format!("{}: {why}", check.name));
                    let _ = writeln!(report, "[-]{} failed: reason withheld", check.name);
                }
            }
        }
        if !excluded.is_empty() {
            let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
            let _ = writeln!(
                report,
                "warn: some health checks cannot be excluded: no matches for {}",
                names.join(",")
            );
        }
        if !failures.is_empty() {
            tracing::info!(
                endpoint,
                failures = failures.join(", "),
                "Health checks failed"
            );
            let _ = write!(report, "{endpoint} check failed");
            return respond::plain_error(StatusCode::INTERNAL_SERVER_ERROR, &report);
        }
        if info.query.get("verbose").is_none() {
            return ok_text();
        }
        let _ = write!(report, "{endpoint} check passed");
        respond::plain(StatusCode::OK, report)
    }

    async fn probe(&self, front: &Front, probe: Probe) -> Result<(), String> {
        match probe {
            Probe::Alive => Ok(()),
            Probe::Store => match tokio::time::timeout(STORE_TIMEOUT, self.store.health()).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("the store does not answer".to_owned()),
            },
            Probe::Synced if front.backend.is_synced() => Ok(()),
            Probe::Synced => Err("not finished".to_owned()),
            Probe::Serving if front.unready.is_cancelled() => {
                Err("process is shutting down".to_owned())
            }
            Probe::Serving => Ok(()),
        }
    }
}
