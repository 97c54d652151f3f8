//! Puts load on a Kinetic drive, of any maker, and prints what it did as one line of JSON.
//!
//! `load URL put|get [--size BYTES] [--connections N] [--outstanding N] [--seconds S] [--sync back|through] [--keys N]`
//!
//! Each connection has `--outstanding` requests under way (1). A put takes the next of `--keys` keys of its connection,
//! with force. A get takes any of `--keys` keys at random, which are written before, unless they are there from an
//! earlier call with the same `--size`. The latencies are those of single requests, as their caller sees them.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_kinetic::{ClientOptions, Connection, Put};
use skytether_kinetic_protocol::kinds::Synchronization;
use skytether_transport::Endpoint;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What is asked for.
#[derive(Clone)]
struct Load {
    gets: bool,
    size: usize,
    connections: usize,
    outstanding: usize,
    time: Duration,
    through: bool,
    keys: u64,
}

impl Load {
    fn of(words: &[String]) -> Outcome<(Endpoint, Load)> {
        let [url, what, options @ ..] = words else { return Err("say: URL put|get [--size BYTES] [--connections N] ..".into()) };
        let gets = match what.as_str() {
            "get" => true,
            "put" => false,
            other => return Err(format!("{other:?} is neither put nor get").into()),
        };
        let mut load = Load { gets, size: 1024, connections: 1, outstanding: 1, time: Duration::from_secs(3), through: false, keys: 10_000 };
        for pair in options.chunks(2) {
            let [name, value] = pair else { return Err(format!("{pair:?} has no value").into()) };
            match name.as_str() {
                "--size" => load.size = value.parse()?,
                "--connections" => load.connections = value.parse()?,
                "--outstanding" => load.outstanding = value.parse()?,
                "--seconds" => load.time = Duration::try_from_secs_f64(value.parse()?)?,
                "--keys" => load.keys = value.parse()?,
                "--sync" => load.through = value == "through",
                other => return Err(format!("there is no option {other}").into()),
            }
        }
        Ok((url.parse()?, load))
    }

    fn synchronization(&self) -> Synchronization {
        if self.through { Synchronization::WriteThrough } else { Synchronization::WriteBack }
    }

    fn put(&self, key: String, value: Bytes) -> Put {
        Put { synchronization: self.synchronization(), ..Put::new(key.into(), value, None, Bytes::from_static(b"1")) }
    }

    /// The key of a value that is read.
    fn kept(&self, number: u64) -> Bytes {
        format!("load/{}/kept/{number:08}", self.size).into()
    }
}

/// Bytes that no compression makes smaller.
fn noise(seed: u64, len: usize) -> Bytes {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// The next number of an xorshift generator.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

async fn open(at: &Endpoint) -> Outcome<Arc<Connection>> {
    Ok(Arc::new(Connection::open(at, Arc::new(ClientOptions::default())).await?))
}

/// Writes the values that are read later, unless the last one is there.
async fn fill(at: &Endpoint, load: &Load) -> Outcome<()> {
    let connection = open(at).await?;
    if connection.get_version(load.kept(load.keys - 1)).await?.is_some() {
        return Ok(());
    }
    let depth = 8;
    let mut writers = Vec::new();
    for first in 0..depth {
        let (connection, load) = (Arc::clone(&connection), load.clone());
        writers.push(tokio::spawn(async move {
            for number in (first..load.keys).step_by(depth as usize) {
                let put = Put::new(load.kept(number), noise(number, load.size), None, Bytes::from_static(b"1"));
                connection.put(Put { synchronization: Synchronization::WriteBack, ..put }).await?;
            }
            Outcome::Ok(())
        }));
    }
    for writer in writers {
        writer.await??;
    }
    Ok(connection.flush().await?)
}

/// One request after the other until the time is over; the nanoseconds of each.
async fn ask(connection: Arc<Connection>, load: Load, caller: usize, begun: Instant) -> Outcome<Vec<u32>> {
    let value = noise(caller as u64, load.size);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(caller as u64 + 1) | 1;
    let mut taken = Vec::new();
    for turn in 0.. {
        let start = Instant::now();
        if start - begun >= load.time {
            break;
        }
        if load.gets {
            let got = connection.get(load.kept(random(&mut state) % load.keys), false).await?;
            if got.value.len() != load.size {
                return Err(format!("a value has {} bytes instead of {}", got.value.len(), load.size).into());
            }
        } else {
            connection.put(load.put(format!("load/{}/{caller:04}/{:08}", load.size, turn % load.keys), value.clone())).await?;
        }
        taken.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    Ok(taken)
}

async fn measure(at: Endpoint, load: Load) -> Outcome<String> {
    if load.gets {
        fill(&at, &load).await?;
    }
    let mut connections = Vec::new();
    for _ in 0..load.connections {
        connections.push(open(&at).await?);
    }
    let begun = Instant::now();
    let mut callers = Vec::new();
    for number in 0..load.connections * load.outstanding {
        let connection = Arc::clone(&connections[number % load.connections]);
        callers.push(tokio::spawn(ask(connection, load.clone(), number, begun)));
    }
    let mut taken = Vec::new();
    for caller in callers {
        taken.extend(caller.await??);
    }
    let seconds = begun.elapsed().as_secs_f64();
    taken.sort_unstable();
    let at_share = |share: f64| taken.get((taken.len() as f64 * share) as usize).map_or(0.0, |nanoseconds| f64::from(*nanoseconds) / 1e3);
    let per_second = taken.len() as f64 / seconds;
    Ok(format!(
        "{{\"ops_per_s\": {per_second:.1}, \"mb_per_s\": {:.3}, \"p50_us\": {:.1}, \"p99_us\": {:.1}, \"ops\": {}, \"seconds\": {seconds:.3}}}",
        per_second * load.size as f64 / 1e6,
        at_share(0.5),
        at_share(0.99),
        taken.len()
    ))
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (at, load) = Load::of(&words)?;
    println!("{}", measure(at, load).await?);
    Ok(())
}
