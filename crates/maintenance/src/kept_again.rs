//! Kept results of a data set that moved, made again where its partitions lie now.
//!
//! A kept result belongs to the partitions that it was made from, and is deleted with them. A resize gives the data set
//! new partitions, so drives would answer the next contrast from the matrix. A kept result holds its program: this
//! module sends each program to the drives that have the new partitions, which keep what it gives. Nothing of it is
//! needed for an answer: what fails here is made by the next query.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::{StreamExt, future::join_all};
use skytether_catalog::records::partition::PartitionRecord;
use skytether_catalog::records::root::RootRecord;
use skytether_cluster::cluster::Cluster;
use skytether_common::{Key, PartitionName, Result};
use skytether_device::kept::{Header, KEPT, MAX_HEADER, of_partition};
use skytether_device::program::Program;
use skytether_device::{PushdownLevel, SubPlan};
use skytether_partitioning::Placement;

/// Programs of a data set that are run again; a drive's kept results are bounded as well.
const MOST: usize = 64;

/// Keys that are listed at a time.
const LISTED: usize = 1000;

/// Rows of a batch that drives are asked for.
const BATCH_ROWS: u32 = 65_536;

/// A program, and the table whose partitions it reads.
type Kept = (String, Bytes);

/// Has drives make again, over the partitions of `now`, what they kept of `before`. Returns how many results drives
/// delivered.
pub(crate) async fn make_again(cluster: &Cluster, before: &RootRecord, now: &RootRecord) -> usize {
    let health = cluster.catalog().health();
    let mut programs = BTreeSet::new();
    for at in health.up() {
        match programs_at(cluster, at, before).await {
            Ok(found) => programs.extend(found),
            Err(e) => tracing::debug!("the kept results of {} can't be listed: {}", before.name, e.report()),
        }
    }
    let mut made = 0;
    for (table, program) in programs.iter().take(MOST) {
        let Ok(record) = now.table(table) else { continue };
        let runs = record.partitions.iter().map(|partition| run(cluster, now, table, partition, program));
        for done in join_all(runs).await {
            match done {
                Ok(()) => made += 1,
                Err(e) => tracing::debug!("a kept result of {} is left to the next query: {}", now.name, e.report()),
            }
        }
    }
    made
}

/// The programs of the results that a drive keeps of a data set.
async fn programs_at(cluster: &Cluster, at: usize, record: &RootRecord) -> Result<Vec<Kept>> {
    let (catalog, drive) = (cluster.catalog(), &cluster.drives()[at]);
    let mut found = Vec::new();
    for generation in record.generations() {
        // The keys of kept results stand together: the slash is encoded in them.
        let table = KEPT.replace('/', "%2F");
        let prefix = format!("{}{:016x}.{table}", record.name.prefix(), generation.0);
        let mut after: Option<Key> = None;
        loop {
            let entries = catalog.ask(at, "list kept results", drive.list(&prefix, after.as_ref(), LISTED)).await?;
            for entry in &entries {
                let is_kept = PartitionName::parse(&entry.key).is_some_and(|(name, slice)| slice.is_none() && of_partition(&name).is_some());
                if is_kept {
                    let head = 0..entry.len.min(MAX_HEADER as u64);
                    let head = catalog.ask(at, "read a kept result", drive.get_ranges_unverified(&entry.key, std::slice::from_ref(&head))).await?;
                    found.extend(head.first().and_then(|head| kept(record, head)));
                }
            }
            match entries.last() {
                Some(last) if entries.len() == LISTED => after = Some(last.key.clone()),
                _ => break,
            }
        }
    }
    Ok(found)
}

/// What the head of a kept result says; None where it can't be made again, or is damaged.
fn kept(record: &RootRecord, head: &[u8]) -> Option<Kept> {
    let (header, _) = Header::decode(head).ok()?;
    let mut spread = header.made_from.iter().filter_map(PartitionName::parse).map(|(name, _)| name.table);
    let table = spread.find(|table| record.tables.get(table).is_some_and(|table| table.placement == Placement::Spread))?;
    Some((table, header.program()?))
}

/// Runs a program over one partition to its end.
async fn run(cluster: &Cluster, record: &RootRecord, table: &str, partition: &PartitionRecord, program: &Bytes) -> Result<()> {
    let catalog = cluster.catalog();
    let at = catalog.drive(&partition.drive, &record.name)?;
    let drive = &cluster.drives()[at];
    let plan = SubPlan {
        query: cluster.options().ids.id(),
        dataset: record.name.clone(),
        partitions: record.visible(table, partition),
        with: BTreeMap::new(),
        rung: PushdownLevel::Full,
        program: Program::Substrait(program.clone()),
        filters: BTreeMap::new(),
        tables: BTreeMap::new(),
        batch_rows: BATCH_ROWS,
        keep: true,
    };
    let mut rows = catalog.ask(at, "make a kept result again", drive.execute(plan)).await?.messages;
    loop {
        let next = async { rows.next().await.transpose() };
        if skytether_runtime::within(catalog.deadline(), &drive.info().name, "make a kept result again", next).await?.is_none() {
            return Ok(());
        }
    }
}
