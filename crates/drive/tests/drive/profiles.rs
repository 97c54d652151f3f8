//! Drives that emulate a device give the same answers as others, later, and report the device.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::*;
use skytether_common::Kind;
use skytether_device::Annotation;
use skytether_drive::{Cse, Device, Drive, DriveOptions, Storage, linked};
use skytether_flight_drive::{self as flight, ConnectOptions, FlightCse};
use skytether_scheduler::profile::Profile;
use tokio::net::TcpListener;

const QUERIES: [&str; 5] = [
    "SELECT * FROM shop.sales.data",
    "SELECT id FROM shop.sales.data WHERE kind = 'kind-2' AND price > 1000 AND id < 5000",
    "SELECT kind, count(*) AS n, sum(id) AS s, min(price) AS lo, max(price) AS hi FROM shop.sales.data GROUP BY kind",
    "SELECT count(*) AS n FROM shop.sales.data",
    "SELECT c7, c290 FROM shop.wide.data WHERE c131 % 3 = 0",
];

/// A device that is slow enough to wait for everything, and quick enough for tests.
fn device() -> Device {
    let profile = Profile {
        speed_per_core: 0.5,
        cores: 2,
        disk_bytes_per_s: 1e9,
        disk_seek_s: 0.0003,
        link_bits_per_s: 8e9,
        link_latency_s: 0.0002,
        ..Profile::shipped("envoy").unwrap()
    };
    Device { name: "tardy".into(), profile }
}

fn slow() -> Arc<Drive> {
    drive_with(DriveOptions::like(Some(device()), None))
}

async fn same_answers(cse: &dyn Cse) {
    for sql in QUERIES {
        let (rows, annotation) = ask(cse, sql).await;
        assert_eq!(lines(&rows), lines(&reference(sql).await), "{sql}");
        assert_eq!(annotation.profile.as_deref(), Some("tardy"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_the_same_and_work_is_paid_for() {
    let drive = slow();
    same_answers(linked(Arc::clone(&drive) as _).as_ref()).await;
    assert_eq!((drive.info().profile, drive.info().memory_limit), (Some(device().profile), 1 << 30));
    let processor = drive.processor().unwrap();
    let before = processor.accounted();
    assert!(before.busy > std::time::Duration::from_micros(200), "{before:?}");
    // Planning, rows and reading each: at least.
    ask(drive.as_ref(), QUERIES[2]).await;
    let after = processor.accounted();
    assert!(after.jobs >= before.jobs + 3 && after.busy > before.busy, "{before:?} {after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_threads_are_paid_for_as_well() {
    let drive = drive_with(DriveOptions { threads: 3, ..DriveOptions::like(Some(device()), None) });
    same_answers(drive.as_ref()).await;
    // An aggregate in three parts, on tasks of their own. The annotation does not show how they pay for the device's
    // time.
    let (_, told) = ask(drive.as_ref(), QUERIES[2]).await;
    let (_, plain) = ask(drive_with(DriveOptions { threads: 3, ..DriveOptions::default() }).as_ref(), QUERIES[2]).await;
    let operators = |annotation: &Annotation| annotation.operators.iter().map(|o| (o.depth, o.name.clone())).collect::<Vec<_>>();
    assert_eq!(operators(&told), operators(&plain));
    assert!(operators(&told).iter().any(|(_, name)| name == "RepartitionExec"), "{:?}", operators(&told));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_served_drive_tells_its_profile_and_answers_the_same() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(flight::serve(slow(), listener, std::future::pending()));
    let cse = FlightCse::connect(&address, ConnectOptions::default()).await.unwrap();
    assert_eq!(cse.info().profile, Some(device().profile));
    same_answers(cse.as_ref()).await;
    let stored = cse.list("", None, 3).await.unwrap();
    assert_eq!(cse.get(&stored[0].key).await.unwrap().len() as u64, stored[0].len);
    server.abort();
}

#[tokio::test]
async fn a_device_has_so_much_memory_and_no_more() {
    let small = |memory| {
        let profile = Profile { memory_bytes: 1 << 20, ..device().profile };
        DriveOptions::like(Some(Device { profile, ..device() }), memory)
    };
    let plan = || sub_plan("SELECT id, kind, price, count(*) AS n FROM shop.sales.data GROUP BY id, kind, price");
    let error = run(drive_with(small(None)).as_ref(), plan().await).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    run(drive_with(DriveOptions::like(None, None)).as_ref(), plan().await).await.unwrap();
    assert_eq!(small(None).memory_limit, 1 << 20);
    assert_eq!(small(Some(1 << 30)).memory_limit, 1 << 20, "a wish for more changes nothing");
    assert_eq!(small(Some(1 << 19)).memory_limit, 1 << 19);
    assert_eq!(DriveOptions::like(None, Some(1 << 30)).memory_limit, 1 << 30);
}

#[tokio::test]
async fn without_a_device_there_is_nothing_of_it() {
    let drive = drive_with(DriveOptions::like(Device::given("unlimited").unwrap(), None));
    assert_eq!((drive.info().profile, drive.processor().is_none()), (None, true));
    let cse: Arc<dyn Cse> = drive;
    assert!(Arc::ptr_eq(&cse, &linked(Arc::clone(&cse))));
    assert_eq!(ask(cse.as_ref(), QUERIES[3]).await.1.profile, None);
}
