//! Plans over files in the extents of a device, as EXEC runs them.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow::ipc::reader::StreamReader;
use bytes::Bytes;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemorySchemaProvider, SchemaProvider};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::prelude::{SessionConfig, SessionContext};
use skytether_common::Kind;
use skytether_device::Annotation;
use skytether_engine::{Engine, Reader};
use skytether_file_query::{DATASET, FileEngine};
use skytether_offload::codes::{format, opcode, tag};
use skytether_offload::{Descriptor, ExecResult, Extent, Item, Object, Offload, Options};
use skytether_store::memory::MemoryStore;
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Durability, Exec};
use tokio_util::sync::CancellationToken;

fn offload(memory: usize) -> Offload {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
    let reader = Reader::sharing(Arc::new(MemoryStore::new()), 1);
    let engine = Arc::new(Engine::new("drive-0".into(), Arc::new(reader), pool, 2, 2).unwrap());
    let registry = skytether_offload::operations::registry(Some(Arc::new(FileEngine::new(engine)))).unwrap();
    Offload::new(registry, Options::default()).unwrap()
}

/// Writes a file in pieces of one block, the last one first.
async fn object(device: &dyn BlockDevice, at: u64, content: &[u8]) -> Object {
    let blocks = content.len().div_ceil(4096) as u64;
    let mut extents = Vec::new();
    for (number, piece) in content.chunks(4096).enumerate() {
        let mut block = piece.to_vec();
        block.resize(4096, 0xff);
        let place = at + (blocks - 1 - number as u64) * 4096;
        device.write(place, block.into(), Durability::Cached).await.unwrap();
        extents.push(Extent::new(place, 4096));
    }
    Object::new(content.len() as u64, extents)
}

async fn run(offload: &Offload, device: &Arc<MemoryDevice>, descriptor: &Descriptor) -> ExecResult {
    let bytes = offload.run(Arc::clone(device) as _, descriptor.encode().unwrap(), CancellationToken::new()).await.unwrap();
    ExecResult::decode(&bytes).unwrap()
}

fn read(item: &Item) -> (SchemaRef, Vec<RecordBatch>) {
    let reader = StreamReader::try_new(Cursor::new(item.data.clone()), None).unwrap();
    (reader.schema(), reader.map(Result::unwrap).collect())
}

fn query(format: u64, plan: impl Into<Bytes>) -> Descriptor {
    Descriptor::new(opcode::QUERY).number(tag::FORMAT, format).bytes(tag::PLAN, plan).text(tag::TABLE, "t")
}

/// The columns of a file.
async fn columns(offload: &Offload, device: &Arc<MemoryDevice>, format: u64, file: &Object) -> SchemaRef {
    let result = run(offload, device, &query(format, Bytes::new()).input(file.clone())).await;
    let (schema, rows) = read(&result.done().unwrap()[0]);
    assert!(rows.is_empty());
    schema
}

/// SQL as a sub-plan over table `t` with these columns.
async fn plan(sql: &str, schema: SchemaRef) -> Bytes {
    let context = SessionContext::new_with_config(SessionConfig::new().with_default_catalog_and_schema(DATASET.0, DATASET.1));
    let tables = MemorySchemaProvider::new();
    tables.register_table("t".into(), Arc::new(MemTable::try_new(schema, vec![vec![]]).unwrap())).unwrap();
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema(DATASET.1, Arc::new(tables)).unwrap();
    context.register_catalog(DATASET.0, Arc::new(catalog));
    let named = sql.replace("FROM t", "FROM exec.files.t").replace("JOIN t", "JOIN exec.files.t");
    let logical = context.sql(&named).await.unwrap().into_optimized_plan().unwrap();
    skytether_plan::codec::encode(&logical, &context.state()).unwrap()
}

fn table() -> RecordBatch {
    let n: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20_000));
    let x: ArrayRef = Arc::new(Float64Array::from_iter_values((0..20_000).map(|n| f64::from(n) / 4.0)));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..20_000).map(|n| format!("name {}", n % 7))));
    RecordBatch::try_from_iter([("n", n), ("x", x), ("name", names)]).unwrap()
}

fn files() -> [(u64, Vec<u8>); 3] {
    let rows = table();
    let (mut csv, mut json, mut parquet) = (Vec::new(), Vec::new(), Vec::new());
    arrow::csv::Writer::new(&mut csv).write(&rows).unwrap();
    let mut lines = arrow::json::LineDelimitedWriter::new(&mut json);
    lines.write(&rows).unwrap();
    lines.finish().unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut parquet, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    [(format::CSV, csv), (format::JSON, json), (format::PARQUET, parquet)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_over_each_format_gives_the_rows() {
    let (offload, device) = (offload(64 << 20), Arc::new(MemoryDevice::new("v", 64 << 20)));
    for (format, content) in files() {
        let file = object(&*device, 1 << 20, &content).await;
        let schema = columns(&offload, &device, format, &file).await;
        assert_eq!(schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), ["n", "x", "name"]);
        let sql = "SELECT name, count(*) AS rows, sum(n) AS total FROM t WHERE x >= 10.5 GROUP BY name ORDER BY name";
        let result = run(&offload, &device, &query(format, plan(sql, schema).await).input(file)).await;
        let items = result.done().unwrap();
        let (_, batches) = read(items[0].done().unwrap());
        let rows = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        let expected: Vec<(i64, i64)> = (0..7)
            .map(|of| {
                let all = (42..20_000).filter(|n| n % 7 == of);
                (all.clone().count() as i64, all.sum())
            })
            .collect();
        let columns = [rows.column(1).as_primitive::<Int64Type>(), rows.column(2).as_primitive::<Int64Type>()];
        let found: Vec<(i64, i64)> = (0..rows.num_rows()).map(|row| (columns[0].value(row), columns[1].value(row))).collect();
        assert_eq!(found, expected);
        let receipt: Annotation = serde_json::from_slice(&items[0].head).unwrap();
        assert_eq!((receipt.cse.as_str(), receipt.rows_out), ("drive-0", 7));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_that_scans_a_file_twice_reads_it_twice() {
    let (offload, device) = (offload(64 << 20), Arc::new(MemoryDevice::new("v", 64 << 20)));
    let file = object(&*device, 0, b"a,b\n1,2\n3,\n").await;
    let schema = columns(&offload, &device, format::CSV, &file).await;
    let sql = "SELECT count(*) FROM t x JOIN t y ON x.a = y.a";
    let result = run(&offload, &device, &query(format::CSV, plan(sql, schema).await).input(file)).await;
    let (_, batches) = read(result.done().unwrap()[0].done().unwrap());
    assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_of_damaged_files_or_plans_fails_by_name() {
    let (offload, device) = (offload(64 << 20), Arc::new(MemoryDevice::new("v", 64 << 20)));
    let file = object(&*device, 0, b"a,b\n1,2\n3\n").await;
    let ragged = run(&offload, &device, &query(format::CSV, Bytes::new()).input(file.clone())).await;
    let error = ragged.done().unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("input 0 (table t)"), "{error}");
    let broken = run(&offload, &device, &query(format::PARQUET, Bytes::new()).input(file)).await;
    assert_eq!(broken.done().unwrap_err().kind(), Kind::Corrupt);
    let whole = object(&*device, 0, b"a,b\n1,2\n").await;
    let wrong = run(&offload, &device, &query(format::CSV, &b"no plan"[..]).input(whole.clone())).await;
    assert_eq!(wrong.done().unwrap_err().kind(), Kind::Invalid);
    // A plan that names other tables sees none.
    let schema = columns(&offload, &device, format::CSV, &whole).await;
    let plan = plan("SELECT a FROM t", schema).await;
    let other = query(format::CSV, plan).input(whole);
    let renamed = Descriptor { arguments: other.arguments.iter().filter(|argument| argument.tag != tag::TABLE).cloned().collect(), ..other };
    let absent = run(&offload, &device, &renamed.text(tag::TABLE, "u")).await;
    assert!(absent.done().is_err(), "{absent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_beyond_the_memory_of_the_drive_is_exhausted() {
    let (offload, device) = (offload(64 << 10), Arc::new(MemoryDevice::new("v", 64 << 20)));
    let [_, _, (format, content)] = files();
    let file = object(&*device, 0, &content).await;
    let schema = columns(&offload, &device, format, &file).await;
    let sql = "SELECT x, count(*) FROM t GROUP BY x";
    let result = run(&offload, &device, &query(format, plan(sql, schema).await).input(file)).await;
    assert_eq!(result.done().unwrap_err().kind(), Kind::Exhausted, "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_that_can_not_be_bounded_or_right_is_refused() {
    let (offload, device) = (offload(64 << 20), Arc::new(MemoryDevice::new("v", 64 << 20)));
    let file = object(&*device, 0, b"a,b\n1,2\n3,4\n5,6\n").await;
    let chunk = file.clone().chunk(100, true, false);
    let result = run(&offload, &device, &query(format::CSV, Bytes::new()).input(chunk)).await;
    assert_eq!(result.done().unwrap_err().kind(), Kind::Unsupported);
    let packed = object(&*device, 1 << 20, &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0]).await;
    let result = run(&offload, &device, &query(format::JSON, Bytes::new()).input(packed)).await;
    let error = result.done().unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.to_string().contains("compressed"), "{error}");
    let schema = columns(&offload, &device, format::CSV, &file).await;
    let joins: String = (1..17).map(|n| format!(" JOIN t t{n} ON t0.a = t{n}.a")).collect();
    let result = run(&offload, &device, &query(format::CSV, plan(&format!("SELECT count(*) FROM t t0{joins}"), schema).await).input(file)).await;
    assert_eq!(result.done().unwrap_err().kind(), Kind::Exhausted, "{result:?}");
}
