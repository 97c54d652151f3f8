//! An initiator that does what a test says, right or wrong.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use skytether_iscsi::decoder::{Decoder, Digests, Space};
use skytether_iscsi::pdu::{Header, NO_TAG, flag, opcode, padding};
use skytether_iscsi::text;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::serving::NAME;

/// Long enough for a busy machine: only a defect takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A unit.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) header: Header,
    pub(crate) data: Vec<u8>,
}

impl Unit {
    /// The pairs of its text.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        text::pairs(&self.data).unwrap().into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// The value of `key` in its text.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        self.pairs().into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Key, code and qualifier of its sense data, of the fixed format.
    pub(crate) fn sense(&self) -> (u8, u8, u8) {
        (self.data[4] & 15, self.data[14], self.data[15])
    }

    /// Status class and detail of a login response.
    pub(crate) fn login_status(&self) -> u16 {
        self.header.u16(36)
    }
}

/// A connection to the target.
pub(crate) struct Initiator {
    pub(crate) stream: TcpStream,
    decoder: Decoder,
    awaiting: Option<Header>,
    pub(crate) digests: Digests,
    pub(crate) cmd_sn: u32,
    pub(crate) last_sn: u32,
    pub(crate) tag: u32,
    pub(crate) isid: [u8; 6],
}

impl Initiator {
    /// A connection without a login.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let decoder = Decoder::new(1 << 24);
        Self { stream, decoder, awaiting: None, digests: Digests::default(), cmd_sn: 7, last_sn: 7, tag: 1, isid: [0x80, 0, 0, 1, 0, 0] }
    }

    /// A session with `keys` in the stage of operational parameters.
    pub(crate) async fn log_in(address: SocketAddr, keys: &[(&str, &str)]) -> Self {
        Self::log_in_as(address, [0x80, 0, 0, 1, 0, 0], keys).await.0
    }

    /// A session with a part of its identifier, and the last response.
    pub(crate) async fn log_in_as(address: SocketAddr, isid: [u8; 6], keys: &[(&str, &str)]) -> (Self, Unit) {
        let mut initiator = Self::connect(address).await;
        initiator.isid = isid;
        let mut all = vec![("InitiatorName", "iqn.2024-01.test:initiator"), ("TargetName", NAME), ("SessionType", "Normal")];
        all.extend(keys);
        let reply = initiator.login(1, 3, true, &all).await;
        assert_eq!(reply.login_status(), 0);
        initiator.begin(&reply);
        (initiator, reply)
    }

    /// The full feature phase begins after `reply`.
    pub(crate) fn begin(&mut self, reply: &Unit) {
        assert_eq!(reply.header.flags(), 0x87, "{reply:?}");
        let on = |key: &str| reply.value(key).as_deref() == Some("CRC32C");
        self.digests = Digests { header: on("HeaderDigest"), data: on("DataDigest") };
        self.decoder.set(self.digests, 1 << 24);
        self.last_sn = reply.header.u32(32);
    }

    /// A request of the login and its response.
    pub(crate) async fn login(&mut self, stage: u8, next: u8, transit: bool, keys: &[(&str, &str)]) -> Unit {
        self.send_login(stage, next, transit, 0, keys).await;
        self.receive().await.expect("a login response")
    }

    /// A request of the login.
    pub(crate) async fn send_login(&mut self, stage: u8, next: u8, transit: bool, tsih: u16, keys: &[(&str, &str)]) {
        let mut header = Header::new(opcode::LOGIN | 0x40);
        header.0[1] = stage << 2 | if transit { flag::TRANSIT | next } else { 0 };
        header.0[8..14].copy_from_slice(&self.isid);
        header.set_u16(14, tsih);
        header.set_u32(16, self.tag);
        header.set_u32(24, self.cmd_sn);
        let mut text = Vec::new();
        for (key, value) in keys {
            text::put(&mut text, key, value);
        }
        self.send(header, &text).await;
    }

    /// Sends a unit. Where the target has closed the connection, [`Initiator::receive`] tells.
    pub(crate) async fn send(&mut self, header: Header, data: &[u8]) {
        let bytes = self.bytes(header, data);
        let _ = self.stream.write_all(&bytes).await;
    }

    /// The bytes of a unit.
    pub(crate) fn bytes(&self, mut header: Header, data: &[u8]) -> Vec<u8> {
        header.set_data_length(data.len());
        let mut bytes = header.0.to_vec();
        if self.digests.header {
            bytes.put_u32_le(crc32c::crc32c(&header.0));
        }
        let at = bytes.len();
        bytes.extend(data);
        bytes.resize(bytes.len() + padding(data.len()), 0);
        if self.digests.data && !data.is_empty() {
            let crc = crc32c::crc32c(&bytes[at..]);
            bytes.put_u32_le(crc);
        }
        bytes
    }

    /// The next unit; `None` once the target has closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Unit> {
        timeout(PATIENCE, self.next()).await.expect("neither an answer nor an end")
    }

    async fn next(&mut self) -> Option<Unit> {
        loop {
            if self.awaiting.is_none() {
                let header = self.decoder.header().expect("a header with a right digest");
                match header {
                    Some(header) if header.data_length() == 0 => return Some(self.came(header, Vec::new())),
                    Some(header) => {
                        self.awaiting = Some(header);
                        self.decoder.receive(BytesMut::new());
                    }
                    None => {}
                }
            }
            if let Some(data) = self.decoder.data() {
                assert!(data.intact, "the digest of data is wrong");
                let header = self.awaiting.take().unwrap();
                return Some(self.came(header, data.bytes.to_vec()));
            }
            let (read, into_data) = match self.decoder.space() {
                Space::Buffer(mut space) => (self.stream.read_buf(&mut space).await, false),
                Space::Data(mut space) => (self.stream.read_buf(&mut space).await, true),
            };
            match read {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.decoder.filled(n, into_data),
            }
        }
    }

    fn came(&mut self, header: Header, data: Vec<u8>) -> Unit {
        if header.opcode() != opcode::LOGIN_RESPONSE {
            self.last_sn = header.u32(32);
        }
        Unit { header, data }
    }

    /// The header of the next command.
    pub(crate) fn command(&mut self, lun: u8, cdb: &[u8], flags: u8, expected: u32) -> Header {
        let mut header = Header::new(opcode::COMMAND);
        header.0[1] = flags;
        header.0[9] = lun;
        header.0[32..32 + cdb.len()].copy_from_slice(cdb);
        header.set_u32(20, expected);
        self.number(header)
    }

    /// Gives a request the next tag and number.
    pub(crate) fn number(&mut self, mut header: Header) -> Header {
        self.tag += 1;
        header.set_u32(16, self.tag);
        header.set_u32(24, self.cmd_sn);
        if !header.is_immediate() {
            self.cmd_sn = self.cmd_sn.wrapping_add(1);
        }
        header
    }

    /// A data unit of the command `tag`.
    pub(crate) fn data_out(&self, tag: u32, transfer: u32, number: u32, offset: u32, last: bool) -> Header {
        let mut header = Header::new(opcode::DATA_OUT);
        header.0[1] = if last { flag::FINAL } else { 0 };
        header.set_u32(16, tag);
        header.set_u32(20, transfer);
        header.set_u32(36, number);
        header.set_u32(40, offset);
        header
    }

    /// A management function that is delivered at once; its response's code.
    pub(crate) async fn manage(&mut self, function: u8, lun: u8, of: u32) -> u32 {
        let mut header = Header::new(opcode::TASK_MANAGEMENT | 0x40);
        header.0[1] |= function;
        header.0[9] = lun;
        header.set_u32(20, of);
        let header = self.number(header);
        self.send(header, &[]).await;
        header.tag()
    }

    /// Takes the unit attentions of a logical unit.
    pub(crate) async fn attend(&mut self, lun: u8) {
        for _ in 0..8 {
            let ready = self.command(lun, &[0; 6], flag::FINAL, 0);
            self.send(ready, &[]).await;
            let reply = self.receive().await.unwrap();
            if reply.header.0[3] == 0 {
                return;
            }
            assert_eq!(reply.sense().0, 6, "{reply:?}");
        }
        panic!("unit attentions don't end");
    }

    /// Reads `blocks` blocks at `lba`: the data and the last unit.
    pub(crate) async fn read(&mut self, lun: u8, lba: u32, blocks: u16) -> (Vec<u8>, Unit) {
        let header = self.command(lun, &read10(lba, blocks), flag::FINAL | flag::READ, u32::from(blocks) * 512);
        self.send(header, &[]).await;
        self.collect(header.tag()).await
    }

    /// The data of the command `tag`, and the unit with its status.
    pub(crate) async fn collect(&mut self, tag: u32) -> (Vec<u8>, Unit) {
        let mut data = Vec::new();
        loop {
            let unit = self.receive().await.expect("the data of a read");
            assert_eq!(unit.header.tag(), tag);
            if unit.header.opcode() == opcode::RESPONSE {
                return (data, unit);
            }
            assert_eq!((unit.header.opcode(), unit.header.u32(40) as usize), (opcode::DATA_IN, data.len()));
            data.extend(&unit.data);
            if unit.header.has(flag::STATUS) {
                return (data, unit);
            }
        }
    }

    /// Writes `data` at `lba`, `immediate` bytes of it with the command and `unasked` after it: the response.
    pub(crate) async fn write(&mut self, lun: u8, lba: u32, data: &[u8], immediate: usize, unasked: usize) -> Unit {
        let blocks = (data.len() / 512) as u16;
        let last = if unasked > 0 { 0 } else { flag::FINAL };
        let header = self.command(lun, &write10(lba, blocks), last | flag::WRITE, data.len() as u32);
        self.send(header, &data[..immediate]).await;
        let (mut at, mut number) = (immediate, 0);
        while at < immediate + unasked {
            let to = (at + 4096).min(immediate + unasked);
            let unit = self.data_out(header.tag(), NO_TAG, number, at as u32, to == immediate + unasked);
            self.send(unit, &data[at..to]).await;
            (at, number) = (to, number + 1);
        }
        loop {
            let unit = self.receive().await.expect("a response to a write");
            if unit.header.opcode() != opcode::READY_TO_TRANSFER {
                return unit;
            }
            let (offset, length) = (unit.header.u32(40) as usize, unit.header.u32(44) as usize);
            let chunks: Vec<_> = data[offset..offset + length].chunks(50_000).collect();
            for (number, chunk) in chunks.iter().enumerate() {
                let last = number + 1 == chunks.len();
                let out = self.data_out(header.tag(), unit.header.word5(), number as u32, (offset + number * 50_000) as u32, last);
                self.send(out, chunk).await;
            }
        }
    }
}

/// READ (10).
pub(crate) fn read10(lba: u32, blocks: u16) -> [u8; 10] {
    cdb10(0x28, lba, blocks)
}

/// WRITE (10).
pub(crate) fn write10(lba: u32, blocks: u16) -> [u8; 10] {
    cdb10(0x2a, lba, blocks)
}

fn cdb10(operation: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = operation;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
