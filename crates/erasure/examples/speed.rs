//! Measures how fast one core encodes, decodes, digests, forms groups and plans: `cargo run -p skytether-erasure
//! --example speed`. Best of some runs, over shards of 1 MiB.

use std::hint::black_box;
use std::time::Instant;

use skytether_common::Result;
use skytether_erasure::Code;
use skytether_erasure::balance::balance;
use skytether_erasure::code::{decode, encode};
use skytether_erasure::digest::Digesting;
use skytether_erasure::groups::{Grouper, PlacedShard, default_window};
use skytether_erasure::map::{CodeMap, Shard};
use skytether_erasure::repair::{Drive, repair};

const SHARD: usize = 1 << 20;

fn filled(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// GB of `bytes` per second, best of several.
fn rate<T>(bytes: usize, mut work: impl FnMut() -> Result<T>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..25 {
        let start = Instant::now();
        black_box(work()?);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(bytes as f64 / best / 1e9)
}

fn main() -> Result<()> {
    // As drives and hosts do.
    skytether_common::memory::tune_allocator();
    println!("encode: GB of data per second; decode of as many lost data shards: GB of what is read per second");
    for (k, m) in [(4, 1), (8, 1), (4, 2), (8, 2), (8, 3), (10, 4), (16, 4)] {
        let code = Code::new(k, m)?;
        let data: Vec<Vec<u8>> = (0..k).map(|at| filled(SHARD, at as u64 + 1)).collect();
        let encoded = rate(k * SHARD, || encode(code, &data))?;
        print!("{code}: encode {encoded:.2}");
        let parity = encode(code, &data)?;
        let lens = vec![SHARD; k];
        for lose in [1, m] {
            let shards: Vec<Option<&[u8]>> =
                data.iter().map(|d| &d[..]).chain(parity.iter().map(|p| &p[..])).enumerate().map(|(at, s)| (at >= lose).then_some(s)).collect();
            let wanted: Vec<usize> = (0..lose).collect();
            print!(", decode {lose} {:.2}", rate(k * SHARD, || decode(code, &lens, &shards, &wanted))?);
        }
        println!();
    }
    let (digesting, shard) = (Digesting::new(1), filled(SHARD, 1));
    println!("digest: {:.2} GB/s; its columns: {:.3} ms", rate(SHARD, || Ok(digesting.digest(&shard)))?, 1e-6 / rate(1, || Ok(Digesting::new(2)))?);
    plans()
}

/// A million slices of ec:8+3 over 40 drives: seconds for each step.
fn plans() -> Result<()> {
    const SLICES: u32 = 1_000_000;
    let (code, drives) = (Code::new(8, 3)?, 40u32);
    let mut clock = Instant::now();
    let mut lap = |what: &str| {
        println!("{what}: {:.2} s", clock.elapsed().as_secs_f64());
        clock = Instant::now();
    };
    let mut grouper = Grouper::new(code, drives as usize, default_window(code), 1)?;
    let mut formed = Vec::new();
    for at in 0..SLICES {
        let len = (600 << 10) + u64::from(at.wrapping_mul(2_654_435_761) >> 13) * 409_600 / (1 << 19);
        formed.extend(grouper.push(PlacedShard { drive: at % drives, id: at / drives, len })?);
    }
    formed.extend(grouper.finish());
    lap("groups of a million slices");
    let mut numbers = vec![0; drives as usize];
    let mut shards: Vec<(Vec<Shard>, Vec<Shard>)> = Vec::new();
    for group in formed {
        let shard = |drive, number, len| Shard { drive, home: drive, number, len, crc32c: number };
        let data = group.data.iter().map(|s| shard(s.drive, s.id, s.len)).collect();
        let parity = group.parity.iter().map(|drive| {
            numbers[*drive as usize] += 1;
            shard(*drive, numbers[*drive as usize] - 1, group.parity_len)
        });
        shards.push((data, parity.collect()));
    }
    lap("(their shards)");
    let map = CodeMap::new(code, shards.iter().map(|(data, parity)| (&data[..], &parity[..])))?;
    lap("their map");
    let bytes = map.to_bytes();
    lap("as bytes");
    CodeMap::from_bytes(&bytes)?;
    lap(&format!("from {} bytes", bytes.len()));
    let mut fleet = vec![Drive::Here; drives as usize];
    fleet[7] = Drive::Lost;
    let plan = repair(&map, &fleet)?;
    lap(&format!("repair of a drive, {} groups", plan.groups.len()));
    fleet[7] = Drive::Retiring;
    fleet.push(Drive::Here);
    let plan = balance(&map, &fleet, 0.05)?;
    lap(&format!("balance after one came and one goes, {} moves", plan.moves.len()));
    Ok(())
}
