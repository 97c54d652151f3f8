//! One connection: the negotiation, then requests and their replies.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use skytether_transport::write_replies;
use skytether_volume::BlockDevice;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::ahead::Ahead;
use crate::commands::{self, Form, Pieces};
use crate::negotiation::{Export, Negotiation, Next};
use crate::options::Options;
use crate::wire::{MAGIC, OPTION_LEN, OPTION_MAGIC, OPTION_MOST, OptionHead, PAYLOAD_MOST, REQUEST_LEN, Request, command, handshake, option};

/// What all connections of a door share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) volumes: Vec<(String, Arc<dyn BlockDevice>)>,
    pub(crate) options: Options,
    /// Bytes of payload that requests may hold.
    pub(crate) bytes: Arc<Semaphore>,
}

/// What the client has chosen.
struct Chosen {
    device: Arc<dyn BlockDevice>,
    form: Form,
}

/// The connection ends: the client has gone, is too slow or sent what is no NBD.
struct Ended;

impl From<std::io::Error> for Ended {
    fn from(_: std::io::Error) -> Self {
        Self
    }
}

impl From<tokio::time::error::Elapsed> for Ended {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self
    }
}

/// A reply, with the room in memory that it holds until it is written.
type Reply = (Pieces, [OwnedSemaphorePermit; 2]);

/// Serves one connection until it ends, or until `shutdown`. The negotiation may take `negotiation_time`.
pub(crate) async fn converse<S>(shared: Arc<Shared>, connection: S, negotiation_time: Duration, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (reading, mut writing) = tokio::io::split(connection);
    let mut reading = BufReader::with_capacity(64 << 10, Ahead::new(reading));
    let negotiated = tokio::select! {
        negotiated = timeout(negotiation_time, negotiate(&shared, &mut reading, &mut writing)) => negotiated,
        () = shutdown.cancelled() => return,
    };
    let Ok(Ok(Some(chosen))) = negotiated else { return };
    let (replies, waiting) = mpsc::channel(shared.options.requests);
    let broken = CancellationToken::new();
    let patience = shared.options.patience;
    let writer = tokio::spawn({
        let broken = broken.clone();
        async move {
            // A client that does not read is not served further.
            if write_replies(waiting, writing, patience, |reply: Reply| reply).await.is_err() {
                broken.cancel();
            }
        }
    });
    let mut requests = JoinSet::new();
    let parted = tokio::select! {
        ended = read_requests(&shared, &mut reading, &chosen, &mut requests, replies) => ended.is_ok(),
        () = shutdown.cancelled() => true,
        () = broken.cancelled() => false,
    };
    if parted {
        // What was begun is finished, and answered where the client still reads.
        tokio::select! {
            () = async { while requests.join_next().await.is_some() {} } => {}
            () = broken.cancelled() => {}
        }
    }
    // A client that has gone repeats on its next connection what was not answered here. A write that waits for room
    // must not be carried out after that.
    requests.shutdown().await;
    let _ = writer.await;
}

/// The negotiation. `None` where the client ends it.
async fn negotiate<R, W>(shared: &Shared, reading: &mut R, writing: &mut W) -> Result<Option<Chosen>, Ended>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut out = BytesMut::new();
    out.put_u64(MAGIC);
    out.put_u64(OPTION_MAGIC);
    out.put_u16(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    writing.write_all(&out).await?;
    writing.flush().await?;
    let Some(mut negotiation) = Negotiation::new(reading.read_u32().await?) else { return Err(Ended) };
    let exports: Vec<Export> = shared.volumes.iter().map(|(name, device)| Export { name: name.clone(), info: device.info() }).collect();
    loop {
        let mut head = [0; OPTION_LEN];
        reading.read_exact(&mut head).await?;
        let head = OptionHead::parse(&head).ok_or(Ended)?;
        if head.len > OPTION_MOST {
            return Err(Ended);
        }
        let mut payload = vec![0; head.len as usize];
        reading.read_exact(&mut payload).await?;
        out.clear();
        let next = negotiation.answer(&exports, head.option, &payload, &mut out);
        let written = async {
            writing.write_all(&out).await?;
            writing.flush().await
        };
        let written = timeout(shared.options.patience, written).await;
        match next {
            // A client that aborts need not wait for the answer.
            Next::Close if head.option == option::ABORT => return Ok(None),
            Next::Close => return Err(Ended),
            Next::Option => written??,
            Next::Transmission { export, allocation } => {
                written??;
                let device = Arc::clone(&shared.volumes.get(export).ok_or(Ended)?.1);
                return Ok(Some(Chosen { device, form: Form { structured: negotiation.structured, allocation } }));
            }
        }
    }
}

/// Reads requests and begins them, until the client ends.
async fn read_requests<R>(
    shared: &Shared,
    reading: &mut BufReader<Ahead<R>>,
    chosen: &Chosen,
    requests: &mut JoinSet<()>,
    replies: mpsc::Sender<Reply>,
) -> Result<(), Ended>
where
    R: AsyncRead + Unpin,
{
    let slots = Arc::new(Semaphore::new(shared.options.requests));
    // One client can't hold all that the door has.
    let share = Arc::new(Semaphore::new((shared.options.bytes / 4).max(PAYLOAD_MOST as usize)));
    let patience = shared.options.patience;
    loop {
        // A client may be silent between requests as long as it likes; the system probes whether it is there.
        if reading.fill_buf().await?.is_empty() {
            return Err(Ended);
        }
        let mut head = [0; REQUEST_LEN];
        timeout(patience, reading.read_exact(&mut head)).await??;
        let request = Request::parse(&head).ok_or(Ended)?;
        if request.command == command::DISC {
            return Ok(());
        }
        // Of a request of an unknown type it is assumed that it has no payload: only writes have one.
        let is_write = request.command == command::WRITE;
        if is_write && request.len > PAYLOAD_MOST {
            return Err(Ended);
        }
        let slot = permit(reading, Arc::clone(&slots).acquire_owned()).await?;
        let moved = if is_write || request.command == command::READ && request.len <= PAYLOAD_MOST { request.len } else { 0 };
        let own = permit(reading, Arc::clone(&share).acquire_many_owned(moved)).await?;
        let room = [own, permit(reading, Arc::clone(&shared.bytes).acquire_many_owned(moved)).await?];
        let payload = if is_write { timeout(patience, read_payload(reading, request.len as usize)).await?? } else { Bytes::new() };
        let (device, form, replies) = (Arc::clone(&chosen.device), chosen.form, replies.clone());
        requests.spawn(async move {
            let pieces = commands::run(device.as_ref(), request, payload, form).await;
            // It fails where the connection has ended.
            let _ = replies.send((pieces, room)).await;
            drop(slot);
        });
        while requests.try_join_next().is_some() {}
    }
}

/// Waits for a permit as long as the client is there: what it left behind must not wait with it.
async fn permit<R, A>(reading: &mut BufReader<Ahead<R>>, acquire: A) -> Result<OwnedSemaphorePermit, Ended>
where
    R: AsyncRead + Unpin,
    A: Future<Output = Result<OwnedSemaphorePermit, AcquireError>>,
{
    tokio::select! {
        biased;
        permit = acquire => permit.map_err(|_| Ended),
        () = reading.get_mut().gone() => Err(Ended),
    }
}

async fn read_payload<R: AsyncRead + Unpin>(reading: &mut R, len: usize) -> Result<Bytes, Ended> {
    let mut payload = BytesMut::with_capacity(len);
    while payload.len() < len {
        let missing = (len - payload.len()) as u64;
        if (&mut *reading).take(missing).read_buf(&mut payload).await? == 0 {
            return Err(Ended);
        }
    }
    Ok(payload.freeze())
}
