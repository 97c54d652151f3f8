//! Digests: a group whose digests agree is whole, and digests find any damage.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::slice::from_ref;

use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use skytether_common::Kind;
use skytether_erasure::Code;
use skytether_erasure::code::{BLOCK, encode, parity_len};
use skytether_erasure::digest::{DIGEST_BYTES, Digest, Digesting, consistent, suspects};

fn bytes(random: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

const CODES: [(usize, usize); 9] = [(1, 1), (1, 2), (2, 1), (4, 1), (4, 2), (8, 3), (5, 4), (3, 5), (17, 3)];

/// A group's shards, data before parity.
fn group(code: Code, lens: &[usize], random: &mut Rng) -> Vec<Vec<u8>> {
    let mut shards: Vec<Vec<u8>> = lens.iter().map(|len| bytes(random, *len)).collect();
    let parity = encode(code, &shards).unwrap();
    shards.extend(parity.iter().map(|shard| shard.to_vec()));
    shards
}

/// Groups of every code, full and not, of unequal lengths, short ones among them.
fn groups(random: &mut Rng) -> Vec<(Code, usize, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    for (k, m) in CODES {
        for count in [k, k.div_ceil(2)] {
            for most in [40, 64, 700, 70_000] {
                let code = Code::new(k, m).unwrap();
                let lens: Vec<usize> = (0..count).map(|_| 1 + random.usize(..most)).collect();
                all.push((code, count, group(code, &lens, random)));
            }
        }
    }
    all
}

fn agree(code: Code, count: usize, shards: &[Vec<u8>], seed: u64) -> bool {
    let digesting = Digesting::new(seed);
    let digests: Vec<Digest> = shards.iter().map(|shard| digesting.digest(shard)).collect();
    consistent(code, &digests[..count], &digests[count..]).unwrap()
}

#[test]
fn whole_groups_agree_and_change_in_one_block_never_hides() {
    let mut random = Rng::with_seed(1);
    for (code, count, shards) in groups(&mut random) {
        assert!(agree(code, count, &shards, random.u64(..)), "{code}");
        for _ in 0..4 {
            let mut damaged = shards.clone();
            let at = random.usize(..shards.len());
            let bit = random.usize(..damaged[at].len() * 8);
            damaged[at][bit / 8] ^= 1 << (bit % 8);
            assert!(!agree(code, count, &damaged, random.u64(..)), "{code}: bit {bit} of shard {at}");
            // Others within the same block.
            let block = bit / 8 / BLOCK * BLOCK;
            damaged[at].iter_mut().skip(block).take(BLOCK).for_each(|byte| *byte = byte.wrapping_add(random.u8(..) | 1));
            assert!(!agree(code, count, &damaged, random.u64(..)), "{code}: block {block} of shard {at}");
        }
    }
}

#[test]
fn two_and_three_blocks_never_cancel_and_four_hardly_ever() {
    // A bit that is stuck: the same change in each block.
    let mut random = Rng::with_seed(2);
    let code = Code::new(4, 1).unwrap();
    let shards = group(code, &[1 << 18; 4], &mut random);
    for blocks in [2, 3, 4, 6, 50, 4096] {
        for _ in 0..60 {
            let mut damaged = shards.clone();
            let mut hit: Vec<usize> = Vec::new();
            while hit.len() < blocks {
                let block = random.usize(..4096);
                if blocks == 4096 {
                    hit = (0..4096).collect();
                } else if !hit.contains(&block) {
                    hit.push(block);
                }
            }
            hit.iter().for_each(|block| damaged[1][block * BLOCK + 7] ^= 16);
            assert!(!agree(code, 4, &damaged, random.u64(..)), "{blocks} blocks");
        }
    }
}

/// Blocks that are wrong by the same bit could cancel in a weak digest.
#[test]
fn few_blocks_with_one_bit_flipped_are_found_in_all_tries() {
    let mut random = Rng::with_seed(8);
    let code = Code::new(2, 1).unwrap();
    let zeros = vec![0u8; 1 << 16];
    for _ in 0..100 {
        let digesting = Digesting::new(random.u64(..));
        let zero = digesting.digest(&zeros);
        for blocks in (0..120).map(|n| 2 + n % 3) {
            let mut damaged = zeros.clone();
            let mut hit = BTreeSet::new();
            while hit.len() < blocks {
                hit.insert(random.usize(..1024));
            }
            hit.iter().for_each(|block| damaged[block * BLOCK + 33] = 1);
            assert!(!consistent(code, &[digesting.digest(&damaged), zero.clone()], from_ref(&zero)).unwrap(), "{blocks} blocks");
        }
    }
}

/// Shards are stale, truncated or exchanged.
#[test]
fn lost_or_exchanged_pages_and_bad_shards_are_found() {
    let mut random = Rng::with_seed(3);
    for (code, count, shards) in groups(&mut random) {
        let mut tries: Vec<(&str, Vec<Vec<u8>>)> = Vec::new();
        let at = random.usize(..shards.len());
        let mut changed = |what, change: &mut dyn FnMut(&mut Vec<Vec<u8>>)| {
            let mut damaged = shards.clone();
            change(&mut damaged);
            // Bytes that happen to be the same are no damage.
            if damaged != shards {
                tries.push((what, damaged));
            }
        };
        changed("a page of zeros", &mut |shards| shards[at].iter_mut().take(4096).for_each(|byte| *byte = 0));
        changed("pages exchanged", &mut |shards| {
            if shards[at].len() >= 8192 {
                let (a, b) = shards[at].split_at_mut(4096);
                a.swap_with_slice(&mut b[..4096]);
            }
        });
        changed("blocks exchanged", &mut |shards| {
            if shards[at].len() >= 128 {
                let (a, b) = shards[at].split_at_mut(64);
                a.swap_with_slice(&mut b[..64]);
            }
        });
        let stale = bytes(&mut random, shards[at].len());
        changed("a stale shard", &mut |shards| shards[at].copy_from_slice(&stale));
        changed("a shorter shard", &mut |shards| {
            let half = shards[at].len() / 2;
            shards[at].truncate(half);
        });
        changed("an empty shard", &mut |shards| shards[at].clear());
        changed("two parities lost", &mut |shards| shards[count..].iter_mut().take(2).for_each(|shard| shard.fill(0)));
        // Sums of data shards don't know their order; other parities do.
        if code.parity() > 1 && !code.copies() {
            changed("data exchanged", &mut |shards| shards.swap(0, count - 1));
            changed("parities exchanged", &mut |shards| shards.swap(count, count + 1));
            changed("data and parity exchanged", &mut |shards| {
                let (a, b) = shards.split_at_mut(count);
                let len = a[0].len();
                a[0].swap_with_slice(&mut b[0][..len]);
            });
        }
        for (what, damaged) in tries {
            assert!(!agree(code, count, &damaged, random.u64(..)), "{code}, {count} data shards: {what} at {at} not found");
        }
    }
}

#[test]
fn damaged_shard_is_named_where_the_code_can_tell() {
    let mut random = Rng::with_seed(4);
    for (code, count, mut shards) in groups(&mut random) {
        let digesting = Digesting::new(random.u64(..));
        let digests = |shards: &[Vec<u8>]| shards.iter().map(|shard| digesting.digest(shard)).collect::<Vec<_>>();
        let named = |digests: &[Digest]| suspects(code, &digests[..count], &digests[count..]).unwrap();
        assert_eq!(named(&digests(&shards)), []);
        let at = random.usize(..shards.len());
        let byte = random.usize(..shards[at].len());
        shards[at][byte] ^= 0x40;
        let found = named(&digests(&shards));
        assert_eq!(found, if code.parity() > 1 { vec![at] } else { (0..=count).collect::<Vec<_>>() }, "{code} with {count}");
    }
}

#[test]
fn digests_round_trip_and_malformed_ones_are_refused() {
    let digesting = Digesting::new(7);
    let digest = digesting.digest(b"some bytes");
    let bytes = digest.to_bytes();
    assert_eq!(bytes.len(), DIGEST_BYTES);
    const { assert!(DIGEST_BYTES * 1000 <= 5 << 20, "at most half a per cent of 1 MiB") };
    assert_eq!(Digest::from_bytes(&bytes).unwrap(), digest);
    assert_eq!(digest.shard_len(), 10);
    for len in [0, 7, 15, 16, DIGEST_BYTES - 1] {
        assert_eq!(Digest::from_bytes(&bytes[..len]).unwrap_err().kind(), Kind::Corrupt);
    }
    let other = Digesting::new(8).digest(b"some bytes");
    let code = Code::new(1, 1).unwrap();
    assert_eq!(consistent(code, from_ref(&digest), &[other]).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(consistent(code, from_ref(&digest), &[]).unwrap_err().kind(), Kind::Invalid);
    assert!(consistent(code, from_ref(&digest), from_ref(&digest)).unwrap());
    // Whatever length the bytes claim.
    let claimed = Digest::from_bytes(&[&bytes[..8], &[255; 8], &bytes[16..]].concat()).unwrap();
    assert!(!consistent(code, from_ref(&claimed), from_ref(&digest)).unwrap());
    let code = Code::new(2, 1).unwrap();
    assert!(!consistent(code, &[digest.clone(), claimed], from_ref(&digest)).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, rng_seed: RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn bytes_come_in_any_pieces_and_padding_changes_no_sum(len in 0usize..9000, cuts in prop::collection::vec(0usize..9000, 0..9), seed in any::<u64>()) {
        let bytes = bytes(&mut Rng::with_seed(seed), len);
        let digesting = Digesting::new(seed);
        let mut digester = digesting.begin();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(len)).chain([0, len]).collect();
        cuts.sort_unstable();
        cuts.windows(2).for_each(|cut| digester.update(&bytes[cut[0]..cut[1]]));
        let digest = digester.finish();
        prop_assert_eq!(&digest, &digesting.digest(&bytes));
        let mut padded = bytes;
        padded.resize(parity_len(Code::new(2, 1).unwrap(), len) + 640, 0);
        prop_assert_eq!(&digest.to_bytes()[16..], &digesting.digest(&padded).to_bytes()[16..]);
    }
}

#[test]
fn shards_longer_than_the_columns_are_digested_as_well() {
    let mut random = Rng::with_seed(6);
    let code = Code::new(2, 2).unwrap();
    let mut shards = group(code, &[(9 << 20) + 5, 4 << 20], &mut random);
    assert!(agree(code, 2, &shards, 1));
    // The same place in each lap.
    shards[0][100] ^= 1;
    shards[0][(4 << 20) + 100] ^= 1;
    assert!(!agree(code, 2, &shards, 1));
}

#[test]
fn summed_digests_of_groups_find_damage_in_any_group() {
    let random = &mut Rng::with_seed(77);
    for (k, m) in CODES {
        let code = Code::new(k, m).unwrap();
        let digesting = Digesting::new(random.u64(..));
        let mut all: Vec<Vec<Vec<u8>>> = (0..9).map(|_| group(code, &(0..k).map(|_| 1 + random.usize(..3000)).collect::<Vec<_>>(), random)).collect();
        let of = |shard: &[u8], turn: u16| {
            let mut digester = digesting.begin_turned(turn);
            digester.update(shard);
            digester.finish()
        };
        let sums = |all: &[Vec<Vec<u8>>]| -> Vec<Digest> {
            (0..k + m)
                .map(|place| {
                    let mut sum = of(&[], 0);
                    all.iter().enumerate().for_each(|(n, group)| sum.add(&of(&group[place], 7919 * n as u16)).unwrap());
                    sum.padded(4096)
                })
                .collect()
        };
        let whole = sums(&all);
        assert!(consistent(code, &whole[..k], &whole[k..]).unwrap(), "{code}");
        // The same bits at the same place of two groups, which would cancel if they were not turned.
        let place = random.usize(..k + m);
        let at = random.usize(..all[0][place].len().min(all[5][place].len()));
        for group in [0, 5] {
            all[group][place][at] ^= 0x40;
        }
        let mut damaged = sums(&all);
        assert!(!consistent(code, &damaged[..k], &damaged[k..]).unwrap(), "{code}");
        // Without these two the sum is whole.
        for group in [0, 5] {
            for (sum, shard) in damaged.iter_mut().zip(&all[group]) {
                sum.add(&of(shard, 7919 * group as u16)).unwrap();
            }
        }
        assert!(consistent(code, &damaged[..k], &damaged[k..]).unwrap(), "{code}");
    }
    assert_eq!(Digesting::new(1).digest(b"a").add(&Digesting::new(2).digest(b"a")).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn rotated_digests_wrap_around() {
    let digesting = Digesting::new(3);
    let mut blocks = vec![0u8; (1 << 16) * BLOCK];
    // Each block alone in the shard: one bucket of each row has it, and which, the turn shifts.
    for (at, turn) in [(0usize, 65_535u16), (1, 65_535), (65_535, 1), (40_000, 40_000)] {
        blocks[at * BLOCK] = 1;
        let mut turned = digesting.begin_turned(turn);
        blocks.chunks(1000).for_each(|part| turned.update(part));
        let mut straight = digesting.begin();
        let to = (at + usize::from(turn)) % (1 << 16);
        let mut other = vec![0u8; (1 << 16) * BLOCK];
        other[to * BLOCK] = 1;
        straight.update(&other);
        assert_eq!(turned.finish(), straight.finish(), "block {at} turned by {turn}");
        blocks[at * BLOCK] = 0;
    }
}
