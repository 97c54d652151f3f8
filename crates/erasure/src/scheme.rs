//! Redundancy schemes of a data set: `none`, `replicas:R`, `ec:K+M`, or `ec:K+M/k+m` on two levels.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

/// The forms that a scheme may have, for messages.
const FORMS: &str = "none, replicas:R, ec:K+M or ec:K+M/k+m, for example replicas:3, ec:4+2 or ec:4+2/8+2";

/// The most copies, the first included.
pub const MAX_REPLICAS: u16 = 16;
/// The most data shards of a group.
pub const MAX_DATA: u16 = 128;
/// The most parity shards of a group.
pub const MAX_PARITY: u16 = 64;

/// A code: groups of up to K data shards with M parity shards. Any M shards of a group may be lost.
///
/// With K = 1 the parity shards are copies of the data shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code {
    data: u16,
    parity: u16,
}

impl Code {
    /// `data` + `parity` shards.
    ///
    /// # Errors
    /// Invalid where there are not 1 to [`MAX_DATA`] data and 1 to [`MAX_PARITY`] parity shards.
    pub fn new(data: usize, parity: usize) -> Result<Self> {
        let within = |n: usize, most: u16| u16::try_from(n).ok().filter(|n| (1..=most).contains(n));
        match (within(data, MAX_DATA), within(parity, MAX_PARITY)) {
            (Some(data), Some(parity)) => Ok(Self { data, parity }),
            (None, _) => Err(Error::invalid(format!("a code of {data}+{parity} is not possible: there may be 1 to {MAX_DATA} data shards"))),
            (_, None) => Err(Error::invalid(format!("a code of {data}+{parity} is not possible: there may be 1 to {MAX_PARITY} parity shards"))),
        }
    }

    /// K: data shards of a full group.
    #[must_use]
    pub fn data(self) -> usize {
        usize::from(self.data)
    }

    /// M: parity shards of every group, and losses that it survives.
    #[must_use]
    pub fn parity(self) -> usize {
        usize::from(self.parity)
    }

    /// K + M: the number of drives of a full group.
    #[must_use]
    pub fn shards(self) -> usize {
        self.data() + self.parity()
    }

    /// Whether the parity shards are copies of the one data shard.
    #[must_use]
    pub fn copies(self) -> bool {
        self.data == 1
    }

    /// Bytes stored per byte of data, of full groups of equal lengths.
    #[must_use]
    pub fn stored_per_byte(self) -> f64 {
        self.shards() as f64 / self.data() as f64
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

/// How a data set is kept from loss. As text, and so in JSON: `none`, `replicas:R`, `ec:K+M`, `ec:K+M/k+m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Scheme {
    /// A lost drive is lost data.
    #[default]
    None,
    /// Copies of each slice on as many drives, the first included; 2 to [`MAX_REPLICAS`].
    Replicas(Copies),
    /// Code groups over drives.
    Ec(Code),
    /// Code groups over nodes (the first), and within each node code groups over its drives (the second), as in MarFS.
    Levels(Code, Code),
}

/// A number of copies, the first included: 2 to [`MAX_REPLICAS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Copies(u16);

impl Copies {
    /// This number of copies, the first included.
    ///
    /// # Errors
    /// Invalid where there are not 2 to [`MAX_REPLICAS`].
    pub fn new(copies: usize) -> Result<Self> {
        match u16::try_from(copies) {
            Ok(n) if (2..=MAX_REPLICAS).contains(&n) => Ok(Self(n)),
            _ => Err(Error::invalid(format!(
                "replicas:{copies} is not possible: there may be 2 to {MAX_REPLICAS} replicas, the first included; without a second it is none"
            ))),
        }
    }

    /// How many.
    #[must_use]
    pub fn get(self) -> usize {
        usize::from(self.0)
    }
}

impl Scheme {
    /// The code between drives, or on two levels between nodes; replicas are 1 + (R - 1). `None` for [`Scheme::None`].
    #[must_use]
    pub fn code(self) -> Option<Code> {
        match self {
            Scheme::None => None,
            Scheme::Replicas(copies) => Some(Code { data: 1, parity: copies.0 - 1 }),
            Scheme::Ec(code) | Scheme::Levels(code, _) => Some(code),
        }
    }

    /// The code between a node's drives, where there are two levels.
    #[must_use]
    pub fn inner(self) -> Option<Code> {
        match self {
            Scheme::Levels(_, inner) => Some(inner),
            _ => None,
        }
    }

    /// How many drives may be lost, whichever they are. With two levels: M + 1 nodes would have to lose m + 1 drives
    /// each before anything is lost.
    #[must_use]
    pub fn tolerates(self) -> usize {
        let parity = self.code().map_or(0, Code::parity);
        self.inner().map_or(parity, |inner| (parity + 1) * (inner.parity() + 1) - 1)
    }

    /// How many whole nodes may be lost, whichever they are, and m drives of each other node at the same time. 0 for
    /// schemes of one level.
    #[must_use]
    pub fn tolerates_nodes(self) -> usize {
        self.inner().map_or(0, |_| self.code().map_or(0, Code::parity))
    }

    /// The least number of drives (with two levels: K + M nodes of k + m drives each).
    #[must_use]
    pub fn least_drives(self) -> usize {
        self.code().map_or(1, Code::shards) * self.inner().map_or(1, Code::shards)
    }

    /// Bytes stored per byte of data, where groups are full and of equal lengths.
    #[must_use]
    pub fn stored_per_byte(self) -> f64 {
        self.code().map_or(1.0, Code::stored_per_byte) * self.inner().map_or(1.0, Code::stored_per_byte)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::None => f.write_str("none"),
            Scheme::Replicas(copies) => write!(f, "replicas:{}", copies.0),
            Scheme::Ec(code) => write!(f, "ec:{code}"),
            Scheme::Levels(outer, inner) => write!(f, "ec:{outer}/{inner}"),
        }
    }
}

fn number(text: &str) -> Option<usize> {
    let plain = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let shown: String = text.chars().take(80).collect();
        let wrong = |why: &str| Error::invalid(format!("{shown:?} is no redundancy: {why}; it is {FORMS}"));
        let code = |part: &str, of: &str| {
            let (data, parity) = part.split_once('+').ok_or_else(|| wrong(&format!("{of} lacks a '+' between data and parity shards")))?;
            match (number(data), number(parity)) {
                (Some(data), Some(parity)) => Code::new(data, parity).map_err(|e| wrong(e.message())),
                _ => Err(wrong(&format!("{of} is not two whole numbers with a '+' between them"))),
            }
        };
        match text.split_once(':') {
            None if text == "none" => Ok(Scheme::None),
            None => Err(wrong("there is no ':'")),
            Some(("replicas", copies)) => {
                let copies = number(copies).ok_or_else(|| wrong("the number of replicas is no whole number"))?;
                Copies::new(copies).map(Scheme::Replicas).map_err(|e| wrong(e.message()))
            }
            Some(("ec", codes)) => match codes.split_once('/') {
                None => code(codes, "the code").map(Scheme::Ec),
                Some((outer, inner)) => Ok(Scheme::Levels(code(outer, "the code across nodes")?, code(inner, "the code across a node's drives")?)),
            },
            Some(_) => Err(wrong("what stands before the ':' is not known")),
        }
    }
}

impl TryFrom<String> for Scheme {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Scheme> for String {
    fn from(scheme: Scheme) -> Self {
        scheme.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_texts_name_tolerated_losses_and_overhead() {
        for (text, tolerates, nodes, drives, stored) in [
            ("none", 0, 0, 1, 1.0),
            ("replicas:2", 1, 0, 2, 2.0),
            ("replicas:16", 15, 0, 16, 16.0),
            ("ec:4+1", 1, 0, 5, 1.25),
            ("ec:4+2", 2, 0, 6, 1.5),
            ("ec:128+64", 64, 0, 192, 1.5),
            ("ec:4+1/4+1", 3, 1, 25, 1.5625),
            ("ec:10+2/17+3", 11, 2, 240, 1.2 * 20.0 / 17.0),
        ] {
            let scheme: Scheme = text.parse().unwrap();
            assert_eq!(scheme.to_string(), text);
            assert_eq!((scheme.tolerates(), scheme.tolerates_nodes(), scheme.least_drives()), (tolerates, nodes, drives), "{text}");
            assert!((scheme.stored_per_byte() - stored).abs() < 1e-12, "{text}");
            let json = serde_json::to_string(&scheme).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Scheme>(&json).unwrap(), scheme);
        }
    }

    #[test]
    fn wrong_schemes_are_refused_with_a_reason() {
        for (text, why) in [
            ("", "there is no ':'"),
            ("raid5", "there is no ':'"),
            ("raid:5", "what stands before the ':' is not known"),
            ("None", "there is no ':'"),
            ("replicas:1", "there may be 2 to 16 replicas"),
            ("replicas:17", "there may be 2 to 16 replicas"),
            ("replicas:two", "no whole number"),
            ("replicas:+2", "no whole number"),
            ("ec:4", "the code lacks a '+'"),
            ("ec:4+", "not two whole numbers"),
            ("ec:0+1", "there may be 1 to 128 data shards"),
            ("ec:129+1", "there may be 1 to 128 data shards"),
            ("ec:4+0", "there may be 1 to 64 parity shards"),
            ("ec:99999999999999999999+1", "not two whole numbers"),
            ("ec:4+1/4", "the code across a node's drives lacks a '+'"),
            ("ec:/4+1", "the code across nodes lacks a '+'"),
            ("ec:4+1/4+1/4+1", "the code across a node's drives is not two whole numbers"),
        ] {
            let error = text.parse::<Scheme>().unwrap_err();
            assert_eq!(error.kind(), skytether_common::Kind::Invalid);
            assert!(error.to_string().contains(why) && error.to_string().contains("it is none, replicas:R"), "{text}: {error}");
        }
        assert!(serde_json::from_str::<Scheme>("\"ec:4\"").is_err());
    }
}
