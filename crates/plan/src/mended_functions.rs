//! Functions of DataFusion's whose answers, for some arguments, are wrong, depend on other rows, or are a failure.
//!
//! Each is wrapped by one of the same name and types. The wrapper changes the arguments of a call, or what it returns,
//! and leaves the rest to DataFusion's function. Most faults are of one of these kinds:
//!
//! - A constant first argument next to columns: what the first row says holds for all rows.
//! - Options that are columns: those of the first row hold for all rows.
//! - The result has not the type that was planned.
//! - Lengths below 0, lists without values, and what NULLs hide.
//!
//! | module | subject |
//! |---|---|
//! | [`arguments`] | constants next to columns |
//! | [`times`] | texts to times, times to texts, bins |
//! | [`calendar`] | times that nanoseconds do not hold |
//! | [`numbers`] | digits to round to |
//! | [`texts`] | texts of different types, lengths below 0 |
//! | [`lists`] | orders of lists, lengths within lists |
//!
//! See also [`crate::list_functions`], whose functions have other types than DataFusion's.

mod arguments;
mod calendar;
mod lists;
mod numbers;
mod texts;
mod times;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use crate::function_wrapper::{Around, is_wrapped, wrap};

/// What is called in the place of DataFusion's function, which it gets.
type Call = fn(&ScalarUDF, ScalarFunctionArgs) -> Result<ColumnarValue>;

const MENDED: [(&str, Call); 22] = [
    ("to_timestamp", times::parsed),
    ("to_timestamp_seconds", times::parsed),
    ("to_timestamp_millis", times::parsed),
    ("to_timestamp_micros", times::parsed),
    ("to_timestamp_nanos", times::parsed),
    ("to_date", row_by_row),
    ("to_time", row_by_row),
    ("to_unixtime", row_by_row),
    ("to_char", row_by_row),
    ("date_bin", times::binned),
    ("date_trunc", times::truncated),
    ("round", numbers::to_places),
    ("trunc", numbers::to_places),
    ("lpad", texts::padded),
    ("rpad", texts::padded),
    ("levenshtein", texts::of_one_type),
    ("array_sort", lists::sorted),
    ("array_resize", lists::resized),
    ("array_repeat", lists::repeated),
    ("array_length", lists::measured),
    ("array_element", lists::picked),
    ("map_extract", lists::found),
];

/// Puts them into `registry`, before others wrap them. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub(crate) fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for (name, _) in MENDED {
        if let Some(mended) = registry.udf(name).ok().and_then(|inner| with_mend(&inner)) {
            registry.register_udf(mended)?;
        }
    }
    Ok(())
}

/// `function` with what it lacks; none if it lacks nothing, or is ours already. DataFusion's planner makes some calls
/// without a look into the registry.
pub(crate) fn with_mend(function: &Arc<ScalarUDF>) -> Option<Arc<ScalarUDF>> {
    let (_, call) = MENDED.iter().find(|(name, _)| *name == function.name())?;
    let ours = is_wrapped::<Mended>(function) || wrapped_elsewhere(function);
    (!ours).then(|| wrap(Arc::clone(function), Mended(*call)))
}

/// Others of our wrappers go around these.
fn wrapped_elsewhere(function: &ScalarUDF) -> bool {
    crate::bounded_results::is_bounded(function) || crate::list_functions::is_replaced(function)
}

/// What is called is in [`MENDED`].
#[derive(Clone)]
struct Mended(Call);

impl Around for Mended {
    const IS_AS_KNOWN: bool = true;

    fn invoke(&self, inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        (self.0)(inner, args)
    }
}

/// A constant first argument is a column next to columns.
fn row_by_row(inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    arguments::spread(&mut args)?;
    inner.invoke_with_args(args)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    fn context() -> SessionContext {
        let mut config = SessionConfig::new();
        config.options_mut().execution.time_zone = Some("UTC".into());
        let mut state = SessionStateBuilder::new().with_default_features().with_config(config).build();
        crate::register_functions(&mut state).unwrap();
        // A second call does no harm.
        crate::register_functions(&mut state).unwrap();
        SessionContext::new_with_state(state)
    }

    async fn asked(context: &SessionContext, sql: &str) -> Vec<String> {
        let rows = context.sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")).collect().await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let text = pretty_format_batches(&rows).unwrap().to_string();
        text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' ']).to_owned()).collect()
    }

    /// Each call with all mixtures of constants and columns, over all combinations of its arguments in one batch, gives
    /// each row what constants alone give it.
    #[tokio::test]
    async fn columns_give_what_constants_give() {
        let context = context();
        let texts = ["'abc'", "''", "CAST(NULL AS TEXT)"];
        let numbers = ["2", "-1", "CAST(NULL AS BIGINT)"];
        let lists = ["[2, 1, NULL]", "CAST(NULL AS BIGINT[])", "CAST([] AS BIGINT[])"];
        let nested = ["[[1, 2], [3]]", "CAST(NULL AS BIGINT[][])", "CAST([] AS BIGINT[][])"];
        let floats = ["1e300", "2.5", "CAST(NULL AS DOUBLE)"];
        let places = ["20", "-400", "CAST(NULL AS INT)"];
        let moments = ["TIMESTAMP '1969-12-31 23:59:59.9999'", "TIMESTAMP '2024-02-29 10:00:00'", "CAST(NULL AS TIMESTAMP)"];
        let days = ["DATE '1969-12-31'", "DATE '2024-02-29'", "CAST(NULL AS DATE)"];
        let formats = ["'%Y-%m-%d'", "'%F'", "CAST(NULL AS TEXT)"];
        let dates = ["'2024-02-29'", "'1969-12-31'", "CAST(NULL AS TEXT)"];
        let orders = ["'ASC'", "'DESC'", "CAST(NULL AS TEXT)"];
        let nulls = ["'NULLS FIRST'", "'NULLS LAST'", "CAST(NULL AS TEXT)"];
        let calls: [(&str, &[[&str; 3]]); 20] = [
            ("to_timestamp({0})", &[dates]),
            ("to_timestamp_seconds({0})", &[dates]),
            ("to_timestamp({0}, {1})", &[dates, formats]),
            ("to_date({0}, {1})", &[dates, formats]),
            ("to_char({0}, {1})", &[days, formats]),
            ("date_bin(INTERVAL '1 hour', {0})", &[moments]),
            ("date_trunc('millisecond', {0})", &[moments]),
            ("round({0}, {1})", &[floats, places]),
            ("trunc({0}, {1})", &[floats, places]),
            ("lpad({0}, {1}, {2})", &[texts, numbers, texts]),
            ("rpad({0}, {1})", &[texts, numbers]),
            ("levenshtein({0}, arrow_cast({1}, 'LargeUtf8'))", &[texts, texts]),
            ("array_sort({0}, {1}, {2})", &[lists, orders, nulls]),
            ("array_repeat({0}, {1})", &[lists, numbers]),
            ("array_length({0}, {1})", &[nested, ["1", "2", "CAST(NULL AS BIGINT)"]]),
            ("array_element({0}, {1})", &[lists, ["1", "99999999999", "CAST(NULL AS BIGINT)"]]),
            ("array_has_all({0}, {1})", &[lists, lists]),
            ("array_has_any({0}, {1})", &[lists, lists]),
            ("array_sum({0})", &[lists]),
            ("map_extract(map(['a', 'b'], [1, NULL]), {0})", &[["'a'", "'b'", "'c'"]]),
        ];
        for (call, args) in calls {
            let rows = 3usize.pow(args.len() as u32);
            let value = |row: usize, at: usize| args[at][row / 3usize.pow(at as u32) % 3];
            let filled = |with: &dyn Fn(usize) -> String| (0..args.len()).fold(call.to_owned(), |text, at| text.replace(&format!("{{{at}}}"), &with(at)));
            let mut alone = Vec::new();
            for row in 0..rows {
                alone.extend(asked(&context, &format!("SELECT {} AS r", filled(&|at| value(row, at).to_owned()))).await);
            }
            let table: Vec<String> = (0..rows)
                .map(|row| {
                    let columns: Vec<String> = (0..args.len()).map(|at| format!("{} AS a{at}", value(row, at))).collect();
                    format!("SELECT {row} AS n, {}", columns.join(", "))
                })
                .collect();
            context.sql("DROP TABLE IF EXISTS t").await.unwrap();
            context.sql(&format!("CREATE TABLE t AS {}", table.join(" UNION ALL "))).await.unwrap().collect().await.unwrap();
            // Which arguments are constants, as bits; the constants are those of a row.
            for constant in 0..1 << args.len() {
                for of in 0..rows {
                    let fixed = |at: usize| constant >> at & 1 == 1;
                    let same = |row: usize| (0..args.len()).all(|at| !fixed(at) || value(row, at) == value(of, at));
                    if (0..of).any(same) {
                        continue;
                    }
                    let text = filled(&|at| if fixed(at) { value(of, at).to_owned() } else { format!("a{at}") });
                    let of_rows: Vec<usize> = (0..rows).filter(|row| same(*row)).collect();
                    let listed: Vec<String> = of_rows.iter().map(usize::to_string).collect();
                    let found = asked(&context, &format!("SELECT r FROM (SELECT n, {text} AS r FROM t WHERE n IN ({})) ORDER BY n", listed.join(", "))).await;
                    let expected: Vec<&str> = of_rows.iter().map(|row| alone[*row].as_str()).collect();
                    assert_eq!(found, expected, "{text}, for {:?}", of_rows.iter().map(|row| filled(&|at| value(*row, at).to_owned())).collect::<Vec<_>>());
                }
            }
        }
    }
}
