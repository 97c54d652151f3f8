//! A table of many types, with the values on which readers and engines disagree most.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array, DurationMillisecondArray, Float32Array, Float64Array, Int8Array,
    Int32Builder, Int64Array, ListArray, ListBuilder, StringArray, StringBuilder, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Fields, i256};
use arrow::record_batch::RecordBatch;

const FLOATS: [Option<f64>; 10] =
    [Some(f64::NAN), Some(0.0), Some(-0.0), Some(f64::INFINITY), Some(f64::NEG_INFINITY), Some(5e-324), Some(1.5), Some(-2.25), Some(1e300), None];
const TEXTS: [Option<&str>; 11] = [
    Some(""),
    Some("a"),
    Some("ä"),
    Some("a\u{308}"),
    Some("ß"),
    Some("日本"),
    Some("🧬 gene"),
    Some("quote's \"tab\"\t, comma"),
    Some("A"),
    Some("name that is longer than what a view holds itself"),
    None,
];
/// Around the hour that Rome has twice, and the one that it has not.
const MOMENTS: [Option<i64>; 7] = [Some(1_729_987_200), Some(1_729_990_800), Some(1_711_846_800), Some(1_711_850_400), Some(-1), Some(7_258_118_399), None];

/// Row `i` of a column that repeats `values`.
fn at<T: Copy>(values: &[Option<T>], i: usize) -> Option<T> {
    values[(i * 7 + i / values.len()) % values.len()]
}

fn column<T: Copy, A: FromIterator<Option<T>>>(rows: std::ops::Range<usize>, values: &[Option<T>]) -> A {
    rows.map(|i| at(values, i)).collect()
}

fn nested(rows: std::ops::Range<usize>) -> ListArray {
    let mut lists = ListBuilder::new(ListBuilder::new(StringBuilder::new()));
    for i in rows {
        if i % 5 == 4 {
            lists.append_null();
            continue;
        }
        for inner in 0..i % 3 {
            if (i + inner) % 4 == 3 {
                lists.values().append_null();
                continue;
            }
            (0..=inner).for_each(|n| lists.values().values().append_option(at(&TEXTS, i + n)));
            lists.values().append(true);
        }
        lists.append(true);
    }
    lists.finish()
}

fn list(rows: std::ops::Range<usize>) -> ListArray {
    let mut lists = ListBuilder::new(Int32Builder::new());
    for i in rows {
        if i % 6 == 5 {
            lists.append_null();
        } else {
            lists.append_value((0..i % 4).map(|n| (n != 1).then_some((i * 31 % 17) as i32 - n as i32)));
        }
    }
    lists.finish()
}

fn pair(rows: std::ops::Range<usize>) -> StructArray {
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true), Field::new("s", DataType::Utf8, true)]);
    // DataFusion alone shows what is below a struct that is NULL; so nothing is there.
    let is_there = |i: &usize| i % 8 != 7;
    let n: Int64Array = rows.clone().map(|i| (i % 3 != 0 && is_there(&i)).then_some(i as i64 % 11)).collect();
    let s: StringArray = rows.clone().map(|i| at(&TEXTS, i).filter(|_| is_there(&i))).collect();
    let nulls = rows.map(|i| is_there(&i)).collect();
    StructArray::new(fields, vec![Arc::new(n), Arc::new(s)], Some(nulls))
}

/// Rows `rows` of the table.
pub(crate) fn values(rows: std::ops::Range<usize>) -> RecordBatch {
    let all = || rows.clone();
    let floats32: Vec<Option<f32>> = FLOATS.iter().map(|f| f.map(|f| f as f32)).collect();
    let times = |factor: i64| MOMENTS.map(|m| m.map(|m| m * factor + factor / 2)).to_vec();
    let cents = [Some(0), Some(-1), Some(1), Some(999_999_999_999), Some(-999_999_999_999), Some(150), None];
    let wide = [Some(i256::from(0)), Some(i256::from_i128(i128::MAX)), Some(i256::from_i128(i128::MIN)), Some(i256::from(7)), None];
    let short: TimestampNanosecondArray = column(all(), &[Some(0), Some(-1), Some(1_711_850_400_000_000_001), Some(4_102_444_800_000_000_000), None]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(all().map(|i| Some(i as i64)).collect::<Int64Array>())),
        ("flag", Arc::new(column::<bool, BooleanArray>(all(), &[Some(true), Some(false), None]))),
        ("tiny", Arc::new(column::<i8, Int8Array>(all(), &[Some(i8::MIN), Some(-1), Some(0), Some(i8::MAX), None]))),
        ("big", Arc::new(column::<u64, UInt64Array>(all(), &[Some(u64::MAX), Some(0), Some(1 << 63), Some(i64::MAX as u64), None]))),
        ("f", Arc::new(column::<f64, Float64Array>(all(), &FLOATS))),
        ("g", Arc::new(column::<f32, Float32Array>(all(), &floats32))),
        ("money", Arc::new(column::<i128, Decimal128Array>(all(), &cents).with_precision_and_scale(12, 2).unwrap())),
        ("wide", Arc::new(column::<i256, Decimal256Array>(all(), &wide).with_precision_and_scale(60, 10).unwrap())),
        ("day", Arc::new(column::<i32, Date32Array>(all(), &[Some(0), Some(-719_162), Some(19_782), Some(2_932_896), None]))),
        ("at", Arc::new(short)),
        ("zoned", Arc::new(column::<i64, TimestampMicrosecondArray>(all(), &times(1_000_000)).with_timezone("Europe/Rome"))),
        ("utc", Arc::new(column::<i64, TimestampMillisecondArray>(all(), &times(1000)).with_timezone("UTC"))),
        ("secs", Arc::new(column::<i64, TimestampSecondArray>(all(), &times(1)))),
        ("time", Arc::new(column::<i64, Time64MicrosecondArray>(all(), &[Some(0), Some(1), Some(86_399_999_999), None]))),
        ("lasts", Arc::new(column::<i64, DurationMillisecondArray>(all(), &[Some(0), Some(-5), Some(1 << 40), None]))),
        ("name", Arc::new(column::<&str, StringArray>(all(), &TEXTS))),
        ("bytes", Arc::new(column::<&[u8], BinaryArray>(all(), &[Some(b"\0"), Some(b""), Some(b"\xff\xfe"), Some(b"ab"), None]))),
        ("list", Arc::new(list(all()))),
        ("nested", Arc::new(nested(all()))),
        ("pair", Arc::new(pair(all()))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

/// Queries over it; `true` where the order of rows is part of the answer.
pub(crate) const QUERIES: [(&str, bool); 40] = [
    ("SELECT * FROM lab.plain", false),
    ("SELECT id, f, g FROM lab.plain WHERE f = 0", false),
    ("SELECT id, f FROM lab.plain WHERE f > 1", false),
    ("SELECT id FROM lab.plain WHERE f < 0 OR g >= 1.5", false),
    ("SELECT id FROM lab.plain WHERE isnan(f)", false),
    ("SELECT id FROM lab.plain WHERE f IS NOT DISTINCT FROM g", false),
    ("SELECT min(f), max(f), min(g), max(g), count(f), count(g) FROM lab.plain", true),
    ("SELECT min(f), max(f) FROM lab.plain WHERE NOT isnan(f)", true),
    ("SELECT f, count(*), min(id) FROM lab.plain GROUP BY f", false),
    ("SELECT DISTINCT g FROM lab.plain", false),
    ("SELECT count(DISTINCT f), count(DISTINCT name), count(DISTINCT money), count(DISTINCT zoned) FROM lab.plain", true),
    ("SELECT id, f FROM lab.plain ORDER BY f DESC NULLS LAST, id LIMIT 200", true),
    ("SELECT id, -f, abs(g), f / 2, CAST(g AS DOUBLE) FROM lab.plain", false),
    ("SELECT money, count(*), sum(money), min(money), avg(money) FROM lab.plain GROUP BY money", false),
    ("SELECT sum(money), avg(money), sum(wide), min(wide), max(wide) FROM lab.plain", true),
    ("SELECT id, money + 1, money * 2, CAST(money AS DOUBLE) FROM lab.plain WHERE money BETWEEN -1.00 AND 10.00", false),
    ("SELECT id, wide FROM lab.plain WHERE wide > 0", false),
    ("SELECT min(zoned), max(zoned), min(utc), max(at), min(secs), max(day) FROM lab.plain", true),
    ("SELECT date_trunc('day', zoned), count(*) FROM lab.plain GROUP BY 1", false),
    ("SELECT id, extract(HOUR FROM zoned), extract(HOUR FROM utc), extract(DOW FROM secs), extract(YEAR FROM day) FROM lab.plain", false),
    ("SELECT id, zoned + INTERVAL '1' DAY, utc - INTERVAL '1' HOUR FROM lab.plain WHERE id < 50", false),
    ("SELECT id FROM lab.plain WHERE zoned > TIMESTAMP '2024-03-31T01:00:00Z' AND zoned = utc", false),
    ("SELECT id, at FROM lab.plain WHERE at >= TIMESTAMP '2024-03-31 02:00:00'", false),
    ("SELECT time, count(*), max(lasts) FROM lab.plain GROUP BY time", false),
    ("SELECT name, count(*), min(id) FROM lab.plain GROUP BY name", false),
    ("SELECT id, upper(name), length(name), name || '!', substring(name, 1, 2) FROM lab.plain", false),
    ("SELECT id, name FROM lab.plain WHERE name LIKE '%ä%' OR name >= '日'", false),
    ("SELECT min(name), max(name), min(bytes), max(bytes) FROM lab.plain", true),
    ("SELECT bytes, count(*) FROM lab.plain GROUP BY bytes", false),
    ("SELECT id, list, nested, pair FROM lab.plain WHERE id % 7 = 0", false),
    ("SELECT id, list[1], array_length(list), pair['s'], pair['n'] FROM lab.plain", false),
    ("SELECT list, count(*) FROM lab.plain GROUP BY list", false),
    ("SELECT pair, max(id) FROM lab.plain GROUP BY pair", false),
    ("SELECT v, count(*) FROM (SELECT id, unnest(list) AS v FROM lab.plain) AS a GROUP BY v", false),
    ("SELECT id FROM lab.plain WHERE nested IS NULL OR pair IS NULL OR flag IS NOT TRUE", false),
    ("SELECT big, tiny, count(*) FROM lab.plain WHERE big > 9223372036854775806 GROUP BY big, tiny", false),
    ("SELECT a.f, count(*) FROM lab.plain a JOIN lab.plain b ON a.f = b.f GROUP BY a.f", false),
    ("SELECT a.id AS one, b.id AS other FROM lab.plain a LEFT JOIN lab.plain b ON a.name = b.name AND b.id < 12 WHERE a.id < 60", false),
    ("SELECT name, id, row_number() OVER (PARTITION BY name ORDER BY id), lag(f) OVER (PARTITION BY name ORDER BY id) FROM lab.plain WHERE id < 300", false),
    ("SELECT id FROM lab.plain WHERE money = (SELECT max(money) FROM lab.plain) AND id NOT IN (SELECT tiny FROM lab.plain WHERE tiny IS NOT NULL)", false),
];
