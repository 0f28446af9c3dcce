//! ImageLocality: nodes that have the pod's images are better, the more so the larger and the more widespread they are.

use crate::{
    cluster::Cluster,
    framework::{MAX_SCORE, NodeScore, Plugin},
    node::NodeInfo,
    pod::Pod,
};

/// Images below this many bytes do not matter, those above `MAX_SIZE` a container make no more difference.
const MIN_SIZE: f64 = 23.0 * 1024.0 * 1024.0;
const MAX_SIZE: f64 = 1000.0 * 1024.0 * 1024.0;

pub struct ImageLocality;

struct Score<'a> {
    pod: &'a Pod,
    cluster: &'a Cluster,
    nodes: f64,
}

impl NodeScore for Score<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let sizes = self.pod.images.iter().filter_map(|image| {
            let size = *node.images.get(image)? as f64;
            Some((size * (self.cluster.image_nodes(image) as f64 / self.nodes)).floor())
        });
        let sum: f64 = sizes.sum();
        let max = MAX_SIZE * self.pod.images.len() as f64;
        let sum = sum.clamp(MIN_SIZE, max);
        (MAX_SCORE as f64 * (sum - MIN_SIZE) / (max - MIN_SIZE)) as i64
    }
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn score<'a>(
        &self,
        pod: &'a Pod,
        cluster: &'a Cluster,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        // Where no node has any of the images, all are equal.
        if !pod
            .images
            .iter()
            .any(|image| cluster.image_nodes(image) > 0)
        {
            return None;
        }
        Some(Box::new(Score {
            pod,
            cluster,
            nodes: cluster.node_count() as f64,
        }))
    }
}
