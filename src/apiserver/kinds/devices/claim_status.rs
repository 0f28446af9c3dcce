//! What may be written to a claim's status: what was allocated stays so until it is given back, and who has reserved it.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList};
use apimachinery::{meta, name};

use super::super::check::Node;
use super::super::pod_spec::affinity::node_selector;
use super::super::status::conditions;
use super::super::tree::{at, items, text};
use super::{driver, limit, pool_name};

/// Most users of a claim, and most devices allocated to one.
const MAX_USERS: usize = 256;
const MAX_RESULTS: usize = 32;

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
    limit(users, MAX_USERS, errors);
    let mut seen: Vec<&str> = Vec::new();
    for user in users.items() {
        for field in ["resource", "name", "uid"] {
            user.at(field).present(errors);
        }
        let uid = user.at("uid");
        if seen.contains(&uid.text()) {
            uid.duplicate(errors);
        }
        seen.push(uid.text());
    }
}

/// What was found for each request.
fn allocated(claim: &Value, allocation: &Node<'_, '_>, errors: &mut ErrorList) {
    let devices = allocation.at("devices");
    let results = devices.at("results");
    limit(&results, MAX_RESULTS, errors);
    for result in results.items() {
        let request = result.at("request");
        if !is_request(claim, request.text()) {
            request.invalid(
                errors,
                "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            );
        }
        driver(&result.at("driver"), errors);
        pool_name(&result.at("pool"), errors);
        result.at("device").named(errors, name::dns_1123_label);
    }
    let selector = allocation.at("nodeSelector");
    if selector.is_set() {
        node_selector(selector.value, &selector.path(), errors);
    }
}

fn is_request(claim: &Value, called: &str) -> bool {
    let (request, sub) = match called.split_once('/') {
        Some((request, sub)) => (request, Some(sub)),
        None => (called, None),
    };
    items(claim, &["spec", "devices", "requests"])
        .iter()
        .filter(|known| text(known, &["name"]) == request)
        .any(|known| {
            let subs = items(known, &["firstAvailable"]);
            match sub {
                None => subs.is_empty(),
                Some(sub) => subs.iter().any(|known| text(known, &["name"]) == sub),
            }
        })
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
    let mut seen = Vec::new();
    for device in devices.items() {
        driver(&device.at("driver"), errors);
        pool_name(&device.at("pool"), errors);
        device.at("device").named(errors, name::dns_1123_label);
        let this = key(device.value);
        if seen.contains(&this) {
            errors.push(Error::duplicate(&device.path(), &this[..3]));
        } else if !allocated.contains(&this) {
            device.invalid_as(
                errors,
                &this[..3],
                "must be an allocated device in the claim",
            );
        }
        seen.push(this);
        conditions(&device.at("conditions"), errors);
    }
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
                "status.reservedFor[1].uid: Duplicate value: \"1\"",
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
