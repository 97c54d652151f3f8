//! Plans as text: what comes in, what goes down (after a round trip as bytes), what stays above.

use crate::common::*;
use datafusion::arrow::record_batch::RecordBatch;
use skytether_plan::{Pushdown, broadcast_join, codec, explain_text};

async fn shapes(sql: &str, policy: Pushdown) -> String {
    let host = whole();
    let plan = optimized(&host, sql).await;
    let cut = cut_with(&host, plan.clone(), policy);
    let mut text =
        format!("{sql}\ncut={policy}\n\n-- logical\n{}\n\n-- super-plan\n{}\n", explain_text::logical(&plan), explain_text::super_plan(&cut.super_plan));
    for scan in &cut.scans {
        for (n, input) in scan.inputs.iter().enumerate() {
            register(&host, &broadcast_join::name(n), RecordBatch::new_empty(broadcast_join::schema(n, input.schema())));
        }
        let bytes = codec::encode(&scan.sub_plan, &host.state()).unwrap();
        let read = codec::decode(&bytes, &host.state()).await.unwrap();
        text.push_str(&format!("\n-- sub-plan of {} as read by a drive ({})\n{}\n", scan.table, scan.rung.as_str(), explain_text::logical(&read)));
    }
    if !cut.notes.is_empty() {
        text.push_str("\n-- on the host\n");
        for note in &cut.notes {
            text.push_str(&format!("{}: {}\n", note.operator, note.reason));
        }
    }
    text
}

macro_rules! shapes {
    ($($name:ident: $sql:expr, $policy:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            insta::assert_snapshot!(stringify!($name), shapes($sql, Pushdown::$policy).await);
        }
    )*};
}

shapes! {
    columns_only: "SELECT k, i FROM t", Full;
    filter_and_projection: "SELECT k + 1 AS next, upper(s) FROM t WHERE i > 10 AND f IS NOT NULL", Full;
    filter_at_cut_filter: "SELECT k, sum(i) FROM t WHERE i > 10 GROUP BY k", Filter;
    filter_at_cut_raw: "SELECT k, sum(i) FROM t WHERE i > 10 GROUP BY k", Raw;
    grouped_aggregate: "SELECT k, sum(i) FROM t WHERE i > 10 GROUP BY k", Full;
    global_aggregate: "SELECT count(*), avg(f) FROM t", Full;
    literal_argument: "SELECT approx_percentile_cont(f, 0.9) FROM t", Full;
    aggregate_with_filter: "SELECT sum(i) FILTER (WHERE b) FROM t", Full;
    group_by_expression: "SELECT i % 3 AS r, max(f) FROM t GROUP BY i % 3", Full;
    having_and_top: "SELECT k, count(*) n FROM t GROUP BY k HAVING count(*) > 3 ORDER BY n LIMIT 2", Full;
    top: "SELECT k, i FROM t WHERE f > 0 ORDER BY i DESC NULLS LAST, k LIMIT 5", Full;
    top_with_offset: "SELECT k FROM t ORDER BY i % 7, u LIMIT 5 OFFSET 10", Full;
    top_cut_at_filter: "SELECT k FROM t ORDER BY i LIMIT 5", Filter;
    top_over_aggregate: "SELECT k, sum(i) s FROM t GROUP BY k ORDER BY s DESC LIMIT 3", Full;
    sort_of_all: "SELECT k, i FROM t WHERE i > 0 ORDER BY i", Full;
    top_everywhere: "SELECT name FROM dim WHERE k > 0 ORDER BY name LIMIT 3", Full;
    distinct_rows: "SELECT DISTINCT k, b FROM t", Full;
    count_distinct: "SELECT count(DISTINCT k) FROM t", Full;
    count_distinct_among_others: "SELECT count(DISTINCT k), sum(i) FROM t", Full;
    ordered_aggregate: "SELECT k, array_agg(i ORDER BY u) FROM t WHERE i > 0 GROUP BY k", Full;
    grouping_sets: "SELECT k, b, sum(i) FROM t GROUP BY ROLLUP (k, b)", Full;
    distinct_calls: "SELECT k, count(DISTINCT i), sum(DISTINCT u), max(DISTINCT f), avg(f) FROM t GROUP BY k", Full;
    union_aggregate: "SELECT k, sum(v) FROM (SELECT k, i AS v FROM t WHERE i > 0 UNION ALL SELECT k, 1 FROM dim UNION ALL SELECT k, 2 FROM local) x GROUP BY k", Full;
    union_top: "SELECT u FROM (SELECT u FROM t WHERE k = 1 UNION ALL SELECT i FROM t) ORDER BY u LIMIT 3", Full;
    union_distinct: "SELECT k FROM t UNION SELECT k FROM dim", Full;
    union_cut_at_filter: "SELECT k, count(*) FROM (SELECT k FROM t UNION ALL SELECT k FROM dim) GROUP BY k", Filter;
    limit_with_offset: "SELECT i FROM t LIMIT 5 OFFSET 3", Full;
    aggregate_over_limit: "SELECT count(*) FROM (SELECT i FROM t LIMIT 20)", Full;
    volatile_filter: "SELECT i FROM t WHERE i > 3 AND random() < 0.5", Full;
    everywhere: "SELECT name, count(DISTINCT k) FROM dim GROUP BY name HAVING count(DISTINCT k) > 0 LIMIT 3 OFFSET 1", Full;
    join: "SELECT d.name, sum(t.i) FROM t JOIN dim d ON t.k = d.k WHERE t.i > 0 GROUP BY d.name", Full;
    join_down_with_its_aggregate: "SELECT d.name, a.name, avg(t.i) FROM t JOIN dim d ON t.k = d.k LEFT JOIN dim a ON a.k = t.k + 1 WHERE t.i > 0 GROUP BY d.name, a.name", Full;
    join_of_rows: "SELECT t.i, d.name FROM t JOIN dim d ON t.k = d.k WHERE t.i > 0", Full;
    join_with_the_small_side_kept: "SELECT d.name, count(t.i) FROM dim d LEFT JOIN t ON t.k = d.k GROUP BY d.name", Full;
    scalar_subquery: "SELECT i FROM t WHERE i > (SELECT avg(i) FROM t)", Full;
    window: "SELECT u, sum(i) OVER (PARTITION BY k) FROM t WHERE i > 0", Full;
    window_by_key: "SELECT u, sum(i) OVER (PARTITION BY k) FROM facts WHERE i > 0", Full;
    window_by_key_and_more: "SELECT u FROM (SELECT u, k AS key, b, row_number() OVER (PARTITION BY b, k ORDER BY f DESC, u) AS n FROM facts) WHERE n <= 2 ORDER BY u LIMIT 5", Full;
    window_by_other_columns: "SELECT u, sum(i) OVER (PARTITION BY b) FROM facts", Full;
    window_of_unknown_size: "SELECT u, sum(i) OVER (PARTITION BY k) FROM vast", Full;
    window_that_repeats_texts: "SELECT u, max(s) OVER (PARTITION BY k) FROM facts", Full;
    window_of_neighbours: "SELECT lag(s) OVER (PARTITION BY k ORDER BY u) FROM facts", Full;
    window_frames_that_stay: "SELECT u, sum(i) OVER (PARTITION BY k ORDER BY u RANGE BETWEEN 3 PRECEDING AND CURRENT ROW) FROM facts", Full;
    window_cut_at_filter: "SELECT u, sum(i) OVER (PARTITION BY k) FROM facts", Filter;
    window_everywhere: "SELECT name, rank() OVER (ORDER BY name) FROM dim", Full;
    aggregate_by_key: "SELECT k, b, median(f), count(DISTINCT i) AS n FROM facts GROUP BY k, b HAVING count(DISTINCT i) > 1 ORDER BY n, k LIMIT 3", Full;
    aggregate_by_a_part_of_the_keys: "SELECT k, sum(w) FROM pairs GROUP BY k", Full;
    distinct_by_key: "SELECT DISTINCT s, k FROM pairs", Full;
    join_by_key: "SELECT f.k, f.u, o.name FROM facts f JOIN orders o ON f.k = o.k WHERE f.i > 0", Full;
    join_by_key_that_moves_more: "SELECT f.u, o.name FROM facts f JOIN orders o ON f.k = o.k", Full;
    join_by_key_and_aggregate: "SELECT o.name, count(*), avg(f.f) FROM facts f LEFT JOIN orders o ON f.k = o.k GROUP BY o.name", Full;
    join_by_key_then_window: "SELECT f.k, sum(f.i) FROM facts f JOIN orders o ON f.k = o.k GROUP BY f.k", Full;
    join_by_two_keys: "SELECT a.w, b.w FROM pairs a JOIN pairs b ON b.k = a.k AND a.s = b.s AND a.w < b.w", Full;
    join_by_one_of_two_keys: "SELECT count(*) FROM pairs a JOIN pairs b ON b.k = a.k", Full;
    join_by_other_columns: "SELECT count(*) FROM facts f JOIN orders o ON f.i = o.k", Full;
    join_by_keys_of_other_types: "SELECT count(*) FROM facts f JOIN pairs p ON f.k = p.k AND f.s = p.s", Full;
    join_of_what_does_not_fit: "SELECT count(*) FROM vast a JOIN vast b ON a.k = b.k", Full;
    semi_join_by_key: "SELECT u FROM facts WHERE EXISTS (SELECT 1 FROM orders o WHERE o.k = facts.k)", Full;
    not_in_by_key: "SELECT u FROM facts WHERE k NOT IN (SELECT k FROM orders)", Full;
    types_without_a_name: "SELECT x, dec, fixed, zone FROM odd WHERE x > 2", Full;
    local_table: "SELECT name FROM local WHERE k = 1", Full;
}
