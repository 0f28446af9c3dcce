//! Liveness, readiness and startup probes: one task per probe of a running
//! container. A task only tells results; what follows from them is the plan's.
//!
//! **Invariant:** a result names the instance it is of, and a probe's task never
//! outlives the instance.

mod check;
mod grpc;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cri::Runtime;
use crate::handlers::seconds;
use crate::k8s::{Container, Probe};
use crate::pod::reporter::Reporter;
use crate::pod::spec::Slot;
use check::Outcome;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Restarts a container that fails it.
    Liveness,
    /// Takes a container that fails it out of service.
    Readiness,
    /// Holds the others back until it passes.
    Startup,
}

impl Purpose {
    fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Startup => container.startup_probe.as_ref(),
        }
    }

    /// As the events say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
}

/// A probe reached its threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The container's name.
    pub container: String,
    /// The instance.
    pub container_id: String,
    /// Which probe.
    pub purpose: Purpose,
    /// Passed its successThreshold, or failed its failureThreshold.
    pub passed: bool,
    /// The probe's own grace period, for the restart that follows a failure.
    pub grace_seconds: Option<i64>,
}

/// What a probe runs with.
#[derive(Clone)]
pub struct Subject {
    /// The container.
    pub container: Container,
    /// The instance.
    pub container_id: String,
    /// Where the pod is reached.
    pub pod_ip: String,
    /// For commands.
    pub runtime: Runtime,
    /// For the events of failures.
    pub reporter: Reporter,
}

/// The running probes of one pod; dropping it ends them.
#[derive(Default)]
pub struct Probes {
    tasks: BTreeMap<(String, Purpose), Task>,
}

struct Task {
    container_id: String,
    handle: AbortHandle,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

impl Probes {
    /// Makes sure that the instance is probed for `purposes` and nothing else.
    /// `tell` is called from the tasks; `made` makes a subject when one starts.
    pub fn keep(
        &mut self,
        slot: &Slot<'_>,
        container_id: &str,
        purposes: &[Purpose],
        made: impl Fn() -> Subject,
        tell: impl Fn(Report) + Clone + Send + 'static,
    ) {
        let name = slot.name();
        self.tasks.retain(|(container, purpose), task| {
            container != name || (task.container_id == container_id && purposes.contains(purpose))
        });
        for purpose in purposes {
            let key = (name.to_owned(), *purpose);
            let Some(probe) = purpose.of(&slot.container) else {
                continue;
            };
            if self.tasks.contains_key(&key) {
                continue;
            }
            let run = run(*purpose, probe.clone(), made(), tell.clone());
            // It ends only by being aborted, or with nothing left to say.
            let handle = tokio::spawn(run).abort_handle();
            self.tasks.insert(
                key,
                Task {
                    container_id: container_id.to_owned(),
                    handle,
                },
            );
        }
    }

    /// Ends the probes of a container.
    pub fn end(&mut self, name: &str) {
        self.tasks.retain(|(container, _), _| container != name);
    }

    /// Ends all but the readiness probes: a pod that is told to stop is not
    /// restarted any more, but still goes out of service by itself.
    pub fn end_all_but_readiness(&mut self) {
        self.tasks
            .retain(|(_, purpose), _| *purpose == Purpose::Readiness);
    }

    /// Ends everything.
    pub fn end_all(&mut self) {
        self.tasks.clear();
    }
}

/// Probes until the answer can no longer matter.
async fn run(purpose: Purpose, probe: Probe, subject: Subject, tell: impl Fn(Report) + Send) {
    let period = seconds(probe.period_seconds, 10);
    let threshold = |value: Option<i32>, default: u32| {
        value
            .and_then(|value| u32::try_from(value).ok())
            .unwrap_or(default)
            .max(1)
    };
    let mut standing = Standing {
        failures: threshold(probe.failure_threshold, 3),
        successes: threshold(probe.success_threshold, 1),
        ..Standing::default()
    };
    tokio::time::sleep(delay(&probe)).await;
    let mut next = Instant::now();
    loop {
        let outcome = check::check(&probe, &subject).await;
        if let Outcome::Failed(output) = &outcome {
            let message = format!("{} probe failed: {output}", purpose.name());
            subject.reporter.warning("Unhealthy", message);
        }
        if let Outcome::Error(error) = &outcome {
            let message = format!(
                "{} probe errored and resulted in unknown state: {error}",
                purpose.name()
            );
            subject.reporter.warning("Unhealthy", message);
        }
        if let Some(passed) = standing.take(&outcome) {
            tell(Report {
                container: subject.container.name.clone(),
                container_id: subject.container_id.clone(),
                purpose,
                passed,
                grace_seconds: probe.termination_grace_period_seconds,
            });
            // A startup probe is over when it has passed; a failed liveness or
            // startup probe ends its container, and the next instance has its own task.
            if purpose == Purpose::Startup || (purpose == Purpose::Liveness && !passed) {
                return;
            }
        }
        next = (next + period).max(Instant::now());
        tokio::time::sleep_until(next).await;
    }
}

fn delay(probe: &Probe) -> Duration {
    let seconds = probe
        .initial_delay_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// Counts results in a row. Pure.
#[derive(Debug, Default)]
struct Standing {
    failures: u32,
    successes: u32,
    in_row: u32,
    last: Option<bool>,
    told: Option<bool>,
}

impl Standing {
    /// The verdict if it is one now and was not before.
    fn take(&mut self, outcome: &Outcome) -> Option<bool> {
        let passed = match outcome {
            Outcome::Passed => true,
            Outcome::Failed(_) => false,
            // Not known is neither.
            Outcome::Error(_) => return None,
        };
        self.in_row = if self.last == Some(passed) {
            self.in_row.saturating_add(1)
        } else {
            1
        };
        self.last = Some(passed);
        let threshold = if passed {
            self.successes
        } else {
            self.failures
        };
        if self.in_row < threshold || self.told == Some(passed) {
            return None;
        }
        self.told = Some(passed);
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_come_at_their_thresholds_and_only_when_they_turn() {
        let mut standing = Standing {
            failures: 2,
            successes: 1,
            ..Standing::default()
        };
        let fail = || Outcome::Failed(String::new());
        let seen: Vec<_> = [
            Outcome::Passed,
            Outcome::Passed,
            fail(),
            Outcome::Error(String::new()),
            fail(),
            fail(),
            Outcome::Passed,
        ]
        .iter()
        .map(|outcome| standing.take(outcome))
        .collect();
        assert_eq!(
            seen,
            [Some(true), None, None, None, Some(false), None, Some(true)]
        );
    }
}
