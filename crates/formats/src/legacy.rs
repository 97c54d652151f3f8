//! Parquet's times of 96 bits, which say more than the Arrow type that they are read as.
//!
//! An INT96 is a day and nanoseconds within it. The library reads it as 64 bits of a unit and wraps around beyond them:
//! as nanoseconds, 9999-12-31 would silently be a day of 1816. So all values of these columns are looked at before
//! anything is ingested.

use std::collections::HashMap;
use std::path::Path;

use arrow::datatypes::TimeUnit;
use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::data_type::Int96;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use skytether_common::{Error, Result};

use super::guard::corrupt;
use super::source::{Failure, FileSource};

/// The day of 1970-01-01 in the Julian count of INT96.
const EPOCH: i64 = 2_440_588;
const NANOS_OF_DAY: i128 = 86_400_000_000_000;

/// The units of time, from the finest, and their nanoseconds.
const UNITS: [(TimeUnit, i128); 4] =
    [(TimeUnit::Nanosecond, 1), (TimeUnit::Microsecond, 1000), (TimeUnit::Millisecond, 1_000_000), (TimeUnit::Second, 1_000_000_000)];

/// Values that are decoded at a time.
const AT_ONCE: usize = 8192;

/// The units that hold every value of a column exactly, in the order of [`UNITS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Units([bool; 4]);

impl Units {
    const ALL: Self = Self([true; 4]);

    fn of(value: &Int96) -> Self {
        let [low, high, day] = *value.data() else { return Self([false; 4]) };
        // The library takes the day as a signed number.
        let days = i128::from(i64::from(day as i32) - EPOCH);
        let nanos = days * NANOS_OF_DAY + i128::from((u64::from(high) << 32) as i64) + i128::from(low);
        Self(UNITS.map(|(_, unit)| nanos % unit == 0 && i64::try_from(nanos / unit).is_ok()))
    }

    pub(super) fn and(self, other: Self) -> Self {
        let mut both = self.0;
        both.iter_mut().zip(other.0).for_each(|(a, b)| *a &= b);
        Self(both)
    }

    /// The finest of them, if there is one.
    pub(super) fn finest(self) -> Option<TimeUnit> {
        UNITS.iter().zip(self.0).find(|(_, fits)| *fits).map(|((unit, _), _)| *unit)
    }
}

/// The units of each INT96 column, by its path.
///
/// # Errors
/// `Invalid`, naming column and row, for times that no unit holds together with those before them; `Corrupt` for
/// damage.
pub(super) fn look_at(path: &Path, source: FileSource, metadata: &ParquetMetaData, failure: &Failure) -> Result<HashMap<String, Units>> {
    let columns = metadata.file_metadata().schema_descr();
    let strange: Vec<usize> = (0..columns.num_columns()).filter(|&at| columns.column(at).physical_type() == Type::INT96).collect();
    let mut found = HashMap::new();
    if strange.is_empty() {
        return Ok(found);
    }
    let wrong = |e: ParquetError| corrupt(path, "Parquet", failure, e);
    let reader = SerializedFileReader::new(source).map_err(wrong)?;
    for at in strange {
        let column = columns.column(at);
        let name = column.path().string();
        let (mut rows, mut units) = (0, Units::ALL);
        for group in 0..reader.num_row_groups() {
            let pages = reader.get_row_group(group).and_then(|group| group.get_column_reader(at)).map_err(wrong)?;
            match pages {
                ColumnReader::Int96ColumnReader(mut pages) => {
                    let mut visit = |row: u64, value: &Int96| {
                        let both = units.and(Units::of(value));
                        units = both;
                        if both.finest().is_some() {
                            return Ok(());
                        }
                        Err(Error::invalid(format!(
                            "{}: column {name:?}, row {row}: no unit of time holds this INT96 value and those before it in 64 bits (nanoseconds reach from 1677 to 2262): write the column as TIMESTAMP(MICROS)",
                            path.display()
                        )))
                    };
                    rows = each_value(&column, rows, &mut visit, |most, defined, repeated, values| pages.read_records(most, defined, repeated, values), wrong)?;
                }
                _ => return Err(Error::corrupt(format!("{}: column {name:?} is of another type than its schema says", path.display()))),
            }
        }
        found.insert(name, units);
    }
    Ok(found)
}

type Levels<'a> = Option<&'a mut Vec<i16>>;

/// Calls `visit` with every value of a column of a row group, and its row from 1, after `before` rows. Gives the rows
/// including those of the group.
fn each_value<T>(
    column: &ColumnDescriptor,
    before: u64,
    visit: &mut dyn FnMut(u64, &T) -> Result<()>,
    mut read: impl FnMut(usize, Levels<'_>, Levels<'_>, &mut Vec<T>) -> std::result::Result<(usize, usize, usize), ParquetError>,
    wrong: impl Fn(ParquetError) -> Error,
) -> Result<u64> {
    let (mut values, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    let (most_defined, nested) = (column.max_def_level(), column.max_rep_level() > 0);
    let mut row = before;
    loop {
        values.clear();
        defined.clear();
        repeated.clear();
        let (levels, lists) = ((most_defined > 0).then_some(&mut defined), nested.then_some(&mut repeated));
        let (records, _, _) = read(AT_ONCE, levels, lists, &mut values).map_err(&wrong)?;
        if records == 0 {
            return Ok(row);
        }
        let places = if most_defined > 0 { defined.len() } else { values.len() };
        let mut next = values.iter();
        for place in 0..places {
            if !nested || repeated.get(place) == Some(&0) {
                row += 1;
            }
            if most_defined == 0 || defined.get(place) == Some(&most_defined) {
                let Some(value) = next.next() else { break };
                visit(row, value)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: i64, nanos: u64) -> Int96 {
        Int96::from(vec![nanos as u32, (nanos >> 32) as u32, (day + EPOCH) as u32])
    }

    #[test]
    fn the_finest_unit_that_holds_a_time_is_taken() {
        for (day, nanos, unit) in [
            (0, 1, Some(TimeUnit::Nanosecond)),
            (106_751, 0, Some(TimeUnit::Nanosecond)),
            // 2262-04-12 and 9999-12-31.
            (106_752, 0, Some(TimeUnit::Microsecond)),
            (2_932_896, 86_399_999_999_000, Some(TimeUnit::Microsecond)),
            (2_932_896, 86_399_999_999_999, None),
            // Beyond the year 292,277 microseconds do not reach.
            (106_751_992, 0, Some(TimeUnit::Millisecond)),
            (106_751_992, 1000, None),
            (-719_162, 0, Some(TimeUnit::Microsecond)),
        ] {
            assert_eq!(Units::of(&at(day, nanos)).finest(), unit, "{day} {nanos}");
        }
        let both = Units::of(&at(0, 1)).and(Units::of(&at(2_932_896, 0)));
        assert_eq!(both.finest(), None);
    }
}
