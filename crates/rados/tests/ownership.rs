//! One process has a fleet; what another one left behind is found and removed.

use skytether_common::Kind;
use skytether_store::SliceStore;

use crate::cluster::{key, put, store, with_cluster};

#[test]
fn second_opener_is_refused_and_names_the_holder() {
    with_cluster("ownership::second_opener_is_refused_and_names_the_holder", |cluster| {
        let first = cluster.fleet("index");
        assert!(first.new && first.kept == "pool index keeps 3 copies", "{}", first.kept);
        let error = skytether_rados::open(&cluster.address("index", ""), None).unwrap_err();
        assert!(error.kind() == Kind::Conflict && error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        store(&first).apply(vec![put("a", "1")]).unwrap();
        drop(first);
        let again = skytether_rados::open(&cluster.address("index", ""), None).unwrap();
        assert!(!again.new);
        assert_eq!(store(&again).get(&key("a")).unwrap().as_ref(), b"1");
    });
}

#[test]
fn displaced_owner_changes_nothing_and_may_read() {
    with_cluster("ownership::displaced_owner_changes_nothing_and_may_read", |cluster| {
        let old = cluster.fleet("index");
        let before = store(&old);
        before.apply(vec![put("a", "old"), put("b", "stays")]).unwrap();
        // As after a network that kept the first process away until its lock ran out.
        drop(old);
        let new = cluster.fleet("index");
        store(&new).apply(vec![put("a", "new")]).unwrap();
        for batch in [vec![put("a", "late")], vec![put("c", vec![7; 100_000])]] {
            let error = before.apply(batch).unwrap_err();
            assert!(error.kind() == Kind::Conflict && error.to_string().contains("another process"), "{error}");
        }
        for one in [&before, &store(&new)] {
            assert_eq!((one.get(&key("a")).unwrap().as_ref(), one.get(&key("b")).unwrap().as_ref()), (&b"new"[..], &b"stays"[..]));
            assert_eq!(one.stat(&key("c")).unwrap(), None);
        }
        drop(before);
        store(&new).apply(vec![put("d", "1")]).unwrap();
        assert_eq!(cluster.values("index"), 3, "{:?}", cluster.objects("index"));
    });
}

#[test]
fn next_owner_removes_what_a_dead_one_left() {
    with_cluster("ownership::next_owner_removes_what_a_dead_one_left", |cluster| {
        let fleet = cluster.fleet("index");
        let dead = store(&fleet);
        dead.apply(vec![put("a", "1"), put("b", "2"), put("c", "3")]).unwrap();
        drop(fleet);
        // The next process takes over while the first is in the middle of a batch: its values are there, and no rows.
        let writing = dead.clone();
        let taken = cluster.fleet("index");
        assert_eq!(writing.apply(vec![put("late", vec![1; 50_000])]).unwrap_err().kind(), Kind::Conflict);
        store(&taken).apply(vec![put("a", "again")]).unwrap();
        assert_eq!(cluster.values("index"), 3);
        // An owner that ends without closing leaves numbers that are reserved, and garbage of its last batch.
        std::mem::forget(store(&taken));
        drop(taken);
        let next = cluster.fleet("index");
        let all: Vec<String> = store(&next).list("", None, 10).unwrap().into_iter().map(|entry| entry.key.to_string()).collect();
        assert_eq!((all, cluster.values("index")), (vec!["a".to_owned(), "b".into(), "c".into()], 3));
    });
}
