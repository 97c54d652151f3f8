//! Prints the processor time (Linux) per nonzero of pushing and of reading rows:
//! `cargo run -p skytether-matrix --example transpose_speed [million nonzeros] [memory limit in MiB]`.
//!
//! The matrix is shaped like counts from droplets: a few genes in most cells, most genes in few, three
//! quarters of the counts 1 or 2.

use fastrand::Rng;
use skytether_common::Result;
use skytether_matrix::{MtxReader, TransposeOptions, Transposed, Transposer};

const GENES: u32 = 33_000;

struct Csr {
    indptr: Vec<i64>,
    indices: Vec<i32>,
    data: Vec<f32>,
}

/// Some cells, to be repeated under other numbers.
fn cells(n: usize, random: &mut Rng) -> Csr {
    let mut csr = Csr { indptr: vec![0], indices: Vec::new(), data: Vec::new() };
    let rates: Vec<f64> = (0..GENES).map(|_| random.f64().powi(12)).collect();
    for _ in 0..n {
        for (gene, rate) in rates.iter().enumerate() {
            if random.f64() < *rate {
                csr.indices.push(gene as i32);
                csr.data.push((1.0 / random.f64()).min(2000.0).floor() as f32);
            }
        }
        csr.indptr.push(csr.indices.len() as i64);
    }
    csr
}

/// Nanoseconds that this thread has run: on a busy machine, elapsed time means little.
fn now() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn report(what: &str, nnz: u64, start: u64) {
    println!("{what:<40} {:6.2} ns per nonzero", (now() - start) as f64 / nnz as f64);
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn read(of: &Transposed, what: &str) -> Result<()> {
    let start = now();
    let mut seen = 0u64;
    of.rows(0..of.n_genes(), &mut |_, _, cells, _| {
        seen += cells.len() as u64;
        Ok(())
    })?;
    report(what, seen, start);
    println!("{:<40} {seen} nonzeros, {:?}, {} spilled runs", "", of.value_type(), of.spilled_runs());
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().unwrap_or(5));
    let millions = args.next().unwrap_or(5);
    let options = TransposeOptions { memory_limit: args.next().unwrap_or(512) << 20, threads: 1, ..TransposeOptions::default() };
    let mut random = Rng::with_seed(7);
    let csr = cells(1000, &mut random);
    let times = (millions * 1_000_000).div_ceil(csr.data.len());
    let nnz = (times * csr.data.len()) as u64;
    let n_cells = (times * 1000) as u32;
    let new = || Transposer::new(n_cells, GENES, options.clone());

    let before = resident();
    let mut t = new()?;
    let start = now();
    for i in 0..times {
        t.push_rows(i as u64 * 1000, &csr.indptr, &csr.indices, &csr.data)?;
    }
    report("push_rows, counts as f32", nnz, start);
    println!("{:<40} {} MiB more resident", "", resident().saturating_sub(before));
    let start = now();
    let done = t.finish()?;
    report("finish", nnz, start);
    read(&done, "rows")?;

    // The same, gene-major.
    let (mut indptr, mut indices, mut data) = (vec![0u64], Vec::<u32>::new(), Vec::<u16>::new());
    done.rows(0..GENES, &mut |_, block, cells, values| {
        if let (0, skytether_slice::Values::U16(values)) = (block, values) {
            indices.extend_from_slice(cells);
            data.extend_from_slice(values);
            indptr.push(indices.len() as u64);
        }
        Ok(())
    })?;
    drop(done);
    let mut t = new()?;
    let start = now();
    t.push_columns(0, &indptr, &indices, &data)?;
    report("push_columns, counts as u16", data.len() as u64, start);
    drop(t);

    let logged: Vec<f32> = csr.data.iter().map(|v| v.ln_1p()).collect();
    let mut t = new()?;
    let start = now();
    for i in 0..times {
        t.push_rows(i as u64 * 1000, &csr.indptr, &csr.indices, &logged)?;
    }
    report("push_rows, logarithms as f32", nnz, start);
    read(&t.finish()?, "rows")?;

    let genes: Vec<u32> = csr.indices.iter().map(|g| *g as u32).collect();
    let base: Vec<u32> = csr.indptr.windows(2).zip(0..).flat_map(|(w, c)| std::iter::repeat_n(c, (w[1] - w[0]) as usize)).collect();
    let shuffled: Vec<usize> = {
        let mut order: Vec<usize> = (0..genes.len()).collect();
        random.shuffle(&mut order);
        order
    };
    let genes: Vec<u32> = shuffled.iter().map(|i| genes[*i]).collect();
    let mut t = new()?;
    let start = now();
    for i in (0..times as u32).rev() {
        let cells: Vec<u32> = shuffled.iter().map(|j| base[*j] + i * 1000).collect();
        t.push_triplets(&genes, &cells, &vec![1u8; genes.len()])?;
    }
    report("push_triplets, cells shuffled", nnz, start);
    let start = now();
    let done = t.finish()?;
    report("finish (sorts, without helper threads)", nnz, start);
    read(&done, "rows")?;

    let mut text = format!("%%MatrixMarket matrix coordinate integer general\n{GENES} 1000 {}\n", csr.data.len());
    for (cell, line) in csr.indptr.windows(2).enumerate() {
        for i in line[0] as usize..line[1] as usize {
            text.push_str(&format!("{} {} {}\n", csr.indices[i] + 1, cell + 1, csr.data[i]));
        }
    }
    let size = text.len() as f64;
    let start = now();
    let mut reader = MtxReader::new(Box::new(std::io::Cursor::new(text.into_bytes())), "text")?;
    let (mut rows, mut cols, mut vals) = (Vec::new(), Vec::new(), Vec::new());
    while reader.read_chunk(1 << 16, &mut rows, &mut cols, &mut vals)? > 0 {
        rows.clear();
        cols.clear();
        vals.clear();
    }
    println!("{:<40} {:6.1} MB of text per second", "matrix market", size * 1e3 / (now() - start) as f64);
    Ok(())
}
