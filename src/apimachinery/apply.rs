//! Owns: who set which field: sets of fields, comparing, merging and pruning objects by their tables, and the
//! `managedFields` of every write (KEP-555, structured-merge-diff). Server-side apply is `managed_fields::apply`, every
//! other write goes through `managed_fields::update`.
//!
//! ```text
//! live ─┐                                 ┌─▶ every other manager loses what changed or went
//!       ├─ typed::compare ─▶ FieldSets ───┤
//! new ──┘                                 └─▶ this manager gains what changed
//!
//! live ── typed::merge ◀── applied configuration ── typed::field_set ─▶ this manager owns exactly that
//!              └─ what it owned before and nobody owns now is pruned
//! ```
//!
//! **Invariant:** a set of fields has the shape of `fieldsV1`, so that reading and writing `managedFields` moves trees
//! and never translates them: it happens on every write.

pub mod managed_fields;
pub mod set;
pub mod typed;

pub use set::FieldSet;
