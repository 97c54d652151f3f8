//! Descriptors of strangers: whatever they are, EXEC answers within its bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use skytether_common::Kind;
use skytether_offload::codes::descriptor_flag::TO_OUTPUT;
use skytether_offload::codes::{HOLE, opcode, tag};
use skytether_offload::wire::seal;
use skytether_offload::{Argument, Descriptor, ExecResult, Extent, Object, Options, Value};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Durability, Exec};
use tokio_util::sync::CancellationToken;

use crate::util::{exec_with, text, wait};

const SIZE: u64 = 1 << 20;
const OPCODES: &[u16] = &[
    opcode::CRC32C,
    opcode::CRC32,
    opcode::CRC64_NVME,
    opcode::MD5,
    opcode::SHA256,
    opcode::BLAKE3,
    opcode::HIGHWAY256,
    opcode::VERIFY_FRAMED,
    opcode::SEARCH,
    opcode::WORD_COUNT,
    opcode::SORT_LINES,
    opcode::SORT_RECORDS,
    opcode::MERGE_LINES,
    opcode::MERGE_RECORDS,
    opcode::COMPRESS_ZSTD,
    opcode::DECOMPRESS_ZSTD,
    opcode::COMPRESS_LZ4,
    opcode::DECOMPRESS_LZ4,
    opcode::QUERY,
    0x7777,
];

fn number(rng: &mut Rng, most: u64) -> u64 {
    match rng.u8(..40) {
        0 => HOLE,
        1 => i64::MAX as u64,
        2 => rng.u64(..),
        3 => most.wrapping_add(1),
        _ => rng.u64(..=most),
    }
}

fn object(rng: &mut Rng, output: bool) -> Object {
    let extents: Vec<Extent> = (0..rng.usize(..4))
        .map(|_| {
            let place = if !output && rng.u8(..5) == 0 { HOLE } else { number(rng, SIZE / 512 - 1).wrapping_mul(512) };
            Extent::new(place, number(rng, 30).wrapping_add(1).wrapping_mul(512))
        })
        .collect();
    let covered = extents.iter().fold(0u64, |sum, extent| sum.wrapping_add(extent.length)) & i64::MAX as u64;
    let length = number(rng, covered);
    if output {
        return Object::new(length, extents);
    }
    let begin = if rng.bool() { 0 } else { number(rng, length) };
    Object {
        begin,
        resume: if rng.u8(..8) == 0 { begin } else { 0 },
        position: number(rng, 99),
        flags: if rng.bool() { 0 } else { rng.u32(..4) },
        ..Object::new(length, extents)
    }
}

fn descriptor(rng: &mut Rng) -> Descriptor {
    let mut ask = Descriptor::new(OPCODES[rng.usize(..OPCODES.len())]);
    ask.time = if rng.u8(..4) == 0 { rng.u32(..5) } else { 0 };
    ask.memory = if rng.u8(..4) == 0 { rng.u64(..1 << 21) } else { 0 };
    ask.result = if rng.u8(..4) == 0 { rng.u64(..5000) } else { 0 };
    match ask.opcode {
        opcode::HIGHWAY256 => ask = ask.bytes(tag::KEY, vec![7; 32]),
        opcode::VERIFY_FRAMED => ask = ask.number(tag::ALGORITHM, number(rng, 0x13)).number(tag::FRAME, number(rng, 5000)),
        opcode::SEARCH => {
            let patterns = ["a", "(a|b)*", "", "\\b\\w+\\b", "(?i)é|x", "a{1,50}{1,50}", "[^\\n]*", "(", "\\xff", "^|$", "(?-u)\\xff+"];
            ask = ask.text(tag::REGEX, patterns[rng.usize(..patterns.len())]).number(tag::MODE, number(rng, 4)).number(tag::MOST, number(rng, 100));
        }
        opcode::SORT_RECORDS | opcode::MERGE_RECORDS => ask = ask.number(tag::RECORD, number(rng, 300)).number(tag::KEY_AT, number(rng, 5)),
        _ => {}
    }
    if rng.u8(..10) == 0 {
        let value = match rng.u8(..3) {
            0 => Value::Number(number(rng, 5)),
            1 => Value::Bytes(vec![rng.u8(..); rng.usize(..40)].into()),
            _ => Value::Text("x".repeat(rng.usize(..9))),
        };
        ask.arguments.push(Argument { tag: rng.u16(..20), value });
    }
    ask.inputs = (0..rng.usize(..4)).map(|_| object(rng, false)).collect();
    if rng.u8(..3) == 0 {
        let outputs = if rng.bool() { ask.inputs.len() } else { rng.usize(..3) };
        ask.outputs = (0..outputs).map(|_| object(rng, true)).collect();
        ask = ask.with(TO_OUTPUT);
    }
    ask
}

/// Of 100,000 descriptors, a third is of random bytes, a third is changed, and a third keeps the rules of the format.
/// No panic is caught inside either: one would be an internal error.
#[test]
fn descriptors_of_strangers_are_answered_within_bounds() {
    let options =
        Options { result: 64 << 10, memory: 2 << 20, block: 16 << 10, time: Duration::from_secs(2), bytes: 4 << 20, line: 100_000, ..Options::default() };
    let exec = exec_with(options);
    wait(async {
        let mut rng = Rng::with_seed(27);
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("disk", SIZE));
        let content = text(&mut rng, SIZE as usize);
        device.write(0, content.into(), Durability::Cached).await.unwrap();
        let (mut answered, mut failed, mut refused) = (0, 0, 0);
        for turn in 0..100_000 {
            let bytes = match turn % 3 {
                0 => (0..rng.usize(..300)).map(|_| rng.u8(..)).collect(),
                _ => {
                    let Ok(bytes) = descriptor(&mut rng).encode() else {
                        refused += 1;
                        continue;
                    };
                    let mut bytes = bytes.to_vec();
                    if turn % 3 == 1 {
                        for _ in 0..rng.usize(1..4) {
                            let at = rng.usize(..bytes.len());
                            bytes[at] = [0, 1, 0x7f, 0xff, rng.u8(..)][rng.usize(..5)];
                        }
                        bytes.truncate(if rng.u8(..8) == 0 { rng.usize(..=bytes.len()) } else { bytes.len() });
                        seal(&mut bytes, 12);
                    }
                    bytes
                }
            };
            match exec.run(device.clone(), Bytes::from(bytes), CancellationToken::new()).await {
                Ok(result) => {
                    assert!(result.len() <= 64 << 10);
                    let result = ExecResult::decode(&result).unwrap();
                    let all = result.items.iter().map(|item| &item.failure).chain([&result.failure]);
                    for failure in all.flatten() {
                        assert_ne!(failure.kind, Kind::Internal, "turn {turn}: {}", failure.text);
                    }
                    if result.failure.is_none() { answered += 1 } else { failed += 1 }
                }
                Err(error) => {
                    assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "turn {turn}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(answered > 5000 && failed > 1000 && refused > 10_000, "{answered} {failed} {refused}");
    });
}
