//! Specs of grouped moments, and genes ranked from them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::logical_expr::EmitTo;
use pyo3::prelude::*;
use pyo3_arrow::PyTable;
use serde::Deserialize;
use skytether_common::{Error, Result};
use skytether_expression::rank::ranking_schema;
use skytether_expression::spec::Squares;
use skytether_expression::store::{MomentStore, Results};
use skytether_expression::ttest::overlapping;
use skytether_expression::{Correction, Groups, Method, MomentsSpec, RankOptions, Reference, Transform, rank_genes as rank};

use crate::buffers::Lent;
use crate::errors::OrRaise;
use crate::result::PyResultSet;

/// The literal argument of `moments`: groups are those of obs column `column`, or `codes`: names, and for each cell the
/// number of its group (int32, -1 for none). `single`: values are squared in float32, as scanpy does.
#[pyfunction]
#[pyo3(signature = (dataset, matrix, transform, column = None, codes = None, single = false))]
pub fn moments_spec(
    dataset: &str,
    matrix: String,
    transform: Option<&str>,
    column: Option<String>,
    codes: Option<(Vec<String>, Bound<'_, PyAny>)>,
    single: bool,
) -> PyResult<String> {
    let groups = match (column, codes) {
        (Some(column), None) => Groups::Obs { column },
        (None, Some((names, codes))) => Groups::codes(names, Lent::<i32>::new(&codes, "codes").or_raise()?.slice()).or_raise()?,
        _ => return Err(Error::invalid("give an obs column or codes for the groups")).or_raise(),
    };
    let transform = transform.map(Transform::parse).transpose().or_raise()?;
    MomentsSpec { dataset: dataset.parse().or_raise()?, matrix, groups, transform, squares: if single { Squares::Float32 } else { Squares::Float64 } }
        .to_literal()
        .or_raise()
}

/// The options of `rank_genes`, as JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    groups: Option<Vec<String>>,
    /// None: all other cells.
    reference: Option<String>,
    method: String,
    correction: String,
    log_base: Option<f64>,
    /// If set, the groups of the query are three: cells in the first set alone, in the second alone, and in both. The
    /// value has the names of the two sets.
    overlap: Option<(String, String)>,
}

/// Runs `query` (columns `gene_id`, `moments`, and `gene` for names) and ranks its genes; the columns are those of
/// `ranking_schema`, each group's rows are a batch.
#[pyfunction]
pub fn rank_genes(py: Python<'_>, query: &PyResultSet, options: &str) -> PyResult<PyTable> {
    let asked: Asked = serde_json::from_str(options).map_err(|e| Error::invalid("these are no options of a ranking").with_source(e)).or_raise()?;
    let batches = query.batches(py)?;
    let ranked = py.detach(|| ranked(batches, asked)).or_raise()?;
    PyTable::try_new(ranked, ranking_schema())
}

fn ranked(batches: Vec<RecordBatch>, asked: Asked) -> Result<Vec<RecordBatch>> {
    let options = RankOptions {
        groups: asked.groups,
        reference: asked.reference.map_or(Reference::Rest, Reference::Group),
        method: Method::parse(&asked.method)?,
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

/// `genes` with the moments of the two sets, instead of those of the first alone, the second alone, and both.
fn with_both(genes: &RecordBatch, names: &Arc<[String]>) -> Result<RecordBatch> {
    let failed = |e| Error::internal("cannot rebuild the moments").with_source(e);
    let Ok(at) = genes.schema().index_of("moments") else { return Err(Error::invalid("ranking genes needs a column \"moments\"")) };
    let column = genes.column(at);
    let results = Results::open(column.as_ref())?;
    let mut store = MomentStore::default();
    store.reserve(names, genes.num_rows())?;
    for row in 0..genes.num_rows() {
        let range = results.range(row);
        if range.len() != 4 || column.is_null(row) {
            return Err(Error::invalid("two sets of cells that overlap need three groups: first alone, second alone, both"));
        }
        let [a, b, both, rest] = [0, 1, 2, 3].map(|i| results.moments(range.start + i));
        let (a, b) = overlapping(&a, &b, &both);
        for (group, moments) in [a, b, rest].iter().enumerate() {
            store.merge(row, group, moments);
        }
    }
    let rebuilt: ArrayRef = store.result(EmitTo::All, genes.num_rows())?;
    let mut columns = genes.columns().to_vec();
    let mut fields: Vec<_> = genes.schema().fields().iter().cloned().collect();
    fields[at] = Arc::new(Field::new("moments", rebuilt.data_type().clone(), true));
    columns[at] = rebuilt;
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(failed)
}
