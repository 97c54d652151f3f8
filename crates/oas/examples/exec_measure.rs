//! Measures EXEC over an iSCSI connection, and prints JSON. `benches/block.py` runs it.
//!
//! ```text
//! exec_measure fill MIB URL...         writes the first MIB of each unit, durably
//! exec_measure latency COUNT URL       EXEC of a CRC-32C of 4 KiB, and READ of the same 4 KiB, in turns
//! exec_measure sums there MIB URL...   CRC-32C of the first MIB of each unit, by EXEC, all units at the same time
//! exec_measure sums here MIB URL...    the same bytes by READ, the CRC-32C in this process
//! ```
//!
//! All commands to a unit share one connection, and those to all units one thread of this process.
#![allow(clippy::print_stdout, reason = "the figures are its output")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{BoxFuture, try_join_all};
use futures::{StreamExt, TryStreamExt, stream};
use oas::path::{Caller, Path};
use oas::remote::Remote;
use oas::scsi::{Command, Reply, Scsi, ScsiPath};
use oas::url::Url;
use skytether_common::{Error, Result};
use skytether_offload::codes::opcode;
use skytether_offload::{Descriptor, ExecResult, Extent, Object};
use tokio::time::Instant as Deadline;

const BLOCK: u64 = 4096;

/// Bytes of one READ of `sums here`, and of one WRITE, and how many are under way, as initiators of the kernel read a
/// large file.
const TRANSFER: u64 = 1 << 20;
const TRANSFERS: usize = 4;

/// Bytes of one EXEC of `sums there`, and how many are under way.
const PART: u64 = 16 << 20;
const PARTS: usize = 2;

/// Blocks that the requests of `latency` take turns at.
const PLACES: u64 = 64;

/// Pairs before those that count.
const FIRST: usize = 200;

const HOUR: Duration = Duration::from_secs(3600);

/// A unit, by EXEC and by other commands over one connection.
#[derive(Debug, Clone)]
struct Unit(Arc<Remote>);

impl Scsi for Unit {
    fn execute(&self, command: Command, deadline: Deadline) -> BoxFuture<'_, Result<Reply>> {
        self.0.execute(command, deadline)
    }

    fn most_data(&self) -> usize {
        self.0.most_data()
    }

    fn name(&self) -> String {
        self.0.name()
    }
}

impl Unit {
    /// Connects. What waits for a new session (unit attention) is taken by the first command.
    async fn connect(url: &str) -> Result<(Self, ScsiPath<Self>)> {
        let Url::Iscsi(url) = url.parse()? else { return Err(Error::invalid(format!("{url} is no iSCSI URL"))) };
        let unit = Self(Arc::new(Remote::new(url)));
        let path = ScsiPath::new(unit.clone());
        path.capabilities(Caller { deadline: Deadline::now() + HOUR }).await?;
        sum(&path, 0, BLOCK).await?;
        Ok((unit, path))
    }

    /// A command of 16 bytes for `len` bytes at `at`, both whole logical blocks.
    async fn command(&self, code: u8, (at, len): (u64, u64), out: Bytes, most_in: u64) -> Result<Bytes> {
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&(at / 512).to_be_bytes());
        cdb[10..14].copy_from_slice(&((len / 512) as u32).to_be_bytes());
        let command = Command { cdb, length: 16, out, most_in: most_in as u32 };
        let reply = self.execute(command, Deadline::now() + HOUR).await?;
        if reply.status != 0 || reply.data.len() as u64 != most_in {
            return Err(Error::unavailable(format!("{}: command {code:#04x} for {len} bytes at {at} ended with status {}", self.name(), reply.status)));
        }
        Ok(reply.data)
    }

    async fn read(&self, at: u64, len: u64) -> Result<Bytes> {
        self.command(0x88, (at, len), Bytes::new(), len).await
    }

    async fn write(&self, at: u64, data: Bytes) -> Result<Bytes> {
        self.command(0x8a, (at, data.len() as u64), data, 0).await
    }

    /// SYNCHRONIZE CACHE of all blocks.
    async fn flush(&self) -> Result<Bytes> {
        self.command(0x91, (0, 0), Bytes::new(), 0).await
    }
}

/// The CRC-32C of some bytes, computed by the target.
async fn sum(path: &ScsiPath<Unit>, at: u64, len: u64) -> Result<u32> {
    let descriptor = Descriptor::new(opcode::CRC32C).input(Object::new(len, vec![Extent::new(at, len)]));
    let result = path.exec(descriptor.encode()?, 4096, Caller { deadline: Deadline::now() + HOUR }).await?;
    let result = ExecResult::decode(&result)?;
    let item = result.done()?.first().ok_or_else(|| Error::corrupt("a result of EXEC has no item"))?;
    let digest = item.done()?.data.first_chunk::<4>().ok_or_else(|| Error::corrupt("a CRC-32C has other than 4 bytes"))?;
    Ok(u32::from_be_bytes(*digest))
}

/// Median and ninety-ninth percentile.
fn percentiles(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1))).copied().unwrap_or(f64::NAN);
    (at(50), at(99))
}

async fn latency(count: usize, url: &str) -> Result<serde_json::Value> {
    let (unit, path) = Unit::connect(url).await?;
    let (mut reads, mut execs, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..FIRST + count {
        let at = n as u64 % PLACES * BLOCK;
        let begun = Instant::now();
        let bytes = unit.read(at, BLOCK).await?;
        let read = begun.elapsed().as_secs_f64() * 1e6;
        let begun = Instant::now();
        let crc = sum(&path, at, BLOCK).await?;
        let exec = begun.elapsed().as_secs_f64() * 1e6;
        if crc != crc32c::crc32c(&bytes) {
            return Err(Error::corrupt(format!("EXEC says {crc:08x} of the bytes at {at}, which is wrong")));
        }
        if n >= FIRST {
            reads.push(read);
            execs.push(exec);
            more.push(exec - read);
        }
    }
    let ((read_us, read_99_us), (exec_us, exec_99_us), (more_us, more_99_us)) = (percentiles(reads), percentiles(execs), percentiles(more));
    Ok(serde_json::json!({
        "count": count, "read_us": read_us, "read_99_us": read_99_us, "exec_us": exec_us, "exec_99_us": exec_99_us,
        "more_us": more_us, "more_99_us": more_99_us,
    }))
}

/// Writes bytes that no compression or deduplication makes fewer.
async fn fill(bytes: u64, urls: &[String]) -> Result<serde_json::Value> {
    for (seed, url) in urls.iter().enumerate() {
        let (unit, mut random) = (Unit::connect(url).await?.0, fastrand::Rng::with_seed(seed as u64));
        let writes = (0..bytes).step_by(TRANSFER as usize).map(|at| {
            let mut data = vec![0; TRANSFER.min(bytes - at) as usize];
            random.fill(&mut data);
            unit.write(at, data.into())
        });
        stream::iter(writes).buffered(TRANSFERS).try_collect::<Vec<_>>().await?;
        unit.flush().await?;
    }
    Ok(serde_json::json!({ "bytes": bytes * urls.len() as u64 }))
}

/// The CRC-32C of each part of a unit.
async fn parts(there: bool, bytes: u64, (unit, path): &(Unit, ScsiPath<Unit>)) -> Result<Vec<u32>> {
    let starts = (0..bytes).step_by(PART as usize);
    if there {
        let sums = starts.map(|at| sum(path, at, PART.min(bytes - at)));
        return stream::iter(sums).buffered(PARTS).try_collect().await;
    }
    let mut sums: Vec<u32> = vec![0; starts.count()];
    let reads = stream::iter((0..bytes).step_by(TRANSFER as usize).map(|at| unit.read(at, TRANSFER.min(bytes - at))));
    let mut reads = std::pin::pin!(reads.buffered(TRANSFERS).enumerate());
    while let Some((n, read)) = reads.next().await {
        if let Some(sum) = sums.get_mut(n * TRANSFER as usize / PART as usize) {
            *sum = crc32c::crc32c_append(*sum, &read?);
        }
    }
    Ok(sums)
}

async fn sums(there: bool, bytes: u64, urls: &[String]) -> Result<serde_json::Value> {
    let units = try_join_all(urls.iter().map(|url| Unit::connect(url))).await?;
    let begun = Instant::now();
    let found = try_join_all(units.iter().map(|unit| parts(there, bytes, unit))).await?;
    let (seconds, bytes) = (begun.elapsed().as_secs_f64(), bytes * urls.len() as u64);
    Ok(serde_json::json!({ "seconds": seconds, "bytes": bytes, "mb_per_s": bytes as f64 / seconds / 1e6, "sums": found }))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = || Error::invalid("usage: exec_measure fill MIB URL... | latency COUNT URL | sums there|here MIB URL...");
    let number = |word: &str| word.parse::<u64>().map_err(|cause| usage().with_source(cause));
    let told = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fill", mib, _, ..] => fill(number(mib)? << 20, &words[2..]).await?,
        ["latency", count, url] => latency(number(count)? as usize, url).await?,
        ["sums", way @ ("there" | "here"), mib, _, ..] => sums(way == "there", number(mib)? << 20, &words[3..]).await?,
        _ => return Err(usage()),
    };
    println!("{told}");
    Ok(())
}
