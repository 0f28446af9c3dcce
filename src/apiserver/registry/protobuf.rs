//! The envelopes around protobuf messages: single objects, lists put together from their items' bytes, watch frames.
//!
//! ```text
//! object  k8s\0 Unknown{ 1: TypeMeta{1: apiVersion, 2: kind}, 2: raw, 3: "", 4: "" }
//! list    k8s\0 Unknown{ …, 2: List{ 1: ListMeta, 2: item, 2: item, … } }
//! frame   length (4 bytes, big endian) WatchEvent{ 1: type, 2: RawExtension{ 1: object } }
//! ```

use apimachinery::codec::protobuf::{Envelope, MAGIC};
use bytes::Bytes;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn varint_len(value: usize) -> usize {
    let bits = usize::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

fn type_meta(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, api_version.as_bytes());
    bytes(&mut out, 2, kind.as_bytes());
    out
}

/// Wraps a message.
pub fn seal(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    Envelope {
        api_version,
        kind,
        raw,
    }
    .close()
}

/// A ListMeta message.
pub fn list_meta(resource_version: &str, next: &str, remaining: Option<i64>) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, b"");
    bytes(&mut out, 2, resource_version.as_bytes());
    bytes(&mut out, 3, next.as_bytes());
    if let Some(remaining) = remaining {
        out.push(4 << 3);
        varint(&mut out, remaining as u64);
    }
    out
}

/// A sealed list in pieces: the items' bytes are not copied, and each is given up once it was taken.
pub fn seal_list(
    api_version: &str,
    kind: &str,
    metadata: &[u8],
    items: Vec<Bytes>,
) -> impl Iterator<Item = Bytes> + Send + use<> {
    let prefixed = |len: usize| 1 + varint_len(len) + len;
    let size =
        prefixed(metadata.len()) + items.iter().map(|item| prefixed(item.len())).sum::<usize>();
    let mut head = Vec::with_capacity(metadata.len() + 64);
    head.extend_from_slice(MAGIC);
    bytes(&mut head, 1, &type_meta(api_version, kind));
    head.push(2 << 3 | 2);
    varint(&mut head, size as u64);
    bytes(&mut head, 1, metadata);
    let items = items.into_iter().flat_map(|item| {
        let mut tag = Vec::with_capacity(6);
        tag.push(2 << 3 | 2);
        varint(&mut tag, item.len() as u64);
        [Bytes::from(tag), item]
    });
    std::iter::once(Bytes::from(head))
        .chain(items)
        .chain([Bytes::from_static(&[3 << 3 | 2, 0, 4 << 3 | 2, 0])])
}

/// One watch event with its length.
pub fn watch_frame(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(object.len() + 8);
    bytes(&mut raw, 1, object);
    let mut event = Vec::with_capacity(raw.len() + 24);
    event.extend_from_slice(&[0; 4]);
    bytes(&mut event, 1, kind.as_bytes());
    bytes(&mut event, 2, &raw);
    let len = (event.len() - 4) as u32;
    event[..4].copy_from_slice(&len.to_be_bytes());
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_pieces_is_one_envelope() {
        let items = vec![Bytes::from_static(b"one"), Bytes::from(vec![7; 300])];
        let pieces: Vec<Bytes> = seal_list("v1", "PodList", b"meta", items).collect();
        let whole = pieces.concat();
        let envelope = Envelope::open(&whole).unwrap();
        assert_eq!((envelope.api_version, envelope.kind), ("v1", "PodList"));
        let expect = [
            b"\x0a\x04meta\x12\x03one\x12\xac\x02".to_vec(),
            vec![7; 300],
        ]
        .concat();
        assert_eq!(envelope.raw, expect);
    }

    #[test]
    fn a_frame_begins_with_its_length() {
        let frame = watch_frame("ADDED", b"x");
        let len = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
        assert_eq!(len as usize, frame.len() - 4);
    }
}
