//! Field ownership on every write: who last set what (`metadata.managedFields`), and server-side apply.

use apimachinery::{Status, Value};

use super::dispatch::Call;
use super::options::WriteOptions;
use super::write::{Current, Next, Write};

/// The managed fields of a new object (in the stored version).
pub fn on_create(_write: &Write<'_>, _object: &mut Value) {}

/// The managed fields of an update that says what the object shall be.
pub fn on_update(_write: &Write<'_>, _new: &mut Value, _old: &Value) {}

/// Server-side apply.
pub fn apply(
    _call: &Call<'_>,
    _options: &WriteOptions,
    _applied: &Value,
    _current: &Current,
) -> Result<Next, Status> {
    Err(Status::unsupported_media_type(&[
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ]))
}
