use arrow::array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Int64Array, Int64Builder, IntervalMonthDayNanoArray, LargeListArray, ListArray, MapBuilder, NullArray,
    StringArray, StringBuilder, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, IntervalMonthDayNano, TimeUnit};
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;

/// The key of a row.
type Key = fn(i64) -> Option<i64>;

/// Tables `a` and `b` of `rows` rows, whose keys meet some others and none at all, in a session of `memory` bytes.
fn session(rows: i64, memory: usize, key: Key) -> SessionContext {
    let table = |first: i64| -> Vec<Vec<RecordBatch>> {
        let of = first..first + rows;
        let columns: [(&str, ArrayRef); 3] = [
            ("k", Arc::new(Int64Array::from_iter(of.clone().map(key)))),
            ("v", Arc::new(Int64Array::from_iter_values(of.clone()))),
            ("t", Arc::new(StringArray::from_iter_values(of.map(|row| format!("a text that is no short one {row}"))))),
        ];
        let rows = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
        let parts = (0..4).map(|at| rows.slice(at * rows.num_rows() / 4, rows.num_rows() / 4));
        parts.map(|part| (0..5).map(|at| part.slice(at * part.num_rows() / 5, part.num_rows() / 5)).collect()).collect()
    };
    session_of(memory, table(0), table(rows / 2))
}

/// Tables `a` and `b` with these partitions, and `e` without a row, in a session of `memory` bytes.
fn session_of(memory: usize, a: Vec<Vec<RecordBatch>>, b: Vec<Vec<RecordBatch>>) -> SessionContext {
    let schema = a[0][0].schema();
    let mut config = SessionConfig::new().with_target_partitions(2);
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = 0;
    optimizer.hash_join_single_partition_threshold_rows = 0;
    optimizer.enable_join_dynamic_filter_pushdown = false;
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(FairSpillPool::new(memory))).build_arc().unwrap();
    let context = SessionContext::new_with_config_rt(config, runtime);
    for (name, parts) in [("a", a), ("b", b), ("e", vec![Vec::new()])] {
        context.register_table(name, Arc::new(MemTable::try_new(Arc::clone(&schema), parts).unwrap())).unwrap();
    }
    context
}

/// The rows in order, and the bytes put on disk by joins of this module.
async fn run(context: &SessionContext, sql: &str, with_disk: bool) -> DfResult<(String, usize)> {
    let plan = context.sql(sql).await?.create_physical_plan().await?;
    let around = |node: Plan| {
        let joins = node.is::<HashJoinExec>();
        Ok(if joins && with_disk { Transformed::yes(SpillingJoinExec::around(node, None)) } else { Transformed::no(node) })
    };
    let plan = plan.transform_up(around)?.data;
    let rows = collect(Arc::clone(&plan), context.task_ctx()).await?;
    let mut lines: Vec<String> = pretty_format_batches(&rows)?.to_string().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    fn spilled(plan: &dyn ExecutionPlan) -> usize {
        let own = if plan.is::<SpillingJoinExec>() { plan.metrics().and_then(|m| m.spilled_bytes()).unwrap_or(0) } else { 0 };
        own + plan.children().into_iter().map(|child| spilled(child.as_ref())).sum::<usize>()
    }
    Ok((lines.join("\n"), spilled(plan.as_ref())))
}

/// What is reserved once tasks of a plan have ended, which they do soon after it.
async fn reserved_at_last(context: &SessionContext) -> usize {
    let pool = &context.runtime_env().memory_pool;
    for _ in 0..100 {
        if pool.reserved() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pool.reserved()
}

const JOINS: [&str; 10] = [
    "SELECT a.v, b.v, b.t FROM a JOIN b ON a.k = b.k",
    "SELECT a.v, b.v, a.t FROM a JOIN b ON a.k = b.k AND a.t = b.t",
    "SELECT a.v, b.t FROM a LEFT JOIN b ON a.k = b.k AND a.v < b.v",
    "SELECT a.t, b.t FROM a RIGHT JOIN b ON a.k = b.k AND a.v % 3 = b.v % 2",
    "SELECT a.t, b.t FROM a FULL JOIN b ON a.k = b.k AND a.v <> b.v",
    "SELECT a.t FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.v > a.v)",
    "SELECT a.t FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.v > a.v)",
    "SELECT a.t FROM a JOIN b ON (a.k IS NOT DISTINCT FROM b.k) AND a.v = b.v",
    "SELECT a.t FROM a WHERE a.v % 5 = 0 OR EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.v > a.v)",
    "SELECT b.t FROM b WHERE b.v % 5 = 0 OR NOT EXISTS (SELECT 1 FROM a WHERE b.k = a.k AND a.v <> b.v)",
];

/// Some keys are NULL, some come twice, and some on one side only.
fn keys(row: i64) -> Option<i64> {
    (row % 11 != 0).then_some(row / 2 * 7 % 100_003)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_of_all_kinds_on_disk_give_the_same_rows() {
    let (roomy, little) = (session(20_000, 1 << 30, keys), session(20_000, 1 << 20, keys));
    for sql in JOINS {
        let (wanted, none) = run(&roomy, sql, true).await.unwrap();
        assert_eq!(none, 0, "{sql}: nothing is put on disk where all fits");
        assert_eq!(run(&roomy, sql, false).await.unwrap().0, wanted, "{sql}");
        let (found, spilled) = run(&little, sql, true).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert!(found == wanted, "{sql}: other rows on disk");
        assert!(spilled > 1 << 20, "{sql}: {spilled}");
        assert_eq!(reserved_at_last(&little).await, 0, "{sql}");
    }
    let alone = run(&little, JOINS[1], false).await.unwrap_err();
    assert!(matches!(alone.find_root(), DataFusionError::ResourcesExhausted(_)), "{alone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chains_of_joins_need_the_memory_of_few() {
    let sql =
        "SELECT count(*) AS n, sum(a.v + e.v) AS s, max(d.t) AS m FROM a JOIN b ON a.k = b.k JOIN b c ON a.v = c.v JOIN a d ON d.v = c.v JOIN b e ON e.t = d.t";
    let (roomy, little) = (session(20_000, 1 << 30, keys), session(20_000, 2 << 20, keys));
    let (wanted, _) = run(&roomy, sql, false).await.unwrap();
    let (found, spilled) = run(&little, sql, true).await.unwrap();
    assert_eq!(found, wanted);
    assert!(spilled > 2 << 20, "{spilled}");
}

/// Rows without a key meet no other one, and no part of the join has all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rows_without_a_key_need_little_memory() {
    let few = |row: i64| (row % 50 == 0).then_some(row);
    let sql = "SELECT a.v, b.v, a.t FROM a FULL JOIN b ON a.k = b.k";
    let (roomy, little) = (session(20_000, 1 << 30, few), session(20_000, 1 << 20, few));
    let (wanted, _) = run(&roomy, sql, false).await.unwrap();
    let (found, spilled) = run(&little, sql, true).await.unwrap();
    assert!(found == wanted && spilled > 1 << 20, "{spilled}");
}

/// No hash divides the rows of one key: their table is made where all of the memory has room for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_alone_takes_more_than_half_of_the_memory() {
    let sql = "SELECT count(*) AS n FROM a JOIN b ON a.k = b.k AND a.v - b.v = 1 WHERE a.t <> b.t";
    let (roomy, little) = (session(2_000, 1 << 30, |_| Some(5)), session(2_000, 500 << 10, |_| Some(5)));
    let (wanted, _) = run(&roomy, sql, false).await.unwrap();
    let (found, spilled) = run(&little, sql, true).await.unwrap();
    assert_eq!(found, wanted);
    assert!(spilled > 100 << 10, "{spilled}");
}

/// Each kind of join, with its columns.
const KINDS: [(&str, &str); 8] = [
    ("JOIN", "l.v, r.v, l.t"),
    ("LEFT JOIN", "l.v, r.v, l.t"),
    ("RIGHT JOIN", "l.v, r.v, r.t"),
    ("FULL JOIN", "l.v, r.v, r.t"),
    ("LEFT SEMI JOIN", "l.v, l.t"),
    ("RIGHT SEMI JOIN", "r.v, r.t"),
    ("LEFT ANTI JOIN", "l.v, l.t"),
    ("RIGHT ANTI JOIN", "r.v, r.t"),
];

/// Half of the rows have NULL for a key, or some where NULL equals NULL; and one side or both have no row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_keys_and_empty_sides_are_right_in_each_kind() {
    let half = |row: i64| (row % 2 == 0).then_some(row / 4);
    let few = |row: i64| (row % 311 != 0).then_some(row / 4);
    let mut on_disk = 0;
    for (key, condition) in [(half as Key, "l.k = r.k"), (few as Key, "l.k IS NOT DISTINCT FROM r.k")] {
        let (roomy, little) = (session(6_000, 1 << 30, key), session(6_000, 512 << 10, key));
        for (kind, columns) in KINDS {
            for (left, right) in [("a", "b"), ("a", "e"), ("e", "b"), ("e", "e")] {
                let sql = format!("SELECT {columns} FROM {left} l {kind} {right} r ON {condition}");
                let (wanted, _) = run(&roomy, &sql, false).await.unwrap();
                let (found, spilled) = run(&little, &sql, true).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
                assert!(found == wanted, "{sql}: other rows on disk");
                on_disk += usize::from(spilled > 0);
            }
        }
    }
    assert!(on_disk >= 12, "{on_disk} joins used the disk");
}

/// Rows of one key that exceed all of the memory are an error, and nothing is divided for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_beyond_the_memory_are_an_error() {
    let sql = "SELECT count(*) AS n FROM a JOIN b ON a.k = b.k AND a.v - b.v = 1 WHERE a.t <> b.t";
    for (keys, key) in [(1, (|_| Some(5)) as Key), (3, (|row| Some(row % 3)) as Key)] {
        let little = session(6_000 * keys, 384 << 10, key);
        let plan = little.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let around = |node: Plan| Ok(if node.is::<HashJoinExec>() { Transformed::yes(SpillingJoinExec::around(node, None)) } else { Transformed::no(node) });
        let plan = plan.transform_up(around).unwrap().data;
        let error = collect(Arc::clone(&plan), little.task_ctx()).await.unwrap_err();
        assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
        assert!(error.to_string().contains("SpillingJoin"), "{error}");
        drop(plan);
        assert_eq!(reserved_at_last(&little).await, 0);
    }
}

/// Rows `first..first + 2,000` in batches of 100, with a column of each type. Each batch has dictionaries of its own.
fn of_each_type(first: i64) -> Vec<Vec<RecordBatch>> {
    let batch = |first: i64| {
        let some = |n: i64| (n % 7 != 3).then_some(n);
        let of = first..first + 100;
        let whole: ArrayRef = Arc::new(Int64Array::from_iter(of.clone().map(some)));
        let small: ArrayRef = Arc::new(Int64Array::from_iter(of.clone().map(|n| some(n).map(|n| n % 100))));
        let text: ArrayRef = Arc::new(StringArray::from_iter(of.clone().map(|n| some(n).map(|n| format!("the text of {n}")))));
        let mut columns: Vec<(String, ArrayRef)> = vec![("k".into(), Arc::new(Int64Array::from_iter(of.clone().map(|n| some(n).map(|n| n / 2)))))];
        let mut add = |column: ArrayRef| columns.push((format!("c{}", columns.len()), column));
        let of_small = [DataType::Int8, DataType::UInt8, DataType::Boolean, DataType::Float16];
        let of_whole = [
            DataType::Int16,
            DataType::UInt16,
            DataType::Int32,
            DataType::UInt32,
            DataType::Int64,
            DataType::UInt64,
            DataType::Float32,
            DataType::Float64,
            DataType::Date64,
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Time64(TimeUnit::Nanosecond),
            DataType::Timestamp(TimeUnit::Second, None),
            DataType::Timestamp(TimeUnit::Nanosecond, Some("+01:00".into())),
            DataType::Duration(TimeUnit::Millisecond),
            DataType::Decimal128(20, 2),
            DataType::Decimal256(40, 2),
        ];
        let of_thirty_two = [DataType::Date32, DataType::Time32(TimeUnit::Second), DataType::Time32(TimeUnit::Millisecond)];
        let of_text = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, DataType::Binary, DataType::LargeBinary, DataType::BinaryView];
        of_small.iter().for_each(|of| add(cast(&small, of).unwrap()));
        of_whole.iter().for_each(|of| add(cast(&whole, of).unwrap()));
        of_thirty_two.iter().for_each(|of| add(cast(&cast(&whole, &DataType::Int32).unwrap(), of).unwrap()));
        of_text.iter().for_each(|of| add(cast(&text, of).unwrap()));
        // A join in memory puts the dictionaries of all batches together: so few words where keys are short.
        let few: ArrayRef = Arc::new(StringArray::from_iter(of.clone().map(|n| some(n).map(|n| format!("word {}", n % 50)))));
        for (keys, words) in [(DataType::Int8, &few), (DataType::UInt16, &text), (DataType::Int32, &text)] {
            add(cast(words, &DataType::Dictionary(Box::new(keys), Box::new(DataType::Utf8))).unwrap());
        }
        add(Arc::new(NullArray::new(100)));
        let bytes = of.clone().map(|n| some(n).map(|n| (n as u32).to_be_bytes()));
        add(Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, 4).unwrap()));
        add(Arc::new(IntervalMonthDayNanoArray::from_iter(of.clone().map(|n| some(n).map(|n| IntervalMonthDayNano::new(n as i32, 2, 3))))));
        let list = |n: i64| some(n).map(|n| (0..n % 4).map(|at| (at != 2).then_some(n as i32)).collect::<Vec<_>>());
        add(Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(of.clone().map(list))));
        add(Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(of.clone().map(list))));
        let pair = |n: i64| some(n).map(|n| vec![Some(n as i32), None]);
        add(Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(of.clone().map(pair), 2)));
        let words = cast(&text, &DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))).unwrap();
        let fields = vec![
            (Arc::new(Field::new("n", DataType::Int64, true)), Arc::clone(&whole)),
            (Arc::new(Field::new("w", words.data_type().clone(), true)), Arc::clone(&words)),
        ];
        let pairs: ArrayRef = Arc::new(StructArray::from(fields));
        let of_two = OffsetBuffer::from_lengths(std::iter::repeat_n(2, 50).chain(std::iter::repeat_n(0, 50)));
        add(Arc::new(ListArray::new(Arc::new(Field::new("item", pairs.data_type().clone(), true)), of_two, Arc::clone(&pairs), None)));
        add(pairs);
        let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        for n in of.clone() {
            for at in 0..n % 3 {
                map.keys().append_value(format!("key {at}"));
                map.values().append_option(some(n));
            }
            map.append(some(n).is_some()).unwrap();
        }
        add(Arc::new(map.finish()));
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
    };
    (0..2).map(|part| (0..10).map(|at| batch(first + (part * 10 + at) * 100)).collect()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_each_type_come_back_from_disk() {
    let (a, b) = (of_each_type(0), of_each_type(1_000));
    let columns = a[0][0].num_columns();
    let (roomy, little) = (session_of(1 << 30, a.clone(), b.clone()), session_of(1 << 20, a, b));
    let sql = format!(
        "SELECT {} FROM a FULL JOIN b ON a.k = b.k",
        (0..columns)
            .flat_map(|at| ["a", "b"].map(|table| format!("{table}.{} AS {table}{at}", if at == 0 { "k".to_owned() } else { format!("c{at}") })))
            .collect::<Vec<_>>()
            .join(", ")
    );
    let (wanted, _) = run(&roomy, &sql, false).await.unwrap();
    let (found, spilled) = run(&little, &sql, true).await.unwrap();
    assert!(found == wanted, "other rows on disk");
    assert!(spilled > 1 << 20, "{spilled}");
    // As keys.
    for at in 0..columns {
        let name = if at == 0 { "k".to_owned() } else { format!("c{at}") };
        let sql = format!("SELECT a.c5, b.c5 AS d FROM a JOIN b ON a.{name} = b.{name} AND a.c5 = b.c5 WHERE a.c5 < 1500");
        // What no join of one host can compare is no key here either.
        let Ok((wanted, _)) = run(&roomy, &sql, false).await else {
            assert!(run(&little, &sql, true).await.is_err(), "{sql}");
            continue;
        };
        let (found, _) = run(&little, &sql, true).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert!(found == wanted, "{sql}: other rows on disk");
    }
}
