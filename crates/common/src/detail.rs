//! Details: the typed part of an [`Error`](crate::Error), for programs.
//!
//! A program decides by an error's kind and detail, never by its text. See also [`crate::Error::detail`].

use serde::{Deserialize, Serialize};

use crate::names::{DatasetName, Key};

/// The detail of an error. As JSON it is an object whose `type` is the variant: `{"type":"missing_key","key":"lab/t"}`.
///
/// Each variant belongs to one kind of error, or to the kinds that it names. A reader ignores types that it does not
/// know, so a new variant needs no new version of a protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Detail {
    /// `Conflict`: a drive takes no changes from this host, because another host has the fleet or the drive.
    Fenced {
        /// The name of the drive.
        drive: String,
        /// The term of the host that has it.
        term: u64,
    },
    /// `NotFound`: the key has no value.
    MissingKey {
        /// The key.
        key: Key,
    },
    /// `Invalid`: a text is no name of a data set.
    InvalidDatasetName {
        /// The text.
        name: String,
    },
    /// `NotFound`: the fleet has no such data set.
    MissingDataset {
        /// Its name.
        dataset: DatasetName,
    },
    /// `NotFound`: a data set or a query has no such table.
    MissingTable {
        /// The table, as the caller names it within the data set or the query.
        table: String,
    },
    /// `NotFound`, or `Invalid` in a query: a table has no such column.
    MissingColumn {
        /// The column, as the caller names it.
        column: String,
    },
    /// `Exhausted`: the host's part of a query needs more memory than queries may use.
    MemoryExhausted {
        /// Bytes that they may use.
        limit: u64,
    },
    /// `Exhausted`: the host's part of a query needs more disk than queries may use for what memory can't hold.
    SpillExhausted {
        /// Bytes that they may use.
        limit: u64,
    },
    /// `Exhausted`: no space is left on the disk where a host writes what memory can't hold.
    SpillDiskFull,
    /// `Invalid`, and `Unavailable` of a drive: TLS with a server fails. One side refuses the other's certificate, or
    /// the server speaks no TLS.
    TlsRefused,
    /// `Unavailable`: a drive is there and did not run a sub-plan as a whole, for example because it is too busy. What
    /// it stores can be read instead.
    NotRun,
    /// `Invalid`: a value of a stored matrix has no moments, as it is or transformed.
    UnfitValue {
        /// The cell, counted from 0.
        cell: u32,
        /// The value.
        #[serde(with = "number")]
        value: f64,
        /// The total of the cell's values, if the transform uses it.
        #[serde(default, with = "optional_number", skip_serializing_if = "Option::is_none")]
        total: Option<f64>,
    },
    /// `Invalid`: an entry of a matrix can't be ingested.
    UnfitEntry {
        /// The gene, counted from 0.
        gene: u32,
        /// The cell, counted from 0.
        cell: u64,
    },
}

impl Detail {
    /// `key` has no value.
    #[must_use]
    pub fn missing_key(key: &Key) -> Self {
        Self::MissingKey { key: key.clone() }
    }
}

/// A number as text: readers of JSON round numbers, and JSON lacks some.
mod number {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:?}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// As [`number`], for an optional one.
mod optional_number {
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::number::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        super::number::deserialize(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_detail_reads_back_from_its_json() {
        let unfit = |value, total| Detail::UnfitValue { cell: 7, value, total };
        for (detail, json) in [
            (Detail::Fenced { drive: "drive-1".into(), term: 3 }, r#"{"type":"fenced","drive":"drive-1","term":3}"#),
            (Detail::MissingKey { key: Key::new("lab/t/1.data.0").unwrap() }, r#"{"type":"missing_key","key":"lab/t/1.data.0"}"#),
            (Detail::MissingDataset { dataset: "lab.t".parse().unwrap() }, r#"{"type":"missing_dataset","dataset":"lab.t"}"#),
            (Detail::InvalidDatasetName { name: "a".into() }, r#"{"type":"invalid_dataset_name","name":"a"}"#),
            (Detail::MissingTable { table: "obs".into() }, r#"{"type":"missing_table","table":"obs"}"#),
            (Detail::MissingColumn { column: "ä\"b".into() }, r#"{"type":"missing_column","column":"ä\"b"}"#),
            (Detail::MemoryExhausted { limit: 1 << 30 }, r#"{"type":"memory_exhausted","limit":1073741824}"#),
            (Detail::SpillExhausted { limit: 5 }, r#"{"type":"spill_exhausted","limit":5}"#),
            (Detail::SpillDiskFull, r#"{"type":"spill_disk_full"}"#),
            (Detail::NotRun, r#"{"type":"not_run"}"#),
            (unfit(0.1, None), r#"{"type":"unfit_value","cell":7,"value":"0.1"}"#),
            (unfit(-3.0, Some(f64::INFINITY)), r#"{"type":"unfit_value","cell":7,"value":"-3.0","total":"inf"}"#),
            (Detail::UnfitEntry { gene: 2, cell: 1 << 40 }, r#"{"type":"unfit_entry","gene":2,"cell":1099511627776}"#),
        ] {
            assert_eq!(serde_json::to_string(&detail).unwrap(), json);
            assert_eq!(serde_json::from_str::<Detail>(json).unwrap(), detail);
        }
        for value in [0.1 + 0.2, 1e300, f64::MIN_POSITIVE, f64::from(0.1f32)] {
            let json = serde_json::to_string(&unfit(value, None)).unwrap();
            assert_eq!(serde_json::from_str::<Detail>(&json).unwrap(), unfit(value, None), "{json}");
        }
        let nan = serde_json::to_string(&unfit(f64::NAN, None)).unwrap();
        assert!(matches!(serde_json::from_str(&nan).unwrap(), Detail::UnfitValue { value, .. } if value.is_nan()), "{nan}");
    }

    #[test]
    fn a_detail_that_is_none_is_an_error() {
        for json in [
            r#"{"type":"of_a_newer_version","x":1}"#,
            r#"{"type":"missing_key","key":"with space"}"#,
            r#"{"type":"missing_dataset","dataset":"none"}"#,
            r#"{"type":"unfit_value","cell":-1,"value":"1"}"#,
            r#"{"type":"unfit_value","cell":1,"value":1}"#,
            r#"{"type":"unfit_value","cell":1,"value":"many"}"#,
            r#"{"key":"a"}"#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Detail>(json).is_err(), "{json}");
        }
    }
}
