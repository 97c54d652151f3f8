//! Code groups on two levels, as in MarFS: across nodes, and within each node across its drives.
//!
//! An outer group has each of its shards, data or parity, on another node. Within a node, the shards (data or outer
//! parities) form inner groups, each shard on another of the node's drives. So any M nodes may be lost, and m drives of
//! each other node at the same time. What is lost within a node is reconstructed from its own drives.

use skytether_common::{Error, Result};

use crate::groups::{Group, Grouper, PlacedShard};
use crate::random::mixed;
use crate::scheme::Code;

/// A shard of an inner group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Inside<I> {
    /// A data shard, by its owner's name.
    Data(I),
    /// A parity of an outer group.
    Parity {
        /// Which outer group, counted as they were formed.
        group: u64,
        /// Which of its parities.
        parity: u32,
    },
}

/// A group that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Formed<I> {
    /// Across nodes: its drives are nodes.
    Outer {
        /// Counted as they are formed.
        number: u64,
        /// The group; `drive` is a node in it.
        group: Group<I>,
        /// The drives of the parities, each on its parity's node, in order.
        parity_drives: Vec<u32>,
    },
    /// Across the drives of a node.
    Inner {
        /// The node.
        node: u32,
        /// The group; its drives are those of the fleet.
        group: Group<Inside<I>>,
    },
}

#[derive(Debug)]
struct Node<I> {
    /// The fleet's numbers of its drives.
    drives: Vec<u32>,
    /// Over the places in `drives`.
    inner: Grouper<Inside<I>>,
    /// Bytes of outer parities, by place in `drives`.
    outer: Vec<u64>,
}

/// Forms groups on both levels.
#[derive(Debug)]
pub struct Levels<I> {
    outer: Grouper<I>,
    formed: u64,
    nodes: Vec<Node<I>>,
    /// Node and place in it of each drive of the fleet.
    places: Vec<(u32, u32)>,
    seed: u64,
}

impl<I: Clone> Levels<I> {
    /// `nodes` gives the node (0..) of each drive of the fleet. `windows` are the most shards that wait across nodes,
    /// and within each node. For `seed` see [`Grouper::new`].
    ///
    /// # Errors
    /// Invalid where there are fewer than K + M nodes, or a node has fewer than k + m drives.
    pub fn new(codes: (Code, Code), nodes: &[u32], windows: (usize, usize), seed: u64) -> Result<Self> {
        let count = nodes.iter().max().map_or(0, |last| *last as usize + 1);
        if count > nodes.len() {
            return Err(Error::invalid(format!("{} drives are not on {count} nodes", nodes.len())));
        }
        let outer = Grouper::new(codes.0, count, windows.0, seed).map_err(|e| e.context(format!("{count} nodes for ec:{}/{}", codes.0, codes.1)))?;
        let mut drives = vec![Vec::new(); count];
        let mut places = Vec::with_capacity(nodes.len());
        for (drive, node) in nodes.iter().enumerate() {
            let of = &mut drives[*node as usize];
            places.push((*node, of.len() as u32));
            of.push(drive as u32);
        }
        let node = |(node, drives): (usize, Vec<u32>)| {
            let inner = Grouper::new(codes.1, drives.len(), windows.1, mixed(seed ^ node as u64))
                .map_err(|e| e.context(format!("node {node} for ec:{}/{}", codes.0, codes.1)))?;
            Ok(Node { outer: vec![0; drives.len()], drives, inner })
        };
        Ok(Self { outer, formed: 0, nodes: drives.into_iter().enumerate().map(node).collect::<Result<_>>()?, places, seed })
    }

    /// A slice that was placed on one of the fleet's drives; the groups that are complete now.
    ///
    /// # Errors
    /// Invalid where there is no such drive.
    pub fn push(&mut self, placed: PlacedShard<I>) -> Result<Vec<Formed<I>>> {
        let Some((node, place)) = self.places.get(placed.drive as usize).copied() else {
            return Err(Error::invalid(format!("drive {} of {} has a slice", placed.drive, self.places.len())));
        };
        let mut formed = Vec::new();
        self.cover(node, PlacedShard { drive: place, id: Inside::Data(placed.id.clone()), len: placed.len }, &mut formed)?;
        if let Some(group) = self.outer.push(PlacedShard { drive: node, ..placed })? {
            self.outer_formed(group, &mut formed)?;
        }
        Ok(formed)
    }

    /// Groups of all that waits on either level.
    ///
    /// # Errors
    /// None but defects of our own.
    pub fn finish(&mut self) -> Result<Vec<Formed<I>>> {
        let mut formed = Vec::new();
        for group in self.outer.finish() {
            self.outer_formed(group, &mut formed)?;
        }
        for (number, node) in self.nodes.iter_mut().enumerate() {
            formed.extend(node.inner.finish().into_iter().map(|group| Formed::Inner { node: number as u32, group: of_fleet(group, &node.drives) }));
        }
        Ok(formed)
    }

    /// Shards that wait, whose bytes the caller must hold: across nodes, and within the node where most do.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        (self.outer.waiting(), self.nodes.iter().map(|node| node.inner.waiting()).max().unwrap_or(0))
    }

    /// A shard for the inner groups of a node; `drive` is a place in it.
    fn cover(&mut self, number: u32, placed: PlacedShard<Inside<I>>, formed: &mut Vec<Formed<I>>) -> Result<()> {
        let node = &mut self.nodes[number as usize];
        if let Some(group) = node.inner.push(placed)? {
            formed.push(Formed::Inner { node: number, group: of_fleet(group, &node.drives) });
        }
        Ok(())
    }

    /// Puts an outer group's parities on the drives of their nodes with the fewest of them.
    fn outer_formed(&mut self, group: Group<I>, formed: &mut Vec<Formed<I>>) -> Result<()> {
        let number = self.formed;
        self.formed += 1;
        let mut parity_drives = Vec::with_capacity(group.parity.len());
        let mut covers = Vec::with_capacity(group.parity.len());
        for (parity, number_of_node) in group.parity.iter().enumerate() {
            let seed = self.seed;
            let node = &mut self.nodes[*number_of_node as usize];
            let least = (0..node.drives.len()).min_by_key(|place| (node.outer[*place], mixed(seed ^ *place as u64)));
            let place = least.ok_or_else(|| Error::internal("a node has no drive"))?;
            node.outer[place] += group.parity_len;
            parity_drives.push(node.drives[place]);
            covers.push((
                *number_of_node,
                PlacedShard { drive: place as u32, id: Inside::Parity { group: number, parity: parity as u32 }, len: group.parity_len },
            ));
        }
        // An inner group is reported after the outer group whose parity it covers.
        formed.push(Formed::Outer { number, group, parity_drives });
        covers.into_iter().try_for_each(|(node, placed)| self.cover(node, placed, formed))
    }
}

/// The group with the fleet's numbers of drives for places in a node.
fn of_fleet<I>(mut group: Group<I>, drives: &[u32]) -> Group<I> {
    let of = |place: &mut u32| *place = drives.get(*place as usize).copied().unwrap_or(*place);
    group.data.iter_mut().for_each(|shard| of(&mut shard.drive));
    group.parity.iter_mut().for_each(of);
    group
}
