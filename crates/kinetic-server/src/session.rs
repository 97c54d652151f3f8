//! One connection: frames in, answers out, and what waits between them.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use skytether_kinetic_protocol::command::Command;
use skytether_kinetic_protocol::frame::{encode_head, encode_into};
use skytether_kinetic_protocol::limits::told;
use skytether_kinetic_protocol::response::{farewell, greeting};
use skytether_kinetic_protocol::{Frame, FrameDecoder, FrameLimits, Limits, Message, MessageType, Refusal, StatusCode};
use skytether_transport::Connection;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::admission::{Gate, Member, Request, Signer, Turned};
use crate::batch::Batches;
use crate::reply::{Answer, Reply};
use crate::shared::{Shared, deadline};
use crate::watches::Teller;
use crate::{admin, data, logs, media, peers, programs};

/// How long programs, scans and pushes go on for a client that sends no more.
const HALF_CLOSED: Duration = Duration::from_secs(2);

/// Reads and writes of one connection that may wait, each, where the drive announces no number.
const DEPTH: usize = 64;

/// Values above this are not copied into the buffer of answers, but sent from where they are.
const COPIED: usize = 32 << 10;

/// Values that are too long, up to this length, are read and dropped, so that the request can be refused by a status.
const DROPPED: u32 = 16 << 20;

/// Messages about watched programs that may wait for one connection. Each has at most what a program prints.
const TOLD: usize = 16;

/// An answer that waits, with what it needs when it comes.
type Waiting = FuturesUnordered<BoxFuture<'static, (Answer, Signer, MessageType, std::time::Instant, u64)>>;

struct Session<S> {
    shared: Arc<Shared>,
    connection: S,
    gate: Gate,
    batches: Batches,
    writes: Waiting,
    works: Waiting,
    teller: Teller,
    told: mpsc::Receiver<(Command, Bytes)>,
    out: BytesMut,
}

/// The connection ends.
struct Ended;

/// Serves one connection until it ends, or until the drive shuts down.
///
/// A connection without an admitted request in `first_call_time` ends: it would keep others out.
pub(crate) async fn converse(shared: Arc<Shared>, connection: Connection, first_call_time: Duration, shutdown: CancellationToken) {
    let gate = Gate::new(shared.next_connection(), connection.peer().tls);
    let most = told(shared.limits.max_connections).map_or(u64::MAX, u64::from);
    match shared.counters.connections.enter_up_to(most) {
        Some(_counted) => converse_as(gate, Arc::clone(&shared), connection, first_call_time, shutdown).await,
        None => turn_away(&gate, connection, most, shared.options.patience).await,
    }
}

/// Says why the drive takes no further connection. Both doors together have as many as it announces.
async fn turn_away(gate: &Gate, mut connection: Connection, most: u64, patience: Duration) {
    let why = Refusal::new(StatusCode::ServiceBusy, format!("the drive has {most} connections, which is its limit; close one, or try again later"));
    let mut out = BytesMut::new();
    if encode_into(&farewell(gate.connection, &why), &Bytes::new(), &mut out).is_ok() {
        let saying = async {
            connection.write_all(&out).await?;
            connection.shutdown().await
        };
        // The client may have gone.
        let _ = timeout(patience, saying).await;
    }
}

/// As [`converse`], over any stream, with requests of those whom `gate` admits.
pub(crate) async fn converse_as<S>(gate: Gate, shared: Arc<Shared>, connection: S, first_call_time: Duration, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let batches = Batches::new(Arc::clone(&shared));
    let (writes, works) = (Waiting::new(), Waiting::new());
    let (teller, told) = mpsc::channel(TOLD);
    let mut session = Session { shared, connection, gate, batches, writes, works, teller, told, out: BytesMut::new() };
    // The client has gone or is told why it must go: nothing is left to do.
    let _: Result<(), Ended> = session.run(Instant::now() + first_call_time, &shutdown).await;
    let _ = timeout(session.shared.options.patience, session.connection.shutdown()).await;
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    async fn run(&mut self, first_call: Instant, shutdown: &CancellationToken) -> Result<(), Ended> {
        let hello = greeting(self.gate.connection, self.shared.settings().cluster_version, logs::configuration(&self.shared), self.shared.limits);
        self.encode(&hello, &Bytes::new()).await?;
        self.flush().await?;
        let limits = FrameLimits::of(&self.shared.limits).dropping_values(DROPPED);
        let mut decoder = FrameDecoder::new(limits);
        let (reads, writes) = depths(&self.shared.limits);
        let patience = self.shared.options.patience;
        let mut frame_begun: Option<Instant> = None;
        loop {
            let mut wants_bytes = false;
            while self.writes.len() < writes && self.works.len() < reads {
                match decoder.next_frame() {
                    Ok(Some(frame)) => {
                        frame_begun = None;
                        self.handle(frame).await?;
                    }
                    Ok(None) => {
                        wants_bytes = true;
                        break;
                    }
                    Err(error) => return self.close(&Refusal::from(error)).await,
                }
            }
            self.flush().await?;
            if !wants_bytes {
                // The rest of a frame may wait as long as the drive does not read.
                frame_begun = None;
            } else if decoder.finish().is_err() {
                frame_begun.get_or_insert_with(Instant::now);
            }
            let first_call = (!self.gate.has_admitted()).then_some(first_call);
            let late = async {
                match first_call.into_iter().chain(frame_begun.map(|begun| begun + patience)).min() {
                    Some(latest) => tokio::time::sleep_until(latest).await,
                    None => std::future::pending().await,
                }
            };
            let mut space = decoder.space();
            tokio::select! {
                Some(waited) = self.writes.next(), if !self.writes.is_empty() => self.answer_waited(waited).await?,
                Some(waited) = self.works.next(), if !self.works.is_empty() => self.answer_waited(waited).await?,
                Some((command, value)) = self.told.recv() => self.encode(&Signer::Unknown.sign(&command), &value).await?,
                read = self.connection.read_buf(&mut space), if wants_bytes => match read {
                    Ok(0) | Err(_) => return self.finish().await,
                    Ok(_) => {}
                },
                () = shutdown.cancelled() => return self.close(&Refusal::new(StatusCode::Shutdown, "the drive shuts down")).await,
                () = late => {
                    let text = "no request, or no more of it, came in time";
                    return self.close(&Refusal::new(StatusCode::ConnectionTerminated, text)).await;
                }
            }
        }
    }

    /// The client sends no more. It may have gone, or wait for answers: programs, scans and pushes have little time
    /// then, because no one may want them.
    async fn finish(&mut self) -> Result<(), Ended> {
        timeout(self.shared.options.patience, self.answer_writes()).await.unwrap_or(Err(Ended))?;
        let waited = async {
            while let Some(waited) = self.works.next().await {
                self.answer_waited(waited).await?;
            }
            self.flush().await
        };
        timeout(HALF_CLOSED, waited).await.unwrap_or(Err(Ended))
    }

    /// Tells the client why, and ends the connection. Writes that are on their way are answered first.
    async fn close(&mut self, why: &Refusal) -> Result<(), Ended> {
        self.answer_writes().await?;
        let message = farewell(self.gate.connection, why);
        self.encode(&message, &Bytes::new()).await?;
        self.flush().await?;
        Err(Ended)
    }

    async fn handle(&mut self, frame: Frame) -> Result<(), Ended> {
        let request = match self.gate.admit(&self.shared, frame) {
            Ok(request) => request,
            Err(Turned::Away(answer)) => {
                let (command, signer, member) = *answer;
                let why = Refusal::check(command.status.as_ref()).err();
                if let Some((member, why)) = member.zip(why)
                    && self.batches.fail(member, why)
                {
                    return Ok(());
                }
                return self.encode(&signer.sign(&command), &Bytes::new()).await;
            }
            Err(Turned::Out(why)) => return self.close(&why).await,
        };
        let kind = request.kind();
        if !matches!(kind, MessageType::Put | MessageType::Delete | MessageType::FlushAllData) {
            // What was written before is visible to what is read after it.
            self.answer_writes().await?;
        }
        let (received, bytes, signer) = (request.received, request.value_bytes(), request.caller.signer.clone());
        if deadline(received, request.header.timeout()).is_some_and(|deadline| deadline <= std::time::Instant::now()) {
            let expired = Refusal::new(StatusCode::Expired, "the request waited longer than its timeout");
            if let Some(member) = Member::of(&request.header)
                && self.batches.fail(member, expired.clone())
            {
                self.shared.counters.count(kind, bytes, received.elapsed());
                return Ok(());
            }
            let answer = Answer::of(&request, Err(expired));
            return self.answer(answer, &signer, kind, received, 0).await;
        }
        let reply = self.carry_out(&request).await;
        let reply = reply.unwrap_or_else(|refusal| Reply::Now(Answer::of(&request, Err(refusal))));
        match reply {
            Reply::Now(answer) => self.answer(answer, &signer, kind, received, bytes).await,
            Reply::Silent => {
                // A member of a batch has no answer of its own, and counts as other puts and deletes do.
                self.shared.counters.count(kind, bytes, received.elapsed());
                Ok(())
            }
            Reply::Begun(answer, work) => {
                // Counted once, with its answer.
                self.works.push(Box::pin(async move { (work.await, Signer::Unknown, MessageType::Invalid, received, 0) }));
                self.answer(answer, &signer, kind, received, bytes).await
            }
            Reply::Close(why) => self.close(&why).await,
            Reply::Write(writing) => {
                let waits = self.shared.counters.writes.enter();
                self.writes.push(Box::pin(async move {
                    let _waits = waits;
                    (writing.await, signer, kind, received, bytes)
                }));
                Ok(())
            }
            Reply::Work(working) => {
                self.works.push(Box::pin(async move { (working.await, signer, kind, received, bytes) }));
                Ok(())
            }
        }
    }

    /// A write has its place among all writes when this returns.
    async fn carry_out(&mut self, request: &Request) -> Result<Reply, Refusal> {
        let shared = &self.shared;
        let _begun = if self.gate.is_of_guest() { Some(shared.erasing.read().await) } else { None };
        self.gate.check_runs(shared)?;
        match request.kind() {
            MessageType::Put | MessageType::Delete if request.header.batch_id.is_some() => self.batches.add(request),
            MessageType::Put | MessageType::Delete => data::write(shared, request).await,
            MessageType::FlushAllData => data::flush(shared, request).await,
            MessageType::Get => data::get(shared, request),
            MessageType::GetVersion => data::get_version(shared, request),
            MessageType::GetNext | MessageType::GetPrevious => data::get_beside(shared, request),
            MessageType::GetKeyRange => data::key_range(shared, request),
            MessageType::StartBatch => self.batches.start(request),
            MessageType::EndBatch => self.batches.end(request).await,
            MessageType::AbortBatch => self.batches.abort(request),
            MessageType::MediaScan => media::scan(shared, request),
            MessageType::MediaOptimize => media::optimise(shared, request),
            MessageType::Noop => Ok(Reply::Now(Answer::of(request, Ok(())))),
            MessageType::GetLog => logs::get_log(shared, request),
            MessageType::ManageApplet => programs::manage(shared, request, &self.teller),
            MessageType::PeerToPeerPush => peers::push(shared, request),
            MessageType::Setup => admin::setup(shared, request),
            MessageType::Security => admin::security(shared, request),
            MessageType::PinOp => admin::pin_operation(shared, request),
            MessageType::SetPowerLevel => admin::power(shared, request),
            other => Err(Refusal::invalid(format!("this drive does not know requests of the type {other} ({})", request.header.message_type.unwrap_or(-1)))),
        }
    }

    async fn answer_writes(&mut self) -> Result<(), Ended> {
        while let Some(waited) = self.writes.next().await {
            self.answer_waited(waited).await?;
        }
        Ok(())
    }

    async fn answer_waited(&mut self, waited: (Answer, Signer, MessageType, std::time::Instant, u64)) -> Result<(), Ended> {
        let (answer, signer, kind, received, bytes) = waited;
        self.answer(answer, &signer, kind, received, bytes).await
    }

    async fn answer(&mut self, answer: Answer, signer: &Signer, kind: MessageType, received: std::time::Instant, bytes: u64) -> Result<(), Ended> {
        self.shared.counters.count(kind, bytes.max(answer.value.len() as u64), received.elapsed());
        let message = signer.sign(&answer.command);
        self.encode(&message, &answer.value).await
    }

    /// Adds a frame to what is sent next.
    async fn encode(&mut self, message: &Message, value: &Bytes) -> Result<(), Ended> {
        if value.len() <= COPIED {
            encode_into(message, value, &mut self.out).map_err(|_| Ended)?;
            // A client that sends and does not read is not served further.
            return if self.out.len() > COPIED { self.flush().await } else { Ok(()) };
        }
        self.out.extend_from_slice(&encode_head(message, value.len()).map_err(|_| Ended)?);
        self.flush().await?;
        let connection = &mut self.connection;
        let writing = async {
            connection.write_all(value).await?;
            // A connection with TLS may hold the last record back.
            connection.flush().await
        };
        sent(timeout(self.shared.options.patience, writing).await)
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        if self.out.is_empty() {
            return Ok(());
        }
        let connection = &mut self.connection;
        let out = &self.out;
        let writing = async {
            connection.write_all(out).await?;
            connection.flush().await
        };
        sent(timeout(self.shared.options.patience, writing).await)?;
        self.out.clear();
        Ok(())
    }
}

/// How many reads and other long requests, and how many writes, of one connection may wait. Further requests stay in
/// the connection until one of them is answered.
fn depths(limits: &Limits) -> (usize, usize) {
    let depth = |field| told(field).map_or(DEPTH, |depth| depth as usize);
    (depth(limits.max_outstanding_read_requests), depth(limits.max_outstanding_write_requests))
}

fn sent(written: Result<std::io::Result<()>, tokio::time::error::Elapsed>) -> Result<(), Ended> {
    match written {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(Ended),
    }
}
