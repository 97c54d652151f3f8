//! A host of the tests, which speaks units of NVMe/TCP over real sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use skytether_nvme_tcp::command::{Status, admin, fabrics};
use skytether_nvme_tcp::pdu::{CONNECTION, Digests, Framing, Head, flag, kind};

/// A submission queue entry that is built.
#[derive(Clone, Copy)]
pub(crate) struct Sqe(pub(crate) [u8; 64]);

impl Sqe {
    pub(crate) fn new(opcode: u8) -> Self {
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        Self(bytes)
    }

    /// An I/O command over namespace 1.
    pub(crate) fn blocks(opcode: u8, first: u64, blocks: u32) -> Self {
        Self::new(opcode).namespace(1).word(10, first as u32).word(11, (first >> 32) as u32).word(12, blocks - 1)
    }

    pub(crate) fn word(mut self, number: usize, value: u32) -> Self {
        self.0[4 * number..4 * number + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn namespace(self, number: u32) -> Self {
        self.word(1, number)
    }

    pub(crate) fn fuse(mut self, which: u8) -> Self {
        self.0[1] = which;
        self
    }

    /// Data in the capsule.
    pub(crate) fn in_capsule(mut self, len: usize) -> Self {
        self.0[32..36].copy_from_slice(&(len as u32).to_le_bytes());
        self.0[39] = 0x01;
        self
    }

    /// Data in units of its own, in either direction.
    pub(crate) fn transfer(mut self, len: usize) -> Self {
        self.0[32..36].copy_from_slice(&(len as u32).to_le_bytes());
        self.0[39] = 0x5A;
        self
    }

    pub(crate) fn id(mut self, id: u16) -> Self {
        self.0[2..4].copy_from_slice(&id.to_le_bytes());
        self
    }
}

/// What a command gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) id: u16,
    pub(crate) status: u16,
    pub(crate) result: u64,
    pub(crate) head: u16,
    pub(crate) data: Vec<u8>,
}

/// A unit that came.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) head: Head,
    pub(crate) header: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// A connection.
pub(crate) struct Host {
    stream: TcpStream,
    pub(crate) framing: Framing,
    id: u16,
    /// Which host it is.
    pub(crate) name: u8,
}

impl Host {
    /// A connection that was opened, and is no queue yet.
    pub(crate) fn open(address: &str, digests: Digests) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut host = Self { stream, framing: Framing { digests, alignment: 4 }, id: 0, name: 9 };
        let mut request = [0; CONNECTION];
        (request[2], request[4]) = (128, 128);
        request[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
        host.send(&request);
        let answer: [u8; CONNECTION] = host.take();
        assert_eq!((answer[0], answer[11], &answer[12..16]), (kind::IC_RESPONSE, request[11], &(1_u32 << 20).to_le_bytes()[..]));
        host
    }

    /// An admin queue of a controller that is ready, and its number. The host `name` promises to be heard of within
    /// `keep_alive` milliseconds.
    pub(crate) fn admin(address: &str, nqn: &str, (name, digests, keep_alive): (u8, Digests, u32)) -> (Self, u16) {
        let mut host = Self { name, ..Self::open(address, digests) };
        let number = host.connect(0, 0xffff, nqn, 31, keep_alive).unwrap();
        host.enable();
        let queues = host.command(Sqe::new(admin::SET_FEATURES).word(10, 7).word(11, 3 | 3 << 16), &[]).unwrap();
        assert_eq!(queues.result, 3 | 3 << 16);
        (host, number as u16)
    }

    /// The same, and an I/O queue.
    pub(crate) fn associate(address: &str, nqn: &str, (name, digests, keep_alive): (u8, Digests, u32)) -> (Self, Self) {
        let (admin, number) = Self::admin(address, nqn, (name, digests, keep_alive));
        let mut io = Self { name, ..Self::open(address, digests) };
        io.connect(1, number, nqn, 63, 0).unwrap();
        (admin, io)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn take_many(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server closes, after whatever it still says.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// The next unit, whose digests must be right.
    pub(crate) fn unit(&mut self) -> Unit {
        let bytes: [u8; 8] = self.take();
        let head = Head::parse(&bytes);
        let header = self.take_many(usize::from(head.header) - 8);
        let (mut at, ends) = (usize::from(head.header), head.kind == kind::C2H_TERMINATE);
        let digests = if ends { Digests::default() } else { self.framing.digests };
        assert_eq!(head.flags & flag::HEADER_DIGEST != 0, digests.header);
        if digests.header {
            assert_eq!(u32::from_le_bytes(self.take()), crc32c::crc32c(&[&bytes[..], &header].concat()));
            at += 4;
        }
        let mut data = Vec::new();
        if head.len as usize > at {
            if !ends {
                self.take_many(usize::from(head.data_offset) - at);
                at = head.data_offset.into();
            }
            let tail = if digests.data { 4 } else { 0 };
            data = self.take_many(head.len as usize - at - tail);
            if digests.data {
                assert_eq!(u32::from_le_bytes(self.take()), crc32c::crc32c(&data));
            }
        }
        Unit { head, header, data }
    }

    /// Makes the connection a queue; the controller's number.
    pub(crate) fn connect(&mut self, queue: u16, controller: u16, nqn: &str, size: u16, keep_alive: u32) -> Result<u64, u16> {
        let mut data = vec![0; 1024];
        data[..16].copy_from_slice(&[self.name; 16]);
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
        data[512..524].copy_from_slice(b"nqn.of.a.hst");
        let mut command = Sqe::new(admin::FABRICS).word(10, u32::from(queue) << 16).word(11, size.into()).word(12, keep_alive).in_capsule(1024);
        command.0[4] = fabrics::CONNECT;
        self.command(command, &data).map(|answer| answer.result)
    }

    pub(crate) fn property(&mut self, at: u32, is_wide: bool) -> Result<u64, u16> {
        let mut command = Sqe::new(admin::FABRICS).word(10, is_wide.into()).word(11, at);
        command.0[4] = fabrics::PROPERTY_GET;
        self.command(command, &[]).map(|answer| answer.result)
    }

    pub(crate) fn set_property(&mut self, at: u32, value: u32) -> Result<Answer, u16> {
        let mut command = Sqe::new(admin::FABRICS).word(11, at).word(12, value);
        command.0[4] = fabrics::PROPERTY_SET;
        self.command(command, &[])
    }

    /// Makes the controller ready.
    pub(crate) fn enable(&mut self) {
        self.set_property(0x14, 0x46_0001).unwrap();
        assert_eq!(self.property(0x1c, false), Ok(1));
    }

    /// Sends a command, whose data is in the capsule where it says so; its identifier.
    pub(crate) fn submit(&mut self, command: Sqe, data: &[u8]) -> u16 {
        self.id += 1;
        let command = command.id(self.id);
        let data = if command.0[39] == 0x01 { Bytes::copy_from_slice(data) } else { Bytes::new() };
        let unit = self.framing.unit(kind::COMMAND, 0, &command.0, data).concat();
        self.send(&unit);
        self.id
    }

    /// The next completion, or the status of a failure. Data is sent in pieces of `piece` bytes where the server asks.
    pub(crate) fn answer(&mut self, data: &[u8], piece: usize) -> Answer {
        let mut got = Vec::new();
        loop {
            let unit = self.unit();
            match unit.head.kind {
                kind::RESPONSE => {
                    let number = |at: usize| u16::from_le_bytes([unit.header[at], unit.header[at + 1]]);
                    let result = u64::from_le_bytes(unit.header[..8].try_into().unwrap());
                    return Answer { id: number(12), status: number(14), result, head: number(8), data: got };
                }
                kind::C2H_DATA if unit.head.flags & flag::SUCCESS != 0 => {
                    let id = u16::from_le_bytes([unit.header[0], unit.header[1]]);
                    return Answer { id, head: 0xffff, data: unit.data, ..Answer::default() };
                }
                kind::C2H_DATA => got = unit.data,
                kind::READY => {
                    let len = u32::from_le_bytes(unit.header[8..12].try_into().unwrap()) as usize;
                    assert_eq!(len, data.len());
                    for (number, part) in data.chunks(piece).enumerate() {
                        let at = number * piece;
                        let offset = [(at as u32).to_le_bytes(), (part.len() as u32).to_le_bytes(), [0; 4]].concat();
                        let last = if at + part.len() == len { flag::LAST } else { 0 };
                        let header = [&unit.header[..4], &offset].concat();
                        let sent = self.framing.unit(kind::H2C_DATA, last, &header, Bytes::copy_from_slice(part)).concat();
                        self.send(&sent);
                    }
                }
                other => panic!("a unit of the type {other}: {unit:?}"),
            }
        }
    }

    /// Carries out a command. The status where it failed.
    pub(crate) fn command(&mut self, command: Sqe, data: &[u8]) -> Result<Answer, u16> {
        let id = self.submit(command, data);
        let answer = self.answer(data, 5000);
        assert_eq!(answer.id, id);
        if answer.status == 0 { Ok(answer) } else { Err(answer.status) }
    }

    /// The status of a command that fails.
    pub(crate) fn fails(&mut self, command: Sqe, data: &[u8], with: Status) {
        let failed = self.command(command, data).map(|answer| answer.status);
        assert_eq!(failed, Err(with.field()), "{:x?}", command.0);
    }
}
