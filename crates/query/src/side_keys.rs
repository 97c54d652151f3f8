//! The keys of one side, `a.k`, besides the key that `USING` merges.
//!
//! A relation has either the merged `k` or `a.k` and `b.k`: with all three, `k` would be ambiguous and `*` would show
//! it three times. So what a query calls `a.k` gets a name of its own, `a.__key_a_k`, in the query and in the
//! relation ([`crate::merged_keys`]); wildcards leave it out.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, Ident, JoinConstraint, ObjectName, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Statement, TableFactor,
    TableWithJoins, VisitMut, VisitorMut, WildcardAdditionalOptions,
};
use skytether_common::{Error, Result};

use crate::identifiers::normal;
use crate::merged_keys::Joins;

/// The keys of one side that a query names.
#[derive(Debug, Default)]
pub(crate) struct SideKeys {
    /// Relation and key.
    renamed: HashSet<(String, String)>,
    /// Every qualified name, for the keys of `NATURAL`, which are not known before planning.
    named: HashSet<(String, String)>,
}

impl SideKeys {
    /// What `relation.key` is called, if the query names it.
    pub(crate) fn hidden(&self, relation: &str, key: &str) -> Option<String> {
        self.renamed.contains(&(relation.to_owned(), key.to_owned())).then(|| hidden(relation, key))
    }

    /// Whether the query names `relation.column`.
    pub(crate) fn names(&self, relation: &str, column: &str) -> bool {
        self.named.contains(&(relation.to_owned(), column.to_owned()))
    }
}

/// Gives the keys of one side, where `statement` names them besides a merged key, names of their own.
///
/// # Errors
/// A select list with the keys of both sides and the same name.
pub(crate) fn rename(statement: &mut Statement, of: Joins) -> Result<SideKeys> {
    let mut renamer = Renamer { scopes: Vec::new(), keys: SideKeys::default(), of };
    if let ControlFlow::Break(error) = VisitMut::visit(statement, &mut renamer) {
        return Err(error);
    }
    let mut wildcards = Wildcards { renamed: &renamer.keys.renamed, of };
    let _ = VisitMut::visit(statement, &mut wildcards);
    Ok(renamer.keys)
}

fn hidden(relation: &str, key: &str) -> String {
    format!("__key_{relation}_{key}")
}

/// The relations of one `FROM`.
#[derive(Default)]
struct Scope {
    relations: HashSet<String>,
    /// Relations and the keys of theirs that are merged.
    merged: Vec<(String, String)>,
    /// The select list, before anything is renamed.
    texts: Vec<String>,
}

impl Scope {
    fn of(select: &Select, joins: Joins) -> Self {
        let mut scope = Self::default();
        for from in &select.from {
            scope.add(from, joins);
        }
        scope
    }

    /// Returns the relations of `from`.
    fn add(&mut self, from: &TableWithJoins, joins: Joins) -> Vec<String> {
        let mut here = self.add_factor(&from.relation, joins);
        for join in &from.joins {
            here.extend(self.add_factor(&join.relation, joins));
            if let Some((_, JoinConstraint::Using(names))) = joins.kind(&join.join_operator) {
                let keys = names.iter().filter_map(|name| last(name));
                self.merged.extend(keys.flat_map(|key| here.iter().map(move |relation| (relation.clone(), key.clone()))));
            }
        }
        self.relations.extend(here.iter().cloned());
        here
    }

    fn add_factor(&mut self, factor: &TableFactor, joins: Joins) -> Vec<String> {
        match factor {
            TableFactor::NestedJoin { table_with_joins, alias: None } => self.add(table_with_joins, joins),
            TableFactor::Table { name, alias, .. } => alias.as_ref().map(|alias| normal(&alias.name)).or_else(|| last(name)).into_iter().collect(),
            TableFactor::NestedJoin { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::UNNEST { alias, .. } => alias.iter().map(|alias| normal(&alias.name)).collect(),
            _ => Vec::new(),
        }
    }
}

fn last(name: &ObjectName) -> Option<String> {
    name.0.last().and_then(|part| part.as_ident()).map(normal)
}

/// What a column of the result is called that is not renamed.
fn output_name(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } | SelectItem::UnnamedExpr(Expr::Identifier(alias)) => Some(normal(alias)),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().map(normal),
        _ => None,
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

struct Renamer {
    /// From the outermost query to the innermost.
    scopes: Vec<Scope>,
    keys: SideKeys,
    of: Joins,
}

impl VisitorMut for Renamer {
    type Break = Error;

    // ORDER BY stands outside the select, and sees its relations.
    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.scopes.push(match query.body.as_ref() {
            SetExpr::Select(select) => Scope::of(select, self.of),
            _ => Scope::default(),
        });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let mut scope = Scope::of(select, self.of);
        self.wildcards_of_sides(select, &scope);
        scope.texts = select.projection.iter().map(ToString::to_string).collect();
        self.scopes.push(scope);
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let texts = self.scopes.pop().map(|scope| scope.texts).unwrap_or_default();
        let mut given: HashSet<String> = select.projection.iter().filter_map(output_name).collect();
        for (item, text) in select.projection.iter_mut().zip(texts) {
            let SelectItem::UnnamedExpr(renamed) = item else { continue };
            if renamed.to_string() == text {
                continue;
            }
            let name = text.rsplit('.').next().filter(|_| matches!(renamed, Expr::CompoundIdentifier(_))).unwrap_or(&text).trim_matches('"').to_owned();
            if !given.insert(name.clone()) {
                return ControlFlow::Break(Error::invalid(format!("{text}: two columns of the result would be called {name}: write {text} AS another name")));
            }
            *item = SelectItem::ExprWithAlias { expr: renamed.clone(), alias: quoted(&name) };
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Error> {
        let Expr::CompoundIdentifier(parts) = e else { return ControlFlow::Continue(()) };
        for at in 0..parts.len().saturating_sub(1) {
            let pair = (normal(&parts[at]), normal(&parts[at + 1]));
            let Some(scope) = self.scopes.iter().rev().find(|scope| scope.relations.contains(&pair.0)) else { continue };
            if scope.merged.contains(&pair) {
                parts[at + 1] = quoted(&hidden(&pair.0, &pair.1));
                self.keys.renamed.insert(pair);
            } else {
                self.keys.named.insert(pair);
            }
            break;
        }
        ControlFlow::Continue(())
    }
}

impl Renamer {
    /// `a.*` is the keys of `a`, and all else of it.
    fn wildcards_of_sides(&mut self, select: &mut Select, scope: &Scope) {
        for item in std::mem::take(&mut select.projection) {
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = &item
                && let Some(relation) = last(name)
            {
                for (_, key) in scope.merged.iter().filter(|(of, _)| *of == relation) {
                    let mut parts: Vec<Ident> = name.0.iter().filter_map(|part| part.as_ident().cloned()).collect();
                    parts.push(quoted(&hidden(&relation, key)));
                    select.projection.push(SelectItem::ExprWithAlias { expr: Expr::CompoundIdentifier(parts), alias: quoted(key) });
                    self.keys.renamed.insert((relation.clone(), key.clone()));
                }
            }
            select.projection.push(item);
        }
    }
}

/// Leaves the hidden names out of `*`.
struct Wildcards<'a> {
    renamed: &'a HashSet<(String, String)>,
    of: Joins,
}

impl VisitorMut for Wildcards<'_> {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let merged: Vec<(String, String)> = Scope::of(select, self.of).merged.into_iter().filter(|pair| self.renamed.contains(pair)).collect();
        let exclude = |options: &mut WildcardAdditionalOptions, of: Option<&str>| {
            let mut names: Vec<String> = merged.iter().filter(|(relation, _)| of.is_none_or(|of| of == relation)).map(|(of, key)| hidden(of, key)).collect();
            names.dedup();
            let mut idents: Vec<ObjectName> = names.iter().map(|name| ObjectName::from(quoted(name))).collect();
            if idents.is_empty() {
                return;
            }
            idents.extend(match options.opt_exclude.take() {
                Some(ExcludeSelectItem::Single(one)) => vec![one],
                Some(ExcludeSelectItem::Multiple(several)) => several,
                None => Vec::new(),
            });
            options.opt_exclude = Some(ExcludeSelectItem::Multiple(idents));
        };
        for item in &mut select.projection {
            match item {
                SelectItem::Wildcard(options) => exclude(options, None),
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options) => {
                    exclude(options, last(name).as_deref());
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }
}
