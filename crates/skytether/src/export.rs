//! Exports a table as one Parquet file on disk, made of its stored slices.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::Serialize;
use skytether_common::{DatasetName, Error, Result};
use skytether_host::{Exported, ParquetView, Places, Sink, ViewParts};

use crate::fleet::Fleet;
use skytether_formats::atomic_file::AtomicFile;

/// What an export wrote, and the time it took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExportReport {
    /// Rows.
    pub rows: u64,
    /// Row groups, which are the stripes that were stored.
    pub row_groups: u64,
    /// Slices.
    pub slices: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
}

/// A callback with the bytes done and the total; its error ends the export.
type ExportProgress<'a> = Box<dyn FnMut(u64, u64) -> Result<()> + Send + 'a>;

/// A file that a blocking thread writes while slices arrive.
struct Writing<'a> {
    /// Lent to that thread while it writes.
    file: Option<AtomicFile>,
    done: u64,
    total: u64,
    progress: ExportProgress<'a>,
}

impl Sink for Writing<'_> {
    fn begin(&mut self, bytes: u64) {
        self.total = bytes;
    }

    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let mut file = self.file.take().ok_or_else(|| Error::internal("an export that failed goes on"))?;
        let len = bytes.len() as u64;
        let written = tokio::task::spawn_blocking(move || file.write(&bytes).map(|()| file)).await;
        self.file = Some(written.map_err(|e| Error::internal("writing a file was interrupted").with_source(e))??);
        self.done += len;
        (self.progress)(self.done, self.total.max(self.done))
    }
}

impl Fleet {
    /// The Parquet view of this fleet.
    ///
    /// # Errors
    /// `Unavailable` where a remote host does not answer.
    pub fn door(&self) -> BoxFuture<'_, Result<ParquetView>> {
        Box::pin(async move {
            let ViewParts { catalog, records } = self.service().view_parts().await?;
            Ok(ParquetView::new(catalog, records))
        })
    }

    /// Which drives hold which values of the data set `name`, as the drives say.
    ///
    /// # Errors
    /// `NotFound` for an unknown data set; `Unavailable` where a remote host does not answer. A drive that does not
    /// answer is named in the answer.
    pub fn places<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<Places>> {
        Box::pin(async move {
            let ViewParts { catalog, records } = self.service().view_parts().await?;
            skytether_host::places(&catalog, records.as_ref(), name).await
        })
    }

    /// Exports the table `domain.dataset`, or `domain.dataset.table` of an expression data set, to the Parquet file
    /// `to`. The file is there whole or not at all. `progress` gets the bytes done and the total without the footer;
    /// its error ends the export.
    ///
    /// # Errors
    /// `Conflict` where the file exists and `replace` is false, or the data set is replaced meanwhile; `NotFound` for
    /// an unknown table; `Unsupported` for the dense view of a matrix; `Corrupt` for damage beyond repair; `Exhausted`
    /// for a full disk; `Unavailable`.
    pub fn export<'a>(
        &'a self,
        table: &'a str,
        to: impl AsRef<Path>,
        replace: bool,
        progress: impl FnMut(u64, u64) -> Result<()> + Send + 'a,
    ) -> BoxFuture<'a, Result<ExportReport>> {
        self.write_file(table, to.as_ref().to_owned(), replace, Box::new(progress))
    }

    fn write_file<'a>(&'a self, table: &'a str, to: PathBuf, replace: bool, progress: ExportProgress<'a>) -> BoxFuture<'a, Result<ExportReport>> {
        Box::pin(async move {
            let started = Instant::now();
            let file = AtomicFile::begin(&to, replace)?;
            let mut writing = Writing { file: Some(file), done: 0, total: 0, progress };
            let Exported { rows, row_groups, slices, bytes } = self.door().await?.export(table, &mut writing).await?;
            let file = writing.file.take().ok_or_else(|| Error::internal("an export without its file"))?;
            tokio::task::spawn_blocking(move || file.finish()).await.map_err(|e| Error::internal("writing a file was interrupted").with_source(e))??;
            Ok(ExportReport { rows, row_groups, slices, bytes, seconds: started.elapsed().as_secs_f64() })
        })
    }
}
