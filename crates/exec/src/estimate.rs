//! A rough estimate of the rows that a sub-plan gives, so that joins read their smaller side first.
//!
//! Known are the rows of each table, and the bounds of numbers, dates and times ([`KnownTable`]). A condition on these
//! counts by the share of their range, as if values were spread evenly. What is not known counts by textbook shares
//! (Selinger et al., SIGMOD 1979): a tenth for an equality, a third for a range. It matters that a filtered table
//! counts for less than a whole one, not by how much. Of two joined columns, the one with fewer values counts as the
//! key that the other refers to.

use crate::column_stats::{Known, KnownTable};
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{Column, JoinType, ScalarValue, TableReference};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, FetchType, Join, LogicalPlan, Operator};
use skytether_plan::float_keys::keyed;
use skytether_plan::opaque_values::within_opaque;

/// Groups per row of an aggregate's input, at most, where it has group keys.
const GROUPS: f64 = 0.1;

/// A table that a sub-plan reads.
#[derive(Debug, Clone)]
pub struct Estimated {
    /// Its rows.
    pub rows: u64,
    /// Its columns.
    pub known: Arc<KnownTable>,
}

/// The tables of a sub-plan, as it calls them.
#[derive(Debug, Default)]
pub struct Estimates(HashMap<TableReference, Estimated>);

impl FromIterator<(TableReference, Estimated)> for Estimates {
    fn from_iter<T: IntoIterator<Item = (TableReference, Estimated)>>(tables: T) -> Self {
        Self(tables.into_iter().collect())
    }
}

/// What a sub-plan gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// Rows; at least 1.
    pub(crate) rows: u64,
    /// The number of distinct values of each column, where known.
    pub(crate) values: Vec<Option<u64>>,
}

impl Estimates {
    /// What `plan` gives. Tables that are not listed are small.
    pub fn given(&self, plan: &LogicalPlan) -> Given {
        let rows = self.rows(plan).clamp(1.0, 1e18);
        let values = |at| self.values(plan, at).map(|values| values.min(rows) as u64);
        Given { rows: rows as u64, values: (0..plan.schema().fields().len()).map(values).collect() }
    }

    /// The rows of a table.
    fn table(&self, name: &TableReference) -> f64 {
        self.0.get(name).map_or(1, |table| table.rows) as f64
    }

    fn rows(&self, plan: &LogicalPlan) -> f64 {
        let below = || plan.inputs().iter().map(|input| self.rows(input)).fold(0.0, f64::max);
        match plan {
            LogicalPlan::TableScan(scan) => self.table(&scan.table_name),
            LogicalPlan::Filter(filter) => below() * self.all(&split_conjunction(&filter.predicate), &filter.input),
            LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => 1.0,
            LogicalPlan::Aggregate(aggregate) => {
                let most = below() * GROUPS;
                let mut keys = aggregate.group_expr.iter().map(|key| self.values_of(key, &aggregate.input));
                keys.try_fold(1.0, |all: f64, values| Some(all * values?)).map_or(most, |groups| groups.min(most)).max(1.0)
            }
            LogicalPlan::Limit(limit) => match limit.get_fetch_type() {
                Ok(FetchType::Literal(Some(fetch))) => below().min(fetch as f64),
                _ => below(),
            },
            LogicalPlan::Sort(sort) => sort.fetch.map_or_else(below, |fetch| below().min(fetch as f64)),
            LogicalPlan::Join(join) => self.joined(join),
            LogicalPlan::Union(union) => union.inputs.iter().map(|input| self.rows(input)).sum(),
            _ => below(),
        }
    }

    fn joined(&self, join: &Join) -> f64 {
        let (left, right) = (self.rows(&join.left), self.rows(&join.right));
        // Keys of several columns: the pair with the most values says most.
        let domain = join.on.iter().filter_map(|(l, r)| {
            let of = |key, side: &LogicalPlan| self.values_of(key, side).map_or_else(|| self.base(side), |values| values.min(self.base(side)));
            Some(of(l, &join.left).min(of(r, &join.right))).filter(|values| *values >= 1.0)
        });
        let Some(domain) = domain.reduce(f64::max) else { return left.max(right) };
        let inner = left * right / domain;
        let found = |side: f64, other: f64| (side * (other / domain).min(1.0)).max(1.0);
        match join.join_type {
            JoinType::Inner => inner,
            JoinType::Left => inner.max(left),
            JoinType::Right => inner.max(right),
            JoinType::Full => inner.max(left).max(right),
            JoinType::LeftSemi => found(left, right),
            JoinType::RightSemi => found(right, left),
            JoinType::LeftAnti => (left - found(left, right)).max(left * 0.1),
            JoinType::RightAnti => (right - found(right, left)).max(right * 0.1),
            JoinType::LeftMark => left,
            JoinType::RightMark => right,
        }
    }

    /// The rows of the largest table below, before anything was dropped.
    fn base(&self, plan: &LogicalPlan) -> f64 {
        match plan {
            LogicalPlan::TableScan(scan) => self.table(&scan.table_name),
            _ => plan.inputs().iter().map(|input| self.base(input)).fold(1.0, f64::max),
        }
    }

    /// How many values column `at` of `plan` can have.
    fn values(&self, plan: &LogicalPlan, at: usize) -> Option<f64> {
        let (known, rows) = self.trace(plan, at)?;
        Some(known.values()?.min(rows).max(1.0))
    }

    fn values_of(&self, expr: &Expr, input: &LogicalPlan) -> Option<f64> {
        self.values(input, place(expr, input)?)
    }

    fn known(&self, expr: &Expr, input: &LogicalPlan) -> Option<&Known> {
        Some(self.trace(input, place(expr, input)?)?.0)
    }

    /// The stored column that column `at` of `plan` is, and the rows of its table.
    fn trace(&self, plan: &LogicalPlan, at: usize) -> Option<(&Known, f64)> {
        match plan {
            LogicalPlan::TableScan(scan) => {
                let table = self.0.get(&scan.table_name)?;
                Some((table.known.column(scan.projected_schema.fields().get(at)?.name())?, table.rows as f64))
            }
            LogicalPlan::Projection(projection) => self.trace(&projection.input, place(projection.expr.get(at)?, &projection.input)?),
            LogicalPlan::Aggregate(aggregate) => self.trace(&aggregate.input, place(aggregate.group_expr.get(at)?, &aggregate.input)?),
            LogicalPlan::Filter(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) | LogicalPlan::SubqueryAlias(_) => self.trace(plan.inputs().first()?, at),
            LogicalPlan::Join(join) => {
                let left = match join.join_type {
                    JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => 0,
                    _ => join.left.schema().fields().len(),
                };
                if at < left { self.trace(&join.left, at) } else { self.trace(&join.right, at - left) }
            }
            _ => None,
        }
    }

    /// The share of rows of `input` for which all `conditions` hold.
    fn all(&self, conditions: &[&Expr], input: &LogicalPlan) -> f64 {
        // Several bounds of one column make one range.
        let (mut ranges, mut others) = (HashMap::<usize, (f64, f64)>::new(), 1.0);
        for condition in conditions {
            match self.range(condition, input) {
                Some((column, low, high)) => {
                    let range = ranges.entry(column).or_insert((f64::NEG_INFINITY, f64::INFINITY));
                    *range = (range.0.max(low), range.1.min(high));
                }
                None => others *= self.share(condition, input),
            }
        }
        let within = ranges.into_iter().filter_map(|(column, (low, high))| {
            let (known, _) = self.trace(input, column)?;
            Some(known.between(low, high) * (1.0 - known.nulls))
        });
        within.product::<f64>() * others
    }

    /// The range of a column with known bounds in which `condition` holds.
    fn range(&self, condition: &Expr, input: &LogicalPlan) -> Option<(usize, f64, f64)> {
        let (column, low, high) = match condition {
            Expr::BinaryExpr(both) => {
                let (column, op, value) = match (literal(&both.left), literal(&both.right)) {
                    (None, Some(value)) => (&both.left, both.op, value),
                    (Some(value), None) => (&both.right, both.op.swap()?, value),
                    _ => return None,
                };
                let value = crate::column_stats::number(value)?;
                // Between whole numbers there is nothing.
                match op {
                    Operator::Lt => (column, f64::NEG_INFINITY, below(value, self.known(column, input)?)),
                    Operator::LtEq => (column, f64::NEG_INFINITY, value),
                    Operator::Gt => (column, above(value, self.known(column, input)?), f64::INFINITY),
                    Operator::GtEq => (column, value, f64::INFINITY),
                    _ => return None,
                }
            }
            Expr::Between(between) if !between.negated => {
                (&between.expr, crate::column_stats::number(literal(&between.low)?)?, crate::column_stats::number(literal(&between.high)?)?)
            }
            _ => return None,
        };
        let at = place(column, input)?;
        self.trace(input, at).map(|_| (at, low, high))
    }

    /// The share of rows of `input` for which `condition` holds.
    fn share(&self, condition: &Expr, input: &LogicalPlan) -> f64 {
        match condition {
            Expr::BinaryExpr(both) => match both.op {
                Operator::Eq | Operator::IsNotDistinctFrom => {
                    let values = [&both.left, &both.right].into_iter().filter_map(|side| self.values_of(side, input));
                    values.reduce(f64::max).map_or(0.1, |values| 1.0 / values)
                }
                Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => 1.0 / 3.0,
                Operator::And => self.all(&split_conjunction(condition), input),
                Operator::Or => {
                    let (a, b) = (self.all(&split_conjunction(&both.left), input), self.all(&split_conjunction(&both.right), input));
                    a + b - a * b
                }
                _ => 0.9,
            },
            Expr::InList(list) => {
                let listed = list.list.len() as f64;
                let among = self.values_of(&list.expr, input).map_or((0.1 * listed).min(0.5), |values| (listed / values).min(1.0));
                if list.negated { 1.0 - among } else { among }
            }
            Expr::Between(between) if between.negated => 0.75,
            Expr::Between(_) => 0.25,
            Expr::Like(like) if like.negated => 0.9,
            Expr::Like(_) => 0.1,
            Expr::IsNull(of) => self.known(of, input).map_or(0.1, |known| known.nulls),
            Expr::IsNotNull(of) => self.known(of, input).map_or(0.9, |known| 1.0 - known.nulls),
            Expr::Not(inner) => 1.0 - self.share(inner, input),
            _ => 0.5,
        }
    }
}

/// The greatest value below `value` of a column of whole numbers; `value` itself where there is no next one.
fn below(value: f64, known: &Known) -> f64 {
    if known.values().is_some() { value.ceil() - 1.0 } else { value }
}

/// The least value above.
fn above(value: f64, known: &Known) -> f64 {
    if known.values().is_some() { value.floor() + 1.0 } else { value }
}

fn literal(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        _ => None,
    }
}

/// The column of `input` that `expr` is, by another name perhaps or widened.
fn place(expr: &Expr, input: &LogicalPlan) -> Option<usize> {
    let column: &Column = match expr {
        Expr::Column(column) => column,
        Expr::Alias(alias) => return place(&alias.expr, input),
        Expr::Cast(cast) => return place(&cast.expr, input),
        Expr::ScalarFunction(_) => return place(keyed(expr).or_else(|| within_opaque(expr))?, input),
        _ => return None,
    };
    input.schema().maybe_index_of_column(column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::functions_aggregate::expr_fn::count;
    use datafusion::logical_expr::{LogicalPlanBuilder, col, lit, logical_plan::builder::table_scan};

    fn scan(name: &str) -> LogicalPlanBuilder {
        let schema = Schema::new(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("b", DataType::Utf8, false),
            Field::new("day", DataType::Date32, false),
            Field::new("price", DataType::Float64, false),
        ]);
        table_scan(Some(name), &schema, None).unwrap()
    }

    /// `unknown` has 1,000 rows; so has `t`, whose `a` has values from 1 to 100, `day` from 0 to 999, and `price` from
    /// 0 to 50. `large` is the same with 100,000 rows.
    fn of(builder: LogicalPlanBuilder) -> Given {
        let known = KnownTable::with(&[("a", Known::whole(1.0, 100.0)), ("day", Known::whole(0.0, 999.0)), ("price", Known::spread(0.0, 50.0))]);
        let known = Arc::new(known);
        let table = |rows, known: &Arc<KnownTable>| Estimated { rows, known: Arc::clone(known) };
        let tables = [("unknown", table(1000, &Arc::default())), ("t", table(1000, &known)), ("large", table(100_000, &known)), ("none", table(0, &known))];
        tables.into_iter().map(|(name, table)| (name.into(), table)).collect::<Estimates>().given(&builder.build().unwrap())
    }

    fn filtered(table: &str, condition: Expr) -> u64 {
        of(scan(table).filter(condition).unwrap()).rows
    }

    #[test]
    fn filtered_rows_count_for_less_and_never_for_zero() {
        assert_eq!(of(scan("unknown")).rows, 1000);
        let (equal, range) = (col("a").eq(lit(1i64)), col("a").gt(lit(1i64)));
        let both = filtered("unknown", range.clone().and(col("b").eq(lit("x"))));
        let (equal, range) = (filtered("unknown", equal), filtered("unknown", range));
        assert!(1 <= both && both < equal && equal < range && range < 1000, "{both} {equal} {range}");
        assert_eq!(of(scan("unknown").limit(0, Some(7)).unwrap()).rows, 7);
        assert_eq!(filtered("none", col("a").eq(lit(1i64))), 1);
        assert!(of(scan("unknown").aggregate(vec![col("a")], Vec::<Expr>::new()).unwrap()).rows < 1000);
    }

    #[test]
    fn bounds_say_how_much_a_range_holds() {
        let day = |n: i32| Expr::Literal(ScalarValue::Date32(Some(n)), None);
        assert_eq!(filtered("t", col("day").gt_eq(day(100)).and(col("day").lt(day(200)))), 100);
        assert_eq!(filtered("t", col("day").between(day(100), day(199))), 100);
        // The other way round, with another condition between.
        assert_eq!(filtered("t", day(100).lt_eq(col("day")).and(col("b").eq(lit("x"))).and(day(200).gt(col("day")))), 10);
        assert_eq!(filtered("t", col("price").gt(lit(45.0))), 100);
        assert_eq!(filtered("t", col("a").eq(lit(7i64))), 10);
        assert_eq!(filtered("t", col("a").in_list(vec![lit(7i64), lit(8i64), lit(9i64)], false)), 30);
        assert_eq!(filtered("t", col("a").lt_eq(lit(50i64)).or(col("a").gt(lit(50i64)))), 750);
        // Outside of the bounds there is hardly anything.
        assert_eq!(filtered("t", col("day").gt(day(999))), 1);
        assert_eq!(filtered("t", col("price").lt(lit(-1.0))), 1);
        // Through names and projections.
        let renamed = scan("t").project(vec![col("day").alias("d")]).unwrap().alias("u").unwrap();
        assert_eq!(of(renamed.filter(col("u.d").lt(day(500))).unwrap()).rows, 500);
        // What a comparison with NULL or of unknown types gives is no range.
        assert!(filtered("t", col("day").lt(Expr::Literal(ScalarValue::Date32(None), None))) > 1);
        assert!(filtered("t", col("b").lt(lit("x"))) > 1);
    }

    #[test]
    fn groups_are_no_more_than_values() {
        assert_eq!(of(scan("large").aggregate(vec![col("a")], vec![count(col("b"))]).unwrap()).rows, 100);
        assert_eq!(of(scan("large").aggregate(vec![col("a"), col("b")], vec![count(col("b"))]).unwrap()).rows, 10_000);
        assert_eq!(of(scan("t").aggregate(vec![col("a")], vec![count(col("b"))]).unwrap()).rows, 100);
    }

    #[test]
    fn a_filtered_side_makes_a_join_small() {
        let join = |kind| {
            let right = scan("t").filter(col("t.a").lt_eq(lit(10i64))).unwrap().build().unwrap();
            of(scan("large").join(right, kind, (vec!["large.a"], vec!["t.a"]), None).unwrap()).rows
        };
        // 100,000 rows with 100 values, each found 10 times on the other side. A tenth of these remains.
        assert_eq!(join(JoinType::Inner), 100_000);
        assert_eq!(join(JoinType::LeftSemi), 100_000);
        let few = scan("t").filter(col("t.day").lt(Expr::Literal(ScalarValue::Date32(Some(1)), None))).unwrap().build().unwrap();
        let semi = |kind| of(scan("large").join(few.clone(), kind, (vec!["large.a"], vec!["t.a"]), None).unwrap()).rows;
        assert_eq!(semi(JoinType::LeftSemi), 1000);
        assert_eq!(semi(JoinType::LeftAnti), 99_000);
        assert_eq!(semi(JoinType::Left), 100_000);
    }

    #[test]
    fn a_column_has_no_more_values_than_rows() {
        assert_eq!(of(scan("large")).values, vec![Some(100), None, Some(1000), None]);
        assert_eq!(of(scan("t").filter(col("a").eq(lit(1i64))).unwrap()).values, vec![Some(10), None, Some(10), None]);
    }
}
