//! The annotation that a CSE writes about a plan that it ran, or did not run.

use serde::{Deserialize, Deserializer, Serialize};
use skytether_common::operator_stats::{MAX_DETAIL, OperatorStats, shortened};
use skytether_scheduler::message::PushdownLevel;

/// The most operators in an annotation.
pub const MAX_OPERATORS: usize = 512;

/// The longest name in an annotation, in characters.
const MAX_NAME: usize = 80;

/// The longest reason, in characters.
const MAX_REASON: usize = 1000;

/// One operator as it ran, on a drive or on the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperatorNote {
    /// The physical operator, for example `AggregateExec`.
    pub name: String,
    /// Depth below the root of the plan, 0 for the root.
    pub depth: u32,
    /// Rows that it gave; `None` where it does not count them.
    pub rows_out: Option<u64>,
    /// Seconds of processor time that it took, without its inputs, over all its threads.
    pub seconds: f64,
    /// What it ran: groups, keys, conditions.
    pub detail: String,
    /// The most bytes of memory that it held, where it reports that.
    pub peak_memory: u64,
    /// Bytes that it spilled to disk.
    pub bytes_spilled: u64,
}

impl OperatorNote {
    /// The note of an operator at `depth` below the root.
    #[must_use]
    pub fn new(stats: OperatorStats, depth: u32) -> Self {
        let OperatorStats { name, detail, counted, rows_out, seconds, peak_memory, bytes_spilled } = stats;
        Self { name, depth, rows_out: counted.then_some(rows_out), seconds, detail, peak_memory, bytes_spilled }
    }
}

/// What an index of a CSE contributed to a scan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexNote {
    /// The index.
    pub name: String,
    /// Rows that it found.
    pub rows: u64,
    /// Pages of it that were read.
    pub pages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether it held all wanted values, so that its rows needed no slice.
    pub covers: bool,
}

/// What the parent of a CSE processed in its place: slices that the CSE sent raw, and rows that it filtered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParentWork {
    /// Slices sent raw and processed by the parent. The CSE's own figure does not include them.
    pub slices: u64,
    /// Rows of them that scans looked at, including those that a condition excluded.
    pub rows_read: u64,
    /// Bytes of them as stored. The CSE read them too, so its own figure includes them.
    pub bytes_read: u64,
    /// Seconds of processor time, for these slices and for rows that were filtered below.
    pub seconds: f64,
}

impl ParentWork {
    /// Adds the work of another part, or for another CSE.
    pub fn add(&mut self, other: Self) {
        self.slices = self.slices.saturating_add(other.slices);
        self.rows_read = self.rows_read.saturating_add(other.rows_read);
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.seconds += other.seconds;
    }

    /// Whether the parent processed nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The most indexes in an annotation.
const MAX_INDEXES: usize = 16;

/// What happened to a sub-plan at one CSE.
///
/// It travels as JSON between versions that may differ. Fields are only ever added, each with a default for peers that
/// do not send it; readers ignore fields that they do not know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotation {
    /// The CSE's name, for example `drive-2`.
    pub cse: String,
    /// The pushdown level that ran; `None` where nothing ran, and for a level that this version does not know.
    #[serde(deserialize_with = "known_rung")]
    pub rung: Option<PushdownLevel>,
    /// Slices that were read and processed here.
    pub slices: u64,
    /// Slices that statistics showed to hold nothing of interest.
    pub slices_pruned: u64,
    /// Slices whose metadata answered the question: numbers of rows, smallest and largest values.
    pub slices_told: u64,
    /// Slices of the tables of the sub-plan. A limit leaves some unread that are neither pruned nor answered by
    /// metadata.
    pub slices_total: Option<u64>,
    /// Rows of the slices that scans looked at, including those that a condition excluded.
    pub rows_read: Option<u64>,
    /// Rows that left the CSE.
    pub rows_out: u64,
    /// Bytes read from the store, including slices sent raw.
    pub bytes_read: u64,
    /// Bytes of the sub-plan that arrived.
    pub bytes_received: u64,
    /// Bytes of results that went out: Arrow buffers when in process, IPC frames when over a wire.
    pub bytes_sent: u64,
    /// Seconds from the sub-plan's arrival to the last batch.
    pub seconds: f64,
    /// Highest number of bytes that the engine's memory pool had granted.
    pub peak_memory: u64,
    /// The operators, from the root down; at most [`MAX_OPERATORS`].
    pub operators: Vec<OperatorNote>,
    /// Why less than the whole sub-plan ran here; `None` where all of it did.
    pub reason: Option<String>,
    /// The name of the device profile that the CSE keeps to, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Why another CSE ran this one's sub-plan in its place, over what other drives have of it; `None` where it ran
    /// it itself.
    #[serde(rename = "stood_for", skip_serializing_if = "Option::is_none")]
    pub served_by_fallback: Option<String>,
    /// Slices that were decoded from slices of other drives, or came from copies there.
    #[serde(skip_serializing_if = "is_none")]
    pub slices_decoded: u64,
    /// The part of them that needed drives of the same host only, where redundancy is on two levels.
    #[serde(skip_serializing_if = "is_none")]
    pub slices_within: u64,
    /// Bytes of other drives that this was made from: read for it, or for the query as well.
    #[serde(skip_serializing_if = "is_none")]
    pub bytes_decoded: u64,
    /// Whether the answer is a result that the CSE had kept ([`crate::kept`]).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cached: bool,
    /// The indexes that were used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexNote>,
    /// What the parent did in the place of the CSE; the parent fills it in.
    #[serde(skip_serializing_if = "ParentWork::is_none")]
    pub above: ParentWork,
    /// What happened at the CSEs below, where this one is a host of others; their figures of slices and bytes read
    /// are in its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<Annotation>,
}

/// Whether a figure is nought, and is left out of the JSON.
fn is_none(n: &u64) -> bool {
    *n == 0
}

/// The deepest tree of CSEs in an annotation, and the most CSEs on one level.
const MAX_LEVELS: u32 = 8;
const MAX_BELOW: usize = 1024;

impl Annotation {
    /// Adds what the same CSE did in another part of the same sub-plan.
    pub fn add(&mut self, other: Self) {
        let sum = u64::saturating_add;
        self.rung = self.rung.min(other.rung);
        self.slices = sum(self.slices, other.slices);
        self.slices_pruned = sum(self.slices_pruned, other.slices_pruned);
        self.slices_told = sum(self.slices_told, other.slices_told);
        self.slices_total = self.slices_total.zip(other.slices_total).map(|(a, b)| sum(a, b));
        self.rows_read = self.rows_read.zip(other.rows_read).map(|(a, b)| sum(a, b));
        self.rows_out = sum(self.rows_out, other.rows_out);
        self.bytes_read = sum(self.bytes_read, other.bytes_read);
        self.bytes_received = sum(self.bytes_received, other.bytes_received);
        self.bytes_sent = sum(self.bytes_sent, other.bytes_sent);
        self.seconds += other.seconds;
        self.peak_memory = self.peak_memory.max(other.peak_memory);
        self.reason = self.reason.take().or(other.reason);
        self.profile = self.profile.take().or(other.profile);
        self.served_by_fallback = self.served_by_fallback.take().or(other.served_by_fallback);
        self.slices_decoded = sum(self.slices_decoded, other.slices_decoded);
        self.slices_within = sum(self.slices_within, other.slices_within);
        self.bytes_decoded = sum(self.bytes_decoded, other.bytes_decoded);
        self.cached |= other.cached;
        self.above.add(other.above);
        if self.operators.is_empty() {
            self.operators = other.operators;
        }
        for one in other.indexes {
            match self.indexes.iter_mut().find(|own| own.name == one.name) {
                Some(own) => {
                    (own.rows, own.pages, own.bytes) = (sum(own.rows, one.rows), sum(own.pages, one.pages), sum(own.bytes, one.bytes));
                    own.covers &= one.covers;
                }
                None => self.indexes.push(one),
            }
        }
        for one in other.below {
            match self.below.iter_mut().find(|own| own.cse == one.cse) {
                Some(own) => own.add(one),
                None => self.below.push(one),
            }
        }
    }

    /// What a host keeps of an annotation that came from `cse`, which may be wrong or hostile. It gets the name that
    /// the host knows; texts, operators and depth are bounded, and times are valid times.
    #[must_use]
    pub fn taken_from(self, cse: &str) -> Self {
        // No other process reports what the host did itself.
        Self { above: ParentWork::default(), ..self }.taken(cse.to_owned(), MAX_LEVELS)
    }

    fn taken(mut self, cse: String, levels: u32) -> Self {
        self.cse = cse;
        self.below.truncate(if levels > 0 { MAX_BELOW } else { 0 });
        self.below = self.below.into_iter().map(|one| (shortened(&one.cse, MAX_NAME), one)).map(|(cse, one)| one.taken(cse, levels - 1)).collect();
        (self.seconds, self.above.seconds) = (time(self.seconds), time(self.above.seconds));
        self.reason = self.reason.map(|reason| shortened(&reason, MAX_REASON));
        self.profile = self.profile.map(|profile| shortened(&profile, MAX_NAME));
        self.operators.truncate(MAX_OPERATORS);
        self.indexes.truncate(MAX_INDEXES);
        for index in &mut self.indexes {
            index.name = shortened(&index.name, MAX_NAME);
        }
        let mut deepest = 0;
        for operator in &mut self.operators {
            operator.name = shortened(&operator.name, MAX_NAME);
            operator.detail = shortened(&operator.detail, MAX_DETAIL);
            operator.depth = operator.depth.min(deepest);
            operator.seconds = time(operator.seconds);
            deepest = operator.depth + 1;
        }
        self
    }
}

fn time(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }
}

fn known_rung<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PushdownLevel>, D::Error> {
    let said = Option::<serde_json::Value>::deserialize(from)?;
    Ok(said.and_then(|rung| PushdownLevel::deserialize(rung).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Annotation {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn older_and_newer_peers_are_understood() {
        let old = read(
            r#"{"cse": "drive-1", "rung": "full", "slices": 2, "slices_pruned": 1, "rows_out": 5, "bytes_read": 7, "bytes_received": 1, "bytes_sent": 2, "seconds": 0.5,
                "peak_memory": 3, "operators": [{"name": "SliceScanExec", "depth": 0, "rows_out": 9, "seconds": 0.25}], "reason": null}"#,
        );
        assert_eq!((old.rung, old.rows_read, old.slices_total, old.slices), (Some(PushdownLevel::Full), None, None, 2));
        assert_eq!((old.operators[0].rows_out, old.operators[0].bytes_spilled), (Some(9), 0));
        let new =
            read(r#"{"cse": "drive-1", "rung": "pushed_back", "rows_out": 5, "joules": [1, 2], "operators": [{"name": "X", "rows_out": null, "energy": {}}]}"#);
        assert_eq!((new.rung, new.rows_out, new.operators.len(), new.operators[0].rows_out), (None, 5, 1, None));
        let own = Annotation { rung: Some(PushdownLevel::Filter), rows_read: Some(4), operators: old.operators, ..Annotation::default() };
        assert_eq!(read(&serde_json::to_string(&own).unwrap()), own);
    }

    #[test]
    fn annotations_of_hostile_drives_are_bounded() {
        let operator = OperatorNote { name: "x".repeat(10_000), detail: "\u{1b}[31m".repeat(5000), depth: u32::MAX, seconds: -1.0, ..OperatorNote::default() };
        let hostile = Annotation {
            cse: "drive-9".into(),
            seconds: f64::NAN,
            reason: Some("r".repeat(1 << 20)),
            operators: vec![operator; 10_000],
            rows_out: u64::MAX,
            above: ParentWork { slices: 7, seconds: f64::INFINITY, ..ParentWork::default() },
            below: vec![Annotation { above: ParentWork { slices: 3, seconds: -1.0, ..ParentWork::default() }, ..Annotation::default() }],
            ..Annotation::default()
        };
        let taken = hostile.taken_from("drive-1");
        assert_eq!((taken.cse.as_str(), taken.seconds, taken.operators.len()), ("drive-1", 0.0, MAX_OPERATORS));
        assert!(taken.above.is_none() && taken.below[0].above == ParentWork { slices: 3, ..ParentWork::default() }, "{:?}", taken.below);
        assert!(taken.reason.unwrap().chars().count() == MAX_REASON);
        for (at, operator) in taken.operators.iter().enumerate() {
            assert!(operator.name.len() <= MAX_NAME && operator.detail.len() <= MAX_DETAIL && !operator.detail.contains('\u{1b}'));
            assert!(operator.depth as usize <= at && operator.seconds == 0.0, "{operator:?}");
        }
    }
}
