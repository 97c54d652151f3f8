//! Any bytes as the lists beside a matrix, plain or compressed: an error, or a name for every line.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use skytether_matrix::tsv::{barcodes_from, features_from};

fuzz_target!(|data: &[u8]| {
    let source = || Box::new(Cursor::new(data.to_vec()));
    let features = features_from(source(), "features.tsv");
    let barcodes = barcodes_from(source(), "barcodes.tsv");
    // Both read the same lines.
    assert_eq!(features.is_ok(), barcodes.is_ok());
    if let (Ok(features), Ok(barcodes)) = (features, barcodes) {
        assert_eq!(features.ids, barcodes);
        assert_eq!(features.ids.len(), features.names.len());
        assert!(features.types.is_none_or(|types| types.len() == features.ids.len()));
    }
});
