//! The server of all gRPC faces.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HeaderValue};
use skytether_common::{Error, Result};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::{Layer, Service};

use crate::auth::{Authenticator, Shown};
use crate::connection::Arrival;
use crate::context::ServeContext;
use crate::identity::Identity;
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::tls::Alpn;

/// How often an idle connection is probed, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Bytes of headers that a request may have.
const MAX_HEADERS: u32 = 64 << 10;

/// Bytes on their way that a call, and a connection, may have before the receiver takes them.
const WINDOWS: (u32, u32) = (1 << 20, 8 << 20);

/// The call of Flight by which clients turn a name and a password into a token.
const LOGIN: &str = "/arrow.flight.protocol.FlightService/Handshake";

/// Serves `routes` on `listener` until the context's shutdown. Running calls then have the context's grace to end.
///
/// Each call is authenticated first; services find the caller's [`Identity`] (see [`caller`]) and its
/// [`Peer`](crate::Peer) among the extensions.
///
/// # Errors
/// `Unavailable` where the port fails.
pub fn serve(listener: Listener, routes: Routes, context: ServeContext) -> BoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let url = listener.url();
        let incoming = listener.incoming(Alpn::Http2, &context);
        let shutdown = context.shutdown.clone();
        let grace = context.limits.grace;
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .http2_max_header_list_size(Some(MAX_HEADERS))
            .max_concurrent_streams(Some(context.limits.streams))
            .initial_stream_window_size(Some(WINDOWS.0))
            .initial_connection_window_size(Some(WINDOWS.1))
            .layer(Authenticated { auth: context.auth, metrics: context.metrics })
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
        let patience = async move {
            shutdown.cancelled().await;
            tracing::info!(url, "stopping");
            tokio::time::sleep(grace).await;
        };
        tokio::select! {
            ended = server => ended.map_err(|e| Error::unavailable("the port can't be served").with_source(e)),
            () = patience => Ok(()),
        }
    })
}

/// The caller of `request`.
#[must_use]
pub fn caller<T>(request: &tonic::Request<T>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_else(Identity::anonymous)
}

/// Asks the authenticator before each call.
#[derive(Debug, Clone)]
struct Authenticated {
    auth: Arc<dyn Authenticator>,
    metrics: Arc<Metrics>,
}

impl<S> Layer<S> for Authenticated {
    type Service = AuthenticatedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AuthenticatedService { inner, with: self.clone() }
    }
}

/// See [`Authenticated`].
#[derive(Debug, Clone)]
struct AuthenticatedService<S> {
    inner: S,
    with: Authenticated,
}

impl<S> Service<http::Request<Body>> for AuthenticatedService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<S::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        // The ready service takes the call; the clone waits for the next one.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let Authenticated { auth, metrics } = self.with.clone();
        Box::pin(async move {
            let arrival = request.extensions().get::<Arrival>().cloned();
            let authorization = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap_or("").to_owned());
            let shown = Shown { authorization: authorization.as_deref(), peer: arrival.as_ref().map(|arrival| &arrival.peer) };
            let admitted = match auth.authenticate(shown).await {
                Ok(admitted) => admitted,
                Err(denied) => {
                    Metrics::add(&metrics.denied);
                    tracing::debug!(peer = ?arrival.map(|arrival| arrival.peer.address), path = request.uri().path(), "refused a call: {denied}");
                    return Ok(Status::unauthenticated(denied.0).into_http());
                }
            };
            Metrics::add(&metrics.admitted);
            tracing::debug!(target: "skytether::calls", caller = %admitted.identity, path = request.uri().path());
            if let Some(arrival) = arrival {
                arrival.admitted();
                request.extensions_mut().insert(arrival.peer);
            }
            let logs_in = request.uri().path() == LOGIN;
            request.extensions_mut().insert(admitted.identity);
            let mut response = inner.call(request).await?;
            if logs_in
                && let Some(token) = admitted.token
                && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            {
                value.set_sensitive(true);
                response.headers_mut().insert(AUTHORIZATION, value);
            }
            Ok(response)
        })
    }
}
