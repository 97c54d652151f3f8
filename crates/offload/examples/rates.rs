//! Measures what operations reach over a device in memory: MB/s of each, and the time of a small request.
//!
//! ```sh
//! cargo run --profile benchmark -p skytether-offload --example rates [FILTER]
//! ```
//!
//! With ripgrep installed, its rate on the same bytes in a file in memory (`/dev/shm`) is next to that of searches.
//! `rates --searches MIB ROUNDS` measures searches alone, in turns with ripgrep, and prints JSON: `benches/block.py`
//! runs it.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use skytether_common::{Error, Result};
use skytether_offload::codes::descriptor_flag::TO_OUTPUT;
use skytether_offload::codes::{mode, opcode, tag};
use skytether_offload::operations::digests::Algorithm;
use skytether_offload::{Descriptor, ExecResult, Extent, Object, Offload, Options, operations};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Durability, Exec};
use tokio_util::sync::CancellationToken;

const LENGTH: u64 = 256 << 20;
const ROUNDS: usize = 5;

/// Text of words and lines, as logs have it.
fn text(len: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(1);
    let words: Vec<String> = (0..5000).map(|_| (0..rng.usize(2..12)).map(|_| rng.lowercase()).collect()).collect();
    let mut bytes = Vec::with_capacity(len + 100);
    while bytes.len() < len {
        for _ in 0..rng.usize(4..16) {
            bytes.extend_from_slice(words[rng.usize(..words.len())].as_bytes());
            bytes.push(b' ');
        }
        if rng.u16(..2000) == 0 {
            bytes.extend_from_slice(b"Sherlock Holmes");
        }
        bytes.push(b'\n');
    }
    bytes.truncate(len);
    bytes
}

struct Bench {
    exec: Offload,
    device: Arc<MemoryDevice>,
    filter: String,
}

impl Bench {
    async fn run(&self, ask: &Descriptor) -> Result<ExecResult> {
        let result = ExecResult::decode(&self.exec.run(self.device.clone(), ask.encode()?, CancellationToken::new()).await?)?;
        for item in result.done()? {
            item.done()?;
        }
        Ok(result)
    }

    /// The best of some rounds, in MB/s of input.
    async fn rate(&self, name: &str, ask: &Descriptor) -> Result<Option<(f64, ExecResult)>> {
        if !name.contains(&self.filter) {
            return Ok(None);
        }
        let bytes = ask.inputs.iter().map(Object::seen).sum::<u64>() as f64;
        let (mut best, mut last) = (Duration::MAX, ExecResult::default());
        for _ in 0..ROUNDS {
            let began = Instant::now();
            last = self.run(ask).await?;
            best = best.min(began.elapsed());
        }
        let rate = bytes / best.as_secs_f64() / 1e6;
        println!("{name:<34} {rate:>8.0} MB/s");
        Ok(Some((rate, last)))
    }
}

/// Seconds of a program that prints a count, and the count; `None` where it is not installed.
fn program(command: &str, arguments: &[&str], file: &str) -> Option<(Duration, u64)> {
    let began = Instant::now();
    let child = Command::new(command).args(arguments).arg(file).env("LC_ALL", "C.UTF-8").stdin(Stdio::null()).output().ok()?;
    let took = began.elapsed();
    Some((took, String::from_utf8_lossy(&child.stdout).trim().parse().unwrap_or_default()))
}

fn mb_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64() / 1e6
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = match arguments.as_slice() {
        [option, mib, rounds] if option == "--searches" => {
            let number = |text: &str| text.parse::<u64>().map_err(|cause| Error::invalid("usage: rates --searches MIB ROUNDS").with_source(cause));
            return in_turns(number(mib)? << 20, number(rounds)?).await;
        }
        [filter] => filter.clone(),
        _ => String::new(),
    };
    let exec = Offload::new(operations::registry(None)?, Options::default())?;
    let bytes = text(LENGTH as usize);
    let device = holding(&bytes, 4 * LENGTH).await?;
    let bench = Bench { exec, device, filter };
    let object = Object::new(LENGTH, vec![Extent::new(0, LENGTH)]);

    let copy = Instant::now();
    for at in (0..LENGTH).step_by(512 << 10) {
        bench.device.read(at, 512 << 10).await?;
    }
    println!("{:<34} {:>8.0} MB/s", "the device alone, one read a time", LENGTH as f64 / copy.elapsed().as_secs_f64() / 1e6);

    for algorithm in Algorithm::ALL {
        let mut ask = Descriptor::new(algorithm.opcode()).input(object.clone());
        if algorithm == Algorithm::Highway256 {
            ask = ask.bytes(tag::KEY, vec![7; 32]);
        }
        bench.rate(algorithm.name(), &ask).await?;
    }

    searches(&bench, &object, &bytes).await?;

    for (name, locale) in [("word count, C", 0), ("word count, UTF-8", 1)] {
        bench.rate(name, &Descriptor::new(opcode::WORD_COUNT).number(tag::LOCALE, locale).input(object.clone())).await?;
    }

    let sort = Descriptor::new(opcode::SORT_LINES).input(object.clone()).with(TO_OUTPUT).output(room(1)).output(room(2));
    bench.rate("sort of lines, with scratch", &sort).await?;
    let records = Descriptor::new(opcode::SORT_RECORDS).number(tag::RECORD, 128).number(tag::KEY_LENGTH, 16).input(object.clone());
    bench.rate("sort of records, with scratch", &records.with(TO_OUTPUT).output(room(1)).output(room(2))).await?;

    for (name, compress, decompress) in [("zstd", opcode::COMPRESS_ZSTD, opcode::DECOMPRESS_ZSTD), ("lz4", opcode::COMPRESS_LZ4, opcode::DECOMPRESS_LZ4)] {
        let ask = Descriptor::new(compress).input(object.clone()).with(TO_OUTPUT).output(room(1));
        let Some((_, result)) = bench.rate(&format!("compress, {name}"), &ask).await? else { continue };
        let frame = Object { length: result.outputs[0], ..room(1) };
        let seconds = Instant::now();
        bench.run(&Descriptor::new(decompress).input(frame).with(TO_OUTPUT).output(room(2))).await?;
        println!("{:<34} {:>8.0} MB/s of content", format!("decompress, {name}"), LENGTH as f64 / seconds.elapsed().as_secs_f64() / 1e6);
    }
    small(&bench).await
}

/// Room for an output. Number 0 is where the input lies.
fn room(number: u64) -> Object {
    let length = LENGTH + (64 << 10);
    Object::new(length, vec![Extent::new(number * (LENGTH + (1 << 20)), length)])
}

/// A device of `size` bytes that begins with `bytes`.
async fn holding(bytes: &[u8], size: u64) -> Result<Arc<MemoryDevice>> {
    let device = Arc::new(MemoryDevice::new("bench", size));
    for (number, block) in bytes.chunks(1 << 20).enumerate() {
        device.write((number as u64) << 20, block.to_vec().into(), Durability::Cached).await?;
    }
    Ok(device)
}

/// What is searched for: a title, patterns, and whether they are fixed strings.
type Case = (&'static str, &'static [&'static str], bool);

const CASES: [Case; 6] = [
    ("search: rare string", &["Sherlock Holmes"], true),
    ("search: frequent string", &["abc"], true),
    ("search: three strings", &["Sherlock Holmes", "John Watson", "Irene Adler"], true),
    ("search: regex with a literal", &["[A-Z][a-z]+ Holmes"], false),
    ("search: regex of classes", &["[a-z]+ing [a-z]+ed"], false),
    ("search: alternatives", &["Sherlock|Holmes|Watson|Irene|Adler"], false),
];

/// What is counted: a title, the mode of EXEC, and the option of ripgrep.
const WAYS: [(&str, u64, &str); 2] = [("lines", mode::COUNT_LINES, "-c"), ("matches", mode::COUNT_MATCHES, "--count-matches")];

fn question(object: &Object, (_, patterns, fixed): Case, mode: u64) -> Descriptor {
    patterns.iter().fold(Descriptor::new(opcode::SEARCH).number(tag::MODE, mode).input(object.clone()), |ask, pattern| {
        if fixed { ask.bytes(tag::STRING, pattern.as_bytes()) } else { ask.text(tag::REGEX, *pattern) }
    })
}

/// The same question for ripgrep. A file is searched by one thread in any case.
fn words((_, patterns, fixed): Case, option: &'static str) -> Vec<&'static str> {
    let mut words = vec!["-j1", "--no-messages", "-a", option];
    words.extend(fixed.then_some("-F"));
    words.extend(patterns.iter().flat_map(|pattern| ["-e", pattern]));
    words
}

/// A file in memory with these bytes, which the caller removes.
fn in_memory(bytes: &[u8]) -> Result<String> {
    let file = format!("/dev/shm/skytether-rates-{}", std::process::id());
    std::fs::write(&file, bytes).map_err(|error| Error::io("write", &file, error))?;
    Ok(file)
}

async fn searches(bench: &Bench, object: &Object, bytes: &[u8]) -> Result<()> {
    let file = in_memory(bytes)?;
    for case in CASES {
        for (way, mode, option) in WAYS {
            let Some((rate, result)) = bench.rate(&format!("{}, {way}", case.0), &question(object, case, mode)).await? else { continue };
            let found = result.items[0].values[0];
            let runs = (0..ROUNDS).map(|_| program("rg", &words(case, option), &file)).collect::<Option<Vec<_>>>();
            match runs.and_then(|runs| runs.into_iter().min()) {
                Some((took, count)) => {
                    let ripgrep = mb_per_s(LENGTH, took);
                    println!("{:<34} {ripgrep:>8.0} MB/s of ripgrep: {:.2}x, {found} and {count}", "", rate / ripgrep);
                }
                None => println!("{:<34} ripgrep is not installed", ""),
            }
        }
    }
    std::fs::remove_file(&file).map_err(|error| Error::io("remove", &file, error))
}

/// Searches of `length` bytes, each in turn with ripgrep. Prints a list of JSON.
async fn in_turns(length: u64, rounds: u64) -> Result<()> {
    let exec = Offload::new(operations::registry(None)?, Options::default())?;
    let bytes = text(length as usize);
    let bench = Bench { exec, device: holding(&bytes, length.next_multiple_of(4096)).await?, filter: String::new() };
    let object = Object::new(length, vec![Extent::new(0, length)]);
    let (file, mut told) = (in_memory(&bytes)?, Vec::new());
    for case in CASES {
        for (way, mode, option) in WAYS {
            let (ask, words) = (question(&object, case, mode), words(case, option));
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let began = Instant::now();
                let found = bench.run(&ask).await?.items[0].values[0];
                ours.push(mb_per_s(length, began.elapsed()).round());
                let Some((took, count)) = program("rg", &words, &file) else { continue };
                if count != found {
                    return Err(Error::internal(format!("{}: EXEC counts {found} {way}, and ripgrep {count}", case.0)));
                }
                theirs.push(mb_per_s(length, took).round());
            }
            told.push(format!("{{\"what\": \"{}, {way}\", \"ours\": {ours:?}, \"ripgrep\": {theirs:?}}}", case.0));
        }
    }
    println!("[{}]", told.join(", "));
    std::fs::remove_file(&file).map_err(|error| Error::io("remove", &file, error))
}

/// Latency of one small request after the other.
async fn small(bench: &Bench) -> Result<()> {
    for (name, len) in [("4 KiB", 4096), ("64 KiB", 64 << 10)] {
        let ask = Descriptor::new(opcode::CRC32C).input(Object::new(len, vec![Extent::new(0, len)]));
        let mut times = Vec::new();
        for _ in 0..5000 {
            let began = Instant::now();
            bench.run(&ask).await?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        println!("crc32c of {name}: median {:?}, of 100 the slowest {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
    }
    let ask = (0..4096).fold(Descriptor::new(opcode::CRC32C), |ask, at| ask.input(Object::new(4096, vec![Extent::new(at * 4096, 4096)])));
    let began = Instant::now();
    bench.run(&ask).await?;
    println!("crc32c of 4096 objects of 4 KiB in one descriptor: {:?}", began.elapsed());
    Ok(())
}
