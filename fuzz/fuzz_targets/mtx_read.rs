//! Any bytes as a Matrix Market file, plain or compressed: an error, or entries within the matrix, as many as were announced.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use skytether_matrix::MtxReader;

fuzz_target!(|data: &[u8]| {
    let Ok(mut reader) = MtxReader::new(Box::new(Cursor::new(data.to_vec())), "matrix.mtx") else { return };
    let (mut rows, mut cols, mut vals) = (Vec::new(), Vec::new(), Vec::new());
    // Chunks of different sizes end in different places of the text.
    let chunk = 1 + data.len() % 7;
    let whole = loop {
        match reader.read_chunk(chunk, &mut rows, &mut cols, &mut vals) {
            Ok(0) => break true,
            Ok(n) => assert!(n <= chunk),
            Err(_) => break false,
        }
    };
    let header = reader.header();
    assert!(rows.len() == cols.len() && rows.len() == vals.len());
    assert!(rows.iter().all(|&r| r < header.rows) && cols.iter().all(|&c| c < header.cols) && vals.iter().all(|v| v.is_finite()));
    assert!(!whole || rows.len() as u64 == header.entries);
});
