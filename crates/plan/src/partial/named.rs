//! `first_value` and `last_value` that keep their name when their order is reversed.
//!
//! Where the input is sorted the other way round, DataFusion makes `last_value(x ORDER BY u)` of
//! `first_value(x ORDER BY u DESC)`. The column keeps its name. But what the operator knows of the column, that it is a
//! constant where there is one row, goes by the name of the call. Sorts were left out above the first form, and missed
//! above the second: the sanity checker refused the plan. Here the reversed call has the name of the original.

use std::sync::Arc;

use datafusion::functions_aggregate::first_last::{first_value_udaf, last_value_udaf};
use datafusion::logical_expr::AggregateUDF;

use super::replacement::{Replacement, replaced};

/// The aggregates, to replace DataFusion's.
pub(super) fn udafs() -> [Arc<AggregateUDF>; 2] {
    [first_value_udaf(), last_value_udaf()].map(|original| {
        let name = original.name().to_owned();
        replaced(original, Named { name })
    })
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Named {
    name: String,
}

impl Replacement for Named {
    fn name<'a>(&'a self, _: &'a AggregateUDF) -> &'a str {
        &self.name
    }

    fn replaces_reversed(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::FunctionRegistry;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    async fn session() -> SessionContext {
        let mut state = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2)).state();
        for udaf in udafs().into_iter().chain(crate::partial::ordered::udafs()) {
            state.register_udaf(udaf).unwrap();
        }
        let context = SessionContext::new_with_state(state);
        context.sql("CREATE TABLE t AS SELECT value AS u, value % 3 AS k FROM generate_series(1, 8)").await.unwrap();
        context
    }

    /// The sort by keys is left out where the first value is a constant, which it has to stay.
    #[tokio::test]
    async fn reversed_values_stay_constants() {
        let context = session().await;
        for (call, value) in [("first_value(u ORDER BY u DESC NULLS LAST)", 8), ("last_value(u ORDER BY u DESC NULLS LAST)", 1)] {
            let rows = format!("SELECT {call} AS a, trim(string_agg('x', ',' ORDER BY u NULLS FIRST)) AS b, DATE '2024-01-01' AS c FROM t");
            let query = format!("SELECT a, row_number() OVER (PARTITION BY a, b, c) AS n FROM ({rows})");
            let rows = context.sql(&query).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&rows).unwrap().to_string();
            assert!(text.contains(&format!("| {value} | 1 |")), "{text}");
        }
    }

    #[tokio::test]
    async fn reversed_values_of_groups_are_right() {
        let query = "SELECT k, first_value(u ORDER BY u DESC NULLS LAST) AS f, last_value(u ORDER BY u DESC NULLS LAST) AS l, \
            array_agg(u ORDER BY u NULLS FIRST) AS a, first_value(u ORDER BY u) AS g, last_value(u ORDER BY u) AS h FROM t GROUP BY k ORDER BY k";
        let rows = session().await.sql(query).await.unwrap().collect().await.unwrap();
        let text = pretty_format_batches(&rows).unwrap().to_string();
        let got: Vec<String> = text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.replace(' ', "")).collect();
        assert_eq!(got, ["|0|6|3|[3,6]|3|6|", "|1|7|1|[1,4,7]|1|7|", "|2|8|2|[2,5,8]|2|8|"], "{text}");
    }
}
