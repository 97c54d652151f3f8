//! Parts of a super-plan that occur several times: which are computed once, and which are not.

use crate::common::*;
use datafusion::common::tree_node::TreeNodeRecursion;
use skytether_plan::shared::{Shared, share};
use skytether_plan::{CutPlan, Pushdown, explain_text};

const GROUPS: &str = "WITH c AS (SELECT k, count(*) AS n FROM t WHERE i > 0 GROUP BY k)";

async fn shared(sql: &str) -> CutPlan {
    let host = whole();
    share(cut_with(&host, optimized(&host, sql).await, Pushdown::Full)).unwrap()
}

/// The shared results in the order of the text, with their numbers, and whether each is computed there.
fn results(cut: &CutPlan) -> Vec<Shared> {
    let mut found = vec![];
    cut.super_plan
        .apply_with_subqueries(|node| {
            found.extend(Shared::of(node).cloned());
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
    found
}

fn places(cut: &CutPlan) -> Vec<(usize, usize, bool)> {
    results(cut).iter().map(|shared| (shared.number, shared.uses, shared.here)).collect()
}

#[tokio::test]
async fn equal_groups_are_computed_at_their_first_use() {
    let cut = shared(&format!("{GROUPS} SELECT a.k, b.k FROM c a JOIN c b ON a.n = b.n + 1")).await;
    assert_eq!(places(&cut), [(1, 2, true), (1, 2, false)], "{}", explain_text::cut_plan(&cut));
    assert_eq!(cut.scans.len(), 1, "the drives read the table once");
    let text = explain_text::cut_plan(&cut);
    assert!(text.contains("SharedResult: 1, computed once and used 2 times") && text.contains("SharedResult: 1, computed elsewhere in this plan"), "{text}");
    assert_eq!(text.matches("sub-plan ").count(), 1, "{text}");
}

#[tokio::test]
async fn each_kind_of_few_rows_is_computed_once() {
    for part in [
        "SELECT DISTINCT k FROM t",
        "SELECT k FROM t ORDER BY u LIMIT 5",
        "SELECT k FROM t LIMIT 5",
        "SELECT k, row_number() OVER (PARTITION BY k ORDER BY u) AS n FROM t",
        "SELECT k, sum(w) AS n FROM pairs GROUP BY k HAVING sum(w) > 3",
        "SELECT k, max(u) AS n FROM t GROUP BY k UNION ALL SELECT k, min(u) FROM t GROUP BY k",
        "SELECT x.k FROM (SELECT k, count(*) AS n FROM t GROUP BY k) x JOIN (SELECT k, sum(w) AS n FROM pairs GROUP BY k) y ON x.n = y.n",
    ] {
        let cut = shared(&format!("WITH c AS ({part}) SELECT * FROM c UNION ALL SELECT * FROM c UNION ALL SELECT * FROM c")).await;
        assert_eq!(places(&cut), [(1, 3, true), (1, 3, false), (1, 3, false)], "{part}\n{}", explain_text::cut_plan(&cut));
    }
}

#[tokio::test]
async fn uses_that_need_other_rows_are_computed_apart() {
    for uses in [
        "SELECT * FROM (SELECT * FROM c WHERE k > 1) UNION ALL SELECT * FROM (SELECT * FROM c WHERE k > 2)",
        "SELECT k, n FROM c UNION ALL SELECT k, n FROM (SELECT k, count(*) AS n FROM t WHERE i > 1 GROUP BY k)",
    ] {
        let cut = shared(&format!("{GROUPS} {uses}")).await;
        assert_eq!((places(&cut).len(), cut.scans.len()), (0, 2), "{}", explain_text::cut_plan(&cut));
    }
}

#[tokio::test]
async fn rows_of_a_table_are_read_at_each_use() {
    let cut = shared("WITH c AS (SELECT k, i FROM t WHERE i > 0) SELECT a.k FROM c a JOIN c b ON a.k = b.i").await;
    assert_eq!((places(&cut).len(), cut.scans.len()), (0, 2), "{}", explain_text::cut_plan(&cut));
}

#[tokio::test]
async fn volatile_columns_are_computed_at_each_use() {
    let cut = shared(&format!("{GROUPS}, d AS (SELECT k, n, random() AS r FROM c) SELECT a.r, b.r FROM d a JOIN d b ON a.k = b.n AND a.n = b.k")).await;
    let text = explain_text::super_plan(&cut.super_plan);
    assert_eq!(text.matches("random()").count(), 2, "{text}");
    assert_eq!(places(&cut), [(1, 2, true), (1, 2, false)], "what it is computed from is shared: {text}");
    let drawn = "SELECT count(*) AS n FROM t WHERE random() < 0.5";
    let cut = shared(&format!("WITH c AS ({drawn}) SELECT * FROM c UNION ALL SELECT * FROM c")).await;
    assert_eq!(places(&cut), [], "{}", explain_text::cut_plan(&cut));
}

#[tokio::test]
async fn the_largest_part_is_shared_and_then_its_parts() {
    let nested = format!("{GROUPS}, d AS (SELECT x.n, count(*) AS m FROM c x JOIN c y ON x.n = y.n + 1 GROUP BY x.n)");
    let cut = shared(&format!("{nested} SELECT a.m, b.n FROM d a JOIN d b ON a.m = b.n AND a.n = b.m")).await;
    let text = explain_text::cut_plan(&cut);
    assert_eq!(places(&cut), [(1, 2, true), (2, 2, true), (2, 2, false), (1, 2, false)], "{text}");
    assert_eq!(cut.scans.len(), 1, "{text}");
    let cut = shared(&format!("{nested} SELECT m FROM d UNION ALL SELECT m FROM d UNION ALL SELECT n FROM c")).await;
    let text = explain_text::cut_plan(&cut);
    assert_eq!(cut.scans.len(), 1, "{text}");
    assert_eq!(results(&cut).iter().filter(|shared| shared.here).count(), 2, "{text}");
    assert!(results(&cut).iter().all(|shared| shared.uses == if shared.number == 1 { 2 } else { 3 }), "{text}");
}

#[tokio::test]
async fn subqueries_and_relations_share_a_result() {
    let cut = shared(&format!("{GROUPS} SELECT k FROM c WHERE n = (SELECT max(n) FROM c) AND n > (SELECT min(n) FROM c)")).await;
    let text = explain_text::super_plan(&cut.super_plan);
    assert_eq!(places(&cut), [(1, 3, true), (1, 3, false), (1, 3, false)], "{text}");
    assert_eq!(cut.scans.len(), 1, "{text}");
}

/// DataFusion computes a subquery at the root of the plan around it, which a shared part is not.
#[tokio::test]
async fn parts_with_a_subquery_are_computed_at_each_use() {
    let sql = "WITH c AS (SELECT k, count(*) AS n FROM t GROUP BY k HAVING count(*) > (SELECT avg(w) FROM pairs)) SELECT * FROM c a JOIN c b ON a.n = b.k";
    let cut = shared(sql).await;
    let text = explain_text::super_plan(&cut.super_plan);
    for shared in results(&cut) {
        assert!(!explain_text::logical(&shared.plan).contains("Subquery"), "{text}");
    }
}

#[tokio::test]
async fn a_part_that_joins_on_the_drives_stays_there() {
    let cut = shared("WITH c AS (SELECT k, count(*) AS n FROM facts GROUP BY k) SELECT count(*) FROM c a JOIN c b ON a.k = b.k").await;
    assert_eq!((places(&cut).len(), cut.scans.len()), (0, 1), "{}", explain_text::cut_plan(&cut));
}

#[tokio::test]
async fn recursive_queries_compute_their_parts_in_each_round() {
    let groups = "SELECT k, count(*) AS n FROM t GROUP BY k";
    let step = format!("SELECT r.n + 1 FROM r JOIN ({groups}) x ON r.n = x.k JOIN ({groups}) y ON x.n = y.n WHERE r.n < 3");
    let cut = shared(&format!("WITH RECURSIVE r AS (SELECT 0 AS n UNION ALL {step}) SELECT count(*) FROM r UNION ALL SELECT count(*) FROM r")).await;
    assert_eq!(places(&cut), [], "{}", explain_text::cut_plan(&cut));
}

#[tokio::test]
async fn cutting_a_shared_plan_again_changes_nothing() {
    let cut = shared(&format!("{GROUPS} SELECT a.k, b.k FROM c a JOIN c b ON a.n = b.n + 1")).await;
    let again = share(cut_with(&whole(), cut.super_plan.clone(), Pushdown::Full)).unwrap();
    assert_eq!(again.super_plan, cut.super_plan);
    assert_eq!(again.scans, cut.scans);
}

#[tokio::test]
async fn copies_with_generated_names_are_equal() {
    for part in [
        "SELECT k, sum(i * 7 + u) AS a, max(i * 7 + u) AS b FROM t GROUP BY k",
        "SELECT k, count(*) AS a FROM t WHERE EXISTS (SELECT 1 FROM pairs p WHERE p.k = t.k AND p.w > t.i) GROUP BY k",
    ] {
        let host = whole();
        let cut = cut_with(&host, optimized(&host, &format!("WITH c AS ({part}) SELECT x.a, y.a FROM c x JOIN c y ON x.k = y.a")).await, Pushdown::Full);
        let text = explain_text::cut_plan(&cut);
        assert!(text.contains("__common_expr_2") || text.contains("__correlated_sq_2"), "the copies differ: {text}");
        let cut = share(cut).unwrap();
        assert_eq!(places(&cut), [(1, 2, true), (1, 2, false)], "{}", explain_text::cut_plan(&cut));
    }
}
