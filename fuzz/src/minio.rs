//! Targets for MinIO's drives: the metadata of an object, with its checksum and without.

use bytes::Bytes;
use oas::minio::xl_meta::{Object, Version, XlMeta, versions};
use skytether_common::{Error, Kind};

/// What a real server wrote: a small object, one in parts, and one of two versions.
pub(crate) fn files() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../crates/oas/tests/data/minio/plain/small/inline.txt/xl.meta").to_vec(),
        include_bytes!("../../crates/oas/tests/data/minio/plain/large/parts/xl.meta").to_vec(),
        include_bytes!("../../crates/oas/tests/data/minio/versions/two/xl.meta").to_vec(),
        include_bytes!("../../crates/oas/tests/data/minio/versions/gone/xl.meta").to_vec(),
    ]
}

/// The metadata of these: what is between the length and the checksum.
pub(crate) fn metadata() -> Vec<Vec<u8>> {
    let of = |file: Vec<u8>| {
        let length = u32::from_be_bytes(file[9..13].try_into().unwrap_or_default()) as usize;
        file[13..13 + length].to_vec()
    };
    files().into_iter().map(of).collect()
}

fn refused(error: &Error) -> bool {
    assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{error}");
    false
}

fn check(object: &Object) {
    assert!(object.frame() > 0);
    for part in &object.parts {
        let size = object.file_size(part);
        assert!(part.size == 0 || size > 32, "{part:?} has a file of {size} bytes");
    }
}

/// A file. Whether it was taken.
pub(crate) fn xl_meta_read(data: &[u8]) -> bool {
    let found = match XlMeta::parse(&Bytes::copy_from_slice(data)) {
        Ok(found) => found,
        Err(error) => return refused(&error),
    };
    for version in &found.versions {
        if let Version::Object(object) = version {
            check(object);
            assert!(found.inline(object).is_none_or(|inline| inline.len() < data.len()));
        }
    }
    true
}

/// The metadata in it. Whether it was taken.
pub(crate) fn versions_read(data: &[u8]) -> bool {
    match versions(data) {
        Ok(found) => {
            found.iter().for_each(|version| {
                if let Version::Object(object) = version {
                    check(object)
                }
            });
            true
        }
        Err(error) => refused(&error),
    }
}
