//! The contract of all stores, over a cluster.

use std::sync::atomic::{AtomicUsize, Ordering};

use skytether_common::Result;
use skytether_rados::OpenFleet;
use skytether_store::{SliceStore, StoreLayer, contract};

use crate::cluster::with_cluster;

/// The first drive of a fleet, with the fleet.
#[derive(Debug)]
struct First(OpenFleet);

impl StoreLayer for First {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(self.0.drives[0].store.as_ref())
    }
}

#[test]
fn rados_keeps_the_contract() {
    with_cluster("contract::rados_keeps_the_contract", |cluster| {
        let made = AtomicUsize::new(0);
        contract::check(|| Box::new(First(cluster.fleet(&format!("index/n{}", made.fetch_add(1, Ordering::Relaxed))))));
        assert_eq!(made.into_inner(), 15);
    });
}

#[test]
fn values_in_an_erasure_coded_pool_keep_the_contract() {
    with_cluster("contract::values_in_an_erasure_coded_pool_keep_the_contract", |cluster| {
        cluster.tell("coded coded");
        let made = AtomicUsize::new(0);
        contract::check(|| {
            let at = cluster.address(&format!("index/n{}", made.fetch_add(1, Ordering::Relaxed)), "&data=coded");
            let fleet = skytether_rados::open(&at, Some(1)).unwrap();
            assert!(fleet.kept.contains("erasure-coded"), "{}", fleet.kept);
            Box::new(First(fleet))
        });
        assert!(cluster.values("coded") > 0 && cluster.values("index") == 0);
    });
}
