//! A session's orders and messages as Flight messages, written and read. Pure, as [`super::deliveries`] is, whose
//! Arrow data it carries.
//!
//! Down: the ticket as the first message's body, then an order each as JSON in `app_metadata`. Up: the JSON string
//! `"whole"`, after which deliveries come as in a `DoGet`; or `{"opened":{...}}`, the schemas, and messages. Each
//! message has a note as JSON in its `app_metadata`; a long batch comes in pieces.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow_flight::FlightData;
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};
use skytether_common::{Detail, Error, Kind, Result};
use skytether_device::annotation::Annotation;
use skytether_device::delivery::ResultMessage;
use skytether_device::session::{Message, Stripe};
use skytether_device::subplan::SubPlan;
use skytether_scheduler::message::{Down, EpochId, PushdownLevel, Up};

use crate::deliveries::{DeliveryDecoder, DeliveryEncoder, Incoming, MAX_NOTE};
use crate::details;
use crate::frames::{from_json, json};

/// The longest slice manifest, and the longest list of slices in a message, in bytes: a partition of a terabyte in
/// slices of a megabyte has a million.
const MAX_SURVEY: usize = 64 << 20;

/// Bytes of a batch that are gathered from pieces.
const MAX_BATCH: usize = 256 << 20;

/// Bytes that a piece of a batch counts for at least.
const PIECE: usize = 4 << 10;

/// What a session begins with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// The stripes to process, in storage order.
    #[serde(rename = "survey")]
    pub slice_manifest: Vec<Stripe>,
    /// Whether `filter` is less than `full`.
    pub has_lower: bool,
}

/// The `app_metadata` of a message up.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    Whole,
    Opened(Opening),
    Schema {
        lower: bool,
    },
    Dictionary {
        lower: bool,
    },
    Batch {
        epoch: EpochId,
        number: u32,
        lower: bool,
        more: bool,
    },
    Up(Up),
    #[serde(rename = "trouble")]
    EpochError {
        epoch: EpochId,
        #[serde(serialize_with = "underscored")]
        kind: Kind,
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "skytether_device::ticket::known_detail")]
        detail: Option<Detail>,
    },
    Done(Box<Annotation>),
    Alive,
}

/// The kind as sessions have always named it: `not_found`. Older readers know no other word;
/// the present one takes both.
fn underscored<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&kind.as_str().replace(' ', "_"))
}

/// A message of a session, read.
#[derive(Debug)]
pub enum Came {
    /// The CSE runs the sub-plan as a whole: what follows are deliveries.
    Whole,
    /// The session begins.
    Opened(Opening),
    /// The columns of batches, `lower` those at `filter`.
    Schema {
        /// Whether the rows are those below the aggregation, at `filter`.
        lower: bool,
        /// The columns.
        schema: SchemaRef,
    },
    /// A message of the CSE.
    Message(Message),
    /// A part of what comes next.
    Nothing,
}

fn noted(note: &Note) -> Result<FlightData> {
    Ok(FlightData::new().with_app_metadata(json("a session's note", note)?))
}

/// The first message down.
///
/// # Errors
/// As [`super::frames::encode_ticket`].
pub fn encode_opening(plan: &SubPlan) -> Result<FlightData> {
    Ok(FlightData::new().with_data_body(super::frames::encode_ticket(plan)?))
}

/// Reads the first message down.
///
/// # Errors
/// As [`super::frames::decode_ticket`].
pub fn decode_opening(data: &FlightData) -> Result<(SubPlan, usize)> {
    let ticket: &Bytes = &data.data_body;
    Ok((super::frames::decode_ticket(ticket)?, ticket.len()))
}

/// An order as it travels.
///
/// # Errors
/// Internal only.
pub fn encode_order(down: &Down) -> Result<FlightData> {
    Ok(FlightData::new().with_app_metadata(json("an order", down)?))
}

/// Reads an order.
///
/// # Errors
/// Invalid where it is none, or too long.
pub fn decode_order(data: &FlightData) -> Result<Down> {
    if data.app_metadata.len() > MAX_SURVEY {
        return Err(Error::invalid(format!("an order of {} bytes is too long: at most {MAX_SURVEY}", data.app_metadata.len())));
    }
    from_json("an order", &data.app_metadata)
}

/// Says that the sub-plan runs as a whole.
///
/// # Errors
/// Internal only.
pub fn whole() -> Result<FlightData> {
    noted(&Note::Whole)
}

/// Writes a session's messages.
#[derive(Debug)]
pub struct SessionEncoder {
    full: DeliveryEncoder,
    lower: Option<DeliveryEncoder>,
    received: u64,
    sent: u64,
}

impl SessionEncoder {
    /// An encoder for batches of these columns, and the first messages. `received` is the length of the sub-plan in
    /// bytes.
    ///
    /// # Errors
    /// Internal only.
    pub fn new(slice_manifest: Vec<Stripe>, schema: &Schema, lower: Option<&Schema>, received: u64) -> Result<(Self, Vec<FlightData>)> {
        let mut messages = vec![noted(&Note::Opened(Opening { slice_manifest, has_lower: lower.is_some() }))?];
        let mut begin = |schema: &Schema, lower: bool| -> Result<DeliveryEncoder> {
            let (encoder, first) = DeliveryEncoder::new(schema);
            messages.push(first.with_app_metadata(json("a session's note", &Note::Schema { lower })?));
            Ok(encoder)
        };
        let full = begin(schema, false)?;
        let lower = lower.map(|lower| begin(lower, true)).transpose()?;
        let mut encoder = Self { full, lower, received, sent: 0 };
        encoder.count(&messages);
        Ok((encoder, messages))
    }

    fn count(&mut self, messages: &[FlightData]) {
        self.sent += messages.iter().map(|m| (m.data_header.len() + m.data_body.len() + m.app_metadata.len()) as u64).sum::<u64>();
    }

    /// The messages for `message`, in order. The annotation at the end gets the bytes in both directions.
    ///
    /// # Errors
    /// Exhausted where one row is too long for a message; Internal where Arrow can't write the batch.
    pub fn encode(&mut self, message: Message) -> Result<Vec<FlightData>> {
        let messages = match message {
            Message::Batch { epoch, number, rung, batch } => self.batch(epoch, number, rung, batch)?,
            Message::Up(up) => vec![noted(&Note::Up(up))?],
            Message::EpochError { epoch, error } => {
                let text: String = error.report().chars().take(4096).collect();
                vec![noted(&Note::EpochError { epoch, kind: error.kind(), text, detail: details::short(&error) })?]
            }
            Message::Alive => vec![Self::alive()?],
            Message::Done(annotation) => {
                let annotation = Annotation { bytes_received: self.received, bytes_sent: self.sent, ..*annotation };
                vec![noted(&Note::Done(Box::new(annotation)))?]
            }
        };
        self.count(&messages);
        Ok(messages)
    }

    fn batch(&mut self, epoch: EpochId, number: u32, rung: PushdownLevel, batch: RecordBatch) -> Result<Vec<FlightData>> {
        let lower = rung == PushdownLevel::Filter && self.lower.is_some();
        let encoder = if lower { self.lower.as_mut().unwrap_or(&mut self.full) } else { &mut self.full };
        let mut messages = encoder.encode(ResultMessage::Batch { epoch: epoch.0, batch })?;
        // Of the pieces the last one is the last message; dictionaries come before the piece that needs them.
        let pieces = messages.iter().filter(|message| !message.app_metadata.is_empty()).count();
        let mut piece = 0;
        for message in &mut messages {
            let note = if message.app_metadata.is_empty() {
                Note::Dictionary { lower }
            } else {
                piece += 1;
                Note::Batch { epoch, number, lower, more: piece < pieces }
            };
            message.app_metadata = json("a session's note", &note)?.into();
        }
        Ok(messages)
    }

    /// A sign of life.
    ///
    /// # Errors
    /// Internal only.
    pub fn alive() -> Result<FlightData> {
        noted(&Note::Alive)
    }
}

/// Reads a session's messages.
#[derive(Debug, Default)]
pub struct SessionDecoder {
    full: DeliveryDecoder,
    lower: DeliveryDecoder,
    /// Pieces of a batch.
    pieces: Vec<RecordBatch>,
    bytes: usize,
    /// Which batch they are of: its epoch, its number, whether it is of the lower part.
    piece_of: Option<(EpochId, u32, bool)>,
}

impl SessionDecoder {
    /// What `data` says.
    ///
    /// # Errors
    /// Corrupt where it is no message of this form.
    pub fn decode(&mut self, data: FlightData) -> Result<Came> {
        let garbled = |e: Error| Error::corrupt(e.report());
        // What names slices may name many of them.
        let long = [&b"{\"opened\""[..], b"{\"up\""].iter().any(|begins| data.app_metadata.starts_with(begins));
        let most = if long && data.data_header.is_empty() { MAX_SURVEY } else { MAX_NOTE };
        if data.app_metadata.len() > most {
            return Err(Error::corrupt(format!("a session's note of {} bytes is too long: at most {most}", data.app_metadata.len())));
        }
        let note: Note = from_json("a session's note", &data.app_metadata).map_err(garbled)?;
        if !self.pieces.is_empty() && !matches!(note, Note::Batch { .. } | Note::Alive | Note::Up(_)) {
            return Err(Error::corrupt("something else came between the pieces of a batch"));
        }
        Ok(match note {
            Note::Whole => Came::Whole,
            Note::Opened(opening) => Came::Opened(opening),
            Note::Up(up) => Came::Message(Message::Up(up)),
            Note::EpochError { epoch, kind, text, detail } => {
                Came::Message(Message::EpochError { epoch, error: Arc::new(details::with(Error::new(kind, text), detail)) })
            }
            Note::Done(annotation) => Came::Message(Message::Done(annotation)),
            Note::Alive => Came::Message(Message::Alive),
            Note::Schema { lower } => match self.of(lower).decode(data)? {
                Incoming::Schema(schema) => Came::Schema { lower, schema },
                _ => return Err(Error::corrupt("a schema was announced and something else came")),
            },
            Note::Dictionary { lower } => match self.of(lower).decode(data)? {
                Incoming::Nothing => Came::Nothing,
                _ => return Err(Error::corrupt("a dictionary was announced and something else came")),
            },
            Note::Batch { epoch, number, lower, more } => {
                let bytes = data.data_body.len();
                let data = data.with_app_metadata(format!("{{\"epoch\":{}}}", epoch.0));
                let Incoming::Message(ResultMessage::Batch { batch, .. }) = self.of(lower).decode(data)? else {
                    return Err(Error::corrupt("rows were announced and something else came"));
                };
                // An empty batch counts as well.
                self.bytes += bytes.max(PIECE);
                let of = (epoch, number, lower);
                if *self.piece_of.get_or_insert(of) != of {
                    return Err(Error::corrupt("pieces of two batches are mixed"));
                }
                if self.bytes > MAX_BATCH {
                    return Err(Error::corrupt(format!("the pieces of a batch have {} bytes: at most {MAX_BATCH}", self.bytes)));
                }
                self.pieces.push(batch);
                if more {
                    return Ok(Came::Nothing);
                }
                self.bytes = 0;
                self.piece_of = None;
                let pieces = std::mem::take(&mut self.pieces);
                let batch = match pieces.as_slice() {
                    [only] => only.clone(),
                    [first, ..] => {
                        concat_batches(&first.schema(), &pieces).map_err(|e| Error::corrupt("the pieces of a batch do not fit together").with_source(e))?
                    }
                    [] => return Err(Error::internal("a batch without pieces")),
                };
                let rung = if lower { PushdownLevel::Filter } else { PushdownLevel::Full };
                Came::Message(Message::Batch { epoch, number, rung, batch })
            }
        })
    }

    fn of(&mut self, lower: bool) -> &mut DeliveryDecoder {
        if lower { &mut self.lower } else { &mut self.full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use skytether_common::Key;
    use skytether_scheduler::message::{CloseAfter, Order, SliceId, Why};

    fn rows(n: i64) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef)]).unwrap()
    }

    fn words() -> RecordBatch {
        RecordBatch::try_from_iter([("w", Arc::new(StringArray::from_iter_values(["a", "b"])) as ArrayRef)]).unwrap()
    }

    #[test]
    fn messages_round_trip() {
        let slice_manifest = vec![Stripe { stripe: 4, rows: 10, bytes: 100 }];
        let (mut encoder, mut sent) = SessionEncoder::new(slice_manifest.clone(), &rows(0).schema(), Some(&words().schema()), 7).unwrap();
        let long = rows(3 << 20);
        for message in [
            Message::Up(Up::Refused { epoch: EpochId(1), accepts: Some(PushdownLevel::Raw), again: 0.5, why: Why::Memory }),
            Message::Batch { epoch: EpochId(2), number: 0, rung: PushdownLevel::Full, batch: rows(5) },
            Message::Batch { epoch: EpochId(2), number: 1, rung: PushdownLevel::Full, batch: long.clone() },
            Message::Batch { epoch: EpochId(3), number: 0, rung: PushdownLevel::Filter, batch: words() },
            Message::EpochError { epoch: EpochId(4), error: Arc::new(Error::corrupt("slice 3 is damaged")) },
            Message::Alive,
            Message::Done(Box::new(Annotation { cse: "d".into(), ..Annotation::default() })),
        ] {
            sent.extend(encoder.encode(message).unwrap());
        }
        assert_eq!(sent.len(), 12, "three of the beginning, seven messages, and two more pieces of the long batch");
        let mut decoder = SessionDecoder::default();
        let mut came: Vec<Came> = sent.into_iter().map(|data| decoder.decode(data).unwrap()).filter(|came| !matches!(came, Came::Nothing)).collect();
        let mut next = || came.remove(0);
        assert!(matches!(next(), Came::Opened(opening) if opening == Opening { slice_manifest, has_lower: true }));
        assert!(matches!(next(), Came::Schema { lower: false, schema } if schema == rows(0).schema()));
        assert!(matches!(next(), Came::Schema { lower: true, schema } if schema == words().schema()));
        assert!(matches!(next(), Came::Message(Message::Up(Up::Refused { why: Why::Memory, .. }))));
        assert!(matches!(next(), Came::Message(Message::Batch { epoch: EpochId(2), number: 0, rung: PushdownLevel::Full, batch }) if batch == rows(5)));
        assert!(matches!(next(), Came::Message(Message::Batch { number: 1, batch, .. }) if batch == long));
        assert!(matches!(next(), Came::Message(Message::Batch { rung: PushdownLevel::Filter, batch, .. }) if batch == words()));
        assert!(matches!(next(), Came::Message(Message::EpochError { error, .. }) if error.kind() == Kind::Corrupt && error.message().contains("slice 3")));
        assert!(matches!(next(), Came::Message(Message::Alive)));
        assert!(matches!(next(), Came::Message(Message::Done(done)) if done.bytes_received == 7 && done.bytes_sent > 8 * (3 << 20)));
    }

    #[test]
    fn the_detail_of_a_trouble_travels_or_is_ignored() {
        let read = |json: &str| match SessionDecoder::default().decode(FlightData::new().with_app_metadata(json.to_owned())) {
            Ok(Came::Message(Message::EpochError { error, .. })) => (error.kind(), error.message().to_owned(), error.detail().cloned()),
            other => panic!("{json}: {other:?}"),
        };
        let key = Key::new("lab/t/0000000000000001.data.0").unwrap();
        let error = Error::not_found("it is gone").with_detail(Detail::MissingKey { key: key.clone() }).context("slice 3");
        let note = noted(&Note::EpochError { epoch: EpochId(1), kind: error.kind(), text: error.report(), detail: details::short(&error) }).unwrap();
        let json = String::from_utf8(note.app_metadata.to_vec()).unwrap();
        assert!(json.contains(r#""kind":"not_found""#), "{json}");
        assert_eq!(read(&json), (Kind::NotFound, "slice 3: it is gone".into(), Some(Detail::MissingKey { key: key.clone() })));
        assert_eq!(read(&json.replace("not_found", "not found")).2, Some(Detail::MissingKey { key }));
        for detail in [r#"{"type":"of_a_newer_version"}"#, "null", "7", r#"{"type":"missing_key","key":""}"#] {
            let json = format!(r#"{{"trouble":{{"epoch":1,"kind":"corrupt","text":"x","detail":{detail}}}}}"#);
            assert_eq!(read(&json), (Kind::Corrupt, "x".into(), None));
        }
        assert_eq!(read(r#"{"trouble":{"epoch":1,"kind":"corrupt","text":"x"}}"#), (Kind::Corrupt, "x".into(), None));
    }

    #[test]
    fn orders_travel() {
        let down = Down { epoch: EpochId(3), number: 1, order: Order::Open { rung: PushdownLevel::Full, slices: vec![SliceId(9)], close: CloseAfter::TOLD } };
        assert_eq!(decode_order(&encode_order(&down).unwrap()).unwrap(), down);
        assert_eq!(decode_order(&FlightData::new().with_app_metadata("{")).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn hostile_messages_are_errors() {
        let mut decoder = SessionDecoder::default();
        for note in
            ["", "{", "\"nothing\"", "{\"batch\":{\"epoch\":1,\"number\":0,\"lower\":false,\"more\":false}}", "{\"schema\":{\"lower\":true}}", "{\"up\":{}}"]
        {
            let error = decoder.decode(FlightData::new().with_app_metadata(note.to_owned())).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{note}");
        }
    }
}
