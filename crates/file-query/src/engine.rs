//! [`FileEngine`]: runs plans over files.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use skytether_common::{DatasetName, Error, Result};
use skytether_device::{DeliveryStream, ResultMessage, SubPlan};
use skytether_engine::Engine;
use skytether_formats::{Format, Location, Object, ReadOptions};
use skytether_offload::operations::query::{Format as FileFormat, QueryFile, QueryFiles, QueryPart, QueryRequest};
use skytether_plan::error::from_datafusion;
use skytether_runtime::threads::spawn_blocking_thread;

use crate::object::ReadObject;
use crate::table::{Files, Rows};

/// The data set that plans name: a table `t` is `[exec, files, t]`.
pub const DATASET: (&str, &str) = ("exec", "files");

/// An engine over files.
#[derive(Debug)]
pub struct FileEngine {
    engine: Arc<Engine>,
}

impl FileEngine {
    /// Plans run in `engine`, which gives them memory, turns and threads.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }
}

impl QueryFiles for FileEngine {
    fn query(&self, request: QueryRequest) -> BoxStream<'static, Result<QueryPart>> {
        let engine = Arc::clone(&self.engine);
        stream::once(async move {
            match answer(engine, request).await {
                Ok(parts) => parts,
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        })
        .flatten()
        .boxed()
    }
}

async fn answer(engine: Arc<Engine>, request: QueryRequest) -> Result<BoxStream<'static, Result<QueryPart>>> {
    let name = DatasetName::new(DATASET.0, DATASET.1)?;
    let mut files: BTreeMap<String, Vec<QueryFile>> = BTreeMap::new();
    for file in request.files {
        files.entry(file.table.clone()).or_default().push(file);
    }
    let (mut tables, scans) = (BTreeMap::new(), Arc::<AtomicUsize>::default());
    for (table, files) in files {
        let readers = files.iter().map(|file| ReadObject::new(file.bytes.clone(), request.deadline, request.cancel.clone())).collect();
        tables.insert(table, Arc::new(inspected(&name, request.format, &files, readers, &scans).await?));
    }
    if request.plan.is_empty() {
        return columns(&tables);
    }
    let mut given: BTreeMap<String, Arc<dyn TableProvider>> = BTreeMap::new();
    for (table, files) in tables {
        let rows = StreamingTable::try_new(Arc::clone(files.columns()), vec![Arc::new(Rows(files))]).map_err(from_datafusion)?;
        given.insert(table, Arc::new(rows));
    }
    let plan = SubPlan::over_given(name, request.plan, request.filters, request.tables);
    Ok(parts(engine.start_over(plan, &given).await?))
}

/// Inspects the files of a table: of text, all of them, on a thread of its own.
async fn inspected(name: &DatasetName, format: FileFormat, files: &[QueryFile], readers: Vec<ReadObject>, scans: &Arc<AtomicUsize>) -> Result<Files> {
    if format == FileFormat::Csv && files.iter().any(|file| file.preceded) {
        // It has no names, and its values alone don't say the types of the whole file's columns.
        return Err(Error::unsupported("query: a chunk of a CSV file after the first one can't be read alone: query the whole file"));
    }
    let titles: Vec<String> = files.iter().enumerate().map(|(number, file)| format!("input {number} (table {})", file.table)).collect();
    let options = ReadOptions { format: Some(of(format)), hive: false, ..ReadOptions::default() };
    let (name, scans) = (name.clone(), Arc::clone(scans));
    spawn_blocking_thread(move || {
        for (title, reader) in titles.iter().zip(&readers) {
            refuse_packed(title, reader)?;
        }
        let locations = titles.iter().zip(readers).map(|(title, reader)| Location::object(title, Arc::new(reader))).collect();
        Files::open(name, locations, options, scans)
    })
    .await
}

/// Refuses text that is compressed: what comes out of it has no bound here.
fn refuse_packed(title: &str, reader: &ReadObject) -> Result<()> {
    let mut start = [0; 4];
    let mut got = 0;
    while got < start.len() {
        match reader.read_at(got as u64, &mut start[got..]) {
            Ok(0) => break,
            Ok(read) => got += read,
            Err(error) => return Err(Error::find(&error).map_or_else(|| Error::unavailable(format!("{title} can't be read")), |ours| ours.flattened())),
        }
    }
    match &start[..got] {
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd] => {
            Err(Error::unsupported(format!("{title} is compressed: decompress it into an output object first, and query that")))
        }
        _ => Ok(()),
    }
}

fn of(format: FileFormat) -> Format {
    match format {
        FileFormat::Csv => Format::Separated(b','),
        FileFormat::Json => Format::JsonLines,
        FileFormat::Parquet => Format::Parquet,
    }
}

/// The columns of the one table, as a stream without rows.
fn columns(tables: &BTreeMap<String, Arc<Files>>) -> Result<BoxStream<'static, Result<QueryPart>>> {
    let mut all = tables.values();
    let (Some(files), None) = (all.next(), all.next()) else {
        return Err(Error::invalid(format!("query: an empty plan asks for the columns of one table, not of {}", tables.len())));
    };
    let written = Written::new(files.columns())?;
    Ok(stream::iter([written.finish().map(QueryPart::Rows)]).boxed())
}

/// What a plan delivers, as bytes of an Arrow IPC stream, and its receipt.
fn parts(delivery: DeliveryStream) -> BoxStream<'static, Result<QueryPart>> {
    let DeliveryStream { schema, messages } = delivery;
    stream::unfold(Some((messages, None::<Written>, schema)), |state| async move {
        let (mut messages, mut written, schema) = state?;
        loop {
            let mut writer = match written.take() {
                Some(writer) => writer,
                None => match Written::new(&schema) {
                    Ok(writer) => writer,
                    Err(error) => return Some((vec![Err(error)], None)),
                },
            };
            match messages.next().await {
                Some(Ok(ResultMessage::Batch { batch, .. })) => match writer.batch(&batch) {
                    Ok(bytes) => return Some((vec![Ok(QueryPart::Rows(bytes))], Some((messages, Some(writer), schema)))),
                    Err(error) => return Some((vec![Err(error)], None)),
                },
                Some(Ok(ResultMessage::EpochComplete { .. })) => written = Some(writer),
                Some(Ok(ResultMessage::Done(annotation))) => {
                    let receipt = serde_json::to_vec(&annotation).map_err(|e| Error::internal("a receipt can't be written").with_source(e));
                    let last = vec![writer.finish().map(QueryPart::Rows), receipt.map(|json| QueryPart::Receipt(json.into()))];
                    return Some((last, None));
                }
                Some(Err(error)) => return Some((vec![Err(error)], None)),
                None => return Some((vec![Err(Error::unavailable("the plan ended without its last message"))], None)),
            }
        }
    })
    .flat_map(stream::iter)
    .boxed()
}

/// An Arrow IPC stream whose bytes are taken as they are made.
struct Written {
    writer: StreamWriter<Taken>,
    bytes: Taken,
}

/// Bytes that were written and not taken.
#[derive(Clone, Default)]
struct Taken(Arc<Mutex<Vec<u8>>>);

impl Write for Taken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Taken {
    fn take(&self) -> Bytes {
        std::mem::take(&mut *self.0.lock()).into()
    }
}

fn unwritten(e: arrow::error::ArrowError) -> Error {
    Error::internal("rows can't be written as an Arrow IPC stream").with_source(e)
}

impl Written {
    fn new(schema: &SchemaRef) -> Result<Self> {
        let bytes = Taken::default();
        let plain = Schema::new(schema.fields().clone());
        Ok(Self { writer: StreamWriter::try_new(bytes.clone(), &plain).map_err(unwritten)?, bytes })
    }

    fn batch(&mut self, batch: &arrow::record_batch::RecordBatch) -> Result<Bytes> {
        self.writer.write(batch).map_err(unwritten)?;
        Ok(self.bytes.take())
    }

    fn finish(mut self) -> Result<Bytes> {
        self.writer.finish().map_err(unwritten)?;
        Ok(self.bytes.take())
    }
}
