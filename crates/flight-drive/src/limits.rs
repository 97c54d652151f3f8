//! The bytes of large requests that all connections of a server may hold together.
//!
//! Large requests count from their arrival, before they are decoded, until they are carried out. A request above the
//! limit is refused at once as `Exhausted`; small requests always go through.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use skytether_common::Error;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use crate::status::to_status;

/// Bytes of large requests that all connections may hold together.
pub(crate) const MAX_REQUEST_BYTES: usize = 256 << 20;

/// So much of each request is not counted.
const SMALL: usize = 64 << 10;

/// A service with a limit on the bytes of all its requests together. Each request has its [`RequestPermit`] among its
/// extensions.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    inner: S,
    budget: Arc<Semaphore>,
}

impl<S> Bounded<S> {
    pub(crate) fn new(inner: S, budget: Arc<Semaphore>) -> Self {
        Self { inner, budget }
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

/// The part of the budget that one request holds; returned when the last clone is dropped.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    budget: Arc<Semaphore>,
    /// Bytes that arrived and are accounted for.
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
    use skytether_common::Kind;

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
}
