//! Arrow IPC messages that come from another process, read with bounds: what they claim is checked before memory is
//! taken for it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow::ipc::{MessageHeader, root_as_message};
use arrow::record_batch::RecordBatch;
use bytes::{Buf, Bytes, BytesMut};
use skytether_common::{Error, Result};

/// The most rows of a batch whose columns take no bytes: nulls.
const MAX_NULLS: usize = 1 << 24;

/// The longest header of a message in a stream, in bytes.
const MAX_HEADER: usize = 16 << 20;

/// The longest body of a message in a stream, in bytes.
const MAX_BODY: usize = 1 << 30;

/// What a message in a stream begins with.
const CONTINUATION: u32 = u32::MAX;

/// What a message says.
#[derive(Debug)]
pub enum ArrowMessage {
    /// The schema of all batches; always first.
    Schema(SchemaRef),
    /// A dictionary, which later batches refer to.
    Dictionary,
    /// Rows.
    Batch(RecordBatch),
}

/// Reads messages, one after the other.
#[derive(Debug, Default)]
pub struct ArrowMessages {
    schema: Option<SchemaRef>,
    dictionaries: HashMap<i64, ArrayRef>,
}

impl ArrowMessages {
    /// What a message of these bytes says.
    ///
    /// # Errors
    /// Corrupt where it is malformed, packed, or claims more than came.
    pub fn read(&mut self, header: &[u8], body: Bytes) -> Result<ArrowMessage> {
        // Arrow's IPC reader panics on some malformed headers (an unknown type in a schema, for one).
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.decode(header, body)))
            .unwrap_or_else(|_| Err(Error::corrupt("an Arrow IPC message is malformed")))
    }

    fn decode(&mut self, header: &[u8], body: Bytes) -> Result<ArrowMessage> {
        let message = root_as_message(header).map_err(|e| Error::corrupt(format!("an Arrow IPC message is malformed: {e}")))?;
        match message.header_type() {
            MessageHeader::Schema => {
                let schema = message.header_as_schema().map(arrow::ipc::convert::fb_to_schema).ok_or_else(|| Error::corrupt("a schema message holds none"))?;
                let schema = Arc::new(schema);
                self.schema = Some(Arc::clone(&schema));
                Ok(ArrowMessage::Schema(schema))
            }
            MessageHeader::DictionaryBatch => {
                let schema = self.known_schema()?;
                let batch = message.header_as_dictionary_batch().ok_or_else(|| Error::corrupt("a dictionary message holds none"))?;
                batch.data().map_or(Ok(()), |values| bounded(&values, body.len()))?;
                read_dictionary(&Buffer::from(body), batch, &schema, &mut self.dictionaries, &message.version()).map_err(arrow_error)?;
                Ok(ArrowMessage::Dictionary)
            }
            MessageHeader::RecordBatch => {
                let schema = self.known_schema()?;
                let batch = message.header_as_record_batch().ok_or_else(|| Error::corrupt("a batch message holds none"))?;
                bounded(&batch, body.len())?;
                let body = Buffer::from(body);
                let batch = RecordBatchDecoder::try_new(&body, batch, schema, &self.dictionaries, &message.version())
                    .and_then(RecordBatchDecoder::read_record_batch)
                    .map_err(arrow_error)?;
                Ok(ArrowMessage::Batch(batch))
            }
            other => Err(Error::corrupt(format!("an Arrow IPC message of kind {} was not expected", other.variant_name().unwrap_or("unknown")))),
        }
    }

    fn known_schema(&self) -> Result<SchemaRef> {
        self.schema.clone().ok_or_else(|| Error::corrupt("rows came before their schema"))
    }
}

/// Refuses a batch that would take far more memory than the bytes that arrived. Packed columns may claim terabytes,
/// many buffers may be the same bytes, and rows of nulls cost their sender nothing.
fn bounded(batch: &arrow::ipc::RecordBatch<'_>, body: usize) -> Result<()> {
    if batch.compression().is_some() {
        return Err(Error::corrupt("a batch came packed, which no drive sends"));
    }
    let bytes = batch.buffers().into_iter().flatten().try_fold(0u64, |sum, b| sum.checked_add(u64::try_from(b.length()).ok()?));
    if bytes.is_none_or(|bytes| bytes > body as u64) {
        return Err(Error::corrupt("a batch claims more bytes than came"));
    }
    // Bits are the narrowest values.
    let most = body.saturating_mul(8).max(MAX_NULLS) as u64;
    let lengths = batch.nodes().into_iter().flatten().map(|node| node.length()).chain([batch.length()]);
    match lengths.into_iter().find(|n| u64::try_from(*n).map_or(true, |n| n > most)) {
        Some(n) => Err(Error::corrupt(format!("a batch claims {n} rows in {body} bytes"))),
        None => Ok(()),
    }
}

fn arrow_error(error: arrow::error::ArrowError) -> Error {
    Error::corrupt("an Arrow IPC message is malformed").with_source(error)
}

/// Reads an Arrow IPC stream whose bytes come in pieces.
#[derive(Debug, Default)]
pub struct ArrowStream {
    messages: ArrowMessages,
    held: BytesMut,
    has_ended: bool,
}

impl ArrowStream {
    /// Adds the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next message of the bytes that came; `None` where it is not there as a whole.
    ///
    /// # Errors
    /// As [`ArrowMessages::read`]; Corrupt for bytes behind the end.
    pub fn next_message(&mut self) -> Result<Option<ArrowMessage>> {
        if self.has_ended {
            return if self.held.is_empty() { Ok(None) } else { Err(Error::corrupt("an Arrow stream goes on behind its end")) };
        }
        let Some((head, rest)) = self.held.split_first_chunk::<8>() else { return Ok(None) };
        let (mut first, mut second) = (&head[..4], &head[4..]);
        if first.get_u32_le() != CONTINUATION {
            return Err(Error::corrupt("an Arrow stream has no message where one must begin"));
        }
        let length = second.get_u32_le() as usize;
        if length == 0 {
            self.has_ended = true;
            self.held.advance(8);
            return self.next_message();
        }
        if length > MAX_HEADER {
            return Err(Error::corrupt(format!("an Arrow stream has a header of {length} bytes: at most {MAX_HEADER}")));
        }
        let Some(header) = rest.get(..length) else { return Ok(None) };
        let message = root_as_message(header).map_err(|e| Error::corrupt(format!("an Arrow IPC message is malformed: {e}")))?;
        let body = usize::try_from(message.bodyLength()).ok().filter(|body| *body <= MAX_BODY);
        let body = body.ok_or_else(|| Error::corrupt(format!("an Arrow stream has a body of {} bytes: at most {MAX_BODY}", message.bodyLength())))?;
        if self.held.len() < 8 + length + body {
            return Ok(None);
        }
        self.held.advance(8);
        let header = self.held.split_to(length);
        // A buffer of its own: rows that are kept must not keep all that came with them.
        let body = Bytes::copy_from_slice(&self.held.split_to(body));
        self.messages.read(&header, body).map(Some)
    }

    /// Checks that the stream has come to its end.
    ///
    /// # Errors
    /// Corrupt where it is cut off.
    pub fn finish(self) -> Result<()> {
        if self.has_ended && self.held.is_empty() { Ok(()) } else { Err(Error::corrupt("an Arrow stream is cut off")) }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int32Type, Schema};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
    use skytether_common::Kind;

    use super::*;

    fn batches() -> Vec<RecordBatch> {
        let words = |n: usize| -> DictionaryArray<Int32Type> { (0..n).map(|i| Some(["one", "two"][i % 2])).collect() };
        let fields = vec![Field::new("n", DataType::Int64, false), Field::new("w", arrow::array::Array::data_type(&words(2)).clone(), true)];
        let schema = Arc::new(Schema::new(fields));
        let batch = |n: usize| RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from_iter_values(0..n as i64)), Arc::new(words(n))]);
        [1000, 1, 7].into_iter().map(|n| batch(n).unwrap()).collect()
    }

    fn stream(options: IpcWriteOptions) -> Vec<u8> {
        let batches = batches();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.into_inner().unwrap()
    }

    fn read(pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<RecordBatch>> {
        let (mut stream, mut read) = (ArrowStream::default(), Vec::new());
        for piece in pieces {
            stream.push(piece.as_ref());
            while let Some(message) = stream.next_message()? {
                if let ArrowMessage::Batch(batch) = message {
                    read.push(batch);
                }
            }
        }
        stream.finish().map(|()| read)
    }

    #[test]
    fn stream_in_pieces_of_any_length_reads_back() {
        let bytes = stream(IpcWriteOptions::default());
        for length in [1, 7, 64, 1000, bytes.len()] {
            assert_eq!(read(bytes.chunks(length)).unwrap(), batches(), "pieces of {length} bytes");
        }
    }

    #[test]
    fn stream_cut_off_packed_or_with_more_bytes_is_corrupt() {
        let bytes = stream(IpcWriteOptions::default());
        let cuts = (0..bytes.len()).step_by(13).map(|length| bytes[..length].to_vec());
        let more = [bytes.as_slice(), b"x"].concat();
        let packed = stream(IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap());
        let long = [&u32::MAX.to_le_bytes()[..], &u32::MAX.to_le_bytes()[..]].concat();
        for wrong in cuts.chain([more, packed, long, b"ARROW1\0\0".to_vec()]) {
            assert_eq!(read([&wrong]).unwrap_err().kind(), Kind::Corrupt, "{} bytes", wrong.len());
        }
    }

    #[test]
    fn stream_with_changed_bytes_ends_as_an_error_or_as_rows() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let bytes = stream(IpcWriteOptions::default());
        for at in 0..bytes.len().min(2000) {
            for flip in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                if let Err(error) = read([changed]) {
                    assert_eq!(error.kind(), Kind::Corrupt);
                }
            }
        }
        std::panic::set_hook(quiet);
    }
}
