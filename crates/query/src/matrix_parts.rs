//! Matrices of several parts: a scan of one becomes the union of scans of its parts.
//!
//! An append adds the new cells as a part of each matrix, a table of its own with partitions of its own
//! (`docs/internals/versions.md`). The rows of all parts together are the matrix. To drives each part is the matrix, by
//! its name: a ticket names the one part that a sub-plan reads. So an aggregate over the matrix goes down to each part,
//! and its states merge on the host ([`skytether_plan::cut`]).

use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Filter, LogicalPlan, SubqueryAlias, TableScan, TableScanBuilder, Union};
use skytether_common::{Error, Result};
use skytether_expression::MomentsSpec;
use skytether_plan::error::from_datafusion;

use crate::tables::{Named, NamedTables};

/// `plan` with unions in the place of scans of matrices of several parts; also in its subqueries.
pub(crate) fn united(plan: LogicalPlan, tables: &NamedTables) -> Result<LogicalPlan> {
    if !tables.has_parts() {
        return Ok(plan);
    }
    let united = plan.transform_down_with_subqueries(|node| match node {
        LogicalPlan::TableScan(scan) => match tables.get(&scan.table_name).filter(|named| !named.parts.is_empty()) {
            Some(named) => Ok(Transformed::new(union(&scan, named, tables)?, true, TreeNodeRecursion::Jump)),
            None => Ok(Transformed::no(LogicalPlan::TableScan(scan))),
        },
        other => Ok(Transformed::no(other)),
    });
    united.map(|done| done.data).map_err(from_datafusion)
}

/// The union of the parts of the matrix that `scan` reads, under its name.
fn union(scan: &TableScan, whole: &Named, tables: &NamedTables) -> datafusion::error::Result<LogicalPlan> {
    let shown = scan.source.schema();
    let branch = |reference: &TableReference| {
        let part = tables.get(reference).ok_or_else(|| datafusion::error::DataFusionError::Internal(format!("{reference} is no part of a matrix")))?;
        let builder = TableScanBuilder::new(reference.clone(), part.source_of(&shown)).with_projection(scan.projection.clone());
        Ok(Arc::new(LogicalPlan::TableScan(builder.build()?)))
    };
    let branches = whole.parts.iter().map(branch).collect::<datafusion::error::Result<Vec<_>>>()?;
    let union = LogicalPlan::Union(Union::try_new(branches)?);
    let named = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(union), scan.table_name.clone())?);
    // Filters are above a scan before the rules for plans have moved them; they move into the branches from here.
    match conjunction(scan.filters.iter().cloned()) {
        Some(predicate) => Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(named))?)),
        None => Ok(named),
    }
}

/// Checks that the rows that the host itself aggregates for `spec` have the blocks of its matrix. A spec may be about
/// another matrix than the rows are of, and the two may have other parts.
///
/// # Errors
/// `Unsupported`, with what to do.
pub(crate) fn check_blocks<'a>(spec: &MomentsSpec, read: impl Iterator<Item = &'a Arc<Named>>) -> Result<()> {
    for named in read.filter(|named| named.record.name == spec.dataset) {
        let (own, asked) = (named.record.blocks(&named.bound)?, named.record.blocks(&spec.matrix)?);
        if own.is_some() && own != asked {
            return Err(Error::unsupported(format!(
                "cells were appended to {} in other parts of {} than of {}, which the groups are about: run the query with cut=\"full\"",
                spec.dataset, named.bound, spec.matrix
            )));
        }
    }
    Ok(())
}
