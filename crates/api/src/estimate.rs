//! The forecast of an adaptive scan, to compare with what happened.

use std::fmt;

use serde::{Deserialize, Serialize};
use skytether_common::units::{counted, human_seconds};
use skytether_device::PushdownLevel;

/// How the slices of a scan are divided, and how long that takes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkSplit {
    /// Seconds from the scan's beginning to its end.
    pub seconds: f64,
    /// For each drive that takes part.
    pub drives: Vec<DriveShare>,
}

/// The part of a drive.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveShare {
    /// Its name.
    pub name: String,
    /// The pushdown level that it runs at; `None` where it sends all of its slices raw.
    pub rung: Option<PushdownLevel>,
    /// Slices that it processes itself, most of them at that level.
    pub slices: u64,
    /// How many of them it only filters, where it processes others in full.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slices_filtered: u64,
    /// Slices that it sends raw, for the host to process.
    pub handed_out: u64,
    /// Seconds of one of its cores for a slice: to process it at that level, or to send it raw.
    pub seconds_per_slice: f64,
}

/// The forecast of a division of work, and what happened where it ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// By the cost model, from the drives' profiles and the metadata alone.
    pub expected: WorkSplit,
    /// What happened; figures per slice as the scan measured them.
    #[serde(rename = "happened", default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<WorkSplit>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl fmt::Display for DriveShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let (Some(rung), true) = (self.rung, self.slices > 0) {
            let full = self.slices.saturating_sub(self.slices_filtered);
            if self.slices_filtered > 0 && full > 0 {
                parts.push(format!("{} at full and {} at filter", counted(full, "slice"), self.slices_filtered));
            } else {
                parts.push(format!("{} at {}", counted(self.slices, "slice"), rung.as_str()));
            }
        }
        if self.handed_out > 0 || parts.is_empty() {
            parts.push(format!("{} handed out", counted(self.handed_out, "slice")));
        }
        write!(f, "{}, {} each", parts.join(", "), human_seconds(self.seconds_per_slice))
    }
}

impl fmt::Display for Estimate {
    /// A line for all, then one for each drive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = self.actual.as_ref().map(|actual| format!("; took {}", human_seconds(actual.seconds))).unwrap_or_default();
        write!(f, "expected: {}{took}", human_seconds(self.expected.seconds))?;
        // Partitions begin at the data set's home drive. People look for drive-0 first, and for drive-2 before
        // drive-10.
        let mut shares: Vec<(usize, &DriveShare)> = self.expected.drives.iter().enumerate().collect();
        shares.sort_by_key(|(_, share)| (share.name.len(), share.name.as_str()));
        for (at, share) in shares {
            write!(f, "\n{}: {share}", share.name)?;
            if let Some(actual) = self.actual.as_ref().and_then(|actual| actual.drives.get(at)) {
                write!(f, "; happened: {actual}")?;
            }
        }
        Ok(())
    }
}
