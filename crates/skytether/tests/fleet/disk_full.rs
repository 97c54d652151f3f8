//! Full drives: writes come before indexes, which can be built again.

use std::path::Path;
use std::time::Duration;

use skytether::{DatasetKind, HostOptions, IndexInfo, ListIndexes, Placement, Pushdown, QueryOptions};
use skytether_common::{Kind, Result};
use skytether_host::{Founding, Host};

use crate::indexes::{drives_of, new, old};
use crate::util::{batches, lines, name};

/// A host over two drives, each with an optional capacity in bytes.
async fn begin(dir: &Path, capacities: [Option<u64>; 2]) -> Host {
    let mut options = HostOptions::default();
    options.slices.target_bytes = 8 << 10;
    Host::join(drives_of(dir, capacities), options, Founding::EmptyDrives).await.unwrap_or_else(|e| panic!("{}", e.report())).0
}

/// Writes `count` batches of a thousand rows.
async fn write(host: &Host, dataset: &str, count: usize) -> Result<()> {
    let rows = batches(count, 1000);
    let mut writer = host.writer(&name(dataset), DatasetKind::Table, false).await?;
    match writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await {
        Ok(()) => writer.commit().await.map(drop),
        Err(e) => {
            writer.abort().await?;
            Err(e)
        }
    }
}

/// Bytes of the values of each drive.
async fn used(host: &Host) -> [u64; 2] {
    let mut used = [0; 2];
    for (n, drive) in host.drives().iter().enumerate() {
        used[n] = drive.usage().await.unwrap().value_bytes;
    }
    used
}

async fn listed(host: &Host) -> IndexInfo {
    host.catalog().indexes(&ListIndexes::default()).await.unwrap().remove(0)
}

/// Waits until the only index has this state.
async fn until(host: &Host, state: &str) -> IndexInfo {
    for _ in 0..1200 {
        let info = listed(host).await;
        if info.state == state {
            return info;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is not {state}: {}", listed(host).await)
}

/// The rows, and the number of drives that used an index for them.
async fn asked(host: &Host, sql: &str) -> (Vec<String>, usize) {
    let query = host.sql(sql, &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await.unwrap_or_else(|e| panic!("{}", e.report()));
    let handle = query.receipt.clone();
    let rows = lines(&query.collect().await.unwrap_or_else(|e| panic!("{}", e.report())));
    (rows, handle.receipt().drives.iter().map(|drive| drive.indexes.len()).sum())
}

/// An ingest takes the space of a ready index. Queries are right without it. Once there is space, the drives build it
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_evicts_a_ready_index_and_free_space_rebuilds_it() {
    const SQL: &str = "SELECT id, x FROM lab.t WHERE x BETWEEN 100.0 AND 101.0 ORDER BY id";
    let dir = tempfile::tempdir().unwrap();
    let host = begin(dir.path(), [None; 2]).await;
    write(&host, "lab.t", 40).await.unwrap();
    let (due, none) = asked(&host, SQL).await;
    assert!(!due.is_empty() && none == 0);
    // Bytes of the other data set and of the index.
    let before = used(&host).await;
    write(&host, "lab.more", 10).await.unwrap();
    let with_more = used(&host).await;
    host.catalog().drop_dataset(&name("lab.more")).await.unwrap();
    host.catalog().create_index(&new("lab.t", &["x"], &["id", "grp", "name", "n"])).await.unwrap();
    assert_eq!(until(&host, "ready").await.rows, 40_000);
    let indexed = used(&host).await;
    let capacities = [0, 1].map(|n| {
        let (more, index) = (with_more[n] - before[n], indexed[n] - before[n]);
        assert!(more > 32 << 10 && index > more, "{more} bytes more, and {index} of the index");
        // It fits only without the index.
        Some(indexed[n] + more / 2)
    });
    drop(host);

    let host = begin(dir.path(), capacities).await;
    assert_eq!(until(&host, "ready").await.rows, 40_000);
    assert_eq!(asked(&host, SQL).await, (due.clone(), 2));
    write(&host, "lab.more", 10).await.unwrap_or_else(|e| panic!("{}", e.report()));
    let info = listed(&host).await;
    assert!(info.state == "dropped" && info.bytes == 0 && info.rows == 0, "{info}");
    assert!(info.drives.len() == 2 && info.drives.values().all(|says| says.starts_with("dropped: ")), "{info}");
    assert_eq!(asked(&host, SQL).await, (due.clone(), 0));
    assert_eq!(asked(&host, "SELECT count(*) FROM lab.more").await.0, ["10000"]);
    // A data set that exceeds the capacity without any index is rejected, and leaves nothing.
    let held = used(&host).await;
    let error = write(&host, "lab.far", 400).await.unwrap_err();
    assert!(error.kind() == Kind::Exhausted && error.report().contains("drive-"), "{}", error.report());
    assert_eq!(used(&host).await, held);
    drop(host);

    // After a restart the drives are as full and report it again.
    let host = begin(dir.path(), capacities).await;
    let info = until(&host, "dropped").await;
    assert!(info.to_string().contains("\n  drive-"), "{info}");
    assert_eq!(asked(&host, SQL).await, (due.clone(), 0));
    drop(host);

    let host = begin(dir.path(), [None; 2]).await;
    assert_eq!(until(&host, "ready").await.rows, 40_000);
    assert_eq!(asked(&host, SQL).await, (due.clone(), 2));
    host.catalog().drop_index(&old("lab.t", "x")).await.unwrap();
    assert!(host.catalog().indexes(&ListIndexes::default()).await.unwrap().is_empty());
    host.catalog().create_index(&new("lab.t", &["x"], &["id"])).await.unwrap();
    assert_eq!(until(&host, "ready").await.rows, 40_000);
    assert_eq!(asked(&host, SQL).await, (due, 2));
}
