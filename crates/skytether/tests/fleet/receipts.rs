//! Receipts report what happened.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array};
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use skytether::{Fleet, Pushdown, QueryOptions, Receipt};

use crate::util::{CUTS, batches, ingest, name, open, query};

pub(crate) async fn receipt(fleet: &Fleet, sql: &str, cut: Pushdown) -> Receipt {
    let mut query = fleet.sql(sql, &QueryOptions { cut, ..QueryOptions::default() }).await.unwrap();
    while let Some(batch) = query.stream.next().await {
        batch.unwrap();
    }
    query.receipt.receipt()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushdown_moves_less_and_receipts_show_it() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(10, 500), false).await.unwrap();
    let stored = fleet.describe(&name("lab.t")).await.unwrap();
    let slices: u64 = stored.tables["data"].partitions.iter().map(|p| u64::from(p.slices)).sum();
    let sql = "SELECT grp, avg(x) FROM lab.t WHERE n > 0 GROUP BY grp";
    let [full, filter, raw] =
        [receipt(&fleet, sql, Pushdown::Full).await, receipt(&fleet, sql, Pushdown::Filter).await, receipt(&fleet, sql, Pushdown::Raw).await];
    for (r, rung) in [(&full, "full"), (&filter, "filter"), (&raw, "raw")] {
        assert!(r.finished);
        assert_eq!(r.rows, 4);
        assert_eq!(r.bytes_stored, stored.bytes());
        assert_eq!(r.drives.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["drive-0", "drive-1", "drive-2"]);
        assert_eq!(r.drives.iter().map(|d| d.slices + d.slices_pruned).sum::<u64>(), slices, "{rung}");
        assert_eq!(r.to_json()["drives"][0]["rung"], rung);
        assert!(r.bytes_read > 0 && r.seconds > 0.0);
        assert!(r.to_string().contains("drive-2"), "{r}");
        for d in &r.drives {
            match (rung, &d.reason) {
                ("full", reason) => assert_eq!(*reason, None),
                (rung, reason) => assert!(reason.as_ref().is_some_and(|r| r.contains(&format!("cut = {rung}"))), "{reason:?}"),
            }
        }
    }
    assert_eq!(raw.drives.iter().map(|d| d.rows_out).sum::<u64>(), 5000);
    assert!(full.drives.iter().map(|d| d.rows_out).sum::<u64>() <= 12);
    assert!(full.bytes_moved < filter.bytes_moved && filter.bytes_moved < raw.bytes_moved, "{} {} {}", full.bytes_moved, filter.bytes_moved, raw.bytes_moved);
    assert!(raw.notes.iter().any(|n| n.contains("Aggregate")), "{:?}", raw.notes);
    assert!(full.host.iter().any(|o| o.note.name == "DriveScanExec"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_save_reading_and_the_receipt_counts_it() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(20, 500), false).await.unwrap();
    let all = receipt(&fleet, "SELECT sum(n) FROM lab.t", Pushdown::Full).await;
    let one = receipt(&fleet, "SELECT sum(n) FROM lab.t WHERE id = 77", Pushdown::Full).await;
    let pruned: u64 = one.drives.iter().map(|d| d.slices_pruned).sum();
    assert!(pruned > 0 && one.bytes_read < all.bytes_read, "{pruned} skipped, {} of {} read", one.bytes_read, all.bytes_read);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_without_possible_matches_are_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    // Slices are distributed round robin, so each drive has other ids.
    ingest(&fleet, "lab.t", &batches(6, 1000), false).await.unwrap();
    let nans = RecordBatch::try_from_iter([("x", Arc::new(Float64Array::from(vec![1.0, f64::NAN, 3.0])) as ArrayRef)]).unwrap();
    ingest(&fleet, "lab.nan", &[nans], false).await.unwrap();
    let asked = |r: &Receipt| r.scans[0].annotations.iter().filter(|a| a.bytes_received > 0).count();
    let slices = |r: &Receipt| {
        let of = r.drives.iter().map(|d| (d.slices, d.slices_pruned, d.slices_total.unwrap()));
        of.fold((0, 0, 0), |a, d| (a.0 + d.0, a.1 + d.1, a.2 + d.2))
    };

    for cut in CUTS {
        let all = receipt(&fleet, "SELECT count(*), sum(n) FROM lab.t WHERE n >= -100", cut).await;
        let (_, _, total) = slices(&all);
        assert_eq!((asked(&all), all.drives.len()), (3, 3));
        for from in ["lab.t", "lab.t AS t", "lab.t.data"] {
            let none = format!("SELECT id, x FROM {from} WHERE id > 10000 AND grp <> 'alpha' ORDER BY id LIMIT 3");
            assert!(query(&fleet, &none, cut).await.unwrap().is_empty());
            let none = receipt(&fleet, &none, cut).await;
            assert!(none.finished && none.drives.len() == 3);
            if cut != Pushdown::Raw {
                assert_eq!((asked(&none), slices(&none), none.bytes_moved), (0, (0, total, total), none.bytes_metadata), "{none}");
                assert!(none.to_string().contains("not asked: the bounds in the root record"), "{none}");
            }
        }
        // What has a row where there are none is for a drive to tell.
        assert_eq!(query(&fleet, "SELECT count(*), sum(n), max(x) FROM lab.t WHERE id < -1", cut).await.unwrap(), ["0 | - | -"]);
        assert!(query(&fleet, "SELECT grp, count(*) FROM lab.t WHERE x > 1e9 GROUP BY grp", cut).await.unwrap().is_empty());
        let (some, alphas) = ("SELECT count(*) FROM lab.t WHERE id < 0 OR grp = 'alpha' AND id IS NOT NULL", "SELECT count(*) FROM lab.t WHERE grp = 'alpha'");
        assert_eq!(query(&fleet, some, cut).await.unwrap(), query(&fleet, alphas, cut).await.unwrap());
        // One value is on one drive, and what is made of columns is not what they are.
        assert_eq!(query(&fleet, "SELECT id FROM lab.t WHERE id = 77", cut).await.unwrap(), ["77"]);
        assert_eq!(query(&fleet, "SELECT id FROM (SELECT -id AS id FROM lab.t) WHERE id = -77", cut).await.unwrap(), ["-77"]);
        // NaN is more than any number.
        assert_eq!(query(&fleet, "SELECT x FROM lab.nan WHERE x > 5", cut).await.unwrap(), ["NaN"]);
    }
    // What another host writes in between is seen.
    ingest(&fleet, "lab.t", &batches(12, 1000), true).await.unwrap();
    assert_eq!(query(&fleet, "SELECT id FROM lab.t WHERE id > 10000 AND id < 10003", Pushdown::Full).await.unwrap().len(), 2);
    let one = receipt(&fleet, "SELECT id, n FROM lab.t WHERE id = 77", Pushdown::Full).await;
    assert!(asked(&one) < 3 && one.drives.len() == 3, "{one}");
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    assert!(record.tables["data"].partitions.iter().all(|p| !p.bounds.is_empty()));
    assert!(fleet.describe(&name("lab.nan")).await.unwrap().tables["data"].partitions.iter().all(|p| p.bounds.is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_moments_query_do_not_depend_on_cells() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    crate::expression::write(&fleet, "blood.tiny").await;
    let sql = "SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') FROM blood.tiny.x GROUP BY gene";
    receipt(&fleet, sql, Pushdown::Full).await;
    // Schemas and the root record are known by now, and nothing of obs and cells is wanted.
    let again = receipt(&fleet, sql, Pushdown::Full).await;
    assert_eq!(again.bytes_metadata, 0);
    assert!(receipt(&fleet, sql, Pushdown::Raw).await.bytes_metadata > 0, "the host itself needs obs and totals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_query_does_not_begin() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(4, 500), false).await.unwrap();
    let query = fleet.sql("SELECT * FROM lab.t", &QueryOptions::default()).await.unwrap();
    tokio::task::yield_now().await;
    assert!(query.receipt.receipt().scans.iter().all(|s| s.annotations.is_empty()), "a drive has begun");
    let handle = query.receipt.clone();
    assert_eq!(query.collect().await.unwrap().iter().map(|b| b.num_rows()).sum::<usize>(), 2000);
    assert_eq!(handle.receipt().drives.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_end_of_a_query_has_an_exact_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(20, 500), false).await.unwrap();
    let mut query = fleet.sql("SELECT * FROM lab.t", &QueryOptions { cut: Pushdown::Full, batch_rows: 64 }).await.unwrap();
    query.stream.next().await.unwrap().unwrap();
    let handle = query.receipt.clone();
    drop(query);
    let receipt = handle.receipt();
    assert!(!receipt.finished);
    assert!(receipt.rows > 0 && receipt.rows < 10_000);
    assert!(receipt.to_string().contains("not finished"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_the_plan_and_analyze_the_execution() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(4, 500), false).await.unwrap();
    let sql = "SELECT grp, count(*) FROM lab.t WHERE n > 0 GROUP BY grp ORDER BY grp";
    let text = fleet.explain(sql, false, &QueryOptions::default()).await.unwrap();
    for part in ["super-plan", "__count_merge", "sub-plan 0", "__count_state", "DriveScanExec", "Sort"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    assert!(!text.contains("receipt"));
    let text = fleet.explain(sql, true, &QueryOptions::default()).await.unwrap();
    for part in ["what ran where", "drive-1", "receipt", "4 rows"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
}

/// Whether the drive was left out for the bounds of its part.
fn was_not_asked(a: &skytether_device::Annotation) -> bool {
    a.reason.as_ref().is_some_and(|reason| reason.starts_with("not asked"))
}

/// That the parts of a finished query's receipt add up to its totals; `slices` are those of all its tables.
pub(crate) fn assert_adds_up(receipt: &Receipt, slices: u64, what: &str) {
    assert!(receipt.finished, "{what}");
    let annotations = || receipt.scans.iter().flat_map(|scan| &scan.annotations);
    assert!(annotations().count() > 0, "{what}");
    assert_eq!(receipt.bytes_read, annotations().map(|a| a.bytes_read).sum::<u64>(), "{what}");
    let plans: u64 = receipt.scans.iter().map(|scan| scan.plan_bytes).sum();
    assert_eq!(plans, annotations().map(|a| a.bytes_received).sum::<u64>(), "{what}");
    let sent: u64 = annotations().map(|a| a.bytes_sent).sum();
    assert_eq!(receipt.bytes_moved, plans + sent + receipt.bytes_metadata, "{what}");
    assert_eq!(slices, annotations().map(|a| a.slices_total.unwrap()).sum::<u64>(), "{what}");
    for scan in &receipt.scans {
        let came: Vec<_> = receipt.host.iter().filter(|o| o.scan == scan.sub_plan_number).map(|o| o.note.rows_out).collect();
        assert_eq!(came, [Some(scan.annotations.iter().map(|a| a.rows_out).sum::<u64>())], "{what}");
        let beside: u64 = scan.beside.iter().map(|table| table.bytes).sum();
        assert!(scan.annotations.iter().all(|a| was_not_asked(a) || a.bytes_received > beside), "{what}: {scan:?}");
        assert_eq!(scan.beside.is_empty(), !scan.sub_plan.contains("__shipped_"), "{what}");
        assert!(scan.beside.iter().all(|table| scan.sub_plan.contains(&table.name)), "{what}: {scan:?}");
    }
    for a in annotations().filter(|a| was_not_asked(a)) {
        assert_eq!((a.slices_total, a.bytes_received, a.bytes_sent, a.operators.len()), (Some(a.slices_pruned), 0, 0, 0), "{what}: {a:?}");
    }
    for a in annotations().filter(|a| !was_not_asked(a)) {
        assert_eq!(a.operators[0].rows_out, Some(a.rows_out), "{what}: {a:?}");
        let scanned = a.operators.iter().filter(|o| o.name == "SliceScanExec").map(|o| o.rows_out.unwrap()).sum();
        assert_eq!(a.rows_read, Some(scanned), "{what}: {a:?}");
        assert_eq!(a.slices_total, Some(a.slices + a.slices_pruned + a.slices_told), "{what}: {a:?}");
    }
    for (d, sum) in
        receipt.drives.iter().map(|d| (d, |of: fn(&skytether_device::Annotation) -> u64| annotations().filter(|a| a.cse == d.name).map(of).sum::<u64>()))
    {
        assert_eq!((d.rows_out, d.bytes_sent, d.slices), (sum(|a| a.rows_out), sum(|a| a.bytes_sent), sum(|a| a.slices)), "{what}");
        assert_eq!((d.slices_pruned, d.slices_told), (sum(|a| a.slices_pruned), sum(|a| a.slices_told)), "{what}");
        assert_eq!(d.rows_read, Some(sum(|a| a.rows_read.unwrap())), "{what}");
    }
    assert_eq!(receipt.host.iter().find(|o| !o.plumbing && o.note.rows_out.is_some()).unwrap().note.rows_out, Some(receipt.rows), "{what}");
}

/// Checks that each of the `slices` slices of a finished query was processed in one place. Drives that sent slices raw
/// must count their bytes as read.
pub(crate) fn assert_each_once(receipt: &Receipt, slices: u64, what: &str) {
    assert!(receipt.finished, "{what}");
    for drive in &receipt.drives {
        let seen = drive.slices + drive.above.slices + drive.slices_pruned + drive.slices_told;
        assert_eq!(drive.slices_total, Some(seen), "{what}: {drive:?}");
        assert!(drive.bytes_read >= drive.above.bytes_read && drive.bytes_sent >= drive.above.bytes_read, "{what}: {drive:?}");
    }
    assert_eq!(receipt.drives.iter().filter_map(|drive| drive.slices_total).sum::<u64>(), slices, "{what}");
    let work = receipt.host_work;
    assert_eq!(work.slices, receipt.drives.iter().map(|drive| drive.above.slices).sum::<u64>(), "{what}");
    assert_eq!(receipt.bytes_read, receipt.drives.iter().map(|drive| drive.bytes_read).sum::<u64>(), "{what}");
    assert_eq!(work.slices > 0, work.bytes_read > 0, "{what}: {work:?}");
    assert!(work.slices == 0 || work.seconds > 0.0 && work.rows_read > 0, "{what}: {work:?}");
    // It is among what the host's operators took; these count nanoseconds.
    let scans: f64 = receipt.host.iter().filter(|operator| operator.scan.is_some()).map(|operator| operator.note.seconds).sum();
    assert!(scans >= work.seconds * 0.99, "{what}: {scans} s, {work:?}");
}

/// Queries that read both tables of [`assert_adds_up`]'s tests to their ends, and how often they read each.
pub(crate) const ADDED: [(&str, [u64; 2]); 8] = [
    ("SELECT grp, avg(x) FROM lab.t WHERE n > 0 GROUP BY grp", [1, 0]),
    ("SELECT id, x FROM lab.t WHERE id < 600", [1, 0]),
    ("SELECT t.grp, count(*) FROM lab.t t JOIN lab.u u ON t.id = u.id GROUP BY t.grp ORDER BY t.grp", [1, 1]),
    ("SELECT id FROM lab.t UNION ALL SELECT id FROM lab.u UNION ALL SELECT n FROM lab.u", [1, 2]),
    ("SELECT t.id, u.x FROM lab.t t JOIN lab.u u ON t.id = u.id", [1, 1]),
    ("SELECT count(*), min(id), max(id) FROM lab.t", [1, 0]),
    ("SELECT count(*) FROM lab.t WHERE id < (SELECT count(*) FROM lab.u)", [1, 1]),
    ("SELECT grp, n, count(DISTINCT id) FROM lab.t GROUP BY GROUPING SETS ((grp), (n))", [1, 0]),
];

/// The slices of a table.
pub(crate) async fn slices(fleet: &Fleet, dataset: &str) -> u64 {
    fleet.describe(&name(dataset)).await.unwrap().tables["data"].partitions.iter().map(|p| u64::from(p.slices)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_a_receipt_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(10, 2000), false).await.unwrap();
    ingest(&fleet, "lab.u", &batches(3, 200), false).await.unwrap();
    let tables = [slices(&fleet, "lab.t").await, slices(&fleet, "lab.u").await];
    for (sql, reads) in ADDED {
        for cut in crate::util::CUTS {
            assert_adds_up(&receipt(&fleet, sql, cut).await, tables[0] * reads[0] + tables[1] * reads[1], &format!("{sql} ({cut})"));
        }
    }
    // These queries include one with a broadcast table, and one that metadata answer.
    let joined = receipt(&fleet, ADDED[2].0, Pushdown::Full).await;
    let beside: Vec<_> = joined.scans.iter().flat_map(|scan| &scan.beside).map(|table| (table.name.as_str(), table.rows)).collect();
    assert_eq!(beside, [("__shipped_0", 600)]);
    let counted = receipt(&fleet, ADDED[5].0, Pushdown::Full).await;
    assert!(counted.drives.iter().all(|d| d.slices == 0 && d.slices_told > 0 && d.rows_read == Some(0)), "{counted}");
    assert!(counted.to_string().contains("told by metadata"), "{counted}");
}
