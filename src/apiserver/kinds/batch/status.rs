//! What a controller may write to a job's status (`ValidateJobUpdateStatus`): counters do not go back, ends are for good,
//! and what is said fits together.
//!
//! Rules about how things fit look only when one of them changed, so that what older servers took can still be written.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList};

use super::super::check::Node;
use super::super::tree::{at, flag, int, items, text};

/// Most completed indexes that are looked at; more are in fewer intervals.
const MAX_INTERVALS: usize = 100_000;

struct Job<'a>(&'a Value);

impl Job<'_> {
    fn is(&self, condition: &str) -> bool {
        items(self.0, &["status", "conditions"])
            .iter()
            .any(|found| text(found, &["type"]) == condition && text(found, &["status"]) == "True")
    }

    fn is_finished(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn count(&self, field: &str) -> i64 {
        int(self.0, &["status", field]).unwrap_or(0)
    }
}

/// An update of the status.
pub fn validate(new: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = Node::root(at(new, &["status"]), "status");
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        status.at(field).nonnegative(&mut errors);
    }
    uncounted(&status.at("uncountedTerminatedPods"), &mut errors);
    ends(new, old, &status, &mut errors);
    finished(new, old, &status, &mut errors);
    times(new, old, &status, &mut errors);
    indexes(new, old, &status, &mut errors);
    goes_on(new, old, &status, &mut errors);
    errors
}

/// Pods that ended and are not counted yet are each told once.
fn uncounted(pods: &Node<'_, '_>, errors: &mut ErrorList) {
    let mut seen: Vec<&str> = Vec::new();
    for list in ["succeeded", "failed"] {
        for uid in pods.at(list).items() {
            if uid.text().is_empty() {
                uid.invalid_as(errors, "", "must not be empty");
            } else if seen.contains(&uid.text()) {
                uid.duplicate(errors);
            }
            seen.push(uid.text());
        }
    }
}

fn changed(new: &Value, old: &Value, fields: &[&str]) -> bool {
    fields
        .iter()
        .any(|field| at(new, &["status", field]) != at(old, &["status", field]))
}

/// How a job ends: complete or failed, and never without the condition that came before.
fn ends(new: &Value, old: &Value, status: &Node<'_, '_>, errors: &mut ErrorList) {
    let (is, was) = (Job(new), Job(old));
    let turned = |conditions: &[&str]| {
        conditions
            .iter()
            .any(|condition| is.is(condition) != was.is(condition))
    };
    let conditions = status.at("conditions");
    let mut wrong = |why: &str| {
        let error = Error::invalid(&conditions.path(), Value::Null, why);
        errors.push(error.without_value());
    };
    for end in ["Failed", "Complete", "FailureTarget", "SuccessCriteriaMet"] {
        if was.is(end) && !is.is(end) {
            wrong(&format!("cannot disable the terminal {end}=True condition"));
        }
    }
    if turned(&["Complete", "Failed"]) && is.is("Complete") && is.is("Failed") {
        wrong("cannot set Complete=True and Failed=true conditions");
    }
    if turned(&["Complete", "FailureTarget"]) && is.is("Complete") && is.is("FailureTarget") {
        wrong("cannot set Complete=True and FailureTarget=true conditions");
    }
    if turned(&["Failed"]) && is.is("Failed") && !is.is("FailureTarget") {
        wrong("cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if turned(&["Complete", "SuccessCriteriaMet"])
        && is.is("Complete")
        && !is.is("SuccessCriteriaMet")
    {
        wrong("cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
    if turned(&["SuccessCriteriaMet", "Failed"]) && is.is("SuccessCriteriaMet") && is.is("Failed") {
        wrong("cannot set SuccessCriteriaMet=True and Failed=true conditions");
    }
    if turned(&["SuccessCriteriaMet", "FailureTarget"])
        && is.is("SuccessCriteriaMet")
        && is.is("FailureTarget")
    {
        wrong("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
    }
}

/// Nothing of a finished job is left running.
fn finished(new: &Value, old: &Value, status: &Node<'_, '_>, errors: &mut ErrorList) {
    let is = Job(new);
    let turned = is.is_finished() != Job(old).is_finished();
    let look = |fields: &[&str]| is.is_finished() && (turned || changed(new, old, fields));
    let (active, terminating) = (is.count("active"), is.count("terminating"));
    if look(&["active"]) && active > 0 {
        let why = "active>0 is invalid for finished job";
        status.at("active").invalid_as(errors, active, why);
    }
    if look(&["startTime"]) && !status.at("startTime").is_set() {
        let why = "startTime is required for finished job";
        status.at("startTime").required(errors, why);
    }
    if look(&["uncountedTerminatedPods"]) {
        let uncounted = status.at("uncountedTerminatedPods");
        let any = ["succeeded", "failed"]
            .iter()
            .any(|list| !uncounted.at(list).is_empty());
        if any {
            let why = "uncountedTerminatedPods needs to be empty for finished job";
            uncounted.invalid(errors, why);
        }
    }
    if look(&["terminating"]) && terminating > 0 {
        let why = "terminating>0 is invalid for finished job";
        status
            .at("terminating")
            .invalid_as(errors, terminating, why);
    }
    if changed(new, old, &["ready", "active"]) && is.count("ready") > active {
        let why = "cannot set more ready pods than active";
        status.at("ready").invalid(errors, why);
    }
}

/// When it began and when it was done.
fn times(new: &Value, old: &Value, status: &Node<'_, '_>, errors: &mut ErrorList) {
    let (is, was) = (Job(new), Job(old));
    let (start, end) = (status.at("startTime"), status.at("completionTime"));
    let turned = is.is("Complete") != was.is("Complete") || changed(new, old, &["completionTime"]);
    if turned && end.is_set() && !is.is("Complete") {
        end.invalid(
            errors,
            "cannot set completionTime when there is no Complete=True condition",
        );
    }
    if turned && !end.is_set() && is.is("Complete") {
        end.required(errors, "completionTime is required for Complete jobs");
    }
    // Times are all in UTC and of one length, so that their texts order them.
    if changed(new, old, &["startTime", "completionTime"])
        && start.is_set()
        && end.is_set()
        && end.text() < start.text()
    {
        end.invalid(errors, "completionTime cannot be set before startTime");
    }
    let was_end = at(old, &["status", "completionTime"]);
    if !was_end.is_null() && was_end != end.value {
        end.invalid(errors, "completionTime cannot be mutated");
    }
    let was_start = at(old, &["status", "startTime"]);
    // A job that is resumed is counted anew.
    let resumed = was.is("Suspended") && !is.is("Suspended");
    let running = !flag(new, &["spec", "suspend"]) && !resumed;
    if !was_start.is_null() && was_start != start.value && running {
        if start.is_set() {
            start.required(errors, "startTime cannot be updated for unsuspended job");
        } else {
            start.required(errors, "startTime cannot be removed for unsuspended job");
        }
    }
}

/// Indexes that completed and that failed for good are lists of numbers and ranges, and no index is in both.
fn indexes(new: &Value, old: &Value, status: &Node<'_, '_>, errors: &mut ErrorList) {
    let (completed, failed) = (status.at("completedIndexes"), status.at("failedIndexes"));
    let indexed = text(new, &["spec", "completionMode"]) == "Indexed";
    if changed(new, old, &["completedIndexes"]) && !completed.text().is_empty() && !indexed {
        completed.invalid(
            errors,
            "cannot set non-empty completedIndexes when non-indexed completion mode",
        );
    }
    let per_index = !at(new, &["spec", "backoffLimitPerIndex"]).is_null();
    if changed(new, old, &["failedIndexes"]) && !failed.text().is_empty() && !per_index {
        failed.invalid(
            errors,
            "cannot set non-empty failedIndexes when backoffLimitPerIndex is null",
        );
    }
    let Some(completions) = int(new, &["spec", "completions"]) else {
        return;
    };
    let mut parse = |node: &Node<'_, '_>, field: &str| match intervals(node.text(), completions) {
        Ok(found) => Some(found),
        Err(why) => {
            if changed(new, old, &[field]) {
                node.invalid(errors, format!("error parsing {field}: {why}"));
            }
            None
        }
    };
    let (done, lost) = (
        parse(&completed, "completedIndexes"),
        parse(&failed, "failedIndexes"),
    );
    if let (Some(done), Some(lost)) = (done, lost)
        && changed(new, old, &["completedIndexes", "failedIndexes"])
        && let Some((first, _)) = overlap(&done, &lost)
    {
        failed.invalid(
            errors,
            format!("failedIndexes and completedIndexes overlap at index: {first}"),
        );
    }
}

/// Reads `1,3-5,7`; ascending, without repeats.
fn intervals(text: &str, completions: i64) -> Result<Vec<(i64, i64)>, String> {
    let mut found: Vec<(i64, i64)> = Vec::new();
    if text.is_empty() {
        return Ok(found);
    }
    let number = |text: &str| {
        text.parse::<i64>()
            .map_err(|_| format!("cannot convert string to integer for index: \"{text}\""))
    };
    for part in text.split(',').take(MAX_INTERVALS) {
        let mut bounds = part.split('-');
        let (first, last, more) = (bounds.next(), bounds.next(), bounds.next());
        if more.is_some() {
            return Err(format!(
                "the fragment \"{part}\" violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
        let first = number(first.unwrap_or(""))?;
        if found.last().is_some_and(|(_, before)| *before >= first) {
            return Err(format!(
                "non-increasing order, previous: {}, current: {first}",
                found.last().map_or(0, |(_, before)| *before)
            ));
        }
        let last = match last {
            None => first,
            Some(text) => {
                let last = number(text)?;
                if last <= first {
                    return Err(format!(
                        "non-increasing order, previous: {first}, current: {last}"
                    ));
                }
                last
            }
        };
        if last >= completions {
            return Err(format!("too large index: \"{last}\""));
        }
        found.push((first, last));
    }
    Ok(found)
}

fn overlap(left: &[(i64, i64)], right: &[(i64, i64)]) -> Option<(i64, i64)> {
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let common = (a.0.max(b.0), a.1.min(b.1));
        if common.0 <= common.1 {
            return Some(common);
        }
        if a.1 < b.1 {
            left.next();
        } else {
            right.next();
        }
    }
    None
}

fn goes_on(new: &Value, old: &Value, status: &Node<'_, '_>, errors: &mut ErrorList) {
    let (is, was) = (Job(new), Job(old));
    // Fewer completions may be asked of a job with indexes, and then fewer have succeeded.
    let indexed = text(new, &["spec", "completionMode"]) == "Indexed";
    let counters: &[&str] = if indexed {
        &["failed"]
    } else {
        &["succeeded", "failed"]
    };
    for field in counters {
        if is.count(field) < was.count(field) {
            status.at(field).invalid_as(
                errors,
                is.count(field),
                format!("cannot decrease the {field} counter"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    fn job(status: Value) -> Value {
        json!({"spec": {"completions": 5, "completionMode": "Indexed"}, "status": status})
    }

    fn conditions(kinds: &[&str]) -> Value {
        kinds
            .iter()
            .map(|kind| json!({"type": kind, "status": "True"}))
            .collect()
    }

    #[test]
    fn a_job_completes_once_its_pods_are_gone() {
        let old = job(json!({"active": 1, "startTime": "2020-01-01T00:00:00Z"}));
        let good = job(
            json!({"startTime": "2020-01-01T00:00:00Z", "completionTime": "2020-01-01T00:00:09Z",
            "succeeded": 5, "conditions": conditions(&["SuccessCriteriaMet", "Complete"])}),
        );
        check(validate(&good, &old), &[]);
        let bad = job(
            json!({"active": 1, "completionTime": "2019-01-01T00:00:00Z", "startTime": "2020-01-01T00:00:00Z",
            "conditions": conditions(&["Complete", "Failed"])}),
        );
        check(
            validate(&bad, &old),
            &[
                "status.conditions: Invalid value: cannot set Complete=True and Failed=true conditions",
                "status.conditions: Invalid value: cannot set Failed=True condition without the FailureTarget=true condition",
                "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
                "status.active: Invalid value: 1: active>0 is invalid for finished job",
                "status.completionTime: Invalid value: \"2019-01-01T00:00:00Z\": completionTime cannot be set before startTime",
            ],
        );
        let undone = job(json!({"startTime": "2020-01-01T00:00:00Z"}));
        let texts = validate(&undone, &good).aggregate();
        for text in [
            "cannot disable the terminal Complete=True condition",
            "completionTime cannot be mutated",
        ] {
            assert!(texts.contains(text), "{texts}");
        }
    }

    #[test]
    fn a_job_starts_anew_only_when_it_is_resumed() {
        let at = |minute: u32, suspended: &str| {
            job(json!({"startTime": format!("2020-01-01T00:0{minute}:00Z"),
                "conditions": [{"type": "Suspended", "status": suspended}]}))
        };
        check(validate(&at(2, "False"), &at(1, "True")), &[]);
        let moved =
            "status.startTime: Required value: startTime cannot be updated for unsuspended job";
        check(validate(&at(2, "False"), &at(1, "False")), &[moved]);
        check(validate(&at(2, "True"), &at(1, "True")), &[moved]);
    }

    #[test]
    fn counters_do_not_go_back() {
        let plain = |succeeded: i64| json!({"status": {"succeeded": succeeded}});
        check(
            validate(&plain(1), &plain(2)),
            &["status.succeeded: Invalid value: 1: cannot decrease the succeeded counter"],
        );
        check(
            validate(&job(json!({"succeeded": 1})), &job(json!({"succeeded": 2}))),
            &[],
        );
    }

    #[test]
    fn indexes_are_read_and_kept_apart() {
        let with = |completed: &str, failed: &str| {
            let mut job = job(json!({"completedIndexes": completed, "failedIndexes": failed}));
            job["spec"]["backoffLimitPerIndex"] = 1.into();
            job
        };
        let none = job(json!({}));
        check(validate(&with("0,2-3", "1,4"), &none), &[]);
        check(
            validate(&with("0,2-3", "3"), &none),
            &[
                "status.failedIndexes: Invalid value: \"3\": failedIndexes and completedIndexes overlap at index: 3",
            ],
        );
        check(
            validate(&with("3,1", ""), &none),
            &[
                "status.completedIndexes: Invalid value: \"3,1\": error parsing completedIndexes: non-increasing order, previous: 3, current: 1",
            ],
        );
        check(
            validate(&with("5", ""), &none),
            &[
                "status.completedIndexes: Invalid value: \"5\": error parsing completedIndexes: too large index: \"5\"",
            ],
        );
    }
}
