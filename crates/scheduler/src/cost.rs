//! The cost model: what a slice costs at each pushdown level on each CSE. Measurements correct priors per operator
//! kind.
//!
//! A prediction is a prior divided by the device's speed, times two learnt factors. A prior is in seconds of a core of
//! this machine, per row or byte. The first factor is steady: processor time of this work on this device over its
//! prior. The second is the load, which changes: elapsed time over processor time. Every node that runs a level reports
//! how much comes out per row, and the model learns that for all nodes. The model needs no earlier run.

use crate::kinds::{Had, Kinds};
use crate::learn::{Load, Robust};
use crate::message::{PushdownLevel, Seconds, Slice, SliceCost};
use crate::profile::Profile;
use crate::work::{Kind, Operator, Output, Priors, Work};

/// The cost of a slice at a level on a CSE, and of the parent's work for it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SliceLoad {
    /// Seconds of a core there, processor time.
    pub cpu: Seconds,
    /// Seconds of a core there, as its load makes it.
    pub wall: Seconds,
    /// Bytes that go up.
    pub bytes: f64,
    /// Seconds of a core above.
    pub above: Seconds,
}

/// What an epoch costs when it closes, apart from its slices.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CloseLoad {
    /// Seconds there.
    pub wall: Seconds,
    /// Bytes that go up.
    pub bytes: f64,
    /// Seconds of a core above.
    pub above: Seconds,
}

#[derive(Debug, Clone)]
struct Cse {
    profile: Profile,
    /// How far kinds of operators were from their priors there before this query.
    kinds: Kinds,
    raw: Robust,
    filter: Robust,
    full: Robust,
    load: Load,
    link: f64,
    /// The rate of the last measurement of the link, where it was slow.
    slow: Option<f64>,
    /// The greatest rate that was measured.
    fastest: f64,
    /// Its raw slices are slow, and its load is a guess from that.
    guess: Option<Guess>,
    /// The processor time of sending raw slices, as a multiple of its prior.
    sends: f64,
    /// When it last reported its load.
    told_at: Seconds,
}

/// Why a drive sends raw slices more slowly than predicted: a load that it does not report, a slow link, or sending
/// that takes more processor time than its prior.
#[derive(Debug, Clone, Copy)]
struct Guess {
    /// Bytes per second.
    rate: f64,
    /// The load that would explain it.
    load: f64,
    /// Whether its processor was predicted to be the slowest stage of sending.
    by_processor: bool,
}

/// The model of a query: one per query, priors in, measurements in, predictions out.
#[derive(Debug, Clone)]
pub struct CostModel {
    priors: Priors,
    work: Work,
    cses: Vec<Cse>,
    host: Profile,
    host_factor: Robust,
    // Rows and bytes out of `lower`, over rows in, that were seen.
    seen_rows: f64,
    seen_out: f64,
    seen_bytes: f64,
    groups: Option<f64>,
    groups_rows: f64,
    /// Whether a number of states has been reported, even if it is zero.
    told: bool,
}

/// A link is slower than predicted if less than this share of the expected rate arrives.
const SLOW_LINK: f64 = 0.5;

/// The most that sending may cost, as a multiple of the processor time that was predicted. The model blames the link
/// for anything slower.
const MOST_SENDS: f64 = 3.0;

/// The share of what slices take that sending may be for operators to be learnt of.
const MOST_SENDING: f64 = 0.3;

/// Rows of slices that the prior of what a filter selects counts for.
const PRIOR_ROWS: f64 = 1.0;

impl CostModel {
    /// A model of `work` on the CSEs of `profiles`, whose parent is `host`.
    #[must_use]
    pub fn new(work: Work, host: Profile, profiles: &[Profile], priors: Priors) -> Self {
        let cses = profiles
            .iter()
            .map(|profile| Cse {
                profile: *profile,
                kinds: Kinds::default(),
                raw: Robust::default(),
                filter: Robust::default(),
                full: Robust::default(),
                load: Load::default(),
                link: profile.link_bytes_per_s(),
                slow: None,
                fastest: 0.0,
                guess: None,
                sends: 1.0,
                told_at: f64::NEG_INFINITY,
            })
            .collect();
        Self {
            priors,
            work,
            cses,
            host,
            host_factor: Robust::default(),
            seen_rows: 0.0,
            seen_out: 0.0,
            seen_bytes: 0.0,
            groups: None,
            groups_rows: 0.0,
            told: false,
        }
    }

    /// The same, with factors of operator kinds that earlier queries have learnt for its CSEs.
    #[must_use]
    pub fn with_kinds(mut self, kinds: &[Kinds]) -> Self {
        self.cses.iter_mut().zip(kinds).for_each(|(cse, kinds)| cse.kinds = *kinds);
        self
    }

    /// The factors of operator kinds on `cse`, learnt from its work at `rung`. `had` holds each operator's share of it.
    /// Where too little was measured, the earlier factors.
    #[must_use]
    pub fn kinds(&self, cse: usize, rung: PushdownLevel, had: &[Had]) -> Kinds {
        let own = &self.cses[cse];
        let measured = match rung {
            PushdownLevel::Raw => return own.kinds,
            // Without upper operators there is a single level, whatever its name was.
            PushdownLevel::Full if !self.has_upper() && !own.full.is_known() => &own.filter,
            PushdownLevel::Filter => &own.filter,
            PushdownLevel::Full => &own.full,
        };
        // Measured times include sending, which belongs to no operator. Where sending is a large share, the operators'
        // time is unknown.
        let out = if rung == PushdownLevel::Full && self.has_upper() { 0.0 } else { self.filtered().1 };
        let (lower, upper) = self.seconds_per_row(&own.kinds);
        let (operators, sending) = (if rung == PushdownLevel::Full { lower + upper } else { lower }, out * self.priors.transfer_s_per_byte);
        match measured.value().map(|factor| factor * (operators + sending)).filter(|all| measured.is_known() && sending < MOST_SENDING * all) {
            Some(all) => own.kinds.learnt(&self.priors, (all - sending) / operators, had),
            None => own.kinds,
        }
    }

    /// What it knows, for a query that begins now, at time 0 of its own clock: how busy drives
    /// were before does not count.
    #[must_use]
    pub fn again(mut self) -> Self {
        for cse in &mut self.cses {
            cse.load = Load::default();
            (cse.guess, cse.slow, cse.told_at) = (None, None, f64::NEG_INFINITY);
            [&mut cse.raw, &mut cse.filter, &mut cse.full].into_iter().for_each(Robust::ended);
        }
        self.host_factor.ended();
        self
    }

    /// The number of its drives.
    #[must_use]
    pub fn drives(&self) -> usize {
        self.cses.len()
    }

    /// The work.
    #[must_use]
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// The profile of a CSE.
    #[must_use]
    pub fn profile(&self, cse: usize) -> &Profile {
        &self.cses[cse].profile
    }

    /// The profile of the parent.
    #[must_use]
    pub fn host(&self) -> &Profile {
        &self.host
    }

    /// Whether `Full` differs from `Filter`.
    #[must_use]
    pub fn has_upper(&self) -> bool {
        !self.work.upper.is_empty()
    }

    /// Whether `rung` returns results at the end of an epoch, so that each epoch has a cost of its own.
    #[must_use]
    pub fn holds_state(&self, rung: PushdownLevel) -> bool {
        rung == PushdownLevel::Full && self.has_upper() && matches!(self.work.result, Output::Groups { .. })
    }

    /// Rows out of `lower` per row in, and their bytes.
    fn filtered(&self) -> (f64, f64) {
        let (prior_rows, prior_bytes) = match self.work.filtered {
            Output::Rows { per_row, bytes_per_row } => (per_row, per_row * bytes_per_row),
            Output::Groups { .. } => (1.0, 0.0),
        };
        let seen = self.seen_rows + PRIOR_ROWS;
        ((self.seen_out + prior_rows * PRIOR_ROWS) / seen, (self.seen_bytes + prior_bytes * PRIOR_ROWS) / seen)
    }

    /// Whether groups have been counted yet, or there is only one.
    #[must_use]
    pub fn groups_are_known(&self) -> bool {
        self.told || self.groups() <= 1.0
    }

    /// Groups in all of the table, as far as known.
    #[must_use]
    pub fn groups(&self) -> f64 {
        match (self.groups, self.work.result) {
            (Some(groups), _) => groups,
            (None, Output::Groups { groups, .. }) => groups,
            (None, Output::Rows { .. }) => 0.0,
        }
    }

    /// How many of `rows` rows of a slice fall into groups.
    #[must_use]
    pub fn rows_into_groups(&self, rows: f64) -> f64 {
        rows * self.filtered().0
    }

    /// Seconds of a core of this machine for `lower` and `upper` over a row of a slice, with the factors `kinds`.
    fn seconds_per_row(&self, kinds: &Kinds) -> (f64, f64) {
        let (share, _) = self.filtered();
        let lower = self.work.lower.iter().map(|operator| kinds.seconds_per_row(operator, &self.priors)).sum();
        let upper = self.upper().map(|operator| kinds.seconds_per_row(&operator, &self.priors));
        (lower, upper.sum::<f64>() * share)
    }

    /// The operators of `upper`, with as many groups as are known of.
    pub fn upper(&self) -> impl Iterator<Item = Operator> {
        self.work.upper.iter().map(|operator| match (operator.kind, self.groups) {
            (Kind::HashAggregate { .. }, Some(groups)) => Operator { kind: Kind::HashAggregate { groups }, ..*operator },
            _ => *operator,
        })
    }

    fn prior(&self, cse: usize, rung: PushdownLevel, rows: f64, bytes_out: f64, bytes: f64) -> Seconds {
        let (lower, upper) = self.seconds_per_row(&self.cses[cse].kinds);
        let transfer = self.priors.transfer_s_per_byte;
        match rung {
            PushdownLevel::Raw => bytes * transfer,
            PushdownLevel::Filter => rows * lower + bytes_out * transfer,
            PushdownLevel::Full => rows * (lower + upper) + bytes_out * transfer,
        }
    }

    fn bytes_out(&self, rung: PushdownLevel, slice: (f64, f64)) -> f64 {
        let (rows, bytes) = slice;
        match (rung, self.work.result) {
            (PushdownLevel::Raw, _) => bytes,
            (PushdownLevel::Full, Output::Groups { .. }) if self.has_upper() => 0.0,
            (PushdownLevel::Full, Output::Rows { per_row, bytes_per_row }) if self.has_upper() => rows * per_row * bytes_per_row,
            (PushdownLevel::Filter | PushdownLevel::Full, _) => rows * self.filtered().1,
        }
    }

    /// How far processor times at `rung` on `cse` are from the prior.
    fn factor(&self, cse: usize, rung: PushdownLevel) -> f64 {
        let own = &self.cses[cse];
        // A device that runs one level slower than predicted is expected to run the other slower as well.
        match rung {
            // Sending raw slices computes nothing, so operators' factors do not apply to it.
            PushdownLevel::Raw => own.raw.value().unwrap_or(own.sends),
            PushdownLevel::Filter => own.filter.value().or(own.full.value()).unwrap_or(1.0),
            // Where it has run neither, the parent's factor is the best guess.
            PushdownLevel::Full => own.full.value().or(own.filter.value()).or(self.host_factor.value()).unwrap_or(1.0),
        }
    }

    /// What a slice of (`rows`, stored `bytes`) costs at `rung` on `cse`, and above.
    #[must_use]
    pub fn slice(&self, cse: usize, rung: PushdownLevel, slice: (f64, f64)) -> SliceLoad {
        let (rows, bytes) = slice;
        let own = &self.cses[cse];
        let out = self.bytes_out(rung, slice);
        let cpu = self.prior(cse, rung, rows, out, bytes) / own.profile.speed_per_core * self.factor(cse, rung);
        SliceLoad { cpu, wall: cpu * own.load.value(), bytes: out, above: self.above(rung, rows, out) }
    }

    fn above(&self, rung: PushdownLevel, rows: f64, out: f64) -> Seconds {
        let (lower, upper) = self.seconds_per_row(&Kinds::default());
        let transfer = out * self.priors.transfer_s_per_byte;
        let work = match rung {
            PushdownLevel::Raw => rows * (lower + upper),
            PushdownLevel::Filter => rows * upper,
            PushdownLevel::Full => 0.0,
        };
        (work * self.host_factor.value().unwrap_or(1.0) + transfer) / self.host.speed_per_core
    }

    /// What closing an epoch costs whose slices have `rows` rows. It runs in as many lanes as there are cores,
    /// each with states of its own.
    #[must_use]
    pub fn close(&self, cse: usize, rung: PushdownLevel, rows: f64) -> CloseLoad {
        let own = &self.cses[cse];
        let slow = own.load.value() / own.profile.speed_per_core;
        let mut load = CloseLoad { wall: self.priors.epoch_s * slow, bytes: 0.0, above: 0.0 };
        if let (true, Output::Groups { bytes_per_group, .. }) = (self.holds_state(rung), self.work.result) {
            let states = distinct_in_lanes(self.groups(), rows * self.filtered().0, f64::from(own.profile.cores));
            load.bytes = states * bytes_per_group;
            // Each lane gives out its own.
            load.wall += (states * self.priors.emit_s_per_state + load.bytes * self.priors.transfer_s_per_byte) * slow / f64::from(own.profile.cores);
            load.above = (states * self.priors.merge_s_per_state + load.bytes * self.priors.transfer_s_per_byte) / self.host.speed_per_core;
        }
        load
    }

    /// Core seconds of the parent before it can process the first raw or filtered slice of a drive.
    #[must_use]
    pub fn begin_above(&self) -> Seconds {
        self.priors.begin_above_s / self.host.speed_per_core
    }

    /// Seconds to read a slice of `bytes` from the disk of `cse`.
    #[must_use]
    pub fn disk(&self, cse: usize, bytes: f64) -> Seconds {
        bytes / self.cses[cse].profile.disk_bytes_per_s
    }

    /// A slice of (`rows`, stored `bytes`) took `cost` on `cse` at `rung`.
    pub fn measured(&mut self, cse: usize, rung: PushdownLevel, slice: &Slice, cost: &SliceCost) {
        let (rows, bytes) = (f64::from(slice.rows), slice.bytes as f64);
        if !(cost.cpu.is_finite() && cost.cpu > 0.0 && rows > 0.0) {
            return;
        }
        let streams = rung != PushdownLevel::Raw && (!self.has_upper() || rung == PushdownLevel::Filter);
        if streams {
            self.selected(rows, cost.rows_out as f64, cost.bytes_out as f64);
        }
        let prior = self.prior(cse, rung, rows, cost.bytes_out as f64, bytes) / self.cses[cse].profile.speed_per_core;
        let own = &mut self.cses[cse];
        match rung {
            PushdownLevel::Raw => own.raw.add(cost.cpu / prior),
            PushdownLevel::Filter => own.filter.add(cost.cpu / prior),
            PushdownLevel::Full => own.full.add(cost.cpu / prior),
        }
    }

    /// A slice that runs at `rung` on `cse` has had `cpu` seconds already, although it should take
    /// no more than `predicted`.
    pub fn running(&mut self, cse: usize, rung: PushdownLevel, cpu: Seconds, predicted: Seconds) {
        let factor = self.factor(cse, rung) * cpu / predicted;
        match rung {
            PushdownLevel::Raw => {}
            PushdownLevel::Filter => self.cses[cse].filter.at_least(factor),
            PushdownLevel::Full => self.cses[cse].full.at_least(factor),
        }
    }

    /// `cse` reports its load by other work.
    pub fn loaded(&mut self, now: Seconds, cse: usize, load: f64) {
        let own = &mut self.cses[cse];
        own.told_at = now;
        match own.guess.take() {
            Some(Guess { rate, load: guessed, by_processor }) => {
                own.load.set(now, load);
                let more = own.sends * guessed / load.max(1.0);
                if by_processor && more <= MOST_SENDS {
                    // What was to be the slowest stage is slower still.
                    own.sends = more.max(own.sends);
                } else {
                    // Bytes that were attributed to its load count against the link once.
                    own.slow = Some(rate);
                }
            }
            None => own.load.add(now, load),
        }
    }

    /// When `cse` last reported its load.
    #[must_use]
    pub fn told_at(&self, cse: usize) -> Seconds {
        self.cses[cse].told_at
    }

    /// Whether the load of `cse` is a guess, and its link may be slow instead. A slice that it processes itself would
    /// show which.
    #[must_use]
    pub fn is_guessed(&self, cse: usize) -> bool {
        self.cses[cse].guess.is_some()
    }

    /// Whether enough was measured at `rung` on `cse` to know its speed.
    #[must_use]
    pub fn is_known(&self, cse: usize, rung: PushdownLevel) -> bool {
        match rung {
            PushdownLevel::Raw => true,
            PushdownLevel::Filter => self.cses[cse].filter.is_known(),
            PushdownLevel::Full => self.cses[cse].full.is_known(),
        }
    }

    /// Whether the first slices at `rung` on `cse`, which take longer, are over.
    #[must_use]
    pub fn is_warm(&self, cse: usize, rung: PushdownLevel) -> bool {
        match rung {
            PushdownLevel::Raw => true,
            PushdownLevel::Filter | PushdownLevel::Full => self.cold(cse) == 0,
        }
    }

    /// How many of the first slices of `cse`, which take longer, are still to come.
    #[must_use]
    pub fn cold(&self, cse: usize) -> u32 {
        self.cses[cse].filter.cold().min(self.cses[cse].full.cold())
    }

    /// Whether `cse` has worked a slice off itself.
    #[must_use]
    pub fn has_run(&self, cse: usize) -> bool {
        self.cses[cse].filter.value().or(self.cses[cse].full.value()).is_some()
    }

    /// Bytes per second of the link of `cse`, as far as known.
    #[must_use]
    pub fn link(&self, cse: usize) -> f64 {
        self.cses[cse].link
    }

    /// While bytes were waiting at `cse` all the time, `rate` of them came per second, although by all that is
    /// known `expected` should have.
    ///
    /// Whatever else holds bytes up is in `expected`; so what is far below it twice in a row is the link's doing, and
    /// what is above the link's rate proves a better one.
    pub fn flowed(&mut self, cse: usize, rate: f64, expected: f64) {
        if !(rate.is_finite() && rate > 0.0) {
            return;
        }
        let own = &mut self.cses[cse];
        let before = own.slow.take();
        own.fastest = own.fastest.max(rate);
        if rate < SLOW_LINK * expected {
            // One slow measurement may come from a new load that no message has reported yet.
            match before {
                Some(before) => own.link = rate.max(before),
                None => own.slow = Some(rate),
            }
        } else if rate > own.link {
            own.link = rate;
        }
    }

    /// `cse` sends raw slices one after the other, at `rate` bytes per second, without a report of its load. The model
    /// predicts `sends` for its processor and `others` for its disk and link, in bytes per second.
    pub fn handed(&mut self, now: Seconds, cse: usize, rate: f64, sends: f64, others: f64) {
        let own = &mut self.cses[cse];
        let load = own.load.value() * sends / rate;
        own.fastest = own.fastest.max(rate);
        // A higher rate than the load allows disproves that load. A lower rate than everything known explains is taken
        // for load, until a report says otherwise.
        if rate > sends {
            own.guess = None;
            own.load.add(now, load);
        } else if rate < SLOW_LINK * others.min(sends) {
            // A link that has been faster before is fast still.
            own.guess = (rate >= SLOW_LINK * own.fastest).then_some(Guess { rate, load, by_processor: sends <= others });
            own.load.add(now, load);
        } else if others > sends {
            own.load.add(now, own.load.value());
        }
    }

    /// The load of `cse`: how many times its processor time work takes there.
    #[must_use]
    pub fn load(&self, cse: usize) -> f64 {
        self.cses[cse].load.value()
    }

    /// Forgets, step by step, loads that have not been measured for long.
    pub fn forget(&mut self, now: Seconds) {
        for cse in &mut self.cses {
            cse.load.forget(now);
        }
    }

    /// The parent has processed slices of `rows` rows that came at `rung`, in `cpu` seconds. Where it ran `lower`, that
    /// gave `out` (rows, bytes).
    pub fn worked(&mut self, rung: PushdownLevel, rows: f64, bytes_in: f64, cpu: Seconds, out: Option<(u64, u64)>) {
        if let (PushdownLevel::Raw, Some((out_rows, out_bytes))) = (rung, out) {
            self.selected(rows, out_rows as f64, out_bytes as f64);
        }
        let (lower, upper) = self.seconds_per_row(&Kinds::default());
        let work = match rung {
            PushdownLevel::Raw => rows * (lower + upper),
            PushdownLevel::Filter => rows * upper,
            PushdownLevel::Full => 0.0,
        };
        let own = cpu * self.host.speed_per_core - bytes_in * self.priors.transfer_s_per_byte;
        if work > 0.0 && own > 0.0 {
            self.host_factor.add(own / work);
        }
    }

    /// An epoch holds `states` now, or returned that number at its end. Its slices have `rows` rows, which `lanes`
    /// independent lanes processed.
    pub fn states(&mut self, rows: f64, states: f64, lanes: f64) {
        self.told = true;
        let (rows, states) = (rows * self.filtered().0 / lanes.max(1.0), states / lanes.max(1.0));
        if rows <= 0.0 || states <= 0.0 || !matches!(self.work.result, Output::Groups { .. }) {
            return;
        }
        let groups = groups_of(rows, states);
        // More rows say more; what few rows say of many groups is little.
        if rows >= 0.5 * self.groups_rows {
            self.groups_rows = rows.max(self.groups_rows);
            let per_row = |model: &Self, kinds: &Kinds| {
                let (lower, upper) = model.seconds_per_row(kinds);
                lower + upper
            };
            let all: Vec<Kinds> = [Kinds::default()].into_iter().chain(self.cses.iter().map(|cse| cse.kinds)).collect();
            let before: Vec<f64> = all.iter().map(|kinds| per_row(self, kinds)).collect();
            self.groups = Some(groups);
            // Measurements stay valid when the number of groups changes, so factors are scaled.
            let more: Vec<f64> = all.iter().zip(before).map(|(kinds, before)| per_row(self, kinds) / before).collect();
            self.host_factor.predicted(more[0]);
            self.cses.iter_mut().zip(&more[1..]).for_each(|(cse, more)| cse.full.predicted(*more));
        }
    }

    fn selected(&mut self, rows: f64, out: f64, bytes: f64) {
        self.seen_rows += rows;
        self.seen_out += out;
        self.seen_bytes += bytes;
    }
}

/// How many of `groups` groups are expected in `rows` rows that fall into them at random: `g (1 - exp(-r / g))`.
#[must_use]
pub fn distinct(groups: f64, rows: f64) -> f64 {
    if groups <= 0.0 { 0.0 } else { groups * -(-rows / groups).exp_m1() }
}

/// [`distinct`] for rows that `lanes` lanes process, each with states of its own: the sum over all lanes.
#[must_use]
pub fn distinct_in_lanes(groups: f64, rows: f64, lanes: f64) -> f64 {
    lanes * distinct(groups, rows / lanes.max(1.0))
}

/// The number of groups for which `rows` rows are expected to show `states`: the inverse of [`distinct`]. At most a
/// thousand times `rows`.
#[must_use]
pub fn groups_of(rows: f64, states: f64) -> f64 {
    let (mut low, mut high) = (states, rows * 1000.0);
    if states >= distinct(high, rows) {
        return high;
    }
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if distinct(middle, rows) < states {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests;
