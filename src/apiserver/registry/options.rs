//! The options of reads and writes out of a request's query (and, for deletes, its body), checked as upstream does.

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Status, Value, field};

use crate::query::Query;
use crate::request::RequestInfo;

/// Most results of one page when a client names a limit; more only costs the client memory.
const MAX_LIMIT: i64 = i64::MAX;

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Exact,
    NotOlderThan,
}

/// Options of list and watch (`metav1.ListOptions`).
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    /// As sent; empty when not.
    pub resource_version: String,
    pub version_match: Option<Match>,
    /// 0 is no limit.
    pub limit: usize,
    pub continue_token: String,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    pub fn parse(query: &Query, watch: bool) -> Result<Self, Status> {
        let integer = |name: &str| {
            query
                .integer(name)
                .map_err(|error| Status::bad_request(error.to_string()))
        };
        let version_match = query.get("resourceVersionMatch").unwrap_or("");
        let options = Self {
            label_selector: query.get("labelSelector").unwrap_or("").to_owned(),
            field_selector: query.get("fieldSelector").unwrap_or("").to_owned(),
            resource_version: query.get("resourceVersion").unwrap_or("").to_owned(),
            version_match: match version_match {
                "Exact" => Some(Match::Exact),
                "NotOlderThan" => Some(Match::NotOlderThan),
                _ => None,
            },
            limit: integer("limit")?.unwrap_or(0).clamp(0, MAX_LIMIT) as usize,
            continue_token: query.get("continue").unwrap_or("").to_owned(),
            timeout_seconds: integer("timeoutSeconds")?
                .filter(|seconds| *seconds > 0)
                .map(|seconds| seconds as u64),
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial_events: query.optional_flag("sendInitialEvents"),
        };
        let errors = options.check(version_match, watch);
        if errors.is_empty() {
            Ok(options)
        } else {
            Err(Status::invalid("meta.k8s.io", "ListOptions", "", errors))
        }
    }

    /// `ValidateListOptions`.
    fn check(&self, version_match: &str, watch: bool) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("resourceVersionMatch");
        if watch {
            if self.send_initial_events.is_some() && version_match.is_empty() {
                errors.push(Error::forbidden(
                    &path,
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            if !version_match.is_empty() {
                if self.send_initial_events.is_none() {
                    errors.push(Error::forbidden(
                        &path,
                        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                    ));
                }
                if version_match != "NotOlderThan" {
                    errors.push(Error::not_supported(
                        &path,
                        version_match,
                        &["NotOlderThan"],
                    ));
                }
                if !self.continue_token.is_empty() {
                    errors.push(Error::forbidden(
                        &path,
                        "resourceVersionMatch is forbidden when continue is provided",
                    ));
                }
            }
            return errors;
        }
        if self.send_initial_events.is_some() {
            errors.push(Error::forbidden(
                &Path::new("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            ));
        }
        if version_match.is_empty() {
            return errors;
        }
        if self.resource_version.is_empty() {
            errors.push(Error::forbidden(
                &path,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if !self.continue_token.is_empty() {
            errors.push(Error::forbidden(
                &path,
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if self.version_match.is_none() {
            errors.push(Error::not_supported(
                &path,
                version_match,
                &["Exact", "NotOlderThan", ""],
            ));
        }
        if self.version_match == Some(Match::Exact) && self.resource_version == "0" {
            errors.push(Error::forbidden(
                &path,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
        errors
    }

    /// The resourceVersion as a number; `None` when not given.
    pub fn revision(&self) -> Result<Option<i64>, Status> {
        parse_version(&self.resource_version)
    }
}

/// A resourceVersion as a number; `None` for an empty one.
pub fn parse_version(text: &str) -> Result<Option<i64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<u64>() {
        Ok(number) if number <= i64::MAX as u64 => Ok(Some(number as i64)),
        _ => {
            let kind = if text.bytes().all(|byte| byte.is_ascii_digit()) {
                "value out of range"
            } else {
                "invalid syntax"
            };
            let error = format!("strconv.ParseUint: parsing {}: {kind}", field::quote(text));
            let errors =
                ErrorList::from(Error::invalid(&Path::new("resourceVersion"), text, error));
            Err(Status::bad_request(errors.aggregate()))
        }
    }
}

/// What is done about unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Options of create, update, patch and apply.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    /// As sent; empty when not.
    pub field_manager: String,
    pub force: Option<bool>,
}

impl WriteOptions {
    /// `kind` names the options in errors: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
    pub fn parse(query: &Query, kind: &str) -> Result<Self, Status> {
        let mut errors = ErrorList::new();
        let dry_run = parse_dry_run(query.all("dryRun"), &mut errors);
        let manager = query.get("fieldManager").unwrap_or("");
        check_manager(manager, &mut errors);
        let field_validation = match query.get("fieldValidation").unwrap_or("") {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.push(Error::not_supported(
                    &Path::new("fieldValidation"),
                    other,
                    &["Ignore", "Warn", "Strict"],
                ));
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", kind, "", errors));
        }
        Ok(Self {
            dry_run,
            field_validation,
            field_manager: manager.to_owned(),
            force: query.optional_flag("force"),
        })
    }

    /// Patch options: what apply needs and what others must not have.
    pub fn parse_patch(query: &Query, apply: bool) -> Result<Self, Status> {
        let options = Self::parse(query, "PatchOptions")?;
        let mut errors = ErrorList::new();
        if apply {
            if options.field_manager.is_empty() {
                errors.push(Error::required(
                    &Path::new("fieldManager"),
                    "is required for apply patch",
                ));
            }
        } else if options.force.is_some() {
            errors.push(Error::forbidden(
                &Path::new("force"),
                "may not be specified for non-apply patch",
            ));
        }
        if errors.is_empty() {
            Ok(options)
        } else {
            Err(Status::invalid("meta.k8s.io", "PatchOptions", "", errors))
        }
    }
}

fn parse_dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut ErrorList) -> bool {
    let mut dry_run = false;
    for value in values {
        if value == "All" {
            dry_run = true;
        } else {
            errors.push(Error::not_supported(&Path::new("dryRun"), value, &["All"]));
        }
    }
    dry_run
}

/// Longest field manager name.
const MANAGER_LENGTH: usize = 128;

fn check_manager(manager: &str, errors: &mut ErrorList) {
    let path = Path::new("fieldManager");
    if manager.len() > MANAGER_LENGTH {
        errors.push(Error::too_long(&path, MANAGER_LENGTH));
    }
    for (at, letter) in manager.char_indices() {
        if letter.is_control() {
            errors.push(Error::invalid(
                &path,
                manager,
                format!("invalid character {:?} (at position {at})", letter),
            ));
        }
    }
}

/// Deletion policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Orphan,
    Background,
    Foreground,
}

/// Options of delete and deletecollection (`metav1.DeleteOptions`), from the body or the query.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub grace_period_seconds: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub policy: Option<Policy>,
}

impl DeleteOptions {
    /// `body` is the decoded DeleteOptions, when one was sent; the query is not looked at then (as upstream).
    pub fn parse(body: Option<&Value>, query: &Query) -> Result<Self, Status> {
        let mut errors = ErrorList::new();
        let mut options = Self::default();
        let (orphan, policy);
        match body {
            Some(body) => {
                let list = body.get("dryRun").and_then(Value::as_array);
                let values = list
                    .into_iter()
                    .flatten()
                    .map(|value| value.as_str().unwrap_or(""));
                options.dry_run = parse_dry_run(values, &mut errors);
                options.grace_period_seconds =
                    body.get("gracePeriodSeconds").and_then(Value::as_i64);
                let text =
                    |path: [&str; 2]| Some(body.get(path[0])?.get(path[1])?.as_str()?.to_owned());
                options.uid = text(["preconditions", "uid"]);
                options.resource_version = text(["preconditions", "resourceVersion"]);
                orphan = body.get("orphanDependents").and_then(Value::as_bool);
                policy = body
                    .get("propagationPolicy")
                    .and_then(Value::as_str)
                    .unwrap_or("")
                    .to_owned();
            }
            None => {
                options.dry_run = parse_dry_run(query.all("dryRun"), &mut errors);
                options.grace_period_seconds = query
                    .integer("gracePeriodSeconds")
                    .map_err(|error| Status::bad_request(error.to_string()))?;
                orphan = query.optional_flag("orphanDependents");
                policy = query.get("propagationPolicy").unwrap_or("").to_owned();
            }
        }
        let path = Path::new("propagationPolicy");
        options.policy = match policy.as_str() {
            "" => orphan.map(|orphan| {
                if orphan {
                    Policy::Orphan
                } else {
                    Policy::Background
                }
            }),
            "Orphan" => Some(Policy::Orphan),
            "Background" => Some(Policy::Background),
            "Foreground" => Some(Policy::Foreground),
            other => {
                errors.push(Error::not_supported(
                    &path,
                    other,
                    &["Foreground", "Background", "Orphan", "nil"],
                ));
                None
            }
        };
        if orphan.is_some() && !policy.is_empty() {
            errors.push(Error::invalid(
                &path,
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        if errors.is_empty() {
            Ok(options)
        } else {
            Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", errors))
        }
    }
}

/// Whose fields a write changes: the named manager, the first part of the User-Agent, or `unknown`.
pub fn manager(options: &WriteOptions, user_agent: &str) -> String {
    if !options.field_manager.is_empty() {
        return options.field_manager.clone();
    }
    let prefix = user_agent.split('/').next().unwrap_or("");
    if prefix.is_empty() {
        return "unknown".to_owned();
    }
    prefix
        .chars()
        .filter(|letter| !letter.is_control())
        .take(MANAGER_LENGTH)
        .collect()
}

/// How errors name what a request is about.
pub fn describe(info: &RequestInfo) -> String {
    if info.subresource.is_empty() {
        info.resource.clone()
    } else {
        format!("{}/{}", info.resource, info.subresource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn refused(query: &str, watch: bool, text: &str) {
        let error = ListOptions::parse(&Query::parse(query), watch).expect_err("refused");
        assert_eq!(error.code, 422);
        assert!(error.message.contains(text), "{}", error.message);
    }

    #[test]
    fn contradictory_list_options_are_refused() {
        refused(
            "resourceVersionMatch=Exact",
            false,
            "forbidden unless resourceVersion is provided",
        );
        refused(
            "resourceVersion=0&resourceVersionMatch=Exact",
            false,
            "is forbidden for resourceVersion \"0\"",
        );
        refused(
            "sendInitialEvents=true",
            false,
            "sendInitialEvents is forbidden for list",
        );
        refused(
            "sendInitialEvents=true",
            true,
            "requires setting resourceVersionMatch to NotOlderThan",
        );
        refused(
            "resourceVersion=1&resourceVersionMatch=x",
            false,
            "Unsupported value: \"x\"",
        );
    }

    #[test]
    fn a_resource_version_is_a_number() {
        assert_eq!(parse_version("").unwrap(), None);
        assert_eq!(parse_version("12").unwrap(), Some(12));
        assert_eq!(parse_version("x").unwrap_err().code, 400);
        assert_eq!(parse_version("-1").unwrap_err().code, 400);
    }

    #[test]
    fn delete_options_come_from_the_body_or_the_query() {
        let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "propagationPolicy": "Foreground"});
        let options = DeleteOptions::parse(Some(&body), &Query::default()).unwrap();
        assert_eq!(options.grace_period_seconds, Some(0));
        assert_eq!(options.uid.as_deref(), Some("u"));
        assert_eq!(options.policy, Some(Policy::Foreground));
        let options =
            DeleteOptions::parse(None, &Query::parse("gracePeriodSeconds=5&dryRun=All")).unwrap();
        assert!(options.dry_run);
        assert_eq!(options.grace_period_seconds, Some(5));
    }

    #[test]
    fn the_manager_is_named_or_the_tool() {
        let options = WriteOptions::default();
        assert_eq!(
            manager(&options, "kubectl/v1.37.0 (linux/amd64)"),
            "kubectl"
        );
        assert_eq!(manager(&options, ""), "unknown");
        let named = WriteOptions {
            field_manager: "me".into(),
            ..options
        };
        assert_eq!(manager(&named, "kubectl/v1.37.0"), "me");
    }
}
