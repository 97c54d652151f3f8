//! How fast one core encodes, decodes and digests: `cargo run -p skytether-redundancy --example speed`. Best of some runs, over shards of 1 MiB.

use std::hint::black_box;
use std::time::Instant;

use skytether_common::Result;
use skytether_redundancy::code::{decode, encode};
use skytether_redundancy::digest::Digesting;
use skytether_redundancy::scheme::Code;

const SHARD: usize = 1 << 20;

fn filled(len: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(seed ^ seed >> 29).to_le_bytes());
    }
    bytes.truncate(len);
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
    Ok(())
}
