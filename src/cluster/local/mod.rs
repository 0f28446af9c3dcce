//! A cluster on one machine: `up` makes it, `down` removes it, `nodes` handles single nodes.
//!
//! `state` is what it is and where it runs; `machine` what it needs outside its nodes; `prepare`, `services`, `identity`,
//! `containerd` and `addons` are what goes into the nodes and into the API.

pub mod addons;
pub mod containerd;
pub mod down;
pub mod identity;
pub mod machine;
pub mod nodes;
pub mod prepare;
pub mod ready;
pub mod services;
pub mod state;
pub mod static_pods;
pub mod up;
