//! Pods that extenders have a say in: they are asked between filtering and binding, with the state unlocked, and what
//! comes of it is checked against the state as it is then.

use std::{collections::BTreeMap, sync::Arc};

use api::r::PODS;
use apimachinery::Value;
use client::ClientError;
use rand::Rng;
use tokio::time::Instant;

use super::{Failed, Served, State, Step, Worker, conclude, decide};
use crate::{
    cycle::Failure,
    extender::{Extender, Filtered, Victims},
    fit_error::FitError,
    framework::Rejection,
    metrics::Outcome,
    pod::Pod,
    preemption::{self, Candidate, Nomination},
    queue::QueuedPod,
};

/// A pod with the nodes that the plugins allow it and their scores.
pub struct Surveyed {
    pub queued: QueuedPod,
    pub nodes: Vec<(String, i64)>,
    pub served: Arc<Served>,
}

/// A pod that fits nowhere, before extenders are asked about whom to evict.
pub struct Unfit {
    pub queued: QueuedPod,
    pub error: FitError,
    /// Nodes with their victims; nothing if nobody is to be evicted.
    pub candidates: Vec<(String, Candidate)>,
    pub nomination: Nomination,
    pub served: Arc<Served>,
}

/// What the extenders made of the nodes.
#[derive(Default)]
struct Said {
    nodes: Vec<(String, i64)>,
    rejected: Filtered,
}

/// Why nothing is known: the text of an extender that is not ignorable, or no pod.
enum Unknown {
    Failed(String),
    Gone,
}

impl Worker {
    /// Whether an extender is asked where the pod may go.
    pub(super) fn is_extended(&self, pod: &Pod) -> bool {
        let asks = |one: &Extender| one.filters() || one.prioritizes() || one.preempts();
        self.extenders
            .iter()
            .any(|one| asks(one) && one.is_interested(pod))
    }

    /// The first stage, under the lock.
    pub(super) fn survey(&self, state: &mut State, queued: QueuedPod, served: Arc<Served>) -> Step {
        let State {
            cluster, scheduler, ..
        } = state;
        let surveyed = scheduler.survey(&queued.pod, &served.profile, cluster);
        self.shared
            .count_decision(&served, &scheduler.times, &queued, surveyed.as_ref());
        match surveyed {
            Ok(nodes) => {
                let nodes = nodes
                    .into_iter()
                    .map(|(index, score)| (cluster.node(index).name.clone(), score));
                Step::Surveyed(Box::new(Surveyed {
                    nodes: nodes.collect(),
                    queued,
                    served,
                }))
            }
            Err(failure) => {
                let Failure { error, nomination } = *failure;
                Step::Unfit(Box::new(unfit(state, queued, error, nomination, served)))
            }
        }
    }

    /// Asks where the pod may go, and decides.
    pub(super) async fn extend(&mut self, surveyed: Surveyed) -> Step {
        let Surveyed {
            queued,
            nodes,
            served,
        } = surveyed;
        let total = nodes.len();
        let said = match self.ask_all(&queued.pod, nodes).await {
            Ok(said) => said,
            Err(Unknown::Gone) => Said::default(),
            Err(Unknown::Failed(why)) => return self.set_back(queued, &served, why),
        };
        let now = Instant::now();
        let shared = self.shared.clone();
        let mut state = shared.state.lock();
        let mut left = said.nodes;
        while !left.is_empty() {
            let highest = left.iter().map(|(_, score)| *score).max().unwrap_or(0);
            let best: Vec<usize> = (0..left.len())
                .filter(|place| left[*place].1 == highest)
                .collect();
            let (name, _) = left.swap_remove(best[rand::rng().random_range(0..best.len())]);
            let State {
                cluster, scheduler, ..
            } = &mut *state;
            if let Some(index) = scheduler.fits(&queued.pod, &served.profile, cluster, &name) {
                return Step::Bind(decide(
                    &mut state,
                    queued,
                    index,
                    served,
                    &self.extenders,
                    now,
                ));
            }
        }
        let mut error = FitError {
            nodes: state.cluster.node_count().max(total),
            ..FitError::default()
        };
        for (failed, is_resolvable) in [
            (&said.rejected.failed, true),
            (&said.rejected.unresolvable, false),
        ] {
            for (name, why) in failed {
                error.reasons.count(&Rejection {
                    reason: why.clone().into(),
                    is_resolvable,
                });
                error.resolvable.extend(
                    state
                        .cluster
                        .find_node(name)
                        .filter(|_| is_resolvable)
                        .map(|info| info.index),
                );
            }
        }
        let State {
            cluster, scheduler, ..
        } = &mut *state;
        let nomination = scheduler.preempt(&queued.pod, &served.profile, cluster, &mut error);
        // Whatever happens may change an extender's mind.
        error.plugins.clear();
        Step::Unfit(Box::new(unfit(
            &mut state, queued, error, nomination, served,
        )))
    }

    /// Asks whom to evict, and ends the attempt.
    pub(super) async fn give_up(&mut self, unfit: Unfit) -> Failed {
        let Unfit {
            queued,
            error,
            candidates,
            nomination,
            served,
        } = unfit;
        let asked = !candidates.is_empty()
            && self
                .extenders
                .iter()
                .any(|one| one.preempts() && one.is_interested(&queued.pod));
        let chosen = if asked {
            Some(self.ask_preempt(&queued.pod, candidates).await)
        } else {
            None
        };
        let mut state = self.shared.state.lock();
        let nomination = match chosen {
            None => nomination,
            Some(candidates) => {
                let there = candidates.into_iter().filter_map(|(name, candidate)| {
                    let node = state.cluster.find_node(&name)?.index;
                    Some(Candidate { node, ..candidate })
                });
                preemption::choose(there.collect()).unwrap_or(Nomination::Clear)
            }
        };
        conclude(
            &mut state,
            queued,
            error,
            nomination,
            served,
            Instant::now(),
        )
    }

    /// An extender that is needed does not answer: the pod is tried again later.
    fn set_back(&mut self, queued: QueuedPod, served: &Served, why: String) -> Step {
        let pod = queued.pod.clone();
        let now = Instant::now();
        served.count_attempt(Outcome::Error, &queued);
        let mut state = self.shared.state.lock();
        state
            .queue
            .failed(queued, pod.clone(), &Default::default(), now);
        state
            .queue
            .on_change(&crate::framework::Change::NominationGone, now);
        drop(state);
        tracing::warn!(
            pod = pod.key(),
            error = why,
            "an extender failed, the pod will be tried again"
        );
        self.report(served, &pod, "SchedulerError", &why, None);
        Step::Again
    }

    async fn whole_pod(&self, pod: &Pod) -> Result<Value, ClientError> {
        self.client.get(&PODS, &pod.namespace, &pod.name).await
    }

    fn whole_nodes(&self, extender: &Extender, names: &[String]) -> Vec<Value> {
        let Some(nodes) = self.whole_nodes.as_ref().filter(|_| extender.needs_nodes()) else {
            return Vec::new();
        };
        names
            .iter()
            .filter_map(|name| nodes.get(name))
            .map(|node| Value::clone(&node))
            .collect()
    }

    /// Filters with one extender after the other, then scores with all.
    async fn ask_all(&self, pod: &Arc<Pod>, nodes: Vec<(String, i64)>) -> Result<Said, Unknown> {
        let whole = match self.whole_pod(pod).await {
            Ok(whole) => whole,
            Err(error) if error.is_not_found() => return Err(Unknown::Gone),
            Err(error) => return Err(Unknown::Failed(error.to_string())),
        };
        let mut said = Said {
            nodes,
            rejected: Filtered::default(),
        };
        let interested: Vec<&Extender> = self
            .extenders
            .iter()
            .filter(|one| one.is_interested(pod))
            .collect();
        for extender in interested.iter().filter(|one| one.filters()) {
            let names: Vec<String> = said.nodes.iter().map(|(name, _)| name.clone()).collect();
            if names.is_empty() {
                break;
            }
            match extender
                .filter(&whole, &names, &self.whole_nodes(extender, &names))
                .await
            {
                Ok(filtered) => {
                    said.nodes.retain(|(name, _)| filtered.nodes.contains(name));
                    said.rejected.failed.extend(filtered.failed);
                    said.rejected.unresolvable.extend(filtered.unresolvable);
                }
                Err(error) if extender.is_ignorable() => {
                    tracing::info!(
                        extender = extender.name(),
                        error,
                        "an extender failed and is ignored"
                    );
                }
                Err(error) => return Err(Unknown::Failed(error)),
            }
        }
        if said.nodes.len() > 1 {
            let names: Vec<String> = said.nodes.iter().map(|(name, _)| name.clone()).collect();
            let scores = interested
                .iter()
                .filter(|one| one.prioritizes())
                .map(|extender| {
                    let (whole, names) = (&whole, &names);
                    async move {
                        extender
                            .prioritize(whole, names, &self.whole_nodes(extender, names))
                            .await
                    }
                });
            for scores in futures::future::join_all(scores).await {
                // Upstream goes on without the scores of those that fail.
                let Ok(scores) = scores else { continue };
                for (name, total) in &mut said.nodes {
                    *total = total.saturating_add(scores.get(name).copied().unwrap_or(0));
                }
            }
        }
        Ok(said)
    }

    /// The candidates that are left when every extender has been asked (callExtenders).
    async fn ask_preempt(
        &self,
        pod: &Arc<Pod>,
        mut candidates: Vec<(String, Candidate)>,
    ) -> Vec<(String, Candidate)> {
        let Ok(whole) = self.whole_pod(pod).await else {
            return Vec::new();
        };
        for extender in self
            .extenders
            .iter()
            .filter(|one| one.preempts() && one.is_interested(pod))
        {
            let mut asked = BTreeMap::new();
            for (name, candidate) in &candidates {
                let mut victims = Victims {
                    uids: candidate
                        .victims
                        .iter()
                        .map(|one| one.uid.to_string())
                        .collect(),
                    whole: Vec::new(),
                    violations: candidate.violations,
                };
                if extender.needs_nodes() {
                    for victim in &candidate.victims {
                        victims.whole.extend(self.whole_pod(victim).await.ok());
                    }
                }
                asked.insert(name.clone(), victims);
            }
            match extender.preempt(&whole, &asked).await {
                Ok(left) => candidates.retain_mut(|(name, candidate)| {
                    let Some(uids) = left.get(name) else {
                        return false;
                    };
                    candidate
                        .victims
                        .retain(|victim| uids.iter().any(|uid| **uid == *victim.uid));
                    true
                }),
                Err(error) if extender.is_ignorable() => {
                    tracing::info!(
                        extender = extender.name(),
                        error,
                        "an extender failed and is ignored"
                    );
                }
                Err(error) => {
                    tracing::warn!(
                        extender = extender.name(),
                        error,
                        "an extender failed, nobody is evicted"
                    );
                    return Vec::new();
                }
            }
        }
        candidates
    }
}

fn unfit(
    state: &mut State,
    queued: QueuedPod,
    error: FitError,
    nomination: Nomination,
    served: Arc<Served>,
) -> Unfit {
    let named = |candidate: Candidate| (state.cluster.node(candidate.node).name.clone(), candidate);
    let (nomination, candidates) = nomination.into_candidates();
    Unfit {
        queued,
        error,
        candidates: candidates.into_iter().map(named).collect(),
        nomination,
        served,
    }
}
