//! Cells that were appended: parts of a matrix. Every answer is that of the same cells written as a whole, and every
//! kind of work on drives finds the parts.

use std::path::Path;

use futures::StreamExt;
use skytether::{DatasetKind, Fleet, Placement, Pushdown, QueryOptions, RepairOptions};
use skytether_common::{Kind, Result};
use skytether_host::{DatasetWriter, RootRecord};
use skytether_matrix::{TransposeOptions, Transposer};

use crate::drive_replacement::repair;
use crate::expression::{CELLS, GENES, matrix, tables, write, write_cells};
use crate::growth::{adding, clean, reopen, resize, retiring};
use crate::redundancy::{bring_back, dir_of, lose};
use crate::util::{CUTS, name, open, query, usage, value};
use crate::versions::{begun, fleet_drives, no_leaks_of, record};

/// The cells after one append, and after two.
const SECOND: u32 = 130;
const THIRD: u32 = 200;

/// `NAME` is the data set.
const QUERIES: [&str; 9] = [
    "SELECT count(*), sum(value), count(DISTINCT cell) FROM NAME.x",
    "SELECT gene, count(*), sum(value) FROM NAME.x GROUP BY gene ORDER BY gene",
    "SELECT gene, cell, value FROM NAME.x WHERE value > 47 ORDER BY gene, cell",
    "SELECT cell, value FROM NAME.x WHERE gene = 'G7' AND cell IN ('cell-3', 'cell-89', 'cell-90', 'cell-129', 'cell-199') ORDER BY cell",
    "SELECT gene, sum(nnz), sum(sum) FROM NAME.x_rows GROUP BY gene ORDER BY gene",
    "SELECT gene, cell, value FROM NAME.x ORDER BY value DESC, gene, cell LIMIT 5",
    "SELECT o.cell_type, count(*), sum(x.value) FROM NAME.x x JOIN NAME.obs o ON o.cell = x.cell GROUP BY o.cell_type ORDER BY o.cell_type",
    "SELECT gene, m['group'], m['n'], m['nnz'], round(m['mean'], 9), round(m['m2'], 5) FROM \
     (SELECT gene, unnest(cell_moments(cell, value, 'cell_type', 'log1p_cp10k')) AS m FROM NAME.x GROUP BY gene) ORDER BY 1, 2",
    "SELECT gene, r['sum'], r['ties'] FROM (SELECT gene, unnest(rank_sums(idx, val, block, \
     '{\"of\": {\"dataset\": \"NAME\", \"matrix\": \"x\", \"groups\": {\"obs\": \"cell_type\"}, \"transform\": null}}')) AS r \
     FROM NAME.x_rows GROUP BY gene) ORDER BY 1, 2, 3",
];

async fn answers(fleet: &Fleet, dataset: &str, cut: Pushdown, what: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in QUERIES {
        all.push(query(fleet, &sql.replace("NAME", dataset), cut).await.unwrap_or_else(|e| panic!("{what}: {sql} ({cut}): {}", e.report())));
    }
    all
}

async fn put(writer: &mut DatasetWriter, cells: u32) {
    for (title, batch) in tables(cells) {
        writer.write_table(title, Placement::Everywhere, batch.schema(), [Ok(batch)].into_iter()).await.unwrap();
    }
}

/// Appends the cells up to `to` to those of `blood.tiny`.
async fn append(fleet: &Fleet, to: u32) -> Result<RootRecord> {
    let from = record(fleet, "blood.tiny").await.matrix("x").unwrap().cells;
    let mut writer = begun(fleet, "blood.tiny").await?;
    writer.append_cells("x", &matrix(from..to)).await?;
    put(&mut writer, to).await;
    writer.commit().await?;
    Ok(record(fleet, "blood.tiny").await)
}

/// `blood.tiny` in three parts, and `blood.whole` with the same cells in one.
async fn appended(fleet: &Fleet) -> RootRecord {
    write(fleet, "blood.tiny").await;
    append(fleet, SECOND).await.unwrap_or_else(|e| panic!("{}", e.report()));
    write_cells(fleet.writer(&name("blood.whole"), DatasetKind::Expression, false).await.unwrap(), THIRD).await;
    append(fleet, THIRD).await.unwrap_or_else(|e| panic!("{}", e.report()))
}

async fn is_whole(fleet: &Fleet, what: &str) {
    assert_eq!(answers(fleet, "blood.tiny", Pushdown::Full, what).await, answers(fleet, "blood.whole", Pushdown::Full, what).await, "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appended_cells_answer_as_those_of_one_ingest() {
    for drives in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), drives).await.unwrap();
        let last = appended(&fleet).await;
        assert_eq!((last.format, last.parts("x").len(), last.matrix("x").unwrap().cells), (5, 3, THIRD));
        assert_eq!(last.tables["x"].matrix.unwrap().cells, CELLS, "the first part is what it was");
        let expected = answers(&fleet, "blood.whole", Pushdown::Full, "whole").await;
        for cut in CUTS {
            assert_eq!(answers(&fleet, "blood.tiny", cut, "parts").await, expected, "{drives} drives, {cut}");
        }
        // A matrix has one row for each gene and block, and each part has blocks of its own.
        assert_eq!(value(&fleet, "SELECT count(*) FROM blood.tiny.x_rows").await.unwrap(), (3 * GENES).to_string());
        assert_eq!(value(&fleet, "SELECT count(DISTINCT block) FROM blood.tiny.x_rows WHERE gene = 'G1'").await.unwrap(), "3");
        let listed = value(&fleet, "SELECT count(*) FROM blood.information_schema.tables WHERE table_schema = 'tiny'").await.unwrap();
        assert_eq!(listed, "5", "parts are no tables");
        for table in ["part/1/x", "part/1/x_rows", "part/0/x"] {
            let error = value(&fleet, &format!("SELECT count(*) FROM blood.tiny.\"{table}\"")).await.unwrap_err();
            assert_eq!(error.kind(), Kind::NotFound, "{table}");
        }
    }
}

/// What an append writes is about its cells: the parts before stay where they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_keeps_the_parts_before() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    let empty = usage(&fleet).await;
    write(&fleet, "blood.tiny").await;
    let first = record(&fleet, "blood.tiny").await;
    let second = append(&fleet, SECOND).await.unwrap();
    let third = append(&fleet, THIRD).await.unwrap();
    assert_eq!(third.tables["x"].generation, Some(first.generation));
    assert_eq!(third.tables["part/1/x"].generation, Some(second.generation));
    assert_eq!((third.tables["part/2/x"].generation, third.generation_of("part/2/x")), (None, third.generation));
    for table in ["x", "part/1/x"] {
        assert_eq!(third.tables[table].partitions, second.tables[table].partitions, "{table}");
    }
    // A later version that writes the matrix again takes its parts away.
    drop(fleet);
    let fleet = reopen(dir.path()).await;
    let roots = record(&fleet, "blood.tiny").await.encode().unwrap().len() as u64;
    assert_eq!(usage(&fleet).await.1, empty.1 + third.bytes() + roots);
    let mut writer = begun(&fleet, "blood.tiny").await.unwrap();
    writer.write_matrix("x", &matrix(0..THIRD)).await.unwrap();
    writer.commit().await.unwrap();
    let again = record(&fleet, "blood.tiny").await;
    assert_eq!((again.parts("x").len(), again.format), (1, 4));
    drop(fleet);
    let fleet = reopen(dir.path()).await;
    let roots = again.encode().unwrap().len() as u64;
    assert_eq!(usage(&fleet).await.1, empty.1 + again.bytes() + roots);
    fleet.drop_dataset(&name("blood.tiny")).await.unwrap();
    assert_eq!(usage(&fleet).await, empty);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_that_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    write(&fleet, "blood.tiny").await;
    let transposed = |genes: u32, value: f64| {
        let mut transposer = Transposer::new(3, genes, TransposeOptions::default()).unwrap();
        transposer.push_triplets(&[0], &[1], &[value]).unwrap();
        transposer.finish().unwrap()
    };
    let refused = async |matrix: &skytether_matrix::Transposed, table: &str| {
        let mut writer = begun(&fleet, "blood.tiny").await.unwrap();
        writer.append_cells(table, matrix).await.unwrap_err().kind()
    };
    assert_eq!(refused(&transposed(GENES, 0.5), "x").await, Kind::Unsupported, "the stored values are whole numbers");
    assert_eq!(refused(&transposed(GENES - 1, 1.0), "x").await, Kind::Invalid);
    assert_eq!(refused(&transposed(GENES, 1.0), "obs").await, Kind::Invalid);
    assert_eq!(refused(&transposed(GENES, 1.0), "y").await, Kind::NotFound);
    let mut writer = begun(&fleet, "blood.tiny").await.unwrap();
    writer.append_cells("x", &transposed(GENES, 1.0)).await.unwrap();
    assert_eq!(writer.append_cells("x", &transposed(GENES, 1.0)).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(writer.write_matrix("x", &transposed(GENES, 1.0)).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(writer.leave_out("x").unwrap_err().kind(), Kind::Invalid);
    let mut writer = fleet.writer(&name("blood.other"), DatasetKind::Expression, false).await.unwrap();
    assert_eq!(writer.append_cells("x", &transposed(GENES, 1.0)).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(writer.write_matrix("part/1/x", &transposed(GENES, 1.0)).await.unwrap_err().kind(), Kind::Invalid);
    // All matrices get the cells, or none does.
    let mut writer = begun(&fleet, "blood.tiny").await.unwrap();
    writer.write_matrix("layer_a", &matrix(0..CELLS)).await.unwrap();
    writer.append_cells("x", &transposed(GENES, 1.0)).await.unwrap();
    let error = writer.commit().await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("append to all matrices"), "{}", error.report());
    // Eight parts are the most.
    let mut refused = None;
    for n in 1..9 {
        refused = append(&fleet, CELLS + n).await.err();
        assert_eq!(refused.is_some(), n == 8, "{n}");
    }
    assert!(refused.unwrap().to_string().contains("8 parts"));
}

/// Values of a narrower type become those of the stored one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appended_counts_join_stored_floats() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    let with = |cells: u32, values: &[f64]| {
        let mut transposer = Transposer::new(cells, GENES, TransposeOptions::default()).unwrap();
        let cells: Vec<u32> = (0..values.len() as u32).collect();
        transposer.push_triplets(&vec![3; values.len()], &cells, values).unwrap();
        transposer.finish().unwrap()
    };
    for (first, second) in [([0.5, 2.0], [70_000.0, 1.0]), ([0.1, 70_000.0], [0.5, 70_000.0]), ([70_000.0, 1.0], [3.0, 4.0])] {
        let mut writer = fleet.writer(&name("blood.tiny"), DatasetKind::Expression, true).await.unwrap();
        writer.write_matrix("x", &with(CELLS, &first)).await.unwrap();
        put(&mut writer, CELLS).await;
        writer.commit().await.unwrap();
        let mut writer = begun(&fleet, "blood.tiny").await.unwrap();
        match writer.append_cells("x", &with(SECOND - CELLS, &second)).await {
            // Whole numbers of 32 bits are not all numbers of single precision.
            Err(e) => assert_eq!((e.kind(), second[0] > 65_535.0), (Kind::Unsupported, true), "{first:?} {second:?}"),
            Ok(()) => {
                put(&mut writer, SECOND).await;
                writer.commit().await.unwrap();
                let sum: f64 = first.iter().chain(&second).sum();
                let found: f64 = value(&fleet, "SELECT sum(value) FROM blood.tiny.x").await.unwrap().parse().unwrap();
                assert!((found - sum).abs() < 1e-9, "{found} of {first:?} {second:?}");
            }
        }
    }
}

/// A query that began before an append reads the cells of its version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_reader_finishes_without_the_new_cells() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    write(&fleet, "blood.tiny").await;
    let options = QueryOptions { cut: Pushdown::Full, batch_rows: 50 };
    let mut running = fleet.sql("SELECT cell FROM blood.tiny.x", &options).await.unwrap();
    let mut rows = running.stream.next().await.unwrap().unwrap().num_rows();
    for to in [SECOND, THIRD] {
        append(&fleet, to).await.unwrap();
        assert_eq!(value(&fleet, "SELECT count(*) FROM blood.tiny.x").await.unwrap(), (GENES * to).to_string());
    }
    while let Some(batch) = running.stream.next().await {
        rows += batch.unwrap_or_else(|e| panic!("{}", e.report())).num_rows();
    }
    assert_eq!(rows, (GENES * CELLS) as usize);
}

async fn redundant(path: &Path) -> (Fleet, RootRecord) {
    let fleet = crate::redundancy::open(path, 4, "ec:2+1").await.unwrap();
    let last = appended(&fleet).await;
    (fleet, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_drive_with_parts_is_answered_and_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (fleet, last) = redundant(dir.path()).await;
    assert!(last.parts("x").iter().all(|part| last.tables[part].redundancy.is_some()));
    drop(fleet);
    for lost in 0..4 {
        lose(dir.path(), &[lost]);
        let fleet = reopen(dir.path()).await;
        is_whole(&fleet, &format!("without drive-{lost}")).await;
        drop(fleet);
        bring_back(dir.path(), &[lost]);
    }
    std::fs::remove_dir_all(dir_of(dir.path(), 1)).unwrap();
    let fleet = reopen(dir.path()).await;
    let report = repair(&fleet, RepairOptions { drives: vec!["drive-1".into()], ..RepairOptions::default() }).await;
    assert!(report.left.is_empty() && report.lost.is_empty(), "{report}");
    is_whole(&fleet, "rebuilt").await;
    clean(&fleet, "rebuilt").await;
    // The next append has the same redundancy.
    let next = append(&fleet, THIRD + 5).await.unwrap();
    assert!(next.tables["part/3/x"].redundancy.is_some());
    clean(&fleet, "at the end").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_any_part_is_found_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (fleet, last) = redundant(dir.path()).await;
    drop(fleet);
    let drives = fleet_drives(dir.path());
    for table in ["x", "part/1/x", "part/2/x"] {
        let partition = &last.tables[table].partitions[0];
        let at = drives.iter().position(|id| *id == partition.drive).unwrap();
        let key = last.partition(table, partition.slot).slice_key(0).unwrap();
        crate::scrub::put(dir.path(), at, &key, None);
    }
    let fleet = reopen(dir.path()).await;
    let report = crate::scrub::all(&fleet).await;
    assert!(report.damaged == 3 && report.left() == 0, "{report}");
    is_whole(&fleet, "repaired").await;
    clean(&fleet, "repaired").await;
    drop(fleet);
    no_leaks_of(dir.path(), "repaired");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resize_moves_parts_as_tables() {
    let dir = tempfile::tempdir().unwrap();
    let (fleet, _) = redundant(dir.path()).await;
    resize(&fleet, &adding(2)).await;
    is_whole(&fleet, "grown").await;
    let grown = record(&fleet, "blood.tiny").await;
    assert!(grown.format == 5 && grown.tables.values().all(|table| table.generation.is_none()) && grown.parts("x").len() == 3);
    append(&fleet, THIRD + 5).await.unwrap_or_else(|e| panic!("{}", e.report()));
    resize(&fleet, &retiring(&[0, 4])).await;
    assert_eq!(value(&fleet, "SELECT count(*) FROM blood.tiny.x").await.unwrap(), (GENES * (THIRD + 5)).to_string());
    clean(&fleet, "shrunk").await;
    drop(fleet);
    no_leaks_of(dir.path(), "shrunk");
}
