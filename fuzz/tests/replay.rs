//! Every fuzz target over its seeds and over some thousand random changes of them. `make fuzz` does the same for
//! longer, guided by coverage.
#![allow(clippy::unwrap_used, clippy::panic)]

use skytether_fuzz::{Bounded, TARGETS, Target};

#[path = "../../crates/plan/tests/common/mutation.rs"]
#[allow(dead_code)]
mod mutation;

use mutation::Dice;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

fn changed(dice: &mut Dice, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[dice.roll(seeds.len())].clone();
    for _ in 0..=dice.roll(4) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = dice.roll(bytes.len());
        match dice.roll(8) {
            0 | 1 => bytes[at] ^= 1 << dice.roll(8),
            2 => bytes[at] = dice.roll(256) as u8,
            3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][dice.roll(5)],
            4 => bytes.insert(at, dice.roll(256) as u8),
            5 => {
                // Lengths are numbers of four or eight bytes.
                let number = [u64::MAX, i64::MAX as u64, 1 << 40, 1 << 31, 1 << 20][dice.roll(5)].to_le_bytes();
                let n = if dice.roll(2) == 0 { 4 } else { 8 }.min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&number[..n]);
            }
            6 => {
                let other = &seeds[dice.roll(seeds.len())];
                let from = dice.roll(other.len());
                let piece: Vec<u8> = other[from..(from + dice.roll(32)).min(other.len())].to_vec();
                let end = (at + dice.roll(piece.len() + 1)).min(bytes.len());
                bytes.splice(at..end, piece);
            }
            _ => drop(bytes.drain(at..(at + 1 + dice.roll(16)).min(bytes.len()))),
        }
    }
    bytes
}

fn replay(target: Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    // Seeds that the target rejects would test little.
    let taken = seeds.iter().filter(|seed| (target.run)(seed)).count();
    assert!(taken * 2 > seeds.len(), "{}: {taken} of {} seeds were taken", target.name, seeds.len());
    for seed in &seeds {
        for len in 0..seed.len().min(64) {
            (target.run)(&seed[..len]);
        }
    }
    let mut dice = Dice::new(23);
    for _ in 0..target.rounds {
        let bytes = changed(&mut dice, &seeds);
        if std::panic::catch_unwind(|| (target.run)(&bytes)).is_err() {
            panic!("{} fails at {bytes:?}", target.name);
        }
    }
}

/// What parses units, commands and descriptors of block storage: many inputs each, and so a test of their own.
const BLOCK_STORAGE: [&str; 9] = ["exec_", "file_extents_", "iscsi_", "nbd_", "nvme_", "scsi_", "striped_", "target_url_", "volume_"];

fn replay_all(of: fn(&Target) -> bool) {
    // Panics that our parsers catch are not worth a line each.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.location().is_some_and(|at| at.file().contains("fuzz")) {
            before(info);
        }
    }));
    // Threads of hosts and drives have such stacks.
    let run = move || {
        for target in TARGETS.iter().copied().filter(of) {
            let begun = std::time::Instant::now();
            replay(target);
            println!("{}: {} rounds in {:.1} s", target.name, target.rounds, begun.elapsed().as_secs_f64());
        }
    };
    std::thread::Builder::new().stack_size(32 << 20).spawn(run).unwrap().join().unwrap();
}

fn is_of_block_storage(target: &Target) -> bool {
    BLOCK_STORAGE.iter().any(|begin| target.name.starts_with(begin))
}

#[test]
fn changed_seeds_are_taken_or_refused() {
    replay_all(|target| !is_of_block_storage(target));
}

#[test]
fn changed_units_and_commands_are_taken_or_refused() {
    replay_all(is_of_block_storage);
}
