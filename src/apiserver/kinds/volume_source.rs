//! Sources of storage that volumes of pods and persistent volumes share: what each cannot do without and what it may say.
//!
//! Pods name secrets in their own namespace; persistent volumes have none, so theirs carry one. `Form` says which it is.

use std::sync::LazyLock;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::name;
use regex::Regex;

use super::check::Node;
use super::storage::csi::driver_name;

/// Where a source stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form<'a> {
    /// In a pod's spec.
    Inline,
    /// In a persistent volume's spec; the volume's name.
    Persistent(&'a str),
}

/// Longest `<volume name>:<iscsi.targetPortal>` with an initiator of one's own.
const MAX_PORTAL: usize = 64;
/// Longest tenant of a Quobyte volume, exclusive.
const MAX_TENANT: usize = 65;
const PARTITION: &str = "must be between 1 and 255, inclusive";
const LUN: &str = "must be between 0 and 255, inclusive";
const TOO_LONG_PORTAL: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
const REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";
const MORE_THAN_ONE: &str = "may not specify more than 1 volume type";

/// Members a source of storage must have, when that is all there is to it.
const REQUIRED: &[(&str, &[&str])] = &[
    ("cephfs", &["monitors"]),
    ("gitRepo", &["repository"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("rbd", &["monitors", "image"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("vsphereVolume", &["volumePath"]),
];

/// The first of the sources in `order` that is set is the volume's; each further one is refused. Answers with its name.
pub fn only<'o>(
    volume: &Node<'_, '_>,
    order: &[&'o str],
    errors: &mut ErrorList,
) -> Option<&'o str> {
    let mut given = order.iter().filter(|kind| volume.at(kind).is_set());
    let first = given.next();
    for extra in given {
        volume.at(told(extra)).forbidden(errors, MORE_THAN_ONE);
    }
    if first.is_none() {
        volume.required(errors, "must specify a volume type");
    }
    first.copied()
}

/// What upstream calls a source when there is one too many.
fn told(kind: &str) -> &str {
    match kind {
        "cephfs" => "cephFS",
        "downwardAPI" => "downwarAPI",
        other => other,
    }
}

/// Checks the source `kind` of a volume; kinds that only pods have are not known here.
pub fn check(volume: &Node<'_, '_>, kind: &str, form: Form<'_>, errors: &mut ErrorList) {
    let source = volume.at(kind);
    if let Some((_, fields)) = REQUIRED.iter().find(|(known, _)| *known == kind) {
        for field in *fields {
            source.at(field).present(errors);
        }
    }
    match kind {
        "hostPath" => host_path(&source, errors),
        "gitRepo" => descending(&source.at("directory"), errors),
        "nfs" => {
            source.at("server").present(errors);
            let export = source.at("path");
            export.present(errors);
            if !export.text().starts_with('/') {
                export.invalid_as(errors, export.text(), "must be an absolute path");
            }
        }
        // Upstream tells about it under another name.
        "gcePersistentDisk" => disk(&source, &volume.told_at("persistentDisk"), "pdName", errors),
        "awsElasticBlockStore" => disk(&source, &source, "volumeID", errors),
        "glusterfs" => glusterfs(&source, form, errors),
        "flocker" => flocker(&source, errors),
        "quobyte" => quobyte(&source, errors),
        "iscsi" => iscsi(volume, &source, form, errors),
        "cinder" => {
            source.at("volumeID").present(errors);
            secret(&source.at("secretRef"), form, errors);
        }
        "fc" => fibre_channel(&source, errors),
        "flexVolume" => flex(&source, errors),
        "azureFile" => {
            source.at("secretName").present(errors);
            source.at("shareName").present(errors);
            let namespace = source.at("secretNamespace");
            if namespace.is_set() {
                namespace.present(errors);
            }
        }
        "azureDisk" => azure_disk(&source, errors),
        "storageos" => {
            source.at("volumeName").named(errors, name::dns_1123_label);
            source
                .at("volumeNamespace")
                .syntax_if_set(errors, name::dns_1123_label);
            secret(&source.at("secretRef"), form, errors);
        }
        "local" => {
            let dir = source.at("path");
            if dir.present(errors) {
                no_backsteps(&dir, errors);
            }
        }
        "csi" => csi(&source, form, errors),
        _ => {}
    }
}

/// `validatePathNoBacksteps`.
fn no_backsteps(path: &Node<'_, '_>, errors: &mut ErrorList) {
    if path.text().split('/').any(|part| part == "..") {
        path.invalid(errors, "must not contain '..'");
    }
}

/// `validateLocalDescendingPath`.
fn descending(path: &Node<'_, '_>, errors: &mut ErrorList) {
    if path.text().starts_with('/') {
        path.invalid(errors, "must be a relative path");
    }
    no_backsteps(path, errors);
}

fn host_path(source: &Node<'_, '_>, errors: &mut ErrorList) {
    const TYPES: [&str; 8] = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    let dir = source.at("path");
    if !dir.present(errors) {
        return;
    }
    no_backsteps(&dir, errors);
    source.at("type").known_if_set(errors, &TYPES);
}

fn disk(source: &Node<'_, '_>, told: &Node<'_, '_>, id: &str, errors: &mut ErrorList) {
    if source.at(id).is_empty() {
        told.told_at(id).required(errors, "");
    }
    let partition = source.at("partition").int().unwrap_or(0);
    if !(0..=255).contains(&partition) {
        told.told_at("partition")
            .invalid_as(errors, partition, PARTITION);
    }
}

fn glusterfs(source: &Node<'_, '_>, form: Form<'_>, errors: &mut ErrorList) {
    source.at("endpoints").present(errors);
    source.at("path").present(errors);
    let namespace = source.at("endpointsNamespace");
    if form == Form::Inline || !namespace.is_set() {
        return;
    }
    if namespace.text().is_empty() {
        namespace.invalid(
            errors,
            "if the endpointnamespace is set, it must be a valid namespace name",
        );
    } else {
        namespace.syntax(errors, name::dns_1123_label);
    }
}

fn flocker(source: &Node<'_, '_>, errors: &mut ErrorList) {
    let (name, id) = (source.at("datasetName"), source.at("datasetUUID"));
    if name.is_empty() && id.is_empty() {
        source.required(errors, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !id.is_empty() {
        source.invalid_as(
            errors,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        );
    }
    if name.text().contains('/') {
        name.invalid(errors, "must not contain '/'");
    }
}

fn quobyte(source: &Node<'_, '_>, errors: &mut ErrorList) {
    let registry = source.at("registry");
    if registry.text().is_empty() {
        registry.required(errors, REGISTRY);
    } else if source.at("tenant").text().len() >= MAX_TENANT {
        source.at("tenant").required(
            errors,
            "must be a UUID and may not exceed a length of 64 characters",
        );
    } else {
        for pair in registry.text().split(',') {
            if !is_host_and_port(pair) {
                registry.invalid(errors, REGISTRY);
            }
        }
    }
    source.at("volume").present(errors);
}

/// What Go's `net.SplitHostPort` takes: one colon outside of brackets, the last.
fn is_host_and_port(pair: &str) -> bool {
    match pair.rsplit_once(':') {
        Some((host, _)) if host.starts_with('[') => host.ends_with(']'),
        Some((host, port)) => !host.contains([':', '[', ']']) && !port.contains(['[', ']']),
        None => false,
    }
}

static IQN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"iqn\.\d{4}-\d{2}\.([[:alnum:].-]+)(:[^,;*&$|\s]+)$").expect("a constant")
});
static EUI: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^eui.[[:alnum:]]{16}$").expect("a constant"));
static NAA: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^naa.[[:alnum:]]{32}$").expect("a constant"));

/// A name of an end of an iSCSI session; says what is wrong with it.
fn iscsi_name(text: &str, form: Form<'_>) -> Option<&'static str> {
    let rule = match text.get(..3) {
        Some("iqn") => &IQN,
        Some("eui") => &EUI,
        Some("naa") => &NAA,
        _ if form == Form::Inline => {
            return Some("must be valid format starting with iqn, eui, or naa");
        }
        _ => return Some("must be valid format"),
    };
    (!rule.is_match(text)).then_some("must be valid format")
}

fn iscsi(volume: &Node<'_, '_>, source: &Node<'_, '_>, form: Form<'_>, errors: &mut ErrorList) {
    let (portal, initiator) = (source.at("targetPortal"), source.at("initiatorName"));
    let too_long =
        |called: &str| initiator.is_set() && called.len() + 1 + portal.text().len() > MAX_PORTAL;
    portal.present(errors);
    if let Form::Persistent(called) = form
        && too_long(called)
    {
        source
            .told_at("targetportal")
            .invalid_as(errors, portal.text(), TOO_LONG_PORTAL);
    }
    let target = source.at("iqn");
    if target.present(errors)
        && let Some(why) = iscsi_name(target.text(), form)
    {
        target.invalid(errors, why);
    }
    let lun = source.at("lun").int().unwrap_or(0);
    if !(0..=255).contains(&lun) {
        source.at("lun").invalid_as(errors, lun, LUN);
    }
    let reference = source.at("secretRef");
    if (source.at("chapAuthDiscovery").flag() || source.at("chapAuthSession").flag())
        && !reference.is_set()
    {
        reference.required(errors, "");
    }
    if form != Form::Inline && reference.is_set() {
        reference.at("name").present(errors);
    }
    if initiator.is_set()
        && let Some(why) = iscsi_name(initiator.text(), form)
    {
        source
            .told_at("initiatorname")
            .invalid_as(errors, initiator.text(), why);
    }
    let called = volume.at("name");
    if form == Form::Inline && too_long(called.text()) {
        called.invalid_as(errors, called.text(), TOO_LONG_PORTAL);
    }
}

fn fibre_channel(source: &Node<'_, '_>, errors: &mut ErrorList) {
    let (names, ids) = (source.at("targetWWNs"), source.at("wwids"));
    if names.is_empty() && ids.is_empty() {
        names.required(
            errors,
            "must specify either targetWWNs or wwids, but not both",
        );
    }
    if names.is_empty() {
        return;
    }
    if !ids.is_empty() {
        names.invalid(
            errors,
            "targetWWNs and wwids can not be specified simultaneously",
        );
    }
    let lun = source.at("lun");
    if lun.is_set() {
        lun.between(errors, 0, 255, LUN);
    } else {
        lun.required(errors, "lun is required if targetWWNs is specified");
    }
}

fn flex(source: &Node<'_, '_>, errors: &mut ErrorList) {
    source.at("driver").present(errors);
    for (key, option) in source.at("options").entries() {
        let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
        let domain = format!(".{}", domain.to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            option.invalid_as(
                errors,
                key,
                "kubernetes.io and k8s.io namespaces are reserved",
            );
        }
    }
}

fn azure_disk(source: &Node<'_, '_>, errors: &mut ErrorList) {
    source.at("diskName").present(errors);
    let uri = source.at("diskURI");
    uri.present(errors);
    source
        .at("cachingMode")
        .known_if_set(errors, &["None", "ReadOnly", "ReadWrite"]);
    let kind = source.at("kind");
    kind.known_if_set(errors, &["Dedicated", "Managed", "Shared"]);
    let (start, shape) = match kind.text() {
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        ),
    };
    if kind.is_set() && !uri.text().starts_with(start) {
        uri.not_supported(errors, &[shape]);
    }
}

/// A secret by name, and where volumes have no namespace of their own, by namespace too.
fn secret(reference: &Node<'_, '_>, form: Form<'_>, errors: &mut ErrorList) {
    if !reference.is_set() {
        return;
    }
    reference.at("name").present(errors);
    if form != Form::Inline {
        reference.at("namespace").present(errors);
    }
}

fn csi(source: &Node<'_, '_>, form: Form<'_>, errors: &mut ErrorList) {
    driver_name(&source.at("driver"), errors);
    if form == Form::Inline {
        let reference = source.at("nodePublishSecretRef");
        if !reference.is_set() {
            return;
        }
        let called = reference.at("name");
        if called.present(errors) {
            for why in name::dns_1123_subdomain(called.text()) {
                source
                    .told_at("name")
                    .invalid_as(errors, called.text(), why);
            }
        }
        return;
    }
    source.at("volumeHandle").present(errors);
    for field in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let reference = source.at(field);
        if reference.is_set() {
            reference.at("name").named(errors, name::dns_1123_subdomain);
            reference
                .at("namespace")
                .named(errors, name::dns_1123_label);
        }
    }
}

/// `ValidateLocalNonReservedPath`.
pub fn local_path(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.starts_with('/') {
        errors.push(Error::invalid(path, text, "must be a relative path"));
    }
    if text.split('/').any(|part| part == "..") {
        errors.push(Error::invalid(path, text, "must not contain '..'"));
    } else if text.starts_with("..") {
        errors.push(Error::invalid(path, text, "must not start with '..'"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check as expect;
    use apimachinery::Value;
    use serde_json::json;

    #[track_caller]
    fn errors_of(source: Value, kind: &str, form: Form<'_>, texts: &[&str]) {
        let volume = json!({"name": "v", kind: source});
        let mut errors = ErrorList::new();
        check(&Node::root(&volume, "spec"), kind, form, &mut errors);
        expect(errors, texts);
    }

    #[test]
    fn an_initiator_is_named_by_one_of_three_schemes() {
        let good = "iqn.2015-02.example.com:test";
        errors_of(
            json!({"targetPortal": "a", "iqn": good, "initiatorName": good}),
            "iscsi",
            Form::Inline,
            &[],
        );
        errors_of(
            json!({"targetPortal": "a", "iqn": "x", "lun": 256, "chapAuthSession": true, "initiatorName": "eui.1"}),
            "iscsi",
            Form::Persistent("pv"),
            &[
                "spec.iscsi.iqn: Invalid value: \"x\": must be valid format",
                "spec.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
                "spec.iscsi.secretRef: Required value",
                "spec.iscsi.initiatorname: Invalid value: \"eui.1\": must be valid format",
            ],
        );
    }

    #[test]
    fn secrets_of_persistent_volumes_carry_a_namespace() {
        let source = json!({"volumeName": "a", "secretRef": {"name": "s"}});
        errors_of(source.clone(), "storageos", Form::Inline, &[]);
        errors_of(
            source,
            "storageos",
            Form::Persistent("pv"),
            &["spec.storageos.secretRef.namespace: Required value"],
        );
    }

    #[test]
    fn rare_sources_are_refused_without_what_they_need() {
        let form = Form::Inline;
        errors_of(
            json!({"partition": 300}),
            "gcePersistentDisk",
            form,
            &[
                "spec.persistentDisk.pdName: Required value",
                "spec.persistentDisk.partition: Invalid value: 300: must be between 1 and 255, inclusive",
            ],
        );
        errors_of(
            json!({"registry": "a", "volume": "v"}),
            "quobyte",
            form,
            &[
                "spec.quobyte.registry: Invalid value: \"a\": must be a host:port pair or multiple pairs separated by commas",
            ],
        );
        errors_of(
            json!({"targetWWNs": ["a"]}),
            "fc",
            form,
            &["spec.fc.lun: Required value: lun is required if targetWWNs is specified"],
        );
        errors_of(
            json!({"driver": "d", "options": {"x.k8s.io/a": "b", "c": "d"}}),
            "flexVolume",
            form,
            &[
                "spec.flexVolume.options[x.k8s.io/a]: Invalid value: \"x.k8s.io/a\": kubernetes.io and k8s.io namespaces are reserved",
            ],
        );
        errors_of(
            json!({"diskName": "a", "diskURI": "x", "kind": "Managed"}),
            "azureDisk",
            form,
            &[
                "spec.azureDisk.diskURI: Unsupported value: \"x\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
            ],
        );
    }

    #[test]
    fn the_second_source_is_one_too_many() {
        let volume = json!({"nfs": {}, "cephfs": {}});
        let mut errors = ErrorList::new();
        let first = only(&Node::root(&volume, "v"), &["nfs", "cephfs"], &mut errors);
        assert_eq!(first, Some("nfs"));
        expect(
            errors,
            &["v.cephFS: Forbidden: may not specify more than 1 volume type"],
        );
    }

    #[test]
    fn a_pair_is_a_host_and_a_port() {
        for (pair, is) in [
            ("a:1", true),
            ("[::1]:2", true),
            ("a", false),
            ("a:b:c", false),
        ] {
            assert_eq!(is_host_and_port(pair), is, "{pair}");
        }
    }
}
