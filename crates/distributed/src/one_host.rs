//! Statements that one host must run alone: their functions give another value on each host, or at each call.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use datafusion::functions::all_default_functions;
use datafusion::logical_expr::Volatility;
use skytether_api::statement::Statement;

/// The names of such functions.
fn unsteady() -> &'static BTreeSet<String> {
    static NAMES: OnceLock<BTreeSet<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let functions = all_default_functions();
        let unsteady = functions.iter().filter(|function| function.signature().volatility != Volatility::Immutable);
        let names = unsteady.flat_map(|function| function.aliases().iter().map(String::as_str).chain([function.name()]).map(str::to_ascii_lowercase));
        let more = ["now", "today", "random", "uuid", "current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"];
        names.chain(more.map(str::to_owned)).collect()
    })
}

/// The name of such a function in `asked`.
///
/// Planning puts values in the place of calls, so the statement itself is looked at. Any word counts, also one in a
/// text or the name of a column: then one host does what several could have done, and the result is the same.
pub(crate) fn unsteady_name(asked: &Statement) -> Option<String> {
    let bytes: &[u8] = match asked {
        Statement::Sql(text) => text.as_bytes(),
        Statement::Substrait(plan) => plan.as_ref(),
    };
    let words = bytes.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    words.map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).find(|word| unsteady().contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_wherever_they_are() {
        let found = |text: &str| unsteady_name(&Statement::Sql(text.into()));
        for text in ["SELECT now()", "VALUES (RANDOM ())", "SELECT 1 WHERE 1 < (SELECT \"random\"())", "SELECT current_date", "SELECT uuid()"] {
            assert!(found(text).is_some(), "{text}");
        }
        for text in ["SELECT count(*), sum(v), max(known) FROM t", "SELECT to_timestamp(v), date_trunc('day', d), random_forest FROM t"] {
            assert_eq!(found(text), None, "{text}");
        }
    }
}
