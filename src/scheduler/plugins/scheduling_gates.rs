//! SchedulingGates (KEP-3521): a pod with gates is not tried.

use crate::{
    framework::{Plugin, Rejection},
    pod::Pod,
};

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn pre_enqueue(&self, pod: &Pod) -> Result<(), Rejection> {
        if pod.scheduling_gates.is_empty() {
            return Ok(());
        }
        let gates = pod.scheduling_gates.join(" ");
        Err(Rejection::unresolvable(format!(
            "waiting for scheduling gates: [{gates}]"
        )))
    }
}
