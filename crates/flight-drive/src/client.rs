//! A CSE on the other side of a connection.
//!
//! Heartbeats end here: they keep a call's idle timeout from running out, and [`ResultMessage`] has no form for them.
//! That is why this CSE has the capability `heartbeats`: a caller's limit on the time between messages would count slow
//! work as silence. A garbled answer to `apply` is `Unavailable`: the batch may be there.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightData, Ticket};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use skytether_common::{Detail, Error, Key, Kind, Result};
use skytether_device::capabilities::Capabilities;
use skytether_device::cse::{Cse, CseInfo, Storage};
use skytether_device::delivery::{DeliveryStream, ResultMessage};
use skytether_device::session::{Message, OpenReply, Session};
use skytether_device::subplan::SubPlan;
use skytether_device::verify::{Verified, Verify};
use skytether_doors::ConnectOptions;
use skytether_index::State;
use skytether_scheduler::message::Down;
use skytether_store::{Entry, Op, Usage, Version};
use skytether_transport::Endpoint;
use skytether_transport::grpc::{self as transport, Channel, ChannelOptions};
use tokio::sync::mpsc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Status, Streaming};

use crate::actions::DriveAction;
use crate::consts::{ANSWER_ALIVE, ANSWER_VALUE, DRIVE_KEY, HEARTBEAT_KEY, MAX_MESSAGE};
use crate::deliveries::{DeliveryDecoder, Incoming};
use crate::details;
use crate::frames::{self, KeyRequest, LIST_PAGE, ListRequest, RangesRequest};
use crate::sessions::{self, Came, SessionDecoder};
use crate::status::{from_status, of_connection};

/// A drive (or any CSE) behind a Flight connection. Calls after a broken connection reconnect by themselves.
#[derive(Debug, Clone)]
pub struct FlightCse {
    client: FlightServiceClient<Channel>,
    info: CseInfo,
    peer: Peer,
}

/// The name for errors, and how long to wait.
#[derive(Debug, Clone)]
struct Peer {
    /// `drive drive-2 at 127.0.0.1:5301`.
    title: String,
    /// `drive-2`, where known.
    name: Option<String>,
    /// Its id, where known: other drives refuse requests with it.
    id: Option<MetadataValue<Ascii>>,
    /// `127.0.0.1:5301`.
    address: String,
    idle: Duration,
    /// Whether the last call failed to reach the drive; shared by all calls of this connection.
    lost: Arc<AtomicBool>,
}

/// What a broken connection means to a caller that waits for an answer.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Nothing has come yet.
    Call,
    /// The answer had begun.
    Answer,
}

/// The log's target for the loss and the return of drives. Servers log both.
const DRIVES: &str = "skytether::drives";

/// Advice for the operator of the drives.
const RESTART: &str = "start it again with `skytether drive serve`";
const START: &str = "is `skytether drive serve` running there?";

/// `cause` as the error of a drive. One with which TLS fails counts as lost, so that a fleet with redundancy goes on
/// without it: its certificate may have expired, while the other drives' have not.
fn unconnected(cause: &Error, text: String) -> Error {
    match cause.detail() {
        Some(Detail::TlsRefused) => Error::unavailable(text).with_detail(Detail::TlsRefused),
        _ => Error::new(cause.kind(), text),
    }
}

impl Peer {
    /// Puts the drive's name and address in front, and removes the drive's own mention of its name.
    fn named(&self, error: &Error) -> Error {
        let text = self.name.as_ref().map_or_else(|| error.report(), |name| error.text_without(name));
        details::with(Error::new(error.kind(), format!("{}: {text}", self.title)), error.detail().cloned())
    }

    /// Notes how a call ended, and logs when that changes. An answer from another drive than the meant one proves
    /// nothing.
    fn found(&self, lost: Option<&str>) {
        match lost {
            Some(why) if !self.lost.swap(true, Ordering::Relaxed) => {
                tracing::warn!(target: DRIVES, "{} is lost: {why}", self.title);
            }
            None if self.id.is_some() && self.lost.swap(false, Ordering::Relaxed) => tracing::info!(target: DRIVES, "{} is back", self.title),
            _ => {}
        }
    }

    fn status(&self, status: &Status, stage: Stage) -> Error {
        if of_connection(status) {
            if let Some(refused) = transport::explain_status(status) {
                self.found(Some(&format!("{refused}")));
                return unconnected(&refused, format!("cannot connect to {}: {}", self.title, refused.message()));
            }
            self.found(Some(match stage {
                Stage::Call => "it does not answer",
                Stage::Answer => "the connection broke in the middle of an answer",
            }));
            // The connection's own text does not help the author of a query.
            tracing::debug!(%status, "{}", self.title);
            return Error::unavailable(match stage {
                Stage::Call => format!("{} does not answer: {RESTART}", self.title),
                Stage::Answer => format!("{} was lost in the middle of its answer: {RESTART} if it has stopped", self.title),
            });
        }
        if status.metadata().contains_key(DRIVE_KEY) {
            // The text is the id of the drive that answers.
            let (name, id) = (self.name.as_deref().unwrap_or("another"), self.id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or("?"));
            self.found(Some("another drive answers at its address"));
            let text = format!("at {} answers {}, not {name} ({id}): was it started on another directory?", self.address, status.message());
            return Error::unavailable(text);
        }
        self.found(None);
        self.named(&from_status(status))
    }

    /// What `wait` gives, or the error of a dead drive after the idle time and `more`.
    async fn patient<T>(&self, stage: Stage, more: Duration, wait: impl Future<Output = Result<T, Status>>) -> Result<T> {
        match tokio::time::timeout(self.idle + more, wait).await {
            Ok(Ok(came)) => {
                self.found(None);
                Ok(came)
            }
            Ok(Err(status)) => Err(self.status(&status, stage)),
            Err(_) => {
                let silence = format!("did not answer for {:.1} s", (self.idle + more).as_secs_f64());
                self.found(Some(&format!("it {silence}")));
                Err(Error::unavailable(format!("{}: {silence}: {RESTART} if it hangs", self.title)))
            }
        }
    }
}

impl FlightCse {
    /// Connects to `address` (`host:port`, `grpc://host:port` or `grpc+tls://host:port`) and asks for the drive's
    /// identity.
    ///
    /// # Errors
    /// Invalid for a malformed address, and for certificates that either side refuses; Unavailable where no server
    /// answers in time; Unsupported where it speaks another protocol.
    pub fn connect(address: &str, options: ConnectOptions) -> BoxFuture<'_, Result<Arc<Self>>> {
        Box::pin(async move {
            let endpoint: Endpoint = address.parse()?;
            endpoint.socket()?;
            let authority = endpoint.authority();
            let mut peer = Peer {
                title: format!("drive at {authority}"),
                name: None,
                id: None,
                address: authority.to_owned(),
                idle: options.connect_timeout,
                lost: Arc::default(),
            };
            let channel = ChannelOptions {
                connect_timeout: options.connect_timeout,
                // The idle timeout is the one limit on a drive's silence: a keepalive probe must not end before it.
                keepalive: options.keepalive.map(|interval| (interval, options.idle_timeout)),
                windows: Some((2 << 20, 8 << 20)),
            };
            let channel = transport::connect(&endpoint, &options.credentials, &channel).await.map_err(|e| match e.kind() {
                Kind::Unavailable => Error::unavailable(format!("cannot connect to {} ({}): {START}", peer.title, e.message())),
                _ => unconnected(&e, format!("cannot connect to {} at {endpoint}: {}", peer.title, e.message())),
            })?;
            let client = FlightServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
            let info = frames::decode_info(&act(&client, &peer, DriveAction::Info).await?).map_err(|e| peer.named(&e))?;
            peer.title = format!("drive {} at {authority}", info.name);
            peer.name = Some(info.name.clone());
            peer.id = Some(
                MetadataValue::try_from(info.id.to_string()).map_err(|e| Error::internal(format!("{}: its id can't be sent", peer.title)).with_source(e))?,
            );
            peer.idle = options.idle_timeout;
            Ok(Arc::new(Self { client, info, peer }))
        })
    }

    async fn act(&self, action: DriveAction) -> Result<Bytes> {
        act(&self.client, &self.peer, action).await
    }

    /// An answer of JSON.
    fn json<T: serde::de::DeserializeOwned>(&self, action: &str, bytes: &[u8]) -> Result<T> {
        frames::decode_json(&format!("the answer to `{action}`"), bytes).map_err(|e| self.peer.named(&Error::corrupt(e.report())))
    }
}

/// The versions in the answer to an `apply` of `changes` changes. Even after an invalid answer, the batch may have been
/// carried out.
fn versions(peer: &Peer, changes: usize, answer: &[u8]) -> Result<Vec<Version>> {
    match frames::decode_json::<Vec<Version>>("the answer to `apply`", answer) {
        Ok(versions) if versions.len() == changes => Ok(versions),
        Ok(versions) => Err(unknown_outcome(peer, &format!("{} versions for {changes} changes", versions.len()))),
        Err(error) => Err(unknown_outcome(peer, &error.report())),
    }
}

fn unknown_outcome(peer: &Peer, what: &str) -> Error {
    Error::unavailable(format!("{}: nobody can know whether the batch was carried out, since its answer is garbled ({what}): read its keys to see", peer.title))
}

/// Whether an introduction is that of a host: JSON that names its drives.
fn is_host(answer: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(answer).is_ok_and(|said| said.get("instance").is_some() && said.get("drives").is_some())
}

/// The error for a caller that names a host where a drive is wanted.
fn of_host(address: &str) -> Error {
    Error::invalid(format!(
        "a host listens at {address}, and no drive: name the addresses of drives here (`skytether drive serve` prints them); the host's fleet is asked with --fleet {address}, in Python with connect({address:?}); and a host that is to be one drive of another is started with --aggregator"
    ))
}

/// A request with the id of its drive and the interval of heartbeats.
fn request<T>(message: T, peer: &Peer) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(HEARTBEAT_KEY, MetadataValue::from(u64::try_from(peer.idle.as_millis() / 4).unwrap_or(u64::MAX).max(1)));
    if let Some(id) = &peer.id {
        request.metadata_mut().insert(DRIVE_KEY, id.clone());
    }
    request
}

/// Sends an action and waits for its answer.
async fn act(client: &FlightServiceClient<Channel>, peer: &Peer, action: DriveAction) -> Result<Bytes> {
    let (name, body) = (action.name(), action.encode()?);
    let (is_apply, is_info) = (matches!(action, DriveAction::Apply(_)), matches!(action, DriveAction::Info));
    // Its values are in the body now.
    drop(action);
    // The other side is silent while a long message is on its way to it: allow for 1 MiB/s.
    let upload = Duration::from_secs((body.len() >> 20) as u64);
    let mut client = client.clone();
    let mut answers = peer.patient(Stage::Call, upload, client.do_action(request(Action::new(name, body), peer))).await?.into_inner();
    loop {
        match peer.patient(Stage::Answer, upload, answers.message()).await? {
            Some(answer) => match answer.body.first() {
                Some(&ANSWER_ALIVE) => {}
                Some(&ANSWER_VALUE) => return Ok(answer.body.slice(1..)),
                _ if is_apply => return Err(unknown_outcome(peer, "it has no known form")),
                _ if is_info && is_host(&answer.body) => return Err(of_host(&peer.address)),
                _ => return Err(Error::corrupt(format!("{}: the answer to `{name}` has no known form", peer.title))),
            },
            None => return Err(Error::unavailable(format!("{}: closed the connection before it answered `{name}`", peer.title))),
        }
    }
}

impl Storage for FlightCse {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { remote: true, heartbeats: true, ..self.info.capabilities.clone() }
    }

    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move {
            let anybody = Peer { id: None, ..self.peer.clone() };
            frames::decode_info(&act(&self.client, &anybody, DriveAction::Info).await?).map_err(|e| self.peer.named(&e))
        })
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let changes = batch.len();
            versions(&self.peer, changes, &self.act(DriveAction::Apply(batch)).await?)
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let answer = self.act(DriveAction::Get(KeyRequest { key: key.clone() })).await?;
            frames::decode_value(&answer).map_err(|e| self.peer.named(&e.context(format!("cannot read {key}"))))
        })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            let answer = self.act(DriveAction::GetRanges(RangesRequest { key: key.clone(), ranges: ranges.to_vec() })).await?;
            frames::decode_ranges(&answer, ranges).map_err(|e| self.peer.named(&e.context(format!("cannot read {key}"))))
        })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.json("stat", &self.act(DriveAction::Stat(KeyRequest { key: key.clone() })).await?) })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move {
            let mut entries: Vec<Entry> = Vec::new();
            while entries.len() < limit {
                let page = (limit - entries.len()).min(LIST_PAGE);
                let after = entries.last().map(|e| &e.key).or(after).cloned();
                let request = ListRequest { prefix: prefix.to_owned(), after, limit: page };
                let came: Vec<Entry> = self.json("list", &self.act(DriveAction::List(request)).await?)?;
                let last = came.len() < page;
                entries.extend(came);
                if last {
                    break;
                }
            }
            Ok(entries)
        })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.json("usage", &self.act(DriveAction::Usage).await?) })
    }

    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move {
            let answer = self.act(DriveAction::Indexes).await.map_err(|e| match e.kind() {
                Kind::Unsupported => Error::unsupported(format!("{} builds no indexes: it is of an older version; update it", self.info().name)).with_source(e),
                _ => e,
            })?;
            self.json("indexes", &answer)
        })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move {
            let answer = self.act(DriveAction::Verify(asked)).await?;
            Verified::decode(&answer).map_err(|e| self.peer.named(&Error::corrupt(e.report())))
        })
    }
}

/// A running sub-plan, seen from above.
struct Running {
    peer: Peer,
    stream: Streaming<FlightData>,
    decoder: DeliveryDecoder,
    done: bool,
}

impl Running {
    /// The next message that says something; `None` at the end of the stream.
    async fn message(&mut self) -> Result<Option<Incoming>> {
        loop {
            let Some(data) = self.peer.patient(Stage::Answer, Duration::ZERO, self.stream.message()).await? else {
                return Ok(None);
            };
            match self.decoder.decode(data).map_err(|e| self.peer.named(&e))? {
                Incoming::Nothing => {}
                said => return Ok(Some(said)),
            }
        }
    }

    async fn next(mut self) -> Option<(Result<ResultMessage>, Self)> {
        if self.done {
            return None;
        }
        let delivery = match self.message().await {
            Ok(Some(Incoming::Message(delivery))) => Ok(delivery),
            Ok(Some(_)) => Err(Error::corrupt(format!("{}: sent a second schema", self.peer.title))),
            Ok(None) => Err(Error::unavailable(format!("{}: closed the connection before the sub-plan was done", self.peer.title))),
            Err(error) => Err(error),
        };
        self.done = !matches!(delivery, Ok(ResultMessage::Batch { .. } | ResultMessage::EpochComplete { .. }));
        Some((delivery, self))
    }
}

/// A session, seen from above.
struct Talking {
    peer: Peer,
    stream: Streaming<FlightData>,
    decoder: SessionDecoder,
    done: bool,
}

impl Talking {
    /// The next message that says something; `None` at the end of the stream.
    async fn message(&mut self) -> Result<Option<Came>> {
        loop {
            let Some(data) = self.peer.patient(Stage::Answer, Duration::ZERO, self.stream.message()).await? else {
                return Ok(None);
            };
            match self.decoder.decode(data).map_err(|e| self.peer.named(&e))? {
                Came::Nothing => {}
                said => return Ok(Some(said)),
            }
        }
    }

    /// The columns of batches, which come next.
    async fn schema(&mut self, wanted: bool) -> Result<SchemaRef> {
        match self.message().await? {
            Some(Came::Schema { lower, schema }) if lower == wanted => Ok(schema),
            _ => Err(Error::corrupt(format!("{}: did not say what columns its rows will have", self.peer.title))),
        }
    }

    async fn next(mut self) -> Option<(Result<Message>, Self)> {
        if self.done {
            return None;
        }
        let message = match self.message().await {
            Ok(Some(Came::Message(message))) => Ok(message),
            Ok(Some(_)) => Err(Error::corrupt(format!("{}: opened a session twice", self.peer.title))),
            Ok(None) => Err(Error::unavailable(format!("{}: closed the connection before the sub-plan was done", self.peer.title))),
            Err(error) => Err(error),
        };
        self.done = matches!(message, Err(_) | Ok(Message::Done(_)));
        Some((message, self))
    }
}

impl Cse for FlightCse {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let ticket = frames::encode_ticket(&plan)?;
            let mut client = self.client.clone();
            let upload = Duration::from_secs((ticket.len() >> 20) as u64);
            let stream = self.peer.patient(Stage::Call, upload, client.do_get(request(Ticket::new(ticket), &self.peer))).await?.into_inner();
            let mut running = Running { peer: self.peer.clone(), stream, decoder: DeliveryDecoder::default(), done: false };
            let schema = match running.message().await? {
                Some(Incoming::Schema(schema)) => schema,
                Some(_) => return Err(Error::corrupt(format!("{}: sent rows before their schema", self.peer.title))),
                None => return Err(Error::unavailable(format!("{}: closed the connection before it answered", self.peer.title))),
            };
            Ok(DeliveryStream { schema, messages: Box::pin(stream::unfold(running, Running::next)) })
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let first = sessions::encode_opening(&plan)?;
            let upload = Duration::from_secs((first.data_body.len() >> 20) as u64);
            let (orders, mut ordered) = mpsc::unbounded_channel::<Down>();
            let (sender, mut outgoing) = mpsc::unbounded_channel();
            // The receiver is the stream below, so that this can't fail.
            let _ = sender.send(first);
            let outgoing = stream::poll_fn(move |cx| outgoing.poll_recv(cx));
            let mut client = self.client.clone();
            let stream = self.peer.patient(Stage::Call, upload, client.do_exchange(request(outgoing, &self.peer))).await?.into_inner();
            let mut talking = Talking { peer: self.peer.clone(), stream, decoder: SessionDecoder::default(), done: false };
            let wrong = |what: &str| Error::corrupt(format!("{}: {what}", self.peer.title));
            let opening = match talking.message().await? {
                Some(Came::Opened(opening)) => opening,
                Some(Came::Whole) => {
                    let mut running = Running { peer: talking.peer, stream: talking.stream, decoder: DeliveryDecoder::default(), done: false };
                    return match running.message().await? {
                        Some(Incoming::Schema(schema)) => {
                            let messages = stream::unfold((running, sender), |(running, sender)| async move {
                                // The other side continues while the request is open.
                                let (delivery, running) = running.next().await?;
                                Some((delivery, (running, sender)))
                            });
                            Ok(OpenReply::Whole(DeliveryStream { schema, messages: Box::pin(messages) }))
                        }
                        Some(_) => Err(wrong("sent rows before their schema")),
                        None => Err(Error::unavailable(format!("{}: closed the connection before it answered", self.peer.title))),
                    };
                }
                Some(_) => return Err(wrong("sent something else before it had opened a session")),
                None => return Err(Error::unavailable(format!("{}: closed the connection before it answered", self.peer.title))),
            };
            let full = talking.schema(false).await?;
            let lower = if opening.has_lower { Some(talking.schema(true).await?) } else { None };
            // It ends with the orders, and closes the request then.
            tokio::spawn(async move {
                while let Some(down) = ordered.recv().await {
                    let sent = sessions::encode_order(&down).is_ok_and(|data| sender.send(data).is_ok());
                    if !sent {
                        break;
                    }
                }
            });
            Ok(OpenReply::Session(Session {
                schema: full,
                lower,
                slice_manifest: opening.slice_manifest,
                orders,
                messages: Box::pin(stream::unfold(talking, Talking::next)),
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    fn peer(title: &str, name: Option<&str>) -> Peer {
        Peer { title: title.into(), name: name.map(Into::into), id: None, address: "127.0.0.1:9".into(), idle: Duration::ZERO, lost: Arc::default() }
    }

    #[test]
    fn a_garbled_answer_to_apply_tells_nothing_about_the_batch() {
        let peer = peer("drive d at a:9", None);
        assert_eq!(versions(&peer, 2, b"[7, 0]").unwrap(), [7, 0]);
        for garbled in [&b""[..], b"[7", b"[7]", b"[1, 2, 3]", b"{}", b"[-1, 2]", b"\xff\xff"] {
            let error = versions(&peer, 2, garbled).unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable, "{error}");
            assert!(error.to_string().contains("drive d at a:9: nobody can know"), "{error}");
        }
    }

    #[test]
    fn the_drive_is_named_once() {
        let peer = peer("drive drive-1 at 127.0.0.1:9", Some("drive-1"));
        assert_eq!(peer.named(&Error::invalid("drive-1: no such table")).to_string(), "drive drive-1 at 127.0.0.1:9: no such table");
        assert_eq!(peer.named(&Error::invalid("drive-10: x")).to_string(), "drive drive-1 at 127.0.0.1:9: drive-10: x");
    }
}
