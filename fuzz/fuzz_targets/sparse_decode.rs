//! Any bytes as a sparse slice: an error, or lists whose cell numbers a kernel may index by.
#![no_main]

use arrow::array::AsArray;
use arrow::datatypes::UInt32Type;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use skytether_slice::{Layout, ValueType, decode_sparse};

fuzz_target!(|data: &[u8]| {
    // See slice_decode.rs.
    std::panic::set_hook(Box::new(|_| {}));
    for value in [ValueType::UInt16, ValueType::UInt32, ValueType::Float32] {
        if let Ok(batch) = decode_sparse(&Bytes::copy_from_slice(data), &Layout::sparse(1000, 8, value), &[0, 1, 2, 3, 4]) {
            let (idx, val) = (batch.column(3).as_list::<i32>(), batch.column(4).as_list::<i32>());
            assert_eq!(idx.offsets(), val.offsets());
            assert!(idx.values().as_primitive::<UInt32Type>().values().iter().all(|&c| c < 1000));
        }
    }
});
