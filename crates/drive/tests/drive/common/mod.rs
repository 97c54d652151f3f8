//! Two small data sets on one drive, and helpers to query it.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemorySchemaProvider, SchemaProvider};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use skytether_common::{DatasetName, Error, Generation, PartitionName, Result};
use skytether_device::{Annotation, Capabilities, CseInfo, DeliveryStream, Program, PushdownLevel, ResultMessage, SubPlan};
use skytether_drive::{Cse, Drive, DriveOptions};
use skytether_expression::CellSource;
use skytether_slice::{Encoded, Layout, Metadata, MetadataBuilder, SliceOptions, SparseSlicer, TableSlicer, ValueType, Values, sparse_schema};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore};
use uuid::Uuid;

/// More than one block of cells.
pub const CELLS: u32 = 65_536 + 3_000;
pub const GENES: u32 = 7;
pub const SALES: i64 = 20_000;
pub const WIDE_ROWS: i64 = 900;

pub fn dataset(name: &str) -> DatasetName {
    name.parse().unwrap()
}

pub fn partition(dataset: &DatasetName, table: &str) -> PartitionName {
    PartitionName { dataset: dataset.clone(), generation: Generation(0x17), table: table.into(), slot: 2 }
}

/// Writes a partition; its metadata.
pub fn store_partition(store: &dyn SliceStore, name: &PartitionName, layout: Layout, schema: SchemaRef, slices: &[Encoded]) -> Metadata {
    let mut builder = MetadataBuilder::new(layout, schema, BTreeMap::new());
    let mut batch = Vec::new();
    slices.iter().for_each(|stripe| builder.add(stripe).unwrap());
    for (n, slice) in slices.iter().flat_map(Encoded::slices).enumerate() {
        batch.push(Op::Put { key: name.slice_key(n as u32).unwrap(), value: slice.clone(), expect: Expect::Absent });
    }
    let metadata = builder.finish().unwrap();
    batch.push(Op::Put { key: name.key().unwrap(), value: metadata.encode().unwrap(), expect: Expect::Absent });
    store.apply(batch).unwrap();
    metadata
}

pub fn store_table(store: &dyn SliceStore, name: &PartitionName, batch: &RecordBatch, target_bytes: usize) -> Metadata {
    let mut slicer = TableSlicer::new(batch.schema(), SliceOptions { target_bytes, ..SliceOptions::default() });
    let mut slices = slicer.push(batch).unwrap();
    slices.extend(slicer.finish().unwrap());
    store_partition(store, name, Layout::Table, batch.schema(), &slices)
}

/// `shop.sales (id, kind, price)`, ids ascending.
pub fn sales() -> RecordBatch {
    let schema =
        Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("kind", DataType::Utf8, true), Field::new("price", DataType::Float64, true)]);
    let kinds: StringArray = (0..SALES).map(|i| (i % 11 != 0).then(|| format!("kind-{}", i % 5))).collect();
    let prices: Float64Array = (0..SALES).map(|i| (i % 13 != 0).then_some((i * 7919 % 10_007) as f64 / 8.0)).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(0..SALES)), Arc::new(kinds), Arc::new(prices)];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// `shop.wide (c0 .. c299)`: three groups of columns, ascending from row to row.
pub fn wide() -> RecordBatch {
    let columns = (0..300i64).map(|c| (format!("c{c}"), Arc::new(Int64Array::from_iter_values((0..WIDE_ROWS).map(|i| i * 1000 + (i * c) % 997))) as ArrayRef));
    RecordBatch::try_from_iter(columns).unwrap()
}

/// What the matrix of `blood.tiny` holds.
pub fn count(gene: u32, cell: u32) -> u16 {
    let mixed = (u64::from(gene) * 2_654_435_761 + u64::from(cell) * 40_503 + 12_345) % 1009;
    if gene == 3 || mixed % 7 != 0 { 0 } else { (mixed % 90 + 1) as u16 }
}

pub fn gene_name(gene: u32) -> String {
    format!("GENE-{gene}")
}

pub fn cell_name(cell: u32) -> String {
    // Longer than what a view holds inline.
    format!("AAACATACAACC{cell:06}-1")
}

pub fn cell_type(cell: u32) -> &'static str {
    ["B", "T", "NK"][(cell % 3) as usize]
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8, false)
}

/// The store of one drive: `shop.sales`, `shop.wide` and `blood.tiny`.
pub fn fill(store: &dyn SliceStore) {
    store_table(store, &partition(&dataset("shop.sales"), "data"), &sales(), 8 << 10);
    store_table(store, &partition(&dataset("shop.wide"), "data"), &wide(), 40 << 10);
    let tiny = dataset("blood.tiny");
    let names: StringArray = (0..CELLS).map(|c| Some(cell_name(c))).collect();
    let types: StringArray = (0..CELLS).map(|c| Some(cell_type(c))).collect();
    let obs = RecordBatch::try_new(Arc::new(Schema::new(vec![text("cell"), text("cell_type")])), vec![Arc::new(names), Arc::new(types)]).unwrap();
    store_table(store, &partition(&tiny, "obs"), &obs, 64 << 10);
    let genes: StringArray = (0..GENES).map(|g| Some(gene_name(g))).collect();
    let var = RecordBatch::try_new(Arc::new(Schema::new(vec![text("gene")])), vec![Arc::new(genes)]).unwrap();
    store_table(store, &partition(&tiny, "var"), &var, 1 << 20);
    let totals: Float32Array = (0..CELLS).map(|c| Some((0..GENES).map(|g| f32::from(count(g, c))).sum::<f32>())).collect();
    let cells = RecordBatch::try_new(Arc::new(Schema::new(vec![Field::new("total_x", DataType::Float32, false)])), vec![Arc::new(totals)]).unwrap();
    store_table(store, &partition(&tiny, "cells"), &cells, 1 << 20);
    let mut slicer = SparseSlicer::new(CELLS, GENES, ValueType::UInt16, SliceOptions { target_bytes: 24 << 10, ..SliceOptions::default() });
    let mut slices = Vec::new();
    for block in 0..2 {
        for gene in 0..GENES {
            let idx: Vec<u32> = (block * 65_536..CELLS.min((block + 1) * 65_536)).filter(|&c| count(gene, c) > 0).collect();
            let val: Vec<u16> = idx.iter().map(|&c| count(gene, c)).collect();
            slices.extend(slicer.push(gene, block, &idx, Values::U16(&val)).unwrap());
        }
    }
    slices.extend(slicer.finish().unwrap());
    assert!(slices.len() > 3, "the matrix must span several slices, not {}", slices.len());
    store_partition(store, &partition(&tiny, "x"), Layout::sparse(CELLS, GENES, ValueType::UInt16), sparse_schema(ValueType::UInt16), &slices);
}

pub fn info() -> CseInfo {
    CseInfo { id: Uuid::from_u128(2), name: "drive-2".into(), format: 1, memory_limit: 0, profile: None, device: None, capabilities: Capabilities::default() }
}

pub fn drive_over(store: Arc<dyn SliceStore>, options: DriveOptions) -> Arc<Drive> {
    Drive::new(store, info(), options).unwrap()
}

pub fn drive_with(options: DriveOptions) -> Arc<Drive> {
    let store = MemoryStore::new();
    fill(&store);
    drive_over(Arc::new(store), options)
}

pub fn drive() -> Arc<Drive> {
    drive_with(DriveOptions::default())
}

/// Knows no cells: it is only for planning.
#[derive(Debug)]
struct NoCells;

impl CellSource for NoCells {
    fn n_cells(&self, _: &DatasetName) -> Result<u32> {
        Err(Error::not_found("no cells"))
    }
    fn obs_column(&self, _: &DatasetName, _: &str) -> Result<ArrayRef> {
        Err(Error::not_found("no cells"))
    }
    fn cell_names(&self, _: &DatasetName) -> Result<ArrayRef> {
        Err(Error::not_found("no cells"))
    }
    fn totals(&self, _: &DatasetName, _: &str) -> Result<Arc<Float32Array>> {
        Err(Error::not_found("no cells"))
    }
}

/// The schemas of the tables as the other side knows them.
fn tables() -> Vec<(&'static str, &'static str, &'static str, SchemaRef)> {
    let dense = Schema::new(vec![
        Field::new("gene", DataType::Utf8View, false),
        Field::new("cell", DataType::Utf8View, false),
        Field::new("value", DataType::Float64, false),
    ]);
    let mut rows = vec![Arc::new(Field::new("gene", DataType::Utf8View, false))];
    rows.extend(sparse_schema(ValueType::UInt16).fields().iter().cloned());
    vec![
        ("shop", "sales", "data", sales().schema()),
        ("shop", "sales", "__shipped_0", Arc::new(Schema::new(vec![Field::new("__shipped_0_0", DataType::Int64, false)]))),
        ("shop", "wide", "data", wide().schema()),
        ("blood", "tiny", "x", Arc::new(dense)),
        ("blood", "tiny", "x_rows", Arc::new(Schema::new(rows))),
        ("blood", "tiny", "obs", Arc::new(Schema::new(vec![text("cell"), text("cell_type")]))),
        ("blood", "tiny", "secret", Arc::new(Schema::new(vec![text("cell")]))),
    ]
}

/// `sql` as a sub-plan for the drive.
pub async fn sub_plan(sql: &str) -> SubPlan {
    let context = SessionContext::new();
    for (domain, set, table, schema) in tables() {
        let catalog = context.catalog(domain).unwrap_or_else(|| {
            let catalog: Arc<dyn CatalogProvider> = Arc::new(MemoryCatalogProvider::new());
            context.register_catalog(domain, Arc::clone(&catalog));
            catalog
        });
        let tables = catalog.schema(set).unwrap_or_else(|| {
            let tables: Arc<dyn SchemaProvider> = Arc::new(MemorySchemaProvider::new());
            catalog.register_schema(set, Arc::clone(&tables)).unwrap();
            tables
        });
        tables.register_table(table.into(), Arc::new(MemTable::try_new(Arc::clone(&schema), vec![vec![]]).unwrap())).unwrap();
    }
    let mut state = context.state();
    skytether_expression::register(&mut state, Arc::new(NoCells)).unwrap();
    skytether_plan::partial::register(&mut state).unwrap();
    let context = SessionContext::new_with_state(state);
    let plan = context.sql(sql).await.unwrap().into_optimized_plan().unwrap();
    let bytes = skytether_plan::codec::encode(&plan, &context.state()).unwrap();
    let of = if sql.contains("shop.sales") {
        ("shop.sales", &["data"][..])
    } else if sql.contains("shop.wide") {
        ("shop.wide", &["data"][..])
    } else {
        ("blood.tiny", &["x", "obs", "var", "cells"][..])
    };
    let name = dataset(of.0);
    SubPlan {
        query: Uuid::from_u128(7),
        partitions: of.1.iter().map(|table| ((*table).to_owned(), partition(&name, table))).collect(),
        dataset: name,
        with: std::collections::BTreeMap::new(),
        rung: PushdownLevel::Full,
        program: Program::Substrait(bytes),
        filters: std::collections::BTreeMap::new(),
        tables: std::collections::BTreeMap::new(),
        batch_rows: 8192,
        keep: false,
    }
}

/// Everything that a stream gives: the rows as one batch, the annotation.
pub async fn collect(mut stream: DeliveryStream) -> Result<(RecordBatch, Annotation)> {
    let (mut batches, mut complete) = (Vec::new(), false);
    while let Some(message) = stream.messages.next().await {
        match message? {
            ResultMessage::Batch { epoch, batch } => {
                assert!(!complete, "a batch of epoch {epoch} came after the epoch was complete");
                assert_eq!((epoch, batch.schema()), (0, Arc::clone(&stream.schema)));
                batches.push(batch);
            }
            ResultMessage::EpochComplete { epoch } => {
                assert_eq!(epoch, 0);
                complete = true;
            }
            ResultMessage::Done(annotation) => {
                assert!(complete, "done before the epoch was complete");
                assert!(stream.messages.next().await.is_none(), "a message after the last");
                let rows = concat_batches(&stream.schema, &batches).unwrap();
                return Ok((rows, annotation));
            }
        }
    }
    panic!("the stream ended without being done")
}

pub async fn run(cse: &dyn Cse, plan: SubPlan) -> Result<(RecordBatch, Annotation)> {
    collect(cse.execute(plan).await?).await
}

pub async fn ask(cse: &dyn Cse, sql: &str) -> (RecordBatch, Annotation) {
    run(cse, sub_plan(sql).await).await.unwrap()
}

/// The rows as text, sorted.
pub fn lines(batch: &RecordBatch) -> Vec<String> {
    let text = arrow::util::pretty::pretty_format_batches(std::slice::from_ref(batch)).unwrap().to_string();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).filter(|l| l.starts_with("| ")).collect();
    if !lines.is_empty() {
        lines.remove(0);
    }
    lines.sort();
    lines
}

/// What DataFusion itself answers over `shop.sales` and `shop.wide` in memory.
pub async fn reference(sql: &str) -> RecordBatch {
    reference_over(&wide(), sql).await
}

/// The same with `wide` as `shop.wide`.
pub async fn reference_over(wide: &RecordBatch, sql: &str) -> RecordBatch {
    let context = SessionContext::new();
    context.register_batch("data", sales()).unwrap();
    context.register_batch("wide", wide.clone()).unwrap();
    let frame = context.sql(&sql.replace("shop.sales.data", "data").replace("shop.wide.data", "wide")).await.unwrap();
    let schema = Arc::new(frame.schema().as_arrow().clone());
    concat_batches(&schema, &frame.collect().await.unwrap()).unwrap()
}
