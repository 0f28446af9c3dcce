//! Prometheus' text exposition format, and the histogram written in it.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a family of series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// An exposition being written.
#[derive(Default)]
pub struct Text(String);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text {
    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        self.series(name, "", labels, None);
        let _ = writeln!(self.0, " {value}");
    }

    pub fn histogram(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram) {
        let mut sum = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            sum += count.load(Ordering::Relaxed);
            self.series(name, "_bucket", labels, Some(&bound.to_string()));
            let _ = writeln!(self.0, " {sum}");
        }
        let total = histogram.count.load(Ordering::Relaxed).max(sum);
        self.series(name, "_bucket", labels, Some("+Inf"));
        let _ = writeln!(self.0, " {total}");
        self.series(name, "_sum", labels, None);
        let _ = writeln!(self.0, " {}", histogram.sum());
        self.series(name, "_count", labels, None);
        let _ = writeln!(self.0, " {total}");
    }

    pub fn finish(self) -> String {
        self.0
    }

    fn series(&mut self, name: &str, suffix: &str, labels: Labels<'_>, bound: Option<&str>) {
        let out = &mut self.0;
        out.push_str(name);
        out.push_str(suffix);
        let all = labels
            .iter()
            .copied()
            .chain(bound.map(|bound| ("le", bound)));
        let mut open = false;
        for (label, value) in all {
            out.push(if open { ',' } else { '{' });
            open = true;
            out.push_str(label);
            out.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '"' => out.push_str("\\\""),
                    '\n' => out.push_str("\\n"),
                    c => out.push(c),
                }
            }
            out.push('"');
        }
        if open {
            out.push('}');
        }
    }
}

/// Counts durations by upper bounds in seconds.
pub struct Histogram {
    bounds: &'static [f64],
    counts: Box<[AtomicU64]>,
    count: AtomicU64,
    nanoseconds: AtomicU64,
    /// Whole seconds, or what else is counted.
    whole: AtomicU64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: bounds.iter().map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            whole: AtomicU64::new(0),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn sum(&self) -> f64 {
        self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9
            + self.whole.load(Ordering::Relaxed) as f64
    }

    pub fn observe(&self, duration: Duration) {
        self.put(duration.as_secs_f64());
        // A sum of years in nanoseconds would wrap: what is long is counted in whole seconds.
        let whole = duration.as_secs();
        if whole > 0 {
            self.whole.fetch_add(whole, Ordering::Relaxed);
        }
        let nanoseconds = u64::from(duration.subsec_nanos());
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Counts something that is no time, such as bytes.
    pub fn observe_number(&self, number: usize) {
        self.put(number as f64);
        self.whole.fetch_add(number as u64, Ordering::Relaxed);
    }

    fn put(&self, value: f64) {
        if let Some(at) = self.bounds.iter().position(|bound| value <= *bound) {
            self.counts[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_read_as_prometheus_wants_them() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        histogram.observe(Duration::from_millis(100));
        histogram.observe(Duration::from_millis(900));
        histogram.observe(Duration::from_secs(4));
        let mut text = Text::default();
        text.family("a_total", Kind::Counter, "Things.");
        text.sample("a_total", &[("x", "q\"\\"), ("y", "")], 3);
        text.sample("b", &[], 1.5);
        text.histogram("h", &[("v", "GET")], &histogram);
        let expect = "# HELP a_total Things.\n# TYPE a_total counter\na_total{x=\"q\\\"\\\\\",y=\"\"} 3\nb 1.5\n\
            h_bucket{v=\"GET\",le=\"0.5\"} 1\nh_bucket{v=\"GET\",le=\"1\"} 2\nh_bucket{v=\"GET\",le=\"+Inf\"} 3\n\
            h_sum{v=\"GET\"} 5\nh_count{v=\"GET\"} 3\n";
        assert_eq!(text.finish(), expect);
    }
}
