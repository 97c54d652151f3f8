//! Which table of a data set a name means, and how it shows what is stored.

use skytether_common::{Detail, Error, Result};

use crate::records::root::{DatasetKind, RootRecord};

/// What a table of an expression data set shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// The rows as they are stored.
    Stored,
    /// A matrix, a row per gene and cell.
    Dense,
    /// A matrix, a sparse row per gene and block of cells.
    Rows,
}

/// Which table of the record `shown` means, and how it shows it.
pub fn choose(record: &RootRecord, shown: Option<String>) -> Result<(String, String, View)> {
    let name = &record.name;
    match (record.kind, shown) {
        (DatasetKind::Table, None) => Ok(("data".into(), "data".into(), View::Stored)),
        (DatasetKind::Table, Some(t)) if t == "data" => Ok(("data".into(), "data".into(), View::Stored)),
        (DatasetKind::Table, Some(t)) => {
            let text = format!("{name} is a plain table and has no table {t:?} in it: write {name}");
            Err(Error::not_found(text).with_detail(Detail::MissingTable { table: t }))
        }
        (DatasetKind::Expression, None) => Err(Error::invalid(format!("{name} is an expression data set: name one of its tables: {}", shown_tables(record)))),
        (DatasetKind::Expression, Some(t)) => {
            let whole = |name: &str| record.tables.get(name).filter(|table| table.part.is_none());
            if let Some(table) = whole(&t) {
                let view = if table.matrix.is_some() { View::Dense } else { View::Stored };
                return Ok((t.clone(), t, view));
            }
            if let Some(matrix) = t.strip_suffix("_rows")
                && whole(matrix).is_some_and(|m| m.matrix.is_some())
            {
                return Ok((matrix.to_owned(), t, View::Rows));
            }
            let text = format!("{name} has no table {t:?}; it has {}", shown_tables(record));
            Err(Error::not_found(text).with_detail(Detail::MissingTable { table: t }))
        }
    }
}

/// Whether lists of tables show a table: the parts of the shell of an expression data set are the application's own.
#[must_use]
pub fn is_listed(table: &str) -> bool {
    table != "shell" && !table.starts_with("shell_")
}

/// The names of the tables that SQL knows.
fn shown_tables(record: &RootRecord) -> String {
    let mut names = Vec::new();
    for (table, r) in record.whole_tables().filter(|(t, _)| is_listed(t)) {
        names.push(format!("{}.{table}", record.name));
        if r.matrix.is_some() {
            names.push(format!("{}.{table}_rows", record.name));
        }
    }
    names.join(", ")
}
