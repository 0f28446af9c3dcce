//! What claims, classes and slices share: names of drivers, pools, attributes and conditions, tolerations and taints,
//! parameters of drivers, and expressions about a device.

use apimachinery::field::{Error, ErrorList};
use apimachinery::name;
use cel::Program;
use cel::check::{Env, Ty};

use super::super::check::Node;

const MAX_SELECTORS: usize = 32;
const MAX_DRIVER_NAME: usize = 63;
const MAX_POOL_NAME: usize = 253;
const MAX_ID: usize = 32;
const MAX_BINDING_CONDITIONS: usize = 4;
const MAX_TOLERATIONS: usize = 16;
/// Longest expression, and largest parameters of a driver, in bytes.
const MAX_EXPRESSION: usize = 10 * 1024;
const MAX_PARAMETERS: usize = 10 * 1024;
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];
const C_IDENTIFIER: &str = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";

/// Whether a list has no more items than it may; one that has is not looked at.
pub fn is_bounded(list: &Node<'_, '_>, most: usize, errors: &mut ErrorList) -> bool {
    let count = match list.value.as_object() {
        Some(map) => map.len(),
        None => list.list().len(),
    };
    if count > most {
        errors.push(Error::too_many(&list.path(), count, most));
    }
    count <= most
}

/// Each key once (`validateSet`), told at the item.
pub fn unique<'v>(
    list: &Node<'v, '_>,
    key: impl Fn(&Node<'v, '_>) -> String,
    errors: &mut ErrorList,
) {
    let mut seen: Vec<String> = Vec::new();
    for item in list.items() {
        let key = key(&item);
        if seen.contains(&key) {
            errors.push(Error::duplicate(&item.path(), &key));
        } else {
            seen.push(key);
        }
    }
}

/// `validateDriverName`.
pub fn driver(driver: &Node<'_, '_>, errors: &mut ErrorList) {
    if driver.present(errors) {
        driver_text(driver, driver.text(), errors);
    }
}

fn driver_text(at: &Node<'_, '_>, text: &str, errors: &mut ErrorList) {
    if text.len() > MAX_DRIVER_NAME {
        errors.push(Error::too_long(&at.path(), MAX_DRIVER_NAME));
    }
    for why in name::dns_1123_subdomain(&text.to_lowercase()) {
        at.invalid_as(errors, text, why);
    }
}

/// `validatePoolName`.
pub fn pool_name(called: &Node<'_, '_>, errors: &mut ErrorList) {
    if !called.present(errors) {
        return;
    }
    if called.text().len() > MAX_POOL_NAME {
        errors.push(Error::too_long(&called.path(), MAX_POOL_NAME));
    }
    for part in called.text().split('/') {
        for why in name::dns_1123_subdomain(part) {
            called.invalid_as(errors, part, why);
        }
    }
}

fn c_identifier(at: &Node<'_, '_>, text: &str, errors: &mut ErrorList) {
    if text.len() > MAX_ID {
        errors.push(Error::too_long(&at.path(), MAX_ID));
    }
    let good = |(index, byte): (usize, u8)| {
        byte == b'_' || byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit())
    };
    if text.is_empty() || !text.bytes().enumerate().all(good) {
        at.invalid_as(errors, text, C_IDENTIFIER);
    }
}

/// `validateQualifiedName`: an identifier, in a driver's domain or not; told at `at`.
pub fn qualified(at: &Node<'_, '_>, text: &str, errors: &mut ErrorList) {
    match text.split('/').collect::<Vec<_>>()[..] {
        [id] => c_identifier(at, id, errors),
        [domain, id] => {
            match domain {
                "" => at.invalid_as(errors, "", "the domain must not be empty"),
                domain => driver_text(at, domain, errors),
            }
            match id {
                "" => at.invalid_as(errors, "", "the name must not be empty"),
                id => c_identifier(at, id, errors),
            }
        }
        _ => at.invalid_as(errors, text, "must not contain more than one slash"),
    }
}

/// `validateFullyQualifiedName`: in a domain.
pub fn fully_qualified(attribute: &Node<'_, '_>, errors: &mut ErrorList) {
    qualified(attribute, attribute.text(), errors);
    if !attribute.text().contains('/') {
        attribute.invalid(
            errors,
            "a fully qualified name must be a domain and a name separated by a slash",
        );
    }
}

/// `validateUID`: in its normal form.
pub fn uid(uid: &Node<'_, '_>, errors: &mut ErrorList) {
    let text = uid.text();
    match uuid::Uuid::try_parse(text) {
        Err(_) => {
            let why = match text.len() {
                32 | 36 | 38 | 45 => "invalid UUID format".to_owned(),
                length => format!("invalid UUID length: {length}"),
            };
            uid.invalid(errors, format!("error validating uid: {why}"));
        }
        Ok(parsed) if parsed.to_string() != text => uid.invalid(
            errors,
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters",
        ),
        Ok(_) => {}
    }
}

/// `validateDeviceTaint`; an effect that was there before is let be.
pub fn taint(taint: &Node<'_, '_>, old_effect: Option<&str>, errors: &mut ErrorList) {
    taint.at("key").syntax(errors, name::qualified_name);
    taint.at("value").syntax_if_set(errors, name::label_value);
    let effect = taint.at("effect");
    if old_effect != Some(effect.text()) {
        effect.one_of(errors, &EFFECTS);
    }
}

/// `validateDeviceToleration`, for each.
pub fn tolerations(list: &Node<'_, '_>, errors: &mut ErrorList) {
    if !is_bounded(list, MAX_TOLERATIONS, errors) {
        return;
    }
    for toleration in list.items() {
        toleration
            .at("key")
            .syntax_if_set(errors, name::qualified_name);
        let (operator, value) = (toleration.at("operator"), toleration.at("value"));
        match operator.text() {
            "Exists" if !value.text().is_empty() => {
                value.invalid(errors, "must be empty for operator `Exists`");
            }
            "Exists" => {}
            "Equal" => value.syntax(errors, name::label_value),
            _ => operator.one_of(errors, &["Equal", "Exists"]),
        }
        let effect = toleration.at("effect");
        if !effect.text().is_empty() {
            effect.known(errors, &EFFECTS);
        }
    }
}

/// `validateRawExtension`: an object, not too large.
pub fn object(raw: &Node<'_, '_>, errors: &mut ErrorList) {
    if !raw.is_set() {
        raw.required(errors, "");
    } else if raw.value.to_string().len() > MAX_PARAMETERS {
        errors.push(Error::too_long(&raw.path(), MAX_PARAMETERS));
    } else if !raw.value.is_object() {
        raw.invalid_as(errors, "<value omitted>", "must be a valid JSON object");
    }
}

/// `validateDeviceConfiguration`.
pub fn configuration(config: &Node<'_, '_>, errors: &mut ErrorList) {
    let opaque = config.at("opaque");
    if !opaque.is_set() {
        opaque.required(errors, "");
        return;
    }
    driver(&opaque.at("driver"), errors);
    object(&opaque.at("parameters"), errors);
}

/// `validateSelectorSlice`.
pub fn selectors(list: &Node<'_, '_>, errors: &mut ErrorList) {
    if !is_bounded(list, MAX_SELECTORS, errors) {
        return;
    }
    for selector in list.items() {
        let cel = selector.at("cel");
        match cel.is_set() {
            true => expression(&cel.at("expression"), &["bool"], errors),
            false => cel.required(errors, ""),
        }
    }
}

thread_local! {
    /// What an expression sees. Values are by domain and name, of what type only each device tells.
    static DEVICE: Env = Env::new([("device", device())]);
}

fn device() -> Ty {
    let by_domain = || Ty::texts_to(Ty::texts_to(Ty::Dyn));
    Ty::fields(
        "kubernetes.DRADevice",
        [
            ("driver", Ty::Text),
            ("attributes", by_domain()),
            ("capacity", by_domain()),
            ("allowMultipleAllocations", Ty::Bool),
        ],
    )
}

/// `validateCELExpression`; with `wanted` empty a value of any type will do.
pub fn expression(expression: &Node<'_, '_>, wanted: &[&str], errors: &mut ErrorList) {
    if expression.text().len() > MAX_EXPRESSION {
        errors.push(Error::too_long(&expression.path(), MAX_EXPRESSION));
        return;
    }
    let compiled = Program::parse(expression.text()).and_then(|program| {
        let ty = DEVICE
            .with(|device| program.check(device))
            .map_err(|why| format!("compilation failed: {why}"))?;
        match ty.is_dyn() || wanted.is_empty() || wanted.contains(&ty.to_string().as_str()) {
            true => Ok(()),
            false => Err(format!(
                "must evaluate to {} or the unknown type, not {ty}",
                wanted.join(" ")
            )),
        }
    });
    if let Err(why) = compiled {
        expression.invalid_as(errors, expression.text(), why);
    }
}

/// `validateDeviceBindingParameters`: what must and what must not come to be before a device is bound.
pub fn binding_conditions(of: &Node<'_, '_>, errors: &mut ErrorList) {
    let (good, bad) = (
        of.at("bindingConditions"),
        of.at("bindingFailureConditions"),
    );
    for list in [&good, &bad] {
        if is_bounded(list, MAX_BINDING_CONDITIONS, errors) {
            for condition in list.items() {
                condition.syntax(errors, name::qualified_name);
            }
        }
    }
    unique(&good, |condition| condition.text().to_owned(), errors);
    let mut seen: Vec<&str> = Vec::new();
    for condition in bad.items() {
        if seen.contains(&condition.text()) {
            condition.duplicate(errors);
        }
        seen.push(condition.text());
        if good.list().contains(condition.value) {
            condition.invalid(
                errors,
                "bindingFailureConditions must not overlap with bindingConditions",
            );
        }
    }
    for (has, lacks, why) in [
        (
            &bad,
            &good,
            "bindingConditions are required to use bindingFailureConditions",
        ),
        (
            &good,
            &bad,
            "bindingFailureConditions are required to use bindingConditions",
        ),
    ] {
        if !has.list().is_empty() && lacks.list().is_empty() {
            lacks.invalid(errors, why);
        }
    }
}

/// `validateSkipNodeOperations`: what was prepared is to be unprepared.
pub fn skipped_operations(list: &Node<'_, '_>, errors: &mut ErrorList) {
    let skips = |operation: &str| list.list().iter().any(|skipped| skipped == operation);
    if skips("NodePrepareResources") && !skips("NodeUnprepareResources") && !skips("*") {
        list.invalid(
            errors,
            "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use apimachinery::Value;
    use serde_json::json;

    #[track_caller]
    fn told(rule: impl Fn(&Node<'_, '_>, &mut ErrorList), value: Value, texts: &[&str]) {
        let mut errors = ErrorList::new();
        rule(&Node::root(&value, "x"), &mut errors);
        check(errors, texts);
    }

    #[test]
    fn attributes_are_identifiers_in_a_domain() {
        told(fully_qualified, json!("dra.example.com/numa"), &[]);
        told(
            fully_qualified,
            json!("numa"),
            &[
                "x: Invalid value: \"numa\": a fully qualified name must be a domain and a name separated by a slash",
            ],
        );
        told(
            fully_qualified,
            json!("/"),
            &[
                "x: Invalid value: \"\": the domain must not be empty",
                "x: Invalid value: \"\": the name must not be empty",
            ],
        );
        told(
            fully_qualified,
            json!("a/b/c"),
            &["x: Invalid value: \"a/b/c\": must not contain more than one slash"],
        );
        told(
            fully_qualified,
            json!(format!("a.io/{}", "n".repeat(33))),
            &["x: Too long: may not be more than 32 bytes"],
        );
        told(
            fully_qualified,
            json!("a.io/1"),
            &[&format!("x: Invalid value: \"1\": {C_IDENTIFIER}")],
        );
    }

    #[test]
    fn tolerations_have_an_operator_that_fits_their_value() {
        told(
            tolerations,
            json!([{"operator": "Equal", "key": "a", "value": "b"}, {"operator": "Exists", "value": "b"}, {},
                {"operator": "Exists", "effect": "PreferNoSchedule"}, {"operator": "In"}]),
            &[
                "x[1].value: Invalid value: \"b\": must be empty for operator `Exists`",
                "x[2].operator: Required value",
                "x[3].effect: Unsupported value: \"PreferNoSchedule\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
                "x[4].operator: Unsupported value: \"In\": supported values: \"Equal\", \"Exists\"",
            ],
        );
    }

    #[test]
    fn expressions_say_whether_a_device_is_wanted() {
        let wanted = |text: &str| json!([{"cel": {"expression": text}}]);
        told(
            selectors,
            wanted("device.driver == 'a' && device.attributes['a.io'].b"),
            &[],
        );
        told(
            selectors,
            wanted("device.driver"),
            &[
                "x[0].cel.expression: Invalid value: \"device.driver\": must evaluate to bool or the unknown type, not string",
            ],
        );
        told(
            selectors,
            wanted("device.size"),
            &[
                "x[0].cel.expression: Invalid value: \"device.size\": compilation failed: ERROR: <input>:1:7: undefined field 'size'\n | device.size\n | ......^",
            ],
        );
        told(selectors, json!([{}]), &["x[0].cel: Required value"]);
    }

    #[test]
    fn conditions_for_binding_come_in_two_kinds_that_differ() {
        told(
            binding_conditions,
            json!({"bindingConditions": ["a", "a"], "bindingFailureConditions": ["a"]}),
            &[
                "x.bindingConditions[1]: Duplicate value: \"a\"",
                "x.bindingFailureConditions[0]: Invalid value: \"a\": bindingFailureConditions must not overlap with bindingConditions",
            ],
        );
        told(
            binding_conditions,
            json!({"bindingConditions": ["a"]}),
            &[
                "x.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions",
            ],
        );
    }

    #[test]
    fn parameters_are_objects_and_uids_normal() {
        told(object, json!({}), &[]);
        told(object, json!(null), &["x: Required value"]);
        told(
            object,
            json!([]),
            &["x: Invalid value: \"<value omitted>\": must be a valid JSON object"],
        );
        told(uid, json!("6a1a1cf9-3f0a-4c9c-8fc5-0a4d5b9d5b3e"), &[]);
        told(
            uid,
            json!("6A1A1CF9-3F0A-4C9C-8FC5-0A4D5B9D5B3E"),
            &[
                "x: Invalid value: \"6A1A1CF9-3F0A-4C9C-8FC5-0A4D5B9D5B3E\": uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters",
            ],
        );
        told(
            uid,
            json!("x"),
            &["x: Invalid value: \"x\": error validating uid: invalid UUID length: 1"],
        );
    }
}
