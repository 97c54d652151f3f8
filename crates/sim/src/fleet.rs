//! A host and its drives: one query from its beginning to its end.

mod drive;
mod host;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

use skytether_scheduler::drive::Pressure;
use skytether_scheduler::message::{CseId, Down, PushdownLevel, Slice, SliceId};
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Event, Limits, Policy, Query, Setup};
use skytether_scheduler::work::PRIORS;

use crate::device::Link;
use crate::workload::Workload;
use drive::DriveSim;
pub(crate) use drive::OUTGOING;
use host::HostSim;

/// The content of a batch: enough to compute the query's answer from what was delivered.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload {
    /// States: group, sum, count.
    States(Vec<(u32, u64, u64)>),
    /// Filtered rows: group, value.
    Rows(Vec<(u32, u64)>),
    /// A slice as stored.
    Stored(SliceId),
}

/// The answer to the query: sum and count per group.
pub type Answer = BTreeMap<u32, (u64, u64)>;

/// A drive as it is, and how it fares.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its true profile.
    pub is: Profile,
    /// The profile that the host believes it has.
    pub believed: Profile,
    /// Loads of its processor: (time at which it begins, factor by which it is slower), in order of time.
    pub load: Vec<(f64, f64)>,
    /// When it dies (and comes back), in order of time.
    pub kills: Vec<(f64, Option<f64>)>,
    /// Times (from, to) in which the drive does nothing.
    pub stalls: Vec<(f64, f64)>,
    /// Its other mishaps.
    pub mishaps: Mishaps,
}

/// What may happen to a drive, other than its death.
#[derive(Debug, Clone, Default)]
pub struct Mishaps {
    /// Times (from, to) with too little memory for its work: it refuses, and stops what runs.
    pub pressed: Vec<(f64, f64, Pressure)>,
    /// How many of its epochs end with a slice that they were not given.
    pub garbled: u32,
    /// Times at which the next slice that it begins hangs for ever, while heartbeats go on; in order.
    pub stuck: Vec<f64>,
}

/// What the network does to messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Probability that a message comes twice.
    pub duplicate: f64,
    /// Probability that a message is late, so that others overtake it.
    pub late: f64,
    /// How late, seconds at most.
    pub lateness: f64,
    /// Probability that the host learns at once that a drive died; otherwise it must notice the silence.
    pub noticed: f64,
}

/// A fleet with a query.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// The host. Its link is shared by all drives.
    pub host: Profile,
    /// The drives.
    pub drives: Vec<Spec>,
    /// Slices of each drive.
    pub slices: u32,
    /// Probability that a slice has a copy on the next drive.
    pub copies: f64,
    /// Spread of the slices' costs (of their logarithm).
    pub noise: f64,
    /// How many first slices of a drive take how many times as long.
    pub warm_up: (u32, f64),
    /// How far what operators cost is from the priors: below, above.
    pub off: (f64, f64),
    /// Seconds of a core of this machine for a drive's planning, before it lists its slices.
    pub session: f64,
    /// Bytes of rows per second that the client reads; without it, all at once.
    pub reader: Option<f64>,
    /// The network.
    pub faults: Faults,
    /// Bounds and patience of the host.
    pub limits: Limits,
    /// Whether slices come one by one from a parent, as to an aggregator.
    pub fed: bool,
    /// Whether to print every message and plan of the host to the standard error.
    pub trace: bool,
    /// Seconds after which a run is taken to hang.
    pub at_most: f64,
}

/// How a run went.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// When the answer was complete, or the query failed; infinite for a run that hangs.
    pub end: f64,
    /// The answer; `None` where the query failed.
    pub answer: Option<Answer>,
    /// The right answer.
    pub expected: Answer,
    /// The drive that is blamed, and the slice.
    pub failed: Option<(CseId, Option<SliceId>)>,
    /// The drives that can read each slice.
    pub readers: Vec<Vec<CseId>>,
    /// Bytes that moved up.
    pub moved: f64,
    /// Slices that counted, by rung.
    pub slices: BTreeMap<PushdownLevel, usize>,
    /// Epochs that counted, and those that did not.
    pub epochs: (usize, usize),
    /// What the host noticed of mishaps.
    pub told: Told,
    /// Events.
    pub events: u64,
}

/// How often a host got a report of, or found, each kind of mishap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// Epochs that were refused.
    pub refused: usize,
    /// Epochs that were stopped.
    pub stopped: usize,
    /// Epochs that were garbage.
    pub garbage: usize,
    /// Drives that stood still.
    pub stuck: usize,
}

#[derive(Debug, Clone)]
enum Happening {
    ToHost(Event<Payload>),
    ToDrive(usize, Down),
    Cores(usize, u64),
    Disk(usize, u32),
    Link(usize, u32),
    Nic,
    HostCore,
    Tick,
    Beat(usize, u32),
    Speed(usize),
    Kill(usize),
    Restart(usize),
}

struct Entry {
    at: f64,
    number: u64,
    what: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    // The earliest is the greatest: the heap gives that first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

/// What is true of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Real {
    /// Its cost against the average.
    pub(crate) cost: f64,
    /// What it adds to the answer.
    pub(crate) group: u32,
    pub(crate) value: u64,
}

/// Clock, random numbers, and what everybody needs to know.
struct World<'a> {
    now: f64,
    heap: BinaryHeap<Entry>,
    number: u64,
    rng: fastrand::Rng,
    fleet: &'a Fleet,
    work: &'a Workload,
    real: Vec<Real>,
    /// Seconds per row, as they are: below, above.
    lower: f64,
    upper: f64,
    nic: Link<Event<Payload>>,
    moved: f64,
}

impl World<'_> {
    fn after(&mut self, seconds: f64, what: Happening) {
        self.number += 1;
        self.heap.push(Entry { at: self.now + seconds, number: self.number, what });
    }

    fn unlucky(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.f64() < probability
    }

    /// How much later than its time a message comes.
    fn lateness(&mut self) -> f64 {
        let faults = self.fleet.faults;
        if self.unlucky(faults.late) { self.rng.f64() * faults.lateness } else { 0.0 }
    }

    /// When the stall that `drive` is in ends, as seconds from now.
    fn stalled(&self, drive: usize) -> f64 {
        let stalls = &self.fleet.drives[drive].stalls;
        stalls.iter().filter(|(from, to)| (*from..*to).contains(&self.now)).map(|(_, to)| to - self.now).fold(0.0, f64::max)
    }

    /// What is in use at `drive`, and what there is.
    fn pressure(&self, drive: usize) -> Pressure {
        let pressed = self.fleet.drives[drive].mishaps.pressed.iter().find(|(from, to, _)| (*from..*to).contains(&self.now));
        pressed.map_or(Pressure::NONE, |(_, _, pressure)| *pressure)
    }

    fn send_up(&mut self, drive: usize, event: Event<Payload>) {
        self.send_up_after(0.0, drive, event);
    }

    fn send_up_after(&mut self, seconds: f64, drive: usize, event: Event<Payload>) {
        let latency = seconds + self.fleet.drives[drive].is.link_latency_s + self.stalled(drive);
        if self.unlucky(self.fleet.faults.duplicate) {
            let late = self.lateness() + latency;
            self.after(late, Happening::ToHost(event.clone()));
        }
        let late = self.lateness() + latency;
        self.after(late, Happening::ToHost(event));
    }

    fn send_down(&mut self, drive: usize, down: Down) {
        let latency = self.fleet.drives[drive].is.link_latency_s + self.stalled(drive);
        if self.unlucky(self.fleet.faults.duplicate) {
            let late = self.lateness() + latency;
            self.after(late, Happening::ToDrive(drive, down.clone()));
        }
        let late = self.lateness() + latency;
        self.after(late, Happening::ToDrive(drive, down));
    }

    fn start_nic(&mut self) {
        if let Some(time) = self.nic.start() {
            self.after(time, Happening::Nic);
        }
    }
}

fn gauss(rng: &mut fastrand::Rng) -> f64 {
    // The sum of twelve uniforms: near enough, and without a logarithm of zero.
    (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0
}

/// What is true of all slices, drive by drive: the first that is drawn from `rng`.
pub(crate) fn costs(fleet: &Fleet, rng: &mut fastrand::Rng) -> Vec<Real> {
    let count = fleet.slices as usize * fleet.drives.len();
    (0..count).map(|_| Real { cost: (fleet.noise * gauss(rng)).exp(), group: rng.u32(0..5), value: rng.u64(0..1 << 40) }).collect()
}

/// Runs `work` on `fleet`. All that is random follows from `seed`, and nothing of it from `policy`: the same slices
/// cost the same for every policy.
#[must_use]
pub fn run(fleet: &Fleet, work: &Workload, policy: Policy, seed: u64) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let n = fleet.drives.len();
    let count = fleet.slices as usize * n;
    let real = costs(fleet, &mut rng);
    let mut surveys: Vec<Vec<Slice>> = vec![Vec::new(); n];
    for at in 0..count {
        let home = at / fleet.slices as usize;
        let mut readers = vec![CseId(home as u32)];
        if n > 1 && rng.f64() < fleet.copies {
            readers.push(CseId(((home + 1) % n) as u32));
        }
        surveys[home].push(Slice { id: SliceId(at as u32), rows: work.rows, bytes: work.bytes, readers });
    }
    let readers = surveys.iter().flatten().map(|slice| slice.readers.clone()).collect();
    let mut expected = Answer::new();
    for real in &real {
        let entry = expected.entry(real.group).or_default();
        *entry = (entry.0 + real.value, entry.1 + 1);
    }
    let query = Query::new(Setup {
        work: work.believed.clone(),
        host: fleet.host,
        cses: fleet.drives.iter().map(|drive| drive.believed).collect(),
        policy,
        limits: fleet.limits,
        priors: PRIORS,
        kinds: Vec::new(),
        fed: fleet.fed,
    });
    let mut world = World {
        now: 0.0,
        heap: BinaryHeap::new(),
        number: 0,
        rng,
        fleet,
        work,
        real,
        lower: work.truth.lower * fleet.off.0,
        upper: work.truth.upper * fleet.off.1,
        nic: Link::new(fleet.host.link_bytes_per_s()),
        moved: 0.0,
    };
    let mut host = HostSim::new(query, fleet.host);
    if fleet.fed {
        // The parent has the drives' slices in turn.
        let mut left: Vec<_> = surveys.iter_mut().map(|slices| std::mem::take(slices).into_iter()).collect();
        let turns = (0..fleet.slices).flat_map(|_| left.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>()).collect::<Vec<_>>();
        host.feeds(turns);
    }
    let mut drives: Vec<DriveSim> = fleet.drives.iter().enumerate().map(|(at, spec)| DriveSim::new(at, spec)).collect();
    for (at, slices) in surveys.into_iter().enumerate() {
        let spec = &fleet.drives[at];
        let load = spec.load.iter().rev().find(|(from, _)| *from <= 0.0).map_or(1.0, |(_, load)| *load);
        world.send_up_after(fleet.session / spec.is.speed_per_core * load, at, Event::Surveyed { cse: CseId(at as u32), slices });
        for time in spec.load.iter().map(|(from, _)| *from).chain(spec.stalls.iter().flat_map(|(from, to)| [*from, *to])) {
            world.after(time, Happening::Speed(at));
        }
        for (time, back) in &spec.kills {
            world.after(*time, Happening::Kill(at));
            if let Some(back) = back {
                world.after(*back, Happening::Restart(at));
            }
        }
    }
    host.tick(&mut world);
    let mut events = 0;
    while !host.over() {
        let Some(Entry { at, what, .. }) = world.heap.pop() else { break };
        if at > fleet.at_most {
            break;
        }
        world.now = at;
        events += 1;
        match what {
            Happening::ToHost(event) => host.handle(&mut world, event),
            Happening::Tick => host.tick(&mut world),
            Happening::HostCore => host.core_done(&mut world),
            Happening::Nic => {
                if let Some((bytes, message)) = world.nic.done() {
                    world.moved += bytes;
                    if let Some(event) = message {
                        let from = match &event {
                            Event::Batch { cse, .. } | Event::Up { cse, .. } => cse.0 as usize,
                            _ => 0,
                        };
                        world.send_up(from, event);
                    }
                }
                world.start_nic();
            }
            Happening::ToDrive(at, down) => drives[at].order(&mut world, down),
            Happening::Cores(at, change) => drives[at].core_done(&mut world, change),
            Happening::Disk(at, life) => drives[at].disk_done(&mut world, life),
            Happening::Link(at, life) => drives[at].link_done(&mut world, life),
            Happening::Beat(at, life) => drives[at].beat(&mut world, life),
            Happening::Speed(at) => drives[at].set_speed(&mut world),
            Happening::Kill(at) => {
                drives[at].kill(&mut world);
                if world.unlucky(fleet.faults.noticed) {
                    let cse = CseId(at as u32);
                    // The host cannot know whether a broken connection will be followed by another.
                    world.after(fleet.drives[at].is.link_latency_s, Happening::ToHost(Event::Lost { cse, again: true }));
                }
            }
            Happening::Restart(at) => drives[at].restart(),
        }
    }
    let (answer, failed, slices, epochs) = host.result();
    let end = if host.over() { world.now } else { f64::INFINITY };
    Outcome { end, answer, expected, failed, readers, moved: world.moved, slices, epochs, told: host.told(), events }
}
