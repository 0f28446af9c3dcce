//! A pod's row: readiness, the one word its status comes down to, restarts (upstream's printPod).

use apimachinery::Value;
use apimachinery::time;

use super::{Cells, NONE, condition};

/// Name, Ready, Status, Restarts, Age, IP, Node, Nominated Node, Readiness Gates.
pub(super) fn pod(cells: &Cells) -> Vec<Value> {
    let summary = Summary::of(cells);
    let restarts = match (summary.restarts, &summary.last_restart) {
        (0, _) | (_, None) => summary.restarts.to_string(),
        (count, Some(at)) => format!("{count} ({} ago)", time::age(at, cells.now)),
    };
    let ip = match cells.text("/status/podIPs/0/ip") {
        "" => cells.text_or("/status/podIP", NONE),
        ip => ip.into(),
    };
    vec![
        cells.name(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.word.into(),
        restarts.into(),
        cells.age(),
        ip,
        cells.text_or("/spec/nodeName", NONE),
        cells.text_or("/status/nominatedNodeName", NONE),
        readiness_gates(cells).into(),
    ]
}

fn readiness_gates(cells: &Cells) -> String {
    let gates = cells.list("/spec/readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let conditions = cells.list("/status/conditions");
    let is_true = |gate: &&Value| {
        gate.get("conditionType")
            .and_then(Value::as_str)
            .and_then(|ty| condition(conditions, ty))
            == Some("True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}

/// What the containers' states come down to.
struct Summary {
    word: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<String>,
}

impl Summary {
    fn of(cells: &Cells) -> Self {
        let phase = cells.text("/status/phase");
        let reason = cells.text("/status/reason");
        let sidecars = cells
            .list("/spec/initContainers")
            .iter()
            .filter(|container| is_sidecar(container))
            .count();
        let mut summary = Self {
            word: if reason.is_empty() { phase } else { reason }.to_owned(),
            ready: 0,
            total: cells.list("/spec/containers").len() + sidecars,
            restarts: 0,
            last_restart: None,
        };
        let gated = cells.list("/status/conditions").iter().any(|condition| {
            text(condition, "/type") == "PodScheduled"
                && text(condition, "/reason") == "SchedulingGated"
        });
        if gated {
            summary.word = "SchedulingGated".to_owned();
        }
        let (is_initializing, sidecar_restarts) = summary.init_containers(cells);
        if !is_initializing || cells.condition("Initialized") == Some("True") {
            summary.restarts = sidecar_restarts;
            summary.containers(cells);
        }
        if !cells.text("/metadata/deletionTimestamp").is_empty() {
            if reason == "NodeLost" {
                summary.word = "Unknown".to_owned();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                summary.word = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Whether init containers are still at work, and how often sidecars restarted.
    fn init_containers(&mut self, cells: &Cells) -> (bool, i64) {
        let specs = cells.list("/spec/initContainers");
        let mut sidecar_restarts = 0;
        for (index, status) in cells
            .list("/status/initContainerStatuses")
            .iter()
            .enumerate()
        {
            let name = text(status, "/name");
            let is_sidecar = specs
                .iter()
                .any(|spec| text(spec, "/name") == name && is_sidecar(spec));
            self.count_restarts(status);
            if is_sidecar {
                sidecar_restarts += restart_count(status);
            }
            let terminated = status.pointer("/state/terminated");
            if terminated.is_some_and(|state| number(state, "/exitCode") == 0) {
                continue;
            }
            if is_sidecar && flag(status, "started") {
                self.ready += usize::from(flag(status, "ready"));
                continue;
            }
            let waiting = text(status, "/state/waiting/reason");
            self.word = match terminated {
                Some(state) => format!("Init:{}", ending(state)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => {
                    format!("Init:{waiting}")
                }
                None => format!("Init:{index}/{}", specs.len()),
            };
            return (true, sidecar_restarts);
        }
        (false, sidecar_restarts)
    }

    fn containers(&mut self, cells: &Cells) {
        let mut has_running = false;
        for status in cells.list("/status/containerStatuses").iter().rev() {
            self.count_restarts(status);
            let waiting = text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                self.word = waiting.to_owned();
            } else if let Some(state) = status.pointer("/state/terminated") {
                self.word = ending(state);
            } else if flag(status, "ready") && status.pointer("/state/running").is_some() {
                has_running = true;
                self.ready += 1;
            }
        }
        if self.word == "Completed" && has_running {
            let is_ready = cells.condition("Ready") == Some("True");
            self.word = if is_ready { "Running" } else { "NotReady" }.to_owned();
        }
    }

    fn count_restarts(&mut self, status: &Value) {
        self.restarts += restart_count(status);
        let finished = text(status, "/lastState/terminated/finishedAt");
        if !finished.is_empty()
            && self
                .last_restart
                .as_deref()
                .is_none_or(|last| last < finished)
        {
            self.last_restart = Some(finished.to_owned());
        }
    }
}

/// The word for a terminated container.
fn ending(state: &Value) -> String {
    match (text(state, "/reason"), number(state, "/signal")) {
        ("", 0) => format!("ExitCode:{}", number(state, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

fn restart_count(status: &Value) -> i64 {
    number(status, "/restartCount")
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn number(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn flag(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or(false)
}
