//! Volumes of a fleet in repairs and resizes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skytether_api::resize_report::ResizeOptions;
use skytether_api::scrub_report::{RepairOptions, ScrubOptions};
use skytether_catalog::records::membership::Founding;
use skytether_cluster::cluster::Cluster;
use skytether_cluster::options::HostOptions;
use skytether_common::{Error, Key, Kind, Result};
use skytether_device::{Cse, Storage, StorageOnly};
use skytether_fleet_volume::FleetBacking;
use skytether_maintenance::Maintenance;
use skytether_recovery::fallback::{Fallback, FallbackExecutor};
use skytether_store::fault::{Fault, FaultStore, Operation, Rule, When};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore};
use skytether_volume::{BlockDevice, Durability, Options, Volume, Volumes};
use uuid::Uuid;

const MIB: usize = 1 << 20;

/// The fleet runs no sub-plans.
#[derive(Debug)]
struct NoEngine;

impl Fallback for NoEngine {
    fn executor(&self, _: Arc<dyn Storage>, _: usize) -> Result<Arc<dyn FallbackExecutor>> {
        Err(Error::unsupported("this cluster runs no sub-plans"))
    }
}

type Store = Arc<FaultStore<MemoryStore>>;

fn blank() -> Store {
    Arc::new(FaultStore::new(MemoryStore::new()))
}

/// A host that begins over these drives.
async fn host(stores: &[Store], redundancy: &str) -> Cluster {
    let drive = |(at, store): (usize, &Store)| {
        Arc::new(StorageOnly::new(Arc::clone(store) as Arc<dyn SliceStore>, Uuid::from_u128(at as u128 + 1), format!("drive-{at}"))) as Arc<dyn Cse>
    };
    let options = HostOptions { redundancy: redundancy.parse().unwrap(), ..HostOptions::default() };
    Cluster::join(stores.iter().enumerate().map(drive).collect(), options, Founding::EmptyDrives, Arc::new(NoEngine)).await.unwrap().0
}

async fn volumes(cluster: &Cluster, journals: &Path) -> (Arc<FleetBacking>, Arc<Volumes>) {
    let backing = Arc::new(FleetBacking::new(cluster.catalog().clone()).unwrap());
    backing.settle().await.unwrap();
    // Reads come to the drives: there is no cache, and those with another directory have no journal.
    let options = Options { extent: 64 << 10, cache_bytes: 1, discard_journal: vec!["a".parse().unwrap()], ..Options::default() };
    (Arc::clone(&backing), Volumes::open(backing, journals, options).await.unwrap())
}

fn content(seed: u8) -> Bytes {
    (0..MIB).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect::<Vec<_>>().into()
}

async fn read(volume: &Volume) -> Bytes {
    volume.read(0, MIB as u32).await.unwrap()
}

fn parts(store: &Store) -> usize {
    store.inner().list("~fext/", None, 10_000).unwrap().len()
}

fn records(store: &Store) -> usize {
    store.inner().list("~fvol/", None, 10_000).unwrap().len()
}

/// Each drive in turn is lost for good, and a blank one takes its place: it gets records and parts again, the volume is
/// read without a decoding, and then another drive may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_is_whole_again_on_a_blank_drive() {
    for (redundancy, drives) in [("ec:2+1", 3), ("replicas:2", 3), ("ec:2+1", 4)] {
        for lost in 0..drives {
            let what = format!("{redundancy} over {drives}, drive {lost}");
            let (mut stores, dir): (Vec<Store>, _) = ((0..drives).map(|_| blank()).collect(), tempfile::tempdir().unwrap());
            let cluster = host(&stores, redundancy).await;
            let (_, open) = volumes(&cluster, dir.path()).await;
            let volume = open.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
            volume.write(0, content(1), Durability::Durable).await.unwrap();
            volume.drain().await.unwrap();
            open.close().await.unwrap();
            drop((volume, open, cluster));
            let had: Vec<(usize, usize)> = stores.iter().map(|store| (parts(store), records(store))).collect();
            assert!(had.iter().all(|(parts, _)| *parts > 0), "{what}: {had:?}");

            stores[lost] = blank();
            let cluster = host(&stores, "none").await;
            let report = Maintenance::new(cluster.clone()).repair(&RepairOptions::default(), &|_| ()).await.unwrap();
            assert!(report.drives == [format!("drive-{lost}")] && report.left.is_empty() && report.lost.is_empty(), "{what}: {report}");
            // What it lacked was written again, on as many drives as before. Homes of records do not change.
            assert_eq!(stores.iter().map(parts).sum::<usize>(), had.iter().map(|had| had.0).sum::<usize>(), "{what}");
            assert!(parts(&stores[lost]) > 0 && records(&stores[lost]) == had[lost].1, "{what}: {} records of {}", records(&stores[lost]), had[lost].1);
            let scrubbed = Maintenance::new(cluster.clone()).scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
            assert!(scrubbed.damaged == 0 && scrubbed.skipped.is_empty(), "{what}: {scrubbed}");

            let other_host = tempfile::tempdir().unwrap();
            let (backing, open) = volumes(&cluster, other_host.path()).await;
            let volume = open.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
            assert!(read(&volume).await == content(1), "{what}");
            assert_eq!(backing.degraded_reads(), 0, "{what}");
            let other = (lost + 1) % drives;
            stores[other].add(Rule::new(Operation::Any, When::From(1), Fault::Fail(Kind::Unavailable)));
            assert!(read(&volume).await == content(1), "{what}, without drive {other}");
            // And it is written without that one.
            volume.write(0, content(2), Durability::Durable).await.unwrap();
            volume.drain().await.unwrap();
            assert!(read(&volume).await == content(2), "{what}, without drive {other}");
            open.close().await.unwrap();
        }
    }
}

/// A repair that finds a part damaged beyond what is left names it, and rebuilds all else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_names_parts_of_volumes_that_are_lost() {
    let (mut stores, dir): (Vec<Store>, _) = ((0..3).map(|_| blank()).collect(), tempfile::tempdir().unwrap());
    let cluster = host(&stores, "ec:2+1").await;
    let (_, open) = volumes(&cluster, dir.path()).await;
    let volume = open.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
    volume.write(0, content(1), Durability::Durable).await.unwrap();
    volume.drain().await.unwrap();
    open.close().await.unwrap();
    drop((volume, open, cluster));
    let damaged: Key = stores[0].inner().list("~fext/a/x/000000000003/", None, 1).unwrap().remove(0).key;
    stores[0].inner().apply(vec![Op::Put { key: damaged, value: "noise".into(), expect: Expect::Any }]).unwrap();
    stores[1] = blank();
    let cluster = host(&stores, "none").await;
    let report = Maintenance::new(cluster.clone()).repair(&RepairOptions::default(), &|_| ()).await.unwrap();
    assert!(report.left.len() == 1 && report.left[0].contains("~fvol/a/x/000000000003") && report.left[0].contains("drive-0"), "{report}");
    let other_host = tempfile::tempdir().unwrap();
    let (_, open) = volumes(&cluster, other_host.path()).await;
    let volume = open.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
    for extent in 0..16 {
        let from = extent as usize * 65_536;
        match volume.read(extent * 65_536, 65_536).await {
            Ok(bytes) => assert!(extent != 3 && bytes == content(1).slice(from..from + 65_536), "extent {extent}"),
            Err(error) => assert!(extent == 3 && error.kind() == Kind::Corrupt, "extent {extent}: {error}"),
        }
    }
    open.close().await.unwrap();
}

/// A drive that has parts of volumes leaves while they are written: the other drives get them. A drive that is lost may
/// leave as well. Then another one is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_with_parts_of_volumes_leaves() {
    for (retired, is_lost) in [(0, false), (1, true), (2, false), (3, true)] {
        let what = format!("drive {retired}, lost: {is_lost}");
        let (stores, dir): (Vec<Store>, _) = ((0..4).map(|_| blank()).collect(), tempfile::tempdir().unwrap());
        let cluster = host(&stores, "ec:2+1").await;
        let (_, open) = volumes(&cluster, dir.path()).await;
        let volume = open.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
        volume.write(0, content(1), Durability::Durable).await.unwrap();
        let (a, s) = ("a".parse().unwrap(), "s".parse().unwrap());
        open.snapshot(&a, &s).await.unwrap();
        assert!(parts(&stores[retired]) > 0, "{what}");
        if is_lost {
            stores[retired].add(Rule::new(Operation::Any, When::From(1), Fault::Fail(Kind::Unavailable)));
        }
        let done = Arc::new(AtomicBool::new(false));
        let writing = {
            let (volume, done) = (Arc::clone(&volume), Arc::clone(&done));
            tokio::spawn(async move {
                let mut seed = 1;
                while !done.load(Ordering::SeqCst) || seed < 5 {
                    seed = seed % 200 + 1;
                    volume.write(0, content(seed), Durability::Cached).await.unwrap();
                    volume.drain().await.unwrap();
                }
                seed
            })
        };
        let maintenance = Maintenance::new(cluster.clone());
        let options = ResizeOptions { retire: vec![format!("drive-{retired}")], ..ResizeOptions::default() };
        let report = maintenance.resize(Vec::new(), &options, &|_| ()).await.unwrap();
        done.store(true, Ordering::SeqCst);
        let seed = writing.await.unwrap();
        assert!(report.retired == [format!("drive-{retired}")] && report.left.is_empty(), "{what}: {report}");
        assert!(report.notes.iter().any(|note| note.contains("of volumes")), "{what}: {report}");
        if !is_lost {
            assert_eq!((parts(&stores[retired]), records(&stores[retired])), (0, 0), "{what}");
        }
        let scrubbed = maintenance.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
        assert!(scrubbed.damaged == 0 && scrubbed.skipped.is_empty(), "{what}: {scrubbed}");
        let other = (retired + 1) % 4;
        stores[other].add(Rule::new(Operation::Any, When::From(1), Fault::Fail(Kind::Unavailable)));
        assert!(read(&volume).await == content(seed), "{what}");
        let snapshot = open.device("a@s").await.unwrap();
        assert!(snapshot.read(0, MIB as u32).await.unwrap() == content(1), "{what}");
        open.close().await.unwrap();
    }
}

/// What can't be read can't be moved: the drive stays, and the extent is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_with_the_last_whole_part_does_not_leave() {
    let (stores, dir): (Vec<Store>, _) = ((0..3).map(|_| blank()).collect(), tempfile::tempdir().unwrap());
    let cluster = host(&stores, "none").await;
    let (_, open) = volumes(&cluster, dir.path()).await;
    let volume = open.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
    volume.write(0, content(1), Durability::Durable).await.unwrap();
    volume.drain().await.unwrap();
    let damaged: Key = stores[2].inner().list("~fext/a/x/", None, 1).unwrap().remove(0).key;
    stores[2].inner().apply(vec![Op::Put { key: damaged.clone(), value: "noise".into(), expect: Expect::Any }]).unwrap();
    let extent = damaged.as_str().split('/').nth(3).unwrap();
    let maintenance = Maintenance::new(cluster.clone());
    let options = ResizeOptions { retire: vec!["drive-2".into()], ..ResizeOptions::default() };
    let error = maintenance.resize(Vec::new(), &options, &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.report().contains(&format!("~fvol/a/x/{extent}")), "{}", error.report());
    assert!(cluster.catalog().health().leaving().is_empty());
    // Written as a whole, it is right again.
    volume.write(0, content(2), Durability::Cached).await.unwrap();
    volume.drain().await.unwrap();
    let report = maintenance.resize(Vec::new(), &options, &|_| ()).await.unwrap();
    assert!(report.retired == ["drive-2"] && read(&volume).await == content(2), "{report}");
}
