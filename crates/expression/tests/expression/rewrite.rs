//! The rewrite from the dense view to its sparse rows: which plans it changes and how, and that the answers stay.

use std::sync::Arc;

use crate::common::{Data, entries, session};
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;

use skytether_expression::rewrite::rewrite;

struct World {
    context: SessionContext,
    rows: Arc<MemTable>,
    data: Data,
}

fn world() -> World {
    let groups = vec![Some("B"), None, Some("NK"), Some("B"), Some("NK"), None];
    let data = Data::new(vec![vec![1, 0, 2, 0, 0, 7], vec![0; 6], vec![3, 1, 4, 1, 5, 9], vec![0, 0, 40, 2, 0, 0]], groups);
    let context = session(Arc::new(data.clone()), 2);
    let dense = data.dense();
    context.register_table("x", Arc::new(MemTable::try_new(dense.schema(), vec![vec![dense]]).unwrap())).unwrap();
    let rows = data.rows(2, false);
    let rows = Arc::new(MemTable::try_new(rows[0].schema(), vec![rows]).unwrap());
    World { context, rows, data }
}

impl World {
    fn rewrite(&self, plan: LogicalPlan) -> Transformed<LogicalPlan> {
        let moments = datafusion::execution::registry::FunctionRegistry::udaf(&self.context, "moments").unwrap();
        let rows_of = |table: &TableReference| {
            let source = provider_as_source(Arc::clone(&self.rows) as Arc<dyn TableProvider>);
            (table.table() == "x").then(|| (source, TableReference::bare("x_rows"), "d.s".parse().unwrap(), "x".to_owned()))
        };
        rewrite(plan, &rows_of, &moments).unwrap()
    }

    async fn plan(&self, sql: &str, optimised: bool) -> LogicalPlan {
        let plan = self.context.state().create_logical_plan(sql).await.unwrap();
        if optimised { self.context.state().optimize(&plan).unwrap() } else { plan }
    }
}

const SPEC: &str = r#"{"dataset":"d.s","matrix":"x","groups":{"obs":"cell_type"},"transform":"log1p_cp10k"}"#;

/// Shapes that are rewritten. `CALL` becomes the call.
const SHAPES: [(&str, &str); 9] = [
    ("plain", "SELECT gene, CALL AS m FROM x GROUP BY gene ORDER BY gene"),
    ("filter", "SELECT gene, CALL AS m FROM x WHERE gene IN ('gene 0', 'gene 3') GROUP BY gene ORDER BY gene"),
    ("alias", "SELECT y.gene, CALL AS m FROM x AS y WHERE y.gene <> 'gene 1' GROUP BY y.gene ORDER BY y.gene"),
    ("subquery", "SELECT g, CALL AS m FROM (SELECT upper(gene) AS g, value, cell FROM x WHERE gene <> 'gene 1') AS z GROUP BY g ORDER BY g"),
    ("two_calls", "SELECT gene, CALL AS m, CALL AS again FROM x GROUP BY gene ORDER BY gene"),
    ("no_groups", "SELECT CALL AS m FROM x"),
    ("expression", "SELECT right(gene, 1), CALL AS m FROM x GROUP BY right(gene, 1) ORDER BY 1"),
    ("casts", "SELECT gene, CALL AS m FROM (SELECT gene, CAST(cell AS TEXT) AS cell, CAST(value AS DOUBLE) AS value FROM x) AS y GROUP BY gene ORDER BY gene"),
    ("above", "SELECT gene, t_test(m, 'B', 'NK', 't-test') AS t, m FROM (SELECT gene, CALL AS m FROM x GROUP BY gene) ORDER BY gene"),
];

#[tokio::test]
async fn shapes_that_are_rewritten_give_the_same_answers() {
    let world = world();
    for (name, sql) in SHAPES {
        let dense = sql.replace("CALL", &format!("cell_moments(cell, value, '{SPEC}', 'log1p_cp10k')"));
        let short = sql.replace("CALL", "cell_moments(cell, value, 'cell_type', 'log1p_cp10k')");
        for optimised in [false, true] {
            let plan = world.plan(&short, optimised).await;
            let schema = Arc::clone(plan.schema());
            let new = world.rewrite(plan);
            assert!(new.transformed, "{name}");
            assert_eq!(new.data.schema().fields(), schema.fields(), "{name}");
            let text = new.data.display_indent().to_string();
            insta::assert_snapshot!(format!("{name}{}", if optimised { "_optimised" } else { "" }), text);
            let got = world.context.execute_logical_plan(new.data).await.unwrap().collect().await.unwrap();
            let expected = world.context.sql(&dense).await.unwrap().collect().await.unwrap();
            let column =
                |b: &[datafusion::arrow::record_batch::RecordBatch]| b.iter().flat_map(|b| entries(b.column_by_name("m").unwrap())).collect::<Vec<_>>();
            let (got, expected) = (column(&got), column(&expected));
            assert_eq!(got.len(), expected.len(), "{name}");
            for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
                assert_eq!((&got.0, got.1, got.2), (&expected.0, expected.1, expected.2), "{name}");
                assert!((got.3 - expected.3).abs() < 1e-9 && (got.4 - expected.4).abs() < 1e-9, "{name} {got:?} {expected:?}");
            }
        }
    }
    assert_eq!(world.data.cells(), 6);
}

#[tokio::test]
async fn everything_else_stays_as_it_is() {
    let world = world();
    world.context.register_table("other", Arc::clone(&world.rows) as Arc<dyn TableProvider>).unwrap();
    for sql in [
        "SELECT gene, sum(value) FROM x GROUP BY gene",
        "SELECT gene, cell_moments(cell, value, 'cell_type', NULL), count(*) FROM x GROUP BY gene",
        "SELECT gene, cell_moments(cell, value, 'cell_type', NULL) FROM x WHERE value > 1 GROUP BY gene",
        "SELECT gene, cell_moments(cell, value, 'cell_type', NULL) FROM x WHERE cell <> 'cell 1' GROUP BY gene",
        "SELECT cell, cell_moments(cell, value, 'cell_type', NULL) FROM x GROUP BY cell",
        "SELECT gene, cell_moments(cell, value * 2, 'cell_type', NULL) FROM x GROUP BY gene",
        "SELECT gene, cell_moments(gene, value, 'cell_type', NULL) FROM x GROUP BY gene",
        "SELECT gene, cell_moments(cell, value, 'cell_type', NULL) FILTER (WHERE value > 0) FROM x GROUP BY gene",
        "SELECT gene, cell_moments(cell, value, 'cell_type', NULL) FROM (SELECT * FROM x LIMIT 5) GROUP BY gene",
        "SELECT x.gene, cell_moments(cell, value, 'cell_type', NULL) FROM x JOIN other ON x.gene = other.gene GROUP BY x.gene",
        "SELECT gene, cell_moments(gene, nnz, 'cell_type', NULL) FROM other GROUP BY gene",
        "SELECT gene, cell_moments(cell, value, 'cell_type', NULL) FROM x GROUP BY ROLLUP(gene)",
        // Casts that change values or names are part of the question.
        "SELECT gene, cell_moments(cell, CAST(value AS INT), 'cell_type', NULL) FROM x GROUP BY gene",
        "SELECT gene, cell_moments(cell, CAST(CAST(value AS REAL) AS DOUBLE), 'cell_type', NULL) FROM x GROUP BY gene",
        "SELECT gene, cell_moments(cell, value, 'cell_type', NULL) FROM (SELECT gene, cell, CAST(value AS INT) AS value FROM x) AS y GROUP BY gene",
        "SELECT gene, cell_moments(CAST(CAST(cell AS BYTEA) AS TEXT), value, 'cell_type', NULL) FROM x GROUP BY gene",
    ] {
        for optimised in [false, true] {
            let plan = world.plan(sql, optimised).await;
            let new = world.rewrite(plan.clone());
            assert!(!new.transformed && new.data == plan, "{sql}\n{}", new.data.display_indent());
        }
    }
}

#[tokio::test]
async fn wrong_literals_are_refused() {
    let world = world();
    let moments = datafusion::execution::registry::FunctionRegistry::udaf(&world.context, "moments").unwrap();
    let source = provider_as_source(Arc::clone(&world.rows) as Arc<dyn TableProvider>);
    for (arguments, what) in
        [("'cell_type', 'log2'", "log2"), ("'{\"obs\": 7}', NULL", "obs"), (r#"'{"dataset":"a.b","matrix":"x","groups":{"obs":"c"}}', NULL"#, "a.b")]
    {
        let plan = world.plan(&format!("SELECT gene, cell_moments(cell, value, {arguments}) FROM x GROUP BY gene"), false).await;
        let rows_of = |_: &TableReference| Some((Arc::clone(&source), TableReference::bare("x_rows"), "d.s".parse().unwrap(), "x".to_owned()));
        let error = rewrite(plan, &rows_of, &moments).unwrap_err();
        assert!(error.to_string().contains(what), "{arguments}: {error}");
    }
}
