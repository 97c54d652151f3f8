//! Expressions of Arrow's own tools, as `pyarrow` writes them: a Substrait `ExtendedExpression` over named columns.
//!
//! Such an expression means what Arrow's compute functions do, and this engine differs in some of them. The code here
//! rewrites what this engine can express, so that the answer is Arrow's. It refuses everything else by name; the caller
//! then evaluates the expression over the rows.
//!
//! - Only the names of the message's columns are read: types are those of the table. (The message may call a text
//!   column `string` that is stored as a view, or an unsigned column a signed one.)
//! - Arrow compares floats as IEEE 754 does. This engine compares by their total order: NaN equals itself and is the
//!   greatest, and -0 is less than 0.
//! - Arrow's integer arithmetic fails on overflow, and this engine's does not: only arithmetic over floats is taken.
//! - A reference to a field of a struct becomes a call of `get_field`.
//! - Timestamps in literals are in microseconds, in the form that Substrait had before it had precisions.

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, HashMap, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, lit, when};
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::consumer::SubstraitConsumer;
use datafusion_substrait::substrait::proto::expression::field_reference::ReferenceType;
use datafusion_substrait::substrait::proto::expression::literal::{LiteralType, PrecisionTime, PrecisionTimestamp};
use datafusion_substrait::substrait::proto::expression::{FieldReference, Literal, ReferenceSegment, RexType, ScalarFunction, reference_segment};
use datafusion_substrait::substrait::proto::expression_reference::ExprType;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::MappingType;
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::r#type::Kind;
use datafusion_substrait::substrait::proto::{Expression, ExtendedExpression, FunctionArgument, NamedStruct, Type};
use datafusion_substrait::variation_const::TIME_64_TYPE_VARIATION_REF;
use prost::Message;
use skytether_common::{Context, Detail, Error, Result};

use super::catch_panic::without_panic;
use super::limits::{MAX_BYTES, MAX_WIDTH};
use super::{consume, validate};
use crate::error::from_datafusion;
use crate::nesting_limits::nodes;

/// The functions that are taken, by their names in Substrait and here.
const FUNCTIONS: [(&str, &str); 20] = [
    ("equal", "equal"),
    ("not_equal", "not_equal"),
    ("lt", "lt"),
    ("lte", "lte"),
    ("gt", "gt"),
    ("gte", "gte"),
    ("and", "and"),
    ("or", "or"),
    ("not", "not"),
    ("add", "add"),
    ("subtract", "subtract"),
    ("multiply", "multiply"),
    ("is_null", "is_null"),
    ("is_not_null", "is_not_null"),
    ("is_nan", "isnan"),
    ("starts_with", "starts_with"),
    ("ends_with", "ends_with"),
    ("contains", "contains"),
    ("char_length", "character_length"),
    ("octet_length", "octet_length"),
];

/// The most expressions that comparisons of floats may be made of.
const MAX_COPIED: usize = 1 << 16;

const GET_FIELD: &str = "get_field";

/// The expressions that `bytes` hold, with their names, over the columns of `table`.
///
/// # Errors
/// Invalid for bytes that are no such message or contradict the table; not found for columns that it does not have;
/// unsupported, by name, for what this engine does not know or would compute otherwise than Arrow.
pub async fn decode_expressions(bytes: &[u8], table: &Schema, state: &SessionState) -> Result<Vec<(String, Expr)>> {
    if bytes.len() > MAX_BYTES {
        return Err(Error::invalid(format!("an expression of {} bytes is more than the {MAX_BYTES} that are accepted", bytes.len())));
    }
    let message = ExtendedExpression::decode(bytes).map_err(|e| Error::invalid("the bytes are no substrait expression").with_source(e))?;
    let base = message.base_schema.as_ref().ok_or_else(|| Error::invalid("the expression does not say over which columns it is"))?;
    let columns = columns(base, table)?;
    let mut writer = Rewriter { functions: functions(&message)?, columns: &columns };
    let mut expressions = Vec::with_capacity(message.referred_expr.len());
    for reference in &message.referred_expr {
        let Some(ExprType::Expression(expression)) = &reference.expr_type else {
            return Err(Error::unsupported("aggregates among expressions are not known to this engine"));
        };
        let mut expression = expression.clone();
        writer.expression(&mut expression)?;
        expressions.push((reference.output_names.first().cloned().unwrap_or_default(), expression));
    }
    validate::expressions(expressions.iter().map(|(_, e)| e), &writer.functions, columns.len(), state)?;
    let extensions = Extensions { functions: writer.functions, ..Extensions::default() };
    let fields = columns.iter().map(|(name, t)| datafusion::arrow::datatypes::Field::new(name, t.clone(), true)).collect::<Vec<_>>();
    let schema = DFSchema::try_from(Schema::new(fields)).map_err(from_datafusion).context(|| "the expression's columns")?;
    let read = async {
        let consumer = consume::Consumer::new(&extensions, state);
        let mut found = Vec::with_capacity(expressions.len());
        for (name, expression) in &expressions {
            let expression = consumer.consume_expression(expression, &schema).await.map_err(from_datafusion).context(|| "cannot read the expression")?;
            found.push((name.clone(), as_arrow(expression, &schema)?));
        }
        Ok(found)
    };
    without_panic(read).await
}

/// The top-level columns that a message names, with their types in `table`.
fn columns(base: &NamedStruct, table: &Schema) -> Result<Vec<(String, DataType)>> {
    let types = base.r#struct.as_ref().map_or(&[][..], |s| s.types.as_slice());
    if types.len() > MAX_WIDTH || base.names.len() > MAX_WIDTH {
        return Err(Error::invalid(format!("the expression is over more than {MAX_WIDTH} columns")));
    }
    let mut found = Vec::with_capacity(types.len());
    let mut at = 0;
    for kind in types {
        let name = base.names.get(at).ok_or_else(|| Error::invalid("the expression's columns have fewer names than types"))?;
        let field = table.field_with_name(name).map_err(|_| {
            Error::not_found(format!("the table has no column {name:?}, over which the expression is"))
                .with_detail(Detail::MissingColumn { column: name.clone() })
        })?;
        found.push((name.clone(), field.data_type().clone()));
        at += 1 + names_within(kind);
    }
    Ok(found)
}

/// The names that a type's own fields take in the list of names.
fn names_within(t: &Type) -> usize {
    let inner = |t: &Option<Box<Type>>| t.as_deref().map_or(0, names_within);
    match &t.kind {
        Some(Kind::Struct(s)) => s.types.iter().map(|t| 1 + names_within(t)).sum(),
        Some(Kind::List(l)) => inner(&l.r#type),
        Some(Kind::Map(m)) => inner(&m.key) + inner(&m.value),
        _ => 0,
    }
}

/// The functions that a message declares, by anchor, in this engine's names.
fn functions(message: &ExtendedExpression) -> Result<HashMap<u32, String>> {
    let mut found = HashMap::new();
    for declaration in &message.extensions {
        // Types are declared whether they are used or not, and where they are used they are refused.
        let Some(MappingType::ExtensionFunction(f)) = &declaration.mapping_type else { continue };
        let name = f.name.split(':').next().unwrap_or_default();
        let own = FUNCTIONS
            .iter()
            .find(|(theirs, _)| *theirs == name)
            .ok_or_else(|| Error::unsupported(format!("the expression calls the function {name:?}, which this engine does not take from Arrow")))?;
        found.insert(f.function_anchor, own.1.to_owned());
    }
    Ok(found)
}

/// Turns forms that DataFusion's reader does not know, or reads otherwise, into ones that it does.
struct Rewriter<'a> {
    functions: HashMap<u32, String>,
    columns: &'a [(String, DataType)],
}

impl Rewriter<'_> {
    fn expression(&mut self, expression: &mut Expression) -> Result<()> {
        match &mut expression.rex_type {
            Some(RexType::Literal(l)) => literal(l),
            Some(RexType::Selection(reference)) => {
                if let Some(call) = self.path(reference)? {
                    *expression = call;
                }
                Ok(())
            }
            Some(RexType::ScalarFunction(f)) => {
                for option in &f.options {
                    if option.name == "case_sensitivity" && option.preference.first().is_none_or(|p| p != "CASE_SENSITIVE") {
                        return Err(Error::unsupported("the expression compares texts whatever their case, which this engine does otherwise"));
                    }
                }
                f.arguments.iter_mut().try_for_each(|a| match &mut a.arg_type {
                    Some(ArgType::Value(e)) => self.expression(e),
                    _ => Ok(()),
                })
            }
            Some(RexType::Cast(c)) => c.input.as_deref_mut().map_or(Ok(()), |e| self.expression(e)),
            Some(RexType::SingularOrList(l)) => {
                l.value.as_deref_mut().map_or(Ok(()), |e| self.expression(e))?;
                l.options.iter_mut().try_for_each(|e| self.expression(e))
            }
            // All else is refused when it is validated.
            _ => Ok(()),
        }
    }

    /// A field of a struct as calls of `get_field`; nothing for a whole column.
    fn path(&mut self, reference: &FieldReference) -> Result<Option<Expression>> {
        let Some(ReferenceType::DirectReference(segment)) = &reference.reference_type else { return Ok(None) };
        let Some((column, mut rest)) = step(segment) else { return Ok(None) };
        if rest.is_none() {
            return Ok(None);
        }
        let wrong = || Error::invalid("the expression refers to a field that is not there");
        let mut t = &self.columns.get(column).ok_or_else(wrong)?.1;
        let whole = ReferenceSegment {
            reference_type: Some(reference_segment::ReferenceType::StructField(Box::new(reference_segment::StructField {
                field: i32::try_from(column).map_err(|_| wrong())?,
                child: None,
            }))),
        };
        let root = FieldReference { reference_type: Some(ReferenceType::DirectReference(whole)), root_type: reference.root_type.clone() };
        let mut found = Expression { rex_type: Some(RexType::Selection(Box::new(root))) };
        let function = self.get_field();
        while let Some(segment) = rest {
            let (field, next) = step(segment).ok_or_else(|| Error::unsupported("the expression refers to an element of a list or map by a path"))?;
            let DataType::Struct(fields) = t else { return Err(wrong()) };
            let field = fields.get(field).ok_or_else(wrong)?;
            let name = Literal { literal_type: Some(LiteralType::String(field.name().clone())), ..Literal::default() };
            let arguments = [found, Expression { rex_type: Some(RexType::Literal(name)) }];
            let arguments = arguments.into_iter().map(|e| FunctionArgument { arg_type: Some(ArgType::Value(e)) }).collect();
            found = Expression { rex_type: Some(RexType::ScalarFunction(ScalarFunction { function_reference: function, arguments, ..Default::default() })) };
            (t, rest) = (field.data_type(), next);
        }
        Ok(Some(found))
    }

    fn get_field(&mut self) -> u32 {
        if let Some((anchor, _)) = self.functions.iter().find(|(_, name)| *name == GET_FIELD) {
            return *anchor;
        }
        let free = (0..).find(|anchor| !self.functions.contains_key(anchor)).unwrap_or(u32::MAX);
        self.functions.insert(free, GET_FIELD.to_owned());
        free
    }
}

/// A step of a path: the field's number and what follows.
fn step(segment: &ReferenceSegment) -> Option<(usize, Option<&ReferenceSegment>)> {
    match &segment.reference_type {
        Some(reference_segment::ReferenceType::StructField(f)) => Some((usize::try_from(f.field).ok()?, f.child.as_deref())),
        _ => None,
    }
}

fn literal(l: &mut Literal) -> Result<()> {
    #[expect(deprecated, reason = "Arrow still writes the forms without a precision")]
    let (new, variation) = match &l.literal_type {
        Some(LiteralType::Timestamp(us)) => (LiteralType::PrecisionTimestamp(PrecisionTimestamp { precision: 6, value: *us }), 0),
        Some(LiteralType::TimestampTz(us)) => (LiteralType::PrecisionTimestampTz(PrecisionTimestamp { precision: 6, value: *us }), 0),
        Some(LiteralType::Time(us)) => (LiteralType::PrecisionTime(PrecisionTime { precision: 6, value: *us }), TIME_64_TYPE_VARIATION_REF),
        Some(LiteralType::Null(t)) => {
            return if matches!(t.kind, Some(Kind::Bool(_))) { Ok(()) } else { Err(Error::unsupported("the expression names a null")) };
        }
        _ => return Ok(()),
    };
    (l.literal_type, l.type_variation_reference) = (Some(new), variation);
    Ok(())
}

/// `expression` with Arrow's semantics said in this engine's.
fn as_arrow(expression: Expr, schema: &DFSchema) -> Result<Expr> {
    let (mut refused, mut copied) = (None, 0);
    let rewritten = expression
        .transform_up(|e| {
            let Expr::BinaryExpr(BinaryExpr { left, op, right }) = e else { return Ok(Transformed::no(e)) };
            let floats = left.get_type(schema)?.is_floating() || right.get_type(schema)?.is_floating();
            if matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply) && !floats {
                refused
                    .get_or_insert_with(|| format!("{left} {op} {right} is arithmetic over other than floats, which overflows otherwise here than in Arrow"));
            }
            if floats && matches!(op, Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq) {
                // Both sides are written out some times, and so are comparisons within them: what
                // is small may become huge.
                copied += nodes(&left, MAX_COPIED)? + nodes(&right, MAX_COPIED)?;
                if copied > MAX_COPIED {
                    refused.get_or_insert_with(|| "comparisons of floats are within one another too often".to_owned());
                    return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })));
                }
                return Ok(Transformed::yes(compare(*left, op, *right, &mut refused)));
            }
            Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })))
        })
        .map_err(from_datafusion)
        .context(|| "cannot type the expression")?;
    match refused {
        Some(why) => Err(Error::unsupported(why)),
        None => Ok(rewritten.data),
    }
}

/// The comparison of two floats by IEEE 754. A null on either side gives a null.
fn compare(left: Expr, op: Operator, right: Expr, refused: &mut Option<String>) -> Expr {
    match (number(&left), number(&right)) {
        (None, Some(value)) => compare_with(left, op, value, right, refused),
        (Some(value), None) => match op.swap() {
            Some(swapped) => compare_with(right, swapped, value, left, refused),
            None => binary(left, op, right),
        },
        _ => {
            // Adding zero turns -0 into 0 and nothing else into anything.
            let plain = |e: &Expr| binary(e.clone(), Operator::Plus, lit(0.0_f32));
            let compared = binary(plain(&left), op, plain(&right));
            let (a, b) = (is_nan(left.clone()), is_nan(right.clone()));
            let compared = if op == Operator::NotEq { compared.or(a).or(b) } else { compared.and(!a).and(!b) };
            // Otherwise a NaN on one side would decide a comparison that a null on the other side leaves open.
            let null = left.is_null().or(right.is_null());
            when(null, lit(ScalarValue::Boolean(None))).otherwise(compared.clone()).unwrap_or(compared)
        }
    }
}

/// The comparison of `e` with a number. The comparison itself stays as it is where it can, so that
/// slices are pruned by it.
fn compare_with(e: Expr, op: Operator, value: f64, written: Expr, refused: &mut Option<String>) -> Expr {
    use Operator as O;
    if value.is_nan() {
        refused.get_or_insert_with(|| format!("{e} {op} NaN says nothing of the value"));
        return binary(e, op, written);
    }
    let (low, high) = if value == 0.0 { (zero(&written, -0.0), zero(&written, 0.0)) } else { (written.clone(), written) };
    match op {
        O::Eq if low == high => binary(e, O::Eq, low),
        O::Eq => binary(e.clone(), O::GtEq, low).and(binary(e, O::LtEq, high)),
        O::NotEq if low == high => binary(e, O::NotEq, low),
        O::NotEq => binary(e.clone(), O::Lt, low).or(binary(e, O::Gt, high)),
        // NaNs are at both ends of the order, by their sign.
        O::Lt => binary(e.clone(), op, low).and(!is_nan(e)),
        O::LtEq => binary(e.clone(), op, high).and(!is_nan(e)),
        O::Gt => binary(e.clone(), op, high).and(!is_nan(e)),
        O::GtEq => binary(e.clone(), op, low).and(!is_nan(e)),
        _ => binary(e, op, high),
    }
}

/// The number that `e` is, if it is one.
fn number(e: &Expr) -> Option<f64> {
    match e {
        Expr::Literal(ScalarValue::Float64(v), _) => *v,
        Expr::Literal(ScalarValue::Float32(v), _) => v.map(f64::from),
        _ => None,
    }
}

/// A zero of `like`'s type.
fn zero(like: &Expr, value: f64) -> Expr {
    match like {
        #[expect(clippy::cast_possible_truncation, reason = "zeros of both signs are exact")]
        Expr::Literal(ScalarValue::Float32(_), _) => lit(value as f32),
        _ => lit(value),
    }
}

fn is_nan(e: Expr) -> Expr {
    datafusion::functions::math::expr_fn::isnan(e)
}

fn binary(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) })
}
