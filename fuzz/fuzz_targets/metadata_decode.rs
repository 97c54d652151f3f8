//! Any bytes as a metadata slice, with the checksum put right so that the parsers behind it are reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skytether_slice::Metadata;

fuzz_target!(|data: &[u8]| {
    // See slice_decode.rs.
    std::panic::set_hook(Box::new(|_| {}));
    let mut bytes = data.to_vec();
    if bytes.len() > 16 {
        let crc = crc32c::crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    if let Ok(metadata) = Metadata::decode(&bytes) {
        assert_eq!(metadata.slices.iter().map(|s| s.rows).sum::<u64>(), metadata.rows);
        match metadata.encode().and_then(|b| Metadata::decode(&b)) {
            // Arrays are compared by their bits, NaN included.
            Ok(again) => assert!(again == metadata, "{again:?}\n{metadata:?}"),
            Err(error) => panic!("{error}: {metadata:?}"),
        }
    }
});
