//! Any bytes as a Substrait plan of a stranger: an error, or a logical plan. Seeds: python/tests/plans/isthmus.
#![no_main]

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::TableReference;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::TableSource;
use datafusion::logical_expr::logical_plan::builder::LogicalTableSource;
use libfuzzer_sys::fuzz_target;
use skytether_plan::foreign::{Foreign, Limits, Names};

static STATE: LazyLock<SessionState> = LazyLock::new(|| SessionStateBuilder::new().with_default_features().build());
static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let fields = ["n_nationkey", "n_regionkey"].map(|n| Field::new(n, DataType::Int64, true)).into_iter();
    Arc::new(Schema::new(fields.chain(["n_name", "n_comment"].map(|n| Field::new(n, DataType::Utf8View, true))).collect::<Vec<_>>()))
});

/// Whatever a plan names is the same table.
struct Any;

#[async_trait::async_trait]
impl Names for Any {
    async fn find(&self, _: &[String]) -> skytether_common::Result<(TableReference, Arc<dyn TableSource>)> {
        Ok((TableReference::bare("t"), Arc::new(LogicalTableSource::new(Arc::clone(&SCHEMA)))))
    }
}

fuzz_target!(|data: &[u8]| {
    let limits = Limits { bytes: 1 << 20, relations: 200, depth: 100, expressions: 10_000 };
    if let Ok(foreign) = Foreign::decode(data, limits) {
        let _ = futures::executor::block_on(foreign.logical(&STATE, &Any));
    }
});
