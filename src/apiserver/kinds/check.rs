//! A cursor into an object that knows where it stands: rules read values through it and report at its path, and no path
//! is built that nobody reads.
//!
//! ```text
//! let spec = Node::root(&object["spec"], "spec");
//! spec.at("replicas").nonnegative(errors);      // spec.replicas: Invalid value: -1: must be …
//! ```

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::quantity::Quantity;
use serde::Serialize;

static NULL: Value = Value::Null;

/// What no field may do (`validation.FieldImmutableErrorMsg`).
pub const IMMUTABLE: &str = "field is immutable";

/// A value and the way to it.
#[derive(Clone, Copy)]
pub struct Node<'v, 'p> {
    pub value: &'v Value,
    up: Option<&'p Node<'v, 'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Field(&'p str),
    Index(usize),
    Key(&'p str),
}

impl<'v, 'p> Node<'v, 'p> {
    /// Where the way begins; `name` may hold dots, or be empty for the object itself.
    pub fn root(value: &'v Value, name: &'p str) -> Self {
        Self {
            value,
            up: None,
            step: Step::Field(name),
        }
    }

    /// A member; absent ones are there too, as null.
    pub fn at<'q>(&'q self, field: &'q str) -> Node<'v, 'q> {
        Node {
            value: self.value.get(field).unwrap_or(&NULL),
            up: Some(self),
            step: Step::Field(field),
        }
    }

    /// This value, told at a member's path (upstream reports some things there).
    pub fn told_at<'q>(&'q self, field: &'q str) -> Node<'v, 'q> {
        Node {
            value: self.value,
            up: Some(self),
            step: Step::Field(field),
        }
    }

    /// The items of a list.
    pub fn items<'q>(&'q self) -> impl Iterator<Item = Node<'v, 'q>> {
        let list = self.value.as_array().map_or(&[][..], Vec::as_slice);
        list.iter().enumerate().map(move |(index, value)| Node {
            value,
            up: Some(self),
            step: Step::Index(index),
        })
    }

    /// The entries of a map.
    pub fn entries<'q>(&'q self) -> impl Iterator<Item = (&'v str, Node<'v, 'q>)>
    where
        'v: 'q,
    {
        self.value
            .as_object()
            .into_iter()
            .flatten()
            .map(move |(key, value)| {
                let node = Node {
                    value,
                    up: Some(self),
                    step: Step::Key(key),
                };
                (key.as_str(), node)
            })
    }

    /// The list, or an empty one.
    pub fn list(&self) -> &'v [Value] {
        self.value.as_array().map_or(&[], Vec::as_slice)
    }

    /// The text, or "".
    pub fn text(&self) -> &'v str {
        self.value.as_str().unwrap_or("")
    }

    pub fn int(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub fn flag(&self) -> bool {
        self.value.as_bool().unwrap_or(false)
    }

    /// Whether anything but null stands here.
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Absent, null, "", or an empty list or map.
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        }
    }

    pub fn quantity(&self) -> Option<Quantity> {
        match self.value {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => number.to_string().parse().ok(),
            _ => None,
        }
    }

    /// The way here as text.
    pub fn path(&self) -> Path {
        let Some(up) = self.up else {
            return match self.step {
                Step::Field(name) | Step::Key(name) => Path::new(name),
                Step::Index(index) => Path::default().index(index),
            };
        };
        let path = up.path();
        match self.step {
            Step::Field(name) => path.child(name),
            Step::Index(index) => path.index(index),
            Step::Key(key) => path.key(key),
        }
    }

    /// `Invalid value: "…": why`, with this value.
    pub fn invalid(&self, errors: &mut ErrorList, why: impl Into<String>) {
        errors.push(Error::invalid(&self.path(), self.value, why));
    }

    /// The same with another value to show.
    pub fn invalid_as(
        &self,
        errors: &mut ErrorList,
        value: impl Serialize,
        why: impl Into<String>,
    ) {
        errors.push(Error::invalid(&self.path(), value, why));
    }

    pub fn required(&self, errors: &mut ErrorList, why: &str) {
        errors.push(Error::required(&self.path(), why));
    }

    pub fn forbidden(&self, errors: &mut ErrorList, why: impl Into<String>) {
        errors.push(Error::forbidden(&self.path(), why));
    }

    pub fn duplicate(&self, errors: &mut ErrorList) {
        errors.push(Error::duplicate(&self.path(), self.value));
    }

    pub fn not_found(&self, errors: &mut ErrorList) {
        errors.push(Error::not_found(&self.path(), self.value));
    }

    pub fn not_supported(&self, errors: &mut ErrorList, valid: &[&str]) {
        let value = match self.value {
            Value::Null => "",
            _ => self.text(),
        };
        errors.push(Error::not_supported(&self.path(), value, valid));
    }

    /// A text that must be given; answers whether it is.
    pub fn present(&self, errors: &mut ErrorList) -> bool {
        self.present_or(errors, "")
    }

    /// The same with a reason.
    pub fn present_or(&self, errors: &mut ErrorList, why: &str) -> bool {
        if self.is_empty() {
            self.required(errors, why);
            return false;
        }
        true
    }

    /// One of a few, which must be given.
    pub fn one_of(&self, errors: &mut ErrorList, valid: &[&str]) {
        if self.text().is_empty() {
            self.required(errors, "");
        } else if !valid.contains(&self.text()) {
            self.not_supported(errors, valid);
        }
    }

    /// One of a few; nothing given is refused as a value like any other.
    pub fn known(&self, errors: &mut ErrorList, valid: &[&str]) {
        if !valid.contains(&self.text()) {
            self.not_supported(errors, valid);
        }
    }

    /// One of a few, or nothing.
    pub fn known_if_set(&self, errors: &mut ErrorList, valid: &[&str]) {
        if self.is_set() {
            self.known(errors, valid);
        }
    }

    pub fn nonnegative(&self, errors: &mut ErrorList) {
        if self.int().is_some_and(|number| number < 0) {
            self.invalid(errors, "must be greater than or equal to 0");
        }
    }

    pub fn between(&self, errors: &mut ErrorList, low: i64, high: i64, why: &str) {
        if self
            .int()
            .is_some_and(|number| !(low..=high).contains(&number))
        {
            self.invalid(errors, why);
        }
    }

    /// A text whose syntax `rule` checks, message by message.
    pub fn syntax(&self, errors: &mut ErrorList, rule: impl Fn(&str) -> Vec<String>) {
        for why in rule(self.text()) {
            self.invalid_as(errors, self.text(), why);
        }
    }

    /// A text that must be given and be well formed.
    pub fn named(&self, errors: &mut ErrorList, rule: impl Fn(&str) -> Vec<String>) {
        if self.present(errors) {
            self.syntax(errors, rule);
        }
    }

    /// A text that must be well formed if given.
    pub fn syntax_if_set(&self, errors: &mut ErrorList, rule: impl Fn(&str) -> Vec<String>) {
        if !self.text().is_empty() {
            self.syntax(errors, rule);
        }
    }

    /// An amount that is not below zero.
    pub fn amount(&self, errors: &mut ErrorList) {
        if self.quantity().is_some_and(|amount| amount.sign() < 0) {
            self.invalid(errors, "must be greater than or equal to 0");
        }
    }

    /// The same value as before.
    pub fn unchanged(&self, errors: &mut ErrorList, old: &Value) {
        if !super::tree::semantically_equal(self.value, old) {
            self.invalid(errors, IMMUTABLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_are_told_at_the_path_they_were_found_at() {
        let object =
            json!({"rules": [{"ports": [{"port": -1, "name": "A"}], "labels": {"a/b": 1}}]});
        let spec = Node::root(&object, "spec");
        let mut errors = ErrorList::new();
        let rules = spec.at("rules");
        for rule in rules.items() {
            let ports = rule.at("ports");
            for port in ports.items() {
                port.at("port").nonnegative(&mut errors);
                port.at("name").known(&mut errors, &["x", "y"]);
                port.at("protocol").present(&mut errors);
            }
            let labels = rule.at("labels");
            for (key, value) in labels.entries() {
                assert_eq!(key, "a/b");
                value.forbidden(&mut errors, "no");
            }
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.rules[0].ports[0].port: Invalid value: -1: must be greater than or equal to 0",
                "spec.rules[0].ports[0].name: Unsupported value: \"A\": supported values: \"x\", \"y\"",
                "spec.rules[0].ports[0].protocol: Required value",
                "spec.rules[0].labels[a/b]: Forbidden: no",
            ]
        );
        assert_eq!(Node::root(&object, "").at("rules").path().as_str(), "rules");
    }
}
