//! Targets for the client of EXEC: descriptions of striped files, extents of files, URLs, and what targets answer.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use oas::fiemap::{RawExtent, flag};
use oas::layout::{Layout, Placement};
use oas::path::{Caller, Path};
use oas::places::{self, slice};
use oas::scsi::{Command, Reply, Scsi, ScsiPath};
use oas::url::Url;
use parking_lot::Mutex;
use skytether_common::{Kind, Result};
use skytether_offload::codes::{MOST_RESULT, opcode};
use skytether_offload::{Capabilities, Extent};
use skytether_volume::ExecLimits;
use tokio::time::Instant;

use crate::waiting::wait;

pub(crate) fn layouts() -> Vec<Vec<u8>> {
    let member = |path: &str| format!("[[members]]\npath = \"{path}\"\ntarget = \"iscsi://h:3260/t/1\"\noffset = 4096\n");
    let toml = |head: &str, members: &[&str]| [head.to_owned(), members.iter().map(|path| member(path)).collect()].concat();
    let coded = toml("length = 1000000\nchunk = 65536\nredundancy = \"ec:2+1\"\norder = \"rotating\"\n", &["a", "/b", "../c"]);
    let plain = toml("length = 1000\nchunk = 7\n", &["a", "b"]);
    let copies = toml("length = 0\nchunk = 4096\nredundancy = \"replicas:2\"\n", &["a", "b"]);
    let json = r#"{"length":100000,"chunk":64,"redundancy":"ec:1+1","order":"fixed","members":[{"path":"a"},{"path":"b","offset":512}]}"#;
    [("0", coded.as_str()), ("0", &plain), ("0", &copies), ("1", json)].iter().map(|(kind, text)| [kind.as_bytes(), text.as_bytes()].concat()).collect()
}

/// A description: TOML after `0`, JSON after any other byte. Whether it describes a file.
pub(crate) fn layout_read(data: &[u8]) -> bool {
    let Some((kind, text)) = data.split_first() else { return false };
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let layout = match Layout::parse(text, *kind != b'0') {
        Ok(layout) => layout,
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
            return false;
        }
    };
    let chunks = layout.chunks();
    assert!(layout.data() >= 1 && layout.data() <= layout.members.len());
    assert!(matches!(layout.order, Placement::Fixed | Placement::Rotating));
    // Of a description that anyone wrote, each chunk has its place.
    for number in [0, 1, chunks / 2, chunks.saturating_sub(1)].into_iter().filter(|number| *number < chunks) {
        let chunk = layout.chunk(number);
        assert!(chunk.member < layout.members.len() && chunk.length >= 1 && chunk.length <= layout.chunk);
        assert!(chunk.position + chunk.length <= layout.length && chunk.at >= layout.members[chunk.member].offset);
        assert!(chunk.at.checked_add(chunk.length).is_some_and(|end| end <= i64::MAX as u64));
        let row = number / layout.data() as u64;
        let mut members: Vec<usize> = (0..layout.members.len()).map(|shard| layout.place(row, shard).0).collect();
        members.sort_unstable();
        assert!(members.iter().enumerate().all(|(at, member)| at == *member));
        let (lengths, parity) = layout.row(row);
        assert!(!lengths.is_empty() && lengths.len() <= layout.data() && parity as u64 <= layout.chunk.next_multiple_of(64));
    }
    true
}

/// Extents as FIEMAP gives them: the file's length and the partition's begin, then 28 bytes each.
fn extents(size: u64, base: u64, of: &[(u64, u64, u64, u32)]) -> Vec<u8> {
    let mut bytes = [size.to_le_bytes(), base.to_le_bytes()].concat();
    for (logical, physical, length, flags) in of {
        bytes.extend([logical, physical, length].iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(flags.to_le_bytes());
    }
    bytes
}

pub(crate) fn maps() -> Vec<Vec<u8>> {
    vec![
        extents(20_000, 1 << 20, &[(4096, 8192, 4096, 0), (8192, 65_536, 4096, flag::UNWRITTEN), (16_384, 40_960, 8192, flag::LAST)]),
        extents(8192, 0, &[(0, 8192, 4096, flag::SHARED), (4096, 12_288, 4096, flag::LAST)]),
        extents(5000, 512, &[]),
        extents(4096, 0, &[(0, 4096, 4096, 0), (4096, 0, 4096, flag::DELALLOC | flag::LAST)]),
    ]
}

/// The places of a file by what the kernel says of it. Whether it can be addressed.
pub(crate) fn map_read(data: &[u8]) -> bool {
    let number = |at: usize| data.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_le_bytes);
    let (size, base, rest) = (number(0), number(8), data.get(16..).unwrap_or_default());
    let field = |of: &[u8], at: usize| of[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let raw = |of: &[u8]| RawExtent::new(field(of, 0), field(of, 8), field(of, 16), of[24..28].try_into().map_or(0, u32::from_le_bytes));
    let raw: Vec<RawExtent> = rest.chunks_exact(28).map(raw).collect();
    match places::of_extents(size, &raw, base) {
        Ok(object) => {
            let covered: u64 = object.extents.iter().map(|extent| extent.length).sum();
            assert!(object.length == size && covered == size.next_multiple_of(512) && object.check().is_ok());
            assert!(object.extents.iter().all(|extent| extent.length > 0 && (extent.is_hole() || extent.place.checked_add(extent.length).is_some())));
            // Each place is one that an extent of the file has.
            let has = |extent: &Extent| {
                raw.iter().any(|raw| extent.place >= raw.physical.wrapping_add(base) && extent.place - raw.physical.wrapping_add(base) < raw.length)
            };
            assert!(object.extents.iter().all(|extent| extent.is_hole() || has(extent)));
            for (from, to) in [(0, size), (size / 3, size / 2), (size, size)] {
                let part = slice(&object, from, to);
                assert!(part.is_ok_and(|part| part.seen() == to - from && part.check().is_ok()));
            }
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported | Kind::Exhausted), "{error}");
            false
        }
    }
}

pub(crate) fn urls() -> Vec<Vec<u8>> {
    let all =
        ["iscsi://me%s3%cret@[::1]:3261/iqn.2026-01.net:a.b/3", "iscsi://host/t/0", "/dev/sdb", "iscsi://127.0.0.1:3260/iqn.2024-01.io.skytether:d/16383"];
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A target's URL. Whether it is one.
pub(crate) fn url_read(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    match text.parse::<Url>() {
        Ok(Url::Iscsi(url)) => {
            assert!(url.lun < 1 << 14 && !url.host.is_empty() && (1..=223).contains(&url.target.len()));
            if let Some((_, secret)) = url.login.as_ref().filter(|(_, secret)| secret.len() > 8) {
                assert!(!format!("{url:?} {url}").contains(secret.as_str()) || url.to_string().len() > secret.len());
            }
            true
        }
        Ok(Url::Node(node)) => node.to_string_lossy().starts_with("/dev/"),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Invalid);
            false
        }
    }
}

pub(crate) fn capabilities() -> Vec<Vec<u8>> {
    let mut full = Capabilities::new(ExecLimits { descriptor: 1 << 20, result: 4 << 20 });
    full.operations = vec![opcode::CRC32C, opcode::MD5, opcode::SEARCH, opcode::QUERY];
    let none = Capabilities::new(ExecLimits { descriptor: 512, result: 512 });
    vec![full.encode().to_vec(), none.encode().to_vec()]
}

/// What a target says that it can do. Whether it can be read.
pub(crate) fn capabilities_decode(data: &[u8]) -> bool {
    match Capabilities::decode(&Bytes::copy_from_slice(data)) {
        Ok(found) => {
            assert!(2 * found.operations.len() <= data.len() && found.operations.is_sorted());
            assert!(found.operations.iter().all(|opcode| found.has(*opcode)));
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
            false
        }
    }
}

/// A logical unit that answers what it was told, in this order; then it has nothing more to say.
#[derive(Debug)]
struct Told(Mutex<VecDeque<Reply>>);

impl Scsi for Told {
    fn execute(&self, _: Command, _: Instant) -> BoxFuture<'_, Result<Reply>> {
        let next = self.0.lock().pop_front();
        let reply = next.unwrap_or(Reply { status: 2, sense: Bytes::from_static(&[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0]), data: Bytes::new() });
        async move { Ok(reply) }.boxed()
    }

    fn most_data(&self) -> usize {
        1 << 20
    }

    fn name(&self) -> String {
        "fuzz".to_owned()
    }
}

/// Replies as bytes: status, length of the sense data, length of the data (two bytes), both.
fn replies(of: &[(u8, &[u8], &[u8])]) -> Vec<u8> {
    let one = |(status, sense, data): &(u8, &[u8], &[u8])| [&[*status, sense.len() as u8][..], &(data.len() as u16).to_le_bytes(), sense, data].concat();
    of.iter().flat_map(one).collect()
}

pub(crate) fn answers() -> Vec<Vec<u8>> {
    let page = |content: &[u8]| [&[0, 0xc0, 0, content.len() as u8][..], content].concat();
    let inline: Vec<u8> = [&[0x72, 0x0f, 0, 0, 0, 0, 0, 9, 0x80, 7, 1, 0][..], b"short"].concat();
    let attention = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0];
    let full = page(&capabilities()[0]);
    let long = [&9u32.to_be_bytes()[..], &[0; 4], b"result-9+"].concat();
    let part = [&9u32.to_be_bytes()[..], &[0; 4], b"resu"].concat();
    let rest = [&9u32.to_be_bytes()[..], &[0; 4], b"lt-9+"].concat();
    vec![
        replies(&[(2, &attention, &[]), (0, &[], &full), (2, &inline, &[])]),
        replies(&[(0, &[], &full), (0, &[], &[]), (0, &[], &long)]),
        replies(&[(0, &[], &full), (0, &[], &[]), (0, &[], &part), (0, &[], &rest)]),
    ]
}

/// What a target answers to INQUIRY, EXEC OUT and EXEC IN. Whether a result came of it.
pub(crate) fn answers_read(data: &[u8]) -> bool {
    let (mut rest, mut replies) = (data, VecDeque::new());
    while let Some(([status, sense, low, high], after)) = rest.split_first_chunk::<4>() {
        // A busy target is asked again after a pause, which here is only time.
        let status = if matches!(status, 0x08 | 0x28) { 2 } else { *status };
        let (sense, after) = after.split_at(usize::from(*sense).min(after.len()));
        let (data, after) = after.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(after.len()));
        rest = after;
        replies.push_back(Reply { status, sense: Bytes::copy_from_slice(sense), data: Bytes::copy_from_slice(data) });
    }
    let path = ScsiPath::new(Told(Mutex::new(replies)));
    wait(Duration::from_secs(60), async {
        let caller = Caller { deadline: Instant::now() + Duration::from_secs(30) };
        let capabilities = path.capabilities(caller).await;
        assert!(capabilities.as_ref().err().is_none_or(|error| error.kind() != Kind::Internal), "{capabilities:?}");
        for most in [MOST_RESULT, 64] {
            match path.exec(Bytes::from_static(b"ask"), most, caller).await {
                // A result in sense data is short by itself.
                Ok(result) if result.len() <= most.max(255) && result.len() <= data.len() => return true,
                Ok(result) => panic!("a result of {} bytes of {} that came", result.len(), data.len()),
                Err(error) => assert!(error.kind() != Kind::Internal, "{error}"),
            }
        }
        false
    })
}
