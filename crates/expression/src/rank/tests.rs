use arrow::array::AsArray;
use arrow::datatypes::UInt32Type;
use datafusion::logical_expr::EmitTo;
use proptest::prelude::*;
use skytether_common::Kind;

use super::*;
use crate::store::MomentStore;
use crate::ttest::{GroupMoments, t_test};

/// The groups' rows in one batch.
fn together(batches: Vec<RecordBatch>) -> RecordBatch {
    arrow::compute::concat_batches(&ranking_schema(), &batches).unwrap()
}

fn rank_genes(batches: &[RecordBatch], options: &RankOptions) -> Result<RecordBatch> {
    super::rank_genes(batches, options).map(together)
}

/// A batch of genes, each with the moments of the groups `names` and of the cells in none.
fn batch(names: &[&str], first_gene: u32, genes: &[Vec<GroupMoments>]) -> RecordBatch {
    let names: Arc<[String]> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut store = MomentStore::default();
    store.reserve(&names, genes.len()).unwrap();
    for (row, gene) in genes.iter().enumerate() {
        for (group, m) in gene.iter().enumerate() {
            store.merge(row, group, m);
        }
    }
    let moments = store.result(EmitTo::All, genes.len()).unwrap();
    let ids: Vec<u32> = (first_gene..).take(genes.len()).collect();
    let gene = StringViewArray::from_iter_values(ids.iter().map(|i| format!("gene {i} with a long name")));
    RecordBatch::try_from_iter([("gene_id", Arc::new(UInt32Array::from(ids)) as ArrayRef), ("gene", Arc::new(gene)), ("moments", moments)]).unwrap()
}

fn m(n: u64, mean: f64, m2: f64) -> GroupMoments {
    GroupMoments { n, nnz: n / 2, mean, m2 }
}

fn column(batch: &RecordBatch, name: &str) -> Vec<f64> {
    batch.column_by_name(name).unwrap().as_primitive::<arrow::datatypes::Float64Type>().values().to_vec()
}

fn ids(batch: &RecordBatch) -> Vec<u32> {
    batch.column_by_name("gene_id").unwrap().as_primitive::<UInt32Type>().values().to_vec()
}

fn groups(batch: &RecordBatch) -> Vec<String> {
    batch.column_by_name("group").unwrap().as_string_view().iter().map(|g| g.unwrap().to_owned()).collect()
}

#[test]
fn highest_scores_first_and_ties_in_input_order() {
    // Group a against b: gene 0 lower, 1 and 2 equal in all respects, 3 without variance but
    // higher, 4 without anything.
    let genes = [
        vec![m(5, 0.5, 2.0), m(5, 1.0, 2.0), m(0, 0.0, 0.0)],
        vec![m(5, 2.0, 1.0), m(5, 1.0, 1.0), m(0, 0.0, 0.0)],
        vec![m(5, 2.0, 1.0), m(5, 1.0, 1.0), m(0, 0.0, 0.0)],
        vec![m(5, 2.0, 0.0), m(5, 1.0, 0.0), m(0, 0.0, 0.0)],
        vec![m(5, 0.0, 0.0), m(5, 0.0, 0.0), m(0, 0.0, 0.0)],
    ];
    let batches = [batch(&["a", "b"], 0, &genes[..2]), batch(&["a", "b"], 2, &genes[2..])];
    let ranked = rank_genes(&batches, &RankOptions::default()).unwrap();
    assert_eq!(groups(&ranked), [["a"; 5], ["b"; 5]].concat());
    assert_eq!(ids(&ranked), [3, 1, 2, 4, 0, 0, 4, 1, 2, 3]);
    let scores = column(&ranked, "scores");
    assert_eq!((scores[0], scores[3], scores[9]), (f64::INFINITY, 0.0, f64::NEG_INFINITY));
    assert_eq!((column(&ranked, "pvals")[0], column(&ranked, "pvals")[3]), (0.0, 1.0));
    let names = ranked.column_by_name("names").unwrap().as_string_view();
    assert_eq!(names.value(1), "gene 1 with a long name");

    let two = rank_genes(&batches, &RankOptions { n_genes: Some(2), ..RankOptions::default() }).unwrap();
    assert_eq!(ids(&two), [3, 1, 0, 4]);
    assert_eq!(column(&two, "pvals_adj"), [0, 1, 5, 6].map(|i| column(&ranked, "pvals_adj")[i]));
}

#[test]
fn groups_and_references_as_asked() {
    let genes = vec![vec![m(5, 1.0, 1.0), m(6, 2.0, 1.0), m(7, 3.0, 1.0), m(8, 9.0, 1.0)]; 3];
    let batches = [batch(&["a", "b", "c"], 0, &genes)];
    let run = |groups: Option<&[&str]>, reference| {
        rank_genes(&batches, &RankOptions { groups: groups.map(|g| g.iter().map(|s| (*s).to_owned()).collect()), reference, ..RankOptions::default() })
    };
    let against_b = run(None, Reference::Group("b".into())).unwrap();
    assert_eq!(groups(&against_b), ["a", "a", "a", "c", "c", "c"]);
    let expected = t_test(Method::Welch, &genes[0][0], &genes[0][1], "a", "b").unwrap();
    assert_eq!((column(&against_b, "scores")[0], column(&against_b, "pvals")[0]), (expected.t, expected.p));
    assert_eq!(groups(&run(Some(&["c", "a"]), Reference::Rest).unwrap())[2..4], ["c", "a"]);
    let sorted = column(&run(Some(&["a", "c"]), Reference::Rest).unwrap(), "scores");
    let turned = column(&run(Some(&["c", "a"]), Reference::Rest).unwrap(), "scores");
    assert!((sorted[0] - turned[3]).abs() < 1e-12 && (sorted[3] - turned[0]).abs() < 1e-12);
    for (groups, reference) in [(Some(&["nope"][..]), Reference::Rest), (None, Reference::Group("nope".into()))] {
        let error = run(groups, reference).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("\"nope\"") && error.to_string().contains("\"a\", \"b\", \"c\""), "{error}");
    }
    let twice = run(Some(&["a", "c", "c"]), Reference::Rest).unwrap_err();
    assert_eq!(twice.kind(), Kind::Invalid);
    assert!(twice.to_string().contains("\"c\""), "{twice}");
}

#[test]
fn untestable_groups_are_refused() {
    let lone = [batch(&["big", "lone"], 0, &[vec![m(5, 1.0, 1.0), m(1, 2.0, 0.0), m(3, 0.0, 0.0)]])];
    assert!(rank_genes(&lone, &RankOptions::default()).unwrap_err().to_string().contains("\"lone\""));
    assert!(rank_genes(&lone, &RankOptions { groups: Some(vec!["big".into()]), ..RankOptions::default() }).is_ok());
    let all = [batch(&["all"], 0, &[vec![m(5, 1.0, 1.0), m(0, 0.0, 0.0)]])];
    assert!(rank_genes(&all, &RankOptions::default()).unwrap_err().to_string().contains("rest"));
    let gene = vec![m(5, 1.0, 1.0), m(5, 2.0, 1.0), m(5, 0.0, 0.0)];
    let mixed = [batch(&["a", "b"], 0, std::slice::from_ref(&gene)), batch(&["a", "c"], 1, &[gene.clone(), gene.clone()])];
    assert_eq!(rank_genes(&mixed, &RankOptions::default()).unwrap_err().kind(), Kind::Invalid);
    let without = mixed[0].project(&[0, 1]).unwrap();
    assert!(rank_genes(&[without], &RankOptions::default()).unwrap_err().to_string().contains("moments"));
    assert_eq!(rank_genes(&[], &RankOptions::default()).unwrap().num_rows(), 0);
    assert_eq!(rank_genes(&[batch(&["a", "b"], 0, &[])], &RankOptions::default()).unwrap().num_rows(), 0);
}

#[test]
fn corrections_by_hand() {
    let p = [0.01, 0.04, 0.03, 0.02, 1.0];
    let close = |a: Vec<f64>, b: [f64; 5]| assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-15), "{a:?}");
    // Sorted: .01 .02 .03 .04 1, times 5 / rank: .05 .05 .05 .05 1.
    close(corrected(&p, Correction::BenjaminiHochberg), [0.05, 0.05, 0.05, 0.05, 1.0]);
    close(corrected(&p, Correction::Bonferroni), [0.05, 0.2, 0.15, 0.1, 1.0]);
    assert!(corrected(&[], Correction::BenjaminiHochberg).is_empty());
}

fn group() -> impl Strategy<Value = GroupMoments> {
    (2u64..50, 0f64..9.0, 0f64..30.0).prop_map(|(n, mean, m2)| m(n, mean, m2))
}

proptest! {
    #[test]
    fn the_rest_is_all_others((width, genes) in (1usize..7).prop_flat_map(|w| (Just(w), prop::collection::vec(prop::collection::vec(group(), w + 1), 1..30)))) {
        let names: Vec<String> = (0..width).map(|g| format!("g{g}")).collect();
        let refs: Vec<&str> = names.iter().map(String::as_str).collect();
        let ranked = rank_genes(&[batch(&refs, 0, &genes)], &RankOptions::default()).unwrap();
        let (ids, groups, scores, p, adjusted) = (ids(&ranked), groups(&ranked), column(&ranked, "scores"), column(&ranked, "pvals"), column(&ranked, "pvals_adj"));
        for i in 0..ranked.num_rows() {
            let g = names.iter().position(|n| *n == groups[i]).unwrap();
            let gene = &genes[ids[i] as usize];
            let rest = (0..=width).filter(|o| *o != g).fold(GroupMoments::default(), |sum, o| sum.merged(&gene[o]));
            let expected = t_test(Method::Welch, &gene[g], &rest, "", "").unwrap();
            prop_assert!((scores[i] - expected.t).abs() <= 1e-9 * expected.t.abs().max(1.0));
            // Benjamini-Hochberg by its definition.
            let of_group: Vec<f64> = (0..ranked.num_rows()).filter(|j| groups[*j] == groups[i]).map(|j| p[j]).collect();
            let least = of_group.iter().filter(|q| **q >= p[i]).map(|q| q * of_group.len() as f64 / of_group.iter().filter(|o| *o <= q).count() as f64).fold(1.0, f64::min);
            prop_assert!((adjusted[i] - least).abs() <= 1e-12);
            prop_assert!(i == 0 || groups[i] != groups[i - 1] || scores[i] <= scores[i - 1]);
        }
    }
}

#[test]
fn threads_change_nothing() {
    let width = 12;
    let genes: Vec<Vec<GroupMoments>> = (0..20_000u32)
        .map(|i| {
            (0..=width).map(|g| m(4000 + u64::from(g), f64::from((i * 7919 + g * 104_729) % 1000) * 1e-3, 50.0 + f64::from((i * 31 + g * 17) % 97))).collect()
        })
        .collect();
    let names: Vec<String> = (0..width).map(|g| format!("group {g}")).collect();
    let refs: Vec<&str> = names.iter().map(String::as_str).collect();
    let batches: Vec<RecordBatch> = genes.chunks(8192).enumerate().map(|(i, g)| batch(&refs, i as u32 * 8192, g)).collect();
    for options in [RankOptions::default(), RankOptions { n_genes: Some(777), ..RankOptions::default() }] {
        let on = |threads: usize| together(rank_on(&batches, &options, |_| threads).unwrap());
        let one = on(1);
        assert_eq!(one.num_rows(), options.n_genes.unwrap_or(20_000) * width as usize);
        // Every column; no number is NaN, so that equal is the same.
        assert_eq!(one, on(4));
        assert_eq!(one, on(7));
        // Nor does it change anything which groups are tested at the same time, but for the order in
        // which the rest is added up.
        let last = rank_on(&batches, &RankOptions { groups: Some(vec![names[11].clone()]), ..options.clone() }, |_| 3).unwrap()[0].clone();
        let start = one.num_rows() / width as usize * 11;
        assert_eq!(ids(&one)[start..], ids(&last));
    }
}
