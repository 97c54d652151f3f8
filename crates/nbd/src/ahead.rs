//! Reading ahead while a request waits for its turn, which tells whether the client is still there.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// Bytes that are read ahead of one client at most. A client with more under way is believed to be there.
const MOST: usize = 256 << 10;

/// How many bytes are read at once.
const STEP: usize = 16 << 10;

/// A client's bytes, in their order, with those that were read ahead.
#[derive(Debug)]
pub(crate) struct Ahead<R> {
    inner: R,
    bytes: BytesMut,
}

impl<R: AsyncRead + Unpin> Ahead<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, bytes: BytesMut::new() }
    }

    /// Returns when the client has gone. What it has sent before can be read still. It can be dropped at any time.
    pub(crate) async fn gone(&mut self) {
        while self.bytes.len() < MOST {
            self.bytes.reserve(STEP);
            if !matches!(self.inner.read_buf(&mut self.bytes).await, Ok(1..)) {
                return;
            }
        }
        std::future::pending().await
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Ahead<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        if self.bytes.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let len = self.bytes.len().min(buf.remaining());
        buf.put_slice(&self.bytes[..len]);
        self.bytes.advance(len);
        if self.bytes.is_empty() {
            // A quiet client holds no memory.
            self.bytes = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}
