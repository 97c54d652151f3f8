//! Programs that are no Substrait plans: an executor of a second kind, registered at a drive.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::UInt64Type;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use skytether_common::{Error, Kind, PartitionName, Result};
use skytether_device::{Annotation, DeliveryStream, OpenReply, Program, ProgramKind, PushdownLevel, ResultMessage, SubPlan};
use skytether_drive::{Cse, Drive, DriveOptions, ExecutionContext, Executor, Storage};
use skytether_flight_drive::{ConnectOptions, FlightCse};
use skytether_store::SliceStore;
use skytether_store::memory::MemoryStore;
use tokio::net::TcpListener;

use crate::common::{collect, drive, fill, info, sub_plan};

/// Knows the program `count-bytes`: the stored bytes of the partitions that the sub-plan names.
#[derive(Debug)]
struct CountBytes;

impl Executor for CountBytes {
    fn kind(&self) -> ProgramKind {
        ProgramKind::Native
    }

    fn execute(self: Arc<Self>, plan: SubPlan, context: ExecutionContext) -> BoxFuture<'static, Result<DeliveryStream>> {
        async move {
            match &plan.program {
                Program::Native { name, .. } if name == "count-bytes" => {}
                other => return Err(Error::invalid(format!("there is no program {other:?}: count-bytes"))),
            }
            let _turn = Arc::clone(&context.turns).acquire_owned().await.map_err(|e| Error::unavailable("no turn").with_source(e))?;
            let stored = context.store.list(&plan.dataset.prefix(), None, usize::MAX)?;
            let named = |key| PartitionName::parse(key).is_some_and(|(partition, _)| plan.partitions.values().any(|named| *named == partition));
            let bytes: u64 = stored.iter().filter(|entry| named(&entry.key)).map(|entry| entry.len).sum();
            let column: ArrayRef = Arc::new(UInt64Array::from(vec![bytes]));
            let batch = RecordBatch::try_from_iter([("bytes", column)]).map_err(|e| Error::internal("no batch").with_source(e))?;
            let schema = batch.schema();
            let done = Annotation { cse: context.name, rung: Some(plan.rung), rows_out: 1, ..Annotation::default() };
            let messages = [ResultMessage::Batch { epoch: 0, batch }, ResultMessage::EpochComplete { epoch: 0 }, ResultMessage::Done(done)];
            Ok(DeliveryStream { schema, messages: stream::iter(messages.map(Ok)).boxed() })
        }
        .boxed()
    }
}

fn counting_drive() -> (Arc<Drive>, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    fill(store.as_ref());
    let drive = Drive::with_executors(Arc::clone(&store) as _, info(), DriveOptions::default(), vec![Arc::new(CountBytes)]).unwrap();
    (drive, store)
}

async fn native(name: &str) -> SubPlan {
    let program = Program::Native { name: name.into(), arguments: Bytes::new() };
    SubPlan { program, ..sub_plan("SELECT id FROM shop.sales.data").await }
}

fn counted(batch: &RecordBatch) -> u64 {
    batch.column(0).as_primitive::<UInt64Type>().value(0)
}

#[tokio::test]
async fn a_second_executor_runs_its_kind_next_to_substrait() {
    let (drive, store) = counting_drive();
    assert_eq!(drive.capabilities().programs, [ProgramKind::Substrait, ProgramKind::Native]);
    let stored: u64 = store.list("shop/sales/", None, usize::MAX).unwrap().iter().map(|entry| entry.len).sum();
    let (batch, annotation) = collect(drive.execute(native("count-bytes").await).await.unwrap()).await.unwrap();
    assert_eq!((counted(&batch), annotation.cse.as_str(), annotation.rung), (stored, "drive-2", Some(PushdownLevel::Full)));
    assert!(stored > 0);
    let OpenReply::Whole(stream) = drive.open(native("count-bytes").await).await.unwrap() else { panic!("an executor without sessions opened one") };
    assert_eq!(counted(&collect(stream).await.unwrap().0), stored);
    let (rows, _) = collect(drive.execute(sub_plan("SELECT id FROM shop.sales.data WHERE id < 3").await).await.unwrap()).await.unwrap();
    assert_eq!(rows.num_rows(), 3);
}

#[tokio::test]
async fn a_native_program_runs_over_a_connection() {
    let (drive, store) = counting_drive();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(skytether_flight_drive::serve(drive, listener, std::future::pending()));
    let remote = FlightCse::connect(&address, ConnectOptions::default()).await.unwrap();
    assert!(remote.capabilities().runs(ProgramKind::Native) && remote.capabilities().remote);
    let stored: u64 = store.list("shop/sales/", None, usize::MAX).unwrap().iter().map(|entry| entry.len).sum();
    let (batch, _) = collect(remote.execute(native("count-bytes").await).await.unwrap()).await.unwrap();
    assert_eq!(counted(&batch), stored);
    server.abort();
}

#[tokio::test]
async fn unknown_kinds_and_names_are_refused_by_the_drive_s_name() {
    let error = drive().execute(native("count-bytes").await).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().starts_with("drive-2: it does not run programs of kind native"), "{error}");
    let error = counting_drive().0.execute(native("count-sheep").await).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.report().contains("drive-2") && error.report().contains("count-sheep"), "{}", error.report());
    let twice = Drive::with_executors(Arc::new(MemoryStore::new()), info(), DriveOptions::default(), vec![Arc::new(CountBytes), Arc::new(CountBytes)]);
    assert_eq!(twice.err().unwrap().kind(), Kind::Invalid);
}
