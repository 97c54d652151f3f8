//! The scalar function `t_test(moments, group, reference, method)`, and the registration of all
//! functions of this crate.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Float64Builder, StructArray};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::execution::registry::FunctionRegistry;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use skytether_common::{Error, Result};

use crate::aggregate::is_text;
use crate::cell_moments::cell_moments_udaf;
use crate::cell_sums::cell_sums_udaf;
use crate::cells::CellSource;
use crate::clipped_moments::clipped_moments_udaf;
use crate::df_error::through;
use crate::entries::entries_of_udf;
use crate::moments::moments_udaf;
use crate::rank::unknown_group;
use crate::rank_sums::rank_sums_udaf;
use crate::store::{Results, result_type};
use crate::ttest::{GroupMoments, Method, check_size, log_fold_change, test_unchecked};

/// The reference that means all other cells.
pub const REST: &str = "rest";

/// Registers the aggregates over matrices, `t_test` and `entries_of`.
///
/// # Errors
/// What the registry answers.
pub fn register(registry: &mut dyn FunctionRegistry, source: Arc<dyn CellSource>) -> Result<()> {
    let failed = |e| Error::internal("cannot register the functions for expression data").with_source(e);
    registry.register_udaf(Arc::new(moments_udaf(Arc::clone(&source)))).map_err(failed)?;
    registry.register_udaf(Arc::new(rank_sums_udaf(Arc::clone(&source)))).map_err(failed)?;
    registry.register_udaf(Arc::new(cell_sums_udaf(Arc::clone(&source)))).map_err(failed)?;
    registry.register_udaf(Arc::new(clipped_moments_udaf(Arc::clone(&source)))).map_err(failed)?;
    registry.register_udaf(Arc::new(cell_moments_udaf(source))).map_err(failed)?;
    registry.register_udf(Arc::new(t_test_udf())).map_err(failed)?;
    registry.register_udf(Arc::new(entries_of_udf())).map_err(failed)?;
    Ok(())
}

/// The scalar function `t_test(moments, group, reference, method)`.
///
/// `moments` is the result of `moments()` or `cell_moments()`, `reference` a group or `'rest'` (all other cells; also
/// where a group is so named), `method` one of [`Method`]'s names. Gives
/// `Struct<score, df, pval, logfoldchange, mean_group, mean_reference, pct_nz_group, pct_nz_reference>`, all Float64;
/// NULL where an argument is. The fold change takes values to be natural logarithms.
#[must_use]
pub fn t_test_udf() -> ScalarUDF {
    ScalarUDF::new_from_impl(TTestFunction { signature: Signature::user_defined(Volatility::Immutable) })
}

static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    ["score", "df", "pval", "logfoldchange", "mean_group", "mean_reference", "pct_nz_group", "pct_nz_reference"]
        .into_iter()
        .map(|name| Field::new(name, DataType::Float64, true))
        .collect()
});

#[derive(Debug, PartialEq, Eq, Hash)]
struct TTestFunction {
    signature: Signature,
}

impl ScalarUDFImpl for TTestFunction {
    fn name(&self) -> &str {
        "t_test"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match types {
            [moments, rest @ ..] if rest.len() == 3 && moments.equals_datatype(&result_type()) && rest.iter().all(|t| is_text(t) || t.is_null()) => {
                Ok(vec![moments.clone(), DataType::Utf8View, DataType::Utf8View, DataType::Utf8View])
            }
            _ => Err(through(Error::invalid(
                "t_test(moments, group, reference, method) takes grouped moments and three texts: a group, a group or 'rest', and 'student', 't-test' or 't-test_overestim_var'",
            ))),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Struct(FIELDS.clone()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let [moments, group, reference, method] = args.args.as_slice() else {
            return Err(through(Error::internal("t_test was called without its four arguments")));
        };
        let scalar = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let rows = if scalar { 1 } else { args.number_rows };
        let moments = moments.to_array(rows)?;
        let text = |v: &ColumnarValue| -> DfResult<Texts> {
            Ok(match v {
                ColumnarValue::Scalar(s) => Texts::One(s.try_as_str().flatten().map(str::to_owned)),
                ColumnarValue::Array(a) => Texts::Many(cast(a, &DataType::Utf8View)?),
            })
        };
        let result = test_rows(&moments, &text(group)?, &text(reference)?, &text(method)?).map_err(through)?;
        Ok(if scalar { ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?) } else { ColumnarValue::Array(result) })
    }
}

/// A text argument: the same for all rows, or a column.
enum Texts {
    One(Option<String>),
    Many(ArrayRef),
}

impl Texts {
    fn get(&self, row: usize) -> Option<&str> {
        match self {
            Texts::One(text) => text.as_deref(),
            Texts::Many(column) => {
                let column = column.as_string_view();
                (!column.is_null(row)).then(|| column.value(row))
            }
        }
    }
}

fn test_rows(moments: &ArrayRef, group: &Texts, reference: &Texts, method: &Texts) -> Result<ArrayRef> {
    let results = Results::open(moments.as_ref())?;
    let rows = moments.len();
    let mut columns: Vec<Float64Builder> = FIELDS.iter().map(|_| Float64Builder::with_capacity(rows)).collect();
    let mut valid = Vec::with_capacity(rows);
    for row in 0..rows {
        let arguments = if moments.is_null(row) { None } else { group.get(row).zip(reference.get(row)).zip(method.get(row)) };
        valid.push(arguments.is_some());
        let Some(((group, reference), method)) = arguments else {
            columns.iter_mut().for_each(Float64Builder::append_null);
            continue;
        };
        for (column, value) in columns.iter_mut().zip(test_row(&results, row, group, reference, Method::parse(method)?)?) {
            column.append_value(value);
        }
    }
    let columns = columns.into_iter().map(|mut c| Arc::new(c.finish()) as ArrayRef).collect();
    let result = StructArray::try_new(FIELDS.clone(), columns, Some(NullBuffer::from(valid)))
        .map_err(|e| Error::internal("cannot build the result of t_test").with_source(e))?;
    Ok(Arc::new(result))
}

fn test_row(results: &Results<'_>, row: usize, group: &str, reference: &str, method: Method) -> Result<[f64; 8]> {
    let range = results.range(row);
    let find = |name: &str| {
        range.clone().find(|&at| results.name(at) == Some(name)).ok_or_else(|| unknown_group(name, range.clone().filter_map(|at| results.name(at))))
    };
    let at = find(group)?;
    let mine = results.moments(at);
    let other = if reference == REST {
        range.clone().filter(|&other| other != at).fold(GroupMoments::default(), |sum, other| sum.merged(&results.moments(other)))
    } else {
        results.moments(find(reference)?)
    };
    check_size(group, mine.n)?;
    check_size(reference, other.n)?;
    let t = test_unchecked(method, &mine, &other);
    Ok([t.t, t.df, t.p, log_fold_change(mine.mean, other.mean, 1.0), mine.mean, other.mean, mine.pct_nz(), other.pct_nz()])
}
