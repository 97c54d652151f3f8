//! What the target sends in the full feature phase, with its numbers: statuses, and the window of commands.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_scsi::{Reply, Transfer};

use crate::memory::Held;
use crate::output::Output;
use crate::parameters::Parameters;
use crate::pdu::{HEADER, Header, NO_TAG, Reason, before, flag, opcode};

/// What becomes of a request by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is next.
    Now,
    /// One before it is missing.
    Later,
    /// It is outside the window, or came before: it is ignored (RFC 7143, 4.2.2.1).
    Nowhere,
}

/// A residual: by how many bytes a command has more or less data than the initiator expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Residual {
    None,
    Overflow(u32),
    Underflow(u32),
}

impl Residual {
    /// Of a command that has `length` bytes of data where `expected` were.
    fn of(length: u64, expected: u32) -> Self {
        let bytes = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match length.cmp(&expected.into()) {
            std::cmp::Ordering::Equal => Self::None,
            std::cmp::Ordering::Greater => Self::Overflow(bytes(length - u64::from(expected))),
            std::cmp::Ordering::Less => Self::Underflow(bytes(u64::from(expected) - length)),
        }
    }

    fn put(self, header: &mut Header) {
        match self {
            Self::None => {}
            Self::Overflow(bytes) => {
                header.0[1] |= flag::OVERFLOW;
                header.set_u32(44, bytes);
            }
            Self::Underflow(bytes) => {
                header.0[1] |= flag::UNDERFLOW;
                header.set_u32(44, bytes);
            }
        }
    }
}

/// Writes answers.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) out: Output,
    pub(crate) parameters: Parameters,
    stat_sn: u32,
    /// The number of the next command.
    expected: u32,
    /// The number of the last command that may come.
    last: u32,
    next_tag: u32,
}

impl Answers {
    /// For commands from the number `cmd_sn` on. `window` of them may be under way.
    pub(crate) fn new(out: Output, parameters: Parameters, stat_sn: u32, cmd_sn: u32, window: u32) -> Self {
        Self { out, parameters, stat_sn, expected: cmd_sn, last: cmd_sn.wrapping_add(window).wrapping_sub(1), next_tag: 0 }
    }

    /// The place of a request. The next one is counted.
    pub(crate) fn place(&mut self, request: &Header) -> Place {
        let number = request.cmd_sn();
        if request.is_immediate() {
            return Place::Now;
        }
        if before(number, self.expected) || before(self.last, number) {
            return Place::Nowhere;
        }
        if number != self.expected {
            return Place::Later;
        }
        self.expected = self.expected.wrapping_add(1);
        Place::Now
    }

    /// The number of the next command.
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Whether `number` is one that may come.
    pub(crate) fn is_in_window(&self, number: u32) -> bool {
        !before(number, self.expected) && !before(self.last, number)
    }

    /// The next command is there, although it came earlier.
    pub(crate) fn skip(&mut self) {
        self.expected = self.expected.wrapping_add(1);
    }

    /// `request` is done: another one may come.
    pub(crate) fn done(&mut self, request: &Header) {
        if !request.is_immediate() {
            self.last = self.last.wrapping_add(1);
        }
    }

    /// A tag of the target that was not used lately.
    pub(crate) fn tag(&mut self) -> u32 {
        self.next_tag = if self.next_tag >= NO_TAG - 1 { 1 } else { self.next_tag + 1 };
        self.next_tag
    }

    fn numbers(&self, header: &mut Header) {
        header.set_u32(24, self.stat_sn);
        header.set_u32(28, self.expected);
        header.set_u32(32, self.last);
    }

    /// Sends a unit that carries a status.
    fn status(&mut self, mut header: Header, data: Bytes) {
        self.numbers(&mut header);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        self.out.put(header, data);
    }

    /// The response to `command`, which by itself moves `transfer`. `requests` are those for its data.
    ///
    /// Status GOOD goes with the last data.
    pub(crate) fn respond(&mut self, command: &Header, transfer: Transfer, reply: Reply, requests: u32, held: Option<Held>) {
        let expected = command.word5();
        let reads = command.has(flag::READ);
        let residual = match transfer {
            Transfer::In(_) if reads || expected == 0 => Residual::of(reply.data.len() as u64, expected),
            Transfer::Out(length) if command.has(flag::WRITE) || expected == 0 => Residual::of(length, expected),
            _ => Residual::of(0, expected),
        };
        let mut data = reply.data;
        data.truncate(if reads { expected as usize } else { 0 });
        let collapsed = !data.is_empty() && reply.status == Reply::GOOD && reply.sense.is_empty();
        let units = self.data_in(command, data, collapsed.then_some(residual));
        if !collapsed {
            let mut header = Header::new(opcode::RESPONSE);
            residual.put(&mut header);
            header.0[3] = reply.status;
            header.set_u32(16, command.tag());
            header.set_u32(36, units + requests);
            let sense = match reply.sense.len() {
                0 => Bytes::new(),
                length => {
                    let mut sense = BytesMut::with_capacity(2 + length);
                    sense.put_u16(length as u16);
                    sense.put_slice(&reply.sense);
                    sense.freeze()
                }
            };
            self.status(header, sense);
        }
        self.out.hold(held);
    }

    /// Sends data, with status GOOD at its end if there is a residual to tell. Returns the number of units.
    fn data_in(&mut self, command: &Header, data: Bytes, status: Option<Residual>) -> u32 {
        let (segment, burst) = (self.parameters.segment as usize, self.parameters.burst as usize);
        let (mut at, mut units, mut left_of_burst) = (0, 0, burst);
        while at < data.len() {
            let length = segment.min(left_of_burst).min(data.len() - at);
            left_of_burst -= length;
            let last = at + length == data.len();
            let mut header = Header::new(opcode::DATA_IN);
            header.0[1] = 0;
            if last || left_of_burst == 0 {
                header.0[1] = flag::FINAL;
                left_of_burst = burst;
            }
            header.set_u32(16, command.tag());
            header.set_u32(20, NO_TAG);
            header.set_u32(36, units);
            header.set_u32(40, at as u32);
            let bytes = data.slice(at..at + length);
            match status {
                Some(residual) if last => {
                    header.0[1] |= flag::STATUS;
                    residual.put(&mut header);
                    self.status(header, bytes);
                }
                _ => {
                    self.numbers(&mut header);
                    header.set_u32(24, 0);
                    self.out.put(header, bytes);
                }
            }
            units += 1;
            at += length;
        }
        units
    }

    /// Asks for `length` bytes of `command` at `offset`, as its request number `number`; they come with `tag`.
    pub(crate) fn ready(&mut self, command: &Header, tag: u32, number: u32, offset: u32, length: u32) {
        let mut header = Header::new(opcode::READY_TO_TRANSFER);
        header.0[8..16].copy_from_slice(&command.0[8..16]);
        header.set_u32(16, command.tag());
        header.set_u32(20, tag);
        self.numbers(&mut header);
        header.set_u32(36, number);
        header.set_u32(40, offset);
        header.set_u32(44, length);
        self.out.put(header, Bytes::new());
    }

    /// The answer to a ping.
    pub(crate) fn pong(&mut self, ping: &Header, mut data: Bytes) {
        let mut header = Header::new(opcode::NOP_IN);
        header.set_u32(16, ping.tag());
        header.set_u32(20, NO_TAG);
        data.truncate(self.parameters.segment as usize);
        self.status(header, data);
    }

    /// Asks the initiator whether it is there.
    pub(crate) fn ping(&mut self) {
        let mut header = Header::new(opcode::NOP_IN);
        header.set_u32(16, NO_TAG);
        let tag = self.tag();
        header.set_u32(20, tag);
        // It carries no status: its number is used again.
        self.numbers(&mut header);
        self.out.put(header, Bytes::new());
    }

    /// Rejects `unit`.
    pub(crate) fn reject(&mut self, unit: &Header, reason: Reason) {
        let mut header = Header::new(opcode::REJECT);
        header.0[2] = reason as u8;
        header.set_u32(16, NO_TAG);
        self.status(header, Bytes::copy_from_slice(&unit.0[..HEADER]));
    }

    /// A response of one byte to a request, such as one of task management.
    pub(crate) fn short(&mut self, request: &Header, opcode: u8, response: u8, times: [u16; 2]) {
        let mut header = Header::new(opcode);
        header.0[2] = response;
        header.set_u32(16, request.tag());
        header.set_u16(40, times[0]);
        header.set_u16(42, times[1]);
        self.status(header, Bytes::new());
    }

    /// The answer to a text request.
    pub(crate) fn text(&mut self, request: &Header, text: Vec<u8>) {
        let mut header = Header::new(opcode::TEXT_RESPONSE);
        header.0[8..16].copy_from_slice(&request.0[8..16]);
        header.set_u32(16, request.tag());
        header.set_u32(20, NO_TAG);
        self.status(header, text.into());
    }

    /// Tells an event (RFC 7143, 11.9) with its three parameters.
    pub(crate) fn event(&mut self, event: u8, parameters: [u16; 3]) {
        let mut header = Header::new(opcode::ASYNCHRONOUS);
        header.set_u32(16, NO_TAG);
        header.0[36] = event;
        for (i, parameter) in parameters.into_iter().enumerate() {
            header.set_u16(38 + 2 * i, parameter);
        }
        self.status(header, Bytes::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(window: u32) -> Answers {
        Answers::new(Output::default(), Parameters::default(), 1, u32::MAX, window)
    }

    fn request(number: u32) -> Header {
        let mut header = Header::new(opcode::COMMAND);
        header.set_u32(24, number);
        header
    }

    #[test]
    fn numbers_outside_the_window_have_no_place() {
        let mut answers = answers(2);
        assert_eq!(answers.place(&request(u32::MAX - 1)), Place::Nowhere);
        assert_eq!(answers.place(&request(1)), Place::Nowhere);
        assert_eq!(answers.place(&request(0)), Place::Later);
        assert_eq!(answers.place(&request(u32::MAX)), Place::Now);
        assert_eq!(answers.place(&request(u32::MAX)), Place::Nowhere);
        assert_eq!(answers.place(&request(0)), Place::Now);
        assert_eq!(answers.place(&request(1)), Place::Nowhere);
        answers.done(&request(0));
        assert_eq!(answers.place(&request(1)), Place::Now);
    }

    #[test]
    fn residuals_are_exact() {
        assert_eq!(Residual::of(512, 512), Residual::None);
        assert_eq!(Residual::of(512, 0), Residual::Overflow(512));
        assert_eq!(Residual::of(96, 255), Residual::Underflow(159));
    }
}
