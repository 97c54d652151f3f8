//! Functions whose results may be far larger than their arguments.
//!
//! `repeat('x', 2000000000)` is a small query with a large answer, which DataFusion builds past every memory budget.
//! The functions here add up how large the results of a batch will be before they build them, and refuse what exceeds
//! [`ResultLimits`]. An estimate may be too high: a batch that exceeds the limit by it is calculated in parts, and only
//! what the parts are counts.

mod estimates;
mod sizes;

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::config::ConfigExtension;
use datafusion::common::{Result, extensions_options};
use datafusion::execution::FunctionRegistry;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{ColumnarValue, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr as PhysicalBinary, Column};
use skytether_common::Error;

use self::sizes::{bytes, total};
use crate::error::to_datafusion;
use crate::function_wrapper::{Around, is_wrapped, wrap};
use crate::planning::largest_result;

extensions_options! {
    /// What a function may return for one batch of rows.
    pub struct ResultLimits {
        /// Bytes.
        pub bytes: u64, default = 256 << 20
    }
}

impl ConfigExtension for ResultLimits {
    const PREFIX: &'static str = "results";
}

impl ResultLimits {
    /// Those of a session whose queries take their memory from `pool`: an eighth of it.
    #[must_use]
    pub fn of(pool: &dyn MemoryPool) -> Self {
        match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => Self { bytes: (bytes as u64 / 8).clamp(1 << 20, 256 << 20) },
            _ => Self::default(),
        }
    }
}

/// The most bytes that the results of a batch of this many rows can have, to a small factor, saturating.
type Estimate = fn(&[ColumnarValue], usize) -> Result<u64>;

/// The functions that are bounded.
const BOUNDED: [(&str, Estimate); 26] = [
    (TEXT_CONCAT, estimates::joined),
    ("repeat", estimates::repeated),
    ("lpad", estimates::padded),
    ("rpad", estimates::padded),
    ("concat", estimates::joined),
    ("concat_ws", estimates::joined_with_separator),
    ("overlay", estimates::joined),
    ("replace", estimates::replaced),
    ("translate", estimates::translated),
    ("regexp_replace", estimates::replaced_by_pattern),
    ("regexp_match", estimates::groups),
    ("encode", estimates::encoded),
    ("to_char", estimates::formatted),
    ("string_to_array", estimates::split),
    ("array_to_string", estimates::listed),
    ("array_repeat", estimates::repeated_elements),
    ("array_resize", estimates::resized),
    ("array_append", estimates::joined),
    ("array_prepend", estimates::joined),
    ("array_concat", estimates::joined),
    ("array_replace", estimates::joined),
    ("array_replace_n", estimates::replaced_elements),
    ("array_replace_all", estimates::replaced_elements),
    ("arrays_zip", estimates::zipped),
    ("range", estimates::ranged),
    ("generate_series", estimates::ranged),
];

/// Replaces the functions in `registry` whose results may be large. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udf(text_concat())?;
    for (name, _) in BOUNDED {
        if let Some(bounded) = registry.udf(name).ok().and_then(|inner| with_bound(&inner)) {
            registry.register_udf(bounded)?;
        }
    }
    Ok(())
}

/// `function` with its bound; none if it needs none or has it. DataFusion's planner makes some calls, such as `[1] ||
/// [2]`, without a look into the registry.
pub(crate) fn with_bound(function: &Arc<ScalarUDF>) -> Option<Arc<ScalarUDF>> {
    let (_, estimate) = BOUNDED.iter().find(|(name, _)| *name == function.name())?;
    (!is_bounded(function)).then(|| wrap(Arc::clone(function), Bounded(*estimate)))
}

pub(crate) fn is_bounded(function: &ScalarUDF) -> bool {
    is_wrapped::<Bounded>(function)
}

/// The name of the function for `||` of texts.
const TEXT_CONCAT: &str = "||";

/// `||` of texts, with its bound.
pub(crate) fn text_concat() -> Arc<ScalarUDF> {
    let operator = ScalarUDF::from(Concat { signature: Signature::any(2, Volatility::Immutable) });
    wrap(Arc::new(operator), Bounded(estimates::joined))
}

#[derive(Clone)]
struct Bounded(Estimate);

impl Around for Bounded {
    fn invoke(&self, inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let limit = largest_result(args.config_options.extensions.get::<ResultLimits>().cloned().unwrap_or_default().bytes);
        let most = (self.0)(&args.args, args.number_rows)?;
        if most <= limit {
            return inner.invoke_with_args(args);
        }
        let rows = args.number_rows;
        let mut parts = Parts { limit, left: limit, results: Vec::new() };
        if args.args.iter().any(|arg| matches!(arg, ColumnarValue::Array(_))) && self.add_parts(inner, args, &mut parts)? {
            let results: Vec<_> = parts.results.iter().map(AsRef::as_ref).collect();
            return Ok(ColumnarValue::Array(concat(&results)?));
        }
        // Ours: one of DataFusion's kind would be told as the host's want of memory.
        Err(to_datafusion(Error::exhausted(format!(
            "{}: the results of {rows} rows may take {} MB, at most {} MB fit: ask for shorter results",
            inner.name(),
            most >> 20,
            limit >> 20
        ))))
    }
}

/// Results of the parts of a batch.
struct Parts {
    limit: u64,
    /// Bytes that further results may have.
    left: u64,
    results: Vec<ArrayRef>,
}

impl Bounded {
    /// Adds the results for `args`, in parts that fit by their estimate. Returns false where the results don't fit.
    fn add_parts(&self, inner: &ScalarUDF, args: ScalarFunctionArgs, parts: &mut Parts) -> Result<bool> {
        let rows = args.number_rows;
        if (self.0)(&args.args, rows)? <= parts.limit {
            let results = inner.invoke_with_args(args)?;
            let size = total(bytes(&results, rows)?);
            let fits = size <= parts.left;
            parts.left = parts.left.saturating_sub(size);
            parts.results.push(results.into_array(rows)?);
            return Ok(fits);
        }
        let half = rows / 2;
        let part = |from: usize, rows: usize| ScalarFunctionArgs {
            args: args
                .args
                .iter()
                .map(|arg| match arg {
                    ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(from, rows)),
                    scalar => scalar.clone(),
                })
                .collect(),
            number_rows: rows,
            arg_fields: args.arg_fields.clone(),
            return_field: Arc::clone(&args.return_field),
            config_options: Arc::clone(&args.config_options),
        };
        Ok(half > 0 && self.add_parts(inner, part(0, half), parts)? && self.add_parts(inner, part(half, rows - half), parts)?)
    }
}

/// The operator `||` of texts as a function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Concat {
    signature: Signature,
}

impl ScalarUDFImpl for Concat {
    fn name(&self) -> &str {
        TEXT_CONCAT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        let [left, right] = of else { return datafusion::common::plan_err!("|| takes two texts") };
        BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type()
    }

    /// As the operator does.
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = args.args.iter().map(|arg| arg.to_array(args.number_rows)).collect::<Result<Vec<_>>>()?;
        let fields: Vec<Field> = ["l", "r"].iter().zip(&arrays).map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(args.number_rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?;
        PhysicalBinary::new(Arc::new(Column::new("l", 0)), Operator::StringConcat, Arc::new(Column::new("r", 1))).evaluate(&batch)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    fn context() -> SessionContext {
        let config = SessionConfig::new().with_option_extension(ResultLimits { bytes: 1 << 20 });
        let context = SessionContext::new_with_config(config);
        register(&mut *context.state_ref().write()).unwrap();
        context
    }

    async fn asked(context: &SessionContext, sql: &str) -> Result<String> {
        let rows = context.sql(sql).await?.collect().await?;
        Ok(datafusion::arrow::util::pretty::pretty_format_batches(&rows)?.to_string())
    }

    // docs/sql.md: results of one function for a batch of rows ...
    #[tokio::test]
    async fn large_results_are_refused_before_they_are_built() {
        let context = context();
        for call in [
            "length(repeat('x', 2000000000))",
            "length(repeat('xy', 9223372036854775807))",
            "length(lpad('x', 1000000000, 'y'))",
            "length(lpad('', 400000, '漢'))",
            "length(rpad('x', 2000000000))",
            "length(concat(repeat('x', 1000000), repeat('x', 1000000)))",
            "length(concat_ws('-', repeat('x', 1000000), repeat('x', 1000000)))",
            "length(concat_ws(repeat('x', 100000), 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l'))",
            "length(overlay(repeat('x', 600000), repeat('y', 600000), 600000))",
            "length(translate(repeat('a', 400000), 'a', '漢'))",
            "length(regexp_replace(repeat('a', 1000), 'a', repeat('x', 2000), 'g'))",
            "length(regexp_replace(repeat('a', 100000), '(a+)', '$1$1$1$1$1$1$1$1$1$1$1$1'))",
            "cardinality(regexp_match(repeat('a', 100000), '((((((((((((a+))))))))))))'))",
            "length(encode(CAST(repeat('a', 600000) AS BYTEA), 'hex'))",
            "length(to_char(DATE '2024-01-01', repeat('%A', 100000)))",
            "cardinality(string_to_array(repeat('a', 100000), NULL))",
            "length(array_to_string(array_repeat('', 2000), repeat('x', 1000)))",
            "length(array_to_string(array_repeat(CAST(NULL AS TEXT), 2000), ',', repeat('x', 1000)))",
            "length(replace(repeat('x', 100000), 'x', 'twelve chars'))",
            "length(replace(repeat('x', 100000), '', 'twelve chars'))",
            "cardinality(array_repeat(1, 1000000))",
            "cardinality(array_repeat(make_array(repeat('x', 10000)), 2000))",
            "cardinality(array_resize([1], 1000000, 0))",
            "cardinality(array_resize(array_repeat('', 1), 2000, repeat('x', 10000)))",
            "cardinality(array_concat([repeat('x', 600000)], [repeat('x', 600000)]))",
            "cardinality(array_append([repeat('x', 600000)], repeat('x', 600000)))",
            "cardinality(array_prepend(repeat('x', 600000), [repeat('x', 600000)]))",
            "cardinality(array_replace([repeat('x', 600000), 'y'], 'y', repeat('x', 600000)))",
            "cardinality(array_replace_n(array_repeat('y', 2000), 'y', repeat('x', 1000), 2000))",
            "cardinality(array_replace_all(array_repeat('y', 2000), 'y', repeat('x', 1000)))",
            "cardinality(arrays_zip(array_repeat(1, 50000), [1], [2], [3], [4]))",
            "cardinality(range(0, 10000000000))",
            "cardinality(range(10000000000, 0, -1))",
            "cardinality(generate_series(-9223372036854775807, 9223372036854775807))",
            "cardinality(generate_series(DATE '2000-01-01', DATE '2024-01-01', INTERVAL '1' SECOND))",
            "cardinality(generate_series(TIMESTAMP '2000-01-01', TIMESTAMP '2024-01-01', INTERVAL '1' SECOND))",
        ] {
            let error = asked(&context, &format!("SELECT {call} AS n")).await.expect_err(call).to_string();
            assert!(error.contains("at most 1 MB fit"), "{call}: {error}");
        }
    }

    #[tokio::test]
    async fn batches_count_as_a_whole() {
        let context = context();
        let sql = |n: u64| format!("SELECT sum(length(repeat(CAST(value AS TEXT), {n}))) AS n FROM generate_series(1000, 1999)");
        assert!(asked(&context, &sql(200)).await.unwrap().contains("800000"));
        assert!(asked(&context, &sql(300)).await.unwrap_err().to_string().contains("1000 rows"));
    }

    /// An estimate may be too high, and the results fit all the same.
    #[tokio::test]
    async fn batches_that_may_be_too_large_are_asked_in_parts() {
        let context = context();
        let sql = |by: u64| {
            format!("SELECT sum(length(regexp_replace(repeat('ab', 100), '[b-z]', repeat('x', {by} + value % 2), 'g'))) AS n FROM generate_series(1, 20)")
        };
        assert!(asked(&context, &sql(400)).await.unwrap().contains("803000"));
        assert!(asked(&context, &sql(600)).await.unwrap_err().to_string().contains("regexp_replace: the results of 20 rows"));
    }

    /// Functions whose result, for one row, is no larger than three times their arguments, and not in a way that grows
    /// when they are called within one another. A function that is new in DataFusion is in neither list.
    const SMALL: &str = "\
        abs acos acosh array_add array_any_match array_any_value array_avg array_compact array_dims array_distance
        array_distinct array_element array_except array_filter array_first array_has array_has_all array_has_any
        array_intersect array_length array_max array_min array_ndims array_normalize array_pop_back
        array_pop_front array_position array_positions array_product array_remove array_remove_all array_remove_n
        array_reverse array_scale array_slice array_sort array_subtract array_sum array_transform array_union
        arrow_cast arrow_field arrow_metadata arrow_try_cast arrow_typeof ascii asin asinh atan atan2 atanh
        bit_length btrim cardinality cast_to_type cbrt ceil character_length chr coalesce contains cos cosh
        cosine_distance cot current_date current_time date_bin date_part date_trunc decode degrees digest empty
        ends_with exp factorial file_row_index find_in_set flatten floor from_unixtime gcd get_field greatest
        initcap inner_product input_file_name isnan iszero lcm least left levenshtein ln log log10 log2 lower
        ltrim make_array make_date make_time map map_entries map_extract map_keys map_values md5 named_struct
        nanvl now nullif nvl nvl2 octet_length pi power radians random regexp_count regexp_instr regexp_like
        reverse right round rtrim sha224 sha256 sha384 sha512 signum sin sinh split_part sqrt starts_with strpos
        struct substr substr_index tan tanh to_date to_hex to_local_time to_time to_timestamp to_timestamp_micros
        to_timestamp_millis to_timestamp_nanos to_timestamp_seconds to_unixtime trunc try_cast_to_type
        union_extract union_tag upper uuid version with_metadata";

    #[test]
    fn every_function_is_bounded_or_known_to_be_small() {
        let context = context();
        let state = context.state();
        let known: HashSet<&str> = SMALL.split_whitespace().collect();
        let mut names: Vec<&str> = state.scalar_functions().values().filter(|f| !is_wrapped::<Bounded>(f)).map(|f| f.name()).collect();
        names.sort_unstable();
        names.dedup();
        let unknown: Vec<&str> = names.iter().copied().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "may their results be larger than their arguments? {unknown:?}");
        for (name, _) in BOUNDED {
            assert!(state.scalar_functions().contains_key(name) && !known.contains(name), "{name}");
        }
    }

    #[tokio::test]
    async fn small_results_are_those_of_before() {
        let (context, plain) = (context(), SessionContext::new());
        for call in [
            "repeat('ab', 3)",
            "repeat('ab', -3)",
            "repeat(NULL, 3)",
            "lpad('é', 4, 'xy')",
            "rpad('é', NULL)",
            "concat('a', NULL, 1, 2.5)",
            "concat_ws(', ', 'a', NULL, 'b')",
            "replace('banana', 'an', '')",
            "overlay('banana' PLACING 'x' FROM 2 FOR 3)",
            "translate('banana', 'an', 'é')",
            "regexp_replace('banana', '(a)n', '<$1>', 'g')",
            "regexp_match('banana', '(a)(n)')",
            "encode('abc', 'hex')",
            "to_char(DATE '2024-01-01', '%d.%m.%Y')",
            "string_to_array('a,b', ',')",
            "array_to_string([1, NULL, 3], ',', '-')",
            "list_to_string([1, 2], ',')",
            "array_append([1], 2)",
            "array_prepend(1, [2])",
            "array_replace_all([1, 2, 1], 1, 3)",
            "arrays_zip([1, 2], ['a'])",
            "[1] || [2, 3]",
            "array_repeat([1, NULL], 2)",
            "list_repeat('x', 2)",
            "array_resize([1, 2], 3, 7)",
            "array_concat([1], [2, 3])",
            "range(5)",
            "range(5, 1, -2)",
            "generate_series(1, 3)",
            "generate_series(DATE '2024-01-30', DATE '2024-03-31', INTERVAL '1' MONTH)",
        ] {
            let sql = format!("SELECT {call} AS v, arrow_typeof({call}) AS t");
            assert_eq!(asked(&context, &sql).await.unwrap(), asked(&plain, &sql).await.unwrap(), "{call}");
        }
    }
}
