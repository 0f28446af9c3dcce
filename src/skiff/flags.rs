//! Flags as upstream's components take them: switches with an optional `=true` or `=false`, lists that may be repeated or
//! separated by commas, Go's durations.

use std::sync::OnceLock;
use std::time::Duration;

use clap::{ArgMatches, Command};

/// Every flag of the command that runs, with its value.
static GIVEN: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Keeps the flags of a command line, for `given`. Called once, before the command runs.
pub fn remember(all: &Command, matches: &ArgMatches) {
    let Some((name, matches)) = matches.subcommand() else {
        return;
    };
    let command = all.find_subcommand(name);
    let flags = command.into_iter().flat_map(Command::get_arguments);
    let flags = flags.filter_map(|flag| {
        let values = matches.try_get_raw(flag.get_id().as_str()).ok()?;
        let values: Vec<_> = values
            .into_iter()
            .flatten()
            .map(|value| value.to_string_lossy())
            .collect();
        Some((flag.get_long()?.to_owned(), values.join(",")))
    });
    // A second command line of one process is a test's.
    let _ = GIVEN.set(flags.collect());
}

/// The flags that this process was started with, defaults included; none before `remember`.
pub fn given() -> Vec<(String, String)> {
    GIVEN.get().cloned().unwrap_or_default()
}

/// Parses Go's `time.ParseDuration`: `300ms`, `1m30s`, `1.5h`. A plain `0` is fine too.
pub fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, f64); 7] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let invalid = || format!("invalid duration {text:?}");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .find(|next: char| !next.is_ascii_digit() && next != '.')
            .ok_or_else(|| format!("missing unit in duration {text:?}"))?;
        let number: f64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|next: char| next.is_ascii_digit() || next == '.')
            .unwrap_or(rest.len());
        let unit = UNITS
            .iter()
            .find(|(name, _)| *name == &rest[..letters])
            .ok_or_else(invalid)?;
        seconds += number * unit.1;
        rest = &rest[letters..];
    }
    if text.is_empty() {
        Err(invalid())
    } else {
        Duration::try_from_secs_f64(seconds).map_err(|_| invalid())
    }
}

/// `KEY=VALUE`.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.into(), value.into()))
}

/// `REGISTRY=URL`.
pub fn mirror(text: &str) -> Result<(String, String), String> {
    let (registry, url) = pair(text)?;
    let authority = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    let host = authority.map(|rest| rest.split('/').next().unwrap_or_default());
    match host {
        Some(host) if !host.is_empty() && !registry.is_empty() => Ok((registry, url)),
        _ => Err(format!(
            "{text:?} is not like docker.io=http://127.0.0.1:5000"
        )),
    }
}

/// `KEY=true` or `KEY=false`; a key alone is true.
pub fn switch_pair(text: &str) -> Result<(String, bool), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, "true"));
    let value = match value {
        "true" | "" => true,
        "false" => false,
        other => {
            return Err(format!(
                "invalid value of {key}={other}, err: not true or false"
            ));
        }
    };
    Ok((key.into(), value))
}

/// Upstream takes `_` for `-` in flags' names (`cliflag.WordSepNormalizeFunc`).
pub fn normalize(argument: &str) -> String {
    match argument.strip_prefix("--") {
        Some(rest) => {
            let (name, value) = rest
                .split_once('=')
                .map_or((rest, None), |(name, value)| (name, Some(value)));
            let name = name.replace('_', "-");
            value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}"))
        }
        None => argument.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, milliseconds) in [
            ("300ms", 300),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("0", 0),
            ("8s", 8_000),
        ] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in ["", "8", "s", "1x", "-1s", "1..2s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn underscores_in_names_become_dashes_and_values_stay() {
        assert_eq!(
            normalize("--node_monitor_grace_period=8s"),
            "--node-monitor-grace-period=8s"
        );
        assert_eq!(normalize("--a_b=c_d"), "--a-b=c_d");
        assert_eq!(normalize("a_b"), "a_b");
    }

    #[test]
    fn a_key_alone_is_true() {
        assert_eq!(switch_pair("api/all=false"), Ok(("api/all".into(), false)));
        assert_eq!(switch_pair("A"), Ok(("A".into(), true)));
        assert!(switch_pair("A=2").is_err());
    }
}
