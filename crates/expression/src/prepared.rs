//! A spec's groups as the kernel takes them, and a cache of them.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use arrow::array::{Array, Float32Array};
use skytether_common::Result;

use crate::kernel::Codes;
use crate::spec::MomentsSpec;

/// Everything that the kernel needs to know about the cells for one spec.
#[derive(Debug)]
pub struct Prepared {
    /// The groups' names. Groups are numbered by position; cells in no group have the number `names.len()`.
    pub names: Arc<[String]>,
    /// The group's number of each cell.
    pub codes: Codes,
    /// Per block and group (the last: no group), how many cells it has.
    pub counts: Vec<Vec<u32>>,
    /// The cells' totals, where the transform needs them.
    pub totals: Option<Arc<Float32Array>>,
    /// The obs column that the groups came from, to tell whether the source still gives the same: while this is here, no other array can have its address. The array itself
    /// is the source's to keep or to let go.
    pub(crate) column: Option<Weak<dyn Array>>,
}

impl Prepared {
    /// Number of groups, that of the cells in no group included.
    #[must_use]
    pub fn width(&self) -> usize {
        self.names.len() + 1
    }

    /// Number of cells.
    #[must_use]
    pub fn n_cells(&self) -> u32 {
        self.codes.len() as u32
    }

    /// Bytes of memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.codes.len() * 2 + self.counts.len() * self.width() * 4
    }
}

/// A few specs already resolved, shared by the accumulators of an aggregate function and, where the source keeps them
/// ([`CellSource::prepared`](crate::CellSource::prepared)), by its queries: a query over partitions and its repetition
/// resolve once. An entry counts only while the source still answers with the very same arrays.
#[derive(Debug, Default)]
pub struct PreparedCache(Mutex<Vec<(MomentsSpec, Arc<Prepared>)>>);

impl PreparedCache {
    const KEEP: usize = 4;

    /// The entry of `spec` where `still_holds` says so of it, otherwise what `resolve` makes.
    ///
    /// # Errors
    /// Those of `still_holds` and `resolve`.
    pub(crate) fn get_or_resolve(
        &self,
        spec: &MomentsSpec,
        still_holds: impl FnOnce(&Prepared) -> Result<bool>,
        resolve: impl FnOnce() -> Result<Prepared>,
    ) -> Result<Arc<Prepared>> {
        // Held while resolving: the other partitions of the same query wait for the result rather than doing the same.
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|(s, _)| s == spec) {
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
