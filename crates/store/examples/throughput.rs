//! How fast the disk store writes and reads: `cargo run -p skytether-store --example throughput`.
#![allow(clippy::unwrap_used, reason = "a measurement ends where something fails")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{bytes, key, options, put};
use skytether_store::SliceStore;
use skytether_store::disk::{DiskStore, Sync};

fn main() {
    const VALUE: usize = 1 << 20;
    for sync in [Sync::Full, Sync::None] {
        let dir = tempfile::tempdir().unwrap();
        let store = DiskStore::open(dir.path(), options(sync)).unwrap();
        println!("{sync:?}: an empty drive takes {} bytes", store.usage().unwrap().stored_bytes);
        for threads in [1u64, 2, 4] {
            let values: Vec<_> = (0..8).map(|i| bytes(i + threads * 8, VALUE)).collect();
            let batches = 24;
            let start = Instant::now();
            std::thread::scope(|scope| {
                for t in 0..threads {
                    let (store, values) = (&store, &values);
                    scope.spawn(move || {
                        for b in 0..batches / threads {
                            store.apply(values.iter().enumerate().map(|(i, v)| put(&format!("{threads}/{t}/{b}/{i}"), v.clone())).collect()).unwrap();
                        }
                    });
                }
            });
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "{sync:?}: {threads} writers: {:.0} MB/s, {:.1} ms per batch of 8",
                (batches * 8) as f64 * VALUE as f64 / seconds / 1e6,
                seconds * 1e3 / batches as f64
            );
        }
        let n = 1000u64;
        let start = Instant::now();
        for i in 0..n {
            store.apply(vec![put("root", i.to_le_bytes().to_vec())]).unwrap();
            if start.elapsed().as_secs() > 3 {
                println!("stopped after {i}");
                break;
            }
        }
        println!("{sync:?}: small batches: {:.2} ms each", start.elapsed().as_secs_f64() * 1e3 / n as f64);
        let keys: Vec<_> = store.list("1/", None, 1000).unwrap();
        let start = Instant::now();
        for entry in &keys {
            std::hint::black_box(store.get(&entry.key).unwrap());
        }
        println!("{sync:?}: get: {:.0} us per 1 MiB value (page cache), {} values", start.elapsed().as_secs_f64() * 1e6 / keys.len() as f64, keys.len());
        let start = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(store.stat(&key("1/0/0/0")).unwrap());
        }
        println!("{sync:?}: stat: {:.1} us", start.elapsed().as_secs_f64() * 1e3);
        drop(store);
        let start = Instant::now();
        let store = DiskStore::open(dir.path(), options(sync)).unwrap();
        println!("{sync:?}: reopening {} keys: {:.1} ms; usage {:?}", store.usage().unwrap().keys, start.elapsed().as_secs_f64() * 1e3, store.usage().unwrap());
    }
}
