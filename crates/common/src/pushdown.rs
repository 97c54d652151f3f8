//! The pushdown policy of a query.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// How much of a plan goes to the drives. The words are those of `fleet.sql(..., pushdown=...)` and `--pushdown`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pushdown {
    /// All that can go down; drives may push back.
    #[default]
    Adaptive,
    /// All that can go down.
    Full,
    /// Scan, filter, projection and limit.
    Filter,
    /// The scan with its projection alone.
    Raw,
}

impl Pushdown {
    /// The policy in a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Pushdown::Adaptive => "adaptive",
            Pushdown::Full => "full",
            Pushdown::Filter => "filter",
            Pushdown::Raw => "raw",
        }
    }
}

impl fmt::Display for Pushdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Pushdown {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "adaptive" => Ok(Pushdown::Adaptive),
            "full" => Ok(Pushdown::Full),
            "filter" => Ok(Pushdown::Filter),
            "raw" => Ok(Pushdown::Raw),
            other => Err(Error::invalid(format!("{other:?} is no pushdown policy: use adaptive, full, filter or raw"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_read_and_written() {
        for policy in [Pushdown::Adaptive, Pushdown::Full, Pushdown::Filter, Pushdown::Raw] {
            assert_eq!(policy.to_string().parse::<Pushdown>().unwrap(), policy);
            assert_eq!(serde_json::to_value(policy).unwrap(), serde_json::json!(policy.as_str()));
        }
        assert_eq!("Full".parse::<Pushdown>().unwrap_err().kind(), crate::Kind::Invalid);
        assert_eq!(Pushdown::default(), Pushdown::Adaptive);
    }
}
