use arrow::array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, Int64Array, LargeBinaryArray,
    ListArray, NullArray, RunArray, StringArray, StringViewArray, StructArray, TimestampMicrosecondArray,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Fields, Int32Type};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::physical_plan::collect;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::prelude::SessionContext;
use skytether_common::Kind;
use tokio::runtime::{Builder, Runtime};

use super::*;

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    RecordBatch::try_from_iter(columns.into_iter().enumerate().map(|(i, c)| (format!("__shipped_0_{i}"), c))).unwrap()
}

fn written(columns: Vec<ArrayRef>) -> Vec<u8> {
    let batch = batch(columns);
    ipc::write(&batch.schema(), Some(&batch)).unwrap()
}

fn item(data_type: &DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type.clone(), true))
}

/// Three rows of each kind of type that is taken.
fn taken() -> Vec<Vec<u8>> {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4), Some(5), Some(6)]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("c")]));
    let words: DictionaryArray<Int32Type> = ["one", "two", "one"].into_iter().collect();
    let row = Fields::from(vec![Field::new("n", DataType::Int32, true), Field::new("t", DataType::Utf8, true)]);
    vec![
        written(vec![Arc::new(Int64Array::from(vec![1, 2, 3])), Arc::clone(&texts), Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))]),
        written(vec![
            Arc::new(StringViewArray::from(vec![Some("a text that is longer than a view"), None, Some("b")])),
            Arc::new(LargeBinaryArray::from_opt_vec(vec![Some(b"x"), None, Some(b"yz")])),
            Arc::new(Decimal128Array::from(vec![1, 2, 3]).with_precision_and_scale(12, 2).unwrap()),
            Arc::new(TimestampMicrosecondArray::from(vec![Some(1), None, Some(3)]).with_timezone("UTC")),
        ]),
        written(vec![
            Arc::new(words),
            Arc::new(ListArray::new(item(&DataType::Int32), OffsetBuffer::from_lengths([2, 0, 4]), Arc::clone(&numbers), None)),
            Arc::new(FixedSizeListArray::new(item(&DataType::Int32), 2, Arc::clone(&numbers), None)),
            Arc::new(StructArray::new(row, vec![numbers.slice(0, 3), texts], None)),
            Arc::new(FixedSizeBinaryArray::try_from_iter([[1u8, 2], [3, 4], [5, 6]].into_iter()).unwrap()),
        ]),
    ]
}

/// Batches of a few hundred bytes that claim `rows` rows, or as many values within a row.
fn claiming(rows: usize) -> Vec<(&'static str, Vec<u8>)> {
    let nulls = || Arc::new(NullArray::new(rows)) as ArrayRef;
    let one_list = |values: ArrayRef| {
        let list = arrow::array::LargeListArray::new(item(values.data_type()), OffsetBuffer::new(ScalarBuffer::from(vec![0, rows as i64])), values, None);
        Arc::new(list) as ArrayRef
    };
    let one_run = || {
        let ends = arrow::array::PrimitiveArray::<arrow::datatypes::Int64Type>::from(vec![rows as i64]);
        Arc::new(RunArray::try_new(&ends, &Int32Array::from(vec![None])).unwrap()) as ArrayRef
    };
    let nameless = || Arc::new(StructArray::new_empty_fields(rows, None)) as ArrayRef;
    let wide = Fields::from(vec![Field::new("n", DataType::Null, true)]);
    let empty = RecordBatch::try_new_with_options(Arc::new(arrow::datatypes::Schema::empty()), vec![], &RecordBatchOptions::new().with_row_count(Some(rows)));
    let empty = empty.unwrap();
    let bytes = FixedSizeBinaryArray::try_new_with_len(0, Buffer::default(), None, rows).unwrap();
    vec![
        ("nulls", written(vec![nulls()])),
        ("structs without fields", written(vec![nameless()])),
        ("structs of nulls", written(vec![Arc::new(StructArray::new(wide, vec![nulls()], None))])),
        ("binary of no width", written(vec![Arc::new(bytes)])),
        ("a run", written(vec![one_run()])),
        ("a list of nulls", written(vec![one_list(nulls())])),
        ("a list of a run", written(vec![one_list(one_run())])),
        ("no columns", ipc::write(&empty.schema(), Some(&empty)).unwrap()),
    ]
}

fn read(name: &str, bytes: Vec<u8>) -> Result<BroadcastTables> {
    BroadcastTables::read(&BTreeMap::from([(name.to_owned(), Bytes::from(bytes))]))
}

/// Reads tables as a sub-plan does: statistics for the planner, and all rows.
struct Scanning(Runtime, SessionContext);

impl Scanning {
    fn new() -> Self {
        Self(Builder::new_current_thread().build().unwrap(), SessionContext::new())
    }

    /// The rows, or why there are none.
    fn rows(&self, bytes: Vec<u8>) -> Result<usize> {
        let table = read("__shipped_0", bytes)?.table("__shipped_0").unwrap();
        let rows = self.0.block_on(async {
            let scan = table.scan(&self.1.state(), None, &[], None).await?;
            StatisticsContext::new().compute(scan.as_ref(), &StatisticsArgs::new())?;
            Ok(collect(scan, self.1.task_ctx()).await?.iter().map(RecordBatch::num_rows).sum())
        });
        rows.map_err(from_datafusion)
    }
}

#[test]
fn a_stream_is_a_table() {
    let scanning = Scanning::new();
    for bytes in taken() {
        assert_eq!(scanning.rows(bytes).unwrap(), 3);
    }
    let tables = read("__shipped_0", taken().remove(0)).unwrap();
    assert_eq!(tables.table("__shipped_0").unwrap().schema().fields().len(), 3);
    assert!(tables.table("__shipped_1").is_none());
}

#[test]
fn names_of_stored_tables_are_refused() {
    for name in ["data", "__shipped_", "__shipped_x", "__shipped_-1", "x__shipped_0", "__shipped_+1", "__shipped_007", "__shipped_00", "__shipped_65536"] {
        assert_eq!(read(name, taken().remove(0)).unwrap_err().kind(), Kind::Invalid, "{name}");
    }
    assert!(read("__shipped_65535", taken().remove(0)).is_ok());
}

#[test]
fn rows_that_are_only_claimed_are_refused() {
    let scanning = Scanning::new();
    // Some billions of rows take memory that a machine has, a quadrillion none that any has.
    for rows in [1, 1 << 34, 1 << 50] {
        for (what, bytes) in claiming(rows) {
            assert!(bytes.len() < 1500, "{what}: {}", bytes.len());
            let error = scanning.rows(bytes).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{what}: {}", error.report());
        }
    }
    let most = usize::try_from(broadcast_join::MAX_ROWS).unwrap();
    let rows = |n: usize| written(vec![Arc::new(BooleanArray::from(vec![true; n]))]);
    assert_eq!(scanning.rows(rows(most)).unwrap(), most);
    let error = scanning.rows(rows(most + 1)).unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.report().contains("65537 rows: at most 65536"), "{}", error.report());
}

#[test]
fn hostile_bytes_give_errors_and_no_panics() {
    let scanning = Scanning::new();
    let mut good = 0;
    for whole in taken().into_iter().chain(claiming(1 << 50).into_iter().map(|(_, bytes)| bytes)) {
        for n in 0..whole.len() {
            if let Err(e) = read("__shipped_0", whole[..n].to_vec()) {
                assert_eq!(e.kind(), Kind::Invalid, "{n}");
            }
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[n] ^= 1 << bit;
                match scanning.rows(flipped) {
                    Ok(rows) => {
                        assert!(rows as u64 <= broadcast_join::MAX_ROWS);
                        good += 1;
                    }
                    Err(e) => assert_eq!(e.kind(), Kind::Invalid, "{n}.{bit}: {}", e.report()),
                }
            }
        }
    }
    assert!(good > 1000, "{good}");
}
