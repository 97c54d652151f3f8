//! Sort and merge equal `sort`.

use fastrand::Rng;
use skytether_common::Kind;
use skytether_offload::codes::descriptor_flag::TO_OUTPUT;
use skytether_offload::codes::{item_flag, opcode, tag};
use skytether_offload::{Descriptor, Object, Options};

use crate::util::{Disk, exec, exec_with, text, tool_in, wait};

fn sorted(options: &[&str], bytes: &[u8]) -> Vec<u8> {
    tool_in(&[&["sort"], options].concat(), bytes, "C").unwrap()
}

/// Lines without a newline at the end of each object get one, as `sort A B` has it.
fn joined(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::new();
    for bytes in objects {
        all.extend_from_slice(bytes);
        if !bytes.is_empty() && bytes.last() != Some(&b'\n') {
            all.push(b'\n');
        }
    }
    all
}

/// With little memory, so that runs go to the scratch; and with enough.
#[test]
fn sorted_lines_are_those_that_sort_prints() {
    wait(async {
        for seed in 0..40 {
            let mut rng = Rng::with_seed(seed);
            let mut disk = Disk::new(32 << 20);
            let big = seed % 8 == 0;
            let objects: Vec<Vec<u8>> = (0..rng.usize(1..4))
                .map(|_| {
                    let len = if big { rng.usize(900_000..1_500_000) } else { rng.usize(0..30_000) };
                    text(&mut rng, len)
                })
                .collect();
            let (reverse, unique) = (rng.bool(), rng.bool());
            let mut ask = Descriptor::new(opcode::SORT_LINES).number(tag::REVERSE, reverse.into()).number(tag::UNIQUE, unique.into());
            for bytes in &objects {
                ask = ask.input(disk.scatter(bytes, &mut rng).await);
            }
            let all = joined(&objects);
            let (room, scratch) = (disk.room(all.len() as u64 + 1), disk.room(all.len() as u64 + 1));
            let exec = exec_with(Options { memory: 1 << 20, block: 4096, ..Options::default() });
            let result = disk.exec(&exec, &ask.with(TO_OUTPUT).output(room.clone()).output(scratch)).await;
            let item = &result.done().unwrap()[0];
            let mut options = vec![];
            options.extend(reverse.then_some("-r"));
            options.extend(unique.then_some("-u"));
            let expected = sorted(&options, &all);
            assert!(disk.get(&room, result.outputs[0]).await == expected, "seed {seed} {options:?}");
            assert_eq!(item.values, [expected.iter().filter(|byte| **byte == b'\n').count() as u64, expected.len() as u64]);
            assert!(item.has(item_flag::IN_OUTPUT));
        }
    });
}

#[test]
fn a_sort_that_fits_nowhere_asks_for_a_scratch() {
    wait(async {
        let mut disk = Disk::new(32 << 20);
        let object = disk.put(&b"line\n".repeat(500_000)).await;
        let room = disk.room(3 << 20);
        let exec = exec_with(Options { memory: 1 << 20, ..Options::default() });
        let failure = disk.exec(&exec, &Descriptor::new(opcode::SORT_LINES).with(TO_OUTPUT).input(object).output(room)).await.failure.unwrap();
        assert_eq!(failure.kind, Kind::Exhausted);
        assert!(failure.text.contains("scratch"), "{}", failure.text);
    });
}

/// Small results need no output object.
#[test]
fn a_short_sort_is_answered_inline() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let object = disk.put(b"c\na\nb").await;
        let item = disk.items(&exec(), &Descriptor::new(opcode::SORT_LINES).input(object)).await.remove(0);
        assert_eq!((&item.data[..], &item.values[..]), (&b"a\nb\nc\n"[..], &[3, 6][..]));
    });
}

fn records(rng: &mut Rng, count: usize, record: usize, key: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(count * record).collect();
    for element in bytes.chunks_mut(record) {
        element[key.clone()].iter_mut().for_each(|byte| *byte &= 0x11);
    }
    bytes
}

fn model(bytes: &[u8], record: usize, key: std::ops::Range<usize>, reverse: bool, unique: bool) -> Vec<u8> {
    let mut all: Vec<&[u8]> = bytes.chunks(record).collect();
    all.sort_by(|a, b| if reverse { b[key.clone()].cmp(&a[key.clone()]) } else { a[key.clone()].cmp(&b[key.clone()]) });
    if unique {
        all.dedup_by(|a, b| a[key.clone()] == b[key.clone()]);
    }
    all.concat()
}

#[test]
fn records_are_sorted_by_their_keys_and_stay_stable() {
    wait(async {
        for seed in 0..60 {
            let mut rng = Rng::with_seed(seed);
            let mut disk = Disk::new(32 << 20);
            let record = rng.usize(1..150);
            let at = rng.usize(..record);
            let length = rng.usize(..=record - at);
            let (reverse, unique) = (rng.bool(), rng.u8(..3) == 0);
            let count = if seed % 10 == 0 { 1_500_000 / record } else { rng.usize(..500) };
            let bytes = records(&mut rng, count, record, at..at + length);
            let object = disk.scatter(&bytes, &mut rng).await;
            let room = disk.room(bytes.len() as u64 + 1);
            let scratch = disk.room(bytes.len() as u64 + 1);
            let ask = Descriptor::new(opcode::SORT_RECORDS)
                .number(tag::RECORD, record as u64)
                .number(tag::KEY_AT, at as u64)
                .number(tag::KEY_LENGTH, length as u64)
                .number(tag::REVERSE, reverse.into())
                .number(tag::UNIQUE, unique.into());
            let exec = exec_with(Options { memory: 1 << 20, block: 4096, ..Options::default() });
            let result = disk.exec(&exec, &ask.with(TO_OUTPUT).input(object).output(room.clone()).output(scratch)).await;
            result.done().unwrap();
            let expected = model(&bytes, record, at..at + length, reverse, unique);
            assert!(disk.get(&room, result.outputs[0]).await == expected, "seed {seed} {record} {at} {length} {reverse} {unique}");
        }
    });
}

#[test]
fn merged_lines_are_those_of_sort_m() {
    wait(async {
        for seed in 0..40 {
            let mut rng = Rng::with_seed(seed);
            let mut disk = Disk::new(32 << 20);
            let (reverse, unique) = (rng.bool(), rng.bool());
            let order: &[&str] = if reverse { &["-r"] } else { &[] };
            let objects: Vec<Vec<u8>> = (0..rng.usize(1..9))
                .map(|_| {
                    let len = rng.usize(0..20_000);
                    sorted(order, &text(&mut rng, len))
                })
                .collect();
            let mut ask = Descriptor::new(opcode::MERGE_LINES).number(tag::REVERSE, reverse.into()).number(tag::UNIQUE, unique.into());
            for bytes in &objects {
                ask = ask.input(disk.scatter(bytes, &mut rng).await);
            }
            let all = objects.concat();
            let found = disk.output(&exec(), ask, all.len() as u64 + 1).await;
            let options = [order, if unique { &["-u"] } else { &[] }].concat();
            assert!(found == sorted(&options, &all), "seed {seed} {options:?}");
        }
    });
}

#[test]
fn merged_records_are_the_sorted_whole() {
    wait(async {
        let mut rng = Rng::with_seed(1);
        let mut disk = Disk::new(8 << 20);
        let parts: Vec<Vec<u8>> = (0..5).map(|_| model(&records(&mut rng, 700, 20, 4..8), 20, 4..8, false, false)).collect();
        let mut ask = Descriptor::new(opcode::MERGE_RECORDS).number(tag::RECORD, 20).number(tag::KEY_AT, 4).number(tag::KEY_LENGTH, 4);
        for part in &parts {
            ask = ask.input(disk.scatter(part, &mut rng).await);
        }
        let found = disk.output(&exec(), ask, 1 << 20).await;
        assert!(found == model(&parts.concat(), 20, 4..8, false, false));
    });
}

#[test]
fn merges_refuse_inputs_that_are_not_sorted() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let (one, other) = (disk.put(b"a\nb\n").await, disk.put(b"b\na\n").await);
        let failure = disk.exec(&exec(), &Descriptor::new(opcode::MERGE_LINES).input(one).input(other)).await.failure.unwrap();
        assert_eq!(failure.kind, Kind::Invalid);
        assert!(failure.text.contains("input object 1"), "{}", failure.text);
    });
}

#[test]
fn records_that_are_cut_are_refused() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let object = disk.put(&[1; 99]).await;
        for opcode in [opcode::SORT_RECORDS, opcode::MERGE_RECORDS] {
            let ask = Descriptor::new(opcode).number(tag::RECORD, 10).input(object.clone());
            assert_eq!(disk.exec(&exec(), &ask).await.failure.unwrap().kind, Kind::Invalid);
            let ask = Descriptor::new(opcode).number(tag::RECORD, 10).number(tag::KEY_AT, 5).number(tag::KEY_LENGTH, 6).input(Object::default());
            assert_eq!(disk.exec(&exec(), &ask).await.failure.unwrap().kind, Kind::Invalid);
        }
    });
}

/// The memory of a merge is for all its inputs together.
#[test]
fn merges_of_many_long_elements_are_refused() {
    wait(async {
        let exec = exec_with(Options { memory: 1 << 20, block: 4096, ..Options::default() });
        let mut disk = Disk::new(4 << 20);
        let element = disk.put(&[b'x'; 100_000]).await;
        for (ask, most) in [(Descriptor::new(opcode::MERGE_LINES), 2), (Descriptor::new(opcode::MERGE_RECORDS).number(tag::RECORD, 100_000), 2)] {
            let inputs = |count| (0..count).fold(ask.clone(), |ask, _| ask.input(element.clone()));
            assert!(disk.exec(&exec, &inputs(most)).await.failure.is_none());
            assert_eq!(disk.exec(&exec, &inputs(most + 1)).await.failure.unwrap().kind, Kind::Exhausted);
        }
    });
}

/// A client may ask for less memory than a sort needs at least.
#[test]
fn a_sort_with_hardly_any_memory_takes_the_least() {
    wait(async {
        let mut disk = Disk::new(16 << 20);
        let bytes = text(&mut Rng::with_seed(1), 1 << 20);
        let object = disk.put(&bytes).await;
        let (room, scratch) = (disk.room(2 << 20), disk.room(2 << 20));
        let ask = Descriptor { memory: 1, ..Descriptor::new(opcode::SORT_LINES).with(TO_OUTPUT).input(object) };
        let result = disk.exec(&exec(), &ask.output(room.clone()).output(scratch)).await;
        result.done().unwrap();
        assert!(disk.get(&room, result.outputs[0]).await == sorted(&[], &bytes));
    });
}

/// A sort ends before it writes more runs than it can merge, by their number and by their longest elements.
#[test]
fn sorts_of_more_runs_than_fit_are_refused() {
    wait(async {
        let exec = exec_with(Options { memory: 1 << 20, block: 4096, ..Options::default() });
        let mut disk = Disk::new(64 << 20);
        let mut lines = vec![b'x'; 200_000];
        lines.push(b'\n');
        let object = disk.put(&lines.repeat(10)).await;
        let (room, scratch) = (disk.room(2_000_010), disk.room(2_000_010));
        let ask = Descriptor::new(opcode::SORT_LINES).with(TO_OUTPUT).input(object).output(room).output(scratch);
        let failure = disk.exec(&exec, &ask).await.failure.unwrap();
        assert_eq!(failure.kind, Kind::Exhausted);
        assert!(failure.text.contains("2 runs"), "{}", failure.text);
    });
}

/// Heads and tails are bounded before they are all in memory, and so is each one.
#[test]
fn heads_and_tails_of_a_sort_are_bounded() {
    wait(async {
        let mut disk = Disk::new(4 << 20);
        let object = disk.put(&[b'x'; 200_000]).await.chunk(0, false, true);
        let ask = Descriptor { result: 1 << 20, ..Descriptor::new(opcode::SORT_LINES) };
        let failure = disk.exec(&exec(), &(0..100).fold(ask, |ask, _| ask.input(object.clone()))).await.failure.unwrap();
        assert_eq!(failure.kind, Kind::Exhausted);
        assert!(failure.text.contains("tails of 6 chunks"), "{}", failure.text);
        let object = disk.put(&[b'x'; 300_000]).await;
        for chunk in [object.clone().chunk(0, false, true), object.chunk(700_000, true, false)] {
            let ask = Descriptor::new(opcode::SORT_RECORDS).number(tag::RECORD, 1_000_000).input(chunk);
            assert_eq!(disk.exec(&exec(), &ask).await.failure.unwrap().kind, Kind::Exhausted);
        }
    });
}
