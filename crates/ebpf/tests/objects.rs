//! Programs of clang: what they compute, and that committed objects are those of their sources.

use std::path::{Path, PathBuf};
use std::process::Command;

use skytether_ebpf::{Cause, Limits, load};

use crate::drive::{Values, both, small};

/// The object of a source in the same folder: compiled if there is a compiler, else the committed one.
fn objects(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects");
    let committed = std::fs::read(folder.join(format!("{name}.o"))).unwrap();
    let Some(compiler) = compiler() else { return vec![committed] };
    let to = tempfile::NamedTempFile::new().unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut command = Command::new(compiler);
    command.args(["-target", "bpf", "-mcpu=v3", "-O2", "-c", "-I"]).arg(include).arg(folder.join(format!("{name}.c"))).arg("-o").arg(to.path());
    assert!(command.status().unwrap().success(), "{command:?}");
    vec![committed, std::fs::read(to.path()).unwrap()]
}

fn compiler() -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join("clang-14")).find(|path| path.exists())
}

/// 100 records of 48 bytes, whose energy (a float at byte 44) is their number less 50, halved.
fn particles() -> Vec<u8> {
    (0..100u32).flat_map(|i| [&[i as u8; 44][..], &((i as f32 - 50.0) / 2.0).to_le_bytes()].concat()).collect()
}

#[test]
fn filter_emits_the_records_above_the_threshold() {
    let records = particles();
    for object in objects("filter") {
        let program = load(&object).unwrap();
        let host = Values::with(&[("p/0", &records)]);
        let run = |key: &[u8], threshold: f64| both(&program, &[key, &threshold.to_le_bytes()], &host, &Limits::default()).0.unwrap();
        let outcome = run(b"p/0", 20.25);
        assert_eq!((outcome.exit_code, &outcome.output[..]), (0, records.get(91 * 48..).unwrap()));
        assert!(outcome.instructions > 200 && outcome.instructions < 2000, "{}", outcome.instructions);
        assert_eq!(run(b"p/0", f64::NAN).output.len(), 0);
        assert_eq!(run(b"p/0", -25.0).output, records.get(48..).unwrap());
        assert_eq!(run(b"p/1", 0.0).exit_code, 1);
        assert_eq!(both(&program, &[], &host, &Limits::default()).0.unwrap().exit_code, 2);
    }
}

#[test]
fn aggregate_covers_all_values_of_a_prefix() {
    let column = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let host = Values::with(&[
        ("a", &column(&[1_000_000])),
        ("c/1", &column(&[5, -7, 2])),
        ("c/2", &[]),
        ("c/3", &column(&(0..1000).collect::<Vec<_>>())),
        ("d", &column(&[-1_000_000])),
    ]);
    for object in objects("aggregate") {
        let program = load(&object).unwrap();
        // Variables begin again, so the second run gives the same.
        for _ in 0..2 {
            let outcome = both(&program, &[b"c/"], &host, &small()).0.unwrap();
            let words: Vec<i64> = outcome.output.chunks(8).map(|word| i64::from_le_bytes(word.try_into().unwrap())).collect();
            assert_eq!((outcome.exit_code, words), (0, vec![1003, 499_500, -7, 999, 0]));
        }
        let outcome = both(&program, &[b"x/"], &host, &small()).0.unwrap();
        assert_eq!((outcome.exit_code, &outcome.stdout[..], outcome.output.len()), (1, &b"no keys\n"[..], 0));
    }
}

#[test]
fn words_are_counted_and_messages_found_by_pointers() {
    let host = Values::with(&[("text", b"  the quick\tbrown fox\n jumps "), ("empty", b"")]);
    for object in objects("words") {
        let program = load(&object).unwrap();
        for (arguments, code, printed) in
            [(&[&b"text"[..]][..], 0, &b"5\n"[..]), (&[b"empty"], 0, b"0\n"), (&[b"none"], 1, b"no such key\n"), (&[], 2, b"no argument\n")]
        {
            let outcome = both(&program, arguments, &host, &small()).0.unwrap();
            assert_eq!((outcome.exit_code, &outcome.stdout[..]), (code, printed));
        }
    }
}

#[test]
fn note_puts_the_kind_of_a_change_under_its_key() {
    for object in objects("note") {
        let (program, host) = (load(&object).unwrap(), Values::default());
        let outcome = both(&program, &[b"seen", b"key", b"PUT"], &host, &small()).0.unwrap();
        assert_eq!((outcome.exit_code, &outcome.stdout[..]), (0, &b"PUT"[..]));
        assert_eq!(both(&program, &[b"seen", b"key"], &host, &small()).0.unwrap().exit_code, 2);
    }
}

/// clang relies on what 32-bit operations do with the upper half of a register.
#[test]
fn arithmetic_gives_what_rust_computes() {
    for object in objects("arithmetic") {
        let program = load(&object).unwrap();
        let numbers = [0, 1, 2, 6, 31, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffb, u32::MAX, 0xdead_beef];
        for (a, b) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
            let outcome = both(&program, &[&[a.to_le_bytes(), b.to_le_bytes()].concat()], &Values::default(), &small()).0.unwrap();
            let words: Vec<u64> = outcome.output.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            let expected: Vec<u64> = vec![
                u64::from(a.wrapping_add(b)),
                u64::from(a.wrapping_sub(b)),
                u64::from(a.wrapping_mul(b)),
                u64::from(a.wrapping_add(5)),
                u64::from(a.wrapping_sub(7)),
                u64::from(a.checked_div(b).unwrap_or(0)),
                u64::from(a.checked_rem(b).unwrap_or(0)),
                i64::from(a.cast_signed() >> (b & 31)) as u64,
                u64::from(a << (b & 31)),
                u64::from(a.swap_bytes()),
            ];
            assert_eq!(words, expected, "{a:#x}, {b:#x}");
        }
    }
}

#[test]
fn scans_by_record_and_by_helper_agree() {
    let records: Vec<u8> = (0..1000u32).flat_map(|i| [&[0; 20][..], &i.wrapping_mul(2_654_435_761).to_le_bytes(), &[0; 24]].concat()).collect();
    let constant = 3_000_000_000u32;
    let expected = (0..1000u32).filter(|i| i.wrapping_mul(2_654_435_761) > constant).count() as u64;
    for name in ["scan", "bulk"] {
        for object in objects(name) {
            let host = Values::with(&[("r", &records)]);
            let outcome = both(&load(&object).unwrap(), &[b"r", &constant.to_le_bytes()], &host, &Limits::default()).0.unwrap();
            assert_eq!(&outcome.output[..], expected.to_le_bytes(), "{name}");
        }
    }
}

#[test]
fn particles_of_all_values_are_searched() {
    let records = particles();
    let (first, rest) = records.split_at(60 * 48);
    let host = Values::with(&[("p", b"no"), ("p/0", first), ("p/1", rest), ("q", b"no")]);
    for name in ["particles", "particles_scan"] {
        for object in objects(name) {
            let outcome = both(&load(&object).unwrap(), &[b"p/", &20.25_f64.to_le_bytes()], &host, &Limits::default()).0.unwrap();
            let found: Vec<u8> = outcome.output.chunks(48).map(|record| record[0]).collect();
            let expected: Vec<u8> = (91..100).collect();
            assert_eq!((outcome.exit_code, found), (0, expected), "{name}");
        }
    }
}

/// The search record by record finds what the bulk helper and Rust find, for floats and thresholds of any kind.
#[test]
fn search_by_record_compares_any_floats() {
    let tiny = f32::from_bits(1);
    let energies = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0, tiny, -tiny, 0.1, -0.1, 1.5, -1.5];
    let records: Vec<u8> = energies.iter().enumerate().flat_map(|(i, energy)| [&[i as u8; 44][..], &energy.to_le_bytes()].concat()).collect();
    let host = Values::with(&[("p/0", &records)]);
    let close = [0.1, -0.1, f64::from(0.1_f32), f64::from(-0.1_f32), 1.5, -1.5, 1e-60, -1e-60, 1e300, -1e300];
    let thresholds = energies.iter().map(|energy| f64::from(*energy)).chain(close);
    for threshold in thresholds {
        let expected: Vec<u8> = (0..).zip(energies).filter(|(_, energy)| f64::from(*energy) > threshold).map(|(i, _)| i).collect();
        for name in ["particles", "particles_scan"] {
            for object in objects(name) {
                let outcome = both(&load(&object).unwrap(), &[b"p/", &threshold.to_le_bytes()], &host, &Limits::default()).0.unwrap();
                let found: Vec<u8> = outcome.output.chunks(48).map(|record| record[0]).collect();
                assert_eq!((outcome.exit_code, &found), (0, &expected), "{name}: above {threshold:e}");
            }
        }
    }
}

#[test]
fn variables_count_towards_the_scratch_limit() {
    let program = load(include_bytes!("objects/aggregate.o")).unwrap();
    let limits = Limits { scratch_bytes: 100, ..small() };
    let found = both(&program, &[b"c/"], &Values::default(), &limits).0.unwrap_err();
    assert!(matches!(found.cause, Cause::ScratchLimit { limit: 100 }) && found.instruction.is_none(), "{found}");
}

/// The sources of refused objects, compiled again, are refused as well.
#[test]
fn refused_sources_are_refused_when_compiled() {
    let Some(_) = compiler() else { return };
    for name in ["maps", "undefined", "variable", "section", "pointer", "atomic", "large", "entries"] {
        for object in objects(&format!("refused_{name}")) {
            assert!(load(&object).is_err(), "{name}");
        }
    }
}
