//! Any CSE as a Flight service.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult,
    Ticket,
};
use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, Stream, StreamExt};
use parking_lot::Mutex;
use skytether_common::{Context, Error, Result};
use skytether_device::annotation::Annotation;
use skytether_device::cse::{Cse, CseInfo};
use skytether_device::delivery::ResultMessage;
use skytether_device::negotiate::{open_or_execute, verify_or_read};
use skytether_device::session::{Message, OpenReply, Session};
use skytether_emulation::{Direction, Link};
use skytether_scheduler::message::Down;
use skytether_transport::{Listener, ServeContext, grpc as transport};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tonic::metadata::MetadataValue;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::actions::{DriveAction, unknown};
use crate::consts::{ANSWER_ALIVE, ANSWER_VALUE, DEFAULT_HEARTBEAT, DRIVE_KEY, HEARTBEAT_KEY, MAX_MESSAGE};
use crate::deliveries::DeliveryEncoder;
use crate::frames::{self, KeyRequest, LIST_PAGE, ListRequest, RangesRequest};
use crate::limits::{self, Bounded, RequestPermit};
use crate::sessions::{self, SessionEncoder};
use crate::status::to_status;

/// How long the first message of a session may take to come.
const FIRST: Duration = Duration::from_secs(30);

/// Serves `cse` on `listener`, without TLS and for all callers, until `shutdown` is ready. Calls that run
/// then end with `Unavailable`.
///
/// # Errors
/// As [`serve_on`].
pub fn serve(cse: Arc<dyn Cse>, listener: TcpListener, shutdown: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, Result<()>> {
    serve_until(cse, listener, Box::pin(shutdown))
}

/// [`serve`] with a future of one type, so that the server is compiled here, and not by each of its callers.
fn serve_until(cse: Arc<dyn Cse>, listener: TcpListener, shutdown: BoxFuture<'static, ()>) -> BoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let context = ServeContext::default();
        let stop = context.shutdown.clone();
        let stopping = async move {
            shutdown.await;
            stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = serve_on(cse, Listener::plain(listener)?, context, &SharedLimits::default()) => ended,
            () = stopping => Ok(()),
        }
    })
}

/// What the ports of each CSE share: its emulated link, and the bytes of its large requests. With one per port, a
/// device with two ports would have twice its link.
#[derive(Debug, Clone, Default)]
pub struct SharedLimits(Arc<Mutex<HashMap<Uuid, PerCse>>>);

#[derive(Debug, Clone)]
struct PerCse {
    link: Option<Arc<Link>>,
    requests: Arc<Semaphore>,
}

impl SharedLimits {
    fn of(&self, cse: &dyn Cse) -> PerCse {
        let new =
            || PerCse { link: cse.info().profile.map(|profile| Arc::new(Link::new(&profile))), requests: Arc::new(Semaphore::new(limits::MAX_REQUEST_BYTES)) };
        self.0.lock().entry(cse.info().id).or_insert_with(new).clone()
    }
}

/// Serves `cse` on `listener` until the context's shutdown. Calls that run then end with `Unavailable`.
///
/// Whatever bytes come in, they end in an error status or a closed connection, and the server goes on. Large requests
/// hold at most 256 MiB together, on all ports with the same `shared`, and what is above that
/// is refused as `Exhausted`.
///
/// # Errors
/// Unavailable where the listener fails.
pub fn serve_on(cse: Arc<dyn Cse>, listener: Listener, context: ServeContext, shared: &SharedLimits) -> BoxFuture<'static, Result<()>> {
    let PerCse { link, requests } = shared.of(cse.as_ref());
    Box::pin(async move {
        let name = cse.info().name.clone();
        let (stop, stopping) = watch::channel(false);
        let routes = Routes::new(Bounded::new(service_over(cse, stopping, link), requests));
        let shutdown = context.shutdown.clone();
        let telling = async move {
            shutdown.cancelled().await;
            // It fails where no call runs and nothing waits.
            let _ = stop.send(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = transport::serve(listener, routes, context) => ended.context(|| format!("{name} cannot serve its port")),
            () = telling => Ok(()),
        }
    })
}

/// The Flight service over `cse`, to be added to a server. When `stopping` becomes true, running
/// calls end with `Unavailable`.
#[must_use]
pub fn service(cse: Arc<dyn Cse>, stopping: watch::Receiver<bool>) -> FlightServiceServer<CseService> {
    let link = cse.info().profile.map(|profile| Arc::new(Link::new(&profile)));
    service_over(cse, stopping, link)
}

fn service_over(cse: Arc<dyn Cse>, stopping: watch::Receiver<bool>, link: Option<Arc<Link>>) -> FlightServiceServer<CseService> {
    FlightServiceServer::new(CseService { cse, stopping, link }).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE)
}

/// See [`service`].
#[derive(Debug, Clone)]
pub struct CseService {
    cse: Arc<dyn Cse>,
    stopping: watch::Receiver<bool>,
    /// The emulated link that carries all messages, if the CSE emulates a device.
    link: Option<Arc<Link>>,
}

/// The interval that the client asks for, within bounds.
fn heartbeat<T>(request: &Request<T>) -> Duration {
    request
        .metadata()
        .get(HEARTBEAT_KEY)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<u64>().ok())
        .map_or(DEFAULT_HEARTBEAT, |ms| Duration::from_millis(ms.clamp(20, 60_000)))
}

/// Refuses a request that is meant for another drive. Its sender reconnected after a broken connection, and found this
/// drive at that drive's address. The data must not come here, and a key that is missing here is not lost. A request
/// without a drive's id is accepted.
fn meant_for<T>(info: &CseInfo, request: &Request<T>) -> Result<(), Status> {
    let own = info.id.to_string();
    match request.metadata().get(DRIVE_KEY) {
        Some(meant) if meant.as_bytes() != own.as_bytes() => {
            let mut refused = to_status(&Error::unavailable(format!("drive {own} ({})", info.name)));
            if let Ok(own) = MetadataValue::try_from(own) {
                refused.metadata_mut().insert(DRIVE_KEY, own);
            }
            Err(refused)
        }
        _ => Ok(()),
    }
}

/// Ready when the server must stop.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // A closed channel means that the owner of the service does not signal a stop: then it never comes.
    if stopping.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn stopping_error(name: &str) -> Error {
    Error::unavailable(format!("{name}: is shutting down"))
}

/// A running `DoGet`.
struct Answer {
    name: String,
    received: u64,
    messages: Pin<Box<dyn Stream<Item = Result<ResultMessage>> + Send>>,
    encoder: DeliveryEncoder,
    queue: VecDeque<FlightData>,
    heartbeat: Duration,
    stopping: watch::Receiver<bool>,
    ended: bool,
}

impl Answer {
    async fn next(mut self) -> Option<(Result<FlightData, Status>, Self)> {
        loop {
            if let Some(data) = self.queue.pop_front() {
                return Some((Ok(data), self));
            }
            if self.ended {
                return None;
            }
            let came = tokio::select! {
                biased;
                () = stopped(&mut self.stopping) => Some(Err(stopping_error(&self.name))),
                came = self.messages.next() => came,
                () = tokio::time::sleep(self.heartbeat) => return Some((Ok(DeliveryEncoder::alive()), self)),
            };
            let encoded = match came {
                None => {
                    self.ended = true;
                    continue;
                }
                Some(came) => came.and_then(|delivery| self.encode(delivery)),
            };
            match encoded {
                Ok(messages) => self.queue.extend(messages),
                Err(error) => {
                    self.ended = true;
                    return Some((Err(to_status(&error)), self));
                }
            }
        }
    }

    fn encode(&mut self, delivery: ResultMessage) -> Result<Vec<FlightData>> {
        let delivery = match delivery {
            ResultMessage::Done(annotation) => ResultMessage::Done(Annotation { bytes_received: self.received, ..annotation }),
            other => other,
        };
        self.encoder.encode(delivery).map_err(|e| e.context(self.name.clone()))
    }
}

/// A running session.
struct Talk {
    name: String,
    /// Orders, as long as they come.
    incoming: Option<Streaming<FlightData>>,
    orders: Option<mpsc::UnboundedSender<Down>>,
    messages: Pin<Box<dyn Stream<Item = Result<Message>> + Send>>,
    encoder: SessionEncoder,
    queue: VecDeque<FlightData>,
    heartbeat: Duration,
    stopping: watch::Receiver<bool>,
    ended: bool,
}

impl Talk {
    async fn next(mut self) -> Option<(Result<FlightData, Status>, Self)> {
        loop {
            if let Some(data) = self.queue.pop_front() {
                return Some((Ok(data), self));
            }
            if self.ended {
                return None;
            }
            let listening = async {
                match &mut self.incoming {
                    Some(incoming) => incoming.message().await,
                    None => std::future::pending().await,
                }
            };
            let came = tokio::select! {
                biased;
                () = stopped(&mut self.stopping) => Err(stopping_error(&self.name)),
                order = listening => match order {
                    Ok(Some(data)) => match sessions::decode_order(&data) {
                        Ok(down) => {
                            // A session that has ended says so by itself.
                            let _ = self.orders.as_ref().map(|orders| orders.send(down));
                            continue;
                        }
                        Err(error) => Err(error),
                    },
                    // No more orders: the session ends and sends its annotation, even where the other side is gone.
                    Ok(None) | Err(_) => {
                        (self.incoming, self.orders) = (None, None);
                        continue;
                    }
                },
                message = self.messages.next() => match message {
                    None => {
                        self.ended = true;
                        continue;
                    }
                    Some(message) => message.and_then(|message| self.encoder.encode(message)),
                },
                () = tokio::time::sleep(self.heartbeat) => SessionEncoder::alive().map(|alive| vec![alive]),
            };
            match came {
                Ok(messages) => self.queue.extend(messages),
                Err(error) => {
                    self.ended = true;
                    return Some((Err(to_status(&error.context(self.name.clone()))), self));
                }
            }
        }
    }
}

/// Carries out an action.
async fn act(cse: &dyn Cse, action: Action) -> Result<Bytes> {
    let Action { r#type: name, body } = action;
    let action = DriveAction::parse(&name, &body)?.ok_or_else(|| unknown("a drive", &name, DriveAction::TABLE))?;
    drop(body);
    match action {
        DriveAction::Info => frames::encode_info(cse.info()),
        DriveAction::Get(KeyRequest { key }) => Ok(frames::encode_value(&cse.get(&key).await?)),
        DriveAction::GetRanges(RangesRequest { key, ranges }) => {
            frames::check_ranges(&ranges)?;
            Ok(frames::encode_ranges(&cse.get_ranges_unverified(&key, &ranges).await?))
        }
        DriveAction::Stat(KeyRequest { key }) => frames::encode_json(&cse.stat(&key).await?),
        DriveAction::List(ListRequest { prefix, after, limit }) => frames::encode_json(&cse.list(&prefix, after.as_ref(), limit.min(LIST_PAGE)).await?),
        DriveAction::Usage => frames::encode_json(&cse.usage().await?),
        DriveAction::Apply(batch) => frames::encode_json(&cse.apply(batch).await?),
        DriveAction::Indexes => frames::encode_json(&cse.indexes().await?),
        DriveAction::Verify(asked) => Ok(verify_or_read(cse, asked).await?.encode()),
    }
}

type Answers<T> = BoxStream<'static, Result<T, Status>>;

/// Bytes of a message.
fn message_bytes(data: &FlightData) -> usize {
    data.data_header.len() + data.data_body.len() + data.app_metadata.len()
}

/// Waits until a request would have come over `link`.
async fn received(link: Option<&Link>, body: &Bytes) {
    if let Some(link) = link {
        link.pass(Direction::Down, body.len() as u64).await;
    }
}

/// `answers` as they come over `link`; `bytes` gives the length of each.
fn sent<T: Send + 'static>(link: Option<&Arc<Link>>, answers: Answers<T>, bytes: fn(&T) -> usize) -> Answers<T> {
    match link {
        None => answers,
        Some(link) => link.stream(Direction::Up, answers, move |answer: &Result<T, Status>| answer.as_ref().map_or(0, |answer| bytes(answer) as u64)).boxed(),
    }
}

#[async_trait]
impl FlightService for CseService {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        meant_for(self.cse.info(), &request)?;
        let name = self.cse.info().name.clone();
        let heartbeat = heartbeat(&request);
        let _held = request.extensions().get::<Arc<RequestPermit>>().cloned();
        let ticket = request.into_inner().ticket;
        let mut stopping = self.stopping.clone();
        received(self.link.as_deref(), &ticket).await;
        let started = async {
            let plan = frames::decode_ticket(&ticket).map_err(|e| e.context(name.clone()))?;
            tokio::select! {
                biased;
                () = stopped(&mut stopping) => Err(stopping_error(&name)),
                started = self.cse.execute(plan) => started,
            }
        };
        let answer = started.await.map_err(|e| to_status(&e))?;
        let (encoder, first) = DeliveryEncoder::new(&answer.schema);
        let answer = Answer {
            name,
            received: ticket.len() as u64,
            messages: answer.messages,
            encoder,
            queue: VecDeque::from([first]),
            heartbeat,
            stopping: self.stopping.clone(),
            ended: false,
        };
        let answers = stream::unfold(answer, Answer::next).boxed();
        Ok(Response::new(sent(self.link.as_ref(), answers, message_bytes)))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        meant_for(self.cse.info(), &request)?;
        let heartbeat = heartbeat(&request);
        let cse = Arc::clone(&self.cse);
        let held = request.extensions().get::<Arc<RequestPermit>>().cloned();
        let (action, link) = (request.into_inner(), self.link.clone());
        let work = async move {
            let _held = held;
            received(link.as_deref(), &action.body).await;
            act(cse.as_ref(), action).await.map_err(|e| e.named(&cse.info().name))
        };
        let answers = stream::unfold(Some(work.boxed()), move |work| async move {
            let mut work = work?;
            tokio::select! {
                biased;
                answer = &mut work => Some((
                    answer.map_err(|e| to_status(&e)).map(|value| {
                        let mut body = BytesMut::with_capacity(1 + value.len());
                        body.put_u8(ANSWER_VALUE);
                        body.put_slice(&value);
                        arrow_flight::Result { body: body.freeze() }
                    }),
                    None,
                )),
                () = tokio::time::sleep(heartbeat) => Some((Ok(arrow_flight::Result { body: Bytes::from_static(&[ANSWER_ALIVE]) }), Some(work))),
            }
        });
        Ok(Response::new(sent(self.link.as_ref(), answers.boxed(), |answer| answer.body.len())))
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(self.absent("Handshake"))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Err(self.absent("ListFlights"))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        Err(self.absent("GetFlightInfo"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(self.absent("PollFlightInfo"))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        Err(self.absent("GetSchema"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        Err(self.absent("DoPut"))
    }

    async fn do_exchange(&self, request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        meant_for(self.cse.info(), &request)?;
        let name = self.cse.info().name.clone();
        let heartbeat = heartbeat(&request);
        let held = request.extensions().get::<Arc<RequestPermit>>().cloned();
        let mut incoming = request.into_inner();
        let mut stopping = self.stopping.clone();
        let (cse, of, link) = (Arc::clone(&self.cse), name.clone(), self.link.clone());
        let started = async {
            let first = tokio::time::timeout(FIRST, incoming.message())
                .await
                .map_err(|_| Error::invalid(format!("{of}: no sub-plan came within {} s", FIRST.as_secs())))?
                .map_err(|status| Error::unavailable(status.message()))?
                .ok_or_else(|| Error::invalid(format!("{of}: the connection ended before a sub-plan came")))?;
            received(link.as_deref(), &first.data_body).await;
            let (plan, bytes) = sessions::decode_opening(&first).map_err(|e| e.context(of.clone()))?;
            drop(first);
            let opened = tokio::select! {
                biased;
                () = stopped(&mut stopping) => Err(stopping_error(&of)),
                opened = open_or_execute(cse.as_ref(), plan) => opened,
            };
            drop(held);
            Ok::<_, Error>((opened?, bytes as u64))
        };
        let (opened, received_bytes) = started.await.map_err(|e| to_status(&e))?;
        let stopping = self.stopping.clone();
        match opened {
            OpenReply::Whole(answer) => {
                let (encoder, schema) = DeliveryEncoder::new(&answer.schema);
                let queue = VecDeque::from([sessions::whole().map_err(|e| to_status(&e))?, schema]);
                let answer = Answer { name, received: received_bytes, messages: answer.messages, encoder, queue, heartbeat, stopping, ended: false };
                Ok(Response::new(sent(self.link.as_ref(), stream::unfold(answer, Answer::next).boxed(), message_bytes)))
            }
            OpenReply::Session(session) => {
                let Session { schema, lower, slice_manifest, orders, messages } = session;
                let (encoder, first) = SessionEncoder::new(slice_manifest, &schema, lower.as_deref(), received_bytes).map_err(|e| to_status(&e))?;
                let talk =
                    Talk { name, incoming: Some(incoming), orders: Some(orders), messages, encoder, queue: first.into(), heartbeat, stopping, ended: false };
                Ok(Response::new(sent(self.link.as_ref(), stream::unfold(talk, Talk::next).boxed(), message_bytes)))
            }
        }
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(stream::iter(DriveAction::TABLE.iter().map(|row| Ok(row.listed(row.name.to_owned())))).boxed()))
    }
}

impl CseService {
    fn absent(&self, call: &str) -> Status {
        to_status(&Error::unsupported(format!("{}: a drive does not offer {call}: send sub-plans to DoGet, or connect to a host", self.cse.info().name)))
    }
}

#[cfg(test)]
mod tests {
    use skytether_device::StorageOnly;

    use super::*;

    #[test]
    fn ports_of_one_drive_share_its_request_budget() {
        let shared = SharedLimits::default();
        let (one, two) = (StorageOnly::in_memory(Uuid::from_u128(1), "drive-0"), StorageOnly::in_memory(Uuid::from_u128(2), "drive-1"));
        let budget = |cse: &StorageOnly| shared.clone().of(cse).requests;
        assert!(Arc::ptr_eq(&budget(&one), &budget(&one)) && !Arc::ptr_eq(&budget(&one), &budget(&two)));
    }
}
