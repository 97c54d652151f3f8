//! Results that a query uses several times: the drives compute them once, and receipts count that once.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use skytether::{Fleet, HostOptions, OpenOptions, Pushdown, QueryOptions, Receipt, Statement};
use skytether_common::Kind;
use skytether_host::Values;
use skytether_slice::SliceOptions;

use crate::receipts::receipt;
use crate::util::{CUTS, batches, ingest, lines, open, query, value};

const GROUPS: &str = "SELECT grp, n, count(*) AS rows FROM lab.t WHERE id > 10 GROUP BY grp, n";

/// What the drives did: runs of sub-plans, slices, rows and bytes read.
fn work(receipt: &Receipt) -> (usize, u64, u64) {
    let runs = receipt.scans.iter().map(|scan| scan.annotations.len()).sum();
    (runs, receipt.drives.iter().map(|d| d.slices + d.slices_pruned).sum(), receipt.bytes_read)
}

/// Groups by `id`, one for each row of `table`, that are used several times.
fn pairs(table: &str, uses: usize) -> String {
    let part = format!("SELECT id, max(name) AS name, sum(n) AS n FROM {table} GROUP BY id");
    let uses: Vec<String> = (0..uses).map(|at| format!("SELECT id + {at} AS id, name, n FROM c WHERE n > -1000 OR name IS NULL")).collect();
    format!("WITH c AS ({part}) SELECT count(*), count(DISTINCT id), sum(n), max(name) FROM ({})", uses.join(" UNION ALL "))
}

// docs/sql.md: a common table expression that is named several times
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_compute_a_shared_result_once() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(10, 500), false).await.unwrap();
    for cut in CUTS {
        let once = receipt(&fleet, GROUPS, cut).await;
        for uses in [
            "SELECT a.n, b.n FROM c a JOIN c b ON a.rows = b.rows + 1 AND a.grp = b.grp",
            "SELECT grp, n FROM c WHERE rows = (SELECT max(rows) FROM c)",
            "SELECT grp, n FROM c WHERE EXISTS (SELECT 1 FROM c d WHERE d.n = c.n + 1 AND d.grp > c.grp) UNION ALL SELECT grp, n FROM c",
            "SELECT * FROM (SELECT grp FROM c ORDER BY rows, grp, n LIMIT 2) CROSS JOIN (SELECT max(rows) FROM c)",
        ] {
            let sql = format!("WITH c AS ({GROUPS}) {uses}");
            let twice = receipt(&fleet, &sql, cut).await;
            assert!(twice.finished && twice.rows > 0, "{sql}: {twice}");
            assert_eq!(twice.scans.len(), 1, "{cut}, {sql}: {}", twice.tree());
            let ((runs, slices, bytes), (runs_once, slices_once, bytes_once)) = (work(&twice), work(&once));
            assert_eq!((runs, slices), (runs_once, slices_once), "{cut}, {sql}: {}", twice.tree());
            // A cache may save bytes, and nothing may add some.
            assert!(bytes <= bytes_once, "{cut}, {sql}: {bytes} bytes read, {bytes_once} by one use");
            let computed = twice.host.iter().filter(|o| o.note.name == "SharedResultExec" && o.note.detail.contains("computed once")).count();
            let read = twice.host.iter().filter(|o| o.note.name == "SharedResultExec" && o.note.detail.contains("elsewhere")).count();
            assert!(computed == 1 && read >= 1, "{}", twice.tree());
            assert!(twice.tree().contains("several parts of the query use its rows"), "{}", twice.tree());
        }
    }
    let sql = format!("WITH c AS ({GROUPS}) SELECT a.n FROM c a JOIN c b ON a.rows = b.rows + 1");
    let text = fleet.explain(&sql, false, &QueryOptions::default()).await.unwrap();
    for words in ["SharedResult: 1, computed once and used 2 times", "SharedResult: 1, computed elsewhere in this plan", "SharedResultExec: 1, computed once"] {
        assert!(text.contains(words), "{text}");
    }
}

/// A fleet whose shared results keep at most an eighth of its memory.
async fn small(path: &Path, memory_limit: usize) -> Fleet {
    let slices = SliceOptions { target_bytes: 64 << 10, ..SliceOptions::default() };
    let host = HostOptions { slices, memory_limit, threads: 2, ..HostOptions::default() };
    Fleet::open_with(path, &OpenOptions { drives: Some(2), memory_per_drive: Some(64 << 20), ..OpenOptions::default() }, host).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_too_large_is_computed_at_each_use() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = small(dir.path(), 16 << 20).await;
    ingest(&fleet, "lab.t", &batches(20, 5000), false).await.unwrap();
    for (uses, rows, ids) in [(2, 200_000, 100_001), (3, 300_000, 100_002)] {
        let sql = pairs("lab.t", uses);
        let done = receipt(&fleet, &sql, Pushdown::Full).await;
        assert!(done.finished && done.scans.len() == 1, "{}", done.tree());
        assert_eq!(done.scans[0].annotations.len(), 2 * uses, "each use runs on both drives: {}", done.tree());
        let sum = value(&fleet, "SELECT sum(n) FROM lab.t").await.unwrap().parse::<i64>().unwrap();
        let name = value(&fleet, "SELECT max(name) FROM lab.t").await.unwrap();
        assert_eq!(query(&fleet, &sql, Pushdown::Full).await.unwrap(), [format!("{rows} | {ids} | {} | {name}", sum * uses as i64)]);
    }
    // One side of the join is read whole before the other is asked.
    let part = "SELECT id, max(name) AS name, sum(n) AS n FROM lab.t GROUP BY id";
    let join = format!("WITH c AS ({part}) SELECT count(*), sum(b.n), max(a.name), max(b.name), max(a.n) FROM c a JOIN c b ON a.id = b.id + 1");
    for cut in [Pushdown::Full, Pushdown::Raw] {
        let last = query(&fleet, "SELECT sum(n) FROM lab.t WHERE id < 99999", cut).await.unwrap();
        let joined = receipt(&fleet, &join, cut).await;
        assert_eq!(joined.scans[0].annotations.len(), 4, "{cut}: {}", joined.tree());
        assert!(query(&fleet, &join, cut).await.unwrap()[0].starts_with(&format!("99999 | {} | ", last[0])), "{cut}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_end_early_leave_no_work_behind() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(10, 500), false).await.unwrap();
    let sql = format!("WITH c AS ({GROUPS}) SELECT * FROM c UNION ALL SELECT * FROM c");
    for batches in [0, 1] {
        let options = QueryOptions { batch_rows: 100, ..QueryOptions::default() };
        let mut query = fleet.sql(&sql, &options).await.unwrap();
        for _ in 0..batches {
            query.stream.next().await.unwrap().unwrap();
        }
        drop(query.stream);
        assert!(!query.receipt.receipt().finished);
    }
    let limited = query(&fleet, &format!("{sql} LIMIT 3"), Pushdown::Adaptive).await.unwrap();
    assert_eq!(limited.len(), 3);
    let bad = "WITH c AS (SELECT n, sum(1 / (n - n)) AS x FROM lab.t GROUP BY n) SELECT a.x FROM c a JOIN c b ON a.n = b.n + 1 UNION ALL SELECT x FROM c";
    for cut in CUTS {
        let error = query(&fleet, bad, cut).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        assert!(error.to_string().contains("division by zero") || error.to_string().contains("divide by zero"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_queries_share_with_each_value() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(4, 500), false).await.unwrap();
    let text = |id: &str| {
        format!("WITH c AS (SELECT grp, count(*) AS n FROM lab.t WHERE id < {id} GROUP BY grp) SELECT a.grp, b.n FROM c a JOIN c b ON a.n >= b.n ORDER BY 1, 2")
    };
    let asked = Statement::Sql(text("$1").into());
    assert_eq!(fleet.service().prepare(&asked).await.unwrap().parameters.len(), 1);
    for id in [0, 700] {
        let row = RecordBatch::try_from_iter([("1", Arc::new(Int64Array::from(vec![id])) as ArrayRef)]).unwrap();
        let query = fleet.service().ask_with(&asked, &Values::new(row).unwrap(), &QueryOptions::default()).await.unwrap();
        let receipt = query.receipt.clone();
        let found = lines(&query.collect().await.unwrap());
        assert_eq!(found, crate::util::query(&fleet, &text(&id.to_string()), Pushdown::Adaptive).await.unwrap());
        assert_eq!((found.is_empty(), receipt.receipt().scans.len()), (id == 0, 1));
    }
}
