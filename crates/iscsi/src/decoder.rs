//! Units out of a stream of bytes. Pure: the caller reads.
//!
//! Small units come out of a buffer of fixed length. The data of a large one is read straight into the buffer that the
//! caller gives after it has seen the header, so that a write is assembled where it stays.

use bytes::buf::Limit;
use bytes::{BufMut, BytesMut};

use crate::pdu::{HEADER, Header, MAX_ADDITIONAL, padding};

/// Bytes that are read ahead.
pub const READ_AHEAD: usize = 64 << 10;

/// The stream cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A header whose digest is wrong. Where the next one begins is unknown.
    HeaderDigest,
    /// A data segment longer than was declared.
    TooLong,
}

/// What parts of units are protected by CRC-32C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// Headers.
    pub header: bool,
    /// Data segments.
    pub data: bool,
}

/// The data segment of a unit.
#[derive(Debug)]
pub struct Data {
    /// The buffer of [`Decoder::receive`], with the segment at its end.
    pub bytes: BytesMut,
    /// Whether its digest is right, or absent.
    pub intact: bool,
}

#[derive(Debug)]
enum State {
    /// Between units, or within a header.
    Header,
    /// A header came, and its data is to be received.
    Announced { length: usize },
    /// Within a data segment.
    Data { into: BytesMut, from: usize, left: usize },
    /// Within padding and digest.
    Trailer { into: BytesMut, from: usize },
}

/// Where the next bytes are to be put.
#[derive(Debug)]
pub enum Space<'a> {
    /// The buffer of small units.
    Buffer(&'a mut [u8]),
    /// The buffer of a data segment, and no more than it lacks.
    Data(Limit<&'a mut BytesMut>),
}

/// Takes units apart.
///
/// Its bounds: [`READ_AHEAD`], and one data segment of at most the length that it is made with.
#[derive(Debug)]
pub struct Decoder {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    state: State,
    digests: Digests,
    max_data: usize,
}

impl Decoder {
    /// For units whose data segments have at most `max_data` bytes, without digests.
    #[must_use]
    pub fn new(max_data: usize) -> Self {
        let buffer = vec![0; READ_AHEAD].into_boxed_slice();
        Self { buffer, start: 0, end: 0, state: State::Header, digests: Digests::default(), max_data }
    }

    /// From the next header on, `digests` are there and data has at most `max_data` bytes.
    pub fn set(&mut self, digests: Digests, max_data: usize) {
        self.digests = digests;
        self.max_data = max_data;
    }

    /// Whether a unit has begun that is not whole.
    #[must_use]
    pub fn is_within(&self) -> bool {
        !matches!(self.state, State::Header) || self.start < self.end
    }

    /// Where to read to. After that, [`Decoder::filled`] is called.
    pub fn space(&mut self) -> Space<'_> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if let State::Data { into, left, .. } = &mut self.state {
                return Space::Data(into.limit(*left));
            }
        } else if self.start > 0 && self.buffer.len() - self.end < self.buffer.len() / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        Space::Buffer(&mut self.buffer[self.end..])
    }

    /// `n` bytes were put into the last [`Decoder::space`]. For [`Space::Data`] the buffer has counted them already.
    pub fn filled(&mut self, n: usize, into_data: bool) {
        match &mut self.state {
            State::Data { left, .. } if into_data => *left -= n.min(*left),
            _ => self.end = (self.end + n).min(self.buffer.len()),
        }
    }

    /// The next header, once it is whole. If it announces data, [`Decoder::receive`] must follow.
    ///
    /// # Errors
    /// The stream ends here.
    pub fn header(&mut self) -> Result<Option<Header>, Broken> {
        if !matches!(self.state, State::Header) {
            return Ok(None);
        }
        let there = &self.buffer[self.start..self.end];
        let Some(bytes) = there.first_chunk::<HEADER>() else { return Ok(None) };
        let header = Header(*bytes);
        // A length that is wrong is told before more is awaited.
        if header.data_length() > self.max_data {
            return Err(Broken::TooLong);
        }
        let length = HEADER + header.additional_length().min(MAX_ADDITIONAL);
        let with_digest = length + if self.digests.header { 4 } else { 0 };
        let Some(whole) = there.get(..with_digest) else { return Ok(None) };
        if self.digests.header {
            let (protected, digest) = whole.split_at(length);
            // Digests travel with their least significant byte first (RFC 7143, 13.1).
            if crc32c::crc32c(protected).to_le_bytes() != digest {
                return Err(Broken::HeaderDigest);
            }
        }
        self.start += with_digest;
        if header.data_length() > 0 {
            self.state = State::Announced { length: header.data_length() };
        }
        Ok(Some(header))
    }

    /// Data of the header that came goes to the end of `into`.
    pub fn receive(&mut self, mut into: BytesMut) {
        if let State::Announced { length } = self.state {
            into.reserve(length);
            self.state = State::Data { from: into.len(), into, left: length };
        }
    }

    /// The data segment, once it is whole.
    pub fn data(&mut self) -> Option<Data> {
        if let State::Data { into, left, .. } = &mut self.state {
            let there = &self.buffer[self.start..self.end];
            let take = there.len().min(*left);
            into.put_slice(&there[..take]);
            self.start += take;
            *left -= take;
            if *left > 0 {
                return None;
            }
        }
        match std::mem::replace(&mut self.state, State::Header) {
            State::Data { into, from, .. } | State::Trailer { into, from } => self.trailer(into, from),
            other => {
                self.state = other;
                None
            }
        }
    }

    fn trailer(&mut self, into: BytesMut, from: usize) -> Option<Data> {
        let pad = padding(into.len() - from);
        let length = pad + if self.digests.data { 4 } else { 0 };
        let Some(trailer) = self.buffer[self.start..self.end].get(..length) else {
            self.state = State::Trailer { into, from };
            return None;
        };
        let mut intact = true;
        if self.digests.data {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&into[from..]), &trailer[..pad]);
            intact = crc.to_le_bytes() == trailer[pad..];
        }
        self.start += length;
        Some(Data { bytes: into, intact })
    }
}

/// Reads all units of `bytes`, as a test or a fuzzer does, and gives their headers and data.
///
/// # Errors
/// Where the stream ends; what came before is lost.
pub fn decode_all(mut bytes: &[u8], digests: Digests, max_data: usize) -> Result<Vec<(Header, Option<Data>)>, Broken> {
    let mut decoder = Decoder::new(max_data);
    decoder.set(digests, max_data);
    let mut found = Vec::new();
    let mut awaiting = None;
    loop {
        if awaiting.is_none() {
            awaiting = decoder.header()?;
            match &awaiting {
                Some(header) if header.data_length() == 0 => {
                    found.extend(awaiting.take().map(|header| (header, None)));
                    continue;
                }
                Some(_) => decoder.receive(BytesMut::new()),
                None => {}
            }
        }
        if let Some(data) = decoder.data()
            && let Some(header) = awaiting.take()
        {
            found.push((header, Some(data)));
            continue;
        }
        if bytes.is_empty() {
            return Ok(found);
        }
        let (taken, into_data) = match decoder.space() {
            Space::Buffer(space) => {
                let n = space.len().min(bytes.len());
                space[..n].copy_from_slice(&bytes[..n]);
                (n, false)
            }
            Space::Data(mut space) => {
                let n = space.remaining_mut().min(bytes.len());
                space.put_slice(&bytes[..n]);
                (n, true)
            }
        };
        decoder.filled(taken, into_data);
        bytes = &bytes[taken..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::opcode;

    fn unit(data: &[u8], digests: Digests) -> Vec<u8> {
        let mut header = Header::new(opcode::NOP_OUT);
        header.set_data_length(data.len());
        let mut bytes = header.0.to_vec();
        if digests.header {
            bytes.extend(crc32c::crc32c(&header.0).to_le_bytes());
        }
        if !data.is_empty() {
            let mut padded = data.to_vec();
            padded.resize(data.len() + padding(data.len()), 0);
            bytes.extend(&padded);
            if digests.data {
                bytes.extend(crc32c::crc32c(&padded).to_le_bytes());
            }
        }
        bytes
    }

    const BOTH: Digests = Digests { header: true, data: true };

    #[test]
    fn units_come_out_as_they_were_put_in() {
        let data: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        for digests in [Digests::default(), BOTH] {
            let lengths = [0, 1, 5, 4096, 200_000, 0, 7, 65_536];
            let stream: Vec<u8> = lengths.iter().flat_map(|&n| unit(&data[..n], digests)).collect();
            let found = decode_all(&stream, digests, 1 << 20).unwrap();
            let came: Vec<_> = found.iter().map(|(_, data)| data.as_ref().map_or(0, |data| data.bytes.len())).collect();
            assert_eq!(came, lengths);
            for (_, unit) in found {
                assert!(unit.is_none_or(|unit| unit.intact && unit.bytes == data[..unit.bytes.len()]));
            }
        }
    }

    #[test]
    fn wrong_digests_are_told_apart() {
        let good = unit(b"abc", BOTH);
        let mut header = good.clone();
        header[9] ^= 1;
        assert_eq!(decode_all(&header, BOTH, 100).unwrap_err(), Broken::HeaderDigest);
        let mut data = good.clone();
        data[53] ^= 1;
        let found = decode_all(&[data, good].concat(), BOTH, 100).unwrap();
        let intact: Vec<_> = found.iter().map(|(_, data)| data.as_ref().unwrap().intact).collect();
        assert_eq!(intact, [false, true]);
    }

    #[test]
    fn long_data_is_refused_by_its_header() {
        assert_eq!(decode_all(&unit(&[0; 101], BOTH)[..HEADER], BOTH, 100).unwrap_err(), Broken::TooLong);
    }
}
