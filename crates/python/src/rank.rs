//! Specs of grouped moments, and genes ranked from them.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema, UInt32Type};
use arrow::record_batch::RecordBatch;
use datafusion::logical_expr::EmitTo;
use pyo3::prelude::*;
use pyo3_arrow::PyTable;
use serde::Deserialize;
use skytether_common::{Error, Result};
use skytether_expression::rank::ranking_schema;
use skytether_expression::rank_sums::RankSumsSpec;
use skytether_expression::spec::Squares;
use skytether_expression::store::{MomentStore, Results};
use skytether_expression::ttest::overlapping;
use skytether_expression::{Correction, Groups, MomentsSpec, RankOptions, Reference, Test, Transform, rank_genes as rank};

use crate::buffers::Lent;
use crate::errors::OrRaise;
use crate::result::PyResultSet;
use crate::specs::packed;

/// The literal argument of `moments`: groups are those of obs column `column`, or `codes`: names, and for each cell the
/// number of its group (int32, -1 for none). `single`: values are squared in float32, as scanpy does. `totals` (one
/// float32 per cell) replace those of the matrix in the transform.
#[pyfunction]
#[pyo3(signature = (dataset, matrix, transform, column = None, codes = None, single = false, totals = None))]
pub fn moments_spec(
    dataset: &str,
    matrix: String,
    transform: Option<&str>,
    column: Option<String>,
    codes: Option<(Vec<String>, Bound<'_, PyAny>)>,
    single: bool,
    totals: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let groups = match (column, codes) {
        (Some(column), None) => Groups::Obs { column },
        (None, Some((names, codes))) => Groups::codes(names, Lent::<i32>::new(&codes, "codes").or_raise()?.slice()).or_raise()?,
        _ => return Err(Error::invalid("give an obs column or codes for the groups")).or_raise(),
    };
    let transform = transform.map(Transform::parse).transpose().or_raise()?;
    let (squares, totals) = (if single { Squares::Float32 } else { Squares::Float64 }, packed(totals, "totals")?);
    MomentsSpec { dataset: dataset.parse().or_raise()?, matrix, groups, transform, squares, totals }.to_literal().or_raise()
}

/// The literal argument of `rank_sums`, for the cells, groups and transform of a literal of `moments`. `against`: the
/// group that each group is ranked with, none for all cells. `without_last` and `overlap` are as in the options of
/// `rank_genes`.
#[pyfunction]
#[pyo3(signature = (moments, against = None, without_last = false, overlap = false))]
pub fn rank_sums_spec(moments: &str, against: Option<String>, without_last: bool, overlap: bool) -> PyResult<String> {
    let of = MomentsSpec::from_literal(moments).or_raise()?;
    RankSumsSpec { of, against, without_last, overlap }.to_literal().or_raise()
}

/// The options of `rank_genes`, as JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    groups: Option<Vec<String>>,
    /// None: all other cells.
    reference: Option<String>,
    method: String,
    #[serde(default)]
    tie_correct: bool,
    correction: String,
    log_base: Option<f64>,
    /// If set, the groups of the query are three: cells in the first set alone, in the second alone, and in both. The
    /// value has the names of the two sets.
    overlap: Option<(String, String)>,
    /// The last group of the query is of cells that count nowhere: neither as a group nor as the rest.
    #[serde(default)]
    without_last: bool,
    /// The numbers of the genes to rank; all that the query gives without it.
    genes: Option<Vec<u32>>,
}

/// Runs `queries` one after the other (columns `gene_id`, `moments`, `ranks` for Wilcoxon's test, and `gene` for names)
/// and ranks all their genes together; the columns are those of `ranking_schema`, each group's rows are a batch.
#[pyfunction]
pub fn rank_genes(py: Python<'_>, queries: &Bound<'_, PyAny>, options: &str) -> PyResult<PyTable> {
    let asked: Asked = serde_json::from_str(options).map_err(|e| Error::invalid("these are no options of a ranking").with_source(e)).or_raise()?;
    let mut batches = Vec::new();
    for query in queries.try_iter()? {
        batches.extend(query?.cast::<PyResultSet>()?.get().batches(py)?);
    }
    let ranked = py.detach(|| ranked(batches, asked)).or_raise()?;
    PyTable::try_new(ranked, ranking_schema())
}

fn ranked(mut batches: Vec<RecordBatch>, asked: Asked) -> Result<Vec<RecordBatch>> {
    if let Some(genes) = &asked.genes {
        let genes: HashSet<u32> = genes.iter().copied().collect();
        batches = batches.iter().map(|batch| of_genes(batch, &genes)).collect::<Result<_>>()?;
    }
    if asked.without_last {
        batches = batches.iter().map(without_last).collect::<Result<_>>()?;
    }
    let options = RankOptions {
        groups: asked.groups,
        reference: asked.reference.map_or(Reference::Rest, Reference::Group),
        test: Test::parse(&asked.method, asked.tie_correct)?,
        correction: Correction::parse(&asked.correction)?,
        n_genes: None,
        log_base: asked.log_base,
    };
    match asked.overlap {
        None => rank(&batches, &options),
        Some((first, second)) => {
            let names: Arc<[String]> = [first, second].into();
            let both = batches.iter().map(|batch| with_both(batch, &names)).collect::<Result<Vec<_>>>()?;
            rank(&both, &options)
        }
    }
}

/// The rows of `genes`.
fn of_genes(batch: &RecordBatch, genes: &HashSet<u32>) -> Result<RecordBatch> {
    let failed = |e| Error::internal("cannot choose the genes").with_source(e);
    let ids = batch.column_by_name("gene_id").and_then(|ids| ids.as_primitive_opt::<UInt32Type>());
    let Some(ids) = ids else { return Err(Error::invalid("ranking genes needs a column \"gene_id\" of unsigned integers")) };
    let wanted: BooleanArray = ids.iter().map(|id| Some(id.is_some_and(|id| genes.contains(&id)))).collect();
    filter_record_batch(batch, &wanted).map_err(failed)
}

/// `genes` without the moments of the last group.
fn without_last(genes: &RecordBatch) -> Result<RecordBatch> {
    rebuilt(genes, None)
}

/// `genes` with the moments of the two sets, instead of those of the first alone, the second alone, and both.
fn with_both(genes: &RecordBatch, names: &Arc<[String]>) -> Result<RecordBatch> {
    rebuilt(genes, Some(names))
}

/// `genes` with other groups: the two sets that are called `two`, which the query has as the first alone, the second
/// alone and both; or all groups but the last.
fn rebuilt(genes: &RecordBatch, two: Option<&Arc<[String]>>) -> Result<RecordBatch> {
    let failed = |e| Error::internal("cannot rebuild the moments").with_source(e);
    let Ok(at) = genes.schema().index_of("moments") else { return Err(Error::invalid("ranking genes needs a column \"moments\"")) };
    let column = genes.column(at);
    let results = Results::open(column.as_ref())?;
    // Every row has the same groups, and one entry more for the cells in none.
    let width = if genes.num_rows() == 0 { 0 } else { results.range(0).len() };
    let names: Arc<[String]> = match two {
        Some(two) => Arc::clone(two),
        None => (0..width.saturating_sub(2)).map(|i| results.name(results.range(0).start + i).unwrap_or_default().to_owned()).collect(),
    };
    let mut store = MomentStore::default();
    store.reserve(&names, genes.num_rows())?;
    for row in 0..genes.num_rows() {
        let range = results.range(row);
        if range.len() != width || column.is_null(row) || width < 2 || (two.is_some() && width != 4) {
            return Err(Error::invalid("the query has other groups than were asked for"));
        }
        let of = |i: usize| results.moments(range.start + i);
        let groups = if two.is_some() {
            let (a, b) = overlapping(&of(0), &of(1), &of(2));
            vec![a, b, of(3)]
        } else {
            (0..width).filter(|i| i + 2 != width).map(of).collect()
        };
        for (group, moments) in groups.iter().enumerate() {
            store.merge(row, group, moments);
        }
    }
    let rebuilt: ArrayRef = store.result(EmitTo::All, genes.num_rows())?;
    let mut columns = genes.columns().to_vec();
    let mut fields: Vec<_> = genes.schema().fields().iter().cloned().collect();
    fields[at] = Arc::new(Field::new("moments", rebuilt.data_type().clone(), true));
    columns[at] = rebuilt;
    if let Ok(at) = genes.schema().index_of("ranks") {
        columns[at] = without_second_to_last(&columns[at], width)?;
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(failed)
}

/// Lists of `width` rank sums without the second to last entry: that of the cells that count nowhere, or of those in
/// both sets, which the sums of the two sets include.
fn without_second_to_last(ranks: &ArrayRef, width: usize) -> Result<ArrayRef> {
    if width == 0 {
        return Ok(Arc::clone(ranks));
    }
    let failed = |e| Error::internal("cannot rebuild the rank sums").with_source(e);
    let wrong = || Error::invalid("ranks and moments must have the same groups: give rank_sums() and moments() the same spec");
    let lists = ranks.as_list_opt::<i32>().filter(|lists| (0..lists.len()).all(|row| lists.value_length(row) as usize == width)).ok_or_else(wrong)?;
    let DataType::List(item) = lists.data_type() else { return Err(wrong()) };
    let start = lists.value_offsets()[0] as usize;
    let kept: BooleanArray =
        (0..lists.values().len()).map(|at| Some(at >= start && at < start + width * lists.len() && (at - start) % width + 2 != width)).collect();
    let values = filter(lists.values(), &kept).map_err(failed)?;
    let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(width - 1, lists.len()));
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, None).map_err(failed)?))
}
