//! Protocol data units of the NVMe/TCP transport: heads, digests, lengths. Numbers are little-endian.
//!
//! Source: NVM Express TCP Transport Specification 1.0, chapter 3.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The length of the head that all units begin with.
pub const HEAD: usize = 8;
/// The length of ICReq and ICResp.
pub const CONNECTION: usize = 128;
/// Data in a command's capsule, at most: the admin queue's length that the transport fixes, here of all queues.
pub const IN_CAPSULE: u32 = 8192;
/// Data of one H2CData, at most. The server says so in ICResp.
pub const H2C_DATA: u32 = 1 << 20;
/// Padding before data, at most: (31 + 1) * 4.
const PADDING: u32 = 128;

/// Types of units.
pub mod kind {
    /// Opens a connection; of the host.
    pub const IC_REQUEST: u8 = 0x00;
    /// The answer.
    pub const IC_RESPONSE: u8 = 0x01;
    /// The host ends the connection because of an error.
    pub const H2C_TERMINATE: u8 = 0x02;
    /// The controller does.
    pub const C2H_TERMINATE: u8 = 0x03;
    /// A command, with or without data.
    pub const COMMAND: u8 = 0x04;
    /// A completion.
    pub const RESPONSE: u8 = 0x05;
    /// Data of the host, as an R2T allowed.
    pub const H2C_DATA: u8 = 0x06;
    /// Data of the controller.
    pub const C2H_DATA: u8 = 0x07;
    /// The controller is ready for data.
    pub const READY: u8 = 0x09;
}

/// Flags of units.
pub mod flag {
    /// A digest follows the header.
    pub const HEADER_DIGEST: u8 = 1;
    /// A digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// The last data of a transfer.
    pub const LAST: u8 = 1 << 2;
    /// The command succeeded: no completion follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Why a connection ends (FES).
pub mod fatal {
    /// A field of a header has a value that it can't have.
    pub const HEADER_FIELD: u16 = 1;
    /// The unit is not allowed now.
    pub const SEQUENCE: u16 = 2;
    /// The header's digest is another.
    pub const HEADER_DIGEST: u16 = 3;
    /// Data outside of what an R2T allowed.
    pub const RANGE: u16 = 4;
    /// More data than allowed.
    pub const LIMIT: u16 = 5;
    /// A parameter that this server does not have.
    pub const UNSUPPORTED: u16 = 6;
}

/// An error after which the connection can't go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fatal {
    /// Its kind ([`fatal`]).
    pub status: u16,
    /// The place of the wrong field in the header, where it is one.
    pub field: u32,
}

impl Fatal {
    /// A wrong field of the header.
    #[must_use]
    pub fn field(at: u32) -> Self {
        Self { status: fatal::HEADER_FIELD, field: at }
    }

    /// Another error.
    #[must_use]
    pub fn of(status: u16) -> Self {
        Self { status, field: 0 }
    }
}

/// Which digests a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// CRC-32C of headers.
    pub header: bool,
    /// CRC-32C of data.
    pub data: bool,
}

/// What all units begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The type ([`kind`]).
    pub kind: u8,
    /// Flags ([`flag`]).
    pub flags: u8,
    /// Bytes of the header, this one included.
    pub header: u8,
    /// Where data begins, in multiples of one byte from the unit's beginning; 0 without data.
    pub data_offset: u8,
    /// Bytes of the whole unit.
    pub len: u32,
}

/// What follows a [`Head`], as lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the header after its first eight.
    pub header: usize,
    /// Whether a digest of the header follows.
    pub header_digest: bool,
    /// Bytes before the data that mean nothing.
    pub padding: usize,
    /// Bytes of data.
    pub data: usize,
    /// Whether a digest of the data follows.
    pub data_digest: bool,
}

impl Head {
    /// Reads it.
    #[must_use]
    pub fn parse(bytes: &[u8; HEAD]) -> Self {
        let mut bytes: &[u8] = bytes;
        Self { kind: bytes.get_u8(), flags: bytes.get_u8(), header: bytes.get_u8(), data_offset: bytes.get_u8(), len: bytes.get_u32_le() }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD] {
        let mut bytes = [self.kind, self.flags, self.header, self.data_offset, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// The lengths of a host's unit on an open connection, within bounds.
    ///
    /// # Errors
    /// Where the unit is none of a host, or lengths and flags contradict each other or pass their bounds.
    pub fn layout(&self, digests: Digests) -> Result<Layout, Fatal> {
        let (header, most, has_digests) = match self.kind {
            kind::COMMAND => (72, IN_CAPSULE, true),
            kind::H2C_DATA => (24, H2C_DATA, true),
            kind::H2C_TERMINATE => (24, CONNECTION as u32, false),
            kind::IC_REQUEST => return Err(Fatal::of(fatal::SEQUENCE)),
            _ => return Err(Fatal::field(0)),
        };
        if self.header != header {
            return Err(Fatal::field(2));
        }
        let (header_digest, data_digest) = (self.flags & flag::HEADER_DIGEST != 0, self.flags & flag::DATA_DIGEST != 0);
        let has = if has_digests { digests } else { Digests::default() };
        if header_digest != has.header || data_digest && !has.data {
            return Err(Fatal::field(1));
        }
        let begin = u32::from(header) + if header_digest { 4 } else { 0 };
        let rest = self.len.checked_sub(begin).ok_or(Fatal::field(4))?;
        let layout = Layout { header: usize::from(header) - HEAD, header_digest, padding: 0, data: 0, data_digest };
        if rest == 0 {
            return if data_digest { Err(Fatal::field(1)) } else { Ok(layout) };
        }
        if data_digest != has.data {
            return Err(Fatal::field(1));
        }
        let padding = match (has_digests, self.data_offset) {
            // A unit that ends a connection has no such field.
            (false, _) => 0,
            (true, at) => u32::from(at).checked_sub(begin).filter(|padding| *padding <= PADDING).ok_or(Fatal::field(3))?,
        };
        let data = rest.checked_sub(padding + if data_digest { 4 } else { 0 }).ok_or(Fatal::field(4))?;
        if data > most {
            return Err(Fatal { status: fatal::LIMIT, field: 0 });
        }
        Ok(Layout { padding: padding as usize, data: data as usize, ..layout })
    }
}

/// What a host says when it opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Data of the controller begins at multiples of this many bytes.
    pub alignment: usize,
    /// Which digests it wants.
    pub digests: Digests,
}

impl Opening {
    /// Reads an ICReq.
    ///
    /// # Errors
    /// Where it is none, or of another version of the format.
    pub fn parse(bytes: &[u8; CONNECTION]) -> Result<Self, Fatal> {
        let mut rest: &[u8] = bytes;
        let (kind, flags, header, _, len) = (rest.get_u8(), rest.get_u8(), rest.get_u8(), rest.get_u8(), rest.get_u32_le());
        if kind != kind::IC_REQUEST {
            return Err(Fatal::of(fatal::SEQUENCE));
        }
        if flags != 0 || usize::from(header) != CONNECTION || len as usize != CONNECTION {
            return Err(Fatal::field(2));
        }
        let (version, alignment, digests) = (rest.get_u16_le(), rest.get_u8(), rest.get_u8());
        if version != 0 {
            return Err(Fatal { status: fatal::UNSUPPORTED, field: 8 });
        }
        if alignment > 31 {
            return Err(Fatal::field(10));
        }
        let digests = Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
        Ok(Self { alignment: (usize::from(alignment) + 1) * 4, digests })
    }

    /// The server's answer: all that was asked for.
    #[must_use]
    pub fn answer(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(CONNECTION);
        out.put_slice(&Head { kind: kind::IC_RESPONSE, flags: 0, header: CONNECTION as u8, data_offset: 0, len: CONNECTION as u32 }.encode());
        out.put_u16_le(0);
        // Data of the host needs no alignment.
        out.put_u8(0);
        out.put_u8(u8::from(self.digests.header) | u8::from(self.digests.data) << 1);
        out.put_u32_le(H2C_DATA);
        out.put_bytes(0, CONNECTION - out.len());
        out.freeze()
    }
}

/// The fields of an H2CData.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHeader {
    /// The command's identifier.
    pub command: u16,
    /// What the R2T said.
    pub tag: u16,
    /// The place of the data in the transfer.
    pub offset: u32,
    /// Its length.
    pub len: u32,
}

impl DataHeader {
    /// Reads the 16 bytes after the head.
    #[must_use]
    pub fn parse(bytes: &[u8; 16]) -> Self {
        let mut bytes: &[u8] = bytes;
        Self { command: bytes.get_u16_le(), tag: bytes.get_u16_le(), offset: bytes.get_u32_le(), len: bytes.get_u32_le() }
    }
}

/// How units are put together on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// Which digests it has.
    pub digests: Digests,
    /// Data begins at multiples of this many bytes.
    pub alignment: usize,
}

impl Framing {
    /// The pieces of a unit: `header` is what follows the head.
    #[must_use]
    pub fn unit(&self, kind: u8, flags: u8, header: &[u8], data: Bytes) -> Vec<Bytes> {
        let end = HEAD + header.len();
        let begin = end + if self.digests.header { 4 } else { 0 };
        let has_data = !data.is_empty();
        let at = if has_data { begin.next_multiple_of(self.alignment) } else { begin };
        let tail = if has_data && self.digests.data { 4 } else { 0 };
        let flags = flags | if self.digests.header { flag::HEADER_DIGEST } else { 0 } | if tail > 0 { flag::DATA_DIGEST } else { 0 };
        let mut out = BytesMut::with_capacity(at);
        // Data has at most 1 MiB, and begins at 128 at most.
        let head = Head { kind, flags, header: end as u8, data_offset: if has_data { at as u8 } else { 0 }, len: (at + data.len() + tail) as u32 };
        out.put_slice(&head.encode());
        out.put_slice(header);
        if self.digests.header {
            out.put_u32_le(crc32c::crc32c(&out));
        }
        out.put_bytes(0, at - out.len());
        let mut pieces = vec![out.freeze()];
        if has_data {
            let digest = (tail > 0).then(|| Bytes::copy_from_slice(&crc32c::crc32c(&data).to_le_bytes()));
            pieces.push(data);
            pieces.extend(digest);
        }
        pieces
    }

    /// Data of the controller: all of a command's, in one unit.
    #[must_use]
    pub fn data(&self, command: u16, flags: u8, data: Bytes) -> Vec<Bytes> {
        let mut header = BytesMut::with_capacity(16);
        header.put_u16_le(command);
        header.put_u16_le(0);
        header.put_u32_le(0);
        header.put_u32_le(data.len() as u32);
        header.put_u32_le(0);
        self.unit(kind::C2H_DATA, flags | flag::LAST, &header, data)
    }

    /// Asks for `len` bytes of a command's data. The command's identifier is the tag, too.
    #[must_use]
    pub fn ready(&self, command: u16, len: u32) -> Vec<Bytes> {
        let mut header = BytesMut::with_capacity(16);
        header.put_u16_le(command);
        header.put_u16_le(command);
        header.put_u32_le(0);
        header.put_u32_le(len);
        header.put_u32_le(0);
        self.unit(kind::READY, 0, &header, Bytes::new())
    }
}

/// The unit that ends a connection; `wrong` is the header of the unit that was wrong. It never has digests.
#[must_use]
pub fn terminate(why: Fatal, wrong: &[u8]) -> Bytes {
    let wrong = &wrong[..wrong.len().min(CONNECTION)];
    let mut out = BytesMut::with_capacity(24 + wrong.len());
    out.put_slice(&Head { kind: kind::C2H_TERMINATE, flags: 0, header: 24, data_offset: 0, len: (24 + wrong.len()) as u32 }.encode());
    out.put_u16_le(why.status);
    out.put_u32_le(why.field);
    out.put_bytes(0, 10);
    out.put_slice(wrong);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn lengths_of_random_heads_are_bounded(bytes: [u8; 8], header: bool, data: bool, likely in 0_u8..8) {
            let mut head = Head::parse(&bytes);
            prop_assert_eq!(head.encode(), bytes);
            if likely > 3 {
                let (kind, len) = [(kind::COMMAND, 72), (kind::H2C_DATA, 24), (kind::H2C_TERMINATE, 24)][usize::from(likely) % 3];
                head = Head { kind, header: len, len: head.len % 20_000, ..head };
            }
            if let Ok(layout) = head.layout(Digests { header, data }) {
                let digests = 4 * (usize::from(layout.header_digest) + usize::from(layout.data_digest));
                prop_assert_eq!(HEAD + layout.header + layout.padding + layout.data + digests, head.len as usize);
                prop_assert!(layout.data <= H2C_DATA as usize && layout.padding <= PADDING as usize);
            }
        }

        #[test]
        fn units_have_the_layout_that_they_say(header: bool, data: bool, len in 0_usize..100, alignment in 0_usize..32) {
            let framing = Framing { digests: Digests { header, data }, alignment: 4 * (alignment + 1) };
            let pieces = framing.unit(kind::H2C_DATA, 0, &[7; 16], Bytes::from(vec![9; len])).concat();
            let head = Head::parse(&pieces[..8].try_into().map_err(|_| TestCaseError::fail("short"))?);
            prop_assert_eq!(head.len as usize, pieces.len());
            let layout = head.layout(framing.digests).map_err(|e| TestCaseError::fail(format!("{e:?}")))?;
            prop_assert_eq!(layout.data, len);
            let at = HEAD + layout.header + if header { 4 } else { 0 } + layout.padding;
            prop_assert_eq!(&pieces[at..at + len], &vec![9; len][..]);
        }

        #[test]
        fn random_openings_are_read_or_refused(mut bytes in prop::array::uniform32(any::<u8>()), good: bool) {
            if good {
                bytes[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
            }
            let mut all = [0; CONNECTION];
            all[..32].copy_from_slice(&bytes);
            if let Ok(opening) = Opening::parse(&all) {
                prop_assert!(opening.alignment <= 128 && opening.answer().len() == CONNECTION);
            }
        }
    }
}
