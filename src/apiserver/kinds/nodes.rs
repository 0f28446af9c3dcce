//! RuntimeClasses: which handler runs a pod's containers, and where.

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, name};

use super::check::Node;
use super::object_meta::validate_labels;
use super::pod_spec::containers::resource_amounts;
use super::pod_spec::validation::tolerations;

/// `ValidateRuntimeClass`.
pub fn runtime_class(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let root = Node::root(object, "");
    root.at("handler").syntax(&mut errors, name::dns_1123_label);
    let overhead = root.at("overhead");
    if overhead.is_set() {
        let fixed = overhead.at("podFixed");
        resource_amounts(fixed.value, &fixed.path(), &mut errors);
    }
    let scheduling = root.at("scheduling");
    let selector = scheduling.at("nodeSelector");
    errors.extend(validate_labels(selector.value, &selector.path()));
    let list = scheduling.at("tolerations");
    tolerations(list.list(), &list.path(), &mut errors);
    for (index, toleration) in list.list().iter().enumerate() {
        if list.list()[..index].contains(toleration) {
            errors.push(Error::duplicate(&list.path().index(index), toleration));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn handlers_are_dns_labels() {
        assert!(runtime_class(&json!({"handler": "runc"})).is_empty());
        let errors = runtime_class(&json!({"handler": "&"}));
        assert!(
            errors
                .aggregate()
                .starts_with("handler: Invalid value: \"&\": a lowercase RFC 1123 label"),
            "{}",
            errors.aggregate()
        );
    }
}
