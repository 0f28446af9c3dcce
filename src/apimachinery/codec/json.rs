//! Owns: reading JSON into a tree, with the two things serde_json does not tell: where a key is repeated, and syntax
//! errors in the words of Go's encoding/json, which clients see. Writing is serde_json's.
//!
//! Invalid UTF-8 becomes U+FFFD, the last of repeated keys wins, numbers are `i64`, `u64` or `f64`: as Go does.

use super::{DecodeError, Decoded, MAX_DEPTH, MAX_STRICT_ERRORS, strict};
use crate::field::quote;
use serde_json::{Map, Number, Value};
use std::borrow::Cow;

/// Bytes of paths written for repeated fields of one body; past them repeats are not named any more. A hundred findings of
/// usual length are a tenth of it.
const MAX_FINDINGS: usize = 64 << 10;

/// Reads one JSON value.
///
/// # Errors
/// Syntax errors and nesting deeper than `MAX_DEPTH`.
pub fn decode(body: &[u8]) -> Result<Decoded, DecodeError> {
    decode_with(body, false)
}

/// The same of JSON that is read as YAML: repeated keys are told by their lines.
pub(super) fn decode_as_yaml(body: &[u8]) -> Result<Decoded, DecodeError> {
    let mut decoded = decode_with(body, true)?;
    decoded.strict = strict::of_lines(&decoded.strict);
    Ok(decoded)
}

fn decode_with(body: &[u8], by_lines: bool) -> Result<Decoded, DecodeError> {
    let text = match std::str::from_utf8(body) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(body),
    };
    let mut parser = Parser {
        text: &text,
        bytes: text.as_bytes(),
        at: 0,
        steps: Vec::with_capacity(16),
        duplicates: Vec::new(),
        written: 0,
        by_lines,
    };
    let value = parser.value()?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(Decoded {
            value,
            strict: parser.duplicates,
        }),
        Some(_) => Err(parser.unexpected("after top-level value")),
    }
}

/// Writes compact JSON, keys sorted.
pub fn encode(value: &Value) -> Vec<u8> {
    // Writing a tree of JSON into memory has no way to fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Writes JSON indented by two spaces, as `?pretty=true` asks for.
pub fn encode_pretty(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

enum Step<'a> {
    Key(Cow<'a, str>),
    Index(usize),
}

/// The bytes that end a run of plain text in a string: quote, backslash, controls.
static ENDS_RUN: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        ends[byte] = true;
        byte += 1;
    }
    ends[b'"' as usize] = true;
    ends[b'\\' as usize] = true;
    ends
};

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Where in the object the parser is.
    steps: Vec<Step<'a>>,
    duplicates: Vec<String>,
    /// Bytes of all paths made for `duplicates`, kept or not.
    written: usize,
    /// Whether repeats are told by their lines, as of YAML.
    by_lines: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn next_token(&mut self) -> Option<u8> {
        self.skip_space();
        self.peek()
    }

    /// `invalid character 'x' after …`, or that the text ended.
    fn unexpected(&self, context: &str) -> DecodeError {
        match self
            .text
            .get(self.at..)
            .and_then(|rest| rest.chars().next())
        {
            None => DecodeError("unexpected end of JSON input".to_owned()),
            Some(c) => DecodeError(format!("invalid character {} {context}", quote_char(c))),
        }
    }

    fn value(&mut self) -> Result<Value, DecodeError> {
        match self.next_token() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => Ok(Value::String(self.string()?.into_owned())),
            Some(b't') => self.literal("true", Value::Bool(true)),
            Some(b'f') => self.literal("false", Value::Bool(false)),
            Some(b'n') => self.literal("null", Value::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.unexpected("looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &str, value: Value) -> Result<Value, DecodeError> {
        for expected in word.bytes() {
            if self.peek() != Some(expected) {
                let context = format!(
                    "in literal {word} (expecting {})",
                    quote_char(expected as char)
                );
                return Err(self.unexpected(&context));
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn enter(&mut self) -> Result<(), DecodeError> {
        if self.steps.len() >= MAX_DEPTH {
            return Err(DecodeError("exceeded max depth".to_owned()));
        }
        self.at += 1;
        Ok(())
    }

    fn object(&mut self) -> Result<Value, DecodeError> {
        self.enter()?;
        let mut map = Map::new();
        if self.next_token() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(map));
        }
        loop {
            if self.next_token() != Some(b'"') {
                return Err(self.unexpected("looking for beginning of object key string"));
            }
            let key = self.string()?;
            if self.next_token() != Some(b':') {
                return Err(self.unexpected("after object key"));
            }
            self.at += 1;
            let token = self.next_token();
            let start = self.at;
            let value = match token {
                Some(b'{' | b'[') => {
                    self.steps.push(Step::Key(key.clone()));
                    let value = self.value()?;
                    self.steps.pop();
                    value
                }
                _ => self.value()?,
            };
            if let Some(finding) = self.insert(&mut map, key, value, start) {
                self.note(finding);
            }
            match self.next_token() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(map));
                }
                _ => return Err(self.unexpected("after object key:value pair")),
            }
        }
    }

    fn array(&mut self) -> Result<Value, DecodeError> {
        self.enter()?;
        let mut items = Vec::new();
        if self.next_token() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        self.steps.push(Step::Index(0));
        loop {
            if let Some(Step::Index(index)) = self.steps.last_mut() {
                *index = items.len();
            }
            items.push(self.value()?);
            match self.next_token() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    self.steps.pop();
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.unexpected("after array element")),
            }
        }
    }

    /// Puts an entry in, whose value begins at `start`; tells of a key that was there before.
    fn insert(
        &self,
        map: &mut Map<String, Value>,
        key: Cow<'a, str>,
        value: Value,
        start: usize,
    ) -> Option<String> {
        match map.entry(key.into_owned()) {
            serde_json::map::Entry::Vacant(entry) => {
                entry.insert(value);
                None
            }
            serde_json::map::Entry::Occupied(mut entry) => {
                let is_room =
                    self.written < MAX_FINDINGS && self.duplicates.len() < MAX_STRICT_ERRORS;
                let finding = is_room.then(|| match self.by_lines {
                    true => self.line_of(entry.key(), start),
                    false => self.path_of(entry.key()),
                });
                entry.insert(value);
                finding
            }
        }
    }

    fn path_of(&self, key: &str) -> String {
        let mut path = String::new();
        for step in &self.steps {
            match step {
                Step::Key(key) => push_field(&mut path, key),
                Step::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        push_field(&mut path, key);
        format!("duplicate field {}", quote(&path))
    }

    fn line_of(&self, key: &str, start: usize) -> String {
        let before = self.bytes[..start].iter();
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        strict::repeated(line, &quote(key))
    }

    fn note(&mut self, finding: String) {
        self.written += finding.len();
        if self.by_lines || !self.duplicates.contains(&finding) {
            self.duplicates.push(finding);
        }
    }

    /// Goes to the end of a run of plain text.
    fn skip_run(&mut self) {
        let rest = &self.bytes[self.at..];
        self.at += rest
            .iter()
            .position(|byte| ENDS_RUN[*byte as usize])
            .unwrap_or(rest.len());
    }

    fn string(&mut self) -> Result<Cow<'a, str>, DecodeError> {
        self.at += 1;
        let start = self.at;
        self.skip_run();
        match self.peek() {
            Some(b'"') => {
                let text = &self.text[start..self.at];
                self.at += 1;
                Ok(Cow::Borrowed(text))
            }
            Some(b'\\') => self.escaped(start).map(Cow::Owned),
            _ => Err(self.unexpected("in string literal")),
        }
    }

    /// The rest of a string from its first escape on.
    fn escaped(&mut self, start: usize) -> Result<String, DecodeError> {
        let mut out = self.text[start..self.at].to_owned();
        let mut run = self.at;
        loop {
            self.skip_run();
            match self.peek() {
                Some(b'"') => {
                    out.push_str(&self.text[run..self.at]);
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.text[run..self.at]);
                    self.at += 1;
                    out.push(self.escape()?);
                    run = self.at;
                }
                _ => return Err(self.unexpected("in string literal")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, DecodeError> {
        let c = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.unexpected("in string escape code")),
        };
        self.at += 1;
        Ok(c)
    }

    fn unicode_escape(&mut self) -> Result<char, DecodeError> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.bytes[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, DecodeError> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|b| (b as char).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.unexpected("in \\u hexadecimal character escape"));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Value, DecodeError> {
        let start = self.at;
        let mut whole = true;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.peek() == Some(b'0');
        if zero {
            self.at += 1;
        } else if self.digits() == 0 {
            return Err(self.unexpected("in numeric literal"));
        }
        if self.peek() == Some(b'.') {
            whole = false;
            self.at += 1;
            if self.digits() == 0 {
                return Err(self.unexpected("after decimal point in numeric literal"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            whole = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.unexpected("in exponent of numeric literal"));
            }
        }
        let text = &self.text[start..self.at];
        if whole {
            if let Ok(number) = text.parse::<i64>() {
                return Ok(Value::Number(number.into()));
            }
            if let Ok(number) = text.parse::<u64>() {
                return Ok(Value::Number(number.into()));
            }
        }
        text.parse::<f64>()
            .ok()
            .and_then(Number::from_f64)
            .map(Value::Number)
            .ok_or_else(|| {
                DecodeError(format!(
                    "json: cannot unmarshal number {text} into Go value of type float64"
                ))
            })
    }
}

/// A character as encoding/json quotes it in errors.
fn push_field(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

fn quote_char(c: char) -> String {
    match c {
        '\'' => "'\\''".to_owned(),
        '"' => "'\"'".to_owned(),
        c => {
            let quoted = quote(c.encode_utf8(&mut [0; 4]));
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(text: &str, value: Value) {
        assert_eq!(decode(text.as_bytes()).expect("valid").value, value);
        let reference: Value = serde_json::from_str(text).expect("valid for serde_json too");
        assert_eq!(reference, value);
    }

    #[track_caller]
    fn check_error(text: &str, message: &str) {
        assert_eq!(
            decode(text.as_bytes()).expect_err(text).0,
            message,
            "{text}"
        );
    }

    #[test]
    fn values_are_read() {
        check(
            " { \"a\" : [ 1 , -2.5e3, true , false, null , \"x\" ] , \"b\":{} } ",
            json!({"a": [1, -2.5e3, true, false, null, "x"], "b": {}}),
        );
        check(r#""\u00e9\ud83d\ude00\n\"\\\/x""#, json!("é😀\n\"\\/x"));
        check("[]", json!([]));
        check("9223372036854775807", json!(i64::MAX));
        check("18446744073709551615", json!(u64::MAX));
        assert_eq!(decode(b"-0").expect("valid").value, json!(0));
        check("0.5", json!(0.5));
    }

    #[test]
    fn invalid_unicode_becomes_the_replacement_character() {
        assert_eq!(
            decode(b"\"\xff\"").expect("lenient").value,
            json!("\u{fffd}")
        );
        assert_eq!(
            decode(br#""\ud800x""#).expect("lenient").value,
            json!("\u{fffd}x")
        );
    }

    #[test]
    fn syntax_errors_are_gos() {
        check_error("", "unexpected end of JSON input");
        check_error("{", "unexpected end of JSON input");
        check_error("nul", "unexpected end of JSON input");
        check_error(
            "nulx",
            "invalid character 'x' in literal null (expecting 'l')",
        );
        check_error("x", "invalid character 'x' looking for beginning of value");
        check_error(
            "{x",
            "invalid character 'x' looking for beginning of object key string",
        );
        check_error("{\"a\" 1}", "invalid character '1' after object key");
        check_error(
            "{\"a\":1 \"b\"}",
            "invalid character '\"' after object key:value pair",
        );
        check_error("[1 2]", "invalid character '2' after array element");
        check_error("1 2", "invalid character '2' after top-level value");
        check_error("{}'", "invalid character '\\'' after top-level value");
        check_error("\"a\nb\"", "invalid character '\\n' in string literal");
        check_error(r#""\x""#, "invalid character 'x' in string escape code");
        check_error(
            r#""\u12g4""#,
            "invalid character 'g' in \\u hexadecimal character escape",
        );
        check_error("01", "invalid character '1' after top-level value");
        check_error("-x", "invalid character 'x' in numeric literal");
        check_error(
            "1.x",
            "invalid character 'x' after decimal point in numeric literal",
        );
        check_error(
            "1ex",
            "invalid character 'x' in exponent of numeric literal",
        );
        check_error(
            "[1,]",
            "invalid character ']' looking for beginning of value",
        );
        check_error(
            "{\"a\":1,}",
            "invalid character '}' looking for beginning of object key string",
        );
    }

    #[test]
    fn repeated_keys_are_named_by_path_and_the_last_wins() {
        let decoded =
            decode(br#"{"spec":{"x":1,"l":[{},{"y":1,"y":2}],"x":3},"a":1,"a":2}"#).expect("valid");
        assert_eq!(
            decoded.strict,
            [
                r#"duplicate field "spec.l[1].y""#,
                r#"duplicate field "spec.x""#,
                r#"duplicate field "a""#
            ]
        );
        assert_eq!(
            decoded.value,
            json!({"spec": {"x": 3, "l": [{}, {"y": 2}]}, "a": 2})
        );
    }

    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        let deep = "[".repeat(100_000);
        check_error(&deep, "exceeded max depth");
        let deep = "{\"a\":".repeat(100_000);
        check_error(&deep, "exceeded max depth");
        let fine = format!("{}{}", "[".repeat(500), "]".repeat(500));
        assert!(decode(fine.as_bytes()).is_ok());
    }
}
