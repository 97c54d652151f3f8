//! Separated values (CSV, TSV): columns and types from all rows, then the rows.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use skytether_common::{Error, Result};

use super::csv_nulls::CsvNulls;
use super::csv_quotes::Quotes;
use super::csv_values::Values;
use super::format::{BATCH_ROWS, Batches, check_columns};
use super::guard::{follows, named};
use super::location::Location;
use super::options::TextOptions;
use super::pieces::PIECE_BYTES;
use super::source::Text;

/// What was found in a file.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    pub(super) schema: Schema,
    pub(super) rows: u64,
    /// Whether each column has values with spaces around them that its type does not have.
    padded: Vec<bool>,
    /// Rows of a batch, so that its text is of bounded length.
    batch_rows: usize,
}

/// Numbers of rows that a batch may have.
const BATCHES: [u64; 5] = [BATCH_ROWS as u64, 1024, 128, 16, 1];

/// The longest text of consecutive rows, for each of [`BATCHES`].
#[derive(Default)]
struct Lengths {
    most: [u64; BATCHES.len()],
    now: [u64; BATCHES.len()],
}

impl Lengths {
    fn add(&mut self, row: u64, bytes: u64) {
        for (at, rows) in BATCHES.iter().enumerate() {
            self.now[at] = if row.is_multiple_of(*rows) { bytes } else { self.now[at] + bytes };
            self.most[at] = self.most[at].max(self.now[at]);
        }
    }

    fn batch_rows(&self) -> usize {
        BATCHES.iter().zip(self.most).find(|(_, bytes)| *bytes <= PIECE_BYTES as u64).map_or(1, |(rows, _)| *rows as usize)
    }
}

fn builder(by: u8, text: &TextOptions) -> csv::ReaderBuilder {
    let mut builder = csv::ReaderBuilder::new();
    builder.has_headers(text.header).delimiter(by).quote(text.quote);
    builder
}

/// Columns and number of rows of a file whose values are separated by `by`.
pub(super) fn look_at(path: &Location, by: u8, text: &TextOptions) -> Result<Looked> {
    let source = Text::open(path)?;
    let failure = source.failure();
    let mut source = Quotes::new(CsvNulls::new(source, by, text.quote), by, text.quote);
    let mut reader = builder(by, text).from_reader(&mut source);
    let mut columns: Vec<Values> = Vec::new();
    let mut lengths = Lengths::default();
    let mut rows = 0;
    let read = (|| -> std::result::Result<(), csv::Error> {
        let first = reader.headers()?;
        let named = |(at, name): (usize, &str)| if text.header { name.to_owned() } else { format!("column_{}", at + 1) };
        columns = first.iter().enumerate().map(named).map(|name| Values::new(text.asked(&name).cloned(), name)).collect();
        let (mut record, mut start) = (csv::StringRecord::new(), reader.position().byte());
        while reader.read_record(&mut record)? {
            for (column, value) in columns.iter_mut().zip(&record) {
                if !value.is_empty() && !text.null.iter().any(|null| null == value) {
                    column.add(value, rows);
                }
            }
            let end = reader.position().byte();
            lengths.add(rows, end.saturating_sub(start));
            start = end;
            rows += 1;
        }
        Ok(())
    })();
    drop(reader);
    if let Some(line) = source.too_long() {
        return Err(Error::exhausted(format!(
            "{}: the row in line {line} is longer than {} MiB, the most that one row may take: is the file something else than rows?",
            path.display(),
            super::json_objects::MAX_ROW >> 20
        )));
    }
    if read.is_err() {
        // Whether a quote is open says the end of the file.
        let _rest = std::io::copy(&mut source, &mut std::io::sink());
    }
    let unclosed = source.open().filter(|_| read.as_ref().map_or_else(|e| matches!(e.kind(), csv::ErrorKind::UnequalLengths { .. }), |()| true));
    if unclosed.is_none() {
        read.map_err(|e| failure.or(path, misread(path, by, &e)))?;
    }
    if let Some(line) = unclosed {
        // The reader of the format would take all that follows for one value.
        return Err(Error::invalid(format!(
            "{}: line {line} opens a quote that is never closed; if no value is quoted, say so (quote=\"\", in the shell --quote \"\")",
            path.display()
        )));
    }
    let fields: Vec<Field> = columns.iter().map(Values::field).collect();
    let padded = columns.iter().map(Values::is_padded).collect();
    let schema = Schema::new(fields);
    check_columns(path, &schema)?;
    for column in &columns {
        column.check(path, text.header)?;
    }
    Ok(Looked { schema, rows, padded, batch_rows: lengths.batch_rows() })
}

/// A warning for separated values that seem to have another separator: one column with that in its name.
pub(super) fn hint(path: &Path, by: u8, schema: &Schema) -> Option<String> {
    let [only] = schema.fields().iter().as_slice() else { return None };
    let advice = other_separator(by, only.name())?;
    Some(format!("{} has one column, {:?}: its values seem to be separated by {advice}", path.display(), only.name()))
}

/// The separator that `names` seem to have instead of `by`, and what to do about it.
fn other_separator(by: u8, names: &str) -> Option<&'static str> {
    let other = [
        (';', "';': say so (delimiter=\";\", in the shell --delimiter ';')"),
        ('\t', "tabs: call it .tsv, or say so (delimiter=\"tab\", in the shell --delimiter tab)"),
        ('|', "'|': say so (delimiter=\"|\", in the shell --delimiter '|')"),
        (',', "commas: call it .csv, or say so (delimiter=\",\", in the shell --delimiter ,)"),
    ];
    other.into_iter().find(|(c, _)| *c != char::from(by) && names.contains(*c)).map(|(_, advice)| advice)
}

/// The error for separated values that can't be read. Rows with decimal commas have more fields than the line of names,
/// where that has another separator.
fn misread(path: &Location, by: u8, e: &csv::Error) -> Error {
    let names = first_line(path).filter(|names| !names.contains(char::from(by)));
    let hint = names.and_then(|names| other_separator(by, &names));
    let hint = hint.map(|advice| format!(" (its first line seems to be separated by {advice})")).unwrap_or_default();
    let cause = match e.kind() {
        csv::ErrorKind::UnequalLengths { pos: Some(pos), expected_len, len } => {
            format!("Expected {expected_len} fields, found {len} fields at line {}", pos.line())
        }
        csv::ErrorKind::Utf8 { pos: Some(pos), .. } => format!("line {} is no UTF-8 text: save the file as UTF-8", pos.line()),
        _ => e.to_string(),
    };
    Error::invalid(format!("cannot read {}{hint}: {cause}", path.display()))
}

/// The first line of a text, if it can be read.
fn first_line(path: &Location) -> Option<String> {
    let mut line = Vec::new();
    BufReader::new(Text::open(path).ok()?).take(1 << 16).read_until(b'\n', &mut line).ok()?;
    Some(String::from_utf8_lossy(&line).into_owned())
}

/// Whether values of text can be read as this type without loss.
pub(super) fn is_parsed(of: &DataType) -> bool {
    use DataType as T;
    matches!(of, T::Null | T::Boolean | T::Utf8 | T::Date32 | T::Time64(TimeUnit::Nanosecond) | T::Timestamp(_, None) | T::Decimal128(_, _))
        || of.is_integer()
        || matches!(of, T::Float32 | T::Float64)
}

/// The rows with the types of `schema`, which [`is_parsed`].
pub(super) fn read(path: Location, by: u8, text: &TextOptions, looked: &Looked, schema: &SchemaRef) -> Result<Batches> {
    let source = Text::open(&path)?;
    let failure = source.failure();
    // What the library would parse in another way is read as text.
    let as_text = |(at, field): (usize, &Arc<Field>)| {
        let padded = looked.padded.get(at) == Some(&true) && *field.data_type() != DataType::Null;
        if padded || matches!(field.data_type(), DataType::Decimal128(_, _)) {
            Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8))
        } else {
            Arc::clone(field)
        }
    };
    let reading = Arc::new(Schema::new(schema.fields().iter().enumerate().map(as_text).collect::<Vec<_>>()));
    let mut format = arrow::csv::reader::Format::default().with_header(text.header).with_delimiter(by).with_quote(text.quote);
    if !text.null.is_empty() {
        let texts: Vec<String> = text.null.iter().map(|null| regex::escape(null)).collect();
        let pattern =
            regex::Regex::new(&format!("^(?:{})?$", texts.join("|"))).map_err(|e| Error::invalid("the texts that mean null are too long").with_source(e))?;
        format = format.with_null_regex(pattern);
    }
    let reader = arrow::csv::ReaderBuilder::new(Arc::clone(&reading))
        .with_format(format)
        .with_batch_size(looked.batch_rows)
        .build(CsvNulls::new(source, by, text.quote))
        .map_err(|e| failure.or(&path, Error::invalid(format!("cannot read {}", path.display())).with_source(e)))?;
    let (to, header) = (Arc::clone(schema), usize::from(text.header));
    let mut before = 0;
    let batches = reader.map(move |batch| {
        let batch = batch?;
        before += batch.num_rows();
        parsed(&batch, &to, before - batch.num_rows() + header)
    });
    let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    Ok(named(path.to_path_buf(), failure, move |path, rows, e| misfit(path, rows, &names, e), batches))
}

/// A batch whose columns of text become those of `to`; `lines` are before it, as far as no value has line breaks.
fn parsed(batch: &RecordBatch, to: &SchemaRef, lines: usize) -> std::result::Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(to.fields()).enumerate().map(|(at, (column, field))| {
        if column.data_type() == field.data_type() {
            return Ok(Arc::clone(column));
        }
        let texts: StringArray = column.as_string::<i32>().iter().map(|value| value.map(str::trim)).collect();
        let misfit = |row: usize| {
            let value = texts.value(row);
            ArrowError::ParseError(format!("Error while parsing value '{value}' as type '{}' for column {at} at line {}", field.data_type(), lines + row))
        };
        if let DataType::Decimal128(precision, scale) = field.data_type() {
            let mut values = Vec::with_capacity(texts.len());
            for row in 0..texts.len() {
                let value = if texts.is_null(row) { None } else { Some(exact_decimal(texts.value(row), *precision, *scale).ok_or_else(|| misfit(row))?) };
                values.push(value);
            }
            return Ok(Arc::new(Decimal128Array::from(values).with_precision_and_scale(*precision, *scale)?) as ArrayRef);
        }
        let texts: ArrayRef = Arc::new(texts.clone());
        let cast = |texts: &ArrayRef| cast_with_options(texts, field.data_type(), &CastOptions { safe: false, ..CastOptions::default() });
        cast(&texts).map_err(|e| super::convert::row_at_fault(&texts, |part| cast(part).is_err()).map_or(e, misfit))
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(to), columns.collect::<std::result::Result<_, _>>()?, &options)
}

/// The unscaled value of a decimal that has no more digits than the type.
pub(super) fn exact_decimal(text: &str, precision: u8, scale: i8) -> Option<i128> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (whole, fraction, scale) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'), usize::try_from(scale).ok()?);
    if fraction.len() > scale || whole.len() + scale > usize::from(precision) {
        return None;
    }
    let unscaled: i128 = format!("0{whole}{fraction:0<scale$}").parse().ok()?;
    Some(if negative { -unscaled } else { unscaled })
}

/// A row of separated values that does not fit the types of the columns called `names`. Arrow numbers columns, counts
/// its lines without the header, and may show the whole row, which can be long.
fn misfit(path: &Path, rows: usize, names: &[String], e: ArrowError) -> Error {
    let text = e.to_string();
    let told = text.strip_prefix("Parser error: Error ").and_then(|text| text.split_once(" at line ")).and_then(|(what, rest)| {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let line: usize = rest[..digits].parse().ok()?;
        let why = if rest[digits..].starts_with(". Row data") { "" } else { &rest[digits..] };
        // It either names a value and its column, or only the column, and then says more of the value.
        let (what, number) = match what.strip_prefix("parsing column ") {
            Some(number) => (why.trim_start_matches(": ").trim_start_matches("Parser error: ").replacen("Error ", "error ", 1), number),
            None => what.rsplit_once(" for column ").map(|(what, number)| (format!("error {what}"), number))?,
        };
        let name = names.get(number.parse::<usize>().ok()?)?;
        Some(format!(
            "{}: line {} does not fit: {what} for column {name:?}; to keep the text, ask for it (types={{{name:?}: \"text\"}}, in the shell --types {name}=text)",
            path.display(),
            line + 1
        ))
    });
    told.map_or_else(|| Error::invalid(follows(path, rows)).with_source(e), Error::invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decimal_is_exact_or_none() {
        for (text, value) in [
            ("1.5", Some(150)),
            ("-0012.340", Some(-1234)),
            ("+7", Some(700)),
            (".5", Some(50)),
            ("5.", Some(500)),
            ("999.99", Some(99999)),
            ("1000", None),
            ("0.001", None),
            ("1e2", None),
            (".", None),
            ("", None),
            ("1 000", None),
        ] {
            assert_eq!(exact_decimal(text, 5, 2), value, "{text:?}");
        }
        assert_eq!(exact_decimal(&"9".repeat(38), 38, 0), Some(10i128.pow(38) - 1));
    }

    #[test]
    fn batches_of_long_rows_have_fewer_of_them() {
        let mut lengths = Lengths::default();
        (0..20_000).for_each(|row| lengths.add(row, 100));
        assert_eq!(lengths.batch_rows(), BATCH_ROWS);
        (20_000..20_010).for_each(|row| lengths.add(row, 1 << 20));
        assert_eq!(lengths.batch_rows(), BATCH_ROWS);
        (20_010..20_050).for_each(|row| lengths.add(row, 1 << 20));
        assert_eq!(lengths.batch_rows(), 16);
        lengths.add(20_050, 1 << 40);
        assert_eq!(lengths.batch_rows(), 1);
    }
}
