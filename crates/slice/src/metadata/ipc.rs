//! Arrow IPC streams in memory.

use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use crate::guard::{corrupt_arrow, guarded};

/// A stream of `schema` with at most one batch, uncompressed.
///
/// # Errors
/// Invalid where Arrow can't write such a schema.
pub fn write(schema: &Schema, batch: Option<&RecordBatch>) -> Result<Vec<u8>> {
    let refused = |e: arrow::error::ArrowError| Error::invalid("this schema cannot be written as an Arrow stream").with_source(e);
    let mut writer = StreamWriter::try_new(Vec::new(), schema).map_err(refused)?;
    if let Some(batch) = batch {
        writer.write(batch).map_err(refused)?;
    }
    writer.into_inner().map_err(refused)
}

/// What every message begins with.
const CONTINUATION: [u8; 4] = [0xff; 4];

fn broken(why: &str) -> Error {
    Error::corrupt(format!("an Arrow stream {why}"))
}

/// The limits of a stream's content: the decoder would believe any claim.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// The most rows of its batch.
    pub rows: u64,
    /// Whether a column may be of this type. Rows of types that take no bytes (nulls, structs without fields) cost
    /// their sender nothing, and their reader a bit each at least.
    pub column: fn(&DataType) -> bool,
}

/// Checks the messages of a stream: see [`check_message`].
fn check(mut bytes: &[u8], accepted: Option<Accepted>) -> Result<()> {
    let short = || broken("is cut short");
    while !bytes.is_empty() {
        let (mark, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        // Streams before Arrow 0.15 had no mark.
        if *mark != CONTINUATION {
            return Err(broken("has a message without its mark"));
        }
        let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let len = u32::from_le_bytes(*len) as usize;
        if len == 0 {
            return if rest.is_empty() { Ok(()) } else { Err(broken("goes on after its end")) };
        }
        let (header, rest) = rest.split_at_checked(len).ok_or_else(short)?;
        let body = check_message(header, rest.len(), accepted)?;
        bytes = &rest[body..];
    }
    Ok(())
}

/// Refuses a message that would take more memory than the bytes that came, before any of it is decoded: compressed
/// batches (unpacking them, the decoder would make room for what their bytes claim, terabytes perhaps, and where there
/// is none the whole process ends), pieces of dictionaries (each makes a copy of all before it), and parts that several
/// others share. [`write()`] makes none of these. Gives the length of the body that follows, at most `there`.
///
/// # Errors
/// Corrupt for a header that is none or has such a part, and for what is not accepted.
pub fn check_message(header: &[u8], there: usize, accepted: Option<Accepted>) -> Result<usize> {
    let message = root_as_message(header).map_err(|e| broken("has a message that cannot be read").with_source(e.to_string()))?;
    let body = usize::try_from(message.bodyLength()).ok().filter(|&n| n <= there).ok_or_else(|| broken("is cut short"))?;
    if let Some(schema) = message.header_as_schema() {
        check_schema(&schema, header.len())?;
        if let Some(accepted) = accepted {
            // Arrow's reader panics on types that it does not know.
            let schema = guarded("an Arrow schema", || Ok(fb_to_schema(schema)))?;
            if let Some(field) = schema.fields().iter().find(|f| !(accepted.column)(f.data_type())) {
                return Err(broken(&format!("has a column {:?} of type {}, which is not taken here", field.name(), field.data_type())));
            }
        }
    }
    if let Some(dictionary) = message.header_as_dictionary_batch() {
        if dictionary.isDelta() {
            return Err(broken("has a dictionary in pieces, which no writer of ours makes"));
        }
        dictionary.data().map_or(Ok(()), |batch| check_batch(&batch, body))?;
    }
    if let Some(batch) = message.header_as_record_batch() {
        check_batch(&batch, body)?;
        if let Some(accepted) = accepted
            && !u64::try_from(batch.length()).is_ok_and(|rows| rows <= accepted.rows)
        {
            return Err(broken(&format!("has a batch of {} rows: at most {}", batch.length(), accepted.rows)));
        }
    }
    Ok(body)
}

/// Checks a batch whose buffers must lie in a body of `body` bytes.
fn check_batch(batch: &arrow::ipc::RecordBatch<'_>, body: usize) -> Result<()> {
    if batch.compression().is_some() {
        return Err(broken("has a compressed batch, which no writer of ours makes"));
    }
    // What is not aligned is copied.
    let mut left = body as u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let rest = u64::try_from(buffer.length()).ok().and_then(|length| left.checked_sub(length));
        left = rest.ok_or_else(|| broken("has buffers of more bytes than there are"))?;
    }
    Ok(())
}

/// Checks a schema in a message of `left` bytes. Parts of a message may refer to the same bytes, so that a few
/// kilobytes could expand to gigabytes.
fn check_schema(schema: &arrow::ipc::Schema<'_>, mut left: usize) -> Result<()> {
    let mut spent = |bytes: usize| -> Result<()> {
        left = left.checked_sub(bytes).ok_or_else(|| broken("has a schema whose parts are all the same"))?;
        Ok(())
    };
    let text = |text: Option<&str>| text.map_or(0, str::len);
    let mut fields: Vec<_> = schema.fields().into_iter().flatten().collect();
    for pair in schema.custom_metadata().into_iter().flatten() {
        spent(4 + text(pair.key()) + text(pair.value()))?;
    }
    while let Some(field) = fields.pop() {
        // A place in a list and the table that it refers to.
        spent(8 + text(field.name()))?;
        for pair in field.custom_metadata().into_iter().flatten() {
            spent(4 + text(pair.key()) + text(pair.value()))?;
        }
        for child in field.children().into_iter().flatten() {
            fields.push(child);
        }
    }
    Ok(())
}

/// Reads the bytes of [`write()`]. Arrays use the bytes in place, or are copies of them: nothing is decompressed.
///
/// # Errors
/// Corrupt for bytes that are no such stream.
pub fn read(bytes: &[u8]) -> Result<(SchemaRef, Option<RecordBatch>)> {
    checked(bytes, None)
}

/// Reads what [`write()`] wrote, if it is no more than what is `accepted`.
///
/// # Errors
/// Corrupt for bytes that are no such stream, and for what is not accepted.
pub fn read_accepted(bytes: &[u8], accepted: Accepted) -> Result<(SchemaRef, Option<RecordBatch>)> {
    checked(bytes, Some(accepted))
}

fn checked(bytes: &[u8], accepted: Option<Accepted>) -> Result<(SchemaRef, Option<RecordBatch>)> {
    check(bytes, accepted)?;
    let broken = corrupt_arrow("an Arrow stream");
    let mut decoder = StreamDecoder::new();
    let mut buffer = Buffer::from_slice_ref(bytes);
    let mut batch = None;
    while !buffer.is_empty() {
        let before = buffer.len();
        if let Some(read) = decoder.decode(&mut buffer).map_err(&broken)?
            && batch.replace(read).is_some()
        {
            return Err(Error::corrupt("an Arrow stream has more than one batch"));
        }
        if buffer.len() == before {
            return Err(Error::corrupt("an Arrow stream does not go on"));
        }
    }
    decoder.finish().map_err(&broken)?;
    let schema = decoder.schema().ok_or_else(|| Error::corrupt("an Arrow stream has no schema"))?;
    Ok((Arc::clone(&schema), batch))
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int64Array};
    use arrow::datatypes::{Field, Int32Type};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::IpcWriteOptions;
    use skytether_common::Kind;

    use super::*;

    #[test]
    fn compressed_batches_are_refused_despite_any_claim() {
        let words: DictionaryArray<Int32Type> = (0..1000).map(|i| Some(["one", "two"][i % 2])).collect();
        let fields = vec![Field::new("n", DataType::Int64, false), Field::new("w", arrow::array::Array::data_type(&words).clone(), true)];
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from(vec![7; 1000])), Arc::new(words)]).unwrap();
        assert_eq!(read(&write(&schema, Some(&batch)).unwrap()).unwrap().1.as_ref(), Some(&batch));

        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
        writer.write(&batch).unwrap();
        let mut bytes = writer.into_inner().unwrap();
        for claim in [None, Some(1i64 << 46), Some(i64::MAX)] {
            if let Some(claim) = claim {
                // Each buffer begins with the length that it had.
                let frames: Vec<usize> = (8..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == [0x04, 0x22, 0x4d, 0x18]).collect();
                assert!(!frames.is_empty());
                frames.into_iter().for_each(|at| bytes[at - 8..at].copy_from_slice(&claim.to_le_bytes()));
            }
            let error = read(&bytes).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains("compressed"), "{error}");
        }
    }

    #[test]
    fn parts_that_others_share_are_refused() {
        // A column with a long name and fifty with short ones; then all of them are made the first.
        let names = std::iter::once("n".repeat(10_000)).chain((0..50).map(|i| i.to_string()));
        let bytes = write(&Schema::new(names.map(|n| Field::new(n, DataType::Int64, false)).collect::<Vec<_>>()), None).unwrap();
        assert!(read(&bytes).is_ok());
        let fields = root_as_message(&bytes[8..]).unwrap().header_as_schema().unwrap().fields().unwrap();
        // Each place in the list holds how far away the field's table is.
        let (list, first) = (fields.bytes().as_ptr() as usize - bytes.as_ptr() as usize, fields.get(0)._tab.loc() + 8);
        let mut shared = bytes.clone();
        for at in (0..fields.len()).map(|i| list + 4 * i) {
            shared[at..at + 4].copy_from_slice(&u32::try_from(first - at).unwrap().to_le_bytes());
        }
        assert_eq!(root_as_message(&shared[8..]).unwrap().header_as_schema().unwrap().fields().unwrap().get(50).name().unwrap().len(), 10_000);
        let error = read(&shared).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains("all the same"), "{error}");
    }

    #[test]
    fn buffers_that_lie_in_one_another_are_refused() {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Int64, false)]));
        let numbers = Arc::new(Int64Array::from(vec![7; 1000]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(&numbers) as _, numbers]).unwrap();
        let mut bytes = write(&schema, Some(&batch)).unwrap();
        let head = 8 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let len = u32::from_le_bytes(bytes[head + 4..head + 8].try_into().unwrap()) as usize;
        // The last buffer's offset and length.
        let header = bytes[head + 8..head + 8 + len].to_vec();
        let buffers = root_as_message(&header).unwrap().header_as_record_batch().unwrap().buffers().unwrap();
        let at = head + 8 + (buffers.bytes().as_ptr() as usize - header.as_ptr() as usize) + 3 * 16;
        assert!(read(&bytes).is_ok());
        bytes[at..at + 8].copy_from_slice(&0i64.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&16_000i64.to_le_bytes());
        let error = read(&bytes).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains("more bytes than there are"), "{error}");
    }

    #[test]
    fn dictionaries_in_pieces_are_refused() {
        let words = |n: usize| -> DictionaryArray<Int32Type> { ["one", "two", "three"][..n].iter().copied().map(Some).collect() };
        let schema = Arc::new(Schema::new(vec![Field::new("w", arrow::array::Array::data_type(&words(1)).clone(), true)]));
        let options = IpcWriteOptions::default().with_dictionary_handling(arrow::ipc::writer::DictionaryHandling::Delta);
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
        for n in [1, 2] {
            writer.write(&RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(words(n))]).unwrap()).unwrap();
        }
        let error = read(&writer.into_inner().unwrap()).unwrap_err();
        assert!(error.to_string().contains("in pieces"), "{error}");
    }

    #[test]
    fn streams_that_end_early_or_late_are_refused() {
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, false)]);
        let bytes = write(&schema, None).unwrap();
        for len in 0..bytes.len() {
            // Without its end mark a stream is whole at the end of a message.
            assert!(read(&bytes[..len]).is_err() || len == bytes.len() - 8, "{len}");
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    }
}
