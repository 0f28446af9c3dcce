//! What every pod spec goes through, whether a pod's own or a template's: defaults and validation.

pub mod affinity;
pub mod containers;
pub mod defaults;
pub mod level;
mod mounts;
pub mod qos;
pub mod security;
pub mod validation;
pub mod volumes;
pub mod warnings;

/// Where a workload keeps its pods' template.
pub const TEMPLATES: [(&str, &str, &[&str]); 8] = [
    ("", "podtemplates", &["template"]),
    ("", "replicationcontrollers", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    (
        "batch",
        "cronjobs",
        &["spec", "jobTemplate", "spec", "template"],
    ),
    ("batch", "jobs", &["spec", "template"]),
];
