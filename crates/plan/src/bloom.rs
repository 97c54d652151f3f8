//! Keys of a join as a Bloom filter: `__bloom(column, name)` in a sub-plan, with the filter of that name beside it.
//!
//! The filter is Parquet's split block Bloom filter (header and bitset, as in a Parquet file), over the keys in one form per kind of type: whole numbers,
//! dates and times as 64-bit numbers, decimals as 128-bit ones, texts and binary as their bytes. So both levels need only agree on the column's type, which the plan says.
//! It is no literal of the plan because planners copy and print literals freely, which took seconds for a filter of a few hundred kilobytes.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, BooleanBuilder, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use parquet::bloom_filter::Sbbf;

/// The function's name in sub-plans.
pub const BLOOM: &str = "__bloom";

/// How many rows that no key matches get through, about.
const FALSE_POSITIVES: f64 = 0.02;

/// The filters that came with a sub-plan, by name.
#[derive(Debug, Clone, Default)]
pub struct KeyFilters(Arc<BTreeMap<String, Sbbf>>);

impl KeyFilters {
    /// Reads filters as [`filter_of`] writes them.
    ///
    /// # Errors
    /// Where bytes are no filter.
    pub fn read(filters: &BTreeMap<String, bytes::Bytes>) -> Result<Self> {
        let read = filters.iter().map(|(name, bytes)| {
            let filter = Sbbf::from_bytes(bytes).map_err(|e| exec_datafusion_err!("the set of keys {name:?} is malformed: {e}"))?;
            if filter.num_blocks() == 0 {
                return exec_err!("the set of keys {name:?} is empty");
            }
            Ok((name.clone(), filter))
        });
        Ok(Self(Arc::new(read.collect::<Result<_>>()?)))
    }
}

/// The function `__bloom(column, name)`: whether the column's value may be among the keys of the filter `name` of `filters`; NULL for NULL.
#[must_use]
pub fn bloom_udf(filters: KeyFilters) -> ScalarUDF {
    ScalarUDF::from(Bloom { filters, signature: Signature::user_defined(Volatility::Immutable) })
}

/// Whether keys of this type can be put into a filter. Floats can't: equal ones may differ in their bytes.
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

/// The filter of `keys`, nulls left out.
///
/// # Errors
/// Where the type is none that [`takes`] names.
pub fn filter_of(keys: &ArrayRef) -> Result<Vec<u8>> {
    let mut filter = Sbbf::new_with_ndv_fpp(keys.len().max(1) as u64, FALSE_POSITIVES).map_err(|e| exec_datafusion_err!("cannot make a Bloom filter: {e}"))?;
    match Keys::of(keys)? {
        Keys::Numbers(numbers) => numbers.iter().flatten().for_each(|n| filter.insert(&n)),
        Keys::Decimals(column) => column.as_primitive::<Decimal128Type>().iter().flatten().for_each(|n| filter.insert(n.to_le_bytes().as_slice())),
        Keys::Bytes(column) => column.as_binary_view().iter().flatten().for_each(|b| filter.insert(b)),
    }
    let mut bytes = Vec::new();
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
        let form = column.data_type();
        Ok(match form {
            // By bits: the largest unsigned numbers are no signed ones.
            DataType::UInt64 => Keys::Numbers(column.as_primitive::<datafusion::arrow::datatypes::UInt64Type>().unary::<_, Int64Type>(|n| n as i64)),
            DataType::Date32 | DataType::Time32(_) => Keys::Numbers(cast(&cast(column, &DataType::Int32)?, &DataType::Int64)?.as_primitive().clone()),
            DataType::Decimal128(..) => Keys::Decimals(Arc::clone(column)),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                Keys::Bytes(cast(column, &DataType::BinaryView)?)
            }
            other if takes(other) => Keys::Numbers(cast(column, &DataType::Int64)?.as_primitive().clone()),
            other => return exec_err!("{BLOOM} takes no {other}"),
        })
    }

    fn check(&self, filter: &Sbbf) -> BooleanArray {
        fn each<T>(values: impl Iterator<Item = Option<T>>, rows: usize, check: impl Fn(T) -> bool) -> BooleanArray {
            let mut out = BooleanBuilder::with_capacity(rows);
            values.for_each(|value| out.append_option(value.map(&check)));
            out.finish()
        }
        match self {
            Keys::Numbers(numbers) => each(numbers.iter(), numbers.len(), |n| filter.check(&n)),
            Keys::Decimals(column) => each(column.as_primitive::<Decimal128Type>().iter(), column.len(), |n| filter.check(n.to_le_bytes().as_slice())),
            Keys::Bytes(column) => each(column.as_binary_view().iter(), column.len(), |b| filter.check(b)),
        }
    }
}

#[derive(Debug)]
struct Bloom {
    filters: KeyFilters,
    signature: Signature,
}

impl PartialEq for Bloom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.filters.0, &other.filters.0)
    }
}

impl Eq for Bloom {}

impl Hash for Bloom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        BLOOM.hash(state);
    }
}

impl ScalarUDFImpl for Bloom {
    fn name(&self) -> &str {
        BLOOM
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [column, DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8] if takes(column) => Ok(types.to_vec()),
            _ => plan_err!("{BLOOM}(column, name) takes a column of whole numbers, times, decimals, texts or binary, and the name of a set of keys"),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [column, ColumnarValue::Scalar(name)] = args.args.as_slice() else {
            return exec_err!("the second argument of {BLOOM} must be the name of a set of keys");
        };
        let Some(filter) = name.try_as_str().flatten().and_then(|name| self.filters.0.get(name)) else {
            return exec_err!("no set of keys {name} came with the sub-plan");
        };
        let column = column.to_array(args.number_rows)?;
        Ok(ColumnarValue::Array(Arc::new(Keys::of(&column)?.check(filter))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Date32Array, Decimal128Array, Float64Array, Int32Array, StringArray, StringViewArray, UInt64Array};

    fn checked(keys: &ArrayRef, column: &ArrayRef) -> BooleanArray {
        let filter = Sbbf::from_bytes(&filter_of(keys).unwrap()).unwrap();
        Keys::of(column).unwrap().check(&filter)
    }

    #[test]
    fn every_key_is_found_and_few_others() {
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values((0..20_000).map(|n| n * 3)));
        let all: ArrayRef = Arc::new(Int32Array::from_iter_values(0..60_000));
        let found = checked(&keys, &all);
        assert!((0..60_000).step_by(3).all(|n| found.value(n)));
        let wrong = (0..60_000).filter(|n| n % 3 != 0 && found.value(*n)).count();
        assert!(wrong < 2_000, "{wrong} of 40,000");
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
        assert!(filter_of(&(Arc::new(Float64Array::from(vec![1.0])) as ArrayRef)).is_err());
    }

    #[test]
    fn hostile_filters_are_refused() {
        let whole = filter_of(&(Arc::new(Int32Array::from(vec![1])) as ArrayRef)).unwrap();
        let read = |bytes: &[u8]| KeyFilters::read(&BTreeMap::from([("k".to_owned(), bytes::Bytes::copy_from_slice(bytes))]));
        assert!(read(&whole).is_ok());
        for bytes in [&[][..], &[0; 3], &[0xff; 100], &whole[..10], &whole[..whole.len() - 1]] {
            assert!(read(bytes).unwrap_err().to_string().contains("set of keys \"k\""), "{bytes:?}");
        }
    }
}
