//! An expression data set written by hand: the dense view, its sparse rows and grouped moments
//! agree with plain arithmetic.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, StringArray};
use arrow::record_batch::RecordBatch;
use skytether::{DatasetKind, Fleet, Placement, Pushdown};
use skytether_common::Kind;
use skytether_host::DatasetWriter;
use skytether_matrix::{TransposeOptions, Transposed, Transposer};

use crate::util::{CUTS, name, open, query, value};

pub(crate) const CELLS: u32 = 90;
pub(crate) const GENES: u32 = 37;
const TYPES: [&str; 3] = ["B cell", "NK", "monocyte"];

/// The count of a gene in a cell; about a third are not zero, gene 5 is nowhere.
fn count(gene: u32, cell: u32) -> u32 {
    let mixed = (u64::from(gene * 1009 + cell * 31 + 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    if gene == 5 || mixed % 3 != 0 { 0 } else { (mixed % 50) as u32 + 1 }
}

fn group(cell: u32) -> usize {
    (cell * 7 % 11) as usize % 3
}

/// Writes the data set as an ingest does.
pub(crate) async fn write(fleet: &Fleet, dataset: &str) {
    write_by(fleet.writer(&name(dataset), DatasetKind::Expression, false).await.unwrap()).await;
}

pub(crate) async fn write_by(writer: DatasetWriter) {
    write_cells(writer, CELLS).await;
}

/// The first `cells` cells.
pub(crate) async fn write_cells(mut writer: DatasetWriter, cells: u32) {
    let matrix = matrix(0..cells);
    writer.write_matrix("x", &matrix).await.unwrap();
    for (title, batch) in tables(cells) {
        writer.write_table(title, Placement::Everywhere, batch.schema(), [Ok(batch)].into_iter()).await.unwrap();
    }
    writer.application("made by", "a test");
    writer.commit().await.unwrap();
}

/// Some cells, counted from the first of them.
pub(crate) fn matrix(some: Range<u32>) -> Transposed {
    let (mut genes, mut cells, mut counts) = (vec![], vec![], vec![]);
    for cell in some.clone() {
        for gene in 0..GENES {
            if count(gene, cell) > 0 {
                genes.push(gene);
                cells.push(cell - some.start);
                counts.push(count(gene, cell));
            }
        }
    }
    let mut transposer = Transposer::new(some.len() as u32, GENES, TransposeOptions::default()).unwrap();
    transposer.push_triplets(&genes, &cells, &counts).unwrap();
    transposer.finish().unwrap()
}

/// What there is about the first `cells` cells, and the genes.
pub(crate) fn tables(cells: u32) -> [(&'static str, RecordBatch); 3] {
    let totals = matrix(0..cells).totals().to_vec();
    let table = |columns: Vec<(&str, ArrayRef)>| RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, false))).unwrap();
    let obs = table(vec![
        ("cell", Arc::new(StringArray::from_iter_values((0..cells).map(|c| format!("cell-{c}")))) as ArrayRef),
        ("cell_type", Arc::new(StringArray::from_iter_values((0..cells).map(|c| TYPES[group(c)])))),
    ]);
    let var = table(vec![("gene", Arc::new(StringArray::from_iter_values((0..GENES).map(|g| format!("G{g}")))) as ArrayRef)]);
    let sums = table(vec![("total_x", Arc::new(Float32Array::from(totals)) as ArrayRef)]);
    [("obs", obs), ("var", var), ("cells", sums)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dense_view_has_every_pair_and_the_rows_every_nonzero() {
    for drives in [1, 4] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), drives).await.unwrap();
        write(&fleet, "blood.tiny").await;
        let record = fleet.describe(&name("blood.tiny")).await.unwrap();
        assert_eq!(record.application["made by"], "a test");
        assert_eq!(record.tables["x"].partitions.len(), drives);
        assert_eq!(record.rows(), u64::from(GENES));
        let all: u64 = (0..GENES).flat_map(|g| (0..CELLS).map(move |c| u64::from(count(g, c)))).sum();
        let nonzero = (0..GENES).flat_map(|g| (0..CELLS).map(move |c| count(g, c))).filter(|n| *n > 0).count();
        assert_eq!(record.tables["x"].matrix.unwrap().nonzeros, nonzero as u64);
        for cut in CUTS {
            let dense = query(&fleet, "SELECT count(*), sum(value) FROM blood.tiny.x", cut).await.unwrap();
            assert_eq!(dense, [format!("{} | {all}.0", CELLS * GENES)], "{drives} drives, {cut}");
            let rows = query(&fleet, "SELECT count(*), sum(nnz), sum(sum) FROM blood.tiny.x_rows", cut).await.unwrap();
            assert_eq!(rows, [format!("{GENES} | {nonzero} | {all}.0")], "{drives} drives, {cut}");
            let one = query(&fleet, "SELECT gene, cell, value FROM blood.tiny.x WHERE gene = 'G7' AND cell = 'cell-11'", cut).await.unwrap();
            assert_eq!(one, [format!("G7 | cell-11 | {}.0", count(7, 11))], "{cut}");
            let types = query(&fleet, "SELECT cell_type, count(*) FROM blood.tiny.obs GROUP BY cell_type ORDER BY 1", cut).await.unwrap();
            let expected: Vec<_> = TYPES.iter().enumerate().map(|(i, t)| format!("{t} | {}", (0..CELLS).filter(|c| group(*c) == i).count())).collect();
            assert_eq!(types, expected, "{cut}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grouped_moments_equal_plain_arithmetic_at_every_level() {
    let sql = "SELECT gene, m['group'] AS grp, m['n'] AS n, m['nnz'] AS nnz, round(m['mean'], 9), round(m['m2'], 6) FROM \
               (SELECT gene, unnest(cell_moments(cell, value, 'cell_type', NULL)) AS m FROM blood.tiny.x GROUP BY gene) ORDER BY gene, grp";
    let mut expected = Vec::new();
    for gene in 0..GENES {
        for (i, title) in TYPES.iter().enumerate() {
            let values: Vec<f64> = (0..CELLS).filter(|c| group(*c) == i).map(|c| f64::from(count(gene, c))).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let m2: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
            let nnz = values.iter().filter(|v| **v > 0.0).count();
            expected.push((format!("G{gene} | {title} | {} | {nnz}", values.len()), mean, m2));
        }
    }
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4).await.unwrap();
    write(&fleet, "blood.tiny").await;
    for cut in CUTS {
        let mut given = query(&fleet, sql, cut).await.unwrap_or_else(|e| panic!("{cut}: {e}"));
        // The last entry of each gene is for cells in no group, and all cells are in one.
        given.retain(|line| !line.contains(" | - | "));
        given.sort();
        assert_eq!(given.len(), expected.len(), "{cut}");
        for (line, (key, mean, m2)) in given.iter().zip(&expected) {
            let parts: Vec<&str> = line.split(" | ").collect();
            assert_eq!(parts[..4].join(" | "), *key, "{cut}");
            let near = |text: &str, wanted: f64| (text.parse::<f64>().unwrap() - wanted).abs() < 1e-5 * wanted.abs().max(1.0);
            assert!(near(parts[4], *mean) && near(parts[5], *m2), "{cut}: {line}, expected {mean} {m2}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn normalised_moments_are_the_same_below_and_above() {
    let sql = "SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') FROM blood.tiny.x GROUP BY gene ORDER BY gene";
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    write(&fleet, "blood.tiny").await;
    let below = query(&fleet, sql, Pushdown::Full).await.unwrap();
    assert_eq!(below.len(), GENES as usize);
    for cut in [Pushdown::Filter, Pushdown::Raw] {
        assert_eq!(query(&fleet, sql, cut).await.unwrap(), below, "{cut}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_names_are_refused_with_the_existing_ones() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    write(&fleet, "blood.tiny").await;
    let error = query(&fleet, "SELECT * FROM blood.tiny", Pushdown::Full).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("blood.tiny.x_rows"), "{error}");
    let error = query(&fleet, "SELECT * FROM blood.tiny.y", Pushdown::Full).await.unwrap_err();
    assert!(error.kind() == Kind::NotFound && error.to_string().contains("blood.tiny.obs"), "{error}");
    for cut in [Pushdown::Full, Pushdown::Raw] {
        let error = query(&fleet, "SELECT gene, cell_moments(cell, value, 'tissue', NULL) FROM blood.tiny.x GROUP BY gene", cut).await.unwrap_err();
        assert!(error.to_string().contains("tissue") && error.to_string().contains("cell_type"), "{cut}: {error}");
    }
    assert_eq!(value(&fleet, "SELECT count(*) FROM blood.tiny.var").await.unwrap(), GENES.to_string());
}
