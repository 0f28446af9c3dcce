//! One stored object as readers need it: its bytes, where the resourceVersion goes into them, and what selectors look at.
//!
//! The stored JSON has no resourceVersion; it is spliced in (prefix, number, suffix) when the object is served, so that the
//! stored bytes, which the embedded store shares, are held once. Other encodings are made once, on first use, and kept
//! for a while (`encodings`).
//!
//! **Invariant:** an entry never changes; a new revision is a new entry.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use store::KeyValue;

use super::encodings::{Encodings, Kept};
use super::scan::{Path, ScanError, Text, scan};

/// Names an encoding of an entry (media type, version, transformation): equal ids mean equal bytes.
pub type EncodingId = u64;

/// Turns bytes that are not this server's canonical JSON (protobuf, another stored version, written by hand) into it.
pub type Normalize = Arc<dyn Fn(&Bytes) -> Result<Bytes, String> + Send + Sync>;

/// What making entries of a resource needs to know about it.
pub struct Shape {
    /// Store prefix with its slash: `/registry/pods/`.
    pub prefix: Bytes,
    pub namespaced: bool,
    /// The apiVersion objects are stored as; others are normalized.
    pub api_version: String,
    /// Where the values of field selectors are found; at most 32.
    pub paths: Vec<Path>,
    pub normalize: Normalize,
    /// Whether stored objects are normalized, whoever wrote them: what they are may be told anew at any time.
    pub revised: bool,
    /// Bounds what is kept of entries beside their stored bytes; one for all resources of a server.
    pub encodings: Arc<Encodings>,
}

impl Shape {
    /// The store key of an object; `namespace` is ignored for cluster-scoped resources.
    pub fn key(&self, namespace: &str, name: &str) -> Bytes {
        let mut key = BytesMut::with_capacity(self.prefix.len() + namespace.len() + name.len() + 1);
        key.put_slice(&self.prefix);
        if self.namespaced {
            key.put_slice(namespace.as_bytes());
            key.put_u8(b'/');
        }
        key.put_slice(name.as_bytes());
        key.freeze()
    }

    /// The prefix of all keys in `namespace` (`""`: all of the resource).
    pub fn scope(&self, namespace: &str) -> Bytes {
        if namespace.is_empty() || !self.namespaced {
            return self.prefix.clone();
        }
        let mut key = BytesMut::with_capacity(self.prefix.len() + namespace.len() + 1);
        key.put_slice(&self.prefix);
        key.put_slice(namespace.as_bytes());
        key.put_u8(b'/');
        key.freeze()
    }
}

/// Why stored bytes make no entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("decode stored object: {0}")]
    Normalize(String),
    #[error("stored object has no metadata")]
    NoMetadata,
    #[error("key {0:?} does not name an object of the resource")]
    Key(String),
}

pub struct Entry {
    key: Bytes,
    /// Offset in `key` of the namespace (or of the name, for cluster-scoped resources).
    scope: u16,
    /// Offset in `key` of the name.
    name: u16,
    revision: i64,
    lease: i64,
    /// Canonical JSON without a resourceVersion.
    stored: Bytes,
    /// Where `stored`'s metadata object starts (at its brace) and ends.
    metadata: (u32, u32),
    labels: Box<[(Text, Text)]>,
    fields: Box<[Option<Text>]>,
    encoded: Mutex<Option<Box<Kept>>>,
    is_as_stored: bool,
}

impl Entry {
    pub fn new(shape: &Shape, kv: &KeyValue) -> Result<Self, EntryError> {
        let (scope, name) = split(shape, &kv.key)?;
        let mut stored = kv.value.clone();
        if shape.revised || !stored.starts_with(b"{") {
            let normal = (shape.normalize)(&stored).map_err(EntryError::Normalize)?;
            // Bytes that are the same stay those that the store shares.
            if normal != stored {
                stored = normal;
            }
        }
        let mut found = scan(&stored, &shape.paths)?;
        let version_differs = found
            .api_version
            .as_ref()
            .is_none_or(|text| text.get(&stored) != shape.api_version);
        if found.has_resource_version || version_differs {
            stored = (shape.normalize)(&stored).map_err(EntryError::Normalize)?;
            found = scan(&stored, &shape.paths)?;
        }
        let metadata = found.metadata.ok_or(EntryError::NoMetadata)?;
        Ok(Self {
            key: kv.key.clone(),
            scope,
            name,
            revision: kv.mod_revision,
            lease: kv.lease,
            metadata: (metadata.start as u32, metadata.end as u32),
            labels: found.labels.into(),
            fields: found.fields.into(),
            encoded: Mutex::default(),
            is_as_stored: stored_is(kv, &stored),
            stored: stored.slice(..found.end),
        })
    }

    pub fn key(&self) -> &Bytes {
        &self.key
    }

    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.key[self.name as usize..]).unwrap_or("")
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        let end = (self.name as usize).saturating_sub(1);
        let slice = self.key.get(self.scope as usize..end).unwrap_or(b"");
        std::str::from_utf8(slice).unwrap_or("")
    }

    /// The store revision that made this state: its resourceVersion.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The store lease the object dies with, or 0.
    pub fn lease(&self) -> i64 {
        self.lease
    }

    /// JSON without a resourceVersion.
    pub fn stored(&self) -> &Bytes {
        &self.stored
    }

    /// Whether the store has these very bytes, and not others that mean them.
    pub fn is_as_stored(&self) -> bool {
        self.is_as_stored
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(name, _)| name.get(&self.stored) == key)
            .map(|(_, value)| value.get(&self.stored))
    }

    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels
            .iter()
            .map(|(key, value)| (key.get(&self.stored), value.get(&self.stored)))
    }

    /// The text at the shape's path number `index`; `None` where the object has none.
    pub fn field(&self, index: usize) -> Option<&str> {
        let text = self.fields.get(index)?.as_ref()?;
        Some(text.get(&self.stored))
    }

    /// Appends the object with `revision` as its resourceVersion (0: without one). Where the stored bytes begin with
    /// `skip` (the object's type), that is left out.
    pub fn write_json(&self, out: &mut Vec<u8>, revision: i64, skip: &[u8]) {
        let at = self.metadata.0 as usize + 1;
        out.reserve(self.stored.len() + Splice::MAX);
        let mut from = 0;
        if !skip.is_empty() && self.stored.starts_with(skip) {
            out.push(b'{');
            from = skip.len();
        }
        out.extend_from_slice(&self.stored[from..at]);
        out.extend_from_slice(self.splice(revision).as_bytes());
        out.extend_from_slice(&self.stored[at..]);
    }

    fn splice(&self, revision: i64) -> Splice {
        if revision == 0 {
            return Splice::none();
        }
        Splice::new(revision, self.has_bare_metadata())
    }

    /// Appends the metadata object alone, with `revision` as its resourceVersion.
    pub fn write_metadata(&self, out: &mut Vec<u8>, revision: i64) {
        let (start, end) = (self.metadata.0 as usize, self.metadata.1 as usize);
        out.reserve(end - start + Splice::MAX);
        out.push(b'{');
        out.extend_from_slice(self.splice(revision).as_bytes());
        out.extend_from_slice(&self.stored[start + 1..end]);
    }

    /// Length of what `write_json` appends, at most.
    pub fn json_len(&self) -> usize {
        self.stored.len() + Splice::MAX
    }

    fn has_bare_metadata(&self) -> bool {
        let inside = &self.stored[self.metadata.0 as usize + 1..self.metadata.1 as usize - 1];
        inside.iter().all(u8::is_ascii_whitespace)
    }

    /// The bytes of encoding `id`, made by `encode` on the first call and kept if `all` has room.
    pub fn encoded<E>(
        &self,
        all: &Arc<Encodings>,
        id: EncodingId,
        encode: impl FnOnce(&Self) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        if let Some(kept) = self.encoded.lock().as_mut()
            && let Some(bytes) = kept.find(id)
        {
            return Ok(bytes);
        }
        // Made outside of the lock: two first readers may both encode, one result stays.
        let bytes = encode(self)?;
        let mut encoded = self.encoded.lock();
        let kept = encoded.get_or_insert_with(|| Box::new(Kept::new(all)));
        if kept.find(id).is_none() {
            kept.add(id, &bytes);
        }
        Ok(bytes)
    }

    /// Drops the encodings that nobody has used lately.
    pub fn let_go_unused(&self) {
        let mut encoded = self.encoded.lock();
        if encoded.as_ref().is_some_and(|kept| kept.is_unused()) {
            *encoded = None;
        }
    }

    /// Drops the encodings: the state was replaced, so few will ask for it any more.
    pub(super) fn let_go(&self) {
        *self.encoded.lock() = None;
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key: Cow<'_, str> = String::from_utf8_lossy(&self.key);
        write!(f, "Entry({key}@{})", self.revision)
    }
}

fn stored_is(kv: &KeyValue, bytes: &Bytes) -> bool {
    kv.value.as_ptr() == bytes.as_ptr()
}

fn split(shape: &Shape, key: &Bytes) -> Result<(u16, u16), EntryError> {
    let bad = || EntryError::Key(String::from_utf8_lossy(key).into_owned());
    let text = std::str::from_utf8(key).map_err(|_| bad())?;
    let prefix = shape.prefix.len();
    let rest = text.get(prefix..).ok_or_else(bad)?;
    let name = if shape.namespaced {
        prefix + rest.find('/').ok_or_else(bad)? + 1
    } else {
        prefix
    };
    if name >= text.len() || text.len() > u16::MAX as usize || text[name..].contains('/') {
        return Err(bad());
    }
    Ok((prefix as u16, name as u16))
}

/// `"resourceVersion":"123",` as it stands right behind metadata's opening brace.
struct Splice {
    buffer: [u8; Self::MAX],
    len: u8,
}

impl Splice {
    const HEAD: &'static [u8] = b"\"resourceVersion\":\"";
    /// Longest splice: the head, 20 digits, quote and comma.
    const MAX: usize = Self::HEAD.len() + 22;

    fn none() -> Self {
        Self {
            buffer: [0; Self::MAX],
            len: 0,
        }
    }

    fn new(revision: i64, alone: bool) -> Self {
        let mut buffer = [0; Self::MAX];
        let mut len = Self::HEAD.len();
        buffer[..len].copy_from_slice(Self::HEAD);
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut left = revision.unsigned_abs();
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        buffer[len..len + digits.len() - at].copy_from_slice(&digits[at..]);
        len += digits.len() - at;
        buffer[len] = b'"';
        len += 1;
        if !alone {
            buffer[len] = b',';
            len += 1;
        }
        Self {
            buffer,
            len: len as u8,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.buffer[..self.len as usize]
    }
}

/// Orders entries by key, so that a set of them is a map from keys at the cost of one pointer an object.
#[derive(Clone, Debug)]
pub struct ByKey(pub Arc<Entry>);

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl std::borrow::Borrow<[u8]> for ByKey {
    fn borrow(&self) -> &[u8] {
        &self.0.key
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shape() -> Shape {
        Shape {
            prefix: Bytes::from_static(b"/registry/pods/"),
            namespaced: true,
            api_version: "v1".to_owned(),
            paths: vec![vec!["spec", "nodeName"]],
            normalize: Arc::new(|bytes| {
                let mut value: serde_json::Value =
                    serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                value["apiVersion"] = "v1".into();
                if let Some(metadata) = value["metadata"].as_object_mut() {
                    metadata.remove("resourceVersion");
                }
                Ok(Bytes::from(value.to_string()))
            }),
            revised: false,
            encodings: Arc::default(),
        }
    }

    pub(crate) fn kv(key: &str, value: &str, revision: i64) -> KeyValue {
        KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: 0,
        }
    }

    #[track_caller]
    fn check(stored: &str, served: &str) {
        let entry = Entry::new(&shape(), &kv("/registry/pods/a/b", stored, 42)).unwrap();
        let mut out = Vec::new();
        entry.write_json(&mut out, entry.revision(), b"");
        assert_eq!(String::from_utf8(out).unwrap(), served);
    }

    #[test]
    fn the_resource_version_is_spliced_into_metadata() {
        check(
            r#"{"apiVersion":"v1","metadata":{"name":"b"}}"#,
            r#"{"apiVersion":"v1","metadata":{"resourceVersion":"42","name":"b"}}"#,
        );
        check(
            r#"{"apiVersion":"v1","metadata":{}}"#,
            r#"{"apiVersion":"v1","metadata":{"resourceVersion":"42"}}"#,
        );
    }

    #[test]
    fn foreign_bytes_are_normalized_first() {
        check(
            r#"{"apiVersion":"v1","metadata":{"name":"b","resourceVersion":"7"}}"#,
            r#"{"apiVersion":"v1","metadata":{"resourceVersion":"42","name":"b"}}"#,
        );
        check(
            r#"{"apiVersion":"v0","metadata":{"name":"b"}}"#,
            r#"{"apiVersion":"v1","metadata":{"resourceVersion":"42","name":"b"}}"#,
        );
    }

    #[test]
    fn name_namespace_and_selectable_values_come_from_key_and_bytes() {
        let json =
            r#"{"apiVersion":"v1","metadata":{"labels":{"app":"x"}},"spec":{"nodeName":"n"}}"#;
        let entry = Entry::new(&shape(), &kv("/registry/pods/ns/pod", json, 1)).unwrap();
        assert_eq!((entry.namespace(), entry.name()), ("ns", "pod"));
        assert_eq!(entry.label("app"), Some("x"));
        assert_eq!(entry.field(0), Some("n"));
        let mut out = Vec::new();
        entry.write_metadata(&mut out, 9);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"{"resourceVersion":"9","labels":{"app":"x"}}"#
        );
    }

    #[test]
    fn keys_of_another_shape_make_no_entry() {
        for key in [
            "/registry/pods/a",
            "/registry/pods/a/",
            "/registry/pods/a/b/c",
        ] {
            let made = Entry::new(&shape(), &kv(key, r#"{"metadata":{}}"#, 1));
            assert!(matches!(made, Err(EntryError::Key(_))), "{key}");
        }
    }
}
