//! Columns that directories called `key=value` give to the files in them, as Hive, Spark and DuckDB write them.

use std::path::{Component, Path};
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Int64Array, StringArray, new_null_array};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{DataType, Date32Type};
use percent_encoding::percent_decode_str;
use skytether_common::{Error, Result};

use super::options::{TextOptions, TextType};

/// What Hive writes for a null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// A key of a file's directories, and its value.
pub(super) type Key = (String, Option<String>);

/// Whether a directory's name gives a column.
pub(super) fn is_key(name: &str) -> bool {
    split(name).is_some()
}

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

/// A column of `rows` times `value`.
///
/// # Errors
/// `Invalid` where it is not of the type.
pub(super) fn column(key: &str, value: Option<&str>, of: &DataType, rows: usize) -> Result<ArrayRef> {
    let Some(value) = value else { return Ok(new_null_array(of, rows)) };
    let wrong = || Error::invalid(format!("the directory \"{key}={value}\" is not of the type {of} that is asked for it"));
    Ok(match of {
        DataType::Int64 => Arc::new(Int64Array::from_value(value.parse().map_err(|_| wrong())?, rows)),
        DataType::Date32 => Arc::new(Date32Array::from_value(Date32Type::parse(value).ok_or_else(wrong)?, rows)),
        _ => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows))),
    })
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
