//! Tables, and rows that a plan spells out.

use std::collections::HashMap;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, DFSchema, DFSchemaRef, DataFusionError};
use datafusion::logical_expr::{EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, TableScanBuilder};
use datafusion_substrait::logical_plan::consumer::{SubstraitConsumer, from_substrait_named_struct};
use datafusion_substrait::substrait::proto::expression::{Literal, RexType};
use datafusion_substrait::substrait::proto::read_rel::{NamedTable, ReadType, VirtualTable};
use datafusion_substrait::substrait::proto::{Expression, NamedStruct, ReadRel};
use skytether_common::Error;

use super::consume::Consumer;
use super::expressions::modern;
use crate::codec::validate::{self, present};
use crate::error::to_datafusion;

type DfResult<T> = std::result::Result<T, DataFusionError>;

impl Consumer<'_> {
    pub(super) async fn read(&self, r: &ReadRel) -> DfResult<LogicalPlan> {
        let what = match &r.read_type {
            Some(ReadType::NamedTable(_) | ReadType::VirtualTable(_)) => None,
            Some(ReadType::LocalFiles(_)) => Some("local files: ingest them first, and read the table"),
            Some(ReadType::ExtensionTable(t)) => {
                let url = t.detail.as_ref().map(|d| d.type_url.as_str()).unwrap_or_default();
                return Err(to_datafusion(Error::unsupported(format!("the plan reads the extension table {url:?}, which this engine does not know"))));
            }
            Some(ReadType::IcebergTable(_)) => Some("an Iceberg table, which this engine does not know"),
            None => return Err(to_datafusion(Error::invalid("the plan reads from nowhere"))),
        };
        if let Some(what) = what {
            return Err(to_datafusion(Error::unsupported(format!("the plan reads {what}"))));
        }
        let declared = self.declared(present(r.base_schema.as_ref(), "read", "schema").map_err(to_datafusion)?)?;
        let plan = match &r.read_type {
            Some(ReadType::NamedTable(t)) => self.named(t, &declared).await?,
            Some(ReadType::VirtualTable(t)) => self.rows(t, declared).await?,
            _ => return Err(to_datafusion(Error::invalid("the plan reads from nowhere"))),
        };
        // What a reader may leave to others (`best_effort_filter`) is left to them.
        let plan = match &r.filter {
            Some(filter) => {
                let predicate = self.consume_expression(filter, plan.schema()).await?;
                LogicalPlanBuilder::from(plan).filter(predicate)?.build()?
            }
            None => plan,
        };
        let Some(select) = r.projection.as_ref().and_then(|p| p.select.as_ref()) else { return Ok(plan) };
        validate::width(select.struct_items.len(), "columns").map_err(to_datafusion)?;
        if select.struct_items.iter().any(|item| item.child.is_some()) {
            return Err(to_datafusion(Error::unsupported("the plan reads parts of a column")));
        }
        let kept: Vec<i32> = select.struct_items.iter().map(|item| item.field).collect();
        self.choose(plan, &kept)
    }

    fn declared(&self, base: &NamedStruct) -> DfResult<DFSchema> {
        let mut base = base.clone();
        let columns = base.r#struct.as_mut().ok_or_else(|| to_datafusion(Error::invalid("the plan reads a table without columns")))?;
        validate::width(columns.types.len(), "columns").and_then(|()| validate::width(base.names.len(), "names")).map_err(to_datafusion)?;
        for t in &mut columns.types {
            modern(t);
            validate::type_of(t).map_err(to_datafusion)?;
        }
        from_substrait_named_struct(self, &base)
    }

    /// The columns of the table that the plan lists, in its order; their types are the table's.
    async fn named(&self, t: &NamedTable, declared: &DFSchema) -> DfResult<LogicalPlan> {
        validate::enhancement(t.advanced_extension.as_ref()).map_err(to_datafusion)?;
        let (reference, source) = self.tables.find(&t.names).await.map_err(to_datafusion)?;
        let schema = source.schema();
        let exact: HashMap<&str, usize> = schema.fields().iter().enumerate().map(|(i, f)| (f.name().as_str(), i)).collect();
        let mut folded: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, f) in schema.fields().iter().enumerate() {
            folded.entry(f.name().to_lowercase()).or_default().push(i);
        }
        let mut columns = Vec::with_capacity(declared.fields().len());
        for field in declared.fields() {
            let at = match (exact.get(field.name().as_str()), folded.get(&field.name().to_lowercase()).map(Vec::as_slice)) {
                (Some(at), _) | (None, Some([at])) => *at,
                (None, Some(several)) => {
                    let names: Vec<_> = several.iter().map(|i| schema.field(*i).name().as_str()).collect();
                    return Err(to_datafusion(Error::invalid(format!("column {:?} of table {reference} may be any of {}", field.name(), names.join(", ")))));
                }
                (None, None) => return Err(to_datafusion(Error::invalid(format!("table {reference} has no column {:?}", field.name())))),
            };
            let actual = schema.field(at).data_type();
            if class(field.data_type()) != class(actual) && *field.data_type() != DataType::Null {
                return Err(to_datafusion(Error::invalid(format!(
                    "column {:?} of table {reference} is {actual}, and the plan takes it for {}",
                    field.name(),
                    field.data_type()
                ))));
            }
            columns.push(at);
        }
        let scan = TableScanBuilder::new(reference.clone(), source).with_projection(Some(columns)).build()?;
        LogicalPlanBuilder::from(LogicalPlan::TableScan(scan)).alias(self.fresh(reference.table()))?.build()
    }

    async fn rows(&self, t: &VirtualTable, declared: DFSchema) -> DfResult<LogicalPlan> {
        #[expect(deprecated, reason = "producers still write both forms")]
        let old: Vec<Vec<Expression>> = t.values.iter().map(|row| row.fields.iter().map(expression).collect()).collect();
        let new = t.expressions.iter().map(|row| row.fields.as_slice());
        let rows: Vec<&[Expression]> = old.iter().map(Vec::as_slice).chain(new).collect();
        validate::width(rows.len(), "rows").map_err(to_datafusion)?;
        let schema = DFSchemaRef::new(declared);
        let width = schema.fields().len();
        if let Some(row) = rows.iter().find(|row| row.len() != width) {
            return Err(to_datafusion(Error::invalid(format!("the plan has a row of {} values for {width} columns", row.len()))));
        }
        if rows.is_empty() || width == 0 {
            if rows.len() > 1 {
                return Err(to_datafusion(Error::unsupported("the plan has several rows without columns")));
            }
            return Ok(LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: !rows.is_empty(), schema }));
        }
        let nothing = DFSchema::empty();
        let mut values = Vec::with_capacity(rows.len());
        for row in rows {
            let mut exprs = Vec::with_capacity(width);
            for value in row {
                exprs.push(self.consume_expression(value, &nothing).await?);
            }
            values.push(exprs);
        }
        LogicalPlanBuilder::values_with_schema(values, &schema)?.alias(self.fresh("rows"))?.build()
    }

    /// The columns of `plan` at these places, each with a unique name.
    pub(super) fn choose(&self, plan: LogicalPlan, places: &[i32]) -> DfResult<LogicalPlan> {
        let columns = plan.schema().fields().len();
        let mut seen = vec![false; columns];
        let mut exprs = Vec::with_capacity(places.len());
        for place in places {
            validate::index(*place, columns).map_err(to_datafusion)?;
            let at = usize::try_from(*place).unwrap_or_default();
            let column = Expr::Column(Column::from(plan.schema().qualified_field(at)));
            exprs.push(if std::mem::replace(&mut seen[at], true) {
                let name = plan.schema().field(at).name().clone();
                column.alias_qualified(Some(self.fresh("again")), name)
            } else {
                column
            });
        }
        if exprs.len() == columns && places.iter().enumerate().all(|(i, p)| usize::try_from(*p) == Ok(i)) {
            return Ok(plan);
        }
        LogicalPlanBuilder::from(plan).project(exprs)?.build()
    }
}

fn expression(literal: &Literal) -> Expression {
    Expression { rex_type: Some(RexType::Literal(literal.clone())) }
}

/// Kinds of types within which a plan may take a column for another than it is: its values are the same, and the
/// table's own type counts.
#[derive(Debug, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    Decimal,
    Text,
    Bytes,
    Date,
    Time,
    Timestamp(bool),
    Interval,
    Nested,
    Other(DataType),
}

fn class(t: &DataType) -> Class {
    use DataType as D;
    match t {
        D::Dictionary(_, value) => class(value),
        D::RunEndEncoded(_, value) => class(value.data_type()),
        t if t.is_integer() => Class::Integer,
        t if t.is_floating() => Class::Float,
        t if t.is_decimal() => Class::Decimal,
        D::Utf8 | D::LargeUtf8 | D::Utf8View => Class::Text,
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => Class::Bytes,
        D::Date32 | D::Date64 => Class::Date,
        D::Time32(_) | D::Time64(_) => Class::Time,
        D::Timestamp(_, zone) => Class::Timestamp(zone.is_some()),
        D::Interval(_) | D::Duration(_) => Class::Interval,
        t if t.is_nested() => Class::Nested,
        other => Class::Other(other.clone()),
    }
}
