//! Word count equals `wc`.

use fastrand::Rng;
use skytether_offload::Descriptor;
use skytether_offload::codes::{opcode, tag};
use skytether_offload::operations::{Counts, words::Counter};

use crate::util::{Disk, exec, text, tool_in, wait};

fn wc(bytes: &[u8], locale: &str) -> Vec<u64> {
    let printed = String::from_utf8(tool_in(&["wc", "-l", "-w", "-m", "-c"], bytes, locale).unwrap()).unwrap();
    printed.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn counts_are_those_that_wc_prints() {
    wait(async {
        let exec = exec();
        for seed in 0..120 {
            let mut rng = Rng::with_seed(seed);
            let len = rng.usize(0..20_000);
            let bytes = if rng.u8(..4) == 0 { std::iter::repeat_with(|| rng.u8(..)).take(len).collect() } else { text(&mut rng, len) };
            let mut disk = Disk::new(1 << 20);
            let object = disk.scatter(&bytes, &mut rng).await;
            for (locale, name) in [(0, "C"), (1, "C.UTF-8")] {
                let ask = Descriptor::new(opcode::WORD_COUNT).number(tag::LOCALE, locale).input(object.clone());
                assert_eq!(disk.items(&exec, &ask).await[0].values, wc(&bytes, name), "seed {seed} {name}");
            }
        }
    });
}

/// Each character alone, and between letters, has the class that `wc` gives it.
#[test]
fn every_character_has_the_class_of_wc() {
    for step in 0..4 {
        // Characters with their places in lines: a wrong class moves the words of one line.
        let mut bytes = Vec::new();
        for character in (0x80..0x11_0000u32).skip(step).step_by(4).filter_map(char::from_u32) {
            let mut buffer = [0; 4];
            let encoded = character.encode_utf8(&mut buffer).as_bytes();
            bytes.extend_from_slice(encoded);
            bytes.push(b' ');
            bytes.push(b'a');
            bytes.extend_from_slice(encoded);
            bytes.extend_from_slice(b"b\n");
        }
        let counts = Counts::of(&bytes, true);
        assert_eq!([counts.lines, counts.words, counts.characters, counts.bytes].to_vec(), wc(&bytes, "C.UTF-8"));
    }
}

#[test]
fn pieces_of_any_length_count_as_the_whole() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let bytes = text(&mut rng, 2000);
        for utf8 in [false, true] {
            let mut counter = Counter::new(utf8);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(rng.usize(1..9).min(rest.len()));
                counter.update(piece);
                rest = later;
            }
            assert_eq!(counter.finish(), Counts::of(&bytes, utf8), "seed {seed}");
        }
    }
}
