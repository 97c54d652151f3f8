//! `||` of texts as a function that is bounded like those of [`crate::bounded_results`].
//!
//! `x || x` in each of 30 subqueries makes a text of a gigabyte of one letter. The operator cannot be replaced by a
//! setting, so this rule replaces it by a call, of the same name and with the same result.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr as PhysicalBinary, Column};

use crate::named::map_expressions;

/// The name of the function.
pub(crate) const NAME: &str = "||";

/// The function.
pub(crate) fn udf() -> ScalarUDF {
    ScalarUDF::from(Concat { signature: Signature::any(2, Volatility::Immutable) })
}

/// See the module. It runs after the types are known.
#[derive(Debug)]
pub struct StringConcats {
    /// The function with its bound.
    call: Arc<ScalarUDF>,
}

impl Default for StringConcats {
    fn default() -> Self {
        Self { call: crate::bounded_results::bounded(NAME, Arc::new(udf())) }
    }
}

impl AnalyzerRule for StringConcats {
    fn name(&self) -> &'static str {
        "string_concats"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let mut schema = DFSchema::empty();
            for input in node.inputs() {
                schema.merge(input.schema());
            }
            map_expressions(node, |e| self.called(e, &schema))
        })
        .data()
    }
}

impl StringConcats {
    fn called(&self, e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) = &e else { return Ok(Transformed::no(e)) };
        let types = (left.get_type(schema), right.get_type(schema));
        if !matches!(&types, (Ok(left), Ok(right)) if left.is_string() && right.is_string()) {
            return Ok(Transformed::no(e));
        }
        Ok(Transformed::yes(self.call.call(vec![left.as_ref().clone(), right.as_ref().clone()])))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Concat {
    signature: Signature,
}

impl ScalarUDFImpl for Concat {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        let [left, right] = of else { return datafusion::common::plan_err!("|| takes two texts") };
        BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type()
    }

    /// As the operator does.
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = args.args.iter().map(|arg| arg.to_array(args.number_rows)).collect::<Result<Vec<_>>>()?;
        let fields: Vec<Field> = ["l", "r"].iter().zip(&arrays).map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(args.number_rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?;
        PhysicalBinary::new(Arc::new(Column::new("l", 0)), Operator::StringConcat, Arc::new(Column::new("r", 1))).evaluate(&batch)
    }
}
