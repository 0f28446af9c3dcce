//! Owns: sets of fields in the form of `fieldsV1`: a tree whose keys are path elements.
//!
//! | element | stands for |
//! |---|---|
//! | `f:name` | a field of a struct or an entry of a map |
//! | `k:{"name":"a"}` | the item of a keyed list |
//! | `v:"a"` | the item of a set |
//! | `i:0` | an item by position |
//!
//! A node without children is a member of the set; one with children is a member when it has the entry `.`. The root
//! is never a member. A node that is no member and has no children does not exist.

use crate::field::quote;
use serde_json::{Map, Value};

/// The entry that makes a node with children a member.
const SELF: &str = ".";

type Node = Map<String, Value>;

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSet(Node);

fn is_member(node: &Node) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

fn has_children(node: &Node) -> bool {
    node.len() > usize::from(node.contains_key(SELF))
}

/// A node of these children; none when it would not exist.
pub(super) fn node(mut children: Node, member: bool) -> Option<Value> {
    match (member, children.is_empty()) {
        (false, true) => None,
        (true, false) => {
            children.insert(SELF.to_owned(), Value::Object(Node::new()));
            Some(Value::Object(children))
        }
        _ => Some(Value::Object(children)),
    }
}

fn as_node(value: &Value) -> Option<&Node> {
    value.as_object()
}

impl FieldSet {
    /// No field.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set in this `fieldsV1`; none when it is not one.
    pub fn from_fields_v1(fields: Value) -> Option<Self> {
        fn valid(node: &Node) -> bool {
            node.iter().all(|(key, child)| match child {
                Value::Object(child) => {
                    (key == SELF && child.is_empty())
                        || (matches!(key.get(..2), Some("f:" | "k:" | "v:" | "i:")) && valid(child))
                }
                _ => false,
            })
        }
        match fields {
            Value::Object(node) if valid(&node) => Some(Self(node)),
            _ => None,
        }
    }

    /// The set as `fieldsV1`.
    pub fn into_fields_v1(self) -> Value {
        Value::Object(self.0)
    }

    /// The set as `fieldsV1`, borrowed.
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    pub(super) fn from_children(children: Node) -> Self {
        Self(children)
    }

    /// A set of whole paths of named fields, `["status", "metadata.name"]`.
    pub fn of_paths(paths: &[&str]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let mut child = Value::Object(Node::new());
            for name in path.split('.').rev() {
                let mut parent = Node::new();
                parent.insert(format!("f:{name}"), child);
                child = Value::Object(parent);
            }
            if let Value::Object(node) = child {
                set.union(Self(node));
            }
        }
        set
    }

    /// Whether there is no field in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the other's fields.
    pub fn union(&mut self, other: Self) {
        union(&mut self.0, other.0);
    }

    /// Removes the other's fields; fields below them stay.
    pub fn difference(&mut self, other: &Self) {
        difference(&mut self.0, &other.0, false);
    }

    /// Removes the other's fields and everything below them.
    pub fn recursive_difference(&mut self, other: &Self) {
        difference(&mut self.0, &other.0, true);
    }

    /// The fields in both.
    pub fn intersection(&self, other: &Self) -> Self {
        Self(intersection(&self.0, &other.0))
    }

    /// Every member as a path, `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        fn walk(node: &Node, prefix: &str, paths: &mut Vec<String>) {
            for (element, child) in node.iter().filter(|(element, _)| *element != SELF) {
                let Some(child) = as_node(child) else {
                    continue;
                };
                let path = format!("{prefix}{}", element_text(element));
                if is_member(child) {
                    paths.push(path.clone());
                }
                walk(child, &path, paths);
            }
        }
        let mut paths = Vec::new();
        walk(&self.0, "", &mut paths);
        paths
    }
}

/// A path element as upstream prints it.
fn element_text(element: &str) -> String {
    let rest = element.get(2..).unwrap_or("");
    match element.get(..2) {
        Some("k:") => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let pairs: Vec<String> = keys
                .iter()
                .map(|(key, value)| match value {
                    Value::String(text) => format!("{key}={}", quote(text)),
                    other => format!("{key}={other}"),
                })
                .collect();
            format!("[{}]", pairs.join(","))
        }
        Some("v:") => format!("[={rest}]"),
        Some("i:") => format!("[{rest}]"),
        _ => format!(".{rest}"),
    }
}

fn union(into: &mut Node, from: Node) {
    for (element, theirs) in from {
        if element == SELF {
            continue;
        }
        let Value::Object(theirs) = theirs else {
            continue;
        };
        match into.get_mut(&element) {
            Some(Value::Object(ours)) => {
                let member = is_member(ours) || is_member(&theirs);
                union(ours, theirs);
                set_member(ours, member);
            }
            _ => {
                into.insert(element, Value::Object(theirs));
            }
        }
    }
}

/// Writes down whether a node is a member; it has to exist.
fn set_member(node: &mut Node, member: bool) {
    if member && has_children(node) {
        if !node.contains_key(SELF) {
            node.insert(SELF.to_owned(), Value::Object(Node::new()));
        }
    } else {
        node.remove(SELF);
    }
}

fn difference(from: &mut Node, other: &Node, recursive: bool) {
    for (element, theirs) in other.iter().filter(|(element, _)| *element != SELF) {
        let (Some(Value::Object(ours)), Some(theirs)) = (from.get_mut(element), as_node(theirs))
        else {
            continue;
        };
        let removed = is_member(theirs);
        let member = is_member(ours) && !removed;
        if recursive && removed {
            from.remove(element);
            continue;
        }
        if has_children(ours) && has_children(theirs) {
            difference(ours, theirs, recursive);
        }
        if member || has_children(ours) {
            set_member(ours, member);
        } else {
            from.remove(element);
        }
    }
}

fn intersection(a: &Node, b: &Node) -> Node {
    let mut both = Node::new();
    for (element, ours) in a.iter().filter(|(element, _)| *element != SELF) {
        let (Some(ours), Some(theirs)) = (as_node(ours), b.get(element).and_then(as_node)) else {
            continue;
        };
        let children = intersection(ours, theirs);
        if let Some(found) = node(children, is_member(ours) && is_member(theirs)) {
            both.insert(element.clone(), found);
        }
    }
    both
}

/// What a set says of one child: whether it is a member, and the set below it.
pub(super) fn child<'a>(node: &'a Node, element: &str) -> (bool, Option<&'a Node>) {
    match node.get(element).and_then(as_node) {
        Some(child) => (
            is_member(child),
            Some(child).filter(|child| has_children(child)),
        ),
        None => (false, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(fields: Value) -> FieldSet {
        FieldSet::from_fields_v1(fields).expect("a set")
    }

    #[test]
    fn sets_are_joined_and_taken_apart() {
        let a = set(json!({"f:a": {}, "f:m": {".": {}, "f:x": {}, "f:y": {}}}));
        let b = set(json!({"f:a": {}, "f:b": {}, "f:m": {"f:x": {}}}));
        let mut both = a.clone();
        both.union(b.clone());
        assert_eq!(
            both,
            set(json!({"f:a": {}, "f:b": {}, "f:m": {".": {}, "f:x": {}, "f:y": {}}}))
        );
        let mut rest = a.clone();
        rest.difference(&b);
        assert_eq!(rest, set(json!({"f:m": {".": {}, "f:y": {}}})));
        rest.difference(&set(json!({"f:m": {"f:y": {}}})));
        assert_eq!(rest, set(json!({"f:m": {}})));
        assert_eq!(
            a.intersection(&b),
            set(json!({"f:a": {}, "f:m": {"f:x": {}}}))
        );
        let mut gone = a.clone();
        gone.difference(&a);
        assert!(gone.is_empty());
    }

    #[test]
    fn a_difference_leaves_what_is_below_unless_recursive() {
        let tree = set(json!({"f:m": {".": {}, "f:x": {"f:z": {}}}}));
        let mut plain = tree.clone();
        plain.difference(&set(json!({"f:m": {}})));
        assert_eq!(plain, set(json!({"f:m": {"f:x": {"f:z": {}}}})));
        let mut recursive = tree;
        recursive.recursive_difference(&FieldSet::of_paths(&["m"]));
        assert!(recursive.is_empty());
    }

    #[test]
    fn a_leaf_joined_with_children_stays_a_member() {
        let mut leaf = set(json!({"f:m": {}}));
        leaf.union(set(json!({"f:m": {"f:x": {}}})));
        assert_eq!(leaf, set(json!({"f:m": {".": {}, "f:x": {}}})));
    }

    #[test]
    fn paths_print_as_upstreams() {
        let tree = set(
            json!({"f:spec": {"f:l": {"k:{\"name\":\"a\",\"port\":80}": {".": {}, "f:image": {}}, "v:\"x\"": {}, "i:3": {}}}}),
        );
        assert_eq!(
            tree.paths(),
            [
                ".spec.l[3]",
                ".spec.l[name=\"a\",port=80]",
                ".spec.l[name=\"a\",port=80].image",
                ".spec.l[=\"x\"]"
            ]
        );
    }

    #[test]
    fn what_is_not_a_set_is_refused() {
        for fields in [
            json!(null),
            json!([]),
            json!({"x": {}}),
            json!({"f:a": 1}),
            json!({".": {"f:a": {}}}),
            json!({"f:a": {"é": {}}}),
        ] {
            assert!(FieldSet::from_fields_v1(fields).is_none());
        }
    }
}
