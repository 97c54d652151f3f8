//! Times that nanoseconds do not hold, for functions that calculate with nanoseconds.
//!
//! The calendar repeats after 400 years, which are whole weeks. So such a function gets a time of the same day 400,
//! 800, or more years before or after, and its result moves back. This holds for times of UTC and of fixed offsets.
//! Zones with a summer time have other rules in other years: what they show is moved, as a time without a zone.

use datafusion::arrow::array::temporal_conversions::as_datetime_with_timezone;
use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, make_array};
use datafusion::arrow::compute::{cast, max, min};
use datafusion::arrow::datatypes::{DataType, Int64Type, TimeUnit, TimestampSecondType};
use datafusion::common::{Result, exec_datafusion_err};

/// Seconds of 400 years.
const PERIOD: i128 = 146_097 * 86_400;

/// The year 1800, in seconds. Results may be much earlier than the 400 years that begin here, or later.
const FIRST: i128 = -5_364_662_400;

/// Months of 400 years.
pub(super) const MONTHS: i32 = 4_800;

/// Times that nanoseconds hold, and by how many of their units each was moved.
pub(super) struct Moved {
    pub(super) times: ArrayRef,
    by: Vec<i128>,
}

impl Moved {
    /// None where nanoseconds hold all of `times`, and results near them.
    pub(super) fn of(times: &ArrayRef) -> Result<Option<Self>> {
        let DataType::Timestamp(unit, _) = times.data_type() else { return Ok(None) };
        let numbers = cast(times, &DataType::Int64)?;
        let numbers = numbers.as_primitive::<Int64Type>();
        // 250 years before and after 1970.
        let most = 7_889_400_000_i64.saturating_mul(per_second(*unit));
        let within = [min(numbers), max(numbers)].into_iter().flatten().all(|time| (-most..=most).contains(&time));
        if within || *unit == TimeUnit::Nanosecond {
            return Ok(None);
        }
        let (first, period) = (FIRST * i128::from(per_second(*unit)), PERIOD * i128::from(per_second(*unit)));
        // It fits: it is within 400 years from the first.
        let near = |time: i64| (first + (i128::from(time) - first).rem_euclid(period)) as i64;
        let moved: Int64Array = numbers.unary(near);
        let by = numbers.values().iter().zip(moved.values()).map(|(time, near)| i128::from(*time) - i128::from(*near)).collect();
        Ok(Some(Self { times: labelled(&moved, times.data_type())?, by }))
    }

    /// `results` for the times where they were.
    pub(super) fn back(&self, results: &ArrayRef) -> Result<ArrayRef> {
        let numbers = cast(results, &DataType::Int64)?;
        let back = |(time, by): (Option<i64>, &i128)| {
            let early = |_| exec_datafusion_err!("the result is before the first time that its type holds");
            let there = |time: i64| i64::try_from(i128::from(time) + by).map_err(early);
            time.map(there).transpose()
        };
        let moved: Int64Array = numbers.as_primitive::<Int64Type>().iter().zip(&self.by).map(back).collect::<Result<_>>()?;
        labelled(&moved, results.data_type())
    }
}

/// Whether all days of a zone have 24 hours.
pub(super) fn is_even(zone: Option<&str>) -> bool {
    zone.is_none_or(|zone| matches!(zone, "UTC" | "Z") || zone.starts_with(['+', '-']))
}

/// For each of `times` whether nanoseconds do not hold it.
pub(super) fn beyond(times: &ArrayRef, unit: TimeUnit) -> Result<BooleanArray> {
    let numbers = cast(times, &DataType::Int64)?;
    let ratio = 1_000_000_000 / per_second(unit);
    Ok(BooleanArray::from_unary(numbers.as_primitive::<Int64Type>(), |time| time.checked_mul(ratio).is_none()))
}

/// What `times` show in their zone, in whole seconds, as times without a zone.
pub(super) fn shown(times: &ArrayRef, unit: TimeUnit, zone: &str) -> Result<ArrayRef> {
    let (zone, numbers) = (zone.parse::<Tz>()?, cast(times, &DataType::Int64)?);
    let local = |time: i64| {
        let time = as_datetime_with_timezone::<TimestampSecondType>(time.div_euclid(per_second(unit)), zone);
        time.map(|time| time.naive_local().and_utc().timestamp()).ok_or_else(|| exec_datafusion_err!("there is no such year in the calendar"))
    };
    let numbers: Int64Array = numbers.as_primitive::<Int64Type>().try_unary(local)?;
    labelled(&numbers, &DataType::Timestamp(TimeUnit::Second, None))
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn labelled(numbers: &Int64Array, of: &DataType) -> Result<ArrayRef> {
    Ok(make_array(numbers.to_data().into_builder().data_type(of.clone()).build()?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn far_times_move_by_whole_periods_and_back() {
        for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond] {
            let one = per_second(unit);
            let of = DataType::Timestamp(unit, Some("+02:00".into()));
            let numbers = Int64Array::from(vec![Some(253_402_300_799 * one), None, Some(-62_135_596_800 * one), Some(0), Some(i64::MIN), Some(i64::MAX)]);
            let times = labelled(&numbers, &of).unwrap();
            let moved = Moved::of(&times).unwrap().unwrap();
            assert_eq!((beyond(&moved.times, unit).unwrap().true_count(), beyond(&times, unit).unwrap().true_count()), (0, 4));
            assert!(moved.by.iter().all(|by| by % (PERIOD * i128::from(one)) == 0));
            assert_eq!(&moved.back(&moved.times).unwrap(), &times);
            // 9999-12-31 is the last day of a year, as 1999-12-31 is.
            assert_eq!(cast(&moved.times, &DataType::Int64).unwrap().as_primitive::<Int64Type>().value(0), 946_684_799 * one);
        }
        let near: ArrayRef = labelled(&Int64Array::from(vec![0, 1]), &DataType::Timestamp(TimeUnit::Second, None)).unwrap();
        assert!(Moved::of(&near).unwrap().is_none());
        assert!(Moved::of(&(Arc::new(Int64Array::from(vec![i64::MAX])) as ArrayRef)).unwrap().is_none());
    }
}
