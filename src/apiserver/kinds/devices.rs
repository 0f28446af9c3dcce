//! Dynamic resource allocation (KEP-4381): claims, their templates, device classes, the slices drivers publish, and the
//! taints that administrators put on devices.

mod capacity;
mod claim;
mod claim_status;
mod names;
mod slice;

use api::Resource;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Map, Status, Value, meta, name};
use async_trait::async_trait;

use super::check::Node;
use super::status::conditions;
use super::tree::{at, at_mut, default_value, flag, has, items, items_mut, text};
use crate::registry::strategy::{Change, Companions, Strategy};
use names::{configuration, driver, is_bounded, pool_name, selectors, taint};

const GROUP: &str = "resource.k8s.io";
/// Most configurations of a class, and most conditions of a taint rule.
const MAX_CONFIGS: usize = 32;
const MAX_CONDITIONS: usize = 8;
/// The label of namespaces in which devices may be had that others use.
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";

/// Claims and templates of claims: the same spec, one level deeper in a template.
pub struct Claims {
    plural: &'static str,
    spec: &'static [&'static str],
    /// The spec's path as text.
    path: &'static str,
}

pub const RESOURCE_CLAIMS: Claims = Claims {
    plural: "resourceclaims",
    spec: &["spec"],
    path: "spec",
};
pub const RESOURCE_CLAIM_TEMPLATES: Claims = Claims {
    plural: "resourceclaimtemplates",
    spec: &["spec", "spec"],
    path: "spec.spec",
};

#[async_trait]
impl Strategy for Claims {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, self.plural)
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn convert(&self, object: &mut Value, from: &Resource, to: &Resource) {
        convert_claim(object, self.spec, from, to);
    }

    fn default(&self, object: &mut Value) {
        default_claim(object, self.spec);
        for result in items_mut(object, &["status", "allocation", "devices", "results"]) {
            default_operators(result);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        claim::spec(&Node::root(at(object, self.spec), self.path), &mut errors);
        errors
    }

    fn has_companions(&self) -> bool {
        true
    }

    async fn companions(
        &self,
        change: &Change<'_>,
        new: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<Companions, Status> {
        if let (Some(new), None) = (new, old) {
            may_have_admin_access(change, new, self.spec).await?;
        }
        Ok(Companions::default())
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return claim_status::validate(new, old);
        }
        is_unchanged(new, old)
    }
}

/// `AuthorizedForAdmin`: what asks for devices that others use is in a namespace made for that.
async fn may_have_admin_access(
    change: &Change<'_>,
    object: &Value,
    spec: &[&str],
) -> Result<(), Status> {
    let asks = items(at(object, spec), &["devices", "requests"])
        .iter()
        .any(|request| flag(request, &["exactly", "adminAccess"]));
    if !asks {
        return Ok(());
    }
    let namespace = change.registry.namespace(change.namespace).await?;
    let is_for_admins = namespace
        .is_some_and(|namespace| at(&namespace, &["metadata", "labels", ADMIN_LABEL]) == "true");
    if is_for_admins {
        return Ok(());
    }
    let error = Error::forbidden(
        &Path::default(),
        format!(
            "admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
        ),
    );
    let kind = change.resource.kind;
    Err(Status::invalid(
        GROUP,
        kind,
        meta::name(object),
        error.into(),
    ))
}

/// What cannot be changed is not looked at again.
fn is_unchanged(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    Node::root(at(new, &["spec"]), "spec").unchanged(&mut errors, at(old, &["spec"]));
    errors
}

/// A request without alternatives is under `exactly`, but in v1beta1, which has its members in the request itself.
fn convert_claim(object: &mut Value, spec: &[&str], from: &Resource, to: &Resource) {
    let flat = |resource: &Resource| resource.version == "v1beta1";
    if flat(from) == flat(to) {
        return;
    }
    let Some(spec) = at_mut(object, spec) else {
        return;
    };
    for request in items_mut(spec, &["devices", "requests"]) {
        let Some(map) = request.as_object_mut() else {
            continue;
        };
        if flat(from) {
            let alone = map
                .get("firstAvailable")
                .is_none_or(|list| list.as_array().is_none_or(Vec::is_empty));
            let members = std::mem::take(map);
            let (kept, moved): (Map<String, Value>, Map<String, Value>) = members
                .into_iter()
                .partition(|(key, _)| matches!(key.as_str(), "name" | "firstAvailable"));
            *map = kept;
            if alone || !moved.is_empty() {
                map.insert("exactly".to_owned(), moved.into());
            }
        } else if let Some(Value::Object(exactly)) = map.remove("exactly") {
            map.extend(exactly);
        }
    }
}

fn default_claim(object: &mut Value, spec: &[&str]) {
    let Some(spec) = at_mut(object, spec) else {
        return;
    };
    for request in items_mut(spec, &["devices", "requests"]) {
        if let Some(exactly) = at_mut(request, &["exactly"]) {
            default_request(exactly);
        }
        for sub in items_mut(request, &["firstAvailable"]) {
            default_request(sub);
        }
    }
}

fn default_request(request: &mut Value) {
    super::tree::default_text(request, "allocationMode", "ExactCount");
    if text(request, &["allocationMode"]) == "ExactCount" {
        super::tree::default_number(request, "count", 1);
    }
    default_operators(request);
}

fn default_operators(of: &mut Value) {
    for toleration in items_mut(of, &["tolerations"]) {
        super::tree::default_text(toleration, "operator", "Equal");
    }
}

fn default_time_added(taint: &mut Value) {
    if taint.is_object() && !has(taint, &["timeAdded"]) {
        default_value(taint, "timeAdded", apimachinery::time::now_text());
    }
}

pub struct ResourceSlices;

impl Strategy for ResourceSlices {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "resourceslices")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    /// What a device has is in the device, but in v1beta1, which has it under `basic`.
    fn convert(&self, object: &mut Value, from: &Resource, to: &Resource) {
        let nested = |resource: &Resource| resource.version == "v1beta1";
        if nested(from) == nested(to) {
            return;
        }
        for device in items_mut(object, &["spec", "devices"]) {
            let Some(map) = device.as_object_mut() else {
                continue;
            };
            if nested(from) {
                if let Some(Value::Object(basic)) = map.remove("basic") {
                    map.extend(basic);
                }
            } else {
                let name = map.remove("name");
                let basic = std::mem::take(map);
                map.extend(name.map(|name| ("name".to_owned(), name)));
                map.insert("basic".to_owned(), basic.into());
            }
        }
    }

    fn default(&self, object: &mut Value) {
        for device in items_mut(object, &["spec", "devices"]) {
            items_mut(device, &["taints"])
                .iter_mut()
                .for_each(default_time_added);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        slice::validate(object, None)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        slice::validate(new, Some(old))
    }
}

pub struct DeviceTaintRules;

impl Strategy for DeviceTaintRules {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "devicetaintrules")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if let Some(taint) = at_mut(object, &["spec", "taint"]) {
            default_time_added(taint);
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        taint_rule(object, None)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource != "status" {
            return taint_rule(new, Some(text(old, &["spec", "taint", "effect"])));
        }
        let mut errors = ErrorList::new();
        let status = Node::root(at(new, &["status"]), "status");
        let list = status.at("conditions");
        conditions(&list, &mut errors);
        is_bounded(&list, MAX_CONDITIONS, &mut errors);
        errors
    }
}

/// `ValidateDeviceClass`.
pub fn class(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    selectors(&spec.at("selectors"), &mut errors);
    let configs = spec.at("config");
    if is_bounded(&configs, MAX_CONFIGS, &mut errors) {
        for config in configs.items() {
            configuration(&config, &mut errors);
        }
    }
    let resource = spec.at("extendedResourceName");
    if resource.is_set() && !is_extended_resource(resource.text()) {
        resource.invalid(&mut errors, "must be a valid extended resource name");
    }
    errors
}

/// `IsExtendedResourceName`: in a domain that is not the project's, and fit for quotas.
fn is_extended_resource(called: &str) -> bool {
    let is_native = !called.contains('/') || called.contains("kubernetes.io/");
    !is_native
        && !called.starts_with("requests.")
        && name::qualified_name(&format!("requests.{called}")).is_empty()
}

/// `ValidateDeviceTaintRule`; `effect` is what it was.
fn taint_rule(object: &Value, effect: Option<&str>) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    let selector = spec.at("deviceSelector");
    for (field, rule) in [
        ("driver", driver as fn(&Node<'_, '_>, &mut ErrorList)),
        ("pool", pool_name),
    ] {
        let called = selector.at(field);
        if called.is_set() {
            rule(&called, &mut errors);
        }
    }
    let device = selector.at("device");
    if device.is_set() {
        device.syntax(&mut errors, name::dns_1123_label);
    }
    taint(&spec.at("taint"), effect, &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn old_versions_keep_what_a_request_says_elsewhere() {
        let version = |version| api::find(GROUP, version, "resourceclaims").expect("is known");
        let (old, new) = (version("v1beta1"), version("v1"));
        let flat = json!({"spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "c", "count": 2}]}}});
        let mut object = flat.clone();
        RESOURCE_CLAIMS.convert(&mut object, old, new);
        assert_eq!(
            object["spec"]["devices"]["requests"],
            json!([{"name": "a", "exactly": {"deviceClassName": "c", "count": 2}}])
        );
        RESOURCE_CLAIMS.convert(&mut object, new, old);
        assert_eq!(object, flat);
    }

    #[test]
    fn every_version_holds_what_every_other_does() {
        let requests = json!([{"name": "a", "exactly": {"deviceClassName": "c", "tolerations": [{"key": "k", "operator": "Exists"}],
            "capacity": {"requests": {"m": "1Gi"}}, "derivedAttributes": [{"name": "x", "expression": "1"}]}},
            {"name": "b", "firstAvailable": [{"name": "s", "deviceClassName": "c", "count": 2, "allocationMode": "ExactCount"}]},
            {"name": "both", "exactly": {"count": 1}, "firstAvailable": [{"name": "s"}]}]);
        let claims = [
            json!({"spec": {"devices": {"requests": requests}}}),
            json!({"spec": {"spec": {"devices": {"requests": requests}}}}),
        ];
        let slices = [
            json!({"spec": {"devices": [{"name": "d", "attributes": {"a": {"int": 1}}, "taints": [{"key": "k"}],
            "nodeName": "n"}, {"name": "e"}]}}),
        ];
        for (plural, strategy, objects) in [
            (
                "resourceclaims",
                &RESOURCE_CLAIMS as &dyn Strategy,
                &claims[..1],
            ),
            (
                "resourceclaimtemplates",
                &RESOURCE_CLAIM_TEMPLATES,
                &claims[1..],
            ),
            ("resourceslices", &ResourceSlices, &slices[..]),
        ] {
            let version = |version| api::find(GROUP, version, plural).expect("is known");
            for object in objects {
                for old in ["v1beta1", "v1beta2"] {
                    let mut turned = object.clone();
                    strategy.convert(&mut turned, version("v1"), version(old));
                    strategy.convert(&mut turned, version(old), version("v1"));
                    assert_eq!(turned, *object, "{plural} {old}");
                }
            }
        }
    }

    #[test]
    fn taint_rules_select_devices_and_taint_them() {
        check(
            taint_rule(
                &json!({"spec": {"deviceSelector": {"driver": "", "pool": "A", "device": "D"}, "taint": {"key": "k", "effect": "Some"}}}),
                None,
            ),
            &[
                "spec.deviceSelector.driver: Required value",
                &format!(
                    "spec.deviceSelector.pool: Invalid value: \"A\": {}",
                    name::dns_1123_subdomain("A")[0]
                ),
                &format!(
                    "spec.deviceSelector.device: Invalid value: \"D\": {}",
                    name::dns_1123_label("D")[0]
                ),
                "spec.taint.effect: Unsupported value: \"Some\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
            ],
        );
        let old = json!({"spec": {"taint": {"key": "k", "effect": "Some"}}});
        check(taint_rule(&old, Some("Some")), &[]);
        let mut rule = json!({"spec": {"taint": {"key": "k", "effect": "None"}}});
        DeviceTaintRules.default(&mut rule);
        assert!(rule["spec"]["taint"]["timeAdded"].is_string());
    }

    #[test]
    fn classes_may_stand_for_an_extended_resource() {
        let named = |called: &str| class(&json!({"spec": {"extendedResourceName": called}}));
        check(named("example.com/gpu"), &[]);
        for wrong in ["cpu", "kubernetes.io/gpu", "requests.example.com/gpu"] {
            check(
                named(wrong),
                &[&format!(
                    "spec.extendedResourceName: Invalid value: \"{wrong}\": must be a valid extended resource name"
                )],
            );
        }
    }

    #[test]
    fn requests_and_tolerations_are_defaulted() {
        let mut object = json!({"spec": {"devices": {"requests": [{"name": "a", "exactly": {"tolerations": [{"key": "k"}]}},
            {"name": "b", "firstAvailable": [{"allocationMode": "All"}]}]}}});
        RESOURCE_CLAIMS.default(&mut object);
        assert_eq!(
            object["spec"]["devices"]["requests"],
            json!([{"name": "a", "exactly": {"tolerations": [{"key": "k", "operator": "Equal"}], "allocationMode": "ExactCount", "count": 1}},
                {"name": "b", "firstAvailable": [{"allocationMode": "All"}]}])
        );
    }
}
