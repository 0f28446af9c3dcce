//! The object model of the API, without any kind in it: a JSON tree, the schema tables that describe it, and
//! everything that can be done to a tree with a table in hand.
//!
//! ```text
//! bytes --codec--> Value --schema (prune, normalise)--> Value --patch / apply--> Value --codec--> bytes
//!                    |                                                   |
//!                  meta, selector, quantity, time, name            managed fields
//! ```
//!
//! Read `schema::Message` first: it is what `api` generates for each built-in type and what a custom resource
//! definition is turned into at run time. `status::Status` is the one error a client ever sees.
//!
//! `exposition` is the text that each component's `/metrics` is written in.
//!
//! **Invariant:** nothing here names a kind, opens a socket or reads a clock except `time::now`.

pub mod apply;
pub mod codec;
pub mod exposition;
pub mod field;
pub mod meta;
pub mod name;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod time;

pub use serde_json::{Map, Value};
pub use status::Status;
