//! Compresses big responses for clients that ask for it (KEP-156, `APIResponseCompression`).

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue, Response};

use crate::body::{Body, BodyError};

/// Smaller responses cost more to compress than to send.
const THRESHOLD: usize = 128 * 1024;

/// Bytes of input compressed before a piece of output is sent.
const PIECE: usize = 64 * 1024;

/// Whether the client takes gzip.
pub fn is_accepted(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT_ENCODING).iter().any(|value| {
        value.to_str().is_ok_and(|text| {
            text.split(',').any(|item| {
                let mut parts = item.split(';');
                let is_gzip = parts.next().is_some_and(|name| name.trim() == "gzip");
                let refused =
                    parts.any(|part| matches!(part.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
                is_gzip && !refused
            })
        })
    })
}

/// Compresses `response` when it is over the threshold. A streamed body is looked at until it has shown that much;
/// only call this for responses that end.
pub async fn compress(response: Response<Body>) -> Response<Body> {
    if response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    if let Some(bytes) = body.as_bytes() {
        if bytes.len() <= THRESHOLD {
            return Response::from_parts(parts, body);
        }
        let compressed = whole(bytes);
        mark(&mut parts.headers);
        return Response::from_parts(parts, compressed.into());
    }
    if http_body::Body::is_end_stream(&body) {
        return Response::from_parts(parts, body);
    }
    let mut stream = body.into_stream();
    let mut head: Vec<Bytes> = Vec::new();
    let mut size = 0;
    while size <= THRESHOLD {
        match stream.next().await {
            Some(Ok(piece)) => {
                size += piece.len();
                head.push(piece);
            }
            Some(Err(error)) => {
                let items = head.into_iter().map(Ok).chain([Err(error)]);
                let body = Body::stream(futures::stream::iter(items.collect::<Vec<_>>()));
                return Response::from_parts(parts, body);
            }
            None => {
                let body = join(head, size);
                return Response::from_parts(parts, body);
            }
        }
    }
    mark(&mut parts.headers);
    let all = futures::stream::iter(head.into_iter().map(Ok)).chain(stream);
    Response::from_parts(parts, pieces(all))
}

fn mark(headers: &mut HeaderMap) {
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
}

fn join(mut pieces: Vec<Bytes>, size: usize) -> Body {
    match pieces.len() {
        0 => Body::empty(),
        1 => pieces.remove(0).into(),
        _ => {
            let mut all = Vec::with_capacity(size);
            pieces.iter().for_each(|piece| all.extend_from_slice(piece));
            all.into()
        }
    }
}

fn encoder(capacity: usize) -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::with_capacity(capacity), Compression::new(1))
}

fn whole(bytes: &[u8]) -> Bytes {
    let mut encoder = encoder(bytes.len() / 8);
    encoder.write_all(bytes).expect("a Vec takes all bytes");
    encoder.finish().expect("a Vec takes all bytes").into()
}

/// A stream of compressed pieces, made as the client takes them.
fn pieces<S>(stream: S) -> Body
where
    S: futures::Stream<Item = Result<Bytes, BodyError>> + Send + 'static,
{
    let state = Some((Box::pin(stream), encoder(PIECE)));
    Body::stream(futures::stream::unfold(state, |state| async move {
        let (mut stream, mut encoder) = state?;
        let mut taken = 0;
        loop {
            match stream.next().await {
                Some(Ok(bytes)) => {
                    taken += bytes.len();
                    encoder.write_all(&bytes).expect("a Vec takes all bytes");
                    if taken >= PIECE && !encoder.get_ref().is_empty() {
                        let out = std::mem::replace(encoder.get_mut(), Vec::with_capacity(PIECE));
                        return Some((Ok(Bytes::from(out)), Some((stream, encoder))));
                    }
                }
                Some(Err(error)) => return Some((Err(error), None)),
                None => {
                    let out = encoder.finish().expect("a Vec takes all bytes");
                    return Some((Ok(Bytes::from(out)), None));
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    async fn check(body: Body, expect: &[u8], compressed: bool) {
        let response = compress(Response::new(body)).await;
        let encoding = response.headers().get(CONTENT_ENCODING).cloned();
        assert_eq!(encoding.is_some(), compressed);
        let bytes = response
            .into_body()
            .collect(usize::MAX)
            .await
            .expect("no error");
        if compressed {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..])
                .read_to_end(&mut plain)
                .expect("valid gzip");
            assert!(plain == expect);
        } else {
            assert!(bytes == expect);
        }
    }

    fn chunked(bytes: &[u8]) -> Body {
        let pieces: Vec<_> = bytes
            .chunks(1000)
            .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
            .collect();
        Body::stream(futures::stream::iter(pieces))
    }

    #[tokio::test]
    async fn only_big_responses_are_compressed_whole_or_streamed() {
        let small: Vec<u8> = (0..THRESHOLD).map(|i| (i % 251) as u8).collect();
        let big: Vec<u8> = (0..3 * THRESHOLD).map(|i| (i % 251) as u8).collect();
        check(small.clone().into(), &small, false).await;
        check(chunked(&small), &small, false).await;
        check(big.clone().into(), &big, true).await;
        check(chunked(&big), &big, true).await;
    }

    #[test]
    fn gzip_is_only_used_when_asked_for() {
        let accepts = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(text));
            is_accepted(&headers)
        };
        assert!(accepts("gzip"));
        assert!(accepts("deflate, gzip;q=0.5"));
        assert!(!accepts("deflate, br"));
        assert!(!accepts("gzip;q=0"));
        assert!(!is_accepted(&HeaderMap::new()));
    }
}
