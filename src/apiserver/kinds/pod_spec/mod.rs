//! What every pod spec goes through, whether a pod's own or a template's: defaults and validation.

pub mod affinity;
pub mod containers;
pub mod defaults;
pub mod level;
mod mounts;
pub mod qos;
pub mod security;
pub mod validation;
pub mod volumes;
pub mod warnings;
