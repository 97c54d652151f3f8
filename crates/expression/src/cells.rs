//! The cells of a data set, as far as grouped moments need them.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use skytether_common::{Blocks, DatasetName, Result};

use crate::prepared::PreparedCache;

/// The cells of data sets: numbered from 0 in the order of `obs`.
///
/// Drives implement this over their own copies of `obs` and `cells`, hosts over what they fetched before. Calls come
/// from the middle of a running query, so they must not wait for anything but local memory or disk, and should be
/// cached: the same array (by address) for the same content lets prepared groups be used again.
pub trait CellSource: Send + Sync + Debug {
    /// The number of cells.
    ///
    /// # Errors
    /// Not found where there is no such data set.
    fn n_cells(&self, dataset: &DatasetName) -> Result<u32>;

    /// The blocks of cells that the rows of `matrix` are about, or those of its parts whose rows the caller gets: an
    /// append adds a part. By default there is one part, of all cells.
    ///
    /// # Errors
    /// As [`Self::n_cells`].
    fn blocks(&self, dataset: &DatasetName, matrix: &str) -> Result<Blocks> {
        let _ = matrix;
        self.n_cells(dataset).map(Blocks::whole)
    }

    /// One column of `obs`, a value per cell.
    ///
    /// # Errors
    /// Not found, naming the column and listing those that there are.
    fn obs_column(&self, dataset: &DatasetName, column: &str) -> Result<ArrayRef>;

    /// The cells' names, any of Arrow's string types. They may repeat.
    ///
    /// # Errors
    /// Not found where there is no such data set.
    fn cell_names(&self, dataset: &DatasetName) -> Result<ArrayRef>;

    /// The sum of each cell's values over all genes of `matrix`.
    ///
    /// # Errors
    /// Not found where there is no such data set or matrix.
    fn totals(&self, dataset: &DatasetName, matrix: &str) -> Result<Arc<Float32Array>>;

    /// The cache of resolved groups. A source that is made for each query returns one that outlives it, so that a
    /// repeated query finds its groups. By default the cache lives as long as the aggregate function that uses it.
    fn prepared(&self) -> Arc<PreparedCache> {
        Arc::default()
    }
}
