//! The transposer: takes input of any shape and order.

use std::ops::Range;
use std::path::PathBuf;

#[cfg(doc)]
use skytether_common::Kind;
use skytether_common::{Error, Result};
use skytether_slice::ValueType;

use crate::numbers::{BadValue, CHUNK, Chunk, Form, Index, Value};
use crate::records::{Code, DoubleCode, IntCode, SingleCode};
use crate::rows::Transposed;
use crate::run::{BYTES_PER_GENE, Run, Taken};
use crate::spill::{SpillFile, SpilledRun};

/// What the tables of genes and cells may take beyond the memory limit before they are refused.
const SMALL_TABLES: u64 = 1 << 30;

/// How a transposition uses the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransposeOptions {
    /// Bytes for entries held in memory; beyond, they go to disk. The tables of genes (84 bytes each) and cells (8
    /// bytes each) count too, but at least a quarter of the limit is for entries.
    pub memory_limit: usize,
    /// Where the temporary file is made when one is needed. It has no name and so vanishes with the process.
    pub spill_dir: PathBuf,
    /// Threads that sort genes whose cells did not come in order. Input in order needs none of them.
    pub threads: usize,
}

impl Default for TransposeOptions {
    fn default() -> Self {
        Self { memory_limit: 512 << 20, spill_dir: std::env::temp_dir(), threads: 2 }
    }
}

/// Collects a matrix of cells and genes; see the crate. Pushes may mix shapes and orders, and cells may come in
/// several pushes, as long as no (gene, cell) is pushed twice. An entry of a small count takes about two bytes; while
/// genes are sorted or runs spilled, some MiB per thread come on top. Zeros are dropped; NaN and infinities are kept.
/// After an error the transposer takes no more: drop it.
#[derive(Debug)]
pub struct Transposer {
    store: Store,
    chunk: Chunk,
    genes: Vec<u32>,
    cells: Vec<u32>,
    failed: bool,
}

/// The entries of a chunk, with their places.
enum Places<'a> {
    Row(u32, &'a [u32]),
    Column(u32, &'a [u32]),
    Each(&'a [u32], &'a [u32]),
}

#[derive(Clone, Copy)]
enum Major {
    Cell,
    Gene,
}

/// Where entries end up.
#[derive(Debug)]
struct Store {
    n_cells: u32,
    n_genes: u32,
    options: TransposeOptions,
    budget: usize,
    run: Run,
    sealed: Vec<Run>,
    spilled: Vec<SpilledRun>,
    file: Option<SpillFile>,
    nnz_per_gene: Vec<u64>,
    sums: Vec<f64>,
    max: u32,
    integers: bool,
    singles: bool,
}

impl Transposer {
    /// An empty matrix.
    ///
    /// # Errors
    /// [`Kind::Exhausted`] if the tables of genes and cells alone need far more than the memory limit.
    pub fn new(n_cells: u32, n_genes: u32, options: TransposeOptions) -> Result<Self> {
        let tables = u64::from(n_genes) * (BYTES_PER_GENE as u64 + 16) + u64::from(n_cells) * 8;
        if tables > SMALL_TABLES.max(options.memory_limit as u64) {
            return Err(Error::exhausted(format!(
                "{n_cells} cells and {n_genes} genes need {tables} bytes for their tables; raise the memory limit of {} bytes",
                options.memory_limit
            )));
        }
        let left = options.memory_limit.saturating_sub(usize::try_from(tables).unwrap_or(usize::MAX));
        let budget = left.max(options.memory_limit / 4);
        let store = Store {
            n_cells,
            n_genes,
            budget,
            run: Run::new(Form::Int, n_cells, n_genes, budget),
            options,
            sealed: Vec::new(),
            spilled: Vec::new(),
            file: None,
            nnz_per_gene: vec![0; n_genes as usize],
            sums: vec![0.0; n_cells as usize],
            max: 0,
            integers: true,
            singles: true,
        };
        Ok(Self { store, chunk: Chunk::new(), genes: vec![0; CHUNK], cells: vec![0; CHUNK], failed: false })
    }

    /// Number of cells.
    #[must_use]
    pub fn n_cells(&self) -> u32 {
        self.store.n_cells
    }

    /// Number of genes.
    #[must_use]
    pub fn n_genes(&self) -> u32 {
        self.store.n_genes
    }

    /// Adds consecutive cells from `first_cell` on, in compressed sparse row form. `indptr` has one entry more than
    /// there are cells. It may start at any offset; its first entry is the start of `indices` (genes, in any order) and
    /// `data`.
    ///
    /// # Errors
    /// [`Kind::Invalid`], naming the place: cells or genes beyond the matrix, a decreasing `indptr` or one that does
    /// not span `indices` and `data`, a value that is not exact as a 64-bit float. [`Kind::Exhausted`]: no room to
    /// spill.
    pub fn push_rows<P: Index, I: Index, V: Value>(&mut self, first_cell: u64, indptr: &[P], indices: &[I], data: &[V]) -> Result<()> {
        self.guarded(|this| this.push_major(Major::Cell, first_cell, indptr, indices, data))
    }

    /// Adds consecutive genes from `first_gene` on, in compressed sparse column form; otherwise like
    /// [`Transposer::push_rows`].
    ///
    /// # Errors
    /// Like [`Transposer::push_rows`].
    pub fn push_columns<P: Index, I: Index, V: Value>(&mut self, first_gene: u64, indptr: &[P], indices: &[I], data: &[V]) -> Result<()> {
        self.guarded(|this| this.push_major(Major::Gene, first_gene, indptr, indices, data))
    }

    /// Adds `rows` consecutive cells from `first_cell` on, dense: `data` is row-major, `rows`
    /// times the number of genes.
    ///
    /// # Errors
    /// Like [`Transposer::push_rows`].
    pub fn push_dense<V: Value>(&mut self, first_cell: u64, rows: usize, data: &[V]) -> Result<()> {
        self.guarded(|this| {
            let genes = this.store.n_genes as usize;
            this.store.in_range(Major::Cell, first_cell, rows)?;
            if rows.checked_mul(genes) != Some(data.len()) {
                return Err(Error::invalid(format!("{rows} dense rows of {genes} genes can't have {} values", data.len())));
            }
            if genes == 0 {
                return Ok(());
            }
            for (cell, row) in (first_cell..).zip(data.chunks_exact(genes)) {
                for (gene, part) in (0u32..).step_by(CHUNK).zip(row.chunks(CHUNK)) {
                    let place = |bad: &BadValue| bad.error(gene + u32::try_from(bad.at).unwrap_or(0), cell);
                    V::convert(part, &mut this.chunk).map_err(|bad| place(&bad))?;
                    this.add_dense(cell, gene, part.len())?;
                }
            }
            Ok(())
        })
    }

    /// Adds single entries: three slices of the same length.
    ///
    /// # Errors
    /// Like [`Transposer::push_rows`].
    pub fn push_triplets<V: Value>(&mut self, genes: &[u32], cells: &[u32], data: &[V]) -> Result<()> {
        self.guarded(|this| {
            if genes.len() != data.len() || cells.len() != data.len() {
                let lengths = format!("{} genes, {} cells and {} values", genes.len(), cells.len(), data.len());
                return Err(Error::invalid(format!("triplets need three slices of the same length, not {lengths}")));
            }
            for (i, data) in data.chunks(CHUNK).enumerate() {
                let range = i * CHUNK..i * CHUNK + data.len();
                let (genes, cells) = (&genes[range.clone()], &cells[range.clone()]);
                let place = |bad: BadValue| bad.error(genes[bad.at], cells[bad.at].into());
                V::convert(data, &mut this.chunk).map_err(place)?;
                this.add_triplets(range.start, genes, cells)?;
            }
            Ok(())
        })
    }

    /// Ends the input.
    ///
    /// # Errors
    /// A (gene, cell) that was pushed twice (some are only found while reading rows); an earlier push that
    /// failed; no room to spill.
    pub fn finish(self) -> Result<Transposed> {
        if self.failed {
            return Err(Error::invalid("an earlier push into this transposition failed; start a new one"));
        }
        self.store.finish()
    }

    fn guarded(&mut self, push: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.failed {
            return Err(Error::invalid("an earlier push into this transposition failed; start a new one"));
        }
        let result = push(self);
        self.failed = result.is_err();
        result
    }

    fn push_major<P: Index, I: Index, V: Value>(&mut self, major: Major, first: u64, indptr: &[P], indices: &[I], data: &[V]) -> Result<()> {
        let bounds = check_indptr(indptr, indices.len(), data.len())?;
        self.store.in_range(major, first, indptr.len() - 1)?;
        let minor_limit = match major {
            Major::Cell => self.store.n_genes,
            Major::Gene => self.store.n_cells,
        };
        let end_of = |major: usize| usize::try_from(indptr[major + 1].get() - bounds.start).unwrap_or(usize::MAX);
        let mut row = 0;
        let mut at = 0;
        while at < data.len() {
            let part = at..(at + CHUNK).min(data.len());
            let minors = match major {
                Major::Cell => &mut self.genes,
                Major::Gene => &mut self.cells,
            };
            if I::narrow(&indices[part.clone()], minors) >= u64::from(minor_limit) {
                let wrong = part.clone().find(|i| indices[*i].get() >= u64::from(minor_limit)).unwrap_or(at);
                return Err(wrong_index(major, wrong, indices[wrong].get(), minor_limit));
            }
            if let Err(bad) = V::convert(&data[part.clone()], &mut self.chunk) {
                let row = (row..).find(|r| end_of(*r) > at + bad.at).unwrap_or(row) as u64;
                return Err(match major {
                    Major::Cell => bad.error(self.genes[bad.at], first + row),
                    Major::Gene => bad.error(u32::try_from(first + row).unwrap_or(u32::MAX), self.cells[bad.at].into()),
                });
            }
            self.store.admit(&mut self.chunk, part.len())?;
            let mut from = 0;
            while from < part.len() {
                let end = end_of(row);
                let to = end.min(part.end) - at;
                if to > from {
                    self.add_line(major, first + row as u64, from..to)?;
                    from = to;
                }
                if end == at + to {
                    row += 1;
                }
            }
            at = part.end;
        }
        Ok(())
    }

    /// Adds part of a row or column from the buffers.
    #[inline(never)]
    fn add_line(&mut self, major: Major, line: u64, range: Range<usize>) -> Result<()> {
        let line = u32::try_from(line).map_err(|_| Error::internal("a line beyond the matrix got through"))?;
        let minors = match major {
            Major::Cell => &mut self.genes,
            Major::Gene => &mut self.cells,
        };
        // Stored zeros are rare: only then is the line compacted, in place, which leaves later lines where they are.
        let range = if self.chunk.zeros { compact(&mut self.chunk, minors, range) } else { range };
        let places = match major {
            Major::Cell => Places::Row(line, &minors[range.clone()]),
            Major::Gene => Places::Column(line, &minors[range.clone()]),
        };
        self.store.add(&places, &self.chunk, range)
    }

    #[inline(never)]
    #[allow(clippy::cast_possible_truncation)]
    fn add_dense(&mut self, cell: u64, first_gene: u32, n: usize) -> Result<()> {
        self.store.admit(&mut self.chunk, n)?;
        for (to, gene) in self.genes[..n].iter_mut().zip(first_gene..) {
            *to = gene;
        }
        let range = compact(&mut self.chunk, &mut self.genes, 0..n);
        self.store.add(&Places::Row(cell as u32, &self.genes[range.clone()]), &self.chunk, range)
    }

    #[inline(never)]
    fn add_triplets(&mut self, start: usize, genes: &[u32], cells: &[u32]) -> Result<()> {
        let n = genes.len();
        let largest = |of: &[u32]| of.iter().copied().max().unwrap_or(0);
        for (major, of, limit) in [(Major::Gene, cells, self.store.n_cells), (Major::Cell, genes, self.store.n_genes)] {
            if largest(of) >= limit {
                let wrong = of.iter().position(|i| *i >= limit).unwrap_or(0);
                return Err(wrong_index(major, start + wrong, of[wrong].into(), limit));
            }
        }
        self.store.admit(&mut self.chunk, n)?;
        if !self.chunk.zeros {
            return self.store.add(&Places::Each(genes, cells), &self.chunk, 0..n);
        }
        let mut kept = 0;
        for i in 0..n {
            if !is_zero(&self.chunk, i) {
                (self.genes[kept], self.cells[kept]) = (genes[i], cells[i]);
                (self.chunk.codes[kept], self.chunk.wide[kept]) = (self.chunk.codes[i], self.chunk.wide[i]);
                kept += 1;
            }
        }
        self.store.add(&Places::Each(&self.genes[..kept], &self.cells[..kept]), &self.chunk, 0..kept)
    }
}

#[inline]
fn is_zero(chunk: &Chunk, i: usize) -> bool {
    match chunk.form {
        Form::Int | Form::F32 => chunk.codes[i] == 0,
        Form::F64 => chunk.wide[i] == 0.0,
    }
}

/// Moves the nonzero values of a range, and their places, to its front, without branches: zeros come unpredictably.
fn compact(chunk: &mut Chunk, minors: &mut [u32], range: Range<usize>) -> Range<usize> {
    let (codes, wide) = (&mut chunk.codes[range.clone()], &mut chunk.wide[range.clone()]);
    let minors = &mut minors[range.clone()];
    let mut kept = 0;
    if chunk.form == Form::F64 {
        for i in 0..wide.len() {
            (wide[kept], minors[kept]) = (wide[i], minors[i]);
            kept += usize::from(wide[i] != 0.0);
        }
    } else {
        for i in 0..codes.len() {
            let code = codes[i];
            (codes[kept], minors[kept]) = (code, minors[i]);
            kept += usize::from(code != 0);
        }
    }
    range.start..range.start + kept
}

fn check_indptr<P: Index>(indptr: &[P], indices: usize, data: usize) -> Result<Range<u64>> {
    let (Some(first), Some(last)) = (indptr.first(), indptr.last()) else {
        return Err(Error::invalid("indptr is empty; it needs one entry more than there are lines"));
    };
    if let Some(at) = indptr.windows(2).position(|w| w[1].get() < w[0].get() || w[1].get() > i64::MAX as u64) {
        return Err(Error::invalid(format!("indptr[{}] is negative or less than the entry before it", at + 1)));
    }
    let bounds = first.get()..last.get();
    let span = bounds.end - bounds.start;
    if indices != data || span != data as u64 {
        return Err(Error::invalid(format!("indptr spans {span} entries, but there are {indices} indices and {data} values")));
    }
    Ok(bounds)
}

/// `major` is what the lines are; the index is of the other kind.
fn wrong_index(major: Major, at: usize, index: u64, limit: u32) -> Error {
    let (one, many) = match major {
        Major::Cell => ("gene", "genes"),
        Major::Gene => ("cell", "cells"),
    };
    #[allow(clippy::cast_possible_wrap)]
    let index = index as i64;
    Error::invalid(format!("entry {at} of the pushed data is for {one} {index}, but the matrix has {limit} {many}, numbered from 0"))
}

impl Store {
    fn in_range(&self, major: Major, first: u64, lines: usize) -> Result<()> {
        let (what, limit) = match major {
            Major::Cell => ("cells", self.n_cells),
            Major::Gene => ("genes", self.n_genes),
        };
        match first.checked_add(lines as u64) {
            Some(end) if end <= u64::from(limit) => Ok(()),
            _ => Err(Error::invalid(format!("{lines} {what} from {first} on do not fit a matrix with {limit} {what}"))),
        }
    }

    /// Takes note of a chunk's values, and makes its form and the run's the same.
    #[inline(never)]
    fn admit(&mut self, chunk: &mut Chunk, n: usize) -> Result<()> {
        match chunk.form {
            Form::Int => self.max = self.max.max(chunk.max),
            Form::F32 | Form::F64 => self.integers = false,
        }
        let single = chunk.is_f32(n);
        self.singles &= single;
        let form = match (self.run.form, chunk.form) {
            (Form::Int, form) => form,
            (Form::F32, Form::Int | Form::F32) if single => Form::F32,
            (Form::F32 | Form::F64, _) => Form::F64,
        };
        if form != self.run.form {
            self.seal(form)?;
        }
        chunk.widen(n, form);
        Ok(())
    }

    /// Starts a run of another form.
    fn seal(&mut self, form: Form) -> Result<()> {
        if self.run.is_empty() {
            self.run.reset(form, self.budget_left());
            return Ok(());
        }
        self.run.tidy(self.options.threads)?;
        self.count();
        let used = self.run.chunk_bytes();
        let left = self.budget_left().saturating_sub(used);
        let old = std::mem::replace(&mut self.run, Run::new(form, self.n_cells, self.n_genes, left));
        self.sealed.push(old);
        Ok(())
    }

    fn budget_left(&self) -> usize {
        self.budget.saturating_sub(self.sealed.iter().map(Run::chunk_bytes).sum())
    }

    fn count(&mut self) {
        for (gene, n) in (0..).zip(&mut self.nnz_per_gene) {
            *n += u64::from(self.run.count(gene));
        }
    }

    /// Moves everything in memory to disk.
    fn spill(&mut self) -> Result<()> {
        self.run.tidy(self.options.threads)?;
        self.count();
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(SpillFile::new(&self.options.spill_dir)?),
        };
        for run in self.sealed.drain(..) {
            self.spilled.push(file.write(&run, self.n_cells, self.n_genes)?);
        }
        self.spilled.push(file.write(&self.run, self.n_cells, self.n_genes)?);
        tracing::debug!(bytes = self.run.chunk_bytes(), runs = self.spilled.len(), "spilled a run of a transposition");
        let form = self.run.form;
        self.run.reset(form, self.budget);
        Ok(())
    }

    #[inline(never)]
    fn add(&mut self, places: &Places<'_>, chunk: &Chunk, range: Range<usize>) -> Result<()> {
        let codes = &chunk.codes[range.clone()];
        match chunk.form {
            Form::Int => {
                if let Places::Row(cell, _) = places {
                    #[allow(clippy::cast_precision_loss)]
                    let sum = codes.iter().map(|c| u64::from(*c)).sum::<u64>() as f64;
                    self.sums[*cell as usize] += sum;
                }
                self.add_codes(places, codes, |c| IntCode(*c), |c| f64::from(c.0))
            }
            Form::F32 => self.add_codes(places, codes, |c| SingleCode(*c), |c| f64::from(f32::from_bits(c.0))),
            Form::F64 => self.add_codes(places, &chunk.wide[range], |c| DoubleCode(*c), |c| c.0),
        }
    }

    #[inline(always)]
    fn add_codes<S, C: Code>(&mut self, places: &Places<'_>, codes: &[S], code: impl Fn(&S) -> C, float: impl Fn(C) -> f64) -> Result<()> {
        match *places {
            Places::Row(cell, genes) => {
                let mut sum = 0.0;
                for (gene, c) in genes.iter().zip(codes) {
                    let c = code(c);
                    // Integers were summed before, exactly and faster.
                    if C::FORM != Form::Int {
                        sum += float(c);
                    }
                    self.push(*gene, cell, c)?;
                }
                self.sums[cell as usize] += sum;
            }
            Places::Column(gene, cells) => {
                for (cell, c) in cells.iter().zip(codes) {
                    let c = code(c);
                    self.sums[*cell as usize] += float(c);
                    self.push(gene, *cell, c)?;
                }
            }
            Places::Each(genes, cells) => {
                for ((gene, cell), c) in genes.iter().zip(cells).zip(codes) {
                    let c = code(c);
                    self.sums[*cell as usize] += float(c);
                    self.push(*gene, *cell, c)?;
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn push<C: Code>(&mut self, gene: u32, cell: u32, code: C) -> Result<()> {
        match self.run.push(gene, cell, code) {
            Taken::Yes => Ok(()),
            not => self.push_again(gene, cell, code, not),
        }
    }

    #[cold]
    #[inline(never)]
    fn push_again<C: Code>(&mut self, gene: u32, cell: u32, code: C, taken: Taken) -> Result<()> {
        if taken == Taken::Full {
            self.spill()?;
            if self.run.push(gene, cell, code) == Taken::Yes {
                return Ok(());
            }
        }
        // More entries than cells: sorting finds which cell is repeated.
        self.run.tidy(1)?;
        Err(Error::internal(format!("gene {gene} can't take an entry for cell {cell}")))
    }

    fn finish(mut self) -> Result<Transposed> {
        self.run.tidy(self.options.threads)?;
        self.count();
        self.sealed.push(self.run);
        let value_type = match (self.integers, self.singles) {
            (true, _) if self.max <= u32::from(u16::MAX) => ValueType::UInt16,
            (true, _) => ValueType::UInt32,
            (false, true) => ValueType::Float32,
            (false, false) => ValueType::Float64,
        };
        // A cell without a finite total has none to be scaled by. An infinite one would scale all its values to zero.
        #[allow(clippy::cast_possible_truncation)]
        let totals: Vec<f32> = self.sums.iter().map(|s| *s as f32).map(|s| if s.is_finite() { s } else { f32::NAN }).collect();
        Ok(Transposed {
            n_cells: self.n_cells,
            n_genes: self.n_genes,
            value_type,
            nnz_per_gene: self.nnz_per_gene,
            totals,
            runs: self.sealed,
            spilled: self.spilled,
            file: self.file,
        })
    }
}
