//! Tells a person what is being done: spinners that turn into ticks on a terminal, one line per finished step elsewhere.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;

const SPIN: Duration = Duration::from_millis(80);

/// Steps under way, each with a key of its own.
pub struct Progress {
    bars: MultiProgress,
    terminal: bool,
    steps: Mutex<HashMap<String, Step>>,
}

struct Step {
    bar: Option<ProgressBar>,
    started: Instant,
}

impl Progress {
    /// Writes to standard error, so that standard output stays free for results.
    pub fn new() -> Self {
        Self {
            bars: MultiProgress::new(),
            terminal: std::io::stderr().is_terminal(),
            steps: Mutex::default(),
        }
    }

    /// A step begins.
    pub fn begin(&self, key: &str, text: &str) {
        let bar = self.terminal.then(|| {
            let bar = self.bars.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {msg}") {
                bar.set_style(style);
            }
            bar.set_message(text.to_string());
            bar.enable_steady_tick(SPIN);
            bar
        });
        self.steps.lock().insert(
            key.into(),
            Step {
                bar,
                started: Instant::now(),
            },
        );
    }

    /// What the step does now. Only a terminal shows it.
    pub fn update(&self, key: &str, text: &str) {
        if let Some(Step { bar: Some(bar), .. }) = self.steps.lock().get(key) {
            bar.set_message(text.to_string());
        }
    }

    /// The step is done.
    pub fn done(&self, key: &str, text: &str) {
        let Some(step) = self.steps.lock().remove(key) else {
            return;
        };
        let line = format!("{text} ({})", seconds(step.started.elapsed()));
        self.finish(step.bar, "32", '✓', &line);
    }

    /// The step has failed.
    pub fn failed(&self, key: &str, text: &str) {
        let bar = self.steps.lock().remove(key).and_then(|step| step.bar);
        self.finish(bar, "31", '✗', text);
    }

    /// Something a person should know, of no step.
    pub fn warn(&self, text: &str) {
        self.finish(None, "33", '!', text);
    }

    fn finish(&self, bar: Option<ProgressBar>, colour: &str, mark: char, text: &str) {
        if self.terminal {
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
            // A terminal that has gone away is no reason to stop.
            let _ = self
                .bars
                .println(format!("\x1b[{colour}m{mark}\x1b[0m {text}"));
        } else {
            let _ = writeln!(std::io::stderr().lock(), "{mark} {text}");
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

fn seconds(elapsed: Duration) -> String {
    if elapsed < Duration::from_secs(1) {
        format!("{} ms", elapsed.as_millis())
    } else {
        format!("{:.1} s", elapsed.as_secs_f64())
    }
}
