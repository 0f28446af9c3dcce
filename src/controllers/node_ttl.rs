//! ttl-controller: tells kubelets by an annotation of their node how long they may keep Secrets and ConfigMaps; the
//! larger the cluster, the longer.

use std::sync::atomic::{AtomicUsize, Ordering};

use api::r::NODES;
use apimachinery::Value;
use async_trait::async_trait;
use client::{
    ClientError, Informer, Patch, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use serde_json::json;

use crate::{Context, Controller, context::synced, objects::Node};

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// Steps: from so many nodes on it may go back down, above so many it goes up, and the seconds.
const STEPS: [(usize, usize, u64); 5] = [
    (0, 100, 0),
    (90, 500, 15),
    (450, 1000, 30),
    (900, 2000, 60),
    (1800, usize::MAX, 300),
];

pub struct NodeTtl;

#[async_trait]
impl Controller for NodeTtl {
    fn name(&self) -> &'static str {
        "ttl-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["ttl"]
    }

    async fn run(&self, context: Context) {
        let nodes: Informer<Node> = context.informers.informer(&NODES, "", Selectors::default());
        if !synced!(context, nodes) {
            return;
        }
        let step = AtomicUsize::new(0);
        let queue = Queue::default();
        let keys = queue.clone();
        nodes.add_handler(move |change| {
            if change.new.is_some() {
                keys.add(change.key.to_string());
            }
        });
        workqueue::run("ttl", &queue, 1, &context.shutdown, |name| {
            let (context, nodes, step) = (&context, &nodes, &step);
            async move {
                let now = next_step(step.load(Ordering::Relaxed), nodes.len());
                step.store(now, Ordering::Relaxed);
                let Some(node) = nodes.get(&name) else {
                    return Ok::<_, ClientError>(Requeue::No);
                };
                let wanted = STEPS[now].2.to_string();
                if node.metadata.annotations.get(ANNOTATION) != Some(&wanted) {
                    let patch = Patch::Strategic(
                        json!({"metadata": {"annotations": {ANNOTATION: wanted}}}),
                    );
                    let options = WriteOptions::default();
                    let patched = context
                        .client
                        .patch::<Value>(&NODES, "", &name, "", &patch, &options);
                    match patched.await {
                        Err(error) if !error.is_not_found() => return Err(error),
                        _ => {}
                    }
                }
                Ok(Requeue::No)
            }
        })
        .await;
    }
}

/// The step for a number of nodes; it changes back only some way below where it changed.
fn next_step(mut step: usize, nodes: usize) -> usize {
    while step + 1 < STEPS.len() && nodes > STEPS[step].1 {
        step += 1;
    }
    while step > 0 && nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_rise_with_the_nodes_and_fall_a_little_later() {
        for (step, nodes, expected) in [
            (0, 100, 0),
            (0, 101, 1),
            (1, 95, 1),
            (1, 89, 0),
            (0, 5000, 4),
            (4, 1700, 3),
            (4, 0, 0),
        ] {
            assert_eq!(next_step(step, nodes), expected, "{step} {nodes}");
        }
    }
}
