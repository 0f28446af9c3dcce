//! APIServices: which server answers for a group and version (`kube-aggregator/pkg/apis/apiregistration/validation`).

use apimachinery::field::ErrorList;
use apimachinery::{Value, meta, name, time};
use serde_json::json;

use super::check::Node;
use super::tree::{at, has, object_mut};

/// The condition of an APIService that this server answers for itself.
pub fn available(now: &str) -> Value {
    json!({
        "type": "Available",
        "status": "True",
        "reason": "Local",
        "message": "Local APIServices are always available",
        "lastTransitionTime": now,
    })
}

/// A local one is available as soon as it is there.
pub fn begin(object: &mut Value) {
    if !has(object, &["spec", "service"]) {
        let conditions = json!([available(&time::now_text())]);
        object_mut(object, &["status"]).insert("conditions".to_owned(), conditions);
    }
}

/// `ValidateAPIService`.
pub fn service(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let (group, version) = (spec.at("group"), spec.at("version"));
    let wanted = format!("{}.{}", version.text(), group.text());
    if meta::name(object) != wanted {
        Node::root(at(object, &["metadata", "name"]), "metadata.name").invalid(
            errors,
            format!("must be `spec.version+\".\"+spec.group`: {wanted:?}"),
        );
    }
    group.syntax_if_set(errors, name::dns_1123_subdomain);
    if version.present(errors) {
        version.syntax(errors, name::dns_1035_label);
    }
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1_000)] {
        let priority = spec.at(field);
        if !(1..=most).contains(&priority.int().unwrap_or(0)) {
            let why = format!("must be positive and less than {most}");
            priority.invalid_as(errors, priority.int().unwrap_or(0), why);
        }
    }
    let (backend, insecure) = (spec.at("service"), spec.at("insecureSkipTLSVerify"));
    let bundle = spec.at("caBundle");
    if !backend.is_set() {
        if !bundle.is_empty() {
            bundle.invalid_as(
                errors,
                format!("{} bytes", bundle.text().len()),
                "local APIServices may not have a caBundle",
            );
        }
        if insecure.flag() {
            insecure.invalid(
                errors,
                "local APIServices may not have insecureSkipTLSVerify",
            );
        }
        return std::mem::take(errors);
    }
    backend.at("namespace").present(errors);
    backend.at("name").present(errors);
    let port = backend.at("port");
    for why in name::port_number(port.int().unwrap_or(443)) {
        port.invalid(errors, format!("port is not valid: {why}"));
    }
    if insecure.flag() && !bundle.is_empty() {
        insecure.invalid(errors, "may not be true if caBundle is present");
    }
    std::mem::take(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_service_is_called_as_what_it_serves() {
        let good = json!({"metadata": {"name": "v1.x.io"}, "spec": {"group": "x.io", "version": "v1",
            "groupPriorityMinimum": 100, "versionPriority": 10, "service": {"namespace": "n", "name": "s"}}});
        assert_eq!(service(&good).aggregate(), "[]");
        let mut bad = good.clone();
        bad["metadata"]["name"] = "v1.y.io".into();
        bad["spec"]["versionPriority"] = 0.into();
        bad["spec"]["service"]["name"] = "".into();
        let texts: Vec<String> = service(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "metadata.name: Invalid value: \"v1.y.io\": must be `spec.version+\".\"+spec.group`: \"v1.x.io\"",
                "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
                "spec.service.name: Required value",
            ]
        );
    }
}
