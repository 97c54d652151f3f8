//! A drive's answer as Flight messages, written and read. Pure: bytes in, values out; everything that comes in is
//! checked.
//!
//! A delivery's `app_metadata` is JSON: `{"epoch":0}` on a batch. On messages without Arrow data it is
//! `{"complete":0}`, `{"done":{annotation}}` or `"alive"`.

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow::record_batch::RecordBatch;
use arrow_flight::FlightData;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};
use skytether_device::annotation::Annotation;
use skytether_device::arrow_messages::{ArrowMessage, ArrowMessages};
use skytether_device::delivery::ResultMessage;
use skytether_device::size::batch_bytes;

use crate::consts::MAX_MESSAGE;
use crate::frames::{from_json, json};

/// The longest JSON that comes with a delivery. An annotation with the most operators is a third of it.
pub const MAX_NOTE: usize = 1 << 20;

/// A batch of more bytes is sent in pieces of about this size.
const TARGET_MESSAGE: usize = 8 << 20;

/// The `app_metadata` of a delivery.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    Epoch(u32),
    Complete(u32),
    Done(Box<Annotation>),
    Alive,
}

/// A message of a `DoGet` answer, read.
#[derive(Debug)]
pub enum Incoming {
    /// The schema of all batches; always first.
    Schema(SchemaRef),
    /// A delivery.
    Message(ResultMessage),
    /// A heartbeat, or a part of what comes next.
    Nothing,
}

/// Writes deliveries as Flight messages and counts their bytes.
pub struct DeliveryEncoder {
    generator: IpcDataGenerator,
    dictionaries: DictionaryTracker,
    context: IpcWriteContext,
    options: IpcWriteOptions,
    bytes: u64,
}

impl std::fmt::Debug for DeliveryEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeliveryEncoder").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl DeliveryEncoder {
    /// An encoder, and the first message, which holds `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> (Self, FlightData) {
        let mut encoder = Self {
            generator: IpcDataGenerator::default(),
            dictionaries: DictionaryTracker::new(false),
            context: IpcWriteContext::default(),
            options: IpcWriteOptions::default(),
            bytes: 0,
        };
        let first = encoder.generator.schema_to_bytes_with_dictionary_tracker(schema, &mut encoder.dictionaries, &encoder.options);
        let first = encoder.counted(first.into());
        (encoder, first)
    }

    fn counted(&mut self, data: FlightData) -> FlightData {
        self.bytes += (data.data_header.len() + data.data_body.len() + data.app_metadata.len()) as u64;
        data
    }

    /// The messages for `delivery`, in order. The annotation of `Done` gets the bytes that this encoder wrote as
    /// `bytes_sent`.
    ///
    /// # Errors
    /// Exhausted where one row is too long for a message; Internal where Arrow can't write the batch.
    pub fn encode(&mut self, delivery: ResultMessage) -> Result<Vec<FlightData>> {
        match delivery {
            ResultMessage::Batch { epoch, batch } => self.encode_batch(epoch, &batch),
            ResultMessage::EpochComplete { epoch } => Ok(vec![note(&Note::Complete(epoch))?]),
            ResultMessage::Done(mut annotation) => {
                annotation.bytes_sent = self.bytes;
                Ok(vec![note(&Note::Done(Box::new(annotation)))?])
            }
        }
    }

    fn encode_batch(&mut self, epoch: u32, batch: &RecordBatch) -> Result<Vec<FlightData>> {
        let pieces = (batch_bytes(batch) as usize).div_ceil(TARGET_MESSAGE).max(1);
        let rows = batch.num_rows().div_ceil(pieces).max(1);
        let mut messages = Vec::with_capacity(pieces);
        let mut at = 0;
        loop {
            let piece = batch.slice(at, rows.min(batch.num_rows() - at));
            let (dictionaries, data) = self
                .generator
                .encode(&piece, &mut self.dictionaries, &self.options, &mut self.context)
                .map_err(|e| Error::internal("cannot write a batch as Arrow IPC").with_source(e))?;
            for dictionary in dictionaries {
                let dictionary = self.counted(dictionary.into());
                messages.push(dictionary);
            }
            let data = FlightData::from(data).with_app_metadata(json("an epoch", &Note::Epoch(epoch))?);
            messages.push(self.counted(data));
            at += rows;
            if at >= batch.num_rows() {
                break;
            }
        }
        if let Some(long) = messages.iter().map(|m| m.data_body.len() + m.data_header.len()).find(|&n| n > MAX_MESSAGE - 4096) {
            return Err(Error::exhausted(format!("a row of the result needs a message of {long} bytes: at most {}", MAX_MESSAGE - 4096)));
        }
        Ok(messages)
    }

    /// A message that only shows that the sender lives.
    #[must_use]
    pub fn alive() -> FlightData {
        FlightData::new().with_app_metadata(&b"\"alive\""[..])
    }
}

fn note(note: &Note) -> Result<FlightData> {
    Ok(FlightData::new().with_app_metadata(json("a delivery's note", note)?))
}

/// Reads the Flight messages of a `DoGet` answer.
#[derive(Debug, Default)]
pub struct DeliveryDecoder {
    rows: ArrowMessages,
}

impl DeliveryDecoder {
    /// What `data` says.
    ///
    /// # Errors
    /// Corrupt where it is no message of this form.
    pub fn decode(&mut self, data: FlightData) -> Result<Incoming> {
        if data.data_header.is_empty() {
            if data.app_metadata.len() > MAX_NOTE {
                return Err(Error::corrupt(format!("a delivery's note of {} bytes is too long: at most {MAX_NOTE}", data.app_metadata.len())));
            }
            let note: Note = from_json("a delivery's note", &data.app_metadata).map_err(garbled)?;
            return match note {
                Note::Complete(epoch) => Ok(Incoming::Message(ResultMessage::EpochComplete { epoch })),
                Note::Done(annotation) => Ok(Incoming::Message(ResultMessage::Done(*annotation))),
                Note::Alive => Ok(Incoming::Nothing),
                Note::Epoch(_) => Err(Error::corrupt("a batch came without its rows")),
            };
        }
        let batch_note = data.app_metadata;
        match self.rows.read(&data.data_header, data.data_body)? {
            ArrowMessage::Schema(schema) => Ok(Incoming::Schema(schema)),
            ArrowMessage::Dictionary => Ok(Incoming::Nothing),
            ArrowMessage::Batch(batch) => match from_json("a batch's note", &batch_note).map_err(garbled)? {
                Note::Epoch(epoch) => Ok(Incoming::Message(ResultMessage::Batch { epoch, batch })),
                _ => Err(Error::corrupt("a batch came without its epoch")),
            },
        }
    }
}

fn garbled(error: Error) -> Error {
    Error::corrupt(error.report())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use arrow::array::{Array, AsArray, DictionaryArray, Int32Array, StringViewArray};
    use arrow::datatypes::{DataType, Field, Int32Type};
    use skytether_common::Kind;
    use skytether_device::annotation::OperatorNote;

    fn batch() -> RecordBatch {
        let words: DictionaryArray<Int32Type> = ["x", "y", "x", "z"].into_iter().collect();
        let names = StringViewArray::from(vec![Some("a"), None, Some("a long name that is not inline"), Some("d")]);
        let schema = Schema::new(vec![
            Field::new("n", DataType::Int32, false),
            Field::new("w", words.data_type().clone(), true),
            Field::new("name", DataType::Utf8View, true),
        ]);
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int32Array::from(vec![1, 2, 3, 4])), Arc::new(words), Arc::new(names)]).unwrap()
    }

    fn messages() -> Vec<FlightData> {
        let (mut encoder, first) = DeliveryEncoder::new(&batch().schema());
        let mut all = vec![first, DeliveryEncoder::alive()];
        all.extend(encoder.encode(ResultMessage::Batch { epoch: 3, batch: batch() }).unwrap());
        all.extend(encoder.encode(ResultMessage::Batch { epoch: 3, batch: batch().slice(1, 2) }).unwrap());
        all.extend(encoder.encode(ResultMessage::EpochComplete { epoch: 3 }).unwrap());
        let operators = vec![OperatorNote { name: "SliceScanExec".into(), rows_out: Some(4), ..OperatorNote::default() }];
        all.extend(encoder.encode(ResultMessage::Done(Annotation { cse: "drive-0".into(), operators, ..Annotation::default() })).unwrap());
        all
    }

    #[test]
    fn deliveries_survive() {
        let sent: u64 =
            messages().iter().filter(|m| !m.data_header.is_empty()).map(|m| (m.data_header.len() + m.data_body.len() + m.app_metadata.len()) as u64).sum();
        let mut decoder = DeliveryDecoder::default();
        let mut came: Vec<Incoming> = messages().into_iter().map(|m| decoder.decode(m).unwrap()).filter(|i| !matches!(i, Incoming::Nothing)).collect();
        let Some(Incoming::Message(ResultMessage::Done(annotation))) = came.pop() else { panic!("{came:?}") };
        assert_eq!((annotation.cse.as_str(), annotation.bytes_sent), ("drive-0", sent));
        assert!(matches!(came.pop(), Some(Incoming::Message(ResultMessage::EpochComplete { epoch: 3 }))));
        let Some(Incoming::Message(ResultMessage::Batch { epoch: 3, batch: second })) = came.pop() else { panic!("{came:?}") };
        assert_eq!(second, batch().slice(1, 2));
        let Some(Incoming::Message(ResultMessage::Batch { epoch: 3, batch: first })) = came.pop() else { panic!("{came:?}") };
        assert_eq!(first, batch());
        assert!(matches!(&came[..], [Incoming::Schema(schema)] if *schema == batch().schema()));
    }

    #[test]
    fn long_batches_go_in_pieces_and_empty_ones_whole() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, false)]));
        let long = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int32Array::from_iter_values(0..6_000_000))]).unwrap();
        let (mut encoder, first) = DeliveryEncoder::new(&schema);
        let mut decoder = DeliveryDecoder::default();
        decoder.decode(first).unwrap();
        let pieces = encoder.encode(ResultMessage::Batch { epoch: 0, batch: long.clone() }).unwrap();
        assert_eq!(pieces.len(), 3);
        let mut next = 0;
        for piece in pieces {
            let Incoming::Message(ResultMessage::Batch { batch, .. }) = decoder.decode(piece).unwrap() else { panic!("no batch") };
            assert_eq!(batch.column(0).as_primitive::<Int32Type>().value(0), next);
            next += batch.num_rows() as i32;
        }
        assert_eq!(next, 6_000_000);
        let empty = encoder.encode(ResultMessage::Batch { epoch: 0, batch: long.slice(0, 0) }).unwrap();
        assert_eq!(empty.len(), 1);
    }

    #[test]
    fn batches_that_claim_more_than_came_are_refused() {
        let of = |data: Vec<FlightData>| {
            let mut decoder = DeliveryDecoder::default();
            data.into_iter().map(|m| decoder.decode(m)).find_map(Result::err)
        };
        let nulls = |rows| {
            let schema = Schema::new(vec![Field::new("n", DataType::Null, true)]);
            let (mut encoder, first) = DeliveryEncoder::new(&schema);
            let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(arrow::array::NullArray::new(rows))]).unwrap();
            let mut all = vec![first];
            all.extend(encoder.encode(ResultMessage::Batch { epoch: 0, batch }).unwrap());
            all
        };
        assert!(of(nulls(65_536)).is_none());
        assert!(of(nulls(1 << 50)).unwrap().to_string().contains("claims 1125899906842624 rows"));
        let options = IpcWriteOptions::default().try_with_compression(Some(arrow::ipc::CompressionType::LZ4_FRAME)).unwrap();
        let (mut encoder, first) = DeliveryEncoder::new(&batch().schema());
        encoder.options = options;
        let mut packed = vec![first];
        packed.extend(encoder.encode(ResultMessage::Batch { epoch: 0, batch: batch() }).unwrap());
        assert!(of(packed).unwrap().to_string().contains("packed"));
    }

    /// Each message with each of its bytes changed in some ways, and cut: an error or some other message, never a
    /// panic that escapes.
    #[test]
    fn garbled_messages_are_errors() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let all = messages();
        for (n, message) in all.iter().enumerate() {
            let damaged = |header: Vec<u8>, body: Vec<u8>, note: Vec<u8>| {
                let mut decoder = DeliveryDecoder::default();
                for before in &all[..n] {
                    decoder.decode(before.clone()).unwrap();
                }
                let _ = decoder.decode(FlightData::new().with_data_header(header).with_data_body(body).with_app_metadata(note));
            };
            let (header, body, note) = (message.data_header.to_vec(), message.data_body.to_vec(), message.app_metadata.to_vec());
            for at in 0..header.len() {
                for flip in [1, 0x80, 0xff] {
                    let mut header = header.clone();
                    header[at] ^= flip;
                    damaged(header, body.clone(), note.clone());
                }
            }
            for len in 0..body.len().min(64) {
                damaged(header.clone(), body[..len].to_vec(), note.clone());
            }
            for at in 0..note.len() {
                for flip in [1, 0x80, 0xff] {
                    let mut note = note.clone();
                    note[at] ^= flip;
                    damaged(header.clone(), body.clone(), note);
                }
            }
            damaged(header.clone(), body.clone(), b"{".to_vec());
        }
        std::panic::set_hook(quiet);
        let mut decoder = DeliveryDecoder::default();
        let long = FlightData::new().with_app_metadata(format!("{{\"done\":{{\"reason\":\"{}\"}}}}", "x".repeat(MAX_NOTE)));
        assert_eq!(decoder.decode(long).unwrap_err().kind(), Kind::Corrupt, "a note without end");
        let rows = all.iter().find(|m| !m.data_body.is_empty()).unwrap().clone();
        assert_eq!(decoder.decode(rows).unwrap_err().kind(), Kind::Corrupt, "rows before their schema");
    }
}
