//! Cron schedules: five fields or `@daily` and the like, in a time zone (the standard format of robfig/cron). Pure.

use std::time::Duration;

use jiff::{
    SignedDuration, Timestamp, ToSpan,
    civil::{Date, DateTime},
    tz::{AmbiguousOffset, TimeZone},
};

/// How far ahead a time is looked for: the 29th of February comes within eight years.
const HORIZON_DAYS: usize = 8 * 366;
/// More missed times than this are too many to make sense of.
pub const MAX_MISSED: i64 = 100;

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// When something is to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Every(Duration),
    At(Fields),
}

/// Bits of the values allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both day fields are restricted: then one of them is enough.
    either_day: bool,
}

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(descriptor) = text.strip_prefix('@') {
            let fields = match descriptor {
                "yearly" | "annually" => "0 0 1 1 *",
                "monthly" => "0 0 1 * *",
                "weekly" => "0 0 * * 0",
                "daily" | "midnight" => "0 0 * * *",
                "hourly" => "0 * * * *",
                other => return every(other).ok_or(format!("unrecognized descriptor: {text}")),
            };
            return Self::parse(fields);
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts.as_slice() else {
            let found = parts.len();
            return Err(format!(
                "expected exactly 5 fields, found {found}: [{}]",
                parts.join(" ")
            ));
        };
        let starred = |part: &str| part.starts_with(['*', '?']);
        // Sunday is 0 alone: upstream's parser takes no 7.
        Ok(Schedule::At(Fields {
            minutes: field(minute, 0, 59, &[])?,
            hours: field(hour, 0, 23, &[])?,
            days: field(day, 1, 31, &[])?,
            months: field(month, 1, 12, &MONTHS)?,
            weekdays: field(weekday, 0, 6, &DAYS)?,
            either_day: !starred(day) && !starred(weekday),
        }))
    }

    /// The first time after `after`; none if there is none for years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(period) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                let period = SignedDuration::try_from(*period).ok()?;
                whole.checked_add(period).ok()
            }
            Schedule::At(fields) => fields.next(after, zone),
        }
    }

    /// The last time after `after` and not after `now`, and about how many there were.
    pub fn latest(
        &self,
        after: Timestamp,
        now: Timestamp,
        zone: &TimeZone,
    ) -> Option<(Timestamp, i64)> {
        let first = self.next(after, zone).filter(|first| *first <= now)?;
        let Some(second) = self.next(first, zone).filter(|second| *second <= now) else {
            return Some((first, 1));
        };
        let period = (second.as_second() - first.as_second()).max(1);
        let missed = (now.as_second() - first.as_second()) / period + 1;
        if let Schedule::Every(_) = self {
            let last = first.as_second() + (missed - 1) * period;
            return Some((Timestamp::from_second(last).ok()?, missed));
        }
        // The last one is looked for backwards, in ever larger steps.
        for hours in [1, 24, 31 * 24, 366 * 24, 8 * 366 * 24] {
            let from = now
                .checked_sub(hours.hours())
                .map_or(first, |from| from.max(first));
            let mut last = (from == first).then_some(first);
            let mut at = from;
            while let Some(next) = self.next(at, zone).filter(|next| *next <= now) {
                (last, at) = (Some(next), next);
            }
            if let Some(last) = last {
                return Some((last, missed));
            }
        }
        Some((second, missed))
    }
}

fn every(text: &str) -> Option<Schedule> {
    let nanos = apimachinery::time::parse_go_duration(text.strip_prefix("every ")?.trim())?;
    let seconds = u64::try_from(nanos).ok()? / 1_000_000_000;
    Some(Schedule::Every(Duration::from_secs(seconds.max(1))))
}

/// The bits of a field: a list of `*`, numbers, names and ranges, each with a step.
fn field(text: &str, min: u32, max: u32, names: &[&str]) -> Result<u64, String> {
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = part
            .split_once('/')
            .map_or((part, None), |(range, step)| (range, Some(step)));
        let value = |text: &str| {
            let position = names
                .iter()
                .position(|name| text.eq_ignore_ascii_case(name));
            match position {
                Some(position) => Ok(u32::try_from(position).unwrap_or(0) + min),
                None => text
                    .parse::<u32>()
                    .map_err(|_| format!("failed to parse int from {text}")),
            }
        };
        let (first, mut last) = match range {
            "*" | "?" => (min, max),
            _ => match range.split_once('-') {
                Some((first, last)) => (value(first)?, value(last)?),
                None => (value(range)?, value(range)?),
            },
        };
        let step = match step {
            None => 1,
            Some(step) => {
                if !range.contains('-') {
                    last = last.max(max);
                }
                step.parse::<u32>()
                    .map_err(|_| format!("failed to parse int from {step}"))?
            }
        };
        if first < min {
            return Err(format!(
                "beginning of range ({first}) below minimum ({min}): {part}"
            ));
        }
        if last > max {
            return Err(format!(
                "end of range ({last}) above maximum ({max}): {part}"
            ));
        }
        if first > last {
            return Err(format!(
                "beginning of range ({first}) beyond end of range ({last}): {part}"
            ));
        }
        if step == 0 {
            return Err(format!("step of range should be a positive number: {part}"));
        }
        let mut value = first;
        while value <= last {
            bits |= 1 << value;
            value += step;
        }
    }
    Ok(bits)
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let mut date = zone.to_datetime(after).date();
        // A clock that is set back makes a day's times come again, so the day itself is looked at as a whole.
        for _ in 0..HORIZON_DAYS {
            if self.allows(date)
                && let Some(found) = self.on(date, after, zone)
            {
                return Some(found);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    fn allows(&self, date: Date) -> bool {
        let has =
            |bits: u64, value: i8| u32::try_from(value).is_ok_and(|value| bits >> value & 1 == 1);
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        let fits = if self.either_day {
            day || weekday
        } else {
            day && weekday
        };
        has(self.months, date.month()) && fits
    }

    /// The first time of the day after `after`. A time a clock set forward leaves out does not come, one that comes
    /// twice counts once.
    fn on(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let values = |bits: u64, end: i8| (0..end).filter(move |value| bits >> *value & 1 == 1);
        for hour in values(self.hours, 24) {
            for minute in values(self.minutes, 60) {
                let time = DateTime::from_parts(date, jiff::civil::time(hour, minute, 0, 0));
                let ambiguous = zone.to_ambiguous_timestamp(time);
                if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
                    continue;
                }
                if let Some(found) = ambiguous.earlier().ok().filter(|found| *found > after) {
                    return Some(found);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schedule: &str, zone: &str, after: &str, expected: &str) {
        let zone = TimeZone::get(zone).unwrap();
        let after = after.parse().unwrap();
        let next = Schedule::parse(schedule).unwrap().next(after, &zone);
        assert_eq!(next, expected.parse().ok(), "{schedule}");
    }

    #[test]
    fn the_next_time_follows_the_fields() {
        let after = "2026-03-14T10:29:30Z";
        for (schedule, expected) in [
            ("* * * * *", "2026-03-14T10:30:00Z"),
            ("*/20 * * * *", "2026-03-14T10:40:00Z"),
            ("5/20 * * * *", "2026-03-14T10:45:00Z"),
            ("0 9-17/4 * * *", "2026-03-14T13:00:00Z"),
            ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
            ("0 0 1 JAN ?", "2027-01-01T00:00:00Z"),
            ("0 0 20 * mon", "2026-03-16T00:00:00Z"),
            ("0 0 * * 1,3", "2026-03-16T00:00:00Z"),
            ("@weekly", "2026-03-15T00:00:00Z"),
            ("@every 1h30m", "2026-03-14T11:59:30Z"),
        ] {
            check(schedule, "UTC", after, expected);
        }
        check("0 0 31 2 *", "UTC", after, "never");
    }

    #[test]
    fn local_times_follow_the_zone_and_its_clock_changes() {
        let zone = "Europe/Berlin";
        check(
            "0 9 * * *",
            zone,
            "2026-01-10T09:00:00Z",
            "2026-01-11T08:00:00Z",
        );
        check(
            "0 9 * * *",
            zone,
            "2026-07-10T09:00:00Z",
            "2026-07-11T07:00:00Z",
        );
        // On 29 March 02:30 does not exist, on 25 October it comes twice.
        check(
            "30 2 * * *",
            zone,
            "2026-03-28T12:00:00Z",
            "2026-03-30T00:30:00Z",
        );
        check(
            "30 2 * * *",
            zone,
            "2026-10-24T12:00:00Z",
            "2026-10-25T00:30:00Z",
        );
        check(
            "30 2 * * *",
            zone,
            "2026-10-25T00:30:00Z",
            "2026-10-26T01:30:00Z",
        );
    }

    #[test]
    fn what_was_missed_is_counted_and_the_last_of_it_found() {
        let zone = TimeZone::UTC;
        let latest = |schedule: &str, after: &str, now: &str| {
            let schedule = Schedule::parse(schedule).unwrap();
            let latest = schedule.latest(after.parse().unwrap(), now.parse().unwrap(), &zone);
            latest.map(|(at, missed)| (at.to_string(), missed))
        };
        let after = "2026-01-01T00:00:00Z";
        assert_eq!(latest("0 * * * *", after, "2026-01-01T00:59:00Z"), None);
        let one = latest("0 * * * *", after, "2026-01-01T01:59:00Z");
        assert_eq!(one, Some(("2026-01-01T01:00:00Z".into(), 1)));
        let many = latest("0 * * * *", after, "2026-02-01T00:30:00Z");
        assert_eq!(many, Some(("2026-02-01T00:00:00Z".into(), 744)));
        let rare = latest("0 0 1 1 *", "2020-06-01T00:00:00Z", "2026-06-01T00:00:00Z");
        assert_eq!(rare.unwrap().0, "2026-01-01T00:00:00Z");
        let every = latest("@every 10s", after, "2026-01-01T00:01:05Z");
        assert_eq!(every, Some(("2026-01-01T00:01:00Z".into(), 6)));
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for (text, reason) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            ("x * * * *", "failed to parse int from x"),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            ("@never", "unrecognized descriptor: @never"),
        ] {
            assert_eq!(Schedule::parse(text).unwrap_err(), reason);
        }
    }
}
