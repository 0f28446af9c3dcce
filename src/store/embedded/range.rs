//! etcd's key ranges: one key, everything from a key on, or a half-open interval.

use std::ops::Bound;

use bytes::Bytes;

/// `[start, end)` with etcd's two special ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    start: Bytes,
    end: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Single,
    Open,
    Before(Bytes),
}

/// As ordered maps take them.
type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl KeyRange {
    /// `None` (or an empty end) is `start` alone; an end of one zero byte is everything from `start` on.
    pub fn new(start: &Bytes, range_end: Option<&Bytes>) -> Self {
        let end = match range_end {
            None => End::Single,
            Some(end) if end.is_empty() => End::Single,
            Some(end) if end.as_ref() == b"\0" => End::Open,
            Some(end) => End::Before(end.clone()),
        };
        Self {
            start: start.clone(),
            end,
        }
    }

    /// The key, when the range is of one key only.
    pub fn single(&self) -> Option<&Bytes> {
        matches!(self.end, End::Single).then_some(&self.start)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            End::Single => key == self.start.as_ref(),
            End::Open => key >= self.start.as_ref(),
            End::Before(end) => key >= self.start.as_ref() && key < end.as_ref(),
        }
    }

    /// The range for an ordered map; `None` when nothing can be in it.
    pub fn bounds(&self) -> Option<Bounds<'_>> {
        let start = self.start.as_ref();
        match &self.end {
            End::Single => Some((Bound::Included(start), Bound::Included(start))),
            End::Open => Some((Bound::Included(start), Bound::Unbounded)),
            End::Before(end) if end.as_ref() <= start => None,
            End::Before(end) => Some((Bound::Included(start), Bound::Excluded(end.as_ref()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(start: &'static str, end: Option<&'static str>, inside: &[&str], outside: &[&str]) {
        let end = end.map(|end| Bytes::from_static(end.as_bytes()));
        let range = KeyRange::new(&Bytes::from_static(start.as_bytes()), end.as_ref());
        for key in inside {
            assert!(
                range.contains(key.as_bytes()),
                "{key} should be in {range:?}"
            );
        }
        for key in outside {
            assert!(
                !range.contains(key.as_bytes()),
                "{key} should not be in {range:?}"
            );
        }
    }

    #[test]
    fn the_end_decides_what_a_range_holds() {
        check("b", None, &["b"], &["a", "ba", "c"]);
        check("b", Some(""), &["b"], &["a", "ba", "c"]);
        check("b", Some("\0"), &["b", "ba", "z"], &["a", ""]);
        check("b", Some("d"), &["b", "c", "czz"], &["a", "d", "e"]);
        check("d", Some("b"), &[], &["a", "b", "c", "d"]);
    }
}
