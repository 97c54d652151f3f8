use super::*;
use arrow::array::*;
use arrow::datatypes::{Field, Int8Type, Int32Type};

fn key(of: KeyType) -> Vec<Key> {
    vec![Key { column: "k".into(), of }]
}

fn of(columns: &[ArrayRef], n: usize) -> Vec<usize> {
    let keys: Vec<_> = columns.iter().map(|c| Key { column: "k".into(), of: KeyType::of(c.data_type()).unwrap() }).collect();
    partitions(columns, &keys, n).unwrap()
}

/// The partition that the documented bytes give.
fn by_hand(bytes: &[u8], n: u64) -> usize {
    (XxHash64::oneshot(0, bytes) % n) as usize
}

/// Stored rows were partitioned by this function: these numbers must never change.
#[test]
fn the_hash_is_kept() {
    let integers: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(-1), Some(42), Some(i64::MAX), None]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some(""), Some("a"), Some("änder"), Some("🧬 gene"), None]));
    assert_eq!(of(&[integers], 1000), KEPT_INTEGERS);
    assert_eq!(of(&[texts], 1000), KEPT_TEXTS);
}

/// Worked out by another program than ours, from XXH64's description.
const KEPT_INTEGERS: [usize; 6] = [958, 467, 230, 753, 409, 544];
const KEPT_TEXTS: [usize; 5] = [502, 899, 785, 889, 544];

#[test]
fn the_bytes_are_those_of_the_description() {
    let n = 1009;
    let number = |v: i64| [&[1][..], &v.to_le_bytes()].concat();
    let text = |v: &str| [&[1][..], &(v.len() as u32).to_le_bytes(), v.as_bytes()].concat();
    assert_eq!(of(&[Arc::new(Int32Array::from(vec![Some(-7), None]))], n), [by_hand(&number(-7), 1009), by_hand(&[0], 1009)]);
    assert_eq!(of(&[Arc::new(StringArray::from(vec!["ab"]))], n), [by_hand(&text("ab"), 1009)]);
    assert_eq!(of(&[Arc::new(BooleanArray::from(vec![true, false]))], n), [by_hand(&[1, 1], 1009), by_hand(&[1, 0], 1009)]);
    let cents = Decimal128Array::from(vec![-12_345i128]).with_precision_and_scale(12, 2).unwrap();
    assert_eq!(of(&[Arc::new(cents)], n), [by_hand(&[&[1][..], &(-12_345i128).to_le_bytes()].concat(), 1009)]);
    let both = of(&[Arc::new(Int8Array::from(vec![Some(3), None])), Arc::new(StringViewArray::from(vec!["x", "y"]))], n);
    assert_eq!(both, [by_hand(&[number(3), text("x")].concat(), 1009), by_hand(&[vec![0], text("y")].concat(), 1009)]);
}

#[test]
fn equal_values_are_together_however_they_are_held() {
    let (numbers, n) = (0..200u8, 7);
    let forms: [ArrayRef; 5] = [
        Arc::new(UInt8Array::from_iter_values(numbers.clone())),
        Arc::new(Int16Array::from_iter_values(numbers.clone().map(i16::from))),
        Arc::new(UInt32Array::from_iter_values(numbers.clone().map(u32::from))),
        Arc::new(Int64Array::from_iter_values(numbers.clone().map(i64::from))),
        Arc::new(UInt64Array::from_iter_values(numbers.clone().map(u64::from))),
    ];
    for form in &forms {
        assert_eq!(of(std::slice::from_ref(form), n), of(&forms[..1], n), "{}", form.data_type());
    }
    let dictionary: DictionaryArray<Int8Type> = (0..90).map(|i| ["B", "NK", "a text that is long enough to be out of line"].get(i % 4).copied()).collect();
    let dictionary: ArrayRef = Arc::new(dictionary);
    for form in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        let plain = cast(&dictionary, &form).unwrap();
        assert_eq!(of(&[plain], n), of(std::slice::from_ref(&dictionary), n), "{form}");
    }
    let moments: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter_values((0..50).map(|i| i * 86_400_000_000)));
    let days: ArrayRef = Arc::new(Date32Array::from_iter_values(0..50));
    let times: ArrayRef = Arc::new(Time32SecondArray::from_iter_values(0..50));
    assert_eq!(of(&[days], n), of(&[Arc::new(Int32Array::from_iter_values(0..50))], n));
    assert_eq!(of(&[times], n), of(&[Arc::new(Int64Array::from_iter_values(0..50))], n));
    assert_eq!(of(&[moments], n), of(&[Arc::new(Int64Array::from_iter_values((0..50).map(|i| i * 86_400_000_000)))], n));
}

#[test]
fn many_values_are_spread_evenly() {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
    for n in [2, 5, 16] {
        let mut rows = vec![0; n];
        of(std::slice::from_ref(&values), n).into_iter().for_each(|p| rows[p] += 1);
        let even = 10_000 / n;
        assert!(rows.iter().all(|r| (even * 8 / 10..even * 12 / 10).contains(r)), "{rows:?}");
    }
}

#[test]
fn a_batch_is_split_without_loss_and_in_order() {
    let k: ArrayRef = Arc::new(Int32Array::from_iter((0..100).map(|i| (i % 9 != 0).then_some(i % 13))));
    let row: ArrayRef = Arc::new(UInt32Array::from_iter_values(0..100));
    let batch = RecordBatch::try_from_iter([("k", k), ("row", row)]).unwrap();
    let parts = split(&batch, &key(KeyType::Integer), 3).unwrap();
    assert_eq!(parts.len(), 3);
    let mut seen = vec![];
    for part in &parts {
        let rows: Vec<_> = part.column(1).as_primitive::<arrow::datatypes::UInt32Type>().values().to_vec();
        assert!(rows.is_sorted());
        seen.extend(rows);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    let holders = |value: Option<i32>| parts.iter().filter(|p| p.column(0).as_primitive::<Int32Type>().iter().any(|v| v == value)).count();
    assert!((0..13).map(Some).chain([None]).all(|v| holders(v) == 1));
}

#[test]
fn unsupported_keys_are_refused_by_name() {
    let fields = [
        Field::new("id", DataType::Int64, true),
        Field::new("price", DataType::Float64, true),
        Field::new("tags", DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))), true),
        Field::new("span", DataType::Interval(arrow::datatypes::IntervalUnit::YearMonth), true),
    ];
    let schema = Schema::new(fields.to_vec());
    let error = |columns: &[&str]| keys(&schema, &columns.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap_err().to_string();
    assert!(error(&["price"]).contains("\"price\"") && error(&["price"]).contains("fraction"), "{}", error(&["price"]));
    assert!(error(&["tags"]).contains("\"tags\""));
    assert!(error(&["span"]).contains("\"span\""));
    assert!(error(&["nothing"]).contains("\"nothing\"") && error(&["nothing"]).contains("price"));
    assert!(error(&["id", "id"]).contains("twice"));
    assert!(keys(&schema, &[]).is_err());
    assert_eq!(keys(&schema, &["id".into()]).unwrap(), [Key { column: "id".into(), of: KeyType::Integer }]);
}

#[test]
fn types_of_keys_are_written_and_read() {
    use KeyType as K;
    let unit = TimeUnit::Microsecond;
    let all = [
        K::Integer,
        K::Text,
        K::Bytes,
        K::Boolean,
        K::Date,
        K::Timestamp(unit),
        K::Zoned(TimeUnit::Nanosecond),
        K::Time(TimeUnit::Second),
        K::Duration(TimeUnit::Millisecond),
        K::Decimal(2),
        K::Decimal256(-3),
    ];
    for of in all {
        assert_eq!(of.to_string().parse::<KeyType>().unwrap(), of);
    }
    for text in ["float", "decimal", "timestamp[h]", "decimal[2", "integer[1]", ""] {
        assert!(text.parse::<KeyType>().is_err(), "{text}");
    }
}
