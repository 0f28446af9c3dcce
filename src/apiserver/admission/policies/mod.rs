//! Admission policies in CEL: which concern a write (`dispatch`), and what their expressions see (`scope`).
//!
//! ```text
//! policies × bindings (cached, by name) ─ matching ─▶ parameters ─▶ Invocation ─▶ validating: deny, warn
//!                                                                            └──▶ mutating: patch, one after the other
//! ```

mod dispatch;
mod mutating;
mod patch;
mod scope;
mod validating;

pub use mutating::MutatingAdmissionPolicy;
pub(super) use scope::{Evaluation, Seen, conditions, decided};
pub use validating::ValidatingAdmissionPolicy;

use super::Attributes;

const GROUP: &str = "admissionregistration.k8s.io";

/// Whether policies have no say: lest one locks out its own removal, or breaks what the cluster lives by
/// (`exclusion.Excluded`).
fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let resource = attributes.resource;
    super::webhooks::is_exempt(attributes)
        || matches!(
            (resource.group, resource.plural),
            (
                "authentication.k8s.io",
                "selfsubjectreviews" | "tokenreviews"
            ) | (
                "authorization.k8s.io",
                "localsubjectaccessreviews"
                    | "selfsubjectaccessreviews"
                    | "selfsubjectrulesreviews"
                    | "subjectaccessreviews"
            )
        )
}
