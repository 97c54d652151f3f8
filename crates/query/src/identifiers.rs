//! What an identifier of a query names.

use datafusion::sql::sqlparser::ast::Ident;

/// The name that DataFusion looks up for `ident`: as it is in quotes, and with ASCII letters in lower case without.
pub(crate) fn normal(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_ascii_lowercase() }
}
