//! A cluster on one machine.

pub mod containerd;
pub mod identity;
pub mod machine;
pub mod prepare;
pub mod services;
pub mod state;
