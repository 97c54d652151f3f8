//! Channels to gRPC servers.

use std::error::Error as StdError;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use skytether_common::{Error, Kind, Result};
use tonic::body::Body;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};
use tower::Service;

use crate::endpoint::{DEFAULT_SCHEME, Endpoint, TLS_SCHEME};
use crate::tls::{Connector, Credentials, LastAlert, explain};

/// A channel whose calls carry the client's token. Calls after a broken connection reconnect by themselves.
pub type Channel = InterceptedService<Explained, Bearer>;

/// A channel whose failed calls say what TLS said of their connection, if that is why they failed.
#[derive(Debug, Clone)]
pub struct Explained {
    channel: tonic::transport::Channel,
    alert: LastAlert,
}

impl Service<http::Request<Body>> for Explained {
    type Response = http::Response<Body>;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx).map_err(|error| self.alert.explained().map_or_else(|| error.into(), Into::into))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (answer, alert) = (self.channel.call(request), self.alert.clone());
        Box::pin(async move { answer.await.map_err(|error| alert.explained().map_or_else(|| error.into(), Into::into)) })
    }
}

/// How a channel treats its connection.
#[derive(Debug, Clone)]
pub struct ChannelOptions {
    /// How long making a connection may take, with its TLS handshake.
    pub connect_timeout: Duration,
    /// How often a connection is probed, and how long an answer may take.
    pub keepalive: Option<(Duration, Duration)>,
    /// Bytes on their way that a call, and a connection, may have; the defaults of HTTP/2 otherwise.
    pub windows: Option<(u32, u32)>,
}

/// Adds the token to each call.
#[derive(Debug, Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// Connects to `at`, of scheme `grpc` or `grpc+tls`.
///
/// # Errors
/// `Invalid` for an address, credentials or a certificate that can't be right, and for a token that would go to another
/// machine unencrypted; `Unavailable` where nothing answers in time. The text is the cause alone: the caller names the
/// object.
pub async fn connect(at: &Endpoint, credentials: &Credentials, options: &ChannelOptions) -> Result<Channel> {
    if at.scheme() != DEFAULT_SCHEME && at.scheme() != TLS_SCHEME {
        return Err(Error::unsupported(format!("the scheme {:?} is not known: use grpc://host:port or grpc+tls://host:port", at.scheme())));
    }
    at.socket()?;
    let bearer = match &credentials.token {
        None => None,
        Some(token) => {
            let mut value: MetadataValue<Ascii> =
                format!("Bearer {}", token.expose()).parse().map_err(|_| Error::invalid("the token holds characters that no token has"))?;
            value.set_sensitive(true);
            Some(value)
        }
    };
    // The connector knows about TLS; the scheme here only becomes a header of HTTP/2.
    let mut endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", at.authority()))
        .map_err(|e| Error::invalid(format!("{:?} is no address: write host:port", at.authority())).with_source(e))?
        .connect_timeout(options.connect_timeout);
    if let Some((stream, connection)) = options.windows {
        endpoint = endpoint.initial_stream_window_size(Some(stream)).initial_connection_window_size(Some(connection));
    }
    if let Some((interval, timeout)) = options.keepalive {
        endpoint = endpoint.http2_keep_alive_interval(interval).keep_alive_timeout(timeout).keep_alive_while_idle(true);
    }
    let connector = Connector::new(at.clone(), Arc::new(credentials.clone()));
    let alert = connector.last_alert();
    let service = tower::service_fn(move |_| {
        let connector = connector.clone();
        async move { connector.connect().await.map(TokioIo::new) }
    });
    let late = || Error::unavailable(format!("nothing answered within {:.1} s", options.connect_timeout.as_secs_f64()));
    match tokio::time::timeout(options.connect_timeout, endpoint.connect_with_connector(service)).await {
        Ok(Ok(channel)) => Ok(InterceptedService::new(Explained { channel, alert }, Bearer(bearer))),
        Ok(Err(error)) => Err(explain(&error).unwrap_or_else(|| Error::unavailable(root(&error)))),
        Err(_) => Err(late()),
    }
}

/// The lowest text of `error`.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut at = error;
    while let Some(below) = at.source() {
        at = below;
    }
    at.to_string()
}

/// What TLS says of a call that failed, if it is why: that the server refuses this client's certificate, for example.
/// `None` where the other side is only gone.
#[must_use]
pub fn explain_status(status: &Status) -> Option<Error> {
    explain(status).filter(|error| error.kind() != Kind::Unavailable)
}
