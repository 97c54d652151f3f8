//! Tables as Parquet files: exported, and read in place.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, UInt32Type};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::ParquetMetaDataReader;
use skytether::{Fleet, HostOptions, IngestOptions, OpenOptions, Particles, Pushdown, VirtualFile};
use skytether_common::{Kind, Result};

use crate::served::serve;
use crate::util::{batches, ingest, lines, name, open, open_with_slices, query};

/// The exported file, after looking whether the file that is read where it is has the same bytes,
/// whichever ranges are read.
async fn exported(fleet: &Fleet, dir: &Path, table: &str) -> Bytes {
    let to = dir.join(format!("{table}.parquet"));
    let mut told = Vec::new();
    let report = fleet
        .export(table, &to, true, |done, total| {
            told.push((done, total));
            Ok(())
        })
        .await
        .unwrap_or_else(|e| panic!("{table}: {}", e.report()));
    let bytes = Bytes::from(fs::read(&to).unwrap());
    assert_eq!((report.bytes, told.last()), (bytes.len() as u64, Some(&(bytes.len() as u64, bytes.len() as u64))));
    assert!(told.is_sorted() && told.len() as u64 == report.slices + 1);
    let door = fleet.door().await.unwrap();
    let file = door.open(table).await.unwrap();
    assert_eq!((file.len(), file.rows()), (bytes.len() as u64, report.rows));
    let all = bytes.len();
    for (start, end) in [(0, all), (0, 4), (all - 8, all), (all / 3, all / 2), (all / 2, all / 2), (all - all / 3, all), (1, all - 1), (0, all)] {
        assert_eq!(door.read(&file, start as u64..end as u64).await.unwrap(), bytes.slice(start..end), "{table}: {start} to {end}");
    }
    // Small pieces, of a file that nothing was read of.
    let file = door.open(table).await.unwrap();
    let (mut at, mut step) = (0, 1);
    while at < all {
        let end = (at + step).min(all);
        assert_eq!(door.read(&file, at as u64..end as u64).await.unwrap(), bytes.slice(at..end), "{table}: {at} to {end}");
        (at, step) = (end, step * 7 % 4001 + 1);
    }
    bytes
}

fn read(file: &Bytes) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap();
    let schema = Arc::clone(builder.schema());
    concat_batches(&schema, &builder.build().unwrap().map(Result::unwrap).collect::<Vec<_>>()).unwrap()
}

fn row_groups(file: &Bytes) -> usize {
    ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap().metadata().num_row_groups()
}

fn wide() -> RecordBatch {
    let columns = (0..300i64).map(|c| {
        let numbers = (0..900i64).map(move |n| ((n + c) % 11 != 0).then_some(n * 31 + c));
        let array: ArrayRef =
            if c % 9 == 4 { Arc::new(numbers.map(|n| n.map(|n| n.to_string())).collect::<StringArray>()) } else { Arc::new(numbers.collect::<Int64Array>()) };
        (format!("c{c}"), array, true)
    });
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

async fn fill(fleet: &Fleet) {
    let rows = batches(6, 1000);
    ingest(fleet, "lab.t", &rows, false).await.unwrap();
    ingest(fleet, "lab.wide", &[wide()], false).await.unwrap();
    let by = IngestOptions { partition_by: vec!["id".into()], ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.keyed"), rows[0].schema(), rows.iter().cloned().map(Ok), by.clone()).await.unwrap();
    let empty = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("t", DataType::Utf8, true)]));
    fleet.ingest_table(&name("lab.empty"), Arc::clone(&empty), std::iter::empty(), false).await.unwrap();
    fleet.ingest_table(&name("lab.empty_keyed"), empty, std::iter::empty(), by).await.unwrap();
    crate::expression::write(fleet, "blood.tiny").await;
}

const TABLES: [&str; 9] =
    ["lab.t", "lab.wide", "lab.keyed", "lab.empty", "lab.empty_keyed", "blood.tiny.x_rows", "blood.tiny.obs", "blood.tiny.var", "blood.tiny.cells"];

/// That the files have what was ingested.
async fn check(fleet: &Fleet, dir: &Path) -> Vec<Bytes> {
    let mut files = Vec::new();
    for table in TABLES {
        files.push(exported(fleet, dir, table).await);
    }
    let rows = batches(6, 1000);
    let rows = concat_batches(&rows[0].schema(), &rows).unwrap();
    // In the order of the ingest, and the very schema.
    assert_eq!(read(&files[0]), rows);
    assert_eq!(read(&files[1]), wide());
    let keyed = read(&files[2]);
    let mut ids: Vec<i64> = keyed["id"].as_primitive::<Int64Type>().values().to_vec();
    assert_eq!(ids.is_sorted(), fleet.describe(&name("lab.keyed")).await.unwrap().tables["data"].partitions.len() == 1);
    ids.sort_unstable();
    assert_eq!(ids, (0..6000).collect::<Vec<_>>());
    let mut sorted = (lines(&[keyed]), lines(&[rows]));
    sorted.0.sort();
    sorted.1.sort();
    assert_eq!(sorted.0, sorted.1);
    for file in &files[3..5] {
        let empty = read(file);
        assert_eq!((empty.num_rows(), empty.num_columns(), row_groups(file)), (0, 2, 0));
    }
    let matrix = read(&files[5]);
    let counted: u64 = matrix["nnz"].as_primitive::<UInt32Type>().values().iter().map(|n| u64::from(*n)).sum();
    assert_eq!(query(fleet, "SELECT sum(nnz), count(*) FROM blood.tiny.x_rows", Pushdown::Full).await.unwrap(), [format!("{counted} | {}", matrix.num_rows())]);
    assert!(matrix["gene_id"].as_primitive::<UInt32Type>().values().is_sorted());
    for (file, sql) in files[6..].iter().zip(["SELECT * FROM blood.tiny.obs", "SELECT * FROM blood.tiny.var", "SELECT * FROM blood.tiny.cells"]) {
        assert_eq!(lines(&[read(file)]), query(fleet, sql, Pushdown::Full).await.unwrap(), "{sql}");
    }
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_all_kinds_export_as_parquet() {
    for drives in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(&dir.path().join("fleet"), drives).await.unwrap();
        fill(&fleet).await;
        let files = check(&fleet, dir.path()).await;
        assert!(row_groups(&files[0]) > 5 && row_groups(&files[1]) > 2, "{} {}", row_groups(&files[0]), row_groups(&files[1]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parquet_file_is_the_stored_slices_and_a_footer() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    let fleet = open(&at, 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 1000), false).await.unwrap();
    let file = exported(&fleet, dir.path(), "lab.t").await;
    drop(fleet);
    let (mut stored, mut slices) = (0, 0);
    for drive in 0..3 {
        let drive = skytether_drive::Drive::open(&at.join("drives").join(drive.to_string()), None, Default::default()).unwrap();
        for entry in drive.store().list("lab/t/", None, 10_000).unwrap().into_iter().filter(|entry| entry.key.as_str().contains(';')) {
            let slice = drive.store().get(&entry.key).unwrap();
            assert!(file.windows(slice.len()).any(|part| part == slice), "{}", entry.key);
            // Each is a file of its own, which tells all that is needed to read it.
            assert!(read(&slice).num_rows() > 0);
            stored += slice.len();
            slices += 1;
        }
    }
    let footer = u32::from_le_bytes(file[file.len() - 8..][..4].try_into().unwrap()) as usize + 8;
    assert_eq!((stored + footer, slices), (file.len(), row_groups(&file)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_serves_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    let (_drives, _host, fleet) = serve(dir.path()).await;
    fill(&fleet).await;
    check(&fleet, dir.path()).await;
    let error = fleet.export("lab.none", dir.path().join("none.parquet"), false, |_, _| Ok(())).await.unwrap_err();
    assert!(error.kind() == Kind::NotFound && error.to_string().contains("lab.none"), "{error}");
}

async fn redundant(at: &Path, drives: usize, redundancy: &str) -> Result<Fleet> {
    let mut host = HostOptions { threads: 2, ..HostOptions::default() };
    host.slices.target_bytes = 8 << 10;
    let options = OpenOptions { drives: Some(drives), redundancy: redundancy.into(), memory_per_drive: Some(64 << 20), ..OpenOptions::default() };
    Fleet::open_with(at, &options, host).await
}

/// Flips a bit at `part` of each slice of drive `n`.
fn damage(at: &Path, n: usize, part: impl Fn(usize) -> usize) -> usize {
    let mut damaged = 0;
    for below in fs::read_dir(at.join("drives").join(n.to_string()).join("slices")).unwrap() {
        for file in fs::read_dir(below.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            if bytes.starts_with(b"PAR1") {
                let place = part(bytes.len());
                bytes[place] ^= 0x10;
                fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    damaged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_whole_despite_a_lost_drive_and_damage() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    let fleet = redundant(&at, 3, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    let whole = check(&fleet, dir.path()).await;
    drop(fleet);
    for lost in 0..3 {
        fs::rename(at.join("drives").join(lost.to_string()), at.join("away")).unwrap();
        let fleet = redundant(&at, 3, "none").await.unwrap();
        assert!(check(&fleet, dir.path()).await == whole, "without drive {lost}");
        drop(fleet);
        fs::rename(at.join("away"), at.join("drives").join(lost.to_string())).unwrap();
    }
    // In the middle of the data, and in the footers.
    assert!(damage(&at, 1, |len| len / 2) > 5 && damage(&at, 1, |len| len - 30) > 5);
    let fleet = redundant(&at, 3, "none").await.unwrap();
    assert!(check(&fleet, dir.path()).await == whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrecoverable_damage_is_named_and_leaves_no_file() {
    for part in [|len: usize| len / 2, |len: usize| len - 30] {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("fleet");
        let fleet = open(&at, 2).await.unwrap();
        fill(&fleet).await;
        assert!(damage(&at, 1, part) > 5);
        for table in ["lab.t", "blood.tiny.x_rows", "lab.wide"] {
            let to = dir.path().join("t.parquet");
            let error = fleet.export(table, &to, false, |_, _| Ok(())).await.unwrap_err();
            assert!(error.kind() == Kind::Corrupt && error.report().contains("drive-1"), "{table}: {}", error.report());
            assert!(!to.exists());
            // What is read where it is: either the footer can't be had, or the bytes.
            let door = fleet.door().await.unwrap();
            let read = match door.open(table).await {
                Ok(file) => door.read(&file, 0..file.len()).await,
                Err(e) => Err(e),
            };
            assert_eq!(read.unwrap_err().kind(), Kind::Corrupt, "{table}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing but the fleet");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_exports_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(&dir.path().join("fleet"), 2).await.unwrap();
    fill(&fleet).await;
    let to = dir.path().join("t.parquet");
    for (table, kind, says) in [
        ("lab.none", Kind::NotFound, "no data set lab.none"),
        ("lab.t.rows", Kind::NotFound, "plain table"),
        ("blood.tiny", Kind::Invalid, "blood.tiny.x_rows"),
        ("blood.tiny.x", Kind::Unsupported, "blood.tiny.x_rows"),
        ("blood.tiny.none", Kind::NotFound, "none"),
        ("nothing", Kind::Invalid, "domain.dataset"),
    ] {
        let error = fleet.export(table, &to, false, |_, _| Ok(())).await.unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(says), "{table}: {error}");
    }
    let error = fleet.export("lab.t", &to, false, |_, _| Err(skytether_common::Error::invalid("enough"))).await.unwrap_err();
    assert!(error.to_string().contains("enough") && !to.exists());
    fleet.export("lab.t", &to, false, |_, _| Ok(())).await.unwrap();
    let before = fs::read(&to).unwrap();
    assert_eq!(fleet.export("lab.wide", &to, false, |_, _| Ok(())).await.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(fs::read(&to).unwrap(), before);
    fleet.export("lab.wide", &to, true, |_, _| Ok(())).await.unwrap();
    assert_eq!(read(&fs::read(&to).unwrap().into()), wide());
    // No temporary files are left next to it.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_replaced_during_an_export_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(&dir.path().join("fleet"), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 1000), false).await.unwrap();
    let door = fleet.door().await.unwrap();
    let file: VirtualFile = door.open("lab.t").await.unwrap();
    assert!(door.is_current(&file).await.unwrap());
    let end = file.len();
    let first = door.read(&file, 0..1000).await.unwrap();
    ingest(&fleet, "lab.t", &batches(1, 100), true).await.unwrap();
    assert!(!door.is_current(&file).await.unwrap());
    // What was read is kept; the rest is gone.
    assert_eq!(door.read(&file, 0..1000).await.unwrap(), first);
    let error = door.read(&file, 0..end).await.unwrap_err();
    assert!(error.kind() == Kind::Conflict && error.to_string().contains("open it again"), "{error}");
    assert_eq!(door.read(&file, 0..end + 1).await.unwrap_err().kind(), Kind::Invalid);
    fleet.drop_dataset(&name("lab.t")).await.unwrap();
    assert_eq!(door.read(&file, 0..end).await.unwrap_err().kind(), Kind::Conflict);
    assert_eq!(door.is_current(&file).await.unwrap_err().kind(), Kind::NotFound);
}

/// docs/internals/parquet-view.md, "Overhead of the format", says what this is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_format_costs_no_more_than_0_4_percent_of_particles() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    let fleet = open_with_slices(&at, 5, skytether_slice::SliceOptions::default()).await.unwrap();
    let particles = Particles::new(1_500_000, 1);
    let report = fleet.ingest_table(&name("physics.run1"), skytether_vpic::schema(), particles.batches(65_536), false).await.unwrap();
    let to = dir.path().join("run1.parquet");
    fleet.export("physics.run1", &to, false, |_, _| Ok(())).await.unwrap();
    let file = Bytes::from(fs::read(&to).unwrap());
    assert_eq!(read(&file), particles.batch(0..1_500_000).unwrap());
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    // What is encoded: the pages' bodies, without their headers.
    let (mut encoded, mut chunks) = (0u64, 0u64);
    for chunk in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        let (start, len) = chunk.byte_range();
        chunks += len;
        encoded += bodies(&file.slice(start as usize..(start + len) as usize));
    }
    let overhead = |of: u64| (report.bytes_stored - of) as f64 / of as f64;
    println!("{} stored, {chunks} in chunks, {encoded} encoded: {:.4}% and {:.4}%", report.bytes_stored, 100.0 * overhead(chunks), 100.0 * overhead(encoded));
    assert!(encoded <= chunks && chunks < report.bytes_stored && encoded >= 1_500_000 * 20);
    assert!(overhead(encoded) <= 0.004, "{:.3}%", 100.0 * overhead(encoded));
    let full: Vec<i64> = metadata.row_groups().iter().map(|group| group.compressed_size()).collect();
    assert!(full.iter().all(|bytes| *bytes <= 1 << 20) && full.iter().rev().skip(1).all(|bytes| *bytes > 850 << 10), "{full:?}");
}

/// Bytes of the bodies of a chunk's pages.
fn bodies(chunk: &[u8]) -> u64 {
    let (mut at, mut all) = (0, 0);
    while at < chunk.len() {
        let (header, body) = page(&chunk[at..]);
        at += header + body;
        all += body as u64;
    }
    assert_eq!(at, chunk.len());
    all
}

/// Lengths of a page's header and body: the header is a struct of Thrift's compact protocol, whose third
/// field is the body's length.
fn page(bytes: &[u8]) -> (usize, usize) {
    fn number(bytes: &[u8], at: &mut usize) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    fn skip(bytes: &[u8], at: &mut usize, kind: u8) {
        match kind {
            1 | 2 => {}
            3 => *at += 1,
            4..=6 => drop(number(bytes, at)),
            7 => *at += 8,
            8 => {
                let length = number(bytes, at) as usize;
                *at += length;
            }
            12 => fields(bytes, at, &mut |_, _, _| false),
            other => panic!("a page header has a field of kind {other}"),
        }
    }
    /// Walks over a struct; `take` may read a field itself.
    fn fields(bytes: &[u8], at: &mut usize, take: &mut dyn FnMut(u64, u8, &mut usize) -> bool) {
        let mut id = 0;
        loop {
            let head = bytes[*at];
            *at += 1;
            if head == 0 {
                return;
            }
            id = if head >> 4 == 0 { number(bytes, at) >> 1 } else { id + u64::from(head >> 4) };
            if !take(id, head & 15, at) {
                skip(bytes, at, head & 15);
            }
        }
    }
    let (mut at, mut body) = (0, 0);
    fields(bytes, &mut at, &mut |id, _, at| {
        if id == 3 {
            let zigzag = number(bytes, at);
            body = (zigzag >> 1) as usize;
        }
        id == 3
    });
    (at, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn particles_from_raw_records_are_those_of_parquet() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open_with_slices(&dir.path().join("fleet"), 3, skytether_slice::SliceOptions::default()).await.unwrap();
    let particles = Particles::new(100_000, 4);
    let at = |name: &str| dir.path().join(name);
    for (file, format) in [("a.parquet", "parquet"), ("a.vpic", "vpic"), ("raw.bin", "vpic")] {
        let mut rows = 0;
        let bytes = skytether::generate::particles(&particles, &at(file), format.parse().unwrap(), false, |more| {
            rows += more;
            Ok(())
        });
        assert_eq!((bytes.unwrap(), rows), (fs::metadata(at(file)).unwrap().len(), 100_000));
    }
    assert_eq!(fs::metadata(at("a.vpic")).unwrap().len(), 4_800_000);
    for (to, file, format) in [("physics.a", "a.parquet", None), ("physics.b", "a.vpic", None), ("physics.c", "raw.bin", Some("vpic".parse().unwrap()))] {
        let table = skytether_formats::open_as(&[at(file)], format).unwrap();
        assert_eq!(table.rows, Some(100_000));
        fleet.ingest_table(&name(to), table.schema, table.batches, false).await.unwrap();
        let found = exported(&fleet, dir.path(), to).await;
        assert_eq!(read(&found), particles.batch(0..100_000).unwrap(), "{to}");
    }
    // Wrong lengths are seen before anything is written; wrong numbers leave nothing behind.
    let whole = fs::read(at("a.vpic")).unwrap();
    fs::write(at("cut.vpic"), &whole[..whole.len() - 20]).unwrap();
    let error = skytether_formats::open(&[at("cut.vpic")]).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("cut.vpic") && error.to_string().contains("28 bytes more"), "{error}");
    let mut nan = whole.clone();
    nan[70_000 * 48 + 44..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(at("nan.vpic"), nan).unwrap();
    let error = fleet.ingest_files(&name("physics.nan"), &[at("nan.vpic")], false).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("ke of record 70000") && error.to_string().contains("nan.vpic"), "{error}");
    assert_eq!(fleet.list().await.unwrap().len(), 3);
    assert!(skytether_formats::open(&[dir.path().join("raw.bin")]).unwrap_err().to_string().contains("--input-format"));
    fs::write(at("none.vpic"), b"").unwrap();
    fleet.ingest_files(&name("physics.none"), &[at("none.vpic")], false).await.unwrap();
    assert_eq!(read(&exported(&fleet, dir.path(), "physics.none").await).num_rows(), 0);
}
