//! Finds devices for claims on one node: every request gets as many as it asks for, no device twice, and all
//! constraints hold. Tries in order and steps back where it cannot go on, so that what there is is found.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use api::view::untolerated;
use apimachinery::{Value, quantity::Quantity};
use serde_json::json;

use super::{
    inventory::{CounterId, DeviceId, Entry, Inventory},
    select,
    view::{AllocatedDevice, Attribute, Capacity, Constraint, DeviceClass, Selecting, Wish},
};
use crate::storage::ResourceClaim;

/// Devices of one claim at most (AllocationResultsMaxSize).
const MAX_DEVICES: usize = 32;
/// Devices tried for one node at most: about as many as can be tried in a tenth of a second.
const MAX_STEPS: usize = 200_000;

/// One request of a claim, with what can be had for it in the order it is preferred.
pub struct Request {
    /// The place of its claim.
    pub claim: usize,
    pub options: Vec<(Wish, String, Arc<DeviceClass>)>,
}

/// What is asked for, and what there is. One for a pod; `known` outlives the nodes it is asked about.
pub struct Ask<'a> {
    pub claims: &'a [Arc<ResourceClaim>],
    pub requests: &'a [Request],
    pub inventory: &'a Inventory,
    /// Whether the selectors of a request's option want a device: an expression is asked once.
    pub known: &'a RefCell<HashMap<(usize, usize, usize), Result<bool, String>>>,
}

impl Request {
    /// The requests of claims.
    ///
    /// # Errors
    /// In upstream's words: a class that does not exist.
    pub fn all(
        claims: &[Arc<ResourceClaim>],
        classes: &HashMap<String, Arc<DeviceClass>>,
    ) -> Result<Vec<Request>, String> {
        let mut requests = Vec::new();
        for (place, claim) in claims.iter().enumerate() {
            for request in &claim.spec.devices.requests {
                let exact = request
                    .exactly
                    .iter()
                    .map(|wish| (wish, request.name.clone()));
                let several = request
                    .first_available
                    .iter()
                    .map(|wish| (wish, format!("{}/{}", request.name, wish.name)));
                let mut options = Vec::new();
                for (wish, name) in exact.chain(several) {
                    let class = &wish.device_class_name;
                    let Some(found) = classes.get(class) else {
                        return Err(format!(
                            "request {name}: device class {class} does not exist"
                        ));
                    };
                    options.push((wish.clone(), name, found.clone()));
                }
                requests.push(Request {
                    claim: place,
                    options,
                });
            }
        }
        Ok(requests)
    }
}

/// A device chosen for a request.
#[derive(Clone)]
struct Choice {
    request: usize,
    option: usize,
    device: usize,
    /// What it takes of a device that others share.
    consumed: Option<BTreeMap<String, i64>>,
}

struct Search<'a> {
    ask: &'a Ask<'a>,
    here: Vec<usize>,
    chosen: Vec<Choice>,
    taken: HashSet<DeviceId>,
    shared: HashMap<DeviceId, BTreeMap<String, i64>>,
    counters: HashMap<CounterId, i64>,
    steps: usize,
}

/// The allocations of the claims on a node, in their order, as `status.allocation` has them; `None` when they cannot
/// be had.
///
/// # Errors
/// Why it cannot be told: a selector that fails, a pool that is not known in full.
pub fn allocate(
    ask: &Ask<'_>,
    node: &str,
    labels: &BTreeMap<String, String>,
) -> Result<Option<Vec<Value>>, String> {
    let here = ask.inventory.on(node, labels);
    if let Some(pool) = ask.inventory.incomplete_on(node, labels)
        && let Some((_, name, _)) = ask
            .requests
            .iter()
            .flat_map(|one| &one.options)
            .find(|(wish, _, _)| wish.allocation_mode == "All")
    {
        return Err(format!(
            "request {name}: asks for all devices, but resource pool {pool} is currently being updated"
        ));
    }
    let mut search = Search {
        ask,
        here,
        chosen: Vec::new(),
        taken: HashSet::new(),
        shared: HashMap::new(),
        counters: HashMap::new(),
        steps: 0,
    };
    if !search.request(0)? {
        return Ok(None);
    }
    let claims = 0..ask.claims.len();
    Ok(Some(
        claims.map(|claim| search.allocation(claim, node)).collect(),
    ))
}

impl Search<'_> {
    fn entry(&self, device: usize) -> &Entry {
        &self.ask.inventory.devices[device]
    }

    /// Finds devices for this request and those after it.
    fn request(&mut self, place: usize) -> Result<bool, String> {
        let ask = self.ask;
        let Some(request) = ask.requests.get(place) else {
            return Ok(true);
        };
        for (option, (wish, _, _)) in request.options.iter().enumerate() {
            let mut candidates = Vec::new();
            for device in self.here.clone() {
                if self.is_wanted(place, option, device)? {
                    candidates.push(device);
                }
            }
            let found = if wish.allocation_mode == "All" {
                !candidates.is_empty() && self.take_all(place, option, &candidates)?
            } else {
                self.take_some(place, option, &candidates, wish.count.max(1))?
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the class and the request select the device.
    fn is_wanted(&self, request: usize, option: usize, device: usize) -> Result<bool, String> {
        let (wish, name, class) = &self.ask.requests[request].options[option];
        let entry = self.entry(device);
        let key = (request, option, device);
        let mut known = self.ask.known.borrow_mut();
        let selected = known.entry(key).or_insert_with(|| {
            let selectors = class.spec.selectors.iter().chain(&wish.selectors);
            select::wants(selectors, entry).map_err(|why| {
                let (driver, pool, device) = entry.id();
                format!("request {name}: device {driver}/{pool}/{device}: CEL runtime error: {why}")
            })
        });
        selected.clone()
    }

    fn take_all(
        &mut self,
        request: usize,
        option: usize,
        devices: &[usize],
    ) -> Result<bool, String> {
        let before = self.chosen.len();
        let all = devices
            .iter()
            .all(|device| self.take(request, option, *device));
        if all && self.request(request + 1)? {
            return Ok(true);
        }
        while self.chosen.len() > before {
            self.give_back();
        }
        Ok(false)
    }

    /// Takes so many of the devices, then goes on.
    fn take_some(
        &mut self,
        request: usize,
        option: usize,
        devices: &[usize],
        count: usize,
    ) -> Result<bool, String> {
        if count == 0 {
            return self.request(request + 1);
        }
        for (place, device) in devices.iter().enumerate() {
            if devices.len() - place < count || self.steps >= MAX_STEPS {
                return Ok(false);
            }
            self.steps += 1;
            if self.take(request, option, *device) {
                if self.take_some(request, option, &devices[place + 1..], count - 1)? {
                    return Ok(true);
                }
                self.give_back();
            }
        }
        Ok(false)
    }

    /// Takes a device if it is free, its taints are tolerated, and every constraint holds with it. Who asks for all
    /// devices is given none if one of them is tainted.
    fn take(&mut self, request: usize, option: usize, device: usize) -> bool {
        let claim = self.ask.requests[request].claim;
        let of_claim = self
            .chosen
            .iter()
            .filter(|one| self.ask.requests[one.request].claim == claim);
        if of_claim.count() >= MAX_DEVICES || !self.keeps_constraints(request, option, device) {
            return false;
        }
        let ask = self.ask;
        let entry = &ask.inventory.devices[device];
        let (wish, _, _) = &ask.requests[request].options[option];
        let effects = ["NoSchedule", "NoExecute"];
        if untolerated(&entry.device().taints, &wish.tolerations, &effects).is_some() {
            return false;
        }
        let mut choice = Choice {
            request,
            option,
            device,
            consumed: None,
        };
        if wish.admin_access {
            self.chosen.push(choice);
            return true;
        }
        let id = entry.id();
        if self.taken.contains(&id) || self.ask.inventory.taken.contains(&id) {
            return false;
        }
        let Some(consumed) = self.consumed(entry, wish, &id) else {
            return false;
        };
        // One that is shared already has taken its counters.
        let is_new = !self.shared.contains_key(&id) && !self.ask.inventory.shared.contains_key(&id);
        let counters: Vec<(CounterId, i64)> = if is_new {
            entry.counters().collect()
        } else {
            Vec::new()
        };
        let left = |id: &CounterId| {
            let before = self.ask.inventory.counters.get(id).copied().unwrap_or(0);
            before - self.counters.get(id).copied().unwrap_or(0)
        };
        if counters.iter().any(|(id, amount)| left(id) < *amount) {
            return false;
        }
        for (id, amount) in counters {
            *self.counters.entry(id).or_default() += amount;
        }
        if entry.device().allow_multiple_allocations {
            let used = self.shared.entry(id).or_default();
            for (name, amount) in &consumed {
                *used.entry(name.clone()).or_default() += amount;
            }
            choice.consumed = Some(consumed);
        } else {
            self.taken.insert(id);
        }
        self.chosen.push(choice);
        true
    }

    fn give_back(&mut self) {
        let Some(choice) = self.chosen.pop() else {
            return;
        };
        let ask = self.ask;
        let (wish, _, _) = &ask.requests[choice.request].options[choice.option];
        if wish.admin_access {
            return;
        }
        let entry = &ask.inventory.devices[choice.device];
        let id = entry.id();
        let mut is_last = true;
        match &choice.consumed {
            None => drop(self.taken.remove(&id)),
            Some(consumed) => {
                if let Some(used) = self.shared.get_mut(&id) {
                    for (name, amount) in consumed {
                        *used.entry(name.clone()).or_default() -= amount;
                    }
                }
                is_last = !self
                    .chosen
                    .iter()
                    .any(|one| one.device == choice.device && one.consumed.is_some());
                if is_last {
                    self.shared.remove(&id);
                }
            }
        }
        if is_last && !self.ask.inventory.shared.contains_key(&id) {
            for (counter, amount) in entry.counters() {
                *self.counters.entry(counter).or_default() -= amount;
            }
        }
    }

    /// What the wish takes of the device's capacity; `None` if there is not enough left.
    fn consumed(&self, entry: &Entry, wish: &Wish, id: &DeviceId) -> Option<BTreeMap<String, i64>> {
        let device = entry.device();
        if wish
            .capacity
            .requests
            .keys()
            .any(|name| find(&device.capacity, name, entry.driver()).is_none())
        {
            return None;
        }
        let mut consumed = BTreeMap::new();
        for (name, capacity) in &device.capacity {
            let asked = wish
                .capacity
                .requests
                .iter()
                .find(|(asked, _)| is_called(asked, name, entry.driver()));
            let amount = portion(capacity, asked.map(|(_, amount)| amount.0.value()))?;
            let total = capacity.value.map_or(0, |value| value.0.value());
            if !device.allow_multiple_allocations {
                if amount > total {
                    return None;
                }
                continue;
            }
            let used = |all: &HashMap<DeviceId, BTreeMap<String, i64>>| {
                all.get(id)
                    .and_then(|used| used.get(name))
                    .copied()
                    .unwrap_or(0)
            };
            if used(&self.ask.inventory.shared) + used(&self.shared) + amount > total {
                return None;
            }
            consumed.insert(name.clone(), amount);
        }
        Some(consumed)
    }

    fn keeps_constraints(&self, request: usize, option: usize, device: usize) -> bool {
        let claim = self.ask.requests[request].claim;
        let constraints = &self.ask.claims[claim].spec.devices.constraints;
        let name =
            |request: usize, option: usize| self.ask.requests[request].options[option].1.as_str();
        constraints
            .iter()
            .filter(|one| applies(one, name(request, option)))
            .all(|constraint| {
                let mut others = self.chosen.iter().filter(|one| {
                    self.ask.requests[one.request].claim == claim
                        && applies(constraint, name(one.request, one.option))
                });
                let value = |device: usize, attribute: &str| {
                    let entry = self.entry(device);
                    find(&entry.device().attributes, attribute, entry.driver())
                };
                let matches = constraint.match_attribute.as_ref().is_none_or(|attribute| {
                    let own: Option<&Attribute> = value(device, attribute);
                    own.is_some()
                        && others
                            .clone()
                            .all(|one| value(one.device, attribute) == own)
                });
                let differs = constraint
                    .distinct_attribute
                    .as_ref()
                    .is_none_or(|attribute| {
                        let own = value(device, attribute);
                        own.is_some() && others.all(|one| value(one.device, attribute) != own)
                    });
                matches && differs
            })
    }

    /// What a claim's status says of the devices chosen for it.
    fn allocation(&self, claim: usize, node: &str) -> Value {
        let chosen: Vec<&Choice> = self
            .chosen
            .iter()
            .filter(|one| self.ask.requests[one.request].claim == claim)
            .collect();
        let results: Vec<AllocatedDevice> = chosen.iter().map(|one| self.result(one)).collect();
        let mut devices = json!({"results": results});
        let config = self.config(claim, &chosen);
        if !config.is_empty() {
            devices["config"] = json!(config);
        }
        let mut allocation = json!({"devices": devices});
        let is_bound = |one: &&Choice| self.entry(one.device).device().binds_to_node;
        let bound = super::view::Place {
            node_name: node.into(),
            ..Default::default()
        };
        let bound = chosen
            .iter()
            .copied()
            .any(|one| is_bound(&one))
            .then_some(&bound);
        let places = chosen.iter().map(|one| self.entry(one.device).place());
        let places = bound.into_iter().chain(places);
        if let Some(selector) = node_selector(places, node) {
            allocation["nodeSelector"] = selector;
        }
        allocation
    }

    fn result(&self, choice: &Choice) -> AllocatedDevice {
        let (wish, name, _) = &self.ask.requests[choice.request].options[choice.option];
        let entry = self.entry(choice.device);
        let (driver, pool, device) = entry.id();
        let consumed = choice.consumed.iter().flatten();
        AllocatedDevice {
            request: name.clone(),
            driver,
            pool,
            device,
            admin_access: wish.admin_access.then_some(true),
            tolerations: wish.tolerations.clone(),
            share_id: choice.consumed.as_ref().map(|_| share_id()),
            consumed_capacity: consumed
                .map(|(name, amount)| (name.clone(), Quantity::from_bytes(*amount).to_string()))
                .collect(),
            binding_conditions: entry.device().binding_conditions.clone(),
            binding_failure_conditions: entry.device().binding_failure_conditions.clone(),
        }
    }

    /// The configuration of the classes and of the claim, for the requests that were chosen.
    fn config(&self, claim: usize, chosen: &[&Choice]) -> Vec<Value> {
        let mut all = Vec::new();
        let mut seen = BTreeSet::new();
        for choice in chosen {
            let (_, name, class) = &self.ask.requests[choice.request].options[choice.option];
            if seen.insert(name) {
                for config in &class.spec.config {
                    let mut config = config.clone();
                    config["source"] = json!("FromClass");
                    config["requests"] = json!([name]);
                    all.push(config);
                }
            }
        }
        for config in &self.ask.claims[claim].spec.devices.config {
            let named: Vec<&str> = config["requests"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            if named.is_empty()
                || seen
                    .iter()
                    .any(|name| named.iter().any(|one| covers(one, name)))
            {
                let mut config = config.clone();
                config["source"] = json!("FromClaim");
                all.push(config);
            }
        }
        all
    }
}

/// Whether a name in a constraint or a configuration means a request, or all the options of one.
fn covers(named: &str, request: &str) -> bool {
    named == request
        || request
            .split_once('/')
            .is_some_and(|(main, _)| main == named)
}

fn applies(constraint: &Constraint, request: &str) -> bool {
    constraint.requests.is_empty() || constraint.requests.iter().any(|one| covers(one, request))
}

/// Whether a full name means this one, whose domain may be left out if it is the driver's.
fn is_called(full: &str, name: &str, driver: &str) -> bool {
    let qualify = |name: &str| match name.split_once('/') {
        Some(_) => name.to_string(),
        None => format!("{driver}/{name}"),
    };
    full == name || qualify(full) == qualify(name)
}

fn find<'a, T>(all: &'a BTreeMap<String, T>, full: &str, driver: &str) -> Option<&'a T> {
    all.get(full).or_else(|| {
        let (domain, name) = full.split_once('/')?;
        all.get(name).filter(|_| domain == driver)
    })
}

/// What is taken of a capacity when so much is asked for: as much as its policy allows at least; `None` if it allows
/// no such amount.
fn portion(capacity: &Capacity, asked: Option<i64>) -> Option<i64> {
    let whole = capacity.value.map_or(0, |value| value.0.value());
    let Some(policy) = &capacity.request_policy else {
        return Some(asked.unwrap_or(whole));
    };
    let asked = asked
        .or(policy.default.map(|amount| amount.0.value()))
        .unwrap_or(whole);
    if !policy.valid_values.is_empty() {
        return policy
            .valid_values
            .iter()
            .map(|amount| amount.0.value())
            .filter(|one| *one >= asked)
            .min();
    }
    let Some(range) = &policy.valid_range else {
        return Some(asked);
    };
    let min = range.min.map_or(0, |amount| amount.0.value());
    let mut amount = asked.max(min);
    if let Some(step) = range
        .step
        .map(|step| step.0.value())
        .filter(|step| *step > 0)
    {
        amount = min + (amount - min).div_ceil_by(step) * step;
    }
    range
        .max
        .is_none_or(|max| amount <= max.0.value())
        .then_some(amount)
}

trait DivCeil {
    fn div_ceil_by(self, by: i64) -> i64;
}

impl DivCeil for i64 {
    fn div_ceil_by(self, by: i64) -> i64 {
        self / by + i64::from(self % by != 0)
    }
}

/// Where all the devices can be used (createNodeSelector): on one node, or where all their selectors allow.
fn node_selector<'a>(
    places: impl Iterator<Item = &'a super::view::Place>,
    node: &str,
) -> Option<Value> {
    let mut expressions: Vec<Value> = Vec::new();
    let mut fields: Vec<Value> = Vec::new();
    let add = |to: &mut Vec<Value>, from: &Value| {
        for one in from.as_array().into_iter().flatten() {
            if !to.contains(one) {
                to.push(one.clone());
            }
        }
    };
    for place in places {
        if !place.node_name.is_empty() {
            let one = json!({"key": "metadata.name", "operator": "In", "values": [node]});
            return Some(json!({"nodeSelectorTerms": [{"matchFields": [one]}]}));
        }
        if let Some(Selecting { raw, .. }) = &place.node_selector {
            // There is exactly one term.
            let term = &raw["nodeSelectorTerms"][0];
            add(&mut expressions, &term["matchExpressions"]);
            add(&mut fields, &term["matchFields"]);
        }
    }
    let mut term = json!({});
    if !expressions.is_empty() {
        term["matchExpressions"] = json!(expressions);
    }
    if !fields.is_empty() {
        term["matchFields"] = json!(fields);
    }
    (term != json!({})).then(|| json!({"nodeSelectorTerms": [term]}))
}

/// A random UUID (version 4).
fn share_id() -> String {
    let random: u128 = rand::random();
    let bits = random & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
