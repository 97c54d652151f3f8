//! The keys of one side, `a.k`, besides the key that `USING` merges.
//!
//! A relation has either the merged `k` or `a.k` and `b.k`: with all three, `k` would be ambiguous and `*` would show
//! it three times. So what a query calls `a.k` gets a name of its own, `a.__key_a_k`, in the query and in the
//! relation ([`crate::merged_keys`]). `*` leaves it out, and `a.*` is written out with it.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, Ident, JoinConstraint, ObjectName, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Statement, TableFactor,
    TableWithJoins, VisitMut, VisitorMut, WildcardAdditionalOptions,
};
use skytether_common::{Error, Result};

use crate::identifiers::normal;
use crate::join_numbers::{Learned, Mark};
use crate::merged_keys::Joins;

/// A key of one side: the number of the join that merges it, the relation, and the name.
type SideKey = (usize, String, String);

/// The keys of one side that a query names.
#[derive(Debug, Default)]
pub(crate) struct SideKeys(HashSet<SideKey>);

impl SideKeys {
    /// What `relation.key` is called above the join, if the query names it.
    pub(crate) fn hidden(&self, join: usize, relation: &str, key: &str) -> Option<String> {
        self.0.contains(&(join, relation.to_owned(), key.to_owned())).then(|| hidden(relation, key))
    }
}

/// Gives the keys of one side, where `statement` names them besides a merged key, names of their own.
///
/// # Errors
/// A select list with the keys of both sides and the same name.
pub(crate) fn rename(statement: &mut Statement, of: Joins, learned: &Learned) -> Result<SideKeys> {
    let mut renamer = Renamer { scopes: Vec::new(), keys: SideKeys::default(), of, learned };
    if let ControlFlow::Break(error) = VisitMut::visit(statement, &mut renamer) {
        return Err(error);
    }
    let _ = VisitMut::visit(statement, &mut Wildcards { renamed: &renamer.keys.0, of });
    Ok(renamer.keys)
}

fn hidden(relation: &str, key: &str) -> String {
    format!("__key_{relation}_{key}")
}

/// The relations of one `FROM`.
#[derive(Default)]
struct Scope {
    /// With the first join that merges keys above each.
    relations: HashMap<String, Option<usize>>,
    /// Keys of relations, with the first join that merges each.
    merged: Vec<SideKey>,
    /// The select list, before anything is renamed: its texts, and the names of columns in it.
    texts: Vec<(String, Option<String>)>,
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
            if let Some((_, JoinConstraint::Using(names))) = joins.kind(&join.join_operator)
                && let Some(Mark { join, .. }) = Mark::of(names)
            {
                for relation in &here {
                    self.relations.entry(relation.clone()).or_default().get_or_insert(join);
                    for key in names.iter().take(names.len() - 1).filter_map(last) {
                        if self.key(relation, &key).is_none() {
                            self.merged.push((join, relation.clone(), key));
                        }
                    }
                }
            }
        }
        for relation in &here {
            self.relations.entry(relation.clone()).or_default();
        }
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

    /// The key called `name` of `relation`, if a join merges it.
    fn key(&self, relation: &str, name: &str) -> Option<&SideKey> {
        self.merged.iter().find(|(_, of, key)| of == relation && key == name)
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

struct Renamer<'a> {
    /// From the outermost query to the innermost.
    scopes: Vec<Scope>,
    keys: SideKeys,
    of: Joins,
    learned: &'a Learned,
}

impl VisitorMut for Renamer<'_> {
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
        if let Err(error) = self.wildcards_of_sides(select, &scope) {
            return ControlFlow::Break(error);
        }
        scope.texts = select.projection.iter().map(|item| (item.to_string(), output_name(item))).collect();
        self.scopes.push(scope);
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let Some(Scope { texts, merged, .. }) = self.scopes.pop() else { return ControlFlow::Continue(()) };
        let star = select.projection.iter().any(|item| matches!(item, SelectItem::Wildcard(_)));
        let mut given: HashSet<String> = merged.iter().filter(|_| star).map(|(_, _, key)| key.clone()).collect();
        let renamed = |item: &SelectItem, text: &str| matches!(item, SelectItem::UnnamedExpr(shown) if shown.to_string() != text);
        let kept = |(item, (text, _)): &(&SelectItem, &(String, Option<String>))| !renamed(item, text);
        given.extend(select.projection.iter().zip(&texts).filter(kept).filter_map(|(_, (_, name))| name.clone()));
        for (item, (text, name)) in select.projection.iter_mut().zip(texts) {
            if !renamed(item, &text) {
                continue;
            }
            let name = name.unwrap_or_else(|| text.clone());
            if !given.insert(name.clone()) {
                return ControlFlow::Break(Error::invalid(format!("{text}: two columns of the result would be called {name}: write {text} AS another name")));
            }
            if let SelectItem::UnnamedExpr(e) = item {
                *item = SelectItem::ExprWithAlias { expr: e.clone(), alias: quoted(&name) };
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, e: &mut Expr) -> ControlFlow<Error> {
        let Expr::CompoundIdentifier(parts) = e else { return ControlFlow::Continue(()) };
        for at in 0..parts.len().saturating_sub(1) {
            let (relation, name) = (normal(&parts[at]), normal(&parts[at + 1]));
            let Some(scope) = self.scopes.iter().rev().find(|scope| scope.relations.contains_key(&relation)) else { continue };
            if let Some(key) = scope.key(&relation, &name) {
                parts[at + 1] = quoted(&hidden(&relation, &name));
                self.keys.0.insert(key.clone());
            }
            break;
        }
        ControlFlow::Continue(())
    }
}

impl Renamer<'_> {
    /// Writes `a.*` out, where a join merges a key of `a`. What is written is renamed as what the query names.
    fn wildcards_of_sides(&mut self, select: &mut Select, scope: &Scope) -> Result<()> {
        for item in std::mem::take(&mut select.projection) {
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options) = &item
                && let Some(relation) = last(name)
                && let Some(Some(join)) = scope.relations.get(&relation)
                && let Some(columns) = self.learned.columns(*join, &relation)
            {
                let columns = columns.ok_or_else(|| Error::invalid(format!("{item}: two relations are called {relation}: give them names with AS")))?;
                select.projection.extend(written_out(name, options, &columns)?);
            } else {
                select.projection.push(item);
            }
        }
        Ok(())
    }
}

/// `relation.*`, which has `columns`.
fn written_out(relation: &ObjectName, options: &WildcardAdditionalOptions, columns: &[String]) -> Result<Vec<SelectItem>> {
    let refused = options.opt_rename.is_some() || options.opt_ilike.is_some() || options.opt_alias.is_some();
    if refused {
        return Err(Error::unsupported(format!("{relation}.* with RENAME, ILIKE or AS is not supported: name the columns")));
    }
    let mut excluded: HashSet<String> = match &options.opt_exclude {
        Some(ExcludeSelectItem::Single(one)) => last(one).into_iter().collect(),
        Some(ExcludeSelectItem::Multiple(several)) => several.iter().filter_map(last).collect(),
        None => HashSet::new(),
    };
    excluded.extend(options.opt_except.iter().flat_map(|except| std::iter::once(&except.first_element).chain(&except.additional_elements)).map(normal));
    let replaced: HashMap<String, &Expr> =
        options.opt_replace.iter().flat_map(|replace| &replace.items).map(|element| (normal(&element.column_name), &element.expr)).collect();
    if let Some(missing) = excluded.iter().chain(replaced.keys()).find(|name| !columns.contains(name)) {
        return Err(Error::invalid(format!("{relation}.* has no column {missing}: EXCLUDE and REPLACE name columns of {relation}")));
    }
    let item = |column: &String| match replaced.get(column) {
        Some(e) => SelectItem::ExprWithAlias { expr: (*e).clone(), alias: quoted(column) },
        None => {
            let parts = relation.0.iter().filter_map(|part| part.as_ident().cloned());
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts.chain([quoted(column)]).collect()))
        }
    };
    Ok(columns.iter().filter(|column| !excluded.contains(*column)).map(item).collect())
}

/// Leaves the hidden names out of `*`.
struct Wildcards<'a> {
    renamed: &'a HashSet<SideKey>,
    of: Joins,
}

impl VisitorMut for Wildcards<'_> {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let scope = Scope::of(select, self.of);
        let hidden: Vec<String> = scope.merged.iter().filter(|key| self.renamed.contains(key)).map(|(_, relation, key)| hidden(relation, key)).collect();
        for item in &mut select.projection {
            let SelectItem::Wildcard(options) = item else { continue };
            let mut names: Vec<ObjectName> = hidden.iter().map(|name| ObjectName::from(quoted(name))).collect();
            if names.is_empty() {
                continue;
            }
            names.extend(match options.opt_exclude.take() {
                Some(ExcludeSelectItem::Single(one)) => vec![one],
                Some(ExcludeSelectItem::Multiple(several)) => several,
                None => Vec::new(),
            });
            options.opt_exclude = Some(ExcludeSelectItem::Multiple(names));
        }
        ControlFlow::Continue(())
    }
}
