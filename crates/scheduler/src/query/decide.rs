//! The decisions of a query: which CSE it gives up, and what its plan has each drive do.

use std::collections::BTreeMap;

use super::part::FIRST;
use super::{Action, Epoch, Policy, Query, Stage};
use crate::cost::SliceLoad;
use crate::learn::{KNOWN, WARM_UP};
use crate::message::{CloseAfter, CseId, EpochId, PushdownLevel, Seconds};
use crate::plan::{LevelCost, ParentNode, Part, Share, all_handed, divide};

/// Bounds of the time between two plans, seconds.
pub(super) const PLAN_EVERY: (Seconds, Seconds) = (0.002, 0.05);

/// Share of the time that is left after which to plan again.
const PLAN_SHARE: f64 = 0.01;

/// Plans from one in which drives are examined one by one to the next.
const THOROUGH: u32 = 3;

/// A load that changed by this factor is a reason to plan at once.
const LOAD_JUMP: f64 = 1.5;

/// Growth of the number of groups that is a reason as well.
const COUNT_JUMP: f64 = 2.0;

/// Seconds for which the parent is taken not to read messages once it reports so.
const DEAF: Seconds = 0.04;

/// How many times as long as it should a slice may take on its way before its drive is taken to be silent.
const PATIENT: f64 = 4.0;

/// That is doubled so often, at most, each time that it was in vain.
const MOST_DOUBLED: u32 = 4;

/// Seconds that an order for a slice may wait for us.
const SLACK: Seconds = 0.005;

/// The most slices on their way from a drive, but for one.
const MAX_PIPE: u32 = 31;

/// What learning how fast a drive is may take, as a share of all the time.
const LEARN: f64 = 0.1;

/// Slices that can be taken from a drive within such a share of the time that is left are not taken yet.
const LITTLE: f64 = 0.15;

/// A drive does not begin with its own work for less than this share of its slices.
const SPARSE: f64 = 0.01;

/// A drive does not begin when too little work is left, because its first slices take longer and it may be busy. The
/// limit is this number of slice times, if all that is left were sent raw. It applies to a drive that is not known.
/// Where beginning gains much time, it applies only to one that has processed nothing yet. The first value is for where
/// it gains much time, the second for where it does not.
const LATE: (f64, f64) = (8.0, 20.0);

/// Beginning gains much time if the query without the drives' processing takes this many times as long.
const GAIN: f64 = 1.05;

/// What drives that have processed nothing yet must gain to begin, as a share of the time that the query takes.
const WORTH: f64 = 0.03;

/// Plans in a row that must agree for a slice to be fed or taken back.
const STEADY: usize = 3;

/// How things stand by the plan.
struct Outlook {
    /// When all will be done.
    end: Seconds,
    /// When all would be done if every drive sent all of its slices raw.
    handed: Seconds,
    drives: usize,
    above: ParentNode,
}

impl<B> Query<B> {
    pub(super) fn decide(&mut self, out: &mut Vec<Action<B>>) {
        self.finish_if_covered(out);
        if self.ended {
            return;
        }
        // A parent that reads no messages has no new facts to plan by.
        if self.now < self.deaf_at + DEAF {
            self.wake = Some(self.deaf_at + DEAF);
            return;
        }
        let jumped = (0..self.cses.len()).any(|at| {
            let (before, now) = (self.planned_load[at], self.cost.load(at));
            now > before * LOAD_JUMP || now * LOAD_JUMP < before
        });
        let counted = self.miscounted();
        let left = (self.planned_at + self.plan.end - self.now).max(0.0);
        // Where nothing happens there is nothing new to think about.
        let every = ((left * PLAN_SHARE).max(PLAN_EVERY.0) * f64::from(1 << self.idle.min(5))).min(PLAN_EVERY.1);
        let since = self.now - self.planned_at;
        // Nothing is begun by a plan that took a million groups for a thousand: its states
        // would take the link for long.
        if since >= every || ((self.dirty || jumped) && since >= PLAN_EVERY.0) || counted || self.plans == 0 {
            self.give_up_the_silent(out);
            if self.ended {
                return;
            }
            self.replan(jumped || counted, out);
        }
        while let Some(cse) = self.touched.pop_first() {
            self.feed(cse, out);
        }
        self.hand_over(out);
        self.wake = Some(self.now + if self.dirty { PLAN_EVERY.0 } else { every });
    }

    /// Whether the count of groups exceeds the planned one by enough that drives may have begun the wrong work. A
    /// smaller count leaves the plan valid.
    fn miscounted(&self) -> bool {
        self.cost.groups_are_known() && self.cost.groups() > COUNT_JUMP * self.planned_groups
    }

    fn give_up_the_silent(&mut self, out: &mut Vec<Action<B>>) {
        let silence = self.limits.silence;
        let mut astray: BTreeMap<usize, Vec<EpochId>> = BTreeMap::new();
        // The longest silence of each CSE's own lanes.
        let mut stuck: BTreeMap<usize, Seconds> = BTreeMap::new();
        for (id, open) in self.epochs.iter().filter(|(_, open)| self.now - open.sound > silence && self.now - open.sound > self.lenience(open)) {
            // A CSE that sends no message at all is handled below.
            if self.now - self.cses[open.cse].heard > silence {
                continue;
            }
            if open.rung == PushdownLevel::Raw {
                astray.entry(open.cse).or_default().push(*id);
            } else {
                let seconds = stuck.entry(open.cse).or_default();
                *seconds = seconds.max(self.now - open.sound);
            }
        }
        for (cse, seconds) in stuck {
            // Whatever it reports, it makes no progress: it is treated as one that is down.
            out.push(Action::Stuck { cse: CseId(cse as u32), seconds });
            self.lost(cse, true, out);
            if self.ended {
                return;
            }
            astray.remove(&cse);
        }
        for (cse, epochs) in astray {
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
            // A drive that only sends raw slices reports nothing until the first of them arrives.
            let silence = self.limits.silence + if self.works(cse) { 0.0 } else { self.turn(cse) };
            if waits && self.now - book.heard > silence {
                self.lost(cse, true, out);
                if self.ended {
                    return;
                }
            }
        }
    }

    /// Seconds for which an epoch may show no progress: enough for slow drives, but bounded.
    fn lenience(&self, open: &Epoch) -> Seconds {
        let silence = self.limits.silence;
        if open.rung == PushdownLevel::Raw {
            return silence + self.turn(open.cse);
        }
        let own = &self.cses[open.cse];
        let load = self.cost.slice(open.cse, open.rung, (own.rows, own.bytes));
        let first = if self.cost.is_warm(open.cse, open.rung) { 1.0 } else { FIRST };
        let (mut queued, mut left) = (false, false);
        for stage in open.slices.values() {
            queued |= matches!(stage, Stage::Queued | Stage::Leaving);
            left |= *stage != Stage::Done;
        }
        // What it works on; or giving out what it has, once that is all done.
        let expected = if left {
            self.cost.disk(open.cse, own.bytes) + first * load.wall
        } else {
            let close = self.cost.close(open.cse, open.rung, own.rows * open.slices.len() as f64);
            close.wall + close.bytes / self.cost.link(open.cse)
        };
        // Other queries may hold all of its cores, and they are unknown here. The time to return states is unknown as
        // well, because their number is.
        let unknown = !left || (queued && open.had.is_empty() && !open.waits);
        silence + if unknown { self.limits.patience } else { 0.0 } + (self.patient(open.cse) * expected + open.slack).min(PATIENT * self.limits.patience)
    }

    /// Seconds in which a raw slice of `cse` is to be expected, at the latest.
    fn turn(&self, cse: usize) -> Seconds {
        let own = &self.cses[cse];
        let raw = self.cost.slice(cse, PushdownLevel::Raw, (own.rows, own.bytes));
        let sending = f64::from(own.raw_open.max(1)) * raw.wall / f64::from(self.cost.profile(cse).cores);
        self.patient(cse) * (self.cost.disk(cse, own.bytes) + sending.max(raw.wall) + own.bytes / self.cost.link(cse))
    }

    /// The patience factor at `cse` over expected times. It grows with each time that the query gave it up, since it
    /// may only be slower than predicted.
    fn patient(&self, cse: usize) -> f64 {
        PATIENT * f64::from(1_u32 << self.cses[cse].strikes.min(MOST_DOUBLED))
    }

    pub(super) fn usable(&self, cse: usize) -> bool {
        let book = &self.cses[cse];
        book.surveyed && !book.dead && book.paused_until <= self.now
    }

    fn replan(&mut self, jumped: bool, out: &mut Vec<Action<B>>) {
        self.cost.forget(self.now);
        self.planned_groups = self.cost.groups();
        let parts: Vec<Part> = (0..self.cses.len()).map(|cse| self.part(cse)).collect();
        let waiting: f64 = self.waiting.values().map(|waiting| waiting.above).sum();
        let coming: f64 = self.cses.iter().enumerate().map(|(at, book)| f64::from(book.raw_open) * parts[at].raw.above).sum();
        let host = self.cost.host();
        let above = ParentNode { cores: f64::from(host.cores), busy: waiting + coming, link: host.link_bytes_per_s() };
        let present: Vec<Option<usize>> =
            parts.iter().zip(&self.cses).map(|(part, book)| book.rung.and_then(|rung| part.lanes.iter().position(|lane| lane.rung == rung))).collect();
        let thorough = self.plans.is_multiple_of(THOROUGH);
        let mut plan =
            divide(&above, &parts, (self.plans > 0).then_some((present.as_slice(), (self.plan.end - (self.now - self.planned_at)).max(0.0))), thorough);
        if (jumped || thorough) && self.abandon_overloaded(&above, &parts, &present, plan.end, out) {
            return self.replan(jumped, out);
        }
        self.touched.extend(0..parts.len());
        // A slice that was taken cannot be given back. Where there is enough time, it is taken later, when more is
        // known. Not so where the parent's cores are the limit: the parent must never wait for work then.
        let all = plan.shares.iter().zip(&parts).fold((0.0, above.busy), |(bytes, work), (share, part)| {
            let (raw, below) = (f64::from(share.raw), f64::from(share.below));
            let lane = share.lane.and_then(|lane| part.lanes.get(lane)).map_or(SliceLoad::default(), |lane| lane.load);
            (bytes + part.backlog + raw * part.raw.bytes + below * lane.bytes, work + raw * part.raw.above + below * lane.above)
        });
        let little = all.0 / above.link < 0.5 * plan.end && all.1 / above.cores < 0.5 * plan.end;
        // If the drives' processing gains no time, the plan takes no risks.
        let handed = all_handed(&parts, &above);
        let outlook = Outlook { end: plan.end, handed, drives: parts.len(), above };
        // A plan from before all drives have listed their slices is no guide.
        let first = !self.whole && self.cses.iter().all(|book| book.surveyed || book.dead);
        self.whole |= first;
        for (cse, part) in parts.iter().enumerate() {
            let each = part.each();
            self.fill_link(cse, part, plan.shares[cse].below > 0, &above);
            let (share, learns) = self.chosen(cse, part, plan.shares[cse], &outlook);
            plan.shares[cse] = share;
            let little = share.below > 0 && f64::from(share.raw) * each < LITTLE * plan.end && little;
            self.cses[cse].learning = little || learns;
            self.cses[cse].rung = share.lane.map(|lane| part.lanes[lane].rung);
            self.keep_steady(cse, share, jumped || first, out);
            self.planned_load[cse] = self.cost.load(cse);
        }
        for (cse, part) in parts.iter().enumerate() {
            self.try_one(cse, part, plan.end, out);
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

    /// Sets the number of raw slices under way so that no stage of the path waits for another. The slowest stage always
    /// has one to work on while the others travel. The drive's own processing takes turns on its cores, so keeping
    /// enough of them for sending takes more slices at once.
    fn fill_link(&mut self, cse: usize, part: &Part, has_below: bool, above: &ParentNode) {
        let (cores, latency, each) = (f64::from(part.cores), self.cost.profile(cse).link_latency_s, part.each());
        let way = part.disk + part.raw.bytes / part.link + part.raw.bytes / above.link + 2.0 * latency + SLACK;
        let needs = part.raw.wall / each.max(1e-9);
        let lanes = if has_below || part.busy > 0.0 { cores } else { 0.0 };
        let sending = needs.max(lanes * needs / (cores - needs).max(0.1 * cores));
        let book = &mut self.cses[cse];
        (book.raw_each, book.raw_way) = (each, way + part.raw.wall);
        book.raw_pipe = 1 + ((way / each.max(1e-9) + sending).ceil() as u32).min(MAX_PIPE);
    }

    /// Adjusts the `share` that the plan has for a drive. Also returns whether nothing is taken from it until it is
    /// known better.
    fn chosen(&self, cse: usize, part: &Part, mut share: Share, outlook: &Outlook) -> (Share, bool) {
        let end = outlook.end;
        let adaptive = self.policy == Policy::Adaptive;
        let worth = WORTH * (self.now + end);
        if part.slices > 0 && share.below + share.raw == 0 {
            // Whatever the plan thinks of it: nothing is left lying.
            share = if part.may_raw { Share { lane: None, below: 0, raw: part.slices } } else { Share { lane: Some(0), below: part.slices, raw: 0 } };
        }
        let lane = share.lane.and_then(|lane| part.lanes.get(lane));
        if self.is_sparse(cse, part, share, lane, outlook) && part.may_raw && adaptive {
            share = Share { lane: share.lane, below: 0, raw: part.slices };
        }
        // The parent does not begin either, if the drive alone would hardly be later.
        let alone = lane.filter(|lane| lane.rung == PushdownLevel::Full && share.below > 0).map(|lane| part.alone(lane, &outlook.above));
        if adaptive && !self.cses[cse].above_begun && share.raw > 0 && alone.is_some_and(|alone| alone - end < worth) {
            share = Share { lane: share.lane, below: part.slices, raw: 0 };
        }
        if self.cses[cse].barred_until > self.now && part.may_raw {
            share = Share { lane: share.lane, below: 0, raw: part.slices };
        }
        // While it finds out how many groups there are, or how fast it is, its link would have nothing
        // to do but for its results.
        let probes = lane.is_some_and(|lane| self.is_probe(lane.rung)) && self.works(cse);
        let learns = self.learning(cse, part, share, end);
        let spare = self.busy_for(cse);
        if let Some(lane) = lane.filter(|_| (probes || learns) && part.may_raw && spare > worth) {
            let own = f64::from(part.cores) * lane.load.bytes / (lane.load.wall * part.link);
            let shared = part.raw.bytes * outlook.drives as f64 / outlook.above.link;
            let count = ((spare * (1.0 - own)).max(0.0) / part.each().max(shared).max(1e-9)) as u32;
            if count > 0 && (learns || count > share.raw) {
                let count = count.min(part.slices);
                return (Share { lane: share.lane, below: part.slices - count, raw: count }, false);
            }
        }
        (share, learns)
    }

    /// Whether the drive's own processing would gain next to nothing, less than beginning costs. Never for a feed,
    /// whose end is unknown.
    fn is_sparse(&self, cse: usize, part: &Part, share: Share, lane: Option<&LevelCost>, outlook: &Outlook) -> bool {
        let Outlook { end, handed, .. } = *outlook;
        let gains = handed > GAIN * end;
        let late = if gains { LATE.0 } else { LATE.1 };
        // A drive that has processed nothing yet may be slower than predicted, or busy. What is lost then is a share of
        // the whole time, not of what is left.
        let is_worth = handed - end > WORTH * (self.now + end);
        self.cses[cse].lane.is_none()
            && !self.fed
            && (f64::from(share.below) < SPARSE * f64::from(part.slices)
                || (!is_worth && !self.cost.has_run(cse))
                || lane.is_some_and(|lane| {
                    !(if gains { self.cost.has_run(cse) } else { self.cost.is_known(cse, lane.rung) }) && late * lane.load.wall > end.max(handed)
                }))
    }

    /// Plans differ by a slice or two: what is given now is not to be taken back by the next
    /// one, unless that is `anew`.
    fn keep_steady(&mut self, cse: usize, share: Share, anew: bool, out: &mut Vec<Action<B>>) {
        let queued = self.queued(cse);
        let book = &mut self.cses[cse];
        if anew || share.lane.is_none() {
            book.wanted.clear();
        }
        book.wanted.push_back(share.below);
        if book.wanted.len() > STEADY {
            book.wanted.pop_front();
        }
        let (least, most) = book.wanted.iter().fold((u32::MAX, 0), |(least, most), below| (least.min(*below), most.max(*below)));
        book.feed_left = if share.raw > 0 { least } else { share.below }.saturating_sub(queued);
        book.raw_left = share.raw;
        book.unwanted = if share.below == 0 { book.unwanted + 1 } else { 0 };
        if queued > most && self.policy == Policy::Adaptive {
            self.take(cse, queued - most, out);
        }
    }

    /// Has a drive that only sends raw slices process one itself, to find out why it is slow: its processor is busy, or
    /// its link is slow. Not where a busy drive would finish it too late, nor where an idle one could not help much.
    fn try_one(&mut self, cse: usize, part: &Part, end: Seconds, out: &mut Vec<Action<B>>) {
        let Some(lane) = part.lanes.iter().find(|lane| !lane.commits) else { return };
        let own = f64::from(part.cores) / lane.load.cpu;
        let handed = 1.0 / self.cses[cse].raw_each.max(1e-9);
        let tries = self.policy == Policy::Adaptive
            && self.cost.is_guessed(cse)
            && self.cses[cse].barred_until <= self.now
            && self.cses[cse].raw_left > 1
            && !self.works(cse)
            && FIRST * lane.load.wall < end
            && own > WORTH * (own + handed);
        if tries && let Some(slice) = self.cses[cse].pool.pop_first() {
            self.cses[cse].raw_left -= 1;
            let id = self.open(cse, lane.rung, vec![slice], CloseAfter::DRAINED, false, out);
            // Not to be taken back: no plan wants it.
            if let Some(open) = self.epochs.get_mut(&id) {
                open.slices.insert(slice, Stage::Begun);
            }
        }
    }

    /// Drives take turns on the shared link, slice by slice: a drive's bandwidth follows its slices under way. Drives
    /// with more left to send get more of them, so that none remains at the end and sends alone.
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

    /// Whether a drive that should process most of its slices itself will soon be known better. Until then nothing is
    /// taken from it: raw slices share the link with its results, and the first measurements make it look slower than
    /// it is.
    fn learning(&self, cse: usize, part: &Part, share: Share, end: Seconds) -> bool {
        let Some(lane) = share.lane.and_then(|lane| part.lanes.get(lane)) else { return false };
        let cores = f64::from(part.cores);
        let soon = (f64::from(WARM_UP) + KNOWN as f64 + 2.0 * cores) * lane.load.wall / cores;
        share.below >= share.raw && !self.cost.is_known(cse, lane.rung) && soon < LEARN * end
    }
}
