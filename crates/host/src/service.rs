//! The host as a [`FleetService`].

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use futures::future::BoxFuture;
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_device::Cse;

use skytether_api::explanation::Explanation;
use skytether_api::resize_report::{ResizeOptions, ResizeReport};
use skytether_api::scrub_report::{RepairOptions, RepairReport, ScrubOptions, ScrubReport};
use skytether_api::service::{FleetService, OnProgress, Prepared, ViewParts, WriterParts};
use skytether_api::statement::{Query, QueryOptions, Statement, TableScan};
use skytether_api::status::DriveStatus;
use skytether_api::values::Values;
use skytether_catalog::indexes::{IndexInfo, ListIndexes, NewIndex, OldIndex};
use skytether_catalog::listing::{DatasetInfo, Listing};
use skytether_catalog::records::root::RootRecord;

use crate::host::Host;

/// Connects a host to drives whose addresses come with a request. The host itself knows no wire protocol.
pub trait Reach: Send + Sync + Debug {
    /// Connects to the drive at `address`.
    ///
    /// # Errors
    /// `Invalid` for an address that is no drive's; `Unsupported` for a scheme without a connector; `Unavailable`.
    fn reach<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Cse>>>;
}

impl Host {
    async fn drive_at(&self, address: &str) -> Result<Arc<dyn Cse>> {
        match self.reach() {
            Some(reach) => reach.reach(address).await,
            None => Err(Error::invalid(format!("the drive at {address} can't be reached: this host was not told how to connect to drives"))),
        }
    }

    /// Puts the drive at `address` in the place of the lost one that `options` names.
    async fn put_at(&self, address: &str, options: &RepairOptions) -> Result<()> {
        // The address comes with a request: the host connects to it only where a drive can be replaced.
        self.cluster().check_replacement(address)?;
        let drive = self.drive_at(address).await?;
        // An earlier repair that did not end may have put the drive there. This one continues it.
        let put = self.put_in_place(drive).or_else(|e| if e.kind() == Kind::Conflict { Ok(()) } else { Err(e) });
        // The error names the drive as the client did, who does not know its id.
        put.map_err(|e| e.context(format!("{address} can't take the place of {}", options.drives.join(", "))))
    }
}

/// Converts the values to DataFusion's.
fn scalars(values: &Values) -> Result<Vec<ScalarValue>> {
    let scalar = |column: &ArrayRef| ScalarValue::try_from_array(column, 0).map_err(|e| Error::invalid("a parameter's value can't be taken").with_source(e));
    values.columns().iter().map(scalar).collect()
}

impl FleetService for Host {
    fn ask_with<'a>(&'a self, asked: &'a Statement, values: &'a Values, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.planner().run(self.planner().plan_asked(asked, options, scalars(values)?).await?) })
    }

    fn prepare<'a>(&'a self, asked: &'a Statement) -> BoxFuture<'a, Result<Prepared>> {
        Box::pin(async move {
            let (schema, parameters) = self.planner().prepare(asked).await?;
            Ok(Prepared { schema, parameters })
        })
    }

    fn schema_with<'a>(&'a self, asked: &'a Statement, values: &'a Values) -> BoxFuture<'a, Result<SchemaRef>> {
        Box::pin(async move { Ok(self.planner().plan_asked(asked, &QueryOptions::default(), scalars(values)?).await?.physical.schema()) })
    }

    fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.planner().scan(scan, options)
    }

    fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>> {
        self.planner().schema_of(table)
    }

    fn explanation<'a>(&'a self, asked: &'a Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>> {
        Box::pin(async move { self.planner().explanation(asked.clone(), analyze, options).await })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>>> {
        Box::pin(async move { self.catalog().list().await })
    }

    fn listing(&self) -> BoxFuture<'_, Result<Listing>> {
        Box::pin(async move { Ok(self.catalog().listing().await) })
    }

    fn describe<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        Box::pin(async move { Ok(self.catalog().read(name).await?.0) })
    }

    fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.catalog().drop_dataset(name).await })
    }

    fn create_index<'a>(&'a self, asked: &'a NewIndex) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { self.catalog().create_index(asked).await })
    }

    fn indexes<'a>(&'a self, asked: &'a ListIndexes) -> BoxFuture<'a, Result<Vec<IndexInfo>>> {
        Box::pin(async move { self.catalog().indexes(asked).await })
    }

    fn drop_index<'a>(&'a self, old: &'a OldIndex) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.catalog().drop_index(old).await })
    }

    fn status(&self) -> BoxFuture<'_, Result<Vec<DriveStatus>>> {
        Box::pin(async move { Ok(self.cluster().status().await) })
    }

    fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ScrubReport>> {
        self.maintenance().scrub(options, tell)
    }

    fn repair<'a>(&'a self, options: &'a RepairOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<RepairReport>> {
        Box::pin(async move {
            if let Some(address) = &options.address {
                self.put_at(address, options).await?;
            }
            self.maintenance().repair(options, tell).await
        })
    }

    fn resize<'a>(&'a self, options: &'a ResizeOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ResizeReport>> {
        Box::pin(async move {
            self.check_resize_request(options)?;
            let mut new = Vec::with_capacity(options.addresses.len());
            for address in &options.addresses {
                new.push(self.drive_at(address).await?);
            }
            self.maintenance().resize(new, options, tell).await
        })
    }

    fn writer_parts(&self) -> BoxFuture<'_, Result<WriterParts>> {
        let options = self.options();
        let parts = WriterParts { catalog: self.catalog().clone(), slices: options.slices.clone(), generation: options.ids.generation() };
        Box::pin(std::future::ready(Ok(parts)))
    }

    fn view_parts(&self) -> BoxFuture<'_, Result<ViewParts>> {
        Box::pin(std::future::ready(Ok(ViewParts { catalog: self.catalog().clone(), records: Arc::new(self.catalog().clone()) })))
    }
}
