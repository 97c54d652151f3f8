use super::*;
use arrow::array::{AsArray, DictionaryArray, TimestampMillisecondArray};
use arrow::datatypes::{Field, Float64Type, Int32Type, Schema};

fn of(arrays: Vec<ArrayRef>) -> Option<ColumnStats> {
    let data_type = arrays[0].data_type().clone();
    let schema = Arc::new(Schema::new(vec![Field::new("a", data_type.clone(), true)]));
    let batches: Vec<_> = arrays.into_iter().map(|a| RecordBatch::try_new(Arc::clone(&schema), vec![a]).unwrap()).collect();
    column_stats(&batches, 0, &data_type).unwrap()
}

fn floats(values: Vec<Option<f64>>) -> ColumnStats {
    of(vec![Arc::new(Float64Array::from(values))]).unwrap()
}

#[test]
fn a_nan_leaves_a_column_without_bounds() {
    for values in [vec![Some(1.0), Some(f64::NAN)], vec![Some(-f64::NAN), None], vec![Some(f64::NAN)]] {
        let stats = floats(values.clone());
        assert!(stats.min.is_null(0) && stats.max.is_null(0), "{values:?}");
    }
    let split: Vec<ArrayRef> = vec![Arc::new(Float64Array::from(vec![1.0])), Arc::new(Float64Array::from(vec![f64::NAN]))];
    assert!(of(split).unwrap().max.is_null(0));
    assert_eq!(f64_bounds(&[1.0, f64::NAN]), None);
}

#[test]
fn bounds_of_zero_take_the_sign_that_is_safe() {
    let stats = floats(vec![Some(0.0), Some(-0.0), None]);
    assert!(stats.min.as_primitive::<Float64Type>().value(0).is_sign_negative());
    assert!(stats.max.as_primitive::<Float64Type>().value(0).is_sign_positive());
    assert_eq!(stats.nulls, 1);
    let (min, max) = f64_bounds(&[0.0]).unwrap();
    assert!(min.is_sign_negative() && max.is_sign_positive());
}

#[test]
fn long_strings_are_bounded_by_shorter_ones() {
    for text in ["é".repeat(60), "\u{10ffff}".repeat(20) + "x", "\u{d7ff}".repeat(30), "a".repeat(65)] {
        let stats = of(vec![Arc::new(StringArray::from(vec![text.as_str()]))]).unwrap();
        let min = stats.min.as_string::<i32>().value(0);
        assert!(min.len() <= MAX_BOUND && *min <= *text);
        if stats.max.is_valid(0) {
            let max = stats.max.as_string::<i32>().value(0);
            assert!(*max > *text && max.len() <= MAX_BOUND + 4, "{max} {text}");
        } else {
            assert!(text.starts_with('\u{10ffff}'));
        }
    }
    assert_eq!(bytes_above(&[0xff; 65]), None);
    assert_eq!(bytes_above(&[&[1u8; 63][..], &[0xff, 0xff]].concat()), Some([&[1u8; 62][..], &[2]].concat()));
}

#[test]
fn zones_survive_and_dictionaries_are_unpacked() {
    let times = TimestampMillisecondArray::from(vec![Some(5), None, Some(-3)]).with_timezone("Europe/Berlin");
    let stats = of(vec![Arc::new(times.clone())]).unwrap();
    assert_eq!(stats.min.data_type(), times.data_type());
    let words: DictionaryArray<Int32Type> = vec![Some("b"), None, Some("a")].into_iter().collect();
    let stats = of(vec![Arc::new(words)]).unwrap();
    assert_eq!((stats.min.as_string::<i32>().value(0), stats.max.as_string::<i32>().value(0), stats.nulls), ("a", "b", 1));
}

#[test]
fn all_nulls_are_counted_and_unbounded() {
    let stats = of(vec![Arc::new(StringArray::from(vec![None::<&str>; 3]))]).unwrap();
    assert!(stats.min.is_null(0) && stats.max.is_null(0));
    assert_eq!(stats.nulls, 3);
}

#[test]
fn a_dictionarys_values_are_looked_at_once_and_only_where_used() {
    let long = "m".repeat(1 << 20);
    let values = Arc::new(StringArray::from(vec![Some("unused a"), Some(&long), None, Some("z unused"), Some("b")]));
    let keys: Vec<Option<i32>> = (0..100_000).map(|i| [Some(1), None, Some(2), Some(4)][i % 4]).collect();
    let array: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys.into(), values));
    // Row by row these would be 25 GiB, more than a text column can hold.
    let used = unpack(&array, &DataType::Utf8).unwrap();
    assert_eq!(used.len(), 3);
    let stats = of(vec![array]).unwrap();
    assert_eq!((stats.min.as_string::<i32>().value(0), stats.nulls), ("b", 50_000));
    assert_eq!(stats.max.as_string::<i32>().value(0), format!("{}n", "m".repeat(MAX_BOUND - 1)));
    let none: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(vec![None, None].into(), Arc::new(StringArray::from(vec!["unused"]))));
    let stats = of(vec![none]).unwrap();
    assert!(stats.min.is_null(0) && stats.nulls == 2);
}
