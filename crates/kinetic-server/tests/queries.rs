//! Sub-plans as programs: rights, output keys and ends. The engine of these tests gives rows as it is told; fleets of
//! crate `skytether` test the drive's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{RecordBatch, StringArray};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use skytether_common::{Generation, Kind, PartitionName, Result};
use skytether_device::{Annotation, Cse, CseInfo, DeliveryStream, Layer, Program, PushdownLevel, ResultMessage, StorageOnly, SubPlan};
use skytether_kinetic::queries::{Report, SPILL, part_key, to_program};
use skytether_kinetic::{ClientOptions, Connection, Execution, Identity, ProgramResult, Put};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::command::Body;
use skytether_kinetic_protocol::kinds::{AcknowledgeMode, AppletType, Language, Permission};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::security::{Acl, Scope};
use skytether_kinetic_protocol::{HmacKey, MessageType, StatusCode};
use skytether_kinetic_server::{Options, QueryEngine, StoredSlices};
use skytether_kv::KeyValues;
use uuid::Uuid;

use crate::raw::{Raw, of};
use crate::{Served, open, serve_as};

const PATIENCE: Duration = Duration::from_secs(60);

/// Gives as many batches of 100 KiB as it is told, or goes on for ever.
#[derive(Debug)]
struct Rows {
    storage: StorageOnly,
    batches: AtomicUsize,
}

const ENDLESS: usize = usize::MAX;

impl Layer for Rows {
    fn info(&self) -> &CseInfo {
        skytether_device::Storage::info(&self.storage)
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(&self.storage)
    }

    fn execute(&self, _: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        let text = "x".repeat(100 << 10);
        let batch = RecordBatch::try_from_iter([("text", Arc::new(StringArray::from(vec![text])) as _)]).unwrap();
        let (schema, batches) = (batch.schema(), self.batches.load(Ordering::SeqCst));
        let rows = stream::iter(0..batches).then(move |_| {
            let batch = batch.clone();
            async move {
                if batches == ENDLESS {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(ResultMessage::Batch { epoch: 0, batch })
            }
        });
        let end = [Ok(ResultMessage::EpochComplete { epoch: 0 }), Ok(ResultMessage::Done(Annotation::default()))];
        Box::pin(async move { Ok(DeliveryStream { schema, messages: rows.chain(stream::iter(end)).boxed() }) })
    }
}

async fn with_engine(dir: &std::path::Path, batches: usize) -> (Served, Arc<Rows>) {
    let engine = Arc::new(Rows { storage: StorageOnly::in_memory(Uuid::from_u128(7), "drive-7"), batches: AtomicUsize::new(batches) });
    let slices = Arc::new(StoredSlices::new(Arc::new(KeyValues::in_memory())));
    let queries = Some(QueryEngine::new(slices, Arc::clone(&engine) as _));
    (serve_as(dir, Options { queries, ..Options::default() }, false).await, engine)
}

/// A sub-plan that names these partitions.
fn plan(tables: &[&str]) -> Bytes {
    let dataset: skytether_common::DatasetName = "lab.t".parse().unwrap();
    let partition = |table: &&str| {
        let name = PartitionName { dataset: dataset.clone(), generation: Generation(7), table: (*table).to_owned(), slot: 0 };
        ((*table).to_owned(), name)
    };
    let plan = SubPlan {
        query: Uuid::from_u128(1),
        dataset: dataset.clone(),
        partitions: tables.iter().map(partition).collect(),
        with: BTreeMap::new(),
        rung: PushdownLevel::Full,
        program: Program::Substrait(Bytes::from_static(b"plan")),
        filters: BTreeMap::new(),
        tables: BTreeMap::new(),
        batch_rows: 0,
        keep: false,
    };
    to_program(&plan).unwrap()
}

/// Puts the sub-plan without partitions under `plan`, and runs it with this output key.
async fn stored(on: &Connection) -> Execution {
    on.put(Put::new("plan".into(), plan(&[]), None, Bytes::new())).await.unwrap();
    Execution { output_key: Some("rows".into()), ..Execution::new(Language::Native, vec!["plan".into()]) }
}

async fn is_there(on: &Connection, key: Bytes) -> bool {
    on.get_version(key).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_longer_than_a_value_replace_shorter_ones_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let (served, engine) = with_engine(dir.path(), 1).await;
    let on = open(&served.plain, &served.options).await;
    let run = stored(&on).await;
    for (batches, parts) in [(1, 0), (25, 3), (12, 2), (1, 0)] {
        engine.batches.store(batches, Ordering::SeqCst);
        let ended = on.execute(run.clone(), PATIENCE).await.unwrap();
        let Report::Done { parts: told, bytes, .. } = Report::parse(&ended.result.output).unwrap() else { panic!("{ended:?}") };
        assert_eq!((ended.result.exit_code, told), (0, parts));
        assert_eq!(is_there(&on, "rows".into()).await, parts == 0, "{batches} batches");
        let mut length = if parts == 0 { on.get("rows".into(), false).await.unwrap().value.len() } else { 0 };
        for number in 0..6 {
            let key = part_key(b"rows", number);
            assert_eq!(is_there(&on, key.clone()).await, number < parts, "{batches} batches, part {number}");
            if number < parts {
                length += on.get(key, false).await.unwrap().value.len();
            }
        }
        assert_eq!(length as u64, bytes);
    }
    // The output key takes only what the response can't.
    let inline = Execution { output_key: Some("other".into()), output_in_response: true, arguments: vec![SPILL.into()], ..run };
    let ended = on.execute(inline, PATIENCE).await.unwrap();
    assert!(ended.value.len() > 100 << 10 && !is_there(&on, "other".into()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_plan_that_is_aborted_leaves_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _) = with_engine(dir.path(), ENDLESS).await;
    let (on, caller) = (open(&served.plain, &served.options).await, open(&served.plain, &served.options).await);
    let run = stored(&on).await;
    for leaves in [false, true] {
        let running = tokio::spawn({
            let (run, caller) = (run.clone(), open(&served.plain, &served.options).await);
            async move { caller.execute(run, PATIENCE).await }
        });
        while !is_there(&on, part_key(b"rows", 1)).await {}
        // Those of other callers do not end by an ABORT that names nothing.
        assert_eq!(caller.abort_program(Vec::new()).await.unwrap_err().code(), Some(StatusCode::NotFound));
        if leaves {
            running.abort();
        } else {
            caller.abort_program(vec!["plan".into()]).await.unwrap();
            assert_eq!(running.await.unwrap().unwrap().result.signal, 9);
        }
        while !on.programs(Vec::new()).await.unwrap().is_empty() {}
        while is_there(&on, part_key(b"rows", 0)).await || is_there(&on, part_key(b"rows", 1)).await {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_plan_reads_and_writes_what_its_caller_may() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _) = with_engine(dir.path(), 1).await;
    let on = open(&served.plain, &served.options).await;
    let key = |table: &str| {
        let name = PartitionName { dataset: "lab.t".parse().unwrap(), generation: Generation(7), table: table.into(), slot: 0 };
        name.key().unwrap().as_str().to_owned()
    };
    let scope = |value: &str, permission: &[Permission]| Scope {
        offset: Some(0),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        permission: permission.iter().map(|permission| i32::from(*permission)).collect(),
        tls_required: None,
    };
    let scopes = vec![scope("", &[Permission::ManageApplet]), scope(&key("data"), &[Permission::Read]), scope("ours", &[Permission::Read, Permission::Write])];
    let narrow = Acl { identity: Some(2), key: Some(Bytes::from_static(b"narrow")), scope: scopes, ..default_identity() };
    open(&served.tls, &served.options).await.set_identities(vec![default_identity(), narrow]).await.unwrap();
    let identity = Identity { number: 2, key: HmacKey::new(b"narrow") };
    let user = open(&served.plain, &Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await;
    on.put(Put::new("ours/none".into(), plan(&[]), None, Bytes::new())).await.unwrap();
    on.put(Put::new("ours/data".into(), plan(&["data"]), None, Bytes::new())).await.unwrap();
    let run = |program: &'static str, output: &'static str| Execution {
        output_key: Some(output.into()),
        ..Execution::new(Language::Substrait, vec![program.into()])
    };
    assert_eq!(user.execute(run("ours/none", "ours/rows"), PATIENCE).await.unwrap().result.exit_code, 0);
    let refused = |outcome: skytether_kinetic::Outcome<skytether_kinetic::Executed>| outcome.unwrap_err().code();
    assert_eq!(refused(user.execute(run("ours/none", "theirs"), PATIENCE).await), Some(StatusCode::NotAuthorized));
    // A scope that holds the partition's key holds its slices, too. The partition is nowhere, so the drive's own CSE is
    // asked, which runs no sub-plans in this test.
    let read = user.execute(run("ours/data", "ours/rows"), PATIENCE).await.unwrap();
    let Report::Failed { kind, .. } = Report::parse(&read.result.output).unwrap() else { panic!("rows of nothing") };
    assert_eq!((read.result.exit_code, kind), (1, Kind::Unsupported));
    let blind = Acl {
        identity: Some(3),
        key: Some(Bytes::from_static(b"blind")),
        scope: vec![scope("", &[Permission::ManageApplet]), scope("ours", &[Permission::Read, Permission::Write])],
        ..default_identity()
    };
    open(&served.tls, &served.options).await.set_identities(vec![default_identity(), blind]).await.unwrap();
    let identity = Identity { number: 3, key: HmacKey::new(b"blind") };
    let blind = open(&served.plain, &Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await;
    assert_eq!(refused(blind.execute(run("ours/data", "ours/rows"), PATIENCE).await), Some(StatusCode::NotAuthorized));
}

/// Its rows go under keys while they come, and go with it.
#[tokio::test(flavor = "multi_thread")]
async fn sub_plan_ends_after_its_longest_time() {
    let dir = tempfile::tempdir().unwrap();
    let (served, engine) = with_engine(dir.path(), ENDLESS).await;
    let on = open(&served.plain, &served.options).await;
    let run = stored(&on).await;
    let ended = on.execute(Execution { most: Some(Duration::from_millis(700)), ..run.clone() }, PATIENCE).await.unwrap();
    assert_eq!((ended.result.exit_code, ended.result.signal, &ended.result.output[..]), (-1, 14, &b""[..]));
    assert_eq!(ended.result.message, "it ran for 0.7 s, as long as it may");
    while !on.programs(Vec::new()).await.unwrap().is_empty() {}
    while is_there(&on, part_key(b"rows", 0)).await {}
    // The drive goes on.
    engine.batches.store(1, Ordering::SeqCst);
    assert_eq!(on.execute(run, PATIENCE).await.unwrap().result.exit_code, 0);
}

/// A sub-plan that is the value of its request has no name but its output key.
#[tokio::test(flavor = "multi_thread")]
async fn sub_plan_is_answered_on_receipt_if_it_has_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _) = with_engine(dir.path(), 1).await;
    let on = open(&served.plain, &served.options).await;
    let mut raw = Raw::open(&served.plain).await;
    let mut begin = |output_key: Option<Bytes>| {
        let applet = ManageApplet {
            manage_applet_type: Some(AppletType::Execute.into()),
            lang: Some(Language::Substrait.into()),
            acknowledge_mode: Some(AcknowledgeMode::OnReceipt.into()),
            notify_on_completion: Some(true),
            output_key,
            ..ManageApplet::default()
        };
        raw.add(of(MessageType::ManageApplet), Body { manage_applet: Some(applet), ..Body::default() }, &plan(&[]))
    };
    let (_, second) = (begin(None), begin(Some("rows".into())));
    raw.send().await;
    let (refused, _) = raw.receive().await;
    assert_eq!(refused.status_code(), StatusCode::InvalidRequest);
    assert!(refused.status.unwrap().text().contains("needs an output key"));
    assert_eq!(raw.receive().await.0.status_code(), StatusCode::Success);
    let (told, _) = raw.receive().await;
    assert_eq!((told.header.as_ref().unwrap().ack_sequence(), told.status_code()), (second, StatusCode::ExecuteComplete));
    let result = ProgramResult::parse(&told.status.unwrap().detailed_message.unwrap()).unwrap();
    let Report::Done { bytes, .. } = Report::parse(&result.output).unwrap() else { panic!("{result:?}") };
    assert_eq!(on.get("rows".into(), false).await.unwrap().value.len() as u64, bytes);
}
