//! Clauses that the parser takes and DataFusion's planner passes over: answered here, or refused by name.
//!
//! | clause | here |
//! |---|---|
//! | `FROM t` without `SELECT` | `SELECT *` |
//! | `OVER (w ...)` | has what the named window `w` has |
//! | `HAVING` without groups and aggregates | one group, of all rows |
//! | `TABLESAMPLE`, `PREWHERE`, `FOR UPDATE`, `WITH ROLLUP` and others | refused |
//! | `FILTER`, `DISTINCT`, `ORDER BY`, `IGNORE NULLS` in calls that take none | refused |
//!
//! A clause that is passed over gives an answer to another question.

use std::ops::ControlFlow;

use datafusion::execution::session_state::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArguments, GroupByExpr, GroupByWithModifier, Ident, LimitClause, NamedWindowDefinition, NamedWindowExpr, Query,
    Select, SelectFlavor, SelectItem, SelectItemQualifiedWildcardKind, TableAlias, TableFactor, Visit, VisitMut, Visitor, VisitorMut,
    WildcardAdditionalOptions, WindowSpec, WindowType,
};
use skytether_common::{Error, Result};

use crate::identifiers::normal;
use crate::select_shape::is_ungrouped;

/// Functions over windows that heed `IGNORE NULLS`.
const HEED_NULLS: [&str; 6] = ["lead", "lag", "first_value", "last_value", "nth_value", "array_agg"];

/// Answers or refuses what the planner would pass over in `statement`.
///
/// # Errors
/// `Unsupported`, with the clause and what to write instead.
pub(crate) fn heed(statement: &mut Statement, state: &SessionState) -> Result<()> {
    let Statement::Statement(statement) = statement else { return Ok(()) };
    match VisitMut::visit(statement.as_mut(), &mut Heed { state }) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Heed<'a> {
    state: &'a SessionState,
}

impl VisitorMut for Heed<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        found(in_query(query))
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        if matches!(select.flavor, SelectFlavor::FromFirstNoSelect) {
            select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
            select.flavor = SelectFlavor::FromFirst;
        }
        let ungrouped = is_ungrouped(select);
        if select.having.is_some() && ungrouped && !aggregates(&select.projection, self.state) && !aggregates(&select.having, self.state) {
            select.group_by = GroupByExpr::Expressions(vec![Expr::GroupingSets(vec![vec![]])], vec![]);
        }
        found(in_select(select).or_else(|| resolve_windows(select)))
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        found(in_relation(factor))
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match expr {
            Expr::Function(call) => found(in_call(call, self.state)),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn found(refused: Option<(&str, &str)>) -> ControlFlow<Error> {
    match refused {
        Some((clause, instead)) => ControlFlow::Break(Error::unsupported(format!("{clause} is not supported: {instead}"))),
        None => ControlFlow::Continue(()),
    }
}

/// A clause that is not supported, and what to do.
type Refused = Option<(&'static str, &'static str)>;

fn first(clauses: &[(bool, &'static str, &'static str)]) -> Refused {
    clauses.iter().find(|(is, ..)| *is).map(|(_, clause, instead)| (*clause, *instead))
}

fn in_query(query: &Query) -> Refused {
    let by = matches!(&query.limit_clause, Some(LimitClause::LimitOffset { limit_by, .. }) if !limit_by.is_empty());
    first(&[
        (!query.locks.is_empty(), "FOR UPDATE or FOR SHARE", "SQL only reads here, and a query reads one version of a data set; leave it out"),
        (query.for_clause.is_some(), "FOR XML or FOR JSON", "leave it out; clients write results in other formats"),
        (query.settings.is_some(), "SETTINGS", "leave it out"),
        (query.format_clause.is_some(), "FORMAT", "leave it out; clients write results in other formats"),
        (by, "LIMIT BY", "number the rows with row_number() OVER (PARTITION BY ...) and keep the first with QUALIFY"),
    ])
}

fn in_select(select: &Select) -> Refused {
    let modifiers = match &select.group_by {
        GroupByExpr::All(modifiers) | GroupByExpr::Expressions(_, modifiers) => modifiers.as_slice(),
    };
    let ilike = select.projection.iter().any(|item| match item {
        SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) => options.opt_ilike.is_some(),
        _ => false,
    });
    // The wildcard of a struct reads as one of a relation.
    let of_value = select.projection.iter().any(|item| matches!(item, SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::Expr(_), _)));
    let global = select.from.iter().flat_map(|from| &from.joins).any(|join| join.global);
    let modifier = |is: fn(&GroupByWithModifier) -> bool| modifiers.iter().any(is);
    first(&[
        (select.prewhere.is_some(), "PREWHERE", "write the condition in WHERE"),
        (!select.connect_by.is_empty(), "CONNECT BY", "write WITH RECURSIVE"),
        (select.select_modifiers.is_some(), "a modifier after SELECT", "leave it out"),
        (select.value_table_mode.is_some(), "SELECT AS STRUCT or AS VALUE", "write named_struct(...)"),
        (select.exclude.is_some(), "EXCLUDE after the list", "write * EXCLUDE (...)"),
        (ilike, "* ILIKE", "name the columns"),
        (of_value, "a wildcard of a value", "name the fields"),
        (global, "GLOBAL JOIN", "write JOIN"),
        (modifier(|m| matches!(m, GroupByWithModifier::Rollup)), "WITH ROLLUP", "write GROUP BY ROLLUP (...)"),
        (modifier(|m| matches!(m, GroupByWithModifier::Cube)), "WITH CUBE", "write GROUP BY CUBE (...)"),
        (modifier(|_| true), "a modifier of GROUP BY", "write GROUP BY GROUPING SETS (...)"),
    ])
}

fn in_relation(factor: &TableFactor) -> Refused {
    const SAMPLE: (&str, &str) = ("TABLESAMPLE", "write WHERE random() < 0.1 for a tenth of the rows");
    const ORDINALITY: (&str, &str) = ("WITH ORDINALITY", "number the rows with row_number() OVER ()");
    let typed = |alias: &Option<TableAlias>| {
        let typed = alias.as_ref().is_some_and(|alias| alias.columns.iter().any(|column| column.data_type.is_some()));
        typed.then_some(("a type in a list of columns", "write the names alone, and CAST the values"))
    };
    match factor {
        TableFactor::Table { alias, with_hints, version, with_ordinality, partitions, json_path, sample, index_hints, args, .. } => first(&[
            (sample.is_some(), SAMPLE.0, SAMPLE.1),
            (*with_ordinality, ORDINALITY.0, ORDINALITY.1),
            (!with_hints.is_empty() || !index_hints.is_empty(), "a hint for a table", "leave it out"),
            (version.is_some(), "a version of a table", "leave it out: queries read the newest version"),
            (!partitions.is_empty(), "PARTITION of a table", "write the condition in WHERE"),
            (json_path.is_some(), "a path into a table", "name the fields after SELECT"),
            (args.as_ref().is_some_and(|args| args.settings.is_some()), "SETTINGS", "leave it out"),
        ])
        .or_else(|| typed(alias)),
        TableFactor::Derived { alias, sample, .. } => first(&[(sample.is_some(), SAMPLE.0, SAMPLE.1)]).or_else(|| typed(alias)),
        TableFactor::Function { alias, with_ordinality, .. } => first(&[(*with_ordinality, ORDINALITY.0, ORDINALITY.1)]).or_else(|| typed(alias)),
        TableFactor::UNNEST { alias, .. } | TableFactor::TableFunction { alias, .. } | TableFactor::NestedJoin { alias, .. } => typed(alias),
        _ => None,
    }
}

fn in_call(call: &Function, state: &SessionState) -> Refused {
    if !matches!(call.parameters, FunctionArguments::None) {
        return Some(("a second list of arguments", "write all arguments in one list"));
    }
    let name = name_of(call);
    let aggregate = state.aggregate_functions().contains_key(&name);
    let (distinct, clauses) = match &call.args {
        FunctionArguments::List(list) => (list.duplicate_treatment == Some(DuplicateTreatment::Distinct), !list.clauses.is_empty()),
        _ => (false, false),
    };
    // Those of the list and of QUALIFY are written out before.
    let named = matches!(&call.over, Some(WindowType::WindowSpec(spec)) if spec.window_name.is_some());
    match &call.over {
        Some(_) => first(&[
            (named, "a window that begins with a name, in ORDER BY", "put the call into the list, and order by its name"),
            (distinct && !aggregate, "DISTINCT in a call of a window function", "read from a subquery with DISTINCT"),
            (call.null_treatment.is_some() && !HEED_NULLS.contains(&name.as_str()), "IGNORE NULLS or RESPECT NULLS in this call", "leave it out"),
        ]),
        None if aggregate => None,
        None => first(&[
            (call.filter.is_some(), "FILTER in a call of a function that is no aggregate", "write CASE WHEN ... THEN ... END"),
            (distinct, "DISTINCT in a call of a function that is no aggregate", "leave it out"),
            (!call.within_group.is_empty(), "WITHIN GROUP in a call of a function that is no aggregate", "leave it out"),
            (clauses || call.null_treatment.is_some(), "a clause in a call of a function that is no aggregate", "write the arguments alone"),
        ]),
    }
}

fn name_of(call: &Function) -> String {
    call.name.0.last().and_then(|part| part.as_ident()).map(normal).unwrap_or_default()
}

/// Whether something calls an aggregate, outside of subqueries.
fn aggregates(of: &impl Visit, state: &SessionState) -> bool {
    struct Calls<'a> {
        state: &'a SessionState,
        depth: usize,
    }
    impl Visitor for Calls<'_> {
        type Break = ();

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.depth += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Function(call) if self.depth == 0 && call.over.is_none() && self.state.aggregate_functions().contains_key(&name_of(call)) => {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    Visit::visit(of, &mut Calls { state, depth: 0 }).is_break()
}

/// Writes the named windows of `select` out where another window begins with one.
fn resolve_windows(select: &mut Select) -> Refused {
    let mut named: Vec<(Ident, WindowSpec)> = Vec::new();
    for NamedWindowDefinition(name, window) in &mut select.named_window {
        let mut spec = match window {
            NamedWindowExpr::WindowSpec(spec) => spec.clone(),
            NamedWindowExpr::NamedWindow(other) => WindowSpec { window_name: Some(other.clone()), partition_by: vec![], order_by: vec![], window_frame: None },
        };
        let alone = matches!(window, NamedWindowExpr::NamedWindow(_));
        if let refused @ Some(_) = write_out(&mut spec, &named, alone) {
            return refused;
        }
        *window = NamedWindowExpr::WindowSpec(spec.clone());
        named.push((name.clone(), spec));
    }
    struct Windows<'a> {
        named: &'a [(Ident, WindowSpec)],
        depth: usize,
    }
    impl VisitorMut for Windows<'_> {
        type Break = (&'static str, &'static str);

        // The windows of a subquery are its own.
        fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
            self.depth += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Self::Break> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Self::Break> {
            if self.depth > 0 {
                return ControlFlow::Continue(());
            }
            let Expr::Function(Function { over: Some(WindowType::WindowSpec(spec)), .. }) = expr else { return ControlFlow::Continue(()) };
            write_out(spec, self.named, false).map_or(ControlFlow::Continue(()), ControlFlow::Break)
        }
    }
    let mut windows = Windows { named: &named, depth: 0 };
    let in_list = VisitMut::visit(&mut select.projection, &mut windows);
    match if in_list.is_break() { in_list } else { VisitMut::visit(&mut select.qualify, &mut windows) } {
        ControlFlow::Break(refused) => Some(refused),
        ControlFlow::Continue(()) => None,
    }
}

/// `window` with what the window that it names has. What both have is refused, as is a frame of the other, unless the
/// name is all there is.
fn write_out(window: &mut WindowSpec, named: &[(Ident, WindowSpec)], alone: bool) -> Refused {
    let name = window.window_name.take()?;
    let Some((_, base)) = named.iter().find(|(known, _)| normal(known) == normal(&name)) else {
        return Some(("a window that begins with a name that is not defined before", "define it in the WINDOW clause, before those that name it"));
    };
    let twice = |own: bool, other: bool| own && other;
    if twice(!window.partition_by.is_empty(), !base.partition_by.is_empty()) || twice(!window.order_by.is_empty(), !base.order_by.is_empty()) {
        return Some(("PARTITION BY or ORDER BY next to a named window that has it", "write the window in full"));
    }
    if base.window_frame.is_some() && !alone {
        return Some(("a window that begins with a named window with a frame", "write the window in full"));
    }
    if window.partition_by.is_empty() {
        window.partition_by.clone_from(&base.partition_by);
    }
    if window.order_by.is_empty() {
        window.order_by.clone_from(&base.order_by);
    }
    if alone {
        window.window_frame.clone_from(&base.window_frame);
    }
    None
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn parsed(sql: &str) -> Statement {
        DFParser::parse_sql(sql).unwrap().pop_front().unwrap()
    }

    fn heeded(sql: &str) -> Result<String> {
        let mut statement = parsed(sql);
        heed(&mut statement, &SessionStateBuilder::new_with_default_features().build())?;
        Ok(statement.to_string())
    }

    #[test]
    fn clauses_that_change_the_answer_are_refused() {
        for (sql, clause) in [
            ("SELECT a FROM t TABLESAMPLE BERNOULLI (10)", "TABLESAMPLE"),
            ("SELECT a FROM (SELECT 1 AS a) x TABLESAMPLE 10 PERCENT", "TABLESAMPLE"),
            ("SELECT (SELECT a FROM t TABLESAMPLE 10 ROWS)", "TABLESAMPLE"),
            ("SELECT a FROM t PREWHERE a > 1", "PREWHERE"),
            ("SELECT a FROM t FOR UPDATE", "FOR UPDATE"),
            ("SELECT a FROM t SETTINGS max_threads = 1", "SETTINGS"),
            ("SELECT a FROM t FORMAT JSON", "FORMAT"),
            ("SELECT a FROM t LIMIT 1 BY a", "LIMIT BY"),
            ("SELECT a FROM t START WITH a = 1 CONNECT BY PRIOR a = b", "CONNECT BY"),
            ("SELECT a FROM t GROUP BY a WITH ROLLUP", "WITH ROLLUP"),
            ("SELECT a FROM t GROUP BY a WITH TOTALS", "a modifier of GROUP BY"),
            ("SELECT * ILIKE 'a' FROM t", "* ILIKE"),
            ("SELECT a FROM t PARTITION (p)", "PARTITION"),
            ("SELECT a FROM t WITH (NOLOCK)", "a hint"),
            ("SELECT a FROM f(1, 2) WITH ORDINALITY", "WITH ORDINALITY"),
            ("SELECT a FROM (VALUES (1)) v (a VARCHAR)", "a type in a list"),
            ("SELECT a FROM t GLOBAL JOIN u ON TRUE", "GLOBAL JOIN"),
            ("SELECT abs(a) FILTER (WHERE a > 1) FROM t", "FILTER"),
            ("SELECT abs(DISTINCT a) FROM t", "DISTINCT"),
            ("SELECT abs(a ORDER BY a) FROM t", "a clause in a call"),
            ("SELECT abs(a) WITHIN GROUP (ORDER BY a) FROM t", "WITHIN GROUP"),
            ("SELECT abs(1)(a) FROM t", "a second list"),
            ("SELECT lead(DISTINCT a) OVER (ORDER BY a) FROM t", "DISTINCT"),
            ("SELECT rank() IGNORE NULLS OVER (ORDER BY a) FROM t", "IGNORE NULLS"),
        ] {
            let error = heeded(sql).unwrap_err();
            assert!(error.message().starts_with(clause), "{sql}: {}", error.message());
        }
        for sql in ["SELECT sum(DISTINCT a) FILTER (WHERE a > 1) FROM t", "SELECT lead(a) IGNORE NULLS OVER (ORDER BY a) FROM t"] {
            assert_eq!(heeded(sql).unwrap(), sql);
        }
    }

    #[test]
    fn clauses_that_have_a_meaning_are_written_out() {
        for (sql, want) in [
            ("FROM t", "FROM t SELECT *"),
            ("SELECT 1 HAVING FALSE", "SELECT 1 GROUP BY GROUPING SETS (()) HAVING FALSE"),
            ("SELECT count(*) HAVING FALSE", "SELECT count(*) HAVING FALSE"),
            (
                "SELECT sum(a) OVER (w ROWS CURRENT ROW) FROM t WINDOW w AS (PARTITION BY b ORDER BY a)",
                "SELECT sum(a) OVER (PARTITION BY b ORDER BY a ROWS CURRENT ROW) FROM t WINDOW w AS (PARTITION BY b ORDER BY a)",
            ),
            ("SELECT sum(a) OVER v FROM t WINDOW w AS (ORDER BY a), v AS w", "SELECT sum(a) OVER v FROM t WINDOW w AS (ORDER BY a), v AS (ORDER BY a)"),
        ] {
            assert_eq!(heeded(sql).unwrap(), parsed(want).to_string());
        }
        for sql in [
            "SELECT sum(a) OVER (w ORDER BY b) FROM t WINDOW w AS (ORDER BY a)",
            "SELECT sum(a) OVER (w) FROM t",
            "SELECT a FROM t WINDOW w AS (ORDER BY a) ORDER BY sum(a) OVER (w ROWS CURRENT ROW)",
        ] {
            heeded(sql).unwrap_err();
        }
    }
}
