//! How many nodes of each zone are healthy, and so how fast unhealthy ones may be evicted
//! (nodelifecycle's zone states and rate-limited taint queues).

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::plan::Eviction;
use crate::{ControllersConfig, objects::Node};

/// Label values of region and zone.
type Zone = (String, String);

/// Counts of one zone and its token bucket of one token.
#[derive(Default)]
struct Counts {
    ready: usize,
    unready: usize,
    /// When the last token was taken.
    taken: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Normal,
    /// So many are unhealthy that the zone itself may be at fault.
    Partial,
    /// None is healthy.
    Full,
}

pub struct Zones {
    nodes: HashMap<String, (Zone, bool)>,
    zones: HashMap<Zone, Counts>,
    rate: f64,
    secondary_rate: f64,
    threshold: f64,
    large: usize,
}

impl Zones {
    pub fn new(config: &ControllersConfig) -> Self {
        Zones {
            nodes: HashMap::new(),
            zones: HashMap::new(),
            rate: config.node_eviction_rate,
            secondary_rate: config.secondary_node_eviction_rate,
            threshold: config.unhealthy_zone_threshold,
            large: config.large_cluster_size_threshold,
        }
    }

    /// Notes a node's health; whether that changed what any node may expect (a zone's state).
    pub fn set(&mut self, node: &Node, is_ready: bool) -> bool {
        let label = |key: &str| node.metadata.labels.get(key).cloned().unwrap_or_default();
        let zone = (
            label("topology.kubernetes.io/region"),
            label("topology.kubernetes.io/zone"),
        );
        let name = &node.metadata.name;
        if self
            .nodes
            .get(name)
            .is_some_and(|old| *old == (zone.clone(), is_ready))
        {
            return false;
        }
        let before = self.states();
        self.take_out(name);
        let counts = self.zones.entry(zone.clone()).or_default();
        *(if is_ready {
            &mut counts.ready
        } else {
            &mut counts.unready
        }) += 1;
        self.nodes.insert(name.clone(), (zone, is_ready));
        before != self.states()
    }

    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.states();
        self.take_out(name);
        before != self.states()
    }

    fn take_out(&mut self, name: &str) {
        let Some((zone, was_ready)) = self.nodes.remove(name) else {
            return;
        };
        if let Some(counts) = self.zones.get_mut(&zone) {
            *(if was_ready {
                &mut counts.ready
            } else {
                &mut counts.unready
            }) -= 1;
            if counts.ready + counts.unready == 0 {
                self.zones.remove(&zone);
            }
        }
    }

    fn states(&self) -> HashMap<Zone, State> {
        self.zones
            .iter()
            .map(|(zone, counts)| (zone.clone(), self.state(counts)))
            .collect()
    }

    fn state(&self, counts: &Counts) -> State {
        let all = counts.ready + counts.unready;
        if counts.ready == 0 && counts.unready > 0 {
            State::Full
        } else if counts.unready > 2 && counts.unready as f64 / all as f64 >= self.threshold {
            State::Partial
        } else {
            State::Normal
        }
    }

    /// Whether no node of any zone is healthy: then the fault is rather between them and us.
    fn is_dark(&self) -> bool {
        !self.zones.is_empty()
            && self
                .zones
                .values()
                .all(|counts| self.state(counts) == State::Full)
    }

    /// Whether the node may be evicted now, which takes its zone's token; with when to ask again if not yet.
    pub fn evict(&mut self, name: &str, now: Instant) -> (Eviction, Option<Duration>) {
        if self.is_dark() {
            return (Eviction::Stopped, None);
        }
        let Some((zone, _)) = self.nodes.get(name) else {
            return (Eviction::Later, None);
        };
        let Some(counts) = self.zones.get(zone) else {
            return (Eviction::Later, None);
        };
        let rate = match self.state(counts) {
            State::Normal | State::Full => self.rate,
            State::Partial if counts.ready + counts.unready > self.large => self.secondary_rate,
            State::Partial => 0.0,
        };
        if rate <= 0.0 {
            return (Eviction::Later, None);
        }
        let interval = Duration::from_secs_f64(1.0 / rate);
        let next = counts.taken.map_or(now, |taken| taken + interval);
        if next > now {
            return (Eviction::Later, Some(next - now));
        }
        if let Some(counts) = self.zones.get_mut(&zone.clone()) {
            counts.taken = Some(now);
        }
        (Eviction::Now, None)
    }

    /// What holds for a node that needs no token.
    pub fn standing(&self) -> Eviction {
        if self.is_dark() {
            Eviction::Stopped
        } else {
            Eviction::Later
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, zone: &str) -> Node {
        let mut node = Node::default();
        node.metadata.name = name.into();
        node.metadata
            .labels
            .insert("topology.kubernetes.io/zone".into(), zone.into());
        node
    }

    fn zones(nodes: &[(&str, &str, bool)]) -> Zones {
        let mut zones = Zones::new(&ControllersConfig::default());
        for (name, zone, ready) in nodes {
            zones.set(&node(name, zone), *ready);
        }
        zones
    }

    #[test]
    fn a_healthy_zone_evicts_one_node_in_ten_seconds() {
        let mut zones = zones(&[("a", "1", false), ("b", "1", false), ("c", "1", true)]);
        let now = Instant::now();
        assert_eq!(zones.evict("a", now), (Eviction::Now, None));
        assert_eq!(
            zones.evict("b", now),
            (Eviction::Later, Some(Duration::from_secs(10)))
        );
        assert_eq!(
            zones.evict("b", now + Duration::from_secs(10)),
            (Eviction::Now, None)
        );
    }

    #[test]
    fn a_small_zone_with_mostly_unhealthy_nodes_evicts_none() {
        let mut zones = zones(&[
            ("a", "1", false),
            ("b", "1", false),
            ("c", "1", false),
            ("d", "1", true),
        ]);
        assert_eq!(zones.evict("a", Instant::now()), (Eviction::Later, None));
        assert!(zones.set(&node("b", "1"), true));
        assert_eq!(zones.evict("a", Instant::now()), (Eviction::Now, None));
    }

    #[test]
    fn a_dark_zone_evicts_as_long_as_another_has_light() {
        let mut zones = zones(&[("a", "1", false), ("b", "2", true)]);
        assert_eq!(zones.evict("a", Instant::now()), (Eviction::Now, None));
        assert!(zones.set(&node("b", "2"), false));
        assert_eq!(zones.evict("a", Instant::now()), (Eviction::Stopped, None));
        assert_eq!(zones.standing(), Eviction::Stopped);
        assert!(zones.remove("a"));
    }
}
