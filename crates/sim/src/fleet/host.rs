//! A simulated host: the state machine of `skytether_scheduler::query`, cores that process what arrives, and the
//! answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use skytether_scheduler::cost::distinct;
use skytether_scheduler::ledger::Dropped;
use skytether_scheduler::message::{CseId, EpochId, PushdownLevel, Slice, SliceId, Up};
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Action, Event, Query};
use skytether_scheduler::work::PRIORS;

use super::{Answer, Happening, Payload, Told, World};

#[derive(Debug)]
struct Job {
    left: usize,
    cpu: f64,
    filtered: Option<(u64, u64)>,
    rows: f64,
    /// Bytes of rows that the client gets of it.
    out: f64,
    batches: Vec<Payload>,
}

/// Bytes of rows that may wait for their reader before the host stops reading messages of drives.
const WAITING: f64 = 32e6;

pub(super) struct HostSim {
    query: Query<Payload>,
    profile: Profile,
    free: u32,
    queue: VecDeque<(EpochId, f64)>,
    running: BTreeMap<u64, EpochId>,
    ends: VecDeque<(u64, f64)>,
    jobs: BTreeMap<EpochId, Job>,
    tick_at: f64,
    answer: Answer,
    slices: BTreeMap<PushdownLevel, usize>,
    counted: usize,
    dropped: usize,
    told: Told,
    /// Slices that a parent has not given yet, if one feeds it.
    feeds: Option<VecDeque<Slice>>,
    surveyed: BTreeSet<CseId>,
    finished: bool,
    failed: Option<(CseId, Option<SliceId>)>,
    task: u64,
    rows: f64,
    /// The drives with whose slices or rows it has begun.
    begun: BTreeSet<CseId>,
    /// Rows that wait for their reader, bytes, at a time.
    unread: (f64, f64),
    /// Messages of drives that it has not read yet.
    unheard: VecDeque<Event<Payload>>,
}

impl HostSim {
    pub(super) fn new(query: Query<Payload>, profile: Profile) -> Self {
        Self {
            query,
            profile,
            free: profile.cores,
            queue: VecDeque::new(),
            running: BTreeMap::new(),
            ends: VecDeque::new(),
            jobs: BTreeMap::new(),
            tick_at: f64::NEG_INFINITY,
            answer: Answer::new(),
            slices: BTreeMap::new(),
            counted: 0,
            dropped: 0,
            told: Told::default(),
            feeds: None,
            surveyed: BTreeSet::new(),
            finished: false,
            failed: None,
            task: 0,
            rows: 0.0,
            begun: BTreeSet::new(),
            unread: (0.0, 0.0),
            unheard: VecDeque::new(),
        }
    }

    /// Its slices are `slices`, which it is to ask for.
    pub(super) fn feeds(&mut self, slices: Vec<Slice>) {
        self.feeds = Some(slices.into());
    }

    /// What it noticed of mishaps.
    pub(super) fn told(&self) -> Told {
        self.told
    }

    /// Whether the answer is complete, or there will be none.
    pub(super) fn over(&self) -> bool {
        self.failed.is_some() || (self.finished && self.jobs.is_empty())
    }

    #[allow(clippy::type_complexity)]
    pub(super) fn result(&self) -> (Option<Answer>, Option<(CseId, Option<SliceId>)>, BTreeMap<PushdownLevel, usize>, (usize, usize)) {
        ((self.failed.is_none() && self.finished).then(|| self.answer.clone()), self.failed, self.slices.clone(), (self.counted, self.dropped))
    }

    pub(super) fn tick(&mut self, world: &mut World<'_>) {
        if world.now < self.tick_at {
            return;
        }
        if self.is_clogged(world) {
            for cse in 0..world.fleet.drives.len() {
                self.decide(world, Event::Alive { cse: CseId(cse as u32), epoch: None });
            }
        }
        self.decide(world, Event::Tick);
        while !self.is_clogged(world)
            && let Some(event) = self.unheard.pop_front()
        {
            self.decide(world, event);
        }
    }

    /// Whether rows that wait for their reader keep the host from hearing drives: more than `WAITING` bytes.
    fn is_clogged(&mut self, world: &World<'_>) -> bool {
        let Some(rate) = world.fleet.reader else { return false };
        let (bytes, since) = self.unread;
        self.unread = ((bytes - rate * (world.now - since)).max(0.0), world.now);
        self.unread.0 > WAITING
    }

    /// Handles an event. Raw slices come over another connection, which is always open.
    pub(super) fn handle(&mut self, world: &mut World<'_>, event: Event<Payload>) {
        let stored = match &event {
            Event::Batch { batch, .. } => matches!(batch, Payload::Stored(_)),
            Event::Up { up: Up::EpochDone(end), .. } => end.rung == PushdownLevel::Raw,
            Event::Up { .. } => false,
            _ => true,
        };
        if !stored && (self.is_clogged(world) || !self.unheard.is_empty()) {
            self.unheard.push_back(event);
        } else {
            self.decide(world, event);
        }
    }

    fn decide(&mut self, world: &mut World<'_>, event: Event<Payload>) {
        match &event {
            Event::Surveyed { cse, .. } => drop(self.surveyed.insert(*cse)),
            Event::Up { up: Up::Refused { .. }, .. } => self.told.refused += 1,
            Event::Up { up: Up::Stopped { .. }, .. } => self.told.stopped += 1,
            _ => {}
        }
        self.act(world, event);
        // What drives should have before them.
        while self.surveyed.len() == world.fleet.drives.len()
            && let Some(coming) = self.feeds.as_mut()
        {
            let room = self.query.room().min(coming.len());
            if room > 0 {
                let slices = coming.drain(..room).collect();
                self.act(world, Event::More { slices });
            } else if coming.is_empty() {
                self.feeds = None;
                self.act(world, Event::NoMore);
            } else {
                break;
            }
        }
    }

    fn act(&mut self, world: &mut World<'_>, event: Event<Payload>) {
        if world.fleet.trace && !matches!(event, Event::Tick | Event::Surveyed { .. }) {
            eprintln!("{:.4} <- {event:?}", world.now);
        }
        let before = self.query.planned_at();
        let actions = self.query.handle(world.now, event);
        if world.fleet.trace && self.query.planned_at() != before {
            let cost = self.query.cost();
            let loads: Vec<f64> = (0..world.fleet.drives.len()).map(|cse| cost.load(cse)).collect();
            eprintln!("{:.4} plan {:?} loads {loads:.2?} groups {:.0}", world.now, self.query.plan(), cost.groups());
        }
        for action in actions {
            if world.fleet.trace {
                eprintln!("{:.4} -> {action:?}", world.now);
            }
            match action {
                Action::Send { cse, down } => world.send_down(cse.0 as usize, down),
                Action::Count { epoch, cse, rung, slices, batches } => self.count(world, epoch, cse, rung, &slices, batches),
                // A new session needs no message here: its open epochs were cancelled.
                Action::Stuck { .. } => self.told.stuck += 1,
                Action::Dropped { why, .. } => {
                    self.dropped += 1;
                    self.told.garbage += usize::from(why == Dropped::Garbage);
                }
                Action::Finish => self.finished = true,
                Action::Fail { cse, slice } => self.failed = Some((cse, slice)),
            }
        }
        if let Some(wake) = self.query.wake()
            && (wake < self.tick_at || self.tick_at <= world.now)
        {
            self.tick_at = wake;
            world.after((wake - world.now).max(0.0), Happening::Tick);
        }
    }

    /// Puts what came into the queue of the cores: slices one by one, rows and states in as many
    /// parts as there are cores.
    fn count(&mut self, world: &mut World<'_>, epoch: EpochId, cse: CseId, rung: PushdownLevel, slices: &[SliceId], batches: Vec<Payload>) {
        self.counted += 1;
        *self.slices.entry(rung).or_default() += slices.len();
        let truth = world.work.truth;
        let rows = f64::from(world.work.rows);
        let transfer = PRIORS.transfer_s_per_byte;
        let cost = |slice: &SliceId| world.real[slice.0 as usize].cost;
        let n = slices.len() as f64;
        let parts: Vec<f64> = match rung {
            PushdownLevel::Raw => slices.iter().map(|slice| rows * (world.lower + world.upper) * cost(slice) + world.work.bytes as f64 * transfer).collect(),
            PushdownLevel::Filter | PushdownLevel::Full => {
                let total = match (rung, truth.states) {
                    (PushdownLevel::Full, Some((groups, bytes))) => {
                        let states = distinct(groups, n * rows * truth.selected);
                        states * (truth.merge + bytes * transfer)
                    }
                    (PushdownLevel::Full, None) => n * rows * truth.result_bytes * transfer,
                    _ => slices.iter().map(|slice| rows * world.upper * cost(slice)).sum::<f64>() + n * rows * truth.selected * truth.row_bytes * transfer,
                };
                vec![total / f64::from(self.profile.cores); self.profile.cores as usize]
            }
        };
        let out = n * rows * truth.selected;
        let filtered = (rung == PushdownLevel::Raw).then_some((out as u64, (out * truth.row_bytes) as u64));
        let mut parts = if parts.is_empty() { vec![0.0] } else { parts };
        if rung != PushdownLevel::Full && self.begun.insert(cse) {
            parts[0] += PRIORS.begin_above_s;
        }
        let given = if world.work.believed.upper.is_empty() { out * truth.row_bytes } else { 0.0 };
        self.jobs
            .insert(epoch, Job { left: parts.len(), cpu: 0.0, filtered, out: given, rows: if rung == PushdownLevel::Full { 0.0 } else { n * rows }, batches });
        self.queue.extend(parts.into_iter().map(|part| (epoch, part / self.profile.speed_per_core)));
        self.start(world);
    }

    fn start(&mut self, world: &mut World<'_>) {
        while self.free > 0
            && let Some((epoch, seconds)) = self.queue.pop_front()
        {
            self.free -= 1;
            self.task += 1;
            self.running.insert(self.task, epoch);
            if let Some(job) = self.jobs.get_mut(&epoch) {
                job.cpu += seconds;
            }
            let end = world.now + seconds;
            let at = self.ends.partition_point(|(_, other)| *other <= end);
            self.ends.insert(at, (self.task, end));
            world.after(seconds, Happening::HostCore);
        }
    }

    pub(super) fn core_done(&mut self, world: &mut World<'_>) {
        let Some((task, _)) = self.ends.pop_front() else { return };
        self.free += 1;
        let Some(epoch) = self.running.remove(&task) else { return };
        let done = self.jobs.get_mut(&epoch).is_some_and(|job| {
            job.left -= 1;
            job.left == 0
        });
        self.start(world);
        if done && let Some(job) = self.jobs.remove(&epoch) {
            self.add(world, &job.batches);
            self.rows += job.rows;
            let _ = self.is_clogged(world);
            self.unread.0 += job.out;
            let held = world
                .work
                .truth
                .states
                .filter(|_| self.rows > 0.0)
                .map(|(groups, _)| (self.rows as u64, distinct(groups, self.rows * world.work.truth.selected) as u64));
            self.decide(world, Event::Worked { epoch, cpu: job.cpu, filtered: job.filtered, held });
        }
    }

    /// Adds up what was delivered: states are merged, rows are aggregated, slices are decoded and aggregated.
    fn add(&mut self, world: &World<'_>, batches: &[Payload]) {
        let mut merge = |group: u32, sum: u64, count: u64| {
            let entry = self.answer.entry(group).or_default();
            *entry = (entry.0 + sum, entry.1 + count);
        };
        for batch in batches {
            match batch {
                Payload::States(states) => states.iter().for_each(|(group, sum, count)| merge(*group, *sum, *count)),
                Payload::Rows(rows) => rows.iter().for_each(|(group, value)| merge(*group, *value, 1)),
                Payload::Stored(slice) => {
                    let real = world.real[slice.0 as usize];
                    merge(real.group, real.value, 1);
                }
            }
        }
    }
}
