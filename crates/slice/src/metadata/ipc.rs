//! Arrow IPC streams in memory.

use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::root_as_message;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use crate::guard::corrupt_arrow;

/// A stream of `schema` with at most one batch, uncompressed.
///
/// # Errors
/// Invalid where Arrow can't write such a schema.
pub fn write(schema: &Schema, batch: Option<&RecordBatch>) -> Result<Vec<u8>> {
    let refused = |e: arrow::error::ArrowError| Error::invalid("this schema cannot be written as an Arrow stream").because(e);
    let mut writer = StreamWriter::try_new(Vec::new(), schema).map_err(refused)?;
    if let Some(batch) = batch {
        writer.write(batch).map_err(refused)?;
    }
    writer.into_inner().map_err(refused)
}

/// What every message begins with.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Refuses compressed batches: unpacking them, the decoder would make room for what their bytes claim, terabytes perhaps, and where there is none the
/// whole process ends. [`write`] compresses nothing.
fn refuse_compression(mut bytes: &[u8]) -> Result<()> {
    let broken = |why: &str| Error::corrupt(format!("an Arrow stream {why}"));
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
        let (message, rest) = rest.split_at_checked(len).ok_or_else(short)?;
        let message = root_as_message(message).map_err(|e| broken("has a message that cannot be read").because(e.to_string()))?;
        let batch = message.header_as_record_batch().or_else(|| message.header_as_dictionary_batch().and_then(|d| d.data()));
        if batch.is_some_and(|batch| batch.compression().is_some()) {
            return Err(broken("has a compressed batch, which no writer of ours makes"));
        }
        let body = usize::try_from(message.bodyLength()).ok().filter(|&n| n <= rest.len()).ok_or_else(short)?;
        bytes = &rest[body..];
    }
    Ok(())
}

/// Reads what [`write`] wrote. Arrays lie within the bytes that are there, or are copies of them: nothing is unpacked.
///
/// # Errors
/// Corrupt for bytes that are no such stream.
pub fn read(bytes: &[u8]) -> Result<(SchemaRef, Option<RecordBatch>)> {
    refuse_compression(bytes)?;
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
    use arrow::datatypes::{DataType, Field, Int32Type};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::IpcWriteOptions;
    use skytether_common::Kind;

    use super::*;

    #[test]
    fn compressed_batches_are_refused_whatever_they_claim() {
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
