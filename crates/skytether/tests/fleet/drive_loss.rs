//! Drives are lost, return, or another drive is in their place.

use skytether::{DriveStatus, Fleet, Pushdown};
use skytether_common::Kind;

use crate::served::{ids, serve, serve_drive_at, serve_host};
use crate::util::{batches, ingest, name, query, value};

/// The drives' status once it `fits`. The first request after a server ended may still find the broken connection.
async fn status(fleet: &Fleet, fits: impl Fn(&[DriveStatus]) -> bool) -> Vec<DriveStatus> {
    let mut last = None;
    for _ in 0..20 {
        match fleet.status().await {
            Ok(status) if fits(&status) => return status,
            other => last = Some(other),
        }
    }
    panic!("the drives are not as they should be: {last:?}");
}

fn all_up(status: &[DriveStatus]) -> bool {
    status.iter().all(|d| d.found.is_none() && d.error.is_none() && d.usage.is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_drive_at_a_known_address_is_not_used() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut drives, mut host, fleet) = serve(dir.path()).await;
    ingest(&fleet, "lab.t", &batches(20, 2000), false).await.unwrap();
    let sum = "SELECT count(*), sum(n) FROM lab.t";
    let before = query(&fleet, sum, Pushdown::Full).await.unwrap();
    let members = ids(&fleet).await;
    let root = name("lab.t").root_key();
    let home = skytether_host::rendezvous(root.as_str(), members.iter()).unwrap();

    // Another drive where the home of the data set was, under the same name.
    let address = drives[home].address.clone();
    drives[home].kill();
    drives[home] = serve_drive_at(&address, other.path(), home);
    let status = status(&fleet, |drives| drives[home].found.is_some()).await;
    let found = status[home].found.clone().unwrap();
    assert!(found.id != members[home] && found.name == format!("drive-{home}") && status[home].usage.is_none(), "{status:?}");
    assert_eq!(status[home].info.id, members[home]);
    assert!(status.iter().enumerate().all(|(n, d)| n == home || (d.found.is_none() && d.usage.is_some())), "{status:?}");
    let errors = [
        fleet.list().await.unwrap_err(),
        query(&fleet, sum, Pushdown::Full).await.unwrap_err(),
        fleet.drop_dataset(&name("lab.t")).await.unwrap_err(),
        ingest(&fleet, "lab.t", &batches(1, 100), true).await.unwrap_err(),
        ingest(&fleet, "lab.new", &batches(20, 2000), false).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        let text = error.to_string();
        let wanted =
            format!("at {address} answers drive {} (drive-{home}), not drive-{home} ({}): was it started on another directory?", found.id, members[home]);
        assert!(text.contains(&wanted), "{text}");
    }
    drives[home].kill();
    let foreign = skytether_drive::Drive::open(&other.path().join(home.to_string()), None, Default::default()).unwrap();
    assert_eq!(foreign.store().usage().unwrap().keys, 0, "nothing came to the foreign drive");
    drop(foreign);

    // The right drive comes back. A new host deletes no value that is needed.
    drives[home] = serve_drive_at(&address, dir.path(), home);
    self::status(&fleet, all_up).await;
    assert_eq!(query(&fleet, sum, Pushdown::Full).await.unwrap(), before);
    let at = host.address.clone();
    host.kill();
    let _host = serve_host(&at, &drives);
    self::status(&fleet, all_up).await;
    assert_eq!(query(&fleet, sum, Pushdown::Full).await.unwrap(), before);
    assert_eq!(fleet.list().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_partition_does_not_count_as_a_replaced_data_set() {
    use skytether_common::Key;
    use skytether_store::{Expect, Op};

    let dir = tempfile::tempdir().unwrap();
    let fleet = crate::util::open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(20, 2000), false).await.unwrap();
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    let catalog = fleet.host().unwrap().catalog().clone();
    for (slot, key) in [(0, record.partition("data", 0).slice_key(0).unwrap()), (1, record.partition("data", 1).key().unwrap())] {
        let drive = catalog.drive(&record.tables["data"].partitions[slot].drive, &record.name).unwrap();
        let key: Key = key;
        let value = catalog.drives()[drive].get(&key).await.unwrap();
        catalog.drives()[drive].apply(vec![Op::Delete { key: key.clone(), expect: Expect::Any }]).await.unwrap();
        let error = query(&fleet, "SELECT sum(n) FROM lab.t", Pushdown::Full).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("lab.t is incomplete, drive-{drive} lacks")) && text.contains(key.as_str()) && !text.contains("run the query again"),
            "{text}"
        );
        catalog.drives()[drive].apply(vec![Op::Put { key, value, expect: Expect::Absent }]).await.unwrap();
    }
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "40000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_ingests_after_its_host_was_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let (drives, mut host, fleet) = serve(dir.path()).await;
    ingest(&fleet, "lab.t", &batches(1, 100), false).await.unwrap();
    let mut begun = fleet.writer(&name("lab.begun"), skytether::DatasetKind::Table, false).await.unwrap();
    let at = host.address.clone();
    host.kill();
    // The drives in another order: their numbers at the host are other ones then.
    let turned: Vec<_> = drives.into_iter().rev().collect();
    let _host = serve_host(&at, &turned);
    status(&fleet, all_up).await;
    // An ingest that the restart interrupted may have lost what it had stored.
    let rows = batches(1, 100);
    let error = match begun.write_table("data", skytether::Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await {
        Err(error) => error,
        Ok(()) => begun.commit().await.unwrap_err(),
    };
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    // One that begins afterwards has lost nothing.
    for round in 0..2 {
        ingest(&fleet, "lab.u", &batches(20, 2000), round > 0).await.unwrap();
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.u").await.unwrap(), "40000");
    }
    ingest(&fleet, "lab.t", &batches(1, 50), true).await.unwrap();
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "50");
}
