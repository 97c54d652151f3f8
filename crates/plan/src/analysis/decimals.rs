//! Floats next to decimals are compared, and joined into one column, as floats.
//!
//! DataFusion makes decimals of 15 places of both. A float of 1e-17 then equals 0, and one of 1e16, NaN or infinity is
//! an error. This rule casts the decimals, as PostgreSQL and DuckDB do, before DataFusion looks for a common type.
//!
//! A constant is no float here, if decimals of 15 places hold it: who writes `price > 0.05` means 0.05 exactly, and
//! such a comparison prunes as before. One that is CAST to a float is a float: `coalesce(price, CAST(0 AS DOUBLE))`
//! asks for one. Next to decimals with more than 23 digits before the point, which DataFusion
//! could not compare with 15 places, it becomes a decimal with as many places as it is written with.
//!
//! A constant that is a decimal, next to floats, is the float that is nearest to what is written. DataFusion's cast
//! divides two rounded numbers, which may give the next float.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Decimal128Type, DecimalType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, InList, InSubquery, ScalarFunction};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{BinaryExpr, Case, Cast, Expr, ExprSchemable, Join, LogicalPlan, TryCast, Union, cast, lit};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use crate::float_keys::compares;
use crate::rewriting::{map_typed, with_types};

/// Functions that compare their arguments with one another, or make one column or one list of them. Those of a list and
/// an element do not take floats next to decimals.
const OF_ONE_TYPE: [&str; 12] = [
    "coalesce",
    "nvl",
    "nullif",
    "greatest",
    "least",
    "make_array",
    "array_concat",
    "array_except",
    "array_has_all",
    "array_has_any",
    "array_intersect",
    "array_union",
];

pub(super) fn rewrite(plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    let constants = ExprSimplifier::new(SimplifyContext::builder().with_config_options(Arc::new(config.clone())).build());
    let plan = map_typed(plan, |e, schema| Types { schema, constants: &constants }.within(e))?;
    // Whether types have changed below: operators keep those of before, until they are asked.
    let stale = Cell::new(false);
    plan.transform_up_with_subqueries(|node| {
        let node = if stale.get() { node.recompute_schema()? } else { node };
        let done = operator(node, &constants)?;
        stale.set(stale.get() || done.transformed && matches!(done.data, LogicalPlan::Union(_)));
        Ok(Transformed::new_transformed(done.data, done.transformed || stale.get()))
    })
    .data()
}

/// What is known of the operands of an expression.
struct Types<'a> {
    schema: &'a DFSchema,
    constants: &'a ExprSimplifier,
}

impl Types<'_> {
    fn within(&self, e: Expr) -> Result<Transformed<Expr>> {
        Ok(match e {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) => match self.float([left.as_ref(), right.as_ref()]) {
                Some(of) => {
                    let (left, right) = (self.boxed(left, &of), self.boxed(right, &of));
                    Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right }))
                }
                None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
            },
            Expr::Between(Between { expr, negated, low, high }) => match self.float([expr.as_ref(), &low, &high]) {
                Some(of) => {
                    let [expr, low, high] = [expr, low, high].map(|e| self.boxed(e, &of));
                    Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
                }
                None => Transformed::no(Expr::Between(Between { expr, negated, low, high })),
            },
            Expr::InList(InList { expr, list, negated }) => match self.float(std::iter::once(expr.as_ref()).chain(&list)) {
                Some(of) => {
                    let list = self.all(list, &of);
                    Transformed::yes(Expr::InList(InList { expr: self.boxed(expr, &of), list, negated }))
                }
                None => Transformed::no(Expr::InList(InList { expr, list, negated })),
            },
            Expr::InSubquery(of) => self.among(of)?,
            Expr::Case(case) => self.case(case),
            Expr::ScalarFunction(ScalarFunction { func, args }) if OF_ONE_TYPE.contains(&func.name()) => match self.float(&args) {
                Some(of) => Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args: self.all(args, &of) })),
                None => Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args })),
            },
            other => Transformed::no(other),
        })
    }

    /// The type that decimals and floats among `operands` are cast to, where there are both: of the floats, or of a
    /// decimal for floats that are constants.
    fn float<'e>(&self, operands: impl IntoIterator<Item = &'e Expr>) -> Option<DataType> {
        let mut decimals = false;
        let mut places: u8 = 0;
        let mut floats = Vec::new();
        for e in operands {
            match leaf(&e.get_type(self.schema).ok()?).clone() {
                DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
                    decimals = true;
                    places = places.max(precision.saturating_sub(scale.unsigned_abs()));
                }
                DataType::Decimal32(..) | DataType::Decimal64(..) => decimals = true,
                of if of.is_floating() => floats.push((e, of)),
                of if of.is_integer() || of.is_null() => {}
                _ => return None,
            }
        }
        if !decimals || floats.is_empty() {
            return None;
        }
        let constants: Option<Vec<u8>> = floats.iter().map(|(e, _)| self.short(e).map(written_places)).collect();
        match constants.map(|scales| scales.into_iter().max().unwrap_or(0)) {
            Some(_) if places <= MOST_PLACES => None,
            Some(scale) if u32::from(places) + u32::from(scale) <= MOST_DIGITS => Some(DataType::Decimal128(SCALE as u8 + scale, scale as i8)),
            _ => Some(if floats.iter().any(|(_, of)| *of == DataType::Float64) { DataType::Float64 } else { DataType::Float32 }),
        }
    }

    /// The value of `e`, if it is a constant; `None` otherwise.
    fn constant(&self, e: &Expr) -> Option<ScalarValue> {
        let constant =
            !e.is_volatile() && !e.exists(|e| Ok(matches!(e, Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::Placeholder(_)))).unwrap_or(true);
        match self.constants.simplify(e.clone()) {
            Ok(Expr::Literal(value, _)) if constant => Some(value),
            _ => None,
        }
    }

    /// The value of a constant that decimals of [`SCALE`] places hold, unless it is CAST to a float; 0 for NULL.
    fn short(&self, e: &Expr) -> Option<f64> {
        if is_cast_to_float(e) {
            return None;
        }
        match self.constant(e)?.cast_to(&DataType::Float64) {
            Ok(ScalarValue::Float64(value)) => Some(value.unwrap_or(0.0)).filter(|value| is_short(*value)),
            _ => None,
        }
    }

    /// Whether `e` is a constant that decimals of [`SCALE`] places hold.
    fn is_decimal(&self, e: &Expr) -> bool {
        self.short(e).is_some()
    }

    /// `e` as [`Self::float`] wants it: a decimal as a float, or a constant as a decimal.
    fn cast(&self, e: Expr, of: &DataType) -> Expr {
        let Ok(given) = e.get_type(self.schema) else { return e };
        if of.is_decimal() {
            return if leaf(&given).is_floating() { self.as_decimal(e, of) } else { e };
        }
        if !leaf(&given).is_decimal() {
            return e;
        }
        let nearest = match (&given, self.constant(&e)) {
            // Next to REAL as well, a constant of more than [`FLOAT_DIGITS`] is a double.
            (DataType::Decimal128(..), Some(ScalarValue::Decimal128(Some(value), precision, scale)))
                if *of == DataType::Float64 || precision > FLOAT_DIGITS =>
            {
                Decimal128Type::format_decimal(value, precision, scale).parse::<f64>().ok()
            }
            _ => None,
        };
        match nearest {
            Some(value) => lit(value),
            None => cast(e, with_leaf(&given, of)),
        }
    }

    fn as_decimal(&self, e: Expr, of: &DataType) -> Expr {
        match self.constant(&e).and_then(|value| value.cast_to(&DataType::Float64).ok()) {
            // By its shortest text: a product with a power of ten is rounded.
            Some(value @ ScalarValue::Float64(Some(_))) => match ScalarValue::from(value.to_string()).cast_to(of) {
                Ok(exact @ ScalarValue::Decimal128(Some(_), ..)) => lit(exact),
                _ => cast(e, of.clone()),
            },
            _ => cast(e, of.clone()),
        }
    }

    fn boxed(&self, mut e: Box<Expr>, of: &DataType) -> Box<Expr> {
        *e = self.cast(std::mem::take(e.as_mut()), of);
        e
    }

    fn all(&self, list: Vec<Expr>, of: &DataType) -> Vec<Expr> {
        list.into_iter().map(|e| self.cast(e, of)).collect()
    }

    /// `CASE`: what is compared, and what is returned.
    fn case(&self, case: Case) -> Transformed<Expr> {
        let Case { mut expr, mut when_then_expr, mut else_expr } = case;
        let mut changed = false;
        let compared = expr.as_deref().and_then(|expr| self.float(std::iter::once(expr).chain(when_then_expr.iter().map(|(when, _)| when.as_ref()))));
        if let Some(of) = compared {
            expr = expr.map(|e| self.boxed(e, &of));
            when_then_expr = when_then_expr.into_iter().map(|(when, then)| (self.boxed(when, &of), then)).collect();
            changed = true;
        }
        if let Some(of) = self.float(when_then_expr.iter().map(|(_, then)| then.as_ref()).chain(else_expr.as_deref())) {
            when_then_expr = when_then_expr.into_iter().map(|(when, then)| (when, self.boxed(then, &of))).collect();
            else_expr = else_expr.map(|e| self.boxed(e, &of));
            changed = true;
        }
        Transformed::new_transformed(Expr::Case(Case { expr, when_then_expr, else_expr }), changed)
    }

    /// `x IN (SELECT y ...)`.
    fn among(&self, mut of: InSubquery) -> Result<Transformed<Expr>> {
        let inner = Arc::clone(&of.subquery.subquery);
        let (Ok(outer), [value]) = (of.expr.get_type(self.schema), inner.schema().fields().as_ref()) else {
            return Ok(Transformed::no(Expr::InSubquery(of)));
        };
        if outer.is_decimal() && value.data_type().is_floating() {
            of.expr = Box::new(cast(*of.expr, value.data_type().clone()));
        } else if outer.is_floating() && value.data_type().is_decimal() && !self.is_decimal(&of.expr) {
            of.subquery = of.subquery.with_plan(Arc::new(with_types(inner, &[Some(outer)])?));
        } else {
            return Ok(Transformed::no(Expr::InSubquery(of)));
        }
        Ok(Transformed::yes(Expr::InSubquery(of)))
    }
}

/// Whether `e` is computed from something that the query casts to a float.
fn is_cast_to_float(e: &Expr) -> bool {
    let casts = |e: &Expr| match e {
        Expr::Cast(Cast { field, .. }) | Expr::TryCast(TryCast { field, .. }) => leaf(field.data_type()).is_floating(),
        _ => false,
    };
    e.exists(|e| Ok(casts(e))).unwrap_or(false)
}

/// The type of a value, or of the elements of lists.
fn leaf(of: &DataType) -> &DataType {
    match of {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => leaf(field.data_type()),
        of => of,
    }
}

/// The type `of` with `new` in the place of its [`leaf`].
fn with_leaf(of: &DataType, new: &DataType) -> DataType {
    let within = |field: &FieldRef| Arc::new(field.as_ref().clone().with_data_type(with_leaf(field.data_type(), new)));
    match of {
        DataType::List(field) => DataType::List(within(field)),
        DataType::LargeList(field) => DataType::LargeList(within(field)),
        DataType::FixedSizeList(field, length) => DataType::FixedSizeList(within(field), *length),
        _ => new.clone(),
    }
}

/// Places of the decimals that DataFusion makes of floats.
const SCALE: i32 = 15;

/// The most digits before the point that decimals with [`SCALE`] places have.
const MOST_PLACES: u8 = 38 - SCALE as u8;

/// Constants of more digits are doubles next to REAL: they were written for more than it holds.
const FLOAT_DIGITS: u8 = 15;

/// The digits of a decimal of 128 bits.
const MOST_DIGITS: u32 = 38;

/// The digits behind the point that `value` is written with, at most [`SCALE`].
fn written_places(value: f64) -> u8 {
    // The shortest text that is read as this value, without an exponent.
    value.to_string().split_once('.').map_or(0, |(_, places)| places.len().min(SCALE as usize) as u8)
}

/// Whether decimals of [`SCALE`] places hold `value`, to the last digits of a double.
fn is_short(value: f64) -> bool {
    let shift = 10f64.powi(SCALE);
    value.abs() < shift && ((value * shift).round() / shift - value).abs() <= value.abs() * 1e-14
}

fn operator(node: LogicalPlan, constants: &ExprSimplifier) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Join(join) if !join.on.is_empty() => Ok(keys(join)),
        LogicalPlan::Union(union) => inputs(union, constants),
        other => Ok(Transformed::no(other)),
    }
}

/// The keys of `USING`, `NATURAL` and of set operations.
fn keys(mut join: Join) -> Transformed<LogicalPlan> {
    let mut changed = false;
    for (left, right) in &mut join.on {
        let (Ok(of_left), Ok(of_right)) = (left.get_type(join.left.schema()), right.get_type(join.right.schema())) else { continue };
        if of_left.is_floating() && of_right.is_decimal() {
            *right = cast(right.clone(), of_left);
            changed = true;
        } else if of_left.is_decimal() && of_right.is_floating() {
            *left = cast(left.clone(), of_right);
            changed = true;
        }
    }
    Transformed::new_transformed(LogicalPlan::Join(join), changed)
}

/// The inputs of `UNION`, with floats in the columns that are floats in one of them.
fn inputs(union: Union, constants: &ExprSimplifier) -> Result<Transformed<LogicalPlan>> {
    let columns = union.inputs.first().map_or(0, |input| input.schema().fields().len());
    if union.inputs.iter().any(|input| input.schema().fields().len() != columns) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let of = |column: usize| {
        let nothing = DFSchema::empty();
        let types = Types { schema: &nothing, constants };
        let mut found = None;
        let mut others = false;
        for input in &union.inputs {
            let given = input.schema().field(column).data_type();
            others |= is_exact(given);
            let constant = || projected(input, column).is_some_and(|e| types.is_decimal(e));
            if given.is_floating() && found != Some(DataType::Float64) && !constant() {
                found = Some(given.clone());
            }
        }
        found.filter(|_| others)
    };
    let common: Vec<Option<DataType>> = (0..columns).map(of).collect();
    if common.iter().all(Option::is_none) {
        // DataFusion begins with the type that the first input had when the union was made.
        let first = union.inputs.first().map(|input| input.schema());
        let same = first.is_none_or(|first| first.fields().iter().zip(union.schema.fields()).all(|(now, before)| now.data_type() == before.data_type()));
        return Ok(match same {
            true => Transformed::no(LogicalPlan::Union(union)),
            false => Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(union.inputs)?)),
        });
    }
    let inputs = union.inputs.iter().map(|input| {
        let fields = input.schema().fields().iter().zip(&common);
        let casts: Vec<_> = fields.map(|(field, of)| of.clone().filter(|_| is_exact(field.data_type()))).collect();
        Ok(if casts.iter().any(Option::is_some) { Arc::new(with_types(Arc::clone(input), &casts)?) } else { Arc::clone(input) })
    });
    Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(inputs.collect::<Result<_>>()?)?)))
}

/// Whether a column of this type becomes one of floats next to them. Whole numbers do without this rule as well, but a
/// union within another one has to show its type.
fn is_exact(of: &DataType) -> bool {
    of.is_decimal() || of.is_integer()
}

/// What `plan` computes as this column, if it computes anything.
fn projected(plan: &LogicalPlan, column: usize) -> Option<&Expr> {
    match plan {
        LogicalPlan::Projection(projection) => projection.expr.get(column),
        LogicalPlan::SubqueryAlias(alias) => projected(&alias.input, column),
        _ => None,
    }
}
