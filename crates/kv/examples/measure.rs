//! Measures a store: `measure DIRECTORY [MIB]`. Puts and gets of 1 KiB and of 1 MiB, and the memory that they take.
//!
//! DIRECTORY must not exist; it is removed at the end.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use skytether_common::{Error, Result};
use skytether_kv::{Change, Durability, KeyValues, Options};

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn main() -> Outcome {
    // As the programs of drives do.
    skytether_common::memory::tune_allocator();
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: measure DIRECTORY [MIB]")?;
    let mib: u64 = arguments.next().map_or(Ok(2048), |mib| mib.parse())?;
    let dir = Path::new(&dir);
    std::fs::create_dir(dir)?;
    let disk = append_and_flush(&dir.join("probe"))?;
    println!("append of 1 KiB and fdatasync: {disk:.0}/s");
    let store_dir = dir.join("store");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let store = std::sync::Arc::new(KeyValues::open(&store_dir, &Options::default())?);
    for (durability, callers, name) in
        [(Durability::Through, 1, "Through"), (Durability::Through, 32, "Through"), (Durability::Back, 1, "Back"), (Durability::Back, 32, "Back")]
    {
        let rate = runtime.block_on(puts(&store, callers, durability, Duration::from_secs(3)))?;
        println!("puts of 1 KiB, {name}, {callers} callers: {rate:.0}/s ({:.0}% of the disk's)", rate / disk * 100.0);
    }
    let pause = pauses(&runtime, &store, mib * MIB as u64 / KIB as u64)?;
    println!("{mib} MiB of puts of 1 KiB, Back, 32 callers: {:.0}/s, the longest took {:.0} ms; {}", pause.0, pause.1, memory());
    let count = mib * MIB as u64 / KIB as u64;
    for callers in [1, 2] {
        println!("gets of 1 KiB of {count} keys at random, {callers} callers: {:.0}/s; {}", gets(&store, callers, count, key)?, memory());
    }
    println!("gets of 1 KiB of 10000 keys at random, 1 caller: {:.0}/s", gets(&store, 1, 10_000, key)?);
    let start = Instant::now();
    let large = (mib / 2).max(64);
    for at in 0..large {
        runtime.block_on(store.write(vec![Change::put(large_key(at), content(at, MIB))], Durability::Back))?;
    }
    runtime.block_on(store.flush())?;
    println!("{large} puts of 1 MiB, Back, and a flush: {:.0}/s; {}", large as f64 / start.elapsed().as_secs_f64(), memory());
    for callers in [1, 2] {
        println!("gets of 1 MiB of {large} keys at random, {callers} callers: {:.0}/s; {}", gets(&store, callers, large, large_key)?, memory());
    }
    println!("gets of 1 MiB of 100 keys at random, 1 caller: {:.0}/s; {}", gets(&store, 1, large.min(100), large_key)?, memory());
    let start = Instant::now();
    store.compact()?;
    println!("compaction: {:.1} s; {}; {:?}", start.elapsed().as_secs_f64(), memory(), store.usage()?);
    drop(store);
    let start = Instant::now();
    let store = KeyValues::open(&store_dir, &Options::default())?;
    println!("opening: {:.0} ms; {}", start.elapsed().as_secs_f64() * 1000.0, memory());
    let start = Instant::now();
    runtime.block_on(store.erase(false))?;
    println!("erasure: {:.0} ms", start.elapsed().as_secs_f64() * 1000.0);
    let start = Instant::now();
    runtime.block_on(store.erase(false))?;
    println!("erasure of an empty store: {:.0} ms", start.elapsed().as_secs_f64() * 1000.0);
    drop(store);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

/// Appends and flushes per second.
fn append_and_flush(path: &Path) -> std::io::Result<f64> {
    let mut file = std::fs::File::create(path)?;
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        file.write_all(&[1; KIB])?;
        file.sync_data()?;
        count += 1;
    }
    std::fs::remove_file(path)?;
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

fn key(at: u64) -> Vec<u8> {
    // In no order: by the constant of a Fibonacci hash.
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

fn large_key(at: u64) -> Vec<u8> {
    format!("large {at}").into_bytes()
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut value = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut value);
    value
}

async fn puts(store: &std::sync::Arc<KeyValues>, callers: u64, durability: Durability, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let mut tasks = Vec::new();
    for caller in 0..callers {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let value = bytes::Bytes::from(content(caller, KIB));
            let mut done = 0u64;
            while start.elapsed() < time {
                store.write(vec![Change::put(key((caller << 32) | (done % 100_000)), value.clone())], durability).await?;
                done += 1;
            }
            Ok::<u64, Error>(done)
        }));
    }
    let mut done = 0;
    for task in tasks {
        done += task.await.map_err(|e| Error::internal("a task ended").with_source(e))??;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Puts per second, and the milliseconds of the longest one.
fn pauses(runtime: &tokio::runtime::Runtime, store: &std::sync::Arc<KeyValues>, count: u64) -> Result<(f64, f64)> {
    let start = Instant::now();
    let next = std::sync::Arc::new(AtomicU64::new(0));
    let worst = std::sync::Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..32 {
            let (store, next, worst) = (store.clone(), next.clone(), worst.clone());
            tasks.push(tokio::spawn(async move {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return Ok::<(), Error>(());
                    }
                    let begin = Instant::now();
                    store.write(vec![Change::put(key(at), content(at, KIB))], Durability::Back).await?;
                    worst.fetch_max(begin.elapsed().as_micros() as u64, Ordering::Relaxed);
                }
            }));
        }
        for task in tasks {
            task.await.map_err(|e| Error::internal("a task ended").with_source(e))??;
        }
        store.flush().await
    })?;
    Ok((count as f64 / start.elapsed().as_secs_f64(), worst.load(Ordering::Relaxed) as f64 / 1000.0))
}

fn gets(store: &KeyValues, callers: u64, count: u64, key: fn(u64) -> Vec<u8>) -> Result<f64> {
    let start = Instant::now();
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|caller| {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(caller);
                    let mut done = 0u64;
                    while start.elapsed() < Duration::from_secs(3) {
                        let at = random.u64(0..count);
                        let found = store.get(&key(at))?.ok_or_else(|| Error::internal(format!("key {at} is lost")))?;
                        assert!(!found.value.is_empty());
                        done += 1;
                    }
                    Ok::<u64, Error>(done)
                })
            })
            .collect();
        let mut done = 0;
        for thread in threads {
            done += thread.join().map_err(|_| Error::internal("a thread ended"))??;
        }
        Ok::<u64, Error>(done)
    })?;
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Peak and present memory of this process.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("?", str::trim).to_owned();
    format!("memory {}, at most {}", of("VmRSS:"), of("VmHWM:"))
}
