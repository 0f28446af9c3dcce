//! ValidatingAdmissionPolicy (KEP-3488): rules in CEL that objects are held to, bound where they shall hold.

use std::rc::Rc;

use apimachinery::status::{Cause, Details, Reason};
use apimachinery::{Status, Value, meta};
use async_trait::async_trait;
use cel::authorizer::Oracle;
use cel::{Programs, Val};

use super::super::{Attributes, Plugin};
use super::dispatch::{Invocation, Known, fails};
use super::{Evaluation, Seen, conditions, decided, is_exempt};
use crate::kinds::tree::{at, items, text};

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";

/// One thing a policy holds against an object.
#[derive(Debug)]
struct Denial {
    message: String,
    reason: String,
    /// Whatever the binding's actions are.
    always: bool,
}

impl Denial {
    fn because(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            reason: String::new(),
            always: false,
        }
    }
}

pub struct ValidatingAdmissionPolicy;

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        !is_exempt(attributes)
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(known) = Known::read(attributes, POLICIES, BINDINGS).await? else {
            return Ok(());
        };
        let concerned = known.concerned(attributes, object).await?;
        let mut refusal = None;
        for trouble in concerned.troubles.iter().filter(|trouble| trouble.counts()) {
            let told = told(trouble.policy, trouble.binding, &trouble.message);
            refusal.get_or_insert((told, String::new()));
        }
        for invocation in &concerned.invocations {
            let seen = Seen::of(attributes, &invocation.asked, object).await?;
            let programs = &attributes.registry.admission.programs;
            let denials = decided(attributes, |oracle| {
                denials(programs, &seen, invocation, oracle)
            })
            .await;
            for denial in denials {
                if enforce(attributes, invocation, &denial) {
                    let told = told(invocation.policy, Some(invocation.binding), &denial.message);
                    refusal.get_or_insert((told, denial.reason));
                }
            }
        }
        match refusal {
            Some((message, reason)) => Err(refused(attributes, message, &reason)),
            None => Ok(()),
        }
    }
}

fn told(policy: &Value, binding: Option<&Value>, message: &str) -> String {
    let by = binding.map_or_else(String::new, |binding| {
        format!(" with binding '{}'", meta::name(binding))
    });
    format!(
        "ValidatingAdmissionPolicy '{}'{by} denied request: {message}",
        meta::name(policy)
    )
}

/// Warns where the binding says so; whether it also denies.
fn enforce(attributes: &Attributes<'_>, invocation: &Invocation<'_>, denial: &Denial) -> bool {
    let actions = items(invocation.binding, &["spec", "validationActions"]);
    if actions.iter().any(|action| action == "Warn") {
        attributes.request.warnings.add(format!(
            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
            meta::name(invocation.policy),
            meta::name(invocation.binding),
            denial.message
        ));
    }
    denial.always || actions.iter().any(|action| action == "Deny")
}

fn refused(attributes: &Attributes<'_>, message: String, reason: &str) -> Status {
    let mut status = attributes.forbidden(&message);
    (status.code, status.reason) = match reason {
        "Unauthorized" => (401, Reason::Unauthorized),
        "Forbidden" => (403, Reason::Forbidden),
        "RequestEntityTooLarge" => (413, Reason::RequestEntityTooLarge),
        _ => (422, Reason::Invalid),
    };
    let details = status.details.get_or_insert_with(Details::default);
    details.causes.push(Cause {
        message,
        ..Cause::default()
    });
    status
}

/// What a policy holds against an object (`validator.Validate`).
fn denials(
    programs: &Programs,
    seen: &Seen,
    invocation: &Invocation<'_>,
    oracle: &Rc<Oracle>,
) -> Vec<Denial> {
    let spec = at(invocation.policy, &["spec"]);
    let fails = fails(invocation.policy);
    let parameter = Some(&invocation.parameter);
    let evaluation = Evaluation::new(programs, seen, parameter, spec, oracle);
    match conditions(spec, &evaluation) {
        Ok(true) => {}
        Ok(false) => return Vec::new(),
        Err(why) if fails => return vec![Denial::because(why)],
        Err(_) => return Vec::new(),
    }
    let mut denials = Vec::new();
    for validation in items(spec, &["validations"]) {
        match evaluation.run(text(validation, &["expression"])) {
            Ok(Val::Bool(true)) => {}
            Ok(Val::Bool(false)) => denials.push(Denial {
                message: message(validation, &evaluation),
                reason: text(validation, &["reason"]).to_owned(),
                always: false,
            }),
            Ok(_) if fails => denials.push(Denial::because("must evaluate to bool")),
            Err(why) if fails => denials.push(Denial::because(why)),
            _ => {}
        }
    }
    // An annotation that cannot be made is an error; there is no log to write those to that can.
    for audit in items(spec, &["auditAnnotations"]) {
        match evaluation.run(text(audit, &["valueExpression"])) {
            Ok(Val::Text(_) | Val::Null) => {}
            Ok(other) if fails => denials.push(Denial {
                always: true,
                ..Denial::because(format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                    text(audit, &["valueExpression"]),
                    other.type_name()
                ))
            }),
            Err(why) if fails => denials.push(Denial {
                always: true,
                ..Denial::because(why)
            }),
            _ => {}
        }
    }
    denials
}

fn message(validation: &Value, evaluation: &Evaluation<'_>) -> String {
    let made = text(validation, &["messageExpression"]);
    if !made.is_empty()
        && let Ok(Val::Text(message)) = evaluation.run(made)
    {
        let message = message.trim();
        if !message.is_empty() && !message.contains('\n') {
            return message.to_owned();
        }
    }
    match text(validation, &["message"]) {
        "" => format!(
            "failed expression: {}",
            text(validation, &["expression"]).trim()
        ),
        message => message.trim().to_owned(),
    }
}
