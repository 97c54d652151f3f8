//! Digests of shards, by which a group is verified without its shards: the digests of the parity shards are the parity
//! of the digests of the data shards.
//!
//! A digest is [`ROWS`] rows of [`BUCKETS`] sums of 64-byte blocks. In every row each block of the shard is XORed into
//! one bucket. The block's column number gives the bucket; it follows from the block's place and the scrub's seed. The
//! code works on each place of a block by itself and is linear over GF(2^16), and so over XOR. A sum of parity blocks
//! is therefore the parity of the sums of the data blocks at the same places. So digests are shards of a group, 256
//! times smaller, and the code that made the parities verifies them.
//!
//! **Why it is sound.** Take the parity of the present data, XORed with the present parity. Its blocks are zeros where
//! the group is whole, and others where something is wrong. The digests agree only if those blocks cancel in every
//! bucket of every row. Within 4 MiB no two blocks have the same column (a random permutation of 2^16 numbers; a row's
//! bucket is four bits of it). Damage to one, two or three blocks, of whatever content, is therefore always found: in
//! some row one of them is alone in its bucket. Four blocks that are wrong by the same bits cancel in a row with
//! probability 0.011, and in four rows with 1.6e-8: the worst case. Large damage, such as a shard that is another or an
//! older one, cancels with about 2^-60. Each scrub has a new seed that cannot be predicted, so the next scrub finds
//! what one scrub missed.
//!
//! **Sums.** Digests of one scrub may be [added](Digest::add). The sum of the shards at one place of many groups of the
//! same shape is a shard of a group, too. So one digest of 4 KiB vouches for all of them. Equal damage to several
//! groups at the same places would cancel in a sum. So the columns of each group are [turned](Digesting::begin_turned)
//! by another number.
//!
//! **Limits.** Digests cannot find a group that is consistent but wrong. All its shards may be of an older generation.
//! Shards may be exchanged in a group whose parity is their XOR, which is the same in any order. [`crate::scrub`]
//! therefore compares lengths (a truncated shard may have ended in zeros) and checksums with the [map](crate::map) as
//! well.

use std::fmt;
use std::sync::Arc;

use skytether_common::{Error, Result};

use crate::code::{BLOCK, decode, matches, parity_len};
use crate::random::Random;
use crate::scheme::Code;

/// Rows of a digest.
pub const ROWS: usize = 4;
/// Sums in each row.
pub const BUCKETS: usize = 16;
/// Bytes of the sums.
const SUMS: usize = ROWS * BUCKETS * BLOCK;
/// Bytes of a digest as it travels: 4,112, which is 0.39% of 1 MiB.
pub const DIGEST_BYTES: usize = 16 + SUMS;

/// Blocks that have columns of their own.
const COLUMNS: usize = 1 << 16;

/// A block as words.
type Words = [u64; BLOCK / 8];

/// Which blocks go into which sums, for one seed; cheap to clone. Its 128 KiB take a fraction of a millisecond to
/// make: make one per scrub.
#[derive(Clone)]
pub struct Digesting {
    seed: u64,
    /// A permutation of all numbers of 16 bits: four bits for each row.
    columns: Arc<[u16]>,
}

impl fmt::Debug for Digesting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digesting").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Digesting {
    /// Digests with `seed`, which all drives of a scrub share, and no two scrubs.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut columns: Vec<u16> = (0..=u16::MAX).collect();
        Random::new(seed).shuffle(&mut columns);
        Self { seed, columns: columns.into() }
    }

    /// A digest to be fed with a shard's bytes.
    #[must_use]
    pub fn begin(&self) -> Digester {
        self.begin_turned(0)
    }

    /// The same, with the columns of blocks moved on by `turn`. Digests of one group's shards are comparable if they
    /// have the same turn.
    #[must_use]
    pub fn begin_turned(&self, turn: u16) -> Digester {
        Digester { of: self.clone(), turn, sums: vec![[0; BLOCK / 8]; ROWS * BUCKETS], partial: [0; BLOCK], len: 0 }
    }

    /// The digest of a whole shard.
    #[must_use]
    pub fn digest(&self, shard: &[u8]) -> Digest {
        let mut digester = self.begin();
        digester.update(shard);
        digester.finish()
    }

    /// The columns of blocks from `first` on, as many as follow on each other before the next multiple of [`COLUMNS`],
    /// and what is XORed to each.
    fn columns(&self, first: u64, turn: u16) -> (&[u16], u16) {
        let (lap, within) = (first / COLUMNS as u64, (first % COLUMNS as u64) as usize);
        let at = (within + usize::from(turn)) % COLUMNS;
        let end = COLUMNS.min(at + COLUMNS - within);
        let turned = if lap == 0 { 0 } else { Random::new(self.seed ^ lap.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next() as u16 };
        (&self.columns[at..end], turned)
    }
}

/// A digest while the bytes of its shard come in.
#[derive(Debug, Clone)]
pub struct Digester {
    of: Digesting,
    turn: u16,
    sums: Vec<Words>,
    /// The block that was begun, of `len % 64` bytes.
    partial: [u8; BLOCK],
    len: u64,
}

impl Digester {
    /// More bytes of the shard, in order.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let held = (self.len % BLOCK as u64) as usize;
        if held > 0 {
            let (more, rest) = bytes.split_at(bytes.len().min(BLOCK - held));
            self.partial[held..held + more.len()].copy_from_slice(more);
            self.len += more.len() as u64;
            if held + more.len() < BLOCK {
                return;
            }
            let block = self.partial;
            self.add(self.len / BLOCK as u64 - 1, &[block]);
            bytes = rest;
        }
        let (blocks, tail) = bytes.as_chunks::<BLOCK>();
        self.add(self.len / BLOCK as u64, blocks);
        self.partial[..tail.len()].copy_from_slice(tail);
        self.len += bytes.len() as u64;
    }

    /// Adds whole blocks; `first` is the place of the first one in the shard.
    fn add(&mut self, mut first: u64, mut blocks: &[[u8; BLOCK]]) {
        // Rows one by one, so that the compiler knows that all indexes are good.
        let Some(sums) = self.sums.first_chunk_mut::<{ ROWS * BUCKETS }>() else { return };
        while !blocks.is_empty() {
            let (columns, turned) = self.of.columns(first, self.turn);
            let (now, later) = blocks.split_at(blocks.len().min(columns.len()));
            for (block, column) in now.iter().zip(columns) {
                let mut words: Words = [0; BLOCK / 8];
                for (word, bytes) in words.iter_mut().zip(block.as_chunks::<8>().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
                let column = usize::from(column ^ turned);
                for row in 0..ROWS {
                    let sum = &mut sums[row * BUCKETS + (column >> (4 * row) & (BUCKETS - 1))];
                    for (sum, word) in sum.iter_mut().zip(&words) {
                        *sum ^= word;
                    }
                }
            }
            first += now.len() as u64;
            blocks = later;
        }
    }

    /// The digest of all bytes so far: that of a shard that is padded with zeros has the same sums.
    #[must_use]
    pub fn finish(mut self) -> Digest {
        let held = (self.len % BLOCK as u64) as usize;
        if held > 0 {
            let mut block = [0; BLOCK];
            block[..held].copy_from_slice(&self.partial[..held]);
            self.add(self.len / BLOCK as u64, &[block]);
        }
        Digest { seed: self.of.seed, len: self.len, sums: self.sums.iter().flatten().flat_map(|word| word.to_le_bytes()).collect() }
    }
}

/// The digest of a shard.
#[derive(Clone, PartialEq, Eq)]
pub struct Digest {
    seed: u64,
    len: u64,
    sums: Box<[u8]>,
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digest").field("seed", &self.seed).field("len", &self.len).finish_non_exhaustive()
    }
}

impl Digest {
    /// The shard's length in bytes.
    #[must_use]
    pub fn shard_len(&self) -> u64 {
        self.len
    }

    /// Adds the digest of another shard of the same place in another group: the digest of their sum, as long as the
    /// longer one. What was added is taken out by adding it again.
    ///
    /// # Errors
    /// Invalid where they are of several seeds.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        if self.seed != other.seed {
            return Err(Error::invalid("digests of several scrubs can't be added"));
        }
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, other)| *sum ^= other);
        self.len = self.len.max(other.len);
        Ok(())
    }

    /// That of the same shard with zeros behind it, up to `len` bytes if that is more: all that is
    /// different is the length.
    #[must_use]
    pub fn padded(self, len: u64) -> Self {
        Self { len: self.len.max(len), ..self }
    }

    /// Its bytes in messages: u64 LE seed, u64 LE length of the shard, the sums row by row; [`DIGEST_BYTES`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.seed.to_le_bytes()[..], &self.len.to_le_bytes(), &self.sums].concat()
    }

    /// What [`Digest::to_bytes`] gave.
    ///
    /// # Errors
    /// Corrupt where the length is not that of a digest.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match bytes.split_first_chunk::<8>().and_then(|(seed, rest)| rest.split_first_chunk::<8>().map(|(len, sums)| (seed, len, sums))) {
            Some((seed, len, sums)) if sums.len() == SUMS => Ok(Self { seed: u64::from_le_bytes(*seed), len: u64::from_le_bytes(*len), sums: sums.into() }),
            _ => Err(Error::corrupt(format!("a digest has {DIGEST_BYTES} bytes, but not {}", bytes.len()))),
        }
    }
}

/// Whether the digests of a group show that its parities match its data; all in the group's order. The [module](self)
/// says which damage they show.
///
/// # Errors
/// Invalid where numbers do not fit the code, or digests are of several seeds.
pub fn consistent(code: Code, data: &[Digest], parity: &[Digest]) -> Result<bool> {
    check_seeds(data, parity)?;
    Ok(lengths_fit(code, data, parity) && matches(code, &sums(data), &sums(parity))?)
}

/// The shards that may be damaged (their places, data before parity). Another content of any one of them alone would
/// make the group consistent.
///
/// With M = 1 these are all shards, wherever the damage is. With M >= 2 it is the damaged shard if there is only one,
/// and none if there are more. None as well if the group is consistent or the lengths do not fit.
///
/// # Errors
/// As [`consistent`].
pub fn suspects(code: Code, data: &[Digest], parity: &[Digest]) -> Result<Vec<usize>> {
    if consistent(code, data, parity)? || !lengths_fit(code, data, parity) {
        return Ok(Vec::new());
    }
    let all = [sums(data), sums(parity)].concat();
    let lens = vec![SUMS; data.len()];
    let mut found = Vec::new();
    for at in 0..all.len() {
        let others: Vec<Option<&[u8]>> = all.iter().enumerate().map(|(other, sums)| (other != at).then_some(*sums)).collect();
        let [right] = &decode(code, &lens, &others, &[at])?[..] else { continue };
        let mended: Vec<&[u8]> = others.iter().map(|sums| sums.unwrap_or(right)).collect();
        let (data, parity) = mended.split_at(data.len());
        if matches(code, data, parity)? {
            found.push(at);
        }
    }
    Ok(found)
}

fn check_seeds(data: &[Digest], parity: &[Digest]) -> Result<()> {
    let mut seeds = data.iter().chain(parity).map(|digest| digest.seed);
    let first = seeds.next();
    if seeds.all(|seed| Some(seed) == first) { Ok(()) } else { Err(Error::invalid("digests of several scrubs can't be compared")) }
}

fn lengths_fit(code: Code, data: &[Digest], parity: &[Digest]) -> bool {
    let longest = data.iter().map(|digest| digest.len).max().unwrap_or(0);
    let right = usize::try_from(longest).map(|longest| parity_len(code, longest) as u64);
    parity.iter().all(|digest| Ok(digest.len) == right)
}

fn sums(digests: &[Digest]) -> Vec<&[u8]> {
    digests.iter().map(|digest| &digest.sums[..]).collect()
}
