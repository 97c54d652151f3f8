//! Times of two units, and dates next to timestamps, where neither is a constant.
//!
//! - They are compared by [`crate::instants`]. DataFusion compares them in the finer unit, where the year 9999 may be
//!   an error. Differences of times are compared with intervals likewise.
//! - A literal of text that nanoseconds do not hold is a time in microseconds.
//! - The results of `CASE`, `coalesce` and its like, columns of `UNION`, and differences have one unit. DataFusion
//!   gives nanoseconds to a date and a timestamp. Here they have the timestamp's unit, or microseconds where that is
//!   coarser. So has a constant without nanoseconds, next to a column of a coarser unit. What is next to nanoseconds is
//!   cast to them, and is an error where they end ([`crate::error`] says what to write).
//! - `date_trunc` and `date_bin` of a date are of microseconds likewise.
//!
//! This comes before DataFusion finds common types. Comparisons with constants keep the column as it is, so that they
//! prune: see [`super::time_units`] and [`super::time_bounds`].

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, JoinConstraint, Result, ScalarValue};
use datafusion::logical_expr::expr::{InList, InSubquery, ScalarFunction, SetComparison};
use datafusion::logical_expr::{Between, BinaryExpr, Case, Cast, Expr, ExprSchemable, Join, LogicalPlan, Operator, Projection, Union, cast, lit};

use super::time_bounds::constant;
use crate::float_keys::compares;
use crate::instants::{differ, instant, is_time, length};
use crate::operand_types::MOMENT;
use crate::rewriting::{input_columns, map_expressions, with_types};

/// Functions whose arguments are values of one type, the result's.
const ALIKE: [&str; 4] = ["coalesce", "nvl", "greatest", "least"];

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let mut retyped = false;
    plan.transform_up_with_subqueries(|node| {
        let schema = input_columns(&node);
        let mapped = map_expressions(node, |e| {
            let typed = with_one_type(e, &schema)?;
            retyped |= typed.transformed;
            typed.transform_data(|e| compared(e, &schema))
        })?;
        let mapped = match mapped.data {
            LogicalPlan::Join(join) => keys(join).update_data(LogicalPlan::Join),
            LogicalPlan::Union(union) => {
                let union = columns(union)?;
                retyped |= union.transformed;
                union.update_data(LogicalPlan::Union)
            }
            other => Transformed::new_transformed(other, mapped.transformed),
        };
        // Those above read the types of what they are above.
        if retyped { mapped.data.recompute_schema().map(Transformed::yes) } else { Ok(mapped) }
    })
    .data()
}

/// Whether `e` is more than a constant of the query.
fn varies(e: &Expr) -> bool {
    let is_read = |e: &Expr| {
        matches!(
            e,
            Expr::Column(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        )
    };
    e.is_volatile() || e.exists(|e| Ok(is_read(e))).unwrap_or(true)
}

/// The comparisons within an expression.
fn compared(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) => {
            sides([left, right], schema).update_data(|[left, right]| Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            sides([expr, low, high], schema).update_data(|[expr, low, high]| Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list: mut all, negated }) => {
            all.push(*expr);
            alike(all, schema).update_data(|mut list| {
                let expr = Box::new(list.pop().unwrap_or_default());
                Expr::InList(InList { expr, list, negated })
            })
        }
        Expr::Case(Case { expr: Some(of), when_then_expr, else_expr }) => {
            let (mut all, thens): (Vec<Expr>, Vec<Box<Expr>>) = when_then_expr.into_iter().map(|(when, then)| (*when, then)).unzip();
            all.push(*of);
            alike(all, schema).update_data(|mut all| {
                let expr = all.pop().map(Box::new);
                let when_then_expr = all.into_iter().map(Box::new).zip(thens).collect();
                Expr::Case(Case { expr, when_then_expr, else_expr })
            })
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated }) if is_value(&expr, &subquery.subquery, schema) => {
            let subquery = subquery.with_plan(Arc::new(counted(&subquery.subquery)?));
            Transformed::yes(Expr::InSubquery(InSubquery { expr: Box::new(instant(*expr)), subquery, negated }))
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) if is_value(&expr, &subquery.subquery, schema) => {
            let subquery = subquery.with_plan(Arc::new(counted(&subquery.subquery)?));
            Transformed::yes(Expr::SetComparison(SetComparison { expr: Box::new(instant(*expr)), subquery, op, quantifier }))
        }
        other => Transformed::no(other),
    })
}

fn sides<const N: usize>(all: [Box<Expr>; N], schema: &DFSchema) -> Transformed<[Box<Expr>; N]> {
    match exact(all.iter().map(AsRef::as_ref), schema) {
        Some(exact) => Transformed::yes(all.map(|e| Box::new(exact(*e, schema)))),
        None => Transformed::no(all),
    }
}

fn alike(all: Vec<Expr>, schema: &DFSchema) -> Transformed<Vec<Expr>> {
    match exact(all.iter(), schema) {
        Some(exact) => Transformed::yes(all.into_iter().map(|e| exact(e, schema)).collect()),
        None => Transformed::no(all),
    }
}

/// What makes values of these operands that compare exactly; none if they do.
fn exact<'e>(operands: impl Iterator<Item = &'e Expr> + Clone, schema: &DFSchema) -> Option<fn(Expr, &DFSchema) -> Expr> {
    fn as_instant(e: Expr, _: &DFSchema) -> Expr {
        instant(written(&e).map_or(e, lit))
    }
    fn as_length(e: Expr, schema: &DFSchema) -> Expr {
        if matches!(e.get_type(schema), Ok(DataType::Duration(_))) { length(e) } else { e }
    }
    fn as_micros(e: Expr, _: &DFSchema) -> Expr {
        far(&e).map_or(e, lit)
    }
    let is_timestamp = |e: &Expr| matches!(e.get_type(schema), Ok(DataType::Timestamp(..)));
    if need_instants(operands.clone(), schema) {
        Some(as_instant)
    } else if need_lengths(operands.clone(), schema) {
        Some(as_length)
    } else if operands.clone().any(is_timestamp) && operands.clone().any(|e| far(e).is_some()) {
        Some(as_micros)
    } else {
        None
    }
}

/// The time that a literal of text names, cast or not, if nanoseconds do not hold it.
fn far(e: &Expr) -> Option<ScalarValue> {
    let (text, zone) = match e {
        Expr::Literal(text, _) => (text, &None),
        Expr::Cast(Cast { expr, field }) => match (expr.as_ref(), field.data_type()) {
            (Expr::Literal(text, _), DataType::Timestamp(TimeUnit::Nanosecond, zone)) => (text, zone),
            _ => return None,
        },
        _ => return None,
    };
    text.try_as_str()??;
    let read = |unit: TimeUnit| text.cast_to(&DataType::Timestamp(unit, zone.clone())).ok();
    if read(TimeUnit::Nanosecond).is_some() { None } else { read(TimeUnit::Microsecond) }
}

/// Whether differences of times are compared with intervals, or with differences in another unit.
fn need_lengths<'e>(operands: impl Iterator<Item = &'e Expr>, schema: &DFSchema) -> bool {
    let (mut first, mut other): (Option<DataType>, bool) = (None, false);
    for e in operands {
        match e.get_type(schema) {
            Ok(of @ DataType::Duration(_)) => other |= *first.get_or_insert_with(|| of.clone()) != of,
            Ok(DataType::Interval(_)) => other = true,
            Ok(DataType::Null) => {}
            _ => return false,
        }
    }
    first.is_some() && other
}

/// Whether times of two units are compared, and all of `operands` have an instant.
fn need_instants<'e>(operands: impl Iterator<Item = &'e Expr> + Clone, schema: &DFSchema) -> bool {
    let time = |e: &'e Expr| e.get_type(schema).ok().filter(is_time);
    let mut times = operands.clone().filter(|e| varies(e)).filter_map(time);
    let Some(first) = times.next() else { return false };
    if !times.any(|of| differ(&first, &of)) {
        return false;
    }
    // What has no type yet is DataFusion's to refuse. A list may have thousands of texts, and they are read last.
    operands.clone().all(|e| time(e).is_some() || e.get_type(schema).is_ok_and(|of| of.is_null()) || written(e).is_some())
}

/// The time that a literal of text names.
fn written(e: &Expr) -> Option<ScalarValue> {
    let Expr::Literal(value, _) = e else { return None };
    value.try_as_str()??;
    let read = |unit: TimeUnit| value.cast_to(&DataType::Timestamp(unit, None)).ok();
    read(TimeUnit::Nanosecond).or_else(|| read(TimeUnit::Microsecond))
}

/// Whether `e` is a time, and the values of a subquery are times of another unit.
fn is_value(e: &Expr, values: &LogicalPlan, schema: &DFSchema) -> bool {
    match values.schema().fields().as_ref() {
        [value] => e.get_type(schema).is_ok_and(|of| differ(&of, value.data_type())),
        _ => false,
    }
}

/// `plan` with its columns as instants, under their names.
fn counted(plan: &Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let columns = plan.schema().columns().into_iter();
    let exprs = columns.map(|column| instant(Expr::Column(column.clone())).alias_qualified(column.relation, column.name));
    Ok(LogicalPlan::Projection(Projection::try_new(exprs.collect(), Arc::clone(plan))?))
}

/// The keys of a join.
fn keys(mut join: Join) -> Transformed<Join> {
    let mut changed = false;
    for (left, right) in &mut join.on {
        let (Ok(l), Ok(r)) = (left.get_type(join.left.schema()), right.get_type(join.right.schema())) else { continue };
        if differ(&l, &r) {
            *left = instant(std::mem::take(left));
            *right = instant(std::mem::take(right));
            changed = true;
        }
    }
    if changed {
        // Keys of USING are columns. Which of them `*` shows is decided already.
        join.join_constraint = JoinConstraint::On;
    }
    Transformed::new_transformed(join, changed)
}

/// What has values of several units, and one type.
fn with_one_type(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match e {
        Expr::Case(mut case) => {
            let results: Vec<&Expr> = case.when_then_expr.iter().map(|(_, then)| then.as_ref()).chain(case.else_expr.as_deref()).collect();
            let Some(types) = common(&results, schema) else { return Ok(Transformed::no(Expr::Case(case))) };
            let results = case.when_then_expr.iter_mut().map(|(_, then)| then.as_mut()).chain(case.else_expr.as_deref_mut());
            cast_to(results, types);
            Transformed::yes(Expr::Case(case))
        }
        // DataFusion's has one type for all three.
        Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == "nvl2" && args.len() == 3 => {
            let is_mixed =
                args.iter().any(|e| e.get_type(schema).is_ok_and(|first| args.iter().any(|e| e.get_type(schema).is_ok_and(|of| differ(&first, &of)))));
            match (is_mixed, <[Expr; 3]>::try_from(args)) {
                (true, Ok([of, known, unknown])) => {
                    let chosen = Case::new(None, vec![(Box::new(of.is_not_null()), Box::new(known))], Some(Box::new(unknown)));
                    Transformed::yes(with_one_type(Expr::Case(chosen), schema)?.data)
                }
                (_, Ok(args)) => Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args: args.into() })),
                (_, Err(args)) => Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args })),
            }
        }
        Expr::ScalarFunction(ScalarFunction { func, mut args }) => {
            let is_date = |e: &Expr| matches!(e.get_type(schema), Ok(DataType::Date32 | DataType::Date64));
            let changed = match (func.name(), args.as_mut_slice()) {
                ("date_trunc" | "date_bin", [_, time, ..]) if is_date(time) => {
                    *time = cast(std::mem::take(time), MOMENT);
                    true
                }
                (name, args) if ALIKE.contains(&name) => {
                    let types = common(&args.iter().collect::<Vec<_>>(), schema);
                    types.map(|types| cast_to(args.iter_mut(), types)).is_some()
                }
                _ => false,
            };
            let call = Expr::ScalarFunction(ScalarFunction { func, args });
            Transformed::new_transformed(call, changed)
        }
        Expr::BinaryExpr(BinaryExpr { mut left, op: Operator::Minus, mut right }) => {
            let types = common(&[left.as_ref(), right.as_ref()], schema);
            let changed = types.map(|types| cast_to([left.as_mut(), right.as_mut()].into_iter(), types)).is_some();
            Transformed::new_transformed(Expr::BinaryExpr(BinaryExpr { left, op: Operator::Minus, right }), changed)
        }
        other => Transformed::no(other),
    })
}

fn cast_to<'e>(all: impl Iterator<Item = &'e mut Expr>, types: Vec<Option<DataType>>) {
    for (e, of) in all.zip(types) {
        if let Some(of) = of {
            *e = cast(std::mem::take(e), of);
        }
    }
}

/// What to cast each of `all` to, so that they have one unit; none if they have it, or are no times.
fn common(all: &[&Expr], schema: &DFSchema) -> Option<Vec<Option<DataType>>> {
    let types = all.iter().map(|e| e.get_type(schema).ok()).collect::<Option<Vec<_>>>()?;
    let coarse = |(e, of): (&&Expr, &DataType)| unit(of).is_some_and(|unit| unit < TimeUnit::Nanosecond) && varies(e);
    let is_coarse = all.iter().zip(&types).any(coarse);
    let needs = |(e, of): (&&Expr, &DataType)| match unit(of) {
        Some(TimeUnit::Nanosecond) if is_coarse && is_whole(e) => Some(TimeUnit::Microsecond),
        unit => unit,
    };
    one_type(&types, all.iter().zip(&types).filter_map(needs).max()?)
}

/// As [`common`], for the finest unit that is needed.
fn one_type(types: &[DataType], finest: TimeUnit) -> Option<Vec<Option<DataType>>> {
    let all_times = types.iter().all(|of| is_time(of) || of.is_null());
    // Dates among themselves stay dates.
    if !all_times || !types.iter().any(|of| matches!(of, DataType::Timestamp(..))) {
        return None;
    }
    let casts = types.iter().map(|of| match of {
        DataType::Timestamp(unit, zone) if *unit != finest => Some(DataType::Timestamp(finest, zone.clone())),
        DataType::Date32 | DataType::Date64 => Some(DataType::Timestamp(finest, None)),
        _ => None,
    });
    let casts: Vec<Option<DataType>> = casts.collect();
    casts.iter().any(Option::is_some).then_some(casts)
}

/// The unit of times of type `of`: microseconds hold all dates that SQL can write.
fn unit(of: &DataType) -> Option<TimeUnit> {
    match of {
        DataType::Timestamp(unit, _) => Some(*unit),
        DataType::Date32 | DataType::Date64 => Some(TimeUnit::Microsecond),
        _ => None,
    }
}

/// Whether `e` is a constant of nanoseconds that microseconds hold.
fn is_whole(e: &Expr) -> bool {
    matches!(constant(e), Some(ScalarValue::TimestampNanosecond(at, _)) if at.is_none_or(|at| at % 1_000 == 0))
}

/// The columns of a union.
fn columns(union: Union) -> Result<Transformed<Union>> {
    let column = |at: usize| union.inputs.iter().filter_map(move |input| Some(input.schema().fields().get(at)?.data_type().clone())).collect::<Vec<_>>();
    let of = |at: usize| {
        let types = column(at);
        let finest = types.iter().filter_map(unit).max()?;
        one_type(&types, finest)
    };
    // By column, and then by branch.
    let casts: Vec<Option<Vec<Option<DataType>>>> = (0..union.schema.fields().len()).map(of).collect();
    // Where types have changed below, the union still has those of before.
    let is_stale = |at: usize| {
        let own = union.schema.field(at).data_type();
        is_time(own) && column(at).first().is_some_and(|of| is_time(of) && of != own)
    };
    if !casts.iter().any(Option::is_some) && !(0..casts.len()).any(is_stale) {
        return Ok(Transformed::no(union));
    }
    let branch = |at: usize, input: Arc<LogicalPlan>| {
        let types: Vec<Option<DataType>> = casts.iter().map(|of| of.as_ref().and_then(|of| of.get(at).cloned().flatten())).collect();
        if types.iter().all(Option::is_none) { Ok(input) } else { with_types(input, &types).map(Arc::new) }
    };
    let inputs = union.inputs.iter().enumerate().map(|(at, input)| branch(at, Arc::clone(input))).collect::<Result<Vec<_>>>()?;
    // A column of times has the type that its branches have now.
    let types = |at: usize| inputs.iter().filter_map(move |input| Some(input.schema().fields().get(at)?.data_type())).find(|of| !of.is_null());
    let fields = union.schema.iter().enumerate().map(|(at, (table, field))| match types(at) {
        Some(of) if is_time(of) => (table.cloned(), Arc::new(field.as_ref().clone().with_data_type(of.clone()))),
        _ => (table.cloned(), Arc::clone(field)),
    });
    let schema = Arc::new(DFSchema::new_with_metadata(fields.collect(), union.schema.metadata().clone())?);
    Ok(Transformed::yes(Union { inputs, schema }))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
    use datafusion::arrow::compute::cast as cast_array;
    use datafusion::arrow::datatypes::{Field, Int64Type, Schema};
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::join_types::JoinTypes;

    /// A type of times, how many nanoseconds one is, and its values.
    type Of = (DataType, i128, Vec<Option<i64>>);

    /// All types of times, in three zones.
    fn all() -> Vec<Of> {
        const DAY: i64 = 86_400;
        // Seconds of 0001-01-01, the last second of 1969, 1970-01-01, 2024-02-29, 9999-12-31, and a year of six digits.
        let seconds = [Some(-62_135_596_800), Some(-1), Some(0), Some(1_709_164_800), Some(253_402_214_400), Some(71_759_259 * DAY), None];
        let days = || seconds.map(|at| at.map(|at: i64| at.div_euclid(DAY))).to_vec();
        let mut all = vec![
            (DataType::Date32, i128::from(DAY) * 1_000_000_000, days()),
            (DataType::Date64, 1_000_000, days().into_iter().map(|day| day.map(|day| day * DAY * 1_000)).collect()),
        ];
        for zone in [None, Some("UTC"), Some("+05:30")] {
            for (unit, one) in [(TimeUnit::Second, 1), (TimeUnit::Millisecond, 1_000), (TimeUnit::Microsecond, 1_000_000)] {
                let values = seconds.iter().map(|at| at.map(|at| at * one)).chain([Some(-1), Some(1)]).collect();
                all.push((DataType::Timestamp(unit, zone.map(Into::into)), i128::from(1_000_000_000 / one), values));
            }
            let near = vec![Some(i64::MIN), Some(-1), Some(0), Some(1_709_164_800_000_000_000), Some(-1_000_000_000), Some(-1_000), Some(i64::MAX), None];
            all.push((DataType::Timestamp(TimeUnit::Nanosecond, zone.map(Into::into)), 1, near));
        }
        all
    }

    fn array((of, _, values): &Of) -> ArrayRef {
        let numbers: ArrayRef = Arc::new(Int64Array::from(values.clone()));
        let numbers = if *of == DataType::Date32 { cast_array(&numbers, &DataType::Int32).unwrap() } else { numbers };
        cast_array(&numbers, of).unwrap()
    }

    fn context() -> SessionContext {
        let mut config = SessionConfig::new().with_target_partitions(1);
        config.options_mut().execution.time_zone = Some("UTC".into());
        let state = SessionStateBuilder::new().with_default_features().with_config(config).with_analyzer_rules(super::super::rules());
        let mut state = state.with_optimizer_rule(Arc::new(JoinTypes)).build();
        crate::register_functions(&mut state).unwrap();
        SessionContext::new_with_state(state)
    }

    async fn rows(context: &SessionContext, sql: &str) -> Vec<String> {
        let rows = context.sql(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")).collect().await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let text = pretty_format_batches(&rows).unwrap().to_string();
        text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.replace(['|', ' '], "")).collect()
    }

    /// Each type with each, by each way to compare, over all pairs of values: as their nanoseconds compare.
    #[tokio::test]
    async fn all_pairs_of_units_and_zones_compare_exactly() {
        let (context, all) = (context(), all());
        for (at, of) in all.iter().enumerate() {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..of.2.len() as i64));
            let fields = vec![Field::new("k", DataType::Int64, false), Field::new("x", of.0.clone(), true)];
            let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![numbers, array(of)]).unwrap();
            context.register_batch(&format!("t{at}"), batch).unwrap();
        }
        let forms: [(&str, fn(i128, i128) -> bool); 9] = [
            ("a.x = b.x", |a, b| a == b),
            ("a.x <> b.x", |a, b| a != b),
            ("a.x < b.x", |a, b| a < b),
            ("a.x <= b.x", |a, b| a <= b),
            ("a.x > b.x", |a, b| a > b),
            ("a.x >= b.x", |a, b| a >= b),
            ("a.x BETWEEN b.x AND b.x", |a, b| a == b),
            ("a.x NOT IN (b.x, b.x)", |a, b| a != b),
            ("nullif(a.x, b.x) IS NOT NULL", |a, b| a != b),
        ];
        for (l, left) in all.iter().enumerate() {
            for (r, right) in all.iter().enumerate() {
                let counts = |of: &Of| of.2.iter().map(|value| value.map(|value| i128::from(value) * of.1)).collect::<Vec<_>>();
                let (lefts, rights) = (counts(left), counts(right));
                let columns: Vec<String> = forms.iter().enumerate().map(|(at, (form, _))| format!("{form} AS c{at}")).collect();
                let sql = format!(
                    "SELECT {}, a.x IS DISTINCT FROM b.x AS d, CASE a.x WHEN b.x THEN 1 ELSE 0 END AS e FROM t{l} AS a CROSS JOIN t{r} AS b ORDER BY a.k, b.k",
                    columns.join(", ")
                );
                let found = rows(&context, &sql).await;
                let mut expected = Vec::new();
                for a in &lefts {
                    for b in &rights {
                        let mut line = String::new();
                        for (at, (_, holds)) in forms.iter().enumerate() {
                            let value = match (a, b) {
                                (Some(a), Some(b)) => Some(holds(*a, *b)),
                                // A value stays where it is compared with NULL.
                                _ => (at + 1 == forms.len()).then_some(a.is_some()),
                            };
                            line += &value.map(|value| value.to_string()).unwrap_or_default();
                        }
                        expected.push(format!("{line}{}{}", a != b, u8::from(a == b && a.is_some())));
                    }
                }
                assert_eq!(found, expected, "{} and {}", left.0, right.0);
                if l > r {
                    continue;
                }
                let equal = |a: &Option<i128>| a.is_some() && rights.contains(a);
                let pairs: usize = lefts.iter().flatten().map(|a| rights.iter().flatten().filter(|b| *b == a).count()).sum();
                for (sql, expected) in [
                    (format!("SELECT count(*) FROM t{l} AS a JOIN t{r} AS b ON a.x = b.x"), pairs),
                    (format!("SELECT count(*) FROM t{l} AS a JOIN t{r} AS b USING (x)"), pairs),
                    (format!("SELECT count(*) FROM t{l} WHERE x IN (SELECT x FROM t{r})"), lefts.iter().filter(|a| equal(a)).count()),
                    (format!("SELECT count(*) FROM t{l} WHERE x = ANY (SELECT x FROM t{r})"), lefts.iter().filter(|a| equal(a)).count()),
                    (
                        format!("SELECT count(*) FROM t{l} AS a WHERE NOT EXISTS (SELECT 1 FROM t{r} AS b WHERE b.x = a.x)"),
                        lefts.iter().filter(|a| !equal(a)).count(),
                    ),
                ] {
                    assert_eq!(rows(&context, &sql).await, [expected.to_string()], "{} and {}: {sql}", left.0, right.0);
                }
            }
        }
    }

    #[tokio::test]
    async fn results_of_several_units_have_one_that_holds_them() {
        let context = context();
        let far = "arrow_cast('9999-12-31T01:00:00', 'Timestamp(us)')";
        let create =
            format!("CREATE TABLE t AS SELECT {far} AS u, DATE '9999-12-31' AS d, TIMESTAMP '2024-02-29' AS n, arrow_cast({far}, 'Timestamp(s)') AS s");
        context.sql(&create).await.unwrap().collect().await.unwrap();
        let one = "9999-12-31T01:00:00";
        for (value, shown, of) in [
            ("greatest(d, u)", one, "µs"),
            ("coalesce(d, s)", "9999-12-31T00:00:00", "µs"),
            ("coalesce(u, TIMESTAMP '2024-01-01')", one, "µs"),
            ("greatest(s, TIMESTAMP '2024-01-01 00:00:00.5', NULL)", one, "µs"),
            ("CASE WHEN n > u THEN TIMESTAMP '2024-01-01' ELSE u END", one, "µs"),
            ("nvl2(n, d, u)", "9999-12-31T00:00:00", "µs"),
            ("least(s, u)", one, "µs"),
            ("date_trunc('quarter', d)", "9999-10-01T00:00:00", "µs"),
            ("date_trunc('week', u)", "9999-12-27T00:00:00", "µs"),
            ("date_trunc('year', s)", "9999-01-01T00:00:00", "s"),
            ("date_trunc('month', arrow_cast(u, 'Timestamp(Microsecond, Some(\"+02:00\"))'))", "9999-12-01T00:00:00+02:00", "µs,\"+02:00\""),
            ("date_trunc('month', arrow_cast(u, 'Timestamp(Microsecond, Some(\"Europe/Rome\"))'))", "9999-12-01T00:00:00+01:00", "µs,\"Europe/Rome\""),
            ("date_bin(INTERVAL '3 months', d)", "9999-10-01T00:00:00", "µs"),
            ("date_bin(INTERVAL '10 years', u)", "9990-01-01T00:00:00", "µs"),
            ("date_trunc('month', TIMESTAMP(6) '0001-02-03 04:05:06')", "0001-02-01T00:00:00", "µs"),
            ("coalesce(n, TIMESTAMP '2024-01-01')", "2024-02-29T00:00:00", "ns"),
            ("nullif(n, u)", "2024-02-29T00:00:00", "ns"),
            ("nullif(u, n)", one, "µs"),
        ] {
            let found = rows(&context, &format!("SELECT {value} AS v, arrow_typeof({value}) AS t FROM t")).await;
            assert_eq!(found, [format!("{shown}Timestamp({of})")], "{value}");
        }
        // Those above know the types that those below have now.
        for (sql, shown) in [
            (
                "SELECT x FROM (SELECT CASE WHEN n > u THEN n ELSE CAST(NULL AS TIMESTAMP) END AS x, u FROM t) AS y WHERE x IS NULL AND u > DATE '9000-01-01'",
                "",
            ),
            ("SELECT count(*) FROM (SELECT CASE WHEN d > n THEN s ELSE u END AS x, u FROM t) AS y WHERE x = u", "1"),
            ("SELECT count(*) FROM (SELECT d AS x FROM t UNION ALL SELECT u FROM t) AS y JOIN t ON y.x = t.u OR y.x > t.n", "2"),
            ("SELECT count(*) FROM (SELECT d AS x FROM t UNION SELECT u FROM t) AS y WHERE x IN (SELECT s FROM t)", "1"),
            ("SELECT count(*) FROM (SELECT u FROM t INTERSECT SELECT s FROM t) AS y", "1"),
            ("SELECT u < '9999-12-31 02:00:00' AND n BETWEEN '0001-01-01' AND '9999-12-31' AND s IN ('9999-12-31T01:00:00', '2024-02-29') FROM t", "true"),
            ("SELECT CAST(n AS TIMESTAMP WITH TIME ZONE) < '9999-12-31' AND CASE u WHEN '9999-12-31 01:00:00' THEN true END FROM t", "true"),
            ("SELECT u - TIMESTAMP(6) '9999-12-31' = INTERVAL '1 hour' AND u - d = INTERVAL '1 hour' FROM t", "true"),
            ("SELECT u - TIMESTAMP(6) '0001-01-01' > INTERVAL '3652058 days' AND NOT u - d BETWEEN s - TIMESTAMP(6) '0001-01-01' AND NULL FROM t", "true"),
        ] {
            assert_eq!(rows(&context, sql).await, [shown], "{sql}");
        }
        for sql in ["SELECT coalesce(u, n) FROM t", "SELECT n FROM t UNION ALL SELECT d FROM t", "SELECT CASE WHEN u > n THEN u ELSE n END FROM t"] {
            let error = context.sql(sql).await.unwrap().collect().await.unwrap_err();
            let said = crate::error::from_datafusion(error).to_string();
            assert!(said.contains("nanoseconds hold the years 1678 to 2261, and not 9999-12-31") && said.contains("AS TIMESTAMP(6)"), "{sql}: {said}");
        }
    }

    /// A comparison with a constant keeps the column as it is, and so prunes.
    #[tokio::test]
    async fn constants_are_compared_in_the_columns_unit() {
        let context = context();
        context.sql("CREATE TABLE t AS SELECT arrow_cast('2024-01-01', 'Timestamp(us)') AS u, now() AS z").await.unwrap();
        for condition in
            ["u > TIMESTAMP '2024-01-01'", "u IN (TIMESTAMP '2024-01-01', TIMESTAMP '2025-01-01')", "u < now()", "u BETWEEN '2024-01-01' AND now()"]
        {
            let plan = context.state().create_logical_plan(&format!("SELECT 1 FROM t WHERE {condition}")).await.unwrap();
            let plan = super::rewrite(plan, &ConfigOptions::default()).unwrap().display_indent().to_string();
            assert!(!plan.contains("__instant"), "{condition}: {plan}");
        }
        let batches = context.sql("SELECT count(*) FROM t WHERE u < z").await.unwrap().collect().await.unwrap();
        assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), 1);
    }
}
