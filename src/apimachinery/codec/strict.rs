//! Owns: how findings of strict validation are told: those of a JSON body in the order of its text, as sigs.k8s.io/json
//! comes upon them, and the repeated keys of a YAML text by their lines, as go-yaml does. Only bodies that something
//! is wrong with come here.

use super::MAX_STRICT_ERRORS;
use crate::field::quote;
use granit_parser::{Event, Parser, ScalarStyle};
use std::collections::{HashMap, HashSet};

/// Longest path that is looked for in a text: each key of the text may cost as much.
const MAX_PATH: usize = 512;
/// What go-yaml begins a list of errors with, and the same from where the text becomes JSON.
const YAML: &str = "yaml: unmarshal errors:\n";
const CONVERTED: &str = "error converting YAML to JSON: ";

/// Findings of a JSON body (paths in quotes behind `unknown field` and `duplicate field`) in the order of its text.
/// What is within an unknown field is not looked at, so nothing in it is a finding.
pub fn in_order_of_text(body: &[u8], findings: Vec<String>) -> Vec<String> {
    if findings.len() < 2 || findings.iter().any(|finding| finding.len() > MAX_PATH) {
        return findings;
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return findings;
    };
    let mut search = Search {
        text: text.as_bytes(),
        at: 0,
        path: String::new(),
        wanted: HashMap::new(),
        found: 0,
    };
    for (number, finding) in findings.iter().enumerate() {
        let (path, times) = match finding.strip_prefix("duplicate field ") {
            Some(path) => (path, 2),
            None => (finding.strip_prefix("unknown field ").unwrap_or(""), 1),
        };
        let place = Place {
            number,
            times,
            seen: 0,
            order: usize::MAX,
        };
        let path = path.trim_matches('"').to_owned();
        search.wanted.entry(path).or_default().push(place);
    }
    search.value();
    let unknown: Vec<&String> = search
        .wanted
        .iter()
        .filter(|(_, places)| places.iter().any(|place| place.times == 1))
        .map(|(path, _)| path)
        .collect();
    let mut ordered: Vec<(usize, usize)> = search
        .wanted
        .iter()
        .flat_map(|(path, places)| places.iter().map(move |place| (path, place)))
        .filter(|(path, place)| place.times == 1 || !unknown.iter().any(|at| is_within(path, at)))
        .map(|(_, place)| (place.order, place.number))
        .collect();
    ordered.sort_unstable();
    ordered
        .into_iter()
        .map(|(_, number)| findings[number].clone())
        .collect()
}

fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Where a finding is in a text.
struct Place {
    number: usize,
    /// At which occurrence of its path.
    times: usize,
    seen: usize,
    order: usize,
}

/// A walk over a text that is known to be JSON, for the paths of its keys.
struct Search<'a> {
    text: &'a [u8],
    at: usize,
    path: String,
    wanted: HashMap<String, Vec<Place>>,
    found: usize,
}

impl Search<'_> {
    fn token(&mut self) -> u8 {
        while let Some(b' ' | b'\t' | b'\n' | b'\r' | b',' | b':') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn value(&mut self) {
        let below = self.path.len();
        match self.token() {
            b'{' => {
                self.at += 1;
                while self.token() == b'"' {
                    let key = self.string();
                    if below > 0 {
                        self.path.push('.');
                    }
                    self.path.push_str(&key);
                    self.see();
                    self.value();
                    self.path.truncate(below);
                }
                self.at += 1;
            }
            b'[' => {
                self.at += 1;
                let mut index = 0;
                while !matches!(self.token(), b']' | 0) {
                    self.path.push_str(&format!("[{index}]"));
                    self.value();
                    self.path.truncate(below);
                    index += 1;
                }
                self.at += 1;
            }
            b'"' => {
                self.string();
            }
            _ => {
                self.at += 1;
                while let Some(byte) = self.text.get(self.at)
                    && !matches!(byte, b',' | b'}' | b']')
                {
                    self.at += 1;
                }
            }
        }
    }

    fn string(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.text.get(self.at)
            && *byte != b'"'
        {
            self.at += if *byte == b'\\' { 2 } else { 1 };
        }
        self.at = (self.at + 1).min(self.text.len());
        let quoted = &self.text[start..self.at];
        if !quoted.contains(&b'\\') {
            let bare = &quoted[1..quoted.len().saturating_sub(1).max(1)];
            return String::from_utf8_lossy(bare).into_owned();
        }
        serde_json::from_slice(quoted).unwrap_or_default()
    }

    /// Notes that the walk is at a path.
    fn see(&mut self) {
        if self.path.len() > MAX_PATH {
            return;
        }
        for place in self.wanted.get_mut(&self.path).into_iter().flatten() {
            place.seen += 1;
            if place.seen == place.times {
                place.order = self.found;
                self.found += 1;
            }
        }
    }
}

/// One finding for all repeated keys of a YAML text, whose lines are given; none where there are none.
pub(super) fn of_lines(lines: &[String]) -> Vec<String> {
    if lines.is_empty() {
        return Vec::new();
    }
    vec![format!("{YAML}  {}", lines.join("\n  "))]
}

/// How go-yaml tells of a repeated key.
pub(super) fn repeated(line: usize, key: &str) -> String {
    format!("line {line}: key {key} already set in map")
}

/// The error for findings in an applied configuration, which `yaml.UnmarshalStrict` reads on its own.
pub fn converting(findings: &[String]) -> String {
    format!("{CONVERTED}{}", findings.join(", "))
}

/// A finding as the warnings it makes (`parseYAMLWarnings`): one for each line of YAML.
pub fn warnings(finding: &str) -> impl Iterator<Item = &str> {
    let bare = finding.strip_prefix(CONVERTED).unwrap_or(finding);
    let lines = bare.strip_prefix(YAML);
    let alone = lines.is_none().then_some(finding);
    alone.into_iter().chain(
        lines
            .into_iter()
            .flat_map(|lines| lines.split('\n').map(str::trim)),
    )
}

/// A collection that has not ended yet.
enum Open {
    List,
    Map {
        keys: HashSet<String>,
        /// The key whose value is next or open; empty for one that is not compared.
        key: Option<String>,
        /// Line of that value.
        line: usize,
    },
}

/// The repeated keys of a YAML text that can be read, by the lines of their values.
pub(super) fn repeated_keys(text: &str) -> Vec<String> {
    let (mut open, mut lines): (Vec<Open>, Vec<String>) = (Vec::new(), Vec::new());
    for next in Parser::new_from_str(text) {
        let Ok((event, span)) = next else { break };
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, ..) => {
                let shown = match style {
                    ScalarStyle::Plain if super::yaml::resolves_to_other(&text) => {
                        text.into_owned()
                    }
                    _ => quote(&text),
                };
                begin(&mut open, shown, line);
                end(&mut open, &mut lines);
            }
            Event::Alias(_) => {
                begin(&mut open, String::new(), line);
                end(&mut open, &mut lines);
            }
            Event::SequenceStart(..) => {
                begin(&mut open, String::new(), line);
                open.push(Open::List);
            }
            Event::MappingStart(..) => {
                begin(&mut open, String::new(), line);
                open.push(Open::Map {
                    keys: HashSet::new(),
                    key: None,
                    line: 0,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                open.pop();
                end(&mut open, &mut lines);
            }
            _ => {}
        }
        if lines.len() >= MAX_STRICT_ERRORS {
            break;
        }
    }
    lines
}

/// A node begins: in a map it is a key, or the value of one.
fn begin(open: &mut [Open], shown: String, at: usize) {
    if let Some(Open::Map { key, line, .. }) = open.last_mut() {
        match key {
            None => {
                *key = Some(shown);
                *line = 0;
            }
            Some(_) => *line = at,
        }
    }
}

/// A node has ended: a key that had its value is one that is set.
fn end(open: &mut [Open], lines: &mut Vec<String>) {
    if let Some(Open::Map { keys, key, line }) = open.last_mut()
        && *line > 0
        && let Some(key) = key.take()
    {
        let compares = !key.is_empty() && key != "<<";
        if compares && !keys.insert(key.clone()) {
            lines.push(repeated(*line, &key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_order(body: &str, findings: &[&str], ordered: &[&str]) {
        let findings = findings.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(in_order_of_text(body.as_bytes(), findings), ordered);
    }

    #[test]
    fn findings_of_json_are_told_in_the_order_of_the_text() {
        check_order(
            r#"{"spec": {"z\"": 1, "replicas": 2, "l": [{}, {"b": [1, "}"]}], "replicas": 3}, "a": true, "m": {"k":1,"k":2}}"#,
            &[
                r#"duplicate field "spec.replicas""#,
                r#"duplicate field "m.k""#,
                r#"unknown field "a""#,
                r#"unknown field "spec.l[1].b""#,
            ],
            &[
                r#"unknown field "spec.l[1].b""#,
                r#"duplicate field "spec.replicas""#,
                r#"unknown field "a""#,
                r#"duplicate field "m.k""#,
            ],
        );
    }

    #[test]
    fn within_an_unknown_field_nothing_is_repeated() {
        check_order(
            r#"{"x": {"a": 1, "a": 2}, "x": 3, "xy": 1, "xy": 2}"#,
            &[
                r#"duplicate field "x.a""#,
                r#"duplicate field "x""#,
                r#"duplicate field "xy""#,
                r#"unknown field "x""#,
            ],
            &[r#"unknown field "x""#, r#"duplicate field "xy""#],
        );
    }

    #[test]
    fn repeated_keys_of_yaml_are_told_by_the_lines_of_their_values() {
        let text = "\na: 1\nb:\n  c: x\n  c: y\nb:\n  d: {e: 1, e: 2}\n'q': &x [1]\n\"q\": *x\n1: a\n1: b\n<<: {a: 1}\n<<: {b: 1}\n";
        assert_eq!(
            repeated_keys(text),
            [
                r#"line 5: key "c" already set in map"#,
                r#"line 7: key "e" already set in map"#,
                r#"line 7: key "b" already set in map"#,
                r#"line 9: key "q" already set in map"#,
                "line 11: key 1 already set in map",
            ]
        );
    }

    #[test]
    fn lines_of_yaml_are_warnings_of_their_own() {
        let finding = of_lines(&["line 1: a".to_owned(), "line 2: b".to_owned()]).remove(0);
        assert_eq!(finding, "yaml: unmarshal errors:\n  line 1: a\n  line 2: b");
        let told: Vec<&str> = warnings(&finding).collect();
        assert_eq!(told, ["line 1: a", "line 2: b"]);
        let whole = converting(&[finding.clone()]);
        assert_eq!(warnings(&whole).collect::<Vec<_>>(), told);
        assert_eq!(warnings("unknown field \"x\"").count(), 1);
    }
}
