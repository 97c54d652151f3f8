//! Short names for computed columns.
//!
//! Sub-plans carry no names below their root. DataFusion then calls a computed column by its expression, with the names
//! of the columns in it. Over nine projections that each name the column of the one before eight times, the last name
//! would have 8^9 parts.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};

/// The longest name, in bytes, that a computed column gets by itself.
const LONGEST: usize = 256;

/// `plan` with a number in the place of each longer name.
pub(super) fn shorten(plan: LogicalPlan) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    if schema.fields().iter().all(|field| field.name().len() <= LONGEST) {
        return Ok(plan);
    }
    let taken: HashSet<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let name = |at: usize| {
        let mut name = format!("expression {at}");
        while taken.contains(name.as_str()) {
            name.push('\'');
        }
        name
    };
    let (exprs, input) = match plan {
        LogicalPlan::Projection(Projection { expr, input, .. }) => (expr, input),
        other => (schema.columns().into_iter().map(Expr::Column).collect(), Arc::new(other)),
    };
    let named = exprs.into_iter().zip(schema.fields()).enumerate();
    let exprs = named.map(|(at, (e, field))| if field.name().len() > LONGEST { e.unalias().alias(name(at)) } else { e }).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, input)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::common::Column;
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};

    fn computed(columns: Vec<Expr>) -> LogicalPlan {
        LogicalPlanBuilder::empty(true).project(columns).unwrap().build().unwrap()
    }

    #[test]
    fn long_names_become_numbers_and_others_stay() {
        let (long, longer) = ("x".repeat(LONGEST), "x".repeat(LONGEST + 1));
        let plan = shorten(computed(vec![lit(1).alias(&long), lit(2).alias(&longer), lit(3).alias("expression 1")])).unwrap();
        let names: Vec<&str> = plan.schema().fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, [long.as_str(), "expression 1'", "expression 1"]);
        assert!(matches!(&plan, LogicalPlan::Projection(projection) if matches!(*projection.input, LogicalPlan::EmptyRelation(_))), "{plan}");
    }

    #[test]
    fn columns_of_other_relations_are_renamed_above_them() {
        let plan = LogicalPlanBuilder::from(computed(vec![lit(1).alias("k".repeat(LONGEST + 1))])).distinct().unwrap().build().unwrap();
        let renamed = shorten(plan).unwrap();
        assert_eq!(renamed.schema().columns(), [Column::from_name("expression 0")]);
        assert_eq!(shorten(renamed.clone()).unwrap(), renamed, "short names stay");
    }
}
