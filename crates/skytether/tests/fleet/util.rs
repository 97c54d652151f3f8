//! What the tests share.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use skytether::{Fleet, HostOptions, IngestReport, OpenOptions, Pushdown, QueryOptions};
use skytether_common::{DatasetName, Result};
use skytether_device::{Capabilities, CseInfo};
use skytether_drive::{Drive, DriveOptions};
use skytether_slice::SliceOptions;
use skytether_store::SliceStore;
use uuid::Uuid;

pub(crate) const CUTS: [Pushdown; 4] = [Pushdown::Adaptive, Pushdown::Full, Pushdown::Filter, Pushdown::Raw];

pub(crate) fn name(text: &str) -> DatasetName {
    text.parse().unwrap()
}

/// A fleet whose slices are small, so that small tables have many.
pub(crate) async fn open(path: &Path, drives: usize) -> Result<Fleet> {
    open_with_slices(path, drives, SliceOptions { target_bytes: 8 << 10, ..SliceOptions::default() }).await
}

pub(crate) async fn open_with_slices(path: &Path, drives: usize, slices: SliceOptions) -> Result<Fleet> {
    let mut host = HostOptions { slices, ..HostOptions::default() };
    // Plans depend on it.
    host.threads = 2;
    Fleet::open_with(path, &OpenOptions { drives: Some(drives), memory_per_drive: Some(64 << 20), ..OpenOptions::default() }, host).await
}

/// Drive `n` over `store`: its name and its id follow from the number.
pub(crate) fn drive_over(n: usize, store: Arc<dyn SliceStore>, options: DriveOptions) -> Arc<Drive> {
    let memory_limit = options.memory_limit;
    let id = Uuid::from_u128(n as u128 + 1);
    let info = CseInfo {
        id,
        name: format!("drive-{n}"),
        format: skytether_drive::drive::FORMAT,
        memory_limit,
        profile: None,
        device: None,
        capabilities: Capabilities::default(),
    };
    Drive::new(store, info, options).unwrap()
}

/// As [`drive_over`], with little memory.
pub(crate) fn small_drive(n: usize, store: Arc<dyn SliceStore>) -> Arc<Drive> {
    drive_over(n, store, DriveOptions { memory_limit: 64 << 20, ..DriveOptions::default() })
}

/// Batch `at` of a table of `rows` rows each, with texts, gaps and repeated values.
pub(crate) fn batch(at: usize, rows: usize) -> RecordBatch {
    let ids: Vec<i64> = (at * rows..(at + 1) * rows).map(|i| i as i64).collect();
    // A fixed scramble: neighbours differ, every run of the tests sees the same.
    let mixed: Vec<u64> = ids.iter().map(|i| (*i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from(ids)) as ArrayRef, false),
        ("grp", Arc::new(StringArray::from_iter_values(mixed.iter().map(|m| ["alpha", "beta", "gamma", "δέλτα"][(m % 4) as usize]))), false),
        ("name", Arc::new(StringArray::from_iter(mixed.iter().map(|m| (m % 11 != 0).then(|| format!("name {}", m % 997))))), true),
        ("x", Arc::new(Float64Array::from_iter(mixed.iter().map(|m| (m % 7 != 0).then(|| (m % 10_007) as f64 / 16.0)))), true),
        ("n", Arc::new(Int32Array::from_iter_values(mixed.iter().map(|m| (m % 300) as i32 - 100))), false),
    ])
    .unwrap()
}

pub(crate) fn batches(count: usize, rows: usize) -> Vec<RecordBatch> {
    (0..count).map(|at| batch(at, rows)).collect()
}

pub(crate) async fn ingest(fleet: &Fleet, dataset: &str, batches: &[RecordBatch], replace: bool) -> Result<IngestReport> {
    fleet.ingest_table(&name(dataset), batches[0].schema(), batches.iter().cloned().map(Ok), replace).await
}

/// A result as lines of text, in order.
pub(crate) fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::default().with_null("-");
    let mut lines = Vec::new();
    for batch in batches {
        let columns: Vec<_> = batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
        lines.extend((0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join(" | ")));
    }
    lines
}

pub(crate) async fn query(fleet: &Fleet, sql: &str, cut: Pushdown) -> Result<Vec<String>> {
    let query = fleet.sql(sql, &QueryOptions { cut, ..QueryOptions::default() }).await?;
    Ok(lines(&query.collect().await?))
}

/// The single value of a query.
pub(crate) async fn value(fleet: &Fleet, sql: &str) -> Result<String> {
    let lines = query(fleet, sql, Pushdown::Full).await?;
    assert_eq!(lines.len(), 1, "{sql}: {lines:?}");
    Ok(lines[0].clone())
}

/// Keys and bytes of all drives together.
pub(crate) async fn usage(fleet: &Fleet) -> (u64, u64) {
    let status = fleet.status().await.unwrap();
    status.iter().map(|d| d.usage.unwrap()).fold((0, 0), |(k, b), u| (k + u.keys, b + u.value_bytes))
}

/// SplitMix64, from a seed. Not a library's: simulations that once failed are pinned by their seeds.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as usize % bound
    }
}

/// Whether this is `make soak`, which repeats what `make test` shows in short.
pub(crate) fn soak() -> bool {
    std::env::var_os("SKYTETHER_SOAK").is_some()
}
