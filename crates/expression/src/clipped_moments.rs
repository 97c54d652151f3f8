//! The aggregate `clipped_moments(idx, val, block, gene_id, spec)` over the sparse rows of a matrix: moments of
//! `min(value, clip)`, where each gene and group of cells has a clip of its own.
//!
//! Seurat's third method for highly variable genes (Stuart et al., Cell 177:1888, 2019) needs them: it clips the
//! standardised values of a gene. The result and the state are those of `moments`; sums follow from mean and M2.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, UInt16Type, UInt32Type};
use datafusion::logical_expr::AggregateUDF;
use datafusion::physical_plan::PhysicalExpr;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use crate::aggregate::{Call, Input, aggregate, passes, text_literal};
use crate::cell_sums::{genes_of, with_gene};
use crate::cells::CellSource;
use crate::groups::{Prepared, PreparedCache};
use crate::kernel::{Tabulated, Value, each_value};
use crate::moments::{Columns, explain, open_block};
use crate::spec::{MAX_LITERAL, MomentsSpec, pack_doubles, shorten, unpack_doubles};
use crate::store::MomentStore;
use crate::ttest::GroupMoments;

/// The name of the aggregate in queries.
pub const CLIPPED_MOMENTS: &str = "clipped_moments";

/// The most clips: 512 MiB.
const MAX_CLIPS: usize = 1 << 26;

/// The literal argument of `clipped_moments`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClippedSpec {
    /// Cells, groups and transform, as `moments` takes them.
    pub of: MomentsSpec,
    /// For each gene, from gene 0 on, the clip of each group and of the cells in none: doubles as
    /// [`crate::spec::pack_doubles`] writes them.
    pub clips: String,
}

impl ClippedSpec {
    /// A spec with these clips.
    ///
    /// # Errors
    /// Internal, should compression ever fail.
    pub fn new(of: MomentsSpec, clips: &[f64]) -> Result<Self> {
        Ok(Self { of, clips: pack_doubles(clips)? })
    }

    /// The JSON text, on one line.
    ///
    /// # Errors
    /// Internal, should JSON ever fail to hold it.
    pub fn to_literal(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::internal("cannot write the spec of clipped_moments").with_source(e))
    }

    /// Reads [`ClippedSpec::to_literal`]'s text back.
    ///
    /// # Errors
    /// Invalid where it is anything else.
    pub fn from_literal(text: &str) -> Result<Self> {
        if text.len() > MAX_LITERAL {
            return Err(Error::invalid(format!("the spec of clipped_moments is longer than {MAX_LITERAL} bytes")));
        }
        serde_json::from_str(text).map_err(|e| Error::invalid(format!("{:?} is no spec of clipped_moments", shorten(text))).with_source(e))
    }

    /// The clips, a number for each gene and group.
    ///
    /// # Errors
    /// Invalid where they are no numbers, or too many.
    pub fn clips(&self) -> Result<Vec<f64>> {
        let clips = unpack_doubles(&self.clips, MAX_CLIPS, "the clips of clipped_moments")?;
        match clips.iter().position(|c| c.is_nan() || *c < 0.0) {
            Some(at) => Err(Error::invalid(format!("clip {at} of clipped_moments is {}: give numbers from 0 on", clips[at]))),
            None => Ok(clips),
        }
    }
}

/// The aggregate `clipped_moments`, which learns about cells from `source`.
#[must_use]
pub fn clipped_moments_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    let cache = source.prepared();
    aggregate(Clipped { source, cache })
}

#[derive(Debug)]
struct Clipped {
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
}

fn usage() -> Error {
    Error::invalid("clipped_moments(idx, val, block, gene_id, spec) takes the columns of sparse rows and a spec (text)")
}

impl Call for Clipped {
    const NAME: &'static str = CLIPPED_MOMENTS;
    type Input = SparseRows;

    fn source(&self) -> &Arc<dyn CellSource> {
        &self.source
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        with_gene(CLIPPED_MOMENTS, types).map_err(|_| usage())
    }

    fn input(&self, args: &[Arc<dyn PhysicalExpr>]) -> Result<SparseRows> {
        let [_, _, _, _, spec] = args else { return Err(usage()) };
        let text = text_literal(spec)?.ok_or_else(|| Error::invalid("the spec of clipped_moments must be a text, not NULL"))?;
        let spec = Arc::new(ClippedSpec::from_literal(&text)?);
        Ok(SparseRows { spec, source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None })
    }
}

/// What exists once the first rows have come.
#[derive(Debug)]
struct Ready {
    prepared: Arc<Prepared>,
    clips: Arc<Vec<f64>>,
    table: Option<(u32, Arc<Tabulated>)>,
    /// Of each group: number of nonzeros, sum, sum of squares.
    sums: Vec<(u64, f64, f64)>,
}

/// Sparse rows as input.
#[derive(Debug)]
struct SparseRows {
    spec: Arc<ClippedSpec>,
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
    ready: Option<Ready>,
}

impl SparseRows {
    fn typed<T>(&mut self, store: &mut MomentStore, columns: &Columns<'_>, genes: &[u32], groups: &[usize], filter: Option<&BooleanArray>) -> Result<()>
    where
        T: ArrowPrimitiveType,
        T::Native: Value,
    {
        let Some(Ready { prepared, clips, table, sums }) = &mut self.ready else { return Err(Error::internal("the groups are not resolved")) };
        let width = prepared.width();
        let val = columns.val.values().as_primitive::<T>().values();
        let idx = columns.idx.values().as_primitive::<UInt32Type>().values();
        let mut block = None;
        for (i, &row) in groups.iter().enumerate() {
            if !passes(filter, i) {
                continue;
            }
            let number = columns.block[i];
            if block.as_ref().is_none_or(|(n, _)| *n != number) {
                block = Some((number, open_block(prepared, number, table, &self.spec.of)?));
            }
            let Some((_, open)) = &block else { continue };
            let start = (genes[i] as usize).saturating_mul(width);
            let Some(clip) = clips.get(start..start.saturating_add(width)) else {
                return Err(Error::invalid(format!("clipped_moments has no clips for gene {}: give {width} for each gene", genes[i])));
            };
            let cells = columns.idx.value_offsets()[i] as usize..columns.idx.value_offsets()[i + 1] as usize;
            let values = columns.val.value_offsets()[i] as usize..columns.val.value_offsets()[i + 1] as usize;
            sums.clear();
            sums.resize(width, (0, 0.0, 0.0));
            let put = |group: u16, y: f64| {
                let group = usize::from(group);
                let y = y.min(clip[group]);
                let of = &mut sums[group];
                *of = (of.0 + 1, of.1 + y, of.2 + y * y);
            };
            each_value(open, &idx[cells], &val[values], put).map_err(|fault| explain(fault, i, number, &self.spec.of, prepared))?;
            for (group, ((nnz, sum, squares), &n)) in sums.iter().zip(&prepared.counts[number as usize]).enumerate() {
                if n > 0 {
                    store.merge(row, group, &GroupMoments::of_sums(u64::from(n), *nnz, *sum, *squares));
                }
            }
        }
        Ok(())
    }
}

impl Input for SparseRows {
    type Store = MomentStore;

    fn update(&mut self, store: &mut MomentStore, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()> {
        let columns = Columns::open(CLIPPED_MOMENTS, values)?;
        let genes = genes_of(CLIPPED_MOMENTS, values)?;
        if self.ready.is_none() {
            let prepared = self.cache.get(&self.spec.of, self.source.as_ref())?;
            self.ready = Some(Ready { prepared, clips: Arc::new(self.spec.clips()?), table: None, sums: Vec::new() });
        }
        if let Some(ready) = &self.ready {
            store.reserve(&ready.prepared.names, rows)?;
            if store.names() != Some(&ready.prepared.names) {
                return Err(Error::internal("rows and states of different groups met in one accumulator"));
            }
        }
        match columns.val.values().data_type() {
            DataType::UInt16 => self.typed::<UInt16Type>(store, &columns, genes, groups, filter),
            DataType::UInt32 => self.typed::<UInt32Type>(store, &columns, genes, groups, filter),
            DataType::Float32 => self.typed::<Float32Type>(store, &columns, genes, groups, filter),
            DataType::Float64 => self.typed::<Float64Type>(store, &columns, genes, groups, filter),
            _ => Err(usage()),
        }
    }

    fn size(&self) -> usize {
        self.ready.as_ref().map_or(0, |r| r.clips.len() * size_of::<f64>() + r.prepared.size() + r.table.as_ref().map_or(0, |(_, t)| t.size()))
    }

    fn fresh(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None }
    }
}
