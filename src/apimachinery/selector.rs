//! Owns: label and field selectors: the query syntax, metav1.LabelSelector, and matching. Parsing is bounded by the
//! length of its input; matching never allocates.

mod fields;
mod labels;
mod parser;

pub use fields::{FieldRequirement, FieldSelector};
pub use labels::{LabelSelector, Labels, Operator, Requirement};
