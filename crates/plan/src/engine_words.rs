//! The engine's texts, in words for the author of a query.
//!
//! DataFusion's errors are written for programs that embed it: they print its own structures, name its rules and plans,
//! and ask for reports at its tracker. [`plain`] is the one place that takes these out. Some faults of a query have no
//! variant of their own, and are only told by their text: [`Plain::kind`] says so.

use datafusion::arrow::array::temporal_conversions::timestamp_s_to_datetime;
use skytether_common::Kind;

/// A text without the engine's inside.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) text: String,
    /// The kind that the text tells, where the error's variant says less.
    pub(crate) kind: Option<Kind>,
}

impl Plain {
    fn of(text: impl Into<String>, kind: Kind) -> Self {
        Self { text: text.into(), kind: Some(kind) }
    }
}

/// What the engine says where it takes a fault for its own.
const REPORTS: [&str; 5] = [
    "This issue was likely caused by a bug",
    "This was likely caused by a bug",
    "Please help us to resolve this",
    "This is a bug in DataFusion",
    "please report it",
];

/// The engine's classes of errors, which it puts in front of its texts, also within others.
const CLASSES: [&str; 13] = [
    "Error during planning: ",
    "Internal error: ",
    "Execution error: ",
    "This feature is not implemented: ",
    "Resources exhausted: ",
    "Schema error: ",
    "Substrait error: ",
    "Arrow error: ",
    "External error: ",
    "Invalid argument error: ",
    "Compute error: ",
    "Cast error: ",
    "Parser error: ",
];

/// Nodes of plans, as a dump of one begins its lines.
const NODES: [&str; 13] = [
    "Projection:",
    "Filter:",
    "Aggregate:",
    "TableScan:",
    "Sort:",
    "Limit:",
    "SubqueryAlias:",
    "WindowAggr:",
    "Subquery:",
    "Union",
    "EmptyRelation",
    "CrossJoin:",
    "Unnest:",
];

/// Names that the engine gives to what it makes of a subquery.
const SUBQUERIES: [&str; 6] = ["__correlated_sq_", "__scalar_sq_", "__exists_sq_", "__tied_sq_", "__mark_", "__tie_"];

/// What is said of a subquery that can't be planned.
const NO_SUBQUERY: &str =
    "a subquery in this place, or tied to the outer row in this way, can't be run: write it as a join, or as a column of a subquery in FROM";

/// Words that only mean something to who knows the engine's code.
const INSIDE: [&str; 5] = ["DataFusion", "datafusion", "logical plan", "physical plan", "::"];

/// Parts of the engine's code, which no text of a query names outside quotes.
const PARTS: [&str; 15] = [
    "Accumulator",
    "AggregateUDF",
    "ArrayRef",
    "BytesValueState",
    "ColumnarValue",
    "DFSchema",
    "ExecutionPlan",
    "GroupValues",
    "LogicalPlan",
    "PhysicalExpr",
    "RecordBatch",
    "ScalarUDF",
    "ScalarValue",
    "downcast",
    "retract_batch",
];

/// What is said of a fault that the engine tells by its own parts.
const NO_CALL: &str = "a call or an operator of this query can't be computed for values of these types: CAST them to others, or write it in another way";

/// What is said of an average that its type does not hold.
pub(crate) const NO_AVERAGE: &str = "avg: the average does not fit its type, a decimal with four digits more behind the point than the values have: \
    average values CAST to a wider DECIMAL, or to DOUBLE";

/// What the engine says of such averages.
const AVERAGES: [&str; 2] = ["Arithmetic Overflow in AvgAccumulator", "Arithmetic overflow in avg"];

/// `text` of an error, for the author of a query.
pub(crate) fn plain(text: &str) -> Plain {
    let own = REPORTS.iter().any(|words| text.contains(words));
    let cut = REPORTS.iter().filter_map(|words| text.find(words)).min().unwrap_or(text.len());
    let mut said = text.get(..cut).unwrap_or(text).trim_end().to_owned();
    said = without_hidden_keys(&said);
    if let Some(told) = told(text, &said) {
        return told;
    }
    // "Optimizer rule 'x' failed\ncaused by\n..."
    if let Some((_, cause)) = said.rsplit_once("\ncaused by\n") {
        said = cause.to_owned();
    }
    let said = undumped(&without_classes(&said)).trim_end_matches([' ', '.', ':', ',', '(', '\n']).to_owned();
    if own {
        return Plain { text: said, kind: Some(Kind::Internal) };
    }
    if !said.contains(' ') && text.starts_with("This feature is not implemented: ") {
        return Plain::of(format!("{said} is not supported"), Kind::Unsupported);
    }
    Plain { text: said, kind: None }
}

/// What a user is told of a defect of the engine. `said` is what is known of it.
pub(crate) fn defect(said: &str) -> String {
    let line = said.lines().next().unwrap_or_default().trim();
    let inside = INSIDE.iter().chain(&PARTS).any(|word| line.contains(word)) || line.len() > 200 || line.is_empty();
    let cause = if inside { String::new() } else { format!(" ({line})") };
    format!("this query can't be run, which is a defect of Skytether's{cause}: write it in another way, and report it with the query and its tables' columns")
}

/// `said` of a fault of a query, unless it names parts of the engine.
pub(crate) fn without_parts(said: String) -> String {
    let own = unquoted(&said);
    if PARTS.iter().any(|part| own.contains(part)) { NO_CALL.to_owned() } else { said }
}

/// `text` without what it quotes, which is the user's.
fn unquoted(text: &str) -> String {
    let (mut out, mut quote, mut before) = (String::with_capacity(text.len()), None, ' ');
    for c in text.chars() {
        match quote {
            None if matches!(c, '\'' | '"' | '`') && !before.is_alphanumeric() => quote = Some(c),
            None => out.push(c),
            Some(open) if c == open => quote = None,
            Some(_) => {}
        }
        before = c;
    }
    out
}

/// Faults that only their text tells; `said` is the text up to where the engine asks for a report.
fn told(text: &str, said: &str) -> Option<Plain> {
    if let Some((_, rest)) = text.split_once("Physical plan does not support logical expression ") {
        let what = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let subquery = ["Exists", "InSubquery", "ScalarSubquery", "SetComparison", "OuterReferenceColumn"].contains(&what);
        let text = if subquery { NO_SUBQUERY } else { "an expression in this place can't be run" };
        return Some(Plain::of(text, Kind::Unsupported));
    }
    if SUBQUERIES.iter().any(|name| said.contains(name)) || text.contains("subquery can only be used in ") {
        return Some(Plain::of(NO_SUBQUERY, Kind::Unsupported));
    }
    if text.contains("should be rewritten to LogicalPlan::Unnest") {
        return Some(Plain::of("unnest can't be inside another call or a condition: unnest in a subquery, and use its column outside", Kind::Unsupported));
    }
    if let Some((_, rest)) = text.split_once("Unsupported logical plan: ") {
        let written = ["CreateMemoryTable", "CreateView", "Dml", "Copy"].iter().any(|node| rest.starts_with(node));
        let text = if written { "SQL only reads here: leave INTO out" } else { "this kind of statement can't be run" };
        return Some(Plain::of(text, Kind::Unsupported));
    }
    if let Some((_, rest)) = text.split_once("Unsupported ast node ") {
        let what = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        return Some(Plain::of(format!("{} is not supported", what.to_uppercase()), Kind::Unsupported));
    }
    // Types that an operator has no code for, which only shows when it runs.
    for (words, what) in UNDEFINED {
        if let Some((_, of)) = text.split_once(words) {
            let of = of.lines().next().unwrap_or_default().trim_start_matches('!').trim_end_matches('.');
            return Some(Plain::of(format!("{what} {of}: CAST to other types"), Kind::Invalid));
        }
    }
    if AVERAGES.iter().any(|words| text.contains(words)) {
        return Some(Plain::of(NO_AVERAGE, Kind::Invalid));
    }
    if let Some(text) = aggregate(text) {
        return Some(Plain::of(text, Kind::Unsupported));
    }
    if let Some(text) = out_of_memory(text) {
        return Some(Plain::of(text, Kind::Exhausted));
    }
    if text.contains("Failed to coerce types ") {
        return Some(Plain::of(without_classes(said).trim_end_matches('.'), Kind::Invalid));
    }
    // Two regular expression engines, one behind the engine's own wrapper.
    if text.contains("regex parse error") || text.contains("Regular expression did not compile") {
        let why = said.rsplit_once("error: ").map_or("", |(_, why)| why);
        let why = why.lines().next().unwrap_or_default().trim_end_matches(['.', ')', '~']);
        return Some(Plain::of(format!("this is no regular expression: {why}"), Kind::Invalid));
    }
    if let Some(text) = beyond_nanoseconds(text) {
        return Some(Plain::of(text, Kind::Invalid));
    }
    // Values that a type does not hold: Arrow has no variant of its own for them.
    if UNFIT.iter().any(|words| text.contains(words)) {
        let (_, said) = said.rsplit_once("\ncaused by\n").unwrap_or(("", said));
        return Some(Plain::of(without_classes(said).replace("a Decimal128 of", "a decimal of").replace("a Decimal256 of", "a decimal of"), Kind::Invalid));
    }
    call(text).map(|text| Plain::of(text, Kind::Invalid))
}

/// What the engine and Arrow say of operators that are not defined for values of some types, and what we say.
const UNDEFINED: [(&str, &str); 4] = [
    ("Invalid arithmetic operation: ", "this arithmetic is not defined for values of these types:"),
    ("Invalid comparison operation: ", "values of these types can't be compared:"),
    ("Min/Max accumulator not implemented for type ", "min and max are not defined for values of the type"),
    (" from physical type ", "a function of this query does not take values of the type"),
];

/// Calls of aggregates that the engine has no code for.
fn aggregate(text: &str) -> Option<String> {
    if let Some((_, call)) = text.split_once("`retract_batch` is not implemented: ") {
        let name = call.split('(').next().unwrap_or(call).trim();
        return Some(format!("{name} over a frame whose beginning moves is not supported: let the frame begin with UNBOUNDED PRECEDING"));
    }
    if text.contains("SUM(DISTINCT) over sliding window frames") {
        return Some(
            "sum(DISTINCT ...) over a frame whose beginning moves takes BIGINT alone: CAST the values, or let it begin with UNBOUNDED PRECEDING".to_owned(),
        );
    }
    if text.contains("COUNT DISTINCT with multiple arguments") {
        return Some("count(DISTINCT a, b) is not supported: count the rows of SELECT DISTINCT a, b in a subquery".to_owned());
    }
    let (before, _) = text.split_once("(DISTINCT) aggregations").or_else(|| text.split_once("(DISTINCT) for ("))?;
    let name = before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default().to_lowercase();
    Some(format!("{name}(DISTINCT ...) of these values is not supported: take them from SELECT DISTINCT in a subquery"))
}

/// What is said of a drive's engine that has no memory left; the host has words of its own (`host_error`). The engine's
/// text lists its operators and pools.
fn out_of_memory(text: &str) -> Option<String> {
    if !MEMORY.iter().any(|words| text.contains(words)) {
        return None;
    }
    let pool = text.rsplit_once("pool_size: ").and_then(|(_, rest)| rest.split_once(')')).map(|(size, _)| format!("{size} of "));
    let pool = pool.unwrap_or_default();
    Some(format!("its part of the query needs more than the {pool}memory that its engine may use: {LESS_MEMORY}"))
}

/// What to do where a drive's engine has no memory left.
const LESS_MEMORY: &str = "filter more, select fewer columns, or ask for less at a time; or give it more (drive serve --memory, memory_per_drive=)";

/// What the engine says where a pool of memory is empty.
const MEMORY: [&str; 3] = ["Failed to allocate additional ", "Memory Exhausted while ", "additional allocation failed for "];

/// What is said of a time that was to become one in nanoseconds, which end in 2262. A constant beyond them has
/// microseconds already.
fn beyond_nanoseconds(text: &str) -> Option<String> {
    let first = |words: &str, end: char| words.split(end).next().and_then(|number| number.trim().parse::<i64>().ok());
    let (at, per_second) = if let Some((_, rest)) = text.split_once("Overflow happened on: ") {
        let (at, by) = rest.split_once(" * ")?;
        let by: i64 = by.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()?;
        let (at, is_unit) = (at.parse::<i64>().ok()?, matches!(by, 1_000 | 1_000_000 | 1_000_000_000));
        (at, (is_unit && at.checked_mul(by).is_none()).then(|| 1_000_000_000 / by)?)
    } else {
        let (_, rest) = text.split_once("Cannot cast ")?;
        let (of, rest) = rest.split_once(" value ")?;
        if !rest.contains(" to Timestamp(ns): converted value exceeds") {
            return None;
        }
        match (first(rest, ' ')?, of) {
            (days, "Date32") => (days.checked_mul(86_400)?, 1),
            (at, "Date64") => (at, 1_000),
            (at, of) if of.starts_with("Timestamp(s") => (at, 1),
            (at, of) if of.starts_with("Timestamp(ms") => (at, 1_000),
            (at, _) => (at, 1_000_000),
        }
    };
    let day = timestamp_s_to_datetime(at.div_euclid(per_second)).map(|time| format!(", and not {}", time.date()));
    let day = day.unwrap_or_default();
    Some(format!("nanoseconds hold the years 1678 to 2261{day}: write CAST(x AS TIMESTAMP(6)) for the time in nanoseconds that stands next to it"))
}

/// What Arrow says of a value that a type does not hold.
const UNFIT: [&str; 5] =
    [" is too large to store in a Decimal", " is too small to store in a Decimal", "Encountered non UTF-8 data", "Unable to represent ", " overflows i64"];

/// What is wrong with the arguments of a call, from the engine's text. For a function with several forms the engine
/// lists why each of them does not fit, and calls that a bug of its own.
fn call(text: &str) -> Option<String> {
    let signature = text.split_once("argument types '").and_then(|(_, rest)| rest.split_once("'. You might")).map(|(call, _)| call);
    let Some((before, why)) = text.split_once("' failed to match any signature, errors: ") else {
        let unfit = ["failed to coerce arguments", "coercion failed with", "' requires ", " does not support type "]
            .iter()
            .any(|words| text.to_lowercase().contains(words));
        let (call, name) = signature.and_then(|call| Some((call, call.split_once('(')?.0))).filter(|_| unfit)?;
        return Some(format!("{name} does not take arguments of these types: {call}"));
    };
    let (_, name) = before.rsplit_once("Function '")?;
    let (why, _) = why.split_once("\nThis issue was likely").unwrap_or((why, ""));
    // "Function 'sum' expects 1 arguments but received 3", once for each form.
    let number = |words: &str| words.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<usize>().ok();
    let numbers: Vec<_> = why.split(" expects ").skip(1).filter(|words| words.contains(" arguments but received ")).filter_map(number).collect();
    let forms = why.matches("Error during planning: ").count() + why.matches("Internal error: ").count();
    if let (Some(least), Some(most), Some(received)) =
        (numbers.iter().min(), numbers.iter().max(), why.split_once(" but received ").and_then(|(_, words)| number(words)))
        && numbers.len() >= forms
    {
        let takes = if least == most { format!("{least} argument{}", if *least == 1 { "" } else { "s" }) } else { format!("{least} to {most} arguments") };
        return Some(format!("{name} takes {takes}, not {received}"));
    }
    Some(match signature {
        Some(call) => format!("{name} does not take arguments of these types: {call}"),
        None => format!("{name} does not take arguments of these types"),
    })
}

/// Without the names that merged keys and their sides have in plans: `a.__key_a_k` is `a.k`, `__merged_a.k` is `k`.
fn without_hidden_keys(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("__key_") {
        let (before, hidden) = (rest.get(..at).unwrap_or_default(), rest.get(at + "__key_".len()..).unwrap_or_default());
        out.push_str(before);
        // The relation stands before the name, and within.
        let relation = out.trim_end_matches('"').trim_end_matches('.').trim_end_matches('"');
        let begin = relation.rfind(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).map_or(0, |at| at + 1);
        let inner = relation.get(begin..).unwrap_or_default();
        rest = hidden.strip_prefix(inner).and_then(|hidden| hidden.strip_prefix('_')).unwrap_or(hidden);
    }
    out.push_str(rest);
    while let Some(at) = out.find("__merged_") {
        let end = out.get(at..).and_then(|name| name.find('.')).map_or(out.len(), |dot| at + dot + 1);
        let begin = if out.get(..at).is_some_and(|before| before.ends_with('"')) { at - 1 } else { at };
        out.replace_range(begin..end, "");
    }
    out
}

/// Without the names of the engine's classes, in front and within.
fn without_classes(text: &str) -> String {
    let mut text = text.to_owned();
    for class in CLASSES {
        while let Some(rest) = text.strip_prefix(class) {
            text = rest.to_owned();
        }
        text = text.replace(&format!(": {class}"), ": ").replace(&format!(". {class}"), ". ");
    }
    // A class in front may have hidden another.
    if CLASSES.iter().any(|class| text.starts_with(class)) { without_classes(&text) } else { text }
}

/// Without a plan or a structure of the engine that is printed at the end. What is in quotes is the user's.
fn undumped(text: &str) -> &str {
    let plan = text.match_indices('\n').find(|(at, _)| {
        let line = text.get(at + 1..).unwrap_or_default().lines().next().unwrap_or_default().trim_start();
        NODES.iter().any(|node| line.starts_with(node)) || line.split([':', ' ']).next().is_some_and(|word| word.ends_with("Exec"))
    });
    let text = plan.and_then(|(at, _)| text.get(..at)).unwrap_or(text);
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, '{') => {
                let Some(name) = structure(text, at) else { continue };
                return text.get(..name).unwrap_or(text).trim_end();
            }
            _ => {}
        }
    }
    text
}

/// Where the name of a structure begins that is printed with its fields from `at` on: `Filter { predicate: ...`, also
/// within others: `Exists(Exists { ...`.
fn structure(text: &str, at: usize) -> Option<usize> {
    let (before, fields) = (text.get(..at)?, text.get(at + 1..)?);
    let field = fields.trim_start();
    let name_of_field = field.split(|c: char| !(c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())).next()?;
    if name_of_field.is_empty() || !field.get(name_of_field.len()..)?.starts_with(':') {
        return None;
    }
    let word = |end: &str| end.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_').len();
    let mut begin = word(before.strip_suffix(' ')?);
    if !text.get(begin..)?.starts_with(char::is_uppercase) {
        return None;
    }
    while let Some(outer) = text.get(..begin).and_then(|outer| outer.strip_suffix('(')) {
        begin = word(outer);
    }
    Some(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_and_plans_are_cut_off_and_quotes_are_kept() {
        for (text, left) in [
            ("Substring without for/from is not valid Substring { expr: Identifier(Ident { value: \"a\" }) }", "Substring without for/from is not valid"),
            ("Bad thing Exists(Exists { subquery: <subquery>, negated: false })", "Bad thing"),
            ("Cannot cast string 'Point { x: 1 }' to value of Int64 type", "Cannot cast string 'Point { x: 1 }' to value of Int64 type"),
            ("The plan is wrong:\n  Projection: t.a\n    TableScan: t", "The plan is wrong:"),
            ("Not in order:\nSortPreservingMergeExec: [a]\n  x", "Not in order:"),
            ("a {b} c", "a {b} c"),
        ] {
            assert_eq!(undumped(text), left);
        }
    }

    #[test]
    fn classes_within_a_text_are_taken_out() {
        let text = "Execution error: Function 'f' failed: Error during planning: f does not work. Internal error: x";
        assert_eq!(without_classes(text), "Function 'f' failed: f does not work. x");
    }

    const BEYOND: &str =
        "nanoseconds hold the years 1678 to 2261, and not 9999-12-31: write CAST(x AS TIMESTAMP(6)) for the time in nanoseconds that stands next to it";

    #[test]
    fn products_of_other_numbers_are_no_times() {
        for text in ["Overflow happened on: 4611686018427387904 * 3", "Overflow happened on: 170141183460469231731687303715884105727 * 1000"] {
            assert_eq!(beyond_nanoseconds(text), None);
        }
    }

    #[test]
    fn faults_of_a_query_are_told_by_their_text() {
        let calls = "No function matches the given name and argument types 'sqrt(Utf8)'. You might need to add explicit type casts.\n\tCandidate functions:\n\tsqrt(Float64)";
        let report = "This issue was likely caused by a bug in DataFusion's code. Please help us to resolve this by filing a bug report in our issue tracker: https://github.com/apache/datafusion/issues";
        for (text, kind, plainly) in [
            (
                format!("Failed to coerce arguments to satisfy a call to 'sqrt' function. {calls}"),
                Kind::Invalid,
                "sqrt does not take arguments of these types: sqrt(Utf8)",
            ),
            (
                format!("Internal error: Failed to coerce types Int64 and List(Int64) in BETWEEN expression.\n{report}"),
                Kind::Invalid,
                "Failed to coerce types Int64 and List(Int64) in BETWEEN expression",
            ),
            (
                "regex parse error:\n    [\n    ^\nerror: unclosed character class".to_owned(),
                Kind::Invalid,
                "this is no regular expression: unclosed character class",
            ),
            ("This feature is not implemented: Unsupported ast node Pivot { table: x }".to_owned(), Kind::Unsupported, "PIVOT is not supported"),
            ("This feature is not implemented: TOP".to_owned(), Kind::Unsupported, "TOP is not supported"),
            ("Schema error: No field named u.a. Did you mean '__correlated_sq_1.a'?".to_owned(), Kind::Unsupported, NO_SUBQUERY),
            (
                "Optimizer rule 'x' failed\ncaused by\nArrow error: Invalid argument error: -100.00 is too small to store in a Decimal128 of precision 4. Min is -99.99".to_owned(),
                Kind::Invalid,
                "-100.00 is too small to store in a decimal of precision 4. Min is -99.99",
            ),
            (
                "Resources exhausted: Additional allocation failed for A[0] with top memory consumers (across reservations) as:\n  \
                 A[0]#31(can spill: false) consumed 7.1 MB.\nError: Failed to allocate additional 384.0 KB for A[0] with 7.1 MB already \
                 allocated for this reservation - 358.6 KB remain available for the total memory pool: greedy(used: 7.6 MB, pool_size: 8.0 MB)".to_owned(),
                Kind::Exhausted,
                format!("its part of the query needs more than the 8.0 MB of memory that its engine may use: {LESS_MEMORY}").as_str(),
            ),
            (
                "Resources exhausted: Memory Exhausted while Sorting (DiskManager is disabled)".to_owned(),
                Kind::Exhausted,
                format!("its part of the query needs more than the memory that its engine may use: {LESS_MEMORY}").as_str(),
            ),
            (
                "Execution error: Cannot cast Timestamp(µs) value 253402300799000000 to Timestamp(ns): converted value exceeds the representable i64 range".to_owned(),
                Kind::Invalid,
                BEYOND,
            ),
            ("Execution error: Cannot cast Date32 value 2932896 to Timestamp(ns): converted value exceeds the range".to_owned(), Kind::Invalid, BEYOND),
            ("Overflow happened on: 253402300799 * 1000000000".to_owned(), Kind::Invalid, BEYOND),
            (format!("Internal error: Something odd.\n{report}"), Kind::Internal, "Something odd"),
            (
                "Arrow error: Invalid argument error: Invalid arithmetic operation: !Timestamp(ns)".to_owned(),
                Kind::Invalid,
                "this arithmetic is not defined for values of these types: Timestamp(ns): CAST to other types",
            ),
            ("Execution error: Arithmetic Overflow in AvgAccumulator".to_owned(), Kind::Invalid, NO_AVERAGE),
            (
                "This feature is not implemented: Aggregate can not be used as a sliding accumulator because `retract_batch` is not implemented: string_agg(t.s,Utf8(\",\"))".to_owned(),
                Kind::Unsupported,
                "string_agg over a frame whose beginning moves is not supported: let the frame begin with UNBOUNDED PRECEDING",
            ),
            (
                "Execution error: AVG(DISTINCT) for (Duration(ns) --> Duration(ns)) not supported".to_owned(),
                Kind::Unsupported,
                "avg(DISTINCT ...) of these values is not supported: take them from SELECT DISTINCT in a subquery",
            ),
        ] {
            assert_eq!(plain(&text), Plain::of(plainly, kind));
        }
    }

    #[test]
    fn keys_have_the_names_that_the_query_gives_them() {
        for (text, left) in [
            ("no field named z. Valid fields are __merged_a.k, a.__key_a_k, b.w", "no field named z. Valid fields are k, a.k, b.w"),
            ("a.\"__key_a_x.y\"", "a.\"x.y\""),
            ("\"__merged_A\".\"K\"", "\"K\""),
            ("a.__key_a_k AS k", "a.k AS k"),
            ("plain", "plain"),
        ] {
            assert_eq!(without_hidden_keys(text), left);
        }
    }

    #[test]
    fn parts_of_the_engine_are_not_named_and_quotes_are_kept() {
        for said in ["MedianAccumulator not supported for median(x) with Date32", "expects an ArrayRef, can't go on"] {
            assert_eq!(without_parts(said.to_owned()), NO_CALL);
        }
        for said in ["no field named \"Accumulator\"", "can't cast string 'ScalarValue' to Int64"] {
            assert_eq!(without_parts(said.to_owned()), said);
        }
    }

    #[test]
    fn a_defect_names_no_part_of_the_engine() {
        assert!(defect("Something odd").contains("(Something odd)"));
        for said in ["PhysicalExpr Column references bounds", "no GroupsAccumulator", "a::b", "", &"x".repeat(300)] {
            assert!(!defect(said).contains('('), "{said}");
        }
    }
}
