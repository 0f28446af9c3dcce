//! Eviction: a delete that asks the pod's disruption budget first (`EvictionREST.Create`).

use apimachinery::selector::LabelSelector;
use apimachinery::status::{Cause, Details};
use apimachinery::{Status, Value, meta, time};

use super::super::super::tree::{at, int, items, object_mut, text};
use super::success;
use crate::query::Query;
use crate::registry::options::{DeleteOptions, WriteOptions};
use crate::registry::strategy::Change;

/// Most pods a budget remembers as on their way out (`MaxDisruptedPodSize`).
const MAX_DISRUPTED: usize = 2000;

const MANY: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
const VIOLATES: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// Deletes the pod when its budget has room.
pub async fn evict(
    change: &Change<'_>,
    name: &str,
    eviction: &Value,
    options: &WriteOptions,
) -> Result<Value, Status> {
    if !meta::name(eviction).is_empty() && meta::name(eviction) != name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let sent = Some(at(eviction, &["deleteOptions"])).filter(|options| !options.is_null());
    let mut delete = DeleteOptions::parse(sent, &Query::default())?;
    delete.dry_run |= options.dry_run;
    let registry = change.registry;
    let pod = registry
        .stored_value("", "pods", change.namespace, name)
        .await?
        .ok_or_else(|| Status::not_found("", "pods", name))?;
    if !ignores_budget(&pod) {
        take_from_budget(change, &pod, name, delete.dry_run).await?;
    }
    registry.delete(change, name, &delete).await?;
    Ok(success())
}

/// Pods that do not run, or are on their way out, disrupt nothing.
fn ignores_budget(pod: &Value) -> bool {
    matches!(
        text(pod, &["status", "phase"]),
        "Succeeded" | "Failed" | "Pending"
    ) || meta::is_deleting(pod)
}

async fn take_from_budget(
    change: &Change<'_>,
    pod: &Value,
    name: &str,
    dry_run: bool,
) -> Result<(), Status> {
    let registry = change.registry;
    let budgets = registry
        .cached_values("policy", "poddisruptionbudgets")
        .await?;
    let mut matching = budgets.iter().filter(|budget| {
        meta::namespace(budget) == change.namespace
            && LabelSelector::from_value(at(budget, &["spec", "selector"]))
                .is_ok_and(|selector| selector.matches_object(pod))
    });
    let Some(budget) = matching.next() else {
        return Ok(());
    };
    if matching.next().is_some() {
        return Err(Status::internal(MANY));
    }
    let ready = items(pod, &["status", "conditions"])
        .iter()
        .any(|condition| {
            text(condition, &["type"]) == "Ready" && text(condition, &["status"]) == "True"
        });
    let policy = text(budget, &["spec", "unhealthyPodEvictionPolicy"]);
    let healthy = int(budget, &["status", "currentHealthy"]).unwrap_or(0);
    let desired = int(budget, &["status", "desiredHealthy"]).unwrap_or(0);
    if !ready && (policy == "AlwaysAllow" || (healthy >= desired && desired > 0)) {
        return Ok(());
    }
    let called = meta::name(budget).to_owned();
    let kind = registry
        .kind("policy", "poddisruptionbudgets")
        .ok_or_else(Status::path_not_found)?;
    let of_budget = Change {
        registry,
        request: change.request,
        resource: kind.storage,
        subresource: "status",
        namespace: change.namespace,
        dry_run,
    };
    registry
        .modify(&of_budget, &called, |budget| spend(budget, &called, name))
        .await
}

/// One disruption less is allowed.
fn spend(budget: &mut Value, called: &str, pod: &str) -> Result<(), Status> {
    let observed = int(budget, &["status", "observedGeneration"]).unwrap_or(0);
    if observed < meta::generation(budget) {
        return Err(too_many(
            10,
            format!("The disruption budget {called} is still being processed by the server."),
        ));
    }
    let allowed = int(budget, &["status", "disruptionsAllowed"]).unwrap_or(0);
    if allowed < 0 {
        return Err(Status::forbidden(
            "policy",
            "poddisruptionbudget",
            called,
            "pdb disruptions allowed is negative",
        ));
    }
    let disrupted = at(budget, &["status", "disruptedPods"])
        .as_object()
        .map_or(0, serde_json::Map::len);
    if disrupted > MAX_DISRUPTED {
        return Err(Status::forbidden(
            "policy",
            "poddisruptionbudget",
            called,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let healthy = int(budget, &["status", "currentHealthy"]).unwrap_or(0);
        let desired = int(budget, &["status", "desiredHealthy"]).unwrap_or(0);
        return Err(too_many(
            0,
            format!(
                "The disruption budget {called} needs {desired} healthy pods and has {healthy} currently"
            ),
        ));
    }
    let status = object_mut(budget, &["status"]);
    status.insert("disruptionsAllowed".to_owned(), (allowed - 1).into());
    object_mut(budget, &["status", "disruptedPods"])
        .insert(pod.to_owned(), time::now_text().into());
    Ok(())
}

fn too_many(retry: i32, message: String) -> Status {
    let mut status = Status::too_many_requests(VIOLATES, retry);
    let details = status.details.get_or_insert_with(Details::default);
    details.causes.push(Cause {
        reason: "DisruptionBudget".to_owned(),
        message,
        field: String::new(),
    });
    status
}
