//! `/healthz`, `/livez`, `/readyz`: the checks one by one, all together, verbose, with exclusions.
//!
//! Names are upstream's, since monitoring excludes checks by name. Upstream's many post-start hooks are steps of one
//! start-up here, done when the registry's caches are filled and the boot objects exist.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use parking_lot::Mutex;
use store::Store;

use super::ok_text;
use crate::body::Body;
use crate::front::Front;
use crate::front::respond;
use crate::metrics::text::{Kind, Text};
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

/// In the order upstream prints them. Upstream's hooks are steps of one start here: all are done when the caches are
/// filled and what a cluster begins with is there.
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
        "poststarthook/start-apiextensions-informers",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/start-apiextensions-controllers",
        Probe::Synced,
        ALL,
    ),
    check("poststarthook/crd-informer-synced", Probe::Synced, ALL),
    check(
        "poststarthook/start-system-namespaces-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/peer-endpoint-reconciler-controller",
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
    check(
        "poststarthook/start-kube-aggregator-informers",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/apiservice-status-local-available-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/apiservice-status-remote-available-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/apiservice-registration-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/apiservice-wait-for-first-sync",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/apiservice-discovery-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/kube-apiserver-autoregistration",
        Probe::Synced,
        ALL,
    ),
    check("autoregister-completion", Probe::Synced, ALL),
    check(
        "poststarthook/apiservice-openapi-controller",
        Probe::Synced,
        ALL,
    ),
    check(
        "poststarthook/apiservice-openapiv3-controller",
        Probe::Synced,
        ALL,
    ),
    check("shutdown", Probe::Serving, READYZ),
];

const ENDPOINTS: &[(&str, u8)] = &[("healthz", HEALTHZ), ("livez", LIVEZ), ("readyz", READYZ)];

/// The health endpoints.
pub struct Health {
    store: Arc<dyn Store>,
    results: Results,
}

impl Health {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            results: Results::default(),
        }
    }

    /// `/metrics/slis`: how the checks ended that were asked for (KEP-3466).
    pub fn indicators(&self) -> Response<Body> {
        let mut text = Text::default();
        self.results.write(&mut text);
        respond::with_type(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            text.finish().into(),
        )
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
        endpoint: &'static str,
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
            self.results.add(check.name, endpoint, verdict.is_ok());
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

/// How often each check was well and not, by check and endpoint. Bounded by the table of checks.
#[derive(Default)]
struct Results(Mutex<BTreeMap<(&'static str, &'static str), Counted>>);

#[derive(Clone, Copy, Default)]
struct Counted {
    is_well: bool,
    successes: u64,
    errors: u64,
}

impl Results {
    fn add(&self, check: &'static str, endpoint: &'static str, is_well: bool) {
        let mut all = self.0.lock();
        let counted = all.entry((check, endpoint)).or_default();
        counted.is_well = is_well;
        match is_well {
            true => counted.successes += 1,
            false => counted.errors += 1,
        }
    }

    fn write(&self, text: &mut Text) {
        let all = self.0.lock();
        let name = "kubernetes_healthcheck";
        text.family(
            name,
            Kind::Gauge,
            "This metric records the result of a single healthcheck.",
        );
        for ((check, endpoint), counted) in all.iter() {
            let labels = [("name", *check), ("type", *endpoint)];
            text.sample(name, &labels, u8::from(counted.is_well));
        }
        let name = "kubernetes_healthchecks_total";
        text.family(
            name,
            Kind::Counter,
            "This metric records the results of all healthcheck.",
        );
        for ((check, endpoint), counted) in all.iter() {
            let counts = [("error", counted.errors), ("success", counted.successes)];
            for (status, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                let labels = [("name", *check), ("status", status), ("type", *endpoint)];
                text.sample(name, &labels, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_are_those_that_upstream_prints() {
        let Ok(facts) = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../shared/facts/http/root_livez_verbose.txt"
        )) else {
            println!("skipped: no facts");
            return;
        };
        let theirs: Vec<&str> = facts
            .lines()
            .filter_map(|line| line.strip_prefix("[+]")?.strip_suffix(" ok"))
            .collect();
        let ours: Vec<&str> = CHECKS
            .iter()
            .filter(|check| check.endpoints & LIVEZ != 0)
            .map(|check| check.name)
            .collect();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn the_last_result_and_the_sum_of_all_are_told() {
        let results = Results::default();
        results.add("etcd", "livez", false);
        results.add("etcd", "livez", true);
        results.add("etcd", "livez", true);
        let mut text = Text::default();
        results.write(&mut text);
        let text = text.finish();
        for line in [
            r#"kubernetes_healthcheck{name="etcd",type="livez"} 1"#,
            r#"kubernetes_healthchecks_total{name="etcd",status="error",type="livez"} 1"#,
            r#"kubernetes_healthchecks_total{name="etcd",status="success",type="livez"} 2"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
