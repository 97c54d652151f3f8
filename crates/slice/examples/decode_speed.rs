//! Nanoseconds per nonzero value for writing and reading sparse slices, and bytes per value, on data shaped
//! like single-cell counts.
//!
//! `cargo run -p skytether-slice --example decode_speed [CELLS GENES]`, default 50,000 and 4,000.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use skytether_slice::sparse::column::{IDX, VAL};
use skytether_slice::{BLOCK, Layout, SliceOptions, SparseSlicer, ValueType, Values, decode_sparse};

type Row = (u32, u32, Vec<u32>, Vec<u16>);

/// Geometric gaps and counts; genes differ in density, 7% on average.
fn rows(cells: u32, genes: u32) -> Vec<Row> {
    let mut random = fastrand::Rng::with_seed(42);
    // Above 0, which has no logarithm.
    let mut uniform = || 1.0 - random.f64();
    let density: Vec<f64> = (0..genes).map(|_| (0.28 * uniform().powi(3)).max(1e-4)).collect();
    let mut rows = Vec::new();
    for block in 0..cells.div_ceil(BLOCK) {
        for (gene, &p) in density.iter().enumerate() {
            let (mut idx, mut val) = (Vec::new(), Vec::new());
            let mut at = f64::from(block * BLOCK);
            let end = f64::from(((block + 1) * BLOCK).min(cells));
            loop {
                at += (uniform().ln() / (1.0 - p).ln()).floor();
                if at >= end {
                    break;
                }
                idx.push(at as u32);
                val.push(1 + (uniform().ln() / 0.3f64.ln()) as u16);
                at += 1.0;
            }
            rows.push((gene as u32, block, idx, val));
        }
    }
    rows
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u32>());
    let cells = arguments.next().transpose()?.unwrap_or(50_000);
    let genes = arguments.next().transpose()?.unwrap_or(4_000);
    let rows = rows(cells, genes);
    let values: usize = rows.iter().map(|r| r.2.len()).sum();
    let per_value = |start: Instant| start.elapsed().as_secs_f64() * 1e9 / values as f64;

    let start = Instant::now();
    let mut slicer = SparseSlicer::new(cells, genes, ValueType::UInt16, SliceOptions::default());
    let mut slices = Vec::new();
    for (gene, block, idx, val) in &rows {
        slices.extend(slicer.push(*gene, *block, idx, Values::U16(val))?);
    }
    slices.extend(slicer.finish()?);
    println!("write                         {:6.2} ns per value", per_value(start));
    let total: usize = slices.iter().map(|s| s.bytes.len()).sum();
    let largest = slices.iter().map(|s| s.bytes.len()).max().unwrap_or(0);
    let smallest = slices.iter().rev().skip(1).map(|s| s.bytes.len()).min().unwrap_or(0);
    println!("{values} values in {} slices, full ones {smallest} to {largest} bytes, {:.3} bytes per value", slices.len(), total as f64 / values as f64);

    let layout = Layout::sparse(cells, genes, ValueType::UInt16);
    for (name, projection) in [("idx", &[IDX][..]), ("val", &[VAL]), ("idx and val", &[IDX, VAL])] {
        let mut best = f64::INFINITY;
        for _ in 0..7 {
            let start = Instant::now();
            for slice in &slices {
                black_box(decode_sparse(&slice.bytes, &layout, projection)?);
            }
            best = best.min(per_value(start));
        }
        println!("read {name:<12} fast path    {best:6.3} ns per value");
    }
    let start = Instant::now();
    for slice in &slices {
        for batch in ParquetRecordBatchReaderBuilder::try_new(slice.bytes.clone())?.with_batch_size(1 << 20).build()? {
            black_box(batch?);
        }
    }
    println!("read everything, Arrow        {:6.3} ns per value", per_value(start));
    Ok(())
}
