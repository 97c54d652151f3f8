//! Commands and their answers on a connection, driven by one task.
//!
//! Bounds: [`MOST_COMMANDS`] under way, and of each no more data than it asked for.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use skytether_common::{Error, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::login::{Agreed, login};
use super::wire::{self, Units};
use crate::scsi::{Command, Reply};
use crate::url::Iscsi;
use skytether_iscsi::pdu::{Header, NO_TAG, before, flag, opcode};

/// Commands under way on a connection; others wait.
pub const MOST_COMMANDS: usize = 32;

/// A silent connection is asked for a sign of life after this time, and given up after twice of it.
const SILENCE: Duration = Duration::from_secs(10);

/// A task management function: ABORT TASK.
const ABORT_TASK: u8 = 1;

enum Request {
    Command { command: Command, tag: u32, reply: oneshot::Sender<Result<Reply>> },
    Abort { tag: u32 },
}

/// A session with a target. Dropping it ends the session.
#[derive(Debug)]
pub struct Connection {
    requests: mpsc::UnboundedSender<Request>,
    room: tokio::sync::Semaphore,
    next: std::sync::atomic::AtomicU32,
}

/// Tells the driver that the caller has gone.
struct Guard<'a> {
    requests: &'a mpsc::UnboundedSender<Request>,
    tag: Option<u32>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(tag) = self.tag {
            // Without a driver there is nothing to abort.
            let _ = self.requests.send(Request::Abort { tag });
        }
    }
}

impl Connection {
    /// Connects and logs in, until `deadline`.
    ///
    /// # Errors
    /// `Unavailable` where the target can't be reached, and those of the login.
    pub async fn open(url: &Iscsi, deadline: Instant) -> Result<Self> {
        let late = |_| Error::unavailable(format!("{url} did not answer in time"));
        let connect = TcpStream::connect((url.host.as_str(), url.port));
        let mut stream =
            timeout_at(deadline, connect).await.map_err(late)?.map_err(|cause| Error::unavailable(format!("{url} can't be reached")).with_source(cause))?;
        // Requests are small, and answered one by one.
        let _ = stream.set_nodelay(true);
        let (agreed, units) = timeout_at(deadline, login(&mut stream, url)).await.map_err(late)?.map_err(|error| error.named(&url.to_string()))?;
        let (requests, received) = mpsc::unbounded_channel();
        let (reader, writer) = stream.into_split();
        let driver = Driver { agreed, units, reader, writer, out: BytesMut::new(), tasks: HashMap::new(), waiting: VecDeque::new(), lun: lun(url.lun) };
        tokio::spawn(driver.run(received));
        Ok(Self { requests, room: tokio::sync::Semaphore::new(MOST_COMMANDS), next: std::sync::atomic::AtomicU32::new(1) })
    }

    /// Whether the connection broke: commands fail from now on.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.requests.is_closed()
    }

    /// Carries out a command. Where this is dropped, the target is asked to abort it.
    ///
    /// # Errors
    /// `Unavailable` where the connection breaks.
    pub async fn execute(&self, command: Command) -> Result<Reply> {
        let gone = || Error::unavailable("the connection to the target broke");
        let _room = self.room.acquire().await.map_err(|_| gone())?;
        let tag = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) & 0x7fff_ffff;
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Command { command, tag, reply }).map_err(|_| gone())?;
        let mut guard = Guard { requests: &self.requests, tag: Some(tag) };
        let answer = answer.await;
        guard.tag = None;
        answer.map_err(|_| gone())?
    }
}

/// The eight bytes of a logical unit's number: peripheral device addressing below 256, flat space above.
fn lun(number: u16) -> [u8; 8] {
    let [high, low] = number.to_be_bytes();
    [if high == 0 { 0 } else { high | 0x40 }, low, 0, 0, 0, 0, 0, 0]
}

struct Task {
    command: Command,
    cmd_sn: u32,
    received: BytesMut,
    reply: oneshot::Sender<Result<Reply>>,
}

struct Driver {
    agreed: Agreed,
    units: Units,
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    out: BytesMut,
    tasks: HashMap<u32, Task>,
    /// Commands for which the target has no room.
    waiting: VecDeque<(u32, Command, oneshot::Sender<Result<Reply>>)>,
    lun: [u8; 8],
}

enum Event {
    Filled(Result<()>),
    Written(std::io::Result<usize>),
    Asked(Option<Request>),
    Silent,
}

impl Driver {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        let why = match self.drive(&mut requests).await {
            Ok(()) => Error::unavailable("the session ended"),
            Err(error) => error,
        };
        requests.close();
        let text = why.report();
        let commands = self.tasks.into_values().map(|task| task.reply).chain(self.waiting.into_iter().map(|(_, _, reply)| reply));
        for reply in commands {
            let _ = reply.send(Err(Error::new(why.kind(), text.clone())));
        }
    }

    async fn drive(&mut self, requests: &mut mpsc::UnboundedReceiver<Request>) -> Result<()> {
        let mut heard = Instant::now();
        let mut asked = false;
        loop {
            let silence = heard + if asked { 2 * SILENCE } else { SILENCE };
            let event = tokio::select! {
                filled = self.units.fill(&mut self.reader) => Event::Filled(filled),
                written = self.writer.write_buf(&mut self.out), if self.out.has_remaining() => Event::Written(written),
                request = requests.recv() => Event::Asked(request),
                () = tokio::time::sleep_until(silence) => Event::Silent,
            };
            match event {
                Event::Filled(filled) => {
                    filled?;
                    (heard, asked) = (Instant::now(), false);
                    while let Some((header, data)) = self.units.next()? {
                        self.receive(header, data)?;
                    }
                }
                Event::Written(written) => {
                    written.map_err(|cause| Error::unavailable("the connection to the target broke").with_source(cause))?;
                }
                Event::Asked(None) => {
                    self.logout().await;
                    return Ok(());
                }
                Event::Asked(Some(Request::Command { command, tag, reply })) => self.waiting.push_back((tag, command, reply)),
                Event::Asked(Some(Request::Abort { tag })) => self.abort(tag),
                Event::Silent if asked => return Err(Error::unavailable("the target is silent")),
                Event::Silent => {
                    asked = true;
                    let mut ping = self.immediate(opcode::NOP_OUT);
                    ping.set_u32(16, 0x8000_0000);
                    ping.set_u32(20, NO_TAG);
                    self.put(ping, &[]);
                }
            }
            self.begin();
        }
    }

    fn put(&mut self, header: Header, data: &[u8]) {
        wire::put(&mut self.out, header, data, self.agreed.digests);
    }

    /// A unit outside the order of commands.
    fn immediate(&self, opcode: u8) -> Header {
        let mut header = Header::new(opcode | 0x40);
        header.set_u32(24, self.agreed.cmd_sn);
        header.set_u32(28, self.agreed.exp_stat_sn);
        header
    }

    /// Sends commands that wait, as many as the target has room for.
    fn begin(&mut self) {
        while !before(self.agreed.max_cmd_sn, self.agreed.cmd_sn)
            && let Some((tag, command, reply)) = self.waiting.pop_front()
        {
            let mut header = Header::new(opcode::COMMAND);
            let (read, write) = (command.most_in > 0, !command.out.is_empty());
            // Simple task attribute.
            header.0[1] |= 1 | if read { flag::READ } else { 0 } | if write { flag::WRITE } else { 0 };
            header.0[8..16].copy_from_slice(&self.lun);
            header.set_u32(16, tag);
            header.set_u32(20, if write { command.out.len() as u32 } else { command.most_in });
            header.set_u32(24, self.agreed.cmd_sn);
            header.set_u32(28, self.agreed.exp_stat_sn);
            header.0[32..48].copy_from_slice(&command.cdb);
            let immediate = command.out.slice(..command.out.len().min(self.agreed.immediate));
            self.put(header, &immediate);
            self.tasks.insert(tag, Task { command, cmd_sn: self.agreed.cmd_sn, received: BytesMut::new(), reply });
            self.agreed.cmd_sn = self.agreed.cmd_sn.wrapping_add(1);
        }
    }

    fn abort(&mut self, tag: u32) {
        self.waiting.retain(|(waiting, _, _)| *waiting != tag);
        let Some(task) = self.tasks.remove(&tag) else { return };
        let mut header = self.immediate(opcode::TASK_MANAGEMENT);
        header.0[1] |= ABORT_TASK;
        header.0[8..16].copy_from_slice(&self.lun);
        // Tags of the caller's commands have their first bit free.
        header.set_u32(16, tag | 0x8000_0000);
        header.set_u32(20, tag);
        header.set_u32(32, task.cmd_sn);
        self.put(header, &[]);
    }

    async fn logout(&mut self) {
        let mut header = self.immediate(opcode::LOGOUT);
        header.set_u32(16, 0x8000_0001);
        self.put(header, &[]);
        // The session ends with the connection in any case.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.writer.write_all_buf(&mut self.out)).await;
    }

    fn receive(&mut self, header: Header, data: BytesMut) -> Result<()> {
        let code = header.opcode();
        // Where a unit has a status, its number is that of the next one less one.
        let (has_status, has_window) = match code {
            opcode::RESPONSE | opcode::TASK_MANAGEMENT_RESPONSE | opcode::REJECT | opcode::ASYNCHRONOUS | opcode::LOGOUT_RESPONSE => (true, true),
            opcode::DATA_IN => (header.has(flag::STATUS), true),
            opcode::NOP_IN => (header.tag() != NO_TAG, true),
            opcode::READY_TO_TRANSFER => (false, true),
            _ => return Err(Error::unavailable(format!("the target sends opcode {code:#04x}, which has no meaning here"))),
        };
        if has_status {
            self.agreed.exp_stat_sn = header.u32(24).wrapping_add(1);
        }
        if has_window {
            let most = header.u32(32);
            if before(self.agreed.max_cmd_sn, most) {
                self.agreed.max_cmd_sn = most;
            }
        }
        match code {
            opcode::DATA_IN => self.data_in(header, &data),
            opcode::RESPONSE => {
                let Some(task) = self.tasks.remove(&header.tag()) else { return Ok(()) };
                let answer = if header.0[2] == 0 {
                    let length = data.first_chunk::<2>().map_or(0, |length| usize::from(u16::from_be_bytes(*length)));
                    let sense = data.get(2..).map(|rest| Bytes::copy_from_slice(&rest[..length.min(rest.len())])).unwrap_or_default();
                    Ok(Reply { status: header.0[3], sense, data: task.received.freeze() })
                } else {
                    Err(Error::unavailable(format!("the target failed with response {:#04x}", header.0[2])))
                };
                let _ = task.reply.send(answer);
                Ok(())
            }
            opcode::READY_TO_TRANSFER => self.data_out(header),
            opcode::NOP_IN if header.word5() != NO_TAG => {
                let mut pong = self.immediate(opcode::NOP_OUT);
                pong.0[8..16].copy_from_slice(&header.0[8..16]);
                pong.set_u32(16, NO_TAG);
                pong.set_u32(20, header.word5());
                let data = &data[..data.len().min(self.agreed.segment)];
                self.put(pong, data);
                Ok(())
            }
            opcode::REJECT => {
                let about = data.get(16..20).and_then(|tag| tag.try_into().ok()).map(u32::from_be_bytes);
                let error = Error::unavailable(format!("the target rejected a unit, reason {:#04x}", header.0[2]));
                match about.and_then(|tag| self.tasks.remove(&tag)) {
                    Some(task) => {
                        let _ = task.reply.send(Err(error));
                        Ok(())
                    }
                    None => Err(error),
                }
            }
            // Event 0 is about a logical unit; the others end the connection or change what was agreed on.
            opcode::ASYNCHRONOUS if header.0[36] != 0 => Err(Error::unavailable("the target ends the session")),
            opcode::LOGOUT_RESPONSE => Err(Error::unavailable("the session ended")),
            _ => Ok(()),
        }
    }

    fn data_in(&mut self, header: Header, data: &[u8]) -> Result<()> {
        let tag = header.tag();
        let Some(task) = self.tasks.get_mut(&tag) else { return Ok(()) };
        let fits = header.u32(40) as usize == task.received.len() && data.len() <= task.command.most_in as usize - task.received.len();
        if !fits {
            return Err(Error::unavailable("the target sends data that was not asked for"));
        }
        task.received.extend_from_slice(data);
        if header.has(flag::STATUS)
            && let Some(task) = self.tasks.remove(&tag)
        {
            let _ = task.reply.send(Ok(Reply { status: header.0[3], sense: Bytes::new(), data: task.received.freeze() }));
        }
        Ok(())
    }

    fn data_out(&mut self, ready: Header) -> Result<()> {
        let Some(task) = self.tasks.get(&ready.tag()) else { return Ok(()) };
        let (from, length) = (ready.u32(40) as usize, ready.u32(44) as usize);
        let Some(wanted) = from.checked_add(length).filter(|end| length > 0 && *end <= task.command.out.len()).map(|end| task.command.out.slice(from..end))
        else {
            return Err(Error::unavailable("the target asks for data that the command does not have"));
        };
        // A target that asks for the same again and again would fill the memory.
        if self.out.len() > (MOST_COMMANDS + 1) * (4 << 20) {
            return Err(Error::unavailable("the target asks for more data than it reads"));
        }
        let pieces = wanted.chunks(self.agreed.segment).count();
        for (number, piece) in wanted.chunks(self.agreed.segment).enumerate() {
            let mut header = Header::new(opcode::DATA_OUT);
            header.0[1] = if number + 1 == pieces { flag::FINAL } else { 0 };
            header.0[8..16].copy_from_slice(&self.lun);
            header.set_u32(16, ready.tag());
            header.set_u32(20, ready.word5());
            header.set_u32(28, self.agreed.exp_stat_sn);
            header.set_u32(36, number as u32);
            header.set_u32(40, (from + number * self.agreed.segment) as u32);
            self.put(header, piece);
        }
        Ok(())
    }
}
