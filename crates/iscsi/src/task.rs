//! A command under way, and the data that it collects.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use skytether_scsi::{Reply, Transfer};
use tokio::time::Instant;

use crate::memory::Held;
use crate::parameters::Parameters;
use crate::pdu::{Header, NO_TAG, flag};

/// ABORTED COMMAND.
const ABORTED_COMMAND: u8 = 0x0b;

/// ILLEGAL REQUEST.
const ILLEGAL_REQUEST: u8 = 0x05;

/// What went wrong with a command in the transport, as additional sense code and qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// DATA PHASE ERROR: a number of data units is wrong.
    DataPhase,
    /// DATA OFFSET ERROR: data came for a place where it was not expected.
    Offset,
    /// TOO MUCH WRITE DATA.
    TooMuch,
    /// INVALID TARGET PORT TRANSFER TAG RECEIVED.
    Tag,
    /// PROTOCOL SERVICE CRC ERROR.
    Digest,
    /// INVALID FIELD IN COMMAND INFORMATION UNIT.
    Field,
}

impl Failure {
    /// CHECK CONDITION with sense data of the fixed format.
    pub(crate) fn reply(self) -> Reply {
        let (key, code, qualifier) = match self {
            Self::DataPhase => (ABORTED_COMMAND, 0x4b, 0x00),
            Self::Tag => (ABORTED_COMMAND, 0x4b, 0x01),
            Self::TooMuch => (ABORTED_COMMAND, 0x4b, 0x02),
            Self::Offset => (ABORTED_COMMAND, 0x4b, 0x05),
            Self::Digest => (ABORTED_COMMAND, 0x47, 0x05),
            Self::Field => (ILLEGAL_REQUEST, 0x0e, 0x03),
        };
        let mut sense = [0; 18];
        sense[0] = 0x70;
        sense[2] = key;
        sense[7] = 10;
        sense[12] = code;
        sense[13] = qualifier;
        Reply { status: Reply::CHECK_CONDITION, sense: Bytes::copy_from_slice(&sense), data: Bytes::new() }
    }
}

/// What a command needs, as its header says.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What its command block asks for.
    pub(crate) transfer: Transfer,
    /// Bytes that it gets from the initiator.
    pub(crate) want: usize,
    /// Bytes of its answer.
    pub(crate) answer: u64,
    /// The memory for either, if it was there at once.
    pub(crate) held: Option<Held>,
}

/// A sequence of data that was asked for.
#[derive(Debug)]
struct Asked {
    tag: u32,
    end: usize,
    number: u32,
}

/// Data that comes.
#[derive(Debug)]
pub(crate) struct Collecting {
    /// What came. It is empty while the decoder fills it.
    pub(crate) data: BytesMut,
    /// Its length, also while the decoder fills it.
    length: usize,
    want: usize,
    /// What the initiator has.
    expected: usize,
    /// Whether the initiator still sends without being asked, and the number of its next unit.
    unasked: Option<u32>,
    asked_to: usize,
    asked: VecDeque<Asked>,
    pub(crate) failure: Option<Failure>,
}

impl Collecting {
    /// The data of a command that has come with `data`, and needs `want` bytes in all.
    pub(crate) fn new(command: &Header, data: BytesMut, want: usize) -> Self {
        let unasked = (!command.has(flag::FINAL)).then_some(0);
        let (expected, length) = (command.word5() as usize, data.len());
        Self { data, length, want, expected, unasked, asked_to: length, asked: VecDeque::new(), failure: None }
    }

    /// Whether all is there, or the rest of what failed has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.unasked.is_none() && self.asked.is_empty() && (self.failure.is_some() || self.length >= self.want)
    }

    /// Whether the target must ask for more.
    pub(crate) fn must_ask(&self) -> bool {
        self.unasked.is_none() && self.failure.is_none() && self.asked_to < self.want
    }

    /// The next sequence to ask for, with the tag `tag`: its offset and length.
    pub(crate) fn ask(&mut self, parameters: &Parameters, tag: u32) -> Option<(u32, u32)> {
        if !self.must_ask() || self.asked.len() >= parameters.ready as usize {
            return None;
        }
        if self.asked.is_empty() {
            self.asked_to = self.length;
        }
        let (from, length) = (self.asked_to, (self.want - self.asked_to).min(parameters.burst as usize));
        self.asked_to += length;
        self.asked.push_back(Asked { tag, end: self.asked_to, number: 0 });
        Some((from as u32, length as u32))
    }

    /// The header of a data unit came: whether its data belongs to the end of what is there. Where it does not, the
    /// command has failed, and the rest of the sequence is dropped.
    pub(crate) fn announce(&mut self, unit: &Header, parameters: &Parameters) -> bool {
        if self.failure.is_none() {
            self.failure = self.check(unit, parameters);
        }
        self.failure.is_none()
    }

    fn check(&self, unit: &Header, parameters: &Parameters) -> Option<Failure> {
        let (number, end) = match unit.word5() {
            NO_TAG => match self.unasked {
                Some(number) => (number, self.expected.min(parameters.first_burst as usize)),
                None => return Some(Failure::TooMuch),
            },
            tag => match self.asked.front() {
                Some(asked) if asked.tag == tag => (asked.number, asked.end),
                _ => return Some(Failure::Tag),
            },
        };
        if unit.u32(36) != number {
            return Some(Failure::DataPhase);
        }
        if unit.u32(40) as usize != self.length {
            return Some(Failure::Offset);
        }
        (self.length + unit.data_length() > end).then_some(Failure::TooMuch)
    }

    /// The buffer that the next data goes to. With `all`, it has room for all data of the command.
    pub(crate) fn buffer(&mut self, all: bool) -> BytesMut {
        let mut data = std::mem::take(&mut self.data);
        if all {
            data.reserve(self.want.saturating_sub(data.len()));
        }
        data
    }

    /// Whether the initiator may send data without being asked.
    pub(crate) fn takes_unasked(&self) -> bool {
        self.unasked.is_some()
    }

    /// A data unit is over. `data` is what is there now; `None` where its data was dropped.
    pub(crate) fn arrived(&mut self, unit: &Header, data: Option<BytesMut>) {
        if let Some(data) = data {
            self.length = data.len();
            self.data = data;
        }
        let last = unit.has(flag::FINAL);
        if unit.word5() == NO_TAG {
            self.unasked = self.unasked.filter(|_| !last).map(|number| number.wrapping_add(1));
            self.asked_to = self.length;
            return;
        }
        let Some(at) = self.asked.iter().position(|asked| asked.tag == unit.word5()) else { return };
        self.asked[at].number = self.asked[at].number.wrapping_add(1);
        if last && let Some(asked) = self.asked.remove(at) {
            // A sequence ends where it was asked to end.
            if self.failure.is_none() && self.length != asked.end {
                self.failure = Some(Failure::Offset);
            }
        }
    }

    /// The bytes that the command gets.
    pub(crate) fn finish(mut self) -> Bytes {
        self.data.truncate(self.want);
        self.data.freeze()
    }
}

/// How far a command is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Its data comes.
    Collecting(Collecting),
    /// It has all data, and waits for memory or for commands before it.
    Waiting(Bytes),
    /// The command set has it.
    Running,
}

/// A command under way.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) command: Header,
    pub(crate) transfer: Transfer,
    /// Bytes of its answer.
    pub(crate) answer: u64,
    pub(crate) held: Option<Held>,
    /// Whether it is in the queue for memory.
    pub(crate) queued: bool,
    pub(crate) phase: Phase,
    /// Whether a command before it has not come.
    pub(crate) early: bool,
    /// Requests for its data.
    pub(crate) requests: u32,
    /// The tag of the management function that ends it.
    pub(crate) ended_by: Option<u32>,
    pub(crate) since: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::opcode;

    fn command(expected: u32, last: bool) -> Header {
        let mut header = Header::new(opcode::COMMAND);
        header.0[1] = flag::WRITE | if last { flag::FINAL } else { 0 };
        header.set_u32(20, expected);
        header
    }

    fn unit(tag: u32, number: u32, offset: u32, length: usize, last: bool) -> Header {
        let mut header = Header::new(opcode::DATA_OUT);
        header.0[1] = if last { flag::FINAL } else { 0 };
        header.set_u32(20, tag);
        header.set_u32(36, number);
        header.set_u32(40, offset);
        header.set_data_length(length);
        header
    }

    fn send(to: &mut Collecting, unit: &Header) -> bool {
        let parameters = Parameters { burst: 1024, first_burst: 1024, ready: 2, ..Parameters::default() };
        let fits = to.announce(unit, &parameters);
        let mut data = std::mem::take(&mut to.data);
        data.resize(data.len() + unit.data_length(), 7);
        to.arrived(unit, fits.then_some(data));
        fits
    }

    #[test]
    fn unasked_and_asked_data_make_a_whole() {
        let parameters = Parameters { burst: 1024, first_burst: 1024, ready: 2, ..Parameters::default() };
        let mut collecting = Collecting::new(&command(3000, false), BytesMut::from(&[1; 100][..]), 2900);
        assert!(!collecting.must_ask() && send(&mut collecting, &unit(NO_TAG, 0, 100, 500, false)));
        assert!(send(&mut collecting, &unit(NO_TAG, 1, 600, 400, true)));
        assert_eq!(collecting.ask(&parameters, 1), Some((1000, 1024)));
        assert_eq!(collecting.ask(&parameters, 2), Some((2024, 876)));
        assert_eq!(collecting.ask(&parameters, 3), None);
        assert!(send(&mut collecting, &unit(1, 0, 1000, 1024, true)) && !collecting.is_complete());
        assert!(send(&mut collecting, &unit(2, 0, 2024, 876, true)) && collecting.is_complete());
        assert_eq!((collecting.failure, collecting.finish().len()), (None, 2900));
    }

    #[test]
    fn wrong_numbers_fail_the_command_after_its_data() {
        let cases = [
            (unit(NO_TAG, 1, 0, 512, false), Failure::DataPhase),
            (unit(NO_TAG, 0, 512, 512, false), Failure::Offset),
            (unit(NO_TAG, 0, 0, 2000, false), Failure::TooMuch),
            (unit(9, 0, 0, 512, false), Failure::Tag),
        ];
        for (wrong, failure) in cases {
            let mut collecting = Collecting::new(&command(3000, false), BytesMut::new(), 1024);
            assert!(!send(&mut collecting, &wrong) && !collecting.is_complete());
            assert!(!send(&mut collecting, &unit(NO_TAG, 0, 0, 512, true)) && collecting.is_complete());
            assert_eq!(collecting.failure, Some(failure));
        }
    }

    #[test]
    fn a_sequence_that_ends_early_fails_the_command() {
        let mut collecting = Collecting::new(&command(512, true), BytesMut::new(), 512);
        collecting.ask(&Parameters::default(), 5);
        assert!(send(&mut collecting, &unit(5, 0, 0, 100, true)));
        assert_eq!((collecting.is_complete(), collecting.failure), (true, Some(Failure::Offset)));
    }
}
