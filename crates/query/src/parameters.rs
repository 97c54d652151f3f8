//! Parameters of a query: `?`, numbered in the order of the text, or `$1`, `$2`, ...

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use arrow::datatypes::{DataType, Field};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, Value, visit_expressions_mut};
use skytether_common::{Error, Result};
use skytether_plan::error::from_datafusion;

/// The highest number of a parameter. Each number up to the highest needs a value.
const MAX_PARAMETERS: usize = 4096;

/// Turns each `?` of `statement` into `$n`: DataFusion knows only these. Returns the highest number, which may be of a
/// parameter that no plan has, as in a common table expression that is not used.
///
/// # Errors
/// Invalid for a statement with both.
pub(crate) fn number(statement: &mut Statement) -> Result<usize> {
    let Statement::Statement(statement) = statement else { return Ok(0) };
    let mut places = Vec::new();
    let mut others = None;
    let mut highest = 0;
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        if let Expr::Value(v) = e
            && let Value::Placeholder(name) = &v.value
        {
            if name == "?" {
                places.push(v.span.start);
            } else {
                // Other names are refused with the plan.
                highest = highest.max(name.strip_prefix('$').and_then(|n| n.parse().ok()).filter(|n| *n <= MAX_PARAMETERS).unwrap_or(0));
                others = Some(name.clone());
            }
        }
        ControlFlow::<()>::Continue(())
    });
    match others {
        Some(name) if !places.is_empty() => {
            return Err(Error::invalid(format!("the query has both ? and {name} as parameters: use one of the two ways")));
        }
        _ => (),
    }
    // By place in the text: the parser's tree does not keep the order everywhere.
    places.sort_unstable();
    // What was written out may have one several times.
    places.dedup();
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        if let Expr::Value(v) = e
            && matches!(&v.value, Value::Placeholder(name) if name == "?")
        {
            let before = places.partition_point(|p| *p < v.span.start);
            v.value = Value::Placeholder(format!("${}", before + 1));
        }
        ControlFlow::<()>::Continue(())
    });
    Ok(highest.max(places.len()))
}

/// The parameters of `plan` in order, named `$1`, `$2`, ..., at least `least`; of type null where the query does not
/// determine their type.
///
/// # Errors
/// Invalid for parameters that are not numbered and for numbers that are too high.
pub(crate) fn of(plan: &LogicalPlan, least: usize) -> Result<Vec<Field>> {
    let mut found = BTreeMap::new();
    for (name, field) in plan.get_parameter_fields().map_err(from_datafusion)? {
        let number = name
            .strip_prefix('$')
            .and_then(|n| n.parse::<usize>().ok())
            .filter(|n| (1..=MAX_PARAMETERS).contains(n))
            .ok_or_else(|| Error::invalid(format!("the query has the parameter {name}: write ? or $1 to ${MAX_PARAMETERS}")))?;
        found.insert(number, field.map_or(DataType::Null, |f| f.data_type().clone()));
    }
    let highest = found.keys().next_back().copied().unwrap_or(0).max(least);
    Ok((1..=highest).map(|n| Field::new(format!("${n}"), found.remove(&n).unwrap_or(DataType::Null), true)).collect())
}

/// `plan` with `values` in the place of its parameters. There are at least `least`.
///
/// # Errors
/// Invalid unless there is one value for each.
pub(crate) fn bind(plan: LogicalPlan, least: usize, values: Vec<ScalarValue>) -> Result<LogicalPlan> {
    let wanted = of(&plan, least)?.len();
    if wanted != values.len() {
        return Err(Error::invalid(format!("the query has {wanted} parameters and was given {} values: bind one value to each", values.len())));
    }
    if values.is_empty() {
        return Ok(plan);
    }
    plan.with_param_values(ParamValues::from(values)).map_err(from_datafusion)
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn numbered(sql: &str) -> Result<String> {
        let mut statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
        number(&mut statement)?;
        Ok(statement.to_string())
    }

    #[test]
    fn question_marks_are_numbered_as_they_stand() {
        let got = numbered("WITH w AS (SELECT ? AS a) SELECT ? FROM w WHERE a BETWEEN ? AND ? AND s = '?' ORDER BY a LIMIT ? OFFSET ?").unwrap();
        assert_eq!(got, "WITH w AS (SELECT $1 AS a) SELECT $2 FROM w WHERE a BETWEEN $3 AND $4 AND s = '?' ORDER BY a LIMIT $5 OFFSET $6");
        assert_eq!(numbered("SELECT $2, $1").unwrap(), "SELECT $2, $1");
    }

    #[test]
    fn parameters_that_no_plan_has_count() {
        for (sql, count) in [("WITH w AS (SELECT ? AS a) SELECT 1", 1), ("WITH w AS (SELECT $3 AS a) SELECT $1", 3), ("SELECT 1", 0)] {
            let mut statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
            assert_eq!(number(&mut statement).unwrap(), count, "{sql}");
        }
    }

    #[test]
    fn two_ways_at_once_are_refused() {
        let error = numbered("SELECT ?, $1").unwrap_err();
        assert!(error.message().contains("both ? and $1"), "{}", error.message());
    }
}
