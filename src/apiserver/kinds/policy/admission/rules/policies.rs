//! What admission policies and their bindings may say, and that their expressions compile.

use apimachinery::field::ErrorList;
use apimachinery::{Value, name};
use cel::check::{self, Env, Ty};

use super::{FAILURE_POLICIES, REINVOCATION, compiled, match_conditions, match_resources};
use crate::kinds::check::Node;
use crate::kinds::pod_spec::affinity::label_selector;
use crate::kinds::tree::at;

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
