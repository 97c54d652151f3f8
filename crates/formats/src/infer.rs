//! The types of text files, inferred from all of their rows, so that no later row contradicts them.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use arrow::datatypes::{DataType, Schema, TimeUnit};
use arrow::error::ArrowError;
use arrow::json::reader::infer_json_schema_from_iterator;
use serde_json::Value;
use skytether_common::{Error, Result};

use super::csv_nulls::CsvNulls;
use super::csv_quotes::Quotes;
use super::json_shape::Shape;
use super::large_text;
use super::source::{Failure, Text};

/// Limit of columns of a text file: a file of another kind easily seems to have millions.
const MAX_TEXT_COLUMNS: usize = 100_000;

/// How values are separated.
pub(super) fn format(by: u8) -> arrow::csv::reader::Format {
    arrow::csv::reader::Format::default().with_header(true).with_delimiter(by)
}

/// Columns and number of rows of a file of separated values.
pub(super) fn separated(path: &Path, by: u8) -> Result<(Schema, u64)> {
    let text = Text::open(path)?;
    let failure = text.failure();
    let mut text = Quotes::new(CsvNulls::new(text, by), by);
    let (schema, rows) = format(by).infer_schema(&mut text, None).map_err(|e| failure.or(path, misread(path, by, &e)))?;
    if let Some(line) = text.open() {
        // The reader of the format would take all that follows for one value.
        return Err(Error::invalid(format!("{}: line {line} opens a quote that is never closed", path.display())));
    }
    check_columns(path, &schema)?;
    Ok((schema, rows as u64))
}

/// A warning for separated values that seem to have another separator: one column with that in its name.
pub(super) fn hint(path: &Path, by: u8, schema: &Schema) -> Option<String> {
    let [only] = schema.fields().iter().as_slice() else { return None };
    let advice = other_separator(by, only.name())?;
    Some(format!("{} has one column, {:?}: its values seem to be separated by {advice}", path.display(), only.name()))
}

/// The separator that `names` seem to have instead of `by`, and what to do about it.
fn other_separator(by: u8, names: &str) -> Option<&'static str> {
    let other =
        [(';', "';': write it again with commas"), ('\t', "tabs: call it .tsv"), ('|', "'|': write it again with commas"), (',', "commas: call it .csv")];
    other.into_iter().find(|(c, _)| *c != char::from(by) && names.contains(*c)).map(|(_, advice)| advice)
}

/// The error for separated values that can't be read. Rows with decimal commas have more fields than the line of names,
/// where that has another separator.
fn misread(path: &Path, by: u8, e: &ArrowError) -> Error {
    let names = first_line(path).filter(|names| !names.contains(char::from(by)));
    let hint = names.and_then(|names| other_separator(by, &names));
    let hint = hint.map(|advice| format!(" (its first line seems to be separated by {advice})")).unwrap_or_default();
    // Arrow calls the fields of a row records.
    let cause = e.to_string().replace(" records,", " fields,").replace(" records at line", " fields at line");
    Error::invalid(format!("cannot read {}{hint}: {cause}", path.display()))
}

/// The first line of a text, if it can be read.
fn first_line(path: &Path) -> Option<String> {
    let mut line = Vec::new();
    BufReader::new(Text::open(path).ok()?).take(1 << 16).read_until(b'\n', &mut line).ok()?;
    Some(String::from_utf8_lossy(&line).into_owned())
}

/// Columns of some files of JSON lines together, and the number of rows of each.
pub(super) fn json_lines(paths: &[PathBuf]) -> Result<(Schema, Vec<u64>)> {
    let rows = RefCell::new(Vec::new());
    // The place of the reader, for errors without one.
    let at = RefCell::new((Path::new(""), 0));
    let shape = RefCell::new(Shape::default());
    let values = paths.iter().flat_map(|path| {
        rows.borrow_mut().push(0);
        let (lines, broken) = match Lines::open(path) {
            Ok(lines) => (Some(lines), None),
            Err(e) => (None, Some(Err(e))),
        };
        let (rows, at, shape) = (&rows, &at, &shape);
        lines.into_iter().flatten().chain(broken).map(move |line| {
            let (number, text) = line.map_err(external)?;
            *at.borrow_mut() = (path, number);
            if let Some(rows) = rows.borrow_mut().last_mut() {
                *rows += 1;
            }
            let wrong = || Error::invalid(format!("{}: line {number} is no JSON object", path.display()));
            match serde_json::from_str(&large_text::as_texts(&text)) {
                Ok(value @ Value::Object(_)) => match shape.borrow_mut().add(&value, path, number) {
                    Ok(()) => Ok(value),
                    Err(e) => Err(external(e)),
                },
                Ok(_) => Err(external(wrong())),
                Err(e) => Err(external(wrong().with_source(e))),
            }
        })
    });
    let schema = infer_json_schema_from_iterator(values).map_err(|e| match Error::find(&e) {
        Some(ours) => ours.flattened(),
        None => {
            let (path, line) = *at.borrow();
            Error::invalid(format!("{}: line {line} does not fit the lines before it", path.display())).with_source(e)
        }
    })?;
    for path in paths.iter().take(1) {
        check_columns(path, &schema)?;
    }
    Ok((shape.into_inner().exact(&schema), rows.into_inner()))
}

fn external(e: Error) -> ArrowError {
    ArrowError::ExternalError(Box::new(e))
}

/// The lines of a file that are not empty, with their numbers from 1.
pub(super) struct Lines {
    path: PathBuf,
    reader: BufReader<Text>,
    failure: Failure,
    number: usize,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let text = Text::open(path)?;
        let failure = text.failure();
        Ok(Self { path: path.to_path_buf(), reader: BufReader::new(text), failure, number: 0 })
    }
}

impl Iterator for Lines {
    type Item = Result<(usize, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        loop {
            self.number += 1;
            line.clear();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) if line.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let text =
                        String::from_utf8(line).map_err(|e| Error::invalid(format!("{}: line {} is no text", self.path.display(), self.number)).with_source(e));
                    return Some(text.map(|text| (self.number, text)));
                }
                Err(e) => return Some(Err(self.failure.or(&self.path, super::source::failed("read", &self.path, e)))),
            }
        }
    }
}

fn check_columns(path: &Path, schema: &Schema) -> Result<()> {
    match schema.fields().len() {
        0 => Err(Error::invalid(format!("{} has no columns", path.display()))),
        n if n > MAX_TEXT_COLUMNS => Err(Error::invalid(format!("{} seems to have {n} columns: is it a file of another kind?", path.display()))),
        _ => Ok(()),
    }
}

/// The narrowest type that holds the values of two inferred types, as inference itself chooses it within one file.
pub(super) fn widen(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType as T;
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (T::Null, other) | (other, T::Null) => other.clone(),
        (a, b) if a.is_nested() || b.is_nested() => return None,
        (T::Int64 | T::UInt64, T::Float64) | (T::Float64, T::Int64 | T::UInt64) => T::Float64,
        (T::Date32, T::Timestamp(unit, None)) | (T::Timestamp(unit, None), T::Date32) => T::Timestamp(*unit, None),
        (T::Timestamp(a, None), T::Timestamp(b, None)) => T::Timestamp(finer(*a, *b), None),
        _ => T::Utf8,
    })
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    use TimeUnit as U;
    [U::Nanosecond, U::Microsecond, U::Millisecond].into_iter().find(|u| *u == a || *u == b).unwrap_or(U::Second)
}
