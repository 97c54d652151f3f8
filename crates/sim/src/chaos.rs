//! Seeded runs with kills, stalls, drives without progress, refusals, garbage, duplicates and reordering. The answer is
//! computed from what was delivered and compared with the right one.
//!
//! A drive is *doomed* if it dies and never comes back. Any other drive has no more mishaps than the host tolerates. So
//! each run's outcome is known in advance: all must be answered but those with slices that only doomed drives have.

use skytether_scheduler::drive::Pressure;
use skytether_scheduler::message::{CseId, PushdownLevel};
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Limits, Policy};

use crate::fleet::{Faults, Fleet, Mishaps, Outcome, Spec, run};
use crate::workload::{Workload, grid};

/// The most that a message is late, seconds.
const LATENESS: f64 = 0.05;

/// Share of runs in which a drive that dies for good may be the only one with its slices.
const LOST_CAUSES: f64 = 0.05;

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
    let copies = [0.0, 0.5, 1.0][rng.usize(0..3)];
    let lost_cause = rng.f64() < LOST_CAUSES;
    let mut specs: Vec<Spec> = Vec::new();
    for at in 0..drives {
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
        let load = if rng.f64() < 0.3 { vec![(rng.f64() * span, 8.0)] } else { vec![] };
        // A drive that dies before it has listed its slices fails the query, because its slices stay unknown.
        let surveyed = work.truth.session * slower + is.link_latency_s + LATENESS;
        // It may die for good where the next one has all of its slices, and doesn't.
        let next_lives = at == 0 || !is_doomed(&specs[at - 1]);
        let first_lives = at + 1 < drives || specs.first().is_some_and(|first| !is_doomed(first));
        let spared = copies == 1.0 && drives > 1 && next_lives && first_lives;
        let mut kills = Vec::new();
        let mut stalls = Vec::new();
        let mut mishaps = Mishaps::default();
        if !calm && rng.f64() < 0.35 {
            let mut at = surveyed;
            for _ in 0..rng.u32(1..3) {
                at += rng.f64() * span;
                let back = (!(spared || lost_cause) || rng.f64() < 0.6).then(|| at + rng.f64() * 0.5);
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
        if !calm && rng.f64() < 0.3 {
            let at = rng.f64() * span;
            mishaps.pressed.push((at, at + rng.f64() * 2.0 * span, pressed(&mut rng)));
        }
        if !calm && rng.f64() < 0.15 {
            mishaps.garbled = rng.u32(1..3);
        }
        if !calm && rng.f64() < 0.2 {
            mishaps.stuck = (0..rng.u32(1..3)).map(|n| (f64::from(n) + rng.f64()) * span).collect();
        }
        let believed = Profile { speed_per_core: is.speed_per_core * (0.5 + 1.5 * rng.f64()), ..is };
        specs.push(Spec { is, believed, load, kills, stalls, mishaps });
    }
    let policy = match rng.u32(0..10) {
        0 => Policy::Static(PushdownLevel::Full),
        1 => Policy::Static(PushdownLevel::Filter),
        2 => Policy::Static(PushdownLevel::Raw),
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
    let limits = Limits { silence: 0.4, pause: 0.05, memory: [3 << 20, 256 << 20][rng.usize(0..2)], ..Limits::default() };
    let most = specs.iter().filter(|spec| !is_doomed(spec)).map(|spec| strikes(spec, &limits, work.truth.session)).max().unwrap_or(0);
    let fleet = Fleet {
        host,
        drives: specs,
        slices,
        copies,
        noise: 0.3,
        warm_up: (5, 3.0),
        off: (1.0 + rng.f64(), 1.0 + rng.f64()),
        session: work.truth.session,
        // For some seeds the reader is so slow that rows wait, and all messages of drives with them.
        reader: (rng.f64() < 0.2).then(|| 1e6 * (1.0 + 99.0 * rng.f64())),
        faults: Faults { duplicate: 0.1, late: 0.15, lateness: LATENESS, noticed: 0.5 },
        limits: Limits { retries: most.max(limits.retries), ..limits },
        fed: rng.f64() < 0.25,
        trace: false,
        at_most: 600.0,
    };
    (fleet, work, policy)
}

/// What a drive may have too little of.
fn pressed(rng: &mut fastrand::Rng) -> Pressure {
    let short = Pressure { memory_limit: 64 << 20, memory_used: 0, relief: 0.001 + 0.1 * rng.f64(), ..Pressure::NONE };
    match rng.u32(0..5) {
        // Enough to filter, but not to hold states; enough to send raw only; nothing at all.
        0 => Pressure { memory_used: 55 << 20, ..short },
        1 => Pressure { memory_used: 60 << 20, ..short },
        2 => Pressure { memory_used: 64 << 20, ..short },
        3 => Pressure { epochs: 9, max_epochs: 8, ..short },
        _ => Pressure { load: 40.0, max_load: 32.0, ..short },
    }
}

/// Whether a drive dies and never comes back.
fn is_doomed(spec: &Spec) -> bool {
    spec.kills.iter().any(|(_, back)| back.is_none())
}

/// The most failures that a host can count of a drive that is not doomed. One for each time that it is taken for
/// silent, with the pause after that, and one for orders that it missed just before it was back.
fn strikes(spec: &Spec, limits: &Limits, session: f64) -> u32 {
    let silent = |seconds: f64| 1 + (seconds / (limits.silence + limits.pause)).ceil() as u32;
    let kills: u32 = spec.kills.iter().map(|(at, back)| 1 + silent(back.map_or(0.0, |back| back - at))).sum();
    let stalls: u32 = spec.stalls.iter().map(|(from, to)| silent(to - from)).sum();
    let begins = silent(session / spec.is.speed_per_core * 8.0);
    kills + stalls + begins + spec.mishaps.garbled + spec.mishaps.stuck.len() as u32
}

/// Whether every slice has a reader that is there in the end, so that the query must be answered;
/// `readers` as in [`Outcome`].
#[must_use]
pub fn must_answer(fleet: &Fleet, readers: &[Vec<CseId>]) -> bool {
    readers.iter().all(|readers| readers.iter().any(|reader| fleet.drives.get(reader.0 as usize).is_some_and(|drive| !is_doomed(drive))))
}

/// Runs the scenario of `seed` and looks whether it went as it must: the right answer; or, where doomed drives have
/// slices alone, a failure that blames one of them for one of those.
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
    let doomed = |cse: &CseId| fleet.drives.get(cse.0 as usize).is_some_and(is_doomed);
    match (&outcome.answer, outcome.failed) {
        (Some(answer), None) if *answer == outcome.expected => Ok(outcome),
        (Some(answer), None) => wrong(format!("the answer is {answer:?}, but should be {:?}", outcome.expected)),
        (None, Some((cse, slice))) => {
            let lost = slice.and_then(|slice| outcome.readers.get(slice.0 as usize)).is_some_and(|readers| readers.iter().all(doomed));
            if doomed(&cse) && lost { Ok(outcome) } else { wrong(format!("it failed for {cse:?} and {slice:?}, which somebody has who is there")) }
        }
        (answer, failed) => wrong(format!("it ended with {answer:?} and {failed:?}")),
    }
}
