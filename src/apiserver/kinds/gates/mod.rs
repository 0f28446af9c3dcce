//! Fields that a feature gate guards: while the gate is off, a write loses them, unless the object as it was had them
//! (`DropDisabledFields` and the `dropDisabled…` of upstream's strategies).
//!
//! The rows are in `table`; a `Gates` holds those whose gate is off in this server, by resource.

mod table;

use std::collections::{BTreeMap, HashMap, HashSet};

use api::Resource;
use apimachinery::Value;

use super::pod_spec::TEMPLATES;
use super::tree;

/// How far a feature has come: `AllAlpha` and `AllBeta` turn on what is not named itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Alpha,
    /// Beta, and still off by default.
    Beta,
}

/// Whose fields a row guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Paths are below the spec of a pod or of a pod's template.
    PodSpec,
    /// Paths are below the object.
    Object(&'static str, &'static str),
}

/// What one gate guards in one place. Fields in one row are in use together: where the object as it was has one of
/// them, it may have all.
struct Row {
    gate: &'static str,
    stage: Stage,
    place: Place,
    /// See `parse`.
    fields: &'static [&'static str],
    /// The fields go only where this is set; empty: always.
    when: &'static str,
}

/// One step down a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Member(&'static str),
    /// A member that goes itself when it is left with nothing.
    Emptied(&'static str),
    /// Every item of a list.
    Items,
    /// Every value of a map.
    Values,
    /// Every item of the member's list, and of the lists that the items hold under the same name.
    Nested(&'static str),
}

type Steps = Vec<Step>;

/// A row whose gate is off, in one resource.
#[derive(Debug)]
struct Guard {
    fields: Vec<Steps>,
    when: Option<Steps>,
}

/// The guarded fields whose gates are off.
#[derive(Debug, Default)]
pub struct Gates {
    guards: HashMap<(&'static str, &'static str), Vec<Guard>>,
    off: HashSet<&'static str>,
}

impl Gates {
    /// Of a server with these `--feature-gates`.
    pub fn new(set: &BTreeMap<String, bool>) -> Self {
        let mut gates = Self::default();
        for row in table::ROWS.iter().filter(|row| !is_on(row, set)) {
            gates.off.insert(row.gate);
            gates.guard(row);
        }
        gates
    }

    /// Whether one of the gates that guard fields is off.
    pub fn is_off(&self, gate: &str) -> bool {
        self.off.contains(gate)
    }

    fn guard(&mut self, row: &Row) {
        for (resource, prefix) in places(row.place) {
            let below = |field: &'static str| {
                let path = prefix.iter().copied().map(Step::Member);
                path.chain(parse(field)).collect::<Steps>()
            };
            let fields = row.fields.iter().flat_map(|field| spread(field));
            let guard = Guard {
                fields: fields
                    .map(|(container, rest)| match container {
                        None => below(rest),
                        Some(list) => {
                            let mut steps: Steps =
                                prefix.iter().copied().map(Step::Member).collect();
                            steps.extend([Step::Member(list), Step::Items]);
                            steps.extend(parse(rest));
                            steps
                        }
                    })
                    .collect(),
                when: (!row.when.is_empty()).then(|| below(row.when)),
            };
            self.guards.entry(resource).or_default().push(guard);
        }
    }

    /// Takes away what the gates that are off guard and `old` does not have.
    pub fn drop_disabled(&self, resource: &Resource, new: &mut Value, old: Option<&Value>) {
        let key = (resource.group, resource.plural);
        for guard in self.guards.get(&key).into_iter().flatten() {
            let asked = match &guard.when {
                Some(when) => has(new, when),
                None => guard.is_in_use(new),
            };
            if asked && !old.is_some_and(|old| guard.is_in_use(old)) {
                for field in &guard.fields {
                    take(new, field);
                }
            }
        }
    }
}

impl Guard {
    fn is_in_use(&self, object: &Value) -> bool {
        self.fields.iter().any(|field| has(object, field))
    }
}

fn is_on(row: &Row, set: &BTreeMap<String, bool>) -> bool {
    let all = match row.stage {
        Stage::Alpha => "AllAlpha",
        Stage::Beta => "AllBeta",
    };
    let named = set.get(row.gate).or_else(|| set.get(all));
    named.copied().unwrap_or(false)
}

/// The resources that have a place, and the members above it.
fn places(place: Place) -> Vec<((&'static str, &'static str), Vec<&'static str>)> {
    match place {
        Place::Object(group, plural) => vec![((group, plural), Vec::new())],
        Place::PodSpec => {
            let templates = TEMPLATES.iter().map(|(group, plural, template)| {
                let path = template.iter().copied().chain(["spec"]);
                ((*group, *plural), path.collect())
            });
            templates.chain([(("", "pods"), vec!["spec"])]).collect()
        }
    }
}

/// A path below `(containers)` is one below each list of containers.
fn spread(field: &'static str) -> Vec<(Option<&'static str>, &'static str)> {
    match field.strip_prefix("(containers).") {
        Some(rest) => ["containers", "initContainers", "ephemeralContainers"]
            .map(|list| (Some(list), rest))
            .to_vec(),
        None => vec![(None, field)],
    }
}

/// Members with dots between them: `a[]` is every item of a list, `a{}` every value of a map, `a[+]` every item at any
/// depth, `a?` goes itself when it is left empty.
fn parse(path: &'static str) -> Steps {
    let mut steps = Steps::new();
    for part in path.split('.') {
        if let Some(name) = part.strip_suffix("[+]") {
            steps.push(Step::Nested(name));
        } else if let Some(name) = part.strip_suffix("[]") {
            steps.extend([Step::Member(name), Step::Items]);
        } else if let Some(name) = part.strip_suffix("{}") {
            steps.extend([Step::Member(name), Step::Values]);
        } else if let Some(name) = part.strip_suffix('?') {
            steps.push(Step::Emptied(name));
        } else {
            steps.push(Step::Member(part));
        }
    }
    steps
}

/// Whether anything but nothing stands at a path.
fn has(value: &Value, steps: &[Step]) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return match value {
            Value::Null => false,
            Value::Array(items) => !items.is_empty(),
            Value::String(text) => !text.is_empty(),
            _ => true,
        };
    };
    match step {
        Step::Member(name) | Step::Emptied(name) => {
            value.get(name).is_some_and(|value| has(value, rest))
        }
        Step::Items => tree::items(value, &[]).iter().any(|item| has(item, rest)),
        Step::Values => {
            tree::map(value, &[]).is_some_and(|map| map.values().any(|value| has(value, rest)))
        }
        Step::Nested(name) => tree::items(value, &[name])
            .iter()
            .any(|item| has(item, rest) || has(item, steps)),
    }
}

/// Removes the last member of a path wherever it stands.
fn take(value: &mut Value, steps: &[Step]) {
    let Some((step, rest)) = steps.split_first() else {
        return;
    };
    match step {
        Step::Member(name) if rest.is_empty() => {
            tree::remove(value, name);
        }
        Step::Member(name) => {
            if let Some(value) = value.get_mut(name) {
                take(value, rest);
            }
        }
        Step::Emptied(name) => {
            let Some(inner) = value.get_mut(name) else {
                return;
            };
            take(inner, rest);
            if inner.as_object().is_some_and(|map| map.is_empty()) {
                tree::remove(value, name);
            }
        }
        Step::Items => {
            for item in tree::items_mut(value, &[]) {
                take(item, rest);
            }
        }
        Step::Values => {
            for (_, value) in value.as_object_mut().into_iter().flatten() {
                take(value, rest);
            }
        }
        Step::Nested(name) => {
            for item in tree::items_mut(value, &[name]) {
                take(item, rest);
                take(item, steps);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::schema::{Message, Type};
    use serde_json::json;

    use super::*;

    fn set(gates: &[(&str, bool)]) -> BTreeMap<String, bool> {
        gates
            .iter()
            .map(|(gate, on)| ((*gate).to_owned(), *on))
            .collect()
    }

    fn resource(id: (&str, &str)) -> &'static Resource {
        let found = api::RESOURCES.iter().copied();
        let mut found = found.filter(|resource| (resource.group, resource.plural) == id);
        found.next().unwrap_or_else(|| panic!("{id:?} is known"))
    }

    /// An object in which a value stands at the end of a path.
    fn filled(steps: &[Step]) -> Value {
        let Some((step, rest)) = steps.split_first() else {
            return json!("x");
        };
        match step {
            Step::Member(name) | Step::Emptied(name) => json!({*name: filled(rest)}),
            Step::Items => json!([filled(rest)]),
            Step::Values => json!({"key": filled(rest)}),
            // Once outside, once inside.
            Step::Nested(name) => {
                let mut outer = filled(rest);
                outer[*name] = json!([filled(rest)]);
                json!({*name: [outer]})
            }
        }
    }

    fn leads_somewhere(message: &Message, steps: &[Step]) -> bool {
        let Some((Step::Member(name) | Step::Emptied(name) | Step::Nested(name), mut rest)) =
            steps.split_first()
        else {
            return false;
        };
        let Some(field) = message.field(name) else {
            return false;
        };
        let mut ty = &field.ty;
        loop {
            match ty {
                Type::List(list) => {
                    ty = &list.item;
                    if rest.first() == Some(&Step::Items) {
                        rest = &rest[1..];
                    }
                }
                Type::Map(map) => {
                    ty = &map.value;
                    if rest.first() == Some(&Step::Values) {
                        rest = &rest[1..];
                    }
                }
                Type::Message(message) if !rest.is_empty() => {
                    return leads_somewhere(message, rest);
                }
                _ => return rest.is_empty(),
            }
        }
    }

    #[test]
    fn every_row_names_fields_of_the_schema() {
        let gates = Gates::new(&set(&[]));
        for (id, guards) in &gates.guards {
            for steps in guards.iter().flat_map(|guard| &guard.fields) {
                let versions = api::RESOURCES
                    .iter()
                    .filter(|resource| (resource.group, resource.plural) == *id);
                let mut schemas = versions.map(|resource| resource.schema);
                assert!(
                    schemas.any(|schema| leads_somewhere(schema, steps)),
                    "{id:?}: {steps:?}"
                );
            }
        }
    }

    #[test]
    fn every_guarded_field_goes_with_its_gate_off_and_stays_where_it_was() {
        for row in table::ROWS {
            let mut gates = Gates::default();
            gates.guard(row);
            for (id, guards) in &gates.guards {
                for steps in &guards[0].fields {
                    let full = filled(guards[0].when.as_ref().unwrap_or(steps));
                    let mut new = full.clone();
                    gates.drop_disabled(resource(*id), &mut new, None);
                    assert!(!has(&new, steps), "{}: {new}", row.gate);
                    let mut new = full.clone();
                    gates.drop_disabled(resource(*id), &mut new, Some(&json!({"spec": {}})));
                    assert!(!has(&new, steps), "{}: {new}", row.gate);
                    let mut new = full.clone();
                    gates.drop_disabled(resource(*id), &mut new, Some(&filled(steps)));
                    assert_eq!(new, full, "{}", row.gate);
                }
            }
        }
    }

    #[test]
    fn a_gate_that_is_on_guards_nothing() {
        let of = |gates: &Gates| gates.guards.get(&("", "nodes")).map_or(0, Vec::len);
        let gate = "InPlacePodVerticalScalingSchedulerPreemption";
        assert_eq!(of(&Gates::new(&set(&[]))), 1);
        assert!(Gates::new(&set(&[])).is_off(gate));
        assert_eq!(of(&Gates::new(&set(&[(gate, true)]))), 0);
        assert!(!Gates::new(&set(&[(gate, true)])).is_off(gate));
        assert_eq!(of(&Gates::new(&set(&[("AllAlpha", true)]))), 0);
        assert_eq!(of(&Gates::new(&set(&[("AllBeta", true)]))), 1);
        assert_eq!(
            of(&Gates::new(&set(&[("AllAlpha", true), (gate, false)]))),
            1
        );
    }

    #[test]
    fn a_lifecycle_of_a_stop_signal_alone_goes_whole() {
        let gates = Gates::new(&set(&[]));
        let mut pod = json!({"spec": {"containers": [
            {"name": "a", "lifecycle": {"stopSignal": "SIGUSR1"}},
            {"name": "b", "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 1}}}},
        ]}});
        gates.drop_disabled(resource(("", "pods")), &mut pod, None);
        assert_eq!(
            pod,
            json!({"spec": {"containers": [
                {"name": "a"},
                {"name": "b", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
            ]}})
        );
    }

    #[test]
    fn a_source_of_data_in_another_namespace_goes_and_one_of_the_same_stays() {
        let gates = Gates::new(&set(&[]));
        let claims = resource(("", "persistentvolumeclaims"));
        let source = |namespace: &str| json!({"spec": {"dataSourceRef": {"kind": "A", "name": "b", "namespace": namespace}}});
        let mut claim = source("other");
        gates.drop_disabled(claims, &mut claim, None);
        assert_eq!(claim, json!({"spec": {}}));
        let mut claim = source("");
        gates.drop_disabled(claims, &mut claim, None);
        assert_eq!(claim, source(""));
    }
}
