//! Values against a structural OpenAPI schema: defaults, and what is wrong in upstream's words (kube-openapi `validate`).

use std::collections::HashMap;

use apimachinery::field::{Error, ErrorList, ErrorType, Path};
use apimachinery::{Map, Value};
use regex::Regex;
use serde_json::Number;

use crate::kinds::tree::{at, flag, has, items, text};
use cel::{Program, Scope, Val};

/// Deepest nesting that is followed; bodies are refused before they get there.
const MAX_DEPTH: usize = 256;
/// Most errors told about one object.
const MAX_ERRORS: usize = 100;

/// A schema, its patterns compiled.
pub struct Schema {
    root: Value,
    patterns: HashMap<String, Regex>,
    /// Rules of CEL by their text.
    programs: HashMap<String, Result<Program, String>>,
}

impl Schema {
    pub fn new(schema: &Value) -> Self {
        let mut patterns = HashMap::new();
        collect(schema, &mut patterns);
        let mut programs = HashMap::new();
        collect_rules(schema, &mut programs);
        Self {
            root: schema.clone(),
            patterns,
            programs,
        }
    }

    /// The schema as the definition has it.
    pub fn raw(&self) -> &Value {
        &self.root
    }

    /// Fills in defaults; null becomes the default where null is no value (`defaulting.Default`).
    pub fn default(&self, object: &mut Value) {
        if self.root.is_object() {
            fill(object, &self.root, true, 0);
        }
    }

    /// What is wrong with an object; `old` is what it was, which rules about changes look at.
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let mut checker = Checker {
            schema: self,
            errors: ErrorList::new(),
        };
        if self.root.is_object() {
            checker.value(object, &self.root, &Path::default(), true, 0);
        }
        if self.programs.is_empty() {
            return checker.errors;
        }
        let blocked = checker.errors.iter().any(|error| {
            matches!(
                error.kind,
                ErrorType::Required
                    | ErrorType::TooLong
                    | ErrorType::TooMany
                    | ErrorType::TypeInvalid
            )
        });
        if blocked {
            checker.errors.push(Error::invalid(
                &Path::new("<nil>"),
                "null",
                "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
            ));
        } else {
            checker.rules(object, old, &self.root, &Path::default(), 0);
        }
        checker.errors
    }
}

/// Parses every rule of a schema.
fn collect_rules(schema: &Value, programs: &mut HashMap<String, Result<Program, String>>) {
    match schema {
        Value::Object(map) => {
            for rule in items(schema, &["x-kubernetes-validations"]) {
                for field in ["rule", "messageExpression"] {
                    let text = text(rule, &[field]);
                    if !text.is_empty() && !programs.contains_key(text) {
                        programs.insert(text.to_owned(), Program::parse(text));
                    }
                }
            }
            map.values()
                .for_each(|inner| collect_rules(inner, programs));
        }
        Value::Array(list) => list.iter().for_each(|inner| collect_rules(inner, programs)),
        _ => {}
    }
}

/// Compiles every pattern of a schema; those that Go knows and this does not are left out.
fn collect(schema: &Value, patterns: &mut HashMap<String, Regex>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(pattern)) = map.get("pattern")
                && !patterns.contains_key(pattern)
                && let Ok(regex) = Regex::new(pattern)
            {
                patterns.insert(pattern.clone(), regex);
            }
            map.values().for_each(|inner| collect(inner, patterns));
        }
        Value::Array(list) => list.iter().for_each(|inner| collect(inner, patterns)),
        _ => {}
    }
}

fn fill(value: &mut Value, schema: &Value, is_root: bool, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, inner) in at(schema, &["properties"])
                .as_object()
                .into_iter()
                .flatten()
            {
                // What every object has is not the definition's to fill.
                if is_root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    continue;
                }
                let missing = match map.get(name) {
                    None => true,
                    Some(Value::Null) => !flag(inner, &["nullable"]),
                    Some(_) => false,
                };
                match inner.get("default") {
                    Some(default) if missing => {
                        map.insert(name.clone(), default.clone());
                    }
                    // Null is dropped where it is no value and nothing stands in for it.
                    None if missing && map.contains_key(name) => {
                        map.remove(name);
                    }
                    _ => {}
                }
                if let Some(member) = map.get_mut(name) {
                    fill(member, inner, false, depth + 1);
                }
            }
            let others = at(schema, &["additionalProperties"]);
            if others.is_object() {
                for member in map.values_mut() {
                    fill(member, others, false, depth + 1);
                }
            }
        }
        Value::Array(list) => {
            let inner = at(schema, &["items"]);
            for item in list {
                fill(item, inner, false, depth + 1);
            }
        }
        _ => {}
    }
}

struct Checker<'a> {
    schema: &'a Schema,
    errors: ErrorList,
}

/// The name of a value's type as schemas call it.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn fits(value: &Value, ty: &str) -> bool {
    match ty {
        "number" => value.is_number(),
        "integer" => match value {
            Value::Number(number) => {
                !number.is_f64() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
            }
            _ => false,
        },
        ty => type_name(value) == ty,
    }
}

impl Checker<'_> {
    fn invalid(&mut self, path: &Path, value: &Value, why: String) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(Error::invalid(path, value, why));
        }
    }

    fn value(&mut self, value: &Value, schema: &Value, path: &Path, is_root: bool, depth: usize) {
        if depth > MAX_DEPTH || self.errors.len() >= MAX_ERRORS {
            return;
        }
        if value.is_null() && flag(schema, &["nullable"]) {
            return;
        }
        if flag(schema, &["x-kubernetes-int-or-string"]) {
            if !value.is_string() && !fits(value, "integer") {
                self.wrong_type(path, value, "integer,string");
                return;
            }
        } else if let Some(ty) = schema.get("type").and_then(Value::as_str)
            && !fits(value, ty)
        {
            self.wrong_type(path, value, ty);
            return;
        }
        self.one_of_values(value, schema, path);
        match value {
            Value::String(text) => self.text(text, value, schema, path),
            Value::Number(number) => self.number(number, value, schema, path),
            Value::Array(list) => self.list(list, value, schema, path, depth),
            Value::Object(map) => self.map(map, schema, path, is_root, depth),
            _ => {}
        }
        self.combined(value, schema, path, depth);
    }

    fn wrong_type(&mut self, path: &Path, value: &Value, ty: &str) {
        let is = type_name(value);
        let why = format!("{path} in body must be of type {ty}: {is:?}");
        self.errors.push(Error::type_invalid(path, is, why));
    }

    fn one_of_values(&mut self, value: &Value, schema: &Value, path: &Path) {
        let values = items(schema, &["enum"]);
        if values.is_empty() || values.contains(value) {
            return;
        }
        let valid: Vec<String> = values
            .iter()
            .map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            })
            .collect();
        self.errors.push(Error::not_supported(path, value, &valid));
    }

    fn text(&mut self, text: &str, value: &Value, schema: &Value, path: &Path) {
        let length = text.chars().count() as u64;
        if let Some(most) = schema.get("maxLength").and_then(Value::as_u64)
            && length > most
        {
            self.errors.push(Error::too_long(
                path,
                usize::try_from(most).unwrap_or(usize::MAX),
            ));
        }
        if let Some(least) = schema.get("minLength").and_then(Value::as_u64)
            && length < least
        {
            self.invalid(
                path,
                value,
                format!("{path} in body should be at least {least} chars long"),
            );
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && let Some(regex) = self.schema.patterns.get(pattern)
            && !regex.is_match(text)
        {
            self.invalid(
                path,
                value,
                format!("{path} in body should match '{pattern}'"),
            );
        }
        let format = text_format(schema);
        if !format.is_empty() && !has_format(text, format) {
            let why = format!("{path} in body must be of type {format}: {text:?}");
            self.errors.push(Error::type_invalid(path, value, why));
        }
    }

    fn number(&mut self, number: &Number, value: &Value, schema: &Value, path: &Path) {
        let given = number.as_f64().unwrap_or(0.0);
        let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
        let exclusive = |name: &str| flag(schema, &[name]);
        if let Some(least) = bound("minimum") {
            let shown = at(schema, &["minimum"]);
            if exclusive("exclusiveMinimum") {
                if given <= least {
                    self.invalid(
                        path,
                        value,
                        format!("{path} in body should be greater than {shown}"),
                    );
                }
            } else if given < least {
                self.invalid(
                    path,
                    value,
                    format!("{path} in body should be greater than or equal to {shown}"),
                );
            }
        }
        if let Some(most) = bound("maximum") {
            let shown = at(schema, &["maximum"]);
            if exclusive("exclusiveMaximum") {
                if given >= most {
                    self.invalid(
                        path,
                        value,
                        format!("{path} in body should be less than {shown}"),
                    );
                }
            } else if given > most {
                self.invalid(
                    path,
                    value,
                    format!("{path} in body should be less than or equal to {shown}"),
                );
            }
        }
        if let Some(step) = bound("multipleOf")
            && step > 0.0
            && (given / step).fract().abs() > f64::EPSILON
        {
            let shown = at(schema, &["multipleOf"]);
            self.invalid(
                path,
                value,
                format!("{path} in body should be a multiple of {shown}"),
            );
        }
    }

    fn list(&mut self, list: &[Value], value: &Value, schema: &Value, path: &Path, depth: usize) {
        let bound = |name: &str| {
            schema
                .get(name)
                .and_then(Value::as_u64)
                .map(|bound| usize::try_from(bound).unwrap_or(usize::MAX))
        };
        if let Some(most) = bound("maxItems")
            && list.len() > most
        {
            self.errors.push(Error::too_many(path, list.len(), most));
        }
        if let Some(least) = bound("minItems")
            && list.len() < least
        {
            self.invalid(
                path,
                &Value::from(list.len()),
                format!("{path} in body should have at least {least} items"),
            );
        }
        if flag(schema, &["uniqueItems"])
            && (1..list.len()).any(|at| list[..at].contains(&list[at]))
        {
            self.invalid(
                path,
                value,
                format!("{path} in body shouldn't contain duplicates"),
            );
        }
        let inner = at(schema, &["items"]);
        for (index, item) in list.iter().enumerate() {
            if inner.is_object() {
                self.value(item, inner, &path.index(index), false, depth + 1);
            }
        }
        self.keyed(list, schema, path);
    }

    /// Items of sets, and keys of lists that are maps, are unique.
    fn keyed(&mut self, list: &[Value], schema: &Value, path: &Path) {
        let kind = text(schema, &["x-kubernetes-list-type"]);
        let keys = items(schema, &["x-kubernetes-list-map-keys"]);
        let key_of = |item: &Value| -> Value {
            match kind {
                "map" => keys
                    .iter()
                    .filter_map(Value::as_str)
                    .filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())))
                    .collect::<Map<String, Value>>()
                    .into(),
                _ => item.clone(),
            }
        };
        if !matches!(kind, "map" | "set") {
            return;
        }
        let mut seen: Vec<Value> = Vec::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            let key = key_of(item);
            if seen.contains(&key) && self.errors.len() < MAX_ERRORS {
                self.errors.push(Error::duplicate(&path.index(index), &key));
            }
            seen.push(key);
        }
    }

    fn map(
        &mut self,
        map: &Map<String, Value>,
        schema: &Value,
        path: &Path,
        is_root: bool,
        depth: usize,
    ) {
        for name in items(schema, &["required"])
            .iter()
            .filter_map(Value::as_str)
        {
            if !map.contains_key(name) {
                self.errors.push(Error::required(&path.child(name), ""));
            }
        }
        let count = map.len();
        if let Some(least) = schema.get("minProperties").and_then(Value::as_u64)
            && (count as u64) < least
        {
            self.invalid(
                path,
                &Value::from(count),
                format!("{path} in body should have at least {least} properties"),
            );
        }
        if let Some(most) = schema.get("maxProperties").and_then(Value::as_u64)
            && count as u64 > most
        {
            self.errors.push(Error::too_many(
                path,
                count,
                usize::try_from(most).unwrap_or(usize::MAX),
            ));
        }

        let known = at(schema, &["properties"]);
        let others = at(schema, &["additionalProperties"]);
        for (name, member) in map {
            if is_root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            if let Some(inner) = known.get(name) {
                self.value(member, inner, &path.child(name), false, depth + 1);
            } else if others.is_object() {
                self.value(member, others, &path.child(name), false, depth + 1);
            }
        }
    }

    /// The rules of CEL of a value and all within it (`cel.Validator`).
    fn rules(
        &mut self,
        value: &Value,
        old: Option<&Value>,
        schema: &Value,
        path: &Path,
        depth: usize,
    ) {
        if depth > MAX_DEPTH || self.errors.len() >= MAX_ERRORS || value.is_null() {
            return;
        }
        for rule in items(schema, &["x-kubernetes-validations"]) {
            self.rule(rule, value, old, path);
        }
        match value {
            Value::Object(map) => {
                let known = at(schema, &["properties"]);
                let others = at(schema, &["additionalProperties"]);
                for (name, member) in map {
                    let inner = known.get(name).unwrap_or(others);
                    if inner.is_object() {
                        let old = old.and_then(|old| old.get(name));
                        self.rules(member, old, inner, &path.child(name), depth + 1);
                    }
                }
            }
            Value::Array(list) => {
                let inner = at(schema, &["items"]);
                let keys = items(schema, &["x-kubernetes-list-map-keys"]);
                for (index, item) in list.iter().enumerate() {
                    // Only items that have keys can be told to be the same.
                    let old = (!keys.is_empty()).then_some(old).flatten().and_then(|old| {
                        old.as_array()?.iter().find(|was| {
                            keys.iter()
                                .filter_map(Value::as_str)
                                .all(|key| was.get(key) == item.get(key))
                        })
                    });
                    self.rules(item, old, inner, &path.index(index), depth + 1);
                }
            }
            _ => {}
        }
    }

    fn rule(&mut self, rule: &Value, value: &Value, old: Option<&Value>, path: &Path) {
        let expression = text(rule, &["rule"]);
        let Some(program) = self.schema.programs.get(expression) else {
            return;
        };
        let mut variables = vec![("self", cel::json(value))];
        let holds = match program {
            Ok(program) => {
                if program.uses("oldSelf") {
                    let optional = flag(rule, &["optionalOldSelf"]);
                    match (old, optional) {
                        (old, true) => {
                            let old = old.map(|old| std::rc::Rc::new(cel::json(old)));
                            variables.push(("oldSelf", Val::Optional(old)));
                        }
                        (Some(old), false) => variables.push(("oldSelf", cel::json(old))),
                        // A rule about a change says nothing of what is new.
                        (None, false) => return,
                    }
                }
                program.holds(&Scope::new(&variables))
            }
            Err(why) => Err(why.clone()),
        };
        let place = match text(rule, &["fieldPath"]) {
            "" => path.clone(),
            inner => path.child(inner.trim_start_matches('.')),
        };
        let shown = type_name(value);
        match holds {
            Ok(true) => {}
            Ok(false) => {
                let message = self.message(rule, expression, &Scope::new(&variables));
                self.errors.push(match text(rule, &["reason"]) {
                    "FieldValueForbidden" => Error::forbidden(&place, message),
                    "FieldValueRequired" => Error::required(&place, message),
                    "FieldValueDuplicate" => Error::duplicate(&place, shown),
                    _ => Error::invalid(&place, shown, message),
                });
            }
            Err(why) => {
                let why = format!("{why} evaluating rule: {expression}");
                self.errors.push(Error::invalid(&place, shown, why));
            }
        }
    }

    fn message(&self, rule: &Value, expression: &str, scope: &Scope<'_, '_>) -> String {
        let made = self.schema.programs.get(text(rule, &["messageExpression"]));
        if let Some(Ok(program)) = made
            && let Ok(Val::Text(message)) = program.evaluate(scope)
            && !message.trim().is_empty()
        {
            return message.into_owned();
        }
        match text(rule, &["message"]) {
            "" => format!("failed rule: {}", expression.trim()),
            message => message.to_owned(),
        }
    }

    /// What `schema` alone finds wrong.
    fn alone(&self, value: &Value, schema: &Value, path: &Path, depth: usize) -> ErrorList {
        let mut inner = Checker {
            schema: self.schema,
            errors: ErrorList::new(),
        };
        inner.value(value, schema, path, false, depth + 1);
        inner.errors
    }

    fn combined(&mut self, value: &Value, schema: &Value, path: &Path, depth: usize) {
        let shown = Value::from("");
        let name = path.to_string();
        let all = items(schema, &["allOf"]);
        for part in all {
            let found = self.alone(value, part, path, depth);
            if !found.is_empty() {
                self.errors.extend(found);
            }
        }
        let any = items(schema, &["anyOf"]);
        if !any.is_empty()
            && !any
                .iter()
                .any(|part| self.alone(value, part, path, depth).is_empty())
        {
            self.invalid(
                path,
                &shown,
                format!("{name:?} must validate at least one schema (anyOf)"),
            );
        }
        let one = items(schema, &["oneOf"]);
        if !one.is_empty() {
            let valid = one
                .iter()
                .filter(|part| self.alone(value, part, path, depth).is_empty())
                .count();
            if valid != 1 {
                let found = if valid == 0 {
                    "Found none valid".to_owned()
                } else {
                    format!("Found {valid} valid alternatives")
                };
                self.invalid(
                    path,
                    &shown,
                    format!("{name:?} must validate one and only one schema (oneOf). {found}"),
                );
            }
        }
        if has(schema, &["not"])
            && self
                .alone(value, at(schema, &["not"]), path, depth)
                .is_empty()
        {
            self.invalid(
                path,
                &shown,
                format!("{name:?} must not validate the schema (not)"),
            );
        }
    }
}

fn text_format(schema: &Value) -> &str {
    text(schema, &["format"])
}

/// Formats that are checked; of others nothing is known.
fn has_format(text: &str, format: &str) -> bool {
    match format {
        "date-time" => apimachinery::time::parse(text).is_some(),
        "date" => {
            let parts: Vec<&str> = text.split('-').collect();
            matches!(parts.as_slice(), [year, month, day]
                if year.len() == 4 && month.len() == 2 && day.len() == 2
                    && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit())))
        }
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "uuid" => uuid::Uuid::parse_str(text).is_ok(),
        "duration" => apimachinery::time::parse_go_duration(text).is_some(),
        "byte" => {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD
                .decode(text)
                .is_ok()
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(schema: Value, object: Value, expect: &[&str]) {
        let schema = json!({"type": "object", "properties": {"spec": schema}});
        let errors = Schema::new(&schema).validate(&json!({ "spec": object }), None);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn types_bounds_and_patterns_are_told_in_upstreams_words() {
        let schema = json!({"type": "object", "required": ["cron"], "properties": {
            "cron": {"type": "string", "pattern": "^a+$", "minLength": 2}, "replicas": {"type": "integer", "minimum": 1, "maximum": 10},
            "mode": {"type": "string", "enum": ["A", "B"]}, "list": {"type": "array", "minItems": 1, "items": {"type": "string"}}}});
        check(
            schema.clone(),
            json!({"cron": "aa", "replicas": 1, "mode": "A", "list": ["x"]}),
            &[],
        );
        check(
            schema,
            json!({"replicas": 11, "mode": "C", "list": [1]}),
            &[
                "spec.cron: Required value",
                "spec.list[0]: Invalid value: \"integer\": spec.list[0] in body must be of type string: \"integer\"",
                "spec.mode: Unsupported value: \"C\": supported values: \"A\", \"B\"",
                "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10",
            ],
        );
        check(
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            &["spec: Invalid value: \"b\": spec in body should match '^a+$'"],
        );
    }

    #[test]
    fn combinations_and_keys_are_checked() {
        check(
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            json!({}),
            &[
                "spec: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid",
            ],
        );
        check(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}}}}),
            json!([{"name": "a"}, {"name": "a"}]),
            &["spec[1]: Duplicate value: {\"name\":\"a\"}"],
        );
        check(
            json!({"type": "string", "nullable": true}),
            Value::Null,
            &[],
        );
    }

    #[test]
    fn rules_are_told_by_their_message_and_see_what_was() {
        let schema = Schema::new(
            &json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": [{"rule": "self.min <= self.max", "message": "min above max"},
                {"rule": "self.min >= oldSelf.min", "messageExpression": "'min was ' + string(oldSelf.min)"}],
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}}}}),
        );
        let of = |min: i64, max: i64| json!({"spec": {"min": min, "max": max}});
        let texts = |object: &Value, old: Option<&Value>| -> Vec<String> {
            let errors = schema.validate(object, old);
            errors.iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(&of(1, 2), None), Vec::<String>::new());
        assert_eq!(
            texts(&of(3, 2), None),
            ["spec: Invalid value: \"object\": min above max"]
        );
        assert_eq!(
            texts(&of(1, 2), Some(&of(2, 2))),
            ["spec: Invalid value: \"object\": min was 2"]
        );
        assert_eq!(
            texts(&json!({"spec": {"min": 1}}), None),
            [
                "spec: Invalid value: \"object\": no such key: max evaluating rule: self.min <= self.max"
            ]
        );
    }

    #[test]
    fn defaults_fill_what_is_absent_or_null() {
        let schema = Schema::new(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {
            "size": {"type": "integer", "default": 1}, "note": {"type": "string", "nullable": true, "default": "x"},
            "parts": {"type": "array", "items": {"type": "object", "properties": {"on": {"type": "boolean", "default": true}}}}}}}}),
        );
        let mut object = json!({"spec": {"size": null, "note": null, "parts": [{}]}});
        schema.default(&mut object);
        assert_eq!(
            object,
            json!({"spec": {"size": 1, "note": null, "parts": [{"on": true}]}})
        );
        let mut object = json!({});
        schema.default(&mut object);
        assert_eq!(object, json!({"spec": {"size": 1, "note": "x"}}));
    }
}
