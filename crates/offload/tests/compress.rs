//! Compression: what one side writes, the system's tools read, and the other way round.

use fastrand::Rng;
use skytether_common::Kind;
use skytether_offload::codes::descriptor_flag::TO_OUTPUT;
use skytether_offload::codes::{opcode, tag};
use skytether_offload::{Descriptor, Options};

use crate::util::{Disk, exec, exec_with, text, tool, wait};

const CODECS: [(u16, u16, &str); 2] = [(opcode::COMPRESS_ZSTD, opcode::DECOMPRESS_ZSTD, "zstd"), (opcode::COMPRESS_LZ4, opcode::DECOMPRESS_LZ4, "lz4")];

/// What a program printed. Where it is not installed, that is said, or a failure where all tests are required.
fn installed<T>(program: &str, printed: Option<T>) -> Option<T> {
    if printed.is_none() {
        assert_ne!(std::env::var("SKYTETHER_BLOCK").as_deref(), Ok("required"), "{program} is not installed");
        eprintln!("skipped: {program} is not installed");
    }
    printed
}

#[test]
fn the_systems_tools_read_what_is_compressed() {
    wait(async {
        for seed in 0..16 {
            let mut rng = Rng::with_seed(seed);
            let len = rng.usize(0..300_000);
            let bytes = text(&mut rng, len);
            for (compress, _, program) in CODECS {
                let mut disk = Disk::new(4 << 20);
                let object = disk.scatter(&bytes, &mut rng).await;
                let mut ask = Descriptor::new(compress).input(object);
                if program == "zstd" {
                    ask = ask.number(tag::LEVEL, rng.u64(..13));
                }
                let found = disk.output(&exec(), ask, 1 << 20).await;
                let Some(plain) = installed(program, tool(&[program, "-d", "-c"], &found)) else { continue };
                assert!(plain == bytes, "seed {seed} {program}");
            }
        }
    });
}

/// Also frames one after the other, as `cat a.zst b.zst` makes them.
#[test]
fn what_the_systems_tools_compressed_is_read() {
    wait(async {
        for seed in 0..16 {
            let mut rng = Rng::with_seed(seed);
            let parts: Vec<Vec<u8>> = (0..rng.usize(1..4))
                .map(|_| {
                    let len = rng.usize(0..200_000);
                    text(&mut rng, len)
                })
                .collect();
            for (_, decompress, program) in CODECS {
                let frames: Option<Vec<Vec<u8>>> = parts.iter().map(|part| tool(&[program, "-c"], part)).collect();
                let Some(frames) = installed(program, frames) else { continue };
                let mut disk = Disk::new(4 << 20);
                let object = disk.scatter(&frames.concat(), &mut rng).await;
                let found = disk.output(&exec(), Descriptor::new(decompress).input(object), 1 << 20).await;
                assert!(found == parts.concat(), "seed {seed} {program}");
            }
        }
    });
}

/// Several inputs, each to its output; and short ones inline. Values say how many bytes came and went.
#[test]
fn a_batch_comes_back_as_it_went() {
    wait(async {
        for (compress, decompress, program) in CODECS {
            let mut rng = Rng::with_seed(3);
            let mut disk = Disk::new(16 << 20);
            let all: Vec<Vec<u8>> = (0..5).map(|n| text(&mut rng, 10_000 * n)).collect();
            let mut ask = Descriptor::new(compress).with(TO_OUTPUT);
            let mut rooms = Vec::new();
            for bytes in &all {
                ask = ask.input(disk.scatter(bytes, &mut rng).await).output(disk.room(60_000));
                rooms.push(ask.outputs.last().unwrap().clone());
            }
            let result = disk.exec(&exec(), &ask).await;
            let mut back = Descriptor::new(decompress);
            for ((room, written), (item, bytes)) in rooms.into_iter().zip(&result.outputs).zip(result.items.iter().zip(&all)) {
                assert_eq!(item.done().unwrap().values, [bytes.len() as u64, *written], "{program}");
                back = back.input(skytether_offload::Object { length: *written, ..room });
            }
            let found: Vec<Vec<u8>> = disk.items(&exec(), &back).await.into_iter().map(|item| item.data.to_vec()).collect();
            assert!(found == all, "{program}");
        }
    });
}

/// Damage of one object does not hide the others.
#[test]
fn damaged_frames_fail_alone() {
    wait(async {
        for (compress, decompress, program) in CODECS {
            let mut disk = Disk::new(4 << 20);
            let object = disk.put(&b"some text ".repeat(1000)).await;
            let frame = disk.items(&exec(), &Descriptor::new(compress).input(object)).await[0].data.to_vec();
            let mut broken = frame.clone();
            let at = broken.len() / 2;
            broken[at] ^= 0x55;
            let (right, flipped, cut) = (disk.put(&frame).await, disk.put(&broken).await, disk.put(&frame[..frame.len() - 3]).await);
            let items = disk.exec(&exec(), &Descriptor::new(decompress).input(flipped).input(right).input(cut)).await.items;
            assert_eq!(items[0].failure.as_ref().unwrap().kind, Kind::Corrupt, "{program}");
            assert_eq!(items[1].data, b"some text ".repeat(1000), "{program}");
            assert_eq!(items[2].failure.as_ref().unwrap().kind, Kind::Corrupt, "{program}");
        }
    });
}

/// Right frames are not called damaged: those of users are skipped, and too large windows are too much.
#[test]
fn right_frames_are_never_called_damaged() {
    wait(async {
        for (compress, decompress, program) in CODECS {
            let mut disk = Disk::new(4 << 20);
            let plain = disk.put(b"some text").await;
            let frame = disk.items(&exec(), &Descriptor::new(compress).input(plain)).await[0].data.clone();
            let skipped = [&[0x5a, 0x2a, 0x4d, 0x18][..], &9000u32.to_le_bytes(), &[7; 9000]].concat();
            let object = disk.put(&[&skipped[..], &frame, &skipped, &frame, &skipped].concat()).await;
            let item = disk.items(&exec(), &Descriptor::new(decompress).input(object)).await.remove(0);
            assert_eq!(item.data, "some textsome text", "{program}");
            let cut = disk.put(&[&frame, &skipped[..5000]].concat()).await;
            let failed = disk.exec(&exec(), &Descriptor::new(decompress).input(cut)).await.items.remove(0).failure.unwrap();
            assert_eq!(failed.kind, Kind::Corrupt, "{program}: {}", failed.text);
        }
        // A window of 1 GiB, and a block that ends the frame.
        let mut disk = Disk::new(1 << 20);
        let wide = disk.put(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa0, 0x09, 0x00, 0x00, b'x']).await;
        let failed = disk.exec(&exec(), &Descriptor::new(opcode::DECOMPRESS_ZSTD).input(wide)).await.items.remove(0).failure.unwrap();
        assert_eq!(failed.kind, Kind::Exhausted, "{}", failed.text);
    });
}

/// A small frame that gives gigabytes ends at its output's end, or at the result's.
#[test]
fn a_bomb_ends_where_there_is_no_room() {
    wait(async {
        for (compress, decompress, program) in CODECS {
            let exec = exec_with(Options { result: 1 << 20, ..Options::default() });
            let mut disk = Disk::new(4 << 20);
            let zeros = skytether_offload::Object::new(64 << 20, vec![skytether_offload::Extent::hole(64 << 20)]);
            let frame = disk.items(&exec, &Descriptor::new(compress).input(zeros)).await[0].data.clone();
            let object = disk.put(&frame).await;
            let failed = disk.exec(&exec, &Descriptor::new(decompress).input(object.clone())).await.items.remove(0).failure.unwrap();
            assert_eq!(failed.kind, Kind::Exhausted, "{program}: {}", failed.text);
            let room = disk.room(100_000);
            let failed = disk.exec(&exec, &Descriptor::new(decompress).input(object).with(TO_OUTPUT).output(room)).await.items.remove(0).failure.unwrap();
            assert_eq!(failed.kind, Kind::Exhausted, "{program}: {}", failed.text);
        }
    });
}
