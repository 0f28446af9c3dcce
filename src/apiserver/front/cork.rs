//! Gathers what an HTTP/2 connection writes, so that many small frames go to the peer together.
//!
//! h2 flushes after every DATA frame, and each event of a watch is a frame on one of hundreds of streams: unhindered, every
//! event costs a TLS record, a system call and a way through the network stack. Here a flush means nothing; the
//! connection's own future (`Gathering`) sends what was gathered once HTTP/2 has nothing more to say. While streams of the
//! connection may be about to say more, it lets them run first, once.
//!
//! ```text
//!  h2 ── write ──► Cork ──► buffer ──► TLS ──► socket
//!         flush ──► nothing    ▲
//!                    Gathering: after each poll of h2
//! ```
//!
//! **Invariant:** no poll of the connection ends with gathered bytes that neither the socket's readiness nor a wake-up
//! already on its way will send.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes gathered before they are sent in any case: four TLS records.
const GATHERED: usize = 64 * 1024;
/// Writes of this size or more are not worth a copy when nothing was gathered before them.
const DIRECT: usize = 8 * 1024;
/// Bytes of an empty buffer that a connection keeps.
const KEPT: usize = 1024;

/// What HTTP/2 reads from and writes to.
pub struct Cork<S>(Arc<Mutex<Gathered<S>>>);

struct Gathered<S> {
    stream: S,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were sent.
    sent: usize,
}

impl<S: AsyncWrite + Unpin> Gathered<S> {
    /// Sends everything to the stream, without flushing it.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.buffer.len() {
            let left = &self.buffer[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, left))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.sent = 0;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT);
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_gather(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= GATHERED {
            ready!(self.poll_drain(cx))?;
        }
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.buffer.is_empty() && total >= DIRECT {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        }
        if self.buffer.capacity() < total {
            // What follows is about as much: growth by doubling would copy it again and again.
            self.buffer.reserve(total.max(DIRECT));
        }
        for slice in slices {
            self.buffer.extend_from_slice(slice);
        }
        Poll::Ready(Ok(total))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cork<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cork<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().poll_gather(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().poll_gather(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// `Gathering` flushes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.0.lock();
        ready!(gathered.poll_drain(cx))?;
        Pin::new(&mut gathered.stream).poll_shutdown(cx)
    }
}

/// A connection's future, with what it gathered.
pub struct Gathering<F, S, B> {
    serving: F,
    gathered: Arc<Mutex<Gathered<S>>>,
    /// Whether other streams may be about to write.
    is_busy: B,
    /// Others were let run since the last flush.
    waited: bool,
}

/// Corks `stream` for the connection that `serve` makes of it.
pub fn gathering<F, S, B>(
    stream: S,
    is_busy: B,
    serve: impl FnOnce(Cork<S>) -> F,
) -> Gathering<F, S, B> {
    let gathered = Arc::new(Mutex::new(Gathered {
        stream,
        buffer: Vec::new(),
        sent: 0,
    }));
    Gathering {
        serving: serve(Cork(gathered.clone())),
        gathered,
        is_busy,
        waited: false,
    }
}

impl<F, S, B> Gathering<F, S, B> {
    /// The connection itself.
    pub fn serving(self: Pin<&mut Self>) -> Pin<&mut F>
    where
        F: Unpin,
    {
        Pin::new(&mut Pin::into_inner(self).serving)
    }
}

impl<F, S, B> Unpin for Gathering<F, S, B> where F: Unpin {}

impl<F, S, B> Future for Gathering<F, S, B>
where
    F: Future + Unpin,
    S: AsyncWrite + Unpin,
    B: Fn() -> bool,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = Pin::into_inner(self);
        let polled = Pin::new(&mut this.serving).poll(cx);
        let mut gathered = this.gathered.lock();
        let some = !gathered.buffer.is_empty();
        if some && polled.is_pending() && !this.waited && (this.is_busy)() {
            this.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.waited = false;
        match gathered.poll_flush(cx) {
            Poll::Ready(Err(_)) => {
                // The connection finds its stream broken by itself; what cannot be sent only keeps it from looking.
                gathered.buffer.clear();
                gathered.sent = 0;
                if polled.is_pending() && some {
                    cx.waker().wake_by_ref();
                }
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Writes `count` times and flushes after each, as h2 does, then never ends.
    async fn chatter(mut cork: Cork<tokio::io::DuplexStream>, count: usize) {
        for _ in 0..count {
            cork.write_all(&[b'x'; 100]).await.expect("gathered");
            cork.flush().await.expect("nothing to do");
        }
        std::future::pending().await
    }

    #[tokio::test]
    async fn a_lone_writers_bytes_are_sent_when_it_pauses() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut connection = gathering(ours, || false, |cork| Box::pin(chatter(cork, 3)));
        assert!((&mut connection).now_or_never().is_none());
        let mut read = [0; 300];
        let all = theirs.read_exact(&mut read).now_or_never();
        assert!(all.is_some_and(|read| read.is_ok()));
    }

    #[tokio::test]
    async fn a_busy_connection_lets_others_run_once_before_it_sends() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut connection = gathering(ours, || true, |cork| Box::pin(chatter(cork, 1)));
        assert!((&mut connection).now_or_never().is_none());
        let mut read = [0; 100];
        assert!(theirs.read_exact(&mut read).now_or_never().is_none());
        assert!((&mut connection).now_or_never().is_none());
        assert!(theirs.read_exact(&mut read).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_holds_the_writer_up_and_loses_nothing() {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let total = 5_000;
        let connection = gathering(ours, || false, |cork| Box::pin(chatter(cork, total)));
        let reading = async {
            let mut read = vec![0; total * 100];
            theirs.read_exact(&mut read).await.expect("all of it");
            read.iter().all(|byte| *byte == b'x')
        };
        tokio::select! {
            () = connection => unreachable!("it never ends"),
            whole = reading => assert!(whole),
        }
    }
}
