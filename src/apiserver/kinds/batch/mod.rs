//! Jobs and CronJobs.

mod rules;
mod status;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Value, meta};
use serde_json::json;

use super::apps::job_spec;
use super::check::Node;
use super::pod_spec::defaults::template;
use super::pod_spec::validation::one_of;
use super::pod_spec::warnings;
use super::tree::{at, default_text, default_value, flag, has, int, object_mut, set, text};
use crate::registry::strategy::{Change, Propagation, Strategy};

const JOB_LABELS: [(&str, bool); 4] = [
    ("batch.kubernetes.io/controller-uid", true),
    ("batch.kubernetes.io/job-name", false),
    ("controller-uid", true),
    ("job-name", false),
];

pub struct Jobs;

impl Strategy for Jobs {
    fn id(&self) -> (&'static str, &'static str) {
        ("batch", "jobs")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        if object["spec"].is_object() {
            job_spec(&mut object["spec"]);
        }
    }

    fn prepare_create(&self, _change: &Change<'_>, object: &mut Value) {
        set(object, "status", json!({}));
        if flag(object, &["spec", "manualSelector"]) {
            return;
        }
        // The selector is the job's own uid, so that no two jobs share pods.
        let (uid, name) = (meta::uid(object).to_owned(), meta::name(object).to_owned());
        let labels = object_mut(object, &["spec", "template", "metadata", "labels"]);
        for (key, is_uid) in JOB_LABELS {
            let value = if is_uid { &uid } else { &name };
            labels.insert(key.to_owned(), value.as_str().into());
        }
        if !has(object, &["spec", "selector"]) {
            object_mut(object, &["spec", "selector", "matchLabels"])
                .insert("batch.kubernetes.io/controller-uid".to_owned(), uid.into());
        }
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        rules::selector(object, &mut errors);
        rules::job(&Node::root(at(object, &["spec"]), "spec"), &mut errors);
        rules::hostname(object, &mut errors);
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return status::validate(new, old);
        }
        let mut errors = ErrorList::new();
        rules::job(&Node::root(at(new, &["spec"]), "spec"), &mut errors);
        rules::update(new, old, &mut errors);
        errors
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        super::apps::warnings(change, new, old, true)
    }

    /// As it was before there was garbage collection.
    fn propagation(&self) -> Propagation {
        Propagation::Orphan
    }

    fn field_paths(&self, label: &str) -> Option<Vec<Vec<&'static str>>> {
        (label == "status.successful").then(|| vec![vec!["status", "succeeded"]])
    }

    fn field_default(&self, label: &str) -> &'static str {
        if label == "status.successful" {
            "0"
        } else {
            ""
        }
    }
}

pub struct CronJobs;

/// Longest name: a job's is eleven letters longer.
const MAX_NAME: usize = 52;

impl Strategy for CronJobs {
    fn id(&self) -> (&'static str, &'static str) {
        ("batch", "cronjobs")
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let spec = &mut object["spec"];
        if !spec.is_object() {
            return;
        }
        default_text(spec, "concurrencyPolicy", "Allow");
        default_value(spec, "suspend", false);
        default_value(spec, "successfulJobsHistoryLimit", 3);
        default_value(spec, "failedJobsHistoryLimit", 1);
        template(spec, &["jobTemplate", "spec", "template"]);
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        if meta::name(object).len() > MAX_NAME {
            errors.push(Error::invalid(
                &Path::new("metadata").child("name"),
                meta::name(object),
                format!("must be no more than {MAX_NAME} characters"),
            ));
        }
        let schedule = text(object, &["spec", "schedule"]);
        if schedule.is_empty() {
            errors.push(Error::required(&path.child("schedule"), ""));
        } else if let Err(why) = check_schedule(schedule) {
            errors.push(Error::invalid(&path.child("schedule"), schedule, why));
        }
        let policy = text(object, &["spec", "concurrencyPolicy"]);
        let valid = ["Allow", "Forbid", "Replace"];
        one_of(
            policy,
            &valid,
            &path.child("concurrencyPolicy"),
            &mut errors,
        );
        for field in [
            "startingDeadlineSeconds",
            "successfulJobsHistoryLimit",
            "failedJobsHistoryLimit",
        ] {
            let number = int(object, &["spec", field]).unwrap_or(0);
            if number < 0 {
                errors.push(Error::invalid(
                    &path.child(field),
                    number,
                    "must be greater than or equal to 0",
                ));
            }
        }
        zone(object, &mut errors);
        let spec = Node::root(
            at(object, &["spec", "jobTemplate", "spec"]),
            "spec.jobTemplate.spec",
        );
        rules::job(&spec, &mut errors);
        if spec.at("selector").is_set() {
            spec.at("selector")
                .invalid(&mut errors, "`selector` will be auto-generated");
        }
        if spec.at("manualSelector").flag() {
            errors.push(Error::not_supported(
                &spec.at("manualSelector").path(),
                true,
                &["nil", "false"],
            ));
        }
        errors
    }

    fn validate_update(&self, change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        if change.subresource == "status" {
            return ErrorList::new();
        }
        let same = text(new, &["spec", "schedule"]) == text(old, &["spec", "schedule"]);
        // What was taken before it was refused stays acceptable.
        self.validate_create(change, new)
            .into_iter()
            .filter(|error| !(same && error.detail == ZONE_IN_SCHEDULE))
            .fold(ErrorList::new(), |mut errors, error| {
                errors.push(error);
                errors
            })
    }

    fn warnings(&self, change: &Change<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut texts = Vec::new();
        if !change.subresource.is_empty() {
            return texts;
        }
        if old.is_none() {
            warnings::name_of_host(new, "Pod names and hostnames", &mut texts);
        }
        if old.is_none_or(|old| meta::generation(old) != meta::generation(new)) {
            let template = at(new, &["spec", "jobTemplate", "spec", "template"]);
            warnings::pod(template, "spec.jobTemplate.spec.template", &mut texts);
        }
        texts
    }
}

const ZONE_IN_SCHEDULE: &str = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";

/// Where the schedule's times are told in.
fn zone(object: &Value, errors: &mut ErrorList) {
    let spec = Node::root(at(object, &["spec"]), "spec");
    if spec.at("schedule").text().contains("TZ") {
        spec.at("schedule").invalid(errors, ZONE_IN_SCHEDULE);
    }
    let zone = spec.at("timeZone");
    if !zone.is_set() {
        return;
    }
    let name = zone.text();
    if name.is_empty() {
        zone.invalid(errors, "timeZone must be nil or non-empty string");
    } else if name.eq_ignore_ascii_case("local") {
        zone.invalid(
            errors,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    } else if jiff::tz::TimeZone::get(name).is_err() {
        zone.invalid(errors, format!("unknown time zone {name}"));
    }
}

/// Whether a schedule is five fields of cron, or one of the `@` words.
fn check_schedule(schedule: &str) -> Result<(), String> {
    let rest = match schedule
        .strip_prefix("TZ=")
        .or_else(|| schedule.strip_prefix("CRON_TZ="))
    {
        Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest),
        None => schedule,
    };
    let words = [
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    ];
    if words.contains(&rest) || rest.starts_with("@every ") {
        return Ok(());
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    }
    let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
    for (field, (low, high)) in fields.iter().zip(bounds) {
        for part in field.split(',') {
            let (range, step) = part.split_once('/').unwrap_or((part, "1"));
            if step.parse::<u32>().map_or(true, |step| step == 0) {
                return Err(format!(
                    "failed to parse int from {step}: strconv.Atoi: parsing {step:?}: invalid syntax"
                ));
            }
            if matches!(range, "*" | "?") {
                continue;
            }
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            for end in [from, to] {
                match end.parse::<i64>() {
                    Ok(number) if number < low => {
                        return Err(format!(
                            "beginning of range ({number}) below minimum ({low}): {part}"
                        ));
                    }
                    Ok(number) if number > high => {
                        return Err(format!(
                            "end of range ({number}) above maximum ({high}): {part}"
                        ));
                    }
                    Ok(_) => {}
                    Err(_)
                        if end.len() == 3 && end.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                    }
                    Err(_) => {
                        return Err(format!(
                            "failed to parse int from {end}: strconv.Atoi: parsing {end:?}: invalid syntax"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_five_fields_in_range() {
        for good in [
            "*/5 * * * *",
            "0 0 1,15 * MON-FRI",
            "@hourly",
            "TZ=UTC 0 0 * * *",
            "0 0 * * 7",
        ] {
            assert_eq!(check_schedule(good), Ok(()), "{good}");
        }
        for bad in ["* * * *", "60 * * * *", "x * * * *", "*/0 * * * *"] {
            assert!(check_schedule(bad).is_err(), "{bad}");
        }
    }
}
