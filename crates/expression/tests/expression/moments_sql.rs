//! `moments`, `cell_moments` and `t_test` through DataFusion, against a model of the dense values.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::common::{Data, Entry, entries, session};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use datafusion::arrow::datatypes::Float64Type;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use proptest::prelude::*;
use skytether_common::{Error, Kind};
use skytether_expression::{Groups, MomentsSpec, Transform};

const GROUPS: [Option<&str>; 4] = [Some("B"), Some("NK"), Some("a group with a long name"), None];

fn spec(groups: Groups, log: bool) -> String {
    MomentsSpec {
        dataset: "d.s".parse().unwrap(),
        matrix: "x".into(),
        groups,
        transform: log.then_some(Transform::LOG1P_CP10K),
        squares: Default::default(),
        totals: None,
    }
    .to_literal()
    .unwrap()
}

fn by_obs(log: bool) -> String {
    spec(Groups::Obs { column: "cell_type".into() }, log)
}

fn register_rows(context: &SessionContext, name: &str, batches: Vec<RecordBatch>, partitions: usize) {
    let schema = batches[0].schema();
    let mut parts: Vec<Vec<RecordBatch>> = vec![vec![]; partitions];
    for (i, batch) in batches.into_iter().enumerate() {
        parts[i % partitions].push(batch);
    }
    context.register_table(name, Arc::new(MemTable::try_new(schema, parts).unwrap())).unwrap();
}

async fn run(context: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>, Error> {
    let found = |e: datafusion::error::DataFusionError| match Error::find(&e as &(dyn StdError + 'static)) {
        Some(ours) => Error::new(ours.kind(), ours.to_string()),
        // Errors while a plan is made arrive as text.
        None if matches!(e.find_root(), datafusion::error::DataFusionError::Plan(_)) => Error::invalid(e.to_string()),
        None => Error::internal(e.to_string()),
    };
    context.sql(sql).await.map_err(found)?.collect().await.map_err(found)
}

async fn moments(context: &SessionContext, sql: &str) -> Vec<Vec<Entry>> {
    run(context, sql).await.unwrap().iter().flat_map(|b| entries(b.column(b.num_columns() - 1))).collect()
}

fn agree(data: &Data, gene: usize, got: &[Entry], log: bool) {
    for entry in got {
        let (n, nnz, mean, m2) = data.model(gene, entry.0.as_deref(), log);
        assert_eq!((entry.1, entry.2), (n, nnz), "gene {gene} {entry:?}");
        // The model's logarithm is the standard library's: 1 ulp of float32 away. Where all values are about equal,
        // this error is larger than the squared deviations.
        let ulps = 2e-7 * n as f64 * mean * mean;
        assert!((entry.3 - mean).abs() <= 1e-6 * mean && (entry.4 - m2).abs() <= 1e-6 * m2 + ulps + 1e-9, "gene {gene} {entry:?} {mean} {m2}");
    }
    assert_eq!(got.iter().map(|e| e.1).sum::<u64>(), data.cells() as u64);
    assert_eq!(got.last().map(|e| &e.0), Some(&None));
}

fn data() -> impl Strategy<Value = Data> {
    (1usize..40, 1usize..9).prop_flat_map(|(cells, genes)| {
        let value = prop_oneof![6 => Just(0u32), 3 => 1u32..5, 1 => 20u32..60_000];
        (prop::collection::vec(prop::collection::vec(value, cells), genes), prop::collection::vec(prop::sample::select(&GROUPS[..]), cells))
            .prop_map(|(v, g)| Data::new(v, g))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Over any sizes of batches, numbers of partitions and widths of columns; by names of groups, by codes, and over
    /// the dense view.
    #[test]
    fn sparse_moments_equal_the_dense_model(data in data(), log: bool, wide: bool, batch in 1usize..5, partitions in 1usize..4) {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let context = session(Arc::new(data.clone()), partitions);
            register_rows(&context, "x_rows", data.rows(batch, wide), partitions);
            let got = moments(&context, &format!("SELECT gene_id, moments(idx, val, block, '{}') AS m FROM x_rows GROUP BY gene_id ORDER BY gene_id", by_obs(log))).await;
            assert_eq!(got.len(), data.values.len());
            for (gene, got) in got.iter().enumerate() {
                agree(&data, gene, got, log);
            }
            // The same cell by cell: groups as explicit codes, in another order, and over the dense view.
            let names: Vec<String> = GROUPS[..3].iter().rev().map(|g| g.unwrap().to_owned()).collect();
            let codes: Vec<i32> = data.groups.iter().map(|g| names.iter().position(|n| Some(n.as_str()) == *g).map_or(-1, |p| p as i32)).collect();
            let coded = spec(Groups::codes(names, &codes).unwrap(), log);
            let got = moments(&context, &format!("SELECT gene, moments(idx, val, block, '{coded}') AS m FROM x_rows GROUP BY gene ORDER BY gene")).await;
            for (gene, got) in got.iter().enumerate() {
                assert_eq!(got.len(), 4);
                agree(&data, gene, got, log);
            }
            register_rows(&context, "x", vec![data.dense()], 1);
            let transform = if log { "'log1p_cp10k'" } else { "NULL" };
            let got = moments(&context, &format!("SELECT gene, cell_moments(cell, value, '{}', {transform}) AS m FROM x GROUP BY gene ORDER BY gene", by_obs(log))).await;
            for (gene, got) in got.iter().enumerate() {
                agree(&data, gene, got, log);
            }
        });
    }
}

#[tokio::test]
async fn without_group_by_and_without_rows() {
    let data = Data::new(vec![vec![1, 0, 3], vec![0, 0, 5]], vec![Some("B"), None, Some("B")]);
    let context = session(Arc::new(data.clone()), 2);
    register_rows(&context, "x_rows", data.rows(1, false), 2);
    let all = moments(&context, &format!("SELECT moments(idx, val, block, '{}') FROM x_rows", by_obs(false))).await;
    assert_eq!(all, [[(Some("B".to_owned()), 4, 3, 2.25, 14.75), (None, 2, 0, 0.0, 0.0)]]);
    let none = moments(&context, &format!("SELECT moments(idx, val, block, '{}') FROM x_rows WHERE gene_id > 7", by_obs(false))).await;
    assert_eq!(none, [[]]);
    let filtered = moments(
        &context,
        &format!("SELECT gene_id, moments(idx, val, block, '{}') FILTER (WHERE gene_id = 1) AS m FROM x_rows GROUP BY gene_id ORDER BY gene_id", by_obs(false)),
    )
    .await;
    assert_eq!(filtered[1][0].1, 2);
    assert_eq!(filtered[0].iter().map(|e| e.1).sum::<u64>(), 0);
}

#[tokio::test]
async fn moments_read_blocks_beyond_the_first() {
    use datafusion::arrow::array::{ListArray, StringViewArray};
    use datafusion::arrow::datatypes::{UInt16Type, UInt32Type};
    let cells = 65_536 + 10;
    let mut values = vec![0u32; cells];
    (values[3], values[65_535], values[65_536], values[65_545]) = (2, 4, 6, 40);
    let groups = (0..cells).map(|c| if c % 2 == 1 { Some("odd") } else { None }).collect();
    let data = Data::new(vec![values], groups);
    let rows = RecordBatch::try_from_iter([
        ("gene", Arc::new(StringViewArray::from(vec!["g", "g"])) as ArrayRef),
        ("block", Arc::new(UInt32Array::from(vec![0, 1]))),
        ("idx", Arc::new(ListArray::from_iter_primitive::<UInt32Type, _, _>([Some([Some(3), Some(65_535)]), Some([Some(65_536), Some(65_545)])]))),
        ("val", Arc::new(ListArray::from_iter_primitive::<UInt16Type, _, _>([Some([Some(2), Some(4)]), Some([Some(6), Some(40)])]))),
    ])
    .unwrap();
    for log in [false, true] {
        let context = session(Arc::new(data.clone()), 2);
        register_rows(&context, "r", vec![rows.slice(0, 1), rows.slice(1, 1)], 2);
        let got = moments(&context, &format!("SELECT gene, moments(idx, val, block, '{}') FROM r GROUP BY gene", by_obs(log))).await;
        agree(&data, 0, &got[0], log);
    }
}

#[tokio::test]
async fn large_means_keep_their_variance() {
    let base = 4_000_000_000u32;
    let values = vec![vec![base, base + 2, base + 1, base + 7, base + 7, 0, base + 5, base + 9]];
    let groups = ["B", "NK", "B", "NK", "B", "T", "T", "NK"].map(Some).to_vec();
    let data = Data::new(values, groups);
    let context = session(Arc::new(data.clone()), 1);
    register_rows(&context, "x_rows", data.rows(1, true), 1);
    let got = moments(&context, &format!("SELECT gene, moments(idx, val, block, '{}') FROM x_rows GROUP BY gene", by_obs(false))).await;
    assert_eq!(got[0][..2], [(Some("B".into()), 3, 3, f64::from(base) + 8.0 / 3.0, 86.0 / 3.0), (Some("NK".into()), 3, 3, f64::from(base) + 6.0, 26.0)]);
    agree(&data, 0, &got[0], false);
}

#[tokio::test]
async fn values_whose_squares_overflow_are_refused() {
    let data = Data::new(vec![vec![1, 2, 0, 0]], vec![Some("B"), Some("B"), None, None]);
    let context = session(Arc::new(data.clone()), 1);
    register_rows(&context, "x_rows", data.rows(1, true), 1);
    register_rows(&context, "x", vec![data.dense()], 1);
    let ok = by_obs(false);
    for sql in [
        format!("SELECT moments(idx, arrow_cast(make_array(1e200, 2e200), 'List(non-null Float64)'), block, '{ok}') FROM x_rows"),
        format!("SELECT cell_moments(cell, value * 1e200, '{ok}', NULL) FROM x"),
    ] {
        let error = run(&context, &sql).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{sql}: {error}");
        assert!(error.to_string().contains("finite moments"), "{sql}: {error}");
    }
}

#[tokio::test]
async fn t_tests_in_sql() {
    let data = Data::new(vec![vec![1, 0, 3, 4, 9, 8, 7]], vec![Some("B"), Some("B"), Some("NK"), Some("NK"), None, Some("B"), None]);
    let context = session(Arc::new(data.clone()), 1);
    register_rows(&context, "x_rows", data.rows(1, false), 1);
    let sql = format!(
        "SELECT t_test(m, 'B', reference, method) AS t FROM (SELECT gene, moments(idx, val, block, '{}') AS m FROM x_rows GROUP BY gene) CROSS JOIN (VALUES ('rest', 't-test'), ('NK', 'student'), (NULL, 'student')) AS v (reference, method) ORDER BY reference DESC NULLS LAST",
        by_obs(false)
    );
    let rows = run(&context, &sql).await.unwrap();
    let all = datafusion::arrow::compute::concat_batches(&rows[0].schema(), &rows).unwrap();
    let t = all.column(0).as_struct();
    let number = |name: &str, row: usize| t.column_by_name(name).unwrap().as_primitive::<Float64Type>().value(row);
    // scipy.stats.ttest_ind([1, 0, 8], [3, 4, 9, 7], equal_var=False), ttest_ind([1, 0, 8], [3, 4])
    assert!((number("score", 0) - -0.958_638_274_727_309_2).abs() < 1e-12, "{}", number("score", 0));
    assert!((number("pval", 0) - 0.404_693_043_361_868_1).abs() < 1e-12, "{}", number("pval", 0));
    assert!((number("score", 1) - -0.152_894_157_431_287_67).abs() < 1e-12, "{}", number("score", 1));
    assert!((number("pval", 1) - 0.888_186_507_545_743_4).abs() < 1e-12, "{}", number("pval", 1));
    assert_eq!((number("df", 1), number("mean_group", 1), number("pct_nz_group", 0), number("pct_nz_reference", 0)), (3.0, 3.0, 2.0 / 3.0, 1.0));
    assert!(t.is_null(2));
    for (call, what, kind) in [
        ("t_test(m, 'T', 'rest', 't-test')", "\"T\"", Kind::NotFound),
        ("t_test(m, 'B', 'T', 't-test')", "\"NK\"", Kind::NotFound),
        ("t_test(m, 'B', 'rest', 'wilcoxon')", "wilcoxon", Kind::Invalid),
        ("t_test(gene, 'B', 'rest', 't-test')", "t_test", Kind::Invalid),
    ] {
        let error = run(&context, &format!("SELECT {call} FROM (SELECT gene, moments(idx, val, block, '{}') AS m FROM x_rows GROUP BY gene)", by_obs(false)))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{call}: {error}");
        assert!(error.to_string().contains(what), "{call}: {error}");
    }
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    let data = Data::new(vec![vec![1, 2], vec![0, 1]], vec![Some("B"), None]);
    let context = session(Arc::new(data.clone()), 1);
    register_rows(&context, "x_rows", data.rows(9, false), 1);
    register_rows(&context, "x", vec![data.dense()], 1);
    let of = |column: &str| spec(Groups::Obs { column: column.into() }, false);
    let ok = by_obs(false);
    for (call, from, kind, what) in [
        (format!("moments(idx, val, block, '{}')", of("nope")), "x_rows", Kind::NotFound, "\"nope\""),
        (format!("moments(idx, val, block, '{}')", of("short")), "x_rows", Kind::Corrupt, "short"),
        ("moments(idx, val, block, 'cell_type')".into(), "x_rows", Kind::Invalid, "spec"),
        ("moments(idx, val, block, NULL)".into(), "x_rows", Kind::Invalid, "moments"),
        ("moments(idx, val, block, gene)".into(), "x_rows", Kind::Invalid, "text"),
        (format!("moments(idx, val, block + 1, '{ok}')"), "x_rows", Kind::Invalid, "moments"),
        (format!("moments(idx, val, CAST(7 AS INT UNSIGNED), '{ok}')"), "x_rows", Kind::Corrupt, "block 7"),
        (format!("moments(val, val, block, '{ok}')"), "x_rows", Kind::Invalid, "UInt32"),
        (format!("moments(DISTINCT idx, val, block, '{ok}')"), "x_rows", Kind::Invalid, "DISTINCT"),
        ("cell_moments(cell, value, 'cell_type', NULL)".into(), "x", Kind::Unsupported, "dense view"),
        (format!("cell_moments(cell, value, '{ok}', 'log2')"), "x", Kind::Invalid, "log2"),
        (format!("cell_moments(gene, value, '{ok}', NULL)"), "x", Kind::NotFound, "gene 0"),
        (format!("cell_moments(cell, -value, '{ok}', 'log1p_cp10k')"), "x", Kind::Invalid, "cell 0"),
    ] {
        let error = run(&context, &format!("SELECT gene, {call} FROM {from} GROUP BY gene")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{call}: {error}");
        assert!(error.to_string().contains(what), "{call}: {error}");
    }
}

#[tokio::test]
async fn cells_that_share_a_name_need_the_sparse_rows() {
    let mut data = Data::new(vec![vec![1, 2, 3]], vec![Some("B"), None, None]);
    data.names[2] = "cell 0".into();
    let context = session(Arc::new(data.clone()), 1);
    register_rows(&context, "x", vec![data.dense()], 1);
    let error = run(&context, &format!("SELECT gene, cell_moments(cell, value, '{}', NULL) FROM x GROUP BY gene", by_obs(false))).await.unwrap_err();
    assert!(error.to_string().contains("\"cell 0\""), "{error}");
}
