//! Many callers at once.

use std::ops::Bound::Unbounded;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skytether_common::{Error, Kind};
use skytether_kv::{Change, Durability, KeyValues, Options, Why};

use crate::util::{bytes, open, poll_once, quick, wait, write};

/// 32 callers count in one key, each by compare-and-set: no count is lost, and who is refused reads a newer one. The
/// callers carry out some of their writes, and the thread the others.
#[test]
fn counting_by_versions_loses_no_count() {
    const EACH: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    for store in [KeyValues::in_memory(), open(dir.path())] {
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    let mut done = 0;
                    while done < EACH {
                        let record = store.get(b"count").unwrap();
                        let (version, count) =
                            record.map_or((Bytes::new(), 0), |record| (record.meta.version, u64::from_be_bytes(record.value[..].try_into().unwrap())));
                        let next = (count + 1).to_be_bytes().to_vec();
                        let change = Change::put("count", next.clone()).expecting(version).giving(next);
                        let durability = if done % 3 == 0 { Durability::Through } else { Durability::Back };
                        match wait(store.write(vec![change], durability)) {
                            Ok(()) => done += 1,
                            Err(failed) => {
                                assert!(matches!(failed.why, Why::VersionMismatch), "{failed}");
                                // The version that it was refused for is visible already.
                                let seen = store.get(b"count").unwrap().unwrap().value;
                                assert!(u64::from_be_bytes(seen[..].try_into().unwrap()) > count);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(store.get(b"count").unwrap().unwrap().value[..], (32 * EACH).to_be_bytes());
        assert_eq!(store.usage().unwrap().keys, 1);
    }
}

/// A caller begins a write that waits for the disk, and then one that does not, while others write: the last one stays.
#[test]
fn writes_of_both_kinds_keep_the_order_in_which_they_began() {
    let dir = tempfile::tempdir().unwrap();
    for store in [KeyValues::in_memory(), open(dir.path())] {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for other in 0..3u8 {
                let (store, stop) = (&store, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        wait(store.write(vec![Change::put(vec![other], vec![other])], Durability::Back)).unwrap();
                    }
                });
            }
            for number in 0..400u64 {
                let begin = |number: u64, durability| wait(store.begin(vec![Change::put("k", number.to_be_bytes().to_vec())], durability)).unwrap();
                let earlier = begin(2 * number, Durability::Through);
                let later = begin(2 * number + 1, Durability::Back);
                // The later one is polled first: its caller may carry out what waits.
                wait(later).unwrap();
                wait(earlier).unwrap();
                let last = u64::from_be_bytes(store.get(b"k").unwrap().unwrap().value[..].try_into().unwrap());
                if last != 2 * number + 1 {
                    stop.store(true, Ordering::Relaxed);
                }
                assert_eq!(last, 2 * number + 1);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Callers that give up leave their batches in the queue: the thread carries them out, in their order.
#[test]
fn batches_of_callers_that_give_up_are_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    for store in [KeyValues::in_memory(), open(dir.path())] {
        for number in 0..100u64 {
            // Neighbours have the same key: their order shows.
            let key = (number / 10).to_be_bytes().to_vec();
            let begun = wait(store.begin(vec![Change::put(key, number.to_be_bytes().to_vec())], Durability::Back)).unwrap();
            // Some are polled once before.
            if number % 2 == 0 { drop(begun) } else { poll_once(begun) }
        }
        wait(store.flush()).unwrap();
        for tens in 0..10u64 {
            assert_eq!(store.get(&tens.to_be_bytes()).unwrap().unwrap().value[..], (10 * tens + 9).to_be_bytes());
        }
    }
}

/// A batch puts the same number into four keys; readers never see two numbers in one view, and never an older one.
#[test]
fn batch_is_seen_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    for store in [KeyValues::in_memory(), KeyValues::open(dir.path(), &Options { memtable_bytes: 100_000, ..quick() }).unwrap()] {
        let stop = AtomicBool::new(false);
        let names = [b"a", b"b", b"c", b"d"];
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = [0u64; 4];
                    while !stop.load(Ordering::Relaxed) {
                        // In the order in which keys are, so a later one is never older.
                        let mut newest = 0;
                        for (name, last) in names.iter().zip(&mut last) {
                            let Some(record) = store.get(*name).unwrap() else { continue };
                            let number = u64::from_be_bytes(record.value[..8].try_into().unwrap());
                            assert!(number >= *last && number >= newest, "{number} after {last} and {newest}");
                            (*last, newest) = (number, number);
                        }
                        let keys = store.keys(Unbounded, Unbounded, false, 10).unwrap();
                        assert!(keys.len() == 4 || keys.is_empty(), "{keys:?}");
                    }
                });
            }
            for number in 1..400u64 {
                // Small and large ones in turn.
                let mut content = bytes(number, if number % 3 == 0 { 20_000 } else { 100 });
                content[..8].copy_from_slice(&number.to_be_bytes());
                let content = Bytes::from(content);
                write(&store, names.iter().map(|name| Change::put(&name[..], content.clone())).collect()).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// More bytes wait than the queue takes: callers wait their turn, and all are carried out.
#[test]
fn more_bytes_than_the_queue_takes_are_all_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(KeyValues::open(dir.path(), &Options { queue_bytes: 100_000, ..quick() }).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for at in 0..200u8 {
            let store = store.clone();
            tasks.push(tokio::spawn(async move { store.write(vec![Change::put(vec![at], bytes(u64::from(at), 70_000))], Durability::Back).await }));
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
    for at in 0..200u8 {
        assert_eq!(store.get(&[at]).unwrap().unwrap().value, bytes(u64::from(at), 70_000));
    }
}

/// A caller that goes away does not harm others, and its bytes leave the queue.
#[test]
fn dropped_writes_leave_the_queue() {
    let dir = tempfile::tempdir().unwrap();
    let store = KeyValues::open(dir.path(), &Options { queue_bytes: 100_000, ..quick() }).unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for at in 0..100u8 {
        let mut future = std::pin::pin!(store.write(vec![Change::put(vec![at], bytes(1, 90_000))], Durability::Back));
        let _ = future.as_mut().poll(&mut context);
    }
    write(&store, vec![Change::put("last", "1")]).unwrap();
    assert!(store.get(b"last").unwrap().is_some());
}

#[test]
fn reads_and_scans_go_on_during_erasures() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Some(record) = store.get(b"k").unwrap() {
                    assert_eq!(record.value, bytes(1, 30_000));
                }
                let verified = store.verify(Unbounded, Unbounded, false, usize::MAX, None).unwrap();
                assert!(verified.damaged.is_empty());
            }
        });
        for _ in 0..5 {
            write(&store, vec![Change::put("k", bytes(1, 30_000))]).unwrap();
            wait(store.erase(false)).unwrap();
            assert_eq!(store.usage().unwrap().keys, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn refused_batches_do_not_stop_those_behind_them() {
    let store = KeyValues::in_memory();
    std::thread::scope(|scope| {
        for caller in 0..8u64 {
            let store = &store;
            scope.spawn(move || {
                for at in 0..50u64 {
                    let wrong = write(store, vec![Change::delete("absent").expecting("")]).unwrap_err();
                    assert_eq!(Error::from(wrong).kind(), Kind::NotFound);
                    write(store, vec![Change::put((caller << 8 | at).to_be_bytes().to_vec(), "v")]).unwrap();
                }
            });
        }
    });
    assert_eq!(store.usage().unwrap().keys, 400);
}
