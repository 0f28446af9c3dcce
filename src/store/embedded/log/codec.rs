//! The bytes of the store's files: pure functions over buffers.
//!
//! Both kinds of files (`.log` segments and `.base` checkpoints) are a header and then frames. All numbers
//! are little-endian; a frame starts at a multiple of eight bytes.
//!
//! ```text
//! header   0        8     12     16       24               32        40      44    64
//!          | magic  | kind | number | salt  | first sequence | floor   | crc32 | 0…  |
//! frame    0        4       8            16
//!          | length | crc32 | sequence   | items … (length bytes) | 0… to a multiple of 8 |
//! item     tag, then: 1 transaction  revision i64        the puts and deletes that follow are its
//!                     2 put          lease i64, key length u32, value length u32, key, value
//!                     3 delete       key length u32, key
//!                     4 lease        id i64, ttl i64, deadline i64 (ms since 1970), renewed u8
//!                     5 revoke       id i64
//!                     6 compact      revision i64
//!                     7 entry        create, modification, version, lease i64, key length, value length u32, key, value
//!                     8 end          entries u64         the last item of a complete checkpoint
//! ```
//!
//! A frame is one commit group, or a megabyte of a checkpoint. Its checksum covers the file's random salt
//! and the frame's sequence number too, so that neither bytes left over in a file nor bytes a client chose
//! can pass for a frame. The next group is written only once the last one is on the disk: if a frame is
//! torn, no later one exists, and if a later one does exist, it was not a crash that tore it.

use crc32fast::Hasher;

pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const FRAME_HEADER_BYTES: usize = 16;
const ALIGN: usize = 8;
const MAGIC: &[u8; 8] = b"skiffkv1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Segment = 1,
    Base = 2,
}

/// The first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub number: u32,
    /// Random, so that what an older file left behind is not mistaken for this file's.
    pub salt: u64,
    /// Of a segment: of its first frame. Of a checkpoint: of the first group that must still be replayed.
    pub first_sequence: u64,
    /// Of a checkpoint: the revision it shows. Of a segment: 0.
    pub floor: i64,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.floor.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..40]);
        bytes[40..44].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes.get(..HEADER_BYTES)?);
        if reader.take(8)? != MAGIC {
            return None;
        }
        let kind = match reader.u32()? {
            1 => Kind::Segment,
            2 => Kind::Base,
            _ => return None,
        };
        let header = Self {
            kind,
            number: reader.u32()?,
            salt: reader.u64()?,
            first_sequence: reader.u64()?,
            floor: reader.i64()?,
        };
        (reader.u32()? == crc32fast::hash(&bytes[..40])).then_some(header)
    }
}

/// A frame being filled.
#[derive(Debug, Default)]
pub(crate) struct FrameBuilder {
    bytes: Vec<u8>,
}

impl FrameBuilder {
    pub fn is_empty(&self) -> bool {
        self.bytes.len() <= FRAME_HEADER_BYTES
    }

    /// Bytes the frame will take in the file.
    pub fn len(&self) -> usize {
        self.bytes.len().next_multiple_of(ALIGN)
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Gives back the memory of a frame that was unusually large.
    pub fn shrink(&mut self, bytes: usize) {
        self.bytes.shrink_to(bytes);
    }

    pub fn transaction(&mut self, revision: i64) {
        self.tag(1).i64(revision);
    }

    /// Returns the value's offset from the start of the frame.
    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> usize {
        self.tag(2).i64(lease).length(key).length(value).raw(key);
        self.value(value)
    }

    pub fn delete(&mut self, key: &[u8]) {
        self.tag(3).length(key).raw(key);
    }

    pub fn lease(&mut self, id: i64, ttl: i64, deadline: i64, renewed: bool) {
        self.tag(4)
            .i64(id)
            .i64(ttl)
            .i64(deadline)
            .raw(&[renewed.into()]);
    }

    pub fn revoke(&mut self, id: i64) {
        self.tag(5).i64(id);
    }

    pub fn compact(&mut self, revision: i64) {
        self.tag(6).i64(revision);
    }

    /// Returns the value's offset from the start of the frame.
    pub fn entry(
        &mut self,
        [create, modification, version, lease]: [i64; 4],
        key: &[u8],
        value: &[u8],
    ) -> usize {
        self.tag(7)
            .i64(create)
            .i64(modification)
            .i64(version)
            .i64(lease);
        self.length(key).length(value).raw(key);
        self.value(value)
    }

    pub fn end(&mut self, entries: u64) {
        self.tag(8).raw(&entries.to_le_bytes());
    }

    /// Closes the frame; the bytes are ready to be written.
    pub fn seal(&mut self, salt: u64, sequence: u64) -> &[u8] {
        let length = self.bytes.len() - FRAME_HEADER_BYTES;
        self.bytes.resize(self.len(), 0);
        let payload = &self.bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length];
        let crc = checksum(salt, sequence, payload);
        // A group is bounded by `writer::GROUP_BYTES` and one request, far below 4 GiB.
        self.bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        self.bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
        &self.bytes
    }

    fn tag(&mut self, tag: u8) -> &mut Self {
        if self.bytes.is_empty() {
            self.bytes.resize(FRAME_HEADER_BYTES, 0);
        }
        self.raw(&[tag])
    }

    fn i64(&mut self, value: i64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn length(&mut self, bytes: &[u8]) -> &mut Self {
        self.raw(&(bytes.len() as u32).to_le_bytes())
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn value(&mut self, value: &[u8]) -> usize {
        let at = self.bytes.len();
        self.raw(value);
        at
    }
}

/// A frame whose checksum holds.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub sequence: u64,
    pub items: Items<'a>,
    /// Where the next frame starts, from the start of the file.
    pub end: usize,
}

/// Reads the frame at `offset` of a file's bytes; `None` when there is no whole one.
pub(crate) fn frame(file: &[u8], offset: usize, salt: u64) -> Option<Frame<'_>> {
    let mut header = Reader::new(file.get(offset..offset + FRAME_HEADER_BYTES)?);
    let length = header.u32()? as usize;
    let crc = header.u32()?;
    let sequence = header.u64()?;
    let start = offset + FRAME_HEADER_BYTES;
    let payload = file.get(start..start.checked_add(length)?)?;
    if length == 0 || checksum(salt, sequence, payload) != crc {
        return None;
    }
    Some(Frame {
        sequence,
        items: Items {
            reader: Reader::new(payload),
            start,
        },
        end: (start + length).next_multiple_of(ALIGN),
    })
}

/// The bytes of the frame that starts with these; 0 when they are no frame's.
pub(crate) fn frame_bytes(start: &[u8]) -> u64 {
    match Reader::new(start).u32() {
        Some(length) if length > 0 => FRAME_HEADER_BYTES as u64 + u64::from(length),
        _ => 0,
    }
}

/// Looks for a frame after `offset` that is newer than `expected`, which a torn tail cannot hold.
pub(crate) fn later_frame(file: &[u8], offset: usize, salt: u64, expected: u64) -> Option<usize> {
    let mut at = offset.next_multiple_of(ALIGN);
    while at + FRAME_HEADER_BYTES <= file.len() {
        let sequence = Reader::new(&file[at + 8..at + 16]).u64()?;
        // The sequence is looked at first, since a checksum over every guess would take long.
        let plausible = sequence > expected && sequence - expected < 1 << 32;
        if plausible && frame(file, at, salt).is_some() {
            return Some(at);
        }
        at += ALIGN;
    }
    None
}

fn checksum(salt: u64, sequence: u64, payload: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    Transaction(i64),
    Put {
        key: &'a [u8],
        value: Value<'a>,
        lease: i64,
    },
    Delete(&'a [u8]),
    Lease {
        id: i64,
        ttl: i64,
        /// Milliseconds since 1970.
        deadline: i64,
        renewed: bool,
    },
    Revoke(i64),
    Compact(i64),
    Entry {
        create: i64,
        modification: i64,
        version: i64,
        lease: i64,
        key: &'a [u8],
        value: Value<'a>,
    },
    End(u64),
}

/// A value and where it lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value<'a> {
    pub bytes: &'a [u8],
    pub offset: u64,
}

/// The items of a frame; ends with an `Err` at one that makes no sense.
#[derive(Debug)]
pub(crate) struct Items<'a> {
    reader: Reader<'a>,
    /// Where the payload starts in the file.
    start: usize,
}

/// An item that cannot be read although its frame's checksum holds: the file is of a newer version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownItem;

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, UnknownItem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_done() {
            return None;
        }
        let item = self.item().ok_or(UnknownItem);
        if item.is_err() {
            self.reader.at = self.reader.bytes.len();
        }
        Some(item)
    }
}

impl<'a> Items<'a> {
    fn item(&mut self) -> Option<Item<'a>> {
        let reader = &mut self.reader;
        Some(match reader.take(1)?[0] {
            1 => Item::Transaction(reader.i64()?),
            2 => {
                let lease = reader.i64()?;
                let (key, value) = self.key_value()?;
                Item::Put { key, value, lease }
            }
            3 => {
                let length = reader.u32()? as usize;
                Item::Delete(reader.take(length)?)
            }
            4 => Item::Lease {
                id: reader.i64()?,
                ttl: reader.i64()?,
                deadline: reader.i64()?,
                renewed: reader.take(1)?[0] != 0,
            },
            5 => Item::Revoke(reader.i64()?),
            6 => Item::Compact(reader.i64()?),
            7 => {
                let (create, modification) = (reader.i64()?, reader.i64()?);
                let (version, lease) = (reader.i64()?, reader.i64()?);
                let (key, value) = self.key_value()?;
                Item::Entry {
                    create,
                    modification,
                    version,
                    lease,
                    key,
                    value,
                }
            }
            8 => Item::End(reader.u64()?),
            _ => return None,
        })
    }

    fn key_value(&mut self) -> Option<(&'a [u8], Value<'a>)> {
        let key_length = self.reader.u32()? as usize;
        let value_length = self.reader.u32()? as usize;
        let key = self.reader.take(key_length)?;
        let offset = (self.start + self.reader.at) as u64;
        let bytes = self.reader.take(value_length)?;
        Some((key, Value { bytes, offset }))
    }
}

#[derive(Debug)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FrameBuilder {
        let mut builder = FrameBuilder::default();
        builder.transaction(7);
        builder.put(b"key", b"value", 3);
        builder.delete(b"gone");
        builder.lease(1, 60, 99, true);
        builder.revoke(2);
        builder.compact(5);
        builder.entry([1, 2, 3, 4], b"k", b"");
        builder.end(1);
        builder
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut builder = sample();
        let bytes = builder.seal(11, 22);
        let frame = frame(bytes, 0, 11).expect("a whole frame");
        assert_eq!((frame.sequence, frame.end), (22, bytes.len()));
        let items: Vec<_> = frame.items.map(Result::unwrap).collect();
        let Item::Put { value, .. } = items[1] else {
            panic!("a put was expected, not {:?}", items[1]);
        };
        assert_eq!(&bytes[value.offset as usize..][..5], b"value");
        assert_eq!(items[0], Item::Transaction(7));
        assert_eq!(items[2], Item::Delete(b"gone"));
        assert_eq!(items[7], Item::End(1));
        assert_eq!(items.len(), 8);
    }

    #[test]
    fn a_changed_byte_or_a_missing_end_makes_no_frame() {
        let mut builder = sample();
        let whole = builder.seal(11, 22).to_vec();
        assert!(frame(&whole, 0, 12).is_none(), "another file's salt");
        let used = FRAME_HEADER_BYTES + u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
        for at in 0..used {
            assert!(frame(&whole[..at], 0, 11).is_none(), "cut at {at}");
            let mut torn = whole.clone();
            torn[at] ^= 0x40;
            assert!(frame(&torn, 0, 11).is_none(), "byte {at} flipped");
        }
    }

    #[test]
    fn a_later_frame_betrays_damage() {
        let mut file = vec![0; 64];
        file.extend_from_slice(sample().seal(11, 3));
        assert_eq!(later_frame(&file, 0, 11, 2), Some(64));
        assert_eq!(
            later_frame(&file, 0, 11, 3),
            None,
            "not newer than expected"
        );
        assert_eq!(later_frame(&file, 0, 10, 2), None, "another file's");
    }

    #[test]
    fn a_header_is_read_back_and_checked() {
        let header = Header {
            kind: Kind::Base,
            number: 9,
            salt: 8,
            first_sequence: 7,
            floor: 6,
        };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        bytes[33] ^= 1;
        assert_eq!(Header::decode(&bytes), None);
    }
}
