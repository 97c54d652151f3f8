//! A session in its full feature phase: its one connection, read and written until it ends.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::answers::{Answers, Place};
use crate::commands::{Commands, Done, Violation};
use crate::decoder::{Broken, Decoder, Space};
use crate::login::TargetIdentity;
use crate::options::Options;
use crate::pdu::{Header, NO_TAG, Reason, before, opcode};
use crate::targets;
use crate::task::Plan;

/// Answers that may wait before no more requests are read, in bytes. Those of reads are bounded by their memory.
const MAX_WAITING: u64 = 2 << 20;

/// How long an initiator has to log out when the target shuts down.
const FAREWELL: Duration = Duration::from_secs(2);

/// Seconds that initiators are asked to wait before they log in again.
const WAIT: u16 = 2;

/// Events of asynchronous messages.
const ASK_FOR_LOGOUT: u8 = 1;
const SESSION_ENDS: u8 = 3;

/// Why a session ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The initiator logged out.
    Logout,
    /// The connection is gone.
    Gone,
    /// The initiator did something that it may not do.
    Violation(&'static str),
    /// The initiator is too slow, or silent.
    Late(&'static str),
    /// The initiator has logged in again, or another one has reset the target.
    Replaced,
    /// The initiator has reset the target.
    Reset,
    /// The target shuts down.
    Shutdown,
}

/// A unit whose data comes.
#[derive(Debug)]
enum Incoming {
    Command(Header, Plan),
    Data(Header, bool),
    Other(Header),
}

/// A request that came before its turn.
#[derive(Debug)]
enum Early {
    Command(u32),
    Request(Header, Bytes),
    /// A command that never came, and was ended.
    Ended,
}

#[derive(Debug)]
enum Event {
    Read,
    Gone,
    Done(Done),
    Tick,
    Replaced,
    Shutdown,
}

/// What surrounds a session.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) target: Arc<TargetIdentity>,
    pub(crate) options: Arc<Options>,
    /// The address that initiators reach, if it is one.
    pub(crate) address: Option<String>,
    pub(crate) replaced: Cancelled,
    pub(crate) shutdown: Cancelled,
}

/// A token's end. It is made once a session, because a new one each time costs as much as a small command.
pub(crate) type Cancelled = Pin<Box<WaitForCancellationFutureOwned>>;

/// A session.
#[derive(Debug)]
pub(crate) struct Session<S> {
    connection: S,
    decoder: Decoder,
    incoming: Option<Incoming>,
    answers: Answers,
    /// None in a discovery session.
    commands: Option<Commands>,
    early: HashMap<u32, Early>,
    surroundings: Surroundings,
    cid: u16,
    ticks: Interval,
    last_unit: Instant,
    probed: Option<Instant>,
    progress: (u64, Instant),
    leaving: Option<Instant>,
}

/// How often deadlines are looked at.
fn tick(options: &Options) -> Duration {
    let shortest = options.probe_after.min(options.probe_time).min(options.write_time).min(options.transfer_time);
    (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    pub(crate) fn new(connection: S, decoder: Decoder, answers: Answers, commands: Option<Commands>, surroundings: Surroundings, cid: u16) -> Self {
        let mut ticks = interval(tick(&surroundings.options));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let now = Instant::now();
        Self {
            connection,
            decoder,
            incoming: None,
            answers,
            commands,
            early: HashMap::new(),
            surroundings,
            cid,
            ticks,
            last_unit: now,
            probed: None,
            progress: (0, now),
            leaving: None,
        }
    }

    /// Serves until the session ends. What waits to be written then is still written, if the initiator reads it.
    pub(crate) async fn run(&mut self) -> End {
        let end = self.serve().await;
        if let Some(commands) = &mut self.commands {
            commands.lost();
        }
        if matches!(end, End::Shutdown) {
            self.answers.event(SESSION_ENDS, [0, WAIT, 0]);
        }
        if !matches!(end, End::Gone | End::Replaced | End::Late(_)) {
            let last = async {
                poll_fn(|cx| self.answers.out.poll_write(cx, &mut self.connection)).await?;
                poll_fn(|cx| Pin::new(&mut self.connection).poll_shutdown(cx)).await
            };
            let _: Result<io::Result<()>, _> = tokio::time::timeout(FAREWELL, last).await;
        }
        end
    }

    async fn serve(&mut self) -> End {
        loop {
            while self.answers.out.len() < MAX_WAITING {
                match self.next_unit() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(end) => return end,
                }
            }
            match self.event().await {
                Event::Read => {}
                Event::Gone => return End::Gone,
                Event::Done(done) => {
                    if let Some(commands) = &mut self.commands {
                        commands.settle(done, &mut self.answers);
                        if commands.is_cold() {
                            return End::Reset;
                        }
                    }
                }
                Event::Tick => {
                    if let Some(end) = self.tick() {
                        return end;
                    }
                }
                Event::Replaced => return End::Replaced,
                Event::Shutdown => {
                    self.answers.event(ASK_FOR_LOGOUT, [0, 0, FAREWELL.as_secs() as u16]);
                    self.leaving = Some(Instant::now());
                }
            }
        }
    }

    /// Writes, reads and waits, whatever is first.
    async fn event(&mut self) -> Event {
        let wants = self.answers.out.len() < MAX_WAITING;
        let leaving = self.leaving.is_some();
        let Self { connection, decoder, answers, commands, surroundings, ticks, .. } = self;
        let Surroundings { replaced, shutdown, .. } = surroundings;
        poll_fn(|cx| {
            if let Poll::Ready(Err(_)) = answers.out.poll_write(cx, connection) {
                return Poll::Ready(Event::Gone);
            }
            // There is room for answers again: half of it, so that there is something to write meanwhile.
            if !wants && answers.out.len() < MAX_WAITING / 2 {
                return Poll::Ready(Event::Read);
            }
            if let Some(commands) = commands
                && let Poll::Ready(done) = commands.poll_next(cx)
            {
                return Poll::Ready(Event::Done(done));
            }
            if wants {
                let (read, into_data) = match decoder.space() {
                    Space::Buffer(mut space) => (pin!(connection.read_buf(&mut space)).poll(cx), false),
                    Space::Data(mut space) => (pin!(connection.read_buf(&mut space)).poll(cx), true),
                };
                match read {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Event::Gone),
                    Poll::Ready(Ok(n)) => {
                        decoder.filled(n, into_data);
                        return Poll::Ready(Event::Read);
                    }
                    Poll::Pending => {}
                }
            }
            if replaced.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Replaced);
            }
            if !leaving && shutdown.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Shutdown);
            }
            ticks.poll_tick(cx).map(|_| Event::Tick)
        })
        .await
    }

    /// Looks at all deadlines.
    fn tick(&mut self) -> Option<End> {
        let (now, options) = (Instant::now(), Arc::clone(&self.surroundings.options));
        let written = self.answers.out.written();
        if self.answers.out.is_empty() || written != self.progress.0 {
            self.progress = (written, now);
        } else if now - self.progress.1 > options.write_time {
            return Some(End::Late("it reads no answers"));
        }
        if self.commands.as_ref().is_some_and(|commands| commands.is_stuck(options.transfer_time)) {
            return Some(End::Late("the data of a write did not come"));
        }
        match self.probed {
            Some(probed) if now - probed > options.probe_time => return Some(End::Late("it does not answer")),
            None if now - self.last_unit > options.probe_after => {
                self.answers.ping();
                self.probed = Some(now);
            }
            _ => {}
        }
        let leaving = self.leaving?;
        let idle = self.commands.as_ref().is_none_or(Commands::is_empty);
        (now - leaving > FAREWELL || idle && now - leaving > FAREWELL / 2).then_some(End::Shutdown)
    }

    /// Handles the next unit, if it is whole. `false` if more bytes are needed.
    fn next_unit(&mut self) -> Result<bool, End> {
        if self.incoming.is_none() {
            let header = self.decoder.header().map_err(|broken| match broken {
                Broken::HeaderDigest => End::Violation("the digest of a header is wrong"),
                Broken::TooLong => End::Violation("a data segment is longer than was declared"),
            })?;
            let Some(header) = header else { return Ok(false) };
            return self.header(header).map(|()| true);
        }
        let Some(data) = self.decoder.data() else { return Ok(false) };
        let Some(incoming) = self.incoming.take() else { return Ok(false) };
        self.alive();
        match incoming {
            Incoming::Data(unit, wanted) => {
                if let Some(commands) = &mut self.commands {
                    commands.data(&unit, wanted.then_some(data.bytes), data.intact, &mut self.answers);
                }
            }
            Incoming::Command(header, _) | Incoming::Other(header) if !data.intact => {
                // Without it, its number is missing, and no later command could be carried out.
                self.answers.reject(&header, Reason::DataDigest);
                return Err(End::Violation("the digest of a request's data is wrong"));
            }
            Incoming::Command(header, plan) => self.command(header, plan, data.bytes)?,
            Incoming::Other(header) => self.request(header, data.bytes.freeze())?,
        }
        Ok(true)
    }

    fn alive(&mut self) {
        self.last_unit = Instant::now();
        self.probed = None;
    }

    /// A header has come.
    fn header(&mut self, header: Header) -> Result<(), End> {
        let has_data = header.data_length() > 0;
        match (&mut self.commands, header.opcode()) {
            (Some(commands), opcode::COMMAND) => {
                let plan = commands.plan(&header);
                if !has_data {
                    self.alive();
                    return self.command(header, plan, BytesMut::new());
                }
                let room = if plan.held.is_some() { plan.want } else { 0 };
                self.decoder.receive(BytesMut::with_capacity(room.max(header.data_length())));
                self.incoming = Some(Incoming::Command(header, plan));
            }
            (Some(commands), opcode::DATA_OUT) => {
                let buffer = commands.announce(&header, &self.answers).map_err(|Violation(what)| {
                    self.answers.reject(&header, Reason::Protocol);
                    End::Violation(what)
                })?;
                let wanted = buffer.is_some();
                if !has_data {
                    commands.data(&header, buffer, true, &mut self.answers);
                    self.alive();
                    return Ok(());
                }
                self.decoder.receive(buffer.unwrap_or_default());
                self.incoming = Some(Incoming::Data(header, wanted));
            }
            _ if has_data => {
                self.decoder.receive(BytesMut::new());
                self.incoming = Some(Incoming::Other(header));
            }
            _ => {
                self.alive();
                return self.request(header, Bytes::new());
            }
        }
        Ok(())
    }

    fn command(&mut self, header: Header, plan: Plan, data: BytesMut) -> Result<(), End> {
        let place = self.answers.place(&header);
        let Some(commands) = &mut self.commands else { return Ok(()) };
        let early = match place {
            Place::Now => false,
            Place::Later if self.early.contains_key(&header.cmd_sn()) => return Ok(()),
            Place::Later => true,
            Place::Nowhere => return Ok(()),
        };
        if early {
            self.early.insert(header.cmd_sn(), Early::Command(header.tag()));
        }
        commands.begin(header, plan, data, early, &mut self.answers).map_err(|Violation(what)| {
            self.answers.reject(&header, Reason::Protocol);
            End::Violation(what)
        })?;
        if early { Ok(()) } else { self.follow() }
    }

    fn request(&mut self, header: Header, data: Bytes) -> Result<(), End> {
        // An answer to a ping carries the number of the next command without using it, and so does a rejected unit.
        let numbered = matches!(header.opcode(), opcode::NOP_OUT | opcode::TASK_MANAGEMENT | opcode::TEXT | opcode::LOGOUT);
        if numbered && header.tag() != NO_TAG {
            match self.answers.place(&header) {
                Place::Now => {}
                Place::Later => {
                    self.early.entry(header.cmd_sn()).or_insert(Early::Request(header, data));
                    return Ok(());
                }
                Place::Nowhere => return Ok(()),
            }
        }
        self.carry_out(header, data)?;
        self.follow()
    }

    /// Goes on with requests that came before their turn, if it is theirs.
    fn follow(&mut self) -> Result<(), End> {
        while !self.early.is_empty()
            && let Some(early) = self.early.remove(&self.answers.expected())
        {
            self.answers.skip();
            match early {
                Early::Command(tag) => {
                    if let Some(commands) = &mut self.commands {
                        commands.release(tag, &mut self.answers);
                    }
                }
                Early::Request(header, data) => self.carry_out(header, data)?,
                Early::Ended => self.answers.done(&Header::new(opcode::COMMAND)),
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, header: Header, data: Bytes) -> Result<(), End> {
        match (header.opcode(), &mut self.commands) {
            (opcode::NOP_OUT, _) => {
                if header.tag() != NO_TAG {
                    self.answers.done(&header);
                    self.answers.pong(&header, data);
                }
            }
            (opcode::TEXT, _) => {
                self.answers.done(&header);
                let discovery = self.commands.is_none();
                match targets::answer(&header, &data, &self.surroundings.target, self.surroundings.address.as_deref(), discovery) {
                    Ok(text) => self.answers.text(&header, text),
                    Err(reason) => self.answers.reject(&header, reason),
                }
            }
            (opcode::LOGOUT, _) => {
                self.answers.done(&header);
                let response = match header.flags() & 0x7f {
                    0 => 0,
                    1 if header.u16(20) == self.cid => 0,
                    // There is no such connection.
                    1 => 1,
                    // Recovery of connections needs a higher level.
                    _ => 2,
                };
                self.answers.short(&header, opcode::LOGOUT_RESPONSE, response, [WAIT, 0]);
                if response == 0 {
                    return Err(End::Logout);
                }
            }
            (opcode::TASK_MANAGEMENT, Some(commands)) => {
                let (tag, number) = (header.word5(), header.u32(32));
                let never_came = !commands.has(tag) && self.answers.is_in_window(number) && before(number, header.cmd_sn());
                if header.flags() & 0x7f == 1 && never_came && !self.early.contains_key(&number) {
                    // The command counts as received (RFC 7143, 11.6.1).
                    self.early.insert(number, Early::Ended);
                    self.answers.done(&header);
                    self.answers.short(&header, opcode::TASK_MANAGEMENT_RESPONSE, 0, [0; 2]);
                } else {
                    commands.manage(header, &mut self.answers);
                }
            }
            (opcode::SNACK, _) => self.answers.reject(&header, Reason::Snack),
            (opcode::LOGIN, _) => {
                self.answers.reject(&header, Reason::Protocol);
                return Err(End::Violation("a login within a session"));
            }
            (opcode::COMMAND | opcode::DATA_OUT | opcode::TASK_MANAGEMENT, None) => {
                self.answers.reject(&header, Reason::Protocol);
                return Err(End::Violation("a command in a discovery session"));
            }
            _ => self.answers.reject(&header, Reason::NotSupported),
        }
        Ok(())
    }
}
