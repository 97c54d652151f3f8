//! Columns that directories called `key=value` give to the files in them, as Hive, Spark and DuckDB write them.

use std::path::{Component, Path};
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Decimal128Array, Scalar, StringArray, UInt32Array, new_null_array};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Date32Type};
use percent_encoding::percent_decode_str;
use skytether_common::{Error, Result};

use super::convert::shown;
use super::options::{TextOptions, TextType};
use super::separated::exact_decimal;

/// What Hive writes for a null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// A key of a file's directories, and its value.
pub(super) type Key = (String, Option<String>);

/// The key and the value of a directory's name that gives a column.
fn split(name: &str) -> Option<(&str, &str)> {
    let (key, value) = name.split_once('=')?;
    let word = !key.is_empty() && !key.starts_with(['.', '_']) && !key.contains(['*', '?', '[']);
    word.then_some((key, value))
}

/// The keys of the directories of `path`, from the outermost.
///
/// # Errors
/// `Invalid` for a key that comes twice, or a value that is no UTF-8.
pub(super) fn keys(path: &Path) -> Result<Vec<Key>> {
    let mut keys: Vec<Key> = Vec::new();
    for component in path.parent().into_iter().flat_map(Path::components) {
        let Component::Normal(name) = component else { continue };
        let Some((key, value)) = name.to_str().and_then(split) else { continue };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(String::from);
        let (Ok(key), Ok(value)) = (decoded(key), decoded(value)) else {
            return Err(Error::invalid(format!(
                "{}: the directory {name:?} is no UTF-8 text: rename it, or read without its columns (hive=False, in the shell --no-hive)",
                path.display()
            )));
        };
        if keys.iter().any(|(other, _)| *other == key) {
            return Err(Error::invalid(format!(
                "{}: two of its directories say {key:?}: rename one, or read without their columns (hive=False, in the shell --no-hive)",
                path.display()
            )));
        }
        keys.push((key, (value != NULL).then_some(value)));
    }
    Ok(keys)
}

/// The type that holds all `values` of a key: whole numbers, dates or text.
pub(super) fn type_of<'a>(key: &str, values: impl Iterator<Item = &'a str> + Clone, text: &TextOptions) -> Result<DataType> {
    match text.asked(key) {
        Some(TextType::Text) => return Ok(DataType::Utf8),
        Some(TextType::Plain(of @ (DataType::Int64 | DataType::Date32))) => return Ok(of.clone()),
        Some(_) => return Err(Error::invalid(format!("the directories' column {key:?} can be text, int64 or date"))),
        None => {}
    }
    let all = |fits: &dyn Fn(&str) -> bool| values.clone().next().is_some() && values.clone().all(fits);
    Ok(if all(&|v| v.parse::<i64>().is_ok() && !v.starts_with('+')) {
        DataType::Int64
    } else if all(&|v| v.len() == 10 && Date32Type::parse(v).is_some()) {
        DataType::Date32
    } else {
        DataType::Utf8
    })
}

/// A column of `rows` times what a directory of `path` says.
///
/// # Errors
/// `Invalid` where it is not of the type.
pub(super) fn column(path: &Path, (key, value): &Key, of: &DataType, rows: usize) -> Result<ArrayRef> {
    let Some(value) = value else { return Ok(new_null_array(of, rows)) };
    let wrong = || {
        Error::invalid(format!(
            "{}: the directory \"{key}={value}\" is not of the type {of} that the column has: rename it, ask for another type (types=, in the shell --types), or leave directories out (hive=False, in the shell --no-hive)",
            path.display()
        ))
    };
    let one: ArrayRef = match of {
        DataType::Date32 => Arc::new(Date32Array::from_value(Date32Type::parse(value).filter(|_| is_date(value)).ok_or_else(wrong)?, 1)),
        DataType::Decimal128(precision, scale) => {
            let exact = exact_decimal(value, *precision, *scale).ok_or_else(wrong)?;
            Arc::new(Decimal128Array::from_value(exact, 1).with_data_type(of.clone()))
        }
        // Texts of these types are read with fewer digits than they have.
        DataType::Timestamp(_, _) | DataType::Time32(_) | DataType::Time64(_) if !is_date(value) => return Err(wrong()),
        _ => {
            let text: ArrayRef = Arc::new(StringArray::from_iter_values([value]));
            cast_with_options(&text, of, &CastOptions { safe: false, ..CastOptions::default() }).map_err(|e| wrong().with_source(e))?
        }
    };
    take(&one, &UInt32Array::from_value(0, rows), None).map_err(|e| Error::internal("a directory gives no column").with_source(e))
}

/// Whether a text is a day, without a time.
fn is_date(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || b == b'-')
}

/// Checks that `own`, a column of the file at `path` behind `before` rows, says what its directory says.
///
/// # Errors
/// `Invalid`, naming the row, where it does not.
pub(super) fn check_same(path: &Path, key: &Key, own: &ArrayRef, before: usize) -> Result<()> {
    let told = column(path, key, own.data_type(), 1)?;
    let same = not_distinct(own, &Scalar::new(told))
        .map_err(|e| Error::invalid(format!("{}: column {:?} can't be compared with its directory", path.display(), key.0)).with_source(e))?;
    let Some(row) = same.iter().position(|same| same != Some(true)) else { return Ok(()) };
    let value = key.1.as_deref().unwrap_or(NULL);
    Err(Error::invalid(format!(
        "{}: column {:?}, row {}, is {:?}, and its directory says \"{}={value}\": leave directories out (hive=False, in the shell --no-hive), or rename one of them",
        path.display(),
        key.0,
        before + row + 1,
        shown(own, row),
        key.0
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_from_directories_only() {
        let found = keys(Path::new("/data/year=2023/city=S%C3%A3o%20Paulo/empty=/n=__HIVE_DEFAULT_PARTITION__/a=b.parquet")).unwrap();
        let text = |s: &str| Some(s.to_owned());
        assert_eq!(found, [("year".into(), text("2023")), ("city".into(), text("São Paulo")), ("empty".into(), text("")), ("n".into(), None)]);
        assert!(keys(Path::new("/x=1/x=2/f.csv")).unwrap_err().to_string().contains("two of its directories say \"x\""));
        assert!(keys(Path::new("/a/=1/.x=2/f.csv")).unwrap().is_empty());
    }

    #[test]
    fn values_of_a_key_have_one_type() {
        let of = |values: &[&str]| type_of("k", values.iter().copied(), &TextOptions::default()).unwrap();
        assert_eq!(of(&["1", "02", "-3"]), DataType::Int64);
        assert_eq!(of(&["2024-02-29", "2024-03-01"]), DataType::Date32);
        assert_eq!(of(&["2024-02-30", "2024-03-01"]), DataType::Utf8);
        assert_eq!(of(&["1", "x"]), DataType::Utf8);
        assert_eq!(of(&[]), DataType::Utf8);
        let text = TextOptions { types: vec![("k".into(), TextType::Text)], ..TextOptions::default() };
        assert_eq!(type_of("k", ["1"].into_iter(), &text).unwrap(), DataType::Utf8);
    }
}
