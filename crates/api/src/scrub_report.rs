//! What a caller asks of a scrub or a repair, and what it reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use skytether_common::DatasetName;
use skytether_common::units::{counted, human_bytes, human_seconds};

/// Findings that are listed one by one; further ones are only counted.
const TOLD: usize = 1000;

/// Options of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubOptions {
    /// The data sets; all where none is named.
    #[serde(default)]
    pub datasets: Vec<DatasetName>,
    /// The most bytes per second that each drive may read for it; no limit if `None`.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
    /// Whether to change nothing.
    #[serde(default)]
    pub check: bool,
}

/// How far long work is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes that are done.
    pub done: u64,
    /// Bytes that there are, about.
    pub total: u64,
    /// The step that runs.
    pub what: String,
}

/// A value that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The data set of the value; `None` for records of the fleet.
    pub dataset: Option<DatasetName>,
    /// The drive.
    pub drive: String,
    /// The key there.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// Whether it is as it should be again.
    pub mended: bool,
    /// Why it is not, if that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a scrub did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Whether it was to change nothing.
    pub check: bool,
    /// Data sets that the scrub visited.
    pub datasets: u64,
    /// Slices, parities, metadata slices, code maps and root records that were verified.
    pub values: u64,
    /// Code groups whose parities were compared with their data.
    pub groups: u64,
    /// Bytes that drives read to verify them.
    pub bytes_verified: u64,
    /// Bytes that went between host and drives for that.
    pub bytes_moved: u64,
    /// Bytes that went between host and drives for repairs.
    pub bytes_mending: u64,
    /// Values that were not as they should be.
    pub damaged: u64,
    /// The number of them that were repaired.
    pub mended: u64,
    /// The first thousand of them.
    pub found: Vec<Finding>,
    /// Drives that were left out, and why.
    pub skipped: BTreeMap<String, String>,
    /// Values on them.
    pub unverified: u64,
    /// Data sets that were replaced or dropped meanwhile.
    pub changed: BTreeSet<DatasetName>,
    /// How long it took.
    pub seconds: f64,
}

impl ScrubReport {
    /// Values that are damaged still.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.damaged.saturating_sub(self.mended)
    }

    /// Counts a finding, and keeps it within the limit. Findings that are still damaged are kept first.
    pub fn tell(&mut self, finding: Finding) {
        self.damaged += 1;
        self.mended += u64::from(finding.mended);
        // Findings that are still damaged take the place of repaired ones.
        if self.found.len() < TOLD {
            self.found.push(finding);
        } else if !finding.mended
            && let Some(other) = self.found.iter_mut().find(|other| other.mended)
        {
            *other = finding;
        }
    }
}

impl fmt::Display for ScrubReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of very little, the digests alone are more.
        let moved = match self.bytes_verified {
            0..16_777_216 => String::new(),
            all => format!(" ({:.2}%)", 100.0 * self.bytes_moved as f64 / all as f64),
        };
        writeln!(
            f,
            "{} verified in {}, parities compared with data in {}: {} read by the drives, {} moved{moved}, {}",
            counted(self.values, "value"),
            counted(self.datasets, "data set"),
            counted(self.groups, "group"),
            human_bytes(self.bytes_verified),
            human_bytes(self.bytes_moved),
            human_seconds(self.seconds)
        )?;
        for (drive, why) in &self.skipped {
            writeln!(f, "{drive} was left out: {why}")?;
        }
        if self.unverified > 0 {
            writeln!(f, "{} on drives that were left out could not be verified", counted(self.unverified, "value"))?;
        }
        for name in &self.changed {
            writeln!(f, "{name} was replaced or dropped meanwhile")?;
        }
        for found in &self.found {
            let state = match (&found.error, found.mended) {
                (_, true) => "mended".to_owned(),
                (Some(error), false) => format!("not mended: {error}"),
                (None, false) => "not mended".to_owned(),
            };
            writeln!(f, "{} at {} {}: {state}", found.key, found.drive, found.what)?;
        }
        if self.damaged > self.found.len() as u64 {
            writeln!(f, "and {} more", self.damaged - self.found.len() as u64)?;
        }
        match (self.damaged, self.left()) {
            (0, _) if self.unverified > 0 || !self.skipped.is_empty() => write!(f, "nothing is damaged on the drives that were looked at"),
            (0, _) => write!(f, "nothing is damaged"),
            (damaged, left) if self.check => write!(f, "{damaged} damaged, {left} left: nothing was changed"),
            (damaged, 0) => write!(f, "{damaged} damaged, all mended ({} moved for it)", human_bytes(self.bytes_mending)),
            (damaged, left) => write!(f, "{damaged} damaged, {left} could not be mended"),
        }
    }
}

/// Options of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairOptions {
    /// The drives, by names or ids; all blank ones where none is named.
    #[serde(default)]
    pub drives: Vec<String>,
    /// The address of the blank drive that replaces the named one, where the host does not reach it yet.
    #[serde(default)]
    pub address: Option<String>,
    /// The most bytes per second that the other drives together may read for it; no limit if `None`.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RepairReport {
    /// The drives that were rebuilt.
    pub drives: Vec<String>,
    /// Slices, parities and copies that were reconstructed.
    pub rebuilt: u64,
    /// Values that an earlier repair had restored already.
    pub kept: u64,
    /// Code groups that were read.
    pub groups: u64,
    /// Bytes that the other drives read.
    pub bytes_read: u64,
    /// The bytes that the codes need: of each group as many shards as it has data shards, once; one copy of what has
    /// copies.
    pub bytes_least: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// What could not be reconstructed, and why: the first thousand entries.
    pub left: Vec<String>,
    /// How many entries more there are.
    #[serde(default)]
    pub left_more: u64,
    /// Drives that are lost and were not rebuilt, and why they are.
    pub lost: BTreeMap<String, String>,
    /// How long it took.
    pub seconds: f64,
}

impl RepairReport {
    /// Notes something that could not be reconstructed.
    pub fn leave(&mut self, what: String) {
        if self.left.len() < TOLD { self.left.push(what) } else { self.left_more += 1 }
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (drive, why) in &self.lost {
            writeln!(f, "{drive} is lost: {why}")?;
        }
        if self.drives.is_empty() {
            return write!(f, "no blank drive is in the place of a lost one: nothing to rebuild");
        }
        for left in &self.left {
            writeln!(f, "left: {left}")?;
        }
        if self.left_more > 0 {
            writeln!(f, "left: {} more", self.left_more)?;
        }
        let kept = if self.kept > 0 { format!(", {} there already", self.kept) } else { String::new() };
        write!(
            f,
            "{} rebuilt: {} reconstructed{kept}, {} read from the other drives, {} written, {}",
            self.drives.join(", "),
            counted(self.rebuilt, "value"),
            human_bytes(self.bytes_read),
            human_bytes(self.bytes_written),
            human_seconds(self.seconds)
        )
    }
}
