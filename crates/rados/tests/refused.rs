//! Pools and clusters that can't hold a fleet, and what the errors say.

use std::time::{Duration, Instant};

use skytether_common::Kind;
use skytether_rados::{Address, open};

use crate::cluster::with_cluster;

#[test]
fn pools_that_lose_or_lack_something_are_refused_by_name() {
    with_cluster("refused::pools_that_lose_or_lack_something_are_refused_by_name", |cluster| {
        cluster.tell("pool single 1");
        cluster.tell("coded coded");
        for (place, more, kind, what) in [
            ("single", "", Kind::Invalid, "pool single keeps one copy"),
            ("index", "&data=single", Kind::Invalid, "pool single keeps one copy"),
            ("coded", "", Kind::Invalid, "pool coded is erasure-coded"),
            ("absent", "", Kind::NotFound, "no pool absent"),
            ("index", "&data=absent", Kind::NotFound, "no pool absent"),
        ] {
            let error = open(&cluster.address(place, more), Some(1)).unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains(what), "{place}{more}: {error}");
        }
        for pool in ["single", "index", "coded"] {
            assert_eq!(cluster.objects(pool), Vec::<String>::new());
        }
        let missing = open(&cluster.address("index", ""), None).unwrap_err();
        assert!(missing.kind() == Kind::NotFound && missing.to_string().contains("skytether init"), "{missing}");
        drop(open(&cluster.address("single", "&lossy=allow"), Some(1)).unwrap());
        // Allowed once, for this fleet.
        drop(open(&cluster.address("single", ""), None).unwrap());
        drop(open(&cluster.address("index", "&data=coded"), Some(1)).unwrap());
        let other = open(&cluster.address("index", "&data=index"), None).unwrap_err();
        assert!(other.kind() == Kind::Invalid && other.to_string().contains("pool coded"), "{other}");
    });
}

#[test]
fn cluster_that_is_away_is_an_error_within_the_timeout() {
    with_cluster("refused::cluster_that_is_away_is_an_error_within_the_timeout", |cluster| {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("ceph.conf");
        // A port without a server, and a user without a key.
        for (text, user) in [
            (std::fs::read_to_string(&cluster.conf).unwrap().replace("mon host = [", "mon host = [v2:127.0.0.1:1,v1:127.0.0.1:2] #"), "admin"),
            (std::fs::read_to_string(&cluster.conf).unwrap(), "nobody"),
        ] {
            std::fs::write(&conf, text).unwrap();
            let begun = Instant::now();
            let error = open(&Address::parse(&format!("rados://index?conf={}&timeout=2&user={user}", conf.display())).unwrap(), Some(1)).unwrap_err();
            assert!(matches!(error.kind(), Kind::Unavailable | Kind::Invalid) && error.to_string().contains("rados://index"), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        }
        let absent = open(&Address::parse("rados://index?conf=/nonexistent/ceph.conf").unwrap(), None).unwrap_err();
        assert!(absent.kind() == Kind::NotFound && absent.to_string().contains("/nonexistent/ceph.conf"), "{absent}");
    });
}
