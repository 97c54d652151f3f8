//! [`FileTable`]: files as one table, and queries over it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use oas::{Format, Input, Session};
use parking_lot::Mutex;
use skytether_common::{Detail, Error, Result};
use skytether_device::{Cse, StorageOnly};
use skytether_engine::{Engine, Reader};
use skytether_file_query::FileEngine;
use skytether_host::{AdaptiveMode, Host, HostOptions, Query, QueryOptions};
use skytether_store::memory::MemoryStore;
use uuid::Uuid;

use crate::drive::FileDrive;
use crate::files::{Files, Where, Work};
use crate::record;
use crate::source::{FilesBelow, Source};

/// The table's name in queries.
pub const TABLE: &str = "files";

/// Files whose columns are asked for one by one. More are one drive, whose files are read one after the other.
const MOST_DRIVES: usize = 64;

/// Memory of plans that run here.
const MEMORY: usize = 1 << 30;

/// Endings of names, and formats.
const ENDINGS: [(&str, Format); 6] =
    [("csv", Format::Csv), ("json", Format::Json), ("jsonl", Format::Json), ("ndjson", Format::Json), ("parquet", Format::Parquet), ("pq", Format::Parquet)];

/// Files as one table.
#[derive(Debug)]
pub struct FileTable {
    host: Host,
    schema: SchemaRef,
    log: Arc<Mutex<Where>>,
}

/// The format of a file by its name.
///
/// # Errors
/// `Invalid` where the name does not tell.
pub fn format_of(path: &Path) -> Result<Format> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    let found = ENDINGS.iter().find(|(of, _)| *of == ending).map(|(_, format)| *format);
    found.ok_or_else(|| Error::invalid(format!("{}: the name does not tell the format; say csv, json or parquet", path.display())))
}

/// The one format of all files.
fn one_format(inputs: &[Input]) -> Result<Format> {
    let mut formats = inputs.iter().map(|input| Ok((input.file.path(), format_of(input.file.path())?)));
    let (first, format) = formats.next().unwrap_or_else(|| Err(Error::invalid("there is no file to query; give at least one")))?;
    for other in formats {
        let (path, other) = other?;
        if other != format {
            return Err(Error::invalid(format!("{} and {} have different formats; query them one by one", first.display(), path.display())));
        }
    }
    Ok(format)
}

/// The engine that runs plans here.
fn engine() -> Result<Arc<FileEngine>> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MEMORY));
    let reader = Arc::new(Reader::sharing(Arc::new(MemoryStore::new()), 1));
    Ok(Arc::new(FileEngine::new(Arc::new(Engine::new("here".into(), reader, pool, threads, threads)?))))
}

/// Names of drives for people: those of the files, each once.
fn names(drives: &[Files]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut name = |(number, files): (usize, &Files)| {
        let name = files.source.name();
        if seen.insert(name.clone()) { name } else { format!("{name} ({})", number + 1) }
    };
    drives.iter().enumerate().map(&mut name).collect()
}

impl FileTable {
    /// The files as one table; asks for their columns. Without a `format`, the names tell it.
    ///
    /// Files with equal columns are queried each by itself. Others are one table all the same where that is possible: a
    /// column of whole numbers in one file and of fractions in another, for example.
    ///
    /// # Errors
    /// `Invalid` without a file, and for formats that can't be told; those of the files.
    pub async fn open(session: Arc<Session>, inputs: Vec<Input>, format: Option<Format>) -> Result<Self> {
        let format = format.map_or_else(|| one_format(&inputs), Ok)?;
        Self::over(Arc::new(FilesBelow { session, inputs }), format).await
    }

    /// The same of files that are anywhere.
    ///
    /// # Errors
    /// Those of the files.
    pub async fn over(source: Arc<dyn Source>, format: Format) -> Result<Self> {
        let log = Arc::<Mutex<Where>>::default();
        let all = Files { source, format, engine: engine()?, log: log.clone() };
        let (drives, schema) = apart(all).await?;
        let names = names(&drives);
        let records: Vec<StorageOnly> =
            names.into_iter().enumerate().map(|(number, name)| StorageOnly::in_memory(Uuid::from_u128(number as u128 + 1), name)).collect();
        let bytes = drives.iter().map(|files| files.source.bytes()).collect::<Result<Vec<_>>>()?;
        record::write(&records, &bytes, &schema).await?;
        let drives = records.into_iter().zip(drives).map(|(records, files)| Arc::new(FileDrive::new(records, files)) as Arc<dyn Cse>);
        let options = HostOptions { moving: AdaptiveMode::Never, names: BTreeMap::from([(TABLE.to_owned(), record::name()?)]), ..HostOptions::default() };
        Ok(Self { host: Host::new(drives.collect(), options)?, schema, log })
    }

    /// The columns.
    #[must_use]
    pub fn columns(&self) -> &SchemaRef {
        &self.schema
    }

    /// Runs a query: one `SELECT` that reads the table [`TABLE`].
    ///
    /// # Errors
    /// As [`Host::sql`].
    pub async fn sql(&self, text: &str, options: &QueryOptions) -> Result<Query> {
        self.host.sql(text, options).await.map_err(|error| match error.detail() {
            Some(Detail::MissingTable { table }) => Error::not_found(format!("there is no table {table:?}: the files are the table {TABLE:?}")),
            _ => error,
        })
    }

    /// Where plans ran so far, those that asked for columns included.
    #[must_use]
    pub fn ran(&self) -> Where {
        self.log.lock().clone()
    }
}

/// The files as drives, and their columns.
async fn apart(all: Files) -> Result<(Vec<Files>, SchemaRef)> {
    let columns = |files: Files| async move { Ok::<_, Error>((files.run(Work::default()).await?.schema, files)) };
    if all.source.count() == 1 || all.source.count() > MOST_DRIVES {
        let (schema, all) = columns(all).await?;
        return Ok((vec![all], schema));
    }
    let each = futures::future::join_all(all.each().into_iter().map(columns)).await;
    let each = each.into_iter().collect::<Result<Vec<_>>>()?;
    let (schemas, drives): (Vec<SchemaRef>, Vec<Files>) = each.into_iter().unzip();
    match schemas.split_first() {
        Some((first, others)) if others.iter().all(|other| other == first) => Ok((drives, first.clone())),
        _ => {
            let (schema, all) = columns(all).await?;
            Ok((vec![all], schema))
        }
    }
}
