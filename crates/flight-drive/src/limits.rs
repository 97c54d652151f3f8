//! What all connections of a server may hold together: their number, and the bytes of large requests.
//!
//! Large requests are counted while they arrive, before they are decoded, and until they are carried out. What is too much is refused
//! at once as `Exhausted`; small requests always go through.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::{Stream, stream};
use http_body::Frame;
use skytether_common::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::status::to_status;

/// Connections at the same time; further ones are closed.
pub(crate) const MAX_CONNECTIONS: usize = 256;

/// Bytes of large requests that all connections may hold together.
pub(crate) const MAX_REQUEST_BYTES: usize = 256 << 20;

/// So much of each request is not counted.
const SMALL: usize = 64 << 10;

/// The connections that `listener` accepts, at most `most` at the same time.
pub(crate) fn connections(listener: TcpListener, most: usize) -> impl Stream<Item = io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(most));
    stream::unfold((listener, places), |(listener, places)| async move {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => return Some((Err(error), (listener, places))),
            };
            match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "cannot send small packets at once");
                    }
                    return Some((Ok(Connection { stream, _place: place }), (listener, places)));
                }
                Err(_) => tracing::warn!(%peer, "refused a connection: there are too many"),
            }
        }
    })
}

/// A connection and its place among all.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A service whose requests may hold so many bytes together. Each request has its [`RequestPermit`] among its extensions.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    inner: S,
    budget: Arc<Semaphore>,
}

impl<S> Bounded<S> {
    pub(crate) fn new(inner: S, bytes: usize) -> Self {
        Self { inner, budget: Arc::new(Semaphore::new(bytes)) }
    }
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Bounded<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        let held = Arc::new(RequestPermit { budget: Arc::clone(&self.budget), seen: AtomicUsize::new(0) });
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Arc::clone(&held));
        self.inner.call(http::Request::from_parts(parts, Body::new(Counted { body, held })))
    }
}

/// What one request holds of the budget; given back when the last copy goes.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    budget: Arc<Semaphore>,
    /// Bytes that came and are accounted for.
    seen: AtomicUsize,
}

impl RequestPermit {
    /// Accounts for `more` bytes, or refuses them.
    fn take(&self, more: usize) -> Result<(), Status> {
        let before = self.seen.load(Ordering::Relaxed);
        let after = before.saturating_add(more);
        let wanted = after.saturating_sub(SMALL) - before.saturating_sub(SMALL);
        let taken = u32::try_from(wanted).ok().and_then(|wanted| self.budget.try_acquire_many(wanted).ok());
        let Some(permit) = taken else {
            return Err(to_status(&Error::exhausted("large requests hold all the memory that they may: try again later, or send smaller ones")));
        };
        permit.forget();
        self.seen.store(after, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.budget.add_permits(self.seen.load(Ordering::Relaxed).saturating_sub(SMALL));
    }
}

/// A request's body on its way in.
struct Counted {
    body: Body,
    held: Arc<RequestPermit>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let came = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &came
            && let Some(data) = frame.data_ref()
            && let Err(refused) = self.held.take(data.len())
        {
            return Poll::Ready(Some(Err(refused)));
        }
        Poll::Ready(came)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use skytether_common::Kind;
    use tokio::io::AsyncReadExt;

    #[test]
    fn large_requests_share_a_budget_and_give_it_back() {
        let budget = Arc::new(Semaphore::new(1 << 20));
        let held = || RequestPermit { budget: Arc::clone(&budget), seen: AtomicUsize::new(0) };
        let (first, second) = (held(), held());
        for _ in 0..16 {
            first.take(64 << 10).unwrap();
        }
        second.take(SMALL).unwrap();
        second.take(64 << 10).unwrap();
        let refused = crate::status::from_status(&second.take(1).unwrap_err());
        assert_eq!(refused.kind(), Kind::Exhausted, "{refused}");
        held().take(SMALL).unwrap();
        drop(first);
        second.take(1 << 19).unwrap();
        drop(second);
        assert_eq!(budget.available_permits(), 1 << 20);
    }

    #[tokio::test]
    async fn a_connection_too_many_is_closed_and_the_next_place_is_given_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepted = Box::pin(connections(listener, 1));
        let _one = TcpStream::connect(address).await.unwrap();
        let place = accepted.next().await.unwrap().unwrap();
        let mut two = TcpStream::connect(address).await.unwrap();
        let mut byte = [0; 1];
        let closed = tokio::select! {
            _ = accepted.next() => panic!("a second connection got in"),
            n = two.read(&mut byte) => n,
        };
        assert_eq!(closed.unwrap_or(0), 0);
        drop(place);
        let _three = TcpStream::connect(address).await.unwrap();
        accepted.next().await.unwrap().unwrap();
    }
}
