//! Sub-plans that are worked off slice by slice: what a drive says, and in which order.

mod common;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{Int64Array, new_null_array};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use common::*;
use futures::StreamExt;
use skytether_adapt::message::{CloseAfter, Down, EpochId, Order, Rung, SliceId, Up};
use skytether_common::{Key, Result};
use skytether_drive::{Cse, DriveOptions};
use skytether_store::memory::MemoryStore;
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use skytether_wire::Opened;
use skytether_wire::session::{Message, Session};
use tokio::sync::Notify;

/// Rows of the table: 2.4 MB of numbers that don't compress, which is less than may wait for whoever reads.
const ROWS: i64 = 300_000;

/// Threads of the drive, and so lanes of an epoch.
const LANES: usize = 2;

/// A store that tells how many slices were read.
#[derive(Debug, Default)]
struct Watched {
    inner: MemoryStore,
    read: Mutex<BTreeSet<Key>>,
    more: Notify,
}

impl Watched {
    fn saw(&self, key: &Key) {
        if key.as_str().contains(';') {
            self.read.lock().unwrap().insert(key.clone());
            self.more.notify_one();
        }
    }

    /// Ready when so many slices were read.
    async fn has_read(&self, slices: usize) {
        while self.read.lock().unwrap().len() < slices {
            self.more.notified().await;
        }
    }
}

impl SliceStore for Watched {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.inner.apply(batch)
    }
    fn get(&self, key: &Key) -> Result<Bytes> {
        self.saw(key);
        self.inner.get(key)
    }
    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.saw(key);
        self.inner.get_ranges_unverified(key, ranges)
    }
    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.inner.stat(key)
    }
    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.inner.list(prefix, after, limit)
    }
    fn usage(&self) -> Result<Usage> {
        self.inner.usage()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_go_on_while_their_rows_wait_and_what_is_said_goes_before_rows() {
    let store = Arc::new(Watched::default());
    let numbers = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64))));
    let (none, nothing) = (new_null_array(&DataType::Utf8, ROWS as usize), new_null_array(&DataType::Float64, ROWS as usize));
    let rows = RecordBatch::try_new(sales().schema(), vec![numbers, none, nothing]).unwrap();
    store_table(store.as_ref(), &partition(&dataset("shop.sales"), "data"), &rows, 200 << 10);
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { threads: LANES, ..DriveOptions::default() });
    let Opened::Session(Session { survey, orders, mut messages, .. }) = drive.open(sub_plan("SELECT id FROM shop.sales.data").await).await.unwrap() else {
        panic!("rows of a table are worked off slice by slice");
    };
    assert!(survey.len() >= 10, "{survey:?}");
    let slices: Vec<_> = survey.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    let close = CloseAfter { drained: true, slices: None, seconds: None };
    orders.send(Down { epoch: EpochId(0), number: 0, order: Order::Open { rung: Rung::Full, slices: slices.clone(), close } }).unwrap();

    // Nobody reads, as behind a slow link.
    tokio::time::timeout(Duration::from_secs(60), store.has_read(slices.len())).await.expect("the lanes wait for a reader");
    let (mut done, mut before_rows, mut batches, mut rows, mut over) = (0, None, 0, 0, None);
    while over.is_none() || rows < ROWS {
        let message = tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap();
        match message {
            Message::Up(Up::Progress { done: more, .. }) => done += more.len(),
            Message::Up(Up::EpochDone(completed)) => over = Some(completed),
            Message::Up(_) => {}
            Message::Batch { batch, .. } => {
                before_rows.get_or_insert(done);
                batches += 1;
                rows += batch.num_rows() as i64;
            }
            other => panic!("{other:?}"),
        }
    }
    let completed = over.unwrap();
    assert_eq!((completed.slices.len(), completed.rows, completed.batches), (slices.len(), ROWS as u64, batches));
    // Each lane has one at most that it has not told of, and one is read ahead for each.
    assert!(before_rows.unwrap() + 2 * LANES >= slices.len(), "{before_rows:?} of {} slices were told of before the first rows", slices.len());
    assert!(batches as usize > slices.len() / 2, "{batches} batches: rows go off early, not two megabytes at a time");
}
