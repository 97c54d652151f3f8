//! Repair of the shards of lost drives: which shards to read for each group, and which drives to write to.
//!
//! Each group with a loss is read once, as many surviving shards as it has data shards. That is the least that the code
//! allows, for any number of lost shards. The choice minimises the bytes of the drive that reads most. Reads are first
//! given to the drives with the fewest so far. Then they move along paths of groups, away from the drive with most, for
//! as long as there is such a path. For shards of equal length the result is the least possible maximum, because a set
//! of drives that no such path leaves must read what it reads. Otherwise it is within about a shard of it.

use std::collections::{BTreeSet, VecDeque};

use skytether_common::{Error, Result};

use crate::map::{CodeMap, Members, Place};

/// What may be done with a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    /// Read and written.
    Here,
    /// Read, but to be emptied.
    Retiring,
    /// Neither.
    Lost,
}

/// A shard that is reconstructed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// Which.
    pub place: Place,
    /// The drive to write it to.
    pub to: u32,
}

/// The repair of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRepair {
    /// Which group.
    pub group: u32,
    /// Its shards to read (places in the group, data before parity): as many as it has data shards.
    pub reads: Vec<u32>,
    /// Its lost shards.
    pub rebuilt: Vec<Rebuilt>,
}

/// The repair of all groups with a loss.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Repair {
    /// Groups that can be repaired, in the map's order.
    pub groups: Vec<GroupRepair>,
    /// Groups that lost more than M shards.
    pub beyond: Vec<u32>,
    /// Bytes to read, drive by drive.
    pub read: Vec<u64>,
    /// Bytes to write, drive by drive.
    pub written: Vec<u64>,
}

/// The shards to read for a decoding whose results are used at once and not written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reads {
    /// Groups, in order, and their shards to read (places in the group, data before parity): as many
    /// as each has data shards.
    pub groups: Vec<(u32, Vec<u32>)>,
    /// Groups that lost more than M shards.
    pub beyond: Vec<u32>,
    /// Bytes to read, drive by drive.
    pub read: Vec<u64>,
}

/// The reads that decode the `wanted` shards on lost drives, spread over the drives as in [`repair`]; none for the
/// others. Needs no drive to write to.
///
/// # Errors
/// Invalid where a wanted shard is not in the map, or the map names a drive that is not among `drives`.
pub fn reads(map: &CodeMap, drives: &[Drive], wanted: &[Place]) -> Result<Reads> {
    let mut groups = BTreeSet::new();
    for place in wanted {
        let shard = map.shard(*place).ok_or_else(|| Error::invalid(format!("shard {} of group {} is not in the code map", place.shard, place.group)))?;
        if drives.get(shard.drive as usize) == Some(&Drive::Lost) {
            groups.insert(place.group);
        }
    }
    choose(map, drives, groups)
}

/// What to read of these groups, those of them that lost nothing left out.
fn choose(map: &CodeMap, drives: &[Drive], groups: impl IntoIterator<Item = u32>) -> Result<Reads> {
    let mut reads = Reads::default();
    let mut reading = Vec::new();
    for group in groups {
        let Some(members) = map.group(group as usize) else { continue };
        let mut survivors = Vec::with_capacity(members.all().len());
        for (at, shard) in members.all().iter().enumerate() {
            match drives.get(shard.drive as usize) {
                Some(Drive::Lost) => {}
                Some(Drive::Here | Drive::Retiring) => survivors.push(at as u32),
                None => return Err(not_among(shard.drive, drives.len())),
            }
        }
        if survivors.len() == members.all().len() {
            continue;
        }
        if survivors.len() < members.data.len() {
            reads.beyond.push(group);
            continue;
        }
        reading.push(RepairReads::new(members, &survivors));
        reads.groups.push((group, Vec::new()));
    }
    reads.read = spread(&mut reading, drives.len());
    for ((_, chosen), reading) in reads.groups.iter_mut().zip(reading) {
        chosen.extend(reading.shards.iter().filter(|shard| shard.read).map(|shard| shard.at));
        chosen.sort_unstable();
    }
    Ok(reads)
}

fn not_among(drive: u32, drives: usize) -> Error {
    Error::invalid(format!("drive {drive} of a code map is not among {drives}"))
}

/// A plan that restores the shards of lost drives. `drives` gives the state of each drive; those that the map does not
/// know are new ones.
///
/// Data goes where there is least data, parities where there is least parity, and no two shards of a group to the same
/// drive.
///
/// # Errors
/// Invalid where the map names a drive that is not among `drives`; exhausted where no drive is left for a shard.
pub fn repair(map: &CodeMap, drives: &[Drive]) -> Result<Repair> {
    let mut loads = loads(map, drives.len())?;
    let reads = choose(map, drives, 0..map.len() as u32)?;
    let groups = reads.groups.into_iter().map(|(group, reads)| GroupRepair { group, reads, rebuilt: Vec::new() }).collect();
    let mut plan = Repair { groups, beyond: reads.beyond, read: reads.read, written: vec![0; drives.len()] };

    // The longest first, so that the short ones even out what is left.
    let mut lost: Vec<(usize, u32, u64)> = Vec::new();
    for (at, group) in plan.groups.iter().enumerate() {
        let members = map.group(group.group as usize).map_or(&[][..], Members::all);
        lost.extend(members.iter().enumerate().filter(|(_, shard)| drives[shard.drive as usize] == Drive::Lost).map(|(shard, of)| (at, shard as u32, of.len)));
    }
    lost.sort_by_key(|(_, _, len)| std::cmp::Reverse(*len));
    for (at, shard, len) in lost {
        let entry = &mut plan.groups[at];
        let Some(members) = map.group(entry.group as usize) else { continue };
        let role = usize::from(shard as usize >= members.data.len());
        let taken = |drive: u32| members.is_on(drive) || entry.rebuilt.iter().any(|other| other.to == drive);
        let free = (0..drives.len()).filter(|drive| drives[*drive] == Drive::Here && !taken(*drive as u32));
        let Some(to) = free.min_by_key(|drive| (loads[role][*drive], *drive)) else {
            let has = drives.iter().filter(|drive| **drive == Drive::Here).count();
            return Err(Error::exhausted(format!("{has} drives are too few for group {} of {} shards: add one", entry.group, members.all().len())));
        };
        loads[role][to] += len;
        plan.written[to] += len;
        entry.rebuilt.push(Rebuilt { place: Place { group: entry.group, shard }, to: to as u32 });
    }
    plan.groups.iter_mut().for_each(|group| group.rebuilt.sort_unstable_by_key(|rebuilt| rebuilt.place));
    Ok(plan)
}

/// Bytes of data and of parity, drive by drive.
///
/// # Errors
/// Invalid where the map names a drive beyond `drives`.
pub fn loads(map: &CodeMap, drives: usize) -> Result<[Vec<u64>; 2]> {
    let mut loads = [vec![0u64; drives], vec![0; drives]];
    for members in map.iter() {
        for (at, shard) in members.all().iter().enumerate() {
            let role = usize::from(at >= members.data.len());
            let load = loads[role].get_mut(shard.drive as usize).ok_or_else(|| not_among(shard.drive, drives))?;
            *load += shard.len;
        }
    }
    Ok(loads)
}

/// A shard that could be read.
#[derive(Debug)]
struct Readable {
    at: u32,
    drive: u32,
    len: u64,
    read: bool,
}

/// A group that needs `need` shards to be read.
#[derive(Debug)]
struct RepairReads {
    need: usize,
    shards: Vec<Readable>,
}

impl RepairReads {
    fn new(members: Members<'_>, survivors: &[u32]) -> Self {
        let of = |at: &u32| members.all().get(*at as usize).map(|shard| Readable { at: *at, drive: shard.drive, len: shard.len, read: false });
        Self { need: members.data.len(), shards: survivors.iter().filter_map(of).collect() }
    }
}

/// Chooses what is read; bytes per drive.
fn spread(groups: &mut [RepairReads], drives: usize) -> Vec<u64> {
    let mut loads = vec![0u64; drives];
    let mut of_drive: Vec<Vec<u32>> = vec![Vec::new(); drives];
    for (at, group) in groups.iter_mut().enumerate() {
        group.shards.sort_by_key(|shard| (loads[shard.drive as usize], shard.len, shard.drive));
        for (rank, shard) in group.shards.iter_mut().enumerate() {
            of_drive[shard.drive as usize].push(at as u32);
            if rank < group.need {
                shard.read = true;
                loads[shard.drive as usize] += shard.len;
            }
        }
    }
    // Each round takes a shard off the drive with most.
    for _ in 0..1000 + 16 * drives {
        let Some(from) = (0..drives).max_by_key(|drive| (loads[*drive], *drive)) else { break };
        if !relieve(groups, &of_drive, &mut loads, from) {
            break;
        }
    }
    loads
}

/// Moves a read from `from` to another drive, and one from there to yet another if need be, so that none of them has as
/// much as `from` had. Whether there was a way.
fn relieve(groups: &mut [RepairReads], of_drive: &[Vec<u32>], loads: &mut [u64], from: usize) -> bool {
    // How each drive was reached: from which drive, by which group.
    let mut reached: Vec<Option<(usize, u32)>> = vec![None; loads.len()];
    let mut next = VecDeque::from([from]);
    while let Some(drive) = next.pop_front() {
        for group in &of_drive[drive] {
            let shards = &groups[*group as usize].shards;
            if !shards.iter().any(|shard| shard.drive as usize == drive && shard.read) {
                continue;
            }
            let others: Vec<(usize, u64)> = shards.iter().filter(|other| !other.read).map(|other| (other.drive as usize, other.len)).collect();
            for (to, len) in others {
                if to == from || reached[to].is_some() {
                    continue;
                }
                reached[to] = Some((drive, *group));
                if loads[to] + len < loads[from] && shift(groups, loads, &reached, from, to) {
                    return true;
                }
                next.push_back(to);
            }
        }
    }
    false
}

/// Shifts reads along the way on which `to` was reached, unless one of the drives on it would then
/// have as much as `from` has.
fn shift(groups: &mut [RepairReads], loads: &mut [u64], reached: &[Option<(usize, u32)>], from: usize, to: usize) -> bool {
    let most = loads[from];
    let mut steps = Vec::new();
    let mut at = to;
    while at != from {
        let Some((before, group)) = reached[at] else { return false };
        steps.push((before, at, group as usize));
        at = before;
    }
    let mut changed: Vec<(usize, u64)> = Vec::new();
    let len = |group: usize, drive: usize| groups[group].shards.iter().find(|shard| shard.drive as usize == drive).map_or(0, |shard| shard.len);
    for (rank, (_, drive, group)) in steps.iter().enumerate() {
        // It gains this step's read and loses that of the step after it.
        let loses = if rank == 0 { 0 } else { len(steps[rank - 1].2, *drive) };
        changed.push((*drive, loads[*drive] + len(*group, *drive) - loses.min(loads[*drive])));
    }
    if changed.iter().any(|(_, load)| *load >= most) {
        return false;
    }
    if let Some((_, _, group)) = steps.last() {
        loads[from] = most.saturating_sub(len(*group, from));
    }
    changed.into_iter().for_each(|(drive, load)| loads[drive] = load);
    for (before, after, group) in steps {
        for shard in &mut groups[group].shards {
            if shard.drive as usize == before {
                shard.read = false;
            } else if shard.drive as usize == after {
                shard.read = true;
            }
        }
    }
    true
}
