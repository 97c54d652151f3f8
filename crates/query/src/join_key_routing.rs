//! Routes the join filters of a join to every scan below that has one of its keys.
//!
//! DataFusion pushes the filter of a hash join ([`skytether_exec::join_filter`]) down its probe side as a whole. Where
//! the keys come from several tables, it stops at the join of those. But rows of the probe side that can't match may be
//! left out by each key alone. So this rule follows each key of each join through filters, projections, groups and
//! other joins. Where an inner or semi join below makes two columns equal, it follows both.
//!
//! Keys that are lists, structs or maps go nowhere: see `skytether_plan::barriers`.
//!
//! No deadlock is possible: a scan with a key waits for the join's other side, and that side only waits for joins
//! further up.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, PhysicalExpr, ReplaceChildrenOptions};
use skytether_plan::physical_rule::PhysicalRule;

use skytether_exec::scan::DriveScanExec;

type Plan = Arc<dyn ExecutionPlan>;

/// A column that no row has.
const NOWHERE: usize = usize::MAX;

/// Sends the keys of joins to all scans that they are about.
pub(crate) fn send_keys_apart() -> Arc<PhysicalRule> {
    PhysicalRule::new("send_keys_apart", |node| {
        let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(None) };
        let Some(filter) = join.dynamic_expressions_produced().pop() else { return Ok(None) };
        let probe: Vec<_> = join.on().iter().map(|(_, probe)| Arc::clone(probe)).collect();
        let schema = join.right().schema();
        for key in &probe {
            if key.data_type(&schema)?.is_nested() {
                return Ok(None);
            }
        }
        let places: Places = probe.iter().map(|key| column(key).map(|_| Arc::clone(key))).collect();
        let keys = Keys { filter: &filter, probe: &probe };
        let Some(right) = keys.below(join.right(), &places)? else { return Ok(None) };
        replaced(node, vec![Arc::clone(join.left()), right]).map(Some)
    })
}

/// For each key the column of an operator's rows that it is, in another type perhaps.
type Places = Vec<Option<Arc<dyn PhysicalExpr>>>;

/// The keys of one join.
struct Keys<'a> {
    filter: &'a Arc<dyn PhysicalExpr>,
    /// As the join has them.
    probe: &'a [Arc<dyn PhysicalExpr>],
}

impl Keys<'_> {
    /// `node` with the filter at the scans below it that have a key; `None` where there is none.
    fn below(&self, node: &Plan, places: &Places) -> Result<Option<Plan>> {
        if places.iter().all(Option::is_none) {
            return Ok(None);
        }
        if let Some(scan) = node.downcast_ref::<DriveScanExec>() {
            return self.at(scan, places);
        }
        if let Some(join) = node.downcast_ref::<HashJoinExec>() {
            let (left, right) = sides(join, places);
            let (l, r) = (self.below(join.left(), &left)?, self.below(join.right(), &right)?);
            if l.is_none() && r.is_none() {
                return Ok(None);
            }
            let children = vec![l.unwrap_or_else(|| Arc::clone(join.left())), r.unwrap_or_else(|| Arc::clone(join.right()))];
            return replaced(node, children).map(Some);
        }
        let Some(places) = through(node, places) else { return Ok(None) };
        let mut changed = false;
        let children = node.children().into_iter().map(|child| {
            let better = self.below(child, &places)?;
            changed |= better.is_some();
            Ok(better.unwrap_or_else(|| Arc::clone(child)))
        });
        let children = children.collect::<Result<Vec<_>>>()?;
        if changed { replaced(node, children).map(Some) } else { Ok(None) }
    }

    fn at(&self, scan: &DriveScanExec, places: &Places) -> Result<Option<Plan>> {
        if !scan.takes_filters() || scan.filters().iter().any(|filter| filter.expression_id() == self.filter.expression_id()) {
            return Ok(None);
        }
        // What the condition says of keys that are elsewhere says nothing here.
        let elsewhere = |key| moved(key, &(Arc::new(Column::new("elsewhere", NOWHERE)) as _));
        let keys = self.probe.iter().zip(places).map(|(key, place)| place.clone().unwrap_or_else(|| elsewhere(key)));
        let filter = Arc::clone(self.filter).with_new_children(keys.collect())?;
        Ok(Some(Arc::new(scan.with_filters(vec![filter]))))
    }
}

/// The columns of `node`'s input that the columns of its rows come from. `None` where dropping input rows is not as
/// good as dropping the rows made of them.
fn through(node: &Plan, places: &Places) -> Option<Places> {
    if node.fetch().is_some() {
        // Other rows would take the place of the dropped ones.
        return None;
    }
    let mapped = |of: &dyn Fn(usize) -> Option<Arc<dyn PhysicalExpr>>| {
        let one = |place: &Arc<dyn PhysicalExpr>| {
            let below = of(column(place)?)?;
            column(&below).map(|_| moved(place, &below))
        };
        Some(places.iter().map(|place| one(place.as_ref()?)).collect())
    };
    let child = || node.children().first().map(|child| child.schema());
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        return mapped(&|at| Some(Arc::clone(&projection.expr().get(at)?.expr)));
    }
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        let schema = child()?;
        return mapped(&|at| named(&schema, filter.projection().as_ref().map_or(Some(at), |kept| kept.get(at).copied())?));
    }
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        // A whole group is left out or none of it.
        let groups = aggregate.group_expr();
        let usual = groups.is_single() && aggregate.limit_options().is_none();
        return if usual { mapped(&|at| Some(Arc::clone(&groups.expr().get(at)?.0))) } else { None };
    }
    let hands_on = node.is::<CooperativeExec>()
        || node.is::<RepartitionExec>()
        || node.is::<CoalescePartitionsExec>()
        || node.is::<SortExec>()
        || node.is::<SortPreservingMergeExec>()
        || node.is::<UnionExec>();
    hands_on.then(|| places.clone())
}

/// The columns of both inputs of a join that the columns of its rows come from.
fn sides(join: &HashJoinExec, places: &Places) -> (Places, Places) {
    let width = join.left().schema().fields().len();
    let (left, right) = match join.join_type() {
        // A row of a semi join has its like on the other side, and needs no other of its rows.
        JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi => (true, true),
        JoinType::Left | JoinType::LeftAnti | JoinType::LeftMark => (true, false),
        JoinType::Right | JoinType::RightAnti | JoinType::RightMark => (false, true),
        JoinType::Full => (false, false),
    };
    // Semi, anti and mark joins give the columns of one side; others give the left side's first.
    let shift = if matches!(join.join_type(), JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark) { 0 } else { width };
    let equal = |at: usize, from_left: bool| {
        let pairs = join.on().iter().filter_map(|(l, r)| Some((plain(l)?, plain(r)?)));
        pairs.map(|(l, r)| if from_left { (l, r) } else { (r, l) }).find(|(here, _)| *here == at).map(|(_, there)| there)
    };
    let one = |place: Option<&Arc<dyn PhysicalExpr>>| -> Option<(Option<usize>, Option<usize>)> {
        let at = column(place?)?;
        let at = join.projection.as_ref().map_or(Some(at), |kept| kept.get(at).copied())?;
        let (mut l, mut r) = (None, None);
        if at < shift {
            l = (left && at < width).then_some(at);
        } else {
            r = (right && at - shift < join.right().schema().fields().len()).then_some(at - shift);
        }
        if left && right {
            l = l.or_else(|| equal(r?, false));
            r = r.or_else(|| equal(l?, true));
        }
        Some((l, r))
    };
    let schemas = (join.left().schema(), join.right().schema());
    let both = places.iter().map(|place| {
        let (l, r) = one(place.as_ref()).unwrap_or_default();
        let at = |schema, at: Option<usize>| Some(moved(place.as_ref()?, &named(schema, at?)?));
        (at(&schemas.0, l), at(&schemas.1, r))
    });
    both.unzip()
}

fn replaced(node: &Plan, children: Vec<Plan>) -> Result<Plan> {
    Arc::clone(node).replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// The column that an expression is, as it is.
fn plain(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// Column `at` of `schema`.
fn named(schema: &SchemaRef, at: usize) -> Option<Arc<dyn PhysicalExpr>> {
    Some(Arc::new(Column::new(schema.fields().get(at)?.name(), at)))
}

/// The column that `place` is, in another type perhaps.
fn column(place: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    match place.downcast_ref::<CastExpr>() {
        Some(cast) => column(cast.expr()),
        None => plain(place),
    }
}

/// `place` with `below` for its column.
fn moved(place: &Arc<dyn PhysicalExpr>, below: &Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    match place.downcast_ref::<CastExpr>() {
        Some(cast) => Arc::new(CastExpr::new_with_target_field(moved(cast.expr(), below), Arc::clone(cast.target_field()), Some(cast.cast_options().clone()))),
        None => Arc::clone(below),
    }
}
