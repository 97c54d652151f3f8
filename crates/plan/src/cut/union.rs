//! Unions in the walk over a plan: operators that can be done in each of the branches first.

use std::sync::Arc;

use datafusion::common::{DFSchema, DataFusionError, Result};
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Union};

use super::piece::{Piece, states, with_input};
use super::walk::Walk;
use crate::classify::{Class, classify};
use crate::split::Halves;
use crate::super_plan;
use skytether_common::Pushdown;

impl Walk<'_> {
    /// The plan of `node` over a union, as far as it can be done in each branch: states of an aggregate, the first rows
    /// of a sort. `None` where it is another operator, or has nothing that drives can do.
    pub(crate) fn over_union(&mut self, node: &LogicalPlan) -> Result<Option<Piece>> {
        let input = match node {
            LogicalPlan::Aggregate(aggregate) => &aggregate.input,
            LogicalPlan::Sort(sort) if sort.fetch.is_some() => &sort.input,
            _ => return Ok(None),
        };
        if matches!(self.policy, Pushdown::Raw | Pushdown::Filter) {
            return Ok(None);
        }
        let Some(inputs) = branches(input)? else { return Ok(None) };
        if !inputs.iter().any(|branch| self.of_one_table(branch)) {
            return Ok(None);
        }
        let pieces = inputs.into_iter().map(|branch| self.plan(branch)).collect::<Result<Vec<_>>>()?;
        let drives = pieces.iter().any(|piece| matches!(piece, Piece::Below(_) | Piece::Above(_, true)));
        let goes = |walk: &Self, piece: &Piece| match piece {
            Piece::Below(below) => match classify(node, &below.input, walk.policy, walk.registry) {
                Class::Host(why) => Err(why),
                _ => Ok(()),
            },
            Piece::Above(plan, _) => Err(super_plan::follows(plan)),
        };
        let halves = match node {
            LogicalPlan::Aggregate(aggregate) if pieces.iter().any(|piece| goes(self, piece).is_ok()) => {
                // Merging must give the same types; the columns of any branch have them.
                let tried = Halves::of(aggregate, self.registry)?.ok();
                match tried {
                    Some(halves) if halves.clone().merged(halves.below(aggregate.input.as_ref().clone())?)?.is_some() => Some(halves),
                    _ => None,
                }
            }
            _ => None,
        };
        let mut done = vec![];
        for piece in pieces {
            let may = goes(self, &piece);
            let plan = match (piece, &halves, may) {
                (Piece::Below(below), Some(halves), Ok(())) => self.above(Piece::Below(Box::new(states(halves, *below)?))).0,
                (Piece::Below(below), None, Ok(())) if matches!(node, LogicalPlan::Sort(_)) => {
                    let plan = with_input(node.clone(), below.plan.clone())?;
                    self.above(Piece::Below(Box::new(below.reduced(plan)))).0
                }
                (piece, halves, may) => {
                    let (plan, drives) = self.above(piece);
                    if let (Err(why), true) = (may, drives) {
                        self.note(node, &why);
                    }
                    match halves {
                        Some(halves) => halves.below(plan)?,
                        None => plan,
                    }
                }
            };
            done.push(plan);
        }
        let all = of(done)?;
        let plan = match halves {
            Some(halves) => halves.merged(all)?.ok_or_else(|| DataFusionError::Internal("merging states over a union gave other types than before".into()))?,
            None => self.subqueries(with_input(node.clone(), named(all, input.schema())?)?)?.0,
        };
        Ok(Some(Piece::Above(plan, drives)))
    }

    /// Whether `plan` reads one table on drives and nothing else, so that it may go down as a whole.
    fn of_one_table(&self, plan: &LogicalPlan) -> bool {
        let mut at = plan;
        loop {
            match (at, at.inputs().as_slice()) {
                (LogicalPlan::TableScan(scan), _) => return self.tables.partitioning(&scan.table_name).is_some(),
                (_, [input]) => at = input,
                _ => return false,
            }
        }
    }
}

/// The branches of the union below `input`, each with the operators between `input` and the union; `None`
/// where there is no union.
fn branches(input: &LogicalPlan) -> Result<Option<Vec<LogicalPlan>>> {
    let mut between = vec![];
    let mut at = input;
    let union = loop {
        match at {
            LogicalPlan::Union(union) => break union,
            LogicalPlan::SubqueryAlias(alias) => {
                between.push(at);
                at = &alias.input;
            }
            LogicalPlan::Projection(projection) => {
                between.push(at);
                at = &projection.input;
            }
            _ => return Ok(None),
        }
    };
    let branches = union.inputs.iter().map(|branch| {
        let mut plan = named(branch.as_ref().clone(), &union.schema)?;
        for node in between.iter().rev() {
            plan = with_input((*node).clone(), plan)?;
        }
        Ok(plan)
    });
    branches.collect::<Result<Vec<_>>>().map(Some)
}

/// `plan` with the names of the columns of `wanted`: a union's are those of its first branch.
fn named(plan: LogicalPlan, wanted: &DFSchema) -> Result<LogicalPlan> {
    let same = plan.schema().iter().zip(wanted.iter()).all(|((qa, a), (qb, b))| qa == qb && a.name() == b.name());
    if same {
        return Ok(plan);
    }
    let columns = plan.schema().columns().into_iter().zip(wanted.iter());
    let columns = columns.map(|(from, (qualifier, field))| Expr::Alias(Alias::new(Expr::Column(from), qualifier.cloned(), field.name())));
    Ok(LogicalPlan::Projection(Projection::try_new(columns.collect(), Arc::new(plan))?))
}

/// All rows of `branches`, which have the same columns.
fn of(branches: Vec<LogicalPlan>) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Union(Union::try_new(branches.into_iter().map(Arc::new).collect())?))
}
