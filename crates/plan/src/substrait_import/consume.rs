//! Relations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use async_trait::async_trait;
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, DFSchema, DataFusionError, JoinType, TableReference};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::builder::project;
use datafusion::logical_expr::utils::find_window_exprs;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::consumer::{SubstraitConsumer, from_fetch_rel, from_filter_rel};
use datafusion_substrait::substrait::proto::expression::{
    Cast, FieldReference, IfThen, Lambda, Literal, MultiOrList, Nested, ScalarFunction, SingularOrList, Subquery, SwitchExpression, WindowFunction,
};
use datafusion_substrait::substrait::proto::extensions::AdvancedExtension;
use datafusion_substrait::substrait::proto::join_rel::JoinType as Join;
use datafusion_substrait::substrait::proto::rel::RelType;
use datafusion_substrait::substrait::proto::rel_common::EmitKind;
use datafusion_substrait::substrait::proto::set_rel::SetOp;
use datafusion_substrait::substrait::proto::{CrossRel, Expression, JoinRel, ProjectRel, Rel, RelCommon, SetRel, SortRel, r#type::UserDefined};
use datafusion_substrait::variation_const::{FLOAT_16_TYPE_NAME, NULL_TYPE_NAME};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::Error;

use super::functions::Declared;
use super::limits::Limits;
use super::table_lookup::TableLookup;
use crate::codec::limits::MAX_WIDTH;
use crate::codec::validate::{self, present};
use crate::error::to_datafusion;
use crate::nesting_limits;

type DfResult<T> = std::result::Result<T, DataFusionError>;

/// Builds the logical plan of one plan.
pub(super) struct Consumer<'a> {
    pub(super) state: &'a SessionState,
    pub(super) extensions: &'a Extensions,
    pub(super) functions: &'a Declared,
    pub(super) tables: &'a dyn TableLookup,
    shared: &'a [Option<&'a Rel>],
    limits: Limits,
    /// Names given, relations and expressions read, relations around the one that is being read.
    named: AtomicUsize,
    relations: AtomicUsize,
    expressions: AtomicUsize,
    depth: AtomicUsize,
    levels: nesting_limits::Levels,
    /// The columns of the queries around the one that is being read, the innermost last.
    outer: Mutex<Vec<Arc<DFSchema>>>,
}

pub(super) fn unsupported(text: impl Into<String>) -> DataFusionError {
    to_datafusion(Error::unsupported(text))
}

pub(super) fn invalid(text: impl Into<String>) -> DataFusionError {
    to_datafusion(Error::invalid(text))
}

fn checked(extension: Option<&AdvancedExtension>) -> DfResult<()> {
    validate::enhancement(extension).map_err(to_datafusion)
}

impl<'a> Consumer<'a> {
    pub(super) fn new(
        state: &'a SessionState,
        extensions: &'a Extensions,
        functions: &'a Declared,
        tables: &'a dyn TableLookup,
        shared: &'a [Option<&'a Rel>],
        limits: Limits,
    ) -> Self {
        let zero = AtomicUsize::default;
        Self {
            state,
            extensions,
            functions,
            tables,
            shared,
            limits,
            named: zero(),
            relations: zero(),
            expressions: zero(),
            depth: zero(),
            levels: nesting_limits::Levels::default(),
            outer: Mutex::default(),
        }
    }

    /// The root's input, its columns named as the root says.
    pub(super) async fn root(&self, input: &Rel, names: &[String]) -> DfResult<LogicalPlan> {
        let plan = self.consume_rel(input).await?;
        if names.is_empty() {
            return Ok(plan);
        }
        let plan = without_set_number(input, names.len(), plan)?;
        let (mut at, mut exprs) = (0, Vec::with_capacity(names.len()));
        for (qualifier, field) in plan.schema().iter() {
            let column = Expr::Column(Column::from((qualifier, field)));
            let Some(name) = names.get(at) else { break };
            // Names may repeat, as in SQL; each is the only one of its qualifier.
            exprs.push(if name == field.name() { column } else { column.alias_qualified(Some(self.fresh("root")), name) });
            at += 1;
            crate::codec::nested_names(field.data_type(), &mut |_| at += 1);
        }
        if exprs.len() != plan.schema().fields().len() || at != names.len() {
            let columns = plan.schema().fields().len();
            return Err(invalid(format!("the plan's root has {} names for {columns} columns and the fields in them", names.len())));
        }
        project(plan, exprs)
    }

    /// A name that nothing else in the plan has.
    pub(super) fn fresh(&self, stem: &str) -> TableReference {
        TableReference::bare(format!("{stem}_{}", self.named.fetch_add(1, Relaxed)))
    }

    fn too_many_expressions(&self) -> DataFusionError {
        invalid(format!("the plan has too many expressions: at most {}", self.limits.expressions))
    }

    /// Counts an expression that is used once more than the plan has it: such copies within such
    /// copies double at each level.
    pub(super) fn again(&self, expr: &Expr) -> DfResult<()> {
        let left = self.limits.expressions.saturating_sub(self.expressions.load(Relaxed));
        let nodes = nesting_limits::nodes(expr, left + 1)?;
        self.expressions.fetch_add(nodes, Relaxed);
        if nodes > left { Err(self.too_many_expressions()) } else { Ok(()) }
    }

    fn outer(&self) -> MutexGuard<'_, Vec<Arc<DFSchema>>> {
        self.outer.lock()
    }

    async fn input(&self, rel: Option<&Rel>, of: &str) -> DfResult<LogicalPlan> {
        self.consume_rel(present(rel, of, "input").map_err(to_datafusion)?).await
    }

    async fn relation(&self, rel: &Rel) -> DfResult<LogicalPlan> {
        let Some(kind) = &rel.rel_type else {
            return Err(unsupported("the plan has a relation of a type that this version of Substrait does not know"));
        };
        let (common, extension, plan) = match kind {
            RelType::Read(r) => (&r.common, &r.advanced_extension, self.read(r).await?),
            RelType::Filter(r) => {
                present(r.input.as_deref(), "filter", "input").map_err(to_datafusion)?;
                present(r.condition.as_deref(), "filter", "condition").map_err(to_datafusion)?;
                (&r.common, &r.advanced_extension, from_filter_rel(self, r).await?)
            }
            RelType::Fetch(r) => {
                present(r.input.as_deref(), "limit", "input").map_err(to_datafusion)?;
                (&r.common, &r.advanced_extension, from_fetch_rel(self, r).await?)
            }
            RelType::Sort(r) => (&r.common, &r.advanced_extension, self.sort(r).await?),
            RelType::Project(r) => (&r.common, &r.advanced_extension, self.project(r).await?),
            RelType::Aggregate(r) => (&r.common, &r.advanced_extension, self.aggregate(r).await?),
            RelType::Join(r) => (&r.common, &r.advanced_extension, self.join(r).await?),
            RelType::Cross(r) => (&r.common, &r.advanced_extension, self.cross(r).await?),
            RelType::Set(r) => (&r.common, &r.advanced_extension, self.set(r).await?),
            // How rows are spread over workers is no business of the result.
            RelType::Exchange(r) => (&r.common, &r.advanced_extension, self.input(r.input.as_deref(), "exchange").await?),
            RelType::Reference(r) => {
                let found = usize::try_from(r.subtree_ordinal).ok().and_then(|n| self.shared.get(n)).copied().flatten();
                let Some(subtree) = found else {
                    return Err(invalid(format!("the plan refers to the shared relation {}, which it does not have", r.subtree_ordinal)));
                };
                (&None, &None, self.consume_rel(subtree).await?)
            }
            RelType::ExtensionSingle(r) => return Err(extension_relation(r.detail.as_ref().map(|d| d.type_url.as_str()))),
            RelType::ExtensionMulti(r) => return Err(extension_relation(r.detail.as_ref().map(|d| d.type_url.as_str()))),
            RelType::ExtensionLeaf(r) => return Err(extension_relation(r.detail.as_ref().map(|d| d.type_url.as_str()))),
            RelType::Write(_) | RelType::Ddl(_) | RelType::Update(_) => {
                let name = validate::variant(kind);
                return Err(unsupported(format!(
                    "the plan has a relation of type {name}, and plans only read here; data sets are written by ingest and removed by drop"
                )));
            }
            other => return Err(unsupported(format!("the plan has a relation of type {}, which this engine does not run", validate::variant(other)))),
        };
        checked(extension.as_ref())?;
        let plan = self.emit(common.as_ref(), plan)?;
        let columns = plan.schema().fields().len();
        if columns > MAX_WIDTH {
            return Err(invalid(format!("a relation of the plan has {columns} columns: at most {MAX_WIDTH}")));
        }
        Ok(plan)
    }

    fn emit(&self, common: Option<&RelCommon>, plan: LogicalPlan) -> DfResult<LogicalPlan> {
        let Some(common) = common else { return Ok(plan) };
        checked(common.advanced_extension.as_ref())?;
        match &common.emit_kind {
            Some(EmitKind::Emit(emit)) => {
                validate::width(emit.output_mapping.len(), "columns").map_err(to_datafusion)?;
                self.choose(plan, &emit.output_mapping)
            }
            _ => Ok(plan),
        }
    }

    async fn sort(&self, r: &SortRel) -> DfResult<LogicalPlan> {
        let input = self.input(r.input.as_deref(), "sort").await?;
        let keys = self.sorts(&r.sorts, input.schema()).await?;
        LogicalPlanBuilder::from(input).sort(keys)?.build()
    }

    /// The columns of the input, then the expressions.
    async fn project(&self, r: &ProjectRel) -> DfResult<LogicalPlan> {
        let input = self.input(r.input.as_deref(), "projection").await?;
        let mut exprs: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
        let (name, mut computed) = (self.fresh("computed"), Vec::with_capacity(r.expressions.len()));
        for (i, e) in r.expressions.iter().enumerate() {
            let expr = self.consume_expression(e, input.schema()).await?;
            let column = match &expr {
                // A column may occur twice: its number makes the name unique.
                Expr::Column(c) => format!("{}_{i}", c.name),
                _ => format!("c{i}"),
            };
            computed.push((column, expr));
        }
        let windows = find_window_exprs(computed.iter().map(|(_, e)| e));
        let input = if windows.is_empty() { input } else { LogicalPlanBuilder::window_plan(input, windows)? };
        exprs.extend(computed.into_iter().map(|(column, e)| e.alias_qualified(Some(name.clone()), column)));
        project(input, exprs)
    }

    async fn join(&self, r: &JoinRel) -> DfResult<LogicalPlan> {
        let (left, right) = (self.input(r.left.as_deref(), "join").await?, self.input(r.right.as_deref(), "join").await?);
        let kind = match Join::try_from(r.r#type) {
            Ok(Join::Inner) => JoinType::Inner,
            Ok(Join::Left) => JoinType::Left,
            Ok(Join::Right) => JoinType::Right,
            Ok(Join::Outer) => JoinType::Full,
            Ok(Join::LeftSemi) => JoinType::LeftSemi,
            Ok(Join::RightSemi) => JoinType::RightSemi,
            Ok(Join::LeftAnti) => JoinType::LeftAnti,
            Ok(Join::RightAnti) => JoinType::RightAnti,
            Ok(other) => return Err(unsupported(format!("the plan has a join of type {}, which this engine does not run", other.as_str_name()))),
            Err(_) => return Err(invalid(format!("the plan has a join of type {}, which there is not", r.r#type))),
        };
        let both = left.schema().join(right.schema())?;
        let on = match &r.expression {
            Some(e) => self.consume_expression(e, &both).await?,
            None => Expr::Literal(true.into(), None),
        };
        // Which of the conditions are keys, the optimizer finds out.
        let plan = LogicalPlanBuilder::from(left).join_on(right, kind, [on])?.build()?;
        match &r.post_join_filter {
            Some(filter) => {
                let predicate = self.consume_expression(filter, plan.schema()).await?;
                LogicalPlanBuilder::from(plan).filter(predicate)?.build()
            }
            None => Ok(plan),
        }
    }

    async fn cross(&self, r: &CrossRel) -> DfResult<LogicalPlan> {
        let (left, right) = (self.input(r.left.as_deref(), "join").await?, self.input(r.right.as_deref(), "join").await?);
        LogicalPlanBuilder::from(left).cross_join(right)?.build()
    }

    async fn set(&self, r: &SetRel) -> DfResult<LogicalPlan> {
        match r.op() {
            SetOp::UnionAll | SetOp::UnionDistinct | SetOp::IntersectionPrimary | SetOp::IntersectionMultiset | SetOp::MinusPrimary => {}
            SetOp::Unspecified => return Err(invalid("the plan has a set relation that does not say which")),
            // DataFusion does not count how often a row is on either side.
            other => return Err(unsupported(format!("the plan has a set relation of type {}, which this engine does not run", other.as_str_name()))),
        }
        let plan = self.sets(r).await?;
        // Its columns have the names of the first input's, which the input of another relation may have too.
        let name = self.fresh("set");
        let exprs: Vec<_> =
            plan.schema().columns().into_iter().enumerate().map(|(i, c)| Expr::Column(c).alias_qualified(Some(name.clone()), format!("c{i}"))).collect();
        project(plan, exprs)
    }
}

impl Consumer<'_> {
    /// The inputs of a set relation as one plan. What may be done in any order is done pairwise: a chain of a
    /// thousand would be as deep.
    async fn sets(&self, r: &SetRel) -> DfResult<LogicalPlan> {
        if r.inputs.len() < 2 {
            return Err(invalid("the plan has a set relation of less than two inputs"));
        }
        let mut inputs = Vec::with_capacity(r.inputs.len());
        for input in &r.inputs {
            inputs.push(self.consume_rel(input).await?);
        }
        let union = |a: LogicalPlan, b: LogicalPlan| LogicalPlanBuilder::from(a).union(b)?.build();
        let first = |mut inputs: Vec<LogicalPlan>| {
            let rest = inputs.split_off(1);
            Ok::<_, DataFusionError>((pairwise(inputs, &union)?, pairwise(rest, &union)?))
        };
        match r.op() {
            SetOp::UnionAll => pairwise(inputs, &union),
            SetOp::UnionDistinct => LogicalPlanBuilder::from(pairwise(inputs, &union)?).distinct()?.build(),
            SetOp::IntersectionPrimary => first(inputs).and_then(|(first, rest)| LogicalPlanBuilder::intersect(first, rest, false)),
            SetOp::MinusPrimary => first(inputs).and_then(|(first, rest)| LogicalPlanBuilder::except(first, rest, false)),
            _ => pairwise(inputs, &|a, b| LogicalPlanBuilder::intersect(a, b, false)),
        }
    }
}

fn pairwise(mut plans: Vec<LogicalPlan>, join: &dyn Fn(LogicalPlan, LogicalPlan) -> DfResult<LogicalPlan>) -> DfResult<LogicalPlan> {
    if plans.len() > 1 {
        let right = plans.split_off(plans.len() / 2);
        return join(pairwise(plans, join)?, pairwise(right, join)?);
    }
    plans.pop().ok_or_else(|| invalid("the plan has a set relation without inputs"))
}

/// Some producers don't count the last column of grouping sets, the number of the set, among a root's columns. They
/// don't want it then.
fn without_set_number(input: &Rel, names: usize, plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let columns = plan.schema().columns();
    let sets = matches!(&input.rel_type, Some(RelType::Aggregate(a))
        if a.groupings.len() > 1 && !matches!(a.common.as_ref().and_then(|c| c.emit_kind.as_ref()), Some(EmitKind::Emit(_))));
    if !sets || names + 1 != columns.len() {
        return Ok(plan);
    }
    project(plan, columns.into_iter().take(names).map(Expr::Column))
}

fn extension_relation(url: Option<&str>) -> DataFusionError {
    unsupported(format!("the plan has the extension relation {:?}, which this engine does not know", url.unwrap_or_default()))
}

#[async_trait]
impl SubstraitConsumer for Consumer<'_> {
    async fn resolve_table_ref(&self, _: &TableReference) -> DfResult<Option<Arc<dyn TableProvider>>> {
        Ok(None)
    }

    fn get_extensions(&self) -> &Extensions {
        self.extensions
    }

    fn get_function_registry(&self) -> &impl FunctionRegistry {
        self.state
    }

    async fn consume_rel(&self, rel: &Rel) -> DfResult<LogicalPlan> {
        if self.relations.fetch_add(1, Relaxed) >= self.limits.relations {
            return Err(invalid(format!("the plan has too many relations: at most {}, those of a shared one each time", self.limits.relations)));
        }
        if self.depth.fetch_add(1, Relaxed) >= self.limits.depth {
            return Err(invalid(format!("the plan's relations are too deep: at most {} below one another", self.limits.depth)));
        }
        let around = self.levels.enter_relation();
        let plan = self.relation(rel).await;
        let levels = self.levels.leave_relation(around);
        self.depth.fetch_sub(1, Relaxed);
        if levels > self.limits.levels {
            return Err(invalid(format!(
                "the plan's expressions are too deep: {levels} levels, counted through the relations below one another, at most {}",
                self.limits.levels
            )));
        }
        plan
    }

    async fn consume_expression(&self, expr: &Expression, schema: &DFSchema) -> DfResult<Expr> {
        if self.expressions.fetch_add(1, Relaxed) >= self.limits.expressions {
            return Err(self.too_many_expressions());
        }
        let within = self.levels.enter_expression();
        if within >= self.limits.levels {
            return Err(invalid(format!("the plan's expressions are too deep: at most {} within one another", self.limits.levels)));
        }
        let built = self.expression(expr, schema).await?;
        self.levels.leave_expression(&built)?;
        Ok(built)
    }

    async fn consume_literal(&self, l: &Literal) -> DfResult<Expr> {
        self.literal(l).await
    }

    async fn consume_field_reference(&self, r: &FieldReference, schema: &DFSchema) -> DfResult<Expr> {
        self.reference(r, schema).await
    }

    async fn consume_scalar_function(&self, f: &ScalarFunction, schema: &DFSchema) -> DfResult<Expr> {
        self.scalar(f, schema).await
    }

    async fn consume_window_function(&self, f: &WindowFunction, schema: &DFSchema) -> DfResult<Expr> {
        self.window(f, schema).await
    }

    async fn consume_if_then(&self, e: &IfThen, schema: &DFSchema) -> DfResult<Expr> {
        self.if_then(e, schema).await
    }

    async fn consume_switch(&self, e: &SwitchExpression, schema: &DFSchema) -> DfResult<Expr> {
        self.switch(e, schema).await
    }

    async fn consume_singular_or_list(&self, e: &SingularOrList, schema: &DFSchema) -> DfResult<Expr> {
        self.one_of(e, schema).await
    }

    async fn consume_multi_or_list(&self, e: &MultiOrList, schema: &DFSchema) -> DfResult<Expr> {
        self.row_of(e, schema).await
    }

    async fn consume_cast(&self, e: &Cast, schema: &DFSchema) -> DfResult<Expr> {
        self.cast(e, schema).await
    }

    async fn consume_subquery(&self, e: &Subquery, schema: &DFSchema) -> DfResult<Expr> {
        self.subquery(e, schema).await
    }

    async fn consume_nested(&self, _: &Nested, _: &DFSchema) -> DfResult<Expr> {
        Err(unsupported("the plan has an expression of type Nested, which this engine does not know"))
    }

    async fn consume_lambda(&self, _: &Lambda, _: &DFSchema) -> DfResult<Expr> {
        Err(unsupported("the plan has an expression of type Lambda, which this engine does not know"))
    }

    fn push_outer_schema(&self, schema: Arc<DFSchema>) {
        self.outer().push(schema);
    }

    fn pop_outer_schema(&self) {
        self.outer().pop();
    }

    fn get_outer_schema(&self, steps_out: usize) -> Option<Arc<DFSchema>> {
        let outer = self.outer();
        steps_out.checked_sub(1).and_then(|back| outer.iter().rev().nth(back).cloned())
    }

    fn consume_user_defined_type(&self, t: &UserDefined) -> DfResult<DataType> {
        match self.extensions.types.get(&t.type_reference).map(String::as_str) {
            Some(NULL_TYPE_NAME) => Ok(DataType::Null),
            Some(FLOAT_16_TYPE_NAME) => Ok(DataType::Float16),
            Some(other) => Err(unsupported(format!("the plan uses the type {other:?}, which this engine does not know"))),
            None => Err(invalid(format!("the plan uses type {} without declaring it", t.type_reference))),
        }
    }
}
