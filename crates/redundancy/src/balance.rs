//! Which shards move when drives are added or retired.
//!
//! Data and parities are balanced each by themselves, so that every drive has its share of the bytes to store and of those to compute on. What lies on retiring drives goes where there is least; then shards go
//! from the drive with most to that with least, until all are within the tolerance: each such move is one that the most loaded or the least loaded drive needs, so that the bytes moved are the least possible but for
//! about a shard per drive. Where no shard may go the straight way, because all its groups are there already, others make room along a path.

use std::collections::VecDeque;

use skytether_common::{Error, Result};

use crate::map::{CodeMap, Place};
use crate::repair::{Drive, loads};

/// A shard that goes to another drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub place: Place,
    /// Where it lies.
    pub from: u32,
    /// Where it is to lie.
    pub to: u32,
    /// Its bytes.
    pub len: u64,
}

/// Moves, and what comes of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Balance {
    /// In the map's order. After all of them no two shards of a group are on the same drive; in between two may be, for a group of which more than one moves.
    pub moves: Vec<Move>,
    /// Bytes of data after them, drive by drive.
    pub data: Vec<u64>,
    /// Bytes of parity after them, drive by drive.
    pub parity: Vec<u64>,
}

/// The moves that empty retiring drives and bring the bytes of data, and those of parity, of every other drive to within `tolerance` (0.05, say) of their means, as far as shards are small enough and groups allow it.
///
/// `drives` says what may be done with each; those that the map does not know are new ones. What is lost is [repaired](crate::repair::repair) first.
///
/// # Errors
/// Invalid where the map names a drive that is lost or not among `drives`; exhausted where too few drives are left for a group.
pub fn balance(map: &CodeMap, drives: &[Drive], tolerance: f64) -> Result<Balance> {
    let mut state = State::new(map, drives)?;
    state.retire()?;
    for role in 0..2 {
        state.level(role, tolerance.max(0.0));
    }
    let State { now, loads: [data, parity], .. } = state;
    let mut moves = Vec::new();
    for (group, (members, now)) in map.iter().zip(now).enumerate() {
        for (shard, (was, to)) in members.all().iter().zip(now).enumerate().filter(|(_, (was, to))| was.drive != *to) {
            moves.push(Move { place: Place { group: group as u32, shard: shard as u32 }, from: was.drive, to, len: was.len });
        }
    }
    Ok(Balance { moves, data, parity })
}

struct State<'a> {
    map: &'a CodeMap,
    drives: &'a [Drive],
    /// By group and shard, on which drive it is.
    now: Vec<Vec<u32>>,
    /// By role and drive.
    loads: [Vec<u64>; 2],
    /// By role and drive, which shards are on it; some of them may have gone since.
    on: [Vec<Vec<Place>>; 2],
    /// By role and drive, where in `on` to look first.
    cursors: [Vec<usize>; 2],
}

impl<'a> State<'a> {
    fn new(map: &'a CodeMap, drives: &'a [Drive]) -> Result<Self> {
        let loads = loads(map, drives.len())?;
        let mut on = [vec![Vec::new(); drives.len()], vec![Vec::new(); drives.len()]];
        let mut now = Vec::with_capacity(map.len());
        for (group, members) in map.iter().enumerate() {
            for (at, shard) in members.all().iter().enumerate() {
                if drives.get(shard.drive as usize) == Some(&Drive::Lost) {
                    return Err(Error::invalid(format!("drive {} is lost: repair what was on it before anything moves", shard.drive)));
                }
                on[usize::from(at >= members.data.len())][shard.drive as usize].push(Place { group: group as u32, shard: at as u32 });
            }
            now.push(members.all().iter().map(|shard| shard.drive).collect());
        }
        let cursors = [vec![0; drives.len()], vec![0; drives.len()]];
        Ok(Self { map, drives, now, loads, on, cursors })
    }

    fn here(&self) -> impl Iterator<Item = usize> {
        (0..self.drives.len()).filter(|drive| self.drives[*drive] == Drive::Here)
    }

    fn len(&self, place: Place) -> u64 {
        self.map.shard(place).map_or(0, |shard| shard.len)
    }

    fn may_go(&self, place: Place, to: usize) -> bool {
        !self.now[place.group as usize].contains(&(to as u32))
    }

    fn put(&mut self, role: usize, place: Place, to: usize) {
        let len = self.len(place);
        let drive = &mut self.now[place.group as usize][place.shard as usize];
        self.loads[role][*drive as usize] -= len;
        self.loads[role][to] += len;
        *drive = to as u32;
        self.on[role][to].push(place);
    }

    /// Whether what is listed at a drive still is there.
    fn is_on(&self, place: Place, drive: usize) -> bool {
        self.now[place.group as usize][place.shard as usize] as usize == drive
    }

    /// Empties retiring drives, the longest shards first.
    fn retire(&mut self) -> Result<()> {
        for role in 0..2 {
            let retiring = (0..self.drives.len()).filter(|drive| self.drives[*drive] == Drive::Retiring);
            let mut places: Vec<Place> = retiring.flat_map(|drive| self.on[role][drive].iter().copied()).collect();
            places.sort_by_key(|place| std::cmp::Reverse(self.len(*place)));
            for place in places {
                let to = self.here().filter(|to| self.may_go(place, *to)).min_by_key(|to| (self.loads[role][*to], *to));
                let to = to.ok_or_else(|| {
                    Error::exhausted(format!(
                        "{} drives are too few for group {} of {} shards: keep one, or add one",
                        self.here().count(),
                        place.group,
                        self.now[place.group as usize].len()
                    ))
                })?;
                self.put(role, place, to);
            }
        }
        Ok(())
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

    /// Moves a shard from one drive to another, or along a path between them.
    fn hand_on(&mut self, role: usize, from: usize, to: usize) -> bool {
        let gap = self.loads[role][from].saturating_sub(self.loads[role][to]);
        if let Some(place) = self.straight(role, from, to, gap) {
            self.put(role, place, to);
            return true;
        }
        let mut reached: Vec<Option<(usize, Place)>> = vec![None; self.drives.len()];
        let mut next = VecDeque::from([from]);
        let here: Vec<usize> = self.here().collect();
        while let Some(drive) = next.pop_front() {
            for place in self.on[role][drive].iter().filter(|place| self.is_on(**place, drive) && self.len(**place) < gap) {
                for other in &here {
                    if *other == from || reached[*other].is_some() || !self.may_go(*place, *other) {
                        continue;
                    }
                    reached[*other] = Some((drive, *place));
                    next.push_back(*other);
                }
            }
            if reached[to].is_some() {
                return self.along(role, &reached, from, to);
            }
        }
        false
    }

    /// A shard that is shorter than the gap between two drives and may go from one to the other.
    fn straight(&mut self, role: usize, from: usize, to: usize, gap: u64) -> Option<Place> {
        let listed = self.on[role][from].len();
        for step in 0..listed {
            let at = (self.cursors[role][from] + step) % listed;
            let place = self.on[role][from][at];
            if self.is_on(place, from) && self.may_go(place, to) && self.len(place) < gap {
                self.cursors[role][from] = at + 1;
                return Some(place);
            }
        }
        None
    }

    fn along(&mut self, role: usize, reached: &[Option<(usize, Place)>], from: usize, to: usize) -> bool {
        let mut steps = Vec::new();
        let mut at = to;
        while at != from {
            let Some((before, place)) = reached[at] else { return false };
            steps.push((place, at));
            at = before;
        }
        // A group's shards may be on the way twice: then the second step may no longer be one.
        let mut moved = false;
        for (place, to) in steps.into_iter().rev() {
            if !self.may_go(place, to) {
                break;
            }
            self.put(role, place, to);
            moved = true;
        }
        moved
    }
}
