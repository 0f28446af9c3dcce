//! Container logs: the format, reading them out, and rotation.

pub mod entry;
pub mod rotate;
