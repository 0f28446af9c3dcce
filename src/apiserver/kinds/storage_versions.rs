//! StorageVersions: which versions each server encodes and decodes a resource in (KEP-2339).

use apimachinery::Value;
use apimachinery::field::ErrorList;
use apimachinery::name;

use super::check::Node;
use super::object_meta::{NameRule, dns_subdomain};
use super::tree::at;
use crate::registry::strategy::{Change, Strategy};

pub struct StorageVersions;

impl Strategy for StorageVersions {
    fn id(&self) -> (&'static str, &'static str) {
        ("internal.apiserver.k8s.io", "storageversions")
    }

    fn name_rule(&self) -> NameRule {
        called
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn status_keeps_metadata(&self) -> bool {
        true
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, _old: &Value) -> ErrorList {
        match change.subresource {
            "status" => status(new),
            _ => ErrorList::new(),
        }
    }
}

/// `ValidateStorageVersionName`: a group and a resource.
fn called(text: &str, _prefix: bool) -> Vec<String> {
    let Some((group, resource)) = text.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".to_owned()];
    };
    let group = name::dns_1123_subdomain(group).into_iter();
    let resource = name::dns_1035_label(resource).into_iter();
    group
        .map(|why| format!("the group segment {why}"))
        .chain(resource.map(|why| format!("the resource segment {why}")))
        .collect()
}

fn status(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let errors = &mut errors;
    let status = Node::root(at(object, &["status"]), "status");
    let servers = status.at("storageVersions");
    let mut ids: Vec<&str> = Vec::new();
    for server in servers.items() {
        let id = server.at("apiServerID");
        if ids.contains(&id.text()) {
            id.duplicate(errors);
        }
        ids.push(id.text());
        id.syntax(errors, |text| dns_subdomain(text, false));
        of_server(&server, errors);
    }
    common(&status, errors);
    let conditions = status.at("conditions");
    let mut kinds: Vec<&str> = Vec::new();
    for (index, condition) in conditions.list().iter().enumerate() {
        // Upstream tells them as items of the status.
        let path = format!("status[{index}]");
        let condition = Node::root(condition, &path);
        let kind = condition.at("type");
        if let Some(first) = kinds.iter().position(|seen| *seen == kind.text()) {
            kind.invalid(
                errors,
                format!("the type of the condition is not unique, it also appears in conditions[{first}]"),
            );
        }
        kinds.push(kind.text());
        for field in ["type", "status"] {
            condition.at(field).syntax(errors, name::qualified_name);
        }
        for field in ["reason", "message"] {
            condition
                .at(field)
                .present_or(errors, &format!("{field} cannot be empty"));
        }
    }
    std::mem::take(errors)
}

fn of_server(server: &Node<'_, '_>, errors: &mut ErrorList) {
    let version = |version: &Node<'_, '_>, errors: &mut ErrorList| {
        let wrong = api_version(version.text());
        if !wrong.is_empty() {
            version.invalid_as(errors, version.text(), wrong.join(","));
        }
    };
    let encodes = server.at("encodingVersion");
    version(&encodes, errors);
    let decodes = server.at("decodableVersions");
    for one in decodes.items() {
        version(&one, errors);
    }
    if !decodes.list().iter().any(|one| one == encodes.text()) {
        decodes.invalid(
            errors,
            format!(
                "decodableVersions must include encodingVersion {}",
                encodes.text()
            ),
        );
    }
    let serves = server.at("servedVersions");
    for one in serves.items() {
        version(&one, errors);
        if !decodes.list().contains(one.value) {
            let known: Vec<&str> = decodes.list().iter().filter_map(Value::as_str).collect();
            one.invalid(
                errors,
                format!(
                    "individual served version : {} must be included in decodableVersions : [{}]",
                    one.text(),
                    known.join(" ")
                ),
            );
        }
    }
}

/// The version that all servers encode in.
fn common(status: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut versions = status
        .at("storageVersions")
        .list()
        .iter()
        .map(|server| at(server, &["encodingVersion"]).as_str().unwrap_or(""));
    let first = versions.next();
    let actual = first.filter(|first| versions.all(|other| other == *first));
    let told = status.at("commonEncodingVersion");
    let why = match (actual, told.value.as_str()) {
        (None, Some(_)) => "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet".to_owned(),
        (Some(actual), None) => format!("the common encoding version is {actual}"),
        (Some(actual), Some(told)) if actual != told => {
            format!("the actual common encoding version is {actual}")
        }
        _ => return,
    };
    told.invalid(errors, why);
}

/// `isValidAPIVersion`.
fn api_version(text: &str) -> Vec<String> {
    const EMPTY: &str = "must be non-empty";
    let (group, version) = match text.split('/').collect::<Vec<_>>()[..] {
        [version] => (None, version),
        [group, version] => (Some(group), version),
        _ => {
            return vec!["an apiVersion is a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')".to_owned()];
        }
    };
    let part = |part: &str, text: &str, rule: fn(&str) -> Vec<String>| -> Vec<String> {
        let wrong = match text {
            "" => vec![EMPTY.to_owned()],
            text => rule(text),
        };
        let told = wrong.into_iter().map(|why| format!("{part} part: {why}"));
        told.collect()
    };
    let mut wrong = group.map_or_else(Vec::new, |group| {
        part("group", group, name::dns_1123_subdomain)
    });
    wrong.extend(part("version", version, name::dns_1035_label));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn names_are_of_a_group_and_a_resource() {
        assert!(called("apps.deployments", false).is_empty());
        assert_eq!(
            called("deployments", false),
            ["name must be in the form of <group>.<resource>"]
        );
        let wrong = called("A.B", false);
        assert!(wrong[0].starts_with("the group segment a lowercase RFC 1123 subdomain"));
        assert!(wrong[1].starts_with("the resource segment a DNS-1035 label"));
    }

    #[test]
    fn servers_decode_what_they_encode_and_serve() {
        let server = |id: &str, encodes: &str| json!({"apiServerID": id, "encodingVersion": encodes, "decodableVersions": ["apps/v1"], "servedVersions": ["apps/v1"]});
        check(
            status(
                &json!({"status": {"commonEncodingVersion": "apps/v1", "storageVersions": [server("a", "apps/v1")]}}),
            ),
            &[],
        );
        check(
            status(
                &json!({"status": {"storageVersions": [server("a", "apps/v1"), server("a", "apps/v2")],
                "conditions": [{"type": "AllEncodingVersionsEqual", "status": "True"}]}}),
            ),
            &[
                "status.storageVersions[1].apiServerID: Duplicate value: \"a\"",
                "status.storageVersions[1].decodableVersions: Invalid value: [\"apps/v1\"]: decodableVersions must include encodingVersion apps/v2",
                "status[0].reason: Required value: reason cannot be empty",
                "status[0].message: Required value: message cannot be empty",
            ],
        );
        check(
            status(&json!({"status": {"storageVersions": [server("a", "apps/v1")]}})),
            &[
                "status.commonEncodingVersion: Invalid value: null: the common encoding version is apps/v1",
            ],
        );
    }
}
