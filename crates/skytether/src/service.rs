//! An embedded fleet as a [`FleetService`]: its host, and the operations on its directory.

use arrow::datatypes::SchemaRef;
use futures::future::BoxFuture;
use skytether_common::{DatasetName, Error, Result};
use skytether_host::{
    DatasetInfo, DriveStatus, Explanation, FleetService, IndexInfo, ListIndexes, Listing, NewIndex, OldIndex, OnProgress, Prepared, Query, QueryOptions,
    RepairOptions, RepairReport, ResizeOptions, ResizeReport, RootRecord, ScrubOptions, ScrubReport, Statement, TableScan, Values, ViewParts, WriterParts,
};

use crate::embedded::Embedded;

impl Embedded {
    fn of_host(&self) -> &dyn FleetService {
        self.host()
    }
}

impl FleetService for Embedded {
    fn ask_with<'a>(&'a self, asked: &'a Statement, values: &'a Values, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.of_host().ask_with(asked, values, options)
    }

    fn prepare<'a>(&'a self, asked: &'a Statement) -> BoxFuture<'a, Result<Prepared>> {
        self.of_host().prepare(asked)
    }

    fn schema_with<'a>(&'a self, asked: &'a Statement, values: &'a Values) -> BoxFuture<'a, Result<SchemaRef>> {
        self.of_host().schema_with(asked, values)
    }

    fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.of_host().scan(scan, options)
    }

    fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>> {
        self.of_host().schema_of(table)
    }

    fn explanation<'a>(&'a self, asked: &'a Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>> {
        self.of_host().explanation(asked, analyze, options)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>>> {
        self.of_host().list()
    }

    fn listing(&self) -> BoxFuture<'_, Result<Listing>> {
        self.of_host().listing()
    }

    fn describe<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        self.of_host().describe(name)
    }

    fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>> {
        self.of_host().drop_dataset(name)
    }

    fn create_index<'a>(&'a self, asked: &'a NewIndex) -> BoxFuture<'a, Result<String>> {
        self.of_host().create_index(asked)
    }

    fn indexes<'a>(&'a self, asked: &'a ListIndexes) -> BoxFuture<'a, Result<Vec<IndexInfo>>> {
        self.of_host().indexes(asked)
    }

    fn drop_index<'a>(&'a self, old: &'a OldIndex) -> BoxFuture<'a, Result<()>> {
        self.of_host().drop_index(old)
    }

    fn status(&self) -> BoxFuture<'_, Result<Vec<DriveStatus>>> {
        self.of_host().status()
    }

    fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ScrubReport>> {
        self.of_host().scrub(options, tell)
    }

    /// Creates a blank drive for each named lost drive whose directory is gone or empty.
    fn repair<'a>(&'a self, options: &'a RepairOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<RepairReport>> {
        Box::pin(async move {
            if let Some(address) = &options.address {
                return Err(Error::invalid(format!(
                    "{address} can't take the place of {}: a fleet in a directory makes the blank drive itself, where the lost one's directory was; leave the address out (address=, in the shell --replacement)",
                    options.drives.join(", ")
                )));
            }
            self.replace(&options.drives).await?;
            self.of_host().repair(options, tell).await
        })
    }

    /// New drives get directories of their own below that of the fleet.
    fn resize<'a>(&'a self, options: &'a ResizeOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ResizeReport>> {
        Box::pin(self.grow(options, tell))
    }

    fn writer_parts(&self) -> BoxFuture<'_, Result<WriterParts>> {
        self.of_host().writer_parts()
    }

    fn view_parts(&self) -> BoxFuture<'_, Result<ViewParts>> {
        self.of_host().view_parts()
    }
}
