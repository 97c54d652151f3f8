//! The aggregate `moments(idx, val, block, spec)` over the sparse rows of a matrix.
//!
//! `spec` is the literal of [`MomentsSpec`]. The result and the state are those of [`crate::store`]: groups' names
//! travel in the state.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::logical_expr::AggregateUDF;
use skytether_common::Result;

use crate::cells::CellSource;
use crate::groups::Prepared;
use crate::kernel::{Kernel, Value, cancels, two_pass_moments};
use crate::sparse::{OverRows, Row, udaf};
use crate::spec::{MomentsSpec, Squares};
use crate::store::MomentStore;
use crate::ttest::GroupMoments;

/// The name of the aggregate in queries.
pub const MOMENTS: &str = "moments";

/// The aggregate `moments`, which learns about cells from `source`.
#[must_use]
pub fn moments_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    udaf::<Moments>(source)
}

#[derive(Debug)]
struct Moments {
    kernel: Kernel,
}

impl OverRows for Moments {
    const NAME: &'static str = MOMENTS;
    type Spec = MomentsSpec;
    type Store = MomentStore;

    fn read(text: &str) -> Result<MomentsSpec> {
        MomentsSpec::from_literal(text)
    }

    fn cells(spec: &MomentsSpec) -> &MomentsSpec {
        spec
    }

    fn begin(spec: &MomentsSpec, prepared: &Prepared) -> Result<Self> {
        Ok(Self { kernel: Kernel::new(prepared.width(), spec.squares) })
    }

    fn reserve(&mut self, _: &MomentsSpec, prepared: &Prepared, store: &mut MomentStore, rows: usize, _: &DataType) -> Result<()> {
        store.reserve_same(&prepared.names, rows)
    }

    fn row<T: Value>(&mut self, spec: &MomentsSpec, store: &mut MomentStore, at: usize, row: &Row<'_, T>) -> Result<()> {
        let exact = spec.squares == Squares::Float64;
        let counts = row.prepared.counts(row.number);
        let sums = self.kernel.row(row.block, row.idx, row.val).map_err(|fault| row.failed(fault))?;
        let mut again: Option<Vec<GroupMoments>> = None;
        for (g, (sums, &n)) in sums.iter().zip(counts).enumerate() {
            if n > 0 {
                let mut moments = GroupMoments::of_sums(u64::from(n), sums[2] as u64, sums[0], sums[1]);
                // Squares in float32 mean that the query wants scanpy's rounding as it is.
                if exact && cancels(&moments, sums[1]) {
                    moments = again.get_or_insert_with(|| two_pass_moments(row.block, row.idx, row.val, counts))[g];
                }
                store.merge(at, g, &moments);
            }
        }
        Ok(())
    }

    fn size(&self) -> usize {
        self.kernel.size()
    }
}
