//! [`Values`]: what the values of a column of text could be.

use std::path::Path;

use arrow::datatypes::{DataType, Field, TimeUnit};
use skytether_common::{Error, Result};

use super::csv_asked::misfit;
use super::options::TextType;

/// The values of a column so far.
pub(super) struct Values {
    name: String,
    asked: Option<TextType>,
    /// The kinds of values, as bits.
    kinds: u16,
    padded: bool,
    /// The first row, from 0, with a value that the type that is asked for does not hold, and why.
    unfit: Option<(u64, &'static str)>,
}

const BOOLEAN: u16 = 1;
const INTEGER: u16 = 1 << 1;
const FLOAT: u16 = 1 << 2;
const DATE: u16 = 1 << 3;
/// Times with whole seconds, milliseconds, microseconds and nanoseconds.
const TIMES: [u16; 4] = [1 << 4, 1 << 5, 1 << 6, 1 << 7];
const TEXT: u16 = 1 << 8;
const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

impl Values {
    pub(super) fn new(asked: Option<TextType>, name: String) -> Self {
        Self { name, asked, kinds: 0, padded: false, unfit: None }
    }

    /// Adds the value, which is not null, of a row from 0.
    pub(super) fn add(&mut self, value: &str, row: u64) {
        let trimmed = value.trim_matches([' ', '\t']);
        match &self.asked {
            Some(TextType::Text) => return,
            Some(asked) if self.unfit.is_none() => self.unfit = misfit(asked, trimmed).map(|why| (row, why)),
            _ => {}
        }
        if trimmed.len() != value.len() && (self.asked.is_some() || kind(trimmed) != TEXT) {
            self.padded = true;
        }
        self.kinds |= kind(trimmed);
    }

    fn inferred(&self) -> DataType {
        let times = TIMES.iter().fold(DATE, |all, unit| all | unit);
        match self.kinds {
            0 => DataType::Null,
            BOOLEAN => DataType::Boolean,
            INTEGER => DataType::Int64,
            kinds if kinds & !(INTEGER | FLOAT) == 0 => DataType::Float64,
            DATE => DataType::Date32,
            kinds if kinds & !times == 0 => self.finest().map_or(DataType::Date32, |unit| DataType::Timestamp(unit, None)),
            _ => DataType::Utf8,
        }
    }

    /// The finest unit of the times.
    fn finest(&self) -> Option<TimeUnit> {
        UNITS.iter().zip(TIMES).rev().find(|(_, bit)| self.kinds & bit != 0).map(|(unit, _)| *unit)
    }

    /// The column, of the type that is asked for, or that holds all its values.
    pub(super) fn field(&self) -> Field {
        let of = match &self.asked {
            None => self.inferred(),
            Some(TextType::Text) => DataType::Utf8,
            Some(TextType::Plain(of)) => of.clone(),
            Some(TextType::Decimal(precision, scale)) => DataType::Decimal128(*precision, *scale),
            // A value of another form, which only the reader takes, has no finer unit than microseconds.
            Some(TextType::Timestamp) => {
                let other = if self.kinds & !DATE == 0 && self.kinds != 0 { TimeUnit::Second } else { TimeUnit::Microsecond };
                DataType::Timestamp(self.finest().unwrap_or(other), None)
            }
        };
        Field::new(&self.name, of, true)
    }

    /// Whether some values have spaces around them, and the type has none.
    pub(super) fn is_padded(&self) -> bool {
        self.padded && *self.field().data_type() != DataType::Utf8
    }

    /// # Errors
    /// `Invalid` for a value that the type that is asked for would change.
    pub(super) fn check(&self, path: &Path, header: bool) -> Result<()> {
        match self.unfit {
            None => Ok(()),
            Some((row, why)) => {
                Err(Error::invalid(format!("{}: line {} does not fit: column {:?} has {why}", path.display(), row + 1 + u64::from(header), self.name)))
            }
        }
    }
}

/// The kind of a value.
fn kind(value: &str) -> u16 {
    let bytes = value.as_bytes();
    match bytes.first() {
        None => TEXT,
        Some(b'-' | b'.' | b'0'..=b'9') => match number(bytes) {
            // Whole numbers beyond 64 bits, and floats beyond or below doubles, stay as they are.
            Some(INTEGER) => {
                if value.parse::<i64>().is_ok() {
                    INTEGER
                } else {
                    TEXT
                }
            }
            Some(_) => {
                if value.parse::<f64>().is_ok_and(|float| float.is_finite() && !is_lost(value, float)) {
                    FLOAT
                } else {
                    TEXT
                }
            }
            None if value == "-inf" => FLOAT,
            None => time(bytes),
        },
        _ if value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false") => BOOLEAN,
        _ if matches!(value, "NaN" | "nan" | "inf") => FLOAT,
        _ => TEXT,
    }
}

/// Whether `float`, what `value` is parsed as, is zero, and the number is not.
pub(super) fn is_lost(value: &str, float: f64) -> bool {
    float == 0.0 && value.bytes().take_while(|b| !matches!(b, b'e' | b'E')).any(|b| matches!(b, b'1'..=b'9'))
}

/// Whether a value is a whole number or a float.
fn number(bytes: &[u8]) -> Option<u16> {
    let rest = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let digits = |bytes: &[u8]| bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(rest);
    let rest = &rest[whole..];
    if rest.is_empty() {
        return (whole > 0).then_some(INTEGER);
    }
    let (fraction, rest) = match rest.strip_prefix(b".") {
        Some(rest) => (digits(rest), &rest[digits(rest)..]),
        None => (0, rest),
    };
    if whole + fraction == 0 {
        return None;
    }
    match rest.split_first() {
        None => Some(FLOAT),
        Some((b'e' | b'E', power)) => {
            let power = power.strip_prefix(b"-").or_else(|| power.strip_prefix(b"+")).unwrap_or(power);
            (!power.is_empty() && digits(power) == power.len()).then_some(FLOAT)
        }
        Some(_) => None,
    }
}

/// The kind of a value that looks like a date or a time. Whether there is such a day the reader finds out.
fn time(bytes: &[u8]) -> u16 {
    let like = |bytes: &[u8], pattern: &[u8]| {
        bytes.len() >= pattern.len()
            && bytes.iter().zip(pattern).all(|(b, p)| match p {
                b'0' => b.is_ascii_digit(),
                b'T' => matches!(b, b'T' | b' '),
                p => b == p,
            })
    };
    if !like(bytes, b"0000-00-00") {
        return TEXT;
    }
    if bytes.len() == 10 {
        return DATE;
    }
    // A leap second has no time of its own.
    if !like(bytes, b"0000-00-00T00:00:00") || bytes[17] > b'5' {
        return TEXT;
    }
    match &bytes[19..] {
        [] => TIMES[0],
        [b'.', rest @ ..] => match rest.iter().take_while(|b| b.is_ascii_digit()).count() {
            0 => TEXT,
            1..=3 => TIMES[1],
            4..=6 => TIMES[2],
            7..=9 => TIMES[3],
            // Finer than nanoseconds.
            _ => TEXT,
        },
        [b'0'..=b'9', ..] => TEXT,
        // A zone.
        _ => TIMES[0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_the_narrowest_kind() {
        for (values, expected) in [
            (&["1", "-9223372036854775808", "00501"][..], INTEGER),
            (&["9223372036854775808", "1_000", "+5", "--1", "1-2", "-", ".", "1e", "1e+", "5%", "1e400", "0x1F", "1e-400", ""], TEXT),
            (&["1e5", ".5", "5.", "-2.5E-3", "NaN", "inf", "-inf", "0e-400", "5e-324"], FLOAT),
            (&["true", "FALSE"], BOOLEAN),
            (&["2024-02-29", "2024-02-30"], DATE),
            (&["2024-02-29 10:00:00", "2024-02-29T10:00:00Z", "2024-02-29T10:00:00+01:00"], TIMES[0]),
            (&["2024-02-29 10:00:00.5", "2024-02-29 10:00:00.123Z"], TIMES[1]),
            (&["2024-02-29 10:00:00.1234"], TIMES[2]),
            (&["2024-02-29 10:00:00.123456789"], TIMES[3]),
            (&["2024-02-29 10:00:00.1234567890", "10:30:00", "2024-2-9", "2024-02-29 10:00", "2024-02-29 10:00:000", "2016-12-31T23:59:60Z"], TEXT),
        ] {
            for value in values {
                assert_eq!(kind(value), expected, "{value:?}");
            }
        }
    }

    #[test]
    fn spaces_around_numbers_are_noticed_and_around_texts_kept() {
        let of = |values: &[&str]| {
            let mut column = Values::new(None, "c".into());
            values.iter().for_each(|value| column.add(value, 0));
            (column.field().data_type().clone(), column.is_padded())
        };
        assert_eq!(of(&[" 1", "2"]), (DataType::Int64, true));
        assert_eq!(of(&["1", "2"]), (DataType::Int64, false));
        assert_eq!(of(&[" 1", "x"]), (DataType::Utf8, false));
        assert_eq!(of(&[" ", "1"]), (DataType::Utf8, false));
        assert_eq!(of(&["2024-01-01", " 2024-01-01 10:00:00.5"]), (DataType::Timestamp(TimeUnit::Millisecond, None), true));
    }
}
