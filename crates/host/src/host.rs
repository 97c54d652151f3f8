//! The facade over a cluster: queries, ingest, export and maintenance of one fleet, in this process.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{DatasetName, Generation, Result};
use skytether_device::Cse;
use skytether_erasure::Scheme;
use uuid::Uuid;

use skytether_api::explanation::Explanation;
use skytether_api::resize_report::{ResizeOptions, ResizeReport};
use skytether_api::scrub_report::{Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport};
use skytether_api::statement::{Query, QueryOptions, Statement, TableScan};
use skytether_api::status::DriveStatus;
use skytether_catalog::records::membership::Founding;
use skytether_catalog::records::root::DatasetKind;
use skytether_catalog::root_store::Catalog;
use skytether_cluster::cluster::Cluster;
use skytether_cluster::options::HostOptions;
use skytether_exec::fallback::EngineFallback;
use skytether_exec::query_runtime::QueryRuntime;
use skytether_export::parquet_view::ParquetView;
use skytether_ingest::dataset_writer::DatasetWriter;
use skytether_maintenance::Maintenance;
use skytether_query::planner::Planner;
use skytether_recovery::missing_drive::UnavailableDrive;

use crate::service::Reach;

/// A callback for the progress of long work.
type Tell<'a> = &'a (dyn Fn(&Progress) + Send + Sync);

/// A host over some drives. Cheap to clone; it owns nothing durable.
#[derive(Debug, Clone)]
pub struct Host {
    cluster: Cluster,
    planner: Planner,
    maintenance: Maintenance,
    reach: Option<Arc<dyn Reach>>,
}

/// The memory of queries, and the fallback executor.
fn parts(options: &HostOptions) -> Result<(QueryRuntime, Arc<EngineFallback>)> {
    let runtime = QueryRuntime::new(options.memory_limit, options.spill_limit, options.spill_below.as_deref())?;
    let fallback = EngineFallback::new(Arc::clone(&runtime.env().memory_pool), options.storage_deadline);
    Ok((runtime, Arc::new(fallback)))
}

impl Host {
    /// A host over `drives`, which may be in this process or behind a wire.
    ///
    /// # Errors
    /// Invalid for no drive, one drive twice or two drives of one name; internal if the functions can't be registered.
    pub fn new(drives: Vec<Arc<dyn Cse>>, options: HostOptions) -> Result<Self> {
        let (runtime, fallback) = parts(&options)?;
        Self::over(Cluster::new(drives, options, fallback)?, &runtime)
    }

    fn over(cluster: Cluster, runtime: &QueryRuntime) -> Result<Self> {
        let planner = Planner::new(cluster.clone(), runtime)?;
        Ok(Self { maintenance: Maintenance::new(cluster.clone()), cluster, planner, reach: None })
    }

    /// A host over the drives of a fleet that another host has: it answers queries, and changes nothing.
    ///
    /// # Errors
    /// As [`Cluster::observe`].
    pub fn observe(drives: Vec<Arc<dyn Cse>>, options: HostOptions) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let (runtime, fallback) = parts(&options)?;
            Self::over(Cluster::observe(drives, options, fallback).await?, &runtime)
        })
    }

    /// As [`Self::join_without`], with all drives of the fleet.
    ///
    /// # Errors
    /// As [`Host::new`], [`Catalog::establish_membership`] and [`Catalog::collect_garbage`].
    pub fn join(drives: Vec<Arc<dyn Cse>>, options: HostOptions, founding: Founding) -> BoxFuture<'static, Result<(Self, u64)>> {
        Self::join_without(drives, Vec::new(), options, founding)
    }

    /// A host over the drives of one fleet, and the number of keys of earlier ingests that it deleted: see
    /// [`Cluster::join_without`].
    ///
    /// # Errors
    /// As there.
    pub fn join_without(
        drives: Vec<Arc<dyn Cse>>,
        lost: Vec<UnavailableDrive>,
        options: HostOptions,
        founding: Founding,
    ) -> BoxFuture<'static, Result<(Self, u64)>> {
        Box::pin(async move {
            let (runtime, fallback) = parts(&options)?;
            let (cluster, deleted) = Cluster::join_without(drives, lost, options, founding, fallback).await?;
            Ok((Self::over(cluster, &runtime)?, deleted))
        })
    }

    /// The drives with their catalog.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Plans and runs queries.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    pub(crate) fn maintenance(&self) -> &Maintenance {
        &self.maintenance
    }

    pub(crate) fn reach(&self) -> Option<&dyn Reach> {
        self.reach.as_deref()
    }

    /// The same host; `reach` connects it to drives whose addresses come with a request.
    #[must_use]
    pub fn reaching(self, reach: Arc<dyn Reach>) -> Self {
        Self { reach: Some(reach), ..self }
    }

    /// The drives, in order.
    #[must_use]
    pub fn drives(&self) -> &[Arc<dyn Cse>] {
        self.cluster.drives()
    }

    /// The catalog over these drives.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        self.cluster.catalog()
    }

    /// How many of the drives are lost now.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.cluster.lost()
    }

    /// On how many nodes the drives are, where the record of the fleet says so; otherwise 0.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.cluster.nodes()
    }

    /// The redundancy of data sets whose ingest names none.
    #[must_use]
    pub fn redundancy(&self) -> Scheme {
        self.cluster.redundancy()
    }

    /// How this host works.
    #[must_use]
    pub fn options(&self) -> &HostOptions {
        self.cluster.options()
    }

    /// The current id of this host: see [`Cluster::instance`].
    #[must_use]
    pub fn instance(&self) -> Uuid {
        self.cluster.instance()
    }

    /// The ids and names of drives that were missing when the host began, and still are.
    #[must_use]
    pub fn gone(&self) -> Vec<(Uuid, String)> {
        self.cluster.gone()
    }

    /// The ids of the drives of the fleet, lost or not.
    #[must_use]
    pub fn members(&self) -> Vec<Uuid> {
        self.cluster.members()
    }

    /// The ids that the list of an embedded fleet's directory must name: see [`Cluster::listed`].
    ///
    /// # Errors
    /// As there.
    pub fn listed(&self) -> BoxFuture<'_, Result<Option<Vec<Uuid>>>> {
        self.cluster.listed()
    }

    /// Puts `drive` in the place of a missing one: see [`Cluster::put_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn put_in_place(&self, drive: Arc<dyn Cse>) -> Result<()> {
        self.cluster.put_in_place(drive)
    }

    /// The status of all members: see [`Cluster::status`].
    pub fn status(&self) -> BoxFuture<'_, Vec<DriveStatus>> {
        self.cluster.status()
    }

    /// Sends each drive a small request once per `every`, for ever: see [`Cluster::watch`].
    pub fn watch(&self, every: Duration) -> BoxFuture<'_, Infallible> {
        self.cluster.watch(every)
    }

    /// Begins to write a data set; see [`DatasetWriter`].
    ///
    /// # Errors
    /// As [`DatasetWriter::begin`].
    pub fn writer<'a>(&'a self, name: &'a DatasetName, kind: DatasetKind, replace: bool) -> BoxFuture<'a, Result<DatasetWriter>> {
        let options = self.options();
        Box::pin(
            async move { DatasetWriter::begin(self.catalog().clone(), options.slices.clone(), name.clone(), kind, replace, options.ids.generation()).await },
        )
    }

    /// Begins to write a version of a data set; see [`DatasetWriter::begin_version`].
    ///
    /// # Errors
    /// As there.
    pub fn version<'a>(&'a self, name: &'a DatasetName, from: Generation) -> BoxFuture<'a, Result<DatasetWriter>> {
        let options = self.options();
        Box::pin(
            async move { DatasetWriter::begin_version(self.catalog().clone(), options.slices.clone(), name.clone(), from, options.ids.generation()).await },
        )
    }

    /// Reads tables as plain files.
    #[must_use]
    pub fn door(&self) -> ParquetView {
        ParquetView::new(self.catalog().clone(), Arc::new(self.catalog().clone()))
    }

    /// Runs a query: one `SELECT`, in DataFusion's SQL.
    ///
    /// # Errors
    /// As [`Planner::sql`].
    pub fn sql<'a>(&'a self, text: &'a str, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.planner.sql(text, options)
    }

    /// Runs a plan of another producer: the bytes of a Substrait `Plan`.
    ///
    /// # Errors
    /// As [`Planner::substrait`].
    pub fn substrait<'a>(&'a self, plan: Bytes, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.planner.substrait(plan, options)
    }

    /// Runs a query, as a text or a plan.
    ///
    /// # Errors
    /// As [`Host::sql`] and [`Host::substrait`].
    pub fn ask<'a>(&'a self, asked: &'a Statement, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.planner.ask(asked, options)
    }

    /// Runs a scan.
    ///
    /// # Errors
    /// As [`Planner::scan`].
    pub fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.planner.scan(scan, options)
    }

    /// The columns of a table: `domain.dataset` or `domain.dataset.table`.
    ///
    /// # Errors
    /// Invalid for a text that is no such name; `NotFound`.
    pub fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>> {
        self.planner.schema_of(table)
    }

    /// The cut of a query as text: see [`Self::explanation`].
    ///
    /// # Errors
    /// As there.
    pub fn explain<'a>(&'a self, asked: impl Into<Statement>, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<String>> {
        let asked = asked.into();
        Box::pin(async move { Ok(self.planner.explanation(asked, analyze, options).await?.to_string()) })
    }

    /// The cut of a query: see [`Planner::explanation`].
    ///
    /// # Errors
    /// As there.
    pub fn explanation<'a>(&'a self, asked: impl Into<Statement>, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>> {
        let asked = asked.into();
        Box::pin(async move { self.planner.explanation(asked, analyze, options).await })
    }

    /// Verifies every stored value and repairs damage: see [`Maintenance::scrub`].
    ///
    /// # Errors
    /// As there.
    pub fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: Tell<'a>) -> BoxFuture<'a, Result<ScrubReport>> {
        self.maintenance.scrub(options, tell)
    }

    /// Rebuilds lost drives on blank ones: see [`Maintenance::repair`].
    ///
    /// # Errors
    /// As there.
    pub fn repair<'a>(&'a self, options: &'a RepairOptions, tell: Tell<'a>) -> BoxFuture<'a, Result<RepairReport>> {
        self.maintenance.repair(options, tell)
    }

    /// Adds and retires drives: see [`Maintenance::resize`].
    ///
    /// # Errors
    /// As there.
    pub fn resize<'a>(&'a self, new: Vec<Arc<dyn Cse>>, options: &'a ResizeOptions, tell: Tell<'a>) -> BoxFuture<'a, Result<ResizeReport>> {
        self.maintenance.resize(new, options, tell)
    }

    /// Checks, before anything changes, what [`Self::resize`] would reject of `count` joining drives.
    ///
    /// # Errors
    /// As there.
    pub fn check_resize<'a>(&'a self, count: usize, options: &'a ResizeOptions) -> BoxFuture<'a, Result<()>> {
        self.maintenance.check_resize(count, options)
    }

    /// Checks what a client asks of a host that is served.
    ///
    /// # Errors
    /// Invalid for drives that only a fleet in a directory can add, and for addresses where it is one.
    pub fn check_resize_request(&self, options: &ResizeOptions) -> Result<()> {
        self.maintenance.check_resize_request(options)
    }
}
