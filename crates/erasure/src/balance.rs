//! The balancer: which shards move when drives are added or retired.
//!
//! Data and parities are balanced separately, so that every drive has its share of the bytes to store and of those to
//! compute on. Shards of retiring drives go where there is least. Then shards go from the drive with most to that with
//! least, until all are within the tolerance. The most loaded or the least loaded drive needs each such move, so the
//! bytes moved are minimal up to about a shard per drive. Where no shard may move directly, because its groups already
//! have shards on the target, other shards make room along a path.
//!
//! A *unit* ([`Units`]) moves as a whole. It is a shard, several slices of one stripe that must stay together, or a
//! slice without any group. Many small data sets may be unbalanced together although none could be more balanced by
//! itself. [`Units::balance`] evens them out by moves that make no data set less even.

use std::collections::VecDeque;

use skytether_common::{Error, Result};

use crate::map::{CodeMap, Place, Role};
use crate::repair::{Drive, loads};

/// A shard that goes to another drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub place: Place,
    /// Its drive.
    pub from: u32,
    /// The drive that it moves to.
    pub to: u32,
    /// Its bytes.
    pub len: u64,
}

/// Moves, and the loads after them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balance {
    /// In the map's order. After all moves no two shards of a group are on the same drive (I12). In between two may be,
    /// if several shards of the group move.
    pub moves: Vec<Move>,
    /// Bytes of data after them, drive by drive.
    pub data: Vec<u64>,
    /// Bytes of parity after them, drive by drive.
    pub parity: Vec<u64>,
}

/// The moves that empty retiring drives and balance the others. They bring each other drive's bytes of data, and of
/// parity, to within `tolerance` (0.05, say) of the means, as far as shards are small enough and groups allow it.
///
/// `drives` gives the state of each drive; those that the map does not know are new ones. Lost shards must be
/// [repaired](crate::repair::repair) first.
///
/// # Errors
/// Invalid where the map names a drive that is lost or not among `drives`; exhausted where too few drives are left for
/// a group.
pub fn balance(map: &CodeMap, drives: &[Drive], tolerance: f64) -> Result<Balance> {
    loads(map, drives.len())?;
    let mut units = Units::default();
    for (group, members) in map.iter().enumerate() {
        for (at, shard) in members.all().iter().enumerate() {
            units.push(if at < members.data.len() { Role::Data } else { Role::Parity }, shard.drive, shard.len, [group as u32]);
        }
    }
    let ShardLayout { now, data, parity } = units.balance(drives, &[], tolerance)?;
    let (mut moves, mut now) = (Vec::new(), now.into_iter());
    for (group, members) in map.iter().enumerate() {
        for (shard, (was, to)) in members.all().iter().zip(now.by_ref()).enumerate().filter(|(_, (was, to))| was.drive != *to) {
            moves.push(Move { place: Place { group: group as u32, shard: shard as u32 }, from: was.drive, to, len: was.len });
        }
    }
    Ok(Balance { moves, data, parity })
}

/// The drives of units after the moves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardLayout {
    /// The drive of each unit, in the order in which they were named.
    pub now: Vec<u32>,
    /// Bytes of data, drive by drive.
    pub data: Vec<u64>,
    /// Bytes of parity, drive by drive.
    pub parity: Vec<u64>,
}

/// Shards that are on one drive and move together.
#[derive(Debug, Clone, Copy)]
struct Unit {
    role: usize,
    drive: u32,
    len: u64,
    /// Where its groups end in the list of all; they begin where those of the unit before end.
    end: usize,
}

/// The units to balance, each with the code groups that have a shard in it.
#[derive(Debug, Clone, Default)]
pub struct Units {
    units: Vec<Unit>,
    groups: Vec<u32>,
    /// One more than the highest group.
    most: usize,
}

impl Units {
    /// Adds a unit of `len` bytes on `drive`, with a shard of each of `groups` (numbered from 0). No other shard of
    /// these groups may be on its drive.
    pub fn push(&mut self, role: Role, drive: u32, len: u64, groups: impl IntoIterator<Item = u32>) {
        for group in groups {
            self.most = self.most.max(group as usize + 1);
            self.groups.push(group);
        }
        self.units.push(Unit { role: usize::from(role == Role::Parity), drive, len, end: self.groups.len() });
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    fn groups(&self, unit: usize) -> &[u32] {
        let from = unit.checked_sub(1).map_or(0, |before| self.units[before].end);
        &self.groups[from..self.units[unit].end]
    }

    /// Bytes of data and of parity, drive by drive.
    ///
    /// # Errors
    /// Invalid where a unit is on a drive beyond `drives`.
    pub fn loads(&self, drives: usize) -> Result<[Vec<u64>; 2]> {
        let mut loads = [vec![0u64; drives], vec![0; drives]];
        for unit in &self.units {
            let load = loads[unit.role].get_mut(unit.drive as usize);
            *load.ok_or_else(|| Error::invalid(format!("drive {} of what is to be balanced is not among {drives}", unit.drive)))? += unit.len;
        }
        Ok(loads)
    }

    /// The fewest bytes that have to move so that retiring drives are empty and the others within `tolerance` of the
    /// mean, data and parity each by themselves, if units could be divided.
    ///
    /// # Errors
    /// As [`Self::loads`].
    pub fn least(&self, drives: &[Drive], tolerance: f64) -> Result<u64> {
        let here = drives.iter().filter(|drive| **drive == Drive::Here).count().max(1) as f64;
        let of = |loads: &Vec<u64>| {
            let mean = loads.iter().sum::<u64>() as f64 / here;
            let (mut over, mut under) = (0.0, 0.0);
            for (load, drive) in loads.iter().zip(drives) {
                if *drive == Drive::Here {
                    over += (*load as f64 - mean * (1.0 + tolerance)).max(0.0);
                    under += (mean * (1.0 - tolerance) - *load as f64).max(0.0);
                } else {
                    over += *load as f64;
                }
            }
            over.max(under) as u64
        };
        Ok(self.loads(drives.len())?.iter().map(of).sum())
    }

    /// Places that empty retiring drives and bring the bytes of data, and those of parity, of every other drive to
    /// within `tolerance` of their means, as far as units are small enough and groups allow it; and then all bytes of
    /// each drive, those of `others` included that have been placed before, by moves that make data and parity no less
    /// even; without `others` that is left out.
    ///
    /// # Errors
    /// Invalid where a unit is on a drive that is lost or not among `drives`; exhausted where too few drives
    /// are left for its groups.
    pub fn balance(&self, drives: &[Drive], others: &[u64], tolerance: f64) -> Result<ShardLayout> {
        let mut state = State::new(self, drives)?;
        state.retire(others)?;
        for role in 0..2 {
            state.level(role, tolerance.max(0.0));
        }
        state.even(others, tolerance.max(0.0));
        let State { now, loads: [data, parity], .. } = state;
        Ok(ShardLayout { now, data, parity })
    }
}

struct State<'a> {
    units: &'a Units,
    drives: &'a [Drive],
    /// The drive of each unit.
    now: Vec<u32>,
    /// The drives of each group's shards.
    taken: Vec<Vec<u32>>,
    /// Bytes by role and drive.
    loads: [Vec<u64>; 2],
    /// Units by role and drive; some of them may have moved since.
    on: [Vec<Vec<usize>>; 2],
    /// Place in `on` at which a search begins, by role and drive.
    cursors: [Vec<usize>; 2],
}

impl<'a> State<'a> {
    fn new(units: &'a Units, drives: &'a [Drive]) -> Result<Self> {
        let loads = units.loads(drives.len())?;
        let mut on = [vec![Vec::new(); drives.len()], vec![Vec::new(); drives.len()]];
        let mut taken = vec![Vec::new(); units.most];
        for (at, unit) in units.units.iter().enumerate() {
            if drives.get(unit.drive as usize) == Some(&Drive::Lost) {
                return Err(Error::invalid(format!("drive {} is lost: repair what was on it before anything moves", unit.drive)));
            }
            on[unit.role][unit.drive as usize].push(at);
            units.groups(at).iter().for_each(|group| taken[*group as usize].push(unit.drive));
        }
        let cursors = [vec![0; drives.len()], vec![0; drives.len()]];
        Ok(Self { units, drives, now: units.units.iter().map(|unit| unit.drive).collect(), taken, loads, on, cursors })
    }

    fn here(&self) -> impl Iterator<Item = usize> {
        (0..self.drives.len()).filter(|drive| self.drives[*drive] == Drive::Here)
    }

    fn len(&self, unit: usize) -> u64 {
        self.units.units[unit].len
    }

    fn may_go(&self, unit: usize, to: usize) -> bool {
        self.now[unit] as usize != to && self.units.groups(unit).iter().all(|group| !self.taken[*group as usize].contains(&(to as u32)))
    }

    fn put(&mut self, role: usize, unit: usize, to: usize) {
        let len = self.len(unit);
        let from = std::mem::replace(&mut self.now[unit], to as u32);
        self.loads[role][from as usize] -= len;
        self.loads[role][to] += len;
        for group in self.units.groups(unit) {
            if let Some(taken) = self.taken[*group as usize].iter_mut().find(|drive| **drive == from) {
                *taken = to as u32;
            }
        }
        self.on[role][to].push(unit);
    }

    /// Whether what is listed at a drive still is there.
    fn is_on(&self, unit: usize, drive: usize) -> bool {
        self.now[unit] as usize == drive
    }

    /// Empties retiring drives, the longest units first.
    fn retire(&mut self, others: &[u64]) -> Result<()> {
        for role in 0..2 {
            let retiring = (0..self.drives.len()).filter(|drive| self.drives[*drive] == Drive::Retiring);
            let mut units: Vec<usize> = retiring.flat_map(|drive| self.on[role][drive].iter().copied()).collect();
            units.sort_by_key(|unit| std::cmp::Reverse(self.len(*unit)));
            for unit in units {
                // Among drives with equal loads of this role, the one with the least total.
                let load = |to: &usize| (self.loads[role][*to], others.get(*to).copied().unwrap_or(0), *to);
                let to = self.here().filter(|to| self.may_go(unit, *to)).min_by_key(load);
                let to = to.ok_or_else(|| {
                    let groups = self.units.groups(unit);
                    let shards = groups.first().map_or(0, |group| self.taken[*group as usize].len());
                    Error::exhausted(format!("{} drives are too few for a group of {shards} shards: keep one, or add one", self.here().count()))
                })?;
                self.put(role, unit, to);
            }
        }
        Ok(())
    }

    /// Brings all bytes, with those of others, to within the tolerance, by moves that leave neither role less even.
    fn even(&mut self, others: &[u64], tolerance: f64) {
        let here: Vec<usize> = self.here().collect();
        let other = |drive: usize| others.get(drive).copied().unwrap_or(0);
        if here.is_empty() || others.is_empty() {
            return;
        }
        let sum = |loads: &[Vec<u64>; 2], drive: usize| loads[0][drive] + loads[1][drive] + other(drive);
        let mean = here.iter().map(|drive| sum(&self.loads, *drive)).sum::<u64>() as f64 / here.len() as f64;
        let (lower, upper) = (mean * (1.0 - tolerance), mean * (1.0 + tolerance));
        let (mut givers, mut takers) = (here.clone(), here);
        for _ in 0..2 * self.units.len() {
            let load = |drive: &usize| (sum(&self.loads, *drive), *drive);
            let (Some(from), Some(to)) = (givers.iter().copied().max_by_key(load), takers.iter().copied().min_by_key(load)) else { break };
            let (high, low) = (sum(&self.loads, from), sum(&self.loads, to));
            // Drives that cannot give or take any more are left out. The others may be even, or the other way round.
            if high <= low || ((high as f64) <= upper && (low as f64) >= lower) {
                break;
            }
            let moved = (0..2).any(|role| {
                // What is as long as the gap changes places with it, and the next one finds none.
                let gap = self.loads[role][from].saturating_sub(self.loads[role][to]);
                let unit = self.straight(role, from, to, (gap + 1).min(high - low));
                unit.inspect(|unit| self.put(role, *unit, to)).is_some()
            });
            if !moved {
                // Whichever of them is further off may find another.
                if high as f64 - mean > mean - low as f64 { takers.retain(|drive| *drive != to) } else { givers.retain(|drive| *drive != from) }
            }
        }
    }

    /// Brings a role's loads to within the tolerance.
    fn level(&mut self, role: usize, tolerance: f64) {
        let here: Vec<usize> = self.here().collect();
        if here.is_empty() {
            return;
        }
        let mean = here.iter().map(|drive| self.loads[role][*drive]).sum::<u64>() as f64 / here.len() as f64;
        let (lower, upper) = (mean * (1.0 - tolerance), mean * (1.0 + tolerance));
        let (mut givers, mut takers) = (here.clone(), here);
        // Every move makes loads more alike; this is for moves along paths, of shards of several lengths.
        let most: usize = self.on[role].iter().map(Vec::len).sum::<usize>() * 2;
        for _ in 0..most {
            let load = |drive: &usize| (self.loads[role][*drive], *drive);
            let (Some(from), Some(to)) = (givers.iter().copied().max_by_key(load), takers.iter().copied().min_by_key(load)) else { break };
            let (high, low) = (self.loads[role][from], self.loads[role][to]);
            if (high as f64) <= upper && (low as f64) >= lower {
                break;
            }
            if self.hand_on(role, from, to) {
                continue;
            }
            // Whichever of them is further off may find another.
            if high as f64 - mean > mean - low as f64 { takers.retain(|drive| *drive != to) } else { givers.retain(|drive| *drive != from) }
        }
    }

    /// Moves a unit from one drive to another, or along a path between them.
    fn hand_on(&mut self, role: usize, from: usize, to: usize) -> bool {
        let gap = self.loads[role][from].saturating_sub(self.loads[role][to]);
        if let Some(unit) = self.straight(role, from, to, gap) {
            self.put(role, unit, to);
            return true;
        }
        let mut reached: Vec<Option<(usize, usize)>> = vec![None; self.drives.len()];
        let mut next = VecDeque::from([from]);
        let here: Vec<usize> = self.here().collect();
        while let Some(drive) = next.pop_front() {
            for unit in self.on[role][drive].iter().filter(|unit| self.is_on(**unit, drive) && self.len(**unit) < gap) {
                for other in &here {
                    if *other == from || reached[*other].is_some() || !self.may_go(*unit, *other) {
                        continue;
                    }
                    reached[*other] = Some((drive, *unit));
                    next.push_back(*other);
                }
            }
            if reached[to].is_some() {
                return self.along(role, &reached, from, to);
            }
        }
        false
    }

    /// A unit that is shorter than the gap between two drives and may go from one to the other.
    fn straight(&mut self, role: usize, from: usize, to: usize, gap: u64) -> Option<usize> {
        let listed = self.on[role][from].len();
        for step in 0..listed {
            let at = (self.cursors[role][from] + step) % listed;
            let unit = self.on[role][from][at];
            if self.is_on(unit, from) && self.may_go(unit, to) && self.len(unit) < gap {
                self.cursors[role][from] = at + 1;
                return Some(unit);
            }
        }
        None
    }

    fn along(&mut self, role: usize, reached: &[Option<(usize, usize)>], from: usize, to: usize) -> bool {
        let mut steps = Vec::new();
        let mut at = to;
        while at != from {
            let Some((before, unit)) = reached[at] else { return false };
            steps.push((unit, at));
            at = before;
        }
        // A group's shards may be on the way twice: then the second step may no longer be one.
        let mut moved = false;
        for (unit, to) in steps.into_iter().rev() {
            if !self.may_go(unit, to) {
                break;
            }
            self.put(role, unit, to);
            moved = true;
        }
        moved
    }
}
