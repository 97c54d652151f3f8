//! Drives in one process: tables are split over several sessions. Sub-plans run there after a round trip as bytes, and
//! the super-plan runs over their results.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod mutation;

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::*;
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{DataType, Field, Float64Type, Int32Type, Schema, TimeUnit};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemorySchemaProvider};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, TableReference};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, TableScanBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use skytether_plan::{ByKey, CutPlan, DriveScan, Partitioning, Placement, Pushdown, Tables, broadcast_join, codec, cut, partial, super_plan};
use uuid::Uuid;

pub struct Placed;

impl Tables for Placed {
    fn partitioning(&self, table: &TableReference) -> Option<Partitioning> {
        match table.table() {
            "t" | "empty" | "odd" => Some(Partitioning::new(Placement::Spread)),
            "dim" => Some(Partitioning::new(Placement::Everywhere)),
            "facts" | "orders" => Some(Partitioning::new(Placement::Spread).by_key(Some(by_key(&["k"], table.table())))),
            "pairs" => Some(Partitioning::new(Placement::Spread).by_key(Some(by_key(&["s", "k"], "pairs")))),
            "vast" => Some(Partitioning::new(Placement::Spread).by_key(Some(by_key(&["k"], "vast")))),
            _ => None,
        }
    }

    fn rows(&self, table: &TableReference) -> Option<u64> {
        match table.table() {
            "t" => Some(100_000),
            "empty" => Some(0),
            "dim" => Some(5),
            "odd" => Some(30),
            "facts" => Some(97),
            "orders" => Some(60),
            "pairs" => Some(50),
            "vast" => Some(1 << 40),
            _ => None,
        }
    }

    fn bytes(&self, table: &TableReference) -> Option<u64> {
        self.rows(table).map(|rows| rows * 100)
    }
}

/// How a table is partitioned over three drives.
fn by_key(columns: &[&str], table: &str) -> ByKey {
    let columns: Vec<String> = columns.iter().map(ToString::to_string).collect();
    let schema = if table == "pairs" { pairs().schema() } else { rows().schema() };
    ByKey {
        keys: skytether_partitioning::keys(&schema, &columns).unwrap(),
        drives: (0..3).map(Uuid::from_u128).collect(),
        most_rows: Placed.rows(&table.into()).unwrap(),
    }
}

/// Rows whose keys occur in `rows()`, some of them several times, and others.
pub fn orders() -> RecordBatch {
    let k: Int64Array = (0..60i64).map(|i| (i % 7 != 0).then_some(i % 9 - 2)).collect();
    let name: StringArray = (0..60).map(|i| (i % 5 != 0).then(|| format!("order {}", i % 11))).collect();
    RecordBatch::try_from_iter([("k", Arc::new(k) as ArrayRef), ("name", Arc::new(name))]).unwrap()
}

/// Rows that are partitioned by two columns.
pub fn pairs() -> RecordBatch {
    let s: StringArray = (0..50).map(|i| (i % 8 != 0).then(|| format!("änder{}", i % 4))).collect();
    let k: Int64Array = (0..50i64).map(|i| (i % 9 != 0).then_some(i % 5)).collect();
    let w: Int64Array = (0..50i64).map(Some).collect();
    RecordBatch::try_from_iter([("s", Arc::new(s) as ArrayRef), ("k", Arc::new(k)), ("w", Arc::new(w))]).unwrap()
}

pub fn session() -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(2).with_batch_size(16).with_default_catalog_and_schema("d", "s");
    let mut builder = SessionStateBuilder::new().with_config(config).with_default_features();
    partial::register_with(&mut builder);
    let context = SessionContext::new_with_state(builder.build());
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema("s", Arc::new(MemorySchemaProvider::new())).unwrap();
    context.register_catalog("d", Arc::new(catalog));
    context
}

/// Rows of the main table: groups, nulls, NaN, strings, times, decimals, lists, dictionaries.
pub fn rows() -> RecordBatch {
    let n = 97usize;
    let k: Int64Array = (0..n as i64).map(|i| (i % 11 != 0).then_some(i % 5)).collect();
    let i: Int32Array = (0..n as i32).map(|i| (i % 7 != 3).then_some((i * 37) % 101 - 50)).collect();
    let u: UInt64Array = (0..n as u64).map(|i| Some(i * i)).collect();
    let f: Float64Array = (0..n)
        .map(|i| match i % 13 {
            4 => None,
            9 => Some(f64::from(i as u32) / 3.0),
            _ => Some((i as f64) * 0.37 - 11.0),
        })
        .collect();
    let g: Float32Array = (0..n)
        .map(|i| match i % 17 {
            2 => Some(f32::NAN),
            5 => None,
            8 => Some(-0.0),
            _ => Some(i as f32 * 1.5),
        })
        .collect();
    let s: StringArray = (0..n)
        .map(|i| match i % 6 {
            0 => None,
            1 => Some(format!("Gene_{}%", i % 10)),
            2 => Some(String::new()),
            _ => Some(format!("änder{}", i % 4)),
        })
        .collect();
    let v: StringViewArray = (0..n).map(|i| (i % 9 != 0).then(|| format!("a string that is long enough to be out of line {}", i % 3))).collect();
    let b: BooleanArray = (0..n).map(|i| (i % 5 != 2).then_some(i % 3 == 0)).collect();
    let d: Date32Array = (0..n as i32).map(|i| (i % 8 != 1).then_some(18_000 + i * 11)).collect();
    let ts: TimestampMicrosecondArray = (0..n as i64).map(|i| (i % 10 != 7).then_some(1_600_000_000_000_000 + i * 86_411_000_000)).collect();
    let tz = ts.clone().with_timezone("UTC");
    let m = Decimal128Array::from_iter((0..n as i128).map(|i| (i % 9 != 5).then_some(i * 12_345 - 300_000))).with_precision_and_scale(12, 3).unwrap();
    let c: DictionaryArray<Int32Type> = (0..n).map(|i| ["B", "NK", "CD4 T"].get(i % 4).copied()).collect();
    let l = ListArray::from_iter_primitive::<Float64Type, _, _>((0..n).map(|i| (i % 5 != 0).then(|| (0..i % 4).map(|j| Some(j as f64)).collect::<Vec<_>>())));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(k)),
        ("i", Arc::new(i)),
        ("u", Arc::new(u)),
        ("f", Arc::new(f)),
        ("g", Arc::new(g)),
        ("s", Arc::new(s)),
        ("v", Arc::new(v)),
        ("b", Arc::new(b)),
        ("d", Arc::new(d)),
        ("ts", Arc::new(ts)),
        ("tz", Arc::new(tz)),
        ("m", Arc::new(m)),
        ("c", Arc::new(c)),
        ("l", Arc::new(l)),
    ];
    let fields: Vec<Field> = columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), *name != "u")).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|c| c.1).collect()).unwrap()
}

/// Types that Substrait has no name for, and one that it has.
pub fn odd() -> RecordBatch {
    let x: Int32Array = (0..30).collect();
    let dec = cast(&x, &DataType::Decimal64(9, 2)).unwrap();
    let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>((0..30).map(|i| Some(vec![Some(i), Some(i + 1)])), 2);
    let zone = TimestampMillisecondArray::from_iter_values((0..30).map(|i| i * 3_600_000)).with_timezone("Europe/Berlin");
    let columns: Vec<(&str, ArrayRef)> = vec![("x", Arc::new(x)), ("dec", dec), ("fixed", Arc::new(fixed)), ("zone", Arc::new(zone))];
    let fields: Vec<Field> = columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), true)).collect();
    assert!(matches!(fields[3].data_type(), DataType::Timestamp(TimeUnit::Millisecond, Some(_))));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|c| c.1).collect()).unwrap()
}

pub fn dim() -> RecordBatch {
    RecordBatch::try_from_iter([
        ("k", Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(2), Some(7), None])) as ArrayRef),
        ("name", Arc::new(StringArray::from(vec!["zero", "one", "two", "seven", "none"]))),
    ])
    .unwrap()
}

pub fn register(context: &SessionContext, name: &str, batch: RecordBatch) {
    let half = batch.num_rows() / 2;
    let parts = vec![vec![batch.slice(0, half)], vec![batch.slice(half, batch.num_rows() - half)]];
    context.register_table(name, Arc::new(MemTable::try_new(batch.schema(), parts).unwrap())).unwrap();
}

/// A session with whole tables.
pub fn whole() -> SessionContext {
    let context = session();
    for (name, batch) in [
        ("t", rows()),
        ("empty", rows().slice(0, 0)),
        ("odd", odd()),
        ("dim", dim()),
        ("local", dim()),
        ("facts", rows()),
        ("orders", orders()),
        ("pairs", pairs()),
        ("vast", rows()),
    ] {
        register(&context, name, batch);
    }
    context
}

/// `n` sessions, each with its part of the tables. The last of several has no rows of `t`.
pub fn drives(n: usize) -> Vec<SessionContext> {
    (0..n)
        .map(|drive| {
            let context = session();
            for (name, batch) in [("t", rows()), ("empty", rows().slice(0, 0)), ("odd", odd())] {
                let holders = if n > 1 { n - 1 } else { 1 };
                let mine: BooleanArray = (0..batch.num_rows()).map(|row| Some(row * 7 % holders == drive)).collect();
                register(&context, name, datafusion::arrow::compute::filter_record_batch(&batch, &mine).unwrap());
            }
            register(&context, "dim", dim());
            for (name, batch, by) in [("facts", rows(), &["k"][..]), ("orders", orders(), &["k"]), ("pairs", pairs(), &["s", "k"])] {
                let parts = skytether_partitioning::split(&batch, &by_key(by, name).keys, n).unwrap();
                register(&context, name, parts[drive].clone());
            }
            context
        })
        .collect()
}

pub async fn optimized(context: &SessionContext, sql: &str) -> LogicalPlan {
    context.sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")).into_optimized_plan().unwrap_or_else(|e| panic!("{sql}: {e}"))
}

pub fn cut_with(context: &SessionContext, plan: LogicalPlan, policy: Pushdown) -> CutPlan {
    cut(plan, policy, &Placed, &context.state()).unwrap()
}

/// What the drives give for `scan`, after the sub-plan travelled as bytes.
async fn below(context: &SessionContext, drives: &[SessionContext], scan: &DriveScan) -> Vec<RecordBatch> {
    let mut shipped = vec![];
    for (n, input) in scan.inputs.iter().enumerate() {
        let cut = CutPlan { scans: super_plan::scans(input), super_plan: input.clone(), notes: vec![] };
        let batch = Box::pin(run(context, drives, &cut)).await;
        let schema = broadcast_join::schema(n, input.schema());
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        shipped.push(RecordBatch::try_new_with_options(schema, batch.columns().to_vec(), &options).unwrap());
    }
    let bytes = codec::encode(&scan.sub_plan, &context.state()).unwrap_or_else(|e| panic!("{e}\n{}", scan.sub_plan.display_indent()));
    let asked = if scan.placement == Placement::Everywhere { &drives[..1] } else { drives };
    let mut got = vec![];
    for drive in asked {
        for (n, batch) in shipped.iter().enumerate() {
            let _ = drive.deregister_table(broadcast_join::name(n));
            register(drive, &broadcast_join::name(n), batch.clone());
        }
        let plan = codec::decode(&bytes, &drive.state()).await.unwrap_or_else(|e| panic!("{e}\n{}", scan.sub_plan.display_indent()));
        let names: Vec<_> = plan.schema().fields().iter().map(|f| f.name().clone()).collect();
        let mut used = HashSet::new();
        let unique = |(at, name): (usize, String)| if used.insert(name.clone()) { name } else { format!("{name}:{at}") };
        let expected: Vec<_> = scan.schema().fields().iter().map(|f| f.name().clone()).enumerate().map(unique).collect();
        assert_eq!(names, expected);
        got.extend(drive.execute_logical_plan(plan).await.unwrap().collect().await.unwrap());
    }
    got
}

/// Runs the super-plan with the drives' answers in place of the scans; columns are bound by position.
pub async fn run(context: &SessionContext, drives: &[SessionContext], cut: &CutPlan) -> RecordBatch {
    let mut answers = vec![];
    for scan in &super_plan::scans(&cut.super_plan) {
        answers.push((scan.clone(), below(context, drives, scan).await));
    }
    let plan = cut
        .super_plan
        .clone()
        .transform_down_with_subqueries(|node| {
            let Some(scan) = DriveScan::of(&node) else { return Ok(Transformed::no(node)) };
            let batches = &answers.iter().find(|(s, _)| s == scan).unwrap().1;
            let fields: Vec<Field> = scan.schema().fields().iter().enumerate().map(|(i, f)| Field::new(format!("c{i}"), f.data_type().clone(), true)).collect();
            let schema = Arc::new(Schema::new(fields));
            let bound = batches
                .iter()
                .map(|b| {
                    for (c, f) in b.columns().iter().zip(schema.fields()) {
                        assert_eq!(c.data_type(), f.data_type(), "{}", scan.sub_plan.display_indent());
                    }
                    let options = RecordBatchOptions::new().with_row_count(Some(b.num_rows()));
                    RecordBatch::try_new_with_options(schema.clone(), b.columns().to_vec(), &options).unwrap()
                })
                .collect();
            let table = MemTable::try_new(schema.clone(), vec![bound])?;
            let values = LogicalPlan::TableScan(TableScanBuilder::new("answer", provider_as_source(Arc::new(table))).build()?);
            let columns = scan
                .schema()
                .iter()
                .enumerate()
                .map(|(i, (q, f))| Expr::Alias(Alias::new(Expr::Column(Column::new(Some("answer"), format!("c{i}"))), q.cloned(), f.name())))
                .collect();
            let read = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(values))?);
            Ok(Transformed::new(read, true, TreeNodeRecursion::Jump))
        })
        .unwrap()
        .data;
    collect(context, plan).await
}

pub async fn collect(context: &SessionContext, plan: LogicalPlan) -> RecordBatch {
    let frame = context.execute_logical_plan(plan).await.unwrap();
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let batches = frame.collect().await.unwrap();
    let schema = batches.first().map_or(schema, |b| b.schema());
    concat_batches(&schema, &batches).unwrap()
}
