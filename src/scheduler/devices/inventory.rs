//! Which devices there are, and what is left of them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::view::{AllocatedDevice, Device, Place, ResourceSlice};

/// A device by its driver, pool and name.
pub type DeviceId = (String, String, String);

/// A counter by its driver, pool, set and name.
pub type CounterId = (String, String, String, String);

/// A device with the slice it is in.
pub struct Entry {
    slice: Arc<ResourceSlice>,
    place: usize,
}

impl Entry {
    pub fn device(&self) -> &Device {
        &self.slice.spec.devices[self.place]
    }

    pub fn driver(&self) -> &str {
        &self.slice.spec.driver
    }

    pub fn pool(&self) -> &str {
        &self.slice.spec.pool.name
    }

    pub fn id(&self) -> DeviceId {
        (
            self.driver().into(),
            self.pool().into(),
            self.device().name.clone(),
        )
    }

    /// Where it can be used.
    pub fn place(&self) -> &Place {
        let spec = &self.slice.spec;
        if spec.per_device_node_selection {
            &self.device().place
        } else {
            &spec.place
        }
    }

    /// What it takes of the counters it shares.
    pub fn counters(&self) -> impl Iterator<Item = (CounterId, i64)> {
        let sets = self.device().consumes_counters.iter();
        sets.flat_map(move |set| {
            set.counters.iter().map(move |(name, counter)| {
                let id = (
                    self.driver().into(),
                    self.pool().into(),
                    set.counter_set.clone(),
                    name.clone(),
                );
                (id, counter.value.map_or(0, |value| value.0.value()))
            })
        })
    }
}

/// All devices of complete pools, and what other claims have of them.
#[derive(Default)]
pub struct Inventory {
    /// In the order of driver, pool, slice, and place in the slice; those with binding conditions last.
    pub devices: Vec<Entry>,
    /// Pools some of whose slices are missing, with where these can be used.
    incomplete: Vec<(String, Arc<ResourceSlice>)>,
    /// Devices that one claim has to itself.
    pub taken: HashSet<DeviceId>,
    /// What claims have of devices they share, by capacity.
    pub shared: HashMap<DeviceId, BTreeMap<String, i64>>,
    /// What is left of counters.
    pub counters: HashMap<CounterId, i64>,
}

impl Inventory {
    /// Of the newest generation of each pool. `allocated` is what claims have.
    pub fn new<'a>(
        slices: impl Iterator<Item = &'a Arc<ResourceSlice>>,
        allocated: impl Iterator<Item = &'a AllocatedDevice>,
    ) -> Self {
        let mut pools: BTreeMap<(&str, &str), Vec<&Arc<ResourceSlice>>> = BTreeMap::new();
        for slice in slices {
            let key = (slice.spec.driver.as_str(), slice.spec.pool.name.as_str());
            pools.entry(key).or_default().push(slice);
        }
        let mut inventory = Inventory::default();
        for ((_, name), mut pool) in pools {
            let newest = pool.iter().map(|slice| slice.spec.pool.generation).max();
            pool.retain(|slice| Some(slice.spec.pool.generation) == newest);
            pool.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            let is_complete = pool
                .iter()
                .all(|slice| slice.spec.pool.resource_slice_count <= pool.len());
            for slice in pool {
                if is_complete {
                    inventory.add(slice);
                } else {
                    inventory.incomplete.push((name.into(), slice.clone()));
                }
            }
        }
        // What is ready at once is preferred to what must be made ready.
        inventory
            .devices
            .sort_by_key(|entry| !entry.device().binding_conditions.is_empty());
        inventory.take(allocated);
        inventory
    }

    fn add(&mut self, slice: &Arc<ResourceSlice>) {
        let spec = &slice.spec;
        for set in &spec.shared_counters {
            for (name, counter) in &set.counters {
                let id = (
                    spec.driver.clone(),
                    spec.pool.name.clone(),
                    set.name.clone(),
                    name.clone(),
                );
                self.counters
                    .insert(id, counter.value.map_or(0, |value| value.0.value()));
            }
        }
        for place in 0..spec.devices.len() {
            self.devices.push(Entry {
                slice: slice.clone(),
                place,
            });
        }
    }

    fn take<'a>(&mut self, allocated: impl Iterator<Item = &'a AllocatedDevice>) {
        for one in allocated.filter(|one| one.admin_access != Some(true)) {
            let id = (one.driver.clone(), one.pool.clone(), one.device.clone());
            if one.share_id.is_none() {
                self.taken.insert(id);
                continue;
            }
            let used = self.shared.entry(id).or_default();
            for (name, amount) in &one.consumed_capacity {
                let amount = amount.parse::<apimachinery::quantity::Quantity>();
                *used.entry(name.clone()).or_default() += amount.map_or(0, |amount| amount.value());
            }
        }
        // Shared counters are used once by a device, however many claims share it.
        for entry in &self.devices {
            let id = entry.id();
            if self.taken.contains(&id) || self.shared.contains_key(&id) {
                for (counter, amount) in entry.counters() {
                    *self.counters.entry(counter).or_default() -= amount;
                }
            }
        }
    }

    /// The places of the devices that can be used on a node.
    pub fn on(&self, node: &str, labels: &BTreeMap<String, String>) -> Vec<usize> {
        let here = self.devices.iter().enumerate();
        here.filter(|(_, entry)| entry.place().includes(node, labels))
            .map(|(place, _)| place)
            .collect()
    }

    /// A pool with devices for a node that is not known in full.
    pub fn incomplete_on(&self, node: &str, labels: &BTreeMap<String, String>) -> Option<&str> {
        let here = |(_, slice): &&(String, Arc<ResourceSlice>)| {
            let spec = &slice.spec;
            spec.per_device_node_selection || spec.place.includes(node, labels)
        };
        self.incomplete
            .iter()
            .find(here)
            .map(|(name, _)| name.as_str())
    }
}
