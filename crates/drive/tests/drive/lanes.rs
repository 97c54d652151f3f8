//! Lanes of a session: whose turn it is, and what they build for themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use skytether_device::session::{Message, Session};
use skytether_device::{OpenReply, SubPlan};
use skytether_drive::{Cse, DriveOptions};
use skytether_scheduler::message::{Down, EpochId, Order, PushdownLevel, SliceId, Up};
use skytether_slice::metadata::ipc;
use skytether_store::memory::MemoryStore;

use crate::common::*;
use crate::session::{Gated, ROWS, heard, number, opening, store_numbers, store_rows};

/// While its reader rests, a lane leaves the turn to other sub-plans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_that_waits_for_its_reader_has_no_turn() {
    let store = Arc::new(MemoryStore::default());
    store_numbers(store.as_ref());
    let drive = drive_over(store as _, DriveOptions { max_concurrent: 1, ..DriveOptions::default() });
    // Four times the table: more than may wait for a reader.
    let plan = sub_plan("SELECT id + 1 AS a, id + 2 AS b, id + 3 AS c, id + 4 AS d FROM shop.sales.data").await;
    let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) = drive.open(plan).await.unwrap() else {
        panic!("sums of columns are worked off slice by slice");
    };
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    orders.send(opening(0, PushdownLevel::Full, &slices)).unwrap();
    orders.send(Down { epoch: EpochId(0), number: 1, order: Order::Close { drain: true } }).unwrap();
    let positive = (0..ROWS).filter(|&n| number(n) > 0).count() as i64;
    // The only turn changes hands with each slice: after as many queries as there are slices, the lane waits.
    for _ in 0..=slices.len() {
        let other = ask(drive.as_ref(), "SELECT count(*) AS n FROM shop.sales.data WHERE id > 0");
        let found = tokio::time::timeout(Duration::from_secs(60), other).await.expect("the lane still holds its turn").0;
        assert_eq!(found.column(0).as_primitive::<Int64Type>().value(0), positive);
    }
    let (mut rows, mut done) = (0, false);
    while !done || rows < ROWS {
        match heard(&mut messages).await {
            Message::Batch { batch, .. } => rows += batch.num_rows() as i64,
            Message::Up(Up::EpochDone(end)) => {
                assert_eq!((end.rows, end.slices.len()), (ROWS as u64, slices.len()));
                done = true;
            }
            Message::EpochError { error, .. } => panic!("{}", error.report()),
            _ => {}
        }
    }
    assert_eq!(rows, ROWS);
}

/// Rows of a table that takes fewer bytes than the broadcast table.
const FEW: i64 = 20_000;

/// A join with a broadcast table of 0 and 3, whose build side reads the lane's slices: the broadcast table takes more
/// bytes.
async fn joined() -> SubPlan {
    let plan = sub_plan("SELECT t.id FROM shop.sales.data AS t JOIN shop.sales.__shipped_0 AS s ON abs(t.id % 5) = s.__shipped_0_0").await;
    let keys: Int64Array = [0, 3].into_iter().chain(10..60_000).collect();
    let rows = RecordBatch::try_from_iter_with_nullable([("__shipped_0_0", Arc::new(keys) as _, false)]).unwrap();
    let bytes = ipc::write(&rows.schema(), Some(&rows)).unwrap();
    SubPlan { tables: BTreeMap::from([("__shipped_0".to_owned(), bytes.into())]), ..plan }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_build_a_join_over_their_own_slices_only() {
    let store = Arc::new(MemoryStore::default());
    store_rows(store.as_ref(), FEW, 16 << 10);
    let drive = drive_over(store as _, DriveOptions { threads: 3, ..DriveOptions::default() });
    let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) = drive.open(joined().await).await.unwrap() else {
        panic!("a join with a broadcast table is worked off slice by slice");
    };
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    orders.send(opening(0, PushdownLevel::Full, &slices)).unwrap();
    orders.send(Down { epoch: EpochId(0), number: 1, order: Order::Close { drain: true } }).unwrap();
    let mut rows = 0;
    let done = loop {
        match heard(&mut messages).await {
            Message::Batch { batch, .. } => rows += batch.num_rows(),
            Message::Up(Up::EpochDone(end)) => break end,
            Message::EpochError { error, .. } => panic!("{}", error.report()),
            _ => {}
        }
    };
    while rows < done.rows as usize {
        if let Message::Batch { batch, .. } = heard(&mut messages).await {
            rows += batch.num_rows();
        }
    }
    let wanted = (0..FEW).filter(|n| [0, 3].contains(&(number(*n) % 5).abs())).count();
    assert_eq!((rows, done.slices.len()), (wanted, slices.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_dropped_while_a_join_builds_leaves_its_turn() {
    let store = Arc::new(Gated::default());
    store_rows(store.as_ref(), FEW, 16 << 10);
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { max_concurrent: 1, ..DriveOptions::default() });
    let OpenReply::Session(Session { slice_manifest, orders, messages, .. }) = drive.open(joined().await).await.unwrap() else {
        panic!("a join with a broadcast table is worked off slice by slice");
    };
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    orders.send(opening(0, PushdownLevel::Full, &slices)).unwrap();
    // The lane has the turn, and waits for its second slice.
    store.open(1);
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop((orders, messages));
    store.open(1 << 20);
    let other = ask(drive.as_ref(), "SELECT count(*) AS n FROM shop.sales.data WHERE id > 0");
    tokio::time::timeout(Duration::from_secs(60), other).await.expect("the dropped session still holds its turn");
}
