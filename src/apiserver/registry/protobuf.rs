//! The envelopes around protobuf messages: single objects, lists put together from their items' bytes, watch frames.
//!
//! ```text
//! object  k8s\0 Unknown{ 1: TypeMeta{1: apiVersion, 2: kind}, 2: raw, 3: "", 4: "" }
//! list    k8s\0 Unknown{ …, 2: List{ 1: ListMeta, 2: item, 2: item, … } }
//! frame   length (4 bytes, big endian) WatchEvent{ 1: type, 2: RawExtension{ 1: object } }
//! ```

use apimachinery::Value;
use apimachinery::codec::DecodeError;
use apimachinery::schema::Message;
use bytes::Bytes;

/// What stored and sent protobuf begins with.
pub const MAGIC: &[u8] = b"k8s\0";

/// An opened envelope.
pub struct Envelope<'a> {
    pub api_version: String,
    pub kind: String,
    pub raw: &'a [u8],
}

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
    let mut out = Vec::with_capacity(raw.len() + 64);
    out.extend_from_slice(MAGIC);
    bytes(&mut out, 1, &type_meta(api_version, kind));
    bytes(&mut out, 2, raw);
    bytes(&mut out, 3, b"");
    bytes(&mut out, 4, b"");
    out
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

/// A sealed list in pieces: the items' bytes are not copied.
pub fn seal_list(api_version: &str, kind: &str, metadata: &[u8], items: Vec<Bytes>) -> Vec<Bytes> {
    let prefixed = |len: usize| 1 + varint_len(len) + len;
    let size =
        prefixed(metadata.len()) + items.iter().map(|item| prefixed(item.len())).sum::<usize>();
    let mut head = Vec::with_capacity(metadata.len() + 64);
    head.extend_from_slice(MAGIC);
    bytes(&mut head, 1, &type_meta(api_version, kind));
    head.push(2 << 3 | 2);
    varint(&mut head, size as u64);
    bytes(&mut head, 1, metadata);
    let mut pieces = Vec::with_capacity(items.len() * 2 + 2);
    pieces.push(Bytes::from(head));
    for item in items {
        let mut tag = Vec::with_capacity(6);
        tag.push(2 << 3 | 2);
        varint(&mut tag, item.len() as u64);
        pieces.push(tag.into());
        pieces.push(item);
    }
    pieces.push(Bytes::from_static(&[3 << 3 | 2, 0, 4 << 3 | 2, 0]));
    pieces
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

/// Opens an envelope.
pub fn open(body: &[u8]) -> Result<Envelope<'_>, DecodeError> {
    let mut rest = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| DecodeError("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]".to_owned()))?;
    let mut envelope = Envelope {
        api_version: String::new(),
        kind: String::new(),
        raw: &[],
    };
    while !rest.is_empty() {
        let (field, value) = take(&mut rest)?;
        match field {
            1 => {
                let mut inner = value;
                while !inner.is_empty() {
                    let (field, value) = take(&mut inner)?;
                    let text = String::from_utf8_lossy(value).into_owned();
                    match field {
                        1 => envelope.api_version = text,
                        2 => envelope.kind = text,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = value,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Takes one length-delimited field; an envelope has no others.
fn take<'a>(rest: &mut &'a [u8]) -> Result<(u64, &'a [u8]), DecodeError> {
    let broken = || DecodeError("unexpected EOF".to_owned());
    let number = |rest: &mut &'a [u8]| -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, left) = rest.split_first().ok_or_else(broken)?;
            *rest = left;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError("proto: integer overflow".to_owned()))
    };
    let tag = number(rest)?;
    if tag & 7 != 2 {
        return Err(DecodeError(format!("proto: illegal wireType {}", tag & 7)));
    }
    let len = usize::try_from(number(rest)?).map_err(|_| broken())?;
    if len > rest.len() {
        return Err(broken());
    }
    let (value, left) = rest.split_at(len);
    *rest = left;
    Ok((tag >> 3, value))
}

/// An object as a message.
pub fn encode(_object: &Value, _message: &Message) -> Vec<u8> {
    Vec::new()
}

/// A message as an object.
pub fn decode(_raw: &[u8], _message: &Message) -> Result<Value, DecodeError> {
    Err(DecodeError("protobuf is not served yet".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_opens_to_what_was_sealed() {
        let sealed = seal("apps/v1", "Deployment", b"raw bytes");
        let envelope = open(&sealed).unwrap();
        assert_eq!(envelope.api_version, "apps/v1");
        assert_eq!(envelope.kind, "Deployment");
        assert_eq!(envelope.raw, b"raw bytes");
        for cut in 4..sealed.len() - 4 {
            let _ = open(&sealed[..cut]);
        }
    }

    #[test]
    fn a_list_of_pieces_is_one_envelope() {
        let items = vec![Bytes::from_static(b"one"), Bytes::from(vec![7; 300])];
        let whole = seal_list("v1", "PodList", b"meta", items).concat();
        let envelope = open(&whole).unwrap();
        let mut raw = envelope.raw;
        let mut fields = Vec::new();
        while !raw.is_empty() {
            let (field, value) = take(&mut raw).unwrap();
            fields.push((field, value.len()));
        }
        assert_eq!(fields, [(1, 4), (2, 3), (2, 300)]);
    }

    #[test]
    fn a_frame_begins_with_its_length() {
        let frame = watch_frame("ADDED", b"x");
        let len = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
        assert_eq!(len as usize, frame.len() - 4);
    }
}
