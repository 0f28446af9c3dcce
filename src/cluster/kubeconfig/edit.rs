//! Changes a kubeconfig's text and keeps its comments, order and unknown fields.
//!
//! The text is edited by lines, as a person would; then the result is parsed and compared with what it must
//! mean. Where the two differ (flow style, anchors, anything unforeseen) the meaning wins: the file is written
//! anew from its parsed form, without comments but with every field.

use serde_json::{Map, Value, json};

use super::Entry;

/// Why a kubeconfig's text could not be edited.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error("not valid YAML: {0}")]
    Parse(String),
    #[error("not a kubeconfig: {0}")]
    Shape(&'static str),
    #[error("cannot be written as YAML: {0}")]
    Write(String),
}

/// The context the file says is current.
pub(super) fn current_context(text: &str) -> Result<Option<String>, EditError> {
    Ok(parse(text)?
        .get("current-context")
        .and_then(Value::as_str)
        .map(String::from))
}

/// Whether no cluster, context or user is left.
pub(super) fn is_empty(text: &str) -> bool {
    let no_items = |value: Option<&Value>| {
        value.is_none_or(|value| value.is_null() || value.as_array().is_some_and(Vec::is_empty))
    };
    parse(text).is_ok_and(|file| {
        ["clusters", "contexts", "users"]
            .iter()
            .all(|section| no_items(file.get(*section)))
    })
}

/// Adds or replaces the three items of `entry` and makes its context current.
pub(super) fn merge(text: &str, entry: &Entry) -> Result<String, EditError> {
    let mut wanted = parse(text)?;
    let mut edited = Text::new(text);
    for (section, item) in [
        ("clusters", entry.cluster()),
        ("contexts", entry.context()),
        ("users", entry.user()),
    ] {
        let items = items(&mut wanted, section)?;
        match items
            .iter_mut()
            .find(|present| present["name"] == entry.name.as_str())
        {
            Some(present) => *present = item.clone(),
            None => items.push(item.clone()),
        }
        edited.put_item(section, &entry.name, Some(&item));
    }
    wanted.insert("current-context".into(), json!(entry.name));
    edited.put_scalar("current-context", &entry.name);
    finish(text, edited, wanted)
}

/// Takes out the three items named `name`; when that context was current, `previous` becomes it if it exists.
pub(super) fn remove(text: &str, name: &str, previous: Option<&str>) -> Result<String, EditError> {
    let mut wanted = parse(text)?;
    let mut edited = Text::new(text);
    for section in ["clusters", "contexts", "users"] {
        if wanted.get(section).is_none_or(Value::is_null) {
            continue;
        }
        items(&mut wanted, section)?.retain(|item| item["name"] != name);
        edited.put_item(section, name, None);
    }
    if wanted.get("current-context").and_then(Value::as_str) == Some(name) {
        let known = |context: &&str| {
            let contexts = wanted.get("contexts").and_then(Value::as_array);
            contexts.is_some_and(|contexts| contexts.iter().any(|item| item["name"] == *context))
        };
        let next = previous.filter(known).unwrap_or_default().to_string();
        wanted.insert("current-context".into(), json!(next));
        edited.put_scalar(
            "current-context",
            if next.is_empty() { "\"\"" } else { &next },
        );
    }
    finish(text, edited, wanted)
}

/// One list item as block YAML, `indent` before its dash. Every value is a string or a map of strings.
pub(super) fn render_item(item: &Value, indent: &str) -> String {
    let mut lines = String::new();
    // client-go writes the keys in this order: the item's content, then its name.
    let fields = item.as_object().into_iter().flatten();
    let mut dash = "- ";
    for (key, value) in fields {
        match value {
            Value::Object(inner) => {
                lines.push_str(&format!("{indent}{dash}{key}:\n"));
                for (key, value) in inner {
                    lines.push_str(&format!(
                        "{indent}    {key}: {}\n",
                        value.as_str().unwrap_or_default()
                    ));
                }
            }
            other => lines.push_str(&format!(
                "{indent}{dash}{key}: {}\n",
                other.as_str().unwrap_or_default()
            )),
        }
        dash = "  ";
    }
    lines
}

fn parse(text: &str) -> Result<Map<String, Value>, EditError> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_saphyr::from_str::<Value>(text)
        .map_err(|error| EditError::Parse(error.to_string()))?
    {
        Value::Object(file) => Ok(file),
        Value::Null => Ok(Map::new()),
        _ => Err(EditError::Shape("it is not a map")),
    }
}

fn items<'a>(
    file: &'a mut Map<String, Value>,
    section: &str,
) -> Result<&'a mut Vec<Value>, EditError> {
    let value = file.entry(section).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    value
        .as_array_mut()
        .ok_or(EditError::Shape("clusters, contexts and users are lists"))
}

fn finish(text: &str, edited: Text, mut wanted: Map<String, Value>) -> Result<String, EditError> {
    let edited = edited.finish();
    if parse(&edited).is_ok_and(|edited| without_empty(edited) == without_empty(wanted.clone())) {
        return Ok(edited);
    }
    wanted.entry("apiVersion").or_insert_with(|| json!("v1"));
    wanted.entry("kind").or_insert_with(|| json!("Config"));
    let written = if text.trim_start().starts_with('{') {
        serde_json::to_string_pretty(&wanted).map_err(|error| EditError::Write(error.to_string()))
    } else {
        serde_saphyr::to_string(&wanted).map_err(|error| EditError::Write(error.to_string()))
    }?;
    Ok(if written.ends_with('\n') {
        written
    } else {
        written + "\n"
    })
}

/// `clusters: []`, `clusters:` and no `clusters` at all mean the same.
fn without_empty(mut file: Map<String, Value>) -> Map<String, Value> {
    file.retain(|_, value| {
        !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty())
    });
    file
}

/// The file by lines, each with its end.
struct Text {
    lines: Vec<String>,
}

impl Text {
    fn new(text: &str) -> Self {
        let mut lines: Vec<String> = text.split_inclusive('\n').map(String::from).collect();
        if let Some(last) = lines.last_mut()
            && !last.ends_with('\n')
        {
            last.push('\n');
        }
        Self { lines }
    }

    fn finish(self) -> String {
        self.lines.concat()
    }

    /// The line of `key` at the left margin.
    fn find(&self, key: &str) -> Option<usize> {
        self.lines.iter().position(|line| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        })
    }

    fn put_scalar(&mut self, key: &str, value: &str) {
        let line = format!("{key}: {value}\n");
        match self.find(key) {
            Some(at) => self.lines[at] = line,
            None => self.lines.push(line),
        }
    }

    /// The lines after `start` that belong to its section. Comments and blank lines at the end do not.
    fn section_end(&self, start: usize) -> usize {
        let mut end = start + 1;
        for (at, line) in self.lines.iter().enumerate().skip(start + 1) {
            let blank = line.trim().is_empty() || line.starts_with('#');
            let inside = line.starts_with([' ', '\t', '-']) && !line.starts_with("---");
            if inside {
                end = at + 1;
            } else if !blank {
                break;
            }
        }
        end
    }

    /// Replaces, adds or (with `None`) removes the item `name` of the list `section`.
    fn put_item(&mut self, section: &str, name: &str, item: Option<&Value>) {
        let Some(start) = self.find(section) else {
            if let Some(item) = item {
                self.lines.push(format!("{section}:\n"));
                self.lines.push(render_item(item, ""));
            }
            return;
        };
        let end = self.section_end(start);
        let starts = self.item_starts(start + 1, end);
        let indent = starts.first().map_or(String::new(), |&at| {
            leading_blanks(&self.lines[at]).to_string()
        });
        let bounds = starts
            .iter()
            .enumerate()
            .map(|(nth, &from)| (from, starts.get(nth + 1).copied().unwrap_or(end)));
        let found = bounds
            .into_iter()
            .find(|&(from, to)| item_name(&self.lines[from..to]) == Some(name));
        match (found, item) {
            (Some((from, to)), Some(item)) => {
                self.lines.splice(from..to, [render_item(item, &indent)]);
            }
            (Some((from, to)), None) => {
                self.lines.drain(from..to);
                if starts.len() == 1 {
                    self.lines[start] = format!("{section}: []\n");
                }
            }
            (None, Some(item)) => {
                self.lines.insert(end, render_item(item, &indent));
                if starts.is_empty() {
                    self.lines[start] = format!("{section}:\n");
                }
            }
            (None, None) => {}
        }
    }

    /// The lines in the range where an item of the outermost list begins.
    fn item_starts(&self, from: usize, to: usize) -> Vec<usize> {
        let dashes = |line: &str| line.trim_start().starts_with("- ") || line.trim() == "-";
        let Some(first) = (from..to).find(|&at| dashes(&self.lines[at])) else {
            return Vec::new();
        };
        let indent = leading_blanks(&self.lines[first]).len();
        (first..to)
            .filter(|&at| {
                dashes(&self.lines[at]) && leading_blanks(&self.lines[at]).len() == indent
            })
            .collect()
    }
}

fn leading_blanks(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// The `name` of a list item: on the dash's line or at the depth of its first key.
fn item_name(lines: &[String]) -> Option<&str> {
    let first = lines.first()?;
    let after_dash = first.trim_start().strip_prefix('-')?;
    let depth = first.len() - after_dash.trim_start().len();
    let keys = std::iter::once(after_dash.trim_start()).chain(
        lines[1..]
            .iter()
            .filter(|line| leading_blanks(line).len() == depth)
            .map(|line| line.trim_start()),
    );
    let value = keys.filter_map(|line| line.strip_prefix("name:")).next()?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    Some(value.trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        Entry {
            name: name.into(),
            server: "https://127.0.0.1:1".into(),
            authority: "a".into(),
            certificate: "b".into(),
            key: "c".into(),
        }
    }

    const OWN: &str = r#"# my clusters
apiVersion: v1
kind: Config
clusters:
  # the one at work
  - name: work
    cluster: {server: "https://work:6443", insecure-skip-tls-verify: true}
contexts:
  - context:
      cluster: work
      user: me
    name: work   # mine
users:
  - name: me
    user:
      exec:
        command: login
        args:
        - get
        - --name
# the end of it
current-context: "work"
x-unknown:
  kept: [1, 2]
"#;

    #[test]
    fn comments_order_and_unknown_fields_stay() {
        let merged = merge(OWN, &entry("skiff-lab")).expect("merged");
        for kept in [
            "# my clusters",
            "# the one at work",
            "# mine",
            "# the end of it",
            "kept: [1, 2]",
            "        - --name",
        ] {
            assert!(merged.contains(kept), "{kept} in\n{merged}");
        }
        let value = parse(&merged).expect("YAML");
        assert_eq!(value["clusters"].as_array().map(Vec::len), Some(2));
        assert_eq!(value["users"][1]["name"], "skiff-lab");
        assert_eq!(value["current-context"], "skiff-lab");
        let again = merge(&merged, &entry("skiff-lab")).expect("merged");
        assert_eq!(again, merged);
        let removed = remove(&merged, "skiff-lab", Some("work")).expect("removed");
        assert_eq!(removed, OWN.replace("\"work\"\n", "work\n"));
    }

    #[test]
    fn an_entry_of_the_same_name_is_replaced_where_it_stands() {
        let first = merge(OWN, &entry("skiff-lab")).expect("merged");
        let first = merge(&first, &entry("skiff-two")).expect("merged");
        let moved = Entry {
            server: "https://127.0.0.1:2".into(),
            ..entry("skiff-lab")
        };
        let second = merge(&first, &moved).expect("merged");
        assert_eq!(second.lines().count(), first.lines().count());
        assert_eq!(
            parse(&second).expect("YAML")["clusters"][1]["cluster"]["server"],
            "https://127.0.0.1:2"
        );
    }

    #[test]
    fn empty_lists_and_missing_sections_are_filled() {
        for text in [
            "apiVersion: v1\nkind: Config\nclusters: []\ncontexts: null\nusers:\ncurrent-context: \"\"\n",
            "apiVersion: v1\nkind: Config",
            "apiVersion: v1\nclusters: null\ncontexts: []\nkind: Config\npreferences: {}\nusers: []\n",
        ] {
            let merged = merge(text, &entry("skiff-lab")).expect("merged");
            let value = parse(&merged).expect("YAML");
            assert_eq!(
                value["contexts"][0]["context"]["cluster"], "skiff-lab",
                "{merged}"
            );
            assert!(merged.starts_with("apiVersion: v1\n"));
            let removed = remove(&merged, "skiff-lab", None).expect("removed");
            assert!(is_empty(&removed), "{removed}");
        }
    }

    #[test]
    fn what_cannot_be_edited_by_lines_is_written_anew_without_loss() {
        let json = r#"{"apiVersion":"v1","kind":"Config","clusters":[{"name":"w","cluster":{"server":"s"}}],"extra":{"a":1}}"#;
        let merged = merge(json, &entry("skiff-lab")).expect("merged");
        let value: Value = serde_json::from_str(&merged).expect("still JSON");
        assert_eq!(value["clusters"][0]["name"], "w");
        assert_eq!(value["clusters"][1]["name"], "skiff-lab");
        assert_eq!(value["extra"]["a"], 1);

        let flow = "clusters: [{name: w, cluster: {server: s}}]\ncontexts: []\n";
        let merged = merge(flow, &entry("skiff-lab")).expect("merged");
        assert_eq!(
            parse(&merged).expect("YAML")["clusters"][0]["cluster"]["server"],
            "s"
        );
    }

    #[test]
    fn what_is_not_a_kubeconfig_is_refused_and_left_alone() {
        assert!(matches!(
            merge("- a\n- b\n", &entry("x")),
            Err(EditError::Shape(_))
        ));
        assert!(matches!(
            merge("clusters: {}\n", &entry("x")),
            Err(EditError::Shape(_))
        ));
        assert!(matches!(
            merge("a: [", &entry("x")),
            Err(EditError::Parse(_))
        ));
    }
}
