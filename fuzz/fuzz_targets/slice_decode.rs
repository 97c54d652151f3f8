//! Any bytes as a slice of a plain table: an error or batches of the right shape.
#![no_main]

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use skytether_slice::{Layout, decode};

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("t", DataType::Utf8, true), Field::new("l", list, true)]))
});

fuzz_target!(|data: &[u8]| {
    // Panics of the Parquet reader are caught by `decode` by design; libFuzzer's hook would stop at them.
    std::panic::set_hook(Box::new(|_| {}));
    if let Ok(batches) = decode(Bytes::copy_from_slice(data), &Layout::Table, &SCHEMA, &[2, 0, 1], 1024) {
        for batch in batches.flatten() {
            assert!(batch.num_columns() == 3 && batch.num_rows() <= 1024);
        }
    }
});
