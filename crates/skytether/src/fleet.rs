//! [`Fleet`]: one set of calls, for an embedded fleet or a connection to a host.
//!
//! The calls return boxed futures. A crate that awaits an `async fn` compiles its future, with all of the host's code
//! in it. A boxed future is compiled here, once.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{DatasetName, Generation, Result};
use skytether_flight::RemoteHost;
use skytether_host::{
    DatasetInfo, DatasetKind, DatasetWriter, DriveStatus, Explanation, FleetService, Host, HostOptions, IngestReport, Listing, Placement, Progress, Query,
    QueryOptions, RepairOptions, RepairReport, ResizeOptions, ResizeReport, RootRecord, Scheme, ScrubOptions, ScrubReport, Statement, TableScan, WriterParts,
};
use skytether_transport::Credentials;

use crate::embedded::{Embedded, OpenOptions};
use crate::offline_status::offline_status;
use crate::stored_elsewhere::{StoredElsewhere, Stores};
use skytether_formats::storage_schema::{self, Storable};
use skytether_formats::{self as files};

use crate::address;

/// A fleet and its host. Cheap to clone; the last clone of an embedded fleet closes it.
#[derive(Debug, Clone)]
pub struct Fleet {
    service: Arc<dyn FleetService>,
    place: Place,
}

/// The location of a fleet.
#[derive(Debug, Clone)]
enum Place {
    Directory(Arc<Embedded>),
    Elsewhere(Arc<StoredElsewhere>),
    /// Served drives under a host in this process, and their addresses.
    Drives(Host, Arc<str>),
    /// A host's URL.
    Url(Arc<str>),
}

impl Fleet {
    /// Opens the embedded fleet at `path`, or creates it if `options.create` is set. Deletes partitions that a crash
    /// left behind.
    ///
    /// # Errors
    /// `Conflict` while another process has it open (the text has its number); `NotFound` where there is no fleet;
    /// `Invalid` for a wrong number of drives, a wrong device profile, or the address of a host; `Corrupt` where
    /// `fleet.json` is damaged or gone; `Unsupported` for a newer format or feature; `Unavailable`, naming all missing
    /// drives, where more are missing than the scheme covers. Then [`Fleet::offline_status`] shows which drives are
    /// there.
    pub async fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_with(path, options, HostOptions::default()).await
    }

    /// As [`Fleet::open`], with options for the host.
    ///
    /// # Errors
    /// As [`Fleet::open`].
    pub async fn open_with(path: impl AsRef<Path>, options: &OpenOptions, host: HostOptions) -> Result<Self> {
        let embedded = Embedded::open(path.as_ref(), options, host).await?;
        let embedded = Arc::new(embedded);
        Ok(Self { service: Arc::clone(&embedded) as _, place: Place::Directory(embedded) })
    }

    /// Opens a fleet whose drives run in this process, over open `stores`. A door opens those; see [`Stores`].
    ///
    /// # Errors
    /// `Invalid` for a wrong number of drives or a wrong device profile; errors of the stores.
    pub fn over(stores: Stores, options: &OpenOptions, host: HostOptions) -> BoxFuture<'_, Result<Self>> {
        Box::pin(async move {
            let fleet = Arc::new(StoredElsewhere::open(stores, options, host).await?);
            Ok(Self { service: Arc::new(fleet.host.clone()), place: Place::Elsewhere(fleet) })
        })
    }

    /// A fleet of served drives at `location`, whose host runs in this process.
    #[must_use]
    pub fn of_drives(host: Host, location: &str) -> Self {
        Self { service: Arc::new(host.clone()), place: Place::Drives(host, location.into()) }
    }

    /// Of a fleet over open stores: what keeps its values, and whether it was made just now.
    #[must_use]
    pub fn kept_by(&self) -> Option<(&str, bool)> {
        match &self.place {
            Place::Elsewhere(fleet) => Some((&fleet.kept, fleet.new)),
            Place::Directory(_) | Place::Drives(..) | Place::Url(_) => None,
        }
    }

    /// Refuses a redundancy that this fleet can't keep.
    ///
    /// # Errors
    /// `Invalid` for a fleet over open stores, which keep copies themselves.
    pub fn check_redundancy(&self, scheme: Scheme) -> Result<()> {
        match &self.place {
            Place::Elsewhere(fleet) => fleet.refuse(scheme),
            Place::Directory(_) | Place::Drives(..) | Place::Url(_) => Ok(()),
        }
    }

    /// The status of the drives of the embedded fleet at `path`, also where too many are missing to open it. Present
    /// drives come with their usage, missing ones with the reason.
    ///
    /// # Errors
    /// `Conflict` while another process has it open; `NotFound`, `Corrupt` and `Unsupported` where `fleet.json` can't
    /// be read.
    pub async fn offline_status(path: impl AsRef<Path>) -> Result<Vec<DriveStatus>> {
        offline_status(path.as_ref()).await
    }

    /// Connects to a host without credentials: `grpc://host:port`, or just `host:port`.
    ///
    /// # Errors
    /// As [`RemoteHost::connect_with`].
    pub fn connect(url: &str) -> BoxFuture<'_, Result<Self>> {
        Box::pin(async move { Self::connect_with(url, &Credentials::default()).await })
    }

    /// Connects to a host with a token, or over TLS (`grpc+tls://host:port`) with a certificate authority of the
    /// caller's.
    ///
    /// # Errors
    /// As [`RemoteHost::connect_with`].
    pub fn connect_with<'a>(url: &'a str, credentials: &'a Credentials) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let host = RemoteHost::connect_with(&address::url(url), credentials).await?;
            let place = Place::Url(host.url().into());
            Ok(Self { service: Arc::new(host), place })
        })
    }

    /// Whether the fleet is behind a connection, so that other processes reach it at its [`Fleet::location`].
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self.place, Place::Url(_))
    }

    /// The host of an embedded fleet, for servers and inspection.
    #[must_use]
    pub fn host(&self) -> Option<&Host> {
        match &self.place {
            Place::Directory(fleet) => Some(fleet.host()),
            Place::Elsewhere(fleet) => Some(&fleet.host),
            Place::Drives(host, _) => Some(host),
            Place::Url(_) => None,
        }
    }

    /// The fleet as a service, embedded or remote, for north doors.
    #[must_use]
    pub fn service(&self) -> &Arc<dyn FleetService> {
        &self.service
    }

    /// Where the fleet is: a directory, the address of its stores, those of its drives, or a host's URL
    /// (`grpc://host:port`).
    #[must_use]
    pub fn location(&self) -> String {
        match &self.place {
            Place::Directory(fleet) => fleet.path().display().to_string(),
            Place::Elsewhere(fleet) => fleet.location.clone(),
            Place::Drives(_, location) => location.to_string(),
            Place::Url(url) => url.to_string(),
        }
    }

    /// Runs a query: one `SELECT`, in DataFusion's SQL.
    ///
    /// # Errors
    /// As [`Fleet::ask`].
    pub fn sql<'a>(&'a self, text: &'a str, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.service.ask(&Statement::from(text), options).await })
    }

    /// Scans a table; see [`Host::scan`].
    ///
    /// # Errors
    /// As there.
    pub fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.service.scan(scan, options)
    }

    /// The columns of a table; see [`Host::schema_of`].
    ///
    /// # Errors
    /// As there.
    pub fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>> {
        self.service.schema_of(table)
    }

    /// Runs a plan of another producer, the bytes of a Substrait `Plan`; see [`Host::substrait`].
    ///
    /// # Errors
    /// As there.
    pub fn substrait<'a>(&'a self, plan: Bytes, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.ask(&Statement::Substrait(plan), options).await })
    }

    /// Runs a query, in whichever form it is asked; see [`Host::ask`].
    ///
    /// # Errors
    /// As there.
    pub fn ask<'a>(&'a self, asked: &'a Statement, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        self.service.ask(asked, options)
    }

    /// A query's cut as text, with `analyze` after running it; see [`Host::explain`].
    ///
    /// # Errors
    /// As there.
    pub fn explain<'a>(&'a self, asked: impl Into<Statement>, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<String>> {
        self.explain_text(asked.into(), analyze, options)
    }

    fn explain_text<'a>(&'a self, asked: Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { self.service.explain(&asked, analyze, options).await })
    }

    /// A query's cut, with `analyze` after running it; see [`Host::explanation`].
    ///
    /// # Errors
    /// As there.
    pub fn explanation<'a>(&'a self, asked: impl Into<Statement>, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>> {
        self.explanation_of(asked.into(), analyze, options)
    }

    fn explanation_of<'a>(&'a self, asked: Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>> {
        Box::pin(async move { self.service.explanation(&asked, analyze, options).await })
    }

    /// The data sets, in order of their names. A data set with an unreadable root record comes with its error.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn list(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>>> {
        self.service.list()
    }

    /// The data sets that can be listed while drives are away, and which drives those are.
    ///
    /// # Errors
    /// `Unavailable`, where a remote host does not answer.
    pub fn listing(&self) -> BoxFuture<'_, Result<Listing>> {
        self.service.listing()
    }

    /// The root record of a data set.
    ///
    /// # Errors
    /// `NotFound`, with the names of existing data sets.
    pub fn describe<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        self.service.describe(name)
    }

    /// Removes a data set.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` where another writer replaces it at the same moment.
    pub fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>> {
        self.service.drop_dataset(name)
    }

    /// The status of all drives.
    ///
    /// # Errors
    /// `Unavailable` where a remote host does not answer.
    pub fn status(&self) -> BoxFuture<'_, Result<Vec<DriveStatus>>> {
        self.service.status()
    }

    /// Has every drive verify its values, and repairs damage; see [`Host::scrub`].
    ///
    /// # Errors
    /// As there.
    pub fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> BoxFuture<'a, Result<ScrubReport>> {
        self.service.scrub(options, tell)
    }

    /// Rebuilds lost drives on the blank drives in their places; see [`Host::repair`]. An embedded fleet first creates
    /// a blank drive for each named drive whose directory is gone or empty.
    ///
    /// # Errors
    /// As there; `Invalid` where a drive's directory has other content, and for an address where the fleet is embedded.
    pub fn repair<'a>(&'a self, options: &'a RepairOptions, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> BoxFuture<'a, Result<RepairReport>> {
        self.service.repair(options, tell)
    }

    /// Takes blank drives into the fleet, empties leaving drives, and balances all drives; see [`Host::resize`]. An
    /// embedded fleet creates `options.count` drives; a host connects to those at `options.addresses`.
    ///
    /// # Errors
    /// As there; `Invalid` for addresses where the fleet is embedded, and for a number of drives where it is not.
    pub fn resize<'a>(&'a self, options: &'a ResizeOptions, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> BoxFuture<'a, Result<ResizeReport>> {
        self.service.resize(options, tell)
    }

    /// Begins to write a data set.
    ///
    /// # Errors
    /// `Conflict` where it exists and `replace` is false.
    pub fn writer<'a>(&'a self, name: &'a DatasetName, kind: DatasetKind, replace: bool) -> BoxFuture<'a, Result<DatasetWriter>> {
        Box::pin(async move {
            let WriterParts { catalog, slices, generation } = self.service.writer_parts().await?;
            DatasetWriter::begin(catalog, slices, name.clone(), kind, replace, generation).await
        })
    }

    /// Begins to write a version of a data set, which keeps the tables of generation `from` that it does not write; see
    /// [`DatasetWriter::begin_version`].
    ///
    /// # Errors
    /// `NotFound` where it does not exist; `Conflict` where its content is not that of `from`.
    pub fn version<'a>(&'a self, name: &'a DatasetName, from: Generation) -> BoxFuture<'a, Result<DatasetWriter>> {
        Box::pin(async move {
            let WriterParts { catalog, slices, generation } = self.service.writer_parts().await?;
            DatasetWriter::begin_version(catalog, slices, name.clone(), from, generation).await
        })
    }

    /// Stores `batches` as the plain table `name`, in the storable form of their schema (see
    /// [`skytether_formats::storage_schema`]). Needs a runtime with several threads. `options` may be a bool: whether
    /// to replace a data set of that name.
    ///
    /// # Errors
    /// The iterator's; `Conflict` where the data set exists and may not be replaced; `Invalid` for partition columns
    /// that are missing or can't be keys; errors of the drives. After an error nothing is left behind.
    pub fn ingest_table<'a>(
        &'a self,
        name: &'a DatasetName,
        schema: SchemaRef,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send + 'a,
        options: impl Into<IngestOptions>,
    ) -> BoxFuture<'a, Result<IngestReport>> {
        self.store(name, schema, Box::new(batches), options.into())
    }

    /// [`Self::ingest_table`] of batches of one type.
    fn store<'a>(
        &'a self,
        name: &'a DatasetName,
        schema: SchemaRef,
        batches: Box<dyn Iterator<Item = Result<RecordBatch>> + Send + 'a>,
        options: IngestOptions,
    ) -> BoxFuture<'a, Result<IngestReport>> {
        Box::pin(async move {
            let schema = storage_schema::schema(name, &schema)?;
            self.check_redundancy(options.redundancy.unwrap_or(Scheme::None))?;
            let mut writer = self.writer(name, DatasetKind::Table, options.replace).await?;
            if let Some(scheme) = options.redundancy {
                writer.redundancy(scheme)?;
            }
            let mut storable = Storable::new(schema.clone());
            let batches = batches.flat_map(move |batch| match batch.and_then(|batch| storable.batches(batch)) {
                Ok(pieces) => pieces.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(e) => vec![Err(e)],
            });
            let written = match options.partition_by.as_slice() {
                [] => writer.write_table("data", Placement::Spread, schema.clone(), batches).await,
                by => writer.write_partitioned("data", by, schema.clone(), batches).await,
            };
            match written {
                Ok(()) => writer.commit().await,
                Err(e) => {
                    if let Err(left) = writer.abort().await {
                        tracing::warn!("{left}");
                    }
                    Err(e)
                }
            }
        })
    }

    /// Stores the rows of files with equal columns as the plain table `name`; see [`skytether_formats`] for the
    /// formats.
    ///
    /// # Errors
    /// As [`Fleet::ingest_table`]; an error in a file names it.
    pub async fn ingest_files<P: AsRef<Path>>(&self, name: &DatasetName, paths: &[P], options: impl Into<IngestOptions>) -> Result<IngestReport> {
        let table = files::open(paths)?;
        self.ingest_table(name, table.schema, table.batches, options).await
    }
}

/// Options for storing a plain table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IngestOptions {
    /// Whether to replace a data set of the same name.
    pub replace: bool,
    /// The columns whose values determine the drive of a row, in order; empty: slices are distributed round robin.
    pub partition_by: Vec<String>,
    /// Redundancy of the data set; `None`: the fleet's.
    pub redundancy: Option<Scheme>,
}

impl From<bool> for IngestOptions {
    fn from(replace: bool) -> Self {
        Self { replace, ..Self::default() }
    }
}
