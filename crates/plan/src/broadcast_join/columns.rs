//! What the columns of such a table may be.

use datafusion::arrow::datatypes::DataType;

use crate::expressions::simple;

/// Whether a column of this type may travel beside a sub-plan: each of its values takes bytes of the message, so that nobody can claim more rows than they send. Nulls and
/// structs without fields take none, a run of equal values takes as many however long it is, and lists of the newer kind may all be the same one.
#[must_use]
pub fn takes(data_type: &DataType) -> bool {
    use DataType as D;
    match data_type {
        D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) | D::Decimal256(..) | D::Timestamp(..) => true,
        D::FixedSizeBinary(width) => *width > 0,
        D::FixedSizeList(item, width) => *width > 0 && takes(item.data_type()),
        D::List(item) | D::LargeList(item) | D::Map(item, _) => takes(item.data_type()),
        D::Struct(fields) => !fields.is_empty() && fields.iter().all(|f| takes(f.data_type())),
        D::Dictionary(key, value) => takes(key) && takes(value),
        other => simple(other),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::{Field, Fields};

    use super::*;

    #[test]
    fn types_without_bytes_are_not_taken_at_any_depth() {
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
                assert!(!takes(&refused), "{refused}");
            }
        }
        assert!(takes(&DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))));
        assert!(takes(&DataType::List(item(row(vec![Field::new("a", DataType::FixedSizeBinary(16), true)])))));
    }
}
