//! Targets for volumes: segments of journals as a crash or damage leaves them, header records, names.

use skytether_common::Kind;
use skytether_common::checksum::crc32c;
use skytether_volume::VolumeSpec;
use skytether_volume::header::{FORMAT, Header};
use skytether_volume::names;
use skytether_volume::record::{HEAD, Head, MAX_DATA, Mark, Record, RecordKind, parse};
use uuid::Uuid;

const BLOCK: usize = 4096;
/// Bytes of the volume.
const SIZE: u64 = 1 << 20;

fn record(seq: u64, at: u64, kind: RecordKind, len: u64, durable: u64) -> (Record, Vec<u8>) {
    let data: Vec<u8> = if kind == RecordKind::Data { (0..len).map(|i| (i / 7 + seq) as u8).collect() } else { Vec::new() };
    let blocks = data.chunks(BLOCK).map(crc32c).collect();
    (Record { seq, at, len, kind, durable: Mark { segment: 1, seq: durable }, blocks }, data)
}

const HEADED: Head = Head { volume: Uuid::from_u128(9), secret: 77, number: 1, first: 1 };

pub(crate) fn segments() -> Vec<Vec<u8>> {
    let segment = |records: &[(Record, Vec<u8>)]| {
        let mut bytes = HEADED.encode().to_vec();
        for (record, data) in records {
            bytes.extend(record.encode(HEADED.secret, HEADED.number));
            bytes.extend(data);
        }
        bytes
    };
    let long = (1 << 20) as u64;
    vec![
        segment(&[record(1, 0, RecordKind::Data, 4096, 0), record(2, 4096, RecordKind::Unmap, 65_536, 1), record(3, 8192, RecordKind::Data, 8192, 2)]),
        segment(&[record(1, 0, RecordKind::Zeros, long, 0), record(2, 0, RecordKind::Data, 4096, 1)]),
        segment(&[]),
    ]
}

/// The head of a record and its checksum's place; what is sealed with the secret is as good as what a volume wrote.
fn sealed(bytes: &mut [u8]) {
    if bytes.len() >= HEAD {
        let check = crc32c(&bytes[..HEAD - 4]).to_le_bytes();
        bytes[HEAD - 4..HEAD].copy_from_slice(&check);
    }
}

/// One segment. Whether it was taken.
pub(crate) fn segment_read(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    sealed(&mut bytes);
    match parse(&bytes) {
        Ok(parsed) => {
            let mut end = HEAD as u64;
            for (at, (record, data)) in parsed.records.iter().enumerate() {
                assert!(Some(record.seq) == parsed.head.first.checked_add(at as u64) && *data == end + record.head_len() as u64);
                assert!(record.len > 0 && (record.at | record.len).is_multiple_of(BLOCK as u64) && record.at.checked_add(record.len).is_some());
                let is_data = record.kind == RecordKind::Data;
                assert!(!is_data || record.len <= MAX_DATA as u64);
                assert_eq!(record.blocks.len() as u64, if is_data { record.len / BLOCK as u64 } else { 0 });
                end = data + if is_data { record.len } else { 0 };
            }
            assert!(parsed.end == end && end <= bytes.len() as u64 && parsed.beyond <= bytes.len() as u64 / 56);
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{error}");
            false
        }
    }
}

pub(crate) fn headers() -> Vec<Vec<u8>> {
    let header = Header {
        format: FORMAT,
        id: Uuid::from_u128(7),
        number: 3,
        size: SIZE,
        extent: 65_536,
        created_ms: 5,
        journal: Some(Uuid::from_u128(8)),
        removed: false,
    };
    let other = Header { number: 0, journal: None, removed: true, ..header.clone() };
    [header, other].iter().filter_map(|header| header.encode().ok()).map(|bytes| bytes.to_vec()).collect()
}

pub(crate) fn header_decode(data: &[u8]) -> bool {
    match Header::decode("volume a", data) {
        Ok(header) => {
            assert!(header.extent.is_power_of_two() && (4096..=1 << 20).contains(&header.extent));
            assert!(header.size > 0 && header.size <= names::MAX_SIZE && header.size.is_multiple_of(4096));
            let again = header.encode().and_then(|bytes| Header::decode("volume a", &bytes));
            assert!(again.is_ok_and(|again| again == header));
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{error}");
            false
        }
    }
}

pub(crate) fn specs() -> Vec<Vec<u8>> {
    ["disk=10GiB", "a.b-c_1=4096", "disk=512G", "Z=64TiB", "x=4 MiB"].iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// What `--volume` says. Whether it names a volume.
pub(crate) fn spec_read(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    match text.parse::<VolumeSpec>() {
        Ok(spec) => {
            assert!(spec.name.as_str().len() <= names::MAX_NAME && spec.size > 0 && spec.size <= names::MAX_SIZE);
            assert!(names::header_key(&spec.name.prefix()).is_ok() && names::extent_key(&spec.name.prefix(), spec.size).is_ok());
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
            false
        }
    }
}
