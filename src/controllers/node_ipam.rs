//! node-ipam-controller: gives every node a part of the cluster's pod range, `spec.podCIDR(s)`
//! (upstream's RangeAllocator).

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use api::r::NODES;
use async_trait::async_trait;
use client::{
    ClientError, Patch, Selectors, WriteOptions,
    events::{EventKind, ObjectReference},
    workqueue::{self, Queue, Requeue},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{Context, Controller, ControllersConfig, context::synced, objects::Node};

/// How long a node without a range waits for one to become free.
const EXHAUSTED_RETRY: Duration = Duration::from_secs(30);

pub struct NodeIpam;

#[async_trait]
impl Controller for NodeIpam {
    fn name(&self) -> &'static str {
        "node-ipam-controller"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["nodeipam"]
    }

    async fn run(&self, context: Context) {
        if !context.config.allocate_node_cidrs {
            context.shutdown.cancelled().await;
            return;
        }
        let Ok(pools) = Pools::new(&context.config) else {
            // Checked before anything was started.
            context.shutdown.cancelled().await;
            return;
        };
        let nodes = context
            .informers
            .informer::<Node>(&NODES, "", Selectors::default());
        if !synced!(context, nodes) {
            return;
        }
        let recorder = context.recorder("cidrAllocator");
        // All ranges in use are taken before the first is given.
        let pools = Mutex::new(pools);
        for node in nodes.list() {
            pools
                .lock()
                .occupy(&node.metadata.name, &node.spec.pod_cidrs);
        }
        let queue = Queue::default();
        let keys = queue.clone();
        nodes.add_handler(move |change| keys.add(change.key.to_string()));
        // One worker: nodes get their ranges in the order they come.
        workqueue::run("node-ipam", &queue, 1, &context.shutdown, |name| {
            let (context, nodes, pools, recorder) = (&context, &nodes, &pools, &recorder);
            async move {
                let Some(node) = nodes.get(&name) else {
                    pools.lock().release(&name);
                    return Ok(Requeue::No);
                };
                if !node.spec.pod_cidrs.is_empty() {
                    pools.lock().occupy(&name, &node.spec.pod_cidrs);
                    return Ok(Requeue::No);
                }
                if node.metadata.is_deleting() {
                    return Ok(Requeue::No);
                }
                let Some(cidrs) = pools.lock().allocate(&name) else {
                    let message = format!("Node {name} status is now: CIDRNotAvailable");
                    recorder.event(
                        &reference(&node),
                        EventKind::Normal,
                        "CIDRNotAvailable",
                        message,
                    );
                    return Ok(Requeue::After(EXHAUSTED_RETRY));
                };
                assign(context, &name, &cidrs).await.map(|()| Requeue::No)
            }
        })
        .await;
    }
}

fn reference(node: &Node) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone(),
        uid: node.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

async fn assign(context: &Context, name: &str, cidrs: &[String]) -> Result<(), ClientError> {
    let patch = Patch::Strategic(json!({"spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}}));
    let options = WriteOptions::default();
    let patched = context
        .client
        .patch::<Value>(&NODES, "", name, "", &patch, &options)
        .await;
    match patched {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The ranges, one pool for each family.
pub(crate) struct Pools {
    pools: Vec<Pool>,
    /// What each node has: an index into each pool.
    given: HashMap<String, Vec<Option<u128>>>,
}

struct Pool {
    base: u128,
    is_ipv4: bool,
    prefix: u8,
    mask: u8,
    used: BTreeSet<u128>,
    /// Where the search for a free one begins.
    next: u128,
}

impl Pools {
    pub(crate) fn new(config: &ControllersConfig) -> Result<Self, String> {
        if config.cluster_cidrs.is_empty() {
            return Err("--allocate-node-cidrs needs --cluster-cidr".into());
        }
        let mut pools = Vec::new();
        for text in &config.cluster_cidrs {
            let cidr = Cidr::parse(text).ok_or_else(|| format!("{text:?} is not a CIDR"))?;
            let mask = if cidr.is_ipv4 {
                config.node_cidr_mask_size_ipv4
            } else {
                config.node_cidr_mask_size_ipv6
            };
            // Upstream's CIDRSet holds at most 2^16 ranges.
            if mask < cidr.prefix || mask > cidr.width() || mask - cidr.prefix > 16 {
                return Err(format!(
                    "the node mask /{mask} does not fit the cluster CIDR {text}"
                ));
            }
            let mut pool = Pool {
                base: cidr.base,
                is_ipv4: cidr.is_ipv4,
                prefix: cidr.prefix,
                mask,
                used: BTreeSet::new(),
                next: 0,
            };
            for service in config
                .service_cidrs
                .iter()
                .filter_map(|text| Cidr::parse(text))
            {
                pool.exclude(&service);
            }
            pools.push(pool);
        }
        Ok(Pools {
            pools,
            given: HashMap::new(),
        })
    }

    /// Notes that a node has these ranges.
    fn occupy(&mut self, node: &str, cidrs: &[String]) {
        if cidrs.is_empty() || self.given.contains_key(node) {
            return;
        }
        let cidrs: Vec<Cidr> = cidrs.iter().filter_map(|text| Cidr::parse(text)).collect();
        let mut given = Vec::new();
        for pool in &mut self.pools {
            let index = cidrs.iter().find_map(|cidr| pool.index(cidr));
            if let Some(index) = index {
                pool.used.insert(index);
            }
            given.push(index);
        }
        self.given.insert(node.into(), given);
    }

    /// A range of each pool; the same ones if the node has some already. `None` if a pool is exhausted.
    fn allocate(&mut self, node: &str) -> Option<Vec<String>> {
        if let Some(given) = self.given.get(node) {
            let pairs = given.iter().zip(&self.pools);
            return pairs
                .map(|(index, pool)| index.map(|index| pool.text(index)))
                .collect();
        }
        let free: Option<Vec<u128>> = self.pools.iter().map(Pool::free).collect();
        let free = free?;
        for (pool, index) in self.pools.iter_mut().zip(&free) {
            pool.used.insert(*index);
            pool.next = (index + 1) % pool.size();
        }
        let texts = self
            .pools
            .iter()
            .zip(&free)
            .map(|(pool, index)| pool.text(*index))
            .collect();
        self.given
            .insert(node.into(), free.into_iter().map(Some).collect());
        Some(texts)
    }

    fn release(&mut self, node: &str) {
        for (pool, index) in self
            .pools
            .iter_mut()
            .zip(self.given.remove(node).unwrap_or_default())
        {
            if let Some(index) = index {
                pool.used.remove(&index);
            }
        }
    }
}

impl Pool {
    fn size(&self) -> u128 {
        1 << (self.mask - self.prefix)
    }

    fn shift(&self) -> u8 {
        (if self.is_ipv4 { 32 } else { 128 }) - self.mask
    }

    fn free(&self) -> Option<u128> {
        let size = self.size();
        (0..size)
            .map(|step| (self.next + step) % size)
            .find(|index| !self.used.contains(index))
    }

    fn text(&self, index: u128) -> String {
        let address = self.base + (index << self.shift());
        let address = if self.is_ipv4 {
            IpAddr::V4(u32::try_from(address).unwrap_or_default().into())
        } else {
            IpAddr::V6(address.into())
        };
        format!("{address}/{}", self.mask)
    }

    /// The index of the range `cidr` begins in, if it is in this pool.
    fn index(&self, cidr: &Cidr) -> Option<u128> {
        let offset = cidr.base.checked_sub(self.base)?;
        let index = offset >> self.shift();
        (cidr.is_ipv4 == self.is_ipv4 && index < self.size()).then_some(index)
    }

    fn exclude(&mut self, cidr: &Cidr) {
        if cidr.is_ipv4 != self.is_ipv4 {
            return;
        }
        for index in 0..self.size() {
            let first = self.base + (index << self.shift());
            let last = first + ((1 << self.shift()) - 1);
            if cidr.base <= last && first <= cidr.last() {
                self.used.insert(index);
            }
        }
    }
}

struct Cidr {
    base: u128,
    is_ipv4: bool,
    prefix: u8,
}

impl Cidr {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let prefix: u8 = prefix.parse().ok()?;
        let (bits, is_ipv4) = match address.parse::<IpAddr>().ok()? {
            IpAddr::V4(address) => (u128::from(u32::from(address)), true),
            IpAddr::V6(address) => (u128::from(address), false),
        };
        let mut cidr = Cidr {
            base: bits,
            is_ipv4,
            prefix,
        };
        if prefix > cidr.width() {
            return None;
        }
        let host = cidr.width() - prefix;
        cidr.base = bits
            .checked_shr(host.into())
            .unwrap_or(0)
            .checked_shl(host.into())
            .unwrap_or(0);
        Some(cidr)
    }

    fn width(&self) -> u8 {
        if self.is_ipv4 { 32 } else { 128 }
    }

    fn last(&self) -> u128 {
        let size = 1u128.checked_shl((self.width() - self.prefix).into());
        size.map_or(u128::MAX, |size| self.base + (size - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(cluster: &[&str], service: &[&str]) -> Pools {
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect();
        Pools::new(&ControllersConfig {
            cluster_cidrs: texts(cluster),
            service_cidrs: texts(service),
            ..ControllersConfig::default()
        })
        .unwrap()
    }

    #[test]
    fn nodes_get_the_next_free_range_of_each_family() {
        let mut pools = pools(&["10.244.0.0/16", "fd00::/56"], &["10.244.1.0/24"]);
        pools.occupy("old", &["10.244.2.0/24".into()]);
        let ranges = |pools: &mut Pools, node: &str| pools.allocate(node).unwrap().join(" ");
        assert_eq!(ranges(&mut pools, "a"), "10.244.0.0/24 fd00::/64");
        assert_eq!(ranges(&mut pools, "a"), "10.244.0.0/24 fd00::/64");
        assert_eq!(ranges(&mut pools, "b"), "10.244.3.0/24 fd00:0:0:1::/64");
    }

    #[test]
    fn a_released_range_is_given_again_once_all_others_are() {
        let mut pools = pools(&["10.0.0.0/23"], &[]);
        assert_eq!(pools.allocate("a").unwrap(), ["10.0.0.0/24"]);
        assert_eq!(pools.allocate("b").unwrap(), ["10.0.1.0/24"]);
        assert!(pools.allocate("c").is_none());
        pools.release("a");
        assert_eq!(pools.allocate("c").unwrap(), ["10.0.0.0/24"]);
    }

    #[test]
    fn a_mask_that_does_not_fit_is_refused() {
        let config = |cidr: &str| ControllersConfig {
            cluster_cidrs: vec![cidr.into()],
            ..ControllersConfig::default()
        };
        for cidr in ["10.0.0.0/25", "10.0.0.0/7", "nonsense", "10.0.0.0/33"] {
            assert!(Pools::new(&config(cidr)).is_err(), "{cidr}");
        }
    }
}
