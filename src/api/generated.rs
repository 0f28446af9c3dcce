//! The generated tables. `hack/update-api` writes everything in the folder.

#[rustfmt::skip]
pub mod resources;
#[rustfmt::skip]
pub mod schema;
