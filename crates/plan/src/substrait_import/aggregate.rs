//! Aggregation: groups, grouping sets, and aggregates by other names.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, DFSchema, DataFusionError, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{Aggregate, Case, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder, cast, expr, lit};
use datafusion_substrait::logical_plan::consumer::SubstraitConsumer;
use datafusion_substrait::substrait::proto::aggregate_function::AggregationInvocation;
use datafusion_substrait::substrait::proto::aggregate_rel::Measure;
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::{AggregateFunction, AggregateRel, AggregationPhase};

use super::consume::{Consumer, invalid, unsupported};
use super::functions;
use crate::codec::validate::{self, present};
use crate::error::to_datafusion;

type DfResult<T> = std::result::Result<T, DataFusionError>;

/// The most expressions in grouping sets: the engine marks those that are left out by bits of a number.
const MAX_SET: usize = 32;

/// The most grouping expressions of one aggregation.
const MAX_GROUPS: usize = 1024;

/// The most grouping sets: a cube of ten expressions.
const MAX_SETS: usize = 1024;

/// The most aggregates of one aggregation.
const MAX_MEASURES: usize = 4096;

impl Consumer<'_> {
    /// The groups, then the measures, and where there are several grouping sets the number of the set.
    pub(super) async fn aggregate(&self, r: &AggregateRel) -> DfResult<LogicalPlan> {
        let input = self.consume_rel(present(r.input.as_deref(), "aggregate", "input").map_err(to_datafusion)?).await?;
        for (n, most, what) in [
            (r.grouping_expressions.len(), MAX_GROUPS, "groups"),
            (r.groupings.len(), MAX_SETS, "grouping sets"),
            (r.measures.len(), MAX_MEASURES, "aggregates"),
        ] {
            at_most(n, most, what)?;
        }
        let (groups, sets) = self.groups(r, input.schema()).await?;
        // The engine wants each expression once. `measures` has the place of each of the plan's expressions, and
        // whether it is a sum that is zero over nothing.
        let (mut calls, mut measures) = (Distinct::default(), Vec::with_capacity(r.measures.len()));
        for m in &r.measures {
            let (call, zero) = self.measure(m, input.schema()).await?;
            measures.push((calls.add(call), zero));
        }
        let calls = calls.exprs;
        let several = sets.len() > 1;
        let mut unique = Distinct::default();
        let mut used: HashMap<&Expr, usize> = HashMap::new();
        for g in &groups {
            unique.add(g.clone());
            *used.entry(g).or_default() += 1;
        }
        let by = if several { sets_of(&groups, &sets, &mut unique)? } else { unique.exprs.clone() };
        let plan = LogicalPlanBuilder::from(input).aggregate(by, calls)?.build()?;
        let schema = plan.schema();
        let column = |i: usize| Expr::Column(Column::from(schema.qualified_field(i)));
        let name = self.fresh("groups");
        let mut exprs = Vec::with_capacity(groups.len() + measures.len() + 1);
        for (i, g) in groups.iter().enumerate() {
            let at = unique.places.get(g).copied().unwrap_or_default();
            let called = match g {
                Expr::Column(c) if used.get(g) == Some(&1) => format!("{}_{i}", c.name),
                _ => format!("g{i}"),
            };
            exprs.push(column(at).alias_qualified(Some(name.clone()), called));
        }
        let from = unique.exprs.len() + usize::from(several);
        for (i, (at, zero)) in measures.into_iter().enumerate() {
            let mut value = column(from + at);
            if zero {
                let of = schema.field(from + at).data_type().clone();
                let coalesce = self.state.udf("coalesce")?;
                value = coalesce.call(vec![value, cast(lit(0i64), of)]);
            }
            exprs.push(value.alias_qualified(Some(name.clone()), format!("m{i}")));
        }
        if several {
            let number = set_number(&groups, &sets, &unique);
            exprs.push(number.alias_qualified(Some(name), "set"));
        }
        LogicalPlanBuilder::from(plan).project(exprs)?.build()
    }

    /// All grouping expressions in the order of the result, and for each set which of them are in it.
    async fn groups(&self, r: &AggregateRel, schema: &DFSchema) -> DfResult<(Vec<Expr>, Vec<Vec<usize>>)> {
        let mut listed = Vec::with_capacity(r.grouping_expressions.len());
        for e in &r.grouping_expressions {
            listed.push(self.consume_expression(e, schema).await?);
        }
        let several = r.groupings.len() > 1;
        let mut sets = Vec::with_capacity(r.groupings.len());
        let mut all: Vec<Expr> = if several { listed.clone() } else { Vec::new() };
        // The first place of each column: columns of several sets are the same.
        let mut places: HashMap<Expr, usize> = HashMap::new();
        for (at, e) in all.iter().enumerate() {
            places.entry(e.clone()).or_insert(at);
        }
        if several {
            few_in_sets(places.len())?;
        }
        for grouping in &r.groupings {
            #[expect(deprecated, reason = "producers still write both forms")]
            let inline = &grouping.grouping_expressions;
            at_most(inline.len().max(grouping.expression_references.len()), MAX_GROUPS, "groups in a set")?;
            let mut set = Vec::with_capacity(inline.len().max(grouping.expression_references.len()));
            let mut add = |e: &Expr| {
                // A single set may name an expression twice, and gives it twice then.
                let known = if several { places.get(e).copied() } else { None };
                let at = known.unwrap_or(all.len());
                if known.is_none() {
                    all.push(e.clone());
                    if several {
                        places.insert(e.clone(), at);
                        few_in_sets(places.len())?;
                    }
                }
                // Within one of several sets, twice is once.
                if !several || !set.contains(&at) {
                    set.push(at);
                }
                at_most(all.len(), MAX_GROUPS, "groups")
            };
            for e in inline {
                add(&self.consume_expression(e, schema).await?)?;
            }
            if inline.is_empty() {
                for n in &grouping.expression_references {
                    let e = listed.get(*n as usize).ok_or_else(|| invalid(format!("the plan groups by expression {n} of {}", listed.len())))?;
                    self.again(e)?;
                    add(e)?;
                }
            }
            sets.push(set);
        }
        Ok((all, sets))
    }

    /// An aggregate, and whether it is zero over nothing.
    async fn measure(&self, m: &Measure, schema: &DFSchema) -> DfResult<(Expr, bool)> {
        let filter = match &m.filter {
            Some(filter) => Some(Box::new(self.consume_expression(filter, schema).await?)),
            None => None,
        };
        let call = present(m.measure.as_ref(), "aggregate", "function").map_err(to_datafusion)?;
        let declared = self.functions.get(call.function_reference).map_err(to_datafusion)?;
        check_form(&declared.name, call)?;
        functions::options(declared, &call.options).map_err(to_datafusion)?;
        let (mut arguments, mut kind) = (Vec::new(), functions::preference(declared, &call.options, "distribution").map(str::to_owned));
        for argument in &call.arguments {
            match &argument.arg_type {
                Some(ArgType::Value(e)) => arguments.push(self.consume_expression(e, schema).await?),
                Some(ArgType::Enum(e)) => kind = Some(e.to_uppercase()),
                _ => return Err(unsupported(format!("the plan calls {:?} with an argument that is no value", declared.name))),
            }
        }
        let name = functions::aggregate(&declared.name, kind.as_deref()).map_err(to_datafusion)?;
        let function = match self.state.udaf(&name) {
            Ok(f) if !name.starts_with("__") => f,
            _ => return Err(unsupported(format!("the plan calls the aggregate {:?}, which this engine does not know", declared.name))),
        };
        if function.name() == "count" && arguments.is_empty() {
            arguments.push(Expr::Literal(ScalarValue::Int64(Some(1)), None));
        }
        let order = self.sorts(&call.sorts, schema).await?;
        let distinct = call.invocation == AggregationInvocation::Distinct as i32;
        let expr = expr::AggregateFunction::new_udf(function, arguments, distinct, filter, order, None);
        Ok((Expr::AggregateFunction(expr), declared.name == "sum0"))
    }
}

fn check_form(name: &str, call: &AggregateFunction) -> DfResult<()> {
    let whole = [AggregationPhase::Unspecified as i32, AggregationPhase::InitialToResult as i32];
    if !whole.contains(&call.phase) {
        return Err(unsupported(format!("the plan calls {name:?} for a part of an aggregation, which this engine only does as a whole")));
    }
    #[expect(deprecated, reason = "what an old producer writes there must not be overlooked")]
    if !call.args.is_empty() {
        return Err(unsupported(format!("the plan calls {name:?} with arguments in a field that Substrait gave up")));
    }
    validate::width(call.arguments.len(), "arguments").map_err(to_datafusion)
}

fn few_in_sets(n: usize) -> DfResult<()> {
    if n > MAX_SET { Err(unsupported(format!("the plan has grouping sets of {n} expressions: at most {MAX_SET}"))) } else { Ok(()) }
}

fn at_most(n: usize, most: usize, what: &str) -> DfResult<()> {
    if n > most { Err(invalid(format!("the plan lists {n} {what} for one aggregation: at most {most}"))) } else { Ok(()) }
}

/// Expressions in the order in which they first come, each once.
#[derive(Default)]
struct Distinct {
    exprs: Vec<Expr>,
    places: HashMap<Expr, usize>,
}

impl Distinct {
    /// The place of `expr`.
    fn add(&mut self, expr: Expr) -> usize {
        match self.places.entry(expr) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let at = self.exprs.len();
                self.exprs.push(new.key().clone());
                *new.insert(at)
            }
        }
    }
}

/// The grouping sets for the engine; `unique` becomes the expressions in the order in which it will give them.
fn sets_of(groups: &[Expr], sets: &[Vec<usize>], unique: &mut Distinct) -> DfResult<Vec<Expr>> {
    let mut seen = HashSet::with_capacity(sets.len());
    for set in sets {
        let mut sorted = set.clone();
        sorted.sort_unstable();
        if !seen.insert(sorted) {
            return Err(unsupported("the plan has the same grouping set twice"));
        }
    }
    let of = GroupingSet::GroupingSets(sets.iter().map(|set| set.iter().map(|g| groups[*g].clone()).collect()).collect());
    let mut given = Distinct::default();
    for e in of.distinct_expr() {
        given.add(e.clone());
    }
    if given.exprs.len() != unique.exprs.len() {
        return Err(unsupported("the plan has a grouping expression that is in none of its grouping sets"));
    }
    *unique = given;
    Ok(vec![Expr::GroupingSet(of)])
}

/// The number of the set that a row is of, from the bits by which the engine marks the expressions
/// that the set leaves out.
fn set_number(groups: &[Expr], sets: &[Vec<usize>], unique: &Distinct) -> Expr {
    let id = cast(Expr::Column(Column::from_name(Aggregate::INTERNAL_GROUPING_ID)), DataType::Int64);
    let when = sets.iter().enumerate().map(|(n, set)| {
        let within: HashSet<&Expr> = set.iter().map(|g| &groups[*g]).collect();
        let bits = unique.exprs.iter().fold(0i64, |bits, e| bits << 1 | i64::from(!within.contains(e)));
        (Box::new(lit(bits)), Box::new(lit(i32::try_from(n).unwrap_or(i32::MAX))))
    });
    Expr::Case(Case { expr: Some(Box::new(id)), when_then_expr: when.collect(), else_expr: None })
}
