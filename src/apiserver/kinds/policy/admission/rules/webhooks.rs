//! What configurations of webhooks may say: where they are, and what they want to be asked about.

use apimachinery::field::ErrorList;
use apimachinery::{Value, name};
use cel::check::{self, Ty};

use super::{
    FAILURE_POLICIES, MATCH_POLICIES, REINVOCATION, match_conditions, rule_with_operations,
};
use crate::kinds::check::Node;
use crate::kinds::pod_spec::affinity::label_selector;

/// Reviews this server can send.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];

/// Mutating or validating webhook configurations.
pub fn webhooks(object: &Value, mutating: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let root = Node::root(object, "");
    let hooks = root.at("webhooks");
    let mut seen: Vec<&str> = Vec::new();
    for hook in hooks.items() {
        webhook(&hook, mutating, &mut errors);
        let called = hook.at("name");
        if !called.text().is_empty() {
            if seen.contains(&called.text()) {
                called.duplicate(&mut errors);
            }
            seen.push(called.text());
        }
    }
    errors
}

fn webhook(hook: &Node<'_, '_>, mutating: bool, errors: &mut ErrorList) {
    fully_qualified(&hook.at("name"), errors);
    let rules = hook.at("rules");
    for rule in rules.items() {
        rule_with_operations(&rule, errors);
    }
    hook.at("failurePolicy")
        .known_if_set(errors, &FAILURE_POLICIES);
    hook.at("matchPolicy").known_if_set(errors, &MATCH_POLICIES);
    let effects = hook.at("sideEffects");
    if effects.present_or(errors, "must specify one of None, NoneOnDryRun") {
        effects.known(errors, &NO_SIDE_EFFECTS);
    }
    hook.at("timeoutSeconds").between(
        errors,
        1,
        30,
        "the timeout value must be between 1 and 30 seconds",
    );
    for field in ["namespaceSelector", "objectSelector"] {
        let selector = hook.at(field);
        label_selector(selector.value, &selector.path(), errors);
    }
    if mutating {
        hook.at("reinvocationPolicy")
            .known_if_set(errors, &REINVOCATION);
    }
    review_versions(&hook.at("admissionReviewVersions"), errors);
    client_config(&hook.at("clientConfig"), errors);
    match_conditions(
        &hook.at("matchConditions"),
        &check::policy(Ty::Dyn, None),
        errors,
    );
}

/// `IsFullyQualifiedName`: a domain of three parts at least.
fn fully_qualified(called: &Node<'_, '_>, errors: &mut ErrorList) {
    if !called.present(errors) {
        return;
    }
    let wrong = name::dns_1123_subdomain(called.text());
    if !wrong.is_empty() {
        called.syntax(errors, |_| wrong.clone());
    } else if called.text().split('.').count() < 3 {
        called.invalid(
            errors,
            "should be a domain with at least three segments separated by dots",
        );
    }
}

fn review_versions(versions: &Node<'_, '_>, errors: &mut ErrorList) {
    if !versions.present_or(errors, "must specify one of v1, v1beta1") {
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    let mut known = false;
    for version in versions.items() {
        version.syntax(errors, name::dns_1035_label);
        if seen.contains(&version.text()) {
            version.invalid(errors, "duplicate version");
        }
        seen.push(version.text());
        known |= REVIEW_VERSIONS.contains(&version.text());
    }
    if !known {
        versions.invalid(errors, "must include at least one of v1, v1beta1");
    }
}

/// Where a webhook is: a URL or a service.
fn client_config(config: &Node<'_, '_>, errors: &mut ErrorList) {
    let (url, service) = (config.at("url"), config.at("service"));
    match (url.is_set(), service.is_set()) {
        (true, false) => webhook_url(&url, errors),
        (false, true) => webhook_service(&service, errors),
        _ => config.required(errors, "exactly one of url or service is required"),
    }
}

const FORM: &str = "; desired format: https://host[/path]";

fn webhook_url(url: &Node<'_, '_>, errors: &mut ErrorList) {
    let Ok(parsed) = url.text().parse::<http::Uri>() else {
        url.required(
            errors,
            &format!(
                "url must be a valid URL: parse {:?}: invalid URI{FORM}",
                url.text()
            ),
        );
        return;
    };
    let scheme = parsed.scheme_str().unwrap_or("");
    if scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        url.invalid_as(errors, scheme, why);
    }
    let authority = parsed
        .authority()
        .map_or("", |authority| authority.as_str());
    if authority.is_empty() {
        url.invalid_as(errors, "", format!("host must be specified{FORM}"));
    }
    if let Some((user, _)) = authority.rsplit_once('@') {
        url.invalid_as(errors, user, "user information is not permitted in the URL");
    }
    if let Some((_, fragment)) = url.text().split_once('#') {
        url.invalid_as(errors, fragment, "fragments are not permitted in the URL");
    }
    if let Some(query) = parsed.query() {
        url.invalid_as(
            errors,
            query,
            "query parameters are not permitted in the URL",
        );
    }
}

fn webhook_service(service: &Node<'_, '_>, errors: &mut ErrorList) {
    service
        .at("name")
        .present_or(errors, "service name is required");
    service
        .at("namespace")
        .present_or(errors, "service namespace is required");
    let port = service.at("port");
    for why in name::port_number(port.int().unwrap_or(443)) {
        port.invalid(errors, format!("port is not valid: {why}"));
    }
    let url = service.at("path");
    if !url.is_set() {
        return;
    }
    let text = url.text();
    if !text.starts_with('/') {
        url.invalid(errors, "must start with a '/'");
        return;
    }
    if text.contains("//") {
        let index = text[1..].split('/').position(str::is_empty).unwrap_or(0);
        url.invalid(errors, format!("segment[{index}] may not be empty"));
        return;
    }
    for (index, part) in text[1..].split('/').enumerate() {
        let last = text.ends_with('/') && part.is_empty();
        if last || text == "/" {
            continue;
        }
        for why in name::dns_1123_subdomain(part) {
            url.invalid(errors, format!("segment[{index}]: {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    fn hook() -> Value {
        json!({"name": "a.example.com", "clientConfig": {"service": {"namespace": "n", "name": "s", "port": 443}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "*"}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "matchPolicy": "Equivalent",
            "timeoutSeconds": 10, "namespaceSelector": {}, "objectSelector": {}})
    }

    #[test]
    fn a_webhook_says_where_it_is_and_what_it_wants() {
        check(webhooks(&json!({"webhooks": [hook()]}), false), &[]);
        let mut bad = hook();
        bad["name"] = "short.com".into();
        bad["clientConfig"] = json!({});
        bad["timeoutSeconds"] = 31.into();
        bad["admissionReviewVersions"] = json!(["v9"]);
        bad["sideEffects"] = "Unknown".into();
        bad["rules"][0]["operations"] = json!(["*", "EAT"]);
        check(
            webhooks(&json!({"webhooks": [bad]}), false),
            &[
                "webhooks[0].name: Invalid value: \"short.com\": should be a domain with at least three segments separated by dots",
                "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"EAT\"]: if '*' is present, must not specify other operations",
                "webhooks[0].rules[0].operations[1]: Unsupported value: \"EAT\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
                "webhooks[0].sideEffects: Unsupported value: \"Unknown\": supported values: \"None\", \"NoneOnDryRun\"",
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
                "webhooks[0].admissionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1",
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
            ],
        );
    }

    #[test]
    fn urls_of_webhooks_are_https_and_bare() {
        let check_url = |url: &str, expect: &[&str]| {
            let mut errors = ErrorList::new();
            let config = json!({ "url": url });
            client_config(&Node::root(&config, "c"), &mut errors);
            check(errors, expect);
        };
        check_url("https://example.com/x", &[]);
        check_url(
            "http://example.com",
            &[
                "c.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            ],
        );
        check_url(
            "https://u@example.com/x?q=1",
            &[
                "c.url: Invalid value: \"u\": user information is not permitted in the URL",
                "c.url: Invalid value: \"q=1\": query parameters are not permitted in the URL",
            ],
        );
    }
}
