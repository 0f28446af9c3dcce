//! Admission webhooks: servers of others that change or refuse objects.
//!
//! ```text
//! configurations (cached) ─ matching: rules, selectors ─▶ review: the object in the version the hook knows
//!        ─ client: one POST over TLS ─▶ allowed? patch? warnings? ─▶ object, or refusal
//! ```
//!
//! Mutating hooks run one after the other, those that ask for it once more when a later one changed the object;
//! validating hooks run at the same time.

mod client;
pub(super) mod matching;
pub(super) mod review;

use std::time::Duration;

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use self::matching::{Asked, Hook};
use super::{Attributes, Operation, Plugin};
use crate::cel::{self, Scope};
use crate::kinds::tree::{at, int, items, text};
use crate::registry::Registry;

const GROUP: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";
/// How long a hook has when it does not say (seconds).
const DEFAULT_TIMEOUT: i64 = 10;

/// Kinds no hook is asked about, lest one locks out its own removal.
const EXEMPT: [&str; 6] = [
    MUTATING,
    VALIDATING,
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];

fn is_exempt(attributes: &Attributes<'_>) -> bool {
    attributes.resource.group == GROUP && EXEMPT.contains(&attributes.resource.plural)
}

/// The hooks of all configurations, by the configuration's name.
async fn hooks(registry: &Registry, plural: &'static str) -> Result<Vec<Hook>, Status> {
    let configurations = registry.cached_values(GROUP, plural).await?;
    if configurations.is_empty() {
        return Ok(Vec::new());
    }
    let mut sorted: Vec<&Value> = configurations.iter().collect();
    sorted.sort_by_key(|configuration| meta::name(configuration));
    Ok(sorted
        .into_iter()
        .flat_map(|configuration| items(configuration, &["webhooks"]))
        .cloned()
        .map(Hook)
        .collect())
}

pub struct MutatingAdmissionWebhook;

#[async_trait]
impl Plugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        !is_exempt(attributes)
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        let hooks = hooks(attributes.registry, MUTATING).await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let mut changed_after = vec![false; hooks.len()];
        for (index, hook) in hooks.iter().enumerate() {
            if mutate(attributes, hook, object).await? {
                changed_after[..index].fill(true);
            }
        }
        for (hook, changed) in hooks.iter().zip(changed_after) {
            if changed && text(&hook.0, &["reinvocationPolicy"]) == "IfNeeded" {
                mutate(attributes, hook, object).await?;
            }
        }
        Ok(())
    }

    /// What is deleted cannot be changed, but refused.
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Value>,
    ) -> Result<(), Status> {
        if attributes.operation != Operation::Delete {
            return Ok(());
        }
        for hook in hooks(attributes.registry, MUTATING).await? {
            ask(attributes, &hook, None).await?;
        }
        Ok(())
    }
}

pub struct ValidatingAdmissionWebhook;

#[async_trait]
impl Plugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        !is_exempt(attributes)
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let hooks = hooks(attributes.registry, VALIDATING).await?;
        if hooks.is_empty() {
            return Ok(());
        }
        let asked = hooks.iter().map(|hook| ask(attributes, hook, object));
        for answer in futures::future::join_all(asked).await {
            answer?;
        }
        Ok(())
    }
}

/// Has a hook change the object; whether it did.
async fn mutate(
    attributes: &Attributes<'_>,
    hook: &Hook,
    object: &mut Value,
) -> Result<bool, Status> {
    let Some((asked, answer)) = ask(attributes, hook, Some(object)).await? else {
        return Ok(false);
    };
    if answer.patch.is_null() {
        return Ok(false);
    }
    let changed = review::patched(attributes, &asked, object, &answer.patch).map_err(|why| {
        Status::internal(format!("failed calling webhook {:?}: {why}", hook.name()))
    })?;
    let differs = changed != *object;
    *object = changed;
    Ok(differs)
}

/// Asks a hook, when it is meant; its refusal is the error.
async fn ask(
    attributes: &Attributes<'_>,
    hook: &Hook,
    object: Option<&Value>,
) -> Result<Option<(Asked, review::Answer)>, Status> {
    let Some(asked) = matching::matches(attributes, hook, object).await? else {
        return Ok(None);
    };
    let effects = text(&hook.0, &["sideEffects"]);
    if attributes.dry_run && !matches!(effects, "None" | "NoneOnDryRun") {
        return Err(Status::bad_request(format!(
            "admission webhook {:?} does not support dry run",
            hook.name()
        )));
    }
    let known = items(&hook.0, &["admissionReviewVersions"]);
    let question = review::question(attributes, known, &asked, object);
    match meets_conditions(attributes, hook, at(&question, &["request"])) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(_) if text(&hook.0, &["failurePolicy"]) == "Ignore" => return Ok(None),
        Err(why) => return Err(attributes.forbidden(&why)),
    }
    let seconds = int(&hook.0, &["timeoutSeconds"]).unwrap_or(DEFAULT_TIMEOUT);
    let timeout = Duration::from_secs(seconds.unsigned_abs());
    let config = at(&hook.0, &["clientConfig"]);
    let called = client::call(attributes.registry, config, &question, timeout).await;
    let answer = match called.and_then(|body| review::answer(&question, &body)) {
        Ok(answer) => answer,
        Err(why) if text(&hook.0, &["failurePolicy"]) == "Ignore" => {
            tracing::warn!(webhook = hook.name(), %why, "Failed calling webhook, failing open");
            return Ok(None);
        }
        Err(why) => {
            return Err(Status::internal(format!(
                "failed calling webhook {:?}: {why}",
                hook.name()
            )));
        }
    };
    for warning in &answer.warnings {
        attributes.request.warnings.add(warning.as_str());
    }
    if !answer.allowed {
        return Err(review::denied(hook.name(), answer));
    }
    Ok(Some((asked, answer)))
}

/// Whether a hook's match conditions hold: one that does not counts more than one that cannot be told.
fn meets_conditions(
    attributes: &Attributes<'_>,
    hook: &Hook,
    request: &Value,
) -> Result<bool, String> {
    let conditions = items(&hook.0, &["matchConditions"]);
    if conditions.is_empty() {
        return Ok(true);
    }
    let scope = Scope::new(&[
        ("object", cel::json(at(request, &["object"]))),
        ("oldObject", cel::json(at(request, &["oldObject"]))),
        ("request", cel::json(request)),
    ]);
    let mut error = None;
    for condition in conditions {
        let expression = text(condition, &["expression"]);
        let holds = match &*attributes.registry.admission.programs.get(expression) {
            Ok(program) => program.holds(&scope),
            Err(why) => Err(why.clone()),
        };
        match holds {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(why) => {
                error = Some(format!(
                    "expression '{expression}' resulted in error: {why}"
                ));
            }
        }
    }
    error.map_or(Ok(true), Err)
}
