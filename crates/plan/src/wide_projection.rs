//! Aggregates and projections of many expressions.
//!
//! To get an expression's type, DataFusion compares the name of each of its columns with those of the input, one by
//! one. For a thousand expressions over a thousand columns, that takes most of the time of making the operator. Here
//! the input's names are indexed first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::{Column, DFSchema, DFSchemaRef, ExprSchema, FunctionalDependencies, Result};
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, Projection};

/// Expressions from which on an index pays.
const MANY: usize = 32;

/// The columns of a schema by their names.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    schema: &'a DFSchema,
    /// The place of a name; `None` where several columns have it.
    places: HashMap<&'a str, Option<usize>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(schema: &'a DFSchema) -> Self {
        let mut places = HashMap::with_capacity(schema.fields().len());
        for (at, field) in schema.fields().iter().enumerate() {
            match places.entry(field.name().as_str()) {
                Entry::Vacant(new) => drop(new.insert(Some(at))),
                Entry::Occupied(mut known) => drop(known.insert(None)),
            }
        }
        Self { schema, places }
    }
}

/// The places of the columns of a schema by their names, for as long as it is that schema that is asked for.
#[derive(Debug, Default)]
pub(crate) struct Places {
    of: Option<DFSchemaRef>,
    /// Nothing for names of several columns.
    places: HashMap<String, Option<usize>>,
}

impl Places {
    /// Where `column` is in `schema`; `None` where that is for the schema to say: it is small, or the name
    /// is ambiguous or not there.
    pub(crate) fn of(&mut self, column: &Column, schema: &DFSchemaRef) -> Option<usize> {
        if schema.fields().len() < MANY {
            return None;
        }
        if !self.of.as_ref().is_some_and(|known| Arc::ptr_eq(known, schema)) {
            let places = Columns::of(schema).places;
            self.places = places.into_iter().map(|(name, at)| (name.to_owned(), at)).collect();
            self.of = Some(Arc::clone(schema));
        }
        let at = self.places.get(&column.name).copied().flatten()?;
        let (qualifier, _) = schema.qualified_field(at);
        (column.relation.is_none() || column.relation.as_ref() == qualifier).then_some(at)
    }
}

impl ExprSchema for Columns<'_> {
    fn field_from_column(&self, column: &Column) -> Result<&FieldRef> {
        if let Some(Some(at)) = self.places.get(column.name.as_str()) {
            let (qualifier, field) = self.schema.qualified_field(*at);
            if column.relation.is_none() || column.relation.as_ref() == qualifier {
                return Ok(field);
            }
        }
        // Names that are ambiguous, partly qualified or absent.
        self.schema.field_from_column(column)
    }
}

/// The result of `work` with an index of the columns of `schema`, if `expressions` expressions make one worthwhile.
pub(crate) fn known<R>(schema: &DFSchema, expressions: usize, work: impl FnOnce(&dyn ExprSchema) -> R) -> R {
    if expressions < MANY { work(schema) } else { work(&Columns::of(schema)) }
}

/// [`Aggregate::try_new`].
///
/// # Errors
/// As that.
pub fn aggregate(input: Arc<LogicalPlan>, groups: Vec<Expr>, calls: Vec<Expr>) -> Result<Aggregate> {
    if calls.len() < MANY || groups.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
        return Aggregate::try_new(input, groups, calls);
    }
    let columns = Columns::of(input.schema());
    let fields = groups.iter().chain(&calls).map(|expr| expr.to_field(&columns)).collect::<Result<Vec<_>>>()?;
    let schema = DFSchema::new_with_metadata(fields, input.schema().inner().metadata.clone())?;
    Aggregate::try_new_with_schema(input, groups, calls, Arc::new(schema))
}

/// [`Projection::try_new`].
///
/// # Errors
/// As that.
pub fn projection(expressions: Vec<Expr>, input: Arc<LogicalPlan>) -> Result<Projection> {
    if expressions.len() < MANY {
        return Projection::try_new(expressions, input);
    }
    let columns = Columns::of(input.schema());
    let fields = expressions.iter().map(|expr| expr.to_field(&columns)).collect::<Result<Vec<_>>>()?;
    let schema =
        DFSchema::new_with_metadata(fields, input.schema().inner().metadata.clone())?.with_functional_dependencies(dependencies(&expressions, &input))?;
    Projection::try_new_with_schema(expressions, input, Arc::new(schema))
}

/// What of the dependencies between the columns of `input` holds for `expressions` of them.
fn dependencies(expressions: &[Expr], input: &LogicalPlan) -> FunctionalDependencies {
    let known = input.schema().functional_dependencies();
    if known.is_empty() {
        return FunctionalDependencies::empty();
    }
    let mut places = HashMap::new();
    for (at, name) in input.schema().field_names().into_iter().enumerate() {
        places.entry(name).or_insert(at);
    }
    let place = |expr: &Expr| {
        let name = match expr {
            Expr::Alias(alias) => alias.expr.to_string(),
            expr => expr.to_string(),
        };
        // No column has that place.
        places.get(&name).copied().unwrap_or(usize::MAX)
    };
    let places: Vec<usize> = expressions.iter().map(place).collect();
    known.project_functional_dependencies(&places, expressions.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::functions_aggregate::expr_fn::{avg, count, sum};
    use datafusion::logical_expr::{LogicalPlanBuilder, cast, col, grouping_set, ident, lit, table_scan};

    /// A join of two tables, some of whose names are the same.
    fn input() -> Arc<LogicalPlan> {
        let of = |from: usize| Schema::new((from..from + 40).map(|n| Field::new(format!("c{n}"), DataType::Float32, n % 2 == 0)).collect::<Vec<_>>());
        let right = table_scan(Some("b.right"), &of(30), None).unwrap().build().unwrap();
        Arc::new(LogicalPlanBuilder::from(table_scan(Some("a.left"), &of(0), None).unwrap().build().unwrap()).cross_join(right).unwrap().build().unwrap())
    }

    fn columns() -> Vec<Expr> {
        let left = (0..40).map(|n| col(format!("a.left.c{n}")));
        left.chain((40..70).map(|n| ident(format!("c{n}")))).chain([col("b.right.c31")]).collect()
    }

    #[test]
    fn plans_are_datafusions_own() {
        let calls: Vec<Expr> =
            columns().into_iter().flat_map(|c| [sum(cast(c.clone(), DataType::Float64)), avg(c.clone()).alias(format!("a {c}")), count(c)]).collect();
        for groups in [vec![], vec![col("a.left.c3"), (col("c5") + lit(1)).alias("g")], vec![grouping_set(vec![vec![col("c1")], vec![col("c1"), col("c2")]])]] {
            let (ours, whole) = (aggregate(input(), groups.clone(), calls.clone()).unwrap(), Aggregate::try_new(input(), groups, calls.clone()).unwrap());
            assert_eq!(ours.schema.functional_dependencies(), whole.schema.functional_dependencies());
            assert_eq!(ours, whole);
            let results: Vec<Expr> = whole
                .schema
                .columns()
                .into_iter()
                .rev()
                .enumerate()
                .flat_map(|(n, c)| [Expr::Column(c.clone()), Expr::Column(c).alias(format!("x{n}"))])
                .collect();
            let whole = Arc::new(LogicalPlan::Aggregate(whole));
            let (ours, whole) = (projection(results.clone(), Arc::clone(&whole)).unwrap(), Projection::try_new(results, whole).unwrap());
            assert_eq!(ours.schema.functional_dependencies(), whole.schema.functional_dependencies());
            assert_eq!(ours, whole);
        }
    }

    #[test]
    fn unknown_and_ambiguous_names_fail_as_in_datafusion() {
        for wrong in [ident("c35"), ident("nix"), col("b.right.c1")] {
            let all: Vec<Expr> = columns().into_iter().chain([wrong]).collect();
            let (ours, whole) = (projection(all.clone(), input()).unwrap_err(), Projection::try_new(all, input()).unwrap_err());
            assert_eq!(ours.to_string(), whole.to_string());
        }
    }
}
