//! Owns: label and field selectors: the query syntax, metav1.LabelSelector, and matching. Parsing is bounded by the
//! length of its input; matching never allocates.

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
    fn new(key: &str, operator: Operator, mut values: Vec<String>) -> Result<Self, String> {
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    End,
    Comma,
    Open,
    Close,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    Word,
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> (Token, &'a str) {
        Parser { rest: self.rest }.next()
    }

    fn next(&mut self) -> (Token, &'a str) {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        const SYMBOLS: &[(&str, Token)] = &[
            ("==", Token::Equals),
            ("!=", Token::NotEquals),
            ("=", Token::Equals),
            ("!", Token::Not),
            (",", Token::Comma),
            ("(", Token::Open),
            (")", Token::Close),
            (">", Token::Greater),
            ("<", Token::Less),
        ];
        if text.is_empty() {
            self.rest = text;
            return (Token::End, "");
        }
        for (symbol, token) in SYMBOLS {
            if let Some(rest) = text.strip_prefix(symbol) {
                self.rest = rest;
                return (*token, &text[..symbol.len()]);
            }
        }
        let special = |c: char| {
            matches!(
                c,
                ' ' | '\t' | '\r' | '\n' | '=' | '!' | ',' | '(' | ')' | '>' | '<'
            )
        };
        let end = text.find(special).unwrap_or(text.len());
        self.rest = &text[end..];
        (Token::Word, &text[..end])
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let (mut token, mut literal) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, literal) = self.next();
        }
        if token != Token::Word {
            return Err(format!("found '{literal}', expected: identifier"));
        }
        let key = literal;
        if let Some(message) = name::qualified_name(key).into_iter().next() {
            return Err(format!("key: Invalid value: {}: {message}", quote(key)));
        }
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = match self.next() {
            (Token::Equals, _) => Operator::Equals,
            (Token::NotEquals, _) => Operator::NotEquals,
            (Token::Greater, _) => Operator::GreaterThan,
            (Token::Less, _) => Operator::LessThan,
            (Token::Word, "in") => Operator::In,
            (Token::Word, "notin") => Operator::NotIn,
            (_, literal) => {
                return Err(format!(
                    "found '{literal}', expected: in, notin, =, ==, !=, gt, lt"
                ));
            }
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(key, operator, values)
    }

    fn exact_value(&mut self) -> Result<String, String> {
        match self.peek() {
            (Token::End | Token::Comma, _) => Ok(String::new()),
            (Token::Word, literal) => {
                self.next();
                Ok(literal.to_owned())
            }
            (_, literal) => Err(format!("found '{literal}', expected: identifier")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        let (token, literal) = self.next();
        if token != Token::Open {
            return Err(format!("found '{literal}' expected: '('"));
        }
        let mut values = Vec::new();
        let mut need_value = true;
        loop {
            match self.next() {
                (Token::Word, literal) if need_value => {
                    values.push(literal.to_owned());
                    need_value = false;
                }
                (Token::Comma, _) => {
                    if need_value {
                        values.push(String::new());
                    }
                    need_value = true;
                }
                (Token::Close, _) => {
                    if need_value {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                (_, literal) => {
                    return Err(format!(
                        "found '{literal}', expected: ',', ')' or identifier"
                    ));
                }
            }
        }
    }
}

/// One comparison of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// Field label, `metadata.name`.
    pub field: String,
    /// Text to compare with.
    pub value: String,
    /// True for `=`, false for `!=`.
    pub equal: bool,
}

/// A field selector: every comparison must hold. The default one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    /// Selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects objects whose field has this value.
    pub fn equals(field: &str, value: &str) -> Self {
        Self {
            requirements: vec![FieldRequirement {
                field: field.to_owned(),
                value: value.to_owned(),
                equal: true,
            }],
        }
    }

    /// Parses `a=b,c==d,e!=f`; `\,`, `\=` and `\\` stand for themselves in values.
    ///
    /// # Errors
    /// `invalid selector: …` in upstream's words (fields.ParseSelector).
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let invalid = || format!("invalid selector: '{text}'; can't understand '{term}'");
            let at = find_operator(term).ok_or_else(invalid)?;
            let (field, operator) = (&term[..at], &term[at..]);
            let (equal, value) = if let Some(value) = operator.strip_prefix("!=") {
                (false, value)
            } else if let Some(value) = operator.strip_prefix("==") {
                (true, value)
            } else {
                (true, operator.strip_prefix('=').ok_or_else(invalid)?)
            };
            requirements.push(FieldRequirement {
                field: field.to_owned(),
                value: unescape(value)?,
                equal,
            });
        }
        requirements.sort_by(|a, b| a.field.cmp(&b.field));
        Ok(Self { requirements })
    }

    /// Whether every comparison holds; `get` gives a field's text, `None` being an absent one, which equals "".
    pub fn matches<'a>(&self, mut get: impl FnMut(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|r| (get(&r.field).unwrap_or("") == r.value) == r.equal)
    }

    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The value this field must have, if the selector demands one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|r| r.equal && r.field == field)
            .map(|r| r.value.as_str())
    }

    /// The comparisons, sorted by field.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, r) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if r.equal { "=" } else { "!=" };
            let value = r
                .value
                .replace('\\', "\\\\")
                .replace(',', "\\,")
                .replace('=', "\\=");
            write!(f, "{comma}{}{operator}{value}", r.field)?;
        }
        Ok(())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn find_operator(term: &str) -> Option<usize> {
    term.char_indices()
        .find(|(at, _)| term[*at..].starts_with('=') || term[*at..].starts_with("!="))
        .map(|(at, _)| at)
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => {
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{c}"
                    ));
                }
                None => {
                    return Err("invalid field selector: invalid escape sequence: \\".to_owned());
                }
            },
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {c}"
                ));
            }
            c => out.push(c),
        }
    }
    Ok(out)
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

    #[test]
    fn field_selectors_compare_and_unescape() {
        let selector =
            FieldSelector::parse(r"metadata.name=a\,b,spec.nodeName!=n,status.phase==Running")
                .expect("valid");
        let get = |field: &str| match field {
            "metadata.name" => Some("a,b"),
            "status.phase" => Some("Running"),
            _ => None,
        };
        assert!(selector.matches(get));
        assert_eq!(selector.exact("metadata.name"), Some("a,b"));
        assert_eq!(
            FieldSelector::parse(&selector.to_string()).expect("own output"),
            selector
        );
        assert!(FieldSelector::parse("a").is_err());
        assert!(FieldSelector::parse(r"a=\x").is_err());
        assert!(FieldSelector::parse("").expect("empty").is_everything());
    }
}
