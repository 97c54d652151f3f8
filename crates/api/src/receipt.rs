//! The receipt: what ran where, and how many bytes moved.

use std::fmt;

use serde::{Deserialize, Serialize};
use skytether_common::plan_words;
use skytether_common::units::{counted, human_bytes, human_count, human_seconds};
use skytether_device::annotation::IndexNote;
use skytether_device::{Annotation, OperatorNote, ParentWork, PushdownLevel};

use crate::estimate::Estimate;
use crate::receipt_tree::Tree;

/// What one CSE did for a query; figures of several sub-plans are added up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DriveReceipt {
    /// The CSE's name.
    pub name: String,
    /// The lowest pushdown level that ran there.
    pub rung: Option<PushdownLevel>,
    /// Slices that it read and processed.
    pub slices: u64,
    /// Slices that statistics excluded.
    pub slices_pruned: u64,
    /// Slices whose metadata answered the question, so that they were not read.
    #[serde(default)]
    pub slices_told: u64,
    /// Slices of its tables at this drive; `None` where a drive does not report it.
    #[serde(default)]
    pub slices_total: Option<u64>,
    /// Rows of the slices that its scans looked at, including those that a condition excluded; `None` where a drive
    /// does not report it.
    #[serde(default)]
    pub rows_read: Option<u64>,
    /// Rows that came back.
    pub rows_out: u64,
    /// Bytes read from its store, also those of slices that it sent raw.
    pub bytes_read: u64,
    /// Bytes of results that it sent.
    pub bytes_sent: u64,
    /// Bytes of sub-plans that it received.
    pub bytes_received: u64,
    /// Seconds that it worked.
    pub seconds: f64,
    /// The highest use of its engine's memory, in bytes.
    pub peak_memory: u64,
    /// Why less than everything ran there: the query's options, the drive's own reason, or why a part stayed on the
    /// host.
    pub reason: Option<String>,
    /// The name of the device profile that it keeps to, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Why its sub-plans were run in its place, over what other drives have of it; `None` where it ran them itself.
    #[serde(rename = "stood_for", default, skip_serializing_if = "Option::is_none")]
    pub served_by_fallback: Option<String>,
    /// Slices of it that were decoded from slices of other drives, or came from copies there.
    #[serde(default)]
    pub slices_decoded: u64,
    /// The part of them that needed drives of its own node only, where redundancy is on two levels.
    #[serde(default)]
    pub slices_within: u64,
    /// Bytes of other drives that this was made from: read for it, or for the query as well.
    #[serde(default)]
    pub bytes_decoded: u64,
    /// Whether a sub-plan was answered from a result that it had kept.
    #[serde(default)]
    pub cached: bool,
    /// What its parent processed in its place: the host, or an aggregator.
    #[serde(default, skip_serializing_if = "ParentWork::is_none")]
    pub above: ParentWork,
    /// The indexes that it used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexNote>,
    /// What an aggregator's own drives did; their slices and bytes read are in its own figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<DriveReceipt>,
}

impl DriveReceipt {
    /// Of a CSE of this name, before anything is added.
    fn of(name: &str, rung: Option<PushdownLevel>) -> Self {
        Self { name: name.to_owned(), rung, slices_total: Some(0), rows_read: Some(0), ..Self::default() }
    }

    /// Adds what the CSE did on a sub-plan.
    fn add(&mut self, a: &Annotation) {
        self.rung = self.rung.min(a.rung);
        add(&mut self.slices, a.slices);
        add(&mut self.slices_pruned, a.slices_pruned);
        add(&mut self.slices_told, a.slices_told);
        add(&mut self.rows_out, a.rows_out);
        add(&mut self.bytes_read, a.bytes_read);
        add(&mut self.bytes_sent, a.bytes_sent);
        add(&mut self.bytes_received, a.bytes_received);
        self.slices_total = self.slices_total.zip(a.slices_total).map(|(sum, n)| sum.saturating_add(n));
        self.rows_read = self.rows_read.zip(a.rows_read).map(|(sum, n)| sum.saturating_add(n));
        self.seconds += a.seconds;
        self.peak_memory = self.peak_memory.max(a.peak_memory);
        self.reason = self.reason.take().or_else(|| a.reason.clone());
        self.profile = self.profile.take().or_else(|| a.profile.clone());
        self.served_by_fallback = self.served_by_fallback.take().or_else(|| a.served_by_fallback.clone());
        add(&mut self.slices_decoded, a.slices_decoded);
        add(&mut self.slices_within, a.slices_within);
        add(&mut self.bytes_decoded, a.bytes_decoded);
        self.cached |= a.cached;
        self.above.add(a.above);
        for one in &a.indexes {
            match self.indexes.iter_mut().find(|own| own.name == one.name) {
                Some(own) => {
                    add(&mut own.rows, one.rows);
                    add(&mut own.pages, one.pages);
                    add(&mut own.bytes, one.bytes);
                    own.covers &= one.covers;
                }
                None => self.indexes.push(one.clone()),
            }
        }
        for below in &a.below {
            among(&mut self.below, below);
        }
    }
}

/// Adds the figures of an annotation to those of its drive in `drives`.
pub fn among(drives: &mut Vec<DriveReceipt>, a: &Annotation) {
    let at = drives.iter().position(|d| d.name == a.cse).unwrap_or_else(|| {
        drives.push(DriveReceipt::of(&a.cse, a.rung));
        drives.len() - 1
    });
    drives[at].add(a);
}

/// In the order of their names, at every level.
pub fn sort(drives: &mut [DriveReceipt]) {
    drives.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)));
    drives.iter_mut().for_each(|drive| sort(&mut drive.below));
}

/// The work that drives did for one table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScanReceipt {
    /// The table as SQL names it.
    pub table: String,
    /// How much of the plan was sent down.
    pub rung: PushdownLevel,
    /// The sub-plan as text.
    pub sub_plan: String,
    /// Its number in the cut, by which [`HostOperator::scan`] refers to it.
    #[serde(default)]
    pub sub_plan_number: Option<u32>,
    /// Bytes of the sub-plan, once per drive that got it: as it is when in process, with its ticket when over a wire.
    pub plan_bytes: u64,
    /// The tables broadcast with it, for joins with a drive's own rows. Their bytes are in `plan_bytes`.
    #[serde(default)]
    pub beside: Vec<ShippedReceipt>,
    /// The number of joins whose keys went down with it as join filters.
    #[serde(default)]
    pub join_filters: u32,
    /// For an adaptive scan: the forecast, and what happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// What each drive wrote on it.
    pub annotations: Vec<Annotation>,
}

/// A small table that was broadcast with a sub-plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShippedReceipt {
    /// Its name in the sub-plan.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Its bytes on the way to each drive.
    pub bytes: u64,
}

/// An operator of the host's plan as it ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostOperator {
    /// Its figures.
    #[serde(flatten)]
    pub note: OperatorNote,
    /// Why it is on the host: what kept it from going down, or what is left after the drives. `None` where unknown.
    pub reason: Option<String>,
    /// Whether it only passes rows on, to other threads or in other portions.
    pub plumbing: bool,
    /// For the rows of drives: the number of the sub-plan.
    pub scan: Option<u32>,
}

/// A part of the super-plan that workers ran, between two exchanges of rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageReceipt {
    /// Its number, from the drives up.
    pub stage: u32,
    /// Its first operators, from the exchange down.
    pub title: String,
    /// What each worker that had a part of it did.
    pub tasks: Vec<TaskReceipt>,
}

/// What a worker did for a stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskReceipt {
    /// The worker's address.
    pub worker: String,
    /// Rows that it gave to the next stage, or to the host.
    pub rows: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// Seconds of work of its operators.
    pub seconds: f64,
}

/// What a query cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// Whether the query ran to its end. If not, the figures are those so far.
    pub finished: bool,
    /// Rows of the result.
    pub rows: u64,
    /// Bytes that the data sets of the query occupy on all drives.
    pub bytes_stored: u64,
    /// Bytes that drives read from their stores.
    pub bytes_read: u64,
    /// Bytes between host and drives, both ways: sub-plans, results, and the metadata that this query had to fetch.
    pub bytes_moved: u64,
    /// The part of `bytes_moved` that was metadata.
    pub bytes_metadata: u64,
    /// From the query's text to its last row.
    pub seconds: f64,
    /// An entry per CSE that took part.
    pub drives: Vec<DriveReceipt>,
    /// An entry per table that was read.
    pub scans: Vec<ScanReceipt>,
    /// Bytes of memory that the host's operators together held at most.
    #[serde(default)]
    pub host_peak_memory: u64,
    /// What ran on the host, from the root of its plan down.
    pub host: Vec<HostOperator>,
    /// What the host processed for drives: slices that they sent raw, and rows that they filtered. Its seconds are
    /// among those of the operators in `host` that take the drives' rows, and its bytes among those that drives read.
    #[serde(default)]
    pub host_work: ParentWork,
    /// Why parts of the query stayed on the host.
    pub notes: Vec<String>,
    /// What workers ran of the super-plan, where it was spread over several hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageReceipt>,
    /// What became of workers: those that were lost, and why a query was not spread over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<String>,
}

impl Receipt {
    /// The receipt as JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// What ran where, operator by operator, as a tree for people.
    #[must_use]
    pub fn tree(&self) -> String {
        Tree(self).to_string()
    }
}

/// From so much stored on, the share that moved says something.
const TELLING_BYTES: u64 = 64 << 10;

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of next to nothing a share says nothing: plans alone are larger.
        let part = if self.bytes_stored >= TELLING_BYTES {
            format!(" ({:.2}% of what is stored)", 100.0 * self.bytes_moved as f64 / self.bytes_stored as f64)
        } else {
            String::new()
        };
        write!(f, "{} in {}", counted(self.rows, "row"), human_seconds(self.seconds))?;
        writeln!(f, "{}", if self.finished { "" } else { ", not finished" })?;
        writeln!(
            f,
            "├─ stored {}, read by the drives {}, moved {}{part}",
            human_bytes(self.bytes_stored),
            human_bytes(self.bytes_read),
            human_bytes(self.bytes_moved)
        )?;
        // All bytes that moved.
        let results: u64 = self.drives.iter().map(|d| d.bytes_sent).sum();
        let rest = self.bytes_moved.saturating_sub(results);
        writeln!(f, "├─ results {}, plans and metadata {}", human_bytes(results), human_bytes(rest))?;
        // A sum of nothing would be -0.
        let host = self.host.iter().fold(0.0, |sum, o| sum + o.note.seconds);
        let notes: Vec<_> = telling(&self.notes).collect();
        let (said, steps) = (notes.join("; "), if self.host.len() == 1 { "step" } else { "steps" });
        writeln!(
            f,
            "{} host: {} of work in {} {steps}{}",
            if self.drives.is_empty() && notes.is_empty() { "└─" } else { "├─" },
            human_seconds(host),
            self.host.len(),
            handed_to_host(&self.host_work).map(|text| format!("; {text}")).unwrap_or_default()
        )?;
        for stage in &self.stages {
            let (tasks, rows) = (stage.tasks.len() as u64, stage.tasks.iter().map(|task| task.rows).sum());
            writeln!(f, "├─ stage {} on {}: {}, {} given on", stage.stage, counted(tasks, "worker"), stage.title, counted(rows, "row"))?;
        }
        for told in &self.workers {
            writeln!(f, "├─ workers: {told}")?;
        }
        for (i, note) in notes.iter().enumerate() {
            let last = self.drives.is_empty() && i + 1 == notes.len();
            writeln!(f, "{} on the host because {note}", if last { "└─" } else { "├─" })?;
        }
        levels(f, &self.drives, "", !notes.is_empty(), &said)?;
        Ok(())
    }
}

/// What the host did in the place of drives, if it did anything.
fn handed_to_host(work: &ParentWork) -> Option<String> {
    if work.is_none() {
        return None;
    }
    let seconds = human_seconds(work.seconds);
    Some(if work.slices > 0 {
        let (slices, rows) = (counted(work.slices, "slice"), counted(work.rows_read, "row"));
        format!("{seconds} of it for {slices} that drives handed out ({}, {rows} read)", human_bytes(work.bytes_read))
    } else {
        format!("{seconds} of it for rows that drives had filtered")
    })
}

/// How the slices of a drive that failed over were decoded.
fn decoded(drive: &DriveReceipt) -> String {
    let (mut slices, bytes) = (counted(drive.slices_decoded, "slice"), human_bytes(drive.bytes_decoded));
    if drive.slices_within > 0 {
        slices.push_str(&format!(" ({} of them within its node)", drive.slices_within));
    }
    match (drive.slices_decoded, drive.bytes_decoded) {
        (0, 0) if drive.rung == Some(PushdownLevel::Raw) => "from the values that it gave".to_owned(),
        (0, 0) => "none of its slices was needed".to_owned(),
        // Copies of metadata.
        (0, _) => format!("none of its slices was needed, {bytes} of other drives read"),
        (_, 0) => format!("{slices} decoded, from what was read of other drives before"),
        _ => format!("{slices} decoded from {bytes} of other drives"),
    }
}

/// A line per drive, and below an aggregator those of its drives. `kept`: whether the host kept operators, which `said`
/// reports elsewhere.
fn levels(f: &mut fmt::Formatter<'_>, drives: &[DriveReceipt], indent: &str, kept: bool, said: &str) -> fmt::Result {
    for (i, d) in drives.iter().enumerate() {
        let last = i + 1 == drives.len();
        let rung = match d.rung {
            Some(PushdownLevel::Raw) => "only read here",
            // All of it where the drive was gone before, a part where it went in the middle.
            Some(_) if d.served_by_fallback.is_some() => "not all of it ran here",
            _ if d.cached => "answered from kept results",
            // What the host kept is reported above.
            Some(PushdownLevel::Full) if kept => "its whole sub-plan ran here",
            Some(PushdownLevel::Full) => "everything ran here",
            Some(PushdownLevel::Filter) => "filtered here",
            None => "nothing ran here",
        };
        let mut unread = Vec::new();
        if d.slices_pruned > 0 {
            unread.push(format!("{} skipped", d.slices_pruned));
        }
        if d.slices_told > 0 && !d.cached {
            unread.push(format!("{} told by metadata", d.slices_told));
        }
        let unread = if unread.is_empty() { String::new() } else { format!(" ({})", unread.join(", ")) };
        let handed = if d.above.slices > 0 { format!(" and {} handed out", human_count(d.above.slices)) } else { String::new() };
        writeln!(
            f,
            "{indent}{} {}{}: {rung}; {}{handed}{unread}, {} read, {}, {} sent, {}",
            if last { "└─" } else { "├─" },
            d.name,
            d.profile.as_ref().map(|profile| format!(" ({profile})")).unwrap_or_default(),
            counted(d.slices, "slice"),
            human_bytes(d.bytes_read),
            counted(d.rows_out, "row"),
            human_bytes(d.bytes_sent),
            human_seconds(d.seconds)
        )?;
        let inner = format!("{indent}{}  ", if last { " " } else { "│" });
        if let Some(reason) = d.reason.as_ref().filter(|r| *r != said && Some(*r) != d.served_by_fallback.as_ref()) {
            writeln!(f, "{inner}{} {reason}", if d.below.is_empty() && d.served_by_fallback.is_none() { "└─" } else { "├─" })?;
        }
        for index in &d.indexes {
            let instead = if index.covers { "whose values are in it" } else { "of which slices were read" };
            writeln!(
                f,
                "{inner}{} index {}: {} found, {instead}; {}, {} of it read",
                if d.below.is_empty() && d.served_by_fallback.is_none() { "└─" } else { "├─" },
                index.name,
                counted(index.rows, "row"),
                counted(index.pages, "page"),
                human_bytes(index.bytes)
            )?;
        }
        if let Some(why) = &d.served_by_fallback {
            writeln!(f, "{inner}{} run on the host in its place: {}, because {why}", if d.below.is_empty() { "└─" } else { "├─" }, decoded(d))?;
        }
        levels(f, &d.below, &inner, kept, said)?;
    }
    Ok(())
}

/// Notes that give a reason of their own; the others only follow from one below them.
pub fn telling(notes: &[String]) -> impl Iterator<Item = &str> {
    notes.iter().map(String::as_str).filter(|n| !n.split_once(": ").is_some_and(|(_, reason)| plan_words::only_follows(reason)))
}

/// Drives may say any number.
pub fn add(sum: &mut u64, figure: u64) {
    *sum = sum.saturating_add(figure);
}

/// `drive-10` comes after `drive-9`.
pub(crate) fn natural(name: &str) -> (&str, u64, &str) {
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (head, name[head.len()..].parse().unwrap_or(0), name)
}

/// What a receipt is read from while its query runs and afterwards: the profile of a query in this process, or what
/// another host has sent of it so far.
pub trait ReceiptSource: Send + Sync + std::fmt::Debug {
    /// The receipt as of now.
    fn receipt(&self) -> Receipt;
}

/// Gives a query's receipt: complete after its last row; before that, the figures so far.
#[derive(Debug, Clone)]
pub struct ReceiptHandle(std::sync::Arc<dyn ReceiptSource>);

impl ReceiptHandle {
    /// The handle of a query whose receipt `source` gives.
    #[must_use]
    pub fn new(source: std::sync::Arc<dyn ReceiptSource>) -> Self {
        Self(source)
    }

    /// The receipt as of now.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        self.0.receipt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallback_reason_keeps_its_name_in_json() {
        let drive = DriveReceipt { served_by_fallback: Some("drive-1 is down".to_owned()), ..DriveReceipt::default() };
        let receipt = Receipt { drives: vec![drive], ..Receipt::default() };
        let json = receipt.to_json();
        assert_eq!(json["drives"][0]["stood_for"], "drive-1 is down");
        assert_eq!(serde_json::from_value::<Receipt>(json).unwrap(), receipt);
    }
}
