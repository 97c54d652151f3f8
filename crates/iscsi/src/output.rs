//! Units that wait to be written: headers are copied together, data is sent from where it is.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use crate::decoder::Digests;
use crate::memory::Held;
use crate::pdu::{Header, padding};

/// Data up to this length is copied: a slice of its own would cost the system more.
const COPIED: usize = 512;

/// Slices of one write.
const SLICES: usize = 64;

/// What waits to be written.
#[derive(Debug, Default)]
pub(crate) struct Output {
    digests: Digests,
    queue: VecDeque<Bytes>,
    tail: BytesMut,
    /// All bytes that were ever put in, and written.
    put: u64,
    written: u64,
    /// What data holds, until the byte of that number is written.
    held: VecDeque<(u64, Held)>,
}

impl Output {
    /// From the next unit on.
    pub(crate) fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// Bytes that wait.
    pub(crate) fn len(&self) -> u64 {
        self.put - self.written
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.put == self.written
    }

    /// All bytes that were written.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Adds a unit. The length of its data is put into its header.
    pub(crate) fn put(&mut self, mut header: Header, data: Bytes) {
        header.set_data_length(data.len());
        let before = self.tail.len();
        self.tail.put_slice(&header.0);
        if self.digests.header {
            self.tail.put_u32_le(crc32c::crc32c(&header.0));
        }
        let (length, pad) = (data.len(), padding(data.len()));
        let crc = (self.digests.data && length > 0).then(|| crc32c::crc32c_append(crc32c::crc32c(&data), &[0; 3][..pad]));
        let mut added = self.tail.len() - before + pad;
        if length <= COPIED {
            self.tail.put_slice(&data);
        } else {
            self.queue.push_back(self.tail.split().freeze());
            self.queue.push_back(data);
        }
        added += length;
        self.tail.put_bytes(0, pad);
        if let Some(crc) = crc {
            self.tail.put_u32_le(crc);
            added += 4;
        }
        self.put += added as u64;
    }

    /// Keeps `held` until all that was put in so far is written.
    pub(crate) fn hold(&mut self, held: Option<Held>) {
        if let Some(held) = held {
            self.held.push_back((self.put, held));
        }
    }

    /// Writes until nothing waits.
    pub(crate) fn poll_write<S: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut S) -> Poll<io::Result<()>> {
        if !self.tail.is_empty() {
            self.queue.push_back(self.tail.split().freeze());
        }
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (slice, bytes) in slices.iter_mut().zip(&self.queue) {
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            let n = match Pin::new(&mut *to).poll_write_vectored(cx, &slices[..count]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
            self.advance(n);
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut n: usize) {
        self.written += n as u64;
        while let Some(front) = self.queue.front_mut() {
            if n < front.len() {
                front.advance(n);
                break;
            }
            n -= front.len();
            self.queue.pop_front();
        }
        while self.held.front().is_some_and(|(end, _)| *end <= self.written) {
            self.held.pop_front();
        }
    }
}
