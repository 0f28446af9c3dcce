//! Amounts of resources: what pods ask for and nodes have.

use std::{collections::BTreeMap, fmt, sync::Arc};

use apimachinery::quantity::Quantity;
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

/// What a container without a request counts as when nodes are scored (DefaultMilliCPURequest, DefaultMemoryRequest),
/// so that pods without requests spread, too.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 << 20;

/// A resource list of the API.
pub type ResourceList = BTreeMap<String, Amount>;

/// A quantity as it stands in an object, text or number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Amount(pub Quantity);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                text.parse().map(Amount).map_err(E::custom)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Amount, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Amount, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Amount, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Amounts in the units of the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Thousandths of a core.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral_storage: i64,
    /// Number of pods; only of nodes.
    pub pods: i64,
    /// All others, in their own unit.
    pub scalars: BTreeMap<Arc<str>, i64>,
}

impl Resources {
    pub fn from_list(list: &ResourceList) -> Self {
        let mut resources = Resources::default();
        for (name, Amount(quantity)) in list {
            match name.as_str() {
                "cpu" => resources.milli_cpu = quantity.milli_value(),
                "memory" => resources.memory = quantity.value(),
                "ephemeral-storage" => resources.ephemeral_storage = quantity.value(),
                "pods" => resources.pods = quantity.value(),
                name => {
                    resources.scalars.insert(name.into(), quantity.value());
                }
            }
        }
        resources
    }

    pub fn add(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_add);
    }

    pub fn sub(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_sub);
    }

    /// The larger of each.
    pub fn raise_to(&mut self, other: &Resources) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Resources, with: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = with(self.pods, other.pods);
        for (name, amount) in &other.scalars {
            let mine = self.scalars.entry(name.clone()).or_default();
            *mine = with(*mine, *amount);
        }
    }

    pub fn scalar(&self, name: &str) -> i64 {
        self.scalars.get(name).copied().unwrap_or(0)
    }

    /// Whether nothing is asked for.
    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral_storage == 0
            && self.scalars.values().all(|amount| *amount == 0)
    }
}

/// The requests of one container, as `Resources` and with defaults for scoring.
fn container(requests: &ResourceList, for_scoring: bool) -> Resources {
    let mut resources = Resources::from_list(requests);
    if for_scoring {
        if !requests.contains_key("cpu") {
            resources.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if !requests.contains_key("memory") {
            resources.memory = DEFAULT_MEMORY;
        }
    }
    resources
}

/// What of a pod decides its requests.
#[derive(Debug, Default)]
pub struct PodResources<'a> {
    pub containers: Vec<&'a ResourceList>,
    /// With whether it is a sidecar (restartPolicy Always).
    pub init_containers: Vec<(&'a ResourceList, bool)>,
    pub overhead: Option<&'a ResourceList>,
    /// `spec.resources.requests` (KEP-2837), which replaces the containers' sums.
    pub pod_level: Option<&'a ResourceList>,
}

impl PodResources<'_> {
    /// The pod's requests (resourcehelper.PodRequests): the sum over containers and sidecars, or what the largest
    /// init container needs beside the sidecars started before it, if that is more; plus the overhead.
    pub fn requests(&self, for_scoring: bool) -> Resources {
        let mut sum = Resources::default();
        for requests in &self.containers {
            sum.add(&container(requests, for_scoring));
        }
        let mut sidecars = Resources::default();
        let mut peak = Resources::default();
        for (requests, is_sidecar) in &self.init_containers {
            let own = container(requests, for_scoring);
            if *is_sidecar {
                sum.add(&own);
                sidecars.add(&own);
                peak.raise_to(&sidecars);
            } else {
                let mut beside = own;
                beside.add(&sidecars);
                peak.raise_to(&beside);
            }
        }
        sum.raise_to(&peak);
        if let Some(list) = self.pod_level {
            let own = Resources::from_list(list);
            if list.contains_key("cpu") {
                sum.milli_cpu = own.milli_cpu;
            }
            if list.contains_key("memory") {
                sum.memory = own.memory;
            }
            for (name, amount) in own.scalars {
                sum.scalars.insert(name, amount);
            }
        }
        if let Some(overhead) = self.overhead {
            sum.add(&Resources::from_list(overhead));
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        let parse = |text: &str| Amount(text.parse().unwrap());
        pairs
            .iter()
            .map(|(name, text)| (name.to_string(), parse(text)))
            .collect()
    }

    #[test]
    fn requests_are_the_larger_of_the_sum_and_the_init_peak() {
        let one = list(&[("cpu", "200m"), ("memory", "1Gi")]);
        let big = list(&[("cpu", "1"), ("example.com/gpu", "2")]);
        let side = list(&[("cpu", "50m")]);
        let overhead = list(&[("cpu", "10m")]);
        let pod = PodResources {
            containers: vec![&one, &one],
            init_containers: vec![(&side, true), (&big, false)],
            overhead: Some(&overhead),
            pod_level: None,
        };
        let requests = pod.requests(false);
        assert_eq!(requests.milli_cpu, 1060);
        assert_eq!(requests.memory, 2 << 30);
        assert_eq!(requests.scalar("example.com/gpu"), 2);
    }

    #[test]
    fn a_container_without_requests_counts_when_scoring() {
        let none = list(&[]);
        let pod = PodResources {
            containers: vec![&none],
            ..PodResources::default()
        };
        assert!(pod.requests(false).is_zero());
        let scored = pod.requests(true);
        assert_eq!((scored.milli_cpu, scored.memory), (100, 200 << 20));
    }
}
