//! `rank_sums` through DataFusion, against a model of the dense values.

use std::sync::Arc;

use crate::common::{Data, session};
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Float64Type, UInt32Type};
use datafusion::datasource::MemTable;
use proptest::prelude::*;
use skytether_expression::rank_sums::RankSumsSpec;
use skytether_expression::{Groups, MomentsSpec, Transform};

const GROUPS: [Option<&str>; 4] = [Some("B"), Some("NK"), Some("T"), None];

fn literal(log: bool, against: Option<&str>) -> String {
    let of = MomentsSpec {
        dataset: "d.s".parse().unwrap(),
        matrix: "x".into(),
        groups: Groups::Obs { column: "cell_type".into() },
        transform: log.then_some(Transform::LOG1P_CP10K),
        squares: Default::default(),
        totals: None,
    };
    RankSumsSpec { of, against: against.map(str::to_owned), without_last: false, overlap: false }.to_literal().unwrap()
}

/// Of each group, by its name: the sum of ranks and the ties' part, as the definition says.
fn model(data: &Data, gene: usize, log: bool, group: Option<&str>, against: Option<&str>) -> (f64, f64) {
    let value = |c: usize| {
        let x = data.values[gene][c];
        if log && x > 0 { (x as f32 / (data.totals.value(c) / 1e4)).ln_1p() } else { x as f32 }
    };
    let part: Vec<usize> = (0..data.cells()).filter(|&c| against.is_none() || data.groups[c] == group || data.groups[c] == against).collect();
    let ranks = |c: usize| {
        let below = part.iter().filter(|&&o| value(o) < value(c)).count() as f64;
        let equal = part.iter().filter(|&&o| value(o) == value(c)).count() as f64;
        (below + (equal + 1.0) / 2.0, equal * equal - 1.0)
    };
    let sum = part.iter().filter(|&&c| data.groups[c] == group).map(|&c| ranks(c).0).sum();
    (sum, part.iter().map(|&c| ranks(c).1).sum())
}

async fn check(data: Data, rows: Vec<RecordBatch>, partitions: usize) {
    let data = Arc::new(data);
    let context = session(Arc::clone(&data) as _, partitions);
    let schema = rows[0].schema();
    let mut parts: Vec<Vec<RecordBatch>> = vec![vec![]; partitions];
    rows.into_iter().enumerate().for_each(|(i, batch)| parts[i % partitions].push(batch));
    context.register_table("x_rows", Arc::new(MemTable::try_new(schema, parts).unwrap())).unwrap();
    let mut names: Vec<Option<&str>> = data.groups.iter().copied().flatten().map(Some).collect();
    names.sort_unstable();
    names.dedup();
    for log in [false, true] {
        for against in [None, names.first().copied().flatten()] {
            let sql = format!("SELECT gene_id, rank_sums(idx, val, block, '{}') AS r FROM x_rows GROUP BY gene_id", literal(log, against));
            for batch in context.sql(&sql).await.unwrap().collect().await.unwrap() {
                let ids = batch.column(0).as_primitive::<UInt32Type>();
                let lists = batch.column(1).as_list::<i32>();
                for row in 0..batch.num_rows() {
                    let entries = lists.value(row);
                    assert_eq!(entries.len(), names.len() + 1);
                    let part = |at: usize| entries.as_struct().column(at).as_primitive::<Float64Type>().values().to_vec();
                    for (at, (group, got)) in names.iter().chain([&None]).zip(part(0).into_iter().zip(part(1))).enumerate() {
                        // Cells in no group have no place in pairs.
                        if at < names.len() || against.is_none() {
                            assert_eq!(got, model(&data, ids.value(row) as usize, log, *group, against), "gene {} {group:?} {against:?} {log}", ids.value(row));
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn sums_are_those_of_the_dense_values(
        (values, groups) in (1usize..30).prop_flat_map(|cells| {
            let gene = prop::collection::vec(prop_oneof![Just(0u32), 0u32..4, 0u32..60], cells);
            (prop::collection::vec(gene, 1..6), prop::collection::vec(0usize..4, cells))
        }),
        partitions in 1usize..4,
        wide in any::<bool>(),
    ) {
        // Logarithms need a positive total in each cell.
        let cells = groups.len();
        let values = [values, vec![vec![1; cells]]].concat();
        let data = Data::new(values, groups.into_iter().map(|g| GROUPS[g]).collect());
        let rows = data.rows(2, wide);
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(check(data, rows, partitions));
    }
}
