//! Functions whose results may be far larger than their arguments.
//!
//! `repeat('x', 2000000000)` is a small query with a large answer, which DataFusion builds past every memory budget.
//! The functions here add up how large the results of a batch will be before they build them, and refuse what exceeds
//! [`ResultLimits`].

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Int64Type, IntervalMonthDayNanoType, IntervalUnit, Schema, TimeUnit};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::config::ConfigExtension;
use datafusion::common::{Result, ScalarValue, extensions_options, resources_datafusion_err};
use datafusion::execution::FunctionRegistry;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr as PhysicalBinary, Column};

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

/// Bytes of the results of a batch of this many rows. Exact to a small factor, saturating.
type Estimate = fn(&[ColumnarValue], usize) -> Result<u64>;

/// The functions that are bounded.
const BOUNDED: [(&str, Estimate); 12] = [
    (TEXT_CONCAT, concatenated),
    ("repeat", repeated),
    ("lpad", padded),
    ("rpad", padded),
    ("concat", concatenated),
    ("concat_ws", concatenated),
    ("replace", replaced),
    ("array_repeat", repeated_elements),
    ("array_resize", resized),
    ("array_concat", concatenated),
    ("range", ranged),
    ("generate_series", ranged),
];

/// Replaces the functions in `registry` whose results may be large. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udf(text_concat())?;
    for (name, _) in BOUNDED {
        if let Ok(inner) = registry.udf(name)
            && inner.inner().downcast_ref::<Bounded>().is_none()
        {
            registry.register_udf(bounded(name, inner))?;
        }
    }
    Ok(())
}

/// The name of the function for `||` of texts.
const TEXT_CONCAT: &str = "||";

/// `||` of texts, with its bound.
pub(crate) fn text_concat() -> Arc<ScalarUDF> {
    bounded(TEXT_CONCAT, Arc::new(ScalarUDF::from(Concat { signature: Signature::any(2, Volatility::Immutable) })))
}

/// The function called `name` with its bound.
fn bounded(name: &'static str, inner: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let estimate = BOUNDED.iter().find(|(known, _)| *known == name).map_or(concatenated as Estimate, |(_, estimate)| *estimate);
    Arc::new(ScalarUDF::from(Bounded { name, inner, estimate: Compared(estimate) }))
}

/// An estimate is determined by the function's name, and so does not count in comparisons.
#[derive(Clone, Copy)]
struct Compared(Estimate);

#[derive(Clone)]
struct Bounded {
    name: &'static str,
    inner: Arc<ScalarUDF>,
    estimate: Compared,
}

impl Debug for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Bounded").field(&self.name).finish()
    }
}

impl PartialEq for Bounded {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for Bounded {}

impl std::hash::Hash for Bounded {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }

    // What DataFusion simplifies these to are calls of its own, without a bound.
    fn simplify(&self, args: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(ExprSimplifyResult::Original(args))
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let limit = args.config_options.extensions.get::<ResultLimits>().cloned().unwrap_or_default().bytes;
        let bytes = (self.estimate.0)(&args.args, args.number_rows)?;
        if bytes > limit {
            return Err(resources_datafusion_err!(
                "{}: the results of {} rows would take {} MB or more, at most {} MB fit: ask for shorter results",
                self.name,
                args.number_rows,
                bytes >> 20,
                limit >> 20
            ));
        }
        self.inner.invoke_with_args(args)
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

/// Values of an argument by row: a scalar has one for all.
enum Rows {
    One(Option<i64>),
    Each(ArrayRef),
}

impl Rows {
    /// The argument as whole numbers; other types have none.
    fn numbers(of: &ColumnarValue) -> Result<Self> {
        let array = match of {
            ColumnarValue::Array(array) => Arc::clone(array),
            ColumnarValue::Scalar(scalar) => scalar.to_array()?,
        };
        if !array.data_type().is_integer() && !matches!(array.data_type(), DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 | DataType::Null) {
            return Ok(Self::One(None));
        }
        let array = cast(&array, &DataType::Int64)?;
        Ok(match of {
            ColumnarValue::Array(_) => Self::Each(array),
            ColumnarValue::Scalar(_) => Self::One(array.as_primitive::<Int64Type>().iter().next().flatten()),
        })
    }

    fn at(&self, row: usize) -> Option<i64> {
        match self {
            Self::One(value) => *value,
            Self::Each(array) => array.is_valid(row).then(|| array.as_primitive::<Int64Type>().value(row)),
        }
    }
}

/// The bytes of a text, a binary or a list in each row; eight of everything else.
fn lengths(of: &ColumnarValue, rows: usize) -> Result<Vec<u64>> {
    let (array, one) = match of {
        ColumnarValue::Array(array) => (Arc::clone(array), false),
        ColumnarValue::Scalar(ScalarValue::Null) => return Ok(vec![0; rows]),
        ColumnarValue::Scalar(scalar) => (scalar.to_array()?, true),
    };
    let length = |bytes: usize| bytes as u64;
    let spans = |offsets: &[i32]| offsets.windows(2).map(|span| u64::try_from(span[1] - span[0]).unwrap_or(0)).collect::<Vec<_>>();
    let wide = |offsets: &[i64]| offsets.windows(2).map(|span| u64::try_from(span[1] - span[0]).unwrap_or(0)).collect::<Vec<_>>();
    let each: Vec<u64> = match array.data_type() {
        DataType::Utf8 => spans(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => wide(array.as_string::<i64>().value_offsets()),
        DataType::Binary => spans(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => wide(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => array.as_string_view().iter().map(|text| length(text.map_or(0, str::len))).collect(),
        DataType::BinaryView => array.as_binary_view().iter().map(|bytes| length(bytes.map_or(0, <[u8]>::len))).collect(),
        DataType::List(_) => spans(array.as_list::<i32>().value_offsets()).into_iter().map(|n| n.saturating_mul(8)).collect(),
        DataType::LargeList(_) => wide(array.as_list::<i64>().value_offsets()).into_iter().map(|n| n.saturating_mul(8)).collect(),
        _ => vec![8; array.len()],
    };
    Ok(if one { vec![each.first().copied().unwrap_or(0); rows] } else { each })
}

fn total(of: impl Iterator<Item = u64>) -> u64 {
    of.fold(0, u64::saturating_add)
}

fn positive(value: Option<i64>) -> u64 {
    value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
}

/// `lengths` of the first argument times the second.
fn repeated(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, times, ..] = args else { return Ok(0) };
    let (lengths, times) = (lengths(text, rows)?, Rows::numbers(times)?);
    Ok(total(lengths.into_iter().enumerate().map(|(row, length)| length.saturating_mul(positive(times.at(row))))))
}

fn repeated_elements(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [element, times, ..] = args else { return Ok(0) };
    let (lengths, times) = (lengths(element, rows)?, Rows::numbers(times)?);
    Ok(total(lengths.into_iter().enumerate().map(|(row, length)| length.max(8).saturating_mul(positive(times.at(row))))))
}

/// The second argument counts characters.
fn padded(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [_, width, ..] = args else { return Ok(0) };
    let width = Rows::numbers(width)?;
    Ok(total((0..rows).map(|row| positive(width.at(row)))))
}

fn resized(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    Ok(padded(args, rows)?.saturating_mul(8))
}

fn concatenated(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let each = args.iter().map(|arg| Ok(total(lengths(arg, rows)?.into_iter()))).collect::<Result<Vec<_>>>()?;
    Ok(total(each.into_iter()))
}

/// As if every text were nothing but what is replaced.
fn replaced(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, from, to] = args else { return Ok(0) };
    let (text, from, to) = (lengths(text, rows)?, lengths(from, rows)?, lengths(to, rows)?);
    // An empty text is found before every character and at the end.
    let one =
        |((text, from), to): ((u64, u64), u64)| if from == 0 { (text + 1).saturating_mul(to) } else { (text / from).saturating_mul(to) }.saturating_add(text);
    Ok(total(text.into_iter().zip(from).zip(to).map(one)))
}

/// Eight bytes a step from the first argument to the second.
fn ranged(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let as_numbers = |arg: &ColumnarValue| match arg.data_type() {
        // In the unit of steps, nanoseconds.
        DataType::Timestamp(_, zone) => Rows::numbers(&arg.cast_to(&DataType::Timestamp(TimeUnit::Nanosecond, zone), None)?),
        DataType::Date32 | DataType::Date64 => Rows::numbers(&arg.cast_to(&DataType::Timestamp(TimeUnit::Nanosecond, None), None)?),
        _ => Rows::numbers(arg),
    };
    let (start, stop, step) = match args {
        [stop] => (Rows::One(Some(0)), as_numbers(stop)?, None),
        [start, stop] => (as_numbers(start)?, as_numbers(stop)?, None),
        [start, stop, step] => (as_numbers(start)?, as_numbers(stop)?, Some(step)),
        _ => return Ok(0),
    };
    let step = match step {
        None => Rows::One(Some(1)),
        Some(step) if matches!(step.data_type(), DataType::Interval(_)) => steps_of_time(step, rows)?,
        Some(step) => Rows::numbers(step)?,
    };
    let steps = |row: usize| match (start.at(row), stop.at(row), step.at(row)) {
        (Some(start), Some(stop), Some(step)) if step != 0 => stop.abs_diff(start) / step.unsigned_abs() + 1,
        _ => 0,
    };
    Ok(total((0..rows).map(|row| steps(row).saturating_mul(8))))
}

/// Intervals in nanoseconds; months have 30 days.
fn steps_of_time(step: &ColumnarValue, rows: usize) -> Result<Rows> {
    const DAY: i64 = 86_400_000_000_000;
    let array = cast(&step.to_array(rows)?, &DataType::Interval(IntervalUnit::MonthDayNano))?;
    let steps = array.as_primitive::<IntervalMonthDayNanoType>().unary::<_, Int64Type>(|step| {
        let days = i64::from(step.months) * 30 + i64::from(step.days);
        days.saturating_mul(DAY).saturating_add(step.nanoseconds)
    });
    Ok(Rows::Each(Arc::new(steps)))
}

#[cfg(test)]
mod tests {
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

    #[tokio::test]
    async fn large_results_are_refused_before_they_are_built() {
        let context = context();
        for call in [
            "length(repeat('x', 2000000000))",
            "length(repeat('xy', 9223372036854775807))",
            "length(lpad('x', 1000000000, 'y'))",
            "length(rpad('x', 2000000000))",
            "length(concat(repeat('x', 1000000), repeat('x', 1000000)))",
            "length(concat_ws('-', repeat('x', 1000000), repeat('x', 1000000)))",
            "length(replace(repeat('x', 100000), 'x', 'twelve chars'))",
            "length(replace(repeat('x', 100000), '', 'twelve chars'))",
            "cardinality(array_repeat(1, 1000000))",
            "cardinality(array_resize([1], 1000000, 0))",
            "cardinality(range(0, 10000000000))",
            "cardinality(range(10000000000, 0, -1))",
            "cardinality(generate_series(-9223372036854775807, 9223372036854775807))",
            "cardinality(generate_series(DATE '2000-01-01', DATE '2024-01-01', INTERVAL '1' SECOND))",
            "cardinality(generate_series(TIMESTAMP '2000-01-01', TIMESTAMP '2024-01-01', INTERVAL '1' SECOND))",
        ] {
            let error = asked(&context, &format!("SELECT {call} AS n")).await.unwrap_err().to_string();
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
