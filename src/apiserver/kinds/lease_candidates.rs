//! LeaseCandidates: who would hold a lease, and of which version it is (KEP-4355).

use std::cmp::Ordering;

use apimachinery::field::ErrorList;
use apimachinery::{Value, name};

use super::check::Node;
use super::object_meta::NameRule;
use super::tree::at;
use crate::registry::strategy::{Change, Strategy};

const OLDEST: &str = "OldestEmulationVersion";
const NO_VERSION: &str = "must be a valid semantic version";

pub struct LeaseCandidates;

impl Strategy for LeaseCandidates {
    fn id(&self) -> (&'static str, &'static str) {
        ("coordination.k8s.io", "leasecandidates")
    }

    fn name_rule(&self) -> NameRule {
        |text, _prefix| name::config_map_key(text)
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn validate_create(&self, _change: &Change<'_>, object: &Value) -> ErrorList {
        candidate(object)
    }

    fn validate_update(&self, _change: &Change<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errors = candidate(new);
        Node::root(at(new, &["spec"]), "spec")
            .at("leaseName")
            .unchanged(&mut errors, at(old, &["spec", "leaseName"]));
        errors
    }
}

fn candidate(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = Node::root(at(object, &["spec"]), "spec");
    spec.at("leaseName").present(&mut errors);
    let (emulated, binary) = (spec.at("emulationVersion"), spec.at("binaryVersion"));
    let parse = |version: &Node<'_, '_>, errors: &mut ErrorList| {
        let parsed = Version::parse(version.text());
        if parsed.is_none() {
            version.invalid(errors, NO_VERSION);
        }
        parsed.unwrap_or_default()
    };
    let emulates = match emulated.text().is_empty() {
        true => Version::default(),
        false => parse(&emulated, &mut errors),
    };
    if binary.present(&mut errors) {
        let is = parse(&binary, &mut errors);
        if !emulated.text().is_empty() && is < emulates {
            binary.invalid(
                &mut errors,
                "must be greater than or equal to `emulationVersion`",
            );
        }
    }
    let chosen = spec.at("strategy");
    if chosen.present(&mut errors) {
        if chosen.text() == OLDEST && emulates == Version::default() {
            emulated.required(
                &mut errors,
                "must be specified when `strategy` is 'OldestEmulationVersion'",
            );
        }
        strategy(&chosen, &mut errors);
    }
    errors
}

/// `ValidateCoordinatedLeaseStrategy`: the project's own, or one in somebody's domain. Upstream tells the field twice.
pub fn strategy(strategy: &Node<'_, '_>, errors: &mut ErrorList) {
    let told = strategy.told_at("strategy");
    if strategy.text().contains('/') {
        told.syntax(errors, name::qualified_name);
    } else if strategy.text() != OLDEST {
        told.not_supported(errors, &[OLDEST]);
    }
}

/// A semantic version.
#[derive(Debug, Default, PartialEq, Eq)]
struct Version {
    core: [u64; 3],
    pre: Vec<Part>,
}

/// A part of what comes before a version; numbers come before words.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Word(String),
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let (text, build) = match text.split_once('+') {
            Some((text, build)) => (text, Some(build)),
            None => (text, None),
        };
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !build.is_none_or(|build| build.split('.').all(is_word)) {
            return None;
        }
        let (core, pre) = match text.split_once('-') {
            Some((core, pre)) => (core, Some(pre)),
            None => (text, None),
        };
        let number = |digits: &str| {
            let canonical = digits == "0" || !digits.starts_with('0');
            let digits_only = digits.bytes().all(|byte| byte.is_ascii_digit());
            (canonical && digits_only).then(|| digits.parse::<u64>().ok())?
        };
        let numbers: Vec<u64> = core.split('.').map(number).collect::<Option<_>>()?;
        let part = |part: &str| {
            if !is_word(part) {
                return None;
            }
            match part.bytes().all(|byte| byte.is_ascii_digit()) {
                true => number(part).map(Part::Number),
                false => Some(Part::Word(part.to_owned())),
            }
        };
        Some(Self {
            core: numbers.try_into().ok()?,
            pre: match pre {
                Some(pre) => pre.split('.').map(part).collect::<Option<_>>()?,
                None => Vec::new(),
            },
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        // What comes before a version is less than it.
        let pre = match (self.pre.is_empty(), other.pre.is_empty()) {
            (false, false) => self.pre.cmp(&other.pre),
            (own, others) => own.cmp(&others),
        };
        Some(self.core.cmp(&other.core).then(pre))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    #[test]
    fn candidates_name_their_lease_and_versions() {
        let of = |spec: Value| candidate(&json!({ "spec": spec }));
        check(
            of(
                json!({"leaseName": "l", "binaryVersion": "1.37.0", "emulationVersion": "1.36.0", "strategy": OLDEST}),
            ),
            &[],
        );
        check(
            of(json!({})),
            &[
                "spec.leaseName: Required value",
                "spec.binaryVersion: Required value",
                "spec.strategy: Required value",
            ],
        );
        check(
            of(json!({"leaseName": "l", "binaryVersion": "1.37", "strategy": OLDEST})),
            &[
                "spec.binaryVersion: Invalid value: \"1.37\": must be a valid semantic version",
                "spec.emulationVersion: Required value: must be specified when `strategy` is 'OldestEmulationVersion'",
            ],
        );
        check(
            of(
                json!({"leaseName": "l", "binaryVersion": "1.37.0-rc.1", "emulationVersion": "1.37.0", "strategy": "Mine"}),
            ),
            &[
                "spec.binaryVersion: Invalid value: \"1.37.0-rc.1\": must be greater than or equal to `emulationVersion`",
                "spec.strategy.strategy: Unsupported value: \"Mine\": supported values: \"OldestEmulationVersion\"",
            ],
        );
        check(
            of(json!({"leaseName": "l", "binaryVersion": "1.0.0", "strategy": "example.com/mine"})),
            &[],
        );
    }

    #[test]
    fn versions_are_ordered_as_they_say() {
        let parse = |text| Version::parse(text).expect("a version");
        for pair in [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-beta",
            "1.0.0",
            "1.2.0",
            "2.0.0",
        ]
        .windows(2)
        {
            assert!(parse(pair[0]) < parse(pair[1]), "{pair:?}");
        }
        assert!(parse("1.0.0+a") == parse("1.0.0+b"));
        for wrong in [
            "1", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "v1.2.3", "1.2.x",
        ] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
    }
}
