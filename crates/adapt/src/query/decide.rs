//! The decisions: plan, take away, feed, hand over, close, hedge, give up.

use std::collections::BTreeMap;

use super::{Action, Epoch, Policy, Query, Stage};
use crate::cost::SliceLoad;
use crate::learn::{KNOWN, WARM_UP};
use crate::message::{CloseAfter, EpochId, Order, Rung, Seconds, SliceId};
use crate::plan::{Above, Lane, Part, Share, States, divide};
use crate::work::Output;

/// Bounds of the time between two plans, seconds.
const PLAN_EVERY: (Seconds, Seconds) = (0.002, 0.05);

/// Share of the time that is left after which to plan again.
const PLAN_SHARE: f64 = 0.01;

/// Every so many plans the drives are looked at one by one.
const THOROUGH: u32 = 3;

/// A load that changed by this factor is a reason to plan at once.
const LOAD_JUMP: f64 = 1.5;

/// Seconds of work that a drive has in its queue beyond what its cores are busy with, so that it never waits for us.
const AHEAD: Seconds = 0.015;

/// Seconds for which the level above is taken not to listen once it says so.
const DEAF: Seconds = 0.04;

/// How many times as long as it should a slice may take on its way before its drive is taken to be silent.
const PATIENT: f64 = 4.0;

/// Seconds that an order for a slice may wait for us.
const SLACK: Seconds = 0.005;

/// The most slices on their way from a drive, but for one.
const MAX_PIPE: u32 = 31;

/// What closing epochs may cost, as a share of the work in them.
const CLOSING: f64 = 0.015;

/// Seconds of work in an epoch where closing it costs next to nothing.
const EPOCH: Seconds = 0.05;

/// What learning how fast a drive is may take, as a share of all the time.
const LEARN: f64 = 0.05;

/// Slices that can be taken from a drive within such a share of the time that is left are not taken yet.
const LITTLE: f64 = 0.15;

/// A drive does not begin with its own work for less than this share of its slices.
const SPARSE: f64 = 0.01;

/// A drive that is not known (or, where that gains time, has worked nothing off yet) does not begin any more when less is left than so many times what a slice should take: the first take
/// longer, and it may be busy. Where that gains much time, and where it does not.
const LATE: (f64, f64) = (8.0, 20.0);

/// So many times later all must end if drives work nothing off, for that to gain much.
const GAIN: f64 = 1.05;

/// What drives that have worked nothing off yet must gain to begin, as a share of the time that the query takes.
const WORTH: f64 = 0.03;

/// How many times as long the first slices take, about.
const FIRST: f64 = 2.0;

/// Share of the time that is left from which on handing out is urgent.
const URGENT: f64 = 0.8;

/// Share of the time that is left for which a drive that had its hands full begins with nothing of its own.
const BARRED: f64 = 0.25;

/// Plans in a row that must agree for a slice to be fed or taken back.
const STEADY: usize = 3;

/// An epoch is done again elsewhere if that is expected to end so many times sooner.
const HEDGE: f64 = 1.5;

/// A drive whose processor needs such a share of all the time that is left, for handing out alone, holds all up.
const HANDS_FULL: f64 = 0.9;

impl<B> Query<B> {
    pub(super) fn decide(&mut self, out: &mut Vec<Action<B>>) {
        self.finish_if_covered(out);
        if self.ended {
            return;
        }
        // Who does not listen has nothing new to say.
        if self.now < self.deaf_at + DEAF {
            self.wake = Some(self.deaf_at + DEAF);
            return;
        }
        let jumped = (0..self.cses.len()).any(|at| {
            let (before, now) = (self.planned_load[at], self.cost.load(at));
            now > before * LOAD_JUMP || now * LOAD_JUMP < before
        });
        let left = (self.planned_at + self.plan.end - self.now).max(0.0);
        // Where nothing happens there is nothing new to think about.
        let every = ((left * PLAN_SHARE).max(PLAN_EVERY.0) * f64::from(1 << self.idle.min(5))).min(PLAN_EVERY.1);
        let since = self.now - self.planned_at;
        if since >= every || ((self.dirty || jumped) && since >= PLAN_EVERY.0) || self.plans == 0 {
            self.give_up_the_silent(out);
            if self.ended {
                return;
            }
            self.replan(jumped, out);
        }
        while let Some(cse) = self.touched.pop_first() {
            self.feed(cse, out);
        }
        self.hand_over(out);
        self.wake = Some(self.now + if self.dirty { PLAN_EVERY.0 } else { every });
    }

    fn give_up_the_silent(&mut self, out: &mut Vec<Action<B>>) {
        let silence = self.limits.silence;
        let mut astray: BTreeMap<usize, Vec<EpochId>> = BTreeMap::new();
        for (id, open) in
            self.epochs.iter().filter(|(_, open)| self.now - open.sound > silence + if open.rung == Rung::Raw { self.turn(open.cse) } else { 0.0 })
        {
            astray.entry(open.cse).or_default().push(*id);
        }
        for (cse, epochs) in astray {
            // A CSE of which nothing at all is heard is dealt with below.
            if self.now - self.cses[cse].heard > silence {
                continue;
            }
            self.struck(cse, out);
            for epoch in epochs {
                self.abandon(epoch, out);
            }
            if self.ended {
                return;
            }
        }
        for cse in 0..self.cses.len() {
            let book = &self.cses[cse];
            let waits = !book.dead && (!book.epochs.is_empty() || !book.surveyed);
            // Who only hands out slices has nothing to say until one of them is there.
            let lanes = book.epochs.iter().filter_map(|id| self.epochs.get(id)).any(|open| open.rung != Rung::Raw);
            let silence = self.limits.silence + if lanes { 0.0 } else { self.turn(cse) };
            if waits && self.now - book.heard > silence {
                self.lost(cse, true, out);
                if self.ended {
                    return;
                }
            }
        }
    }

    /// Seconds in which a slice that `cse` hands out is to be expected, at the latest.
    fn turn(&self, cse: usize) -> Seconds {
        let own = &self.cses[cse];
        let raw = self.cost.slice(cse, Rung::Raw, (own.rows, own.bytes));
        let sending = f64::from(own.raw_open.max(1)) * raw.wall / f64::from(self.cost.profile(cse).cores);
        PATIENT * (self.cost.disk(cse, own.bytes) + sending.max(raw.wall) + own.bytes / self.cost.link(cse))
    }

    pub(super) fn usable(&self, cse: usize) -> bool {
        let book = &self.cses[cse];
        book.surveyed && !book.dead && book.paused_until <= self.now
    }

    /// Slices of its epochs that could still be taken back.
    fn queued(&self, cse: usize) -> u32 {
        let epochs = self.cses[cse].epochs.iter().filter_map(|id| self.epochs.get(id)).filter(|open| open.rung != Rung::Raw);
        epochs.map(|open| open.slices.values().filter(|stage| **stage == Stage::Queued).count() as u32).sum()
    }

    /// Seconds until the slices that run in `open` are done, one by one.
    fn remaining<'a>(&'a self, open: &'a Epoch) -> impl Iterator<Item = Seconds> + 'a {
        let own = &self.cses[open.cse];
        let load = self.cost.slice(open.cse, open.rung, (own.rows, own.bytes));
        let since = self.now - open.heard;
        // The first slices take longer, and what is learnt of them believes them by half only.
        let cpu = load.cpu * if self.cost.is_warm(open.cse, open.rung) { 1.0 } else { FIRST };
        // What has had more than it should will go on for a while.
        open.running.iter().map(move |(_, had)| ((cpu - had) * self.cost.load(open.cse) - since).max(0.15 * load.wall))
    }

    /// Whether an epoch of `rung` is to find out how many groups there are. Drives tell when it ends: so it has a slice for each core and no more, whatever is
    /// thought of groups, and nothing is begun after it before that is known. States of many groups would hold up what is better handed out.
    fn is_probe(&self, rung: Rung) -> bool {
        self.policy == Policy::Adaptive && self.cost.holds_state(rung) && !self.cost.groups_are_known()
    }

    /// Slices per epoch of `rung`, so that closing is a small share of the work; `u32::MAX` for one epoch to the end.
    fn epoch_size(&self, cse: usize, rung: Rung) -> u32 {
        let own = &self.cses[cse];
        let (profile, slice) = (self.cost.profile(cse), (own.rows, own.bytes));
        let load = self.cost.slice(cse, rung, slice);
        let cores = f64::from(profile.cores);
        if self.is_probe(rung) {
            return profile.cores.max(1);
        }
        let mut size = (EPOCH * cores / load.wall.max(1e-9)).clamp(1.0, 256.0).ceil();
        loop {
            let close = self.cost.close(cse, rung, own.rows * size);
            let cost = close.wall + close.above + close.bytes / self.cost.link(cse);
            if cost <= CLOSING * size * load.wall {
                break;
            }
            size = (size * 1.3).ceil();
            if size > own.slices.max(1.0) {
                if self.cost.holds_state(rung) {
                    return u32::MAX;
                }
                break;
            }
        }
        // Results are held above until their epoch is complete.
        let room = self.limits.memory as f64 / (4.0 * self.cses.len() as f64) / load.bytes.max(1.0);
        size.min(room.max(1.0)).max(1.0) as u32
    }

    fn lanes(&self, cse: usize) -> Vec<Rung> {
        let book = &self.cses[cse];
        let reach = if book.reach_until > self.now { book.reach } else { Some(Rung::Full) };
        let has_upper = self.cost.has_upper();
        let offered = match self.policy {
            Policy::Static(Rung::Raw) => vec![],
            Policy::Static(rung) => vec![rung],
            Policy::Adaptive if has_upper => vec![Rung::Full, Rung::Filter],
            Policy::Adaptive => vec![Rung::Full],
        };
        // Without an upper part the two are the same work.
        let mut lanes: Vec<Rung> = offered.into_iter().map(|rung| if !has_upper && reach == Some(Rung::Filter) { Rung::Filter } else { rung }).collect();
        lanes.retain(|rung| reach.is_some_and(|reach| *rung <= reach));
        lanes
    }

    fn part(&self, cse: usize) -> Part {
        let book = &self.cses[cse];
        let profile = self.cost.profile(cse);
        let slice = (book.rows, book.bytes);
        let usable = self.usable(cse);
        let slices = if usable { book.pool.len() as u32 + self.queued(cse) } else { 0 };
        let (running, under_way) = book
            .epochs
            .iter()
            .filter_map(|id| self.epochs.get(id))
            .filter(|open| open.rung != Rung::Raw)
            .flat_map(|open| self.remaining(open))
            .fold((0.0, 0.0), |(seconds, count), left| (seconds + left, count + 1.0));
        let lanes: Vec<Lane> = if usable {
            self.lanes(cse)
                .into_iter()
                .map(|rung| {
                    let mut load = self.cost.slice(cse, rung, slice);
                    let size = f64::from(self.epoch_size(cse, rung)).min(book.slices.max(1.0));
                    let empty = self.cost.close(cse, rung, 0.0);
                    load.wall += empty.wall / size;
                    let states = self.cost.holds_state(rung).then(|| self.states(cse, rung));
                    let margin = if self.cost.is_known(cse, rung) { 0.5 } else { 3.0 };
                    // What has begun is in `busy`.
                    let cold: f64 = f64::from(self.cost.cold(cse)).min(book.slices) - under_way;
                    let begin = cold.max(0.0) * (FIRST - 1.0) * load.wall;
                    let commits = states.is_some_and(|states| states.begun == 0.0) && !self.is_probe(rung) && self.epoch_size(cse, rung) == u32::MAX;
                    Lane { rung, load, margin, begin, states, commits }
                })
                .collect()
        } else {
            Vec::new()
        };
        let raw = self.cost.slice(cse, Rung::Raw, slice);
        let (mut held, mut closing) = ((0.0, 0.0), 0.0);
        for (id, open) in book.epochs.iter().filter_map(|id| self.epochs.get(id).map(|open| (id, open))).filter(|(_, open)| self.cost.holds_state(open.rung)) {
            let begun = open.slices.values().filter(|stage| **stage != Stage::Queued).count();
            let close = self.cost.close(cse, open.rung, book.rows * begun as f64);
            if book.lane == Some(*id) {
                held = (close.bytes, close.above);
            } else {
                closing += close.bytes;
            }
        }
        Part {
            slices,
            cores: profile.cores,
            busy: running / f64::from(profile.cores),
            backlog: self.backlog(cse) + closing,
            held,
            disk: self.cost.disk(cse, book.bytes),
            link: self.cost.link(cse),
            raw,
            begin_above: if book.above_begun { 0.0 } else { self.cost.begin_above() },
            // Whoever must work everything off below, or can't, hands out nothing of its own accord.
            may_raw: self.policy == Policy::Adaptive || self.policy == Policy::Static(Rung::Raw) || (lanes.is_empty() && slices > 0),
            lanes,
        }
    }

    fn states(&self, cse: usize, rung: Rung) -> States {
        let book = &self.cses[cse];
        let open = book.lane.and_then(|id| self.epochs.get(&id)).filter(|open| open.rung == rung);
        let begun = open.map_or(0, |open| open.slices.values().filter(|stage| **stage != Stage::Queued).count());
        let Output::Groups { bytes_per_group, .. } = self.cost.work().result else {
            return States { groups: 0.0, rows: 0.0, begun: 0.0, lanes: 1.0, bytes: 0.0, emit: 0.0, merge: 0.0 };
        };
        // Seconds per state follow from a close of many rows.
        let rows = book.rows * book.slices.max(1.0);
        let (some, none) = (self.cost.close(cse, rung, rows), self.cost.close(cse, rung, 0.0));
        let count = (some.bytes / bytes_per_group.max(1.0)).max(1e-9);
        States {
            groups: self.cost.groups(),
            rows: self.cost.rows_into_groups(book.rows),
            begun: begun as f64,
            lanes: f64::from(self.cost.profile(cse).cores),
            bytes: bytes_per_group,
            emit: (some.wall - none.wall) / count,
            merge: some.above / count,
        }
    }

    fn replan(&mut self, jumped: bool, out: &mut Vec<Action<B>>) {
        self.cost.forget(self.now);
        let parts: Vec<Part> = (0..self.cses.len()).map(|cse| self.part(cse)).collect();
        let waiting: f64 = self.waiting.values().map(|waiting| waiting.above).sum();
        let coming: f64 = self.cses.iter().enumerate().map(|(at, book)| f64::from(book.raw_open) * parts[at].raw.above).sum();
        let host = self.cost.host();
        let above = Above { cores: f64::from(host.cores), busy: waiting + coming, link: host.link_bytes_per_s() };
        let present: Vec<Option<usize>> =
            parts.iter().zip(&self.cses).map(|(part, book)| book.rung.and_then(|rung| part.lanes.iter().position(|lane| lane.rung == rung))).collect();
        let thorough = self.plans.is_multiple_of(THOROUGH);
        let mut plan =
            divide(&above, &parts, (self.plans > 0).then_some((present.as_slice(), (self.plan.end - (self.now - self.planned_at)).max(0.0))), thorough);
        self.touched.extend(0..parts.len());
        // What is taken can't be given back: where there is time enough for it later, when more is known, it is taken later.
        // Not so where the level above has its hands full: it must never wait for work then.
        let all = plan.shares.iter().zip(&parts).fold((0.0, above.busy), |(bytes, work), (share, part)| {
            let (raw, below) = (f64::from(share.raw), f64::from(share.below));
            let lane = share.lane.and_then(|lane| part.lanes.get(lane)).map_or(SliceLoad::default(), |lane| lane.load);
            (bytes + part.backlog + raw * part.raw.bytes + below * lane.bytes, work + raw * part.raw.above + below * lane.above)
        });
        let little = all.0 / above.link < 0.5 * plan.end && all.1 / above.cores < 0.5 * plan.end;
        // When all would be done if no drive worked anything off: who gains no time by it takes no risks.
        let handed = parts.iter().fold((0.0_f64, 0.0, above.busy), |(end, bytes, work), part| {
            let n = f64::from(part.slices);
            let own = n * part.disk.max(part.raw.bytes / part.link).max(part.raw.wall / f64::from(part.cores));
            (end.max(own), bytes + part.backlog + n * part.raw.bytes, work + n * part.raw.above)
        });
        let handed = handed.0.max(handed.1 / above.link).max(handed.2 / above.cores);
        let gains = handed > GAIN * plan.end;
        let late = if gains { LATE.0 } else { LATE.1 };
        // A drive that has worked nothing off yet may be slower than thought, or busy: what is lost then is a share of all, not of what is left.
        let worth = handed - plan.end > WORTH * (self.now + plan.end);
        for (cse, part) in parts.iter().enumerate() {
            let (cores, latency) = (f64::from(part.cores), self.cost.profile(cse).link_latency_s);
            let each = part.disk.max(part.raw.bytes / part.link).max(part.raw.wall / cores);
            self.cses[cse].raw_each = each;
            // So many that no stage of their way up waits for another: the slowest one always has one to work on while the others are under way. Its
            // cores are shared with what it works off itself, by turns: to have so many of them takes more at once.
            let way = part.disk + part.raw.bytes / part.link + part.raw.bytes / above.link + 2.0 * latency + SLACK;
            let needs = part.raw.wall / each.max(1e-9);
            let lanes = if plan.shares[cse].below > 0 || part.busy > 0.0 { cores } else { 0.0 };
            let sending = needs.max(lanes * needs / (cores - needs).max(0.1 * cores));
            self.cses[cse].raw_pipe = 1 + ((way / each.max(1e-9) + sending).ceil() as u32).min(MAX_PIPE);
            let end = plan.end;
            let share = &mut plan.shares[cse];
            if part.slices > 0 && share.below + share.raw == 0 {
                // Whatever the plan thinks of it: nothing is left lying.
                *share = if part.may_raw { Share { lane: None, below: 0, raw: part.slices } } else { Share { lane: Some(0), below: part.slices, raw: 0 } };
            }
            // To begin with its own work for next to nothing costs more than it gains. Of a feed nobody sees the end.
            let sparse = self.cses[cse].lane.is_none()
                && !self.fed
                && (f64::from(share.below) < SPARSE * f64::from(part.slices)
                    || (!worth && !self.cost.has_run(cse))
                    || share.lane.and_then(|lane| part.lanes.get(lane)).is_some_and(|lane| {
                        !(if gains { self.cost.has_run(cse) } else { self.cost.is_known(cse, lane.rung) }) && late * lane.load.wall > plan.end
                    }));
            if sparse && part.may_raw && self.policy == Policy::Adaptive {
                *share = Share { lane: share.lane, below: 0, raw: part.slices };
            }
            // Nor does the level above where the drive alone would hardly be later.
            let alone = share.lane.and_then(|lane| part.lanes.get(lane)).filter(|lane| lane.rung == Rung::Full && share.below > 0).map(|lane| {
                let n = f64::from(part.slices);
                let states = lane.states.map_or((0.0, 0.0), |states| {
                    let (count, bytes) = states.at(n);
                    (bytes / part.link + count * states.merge / above.cores, count * states.emit)
                });
                let work = part.busy + (n * lane.load.wall + lane.begin) / cores;
                work.max((part.backlog + n * lane.load.bytes) / part.link) + states.0 + states.1
            });
            if self.policy == Policy::Adaptive
                && !self.cses[cse].above_begun
                && share.raw > 0
                && alone.is_some_and(|alone| alone - end < WORTH * (self.now + end))
            {
                *share = Share { lane: share.lane, below: part.slices, raw: 0 };
            }
            if self.cses[cse].barred_until > self.now && part.may_raw {
                *share = Share { lane: share.lane, below: 0, raw: part.slices };
            }
            let share = *share;
            let little = share.below > 0 && f64::from(share.raw) * each < LITTLE * plan.end && little;
            self.cses[cse].learning = little || self.learning(cse, part, share, plan.end);
            self.cses[cse].rung = share.lane.map(|lane| part.lanes[lane].rung);
            let queued = self.queued(cse);
            // Plans differ by a slice or two: what is given now is not to be taken back by the next one.
            let book = &mut self.cses[cse];
            if jumped || share.lane.is_none() {
                book.wanted.clear();
            }
            book.wanted.push_back(share.below);
            if book.wanted.len() > STEADY {
                book.wanted.pop_front();
            }
            let (least, most) = book.wanted.iter().fold((u32::MAX, 0), |(least, most), below| (least.min(*below), most.max(*below)));
            book.feed_left = if share.raw > 0 { least } else { share.below }.saturating_sub(queued);
            book.raw_left = share.raw;
            if queued > most && self.policy == Policy::Adaptive {
                self.take(cse, queued - most, out);
            }
            let book = &mut self.cses[cse];
            book.unwanted = if share.below == 0 { book.unwanted + 1 } else { 0 };
            self.planned_load[cse] = self.cost.load(cse);
        }
        self.turns_by_need();
        if !plan.end.is_finite() {
            plan.end = PLAN_EVERY.1;
        }
        self.shares.clone_from(&plan.shares);
        self.plan = plan;
        self.planned_at = self.now;
        self.plans += 1;
        self.idle += 1;
        self.dirty = false;
        if self.policy == Policy::Adaptive {
            self.hedge(&parts, &above, out);
        }
    }

    /// Drives take turns on the link that all share, slice by slice: who has so many under way gets so much of it. Who has more left to hand out than others is
    /// to have more under way, so that nobody is left behind who then goes on alone.
    fn turns_by_need(&mut self) {
        let (pipes, bytes) = self
            .cses
            .iter()
            .filter(|book| book.raw_left > 0)
            .fold((0.0, 0.0), |(pipes, bytes), book| (pipes + f64::from(book.raw_pipe), bytes + f64::from(book.raw_left) * book.bytes));
        for book in self.cses.iter_mut().filter(|book| book.raw_left > 0) {
            let share = (pipes * f64::from(book.raw_left) * book.bytes / bytes.max(1.0)).ceil() as u32;
            book.raw_pipe = book.raw_pipe.max(share.min(1 + MAX_PIPE));
        }
    }

    /// Whether a drive that is to do most of its slices itself will soon be known better: then nothing is taken from it before. Slices that it
    /// hands out go through the same link as its results, and the first measurements make it look slower than it is.
    fn learning(&self, cse: usize, part: &Part, share: Share, end: Seconds) -> bool {
        let Some(lane) = share.lane.and_then(|lane| part.lanes.get(lane)) else { return false };
        let cores = f64::from(part.cores);
        let soon = (f64::from(WARM_UP) + KNOWN as f64 + 2.0 * cores) * lane.load.wall / cores;
        share.below >= share.raw && !self.cost.is_known(cse, lane.rung) && soon < LEARN * end
    }

    /// Takes `count` slices back that `cse` has not begun, the last ones first.
    fn take(&mut self, cse: usize, count: u32, out: &mut Vec<Action<B>>) {
        let mut left = count as usize;
        let epochs: Vec<EpochId> = self.cses[cse].epochs.iter().rev().copied().collect();
        for id in epochs {
            let Some(open) = self.epochs.get_mut(&id).filter(|open| open.rung != Rung::Raw) else { continue };
            let slices: Vec<SliceId> = open.slices.iter().rev().filter(|(_, stage)| **stage == Stage::Queued).map(|(id, _)| *id).take(left).collect();
            if slices.is_empty() {
                continue;
            }
            left -= slices.len();
            for slice in &slices {
                open.slices.insert(*slice, Stage::Leaving);
            }
            let number = self.order(id, Order::Take { slices: slices.clone() }, out);
            if let Some(open) = self.epochs.get_mut(&id) {
                open.takes.insert(number, slices);
            }
            if left == 0 {
                break;
            }
        }
    }

    /// Slices that a drive has before it, so that it never waits for us.
    pub(super) fn window(&self, cse: usize, rung: Rung) -> usize {
        let own = &self.cses[cse];
        let profile = self.cost.profile(cse);
        let load = self.cost.slice(cse, rung, (own.rows, own.bytes));
        let cores = f64::from(profile.cores);
        if own.slices == 0.0 {
            // What a slice takes is not known yet.
            return profile.cores.min(4096) as usize + 1;
        }
        let ahead = (cores * (AHEAD + 4.0 * profile.link_latency_s) / load.wall.max(1e-9)).ceil().clamp(1.0, 64.0);
        (cores + ahead).min(4096.0) as usize
    }

    /// Slices that were given to a drive to work off, and are not done.
    pub(super) fn under_way(&self, cse: usize) -> usize {
        let open = self.cses[cse].epochs.iter().filter_map(|id| self.epochs.get(id)).filter(|open| open.rung != Rung::Raw);
        open.map(|open| open.slices.values().filter(|stage| !matches!(stage, Stage::Done | Stage::Leaving)).count()).sum()
    }

    /// Feeds the drive's own lane, and closes its epochs.
    fn feed(&mut self, cse: usize, out: &mut Vec<Action<B>>) {
        if let Some(lane) = self.cses[cse].lane {
            self.close_if_enough(cse, lane, out);
        }
        let Some(rung) = self.cses[cse].rung else { return };
        if self.cses[cse].feed_left == 0 || self.cses[cse].pool.is_empty() || !self.usable(cse) {
            return;
        }
        if self.is_probe(rung) && self.cses[cse].epochs.iter().filter_map(|id| self.epochs.get(id)).any(|open| open.rung != Rung::Raw) {
            return;
        }
        let window = if self.is_probe(rung) { self.cost.profile(cse).cores as usize } else { self.window(cse, rung) };
        let mut there = self.under_way(cse);
        while there < window && self.cses[cse].feed_left > 0 && !self.cses[cse].pool.is_empty() {
            let size = self.epoch_size(cse, rung);
            let lane = self.cses[cse].lane;
            let room = lane.and_then(|id| self.epochs.get(&id)).filter(|open| open.rung == rung && !open.closing).map(|open| size.saturating_sub(open.given));
            let count = (window - there).min(self.cses[cse].feed_left as usize).min(room.filter(|room| *room > 0).unwrap_or(size) as usize);
            let mut slices = Vec::with_capacity(count.min(self.cses[cse].pool.len()));
            while slices.len() < count
                && let Some(slice) = self.cses[cse].pool.pop_first()
            {
                slices.push(slice);
            }
            there += slices.len();
            self.cses[cse].feed_left -= slices.len() as u32;
            match (lane, room) {
                (Some(id), Some(room)) if room > 0 => {
                    self.give(id, &slices);
                    self.order(id, Order::Feed { slices }, out);
                }
                _ => {
                    if let Some(old) = lane {
                        self.close(cse, old, out);
                    }
                    let id = self.open(cse, rung, slices, CloseAfter::TOLD, false, out);
                    self.cses[cse].lane = Some(id);
                }
            }
        }
        if let Some(lane) = self.cses[cse].lane {
            self.close_if_enough(cse, lane, out);
        }
    }

    fn close(&mut self, cse: usize, epoch: EpochId, out: &mut Vec<Action<B>>) {
        if let Some(open) = self.epochs.get_mut(&epoch)
            && !open.closing
        {
            open.closing = true;
            self.order(epoch, Order::Close { drain: true }, out);
        }
        if self.cses[cse].lane == Some(epoch) {
            self.cses[cse].lane = None;
        }
    }

    fn close_if_enough(&mut self, cse: usize, epoch: EpochId, out: &mut Vec<Action<B>>) {
        let Some(open) = self.epochs.get(&epoch) else { return };
        let own = &self.cses[cse];
        let waits = open.slices.values().any(|stage| *stage == Stage::Queued);
        let last = if own.pool.is_empty() { !self.fed } else { own.unwanted >= 2 && !waits };
        let changed = own.rung.is_some_and(|rung| rung != open.rung);
        if last || changed || open.given >= self.epoch_size(cse, open.rung) {
            self.close(cse, epoch, out);
        }
    }

    /// Has drives hand out slices as they are stored, for the level above to work off: those first whose share will take longest.
    fn hand_over(&mut self, out: &mut Vec<Action<B>>) {
        let cores = self.cost.host().cores as usize;
        // Where enough waits to be worked off, only those hand out that will have to do so all the time until the end.
        let enough = self.waiting.len() >= 2 * cores;
        let urgent = URGENT * (self.planned_at + self.plan.end - self.now);
        let mut held: f64 = self.waiting.values().map(|waiting| waiting.bytes).sum::<f64>() + self.cses.iter().map(|cse| cse.raw_bytes).sum::<f64>();
        loop {
            let ready = self.cses.iter().enumerate().filter(|(_, book)| {
                book.raw_left > 0
                    && (!enough || f64::from(book.raw_left) * book.raw_each >= urgent)
                    && !book.learning
                    && book.raw_open < book.raw_pipe
                    && !book.pool.is_empty()
                    && !book.dead
                    && book.paused_until <= self.now
            });
            let next = ready.max_by(|(_, a), (_, b)| (f64::from(a.raw_left) * a.raw_each).total_cmp(&(f64::from(b.raw_left) * b.raw_each)));
            let Some((cse, _)) = next else { break };
            if held > 0.0 && held + self.cses[cse].bytes > self.limits.memory as f64 {
                break;
            }
            let Some(slice) = self.cses[cse].pool.pop_first() else { break };
            held += self.cses[cse].bytes;
            self.cses[cse].raw_left -= 1;
            self.open(cse, Rung::Raw, vec![slice], CloseAfter::DRAINED, false, out);
        }
    }

    /// Has epochs done again whose drive will keep everybody waiting.
    fn hedge(&mut self, parts: &[Part], above: &Above, out: &mut Vec<Action<B>>) {
        let others = self.plan.end;
        let (mut again, mut give_up) = (Vec::new(), Vec::new());
        for (id, open) in &self.epochs {
            let stuck = open.rung != Rung::Raw
                && !open.hedge
                && !open.running.is_empty()
                && open.slices.values().all(|stage| matches!(stage, Stage::Begun | Stage::Done));
            if !stuck {
                continue;
            }
            let own = &self.cses[open.cse];
            let n = open.slices.len() as f64;
            let close = self.cost.close(open.cse, open.rung, own.rows * n);
            let longest = self.remaining(open).fold(0.0, f64::max);
            let ends = longest + close.wall + close.bytes / parts[open.cse].link + close.above;
            let raw: SliceLoad = parts[open.cse].raw;
            let each = parts[open.cse].disk.max(raw.bytes / parts[open.cse].link).max(raw.wall / f64::from(parts[open.cse].cores));
            let elsewhere = n * each.max(raw.above / above.cores) + raw.above + above.busy / above.cores + 4.0 * self.cost.profile(open.cse).link_latency_s;
            // Where its processor has its hands full with handing slices out, what it works on keeps all others waiting: it is to stop at once.
            let part = &parts[open.cse];
            let cores = f64::from(part.cores);
            let handing = f64::from(self.cses[open.cse].raw_left) * raw.wall / cores;
            let full = self.shares[open.cse].below == 0 && handing > 0.5 * others && part.busy + handing > HANDS_FULL * others;
            let saves = self.remaining(open).sum::<f64>() > HEDGE * n * raw.wall;
            if full && saves {
                give_up.push((*id, open.cse));
            } else if !self.fed && ends > others + HEDGE * elsewhere + 0.002 {
                // Nobody is kept waiting as long as more is to come.
                again.push((*id, open.cse, open.slices.keys().copied().collect::<Vec<_>>()));
            }
        }
        for (id, cse) in give_up {
            self.abandon(id, out);
            // Not to begin again with the next plan.
            self.cses[cse].barred_until = self.now + (BARRED * others).max(PLAN_EVERY.1);
        }
        for (id, cse, slices) in again {
            // Where else the first of its slices can be read, from whoever is least busy.
            let readers = slices.first().and_then(|slice| self.book(*slice)).map(|book| book.slice.readers.clone()).unwrap_or_default();
            let reader = readers
                .iter()
                .map(|reader| reader.0 as usize)
                .filter(|at| *at < self.cses.len() && self.usable(*at))
                .min_by(|a, b| self.cost.load(*a).total_cmp(&self.cost.load(*b)))
                .unwrap_or(cse);
            if !slices.iter().all(|slice| self.book(*slice).is_some_and(|book| book.slice.readers.iter().any(|at| at.0 as usize == reader)))
                || !self.usable(reader)
            {
                continue;
            }
            if let Some(open) = self.epochs.get_mut(&id) {
                open.hedge = true;
            }
            self.open(reader, Rung::Raw, slices, CloseAfter::DRAINED, true, out);
        }
    }
}
