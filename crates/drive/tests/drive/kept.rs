//! Results that a drive keeps: found again, bounded, and never of other data than what is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::StreamExt;
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_device::kept::{Identity, of_partition};
use skytether_device::session::{Message, Session};
use skytether_device::{Annotation, OpenReply, Storage, SubPlan};
use skytether_drive::{Cse, Drive, DriveOptions};
use skytether_scheduler::message::{CloseAfter, Down, EpochId, Order, PushdownLevel, SliceId, Up};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, StoreLayer, Version};

use crate::common::*;

const MOMENTS: &str = "SELECT gene_id, moments(idx, val, block, '{\"dataset\":\"blood.tiny\",\"matrix\":\"x\",\"groups\":{\"obs\":\"cell_type\"},\
    \"transform\":\"log1p_cp10k\"}') AS m FROM blood.tiny.x_rows GROUP BY gene_id";

/// The same for other values.
fn as_stored() -> String {
    MOMENTS.replace("\"log1p_cp10k\"", "null")
}

async fn plan(sql: &str) -> SubPlan {
    SubPlan { keep: true, ..sub_plan(sql).await }
}

fn filled() -> Arc<MemoryStore> {
    let store = MemoryStore::new();
    fill(&store);
    Arc::new(store)
}

fn kept(store: &dyn SliceStore) -> Vec<Key> {
    let all = store.list("", None, 10_000).unwrap().into_iter().map(|entry| entry.key);
    all.filter(|key| PartitionName::parse(key).is_some_and(|(at, _)| of_partition(&at).is_some())).collect()
}

/// Waits until `n` results are kept, which happens in the background.
async fn has_kept(store: &dyn SliceStore, n: usize) -> Vec<Key> {
    for _ in 0..2000 {
        let keys = kept(store);
        if keys.len() == n {
            return keys;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{n} results should be kept, and {:?} are", kept(store));
}

/// Deletes values through the drive, as a host does.
async fn delete(drive: &Drive, partition: &PartitionName) {
    drive.apply(vec![Op::Delete { key: partition.key().unwrap(), expect: Expect::Any }]).await.unwrap();
}

async fn asked(drive: &Drive, sql: &str) -> (RecordBatch, Annotation) {
    run(drive, plan(sql).await).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_sub_plan_is_answered_from_what_was_kept() {
    let store = filled();
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    let (rows, first) = asked(&drive, MOMENTS).await;
    assert!(!first.cached && first.slices > 0, "{first:?}");
    has_kept(store.as_ref(), 1).await;
    let (again, second) = asked(&drive, MOMENTS).await;
    assert!(second.cached && second.slices == 0 && second.rows_read == Some(0), "{second:?}");
    assert_eq!((second.slices_told, second.slices_total), (first.slices_total.unwrap(), first.slices_total));
    assert!(second.bytes_read > 0 && second.bytes_read < first.bytes_read, "{second:?}");
    assert_eq!((lines(&again), second.rows_out), (lines(&rows), first.rows_out));
    // Another one is another result; and one that does not ask for it is made as ever.
    assert!(!asked(&drive, &as_stored()).await.1.cached);
    assert!(!ask(drive.as_ref(), MOMENTS).await.1.cached);
    has_kept(store.as_ref(), 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_results_survive_a_restart() {
    let store = filled();
    let rows = {
        let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
        let rows = asked(&drive, MOMENTS).await.0;
        has_kept(store.as_ref(), 1).await;
        rows
    };
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    let (again, annotation) = asked(&drive, MOMENTS).await;
    assert!(annotation.cached);
    assert_eq!(lines(&again), lines(&rows));
    // With less room at the next start they go.
    drop(drive);
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { kept_bytes: 100, ..DriveOptions::default() });
    assert_eq!(kept(store.as_ref()), []);
    assert!(!asked(&drive, MOMENTS).await.1.cached);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_go_with_any_partition_that_they_were_made_from() {
    for table in ["x", "obs", "var", "cells"] {
        let store = filled();
        let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
        asked(&drive, MOMENTS).await;
        has_kept(store.as_ref(), 1).await;
        delete(&drive, &partition(&dataset("shop.sales"), "data")).await;
        assert_eq!(kept(store.as_ref()).len(), 1, "another data set has no part in it");
        delete(&drive, &partition(&dataset("blood.tiny"), table)).await;
        assert_eq!(kept(store.as_ref()), [], "{table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_generation_of_one_table_is_another_result() {
    let store = filled();
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    asked(&drive, MOMENTS).await;
    has_kept(store.as_ref(), 1).await;
    let mut newer = plan(MOMENTS).await;
    let obs = newer.partitions.get_mut("obs").unwrap();
    obs.generation.0 += 1;
    // It is not there, and nothing else answers in its place.
    assert!(run(drive.as_ref(), newer).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_were_used_longest_ago_go_first() {
    let store = filled();
    let big = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    asked(&big, MOMENTS).await;
    let first = has_kept(store.as_ref(), 1).await.remove(0);
    let bytes = store.stat(&first).unwrap().unwrap().len;
    drop(big);
    // Room for eight of its size: one may take an eighth.
    let room = bytes * 8 + 7 * 8;
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { kept_bytes: room, ..DriveOptions::default() });
    for gene in 1..=7u32 {
        asked(&drive, &as_stored().replace(" GROUP BY", &format!(" WHERE gene_id <> {gene} GROUP BY"))).await;
        assert!(asked(&drive, MOMENTS).await.1.cached, "it is used all the time");
    }
    let mut used = 0;
    for _ in 0..1000 {
        used = kept(store.as_ref()).iter().map(|key| store.stat(key).unwrap().map_or(0, |entry| entry.len)).sum();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(used <= room && used > bytes, "{used} of {room}");
    assert!(kept(store.as_ref()).contains(&first));
    // Without room nothing is kept.
    drop(drive);
    let none = drive_over(Arc::clone(&store) as _, DriveOptions { kept_bytes: 0, ..DriveOptions::default() });
    assert_eq!(kept(store.as_ref()), []);
    asked(&none, MOMENTS).await;
    assert!(!asked(&none, MOMENTS).await.1.cached);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_results_are_made_again() {
    let store = filled();
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    let rows = asked(&drive, MOMENTS).await.0;
    let key = has_kept(store.as_ref(), 1).await.remove(0);
    for bad in ["", "{}\n", "nonsense"] {
        store.apply(vec![Op::Put { key: key.clone(), value: Bytes::from(bad), expect: Expect::Any }]).unwrap();
        let (again, annotation) = asked(&drive, MOMENTS).await;
        assert!(!annotation.cached, "{bad:?}");
        assert_eq!(lines(&again), lines(&rows));
        for _ in 0..2000 {
            if store.stat(&key).unwrap().is_some_and(|entry| entry.len > 100) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(asked(&drive, MOMENTS).await.1.cached);
    }
}

/// A disk that can be full.
#[derive(Debug, Default)]
struct Full {
    inner: MemoryStore,
    full: AtomicBool,
}

impl StoreLayer for Full {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.inner)
    }

    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        let writes = batch.iter().any(|op| matches!(op, Op::Put { .. }));
        if writes && self.full.load(Ordering::SeqCst) && !kept(&self.inner).is_empty() {
            return Err(Error::exhausted("the disk is full"));
        }
        self.inner.apply(batch)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_results_make_room_on_a_full_disk() {
    let store = Arc::new(Full::default());
    fill(&store.inner);
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    asked(&drive, MOMENTS).await;
    has_kept(&store.inner, 1).await;
    store.full.store(true, Ordering::SeqCst);
    let key = partition(&dataset("shop.more"), "data").key().unwrap();
    drive.apply(vec![Op::Put { key: key.clone(), value: Bytes::from_static(b"data"), expect: Expect::Any }]).await.unwrap();
    assert_eq!((kept(&store.inner).len(), drive.get(&key).await.unwrap()), (0, Bytes::from_static(b"data")));
}

/// Orders all stripes of a session at `rung`, and gives its rows.
async fn in_session(session: Session, rung: PushdownLevel, stripes: usize) -> u64 {
    let Session { slice_manifest, orders, mut messages, .. } = session;
    let slices: Vec<_> = slice_manifest.iter().take(stripes).map(|stripe| SliceId(stripe.stripe)).collect();
    let (some, rest) = slices.split_at(slices.len() / 2);
    let close = CloseAfter { drained: true, slices: None, seconds: None };
    for (n, part) in [some, rest].into_iter().enumerate() {
        let order = Order::Open { rung, slices: part.to_vec(), close };
        orders.send(Down { epoch: EpochId(n as u32), number: 0, order }).unwrap();
    }
    let (mut orders, mut rows, mut open) = (Some(orders), 0, 2);
    while let Some(message) = messages.next().await {
        match message.unwrap() {
            Message::Up(Up::EpochDone(_)) => {
                open -= 1;
                if open == 0 {
                    orders = None;
                }
            }
            Message::Batch { batch, .. } => rows += batch.num_rows() as u64,
            Message::Done(_) => break,
            _ => {}
        }
    }
    drop(orders);
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_is_kept_if_all_of_it_ran_on_the_drive() {
    let store = filled();
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    let open = || async {
        match drive.open(plan(MOMENTS).await).await.unwrap() {
            OpenReply::Session(session) => session,
            OpenReply::Whole(_) => panic!("a matrix of several slices is divided"),
        }
    };
    // A part of the slices, and rows that are only filtered, are no result.
    let stripes = open().await.slice_manifest.len();
    in_session(open().await, PushdownLevel::Full, stripes - 1).await;
    in_session(open().await, PushdownLevel::Filter, stripes).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(kept(store.as_ref()), []);
    let rows = in_session(open().await, PushdownLevel::Full, stripes).await;
    has_kept(store.as_ref(), 1).await;
    let OpenReply::Whole(found) = drive.open(plan(MOMENTS).await).await.unwrap() else { panic!("the kept result is there") };
    let (batch, annotation) = collect(found).await.unwrap();
    // States of both epochs, which the host merges as it merges those of epochs.
    assert!(annotation.cached && batch.num_rows() as u64 == rows, "{annotation:?}");
    let id = Identity::of(&plan(MOMENTS).await).unwrap().unwrap();
    assert_eq!(kept(store.as_ref()), [id.key().unwrap()]);
}
