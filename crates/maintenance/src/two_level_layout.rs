//! The layout of a table with two levels of redundancy. Every part stays on its node, so no group across nodes has two
//! shards on one node. The drives of each node are balanced for themselves. Where all drives of a node leave, another
//! node replaces it whole.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use skytether_common::{Error, Result};
use skytether_erasure::Code;
use skytether_erasure::balance::Units;
use skytether_erasure::map::Role;
use skytether_erasure::repair::Drive;

use crate::rebalance_plan::{Planner, TOLERANCE};
use skytether_catalog::records::code_map::Within;
use skytether_catalog::records::failure_domains::FailureDomains;
use skytether_catalog::records::root::RootRecord;

/// What moves as one: a stripe, or a parity.
pub(crate) struct Piece {
    pub(crate) role: Role,
    /// On which drive it is.
    pub(crate) at: u32,
    pub(crate) len: u64,
    /// The code groups that have a shard in this piece.
    pub(crate) groups: Vec<u32>,
}

/// The nodes of a table and those that replace them, by the membership record.
pub(crate) struct Housing<'a> {
    domains: &'a FailureDomains,
    /// The number of each node in the table. Where two nodes have one number, the first leaves and the second replaces
    /// it.
    numbers: BTreeMap<u32, u32>,
    inner: Code,
}

impl Planner<'_> {
    /// The nodes of a table on the drives `base`. A free node replaces each node whose drives all leave, the one with
    /// the most drives first.
    ///
    /// # Errors
    /// `Unsupported` where the membership record names other nodes, or none.
    pub(crate) fn housing(&self, record: &RootRecord, base: &[usize], within: &Within) -> Result<Housing<'_>> {
        let other = || Error::unsupported(format!("{} was written over other nodes than the fleet's record names: ingest it again", record.name));
        let domains = self.domains.ok_or_else(other)?;
        let (mut numbers, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        for (at, number) in base.iter().zip(&within.nodes) {
            let node = domains.node(*at).ok_or_else(other)?;
            if *numbers.entry(node).or_insert(*number) != *number || *nodes.entry(*number).or_insert(node) != node {
                return Err(other());
            }
        }
        let inner = within.map.code();
        let mut there: BTreeMap<u32, usize> = BTreeMap::new();
        self.targets.iter().filter_map(|at| domains.node(*at)).for_each(|node| *there.entry(node).or_default() += 1);
        // One that does not answer for a moment has not left.
        let stay = |number: &u32| base.iter().zip(&within.nodes).filter(|(at, node)| *node == number && !self.leaving.contains(at)).count();
        let had = |number: &u32| within.nodes.iter().filter(|node| *node == number).count();
        let mut left: Vec<u32> = numbers.iter().filter(|(node, number)| stay(number) == 0 && !there.contains_key(*node)).map(|(_, number)| *number).collect();
        left.sort_by_key(|number| Reverse(had(number)));
        let mut spare: Vec<(usize, u32)> = there.into_iter().filter(|(node, _)| !numbers.contains_key(node)).map(|(node, drives)| (drives, node)).collect();
        spare.retain(|(drives, _)| *drives >= inner.shards());
        spare.sort_by_key(|(drives, node)| (Reverse(*drives), *node));
        numbers.extend(spare.into_iter().map(|(_, node)| node).zip(left));
        Ok(Housing { domains, numbers, inner })
    }
}

impl Housing<'_> {
    /// What the table calls the node of a drive, if that is or becomes one of its.
    pub(crate) fn number(&self, at: usize) -> Option<u32> {
        self.numbers.get(&self.domains.node(at)?).copied()
    }

    /// The nodes of the drives that the table is to have.
    ///
    /// # Errors
    /// Exhausted where one of its nodes would have too few of them.
    pub(crate) fn enough(&self, record: &RootRecord, title: &str, drives: &[usize]) -> Result<Vec<u32>> {
        let nodes: Vec<u32> = drives.iter().filter_map(|at| self.number(*at)).collect();
        for number in self.numbers.values() {
            let there = nodes.iter().filter(|node| *node == number).count();
            if there < self.inner.shards() || nodes.len() != drives.len() {
                return Err(Error::exhausted(format!(
                    "{} {title} can't be moved: one of its nodes would have {there} drives for groups of {} shards; keep one, or add one there",
                    record.name,
                    self.inner.shards()
                )));
            }
        }
        Ok(nodes)
    }
}

/// The drive of each piece. The first `stay` drives get equal loads within each node, the others nothing. Also gives
/// the least number of bytes that have to move. `on` has the node of each drive, `others` the bytes of all else on it.
///
/// # Errors
/// As [`Units::balance`].
pub(crate) fn balanced(pieces: &[Piece], stay: usize, on: &[u32], others: &[u64]) -> Result<(Vec<u32>, u64)> {
    let (mut now, mut least) = (vec![0; pieces.len()], 0);
    let mut by_node: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    on.iter().enumerate().for_each(|(drive, node)| by_node.entry(*node).or_default().push(drive));
    for drives in by_node.into_values() {
        let (mut units, mut own) = (Units::default(), Vec::new());
        for (n, piece) in pieces.iter().enumerate() {
            if let Ok(place) = drives.binary_search(&(piece.at as usize)) {
                units.push(piece.role, place as u32, piece.len, piece.groups.iter().copied());
                own.push(n);
            }
        }
        let states: Vec<Drive> = drives.iter().map(|drive| if *drive < stay { Drive::Here } else { Drive::Retiring }).collect();
        let others: Vec<u64> = drives.iter().map(|drive| others.get(*drive).copied().unwrap_or(0)).collect();
        let placed = units.balance(&states, &others, TOLERANCE)?;
        least += units.least(&states, TOLERANCE)?;
        for (n, place) in own.into_iter().zip(placed.now) {
            now[n] = drives[place as usize] as u32;
        }
    }
    Ok((now, least))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn layout_keeps_nodes_separates_groups_and_balances_each_node() {
        // Two nodes of three drives. The second drive of the first node leaves, and one drive joins each node.
        let on = [0, 1, 0, 1, 1, 0, 1, 0];
        let leaves = 7;
        let mut pieces = Vec::new();
        for group in 0..200u32 {
            let drives: [u32; 3] = if group.is_multiple_of(2) { [0, 2, 7] } else { [1, 3, 4] };
            for (n, at) in drives.into_iter().enumerate() {
                let role = if (n as u32 + group / 2).is_multiple_of(3) { Role::Parity } else { Role::Data };
                pieces.push(Piece { role, at, len: 1000, groups: vec![group] });
            }
        }
        let (now, least) = balanced(&pieces, leaves, &on, &[0; 8]).unwrap();
        let (mut loads, mut there) = ([0u64; 8], BTreeSet::new());
        for (piece, to) in pieces.iter().zip(&now) {
            assert_eq!(on[piece.at as usize], on[*to as usize]);
            assert!(there.insert((piece.groups[0], *to)));
            loads[*to as usize] += piece.len;
        }
        assert_eq!(loads[leaves], 0);
        for drives in [&[0, 2, 5][..], &[1, 3, 4, 6]] {
            let mean = 300_000.0 / drives.len() as f64;
            assert!(drives.iter().all(|drive| (loads[*drive] as f64 - mean).abs() <= 0.06 * mean), "{loads:?}");
        }
        let moved: u64 = pieces.iter().zip(&now).filter(|(piece, to)| piece.at != **to).map(|(piece, _)| piece.len).sum();
        assert!(moved >= least && moved <= least + 8 * 1000, "{moved}, at least {least}");
        // Too few are left for a group.
        assert!(balanced(&pieces, 5, &on, &[0; 8]).is_err());
    }
}
