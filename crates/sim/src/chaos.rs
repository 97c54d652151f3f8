//! Seeded runs with kills, stalls, duplicates and reordering. The answer is computed from what was delivered and compared with the right one.

use skytether_adapt::message::{CseId, Rung};
use skytether_adapt::profile::Profile;
use skytether_adapt::query::{Limits, Policy};
use skytether_adapt::work::PRIORS;

use crate::fleet::{Faults, Fleet, Outcome, Spec, run};
use crate::workload::{Workload, grid};

/// The scenario of a seed: a small fleet to which a lot happens.
#[must_use]
pub fn scenario(seed: u64) -> (Fleet, Workload, Policy) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xc4a0_5eed);
    let mut works = grid();
    let work = works.swap_remove(rng.usize(0..works.len()));
    let drives = rng.usize(1..5);
    let slices = rng.u32(1..13);
    // About as long as the query takes, so that things happen in the middle of it.
    let span = 0.02 * f64::from(slices);
    let calm = rng.f64() < 0.1;
    let specs = (0..drives).map(|_| {
        let slower = [1.0, 4.0, 15.0, 60.0][rng.usize(0..4)];
        let is = Profile {
            speed_per_core: 1.0 / slower,
            cores: rng.u32(1..4),
            memory_bytes: 1 << 30,
            disk_bytes_per_s: 261e6,
            disk_seek_s: 0.0085,
            link_bits_per_s: [0.1e9, 1e9, 10e9][rng.usize(0..3)],
            link_latency_s: 0.0002,
        };
        let mut kills = Vec::new();
        let mut stalls = Vec::new();
        if !calm && rng.f64() < 0.35 {
            let mut at = 0.0;
            for _ in 0..rng.u32(1..3) {
                at += rng.f64() * span;
                let back = (rng.f64() < 0.8).then(|| at + rng.f64() * 0.5);
                kills.push((at, back));
                match back {
                    Some(back) => at = back,
                    None => break,
                }
            }
        }
        if !calm && rng.f64() < 0.4 {
            let at = rng.f64() * span;
            stalls.push((at, at + rng.f64()));
        }
        let load = if rng.f64() < 0.3 { vec![(rng.f64() * span, 8.0)] } else { vec![] };
        let believed = Profile { speed_per_core: is.speed_per_core * (0.5 + 1.5 * rng.f64()), ..is };
        Spec { is, believed, load, kills, stalls }
    });
    let drives: Vec<Spec> = specs.collect();
    let policy = match rng.u32(0..10) {
        0 => Policy::Static(Rung::Full),
        1 => Policy::Static(Rung::Filter),
        2 => Policy::Static(Rung::Raw),
        _ => Policy::Adaptive,
    };
    let host = Profile {
        speed_per_core: 1.0,
        cores: rng.u32(1..5),
        memory_bytes: 1 << 30,
        disk_bytes_per_s: 1e9,
        disk_seek_s: 0.0,
        link_bits_per_s: 10e9,
        link_latency_s: 0.0002,
    };
    let fleet = Fleet {
        host,
        drives,
        slices,
        copies: [0.0, 0.5, 1.0][rng.usize(0..3)],
        noise: 0.3,
        warm_up: (5, 3.0),
        off: (1.0 + rng.f64(), 1.0 + rng.f64()),
        // Of some seeds the reader is so slow that rows wait, and with them all that drives say.
        session: PRIORS.session_s,
        reader: (rng.f64() < 0.2).then(|| 1e6 * (1.0 + 99.0 * rng.f64())),
        faults: Faults { duplicate: 0.1, late: 0.15, lateness: 0.05, noticed: 0.5 },
        limits: Limits { silence: 0.4, pause: 0.05, memory: [3 << 20, 256 << 20][rng.usize(0..2)], ..Limits::default() },
        trace: false,
        at_most: 600.0,
    };
    (fleet, work, policy)
}

/// Runs the scenario of `seed` and looks whether it went as it must: the right answer; or a failure that blames a drive that something happened to, for a
/// slice of which something happened to all readers.
///
/// # Errors
/// What is wrong, with the seed.
pub fn check(seed: u64, trace: bool) -> Result<Outcome, String> {
    let (mut fleet, work, policy) = scenario(seed);
    fleet.trace = trace;
    let outcome = run(&fleet, &work, policy, seed);
    let wrong = |what: String| Err(format!("seed {seed}: {what} (replay it with `regret chaos {seed}`)"));
    if !outcome.end.is_finite() {
        return wrong("the query hangs".to_owned());
    }
    let hurt = |cse: CseId| fleet.drives.get(cse.0 as usize).is_some_and(|drive| !drive.kills.is_empty() || !drive.stalls.is_empty());
    match (&outcome.answer, outcome.failed) {
        (Some(answer), None) if *answer == outcome.expected => Ok(outcome),
        (Some(answer), None) => wrong(format!("the answer is {answer:?}, but should be {:?}", outcome.expected)),
        (None, Some((cse, slice))) => {
            let lost = slice.is_none_or(|slice| outcome.readers.get(slice.0 as usize).is_some_and(|readers| readers.iter().all(|reader| hurt(*reader))));
            if hurt(cse) && lost { Ok(outcome) } else { wrong(format!("it failed for {cse:?} and {slice:?}, to which nothing happened")) }
        }
        (answer, failed) => wrong(format!("it ended with {answer:?} and {failed:?}")),
    }
}
