//! One connection: it is opened, becomes a queue, and then has commands until it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use skytether_transport::write_replies;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::command::{COMMAND, CONNECT_DATA, Command, Connect, ConnectData, Place, Status, admin, fabrics, io};
use crate::controller::{Controller, Subsystem};
use crate::identify::TRANSFER;
use crate::pdu::{CONNECTION, DataHeader, Digests, Fatal, Framing, HEAD, Head, Layout, Opening, fatal, flag, kind, terminate};
use crate::queue::{Arrived, Connected, Fused, Reply, Room, Second, Transfer};

/// How long the association of a host may be silent that promised nothing, before that is looked at again.
const LOOK: Duration = Duration::from_secs(5);

/// The longest header after its first eight bytes.
const HEADER: usize = COMMAND;

/// Why a connection ends.
#[derive(Debug)]
enum Ended {
    /// The host has gone, says so, or is too slow.
    Gone,
    /// It sent what it must not. The header of the wrong unit goes back with the reason.
    Wrong(Fatal, Vec<u8>),
}

impl From<std::io::Error> for Ended {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

impl From<tokio::time::error::Elapsed> for Ended {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::Gone
    }
}

/// Serves one connection until it ends, or until `shutdown`. Until it is a queue it may take `opening_time`.
pub(crate) async fn converse<S>(subsystem: Arc<Subsystem>, connection: S, opening_time: Duration, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (reading, mut writing) = tokio::io::split(connection);
    let mut reading = BufReader::with_capacity(64 << 10, reading);
    let opened = tokio::select! {
        opened = timeout(opening_time, open(&subsystem, &mut reading, &mut writing)) => opened,
        () = shutdown.cancelled() => return,
    };
    let patience = subsystem.options.patience;
    let (connected, waiting) = match opened {
        Ok(Ok(Some(connected))) => connected,
        Ok(Ok(None)) | Err(_) | Ok(Err(Ended::Gone)) => return,
        Ok(Err(Ended::Wrong(why, header))) => {
            let said = async {
                writing.write_all(&terminate(why, &header)).await?;
                writing.shutdown().await
            };
            let _ = timeout(patience, said).await;
            return;
        }
    };
    let (connected, queue) = (Arc::new(connected), Arc::clone(&waiting.0));
    let broken = CancellationToken::new();
    let writer = tokio::spawn({
        let broken = broken.clone();
        async move {
            // A host that does not read is not served further.
            if write_replies(waiting.1, writing, patience, parts).await.is_err() {
                broken.cancel();
            }
        }
    });
    let mut commands = JoinSet::new();
    let ended = tokio::select! {
        ended = read_units(&connected, &mut reading, &mut commands) => ended,
        () = silence(&connected) => Ended::Gone,
        () = shutdown.cancelled() => Ended::Gone,
        () = queue.ended.cancelled() => Ended::Gone,
        () = broken.cancelled() => Ended::Gone,
    };
    // The host repeats on its next connection what was not answered here. A write that waits for room must not be
    // carried out after that: what is with the device is dropped, before anyone hears that the queue has ended.
    queue.ended.cancel();
    connected.transfers.lock().clear();
    commands.shutdown().await;
    subsystem.disconnect(&connected.controller, connected.number, &queue);
    if let Ended::Wrong(why, header) = ended {
        tracing::debug!(?why, "ended a connection of a host that sent what it must not");
        connected.send(Reply { pieces: vec![terminate(why, &header)], room: None, slot: None }).await;
    }
    drop(connected);
    let _ = writer.await;
}

/// Returns when the host of an admin queue counts as gone.
async fn silence(connected: &Connected) {
    if connected.number > 0 {
        return std::future::pending().await;
    }
    loop {
        match connected.controller.deadline() {
            Some(deadline) if deadline <= Instant::now() => {
                tracing::warn!(controller = connected.controller.id, "ended an association: its host sent no keep-alive in time");
                return;
            }
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => tokio::time::sleep(LOOK).await,
        }
    }
}

type Opened = (Connected, (Arc<crate::controller::Queue>, mpsc::Receiver<Reply>));

/// The opening and the first command, which must be Connect. `None` where Connect was refused.
async fn open<R, W>(subsystem: &Arc<Subsystem>, reading: &mut BufReader<R>, writing: &mut W) -> Result<Option<Opened>, Ended>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut request = [0; CONNECTION];
    reading.read_exact(&mut request[..HEAD]).await?;
    // What does not begin as an opening is not read to its end.
    if request[0] != kind::IC_REQUEST || request[2] as usize != CONNECTION {
        return Err(Ended::Wrong(Fatal::of(fatal::SEQUENCE), request[..HEAD].to_vec()));
    }
    reading.read_exact(&mut request[HEAD..]).await?;
    let opening = Opening::parse(&request).map_err(|why| Ended::Wrong(why, request.to_vec()))?;
    writing.write_all(&opening.answer()).await?;
    writing.flush().await?;
    let framing = Framing { digests: opening.digests, alignment: opening.alignment };

    let unit = read_header(reading, framing.digests).await?;
    if unit.head.kind != kind::COMMAND {
        return Err(Ended::Wrong(Fatal::of(fatal::SEQUENCE), unit.bytes()));
    }
    let command = Command::new(unit.header);
    let data = read_data(reading, unit.layout).await?;
    let connect = command.connect();
    let outcome = begin(subsystem, &command, &connect, data).await;
    let (replies, waiting) = mpsc::channel(64);
    let flow_control = connect.attributes & 1 << 2 == 0;
    let make = |controller: Arc<Controller>, queue| Connected {
        subsystem: Arc::clone(subsystem),
        controller,
        queue,
        number: connect.queue,
        size: connect.size.saturating_add(1),
        flow_control,
        framing,
        share: Arc::new(Semaphore::new((subsystem.options.bytes / 4).max(2 * TRANSFER as usize))),
        transfers: Mutex::new(HashMap::new()),
        replies,
        head: AtomicU16::new(0),
    };
    let (pieces, opened) = match outcome {
        Ok((controller, queue)) => {
            let result = u64::from(controller.id);
            let connected = make(controller, Arc::clone(&queue));
            (connected.completion(command.id(), Status::SUCCESS, result), Some((connected, (queue, waiting))))
        }
        Err(status) => {
            let header = crate::command::completion(command.id(), connect.queue, 0, status, 0);
            (framing.unit(kind::RESPONSE, 0, &header, Bytes::new()), None)
        }
    };
    let said = async {
        writing.write_all(&pieces.concat()).await?;
        writing.flush().await
    };
    said.await?;
    Ok(opened)
}

async fn begin(
    subsystem: &Subsystem,
    command: &Command,
    connect: &Connect,
    data: Result<Bytes, Status>,
) -> Result<(Arc<Controller>, Arc<crate::controller::Queue>), Status> {
    if command.opcode() != admin::FABRICS || command.fabrics_type() != fabrics::CONNECT {
        return Err(Status::SEQUENCE);
    }
    let data = data?;
    let Place::Capsule { offset: 0, len } = command.place()? else { return Err(Status::SGL_TYPE) };
    if len as usize != CONNECT_DATA || data.len() != CONNECT_DATA {
        return Err(Status::DATA_LENGTH);
    }
    let data = ConnectData::parse(&data).ok_or(Status::CONNECT_PARAMETERS)?;
    subsystem.await_former(connect, &data).await;
    subsystem.connect(connect, &data)
}

/// A unit whose header was read.
struct Unit {
    head: Head,
    layout: Layout,
    header: [u8; HEADER],
}

impl Unit {
    /// The header as it came.
    fn bytes(&self) -> Vec<u8> {
        [&self.head.encode()[..], &self.header[..self.layout.header]].concat()
    }

    fn wrong(&self, why: Fatal) -> Ended {
        Ended::Wrong(why, self.bytes())
    }
}

async fn read_header<R: AsyncRead + Unpin>(reading: &mut BufReader<R>, digests: Digests) -> Result<Unit, Ended> {
    let mut bytes = [0; HEAD];
    reading.read_exact(&mut bytes).await?;
    let head = Head::parse(&bytes);
    let layout = head.layout(digests).map_err(|why| Ended::Wrong(why, bytes.to_vec()))?;
    let mut unit = Unit { head, layout, header: [0; HEADER] };
    reading.read_exact(&mut unit.header[..layout.header]).await?;
    if layout.header_digest && reading.read_u32_le().await? != crc32c::crc32c_append(crc32c::crc32c(&bytes), &unit.header[..layout.header]) {
        return Err(unit.wrong(Fatal::of(fatal::HEADER_DIGEST)));
    }
    let mut padding = [0; 128];
    reading.read_exact(&mut padding[..layout.padding]).await?;
    Ok(unit)
}

/// The data of a unit; of a wrong digest the command's status tells.
async fn read_data<R: AsyncRead + Unpin>(reading: &mut BufReader<R>, layout: Layout) -> Result<Result<Bytes, Status>, Ended> {
    let mut data = BytesMut::new();
    let is_right = append_data(reading, layout, &mut data).await?;
    Ok(if is_right { Ok(data.freeze()) } else { Err(Status::TRANSIENT_TRANSPORT) })
}

/// Appends the data of a unit. Whether its digest is right.
async fn append_data<R: AsyncRead + Unpin>(reading: &mut BufReader<R>, layout: Layout, to: &mut BytesMut) -> Result<bool, Ended> {
    let (begin, end) = (to.len(), to.len() + layout.data);
    to.reserve(layout.data);
    while to.len() < end {
        let missing = (end - to.len()) as u64;
        if (&mut *reading).take(missing).read_buf(to).await? == 0 {
            return Err(Ended::Gone);
        }
    }
    Ok(!layout.data_digest || reading.read_u32_le().await? == crc32c::crc32c(&to[begin..]))
}

/// Reads units and begins commands, until the connection ends.
async fn read_units<R: AsyncRead + Unpin>(connected: &Arc<Connected>, reading: &mut BufReader<R>, commands: &mut JoinSet<()>) -> Ended {
    let slots = Arc::new(Semaphore::new(connected.size.into()));
    let mut first: Option<oneshot::Sender<Second>> = None;
    loop {
        match read_unit(connected, reading, commands, &slots, &mut first).await {
            Ok(()) => while commands.try_join_next().is_some() {},
            Err(ended) => return ended,
        }
    }
}

async fn read_unit<R: AsyncRead + Unpin>(
    connected: &Arc<Connected>,
    reading: &mut BufReader<R>,
    commands: &mut JoinSet<()>,
    slots: &Arc<Semaphore>,
    first: &mut Option<oneshot::Sender<Second>>,
) -> Result<(), Ended> {
    // A host may be silent between units, as long as it keeps its association alive.
    if reading.fill_buf().await?.is_empty() {
        return Err(Ended::Gone);
    }
    let patience = connected.subsystem.options.patience;
    let unit = timeout(patience, read_header(reading, connected.framing.digests)).await??;
    match unit.head.kind {
        kind::COMMAND => {}
        kind::H2C_DATA => return timeout(patience, read_transfer(connected, reading, &unit)).await?,
        _ => return Err(Ended::Gone),
    }
    let data = timeout(patience, read_data(reading, unit.layout)).await??;
    connected.controller.hear();
    let command = Command::new(unit.header);
    // A host has at most as many commands under way as the queue has entries.
    let slot = Arc::clone(slots).try_acquire_owned().map_err(|_| unit.wrong(Fatal::of(fatal::SEQUENCE)))?;
    let is_io = connected.number > 0;
    if command.opcode() == admin::FABRICS && command.fabrics_type() == fabrics::DISCONNECT && is_io {
        let pieces = connected.completion(command.id(), Status::SUCCESS, 0);
        connected.send(Reply { pieces, room: None, slot: Some(slot) }).await;
        return Err(Ended::Gone);
    }
    let cancel = connected.queue.ended.child_token();
    let can_abort = is_io && command.opcode() == io::EXEC_OUT;
    let is_new = {
        let mut under_way = connected.queue.commands.lock();
        !under_way.contains_key(&command.id()) && under_way.insert(command.id(), can_abort.then(|| cancel.clone())).is_none()
    };
    if !is_new {
        let pieces = connected.completion(command.id(), Status::ID_CONFLICT, 0);
        connected.send(Reply { pieces, room: None, slot: Some(slot) }).await;
        return Ok(());
    }
    let waits = first.take();
    let fused = match (command.fuse(), waits) {
        (0, _) => Fused::Alone,
        (1, _) if is_io && command.opcode() == io::COMPARE => {
            let (sender, second) = oneshot::channel();
            *first = Some(sender);
            Fused::First(second)
        }
        (2, Some(waiting)) if command.opcode() == io::WRITE => Fused::Second(waiting),
        _ => Fused::Broken,
    };
    let connected = Arc::clone(connected);
    commands.spawn(async move { connected.handle(Arrived { command, data, slot, cancel }, fused).await });
    Ok(())
}

/// Data of a command, as an R2T allowed it: in order, in as many units as the host likes.
async fn read_transfer<R: AsyncRead + Unpin>(connected: &Connected, reading: &mut BufReader<R>, unit: &Unit) -> Result<(), Ended> {
    let mut header = [0; 16];
    header.copy_from_slice(&unit.header[..16]);
    let header = DataHeader::parse(&header);
    let removed = connected.transfers.lock().remove(&header.tag);
    let mut transfer: Transfer = removed.ok_or_else(|| unit.wrong(Fatal::field(10)))?;
    if header.command != header.tag {
        return Err(unit.wrong(Fatal::field(8)));
    }
    let received = transfer.received.len() as u64;
    let end = received + u64::from(header.len);
    if header.len as usize != unit.layout.data || u64::from(header.offset) != received || header.len == 0 || end > transfer.expected.into() {
        return Err(unit.wrong(Fatal::of(fatal::RANGE)));
    }
    let is_last = end == u64::from(transfer.expected);
    if (unit.head.flags & flag::LAST != 0) != is_last {
        return Err(unit.wrong(Fatal::field(1)));
    }
    let is_right = append_data(reading, unit.layout, &mut transfer.received).await?;
    transfer.is_damaged |= !is_right;
    if !is_last {
        connected.transfers.lock().insert(header.tag, transfer);
        return Ok(());
    }
    let data = if transfer.is_damaged { Err(Status::TRANSIENT_TRANSPORT) } else { Ok(transfer.received.freeze()) };
    // The command may have lost its patience.
    let _ = transfer.done.send(data);
    Ok(())
}

/// What is written of a reply, and what it holds until then. The host may send the next command once it sees it.
fn parts(Reply { pieces, room, slot }: Reply) -> (Vec<Bytes>, Option<Room>) {
    drop(slot);
    (pieces, room)
}
