//! Recognises kinds of `SELECT` that are not planned as a whole.

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{self, GroupByExpr, Select, SelectItem, SetExpr, TableFactor};

/// The `SELECT` of a statement that is one, with nothing but results, tables, a condition, groups and a limit.
pub(crate) fn plain_select(statement: &mut Statement) -> Option<&mut Select> {
    let Statement::Statement(statement) = statement else { return None };
    let ast::Statement::Query(query) = statement.as_mut() else { return None };
    let plain = query.with.is_none() && query.order_by.is_none() && query.pipe_operators.is_empty() && query.for_clause.is_none() && query.locks.is_empty();
    let SetExpr::Select(select) = query.body.as_mut() else { return None };
    let nothing_else = select.distinct.is_none()
        && select.top.is_none()
        && select.exclude.is_none()
        && select.into.is_none()
        && select.lateral_views.is_empty()
        && select.prewhere.is_none()
        && select.connect_by.is_empty()
        && select.cluster_by.is_empty()
        && select.distribute_by.is_empty()
        && select.sort_by.is_empty()
        && select.having.is_none()
        && select.named_window.is_empty()
        && select.qualify.is_none()
        && select.value_table_mode.is_none();
    (plain && nothing_else).then_some(select)
}

/// Whether it reads one table, under the table's own names of columns.
pub(crate) fn is_of_one_table(select: &Select) -> bool {
    match select.from.as_slice() {
        [from] => {
            from.joins.is_empty()
                && matches!(&from.relation, TableFactor::Table { args: None, alias, .. } if alias.as_ref().is_none_or(|a| a.columns.is_empty()))
        }
        _ => false,
    }
}

/// Whether it has no groups.
pub(crate) fn is_ungrouped(select: &Select) -> bool {
    matches!(&select.group_by, GroupByExpr::Expressions(by, with) if by.is_empty() && with.is_empty())
}

/// The results of a list of more than `short`, each an expression of its own, taken out of the [`plain_select`] of
/// `statement` if that fits `also`. [`put_list`] puts them back.
pub(crate) fn take_list(statement: &mut Statement, short: usize, also: impl Fn(&Select) -> bool) -> Option<Vec<SelectItem>> {
    let select = plain_select(statement)?;
    let listed = |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
    let long = select.projection.len() > short && select.projection.iter().all(listed) && also(select);
    long.then(|| std::mem::take(&mut select.projection))
}

/// Puts results into the [`plain_select`] of `statement`.
pub(crate) fn put_list(statement: &mut Statement, results: Vec<SelectItem>) -> Option<()> {
    plain_select(statement)?.projection = results;
    Some(())
}
