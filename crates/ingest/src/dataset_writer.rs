//! [`DatasetWriter`]: writes a data set as a new generation, which one compare-and-set makes visible.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Generation, Kind, PartitionName, Result};
use skytether_device::kept::KEPT;
use skytether_device::size::batch_bytes;
use skytether_erasure::{Code, Scheme};
use skytether_index::INDEX;
use skytether_matrix::Transposed;
use skytether_partitioning::Placement;
use skytether_partitioning::{self as partition, Key};
use skytether_runtime::threads;
use skytether_slice::{Layout, SliceOptions, TableSlicer};
use skytether_store::Expect;
use tokio::runtime::{Handle, RuntimeFlavor};
use uuid::Uuid;

use crate::matrix_writer;
use crate::nesting::check_nesting;
use crate::partition_writer::PartitionWriter;
use crate::row_router::RowRouter;
use crate::stripe_encoder::StripeEncoder;
use crate::write_pipeline::WritePipeline;
use skytether_catalog::commit::lost_update;
use skytether_catalog::fencing::is_refusal;
use skytether_catalog::records::code_map::StripeLayout;
use skytether_catalog::records::code_map::{INNER_PARITY, PARITY};
use skytether_catalog::records::root::{DatasetKind, MatrixRecord, PLAIN_FORMAT, RootRecord, TableRecord};
use skytether_catalog::root_store::Catalog;

/// Attempts of a commit that conflicts with a change of the record that did not change the content, such as a move.
const ATTEMPTS: usize = 8;

/// Versions whose replaced tables stay on the drives, for queries that began before.
const RETAINED: usize = 2;

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
            writer.application = old.application;
            writer.left_out = Some(BTreeSet::new());
            Ok(writer)
        })
    }

    /// Does not keep `table` of the version before.
    ///
    /// # Errors
    /// `Invalid` for a writer that is no version's, and for a table that it has written.
    pub fn leave_out(&mut self, table: &str) -> Result<()> {
        if self.tables.contains_key(table) {
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

    /// Writes a matrix as contiguous ranges of genes with about equal numbers of nonzeros, one range per drive. All
    /// cores encode.
    ///
    /// # Errors
    /// The transposition's errors; errors of the drives. After an error the caller can only drop the writer.
    pub fn write_matrix<'a>(&'a mut self, table: &'a str, matrix: &'a Transposed) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.check_table(table)?;
            self.state = State::Failed;
            let writes = WritePipeline::new(&self.catalog);
            let shape = MatrixRecord { cells: matrix.n_cells(), genes: matrix.n_genes(), nonzeros: matrix.nnz() };
            let encoded = tokio::task::block_in_place(|| {
                let drives = self.order(Placement::Spread, true)?;
                let coder = self.coder(&writes, table, &drives)?;
                let name = |slot: u32| self.partition(table, slot);
                let to = matrix_writer::To { catalog: &self.catalog, writes: &writes, drives: &drives, coder: coder.as_ref(), name: &name };
                let partitions = matrix_writer::write(&to, &self.slices, matrix)?;
                Ok((partitions, coder.map(|coder| coder.finish(&self.catalog)).transpose()?))
            });
            let (partitions, redundancy) = settle(writes, encoded).await?;
            let rows = partitions.iter().map(|p| p.rows).sum();
            self.tables.insert(
                table.to_owned(),
                TableRecord {
                    generation: None,
                    placement: Placement::Spread,
                    rows,
                    matrix: Some(shape),
                    memory_bytes: None,
                    partitioned_by: None,
                    partitions,
                    redundancy,
                },
            );
            self.state = State::Writing;
            Ok(())
        })
    }

    fn check_table(&self, table: &str) -> Result<()> {
        if self.state != State::Writing {
            return Err(Error::invalid(format!("this ingest of {} has failed before: begin again", self.name)));
        }
        if self.tables.contains_key(table) {
            return Err(Error::invalid(format!("{} has been given the table {table:?} twice", self.name)));
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

    /// Makes all tables visible at once, instead of the previous content.
    ///
    /// # Errors
    /// `Conflict` if another writer changed this data set meanwhile: nothing changed, and the written values are
    /// deleted. After any other error the commit may have happened: read the data set. A caller that stops waiting does
    /// not stop the commit.
    pub fn commit(self) -> BoxFuture<'static, Result<IngestReport>> {
        Box::pin(async move {
            let mut this = self;

            if this.state != State::Writing {
                return Err(Error::invalid(format!("this ingest of {} has failed before: begin again", this.name)));
            }
            if this.tables.is_empty() && this.left_out.is_none() {
                return Err(Error::invalid(format!("{} has no table: nothing to commit", this.name)));
            }
            this.catalog.raise_homes(this.scheme).await?;
            let record = RootRecord {
                format: PLAIN_FORMAT,
                name: this.name.clone(),
                kind: this.kind,
                generation: this.generation,
                content: None,
                change: this.catalog.next_change(this.change),
                tables: BTreeMap::new(),
                superseded: Vec::new(),
                indexes: Vec::new(),
                application: std::mem::take(&mut this.application),
            };
            // From here on a drop deletes nothing: the root record may name the new generation.
            this.state = State::Settled;
            let name = this.name.clone();
            let runtime = this.runtime.clone();
            runtime
                .spawn(this.settle_commit(record))
                .await
                .map_err(|e| Error::internal(format!("the commit of {name} stopped: see whether it is there")).with_source(e))?
        })
    }

    /// What the commit expects to replace: the current record and its version. Its content must be that of the ingest's
    /// start. Another home drive, with versions of its own, may decide by now, and a resize may have moved the content.
    async fn expected_now(&self) -> Result<(Expect, Option<RootRecord>)> {
        self.catalog.look_around().await?;
        let (expect, now) = match self.catalog.read_versioned(&self.name).await? {
            None => (Expect::Absent, None),
            Some((record, version)) => (Expect::Version(version), Some(record)),
        };
        if now.as_ref().map(RootRecord::written) == self.replaced { Ok((expect, now)) } else { Err(lost_update(&self.name)) }
    }

    /// Commits `record` instead of the previous content, and gives what it replaced. An error comes with whether it is
    /// certain that nothing was committed.
    async fn commit_now(&self, record: &mut RootRecord) -> std::result::Result<Option<RootRecord>, (Error, bool)> {
        for attempt in 0.. {
            let (expect, now) = self.expected_now().await.map_err(|e| (e, true))?;
            self.compose(record, now.as_ref()).map_err(|e| (e, true))?;
            self.is_all_there(record).map_err(|e| (e, true))?;
            record.change = self.catalog.next_change(now.as_ref().map_or(self.change, |now| now.change.max(self.change)));
            match self.catalog.commit(record, expect, now.as_ref().map(|now| now.change)).await {
                // A resize may just have moved the data set.
                Err(e) if e.kind() == Kind::Conflict && attempt < ATTEMPTS && !is_refusal(&e) => {}
                // After any other error the drive may have committed in spite of it.
                Err(e) => {
                    let certain = matches!(e.kind(), Kind::Conflict | Kind::Invalid);
                    return Err((e, certain));
                }
                Ok(()) => return Ok(now),
            }
        }
        Err((lost_update(&self.name), true))
    }

    /// Gives `record` its tables and indexes: the written tables and, for a version, those that it keeps of `now`. They
    /// lie where `now` says: a resize may have moved them since the version began.
    fn compose(&self, record: &mut RootRecord, now: Option<&RootRecord>) -> Result<()> {
        record.tables = self.tables.clone();
        record.superseded.clear();
        if let (Some(left_out), Some(now)) = (&self.left_out, now) {
            let mut replaced = BTreeMap::new();
            for (name, table) in &now.tables {
                let generation = now.generation_of(name);
                if self.tables.contains_key(name) || left_out.contains(name) {
                    replaced.insert(name.clone(), generation);
                } else {
                    record.tables.insert(name.clone(), TableRecord { generation: Some(generation), ..table.clone() });
                }
            }
            if record.tables.is_empty() {
                return Err(Error::invalid(format!("{} would have no table", self.name)));
            }
            let before = now.superseded.iter().take(RETAINED.saturating_sub(1)).cloned();
            record.superseded = std::iter::once(replaced).filter(|tables| !tables.is_empty()).chain(before).collect();
        }
        record.indexes = now.map_or_else(Vec::new, |now| now.indexes.iter().filter(|index| record.tables.contains_key(&index.table)).cloned().collect());
        record.set_format();
        Ok(())
    }

    /// Checks that no drive with a part of this ingest was replaced: a rebuild restores only what root records name, so
    /// a replaced drive lacks the part. Also checks that no drive with the only copy of a part is lost.
    fn is_all_there(&self, record: &RootRecord) -> Result<()> {
        let now = self.catalog.health().incarnations();
        let replaced = |id: &Uuid| now.get(id) != self.incarnations.get(id) && record.names(id);
        if let Some(at) = self.drives.iter().find(|at| replaced(&self.catalog.drives()[**at].info().id)) {
            let drive = &self.catalog.drives()[*at].info().name;
            return Err(Error::unavailable(format!("{drive} was replaced while {} was written, in part there: ingest it again", self.name)));
        }
        for table in record.tables.values().filter(|table| table.redundancy.is_none() && table.placement == Placement::Spread) {
            for partition in &table.partitions {
                let at = self.catalog.drive(&partition.drive, &self.name)?;
                if self.catalog.health().is_down(at) {
                    let drive = &self.catalog.drives()[at].info().name;
                    return Err(Error::unavailable(format!("{drive} was lost while {} was written, which has no redundancy: ingest it again", self.name)));
                }
            }
        }
        Ok(())
    }

    /// The part of a commit that must run to its end: a task of its own.
    async fn settle_commit(self, mut record: RootRecord) -> Result<IngestReport> {
        let replaced = match self.commit_now(&mut record).await {
            Ok(replaced) => replaced,
            Err((e, certain)) => {
                // Only a generation that no root record names may be deleted. Where that is uncertain, the next open
                // decides.
                if certain && let Err(left) = self.catalog.delete_generation(&self.name, self.generation).await {
                    tracing::debug!("{left}");
                }
                return Err(e);
            }
        };
        if let Err(e) = self.catalog.define_indexes(&record).await {
            // The drives learn of the indexes when a client lists them or the fleet is opened.
            tracing::warn!("drives were not told of the indexes of {}: {e}", self.name);
        }
        if let Some(old) = replaced
            && let Err(e) = self.catalog.delete_replaced(&old, Some(&record)).await
        {
            // The commit holds. The next open of the fleet deletes what is left of the old generation.
            tracing::warn!("{e}");
        }
        Ok(IngestReport {
            rows: record.tables.values().map(|t| t.rows).sum(),
            slices: record.tables.values().flat_map(|t| &t.partitions).map(|p| u64::from(p.slices)).sum(),
            bytes_stored: record.bytes(),
            bytes_written: record.bytes_of(record.generation),
            seconds: self.started.elapsed().as_secs_f64(),
        })
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
