//! Owns: label selectors: what they hold and what they match. `parser` reads the query syntax.

use super::parser::{Parser, Token};
use crate::field::quote;
use crate::name;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// Something labels can be looked up in.
pub trait Labels {
    /// The value of a label.
    fn get_label(&self, key: &str) -> Option<&str>;
}

impl Labels for Map<String, Value> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl Labels for Value {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl Labels for BTreeMap<String, String> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Labels for HashMap<String, String> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl<L: Labels + ?Sized> Labels for &L {
    fn get_label(&self, key: &str) -> Option<&str> {
        (**self).get_label(key)
    }
}

impl<L: Labels> Labels for Option<L> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.as_ref()?.get_label(key)
    }
}

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `key=value`, `key==value`
    Equals,
    /// `key!=value`
    NotEquals,
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`
    NotIn,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>1`
    GreaterThan,
    /// `key<1`
    LessThan,
}

/// One comparison of a label selector; all of them must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// Comparison.
    pub operator: Operator,
    /// Values, sorted and without repeats; one for the equality and order operators.
    pub values: Vec<String>,
}

impl Requirement {
    pub(super) fn new(
        key: &str,
        operator: Operator,
        mut values: Vec<String>,
    ) -> Result<Self, String> {
        if let Some(message) = name::qualified_name(key).into_iter().next() {
            return Err(format!("key: Invalid value: {}: {message}", quote(key)));
        }
        for value in &values {
            if let Some(message) = name::label_value(value).into_iter().next() {
                return Err(format!(
                    "values[0][{key}]: Invalid value: {}: {message}",
                    quote(value)
                ));
            }
        }
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                return Err(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".to_owned()
                );
            }
            Operator::GreaterThan | Operator::LessThan
                if values.iter().any(|v| v.parse::<i64>().is_err()) =>
            {
                return Err(format!(
                    "values[0]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer",
                    quote(values.first().map_or("", String::as_str))
                ));
            }
            _ => {}
        }
        values.sort();
        values.dedup();
        Ok(Self {
            key: key.to_owned(),
            operator,
            values,
        })
    }

    fn matches(&self, labels: &impl Labels) -> bool {
        let found = labels.get_label(&self.key);
        let among = |value: &str| self.values.iter().any(|v| v == value);
        let order = |value: &str| {
            Some((
                value.parse::<i64>().ok()?,
                self.values.first()?.parse::<i64>().ok()?,
            ))
        };
        match (self.operator, found) {
            (Operator::Equals | Operator::In, Some(value)) => among(value),
            (Operator::NotEquals | Operator::NotIn, Some(value)) => !among(value),
            (Operator::Exists, found) => found.is_some(),
            (Operator::DoesNotExist, found) => found.is_none(),
            (Operator::GreaterThan, Some(value)) => order(value).is_some_and(|(a, b)| a > b),
            (Operator::LessThan, Some(value)) => order(value).is_some_and(|(a, b)| a < b),
            (Operator::NotEquals | Operator::NotIn, None) => true,
            (_, None) => false,
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.values.first().map_or("", String::as_str);
        match self.operator {
            Operator::Equals => write!(f, "{}={first}", self.key),
            Operator::NotEquals => write!(f, "{}!={first}", self.key),
            Operator::In => write!(f, "{} in ({})", self.key, self.values.join(",")),
            Operator::NotIn => write!(f, "{} notin ({})", self.key, self.values.join(",")),
            Operator::Exists => f.write_str(&self.key),
            Operator::DoesNotExist => write!(f, "!{}", self.key),
            Operator::GreaterThan => write!(f, "{}>{first}", self.key),
            Operator::LessThan => write!(f, "{}<{first}", self.key),
        }
    }
}

/// A label selector: every requirement must hold. The default one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects no object.
    pub fn nothing() -> Self {
        Self {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    /// Parses the query syntax `a=b,c!=d,e in (f,g),!h,i>3`.
    ///
    /// # Errors
    /// A text in upstream's words; the caller wraps it as `unable to parse requirement: …` or a bad request.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { rest: text };
        let mut requirements = Vec::new();
        loop {
            match parser.peek() {
                (Token::End, _) if requirements.is_empty() => break,
                (Token::Word | Token::Not, _) => requirements.push(parser.requirement()?),
                (_, literal) => {
                    return Err(format!(
                        "found '{literal}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
            match parser.next() {
                (Token::End, _) => break,
                (Token::Comma, _) => match parser.peek() {
                    (Token::Word | Token::Not, _) => {}
                    (_, literal) => {
                        return Err(format!("found '{literal}', expected: identifier after ','"));
                    }
                },
                (_, literal) => {
                    return Err(format!(
                        "found '{literal}', expected: ',' or 'end of string'"
                    ));
                }
            }
        }
        requirements.sort_by(|a: &Requirement, b| a.key.cmp(&b.key));
        Ok(Self {
            requirements,
            nothing: false,
        })
    }

    /// Reads a metav1.LabelSelector. Absent (null) selects nothing, empty selects everything
    /// (metav1.LabelSelectorAsSelector).
    ///
    /// # Errors
    /// A text that says which requirement is malformed.
    pub fn from_value(selector: &Value) -> Result<Self, String> {
        let Some(selector) = selector.as_object() else {
            return Ok(Self::nothing());
        };
        let mut requirements = Vec::new();
        if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in labels {
                let value = value.as_str().unwrap_or("").to_owned();
                requirements.push(Requirement::new(key, Operator::In, vec![value])?);
                if let Some(last) = requirements.last_mut() {
                    last.operator = Operator::Equals;
                }
            }
        }
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        for expression in expressions.map(Vec::as_slice).unwrap_or_default() {
            let word = expression
                .get("operator")
                .and_then(Value::as_str)
                .unwrap_or("");
            let operator = match word {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                _ => {
                    return Err(format!(
                        "{} is not a valid label selector operator",
                        quote(word)
                    ));
                }
            };
            let values = expression
                .get("values")
                .and_then(Value::as_array)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let values: Vec<String> = values
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            if matches!(operator, Operator::Exists | Operator::DoesNotExist) && !values.is_empty() {
                return Err(
                    "values: Invalid value: values set must be empty for exists and does not exist"
                        .to_owned(),
                );
            }
            let key = expression.get("key").and_then(Value::as_str).unwrap_or("");
            requirements.push(Requirement::new(key, operator, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self {
            requirements,
            nothing: false,
        })
    }

    /// Selects objects that have all of these labels; malformed ones simply never match.
    pub fn from_labels<K: Into<String>, V: Into<String>>(
        labels: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut requirements: Vec<Requirement> = labels
            .into_iter()
            .map(|(key, value)| Requirement {
                key: key.into(),
                operator: Operator::Equals,
                values: vec![value.into()],
            })
            .collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self {
            requirements,
            nothing: false,
        }
    }

    /// Whether every requirement holds for these labels; `None` is no labels.
    pub fn matches(&self, labels: &impl Labels) -> bool {
        !self.nothing
            && self
                .requirements
                .iter()
                .all(|requirement| requirement.matches(labels))
    }

    /// Whether the labels of a whole object match.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(&crate::meta::labels(object))
    }

    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(selector: &str, labels: Value, expected: bool) {
        let parsed = LabelSelector::parse(selector).expect("parses");
        assert_eq!(parsed.matches(&labels), expected, "{selector} on {labels}");
        let again = LabelSelector::parse(&parsed.to_string()).expect("own output parses");
        assert_eq!(again, parsed);
    }

    #[test]
    fn each_operator_matches_as_upstream() {
        check("", json!({}), true);
        check("a=b", json!({"a": "b"}), true);
        check("a==b", json!({"a": "c"}), false);
        check("a=", json!({"a": ""}), true);
        check("a!=b", json!({}), true);
        check("a!=b", json!({"a": "b"}), false);
        check("a in (x, y)", json!({"a": "y"}), true);
        check("a in (x,y)", json!({}), false);
        check("a notin (x,y)", json!({}), true);
        check("a notin (x,)", json!({"a": ""}), false);
        check("a", json!({"a": ""}), true);
        check("!a", json!({"a": ""}), false);
        check("! a", json!({}), true);
        check("a>3,b", json!({"a": "4", "b": ""}), true);
        check("a<3", json!({"a": "4"}), false);
        check("example.com/x=1", json!({"example.com/x": "1"}), true);
    }

    #[test]
    fn malformed_selectors_are_refused() {
        for text in [
            "a=b,",
            ",",
            "a b",
            "a in x",
            "a in (x",
            "=b",
            "a=b=c",
            "a>x",
            "a in (x y)",
            "a=!b",
            "-a=b",
            "a=b!",
            "()",
        ] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_object_selector_combines_labels_and_expressions() {
        let selector = json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]});
        let selector = LabelSelector::from_value(&selector).expect("valid");
        assert!(selector.matches(&json!({"a": "1", "b": ""})));
        assert!(!selector.matches(&json!({"a": "1"})));
        assert!(
            LabelSelector::from_value(&json!({}))
                .expect("valid")
                .is_everything()
        );
        assert!(
            !LabelSelector::from_value(&Value::Null)
                .expect("valid")
                .matches(&json!({}))
        );
        assert!(
            LabelSelector::from_value(
                &json!({"matchExpressions": [{"key": "a", "operator": "In"}]})
            )
            .is_err()
        );
        assert!(
            LabelSelector::from_value(
                &json!({"matchExpressions": [{"key": "a", "operator": "X"}]})
            )
            .is_err()
        );
    }
}
