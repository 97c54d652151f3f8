//! The record of all code groups of a partition set: the *code map*.
//!
//! Its bytes are `"SKYCODE\0"`, u32 LE format version (1), u32 LE CRC-32C of all that follows, and then LEB128 varints.
//! Varints that may be negative are zigzag coded.
//!
//! 1. K, M, and the number of groups.
//! 2. For each group: the number of its data shards, these shards, and its M parity shards.
//!
//! A shard has these numbers:
//! - twice its drive, plus one if its home is another drive;
//! - its home, if that is another drive;
//! - its number, less the one after the last number of the same home and role;
//! - for a data shard its length, less the one before (0 at first); a parity's length follows from those;
//! - its CRC-32C as u32 LE.
//!
//! That is about 10 bytes per slice.

use std::collections::BTreeMap;

use skytether_common::checksum::crc32c;
use skytether_common::{Error, Result};

use crate::code::{MAX_SHARD, parity_len};
use crate::scheme::Code;

const MAGIC: &[u8; 8] = b"SKYCODE\0";
const VERSION: u32 = 1;
/// Bytes before what the checksum covers.
const HEAD: usize = 16;
/// The fewest bytes of a shard in the map.
const LEAST_SHARD: usize = 6;

/// A shard, where it is and what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Its drive.
    pub drive: u32,
    /// The partition (slot) that its key names: that of the drive on which it was first written. It stays what it
    /// is when the shard moves.
    pub home: u32,
    /// Its number in that partition; data and parities are numbered apart.
    pub number: u32,
    /// Bytes.
    pub len: u64,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
}

/// What a shard is in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A slice.
    Data,
    /// Made by the code.
    Parity,
}

/// A group's shards in the order in which they are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Members<'a> {
    /// Data shards.
    pub data: &'a [Shard],
    /// Parity shards.
    pub parity: &'a [Shard],
    all: &'a [Shard],
}

impl<'a> Members<'a> {
    fn new(all: &'a [Shard], parities: usize) -> Self {
        let (data, parity) = all.split_at(all.len().saturating_sub(parities));
        Self { data, parity, all }
    }

    /// Data, then parity: places in this are places in [`decode`](crate::code::decode).
    #[must_use]
    pub fn all(self) -> &'a [Shard] {
        self.all
    }

    /// Whether one of the shards is on `drive`.
    #[must_use]
    pub fn is_on(self, drive: u32) -> bool {
        self.all.iter().any(|shard| shard.drive == drive)
    }

    /// Lengths of the data shards, as [`decode`](crate::code::decode) wants them.
    #[must_use]
    pub fn lens(self) -> Vec<usize> {
        self.data.iter().map(|shard| usize::try_from(shard.len).unwrap_or(usize::MAX)).collect()
    }
}

/// A shard's place in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Which group.
    pub group: u32,
    /// Which of its shards, data before parity.
    pub shard: u32,
}

/// All groups of a partition set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeMap {
    code: Code,
    shards: Vec<Shard>,
    /// Where each group ends in `shards`.
    ends: Vec<u32>,
    /// Places, by role, home and number.
    order: [Vec<Place>; 2],
}

impl CodeMap {
    /// A map of these groups, each as its data and its parity shards.
    ///
    /// # Errors
    /// Invalid where a group has not 1 to K data and M parity shards on distinct drives, a parity has not the length
    /// that follows from the data, a shard has more than [`MAX_SHARD`] bytes or is named twice.
    pub fn new<'a>(code: Code, groups: impl IntoIterator<Item = (&'a [Shard], &'a [Shard])>) -> Result<Self> {
        let mut map = Self { code, shards: Vec::new(), ends: Vec::new(), order: [Vec::new(), Vec::new()] };
        for (data, parity) in groups {
            if parity.len() != code.parity() {
                let has = format!("group {} has {} data and {} parity shards", map.ends.len(), data.len(), parity.len());
                return Err(Error::invalid(format!("{has}, which is not within {code}")));
            }
            map.shards.extend_from_slice(data);
            map.shards.extend_from_slice(parity);
            map.close_group()?;
        }
        map.index()?;
        Ok(map)
    }

    /// What was added to the shards is a group.
    fn close_group(&mut self) -> Result<()> {
        let number = self.ends.len();
        let wrong = |what: &str| Error::invalid(format!("group {number} of a code map {what}"));
        let from = self.ends.last().map_or(0, |end| *end as usize);
        let members = Members::new(&self.shards[from..], self.code.parity());
        if !(1..=self.code.data()).contains(&members.data.len()) {
            return Err(wrong(&format!("has {} data shards, but {} has 1 to {}", members.data.len(), self.code, self.code.data())));
        }
        let mut drives: Vec<u32> = members.all.iter().map(|shard| shard.drive).collect();
        drives.sort_unstable();
        if let Some(twice) = drives.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(wrong(&format!("has two shards on drive {}", twice[0])));
        }
        let longest = members.data.iter().map(|shard| shard.len).max().unwrap_or(0);
        let right = of_parity(self.code, longest)?;
        if let Some(other) = members.parity.iter().find(|shard| shard.len != right) {
            return Err(wrong(&format!("has a parity of {} bytes instead of {right}", other.len)));
        }
        self.ends.push(u32::try_from(self.shards.len()).map_err(|_| Error::exhausted("a code map has room for 2^32 shards"))?);
        Ok(())
    }

    fn index(&mut self) -> Result<()> {
        let mut named = [Vec::new(), Vec::new()];
        for (group, members) in self.iter().enumerate() {
            for (at, shard) in members.all.iter().enumerate() {
                named[usize::from(at >= members.data.len())].push((shard.home, shard.number, Place { group: group as u32, shard: at as u32 }));
            }
        }
        for (named, what) in named.iter_mut().zip(["slice", "parity"]) {
            named.sort_unstable();
            if let Some((home, number, _)) = named.windows(2).find(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1)).map(|pair| pair[0]) {
                return Err(Error::invalid(format!("{what} {number} of partition {home} is twice in a code map")));
            }
        }
        self.order = named.map(|named| named.into_iter().map(|(_, _, place)| place).collect());
        Ok(())
    }

    /// The code of all groups.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// How many groups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A group's shards.
    #[must_use]
    pub fn group(&self, group: usize) -> Option<Members<'_>> {
        let end = *self.ends.get(group)? as usize;
        let from = group.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(Members::new(&self.shards[from..end], self.code.parity()))
    }

    /// All groups, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Members<'_>> {
        (0..self.ends.len()).map(|group| {
            let from = group.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
            Members::new(&self.shards[from..self.ends[group] as usize], self.code.parity())
        })
    }

    /// The shard at a place.
    #[must_use]
    pub fn shard(&self, place: Place) -> Option<&Shard> {
        self.group(place.group as usize)?.all.get(place.shard as usize)
    }

    /// Where the shard of this home and number is in the map. Slice to group: `find(Role::Data, slot, n)`.
    #[must_use]
    pub fn find(&self, role: Role, home: u32, number: u32) -> Option<Place> {
        let places = &self.order[usize::from(role == Role::Parity)];
        let at = places.binary_search_by_key(&Some((home, number)), |place| self.shard(*place).map(|shard| (shard.home, shard.number)));
        at.ok().and_then(|at| places.get(at).copied())
    }

    /// The same map after shards moved to other drives.
    ///
    /// # Errors
    /// Invalid where there is no such shard, or two shards of a group would be on the same drive.
    pub fn moved(&self, to: impl IntoIterator<Item = (Place, u32)>) -> Result<Self> {
        let mut moved = self.clone();
        for (place, drive) in to {
            let from = (place.group as usize).checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| *end as usize);
            if self.shard(place).is_none() {
                return Err(Error::invalid(format!("shard {} of group {} is not in the code map", place.shard, place.group)));
            }
            moved.shards[from + place.shard as usize].drive = drive;
        }
        moved.ends.clear();
        let shards = std::mem::take(&mut moved.shards);
        let mut from = 0;
        for end in &self.ends {
            moved.shards.extend_from_slice(&shards[from..*end as usize]);
            from = *end as usize;
            moved.close_group()?;
        }
        Ok(moved)
    }

    /// The map as bytes; see the [module](self).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + 32 + self.shards.len() * 10);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        [self.code.data(), self.code.parity(), self.len()].into_iter().for_each(|n| put(&mut bytes, n as u64));
        let (mut next, mut len) = (Numbers::default(), 0);
        for group in self.iter() {
            put(&mut bytes, group.data.len() as u64);
            for (at, shard) in group.all.iter().enumerate() {
                let role = usize::from(at >= group.data.len());
                let moved = shard.home != shard.drive;
                put(&mut bytes, u64::from(shard.drive) << 1 | u64::from(moved));
                if moved {
                    put(&mut bytes, shard.home.into());
                }
                put(&mut bytes, zigzag(i64::from(shard.number).wrapping_sub(next.expected(role, shard.home))));
                next.was(role, shard.home, shard.number);
                if role == 0 {
                    put(&mut bytes, zigzag((shard.len as i64).wrapping_sub(len)));
                    len = shard.len as i64;
                }
                bytes.extend_from_slice(&shard.crc32c.to_le_bytes());
            }
        }
        let sum = crc32c(&bytes[HEAD..]);
        bytes[HEAD - 4..HEAD].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What [`CodeMap::to_bytes`] gave. Takes at most some twenty times as much memory as there are
    /// bytes, whatever they are.
    ///
    /// # Errors
    /// Unsupported for a later version; corrupt where the bytes are anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: &str| Error::corrupt(format!("a code map is damaged: {what}"));
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| corrupt("it is too short"))?;
        let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(|| corrupt("it is too short"))?;
        let (sum, body) = rest.split_first_chunk::<4>().ok_or_else(|| corrupt("it is too short"))?;
        if magic != MAGIC {
            return Err(corrupt("it does not begin as one"));
        }
        let version = u32::from_le_bytes(*version);
        if version == 0 {
            return Err(corrupt("its version is 0"));
        }
        if version != VERSION {
            return Err(Error::unsupported(format!("a code map is of version {version}, but only version {VERSION} is known here")));
        }
        if crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(corrupt("its checksum is not that of its bytes"));
        }
        // The checksum is no secret: what follows may still be anything.
        Self::from_body(&mut Reader(body)).map_err(|e| corrupt(e.message()))
    }

    fn from_body(from: &mut Reader<'_>) -> Result<Self> {
        let code = Code::new(from.small()? as usize, from.small()? as usize)?;
        let groups = from.number()?;
        let most = from.0.len() / (LEAST_SHARD * (1 + code.parity()));
        let groups =
            usize::try_from(groups).ok().filter(|groups| *groups <= most).ok_or_else(|| Error::invalid(format!("{groups} groups do not fit into it")))?;
        let mut map = Self { code, shards: Vec::new(), ends: Vec::with_capacity(groups), order: [Vec::new(), Vec::new()] };
        let (mut next, mut len) = (Numbers::default(), 0i64);
        for group in 0..groups {
            let data = from.number()?;
            let data = usize::try_from(data)
                .ok()
                .filter(|data| (1..=code.data()).contains(data))
                .ok_or_else(|| Error::invalid(format!("group {group} has {data} data shards")))?;
            let mut longest = 0;
            for at in 0..data + code.parity() {
                let role = usize::from(at >= data);
                let tagged = from.number()?;
                let drive = u32::try_from(tagged >> 1).map_err(|_| Error::invalid("a drive's number is too large"))?;
                let home = if tagged & 1 == 1 { from.small()? } else { drive };
                if tagged & 1 == 1 && home == drive {
                    return Err(Error::invalid("a shard is at home and is not"));
                }
                let number = next.expected(role, home).checked_add(unzigzag(from.number()?)).and_then(|n| u32::try_from(n).ok());
                let number = number.ok_or_else(|| Error::invalid("a shard's number is out of range"))?;
                next.was(role, home, number);
                if role == 0 {
                    len = len.checked_add(unzigzag(from.number()?)).filter(|len| *len >= 0).ok_or_else(|| Error::invalid("a length is out of range"))?;
                    longest = longest.max(len as u64);
                }
                let shard_len = if role == 0 { len as u64 } else { of_parity(code, longest)? };
                map.shards.push(Shard { drive, home, number, len: shard_len, crc32c: from.u32()? });
            }
            map.close_group()?;
        }
        if !from.0.is_empty() {
            return Err(Error::invalid(format!("{} bytes follow its end", from.0.len())));
        }
        map.index()?;
        Ok(map)
    }
}

/// Bytes of a group's parities.
fn of_parity(code: Code, longest: u64) -> Result<u64> {
    let len = usize::try_from(longest).ok().filter(|_| longest <= MAX_SHARD);
    len.map(|len| parity_len(code, len) as u64).ok_or_else(|| Error::invalid(format!("no shard has {longest} bytes, but {MAX_SHARD} at most")))
}

/// The numbers that shards are likely to have: one after the other, by role and home.
#[derive(Default)]
struct Numbers([BTreeMap<u32, i64>; 2]);

impl Numbers {
    fn expected(&self, role: usize, home: u32) -> i64 {
        self.0[role].get(&home).copied().unwrap_or(0)
    }

    fn was(&mut self, role: usize, home: u32, number: u32) {
        self.0[role].insert(home, i64::from(number) + 1);
    }
}

fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

fn put(bytes: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Result<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or_else(|| Error::invalid("it ends within a number"))?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                break;
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(Error::invalid("a number is too long"))
    }

    fn small(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| Error::invalid("a number is too large"))
    }

    fn u32(&mut self) -> Result<u32> {
        let (bytes, rest) = self.0.split_first_chunk::<4>().ok_or_else(|| Error::invalid("it ends within a checksum"))?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*bytes))
    }
}
