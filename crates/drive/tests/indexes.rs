//! Indexes of one drive: what becomes of them where space is short, where the table is another one, and where nobody wants them any more.

mod common;

use std::sync::Arc;
use std::time::Duration;

use arrow::compute::concat_batches;
use bytes::Bytes;
use common::*;
use skytether_common::{Key, PartitionName};
use skytether_drive::{Drive, DriveOptions, Storage};
use skytether_index::{Definition, Phase, State};
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore};
use uuid::Uuid;

const SQL: &str = "SELECT id, price FROM shop.sales.data WHERE price = 3.5";

fn of() -> PartitionName {
    partition(&dataset("shop.sales"), "data")
}

fn at() -> PartitionName {
    skytether_index::partition(&of(), "price")
}

async fn define(drive: &Drive) {
    let value = Definition::new(vec!["price".into()], vec!["id".into()]).encode().unwrap().into();
    drive.apply(vec![Op::Put { key: at().key().unwrap(), value, expect: Expect::Absent }]).await.unwrap();
}

/// When the index is neither waiting nor being built.
async fn settled(drive: &Drive) -> State {
    for _ in 0..1200 {
        let state = drive.indexes().await.unwrap().remove(0);
        if !matches!(state.phase, Phase::Waiting | Phase::Building) {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{:?}", drive.indexes().await);
}

/// Rows of the query, and how many indexes it used.
async fn asked(drive: &Arc<Drive>) -> (Vec<String>, usize) {
    let (rows, annotation) = ask(drive.as_ref(), SQL).await;
    (lines(&rows), annotation.indexes.len())
}

fn slices_of_index(store: &dyn SliceStore) -> usize {
    store.list(&format!("{};", at().key().unwrap()), None, 1000).unwrap().len()
}

fn disk(dir: &std::path::Path, capacity: Option<u64>) -> Arc<dyn SliceStore> {
    let create = Some(DriveIdentity { id: Uuid::from_u128(2), name: "drive-2".into() });
    Arc::new(DiskStore::open(dir, OpenOptions { create, capacity, ..OpenOptions::default() }).unwrap())
}

/// However full the disk is that the tests run on.
fn anything_goes() -> DriveOptions {
    DriveOptions { index_free: 0.0, ..DriveOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_the_space_of_an_index_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let used = {
        let store = disk(dir.path(), None);
        fill(store.as_ref());
        store.usage().unwrap().value_bytes
    };
    let capacity = used + (1 << 20);
    let store = disk(dir.path(), Some(capacity));
    let drive = drive_over(Arc::clone(&store), anything_goes());
    let (due, none) = asked(&drive).await;
    assert!(!due.is_empty() && none == 0);
    define(&drive).await;
    let state = settled(&drive).await;
    assert_eq!((state.phase, state.rows, state.stripes.0), (Phase::Ready, SALES as u64, state.stripes.1), "{state:?}");
    assert!(state.bytes > 0 && slices_of_index(store.as_ref()) >= 2);
    assert_eq!(asked(&drive).await, (due.clone(), 1));

    // There is no room for this beside the index.
    let room = capacity - store.usage().unwrap().value_bytes;
    let value = Bytes::from(vec![7; usize::try_from(room + state.bytes / 2).unwrap()]);
    let put = |key: &str| vec![Op::Put { key: Key::new(key).unwrap(), value: value.clone(), expect: Expect::Absent }];
    drive.apply(put("other")).await.unwrap();
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Dropped && state.bytes == 0 && state.why.is_some(), "{state:?}");
    assert_eq!((slices_of_index(store.as_ref()), asked(&drive).await), (0, (due.clone(), 0)));
    // What no index makes room for is refused.
    assert_eq!(drive.apply(put("another")).await.unwrap_err().kind(), skytether_common::Kind::Exhausted);
    drop((drive, store));

    // Opened again it has no more room than before, and says so.
    let store = disk(dir.path(), Some(capacity));
    let drive = drive_over(Arc::clone(&store), anything_goes());
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Dropped && slices_of_index(store.as_ref()) == 0, "{state:?}");
    assert_eq!(asked(&drive).await, (due, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_leave_free_what_they_must() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path(), Some(64 << 20));
    fill(store.as_ref());
    let drive = drive_over(Arc::clone(&store), DriveOptions { index_free: 1.0, ..DriveOptions::default() });
    define(&drive).await;
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Dropped && state.why.as_ref().is_some_and(|why| why.contains("free")), "{state:?}");
    assert_eq!(slices_of_index(store.as_ref()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_of_another_content_is_not_used_and_built_anew() {
    let store: Arc<dyn SliceStore> = Arc::new(MemoryStore::new());
    fill(store.as_ref());
    let drive = drive_over(Arc::clone(&store), DriveOptions::default());
    define(&drive).await;
    assert_eq!(settled(&drive).await.phase, Phase::Ready);
    drop(drive);
    // The same partition with its rows twice, which nobody should do.
    let old = store.list(of().key().unwrap().as_str(), None, 1000).unwrap();
    store.apply(old.into_iter().map(|entry| Op::Delete { key: entry.key, expect: Expect::Any }).collect()).unwrap();
    store_table(store.as_ref(), &of(), &concat_batches(&sales().schema(), &[sales(), sales()]).unwrap(), 8 << 10);
    let drive = drive_over(Arc::clone(&store), DriveOptions::default());
    let twice = asked(&drive).await.0;
    let state = settled(&drive).await;
    assert_eq!((state.phase, state.rows), (Phase::Ready, 2 * SALES as u64), "{state:?}");
    let (rows, used) = asked(&drive).await;
    assert_eq!((&rows, used), (&twice, 1));
    assert!(rows.chunks(2).all(|pair| pair[0] == pair[1]) && !rows.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_for_what_is_gone() {
    let store: Arc<dyn SliceStore> = Arc::new(MemoryStore::new());
    fill(store.as_ref());
    let before = store.usage().unwrap().keys;
    let drive = drive_over(Arc::clone(&store), DriveOptions::default());
    for pause in [0, 1, 3, 10, 30, 100] {
        define(&drive).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // As when a data set is replaced.
        drive.apply(vec![Op::Delete { key: at().key().unwrap(), expect: Expect::Any }]).await.unwrap();
        let left = store.list(&format!("{};", at().key().unwrap()), None, 1000).unwrap();
        drive.apply(left.into_iter().map(|entry| Op::Delete { key: entry.key, expect: Expect::Any }).collect()).await.unwrap();
        assert!(drive.indexes().await.unwrap().is_empty());
    }
    // Nor does it come back.
    define(&drive).await;
    assert_eq!(settled(&drive).await.phase, Phase::Ready);
    drive.apply(vec![Op::Delete { key: at().key().unwrap(), expect: Expect::Any }]).await.unwrap();
    assert_eq!(asked(&drive).await.1, 0);
    drop(drive);
    let left = store.list(&format!("{};", at().key().unwrap()), None, 1000).unwrap();
    assert_eq!(store.usage().unwrap().keys, before + left.len() as u64, "only what the last one was, which a host collects");
}
