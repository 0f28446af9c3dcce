//! horizontal-pod-autoscaler-controller: sets the replicas of what has a scale by what is measured.
//!
//! `metrics` asks the metrics APIs, `replicas` computes what each metric calls for, `behavior` limits how fast it
//! changes. This file goes through them for one autoscaler, and writes the scale and the status.

mod behavior;
mod metrics;
mod replicas;
mod view;

use std::{collections::HashMap, time::Duration};

use api::r::{HORIZONTALPODAUTOSCALERS, PODS};
use apimachinery::{
    Value,
    quantity::Quantity,
    selector::LabelSelector,
    time::{now, now_text},
};
use async_trait::async_trait;
use client::{
    Client, ClientError, Informer, Selectors,
    events::{EventKind, ObjectReference, Recorder},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    Context, Controller,
    context::synced,
    discovery,
    endpoints::BY_NAMESPACE,
    objects::{Pod, printed_selector},
    writes::write_status,
};
use behavior::Memory;
use replicas::{Answer, Goal, Observed};
use view::{Autoscaler, Condition, Metric, Source, Status, Target};

/// Autoscalers looked at at a time (`--concurrent-horizontal-pod-autoscaler-syncs`).
const WORKERS: usize = 5;
/// How often each is looked at (`--horizontal-pod-autoscaler-sync-period`).
const PERIOD: Duration = Duration::from_secs(15);
/// Kinds whose resource is remembered.
const MAX_KINDS: usize = 1000;

pub struct Autoscaling;

struct Scaler {
    client: Client,
    recorder: Recorder,
    autoscalers: Informer<Autoscaler>,
    pods: Informer<Pod>,
    memories: Mutex<HashMap<String, Memory>>,
    kinds: Mutex<HashMap<(String, String), discovery::Served>>,
}

#[async_trait]
impl Controller for Autoscaling {
    fn name(&self) -> &'static str {
        "horizontal-pod-autoscaler-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["horizontalpodautoscaling"]
    }

    async fn run(&self, context: Context) {
        let informers = &context.informers;
        let scaler = Scaler {
            client: context.client.clone(),
            recorder: context.recorder("horizontal-pod-autoscaler"),
            autoscalers: informers.informer(&HORIZONTALPODAUTOSCALERS, "", Selectors::default()),
            pods: informers.informer(&PODS, "", Selectors::default()),
            memories: Mutex::default(),
            kinds: Mutex::default(),
        };
        let Scaler {
            autoscalers, pods, ..
        } = &scaler;
        pods.add_index(BY_NAMESPACE, |pod| vec![pod.metadata.namespace.clone()]);
        if !synced!(context, autoscalers, pods) {
            return;
        }
        let queue = Queue::default();
        let keys = queue.clone();
        autoscalers.add_handler(move |change| {
            // One's own status needs no look; what is wanted does.
            let same = match (&change.old, &change.new) {
                (Some(old), Some(new)) => {
                    old.spec == new.spec && old.metadata.uid == new.metadata.uid
                }
                _ => false,
            };
            if !same {
                keys.add(change.key.to_string());
            }
        });
        let name = "horizontal-pod-autoscaler";
        workqueue::run(name, &queue, WORKERS, &context.shutdown, |key| {
            let scaler = &scaler;
            async move { scaler.reconcile(&key).await }
        })
        .await;
    }
}

/// What a look at an autoscaler leads to, put together step by step.
struct Look<'a> {
    autoscaler: &'a Autoscaler,
    object: ObjectReference,
    status: Status,
}

impl Look<'_> {
    fn say(&mut self, kind: &str, status: bool, reason: &str, message: impl Into<String>) {
        let status = if status { "True" } else { "False" };
        let conditions = &mut self.status.conditions;
        let old = conditions.iter().position(|one| one.kind == kind);
        let since = old
            .map(|index| &conditions[index])
            .filter(|one| one.status == status)
            .and_then(|one| one.last_transition_time.clone());
        let condition = Condition {
            kind: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            last_transition_time: since.or_else(|| Some(now_text())),
        };
        match old {
            Some(index) => conditions[index] = condition,
            None => conditions.push(condition),
        }
    }
}

impl Scaler {
    async fn reconcile(&self, key: &str) -> Result<Requeue, ClientError> {
        let Some(autoscaler) = self.autoscalers.get(key) else {
            self.memories.lock().remove(key);
            return Ok(Requeue::No);
        };
        let meta = &autoscaler.metadata;
        let mut look = Look {
            autoscaler: &autoscaler,
            object: ObjectReference {
                api_version: "autoscaling/v2".into(),
                kind: "HorizontalPodAutoscaler".into(),
                namespace: meta.namespace.clone(),
                name: meta.name.clone(),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                field_path: String::new(),
            },
            status: autoscaler.status.clone(),
        };
        look.status.observed_generation = (meta.generation > 0).then_some(meta.generation);
        if let Err(why) = self.look(key, &mut look).await {
            tracing::debug!(autoscaler = key, %why, "cannot scale");
        }
        if look.status != autoscaler.status {
            let resource = &HORIZONTALPODAUTOSCALERS;
            write_status(&self.client, resource, meta, &look.status).await?;
        }
        Ok(Requeue::After(PERIOD))
    }

    /// One look: what the scale is, what it should be, and the change.
    async fn look(&self, key: &str, look: &mut Look<'_>) -> Result<(), String> {
        let spec = &look.autoscaler.spec;
        let namespace = &look.autoscaler.metadata.namespace;
        let (path, scale) = match self.scale(namespace, &spec.scale_target_ref).await {
            Ok(found) => found,
            Err(why) => {
                self.recorder
                    .event(&look.object, EventKind::Warning, "FailedGetScale", &why);
                let message = format!(
                    "the HPA controller was unable to get the target's current scale: {why}"
                );
                look.say("AbleToScale", false, "FailedGetScale", message);
                return Err(why);
            }
        };
        let message = "the HPA controller was able to get the target's current scale";
        look.say("AbleToScale", true, "SucceededGetScale", message);
        let current = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        look.status.current_replicas = current;
        let min = spec.min_replicas.unwrap_or(1);
        let (desired, why) = if current == 0 && min != 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            look.say("ScalingActive", false, "ScalingDisabled", message);
            (0, String::new())
        } else if current > spec.max_replicas {
            (
                spec.max_replicas,
                "Current number of replicas above Spec.MaxReplicas".into(),
            )
        } else if current < min {
            (
                min,
                "Current number of replicas below Spec.MinReplicas".into(),
            )
        } else {
            self.measured(key, look, &scale, current, min).await?
        };
        look.status.desired_replicas = desired;
        if desired == current {
            return Ok(());
        }
        self.set_scale(look, &path, scale, desired, &why).await?;
        let mut memories = self.memories.lock();
        memories
            .entry(key.into())
            .or_default()
            .scaled(current, desired, now());
        Ok(())
    }

    async fn set_scale(
        &self,
        look: &mut Look<'_>,
        path: &str,
        mut scale: Value,
        desired: i64,
        why: &str,
    ) -> Result<(), String> {
        scale["spec"]["replicas"] = json!(desired);
        let put = self
            .client
            .call_path::<Value>(http::Method::PUT, path, Some(&scale));
        let object = &look.object;
        if let Err(error) = put.await {
            let message = format!("New size: {desired}; reason: {why}; error: {error}");
            self.recorder
                .event(object, EventKind::Warning, "FailedRescale", message);
            let message =
                format!("the HPA controller was unable to update the target scale: {error}");
            look.say("AbleToScale", false, "FailedUpdateScale", message);
            look.status.desired_replicas = look.autoscaler.status.desired_replicas;
            return Err(error.to_string());
        }
        let message = format!("New size: {desired}; reason: {why}");
        self.recorder
            .event(object, EventKind::Normal, "SuccessfulRescale", message);
        let message =
            format!("the HPA controller was able to update the target scale to {desired}");
        look.say("AbleToScale", true, "SucceededRescale", message);
        look.status.last_scale_time = Some(now_text());
        Ok(())
    }

    /// What the metrics call for, within the limits; and why.
    async fn measured(
        &self,
        key: &str,
        look: &mut Look<'_>,
        scale: &Value,
        current: i64,
        min: i64,
    ) -> Result<(i64, String), String> {
        let spec = &look.autoscaler.spec;
        let text = scale["status"]["selector"].as_str().unwrap_or("");
        if text.is_empty() {
            self.recorder.event(
                &look.object,
                EventKind::Warning,
                "SelectorRequired",
                "selector is required",
            );
            let message = "the HPA target's scale is missing a selector";
            look.say("ScalingActive", false, "InvalidSelector", message);
            return Err("selector is required".into());
        }
        let selector = LabelSelector::parse(text)?;
        let namespace = &look.autoscaler.metadata.namespace;
        let mut pods = self.pods.by_index(BY_NAMESPACE, namespace);
        pods.retain(|pod| selector.matches(&pod.metadata.labels));
        let behavior = spec.behavior.clone();
        let observed = Observed {
            pods: &pods,
            current,
            there: scale["status"]["replicas"].as_i64().unwrap_or(0),
            tolerance: behavior::tolerance(behavior.as_ref()),
            now: now(),
        };
        let (mut best, mut statuses, mut failure) = (None::<(i64, String)>, Vec::new(), None);
        for metric in &spec.metrics {
            match self.one(namespace, text, metric, &observed).await {
                Ok((answer, name, status)) => {
                    statuses.push(status);
                    if best
                        .as_ref()
                        .is_none_or(|(replicas, _)| answer.replicas > *replicas)
                    {
                        best = Some((answer.replicas, name));
                    }
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        look.status.current_metrics = statuses;
        if let Some((reason, why)) = &failure {
            self.recorder
                .event(&look.object, EventKind::Warning, reason, why);
            // Some metric is unknown: growing is safe, shrinking is not.
            if best
                .as_ref()
                .is_none_or(|(replicas, _)| *replicas < current)
            {
                let message = format!("the HPA was unable to compute the replica count: {why}");
                look.say("ScalingActive", false, reason, message);
                let message = format!(
                    "invalid metrics ({} invalid out of {}), first error is: {why}",
                    spec.metrics.len() - look.status.current_metrics.len(),
                    spec.metrics.len()
                );
                self.recorder.event(
                    &look.object,
                    EventKind::Warning,
                    "FailedComputeMetricsReplicas",
                    &message,
                );
                return Err(message);
            }
        }
        let Some((recommended, name)) = best else {
            return Err("no metrics are named".into());
        };
        let message =
            format!("the HPA was able to successfully calculate a replica count from {name}");
        look.say("ScalingActive", true, "ValidMetricFound", message);
        let limits = (min, spec.max_replicas);
        let outcome = {
            let mut memories = self.memories.lock();
            let memory = memories.entry(key.into()).or_default();
            memory.settle(
                behavior.as_ref(),
                current,
                recommended,
                limits,
                observed.now,
            )
        };
        look.say("AbleToScale", true, outcome.able.0, outcome.able.1);
        let (limited, reason, message) = outcome.limited;
        look.say("ScalingLimited", limited, reason, message);
        let why = if outcome.replicas > current {
            format!("{name} above target")
        } else {
            "All metrics below target".into()
        };
        Ok((outcome.replicas, why))
    }

    /// What one metric calls for, what it is called, and its status; or the event's reason and why not.
    async fn one(
        &self,
        namespace: &str,
        selector: &str,
        metric: &Metric,
        observed: &Observed<'_>,
    ) -> Result<(Answer, String, Value), (&'static str, String)> {
        let missing = |reason: &'static str| (reason, "the metric has no source".to_string());
        match metric.kind.as_str() {
            "Resource" | "ContainerResource" => {
                let of_container = metric.kind == "ContainerResource";
                let (field, reason) = if of_container {
                    ("containerResource", "FailedGetContainerResourceMetric")
                } else {
                    ("resource", "FailedGetResourceMetric")
                };
                let source = if of_container {
                    &metric.container_resource
                } else {
                    &metric.resource
                };
                let source = source.as_ref().ok_or_else(|| missing(reason))?;
                let answer = self.resource(namespace, selector, source, observed).await;
                let answer = answer.map_err(|why| {
                    (
                        reason,
                        format!("failed to get {} utilization: {why}", source.name),
                    )
                })?;
                let (name, what) = described(source, answer.utilization.is_some());
                let mut current = json!({"averageValue": quantity(answer.average)});
                if let Some(utilization) = answer.utilization {
                    current["averageUtilization"] = json!(utilization);
                }
                let mut status = json!({"name": name, "current": current});
                if of_container {
                    status["container"] = json!(source.container);
                }
                Ok((answer, what, json!({"type": metric.kind, field: status})))
            }
            "Pods" => {
                let reason = "FailedGetPodsMetric";
                let source = metric.pods.as_ref().ok_or_else(|| missing(reason))?;
                let name = &source.metric.name;
                let wanted = metrics::selector_text(&source.metric.selector);
                let samples = metrics::of_pods(&self.client, namespace, selector, name, &wanted);
                let goal = Goal::Average(source.target.average().unwrap_or(0));
                let answer = samples
                    .await
                    .and_then(|samples| replicas::of_pods(observed, samples, goal, false));
                let answer = answer
                    .map_err(|why| (reason, format!("unable to get metric {name}: {why}")))?;
                let status = json!({"metric": identifier(source), "current": {"averageValue": quantity(answer.average)}});
                Ok((
                    answer,
                    format!("pods metric {name}"),
                    json!({"type": "Pods", "pods": status}),
                ))
            }
            "Object" => {
                let reason = "FailedGetObjectMetric";
                let source = metric.object.as_ref().ok_or_else(|| missing(reason))?;
                let name = &source.metric.name;
                let (answer, current) =
                    self.object(namespace, source, observed)
                        .await
                        .map_err(|why| {
                            (reason, format!("failed to get {name} object metric: {why}"))
                        })?;
                let described = &source.described_object;
                let status = json!({
                    "metric": identifier(source), "current": current,
                    "describedObject": {"apiVersion": described.api_version, "kind": described.kind, "name": described.name},
                });
                Ok((
                    answer,
                    format!("{} metric {name}", described.kind),
                    json!({"type": "Object", "object": status}),
                ))
            }
            "External" => {
                let reason = "FailedGetExternalMetric";
                let source = metric.external.as_ref().ok_or_else(|| missing(reason))?;
                let name = &source.metric.name;
                let wanted = metrics::selector_text(&source.metric.selector);
                let value = metrics::of_external(&self.client, namespace, name, &wanted).await;
                let printed = printed_selector(&source.metric.selector);
                let value = value.map_err(|why| {
                    let what = if source.target.average().is_some() {
                        format!("{name} external metric")
                    } else {
                        format!("external metric {name}")
                    };
                    let why = format!("failed to get {what}: unable to get external metric {namespace}/{name}/{printed}: {why}");
                    (reason, why)
                })?;
                let (answer, current) = valued(source, value, observed);
                let status = json!({"metric": identifier(source), "current": current});
                Ok((
                    answer,
                    format!("external metric {name}({printed})"),
                    json!({"type": "External", "external": status}),
                ))
            }
            other => Err((
                "InvalidMetricSourceType",
                format!("unknown metric source type {other:?}"),
            )),
        }
    }

    async fn resource(
        &self,
        namespace: &str,
        selector: &str,
        source: &Source,
        observed: &Observed<'_>,
    ) -> Result<Answer, String> {
        let (name, container) = (&source.name, &source.container);
        let samples = metrics::of_resource(&self.client, namespace, selector, name, container)
            .await
            .map_err(|why| format!("unable to get metrics for resource {name}: {why}"))?;
        let goal = match (source.target.average_utilization, source.target.average()) {
            (Some(percent), _) => Goal::Utilization {
                percent,
                resource: name,
                container,
            },
            (None, Some(average)) => Goal::Average(average),
            (None, None) => return Err("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set".into()),
        };
        replicas::of_pods(observed, samples, goal, name == "cpu")
    }

    async fn object(
        &self,
        namespace: &str,
        source: &Source,
        observed: &Observed<'_>,
    ) -> Result<(Answer, Value), String> {
        let described = &source.described_object;
        let served = self.served(described).await?;
        let resource = if served.group.is_empty() {
            served.resource.clone()
        } else {
            format!("{}.{}", served.resource, served.group)
        };
        let name = &source.metric.name;
        let wanted = metrics::selector_text(&source.metric.selector);
        let object = (resource.as_str(), described.name.as_str());
        let value = metrics::of_object(&self.client, namespace, object, name, &wanted).await?;
        Ok(valued(source, value, observed))
    }

    /// The path of the target's scale, and the scale.
    async fn scale(&self, namespace: &str, target: &Target) -> Result<(String, Value), String> {
        let served = self.served(target).await?;
        let path = format!("{}/{}/scale", served.path(namespace), target.name);
        let scale = self.client.get_path::<Value>(&path).await;
        scale
            .map(|scale| (path, scale))
            .map_err(|error| error.to_string())
    }

    /// How the target's kind is served.
    async fn served(&self, target: &Target) -> Result<discovery::Served, String> {
        let kind = (target.api_version.clone(), target.kind.clone());
        if let Some(known) = self.kinds.lock().get(&kind) {
            return Ok(known.clone());
        }
        let (group, version) = apimachinery::meta::group_version(&target.api_version);
        let (all, _) = discovery::preferred(&self.client)
            .await
            .map_err(|error| error.to_string())?;
        let found = all
            .into_iter()
            .find(|one| one.group == group && one.kind == target.kind);
        let Some(mut served) = found else {
            return Err(format!(
                "no matches for kind {:?} in group {group:?}",
                target.kind
            ));
        };
        served.version = version.into();
        let mut kinds = self.kinds.lock();
        if kinds.len() >= MAX_KINDS {
            kinds.clear();
        }
        kinds.insert(kind, served.clone());
        Ok(served)
    }
}

/// The name of a resource metric, and what it is called in messages.
fn described(source: &Source, utilization: bool) -> (&str, String) {
    let name = source.name.as_str();
    let container = if source.container.is_empty() {
        "resource".to_string()
    } else {
        "container resource".to_string()
    };
    let what = if utilization {
        format!("{name} {container} utilization (percentage of request)")
    } else {
        format!("{name} {container}")
    };
    (name, what)
}

/// What a single value calls for, and the status' `current`.
fn valued(source: &Source, value: i64, observed: &Observed<'_>) -> (Answer, Value) {
    if let Some(target) = source.target.average() {
        let answer = replicas::of_average(observed, value, target);
        return (answer, json!({"averageValue": quantity(answer.average)}));
    }
    let target = source.target.value().unwrap_or(0);
    let answer = replicas::of_value(observed, value, target);
    (answer, json!({"value": quantity(value)}))
}

fn quantity(milli: i64) -> String {
    Quantity::from_millis(milli).to_string()
}

fn identifier(source: &Source) -> Value {
    let mut identifier = json!({"name": source.metric.name});
    if source.metric.selector.is_object() {
        identifier["selector"] = source.metric.selector.clone();
    }
    identifier
}

#[cfg(test)]
mod tests;
