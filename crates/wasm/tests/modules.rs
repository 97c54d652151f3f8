//! Programs that clang compiled from the C files in `modules`.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use skytether_wasm::{Limits, load, run};

use crate::drive::{Values, run_within};

const WORDS: &[u8] = include_bytes!("modules/words.wasm");
const FILTER: &[u8] = include_bytes!("modules/filter.wasm");
const SCAN: &[u8] = include_bytes!("modules/scan.wasm");
const BULK: &[u8] = include_bytes!("modules/bulk.wasm");

#[test]
fn words_of_a_value_are_counted() {
    let words = load(WORDS).unwrap();
    let long = "word ".repeat(100_000);
    let mut host = Values::with(&[("text", b"to be or not  to\nbe "), ("empty", b""), ("long", long.as_bytes())]);
    for (key, code, printed) in [("text", 0, "6\n"), ("empty", 0, "0\n"), ("long", 0, "100000\n"), ("absent", 1, "no such key\n")] {
        let outcome = run_within(&words, &[key.as_bytes()], &mut host, &Limits::default()).unwrap();
        assert_eq!((outcome.exit_code, &outcome.stdout[..]), (code, printed.as_bytes()), "{key}");
    }
    assert_eq!(run_within(&words, &[], &mut host, &Limits::default()).unwrap().exit_code, 2);
}

#[test]
fn filter_emits_the_records_above_a_threshold() {
    let record = |energy: f32| [&[7; 44][..], &energy.to_le_bytes()[..]].concat();
    let energies = [0.5, 2.5, f32::NAN, 1.0, 9.0];
    let particles: Vec<u8> = energies.into_iter().flat_map(record).collect();
    let mut host = Values::with(&[("particles", &particles)]);
    let outcome = run_within(&load(FILTER).unwrap(), &[b"particles", &1.5f64.to_le_bytes()], &mut host, &Limits::default()).unwrap();
    assert_eq!((outcome.exit_code, &outcome.output[..]), (0, &[record(2.5), record(9.0)].concat()[..]));
}

#[test]
fn bulk_and_single_records_give_the_same() {
    let mut random = fastrand::Rng::with_seed(5);
    let records: Vec<u8> = (0..10_000 * 12).flat_map(|_| random.u32(..).to_le_bytes()).collect();
    let above = 3_000_000_000u32;
    let field = |record: &[u8]| u32::from_le_bytes(record[20..24].try_into().unwrap());
    let expected = records.chunks_exact(48).filter(|record| field(record) > above).count() as u64;
    let mut host = Values::with(&[("r", &records)]);
    for module in [SCAN, BULK] {
        let outcome = run_within(&load(module).unwrap(), &[b"r", &above.to_le_bytes()], &mut host, &Limits::default()).unwrap();
        assert_eq!((outcome.exit_code, &outcome.output[..]), (0, &expected.to_le_bytes()[..]));
    }
}

#[test]
fn value_larger_than_memory_is_read_in_pieces() {
    let mut host = Values::default();
    host.0.insert(b"r".to_vec(), vec![0; 65 << 20].into());
    let arguments = [Bytes::from_static(b"r"), Bytes::from_static(&[0; 4])];
    let outcome = run(&load(WORDS).unwrap(), &arguments, &mut host, &Limits::default(), &AtomicBool::new(false)).unwrap();
    assert_eq!(outcome.exit_code, 1);
    // What reads it in pieces, or in place, needs no memory for it.
    for module in [SCAN, BULK] {
        let outcome = run(&load(module).unwrap(), &arguments, &mut host, &Limits::default(), &AtomicBool::new(false)).unwrap();
        assert_eq!((outcome.exit_code, &outcome.output[..]), (0, &[0; 8][..]));
    }
}
