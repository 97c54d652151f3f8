//! [`Fleet`]: one set of calls, whether the fleet is in this process or behind a host elsewhere.
//!
//! The calls return boxed futures: a crate that awaits the future of an `async fn` compiles it,
//! with all of the host's code within. A boxed one is compiled here, once.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{DatasetName, Result};
use skytether_flight::RemoteHost;
use skytether_host::{
    DatasetInfo, DatasetKind, DatasetWriter, DriveStatus, Explanation, FleetService, Host, HostOptions, IngestReport, Listing, Placement, Progress, Query,
    QueryOptions, RepairOptions, RepairReport, ResizeOptions, ResizeReport, RootRecord, Scheme, ScrubOptions, ScrubReport, Statement, TableScan, WriterParts,
};
use skytether_transport::Credentials;

use crate::embedded::{Embedded, OpenOptions};
use crate::offline_status::offline_status;
use skytether_formats::{self as files, storage_schema};

use crate::address;

/// A fleet of drives with a host before them. Cheap to clone; an embedded fleet is closed with its last clone.
#[derive(Debug, Clone)]
pub struct Fleet {
    service: Arc<dyn FleetService>,
    place: Place,
}

/// Where a fleet is.
#[derive(Debug, Clone)]
enum Place {
    Directory(Arc<Embedded>),
    /// A host's URL.
    Url(Arc<str>),
}

impl Fleet {
    /// Opens the embedded fleet at `path`, or makes it where there is none and `options.create` says so. Partitions
    /// that a crash left behind are deleted.
    ///
    /// # Errors
    /// `Conflict` while another process has it open (its number is in the text); `NotFound` where there is no fleet;
    /// `Invalid` for another number of drives than it has, for what is no device profile, and for what is a host's
    /// address; `Corrupt` where `fleet.json` is damaged or gone; `Unsupported` for a newer format and for what this
    /// version does not have; `Unavailable`, naming them all, where more drives are missing than the fleet survives:
    /// [`Fleet::offline_status`] shows which are there.
    pub async fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_with(path, options, HostOptions::default()).await
    }

    /// As [`Fleet::open`], with a say in how the host works.
    ///
    /// # Errors
    /// As [`Fleet::open`].
    pub async fn open_with(path: impl AsRef<Path>, options: &OpenOptions, host: HostOptions) -> Result<Self> {
        let embedded = Embedded::open(path.as_ref(), options, host).await?;
        let embedded = Arc::new(embedded);
        Ok(Self { service: Arc::clone(&embedded) as _, place: Place::Directory(embedded) })
    }

    /// The status of the drives of the embedded fleet at `path`, also where too many are missing to open it: present
    /// drives with their contents, absent ones with the reason.
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

    /// Connects to a host with a token, or over TLS (`grpc+tls://host:port`) with an authority of one's own.
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

    /// The host of an embedded fleet, to be served or looked into.
    #[must_use]
    pub fn host(&self) -> Option<&Host> {
        match &self.place {
            Place::Directory(fleet) => Some(fleet.host()),
            Place::Url(_) => None,
        }
    }

    /// What the fleet does, whichever it is: for faces that serve it.
    #[must_use]
    pub fn service(&self) -> &Arc<dyn FleetService> {
        &self.service
    }

    /// Where the fleet is: a directory, or a host's URL (`grpc://host:port`).
    #[must_use]
    pub fn location(&self) -> String {
        match &self.place {
            Place::Directory(fleet) => fleet.path().display().to_string(),
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

    /// The data sets, in order of their names; one whose root record can't be read comes with its error.
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

    /// A data set's root record.
    ///
    /// # Errors
    /// `NotFound`, with names that there are.
    pub fn describe<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        self.service.describe(name)
    }

    /// Removes a data set.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when it is replaced at the same moment.
    pub fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>> {
        self.service.drop_dataset(name)
    }

    /// How the drives are.
    ///
    /// # Errors
    /// `Unavailable`, where a remote host does not answer.
    pub fn status(&self) -> BoxFuture<'_, Result<Vec<DriveStatus>>> {
        self.service.status()
    }

    /// Has every drive verify what it holds, and mends what is damaged; see [`Host::scrub`].
    ///
    /// # Errors
    /// As there.
    pub fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> BoxFuture<'a, Result<ScrubReport>> {
        self.service.scrub(options, tell)
    }

    /// Rebuilds on blank drives what was on the lost ones in whose place they are; see [`Host::repair`]. In an embedded
    /// fleet those that are named get a blank one first, where their directory is gone or empty.
    ///
    /// # Errors
    /// As there; `Invalid` where there is something else in a drive's directory, and for an address where the fleet is
    /// in a directory.
    pub fn repair<'a>(&'a self, options: &'a RepairOptions, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> BoxFuture<'a, Result<RepairReport>> {
        self.service.repair(options, tell)
    }

    /// Takes blank drives into the fleet, empties those that are to leave it, and moves slices so that every drive has
    /// as much as the others; see [`Host::resize`]. An embedded fleet gets `options.count` new drives, a fleet behind a
    /// host those at `options.addresses`.
    ///
    /// # Errors
    /// As there; `Invalid` for addresses where the fleet is embedded, and a number of drives where it is not.
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

    /// Stores `batches` as the plain table `name`, in the storable form of their schema (see
    /// [`skytether_formats::storage_schema`]). Needs a runtime with more than one thread. `options` may be just whether
    /// to replace a data set of that name.
    ///
    /// # Errors
    /// The iterator's; `Conflict` where the data set exists and is not to be replaced; `Invalid` for columns to
    /// partition by that are not there or can't be keys; what the drives say. Nothing is left behind then.
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
            let mut writer = self.writer(name, DatasetKind::Table, options.replace).await?;
            if let Some(scheme) = options.redundancy {
                writer.redundancy(scheme)?;
            }
            let batches = batches.map(|batch| storage_schema::batch(&schema, batch?));
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

    /// Stores the rows of some files of the same columns as the plain table `name`; see [`skytether_formats`] for the
    /// formats.
    ///
    /// # Errors
    /// As [`Fleet::ingest_table`]; errors in a file name it.
    pub async fn ingest_files<P: AsRef<Path>>(&self, name: &DatasetName, paths: &[P], options: impl Into<IngestOptions>) -> Result<IngestReport> {
        let table = files::open(paths)?;
        self.ingest_table(name, table.schema, table.batches, options).await
    }
}

/// How a plain table is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IngestOptions {
    /// Whether it takes the place of a data set of its name.
    pub replace: bool,
    /// The columns whose values determine the drive of a row, in order; empty: slices are distributed round robin.
    pub partition_by: Vec<String>,
    /// How it is kept from loss; as the fleet usually does if `None`.
    pub redundancy: Option<Scheme>,
}

impl From<bool> for IngestOptions {
    fn from(replace: bool) -> Self {
        Self { replace, ..Self::default() }
    }
}
