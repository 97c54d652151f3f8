//! The aggregate `clipped_moments(idx, val, block, gene_id, spec)` over the sparse rows of a matrix: moments of
//! `min(value, clip)`, where each gene and group of cells has a clip of its own.
//!
//! Seurat's third method for highly variable genes (Stuart et al., Cell 177:1888, 2019) needs them: it clips the
//! standardised values of a gene. The result and the state are those of `moments`; sums follow from mean and M2.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::logical_expr::AggregateUDF;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use crate::cells::CellSource;
use crate::groups::Prepared;
use crate::kernel::{Value, each_value};
use crate::sparse::{OverRows, Row, udaf};
use crate::spec::{MomentsSpec, pack_doubles, read_spec, unpack_doubles, write_spec};
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
        write_spec(CLIPPED_MOMENTS, self)
    }

    /// Reads [`ClippedSpec::to_literal`]'s text back.
    ///
    /// # Errors
    /// Invalid where it is anything else.
    pub fn from_literal(text: &str) -> Result<Self> {
        read_spec(CLIPPED_MOMENTS, text)
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
    udaf::<Clipped>(source)
}

#[derive(Debug)]
struct Clipped {
    clips: Vec<f64>,
    /// Of each group: number of nonzeros, sum, sum of squares.
    sums: Vec<(u64, f64, f64)>,
}

impl OverRows for Clipped {
    const NAME: &'static str = CLIPPED_MOMENTS;
    const WITH_GENE: bool = true;
    type Spec = ClippedSpec;
    type Store = MomentStore;

    fn read(text: &str) -> Result<ClippedSpec> {
        ClippedSpec::from_literal(text)
    }

    fn cells(spec: &ClippedSpec) -> &MomentsSpec {
        &spec.of
    }

    fn begin(spec: &ClippedSpec, _: &Prepared) -> Result<Self> {
        Ok(Self { clips: spec.clips()?, sums: Vec::new() })
    }

    fn reserve(&mut self, _: &ClippedSpec, prepared: &Prepared, store: &mut MomentStore, rows: usize, _: &DataType) -> Result<()> {
        store.reserve_same(&prepared.names, rows)
    }

    fn row<T: Value>(&mut self, _: &ClippedSpec, store: &mut MomentStore, at: usize, row: &Row<'_, T>) -> Result<()> {
        let width = row.prepared.width();
        let start = (row.gene as usize).saturating_mul(width);
        let Some(clip) = self.clips.get(start..start.saturating_add(width)) else {
            return Err(Error::invalid(format!("clipped_moments has no clips for gene {}: give {width} for each gene", row.gene)));
        };
        let sums = &mut self.sums;
        sums.clear();
        sums.resize(width, (0, 0.0, 0.0));
        let put = |group: u16, y: f64| {
            let group = usize::from(group);
            let y = y.min(clip[group]);
            let of = &mut sums[group];
            *of = (of.0 + 1, of.1 + y, of.2 + y * y);
        };
        each_value(row.block, row.idx, row.val, put).map_err(|fault| row.failed(fault))?;
        for (group, ((nnz, sum, squares), &n)) in sums.iter().zip(row.prepared.counts(row.number)).enumerate() {
            if n > 0 {
                store.merge(at, group, &GroupMoments::of_sums(u64::from(n), *nnz, *sum, *squares));
            }
        }
        Ok(())
    }

    fn size(&self) -> usize {
        self.clips.len() * size_of::<f64>()
    }
}
