//! The groups of a spec in the kernel's form, and a cache of them.

use std::sync::{Arc, Weak};

use arrow::array::{Array, Float32Array};
use parking_lot::Mutex;
use skytether_common::{Blocks, Result};
use skytether_runtime::waiting;

use crate::kernel::Codes;
use crate::log1p::Formula;
use crate::spec::MomentsSpec;

/// The groups of a spec and the totals of the cells, in the kernel's form.
#[derive(Debug)]
pub struct Prepared {
    /// The groups' names. A group's number is its position; cells in no group have the number `names.len()`.
    pub names: Arc<[String]>,
    /// The group number of each cell.
    pub codes: Codes,
    /// The blocks of the rows that there may be.
    pub blocks: Blocks,
    /// The number of cells per group (the last entry: cells in no group) in each of `blocks`, in their order.
    pub(crate) counts: Vec<Vec<u32>>,
    /// The number of cells per group in all.
    pub(crate) cells: Vec<u64>,
    /// The cells' totals, where there is a transform; all 1 where it needs none.
    pub totals: Option<Arc<Float32Array>>,
    /// The arithmetic of the transform; there are totals exactly where there is one.
    pub(crate) formula: Option<Formula>,
    /// The obs column of the groups, to recognise whether the source still returns the same array. While this reference
    /// exists, no other array can have its address. It does not keep the array's values.
    pub(crate) column: Option<Weak<dyn Array>>,
}

impl Prepared {
    /// Number of groups, including that of the cells in no group.
    #[must_use]
    pub fn width(&self) -> usize {
        self.names.len() + 1
    }

    /// Number of cells.
    #[must_use]
    pub fn n_cells(&self) -> u32 {
        self.codes.len() as u32
    }

    /// The number of cells per group in block `number`.
    pub(crate) fn counts(&self, number: u32) -> &[u32] {
        self.blocks.place(number).and_then(|at| self.counts.get(at)).map_or(&[], Vec::as_slice)
    }

    /// Bytes of memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.codes.len() * 2 + self.counts.len() * self.width() * 4
    }
}

/// The last few specs that were resolved. The accumulators of an aggregate function share it, so that a query over many
/// partitions resolves its spec once. A source may keep it for longer
/// ([`CellSource::prepared`](crate::CellSource::prepared)), so that a repeated query finds its groups. An entry is
/// valid while the source returns the same arrays. The parts of a matrix have entries of their own.
#[derive(Debug, Default)]
pub struct PreparedCache(Mutex<Vec<(MomentsSpec, Arc<Prepared>)>>);

impl PreparedCache {
    const KEEP: usize = 8;

    /// The cached entry of `spec` if `still_holds` returns true for it, otherwise the result of `resolve`.
    ///
    /// # Errors
    /// Those of `still_holds` and `resolve`.
    pub(crate) fn get_or_resolve(
        &self,
        spec: &MomentsSpec,
        blocks: &Blocks,
        still_holds: impl FnOnce(&Prepared) -> Result<bool>,
        resolve: impl FnOnce() -> Result<Prepared>,
    ) -> Result<Arc<Prepared>> {
        // The lock is held while resolving, so that other partitions of the query wait for the result instead of
        // resolving too. The source may wait for a task of this runtime: those who wait here must leave threads to it.
        let mut kept = self.0.try_lock().unwrap_or_else(|| waiting(|| self.0.lock()));
        if let Some(at) = kept.iter().position(|(s, p)| s == spec && p.blocks == *blocks) {
            let entry = kept.remove(at);
            if still_holds(&entry.1)? {
                let found = Arc::clone(&entry.1);
                kept.push(entry);
                return Ok(found);
            }
        }
        let prepared = Arc::new(resolve()?);
        if kept.len() >= Self::KEEP {
            kept.remove(0);
        }
        kept.push((spec.clone(), Arc::clone(&prepared)));
        Ok(prepared)
    }
}
