//! A scrub's verdict about a group, from the drives' reports about their shards rather than from the shards.

use skytether_common::{Error, Result};

use crate::digest::{Digest, consistent, suspects};
use crate::map::Members;
use crate::scheme::Code;

/// What a drive reports of a shard that it has read: about 4 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// CRC-32C of the bytes as they are.
    pub crc32c: u32,
    /// Their digest, which has their length.
    pub digest: Digest,
}

/// What is wrong with a group; places are data before parity, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All shards are there, are those of the map, and fit one another.
    Whole,
    /// These shards are missing or differ from the map: stale, exchanged, truncated or damaged. The others are right;
    /// up to M are repaired by decoding.
    Damaged(Vec<usize>),
    /// All shards match the map, but the parities do not match the data: they were made from other data, or the map has
    /// checksums of damaged bytes. The places are those of [`suspects`]: another content of any one alone would make
    /// the group whole. If a slice's own metadata vouches for it, it is none of them, and the parities must be computed
    /// again from it.
    Mismatched(Vec<usize>),
}

/// Judges a group by the reports of its shards, data before parity, `None` for a shard that is
/// not there or can't be read.
///
/// # Errors
/// Invalid where the number of reports is not that of the group's shards, or they are of several scrubs.
pub fn judge(code: Code, group: Members<'_>, reports: &[Option<Report>]) -> Result<Verdict> {
    if reports.len() != group.all().len() {
        return Err(Error::invalid(format!("{} reports of {} shards", reports.len(), group.all().len())));
    }
    let right =
        |(report, shard): (&Option<Report>, &crate::map::Shard)| report.as_ref().is_some_and(|r| r.crc32c == shard.crc32c && r.digest.shard_len() == shard.len);
    let damaged: Vec<usize> = reports.iter().zip(group.all()).enumerate().filter(|(_, pair)| !right(*pair)).map(|(at, _)| at).collect();
    if !damaged.is_empty() {
        return Ok(Verdict::Damaged(damaged));
    }
    let digests: Vec<Digest> = reports.iter().flatten().map(|report| report.digest.clone()).collect();
    let (data, parity) = digests.split_at(group.data.len());
    if consistent(code, data, parity)? { Ok(Verdict::Whole) } else { suspects(code, data, parity).map(Verdict::Mismatched) }
}
