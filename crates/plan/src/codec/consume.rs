//! Reads Substrait. Its input has passed [`super::validate`].

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, DFSchema, DataFusionError, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{Aggregate, Expr, Filter, LogicalPlan, Projection, TableScanBuilder};
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::consumer::{SubstraitConsumer, from_aggregate_rel, from_project_rel, from_substrait_named_struct};
use datafusion_substrait::substrait::proto::read_rel::ReadType;
use datafusion_substrait::substrait::proto::r#type::UserDefined;
use datafusion_substrait::substrait::proto::{AggregateRel, ProjectRel, ReadRel, RelRoot};
use datafusion_substrait::variation_const::{FLOAT_16_TYPE_NAME, NULL_TYPE_NAME};
use skytether_common::{Context, Detail, Error, Result};

use super::produce::nested;
use super::short_names::shorten;
use crate::error::{from_datafusion, to_datafusion};

type DfResult<T> = std::result::Result<T, DataFusionError>;

/// The root's input, its columns named as the root says.
pub(super) async fn root(root: &RelRoot, extensions: &Extensions, state: &SessionState) -> Result<LogicalPlan> {
    let consumer = Consumer { extensions, state };
    let Some(input) = &root.input else {
        return Err(Error::invalid("the plan's root has no input"));
    };
    let plan = consumer.consume_rel(input).await.map_err(from_datafusion).context(|| "cannot read the plan")?;
    if root.names.is_empty() {
        return Ok(plan);
    }
    let mut names = vec![];
    let mut at = 0;
    for field in plan.schema().fields() {
        let Some(name) = root.names.get(at) else { break };
        names.push(name.clone());
        at += 1;
        nested(field.data_type(), &mut |_| at += 1);
    }
    if names.len() != plan.schema().fields().len() || at != root.names.len() {
        return Err(Error::invalid(format!("the plan names {} columns and fields where it gives {at}", root.names.len())));
    }
    rename(plan, &names).map_err(from_datafusion).context(|| "cannot name the plan's columns")
}

fn rename(plan: LogicalPlan, names: &[String]) -> DfResult<LogicalPlan> {
    let fields = plan.schema().fields();
    if fields.iter().zip(names).all(|(f, n)| f.name() == n) {
        return Ok(plan);
    }
    let alias = |expr: &Expr, old: &str, name: &String| if old == name { expr.clone() } else { expr.clone().unalias().alias(name) };
    match plan {
        LogicalPlan::Projection(p) => {
            let exprs = p.expr.iter().zip(p.schema.fields()).zip(names).map(|((e, f), n)| alias(e, f.name(), n)).collect();
            Ok(LogicalPlan::Projection(Projection::try_new(exprs, p.input)?))
        }
        LogicalPlan::Aggregate(a) => {
            let renamed = |exprs: &[Expr], from: usize| {
                exprs.iter().enumerate().map(|(i, e)| alias(e, a.schema.field(from + i).name(), &names[from + i])).collect::<Vec<_>>()
            };
            let (groups, calls) = (renamed(&a.group_expr, 0), renamed(&a.aggr_expr, a.group_expr.len()));
            // Names are all that differs. To find the types again takes a search through all columns for each.
            let fields = a.schema.iter().zip(names).map(|((qualifier, field), name)| match field.name() == name {
                true => (qualifier.cloned(), Arc::clone(field)),
                false => (None, Arc::new(field.as_ref().clone().with_name(name))),
            });
            let schema = DFSchema::new_with_metadata(fields.collect(), a.schema.metadata().clone())?;
            Ok(LogicalPlan::Aggregate(Aggregate::try_new_with_schema(a.input, groups, calls, Arc::new(schema))?))
        }
        plan => {
            let exprs = plan.schema().iter().zip(names).map(|((q, f), n)| alias(&Expr::Column(Column::from((q, f))), f.name(), n)).collect();
            Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?))
        }
    }
}

pub(super) struct Consumer<'a> {
    extensions: &'a Extensions,
    state: &'a SessionState,
}

impl<'a> Consumer<'a> {
    pub(super) fn new(extensions: &'a Extensions, state: &'a SessionState) -> Self {
        Self { extensions, state }
    }
}

#[async_trait]
impl SubstraitConsumer for Consumer<'_> {
    async fn resolve_table_ref(&self, table: &TableReference) -> DfResult<Option<Arc<dyn TableProvider>>> {
        match self.state.schema_for_ref(table.clone()) {
            Ok(schema) => schema.table(table.table()).await,
            Err(_) => Ok(None),
        }
    }

    fn get_extensions(&self) -> &Extensions {
        self.extensions
    }

    fn get_function_registry(&self) -> &impl FunctionRegistry {
        self.state
    }

    fn consume_user_defined_type(&self, t: &UserDefined) -> DfResult<DataType> {
        match self.extensions.types.get(&t.type_reference).map(String::as_str) {
            Some(NULL_TYPE_NAME) => Ok(DataType::Null),
            Some(FLOAT_16_TYPE_NAME) => Ok(DataType::Float16),
            Some(other) => Err(to_datafusion(Error::unsupported(format!("the plan uses the type {other:?}, which this engine does not know")))),
            None => Err(to_datafusion(Error::invalid(format!("the plan uses type {} without declaring it", t.type_reference)))),
        }
    }

    async fn consume_project(&self, rel: &ProjectRel) -> DfResult<LogicalPlan> {
        shorten(from_project_rel(self, rel).await?)
    }

    async fn consume_aggregate(&self, rel: &AggregateRel) -> DfResult<LogicalPlan> {
        shorten(from_aggregate_rel(self, rel).await?)
    }

    /// Binds the columns by name to those of this side's table of that name. The types in the plan are only compared.
    async fn consume_read(&self, rel: &ReadRel) -> DfResult<LogicalPlan> {
        let (Some(ReadType::NamedTable(named)), Some(base)) = (&rel.read_type, &rel.base_schema) else {
            return Err(to_datafusion(Error::unsupported("the plan reads something other than a named table")));
        };
        let table = match named.names.as_slice() {
            [table] => TableReference::bare(table.as_str()),
            [schema, table] => TableReference::partial(schema.as_str(), table.as_str()),
            [catalog, schema, table] => TableReference::full(catalog.as_str(), schema.as_str(), table.as_str()),
            other => return Err(to_datafusion(Error::invalid(format!("a table has one to three names, not {}", other.len())))),
        };
        let Some(provider) = self.resolve_table_ref(&table).await? else {
            let text = format!("there is no table {table} here");
            return Err(to_datafusion(Error::not_found(text).with_detail(Detail::MissingTable { table: table.to_string() })));
        };
        let schema = provider.schema();
        let index: HashMap<&str, usize> = schema.fields().iter().enumerate().map(|(i, f)| (f.name().as_str(), i)).collect();
        let mut columns = vec![];
        for field in from_substrait_named_struct(self, base)?.fields() {
            let Some(at) = index.get(field.name().as_str()) else {
                return Err(to_datafusion(Error::invalid(format!("table {table} has no column {:?}", field.name()))));
            };
            let actual = schema.field(*at).data_type();
            if !agrees(field.data_type(), actual) {
                return Err(to_datafusion(Error::invalid(format!(
                    "column {:?} of table {table} is {actual}, and the plan takes it for {}",
                    field.name(),
                    field.data_type()
                ))));
            }
            columns.push(*at);
        }
        let kept: Option<Vec<usize>> = rel
            .projection
            .as_ref()
            .and_then(|p| p.select.as_ref())
            .map(|s| s.struct_items.iter().map(|item| usize::try_from(item.field).ok().filter(|i| *i < columns.len())).collect())
            .unwrap_or_else(|| Some((0..columns.len()).collect()));
        let kept = kept.ok_or_else(|| to_datafusion(Error::invalid(format!("the plan's read of {table} keeps a column that it does not list"))))?;
        let source = provider_as_source(provider);
        let Some(condition) = &rel.filter else {
            let columns = kept.iter().map(|i| columns[*i]).collect();
            return Ok(LogicalPlan::TableScan(TableScanBuilder::new(table, source).with_projection(Some(columns)).build()?));
        };
        let scan = LogicalPlan::TableScan(TableScanBuilder::new(table, source).with_projection(Some(columns)).build()?);
        let predicate = self.consume_expression(condition, scan.schema()).await?;
        let filter = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(scan))?);
        let exprs = kept.iter().map(|i| Expr::Column(Column::from(filter.schema().qualified_field(*i)))).collect();
        Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(filter))?))
    }
}

/// Whether a column of type `actual` may be read by a plan that takes it for `declared`; `Null` declares nothing, and
/// Substrait does not carry time zones or, within other types, names.
fn agrees(declared: &DataType, actual: &DataType) -> bool {
    match (declared, actual) {
        (DataType::Null, _) => true,
        (DataType::Timestamp(a, za), DataType::Timestamp(b, zb)) => a == b && za.is_some() == zb.is_some(),
        _ => DFSchema::datatype_is_logically_equal(declared, actual) || declared.equals_datatype(actual) || (declared.is_nested() && actual.is_nested()),
    }
}
