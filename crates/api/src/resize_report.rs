//! What a caller asks of a resize of the fleet, and what the resize reports.

use std::fmt;

use serde::{Deserialize, Serialize};
use skytether_common::units::{counted, human_bytes, human_seconds};

/// What to resize.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeOptions {
    /// How many blank drives an embedded fleet gets, below its directory.
    #[serde(default)]
    pub count: usize,
    /// The addresses of blank served drives that come to the fleet of a host.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The node (failure domain) of the new drives, in a fleet with nodes. If `None`, drives with addresses go to the
    /// node that is named like the host part of the address, if the fleet has drives there. Drives without addresses go
    /// to the node with the fewest drives.
    #[serde(default, rename = "host", skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The drives that leave it, by names or ids.
    #[serde(default)]
    pub retire: Vec<String>,
    /// The most bytes per second to move, over all drives together; no limit if `None`.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
}

/// What data sets have on a drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The drive.
    pub drive: String,
    /// Bytes of slices, parities and metadata slices; copies of the latter count once.
    pub before: u64,
    /// The same afterwards.
    pub after: u64,
}

/// What a resize did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ResizeReport {
    /// Drives that joined.
    pub added: Vec<String>,
    /// Drives that left.
    pub retired: Vec<String>,
    /// Data sets that had something moved.
    pub datasets: u64,
    /// Slices and parities that went to another drive, and copies of tables that lie everywhere.
    pub moved: u64,
    /// Their bytes.
    pub bytes_moved: u64,
    /// The fewest bytes that must move if slices could be divided. They empty drives that leave, bring data and
    /// parities of each table within 5% of the mean, and make copies for new drives. Slices can't be divided: where
    /// they are long, less may have moved, and drives are further off the mean then.
    pub bytes_least: u64,
    /// Slices and parities that stayed where they are, under another name.
    pub linked: u64,
    /// Bytes of metadata slices and code maps that were written again.
    pub bytes_metadata: u64,
    /// The load of each drive.
    pub drives: Vec<Load>,
    /// Before the resize: the largest distance of a drive from the mean load, as a share of the mean, over the drives
    /// of that time.
    pub off_before: f64,
    /// The same after the resize, over the drives of the fleet then.
    pub off_after: f64,
    /// The longest slice or stripe of slices, in bytes: so far drives may be off the mean with each table.
    pub longest: u64,
    /// Bytes of tables that are partitioned by key, which stay on as many drives as they were written
    /// to, and are not balanced.
    pub pinned: u64,
    /// What could not be moved, and why.
    pub left: Vec<String>,
    /// Further notes.
    pub notes: Vec<String>,
    /// How long it took.
    pub seconds: f64,
}

impl fmt::Display for ResizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.drives.iter().map(|load| load.drive.chars().count()).max().unwrap_or(0).max(5);
        writeln!(f, "{:width$}  {:>12}  {:>12}", "drive", "before", "after")?;
        for load in &self.drives {
            writeln!(f, "{:width$}  {:>12}  {:>12}", load.drive, human_bytes(load.before), human_bytes(load.after))?;
        }
        writeln!(f, "furthest off the mean: {:.1}% before, {:.1}% after", 100.0 * self.off_before, 100.0 * self.off_after)?;
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        for left in &self.left {
            writeln!(f, "left: {left}")?;
        }
        for (drives, what) in [(&self.added, "added"), (&self.retired, "retired")] {
            if !drives.is_empty() {
                write!(f, "{} {what}; ", drives.join(", "))?;
            }
        }
        write!(
            f,
            "{} of {} moved, {} stayed where they were, {}",
            human_bytes(self.bytes_moved),
            counted(self.datasets, "data set"),
            counted(self.linked, "value"),
            human_seconds(self.seconds)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the protocol has it: hosts and clients of other versions read and write this name.
    #[test]
    fn node_keeps_its_name_in_the_protocol() {
        let asked = ResizeOptions { node: Some("a".into()), ..ResizeOptions::default() };
        let written = serde_json::to_value(&asked).unwrap();
        assert_eq!(written["host"], "a");
        assert_eq!(serde_json::from_value::<ResizeOptions>(written).unwrap(), asked);
    }

    /// Slices cannot be divided, so fewer bytes may move than the computed minimum. Then the report leaves the minimum
    /// out.
    #[test]
    fn report_names_moved_bytes_and_no_unreachable_bound() {
        // Long slices: fewer bytes moved than would have if slices could be divided.
        let report =
            ResizeReport { datasets: 1, bytes_moved: 5 << 20, bytes_least: 21 << 18, linked: 3, added: vec!["drive-4".into()], ..ResizeReport::default() };
        let text = report.to_string();
        assert!(text.contains("drive-4 added; 5.00 MiB of 1 data set moved, 3 values stayed where they were, "), "{text}");
        assert!(!text.contains("at least"), "{text}");
    }
}
