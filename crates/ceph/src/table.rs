//! An object as a table that a plan scans: only the columns that the plan names are decoded.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result as DfResult;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use skytether_ceph_protocol::{FileFormat, Object, Request};
use skytether_common::{DatasetName, Error, Result};
use skytether_formats::storage_schema::{self, Storable};
use skytether_formats::{Format, Location, ReadOptions, open_locations};
use skytether_plan::error::to_datafusion;
use skytether_runtime::threads::spawn_blocking_thread;

use crate::object::{Chunks, FileOfObject, ObjectBytes};

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;

/// An object as a table.
pub(crate) struct ObjectTable {
    rows: Rows,
    schema: SchemaRef,
}

/// What has the rows.
enum Rows {
    /// Some row groups of a Parquet file.
    Groups(Chunks, Vec<usize>),
    /// A file that one of our readers reads as a whole.
    File { name: DatasetName, at: Location, options: ReadOptions },
}

impl fmt::Debug for ObjectTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectTable").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// The columns that a request names; `None` where it names none.
fn columns(bytes: &[u8]) -> Result<Option<SchemaRef>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let reader = StreamReader::try_new(bytes, None).map_err(|e| Error::invalid("the request's columns are no Arrow IPC stream").with_source(e))?;
    Ok(Some(reader.schema()))
}

fn unreadable(e: parquet::errors::ParquetError) -> Error {
    match Error::find(&e) {
        Some(own) => own.flattened(),
        None => Error::corrupt("the object is no Parquet file that can be read").with_source(e),
    }
}

fn undecodable(e: arrow::error::ArrowError) -> Error {
    match Error::find(&e) {
        Some(own) => own.flattened(),
        None => Error::corrupt("a row group of the object can't be decoded").with_source(e),
    }
}

impl ObjectTable {
    /// The object of a request. `read` counts the bytes that are read of it. Blocks.
    ///
    /// # Errors
    /// `Corrupt` for bytes that are not those of the request, `Unsupported` for what can't be read here.
    pub(crate) fn open(name: &DatasetName, request: &Request, bytes: Arc<dyn ObjectBytes>, read: &Arc<AtomicU64>) -> Result<Self> {
        let told = columns(&request.schema)?;
        let (format, size, at, len, groups, pieces) = match &request.object {
            Object::Stripe(_) => return Err(Error::internal("a stripe came to the reader of files")),
            Object::File { format, size, at, len, groups, pieces } => (*format, *size, *at, *len, groups, pieces.clone()),
        };
        let file = Arc::new(FileOfObject { bytes, size, at, len, pieces, read: Arc::clone(read) });
        let (rows, found) = match groups {
            Some(groups) if format == FileFormat::Parquet => {
                let chunks = Chunks(file);
                let builder = ParquetRecordBatchReaderBuilder::try_new(chunks.clone()).map_err(unreadable)?;
                let groups: Vec<usize> = groups.iter().map(|group| *group as usize).collect();
                let there = builder.metadata().num_row_groups();
                if let Some(absent) = groups.iter().find(|group| **group >= there) {
                    return Err(Error::invalid(format!("the file has {there} row groups, and the request names group {absent}")));
                }
                (Rows::Groups(chunks, groups), Arc::clone(builder.schema()))
            }
            Some(_) => return Err(Error::invalid("row groups are of Parquet files only")),
            None => {
                let format = match format {
                    FileFormat::Csv => Format::Separated(b','),
                    FileFormat::Json => Format::JsonLines,
                    FileFormat::Parquet => Format::Parquet,
                    FileFormat::Arrow => Format::Arrow,
                };
                let options = ReadOptions { format: Some(format), hive: false, ..ReadOptions::default() };
                let location = Location::object("the object", file);
                let opened = open_locations(std::slice::from_ref(&location), &options)?;
                (Rows::File { name: name.clone(), at: location, options }, opened.schema)
            }
        };
        let schema = storage_schema::schema(name, &found)?;
        if let Some(told) = told.filter(|told| !same(told, &schema)) {
            return Err(Error::conflict(format!("the object has the columns {}, and the request names {}", names(&schema), names(&told))));
        }
        Ok(Self { rows, schema })
    }

    pub(crate) fn columns(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gives each batch of the columns at `projection` to `take`, until that says no. Blocks.
    fn read(&self, projection: &[usize], mut take: impl FnMut(RecordBatch) -> bool) -> Result<()> {
        let projected = |batch: RecordBatch| batch.project(projection).map_err(|e| Error::internal("a plan names a column that is not there").with_source(e));
        match &self.rows {
            Rows::Groups(chunks, groups) => {
                let builder = ParquetRecordBatchReaderBuilder::try_new(chunks.clone()).map_err(unreadable)?;
                let mut sorted = projection.to_vec();
                sorted.sort_unstable();
                let mask = ProjectionMask::roots(builder.parquet_schema(), sorted.iter().copied());
                let wanted = self.schema.project(&sorted).map_err(|e| Error::internal("a plan names a column that is not there").with_source(e))?;
                // The reader gives columns in the file's order.
                let order: Vec<usize> = projection.iter().filter_map(|column| sorted.binary_search(column).ok()).collect();
                let mut storable = Storable::new(Arc::new(wanted));
                let reader = builder.with_row_groups(groups.clone()).with_projection(mask).with_batch_size(BATCH_ROWS).build().map_err(unreadable)?;
                for batch in reader {
                    let batch = batch.map_err(undecodable)?;
                    for batch in storable.batches(batch)? {
                        let batch = batch.project(&order).map_err(|e| Error::internal("columns can't be put in order").with_source(e))?;
                        if !take(batch) {
                            return Ok(());
                        }
                    }
                }
            }
            Rows::File { name, at, options } => {
                let file = open_locations(std::slice::from_ref(at), options)?;
                if storage_schema::schema(name, &file.schema)? != self.schema {
                    return Err(Error::conflict("the object was changed meanwhile: ask again"));
                }
                let mut storable = Storable::new(Arc::clone(&self.schema));
                for batch in file.batches {
                    for batch in storable.batches(batch?)? {
                        if !take(projected(batch)?) {
                            return Ok(());
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether two tables have the same columns, whatever their metadata say.
pub(crate) fn same(a: &SchemaRef, b: &SchemaRef) -> bool {
    let equal = |(a, b): (&Arc<arrow::datatypes::Field>, &Arc<arrow::datatypes::Field>)| a.name() == b.name() && a.data_type() == b.data_type();
    a.fields().len() == b.fields().len() && a.fields().iter().zip(b.fields()).all(equal)
}

fn names(schema: &SchemaRef) -> String {
    let all: Vec<String> = schema.fields().iter().take(50).map(|field| format!("{} {}", field.name(), field.data_type())).collect();
    all.join(", ")
}

/// An [`ObjectTable`] as DataFusion scans it.
#[derive(Debug)]
pub(crate) struct Scanned(pub(crate) Arc<ObjectTable>);

#[async_trait]
impl TableProvider for Scanned {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(&self, _: &dyn Session, projection: Option<&Vec<usize>>, _: &[Expr], limit: Option<usize>) -> DfResult<Arc<dyn ExecutionPlan>> {
        let projection = projection.cloned().unwrap_or_else(|| (0..self.0.schema.fields().len()).collect());
        let schema = Arc::new(self.0.schema.project(&projection)?);
        let part = Part { table: Arc::clone(&self.0), projection, schema: Arc::clone(&schema) };
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(part)], None, [], false, limit)?))
    }
}

/// The rows as one partition.
#[derive(Debug)]
struct Part {
    table: Arc<ObjectTable>,
    projection: Vec<usize>,
    schema: SchemaRef,
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut rows = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), 1);
        let (sender, table, projection) = (rows.tx(), Arc::clone(&self.table), self.projection.clone());
        rows.spawn(async move {
            spawn_blocking_thread(move || table.read(&projection, |batch| sender.blocking_send(Ok(batch)).is_ok())).await.map_err(to_datafusion)
        });
        rows.build()
    }
}

/// A table that plans know by this data set, for [`skytether_engine::Engine::start_over`].
pub(crate) fn provider(table: ObjectTable) -> Arc<dyn TableProvider> {
    Arc::new(Scanned(Arc::new(table)))
}
