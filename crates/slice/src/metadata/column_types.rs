//! Types whose values take bytes of a message for each row.

use arrow::datatypes::DataType;

/// Whether each value of this type takes bytes of the message. Only then do the bytes bound the number of rows that a
/// message can claim.
///
/// Nulls and structs without fields take none. A run of equal values takes the same bytes however long it is, and
/// values of a list view may all refer to the same bytes.
#[must_use]
pub fn takes_bytes(data_type: &DataType) -> bool {
    use DataType as D;
    match data_type {
        D::Null | D::ListView(_) | D::LargeListView(_) | D::Union(..) | D::RunEndEncoded(..) => false,
        D::FixedSizeBinary(width) => *width > 0,
        D::FixedSizeList(item, width) => *width > 0 && takes_bytes(item.data_type()),
        D::List(item) | D::LargeList(item) | D::Map(item, _) => takes_bytes(item.data_type()),
        D::Struct(fields) => !fields.is_empty() && fields.iter().all(|f| takes_bytes(f.data_type())),
        D::Dictionary(key, value) => takes_bytes(key) && takes_bytes(value),
        D::Boolean | D::Int8 | D::Int16 | D::Int32 | D::Int64 | D::UInt8 | D::UInt16 | D::UInt32 | D::UInt64 => true,
        D::Float16 | D::Float32 | D::Float64 | D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) | D::Decimal256(..) => true,
        D::Date32 | D::Date64 | D::Time32(_) | D::Time64(_) | D::Timestamp(..) | D::Duration(_) | D::Interval(_) => true,
        D::Utf8 | D::LargeUtf8 | D::Utf8View | D::Binary | D::LargeBinary | D::BinaryView => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Field, Fields};

    use super::*;

    #[test]
    fn types_without_bytes_are_found_at_any_depth() {
        let item = |t: DataType| Arc::new(Field::new("item", t, true));
        let row = |fields: Vec<Field>| DataType::Struct(Fields::from(fields));
        for empty in [DataType::Null, DataType::FixedSizeBinary(0), row(vec![]), DataType::FixedSizeList(item(DataType::Int8), 0)] {
            let around = [
                DataType::List(item(empty.clone())),
                DataType::FixedSizeList(item(empty.clone()), 2),
                row(vec![Field::new("a", DataType::Int8, true), Field::new("b", empty.clone(), true)]),
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(empty.clone())),
                DataType::Map(item(row(vec![Field::new("k", DataType::Utf8, false), Field::new("v", empty.clone(), true)])), false),
                DataType::List(item(DataType::LargeList(item(empty.clone())))),
                empty,
            ];
            for refused in around {
                assert!(!takes_bytes(&refused), "{refused}");
            }
        }
        assert!(takes_bytes(&DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))));
        assert!(!takes_bytes(&DataType::ListView(item(DataType::Int8))));
        assert!(takes_bytes(&DataType::List(item(row(vec![Field::new("a", DataType::FixedSizeBinary(16), true)])))));
    }
}
