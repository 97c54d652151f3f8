//! A striped file gives the answers of the whole, wherever its chunks begin, and with members that are lost.

use std::sync::Arc;

use bytes::Bytes;
use oas::layout::{Layout, MemberFile, Placement};
use oas::request::{Elements, Format};
use oas::striped::Member;
use oas::{Digest, Order, Part, Pattern, Request, Session, Settings, Striped};
use proptest::prelude::*;
use skytether_common::{Error, Result};
use skytether_erasure::code::encode;
use skytether_offload::operations::query::{QueryFiles, QueryPart, QueryRequest};
use skytether_offload::operations::registry;
use skytether_offload::{Descriptor, ExecResult, Extent, Item, Object, Offload, Options};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Durability, Exec};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::mounted::{noise, text};

/// A target in this process, whose disk has the member's file in two pieces.
#[derive(Debug)]
struct MemoryMember {
    device: Arc<dyn BlockDevice>,
    object: Object,
    bytes: Vec<u8>,
    exec: Arc<dyn Exec>,
    runtime: Arc<Runtime>,
}

/// An engine for the tests: lines that have the plan's bytes.
#[derive(Debug)]
struct Lines;

impl QueryFiles for Lines {
    fn query(&self, request: QueryRequest) -> futures::stream::BoxStream<'static, Result<QueryPart>> {
        Box::pin(futures::stream::once(async move {
            let mut out = Vec::new();
            for file in request.files {
                let bytes = file.bytes.read(0..file.bytes.len()).await?;
                // The names of a file that begins with them are no row.
                let names = if file.preceded { None } else { bytes.split_inclusive(|byte| *byte == b'\n').next() };
                for line in bytes[names.map_or(0, <[u8]>::len)..].split(|byte| *byte == b'\n') {
                    if !request.plan.is_empty() && line.windows(request.plan.len()).any(|window| window == &request.plan[..]) {
                        out.extend_from_slice(line);
                        out.push(b'\n');
                    }
                }
            }
            Ok(QueryPart::Rows(out.into()))
        }))
    }
}

fn offload(element: usize) -> Arc<dyn Exec> {
    let options = Options { block: 4096, element, result: 4 << 20, ..Options::default() };
    Arc::new(Offload::new(registry(Some(Arc::new(Lines))).unwrap(), options).unwrap())
}

impl MemoryMember {
    fn new(bytes: Vec<u8>, exec: Arc<dyn Exec>, runtime: Arc<Runtime>) -> Self {
        let device = Arc::new(MemoryDevice::new("disk", 1 << 20));
        let mut padded = bytes.clone();
        padded.resize(bytes.len().next_multiple_of(512), 0);
        let (first, second) = padded.split_at(padded.len() / 1024 * 512);
        let mut extents = Vec::new();
        for (place, piece) in [(512 << 10, first), (4096, second)] {
            if !piece.is_empty() {
                runtime.block_on(device.write(place, Bytes::copy_from_slice(piece), Durability::Cached)).unwrap();
                extents.push(Extent::new(place, piece.len() as u64));
            }
        }
        Self { device, object: Object::new(bytes.len() as u64, extents), bytes, exec, runtime }
    }
}

impl Member for MemoryMember {
    fn run_each(&self, request: &Request, parts: &[Part]) -> Vec<Result<Item>> {
        let one = |part: &Part| {
            let result = self.run_whole(request, std::slice::from_ref(part))?;
            result.items[0].done().cloned()
        };
        parts.iter().map(one).collect()
    }

    fn run_whole(&self, request: &Request, parts: &[Part]) -> Result<ExecResult> {
        let inputs = parts.iter().map(|part| part.of(&self.object)).collect::<Result<_>>()?;
        let descriptor = Descriptor { opcode: request.opcode(), arguments: request.arguments().to_vec(), inputs, ..Descriptor::default() };
        let run = self.exec.run(self.device.clone(), descriptor.encode()?, CancellationToken::new());
        let result = ExecResult::decode(&self.runtime.block_on(run)?)?;
        result.done()?;
        Ok(result)
    }

    fn read_exact(&self, at: u64, space: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.get(at as usize..at as usize + space.len()).ok_or_else(|| Error::corrupt("the member is shorter"))?;
        space.copy_from_slice(bytes);
        Ok(())
    }
}

struct Case {
    whole: Vec<u8>,
    chunk: u64,
    redundancy: String,
    count: usize,
    order: Placement,
    /// Bytes in front of each member's chunks.
    offset: u64,
}

impl Case {
    /// The striped file, with the members `lost`.
    fn striped(&self, lost: &[usize], element: usize) -> Striped {
        let member = |n| MemberFile { path: format!("m{n}").into(), target: None, offset: self.offset };
        let layout = Layout {
            length: self.whole.len() as u64,
            chunk: self.chunk,
            redundancy: self.redundancy.parse().unwrap(),
            order: self.order,
            members: (0..self.count).map(member).collect(),
        };
        let mut files: Vec<Vec<u8>> = vec![Vec::new(); self.count];
        let mut put = |member: usize, at: u64, bytes: &[u8]| {
            let end = at as usize + bytes.len();
            let length = files[member].len().max(end);
            files[member].resize(length, 0);
            files[member][at as usize..end].copy_from_slice(bytes);
        };
        let chunks: Vec<&[u8]> = self.whole.chunks(self.chunk as usize).collect();
        for (row, data) in chunks.chunks(layout.data()).enumerate() {
            let parities = layout.code().map(|code| encode(code, data).unwrap()).unwrap_or_default();
            for (shard, bytes) in data.iter().enumerate() {
                let (member, at) = layout.place(row as u64, shard);
                put(member, at, bytes);
            }
            for (shard, bytes) in parities.iter().enumerate() {
                let (member, at) = layout.place(row as u64, layout.data() + shard);
                put(member, at, bytes);
            }
        }
        let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
        let exec = offload(element);
        let members = files.into_iter().enumerate().map(|(number, bytes)| -> Result<Box<dyn Member>> {
            if lost.contains(&number) {
                return Err(Error::unavailable(format!("member {number} is lost")));
            }
            Ok(Box::new(MemoryMember::new(bytes, exec.clone(), runtime.clone())))
        });
        let local = Session::with(None, offload(1 << 20), Settings::default()).unwrap();
        Striped::with(layout, members.collect(), local).unwrap()
    }

    /// Compares all answers with those of the whole.
    fn check(&self, lost: &[usize]) {
        let striped = Arc::new(self.striped(lost, 64 << 10));
        let whole = Session::with(None, offload(1 << 20), Settings::default()).unwrap();
        let on_whole = |request: &Request| whole.run_bytes(request, self.whole.clone().into(), Part::default()).unwrap();
        let (counts, report) = striped.word_count(true).unwrap();
        let expected = on_whole(&Request::word_count(true)).values;
        assert_eq!(vec![counts.lines, counts.words, counts.characters, counts.bytes], expected);
        assert_eq!(report.decoded > 0, lost.iter().any(|lost| (0..striped.layout().chunks()).any(|n| striped.layout().chunk(n).member == *lost)));
        for pattern in [Pattern::string("needle"), Pattern::regex("[a-z]+ [a-z]+"), Pattern::regex("\u{fc}|needle hay")] {
            let (found, _) = striped.search(&pattern, true).unwrap();
            let mut expected = Vec::new();
            let data = on_whole(&Request::search(&pattern, oas::Answer::Texts)).data;
            let mut at = 0;
            while at < data.len() {
                let length = u32::from_le_bytes(data[at + 8..at + 12].try_into().unwrap()) as usize;
                expected.push((u64::from_le_bytes(data[at..at + 8].try_into().unwrap()), data.slice(at + 12..at + 12 + length)));
                at += 12 + length;
            }
            assert_eq!(found.into_iter().map(|found| (found.at, found.text)).collect::<Vec<_>>(), expected, "{pattern:?}");
            for (lines, answer) in [(true, oas::Answer::Lines), (false, oas::Answer::Matches)] {
                assert_eq!(striped.count(&pattern, lines).unwrap().0, on_whole(&Request::search(&pattern, answer)).values[0]);
            }
        }
        assert_eq!(striped.sort(&Order::LINES).unwrap().0, on_whole(&Request::sort(&Order::LINES)).data);
        let sum = striped.run_here(&Request::digest(Digest::Md5)).unwrap();
        assert_eq!(sum.items[0].data, on_whole(&Request::digest(Digest::Md5)).data);
        self.check_query(&striped);
    }

    fn check_query(&self, striped: &Striped) {
        let (rows, _) = striped.query(Format::Csv, Bytes::from_static(b"needle"), "t").unwrap();
        let sorted = |bytes: Vec<u8>| {
            let mut lines: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).filter(|line| !line.is_empty()).collect();
            lines.sort();
            lines
        };
        let skip = self.whole.iter().position(|byte| *byte == b'\n').map_or(self.whole.len(), |at| at + 1);
        let lines = self.whole[skip..].split(|byte| *byte == b'\n').filter(|line| line.windows(6).any(|window| window == b"needle"));
        let expected: Vec<u8> = lines.flat_map(|line| [line, b"\n"].concat()).collect();
        assert_eq!(sorted(rows.concat()), sorted(expected));
    }
}

#[test]
fn every_boundary_gives_the_answers_of_the_whole() {
    let whole = "name\nneedle hay\nZ\u{fc}rich needle\n\n  two  words \nneedle".as_bytes().to_vec();
    for chunk in 1..=whole.len() as u64 + 1 {
        Case { whole: whole.clone(), chunk, redundancy: "none".into(), count: 3, order: Placement::Fixed, offset: 0 }.check(&[]);
    }
}

#[test]
fn records_on_every_boundary_are_sorted_as_the_whole() {
    // Records with equal keys must stay in their order.
    let whole: Vec<u8> = noise(1, 70).iter().enumerate().flat_map(|(n, byte)| [byte % 4, n as u8, b'x', b'y', b'z']).collect();
    let order = Order { elements: Elements::Records { length: 5, key_at: 0, key_length: 1 }, reverse: false, unique: false };
    let session = Session::local(Settings::default()).unwrap();
    let expected = session.run_bytes(&Request::sort(&order), whole.clone().into(), Part::default()).unwrap().data;
    for chunk in 1..40 {
        let case = Case { whole: whole.clone(), chunk, redundancy: "none".into(), count: 3, order: Placement::Rotating, offset: 512 };
        assert_eq!(case.striped(&[], 4096).sort(&order).unwrap().0, expected, "chunks of {chunk}");
    }
}

#[test]
fn a_chunk_without_a_break_is_too_long_for_its_head() {
    let case = Case { whole: vec![b'x'; 10_000], chunk: 4096, redundancy: "none".into(), count: 2, order: Placement::Fixed, offset: 0 };
    // The member can't give it back, and there is nothing to decode it from.
    let error = case.striped(&[], 1024).word_count(true).unwrap_err();
    assert_eq!(error.kind(), skytether_common::Kind::Exhausted, "{error}");
    // With a code, its bytes are computed on here.
    let case = Case { chunk: 4096, redundancy: "ec:2+1".into(), count: 3, ..case };
    let (counts, report) = case.striped(&[], 1024).word_count(true).unwrap();
    assert_eq!((counts.words, counts.bytes, report.decoded), (1, 10_000, 3));
}

#[test]
fn more_losses_than_parities_are_told() {
    let case = Case { whole: text(1, 5000), chunk: 64, redundancy: "ec:3+1".into(), count: 4, order: Placement::Rotating, offset: 512 };
    assert!(case.striped(&[2], 4096).word_count(true).is_ok());
    let error = case.striped(&[1, 2], 4096).word_count(true).unwrap_err();
    assert_eq!(error.kind(), skytether_common::Kind::Unavailable, "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn striped_text_gives_the_answers_of_the_whole(
        seed in any::<u64>(), length in 0usize..20_000, chunk in 1u64..3000, count in 1usize..6, rotating in any::<bool>(),
        blocks in 0u64..4
    ) {
        let order = if rotating { Placement::Rotating } else { Placement::Fixed };
        // Some hundred chunks are enough.
        let chunk = chunk.max(length as u64 / 200);
        Case { whole: text(seed, length), chunk, redundancy: "none".into(), count, order, offset: blocks * 512 }.check(&[]);
    }

    #[test]
    fn lost_members_are_decoded(
        seed in any::<u64>(), length in 1usize..20_000, chunk in 1u64..40, code in 0usize..4, rotating in any::<bool>(), first in 0usize..6,
        blocks in 0u64..4
    ) {
        let (redundancy, count, parity) = [("ec:2+1", 3, 1), ("ec:4+2", 6, 2), ("ec:3+2", 5, 2), ("replicas:3", 3, 2)][code];
        let order = if rotating { Placement::Rotating } else { Placement::Fixed };
        let chunk = (chunk * 64).max((length as u64 / 200).next_multiple_of(64));
        let lost: Vec<usize> = (0..parity).map(|n| (first + n * 2) % count).collect();
        Case { whole: text(seed, length), chunk, redundancy: redundancy.into(), count, order, offset: blocks * 512 }.check(&lost);
    }
}
