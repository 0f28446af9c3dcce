//! Containers of every kind: names, images, ports, environment, mounts, resources, probes, hooks.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::quantity::Quantity;
use apimachinery::{Value, name};

use super::super::check::Node;
use super::super::tree::{at, flag, has, int, items, map, text};
use super::validation::one_of;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const MESSAGE_POLICIES: [&str; 2] = ["FallbackToLogsOnError", "File"];
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Amounts of a container that may be referred to.
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// What sizes may be divided by.
const SIZES: [&str; 13] = [
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];
const HEADER: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
const VARIABLE: &str = "a valid environment variable name must consist only of printable ASCII characters other than '='";
const STANDARD_RESOURCES: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

/// Validates the three lists of containers; `volumes` are the names that may be mounted.
pub fn all(spec: &Value, volumes: &[&str], path: &Path, errors: &mut ErrorList) {
    let containers = items(spec, &["containers"]);
    if containers.is_empty() {
        errors.push(Error::required(&path.child("containers"), ""));
    }
    let mut seen: Vec<&str> = Vec::new();
    for (list, init) in [("containers", false), ("initContainers", true)] {
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            let path = path.child(list).index(index);
            one(spec, container, volumes, &path, errors);
            unique(container, &mut seen, &path, errors);
            if init {
                init_container(container, &path, errors);
            } else if has(container, &["restartPolicy"]) && !has(container, &["restartPolicyRules"])
            {
                let policy = text(container, &["restartPolicy"]);
                let valid = super::validation::RESTART_POLICIES;
                one_of(policy, &valid, &path.child("restartPolicy"), errors);
            }
        }
    }
    for (index, container) in items(spec, &["ephemeralContainers"]).iter().enumerate() {
        let path = path.child("ephemeralContainers").index(index);
        ephemeral(spec, container, volumes, &path, errors);
        unique(container, &mut seen, &path, errors);
    }
    host_ports(spec, path, errors);
}

fn unique<'a>(container: &'a Value, seen: &mut Vec<&'a str>, path: &Path, errors: &mut ErrorList) {
    let called = text(container, &["name"]);
    if called.is_empty() {
        return;
    }
    if seen.contains(&called) {
        errors.push(Error::duplicate(&path.child("name"), called));
    }
    seen.push(called);
}

/// What all containers have in common (`validateContainerCommon`).
fn one(spec: &Value, container: &Value, volumes: &[&str], path: &Path, errors: &mut ErrorList) {
    let called = text(container, &["name"]);
    if called.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    } else {
        errors.push_invalid(&path.child("name"), called, name::dns_1123_label(called));
    }
    let image = text(container, &["image"]);
    if image.is_empty() {
        errors.push(Error::required(&path.child("image"), ""));
    }
    let policy = text(container, &["terminationMessagePolicy"]);
    one_of(
        policy,
        &MESSAGE_POLICIES,
        &path.child("terminationMessagePolicy"),
        errors,
    );
    ports(spec, container, &path.child("ports"), errors);
    environment(container, path, errors);
    super::mounts::validate(spec, container, volumes, path, errors);
    let policy = text(container, &["imagePullPolicy"]);
    one_of(
        policy,
        &PULL_POLICIES,
        &path.child("imagePullPolicy"),
        errors,
    );
    resources(
        at(container, &["resources"]),
        &path.child("resources"),
        errors,
    );
    let context = path.child("securityContext");
    super::security::container(spec, container, &context, errors);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        self::probe(container, probe, path, errors);
    }
    resize_policy(spec, container, path, errors);
    for hook in ["postStart", "preStop"] {
        if has(container, &["lifecycle", hook]) {
            let path = path.child("lifecycle").child(hook);
            sleep(spec, at(container, &["lifecycle", hook]), &path, errors);
            handler(
                at(container, &["lifecycle", hook]),
                &["exec", "httpGet", "tcpSocket", "sleep"],
                &path,
                errors,
            );
        }
    }
}

/// What only pods are held to, not the templates of pods (`validateContainerOnlyForPod`).
pub fn only_for_pods(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for (index, container) in items(spec, &[list]).iter().enumerate() {
            let image = text(container, &["image"]);
            if image != image.trim() {
                errors.push(Error::invalid(
                    &path.child(list).index(index).child("image"),
                    image,
                    "must not have leading or trailing whitespace",
                ));
            }
        }
    }
}

/// `validateResizePolicy`; upstream tells about all but duplicates at the list's path.
fn resize_policy(spec: &Value, container: &Value, path: &Path, errors: &mut ErrorList) {
    let root = Node::root(container, path.as_str());
    let policies = root.at("resizePolicy");
    let mut seen: Vec<&str> = Vec::new();
    let known = |value: &str, valid: &[&str], errors: &mut ErrorList| {
        one_of(value, valid, &policies.path(), errors);
    };
    for policy in policies.items() {
        let (resource, restart) = (
            policy.at("resourceName").text(),
            policy.at("restartPolicy").text(),
        );
        if seen.contains(&resource) {
            errors.push(Error::duplicate(&policy.path(), resource));
        }
        seen.push(resource);
        known(resource, &["cpu", "memory"], errors);
        known(restart, &["NotRequired", "RestartContainer"], errors);
        if text(spec, &["restartPolicy"]) == "Never" && restart != "NotRequired" {
            policies.invalid_as(
                errors,
                restart,
                "must be 'NotRequired' when `restartPolicy` is 'Never'",
            );
        }
    }
}

/// A pause before or after, which must end before the pod is killed.
fn sleep(spec: &Value, handler: &Value, path: &Path, errors: &mut ErrorList) {
    let Some(seconds) = int(handler, &["sleep", "seconds"]) else {
        return;
    };
    let grace = int(spec, &["terminationGracePeriodSeconds"]).unwrap_or(30);
    if seconds < 0 || seconds > grace {
        errors.push(Error::invalid(
            &path.child("sleep"),
            seconds,
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})"),
        ));
    }
}

fn init_container(container: &Value, path: &Path, errors: &mut ErrorList) {
    let restarts = text(container, &["restartPolicy"]) == "Always";
    if has(container, &["restartPolicy"]) && !restarts {
        let policy = text(container, &["restartPolicy"]);
        errors.push(Error::not_supported(
            &path.child("restartPolicy"),
            policy,
            &["Always"],
        ));
    }
    if restarts {
        return;
    }
    for field in [
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
    ] {
        if has(container, &[field]) {
            errors.push(Error::forbidden(
                &path.child(field),
                "may not be set for init containers without restartPolicy=Always",
            ));
        }
    }
}

fn ephemeral(
    spec: &Value,
    container: &Value,
    volumes: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    one(spec, container, volumes, path, errors);
    let target = text(container, &["targetContainerName"]);
    let known = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| items(spec, &[list]))
        .any(|container| text(container, &["name"]) == target);
    if !target.is_empty() && !known {
        errors.push(Error::not_found(&path.child("targetContainerName"), target));
    }
    for field in [
        "ports",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "resizePolicy",
    ] {
        if has(container, &[field]) {
            errors.push(Error::forbidden(
                &path.child(field),
                "cannot be set for an Ephemeral Container",
            ));
        }
    }
    if map(container, &["resources"]).is_some_and(|resources| !resources.is_empty()) {
        errors.push(Error::forbidden(
            &path.child("resources"),
            "cannot be set for an Ephemeral Container",
        ));
    }
}

fn ports(spec: &Value, container: &Value, path: &Path, errors: &mut ErrorList) {
    let mut names: Vec<&str> = Vec::new();
    for (index, port) in items(container, &["ports"]).iter().enumerate() {
        let path = path.index(index);
        let called = text(port, &["name"]);
        if !called.is_empty() {
            let wrong = name::port_name(called);
            if wrong.is_empty() && names.contains(&called) {
                errors.push(Error::duplicate(&path.child("name"), called));
            }
            names.push(called);
            errors.push_invalid(&path.child("name"), called, wrong);
        }
        let number = int(port, &["containerPort"]).unwrap_or(0);
        if number == 0 {
            errors.push(Error::required(&path.child("containerPort"), ""));
        } else {
            port_number(number, &path.child("containerPort"), errors);
        }
        let host = int(port, &["hostPort"]).unwrap_or(0);
        if host != 0 {
            port_number(host, &path.child("hostPort"), errors);
            if flag(spec, &["hostNetwork"]) && host != number {
                errors.push(Error::invalid(
                    &path.child("hostPort"),
                    host,
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
        one_of(
            text(port, &["protocol"]),
            &PROTOCOLS,
            &path.child("protocol"),
            errors,
        );
    }
}

fn port_number(number: i64, path: &Path, errors: &mut ErrorList) {
    for why in name::port_number(number) {
        errors.push(Error::invalid(path, number, why));
    }
}

/// Two containers of a pod cannot have one host port (`checkHostPortConflicts`).
fn host_ports(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let mut seen: Vec<(&str, &str, i64)> = Vec::new();
    for (at, container) in items(spec, &["containers"]).iter().enumerate() {
        for (index, port) in items(container, &["ports"]).iter().enumerate() {
            let host = int(port, &["hostPort"]).unwrap_or(0);
            if host == 0 {
                continue;
            }
            let key = (text(port, &["protocol"]), text(port, &["hostIP"]), host);
            if seen.contains(&key) {
                let path = path
                    .child("containers")
                    .index(at)
                    .child("ports")
                    .index(index);
                let text = format!("{}/{}/{}", key.0, key.1, key.2);
                errors.push(Error::duplicate(&path.child("hostPort"), text));
            }
            seen.push(key);
        }
    }
}

fn environment(container: &Value, path: &Path, errors: &mut ErrorList) {
    for (index, variable) in items(container, &["env"]).iter().enumerate() {
        let path = path.child("env").index(index);
        let called = text(variable, &["name"]);
        if called.is_empty() {
            errors.push(Error::required(&path.child("name"), ""));
        } else if !is_variable_name(called) {
            errors.push(Error::invalid(&path.child("name"), called, VARIABLE));
        }
        if has(variable, &["valueFrom"]) {
            value_from(variable, &path.child("valueFrom"), errors);
        }
    }
    // Upstream tells about the number of sources at the list's path.
    let list = path.child("envFrom");
    for (index, source) in items(container, &["envFrom"]).iter().enumerate() {
        let path = list.index(index);
        let prefix = text(source, &["prefix"]);
        if !is_variable_name(prefix) {
            errors.push(Error::invalid(&path.child("prefix"), prefix, VARIABLE));
        }
        let given = ["configMapRef", "secretRef"]
            .into_iter()
            .filter(|field| has(source, &[field]));
        for field in given.clone() {
            let (called, path) = (text(source, &[field, "name"]), path.child(field));
            if called.is_empty() {
                errors.push(Error::required(&path.child("name"), ""));
            } else {
                let wrong = name::dns_1123_subdomain(called);
                errors.push_invalid(&path.child("name"), called, wrong);
            }
        }
        let why = match given.count() {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(Error::invalid(&list, "", why));
    }
}

/// `IsRelaxedEnvVarName`, of which nothing is one too.
fn is_variable_name(text: &str) -> bool {
    text.bytes()
        .all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

fn value_from(variable: &Value, path: &Path, errors: &mut ErrorList) {
    let from = at(variable, &["valueFrom"]);
    let sources = [
        "fieldRef",
        "resourceFieldRef",
        "configMapKeyRef",
        "secretKeyRef",
        "fileKeyRef",
    ];
    let given: Vec<&str> = sources
        .into_iter()
        .filter(|field| has(from, &[field]))
        .collect();
    for field in &given {
        let path = path.child(field);
        let source = at(from, &[field]);
        match *field {
            "fieldRef" => field_ref(source, &ENV_FIELDS, &path, errors),
            "resourceFieldRef" => resource_field_ref(source, false, &path, errors),
            _ => {
                if *field != "fileKeyRef" {
                    let called = text(source, &["name"]);
                    let wrong = name::dns_1123_subdomain(called);
                    errors.push_invalid(&path.child("name"), called, wrong);
                }
                let key = text(source, &["key"]);
                if key.is_empty() {
                    errors.push(Error::required(&path.child("key"), ""));
                } else if *field != "fileKeyRef" {
                    errors.push_invalid(&path.child("key"), key, name::config_map_key(key));
                }
            }
        }
    }
    if given.is_empty() {
        errors.push(Error::invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ));
    } else if !text(variable, &["value"]).is_empty() {
        errors.push(Error::invalid(
            path,
            "",
            "may not be specified when `value` is not empty",
        ));
    } else if given.len() > 1 {
        errors.push(Error::invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        ));
    }
}

/// A reference to an amount of a container (`validateContainerResourceFieldSelector`); a volume's says which one.
pub fn resource_field_ref(source: &Value, volume: bool, path: &Path, errors: &mut ErrorList) {
    let resource = text(source, &["resource"]);
    if volume && text(source, &["containerName"]).is_empty() {
        errors.push(Error::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(Error::required(&path.child("resource"), ""));
    } else if !RESOURCE_FIELDS.contains(&resource)
        && !resource.starts_with("requests.hugepages-")
        && !resource.starts_with("limits.hugepages-")
    {
        errors.push(Error::not_supported(
            &path.child("resource"),
            resource,
            &RESOURCE_FIELDS,
        ));
    }
    let Some(divisor) = source
        .get("divisor")
        .and_then(Value::as_str)
        .and_then(|text| text.parse::<Quantity>().ok())
        .filter(|divisor| divisor.sign() != 0)
    else {
        return;
    };
    let (known, what) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"][..], "1m and 1 are supported with the cpu"),
        "limits.memory" | "requests.memory" => (
            &SIZES[..],
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory",
        ),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (
            &SIZES[..],
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the local ephemeral storage",
        ),
        _ => return,
    };
    if !known.contains(&divisor.to_string().as_str()) {
        errors.push(Error::invalid(
            &path.child("divisor"),
            resource,
            format!("only divisor's values {what} resource"),
        ));
    }
}

/// A reference to a field of the pod; `metadata.labels['x']` and `metadata.annotations['x']` are always allowed.
pub fn field_ref(source: &Value, valid: &[&str], path: &Path, errors: &mut ErrorList) {
    if text(source, &["apiVersion"]).is_empty() {
        errors.push(Error::required(&path.child("apiVersion"), ""));
        return;
    }
    let field = text(source, &["fieldPath"]);
    let path = path.child("fieldPath");
    if field.is_empty() {
        errors.push(Error::required(&path, ""));
        return;
    }
    for map in ["metadata.annotations", "metadata.labels"] {
        if let Some(key) = field
            .strip_prefix(map)
            .and_then(|rest| rest.strip_prefix("['"))
            .and_then(|rest| rest.strip_suffix("']"))
        {
            errors.push_invalid(&path, key, name::qualified_name(&key.to_lowercase()));
            return;
        }
    }
    if !valid.contains(&field) {
        errors.push(Error::not_supported(&path, field, valid));
    }
}

/// Amounts of resources that containers may have.
pub fn resource_amounts(amounts: &Value, path: &Path, errors: &mut ErrorList) {
    for (called, amount) in amounts.as_object().into_iter().flatten() {
        let path = path.key(called);
        resource_name(called, &path, errors);
        let negative = amount
            .as_str()
            .and_then(|text| text.parse::<Quantity>().ok())
            .is_some_and(|amount| amount.sign() < 0);
        if negative {
            errors.push(Error::invalid(
                &path,
                amount,
                "must be greater than or equal to 0",
            ));
        }
    }
}

/// `ValidateContainerResourceRequirements`.
pub fn resources(resources: &Value, path: &Path, errors: &mut ErrorList) {
    let parse = |amount: &Value| -> Option<Quantity> { amount.as_str()?.parse().ok() };
    for field in ["limits", "requests"] {
        for (called, amount) in map(resources, &[field]).into_iter().flatten() {
            let path = path.child(field).key(called);
            resource_name(called, &path, errors);
            if let Some(quantity) = parse(amount) {
                if quantity.sign() < 0 {
                    errors.push(Error::invalid(
                        &path,
                        amount.clone(),
                        "must be greater than or equal to 0",
                    ));
                }
                if !STANDARD_RESOURCES.contains(&called.as_str()) && !quantity.is_whole() {
                    errors.push(Error::invalid(&path, amount.clone(), "must be an integer"));
                }
            }
        }
    }
    huge_pages(resources, path, errors);
    let limits = at(resources, &["limits"]);
    for (called, amount) in map(resources, &["requests"]).into_iter().flatten() {
        let path = path.child("requests");
        let overcommits = STANDARD_RESOURCES.contains(&called.as_str());
        match limits.get(called) {
            Some(limit) => {
                let (Some(request), Some(most)) = (parse(amount), parse(limit)) else {
                    continue;
                };
                let shown = limit.as_str().unwrap_or("");
                if !overcommits && request != most {
                    let why = format!("must be equal to {called} limit of {shown}");
                    errors.push(Error::invalid(&path, amount.clone(), why));
                } else if request > most {
                    let why = format!("must be less than or equal to {called} limit of {shown}");
                    errors.push(Error::invalid(&path, amount.clone(), why));
                }
            }
            None if !overcommits => errors.push(Error::required(
                &path.child("").key(called),
                "Limit must be set for non overcommitable resources",
            )),
            None => {}
        }
    }
}

/// Huge pages are of no use alone.
fn huge_pages(resources: &Value, path: &Path, errors: &mut ErrorList) {
    let names = || {
        ["limits", "requests"]
            .into_iter()
            .flat_map(|field| map(resources, &[field]).into_iter().flatten())
            .map(|(called, _)| called.as_str())
    };
    if names().any(|called| called.starts_with("hugepages-"))
        && !names().any(|called| matches!(called, "cpu" | "memory"))
    {
        errors.push(Error::forbidden(path, "HugePages require cpu or memory"));
    }
}

fn resource_name(called: &str, path: &Path, errors: &mut ErrorList) {
    errors.push_invalid(path, called, name::qualified_name(called));
    let standard = STANDARD_RESOURCES.contains(&called) || called.starts_with("hugepages-");
    if !called.contains('/') && !standard {
        errors.push(Error::invalid(
            path,
            called,
            "must be a standard resource for containers",
        ));
    }
}

fn probe(container: &Value, kind: &str, path: &Path, errors: &mut ErrorList) {
    if !has(container, &[kind]) {
        return;
    }
    let probe = at(container, &[kind]);
    let path = path.child(kind);
    handler(
        probe,
        &["exec", "httpGet", "tcpSocket", "grpc"],
        &path,
        errors,
    );
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        let number = int(probe, &[field]).unwrap_or(0);
        if number < 0 {
            errors.push(Error::invalid(
                &path.child(field),
                number,
                "must be greater than or equal to 0",
            ));
        }
    }
    let successes = int(probe, &["successThreshold"]).unwrap_or(1);
    if kind != "readinessProbe" && successes != 1 {
        errors.push(Error::invalid(
            &path.child("successThreshold"),
            successes,
            "must be 1",
        ));
    }
    if let Some(seconds) = int(probe, &["terminationGracePeriodSeconds"]) {
        if kind == "readinessProbe" {
            errors.push(Error::invalid(
                &path.child("terminationGracePeriodSeconds"),
                seconds,
                "must not be set for readinessProbes",
            ));
        } else if seconds <= 0 {
            errors.push(Error::invalid(
                &path.child("terminationGracePeriodSeconds"),
                seconds,
                "must be greater than 0",
            ));
        }
    }
}

fn handler(handler: &Value, kinds: &[&str], path: &Path, errors: &mut ErrorList) {
    let given: Vec<&&str> = kinds.iter().filter(|kind| has(handler, &[kind])).collect();
    for kind in given.iter().skip(1) {
        errors.push(Error::forbidden(
            &path.child(kind),
            "may not specify more than 1 handler type",
        ));
    }
    let Some(kind) = given.first() else {
        errors.push(Error::required(path, "must specify a handler type"));
        return;
    };
    let path = path.child(kind);
    let action = at(handler, &[kind]);
    match **kind {
        "exec" => {
            if items(action, &["command"]).is_empty() {
                errors.push(Error::required(&path.child("command"), ""));
            }
        }
        "httpGet" => {
            if text(action, &["path"]).is_empty() {
                errors.push(Error::required(&path.child("path"), ""));
            }
            port_or_name(at(action, &["port"]), &path.child("port"), errors);
            one_of(
                text(action, &["scheme"]),
                &["HTTP", "HTTPS"],
                &path.child("scheme"),
                errors,
            );
            for header in items(action, &["httpHeaders"]) {
                let called = text(header, &["name"]);
                let good = !called.is_empty()
                    && called
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                if !good {
                    errors.push(Error::invalid(&path.child("httpHeaders"), called, HEADER));
                }
            }
        }
        "tcpSocket" => port_or_name(at(action, &["port"]), &path.child("port"), errors),
        "grpc" => {
            let number = int(action, &["port"]).unwrap_or(0);
            port_number(number, &path.child("port"), errors);
        }
        _ => {}
    }
}

/// A port by number or by name.
pub fn port_or_name(port: &Value, path: &Path, errors: &mut ErrorList) {
    match port {
        Value::String(text) => errors.push_invalid(path, text, name::port_name(text)),
        port => port_number(port.as_i64().unwrap_or(0), path, errors),
    }
}
