//! Searches records of 48 bytes for energies above a threshold, where the drive has them and where the client has them.
//!
//! `search URL FILE THRESHOLD TURNS NAME=PROGRAM..` puts the records of FILE (a dump of VPIC) on the drive, in values
//! of up to 1 MiB, and the programs: eBPF objects or native ones. Each gets the keys' prefix and the threshold, as a
//! double (eBPF) or in decimals (native), and emits the records. The medians of TURNS turns are printed as a line of
//! JSON, in milliseconds: of each program, from the request to its answer; of reading all values to the client and
//! searching there; and of a native search over the same bytes, in memory and from FILE.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_kinetic::{ClientOptions, Connection, Execution, Put};
use skytether_kinetic_protocol::kinds::{Language, Synchronization};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a record.
const RECORD: usize = 48;

/// Bytes of a value: whole records, and no more than drives take.
const VALUE: usize = (1 << 20) / RECORD * RECORD;

/// What the keys of the records begin with.
const PREFIX: &str = "search/records/";

/// Values that the client has asked for at a time.
const AHEAD: u64 = 4;

/// How long a program may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The records above the threshold, one after the other.
fn search(records: &[u8], above: f32, found: &mut Vec<u8>) {
    for record in records.chunks_exact(RECORD) {
        let energy = record.last_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
        if energy > above {
            found.extend_from_slice(record);
        }
    }
}

/// Reads the file value by value and searches it, as the drive does with its values.
fn search_file(path: &Path, above: f32, found: &mut Vec<u8>) -> Outcome<()> {
    use std::io::Read;
    let mut file = std::fs::File::open(path)?;
    let mut value = Vec::with_capacity(VALUE);
    loop {
        value.clear();
        (&mut file).take(VALUE as u64).read_to_end(&mut value)?;
        if value.is_empty() {
            return Ok(());
        }
        search(&value, above, found);
    }
}

fn key(number: u64) -> Bytes {
    format!("{PREFIX}{number:06}").into()
}

async fn put(connection: &Connection, key: Bytes, value: Bytes) -> Outcome<()> {
    let put = Put::new(key, value, None, Bytes::from_static(b"1"));
    Ok(connection.put(Put { synchronization: Synchronization::WriteBack, ..put }).await?)
}

/// Reads all values, a few at a time, and searches them.
async fn search_here(connection: &Arc<Connection>, values: u64, above: f32, found: &mut Vec<u8>) -> Outcome<()> {
    let ask = |number: u64| {
        let connection = Arc::clone(connection);
        tokio::spawn(async move { connection.get(key(number), false).await })
    };
    let mut asked: std::collections::VecDeque<_> = (0..values.min(AHEAD)).map(ask).collect();
    let mut next = AHEAD;
    while let Some(got) = asked.pop_front() {
        let got = got.await??;
        if next < values {
            asked.push_back(ask(next));
            next += 1;
        }
        search(&got.value, above, found);
    }
    Ok(())
}

struct Program {
    name: String,
    execution: Execution,
    taken: Vec<f64>,
}

impl Program {
    async fn new(connection: &Connection, word: &str, threshold: f64) -> Outcome<Program> {
        let (name, path) = word.split_once('=').ok_or("a program is NAME=PATH")?;
        let program = std::fs::read(path)?;
        // The machine in the head of an ELF file: 247 is eBPF.
        let ebpf = program.get(18) == Some(&247);
        let (language, threshold) = match ebpf {
            true => (Language::Ebpf, Bytes::copy_from_slice(&threshold.to_le_bytes())),
            false => (Language::Native, Bytes::from(threshold.to_string())),
        };
        let at = Bytes::from(format!("search/program/{name}"));
        put(connection, at.clone(), program.into()).await?;
        let arguments = vec![Bytes::from(PREFIX), threshold];
        let output_key = Some(Bytes::from(format!("search/output/{name}")));
        let execution = Execution { arguments, output_key, output_in_response: true, ..Execution::new(language, vec![at]) };
        Ok(Program { name: name.to_owned(), execution, taken: Vec::new() })
    }
}

fn median(taken: &mut [f64]) -> f64 {
    taken.sort_by(f64::total_cmp);
    taken.get(taken.len() / 2).copied().unwrap_or_default()
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, file, threshold, turns, programs @ ..] = words.as_slice() else { return Err("say: URL FILE THRESHOLD TURNS NAME=PROGRAM..".into()) };
    let (threshold, turns): (f64, usize) = (threshold.parse()?, turns.parse()?);
    let (path, above) = (Path::new(file), threshold as f32);
    let records = Bytes::from(std::fs::read(path)?);
    let connection = Arc::new(Connection::open(&url.parse()?, Arc::new(ClientOptions::default())).await?);
    let values = records.len().div_ceil(VALUE) as u64;
    for number in 0..values {
        let from = number as usize * VALUE;
        put(&connection, key(number), records.slice(from..records.len().min(from + VALUE))).await?;
    }
    let mut runs = Vec::new();
    for word in programs {
        runs.push(Program::new(&connection, word, threshold).await?);
    }
    connection.flush().await?;
    let mut expected = Vec::new();
    search(&records, above, &mut expected);
    let check = |name: &str, found: &[u8]| match found == expected {
        true => Ok(()),
        false => Err(format!("{name} found {} records instead of {}", found.len() / RECORD, expected.len() / RECORD)),
    };
    let (mut memory, mut from_file, mut here) = (Vec::new(), Vec::new(), Vec::new());
    // The first turn fills caches and does not count.
    for turn in 0..=turns {
        let mut found = Vec::new();
        let begun = Instant::now();
        search(black_box(&records), black_box(above), &mut found);
        let in_memory = begun.elapsed().as_secs_f64() * 1e3;
        check("the search in memory", &found)?;
        found.clear();
        let begun = Instant::now();
        search_file(path, black_box(above), &mut found)?;
        let of_file = begun.elapsed().as_secs_f64() * 1e3;
        check("the search of the file", &found)?;
        found.clear();
        let begun = Instant::now();
        search_here(&connection, values, above, &mut found).await?;
        let at_client = begun.elapsed().as_secs_f64() * 1e3;
        check("the client", &found)?;
        if turn > 0 {
            memory.push(in_memory);
            from_file.push(of_file);
            here.push(at_client);
        }
        for Program { name, execution, taken } in &mut runs {
            let begun = Instant::now();
            let executed = connection.execute(execution.clone(), PATIENCE).await?;
            let took = begun.elapsed().as_secs_f64() * 1e3;
            if executed.result.exit_code != 0 {
                return Err(format!("{name} ended with {:?}", executed.result).into());
            }
            check(name, &executed.value)?;
            if turn > 0 {
                taken.push(took);
            }
        }
    }
    let of_programs: Vec<String> = runs.iter_mut().map(|run| format!("{:?}: {:.3}", run.name, median(&mut run.taken))).collect();
    println!(
        "{{\"records\": {}, \"hits\": {}, \"memory_ms\": {:.3}, \"file_ms\": {:.3}, \"client_ms\": {:.3}, \"programs\": {{{}}}}}",
        records.len() / RECORD,
        expected.len() / RECORD,
        median(&mut memory),
        median(&mut from_file),
        median(&mut here),
        of_programs.join(", ")
    );
    Ok(())
}
