//! Compression of each input, and its inverse.

use std::io::{BufRead, Read, Write};

use bytes::{Buf, Bytes};
use lz4_flex::frame::{BlockSize, Error as LZ4, FrameDecoder, FrameEncoder, FrameInfo};
use skytether_common::{Error, Result};

use crate::codes::{opcode, tag};
use crate::descriptor::Descriptor;
use crate::job::Input;
use crate::operation::{Arguments, ObjectWork, Operation, Plan};
use crate::output::Sink;
use crate::result::Item;

/// A format of compressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Zstandard frames (RFC 8878), with a checksum.
    Zstd,
    /// LZ4 frames, with a checksum of the content.
    Lz4,
}

/// The highest level of zstd: an encoder takes some 50 MB with it. Higher ones take hundreds.
pub const MOST_LEVEL: u64 = 12;
const LEVEL: u64 = 3;

/// Each input as a frame. Values: bytes read, bytes written.
#[derive(Debug)]
pub struct Compress(pub Codec);

/// The content of each input's frames, one after the other. Values: bytes read, bytes written.
#[derive(Debug)]
pub struct Decompress(pub Codec);

struct Encode {
    codec: Codec,
    level: i32,
}

struct Decode {
    codec: Codec,
}

impl Operation for Compress {
    fn opcode(&self) -> u16 {
        match self.0 {
            Codec::Zstd => opcode::COMPRESS_ZSTD,
            Codec::Lz4 => opcode::COMPRESS_LZ4,
        }
    }

    fn name(&self) -> &'static str {
        match self.0 {
            Codec::Zstd => "compress with zstd",
            Codec::Lz4 => "compress with lz4",
        }
    }

    fn plan(&self, arguments: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        let level = if self.0 == Codec::Zstd { arguments.number(tag::LEVEL, MOST_LEVEL)?.filter(|level| *level > 0) } else { None };
        Ok(Plan::Objects(Box::new(Encode { codec: self.0, level: level.unwrap_or(LEVEL) as i32 })))
    }
}

impl Operation for Decompress {
    fn opcode(&self) -> u16 {
        match self.0 {
            Codec::Zstd => opcode::DECOMPRESS_ZSTD,
            Codec::Lz4 => opcode::DECOMPRESS_LZ4,
        }
    }

    fn name(&self) -> &'static str {
        match self.0 {
            Codec::Zstd => "decompress with zstd",
            Codec::Lz4 => "decompress with lz4",
        }
    }

    fn plan(&self, _: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        Ok(Plan::Objects(Box::new(Decode { codec: self.0 })))
    }
}

/// The error that our reader or writer gave the codec, or damage.
fn ours(error: std::io::Error, what: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => of_codec(&error)(format!("{what} failed")).with_source(error),
    }
}

/// What an error of a codec says of the frame: not all that is refused is damaged.
fn of_codec(error: &std::io::Error) -> fn(String) -> Error {
    if let Some(error) = lz4_error(error) {
        return match error {
            LZ4::UnsupportedBlocksize(_) | LZ4::UnsupportedVersion(_) | LZ4::DictionaryNotSupported => Error::unsupported,
            _ => Error::corrupt,
        };
    }
    // zstd's errors are known by their texts alone.
    match error.to_string() {
        text if text.contains("too much memory") => Error::exhausted,
        text if text.starts_with("Unsupported frame") || text.starts_with("Version not") || text.starts_with("Dictionary mismatch") => Error::unsupported,
        _ => Error::corrupt,
    }
}

fn lz4_error(error: &std::io::Error) -> Option<&LZ4> {
    error.get_ref()?.downcast_ref()
}

impl ObjectWork for Encode {
    fn run(&mut self, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Item> {
        let failed = |error| ours(error, "compression");
        let mut read = 0;
        let before = sink.written();
        match self.codec {
            Codec::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(&mut *sink, self.level).map_err(failed)?;
                encoder.include_checksum(true).map_err(failed)?;
                encoder.set_pledged_src_size(Some(input.object().seen())).map_err(failed)?;
                while let Some(block) = input.next_block()? {
                    read += block.len() as u64;
                    encoder.write_all(&block).map_err(failed)?;
                }
                encoder.finish().map_err(failed)?;
            }
            Codec::Lz4 => {
                let info = FrameInfo::new().content_checksum(true).content_size(Some(input.object().seen())).block_size(BlockSize::Max4MB);
                let mut encoder = FrameEncoder::with_frame_info(info, &mut *sink);
                while let Some(block) = input.next_block()? {
                    read += block.len() as u64;
                    encoder.write_all(&block).map_err(failed)?;
                }
                encoder.finish().map_err(|error| ours(error.into(), "compression"))?;
            }
        }
        Ok(Item::of_values(&[read, sink.written() - before]))
    }
}

/// An input as a reader.
struct Source<'a, 'b> {
    input: &'a mut Input<'b>,
    block: Bytes,
    read: u64,
}

impl Read for Source<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let len = self.fill_buf()?.len().min(into.len());
        self.block.copy_to_slice(&mut into[..len]);
        Ok(len)
    }
}

impl BufRead for Source<'_, '_> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.block.is_empty() {
            self.block = self.input.next_block().map_err(std::io::Error::other)?.unwrap_or_default();
            self.read += self.block.len() as u64;
        }
        Ok(&self.block)
    }

    fn consume(&mut self, len: usize) {
        self.block.advance(len);
    }
}

impl Source<'_, '_> {
    /// Passes over the content of a frame that users define. A decoder knows its length only.
    fn skip(&mut self, mut bytes: u64) -> Result<()> {
        while bytes > 0 {
            let there = self.fill_buf().map_err(|error| ours(error, "decompression"))?.len() as u64;
            if there == 0 {
                return Err(Error::corrupt(format!("the last frame has no end: {bytes} bytes are missing")));
            }
            let now = there.min(bytes);
            self.consume(now as usize);
            bytes -= now;
        }
        Ok(())
    }
}

/// Copies what the decoder gives. It may give far more than it takes: the stop is asked here, too. Returns how many
/// bytes have to be skipped next.
fn copy(mut from: impl Read, sink: &mut Sink<'_>, stop: impl Fn() -> Result<()>) -> Result<u64> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        stop()?;
        let len = match from.read(&mut buffer) {
            Ok(0) => return Ok(0),
            Ok(len) => len,
            Err(error) => match lz4_error(&error) {
                Some(LZ4::SkippableFrame(bytes)) => return Ok((*bytes).into()),
                _ => return Err(ours(error, "decompression")),
            },
        };
        sink.write(&buffer[..len])?;
    }
}

impl ObjectWork for Decode {
    fn run(&mut self, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Item> {
        let window = input.limits().memory.max(4096).ilog2() - 1;
        let stop = input.stop();
        let mut source = Source { input, block: Bytes::new(), read: 0 };
        let before = sink.written();
        match self.codec {
            Codec::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(&mut source).map_err(|error| ours(error, "decompression"))?;
                decoder.window_log_max(window.min(27)).map_err(|error| ours(error, "decompression"))?;
                copy(decoder, sink, || stop.check())?;
            }
            Codec::Lz4 => loop {
                // A frame after the other, each with a decoder of its own.
                if source.fill_buf().map_err(|error| ours(error, "decompression"))?.is_empty() {
                    break;
                }
                let skip = copy(FrameDecoder::new(&mut source), sink, || stop.check())?;
                source.skip(skip)?;
            },
        }
        Ok(Item::of_values(&[source.read, sink.written() - before]))
    }
}
