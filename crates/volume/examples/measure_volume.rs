//! Measures a volume without a network: `measure_volume DIRECTORY [MIB [EXTENT_KIB]]`, and plain `pread` and
//! `pwrite` of a file in the same run, with the processor time of each call. The drive is a store on the disk,
//! whose calls run on threads for blocking work, as those of `skytether drive`.
//!
//! DIRECTORY must not exist; it is removed at the end.

use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{BoxFuture, try_join_all};
use skytether_common::{Error, Key, Result};
use skytether_device::{CseInfo, Storage, StorageOnly};
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions};
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use skytether_volume::{BlockDevice, Durability, Options, StorageBacking, Volumes};
use uuid::Uuid;

type Outcome<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIME: Duration = Duration::from_secs(3);

/// A store whose calls run on threads for blocking work.
#[derive(Debug)]
struct Threaded {
    info: StorageOnly,
    store: Arc<DiskStore>,
}

impl Threaded {
    fn run<T: Send + 'static>(&self, work: impl FnOnce(&DiskStore) -> Result<T> + Send + 'static) -> BoxFuture<'static, Result<T>> {
        let store = Arc::clone(&self.store);
        Box::pin(async move { tokio::task::spawn_blocking(move || work(&store)).await.map_err(|e| Error::internal("a thread ended").with_source(e))? })
    }
}

impl Storage for Threaded {
    fn info(&self) -> &CseInfo {
        self.info.info()
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        self.run(move |store| store.apply(batch))
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        let key = key.clone();
        self.run(move |store| store.get(&key))
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        let (key, ranges) = (key.clone(), ranges.to_vec());
        self.run(move |store| store.get_ranges_unverified(&key, &ranges))
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        self.store.get_range_in_memory(key, range)
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        let key = key.clone();
        self.run(move |store| store.stat(&key))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.run(move |store| store.list(&prefix, after.as_ref(), limit))
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        self.run(|store| store.usage())
    }
}

/// Calls per second and MB/s of `callers` that do `call` with their number and a counter, for some time.
async fn rate<F: Future<Output = Result<()>> + Send + 'static>(callers: u64, bytes: u64, call: impl Fn(u64) -> F + Send + Sync + 'static) -> Outcome<String> {
    let (call, next, begun, cpu) = (Arc::new(call), Arc::new(AtomicU64::new(0)), Instant::now(), cpu_seconds());
    let one = |_| {
        let (call, next) = (Arc::clone(&call), Arc::clone(&next));
        tokio::spawn(async move {
            let mut count = 0u64;
            while begun.elapsed() < TIME {
                call(next.fetch_add(1, Ordering::Relaxed)).await?;
                count += 1;
            }
            Ok::<_, Error>(count)
        })
    };
    let mut count = 0;
    for done in try_join_all((0..callers).map(one)).await? {
        count += done?;
    }
    let per_s = count as f64 / begun.elapsed().as_secs_f64();
    let cpu = (cpu_seconds() - cpu) / count as f64 * 1e6;
    Ok(format!("{per_s:9.0}/s {:7.0} MB/s {cpu:7.1} us of processor time each", per_s * bytes as f64 / 1e6))
}

/// Processor time of this process so far, by the clock of `/proc` (100 ticks a second); 0 where there is none.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// A number that follows from `n`, for random places.
fn mix(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 29;
    x.wrapping_mul(0x94d0_49bb_1331_11eb) >> 8
}

fn main() -> Outcome {
    skytether_common::memory::tune_allocator();
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: measure DIRECTORY [MIB [EXTENT_KIB]]")?;
    let size = arguments.next().map_or(Ok(1024), |mib| mib.parse::<u64>())? * MIB;
    let extent = arguments.next().map_or(Ok(256), |kib| kib.parse::<u32>())? << 10;
    let dir = Path::new(&dir);
    std::fs::create_dir(dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("{} MiB, extents of {} KiB", size / MIB, extent >> 10);
    runtime.block_on(plain(&dir.join("plain"), size))?;
    runtime.block_on(volume(dir, size, extent))?;
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

async fn plain(path: &Path, size: u64) -> Outcome {
    let file = Arc::new(File::options().read(true).write(true).create_new(true).open(path)?);
    let (small, large) = (Arc::new(vec![5u8; 4 << 10]), Arc::new(vec![6u8; 1 << 20]));
    let failed = |e| Error::io("use", "the plain file", e);
    let write = |data: Arc<Vec<u8>>, file: Arc<File>, place: fn(u64, u64) -> u64| {
        move |n| {
            let (data, file) = (Arc::clone(&data), Arc::clone(&file));
            async move { file.write_all_at(&data, place(n, size)).map_err(failed) }
        }
    };
    let read = |len: usize, file: Arc<File>, place: fn(u64, u64) -> u64| {
        move |n| {
            let file = Arc::clone(&file);
            async move {
                let mut to = vec![0; len];
                file.read_exact_at(&mut to, place(n, size)).map_err(failed)
            }
        }
    };
    println!("plain  1 MiB sequential write, 4 callers  {}", rate(4, MIB, write(large, Arc::clone(&file), sequential)).await?);
    file.set_len(size)?;
    println!("plain  1 MiB sequential read, 4 callers   {}", rate(4, MIB, read(1 << 20, Arc::clone(&file), sequential)).await?);
    println!("plain  4 KiB random write, 16 callers     {}", rate(16, 4 * KIB, write(small, Arc::clone(&file), random)).await?);
    println!("plain  4 KiB random read, 16 callers      {}", rate(16, 4 * KIB, read(4 << 10, file, random)).await?);
    std::fs::remove_file(path)?;
    Ok(())
}

fn sequential(n: u64, size: u64) -> u64 {
    n * MIB % size
}

fn random(n: u64, size: u64) -> u64 {
    mix(n) % (size / 4096) * 4096
}

async fn volume(dir: &Path, size: u64, extent: u32) -> Outcome {
    let identity = DriveIdentity { id: Uuid::from_u128(1), name: "drive-0".to_owned() };
    let store = Arc::new(DiskStore::open(&dir.join("drive"), OpenOptions { create: Some(identity.clone()), ..OpenOptions::default() })?);
    let storage = Threaded { info: StorageOnly::new(store.clone(), identity.id, "drive-0"), store };
    let options = Options { extent, ..Options::default() };
    let volumes = Volumes::open(Arc::new(StorageBacking::new(Arc::new(storage))?), &dir.join("volumes"), options).await?;
    let volume = volumes.ensure(&format!("a={size}").parse()?).await?;
    let small = Bytes::from(vec![7; 4 << 10]);
    let large = Bytes::from(vec![8; 1 << 20]);
    let write = |data: Bytes, place: fn(u64, u64) -> u64, durability| {
        let volume = Arc::clone(&volume);
        move |n| {
            let (volume, data) = (Arc::clone(&volume), data.clone());
            async move { volume.write(place(n, size), data, durability).await }
        }
    };
    let read = |len: u32, place: fn(u64, u64) -> u64| {
        let volume = Arc::clone(&volume);
        move |n| {
            let volume = Arc::clone(&volume);
            async move { volume.read(place(n, size), len).await.map(drop) }
        }
    };
    println!("volume 1 MiB sequential write, 4 callers  {}", rate(4, MIB, write(large, sequential, Durability::Cached)).await?);
    println!("volume 1 MiB sequential read, 4 callers   {}", rate(4, MIB, read(1 << 20, sequential)).await?);
    for callers in [1, 16] {
        println!("volume 4 KiB random write, {callers:2} callers     {}", rate(callers, 4 * KIB, write(small.clone(), random, Durability::Cached)).await?);
        println!("volume 4 KiB random read, {callers:2} callers      {}", rate(callers, 4 * KIB, read(4 << 10, random)).await?);
    }
    for callers in [1, 32] {
        println!("volume 4 KiB durable write, {callers:2} callers    {}", rate(callers, 4 * KIB, write(small.clone(), random, Durability::Durable)).await?);
    }
    let begun = Instant::now();
    volume.drain().await?;
    println!("merged what was left in {:.1} s", begun.elapsed().as_secs_f64());
    println!("merged 1 MiB sequential read, 4 callers   {}", rate(4, MIB, read(1 << 20, sequential)).await?);
    println!("merged 4 KiB random read, 16 callers      {}", rate(16, 4 * KIB, read(4 << 10, random)).await?);
    println!("merged 4 KiB random read again            {}", rate(16, 4 * KIB, read(4 << 10, random)).await?);
    let within: fn(u64, u64) -> u64 = |n, size| mix(n) % (size / 8 / 4096) * 4096;
    println!("merged 4 KiB random read of an eighth     {}", rate(16, 4 * KIB, read(4 << 10, within)).await?);
    println!("merged 4 KiB random read of it again      {}", rate(16, 4 * KIB, read(4 << 10, within)).await?);
    volumes.close().await?;
    Ok(())
}
