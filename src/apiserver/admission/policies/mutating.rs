//! MutatingAdmissionPolicy (KEP-3962): changes in CEL, made one after the other in the order of names.

use apimachinery::status::{Cause, Details, Reason};
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;

use super::super::{Attributes, Plugin};
use super::dispatch::{Invocation, Known, fails};
use super::patch::{self, Change};
use super::{Evaluation, Seen, conditions, decided, is_exempt};
use crate::admission::webhooks::review;
use crate::kinds::tree::{at, items, semantically_equal, text};

const POLICIES: &str = "mutatingadmissionpolicies";
const BINDINGS: &str = "mutatingadmissionpolicybindings";
const NAME: &str = "MutatingAdmissionPolicy";

pub struct MutatingAdmissionPolicy;

#[async_trait]
impl Plugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        !is_exempt(attributes)
    }

    async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), Status> {
        let Some(known) = Known::read(attributes, POLICIES, BINDINGS).await? else {
            return Ok(());
        };
        let concerned = known.concerned(attributes, Some(object)).await?;
        let mut errors: Vec<(String, bool)> = concerned
            .troubles
            .iter()
            .filter(|trouble| trouble.counts())
            .map(|trouble| {
                (
                    told(trouble.policy, trouble.binding, &trouble.message),
                    false,
                )
            })
            .collect();
        let notes = &attributes.reinvocation;
        notes.begin(NAME, object);
        let mut patched = false;
        for invocation in &concerned.invocations {
            match invoke(attributes, invocation, object).await? {
                Outcome::Passed => {}
                Outcome::Ran(refusals) => {
                    patched = true;
                    if fails(invocation.policy) {
                        errors.extend(refusals.into_iter().map(|why| {
                            let told = told(invocation.policy, Some(invocation.binding), &why);
                            (told, true)
                        }));
                    }
                }
            }
        }
        if patched {
            notes.changed(NAME);
        }
        notes.end(NAME, object);
        if errors.is_empty() {
            return Ok(());
        }
        Err(refused(attributes, errors))
    }
}

/// How an invocation went.
enum Outcome {
    /// It had no say.
    Passed,
    /// It ran, and these of its parts failed.
    Ran(Vec<String>),
}

/// Has one policy change the object.
async fn invoke(
    attributes: &Attributes<'_>,
    invocation: &Invocation<'_>,
    object: &mut Value,
) -> Result<Outcome, Status> {
    let spec = at(invocation.policy, &["spec"]);
    let programs = &attributes.registry.admission.programs;
    let parameter = Some(&invocation.parameter);
    let mut seen = Seen::of(attributes, &invocation.asked, Some(object)).await?;
    let meant = decided(attributes, |oracle| {
        conditions(
            spec,
            &Evaluation::new(programs, &seen, parameter, spec, oracle),
        )
    })
    .await;
    match meant {
        Ok(true) => {}
        Ok(false) => return Ok(Outcome::Passed),
        Err(why) => return Ok(Outcome::Ran(vec![why])),
    }
    let notes = &attributes.reinvocation;
    let key = key(invocation);
    if !notes.may_run(NAME, &key) {
        return Ok(Outcome::Passed);
    }
    let before = object.clone();
    let mut failures = Vec::new();
    for mutation in items(spec, &["mutations"]) {
        let made = decided(attributes, |oracle| {
            let evaluation = Evaluation::new(programs, &seen, parameter, spec, oracle);
            patch::made(mutation, &evaluation)
        })
        .await;
        match made.and_then(|change| apply(invocation, seen.object(), &change)) {
            Ok(Some(changed)) => {
                *object = review::settled(attributes, &invocation.asked, changed)
                    .map_err(Status::internal)?;
                let asked = &invocation.asked;
                seen.replace(review::in_version(attributes, object, asked.resource));
            }
            Ok(None) => {}
            Err(why) => failures.push(why),
        }
    }
    if !semantically_equal(&before, object) {
        notes.changed(NAME);
    }
    if text(spec, &["reinvocationPolicy"]) == "IfNeeded" {
        notes.ran(NAME, &key);
    }
    Ok(Outcome::Ran(failures))
}

/// The changed object, in the version of the policy; nothing where a patch's test does not hold.
fn apply(
    invocation: &Invocation<'_>,
    object: &Value,
    change: &Change,
) -> Result<Option<Value>, String> {
    match change {
        Change::Json(operations) => patch::json(object, operations),
        Change::Apply(configuration) => {
            patch::apply(object, configuration, invocation.asked.resource.schema).map(Some)
        }
    }
}

/// Policy, binding and parameter.
fn key(invocation: &Invocation<'_>) -> String {
    format!(
        "{}/{}/{}/{}",
        meta::name(invocation.policy),
        meta::name(invocation.binding),
        meta::namespace(&invocation.parameter),
        meta::name(&invocation.parameter)
    )
}

fn told(policy: &Value, binding: Option<&Value>, message: &str) -> String {
    let policy = meta::name(policy);
    match binding {
        Some(binding) => format!(
            "policy '{policy}' with binding '{}' denied request: {message}",
            meta::name(binding)
        ),
        None => format!("policy {policy:?} denied request: {message}"),
    }
}

/// Every error is a cause, the first is the message; errors of expressions make it `Invalid`, but 403 still.
fn refused(attributes: &Attributes<'_>, errors: Vec<(String, bool)>) -> Status {
    let mut status = attributes.forbidden("");
    if let Some((message, invalid)) = errors.first() {
        status.message = message.clone();
        if *invalid {
            status.reason = Reason::Invalid;
        }
    }
    let details = status.details.get_or_insert_with(Details::default);
    details
        .causes
        .extend(errors.into_iter().map(|(message, _)| Cause {
            message,
            ..Cause::default()
        }));
    status
}
