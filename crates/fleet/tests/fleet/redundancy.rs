//! Fleets that lose drives: the same answers over what is left, and nothing stale when they are back.

use std::fs;
use std::path::{Path, PathBuf};

use skytether_common::{Error, Kind, Result};
use skytether_fleet::{Cut, DatasetKind, Fleet, HostOptions, IngestOptions, OpenOptions, QueryOptions, Receipt};

use crate::util::{CUTS, batches, ingest, lines, name, query, usage, value};

/// A fleet of small slices.
async fn open(path: &Path, drives: usize, redundancy: &str) -> Result<Fleet> {
    let mut host = HostOptions { threads: 2, ..HostOptions::default() };
    host.slices.target_bytes = 8 << 10;
    let options = OpenOptions { drives: Some(drives), redundancy: redundancy.into(), memory_per_drive: Some(64 << 20), ..OpenOptions::default() };
    Fleet::open_with(path, &options, host).await
}

fn dir_of(fleet: &Path, drive: usize) -> PathBuf {
    fleet.join("drives").join(drive.to_string())
}

fn aside(fleet: &Path, drive: usize) -> PathBuf {
    fleet.join(format!("away-{drive}"))
}

/// The drives are gone, to where they can be fetched back from.
fn lose(fleet: &Path, drives: &[usize]) {
    drives.iter().for_each(|n| fs::rename(dir_of(fleet, *n), aside(fleet, *n)).unwrap());
}

fn bring_back(fleet: &Path, drives: &[usize]) {
    drives.iter().for_each(|n| fs::rename(aside(fleet, *n), dir_of(fleet, *n)).unwrap());
}

/// All sets of 1 to `most` of `drives`.
fn subsets(drives: usize, most: usize) -> Vec<Vec<usize>> {
    (1u32..1 << drives).filter(|set| set.count_ones() as usize <= most).map(|set| (0..drives).filter(|n| set >> n & 1 == 1).collect()).collect()
}

const QUERIES: [&str; 12] = [
    "SELECT count(*), sum(n), min(x), max(name), count(name) FROM lab.t",
    "SELECT grp, count(*), sum(n), round(avg(x), 6) FROM lab.t WHERE n > 0 GROUP BY grp ORDER BY grp",
    "SELECT id, name, x FROM lab.t WHERE n % 97 = 3 ORDER BY id",
    "SELECT id, x FROM lab.t ORDER BY x DESC NULLS LAST, id LIMIT 20",
    "SELECT count(DISTINCT name), count(DISTINCT grp) FROM lab.t",
    "SELECT a.grp, count(*), sum(b.n) FROM lab.t a JOIN lab.keyed b ON a.id = b.id WHERE a.n < 0 GROUP BY a.grp ORDER BY a.grp",
    "SELECT k.grp, count(*) FROM lab.keyed k JOIN lab.keyed l ON k.id = l.id GROUP BY k.grp ORDER BY k.grp",
    "SELECT n, count(*) FROM lab.keyed GROUP BY n HAVING count(*) > 3 ORDER BY n",
    "SELECT gene, cell, value FROM blood.tiny.x WHERE value > 3 ORDER BY gene, cell",
    "SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') FROM blood.tiny.x GROUP BY gene ORDER BY gene",
    "SELECT count(*), sum(nnz), sum(sum) FROM blood.tiny.x_rows",
    "SELECT o.cell_type, count(*), max(o.cell) FROM blood.tiny.obs o GROUP BY o.cell_type ORDER BY o.cell_type",
];

async fn fill(fleet: &Fleet) {
    let rows = batches(6, 1000);
    ingest(fleet, "lab.t", &rows, false).await.unwrap();
    let options = IngestOptions { partition_by: vec!["id".into()], ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.keyed"), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    crate::expression::write(fleet, "blood.tiny").await;
}

async fn answers(fleet: &Fleet, cut: Cut) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in QUERIES {
        all.push(query(fleet, sql, cut).await.unwrap_or_else(|e| panic!("{sql} ({cut}): {}", e.full_text())));
    }
    all
}

async fn receipt(fleet: &Fleet, sql: &str) -> (Vec<String>, Receipt) {
    let query = fleet.sql(sql, &QueryOptions::default()).await.unwrap();
    let handle = query.receipt.clone();
    let rows = lines(&query.collect().await.unwrap());
    (rows, handle.receipt())
}

/// The answers of a fleet that lost each of some sets of drives are those of the whole one.
async fn survives(redundancy: &str, drives: usize, sets: &[Vec<usize>], cuts: &[Cut]) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), drives, redundancy).await.unwrap();
    fill(&fleet).await;
    let whole = answers(&fleet, Cut::Full).await;
    assert!(whole.iter().all(|rows| !rows.is_empty()));
    let (_, untouched) = receipt(&fleet, QUERIES[0]).await;
    assert!(untouched.drives.iter().all(|d| d.stood_for.is_none() && d.slices_decoded == 0));
    drop(fleet);
    for lost in sets {
        lose(dir.path(), lost);
        let fleet = open(dir.path(), drives, "none").await.unwrap_or_else(|e| panic!("{redundancy} without {lost:?}: {}", e.full_text()));
        for cut in cuts {
            for (sql, (own, whole)) in QUERIES.iter().zip(answers(&fleet, *cut).await.iter().zip(&whole)) {
                assert_eq!(own, whole, "{redundancy} without {lost:?}, {cut}: {sql}");
            }
        }
        let (rows, receipt) = receipt(&fleet, QUERIES[1]).await;
        assert_eq!(rows, whole[1]);
        for (n, drive) in receipt.drives.iter().enumerate() {
            assert_eq!(drive.name, format!("drive-{n}"));
            assert_eq!(drive.stood_for.is_some(), lost.contains(&n), "{redundancy} without {lost:?}: {drive:?}");
        }
        let told = receipt.to_string();
        assert!(told.contains("run on the host in its place") && told.contains(&format!("drive-{} is lost", lost[0])), "{told}");
        let status = fleet.status().await.unwrap();
        assert!(status.iter().enumerate().all(|(n, d)| d.error.is_some() == lost.contains(&n) && d.info.name == format!("drive-{n}")), "{status:?}");
        assert_eq!(fleet.list().await.unwrap().len(), 3);
        drop(fleet);
        bring_back(dir.path(), lost);
    }
    let fleet = open(dir.path(), drives, redundancy).await.unwrap();
    assert_eq!(answers(&fleet, Cut::Full).await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_drive_of_three_may_be_lost_under_every_cut() {
    survives("ec:2+1", 3, &subsets(3, 1), &CUTS).await;
}
