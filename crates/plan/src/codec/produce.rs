//! Writes Substrait.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Column, DFSchemaRef, Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, Extension, LogicalPlan, Operator, TableScan, TableScanBuilder, TableSource};
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::producer::{DefaultSubstraitProducer, SubstraitProducer, from_binary_expr, from_column, from_literal, from_table_scan};
use datafusion_substrait::substrait::proto::expression::field_reference::{ReferenceType, RootReference, RootType};
use datafusion_substrait::substrait::proto::expression::reference_segment::{self, StructField};
use datafusion_substrait::substrait::proto::expression::{FieldReference, ReferenceSegment, RexType, ScalarFunction};
use datafusion_substrait::substrait::proto::extensions::SimpleExtensionDeclaration;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::MappingType;
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::{Expression, FunctionArgument, Rel};

use crate::expressions::{chain, nameable};
use crate::wide_projection::Places;

pub(super) struct Producer<'a>(DefaultSubstraitProducer<'a>, Places);

impl<'a> Producer<'a> {
    pub(super) fn new(state: &'a SessionState) -> Self {
        Self(DefaultSubstraitProducer::new(state), Places::default())
    }
}

impl SubstraitProducer for Producer<'_> {
    fn register_function(&mut self, signature: String) -> u32 {
        self.0.register_function(signature)
    }

    fn register_type(&mut self, name: String) -> u32 {
        self.0.register_type(name)
    }

    fn get_extensions(self) -> Extensions {
        self.0.get_extensions()
    }

    fn handle_extension(&mut self, plan: &Extension) -> Result<Box<Rel>> {
        self.0.handle_extension(plan)
    }

    fn handle_table_scan(&mut self, scan: &TableScan) -> Result<Box<Rel>> {
        let schema = scan.source.schema();
        if schema.fields().iter().all(|f| nameable(f.data_type())) {
            return from_table_scan(self, scan);
        }
        let fields = schema.fields().iter().map(|f| if nameable(f.data_type()) { Arc::clone(f) } else { Arc::new(Field::new(f.name(), DataType::Null, true)) });
        let named = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let scan = TableScanBuilder::new(scan.table_name.clone(), Arc::new(Named(named)))
            .with_projection(scan.projection.clone())
            .with_filters(scan.filters.clone())
            .with_fetch(scan.fetch)
            .build()?;
        from_table_scan(self, &scan)
    }

    fn handle_binary_expr(&mut self, expr: &BinaryExpr, schema: &DFSchemaRef) -> Result<Expression> {
        let name = match expr.op {
            Operator::And => "and",
            Operator::Or => "or",
            _ => return from_binary_expr(self, expr, schema),
        };
        let whole = Expr::BinaryExpr(expr.clone());
        let arguments = chain(&whole, expr.op)
            .into_iter()
            .map(|e| Ok(FunctionArgument { arg_type: Some(ArgType::Value(self.handle_expr(e, schema)?)) }))
            .collect::<Result<Vec<_>>>()?;
        let function_reference = self.register_function(name.to_owned());
        Ok(Expression { rex_type: Some(RexType::ScalarFunction(ScalarFunction { function_reference, arguments, ..ScalarFunction::default() })) })
    }

    /// As the library does it, but that looks through all columns for each.
    fn handle_column(&mut self, column: &Column, schema: &DFSchemaRef) -> Result<Expression> {
        let Some(field) = self.1.of(column, schema).and_then(|at| i32::try_from(at).ok()) else { return from_column(column, schema) };
        let segment = ReferenceSegment { reference_type: Some(reference_segment::ReferenceType::StructField(Box::new(StructField { field, child: None }))) };
        let reference =
            FieldReference { reference_type: Some(ReferenceType::DirectReference(segment)), root_type: Some(RootType::RootReference(RootReference {})) };
        Ok(Expression { rex_type: Some(RexType::Selection(Box::new(reference))) })
    }

    fn handle_literal(&mut self, value: &ScalarValue) -> Result<Expression> {
        match value {
            ScalarValue::Dictionary(_, inner) if !value.is_null() => {
                let cast = Cast::new(Box::new(Expr::Literal(inner.as_ref().clone(), None)), value.data_type());
                let nothing = DFSchemaRef::new(datafusion::common::DFSchema::empty());
                self.handle_cast(&cast, &nothing)
            }
            // Substrait knows only that there is a zone, and its reader takes it for UTC.
            ScalarValue::TimestampSecond(v, Some(_)) => from_literal(self, &ScalarValue::TimestampSecond(*v, utc())),
            ScalarValue::TimestampMillisecond(v, Some(_)) => from_literal(self, &ScalarValue::TimestampMillisecond(*v, utc())),
            ScalarValue::TimestampMicrosecond(v, Some(_)) => from_literal(self, &ScalarValue::TimestampMicrosecond(*v, utc())),
            ScalarValue::TimestampNanosecond(v, Some(_)) => from_literal(self, &ScalarValue::TimestampNanosecond(*v, utc())),
            other => from_literal(self, other),
        }
    }

    fn handle_plan(&mut self, plan: &LogicalPlan) -> Result<Box<Rel>> {
        datafusion_substrait::logical_plan::producer::to_substrait_rel(self, plan)
    }
}

fn utc() -> Option<Arc<str>> {
    Some("UTC".into())
}

/// A table source that is nothing but a schema.
struct Named(SchemaRef);

impl TableSource for Named {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }
}

/// The names of a column as Substrait lists them: its own, then those of the fields of structs in it, depth first.
pub(super) fn flatten(name: &str, data_type: &DataType, names: &mut Vec<String>) {
    names.push(name.to_owned());
    nested(data_type, &mut |n| names.push(n.to_owned()));
}

/// Calls `each` with the name of every struct field within `data_type`.
pub(crate) fn nested(data_type: &DataType, each: &mut impl FnMut(&str)) {
    match data_type {
        DataType::Struct(fields) => {
            for field in fields {
                each(field.name());
                nested(field.data_type(), each);
            }
        }
        DataType::List(f) | DataType::LargeList(f) => nested(f.data_type(), each),
        DataType::Map(entries, _) => {
            if let DataType::Struct(fields) = entries.data_type() {
                fields.iter().for_each(|f| nested(f.data_type(), each));
            }
        }
        _ => {}
    }
}

pub(super) fn declaration_order(declaration: &SimpleExtensionDeclaration) -> (u8, u32) {
    match &declaration.mapping_type {
        Some(MappingType::ExtensionFunction(f)) => (0, f.function_anchor),
        Some(MappingType::ExtensionType(t)) => (1, t.type_anchor),
        Some(MappingType::ExtensionTypeVariation(v)) => (2, v.type_variation_anchor),
        None => (3, 0),
    }
}
