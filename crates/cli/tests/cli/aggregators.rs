//! A tree of processes: drives, an aggregator over them that is one drive to its host, and that host.

use serde_json::Value;

use crate::util::{Served, file, fleet, run, text};

const QUERIES: [&str; 4] = [
    "SELECT k, count(*) AS n, avg(x) AS m, min(v) AS first FROM d.t WHERE v >= 1000 GROUP BY k ORDER BY k",
    "SELECT v, k, x FROM d.t WHERE v % 500 = 7 ORDER BY v",
    "SELECT count(DISTINCT k) AS k, sum(v) AS s FROM d.t",
    "SELECT a.k, count(*) AS n FROM d.t a JOIN d.t b ON a.v = b.v + 1 WHERE a.v < 3000 GROUP BY a.k ORDER BY a.k",
];

/// How far in the line of a receipt that is about `name` stands, of those there must be one of.
#[track_caller]
fn depth(receipt: &str, name: &str) -> usize {
    let is_about = |line: &&str| line.trim_start_matches([' ', '│', '├', '└', '─']).starts_with(&format!("{name}: "));
    let lines: Vec<&str> = receipt.lines().filter(is_about).collect();
    assert_eq!(lines.len(), 1, "{name} in\n{receipt}");
    assert!(lines[0].contains(" slices"), "it says what was done there: {}", lines[0]);
    lines[0].split(name).next().unwrap().chars().count()
}

/// Answers equal those of an embedded fleet. Receipts list the drives of the aggregator below it.
#[test]
fn aggregator_is_one_drive_of_its_host_and_shows_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let drive = |n| Served::start(&["drive", "serve", "--data", text(&dir.path().join(format!("drive-{n}"))), "--listen", "127.0.0.1:0"]);
    let drives: Vec<_> = (0..2).map(drive).collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let aggregator = Served::start(&["host", "serve", "--drives", &addresses, "--aggregator", "middle", "--listen", "127.0.0.1:0"]);
    // So that there are slices enough for both.
    let host = Served::start(&["host", "serve", "--drives", aggregator.address(), "--slice-rows", "250", "--listen", "127.0.0.1:0"]);

    let embedded = fleet(dir.path(), "2");
    // Sums of eighths are exact in any order.
    let rows: String = (0..10_000).map(|v| format!("group {},{v},{}\n", v % 5, f64::from(v * 7919 % 1000) / 8.0)).collect();
    let table = file(dir.path(), "t.csv", &format!("k,v,x\n{rows}"));
    for at in [embedded.as_str(), &host.url] {
        assert!(run(&["ingest", &table, "--to", "d.t", "--fleet", at]).code(0).out.contains("d.t: 10,000 rows"));
    }
    let ask = |at: &str, sql: &str| run(&["sql", sql, "--fleet", at, "--format", "csv", "--receipt"]);
    for sql in QUERIES {
        let (wanted, given) = (ask(&embedded, sql).code(0), ask(&host.url, sql).code(0));
        assert!(wanted.out.lines().count() > 1, "{sql}");
        assert_eq!(given.out, wanted.out, "{sql}");
    }
    let whole = ask(&host.url, QUERIES[0]).code(0);
    let [middle, below @ ..] = ["middle", "drive-0", "drive-1"].map(|name| depth(&whole.err, name));
    assert!(below[0] == below[1] && below[0] > middle, "{}", whole.err);
    let lines = |name: &str| whole.err.lines().position(|line| line.contains(&format!("{name}: "))).unwrap();
    assert!(lines("middle") < lines("drive-0") && lines("middle") < lines("drive-1"), "{}", whole.err);

    // The host sees one drive, and its drives belong to the aggregator.
    let status: Vec<Value> = serde_json::from_str(&run(&["status", "--fleet", &host.url, "--format", "json"]).code(0).out).unwrap();
    assert!(status.len() == 1 && status[0]["info"]["name"] == "middle" && status[0]["error"].is_null(), "{status:?}");
    let said = run(&["host", "serve", "--drives", &addresses, "--listen", "127.0.0.1:0"]).fails(1);
    assert!(said.contains("those of the aggregator middle") && said.contains("--aggregator middle"), "{said}");

    for served in [host, aggregator].into_iter().chain(drives) {
        let done = served.stop().code(0);
        assert!(done.out.is_empty() && done.err.trim_end().ends_with("stopped"), "{done:?}");
    }
}
