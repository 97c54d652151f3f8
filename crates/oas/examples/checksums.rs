//! Checksums of objects on volumes, as a scrub computes them: here, over the link, or in the drives. Figures 3 and 4 of
//! the Virtual Objects paper (`make figures`).
//!
//! | call | does |
//! |---|---|
//! | `checksums fill OBJECTS BYTES URL...` | writes random objects to each volume, one after the other |
//! | `checksums here\|there ALGORITHM OBJECTS BYTES WORKERS URL...` | the digest of each object of all volumes |
//!
//! `here` reads objects by READ(16) and computes in this process; `there` sends EXEC. Each volume has as many objects
//! under way as there are workers. It prints seconds, bytes, and a digest of all digests as JSON.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oas::remote::Remote;
use oas::request::Request;
use oas::scsi::{Command, Scsi};
use oas::url::Url;
use oas::{Digest, MINIO_KEY, Session, Settings};
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_offload::operations::digests::Algorithm;
use skytether_offload::{Descriptor, Extent, Object};
use tokio::runtime::Runtime;
use tokio::time::Instant;

const USAGE: &str = "usage: checksums fill OBJECTS BYTES URL... | here|there crc32c|highwayhash|md5 OBJECTS BYTES WORKERS URL...";

/// Bytes of one READ or WRITE, and of a logical block.
const PART: u64 = 1 << 20;
const BLOCK: u64 = 512;

const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.report());
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["fill", objects, bytes, urls @ ..] if !urls.is_empty() => fill(number(objects)?, number(bytes)?, urls),
        [place @ ("here" | "there"), algorithm, objects, bytes, workers, urls @ ..] if !urls.is_empty() => {
            let (digest, algorithm) = match *algorithm {
                "crc32c" => (Digest::Crc32c, Algorithm::Crc32c),
                "highwayhash" => (Digest::Highway256(MINIO_KEY), Algorithm::Highway256),
                "md5" => (Digest::Md5, Algorithm::Md5),
                other => return Err(Error::invalid(format!("{other:?} is no algorithm; {USAGE}"))),
            };
            let (objects, bytes) = (number(objects)?, number(bytes)?);
            let start = Instant::now();
            let mut all = Vec::new();
            let volumes = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    urls.iter().map(|url| scope.spawn(move || volume(url, *place == "there", digest, algorithm, objects, bytes, workers))).collect();
                threads.into_iter().map(|thread| thread.join().map_err(|_| Error::internal("a thread panicked"))?).collect::<Result<Vec<Vec<Vec<u8>>>>>()
            })?;
            volumes.into_iter().flatten().for_each(|digest| all.extend(digest));
            let seconds = start.elapsed().as_secs_f64();
            let mut hasher = Algorithm::Sha256.start([0; 32]);
            hasher.update(&all);
            let total = objects * bytes * urls.len() as u64;
            println!("{}", serde_json::json!({ "seconds": seconds, "bytes": total, "digest": oas::output::hexadecimal(&hasher.finish()) }));
            Ok(())
        }
        _ => Err(Error::invalid(USAGE)),
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("{text:?} is no number; {USAGE}")))
}

/// Runs `work` for each object, some at a time. Answers are in the objects' order.
fn each(objects: u64, workers: u64, work: impl Fn(u64) -> Result<Vec<u8>> + Sync) -> Result<Vec<Vec<u8>>> {
    let next = AtomicU64::new(0);
    let found: Mutex<Vec<(u64, Result<Vec<u8>>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let object = next.fetch_add(1, Ordering::Relaxed);
                    if object >= objects {
                        return;
                    }
                    let done = work(object);
                    found.lock().push((object, done));
                }
            });
        }
    });
    let mut found = found.into_inner();
    found.sort_by_key(|(object, _)| *object);
    found.into_iter().map(|(_, done)| done).collect()
}

fn remote(url: &str) -> Result<Remote> {
    match url.parse()? {
        Url::Iscsi(url) => Ok(Remote::new(url)),
        Url::Node(_) => Err(Error::invalid(format!("{url} is no iscsi:// URL"))),
    }
}

/// READ(16) or WRITE(16) of a part.
fn command(opcode: u8, at: u64, out: Bytes, most_in: u64) -> Command {
    let blocks = (out.len() as u64).max(most_in) / BLOCK;
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&(at / BLOCK).to_be_bytes());
    cdb[10..14].copy_from_slice(&(blocks as u32).to_be_bytes());
    Command { cdb, length: 16, out, most_in: most_in as u32 }
}

async fn execute(remote: &Remote, command: Command) -> Result<Bytes> {
    // The first commands of a session may find a unit attention.
    for _ in 0..8 {
        let reply = remote.execute(command.clone(), Instant::now() + DEADLINE).await?;
        match reply.status {
            0 => return Ok(reply.data),
            2 if reply.sense.get(2).is_some_and(|key| key & 0x0F == 6) => {}
            status => return Err(Error::unavailable(format!("{}: status {status:#04x}, sense {:02x?}", remote.name(), &reply.sense[..]))),
        }
    }
    Err(Error::unavailable(format!("{}: only unit attentions", remote.name())))
}

fn runtime() -> Result<Runtime> {
    Runtime::new().map_err(|cause| Error::unavailable("threads can't be started").with_source(cause))
}

fn fill(objects: u64, bytes: u64, urls: &[&str]) -> Result<()> {
    let runtime = runtime()?;
    for (volume, url) in urls.iter().enumerate() {
        let remote = remote(url)?;
        let mut random = fastrand::Rng::with_seed(volume as u64);
        for at in (0..objects * bytes).step_by(PART as usize) {
            let mut part = vec![0; PART.min(objects * bytes - at) as usize];
            random.fill(&mut part);
            runtime.block_on(execute(&remote, command(0x8A, at, part.into(), 0)))?;
        }
        // SYNCHRONIZE CACHE (10): what is measured later is no writing.
        let mut cdb = [0; 16];
        cdb[0] = 0x35;
        runtime.block_on(execute(&remote, Command { cdb, length: 10, out: Bytes::new(), most_in: 0 }))?;
    }
    Ok(())
}

fn volume(url: &str, there: bool, digest: Digest, algorithm: Algorithm, objects: u64, bytes: u64, workers: &str) -> Result<Vec<Vec<u8>>> {
    let workers = number(workers)?;
    if there {
        let session = Session::open(url, Settings { here: false, time: DEADLINE, ..Settings::default() })?;
        let request = Request::digest(digest);
        return each(objects, workers, |object| {
            let input = Object::new(bytes, vec![Extent::new(object * bytes, bytes)]);
            let descriptor = Descriptor { opcode: request.opcode(), arguments: request.arguments().to_vec(), inputs: vec![input], ..Descriptor::default() };
            let item = session.exec(&descriptor)?.items.into_iter().next().ok_or_else(|| Error::corrupt("an answer without an item"))?;
            item.done()?;
            Ok(item.data.to_vec())
        });
    }
    let (remote, runtime) = (Arc::new(remote(url)?), runtime()?);
    each(objects, workers, |object| {
        let mut hasher = algorithm.start(MINIO_KEY);
        for at in (0..bytes).step_by(PART as usize) {
            let most = PART.min(bytes - at);
            hasher.update(&runtime.block_on(execute(&remote, command(0x88, object * bytes + at, Bytes::new(), most)))?);
        }
        Ok(hasher.finish())
    })
}
