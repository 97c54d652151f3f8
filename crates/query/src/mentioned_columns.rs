//! The columns that the text of a query may mean: wide tables show the planner no others.
//!
//! DataFusion searches the whole schema for a column, for each expression and in each of its rules, and copies schemas
//! as it goes. For tables with thousands of columns, that takes most of the time of a query that reads a few.
//!
//! The text names every column that the query reads, so a table may leave out columns whose names are nowhere in it.
//! Names keep their meaning, since every table shows all of its columns of a name that occurs. That does not hold where
//! a text means columns without their names, by a star or a `NATURAL JOIN` for example: such a text gets whole tables.
//! So does a text that can't be planned with few columns, because error messages list what there is.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::CatalogProviderList;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Query, Select, SelectFlavor, SelectItem, TableFactor, Visit, Visitor,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use skytether_common::Result;

use crate::tables::NamedTables;

/// Columns up to which a table is shown whole.
const WIDE: usize = 128;

/// The columns of wide tables that a planner sees, and whether some were hidden.
#[derive(Debug)]
pub(crate) struct Shown {
    named: bool,
    hid: AtomicBool,
}

impl Shown {
    /// The columns that the text names, where it names all that it means.
    pub(crate) fn named() -> Self {
        Self { named: true, hid: AtomicBool::new(false) }
    }

    /// All columns.
    pub(crate) fn all() -> Self {
        Self { named: false, hid: AtomicBool::new(false) }
    }

    /// Whether columns were hidden: if the planner fails, it must see them all.
    pub(crate) fn hid(&self) -> bool {
        self.hid.load(Ordering::Relaxed)
    }

    /// The tables with few columns, for `text`, which was parsed as `statement`; `None` where the query needs whole
    /// tables.
    ///
    /// # Errors
    /// As [`NamedTables::catalog_list`].
    pub(crate) fn few(&self, tables: &NamedTables, text: &str, statement: &Statement) -> Result<Option<Arc<dyn CatalogProviderList>>> {
        if !self.named || !tables.any_schema(is_wide) {
            return Ok(None);
        }
        let Some(columns) = NamedColumns::of(text, statement) else { return Ok(None) };
        let few = tables.catalog_list_of(&columns)?;
        self.hid.fetch_or(few.is_some(), Ordering::Relaxed);
        Ok(few)
    }
}

fn is_wide(schema: &SchemaRef) -> bool {
    schema.fields().len() > WIDE
}

/// The names in a text.
#[derive(Debug)]
pub(crate) struct NamedColumns {
    /// In lower case: a column in another case than its name in the text is only too many.
    names: HashSet<String>,
}

impl NamedColumns {
    /// The names in `text`, which was parsed as `statement`; `None` where it may mean columns that it does not name.
    pub(crate) fn of(text: &str, statement: &Statement) -> Option<Self> {
        let Statement::Statement(inner) = statement else { return None };
        if inner.visit(&mut Nameless).is_break() {
            return None;
        }
        let mut names = HashSet::new();
        for token in Tokenizer::new(&GenericDialect {}, text).tokenize().ok()? {
            match token {
                Token::Word(word) if word.quote_style.is_none() && takes_all(word.keyword) => return None,
                Token::Word(word) => drop(names.insert(word.value.to_lowercase())),
                Token::DoubleQuotedString(name) => drop(names.insert(name.to_lowercase())),
                _ => {}
            }
        }
        Some(Self { names })
    }

    /// The names, in lower case.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// `schema` without the columns that are not named, if it is wide and there are any. One column is left in any
    /// case: rows are counted with it.
    pub(crate) fn among(&self, schema: &SchemaRef) -> Option<SchemaRef> {
        if !is_wide(schema) {
            return None;
        }
        let mut named: Vec<_> = schema.fields().iter().filter(|f| self.has(f.name())).cloned().collect();
        if named.len() == schema.fields().len() {
            return None;
        }
        if named.is_empty() {
            named.extend(schema.fields().first().cloned());
        }
        Some(Schema::new_with_metadata(named, schema.metadata().clone()).into())
    }

    fn has(&self, column: &str) -> bool {
        let lower = column.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase());
        if lower { self.names.contains(column) } else { self.names.contains(&column.to_lowercase()) }
    }
}

/// Words by which a query takes columns without naming them, whatever else the words may mean.
fn takes_all(word: Keyword) -> bool {
    matches!(word, Keyword::NATURAL | Keyword::TABLE | Keyword::PIVOT | Keyword::UNPIVOT | Keyword::MATCH_RECOGNIZE | Keyword::SHOW | Keyword::DESCRIBE)
}

/// Breaks off where columns are meant by a star or by their places.
struct Nameless;

impl Visitor for Nameless {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        go_on(query.pipe_operators.is_empty())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let named = |item: &SelectItem| !matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        go_on(select.projection.iter().all(named) && !matches!(select.flavor, SelectFlavor::FromFirstNoSelect))
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        go_on(match factor {
            TableFactor::Table { alias, .. } => alias.as_ref().is_none_or(|alias| alias.columns.is_empty()),
            TableFactor::Derived { .. } | TableFactor::NestedJoin { .. } | TableFactor::UNNEST { .. } | TableFactor::Function { .. } => true,
            _ => false,
        })
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        go_on(match expr {
            Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => false,
            Expr::Function(call) => match &call.args {
                FunctionArguments::List(list) => {
                    let counts = call.name.to_string().eq_ignore_ascii_case("count");
                    list.args.iter().all(|arg| match arg {
                        FunctionArg::Named { arg, .. } | FunctionArg::ExprNamed { arg, .. } | FunctionArg::Unnamed(arg) => match arg {
                            FunctionArgExpr::Expr(_) => true,
                            // All rows, and no column.
                            FunctionArgExpr::Wildcard => counts,
                            _ => false,
                        },
                    })
                }
                _ => true,
            },
            _ => true,
        })
    }
}

fn go_on(when: bool) -> ControlFlow<()> {
    if when { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{DataType, Field};
    use datafusion::common::config::Dialect;
    use datafusion::prelude::SessionContext;

    fn wide(more: &[&str]) -> SchemaRef {
        let numbered = (0..200).map(|n| format!("c{n}"));
        let fields: Vec<_> = numbered.chain(more.iter().map(|n| (*n).to_owned())).map(|name| Field::new(name, DataType::Int64, true)).collect();
        Arc::new(Schema::new_with_metadata(fields, [("of".to_owned(), "table".to_owned())].into()))
    }

    fn named(sql: &str) -> Option<NamedColumns> {
        NamedColumns::of(sql, &SessionContext::new().state().sql_to_statement(sql, &Dialect::Generic).unwrap())
    }

    fn shown(sql: &str, more: &[&str]) -> Option<Vec<String>> {
        let schema = named(sql)?.among(&wide(more))?;
        assert_eq!(schema.metadata().get("of").map(String::as_str), Some("table"));
        Some(schema.fields().iter().map(|f| f.name().clone()).collect())
    }

    #[test]
    fn columns_are_named_in_any_case_and_quoted_or_not() {
        let cases: [(&str, &[&str], &[&str]); 8] = [
            ("SELECT c7, C3 FROM a.b", &[], &["c3", "c7"]),
            (r#"SELECT "c7", "Gene x" FROM a.b"#, &["Gene x", "gene X", "Gene"], &["c7", "Gene x", "gene X"]),
            (r#"SELECT "say ""x""" FROM a.b"#, &[r#"say "x""#], &[r#"say "x""#]),
            ("SELECT ÄPFEL FROM a.b", &["Äpfel", "äpfel", "apfel"], &["Äpfel", "äpfel"]),
            ("SELECT t.c1.c2['c3'] FROM a.b AS t", &[], &["c1", "c2"]),
            (
                "WITH w AS (SELECT c1 AS x FROM a.b WHERE c2 > 0) SELECT x + c3 FROM w JOIN a.c USING (c4) ORDER BY c5 -- c6",
                &[],
                &["c1", "c2", "c3", "c4", "c5"],
            ),
            ("SELECT count(*) FROM a.b", &["count"], &["count"]),
            ("SELECT count(*), COUNT(*) FILTER (WHERE c9 > 0) FROM a.b", &[], &["c9"]),
        ];
        for (sql, more, expected) in cases {
            assert_eq!(shown(sql, more).unwrap(), expected, "{sql}");
        }
    }

    #[test]
    fn one_column_is_left() {
        assert_eq!(shown("SELECT count(*) FROM a.b", &[]).unwrap(), ["c0"]);
    }

    #[test]
    fn tables_that_are_not_wide_are_shown_whole() {
        let few: SchemaRef = Arc::new(Schema::new((0..WIDE).map(|n| Field::new(format!("c{n}"), DataType::Int64, true)).collect::<Vec<_>>()));
        assert!(named("SELECT c1 FROM a.b").unwrap().among(&few).is_none());
        let all = (0..200).map(|n| format!("c{n}")).collect::<Vec<_>>().join(", ");
        assert_eq!(shown(&format!("SELECT {all} FROM a.b"), &[]), None);
    }

    #[test]
    fn texts_that_mean_columns_without_naming_them_are_left_alone() {
        for sql in [
            "SELECT * FROM a.b",
            "SELECT c1, t.* FROM a.b t",
            "SELECT * EXCLUDE (c1) FROM a.b",
            "SELECT c1 FROM (SELECT * FROM a.b)",
            "WITH w AS (SELECT * FROM a.b) SELECT c1 FROM w",
            "SELECT 1 WHERE EXISTS (SELECT * FROM a.b)",
            "SELECT c1 FROM a.b UNION ALL SELECT * FROM a.c",
            "SELECT c1 FROM a.b NATURAL JOIN a.c",
            "SELECT x FROM a.b AS t(x, y)",
            "SELECT count(t.*) FROM a.b t",
            "SELECT array_agg(*) FROM a.b",
            "SELECT c1 FROM (TABLE a.b)",
        ] {
            assert!(named(sql).is_none(), "{sql}");
        }
    }
}
