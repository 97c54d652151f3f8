use arrow::datatypes::Float64Type;
use proptest::prelude::*;
use skytether_common::Kind;

use super::*;

/// What is asked of `cells` per group, in `blocks` blocks of one cell.
fn asked(cells: &[u64], among: Among, blocks: u32) -> Arc<Asked> {
    Arc::new(Asked { cells: cells.to_vec(), among, all: blocks })
}

fn keys(values: &[(f64, u16)]) -> Vec<u64> {
    values.iter().map(|&(v, g)| Ranked::new(v, g)).collect()
}

/// A store with room for `genes` genes.
fn room(genes: usize) -> RankStore {
    let mut store = RankStore::default();
    store.genes.resize_with(genes, Gene::default);
    store
}

/// The sums of each gene.
fn results(store: &mut RankStore, genes: usize) -> Vec<Vec<(f64, f64)>> {
    let lists = store.finished(genes).unwrap();
    let lists = lists.as_list::<i32>();
    (0..genes)
        .map(|gene| {
            let entries = lists.value(gene);
            let part = |at: usize| entries.as_struct().column(at).as_primitive::<Float64Type>().values().to_vec();
            part(0).into_iter().zip(part(1)).collect()
        })
        .collect()
}

/// Ranks of one block, which the sums of several blocks must equal.
fn at_once(values: &[(f64, u16)], cells: &[u64], among: Among) -> Vec<(f64, f64)> {
    Midranks::default().sums(&mut keys(values), cells, among).iter().map(|s| (s.sum, s.ties)).collect()
}

#[test]
fn blocks_in_any_order_and_states_give_the_sums_of_one() {
    let values = [(1.5, 0), (1.5, 2), (-3.0, 1), (2.0, 1), (1.5, 1), (7.0, 0), (2.0, 2)];
    let cells = [4, 5, 6];
    for among in [Among::All, Among::With(1)] {
        let wanted = at_once(&values, &cells, among);
        let of = asked(&cells, among, 3);
        for split in [[0, 3], [2, 2], [7, 7]] {
            let parts = [&values[..split[0]], &values[split[0]..split[1]], &values[split[1]..]];
            for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
                // In one accumulator.
                let mut whole = room(1);
                order.iter().for_each(|&part| whole.add(0, &of, 1, &mut keys(parts[part])).unwrap());
                assert!(matches!(whole.genes[0], Gene::Done(_)));
                assert_eq!(results(&mut whole, 1), std::slice::from_ref(&wanted));
                // In two, whose states meet in a third.
                let (mut one, mut two, mut both) = (room(1), room(1), room(0));
                one.add(0, &of, 1, &mut keys(parts[order[0]])).unwrap();
                order[1..].iter().for_each(|&part| two.add(0, &of, 1, &mut keys(parts[part])).unwrap());
                for state in [one.state(EmitTo::All, 1).unwrap(), two.state(EmitTo::All, 1).unwrap()] {
                    both.merge_states(&state, &[0], 1).unwrap();
                }
                assert_eq!(results(&mut both, 1), std::slice::from_ref(&wanted));
            }
        }
    }
}

#[test]
fn part_of_a_gene_is_refused_as_a_result() {
    let of = asked(&[2, 2], Among::All, 2);
    let mut store = room(1);
    store.add(0, &of, 1, &mut keys(&[(1.0, 0)])).unwrap();
    let error = store.finished(1).unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("1 of the 2 cells"), "{error}");
}

#[test]
fn rows_that_come_twice_are_refused() {
    for blocks in [1, 2] {
        let of = asked(&[2, 2], Among::All, blocks);
        let mut store = room(1);
        (0..blocks).for_each(|_| store.add(0, &of, 1, &mut keys(&[(1.0, 0)])).unwrap());
        assert!(store.add(0, &of, 1, &mut keys(&[])).unwrap_err().to_string().contains("group by gene_id"));
    }
    // More values than cells.
    let mut store = room(1);
    assert!(store.add(0, &asked(&[1], Among::All, 2), 1, &mut keys(&[(1.0, 0), (2.0, 0)])).is_err());
}

#[test]
fn memory_of_kept_keys_is_counted_and_given_back() {
    let of = asked(&[100_000, 0], Among::All, 2);
    let mut store = room(1);
    let before = Store::size(&store);
    let many: Vec<(f64, u16)> = (0..10_000).map(|i| (f64::from(i) + 1.0, 0)).collect();
    store.add(0, &of, 1, &mut keys(&many)).unwrap();
    assert!(Store::size(&store) >= before + 60_000);
    store.add(0, &of, 1, &mut keys(&[])).unwrap();
    assert!(store.bytes < 1000, "{}", store.bytes);
    store.state(EmitTo::All, 1).unwrap();
    assert_eq!(store.bytes, 0);
}

#[test]
fn first_genes_leave_and_the_others_move_up() {
    let of = asked(&[3], Among::All, 1);
    let mut store = room(3);
    (0..3).for_each(|gene| store.add(gene, &of, 1, &mut keys(&[(1.0 + gene as f64, 0)])).unwrap());
    let state = store.state(EmitTo::First(2), 3).unwrap();
    assert_eq!((state[0].len(), store.genes.len()), (2, 1));
    assert_eq!(results(&mut store, 1), [at_once(&[(3.0, 0)], &[3], Among::All)]);
}

#[test]
fn hostile_states_are_refused_by_their_kind() {
    let of = asked(&[2, 2], Among::With(1), 3);
    let mut store = room(1);
    store.add(0, &of, 1, &mut keys(&[(1.0, 0), (2.0, 1)])).unwrap();
    let state = store.state(EmitTo::All, 1).unwrap();
    let good = state[0].as_binary::<i32>().value(0).to_vec();
    let merge = |bytes: &[u8]| RankStore::default().merge_states(&[Arc::new(BinaryArray::from(vec![bytes])) as ArrayRef], &[0], 1);
    merge(&good).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    // The form, the reference, the blocks, those that were seen, the groups, a cell count, a key's group.
    for (at, to) in [(0, 9), (1, 7), (5, 1), (9, 0), (9, 3), (13, 200), (24, 0xff), (33, 5)] {
        assert_eq!(merge(&changed(at, to)).unwrap_err().kind(), Kind::Corrupt, "{at} {to}");
    }
    for end in 1..good.len() - 12 {
        assert!(merge(&good[..end]).is_err(), "{end}");
    }
    assert_eq!(merge(&good[..good.len() - 1]).unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(merge(&[DONE, 0, 0]).unwrap_err().kind(), Kind::Corrupt);
    merge(&[]).unwrap();
}

proptest! {
    #[test]
    fn any_bytes_as_states_give_an_error_or_a_result(bytes in prop::collection::vec(any::<u8>(), 0..80), form in 1u8..4) {
        let state = [&[form], bytes.as_slice()].concat();
        let mut store = RankStore::default();
        let states = [Arc::new(BinaryArray::from(vec![state.as_slice(), state.as_slice()])) as ArrayRef];
        if store.merge_states(&states, &[0, 0], 1).is_ok() {
            let _ = store.finished(1);
        }
    }
}

#[test]
fn spec_survives_as_text() {
    let of = MomentsSpec::from_literal(r#"{"dataset":"a.b","matrix":"x","groups":{"obs":"c"},"transform":null}"#).unwrap();
    let plain = RankSumsSpec { of, against: None, without_last: false, overlap: false };
    for spec in [RankSumsSpec { against: Some("B".into()), overlap: true, ..plain.clone() }, RankSumsSpec { without_last: true, ..plain.clone() }, plain] {
        assert_eq!(RankSumsSpec::from_literal(&spec.to_literal().unwrap()).unwrap(), spec);
    }
    assert!(RankSumsSpec::from_literal(r#"{"of":{"dataset":"a.b","matrix":"x","groups":{"obs":"c"}},"agianst":"B"}"#).is_err());
}
