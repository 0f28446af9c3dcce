//! Owns: times on the wire (metav1.Time in seconds, metav1.MicroTime in microseconds, both UTC), the clock, and
//! durations for people as in the AGE column.

use ::time::OffsetDateTime;
use ::time::format_description::well_known::Rfc3339;
use std::time::Duration;

/// A point in time.
pub type Time = OffsetDateTime;

/// The current time. The only reading of the clock in this crate.
pub fn now() -> Time {
    OffsetDateTime::now_utc()
}

/// The current time as metav1.Time.
pub fn now_text() -> String {
    format(now())
}

/// The current time as metav1.MicroTime.
pub fn now_micro_text() -> String {
    format_micro(now())
}

/// Writes a metav1.Time: `2026-10-31T14:28:09Z`, fractions cut off.
pub fn format(time: Time) -> String {
    let t = time.to_offset(::time::UtcOffset::UTC);
    let (year, month, day) = t.to_calendar_date();
    format!(
        "{year:04}-{:02}-{day:02}T{:02}:{:02}:{:02}Z",
        u8::from(month),
        t.hour(),
        t.minute(),
        t.second()
    )
}

/// Writes a metav1.MicroTime: `2026-10-31T14:28:09.000001Z`, always six digits.
pub fn format_micro(time: Time) -> String {
    let mut text = format(time);
    text.pop();
    text.push_str(&format!(".{:06}Z", time.microsecond()));
    text
}

/// Writes Go's RFC3339Nano: as many digits of the fraction as needed.
pub fn format_nano(time: Time) -> String {
    let mut text = format(time);
    if time.nanosecond() != 0 {
        text.pop();
        let fraction = format!(".{:09}", time.nanosecond());
        text.push_str(fraction.trim_end_matches('0'));
        text.push('Z');
    }
    text
}

/// Reads any RFC 3339 time.
pub fn parse(text: &str) -> Option<Time> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// The time since `text`, none when it is malformed, zero when it is in the future.
pub fn since(text: &str, now: Time) -> Option<Duration> {
    let elapsed = now - parse(text)?;
    Some(Duration::try_from(elapsed).unwrap_or_default())
}

/// A duration in at most two units, as the AGE column has it (duration.HumanDuration): `47s`, `6m47s`, `3h5m`, `6d7h`, `2y5d`.
pub fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |big: u64, big_unit: &str, small: u64, small_unit: &str| {
        if small == 0 {
            format!("{big}{big_unit}")
        } else {
            format!("{big}{big_unit}{small}{small_unit}")
        }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => two(days, "d", hours % 24, "h"),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => two(years, "y", days % 365, "d"),
        () => format!("{years}y"),
    }
}

/// The age of something created at `text`, `<unknown>` when that is absent or malformed.
pub fn age(text: &str, now: Time) -> String {
    since(text, now).map_or_else(|| "<unknown>".to_owned(), human)
}

/// Writes a duration as Go's `time.Duration.String`: `1h0m0s`, `1.5s`, `300ms`, `0s`.
pub fn go_duration(nanos: i64) -> String {
    let (sign, n) = if nanos < 0 {
        ("-", nanos.unsigned_abs())
    } else {
        ("", nanos.unsigned_abs())
    };
    let fraction = |whole: u64, part: u64, width: usize, unit: &str| {
        let digits = format!("{part:0width$}");
        let digits = digits.trim_end_matches('0');
        if digits.is_empty() {
            format!("{whole}{unit}")
        } else {
            format!("{whole}.{digits}{unit}")
        }
    };
    let text = match n {
        0 => "0s".to_owned(),
        1..1_000 => format!("{n}ns"),
        1_000..1_000_000 => fraction(n / 1_000, n % 1_000, 3, "µs"),
        1_000_000..1_000_000_000 => fraction(n / 1_000_000, n % 1_000_000, 6, "ms"),
        _ => {
            let (total, part) = (n / 1_000_000_000, n % 1_000_000_000);
            let seconds = fraction(total % 60, part, 9, "s");
            match (total / 3600, total / 60 % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    };
    format!("{sign}{text}")
}

/// Reads Go's `time.ParseDuration` syntax into nanoseconds.
pub fn parse_go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let scale: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && part.is_empty() || part.contains('.') || whole.len() > 19 {
            return None;
        }
        total += whole.parse::<i128>().unwrap_or(0) * scale;
        let part = &part[..part.len().min(18)];
        if !part.is_empty() {
            total += part.parse::<i128>().ok()? * scale / 10i128.pow(part.len() as u32);
        }
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_writes_them() {
        let time = parse("2026-10-31T16:28:09.0123456+02:00").expect("valid");
        assert_eq!(format(time), "2026-10-31T14:28:09Z");
        assert_eq!(format_micro(time), "2026-10-31T14:28:09.012345Z");
        assert_eq!(format_nano(time), "2026-10-31T14:28:09.0123456Z");
        assert!(parse("2026-10-31").is_none());
    }

    #[test]
    fn ages_have_upstreams_precision() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (407, "6m47s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (543_600, "6d7h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_504_000, "2y5d"),
            (315_360_000, "10y"),
        ] {
            assert_eq!(human(Duration::from_secs(seconds)), text, "{seconds}");
        }
        assert_eq!(age("", now()), "<unknown>");
    }

    #[test]
    fn go_durations_round_trip() {
        for text in [
            "0s",
            "1ns",
            "1.5µs",
            "300ms",
            "1.5s",
            "1m0s",
            "1h0m0s",
            "-2h45m30.5s",
        ] {
            let nanos = parse_go_duration(text).expect("valid");
            assert_eq!(go_duration(nanos), text);
        }
        assert_eq!(parse_go_duration("5m"), Some(300_000_000_000));
        for text in ["", "5", "m", "1x", ".s", "1..2s"] {
            assert_eq!(parse_go_duration(text), None, "{text}");
        }
    }
}
