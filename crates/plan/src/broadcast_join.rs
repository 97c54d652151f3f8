//! Broadcast joins: small tables travel with a sub-plan, so that a drive joins its own rows with them.
//!
//! A join of a table on drives with something small goes down as a whole: every drive joins its own rows with all of
//! the small side. Two conditions hold:
//! - Every row of the result belongs to one row of the drives' side. That is so for an inner join, and for an outer,
//!   semi or anti join that keeps the drives' side.
//! - An operator above the join makes few rows of many and can then go down as well. Otherwise the join stays on the
//!   host.
//!
//! In a sub-plan the small side is a table `__shipped_n` of the data set that the sub-plan reads, with columns
//! `__shipped_n_0`, `__shipped_n_1`, ...

use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::{Column, DFSchema, JoinType, Result, TableReference};
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{Expr, FetchType, LogicalPlan, Projection, TableScanBuilder};

use crate::column_source::ColumnSource;
use crate::node::DriveScan;
use crate::policy::Tables;
use crate::size::most_bytes;
use skytether_partitioning::Placement;
use skytether_slice::metadata::column_types::takes_bytes;

pub use skytether_common::plan_words::{SHIPPED_PREFIX, shipped_table as name};

/// The most rows that a side may have to be sent to every drive.
pub const MAX_ROWS: u64 = 65_536;

/// The most bytes that it may take up in memory.
const MAX_BYTES: u64 = 4 << 20;

/// The columns under which the rows of `plan` travel as the `n`th table.
#[must_use]
pub fn schema(n: usize, plan: &DFSchema) -> SchemaRef {
    let fields = plan.fields().iter().enumerate().map(|(i, f)| Field::new(format!("{SHIPPED_PREFIX}{n}_{i}"), f.data_type().clone(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The leaf that represents the rows of `plan`, under their own names, in a sub-plan that reads `table`.
pub(crate) fn leaf(n: usize, table: &TableReference, plan: &LogicalPlan) -> Result<LogicalPlan> {
    let of = match table {
        TableReference::Full { catalog, schema, .. } => TableReference::full(Arc::clone(catalog), Arc::clone(schema), name(n)),
        TableReference::Partial { schema, .. } => TableReference::partial(Arc::clone(schema), name(n)),
        TableReference::Bare { .. } => TableReference::bare(name(n)),
    };
    let columns = schema(n, plan.schema());
    let scan = LogicalPlan::TableScan(TableScanBuilder::new(of.clone(), Arc::new(ColumnSource(Arc::clone(&columns)))).build()?);
    let named =
        columns.fields().iter().zip(plan.schema().iter()).map(|(from, (qualifier, field))| {
            Expr::Alias(Alias::new(Expr::Column(Column::new(Some(of.clone()), from.name())), qualifier.cloned(), field.name()))
        });
    Ok(LogicalPlan::Projection(Projection::try_new(named.collect(), Arc::new(scan))?))
}

/// The least ratio between the rows of both sides: every drive gets the whole small side, and reads it into its own
/// hash table.
const TIMES: u64 = 16;

/// Why the rows of `plan` are not surely few and small enough, next to a table of `other` rows, in
/// words; `None` where they are.
pub(crate) fn too_large(plan: &LogicalPlan, other: u64, tables: &dyn Tables) -> Option<String> {
    let fields = plan.schema().fields();
    if fields.is_empty() || !fields.iter().all(|f| takes_bytes(f.data_type())) {
        return Some("has columns of types that don't travel beside sub-plans".into());
    }
    let Some(rows) = most_rows(plan, tables) else { return Some("may have any number of rows".into()) };
    let bytes = most_bytes(plan, rows, &|table| tables.bytes(table));
    let more = if rows > MAX_ROWS {
        format!("more than {MAX_ROWS}")
    } else if bytes.is_none() {
        "with texts of unknown length".into()
    } else if bytes.is_some_and(|bytes| bytes > MAX_BYTES) {
        format!("more than {} MiB", MAX_BYTES >> 20)
    } else if rows.saturating_mul(TIMES) > other {
        format!("more than a {TIMES}th of the other's {other}")
    } else {
        return None;
    };
    Some(format!("has up to {rows} rows, {more}"))
}

/// Whether each row of a join belongs to one row of its left side (`left`) or right side.
pub(crate) fn keeps(join: JoinType, left: bool) -> bool {
    match join {
        JoinType::Inner => true,
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => left,
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti => !left,
        JoinType::Full | JoinType::LeftMark | JoinType::RightMark => false,
    }
}

/// At most how many rows `plan` gives; `None` where nothing bounds them.
fn most_rows(plan: &LogicalPlan, tables: &dyn Tables) -> Option<u64> {
    if let Some(scan) = DriveScan::of(plan) {
        // Each drive returns its part's result over its own rows; a limit or a total holds for one drive alone.
        return match scan.placement {
            Placement::Spread => tables.rows(&scan.table).filter(|_| scan.inputs.is_empty() && scan.with.is_empty()).map(|rows| rows.max(1024)),
            Placement::Everywhere => tables.rows(&scan.table),
        };
    }
    let below = || match plan.inputs().as_slice() {
        [input] => most_rows(input, tables),
        _ => None,
    };
    match plan {
        LogicalPlan::Limit(limit) => match limit.get_fetch_type() {
            Ok(FetchType::Literal(Some(rows))) => Some(below().map_or(rows as u64, |all| all.min(rows as u64))),
            _ => below(),
        },
        LogicalPlan::Sort(sort) => match (sort.fetch, below()) {
            (Some(rows), all) => Some(all.map_or(rows as u64, |all| all.min(rows as u64))),
            (None, all) => all,
        },
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => Some(1),
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.iter().any(|e| matches!(e, Expr::GroupingSet(_))) => None,
        LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Aggregate(_) => below(),
        LogicalPlan::Values(values) => Some(values.values.len() as u64),
        LogicalPlan::EmptyRelation(_) => Some(1),
        LogicalPlan::Join(join) if matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti) => most_rows(&join.left, tables),
        LogicalPlan::Join(join) if matches!(join.join_type, JoinType::RightSemi | JoinType::RightAnti) => most_rows(&join.right, tables),
        _ => None,
    }
}
