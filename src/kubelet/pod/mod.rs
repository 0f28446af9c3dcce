//! One pod's life on the node. `worker` is the actor; `stage` and `plan` decide,
//! `status` tells, `view` is what the runtime has and `memory` what is remembered.

pub mod admission;
pub mod back_off;
pub mod conditions;
pub mod hooks;
pub mod kill;
pub mod mailbox;
pub mod memory;
pub mod observe;
pub mod plan;
pub mod reporter;
pub mod sandbox;
pub mod shared;
pub mod spec;
pub mod stage;
pub mod start;
pub mod status;
pub mod support;
pub mod view;
pub mod worker;
