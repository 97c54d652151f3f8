//! Targets for plans: sub-plans of drives, plans of other producers, and expressions over a table.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use async_trait::async_trait;
use datafusion::common::{DFSchema, DFSchemaRef, TableReference};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, ExprSchemable, TableSource, col, lit};
use datafusion::prelude::SessionContext;
use datafusion_substrait::logical_plan::producer::to_substrait_extended_expr;
use futures::executor::block_on;
use prost::Message;
use skytether_common::{Kind, Result};
use skytether_host::SUBSTRAIT_LIMITS as LIMITS;
use skytether_plan::codec;
use skytether_plan::partial;
use skytether_plan::substrait_import::{ImportedPlan, TableLookup};

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let types = [("i", DataType::Int64), ("f", DataType::Float64), ("s", DataType::Utf8View), ("b", DataType::Boolean)];
    let more = [("d", DataType::Decimal128(15, 2)), ("t", DataType::Timestamp(TimeUnit::Microsecond, None)), ("y", DataType::Date32)];
    Arc::new(Schema::new(types.into_iter().chain(more).map(|(n, t)| Field::new(n, t, true)).collect::<Vec<_>>()))
});

/// A session with the table `t` and the functions of a drive.
static STATE: LazyLock<SessionState> = LazyLock::new(|| {
    let mut state = SessionStateBuilder::new().with_default_features().build();
    if let Err(e) = partial::register(&mut state) {
        panic!("the functions of a drive can't be registered: {e}")
    }
    let context = SessionContext::new_with_state(state);
    match MemTable::try_new(Arc::clone(&SCHEMA), vec![vec![]]) {
        Ok(table) => drop(context.register_table("t", Arc::new(table))),
        Err(e) => panic!("{e}"),
    }
    context.state()
});

fn expected(kind: Kind, text: &str) {
    assert!(matches!(kind, Kind::Invalid | Kind::Unsupported | Kind::NotFound), "{kind:?}: {text}");
}

pub(crate) fn sub_plans() -> Vec<Vec<u8>> {
    let context = SessionContext::new_with_state(STATE.clone());
    [
        "SELECT i, upper(s), CASE WHEN b THEN f ELSE 0.5 END FROM t WHERE s LIKE 'a%' AND i IN (1, 2, 3) AND t > TIMESTAMP '2020-11-01 00:00:00' LIMIT 5",
        "SELECT i % 3, count(*), sum(f), max(s) FILTER (WHERE b) FROM t WHERE NOT b OR d * 2 > 7 GROUP BY i % 3",
        "SELECT a.i, b.s FROM t a JOIN t b ON a.i = b.i WHERE a.y < DATE '2020-01-01' ORDER BY a.i DESC NULLS LAST LIMIT 10",
    ]
    .into_iter()
    .filter_map(|sql| {
        let plan = block_on(context.sql(sql)).ok()?.into_optimized_plan().ok()?;
        codec::encode(&plan, &STATE).ok().map(|b| b.to_vec())
    })
    .collect()
}

/// A sub-plan as a drive decodes it: an error of a kind that blames the plan, or a plan.
pub(crate) fn sub_plan_decode(data: &[u8]) -> bool {
    match block_on(codec::decode(data, &STATE)) {
        Ok(plan) => assert!(plan.schema().fields().len() <= codec::MAX_WIDTH),
        Err(e) => {
            assert_ne!(e.kind(), Kind::Corrupt, "{}", e.report());
            return false;
        }
    }
    true
}

pub(crate) fn expressions() -> Vec<Vec<u8>> {
    let Ok(schema) = DFSchema::try_from(SCHEMA.as_ref().clone()) else { return vec![] };
    let schema = DFSchemaRef::new(schema);
    let written = |e: Expr| {
        let field = Field::new("e", e.get_type(&schema).ok()?, true);
        to_substrait_extended_expr(&[(&e, &field)], &schema, &STATE).ok().map(|m| m.encode_to_vec())
    };
    let odd = col("f").lt(lit(0.0)).or(col("f").eq(col("f") + lit(1.5))).and(col("s").is_null());
    [odd, col("i").gt_eq(lit(7i64)).and(!col("b")), col("i").in_list(vec![lit(1i64), lit(2i64)], false)].into_iter().filter_map(written).collect()
}

/// Expressions over a table as a dataset's scan takes them.
pub(crate) fn expressions_decode(data: &[u8]) -> bool {
    match block_on(codec::decode_expressions(data, &SCHEMA, &STATE)) {
        Ok(found) => assert!(found.len() <= codec::MAX_WIDTH),
        Err(e) => {
            assert_ne!(e.kind(), Kind::Corrupt, "{}", e.report());
            return false;
        }
    }
    true
}

/// Whatever a plan names is one table, whose columns have the names of all that the seeds read.
struct Any(Arc<dyn TableSource>);

#[async_trait]
impl TableLookup for Any {
    async fn find(&self, _: &[String]) -> Result<(TableReference, Arc<dyn TableSource>)> {
        Ok((TableReference::bare("t"), Arc::clone(&self.0)))
    }
}

/// The columns of all tables of TPC-H as `schema.sql` declares them.
static TPCH: LazyLock<SchemaRef> = LazyLock::new(|| {
    let context = SessionContext::new();
    let text = std::fs::read_to_string(isthmus().join("schema.sql")).unwrap_or_default();
    let statements = text.split(';').filter(|s| !s.trim().is_empty());
    let mut fields: Vec<Field> = SCHEMA.fields().iter().map(|f| f.as_ref().clone()).collect();
    let _ = block_on(context.sql("CREATE SCHEMA tpch"));
    for statement in statements {
        let _ = block_on(context.sql(statement));
    }
    let schema = context.catalog("datafusion").and_then(|c| c.schema("tpch"));
    for name in schema.iter().flat_map(|s| s.table_names()) {
        if let Ok(table) = block_on(context.table_provider(TableReference::partial("tpch", name))) {
            fields.extend(table.schema().fields().iter().map(|f| f.as_ref().clone()));
        }
    }
    Arc::new(Schema::new(fields))
});

static ANY: LazyLock<Any> = LazyLock::new(|| match MemTable::try_new(Arc::clone(&TPCH), vec![vec![]]) {
    Ok(table) => Any(provider_as_source(Arc::new(table))),
    Err(e) => panic!("{e}"),
});

fn isthmus() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/plans/isthmus")
}

pub(crate) fn foreign() -> Vec<Vec<u8>> {
    (1..=22).filter_map(|n| std::fs::read(isthmus().join(format!("q{n:02}.plan"))).ok()).collect()
}

/// A stranger's plan with the host's limits, through the optimiser: an error that blames the plan, or a plan.
pub(crate) fn plan_read(data: &[u8]) -> bool {
    let read = ImportedPlan::decode(data, LIMITS).and_then(|foreign| block_on(foreign.logical(&STATE, &*ANY)));
    match read {
        // The host catches the optimiser's panics and blames the plan; what it can't catch is what is looked for here.
        Ok(plan) => catch_unwind(AssertUnwindSafe(|| STATE.optimize(&plan).is_ok())).unwrap_or(false),
        Err(e) => {
            expected(e.kind(), &e.report());
            false
        }
    }
}
