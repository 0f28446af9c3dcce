//! How long admission takes, by plugin and by pass: upstream's `apiserver_admission_*` series.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::Operation;
use crate::metrics::text::{Histogram, Kind, Text};

/// Upstream's buckets.
const SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

const OPERATIONS: [(Operation, &str); 4] = [
    (Operation::Create, "CREATE"),
    (Operation::Update, "UPDATE"),
    (Operation::Delete, "DELETE"),
    (Operation::Connect, "CONNECT"),
];
const PASSES: [&str; 2] = ["admit", "validate"];
const REJECTED: [&str; 2] = ["false", "true"];

/// A pass over the plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Admit,
    Validate,
}

/// By pass, operation and whether it was refused.
type Times = [[[OnceLock<Box<Histogram>>; 2]; 4]; 2];

/// The durations of a chain.
pub struct Series {
    plugins: Vec<(&'static str, Times)>,
    steps: Times,
}

impl Series {
    pub fn new(plugins: impl Iterator<Item = &'static str>) -> Self {
        Self {
            plugins: plugins.map(|name| (name, Times::default())).collect(),
            steps: Times::default(),
        }
    }

    /// The plugin at this place of the chain has run since then.
    pub fn plugin(
        &self,
        at: usize,
        pass: Pass,
        operation: Operation,
        since: Instant,
        rejected: bool,
    ) {
        if let Some((_, times)) = self.plugins.get(at) {
            observe(times, pass, operation, since.elapsed(), rejected);
        }
    }

    /// A whole pass has been made since then.
    pub fn step(&self, pass: Pass, operation: Operation, since: Instant, rejected: bool) {
        observe(&self.steps, pass, operation, since.elapsed(), rejected);
    }

    pub fn write(&self, text: &mut Text) {
        let name = "apiserver_admission_step_admission_duration_seconds";
        text.family(
            name,
            Kind::Histogram,
            "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).",
        );
        write(text, name, &[], &self.steps);
        let name = "apiserver_admission_controller_admission_duration_seconds";
        text.family(
            name,
            Kind::Histogram,
            "Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
        );
        for (plugin, times) in &self.plugins {
            write(text, name, &[("name", plugin)], times);
        }
    }
}

fn observe(times: &Times, pass: Pass, operation: Operation, took: Duration, rejected: bool) {
    let at = OPERATIONS.iter().position(|(known, _)| *known == operation);
    let of_pass = &times[usize::from(pass == Pass::Validate)];
    let slot = &of_pass[at.unwrap_or_default()][usize::from(rejected)];
    slot.get_or_init(|| Box::new(Histogram::new(SECONDS)))
        .observe(took);
}

fn write(text: &mut Text, name: &str, first: &[(&str, &str)], times: &Times) {
    for (pass, operations) in PASSES.iter().zip(times) {
        for ((_, operation), outcomes) in OPERATIONS.iter().zip(operations) {
            for (rejected, slot) in REJECTED.iter().zip(outcomes) {
                let Some(histogram) = slot.get() else {
                    continue;
                };
                let mut labels = first.to_vec();
                labels.extend([
                    ("operation", *operation),
                    ("rejected", *rejected),
                    ("type", *pass),
                ]);
                text.histogram(name, &labels, histogram);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_timed_by_pass_operation_and_outcome() {
        let series = Series::new(["A", "B"].into_iter());
        let now = Instant::now();
        series.plugin(1, Pass::Validate, Operation::Update, now, true);
        series.step(Pass::Admit, Operation::Create, now, false);
        let mut text = Text::default();
        series.write(&mut text);
        let text = text.finish();
        for line in [
            r#"apiserver_admission_controller_admission_duration_seconds_count{name="B",operation="UPDATE",rejected="true",type="validate"} 1"#,
            r#"apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="false",type="admit"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains("name=\"A\""));
    }
}
