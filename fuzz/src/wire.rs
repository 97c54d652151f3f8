//! Targets for messages between drives and hosts.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Int32Array, Int64Array, ListArray, NullArray, RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow::datatypes::{Field, Int32Type, Int64Type};
use arrow::ipc::writer::StreamWriter;
use arrow_flight::FlightData;
use bytes::Bytes;
use datafusion::common::ScalarValue;
use datafusion::physical_plan::collect;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::prelude::SessionContext;
use skytether_common::{DatasetName, Detail, Error, Generation, Kind, PartitionName};
use skytether_device::arrow_messages::{ArrowMessage, ArrowStream};
use skytether_device::session::{Message, Stripe};
use skytether_device::{Annotation, Program, PushdownLevel, ResultMessage, SubPlan};
use skytether_engine::broadcast::tables as broadcast;
use skytether_flight_drive::deliveries::{DeliveryDecoder, DeliveryEncoder, Incoming};
use skytether_flight_drive::details;
use skytether_flight_drive::frames;
use skytether_flight_drive::sessions::{self, Came, SessionDecoder, SessionEncoder};
use skytether_host::Values;
use skytether_plan::broadcast_join;
use skytether_plan::keys::{KeySets, set_of};
use skytether_scheduler::message::{CloseAfter, Completed, Down, EpochId, Order, SliceCost, SliceId, Up, Why};
use skytether_slice::metadata::ipc;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| match Builder::new_current_thread().build() {
    Ok(runtime) => runtime,
    Err(e) => panic!("no runtime: {e}"),
});
static SESSION: LazyLock<SessionContext> = LazyLock::new(SessionContext::new);

pub(crate) fn tickets() -> Vec<Vec<u8>> {
    let (Ok(dataset), Ok(other)) = ("a.b".parse(), "a.c".parse()) else { return vec![] };
    let partition = PartitionName { dataset, generation: Generation(3), table: "data".into(), slot: 1 };
    let other = PartitionName { dataset: other, ..partition.clone() };
    let plan = SubPlan {
        query: Uuid::from_u128(1),
        dataset: partition.dataset.clone(),
        partitions: BTreeMap::from([(partition.table.clone(), partition)]),
        with: BTreeMap::from([(other.dataset.clone(), BTreeMap::from([(other.table.clone(), other)]))]),
        rung: PushdownLevel::Filter,
        program: Program::Substrait(Bytes::from_static(b"substrait")),
        filters: BTreeMap::from([("k0".into(), Bytes::from_static(b"one")), ("k1".into(), Bytes::from_static(b"another"))]),
        tables: BTreeMap::from([("__shipped_0".into(), Bytes::from_static(b"rows"))]),
        batch_rows: 77,
        keep: true,
    };
    let native = SubPlan { program: Program::Native { name: "count".into(), arguments: Bytes::from_static(b"{}") }, ..plan.clone() };
    [plan, native].iter().filter_map(|plan| frames::encode_ticket(plan).ok()).map(|ticket| ticket.to_vec()).collect()
}

/// A ticket: an error, or a sub-plan that has no more bytes than came.
pub(crate) fn ticket_decode(data: &[u8]) -> bool {
    match frames::decode_ticket(&Bytes::copy_from_slice(data)) {
        Ok(plan) => assert!(plan.bytes() <= data.len()),
        Err(e) => {
            assert_eq!(e.kind(), Kind::Invalid, "{}", e.report());
            return false;
        }
    }
    true
}

fn batches() -> Vec<RecordBatch> {
    let words: DictionaryArray<Int32Type> = ["one", "two", "one"].into_iter().collect();
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)]), None, Some(vec![])]);
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
    let row = StructArray::from(vec![(Arc::new(Field::new("n", arrow::datatypes::DataType::Int32, true)), Arc::clone(&numbers))]);
    let sets: [Vec<ArrayRef>; 3] = [
        vec![
            Arc::new(Int64Array::from(vec![1, 2, 3])),
            Arc::new(StringArray::from(vec![Some("a"), None, Some("c")])),
            Arc::new(BooleanArray::from(vec![true; 3])),
        ],
        vec![Arc::new(words), Arc::new(lists), Arc::new(row), Arc::new(StringViewArray::from(vec![Some("longer than a view holds"), None, Some("b")]))],
        vec![Arc::new(NullArray::new(3))],
    ];
    let named = |columns: Vec<ArrayRef>| RecordBatch::try_from_iter(columns.into_iter().enumerate().map(|(i, c)| (format!("__shipped_0_{i}"), c))).ok();
    sets.into_iter().filter_map(named).collect()
}

pub(crate) fn tables() -> Vec<Vec<u8>> {
    batches().iter().filter_map(|b| ipc::write(&b.schema(), Some(b)).ok()).collect()
}

/// A broadcast table, planned with and read: an error, or no more rows than may be sent.
pub(crate) fn shipped_read(data: &[u8]) -> bool {
    let name = broadcast_join::name(0);
    let read = match broadcast(&BTreeMap::from([(name, Bytes::copy_from_slice(data))])) {
        Ok(read) => read,
        Err(e) => {
            assert_eq!(e.kind(), Kind::Invalid, "{}", e.report());
            return false;
        }
    };
    let mut taken = true;
    for table in read {
        let rows = RUNTIME.block_on(async {
            let scan = table.scan(&SESSION.state(), None, &[], None).await?;
            StatisticsContext::new().compute(scan.as_ref(), &StatisticsArgs::new())?;
            collect(scan, SESSION.task_ctx()).await
        });
        match rows {
            Ok(rows) => assert!(rows.iter().map(RecordBatch::num_rows).sum::<usize>() as u64 <= broadcast_join::MAX_ROWS),
            Err(_) => taken = false,
        }
    }
    taken
}

/// Streams of rows in which all messages have the same schema.
pub(crate) fn streams() -> Vec<Vec<u8>> {
    let stream = |batch: RecordBatch| {
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).ok()?;
        writer.write(&batch).ok()?;
        writer.write(&batch.slice(1, 1)).ok()?;
        writer.into_inner().ok()
    };
    batches().into_iter().filter_map(stream).collect()
}

/// Rows that a Kinetic drive sends, in pieces: an error, or batches that may be read.
pub(crate) fn stream_read(data: &[u8]) -> bool {
    let mut stream = ArrowStream::default();
    for piece in data.chunks(700) {
        stream.push(piece);
        loop {
            match stream.next_message() {
                Ok(None) => break,
                Ok(Some(ArrowMessage::Batch(batch))) => {
                    let _ = arrow::util::pretty::pretty_format_batches(&[batch.slice(0, batch.num_rows().min(8))]).map(|text| text.to_string());
                }
                Ok(Some(_)) => {}
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Corrupt, "{}", e.report());
                    return false;
                }
            }
        }
    }
    stream.finish().is_ok()
}

pub(crate) fn rows() -> Vec<Vec<u8>> {
    batches().iter().filter_map(|b| Some(Values::new(b.slice(0, 1)).ok()?.encode().ok()?.to_vec())).collect()
}

/// Values of a query's parameters: an error, or one value for each column, which the planner takes or refuses.
pub(crate) fn values_decode(data: &[u8]) -> bool {
    match Values::decode(data) {
        Ok(values) => {
            assert!(values.columns().iter().all(|column| column.len() == 1));
            values.columns().iter().all(|column| ScalarValue::try_from_array(column, 0).is_ok())
        }
        Err(e) => {
            assert_eq!(e.kind(), Kind::Invalid, "{}", e.report());
            false
        }
    }
}

pub(crate) fn details() -> Vec<Vec<u8>> {
    let Ok(dataset) = "lab.t".parse::<DatasetName>() else { return vec![] };
    let missing = Detail::missing_key(&dataset.root_key());
    let all = [
        Detail::Fenced { drive: "drive-1".into(), term: 7 },
        Detail::MissingColumn { column: "größe \"x\"".into() },
        Detail::MissingDataset { dataset },
        Detail::UnfitValue { cell: 3, value: f64::INFINITY, total: Some(0.1) },
        Detail::UnfitEntry { gene: 1, cell: 2 },
        Detail::SpillExhausted { limit: 1 << 30 },
        missing,
    ];
    all.into_iter().filter_map(|detail| details::encode(&Error::invalid("x").with_detail(detail))).collect()
}

/// The detail of an error: none, or one that travels on as it is.
pub(crate) fn detail_decode(data: &[u8]) -> bool {
    let Some(detail) = details::decode(data) else { return false };
    let encoded = |detail| details::encode(&Error::invalid("x").with_detail(detail));
    // Escapes and numbers may be longer than they came: it may be too long to go on.
    if let Some(json) = encoded(detail) {
        assert_eq!(details::decode(&json).and_then(encoded), Some(json));
    }
    true
}

pub(crate) fn keys() -> Vec<Vec<u8>> {
    let columns: [ArrayRef; 2] = [Arc::new(Int32Array::from_iter_values(0..100)), Arc::new(StringArray::from(vec!["a", "b"]))];
    columns.iter().filter_map(|c| set_of(c).ok()).collect()
}

/// A set of join keys.
pub(crate) fn keys_read(data: &[u8]) -> bool {
    KeySets::read(&BTreeMap::from([("k".to_owned(), Bytes::copy_from_slice(data))])).is_ok()
}

/// Messages one after the other: each header, body and note with its length in two bytes before it.
fn framed(messages: &[FlightData]) -> Vec<u8> {
    let parts = messages.iter().flat_map(|m| [&m.data_header, &m.data_body, &m.app_metadata]);
    parts.flat_map(|part| (part.len() as u16).to_le_bytes().into_iter().chain(part.to_vec())).collect()
}

pub(crate) fn deliveries() -> Vec<Vec<u8>> {
    let of = |batch: RecordBatch| {
        let (mut encoder, first) = DeliveryEncoder::new(&batch.schema());
        let mut all = vec![first, DeliveryEncoder::alive()];
        let annotation = Annotation { cse: "drive-0".into(), ..Annotation::default() };
        for delivery in [ResultMessage::Batch { epoch: 3, batch }, ResultMessage::EpochComplete { epoch: 3 }, ResultMessage::Done(annotation)] {
            all.extend(encoder.encode(delivery).ok()?);
        }
        Some(framed(&all))
    };
    batches().into_iter().filter_map(of).collect()
}

/// The messages that [`framed`] wrote, as far as `data` has whole ones.
fn messages(mut data: &[u8]) -> impl Iterator<Item = FlightData> {
    let mut part = move || {
        let (len, after) = data.split_first_chunk::<2>()?;
        let (part, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        data = after;
        Some(part.to_vec())
    };
    std::iter::from_fn(move || {
        let (header, body, note) = (part()?, part()?, part()?);
        Some(FlightData::new().with_data_header(header).with_data_body(body).with_app_metadata(note))
    })
}

/// The messages of an answer: errors, or deliveries whose rows are not far more than the bytes that came.
pub(crate) fn delivery_decode(data: &[u8]) -> bool {
    let (mut decoder, mut taken) = (DeliveryDecoder::default(), false);
    for message in messages(data) {
        if let Ok(Incoming::Message(ResultMessage::Batch { batch, .. })) = decoder.decode(message) {
            assert!(batch.num_rows() <= 1 << 24);
            taken = true;
        }
    }
    taken
}

pub(crate) fn sessions() -> Vec<Vec<u8>> {
    let slice_manifest = vec![Stripe { stripe: 4, rows: 10, bytes: 100 }, Stripe { stripe: 7, rows: 3, bytes: 40 }];
    let cost = SliceCost { slice: SliceId(4), cpu: 0.01, rows_out: 3, bytes_out: 24 };
    let of = |batch: RecordBatch| {
        let (mut encoder, mut all) = SessionEncoder::new(slice_manifest.clone(), &batch.schema(), Some(&batch.schema()), 9).ok()?;
        let epoch = EpochId(1);
        let progress =
            Up::Progress { epoch, done: vec![cost], running: vec![(SliceId(7), 0.5)], load: 1.5, waits: false, pending_rows: 3, pending_bytes: 4, slack: 0.5 };
        let done =
            Completed { epoch, rung: PushdownLevel::Full, slices: vec![SliceId(4)], batches: 2, rows: 6, bytes: 80, cpu: 0.1, wall: 0.2, bytes_read: 100 };
        for message in [
            Message::Batch { epoch: EpochId(1), number: 0, rung: PushdownLevel::Full, batch: batch.clone() },
            Message::Up(Up::Refused { epoch: EpochId(2), accepts: Some(PushdownLevel::Raw), again: 0.5, why: Why::Memory }),
            Message::Batch { epoch: EpochId(1), number: 1, rung: PushdownLevel::Filter, batch },
            Message::Alive,
            Message::Up(progress),
            Message::Up(Up::EpochDone(done)),
            Message::EpochError { epoch: EpochId(3), error: Arc::new(Error::corrupt("slice 3 is damaged")) },
            Message::EpochError { epoch: EpochId(3), error: Arc::new(Error::not_found("it is gone").with_detail(Detail::SpillDiskFull)) },
            Message::Done(Box::new(Annotation { cse: "drive-0".into(), ..Annotation::default() })),
        ] {
            all.extend(encoder.encode(message).ok()?);
        }
        Some(framed(&all))
    };
    let mut all: Vec<_> = batches().into_iter().filter_map(of).collect();
    all.extend(sessions::whole().ok().map(|message| framed(&[message])));
    all
}

/// The messages of a session: errors of damage, or messages in which no batch has far more rows than bytes came.
pub(crate) fn session_decode(data: &[u8]) -> bool {
    let (mut decoder, mut taken) = (SessionDecoder::default(), false);
    for message in messages(data) {
        match decoder.decode(message) {
            Ok(Came::Message(Message::Batch { batch, .. })) => assert!(batch.num_rows() <= 1 << 24),
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.kind(), Kind::Corrupt, "{}", e.report());
                continue;
            }
        }
        taken = true;
    }
    taken
}

pub(crate) fn orders() -> Vec<Vec<u8>> {
    let slices = vec![SliceId(9), SliceId(300)];
    let orders = [
        Order::Open { rung: PushdownLevel::Full, slices: slices.clone(), close: CloseAfter::TOLD },
        Order::Feed { slices: slices.clone() },
        Order::Take { slices },
        Order::Cancel,
    ];
    let of = |order| sessions::encode_order(&Down { epoch: EpochId(3), number: 1, order }).ok().map(|message| message.app_metadata.to_vec());
    orders.into_iter().filter_map(of).collect()
}

/// An order to a drive, which means the same when it is written again.
pub(crate) fn order_decode(data: &[u8]) -> bool {
    let read = |note: Bytes| sessions::decode_order(&FlightData::new().with_app_metadata(note));
    match read(Bytes::copy_from_slice(data)) {
        Ok(down) => assert!(sessions::encode_order(&down).and_then(|again| read(again.app_metadata)).is_ok_and(|again| again == down)),
        Err(e) => {
            assert_eq!(e.kind(), Kind::Invalid, "{}", e.report());
            return false;
        }
    }
    true
}
