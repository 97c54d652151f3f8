//! The values of parameters, from the messages of a DoPut.

use std::panic::AssertUnwindSafe;

use arrow::ipc::root_as_message;
use arrow_flight::FlightData;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};
use skytether_api::values::{ACCEPTED, Values, check_length};
use skytether_common::{Error, Result};
use skytether_flight_drive::status::from_status;
use skytether_slice::metadata::ipc;
use tonic::Status;

/// Reads one row of values, and returns the bytes that it arrived in.
///
/// # Errors
/// Invalid for anything but one row, and for messages that are no Arrow data; exhausted for too many bytes.
pub(crate) async fn read(messages: impl Stream<Item = Result<FlightData, Status>> + Send + Unpin) -> Result<(Values, usize)> {
    let mut held = 0;
    let mut kept = Vec::new();
    let mut messages = messages;
    while let Some(message) = messages.next().await {
        let message = message.map_err(|s| from_status(&s))?;
        // Each message costs something even if it is empty.
        held += message.data_header.len() + message.data_body.len() + 64;
        check_length(held)?;
        check(&message)?;
        kept.push(message);
    }
    // Arrow's reader checks what it reads. Should it miss something and panic, only this call fails.
    let values =
        AssertUnwindSafe(values(kept)).catch_unwind().await.unwrap_or_else(|_| Err(Error::invalid("the values of the parameters are no valid Arrow data")))?;
    Ok((values, held))
}

/// Refuses a message that would take more memory than its own length.
fn check(message: &FlightData) -> Result<()> {
    if message.data_header.is_empty() {
        return Ok(());
    }
    let header = root_as_message(&message.data_header).map_err(|e| Error::invalid(format!("the values of the parameters are no Arrow data: {e}")))?;
    let batch = header.header_as_record_batch();
    if batch.is_some_and(|b| b.length() > 1) {
        return Err(many());
    }
    let dictionary = header.header_as_dictionary_batch().and_then(|d| d.data());
    if [batch, dictionary].into_iter().flatten().any(|b| b.compression().is_some()) {
        return Err(Error::unsupported("values of parameters must come uncompressed"));
    }
    ipc::check_message(&message.data_header, message.data_body.len(), Some(ACCEPTED))
        .map(drop)
        .map_err(|e| Error::invalid("the values of the parameters are not such as are taken").with_source(e))
}

fn many() -> Error {
    Error::unsupported("a query takes one row of parameters: run it once for each row")
}

async fn values(messages: Vec<FlightData>) -> Result<Values> {
    let stream = futures::stream::iter(messages.into_iter().map(Ok::<_, FlightError>));
    let batches: Vec<_> = FlightRecordBatchStream::new_from_flight_data(stream)
        .try_collect()
        .await
        .map_err(|e| Error::invalid(format!("the values of the parameters are no Arrow data: {e}")))?;
    let mut rows = batches.iter().filter(|b| b.num_rows() > 0);
    match (rows.next(), rows.next()) {
        (Some(row), None) if row.num_rows() == 1 => Values::new(row.clone()),
        (None, _) => Err(Error::invalid("no row of parameters came: bind one row of values")),
        _ => Err(many()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Int64Type};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::IpcWriteOptions;
    use arrow::record_batch::RecordBatch;
    use arrow_flight::encode::FlightDataEncoderBuilder;
    use arrow_flight::utils::batches_to_flight_data;
    use skytether_common::Kind;

    use super::*;

    async fn messages(rows: usize, options: IpcWriteOptions) -> Vec<FlightData> {
        let number: ArrayRef = Arc::new(Int64Array::from(vec![7; rows]));
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some("é"); rows]));
        let batch = RecordBatch::try_from_iter([("0", number), ("1", text)]).unwrap();
        FlightDataEncoderBuilder::new().with_options(options).build(futures::stream::iter([Ok(batch)])).try_collect().await.unwrap()
    }

    #[tokio::test]
    async fn lists_of_nothing_are_refused() {
        let nulls: ArrayRef = Arc::new(arrow::array::NullArray::new(1 << 50));
        let item = Arc::new(arrow::datatypes::Field::new("item", DataType::Null, true));
        let offsets = arrow::buffer::OffsetBuffer::new(arrow::buffer::ScalarBuffer::from(vec![0i64, 1 << 50]));
        let list: ArrayRef = Arc::new(arrow::array::LargeListArray::new(item, offsets, nulls, None));
        let batch = RecordBatch::try_from_iter([("0", list)]).unwrap();
        let messages = batches_to_flight_data(&batch.schema(), vec![batch]).unwrap();
        assert_eq!(said(messages).await.unwrap_err().kind(), Kind::Invalid);
        let null: ArrayRef = Arc::new(arrow::array::NullArray::new(1));
        let batch = RecordBatch::try_from_iter([("0", null)]).unwrap();
        let messages = batches_to_flight_data(&batch.schema(), vec![batch]).unwrap();
        let values = said(messages).await.unwrap();
        assert!(values.columns()[0].data_type() == &DataType::Null && values.columns()[0].len() == 1);
    }

    async fn said(messages: Vec<FlightData>) -> Result<Values> {
        read(futures::stream::iter(messages.into_iter().map(Ok))).await.map(|(values, _)| values)
    }

    #[tokio::test]
    async fn one_row_is_read() {
        let got = said(messages(1, IpcWriteOptions::default()).await).await.unwrap();
        assert_eq!(got.columns()[0].as_primitive::<Int64Type>().value(0), 7);
        assert_eq!(got.columns()[1].as_string::<i32>().value(0), "é");
    }

    #[tokio::test]
    async fn other_numbers_of_rows_and_compression_are_refused() {
        assert_eq!(said(messages(2, IpcWriteOptions::default()).await).await.unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(said(messages(0, IpcWriteOptions::default()).await).await.unwrap_err().kind(), Kind::Invalid);
        assert_eq!(said(Vec::new()).await.unwrap_err().kind(), Kind::Invalid);
        let packed = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
        assert_eq!(said(messages(1, packed).await).await.unwrap_err().kind(), Kind::Unsupported);
    }

    #[tokio::test]
    async fn changed_bytes_give_an_error_or_values() {
        let good = messages(1, IpcWriteOptions::default()).await;
        for at in 0..good.len() {
            for byte in 0..good[at].data_header.len() {
                let mut bad = good.clone();
                let mut header = bad[at].data_header.to_vec();
                header[byte] ^= 0xff;
                bad[at].data_header = header.into();
                // What matters is that it comes back.
                let _ = said(bad).await;
            }
            let mut cut = good.clone();
            cut[at].data_body = cut[at].data_body.slice(..cut[at].data_body.len() / 2);
            let _ = said(cut).await;
        }
        let garbage = FlightData { data_header: vec![0xff; 100].into(), ..FlightData::default() };
        assert_eq!(said(vec![garbage]).await.unwrap_err().kind(), Kind::Invalid);
    }
}
