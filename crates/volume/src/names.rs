//! Names of volumes, the keys that follow from them, and what `--volume NAME=SIZE` says.
//!
//! | what | key |
//! |---|---|
//! | the next number of a volume | `~vol/~next` |
//! | header record of a volume | `~vol/<name>/header` |
//! | extent `n` | `~vol/<name>/x/<n>`, twelve lower-case hexadecimal digits |
//! | header record of a snapshot | `~vol/<name>/s/<snapshot>/header` |
//! | extent `n` of a snapshot | `~vol/<name>/s/<snapshot>/x/<n>` |
//!
//! `~` begins no name of a domain. So listing, garbage collection and scrubs of data sets leave these keys alone.

use std::fmt;
use std::str::FromStr;

use skytether_common::{Error, Key, Result};

use crate::device::PHYSICAL;

/// With what all keys of volumes begin.
pub const PREFIX: &str = "~vol/";

/// The longest name of a volume or snapshot, in bytes.
pub const MAX_NAME: usize = 64;

/// The largest volume, in bytes: 64 TiB.
pub const MAX_SIZE: u64 = 64 << 40;

/// The name of a volume or of a snapshot: letters, digits, `-`, `_` and `.`, at most [`MAX_NAME`], beginning with a
/// letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);

impl VolumeName {
    /// Checks `text`.
    ///
    /// # Errors
    /// `Invalid`, with the rule.
    pub fn new(text: &str) -> Result<Self> {
        let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if text.len() <= MAX_NAME && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric()) && text.bytes().all(good) {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(MAX_NAME + 8).collect();
        Err(Error::invalid(format!(
            "{shown:?} is no name of a volume: use at most {MAX_NAME} letters, digits, '-', '_' and '.', beginning with a letter or digit"
        )))
    }

    /// The name's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The prefix of all keys of this volume.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("{PREFIX}{}/", self.0)
    }

    /// The prefix of all keys of a snapshot.
    #[must_use]
    pub fn snapshot_prefix(&self, snapshot: &VolumeName) -> String {
        format!("{}s/{}/", self.prefix(), snapshot.0)
    }

    /// The prefix of all snapshots.
    #[must_use]
    pub fn snapshots_prefix(&self) -> String {
        format!("{}s/", self.prefix())
    }
}

impl FromStr for VolumeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of the header record below `prefix`.
///
/// # Errors
/// None for the prefixes of [`VolumeName`].
pub fn header_key(prefix: &str) -> Result<Key> {
    Key::new(format!("{prefix}header"))
}

/// The prefix of the extents below `prefix`.
#[must_use]
pub fn extents_prefix(prefix: &str) -> String {
    format!("{prefix}x/")
}

/// The key of extent `number` below `prefix`.
///
/// # Errors
/// None for the prefixes of [`VolumeName`].
pub fn extent_key(prefix: &str, number: u64) -> Result<Key> {
    Key::new(format!("{prefix}x/{number:012x}"))
}

/// The number of the extent that `key` has below `prefix`.
#[must_use]
pub fn extent_number(prefix: &str, key: &Key) -> Option<u64> {
    let digits = key.as_str().strip_prefix(prefix)?.strip_prefix("x/")?;
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() == 12 && digits.bytes().all(is_hex) { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// `NAME=SIZE`: a volume that is to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Its name.
    pub name: VolumeName,
    /// Its size in bytes.
    pub size: u64,
}

impl FromStr for VolumeSpec {
    type Err = Error;

    /// Reads `NAME=SIZE`, with a size as [`parse_size`] reads it.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("{:?} is no volume: write NAME=SIZE, for example disk=10GiB", text.chars().take(100).collect::<String>()));
        let (name, size) = text.split_once('=').ok_or_else(wrong)?;
        let (name, size) = (VolumeName::new(name)?, parse_size(size)?);
        check_size(&name, size)?;
        Ok(Self { name, size })
    }
}

/// `Invalid` where a volume can't have `size` bytes.
pub(crate) fn check_size(name: &VolumeName, size: u64) -> Result<()> {
    if size == 0 || size > MAX_SIZE || !size.is_multiple_of(PHYSICAL.into()) {
        return Err(Error::invalid(format!("volume {name}: {size} bytes are no size: use a multiple of {PHYSICAL}, at most 64 TiB")));
    }
    Ok(())
}

/// Bytes of `text`: a whole number and a unit. `K`, `M`, `G` and `T`, with or without `iB`, are powers of 1,024; `kB`,
/// `MB`, `GB` and `TB` are powers of 1,000; `B` or none is bytes. The case of letters does not count.
///
/// # Errors
/// `Invalid` for other texts, and beyond 64 bits.
pub fn parse_size(text: &str) -> Result<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: Option<u64> = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        "t" | "tib" => Some(1 << 40),
        "kb" => Some(1000),
        "mb" => Some(1_000_000),
        "gb" => Some(1_000_000_000),
        "tb" => Some(1_000_000_000_000),
        _ => None,
    };
    let wrong = || Error::invalid(format!("{:?} is no size: write for example 512MiB or 10G", text.chars().take(40).collect::<String>()));
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(factor.ok_or_else(wrong)?).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_units() {
        for (text, bytes) in [("10G", 10u64 << 30), ("512MiB", 512 << 20), ("4096", 4096), ("1 t", 1 << 40), ("3kB", 3000), ("2GB", 2_000_000_000)] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "G", "1.5G", "-1", "10X", "99999999999T", "0x10"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn volumes_are_names_with_sizes() {
        let spec: VolumeSpec = "db-1.a_b=1MiB".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.size), ("db-1.a_b", 1 << 20));
        let long = "a".repeat(MAX_NAME + 1);
        for text in ["a", "=1G", "a/b=1G", "..=1G", "a b=1G", "a=0", "a=100", "a=65T", &format!("{long}=1G"), "~=1G", "ä=1G"] {
            assert!(text.parse::<VolumeSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn extent_keys_are_read_back() {
        let prefix = VolumeName::new("a").unwrap().prefix();
        for number in [0, 1, 0xabc_def0, (1 << 48) - 1] {
            assert_eq!(extent_number(&prefix, &extent_key(&prefix, number).unwrap()), Some(number));
        }
        for key in ["~vol/a/header", "~vol/a/x/1", "~vol/b/x/000000000001", "~vol/a/x/00000000000G", "~vol/a/s/b/x/000000000001"] {
            assert_eq!(extent_number(&prefix, &Key::new(key).unwrap()), None, "{key}");
        }
    }
}
