//! Rewriting a node's expressions without changing what its columns are called.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// `node` with `rewrite` applied to all parts of its expressions, from the leaves up. Columns keep their names.
pub(crate) fn map_expressions(node: LogicalPlan, mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>) -> Result<Transformed<LogicalPlan>> {
    map_whole(node, |e| e.transform_up(&mut rewrite))
}

/// `node` with `rewrite` applied to each of its expressions as a whole. Columns keep their names.
pub(crate) fn map_whole(node: LogicalPlan, mut rewrite: impl FnMut(Expr) -> Result<Transformed<Expr>>) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    node.map_expressions(|e| {
        let name = names.save(&e);
        Ok(rewrite(e)?.update_data(|e| name.restore(e)))
    })
}
