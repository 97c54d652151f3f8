//! The grid: each point runs with every static choice and with the adaptive one, over the same slices at the same
//! costs.

use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Limits, Policy};

use crate::fleet::{Faults, Fleet, Mishaps, Outcome, Spec, run};
use crate::oracle::{self, Bound, Foresight};
use crate::parallel::parallel;
use crate::workload::{Workload, grid};

/// How busy the drives are with other things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Not at all.
    Idle,
    /// The first drive's processor has an eighth left for us.
    OneOverloaded,
    /// As [`Load::OneOverloaded`], but half of the drives (the only one, where there is one) become slow. That happens
    /// when 40% of the best static choice's time on idle drives have passed.
    Changes,
}

/// How many times slower an overloaded drive of the grid is.
pub const OVERLOAD: f64 = 8.0;

/// The same for points next to the grid.
pub const OVERLOAD_BESIDE: f64 = 3.0;

/// How far what hosts believe of speeds and links is from what is, and what operators cost from what was measured: by
/// up to this, as the logarithm of a factor.
const OFF: f64 = 0.25;

/// When a load changes, as a share of the time of the best static choice on idle drives.
pub const CHANGES_AT: f64 = 0.4;

/// A point of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The query.
    pub work: Workload,
    /// How many times slower a core of a drive is than one of the host.
    pub slower: f64,
    /// Gb/s of each drive's link.
    pub gbit: f64,
    /// Drives.
    pub drives: u32,
    /// How busy they are.
    pub load: Load,
}

/// What does not change over the grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scenario {
    /// Cores of the host.
    pub host_cores: u32,
    /// Gb/s that the host takes in from all drives together.
    pub host_gbit: f64,
    /// Slices of each drive.
    pub slices: u32,
    /// The seed.
    pub seed: u64,
    /// Factor by which the host overestimates the drives' links, in addition to the error that the seed gives.
    pub links: f64,
    /// How many times slower an overloaded drive is.
    pub overload: f64,
}

impl Default for Scenario {
    /// A host of four cores with 10 Gb/s; 256 slices of 1 MiB on each drive.
    fn default() -> Self {
        Self { host_cores: 4, host_gbit: 10.0, slices: 256, seed: 1, links: 1.0, overload: OVERLOAD }
    }
}

/// A point as it came out, seconds.
#[derive(Debug, Clone)]
pub struct Row {
    /// The point.
    pub point: Point,
    /// Times of the static choices full, filter, raw.
    pub fixed: [f64; 3],
    /// Time of the adaptive choice.
    pub adaptive: f64,
    /// How the adaptive run went.
    pub outcome: Outcome,
    /// What nothing can beat.
    pub bound: Bound,
    /// The mean bound for policies that do not know which drives a change of load will hit.
    pub blind: f64,
}

impl Row {
    /// The best static choice.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.fixed.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// How much longer than the best static choice it took, as a share of that; below 0 where it was quicker.
    #[must_use]
    pub fn regret(&self) -> f64 {
        self.adaptive / self.best() - 1.0
    }

    /// The largest share of the best static choice's time that any policy can save.
    #[must_use]
    pub fn room(&self) -> f64 {
        1.0 - self.bound.seconds / self.best()
    }

    /// The same on average for policies that do not know beforehand which drives a change of load will hit.
    #[must_use]
    pub fn room_blind(&self) -> f64 {
        1.0 - self.blind.max(self.bound.seconds) / self.best()
    }

    /// How much longer than all on the host.
    #[must_use]
    pub fn over_raw(&self) -> f64 {
        self.adaptive / self.fixed[2] - 1.0
    }
}

/// All points of the grid; the loads of one fleet and query follow one another.
#[must_use]
pub fn points() -> Vec<Point> {
    let mut all = Vec::new();
    for work in grid() {
        for slower in [1.0, 4.0, 15.0, 60.0] {
            for gbit in [0.1, 1.0, 2.5, 10.0] {
                for drives in [1, 4, 16] {
                    for load in [Load::Idle, Load::OneOverloaded, Load::Changes] {
                        all.push(Point { work: work.clone(), slower, gbit, drives, load });
                    }
                }
            }
        }
    }
    all
}

/// Points between and beyond those of the grid, at which nothing was ever chosen; their overloaded drives are
/// [`OVERLOAD_BESIDE`] times slower.
#[must_use]
pub fn beside() -> Vec<Point> {
    let mut all = Vec::new();
    for work in grid() {
        for slower in [8.0, 30.0] {
            for gbit in [0.5, 5.0] {
                for drives in [2, 8] {
                    for load in [Load::Idle, Load::OneOverloaded, Load::Changes] {
                        all.push(Point { work: work.clone(), slower, gbit, drives, load });
                    }
                }
            }
        }
    }
    all
}

const STATIC: [PushdownLevel; 3] = [PushdownLevel::Full, PushdownLevel::Filter, PushdownLevel::Raw];

/// The fleet of a point. `change` is when its load changes, if it does.
#[must_use]
pub fn fleet(point: &Point, ground: &Scenario, seed: u64, change: f64) -> Fleet {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let mut off = |spread: f64| ((rng.f64() * 2.0 - 1.0) * spread).exp();
    let is = Profile {
        speed_per_core: 1.0 / point.slower,
        cores: 2,
        memory_bytes: 1 << 30,
        disk_bytes_per_s: 261e6,
        disk_seek_s: 0.0085,
        link_bits_per_s: point.gbit * 1e9,
        link_latency_s: 0.0002,
    };
    // Profiles and what was measured are about right, not exactly.
    let speed = off(OFF);
    let operators = (off(OFF), off(OFF));
    let believed = Profile { speed_per_core: is.speed_per_core * speed, link_bits_per_s: is.link_bits_per_s * off(OFF) * ground.links, ..is };
    // The decisions assume that the first five slices are slow, twice as slow.
    let warm_up = (rng.u32(2..10), 1.5 + 2.5 * rng.f64());
    let overloaded = |at: u32| match point.load {
        Load::Idle => vec![],
        Load::OneOverloaded if at == 0 => vec![(0.0, ground.overload)],
        Load::OneOverloaded => vec![],
        Load::Changes if at < point.drives.div_ceil(2) => vec![(change, ground.overload)],
        Load::Changes => vec![],
    };
    Fleet {
        host: Profile {
            speed_per_core: 1.0,
            cores: ground.host_cores,
            memory_bytes: 8 << 30,
            disk_bytes_per_s: 1e9,
            disk_seek_s: 0.0,
            link_bits_per_s: ground.host_gbit * 1e9,
            link_latency_s: 0.0002,
        },
        drives: (0..point.drives).map(|at| Spec { is, believed, load: overloaded(at), kills: vec![], stalls: vec![], mishaps: Mishaps::default() }).collect(),
        slices: ground.slices,
        copies: 0.0,
        noise: 0.15,
        warm_up,
        off: operators,
        faults: Faults::default(),
        session: point.work.truth.session,
        reader: None,
        limits: Limits { silence: 600.0, ..Limits::default() },
        fed: false,
        trace: false,
        at_most: 1e6,
    }
}

/// Runs a point; the same seed for every choice. A run without the right answer counts as one that never ends.
#[must_use]
pub fn measure(point: &Point, ground: &Scenario, trace: bool) -> Row {
    let seed = ground.seed;
    let time = |fleet: &Fleet, policy| {
        let outcome = run(fleet, &point.work, policy, seed);
        let end = if outcome.answer.as_ref() == Some(&outcome.expected) { outcome.end } else { f64::INFINITY };
        (end, outcome)
    };
    let mut change = 0.0;
    if point.load == Load::Changes {
        let idle = fleet(&Point { load: Load::Idle, ..point.clone() }, ground, seed, 0.0);
        change = CHANGES_AT * STATIC.iter().map(|rung| time(&idle, Policy::Static(*rung)).0).fold(f64::INFINITY, f64::min);
    }
    let mut fleet = fleet(point, ground, seed, change);
    let fixed = STATIC.map(|rung| time(&fleet, Policy::Static(rung)).0);
    fleet.trace = trace;
    let (adaptive, outcome) = time(&fleet, Policy::Adaptive);
    let bound = oracle::bound(&fleet, &point.work, seed, Foresight::All);
    let blind = oracle::bound(&fleet, &point.work, seed, Foresight::NotWhich).seconds;
    Row { point: point.clone(), fixed, adaptive, outcome, bound, blind }
}

/// Runs points on all processors; the rows are in their order.
#[must_use]
pub fn measure_all(points: &[Point], ground: &Scenario) -> Vec<Row> {
    parallel(points.len(), |at| measure(&points[at], ground, false))
}

/// Points where the load changes, by kind. All but `better` are misses; [`Row::bound`] explains some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// All.
    pub all: usize,
    /// Quicker than every static choice.
    pub better: usize,
    /// Not quicker, and within 1% of the best static choice.
    pub level: usize,
    /// Not quicker, and no policy can be so by more than 1%.
    pub shut: usize,
    /// Not quicker, and no policy can be so by more than 1 to 2%.
    pub nearly_shut: usize,
    /// Not faster. A policy that knows beforehand which drives the change hits could be, by more than 2%.
    pub foreseen: usize,
    /// Not quicker, although nothing that we know of forbids it.
    pub missed: usize,
}

/// Counts the points of `rows` where the load changes.
#[must_use]
pub fn changes<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Changes {
    let mut changes = Changes::default();
    for row in rows.into_iter().filter(|row| row.point.load == Load::Changes) {
        changes.all += 1;
        if row.regret() < 0.0 {
            changes.better += 1;
            continue;
        }
        changes.level += usize::from(row.regret() <= 0.01);
        *match (row.room(), row.room_blind()) {
            (room, _) if room <= 0.01 => &mut changes.shut,
            (room, _) if room <= 0.02 => &mut changes.nearly_shut,
            (_, blind) if blind <= 0.02 => &mut changes.foreseen,
            _ => &mut changes.missed,
        } += 1;
    }
    changes
}

/// What the rows come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Median, 95th percentile and worst regret.
    pub regret: [f64; 3],
    /// The worst against all on the host.
    pub over_raw: f64,
    /// Points where the load changes.
    pub changes: Changes,
}

/// Sums up.
#[must_use]
pub fn summary(rows: &[Row]) -> Summary {
    let mut regrets: Vec<f64> = rows.iter().map(Row::regret).collect();
    regrets.sort_by(f64::total_cmp);
    let at = |share: f64| regrets.get(((regrets.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied().unwrap_or(0.0);
    Summary { regret: [at(0.5), at(0.95), at(1.0)], over_raw: rows.iter().map(Row::over_raw).fold(f64::NEG_INFINITY, f64::max), changes: changes(rows) }
}
