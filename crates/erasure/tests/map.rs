//! The code map: it is read back as written, it is small, and hostile bytes do no harm.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use crate::common::{Groups, slice_len};
use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use skytether_common::Kind;
use skytether_common::checksum::crc32c;
use skytether_erasure::Code;
use skytether_erasure::code::{decode, encode};
use skytether_erasure::digest::Digesting;
use skytether_erasure::map::{CodeMap, Place, Role, Shard};
use skytether_erasure::scrub::{Report, Verdict, judge};

/// A group's shards as they are, those that are not there `None`.
type Found = Vec<Option<Vec<u8>>>;

fn map_of(code: Code, groups: &Groups) -> skytether_common::Result<CodeMap> {
    CodeMap::new(code, groups.iter().map(|(data, parity)| (&data[..], &parity[..])))
}

/// The groups that an ingest makes of `slices` slices.
fn ingested(code: Code, drives: usize, slices: usize, random: &mut Rng) -> Groups {
    let mut groups = crate::common::ingested(code, drives, slices, 1, || slice_len(random));
    let shards = groups.iter_mut().flat_map(|(data, parity)| data.iter_mut().chain(parity));
    shards.for_each(|shard| shard.crc32c = random.u32(..));
    groups
}

#[test]
fn a_million_slices_take_ten_megabytes_and_each_is_found() {
    let (code, slices) = (Code::new(4, 1).unwrap(), 100_000);
    let groups = ingested(code, 12, slices, &mut Rng::with_seed(1));
    let map = map_of(code, &groups).unwrap();
    let bytes = map.to_bytes();
    let per_million = bytes.len() as f64 * 1e6 / slices as f64 / 1e6;
    if std::env::var_os("FIGURES").is_some() {
        println!("{per_million:.2} MB per million slices");
    }
    assert!(per_million < 11.0, "{per_million} MB per million slices");
    assert_eq!(CodeMap::from_bytes(&bytes).unwrap(), map);
    for (number, (data, parity)) in groups.iter().enumerate() {
        for (role, shards) in [(Role::Data, data), (Role::Parity, parity)] {
            for shard in shards {
                let place = map.find(role, shard.home, shard.number).unwrap();
                assert_eq!((place.group as usize, map.shard(place)), (number, Some(shard)));
            }
        }
    }
    assert_eq!((map.find(Role::Data, 12, 0), map.find(Role::Parity, 0, 90_000)), (None, None));
}

/// Groups with anything in them that may be.
fn any_groups() -> impl Strategy<Value = (Code, Groups)> {
    (1usize..6, 1usize..4).prop_flat_map(|(k, m)| {
        let shard = (any::<u32>(), prop_oneof![0u32..40, any::<u32>()], any::<u32>(), prop_oneof![0u64..3000, 0u64..=1 << 32]);
        let group = (prop::collection::vec(shard, 1..=k), any::<u32>());
        (Just((k, m)), prop::collection::vec(group, 0..20)).prop_map(|((k, m), groups)| {
            let code = Code::new(k, m).unwrap();
            let mut seen = BTreeMap::new();
            let mut owned = Vec::new();
            for (shards, drive) in groups {
                // Drives that differ, and names that were not there.
                let mut at = drive % 1000;
                let mut shard = |role: Role, home: Option<u32>, mut number: u32, len: u64, crc32c: u32| {
                    at += 1 + crc32c % 3;
                    let home = home.filter(|home| home % 4 == 0).unwrap_or(at);
                    while seen.insert((role, home, number), ()).is_some() {
                        number = number.wrapping_add(1);
                    }
                    Shard { drive: at, home, number, len, crc32c }
                };
                let data: Vec<Shard> = shards.iter().map(|(crc, home, number, len)| shard(Role::Data, Some(*home), *number, *len, *crc)).collect();
                let longest = data.iter().map(|shard| shard.len).max().unwrap();
                let len = if k == 1 { longest } else { longest.next_multiple_of(64) };
                let parity = (0..m as u32).map(|n| shard(Role::Parity, None, n, len, drive ^ n)).collect();
                owned.push((data, parity));
            }
            (code, owned)
        })
    })
}

/// The bytes with a checksum that fits them.
fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= 16 {
        let sum = crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, rng_seed: RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn any_map_comes_back_and_no_damage_passes((code, groups) in any_groups(), bit in any::<usize>(), cut in any::<usize>()) {
        let map = map_of(code, &groups).unwrap();
        let bytes = map.to_bytes();
        prop_assert_eq!(&CodeMap::from_bytes(&bytes).unwrap(), &map);
        prop_assert_eq!(map.len(), groups.len());
        prop_assert!(map.iter().zip(&groups).all(|(members, (data, parity))| members.data == data && members.parity == parity));
        let mut flipped = bytes.clone();
        let bit = bit % (8 * bytes.len());
        flipped[bit / 8] ^= 1 << (bit % 8);
        let kind = CodeMap::from_bytes(&flipped).unwrap_err().kind();
        prop_assert!(kind == Kind::Corrupt || (kind == Kind::Unsupported && (8..12).contains(&(bit / 8))));
        prop_assert_eq!(CodeMap::from_bytes(&bytes[..cut % bytes.len()]).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn hostile_bytes_give_an_error_or_a_map((code, groups) in any_groups(), changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6), body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = map_of(code, &groups).unwrap().to_bytes();
        for (at, byte) in &changes {
            let at = 16 + at % (bytes.len() - 16);
            bytes[at] = *byte;
        }
        let mut random = bytes[..16].to_vec();
        random.extend(&body);
        for bytes in [signed(bytes), signed(random), body] {
            match CodeMap::from_bytes(&bytes) {
                // What is read is as good as what was written.
                Ok(map) => prop_assert_eq!(CodeMap::from_bytes(&map.to_bytes()).unwrap(), map),
                Err(error) => prop_assert_eq!(error.kind(), Kind::Corrupt),
            }
        }
    }
}

#[test]
fn counts_that_do_not_fit_take_no_memory() {
    let mut bytes = CodeMap::new(Code::new(4, 1).unwrap(), []).unwrap().to_bytes();
    assert_eq!(bytes.len(), 19);
    bytes.pop();
    bytes.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    let error = CodeMap::from_bytes(&signed(bytes)).unwrap_err();
    assert_eq!(error.to_string(), "a code map is damaged: 18446744073709551615 groups do not fit into it");
}

#[test]
fn groups_that_may_not_be_are_refused() {
    let code = Code::new(2, 1).unwrap();
    let shard = |drive, number, len| Shard { drive, home: drive, number, len, crc32c: 7 };
    let refused = |groups: Groups| map_of(code, &groups).unwrap_err().to_string();
    assert_eq!(refused(vec![(vec![], vec![shard(0, 0, 0)])]), "group 0 of a code map has 0 data shards, but 2+1 has 1 to 2");
    assert_eq!(refused(vec![(vec![shard(0, 0, 5)], vec![])]), "group 0 has 1 data and 0 parity shards, which is not within 2+1");
    assert_eq!(refused(vec![(vec![shard(0, 0, 5), shard(1, 0, 5)], vec![shard(1, 0, 64)])]), "group 0 of a code map has two shards on drive 1");
    assert_eq!(refused(vec![(vec![shard(0, 0, 65)], vec![shard(1, 0, 64)])]), "group 0 of a code map has a parity of 64 bytes instead of 128");
    assert_eq!(refused(vec![(vec![shard(0, 0, 1 << 33)], vec![shard(1, 0, 1 << 33)])]), "no shard has 8589934592 bytes, but 4294967296 at most");
    let group = |parity| (vec![shard(0, 3, 5)], vec![shard(1, parity, 64)]);
    assert_eq!(refused(vec![group(0), group(1)]), "slice 3 of partition 0 is twice in a code map");
    let map = map_of(code, &vec![group(0)]).unwrap();
    let moved = map.moved([(Place { group: 0, shard: 0 }, 9)]).unwrap();
    let place = moved.find(Role::Data, 0, 3).unwrap();
    assert_eq!(moved.shard(place).map(|shard| (shard.drive, shard.home)), Some((9, 0)), "its name stays");
    assert_eq!(CodeMap::from_bytes(&moved.to_bytes()).unwrap(), moved);
    assert!(map.moved([(Place { group: 0, shard: 0 }, 1)]).is_err() && map.moved([(Place { group: 0, shard: 2 }, 5)]).is_err());
}

#[test]
fn a_scrub_finds_every_damage_by_reports_and_decoding_mends_it() {
    let mut random = Rng::with_seed(9);
    for (k, m) in [(1, 1), (1, 2), (4, 1), (4, 2), (8, 3)] {
        let code = Code::new(k, m).unwrap();
        let bytes = |len: usize, random: &mut Rng| (0..len).map(|_| random.u8(..)).collect::<Vec<u8>>();
        let mut shards: Vec<Vec<u8>> = (0..k).map(|at| bytes(3000 - 17 * (at / 2), &mut random)).collect();
        let parity = encode(code, &shards).unwrap();
        shards.extend(parity.iter().map(|p| p.to_vec()));
        let named = |at: usize, shard: &Vec<u8>| Shard { drive: at as u32, home: at as u32, number: 0, len: shard.len() as u64, crc32c: crc32c(shard) };
        let all: Vec<Shard> = shards.iter().enumerate().map(|(at, shard)| named(at, shard)).collect();
        let map = CodeMap::new(code, [(&all[..k], &all[k..])]).unwrap();
        let group = map.group(0).unwrap();
        let mut seed = 0;
        let mut verdict = |group, shards: &[Option<Vec<u8>>]| {
            seed += 1;
            let digesting = Digesting::new(seed);
            let reports: Vec<Option<Report>> = shards.iter().map(|s| s.as_ref().map(|s| Report { crc32c: crc32c(s), digest: digesting.digest(s) })).collect();
            judge(code, group, &reports).unwrap()
        };
        let present: Found = shards.iter().cloned().map(Some).collect();
        assert_eq!(verdict(group, &present), Verdict::Whole);
        let mut cases: Vec<(Vec<usize>, Found)> = Vec::new();
        let at = random.usize(..k + m);
        let mut damage = |places: Vec<usize>, change: &dyn Fn(&mut Found)| {
            let mut damaged = present.clone();
            change(&mut damaged);
            cases.push((places, damaged));
        };
        damage(vec![at], &|shards| shards[at] = None);
        damage(vec![at], &|shards| shards[at].as_mut().unwrap()[77] ^= 2);
        damage(vec![at], &|shards| shards[at].as_mut().unwrap().truncate(2900));
        damage(vec![at], &|shards| _ = shards[at].as_mut().unwrap().pop());
        if k > 1 {
            damage(vec![0, 1], &|shards| shards.swap(0, 1));
        }
        for (places, damaged) in cases {
            assert_eq!(verdict(group, &damaged), Verdict::Damaged(places.clone()), "{code}");
            let good: Vec<Option<&[u8]>> = damaged.iter().enumerate().map(|(at, s)| s.as_deref().filter(|_| !places.contains(&at))).collect();
            match decode(code, &group.lens(), &good, &places) {
                Ok(mended) => assert!(places.iter().zip(&mended).all(|(at, bytes)| bytes == &shards[*at])),
                Err(error) => assert!(places.len() > m && error.kind() == Kind::Unavailable),
            }
        }
        // A parity of other data, with its own checksum in the map.
        let mut other = present.clone();
        let wrong = bytes(shards[k].len(), &mut random);
        let mut all = all.clone();
        all[k].crc32c = crc32c(&wrong);
        other[k] = Some(wrong);
        let map = CodeMap::new(code, [(&all[..k], &all[k..])]).unwrap();
        let expected = if m > 1 { vec![k] } else { (0..=k).collect() };
        assert_eq!(verdict(map.group(0).unwrap(), &other), Verdict::Mismatched(expected), "{code}");
    }
}
