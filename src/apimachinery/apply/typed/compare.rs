//! Owns: what differs between two objects, as two sets of fields.

use super::super::set::{self, FieldSet};
use super::{Object, Shape, elements, field_key, is_empty};
use crate::schema::{Field, ListType, Message};
use serde_json::Value;
use smallvec::SmallVec;
use std::cmp::Ordering;

/// What differs between two objects.
#[derive(Debug, Default, PartialEq)]
pub struct Comparison {
    /// Fields with another value, or only in the second.
    pub changed: FieldSet,
    /// Fields only in the first.
    pub removed: FieldSet,
}

impl Comparison {
    /// Whether the objects are the same.
    pub fn is_same(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// Compares two objects of a type.
pub fn compare(old: &Value, new: &Value, message: &Message) -> Comparison {
    let (changed, removed) = compare_maps(old.as_object(), new.as_object(), Shape::Struct(message));
    Comparison {
        changed: FieldSet::from_children(changed),
        removed: FieldSet::from_children(removed),
    }
}

/// The nodes a comparison adds to the two sets.
type Nodes = (Option<Value>, Option<Value>);

fn leaf(old: &Value, new: &Value) -> Nodes {
    ((old != new).then(|| Value::Object(Object::new())), None)
}

fn compare_values(old: Option<&Value>, new: Option<&Value>, shape: Shape<'_>) -> Nodes {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, Some(new)) => return (Some(whole(new, shape)), None),
        (Some(old), None) => return (None, Some(whole(old, shape))),
        (None, None) => return (None, None),
    };
    // Two empty values are a leaf, which keeps null and empty apart.
    if is_empty(Some(old)) && is_empty(Some(new)) {
        return leaf(old, new);
    }
    let fits =
        |test: fn(&Value) -> bool| (old.is_null() || test(old)) && (new.is_null() || test(new));
    let nodes = match shape {
        Shape::Struct(_) | Shape::Map(_) | Shape::Deduced if fits(Value::is_object) => {
            compare_maps(old.as_object(), new.as_object(), shape)
        }
        Shape::List(list) if fits(Value::is_array) => {
            match compare_lists(items_of(old), items_of(new), list) {
                Some(nodes) => nodes,
                None => return leaf(old, new),
            }
        }
        _ => return leaf(old, new),
    };
    (set::node(nodes.0, false), set::node(nodes.1, false))
}

/// The node of a value that only one side has: it and everything below it.
fn whole(value: &Value, shape: Shape<'_>) -> Value {
    let mut nodes = Object::new();
    match (shape, value) {
        (Shape::Struct(_) | Shape::Map(_) | Shape::Deduced, Value::Object(map)) => {
            let mut fields = Fields::of(shape);
            for (name, value) in map {
                nodes.insert(field_key(name), whole(value, fields.next(name)));
            }
        }
        (Shape::List(list), Value::Array(items)) => {
            let Some(elements) = elements(list, items) else {
                return Value::Object(nodes);
            };
            for (element, item) in elements.into_iter().zip(items) {
                match nodes.entry(element) {
                    serde_json::map::Entry::Vacant(entry) => {
                        entry.insert(whole(item, Shape::of(&list.item)));
                    }
                    // Items that are there several times are owned as one.
                    serde_json::map::Entry::Occupied(mut entry) => {
                        entry.insert(Value::Object(Object::new()));
                    }
                }
            }
        }
        _ => {}
    }
    set::node(nodes, true).unwrap_or_default()
}

/// The shapes of a map's fields, asked for in the order of their names: one pass over a struct's sorted table.
struct Fields<'a> {
    shape: Shape<'a>,
    rest: &'a [Field],
}

impl<'a> Fields<'a> {
    fn of(shape: Shape<'a>) -> Self {
        let rest = match shape {
            Shape::Struct(message) => &message.fields[..],
            _ => &[],
        };
        Self { shape, rest }
    }

    fn next(&mut self, name: &str) -> Shape<'a> {
        if !matches!(self.shape, Shape::Struct(_)) {
            return self.shape.field(name);
        }
        while let Some((field, rest)) = self.rest.split_first() {
            match (*field.name).cmp(name) {
                Ordering::Less => self.rest = rest,
                Ordering::Equal => {
                    self.rest = rest;
                    return Shape::of_field(field);
                }
                Ordering::Greater => break,
            }
        }
        Shape::Deduced
    }
}

fn compare_maps(old: Option<&Object>, new: Option<&Object>, shape: Shape<'_>) -> (Object, Object) {
    let (mut changed, mut removed) = (Object::new(), Object::new());
    let mut fields = Fields::of(shape);
    let (mut old, mut new) = (
        old.into_iter().flatten().peekable(),
        new.into_iter().flatten().peekable(),
    );
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return (changed, removed),
        };
        let before = if order == Ordering::Greater {
            None
        } else {
            old.next()
        };
        let after = if order == Ordering::Less {
            None
        } else {
            new.next()
        };
        let Some((name, _)) = before.or(after) else {
            return (changed, removed);
        };
        let values = (
            before.map(|(_, value)| value),
            after.map(|(_, value)| value),
        );
        let (gained, lost) = compare_values(values.0, values.1, fields.next(name));
        if let Some(gained) = gained {
            changed.insert(field_key(name), gained);
        }
        if let Some(lost) = lost {
            removed.insert(field_key(name), lost);
        }
    }
}

fn items_of(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The positions of items by element, in the order of the elements.
fn positions(elements: &[String]) -> Vec<(&str, usize)> {
    let mut positions: Vec<(&str, usize)> = elements
        .iter()
        .enumerate()
        .map(|(at, e)| (e.as_str(), at))
        .collect();
    positions.sort_unstable();
    positions
}

/// Takes the positions of this element off the front.
fn take_positions(positions: &mut &[(&str, usize)], element: &str) -> SmallVec<[usize; 2]> {
    let count = positions.iter().take_while(|(e, _)| *e == element).count();
    let (taken, rest) = positions.split_at(count);
    *positions = rest;
    taken.iter().map(|(_, at)| *at).collect()
}

fn compare_lists(old: &[Value], new: &[Value], list: &ListType) -> Option<(Object, Object)> {
    let (old_elements, new_elements) = (elements(list, old)?, elements(list, new)?);
    let (old_positions, new_positions) = (positions(&old_elements), positions(&new_elements));
    let (mut before, mut after) = (&old_positions[..], &new_positions[..]);
    let (mut changed, mut removed) = (Object::new(), Object::new());
    let shape = Shape::of(&list.item);
    while let Some(element) = match (before.first(), after.first()) {
        (Some((a, _)), Some((b, _))) => Some(*a.min(b)),
        (a, b) => a.or(b).map(|(element, _)| *element),
    } {
        let (was, is) = (
            take_positions(&mut before, element),
            take_positions(&mut after, element),
        );
        let (first_old, first_new) = (
            was.first().map(|at| &old[*at]),
            is.first().map(|at| &new[*at]),
        );
        let mark = || Some(Value::Object(Object::new()));
        let (gained, lost) = match (was.len(), is.len()) {
            (0 | 1, 0 | 1) => compare_values(first_old, first_new, shape),
            // Items that are there several times are owned as one.
            (2.., 2..) => {
                let same =
                    was.len() == is.len() && was.iter().zip(&is).all(|(a, b)| old[*a] == new[*b]);
                (if same { None } else { mark() }, None)
            }
            (2.., _) => (compare_values(None, first_new, shape).0, mark()),
            (_, _) => (mark(), compare_values(first_old, None, shape).1),
        };
        if let Some(gained) = gained {
            changed.insert(element.to_owned(), gained);
        }
        if let Some(lost) = lost {
            removed.insert(element.to_owned(), lost);
        }
    }
    Some((changed, removed))
}
