//! Join filters: the keys that a hash join has seen on its build side, as a condition for drives.
//!
//! Once a hash join has its build side, DataFusion gives the other side's scan the keys that can still match: bounds,
//! and a set of keys. This module makes a condition of them that Substrait carries: comparisons, and a set of keys
//! ([`skytether_plan::keys`]) instead of long lists. The condition may pass rows that the join then drops, and must
//! never hold back one that matches. So it leaves out everything that it does not understand.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::Array;
use bytes::Bytes;
use datafusion::common::{Column as Named, DFSchema, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, Operator, ScalarUDF, binary_expr, lit};
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_plan::PhysicalExpr;
use datafusion::physical_plan::expressions::{BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNullExpr, Literal};
use skytether_plan::opaque_values::{OPAQUE, opaque};
use skytether_plan::{expressions, keys};

/// Longer lists of keys go down as sets.
const SHORT_LIST: usize = 20;

/// A condition that every row of `schema` for which `filter` holds fulfils; `None` where there is none worth sending.
/// Sets of keys that it refers to are added to `sets`.
///
/// # Errors
/// Where a set of keys can't be made.
pub(crate) fn condition(
    filter: &Arc<dyn PhysicalExpr>,
    schema: &DFSchema,
    functions: &dyn FunctionRegistry,
    sets: &mut BTreeMap<String, Bytes>,
) -> DfResult<Option<Expr>> {
    Translation { schema, functions, sets, among: Arc::new(keys::among_udf(keys::KeySets::default())) }.condition(filter)
}

struct Translation<'a> {
    schema: &'a DFSchema,
    functions: &'a dyn FunctionRegistry,
    sets: &'a mut BTreeMap<String, Bytes>,
    among: Arc<ScalarUDF>,
}

impl Translation<'_> {
    fn condition(&mut self, filter: &Arc<dyn PhysicalExpr>) -> DfResult<Option<Expr>> {
        if let Some(both) = filter.downcast_ref::<BinaryExpr>() {
            return match both.op() {
                // Half of a conjunction is still something.
                Operator::And => Ok(match (self.condition(both.left())?, self.condition(both.right())?) {
                    (Some(a), Some(b)) => Some(a.and(b)),
                    (one, other) => one.or(other),
                }),
                Operator::Or => Ok(match (self.condition(both.left())?, self.condition(both.right())?) {
                    (Some(a), Some(b)) => Some(a.or(b)),
                    _ => None,
                }),
                op @ (Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq) => {
                    let value = both.right().downcast_ref::<Literal>().map(|l| l.value().clone());
                    let both = self.value(both.left()).zip(value).filter(|(key, value)| self.comparable(key, value));
                    Ok(both.map(|(key, value)| binary_expr(key, *op, Expr::Literal(value, None))).filter(|e| self.travels(e)))
                }
                _ => Ok(None),
            };
        }
        if let Some(list) = filter.downcast_ref::<InListExpr>() {
            return if list.negated() { Ok(None) } else { self.membership(list) };
        }
        if let Some(case) = filter.downcast_ref::<CaseExpr>() {
            // One branch per partition of the join: which applies is not known below, so any may.
            let branches = case.when_then_expr().iter().map(|(_, then)| then).chain(case.else_expr());
            let mut any: Option<Expr> = None;
            for branch in branches {
                if is_false(branch) {
                    continue;
                }
                let Some(branch) = self.condition(branch)? else { return Ok(None) };
                any = Some(match any {
                    Some(others) => others.or(branch),
                    None => branch,
                });
            }
            return Ok(Some(any.unwrap_or_else(|| lit(false))));
        }
        if let Some(null) = filter.downcast_ref::<IsNullExpr>() {
            return Ok(self.value(null.arg()).map(Expr::is_null).filter(|e| self.travels(e)));
        }
        Ok(if is_false(filter) { Some(lit(false)) } else { None })
    }

    /// A key: a column, or a cast of one, which stays as opaque as it is.
    fn value(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Expr> {
        if let Some(column) = expr.downcast_ref::<Column>() {
            let (qualifier, field) = (column.index() < self.schema.fields().len()).then(|| self.schema.qualified_field(column.index()))?;
            return Some(Expr::Column(Named::new(qualifier.cloned(), field.name().clone())));
        }
        if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
            return call.args().first().filter(|_| call.name() == OPAQUE).and_then(|of| self.value(of)).map(opaque);
        }
        let cast = expr.downcast_ref::<CastExpr>()?;
        Some(Expr::Cast(Cast::new(Box::new(self.value(cast.expr())?), cast.cast_type().clone())))
    }

    fn membership(&mut self, list: &InListExpr) -> DfResult<Option<Expr>> {
        let Some(values) = list.list().iter().map(|v| v.downcast_ref::<Literal>().map(|l| l.value().clone())).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        if let Some(key) = self.value(list.expr()) {
            return self.one_of(key, values);
        }
        // Keys of several columns come as structs: each column by itself, which lets some more through.
        let Some(row) = list.expr().downcast_ref::<ScalarFunctionExpr>().filter(|f| f.name() == "struct") else { return Ok(None) };
        let mut all: Option<Expr> = None;
        for (at, key) in row.args().iter().enumerate() {
            let Some(key) = self.value(key) else { continue };
            let part = values.iter().map(|value| match value {
                ScalarValue::Struct(row) if at < row.num_columns() && row.len() == 1 => ScalarValue::try_from_array(row.column(at), 0).ok(),
                _ => None,
            });
            let Some(part) = part.collect::<Option<Vec<_>>>() else { continue };
            all = match (all, self.one_of(key, part)?) {
                (Some(others), Some(this)) => Some(others.and(this)),
                (others, this) => others.or(this),
            };
        }
        Ok(all)
    }

    /// Whether `value` has the type of `key`: nothing coerces types after this.
    fn comparable(&self, key: &Expr, value: &ScalarValue) -> bool {
        key.get_type(self.schema).is_ok_and(|t| t == value.data_type())
    }

    /// Whether sub-plans carry `condition`.
    fn travels(&self, condition: &Expr) -> bool {
        expressions::check(condition, self.schema, self.functions).is_ok()
    }

    fn one_of(&mut self, key: Expr, mut values: Vec<ScalarValue>) -> DfResult<Option<Expr>> {
        // NULL equals nothing. Where NULL should pass, DataFusion adds a separate condition to the list.
        values.retain(|v| !v.is_null());
        if values.is_empty() {
            return Ok(Some(lit(false)));
        }
        if !values.iter().all(|value| self.comparable(&key, value)) {
            return Ok(None);
        }
        if values.len() <= SHORT_LIST {
            let list = values.into_iter().map(|v| Expr::Literal(v, None)).collect();
            return Ok(Some(Expr::InList(InList::new(Box::new(key), list, false))).filter(|e| self.travels(e)));
        }
        if !keys::takes(&values[0].data_type()) || !self.travels(&key) {
            return Ok(None);
        }
        let name = format!("k{}", self.sets.len());
        self.sets.insert(name.clone(), keys::set_of(&ScalarValue::iter_to_array(values)?)?.into());
        Ok(Some(self.among.call(vec![key, lit(name)])))
    }
}

fn is_false(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<Literal>().is_some_and(|l| matches!(l.value(), ScalarValue::Boolean(Some(false) | None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array, StructArray};
    use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};
    use datafusion::physical_expr::expressions::{case, col, in_list, is_null, lit as value};
    use datafusion::prelude::SessionContext;

    fn schema() -> Schema {
        Schema::new(vec![Field::new("a", DataType::Int64, true), Field::new("b", DataType::Int64, true)])
    }

    fn translated(filter: &Arc<dyn PhysicalExpr>) -> Option<String> {
        let schema = DFSchema::try_from_qualified_schema("t", &schema()).unwrap();
        condition(filter, &schema, &SessionContext::new().state(), &mut BTreeMap::new()).unwrap().map(|e| e.to_string())
    }

    fn binary(left: Arc<dyn PhysicalExpr>, op: Operator, right: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        Arc::new(BinaryExpr::new(left, op, right))
    }

    fn among(column: &str, keys: impl Iterator<Item = i64>) -> Arc<dyn PhysicalExpr> {
        in_list(col(column, &schema()).unwrap(), keys.map(value).collect(), &false, &schema()).unwrap()
    }

    #[test]
    fn bounds_and_short_lists_are_written_out() {
        let a = col("a", &schema()).unwrap();
        let bounds = binary(binary(Arc::clone(&a), Operator::GtEq, value(3i64)), Operator::And, binary(a, Operator::LtEq, value(9i64)));
        let both = binary(among("a", [3, 9].into_iter()), Operator::And, bounds);
        assert_eq!(translated(&both).unwrap(), "t.a IN ([Int64(3), Int64(9)]) AND t.a >= Int64(3) AND t.a <= Int64(9)");
    }

    #[test]
    fn long_lists_become_filters() {
        let (schema, mut sets) = (DFSchema::try_from_qualified_schema("t", &schema()).unwrap(), BTreeMap::new());
        for (column, name) in [("a", "k0"), ("b", "k1")] {
            let text = condition(&among(column, 0..1000), &schema, &SessionContext::new().state(), &mut sets).unwrap().unwrap().to_string();
            assert_eq!(text, format!("__among(t.{column}, Utf8(\"{name}\"))"));
        }
        assert!(sets["k0"] == sets["k1"] && keys::KeySets::read(&sets).is_ok());
    }

    #[test]
    fn unknown_expressions_never_filter_a_row() {
        let (a, b) = (col("a", &schema()).unwrap(), col("b", &schema()).unwrap());
        let strange = binary(Arc::clone(&a), Operator::NotEq, value(1i64));
        let known = among("b", [1].into_iter());
        assert_eq!(translated(&strange), None);
        assert_eq!(translated(&binary(Arc::clone(&strange), Operator::And, Arc::clone(&known))).unwrap(), "t.b IN ([Int64(1)])");
        assert_eq!(translated(&binary(strange.clone(), Operator::Or, Arc::clone(&known))), None);
        assert_eq!(translated(&binary(is_null(b).unwrap(), Operator::Or, known.clone())).unwrap(), "t.b IS NULL OR t.b IN ([Int64(1)])");
        let hash = binary(a, Operator::Modulo, value(2i64));
        let branches = |other| case(Some(Arc::clone(&hash)), vec![(value(0i64), known.clone()), (value(1i64), other)], Some(value(false))).unwrap();
        assert_eq!(translated(&branches(strange)), None);
        assert_eq!(translated(&branches(among("b", [2].into_iter()))).unwrap(), "t.b IN ([Int64(1)]) OR t.b IN ([Int64(2)])");
        assert_eq!(translated(&branches(value(false))).unwrap(), "t.b IN ([Int64(1)])");
        assert_eq!(translated(&value(true)), None);
        assert_eq!(translated(&among("a", std::iter::empty())).unwrap(), "Boolean(false)");
    }

    #[test]
    fn types_that_sub_plans_cannot_compare_are_left_out() {
        let schema = Schema::new(vec![Field::new("a", DataType::Int64, true), Field::new("d", DataType::Duration(TimeUnit::Second), true)]);
        let (a, d) = (col("a", &schema).unwrap(), col("d", &schema).unwrap());
        let duration = value(ScalarValue::DurationSecond(Some(3)));
        let narrow = value(3i16);
        let lists = |key: &Arc<dyn PhysicalExpr>, of: &Arc<dyn PhysicalExpr>| -> Arc<dyn PhysicalExpr> {
            Arc::new(InListExpr::try_new(Arc::clone(key), vec![Arc::clone(of)], false, &schema).unwrap())
        };
        let named = DFSchema::try_from_qualified_schema("t", &schema).unwrap();
        let translated =
            |filter: &Arc<dyn PhysicalExpr>| condition(filter, &named, &SessionContext::new().state(), &mut BTreeMap::new()).unwrap().map(|e| e.to_string());
        for unknown in [binary(Arc::clone(&d), Operator::GtEq, Arc::clone(&duration)), lists(&d, &duration), binary(Arc::clone(&a), Operator::GtEq, narrow)] {
            assert_eq!(translated(&unknown), None);
            let known = binary(Arc::clone(&a), Operator::LtEq, value(9i64));
            assert_eq!(translated(&binary(Arc::clone(&unknown), Operator::And, Arc::clone(&known))).unwrap(), "t.a <= Int64(9)");
            assert_eq!(translated(&binary(unknown, Operator::Or, known)), None);
        }
    }

    #[test]
    fn keys_of_several_columns_are_filtered_one_by_one() {
        let fields = vec![Field::new("c0", DataType::Int64, true), Field::new("c1", DataType::Int64, true)];
        let keys: ArrayRef =
            Arc::new(StructArray::new(fields.clone().into(), vec![Arc::new(Int64Array::from(vec![1, 2])), Arc::new(Int64Array::from(vec![7, 7]))], None));
        let row = Arc::new(ScalarFunctionExpr::new(
            "struct",
            datafusion::functions::core::r#struct(),
            vec![col("b", &schema()).unwrap(), col("a", &schema()).unwrap()],
            Arc::new(Field::new("struct", DataType::Struct(fields.into()), true)),
            Arc::default(),
        ));
        let filter: Arc<dyn PhysicalExpr> = Arc::new(InListExpr::try_new_from_array(row, keys, false, &schema()).unwrap());
        assert_eq!(translated(&filter).unwrap(), "t.b IN ([Int64(1), Int64(2)]) AND t.a IN ([Int64(7), Int64(7)])");
    }
}
