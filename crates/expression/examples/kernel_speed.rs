//! Measures the kernel: `cargo run -p skytether-expression --example kernel_speed`.
//!
//! Synthetic rows of 50,000 cells, 7% nonzero, counts mostly 1 to 3, 12 groups in random order; one thread, data in
//! memory. Prints nanoseconds per nonzero for each type and transform.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::Float32Array;
use skytether_expression::kernel::{Block, Kernel, Value, has_avx2};

const CELLS: usize = 50_000;
const GROUPS: u64 = 12;
const ROWS: usize = 1000;

fn main() {
    let mut numbers = fastrand::Rng::with_seed(7);
    let codes: Vec<u16> = (0..CELLS).map(|_| numbers.u64(..GROUPS) as u16).collect();
    let totals = Arc::new(Float32Array::from_iter_values((0..CELLS).map(|_| 1000.0 + numbers.u64(..9000) as f32)));
    let mut idx: Vec<Vec<u32>> = Vec::new();
    let mut counts: Vec<Vec<u16>> = Vec::new();
    for row in 0..ROWS {
        let cells: Vec<u32> = (0..CELLS as u32).filter(|_| numbers.u64(..100) < 7).collect();
        // One gene in ten is highly expressed, beyond the table.
        let scale = if row % 10 == 0 { 40 } else { 1 };
        counts.push(cells.iter().map(|_| (1 + numbers.u64(..3) * numbers.u64(..3) / 2 * scale) as u16).collect());
        idx.push(cells);
    }
    let nonzeros: usize = idx.iter().map(Vec::len).sum();
    println!("{ROWS} rows, {nonzeros} nonzeros, AVX2 {}", has_avx2());
    let logged = Block::new(0, &codes, Some(&totals));
    let plain = Block::new(0, &codes, None);
    report("counts u16, log1p_cp10k", &logged, &idx, &counts, nonzeros);
    report("counts u16, as they are", &plain, &idx, &counts, nonzeros);
    let floats: Vec<Vec<f32>> = counts.iter().map(|r| r.iter().map(|&v| f32::from(v) * 0.5).collect()).collect();
    report("floats f32, log1p_cp10k", &logged, &idx, &floats, nonzeros);
    report("floats f32, as they are", &plain, &idx, &floats, nonzeros);
}

fn report<T: Value>(what: &str, block: &Block<'_>, idx: &[Vec<u32>], val: &[Vec<T>], nonzeros: usize) {
    let mut kernel = Kernel::new(GROUPS as usize + 1, skytether_expression::spec::Squares::Float32);
    let mut pass = || {
        let start = Instant::now();
        let mut sum = 0.0;
        for (idx, val) in idx.iter().zip(val) {
            match kernel.row(block, idx, val) {
                Ok(sums) => sum += sums[0][0],
                Err(fault) => println!("{fault:?}"),
            }
        }
        (start.elapsed().as_secs_f64() * 1e9 / nonzeros as f64, sum)
    };
    let (first, sum) = pass();
    let best = (0..9).map(|_| pass().0).fold(f64::INFINITY, f64::min);
    println!("{what}: {best:.2} ns per nonzero (first pass {first:.2}; sum {sum:.3})");
}
