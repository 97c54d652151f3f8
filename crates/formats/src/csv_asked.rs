//! What a type that is asked for would change in a value. The reader of the format drops times of day, digits and leap
//! seconds without a word.

use arrow::datatypes::{DataType, TimeUnit};

use super::csv_values::is_lost;
use super::options::TextType;

/// Digits of a fraction of nanoseconds.
const DIGITS: usize = 9;

/// What `value` has that a column of the type does not hold, for people. The reader refuses most of what is no such
/// value at all.
pub(super) fn misfit(asked: &TextType, value: &str) -> Option<&'static str> {
    match asked {
        TextType::Plain(DataType::Float64) => float(value, value.parse().ok()?),
        TextType::Plain(DataType::Float32) => float(value, f64::from(value.parse::<f32>().ok()?)),
        TextType::Plain(DataType::Date32) => {
            let day = value.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+'));
            (!day).then_some("more than a day, and a date is asked for: ask for timestamp or text")
        }
        TextType::Plain(DataType::Time64(TimeUnit::Nanosecond)) if !value.contains(':') => {
            Some("no time of day (10:30:00), which is asked for: ask for text or a number")
        }
        TextType::Plain(DataType::Time64(TimeUnit::Nanosecond)) | TextType::Timestamp => time(value),
        _ => None,
    }
}

fn float(value: &str, parsed: f64) -> Option<&'static str> {
    let digit = value.bytes().any(|b| b.is_ascii_digit());
    if digit && parsed.is_infinite() {
        return Some("a number beyond the floats that are asked for: ask for float64 or text");
    }
    (digit && is_lost(value, parsed)).then_some("a number below the floats that are asked for: ask for float64 or text")
}

/// What is wrong with the seconds of a time of day, alone or behind a date.
fn time(value: &str) -> Option<&'static str> {
    // Of `10:30:59.5+02:00` the third part.
    let seconds = value.split(':').nth(2)?;
    if seconds.starts_with(['6', '7', '8', '9']) {
        return Some("a leap second, which no time holds: ask for text");
    }
    let fraction = seconds.split_once('.').map_or("", |(_, fraction)| fraction);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
    (digits > DIGITS).then_some("a time with more digits than nanoseconds: ask for text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_type_would_change_is_found() {
        for (asked, same, changed) in [
            ("date", &["2024-02-29", "20240229", "+12024-02-29", ""][..], &["2020-01-01T00:00:00+02:00", "2020-01-01 10:00:00", "2020-01-01T00:00:00"][..]),
            ("time", &["10:30", "10:30:59", "10:30:59.123456789", "1:02:03 PM"], &["45000", "23:59:60", "10:30:00.1234567890"]),
            (
                "timestamp",
                &["2020-01-01", "2020-01-01T10:00:00.123456789+02:00", "2020-01-01 10:00"],
                &["2020-01-01T10:00:00.1234567890Z", "2016-12-31T23:59:60Z"],
            ),
            ("float64", &["1e308", "0e-400", "0.000", "inf", "NaN", "x", "5e-324"], &["1e400", "-1e400", "1e-400"]),
            ("float32", &["1e38", "1e-45"], &["1e39", "1e-50"]),
            ("int64", &["1", "x"], &[]),
        ] {
            let asked: TextType = asked.parse().unwrap();
            for value in same {
                assert_eq!(misfit(&asked, value), None, "{asked:?} {value:?}");
            }
            for value in changed {
                assert!(misfit(&asked, value).is_some(), "{asked:?} {value:?}");
            }
        }
    }
}
