//! The cells for grouped moments, from the drive's own copies of `obs` and `cells`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use skytether_common::{Blocks, DatasetName, Error, Result};
use skytether_expression::CellSource;
use skytether_expression::groups::PreparedCache;

use crate::ticket::Ticket;

/// The cells of the one data set that a sub-plan may see.
#[derive(Debug)]
pub(crate) struct TicketCells(pub(crate) Ticket);

impl TicketCells {
    fn check(&self, dataset: &DatasetName) -> Result<()> {
        if *dataset == self.0.dataset {
            return Ok(());
        }
        Err(Error::invalid(format!("the sub-plan asks for cells of {dataset}, but it may read only {}", self.0.dataset)))
    }
}

impl CellSource for TicketCells {
    fn n_cells(&self, dataset: &DatasetName) -> Result<u32> {
        self.check(dataset)?;
        let obs = self.0.open("obs")?;
        u32::try_from(obs.metadata.rows).map_err(|_| Error::corrupt(format!("{} has {} rows: too many for cells", obs.title(), obs.metadata.rows)))
    }

    /// Those of the partition that the sub-plan reads, whichever matrix the spec names.
    fn blocks(&self, dataset: &DatasetName, _: &str) -> Result<Blocks> {
        self.check(dataset)?;
        match self.0.blocks()? {
            Some(blocks) => Ok(blocks),
            None => self.n_cells(dataset).map(Blocks::whole),
        }
    }

    fn obs_column(&self, dataset: &DatasetName, column: &str) -> Result<ArrayRef> {
        self.check(dataset)?;
        let obs = self.0.open("obs")?;
        self.0.reader.column(&obs, column)
    }

    fn cell_names(&self, dataset: &DatasetName) -> Result<ArrayRef> {
        self.obs_column(dataset, "cell")
    }

    fn totals(&self, dataset: &DatasetName, matrix: &str) -> Result<Arc<Float32Array>> {
        self.check(dataset)?;
        let cells = self.0.open("cells")?;
        self.0.reader.totals(&cells, &format!("total_{matrix}"))
    }

    fn prepared(&self) -> Arc<PreparedCache> {
        self.0.reader.prepared()
    }
}
