//! Owns: reading YAML as sigs.k8s.io/yaml does (one document, YAML 1.1 words for booleans, repeated keys reported) and
//! writing it in kubectl's layout. Aliases, nesting and events are bounded, so that an alias bomb is refused. What is
//! malformed is told in go-yaml's words (`words`).

mod words;

use super::{DecodeError, Decoded, strict};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;
use std::cell::Cell;
use std::fmt;

/// Deepest nesting of YAML; its reader takes up to 25 KiB of stack a level when not optimised.
const MAX_YAML_DEPTH: usize = 64;
/// Values that aliases may add in all, and how often one anchor may be used.
const MAX_REPLAYED: usize = 100_000;
const MAX_USES: usize = 1_000;
/// Parser events in a document: 3 MiB of the shortest items.
const MAX_EVENTS: usize = 2_000_000;
/// Bytes of texts that aliases may add to those of the document; as much as a body may have.
const MAX_COPIED: usize = 3 << 20;

/// Reads the first document of a YAML text; an empty one is null.
///
/// # Errors
/// Malformed YAML and anything over the bounds, worded `error converting YAML to JSON: yaml: …`.
pub fn decode(body: &[u8]) -> Result<Decoded, DecodeError> {
    let text = std::str::from_utf8(body).map_err(|why| malformed(words::not_text(body, why)))?;
    let trimmed = text.trim_start();
    if trimmed.is_empty() {
        return Ok(Decoded::default());
    }
    // JSON is YAML, and much the faster to read: kubectl's apply patches are JSON.
    if trimmed.starts_with('{') {
        // Its lines are those of the whole text.
        if let Ok(decoded) = super::json::decode_as_yaml(body) {
            return Ok(decoded);
        }
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_YAML_DEPTH,
            flow_nesting_limit: MAX_YAML_DEPTH,
            max_events: MAX_EVENTS,
            max_nodes: MAX_EVENTS,
            max_documents: 2,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
            max_alias_expansions_per_anchor: MAX_USES,
        },
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let bounds = Bounds {
        left: Cell::new(text.len() + MAX_COPIED),
        repeats: Cell::new(false),
        refusal: Cell::new(None),
    };
    let read =
        serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
            Seed(&bounds).deserialize(deserializer)
        });
    let value = match (read, bounds.refusal.take()) {
        (Ok(value), _) => value,
        (Err(_), Some(why)) => return Err(malformed(&why)),
        (Err(other), None) => match words::find(text) {
            // Shorter than the text, and one document.
            words::Finding::First(first) => return decode(first.as_bytes()),
            words::Finding::Wrong(why) => return Err(malformed(&why)),
            words::Finding::Fine => return Err(malformed(&other.to_string())),
        },
    };
    let strict = match bounds.repeats.get() {
        true => strict::of_lines(&strict::repeated_keys(text)),
        false => Vec::new(),
    };
    Ok(Decoded { value, strict })
}

fn malformed(why: &str) -> DecodeError {
    DecodeError(format!("error converting YAML to JSON: yaml: {why}"))
}

/// What all parts of a tree share.
struct Bounds {
    /// Bytes of texts left to be read.
    left: Cell<usize>,
    /// Whether a key was there twice.
    repeats: Cell<bool>,
    /// Why the tree was refused, where its reader is not who refused it.
    refusal: Cell<Option<String>>,
}

impl Bounds {
    fn refuse<E: serde::de::Error>(&self, why: String) -> E {
        let error = E::custom(&why);
        self.refusal.set(Some(why));
        error
    }
}

/// Reads a tree.
#[derive(Clone, Copy)]
struct Seed<'a>(&'a Bounds);

impl Seed<'_> {
    fn text<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        let left = self.0.left.get().checked_sub(text.len());
        let excessive = || "document contains excessive aliasing".to_owned();
        self.0
            .left
            .set(left.ok_or_else(|| self.0.refuse(excessive()))?);
        Ok(Value::String(text))
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value)
            .ok_or_else(|| E::custom("json: unsupported value: not a finite number"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.text(text.to_owned())
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Value, E> {
        self.text(text)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        DeserializeSeed::deserialize(self, deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(KeySeed(self))? {
            let value = entries.next_value_seed(self)?;
            if map.insert(key, value).is_some() {
                self.0.repeats.set(true);
            }
        }
        Ok(Value::Object(map))
    }
}

/// A key: text, or a number or word written as text.
struct KeySeed<'a>(Seed<'a>);

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        match self.0.deserialize(deserializer)? {
            Value::String(text) => Ok(text),
            Value::Number(number) => Ok(number.to_string()),
            Value::Bool(value) => Ok(value.to_string()),
            Value::Null => Ok("null".to_owned()),
            other => {
                let why = format!("invalid map key: {}", go_syntax(&other));
                Err(self.0.0.refuse(why))
            }
        }
    }
}

/// A tree as Go writes it (`%#v`); what repeats in maps is in the order of their keys.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => crate::field::quote(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}:{}", crate::field::quote(key), go_syntax(value)))
                .collect();
            format!(
                "map[interface {{}}]interface {{}}{{{}}}",
                entries.join(", ")
            )
        }
    }
}

/// Writes YAML in kubectl's layout: keys sorted, two spaces a level, lists not indented below their key.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(&mut out, map, 0, false),
        Value::Array(items) if !items.is_empty() => write_list(&mut out, items, 0, false),
        scalar => {
            write_scalar(&mut out, scalar, 0);
            out.push('\n');
        }
    }
    out.into_bytes()
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

/// Writes entries at a depth; `inline` puts the first on the current line, after `- `.
fn write_map(out: &mut String, map: &Map<String, Value>, depth: usize, mut inline: bool) {
    for (key, value) in map {
        if !std::mem::take(&mut inline) {
            indent(out, depth);
        }
        write_text(out, key, depth, true);
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                write_map(out, inner, depth + 1, false);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                write_list(out, items, depth, false);
            }
            scalar => {
                out.push(' ');
                write_scalar(out, scalar, depth + 1);
                out.push('\n');
            }
        }
    }
}

fn write_list(out: &mut String, items: &[Value], depth: usize, mut inline: bool) {
    for item in items {
        if !std::mem::take(&mut inline) {
            indent(out, depth);
        }
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => write_map(out, map, depth + 1, true),
            Value::Array(inner) if !inner.is_empty() => write_list(out, inner, depth + 1, true),
            scalar => {
                write_scalar(out, scalar, depth + 1);
                out.push('\n');
            }
        }
    }
}

fn write_scalar(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::String(text) => write_text(out, text, depth, false),
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::Object(_) => out.push_str("{}"),
        Value::Array(_) => out.push_str("[]"),
    }
}

fn write_text(out: &mut String, text: &str, depth: usize, key: bool) {
    if text.chars().any(|c| !is_printable(c) && c != '\n') || (key && text.contains('\n')) {
        write_double_quoted(out, text);
    } else if text.contains('\n') {
        write_literal(out, text, depth);
    } else if is_plain(text) {
        out.push_str(text);
    } else if resolves_to_other(text) && !text.contains('"') && !text.contains('\\') {
        // A text that would read back as a number, a boolean or null: go-yaml takes double quotes.
        write_double_quoted(out, text);
    } else {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    }
}

fn is_printable(c: char) -> bool {
    matches!(c, '\u{20}'..='\u{7e}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
        || c == '\u{85}'
}

fn write_double_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0' => out.push_str("\\0"),
            c if is_printable(c) => out.push(c),
            c if (c as u32) <= 0xff => out.push_str(&format!("\\x{:02X}", c as u32)),
            c if (c as u32) <= 0xffff => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push_str(&format!("\\U{:08X}", c as u32)),
        }
    }
    out.push('"');
}

fn write_literal(out: &mut String, text: &str, depth: usize) {
    out.push('|');
    if text.starts_with([' ', '\n']) {
        out.push('2');
    }
    let body = text.strip_suffix('\n');
    match body {
        None => out.push('-'),
        Some(body) if body.ends_with('\n') || body.is_empty() => out.push('+'),
        Some(_) => {}
    }
    for line in body.unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            indent(out, depth);
            out.push_str(line);
        }
    }
}

/// Whether a text reads back as itself when written bare.
fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else {
        return false;
    };
    let second_is_space = text.chars().nth(1).is_none_or(|c| c == ' ');
    let bad_first = matches!(
        first,
        '#' | ','
            | '['
            | ']'
            | '{'
            | '}'
            | '&'
            | '*'
            | '!'
            | '|'
            | '>'
            | '\''
            | '"'
            | '%'
            | '@'
            | '`'
    ) || (matches!(first, '-' | '?' | ':') && second_is_space)
        || first == ' ';
    !(bad_first
        || text.ends_with([' ', ':'])
        || text.contains(": ")
        || text.contains(" #")
        || text.starts_with("---")
        || text.starts_with("...")
        || resolves_to_other(text))
}

/// Whether a bare text would read back as null, a boolean, a number or a time (YAML 1.1).
pub(super) fn resolves_to_other(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "y", "n", "yes", "no", "on", "off", "true", "false", "<<", "=",
    ];
    let lower = text.to_ascii_lowercase();
    if WORDS.contains(&lower.as_str()) {
        return lower == text
            || text.len() < 2
            || text.to_ascii_uppercase() == text
            || is_title(text);
    }
    let first = text.as_bytes()[0];
    if !(first.is_ascii_digit() || matches!(first, b'.' | b'-' | b'+')) {
        return false;
    }
    looks_like_number(&lower) || looks_like_time(text)
}

fn is_title(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text[1..].bytes().all(|b| b.is_ascii_lowercase())
}

fn looks_like_number(lower: &str) -> bool {
    let plain = lower.replace('_', "");
    let unsigned = plain.strip_prefix(['-', '+']).unwrap_or(&plain);
    let radix = |prefix: &str, radix| {
        unsigned
            .strip_prefix(prefix)
            .is_some_and(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)))
    };
    if matches!(unsigned, ".inf" | ".nan") || radix("0x", 16) || radix("0b", 2) || radix("0o", 8) {
        return true;
    }
    let numeric = unsigned
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'-' | b'+'));
    let sexagesimal = unsigned.contains(':')
        && unsigned
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b':' | b'.'));
    (numeric && unsigned.bytes().any(|b| b.is_ascii_digit()) && unsigned.parse::<f64>().is_ok())
        || sexagesimal
}

fn looks_like_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 8
        && bytes[..4].iter().all(u8::is_ascii_digit)
        && bytes[4] == b'-'
        && bytes[5..].iter().all(|b| {
            b.is_ascii_digit() || matches!(b, b'-' | b':' | b'.' | b'T' | b't' | b'Z' | b' ' | b'+')
        })
        && bytes.iter().filter(|b| **b == b'-').count() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_of_long_texts_are_bounded_by_their_bytes() {
        let long = "x".repeat(100_000);
        let text = format!("a: &a {long}\nb:\n{}", "- *a\n".repeat(100));
        let error = decode(text.as_bytes()).expect_err("10 MB of one text");
        assert!(error.0.contains("excessive aliasing"), "{error}");
        let text = format!("a: &a {long}\nb:\n{}", "- *a\n".repeat(10));
        assert!(decode(text.as_bytes()).is_ok());
    }
    use serde_json::json;

    #[track_caller]
    fn check(text: &str, value: Value) {
        assert_eq!(decode(text.as_bytes()).expect("valid").value, value);
    }

    #[test]
    fn yaml_is_read_as_sigs_yaml_reads_it() {
        check(
            "a: 1\nb: [x, 2.5, true, null, ~]\nc:\n- d: yes\n  e: 'yes'\n",
            json!({"a": 1, "b": ["x", 2.5, true, null, null], "c": [{"d": true, "e": "yes"}]}),
        );
        check("mode: 0644\n", json!({"mode": 420}));
        check("1: a\ntrue: b\n", json!({"1": "a", "true": "b"}));
        check(
            "t: 2020-01-01\nu: 2020-01-01T00:00:00Z\nv: 1.2.3\n",
            json!({"t": "2020-01-01", "u": "2020-01-01T00:00:00Z", "v": "1.2.3"}),
        );
        check(
            "a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: 2\n",
            json!({"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}),
        );
        check("{\"a\": \"b\"}", json!({"a": "b"}));
        check(
            "a: |\n  x\n  y\nb: >-\n  x\n  y\n",
            json!({"a": "x\ny\n", "b": "x y"}),
        );
        check("", json!(null));
        check("a:\nb: \"\"\n", json!({"a": null, "b": ""}));
    }

    #[test]
    fn repeated_keys_are_named_by_line() {
        let decoded =
            decode(b"spec:\n  x: 1\n  x: 2\n  l:\n  - k: 1\n    k: 2\n").expect("lenient");
        assert_eq!(decoded.value, json!({"spec": {"x": 2, "l": [{"k": 2}]}}));
        assert_eq!(
            decoded.strict,
            [
                "yaml: unmarshal errors:\n  line 3: key \"x\" already set in map\n  line 6: key \"k\" already set in map"
            ]
        );
        let decoded = decode(b"\n{\"a\": 1,\n\"a\": 2}").expect("lenient");
        assert_eq!(
            decoded.strict,
            ["yaml: unmarshal errors:\n  line 3: key \"a\" already set in map"]
        );
    }

    #[test]
    fn bombs_and_deep_nesting_are_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let uses = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{uses}]\n"));
        }
        let error = decode(bomb.as_bytes()).expect_err("a bomb");
        assert!(
            error.0.starts_with("error converting YAML to JSON: yaml: "),
            "{error}"
        );
        assert!(decode("[".repeat(100_000).as_bytes()).is_err());
        assert!(decode("- ".repeat(100_000).as_bytes()).is_err());
        assert!(decode(b"a: [\n").is_err());
        assert!(decode(b"a: b: c\n").is_err());
    }

    #[test]
    fn what_follows_the_first_document_is_not_read() {
        check("a: 1\n---\nb: 2\n", json!({"a": 1}));
        check("a: 1\n---\n]: :\n", json!({"a": 1}));
    }

    #[test]
    fn what_is_malformed_is_told_in_go_yamls_words() {
        let said = |text: &str| decode(text.as_bytes()).expect_err("malformed").0;
        assert_eq!(
            said("apiVersion: v1\nkind ConfigMap\nmetadata:\n"),
            "error converting YAML to JSON: yaml: line 3: could not find expected ':'"
        );
        assert_eq!(
            said("name: {{ .Values.name }}\n"),
            "error converting YAML to JSON: yaml: invalid map key: map[interface {}]interface {}{\".Values.name\":interface {}(nil)}"
        );
    }

    #[test]
    fn what_is_written_reads_back() {
        let value = json!({
            "empty": {}, "list": [], "null": null, "n": 1, "f": 1.5, "t": true,
            "texts": ["a", "", "yes", "012", "1e3", "0x1f", "null", "a: b", "a #b", "- a", "'q'", "\"", "x\ny", "x\ny\n", " lead", "trail ",
                "\n", "x\n\n", "  a\nb", "é", "\u{1}", "tab\there", "2020-01-01", "12:30", "@x", "{}", "[]", "*a", "~", "=", "-", "?", ":", "a:", "Yes", "0o7", ".5", "1_000", "#", "%"],
            "nested": [[1, [2]], {"a": [{"b": "c"}]}],
        });
        let text = encode(&value);
        let decoded =
            decode(&text).unwrap_or_else(|e| panic!("{e}\n{}", String::from_utf8_lossy(&text)));
        assert_eq!(decoded.value, value, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn the_layout_is_kubectls() {
        let value = json!({"apiVersion": "v1", "items": [{"a": ["x"], "b": {"c": "1"}}], "z": {}});
        assert_eq!(
            String::from_utf8(encode(&value)).expect("text"),
            "apiVersion: v1\nitems:\n- a:\n  - x\n  b:\n    c: \"1\"\nz: {}\n"
        );
    }
}
