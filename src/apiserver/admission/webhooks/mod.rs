//! Admission webhooks: servers of others that change or refuse objects.
//!
//! ```text
//! configurations (cached) ─ matching: rules, selectors ─▶ review: the object in the version the hook knows
//!        ─ client: one POST over TLS ─▶ allowed? patch? warnings? ─▶ object, or refusal
//! ```
//!
//! Mutating hooks run one after the other, those that ask for it once more when the object changed after them;
//! validating hooks run at the same time.

mod client;
pub(super) mod matching;
pub(super) mod review;

use std::time::Duration;

use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use self::matching::{Asked, Hook};
use super::policies::{Evaluation, Seen, conditions, decided};
use super::{Attributes, Operation, Plugin};
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

pub(super) fn is_exempt(attributes: &Attributes<'_>) -> bool {
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
        let notes = &attributes.reinvocation;
        notes.begin(self.name(), object);
        for (index, hook) in hooks.iter().enumerate() {
            let key = format!("{index}/{}", hook.name());
            if !notes.may_run(self.name(), &key) {
                continue;
            }
            let Some(changed) = mutate(attributes, hook, object).await? else {
                continue;
            };
            if changed {
                notes.changed(self.name());
            }
            if text(&hook.0, &["reinvocationPolicy"]) == "IfNeeded" {
                notes.ran(self.name(), &key);
            }
        }
        notes.end(self.name(), object);
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

/// Has a hook change the object; whether it did, or nothing when it was not called.
async fn mutate(
    attributes: &Attributes<'_>,
    hook: &Hook,
    object: &mut Value,
) -> Result<Option<bool>, Status> {
    let Some((asked, answer)) = ask(attributes, hook, Some(object)).await? else {
        return Ok(None);
    };
    if answer.patch.is_null() {
        return Ok(Some(false));
    }
    let changed = review::patched(attributes, &asked, object, &answer.patch).map_err(|why| {
        Status::internal(format!("failed calling webhook {:?}: {why}", hook.name()))
    })?;
    let differs = changed != *object;
    *object = changed;
    Ok(Some(differs))
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
    match meets_conditions(attributes, hook, &question).await {
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

/// Whether a hook's match conditions hold.
async fn meets_conditions(
    attributes: &Attributes<'_>,
    hook: &Hook,
    question: &Value,
) -> Result<bool, String> {
    if items(&hook.0, &["matchConditions"]).is_empty() {
        return Ok(true);
    }
    let seen = Seen::from(question.clone(), Value::Null);
    let programs = &attributes.registry.admission.programs;
    decided(attributes, |oracle| {
        let evaluation = Evaluation::new(programs, &seen, None, &hook.0, oracle);
        conditions(&hook.0, &evaluation)
    })
    .await
}
