//! Workloads and groups of pods that are scheduled together (KEP-4671): templates of groups in a tree, and the groups made
//! of them, which but for the size of a gang stay what they were.

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, name};
use serde_json::json;

use super::check::{IMMUTABLE, Node};
use super::status::conditions;
use super::tree::{at, default_value, has, items, text};
use crate::registry::strategy::{Change, Strategy};

const GROUP: &str = "scheduling.k8s.io";
const MAX_TEMPLATES: usize = 8;
const MAX_CLAIMS: usize = 4;
/// Levels of composite templates, the last of which has only pod groups below it (`WorkloadMaxTemplateDepth`).
const MAX_DEPTH: usize = 4;
/// `HighestUserDefinablePriority`.
const MAX_PRIORITY: i64 = 1_000_000_000;
const GROUPS: &str = "podGroupTemplates";
const COMPOSITES: &str = "compositePodGroupTemplates";
/// What of a group or its template is never changed.
const FROZEN: [&str; 8] = [
    "parentCompositePodGroupName",
    "workloadRef",
    "schedulingConstraints",
    "resourceClaims",
    "disruptionMode",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
];

pub struct Workloads;

impl Strategy for Workloads {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, "workloads")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        workload(object, None)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        workload(new, Some(old))
    }
}

/// `podgroups` and `compositepodgroups`.
pub struct PodGroups(pub &'static str);

impl Strategy for PodGroups {
    fn id(&self) -> (&'static str, &'static str) {
        (GROUP, self.0)
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if object["spec"].is_object() && !has(object, &["spec", "disruptionMode"]) {
            default_value(&mut object["spec"], "disruptionMode", json!({"single": {}}));
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        group_spec(object, None)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        match change.subresource {
            "status" => status(new),
            _ => group_spec(new, Some(old)),
        }
    }
}

fn group_spec(object: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    group(&spec, old.map(|old| at(old, &["spec"])), &mut errors);
    let reference = spec.at("workloadRef");
    if reference.is_set() {
        reference
            .at("workloadName")
            .named(&mut errors, name::dns_1123_subdomain);
        reference
            .at("templateName")
            .named(&mut errors, name::dns_1123_label);
    }
    let parent = spec.at("parentCompositePodGroupName");
    if parent.is_set() {
        parent.syntax(&mut errors, name::dns_1123_subdomain);
    }
    errors
}

/// What a group and its template have in common; `old` is what it was.
fn group(group: &Node<'_, '_>, old: Option<&Value>, errors: &mut ErrorList) {
    policy(&group.at("schedulingPolicy"), old, errors);
    let constraints = group.at("schedulingConstraints");
    let topology = constraints.at("topology");
    if topology.list().len() > 1 {
        errors.push(Error::too_many(&topology.path(), topology.list().len(), 1));
    }
    for constraint in topology.items().take(1) {
        constraint.at("key").named(errors, name::qualified_name);
    }
    let claims = group.at("resourceClaims");
    if bounded(&claims, MAX_CLAIMS, errors) {
        for claim in claims.items() {
            claim.at("name").named(errors, name::dns_1123_label);
            let members = ["resourceClaimName", "resourceClaimTemplateName"];
            one_member(&claim, &members, errors);
            for member in members {
                let called = claim.at(member);
                if called.is_set() {
                    called.syntax(errors, name::dns_1123_subdomain);
                }
            }
        }
    }
    let mode = group.at("disruptionMode");
    if mode.is_set() {
        one_member(&mode, &["single", "all"], errors);
    }
    group
        .at("priorityClassName")
        .syntax_if_set(errors, name::dns_1123_subdomain);
    let priority = group.at("priority");
    if priority.int().is_some_and(|number| number > MAX_PRIORITY) {
        priority.invalid(
            errors,
            format!("must be less than or equal to {MAX_PRIORITY}"),
        );
    }
    group
        .at("preemptionPolicy")
        .known_if_set(errors, &["Never", "PreemptLowerPriority"]);
    if let Some(old) = old {
        for field in FROZEN {
            group.at(field).unchanged(errors, at(old, &[field]));
        }
    }
}

/// One way to schedule, which is chosen once; a gang's size may be changed.
fn policy(policy: &Node<'_, '_>, old: Option<&Value>, errors: &mut ErrorList) {
    one_member(policy, &["basic", "gang"], errors);
    let gang = policy.at("gang");
    let size = match gang.value.get("minGroupCount").is_some() {
        true => "minGroupCount",
        false => "minCount",
    };
    if gang.is_set() {
        let count = gang.at(size);
        match count.int().unwrap_or(0) {
            0 => count.required(errors, ""),
            1.. => {}
            _ => count.invalid(errors, "must be greater than or equal to 1"),
        }
    }
    let Some(old) = old.map(|old| at(old, &["schedulingPolicy"])) else {
        return;
    };
    let basic = policy.at("basic");
    if basic.is_set() != has(old, &["basic"]) {
        basic.invalid(errors, IMMUTABLE);
    }
    let why = match (has(old, &["gang"]), gang.is_set()) {
        (false, true) => "field cannot be set once created",
        (true, false) => "field cannot be cleared once set",
        _ => return,
    };
    gang.invalid_as(errors, Value::Null, why);
}

/// `validate.Union`: exactly one of a few.
fn one_member(of: &Node<'_, '_>, members: &[&str], errors: &mut ErrorList) {
    let quoted = |members: &[&str]| -> String {
        let quoted: Vec<String> = members.iter().map(|member| format!("`{member}`")).collect();
        quoted.join(", ")
    };
    let given: Vec<&str> = members
        .iter()
        .copied()
        .filter(|member| of.at(member).is_set())
        .collect();
    match given.len() {
        0 => of.invalid_as(
            errors,
            "",
            format!("must specify one of: {}", quoted(members)),
        ),
        1 => {}
        _ => of.invalid_as(
            errors,
            format!("{{{}}}", quoted(&given)),
            format!("must specify exactly one of: {}", quoted(members)),
        ),
    }
}

/// A list of things with names, each once, and not too many.
fn bounded(list: &Node<'_, '_>, most: usize, errors: &mut ErrorList) -> bool {
    let count = list.list().len();
    if count > most {
        errors.push(Error::too_many(&list.path(), count, most));
        return false;
    }
    let mut seen: Vec<&str> = Vec::new();
    for item in list.items() {
        let called = text(item.value, &["name"]);
        if seen.contains(&called) {
            item.duplicate(errors);
        }
        seen.push(called);
    }
    true
}

fn status(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = Node::root(at(object, &["status"]), "status");
    conditions(&status.at("conditions"), &mut errors);
    let claims = status.at("resourceClaimStatuses");
    if bounded(&claims, MAX_CLAIMS, &mut errors) {
        for claim in claims.items() {
            let called = claim.at("name");
            let known = items(object, &["spec", "resourceClaims"])
                .iter()
                .any(|claim| text(claim, &["name"]) == called.text());
            if !known {
                called.invalid(
                    &mut errors,
                    "must match the name of an entry in `spec.resourceClaims`",
                );
            }
            let made = claim.at("resourceClaimName");
            if made.is_set() {
                made.syntax(&mut errors, name::dns_1123_subdomain);
            }
        }
    }
    errors
}

fn workload(object: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let old = old.map(|old| at(old, &["spec"]));
    let controller = spec.at("controllerRef");
    if controller.is_set() {
        controller
            .at("apiGroup")
            .syntax_if_set(errors, name::dns_1123_subdomain);
        for field in ["kind", "name"] {
            controller.at(field).named(errors, name::path_segment);
        }
    }
    if let Some(old) = old {
        controller.unchanged(errors, at(old, &["controllerRef"]));
    }
    let given = [GROUPS, COMPOSITES].map(|field| !spec.at(field).list().is_empty());
    match given {
        [false, false] => spec.invalid_as(
            errors,
            "",
            format!("must specify one of: `{COMPOSITES}`, `{GROUPS}`"),
        ),
        [true, true] => spec.invalid_as(
            errors,
            format!("{{`{COMPOSITES}`, `{GROUPS}`}}"),
            format!("must specify exactly one of: `{COMPOSITES}`, `{GROUPS}`"),
        ),
        _ => {}
    }
    templates(&spec, old, errors);
    names(&spec, errors);
    let composites = spec.at(COMPOSITES);
    for template in composites.items() {
        if depth(template.value) >= MAX_DEPTH {
            template.invalid_as(
                errors,
                at(template.value, &[COMPOSITES]),
                format!("maximum template hierarchy depth is {MAX_DEPTH}"),
            );
        }
    }
    priorities(&spec, errors);
    for template in composites.items() {
        children(&template, errors);
    }
    std::mem::take(errors)
}

/// Both lists of templates, and those below them; nothing comes to them or goes.
fn templates(of: &Node<'_, '_>, old: Option<&Value>, errors: &mut ErrorList) {
    for field in [GROUPS, COMPOSITES] {
        let list = of.at(field);
        if !bounded(&list, MAX_TEMPLATES, errors) {
            continue;
        }
        let before = old.map_or(&[][..], |old| items(old, &[field]));
        let same =
            |template: &Value, other: &Value| text(template, &["name"]) == text(other, &["name"]);
        for template in list.items() {
            let was = before.iter().find(|was| same(template.value, was));
            if old.is_some() && was.is_none() {
                template.forbidden(errors, "item may not be added");
            }
            template.at("name").named(errors, name::dns_1123_label);
            group(&template, was, errors);
            if field == COMPOSITES {
                templates(&template, was, errors);
            }
        }
        for was in before {
            if !list.list().iter().any(|template| same(template, was)) {
                list.forbidden(errors, "item may not be removed");
            }
        }
    }
}

/// A name is given once in all the tree; twice in one list was told already.
fn names(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = spec
        .at(GROUPS)
        .list()
        .iter()
        .map(|group| text(group, &["name"]))
        .collect();
    composite_names(spec, &mut seen, errors);
}

fn composite_names<'v>(of: &Node<'v, '_>, seen: &mut Vec<&'v str>, errors: &mut ErrorList) {
    let list = of.at(COMPOSITES);
    told_apart(&list, seen, errors);
    for template in list.items() {
        told_apart(&template.at(GROUPS), seen, errors);
        composite_names(&template, seen, errors);
    }
}

fn told_apart<'v>(list: &Node<'v, '_>, seen: &mut Vec<&'v str>, errors: &mut ErrorList) {
    let mut own: Vec<&'v str> = Vec::new();
    for item in list.items() {
        let called = item.value.get("name").and_then(Value::as_str).unwrap_or("");
        if seen.contains(&called) {
            item.at("name").duplicate(errors);
        }
        own.push(called);
    }
    seen.append(&mut own);
}

fn depth(template: &Value) -> usize {
    1 + items(template, &[COMPOSITES])
        .iter()
        .map(depth)
        .max()
        .unwrap_or(0)
}

fn priorities(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    fn collect<'v>(of: &'v Value, found: &mut Vec<(&'v str, &'v Value)>) {
        for field in [GROUPS, COMPOSITES] {
            for template in items(of, &[field]) {
                found.push((
                    text(template, &["priorityClassName"]),
                    at(template, &["priority"]),
                ));
                collect(template, found);
            }
        }
    }
    let mut found = Vec::new();
    collect(spec.value, &mut found);
    if found.windows(2).any(|pair| pair[0] != pair[1]) {
        let why = match spec.at(GROUPS).list().is_empty() {
            false => "detected multiple priority configurations",
            true => {
                "all priority and priorityClassName values must be identical, detected multiple values"
            }
        };
        spec.invalid_as(errors, Value::Null, why);
    }
}

fn children(template: &Node<'_, '_>, errors: &mut ErrorList) {
    let composites = template.at(COMPOSITES);
    if composites.list().is_empty() && template.at(GROUPS).list().is_empty() {
        template.invalid_as(
            errors,
            text(template.value, &["name"]),
            "must have at least one child PodGroupTemplate or CompositePodGroupTemplate",
        );
    }
    for child in composites.items() {
        children(&child, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;

    fn template(called: &str, count: i64) -> Value {
        json!({"name": called, "schedulingPolicy": {"gang": {"minCount": count}}})
    }

    #[test]
    fn a_workload_has_templates_of_one_sort() {
        check(
            workload(&json!({"spec": {}}), None),
            &[
                "spec: Invalid value: \"\": must specify one of: `compositePodGroupTemplates`, `podGroupTemplates`",
            ],
        );
        check(
            workload(
                &json!({"spec": {"podGroupTemplates": [template("a", 1)]}}),
                None,
            ),
            &[],
        );
        check(
            workload(
                &json!({"spec": {"controllerRef": {"kind": "a/b"}, "podGroupTemplates": [template("", 0),
                    {"name": "b", "schedulingPolicy": {"basic": {}, "gang": {"minCount": -1}}, "priority": 2_000_000_000}]}}),
                None,
            ),
            &[
                "spec.controllerRef.kind: Invalid value: \"a/b\": may not contain '/'",
                "spec.controllerRef.name: Required value",
                "spec.podGroupTemplates[0].name: Required value",
                "spec.podGroupTemplates[0].schedulingPolicy.gang.minCount: Required value",
                "spec.podGroupTemplates[1].schedulingPolicy: Invalid value: \"{`basic`, `gang`}\": must specify exactly one of: `basic`, `gang`",
                "spec.podGroupTemplates[1].schedulingPolicy.gang.minCount: Invalid value: -1: must be greater than or equal to 1",
                "spec.podGroupTemplates[1].priority: Invalid value: 2000000000: must be less than or equal to 1000000000",
                "spec: Invalid value: null: detected multiple priority configurations",
            ],
        );
    }

    #[test]
    fn templates_stay_and_only_gangs_change_their_size() {
        let old = json!({"spec": {"podGroupTemplates": [template("a", 1), template("b", 1)]}});
        let mut new = old.clone();
        new["spec"]["podGroupTemplates"][0] = template("a", 5);
        check(workload(&new, Some(&old)), &[]);
        new["spec"]["podGroupTemplates"][0]["schedulingPolicy"] = json!({"basic": {}});
        new["spec"]["podGroupTemplates"][1] = template("c", 1);
        check(
            workload(&new, Some(&old)),
            &[
                "spec.podGroupTemplates[0].schedulingPolicy.basic: Invalid value: {}: field is immutable",
                "spec.podGroupTemplates[0].schedulingPolicy.gang: Invalid value: null: field cannot be cleared once set",
                "spec.podGroupTemplates[1]: Forbidden: item may not be added",
                "spec.podGroupTemplates: Forbidden: item may not be removed",
            ],
        );
    }

    #[test]
    fn a_tree_of_templates_is_shallow_and_its_names_are_told_apart() {
        let basic = json!({"basic": {}});
        let mut tree = json!({"name": "d1", "schedulingPolicy": basic, "podGroupTemplates": [template("a", 1)]});
        for level in 2..=4 {
            tree = json!({"name": format!("d{level}"), "schedulingPolicy": basic, "compositePodGroupTemplates": [tree]});
        }
        let errors = workload(
            &json!({"spec": {"compositePodGroupTemplates": [tree]}}),
            None,
        );
        assert_eq!(errors.len(), 1);
        let texts = errors.aggregate();
        assert!(
            texts.ends_with("maximum template hierarchy depth is 4"),
            "{texts}"
        );
        check(
            workload(
                &json!({"spec": {"compositePodGroupTemplates": [{"name": "a", "schedulingPolicy": basic, "podGroupTemplates": [template("a", 1)]},
                    {"name": "e", "schedulingPolicy": basic}]}}),
                None,
            ),
            &[
                "spec.compositePodGroupTemplates[0].podGroupTemplates[0].name: Duplicate value: \"a\"",
                "spec.compositePodGroupTemplates[1]: Invalid value: \"e\": must have at least one child PodGroupTemplate or CompositePodGroupTemplate",
            ],
        );
    }

    #[test]
    fn groups_are_disrupted_one_by_one_unless_they_say_otherwise() {
        let mut group = json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "workloadRef": {"workloadName": "w"},
            "resourceClaims": [{"name": "c"}], "schedulingConstraints": {"topology": [{"key": ""}]}}});
        PodGroups("podgroups").default(&mut group);
        assert_eq!(group["spec"]["disruptionMode"], json!({"single": {}}));
        check(
            group_spec(&group, None),
            &[
                "spec.schedulingConstraints.topology[0].key: Required value",
                "spec.resourceClaims[0]: Invalid value: \"\": must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
                "spec.workloadRef.templateName: Required value",
            ],
        );
        check(
            status(&json!({"status": {"resourceClaimStatuses": [{"name": "x"}]}})),
            &[
                "status.resourceClaimStatuses[0].name: Invalid value: \"x\": must match the name of an entry in `spec.resourceClaims`",
            ],
        );
    }
}
