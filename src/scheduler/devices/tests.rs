//! What is found for claims on one node.

use super::*;
use serde_json::json;

fn slice(name: &str, spec: Value) -> Arc<super::super::view::ResourceSlice> {
    let mut whole = json!({"driver": "d.io", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": whole})).unwrap())
}

fn claim(spec: Value) -> Arc<ResourceClaim> {
    Arc::new(
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"devices": spec}}))
            .unwrap(),
    )
}

fn classes() -> HashMap<String, Arc<DeviceClass>> {
    let class = |name: &str, expression: &str, config: Value| {
        let selectors = json!([{"cel": {"expression": expression}}]);
        let value =
            json!({"metadata": {"name": name}, "spec": {"selectors": selectors, "config": config}});
        (
            name.to_string(),
            Arc::new(serde_json::from_value(value).unwrap()),
        )
    };
    let config = json!([{"opaque": {"driver": "d.io", "parameters": {"k": "class"}}}]);
    HashMap::from([
        class("any", "device.driver == 'd.io'", config),
        class(
            "big",
            "device.capacity['d.io'].memory.compareTo(quantity('8Gi')) >= 0",
            json!([]),
        ),
    ])
}

/// Four devices: model and numa node, memory.
fn four() -> Arc<super::super::view::ResourceSlice> {
    let device = |name: &str, model: &str, numa: i64, memory: &str| {
        json!({"name": name, "attributes": {"model": {"string": model}, "numa.io/node": {"int": numa}},
            "capacity": {"memory": {"value": memory}}})
    };
    slice(
        "s",
        json!({"devices": [
        device("d1", "a", 0, "4Gi"), device("d2", "a", 1, "8Gi"), device("d3", "b", 1, "8Gi"), device("d4", "b", 1, "16Gi")]}),
    )
}

struct Found {
    slices: Vec<Arc<super::super::view::ResourceSlice>>,
    allocated: Vec<AllocatedDevice>,
}

impl Found {
    fn all(&self, claims: &[Value]) -> Result<Option<Vec<Value>>, String> {
        let claims: Vec<_> = claims.iter().map(|one| claim(one.clone())).collect();
        let requests = Request::all(&claims, &classes())?;
        let inventory = Inventory::new(self.slices.iter(), self.allocated.iter());
        let known = RefCell::default();
        let ask = Ask {
            claims: &claims,
            requests: &requests,
            inventory: &inventory,
            known: &known,
        };
        allocate(&ask, "n", &BTreeMap::new())
    }

    /// The devices of each claim.
    fn names(&self, claims: &[Value]) -> Option<Vec<Vec<String>>> {
        let found = self.all(claims).unwrap()?;
        let names = |one: &Value| {
            let results = one["devices"]["results"].as_array().unwrap().clone();
            results
                .iter()
                .map(|one| one["device"].as_str().unwrap().to_string())
                .collect()
        };
        Some(found.iter().map(names).collect())
    }
}

fn found(slices: Vec<Arc<super::super::view::ResourceSlice>>) -> Found {
    Found {
        slices,
        allocated: Vec::new(),
    }
}

fn exactly(name: &str, class: &str, more: Value) -> Value {
    let mut wish = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": 1});
    for (key, value) in more.as_object().unwrap() {
        wish[key] = value.clone();
    }
    json!({"name": name, "exactly": wish})
}

fn wants(expression: &str) -> Value {
    json!({"selectors": [{"cel": {"expression": expression}}]})
}

#[test]
fn requests_get_devices_their_class_and_selectors_want() {
    let found = found(vec![four()]);
    for (requests, expected) in [
        (json!([exactly("r", "any", json!({}))]), Some(vec!["d1"])),
        (json!([exactly("r", "big", json!({}))]), Some(vec!["d2"])),
        (
            json!([exactly("r", "any", json!({"count": 3}))]),
            Some(vec!["d1", "d2", "d3"]),
        ),
        (json!([exactly("r", "any", json!({"count": 5}))]), None),
        (
            json!([exactly(
                "r",
                "any",
                wants("device.attributes['d.io'].model == 'b'")
            )]),
            Some(vec!["d3"]),
        ),
        (
            json!([exactly(
                "r",
                "any",
                wants("has(device.attributes['x.io'].model)")
            )]),
            None,
        ),
        (
            json!([exactly("r", "big", json!({"allocationMode": "All"}))]),
            Some(vec!["d2", "d3", "d4"]),
        ),
        (json!([exactly("r", "any", wants("false"))]), None),
        // The first request must leave the second its only device.
        (
            json!([
                exactly("r", "any", json!({"count": 3})),
                exactly(
                    "s",
                    "any",
                    wants(
                        "device.attributes['d.io'].model == 'a' && device.attributes['numa.io'].node == 0"
                    )
                )
            ]),
            Some(vec!["d2", "d3", "d4", "d1"]),
        ),
        // Capacity asked of a device it has to itself must be there.
        (
            json!([exactly(
                "r",
                "any",
                json!({"capacity": {"requests": {"memory": "10Gi"}}})
            )]),
            Some(vec!["d4"]),
        ),
    ] {
        let expected =
            expected.map(|names| vec![names.iter().map(ToString::to_string).collect::<Vec<_>>()]);
        assert_eq!(
            found.names(&[json!({"requests": requests})]),
            expected,
            "{requests}"
        );
    }
}

#[test]
fn constraints_hold_over_all_their_requests() {
    let found = found(vec![four()]);
    let requests = json!([
        exactly("r", "any", json!({})),
        exactly("s", "any", json!({}))
    ]);
    for (constraint, expected) in [
        (
            json!({"matchAttribute": "numa.io/node"}),
            Some(["d2", "d3"]),
        ),
        (json!({"matchAttribute": "d.io/model"}), Some(["d1", "d2"])),
        (
            json!({"distinctAttribute": "d.io/model"}),
            Some(["d1", "d3"]),
        ),
        (json!({"matchAttribute": "d.io/absent"}), None),
        (
            json!({"requests": ["s"], "matchAttribute": "d.io/model"}),
            Some(["d1", "d2"]),
        ),
    ] {
        let claim = json!({"requests": requests, "constraints": [constraint]});
        let expected = expected.map(|names| vec![names.map(String::from).to_vec()]);
        assert_eq!(found.names(&[claim]), expected, "{constraint}");
    }
}

#[test]
fn the_first_option_that_can_be_had_is_taken_and_its_configuration_with_it() {
    let found = found(vec![four()]);
    let option = |name: &str, count: usize| json!({"name": name, "deviceClassName": "any", "allocationMode": "ExactCount", "count": count});
    let claim = json!({
        "requests": [{"name": "r", "firstAvailable": [option("many", 9), option("few", 2)]}],
        "config": [
            {"requests": ["r/many"], "opaque": {"driver": "d.io", "parameters": {"k": "many"}}},
            {"requests": ["r"], "opaque": {"driver": "d.io", "parameters": {"k": "r"}}}],
    });
    let allocation = found.all(&[claim]).unwrap().unwrap().remove(0);
    assert_eq!(
        allocation["devices"]["results"][1],
        json!({"request": "r/few", "driver": "d.io", "pool": "p", "device": "d2"})
    );
    let config = &allocation["devices"]["config"];
    assert_eq!(
        config[0],
        json!({"source": "FromClass", "requests": ["r/few"], "opaque": {"driver": "d.io", "parameters": {"k": "class"}}})
    );
    assert_eq!(
        (
            &config[1]["source"],
            &config[1]["opaque"]["parameters"]["k"]
        ),
        (&json!("FromClaim"), &json!("r"))
    );
    assert_eq!(config.as_array().unwrap().len(), 2);
    let node = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
    assert_eq!(
        allocation["nodeSelector"],
        json!({"nodeSelectorTerms": [{"matchFields": [node]}]})
    );
}

#[test]
fn what_others_have_is_not_given_but_to_administrators() {
    let mut found = found(vec![four()]);
    let taken = |device: &str, admin: bool| AllocatedDevice {
        driver: "d.io".into(),
        pool: "p".into(),
        device: device.into(),
        admin_access: admin.then_some(true),
        ..AllocatedDevice::default()
    };
    found.allocated = vec![taken("d1", false), taken("d2", true)];
    let one = |more: Value| json!({"requests": [exactly("r", "any", more)]});
    let names = |name: &str| Some(vec![vec![name.to_string()]]);
    assert_eq!(found.names(&[one(json!({}))]), names("d2"));
    assert_eq!(
        found.names(&[one(json!({"adminAccess": true}))]),
        names("d1")
    );
    assert_eq!(found.names(&[one(json!({"allocationMode": "All"}))]), None);
    let both = found.names(&[one(json!({})), one(json!({}))]).unwrap();
    assert_eq!(both, [vec!["d2"], vec!["d3"]]);
}

#[test]
fn tainted_devices_go_to_those_who_tolerate_it() {
    let taint = json!([{"key": "broken", "effect": "NoSchedule"}]);
    let found = found(vec![slice(
        "s",
        json!({"devices": [{"name": "d1", "taints": taint}]}),
    )]);
    let tolerant = json!({"tolerations": [{"key": "broken", "operator": "Exists"}]});
    for (more, expected) in [
        (json!({}), None),
        (tolerant, Some(vec![vec!["d1".to_string()]])),
    ] {
        assert_eq!(
            found.names(&[json!({"requests": [exactly("r", "any", more)]})]),
            expected
        );
    }
}

#[test]
fn only_the_newest_generation_of_a_complete_pool_counts() {
    let at = |name: &str, generation: i64, count: usize, device: &str| {
        let pool = json!({"name": "p", "generation": generation, "resourceSliceCount": count});
        slice(name, json!({"pool": pool, "devices": [{"name": device}]}))
    };
    let any =
        |mode: &str| json!({"requests": [exactly("r", "any", json!({"allocationMode": mode}))]});
    let newest = found(vec![at("a", 1, 1, "old"), at("b", 2, 1, "new")]);
    assert_eq!(
        newest.names(&[any("All")]),
        Some(vec![vec!["new".to_string()]])
    );
    let incomplete = found(vec![at("b", 2, 2, "new")]);
    assert_eq!(incomplete.names(&[any("ExactCount")]), None);
    let why = incomplete.all(&[any("All")]).unwrap_err();
    assert_eq!(
        why,
        "request r: asks for all devices, but resource pool p is currently being updated"
    );
    let elsewhere = found(vec![slice(
        "s",
        json!({"nodeName": "other", "devices": [{"name": "d"}]}),
    )]);
    assert_eq!(elsewhere.names(&[any("ExactCount")]), None);
}

#[test]
fn devices_that_share_counters_do_not_take_more_than_there_is() {
    let takes =
        |amount: &str| json!([{"counterSet": "gpu", "counters": {"memory": {"value": amount}}}]);
    let pool = slice(
        "s",
        json!({
        "sharedCounters": [{"name": "gpu", "counters": {"memory": {"value": "10Gi"}}}],
        "devices": [
            {"name": "whole", "consumesCounters": takes("10Gi")},
            {"name": "half1", "consumesCounters": takes("5Gi")},
            {"name": "half2", "consumesCounters": takes("5Gi")}]}),
    );
    let mut found = found(vec![pool]);
    let count = |count: usize| json!({"requests": [exactly("r", "any", json!({"count": count}))]});
    assert_eq!(
        found.names(&[count(1)]),
        Some(vec![vec!["whole".to_string()]])
    );
    assert_eq!(
        found.names(&[count(2)]),
        Some(vec![vec!["half1".to_string(), "half2".to_string()]])
    );
    assert_eq!(found.names(&[count(3)]), None);
    found.allocated.push(AllocatedDevice {
        driver: "d.io".into(),
        pool: "p".into(),
        device: "half2".into(),
        ..AllocatedDevice::default()
    });
    assert_eq!(
        found.names(&[count(1)]),
        Some(vec![vec!["half1".to_string()]])
    );
}

#[test]
fn a_device_that_may_be_shared_is_given_in_parts() {
    let policy = json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "2Gi"}});
    let device = json!({"name": "nic", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "8Gi", "requestPolicy": policy}}});
    let mut found = found(vec![slice("s", json!({"devices": [device]}))]);
    let part = |amount: &str| json!({"requests": [exactly("r", "any", json!({"capacity": {"requests": {"memory": amount}}}))]});
    let given = |found: &Found, amount: &str| {
        let all = found.all(&[part(amount)]).unwrap()?;
        serde_json::from_value::<AllocatedDevice>(all[0]["devices"]["results"][0].clone()).ok()
    };
    let first = given(&found, "4Gi").unwrap();
    // One and as many twos as it takes.
    assert_eq!(first.consumed_capacity["memory"], "5Gi");
    assert_eq!(first.share_id.as_ref().unwrap().len(), 36);
    found.allocated.push(first);
    assert!(given(&found, "4Gi").is_none());
    assert_eq!(
        given(&found, "2Gi").unwrap().consumed_capacity["memory"],
        "3Gi"
    );
}

#[test]
fn a_selector_that_fails_is_told_with_its_device() {
    let found = found(vec![slice("s", json!({"devices": [{"name": "d1"}]}))]);
    let why = found.all(&[json!({"requests": [exactly("r", "any", wants("device.attributes['d.io'].model == 'a'"))]})]).unwrap_err();
    assert!(
        why.starts_with("request r: device d.io/p/d1: CEL runtime error: "),
        "{why}"
    );
    let none = json!({"requests": [exactly("r", "none", json!({}))]});
    assert_eq!(
        found.all(&[none]).unwrap_err(),
        "request r: device class none does not exist"
    );
}
