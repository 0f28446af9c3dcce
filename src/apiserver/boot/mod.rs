//! What a server makes at its start, and the work it does for itself while it runs.

use std::sync::Arc;

use crate::registry::Registry;

/// Starts everything; returns at once.
pub fn start(registry: &Arc<Registry>) {
    registry.set_booted();
}
