//! What may be written to a claim's status: what was allocated stays so until it is given back, and who has reserved it.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList};
use apimachinery::{meta, name};

use super::super::check::Node;
use super::super::pod_spec::affinity::node_selector;
use super::super::status::conditions;
use super::super::tree::{at, items, text};
use super::claim::Requests;
use super::names::{
    binding_conditions, configuration, driver, is_bounded, object, pool_name, skipped_operations,
    tolerations, uid, unique,
};

/// Most users of a claim, most devices allocated to one, and most configurations of both class and claim.
const MAX_USERS: usize = 256;
const MAX_RESULTS: usize = 32;
const MAX_CONFIGS: usize = 64;
const MAX_CONDITIONS: usize = 8;
const MAX_INTERFACE: usize = 256;
const MAX_HARDWARE: usize = 128;
const MAX_ADDRESSES: usize = 16;

/// `ValidateResourceClaimStatusUpdate`.
pub fn validate(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let status = Node::root(at(new, &["status"]), "status");
    let (users, allocation) = (status.at("reservedFor"), status.at("allocation"));
    reservations(&users, errors);
    devices(&status.at("devices"), &allocation, errors);
    if !users.list().is_empty() {
        let added = users.list().iter().any(|user| {
            let is = |other: &Value| text(other, &["uid"]) == text(user, &["uid"]);
            !items(old, &["status", "reservedFor"]).iter().any(is)
        });
        if !allocation.is_set() {
            users.forbidden(errors, "may not be specified when `allocated` is not set");
        } else if added && meta::is_deleting(new) {
            users.forbidden(
                errors,
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
            );
        }
    }
    let was = at(old, &["status", "allocation"]);
    if allocation.is_set() {
        if was.is_null() {
            allocated(new, &allocation, errors);
        } else {
            allocation.unchanged(errors, was);
        }
    }
    std::mem::take(errors)
}

fn reservations(users: &Node<'_, '_>, errors: &mut ErrorList) {
    if !is_bounded(users, MAX_USERS, errors) {
        return;
    }
    for user in users.items() {
        for field in ["resource", "name", "uid"] {
            user.at(field).present(errors);
        }
    }
    unique(users, |user| user.at("uid").text().to_owned(), errors);
}

/// What was found for each request.
fn allocated(claim: &Value, allocation: &Node<'_, '_>, errors: &mut ErrorList) {
    let names = Requests::of(at(claim, &["spec"]));
    let devices = allocation.at("devices");
    let results = devices.at("results");
    if is_bounded(&results, MAX_RESULTS, errors) {
        for result in results.items() {
            names.refer(&result.at("request"), errors);
            driver(&result.at("driver"), errors);
            pool_name(&result.at("pool"), errors);
            result.at("device").syntax(errors, name::dns_1123_label);
            binding_conditions(&result, errors);
            tolerations(&result.at("tolerations"), errors);
            share(&result, errors);
            skipped_operations(&result.at("skipNodeOperations"), errors);
        }
    }
    let configs = devices.at("config");
    if is_bounded(&configs, MAX_CONFIGS, errors) {
        for config in configs.items() {
            config
                .at("source")
                .one_of(errors, &["FromClaim", "FromClass"]);
            names.refer_all(&config.at("requests"), errors);
            configuration(&config, errors);
        }
    }
    let selector = allocation.at("nodeSelector");
    if selector.is_set() {
        node_selector(selector.value, &selector.path(), errors);
    }
}

fn share(of: &Node<'_, '_>, errors: &mut ErrorList) {
    let id = of.at("shareID");
    if id.is_set() {
        uid(&id, errors);
    }
}

/// What drivers report of allocated devices.
fn devices(devices: &Node<'_, '_>, allocation: &Node<'_, '_>, errors: &mut ErrorList) {
    let key = |device: &Value| {
        ["driver", "pool", "device", "shareID"].map(|field| text(device, &[field]).to_owned())
    };
    let allocated: Vec<_> = items(allocation.value, &["devices", "results"])
        .iter()
        .map(key)
        .collect();
    for device in devices.items() {
        driver(&device.at("driver"), errors);
        pool_name(&device.at("pool"), errors);
        device.at("device").syntax(errors, name::dns_1123_label);
        share(&device, errors);
        if !allocated.contains(&key(device.value)) {
            device.invalid_as(
                errors,
                shown(device.value),
                "must be an allocated device in the claim",
            );
        }
        let list = device.at("conditions");
        is_bounded(&list, MAX_CONDITIONS, errors);
        conditions(&list, errors);
        let data = device.at("data");
        if data.is_set() {
            object(&data, errors);
        }
        network_data(&device.at("networkData"), errors);
    }
    unique(devices, |device| shown(device.value), errors);
}

/// A device as `SharedDeviceID` is written.
fn shown(device: &Value) -> String {
    let fields = ["driver", "pool", "device", "shareID"].map(|field| text(device, &[field]));
    let told = fields.iter().filter(|field| !field.is_empty());
    told.copied().collect::<Vec<_>>().join("/")
}

/// `validateNetworkDeviceData`.
fn network_data(data: &Node<'_, '_>, errors: &mut ErrorList) {
    for (field, most) in [
        ("interfaceName", MAX_INTERFACE),
        ("hardwareAddress", MAX_HARDWARE),
    ] {
        let text = data.at(field);
        if text.text().len() > most {
            errors.push(Error::too_long(&text.path(), most));
        }
    }
    let addresses = data.at("ips");
    if is_bounded(&addresses, MAX_ADDRESSES, errors) {
        for address in addresses.items() {
            if let Some(why) = interface_address(address.text()) {
                address.invalid(errors, why);
            }
        }
        unique(&addresses, |address| address.text().to_owned(), errors);
    }
}

/// `IsValidInterfaceAddress`: an address with the length of its network's prefix, in the one way to write it.
fn interface_address(text: &str) -> Option<String> {
    const FORM: &str = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
    let Some((address, length)) = text.split_once('/') else {
        return Some(FORM.to_owned());
    };
    let (Ok(address), Ok(length)) = (address.parse::<std::net::IpAddr>(), length.parse::<u8>())
    else {
        return Some(FORM.to_owned());
    };
    if length > if address.is_ipv4() { 32 } else { 128 } {
        return Some(FORM.to_owned());
    }
    let canonical = format!("{address}/{length}");
    (canonical != text).then(|| format!("must be in canonical form ({canonical:?})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    fn claim(status: Value) -> Value {
        json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {}}]}}, "status": status})
    }

    #[test]
    fn what_was_allocated_stays_until_it_is_given_back() {
        let result = json!({"request": "r", "driver": "d.io", "pool": "p", "device": "x"});
        let one = json!({"allocation": {"devices": {"results": [result]}}});
        let none = claim(json!({}));
        check(validate(&claim(one.clone()), &none), &[]);
        check(validate(&none, &claim(one.clone())), &[]);
        let mut other = one.clone();
        other["allocation"]["devices"]["results"][0]["device"] = "y".into();
        let texts = validate(&claim(other), &claim(one)).aggregate();
        assert!(
            texts.starts_with("status.allocation: Invalid value: "),
            "{texts}"
        );
        assert!(texts.ends_with("field is immutable"), "{texts}");
    }

    #[test]
    fn results_answer_requests_and_users_are_named() {
        check(
            validate(
                &claim(json!({"allocation": {"devices": {"results": [
                    {"request": "q", "driver": "d.io", "pool": "p", "device": "x"}]}},
                    "reservedFor": [{"resource": "pods", "name": "a", "uid": "1"}, {"resource": "pods", "name": "b", "uid": "1"}]})),
                &claim(json!({})),
            ),
            &[
                "status.reservedFor[1]: Duplicate value: \"1\"",
                "status.allocation.devices.results[0].request: Invalid value: \"q\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            ],
        );
        check(
            validate(
                &claim(json!({"reservedFor": [{"resource": "pods", "name": "a", "uid": "1"}]})),
                &claim(json!({})),
            ),
            &["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"],
        );
    }
}
