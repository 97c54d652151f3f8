//! How deep the types of columns may be nested.

use arrow::datatypes::{DataType, SchemaRef};
use skytether_common::{DatasetName, Error, Result};

/// The deepest nesting of a column that can be stored. Queries over columns of 40 levels can be planned, and metadata
/// slices with 60 can be read. The difference is room for the relations around the type in a plan.
pub const MAX_NESTING: usize = 32;

/// Levels of lists, structs and maps in a type: none for a number. A map is a list of structs, so it counts twice.
#[must_use]
pub fn nesting(of: &DataType) -> usize {
    let (mut deepest, mut left) = (0, vec![(of, 0)]);
    while let Some((of, around)) = left.pop() {
        deepest = deepest.max(around);
        match of {
            DataType::List(f)
            | DataType::LargeList(f)
            | DataType::ListView(f)
            | DataType::LargeListView(f)
            | DataType::FixedSizeList(f, _)
            | DataType::Map(f, _) => {
                left.push((f.data_type(), around + 1));
            }
            DataType::RunEndEncoded(_, f) => left.push((f.data_type(), around)),
            DataType::Dictionary(_, of) => left.push((of, around)),
            DataType::Struct(fields) => left.extend(fields.iter().map(|f| (f.data_type(), around + 1))),
            _ => {}
        }
    }
    deepest
}

/// Refuses columns that some reader would refuse later: a plan that names the type has messages within messages, and so
/// has the schema in a metadata slice.
pub(crate) fn check_nesting(name: &DatasetName, schema: &SchemaRef) -> Result<()> {
    match schema.fields().iter().map(|field| (field, nesting(field.data_type()))).find(|(_, levels)| *levels > MAX_NESTING) {
        None => Ok(()),
        Some((field, levels)) => Err(Error::unsupported(format!(
            "column {:?} of {name} is nested {levels} levels deep, and at most {MAX_NESTING} can be stored \
             (a list or struct is one level, a map two): flatten it, or keep it as text",
            field.name()
        ))),
    }
}
