use super::*;
use crate::chunked::tests::{context, list};
use crate::chunked::{InParts, plan};
use datafusion::common::config::Dialect;

/// What the rules make of the whole list in one pass: in a second one they only count the names on that they make up.
async fn whole(sql: &str) -> LogicalPlan {
    let mut state = context().state();
    state.config_mut().options_mut().optimizer.max_passes = 1;
    let plan = state.statement_to_plan(state.sql_to_statement(sql, &Dialect::Generic).unwrap()).await.unwrap();
    state.optimize(&plan).unwrap()
}

/// What is made of its parts, and whether their optimised plans were joined.
async fn parts(sql: &str) -> Option<InParts> {
    // States count the names that they make up.
    let state = context().state();
    plan(&mut state.sql_to_statement(sql, &Dialect::Generic).unwrap(), &state, true).await
}

#[tokio::test]
async fn parts_make_the_optimised_plan_of_the_whole() {
    for sql in [
        format!("SELECT {} FROM t", list(|c| format!("sum(c{c})"))),
        format!("SELECT {} FROM t", list(|c| format!("c{c}"))),
        format!("SELECT {} FROM t", list(|c| format!("c{}", 239 - c))),
        format!("SELECT {} FROM t", list(|c| format!("{c} AS x{c}"))),
        format!("SELECT {} FROM t", list(|c| format!("count(*) + {c} AS x{c}"))),
        format!("SELECT {} FROM t", list(|c| format!("CASE WHEN c{c} > 2 THEN c{} ELSE {c} END AS x{c}", c + 3))),
        // Conditions on columns that the list has, and on others.
        format!("SELECT {} FROM t WHERE c1 > 0", list(|c| format!("c{c} + 1 AS x{c}"))),
        format!("SELECT {} FROM t WHERE c299 > 0 AND c298 IN (1, 2)", list(|c| format!("c{c} + 1 AS x{c}"))),
        format!("SELECT {} FROM t WHERE c1 > 0", list(|c| format!("max(c{c}) - min(c{c}) AS x{c}"))),
        format!("SELECT {} FROM t WHERE c299 > 0", list(|c| format!("max(c{c}) AS x{c}"))),
        // Another name of the table.
        format!("SELECT {} FROM t AS u WHERE u.c299 > 0", list(|c| format!("sum(u.c{c} * {c}) AS x{c}"))),
        format!("SELECT {} FROM t AS u WHERE c1 + 1 > 3 AND u.c2 IN (1, 2)", list(|c| format!("sum(c{c}) / count(c{}) AS x{c}", c % 7))),
        format!("SELECT {} FROM t AS u WHERE u.c299 > 0", list(|c| format!("u.c{c} + {c} AS x{c}"))),
        // Groups, some of them conditions or results as well.
        format!("SELECT c5, {} FROM t GROUP BY c5, c6 % 2", list(|c| format!("sum(c{c}) / count(c{}) AS x{c}", c % 60))),
        format!("SELECT c5, {} FROM t WHERE c5 > 2 GROUP BY c5, c6 % 2", list(|c| format!("max(c{c} * c{}) AS x{c}", c % 9))),
        format!("SELECT c6 % 2 AS g, {} FROM t u WHERE c7 > 1 GROUP BY u.c6 % 2", list(|c| format!("avg(c{c} + 0.5) AS x{c}"))),
        format!("SELECT {} FROM t GROUP BY ROLLUP (c5, c6)", list(|c| format!("sum(c{c}) AS x{c}"))),
        format!("SELECT {} FROM t GROUP BY c299", list(|c| format!("count(DISTINCT c{c}) AS x{c}"))),
        // What all are to compute once.
        format!("SELECT {}, {} FROM t", list(|c| format!("sum(c{c} + 1) AS s{c}")), list(|c| format!("avg(c{c} + 1) AS a{c}"))),
        format!("SELECT {}, c1 * c2 + 3 AS twice FROM t", list(|c| format!("c{c} * c{} AS x{c}", c + 1))),
        format!("SELECT {} FROM t", list(|c| format!("sum(c{c}) FILTER (WHERE c1 + 1 > 0) AS x{c}"))),
        format!("SELECT {} FROM t WHERE c1 + 1 > 3 AND c1 + 1 < 9", list(|c| format!("sum(c{c})"))),
        // What becomes simpler: into the same twice, too.
        format!("SELECT {}, sum(c7 + 0) AS again FROM t", list(|c| format!("sum(c{c})"))),
        format!("SELECT {} FROM t WHERE 1 = 1 AND NOT (c1 <= 2)", list(|c| format!("sum(c{c} + {c} * 2 - 1) AS x{c}"))),
    ] {
        let (whole, parts) = (whole(&sql).await, parts(&sql).await.unwrap_or_else(|| panic!("{sql}")));
        assert!(parts.optimised, "{sql}");
        assert_eq!(parts.plan.display_indent_schema().to_string(), whole.display_indent_schema().to_string(), "{sql}");
        assert_eq!(parts.plan, whole);
        let dependencies = |plan: &LogicalPlan| plan.schema().functional_dependencies().clone();
        assert_eq!(dependencies(&parts.plan), dependencies(&whole));
    }
}

#[tokio::test]
async fn lists_that_rules_rewrite_whole_are_not_split() {
    let state = context().state();
    for sql in [
        format!("SELECT {} FROM t a JOIN t b ON a.c1 = b.c1", list(|c| format!("a.c{c}"))),
        format!("SELECT {} FROM t, (SELECT 1)", list(|c| format!("c{c}"))),
        format!("SELECT {} FROM (SELECT * FROM t)", list(|c| format!("c{c}"))),
        format!("SELECT {} FROM t WHERE c3 IN (SELECT c4 FROM t)", list(|c| format!("max(c{c})"))),
        format!("SELECT {} FROM t WHERE 1 = 2", list(|c| format!("max(c{c})"))),
        format!("SELECT {}, (SELECT max(c3) FROM t) AS x FROM t", list(|c| format!("c{c}"))),
        // One set of values that is counted: groups of their own are made of it.
        format!("SELECT count(DISTINCT c1), {} FROM t", list(|c| format!("sum(c{c})"))),
        // Columns that the list does not name.
        format!("SELECT {} FROM t AS u(a)", list(|c| format!("c{c}"))),
        // A condition that is long itself.
        format!("SELECT {} FROM t WHERE c1 IN ({})", list(|c| format!("sum(c{c})")), list(|n| format!("{n}{n}{n}{n}{n}{n}"))),
        // A value that is not known yet.
        format!("SELECT {} FROM t WHERE c1 > $1", list(|c| format!("sum(c{c})"))),
        format!("SELECT {}, sum(c1 + $1) AS x FROM t", list(|c| format!("sum(c{c})"))),
    ] {
        let planned = plan(&mut state.sql_to_statement(&sql, &Dialect::Generic).unwrap(), &state, true).await;
        assert!(planned.is_none_or(|planned| !planned.optimised), "{sql}");
    }
}

#[test]
fn repeated_expressions_are_found() {
    use arrow::datatypes::DataType::{Float64, Int32};
    use datafusion::prelude::{cast, col, lit};

    let twice = [
        vec![col("a") + lit(1), col("a") + lit(1)],
        vec![(col("a") + lit(1)) * lit(2), lit(3) - (col("a") + lit(1))],
        vec![cast(col("a"), Float64) + lit(1), cast(col("a"), Float64).alias("x")],
        vec![(col("a") + lit(1)) * (col("a") + lit(1))],
    ];
    for exprs in twice {
        assert!(is_work(&exprs), "{exprs:?}");
    }
    let once = [
        vec![col("a"), col("a").alias("x"), lit(1), lit(1)],
        vec![col("a") + lit(1), col("a") + lit(2), col("b") + lit(1), col("a") - lit(1), lit(1) + col("a")],
        vec![cast(col("a"), Float64), cast(col("a"), Int32), cast(col("b"), Float64)],
    ];
    for exprs in once {
        assert!(!is_work(&exprs), "{exprs:?}");
    }
}
