use arrow::array::{BinaryBuilder, StringViewArray};
use skytether_common::Kind;

use super::*;

fn names(of: &[&str]) -> Arc<[String]> {
    of.iter().map(|n| (*n).to_owned()).collect()
}

fn m(n: u64, nnz: u64, mean: f64, m2: f64) -> GroupMoments {
    GroupMoments { n, nnz, mean, m2 }
}

fn store(of: &[&str], rows: &[&[GroupMoments]]) -> MomentStore {
    let mut store = MomentStore::default();
    store.reserve(&names(of), rows.len()).unwrap();
    for (row, groups) in rows.iter().enumerate() {
        for (group, moments) in groups.iter().enumerate() {
            store.merge(row, group, moments);
        }
    }
    store
}

/// Row by row the groups' names and moments of a result.
fn rows(result: &ArrayRef) -> Vec<Vec<(Option<String>, GroupMoments)>> {
    let results = Results::open(result.as_ref()).unwrap();
    (0..result.len()).map(|row| results.range(row).map(|at| (results.name(at).map(str::to_owned), results.moments(at))).collect()).collect()
}

fn named(of: &[Option<&str>], moments: &[GroupMoments]) -> Vec<(Option<String>, GroupMoments)> {
    of.iter().map(|n| n.map(str::to_owned)).zip(moments.iter().copied()).collect()
}

#[test]
fn states_of_different_groups_merge_by_name() {
    let (a, b, rest, c) = (m(4, 2, 1.0, 3.0), m(5, 5, 2.0, 1.0), m(6, 0, 0.0, 0.0), m(7, 1, 0.5, 0.25));
    let first = store(&["a", "b"], &[&[a, b, rest], &[b, a, rest]]).state(EmitTo::All, 2).unwrap();
    let second = store(&["c", "a"], &[&[c, b, rest]]).state(EmitTo::All, 1).unwrap();
    let mut merged = MomentStore::default();
    merged.merge_states(&first, &[0, 1], 2).unwrap();
    // A row that only now begins, and one that is there.
    merged.merge_states(&second, &[2], 3).unwrap();
    merged.merge_states(&second, &[0], 3).unwrap();
    // The first groups again, after the store was widened: their places have not moved, that of the cells in none has.
    merged.merge_states(&first, &[1, 2], 3).unwrap();
    let none = GroupMoments::default();
    let of = [Some("a"), Some("b"), Some("c"), None];
    let expected = [[a.merged(&b), b, c, rest.merged(&rest)], [b.merged(&a), a.merged(&b), none, rest.merged(&rest)], [b.merged(&b), a, c, rest.merged(&rest)]];
    assert_eq!(rows(&merged.result(EmitTo::All, 3).unwrap()), expected.map(|e| named(&of, &e)));
}

#[test]
fn one_batch_of_states_of_different_groups() {
    let (a, rest) = (m(4, 2, 1.0, 3.0), m(2, 1, 0.5, 0.5));
    let parts = [
        store(&["a"], &[&[a, rest], &[a, rest]]).state(EmitTo::All, 2).unwrap(),
        store(&["z", "a"], &[&[a, rest, rest]]).state(EmitTo::All, 1).unwrap(),
        MomentStore::default().state(EmitTo::All, 1).unwrap(),
        store(&["a"], &[&[rest, a]]).state(EmitTo::All, 1).unwrap(),
    ];
    let columns: Vec<ArrayRef> = (0..2).map(|c| arrow::compute::concat(&parts.iter().map(|p| p[c].as_ref()).collect::<Vec<_>>()).unwrap()).collect();
    let mut merged = MomentStore::default();
    merged.merge_states(&columns, &[0, 1, 1, 2, 0], 3).unwrap();
    let (of, none) = ([Some("a"), Some("z"), None], GroupMoments::default());
    let expected = [[a.merged(&rest), none, rest.merged(&a)], [a.merged(&rest), a, rest.merged(&rest)], [none; 3]];
    assert_eq!(rows(&merged.result(EmitTo::All, 3).unwrap()), expected.map(|e| named(&of, &e)));
}

#[test]
fn emitting_the_first_rows_keeps_the_others() {
    let gene = |i: u64| [m(9, i, i as f64 / 9.0, i as f64), m(5 + i, 0, 0.0, 0.0)];
    let genes: Vec<[GroupMoments; 2]> = (0..7).map(gene).collect();
    let all: Vec<&[GroupMoments]> = genes.iter().map(|g| &g[..]).collect();
    let of = [Some("a"), None];
    let mut one = store(&["a"], &all);
    assert_eq!(rows(&one.result(EmitTo::First(3), 7).unwrap()), genes[..3].iter().map(|g| named(&of, g)).collect::<Vec<_>>());
    // Rows move up; new ones may come behind them.
    one.reserve(&names(&["a"]), 5).unwrap();
    one.merge(4, 0, &genes[1][0]);
    assert_eq!(rows(&one.result(EmitTo::First(1), 5).unwrap()), [named(&of, &genes[3])]);
    assert_eq!(rows(&one.result(EmitTo::All, 4).unwrap())[2..], [named(&of, &genes[6]), named(&of, &[genes[1][0], GroupMoments::default()])]);

    let mut parts = store(&["a"], &all);
    let mut merged = MomentStore::default();
    let first = parts.state(EmitTo::First(2), 7).unwrap();
    let rest = parts.state(EmitTo::All, 5).unwrap();
    assert_eq!((first[0].len(), rest[0].len(), rest[1].len()), (2, 5, 5));
    merged.merge_states(&first, &[0, 1], 7).unwrap();
    merged.merge_states(&rest, &[2, 3, 4, 5, 6], 7).unwrap();
    assert_eq!(rows(&merged.result(EmitTo::All, 7).unwrap()), genes.iter().map(|g| named(&of, g)).collect::<Vec<_>>());
    assert_eq!(rows(&merged.result(EmitTo::All, 0).unwrap()).len(), 0);
}

#[test]
fn groups_in_which_a_gene_is_absent_take_a_bit() {
    let absent = m(1000, 0, 0.0, 0.0);
    let mut row = vec![absent; 12];
    row[4] = GroupMoments::of_sums(1000, 1, 2.5, 6.25);
    row[7] = m(1000, 200, 0.1, 90.0);
    let of: Vec<String> = (0..11).map(|g| format!("group {g}")).collect();
    let refs: Vec<&str> = of.iter().map(String::as_str).collect();
    let genes = vec![&row[..]; 1000];
    let state = store(&refs, &genes).state(EmitTo::All, 1000).unwrap();
    assert_eq!(state[1].as_binary::<i32>().value_data().len(), 1000 * (2 + 5 + 18));
    let views = state[0].as_string_view();
    assert!(views.data_buffers().iter().map(|b| b.len()).sum::<usize>() < 300);
    let mut merged = MomentStore::default();
    merged.merge_states(&state, &(0..1000).collect::<Vec<_>>(), 1000).unwrap();
    assert!(rows(&merged.result(EmitTo::All, 1000).unwrap()).iter().all(|r| r.iter().map(|e| e.1).collect::<Vec<_>>() == row));
}

#[test]
fn more_moments_than_memory_are_refused_before_they_are_made() {
    let wide: Arc<[String]> = (0..60_000).map(|g| g.to_string()).collect();
    let mut store = MomentStore::default();
    let error = store.reserve(&wide, 30_000).unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted);
    assert!(error.to_string().contains("fewer groups"), "{error}");
    assert!(store.size() < 10 << 20, "{}", store.size());
    // The same where groups come later.
    let mut store = MomentStore::default();
    store.reserve(&names(&["a"]), 30_000).unwrap();
    assert_eq!(store.reserve(&wide, 30_000).unwrap_err().kind(), Kind::Exhausted);
}

#[test]
fn moments_that_overflow_when_merged_are_refused() {
    let mut store = store(&["a"], &[&[m(2, 2, 1e155, 0.0), m(1, 0, 0.0, 0.0)]]);
    store.merge(0, 0, &m(2, 2, -1e155, 0.0));
    let error = store.result(EmitTo::All, 1).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("\"a\""), "{error}");
}

#[test]
fn hostile_states_are_refused() {
    let columns = |groups: Option<&str>, moments: Option<&[u8]>| -> Vec<ArrayRef> {
        let mut bytes = BinaryBuilder::new();
        bytes.append_option(moments);
        vec![Arc::new(StringViewArray::from(vec![groups])), Arc::new(bytes.finish())]
    };
    let refused = |columns: &[ArrayRef]| MomentStore::default().merge_states(columns, &[0], 1).unwrap_err();
    let header = r#"{"groups":["a"],"n":[3,4]}"#;
    let good: Vec<u8> = [&[1, 2][..], &1f64.to_le_bytes(), &2f64.to_le_bytes()].concat();
    MomentStore::default().merge_states(&columns(Some(header), Some(&good)), &[0], 1).unwrap();
    // Nothing was aggregated, whatever the bytes.
    MomentStore::default().merge_states(&columns(None, None), &[0], 1).unwrap();
    let huge = [&[1][..], &[0xff; 12]].concat();
    let more_nonzeros = [&[1, 4][..], &good[2..]].concat();
    for (groups, moments) in [
        (header, Some(&good[..5])),
        (header, Some(&[][..])),
        (header, None),
        (header, Some(&[0b101][..])),
        (header, Some(&huge[..])),
        (header, Some(&more_nonzeros[..])),
        (header, Some(&[0, 0][..])),
        ("", Some(&good[..])),
        ("{}", Some(&good[..])),
        (r#"{"groups":["a"],"n":[3]}"#, Some(&good[..])),
        (r#"{"groups":[],"n":[1,2]}"#, Some(&good[..])),
        (r#"{"groups":["a","a"],"n":[3,4,5]}"#, Some(&good[..])),
        (r#"{"groups":["a"],"n":[-3,4]}"#, Some(&good[..])),
        (r#"{"groups":["a"],"n":[3,4],"more":1}"#, Some(&good[..])),
    ] {
        assert_eq!(refused(&columns(Some(groups), moments)).kind(), Kind::Invalid, "{groups} {moments:?}");
    }
    let [groups, bytes] = &columns(Some(header), Some(&good))[..] else { unreachable!() };
    for wrong in [vec![], vec![Arc::clone(groups)], vec![Arc::clone(bytes), Arc::clone(groups)], vec![Arc::clone(groups), Arc::clone(groups)]] {
        assert_eq!(refused(&wrong).kind(), Kind::Invalid);
    }
    // A few bytes must not become terabytes.
    let wide = HeaderText { groups: &(0..MAX_GROUPS).map(|g| g.to_string()).collect::<Vec<_>>(), n: &vec![1; MAX_GROUPS + 1] };
    let wide = columns(Some(&serde_json::to_string(&wide).unwrap()), Some(&vec![0; MAX_GROUPS.div_ceil(8)]));
    assert_eq!(MomentStore::default().merge_states(&wide, &[0], 1 << 20).unwrap_err().kind(), Kind::Exhausted);
}
