//! How much of a device's capacity may be asked for (KEP-5075, `validateRequestPolicy`): one of a few amounts, or a range
//! with steps.

use apimachinery::field::ErrorList;
use apimachinery::quantity::Quantity;

use super::super::check::Node;
use super::names::{is_bounded, unique};

const MAX_VALUES: usize = 10;

/// A policy for a capacity of `whole`.
pub fn request_policy(policy: &Node<'_, '_>, whole: Quantity, errors: &mut ErrorList) {
    let (values, range) = (policy.at("validValues"), policy.at("validRange"));
    let has_values = !values.list().is_empty();
    if has_values && range.is_set() {
        policy.forbidden(
            errors,
            "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time",
        );
        return;
    }
    if !has_values && !range.is_set() {
        return;
    }
    let default = policy.at("default");
    let Some(default) = default.quantity().filter(|_| default.is_set()) else {
        let field = if has_values {
            "validValues"
        } else {
            "validRange"
        };
        default.required(errors, &format!("required when {field} is defined"));
        return;
    };
    match has_values {
        true => valid_values(&values, default, whole, errors),
        false => valid_range(&range, default, whole, errors),
    }
}

fn valid_values(values: &Node<'_, '_>, default: Quantity, whole: Quantity, errors: &mut ErrorList) {
    let amounts: Vec<Quantity> = values
        .items()
        .map(|value| value.quantity().unwrap_or(Quantity::ZERO))
        .collect();
    for (value, pair) in values.items().skip(1).zip(amounts.windows(2)) {
        if pair[0] > pair[1] {
            value.invalid_as(
                errors,
                pair[1].to_string(),
                "values must be sorted in ascending order",
            );
        }
    }
    if is_bounded(values, MAX_VALUES, errors) {
        for (value, amount) in values.items().zip(&amounts) {
            if *amount > whole {
                value.invalid_as(
                    errors,
                    amount.to_string(),
                    format!("option is larger than capacity value: {whole}"),
                );
            }
        }
        unique(
            values,
            |value| {
                value
                    .quantity()
                    .map_or(0, |amount| amount.value())
                    .to_string()
            },
            errors,
        );
    }
    if !amounts.contains(&default) {
        values.invalid_as(
            errors,
            default.to_string(),
            "default value is not valid according to the requestPolicy",
        );
    }
}

fn valid_range(range: &Node<'_, '_>, default: Quantity, whole: Quantity, errors: &mut ErrorList) {
    let told = |field: &str, shown: Quantity, why: String, errors: &mut ErrorList| {
        range.at(field).invalid_as(errors, shown.to_string(), why);
    };
    let (min, max, step) = (range.at("min"), range.at("max"), range.at("step"));
    let Some(least) = min.quantity().filter(|_| min.is_set()) else {
        min.required(errors, "required when validRange is defined");
        return;
    };
    if least > whole {
        let why = format!("min is larger than capacity value: {whole}");
        told("min", least, why, errors);
    }
    if default < least {
        let why = format!("default is less than min: {least}");
        told("min", default, why, errors);
    }
    let most = max.quantity().filter(|_| max.is_set());
    if let Some(most) = most {
        if least > most {
            told(
                "max",
                least,
                format!("min is larger than max: {most}"),
                errors,
            );
        }
        if most > whole {
            let why = format!("max is larger than capacity value: {whole}");
            told("max", most, why, errors);
        }
        if default > most {
            let why = format!("default is more than max: {most}");
            told("max", default, why, errors);
        }
    }
    let Some(step) = step.quantity().filter(|_| step.is_set()) else {
        return;
    };
    if step.sign() <= 0 {
        told("step", step, "must be greater than zero".to_owned(), errors);
        return;
    }
    let mut next = least;
    next.add(&step);
    if next > whole {
        let why = format!("one step {next} is larger than capacity value: {whole}");
        told("step", step, why, errors);
    }
    for value in [Some(default), most].into_iter().flatten() {
        // Whole units, as upstream counts steps.
        let from = value.value().saturating_sub(least.value());
        if step.value() != 0 && from % step.value() != 0 {
            let why = format!("value is not a multiple of a given step ({step}) from ({least})");
            told("step", value, why, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use apimachinery::Value;
    use serde_json::json;

    #[track_caller]
    fn told(policy: Value, texts: &[&str]) {
        let mut errors = ErrorList::new();
        let whole = "10Gi".parse().expect("a quantity");
        request_policy(&Node::root(&policy, "p"), whole, &mut errors);
        check(errors, texts);
    }

    #[test]
    fn a_few_amounts_are_sorted_and_have_the_default() {
        told(
            json!({"default": "1Gi", "validValues": ["1Gi", "2Gi"]}),
            &[],
        );
        told(
            json!({"validValues": ["1Gi"]}),
            &["p.default: Required value: required when validValues is defined"],
        );
        told(
            json!({"default": "3Gi", "validValues": ["2Gi", "1Gi", "1Gi", "20Gi"]}),
            &[
                "p.validValues[1]: Invalid value: \"1Gi\": values must be sorted in ascending order",
                "p.validValues[3]: Invalid value: \"20Gi\": option is larger than capacity value: 10Gi",
                "p.validValues[2]: Duplicate value: \"1073741824\"",
                "p.validValues: Invalid value: \"3Gi\": default value is not valid according to the requestPolicy",
            ],
        );
        told(
            json!({"default": "1Gi", "validValues": ["1Gi"], "validRange": {"min": "1Gi"}}),
            &[
                "p: Forbidden: exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time",
            ],
        );
    }

    #[test]
    fn a_range_has_its_default_and_its_end_on_a_step() {
        told(
            json!({"default": "1Gi", "validRange": {"min": "1Gi", "max": "9Gi", "step": "2Gi"}}),
            &[],
        );
        told(
            json!({"default": "1Gi", "validRange": {}}),
            &["p.validRange.min: Required value: required when validRange is defined"],
        );
        told(
            json!({"default": "2Gi", "validRange": {"min": "1Gi", "max": "20Gi", "step": "2Gi"}}),
            &[
                "p.validRange.max: Invalid value: \"20Gi\": max is larger than capacity value: 10Gi",
                "p.validRange.step: Invalid value: \"2Gi\": value is not a multiple of a given step (2Gi) from (1Gi)",
                "p.validRange.step: Invalid value: \"20Gi\": value is not a multiple of a given step (2Gi) from (1Gi)",
            ],
        );
        told(
            json!({"default": "9Gi", "validRange": {"min": "1Gi", "max": "8Gi"}}),
            &["p.validRange.max: Invalid value: \"9Gi\": default is more than max: 8Gi"],
        );
        told(
            json!({"default": "1Gi", "validRange": {"min": "2Gi", "step": "0"}}),
            &[
                "p.validRange.min: Invalid value: \"1Gi\": default is less than min: 2Gi",
                "p.validRange.step: Invalid value: \"0\": must be greater than zero",
            ],
        );
    }
}
