//! `min` and `max` of lists and structs, in the order of `ORDER BY`: NULL within them is above all values.
//!
//! DataFusion's takes values for equal where one has a NULL, so that the result depends on the order of rows. Lists of
//! lists, and structs with lists, are internal errors. Here values are compared as rows, which are bytes in order.

use std::collections::BTreeMap;
use std::fmt::Debug;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, new_empty_array};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::extremes::{Extremes, kept};
use crate::float_keys::plain;

/// Whether values of type `of` are nested, and have an order.
pub(super) fn has_order(of: &DataType) -> bool {
    matches!(of, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Struct(_)) && RowConverter::supports_fields(&[field(of)])
}

/// In the order of `ORDER BY`, going up.
fn field(of: &DataType) -> SortField {
    SortField::new_with_options(of.clone(), datafusion::arrow::compute::SortOptions { descending: false, nulls_first: false })
}

fn rows(converter: &RowConverter, values: &ArrayRef) -> Result<Rows> {
    Ok(converter.convert_columns(&[plain(values)?])?)
}

/// The extreme value of each group.
pub(super) struct Nested {
    of: DataType,
    greatest: bool,
    converter: RowConverter,
    /// By group: the value as bytes in order, and as it is.
    values: Vec<Option<(Box<[u8]>, ScalarValue)>>,
    /// Bytes of them.
    held: usize,
}

impl Nested {
    /// # Errors
    /// Arrow's, where the type has no order.
    pub(super) fn new(of: &DataType, greatest: bool) -> Result<Self> {
        Ok(Self { of: of.clone(), greatest, converter: RowConverter::new(vec![field(of)])?, values: Vec::new(), held: 0 })
    }

    fn room(&mut self, groups: usize) {
        self.values.resize(groups.max(self.values.len()), None);
    }

    /// Adds each value to its group.
    fn add(&mut self, values: &ArrayRef, group: impl Fn(usize) -> usize) -> Result<()> {
        let rows = rows(&self.converter, values)?;
        for at in (0..values.len()).filter(|at| values.is_valid(*at)) {
            let (row, best) = (rows.row(at), &mut self.values[group(at)]);
            let better = best.as_ref().is_none_or(|(best, _)| if self.greatest { row.data() > best.as_ref() } else { row.data() < best.as_ref() });
            if better {
                // A copy: a part of the batch would keep all of it.
                let value = ScalarValue::try_from_array(values, at)?.compacted();
                let bytes = |row: &[u8], value: &ScalarValue| row.len() + value.size();
                self.held += bytes(row.data(), &value);
                if let Some((row, value)) = best.replace((row.data().into(), value)) {
                    self.held = self.held.saturating_sub(bytes(&row, &value));
                }
            }
        }
        Ok(())
    }

    fn emit(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let none = ScalarValue::try_from(&self.of)?;
        let values = emit_to.take_needed(&mut self.values);
        let taken: usize = values.iter().flatten().map(|(row, value)| row.len() + value.size()).sum();
        self.held = self.held.saturating_sub(taken);
        if values.is_empty() {
            return Ok(new_empty_array(&self.of));
        }
        ScalarValue::iter_to_array(values.into_iter().map(|value| value.map_or_else(|| none.clone(), |(_, value)| value)))
    }
}

impl Debug for Nested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nested").field("of", &self.of).field("greatest", &self.greatest).field("groups", &self.values.len()).finish_non_exhaustive()
    }
}

impl GroupsAccumulator for Nested {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.room(total);
        self.add(&kept(&values[0], filter)?, |at| groups[at])
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        self.emit(emit_to)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.emit(emit_to)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.update_batch(states, groups, None, total)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        Ok(vec![kept(&values[0], filter)?])
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<Option<(Box<[u8]>, ScalarValue)>>() + self.held + self.converter.size()
    }
}

impl Extremes for Nested {
    fn add_all(&mut self, values: &ArrayRef) -> Result<()> {
        self.room(1);
        self.add(values, |_| 0)
    }

    fn value(&self) -> Result<ScalarValue> {
        match self.values.first() {
            Some(Some((_, value))) => Ok(value.clone()),
            _ => ScalarValue::try_from(&self.of),
        }
    }
}

/// The extreme value of a frame that slides: all its values, in order.
pub(super) struct Sliding {
    of: DataType,
    greatest: bool,
    converter: RowConverter,
    /// How many rows have a value, by the value as bytes in order.
    values: BTreeMap<Box<[u8]>, (usize, ScalarValue)>,
    /// Bytes of keys and values.
    held: usize,
}

impl Sliding {
    /// # Errors
    /// Arrow's, where the type has no order.
    pub(super) fn new(of: &DataType, greatest: bool) -> Result<Self> {
        Ok(Self { of: of.clone(), greatest, converter: RowConverter::new(vec![field(of)])?, values: BTreeMap::new(), held: 0 })
    }
}

impl Debug for Sliding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sliding").field("of", &self.of).field("greatest", &self.greatest).field("values", &self.values.len()).finish_non_exhaustive()
    }
}

impl Accumulator for Sliding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = rows(&self.converter, &values[0])?;
        for at in (0..values[0].len()).filter(|at| values[0].is_valid(*at)) {
            if let Some((count, _)) = self.values.get_mut(rows.row(at).data()) {
                *count += 1;
                continue;
            }
            let (row, value) = (Box::<[u8]>::from(rows.row(at).data()), ScalarValue::try_from_array(&values[0], at)?.compacted());
            self.held += row.len() + value.size();
            self.values.insert(row, (1, value));
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = rows(&self.converter, &values[0])?;
        for at in (0..values[0].len()).filter(|at| values[0].is_valid(*at)) {
            let row = rows.row(at);
            match self.values.get_mut(row.data()) {
                Some((count, _)) if *count > 1 => *count -= 1,
                Some((_, value)) => {
                    self.held = self.held.saturating_sub(row.data().len() + value.size());
                    self.values.remove(row.data());
                }
                None => {}
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let found = if self.greatest { self.values.last_key_value() } else { self.values.first_key_value() };
        found.map_or_else(|| ScalarValue::try_from(&self.of), |(_, (_, value))| Ok(value.clone()))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.held + self.converter.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::FunctionRegistry;
    use datafusion::prelude::{SessionConfig, SessionContext};

    const VALUES: &str = "(1, 1, [CAST(NULL AS INT)], [[2]]), (1, 2, [2], [[1]]), (1, 3, [2, NULL], [[1, NULL]]), (2, 4, NULL, NULL), (2, 5, [1], [[3]]), \
        (3, 6, NULL, NULL), (1, 7, [2, 5], [[]])";

    async fn answer(query: &str) -> Vec<String> {
        let mut state = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2)).state();
        for udaf in super::super::extremes::udafs() {
            state.register_udaf(udaf).unwrap();
        }
        let context = SessionContext::new_with_state(state);
        let columns = "column1 AS k, column2 AS u, column3 AS l, column4 AS n, CASE WHEN column2 <> 4 THEN {'a': column3[1], 'b': column2} END AS s";
        context.sql(&format!("CREATE TABLE t AS SELECT {columns} FROM (VALUES {VALUES})")).await.unwrap();
        let rows = context.sql(query).await.unwrap().collect().await.unwrap();
        let text = pretty_format_batches(&rows).unwrap().to_string();
        text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.replace(' ', "")).collect()
    }

    #[tokio::test]
    async fn nulls_within_values_are_above_all() {
        let all = answer("SELECT min(l) AS a, max(l) AS b, min(n) AS c, max(n) AS d, min(s) AS e, max(s) AS f FROM t").await;
        assert_eq!(all, ["|[1]|[]|[[]]|[[3]]|{a:1,b:5}|{a:,b:6}|"]);
        let groups = answer("SELECT k, min(l) AS a, max(l) AS b, max(n) AS c, min(s) AS d, max(s) AS e FROM t GROUP BY k ORDER BY k").await;
        assert_eq!(groups, ["|1|[2]|[]|[[2]]|{a:2,b:2}|{a:,b:1}|", "|2|[1]|[1]|[[3]]|{a:1,b:5}|{a:1,b:5}|", "|3||||{a:,b:6}|{a:,b:6}|"]);
    }

    #[tokio::test]
    async fn values_leave_frames_that_slide() {
        let frame = "OVER (ORDER BY u ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)";
        let rows = answer(&format!("SELECT min(l) {frame} AS a, max(l) {frame} AS b FROM t ORDER BY u")).await;
        assert_eq!(rows, ["|[]|[]|", "|[2]|[]|", "|[2]|[2,]|", "|[2,]|[2,]|", "|[1]|[1]|", "|[1]|[1]|", "|[2,5]|[2,5]|"]);
    }
}
