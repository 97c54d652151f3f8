//! An accepted connection: plain or TLS, with its place among all.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use crate::identity::Identity;
use crate::metrics::Metrics;

/// The other side of a connection. gRPC doors find it among the extensions of each request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The caller's identity by its verified certificate, if it has shown one.
    pub certificate: Option<Identity>,
}

impl Peer {
    /// Whether the caller is a process of this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

/// A connection that has passed the limits and, where the door has TLS, the handshake.
#[derive(Debug)]
pub struct Connection {
    io: Io,
    peer: Peer,
    called: Arc<AtomicBool>,
    /// Ready where the first call comes too late. `None` after that call, and where the protocol has no calls.
    first_call: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
    // After the place, so that a connection that counts as closed has given it back.
    closed: Closed,
}

/// What gRPC doors learn of a connection with each request.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub(crate) peer: Peer,
    called: Arc<AtomicBool>,
}

impl Arrival {
    /// Notes an admitted call: from now on the connection may be idle.
    pub(crate) fn admitted(&self) {
        self.called.store(true, Ordering::Relaxed);
    }
}

/// Counts the end of a connection.
#[derive(Debug)]
struct Closed(Arc<Metrics>);

#[derive(Debug)]
pub(crate) enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    /// With `first_call`, it fails where no call is admitted for that long.
    pub(crate) fn new(io: Io, peer: Peer, place: OwnedSemaphorePermit, metrics: Arc<Metrics>, first_call: Option<Duration>) -> Self {
        Metrics::add(&metrics.accepted);
        let first_call = first_call.map(|time| Box::pin(tokio::time::sleep(time)));
        Self { io, peer, called: Arc::default(), first_call, _place: place, closed: Closed(metrics) }
    }

    /// Fails where the first call has not come in time. Each way to use the connection asks this, as a client may make
    /// any of them wait.
    fn check_first_call(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(deadline) = &mut self.first_call else { return Ok(()) };
        if self.called.load(Ordering::Relaxed) {
            self.first_call = None;
            return Ok(());
        }
        if deadline.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        // What fails once is not used again, but a closing that is tried must not poll the deadline after its end.
        self.first_call = None;
        Metrics::add(&self.closed.0.failed_greetings);
        tracing::warn!(peer = %self.peer.address, "ended a connection: it made no admitted call in time");
        Err(io::Error::new(io::ErrorKind::TimedOut, "the first call did not come in time"))
    }

    /// The caller at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        Metrics::add(&self.0.closed);
    }
}

impl tonic::transport::server::Connected for Connection {
    type ConnectInfo = Arrival;

    fn connect_info(&self) -> Arrival {
        Arrival { peer: self.peer.clone(), called: Arc::clone(&self.called) }
    }
}

/// Calls a method of whichever stream it is.
macro_rules! either {
    ($self:ident, $io:ident => $call:expr) => {
        match &mut $self.get_mut().io {
            Io::Plain(stream) => {
                let $io = Pin::new(stream);
                $call
            }
            Io::Tls(stream) => {
                let $io = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_first_call(cx)?;
        either!(self, io => io.poll_read(cx, buf))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_first_call(cx)?;
        either!(self, io => io.poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_first_call(cx)?;
        either!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, io => io.poll_shutdown(cx))
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.check_first_call(cx)?;
        either!(self, io => io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
