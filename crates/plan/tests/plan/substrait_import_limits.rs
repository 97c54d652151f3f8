//! Limits on what a foreign plan may make of few bytes: trees are flat, copies are counted, all numbers are bounded.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::TableReference;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::logical_plan::builder::LogicalTableSource;
use datafusion::logical_expr::{Expr, LogicalPlan, TableSource};
use datafusion::prelude::SessionContext;
use datafusion_substrait::substrait::proto::{Expression, Plan, Rel};
use prost::Message;
use skytether_common::{Kind, Result};
use skytether_plan::substrait_import::{ImportedPlan, Limits, TableLookup};

use crate::proto::*;

/// As the host's.
const LIMITS: Limits = Limits { bytes: 16 << 20, relations: 1000, depth: 200, expressions: 1 << 18, levels: 500 };

struct Any;

#[async_trait]
impl TableLookup for Any {
    async fn find(&self, _: &[String]) -> Result<(TableReference, Arc<dyn TableSource>)> {
        let column = |n: &str, t| Field::new(n, t, true);
        let schema = Schema::new(vec![column("i", DataType::Int64), column("f", DataType::Float64), column("s", DataType::Utf8)]);
        Ok((TableReference::bare("t"), Arc::new(LogicalTableSource::new(Arc::new(schema)))))
    }
}

fn t() -> Rel {
    read(&["t"], &[("i", I64_TYPE), ("f", FP64_TYPE), ("s", TEXT_TYPE)])
}

async fn logical(plan: &Plan) -> Result<LogicalPlan> {
    ImportedPlan::decode(&plan.encode_to_vec(), LIMITS)?.logical(&SessionContext::new().state(), &Any).await
}

async fn refused(plan: &Plan) -> String {
    let error = logical(plan).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{}", error.report());
    error.report()
}

fn depth(expr: &Expr) -> usize {
    let mut deepest = 0;
    expr.apply_children(|e| {
        deepest = deepest.max(1 + depth(e));
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    deepest
}

/// Levels of the deepest expression, and operators below one another.
fn levels(plan: &LogicalPlan) -> (usize, usize) {
    let mut expressions = 0;
    plan.apply_expressions(|e| {
        expressions = expressions.max(depth(e));
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    let below = plan.inputs().into_iter().map(levels);
    let (e, operators) = below.fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
    (expressions.max(e), operators + 1)
}

#[tokio::test]
async fn calls_of_many_arguments_become_flat_trees() {
    let texts = |_| field(2);
    let numbers = |_| field(0);
    let tests = |i| call(1, vec![field(0), number(i)]);
    type Case = (&'static str, i64, fn(i64) -> Expression);
    let cases: [Case; 6] = [
        ("concat:str", 65_536, texts),
        // These need each argument twice.
        ("least:i64", 40_000, numbers),
        ("greatest:i64", 40_000, numbers),
        ("and:bool", 65_536, tests),
        ("or:bool", 65_536, tests),
        ("add:i64_i64", 65_536, numbers),
    ];
    for (function, n, argument) in cases {
        let call = call(0, (0..n).map(argument).collect());
        let made = logical(&plan(&[function, "equal:any_any"], vec![], project(t(), vec![call]))).await.unwrap();
        let (deepest, _) = levels(&made);
        assert!((16..24).contains(&deepest), "{function}: {deepest} levels");
    }
}

// docs/sql.md: bytes
// docs/sql.md: relations
// docs/sql.md: nesting of its messages
#[tokio::test]
async fn one_beyond_a_limit_is_refused() {
    let long = ImportedPlan::decode(&vec![0; LIMITS.bytes + 1], LIMITS).unwrap_err();
    assert!(long.message().contains("16777217 bytes is too long: at most 16777216"), "{long}");
    // A union and what it reads.
    let union = |n: usize| plan(&[], vec![], set(6, (1..n).map(|_| t()).collect()));
    logical(&union(1000)).await.unwrap();
    let text = refused(&union(1001)).await;
    assert!(text.contains("too many relations: at most 1000"), "{text}");
    // Each shared relation is below a reference to it.
    let below = |n: i32| plan(&[], (0..n).map(|i| if i == 0 { t() } else { project(shared(i - 1), vec![field(0)]) }).collect(), shared(n - 1));
    logical(&below(100)).await.unwrap();
    let text = refused(&below(101)).await;
    assert!(text.contains("too deep: at most 200 below one another"), "{text}");
    // Messages: a relation is one within another.
    let nested = |n: usize| plan(&[], vec![], (0..n).fold(t(), |input, _| project(input, vec![field(0)])));
    logical(&nested(43)).await.unwrap();
    let text = refused(&nested(50)).await;
    assert!(text.contains("no substrait plan"), "{text}");
}

// docs/sql.md: nesting of expressions
#[tokio::test]
async fn expressions_are_counted_through_relations_below_one_another() {
    // Each of them adds 25 levels to the column of the one below, and the optimiser makes one expression of all.
    let more = |input| project(input, vec![(0..25).fold(field(3), |e, _| call(0, vec![e, number(1)]))]);
    let first = project(t(), vec![field(0)]);
    let chain = |n: i32| {
        let relations = (0..n).map(|i| if i == 0 { first.clone() } else { more(shared(i - 1)) });
        plan(&["add:i64_i64"], relations.collect(), shared(n - 1))
    };
    logical(&chain(15)).await.unwrap();
    let text = refused(&chain(40)).await;
    assert!(text.contains("too deep") && text.contains("at most 500"), "{text}");
}

// docs/sql.md: expressions
#[tokio::test]
async fn copies_of_arguments_are_counted() {
    // `least` needs each argument twice, and so on at each level.
    let nested = |n: usize| (0..n).fold(field(0), |e, _| call(0, vec![e, number(1)]));
    let of = |n: usize| plan(&["least:i64"], vec![], project(t(), vec![nested(n)]));
    logical(&of(8)).await.unwrap();
    let text = refused(&of(30)).await;
    assert!(text.contains("too many expressions"), "{text}");
}

#[tokio::test]
async fn set_relations_of_many_inputs_become_flat() {
    for op in [1, 3, 4, 5, 6] {
        let wide = plan(&[], vec![], set(op, (0..900).map(|_| t()).collect()));
        match logical(&wide).await {
            Ok(made) => {
                let (_, operators) = levels(&made);
                assert!(operators < 60, "{op}: {operators} operators below one another");
            }
            Err(e) => assert_eq!(e.kind(), Kind::Unsupported, "{op}: {}", e.report()),
        }
    }
}

// docs/sql.md: of one aggregation
#[tokio::test]
async fn aggregations_are_bounded() {
    let functions = &["sum:i64"];
    let sum = || (0, vec![field(0)]);
    let groups = |n: i64| (0..n).map(number).collect::<Vec<_>>();
    let wide = plan(functions, vec![], aggregate(t(), vec![field(0)], vec![vec![0]], (0..4096).map(|_| sum()).collect()));
    assert_eq!(logical(&wide).await.unwrap().schema().fields().len(), 4097);
    for (refusal, r) in [
        ("4097 aggregates", aggregate(t(), vec![], vec![], (0..4097).map(|_| sum()).collect())),
        ("1025 groups", aggregate(t(), groups(1025), vec![vec![0]], vec![sum()])),
        ("1025 grouping sets", aggregate(t(), groups(2), (0..1025).map(|_| vec![0]).collect(), vec![sum()])),
        ("1025 groups in a set", aggregate(t(), groups(2), vec![vec![0; 1025]], vec![sum()])),
    ] {
        let text = refused(&plan(functions, vec![], r)).await;
        assert!(text.contains(refusal), "{refusal}: {text}");
    }
    // References cost few bytes, and each is an expression: of one that is large there are not many.
    let large = (0..5000).fold(vec![], |mut all, _| {
        all.push(field(0));
        all
    });
    let many = plan(&["least_skip_null:i64"], vec![], aggregate(t(), vec![call(0, large), field(0)], vec![vec![0; 1000], vec![1]], vec![]));
    let text = refused(&many).await;
    assert!(text.contains("too many expressions"), "{text}");
}

#[tokio::test]
async fn grouping_sets_keep_their_order_and_number() {
    let sets = vec![vec![0, 1], vec![1, 1], vec![]];
    let made = logical(&plan(&["sum:i64"], vec![], aggregate(t(), vec![field(0), field(2)], sets, vec![(0, vec![field(0)])]))).await.unwrap();
    assert_eq!(made.schema().fields().len(), 4);
    let text = made.display_indent().to_string();
    assert!(text.contains("GROUPING SETS ((t_0.i, t_0.s), (t_0.s), ())"), "{text}");
    let twice = plan(&["sum:i64"], vec![], aggregate(t(), vec![field(0), field(2)], vec![vec![0, 1], vec![1, 0]], vec![]));
    assert!(logical(&twice).await.unwrap_err().report().contains("same grouping set twice"));
}
