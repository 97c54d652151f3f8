//! What is still known of the partitioning of tables by key in a part of a plan.
//!
//! Which partition a row belongs to is the subject of [`skytether_partitioning`].

use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType};
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, Join, LogicalPlan};
use skytether_partitioning::{ByKey, Key, KeyType};
use uuid::Uuid;

use crate::opaque_values::within_opaque;

/// The partitioning that is still visible in a part of a plan: all rows with equal keys are on one drive, which is
/// known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// For each key the columns that hold it; at least one each.
    pub columns: Vec<Vec<Column>>,
    /// The keys' logical types.
    pub types: Vec<KeyType>,
    /// The drive of each partition.
    pub drives: Arc<[Uuid]>,
}

impl Whole {
    /// Of a scan of a table that is called `table` and has these columns; `None` where a key is not among them.
    pub(crate) fn of_scan(by: &ByKey, schema: &DFSchema) -> Option<Self> {
        let column = |key: &Key| {
            let (qualifier, field) = schema.iter().find(|(_, field)| *field.name() == key.column)?;
            Some(vec![Column::from((qualifier, field))])
        };
        let columns = by.keys.iter().map(column).collect::<Option<_>>()?;
        Some(Self { columns, types: by.keys.iter().map(|k| k.of).collect(), drives: Arc::clone(&by.drives) })
    }

    /// The partitioning of a part whose columns are `exprs`, one for one under the names of `to`; `None` where a key is
    /// no longer among them.
    pub(crate) fn through(&self, exprs: &[Expr], from: &DFSchema, to: &DFSchema) -> Option<Self> {
        let columns = self.columns.iter().map(|of_key| {
            let found = exprs.iter().zip(to.iter()).filter(|(expr, _)| key_of(expr, from).is_some_and(|c| of_key.contains(c)));
            let found: Vec<_> = found.map(|(_, (qualifier, field))| Column::from((qualifier, field))).collect();
            (!found.is_empty()).then_some(found)
        });
        Some(Self { columns: columns.collect::<Option<_>>()?, ..self.clone() })
    }

    /// Of a part with the same columns in the same order under the names of `to`.
    pub(crate) fn renamed(&self, from: &DFSchema, to: &DFSchema) -> Option<Self> {
        let exprs: Vec<_> = from.columns().into_iter().map(Expr::Column).collect();
        self.through(&exprs, from, to)
    }

    /// The partitioning of a part with `node` on top, which goes down whole.
    pub(crate) fn above(&self, node: &LogicalPlan) -> Option<Self> {
        let inputs = node.inputs();
        let from = inputs.first()?.schema();
        match node {
            LogicalPlan::Projection(p) => self.through(&p.expr, from, &p.schema),
            // Groups come first.
            LogicalPlan::Aggregate(a) => self.through(&a.group_expr, from, &a.schema),
            LogicalPlan::SubqueryAlias(_) | LogicalPlan::Window(_) => self.renamed(from, node.schema()),
            _ => Some(self.clone()),
        }
    }

    /// Whether rows for which all of `exprs` are equal are on one drive.
    pub(crate) fn holds(&self, exprs: &[Expr], schema: &DFSchema) -> bool {
        self.columns.iter().all(|of_key| exprs.iter().any(|e| key_of(e, schema).is_some_and(|c| of_key.contains(c))))
    }

    /// Of `join`, whose sides are partitioned like `left` and `right`, where each pair of rows that
    /// it joins is on one drive.
    ///
    /// # Errors
    /// Why they are not, in words.
    pub(crate) fn of_join(join: &Join, left: Option<&Self>, right: Option<&Self>) -> std::result::Result<Self, &'static str> {
        const OTHERS: &str = "its sides are partitioned by other columns than it joins";
        let (Some(left), Some(right)) = (left, right) else { return Err(OTHERS) };
        if left.drives != right.drives {
            return Err("its sides are partitioned over different drives");
        }
        if left.types != right.types {
            return Err("its sides are partitioned by keys of different types");
        }
        let pairs: Vec<_> = join.on.iter().map(|(l, r)| (key_of(l, join.left.schema()), key_of(r, join.right.schema()))).collect();
        let paired = |l: &[Column], r: &[Column]| pairs.iter().any(|(a, b)| a.is_some_and(|a| l.contains(a)) && b.is_some_and(|b| r.contains(b)));
        if !left.columns.iter().zip(&right.columns).all(|(l, r)| paired(l, r)) {
            return Err(OTHERS);
        }
        let columns = match join.join_type {
            // Where one of them is NULL because it has no match, the other determines the drive.
            JoinType::Inner => left.columns.iter().zip(&right.columns).map(|(l, r)| l.iter().chain(r).cloned().collect()).collect(),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => left.columns.clone(),
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti => right.columns.clone(),
            JoinType::Full | JoinType::LeftMark | JoinType::RightMark => Vec::new(),
        };
        Ok(Self { columns, ..left.clone() })
    }

    /// This, if any columns are known to determine the drive.
    pub(crate) fn told(self) -> Option<Self> {
        (!self.columns.is_empty()).then_some(self)
    }
}

/// The column whose values `expr` gives, as far as keys are concerned: under another name, or in another type
/// of the same logical type.
fn key_of<'e>(expr: &'e Expr, schema: &DFSchema) -> Option<&'e Column> {
    match expr {
        Expr::Alias(alias) => key_of(&alias.expr, schema),
        Expr::Column(column) => Some(column),
        // A cast that can't keep a value fails.
        Expr::Cast(Cast { expr, field }) => {
            let Expr::Column(column) = expr.as_ref() else { return None };
            let from = KeyType::of(&expr.get_type(schema).ok()?).ok()?;
            (KeyType::of(field.data_type()).ok()? == from).then_some(column)
        }
        Expr::ScalarFunction(_) => key_of(within_opaque(expr)?, schema),
        _ => None,
    }
}
