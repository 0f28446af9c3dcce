//! One pod's life on the node.

pub mod back_off;
pub mod conditions;
pub mod memory;
pub mod plan;
pub mod spec;
pub mod status;
pub mod view;
