//! A simulated drive: the state machine of `skytether_scheduler::drive`, and cores, disk and link that carry out its
//! effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use skytether_scheduler::cost::distinct;
use skytether_scheduler::drive::{Drive, Effect, Meters, Next, Totals};
use skytether_scheduler::message::{CseId, Down, EpochId, PushdownLevel, SliceCost, SliceId, Up};
use skytether_scheduler::query::Event;
use skytether_scheduler::work::PRIORS;

use super::{Answer, Happening, Payload, Spec, World};
use crate::device::{Cores, Disk, Link};

/// Bytes that may wait for the link before nothing more is begun.
pub(crate) const OUTGOING: f64 = 8e6;

/// Bytes that an epoch needs to begin with.
const MEMORY: u64 = 4 << 20;

/// A slice that there is not.
const NO_SLICE: SliceId = SliceId(77_777);

/// Slices that are read ahead, beyond one per core.
const READ_AHEAD: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Job {
    Begin(EpochId),
    Slice { epoch: EpochId, slice: SliceId, work: f64, lane: usize },
    Send { epoch: EpochId, slice: SliceId },
    Emit { epoch: EpochId, rows: f64, bytes: f64 },
}

impl Job {
    fn epoch(&self) -> EpochId {
        match self {
            Job::Begin(epoch) | Job::Slice { epoch, .. } | Job::Send { epoch, .. } | Job::Emit { epoch, .. } => *epoch,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Read {
    Ahead,
    Raw(EpochId),
}

#[derive(Debug, Default)]
struct Execution {
    ready: bool,
    /// Lanes that give out their states.
    emitting: Option<usize>,
    totals: Totals,
    /// Rows of each lane, and whether it works on a slice.
    lanes: Vec<(f64, bool)>,
    /// States that were given out, and their bytes.
    emitted: (f64, f64),
    state: Answer,
}

pub(super) struct DriveSim {
    at: usize,
    machine: Drive,
    cores: Cores<Job>,
    disk: Disk,
    link: Link<Event<Payload>>,
    reads: BTreeMap<SliceId, Vec<Read>>,
    cached: BTreeSet<SliceId>,
    running: BTreeMap<EpochId, Execution>,
    /// Epochs that are done, but whose results have not left yet.
    leaving: BTreeSet<EpochId>,
    computing: usize,
    /// Slices that were read to be sent raw, and the number of them that are being sent.
    sends: VecDeque<(EpochId, SliceId)>,
    sending: usize,
    begun: u32,
    life: u32,
    alive: bool,
    beating: bool,
    load: f64,
    foretold: u64,
    /// Epochs that are still to end with a slice too many.
    garbled: u32,
    /// Times at which slices hang, and the epochs of slices that do.
    stuck: VecDeque<f64>,
    still: Vec<EpochId>,
}

struct Meter {
    load: f64,
    cpu: BTreeMap<(EpochId, SliceId), f64>,
}

impl Meters for Meter {
    fn load(&self) -> f64 {
        self.load
    }

    fn cpu(&self, epoch: EpochId, slice: SliceId) -> f64 {
        self.cpu.get(&(epoch, slice)).copied().unwrap_or(0.0)
    }
}

impl DriveSim {
    pub(super) fn new(at: usize, spec: &Spec) -> Self {
        Self {
            at,
            machine: Drive::new(),
            cores: Cores::new(spec.is.cores, spec.is.speed_per_core),
            disk: Disk::new(spec.is.disk_bytes_per_s, spec.is.disk_seek_s),
            link: Link::new(spec.is.link_bytes_per_s()),
            reads: BTreeMap::new(),
            cached: BTreeSet::new(),
            running: BTreeMap::new(),
            leaving: BTreeSet::new(),
            computing: 0,
            sends: VecDeque::new(),
            sending: 0,
            begun: 0,
            life: 0,
            alive: true,
            beating: false,
            load: 1.0,
            foretold: 0,
            garbled: spec.mishaps.garbled,
            stuck: spec.mishaps.stuck.iter().copied().collect(),
            still: Vec::new(),
        }
    }

    fn cse(&self) -> CseId {
        CseId(self.at as u32)
    }

    fn say(&self, world: &mut World<'_>, up: Up) {
        world.send_up(self.at, Event::Up { cse: self.cse(), up });
    }

    pub(super) fn order(&mut self, world: &mut World<'_>, down: Down) {
        if !self.alive {
            return;
        }
        for effect in self.machine.order(world.now, down, MEMORY, &world.pressure(self.at)) {
            match effect {
                Effect::Say(up) => self.say(world, up),
                Effect::Look => {}
                Effect::Begin { epoch, rung } => {
                    let lanes = vec![(0.0, false); world.fleet.drives[self.at].is.cores as usize];
                    self.running.insert(epoch, Execution { lanes, ..Execution::default() });
                    if rung == PushdownLevel::Raw {
                        while let Next::Slice(slice) = self.machine.next(world.now, epoch) {
                            if self.cached.contains(&slice) {
                                self.sends.push_back((epoch, slice));
                            } else {
                                self.read(world, slice, Read::Raw(epoch));
                            }
                        }
                    } else {
                        self.cores.begin(world.now, Job::Begin(epoch), PRIORS.epoch_s, false);
                    }
                    if !self.beating {
                        self.beating = true;
                        world.after(world.fleet.limits.heartbeat, Happening::Beat(self.at, self.life));
                    }
                }
                Effect::Forget { epoch } => {
                    self.running.remove(&epoch);
                    self.cores.retain(world.now, |job| job.epoch() != epoch);
                    self.still.retain(|other| *other != epoch);
                    self.computing = self.still.len() + self.cores.jobs(world.now).filter(|(job, _)| matches!(job, Job::Slice { .. })).count();
                    self.sending = self.cores.jobs(world.now).filter(|(job, _)| matches!(job, Job::Send { .. })).count();
                }
            }
        }
        self.pump(world);
    }

    fn read(&mut self, world: &World<'_>, slice: SliceId, why: Read) {
        let reads = self.reads.entry(slice).or_default();
        if reads.is_empty() {
            self.disk.ask(slice.0, world.work.bytes as f64);
        }
        if !reads.contains(&why) {
            reads.push(why);
        }
    }

    /// Reads ahead, begins what can be begun, ends what is over, and foretells what is done next.
    fn pump(&mut self, world: &mut World<'_>) {
        let cores = world.fleet.drives[self.at].is.cores as usize;
        let ahead: Vec<SliceId> = self.machine.ahead().map(|(_, slice)| slice).take(cores + READ_AHEAD).collect();
        for slice in ahead {
            if !self.cached.contains(&slice) {
                self.read(world, slice, Read::Ahead);
            }
        }
        while self.link.queued() + self.sending as f64 * world.work.bytes as f64 <= OUTGOING
            && let Some((epoch, slice)) = self.sends.pop_front()
        {
            if self.running.contains_key(&epoch) {
                self.sending += 1;
                self.cores.begin(world.now, Job::Send { epoch, slice }, world.work.bytes as f64 * PRIORS.transfer_s_per_byte.max(world.work.truth.read), false);
            }
        }
        loop {
            if self.computing >= cores || self.link.queued() > OUTGOING {
                break;
            }
            let next = self.machine.ahead().find(|(epoch, _)| self.running.get(epoch).is_some_and(|execution| execution.ready));
            let Some((epoch, slice)) = next else { break };
            if !self.cached.contains(&slice) {
                break;
            }
            let Next::Slice(begun) = self.machine.next(world.now, epoch) else { break };
            self.cached.remove(&begun);
            let rung = self.machine.rung(epoch).unwrap_or(PushdownLevel::Full);
            let rows = f64::from(world.work.rows);
            let per_row = world.lower + if rung == PushdownLevel::Full { world.upper } else { 0.0 };
            let (warm, slower) = world.fleet.warm_up;
            let warm_up = if self.begun < warm { slower } else { 1.0 };
            self.begun += 1;
            let (_, bytes) = streams(world, rung);
            let work = rows * per_row * world.real[begun.0 as usize].cost * warm_up
                + bytes * PRIORS.transfer_s_per_byte
                + world.work.bytes as f64 * world.work.truth.read;
            self.computing += 1;
            let lanes = self.running.get_mut(&epoch).map(|run| &mut run.lanes);
            // The lane that asks is one that has nothing to do.
            let lane = lanes.and_then(|lanes| lanes.iter_mut().enumerate().find(|(_, lane)| !lane.1)).map_or(0, |(at, lane)| {
                lane.1 = true;
                at
            });
            if self.stuck.pop_front_if(|at| *at <= world.now).is_some() {
                // It never ends; its lane has it until its epoch is cancelled.
                self.still.push(epoch);
                continue;
            }
            self.cores.begin(world.now, Job::Slice { epoch, slice: begun, work, lane }, work, true);
        }
        let over: Vec<EpochId> =
            self.running.iter().filter(|(id, run)| run.emitting.is_none() && self.machine.is_over(world.now, **id)).map(|(id, _)| *id).collect();
        for epoch in over {
            let rung = self.machine.rung(epoch);
            let Some(run) = self.running.get_mut(&epoch) else { continue };
            // Each lane has states of its own.
            let states: Vec<(f64, f64)> = match (rung, world.work.truth.states) {
                (Some(PushdownLevel::Full), Some((groups, bytes))) => {
                    let rows = run.lanes.iter().filter(|lane| lane.0 > 0.0).map(|lane| distinct(groups, lane.0 * world.work.truth.selected));
                    rows.map(|rows| (rows, rows * bytes)).collect()
                }
                _ => vec![],
            };
            run.emitting = Some(states.len().max(1));
            if rung == Some(PushdownLevel::Raw) {
                self.finish(world, epoch);
                continue;
            }
            for (rows, bytes) in if states.is_empty() { vec![(0.0, 0.0)] } else { states } {
                let work = rows * PRIORS.emit_s_per_state + bytes * PRIORS.transfer_s_per_byte;
                self.cores.begin(world.now, Job::Emit { epoch, rows, bytes }, work, false);
            }
        }
        if let Some(time) = self.disk.start() {
            world.after(time, Happening::Disk(self.at, self.life));
        }
        if let Some(time) = self.link.start() {
            world.after(time, Happening::Link(self.at, self.life));
        }
        if self.foretold != self.cores.change
            && let Some(next) = self.cores.next()
        {
            self.foretold = self.cores.change;
            world.after((next - world.now).max(0.0), Happening::Cores(self.at, self.cores.change));
        }
    }

    fn batch(&mut self, epoch: EpochId, rows: f64, bytes: f64, batch: Payload) {
        let cse = self.cse();
        let Some(run) = self.running.get_mut(&epoch) else { return };
        let number = run.totals.batches;
        run.totals.batches += 1;
        run.totals.rows += rows as u64;
        run.totals.bytes += bytes as u64;
        self.link.send(bytes, Event::Batch { cse, epoch, number, bytes: bytes as u64, batch });
    }

    fn finish(&mut self, world: &World<'_>, epoch: EpochId) {
        let (state, (rows, bytes)) = self.running.get_mut(&epoch).map(|run| (std::mem::take(&mut run.state), run.emitted)).unwrap_or_default();
        if !state.is_empty() {
            self.batch(epoch, rows, bytes, Payload::States(state.into_iter().map(|(group, (sum, count))| (group, sum, count)).collect()));
        }
        let Some(run) = self.running.remove(&epoch) else { return };
        if let Some(mut up) = self.machine.finished(world.now, epoch, run.totals) {
            if let Up::EpochDone(end) = &mut up
                && self.garbled > 0
                && end.rung != PushdownLevel::Raw
            {
                self.garbled -= 1;
                end.slices.push(NO_SLICE);
            }
            let cse = self.cse();
            self.leaving.insert(epoch);
            self.link.send(0.0, Event::Up { cse, up });
        }
    }

    pub(super) fn core_done(&mut self, world: &mut World<'_>, change: u64) {
        if self.cores.change != change {
            return;
        }
        while let Some(job) = self.cores.take(world.now) {
            match job {
                Job::Begin(epoch) => {
                    if let Some(run) = self.running.get_mut(&epoch) {
                        run.ready = true;
                    }
                }
                Job::Slice { epoch, slice, work, lane } => {
                    self.computing -= 1;
                    if let Some(lane) = self.running.get_mut(&epoch).and_then(|run| run.lanes.get_mut(lane)) {
                        *lane = (lane.0 + f64::from(world.work.rows), false);
                    }
                    self.slice_done(world, epoch, slice, work);
                }
                Job::Send { epoch, slice } => {
                    self.sending -= 1;
                    self.batch(epoch, 0.0, world.work.bytes as f64, Payload::Stored(slice));
                    // The storage interface sends raw slices: the state machine counts them, but no message reports
                    // their cost.
                    let cost = SliceCost { slice, cpu: 0.0, rows_out: 0, bytes_out: world.work.bytes };
                    let unread = Meter { load: self.load, cpu: BTreeMap::new() };
                    let _ = self.machine.slice_done(world.now, epoch, cost, (0, 0), &unread);
                }
                Job::Emit { epoch, rows, bytes } => {
                    let Some(run) = self.running.get_mut(&epoch) else { continue };
                    run.emitted = (run.emitted.0 + rows, run.emitted.1 + bytes);
                    run.emitting = run.emitting.map(|left| left - 1);
                    if run.emitting == Some(0) {
                        self.finish(world, epoch);
                    }
                }
            }
        }
        self.pump(world);
    }

    fn slice_done(&mut self, world: &mut World<'_>, epoch: EpochId, slice: SliceId, work: f64) {
        let rung = self.machine.rung(epoch).unwrap_or(PushdownLevel::Full);
        let real = world.real[slice.0 as usize];
        let (rows, bytes) = streams(world, rung);
        let Some(run) = self.running.get_mut(&epoch) else { return };
        run.totals.bytes_read += world.work.bytes;
        if rung == PushdownLevel::Full {
            let entry = run.state.entry(real.group).or_default();
            *entry = (entry.0 + real.value, entry.1 + 1);
        }
        if world.work.truth.states.is_none() && rung == PushdownLevel::Full {
            // Results of a slice go up at once.
            let state = std::mem::take(&mut run.state);
            self.batch(epoch, rows, bytes, Payload::States(state.into_iter().map(|(group, (sum, count))| (group, sum, count)).collect()));
        } else if rung == PushdownLevel::Filter {
            self.batch(epoch, rows, bytes, Payload::Rows(vec![(real.group, real.value)]));
        }
        let cpu = work / world.fleet.drives[self.at].is.speed_per_core;
        let cost = SliceCost { slice, cpu, rows_out: rows as u64, bytes_out: bytes as u64 };
        let meter = self.meter(world);
        if let Some(up) = self.machine.slice_done(world.now, epoch, cost, (0, 0), &meter) {
            self.say(world, up);
        }
    }

    pub(super) fn disk_done(&mut self, world: &mut World<'_>, life: u32) {
        if life != self.life {
            return;
        }
        if let Some(place) = self.disk.done() {
            let slice = SliceId(place);
            for read in self.reads.remove(&slice).unwrap_or_default() {
                match read {
                    Read::Ahead => {
                        self.cached.insert(slice);
                    }
                    Read::Raw(epoch) => self.sends.push_back((epoch, slice)),
                }
            }
        }
        self.pump(world);
    }

    pub(super) fn link_done(&mut self, world: &mut World<'_>, life: u32) {
        if life != self.life {
            return;
        }
        if let Some((bytes, message)) = self.link.done() {
            if let Some(Event::Up { up: Up::EpochDone(end), .. }) = &message {
                self.leaving.remove(&end.epoch);
            }
            world.nic.pass(bytes, message);
            world.start_nic();
        }
        self.pump(world);
    }

    pub(super) fn beat(&mut self, world: &mut World<'_>, life: u32) {
        if life != self.life || !self.alive {
            return;
        }
        let every = world.fleet.limits.heartbeat;
        let meter = self.meter(world);
        for up in self.machine.beat(world.now, every, &meter) {
            let raw = matches!(&up, Up::Progress { epoch, .. } if self.machine.rung(*epoch) == Some(PushdownLevel::Raw));
            if !raw {
                self.say(world, up);
            }
        }
        let stopped = self.machine.reconsider(&world.pressure(self.at));
        if !stopped.is_empty() {
            stopped.into_iter().for_each(|up| self.say(world, up));
            self.pump(world);
        }
        let cse = self.cse();
        for epoch in self.leaving.clone() {
            world.send_up(self.at, Event::Alive { cse, epoch: Some(epoch) });
        }
        if self.running.is_empty() && self.leaving.is_empty() {
            self.beating = false;
        } else {
            world.after(every, Happening::Beat(self.at, self.life));
        }
    }

    /// The drive's measurements now: how much longer than their processor time its lanes took since the last call.
    fn meter(&mut self, world: &World<'_>) -> Meter {
        let speed = world.fleet.drives[self.at].is.speed_per_core;
        if let Some((passed, worked)) = self.cores.meter(world.now) {
            self.load = (passed * speed / worked).clamp(1.0, 1000.0);
        }
        let load = self.load;
        let cpu = self.cores.jobs(world.now).filter_map(|(job, left)| match job {
            Job::Slice { epoch, slice, work, .. } => Some(((*epoch, *slice), (work - left) / speed)),
            _ => None,
        });
        Meter { load, cpu: cpu.collect() }
    }

    pub(super) fn set_speed(&mut self, world: &mut World<'_>) {
        let spec = &world.fleet.drives[self.at];
        let load = spec.load.iter().rev().find(|(from, _)| *from <= world.now).map_or(1.0, |(_, load)| *load);
        let stalled = world.stalled(self.at) > 0.0;
        let speed = if stalled { 1e-9 } else { spec.is.speed_per_core / load };
        self.cores.set_speed(world.now, speed);
        self.pump(world);
    }

    pub(super) fn kill(&mut self, world: &mut World<'_>) {
        self.alive = false;
        self.life += 1;
        self.machine = Drive::new();
        self.cores.retain(world.now, |_| false);
        self.disk.reset();
        self.link.reset();
        self.reads.clear();
        self.cached.clear();
        self.running.clear();
        self.leaving.clear();
        self.sends.clear();
        self.still.clear();
        (self.computing, self.sending, self.begun, self.beating) = (0, 0, 0, false);
    }

    pub(super) fn restart(&mut self) {
        self.alive = true;
    }
}

/// Rows and bytes that a slice gives at `rung` before the end of its epoch.
fn streams(world: &World<'_>, rung: PushdownLevel) -> (f64, f64) {
    let truth = world.work.truth;
    let rows = f64::from(world.work.rows);
    match rung {
        PushdownLevel::Raw => (0.0, world.work.bytes as f64),
        PushdownLevel::Filter => (rows * truth.selected, rows * truth.selected * truth.row_bytes),
        PushdownLevel::Full if truth.states.is_none() => (rows * truth.selected, rows * truth.result_bytes),
        PushdownLevel::Full => (0.0, 0.0),
    }
}
