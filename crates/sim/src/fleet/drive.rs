//! A drive: the machine of `skytether_adapt::drive`, and cores, disk and link that carry out what it says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use skytether_adapt::cost::{PRIORS, distinct};
use skytether_adapt::drive::{Drive, Effect, Meters, Next, Pressure, Totals};
use skytether_adapt::message::{CseId, Down, EpochId, Rung, SliceCost, SliceId, Up};
use skytether_adapt::query::Event;

use super::{Answer, Happening, Payload, Spec, World};
use crate::device::{Cores, Disk, Link};

/// Bytes that may wait for the link before nothing more is begun.
pub(crate) const OUTGOING: f64 = 8e6;

/// Slices that are read ahead, beyond one per core.
const READ_AHEAD: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Job {
    Begin(EpochId),
    Slice { epoch: EpochId, slice: SliceId, work: f64 },
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
    emitting: bool,
    totals: Totals,
    rows: f64,
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
    /// Slices that were read to be handed out, and those of them that are being sent.
    sends: VecDeque<(EpochId, SliceId)>,
    sending: usize,
    begun: u32,
    life: u32,
    alive: bool,
    beating: bool,
    load: f64,
    load_since: f64,
    metered: f64,
    metered_at: f64,
    foretold: u64,
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
            load_since: 0.0,
            metered: 0.0,
            metered_at: 0.0,
            foretold: 0,
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
        for effect in self.machine.order(world.now, down, 0, &Pressure::NONE) {
            match effect {
                Effect::Say(up) => self.say(world, up),
                Effect::Look => {}
                Effect::Begin { epoch, rung } => {
                    self.running.insert(epoch, Execution::default());
                    if rung == Rung::Raw {
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
                    self.computing = self.cores.jobs(world.now).filter(|(job, _)| matches!(job, Job::Slice { .. })).count();
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
                self.cores.begin(world.now, Job::Send { epoch, slice }, world.work.bytes as f64 * PRIORS.transfer_s_per_byte, true);
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
            let rung = self.machine.rung(epoch).unwrap_or(Rung::Full);
            let rows = f64::from(world.work.rows);
            let per_row = world.lower + if rung == Rung::Full { world.upper } else { 0.0 };
            let (warm, slower) = world.fleet.warm_up;
            let warm_up = if self.begun < warm { slower } else { 1.0 };
            self.begun += 1;
            let (_, bytes) = streams(world, rung);
            let work = rows * per_row * world.real[begun.0 as usize].cost * warm_up + bytes * PRIORS.transfer_s_per_byte;
            self.computing += 1;
            self.cores.begin(world.now, Job::Slice { epoch, slice: begun, work }, work, false);
        }
        let over: Vec<EpochId> = self.running.iter().filter(|(id, run)| !run.emitting && self.machine.is_over(world.now, **id)).map(|(id, _)| *id).collect();
        for epoch in over {
            let rung = self.machine.rung(epoch);
            let Some(run) = self.running.get_mut(&epoch) else { continue };
            run.emitting = true;
            let (rows, bytes) = match (rung, world.work.truth.states) {
                (Some(Rung::Full), Some((groups, bytes))) => {
                    let rows = distinct(groups, run.rows * world.work.truth.selected);
                    (rows, rows * bytes)
                }
                _ => (0.0, 0.0),
            };
            if rung == Some(Rung::Raw) {
                self.finish(world, epoch, 0.0, 0.0);
            } else {
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

    fn finish(&mut self, world: &World<'_>, epoch: EpochId, rows: f64, bytes: f64) {
        let state = self.running.get_mut(&epoch).map(|run| std::mem::take(&mut run.state)).unwrap_or_default();
        if !state.is_empty() {
            self.batch(epoch, rows, bytes, Payload::States(state.into_iter().map(|(group, (sum, count))| (group, sum, count)).collect()));
        }
        let Some(run) = self.running.remove(&epoch) else { return };
        if let Some(up) = self.machine.finished(world.now, epoch, run.totals) {
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
                Job::Slice { epoch, slice, work } => {
                    self.computing -= 1;
                    self.slice_done(world, epoch, slice, work);
                }
                Job::Send { epoch, slice } => {
                    self.sending -= 1;
                    self.batch(epoch, 0.0, world.work.bytes as f64, Payload::Stored(slice));
                    let cpu = world.work.bytes as f64 * PRIORS.transfer_s_per_byte / world.fleet.drives[self.at].is.speed_per_core;
                    let cost = SliceCost { slice, cpu, rows_out: 0, bytes_out: world.work.bytes };
                    let meter = self.meter(world);
                    if let Some(up) = self.machine.slice_done(world.now, epoch, cost, (0, 0), &meter) {
                        self.say(world, up);
                    }
                }
                Job::Emit { epoch, rows, bytes } => self.finish(world, epoch, rows, bytes),
            }
        }
        self.pump(world);
    }

    fn slice_done(&mut self, world: &mut World<'_>, epoch: EpochId, slice: SliceId, work: f64) {
        let rung = self.machine.rung(epoch).unwrap_or(Rung::Full);
        let real = world.real[slice.0 as usize];
        let (rows, bytes) = streams(world, rung);
        let Some(run) = self.running.get_mut(&epoch) else { return };
        run.rows += f64::from(world.work.rows);
        run.totals.bytes_read += world.work.bytes;
        let held = match (rung, world.work.truth.states) {
            (Rung::Full, Some((groups, bytes))) => {
                let states = distinct(groups, run.rows * world.work.truth.selected);
                (states as u64, (states * bytes) as u64)
            }
            _ => (0, 0),
        };
        if rung == Rung::Full {
            let entry = run.state.entry(real.group).or_default();
            *entry = (entry.0 + real.value, entry.1 + 1);
        }
        if world.work.truth.states.is_none() && rung == Rung::Full {
            // Results of a slice go up at once.
            let state = std::mem::take(&mut run.state);
            self.batch(epoch, rows, bytes, Payload::States(state.into_iter().map(|(group, (sum, count))| (group, sum, count)).collect()));
        } else if rung == Rung::Filter {
            self.batch(epoch, rows, bytes, Payload::Rows(vec![(real.group, real.value)]));
        }
        let cpu = work / world.fleet.drives[self.at].is.speed_per_core;
        let cost = SliceCost { slice, cpu, rows_out: rows as u64, bytes_out: bytes as u64 };
        let meter = self.meter(world);
        if let Some(up) = self.machine.slice_done(world.now, epoch, cost, held, &meter) {
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
            self.say(world, up);
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

    /// What the drive measures now: its load on average since it was asked last.
    fn meter(&mut self, world: &World<'_>) -> Meter {
        self.metered += self.load * (world.now - self.load_since);
        self.load_since = world.now;
        let since = world.now - self.metered_at;
        let load = if since > 1e-9 { self.metered / since } else { self.load };
        (self.metered, self.metered_at) = (0.0, world.now);
        let speed = world.fleet.drives[self.at].is.speed_per_core;
        let cpu = self.cores.jobs(world.now).filter_map(|(job, left)| match job {
            Job::Slice { epoch, slice, work } => Some(((*epoch, *slice), (work - left) / speed)),
            _ => None,
        });
        Meter { load, cpu: cpu.collect() }
    }

    pub(super) fn set_speed(&mut self, world: &mut World<'_>) {
        let spec = &world.fleet.drives[self.at];
        let load = spec.load.iter().rev().find(|(from, _)| *from <= world.now).map_or(1.0, |(_, load)| *load);
        self.metered += self.load * (world.now - self.load_since);
        (self.load, self.load_since) = (load, world.now);
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
        (self.computing, self.sending, self.begun, self.beating) = (0, 0, 0, false);
    }

    pub(super) fn restart(&mut self) {
        self.alive = true;
    }
}

/// Rows and bytes that a slice gives at `rung` before the end of its epoch.
fn streams(world: &World<'_>, rung: Rung) -> (f64, f64) {
    let truth = world.work.truth;
    let rows = f64::from(world.work.rows);
    match rung {
        Rung::Raw => (0.0, world.work.bytes as f64),
        Rung::Filter => (rows * truth.selected, rows * truth.selected * truth.row_bytes),
        Rung::Full if truth.states.is_none() => (rows * truth.selected, rows * truth.result_bytes),
        Rung::Full => (0.0, 0.0),
    }
}
