//! Paths into custom objects as definitions write them: `.spec.replicas`, `.status.conditions[?(@.type=="Ready")].status`.

use apimachinery::Value;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    All,
    /// Items whose member (by dots) equals a text.
    Where(Vec<String>, String),
}

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Vec<Step>);

impl JsonPath {
    /// `None` for what this subset of JSONPath does not know.
    pub fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = end_of_name(after);
                let name = after[..end].replace("\\.", ".");
                if name == "*" {
                    steps.push(Step::All);
                } else if !name.is_empty() {
                    steps.push(Step::Field(name));
                }
                rest = &after[end..];
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after)?;
                steps.push(bracket(&after[..end])?);
                rest = &after[end + 1..];
            } else if steps.is_empty() {
                let end = end_of_name(rest);
                steps.push(Step::Field(rest[..end].to_owned()));
                rest = &rest[end..];
            } else {
                return None;
            }
        }
        Some(Self(steps))
    }

    /// All values the path leads to.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for step in &self.0 {
            found = found
                .into_iter()
                .flat_map(|value| next(value, step))
                .filter(|value| !value.is_null())
                .collect();
        }
        found
    }
}

fn end_of_name(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '\\' => escaped = true,
            '.' | '[' if !escaped => return at,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Where the bracket that was opened ends; quotes hide brackets.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Ok(index) = text.parse() {
        return Some(Step::Index(index));
    }
    if let Some(condition) = text
        .strip_prefix("?(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        let (left, right) = condition.split_once("==")?;
        let member = left.trim().strip_prefix("@.")?;
        let names = member.split('.').map(str::to_owned).collect();
        return Some(Step::Where(names, unquote(right.trim())));
    }
    let name = unquote(text);
    (name != text).then_some(Step::Field(name))
}

fn unquote(text: &str) -> String {
    for quote in ['"', '\''] {
        if let Some(inner) = text
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
        {
            return inner.to_owned();
        }
    }
    text.to_owned()
}

fn next<'a>(value: &'a Value, step: &Step) -> Vec<&'a Value> {
    match (step, value) {
        (Step::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
        (Step::Index(index), Value::Array(list)) => list.get(*index).into_iter().collect(),
        (Step::All, Value::Array(list)) => list.iter().collect(),
        (Step::All, Value::Object(map)) => map.values().collect(),
        (Step::Where(names, wanted), Value::Array(list)) => list
            .iter()
            .filter(|item| {
                let mut member = *item;
                for name in names {
                    match member.get(name) {
                        Some(next) => member = next,
                        None => return false,
                    }
                }
                match member {
                    Value::String(text) => text == wanted,
                    other => other.to_string() == *wanted,
                }
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(path: &str, expect: Value) {
        let object = json!({"spec": {"replicas": 3, "a.b": 1, "parts": [{"name": "x"}, {"name": "y"}]},
            "status": {"conditions": [{"type": "Old", "status": "False"}, {"type": "Ready", "status": "True"}]}});
        let path = JsonPath::parse(path).expect("a path");
        assert_eq!(json!(path.find(&object)), expect);
    }

    #[test]
    fn paths_lead_through_members_items_and_conditions() {
        check(".spec.replicas", json!([3]));
        check(".spec.parts[*].name", json!(["x", "y"]));
        check(".spec.parts[1].name", json!(["y"]));
        check(".spec['a.b']", json!([1]));
        check(".spec.a\\.b", json!([1]));
        check(
            ".status.conditions[?(@.type==\"Ready\")].status",
            json!(["True"]),
        );
        check(".spec.none.deeper", json!([]));
        assert_eq!(JsonPath::parse(".spec[what?]"), None);
    }
}
