//! Names of data sets and the keys that follow from them.
//!
//! | what | key |
//! |---|---|
//! | root record of a data set | `<domain>/<dataset>` |
//! | metadata slice of a partition | `<domain>/<dataset>/<partition>` |
//! | slice `n` of a partition | `<domain>/<dataset>/<partition>;<n>`, `n` dense from 0, eight digits |
//!
//! A partition is named `<generation>.<table>.<slot>`. The generation (16 hex digits) is new for each ingest. So an
//! ingest replaces a data set by writing new partitions next to the old ones and then exchanging the root record.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::detail::Detail;
use crate::error::{Error, Result};

/// The longest domain or data set name, in bytes.
pub const MAX_NAME: usize = 128;

/// A key in a drive's namespace: never empty, at most [`Key::MAX`] bytes, printable ASCII without white space.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    /// The longest key, in bytes (what Kinetic drives announce).
    pub const MAX: usize = 1024;

    /// Checks `text` and makes a key of it.
    ///
    /// # Errors
    /// Invalid where the text is empty, too long or holds anything but printable ASCII.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.is_empty() || text.len() > Self::MAX || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::invalid(format!("{:?} is no key: 1 to {} printable ASCII characters", text.chars().take(80).collect::<String>(), Self::MAX)));
        }
        Ok(Self(text))
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Key {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// The rule for the parts of a data set's name.
fn rule() -> String {
    format!("letters, digits, '_' and '-' (at most {MAX_NAME}), beginning with a letter, digit or '_'")
}

/// The part of a name that breaks the rule, and what it is.
fn wrong_part<'a>(domain: &'a str, dataset: &'a str) -> Option<(&'static str, &'a str)> {
    [("domain", domain), ("data set", dataset)].into_iter().find(|(_, part)| {
        let good = part.len() <= MAX_NAME
            && part.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        !good
    })
}

/// `part` without the quotes that SQL puts around it.
fn unquoted(part: &str) -> &str {
    part.strip_prefix('"').and_then(|p| p.strip_suffix('"')).unwrap_or(part)
}

/// `domain` and `dataset`; written `domain.dataset` or `domain/dataset`, each part perhaps quoted as in SQL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DatasetName {
    domain: String,
    dataset: String,
}

impl DatasetName {
    /// Checks both parts: letters, digits, `_` and `-`, beginning with a letter, a digit or `_`.
    ///
    /// # Errors
    /// Invalid, naming the part that is wrong.
    pub fn new(domain: impl Into<String>, dataset: impl Into<String>) -> Result<Self> {
        let (domain, dataset) = (domain.into(), dataset.into());
        match wrong_part(&domain, &dataset) {
            Some((what, part)) => Err(Error::invalid(format!("{part:?} is no {what} name: use {}", rule()))),
            None => Ok(Self { domain, dataset }),
        }
    }

    /// The group of data sets.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The name within the domain.
    #[must_use]
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// The key of the root record.
    #[must_use]
    pub fn root_key(&self) -> Key {
        Key(format!("{}/{}", self.domain, self.dataset))
    }

    /// The prefix that all keys of the data set's partitions share.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("{}/{}/", self.domain, self.dataset)
    }
}

impl FromStr for DatasetName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            |why: String| Error::invalid(format!("{text:?} is no data set name: {why}")).with_detail(Detail::InvalidDatasetName { name: text.to_owned() });
        let (domain, dataset) = text.split_once(['.', '/']).ok_or_else(|| wrong("write it as domain.dataset, for example blood.pbmc3k".into()))?;
        let (domain, dataset) = (unquoted(domain), unquoted(dataset));
        if let Some((what, part)) = wrong_part(domain, dataset) {
            return Err(wrong(format!("its {what} part is {part:?}, but parts are made of {}", rule())));
        }
        Self::new(domain, dataset)
    }
}

impl TryFrom<String> for DatasetName {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<DatasetName> for String {
    fn from(name: DatasetName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.domain, self.dataset)
    }
}

impl fmt::Debug for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// One version of a data set's content; each ingest draws a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// The part of one table of one generation that one drive manages, with the data set that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartitionName {
    /// The data set.
    pub dataset: DatasetName,
    /// The version of the data set's content.
    pub generation: Generation,
    /// The table within the data set, any Unicode; `data` for a plain table.
    pub table: String,
    /// The number of the partition within the table.
    pub slot: u32,
}

/// What the names of tables begin with that hold a part of a matrix: those of cells that an append has brought.
pub const PART: &str = "part/";

/// The table of part `number` of a matrix, from 1; part 0 is the table of the matrix itself.
#[must_use]
pub fn part_table(number: usize, matrix: &str) -> String {
    format!("{PART}{number}/{matrix}")
}

/// The matrix that a table holds a part of, by the table's name: `x` of `part/1/x`. `None` for other tables.
#[must_use]
pub fn part_of(table: &str) -> Option<&str> {
    let (number, matrix) = table.strip_prefix(PART)?.split_once('/')?;
    (!number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())).then_some(matrix)
}

impl PartitionName {
    /// The matrix or table that the partition belongs to: of a part of a matrix, the matrix.
    #[must_use]
    pub fn whole(&self) -> &str {
        part_of(&self.table).unwrap_or(&self.table)
    }

    /// The key of the metadata slice, which is the partition's name.
    ///
    /// # Errors
    /// Invalid where the table's name makes the key too long.
    pub fn key(&self) -> Result<Key> {
        Key::new(format!("{}{:016x}.{}.{}", self.dataset.prefix(), self.generation.0, escape(&self.table), self.slot))
    }

    /// The key of slice `n`.
    ///
    /// # Errors
    /// Invalid where the table's name makes the key too long.
    pub fn slice_key(&self, n: u32) -> Result<Key> {
        Key::new(format!("{};{n:08}", self.key()?))
    }

    /// Reads the name back from the key of a metadata slice or of a slice; the slice's number where there is one.
    /// `None` for root records and foreign keys.
    #[must_use]
    pub fn parse(key: &Key) -> Option<(Self, Option<u32>)> {
        let mut parts = key.as_str().splitn(3, '/');
        let dataset = DatasetName::new(parts.next()?, parts.next()?).ok()?;
        let rest = parts.next()?;
        let (name, slice) = match rest.split_once(';') {
            Some((name, n)) => (name, Some(n.parse().ok()?)),
            None => (rest, None),
        };
        let (generation, rest) = name.split_once('.')?;
        let (table, slot) = rest.rsplit_once('.')?;
        let generation = Generation(u64::from_str_radix(generation, 16).ok()?);
        Some((Self { dataset, generation, table: unescape(table)?, slot: slot.parse().ok()? }, slice))
    }
}

/// Characters that a key has unescaped, in addition to letters and digits.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-').remove(b'.');

/// Percent-encodes everything but letters, digits, `_`, `-` and `.`.
fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The reverse; `None` where a `%` begins no byte, or the bytes are no text.
fn unescape(text: &str) -> Option<String> {
    let is_byte = |after: &str| after.len() >= 2 && after.bytes().take(2).all(|b| b.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_byte) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_name_the_same_data_set() {
        let dotted: DatasetName = "blood.pbmc3k".parse().unwrap();
        let slashed: DatasetName = "blood/pbmc3k".parse().unwrap();
        assert_eq!(dotted, slashed);
        for quoted in ["blood.\"pbmc3k\"", "\"blood\".\"pbmc3k\"", "\"blood\"/pbmc3k"] {
            assert_eq!(quoted.parse::<DatasetName>().unwrap(), dotted, "{quoted}");
        }
        assert_eq!(dotted.root_key().as_str(), "blood/pbmc3k");
    }

    #[test]
    fn bad_names_are_refused_with_the_part_that_is_wrong() {
        for (text, part) in
            [("blood", "domain.dataset"), ("bl ood.x", "domain"), ("a.b.c", "data set"), ("a.", "data set"), ("a.\"b", "data set"), ("../a.b", "domain")]
        {
            let error = text.parse::<DatasetName>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert_eq!(error.matches("is no data set name").count(), 1, "{error}");
        }
    }

    #[test]
    fn partition_names_survive_their_keys() {
        let name = PartitionName { dataset: "a.b".parse().unwrap(), generation: Generation(0x2a), table: "layers.Zähl/ung;1".into(), slot: 3 };
        assert_eq!(PartitionName::parse(&name.key().unwrap()), Some((name.clone(), None)));
        assert_eq!(PartitionName::parse(&name.slice_key(17).unwrap()), Some((name, Some(17))));
        assert_eq!(PartitionName::parse(&Key::new("a/b").unwrap()), None);
    }

    /// Keys that older versions wrote, with an encoding of their own, are those that are written today.
    #[test]
    fn every_character_is_escaped_as_older_versions_did() {
        let older = |text: &str| -> String {
            let one = |b: u8| if b.is_ascii_alphanumeric() || b"_-.".contains(&b) { char::from(b).to_string() } else { format!("%{b:02X}") };
            text.bytes().map(one).collect()
        };
        // All bytes that texts have are among these.
        for c in (0..0x800).chain((0x800..=0x10_ffff).step_by(61)).filter_map(char::from_u32) {
            let text = c.to_string();
            assert_eq!(escape(&text), older(&text), "{c:?}");
            assert_eq!(unescape(&escape(&text)), Some(text), "{c:?}");
        }
    }

    #[test]
    fn parts_are_named_after_their_matrix() {
        for matrix in ["x", "layer_a/b", "part/1/x"] {
            assert_eq!(part_of(&part_table(12, matrix)), Some(matrix));
        }
        for table in ["x", "part/x", "part/a/x", "part//x", "parity/part/1/x", "part/"] {
            assert_eq!(part_of(table), None, "{table}");
        }
        let partition = PartitionName { dataset: "a.b".parse().unwrap(), generation: Generation(1), table: part_table(1, "x"), slot: 2 };
        assert_eq!((partition.whole(), PartitionName::parse(&partition.key().unwrap())), ("x", Some((partition.clone(), None))));
    }

    #[test]
    fn hostile_keys_are_no_partitions() {
        for text in ["a/b/", "a/b/zz.x.1", "a/b/1.x", "a/b/1.%G1.0", "a/b/1.%4.0", "a/b/1.%FF.0", "a/b/1.%+F.0", "a/b/1.x.0;q", "a/b/1.x.-1", ";;", "a//c"] {
            assert_eq!(PartitionName::parse(&Key::new(text).unwrap()), None, "{text}");
        }
    }
}
