//! Groups: each slice in one, on distinct drives, little waste, balanced parities, a bounded window; and on two levels.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use skytether_common::Kind;
use skytether_erasure::Code;
use skytether_erasure::groups::{Group, Grouper, PlacedShard, default_window};
use skytether_erasure::levels::{Formed, Inside, Levels};

const KIB: u64 = 1 << 10;

/// All groups of these slices (drive, length), numbered in order; never does more wait than the window allows.
fn grouped(code: Code, drives: usize, window: usize, seed: u64, slices: &[(u32, u64)]) -> (Vec<Group<u64>>, Vec<u64>) {
    let mut grouper = Grouper::new(code, drives, window, seed).unwrap();
    let mut groups = Vec::new();
    for (number, (drive, len)) in slices.iter().enumerate() {
        groups.extend(grouper.push(PlacedShard { drive: *drive, id: number as u64, len: *len }).unwrap());
        assert!(grouper.waiting() < window.max(code.data()), "{} wait", grouper.waiting());
    }
    groups.extend(grouper.finish());
    assert_eq!(grouper.waiting(), 0);
    (groups, grouper.parity_bytes().to_vec())
}

/// What must hold of a group whatever came.
fn check<I>(code: Code, drives: usize, group: &Group<I>) {
    assert!((1..=code.data()).contains(&group.data.len()) && group.parity.len() == code.parity());
    let on: BTreeSet<u32> = group.data.iter().map(|shard| shard.drive).chain(group.parity.iter().copied()).collect();
    assert_eq!(on.len(), group.data.len() + group.parity.len(), "distinct drives, so that any M lost drives are at most M lost shards");
    assert!(on.iter().all(|drive| (*drive as usize) < drives));
    assert!(group.data.is_sorted_by_key(|shard| std::cmp::Reverse(shard.len)));
    let longest = group.data[0].len;
    assert_eq!(group.parity_len, if code.copies() { longest } else { longest.next_multiple_of(64) });
}

fn once(groups: &[Group<u64>], slices: &[(u32, u64)]) {
    let mut seen: Vec<(u64, u32, u64)> = groups.iter().flat_map(|group| &group.data).map(|shard| (shard.id, shard.drive, shard.len)).collect();
    seen.sort_unstable();
    let all: Vec<(u64, u32, u64)> = slices.iter().enumerate().map(|(number, (drive, len))| (number as u64, *drive, *len)).collect();
    assert_eq!(seen, all, "each slice is in exactly one group, as it was placed");
}

/// Waste of full groups, as a share of their data's bytes.
fn waste(code: Code, groups: &[Group<u64>]) -> f64 {
    let full = groups.iter().filter(|group| group.data.len() == code.data());
    let (data, parity) = full.fold((0, 0), |(data, parity), group| (data + group.data_bytes(), parity + group.parity_len * group.parity.len() as u64));
    parity as f64 / data as f64 - code.parity() as f64 / code.data() as f64
}

/// The most that a drive's share is off the mean.
fn imbalance(loads: &[u64]) -> f64 {
    let mean = loads.iter().sum::<u64>() as f64 / loads.len() as f64;
    loads.iter().map(|load| (*load as f64 / mean - 1.0).abs()).fold(0.0, f64::max)
}

#[derive(Debug, Clone, Copy)]
enum Drives {
    Turns,
    Any,
    /// One has half of all.
    Skewed,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn every_slice_is_in_one_group_on_distinct_drives(
        (k, m) in (1usize..=8, 1usize..=4),
        more in 0usize..8,
        window in 0usize..60,
        how in prop_oneof![Just(Drives::Turns), Just(Drives::Any), Just(Drives::Skewed)],
        lens in prop::collection::vec(prop_oneof![Just(1024 * KIB), 0u64..2000, 600 * KIB..1024 * KIB], 0..300),
        seed in any::<u64>(),
    ) {
        let (code, drives) = (Code::new(k, m).unwrap(), k + m + more);
        let mut random = Rng::with_seed(seed);
        let slices: Vec<(u32, u64)> = lens.iter().enumerate().map(|(at, len)| {
            let drive = match how {
                Drives::Turns => at as u64 % drives as u64,
                Drives::Any => random.u64(..drives as u64),
                Drives::Skewed => if random.u64(..2) == 0 { 0 } else { random.u64(..drives as u64) },
            };
            (drive as u32, *len)
        }).collect();
        let (groups, parity) = grouped(code, drives, window, seed, &slices);
        groups.iter().for_each(|group| check(code, drives, group));
        once(&groups, &slices);
        let mut by_drive = vec![0; drives];
        groups.iter().for_each(|group| group.parity.iter().for_each(|drive| by_drive[*drive as usize] += group.parity_len));
        prop_assert_eq!(by_drive, parity);
        // Not many more than there must be.
        let mut counts = vec![0; drives];
        slices.iter().for_each(|(drive, _)| counts[*drive as usize] += 1);
        let fewest = slices.len().div_ceil(k).max(counts.into_iter().max().unwrap_or(0));
        if matches!(how, Drives::Turns) && window >= 4 * k {
            prop_assert!(groups.len() <= fewest + 1, "{} groups for {fewest}", groups.len());
        }
    }
}

/// Codes and numbers of drives: the fewest, one more, twice as many.
fn fleets() -> impl Iterator<Item = (Code, usize)> {
    [(1, 1), (1, 2), (2, 1), (4, 1), (4, 2), (8, 2), (8, 3), (10, 4), (16, 4)]
        .into_iter()
        .flat_map(|(k, m)| [k + m, k + m + 1, 2 * (k + m)].map(|drives| (Code::new(k, m).unwrap(), drives)))
}

#[test]
fn waste_is_below_1_and_parity_imbalance_below_5_percent() {
    for (code, drives) in fleets() {
        for odd in [0, 2] {
            let mut random = Rng::with_seed(code.data() as u64 * 1000 + drives as u64);
            // Fifty windows.
            let slices: Vec<(u32, u64)> = (0..(50 * default_window(code)).max(3000))
                .map(|at| {
                    let len = if random.u64(..100) < odd { random.u64(KIB..600 * KIB) } else { random.u64(600 * KIB..1024 * KIB) };
                    ((at % drives) as u32, len)
                })
                .collect();
            for window in [8 * code.data(), default_window(code)] {
                let (groups, parity) = grouped(code, drives, window, 1, &slices);
                once(&groups, &slices);
                let (waste, imbalance) = (waste(code, &groups), self::imbalance(&parity));
                if std::env::var_os("FIGURES").is_some() {
                    let strict = waste * code.data() as f64 / code.parity() as f64;
                    println!(
                        "{code} on {drives}, window {window}, {odd}% odd: waste {:.2}% of data, {:.2}% of parity; parity {:.2}% off the mean",
                        100.0 * waste,
                        100.0 * strict,
                        100.0 * imbalance
                    );
                }
                let mut stored = parity.clone();
                slices.iter().for_each(|(drive, len)| stored[*drive as usize] += len);
                if drives > code.shards() {
                    assert!(imbalance <= 0.05, "{code} on {drives} drives: {imbalance}");
                } else {
                    // Parities are where data is not.
                    assert!(self::imbalance(&stored) <= 0.03, "{code} on {drives} drives: {}", self::imbalance(&stored));
                }
                assert!(waste <= if window == default_window(code) { 0.01 } else { 0.015 }, "{code} on {drives} drives, window {window}, {odd}% odd: {waste}");
            }
        }
    }
}

#[test]
fn slices_of_one_length_wait_for_a_group_only() {
    for (code, drives) in fleets() {
        let slices: Vec<(u32, u64)> = (0..3000).map(|at| ((at % drives) as u32, 1024 * KIB)).collect();
        let mut grouper = Grouper::new(code, drives, 1000, 3).unwrap();
        let mut most = 0;
        let mut groups = Vec::new();
        for (number, (drive, len)) in slices.iter().enumerate() {
            groups.extend(grouper.push(PlacedShard { drive: *drive, id: number as u64, len: *len }).unwrap());
            most = most.max(grouper.waiting());
        }
        groups.extend(grouper.finish());
        assert!(most < code.data(), "{code} on {drives}: {most} waited");
        once(&groups, &slices);
        assert!(waste(code, &groups).abs() < 1e-9);
        assert!(imbalance(grouper.parity_bytes()) <= 0.05, "{code} on {drives}: {:?}", grouper.parity_bytes());
    }
}

#[test]
fn small_data_sets_begin_on_different_drives() {
    let code = Code::new(4, 2).unwrap();
    let first: BTreeSet<Vec<u32>> = (0..40).map(|seed| grouped(code, 24, 64, seed, &[(0, 1000)]).0[0].parity.clone()).collect();
    assert!(first.len() > 30, "{first:?}");
}

#[test]
fn too_few_drives_and_drives_that_are_not_there_are_refused() {
    let code = Code::new(4, 2).unwrap();
    let error = Grouper::<u64>::new(code, 5, 10, 0).unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (Kind::Invalid, "ec:4+2 needs 6 drives or more, but there are 5".to_owned()));
    let mut grouper = Grouper::new(code, 6, 10, 0).unwrap();
    assert_eq!(grouper.push(PlacedShard { drive: 6, id: 0u64, len: 1 }).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(grouper.push(PlacedShard { drive: 0, id: 0u64, len: u64::MAX }).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(grouper.finish(), [], "what is refused does not wait");
    let error = Levels::<u64>::new((code, code), &[0, 1, 2, 3, 4, 5], (9, 9), 0).unwrap_err();
    assert_eq!(error.to_string(), "node 0 for ec:4+2/4+2: ec:4+2 needs 6 drives or more, but there are 1");
    assert!(Levels::<u64>::new((code, code), &[0, 1, 2, 3, 4, 4_000_000_000], (9, 9), 0).is_err());
}

/// A shard of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shard {
    Of(Inside<u64>),
    InnerParity(usize, usize),
}

#[test]
fn any_nodes_and_any_drives_of_the_others_may_be_lost_at_once() {
    for (outer, inner, nodes, drives_per_node) in [((2, 1), (2, 1), 3, 3), ((4, 1), (3, 2), 6, 6), ((3, 2), (4, 1), 5, 7), ((1, 1), (1, 1), 2, 2)] {
        let codes = (Code::new(outer.0, outer.1).unwrap(), Code::new(inner.0, inner.1).unwrap());
        // Drives go to the nodes in turn, so that places in a node are not the fleet's numbers.
        let node_of: Vec<u32> = (0..nodes * drives_per_node).map(|drive| (drive % nodes) as u32).collect();
        let mut random = Rng::with_seed(outer.0 as u64);
        let mut levels = Levels::new(codes, &node_of, (default_window(codes.0), default_window(codes.1)), 9).unwrap();
        let mut formed = Vec::new();
        let mut drive_of: BTreeMap<Shard, u32> = BTreeMap::new();
        for number in 0..600u64 {
            let drive = number as u32 % node_of.len() as u32;
            drive_of.insert(Shard::Of(Inside::Data(number)), drive);
            formed.extend(levels.push(PlacedShard { drive, id: number, len: random.u64(600 * KIB..1024 * KIB) }).unwrap());
            let (across, within) = levels.waiting();
            assert!(across < default_window(codes.0) && within < default_window(codes.1));
        }
        formed.extend(levels.finish().unwrap());

        let (mut outers, mut inners) = (Vec::new(), Vec::new());
        for (at, group) in formed.iter().enumerate() {
            match group {
                Formed::Outer { number, group, parity_drives } => {
                    check(codes.0, nodes, group);
                    assert!(group.data.iter().all(|shard| node_of[drive_of[&Shard::Of(Inside::Data(shard.id))] as usize] == shard.drive));
                    assert!(group.parity.iter().zip(parity_drives).all(|(node, drive)| node_of[*drive as usize] == *node));
                    let parities: Vec<Shard> = (0..outer.1).map(|parity| Shard::Of(Inside::Parity { group: *number, parity: parity as u32 })).collect();
                    parities.iter().zip(parity_drives).for_each(|(shard, drive)| assert_eq!(drive_of.insert(*shard, *drive), None));
                    outers.push((group.data.iter().map(|shard| Shard::Of(Inside::Data(shard.id))).chain(parities).collect::<Vec<_>>(), group.data.len()));
                }
                Formed::Inner { node, group } => {
                    check(codes.1, node_of.len(), group);
                    let mut shards = Vec::new();
                    for shard in &group.data {
                        assert_eq!(
                            (drive_of.get(&Shard::Of(shard.id)), node_of[shard.drive as usize]),
                            (Some(&shard.drive), *node),
                            "known before it is covered"
                        );
                        shards.push(Shard::Of(shard.id));
                    }
                    for (parity, drive) in group.parity.iter().enumerate() {
                        assert_eq!(node_of[*drive as usize], *node);
                        drive_of.insert(Shard::InnerParity(at, parity), *drive);
                        shards.push(Shard::InnerParity(at, parity));
                    }
                    inners.push((shards, group.data.len()));
                }
            }
        }
        // Each slice and each outer parity is in one inner group, each slice in one outer one.
        let covered: Vec<Shard> = inners.iter().flat_map(|(shards, count)| &shards[..*count]).copied().collect();
        assert_eq!(covered.len(), covered.iter().collect::<BTreeSet<_>>().len());
        assert_eq!(covered.len(), drive_of.keys().filter(|shard| matches!(shard, Shard::Of(_))).count());
        assert_eq!(outers.iter().map(|(_, count)| count).sum::<usize>(), 600);

        for _ in 0..60 {
            // M nodes, and m drives of each other node.
            let mut order: Vec<u32> = (0..nodes as u32).collect();
            random.shuffle(&mut order);
            let lost_nodes: BTreeSet<u32> = order[..outer.1].iter().copied().collect();
            let mut lost: BTreeSet<u32> = (0..node_of.len() as u32).filter(|drive| lost_nodes.contains(&node_of[*drive as usize])).collect();
            for node in &order[outer.1..] {
                let mut own: Vec<u32> = (0..node_of.len() as u32).filter(|drive| node_of[*drive as usize] == *node).collect();
                random.shuffle(&mut own);
                lost.extend(&own[..inner.1]);
            }
            let mut gone: BTreeSet<Shard> = drive_of.iter().filter(|(_, drive)| lost.contains(drive)).map(|(shard, _)| *shard).collect();
            for groups in [&inners, &outers] {
                for (shards, count) in groups {
                    if shards.iter().filter(|shard| !gone.contains(shard)).count() >= *count {
                        shards.iter().for_each(|shard| _ = gone.remove(shard));
                    }
                }
            }
            let slices_gone = gone.iter().filter(|shard| matches!(shard, Shard::Of(Inside::Data(_)))).count();
            assert_eq!(slices_gone, 0, "ec:{}/{} without {lost:?}", codes.0, codes.1);
        }
    }
}
