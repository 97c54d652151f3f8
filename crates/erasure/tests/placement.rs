//! Repair reads evenly, and no more than the code needs. Growth moves as little as possible. Both keep a group's shards
//! on different drives.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::common::slice_len;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use skytether_common::Kind;
use skytether_erasure::Code;
use skytether_erasure::balance::{Balance, Units, balance};
use skytether_erasure::map::{CodeMap, Place, Role, Shard};
use skytether_erasure::repair::{Drive, Reads, Repair, loads, reads, repair};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Lens {
    Equal,
    Uniform,
}

/// The map that an ingest of `slices` slices makes.
fn ingested(code: Code, drives: usize, slices: usize, lens: Lens, seed: u64) -> CodeMap {
    let mut random = Rng::with_seed(seed);
    let groups = crate::common::ingested(code, drives, slices, seed, || if lens == Lens::Equal { 1 << 20 } else { slice_len(&mut random) });
    CodeMap::new(code, groups.iter().map(|(data, parity)| (&data[..], &parity[..]))).unwrap()
}

const MAX: u64 = 1 << 20;

/// What must hold of every repair; the map after it.
fn check_repair(map: &CodeMap, drives: &[Drive], plan: &Repair) -> CodeMap {
    let mut planned = plan.groups.iter().peekable();
    let (mut read, mut written, mut moves) = (vec![0; drives.len()], vec![0; drives.len()], Vec::new());
    for (group, members) in map.iter().enumerate() {
        let lost: BTreeSet<u32> = (0..members.all().len() as u32).filter(|at| drives[members.all()[*at as usize].drive as usize] == Drive::Lost).collect();
        if lost.len() > map.code().parity() {
            assert!(plan.beyond.contains(&(group as u32)));
            continue;
        }
        if lost.is_empty() {
            continue;
        }
        let entry = planned.next().unwrap();
        assert_eq!(entry.group as usize, group);
        let reads: BTreeSet<u32> = entry.reads.iter().copied().collect();
        assert!(reads.len() == members.data.len() && entry.reads.len() == reads.len() && reads.is_disjoint(&lost), "the least that the code allows");
        reads.iter().for_each(|at| read[members.all()[*at as usize].drive as usize] += members.all()[*at as usize].len);
        assert!(entry.rebuilt.iter().map(|rebuilt| rebuilt.place.shard).eq(lost), "each lost shard, once");
        for rebuilt in &entry.rebuilt {
            assert_eq!((rebuilt.place.group as usize, drives[rebuilt.to as usize]), (group, Drive::Here));
            written[rebuilt.to as usize] += map.shard(rebuilt.place).unwrap().len;
            moves.push((rebuilt.place, rebuilt.to));
        }
    }
    assert!(planned.next().is_none());
    assert_eq!((&plan.read, &plan.written), (&read, &written));
    // This refuses two shards of a group on one drive.
    map.moved(moves).unwrap()
}

/// What the drive that reads most must read at least, in shards, whatever is chosen: any set of drives reads what the
/// others can't (max-flow, min-cut).
fn least_reading(map: &CodeMap, drives: &[Drive]) -> u64 {
    let lost = |drive: u32| drives[drive as usize] == Drive::Lost;
    let groups: Vec<(u32, u32)> = map
        .iter()
        .filter(|members| members.all().iter().any(|shard| lost(shard.drive)))
        .map(|members| (members.data.len() as u32, members.all().iter().filter(|shard| !lost(shard.drive)).fold(0, |set, shard| set | 1 << shard.drive)))
        .collect();
    let sets = (1u32..1 << drives.len()).map(|set| {
        let forced: u32 = groups.iter().map(|(need, survivors)| need.saturating_sub((survivors & !set).count_ones())).sum();
        u64::from(forced).div_ceil(u64::from(set.count_ones()))
    });
    sets.max().unwrap_or(0)
}

fn off_mean(loads: &[u64], drives: &[Drive]) -> f64 {
    let here: Vec<f64> = loads.iter().zip(drives).filter(|(_, drive)| **drive == Drive::Here).map(|(load, _)| *load as f64).collect();
    let mean = here.iter().sum::<f64>() / here.len() as f64;
    here.iter().map(|load| (load / mean - 1.0).abs()).fold(0.0, f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, rng_seed: RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn repair_reads_evenly_and_as_little_as_the_code_allows(
        (k, m) in prop_oneof![Just((1, 1)), Just((1, 2)), Just((2, 1)), Just((4, 1)), Just((4, 2)), Just((3, 3))],
        more in 0usize..4, slices in 1usize..400, spare in 0usize..3, losses in 1usize..4, equal in any::<bool>(), seed in any::<u64>(),
    ) {
        let (code, mut random) = (Code::new(k, m).unwrap(), Rng::with_seed(seed));
        let had = k + m + more;
        let map = ingested(code, had, slices, if equal { Lens::Equal } else { Lens::Uniform }, seed);
        let mut drives = vec![Drive::Here; had + spare];
        for _ in 0..losses.min(m) {
            drives[random.usize(..had)] = Drive::Lost;
        }
        let here = drives.iter().filter(|drive| **drive == Drive::Here).count();
        match repair(&map, &drives) {
            Err(error) => prop_assert!(error.kind() == Kind::Exhausted && here < k + m),
            Ok(plan) => {
                let after = check_repair(&map, &drives, &plan);
                prop_assert!(plan.beyond.is_empty());
                prop_assert!(after.iter().all(|members| members.all().iter().all(|shard| drives[shard.drive as usize] == Drive::Here)));
                let most = *plan.read.iter().max().unwrap();
                let least = least_reading(&map, &drives);
                if equal {
                    prop_assert_eq!(most, least * MAX, "the least maximum");
                } else {
                    // Shards that are as long as the mean would be as many.
                    let mean = plan.read.iter().sum::<u64>() as f64 / plan.groups.iter().map(|group| group.reads.len()).sum::<usize>().max(1) as f64;
                    prop_assert!(most as f64 <= least as f64 * mean * 1.05 + 1.5 * MAX as f64, "{} of {} x {}", most, least, mean);
                }
            }
        }
    }

    #[test]
    fn growth_and_retirement_keep_groups_apart_by_minimal_moves(
        (k, m) in prop_oneof![Just((1, 1)), Just((1, 2)), Just((2, 1)), Just((4, 1)), Just((4, 2)), Just((8, 3))],
        more in 0usize..6, slices in 1usize..900, added in 0usize..4, retired in 0usize..3, seed in any::<u64>(),
    ) {
        let (code, mut random) = (Code::new(k, m).unwrap(), Rng::with_seed(seed));
        let had = k + m + more;
        let map = ingested(code, had, slices, Lens::Uniform, seed);
        let mut drives = vec![Drive::Here; had + added];
        for _ in 0..retired {
            drives[random.usize(..had)] = Drive::Retiring;
        }
        let here = drives.iter().filter(|drive| **drive == Drive::Here).count();
        match balance(&map, &drives, 0.05) {
            Err(error) => prop_assert!(error.kind() == Kind::Exhausted && here < k + m),
            Ok(plan) => check_balance(&map, &drives, &plan, here > k + m),
        }
    }
}

/// `free`: groups leave drives to choose from.
fn check_balance(map: &CodeMap, drives: &[Drive], plan: &Balance, free: bool) {
    assert!(plan.moves.iter().all(|m| map.shard(m.place).is_some_and(|shard| (shard.drive, shard.len) == (m.from, m.len)) && m.from != m.to));
    // This refuses two shards of a group on one drive.
    let after = map.moved(plan.moves.iter().map(|m| (m.place, m.to))).unwrap();
    let before = loads(map, drives.len()).unwrap();
    let now = loads(&after, drives.len()).unwrap();
    assert_eq!(now, [plan.data.clone(), plan.parity.clone()]);
    let here: Vec<usize> = (0..drives.len()).filter(|drive| drives[*drive] == Drive::Here).collect();
    assert!((0..drives.len()).all(|drive| here.contains(&drive) || now[0][drive] + now[1][drive] == 0), "retired drives are empty");
    if !free {
        return;
    }
    let mut must = 0.0;
    let mut slack = 0.0;
    for role in 0..2 {
        let mean = here.iter().map(|drive| now[role][*drive]).sum::<u64>() as f64 / here.len() as f64;
        for drive in &here {
            let off = (now[role][*drive] as f64 - mean).abs();
            assert!(off <= 0.05 * mean + MAX as f64, "drive {drive}, role {role}: {} of {mean}", now[role][*drive]);
        }
        // What must leave drives that have too much, or come to those that have too little, and what retires.
        let over: f64 =
            (0..drives.len()).map(|d| if here.contains(&d) { (before[role][d] as f64 - 1.05 * mean).max(0.0) } else { before[role][d] as f64 }).sum();
        let under: f64 = here.iter().map(|d| (0.95 * mean - before[role][*d] as f64).max(0.0)).sum();
        must += over.max(under);
        slack += here.len() as f64 * MAX as f64;
    }
    let moved: u64 = plan.moves.iter().map(|m| m.len).sum();
    assert!(moved as f64 <= must * 1.05 + slack, "{moved} bytes moved, {must} must");
}

#[test]
fn a_large_fleet_is_repaired_and_grows_evenly() {
    let code = Code::new(8, 3).unwrap();
    let map = ingested(code, 40, 20_000, Lens::Uniform, 1);
    let mut drives = vec![Drive::Here; 40];
    drives[7] = Drive::Lost;
    let plan = repair(&map, &drives).unwrap();
    let after = check_repair(&map, &drives, &plan);
    let (read, written) = (off_mean(&plan.read, &drives), off_mean(&plan.written, &drives));
    let [data, parity] = loads(&after, 40).unwrap();
    let after_repair = off_mean(&data, &drives).max(off_mean(&parity, &drives));
    // Two more come, one goes.
    drives.truncate(7);
    drives.resize(42, Drive::Here);
    drives[3] = Drive::Retiring;
    let plan = balance(&map, &drives, 0.05).unwrap();
    check_balance(&map, &drives, &plan, true);
    let moved = plan.moves.iter().map(|m| m.len).sum::<u64>() as f64 / map.iter().flat_map(|members| members.all()).map(|shard| shard.len).sum::<u64>() as f64;
    let (data, parity) = (off_mean(&plan.data, &drives), off_mean(&plan.parity, &drives));
    if std::env::var_os("FIGURES").is_some() {
        println!("repair: reads {:.2}% off the mean, writes {:.2}%, bytes after {:.2}%", 100.0 * read, 100.0 * written, 100.0 * after_repair);
        println!(
            "two added, one of 40 retired: {:.2}% of all bytes move; data {:.2}% off the mean, parity {:.2}%",
            100.0 * moved,
            100.0 * data,
            100.0 * parity
        );
    }
    assert!(read < 0.01 && after_repair < 0.05 && data <= 0.0501 && parity <= 0.0501, "{read} {after_repair} {data} {parity}");
    assert!(moved < 3.0 / 41.0);
}

#[test]
fn a_fleet_of_the_fewest_drives_grows_by_one_and_shrinks_again() {
    for (k, m) in [(4, 1), (4, 2), (8, 3)] {
        let code = Code::new(k, m).unwrap();
        let map = ingested(code, k + m, 2000, Lens::Equal, 3);
        let mut drives = vec![Drive::Here; k + m + 1];
        let grown = balance(&map, &drives, 0.05).unwrap();
        check_balance(&map, &drives, &grown, true);
        assert!(off_mean(&grown.data, &drives) <= 0.0501, "{code}: {:?}", grown.data);
        let map = map.moved(grown.moves.iter().map(|m| (m.place, m.to))).unwrap();
        assert_eq!(balance(&map, &drives, 0.05).unwrap().moves, [], "what is balanced stays");
        drives[0] = Drive::Retiring;
        check_balance(&map, &drives, &balance(&map, &drives, 0.05).unwrap(), false);
        drives[1] = Drive::Retiring;
        assert_eq!(balance(&map, &drives, 0.05).unwrap_err().kind(), Kind::Exhausted);
        drives[1] = Drive::Lost;
        assert_eq!(balance(&map, &drives, 0.05).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(balance(&map, &drives[1..], 0.05).unwrap_err().kind(), Kind::Invalid);
    }
}

#[test]
fn shards_lost_for_good_are_named_and_the_rest_repaired() {
    let map = ingested(Code::new(2, 1).unwrap(), 6, 60, Lens::Equal, 4);
    let mut drives = vec![Drive::Here; 7];
    drives[0] = Drive::Lost;
    drives[1] = Drive::Lost;
    let plan = repair(&map, &drives).unwrap();
    let both = map.iter().filter(|members| members.is_on(0) && members.is_on(1)).count();
    assert!(both > 0 && plan.beyond.len() == both && !plan.groups.is_empty());
    check_repair(&map, &drives, &plan);
    assert_eq!(repair(&map, &[Drive::Here; 6]).unwrap(), Repair { read: vec![0; 6], written: vec![0; 6], ..Repair::default() });
}

#[test]
fn other_shards_make_room_where_no_direct_move_is_allowed() {
    // Drive 2 has no data, but parities of all that drive 0 has.
    let shard = |drive, number| Shard { drive, home: drive, number, len: 1000, crc32c: 0 };
    let groups: Vec<([Shard; 1], [Shard; 1])> = (0..60).map(|n| if n < 40 { ([shard(0, n)], [shard(2, n)]) } else { ([shard(1, n)], [shard(0, n)]) }).collect();
    let map = CodeMap::new(Code::new(1, 1).unwrap(), groups.iter().map(|(data, parity)| (&data[..], &parity[..]))).unwrap();
    let plan = balance(&map, &[Drive::Here; 3], 0.05).unwrap();
    assert!(plan.data.iter().chain(&plan.parity).all(|load| (19_000..=21_000).contains(load)), "{plan:?}");
    map.moved(plan.moves.iter().map(|m| (m.place, m.to))).unwrap();
}

#[test]
fn shards_are_decoded_where_no_drive_is_left_to_write_to() {
    let map = ingested(Code::new(4, 1).unwrap(), 5, 200, Lens::Equal, 4);
    let mut drives = vec![Drive::Here; 5];
    drives[2] = Drive::Lost;
    assert_eq!(repair(&map, &drives).unwrap_err().kind(), Kind::Exhausted);
    let all: Vec<Place> = (0..map.len() as u32).flat_map(|group| (0..4).map(move |shard| Place { group, shard })).collect();
    let wanted: Vec<Place> = all.into_iter().filter(|place| map.shard(*place).unwrap().number.is_multiple_of(4)).collect();
    let plan = reads(&map, &drives, &wanted).unwrap();
    let lost: Vec<u32> = wanted.iter().filter(|place| map.shard(**place).unwrap().drive == 2).map(|place| place.group).collect();
    assert!(lost.len() == 10 && plan.groups.iter().map(|(group, _)| *group).eq(lost));
    assert!(
        plan.groups.iter().all(|(group, reads)| reads.len() == 4 && reads.iter().all(|at| map.group(*group as usize).unwrap().all()[*at as usize].drive != 2))
    );
    assert_eq!(plan.read, [10 * MAX, 10 * MAX, 0, 10 * MAX, 10 * MAX]);
    assert_eq!(reads(&map, &[Drive::Here; 5], &wanted).unwrap(), Reads { read: vec![0; 5], ..Reads::default() });
    assert_eq!(reads(&map, &drives, &[Place { group: 0, shard: 5 }]).unwrap_err().kind(), Kind::Invalid);
    drives[3] = Drive::Lost;
    assert!(reads(&map, &drives, &wanted).unwrap().groups.is_empty());
}

/// Single slices even out what such stripes leave uneven.
#[test]
fn stripes_of_several_slices_stay_together_in_balance() {
    // Stripes of three slices, each in a group of its own with a parity elsewhere.
    let mut units = Units::default();
    for stripe in 0..120u32 {
        units.push(Role::Data, stripe % 3, 30, [3 * stripe, 3 * stripe + 1, 3 * stripe + 2]);
        (0..3).for_each(|group| units.push(Role::Parity, (stripe + 1) % 3, 10, [3 * stripe + group]));
    }
    let mut drives = vec![Drive::Here; 4];
    let placed = units.balance(&drives, &[0; 4], 0.05).unwrap();
    assert!(placed.data.iter().chain(&placed.parity).all(|load| (855..=945).contains(load)), "{placed:?}");
    let moved: u64 = placed
        .now
        .iter()
        .enumerate()
        .filter(|(at, now)| **now != (at / 4 % 3 + usize::from(at % 4 > 0)) as u32 % 3)
        .map(|(at, _)| if at % 4 == 0 { 30 } else { 10 })
        .sum();
    let least = units.least(&drives, 0.05).unwrap();
    assert_eq!(least, 2 * 855);
    assert!(moved <= least + 4 * 40, "{moved}");
    for stripe in 0..120 {
        let here = &placed.now[4 * stripe..4 * stripe + 4];
        assert!(here[1..].iter().all(|parity| *parity != here[0]), "{here:?}");
    }
    drives[1] = Drive::Retiring;
    let placed = units.balance(&drives, &[0; 4], 0.05).unwrap();
    assert!(placed.data[1] + placed.parity[1] == 0 && units.least(&drives, 0.05).unwrap() >= 2400);
    // Tables of one slice each: none can be made more even by itself.
    let (mut others, mut moved) = (vec![4 * MAX, 4 * MAX, 4 * MAX, 0], 0);
    for at in 0..12u32 {
        let mut one = Units::default();
        one.push(Role::Data, at % 3, MAX, []);
        others[at as usize % 3] -= MAX;
        let placed = one.balance(&[Drive::Here; 4], &others, 0.05).unwrap();
        moved += u32::from(placed.now[0] != at % 3);
        others[placed.now[0] as usize] += MAX;
    }
    assert_eq!((others, moved), (vec![3 * MAX; 4], 3));
}

#[test]
fn groups_without_choice_stay_apart_next_to_uneven_ones() {
    for seed in 0..3000 {
        let mut random = Rng::with_seed(seed);
        let mut below = |n: u64| random.u64(..n);
        let drives = 3 + below(4) as usize;
        let mut units = Units::default();
        let mut at = Vec::new();
        for group in 0..1 + below(8) as u32 {
            let first = below(drives as u64) as u32;
            for shard in 0..3 {
                let drive = (first + shard) % drives as u32;
                units.push(if shard < 2 { Role::Data } else { Role::Parity }, drive, 1 + below(100), [group]);
                at.push(group);
            }
        }
        let others: Vec<u64> = (0..drives).map(|_| below(300)).collect();
        let before = units.loads(drives).unwrap().map(|loads| loads.iter().sum::<u64>());
        let placed = units.balance(&vec![Drive::Here; drives], &others, 0.05).unwrap();
        assert_eq!([&placed.data, &placed.parity].map(|loads| loads.iter().sum::<u64>()), before, "{seed}");
        let places: BTreeSet<(u32, u32)> = at.iter().copied().zip(placed.now.iter().copied()).collect();
        assert_eq!(places.len(), at.len(), "{seed}: two shards of a group on one drive");
    }
}
