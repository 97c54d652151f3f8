//! The walk over a plan, from the leaves up.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Aggregate, Expr, FetchType, Filter, Limit, LogicalPlan, Projection, SubqueryAlias, TableScan, TableScanBuilder, lit};
use skytether_scheduler::message::PushdownLevel;

use super::piece::{Below, Note, Piece, states, with_input};
use crate::classify::{Class, Input, MAX_OPERATORS, classify, operator_name, why_not};
use crate::column_source::ColumnSource;
use crate::expressions::check;
use crate::node::DriveScan;
use crate::partition::Whole;
use crate::policy::Tables;
use crate::split::Halves;
use crate::super_plan;
use skytether_common::Pushdown;
use skytether_partitioning::Placement;

type DfResult<T> = std::result::Result<T, DataFusionError>;

/// The walk, with its inputs and its notes so far.
pub(crate) struct Walk<'a> {
    pub(crate) policy: Pushdown,
    pub(crate) tables: &'a dyn Tables,
    pub(crate) registry: &'a dyn FunctionRegistry,
    notes: Vec<Note>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(policy: Pushdown, tables: &'a dyn Tables, registry: &'a dyn FunctionRegistry) -> Self {
        Self { policy, tables, registry, notes: vec![] }
    }

    /// The super-plan of `plan`, with why operators stayed on the host.
    pub(super) fn all(mut self, plan: LogicalPlan) -> DfResult<(LogicalPlan, Vec<Note>)> {
        let piece = self.plan(plan)?;
        let super_plan = self.above(piece).0;
        Ok((super_plan, self.notes))
    }

    pub(crate) fn plan(&mut self, plan: LogicalPlan) -> DfResult<Piece> {
        if DriveScan::of(&plan).is_some() {
            return Ok(Piece::Above(plan, true));
        }
        if let Some(piece) = self.over_union(&plan)? {
            return Ok(piece);
        }
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::Join(join) => self.join(join),
            plan if plan.inputs().len() == 1 => {
                let input = plan.inputs()[0].clone();
                match self.plan(input)? {
                    Piece::Below(below) => self.over(plan, *below),
                    Piece::Above(input, drives) => {
                        if drives && !matches!(plan, LogicalPlan::Subquery(_) | LogicalPlan::SubqueryAlias(_)) {
                            self.note(&plan, &super_plan::follows(&input));
                        }
                        let (plan, more) = self.subqueries(with_input(plan, input)?)?;
                        Ok(Piece::Above(plan, drives || more))
                    }
                }
            }
            plan => {
                let mut drives = false;
                let plan = plan
                    .map_children(|child| {
                        let piece = self.plan(child)?;
                        let (child, has) = self.above(piece);
                        drives |= has;
                        Ok(Transformed::yes(child))
                    })?
                    .data;
                let (plan, more) = self.subqueries(plan)?;
                if drives {
                    self.note(&plan, &why_not(&plan));
                }
                Ok(Piece::Above(plan, drives || more))
            }
        }
    }

    /// Cuts the plans in the expressions of `plan`, which stays above.
    pub(crate) fn subqueries(&mut self, plan: LogicalPlan) -> DfResult<(LogicalPlan, bool)> {
        let mut drives = false;
        let plan = plan.map_subqueries(|child| {
            let piece = self.plan(child)?;
            let (child, has) = self.above(piece);
            drives |= has;
            Ok(Transformed::yes(child))
        })?;
        Ok((plan.data, drives))
    }

    pub(crate) fn notes_len(&self) -> usize {
        self.notes.len()
    }

    /// Takes back the notes from number `from` on.
    pub(crate) fn forget_notes(&mut self, from: usize) -> Vec<Note> {
        self.notes.split_off(from)
    }

    pub(crate) fn note(&mut self, plan: &LogicalPlan, reason: &str) {
        self.notes.push(Note { operator: operator_name(plan), node: plan.display().to_string(), reason: reason.to_owned() });
    }

    /// Ends the part that goes down here. Returns the plan that stays above, and whether it reads from drives.
    pub(crate) fn above(&mut self, piece: Piece) -> (LogicalPlan, bool) {
        match piece {
            Piece::Above(plan, drives) => (plan, drives),
            Piece::Below(below) => {
                let inputs = match below.joined {
                    Some(joined) if !joined.pays && !joined.moves.is_some_and(|plain| plain.more_than(below.plan.schema())) => {
                        self.notes.extend(joined.notes);
                        return (joined.plain, true);
                    }
                    Some(joined) => joined.broadcast,
                    None => Vec::new(),
                };
                let rung = match self.policy {
                    Pushdown::Adaptive | Pushdown::Full => PushdownLevel::Full,
                    Pushdown::Filter => PushdownLevel::Filter,
                    Pushdown::Raw => PushdownLevel::Raw,
                };
                let scan = DriveScan::new(below.table, below.plan, rung, below.input.placement).with_inputs(inputs).with_tables(below.with);
                (scan.into_plan(), true)
            }
        }
    }

    /// `node`, whose input can go down, is next.
    fn over(&mut self, node: LogicalPlan, below: Below) -> DfResult<Piece> {
        match classify(&node, &below.input, self.policy, self.registry) {
            Class::Whole => {
                let mut below = below;
                // Aliases leave no trace in Substrait.
                below.input.operators += usize::from(!matches!(node, LogicalPlan::SubqueryAlias(_)));
                below.input.whole = below.input.whole.and_then(|whole| whole.above(&node));
                if let Some(joined) = &mut below.joined {
                    joined.plain = with_input(node.clone(), joined.plain.clone())?;
                    joined.pays |= matches!(node, LogicalPlan::Aggregate(_));
                }
                below.plan = with_input(node, below.plan)?;
                Ok(Piece::Below(Box::new(below)))
            }
            Class::Limit(rows) => {
                let mut below = below;
                if !fetches(&below.plan, rows) {
                    below.plan = limited(below.plan, rows)?;
                }
                if let Some(joined) = &mut below.joined {
                    joined.pays |= joined.moves.is_some();
                }
                let (plan, drives) = self.above(Piece::Below(Box::new(below)));
                Ok(Piece::Above(with_input(node, plan)?, drives))
            }
            Class::Top => {
                let plan = with_input(node.clone(), below.plan.clone())?;
                let (plan, drives) = self.above(Piece::Below(Box::new(below.reduced(plan))));
                Ok(Piece::Above(with_input(node, plan)?, drives))
            }
            Class::Split => match node {
                LogicalPlan::Aggregate(aggregate) => self.split(aggregate, below),
                other => self.stay(other, below, "only aggregates are split"),
            },
            Class::Host(why) => match node {
                LogicalPlan::Filter(filter) if self.policy != Pushdown::Raw && !below.input.limited => self.part_of(filter, below, &why),
                node => self.stay(node, below, &why),
            },
        }
    }

    /// Of a filter that can't go down whole, the conditions that can.
    fn part_of(&mut self, mut filter: Filter, mut below: Below, why: &str) -> DfResult<Piece> {
        if below.joined.is_some() {
            return self.stay(LogicalPlan::Filter(filter), below, why);
        }
        let conditions = split_conjunction(&filter.predicate).into_iter().cloned();
        let (down, up): (Vec<Expr>, Vec<Expr>) = conditions.partition(|c| check(c, below.plan.schema(), self.registry).is_ok());
        if let (Some(down), Some(up), true) = (conjunction(down), conjunction(up), below.input.operators < MAX_OPERATORS) {
            below.plan = LogicalPlan::Filter(Filter::try_new(down, Arc::new(below.plan))?);
            below.input.operators += 1;
            filter.predicate = up;
        }
        self.stay(LogicalPlan::Filter(filter), below, why)
    }

    fn stay(&mut self, node: LogicalPlan, below: Below, why: &str) -> DfResult<Piece> {
        if !matches!(node, LogicalPlan::Subquery(_) | LogicalPlan::Explain(_) | LogicalPlan::Analyze(_)) {
            self.note(&node, why);
        }
        let (input, _) = self.above(Piece::Below(Box::new(below)));
        let (plan, _) = self.subqueries(with_input(node, input)?)?;
        Ok(Piece::Above(plan, true))
    }

    /// The aggregate as state below and merge above, with a projection that gives the columns their names back.
    fn split(&mut self, aggregate: Aggregate, below: Below) -> DfResult<Piece> {
        let original = LogicalPlan::Aggregate(aggregate.clone());
        let halves = match Halves::of(&aggregate, self.registry)? {
            Ok(halves) => halves,
            Err(why) => return self.stay(original, below, why),
        };
        let (states, _) = self.above(Piece::Below(Box::new(states(&halves, below.clone())?)));
        match halves.merged(states)? {
            Some(merged) => Ok(Piece::Above(merged, true)),
            None => self.stay(original, below, "merging its states would give other types than it has"),
        }
    }

    /// A scan goes down with its projection, filters and limit as separate operators, over a table with only the used
    /// columns.
    fn scan(&mut self, scan: TableScan) -> DfResult<Piece> {
        let Some(partitioning) = self.tables.partitioning(&scan.table_name) else {
            return Ok(Piece::Above(LogicalPlan::TableScan(scan), false));
        };
        let full = scan.source.schema();
        let projection = scan.projection.clone().unwrap_or_else(|| (0..full.fields().len()).collect());
        let qualified = DFSchema::try_from_qualified_schema(scan.table_name.clone(), &full)?;

        let mut columns = projection.clone();
        for filter in &scan.filters {
            for used in filter.column_refs() {
                let index = qualified.index_of_column(used)?;
                if !columns.contains(&index) {
                    columns.push(index);
                }
            }
        }
        let extra = columns.len() > projection.len();
        let source: SchemaRef =
            Arc::new(Schema::new_with_metadata(columns.iter().map(|i| Arc::clone(&full.fields()[*i])).collect::<Vec<_>>(), full.metadata().clone()));
        let stored_as = partitioning.stored_as.clone().unwrap_or_else(|| scan.table_name.clone());
        let renamed = stored_as != scan.table_name;
        let mut plan = LogicalPlan::TableScan(TableScanBuilder::new(stored_as.clone(), Arc::new(ColumnSource(source))).build()?);
        if renamed {
            plan = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(plan), scan.table_name.clone())?);
        }
        let (rows, bytes) = (self.tables.rows(&scan.table_name), self.tables.bytes(&scan.table_name));
        let by_key = partitioning.by_key.as_ref();
        let most_rows = if partitioning.placement == Placement::Everywhere { rows } else { by_key.map(|by| by.most_rows).or(rows) };
        let mut input =
            Input { placement: partitioning.placement, limited: false, operators: 1, rows, bytes, most_rows, by_key: by_key.is_some(), whole: None };

        let (mut down, mut up, mut why) = (vec![], vec![], None);
        for filter in scan.filters.iter().cloned() {
            match check(&filter, plan.schema(), self.registry) {
                Ok(()) if self.policy != Pushdown::Raw => down.push(filter),
                refused => {
                    why = why.or(refused.err());
                    up.push(filter);
                }
            }
        }
        if let Some(predicate) = conjunction(down) {
            plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?);
            input.operators += 1;
        }
        let Some(predicate) = conjunction(up) else {
            if extra {
                plan = project(plan, &scan)?;
                input.operators += 1;
            }
            // A scan's fetch is a hint that the limit above it repeats.
            if let (Some(rows), true) = (scan.fetch, self.policy != Pushdown::Raw) {
                plan = limited(plan, rows)?;
                input.limited = input.placement == Placement::Spread;
                input.operators += 1;
            }
            input.whole = by_key.and_then(|by| Whole::of_scan(by, plan.schema()));
            return Ok(Piece::Below(Box::new(Below { plan, table: scan.table_name, stored: stored_as, input, joined: None, with: Vec::new() })));
        };
        // Some filters stay: they go above the scan, and the columns that only they need are dropped after them.
        let below = Below { plan, table: scan.table_name.clone(), stored: stored_as, input, joined: None, with: Vec::new() };
        let (plan, _) = self.above(Piece::Below(Box::new(below)));
        let mut plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?);
        let why = why.filter(|_| self.policy != Pushdown::Raw);
        self.note(&plan, why.as_deref().unwrap_or("cut=raw sends only scans down"));
        if extra {
            plan = project(plan, &scan)?;
        }
        Ok(Piece::Above(plan, true))
    }
}

/// `plan` with the columns that `scan` gives.
fn project(plan: LogicalPlan, scan: &TableScan) -> DfResult<LogicalPlan> {
    let columns = scan.projected_schema.columns().into_iter().map(Expr::Column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?))
}

fn limited(plan: LogicalPlan, rows: usize) -> DfResult<LogicalPlan> {
    let rows = i64::try_from(rows).unwrap_or(i64::MAX);
    Ok(LogicalPlan::Limit(Limit { skip: None, fetch: Some(Box::new(lit(rows))), input: Arc::new(plan) }))
}

/// Whether `plan` is already a limit of exactly `rows` rows.
fn fetches(plan: &LogicalPlan, rows: usize) -> bool {
    matches!(plan, LogicalPlan::Limit(l) if l.skip.is_none() && matches!(l.get_fetch_type(), Ok(FetchType::Literal(Some(n))) if n == rows))
}
