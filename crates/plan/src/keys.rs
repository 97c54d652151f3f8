//! Join filters: keys of one side of a join, sent to drives that read the other side.
//!
//! A sub-plan has `__among(column, name)`, and the set of that name travels with it.
//!
//! A set has one of two forms; its first byte says which:
//! - `M`: a bitmap of whole numbers, dates or times as 64-bit numbers. It has the least of them (i64 LE), then the
//!   distance of each from it as a Roaring bitmap (the portable format). It is exact, and small where keys are dense. A
//!   look-up takes a nanosecond.
//! - `B`: Parquet's split block Bloom filter (header and bitset, as in a Parquet file), over the keys in one form per
//!   kind of type: numbers as above, decimals as 128-bit numbers, texts and binary as their bytes.
//!
//! So host and drive need only agree on the column's type, which the plan says. The set is not a literal of the plan:
//! planners copy and print literals freely, which took seconds for a set of a few hundred kilobytes.
//!
//! A set is a hint: the join checks every row. Where a set has turned out to pass nearly all rows, most batches
//! skip it.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal128Type};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use parquet::bloom_filter::Sbbf;
use roaring::RoaringBitmap;
use skytether_partitioning::integers;

/// The function's name in sub-plans.
pub const AMONG: &str = "__among";

/// How many rows that no key matches get through a Bloom filter, about.
const FALSE_POSITIVES: f64 = 0.02;

/// Numbers further apart are no bitmap: it would take 8 MiB of a drive.
const FURTHEST: u64 = 1 << 26;

/// Bytes that the unpacked bitmaps of a sub-plan may take together. Further ones stay packed, and look-ups in them are
/// slower.
const SPREAD_OUT: usize = 16 << 20;

/// A bitmap may be this many times as long as a Bloom filter of the same keys: it drops more rows, and is faster.
const LONGER: usize = 3;

/// Rows after which the share that a set drops is known.
const SEEN: u64 = 1 << 16;

/// Where a set drops less than an eighth of the rows, one of this many batches is tested against it.
const NOW_AND_THEN: u64 = 16;

/// The sets of join keys of a sub-plan, by name.
#[derive(Debug, Clone, Default)]
pub struct KeySets(Arc<BTreeMap<String, KeySet>>);

impl KeySets {
    /// Reads sets as [`set_of`] writes them.
    ///
    /// # Errors
    /// Where bytes are no set.
    pub fn read(sets: &BTreeMap<String, bytes::Bytes>) -> Result<Self> {
        let mut room = SPREAD_OUT;
        let read = sets.iter().map(|(name, bytes)| {
            let form = Form::read(bytes, &mut room).map_err(|e| exec_datafusion_err!("the set of keys {name:?} is malformed: {e}"))?;
            Ok((name.clone(), KeySet { form, rows: AtomicU64::new(0), kept: AtomicU64::new(0), calls: AtomicU64::new(0) }))
        });
        Ok(Self(Arc::new(read.collect::<Result<_>>()?)))
    }
}

/// One set, with its effect so far.
#[derive(Debug)]
struct KeySet {
    form: Form,
    rows: AtomicU64,
    kept: AtomicU64,
    calls: AtomicU64,
}

impl KeySet {
    /// For each row whether its key may be in the set; NULL or true for NULL.
    fn check(&self, column: &ArrayRef) -> Result<BooleanArray> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let (rows, kept) = (self.rows.load(Ordering::Relaxed), self.kept.load(Ordering::Relaxed));
        if rows >= SEEN && kept > rows / 8 * 7 && !call.is_multiple_of(NOW_AND_THEN) {
            return Ok(BooleanArray::new(BooleanBuffer::new_set(column.len()), None));
        }
        let found = self.form.check(&Keys::of(column)?)?;
        self.rows.fetch_add(column.len() as u64, Ordering::Relaxed);
        self.kept.fetch_add(found.true_count() as u64, Ordering::Relaxed);
        Ok(found)
    }
}

#[derive(Debug)]
enum Form {
    /// The least key, and a bit for each number from it on.
    Bitmap(i64, BooleanBuffer),
    /// The least key, and how far the others are from it.
    Packed(i64, RoaringBitmap),
    Bloom(Sbbf),
}

impl Form {
    fn read(bytes: &[u8], room: &mut usize) -> Result<Self> {
        match bytes.split_first() {
            Some((b'M', rest)) => {
                let Some((least, rest)) = rest.split_first_chunk() else { return exec_err!("it is too short") };
                let least = i64::from_le_bytes(*least);
                check_containers(rest)?;
                let set = RoaringBitmap::deserialize_from(rest).map_err(|e| DataFusionError::External(Box::new(e)))?;
                let Some(furthest) = set.max().map(u64::from) else { return exec_err!("it is empty") };
                if furthest >= FURTHEST {
                    return exec_err!("its numbers are {furthest} apart, and at most {FURTHEST} are allowed");
                }
                let bytes = furthest as usize / 8 + 8;
                if bytes > *room {
                    return Ok(Form::Packed(least, set));
                }
                *room -= bytes;
                let mut words = vec![0u64; (furthest / 64 + 1) as usize];
                for at in &set {
                    words[(at / 64) as usize] |= 1 << (at % 64);
                }
                Ok(Form::Bitmap(least, BooleanBuffer::new(words.into(), 0, furthest as usize + 1)))
            }
            Some((b'B', rest)) => {
                let filter = Sbbf::from_bytes(rest).map_err(|e| DataFusionError::External(Box::new(e)))?;
                if filter.num_blocks() == 0 {
                    return exec_err!("it is empty");
                }
                Ok(Form::Bloom(filter))
            }
            _ => exec_err!("it begins with no form that is known"),
        }
    }

    fn check(&self, keys: &Keys) -> Result<BooleanArray> {
        fn each(array: &dyn Array, check: impl Fn(usize) -> bool) -> BooleanArray {
            BooleanArray::new(BooleanBuffer::collect_bool(array.len(), check), array.nulls().cloned())
        }
        Ok(match (self, keys) {
            (Form::Bitmap(least, bits), Keys::Numbers(numbers)) => {
                let (values, len) = (numbers.values(), bits.len() as u64);
                each(numbers, |row| {
                    let at = values[row].wrapping_sub(*least) as u64;
                    at < len && bits.value(at as usize)
                })
            }
            (Form::Packed(least, set), Keys::Numbers(numbers)) => {
                let values = numbers.values();
                each(numbers, |row| u32::try_from(values[row].wrapping_sub(*least) as u64).is_ok_and(|at| set.contains(at)))
            }
            (Form::Bitmap(..) | Form::Packed(..), _) => return exec_err!("a bitmap of keys is for whole numbers and times"),
            (Form::Bloom(filter), Keys::Numbers(numbers)) => each(numbers, |row| filter.check(&numbers.value(row))),
            (Form::Bloom(filter), Keys::Decimals(column)) => {
                let numbers = column.as_primitive::<Decimal128Type>();
                each(numbers, |row| filter.check(numbers.value(row).to_le_bytes().as_slice()))
            }
            (Form::Bloom(filter), Keys::Bytes(column)) => {
                let texts = column.as_binary_view();
                each(texts, |row| filter.check(texts.value(row)))
            }
        })
    }
}

/// The function `__among(column, name)`: whether the column's value may be among the keys of the set `name` of
/// `sets`; NULL or true for NULL.
#[must_use]
pub fn among_udf(sets: KeySets) -> ScalarUDF {
    ScalarUDF::from(Among { sets, signature: Signature::user_defined(Volatility::Immutable) })
}

/// Whether keys of this type can be put into a set. Floats can't: equal ones may differ in their bytes.
#[must_use]
pub fn takes(data_type: &DataType) -> bool {
    data_type.is_integer()
        || matches!(
            data_type,
            DataType::Date32
                | DataType::Date64
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Timestamp(..)
                | DataType::Decimal128(..)
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
        )
}

/// Refuses a Roaring bitmap with more containers than its numbers can need, before memory is allocated: a container of
/// a few bytes may become 8 KiB.
fn check_containers(bytes: &[u8]) -> Result<()> {
    const RUNS: u32 = 12_347;
    let word = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let Some(cookie) = word(0) else { return exec_err!("it is too short") };
    let containers = if cookie & 0xffff == RUNS { Some((cookie >> 16) + 1) } else { word(4) };
    match containers {
        Some(containers) if u64::from(containers) <= FURTHEST >> 16 => Ok(()),
        Some(containers) => exec_err!("its numbers are in {containers} containers, and may be at most {FURTHEST} apart"),
        None => exec_err!("it is too short"),
    }
}

/// The set of `keys`, nulls left out.
///
/// # Errors
/// Where the type is none that [`takes`] names.
pub fn set_of(keys: &ArrayRef) -> Result<Vec<u8>> {
    let keys = Keys::of(keys)?;
    let bloom = bloom_of(&keys)?;
    Ok(bitmap_of(&keys).filter(|bitmap| bitmap.len() <= bloom.len().saturating_mul(LONGER)).unwrap_or(bloom))
}

fn bitmap_of(keys: &Keys) -> Option<Vec<u8>> {
    let Keys::Numbers(numbers) = keys else { return None };
    let (least, most) = (datafusion::arrow::compute::min(numbers)?, datafusion::arrow::compute::max(numbers)?);
    if most.abs_diff(least) >= FURTHEST {
        return None;
    }
    let mut set: RoaringBitmap = numbers.iter().flatten().map(|n| n.abs_diff(least) as u32).collect();
    set.optimize();
    let mut bytes = vec![b'M'];
    bytes.extend_from_slice(&least.to_le_bytes());
    set.serialize_into(&mut bytes).ok()?;
    Some(bytes)
}

fn bloom_of(keys: &Keys) -> Result<Vec<u8>> {
    let len = match keys {
        Keys::Numbers(numbers) => numbers.len(),
        Keys::Decimals(column) | Keys::Bytes(column) => column.len(),
    };
    let mut filter = Sbbf::new_with_ndv_fpp(len.max(1) as u64, FALSE_POSITIVES).map_err(|e| exec_datafusion_err!("cannot make a Bloom filter: {e}"))?;
    match keys {
        Keys::Numbers(numbers) => numbers.iter().flatten().for_each(|n| filter.insert(&n)),
        Keys::Decimals(column) => column.as_primitive::<Decimal128Type>().iter().flatten().for_each(|n| filter.insert(n.to_le_bytes().as_slice())),
        Keys::Bytes(column) => column.as_binary_view().iter().flatten().for_each(|b| filter.insert(b)),
    }
    let mut bytes = vec![b'B'];
    filter.write(&mut bytes).map_err(|e| exec_datafusion_err!("cannot write a Bloom filter: {e}"))?;
    Ok(bytes)
}

/// A column in the form that is hashed.
enum Keys {
    Numbers(Int64Array),
    Decimals(ArrayRef),
    Bytes(ArrayRef),
}

impl Keys {
    fn of(column: &ArrayRef) -> Result<Self> {
        Ok(match column.data_type() {
            DataType::Decimal128(..) => Keys::Decimals(Arc::clone(column)),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                Keys::Bytes(cast(column, &DataType::BinaryView)?)
            }
            other if takes(other) => Keys::Numbers(integers(column)?),
            other => return exec_err!("{AMONG} takes no {other}"),
        })
    }
}

#[derive(Debug)]
struct Among {
    sets: KeySets,
    signature: Signature,
}

impl PartialEq for Among {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sets.0, &other.sets.0)
    }
}

impl Eq for Among {}

impl Hash for Among {
    fn hash<H: Hasher>(&self, state: &mut H) {
        AMONG.hash(state);
    }
}

impl ScalarUDFImpl for Among {
    fn name(&self) -> &str {
        AMONG
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [column, DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8] if takes(column) => Ok(types.to_vec()),
            _ => plan_err!("{AMONG}(column, name) takes a column of whole numbers, times, decimals, texts or binary, and the name of a set of keys"),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [column, ColumnarValue::Scalar(name)] = args.args.as_slice() else {
            return exec_err!("the second argument of {AMONG} must be the name of a set of keys");
        };
        let Some(set) = name.try_as_str().flatten().and_then(|name| self.sets.0.get(name)) else {
            return exec_err!("no set of keys {name} came with the sub-plan");
        };
        let column = column.to_array(args.number_rows)?;
        Ok(ColumnarValue::Array(Arc::new(set.check(&column)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Date32Array, Decimal128Array, Float64Array, Int32Array, StringArray, StringViewArray, UInt64Array};

    fn read(bytes: Vec<u8>) -> Result<KeySets> {
        KeySets::read(&BTreeMap::from([("k".to_owned(), bytes::Bytes::from(bytes))]))
    }

    fn checked(keys: &ArrayRef, column: &ArrayRef) -> BooleanArray {
        read(set_of(keys).unwrap()).unwrap().0["k"].check(column).unwrap()
    }

    #[test]
    fn every_key_is_found_and_few_others() {
        // Far apart: a Bloom filter. Close together: a bitmap, which lets no other through.
        for (apart, others) in [(30_011i64, 2_000), (3, 0)] {
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..20_000).map(|n| (n * 3 - 30_000) * apart)));
            let all: ArrayRef = Arc::new(Int64Array::from_iter_values((0..60_000).map(|n| (n - 30_000) * apart)));
            let found = checked(&keys, &all);
            assert!((0..60_000).step_by(3).all(|n| found.value(n)));
            let wrong = (0..60_000).filter(|n| n % 3 != 0 && found.value(*n)).count();
            assert!(wrong <= others, "{wrong} of 40,000");
            assert!(!checked(&keys, &(Arc::new(Int64Array::from(vec![i64::MAX - 1])) as ArrayRef)).value(0));
        }
    }

    #[test]
    fn a_set_is_as_small_as_its_keys_allow() {
        let set = |keys: Vec<i64>| set_of(&(Arc::new(Int64Array::from(keys)) as ArrayRef)).unwrap();
        let (dense, sparse, wide) = (set((1..100_000).collect()), set((0..1000).map(|n| n * 60_000).collect()), set(vec![i64::MIN, 0, i64::MAX]));
        assert_eq!((dense[0], sparse[0], wide[0]), (b'M', b'B', b'B'));
        assert!(dense.len() < 100 && sparse.len() < 2200 && wide.len() < 100, "{} {} {}", dense.len(), sparse.len(), wide.len());
    }

    #[test]
    fn sets_that_drop_little_are_asked_now_and_then() {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
        let sets = read(set_of(&keys).unwrap()).unwrap();
        let (inside, outside): (ArrayRef, ArrayRef) =
            (Arc::new(Int64Array::from_iter_values(0..8192)), Arc::new(Int64Array::from_iter_values(200_000..208_192)));
        for _ in 0..SEEN / 8192 {
            assert_eq!(sets.0["k"].check(&inside).unwrap().true_count(), 8192);
        }
        let passed: Vec<bool> = (0..400).map(|_| sets.0["k"].check(&outside).unwrap().value(0)).collect();
        assert!(passed.contains(&true), "most batches pass unasked");
        assert!(passed[200..].iter().all(|passed| !passed), "and what has changed is noticed");
    }

    #[test]
    fn each_kind_of_type_finds_its_own() {
        let columns: [ArrayRef; 5] = [
            Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(7)])),
            Arc::new(Date32Array::from(vec![Some(-40), None, Some(19_000)])),
            Arc::new(Decimal128Array::from(vec![Some(i128::MAX / 7), None, Some(-5)]).with_precision_and_scale(38, 2).unwrap()),
            Arc::new(StringArray::from(vec![Some(""), None, Some("日本 🧬")])),
            Arc::new(StringViewArray::from(vec![Some("a text that is longer than a view holds"), None, Some("b")])),
        ];
        for column in &columns {
            let found = checked(column, column);
            assert_eq!((found.is_null(1), found.value(0), found.value(2)), (true, true, true), "{}", column.data_type());
        }
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec!["", "日本 🧬"]));
        assert_eq!(checked(&columns[3], &texts).true_count(), 2, "views and plain texts are the same keys");
        assert!(set_of(&(Arc::new(Float64Array::from(vec![1.0])) as ArrayRef)).is_err());
    }

    #[test]
    fn many_bitmaps_stay_packed() {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..50_000_000).step_by(12)));
        let set = bytes::Bytes::from(set_of(&keys).unwrap());
        let sets = KeySets::read(&(0..4).map(|n| (format!("k{n}"), set.clone())).collect()).unwrap();
        assert!(matches!(sets.0["k0"].form, Form::Bitmap(..)) && matches!(sets.0["k3"].form, Form::Packed(..)));
        let some: ArrayRef = Arc::new(Int64Array::from(vec![Some(-1), Some(0), Some(1), None, Some(24), Some(i64::MIN), Some(49_999_992), Some(50_000_004)]));
        for set in sets.0.values() {
            let found = set.check(&some).unwrap();
            assert_eq!(found.iter().collect::<Vec<_>>(), [Some(false), Some(true), Some(false), None, Some(true), Some(false), Some(true), Some(false)]);
        }
    }

    #[test]
    fn hostile_sets_are_refused() {
        let bitmap = set_of(&(Arc::new(Int32Array::from_iter_values(0..5)) as ArrayRef)).unwrap();
        let bloom = set_of(&(Arc::new(StringArray::from(vec!["a"])) as ArrayRef)).unwrap();
        for whole in [&bitmap, &bloom] {
            assert!(read(whole.clone()).is_ok());
            for bytes in [&[][..], &[0; 3], &[0xff; 100], b"B", b"M", b"M01234567", &whole[..10], &whole[..whole.len() - 1]] {
                assert!(read(bytes.to_vec()).unwrap_err().to_string().contains("set of keys \"k\""), "{bytes:?}");
            }
        }
        let far = |set: RoaringBitmap| {
            let mut far = vec![b'M'; 9];
            set.serialize_into(&mut far).unwrap();
            read(far).unwrap_err().to_string()
        };
        assert!(far(RoaringBitmap::from_iter([0, u32::MAX])).contains("apart"));
        // All numbers that there are, in half a megabyte.
        let mut all = RoaringBitmap::from_iter((0..4096).map(|n| n << 20));
        assert!(far(all.clone()).contains("4096 containers"));
        all.insert_range(0..1 << 31);
        all.optimize();
        assert!(far(all).contains("containers"));
        // A bitmap for texts is refused when it is used.
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        assert!(read(bitmap).unwrap().0["k"].check(&texts).is_err());
    }
}
