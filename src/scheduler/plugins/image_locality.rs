//! ImageLocality: nodes that have the pod's images are better, the more so the larger and the more widespread they are.

use crate::{
    framework::{Ask, MAX_SCORE, NodeScore, Plugin},
    node::NodeInfo,
};

/// Images below this many bytes do not matter, those above `MAX_SIZE` a container make no more difference.
const MIN_SIZE: f64 = 23.0 * 1024.0 * 1024.0;
const MAX_SIZE: f64 = 1000.0 * 1024.0 * 1024.0;

pub struct ImageLocality;

struct Score<'a> {
    /// Each image that any node has, with the share of nodes that have it.
    images: Vec<(&'a str, f64)>,
    containers: f64,
}

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let sizes = self.images.iter().filter_map(|(image, spread)| {
            let size = *node.images.get(*image)? as f64;
            Some((size * spread).floor())
        });
        let sum: f64 = sizes.sum();
        let max = MAX_SIZE * self.containers;
        let sum = sum.clamp(MIN_SIZE, max);
        (MAX_SCORE as f64 * (sum - MIN_SIZE) / (max - MIN_SIZE)) as i64
    }
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn score<'a>(&self, ask: Ask<'a>, _: &[&'a NodeInfo]) -> Option<Box<dyn NodeScore + 'a>> {
        let nodes = ask.cluster.node_count() as f64;
        let known = ask.pod.images.iter().filter_map(|image| {
            let on = ask.cluster.image_nodes(image);
            (on > 0).then_some((image.as_str(), on as f64 / nodes))
        });
        let images: Vec<_> = known.collect();
        // Where no node has any of the images, all are equal.
        if images.is_empty() {
            return None;
        }
        Some(Box::new(Score {
            images,
            containers: ask.pod.images.len() as f64,
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cluster::testing::*, pod::pod};

    #[test]
    fn images_count_from_23_mb_to_1000_a_container_by_how_many_nodes_have_them() {
        const MB: i64 = 1024 * 1024;
        // Size of the image on node a, whether node b has it, too, containers, and the score of a.
        for (size, on_both, containers, expected) in [
            (20 * MB, true, 1, 0),
            (23 * MB, true, 1, 0),
            (523 * MB, true, 1, 51),
            (523 * MB, false, 1, 24),
            (1000 * MB, true, 1, 100),
            (4000 * MB, true, 1, 100),
            (1000 * MB, true, 2, 49),
        ] {
            let mut nodes = [mk_node("a"), mk_node("b")];
            let images = json!([{"names": ["nginx:latest"], "sizeBytes": size}]);
            nodes[0]["status"]["images"] = images.clone();
            if on_both {
                nodes[1]["status"]["images"] = images;
            }
            let cluster = cluster(&nodes, &[]);
            let mut value = mk_pod("p");
            if containers == 2 {
                value["spec"]["initContainers"] = json!([{"name": "i", "image": "elsewhere:1"}]);
            }
            let (pod, args) = (pod(value), Default::default());
            let ask = Ask {
                pod: &pod,
                cluster: &cluster,
                args: &args,
            };
            let scorer = ImageLocality.score(ask, &[]).expect("a node has it");
            let score = scorer.score(cluster.find_node("a").expect("it is there"));
            assert_eq!(score, expected, "{size} {on_both} {containers}");
        }
    }
}
