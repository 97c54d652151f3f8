//! How large the results of each function may be.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit};
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;

use super::sizes::{bytes, elements, is_list_of_texts, leaves, occurrences, total, widest};

/// Values of an argument by row: a scalar has one for all.
enum Rows {
    One(Option<i64>),
    Each(ArrayRef),
}

impl Rows {
    /// The argument as whole numbers; other types have none.
    fn numbers(of: &ColumnarValue) -> Result<Self> {
        let array = match of {
            ColumnarValue::Array(array) => Arc::clone(array),
            ColumnarValue::Scalar(scalar) => scalar.to_array()?,
        };
        if !array.data_type().is_integer() && !matches!(array.data_type(), DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 | DataType::Null) {
            return Ok(Self::One(None));
        }
        let array = cast(&array, &DataType::Int64)?;
        Ok(match of {
            ColumnarValue::Array(_) => Self::Each(array),
            ColumnarValue::Scalar(_) => Self::One(array.as_primitive::<Int64Type>().iter().next().flatten()),
        })
    }

    fn at(&self, row: usize) -> Option<i64> {
        match self {
            Self::One(value) => *value,
            Self::Each(array) => array.is_valid(row).then(|| array.as_primitive::<Int64Type>().value(row)),
        }
    }
}

fn positive(value: Option<i64>) -> u64 {
    value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
}

/// The sum over all rows of what `row` gives.
fn sum(rows: usize, row: impl Fn(usize) -> u64) -> u64 {
    total((0..rows).map(row))
}

/// The first argument as often as the second says.
pub(super) fn repeated(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, times, ..] = args else { return Ok(0) };
    let (length, times) = (bytes(text, rows)?, Rows::numbers(times)?);
    Ok(sum(rows, |row| length[row].saturating_mul(positive(times.at(row)))))
}

pub(super) fn repeated_elements(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [element, times, ..] = args else { return Ok(0) };
    let (length, times) = (bytes(element, rows)?, Rows::numbers(times)?);
    Ok(sum(rows, |row| length[row].max(8).saturating_mul(positive(times.at(row)))))
}

/// The second argument counts characters.
pub(super) fn padded(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, width, fill @ ..] = args else { return Ok(0) };
    let (text, width) = (bytes(text, rows)?, Rows::numbers(width)?);
    let fill = fill.first().map_or(Ok(vec![1; rows]), |fill| widest(fill, rows))?;
    Ok(sum(rows, |row| positive(width.at(row)).saturating_mul(fill[row]).saturating_add(text[row])))
}

pub(super) fn resized(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [list, count, element @ ..] = args else { return Ok(0) };
    let (list, count) = (bytes(list, rows)?, Rows::numbers(count)?);
    let element = element.first().map_or(Ok(vec![8; rows]), |element| bytes(element, rows))?;
    Ok(sum(rows, |row| positive(count.at(row)).saturating_mul(element[row].max(8)).saturating_add(list[row])))
}

/// All arguments together.
pub(super) fn joined(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let each = args.iter().map(|arg| Ok(total(bytes(arg, rows)?))).collect::<Result<Vec<_>>>()?;
    Ok(total(each))
}

/// The first argument is between all others.
pub(super) fn joined_with_separator(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [separator, texts @ ..] = args else { return Ok(0) };
    let between = total(bytes(separator, rows)?).saturating_mul(texts.len().saturating_sub(1) as u64);
    Ok(joined(texts, rows)?.saturating_add(between))
}

/// As if every text were nothing but what is replaced.
pub(super) fn replaced(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, from, to] = args else { return Ok(0) };
    let (text, from, to) = (bytes(text, rows)?, bytes(from, rows)?, bytes(to, rows)?);
    // An empty text is found before every character and at the end.
    let found = |row: usize| text[row].checked_div(from[row]).unwrap_or(text[row] + 1);
    Ok(sum(rows, |row| found(row).saturating_mul(to[row]).saturating_add(text[row])))
}

/// As if every character became the longest one there is.
pub(super) fn translated(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, _, to] = args else { return Ok(0) };
    let (text, to) = (bytes(text, rows)?, widest(to, rows)?);
    Ok(sum(rows, |row| text[row].saturating_mul(to[row])))
}

/// As if the pattern matched everywhere. A reference to a group adds no more than the whole text.
pub(super) fn replaced_by_pattern(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, _, to, flags @ ..] = args else { return Ok(0) };
    let references = occurrences(to, rows, b"$\\")?;
    let all = flags.first().map_or(Ok(vec![0; rows]), |flags| occurrences(flags, rows, b"g"))?;
    let (text, to) = (bytes(text, rows)?, bytes(to, rows)?);
    let matches = |row: usize| if all[row] > 0 { text[row] + 1 } else { 1 };
    let copied = |row: usize| text[row].saturating_mul(references[row] + 1);
    Ok(sum(rows, |row| matches(row).saturating_mul(to[row]).saturating_add(copied(row))))
}

/// As if each group of the pattern matched the whole text.
pub(super) fn groups(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, pattern, ..] = args else { return Ok(0) };
    let (text, groups) = (bytes(text, rows)?, occurrences(pattern, rows, b"(")?);
    Ok(sum(rows, |row| text[row].saturating_mul(groups[row].max(1))))
}

/// Two digits for each byte.
pub(super) fn encoded(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [value, ..] = args else { return Ok(0) };
    Ok(total(bytes(value, rows)?).saturating_mul(2))
}

/// `%+`, of two bytes, is up to 40.
pub(super) fn formatted(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [_, format] = args else { return Ok(0) };
    Ok(total(bytes(format, rows)?).saturating_mul(20))
}

/// Each part has its bytes, and its place of 16 bytes. Without a separator each character is a part.
pub(super) fn split(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [text, separator, ..] = args else { return Ok(0) };
    let (text, separator) = (bytes(text, rows)?, bytes(separator, rows)?);
    Ok(sum(rows, |row| (text[row] / separator[row].max(1) + 1).saturating_mul(16).saturating_add(text[row])))
}

/// A list as a text: numbers and times of 8 bytes have up to 32 characters.
pub(super) fn listed(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [list, between @ ..] = args else { return Ok(0) };
    let each = if is_list_of_texts(&list.data_type()) { 1 } else { 4 };
    let between = between.iter().map(|text| bytes(text, rows)).collect::<Result<Vec<_>>>()?;
    let (list, leaves) = (bytes(list, rows)?, leaves(list, rows)?);
    Ok(sum(rows, |row| {
        let between = total(between.iter().map(|lengths| lengths[row]));
        leaves[row].saturating_mul(between).saturating_add(list[row].saturating_mul(each))
    }))
}

/// As if every element were replaced.
pub(super) fn replaced_elements(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let [list, _, to, ..] = args else { return Ok(0) };
    let (elements, list, to) = (elements(list, rows)?, bytes(list, rows)?, bytes(to, rows)?);
    Ok(sum(rows, |row| elements[row].saturating_mul(to[row]).saturating_add(list[row])))
}

/// All lists become as long as the longest.
pub(super) fn zipped(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let lengths = args.iter().map(|list| elements(list, rows)).collect::<Result<Vec<_>>>()?;
    let longest = |row: usize| lengths.iter().map(|of| of[row]).max().unwrap_or(0);
    let padding = sum(rows, |row| longest(row).saturating_mul(8 * lengths.len() as u64));
    Ok(joined(args, rows)?.saturating_add(padding))
}

/// Eight bytes a step from the first argument to the second.
pub(super) fn ranged(args: &[ColumnarValue], rows: usize) -> Result<u64> {
    let as_numbers = |arg: &ColumnarValue| match arg.data_type() {
        // In the unit of steps, nanoseconds.
        DataType::Timestamp(_, zone) => Rows::numbers(&arg.cast_to(&DataType::Timestamp(TimeUnit::Nanosecond, zone), None)?),
        DataType::Date32 | DataType::Date64 => Rows::numbers(&arg.cast_to(&DataType::Timestamp(TimeUnit::Nanosecond, None), None)?),
        _ => Rows::numbers(arg),
    };
    let (start, stop, step) = match args {
        [stop] => (Rows::One(Some(0)), as_numbers(stop)?, None),
        [start, stop] => (as_numbers(start)?, as_numbers(stop)?, None),
        [start, stop, step] => (as_numbers(start)?, as_numbers(stop)?, Some(step)),
        _ => return Ok(0),
    };
    let step = match step {
        None => Rows::One(Some(1)),
        Some(step) if matches!(step.data_type(), DataType::Interval(_)) => steps_of_time(step, rows)?,
        Some(step) => Rows::numbers(step)?,
    };
    let steps = |row: usize| match (start.at(row), stop.at(row), step.at(row)) {
        (Some(start), Some(stop), Some(step)) if step != 0 => stop.abs_diff(start) / step.unsigned_abs() + 1,
        _ => 0,
    };
    Ok(total((0..rows).map(|row| steps(row).saturating_mul(8))))
}

/// Intervals in nanoseconds; months have 30 days.
fn steps_of_time(step: &ColumnarValue, rows: usize) -> Result<Rows> {
    const DAY: i64 = 86_400_000_000_000;
    let array = cast(&step.to_array(rows)?, &DataType::Interval(IntervalUnit::MonthDayNano))?;
    let steps = array.as_primitive::<IntervalMonthDayNanoType>().unary::<_, Int64Type>(|step| {
        let days = i64::from(step.months) * 30 + i64::from(step.days);
        days.saturating_mul(DAY).saturating_add(step.nanoseconds)
    });
    Ok(Rows::Each(Arc::new(steps)))
}
