//! [`Connection`]: one connection to a drive. Requests are pipelined up to the depths that the drive tells.
//!
//! One task writes, one reads, and one sends a noop when the connection is idle. A response is matched with its
//! request by its sequence, and counts only with the HMAC of the client's identity. What can't be matched or verified
//! ends the connection: all requests under way then fail.
//!
//! A request that has no answer in time ends the connection, too. The drive may still carry it out, and its answer
//! must not be taken for another one's.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_common::{Detail, Error, Kind, Result};
use skytether_kinetic_protocol::command::{Body, Command, Header};
use skytether_kinetic_protocol::frame::FrameError;
use skytether_kinetic_protocol::limits::told;
use skytether_kinetic_protocol::response::{Greeting, check_response};
use skytether_kinetic_protocol::{FrameDecoder, FrameLimits, HmacKey, Limits, Message, MessageType, Refusal, StatusCode};
use skytether_transport::tls::{Stream, dial};
use skytether_transport::{Endpoint, Security};
use tokio::io::{AsyncReadExt, ReadHalf, split};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::failure::{Failure, Outcome};
use crate::options::ClientOptions;
use crate::traffic::{self, Outgoing, Proof};

/// The scheme without TLS.
pub const SCHEME: &str = "kinetic";

/// The scheme with TLS.
pub const TLS_SCHEME: &str = "kinetics";

/// How many reads and writes wait at a time where the drive does not tell.
const DEPTHS: (u32, u32) = (16, 8);

/// How many of each wait at most, whatever the drive tells.
const MAX_DEPTH: u32 = 256;

/// How many batches are open at a time where the drive does not tell, and at most. The limit is one of the whole
/// drive, and other clients have batches as well.
const BATCHES: u32 = 2;

/// How many messages that the drive sends by itself are kept for [`Connection::notifications`].
const NOTIFICATIONS: usize = 64;

/// What kind of queue a request waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    /// That of reads.
    Read,
    /// That of writes.
    Write,
    /// None: the request belongs to a batch, or is sent alone.
    Free,
}

/// What is sent.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) header: Header,
    pub(crate) body: Option<Body>,
    pub(crate) value: Bytes,
}

impl Request {
    pub(crate) fn new(of: MessageType) -> Request {
        Request { header: Header { message_type: Some(of.into()), ..Header::default() }, ..Request::default() }
    }

    pub(crate) fn body(self, body: Body) -> Request {
        Request { body: Some(body), ..self }
    }

    pub(crate) fn value(self, value: Bytes) -> Request {
        Request { value, ..self }
    }
}

/// What came back: a success.
#[derive(Debug, Clone, Default)]
pub struct Response {
    /// The command of the response.
    pub command: Command,
    /// The value behind it. It may share a block of 64 KiB with other frames.
    pub value: Bytes,
}

impl Response {
    pub(crate) fn body(&self) -> Body {
        self.command.body.clone().unwrap_or_default()
    }
}

/// One who waits for an answer.
struct Waiter {
    request: Header,
    pin: bool,
    reply: oneshot::Sender<Outcome<Response>>,
    /// Its place in the queue is free when the answer has come, and not when the caller has given up.
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Default)]
struct Pending {
    last_sequence: u64,
    last_batch: u32,
    waiting: HashMap<u64, Waiter>,
    /// Why the connection has ended.
    ended: Option<(Kind, String)>,
    /// What the drive said by itself last; it explains why it closes the connection.
    farewell: Option<String>,
    last_traffic: Option<Instant>,
}

/// What the tasks and the callers share.
pub(crate) struct Shared {
    number: i64,
    key: HmacKey,
    pending: Mutex<Pending>,
    notifications: broadcast::Sender<Command>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Shared {
    /// Ends the connection: everybody who waits gets the error.
    pub(crate) fn end(&self, kind: Kind, text: &str) {
        let waiting = {
            let mut pending = self.pending.lock();
            if pending.ended.is_some() {
                return;
            }
            let text = match pending.farewell.take() {
                Some(said) => format!("{text} (it said {said})"),
                None => text.to_owned(),
            };
            pending.ended = Some((kind, text));
            std::mem::take(&mut pending.waiting)
        };
        for waiter in waiting.into_values() {
            let _ = waiter.reply.send(Err(Failure::lost(kind, self.end_text(), true)));
        }
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    /// Ends the connection, as the drive refuses a request without saying which. If several wait, the others may have
    /// been done.
    fn refuse(&self, refusal: &Refusal) {
        let waiting = std::mem::take(&mut self.pending.lock().waiting);
        let alone = waiting.len() == 1;
        for waiter in waiting.into_values() {
            let refused = if alone { Failure::Refused(refusal.clone()) } else { Failure::lost(refusal.code.kind(), format!("answers {refusal}"), true) };
            let _ = waiter.reply.send(Err(refused));
        }
        self.end(refusal.code.kind(), &format!("answers {refusal}"));
    }

    fn end_text(&self) -> String {
        self.pending.lock().ended.as_ref().map(|(_, text)| text.clone()).unwrap_or_default()
    }

    /// Takes a frame that came. The error ends the connection.
    fn take(&self, message: Bytes, value: Bytes) -> Outcome<()> {
        let corrupt = |text: String| Failure::lost(Kind::Corrupt, text, true);
        let message = Message::parse(message).map_err(|e| corrupt(format!("sent what is no message of Kinetic ({})", e.text)))?;
        let command = message.command().map_err(|e| corrupt(format!("sent what is no command of Kinetic ({})", e.text)))?;
        let signed = message.is_signed_by(&self.key) && message.hmac_auth.as_ref().is_some_and(|auth| auth.identity == Some(self.number));
        if message.auth_type() == skytether_kinetic_protocol::kinds::AuthType::Unsolicited {
            if command.status_code() == StatusCode::HmacFailure {
                // So our drives answer where they have no key to sign with.
                return Err(Failure::Refused(Refusal::check(command.status.as_ref()).err().unwrap_or_else(|| Refusal::new(StatusCode::HmacFailure, ""))));
            }
            self.unsolicited(command);
            return Ok(());
        }
        if !signed && command == Command::default() {
            // So the Java simulator answers where it has no key to sign with.
            return Err(Failure::Refused(Refusal::new(StatusCode::HmacFailure, "its answer is empty: it does not know this identity or its key")));
        }
        let sequence = command.header.as_ref().map(Header::ack_sequence).unwrap_or_default();
        let waiter = {
            let mut pending = self.pending.lock();
            pending.last_traffic = Some(Instant::now());
            if matches!(command.status_code(), StatusCode::HmacFailure | StatusCode::NotAuthorized) && !pending.waiting.contains_key(&sequence) {
                // The Java simulator does not read the sequence of a request that it does not trust. All of ours have
                // the same key.
                return Err(Failure::Refused(Refusal::check(command.status.as_ref()).err().unwrap_or_else(|| Refusal::new(StatusCode::HmacFailure, ""))));
            }
            pending
                .waiting
                .remove(&sequence)
                .ok_or_else(|| corrupt(format!("answers request {sequence} ({}), for which no caller waits", command.status_code())))?
        };
        // A drive that does not know the identity can't sign. Its refusal of the key is believed, and nothing else.
        let believed = signed || waiter.pin || command.status_code() == StatusCode::HmacFailure;
        if !believed {
            let failure = corrupt(format!("answers request {sequence} with a wrong HMAC: its key is not ours, or the answer was changed on its way"));
            let _ = waiter.reply.send(Err(failure.clone()));
            return Err(failure);
        }
        let answer = match check_response(&waiter.request, &command) {
            Ok(()) => Ok(Response { command, value }),
            // A scan that found damage: the answer names the keys.
            Err(refusal) if refusal.code == StatusCode::DataError && waiter.request.message_type() == MessageType::MediaScan => Ok(Response { command, value }),
            Err(_)
                if command.status_code() == StatusCode::Success
                    && command.header.as_ref().is_some_and(|header| header.message_type() == MessageType::Invalid) =>
            {
                Err(Failure::lost(Kind::Unsupported, format!("does not know the request {}", waiter.request.message_type()), true))
            }
            Err(refusal) if command.status_code() == StatusCode::Success => Err(corrupt(format!("gives a wrong answer ({})", refusal.text))),
            Err(refusal) => Err(Failure::Refused(refusal)),
        };
        let wrong = matches!(answer, Err(Failure::Lost { .. })).then(|| answer.as_ref().err().cloned()).flatten();
        let _ = waiter.reply.send(answer);
        wrong.map_or(Ok(()), Err)
    }

    fn unsolicited(&self, command: Command) {
        if command.body.as_ref().and_then(|body| body.manage_applet.as_ref()).is_none() {
            // What a drive says of programs does not explain the end of a connection.
            self.pending.lock().farewell = command.status.as_ref().map(|status| format!("{}: {}", status.code(), status.text()));
        }
        // Without a receiver it is dropped.
        let _ = self.notifications.send(command);
    }
}

/// One connection to a drive, with all operations of the protocol. Dropping it closes it.
pub struct Connection {
    pub(crate) options: Arc<ClientOptions>,
    greeting: Greeting,
    shared: Arc<Shared>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    pub(crate) batches: Arc<Semaphore>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.greeting.connection_id).finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end(Kind::Unavailable, "the connection was closed here");
    }
}

impl Connection {
    /// Connects to `at` (`kinetic://host:port`, `kinetics://host:port`) and waits for the drive's greeting.
    ///
    /// # Errors
    /// `Invalid` for a wrong address or certificate, `Unavailable` where nothing answers in time, `Unsupported` where
    /// the other side speaks another protocol, `Corrupt` for a malformed greeting; else what the drive says.
    pub async fn open(at: &Endpoint, options: Arc<ClientOptions>) -> Result<Connection> {
        let security = match at.scheme() {
            SCHEME => Security::Plain,
            TLS_SCHEME => Security::Tls,
            other => return Err(Error::unsupported(format!("{at}: the scheme {other:?} is not one of Kinetic drives: use {SCHEME}:// or {TLS_SCHEME}://"))),
        };
        let title = |e: Error| {
            let titled = Error::new(e.kind(), format!("cannot connect to the drive at {}: {}", at.authority(), e.message()));
            match e.detail().cloned() {
                Some(detail) => titled.with_detail(detail),
                None => titled.with_source(e),
            }
        };
        let socket =
            at.socket().map_err(|e| Error::invalid(format!("{at} is no address: write {SCHEME}://host:port or {TLS_SCHEME}://host:port")).with_source(e));
        socket?;
        let deadline = Instant::now() + options.connect.connect_timeout;
        let late = |what: &str| Error::unavailable(format!("{what} within {:.1} s", options.connect.connect_timeout.as_secs_f64()));
        let dialled = timeout_at(deadline, dial(at, security, options.credentials(), (SCHEME, TLS_SCHEME))).await;
        let stream = dialled.map_err(|_| title(late("nothing answers")))?.map_err(title)?;
        let (mut from, to) = split(stream);
        let mut decoder = FrameDecoder::new(FrameLimits::of(&Limits::default()));
        let greeted = timeout_at(deadline, greet(&mut from, &mut decoder)).await;
        let silent = format!("it sends no greeting of Kinetic (is its port one for {}, and not {SCHEME}?)", TLS_SCHEME);
        let greeting = greeted.map_err(|_| title(late(&silent)))?.map_err(title)?;
        decoder.set_limits(FrameLimits::of(&answers(&greeting.limits))).map_err(|e| title(e.into()))?;
        Ok(Connection::start(options, greeting, from, to, decoder))
    }

    fn start(
        options: Arc<ClientOptions>,
        greeting: Greeting,
        from: ReadHalf<Box<dyn Stream>>,
        to: tokio::io::WriteHalf<Box<dyn Stream>>,
        decoder: FrameDecoder,
    ) -> Connection {
        let shared = Arc::new(Shared {
            number: options.identity.number,
            key: options.identity.key.clone(),
            pending: Mutex::default(),
            notifications: broadcast::channel(NOTIFICATIONS).0,
            tasks: Mutex::default(),
        });
        let (outgoing, requests) = mpsc::unbounded_channel();
        let writer = tokio::spawn(traffic::write(to, requests, options.identity.clone(), Arc::clone(&shared)));
        let reader = tokio::spawn(read(from, decoder, Arc::clone(&shared)));
        *shared.tasks.lock() = vec![writer.abort_handle(), reader.abort_handle()];
        let depth = |field: Option<u32>, default: u32| Arc::new(Semaphore::new(told(field).unwrap_or(default).min(MAX_DEPTH) as usize));
        let limits = &greeting.limits;
        let connection = Connection {
            reads: depth(limits.max_outstanding_read_requests, DEPTHS.0),
            writes: depth(limits.max_outstanding_write_requests, DEPTHS.1),
            batches: Arc::new(Semaphore::new(told(limits.max_batch_count_per_device).unwrap_or(BATCHES).min(BATCHES) as usize)),
            options,
            greeting,
            shared,
            outgoing,
        };
        if let Some(interval) = connection.options.connect.keepalive {
            let probe = tokio::spawn(traffic::probe(
                Arc::downgrade(&connection.shared),
                connection.outgoing.downgrade(),
                connection.header(),
                interval,
                connection.options.patience(0),
            ));
            connection.shared.tasks.lock().push(probe.abort_handle());
        }
        connection
    }

    /// What the drive told when the connection was opened.
    #[must_use]
    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// What the drive accepts.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.greeting.limits
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.shared.pending.lock().ended.is_some()
    }

    /// What the drive sends by itself from now on: the ends of programs, changes that are watched, its farewell. A
    /// receiver that falls behind by more than 64 messages loses the oldest.
    #[must_use]
    pub fn notifications(&self) -> broadcast::Receiver<Command> {
        self.shared.notifications.subscribe()
    }

    fn header(&self) -> Header {
        let cluster_version = Some(self.options.cluster_version.unwrap_or(self.greeting.cluster_version));
        Header { cluster_version, connection_id: Some(self.greeting.connection_id), ..Header::default() }
    }

    /// A number for a batch that no other batch of this connection has.
    pub(crate) fn next_batch(&self) -> u32 {
        let mut pending = self.shared.pending.lock();
        // The Java simulator refuses 0.
        pending.last_batch = pending.last_batch.wrapping_add(1).max(1);
        pending.last_batch
    }

    /// Sends a request to which no answer comes; its sequence.
    pub(crate) fn post(&self, request: Request) -> Outcome<u64> {
        self.shared.enqueue(&self.outgoing, self.completed(request), Proof::Hmac, None, None)
    }

    /// Sends a request and waits for its answer, no longer than `patience`.
    pub(crate) async fn call(&self, queue: Queue, request: Request, proof: Proof, patience: Duration) -> Outcome<Response> {
        let deadline = Instant::now() + patience;
        let place = match queue {
            Queue::Free => None,
            Queue::Read => Some(self.place(&self.reads, deadline).await?),
            Queue::Write => Some(self.place(&self.writes, deadline).await?),
        };
        let (reply, answer) = oneshot::channel();
        self.shared.enqueue(&self.outgoing, self.completed(request), proof, Some(reply), place)?;
        // The time in the queue was others'.
        match timeout(patience, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Failure::lost(Kind::Unavailable, self.shared.end_text(), true)),
            Err(_) => Err(self.silent(patience)),
        }
    }

    async fn place(&self, queue: &Arc<Semaphore>, deadline: Instant) -> Outcome<OwnedSemaphorePermit> {
        match timeout_at(deadline, Arc::clone(queue).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(Failure::unsent(Kind::Internal, "a queue of requests was closed")),
            Err(_) => {
                // Those before have no answer either, and their callers may have given up.
                self.shared.end(Kind::Unavailable, "did not answer the requests before");
                Err(Failure::unsent(Kind::Unavailable, self.shared.end_text()))
            }
        }
    }

    fn silent(&self, patience: Duration) -> Failure {
        self.shared.end(Kind::Unavailable, &format!("did not answer for {:.1} s", patience.as_secs_f64()));
        Failure::lost(Kind::Unavailable, self.shared.end_text(), true)
    }

    /// Reads, as [`Connection::call`].
    pub(crate) async fn read(&self, request: Request) -> Outcome<Response> {
        // An answer may have a value, so allow for the largest.
        let patience = self.options.patience(self.longest_value());
        self.call(Queue::Read, request, Proof::Hmac, patience).await
    }

    /// Writes, as [`Connection::call`].
    pub(crate) async fn write(&self, request: Request) -> Outcome<Response> {
        let patience = self.options.patience(request.value.len());
        self.call(Queue::Write, request, Proof::Hmac, patience).await
    }

    /// The longest value that the drive takes, in bytes.
    #[must_use]
    pub fn longest_value(&self) -> usize {
        FrameLimits::of(self.limits()).value.min(MAX_VALUE) as usize
    }

    fn completed(&self, request: Request) -> Request {
        let own = self.header();
        Request { header: Header { cluster_version: own.cluster_version, connection_id: own.connection_id, ..request.header }, ..request }
    }
}

/// The longest value that is taken from a drive, in bytes, whatever it tells.
const MAX_VALUE: u32 = 64 << 20;

/// The limits of answers: those of requests, within bounds of our own. A message is never shorter than 1 MiB, because a
/// range's keys are more than a request has.
fn answers(limits: &Limits) -> Limits {
    let value = FrameLimits::of(limits).value.min(MAX_VALUE);
    let message = FrameLimits::of(limits).message.clamp(1 << 20, 4 << 20);
    Limits { max_value_size: Some(value), max_message_size: Some(message), ..*limits }
}

impl Shared {
    /// Gives the request its sequence, and hands it to the task that writes. Both under one lock, so that sequences
    /// grow on the wire.
    pub(crate) fn enqueue(
        &self,
        to: &mpsc::UnboundedSender<Outgoing>,
        mut request: Request,
        proof: Proof,
        reply: Option<oneshot::Sender<Outcome<Response>>>,
        place: Option<OwnedSemaphorePermit>,
    ) -> Outcome<u64> {
        let mut pending = self.pending.lock();
        if let Some((kind, text)) = &pending.ended {
            return Err(Failure::unsent(*kind, text.clone()));
        }
        pending.last_sequence += 1;
        let sequence = pending.last_sequence;
        request.header.sequence = Some(sequence);
        pending.last_traffic = Some(Instant::now());
        if let Some(reply) = reply {
            let waiter = Waiter { request: request.header.clone(), pin: matches!(proof, Proof::Pin(_)), reply, _place: place };
            pending.waiting.insert(sequence, waiter);
        }
        let command = Command { header: Some(request.header), body: request.body, status: None };
        if to.send(Outgoing { command, value: request.value, proof }).is_err() {
            pending.waiting.remove(&sequence);
            return Err(Failure::unsent(Kind::Unavailable, "the connection has ended"));
        }
        Ok(sequence)
    }

    /// Since when the connection is idle; `None` while requests wait for their answers.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let pending = self.pending.lock();
        pending.waiting.is_empty().then_some(pending.last_traffic).flatten()
    }
}

/// Reads the first message of a connection.
async fn greet(from: &mut ReadHalf<Box<dyn Stream>>, decoder: &mut FrameDecoder) -> Result<Greeting> {
    loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => {
                let message = Message::parse(frame.message).map_err(|e| Error::corrupt(format!("its greeting is malformed ({})", e.text)))?;
                return Greeting::read(&message).map_err(|refusal| match refusal.code {
                    StatusCode::InvalidRequest => Error::corrupt(format!("its greeting is malformed ({})", refusal.text)),
                    // It has as many connections as it takes.
                    StatusCode::ServiceBusy => Error::from(refusal).with_detail(Detail::NotRun),
                    _ => refusal.into(),
                });
            }
            Ok(None) => {}
            Err(FrameError::BadMagic { .. }) => return Err(Error::unsupported("it speaks another protocol than Kinetic")),
            Err(error) => return Err(Error::corrupt(format!("its greeting is malformed ({error})"))),
        }
        match from.read_buf(&mut decoder.space()).await {
            Ok(0) => return Err(Error::unavailable("it closed the connection before its greeting")),
            Ok(_) => {}
            Err(error) => return Err(Error::unavailable(format!("{error}")).with_source(error)),
        }
    }
}

/// The task that reads.
async fn read(mut from: ReadHalf<Box<dyn Stream>>, mut decoder: FrameDecoder, shared: Arc<Shared>) {
    loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => match shared.take(frame.message, frame.value) {
                Ok(()) => continue,
                Err(Failure::Lost { kind, text, .. }) => return shared.end(kind, &text),
                Err(Failure::Refused(refusal)) => return shared.refuse(&refusal),
            },
            Ok(None) => {}
            Err(error) => return shared.end(Kind::Corrupt, &format!("sent what is no frame of Kinetic ({error})")),
        }
        match from.read_buf(&mut decoder.space()).await {
            Ok(0) => return shared.end(Kind::Unavailable, "closed the connection"),
            Ok(_) => {}
            Err(error) => return shared.end(Kind::Unavailable, &format!("the connection broke ({error})")),
        }
    }
}
