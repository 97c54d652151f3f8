//! Places the parities of a table on other drives, and writes the code maps that name them. Code groups keep their
//! members, under new keys.

use std::collections::HashMap;

use skytether_common::{Error, Result};
use skytether_erasure::map::{CodeMap, Shard};

use crate::rebalance_plan::{Job, Planned};
use skytether_catalog::records::code_map::{Part, StoredMap, Within};

/// The new partition and number of a value, by the old ones.
pub(crate) type Named = HashMap<(u32, u32), (u32, u32)>;

/// The new parities of a table.
pub(crate) struct ParityLayout {
    pub(crate) stored: StoredMap,
    /// Parities across drives or nodes, and those within nodes: their number on each drive, and their bytes.
    pub(crate) parities: [Vec<(u32, u64)>; 2],
    pub(crate) jobs: Vec<Job>,
    /// Whether any goes elsewhere.
    pub(crate) changed: bool,
    /// The longest.
    pub(crate) longest: u64,
}

impl Planned<'_> {
    /// Places all parities by `place`, one call for each: first those across drives or nodes, then those within nodes.
    /// `named` gives the new names of the slices.
    ///
    /// # Errors
    /// `Corrupt` where a code group has a value that no partition counts.
    pub(crate) fn coded(&self, map: &StoredMap, named: &Named, mut place: impl FnMut() -> Result<u32>) -> Result<ParityLayout> {
        let uncounted = || Error::corrupt(format!("a code group of {} {} has a value that no partition counts", self.record.name, self.title));
        let renamed = |of: &Named, home: u32, number: u32| of.get(&(home, number)).copied().ok_or_else(uncounted);
        let none = || vec![(0, 0); self.drives.len()];
        let mut moves = Moves { of: self, parities: [none(), none()], jobs: Vec::new(), changed: false, longest: 0 };
        let (mut outer, mut groups) = (Named::new(), Vec::with_capacity(map.map.len()));
        for members in map.map.iter() {
            let slice = |shard: &Shard| {
                let (slot, number) = renamed(named, shard.home, shard.number)?;
                Ok(Shard { drive: slot, home: slot, number, ..*shard })
            };
            let data: Vec<Shard> = members.data.iter().map(slice).collect::<Result<_>>()?;
            let mut parity = Vec::with_capacity(members.parity.len());
            for shard in members.parity {
                let now = moves.parity(Part::Parity, shard, place()?)?;
                outer.insert((shard.home, shard.number), (now.home, now.number));
                parity.push(now);
            }
            groups.push((data, parity));
        }
        let across = map_of(&map.map, &groups)?;
        let mut within = None;
        if let Some(inside) = &map.within {
            let (were, are) = (map.drives.len() as u32, self.drives.len() as u32);
            let mut groups = Vec::with_capacity(inside.map.len());
            for members in inside.map.iter() {
                let shard = |shard: &Shard| {
                    let ((drive, number), further) = match shard.home.checked_sub(were) {
                        Some(home) => (renamed(&outer, home, shard.number)?, are),
                        None => (renamed(named, shard.home, shard.number)?, 0),
                    };
                    Ok(Shard { drive, home: drive + further, number, ..*shard })
                };
                let data: Vec<Shard> = members.data.iter().map(shard).collect::<Result<_>>()?;
                let parity: Vec<Shard> = members.parity.iter().map(|shard| moves.parity(Part::Inner, shard, place()?)).collect::<Result<_>>()?;
                groups.push((data, parity));
            }
            within = Some(Within { nodes: self.nodes.to_vec(), map: map_of(&inside.map, &groups)? });
        }
        let Moves { parities, jobs, changed, longest, .. } = moves;
        Ok(ParityLayout { stored: StoredMap { drives: self.ids.to_vec(), map: across, within }, parities, jobs, changed, longest })
    }
}

fn map_of(like: &CodeMap, groups: &[(Vec<Shard>, Vec<Shard>)]) -> Result<CodeMap> {
    CodeMap::new(like.code(), groups.iter().map(|(data, parity)| (data.as_slice(), parity.as_slice())))
}

/// Parities that have a place so far.
struct Moves<'a> {
    of: &'a Planned<'a>,
    parities: [Vec<(u32, u64)>; 2],
    jobs: Vec<Job>,
    changed: bool,
    longest: u64,
}

impl Moves<'_> {
    /// The new place of a parity: the table's drive `to`, under the next number there.
    fn parity(&mut self, part: Part, shard: &Shard, to: u32) -> Result<Shard> {
        let from = self.of.on(shard)?;
        let at = *self.of.drives.get(to as usize).ok_or_else(|| Error::internal("a parity is to lie on no drive"))?;
        self.changed |= at != from;
        self.longest = self.longest.max(shard.len);
        let (count, bytes) = &mut self.parities[usize::from(part == Part::Inner)][to as usize];
        let was = part.of(&self.of.record.partition(self.of.title, 0), shard.home);
        let becomes = part.of(&self.of.name(0), to);
        self.jobs.push(Job { from, to: at, was: (was, shard.number), becomes: (becomes, *count), len: shard.len, crc32c: shard.crc32c });
        let now = Shard { drive: to, home: to, number: *count, ..*shard };
        *count = count.checked_add(1).ok_or_else(|| Error::exhausted("a drive would have too many parities"))?;
        *bytes += shard.len;
        Ok(now)
    }
}
