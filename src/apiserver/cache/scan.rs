//! One pass over a stored object's JSON: where `metadata` lies, the labels, and the few selectable fields.
//!
//! A cache entry must not cost a parse: the bytes are walked once, nothing is copied but text with escapes, and
//! what is not asked for is skipped. The walk checks structure (brackets, commas, colons, closed strings), so that bytes
//! which are not JSON never reach a client; it does not check the grammar of numbers.

use std::ops::Range;

/// Deepest nesting walked; the request decoder refuses deeper objects long before.
const MAX_DEPTH: usize = 12_000;

/// A piece of text inside the scanned bytes, or its own copy when it had escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// Offsets into the scanned bytes.
    Span(u32, u32),
    Owned(Box<str>),
}

impl Text {
    /// The text, given the bytes that were scanned.
    pub fn get<'a>(&'a self, bytes: &'a [u8]) -> &'a str {
        match self {
            Text::Span(start, end) => bytes
                .get(*start as usize..*end as usize)
                .and_then(|slice| std::str::from_utf8(slice).ok())
                .unwrap_or(""),
            Text::Owned(text) => text,
        }
    }
}

/// A path of object members to a scalar, such as `["spec", "nodeName"]`.
pub type Path = Vec<&'static str>;

/// What the walk found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The metadata object, braces included.
    pub metadata: Option<Range<usize>>,
    /// Whether metadata already names a resourceVersion (only bytes written by hand do).
    pub has_resource_version: bool,
    pub api_version: Option<Text>,
    pub labels: Vec<(Text, Text)>,
    /// In the order of the paths asked for; `None` where absent. Numbers and booleans are their JSON text.
    pub fields: Vec<Option<Text>>,
    /// The end of the object; only whitespace follows.
    pub end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stored bytes are not a JSON object: unexpected input at byte {0}")]
pub struct ScanError(pub usize);

/// Walks `bytes` once, looking for at most 32 `paths`.
pub fn scan(bytes: &[u8], paths: &[Path]) -> Result<Scan, ScanError> {
    if bytes.len() > u32::MAX as usize || paths.len() > 32 {
        return Err(ScanError(0));
    }
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(ScanError(error.valid_up_to()));
    }
    let mut walk = Walk {
        bytes,
        at: 0,
        paths,
        found: Scan {
            fields: vec![None; paths.len()],
            ..Scan::default()
        },
    };
    walk.white();
    walk.top()?;
    walk.found.end = walk.at;
    walk.white();
    if walk.at != bytes.len() {
        return Err(ScanError(walk.at));
    }
    Ok(walk.found)
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    paths: &'a [Path],
    found: Scan,
}

impl Walk<'_> {
    fn fail<T>(&self) -> Result<T, ScanError> {
        Err(ScanError(self.at))
    }

    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn white(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), ScanError> {
        if self.peek() != byte {
            return self.fail();
        }
        self.at += 1;
        Ok(())
    }

    /// Skips a string and returns the offsets between its quotes and whether it has escapes.
    fn string(&mut self) -> Result<(usize, usize, bool), ScanError> {
        self.expect(b'"')?;
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.at += 2;
                }
                Some(byte) if *byte >= 0x20 => self.at += 1,
                _ => return self.fail(),
            }
        }
        let end = self.at;
        self.at += 1;
        Ok((start, end, escaped))
    }

    fn text(&self, (start, end, escaped): (usize, usize, bool)) -> Result<Text, ScanError> {
        if !escaped {
            return Ok(Text::Span(start as u32, end as u32));
        }
        match serde_json::from_slice::<String>(&self.bytes[start - 1..end + 1]) {
            Ok(text) => Ok(Text::Owned(text.into())),
            Err(_) => Err(ScanError(start)),
        }
    }

    /// Calls `member` with each key of the object at the cursor; `member` must consume the value.
    fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &[u8]) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        self.expect(b'{')?;
        self.white();
        if self.peek() == b'}' {
            self.at += 1;
            return Ok(());
        }
        let bytes = self.bytes;
        loop {
            let (start, end, _) = self.string()?;
            self.white();
            self.expect(b':')?;
            self.white();
            member(self, &bytes[start..end])?;
            self.white();
            match self.peek() {
                b',' => {
                    self.at += 1;
                    self.white();
                }
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.fail(),
            }
        }
    }

    fn top(&mut self) -> Result<(), ScanError> {
        let all = u32::MAX
            .checked_shr(32 - self.paths.len() as u32)
            .unwrap_or(0);
        self.object(|walk, key| match key {
            b"metadata" if walk.peek() == b'{' => {
                let start = walk.at;
                walk.metadata(walk.narrow(all, 0, key))?;
                walk.found.metadata = Some(start..walk.at);
                Ok(())
            }
            b"apiVersion" if walk.peek() == b'"' => {
                let span = walk.string()?;
                walk.found.api_version = Some(walk.text(span)?);
                Ok(())
            }
            _ => walk.member(all, 0, key),
        })
    }

    fn metadata(&mut self, wanted: u32) -> Result<(), ScanError> {
        self.object(|walk, key| match key {
            b"labels" if walk.peek() == b'{' => walk.labels(),
            b"resourceVersion" => {
                walk.found.has_resource_version = true;
                walk.skip()
            }
            _ => walk.member(wanted, 1, key),
        })
    }

    fn labels(&mut self) -> Result<(), ScanError> {
        self.expect(b'{')?;
        self.white();
        if self.peek() == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.string()?;
            let key = self.text(key)?;
            self.white();
            self.expect(b':')?;
            self.white();
            let value = self.string()?;
            let value = self.text(value)?;
            self.found.labels.push((key, value));
            self.white();
            match self.peek() {
                b',' => {
                    self.at += 1;
                    self.white();
                }
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return self.fail(),
            }
        }
    }

    /// Those of the `wanted` paths that go through `key` at `depth`.
    fn narrow(&self, wanted: u32, depth: usize, key: &[u8]) -> u32 {
        let mut kept = 0;
        let mut left = wanted;
        while left != 0 {
            let index = left.trailing_zeros();
            left &= left - 1;
            let path = &self.paths[index as usize];
            if path.get(depth).is_some_and(|step| step.as_bytes() == key) {
                kept |= 1 << index;
            }
        }
        kept
    }

    fn member(&mut self, wanted: u32, depth: usize, key: &[u8]) -> Result<(), ScanError> {
        let kept = self.narrow(wanted, depth, key);
        if kept == 0 {
            return self.skip();
        }
        match self.peek() {
            b'{' => self.object(|walk, key| walk.member(kept, depth + 1, key)),
            b'[' => self.skip(),
            b'"' => {
                let span = self.string()?;
                let text = self.text(span)?;
                self.record(kept, depth, text);
                Ok(())
            }
            _ => {
                let start = self.at;
                self.skip()?;
                if &self.bytes[start..self.at] != b"null" {
                    self.record(kept, depth, Text::Span(start as u32, self.at as u32));
                }
                Ok(())
            }
        }
    }

    fn record(&mut self, kept: u32, depth: usize, text: Text) {
        for (index, path) in self.paths.iter().enumerate() {
            if kept & (1 << index) != 0 && path.len() == depth + 1 {
                self.found.fields[index] = Some(text.clone());
            }
        }
    }

    /// Skips one value of any kind, checking its structure. Not recursive: depth costs one bit.
    fn skip(&mut self) -> Result<(), ScanError> {
        let mut stack = Nesting::default();
        loop {
            match self.peek() {
                b'{' => {
                    self.at += 1;
                    self.white();
                    if self.peek() == b'}' {
                        self.at += 1;
                    } else {
                        stack.push(true);
                        self.key()?;
                        continue;
                    }
                }
                b'[' => {
                    self.at += 1;
                    self.white();
                    if self.peek() == b']' {
                        self.at += 1;
                    } else {
                        stack.push(false);
                        continue;
                    }
                }
                b'"' => {
                    self.string()?;
                }
                _ => self.atom()?,
            }
            if stack.depth > MAX_DEPTH {
                return self.fail();
            }
            loop {
                let Some(in_object) = stack.top() else {
                    return Ok(());
                };
                self.white();
                match (self.peek(), in_object) {
                    (b',', true) => {
                        self.at += 1;
                        self.white();
                        self.key()?;
                        break;
                    }
                    (b',', false) => {
                        self.at += 1;
                        self.white();
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.at += 1;
                        stack.pop();
                    }
                    _ => return self.fail(),
                }
            }
        }
    }

    fn key(&mut self) -> Result<(), ScanError> {
        self.string()?;
        self.white();
        self.expect(b':')?;
        self.white();
        Ok(())
    }

    fn atom(&mut self) -> Result<(), ScanError> {
        for word in [&b"true"[..], b"false", b"null"] {
            if self.bytes[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(());
            }
        }
        let start = self.at;
        while matches!(self.peek(), b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E') {
            self.at += 1;
        }
        if self.at == start {
            self.fail()
        } else {
            Ok(())
        }
    }
}

/// A stack of bits: whether each open bracket is an object's.
#[derive(Default)]
struct Nesting {
    words: smallvec::SmallVec<[u64; 2]>,
    depth: usize,
}

impl Nesting {
    fn push(&mut self, object: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.words.len() {
            self.words.push(0);
        }
        self.words[word] &= !(1 << bit);
        self.words[word] |= u64::from(object) << bit;
        self.depth += 1;
    }

    fn top(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.words[last / 64] >> (last % 64) & 1 == 1)
    }

    fn pop(&mut self) {
        self.depth -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> Vec<Path> {
        vec![
            vec!["spec", "nodeName"],
            vec!["status", "phase"],
            vec!["spec", "hostNetwork"],
        ]
    }

    #[test]
    fn finds_metadata_labels_and_fields() {
        let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b","c\/d":"e"},"name":"x"},
            "spec":{"containers":[{"a":[1,2,{}]}],"nodeName":"n1","hostNetwork":true},"status":{"phase":"Running"}}"#;
        let scan = scan(json, &paths()).unwrap();
        let meta = scan.metadata.unwrap();
        assert!(json[meta.clone()].starts_with(b"{\"labels\""));
        assert!(json[meta].ends_with(b"\"name\":\"x\"}"));
        let labels: Vec<_> = scan
            .labels
            .iter()
            .map(|(key, value)| (key.get(json), value.get(json)))
            .collect();
        assert_eq!(labels, [("a", "b"), ("c/d", "e")]);
        let fields: Vec<_> = scan
            .fields
            .iter()
            .map(|field| field.as_ref().map(|text| text.get(json)))
            .collect();
        assert_eq!(fields, [Some("n1"), Some("Running"), Some("true")]);
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for bad in [
            &b""[..],
            b"[]",
            b"{",
            b"{}x",
            b"{\"a\" 1}",
            b"{\"a\":}",
            b"{\"a\":[1,}",
            b"{\"a\":[1}]",
            b"{\"a\":\"b}",
            b"k8s\0",
            b"{\"a\":\"\xff\"}",
        ] {
            assert!(scan(bad, &paths()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let mut json = b"{\"a\":".to_vec();
        json.extend(std::iter::repeat_n(b'[', 10_000));
        json.extend(std::iter::repeat_n(b']', 10_000));
        json.push(b'}');
        assert!(scan(&json, &paths()).is_ok());
    }

    #[test]
    fn a_resource_version_in_the_bytes_is_noticed() {
        let found = scan(br#"{"metadata":{"resourceVersion":"5"}}"#, &[]).unwrap();
        assert!(found.has_resource_version);
    }
}
