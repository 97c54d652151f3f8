//! Arrow IPC streams in memory.

use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use crate::guard::corrupt_arrow;

/// A stream of `schema` with at most one batch.
pub(super) fn write(schema: &Schema, batch: Option<&RecordBatch>) -> Result<Vec<u8>> {
    let refused = |e: arrow::error::ArrowError| Error::invalid("this schema cannot be kept in a metadata slice").because(e);
    let mut writer = StreamWriter::try_new(Vec::new(), schema).map_err(refused)?;
    if let Some(batch) = batch {
        writer.write(batch).map_err(refused)?;
    }
    writer.into_inner().map_err(refused)
}

/// Reads what [`write`] wrote. The decoder works within the bytes that are there and allocates nothing by what they claim.
pub(super) fn read(bytes: &[u8]) -> Result<(SchemaRef, Option<RecordBatch>)> {
    let broken = corrupt_arrow("an Arrow stream of a metadata slice");
    let mut decoder = StreamDecoder::new();
    let mut buffer = Buffer::from_slice_ref(bytes);
    let mut batch = None;
    while !buffer.is_empty() {
        let before = buffer.len();
        if let Some(read) = decoder.decode(&mut buffer).map_err(&broken)?
            && batch.replace(read).is_some()
        {
            return Err(Error::corrupt("an Arrow stream of a metadata slice has more than one batch"));
        }
        if buffer.len() == before {
            return Err(Error::corrupt("an Arrow stream of a metadata slice does not go on"));
        }
    }
    decoder.finish().map_err(&broken)?;
    let schema = decoder.schema().ok_or_else(|| Error::corrupt("an Arrow stream of a metadata slice has no schema"))?;
    Ok((Arc::clone(&schema), batch))
}
