//! The bytes of NBD: numbers in network byte order.

use bytes::{Buf, BufMut, BytesMut};

/// The first eight bytes of a server.
pub const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Begins the newstyle negotiation, and each option of a client.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Begins each answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The longest name of an export, or of a metadata context, in bytes.
pub const NAME_MOST: usize = 4096;
/// The longest payload of an option that is answered. A client that claims more is cut off.
pub const OPTION_MOST: u32 = 64 << 10;
/// The longest payload of a read or a write.
pub const PAYLOAD_MOST: u32 = 32 << 20;
/// The length of a request without its payload.
pub const REQUEST_LEN: usize = 28;
/// The length of an option without its payload.
pub const OPTION_LEN: usize = 16;

/// Flags of the negotiation, of server and client.
pub mod handshake {
    /// Unknown options are answered, and do not end the connection.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeros follow the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Options of the negotiation.
pub mod option {
    /// Chooses an export, in the old way: no answer but the export's size and flags.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Names all exports.
    pub const LIST: u32 = 3;
    /// Begins TLS.
    pub const STARTTLS: u32 = 5;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and chooses it.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Names metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of answers to options. Errors have the highest bit set.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// Something about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The server does not allow the option.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option is malformed, or not valid now.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
}

/// Kinds of [`reply::INFO`].
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's full name.
    pub const NAME: u16 = 1;
    /// Smallest, preferred and largest sizes of requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of an export.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Changes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is known.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is known.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is known.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is known.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Reads may ask for one chunk.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what was acknowledged on all others.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is known.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO is known.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests.
pub mod command {
    /// Reads bytes.
    pub const READ: u16 = 0;
    /// Writes bytes.
    pub const WRITE: u16 = 1;
    /// Ends the connection.
    pub const DISC: u16 = 2;
    /// Makes what was acknowledged durable.
    pub const FLUSH: u16 = 3;
    /// Says that the content of a range is of no more use.
    pub const TRIM: u16 = 4;
    /// Says that a range will be read soon.
    pub const CACHE: u16 = 5;
    /// Makes a range zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks which ranges are mapped.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod flag {
    /// Acknowledge once durable.
    pub const FUA: u16 = 1;
    /// Keep the range mapped.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer in one chunk.
    pub const DF: u16 = 1 << 2;
    /// Answer with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail where zeros are no faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks, and their flag.
pub mod chunk {
    /// The last of a reply.
    pub const DONE: u16 = 1;
    /// Nothing: the request is done.
    pub const NONE: u16 = 0;
    /// Bytes and their place.
    pub const OFFSET_DATA: u16 = 1;
    /// A range that reads as zeros.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error with a text.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// States of `base:allocation`.
pub mod state {
    /// Not mapped.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 2;
}

/// Error numbers of replies.
pub mod errno {
    /// The export is read-only.
    pub const EPERM: u32 = 1;
    /// The storage failed.
    pub const EIO: u32 = 5;
    /// The request is wrong.
    pub const EINVAL: u32 = 22;
    /// No space is left, or a write is beyond the end.
    pub const ENOSPC: u32 = 28;
    /// Not done, as it would be no faster than a write.
    pub const ENOTSUP: u32 = 95;
}

/// One option of a client, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHead {
    /// Its number ([`option`]).
    pub option: u32,
    /// Bytes of the payload that follows.
    pub len: u32,
}

impl OptionHead {
    /// Reads it. `None` where the magic number is another.
    #[must_use]
    pub fn parse(bytes: &[u8; OPTION_LEN]) -> Option<Self> {
        let mut bytes: &[u8] = bytes;
        (bytes.get_u64() == OPTION_MAGIC).then(|| Self { option: bytes.get_u32(), len: bytes.get_u32() })
    }
}

/// One request of the transmission phase, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Flags ([`flag`]).
    pub flags: u16,
    /// Its type ([`command`]).
    pub command: u16,
    /// The client's choice; the reply repeats it.
    pub cookie: u64,
    /// The first byte.
    pub at: u64,
    /// How many bytes.
    pub len: u32,
}

impl Request {
    /// Reads it. `None` where the magic number is another: the client has lost its place.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let mut bytes: &[u8] = bytes;
        if bytes.get_u32() != REQUEST_MAGIC {
            return None;
        }
        Some(Self { flags: bytes.get_u16(), command: bytes.get_u16(), cookie: bytes.get_u64(), at: bytes.get_u64(), len: bytes.get_u32() })
    }

    /// Its bytes, for clients.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        let mut to = &mut bytes[..];
        to.put_u32(REQUEST_MAGIC);
        to.put_u16(self.flags);
        to.put_u16(self.command);
        to.put_u64(self.cookie);
        to.put_u64(self.at);
        to.put_u32(self.len);
        bytes
    }
}

/// The payload of `INFO` and `GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest {
    /// The export's name; empty for the default.
    pub name: String,
    /// The kinds of information that the client wants ([`info`]).
    pub wanted: Vec<u16>,
}

impl InfoRequest {
    /// Reads it. `None` where lengths contradict each other, or the name is too long or no UTF-8.
    #[must_use]
    pub fn parse(mut bytes: &[u8]) -> Option<Self> {
        let name = take_text(&mut bytes)?;
        let count = take_u16(&mut bytes)?;
        if bytes.len() != 2 * usize::from(count) {
            return None;
        }
        Some(Self { name, wanted: bytes.chunks_exact(2).map(|mut two| two.get_u16()).collect() })
    }
}

/// The payload of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest {
    /// The export's name; empty for the default.
    pub name: String,
    /// Contexts, or name spaces with a colon at their end.
    pub queries: Vec<String>,
}

impl MetaRequest {
    /// Reads it. `None` where lengths contradict each other, or a text is too long or no UTF-8.
    #[must_use]
    pub fn parse(mut bytes: &[u8]) -> Option<Self> {
        let name = take_text(&mut bytes)?;
        let count = bytes.try_get_u32().ok()?;
        // Each has four bytes at least, so that `count` can't claim memory.
        if count as usize > bytes.len() / 4 {
            return None;
        }
        let queries = (0..count).map(|_| take_text(&mut bytes)).collect::<Option<Vec<String>>>()?;
        bytes.is_empty().then_some(Self { name, queries })
    }
}

fn take_u16(bytes: &mut &[u8]) -> Option<u16> {
    bytes.try_get_u16().ok()
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let len = bytes.try_get_u32().ok()? as usize;
    if len > NAME_MOST || len > bytes.len() {
        return None;
    }
    let (text, rest) = bytes.split_at(len);
    *bytes = rest;
    String::from_utf8(text.to_vec()).ok()
}

/// Adds an answer to an option.
pub fn put_option_reply(out: &mut BytesMut, option: u32, kind: u32, payload: &[u8]) {
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(kind);
    // Payloads are built here and short.
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_slice(payload);
}

/// Adds a simple reply; data follows it where `error` is 0 and the request was a read.
pub fn put_simple_reply(out: &mut BytesMut, cookie: u64, error: u32) {
    out.put_u32(SIMPLE_REPLY_MAGIC);
    out.put_u32(error);
    out.put_u64(cookie);
}

/// Adds the head of a chunk; `len` bytes follow it.
pub fn put_chunk(out: &mut BytesMut, cookie: u64, flags: u16, kind: u16, len: u32) {
    out.put_u32(CHUNK_MAGIC);
    out.put_u16(flags);
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u32(len);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn random_payloads_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(request) = InfoRequest::parse(&bytes) {
                prop_assert_eq!(bytes.len(), 6 + request.name.len() + 2 * request.wanted.len());
            }
            if let Some(request) = MetaRequest::parse(&bytes) {
                prop_assert_eq!(bytes.len(), 8 + request.name.len() + request.queries.iter().map(|query| 4 + query.len()).sum::<usize>());
            }
        }

        #[test]
        fn requests_are_read_as_written(flags: u16, command: u16, cookie: u64, at: u64, len: u32) {
            let request = Request { flags, command, cookie, at, len };
            prop_assert_eq!(Request::parse(&request.encode()), Some(request));
        }
    }

    #[test]
    fn counts_claim_no_memory() {
        let queries = [&0_u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()[..]].concat();
        assert_eq!(MetaRequest::parse(&queries), None);
    }
}
