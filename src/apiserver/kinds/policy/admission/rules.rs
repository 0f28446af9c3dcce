//! What configurations of admission may say (`pkg/apis/admissionregistration/validation`).

use apimachinery::field::ErrorList;
use apimachinery::{Value, name};
use cel::Program;
use cel::check::{self, Env, Ty};

use super::super::super::check::Node;
use super::super::super::pod_spec::affinity::label_selector;
use super::super::super::tree::at;

const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
const REINVOCATION: [&str; 2] = ["IfNeeded", "Never"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
/// Reviews this server can send.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
/// Conditions a webhook may have.
const MAX_CONDITIONS: usize = 64;

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
pub fn client_config(config: &Node<'_, '_>, errors: &mut ErrorList) {
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

/// `validateMatchConditions`.
fn match_conditions(conditions: &Node<'_, '_>, env: &Env, errors: &mut ErrorList) {
    let count = conditions.list().len();
    if count > MAX_CONDITIONS {
        errors.push(apimachinery::field::Error::too_many(
            &conditions.path(),
            count,
            MAX_CONDITIONS,
        ));
    }
    let mut seen: Vec<&str> = Vec::new();
    for condition in conditions.items() {
        let expression = condition.at("expression");
        if expression.present(errors) {
            compiled(&expression, env, &["bool"], errors);
        }
        let called = condition.at("name");
        if called.present(errors) {
            called.syntax(errors, name::qualified_name);
            if seen.contains(&called.text()) {
                called.duplicate(errors);
            }
            seen.push(called.text());
        }
    }
}

/// A list that must not be empty, and where `*` stands alone.
fn wildcard_list(list: &Node<'_, '_>, what: &str, errors: &mut ErrorList) {
    if !list.present(errors) {
        return;
    }
    let texts: Vec<&str> = list.list().iter().filter_map(Value::as_str).collect();
    if texts.len() > 1 && texts.contains(&"*") {
        list.invalid(
            errors,
            format!("if '*' is present, must not specify other {what}"),
        );
    }
}

fn rule_with_operations(rule: &Node<'_, '_>, errors: &mut ErrorList) {
    let operations = rule.at("operations");
    wildcard_list(&operations, "operations", errors);
    for operation in operations.items() {
        operation.known(errors, &OPERATIONS);
    }
    wildcard_list(&rule.at("apiGroups"), "API groups", errors);
    let versions = rule.at("apiVersions");
    wildcard_list(&versions, "API versions", errors);
    for version in versions.items() {
        version.present(errors);
    }
    resources(&rule.at("resources"), errors);
    rule.at("scope").known_if_set(errors, &SCOPES);
}

/// `validateResources`: wildcards do not meet what they cover.
fn resources(resources: &Node<'_, '_>, errors: &mut ErrorList) {
    if !resources.present(errors) {
        return;
    }
    let list: Vec<&str> = resources.list().iter().filter_map(Value::as_str).collect();
    if list.contains(&"*/*") && list.len() > 1 {
        resources.invalid(
            errors,
            "if '*/*' is present, must not specify other resources",
        );
        return;
    }
    let plain = list.iter().filter(|text| !text.contains('/')).count();
    if list.contains(&"*") && plain > 1 {
        resources.invalid(
            errors,
            "if '*' is present, must not specify other resources without subresources",
        );
    }
    for resource in resources.items() {
        let text = resource.text();
        if text.is_empty() {
            resource.required(errors, "");
        } else if let Some((parent, sub)) = text.split_once('/') {
            if sub == "*" && list.iter().any(|other| covers(other, parent, text)) {
                resource.invalid(
                    errors,
                    format!("if '{text}' is present, must not specify {parent}/x"),
                );
            }
        }
    }
}

fn covers(other: &str, parent: &str, wildcard: &str) -> bool {
    other != wildcard && other.split_once('/').is_some_and(|(of, _)| of == parent)
}

fn match_resources(resources: &Node<'_, '_>, policy: bool, errors: &mut ErrorList) {
    resources
        .at("matchPolicy")
        .known_if_set(errors, &MATCH_POLICIES);
    for field in ["namespaceSelector", "objectSelector"] {
        let selector = resources.at(field);
        label_selector(selector.value, &selector.path(), errors);
    }
    let rules = resources.at("resourceRules");
    if policy && rules.list().is_empty() {
        rules.required(errors, "");
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        let rules = resources.at(list);
        for rule in rules.items() {
            rule_with_operations(&rule, errors);
        }
    }
}

/// Validating and mutating admission policies.
pub fn policy(object: &Value, mutating: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let kind = spec.at("paramKind");
    if kind.is_set() {
        parameter_kind(&kind, errors);
    }
    let mut env = check::policy(Ty::Dyn, kind.is_set().then_some(Ty::Dyn));
    spec.at("failurePolicy").one_of(errors, &FAILURE_POLICIES);
    let constraints = spec.at("matchConstraints");
    if constraints.is_set() {
        match_resources(&constraints, true, errors);
    } else {
        constraints.required(errors, "");
    }
    match_conditions(&spec.at("matchConditions"), &env, errors);
    if mutating {
        env = env.making_objects();
    }
    variables(&spec.at("variables"), &mut env, errors);
    if mutating {
        mutations(&spec, &env, errors);
    } else {
        validations(&spec, &env, errors);
    }
    std::mem::take(errors)
}

/// `validateParamKind`.
fn parameter_kind(kind: &Node<'_, '_>, errors: &mut ErrorList) {
    let version = kind.at("apiVersion");
    if version.present(errors) {
        let text = version.text();
        let (group, of) = text.split_once('/').unwrap_or(("", text));
        if of.contains('/') {
            version.invalid(errors, format!("unexpected GroupVersion string: {text}"));
        } else {
            if !group.is_empty() {
                for why in name::dns_1123_subdomain(group) {
                    version.invalid_as(errors, group, why);
                }
            }
            if of.is_empty() {
                version.invalid(errors, "version must be specified");
            } else {
                for why in name::dns_1035_label(of) {
                    version.invalid_as(errors, of, why);
                }
            }
        }
    }
    let called = kind.at("kind");
    if called.present(errors) {
        for why in name::dns_1035_label(&called.text().to_lowercase()) {
            called.invalid(
                errors,
                format!("may have mixed case, but should otherwise match: {why}"),
            );
        }
    }
}

/// The type of an expression; unknown where it is refused.
fn compiled(expression: &Node<'_, '_>, env: &Env, wanted: &[&str], errors: &mut ErrorList) -> Ty {
    let made = Program::parse(expression.text()).and_then(|program| {
        if wanted.is_empty() {
            return program
                .check(env)
                .map_err(|why| format!("compilation failed: {why}"));
        }
        program.compile(env, wanted)
    });
    made.unwrap_or_else(|why| {
        expression.invalid(errors, why);
        Ty::Dyn
    })
}

fn variables(variables: &Node<'_, '_>, env: &mut Env, errors: &mut ErrorList) {
    let mut types: Vec<(String, Ty)> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for variable in variables.items() {
        let called = variable.at("name");
        let text = called.text();
        if text.is_empty() {
            called.required(errors, "name is not specified");
        } else if !is_identifier(text) {
            called.invalid(errors, "name is not a valid CEL identifier");
        } else if seen.contains(&text) {
            called.duplicate(errors);
        }
        seen.push(text);
        let expression = variable.at("expression");
        if expression.present_or(errors, "expression is not specified") {
            let fields = types.iter().map(|(name, ty)| (name.as_str(), ty.clone()));
            env.set("variables", Ty::fields("kubernetes.variables", fields));
            let ty = compiled(&expression, env, &[], errors);
            types.push((text.to_owned(), ty));
        }
    }
    let fields = types.iter().map(|(name, ty)| (name.as_str(), ty.clone()));
    env.set("variables", Ty::fields("kubernetes.variables", fields));
}

/// Whether CEL takes a text for a name.
fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn validations(spec: &Node<'_, '_>, env: &Env, errors: &mut ErrorList) {
    let (validations, audits) = (spec.at("validations"), spec.at("auditAnnotations"));
    if validations.list().is_empty() && audits.list().is_empty() {
        validations.required(
            errors,
            "validations or auditAnnotations must contain at least one item",
        );
        audits.required(
            errors,
            "validations or auditAnnotations must contain at least one item",
        );
    }
    for validation in validations.items() {
        let expression = validation.at("expression");
        if expression.text().trim().is_empty() {
            expression.required(errors, "expression is not specified");
        } else {
            compiled(&expression, env, &["bool"], errors);
        }
        let made = validation.at("messageExpression");
        if made.text().trim().is_empty() {
            if !made.text().is_empty() {
                made.invalid(errors, "must be non-empty if specified");
            }
        } else {
            compiled(&made, env, &["string"], errors);
        }
        let message = validation.at("message");
        if !message.text().is_empty() && message.text().trim().is_empty() {
            message.invalid(errors, "message must be non-empty if specified");
        } else if message.text().trim().contains('\n') {
            message.invalid(errors, "message must not contain line breaks");
        }
        if validation.at("reason").is_set() {
            validation.at("reason").known(
                errors,
                &[
                    "Forbidden",
                    "Invalid",
                    "RequestEntityTooLarge",
                    "Unauthorized",
                ],
            );
        }
    }
    let mut seen: Vec<&str> = Vec::new();
    for audit in audits.items() {
        let key = audit.at("key");
        if key.present(errors) {
            key.syntax(errors, name::qualified_name);
            if seen.contains(&key.text()) {
                key.duplicate(errors);
            }
            seen.push(key.text());
        }
        let value = audit.at("valueExpression");
        if value.present_or(errors, "valueExpression is not specified") {
            compiled(&value, env, &["string", "null_type"], errors);
        }
    }
}

fn mutations(spec: &Node<'_, '_>, env: &Env, errors: &mut ErrorList) {
    let mutations = spec.at("mutations");
    if mutations.list().is_empty() {
        mutations.required(errors, "mutations must contain at least one item");
    }
    for mutation in mutations.items() {
        let kind = mutation.at("patchType");
        let (apply, json) = (mutation.at("applyConfiguration"), mutation.at("jsonPatch"));
        match kind.text() {
            "ApplyConfiguration" => {
                patch_type(&apply, &json, [kind.text(), "Object"], env, errors);
            }
            "JSONPatch" => {
                patch_type(&json, &apply, [kind.text(), "list(JSONPatch)"], env, errors);
            }
            _ => kind.one_of(errors, &["ApplyConfiguration", "JSONPatch"]),
        }
    }
    spec.at("reinvocationPolicy").one_of(errors, &REINVOCATION);
}

/// One of the two ways of changing: what is wanted is there, what is not is not.
fn patch_type(
    wanted: &Node<'_, '_>,
    other: &Node<'_, '_>,
    [kind, gives]: [&str; 2],
    env: &Env,
    errors: &mut ErrorList,
) {
    if wanted.is_set() {
        let expression = wanted.at("expression");
        if expression.text().trim().is_empty() {
            expression.required(errors, "");
        } else {
            compiled(&expression, env, &[gives], errors);
        }
    } else {
        let why = format!("must be specified when patchType is {kind}");
        wanted.required(errors, &why);
    }
    if other.is_set() {
        let path = other.path().to_string();
        let field = path.rsplit('.').next().unwrap_or("").to_owned();
        other.invalid_as(
            errors,
            format!("{{{field}}}"),
            format!("must not be specified when patchType is {kind}"),
        );
    }
}

/// Bindings of policies.
pub fn policy_binding(object: &Value, mutating: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    spec.at("policyName")
        .named(errors, name::dns_1123_subdomain);
    let parameter = spec.at("paramRef");
    if parameter.is_set() {
        let (called, selector) = (parameter.at("name"), parameter.at("selector"));
        match (called.text().is_empty(), selector.is_set()) {
            (false, true) => called.forbidden(errors, "name and selector are mutually exclusive"),
            (true, false) => {
                parameter.required(errors, "one of name or selector must be specified")
            }
            _ => {}
        }
        label_selector(selector.value, &selector.path(), errors);
        parameter
            .at("parameterNotFoundAction")
            .one_of(errors, &["Deny", "Allow"]);
    }
    let matches = spec.at("matchResources");
    if matches.is_set() {
        match_resources(&matches, false, errors);
    }
    if !mutating {
        let actions = spec.at("validationActions");
        if actions.present(errors) {
            let mut seen: Vec<&str> = Vec::new();
            for action in actions.items() {
                action.known(errors, &["Audit", "Deny", "Warn"]);
                if seen.contains(&action.text()) {
                    action.duplicate(errors);
                }
                seen.push(action.text());
            }
            if seen.contains(&"Deny") && seen.contains(&"Warn") {
                actions.invalid(
                    errors,
                    "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
                );
            }
        }
    }
    std::mem::take(errors)
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

    #[test]
    fn policies_match_something_and_say_something() {
        check(
            policy(&json!({"spec": {"failurePolicy": "Fail"}}), false),
            &[
                "spec.matchConstraints: Required value",
                "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
                "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
            ],
        );
        check(
            policy_binding(
                &json!({"spec": {"policyName": "p", "validationActions": ["Deny", "Warn"]}}),
                false,
            ),
            &[
                "spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
            ],
        );
    }

    fn mutating(mutation: Value) -> Value {
        json!({"spec": {"failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [mutation],
            "matchConstraints": {"matchPolicy": "Exact", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [
                {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]}}})
    }

    #[test]
    fn mutations_are_of_one_type_and_compile() {
        let apply = |text: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}});
        let patch =
            |text: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
        let check_one = |mutation: Value, expect: &[&str]| {
            check(policy(&mutating(mutation), true), expect);
        };
        check_one(
            apply("Object{spec: Object.spec{replicas: object.spec.replicas + 1}}"),
            &[],
        );
        check_one(
            patch(
                "[JSONPatch{op: 'add', path: '/a', value: authorizer.path('/x').check('get').allowed()}]",
            ),
            &[],
        );
        check_one(
            apply("{'spec': 1}"),
            &[
                "spec.mutations[0].applyConfiguration.expression: Invalid value: \"{'spec': 1}\": must evaluate to Object but got map(string, int)",
            ],
        );
        check_one(
            patch("Object{}"),
            &[
                "spec.mutations[0].jsonPatch.expression: Invalid value: \"Object{}\": must evaluate to list(JSONPatch) but got Object",
            ],
        );
        check_one(
            apply("Object{a: params.b}"),
            &[
                "spec.mutations[0].applyConfiguration.expression: Invalid value: \"Object{a: params.b}\": compilation failed: ERROR: <input>:1:11: undeclared reference to 'params' (in container '')\n | Object{a: params.b}\n | ..........^",
            ],
        );
        check_one(
            json!({"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}}),
            &[
                "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch",
            ],
        );
        check_one(json!({}), &["spec.mutations[0].patchType: Required value"]);
    }

    #[test]
    fn expressions_of_validations_compile_with_their_variables() {
        let mut object = mutating(json!({}));
        object["spec"]["paramKind"] = json!({"apiVersion": "a/b/c", "kind": "9"});
        object["spec"]["variables"] = json!([{"name": "a", "expression": "object.spec.x"}, {"name": "b", "expression": "variables.a + variables.c"}]);
        object["spec"]["matchConditions"] = json!([{"name": "m", "expression": "variables.a"}, {"name": "n", "expression": "params.x == 1"}]);
        object["spec"]["validations"] = json!([{"expression": "variables.b == 1 && params.y"}, {"expression": "1 +", "messageExpression": "1", "message": " "}]);
        check(
            policy(&object, false),
            &[
                "spec.paramKind.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "spec.paramKind.kind: Invalid value: \"9\": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
                "spec.matchConditions[0].expression: Invalid value: \"variables.a\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.a\n | ^",
                "spec.variables[1].expression: Invalid value: \"variables.a + variables.c\": compilation failed: ERROR: <input>:1:24: undefined field 'c'\n | variables.a + variables.c\n | .......................^",
                "spec.validations[1].expression: Invalid value: \"1 +\": compilation failed: ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | 1 +\n | ...^",
                "spec.validations[1].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
                "spec.validations[1].message: Invalid value: \" \": message must be non-empty if specified",
            ],
        );
    }
}
