//! Security contexts of pods and containers, and what an operating system has no use for.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};

use super::super::check::Node;
use super::super::tree::{at, flag, has, text};
use super::validation::id_in_range;

/// Longest name of a kernel parameter.
const MAX_SYSCTL: usize = 253;
const SYSCTL_REGEX: &str = "([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
const WINDOWS: &str = "cannot be set for a windows pod";

const NO_WINDOWS_SPEC: [&str; 4] = ["hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"];
const NO_WINDOWS_POD: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
];
const NO_WINDOWS_CONTAINER: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// The pod's own context (`ValidatePodSecurityContext`) and what goes with it.
pub fn pod(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let root = Node::root(spec, path.as_str());
    let context = root.at("securityContext");
    if context.is_set() {
        for field in ["fsGroup", "runAsUser", "runAsGroup"] {
            let id = context.at(field);
            if let Some(number) = id.int() {
                id_in_range(number, &id.path(), errors);
            }
        }
        let groups = context.at("supplementalGroups");
        for group in groups.items() {
            id_in_range(group.int().unwrap_or(0), &group.path(), errors);
        }
        context
            .at("fsGroupChangePolicy")
            .known_if_set(errors, &["Always", "OnRootMismatch"]);
        context
            .at("supplementalGroupsPolicy")
            .known_if_set(errors, &["Merge", "Strict"]);
        sysctls(&context.at("sysctls"), errors);
        profile(&context.at("seccompProfile"), "seccomp", errors);
        profile(&context.at("appArmorProfile"), "AppArmor", errors);
    }
    host_namespaces(&root, errors);
    operating_system(&root, errors);
}

fn host_namespaces(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let shares = spec.at("shareProcessNamespace");
    if shares.flag() && spec.at("hostPID").flag() {
        shares.invalid(
            errors,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    let users = spec.at("hostUsers");
    if users.is_set() && !users.flag() {
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            if spec.at(field).flag() {
                spec.at(field)
                    .forbidden(errors, "when `hostUsers` is false");
            }
        }
    }
}

fn sysctls(list: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for sysctl in list.items() {
        let called = sysctl.at("name");
        if called.text().is_empty() {
            called.required(errors, "");
        } else if !is_sysctl(called.text()) {
            called.invalid(
                errors,
                format!("must have at most {MAX_SYSCTL} characters and match regex {SYSCTL_REGEX}"),
            );
        } else if seen.contains(&called.text()) {
            called.duplicate(errors);
        }
        seen.push(called.text());
    }
}

fn is_sysctl(text: &str) -> bool {
    let edge = |byte: Option<u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    text.len() <= MAX_SYSCTL
        && text.split(['.', '/']).all(|part| {
            edge(part.bytes().next())
                && edge(part.bytes().last())
                && part.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
                })
        })
}

/// A seccomp or AppArmor profile; `of` is the word texts use.
fn profile(profile: &Node<'_, '_>, of: &str, errors: &mut ErrorList) {
    if !profile.is_set() {
        return;
    }
    let (kind, local) = (profile.at("type"), profile.at("localhostProfile"));
    match kind.text() {
        "Localhost" => {
            if local.text().is_empty() {
                local.required(errors, &format!("must be set when {of} type is Localhost"));
            } else if of == "seccomp" {
                descending(&local, errors);
            }
        }
        _ if local.is_set() => {
            local.invalid(
                errors,
                format!("can only be set when {of} type is Localhost"),
            );
        }
        _ => {}
    }
    if kind.text().is_empty() {
        let field = if of == "seccomp" {
            "seccompProfile"
        } else {
            "appArmorProfile"
        };
        kind.required(errors, &format!("type is required when {field} is set"));
    } else if !PROFILE_TYPES.contains(&kind.text()) {
        kind.not_supported(errors, &PROFILE_TYPES);
    }
}

/// `validateLocalDescendingPath`.
fn descending(path: &Node<'_, '_>, errors: &mut ErrorList) {
    if path.text().starts_with('/') {
        path.invalid(errors, "must be a relative path");
    }
    if path.text().split('/').any(|part| part == "..") {
        path.invalid(errors, "must not contain '..'");
    }
}

/// A container's context (`ValidateSecurityContext`).
pub fn container(spec: &Value, container: &Value, path: &Path, errors: &mut ErrorList) {
    let context = Node::root(at(container, &["securityContext"]), path.as_str());
    if !context.is_set() {
        return;
    }
    for field in ["runAsUser", "runAsGroup"] {
        let id = context.at(field);
        if let Some(number) = id.int() {
            id_in_range(number, &id.path(), errors);
        }
    }
    let mount = context.at("procMount");
    mount.known_if_set(errors, &["Default", "Unmasked"]);
    if mount.text() == "Unmasked" && at(spec, &["hostUsers"]) != &Value::Bool(false) {
        mount.invalid(errors, "`hostUsers` must be false to use `Unmasked`");
    }
    profile(&context.at("seccompProfile"), "seccomp", errors);
    profile(&context.at("appArmorProfile"), "AppArmor", errors);
    let stays = at(context.value, &["allowPrivilegeEscalation"]) == &Value::Bool(false);
    if stays && flag(context.value, &["privileged"]) {
        context.invalid(
            errors,
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        );
    }
    let capabilities = context.at("capabilities");
    let adds_admin = capabilities
        .at("add")
        .list()
        .iter()
        .any(|capability| capability == "CAP_SYS_ADMIN");
    if stays && adds_admin {
        context.invalid(
            errors,
            "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
        );
    }
}

/// `validateWindows`, `validateLinux`.
fn operating_system(spec: &Node<'_, '_>, errors: &mut ErrorList) {
    let os = text(spec.value, &["os", "name"]);
    if os.is_empty() {
        return;
    }
    let context = spec.at("securityContext");
    let mut refuse = |holder: &Node<'_, '_>, fields: &[&str], why: &str| {
        for field in fields {
            let given = holder.at(field);
            if given.is_set() && given.value != &Value::Bool(false) {
                errors.push(Error::forbidden(&given.path(), why));
            }
        }
    };
    if os == "windows" {
        refuse(spec, &NO_WINDOWS_SPEC, WINDOWS);
        refuse(&context, &NO_WINDOWS_POD, WINDOWS);
    } else {
        let why = "windows options cannot be set for a linux pod";
        refuse(&context, &["windowsOptions"], why);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let containers = spec.at(list);
        for container in containers.items() {
            if !has(container.value, &["securityContext"]) {
                continue;
            }
            let context = container.at("securityContext");
            if os == "windows" {
                refuse(&context, &NO_WINDOWS_CONTAINER, WINDOWS);
            } else {
                let why = "windows options cannot be set for a linux pod";
                refuse(&context, &["windowsOptions"], why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(spec: Value, expect: &[&str]) {
        let mut errors = ErrorList::new();
        pod(&spec, &Path::new("spec"), &mut errors);
        for item in spec["containers"].as_array().into_iter().flatten() {
            let path = Path::new("c").child("securityContext");
            container(&spec, item, &path, &mut errors);
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expect);
    }

    #[test]
    fn profiles_and_parameters_are_well_formed() {
        check(
            json!({"securityContext": {"seccompProfile": {"type": "Localhost"}, "sysctls": [{"name": "net.core.somaxconn"}, {"name": "X"}],
                "fsGroup": -1, "fsGroupChangePolicy": "x"}}),
            &[
                "spec.securityContext.fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnRootMismatch\"",
                "spec.securityContext.sysctls[1].name: Invalid value: \"X\": must have at most 253 characters and match regex ([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?",
                "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            ],
        );
        check(
            json!({"containers": [{"securityContext": {"seccompProfile": {"localhostProfile": "x", "type": "Unconfined"}, "procMount": "Unmasked"}}]}),
            &[
                "c.securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
                "c.securityContext.seccompProfile.localhostProfile: Invalid value: \"x\": can only be set when seccomp type is Localhost",
            ],
        );
    }

    #[test]
    fn systems_refuse_what_they_do_not_have() {
        check(
            json!({"os": {"name": "windows"}, "securityContext": {"runAsUser": 1}, "hostPID": true}),
            &[
                "spec.hostPID: Forbidden: cannot be set for a windows pod",
                "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod",
            ],
        );
        check(
            json!({"hostUsers": false, "hostNetwork": true}),
            &["spec.hostNetwork: Forbidden: when `hostUsers` is false"],
        );
    }
}
