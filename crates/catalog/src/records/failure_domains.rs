//! Failure domains: which drives of a fleet are lost together, by the membership record, and what follows for
//! placement.
//!
//! A *node* is a failure domain: a name that the membership record gives to drives that fail together. A fleet whose
//! record names none has none, and stores nothing on two levels.

use crate::records::membership::DomainSpread;
use std::collections::{BTreeMap, BTreeSet};

use skytether_common::units::counted;
use skytether_common::{Error, Result};
use skytether_erasure::Code;
use uuid::Uuid;

use crate::records::membership::Membership;

/// The nodes of a host's drives (by their places).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureDomains {
    /// Each drive's node; none where the record does not say.
    of: Vec<Option<u32>>,
    names: Vec<String>,
    /// How root records are spread, if any data set is on two levels.
    spread: Option<DomainSpread>,
}

impl FailureDomains {
    /// What a membership record says of these drives, if it says anything.
    pub fn of(membership: &Membership, drives: impl Iterator<Item = Uuid>) -> Option<Self> {
        if membership.drives.iter().all(|member| member.node.is_empty()) {
            return None;
        }
        let mut names: Vec<String> = membership.drives.iter().map(|member| member.node.clone()).filter(|node| !node.is_empty()).collect();
        names.sort();
        names.dedup();
        let node = |id: Uuid| {
            let member = membership.drives.iter().find(|member| member.id == id)?;
            names.binary_search(&member.node).ok().map(|at| at as u32)
        };
        Some(Self { of: drives.map(node).collect(), names: names.clone(), spread: membership.spread })
    }

    /// The node of the drive at this place.
    pub fn node(&self, at: usize) -> Option<u32> {
        self.of.get(at).copied().flatten()
    }

    /// Its name.
    pub fn name(&self, at: usize) -> Option<&str> {
        self.names.get(self.node(at)? as usize).map(String::as_str)
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.names.len()
    }

    /// These drives, node by node.
    fn by_node(&self, drives: &[usize]) -> BTreeMap<u32, Vec<usize>> {
        let mut by_node: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for at in drives {
            if let Some(node) = self.node(*at) {
                by_node.entry(node).or_default().push(*at);
            }
        }
        by_node
    }

    /// The homes of a root record among all drives in `order`, and in that order. They are the first `flat` drives, and
    /// the first drives of the first nodes, as `spread` counts both. Nodes with too few drives count only where there
    /// are too few other nodes.
    pub(crate) fn homes(&self, order: &[usize], flat: usize) -> Vec<usize> {
        let Some(spread) = self.spread else { return order.iter().take(flat).copied().collect() };
        let full = |node: &u32| order.iter().filter(|at| self.node(**at) == Some(*node)).count() >= spread.drives as usize;
        let nodes: BTreeSet<u32> = order.iter().filter_map(|at| self.node(*at)).filter(full).collect();
        let few = nodes.len() < spread.nodes as usize;
        let mut counts: Vec<(Option<u32>, u32)> = Vec::new();
        let mut homes = Vec::new();
        for (rank, at) in order.iter().enumerate() {
            // A drive whose node is unknown counts as a node of its own.
            let node = self.node(*at);
            if !few && node.is_none_or(|node| !nodes.contains(&node)) {
                homes.extend((rank < flat).then_some(*at));
                continue;
            }
            let known = counts.iter().position(|(other, _)| node.is_some() && *other == node);
            let here = match known {
                Some(known) => &mut counts[known],
                None => {
                    counts.push((node, 0));
                    let last = counts.len() - 1;
                    &mut counts[last]
                }
            };
            here.1 += 1;
            let (drives, place) = (here.1, known.unwrap_or(counts.len() - 1));
            if rank < flat || (place < spread.nodes as usize && drives <= spread.drives) {
                homes.push(*at);
            }
        }
        homes
    }

    /// Whether no root record can have lost all of its homes, with these drives lost and `flat` homes at least.
    pub(crate) fn survives(&self, lost: &[usize], flat: usize) -> bool {
        let Some(spread) = self.spread else { return lost.len() < flat };
        let hit = self.by_node(lost).values().filter(|drives| drives.len() >= spread.drives as usize).count();
        lost.len() < flat || hit + lost.iter().filter(|at| self.node(**at).is_none()).count() < spread.nodes as usize
    }

    /// The losses that the fleet survives, in words.
    pub(crate) fn survival(&self) -> Option<String> {
        let spread = self.spread?;
        let (nodes, drives) = (u64::from(spread.nodes) - 1, u64::from(spread.drives) - 1);
        Some(format!("{}, and of {} of each other node at the same time", counted(nodes, "node"), counted(drives, "drive")))
    }

    /// The drives among `drives` that a table on two levels can use, and the node of each (0..). These are the drives
    /// of nodes with k + m of them or more. Nodes take turns, so neighbours are on different ones.
    ///
    /// # Errors
    /// Invalid where there are fewer than K + M such nodes.
    pub(crate) fn usable(&self, outer: Code, inner: Code, drives: &[usize]) -> Result<(Vec<usize>, Vec<u32>)> {
        let by_node = self.by_node(drives);
        let all = by_node.len();
        let enough: Vec<Vec<usize>> = by_node.into_values().filter(|drives| drives.len() >= inner.shards()).collect();
        if enough.len() < outer.shards() {
            return Err(Error::invalid(format!(
                "redundancy ec:{outer}/{inner} needs {} nodes or more with {} drives or more each, but of {} that have any drive that may be written to {} have so many",
                outer.shards(),
                inner.shards(),
                all,
                enough.len()
            )));
        }
        let most = enough.iter().map(Vec::len).max().unwrap_or(0);
        let (mut order, mut nodes) = (Vec::new(), Vec::new());
        for turn in 0..most {
            for (node, drives) in enough.iter().enumerate() {
                if let Some(at) = drives.get(turn) {
                    order.push(*at);
                    nodes.push(node as u32);
                }
            }
        }
        Ok((order, nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `drives` drives, distributed over `nodes` nodes in turn.
    fn domains(drives: usize, nodes: u32, spread: Option<DomainSpread>) -> FailureDomains {
        let of = (0..drives).map(|at| Some(at as u32 % nodes)).collect();
        FailureDomains { of, names: (0..nodes).map(|node| format!("node-{node}")).collect(), spread }
    }

    #[test]
    fn homes_survive_the_losses_of_the_spread_and_keep_the_first() {
        let spread = DomainSpread { nodes: 2, drives: 2 };
        let domains = domains(9, 3, Some(spread));
        for turn in 0..200usize {
            let mut order: Vec<usize> = (0..9).collect();
            order.sort_by_key(|at| (at * 7919 + turn * 104_729) * 2_654_435_761 % 1009);
            let homes = domains.homes(&order, 2);
            assert!(homes.len() == 4 && homes[..2].iter().all(|home| order[..2].contains(home)) && homes[0] == order[0], "{order:?}: {homes:?}");
            for lost in 0..1usize << 9 {
                let lost: Vec<usize> = (0..9).filter(|at| lost >> at & 1 == 1).collect();
                if domains.survives(&lost, 2) {
                    assert!(homes.iter().any(|home| !lost.contains(home)), "{order:?} without {lost:?}: {homes:?}");
                }
            }
        }
        assert!(domains.survives(&[0, 3, 6, 1, 2], 2) && !domains.survives(&[0, 3, 1, 4], 2));
        assert_eq!(domains.homes(&[4, 2, 8, 0, 1], 3), [4, 2, 8, 1]);
    }

    #[test]
    fn a_node_with_too_few_drives_is_no_home_that_counts() {
        let domains = FailureDomains {
            of: [0, 0, 1, 1, 2].map(Some).into(),
            names: ["a", "b", "c"].map(String::from).into(),
            spread: Some(DomainSpread { nodes: 2, drives: 2 }),
        };
        assert_eq!(domains.homes(&[4, 0, 1, 2, 3], 1), [4, 0, 1, 2, 3]);
        assert_eq!(domains.homes(&[0, 4, 2, 1, 3], 1), [0, 2, 1, 3]);
        // Better than nothing.
        assert_eq!(domains.homes(&[4, 0, 1], 1), [4, 0, 1]);
    }

    #[test]
    fn nodes_take_turns_and_those_with_too_few_drives_are_left_out() {
        let code = Code::new(2, 1).unwrap();
        let domains = domains(12, 4, None);
        let (order, nodes) = domains.usable(code, code, &(0..12).collect::<Vec<_>>()).unwrap();
        assert_eq!((order, nodes), ((0..12).collect(), (0..12).map(|at| at % 4).collect()));
        let (order, nodes) = domains.usable(code, code, &(0..12).filter(|at| *at != 5).collect::<Vec<_>>()).unwrap();
        assert_eq!((order, nodes), (vec![0, 2, 3, 4, 6, 7, 8, 10, 11], vec![0, 1, 2, 0, 1, 2, 0, 1, 2]));
        let error = domains.usable(code, code, &[0, 4, 8, 1, 5, 9, 2, 6]).unwrap_err();
        assert!(error.to_string().contains("ec:2+1/2+1 needs 3 nodes or more with 3 drives or more each, but of 3 that have any"), "{error}");
    }
}
