//! The result of a transposition: gene-major rows, block by block, merged from all runs.

use std::ops::Range;

use skytether_common::{Error, Result};
use skytether_slice::{BLOCK, ValueType, Values};

use crate::records::Decoded;
use crate::run::{Cursor, Run, repeated};
use crate::spill::{SectionReader, SpillFile, SpilledRun, block_end};

/// Called with gene, block, the cells of the row (absolute numbers, ascending) and their values.
pub type RowFn<'f> = dyn FnMut(u32, u32, &[u32], Values<'_>) -> Result<()> + 'f;

/// A matrix by genes.
#[derive(Debug)]
pub struct Transposed {
    pub(crate) n_cells: u32,
    pub(crate) n_genes: u32,
    pub(crate) value_type: ValueType,
    pub(crate) nnz_per_gene: Vec<u64>,
    pub(crate) totals: Vec<f32>,
    /// Tidy runs in memory.
    pub(crate) runs: Vec<Run>,
    pub(crate) spilled: Vec<SpilledRun>,
    pub(crate) file: Option<SpillFile>,
}

impl Transposed {
    /// Number of cells.
    #[must_use]
    pub fn n_cells(&self) -> u32 {
        self.n_cells
    }

    /// Number of genes.
    #[must_use]
    pub fn n_genes(&self) -> u32 {
        self.n_genes
    }

    /// Number of blocks of [`BLOCK`] cells; the last one may be shorter.
    #[must_use]
    pub fn n_blocks(&self) -> u32 {
        self.n_cells.div_ceil(BLOCK)
    }

    /// Number of nonzero values.
    #[must_use]
    pub fn nnz(&self) -> u64 {
        self.nnz_per_gene.iter().sum()
    }

    /// Number of nonzero values of each gene.
    #[must_use]
    pub fn nnz_per_gene(&self) -> &[u64] {
        &self.nnz_per_gene
    }

    /// The narrowest type that holds every value exactly.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        self.value_type
    }

    /// The sum of each cell's values, added up in 64 bits and then rounded.
    #[must_use]
    pub fn totals(&self) -> &[f32] {
        &self.totals
    }

    /// How many runs went to disk: 0 means that the memory limit was enough.
    #[must_use]
    pub fn spilled_runs(&self) -> usize {
        self.spilled.len()
    }

    /// Calls `f` for every block and gene of `genes`, in (block, gene) order, empty rows included. Values are of
    /// [`Transposed::value_type`]. Needs about 2 MiB, 16 bytes per gene of the range and 128 KiB per spilled run.
    /// May be called as often as wanted, and at the same time by several threads.
    ///
    /// # Errors
    /// A range beyond the genes, a (gene, cell) that was pushed twice with a spill or a change of value type in
    /// between, a failing disk, and what `f` returns.
    pub fn rows(&self, genes: Range<u32>, f: &mut RowFn<'_>) -> Result<()> {
        if genes.start > genes.end || genes.end > self.n_genes {
            return Err(Error::invalid(format!("genes {}..{} of a matrix with {} genes", genes.start, genes.end, self.n_genes)));
        }
        match self.value_type {
            ValueType::UInt16 => self.rows_as(genes, f, |v: &[u16]| Values::U16(v)),
            ValueType::UInt32 => self.rows_as(genes, f, |v: &[u32]| Values::U32(v)),
            ValueType::Float32 => self.rows_as(genes, f, |v: &[f32]| Values::F32(v)),
            ValueType::Float64 => self.rows_as(genes, f, |v: &[f64]| Values::F64(v)),
        }
    }

    fn rows_as<T: Decoded>(&self, genes: Range<u32>, f: &mut RowFn<'_>, wrap: impl Fn(&[T]) -> Values<'_>) -> Result<()> {
        let mut places: Vec<Vec<Cursor>> = self.runs.iter().map(|run| genes.clone().map(|g| run.start(g)).collect()).collect();
        let (mut scratch, mut row) = (Vec::new(), Row::<T>::default());
        for block in 0..self.n_blocks() {
            let (start, end) = (block * BLOCK, block_end(block, self.n_cells));
            let mut sections: Vec<SectionReader<'_>> = Vec::new();
            if let Some(file) = self.file.as_ref().filter(|_| !genes.is_empty()) {
                for run in &self.spilled {
                    sections.extend(run.section(file, block, genes.start)?);
                }
            }
            for (i, gene) in genes.clone().enumerate() {
                row.clear();
                for section in &mut sections {
                    section.read(start, end, &mut row.cells, &mut row.values)?;
                    row.joined();
                }
                for (run, places) in self.runs.iter().zip(&mut places) {
                    run.read(gene, &mut places[i], end, &mut scratch, &mut row.cells, &mut row.values)?;
                    row.joined();
                }
                if !row.ascending {
                    row.merge(gene)?;
                }
                f(gene, block, &row.cells, wrap(&row.values))?;
            }
        }
        Ok(())
    }
}

/// A row being put together from runs.
#[derive(Default)]
struct Row<T> {
    cells: Vec<u32>,
    values: Vec<T>,
    /// Length before the last run.
    before: usize,
    ascending: bool,
    pairs: Vec<(u32, T)>,
}

impl<T: Decoded> Row<T> {
    fn clear(&mut self) {
        self.cells.clear();
        self.values.clear();
        (self.before, self.ascending) = (0, true);
    }

    /// Looks at the joint after a run was added.
    fn joined(&mut self) {
        if self.before > 0 && self.before < self.cells.len() {
            self.ascending &= self.cells[self.before - 1] < self.cells[self.before];
        }
        self.before = self.cells.len();
    }

    fn merge(&mut self, gene: u32) -> Result<()> {
        self.pairs.clear();
        self.pairs.extend(self.cells.iter().copied().zip(self.values.iter().copied()));
        // The stable sort finds the ascending stretches and merges them.
        self.pairs.sort_by_key(|p| p.0);
        if let Some(pair) = self.pairs.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(repeated(gene, pair[0].0));
        }
        for (i, (cell, value)) in self.pairs.iter().enumerate() {
            (self.cells[i], self.values[i]) = (*cell, *value);
        }
        Ok(())
    }
}
