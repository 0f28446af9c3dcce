//! SPDY/3.1 frames, as far as one end of a kubelet's stream needs them.
//!
//! ```text
//! control: 1 | version 3 (15 bits) | type (16) | flags (8) | length (24) | payload
//! data:    0 | stream id (31 bits)             | flags (8) | length (24) | payload
//! ```
//! Owns the byte format only; what the streams mean is `remote`'s. Header blocks that are sent are a zlib stream with
//! SPDY's preset dictionary made of stored blocks, which takes neither a compressor nor the dictionary itself. Those
//! that are received are skipped: the answers to streams one has opened say nothing in theirs.
//!
//! Kubelets (that is, moby's spdystream) neither send nor heed WINDOW_UPDATE, so TCP is what holds back a sender; the
//! frames are read past.
//!
//! **Invariant:** a reader holds at most `CHUNK_BYTES` of a peer's data, whatever lengths the peer announces.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Longer data frames are handed on in pieces.
pub const CHUNK_BYTES: usize = 32 * 1024;
/// Longest control frame taken; a header block of an exec stream has some dozen bytes.
const CONTROL_BYTES: usize = 64 * 1024;
/// Longest payload the 24 bits of a length can say.
const FRAME_BYTES: usize = (1 << 24) - 1;
const HEADER_BYTES: usize = 8;

const VERSION: u16 = 3;
const CONTROL_BIT: u16 = 0x8000;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const FLAG_FIN: u8 = 1;

/// zlib's header for a stream with a preset dictionary, and the Adler-32 of SPDY/3's dictionary.
const ZLIB_START: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
/// An empty stored block: zlib's sync flush, at which a decoder hands out what it has.
const ZLIB_FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// A frame that has come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The peer opens a stream, which kubelets never do.
    Opened { stream: u32 },
    /// The peer has taken a stream, and ends its side at once if `fin`.
    Accepted { stream: u32, fin: bool },
    /// The peer gives up a stream.
    Reset { stream: u32, code: u32 },
    /// To be sent back as it is, unless it is an answer to one's own.
    Ping { id: u32 },
    /// The peer takes no new streams.
    GoAway,
    /// More headers of a stream, which ends its side if `fin`.
    Headers { stream: u32, fin: bool },
    /// Data of a stream; `fin` with its last piece.
    Data { stream: u32, fin: bool, data: Bytes },
    /// SETTINGS, WINDOW_UPDATE and anything else there is no use for.
    Other,
}

/// Reads frames off a connection.
pub struct Reader<R> {
    source: R,
    buffer: BytesMut,
    /// A data frame whose payload is not read to its end yet.
    open: Option<OpenData>,
}

struct OpenData {
    stream: u32,
    fin: bool,
    left: usize,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads from `source`, whose next byte is a frame's first.
    pub fn new(source: R) -> Self {
        Self {
            source,
            buffer: BytesMut::new(),
            open: None,
        }
    }

    /// The next frame or piece of one; None when the connection has ended between two frames. Cancel-safe.
    ///
    /// # Errors
    /// The connection's, `InvalidData` for what is no SPDY/3, and `UnexpectedEof` within a frame.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            self.buffer.reserve(CHUNK_BYTES / 2);
            if self.source.read_buf(&mut self.buffer).await? == 0 {
                let clean = self.buffer.is_empty() && self.open.is_none();
                return if clean {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    fn take(&mut self) -> io::Result<Option<Frame>> {
        if let Some(open) = &mut self.open {
            if self.buffer.is_empty() {
                return Ok(None);
            }
            let data = self
                .buffer
                .split_to(open.left.min(self.buffer.len()).min(CHUNK_BYTES))
                .freeze();
            open.left -= data.len();
            let (stream, fin) = (open.stream, open.fin && open.left == 0);
            if open.left == 0 {
                self.open = None;
            }
            return Ok(Some(Frame::Data { stream, fin, data }));
        }
        let Some(mut header) = self.buffer.get(..HEADER_BYTES) else {
            return Ok(None);
        };
        let word = header.get_u32();
        let flags_and_length = header.get_u32();
        let fin = (flags_and_length >> 24) as u8 & FLAG_FIN != 0;
        let length = flags_and_length as usize & FRAME_BYTES;
        if word >> 16 & u32::from(CONTROL_BIT) == 0 {
            self.buffer.advance(HEADER_BYTES);
            if length == 0 {
                let data = Bytes::new();
                let stream = word;
                return Ok(Some(Frame::Data { stream, fin, data }));
            }
            self.open = Some(OpenData {
                stream: word,
                fin,
                left: length,
            });
            return self.take();
        }
        if (word >> 16) as u16 & !CONTROL_BIT != VERSION || length > CONTROL_BYTES {
            return Err(invalid("not a SPDY/3 control frame"));
        }
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let payload = self.buffer.split_to(length);
        control(word as u16, fin, &payload).map(Some)
    }
}

fn control(kind: u16, fin: bool, mut payload: &[u8]) -> io::Result<Frame> {
    let mut word = || {
        payload
            .try_get_u32()
            .map_err(|_| invalid("control frame too short"))
    };
    let id = |word: u32| word & 0x7fff_ffff;
    Ok(match kind {
        SYN_STREAM => Frame::Opened {
            stream: id(word()?),
        },
        SYN_REPLY => Frame::Accepted {
            stream: id(word()?),
            fin,
        },
        HEADERS => Frame::Headers {
            stream: id(word()?),
            fin,
        },
        RST_STREAM => Frame::Reset {
            stream: id(word()?),
            code: word()?,
        },
        PING => Frame::Ping { id: word()? },
        GOAWAY => Frame::GoAway,
        _ => Frame::Other,
    })
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Makes the frames to send. Holds the state of the header compression: one per connection.
#[derive(Debug, Default)]
pub struct Writer {
    started: bool,
}

impl Writer {
    /// A frame that opens `stream` (odd and rising, for the end that connected) with one header.
    pub fn open(&mut self, stream: u32, name: &str, value: &str) -> Bytes {
        let mut headers = Vec::new();
        headers.extend(1u32.to_be_bytes());
        for text in [name, value] {
            // Names and values here are a few letters of our own.
            headers.extend((text.len() as u32).to_be_bytes());
            headers.extend(text.as_bytes());
        }
        let mut payload = Vec::new();
        payload.extend(stream.to_be_bytes());
        payload.extend([0; 4]); // no associated stream
        payload.extend([0; 2]); // highest priority, no credential slot
        if !std::mem::replace(&mut self.started, true) {
            payload.extend(ZLIB_START);
        }
        let length = headers.len() as u16;
        payload.push(0);
        payload.extend(length.to_le_bytes());
        payload.extend((!length).to_le_bytes());
        payload.extend(headers);
        payload.extend(ZLIB_FLUSH);
        control_frame(SYN_STREAM, &payload)
    }
}

/// A frame that answers a ping.
pub fn pong(id: u32) -> Bytes {
    control_frame(PING, &id.to_be_bytes())
}

/// The frame that goes before `length` bytes of data (under 16 MiB), and ends this side of the stream if `fin`.
pub fn data_header(stream: u32, fin: bool, length: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(length <= FRAME_BYTES);
    let flags = if fin { FLAG_FIN } else { 0 };
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&stream.to_be_bytes());
    header[4..].copy_from_slice(&(u32::from(flags) << 24 | length as u32).to_be_bytes());
    header
}

fn control_frame(kind: u16, payload: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
    frame.extend((CONTROL_BIT | VERSION).to_be_bytes());
    frame.extend(kind.to_be_bytes());
    frame.extend((payload.len() as u32).to_be_bytes()); // no flags in the first byte
    frame.extend(payload);
    frame.into()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::{Decompress, FlushDecompress};

    /// A peer's decoder of header blocks: a decoder without the dictionary does, for stored blocks refer to nothing.
    pub(crate) struct HeaderDecoder(Decompress, bool);

    impl HeaderDecoder {
        pub(crate) fn new() -> Self {
            Self(Decompress::new(false), false)
        }

        pub(crate) fn read(&mut self, mut block: &[u8]) -> (String, String) {
            if !std::mem::replace(&mut self.1, true) {
                assert_eq!(block[..6], ZLIB_START);
                block = &block[6..];
            }
            let mut out = vec![0; 1024];
            let before = self.0.total_out();
            self.0
                .decompress(block, &mut out, FlushDecompress::Sync)
                .unwrap();
            let mut text = &out[..(self.0.total_out() - before) as usize];
            assert_eq!(text.get_u32(), 1);
            let mut next = || {
                let length = text.get_u32() as usize;
                let (word, rest) = text.split_at(length);
                text = rest;
                String::from_utf8(word.to_vec()).unwrap()
            };
            (next(), next())
        }
    }

    async fn read_all(bytes: &[u8]) -> (Vec<Frame>, Option<io::ErrorKind>) {
        let mut reader = Reader::new(bytes);
        let mut frames = Vec::new();
        loop {
            match reader.next().await {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, None),
                Err(error) => return (frames, Some(error.kind())),
            }
        }
    }

    #[test]
    fn header_blocks_are_one_zlib_stream() {
        let mut writer = Writer::default();
        let mut decoder = HeaderDecoder::new();
        for value in ["error", "stdin", "stdout"] {
            let frame = writer.open(1, "streamtype", value);
            assert_eq!(frame[..4], [0x80, 3, 0, 1]);
            assert_eq!(
                decoder.read(&frame[18..]),
                ("streamtype".into(), value.into())
            );
        }
    }

    #[tokio::test]
    async fn frames_are_read_as_they_were_sent() {
        let mut bytes = Vec::new();
        bytes.extend([0x80, 3, 0, 2, 1, 0, 0, 4, 0, 0, 0, 5]);
        bytes.extend([0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 2]);
        bytes.extend(pong(7));
        bytes.extend([0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 2]);
        bytes.extend([0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 2]);
        bytes.extend(data_header(5, false, 3));
        bytes.extend(b"abc");
        bytes.extend(data_header(5, true, 0));
        let data = |fin, text: &'static str| Frame::Data {
            stream: 5,
            fin,
            data: text.into(),
        };
        let want = vec![
            Frame::Accepted {
                stream: 5,
                fin: true,
            },
            Frame::Reset { stream: 5, code: 2 },
            Frame::Ping { id: 7 },
            Frame::Other,
            Frame::GoAway,
            data(false, "abc"),
            data(true, ""),
        ];
        assert_eq!(read_all(&bytes).await, (want, None));
    }

    #[tokio::test]
    async fn a_long_data_frame_comes_in_pieces_and_ends_with_the_last() {
        let length = 5 * CHUNK_BYTES + 1;
        let mut bytes = data_header(9, true, length).to_vec();
        bytes.resize(HEADER_BYTES + length, 7);
        let (frames, error) = read_all(&bytes).await;
        assert_eq!(error, None);
        let (mut total, last) = (0, frames.len() - 1);
        for (i, frame) in frames.iter().enumerate() {
            let Frame::Data {
                stream: 9,
                fin,
                data,
            } = frame
            else {
                panic!("{frame:?}")
            };
            assert!(!data.is_empty() && data.len() <= CHUNK_BYTES);
            assert_eq!(*fin, i == last);
            total += data.len();
        }
        assert_eq!(total, length);
    }

    #[tokio::test]
    async fn what_is_not_spdy_is_an_error() {
        for (bytes, kind) in [
            (
                &b"HTTP/1.1 200 OK\r\n\r\n"[..],
                io::ErrorKind::UnexpectedEof,
            ),
            (&[0x80, 2, 0, 1, 0, 0, 0, 0], io::ErrorKind::InvalidData),
            (&[0x80, 3, 0, 1, 0, 1, 0, 1], io::ErrorKind::InvalidData),
            (&[0x80, 3, 0, 6, 0, 0, 0, 1, 0], io::ErrorKind::InvalidData),
            (
                &[0x80, 3, 0, 6, 0, 0, 0, 4, 0],
                io::ErrorKind::UnexpectedEof,
            ),
            (&[0x80, 3], io::ErrorKind::UnexpectedEof),
        ] {
            assert_eq!(read_all(bytes).await.1, Some(kind), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn noise_neither_panics_nor_grows() {
        let mut state = 1u64;
        for _ in 0..3000 {
            let noise: Vec<u8> = (0..64)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    // Mostly small numbers, so that some lengths and types make sense.
                    if state >> 62 == 0 {
                        (state >> 40) as u8
                    } else {
                        (state >> 40) as u8 & 3
                    }
                })
                .collect();
            let mut bytes = vec![0x80, 3, 0];
            bytes.extend(noise);
            let mut reader = Reader::new(bytes.as_slice());
            while let Ok(Some(_)) = reader.next().await {}
            assert!(reader.buffer.capacity() <= 2 * CONTROL_BYTES);
        }
    }
}
