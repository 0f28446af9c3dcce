//! What every pod spec goes through, whether a pod's own or a template's: defaults and validation.

pub mod defaults;
pub mod qos;
