//! [`Client`]: a drive that is connected to again when its connection has broken.
//!
//! What can be asked twice is asked again: reads, and writes that did not leave this machine. A write whose outcome is
//! unknown is the caller's to decide about ([`Failure::is_unknown`]).

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_common::{Detail, Error, Kind, Result};
use skytether_kinetic_protocol::{Refusal, StatusCode};
use skytether_transport::Endpoint;
use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::failure::{Failure, Outcome};
use crate::options::ClientOptions;

/// How often a request is sent at most.
const TRIES: u32 = 4;

/// The first pause before a request is sent again, or a connection made again; doubled with each failure.
const PAUSE: Duration = Duration::from_millis(25);

/// The longest pause between attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The key and value by which a client knows its drive.
type Guard = (Bytes, Bytes);

/// A drive at an address, with one connection at a time.
#[derive(Debug)]
pub struct Client {
    at: Endpoint,
    options: Arc<ClientOptions>,
    live: Mutex<Option<Arc<Connection>>>,
    /// Held by the one that connects: how often that failed, when it may be tried again, and why it failed.
    connecting: tokio::sync::Mutex<Failed>,
    guard: OnceLock<Guard>,
}

#[derive(Debug, Default)]
struct Failed {
    times: u32,
    retry: Option<Instant>,
    text: String,
}

impl Client {
    /// Connects to `at`.
    ///
    /// # Errors
    /// Those of [`Connection::open`].
    pub async fn connect(at: &Endpoint, options: ClientOptions) -> Result<Client> {
        let options = Arc::new(options);
        let first = Connection::open(at, Arc::clone(&options)).await?;
        let live = Mutex::new(Some(Arc::new(first)));
        Ok(Client { at: at.clone(), options, live, connecting: tokio::sync::Mutex::default(), guard: OnceLock::new() })
    }

    /// Where the drive is.
    #[must_use]
    pub fn at(&self) -> &Endpoint {
        &self.at
    }

    /// From now on a new connection is used only if `key` has `value` there: another drive may answer at the address.
    pub fn expect(&self, key: Bytes, value: Bytes) {
        // A second call would be a defect of ours, and the first one holds.
        let _ = self.guard.set((key, value));
    }

    /// The connection, made again if it has ended.
    ///
    /// # Errors
    /// `Unavailable`, in the form of [`Failure::Lost`]: at once where an attempt has just failed.
    pub async fn connection(&self) -> Outcome<Arc<Connection>> {
        if let Some(live) = self.usable() {
            return Ok(live);
        }
        let mut failed = self.connecting.lock().await;
        if let Some(live) = self.usable() {
            return Ok(live);
        }
        if failed.retry.is_some_and(|retry| retry > Instant::now()) {
            return Err(Failure::unsent(Kind::Unavailable, failed.text.clone()));
        }
        match self.again().await {
            Ok(live) => {
                *failed = Failed::default();
                let live = Arc::new(live);
                *self.live.lock() = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(error) => {
                let pause = PAUSE.saturating_mul(1 << failed.times.min(10)).min(LONGEST_PAUSE);
                *failed = Failed { times: failed.times + 1, retry: Some(Instant::now() + pause), text: error.report() };
                Err(Failure::unsent(Kind::Unavailable, failed.text.clone()))
            }
        }
    }

    fn usable(&self) -> Option<Arc<Connection>> {
        self.live.lock().as_ref().filter(|live| !live.is_ended()).cloned()
    }

    /// A connection to the same drive that is the caller's alone.
    ///
    /// # Errors
    /// As [`Client::connection`]; `SERVICE_BUSY` where the drive takes no further connection.
    pub async fn another(&self) -> Outcome<Connection> {
        self.again().await.map_err(|e| match e.detail() {
            Some(Detail::NotRun) => Failure::Refused(Refusal::new(StatusCode::ServiceBusy, e.report())),
            _ => Failure::unsent(e.kind(), e.report()),
        })
    }

    /// How often an idle connection is probed, if at all.
    #[must_use]
    pub fn keepalive(&self) -> Option<Duration> {
        self.options.connect.keepalive
    }

    async fn again(&self) -> Result<Connection> {
        let connection = Connection::open(&self.at, Arc::clone(&self.options)).await?;
        let Some((key, value)) = self.guard.get() else { return Ok(connection) };
        match connection.get(key.clone(), false).await {
            Ok(found) if found.value == *value => Ok(connection),
            Ok(_) => Err(Error::unavailable(format!("another drive answers at {}: was it moved?", self.at.authority()))),
            Err(failure) if failure.code() == Some(StatusCode::NotFound) => {
                Err(Error::unavailable(format!("the drive at {} is another one, or was erased: start this program again", self.at.authority())))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Asks `ask` with a connection, again where the connection is lost or the drive is busy.
    ///
    /// # Errors
    /// The last failure.
    pub async fn read<T, F, A>(&self, ask: F) -> Outcome<T>
    where
        F: Fn(Arc<Connection>) -> A,
        A: Future<Output = Outcome<T>>,
    {
        self.repeated(ask, Failure::is_lost).await
    }

    /// Asks `ask` with a connection, again where the request did not leave this machine or the drive is busy.
    ///
    /// # Errors
    /// The last failure.
    pub async fn write<T, F, A>(&self, ask: F) -> Outcome<T>
    where
        F: Fn(Arc<Connection>) -> A,
        A: Future<Output = Outcome<T>>,
    {
        self.repeated(ask, |failure| failure.is_lost() && !failure.is_unknown()).await
    }

    async fn repeated<T, F, A>(&self, ask: F, again: impl Fn(&Failure) -> bool) -> Outcome<T>
    where
        F: Fn(Arc<Connection>) -> A,
        A: Future<Output = Outcome<T>>,
    {
        let begun = Instant::now();
        let mut tried = 0;
        loop {
            let (answer, connection) = match self.connection().await {
                Ok(connection) => (ask(Arc::clone(&connection)).await, Some(connection)),
                Err(failure) => (Err(failure), None),
            };
            let failure = match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if let Some(connection) = connection.filter(|_| failure.is_lost()) {
                // A refusal for the cluster version leaves the connection open, with the wrong one.
                self.live.lock().take_if(|live| Arc::ptr_eq(live, &connection));
            }
            let busy = failure.code() == Some(StatusCode::ServiceBusy);
            tried += 1;
            if tried >= TRIES || !(busy || again(&failure)) || begun.elapsed() > self.options.connect.idle_timeout {
                return Err(failure);
            }
            sleep(PAUSE.saturating_mul(1 << tried)).await;
        }
    }
}
