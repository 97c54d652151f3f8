//! The north door: what a fleet does for its callers, whether it is in this process or behind a connection.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};
use futures::future::BoxFuture;
use skytether_catalog::indexes::{IndexInfo, ListIndexes, NewIndex, OldIndex};
use skytether_catalog::listing::{DatasetInfo, Listing};
use skytether_catalog::record_source::RecordSource;
use skytether_catalog::records::root::RootRecord;
use skytether_catalog::root_store::Catalog;
use skytether_common::{DatasetName, Generation, Result};
use skytether_slice::SliceOptions;

use crate::explanation::Explanation;
use crate::resize_report::{ResizeOptions, ResizeReport};
use crate::scrub_report::{Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport};
use crate::statement::{Query, QueryOptions, Statement, TableScan};
use crate::status::DriveStatus;
use crate::values::Values;

/// Called with how far long work is, now and then; it must not block.
pub type OnProgress<'a> = &'a (dyn Fn(&Progress) + Send + Sync);

/// What is known of a query before its parameters have values.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The columns of the result, as far as they are known.
    pub schema: SchemaRef,
    /// The parameters in the order of their numbers, named `$1`, ...; those of unknown type are of type null.
    pub parameters: Vec<Field>,
}

/// What writes one data set: the caller encodes slices and commits through the catalog.
#[derive(Debug, Clone)]
pub struct WriterParts {
    /// The drives and the records on them.
    pub catalog: Catalog,
    /// How rows are cut into slices.
    pub slices: SliceOptions,
    /// The generation to write, drawn for this writer.
    pub generation: Generation,
}

/// What reads the slices of tables as they are stored.
#[derive(Debug, Clone)]
pub struct ViewParts {
    /// The drives.
    pub catalog: Catalog,
    /// The source of the newest root records.
    pub records: Arc<dyn RecordSource>,
}

/// A fleet of drives behind a host, as callers see it.
///
/// A host in this process, a connection to a host and an embedded fleet implement it. Unless stated otherwise, errors
/// are those of the host, the same over a connection; every method of a connection may end with `Unavailable` as well.
/// The futures are boxed here and not by `async_trait` (docs/decisions/0001-build-and-test-time.md).
pub trait FleetService: Send + Sync + Debug {
    /// Runs a query, with `values` for its parameters.
    ///
    /// # Errors
    /// Invalid for a malformed text or plan, and for values of other types or another number than the parameters;
    /// `NotFound` for tables that do not exist; Unsupported, by name, for what the engine does not know; what the
    /// drives say.
    fn ask_with<'a>(&'a self, asked: &'a Statement, values: &'a Values, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>>;

    /// Runs a query without parameters.
    ///
    /// # Errors
    /// As [`Self::ask_with`].
    fn ask<'a>(&'a self, asked: &'a Statement, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.ask_with(asked, &Values::default(), options).await })
    }

    /// The columns and parameters of a query, before its parameters have values.
    ///
    /// # Errors
    /// As [`Self::ask_with`].
    fn prepare<'a>(&'a self, asked: &'a Statement) -> BoxFuture<'a, Result<Prepared>>;

    /// The columns of the result of a query with these values, without running it.
    ///
    /// # Errors
    /// As [`Self::ask_with`].
    fn schema_with<'a>(&'a self, asked: &'a Statement, values: &'a Values) -> BoxFuture<'a, Result<SchemaRef>>;

    /// Scans one table.
    ///
    /// # Errors
    /// Invalid for a table, column or expression that is none; `NotFound`; what the drives say.
    fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>>;

    /// The columns of the table `domain.dataset` or `domain.dataset.table`.
    ///
    /// # Errors
    /// Invalid for a text that is no such name; `NotFound`.
    fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>>;

    /// The cut of a query, with `analyze` after running it.
    ///
    /// # Errors
    /// As [`Self::ask_with`].
    fn explanation<'a>(&'a self, asked: &'a Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>>;

    /// The same as text.
    ///
    /// # Errors
    /// As [`Self::explanation`].
    fn explain<'a>(&'a self, asked: &'a Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { Ok(self.explanation(asked, analyze, options).await?.to_string()) })
    }

    /// The data sets, in order of their names; one whose root record can't be read comes with its error.
    ///
    /// # Errors
    /// `Unavailable` while drives that may hold root records are down.
    fn list(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>>>;

    /// The data sets that can be listed while drives are down, and the drives that are down.
    ///
    /// # Errors
    /// Only those of a connection.
    fn listing(&self) -> BoxFuture<'_, Result<Listing>>;

    /// The newest root record of a data set.
    ///
    /// # Errors
    /// `NotFound`, with names that there are.
    fn describe<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>>;

    /// Removes a data set.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when it is replaced at the same moment.
    fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>>;

    /// Has the drives build an index in the background, and gives its name. See [`Catalog::create_index`].
    ///
    /// # Errors
    /// As there.
    fn create_index<'a>(&'a self, asked: &'a NewIndex) -> BoxFuture<'a, Result<String>>;

    /// The indexes, and how far they are. See [`Catalog::indexes`].
    ///
    /// # Errors
    /// As there.
    fn indexes<'a>(&'a self, asked: &'a ListIndexes) -> BoxFuture<'a, Result<Vec<IndexInfo>>>;

    /// Removes an index. See [`Catalog::drop_index`].
    ///
    /// # Errors
    /// As there.
    fn drop_index<'a>(&'a self, old: &'a OldIndex) -> BoxFuture<'a, Result<()>>;

    /// The state of the drives; those that are down come with the reason.
    ///
    /// # Errors
    /// Only those of a connection.
    fn status(&self) -> BoxFuture<'_, Result<Vec<DriveStatus>>>;

    /// Has every drive verify its values, and repairs what is damaged.
    ///
    /// # Errors
    /// `NotFound` for a data set that does not exist; `Conflict` while other maintenance runs; what the drives say.
    fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ScrubReport>>;

    /// Rebuilds the content of lost drives on the blank drives in their places.
    ///
    /// # Errors
    /// Invalid for drives that are not lost, and for a replacement (an address) that this fleet can't reach; `Conflict`
    /// while other maintenance runs; what the drives say.
    fn repair<'a>(&'a self, options: &'a RepairOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<RepairReport>>;

    /// Adds blank drives to the fleet, empties drives that leave it, and moves slices so that every drive has as much
    /// as the others.
    ///
    /// # Errors
    /// Invalid for new drives in a form that this fleet does not take: an embedded one makes `count` of them, a host
    /// reaches them at `addresses`; `Conflict` while other maintenance runs; what the drives say.
    fn resize<'a>(&'a self, options: &'a ResizeOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ResizeReport>>;

    /// What a writer of a data set of this fleet needs.
    ///
    /// # Errors
    /// Only those of a connection.
    fn writer_parts(&self) -> BoxFuture<'_, Result<WriterParts>>;

    /// What a reader of tables as plain files needs.
    ///
    /// # Errors
    /// Only those of a connection.
    fn view_parts(&self) -> BoxFuture<'_, Result<ViewParts>>;
}
