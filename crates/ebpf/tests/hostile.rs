//! Generated objects and instructions: each gives a program or an error, and each run ends within its limits.
//!
//! Runs of both engines must agree, so a difference between them is found as well.

use bytes::Bytes;
use skytether_ebpf::{Cause, Engine, Limits, Program, load, run_on};

use crate::drive::{Values, both, small};

/// How many cases: some thousand with each test run, or as many as `SKYTETHER_EBPF_CASES` says.
fn cases() -> u64 {
    std::env::var("SKYTETHER_EBPF_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(3000)
}

fn host() -> Values {
    Values::with(&[("key", b"value"), ("large", &[7; 6000]), ("secret", b"x")])
}

fn limits() -> Limits {
    Limits { instructions: 20_000, ..small() }
}

/// Runs `program` in both engines. What it holds at the end is within the limits.
fn run(program: &Program) {
    let (result, _) = both(program, &[b"key", b"large"], &host(), &limits());
    let (used, stdout) = match &result {
        Ok(outcome) => {
            assert!(outcome.output.len() <= 1000);
            (outcome.instructions, &outcome.stdout)
        }
        Err(trap) => {
            assert!(!matches!(trap.cause, Cause::Internal(_)), "{trap}");
            (trap.instructions, &trap.stdout)
        }
    };
    assert!(used <= 20_000 && stdout.len() <= 100, "{result:?}");
}

const OBJECTS: [&[u8]; 8] = [
    include_bytes!("objects/filter.o"),
    include_bytes!("objects/aggregate.o"),
    include_bytes!("objects/words.o"),
    include_bytes!("objects/scan.o"),
    include_bytes!("objects/bulk.o"),
    include_bytes!("objects/arithmetic.o"),
    include_bytes!("objects/refused_core.o"),
    include_bytes!("objects/refused_pointer.o"),
];

#[test]
fn random_bytes_are_no_object() {
    for seed in 0..cases() {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes: Vec<u8> = (0..random.usize(..400)).map(|_| random.u8(..)).collect();
        if random.bool() {
            // Far enough for the parser to look at more than the first bytes.
            let head = OBJECTS[0].get(..64).unwrap();
            let length = bytes.len().min(64);
            bytes.splice(..length, head.iter().copied());
        }
        if let Ok(program) = load(&bytes) {
            run(&program);
        }
    }
}

#[test]
fn damaged_objects_are_refused_or_run_within_limits() {
    let mut loaded = 0;
    for seed in 0..cases() {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = OBJECTS[random.usize(..OBJECTS.len())].to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..6) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] ^= 1 << random.u8(..8),
                2 => bytes[at] = random.u8(..),
                3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
                4 => {
                    let from = random.usize(..bytes.len());
                    let length = random.usize(..32).min(bytes.len() - at.max(from));
                    bytes.copy_within(from..from + length, at);
                }
                _ => {
                    let length = 8.min(bytes.len() - at);
                    bytes[at..at + length].copy_from_slice(&random.u64(..).to_le_bytes()[..length]);
                }
            }
        }
        if let Ok(program) = load(&bytes) {
            loaded += 1;
            run(&program);
        }
    }
    assert!(loaded * 20 > cases(), "only {loaded} objects were loaded: the changes are too wild");
}

/// An instruction that is often well formed.
fn instruction(random: &mut fastrand::Rng, length: usize) -> Vec<[u8; 8]> {
    let choose = |random: &mut fastrand::Rng, from: &[u8]| from[random.usize(..from.len())];
    let (to, from) = (random.u8(..10), random.u8(..11));
    let registers = from << 4 | to;
    let small = |random: &mut fastrand::Rng| if random.u8(..4) == 0 { random.i32(..) } else { random.i32(-70..70) };
    let jump = random.i16(-(length as i16)..length as i16);
    let word = |opcode: u8, registers: u8, offset: i16, immediate: i32| {
        let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), immediate.to_le_bytes());
        [opcode, registers, a, b, c, d, e, f]
    };
    match random.u8(..14) {
        0..=3 => {
            let operation = random.u8(..13) << 4;
            let class = choose(random, &[0x04, 0x07, 0x0c, 0x0f]);
            let immediate = if class & 8 == 0 { small(random) } else { 0 };
            vec![word(operation | class, registers, 0, immediate)]
        }
        4 | 5 => vec![word(choose(random, &[0x61, 0x69, 0x71, 0x79]), registers, small(random) as i16, 0)],
        6 | 7 => vec![word(choose(random, &[0x62, 0x6a, 0x72, 0x7a, 0x63, 0x6b, 0x73, 0x7b]), from | to << 4, small(random) as i16, small(random))],
        8 => vec![word(random.u8(..14) << 4 | choose(random, &[0x05, 0x06, 0x0d, 0x0e]), registers, jump.abs().min(9), small(random))],
        9 => vec![word(random.u8(..14) << 4 | choose(random, &[0x05, 0x06, 0x0d, 0x0e]), registers, jump, small(random))],
        10 | 11 => vec![word(0x85, 0, 0, choose(random, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26]).into())],
        12 => {
            let region = random.i32(0..14);
            vec![word(0x18, to, 0, small(random).abs()), word(0, 0, 0, region)]
        }
        _ => match random.u8(..4) {
            0 => vec![word(0x85, 0x10, 0, jump.into())],
            1 => vec![word(0x95, 0, 0, 0)],
            2 => vec![random.u64(..).to_le_bytes()],
            _ => vec![word(0xbf, 0xa0 | to, 0, 0), word(0x07, to, 0, -random.i32(0..200))],
        },
    }
}

#[test]
fn random_instructions_end_within_limits() {
    let mut loaded = 0;
    for seed in 0..cases() {
        let mut random = fastrand::Rng::with_seed(seed);
        let length = random.usize(1..40);
        let mut text: Vec<[u8; 8]> = Vec::new();
        while text.len() < length {
            // Most programs have no instruction that the verifier refuses, because each is tried alone first.
            let next = instruction(&mut random, length);
            let mut alone = next.clone();
            if next.iter().all(|word| word[0] & 7 < 5 || matches!(word[0], 0x07 | 0x0f | 0x85)) {
                alone.push([0x95, 0, 0, 0, 0, 0, 0, 0]);
                if Program::from_instructions(alone.as_flattened()).is_err() && random.u8(..30) != 0 {
                    continue;
                }
            }
            text.extend(next);
        }
        text.push([0x95, 0, 0, 0, 0, 0, 0, 0]);
        if let Ok(program) = Program::from_instructions(text.as_flattened()) {
            loaded += 1;
            run(&program);
        }
    }
    assert!(loaded * 20 > cases(), "only {loaded} programs were loaded");
}

#[test]
fn a_program_runs_in_several_threads_at_once() {
    let program = load(OBJECTS[2]).unwrap();
    std::thread::scope(|scope| {
        for words in 0..4 {
            let program = &program;
            scope.spawn(move || {
                let text = "word ".repeat(words);
                for _ in 0..200 {
                    let mut host = Values::with(&[("text", text.as_bytes())]);
                    let outcome = run_on(Engine::Compiled, program, &[Bytes::from_static(b"text")], &mut host, &small()).unwrap();
                    assert_eq!(outcome.stdout, format!("{words}\n"));
                }
            });
        }
    });
}
