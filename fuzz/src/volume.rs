//! Targets for volumes: segments and whole journals as a crash or damage leaves them, header records, names.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_common::checksum::crc32c;
use skytether_common::{Key, Kind};
use skytether_device::StorageOnly;
use skytether_volume::extents::ExtentCache;
use skytether_volume::files::Files;
use skytether_volume::header::{FORMAT, Header};
use skytether_volume::names::{self, VolumeName, VolumeSpec};
use skytether_volume::open::{Context, create};
use skytether_volume::power::PowerFiles;
use skytether_volume::record::{HEAD, Head, MAX_DATA, Mark, Marked, Record, RecordKind, parse};
use skytether_volume::{Backing, BlockDevice, Durability, Options, StorageBacking, Volume};
use uuid::Uuid;

use crate::waiting::wait;

const BLOCK: usize = 4096;
/// Bytes of the volume, and of its extents: the last one reaches beyond the volume's end.
const SIZE: u64 = ROOM - 8192;
const ROOM: u64 = 1 << 20;

fn record(seq: u64, at: u64, kind: RecordKind, len: u64, durable: u64) -> (Record, Vec<u8>) {
    let data: Vec<u8> = if kind == RecordKind::Data { (0..len).map(|i| (i / 7).wrapping_add(seq) as u8).collect() } else { Vec::new() };
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

/// What changes a journal: a step is one byte and its numbers.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }
}

const SEGMENT: u8 = 0;
const MARK: u8 = 1;
const RAW: u8 = 2;
const RECORD: u8 = 3;

fn numbers(step: u8, numbers: &[u64]) -> Vec<u8> {
    [&[step][..], &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>()].concat()
}

pub(crate) fn journals() -> Vec<Vec<u8>> {
    // Kind, sequence number, place, length, segment and number of the last durable record.
    let record = |kind: u8, seq: u64, at: u64, len: u64, durable: u64| numbers(RECORD + kind, &[seq, at, len, 1, durable]);
    let (data, zeros, unmap) = (0, 1, 2);
    let one = [numbers(SEGMENT, &[1, 1]), record(data, 1, 0, 4096, 0), record(unmap, 2, 65_536, 131_072, 1), record(data, 3, 12_288, 8192, 2)].concat();
    let two = [one.clone(), numbers(SEGMENT, &[2, 4]), record(zeros, 4, 0, ROOM, 3), record(data, 5, SIZE - 4096, 4096, 4)].concat();
    let marked = [numbers(MARK, &[1, 3, 1]), one.clone()].concat();
    let late = [numbers(MARK, &[2, 4, 2]), numbers(SEGMENT, &[2, 4]), record(zeros, 4, 0, ROOM, 3), numbers(SEGMENT, &[3, 0])].concat();
    let torn = [one.clone(), vec![RAW, 40], vec![7; 40]].concat();
    vec![one, two, marked, late, torn]
}

fn options() -> Options {
    Options {
        extent: 64 << 10,
        segment_bytes: ROOM + 8192,
        journal_bytes: 4 * (ROOM + 8192),
        cache_bytes: 512 << 10,
        dirty_extents: 512,
        merge_bytes: 256 << 10,
        idle: Duration::from_secs(3600),
        stall: Duration::from_secs(20),
        discard_journal: Vec::new(),
        flush_merges: false,
    }
}

/// The files of a journal with a secret, as steps say.
fn write_journal(files: &PowerFiles, own: &Head, mut steps: Steps<'_>) -> Option<()> {
    let put = |number: u64, bytes: &[u8]| files.create(&format!("{number:016x}.segment"), bytes).ok().map(drop);
    let mut segment: Option<(Head, Vec<u8>)> = None;
    let mut room = 8 * MAX_DATA as u64;
    while let Some(step) = steps.byte() {
        match step {
            SEGMENT => {
                let (number, first) = (steps.number()?, steps.number()?);
                let head = Head { number, first, ..*own };
                if let Some((before, bytes)) = segment.replace((head, head.encode().to_vec())) {
                    put(before.number, &bytes)?;
                }
            }
            MARK => {
                let (segment, seq, oldest) = (steps.number()?, steps.number()?, steps.number()?);
                files.create("durable", &Marked { durable: Mark { segment, seq }, oldest }.encode(own.secret)).ok()?;
            }
            RAW => {
                let length = usize::from(steps.byte()?).min(steps.0.len());
                let (raw, rest) = steps.0.split_at(length);
                steps.0 = rest;
                segment.as_mut()?.1.extend_from_slice(raw);
            }
            kind => {
                let kind = [RecordKind::Data, RecordKind::Zeros, RecordKind::Unmap][usize::from(kind - RECORD) % 3];
                let (seq, at, len, durable) = (steps.number()?, steps.number()?, steps.number()?, Mark { segment: steps.number()?, seq: steps.number()? });
                let is_data = kind == RecordKind::Data && len <= room.min(MAX_DATA as u64);
                let (head, bytes) = segment.as_mut()?;
                let (mut made, data) = record(seq, at, kind, if is_data { len } else { 0 }, 0);
                room -= data.len() as u64;
                (made.len, made.durable) = (len, durable);
                bytes.extend(made.encode(head.secret, head.number));
                bytes.extend(data);
            }
        }
    }
    let (head, bytes) = segment?;
    put(head.number, &bytes)
}

/// A volume whose journal others wrote, with the right secret: it is opened, read, written and merged, or refused.
/// Whether it was opened.
pub(crate) fn journal_open(data: &[u8]) -> bool {
    let storage = StorageOnly::in_memory(Uuid::from_u128(1), "drive-0");
    let made = StorageBacking::new(Arc::new(storage)).and_then(|backing| Ok((Arc::new(backing), "a".parse::<VolumeName>()?)));
    let Ok((backing, name)) = made else { panic!("no drive in memory") };
    let options = options();
    let context = Context { backing: Arc::clone(&backing) as _, cache: Arc::new(ExtentCache::new(options.cache_bytes)), options };
    wait(Duration::from_secs(60), async {
        let files = PowerFiles::new();
        assert!(create(&context, &name, SIZE).await.is_ok());
        let opened = Volume::open(&context, &name, Arc::new(files.clone())).await;
        assert!(opened.is_ok());
        let Ok((volume, _)) = opened else { return false };
        volume.stop().await;
        drop(volume);
        let head = files.content("0000000000000001.segment").ok().and_then(|bytes| Head::decode(&bytes).ok());
        let Some(head) = head else { panic!("a journal without a segment") };
        assert!(files.remove("0000000000000001.segment").is_ok() && files.remove("durable").is_ok());
        // What there was up to a step that is cut off.
        let _ = write_journal(&files, &head, Steps(data));
        match Volume::open(&context, &name, Arc::new(files)).await {
            Ok((volume, _)) => {
                use_it(&volume).await;
                within(&*backing, &name).await;
                true
            }
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported), "{}", error.report());
                false
            }
        }
    })
}

async fn use_it(volume: &Volume) {
    assert_eq!(volume.info().size, SIZE);
    let mut at = 0;
    while at < SIZE {
        let read = volume.read(at, (SIZE - at).min(256 << 10) as u32).await;
        assert!(read.is_ok(), "{read:?}");
        at += 256 << 10;
    }
    let block = Bytes::from(vec![0xee; BLOCK]);
    let written = volume.write(8192, block.clone(), Durability::Durable).await;
    assert!(written.is_ok(), "{written:?}");
    let merged = volume.drain().await;
    assert!(merged.is_ok(), "{merged:?}");
    assert!(volume.read(8192, BLOCK as u32).await.is_ok_and(|read| read == block));
    assert!(volume.close().await.is_ok());
}

/// No extent lies beyond the end.
async fn within(backing: &dyn Backing, name: &VolumeName) {
    let listed = backing.list(&names::extents_prefix(&name.prefix()), None, 1000).await.unwrap_or_default();
    let number = |key: &Key| names::extent_number(&name.prefix(), key);
    assert!(listed.iter().all(|entry| number(&entry.key).is_some_and(|number| number < ROOM >> 16)));
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
