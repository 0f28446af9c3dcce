//! Devices for resource claims (KEP-4381, structured parameters): which devices there are, which a claim may have on a
//! node, and what its status says once it has them.
//!
//! ```text
//! ResourceSlices ─ Inventory ─▶ devices on a node ─ search (classes, selectors in CEL, constraints) ─▶ Allocation
//! ```
//!
//! Pure: nothing here reads or writes the API.

pub mod extended;
mod inventory;
mod search;
mod select;
pub mod view;

pub use inventory::Inventory;
pub use search::{Ask, Request, allocate};
