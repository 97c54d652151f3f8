//! The code: any K of a group's shards give all of them, whatever the lengths.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::test_runner::RngSeed;
use skytether_common::Kind;
use skytether_erasure::Code;
use skytether_erasure::code::{BLOCK, decode, encode, matches, parity_len};

fn filled(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Codes, lengths of data shards (fewer than K perhaps), and which shards are lost, at most M.
fn groups() -> impl Strategy<Value = (Code, Vec<usize>, Vec<usize>)> {
    let len = prop_oneof![4 => 0usize..400, 2 => Just(64usize), 2 => 16_000usize..17_000, 1 => 33_000usize..50_000];
    (1usize..=12, 1usize..=6).prop_flat_map(move |(k, m)| (Just((k, m)), prop::collection::vec(len.clone(), 1..=k))).prop_flat_map(|((k, m), lens)| {
        let all: Vec<usize> = (0..lens.len() + m).collect();
        (Just(Code::new(k, m).unwrap()), Just(lens), subsequence(all, 0..=m))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, rng_seed: RngSeed::Fixed(5), ..ProptestConfig::default() })]

    #[test]
    fn any_m_lost_shards_come_back((code, lens, lost) in groups(), seed in 1u64..1000) {
        let data: Vec<Vec<u8>> = lens.iter().enumerate().map(|(at, len)| filled(*len, seed + at as u64)).collect();
        let parity = encode(code, &data).unwrap();
        let len = parity_len(code, *lens.iter().max().unwrap());
        prop_assert!(parity.len() == code.parity() && parity.iter().all(|shard| shard.len() == len));
        let all: Vec<&[u8]> = data.iter().map(|d| &d[..]).chain(parity.iter().map(|p| &p[..])).collect();
        let shards: Vec<Option<&[u8]>> = all.iter().enumerate().map(|(at, shard)| (!lost.contains(&at)).then_some(*shard)).collect();
        let found = decode(code, &lens, &shards, &lost).unwrap();
        for (at, shard) in lost.iter().zip(&found) {
            prop_assert!(all[*at] == &shard[..], "shard {} of {}", at, code);
        }
        // One of them alone, and one that was not lost.
        for wanted in lost.iter().take(1).copied().chain([all.len() - 1, 0]) {
            prop_assert!(decode(code, &lens, &shards, &[wanted]).unwrap()[0] == all[wanted]);
        }
        let (data, parity) = all.split_at(data.len());
        prop_assert!(matches(code, data, parity).unwrap());
    }

    #[test]
    fn missing_data_shards_count_as_zeros((code, lens, _) in groups(), seed in 1u64..1000) {
        prop_assume!(!code.copies());
        let len = parity_len(code, *lens.iter().max().unwrap());
        let short: Vec<Vec<u8>> = lens.iter().enumerate().map(|(at, len)| filled(*len, seed + at as u64)).collect();
        let mut padded = short.clone();
        padded.iter_mut().for_each(|shard| shard.resize(len, 0));
        padded.resize(code.data(), vec![0; len]);
        prop_assert_eq!(encode(code, &short).unwrap(), encode(code, &padded).unwrap());
        let mut xored = padded[0].clone();
        for shard in &padded[1..] {
            xored.iter_mut().zip(shard).for_each(|(a, b)| *a ^= b);
        }
        prop_assert!(code.parity() > 1 || encode(code, &short).unwrap()[0] == xored);
    }
}

#[test]
fn parities_are_those_of_the_library_and_the_format() {
    use reed_solomon_simd::engine::NoSimd;
    use reed_solomon_simd::rate::{HighRateEncoder, RateEncoder};
    for (k, m) in [(2, 1), (4, 1), (4, 2), (5, 3), (8, 3), (3, 7), (128, 64)] {
        let data: Vec<Vec<u8>> = (0..k).map(|at| filled(640, at as u64)).collect();
        let ours = encode(Code::new(k, m).unwrap(), &data).unwrap();
        let mut library = HighRateEncoder::new(k, m, 640, NoSimd::new(), None).unwrap();
        data.iter().for_each(|shard| library.add_original_shard(shard).unwrap());
        let theirs = library.encode().unwrap();
        assert!(theirs.recovery_iter().eq(ours.iter().map(|shard| &shard[..])), "{k}+{m}");
    }
    // Written down, so that no version of the library changes it unnoticed.
    let data: Vec<Vec<u8>> = (0..4u8).map(|at| vec![at + 1; 64]).collect();
    let parity = encode(Code::new(4, 2).unwrap(), &data).unwrap();
    let symbols: Vec<(u8, u8)> = parity.iter().map(|shard| (shard[0], shard[32])).collect();
    assert_eq!(symbols, GOLDEN, "{symbols:?}");
}

/// Low and high byte of the first symbol of both parities of 0x0101, 0x0202, 0x0303, 0x0404 in ec:4+2.
const GOLDEN: [(u8, u8); 2] = [(168, 10), (172, 14)];

#[test]
fn the_largest_code_decodes() {
    let code = Code::new(128, 64).unwrap();
    let data: Vec<Vec<u8>> = (0..128).map(|at| filled(100 + at, at as u64)).collect();
    let lens: Vec<usize> = data.iter().map(Vec::len).collect();
    let parity = encode(code, &data).unwrap();
    let all: Vec<&[u8]> = data.iter().map(|d| &d[..]).chain(parity.iter().map(|p| &p[..])).collect();
    let lost: Vec<usize> = (0..192).filter(|at| at % 3 == 1).collect();
    let shards: Vec<Option<&[u8]>> = all.iter().enumerate().map(|(at, shard)| (!lost.contains(&at)).then_some(*shard)).collect();
    let found = decode(code, &lens, &shards, &lost).unwrap();
    assert!(lost.iter().zip(&found).all(|(at, shard)| all[*at] == &shard[..]));
}

#[test]
fn shards_that_do_not_fit_are_refused() {
    let code = Code::new(4, 2).unwrap();
    let data = [filled(100, 1), filled(90, 2), filled(80, 3)];
    let parity = encode(code, &data).unwrap();
    let (a, b, c, p, q) = (&data[0][..], &data[1][..], &data[2][..], &parity[0][..], &parity[1][..]);
    let lens = [100, 90, 80];
    assert_eq!(encode::<Vec<u8>>(code, &[]).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(encode(code, &[a, a, a, a, a]).unwrap_err().kind(), Kind::Invalid);
    let kind = |shards: &[Option<&[u8]>], wanted: &[usize]| decode(code, &lens, shards, wanted).unwrap_err().kind();
    assert_eq!(kind(&[Some(a), None, None, None, Some(q)], &[1]), Kind::Unavailable);
    assert_eq!(kind(&[Some(b), None, Some(c), Some(p), Some(q)], &[1]), Kind::Invalid);
    assert_eq!(kind(&[Some(a), None, Some(c), Some(&p[..100]), Some(q)], &[1]), Kind::Invalid);
    assert_eq!(kind(&[Some(a), None, Some(c), Some(p)], &[1]), Kind::Invalid);
    assert_eq!(kind(&[Some(a), None, Some(c), Some(p), Some(q)], &[5]), Kind::Invalid);
    assert_eq!(decode(code, &lens, &[Some(a), None, None, Some(p), Some(q)], &[2, 1]).unwrap(), [c, b]);
    assert_eq!(decode(code, &lens, &[Some(a), None, None, None, None], &[0]).unwrap(), [a], "what is there needs no others");
    assert!(!matches(code, &[a, b, c], &[q, p]).unwrap() && !matches(code, &[a, b, c], &[p, &q[..64]]).unwrap());
    assert_eq!(matches(code, &[a, b, c], &[p]).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn lengths_are_whole_blocks_and_copies_are_copies() {
    for (len, padded) in [(0, 0), (1, BLOCK), (64, 64), (65, 128), (1 << 20, 1 << 20)] {
        assert_eq!(parity_len(Code::new(2, 1).unwrap(), len), padded);
        assert_eq!(parity_len(Code::new(1, 2).unwrap(), len), len);
    }
    let copies = encode(Code::new(1, 3).unwrap(), &[b"abc"]).unwrap();
    assert_eq!(copies, ["abc"; 3]);
    assert_eq!(decode(Code::new(1, 3).unwrap(), &[3], &[None, None, Some(b"abc"), None], &[0, 3]).unwrap(), ["abc"; 2]);
    assert_eq!(encode(Code::new(4, 2).unwrap(), &[b""]).unwrap(), [""; 2]);
}
