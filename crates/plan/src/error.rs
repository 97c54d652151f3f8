//! Conversions between DataFusion's errors and [`Error`].

use datafusion::arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError};
use datafusion::sql::sqlparser::parser::ParserError;
use skytether_common::{Detail, Error, Kind};

use crate::engine_words::{Plain, defect, plain, without_parts};

/// Ours as DataFusion passes it on; [`from_datafusion`] finds it again.
#[must_use]
pub fn to_datafusion(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// DataFusion's error as one of ours.
///
/// An [`Error`] anywhere in the chain keeps its kind and its text. Otherwise: spent memory or disk is `Exhausted`; what
/// the query got wrong (syntax, names, types, casts, division by zero) is `Invalid`; what the engine lacks is
/// `Unsupported`; I/O is as [`Error::io`] has it; the rest is `Internal`.
#[must_use]
pub fn from_datafusion(error: DataFusionError) -> Error {
    if let DataFusionError::External(inner) = error {
        return match inner.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(other) => match other.downcast::<DataFusionError>() {
                Ok(nested) => from_datafusion(*nested),
                Err(other) => match other.downcast::<ArrowError>() {
                    Ok(arrow) => from_datafusion(DataFusionError::ArrowError(arrow, None)),
                    Err(other) => found_below(other.as_ref()).unwrap_or_else(|| translated(&DataFusionError::External(other))),
                },
            },
        };
    }
    match error {
        DataFusionError::Context(text, inner) => {
            // DataFusion's contexts name its optimizer rules, which does not help the author of a query.
            tracing::debug!("{text}");
            from_datafusion(*inner)
        }
        DataFusionError::Diagnostic(_, inner) => from_datafusion(*inner),
        DataFusionError::Collection(mut all) if !all.is_empty() => {
            let at = all.iter().position(|e| find(e).is_some()).unwrap_or(0);
            from_datafusion(all.swap_remove(at))
        }
        DataFusionError::Shared(shared) => match std::sync::Arc::try_unwrap(shared) {
            Ok(inner) => from_datafusion(inner),
            Err(shared) => match find(&shared) {
                // Other holders remain, so the original can't be moved out: the text is kept, the chain not.
                Some(ours) => ours.flattened(),
                None => translated(&shared),
            },
        },
        DataFusionError::ArrowError(arrow, backtrace) => match *arrow {
            ArrowError::ExternalError(inner) => from_datafusion(DataFusionError::External(inner)),
            other => {
                let e = DataFusionError::ArrowError(Box::new(other), backtrace);
                find(&e).map_or_else(|| translated(&e), Error::flattened)
            }
        },
        DataFusionError::IoError(e) if e.get_ref().is_none() => Error::new(Kind::Unavailable, "input or output failed").with_source(e),
        other => found_below(&other).unwrap_or_else(|| translated(&other)),
    }
}

fn found_below(error: &(dyn std::error::Error + 'static)) -> Option<Error> {
    Error::find(error).map(Error::flattened)
}

/// An error of DataFusion's own.
fn translated(error: &DataFusionError) -> Error {
    let Plain { text, kind } = plain(&text_of(error));
    let kind = kind.unwrap_or_else(|| kind_of(error));
    let own = kind == Kind::Internal;
    let said = if own { defect(&lower(&text)) } else { without_parts(lower(&text)) };
    if own || said != lower(&text) {
        tracing::debug!("the engine failed: {}", error.strip_backtrace());
    }
    let ours = Error::new(kind, said);
    match error.find_root() {
        DataFusionError::SchemaError(e, _) => match e.as_ref() {
            SchemaError::FieldNotFound { field, .. } if kind == Kind::Invalid => ours.with_detail(Detail::MissingColumn { column: field.name.clone() }),
            _ => ours,
        },
        _ => ours,
    }
}

/// Whether `error` is DataFusion's own, of an operator that got no memory.
#[must_use]
pub fn is_out_of_memory(error: &DataFusionError) -> bool {
    find(error).is_none() && matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// The [`Error`] below any of DataFusion's wrappers; `source()` does not show all of them.
fn find(error: &DataFusionError) -> Option<&Error> {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => find(inner),
        DataFusionError::Shared(inner) => find(inner),
        DataFusionError::Collection(all) => all.iter().find_map(find),
        DataFusionError::External(inner) => match inner.downcast_ref::<DataFusionError>() {
            Some(nested) => find(nested),
            None => Error::find(inner.as_ref()),
        },
        DataFusionError::ArrowError(arrow, _) => match arrow.as_ref() {
            ArrowError::ExternalError(inner) => match inner.downcast_ref::<DataFusionError>() {
                Some(nested) => find(nested),
                None => Error::find(inner.as_ref()),
            },
            // What writes to a disk may be ours.
            ArrowError::IoError(_, inner) => Error::find(inner),
            _ => None,
        },
        other => Error::find(other),
    }
}

fn kind_of(error: &DataFusionError) -> Kind {
    use DataFusionError as D;
    match error {
        D::ResourcesExhausted(_) => Kind::Exhausted,
        D::SQL(..) | D::Plan(_) | D::Configuration(_) | D::Execution(_) | D::Substrait(_) => Kind::Invalid,
        D::SchemaError(e, _) => match e.as_ref() {
            SchemaError::AmbiguousReference { .. }
            | SchemaError::DuplicateQualifiedField { .. }
            | SchemaError::DuplicateUnqualifiedField { .. }
            | SchemaError::FieldNotFound { .. } => Kind::Invalid,
        },
        D::NotImplemented(_) => Kind::Unsupported,
        D::IoError(_) => Kind::Unavailable,
        D::Context(_, inner) | D::Diagnostic(_, inner) => kind_of(inner),
        D::Shared(inner) => kind_of(inner),
        D::Collection(all) => all.first().map_or(Kind::Internal, kind_of),
        D::ArrowError(arrow, _) => match arrow.as_ref() {
            ArrowError::NotYetImplemented(_) => Kind::Unsupported,
            ArrowError::CastError(_)
            | ArrowError::ParseError(_)
            | ArrowError::ComputeError(_)
            | ArrowError::ArithmeticOverflow(_)
            | ArrowError::DivideByZero => Kind::Invalid,
            ArrowError::MemoryError(_) => Kind::Exhausted,
            ArrowError::IpcError(_) | ArrowError::ParquetError(_) => Kind::Corrupt,
            ArrowError::IoError(..) => Kind::Unavailable,
            _ => Kind::Internal,
        },
        _ => Kind::Internal,
    }
}

/// The text for `error`: without a backtrace, and without advice that only makes sense to a program that embeds the
/// engine.
fn text_of(error: &DataFusionError) -> String {
    use DataFusionError as D;
    match error {
        D::Context(_, inner) | D::Diagnostic(_, inner) => return text_of(inner),
        D::Shared(inner) => return text_of(inner),
        D::SQL(e, _) => return parser_text(e),
        D::ArrowError(e, _) => return arrow_text(e),
        _ => {}
    }
    let text = error.strip_backtrace();
    // Removes a setting that no user can change here, and the name of the nameless catalog
    // (`table '@.@.trips' not found`).
    text.replace(" or disable the datafusion.sql_parser.enable_ident_normalization configuration", "").replace("'@.@.", "'")
}

/// The text for a syntax error, with its place in the query.
fn parser_text(error: &ParserError) -> String {
    let said = match error {
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
        ParserError::RecursionLimitExceeded => return "the query is nested too deeply".to_owned(),
    };
    // "Expected: ..., found: ... at Line: 1, Column: 8"
    format!("this is no SQL: {}", lower(&said.replace(" at Line: ", " at line ").replace(", Column: ", ", column ")))
}

fn arrow_text(error: &ArrowError) -> String {
    match error {
        ArrowError::DivideByZero => "division by zero".to_owned(),
        ArrowError::CastError(text)
        | ArrowError::ParseError(text)
        | ArrowError::ComputeError(text)
        | ArrowError::ArithmeticOverflow(text)
        | ArrowError::InvalidArgumentError(text)
        | ArrowError::NotYetImplemented(text) => text.clone(),
        other => other.to_string(),
    }
}

/// First letter in lower case, unless the word is an acronym or a name in capitals; no full stop.
fn lower(text: &str) -> String {
    let text = text.trim().trim_end_matches('.');
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => first.to_lowercase().chain(chars).collect(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn wrapped_errors_are_unwrapped_to_ours() {
        let ours = || to_datafusion(Error::corrupt("slice 7 of drive-2 is damaged"));
        let wrapped = [
            ours(),
            ours().context("rule x"),
            DataFusionError::Shared(Arc::new(ours())),
            DataFusionError::Collection(vec![DataFusionError::Plan("x".into()), ours()]),
            DataFusionError::External(Box::new(ours())),
            DataFusionError::ArrowError(Box::new(ArrowError::ExternalError(Box::new(ours()))), None),
            DataFusionError::ArrowError(Box::new(ArrowError::ExternalError(Box::new(Error::corrupt("slice 7 of drive-2 is damaged")))), None),
            DataFusionError::Shared(Arc::new(ours().context("a"))).context("b"),
        ];
        for error in wrapped {
            let text = format!("{error:?}");
            let back = from_datafusion(error);
            assert_eq!(back.kind(), Kind::Corrupt, "{text}");
            assert_eq!(back.to_string(), "slice 7 of drive-2 is damaged", "{text}");
        }
        let shared = Arc::new(ours());
        let back = from_datafusion(DataFusionError::Shared(Arc::clone(&shared)));
        assert_eq!((back.kind(), back.to_string().as_str()), (Kind::Corrupt, "slice 7 of drive-2 is damaged"));
        drop(shared);
    }

    #[test]
    fn kinds_follow_the_remedy() {
        for (error, kind) in [
            (DataFusionError::ResourcesExhausted("pool".into()), Kind::Exhausted),
            (DataFusionError::Plan("No field named x.".into()), Kind::Invalid),
            (DataFusionError::NotImplemented("Y".into()), Kind::Unsupported),
            (DataFusionError::Internal("z".into()), Kind::Internal),
            (DataFusionError::ArrowError(Box::new(ArrowError::DivideByZero), None), Kind::Invalid),
        ] {
            assert_eq!(from_datafusion(error).kind(), kind);
        }
        assert_eq!(from_datafusion(DataFusionError::Plan("No field named x.".into())).to_string(), "no field named x");
    }

    #[test]
    fn calls_with_other_arguments_are_the_querys_fault() {
        let form = |why: &str| format!("Error during planning: {why}");
        let failed = |name: &str, forms: &[String]| {
            let all = forms.join(",");
            DataFusionError::Internal(format!("Function '{name}' failed to match any signature, errors: {all}"))
        };
        // As the planner of SQL passes it on.
        let planned = |error: DataFusionError, call: &str| {
            let text = "You might need to add explicit type casts.\n\tCandidate functions:\n\tsum(Int64)";
            DataFusionError::Plan(format!("{error}. No function matches the given name and argument types '{call}'. {text}"))
        };
        let expects = |n: usize, got: usize| form(&format!("Function 'f' expects {n} arguments but received {got}"));
        let unfit = || form("Internal error: Function 'f' requires Decimal, but received String");
        for (error, text) in [
            (planned(failed("sum", &[expects(1, 3), expects(1, 3)]), "sum(Int64, Int64, Int64)"), "sum takes 1 argument, not 3"),
            (failed("sum", &[expects(1, 2)]), "sum takes 1 argument, not 2"),
            (failed("round", &[expects(1, 3), expects(2, 3)]), "round takes 1 to 2 arguments, not 3"),
            (planned(failed("sum", &[unfit(), unfit()]), "sum(Utf8)"), "sum does not take arguments of these types: sum(Utf8)"),
            (failed("round", &[expects(1, 2), unfit()]), "round does not take arguments of these types"),
        ] {
            let ours = from_datafusion(error);
            assert_eq!((ours.kind(), ours.to_string().as_str()), (Kind::Invalid, text));
        }
    }

    #[test]
    fn the_engines_own_words_stay_inside() {
        let column = |name: &str| datafusion::common::Column::new(Some("taxi.trips"), name);
        let missing = SchemaError::FieldNotFound { field: Box::new(datafusion::common::Column::new_unqualified("city")), valid_fields: vec![column("City")] };
        let cast = || DataFusionError::ArrowError(Box::new(ArrowError::CastError("Cannot cast string 'abc' to value of Float64 type".into())), None);
        for (error, text) in [
            (
                DataFusionError::SQL(Box::new(ParserError::ParserError("Expected: an SQL statement, found: SELEC at Line: 1, Column: 1".into())), None),
                "this is no SQL: expected: an SQL statement, found: SELEC at line 1, column 1",
            ),
            (DataFusionError::Plan("table '@.@.trips' not found".into()), "table 'trips' not found"),
            (cast().context("Optimizer rule 'simplify_expressions' failed"), "cannot cast string 'abc' to value of Float64 type"),
            (DataFusionError::Shared(Arc::new(cast().context("x"))), "cannot cast string 'abc' to value of Float64 type"),
            (DataFusionError::ArrowError(Box::new(ArrowError::DivideByZero), None), "division by zero"),
            (DataFusionError::External(Box::new(ArrowError::DivideByZero)), "division by zero"),
        ] {
            let held = if let DataFusionError::Shared(shared) = &error { Some(Arc::clone(shared)) } else { None };
            let ours = from_datafusion(error);
            assert_eq!((ours.kind(), ours.to_string().as_str()), (Kind::Invalid, text), "{held:?}");
        }
        let text = from_datafusion(DataFusionError::SchemaError(Box::new(missing), Box::new(None))).to_string();
        assert!(text.contains("double quotes") && text.contains("City"), "{text}");
        assert!(!text.contains("datafusion") && !text.contains("Schema error"), "{text}");
    }
}
