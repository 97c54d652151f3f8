//! Aliases of an outer query that are also columns of a subquery's table.
//!
//! In `SELECT ... FROM t AS a WHERE EXISTS (SELECT 1 FROM u WHERE u.x = a.k)`, where `u` has a column `a`, DataFusion
//! takes `a.k` for the field `k` of that column, which has none. It looks for the alias only where there is no such
//! column. Such a query is planned once more, with other aliases.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr as Planned, ExprSchemable, LogicalPlan};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor, Visit, VisitMut, Visitor, VisitorMut,
};

use crate::identifiers::normal;

/// Whether `plan` takes a field of a column that has no fields.
pub(crate) fn are_missed(plan: &LogicalPlan) -> bool {
    let mut missed = false;
    let walked = plan.apply_with_subqueries(|node| {
        let inputs = node.inputs();
        let has_no_fields = |column: &Planned| {
            let of = inputs.iter().find_map(|input| column.get_type(input.schema()).ok());
            matches!(column, Planned::Column(_))
                && of.is_some_and(|of| !matches!(of, DataType::Struct(_) | DataType::Map(..) | DataType::Null | DataType::Dictionary(..)))
        };
        node.apply_expressions(|e| {
            e.apply(|e| {
                missed |= matches!(e, Planned::ScalarFunction(call) if call.func.name() == "get_field" && call.args.first().is_some_and(has_no_fields));
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    walked.is_ok() && missed
}

/// `statement` with other names for all aliases of tables; `None` where it has no subquery that could miss one.
pub(crate) fn renamed(statement: &Statement) -> Option<Statement> {
    let Statement::Statement(inner) = statement else { return None };
    let mut seen = Seen::default();
    let _ = Visit::visit(inner.as_ref(), &mut seen);
    if seen.aliases.is_empty() || seen.queries < 2 || seen.longest > 2 {
        return None;
    }
    let mut suffix = "_".to_owned();
    while seen.names.iter().any(|name| name.ends_with(&suffix)) {
        suffix.push('_');
    }
    let mut renamed = inner.as_ref().clone();
    let _ = VisitMut::visit(&mut renamed, &mut Rename { aliases: seen.aliases, suffix });
    Some(Statement::Statement(Box::new(renamed)))
}

/// The name by which a table without an alias is known.
fn own_name(name: &ObjectName) -> Option<&Ident> {
    name.0.last().and_then(|part| part.as_ident())
}

/// The aliases of tables, all names, and the number of queries.
#[derive(Default)]
struct Seen {
    aliases: HashSet<String>,
    names: HashSet<String>,
    queries: usize,
    /// The parts of the longest name: names of three have the domain, which an alias hides.
    longest: usize,
}

impl Visitor for Seen {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<()> {
        match table {
            TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => drop(self.aliases.insert(normal(&alias.name))),
            TableFactor::Table { name, args: None, .. } => self.aliases.extend(own_name(name).map(normal)),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &Expr) -> ControlFlow<()> {
        match e {
            Expr::Identifier(name) => drop(self.names.insert(normal(name))),
            Expr::CompoundIdentifier(parts) => {
                self.names.extend(parts.iter().map(normal));
                self.longest = self.longest.max(parts.len());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

struct Rename {
    aliases: HashSet<String>,
    suffix: String,
}

impl Rename {
    fn name(&self, name: &mut Ident) {
        if self.aliases.contains(&normal(name)) {
            *name = Ident::with_quote('"', normal(name) + &self.suffix);
        }
    }
}

impl VisitorMut for Rename {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let SetExpr::Select(select) = query.body.as_mut() {
            for item in &mut select.projection {
                if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = item
                    && let [only] = name.0.as_mut_slice()
                    && let Some(ident) = only.as_ident().cloned()
                {
                    let mut ident = ident;
                    self.name(&mut ident);
                    *only = datafusion::sql::sqlparser::ast::ObjectNamePart::Identifier(ident);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        match table {
            TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => self.name(&mut alias.name),
            TableFactor::Table { name, alias: alias @ None, args: None, .. } => {
                *alias = own_name(name).cloned().map(|mut ident| {
                    self.name(&mut ident);
                    TableAlias { explicit: true, name: ident, columns: Vec::new(), at: None }
                });
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = e
            && let Some(first) = parts.first_mut()
        {
            self.name(first);
        }
        ControlFlow::Continue(())
    }
}
