//! Rows of the workload, autoscaling, policy and ingress kinds.

use apimachinery::Value;
use apimachinery::time;

use super::{Cells, NONE, UNKNOWN, UNSET};

const TEMPLATE: &str = "/spec/template/spec/containers";

/// Name, Ready, Up-to-date, Available, Age, Containers, Images, Selector.
pub(super) fn deployment(cells: &Cells) -> Vec<Value> {
    let [names, images] = cells.containers(TEMPLATE);
    vec![
        cells.name(),
        format!(
            "{}/{}",
            cells.number("/status/readyReplicas"),
            cells.number("/spec/replicas")
        )
        .into(),
        cells.number("/status/updatedReplicas").into(),
        cells.number("/status/availableReplicas").into(),
        cells.age(),
        names,
        images,
        cells.selector("/spec/selector").into(),
    ]
}

/// Name, Desired, Current, Ready, Age, Containers, Images, Selector; replication controllers select by labels alone.
pub(super) fn replica_set(cells: &Cells) -> Vec<Value> {
    let [names, images] = cells.containers(TEMPLATE);
    let is_selector = cells
        .at("/spec/selector/matchLabels")
        .is_some_and(Value::is_object)
        || cells
            .at("/spec/selector/matchExpressions")
            .is_some_and(Value::is_array);
    let selector = if is_selector {
        cells.selector("/spec/selector")
    } else {
        cells.labels("/spec/selector")
    };
    vec![
        cells.name(),
        cells.number("/spec/replicas").into(),
        cells.number("/status/replicas").into(),
        cells.number("/status/readyReplicas").into(),
        cells.age(),
        names,
        images,
        selector.into(),
    ]
}

/// Name, Desired, Current, Ready, Up-to-date, Available, Node Selector, Age, Containers, Images, Selector.
pub(super) fn daemon_set(cells: &Cells) -> Vec<Value> {
    let [names, images] = cells.containers(TEMPLATE);
    vec![
        cells.name(),
        cells.number("/status/desiredNumberScheduled").into(),
        cells.number("/status/currentNumberScheduled").into(),
        cells.number("/status/numberReady").into(),
        cells.number("/status/updatedNumberScheduled").into(),
        cells.number("/status/numberAvailable").into(),
        cells.labels("/spec/template/spec/nodeSelector").into(),
        cells.age(),
        names,
        images,
        cells.selector("/spec/selector").into(),
    ]
}

/// Name, Ready, Age, Containers, Images.
pub(super) fn stateful_set(cells: &Cells) -> Vec<Value> {
    let [names, images] = cells.containers(TEMPLATE);
    let ready = format!(
        "{}/{}",
        cells.number("/status/readyReplicas"),
        cells.number("/spec/replicas")
    );
    vec![cells.name(), ready.into(), cells.age(), names, images]
}

/// Name, Controller, Revision, Age.
pub(super) fn controller_revision(cells: &Cells) -> Vec<Value> {
    let owner = cells
        .list("/metadata/ownerReferences")
        .iter()
        .find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true));
    let controller = owner.map_or(NONE.to_owned(), |owner| {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let kind = text("kind").to_lowercase();
        let name = text("name");
        match text("apiVersion").split_once('/') {
            Some((group, _)) => format!("{kind}.{group}/{name}"),
            None => format!("{kind}/{name}"),
        }
    });
    vec![
        cells.name(),
        controller.into(),
        cells.number("/revision").into(),
        cells.age(),
    ]
}

/// Name, Status, Completions, Duration, Age, Containers, Images, Selector.
pub(super) fn job(cells: &Cells) -> Vec<Value> {
    let succeeded = cells.number("/status/succeeded");
    let parallelism = cells.number("/spec/parallelism");
    let completions = match cells.at("/spec/completions").and_then(Value::as_i64) {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let started = time::parse(cells.text("/status/startTime"));
    let ended = time::parse(cells.text("/status/completionTime"));
    let duration = match (started, cells.text("/status/startTime"), ended) {
        (Some(_), text, Some(ended)) => time::age(text, ended),
        (Some(_), text, None) => time::age(text, cells.now),
        _ => String::new(),
    };
    let [names, images] = cells.containers(TEMPLATE);
    vec![
        cells.name(),
        job_status(cells).into(),
        completions.into(),
        duration.into(),
        cells.age(),
        names,
        images,
        cells.selector("/spec/selector").into(),
    ]
}

fn job_status(cells: &Cells) -> &'static str {
    let is = |ty: &str| cells.condition(ty) == Some("True");
    if is("Complete") {
        "Complete"
    } else if is("Failed") {
        "Failed"
    } else if !cells.text("/metadata/deletionTimestamp").is_empty() {
        "Terminating"
    } else if is("Suspended") {
        "Suspended"
    } else if is("FailureTarget") {
        "FailureTarget"
    } else if is("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

/// Name, Schedule, Timezone, Suspend, Active, Last Schedule, Age, Containers, Images, Selector.
pub(super) fn cron_job(cells: &Cells) -> Vec<Value> {
    let [names, images] = cells.containers("/spec/jobTemplate/spec/template/spec/containers");
    let suspend = match cells.at("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    };
    vec![
        cells.name(),
        cells.text("/spec/schedule").into(),
        cells.text_or("/spec/timeZone", NONE),
        suspend.into(),
        cells.len("/status/active").into(),
        cells.age_of("/status/lastScheduleTime", NONE),
        cells.age(),
        names,
        images,
        cells.selector("/spec/jobTemplate/spec/selector").into(),
    ]
}

/// Name, Reference, Targets, MinPods, MaxPods, Replicas, Age.
pub(super) fn horizontal_pod_autoscaler(cells: &Cells) -> Vec<Value> {
    let reference = format!(
        "{}/{}",
        cells.text("/spec/scaleTargetRef/kind"),
        cells.text("/spec/scaleTargetRef/name")
    );
    let minimum = cells.at("/spec/minReplicas").and_then(Value::as_i64);
    vec![
        cells.name(),
        reference.into(),
        targets(cells).into(),
        minimum
            .map_or(UNSET.to_owned(), |pods| pods.to_string())
            .into(),
        cells.number("/spec/maxReplicas").into(),
        cells.number("/status/currentReplicas").into(),
        cells.age(),
    ]
}

/// `cpu: 12%/80%` for each metric; v1 has one target of its own.
fn targets(cells: &Cells) -> String {
    let percent = |value: Option<&Value>| {
        value
            .and_then(Value::as_i64)
            .map_or(UNKNOWN.to_owned(), |value| format!("{value}%"))
    };
    if let Some(target) = cells.at("/spec/targetCPUUtilizationPercentage") {
        let current = percent(cells.at("/status/currentCPUUtilizationPercentage"));
        return format!("cpu: {current}/{}", percent(Some(target)));
    }
    let current = cells.list("/status/currentMetrics");
    let mut texts = Vec::new();
    for (index, metric) in cells.list("/spec/metrics").iter().enumerate() {
        let place = match metric.get("type").and_then(Value::as_str) {
            Some("Resource") => "resource",
            Some("ContainerResource") => "containerResource",
            Some("Pods") => "pods",
            Some("Object") => "object",
            Some("External") => "external",
            _ => continue,
        };
        let body = metric.get(place).unwrap_or(&Value::Null);
        let now = current
            .get(index)
            .and_then(|status| status.get(place)?.get("current"))
            .unwrap_or(&Value::Null);
        let prefix = match place {
            "resource" | "containerResource" => format!(
                "{}: ",
                body.get("name").and_then(Value::as_str).unwrap_or_default()
            ),
            _ => String::new(),
        };
        let target = body.get("target").unwrap_or(&Value::Null);
        texts.push(match target.get("averageUtilization") {
            Some(wanted) => format!(
                "{prefix}{}/{}",
                percent(now.get("averageUtilization")),
                percent(Some(wanted))
            ),
            None => {
                let quantity = |value: &Value| {
                    let found = value
                        .get("averageValue")
                        .or_else(|| value.get("value"))
                        .and_then(Value::as_str);
                    found.unwrap_or(UNKNOWN).to_owned()
                };
                format!("{prefix}{}/{}", quantity(now), quantity(target))
            }
        });
    }
    super::first_of(&texts, 2, NONE)
}

/// Name, Min Available, Max Unavailable, Allowed Disruptions, Age.
pub(super) fn pod_disruption_budget(cells: &Cells) -> Vec<Value> {
    let budget = |pointer: &str| match cells.at(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "N/A".to_owned(),
    };
    vec![
        cells.name(),
        budget("/spec/minAvailable").into(),
        budget("/spec/maxUnavailable").into(),
        cells.number("/status/disruptionsAllowed").into(),
        cells.age(),
    ]
}

/// Name, Class, Hosts, Address, Ports, Age.
pub(super) fn ingress(cells: &Cells) -> Vec<Value> {
    let hosts: Vec<String> = cells
        .list("/spec/rules")
        .iter()
        .filter_map(|rule| rule.get("host")?.as_str())
        .filter(|host| !host.is_empty())
        .map(str::to_owned)
        .collect();
    let addresses: Vec<&str> = cells
        .list("/status/loadBalancer/ingress")
        .iter()
        .filter_map(|ingress| {
            ingress
                .get("ip")
                .or_else(|| ingress.get("hostname"))?
                .as_str()
        })
        .collect();
    let ports = if cells.list("/spec/tls").is_empty() {
        "80"
    } else {
        "80, 443"
    };
    vec![
        cells.name(),
        cells.text_or("/spec/ingressClassName", NONE),
        super::first_of(&hosts, 3, "*").into(),
        addresses.join(",").into(),
        ports.into(),
        cells.age(),
    ]
}

/// Name, Pod-Selector, Age.
pub(super) fn network_policy(cells: &Cells) -> Vec<Value> {
    vec![
        cells.name(),
        cells.selector("/spec/podSelector").into(),
        cells.age(),
    ]
}
