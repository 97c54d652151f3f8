//! Reed-Solomon over shards of unequal length.
//!
//! Systematic: data shards are stored as they are. The code works on 16-bit symbols, each place in the shards by
//! itself; symbols lie in blocks of 64 bytes, the low bytes of 32 symbols before their high bytes. Data shards count as
//! padded with zeros to the [`parity_len`]: that of the longest, rounded up to whole blocks. So the meaning of a block
//! depends only on its place.
//!
//! The content of parity shards is part of the format, and must not change:
//! - for K = 1: copies of the data shard, with its exact length;
//! - for M = 1: the XOR of the data shards (the other rule gives the same);
//! - else: the high-rate code of `reed-solomon-simd` 3 (Leopard-RS over GF(2^16), <https://github.com/catid/leopard>).
//!   A group of fewer than K data shards has the parity of one whose missing shards are all zeros.
//!
//! Work goes strip by strip, so that it stays in a core's cache. Only the strips in which shards end are padded.

use bytes::Bytes;
use reed_solomon_simd::engine::{DefaultEngine, Engine, GF_MODULUS, GfElement, tables};
use reed_solomon_simd::rate::{HighRateEncoder, RateEncoder};
use skytether_common::{Error, Result};

use crate::scheme::Code;

/// Bytes of a block: the parity of each follows from the blocks at the same place alone.
pub const BLOCK: usize = 64;

/// Bytes of each shard that are worked on at a time: those of a small group together fit into a core's first cache.
const STRIP: usize = 4 << 10;

/// The most bytes of a shard: 4 GiB, so that no sum of lengths is too large for a number.
pub const MAX_SHARD: u64 = 1 << 32;

/// Bytes of the parity shards of a group whose longest data shard has `longest`.
#[must_use]
pub fn parity_len(code: Code, longest: usize) -> usize {
    if code.copies() { longest } else { longest.checked_next_multiple_of(BLOCK).unwrap_or(usize::MAX) }
}

/// The parity shards of a group with these data shards (1 to K of them, in the group's order),
/// each [`parity_len`] bytes.
///
/// # Errors
/// Invalid where there is no data shard, or more than K.
pub fn encode<S: AsRef<[u8]>>(code: Code, data: &[S]) -> Result<Vec<Bytes>> {
    check_count(code, data.len())?;
    if code.copies() {
        let copy = data.first().map(|only| Bytes::copy_from_slice(only.as_ref())).unwrap_or_default();
        return Ok(vec![copy; code.parity()]);
    }
    let data: Vec<Option<&[u8]>> = data.iter().map(|shard| Some(shard.as_ref())).collect();
    let len = parity_len(code, longest(data.iter().flatten().map(|shard| shard.len())));
    let mut parity: Vec<Vec<u8>> = (0..code.parity()).map(|_| Vec::with_capacity(len)).collect();
    let mut strips = Strips::new(code, data.len())?;
    for from in (0..len).step_by(STRIP) {
        let size = STRIP.min(len - from);
        strips.encode(&data, from, size, |at, strip| {
            if let Some(parity) = parity.get_mut(at) {
                parity.extend_from_slice(strip);
            }
        })?;
    }
    Ok(parity.into_iter().map(Bytes::from).collect())
}

/// Wanted shards of a group, from any that are present and at least as many as the group has data shards.
///
/// Shards are in the group's order, data before parity: `lens` has the length of each data shard, and so how many there
/// are; `shards` those that are present, `None` for the others, for all data shards and all M parity shards. `wanted`
/// are places in `shards`; the result has one entry for each, a shard that is present among them being copied.
///
/// # Errors
/// Invalid where numbers or lengths do not fit the group; unavailable where too few shards are present.
pub fn decode(code: Code, lens: &[usize], shards: &[Option<&[u8]>], wanted: &[usize]) -> Result<Vec<Bytes>> {
    check_count(code, lens.len())?;
    let (count, parity) = (lens.len(), code.parity());
    if shards.len() != count + parity {
        return Err(Error::invalid(format!("{} places for shards in a group of {count} data and {parity} parity shards", shards.len())));
    }
    let len = parity_len(code, longest(lens.iter().copied()));
    let len_of = |at: usize| lens.get(at).copied().unwrap_or(len);
    for (at, shard) in shards.iter().enumerate() {
        if let Some(shard) = shard
            && shard.len() != len_of(at)
        {
            return Err(Error::invalid(format!("shard {at} of a group has {} bytes, but {} are right", shard.len(), len_of(at))));
        }
    }
    if let Some(at) = wanted.iter().find(|at| **at >= shards.len()) {
        return Err(Error::invalid(format!("shard {at} is wanted of a group of {}", shards.len())));
    }
    let present = shards.iter().flatten().count();
    if present < count && wanted.iter().any(|at| shards[*at].is_none()) {
        return Err(Error::unavailable(format!("{present} shards of a group of {code} are there, but {count} are needed")));
    }
    if code.copies() {
        let any = shards.iter().flatten().next();
        return Ok(wanted.iter().map(|at| Bytes::copy_from_slice(shards[*at].or(any.copied()).unwrap_or_default())).collect());
    }

    let lost: Vec<usize> = wanted.iter().copied().filter(|at| shards[*at].is_none()).collect();
    let mut found = if lost.is_empty() { Vec::new() } else { decode_lost(code, lens, len, shards, &lost)? };
    // The lost ones are in the order in which they were wanted.
    found.reverse();
    wanted
        .iter()
        .map(|at| match shards[*at] {
            Some(present) => Ok(Bytes::copy_from_slice(present)),
            None => found.pop().ok_or_else(|| Error::internal("a decoded shard is not there")),
        })
        .collect()
}

/// The `lost` shards of a group that has enough others, and parities of `len` bytes; see [`decode`].
fn decode_lost(code: Code, lens: &[usize], len: usize, shards: &[Option<&[u8]>], lost: &[usize]) -> Result<Vec<Bytes>> {
    let (count, parity) = (lens.len(), code.parity());
    let len_of = |at: usize| lens.get(at).copied().unwrap_or(len);
    let (data, parities) = shards.split_at(count);
    let missing: Vec<usize> = (0..count).filter(|at| data[*at].is_none()).collect();
    // As many equations as unknowns, any of them.
    let used: Vec<(usize, &[u8])> = parities.iter().enumerate().filter_map(|(at, shard)| shard.map(|shard| (at, shard))).take(missing.len()).collect();
    let factors = factors(code, count, &missing, &used.iter().map(|(at, _)| *at).collect::<Vec<_>>(), lost)?;

    let engine = DefaultEngine::new();
    let mut strips = Strips::new(code, count)?;
    let mut out: Vec<Vec<u8>> = lost.iter().map(|at| Vec::with_capacity(len_of(*at))).collect();
    let mut encoded = vec![[[0u8; BLOCK]; STRIP / BLOCK]; parity];
    let (mut sum, mut term) = ([[0u8; BLOCK]; STRIP / BLOCK], [[0u8; BLOCK]; STRIP / BLOCK]);
    // Beyond the longest wanted shard there is nothing to decode.
    let end = longest(lost.iter().map(|at| len_of(*at)));
    for from in (0..end).step_by(STRIP) {
        let size = STRIP.min(len - from);
        let blocks = size / BLOCK;
        strips.encode(data, from, size, |at, strip| encoded[at].as_flattened_mut()[..size].copy_from_slice(strip))?;
        // What the parities would be if the missing shards were zeros, plus what they are: the
        // share of the missing shards.
        for (at, shard) in &used {
            xor(&mut encoded[*at].as_flattened_mut()[..size], &shard[from..from + size]);
        }
        for ((at, row), out) in lost.iter().zip(&factors).zip(&mut out) {
            sum[..blocks].fill([0; BLOCK]);
            if let Some(own) = at.checked_sub(count) {
                sum[..blocks].copy_from_slice(&encoded[own][..blocks]);
            }
            for ((used, _), factor) in used.iter().zip(row) {
                match factor {
                    Factor::Zero => {}
                    Factor::One => xor(sum[..blocks].as_flattened_mut(), encoded[*used][..blocks].as_flattened()),
                    Factor::Power(log) => {
                        term[..blocks].copy_from_slice(&encoded[*used][..blocks]);
                        engine.mul(&mut term[..blocks], *log);
                        xor(sum[..blocks].as_flattened_mut(), term[..blocks].as_flattened());
                    }
                }
            }
            let rest = len_of(*at).saturating_sub(from).min(size);
            out.extend_from_slice(&sum.as_flattened()[..rest]);
        }
    }
    Ok(out.into_iter().map(Bytes::from).collect())
}

/// Whether these parities belong to the data. As [`encode`], but only one strip is kept in memory.
///
/// # Errors
/// Invalid where numbers do not fit; a parity of a wrong length is merely no match.
pub fn matches(code: Code, data: &[&[u8]], parity: &[&[u8]]) -> Result<bool> {
    check_count(code, data.len())?;
    if parity.len() != code.parity() {
        return Err(Error::invalid(format!("{} parity shards of a group of {code}", parity.len())));
    }
    let len = parity_len(code, longest(data.iter().map(|shard| shard.len())));
    if parity.iter().any(|shard| shard.len() != len) {
        return Ok(false);
    }
    if code.copies() {
        return Ok(parity.iter().all(|copy| data.first() == Some(copy)));
    }
    let data: Vec<Option<&[u8]>> = data.iter().copied().map(Some).collect();
    let mut strips = Strips::new(code, data.len())?;
    let mut same = true;
    for from in (0..len).step_by(STRIP) {
        let size = STRIP.min(len - from);
        strips.encode(&data, from, size, |at, strip| same &= parity.get(at).is_some_and(|parity| &parity[from..from + size] == strip))?;
    }
    Ok(same)
}

fn check_count(code: Code, count: usize) -> Result<()> {
    if (1..=code.data()).contains(&count) { Ok(()) } else { Err(Error::invalid(format!("{count} data shards in a group of {code}"))) }
}

fn longest(lens: impl Iterator<Item = usize>) -> usize {
    lens.max().unwrap_or(0)
}

fn of_library(error: reed_solomon_simd::Error) -> Error {
    Error::internal("the code does not take what it was given").with_source(error)
}

/// `to ^= from`, as far as both go.
fn xor(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to ^= from);
}

/// `to ^= a ^ b`.
fn xor2(to: &mut [u8], a: &[u8], b: &[u8]) {
    to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to ^= a ^ b);
}

/// Encodes one strip after the other, in room that it keeps.
struct Strips {
    count: usize,
    parity: usize,
    /// Where M > 1.
    library: Option<HighRateEncoder<DefaultEngine>>,
    sum: Vec<u8>,
    padded: Vec<u8>,
}

impl Strips {
    fn new(code: Code, count: usize) -> Result<Self> {
        let library = match code.parity() {
            1 => None,
            parity => Some(HighRateEncoder::new(count, parity, STRIP, DefaultEngine::new(), None).map_err(of_library)?),
        };
        Ok(Self { count, parity: code.parity(), library, sum: vec![0; STRIP], padded: vec![0; STRIP] })
    }

    /// Gives `each` the strip `from .. from + size` of each parity shard (its place among them, its bytes); missing
    /// data shards count as zeros. `size` is whole blocks, and at most [`STRIP`].
    fn encode(&mut self, data: &[Option<&[u8]>], from: usize, size: usize, mut each: impl FnMut(usize, &[u8])) -> Result<()> {
        let strip = |shard: &Option<&'_ [u8]>| -> usize { shard.map_or(0, |shard| shard.len().saturating_sub(from).min(size)) };
        let Some(library) = &mut self.library else {
            let sum = &mut self.sum[..size];
            let mut parts = data.iter().filter_map(|shard| shard.map(|s| &s[from.min(s.len())..(from + size).min(s.len())])).filter(|part| !part.is_empty());
            match parts.next() {
                Some(first) => {
                    sum[..first.len()].copy_from_slice(first);
                    sum[first.len()..].fill(0);
                }
                None => sum.fill(0),
            }
            while let Some(a) = parts.next() {
                match parts.next() {
                    Some(b) if b.len() == a.len() => xor2(sum, a, b),
                    Some(b) => {
                        xor(sum, a);
                        xor(sum, b);
                    }
                    None => xor(sum, a),
                }
            }
            each(0, sum);
            return Ok(());
        };
        library.reset(self.count, self.parity, size).map_err(of_library)?;
        for shard in data {
            let there = strip(shard);
            match shard {
                Some(shard) if there == size => library.add_original_shard(&shard[from..from + size]),
                _ => {
                    if let Some(shard) = shard
                        && there > 0
                    {
                        self.padded[..there].copy_from_slice(&shard[from..from + there]);
                    }
                    self.padded[there..size].fill(0);
                    library.add_original_shard(&self.padded[..size])
                }
            }
            .map_err(of_library)?;
        }
        let encoded = library.encode().map_err(of_library)?;
        encoded.recovery_iter().enumerate().for_each(|(at, strip)| each(at, strip));
        Ok(())
    }
}

/// What a strip is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Factor {
    Zero,
    One,
    /// By its logarithm in the library's field.
    Power(GfElement),
}

/// The library's field, GF(2^16).
struct Field {
    tables: &'static tables::ExpLog,
}

impl Field {
    fn new() -> Self {
        Self { tables: tables::get_exp_log() }
    }

    fn log(&self, a: GfElement) -> GfElement {
        self.tables.log[usize::from(a)]
    }

    fn times(&self, a: GfElement, b: GfElement) -> GfElement {
        if b == 0 { 0 } else { tables::mul(a, self.log(b), &self.tables.exp, &self.tables.log) }
    }

    /// Of anything but 0.
    fn inverse(&self, a: GfElement) -> GfElement {
        self.tables.exp[usize::from((GF_MODULUS - self.log(a)) % GF_MODULUS)]
    }

    fn factor(&self, a: GfElement) -> Factor {
        match (a, self.log(a)) {
            (0, _) => Factor::Zero,
            (_, 0 | GF_MODULUS) => Factor::One,
            (_, log) => Factor::Power(log),
        }
    }
}

/// Each lost shard as a sum of what the `used` parities have beyond those of the data that is there: its factor for
/// each of them. A lost parity's own such share is added by the caller.
fn factors(code: Code, count: usize, missing: &[usize], used: &[usize], lost: &[usize]) -> Result<Vec<Vec<Factor>>> {
    let field = Field::new();
    // Columns of the code's matrix: the parities of a data shard of ones alone.
    let mut columns = Vec::with_capacity(missing.len());
    let mut one = [0u8; BLOCK];
    one[..BLOCK / 2].fill(1);
    let mut strips = Strips::new(code, count)?;
    for missing in missing {
        let data: Vec<Option<&[u8]>> = (0..count).map(|at| (at == *missing).then_some(&one[..])).collect();
        let mut column = vec![0; code.parity()];
        strips.encode(&data, 0, BLOCK, |at, strip| column[at] = GfElement::from(strip[0]) | GfElement::from(strip[BLOCK / 2]) << 8)?;
        columns.push(column);
    }
    // Gauss-Jordan over [matrix | identity]: a row per used parity, a column per missing data shard.
    let n = missing.len();
    let mut rows: Vec<Vec<GfElement>> = used
        .iter()
        .enumerate()
        .map(|(row, parity)| (0..2 * n).map(|at| if at < n { columns[at][*parity] } else { GfElement::from(at - n == row) }).collect())
        .collect();
    for at in 0..n {
        let pivot =
            (at..n).find(|row| rows[*row][at] != 0).ok_or_else(|| Error::internal(format!("a code of {code} can't be solved for shards {missing:?}")))?;
        rows.swap(at, pivot);
        let inverse = field.inverse(rows[at][at]);
        rows[at].iter_mut().for_each(|value| *value = field.times(*value, inverse));
        let solved = rows[at].clone();
        for (other, row) in rows.iter_mut().enumerate() {
            let by = row[at];
            if other != at && by != 0 {
                row.iter_mut().zip(&solved).for_each(|(value, solved)| *value ^= field.times(by, *solved));
            }
        }
    }
    let row_of = |lost: &usize| -> Vec<GfElement> {
        match lost.checked_sub(count) {
            None => missing.iter().position(|missing| missing == lost).map_or_else(|| vec![0; n], |at| rows[at][n..].to_vec()),
            Some(parity) => (0..n).map(|used| (0..n).fold(0, |sum, at| sum ^ field.times(columns[at][parity], rows[at][n + used]))).collect(),
        }
    };
    Ok(lost.iter().map(|lost| row_of(lost).into_iter().map(|value| field.factor(value)).collect()).collect())
}
