//! Three doors, one set of bytes: a data set answers the same as a query over the fleet, as a Parquet file that others
//! read, and by EXEC over the extents of that file in a volume, by iSCSI and by NVMe/TCP. Drives may be lost, and work
//! may move.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::compute::{concat_batches, sort_to_indices, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bytes::Bytes;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use md5::Digest;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use skytether::{AdaptiveMode, Fleet, HostOptions, OpenOptions, Pushdown, QueryOptions};
use skytether_common::Error;
use skytether_common::checksum::crc32c;
use skytether_file_sql::{FileTable, TABLE};
use skytether_offload::Object;
use skytether_offload::codes::opcode;
use skytether_offload::operations::query::Format;
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::query::Policy;

use crate::redundancy::lose;
use crate::util::{CUTS, batches, ingest};

mod disk;
#[allow(dead_code, reason = "other tests need all of it")]
#[path = "../../../nvme-tcp/tests/host.rs"]
mod host;
mod values;

use disk::{Disk, Way};

/// The result of a query, to the bit: zeros have their sign, and texts their code points.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    /// Names and types of the columns.
    columns: Vec<(String, String)>,
    rows: Vec<String>,
    checksum: u32,
}

impl Answer {
    fn new(schema: &SchemaRef, batches: &[RecordBatch], ordered: bool) -> Self {
        // Views only hold values in another way.
        let of = |of: &arrow::datatypes::DataType| of.to_string().replace("View", "");
        // Files are named by one part.
        let columns = schema.fields().iter().map(|field| (field.name().replace("lab.plain", "plain").replace(TABLE, "plain"), of(field.data_type()))).collect();
        let options = FormatOptions::default().with_null("\u{0}null").with_display_error(false);
        let mut rows = Vec::new();
        for batch in batches {
            let columns: Vec<_> = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap()).collect();
            rows.extend((0..batch.num_rows()).map(|row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("\u{1}")));
        }
        if !ordered {
            rows.sort();
        }
        let checksum = crc32c(rows.join("\n").as_bytes());
        Self { columns, rows, checksum }
    }

    /// Fails with the first difference.
    fn same(&self, other: &Self, what: &str) {
        assert_eq!(self.columns, other.columns, "{what}");
        for (at, (ours, theirs)) in self.rows.iter().zip(&other.rows).enumerate() {
            assert_eq!(ours, theirs, "{what}: row {at}");
        }
        assert_eq!((self.rows.len(), self.checksum), (other.rows.len(), other.checksum), "{what}");
    }
}

async fn of_fleet(fleet: &Fleet, (sql, ordered): (&str, bool), cut: Pushdown) -> Answer {
    let query = fleet.sql(sql, &QueryOptions { cut, ..QueryOptions::default() }).await.unwrap_or_else(|e| panic!("{cut}: {sql}: {}", e.report()));
    let schema = Arc::clone(&query.schema);
    let rows = query.collect().await.unwrap_or_else(|e| panic!("{cut}: {sql}: {}", e.report()));
    Answer::new(&schema, &rows, ordered)
}

/// DataFusion over rows in memory.
async fn of_rows(rows: &RecordBatch, (sql, ordered): (&str, bool)) -> Answer {
    let context = SessionContext::new();
    context.register_table("plain", Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows.clone()]]).unwrap())).unwrap();
    let frame = context.sql(&sql.replace("lab.plain", "plain")).await.unwrap();
    let schema: SchemaRef = Arc::clone(frame.schema().inner());
    Answer::new(&schema, &frame.collect().await.unwrap(), ordered)
}

async fn open(path: &Path, drives: usize, redundancy: &str, moving: AdaptiveMode) -> Fleet {
    let mut host = HostOptions { threads: 2, moving, ..HostOptions::default() };
    host.slices.target_bytes = 8 << 10;
    let options = OpenOptions { drives: Some(drives), redundancy: redundancy.into(), memory_per_drive: Some(64 << 20), ..OpenOptions::default() };
    Fleet::open_with(path, &options, host).await.unwrap()
}

fn read(file: &Bytes) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap();
    let schema = Arc::clone(builder.schema());
    concat_batches(&schema, &builder.build().unwrap().map(Result::unwrap).collect::<Vec<_>>()).unwrap()
}

/// The rows by their `id`.
fn by_id(rows: &RecordBatch) -> RecordBatch {
    let order = sort_to_indices(&rows["id"], None, None).unwrap();
    take_record_batch(rows, &order).unwrap()
}

/// The file, exported and read in place: the same bytes.
async fn view(fleet: &Fleet, dir: &Path) -> Bytes {
    let to = dir.join("plain.parquet");
    fleet.export("lab.plain", &to, true, |_, _| Ok(())).await.unwrap();
    let exported = Bytes::from(fs::read(&to).unwrap());
    let door = fleet.door().await.unwrap();
    let file = door.open("lab.plain").await.unwrap();
    assert_eq!(door.read(&file, 0..file.len()).await.unwrap(), exported);
    exported
}

/// All digests that EXEC knows and that others compute as well.
async fn same_digests(way: &Way, object: &Object, file: &[u8]) {
    assert_eq!(way.digest(opcode::MD5, object).await[..], md5::Md5::digest(file)[..]);
    assert_eq!(way.digest(opcode::SHA256, object).await[..], sha2::Sha256::digest(file)[..]);
    assert_eq!(way.digest(opcode::CRC32C, object).await[..], crc32c(file).to_be_bytes());
}

/// Every way to ask each of `queries` over `rows` gives one answer.
async fn all_doors(rows: &[RecordBatch], queries: &[(&str, bool)]) {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    let whole = concat_batches(&rows[0].schema(), rows).unwrap();

    // One drive that only reads: the host computes.
    let local = open(&dir.path().join("one"), 1, "none", AdaptiveMode::Never).await;
    ingest(&local, "lab.plain", rows, false).await.unwrap();
    let mut expected = Vec::new();
    for query in queries {
        expected.push(of_fleet(&local, *query, Pushdown::Raw).await);
    }
    drop(local);
    assert!(expected.iter().filter(|answer| answer.rows.is_empty()).count() <= 2, "most queries have rows");

    let fleet = open(&at, 3, "ec:2+1", AdaptiveMode::Never).await;
    let report = ingest(&fleet, "lab.plain", rows, false).await.unwrap();
    assert!(report.slices >= 6, "too few slices to spread: {}", report.slices);
    let file = view(&fleet, dir.path()).await;
    for cut in CUTS {
        for (query, expected) in queries.iter().zip(&expected) {
            of_fleet(&fleet, *query, cut).await.same(expected, &format!("{cut}: {}", query.0));
        }
    }
    drop(fleet);

    // Drives push work back: rows that they have filtered, and whole slices.
    for level in [PushdownLevel::Filter, PushdownLevel::Raw] {
        let fleet = open(&at, 3, "ec:2+1", AdaptiveMode::Always(Policy::Static(level))).await;
        for (query, expected) in queries.iter().zip(&expected) {
            of_fleet(&fleet, *query, Pushdown::Adaptive).await.same(expected, &format!("pushed back, {level:?}: {}", query.0));
        }
    }

    lose(&at, &[1]);
    let fleet = open(&at, 3, "ec:2+1", AdaptiveMode::Never).await;
    for cut in [Pushdown::Adaptive, Pushdown::Full] {
        for (query, expected) in queries.iter().zip(&expected) {
            of_fleet(&fleet, *query, cut).await.same(expected, &format!("a drive is lost, {cut}: {}", query.0));
        }
    }
    assert_eq!(view(&fleet, dir.path()).await, file, "the file does not tell that a drive is lost");
    drop(fleet);

    // The Parquet file in another engine, which gives the same as over the rows that went in.
    let seen = read(&file);
    assert_eq!(by_id(&seen), by_id(&whole));
    for query in queries {
        of_rows(&seen, *query).await.same(&of_rows(&whole, *query).await, &format!("view: {}", query.0));
    }

    // The same bytes in a volume, and queries as `skytether oas sql` plans them.
    let mut disk = Disk::serve(&dir.path().join("disks")).await;
    let object = disk.put(&file).await;
    assert!(object.extents.len() > 1);
    assert_eq!(disk.get(&object).await, file);
    for way in disk.ways() {
        same_digests(way, &object, &file).await;
        let table = FileTable::over(disk.source(way, &object), Format::Parquet).await.unwrap();
        assert_eq!(table.columns().fields(), whole.schema().fields());
        for ((sql, ordered), expected) in queries.iter().zip(&expected) {
            let failed = |e: Error| -> Answer { panic!("EXEC, {way:?}: {sql}: {}", e.report()) };
            let found = async {
                let query = table.sql(&sql.replace("lab.plain", TABLE), &QueryOptions::default()).await?;
                let schema = Arc::clone(&query.schema);
                Ok::<_, Error>(Answer::new(&schema, &query.collect().await?, *ordered))
            };
            found.await.unwrap_or_else(failed).same(expected, &format!("EXEC, {way:?}: {sql}"));
        }
        let ran = table.ran();
        // Rows that come with a part of a query have no place in a descriptor.
        assert!(ran.there > queries.len() as u64 && ran.why.as_ref().is_none_or(|why| why.contains("rows of other parts")), "{ran:?}");
        // Computing over a file leaves it as it was.
        same_digests(way, &object, &file).await;
    }
    disk.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differential_of_fleet_view_and_exec() {
    all_doors(&batches(8, 500), &crate::tables::QUERIES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differential_of_fleet_view_and_exec_over_all_types() {
    let rows: Vec<RecordBatch> = (0..6).map(|at| values::values(at * 150..(at + 1) * 150)).collect();
    all_doors(&rows, &values::QUERIES).await;
}
