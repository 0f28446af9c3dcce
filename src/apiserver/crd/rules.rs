//! The rules of definitions themselves (`apiextensions/validation`): names, versions, one of them stored, structural schemas.

use apimachinery::field::{Error, ErrorList};
use apimachinery::{Value, meta, name};
use serde_json::json;

use crate::kinds::check::Node;
use crate::kinds::tree::{
    at, at_mut, default_text, default_value, flag, has, items, object_mut, set, text,
};
use crate::registry::strategy::{Change, Strategy};

/// Keeps a definition until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
const APPROVAL: &str = "api-approved.kubernetes.io";
/// Longest `additionalPrinterColumns` and the like are bounded by the body; versions are not many.
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 9] = [
    "",
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Deepest schema that is looked at.
const MAX_DEPTH: usize = 64;

pub struct CustomResourceDefinitions;

impl Strategy for CustomResourceDefinitions {
    fn id(&self) -> (&'static str, &'static str) {
        ("apiextensions.k8s.io", "customresourcedefinitions")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = at_mut(object, &["spec"]) else {
            return;
        };
        if let Some(names) = at_mut(spec, &["names"]) {
            let kind = text(names, &["kind"]).to_owned();
            if !kind.is_empty() {
                default_text(names, "singular", &kind.to_lowercase());
                default_text(names, "listKind", &format!("{kind}List"));
            }
        }
        if !has(spec, &["conversion"]) {
            object_mut(spec, &["conversion"]);
        }
        if let Some(conversion) = at_mut(spec, &["conversion"]) {
            default_text(conversion, "strategy", "None");
            if let Some(service) = at_mut(conversion, &["webhook", "clientConfig", "service"]) {
                default_value(service, "port", 443);
            }
        }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        let stored: Vec<Value> = stored_versions(object).map(Value::from).collect();
        set(
            object,
            "status",
            json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": [], "storedVersions": stored}),
        );
    }

    fn prepare_update(&self, change: &Change<'_>, new: &mut Value, old: &Value) {
        crate::registry::strategy::default_prepare_update(&["status"], change, new, old);
        if change.subresource.is_empty() {
            // Objects in any version that was ever stored may still be there.
            let mut known = items(new, &["status", "storedVersions"]).to_vec();
            let missing: Vec<Value> = stored_versions(new)
                .map(Value::from)
                .filter(|version| !known.contains(version))
                .collect();
            if !missing.is_empty() {
                known.extend(missing);
                object_mut(new, &["status"]).insert("storedVersions".to_owned(), known.into());
            }
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        definition(object)
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return ErrorList::new();
        }
        let mut errors = definition(new);
        let spec = Node::root(at(new, &["spec"]), "spec");
        for field in ["group", "scope"] {
            spec.at(field)
                .unchanged(&mut errors, at(old, &["spec", field]));
        }
        let names = spec.at("names");
        for field in ["kind", "plural"] {
            names
                .at(field)
                .unchanged(&mut errors, at(old, &["spec", "names", field]));
        }
        errors
    }

    fn begin_delete(&self, object: &mut Value) {
        let mut finalizers: Vec<String> = meta::finalizers(object).map(str::to_owned).collect();
        if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            meta::set_finalizers(object, finalizers);
        }
    }

    /// Its objects go first: the controller lets it go.
    fn may_vanish(&self, object: &Value) -> bool {
        meta::is_deleting(object)
    }
}

/// The names of versions that are stored: one, once validated.
fn stored_versions(object: &Value) -> impl Iterator<Item = &str> {
    items(object, &["spec", "versions"])
        .iter()
        .filter(|version| flag(version, &["storage"]))
        .map(|version| text(version, &["name"]))
}

/// `ValidateCustomResourceDefinition`.
fn definition(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let spec = Node::root(at(object, &["spec"]), "spec");
    let (group, names) = (spec.at("group"), spec.at("names"));
    let wanted = format!("{}.{}", names.at("plural").text(), group.text());
    if meta::name(object) != wanted {
        Node::root(at(object, &["metadata", "name"]), "metadata.name")
            .invalid(errors, "must be spec.names.plural+\".\"+spec.group");
    }
    if group.present(errors) {
        group.syntax(errors, name::dns_1123_subdomain);
        if group.text().split('.').count() < 2 {
            group.invalid(errors, "should be a domain with at least one dot");
        }
        approval(object, group.text(), errors);
    }
    spec.at("scope").one_of(errors, &["Cluster", "Namespaced"]);
    self::names(&names, errors);
    versions(&spec, errors);
    let conversion = spec.at("conversion");
    conversion
        .at("strategy")
        .one_of(errors, &["None", "Webhook"]);
    if conversion.at("strategy").text() == "Webhook"
        && !has(conversion.value, &["webhook", "clientConfig"])
    {
        let webhook = conversion.at("webhook");
        webhook
            .at("clientConfig")
            .required(errors, "required when strategy is set to Webhook");
    }
    std::mem::take(errors)
}

/// Groups of the project itself take a review.
fn approval(object: &Value, group: &str, errors: &mut ErrorList) {
    let protected = |domain: &str| group == domain || group.ends_with(&format!(".{domain}"));
    if !protected("k8s.io") && !protected("kubernetes.io") {
        return;
    }
    let said = meta::annotation(object, APPROVAL).unwrap_or("");
    if said.starts_with("unapproved") || said.starts_with("https://") {
        return;
    }
    let path = Node::root(&Value::Null, "metadata.annotations").path();
    let path = path.key(APPROVAL);
    if said.is_empty() {
        errors.push(Error::required(&path, "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"));
    } else {
        errors.push(Error::invalid(&path, said, "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"));
    }
}

fn names(names: &Node<'_, '_>, errors: &mut ErrorList) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let called = names.at(field);
        if called.present(errors) {
            called.syntax(errors, |text| name::dns_1035_label(&text.to_lowercase()));
        }
    }
    for field in ["shortNames", "categories"] {
        let list = names.at(field);
        for item in list.items() {
            item.syntax(errors, name::dns_1035_label);
        }
    }
    if names.at("kind").text() == names.at("listKind").text() && !names.at("kind").is_empty() {
        names
            .at("listKind")
            .invalid(errors, "kind and listKind may not be the same");
    }
}

fn versions(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let versions = spec.at("versions");
    if versions.list().is_empty() {
        versions.required(errors, "must have at least one version");
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    let mut stored = 0;
    for version in versions.items() {
        let called = version.at("name");
        called.syntax(errors, name::dns_1035_label);
        if seen.contains(&called.text()) {
            versions.invalid_as(errors, versions.value, "must contain unique version names");
        }
        seen.push(called.text());
        stored += usize::from(version.at("storage").flag());
        let schema = version.at("schema");
        let open = schema.at("openAPIV3Schema");
        if open.is_set() {
            root_schema(&open, errors);
        } else {
            open.required(errors, "schemas are required");
        }
        columns(&version.at("additionalPrinterColumns"), errors);
        scale(&version, errors);
    }
    if stored != 1 {
        versions.invalid(
            errors,
            "must have exactly one version marked as storage version",
        );
    }
}

fn columns(columns: &Node<'_, '_>, errors: &mut ErrorList) {
    for column in columns.items() {
        column.at("name").present(errors);
        let kind = column.at("type");
        if kind.present(errors) && !COLUMN_TYPES.contains(&kind.text()) {
            kind.invalid(errors, format!("must be one of {}", COLUMN_TYPES.join(",")));
        }
        let format = column.at("format");
        if !COLUMN_FORMATS.contains(&format.text()) {
            format.invalid(
                errors,
                format!("must be one of {}", COLUMN_FORMATS[1..].join(",")),
            );
        }
        let path = column.at("jsonPath");
        if path.present(errors) && super::path::JsonPath::parse(path.text()).is_none() {
            path.invalid(errors, "must be a simple json path");
        }
    }
}

fn scale(version: &Node<'_, '_>, errors: &mut ErrorList) {
    let subresources = version.at("subresources");
    let scale = subresources.at("scale");
    if !scale.is_set() {
        return;
    }
    for (field, root) in [
        ("specReplicasPath", ".spec."),
        ("statusReplicasPath", ".status."),
    ] {
        let path = scale.at(field);
        if path.present(errors) && !path.text().starts_with(root) {
            let word = root.trim_matches('.');
            path.invalid(errors, format!("should be a json path under .{word}"));
        }
    }
}

fn root_schema(schema: &Node<'_, '_>, errors: &mut ErrorList) {
    let kind = schema.at("type");
    if kind.text().is_empty() {
        kind.required(errors, "must not be empty at the root");
    } else if kind.text() != "object" {
        kind.invalid(errors, "must be object at the root");
    }
    structural(schema, errors, 0);
}

/// `validateStructuralInvariants`, the part that concerns every node.
fn structural(schema: &Node<'_, '_>, errors: &mut ErrorList, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    let kind = schema.at("type");
    let typeless = schema.at("x-kubernetes-int-or-string").flag()
        || schema.at("x-kubernetes-preserve-unknown-fields").flag();
    if kind.text().is_empty() {
        if !typeless && depth > 0 {
            kind.required(errors, "must not be empty for specified object fields");
        }
    } else if !TYPES.contains(&kind.text()) {
        kind.not_supported(errors, &TYPES);
    }
    if kind.text() == "array" && !schema.at("items").is_set() {
        schema.at("items").required(errors, "must be specified");
    }
    let pattern = schema.at("pattern");
    if pattern.is_set() && regex::Regex::new(pattern.text()).is_err() {
        pattern.invalid(
            errors,
            format!(
                "must be a valid regular expression, but isn't: error parsing regexp: {}",
                pattern.text()
            ),
        );
    }
    list_type(schema, errors);
    let rules = schema.at("x-kubernetes-validations");
    for rule in rules.items() {
        let text = rule.at("rule");
        if text.present(errors)
            && let Err(why) = cel::Program::parse(text.text())
        {
            text.invalid(errors, why);
        }
    }
    let properties = schema.at("properties");
    let others = schema.at("additionalProperties");
    if properties.is_set() && others.value.is_object() {
        others.forbidden(
            errors,
            "additionalProperties and properties are mutual exclusive",
        );
    }
    for (_, inner) in properties.entries() {
        structural(&inner, errors, depth + 1);
    }
    if others.value.is_object() {
        structural(&others, errors, depth + 1);
    }
    let inner = schema.at("items");
    if inner.value.is_object() {
        structural(&inner, errors, depth + 1);
    }
}

fn list_type(schema: &Node<'_, '_>, errors: &mut ErrorList) {
    let kind = schema.at("x-kubernetes-list-type");
    if !kind.is_set() {
        return;
    }
    kind.known(errors, &["atomic", "map", "set"]);
    let keys = schema.at("x-kubernetes-list-map-keys");
    if kind.text() == "map" && keys.list().is_empty() {
        keys.required(errors, "must not be empty if x-kubernetes-list-type is map");
    }
    if kind.text() != "map" && keys.is_set() {
        keys.forbidden(errors, "must be unset if x-kubernetes-list-type is not map");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widgets() -> Value {
        json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), expect: &[&str]) {
        let mut object = widgets();
        CustomResourceDefinitions.default(&mut object);
        change(&mut object);
        let texts: Vec<String> = definition(&object)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn definitions_are_named_stored_once_and_structural() {
        check(|_| {}, &[]);
        check(
            |object| {
                object["metadata"]["name"] = "gadgets.example.com".into();
                object["spec"]["versions"][0]["storage"] = false.into();
                object["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({"type": "object",
                    "properties": {"spec": {"properties": {}}, "list": {"type": "array", "x-kubernetes-list-type": "map"}}});
            },
            &[
                "metadata.name: Invalid value: \"gadgets.example.com\": must be spec.names.plural+\".\"+spec.group",
                "spec.versions[0].schema.openAPIV3Schema.properties[list].items: Required value: must be specified",
                "spec.versions[0].schema.openAPIV3Schema.properties[list].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
                "spec.versions[0].schema.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields",
                "spec.versions: Invalid value: [{\"name\":\"v1\",\"schema\":{\"openAPIV3Schema\":{\"properties\":{\"list\":{\"type\":\"array\",\"x-kubernetes-list-type\":\"map\"},\"spec\":{\"properties\":{}}},\"type\":\"object\"}},\"served\":true,\"storage\":false}]: must have exactly one version marked as storage version",
            ],
        );
        check(
            |object| object["spec"]["group"] = "x.k8s.io".into(),
            &[
                "metadata.name: Invalid value: \"widgets.example.com\": must be spec.names.plural+\".\"+spec.group",
                "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111",
            ],
        );
    }
}
