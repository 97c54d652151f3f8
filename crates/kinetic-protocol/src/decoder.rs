//! [`FrameDecoder`]: takes the bytes of a connection in any pieces, and gives frames.

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};

use crate::frame::{Frame, FrameError, FrameLimits, HEADER_BYTES, MAGIC};

/// How much memory a decoder asks for at a time, in bytes, unless a frame is longer.
pub const BLOCK: usize = 64 << 10;

/// With less room than this a decoder takes a new block, if little has to be copied to it.
const LITTLE: usize = 4 << 10;

/// How many times the bytes that came a decoder asks for when its block is full.
const GROWTH: usize = 32;

/// Takes the bytes of a connection in any pieces, and gives frames.
///
/// Read into [`FrameDecoder::space`], or give it bytes with [`FrameDecoder::feed`]; then call
/// [`FrameDecoder::next_frame`] until it has none. Messages and values are slices of the memory that the bytes were
/// read into.
///
/// Lengths are compared with the limits before any memory is asked for. Memory follows the bytes that came and not the
/// length that was announced: a decoder holds one block of 64 KiB until it is full, then at most 32 times the bytes
/// that came of the frame, and never more than the longest frame permitted (or a block, if that is more).
///
/// An error is final: each later call returns it.
#[derive(Debug)]
pub struct FrameDecoder {
    limits: FrameLimits,
    buffer: BytesMut,
    /// The message of a frame whose value is being dropped.
    dropping: Option<Dropping>,
    failed: Option<FrameError>,
}

#[derive(Debug)]
struct Dropping {
    message: Bytes,
    length: u32,
    left: u32,
}

impl FrameDecoder {
    /// A decoder of a new connection. It has no memory yet.
    #[must_use]
    pub fn new(limits: FrameLimits) -> FrameDecoder {
        FrameDecoder { limits, buffer: BytesMut::new(), dropping: None, failed: None }
    }

    /// Other limits from the next frame on: a client learns them from the drive's first message.
    ///
    /// # Errors
    /// That of the frame under way, if its header does not keep the new limits.
    pub fn set_limits(&mut self, limits: FrameLimits) -> Result<(), FrameError> {
        self.limits = limits;
        self.lengths().map(drop)
    }

    /// Room for the next bytes: at least one, unless a whole frame is there that was not taken yet.
    pub fn space(&mut self) -> Limit<&mut BytesMut> {
        let held = self.buffer.len();
        let room = self.buffer.capacity() - held;
        if room == 0 || (room < LITTLE && held < BLOCK / 4) {
            let block = BLOCK.min(self.limits.frame());
            // A frame of 1 MiB grows once, after its first block.
            let wanted = self.frame_bytes().min(held.saturating_mul(GROWTH)).max(block);
            if wanted > held && !self.buffer.try_reclaim(wanted - held) {
                let mut larger = BytesMut::with_capacity(wanted);
                larger.put_slice(&self.buffer);
                self.buffer = larger;
            }
        }
        let room = self.buffer.capacity() - held;
        (&mut self.buffer).limit(room)
    }

    /// Copies bytes from the front of `input`, as many as there is room for, and returns how many.
    pub fn feed(&mut self, input: &[u8]) -> usize {
        let mut space = self.space();
        let (fed, _) = input.split_at(space.remaining_mut().min(input.len()));
        space.put_slice(fed);
        fed.len()
    }

    /// The next frame, or none until more bytes come.
    ///
    /// # Errors
    /// [`FrameError`], and the same again from then on.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.dropping.is_some() {
            return Ok(self.drop_value());
        }
        let Some((message, value)) = self.lengths()? else { return Ok(None) };
        let whole = message as usize + if value > self.limits.value { 0 } else { value as usize };
        if self.buffer.len() - HEADER_BYTES < whole {
            return Ok(None);
        }
        drop(self.buffer.split_to(HEADER_BYTES));
        let message = self.buffer.split_to(message as usize).freeze();
        if value > self.limits.value {
            self.dropping = Some(Dropping { message, length: value, left: value });
            return Ok(self.drop_value());
        }
        let value = self.buffer.split_to(value as usize).freeze();
        Ok(Some(Frame { message, value, dropped: None }))
    }

    /// Says that the stream has ended.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] if it ended within a frame, and an earlier error.
    pub fn finish(&self) -> Result<(), FrameError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let held = self.buffer.len() as u64;
        match &self.dropping {
            Some(at) => {
                let came = (HEADER_BYTES + at.message.len()) as u64 + u64::from(at.length - at.left) + held;
                Err(FrameError::Truncated { held: came, missing: u64::from(at.left).saturating_sub(held) })
            }
            None if held == 0 => Ok(()),
            None => Err(FrameError::Truncated { held, missing: (self.frame_bytes() as u64).saturating_sub(held) }),
        }
    }

    /// How much memory the decoder has for bytes that are no frame yet, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.buffer.capacity() + self.dropping.as_ref().map_or(0, |at| at.message.len())
    }

    /// The lengths of message and value, as soon as the header is there. They keep the limits.
    fn lengths(&mut self) -> Result<Option<(u32, u32)>, FrameError> {
        if self.failed.is_none() && self.dropping.is_none() {
            self.failed = self.fault();
            if self.failed.is_some() {
                // What came is of no use any more.
                self.buffer = BytesMut::new();
            }
        }
        match self.failed {
            Some(error) => Err(error),
            None if self.dropping.is_some() => Ok(None),
            None => Ok(parse_header(&self.buffer)),
        }
    }

    fn fault(&self) -> Option<FrameError> {
        let first = *self.buffer.first()?;
        if first != MAGIC {
            return Some(FrameError::BadMagic { found: first });
        }
        let (message, value) = parse_header(&self.buffer)?;
        let FrameLimits { message: message_limit, value: value_limit, dropped_value } = self.limits;
        if message > message_limit {
            return Some(FrameError::MessageTooLong { length: message, limit: message_limit });
        }
        (value > value_limit.max(dropped_value)).then_some(FrameError::ValueTooLong { length: value, limit: value_limit })
    }

    /// How many bytes of the buffer the frame under way needs; its header, before that is there.
    fn frame_bytes(&self) -> usize {
        match parse_header(&self.buffer) {
            Some((message, value)) if self.dropping.is_none() && message <= self.limits.message => {
                HEADER_BYTES + message as usize + if value > self.limits.value { 0 } else { value as usize }
            }
            _ => HEADER_BYTES,
        }
    }

    /// Drops what came of a value that is too long. The frame, once all of it came.
    fn drop_value(&mut self) -> Option<Frame> {
        let mut at = self.dropping.take()?;
        let came = u32::try_from(self.buffer.len()).unwrap_or(u32::MAX).min(at.left);
        drop(self.buffer.split_to(came as usize));
        at.left -= came;
        if at.left > 0 {
            self.dropping = Some(at);
            return None;
        }
        Some(Frame { message: at.message, value: Bytes::new(), dropped: Some(at.length) })
    }
}

fn parse_header(bytes: &[u8]) -> Option<(u32, u32)> {
    let [_, a, b, c, d, e, f, g, h] = *bytes.first_chunk::<HEADER_BYTES>()?;
    Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FrameLimits = FrameLimits { message: 8, value: 16, dropped_value: 16 };

    /// Three frames, by hand: with both parts, with none, with a message only.
    const STREAM: &[u8] = b"F\0\0\0\x02\0\0\0\x05\x20\x01valueF\0\0\0\0\0\0\0\0F\0\0\0\x04\0\0\0\0\x20\x03\x3a\0";

    fn frame(message: &'static [u8], value: &'static [u8]) -> Frame {
        Frame { message: Bytes::from_static(message), value: Bytes::from_static(value), dropped: None }
    }

    fn expected() -> Vec<Frame> {
        vec![frame(b"\x20\x01", b"value"), frame(b"", b""), frame(b"\x20\x03\x3a\0", b"")]
    }

    /// All frames of these pieces.
    fn decode(decoder: &mut FrameDecoder, pieces: &[&[u8]]) -> Result<Vec<Frame>, FrameError> {
        let mut frames = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let fed = decoder.feed(rest);
                assert!(fed > 0, "the decoder takes nothing");
                rest = &rest[fed..];
                while let Some(frame) = decoder.next_frame()? {
                    frames.push(frame);
                }
            }
        }
        Ok(frames)
    }

    #[test]
    fn stream_may_be_split_anywhere() {
        for first in 0..=STREAM.len() {
            for second in first..=STREAM.len() {
                let mut decoder = FrameDecoder::new(LIMITS);
                let pieces = [&STREAM[..first], &STREAM[first..second], &STREAM[second..]];
                assert_eq!(decode(&mut decoder, &pieces), Ok(expected()), "{first}, {second}");
                assert_eq!(decoder.finish(), Ok(()));
            }
        }
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(decode(&mut FrameDecoder::new(LIMITS), &single), Ok(expected()));
    }

    #[test]
    fn end_within_a_frame_is_an_error() {
        // Where a frame ends, and how many bytes the frame or header that begins there has.
        let ends = [0, 16, 25, 38];
        for at in 0..STREAM.len() {
            let mut decoder = FrameDecoder::new(LIMITS);
            decode(&mut decoder, &[&STREAM[..at]]).unwrap();
            let begin = ends.iter().rev().find(|end| **end <= at).unwrap();
            let held = (at - begin) as u64;
            match decoder.finish() {
                Ok(()) => assert_eq!(held, 0, "{at}"),
                Err(FrameError::Truncated { held: came, missing }) => assert!(came == held && held > 0 && missing > 0, "{at}: {came}, {missing}"),
                Err(other) => panic!("{at}: {other}"),
            }
        }
    }

    #[test]
    fn first_byte_is_checked_before_the_others_come() {
        let mut decoder = FrameDecoder::new(LIMITS);
        let error = FrameError::BadMagic { found: b'G' };
        assert_eq!(decode(&mut decoder, &[b"G"]), Err(error));
        // The error stays, whatever comes.
        decoder.feed(STREAM);
        assert_eq!((decoder.next_frame(), decoder.finish()), (Err(error), Err(error)));
        let mut decoder = FrameDecoder::new(LIMITS);
        assert_eq!(decode(&mut decoder, &[&STREAM[..16], b"x"]), Err(FrameError::BadMagic { found: b'x' }));
    }

    #[test]
    fn too_long_parts_are_refused_by_their_header() {
        let refused = |header: &[u8]| decode(&mut FrameDecoder::new(LIMITS), &[header]).unwrap_err();
        assert_eq!(refused(b"F\0\0\0\x09\0\0\0\0"), FrameError::MessageTooLong { length: 9, limit: 8 });
        assert_eq!(refused(b"F\0\0\0\x08\0\0\0\x11"), FrameError::ValueTooLong { length: 17, limit: 16 });
        assert_eq!(refused(b"F\xff\xff\xff\xff\xff\xff\xff\xff"), FrameError::MessageTooLong { length: u32::MAX, limit: 8 });
        assert_eq!(refused(b"F\x80\0\0\0\0\0\0\0"), FrameError::MessageTooLong { length: 1 << 31, limit: 8 });
        // The limits themselves are permitted.
        assert_eq!(decode(&mut FrameDecoder::new(LIMITS), &[b"F\0\0\0\x08\0\0\0\x10"]), Ok(vec![]));
    }

    #[test]
    fn announced_lengths_cost_no_memory() {
        let limits = FrameLimits { message: 1 << 20, value: 1 << 30, dropped_value: 1 << 30 };
        let mut decoder = FrameDecoder::new(limits);
        assert_eq!(decode(&mut decoder, &[b"F\0\x10\0\0\x40\0\0\0"]), Ok(vec![]));
        assert_eq!(decoder.memory(), BLOCK);
        assert_eq!(decode(&mut decoder, &[&[0; 200_000]]), Ok(vec![]));
        assert_eq!(decoder.memory(), GROWTH * BLOCK);
    }

    #[test]
    fn long_value_is_one_piece_of_memory() {
        let mut decoder = FrameDecoder::new(FrameLimits { message: 1 << 20, value: 1 << 20, dropped_value: 0 });
        let value: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        let stream = [&b"F\0\0\0\x02\0\x10\0\0\x20\x01"[..], &value, &b"F\0\0\0\0\0\0\0\0"[..]].concat();
        let frames = decode(&mut decoder, &[&stream]).unwrap();
        assert_eq!((frames.len(), frames[0].value[..] == value[..]), (2, true));
        assert_eq!(frames[0].detached_value(), frames[0].value);
    }

    #[test]
    fn small_frames_share_the_memory_they_came_in() {
        let mut decoder = FrameDecoder::new(FrameLimits { message: 1 << 20, ..LIMITS });
        decoder.space().put_slice(STREAM);
        let first = decoder.next_frame().unwrap().unwrap();
        decoder.next_frame().unwrap();
        let third = decoder.next_frame().unwrap().unwrap();
        assert_eq!(third.message.as_ptr() as usize - first.message.as_ptr() as usize, 25);
    }

    #[test]
    fn limits_bound_even_the_first_block() {
        let mut decoder = FrameDecoder::new(LIMITS);
        assert_eq!(decoder.memory(), 0);
        assert_eq!(decoder.space().remaining_mut(), 33);
        assert_eq!(decode(&mut decoder, &[&STREAM.repeat(100)]).unwrap().len(), 300);
        assert!(decoder.memory() <= 33, "{}", decoder.memory());
    }

    #[test]
    fn too_long_values_can_be_dropped_in_passing() {
        let stream = [&b"F\0\0\0\x02\0\0\0\x11\x20\x01"[..], &[7; 17], STREAM].concat();
        for at in 0..stream.len() {
            let mut decoder = FrameDecoder::new(LIMITS.dropping_values(17));
            let frames = decode(&mut decoder, &[&stream[..at], &stream[at..]]).unwrap();
            assert_eq!(frames[0], Frame { dropped: Some(17), ..frame(b"\x20\x01", b"") });
            assert_eq!(frames[1..], expected());
        }
        let mut decoder = FrameDecoder::new(LIMITS.dropping_values(17));
        assert_eq!(decode(&mut decoder, &[&stream[..20]]), Ok(vec![]));
        assert_eq!(decoder.finish(), Err(FrameError::Truncated { held: 20, missing: 8 }));
        let longer = b"F\0\0\0\0\0\0\0\x12";
        assert_eq!(decode(&mut FrameDecoder::new(LIMITS.dropping_values(17)), &[longer]), Err(FrameError::ValueTooLong { length: 18, limit: 16 }));
    }

    #[test]
    fn new_limits_hold_for_the_frame_under_way() {
        let mut decoder = FrameDecoder::new(LIMITS);
        assert_eq!(decode(&mut decoder, &[b"F\0\0\0\x08\0\0\0\x10"]), Ok(vec![]));
        assert_eq!(decoder.set_limits(FrameLimits { value: 15, dropped_value: 0, ..LIMITS }), Err(FrameError::ValueTooLong { length: 16, limit: 15 }));
        let mut decoder = FrameDecoder::new(FrameLimits { message: 1, ..LIMITS });
        assert_eq!(decoder.set_limits(LIMITS), Ok(()));
        assert_eq!(decode(&mut decoder, &[STREAM]), Ok(expected()));
    }
}
