//! Binding and accepting.
//!
//! Between the accept and the door lies the greeting: the first byte, and the TLS handshake where the door has TLS.
//! Greetings run on tasks of their own, bounded in number and time, so that a slow client delays no other.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use skytether_common::{Error, Result};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::connection::{Connection, Io, Peer};
use crate::context::{Limits, ServeContext};
use crate::endpoint::{DEFAULT_SCHEME, Endpoint};
use crate::metrics::Metrics;
use crate::security::Security;
use crate::tls::{Alpn, ServerTls};

/// The first byte of a TLS connection: the type of the record with the client's hello (RFC 8446, 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// How long a refused client may take to read why.
const LINGER: Duration = Duration::from_secs(1);

/// How long accepting rests after the system refused a connection: it is short of files then.
const REST: Duration = Duration::from_millis(50);

/// How long a connection is silent before the system probes its client.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// How old a greeting is before a further one may end it. A burst of honest clients finishes sooner: each needs a few
/// round trips and milliseconds of a processor.
const YOUNG: Duration = Duration::from_millis(500);

/// A bound port.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    endpoint: Endpoint,
    security: Security,
    /// Whether a client without TLS waits for the server's first byte.
    speaks_first: bool,
}

impl Listener {
    /// Binds `at`. Port 0 picks a free one.
    ///
    /// # Errors
    /// `Unavailable` where the port is taken. `Invalid` where `at` is no `host:port`, and where a door with TLS has no
    /// certificate. `Invalid` too where `context` does not allow a door without TLS: beyond loopback, or next to doors
    /// that demand certificates of their clients.
    pub async fn bind(at: &Endpoint, security: Security, context: &ServeContext) -> Result<Self> {
        let (host, port) = at.socket()?;
        if security == Security::Tls && context.tls.is_none() {
            return Err(Error::invalid(format!("{at}: TLS needs a certificate: give --tls-cert and --tls-key (`skytether pki init DIR` makes them)")));
        }
        if security == Security::Plain && context.admits_by_certificate_alone() && !context.insecure {
            return Err(Error::invalid(format!(
                "{at}: refused to listen without TLS, as --tls-client-ca admits only clients with a certificate: \
                 use an address with TLS, such as grpc+tls://{}, give --require-auth, or allow it with --insecure",
                at.authority()
            )));
        }
        let failed = |e: io::Error| {
            let hint = if e.kind() == io::ErrorKind::AddrInUse { " (another process does: choose another port)" } else { "" };
            Error::unavailable(format!("cannot listen on {}{hint}", at.authority())).with_source(e)
        };
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect();
        let reachable = addresses.iter().any(|address| !address.ip().to_canonical().is_loopback());
        if security == Security::Plain && reachable && !context.insecure {
            return Err(Error::invalid(format!(
                "{at}: refused to listen beyond loopback without TLS: give --tls-cert and --tls-key and an address with TLS, such as grpc+tls://{} \
                 (`skytether pki init DIR` makes certificates), or allow it with --insecure",
                at.authority()
            )));
        }
        let tcp = TcpListener::bind(addresses.as_slice()).await.map_err(failed)?;
        let bound = tcp.local_addr().map_err(|e| Error::unavailable("cannot learn the address that was bound").with_source(e))?;
        Ok(Self { endpoint: Endpoint::new(at.scheme(), bound.to_string()), tcp, security, speaks_first: false })
    }

    /// A listener without TLS that the caller has bound, wherever that is: for tests, and for programs with rules of
    /// their own.
    ///
    /// # Errors
    /// `Unavailable` where the system does not say its address.
    pub fn plain(tcp: TcpListener) -> Result<Self> {
        let bound = tcp.local_addr().map_err(|e| Error::unavailable("cannot learn the address that was bound").with_source(e))?;
        Ok(Self { endpoint: Endpoint::new(DEFAULT_SCHEME, bound.to_string()), tcp, security: Security::Plain, speaks_first: false })
    }

    /// For a protocol in which the server speaks first: a connection without TLS is handed over at once, before the
    /// client has sent a byte. A client that speaks TLS to a port without it is then not told apart.
    #[must_use]
    pub fn speaking_first(self) -> Self {
        Self { speaks_first: true, ..self }
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The URL that clients connect to: `grpc+tls://127.0.0.1:5300`.
    #[must_use]
    pub fn url(&self) -> String {
        self.endpoint.to_string()
    }

    /// Whether it speaks TLS.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// The connections that come, within the limits of `context`. Accepting stops when this is dropped.
    ///
    /// With [`Alpn::Http2`], a connection without an admitted call in [`Limits::first_call_time`] ends.
    #[must_use]
    pub fn incoming(self, alpn: Alpn, context: &ServeContext) -> Incoming {
        // A connection waits here for a door that is slow to take it: few, because they are in the limit already.
        let (ready, receive) = mpsc::channel(16);
        let tls = match self.security {
            Security::Plain => None,
            Security::Tls => context.tls.clone(),
        };
        let (metrics, time) = (Arc::clone(&context.metrics), context.limits.greeting_time);
        let first_call = (alpn == Alpn::Http2).then_some(context.limits.first_call_time);
        let greeter = Arc::new(Greeter { tls, alpn, metrics, time, first_call, url: self.url(), speaks_first: self.speaks_first, ready });
        let accepting = tokio::spawn(accept(self.tcp, greeter, context.limits.clone()));
        Incoming { ready: receive, _accepting: AbortOnDropHandle::new(accepting) }
    }
}

/// A stream of connections: see [`Listener::incoming`]. It ends with no error.
#[derive(Debug)]
pub struct Incoming {
    ready: mpsc::Receiver<Connection>,
    _accepting: AbortOnDropHandle<()>,
}

impl Incoming {
    /// The next connection.
    pub async fn next_connection(&mut self) -> Option<Connection> {
        self.ready.recv().await
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().ready.poll_recv(cx).map(|came| came.map(Ok))
    }
}

/// What greets the connections of one listener.
#[derive(Debug)]
struct Greeter {
    tls: Option<Arc<ServerTls>>,
    alpn: Alpn,
    metrics: Arc<Metrics>,
    time: Duration,
    /// How long a connection may take until its first call, where the protocol has calls.
    first_call: Option<Duration>,
    url: String,
    speaks_first: bool,
    ready: mpsc::Sender<Connection>,
}

async fn accept(tcp: TcpListener, greeter: Arc<Greeter>, limits: Limits) {
    let places = Arc::new(Semaphore::new(limits.connections));
    // Connections in their greeting end with this function.
    let mut greeting = JoinSet::new();
    let mut order: VecDeque<(Instant, AbortHandle)> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = tcp.accept() => accepted,
            Some(_) = greeting.join_next() => continue,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, url = greeter.url, "cannot accept a connection");
                tokio::time::sleep(REST).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            Metrics::add(&greeter.metrics.over_limit);
            tracing::warn!(peer = %address, "refused a connection: there are too many");
            continue;
        };
        make_room(&mut greeting, &mut order, limits.greetings, &greeter).await;
        let greeter = Arc::clone(&greeter);
        order.push_back((Instant::now(), greeting.spawn(async move { greeter.greet(stream, address, place).await })));
    }
}

/// Waits until there are less than `limit` greetings. Where they do not end by themselves, the oldest is ended, but not
/// before it is as old as [`YOUNG`].
async fn make_room(greeting: &mut JoinSet<()>, order: &mut VecDeque<(Instant, AbortHandle)>, limit: usize, greeter: &Greeter) {
    order.retain(|(_, handle)| !handle.is_finished());
    while order.len() >= limit
        && let Some((began, oldest)) = order.front()
    {
        // Greetings whose bytes are here only wait for their turn.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            Some(_) = greeting.join_next() => {}
            () = tokio::time::sleep_until(*began + YOUNG) => {
                tracing::debug!(url = greeter.url, "ended the oldest unfinished handshake: there are too many");
                Metrics::add(&greeter.metrics.failed_greetings);
                oldest.abort();
                order.pop_front();
            }
        }
        order.retain(|(_, handle)| !handle.is_finished());
    }
}

impl Greeter {
    async fn greet(&self, stream: TcpStream, address: SocketAddr, place: OwnedSemaphorePermit) {
        match tokio::time::timeout(self.time, self.connect(stream, address)).await {
            // It left without a word, as a probe does.
            Ok(Ok(None)) => {}
            Ok(Ok(Some((io, peer)))) => {
                // It fails where the door is closing.
                let _ = self.ready.send(Connection::new(io, peer, place, Arc::clone(&self.metrics), self.first_call)).await;
            }
            Ok(Err(error)) => {
                Metrics::add(&self.metrics.failed_greetings);
                tracing::warn!(peer = %address, url = self.url, "refused a connection: {error}");
            }
            Err(_) => {
                Metrics::add(&self.metrics.failed_greetings);
                tracing::warn!(peer = %address, url = self.url, "refused a connection: it said nothing, or did not finish its TLS handshake, in time");
            }
        }
    }

    async fn connect(&self, mut stream: TcpStream, address: SocketAddr) -> io::Result<Option<(Io, Peer)>> {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot send small packets at once");
        }
        // A client whose machine is gone gives its place back after some minutes.
        if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE)) {
            tracing::debug!(%error, "cannot probe silent clients");
        }
        if self.speaks_first && self.tls.is_none() {
            return Ok(Some((Io::Plain(stream), Peer { address, tls: false, certificate: None })));
        }
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Ok(None);
        }
        let speaks_tls = first[0] == TLS_HANDSHAKE;
        let Some(tls) = &self.tls else {
            if speaks_tls {
                return Err(io::Error::other("a client spoke TLS, which this port does not (use an address with TLS, such as grpc+tls://, with --listen)"));
            }
            return Ok(Some((Io::Plain(stream), Peer { address, tls: false, certificate: None })));
        };
        if !speaks_tls {
            return Err(io::Error::other("a client spoke no TLS, which this port demands (its address must begin with grpc+tls://)"));
        }
        match tls.accept(stream, self.alpn).await {
            Ok((stream, certificate)) => Ok(Some((Io::Tls(Box::new(stream)), Peer { address, tls: true, certificate }))),
            Err((error, refused)) => {
                stream = refused;
                // Closing at once would have the system drop the alert that says why, as the client has sent more
                // meanwhile.
                let _ = tokio::time::timeout(LINGER, async {
                    stream.shutdown().await?;
                    let mut rest = [0; 4096];
                    while stream.read(&mut rest).await? > 0 {}
                    Ok::<_, io::Error>(())
                })
                .await;
                Err(error)
            }
        }
    }
}
