//! The checks of the baseline and restricted levels, each a line in a table in the order upstream tells them
//! (`pod-security-admission/policy`).

use apimachinery::Value;

use super::containers;
use crate::kinds::tree::{at, flag, has, int, items, map, text};

/// Answers with what is wrong, `None` when nothing is.
type Check = fn(&Value) -> Option<String>;

/// The checks of the baseline; the second says whether a stricter one takes its place at the restricted level.
const BASELINE: [(Check, bool); 12] = [
    (app_armor, false),
    (capabilities_baseline, true),
    (host_namespaces, false),
    (host_path, true),
    (host_ports, false),
    (probe_hosts, false),
    (privileged, false),
    (proc_mount, false),
    (selinux, false),
    (seccomp_baseline, true),
    (sysctls, false),
    (host_process, false),
];

const RESTRICTED: [Check; 6] = [
    escalation,
    capabilities_restricted,
    volume_types,
    non_root,
    root_user,
    seccomp_restricted,
];

/// Capabilities that containers have anyhow.
const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const SAFE_SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
];

const SELINUX_TYPES: [&str; 5] = [
    "",
    "container_engine_t",
    "container_init_t",
    "container_kvm_t",
    "container_t",
];

/// Kinds of volumes that the restricted level knows.
const PLAIN_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What a pod does that the baseline does not allow; with `covered`, without what the restricted checks say anyhow.
pub fn baseline(pod: &Value, covered: bool) -> Vec<String> {
    BASELINE
        .iter()
        .filter(|(_, overridden)| !(covered && *overridden))
        .filter_map(|(check, _)| check(pod))
        .collect()
}

/// What a pod does, or leaves undone, that the restricted level does not allow.
pub fn restricted(pod: &Value) -> Vec<String> {
    let mut found = baseline(pod, true);
    found.extend(RESTRICTED.iter().filter_map(|check| check(pod)));
    found
}

fn quoted<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<String> = names
        .iter()
        .map(|name| format!("{:?}", name.as_ref()))
        .collect();
    names.join(", ")
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 {
        word.to_owned()
    } else {
        format!("{word}s")
    }
}

/// `container "a"`, `containers "a", "b"`.
fn named(names: &[&str]) -> String {
    format!("{} {}", plural("container", names.len()), quoted(names))
}

/// The names of the containers of which something is true.
fn those(pod: &Value, bad: impl Fn(&Value) -> bool) -> Vec<&str> {
    containers(pod)
        .filter(|container| bad(container))
        .map(|container| text(container, &["name"]))
        .collect()
}

fn context<'a>(holder: &'a Value, path: &[&str]) -> &'a Value {
    at(at(holder, &["securityContext"]), path)
}

fn pod_context<'a>(pod: &'a Value, path: &[&str]) -> &'a Value {
    at(at(pod, &["spec", "securityContext"]), path)
}

fn is_windows(pod: &Value) -> bool {
    text(pod, &["spec", "os", "name"]) == "windows"
}

fn sorted(mut values: Vec<String>) -> Vec<String> {
    values.sort();
    values.dedup();
    values
}

fn app_armor(pod: &Value) -> Option<String> {
    let mut setters: Vec<String> = Vec::new();
    let mut bad: Vec<String> = Vec::new();
    let forbidden = |kind: &Value| kind.as_str().is_some_and(|kind| kind == "Unconfined");
    if forbidden(pod_context(pod, &["appArmorProfile", "type"])) {
        setters.push("pod".to_owned());
        bad.push("\"Unconfined\"".to_owned());
    }
    let names = those(pod, |container| {
        forbidden(context(container, &["appArmorProfile", "type"]))
    });
    if !names.is_empty() {
        setters.push(named(&names));
        bad.push("\"Unconfined\"".to_owned());
    }
    let annotated: Vec<String> = map(pod, &["metadata", "annotations"])
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with("container.apparmor.security.beta.kubernetes.io/"))
        .filter(|(_, value)| {
            value.as_str().is_some_and(|value| {
                !value.is_empty() && value != "runtime/default" && !value.starts_with("localhost/")
            })
        })
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if !setters.is_empty() {
        return Some(format!(
            "forbidden AppArmor {} ({} must not set AppArmor profile type to {})",
            plural("profile", sorted(bad.clone()).len()),
            setters.join(" and "),
            sorted(bad).join(", ")
        ));
    }
    (!annotated.is_empty()).then(|| {
        format!(
            "forbidden AppArmor {} ({})",
            plural("profile", annotated.len()),
            annotated.join(", ")
        )
    })
}

/// Capabilities added beyond those allowed, and who adds them.
fn added<'a>(pod: &'a Value, allowed: &[&str]) -> (Vec<&'a str>, Vec<String>) {
    let mut capabilities: Vec<String> = Vec::new();
    let names = those(pod, |container| {
        let bad: Vec<String> = items(context(container, &["capabilities"]), &["add"])
            .iter()
            .filter_map(Value::as_str)
            .filter(|capability| !allowed.contains(capability))
            .map(str::to_owned)
            .collect();
        !bad.is_empty()
    });
    for container in containers(pod) {
        for capability in items(context(container, &["capabilities"]), &["add"]) {
            let capability = capability.as_str().unwrap_or("");
            if !allowed.contains(&capability) {
                capabilities.push(capability.to_owned());
            }
        }
    }
    (names, sorted(capabilities))
}

fn capabilities_baseline(pod: &Value) -> Option<String> {
    let (names, bad) = added(pod, &DEFAULT_CAPABILITIES);
    (!names.is_empty()).then(|| {
        format!(
            "non-default capabilities ({} must not include {} in securityContext.capabilities.add)",
            named(&names),
            quoted(&bad)
        )
    })
}

fn host_namespaces(pod: &Value) -> Option<String> {
    let used: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| flag(pod, &["spec", field]))
        .map(|field| format!("{field}=true"))
        .collect();
    (!used.is_empty()).then(|| format!("host namespaces ({})", used.join(", ")))
}

fn host_path(pod: &Value) -> Option<String> {
    let names: Vec<&str> = items(pod, &["spec", "volumes"])
        .iter()
        .filter(|volume| has(volume, &["hostPath"]))
        .map(|volume| text(volume, &["name"]))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "hostPath volumes ({} {})",
            plural("volume", names.len()),
            quoted(&names)
        )
    })
}

fn host_ports(pod: &Value) -> Option<String> {
    let used = |container: &Value| -> Vec<i64> {
        items(container, &["ports"])
            .iter()
            .filter_map(|port| int(port, &["hostPort"]))
            .filter(|port| *port != 0)
            .collect()
    };
    let names = those(pod, |container| !used(container).is_empty());
    let mut ports: Vec<i64> = containers(pod).flat_map(used).collect();
    ports.sort_unstable();
    ports.dedup();
    let list: Vec<String> = ports.iter().map(i64::to_string).collect();
    (!names.is_empty()).then(|| {
        format!(
            "hostPort ({} {} {} {})",
            named(&names),
            if names.len() == 1 { "uses" } else { "use" },
            plural("hostPort", list.len()),
            list.join(", ")
        )
    })
}

/// Probes and hooks ask the pod itself, no other host.
fn probe_hosts(pod: &Value) -> Option<String> {
    let hosts_of = |container: &Value| -> Vec<String> {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
        let hooks = ["postStart", "preStop"];
        probes
            .into_iter()
            .map(|probe| at(container, &[probe]))
            .chain(
                hooks
                    .into_iter()
                    .map(|hook| at(container, &["lifecycle", hook])),
            )
            .flat_map(|handler| {
                ["httpGet", "tcpSocket"].map(|kind| text(handler, &[kind, "host"]).to_owned())
            })
            .filter(|host| !matches!(host.as_str(), "" | "127.0.0.1" | "::1"))
            .collect()
    };
    let names = those(pod, |container| !hosts_of(container).is_empty());
    let hosts = sorted(containers(pod).flat_map(hosts_of).collect());
    (!names.is_empty()).then(|| {
        format!(
            "probe or lifecycle host ({} {} probe or lifecycle {} {})",
            named(&names),
            if names.len() == 1 { "uses" } else { "use" },
            plural("host", hosts.len()),
            quoted(&hosts)
        )
    })
}

fn privileged(pod: &Value) -> Option<String> {
    let names = those(pod, |container| {
        context(container, &["privileged"]) == &Value::Bool(true)
    });
    (!names.is_empty()).then(|| {
        format!(
            "privileged ({} must not set securityContext.privileged=true)",
            named(&names)
        )
    })
}

fn proc_mount(pod: &Value) -> Option<String> {
    if at(pod, &["spec", "hostUsers"]) == &Value::Bool(false) {
        return None;
    }
    let mount = |container: &Value| {
        context(container, &["procMount"])
            .as_str()
            .filter(|mount| *mount != "Default")
            .map(str::to_owned)
    };
    let names = those(pod, |container| mount(container).is_some());
    let bad = sorted(containers(pod).filter_map(mount).collect());
    (!names.is_empty()).then(|| {
        format!(
            "procMount ({} must not set securityContext.procMount to {})",
            named(&names),
            quoted(&bad)
        )
    })
}

fn selinux(pod: &Value) -> Option<String> {
    let bad = |options: &Value| {
        !SELINUX_TYPES.contains(&text(options, &["type"]))
            || !text(options, &["user"]).is_empty()
            || !text(options, &["role"]).is_empty()
    };
    let mut setters: Vec<String> = Vec::new();
    let mut options: Vec<&Value> = Vec::new();
    let own = pod_context(pod, &["seLinuxOptions"]);
    if bad(own) {
        setters.push("pod".to_owned());
        options.push(own);
    }
    let names = those(pod, |container| {
        bad(context(container, &["seLinuxOptions"]))
    });
    if !names.is_empty() {
        setters.push(named(&names));
        options.extend(
            containers(pod)
                .map(|container| context(container, &["seLinuxOptions"]))
                .filter(|options| bad(options)),
        );
    }
    if setters.is_empty() {
        return None;
    }
    let types = sorted(
        options
            .iter()
            .map(|options| text(options, &["type"]))
            .filter(|kind| !SELINUX_TYPES.contains(kind))
            .map(str::to_owned)
            .collect(),
    );
    let mut told: Vec<String> = Vec::new();
    if !types.is_empty() {
        told.push(format!(
            "{} {}",
            plural("type", types.len()),
            quoted(&types)
        ));
    }
    for field in ["user", "role"] {
        if options
            .iter()
            .any(|options| !text(options, &[field]).is_empty())
        {
            told.push(format!("{field} may not be set"));
        }
    }
    Some(format!(
        "seLinuxOptions ({} set forbidden securityContext.seLinuxOptions: {})",
        setters.join(" and "),
        told.join("; ")
    ))
}

/// Whether a seccomp profile is one that both levels allow.
fn is_safe_profile(kind: &str) -> bool {
    matches!(kind, "RuntimeDefault" | "Localhost")
}

/// Who sets a seccomp profile that is not allowed, and which.
fn bad_profiles(pod: &Value) -> Option<String> {
    let mut setters: Vec<String> = Vec::new();
    let mut bad: Vec<String> = Vec::new();
    let kind_of = |kind: &Value| {
        kind.as_str()
            .filter(|kind| !is_safe_profile(kind))
            .map(str::to_owned)
    };
    if let Some(kind) = kind_of(pod_context(pod, &["seccompProfile", "type"])) {
        setters.push("pod".to_owned());
        bad.push(kind);
    }
    let of = |container: &Value| kind_of(context(container, &["seccompProfile", "type"]));
    let names = those(pod, |container| of(container).is_some());
    if !names.is_empty() {
        setters.push(named(&names));
        bad.extend(containers(pod).filter_map(of));
    }
    (!setters.is_empty()).then(|| {
        format!(
            "{} must not set securityContext.seccompProfile.type to {}",
            setters.join(" and "),
            quoted(&sorted(bad))
        )
    })
}

fn seccomp_baseline(pod: &Value) -> Option<String> {
    bad_profiles(pod).map(|why| format!("seccompProfile ({why})"))
}

fn sysctls(pod: &Value) -> Option<String> {
    let bad: Vec<&str> = items(pod_context(pod, &["sysctls"]), &[])
        .iter()
        .map(|sysctl| text(sysctl, &["name"]))
        .filter(|name| !SAFE_SYSCTLS.contains(name))
        .collect();
    (!bad.is_empty()).then(|| {
        format!(
            "forbidden {} ({})",
            plural("sysctl", bad.len()),
            bad.join(", ")
        )
    })
}

fn host_process(pod: &Value) -> Option<String> {
    let set = |options: &Value| flag(options, &["hostProcess"]);
    let mut setters: Vec<String> = Vec::new();
    if set(pod_context(pod, &["windowsOptions"])) {
        setters.push("pod".to_owned());
    }
    let names = those(pod, |container| {
        set(context(container, &["windowsOptions"]))
    });
    if !names.is_empty() {
        setters.push(named(&names));
    }
    (!setters.is_empty()).then(|| {
        format!(
            "hostProcess ({} must not set securityContext.windowsOptions.hostProcess=true)",
            setters.join(" and ")
        )
    })
}

fn escalation(pod: &Value) -> Option<String> {
    if is_windows(pod) {
        return None;
    }
    let names = those(pod, |container| {
        context(container, &["allowPrivilegeEscalation"]) != &Value::Bool(false)
    });
    (!names.is_empty()).then(|| {
        format!(
            "allowPrivilegeEscalation != false ({} must set securityContext.allowPrivilegeEscalation=false)",
            named(&names)
        )
    })
}

fn capabilities_restricted(pod: &Value) -> Option<String> {
    if is_windows(pod) {
        return None;
    }
    let keeps = those(pod, |container| {
        !items(context(container, &["capabilities"]), &["drop"])
            .iter()
            .any(|capability| capability == "ALL")
    });
    let (adders, bad) = added(pod, &["NET_BIND_SERVICE"]);
    let mut told: Vec<String> = Vec::new();
    if !keeps.is_empty() {
        told.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            named(&keeps)
        ));
    }
    if !adders.is_empty() {
        told.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&adders),
            quoted(&bad)
        ));
    }
    (!told.is_empty()).then(|| format!("unrestricted capabilities ({})", told.join("; ")))
}

fn volume_types(pod: &Value) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    let mut kinds: Vec<String> = Vec::new();
    for volume in items(pod, &["spec", "volumes"]) {
        let kind = volume
            .as_object()
            .into_iter()
            .flatten()
            .find(|(key, value)| *key != "name" && !value.is_null())
            .map_or("unknown", |(key, _)| key.as_str());
        if !PLAIN_VOLUMES.contains(&kind) {
            names.push(text(volume, &["name"]));
            kinds.push(kind.to_owned());
        }
    }
    let kinds = sorted(kinds);
    (!names.is_empty()).then(|| {
        format!(
            "restricted volume types ({} {} {} restricted volume {} {})",
            plural("volume", names.len()),
            quoted(&names),
            if names.len() == 1 { "uses" } else { "use" },
            plural("type", kinds.len()),
            quoted(&kinds)
        )
    })
}

fn non_root(pod: &Value) -> Option<String> {
    let own = pod_context(pod, &["runAsNonRoot"]);
    let set = |container: &Value| context(container, &["runAsNonRoot"]).as_bool();
    let explicit = those(pod, |container| set(container) == Some(false));
    let implicit = those(pod, |container| set(container).is_none());
    let mut setters: Vec<String> = Vec::new();
    if own == &Value::Bool(false) {
        setters.push("pod".to_owned());
    }
    if !explicit.is_empty() {
        setters.push(named(&explicit));
    }
    if !setters.is_empty() {
        return Some(format!(
            "runAsNonRoot != true ({} must not set securityContext.runAsNonRoot=false)",
            setters.join(" and ")
        ));
    }
    // The pod's answer holds for containers that have none.
    (!implicit.is_empty() && own != &Value::Bool(true)).then(|| {
        format!(
            "runAsNonRoot != true (pod or {} must set securityContext.runAsNonRoot=true)",
            named(&implicit)
        )
    })
}

fn root_user(pod: &Value) -> Option<String> {
    let mut setters: Vec<String> = Vec::new();
    if pod_context(pod, &["runAsUser"]).as_i64() == Some(0) {
        setters.push("pod".to_owned());
    }
    let names = those(pod, |container| {
        context(container, &["runAsUser"]).as_i64() == Some(0)
    });
    if !names.is_empty() {
        setters.push(named(&names));
    }
    (!setters.is_empty()).then(|| {
        format!(
            "runAsUser=0 ({} must not set runAsUser=0)",
            setters.join(" and ")
        )
    })
}

fn seccomp_restricted(pod: &Value) -> Option<String> {
    if is_windows(pod) {
        return None;
    }
    if let Some(why) = bad_profiles(pod) {
        return Some(format!("seccompProfile ({why})"));
    }
    if has(pod_context(pod, &["seccompProfile"]), &["type"]) {
        return None;
    }
    let silent = those(pod, |container| {
        !has(context(container, &["seccompProfile"]), &["type"])
    });
    (!silent.is_empty()).then(|| {
        format!(
            "seccompProfile (pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            named(&silent)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plain_pod_passes_the_baseline_and_fails_the_restricted_level_in_upstreams_words() {
        let pod = json!({"spec": {"containers": [{"name": "c"}]}});
        assert!(baseline(&pod, false).is_empty());
        assert_eq!(
            restricted(&pod).join(", "),
            "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), \
             unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), \
             runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), \
             seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
    }

    #[test]
    fn a_careful_pod_passes_both() {
        let pod = json!({"spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}]}});
        assert_eq!(restricted(&pod), Vec::<String>::new());
    }

    #[test]
    fn each_check_of_the_baseline_names_what_it_found() {
        let pod = json!({"spec": {
            "hostNetwork": true, "hostPID": true,
            "securityContext": {"sysctls": [{"name": "kernel.msgmax"}], "seLinuxOptions": {"type": "bad", "user": "u"},
                "seccompProfile": {"type": "Unconfined"}, "windowsOptions": {"hostProcess": true}},
            "volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "hostPath": {"path": "/"}}],
            "initContainers": [{"name": "a", "securityContext": {"privileged": true, "procMount": "Unmasked"}}],
            "containers": [{"name": "b", "ports": [{"hostPort": 80}, {"hostPort": 70}],
                "livenessProbe": {"httpGet": {"host": "8.8.8.8"}},
                "securityContext": {"privileged": true, "capabilities": {"add": ["NET_ADMIN"]}, "appArmorProfile": {"type": "Unconfined"}}}]}});
        assert_eq!(
            baseline(&pod, false),
            [
                "forbidden AppArmor profile (container \"b\" must not set AppArmor profile type to \"Unconfined\")",
                "non-default capabilities (container \"b\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
                "host namespaces (hostNetwork=true, hostPID=true)",
                "hostPath volumes (volumes \"v\", \"w\")",
                "hostPort (container \"b\" uses hostPorts 70, 80)",
                "probe or lifecycle host (container \"b\" uses probe or lifecycle host \"8.8.8.8\")",
                "privileged (containers \"a\", \"b\" must not set securityContext.privileged=true)",
                "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"bad\"; user may not be set)",
                "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
                "forbidden sysctl (kernel.msgmax)",
                "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
            ]
        );
        let found = restricted(&pod);
        assert!(found.iter().any(|text| text == "restricted volume types (volumes \"v\", \"w\" use restricted volume type \"hostPath\")"));
        assert!(
            !found
                .iter()
                .any(|text| text.starts_with("hostPath volumes"))
        );
    }
}
