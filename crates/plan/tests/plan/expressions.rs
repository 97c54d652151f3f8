//! Expressions of Arrow's tools: they mean here what they mean there, or are refused by name.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StructArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{DFSchema, DFSchemaRef};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, ExprSchemable, col, lit};
use datafusion::prelude::SessionContext;
use datafusion_substrait::logical_plan::producer::to_substrait_extended_expr;
use datafusion_substrait::substrait::proto::expression::field_reference::ReferenceType;
use datafusion_substrait::substrait::proto::expression::reference_segment::{ReferenceType as Segment, StructField};
use datafusion_substrait::substrait::proto::expression::{FieldReference, ReferenceSegment, RexType};
use datafusion_substrait::substrait::proto::expression_reference::ExprType;
use datafusion_substrait::substrait::proto::{Expression, ExtendedExpression};
use prost::Message;
use skytether_common::Kind;
use skytether_plan::codec::decode_expressions;

/// Every pair of what is odd about floats.
fn batch() -> RecordBatch {
    let odd = [Some(f64::NAN), Some(-f64::NAN), Some(0.0), Some(-0.0), Some(f64::INFINITY), Some(f64::NEG_INFINITY), Some(1.5), None];
    let pairs = || odd.iter().flat_map(|a| odd.iter().map(move |b| (*a, *b)));
    let x: ArrayRef = Arc::new(pairs().map(|p| p.0).collect::<Float64Array>());
    let y: ArrayRef = Arc::new(pairs().map(|p| p.1).collect::<Float64Array>());
    let n: ArrayRef = Arc::new((0..pairs().count() as i64).collect::<Int64Array>());
    let inner = Arc::new(Field::new("n", DataType::Int64, true));
    let s: ArrayRef = Arc::new(StructArray::from(vec![(inner, Arc::clone(&n))]));
    RecordBatch::try_from_iter([("x", x), ("y", y), ("n", n), ("s", s)]).unwrap()
}

fn schema() -> DFSchemaRef {
    DFSchemaRef::new(DFSchema::try_from(batch().schema().as_ref().clone()).unwrap())
}

fn message(expr: &Expr, state: &SessionState) -> ExtendedExpression {
    let field = Field::new("e", expr.get_type(&schema()).unwrap(), true);
    *to_substrait_extended_expr(&[(expr, &field)], &schema(), state).unwrap()
}

async fn decoded(expr: &Expr) -> skytether_common::Result<Expr> {
    let state = SessionContext::new().state();
    let found = decode_expressions(&message(expr, &state).encode_to_vec(), &batch().schema(), &state).await?;
    Ok(found[0].1.clone())
}

async fn truths(expr: Expr) -> Vec<Option<bool>> {
    let context = SessionContext::new();
    let frame = context.read_batch(batch()).unwrap().select([expr.alias("e")]).unwrap();
    let batches = frame.collect().await.unwrap();
    batches.iter().flat_map(|b| b.column(0).as_any().downcast_ref::<BooleanArray>().unwrap().iter().collect::<Vec<_>>()).collect()
}

type Compare = (fn(Expr, Expr) -> Expr, fn(&f64, &f64) -> bool);

const COMPARE: [Compare; 6] = [
    (Expr::eq, |a, b| a == b),
    (Expr::not_eq, |a, b| a != b),
    (Expr::lt, |a, b| a < b),
    (Expr::lt_eq, |a, b| a <= b),
    (Expr::gt, |a, b| a > b),
    (Expr::gt_eq, |a, b| a >= b),
];

#[tokio::test]
async fn floats_compare_as_ieee_754_says() {
    let column = |at: usize| batch().column(at).as_any().downcast_ref::<Float64Array>().unwrap().iter().collect::<Vec<_>>();
    let (x, y) = (column(0), column(1));
    for (said, meant) in COMPARE {
        let found = truths(decoded(&said(col("x"), col("y"))).await.unwrap()).await;
        let wanted: Vec<_> = x.iter().zip(&y).map(|(a, b)| Some(meant(&(*a)?, &(*b)?))).collect();
        assert_eq!(found, wanted, "{}", said(col("x"), col("y")));
        for value in [0.0, -0.0, 1.5, f64::INFINITY] {
            let found = truths(decoded(&said(col("x"), lit(value))).await.unwrap()).await;
            assert_eq!(found, x.iter().map(|a| Some(meant(&(*a)?, &value))).collect::<Vec<_>>(), "{}", said(col("x"), lit(value)));
            let found = truths(decoded(&said(lit(value), col("x"))).await.unwrap()).await;
            assert_eq!(found, x.iter().map(|a| Some(meant(&value, &(*a)?))).collect::<Vec<_>>(), "{}", said(lit(value), col("x")));
        }
    }
}

#[tokio::test]
async fn a_field_of_a_struct_is_read() {
    let state = SessionContext::new().state();
    let mut message = message(&col("n").gt(lit(40_i64)), &state);
    let Some(ExprType::Expression(Expression { rex_type: Some(RexType::ScalarFunction(call)) })) = &mut message.referred_expr[0].expr_type else {
        panic!("a comparison is no call")
    };
    let child = ReferenceSegment { reference_type: Some(Segment::StructField(Box::new(StructField { field: 0, child: None }))) };
    let path = Segment::StructField(Box::new(StructField { field: 3, child: Some(Box::new(child)) }));
    let reference = FieldReference { reference_type: Some(ReferenceType::DirectReference(ReferenceSegment { reference_type: Some(path) })), root_type: None };
    let selection = Expression { rex_type: Some(RexType::Selection(Box::new(reference))) };
    call.arguments[0].arg_type = Some(datafusion_substrait::substrait::proto::function_argument::ArgType::Value(selection));
    let found = decode_expressions(&message.encode_to_vec(), &batch().schema(), &state).await.unwrap();
    assert_eq!(found[0].1.column_refs().iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["s"]);
    assert_eq!(truths(found[0].1.clone()).await.iter().filter(|t| **t == Some(true)).count(), 23);
}

#[tokio::test]
async fn expressions_with_other_semantics_are_refused_by_name() {
    let integers = decoded(&(col("n") + lit(1_i64)).gt(lit(3_i64))).await.unwrap_err();
    assert!(integers.kind() == Kind::Unsupported && integers.message().contains("n + Int64(1)"), "{integers}");
    let nan = decoded(&col("x").eq(lit(f64::NAN))).await.unwrap_err();
    assert!(nan.kind() == Kind::Unsupported && nan.message().contains("NaN"), "{nan}");
    let function = decoded(&datafusion::functions::math::expr_fn::sin(col("x")).gt(lit(0.5))).await.unwrap_err();
    assert!(function.kind() == Kind::Unsupported && function.message().contains("\"sin\""), "{function}");
    let state = SessionContext::new().state();
    let bytes = message(&col("n").gt(lit(3_i64)), &state).encode_to_vec();
    let column = decode_expressions(&bytes, &Schema::new(vec![Field::new("other", DataType::Int64, true)]), &state).await.unwrap_err();
    assert!(column.kind() == Kind::NotFound && column.message().contains("no column"), "{column}");
    for end in 1..bytes.len() {
        // Cut short it is no message, or one that says less; never a panic.
        if let Err(e) = decode_expressions(&bytes[..end], &batch().schema(), &state).await {
            assert!(matches!(e.kind(), Kind::Invalid | Kind::Unsupported | Kind::NotFound), "{e}");
        }
    }
}

/// Each comparison of floats is written out with both sides some times: one within another, a few kilobytes would
/// become more than any memory.
#[tokio::test]
async fn comparisons_within_comparisons_are_bounded() {
    use datafusion::logical_expr::cast;
    let nested = |n: usize| (0..n).fold(col("x"), |e, _| cast(e.lt(col("y")), DataType::Float64));
    decoded(&nested(3)).await.unwrap();
    let error = decoded(&nested(15)).await.unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.report().contains("within one another"), "{}", error.report());
}
