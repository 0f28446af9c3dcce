//! Small texts as upstream prints them: Go durations and quoted strings, which
//! are part of the events and messages people grep for.

use std::time::Duration;

/// Go's `Duration.String()`: `1.5s`, `5m0s`, `350ms`, `0s`.
pub fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => format!("{}µs", fraction(nanos, 1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", fraction(nanos, 1_000_000)),
        _ => {
            let minutes = nanos / 60_000_000_000;
            let seconds = fraction(nanos % 60_000_000_000, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// `value / unit` with as many decimals as it takes.
fn fraction(value: u128, unit: u128) -> String {
    let width = unit.ilog10() as usize;
    let decimals = format!("{:0width$}", value % unit);
    let decimals = decimals.trim_end_matches('0');
    match decimals {
        "" => (value / unit).to_string(),
        decimals => format!("{}.{decimals}", value / unit),
    }
}

/// A duration rounded to the millisecond, as the pull events have it.
pub fn milliseconds(elapsed: Duration) -> String {
    let rounded = (elapsed + Duration::from_micros(500)).as_millis();
    duration(Duration::from_millis(
        u64::try_from(rounded).unwrap_or(u64::MAX),
    ))
}

/// Go's `%q` for the strings that occur here.
pub fn quoted(text: &str) -> String {
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_prints_them() {
        let cases = [
            (0, "0s"),
            (350_000_000, "350ms"),
            (1_399_000_000, "1.399s"),
            (10_000_000_000, "10s"),
            (90_000_000_000, "1m30s"),
            (300_000_000_000, "5m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (1_500, "1.5µs"),
        ];
        for (nanos, expected) in cases {
            assert_eq!(duration(Duration::from_nanos(nanos)), expected);
        }
        assert_eq!(milliseconds(Duration::from_micros(1_398_600)), "1.399s");
    }
}
