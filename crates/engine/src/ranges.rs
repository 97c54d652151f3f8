//! From filters to the columns of an index: boxes of ranges that contain all rows that can match.
//!
//! It is one-sided, as all pruning: a filter that is not understood bounds nothing. The filters still run above the
//! scan.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Between, BinaryExpr, Cast, Expr, Operator, TryCast};
use skytether_index::order::TOP;
use skytether_index::{Interval, Order};
use skytether_plan::float_keys::keyed;
use skytether_plan::opaque_values::within_opaque;

/// Boxes that are kept apart; more are put into one.
const MOST: usize = 64;

type Box_ = Vec<Interval>;

/// The columns of an index: name, type and order of each.
pub(crate) struct Columns<'a>(pub(crate) Vec<(&'a str, &'a DataType, &'a Order)>);

impl Columns<'_> {
    /// Boxes that contain all rows for which all `filters` hold; `None` where these bound no column.
    pub(crate) fn boxes(&self, filters: &[Expr]) -> Option<Vec<Box_>> {
        let known = filters.iter().filter(|filter| !filter.is_volatile());
        let boxes = known.fold(vec![self.all()], |boxes, filter| self.both(&boxes, &self.of(filter)));
        let bounded = boxes.iter().all(|one| one.iter().any(|interval| *interval != Interval::ALL && *interval != Interval::VALUES));
        bounded.then_some(boxes)
    }

    fn all(&self) -> Box_ {
        vec![Interval::ALL; self.0.len()]
    }

    fn both(&self, a: &[Box_], b: &[Box_]) -> Vec<Box_> {
        let and = |a: &Box_, b: &Box_| a.iter().zip(b).map(|(a, b)| a.and(*b)).collect::<Option<Box_>>();
        few(a.iter().flat_map(|a| b.iter().filter_map(move |b| and(a, b))).collect())
    }

    /// A box with one column's interval.
    fn bounded(&self, column: usize, interval: Interval) -> Vec<Box_> {
        let mut one = self.all();
        if let Some(own) = one.get_mut(column) {
            *own = interval;
        }
        vec![one]
    }

    fn of(&self, filter: &Expr) -> Vec<Box_> {
        self.known(filter).unwrap_or_else(|| vec![self.all()])
    }

    fn known(&self, filter: &Expr) -> Option<Vec<Box_>> {
        Some(match filter {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => self.both(&self.of(left), &self.of(right)),
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                let mut either = self.known(left)?;
                either.extend(self.known(right)?);
                few(either)
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (self.literal(left, right), self.literal(right, left)) {
                (None, Some(found)) => self.compared(found, *op)?,
                (Some(found), None) => self.compared(found, op.swap()?)?,
                _ => return None,
            },
            Expr::Between(Between { expr, negated: false, low, high }) => {
                let (above, below) = (self.literal(low, expr)?, self.literal(high, expr)?);
                self.both(&self.compared(above, Operator::GtEq)?, &self.compared(below, Operator::LtEq)?)
            }
            Expr::InList(list) if !list.negated => {
                let each = list.list.iter().map(|value| self.compared(self.literal(value, &list.expr)?, Operator::Eq)).collect::<Option<Vec<_>>>()?;
                few(each.concat())
            }
            Expr::IsNull(inner) => self.bounded(self.column(inner)?.0, Interval::NULLS),
            Expr::IsNotNull(inner) => self.bounded(self.column(inner)?.0, Interval::VALUES),
            Expr::Column(_) => self.boolean(filter, 1)?,
            Expr::Not(inner) => self.boolean(inner, 0)?,
            _ => return None,
        })
    }

    fn boolean(&self, column: &Expr, number: u64) -> Option<Vec<Box_>> {
        let (at, of) = self.column(column)?;
        (*of == DataType::Boolean).then(|| self.bounded(at, Interval { low: number, high: number }))
    }

    /// A column of the index, perhaps widened.
    fn column(&self, expr: &Expr) -> Option<(usize, &DataType)> {
        match expr {
            Expr::Column(column) => self.0.iter().position(|(name, ..)| *name == column.name).and_then(|at| Some((at, self.0.get(at)?.1))),
            Expr::ScalarFunction(_) => self.column(keyed(expr)?),
            Expr::Cast(Cast { expr, field, .. }) => {
                let (at, of) = self.column(expr).filter(|_| matches!(**expr, Expr::Column(_)))?;
                widens(of, field.data_type()).then_some((at, of))
            }
            _ => None,
        }
    }

    /// A column that is compared, perhaps as other integers: a comparison that holds after such a cast, which may fail,
    /// holds before it.
    fn compared_column(&self, expr: &Expr) -> Option<(usize, &DataType)> {
        match within_opaque(expr) {
            Some(Expr::Cast(Cast { expr: of, field }) | Expr::TryCast(TryCast { expr: of, field })) if field.data_type().is_integer() => {
                self.column(of).filter(|(_, of)| of.is_integer())
            }
            _ => self.column(expr),
        }
    }

    /// The numbers around literal `value` in the order of column `column`.
    fn literal(&self, value: &Expr, column: &Expr) -> Option<(usize, u64, u64)> {
        let Expr::Literal(value, _) = value else { return None };
        let (at, of) = self.compared_column(column)?;
        let value: &ScalarValue = value;
        let (low, high) = self.0.get(at)?.2.around(of, &value.to_array().ok()?)?;
        Some((at, low, high))
    }

    /// NaNs are above all numbers, also those whose sign is set: an index has these below.
    fn compared(&self, (at, low, high): (usize, u64, u64), op: Operator) -> Option<Vec<Box_>> {
        let nans = self.0.get(at)?.2.nans();
        let is_nan = nans.is_some_and(|nans| nans.iter().any(|nan| nan.has(low) || nan.has(high)));
        let interval = match op {
            Operator::Lt | Operator::LtEq if is_nan => Interval::VALUES,
            Operator::Eq | Operator::Gt | Operator::GtEq if is_nan => return Some(nans?.map(|nan| self.bounded(at, nan)).concat()),
            Operator::Gt | Operator::GtEq if nans.is_some() => {
                let [signed, _] = nans?;
                return Some([self.bounded(at, Interval { low, high: TOP }), self.bounded(at, signed)].concat());
            }
            Operator::Eq => Interval { low, high },
            Operator::Gt | Operator::GtEq => Interval { low, high: TOP },
            Operator::Lt | Operator::LtEq => Interval { low: 0, high },
            _ => return None,
        };
        Some(self.bounded(at, interval))
    }
}

/// At most [`MOST`] of them: else one around them all.
fn few(boxes: Vec<Box_>) -> Vec<Box_> {
    if boxes.len() <= MOST {
        return boxes;
    }
    let around = |mut a: Box_, b: &Box_| {
        for (a, b) in a.iter_mut().zip(b) {
            *a = Interval { low: a.low.min(b.low), high: a.high.max(b.high) };
        }
        a
    };
    boxes.split_first().map(|(first, rest)| rest.iter().fold(first.clone(), around)).into_iter().collect()
}

/// Whether all values of type `from` are of type `to` as well, in the same order, so that casting them loses
/// nothing and never fails.
fn widens(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Decimal128, Dictionary, Float16, Float32, Float64, Int8, Int16, Int32, Int64, LargeBinary, LargeUtf8, UInt8, UInt16, UInt32,
        UInt64, Utf8, Utf8View,
    };
    let bits = |t: &DataType| t.primitive_width().unwrap_or(0);
    match (from, to) {
        (from, to) if from == to => true,
        (Dictionary(_, values), to) => widens(values, to),
        (Int8 | Int16 | Int32 | Int64, Int16 | Int32 | Int64) | (UInt8 | UInt16 | UInt32 | UInt64, UInt16 | UInt32 | UInt64) => bits(from) < bits(to),
        (UInt8 | UInt16 | UInt32, Int16 | Int32 | Int64) => bits(from) < bits(to),
        (from, Float64) if from.is_integer() => true,
        (from, Decimal128(precision, scale)) if from.is_integer() => *scale >= 0 && i16::from(*precision) - i16::from(*scale) >= 20,
        (Float16, Float32 | Float64) | (Float32, Float64) => true,
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) | (Binary | LargeBinary | BinaryView, Binary | LargeBinary | BinaryView) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{cast, col, lit, try_cast};
    use skytether_plan::opaque_values::opaque;

    use super::*;

    /// A contradiction has no box. An `OR` with a part that is not understood bounds nothing.
    #[test]
    fn filters_become_boxes_and_unknown_expressions_bound_nothing() {
        let (float, int) = (Order::of(&DataType::Float32, None).unwrap(), Order::of(&DataType::Int64, None).unwrap());
        let columns = Columns(vec![("ke", &DataType::Float32, &float), ("id", &DataType::Int64, &int)]);
        let id = |n: i64| (n as u64) ^ (1 << 63);
        let f = |v: f64| v.to_bits() | 1 << 63;
        let wide = |name| cast(col(name), DataType::Float64);
        // A NaN with a sign is above as well.
        let [signed, nan] = float.nans().unwrap();
        let above = vec![vec![Interval { low: f(0.4), high: TOP }, Interval::ALL], vec![signed, Interval::ALL]];
        assert_eq!(columns.boxes(&[wide("ke").gt(lit(0.4))]), Some(above));
        assert_eq!(columns.boxes(&[wide("ke").eq(lit(f64::NAN))]), Some(vec![vec![signed, Interval::ALL], vec![nan, Interval::ALL]]));
        assert_eq!(columns.boxes(&[wide("ke").gt(lit(0.4)), wide("ke").lt(lit(0.5))]).unwrap().len(), 2);
        assert_eq!(columns.boxes(&[lit(5i64).gt(col("id"))]), Some(vec![vec![Interval::ALL, Interval { low: 0, high: id(5) }]]));
        let both = columns.boxes(&[col("id").in_list(vec![lit(1i64), lit(7i64)], false), wide("ke").lt(lit(1.0)).and(col("x").gt(lit(2)))]).unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(both[1], vec![Interval { low: 0, high: f(1.0) }, Interval { low: id(7), high: id(7) }]);
        // Contradictions have no box; a part that is not understood makes the whole of an OR so.
        assert_eq!(columns.boxes(&[col("id").gt(lit(5i64)), col("id").lt(lit(4i64))]), Some(vec![]));
        assert_eq!(columns.boxes(&[col("id").gt(lit(5i64)).or(col("x").gt(lit(2)))]), None);
        assert_eq!(columns.boxes(&[col("id").not_eq(lit(5i64)), col("id").is_not_null()]), None);
        assert_eq!(columns.boxes(&[col("id").is_null()]), Some(vec![vec![Interval::ALL, Interval::NULLS]]));
        // A cast that fails is NULL, and no NULL is equal.
        let small = opaque(try_cast(col("id"), DataType::Int8));
        assert_eq!(columns.boxes(&[small.clone().eq(lit(5i8))]), Some(vec![vec![Interval::ALL, Interval { low: id(5), high: id(5) }]]));
        assert_eq!(columns.boxes(&[small.is_null()]), None);
        // A cast that may fail, or that rounds, is none.
        assert_eq!(columns.boxes(&[cast(col("id"), DataType::Int32).gt(lit(5i32))]), None);
        assert_eq!(columns.boxes(&[cast(col("ke"), DataType::Float16).gt(lit(5.0f32))]), None);
        let many = columns.boxes(&[col("id").in_list((0..100i64).map(lit).collect(), false)]).unwrap();
        assert_eq!(many, vec![vec![Interval::ALL, Interval { low: id(0), high: id(99) }]]);
    }
}
