//! Keys of `ORDER BY` that name a result of a grouped query.
//!
//! DataFusion gives a cast the name of the column within. In
//! `SELECT CAST(t.a AS VARCHAR) AS x, t.b AS a FROM t GROUP BY 1, 2 ORDER BY a` it takes `a` for that cast, and sorts
//! by `x`. Such a query becomes `SELECT * FROM (SELECT ... GROUP BY ...) ORDER BY a`, where `a` is nothing else.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, Ident, OrderByExpr, OrderByKind, Query, Select, SelectItem, SetExpr, TableFactor, TableWithJoins, Value, VisitMut, VisitorMut,
    WildcardAdditionalOptions, visit_expressions,
};

use crate::identifiers::normal;
use crate::select_shape::is_ungrouped;

/// Sets queries apart from their `ORDER BY` where DataFusion would take one of its keys for a cast.
pub(crate) fn set_apart(statement: &mut Statement) {
    if let Statement::Statement(statement) = statement {
        let _ = VisitMut::visit(statement.as_mut(), &mut Keys);
    }
}

struct Keys;

impl VisitorMut for Keys {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let SetExpr::Select(select) = query.body.as_mut()
            && let Some(OrderByKind::Expressions(keys)) = query.order_by.as_mut().map(|by| &mut by.kind)
            && !is_ungrouped(select)
        {
            keys.iter_mut().for_each(|key| by_name(select, &mut key.expr));
            let Some(names) = names(select, keys) else { return ControlFlow::Continue(()) };
            keys.iter_mut().zip(names).for_each(|(key, name)| key.expr = Expr::Identifier(name));
            let grouped = SetExpr::Select(Box::new(std::mem::replace(select, everything(select))));
            if let Some(TableFactor::Derived { subquery, .. }) = select.from.first_mut().map(|from| &mut from.relation) {
                *subquery.body = grouped;
            }
        }
        ControlFlow::Continue(())
    }
}

/// Names a result that `key` repeats: DataFusion computes a repeated aggregate again, under the name that the result
/// may have. A bare name stays, which may be that of another result.
fn by_name(select: &Select, key: &mut Expr) {
    let repeats = |item: &&SelectItem| matches!(item, SelectItem::ExprWithAlias { expr, .. } if expr == key);
    if !matches!(key, Expr::Identifier(_) | Expr::Value(_))
        && let Some(SelectItem::ExprWithAlias { alias, .. }) = select.projection.iter().find(repeats)
    {
        *key = Expr::Identifier(alias.clone());
    }
}

/// The results that `keys` name; `None` where DataFusion takes none of them for a cast, or one is no named result.
fn names(select: &Select, keys: &[OrderByExpr]) -> Option<Vec<Ident>> {
    let cast = cast_columns(select);
    if cast.is_empty() {
        return None;
    }
    let names = keys.iter().map(|key| named(select, &key.expr)).collect::<Option<Vec<_>>>()?;
    names.iter().any(|name| cast.contains(&normal(name))).then_some(names)
}

/// The names of columns that `select` casts.
fn cast_columns(select: &Select) -> HashSet<String> {
    let mut names = HashSet::new();
    let _ = visit_expressions(select, |e| {
        if let Expr::Cast { expr, .. } = e {
            match expr.as_ref() {
                Expr::Identifier(name) => drop(names.insert(normal(name))),
                Expr::CompoundIdentifier(parts) => names.extend(parts.last().map(normal)),
                _ => {}
            }
        }
        ControlFlow::<()>::Continue(())
    });
    names
}

/// The name of the result of `select` that `key` names, or whose place it is.
fn named(select: &Select, key: &Expr) -> Option<Ident> {
    let mut aliases = select.projection.iter().map(|item| match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(alias),
        _ => None,
    });
    match key {
        Expr::Identifier(name) => aliases.flatten().find(|alias| normal(alias) == normal(name)).cloned(),
        Expr::Value(value) => match &value.value {
            Value::Number(place, _) => aliases.nth(place.parse::<usize>().ok()?.checked_sub(1)?)?.cloned(),
            _ => None,
        },
        _ => None,
    }
}

/// `SELECT * FROM (...)`, with an empty query within, in the form of `like`.
fn everything(like: &Select) -> Select {
    let nothing = Query {
        with: None,
        body: Box::new(SetExpr::Values(datafusion::sql::sqlparser::ast::Values { explicit_row: false, value_keyword: false, rows: Vec::new() })),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    };
    let relation = TableFactor::Derived { lateral: false, subquery: Box::new(nothing), alias: None, sample: None };
    Select {
        distinct: None,
        top: None,
        projection: vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())],
        exclude: None,
        into: None,
        from: vec![TableWithJoins { relation, joins: Vec::new() }],
        lateral_views: Vec::new(),
        prewhere: None,
        selection: None,
        connect_by: Vec::new(),
        group_by: GroupByExpr::Expressions(Vec::new(), Vec::new()),
        cluster_by: Vec::new(),
        distribute_by: Vec::new(),
        sort_by: Vec::new(),
        having: None,
        named_window: Vec::new(),
        qualify: None,
        ..like.clone()
    }
}
