//! The planner of what is left: for each drive, which slices it processes at which pushdown level, and which ones it
//! sends to the parent. Slices are divisible here, as a fluid.
//!
//! For a time `T`, each drive's processor, disk and link allow an interval for the number of slices that it processes.
//! All drives share the parent's cores and link. These are two sums that must not exceed what `T` allows, so the choice
//! within the intervals is a fractional knapsack. Bisection finds the least `T` that allows a choice, for each set of
//! levels that is worth trying.

use crate::cost::{SliceLoad, distinct_in_lanes};
use crate::message::{PushdownLevel, Seconds};

/// States at the end of an epoch: what they cost follows from how many slices are in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct States {
    /// Groups in all of the table.
    pub groups: f64,
    /// Rows per slice that fall into them.
    pub rows: f64,
    /// Slices that the open epoch has already.
    pub begun: f64,
    /// Lanes of the drive that hold states of their own.
    pub lanes: f64,
    /// Bytes per state.
    pub bytes: f64,
    /// Seconds of the drive per state, with all its lanes.
    pub emit: Seconds,
    /// Seconds of a core above per state.
    pub merge: Seconds,
}

/// One way in which a drive may process slices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelCost {
    /// The rung.
    pub rung: PushdownLevel,
    /// What a slice costs, its share of an epoch's set-up included.
    pub load: SliceLoad,
    /// How many slices per core the drive may be slower by than it looks: none is begun that would not be done then.
    pub margin: f64,
    /// Core seconds of the drive that beginning with it takes beyond its slices: the first ones take longer.
    pub begin: Seconds,
    /// Where results come as states at the end.
    pub states: Option<States>,
    /// Whether that is one epoch to the end that has not begun yet. All that goes into it stays with the drive, and a
    /// failure of the drive loses it.
    pub commits: bool,
}

/// A drive as far as the plan goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Slices that no epoch has begun.
    pub slices: u32,
    /// Cores.
    pub cores: u32,
    /// Seconds until a core is free, on average.
    pub busy: Seconds,
    /// Bytes on their way up, or that will be, whatever is decided: of epochs that are closing.
    pub backlog: f64,
    /// The cost of the open epoch's states if nothing is added to them: bytes, core seconds of the parent, and seconds
    /// of the drive with all its lanes. They must be returned in any case.
    pub held: (f64, Seconds, Seconds),
    /// Seconds of its disk per slice.
    pub disk: Seconds,
    /// Bytes per second of its link.
    pub link: f64,
    /// A slice that is sent raw: `wall` is for sending.
    pub raw: SliceLoad,
    /// Core seconds of the parent before it can process the first slice that the drive sends raw or filtered; zero once
    /// that is over.
    pub begin_above: Seconds,
    /// Whether slices may be sent raw.
    pub may_raw: bool,
    /// The ways of processing slices that the drive accepts.
    pub lanes: Vec<LevelCost>,
}

/// What all drives share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParentNode {
    /// Cores of the parent.
    pub cores: f64,
    /// Core seconds of work that waits there or is on its way.
    pub busy: Seconds,
    /// Bytes per second that it takes in from all drives together.
    pub link: f64,
}

/// What a drive's share is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Share {
    /// The lane, as an index of [`Part::lanes`].
    pub lane: Option<usize>,
    /// Slices that the drive processes.
    pub below: u32,
    /// Slices that the drive sends raw.
    pub raw: u32,
}

/// A division, and when it ends.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// Seconds until all is done.
    pub end: Seconds,
    /// Per drive.
    pub shares: Vec<Share>,
}

/// Another choice of levels must be better by this share to replace the present one.
const HYSTERESIS: f64 = 0.03;

/// One drive's lane is changed only if the query then ends this many times sooner.
const FLIP: f64 = 1.003;

/// A choice that commits drives must end this many times sooner than any other.
const COMMITS: f64 = 1.05;

/// Bytes that differ by less than this share of a slice are as many.
const LEVEL: f64 = 0.03;

/// Fewer bytes by less than this share are not fewer.
const SAME: f64 = 0.01;

/// Plans from scratch, or from the `present` lanes (which are kept where others are hardly better) and their likely
/// end. `thorough` also tries drives one by one.
#[must_use]
pub fn divide(above: &ParentNode, parts: &[Part], present: Option<(&[Option<usize>], Seconds)>, thorough: bool) -> Plan {
    let hint = present.map_or(0.0, |(_, end)| end);
    let mut fluid = Fluid { above, parts, hint, below: vec![0.0; parts.len()], spread: Vec::with_capacity(parts.len()), best: None };
    let thorough = thorough && parts.len() > 1;
    if let Some((present, _)) = present {
        fluid.consider(parts.iter().zip(present).map(|(part, lane)| lane.filter(|lane| *lane < part.lanes.len())).collect(), 1.0 - HYSTERESIS);
        // One drive that is in trouble is no reason for all to change.
        if thorough {
            fluid.flip((1.0 - HYSTERESIS) * FLIP);
        }
    }
    let lanes = parts.iter().map(|part| part.lanes.len()).max().unwrap_or(0);
    for lane in 0..lanes {
        fluid.consider(parts.iter().map(|part| if part.lanes.is_empty() { None } else { Some(lane.min(part.lanes.len() - 1)) }).collect(), 1.0);
    }
    fluid.consider(parts.iter().map(|part| if part.may_raw { None } else { part.lanes.first().map(|_| 0) }).collect(), 1.0);
    if thorough && present.is_none() {
        fluid.flip(FLIP);
    }
    let Some(Found { end, choice, .. }) = fluid.best.take() else {
        // Nothing can be done at all (every drive pauses): everything waits where it is.
        return Plan { end: f64::INFINITY, shares: vec![Share::default(); parts.len()] };
    };
    fluid.feasible(&choice, end);
    let shares = parts.iter().zip(&choice).zip(&fluid.below).map(|((part, lane), below)| {
        let below = if part.may_raw { (below.round() as u32).min(part.slices) } else { part.slices };
        Share { lane: *lane, below: if lane.is_some() { below } else { 0 }, raw: if part.may_raw { part.slices - below } else { 0 } }
    });
    Plan { end, shares: shares.collect() }
}

/// The best choice of lanes so far, one per drive.
struct Found {
    /// What another must be better than.
    mark: Seconds,
    end: Seconds,
    choice: Vec<Option<usize>>,
}

struct Fluid<'a> {
    above: &'a ParentNode,
    parts: &'a [Part],
    /// About when the end may be.
    hint: Seconds,
    below: Vec<f64>,
    // Drives whose share may change, with their interval and the change that one more slice on the drive makes: (at,
    // low, high, link, cores).
    spread: Vec<(usize, f64, f64, f64, f64)>,
    best: Option<Found>,
}

impl Fluid<'_> {
    /// Keeps `choice` if its end, times `handicap`, is before the best one's mark.
    fn consider(&mut self, choice: Vec<Option<usize>>, handicap: f64) {
        let commits = self.parts.iter().zip(&choice).any(|(part, lane)| lane.and_then(|lane| part.lanes.get(lane)).is_some_and(|lane| lane.commits));
        let handicap = handicap * if commits { COMMITS } else { 1.0 };
        let limit = self.best.as_ref().map(|best| best.mark / handicap);
        if let Some(end) = self.least(&choice, limit) {
            self.best = Some(Found { mark: end * handicap, end, choice });
        }
    }

    /// Tries other lanes for one drive after the other.
    fn flip(&mut self, handicap: f64) {
        for (at, part) in self.parts.iter().enumerate().filter(|(_, part)| part.slices > 0) {
            for lane in (0..part.lanes.len()).map(Some).chain([None]) {
                let Some(best) = &self.best else { return };
                if best.choice[at] != lane {
                    let mut other = best.choice.clone();
                    other[at] = lane;
                    self.consider(other, handicap);
                }
            }
        }
    }

    /// The least time for these lanes, within a thousandth; `None` where there is none below `limit`, or none at all.
    fn least(&mut self, choice: &[Option<usize>], limit: Option<f64>) -> Option<Seconds> {
        let disk = self.parts.iter().map(|part| f64::from(part.slices) * part.disk).fold(0.0, f64::max);
        let mut low = disk;
        let mut high = limit.unwrap_or(self.hint.max(disk * 1.001).max(1e-3));
        if !self.feasible(choice, high) {
            if limit.is_some() {
                return None;
            }
            // Nothing becomes possible by waiting for longer than this: something is not possible at all.
            if !self.feasible(choice, 1e6) {
                return None;
            }
            let mut step = 0.03;
            while !self.feasible(choice, high) {
                low = high;
                high *= 1.0 + step;
                step *= 3.0;
            }
        } else if limit.is_none() {
            let mut step = 0.03;
            loop {
                let lower = high / (1.0 + step);
                step *= 3.0;
                if lower <= low || high < 1e-4 {
                    break;
                }
                if !self.feasible(choice, lower) {
                    low = lower;
                    break;
                }
                high = lower;
            }
        }
        while high - low > 1e-3 * high {
            let middle = 0.5 * (low + high);
            if self.feasible(choice, middle) { high = middle } else { low = middle }
        }
        Some(high)
    }

    /// Whether all can be done in `time`; `below` has how then.
    fn feasible(&mut self, choice: &[Option<usize>], time: Seconds) -> bool {
        // States of all drives come at the end, one after the other through the same link and cores. How many there are
        // follows from how many slices are below, and that from how much time they leave: twice is near enough.
        let mut tail = 0.0;
        for _ in 0..2 {
            let mut bytes = 0.0;
            let mut merge = 0.0;
            for (part, lane) in self.parts.iter().zip(choice) {
                if let Some(states) = lane.and_then(|lane| part.lanes.get(lane)).and_then(|lane| lane.states.as_ref()) {
                    let wall = part.lanes[lane.unwrap_or(0)].load.wall;
                    let most = ((time - tail).max(0.0) * f64::from(part.cores) / wall).min(f64::from(part.slices));
                    let (count, _) = states.at(most);
                    bytes += count * states.bytes;
                    merge += count * states.merge;
                }
            }
            tail = bytes / self.above.link + merge / self.above.cores;
        }
        self.spread.clear();
        let mut cores = self.above.cores * time - self.above.busy;
        let mut link = self.above.link * time;
        for (at, (part, lane)) in self.parts.iter().zip(choice).enumerate() {
            let n = f64::from(part.slices);
            if n * part.disk > time {
                return false;
            }
            // A drive that would not reach its first slice in that time sends all of them raw, and does not begin.
            let begins = |lane: &&LevelCost| {
                let begun = lane.states.map_or(0.0, |states| states.begun);
                !part.may_raw || begun > 0.0 || part.busy + lane.begin / f64::from(part.cores) + lane.load.wall <= time
            };
            let lane = lane.and_then(|lane| part.lanes.get(lane)).filter(begins);
            let mut own_link = part.link * time - part.backlog;
            link -= part.backlog;
            if lane.is_none_or(|lane| lane.states.is_none()) {
                own_link -= part.held.0;
                link -= part.held.0;
                cores -= part.held.1;
            }
            // What is held is given out first, and then has its way up before it.
            let gives = if lane.is_none_or(|lane| lane.states.is_none()) { part.held.2 } else { 0.0 };
            if gives > 0.0 && part.busy + gives + part.held.0 / part.link > time {
                return false;
            }
            let Some(lane) = lane else {
                let sends = f64::from(part.cores) * (time - part.busy - gives);
                if !(part.may_raw && n * part.raw.bytes <= own_link && n * part.raw.wall <= sends && part.begin_above < time) && n > 0.0 {
                    return false;
                }
                if n > 0.0 {
                    cores -= part.begin_above;
                }
                self.below[at] = 0.0;
                cores -= n * part.raw.above;
                link -= n * part.raw.bytes;
                continue;
            };
            let mut own_time = time - part.busy - gives - lane.begin / f64::from(part.cores);
            if let Some(states) = &lane.states {
                let most = (own_time.max(0.0) * f64::from(part.cores) / lane.load.wall).min(n);
                let (count, bytes) = states.at(most);
                own_link -= bytes;
                link -= bytes;
                cores -= count * states.merge;
                own_time -= tail.max(bytes / part.link + count * states.merge / self.above.cores) + count * states.emit;
            } else {
                own_time -= lane.load.bytes / part.link;
            }
            // Whole slices: a core that is free for less than one begins none.
            let whole = (own_time.max(0.0) / lane.load.wall - if part.may_raw { lane.margin } else { 0.0 }).floor().max(0.0) * f64::from(part.cores);
            let core_time = f64::from(part.cores) * own_time.max(0.0);
            let (mut low, mut high) = (0.0_f64, n.min(whole));
            if !part.may_raw || part.begin_above >= time {
                low = n;
            } else if lane.load.wall > part.raw.wall {
                high = high.min((core_time - n * part.raw.wall) / (lane.load.wall - part.raw.wall));
            }
            // A drive does not process slices for a small saving on its link: the first slice that takes longer than
            // predicted would lose it again.
            let saves = part.raw.bytes - lane.load.bytes;
            let more = if saves > 0.0 && saves < SAME * part.raw.bytes { 0.0 } else { -saves };
            let spare = own_link - n * part.raw.bytes;
            if more > 0.0 {
                high = high.min(spare / more);
            } else if more < 0.0 {
                low = low.max(spare / more);
            } else if spare < 0.0 {
                return false;
            }
            if low > high + 1e-9 || high < 0.0 {
                return false;
            }
            let relief = part.raw.above - lane.load.above;
            // Where processing on the drive saves hardly any bytes, the drive does only as much as the parent needs.
            // More would cost its time, and add risk, for nothing.
            let more = if more.abs() < LEVEL * part.raw.bytes { more.abs().max(1e-6) } else { more };
            // The division that needs the fewest bytes.
            let start = if more > 0.0 { low } else { high };
            self.below[at] = start;
            if n > 0.0 && (start < n || lane.rung == PushdownLevel::Filter) {
                cores -= part.begin_above;
            }
            cores -= start * lane.load.above + (n - start) * part.raw.above;
            link -= start * lane.load.bytes + (n - start) * part.raw.bytes;
            self.spread.push((at, low, high, more, relief));
        }
        if link < 0.0 {
            return false;
        }
        if cores >= 0.0 {
            return true;
        }
        // Too much work above: change the shares that save most of it per byte.
        let gain = |entry: &(usize, f64, f64, f64, f64)| entry.4.abs() / entry.3.abs().max(1e-12);
        self.spread.retain(|entry| entry.3 * entry.4 > 0.0);
        self.spread.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
        for &(at, low, high, more, relief) in &self.spread {
            // A drive that sends nothing raw yet would add the cost of a beginning.
            let (part, moves_up) = (&self.parts[at], more <= 0.0);
            let begins = if moves_up && self.below[at] >= f64::from(part.slices) { part.begin_above } else { 0.0 };
            if (high - low) * relief.abs() <= begins {
                continue;
            }
            cores -= begins;
            let wanted = (-cores / relief.abs()).min(high - low);
            cores += wanted * relief.abs();
            link -= wanted * more.abs();
            self.below[at] += if more > 0.0 { wanted } else { -wanted };
            if cores >= -1e-9 {
                break;
            }
        }
        cores >= -1e-9 && link >= 0.0
    }
}

impl Part {
    /// Seconds between two slices that are sent raw, by the slowest stage.
    pub(crate) fn each(&self) -> Seconds {
        self.disk.max(self.raw.bytes / self.link).max(self.raw.wall / f64::from(self.cores))
    }

    /// When the drive would end if it processed all of its slices itself, in that lane.
    pub(crate) fn alone(&self, lane: &LevelCost, above: &ParentNode) -> Seconds {
        let n = f64::from(self.slices);
        let (sent, given) = lane.states.map_or((0.0, 0.0), |states| {
            let (count, bytes) = states.at(n);
            (bytes / self.link + count * states.merge / above.cores, count * states.emit)
        });
        let work = self.busy + (n * lane.load.wall + lane.begin) / f64::from(self.cores);
        work.max((self.backlog + n * lane.load.bytes) / self.link) + sent + given
    }
}

/// When all would be done if every drive sent all of its slices raw.
pub(crate) fn all_handed(parts: &[Part], above: &ParentNode) -> Seconds {
    let (own, bytes, work) = parts.iter().fold((0.0_f64, 0.0, above.busy), |(own, bytes, work), part| {
        let n = f64::from(part.slices);
        (own.max(n * part.each()), bytes + part.backlog + n * part.raw.bytes, work + n * part.raw.above)
    });
    own.max(bytes / above.link).max(work / above.cores)
}

impl States {
    /// States, and their bytes, at the end of an epoch that gets `slices` more; none where it gets none and has none.
    pub(crate) fn at(&self, slices: f64) -> (f64, f64) {
        let count = distinct_in_lanes(self.groups, (self.begun + slices) * self.rows, self.lanes);
        (count, count * self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(wall: f64, bytes: f64, above: f64) -> SliceLoad {
        SliceLoad { cpu: wall, wall, bytes, above }
    }

    fn part(wall: f64, bytes: f64) -> Part {
        Part {
            slices: 1000,
            cores: 2,
            busy: 0.0,
            backlog: 0.0,
            held: (0.0, 0.0, 0.0),
            disk: 1e-4,
            link: 1e9,
            raw: load(0.0, 1e6, 4e-3),
            begin_above: 0.0,
            may_raw: true,
            lanes: vec![LevelCost { rung: PushdownLevel::Full, load: load(wall, bytes, 0.0), margin: 0.0, begin: 0.0, states: None, commits: false }],
        }
    }

    const ABOVE: ParentNode = ParentNode { cores: 4.0, busy: 0.0, link: 1e9 };

    #[test]
    fn equal_cores_share_equally() {
        let plan = divide(&ABOVE, &[part(4e-3, 1e3)], None, false);
        // Six cores, four milliseconds a slice.
        assert!((plan.end - 4.0 / 6.0).abs() < 0.01, "{plan:?}");
        assert!((330..=336).contains(&plan.shares[0].below), "{plan:?}");
        assert_eq!(plan.shares[0].below + plan.shares[0].raw, 1000);
    }

    #[test]
    fn a_thin_link_keeps_work_below_and_wide_results_above() {
        let thin = ParentNode { link: 1e7, ..ABOVE };
        let plan = divide(&thin, &[part(4e-3, 1e3)], None, false);
        // Two seconds of two cores below, and what comes through the link meanwhile.
        assert!(plan.end < 2.0 && plan.shares[0].below >= 980, "{plan:?}");
        let plan = divide(&thin, &[part(4e-3, 2e6)], None, false);
        assert!(plan.shares[0].below <= 1 && (99.0..101.0).contains(&plan.end), "{plan:?}");
    }

    #[test]
    fn drive_runs_no_slice_to_save_next_to_no_link_time() {
        for (bytes, works) in [(0.992e6, false), (0.9e6, true)] {
            let plan = divide(&ABOVE, &[Part { link: 1e7, ..part(4e-3, bytes) }], None, false);
            assert_eq!(plan.shares[0].below > 500, works, "{bytes}: {plan:?}");
        }
    }

    #[test]
    fn an_overloaded_drive_gets_the_help() {
        let plan = divide(&ABOVE, &[part(4e-3, 1e3), part(32e-3, 1e3)], None, false);
        assert!(plan.shares[0].below > 600 && plan.shares[1].below < 120, "{plan:?}");
        assert!(plan.shares[1].raw > plan.shares[0].raw, "{plan:?}");
    }

    #[test]
    fn states_that_cost_more_than_they_save_stay_away() {
        let mut slow = part(60.0 * 20e-3, 0.0);
        slow.raw.above = 20e-3;
        slow.link = 12.5e6;
        let many = States { groups: 1e6, rows: 65_536.0, begun: 0.0, lanes: 1.0, bytes: 32.0, emit: 60.0 * 20e-9, merge: 100e-9 };
        slow.lanes[0].states = Some(many);
        slow.slices = 100;
        let plan = divide(&ParentNode { link: 12.5e6, ..ABOVE }, &[slow.clone()], None, false);
        // Through this link 100 MB take eight seconds; below, 100 slices would take a minute, and
        // any of them 2 MB of states.
        assert!(plan.end < 8.2, "{plan:?}");
        slow.lanes[0].load = load(2e-3, 0.0, 0.0);
        slow.lanes[0].states = Some(States { groups: 10.0, ..many });
        let plan = divide(&ParentNode { link: 12.5e6, ..ABOVE }, &[slow], None, false);
        assert!(plan.end < 0.2 && plan.shares[0].below >= 95, "{plan:?}");
    }

    #[test]
    fn side_without_slices_starts_only_where_that_pays() {
        let few = Part { slices: 12, ..part(4e-3, 1e3) };
        let plan = divide(&ABOVE, std::slice::from_ref(&few), None, false);
        assert!(plan.shares[0].raw > 4, "{plan:?}");
        // The drive alone takes 24 ms. To begin above takes 30 of a core; or 12 of the 16 that four have until
        // all could be done together.
        let plan = divide(&ABOVE, &[Part { begin_above: 30e-3, ..few.clone() }], None, false);
        assert_eq!((plan.shares[0].below, plan.shares[0].raw), (12, 0), "{plan:?}");
        // The drive's first slices take so long that it should not begin.
        let mut cold = few;
        cold.lanes[0].begin = 40e-3;
        let plan = divide(&ABOVE, &[cold], None, false);
        assert_eq!((plan.shares[0].below, plan.shares[0].raw), (0, 12), "{plan:?}");
    }

    #[test]
    fn lane_that_commits_is_chosen_only_for_a_clear_gain() {
        let mut one = part(4e-3, 0.0);
        one.lanes.push(LevelCost { rung: PushdownLevel::Filter, ..one.lanes[0] });
        for (above, commits, expected) in [(0.1e-3, false, 0), (0.1e-3, true, 1), (2e-3, true, 0)] {
            // With `filter`, the parent has this much work left per slice.
            one.lanes[1].load.above = above;
            one.lanes[0].commits = commits;
            assert_eq!(divide(&ABOVE, &[one.clone()], None, false).shares[0].lane, Some(expected), "{above} {commits}");
        }
    }

    #[test]
    fn drive_that_may_not_send_raw_runs_all_slices() {
        let mut alone = part(4e-3, 1e3);
        alone.may_raw = false;
        let plan = divide(&ABOVE, &[alone.clone()], None, false);
        assert_eq!((plan.shares[0].below, plan.shares[0].raw), (1000, 0));
        alone.lanes.clear();
        assert!(divide(&ABOVE, &[alone], None, true).end.is_infinite());
    }
}
