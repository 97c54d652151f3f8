//! The one list of what can travel: expressions, functions, types.
//!
//! An expression goes down if a drive that reads the Substrait bytes is sure to compute the same value:
//! - it is deterministic;
//! - every node has a Substrait form that DataFusion reads back as the same node;
//! - every type that the form names survives the round trip;
//! - every function is known by name on both sides.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{ExprSchema, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::{AggregateFunction, InList, WindowFunction};
use datafusion::logical_expr::{
    BinaryExpr, Case, Cast, Expr, ExprSchemable, Operator, TryCast, Volatility, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition,
};

/// Greatest depth of an expression that is sent, in function calls (chains of AND and of OR count once). A call takes
/// three of the hundred nested messages that protobuf readers accept.
pub const MAX_DEPTH: usize = 20;

/// Why an expression can't go down, in words.
pub type Refusal = String;

/// Whether `expr` over rows of `schema` can be sent; if not, why.
///
/// # Errors
/// The reason, naming the expression's offending part.
pub fn check(expr: &Expr, schema: &dyn ExprSchema, registry: &dyn FunctionRegistry) -> Result<(), Refusal> {
    Checker { schema, registry }.expr(expr, 0)
}

/// Whether the aggregate call in `expr` can be computed below at all (in one piece, by its own name); if so, the call.
///
/// # Errors
/// The reason.
pub fn check_aggregate<'e>(expr: &'e Expr, schema: &dyn ExprSchema, registry: &dyn FunctionRegistry) -> Result<&'e AggregateFunction, Refusal> {
    let Expr::AggregateFunction(call) = unaliased(expr) else {
        return Err(format!("{} is no plain aggregate call", short(expr)));
    };
    let name = call.func.name();
    if call.params.null_treatment.is_some() {
        return Err(format!("{name}: IGNORE NULLS and RESPECT NULLS are not carried by sub-plans"));
    }
    if !call.params.order_by.is_empty() && !default_order(call) {
        return Err(format!("{name} has an ORDER BY in its call: it needs all rows in one place"));
    }
    if call.params.args.is_empty() {
        return Err(format!("{name} is called without arguments"));
    }
    if !carried_name(name) || registry.udaf(name).is_err() {
        return Err(format!("{name} is not among the aggregates that drives know"));
    }
    let checker = Checker { schema, registry };
    for arg in call.params.args.iter().chain(call.params.filter.as_deref()) {
        checker.expr(arg, 0)?;
    }
    Ok(call)
}

/// Whether the window call in `expr` can be computed below, where all rows of its windows are; if so, the call.
///
/// # Errors
/// The reason.
pub fn check_window<'e>(expr: &'e Expr, schema: &dyn ExprSchema, registry: &dyn FunctionRegistry) -> Result<&'e WindowFunction, Refusal> {
    let Expr::WindowFunction(call) = unaliased(expr) else {
        return Err(format!("{} is no plain window call", short(expr)));
    };
    let (name, params) = (call.fun.name(), &call.params);
    if params.null_treatment.is_some() {
        return Err(format!("{name}: IGNORE NULLS and RESPECT NULLS are not carried by sub-plans"));
    }
    if params.filter.is_some() || params.distinct {
        return Err(format!("{name}: FILTER and DISTINCT over a window are not carried by sub-plans"));
    }
    let known = match &call.fun {
        WindowFunctionDefinition::WindowUDF(_) => registry.udwf(name).is_ok(),
        // A reader of the name looks among window functions first.
        WindowFunctionDefinition::AggregateUDF(_) => registry.udaf(name).is_ok() && registry.udwf(name).is_err() && !params.args.is_empty(),
    };
    if !carried_name(name) || !known {
        return Err(format!("{name} is not among the window functions that drives know"));
    }
    if !frame(&params.window_frame) {
        return Err(format!("the frame {} is not carried by sub-plans", params.window_frame));
    }
    let checker = Checker { schema, registry };
    let exprs = params.args.iter().chain(&params.partition_by).chain(params.order_by.iter().map(|by| &by.expr));
    exprs.into_iter().try_for_each(|e| checker.expr(e, 1))?;
    Ok(call)
}

/// The expression that `expr` gives another name to, or itself.
pub(crate) fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

/// Frames that arrive as they left: offsets count rows, and one of 0 has another name.
fn frame(frame: &WindowFrame) -> bool {
    let offset = |v: &ScalarValue| match v {
        v if v.is_null() => true,
        ScalarValue::UInt64(Some(n)) => frame.units == WindowFrameUnits::Rows && i64::try_from(*n).is_ok_and(|n| n > 0),
        _ => false,
    };
    let bound = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => true,
        WindowFrameBound::Preceding(v) | WindowFrameBound::Following(v) => offset(v),
    };
    matches!(frame.units, WindowFrameUnits::Rows | WindowFrameUnits::Range) && bound(&frame.start_bound) && bound(&frame.end_bound)
}

/// `WITHIN GROUP (ORDER BY x ASC)` over the call's own first argument is what the call means without it.
fn default_order(call: &AggregateFunction) -> bool {
    call.func.inner().supports_within_group_clause() && matches!(call.params.order_by.as_slice(), [by] if by.asc && call.params.args.first() == Some(&by.expr))
}

/// Whether a column of type `t` keeps its type where Substrait names it (casts, literals).
#[must_use]
pub fn exact(t: &DataType) -> bool {
    use DataType as D;
    match t {
        D::FixedSizeBinary(_) | D::Decimal128(..) | D::Decimal256(..) => true,
        // Substrait knows only that there is a zone.
        D::Timestamp(_, zone) => zone.as_deref().is_none_or(|z| z == "UTC"),
        D::Dictionary(key, value) => exact(key) && exact(value),
        other => simple(other),
    }
}

/// The types without parameters that matter here: numbers, times without a zone, texts and bytes.
fn simple(t: &DataType) -> bool {
    use DataType as D;
    matches!(
        t,
        D::Boolean
            | D::Int8
            | D::Int16
            | D::Int32
            | D::Int64
            | D::UInt8
            | D::UInt16
            | D::UInt32
            | D::UInt64
            | D::Float16
            | D::Float32
            | D::Float64
            | D::Date32
            | D::Date64
            | D::Time32(_)
            | D::Time64(_)
            | D::Duration(_)
            | D::Interval(_)
            | D::Utf8
            | D::LargeUtf8
            | D::Utf8View
            | D::Binary
            | D::LargeBinary
            | D::BinaryView
    )
}

/// Whether Substrait has any name for `t`. This is weaker than [`exact`]: a drive takes the types of columns and
/// results from its own catalog and functions, not from the plan.
#[must_use]
pub fn nameable(t: &DataType) -> bool {
    use DataType as D;
    match t {
        D::Null | D::Timestamp(..) => true,
        D::List(f) | D::LargeList(f) => nameable(f.data_type()),
        D::Struct(fields) => fields.iter().all(|f| nameable(f.data_type())),
        D::Map(f, _) => nameable(f.data_type()),
        other => exact(other),
    }
}

/// Literals that arrive as they left.
fn literal(value: &ScalarValue) -> bool {
    use ScalarValue as S;
    match value {
        S::Dictionary(key, inner) => exact(key) && literal(inner),
        v if v.is_null() => exact(&v.data_type()),
        S::Boolean(_)
        | S::Int8(_)
        | S::Int16(_)
        | S::Int32(_)
        | S::Int64(_)
        | S::UInt8(_)
        | S::UInt16(_)
        | S::UInt32(_)
        | S::UInt64(_)
        | S::Float32(_)
        | S::Float64(_)
        | S::Utf8(_)
        | S::LargeUtf8(_)
        | S::Utf8View(_)
        | S::Binary(_)
        | S::LargeBinary(_)
        | S::BinaryView(_)
        | S::FixedSizeBinary(..)
        | S::Decimal128(..)
        | S::Date32(_)
        | S::Time32Second(_)
        | S::Time32Millisecond(_)
        | S::Time64Microsecond(_)
        | S::Time64Nanosecond(_)
        | S::IntervalYearMonth(_) => true,
        S::TimestampSecond(..) | S::TimestampMillisecond(..) | S::TimestampMicrosecond(..) | S::TimestampNanosecond(..) => exact(&value.data_type()),
        // The message holds whole seconds in 32 bits.
        S::IntervalMonthDayNano(Some(i)) => (i.nanoseconds / 1_000_000_000).unsigned_abs() < i32::MAX as u64,
        _ => false,
    }
}

/// Whether `expr` is a moment. Its zone is only how it is shown, so that it may travel in that of
/// UTC where it is compared.
fn moment(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(v, None) if matches!(v.data_type(), DataType::Timestamp(_, Some(_))) && !v.is_null())
}

/// Operators that have a name in both directions.
fn operator(op: Operator) -> bool {
    use Operator as O;
    matches!(
        op,
        O::Eq
            | O::NotEq
            | O::Lt
            | O::LtEq
            | O::Gt
            | O::GtEq
            | O::Plus
            | O::Minus
            | O::Multiply
            | O::Divide
            | O::Modulo
            | O::And
            | O::Or
            | O::IsDistinctFrom
            | O::IsNotDistinctFrom
            | O::RegexMatch
            | O::RegexIMatch
            | O::RegexNotMatch
            | O::RegexNotIMatch
            | O::BitwiseAnd
            | O::BitwiseOr
            | O::BitwiseXor
            | O::BitwiseShiftLeft
            | O::BitwiseShiftRight
            | O::StringConcat
            | O::AtArrow
            | O::ArrowAt
    )
}

/// Substrait names are lower case, and what follows a colon is a signature.
fn carried_name(name: &str) -> bool {
    !name.contains(':') && name == name.to_lowercase()
}

struct Checker<'a> {
    schema: &'a dyn ExprSchema,
    registry: &'a dyn FunctionRegistry,
}

impl Checker<'_> {
    fn expr(&self, expr: &Expr, depth: usize) -> Result<(), Refusal> {
        if depth > MAX_DEPTH {
            return Err(format!("an expression is nested deeper than {MAX_DEPTH}"));
        }
        match expr {
            Expr::Column(_) => Ok(()),
            Expr::Alias(a) => self.expr(&a.expr, depth),
            Expr::Literal(value, metadata) => {
                if metadata.as_ref().is_some_and(|m| !m.is_empty()) {
                    return Err(format!("the literal {value} carries metadata"));
                }
                if literal(value) { Ok(()) } else { Err(format!("literals of type {} are not carried by sub-plans", value.data_type())) }
            }
            Expr::Not(e)
            | Expr::IsNull(e)
            | Expr::IsNotNull(e)
            | Expr::IsTrue(e)
            | Expr::IsFalse(e)
            | Expr::IsUnknown(e)
            | Expr::IsNotTrue(e)
            | Expr::IsNotFalse(e)
            | Expr::IsNotUnknown(e) => self.expr(e, depth + 1),
            Expr::Negative(e) => {
                self.result_type(expr)?;
                self.expr(e, depth + 1)
            }
            Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) => {
                chain(expr, *op).into_iter().try_for_each(|e| self.expr(e, depth + 1))
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                if !operator(*op) {
                    return Err(format!("the operator {op} is not carried by sub-plans"));
                }
                self.result_type(expr)?;
                let operand = |e: &Expr| if op.supports_propagation() && moment(e) { Ok(()) } else { self.expr(e, depth + 1) };
                operand(left)?;
                operand(right)
            }
            // NOT LIKE, NOT IN and BETWEEN travel as two calls, one within the other.
            Expr::Like(l) => {
                self.expr(&l.expr, depth + 2)?;
                self.expr(&l.pattern, depth + 2)
            }
            Expr::Between(b) => {
                self.expr(&b.expr, depth + 2)?;
                [&b.low, &b.high].into_iter().filter(|e| !moment(e)).try_for_each(|e| self.expr(e, depth + 2))
            }
            Expr::InList(InList { expr, list, .. }) => {
                std::iter::once(expr.as_ref()).chain(list.iter().filter(|e| !moment(e))).try_for_each(|e| self.expr(e, depth + 2))
            }
            Expr::Case(Case { expr, when_then_expr, else_expr }) => {
                let branches = when_then_expr.iter().flat_map(|(when, then)| [when, then]);
                expr.iter().chain(branches).chain(else_expr).try_for_each(|e| self.expr(e, depth + 1))
            }
            Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
                if !exact(field.data_type()) || !field.metadata().is_empty() {
                    return Err(format!("casts to {} are not carried by sub-plans", field.data_type()));
                }
                self.expr(expr, depth + 1)
            }
            Expr::ScalarFunction(f) => {
                let name = f.name();
                if f.func.signature().volatility != Volatility::Immutable {
                    return Err(format!("{name} is not deterministic"));
                }
                if !carried_name(name) || self.registry.udf(name).is_err() || (name == "log" && f.args.len() != 2) {
                    return Err(format!("{name} is not among the functions that drives know"));
                }
                self.result_type(expr)?;
                f.args.iter().try_for_each(|e| self.expr(e, depth + 1))
            }
            Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_) => Err("subqueries stay on the host".into()),
            Expr::OuterReferenceColumn(..) => Err("references to an outer query stay on the host".into()),
            Expr::Placeholder(_) => Err("parameters without a value stay on the host".into()),
            other => Err(format!("{} is not among the expressions that sub-plans carry", other.variant_name())),
        }
    }

    /// The producer writes the result's type even though no reader needs it.
    fn result_type(&self, expr: &Expr) -> Result<(), Refusal> {
        match expr.get_type(self.schema) {
            Ok(t) if nameable(&t) => Ok(()),
            Ok(t) => Err(format!("{} gives a {t}, which sub-plans don't carry", short(expr))),
            Err(e) => Err(format!("{} has no type: {}", short(expr), e.strip_backtrace())),
        }
    }
}

/// The operands of a chain of `op` (AND or OR), left to right, however it is nested.
#[must_use]
pub fn chain(expr: &Expr, op: Operator) -> Vec<&Expr> {
    let (mut found, mut todo) = (vec![], vec![expr]);
    while let Some(e) = todo.pop() {
        match e {
            Expr::BinaryExpr(b) if b.op == op => todo.extend([b.right.as_ref(), b.left.as_ref()]),
            other => found.push(other),
        }
    }
    found
}

fn short(expr: &Expr) -> String {
    let text = expr.to_string();
    if text.chars().count() > 60 { text.chars().take(57).chain("...".chars()).collect() } else { text }
}
