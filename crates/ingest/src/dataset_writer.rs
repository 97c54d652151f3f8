//! [`DatasetWriter`]: writes a data set as a new generation, which one compare-and-set makes visible.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use serde::{Deserialize, Serialize};
use skytether_common::names::{PART, part_of};
use skytether_common::{DatasetName, Error, Generation, PartitionName, Result};
use skytether_device::kept::KEPT;
use skytether_device::size::batch_bytes;
use skytether_erasure::{Code, Scheme};
use skytether_index::INDEX;
use skytether_partitioning::Placement;
use skytether_partitioning::{self as partition, Key};
use skytether_runtime::threads;
use skytether_slice::{Layout, SliceOptions, TableSlicer};
use tokio::runtime::{Handle, RuntimeFlavor};
use uuid::Uuid;

use crate::nesting::check_nesting;
use crate::partition_writer::PartitionWriter;
use crate::row_router::RowRouter;
use crate::stripe_encoder::StripeEncoder;
use crate::write_pipeline::WritePipeline;
use skytether_catalog::commit::lost_update;
use skytether_catalog::records::code_map::StripeLayout;
use skytether_catalog::records::code_map::{INNER_PARITY, PARITY};
use skytether_catalog::records::root::{DatasetKind, RootRecord, TableRecord};
use skytether_catalog::root_store::Catalog;

mod commit;
mod matrices;

pub use matrices::MOST_PARTS;

/// What an ingest stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IngestReport {
    /// Rows of all tables together; a table that each drive holds counts once.
    pub rows: u64,
    /// Slices on all drives together.
    pub slices: u64,
    /// Bytes on all drives together.
    pub bytes_stored: u64,
    /// Those of them that this writer wrote. The others are of tables that a version keeps.
    #[serde(default)]
    pub bytes_written: u64,
    /// From the writer's making to the commit.
    pub seconds: f64,
}

/// An ingest under way. Nothing of it is visible before [`DatasetWriter::commit`]. Dropped without a commit, it deletes
/// what it wrote.
#[derive(Debug)]
pub struct DatasetWriter {
    catalog: Catalog,
    slices: SliceOptions,
    name: DatasetName,
    kind: DatasetKind,
    generation: Generation,
    /// The generation in which the replaced content was written.
    replaced: Option<Generation>,
    /// For a version: the tables of the replaced content that it does not keep.
    left_out: Option<BTreeSet<String>>,
    /// For a version: the record of the replaced content.
    from: Option<Arc<RootRecord>>,
    /// The change number of the replaced record.
    change: u64,
    /// The drives that were up when the ingest began: only they get values.
    drives: Vec<usize>,
    /// The incarnations of these drives when the ingest began, as far as they were replaced before.
    incarnations: BTreeMap<Uuid, u32>,
    scheme: Scheme,
    tables: BTreeMap<String, TableRecord>,
    application: BTreeMap<String, String>,
    started: Instant,
    runtime: Handle,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writing,
    Failed,
    Settled,
}

impl DatasetWriter {
    /// Begins to write `name`; `generation` is drawn at random by the caller.
    ///
    /// # Errors
    /// `Conflict` where the data set exists and `replace` is false; `Unsupported` where a newer version wrote it;
    /// `Internal` outside of a runtime with several threads.
    pub fn begin(
        catalog: Catalog,
        slices: SliceOptions,
        name: DatasetName,
        kind: DatasetKind,
        replace: bool,
        generation: Generation,
    ) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let started = Instant::now();
            let runtime = Handle::try_current().map_err(|e| Error::internal("an ingest needs a tokio runtime").with_source(e))?;
            if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
                return Err(Error::internal("an ingest needs a tokio runtime with more than one thread"));
            }
            catalog.look_around().await?;
            let (replaced, change) = match catalog.read_versioned(&name).await? {
                None => (None, 0),
                Some((old, _)) if replace => (Some(old.written()), old.change),
                Some(_) => {
                    return Err(Error::conflict(format!(
                        "{name} exists already: drop it, choose another name, or replace it (replace=True, in the shell --replace)"
                    )));
                }
            };
            let (drives, incarnations, scheme) = (catalog.health().writable(), catalog.health().incarnations(), catalog.health().scheme());
            Ok(Self {
                catalog,
                slices,
                name,
                kind,
                generation,
                replaced,
                left_out: None,
                from: None,
                change,
                drives,
                incarnations,
                scheme,
                tables: BTreeMap::new(),
                application: BTreeMap::new(),
                started,
                runtime,
                state: State::Writing,
            })
        })
    }

    /// Begins to write a version of `name`: a new generation that keeps all tables of generation `from` but those that
    /// it writes again ([`Self::write_table`] and the like) or leaves out ([`Self::leave_out`]). It also keeps the
    /// application's entries that it does not set, the indexes of the tables that it keeps, and the redundancy.
    /// `generation` is drawn at random by the caller.
    ///
    /// # Errors
    /// `NotFound` for a data set that does not exist; `Conflict` where its content is not that of `from`; else as
    /// [`Self::begin`].
    pub fn begin_version(
        catalog: Catalog,
        slices: SliceOptions,
        name: DatasetName,
        from: Generation,
        generation: Generation,
    ) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let (old, _) = catalog.read(&name).await?;
            if old.generation != from && old.written() != from {
                return Err(lost_update(&name));
            }
            // Tables that lie everywhere would be written to the drives that are up, and those that are kept would need
            // them on the others.
            if let Some(lost) = old.tables.values().flat_map(|table| &table.partitions).find_map(|partition| lost(&catalog, &name, &partition.drive)) {
                return Err(Error::unavailable(format!(
                    "{name} gets no new version while {lost} is lost, which holds a part that stays as it is: bring it back, or `skytether repair` it"
                )));
            }
            let mut writer = Self::begin(catalog, slices, name, old.kind, true, generation).await?;
            // It may have been replaced since.
            if writer.replaced != Some(old.written()) {
                return Err(lost_update(&writer.name));
            }
            let scheme = |table: &TableRecord| table.redundancy.as_ref().map(|redundancy| redundancy.scheme);
            writer.scheme = old.tables.values().find_map(scheme).unwrap_or(Scheme::None);
            writer.application = old.application.clone();
            writer.from = Some(Arc::new(old));
            writer.left_out = Some(BTreeSet::new());
            Ok(writer)
        })
    }

    /// Does not keep `table` of the version before.
    ///
    /// # Errors
    /// `Invalid` for a writer that is no version's, and for a table that it has written.
    pub fn leave_out(&mut self, table: &str) -> Result<()> {
        if self.has(table) {
            return Err(Error::invalid(format!("{} has been given the table {table:?}, so it can't be left out", self.name)));
        }
        let left_out = self.left_out.as_mut().ok_or_else(|| Error::invalid(format!("{} is written as a whole: there is nothing to leave out", self.name)))?;
        left_out.insert(table.to_owned());
        Ok(())
    }

    /// The data set that is being written.
    #[must_use]
    pub fn name(&self) -> &DatasetName {
        &self.name
    }

    /// The generation that it writes.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Sets the redundancy of the data set, instead of the fleet's. Call it before the first table is written.
    ///
    /// # Errors
    /// `Invalid` where the fleet has too few drives for the scheme; on two levels, where it has too few nodes or none;
    /// and after a table was written.
    pub fn redundancy(&mut self, scheme: Scheme) -> Result<()> {
        if !self.tables.is_empty() || self.state != State::Writing {
            return Err(Error::invalid(format!("the redundancy of {} is to be said before its tables are written", self.name)));
        }
        self.catalog.health().layout(scheme, &self.drives)?;
        self.scheme = scheme;
        Ok(())
    }

    /// Keeps `value` under `key` in the root record, for the application's own use.
    pub fn application(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.application.insert(key.into(), value.into());
    }

    /// Writes one table from `batches` of `schema`. Reads, encodes and sends at the same time, in bounded memory. It
    /// reads `batches` on the calling thread, which it reports to the runtime as blocked.
    ///
    /// # Errors
    /// The iterator's errors; `Invalid` for a batch of another schema, a column name twice or a table twice; errors of
    /// the drives. After an error the caller can only drop the writer.
    pub async fn write_table(
        &mut self,
        table: &str,
        placement: Placement,
        schema: SchemaRef,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send,
    ) -> Result<()> {
        self.write(table, placement, Vec::new(), schema, batches).await
    }

    /// As [`Self::write_table`], but the values of the columns `by` determine the drive of each row. Partition `n` is
    /// on drive `n` of the fleet.
    ///
    /// # Errors
    /// As there; `Invalid` where `by` is empty, or names a missing column or one of a type that can't be a key.
    pub async fn write_partitioned(
        &mut self,
        table: &str,
        by: &[String],
        schema: SchemaRef,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send,
    ) -> Result<()> {
        let keys = partition::keys(&schema, by).map_err(|e| e.context(format!("{} can't be partitioned", self.name)))?;
        self.write(table, Placement::Spread, keys, schema, batches).await
    }

    async fn write(
        &mut self,
        table: &str,
        placement: Placement,
        keys: Vec<Key>,
        schema: SchemaRef,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send,
    ) -> Result<()> {
        self.check_table(table)?;
        check_schema(&self.name, &schema)?;
        self.state = State::Failed;
        let writes = WritePipeline::new(&self.catalog);
        let encoded = tokio::task::block_in_place(|| self.encode_table(&writes, table, placement, keys, &schema, batches));
        let record = settle(writes, encoded).await?;
        self.tables.insert(table.to_owned(), record);
        self.state = State::Writing;
        Ok(())
    }

    fn encode_table(
        &self,
        writes: &WritePipeline,
        table: &str,
        placement: Placement,
        keys: Vec<Key>,
        schema: &SchemaRef,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send,
    ) -> Result<TableRecord> {
        let (send, receive) = sync_channel::<RecordBatch>(2);
        std::thread::scope(|scope| {
            let encoder = std::thread::Builder::new().name("encoder".to_owned()).spawn_scoped(scope, move || -> Result<TableRecord> {
                let drives = self.order(placement, !keys.is_empty())?;
                let coder = if placement == Placement::Spread { self.coder(writes, table, &drives)? } else { None };
                let partitions = self.route(writes, table, placement, &drives, coder.as_ref(), schema);
                let cut = || {
                    let mut router = RowRouter::new(placement, partitions, keys, || TableSlicer::new(schema.clone(), self.slices.clone()));
                    let mut memory_bytes = 0;
                    for batch in receive {
                        memory_bytes += batch_bytes(&batch);
                        router.push(&batch)?;
                    }
                    router.finish(&self.catalog, memory_bytes)
                };
                let mut record = match &coder {
                    Some(coder) => coder.beside(cut)?,
                    None => cut()?,
                };
                record.redundancy = coder.map(|coder| coder.finish(&self.catalog)).transpose()?;
                Ok(record)
            });
            let encoder = encoder.map_err(threads::no_more)?;
            let mut read = Ok(());
            for batch in batches {
                let batch = batch.and_then(|b| conform(&self.name, table, schema, b));
                match batch {
                    // The encoder has stopped: its error says why.
                    Ok(batch) => {
                        if send.send(batch).is_err() {
                            break;
                        }
                    }
                    Err(e) => {
                        read = Err(e);
                        break;
                    }
                }
            }
            drop(send);
            let encoded = encoder.join().unwrap_or_else(|_| Err(Error::internal(format!("the encoder of {} {table} stopped", self.name))));
            read.and(encoded)
        })
    }

    /// The drives in the order of the table's partitions.
    fn order(&self, placement: Placement, by_key: bool) -> Result<Vec<usize>> {
        let mut drives = self.drives.clone();
        if placement == Placement::Spread
            && let (_, Some(over)) = self.over()?
        {
            drives = over.drives;
            if by_key && !over.nodes.is_empty() {
                // The order of tables on one level, which joins may co-locate with this one.
                drives.sort_unstable();
            }
        }
        if placement == Placement::Spread && !by_key {
            // Small tables begin at the data set's home drive, so that not all of them fill the first drive. The
            // partitions of tables that may be joined are on the same drives.
            let home = self.catalog.home(&self.name);
            let first = drives.iter().position(|drive| *drive == home).unwrap_or(0);
            drives.rotate_left(first);
        }
        Ok(drives)
    }

    /// The code of the data set's tables and the drives of their code groups, if the scheme has parities.
    fn over(&self) -> Result<(Option<Code>, Option<StripeLayout>)> {
        let over = self.catalog.health().layout(self.scheme, &self.drives).map_err(|e| e.context(format!("{} can't be stored", self.name)))?;
        Ok((self.scheme.code(), over))
    }

    fn partition(&self, table: &str, slot: u32) -> PartitionName {
        PartitionName { dataset: self.name.clone(), generation: self.generation, table: table.to_owned(), slot }
    }

    /// The encoder of a table over `drives`, if the table has parities.
    fn coder<'a>(&self, writes: &'a WritePipeline, table: &str, drives: &[usize]) -> Result<Option<StripeEncoder<'a>>> {
        let (Some(code), Some(over)) = self.over()? else { return Ok(None) };
        // The nodes of the drives, whose order may differ.
        let node = |at: &usize| over.drives.iter().position(|other| other == at).and_then(|place| over.nodes.get(place).copied());
        let nodes = if over.nodes.is_empty() { Vec::new() } else { drives.iter().filter_map(node).collect() };
        let over = StripeLayout { scheme: self.scheme, drives: drives.to_vec(), nodes };
        StripeEncoder::new(writes, over, code, self.partition(table, 0), self.slices.target_bytes).map(Some)
    }

    fn route<'a>(
        &self,
        writes: &'a WritePipeline,
        table: &str,
        placement: Placement,
        drives: &[usize],
        coder: Option<&'a StripeEncoder<'a>>,
        schema: &SchemaRef,
    ) -> Vec<PartitionWriter<'a>> {
        let writer = |slot: u32, drives: Vec<usize>| PartitionWriter::new(writes, self.partition(table, slot), drives, Layout::Table, schema.clone());
        match placement {
            Placement::Everywhere => vec![writer(0, drives.to_vec())],
            Placement::Spread => drives.iter().zip(0..).map(|(drive, slot)| writer(slot, vec![*drive]).coded(coder)).collect(),
        }
    }

    /// Whether a table was written, or a part of it.
    fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table) || self.tables.keys().any(|written| part_of(written) == Some(table))
    }

    fn check_table(&self, table: &str) -> Result<()> {
        if self.state != State::Writing {
            return Err(Error::invalid(format!("this ingest of {} has failed before: begin again", self.name)));
        }
        if self.has(table) {
            return Err(Error::invalid(format!("{} has been given the table {table:?} twice", self.name)));
        }
        if table.starts_with(PART) {
            return Err(Error::invalid(format!("{} can't have a table {table:?}: names that begin with {PART:?} are those of parts of matrices", self.name)));
        }
        if table.starts_with(INDEX) {
            return Err(Error::invalid(format!("{} can't have a table {table:?}: names that begin with {INDEX:?} are those of indexes", self.name)));
        }
        if table.starts_with(KEPT) {
            return Err(Error::invalid(format!("{} can't have a table {table:?}: names that begin with {KEPT:?} are those of kept results", self.name)));
        }
        if let Some(prefix) = [PARITY, INNER_PARITY].iter().find(|prefix| table.starts_with(**prefix)) {
            return Err(Error::invalid(format!("{} can't have a table {table:?}: names that begin with {prefix:?} are those of parities", self.name)));
        }
        Ok(())
    }

    /// Gives up: deletes what was written, and waits for it. A drop does the same in the background.
    ///
    /// # Errors
    /// `Unavailable`; the next open of the fleet then deletes the rest.
    pub fn abort(self) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let mut this = self;

            this.state = State::Settled;
            this.catalog.delete_generation(&this.name, this.generation).await
        })
    }
}

impl Drop for DatasetWriter {
    fn drop(&mut self) {
        if self.state != State::Settled {
            let (catalog, name, generation) = (self.catalog.clone(), self.name.clone(), self.generation);
            self.runtime.spawn(async move {
                if let Err(e) = catalog.delete_generation(&name, generation).await {
                    tracing::debug!("{e}");
                }
            });
        }
    }
}

/// Waits for the lanes. Where the encoder failed as well, its error only says that it could not continue; the lanes'
/// error is the cause.
async fn settle<T>(writes: WritePipeline, encoded: Result<T>) -> Result<T> {
    let sent = writes.finish().await;
    sent.and(encoded)
}

fn check_schema(name: &DatasetName, schema: &SchemaRef) -> Result<()> {
    let mut seen = HashSet::new();
    for field in schema.fields() {
        if !seen.insert(field.name()) {
            return Err(Error::invalid(format!("{name} has two columns named {:?}: rename one", field.name())));
        }
    }
    if seen.is_empty() {
        return Err(Error::invalid(format!("{name} has no columns")));
    }
    check_nesting(name, schema)
}

fn conform(name: &DatasetName, table: &str, schema: &SchemaRef, batch: RecordBatch) -> Result<RecordBatch> {
    let same = batch.num_columns() == schema.fields().len()
        && batch.schema().fields().iter().zip(schema.fields()).all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type());
    if !same {
        return Err(Error::invalid(format!(
            "a batch of {name} ({table}) has other columns than the first: {} instead of {}",
            columns(&batch.schema()),
            columns(schema)
        )));
    }
    // Nullability and metadata of single batches may differ; the declared schema holds.
    RecordBatch::try_new(schema.clone(), batch.columns().to_vec())
        .map_err(|e| Error::invalid(format!("a batch of {name} ({table}) does not keep its schema")).with_source(e))
}

fn columns(schema: &SchemaRef) -> String {
    schema.fields().iter().take(20).map(|f| format!("{} {}", f.name(), f.data_type())).collect::<Vec<_>>().join(", ")
}

/// The name of a drive that is not up.
fn lost(catalog: &Catalog, of: &DatasetName, drive: &Uuid) -> Option<String> {
    match catalog.drive(drive, of) {
        Ok(at) if !catalog.health().is_down(at) => None,
        Ok(at) => Some(catalog.drives()[at].info().name.clone()),
        Err(_) => Some(drive.to_string()),
    }
}
