//! Collects the receipt while its query runs.

use std::sync::Arc;
use std::time::Instant;

use datafusion::execution::memory_pool::PeakRecordingPool;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::Pushdown;
use skytether_device::{Annotation, OperatorNote, ParentWork, PushdownLevel};
use skytether_plan::operator_metrics;

use skytether_api::estimate::Estimate;
use skytether_api::receipt::{HostOperator, Receipt, ReceiptSource, ScanReceipt, ShippedReceipt, add, among, sort, telling};
use skytether_common::plan_words::is_plumbing;

/// Gathers a query's annotations while it runs.
#[derive(Debug)]
pub struct Collector {
    started: Instant,
    cut: Pushdown,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    receipt: Receipt,
    plan: Option<Running>,
}

/// The physical plan of a running query, and for each operator, from the root down, why it is on the host.
#[derive(Debug)]
struct Running {
    plan: Arc<dyn ExecutionPlan>,
    reasons: Vec<Option<String>>,
    /// For each operator, from the root down: the number of the sub-plan whose rows it reads, if any.
    scans: Vec<Option<u32>>,
    memory: Arc<PeakRecordingPool>,
}

impl Running {
    fn tell(&self, receipt: &mut Receipt) {
        operators(self.plan.as_ref(), 0, (&self.reasons, &self.scans), &mut receipt.host);
        receipt.host_peak_memory = self.memory.max_reserved() as u64;
    }
}

impl Collector {
    /// A collector of a query that began at `started` and is cut as `cut` says.
    pub fn new(started: Instant, cut: Pushdown) -> Self {
        Self { started, cut, state: Mutex::new(State::default()) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is a plain assignment, so what a panicking thread left is still whole.
        self.state.lock()
    }

    /// Metadata of `bytes` had to be fetched.
    pub fn metadata(&self, bytes: u64) {
        self.lock().receipt.bytes_metadata += bytes;
    }

    /// A table of `bytes` is read from: bytes as stored, on all drives.
    pub fn stored(&self, bytes: u64) {
        self.lock().receipt.bytes_stored += bytes;
    }

    /// A line for people; the same text counts once.
    pub fn note(&self, note: String) {
        let notes = &mut self.lock().receipt.notes;
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// Adds a scan, and returns its number for the other calls.
    pub fn scan(&self, table: String, rung: PushdownLevel, sub_plan: String, sub_plan_number: Option<u32>) -> usize {
        let scans = &mut self.lock().receipt.scans;
        scans.push(ScanReceipt {
            table,
            rung,
            sub_plan,
            sub_plan_number,
            plan_bytes: 0,
            beside: Vec::new(),
            join_filters: 0,
            estimate: None,
            annotations: Vec::new(),
        });
        scans.len() - 1
    }

    /// The keys of `joins` joins go down with a scan.
    pub(crate) fn filtered(&self, scan: usize, joins: usize) {
        if let Some(scan) = self.lock().receipt.scans.get_mut(scan) {
            scan.join_filters = u32::try_from(joins).unwrap_or(u32::MAX);
        }
    }

    /// These small tables go down with a scan, to every drive.
    pub(crate) fn beside(&self, scan: usize, tables: Vec<ShippedReceipt>) {
        if let Some(scan) = self.lock().receipt.scans.get_mut(scan) {
            scan.beside = tables;
        }
    }

    /// The forecast of a scan, and what it took.
    pub(crate) fn estimate(&self, scan: usize, estimate: Estimate) {
        if let Some(scan) = self.lock().receipt.scans.get_mut(scan) {
            scan.estimate = Some(estimate);
        }
    }

    /// A drive has begun to work; the number of its annotation within the scan.
    pub fn begin(&self, scan: usize, annotation: Annotation) -> usize {
        match self.lock().receipt.scans.get_mut(scan) {
            Some(scan) => {
                scan.annotations.push(annotation);
                scan.annotations.len() - 1
            }
            None => 0,
        }
    }

    /// Changes the annotation of a drive.
    pub(crate) fn update(&self, scan: usize, number: usize, change: impl FnOnce(&mut Annotation)) {
        if let Some(annotation) = self.lock().receipt.scans.get_mut(scan).and_then(|s| s.annotations.get_mut(number)) {
            change(annotation);
        }
    }

    /// The physical plan is about to run. `reasons` and `scans` are of its operators from the root down: why each is on
    /// the host, and the number of the sub-plan whose rows it reads. `memory` records the peak.
    pub fn plan(&self, plan: Arc<dyn ExecutionPlan>, reasons: Vec<Option<String>>, scans: Vec<Option<u32>>, memory: Arc<PeakRecordingPool>) {
        self.lock().plan = Some(Running { plan, reasons, scans, memory });
    }

    /// `rows` more of the result were delivered.
    pub fn rows(&self, rows: u64) {
        self.lock().receipt.rows += rows;
    }

    /// The result has been delivered to its last row, or the reader has left.
    pub fn finish(&self, complete: bool) {
        let seconds = self.started.elapsed().as_secs_f64();
        let mut state = self.lock();
        state.receipt.finished |= complete;
        if state.receipt.seconds == 0.0 {
            state.receipt.seconds = seconds;
        }
        // The physical plan may hold much memory; only its figures are needed from here on.
        if let Some(running) = state.plan.take() {
            running.tell(&mut state.receipt);
        }
    }
}

impl ReceiptSource for Collector {
    fn receipt(&self) -> Receipt {
        let state = self.lock();
        let mut receipt = state.receipt.clone();
        if let Some(running) = &state.plan {
            running.tell(&mut receipt);
        }
        if receipt.seconds == 0.0 {
            receipt.seconds = self.started.elapsed().as_secs_f64();
        }
        drop(state);
        sum_up(&mut receipt, self.cut);
        receipt
    }
}

fn sum_up(receipt: &mut Receipt, cut: Pushdown) {
    receipt.drives.clear();
    let why = shortened(cut, &receipt.notes);
    for scan in &mut receipt.scans {
        scan.plan_bytes = 0;
        for a in &scan.annotations {
            add(&mut scan.plan_bytes, a.bytes_received);
            among(&mut receipt.drives, a);
        }
    }
    for d in &mut receipt.drives {
        d.reason = d.reason.take().or_else(|| why.clone());
    }
    sort(&mut receipt.drives);
    (receipt.bytes_read, receipt.bytes_moved, receipt.host_work) = (0, receipt.bytes_metadata, ParentWork::default());
    for d in &receipt.drives {
        // What aggregators processed for their own drives is in the figures of the aggregators.
        receipt.host_work.add(d.above);
        add(&mut receipt.bytes_read, d.bytes_read);
        add(&mut receipt.bytes_moved, d.bytes_sent);
    }
    for scan in &receipt.scans {
        add(&mut receipt.bytes_moved, scan.plan_bytes);
    }
}

/// Why a drive did less than everything although it did all that it was sent.
fn shortened(cut: Pushdown, notes: &[String]) -> Option<String> {
    match cut {
        Pushdown::Raw => Some("asked for raw slices only (cut = raw)".to_owned()),
        Pushdown::Filter => Some("asked for scan, filter and projection only (cut = filter)".to_owned()),
        Pushdown::Adaptive | Pushdown::Full => Some(telling(notes).collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty()),
    }
}

fn operators(plan: &dyn ExecutionPlan, depth: u32, notes: (&[Option<String>], &[Option<u32>]), host: &mut Vec<HostOperator>) {
    let stats = operator_metrics::of(plan);
    let (reasons, scans) = notes;
    let (reason, scan) = (reasons.get(host.len()).cloned().flatten(), scans.get(host.len()).copied().flatten());
    let plumbing = is_plumbing(&stats.name, plan.fetch().is_some());
    host.push(HostOperator { note: OperatorNote::new(stats, depth), reason, plumbing, scan });
    for child in plan.children() {
        operators(child.as_ref(), depth + 1, notes, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotation(cse: &str, rung: PushdownLevel, sent: u64) -> Annotation {
        Annotation {
            cse: cse.to_owned(),
            rung: Some(rung),
            slices: 2,
            slices_pruned: 1,
            rows_out: 5,
            bytes_read: 1000,
            bytes_sent: sent,
            bytes_received: 50,
            ..Annotation::default()
        }
    }

    #[test]
    fn figures_of_all_scans_add_up_per_drive() {
        let collector = Collector::new(Instant::now(), Pushdown::Full);
        collector.stored(100_000);
        collector.metadata(7);
        let a = collector.scan("a.b".into(), PushdownLevel::Full, "TableScan".into(), Some(0));
        let b = collector.scan("a.c".into(), PushdownLevel::Raw, "TableScan".into(), Some(1));
        collector.begin(a, annotation("drive-10", PushdownLevel::Full, 100));
        collector.begin(a, annotation("drive-9", PushdownLevel::Full, 100));
        collector.begin(b, annotation("drive-9", PushdownLevel::Raw, 100));
        collector.rows(3);
        collector.finish(true);
        let receipt = collector.receipt();
        assert_eq!(
            receipt.drives.iter().map(|d| (d.name.as_str(), d.rung, d.slices)).collect::<Vec<_>>(),
            [("drive-9", Some(PushdownLevel::Raw), 4), ("drive-10", Some(PushdownLevel::Full), 2)]
        );
        assert_eq!((receipt.bytes_moved, receipt.bytes_read, receipt.rows), (457, 3000, 3));
        let json = receipt.to_json();
        for key in ["bytes_stored", "bytes_read", "bytes_moved", "seconds", "drives"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(json["drives"][0]["rung"], "raw");
        let text = receipt.to_string();
        assert!(text.contains("drive-9: only read here") && text.contains("0.46% of what is stored"), "{text}");
        let tiny = Receipt { bytes_stored: 2_000, ..receipt };
        assert!(!tiny.to_string().contains('%'), "{tiny}");
    }

    #[test]
    fn slices_sent_raw_count_once_and_as_work_of_the_host() {
        let collector = Collector::new(Instant::now(), Pushdown::Adaptive);
        let scan = collector.scan("a.b".into(), PushdownLevel::Full, "TableScan".into(), Some(0));
        let above = ParentWork { slices: 7, rows_read: 70, bytes_read: 600, seconds: 0.25 };
        let aggregator =
            Annotation { below: vec![Annotation { above, ..annotation("a", PushdownLevel::Raw, 1) }], ..annotation("left", PushdownLevel::Full, 1) };
        for told in [
            Annotation { above, ..annotation("drive-0", PushdownLevel::Raw, 600) },
            Annotation { above, ..annotation("drive-1", PushdownLevel::Raw, 600) },
            aggregator,
        ] {
            collector.begin(scan, told);
        }
        let receipt = collector.receipt();
        assert_eq!(receipt.host_work, ParentWork { slices: 14, rows_read: 140, bytes_read: 1200, seconds: 0.5 });
        assert_eq!(receipt.bytes_read, 3000, "the drives read these bytes, and nobody else");
        assert_eq!(receipt.host_work, collector.receipt().host_work, "however often it is asked");
        let text = receipt.to_string();
        assert!(text.contains("500.0 ms of it for 14 slices that drives handed out (1.17 KiB, 140 rows read)"), "{text}");
        assert_eq!(receipt.to_json()["host_work"]["slices"], 14);
    }

    #[test]
    fn receipt_tells_how_a_lost_drive_was_served() {
        for (slices, bytes, says) in [
            (3, 2048, "3 slices decoded from 2.00 KiB of other drives, because"),
            (3, 0, "3 slices decoded, from what was read of other drives before, because"),
            (0, 2048, "none of its slices was needed, 2.00 KiB of other drives read, because"),
            (0, 0, "none of its slices was needed, because"),
        ] {
            let collector = Collector::new(Instant::now(), Pushdown::Full);
            let scan = collector.scan("a.b".into(), PushdownLevel::Full, "TableScan".into(), Some(0));
            let served_by_fallback = Some("drive-0 is lost".to_owned());
            collector
                .begin(scan, Annotation { served_by_fallback, slices_decoded: slices, bytes_decoded: bytes, ..annotation("drive-0", PushdownLevel::Full, 1) });
            let text = collector.receipt().to_string();
            assert!(text.contains(says), "{text}");
        }
    }

    #[test]
    fn reasons_say_why_less_than_everything_ran_below() {
        for (cut, word) in [(Pushdown::Raw, Some("cut = raw")), (Pushdown::Filter, Some("cut = filter")), (Pushdown::Full, None)] {
            let collector = Collector::new(Instant::now(), cut);
            let scan = collector.scan("a.b".into(), PushdownLevel::Full, "TableScan".into(), Some(0));
            collector.begin(scan, Annotation { slices: 1, rows_out: 1, ..annotation("drive-0", PushdownLevel::Full, 1) });
            collector.note("Projection: it follows the merge of the drives' states".into());
            let receipt = collector.receipt();
            assert_eq!(receipt.drives[0].reason.is_some(), word.is_some(), "{cut}");
            let text = receipt.to_string();
            assert!(word.is_none_or(|w| text.contains(w)) && !text.contains("Projection"), "{text}");
            assert!(text.contains("1 slice (1 skipped)") && text.contains("1 row,"), "{text}");
            if word.is_none() {
                collector.note("Window: needs all rows".into());
                let receipt = collector.receipt();
                assert_eq!(receipt.drives[0].reason.as_deref(), Some("Window: needs all rows"));
                assert_eq!(receipt.to_string().matches("needs all rows").count(), 1, "{receipt}");
            }
        }
    }

    #[test]
    fn time_stops_once_the_query_is_over() {
        let collector = Collector::new(Instant::now(), Pushdown::Full);
        collector.finish(true);
        let first = collector.receipt().seconds;
        assert_eq!(collector.receipt().seconds, first);
        assert!(first > 0.0);
    }
}
