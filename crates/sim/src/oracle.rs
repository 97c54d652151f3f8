//! A lower bound of the time of a query on a fleet. It holds for any policy, even one that knows all costs and future
//! loads and divides slices as a fluid.
//!
//! Every slice is read from its disk and takes one way up: `full`, `filter` or `raw`. Each way uses an amount of each
//! resource: the drives' processors, links and disks, and the parent's link and cores. Until the time `T` each resource
//! offers its rate times `T`, less the time before anything can arrive there. The least `T` for which a division exists
//! is a linear program. We solve its dual: *any* non-negative prices of the resources prove a bound, because the
//! slices' least use is worth no more than what the resources offer. So the bound holds even where the simplex method
//! errs: the prices that it finds are applied to each slice with its own cost.
//!
//! Some costs are left out, all in the oracle's favour: seeks, setting up epochs, heartbeats, and waiting of one stage
//! for another except at the beginning and the end. States cost what one epoch per drive would, spread evenly over its
//! slices, and the slow first slices likewise. Whole slices take one way: a drive processes no more of them than its
//! cores could one after the other.

use skytether_scheduler::cost::distinct;
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::work::PRIORS;

use crate::fleet::{Fleet, OUTGOING, Real, costs};
use crate::simplex::maximise;
use crate::workload::Workload;

/// What holds a query up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Disks of drives.
    Disk,
    /// Cores of drives.
    Drive,
    /// Links of drives.
    Link,
    /// The link of the host.
    HostLink,
    /// Cores of the host.
    Host,
}

impl Resource {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Resource::Disk => "disks",
            Resource::Drive => "drives' cores",
            Resource::Link => "drives' links",
            Resource::HostLink => "host's link",
            Resource::Host => "host's cores",
        }
    }
}

/// What the oracle knows before the loads change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foresight {
    /// Everything: the bound holds for each single run of any policy.
    All,
    /// Not which drives a change hits: until then it treats all drives alike. The bound holds for any policy on average
    /// over the drives that may be hit, not for each single run.
    NotWhich,
}

/// A bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Seconds, at least.
    pub seconds: f64,
    /// The limiting resource: the one whose prices are highest.
    pub by: Resource,
}

/// Groups per class. Each group joins slices of similar costs while prices are sought.
const BINS: usize = 6;

/// Steps of the bisection for whole slices.
const STEPS: usize = 14;

/// Steps of the simplex method.
const PIVOTS: usize = 5000;

/// `usage <= base + rate * T`, over all slices.
struct Supply {
    of: Resource,
    base: f64,
    rate: f64,
}

/// A way for a slice of a class: what it uses of each supply, as `fixed + cost * scaled`, where `cost` is the
/// slice's against the average.
struct Way {
    uses: Vec<(usize, f64, f64)>,
}

/// Loads of a processor: (time at which it begins, factor by which it is slower).
type Loads<'a> = &'a [(f64, f64)];

/// Drives with the same load.
struct Class {
    ways: Vec<Way>,
    /// Costs of its slices against the average, ascending.
    costs: Vec<f64>,
}

struct Program {
    supplies: Vec<Supply>,
    classes: Vec<Class>,
}

/// The bound for `work` on `fleet` with the slices' costs of `seed`, whatever the policy. Loads
/// of drives must not fall.
#[must_use]
pub fn bound(fleet: &Fleet, work: &Workload, seed: u64, foresight: Foresight) -> Bound {
    let real = costs(fleet, &mut fastrand::Rng::with_seed(seed));
    let free = Program::new(fleet, work, &real, foresight, None).solve();
    // Slices are whole: until `T`, a drive completes a whole number of them.
    let (mut low, mut high, mut best) = (free.seconds, 0.0, free);
    let at = |time: f64| Program::new(fleet, work, &real, foresight, Some(time)).solve();
    let first = at(low);
    if first.seconds <= low {
        return free;
    }
    if first.seconds.is_finite() {
        high = first.seconds;
    }
    for _ in 0..STEPS {
        let middle = if high > 0.0 { 0.5 * (low + high) } else { low * 1.5 };
        let found = at(middle);
        if found.seconds > middle {
            (low, best) = (middle, Bound { seconds: middle, by: found.by });
        } else {
            high = middle;
        }
    }
    best
}

impl Program {
    fn new(fleet: &Fleet, work: &Workload, real: &[Real], foresight: Foresight, whole_until: Option<f64>) -> Self {
        let is = fleet.drives[0].is;
        let truth = work.truth;
        let (rows, bytes) = (f64::from(work.rows), work.bytes as f64);
        let (lower, upper) = (rows * truth.lower * fleet.off.0, rows * truth.upper * fleet.off.1);
        let transfer = PRIORS.transfer_s_per_byte;
        let (slices, cores, slow) = (f64::from(fleet.slices), f64::from(is.cores), 1.0 / is.speed_per_core);
        let read = bytes / is.disk_bytes_per_s;
        // States of an epoch of all slices of a drive, per slice.
        let states = truth.states.map_or(0.0, |(groups, _)| distinct(groups, slices * rows * truth.selected) / slices);
        let state_bytes = states * truth.states.map_or(0.0, |(_, bytes)| bytes);
        let selected = rows * truth.selected * truth.row_bytes;
        let streamed = if truth.states.is_some() { 0.0 } else { rows * truth.result_bytes };
        // Bytes up; seconds of a core below as fixed and scaled; the same above.
        let host = 1.0 / fleet.host.speed_per_core;
        let merge = (states * truth.merge + (state_bytes + streamed) * transfer) * host;
        let emit = states * PRIORS.emit_s_per_state + state_bytes * transfer;
        let ways = [
            (
                PushdownLevel::Full,
                state_bytes + streamed,
                ((streamed * transfer + bytes * truth.read) * slow, (lower + upper) * slow),
                emit * slow,
                (merge, 0.0),
            ),
            (
                PushdownLevel::Filter,
                selected,
                ((selected * transfer + bytes * truth.read) * slow, lower * slow),
                0.0,
                (selected * transfer * host, upper * host),
            ),
            (PushdownLevel::Raw, bytes, (bytes * transfer.max(truth.read) * slow, 0.0), 0.0, (bytes * transfer * host, (lower + upper) * host)),
        ];
        let (warm, slower) = fleet.warm_up;
        let warm_up = f64::from(warm.min(fleet.slices)) * (slower - 1.0).max(0.0) / slices;

        // What cannot be earlier: a drive has listed its slices, an order has come to it, a slice was read, the first
        // bytes have left, and have arrived.
        let session = fleet.session * slow * fleet.drives.iter().map(|drive| load_at_first(&drive.load)).fold(f64::INFINITY, f64::min);
        let cheapest = real.iter().map(|real| real.cost).fold(f64::INFINITY, f64::min);
        let begins = session + 2.0 * is.link_latency_s + read;
        let leaves = begins + ways.iter().map(|(_, _, (fixed, scaled), ..)| fixed + scaled * cheapest).fold(f64::INFINITY, f64::min);
        let comes = leaves + is.link_latency_s;

        let change = fleet.drives.iter().flat_map(|drive| &drive.load).map(|(at, _)| *at).fold(0.0, f64::max);
        let blind = foresight == Foresight::NotWhich && change > 0.0 && fleet.drives.iter().any(|drive| drive.load.is_empty());
        let mut classes: Vec<(Loads<'_>, Vec<usize>)> = Vec::new();
        for (at, drive) in fleet.drives.iter().enumerate() {
            match classes.iter_mut().find(|(load, _)| *load == drive.load.as_slice()) {
                Some((_, drives)) => drives.push(at),
                None => classes.push((&drive.load, vec![at])),
            }
        }
        let mut supplies = vec![
            Supply { of: Resource::HostLink, base: -fleet.host.link_bytes_per_s() * (leaves + is.link_latency_s), rate: fleet.host.link_bytes_per_s() },
            Supply { of: Resource::Host, base: -f64::from(fleet.host.cores) * comes, rate: f64::from(fleet.host.cores) },
        ];
        let all = fleet.drives.len() as f64;
        let raw_work = (bytes * transfer + (lower + upper) * real.iter().map(|real| real.cost).fold(0.0, f64::max)) * host;
        // What a core has worked on before the change was read before it; what it gave has gone through the links
        // since, or waits in bounded places.
        let memory = fleet.limits.memory as f64;
        let waits = OUTGOING + cores * bytes.max(selected).max(streamed);
        let early = change.max(begins) - begins;
        let common = [
            (Resource::HostLink, fleet.host.link_bytes_per_s() * early + memory + all * waits),
            (Resource::Host, f64::from(fleet.host.cores) * early + memory / bytes * raw_work),
        ];
        let common_at = supplies.len();
        if change > 0.0 {
            supplies.extend(common.map(|(of, base)| Supply { of, base, rate: 0.0 }));
        }
        // As much before the change as on the others, way by way: both ways round.
        let alike = blind.then_some(supplies.len());
        if blind {
            supplies.extend((0..2 * ways.len()).map(|_| Supply { of: Resource::Drive, base: 0.0, rate: 0.0 }));
        }
        let made = classes.iter().enumerate().map(|(class, (load, members))| {
            let drives = members.len() as f64;
            let mut supply = |of, base: f64, rate: f64| {
                supplies.push(Supply { of, base: drives * base, rate: drives * rate });
                supplies.len() - 1
            };
            let disk = supply(Resource::Disk, -(begins - read) - is.link_latency_s, 1.0);
            let link = supply(Resource::Link, -is.link_bytes_per_s() * (leaves + is.link_latency_s), is.link_bytes_per_s());
            // Work that a core gives until `T`: the least of lines, as loads never fall.
            let mut lines = vec![(-begins, 1.0)];
            for (from, load) in *load {
                let until = lines.iter().map(|(base, rate)| base + rate * from).fold(f64::INFINITY, f64::min).max(0.0);
                lines.push((until - from / load, 1.0 / load));
            }
            let given = |time: f64| lines.iter().map(|(base, rate)| base + rate * time).fold(f64::INFINITY, f64::min).max(0.0);
            // Before the change (as much as there was), and after it.
            let after = load.last().map_or(1.0, |(_, load)| *load);
            let processor = if change > 0.0 {
                [supply(Resource::Drive, cores * given(change), 0.0), supply(Resource::Drive, -cores * (change + is.link_latency_s) / after, cores / after)]
            } else {
                [supply(Resource::Drive, cores * lines.last().map_or(0.0, |(base, _)| *base), cores / after); 2]
            };
            let before =
                (change > 0.0).then(|| [supply(Resource::Disk, early / read + 1.0, 0.0), supply(Resource::Link, is.link_bytes_per_s() * early + waits, 0.0)]);
            let pooled = if blind { 0..fleet.drives.len() } else { 0..0 };
            let of = |drive: usize| real[drive * fleet.slices as usize..][..fleet.slices as usize].iter().map(|real| real.cost);
            let mut costs: Vec<f64> = if blind { pooled.flat_map(of).collect() } else { members.iter().flat_map(|drive| of(*drive)).collect() };
            costs.sort_by(f64::total_cmp);
            if blind {
                // The same costs for all classes: the members' number of them, evenly spread.
                let n = members.len() * fleet.slices as usize;
                costs = (0..n).map(|at| costs[(at as f64 * all / drives) as usize]).collect();
            }
            let cap = whole_until.map(|time| supply(Resource::Drive, whole(&costs, lower * slow, given(time), is.cores), 0.0));
            let mut made = Vec::new();
            for (at, (rung, up, (fixed, scaled), late, (above, above_scaled))) in ways.iter().enumerate() {
                let late = *late;
                let mut uses = vec![(disk, read, 0.0), (link, *up, 0.0), (0, *up, 0.0), (1, *above, *above_scaled)];
                let mut own = (*fixed, *scaled);
                if *rung != PushdownLevel::Raw {
                    own.1 *= 1.0 + warm_up;
                    uses.extend(cap.map(|cap| (cap, 1.0, 0.0)));
                }
                if let Some([seen, link]) = before {
                    let mut uses = uses.clone();
                    uses.extend([(processor[0], own.0, own.1), (processor[1], late, 0.0), (seen, 1.0, 0.0)]);
                    // States come at the end.
                    if *rung != PushdownLevel::Full || truth.states.is_none() {
                        uses.extend([(link, *up, 0.0), (common_at, *up, 0.0)]);
                    }
                    if *rung == PushdownLevel::Raw {
                        uses.push((common_at + 1, *above, *above_scaled));
                    }
                    if let Some(alike) = alike {
                        let sign = if class == 0 { read } else { -read } / drives;
                        uses.extend([(alike + 2 * at, sign, 0.0), (alike + 2 * at + 1, -sign, 0.0)]);
                    }
                    made.push(Way { uses });
                }
                uses.push((processor[1], own.0 + late, own.1));
                made.push(Way { uses });
            }
            Class { ways: made, costs }
        });
        let classes = made.collect();
        Self { supplies, classes }
    }

    fn solve(&self) -> Bound {
        let n = self.supplies.len();
        let bins: Vec<(usize, f64, f64)> = self
            .classes
            .iter()
            .enumerate()
            .flat_map(|(class, of)| {
                let each = of.costs.len().div_ceil(BINS).max(1);
                of.costs.chunks(each).map(move |chunk| (class, chunk.len() as f64, chunk.iter().sum::<f64>() / chunk.len() as f64))
            })
            .collect();
        // Variables: a price per supply, in units of its rate; what a slice of each bin is worth, as a difference.
        let width = n + 2 * bins.len();
        let mut rows = Vec::new();
        let mut limits = Vec::new();
        for (at, (class, _, cost)) in bins.iter().enumerate() {
            for way in &self.classes[*class].ways {
                let mut row = vec![0.0; width];
                for (supply, fixed, scaled) in &way.uses {
                    row[*supply] -= (fixed + scaled * cost) / self.supplies[*supply].unit();
                }
                row[n + 2 * at] = 1.0;
                row[n + 2 * at + 1] = -1.0;
                rows.push(row);
                limits.push(0.0);
            }
        }
        let mut row = vec![0.0; width];
        let mut goal = vec![0.0; width];
        for (at, supply) in self.supplies.iter().enumerate() {
            row[at] = supply.rate / supply.unit();
            goal[at] = -supply.base / supply.unit();
        }
        rows.push(row);
        limits.push(1.0);
        for (at, (_, count, _)) in bins.iter().enumerate() {
            goal[n + 2 * at] = *count;
            goal[n + 2 * at + 1] = -count;
        }
        let found = maximise(&rows, &limits, &goal, PIVOTS);
        let prices: Vec<f64> = found.iter().zip(&self.supplies).map(|(price, supply)| price / supply.unit()).collect();
        self.proof(&prices)
    }

    /// What `prices` prove, slice by slice.
    fn proof(&self, prices: &[f64]) -> Bound {
        let mut worth = 0.0;
        for class in &self.classes {
            let ways: Vec<(f64, f64)> = class
                .ways
                .iter()
                .map(|way| way.uses.iter().fold((0.0, 0.0), |(a, b), (supply, fixed, scaled)| (a + prices[*supply] * fixed, b + prices[*supply] * scaled)))
                .collect();
            worth += class.costs.iter().map(|cost| ways.iter().map(|(fixed, scaled)| fixed + scaled * cost).fold(f64::INFINITY, f64::min)).sum::<f64>();
        }
        let base: f64 = self.supplies.iter().zip(prices).map(|(supply, price)| supply.base * price).sum();
        let rate: f64 = self.supplies.iter().zip(prices).map(|(supply, price)| supply.rate * price).sum();
        let mut share = std::collections::BTreeMap::new();
        for (supply, price) in self.supplies.iter().zip(prices) {
            *share.entry(supply.of).or_insert(0.0) += supply.rate * price;
        }
        let by = share.into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(Resource::Drive, |(of, _)| of);
        Bound { seconds: if rate > 0.0 { (worth - base) / rate } else { 0.0 }, by }
    }
}

impl Supply {
    fn unit(&self) -> f64 {
        if self.rate > 0.0 { self.rate } else { self.base.abs().max(1.0) }
    }
}

/// How many times slower than it is a processor is when a query begins.
fn load_at_first(load: Loads<'_>) -> f64 {
    load.iter().rev().find(|(from, _)| *from <= 0.0).map_or(1.0, |(_, load)| *load)
}

/// The most whole slices that a drive's `cores` cores process one after the other in `time` seconds; of the cheapest
/// there are, `each` seconds for an average one.
fn whole(costs: &[f64], each: f64, time: f64, cores: u32) -> f64 {
    let mut left = time;
    let mut count = 0;
    for cost in costs {
        left -= cost * each;
        if left < 0.0 {
            break;
        }
        count += 1;
    }
    f64::from(cores) * f64::from(count)
}
