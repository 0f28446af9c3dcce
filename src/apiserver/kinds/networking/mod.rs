//! Ingresses, network policies, address ranges and addresses.

mod ingress;
mod policy;

pub use ingress::ingress_class;

use std::net::IpAddr;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, name};
use serde_json::json;

use super::check::Node;
use super::core::services::addresses::Cidr;
use super::tree::{at, default_text, items, items_mut, object_mut, set};
use crate::registry::strategy::{Change, Strategy};

const GROUP: &str = "networking.k8s.io";

pub struct NetworkPolicies;

impl Strategy for NetworkPolicies {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "networkpolicies")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        for rules in ["ingress", "egress"] {
            for rule in items_mut(object, &["spec", rules]) {
                for port in items_mut(rule, &["ports"]) {
                    default_text(port, "protocol", "TCP");
                }
            }
        }
        if items(object, &["spec", "policyTypes"]).is_empty() {
            let mut types = vec!["Ingress"];
            if !items(object, &["spec", "egress"]).is_empty() {
                types.push("Egress");
            }
            object_mut(object, &["spec"]).insert("policyTypes".to_owned(), json!(types));
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        policy::policy(object)
    }
}

pub struct Ingresses;

impl Strategy for Ingresses {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "ingresses")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({"loadBalancer": {}}));
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        ingress::create(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        match change.subresource {
            "status" => ingress::status(new),
            _ => ingress::ingress(new),
        }
    }

    fn warnings(&self, _change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let class = "kubernetes.io/ingress.class";
        if old.is_none() && apimachinery::meta::annotation(new, class).is_some() {
            return vec![format!(
                "annotation {class:?} is deprecated, please use 'spec.ingressClassName' instead"
            )];
        }
        Vec::new()
    }
}

pub struct ServiceCidrs;

impl Strategy for ServiceCidrs {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "servicecidrs")
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec").child("cidrs");
        let cidrs = items(object, &["spec", "cidrs"]);
        if cidrs.is_empty() {
            errors.push(Error::required(&path, "at least one CIDR required"));
        }
        if cidrs.len() > 2 {
            errors.push(Error::invalid(
                &path,
                json!(cidrs),
                "may only hold up to 2 values",
            ));
        }
        let six = |cidr: &Value| cidr.as_str().unwrap_or("").contains(':');
        if let [first, second] = cidrs
            && six(first) == six(second)
        {
            errors.push(Error::invalid(
                &path,
                cidrs,
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            ));
        }
        for (index, cidr) in cidrs.iter().enumerate() {
            let cidr = cidr.as_str().unwrap_or("");
            if Cidr::parse(cidr).is_none_or(|parsed| parsed.to_string() != cidr) {
                errors.push(Error::invalid(
                    &path.index(index),
                    cidr,
                    "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                ));
            }
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        if change.subresource.is_empty()
            && at(new, &["spec", "cidrs"]) != at(old, &["spec", "cidrs"])
        {
            errors.push(Error::invalid(
                &Path::new("spec").child("cidrs"),
                at(new, &["spec", "cidrs"]).clone(),
                "field is immutable",
            ));
        }
        errors
    }
}

/// An address written as Go writes it (`validation.IsValidIP`); else what is wrong with it.
fn canonical_address(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Err("must not be an IPv4-mapped IPv6 address".to_owned())
        }
        Ok(address) if address.to_string() == text => Ok(address),
        Ok(address) => Err(format!("must be in canonical form (\"{address}\")")),
        Err(_) if is_padded(text) => Err("must not have leading 0s".to_owned()),
        Err(_) => Err("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()),
    }
}

/// Whether it would be an IPv4 address but for zeros in front of its numbers.
fn is_padded(text: &str) -> bool {
    let bare = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        bare => bare.to_owned(),
    };
    let parts: Vec<String> = text.split('.').map(bare).collect();
    parts.join(".").parse::<std::net::Ipv4Addr>().is_ok()
}

pub struct IpAddresses;

impl Strategy for IpAddresses {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "ipaddresses")
    }

    /// The name is the address in its canonical form.
    fn name_rule(&self) -> super::object_meta::NameRule {
        |name, _| canonical_address(name).err().into_iter().collect()
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let spec = Node::root(at(object, &["spec"]), "spec");
        let parent = spec.at("parentRef");
        if !parent.present(&mut errors) {
            return errors;
        }
        // Services are of the group without a name, which therefore cannot be demanded.
        parent
            .at("group")
            .syntax_if_set(&mut errors, name::dns_1123_subdomain);
        for field in ["resource", "name"] {
            parent.at(field).named(&mut errors, name::path_segment);
        }
        parent
            .at("namespace")
            .syntax_if_set(&mut errors, name::path_segment);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = self.validate_create(change, new);
        errors.extend(same_parent(new, old));
        errors
    }
}

/// An address stays with the object that has it (`ValidateIPAddressUpdate`).
fn same_parent(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    Node::root(at(new, &["spec"]), "spec")
        .at("parentRef")
        .unchanged(&mut errors, at(old, &["spec", "parentRef"]));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_go_writes_it() {
        for (text, wrong) in [
            ("1.2.3.4", ""),
            ("0.0.0.0", ""),
            ("fe80::1", ""),
            ("0:0:0:0:0:0:0:0", "must be in canonical form (\"::\")"),
            ("1234::ABCD", "must be in canonical form (\"1234::abcd\")"),
            ("1.1.1.01", "must not have leading 0s"),
            ("1.1.1.00", "must not have leading 0s"),
            ("::ffff:1.1.1.1", "must not be an IPv4-mapped IPv6 address"),
            (
                "1.1..1",
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
        ] {
            let said = canonical_address(text).err().unwrap_or_default();
            assert_eq!(said, wrong, "{text}");
        }
    }

    #[test]
    fn an_address_stays_with_its_object() {
        let of =
            |name: &str| json!({"spec": {"parentRef": {"resource": "services", "name": name}}});
        assert!(same_parent(&of("a"), &of("a")).is_empty());
        let errors: Vec<String> = same_parent(&of("b"), &of("a"))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("spec.parentRef: Invalid value"),
            "{errors:?}"
        );
        assert!(errors[0].ends_with("field is immutable"), "{errors:?}");
    }
}
