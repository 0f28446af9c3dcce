//! Owns: merging a configuration into a live object.

use super::{Shape, elements};
use crate::schema::{ListType, Message};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// The live object with the configuration merged in: the configuration wins, list items keep the live order as far as
/// the configuration's order allows.
pub fn merge(live: Value, config: Value, message: &Message) -> Value {
    merge_values(live, config, Shape::Struct(message))
}

fn merge_values(live: Value, config: Value, shape: Shape<'_>) -> Value {
    match (shape, live, config) {
        (
            Shape::Struct(_) | Shape::Map(_) | Shape::Deduced,
            Value::Object(mut live),
            Value::Object(config),
        ) => {
            for (name, value) in config {
                let merged = match live.remove(&name) {
                    Some(old) => merge_values(old, value, shape.field(&name)),
                    None => value,
                };
                live.insert(name, merged);
            }
            Value::Object(live)
        }
        (Shape::List(list), Value::Array(live), Value::Array(config)) => {
            merge_lists(live, config, list)
        }
        (_, _, config) => config,
    }
}

fn merge_lists(live: Vec<Value>, config: Vec<Value>, list: &ListType) -> Value {
    let (Some(live_elements), Some(config_elements)) =
        (elements(list, &live), elements(list, &config))
    else {
        return Value::Array(config);
    };
    let shape = Shape::of(&list.item);
    let of_config: HashSet<&String> = config_elements.iter().collect();
    let in_config = |element: &String| of_config.contains(element);
    let mut first_live: HashMap<&String, usize> = HashMap::with_capacity(live_elements.len());
    for (at, element) in live_elements.iter().enumerate() {
        first_live.entry(element).or_insert(at);
    }
    let mut shared = config_elements
        .iter()
        .filter(|element| first_live.contains_key(element))
        .peekable();
    let mut live: Vec<Option<Value>> = live.into_iter().map(Some).collect();
    let mut config: Vec<Option<Value>> = config.into_iter().map(Some).collect();
    let (mut out, mut merged) = (
        Vec::with_capacity(live.len() + config.len()),
        HashSet::<&String>::new(),
    );
    let (mut l, mut r) = (0, 0);
    while l < live.len() || r < config.len() {
        if l < live.len() && r < config.len() && live_elements[l] != config_elements[r] {
            let here = &live_elements[l];
            if in_config(here) && shared.peek().is_some_and(|next| *next != here) {
                // In both, but not the one whose turn it is.
                l += 1;
                continue;
            }
        }
        let turn = l < live.len() && (r >= config.len() || live_elements[l] != config_elements[r]);
        if turn {
            let here = &live_elements[l];
            if !in_config(here) {
                out.extend(live[l].take());
                l += 1;
                continue;
            }
            if merged.contains(here) {
                l += 1;
            }
        }
        if r < config.len() {
            let here = &config_elements[r];
            merged.insert(here);
            if let Some(value) = config[r].take() {
                let old = first_live.get(here).and_then(|at| live[*at].take());
                out.push(match old {
                    Some(old) => merge_values(old, value, shape),
                    None => value,
                });
            }
            if l < live.len() && live_elements[l] == *here {
                l += 1;
            }
            r += 1;
            shared.next_if(|next| *next == here);
        } else if l < live.len()
            && in_config(&live_elements[l])
            && !merged.contains(&live_elements[l])
        {
            l += 1;
        }
    }
    Value::Array(out)
}
