//! One query at several pushdown levels at the same time: all results meet in one merge.

use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::execution::memory_pool::MemoryConsumer;
use futures::StreamExt;
use parking_lot::Mutex;
use skytether::{AdaptiveMode, DatasetKind, HostOptions, Placement, QueryOptions};
use skytether_common::Result;
use skytether_device::session::Message;
use skytether_device::{Cse, CseInfo, Layer, OpenReply, Session, Storage, SubPlan};
use skytether_drive::{Drive, DriveOptions};
use skytether_host::{Founding, Host};
use skytether_scheduler::message::{PushdownLevel, Up};
use skytether_scheduler::query::Policy;
use skytether_store::memory::MemoryStore;

use crate::receipts::assert_each_once;
use crate::tables::assert_as_reference;
use crate::util::{batches, drive_over, lines, name};

/// Notes the pushdown levels at which a drive ends epochs.
#[derive(Debug)]
struct Overheard {
    drive: Arc<Drive>,
    ended: Arc<Mutex<BTreeSet<PushdownLevel>>>,
}

impl Layer for Overheard {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            Ok(match self.drive.open(plan).await? {
                OpenReply::Session(session) => {
                    let ended = Arc::clone(&self.ended);
                    let messages = session.messages.inspect(move |message| {
                        if let Ok(Message::Up(Up::EpochDone(end))) = message {
                            ended.lock().insert(end.rung);
                        }
                    });
                    OpenReply::Session(Session { messages: Box::pin(messages), ..session })
                }
                whole => whole,
            })
        })
    }
}

/// Bytes of memory of each drive, and what somebody else has of the second one's: what is left is enough for
/// rows and not for states.
const MEMORY: (u64, usize) = (64 << 20, 54 << 20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_filter_and_raw_results_meet_in_one_merge() {
    let options = DriveOptions { memory_limit: MEMORY.0, ..DriveOptions::default() };
    // Nothing takes less than its processor time, so that the third one is too busy for anything.
    let busy = DriveOptions { max_load: 1.0, ..options.clone() };
    let drives: Vec<_> =
        [options.clone(), options, busy].into_iter().enumerate().map(|(n, options)| drive_over(n, Arc::new(MemoryStore::new()), options)).collect();
    let others = MemoryConsumer::new("somebody else").register(drives[1].memory());
    others.grow(MEMORY.1);
    let ended: Vec<Arc<Mutex<BTreeSet<PushdownLevel>>>> = drives.iter().map(|_| Arc::default()).collect();
    let overheard = drives.iter().zip(&ended).map(|(drive, ended)| {
        let overheard = Overheard { drive: Arc::clone(drive), ended: Arc::clone(ended) };
        Arc::new(overheard) as Arc<dyn Cse>
    });
    let mut options = HostOptions { moving: AdaptiveMode::Always(Policy::Static(PushdownLevel::Full)), threads: 2, ..HostOptions::default() };
    options.slices.target_bytes = 8 << 10;
    let host = Host::join(overheard.collect(), options, Founding::EmptyDrives).await.unwrap().0;
    let rows = batches(30, 1000);
    let mut writer = host.writer(&name("lab.plain"), DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.clone().into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
    let record = host.catalog().read(&name("lab.plain")).await.unwrap().0;
    let slices: u64 = record.tables["data"].partitions.iter().map(|partition| u64::from(partition.slices)).sum();

    // Where nothing is aggregated, filter is all that there is.
    let queries = [
        (
            "SELECT grp, n % 7, count(*), sum(n), round(avg(x), 6), min(name) FROM lab.plain WHERE n > -50 GROUP BY grp, n % 7 ORDER BY 1, 2",
            true,
            [PushdownLevel::Full, PushdownLevel::Filter, PushdownLevel::Raw],
        ),
        ("SELECT id, upper(name), x * 2 + n FROM lab.plain WHERE n % 5 = 3", false, [PushdownLevel::Full, PushdownLevel::Full, PushdownLevel::Raw]),
    ];
    for (sql, ordered, rungs) in queries {
        let query = host.sql(sql, &QueryOptions::default()).await.unwrap();
        let receipt = query.receipt.clone();
        let given = lines(&query.collect().await.unwrap_or_else(|e| panic!("{sql}: {}", e.report())));
        assert_as_reference(&rows, (sql, ordered), given, "three rungs").await;
        let receipt = receipt.receipt();
        assert_each_once(&receipt, slices, sql);
        assert_eq!(receipt.drives.iter().map(|drive| drive.rung).collect::<Vec<_>>(), rungs.map(Some), "{sql}: {receipt}");
        let said: Vec<_> = ended.iter().map(|ended| std::mem::take(&mut *ended.lock()).into_iter().collect::<Vec<_>>()).collect();
        assert_eq!(said, [vec![PushdownLevel::Full], vec![PushdownLevel::Filter], vec![]], "{sql}: the rungs at which drives ended epochs");
        let [full, filter, raw] = &receipt.drives[..] else { panic!("{receipt}") };
        assert!(full.slices > 2 && full.above.is_none() && full.reason.is_none(), "{full:?}");
        assert!(filter.slices > 2 && filter.above.slices == 0, "{filter:?}");
        assert!(raw.slices == 0 && raw.above.slices > 2 && raw.above.rows_read > 0, "{raw:?}");
        assert!(raw.reason.as_ref().is_some_and(|reason| reason.contains("slices were handed to the host")), "{raw:?}");
        if rungs.contains(&PushdownLevel::Filter) {
            // The host aggregated its rows, and took the states of the first drive and the slices of the third.
            assert!(filter.above.seconds > 0.0 && filter.rows_out > full.rows_out, "{filter:?}");
            assert!(filter.reason.as_ref().is_some_and(|reason| reason.contains("slices were filtered here")), "{filter:?}");
        }
    }
    drop(others);
}
