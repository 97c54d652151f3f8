//! Connections to workers.
//!
//! A worker may have been started again since a connection was made. The channel below connects again by itself, but
//! the first call may get the failure of an attempt from before: one that was under way when its call was given up. So
//! a call whose connection fails goes over a new one, once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Ticket};
use datafusion::common::Result as DfResult;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use skytether_common::{Error, Kind, Result};
use skytether_device::ResultMessage;
use skytether_flight_drive::MAX_MESSAGE;
use skytether_flight_drive::deliveries::{DeliveryDecoder, Incoming};
use skytether_flight_drive::frames;
use skytether_flight_drive::status::{from_status, is_ours, of_connection};
use skytether_plan::error::to_datafusion;
use skytether_transport::grpc::{self as transport, Channel, ChannelOptions};
use skytether_transport::{Credentials, Endpoint};
use tonic::Streaming;
use uuid::Uuid;

use crate::stage_read::Source;
use crate::wire::ReadTicket;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// How often a connection is tried, also while calls run on it, and how long the answer may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// Bytes on their way for one reader, and for all readers of a connection. The second bound is out of reach: a reader
/// that waits must not hold up the one that it waits for.
const WINDOWS: (u32, u32) = (512 << 10, 1 << 30);

/// The connections that are kept, at most. Those in use are never closed.
const MOST_PEERS: usize = 256;

/// The connections to workers that this process has made, by address. They are made at the first call.
#[derive(Debug)]
pub struct Peers {
    credentials: Credentials,
    known: Mutex<HashMap<String, Arc<Peer>>>,
}

impl Peers {
    /// No connection yet; those to come show `credentials`.
    #[must_use]
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, known: Mutex::default() }
    }

    /// How many are kept.
    pub fn count(&self) -> usize {
        self.known.lock().len()
    }

    /// The worker at `url`.
    pub fn get(&self, url: &str) -> Arc<Peer> {
        let mut known = self.known.lock();
        if let Some(peer) = known.get(url) {
            return Arc::clone(peer);
        }
        if known.len() >= MOST_PEERS {
            known.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        let peer = Arc::new(Peer { url: url.to_owned(), credentials: self.credentials.clone(), client: tokio::sync::Mutex::default() });
        if known.len() < MOST_PEERS {
            known.insert(url.to_owned(), Arc::clone(&peer));
        }
        peer
    }
}

/// A worker, as other hosts see it.
#[derive(Debug)]
pub struct Peer {
    url: String,
    credentials: Credentials,
    client: tokio::sync::Mutex<Connection>,
}

/// A connection, and how many there were before it.
#[derive(Debug, Default)]
struct Connection {
    number: u64,
    client: Option<FlightServiceClient<Channel>>,
}

impl Peer {
    /// Its address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A connection that is not one of the first `failed`, and its number.
    async fn client(&self, failed: u64) -> Result<(u64, FlightServiceClient<Channel>)> {
        let mut connection = self.client.lock().await;
        if let Some(client) = connection.client.as_ref().filter(|_| connection.number > failed) {
            return Ok((connection.number, client.clone()));
        }
        let endpoint = self.url.parse::<Endpoint>()?;
        let options = ChannelOptions { connect_timeout: CONNECT, keepalive: Some(KEEPALIVE), windows: Some(WINDOWS) };
        let channel = transport::connect(&endpoint, &self.credentials, &options).await.map_err(|e| match e.kind() {
            Kind::Unavailable => self.silent(e.message()),
            kind => Error::new(kind, format!("cannot connect to the worker at {}: {}", self.url, e.message())),
        })?;
        let made = FlightServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
        *connection = Connection { number: connection.number + 1, client: Some(made.clone()) };
        Ok((connection.number, made))
    }

    /// Makes a call, and once more where a connection fails that was there before.
    async fn call<T, F>(&self, call: impl Fn(FlightServiceClient<Channel>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let (number, client) = self.client(0).await?;
        match call(client).await {
            Err(status) if of_connection(&status) => {
                let (_, client) = self.client(number).await?;
                call(client).await.map_err(|status| self.failed(&status))
            }
            done => done.map_err(|status| self.failed(&status)),
        }
    }

    fn silent(&self, why: &str) -> Error {
        Error::unavailable(format!("no worker answers at {} ({why}): is `skytether host worker` running there?", self.url))
    }

    fn failed(&self, status: &tonic::Status) -> Error {
        if of_connection(status) {
            return match transport::explain_status(status) {
                Some(refused) => Error::new(refused.kind(), format!("cannot connect to the worker at {}: {}", self.url, refused.message())),
                None => self.silent("the connection is lost"),
            };
        }
        let error = from_status(status);
        if is_ours(status) { error } else { error.context(format!("the worker at {}", self.url)) }
    }

    /// Asks for `action`.
    ///
    /// # Errors
    /// What the worker says; `Unavailable` where it does not answer.
    pub async fn act<T: DeserializeOwned>(&self, action: &str, asked: &impl Serialize) -> Result<T> {
        let request = Action { r#type: action.to_owned(), body: frames::encode_json(asked)? };
        let first = self.call(|mut client| {
            let request = request.clone();
            async move { client.do_action(request).await?.into_inner().message().await }
        });
        let first = first.await?;
        let first = first.ok_or_else(|| Error::unavailable(format!("the worker at {} gave no answer to {action}: try again", self.url)))?;
        frames::decode_json(&format!("the answer of the worker at {} to {action}", self.url), &first.body)
    }

    /// The rows of `source`, which a task of this worker gives.
    pub fn read(self: &Arc<Self>, query: Uuid, source: Source) -> BoxStream<'static, DfResult<RecordBatch>> {
        let state = Reading::Asked(Arc::clone(self), query, source);
        let rows = stream::unfold(state, |state| async move {
            match state.next().await {
                Ok(Some((batch, state))) => Some((Ok(batch), state)),
                Ok(None) => None,
                Err(e) => Some((Err(to_datafusion(e)), Reading::Over)),
            }
        });
        rows.boxed()
    }
}

/// How far reading from a task is.
enum Reading {
    Asked(Arc<Peer>, Uuid, Source),
    Begun { peer: Arc<Peer>, messages: Box<Streaming<arrow_flight::FlightData>>, decoder: DeliveryDecoder, rows: u64 },
    Over,
}

impl Reading {
    async fn next(self) -> Result<Option<(RecordBatch, Self)>> {
        let (peer, mut messages, mut decoder, mut rows) = match self {
            Self::Asked(peer, query, source) => {
                let ticket = Ticket { ticket: frames::encode_json(&ReadTicket::new(query, source))? };
                let messages = peer.call(|mut client| {
                    let ticket = ticket.clone();
                    async move { Ok(client.do_get(ticket).await?.into_inner()) }
                });
                let messages = Box::new(messages.await?);
                (peer, messages, DeliveryDecoder::default(), 0)
            }
            Self::Begun { peer, messages, decoder, rows } => (peer, messages, decoder, rows),
            Self::Over => return Ok(None),
        };
        let cut_off = |peer: &Peer, rows: u64| Error::unavailable(format!("the worker at {} ended after {rows} rows without saying so: try again", peer.url));
        loop {
            let message = messages.message().await.map_err(|s| peer.failed(&s))?.ok_or_else(|| cut_off(&peer, rows))?;
            match decoder.decode(message)? {
                Incoming::Message(ResultMessage::Batch { batch, .. }) => {
                    rows += batch.num_rows() as u64;
                    return Ok(Some((batch, Self::Begun { peer, messages, decoder, rows })));
                }
                Incoming::Message(ResultMessage::Done(told)) if told.rows_out == rows => return Ok(None),
                Incoming::Message(ResultMessage::Done(told)) => {
                    return Err(Error::corrupt(format!("the worker at {} gave {} rows, and {rows} came: run the query again", peer.url, told.rows_out)));
                }
                Incoming::Message(ResultMessage::EpochComplete { .. }) | Incoming::Schema(_) | Incoming::Nothing => {}
            }
        }
    }
}
