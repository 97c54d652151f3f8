//! One connection: its login, and the session that it leads to.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skytether_scsi::{InitiatorPort, Target};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::answers::Answers;
use crate::commands::Commands;
use crate::decoder::{Decoder, Digests, Space};
use crate::login::{Established, Login, MAX_LOGIN_SEGMENT, Reply, Status, Step, TargetIdentity};
use crate::memory::{Memory, Queue};
use crate::options::Options;
use crate::output::Output;
use crate::parameters::MAX_SEGMENT;
use crate::pdu::Header;
use crate::session::{End, Session, Surroundings};
use crate::sessions::{Place, Sessions};

/// The share of what is left of the memory for unasked data that a session may take.
const SHARE: u64 = 64;

/// The least commands of a session under way.
const MIN_DEPTH: u32 = 4;

/// What the connections of a target share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Arc<TargetIdentity>,
    pub(crate) target: Arc<Target>,
    pub(crate) options: Arc<Options>,
    pub(crate) sessions: Arc<Sessions>,
    /// For reads and requested writes.
    pub(crate) memory: Memory,
    /// For what initiators may send without being asked.
    pub(crate) unasked: Memory,
}

/// Serves one connection until it ends. `address` is that of the portal.
pub(crate) async fn serve<S>(shared: Arc<Shared>, mut connection: S, peer: String, address: Option<String>, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut decoder = Decoder::new(MAX_LOGIN_SEGMENT);
    let logging_in = log_in(&shared, &mut connection, &mut decoder);
    let login = tokio::select! {
        login = timeout(shared.options.login_time, logging_in) => login,
        () = shutdown.cancelled() => return,
    };
    let (reply, login) = match login {
        Ok(Some(login)) => login,
        Ok(None) => return tracing::debug!(peer, "an iSCSI login was not completed"),
        Err(_) => return tracing::warn!(peer, "ended a connection: its iSCSI login took too long"),
    };
    let result = if login.discovery { Ok(None) } else { shared.sessions.enter(&login).await.map(Some) };
    let (place, depth, unasked) = match result.and_then(|place| depth(&shared, &login).map(|(depth, unasked)| (place, depth, unasked))) {
        Ok(made) => made,
        Err(status) => return refuse(&mut connection, reply, status, &peer).await,
    };
    let initiator = login.initiator.clone();
    tracing::info!(peer, initiator, discovery = login.discovery, "an iSCSI session begins");
    let end = converse(&shared, connection, decoder, (reply, *login), place.as_ref(), depth, address, shutdown).await;
    drop((place, unasked));
    if matches!(end, End::Reset) {
        shared.sessions.end_all();
    }
    match end {
        End::Violation(what) | End::Late(what) => tracing::warn!(peer, initiator, "ended an iSCSI session: {what}"),
        end => tracing::info!(peer, initiator, ?end, "an iSCSI session ended"),
    }
}

/// How many commands of the session may be under way, and the memory for what they may send without being asked.
fn depth(shared: &Shared, login: &Established) -> Result<(u32, impl Drop + use<>), Status> {
    let each = u64::from(login.parameters.first_burst);
    let fair = u32::try_from(shared.unasked.left() / SHARE / each).unwrap_or(u32::MAX);
    let depth = fair.clamp(MIN_DEPTH, shared.options.depth.max(MIN_DEPTH));
    let held = shared.unasked.take(u64::from(depth) * each).ok_or(Status::Resources)?;
    Ok((depth, held))
}

/// The login up to the last response, which is not sent yet. `None` where it failed.
async fn log_in<S>(shared: &Shared, connection: &mut S, decoder: &mut Decoder) -> Option<(Reply, Box<Established>)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut login = Login::new(Arc::clone(&shared.identity));
    loop {
        let (header, data) = read_unit(connection, decoder).await?;
        match login.step(&header, &data) {
            Step::Continue(reply) => write(connection, reply).await?,
            Step::Complete(reply, established) => return Some((reply, established)),
            Step::Refuse(reply) => {
                write(connection, reply).await?;
                return None;
            }
        }
    }
}

async fn read_unit<S: AsyncRead + Unpin>(connection: &mut S, decoder: &mut Decoder) -> Option<(Header, BytesMut)> {
    let mut header = None;
    loop {
        if header.is_none() {
            header = decoder.header().ok()?;
            match header {
                Some(header) if header.data_length() == 0 => return Some((header, BytesMut::new())),
                Some(_) => decoder.receive(BytesMut::new()),
                None => {}
            }
        }
        if let Some(data) = decoder.data() {
            return header.map(|header| (header, data.bytes));
        }
        let (read, into_data) = match decoder.space() {
            Space::Buffer(mut space) => (connection.read_buf(&mut space).await, false),
            Space::Data(mut space) => (connection.read_buf(&mut space).await, true),
        };
        match read {
            Ok(n) if n > 0 => decoder.filled(n, into_data),
            _ => return None,
        }
    }
}

async fn write<S: AsyncWrite + Unpin>(connection: &mut S, reply: Reply) -> Option<()> {
    let mut out = Output::default();
    out.put(reply.header, Bytes::from(reply.text));
    std::future::poll_fn(|cx| out.poll_write(cx, connection)).await.ok()
}

/// Takes back a response that would have completed a login.
async fn refuse<S: AsyncWrite + Unpin>(connection: &mut S, mut reply: Reply, status: Status, peer: &str) {
    tracing::warn!(peer, ?status, "refused an iSCSI login");
    reply.header.0[1] = 0;
    reply.header.set_u16(36, status as u16);
    reply.text.clear();
    let _ = timeout(Duration::from_secs(1), write(connection, reply)).await;
}

#[expect(clippy::too_many_arguments, reason = "each is the part of a session that another function made")]
async fn converse<S>(
    shared: &Shared,
    connection: S,
    mut decoder: Decoder,
    (mut reply, login): (Reply, Established),
    place: Option<&Place>,
    depth: u32,
    address: Option<String>,
    shutdown: CancellationToken,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // A discovery session has no entry, but a handle all the same.
    reply.header.set_u16(14, place.map_or(u16::MAX, |place| place.tsih));
    reply.header.set_u32(32, login.cmd_sn.wrapping_add(depth).wrapping_sub(1));
    let mut out = Output::default();
    out.put(reply.header, Bytes::from(reply.text));
    // Digests begin with the full feature phase.
    let digests: Digests = login.parameters.digests;
    out.set_digests(digests);
    decoder.set(digests, MAX_SEGMENT as usize);
    let answers = Answers::new(out, login.parameters, login.stat_sn, login.cmd_sn, depth);
    let commands = place.map(|_| {
        let [a, b, c, d, e, f] = login.isid;
        let name = format!("{},i,0x{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}", login.initiator);
        let nexus = shared.target.connect(InitiatorPort { name, target_port: 1 });
        Commands::new(nexus, Queue::new(shared.memory.clone(), shared.options.session_memory), shared.options.transfer)
    });
    let surroundings = Surroundings {
        target: Arc::clone(&shared.identity),
        options: Arc::clone(&shared.options),
        address,
        replaced: Box::pin(place.map(|place| place.replaced.clone()).unwrap_or_default().cancelled_owned()),
        // A token of its own: all sessions would wait for one lock.
        shutdown: Box::pin(shutdown.child_token().cancelled_owned()),
    };
    Session::new(connection, decoder, answers, commands, surroundings, login.cid).run().await
}
