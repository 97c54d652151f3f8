//! Drives that send corrupt replies: their peers take over, and nothing corrupt counts. `epoch_retry` tests what was
//! complete before.

use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray, StructArray};
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use futures::stream::{BoxStream, Stream, StreamExt};
use skytether::{AdaptiveMode, DatasetKind, HostOptions, Placement, QueryOptions, Receipt};
use skytether_common::{Error, Kind, Result};
use skytether_device::session::Message;
use skytether_device::{Cse, CseInfo, DeliveryStream, Layer, OpenReply, ResultMessage, Session, Storage, SubPlan};
use skytether_drive::Drive;
use skytether_host::{Founding, Host};
use skytether_scheduler::message::{PushdownLevel, SliceId, Up};
use skytether_scheduler::query::{Limits, Policy};
use skytether_store::memory::MemoryStore;

use crate::util::{batches, lines, name, small_drive};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Garbage {
    /// Rows with a column too many.
    OtherColumns,
    /// The right number of columns, with wrong types and values.
    OtherValues,
    /// States without their last part.
    CutStates,
    /// Bytes that decode to no message.
    Undecodable,
    /// An epoch's end that names a slice which the epoch was not given. For a sub-plan that runs whole: the end of an
    /// epoch that never began.
    NotAsked,
    /// No further message, and no end of the stream.
    CutOff,
}

impl Garbage {
    /// Text that the reason for the failover contains.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::OtherColumns => "columns where",
            Self::OtherValues | Self::CutStates => "does not fit its schema",
            Self::Undecodable => "can't be decoded",
            Self::NotAsked => "was not asked for",
            Self::CutOff => "ended its answer without finishing it",
        }
    }

    /// The rows as this garbage; `None` where the garbage leaves rows as they are.
    pub(crate) fn of(self, rows: &RecordBatch) -> Option<RecordBatch> {
        let schema = rows.schema();
        let mut columns: Vec<(&str, ArrayRef)> = schema.fields().iter().map(|field| field.name().as_str()).zip(rows.columns().iter().cloned()).collect();
        match self {
            _ if rows.num_rows() == 0 => return None,
            Self::OtherColumns => columns.push(("more", Arc::new(Int64Array::from_iter_values(0..rows.num_rows() as i64)) as ArrayRef)),
            Self::OtherValues => {
                let words = StringArray::from_iter_values((0..rows.num_rows()).map(|_| "no such value"));
                columns.iter_mut().for_each(|(_, column)| *column = Arc::new(words.clone()));
            }
            Self::CutStates => {
                for (_, column) in &mut columns {
                    *column = cut(column);
                }
            }
            Self::Undecodable | Self::NotAsked | Self::CutOff => return None,
        }
        let types = |rows: &RecordBatch| rows.columns().iter().map(|column| column.data_type().clone()).collect::<Vec<_>>();
        let spoilt = RecordBatch::try_from_iter(columns).unwrap();
        (types(&spoilt) != types(rows)).then_some(spoilt)
    }
}

/// States without their last part, where they have more than one.
fn cut(column: &ArrayRef) -> ArrayRef {
    let DataType::Struct(fields) = column.data_type() else { return Arc::clone(column) };
    if fields.len() < 2 {
        return Arc::clone(column);
    }
    let (states, left) = (column.as_struct(), fields.len() - 1);
    Arc::new(StructArray::new(fields.iter().take(left).cloned().collect(), states.columns()[..left].to_vec(), states.nulls().cloned()))
}

/// What happens to a message.
enum Fate<M> {
    Comes(M),
    Undecodable,
    Nothing,
}

/// A drive that sends garbage of this kind, a given number of times.
#[derive(Debug)]
struct Garbling {
    drive: Arc<Drive>,
    garbage: Garbage,
    left: Arc<AtomicUsize>,
    given: Arc<AtomicUsize>,
}

impl Garbling {
    /// Whether to send garbage once more.
    fn more(left: &AtomicUsize, given: &AtomicUsize) -> bool {
        let more = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        given.fetch_add(usize::from(more), Ordering::SeqCst);
        more
    }

    /// Rows, with the garbage that applies to rows; `made` makes the message.
    fn rows<M>(garbage: Garbage, more: impl FnOnce() -> bool, rows: RecordBatch, made: impl FnOnce(RecordBatch) -> M) -> Fate<M> {
        let spoilt = garbage.of(&rows);
        let ends = matches!(garbage, Garbage::Undecodable | Garbage::CutOff);
        if !(ends || spoilt.is_some()) || !more() {
            return Fate::Comes(made(rows));
        }
        match spoilt {
            Some(spoilt) => Fate::Comes(made(spoilt)),
            None if garbage == Garbage::Undecodable => Fate::Undecodable,
            None => Fate::Nothing,
        }
    }
}

/// Messages, each with its fate. A broken stream sends no further message.
fn fated<M: Send + 'static>(
    messages: impl Stream<Item = Result<M>> + Send + 'static,
    mut fate: impl FnMut(M) -> Fate<M> + Send + 'static,
) -> BoxStream<'static, Result<M>> {
    let messages = messages.scan(false, move |over, message| {
        let next = match message {
            _ if *over => None,
            Ok(message) => match fate(message) {
                Fate::Comes(message) => Some(Ok(message)),
                Fate::Undecodable => {
                    *over = true;
                    Some(Err(Error::corrupt("a message can't be decoded")))
                }
                Fate::Nothing => None,
            },
            Err(error) => Some(Err(error)),
        };
        std::future::ready(next)
    });
    messages.boxed()
}

impl Layer for Garbling {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let DeliveryStream { schema, messages } = self.drive.execute(plan).await?;
            let (garbage, left, given) = (self.garbage, Arc::clone(&self.left), Arc::clone(&self.given));
            let messages = fated(messages, move |message| match message {
                ResultMessage::Batch { epoch, batch } => {
                    Self::rows(garbage, || Self::more(&left, &given), batch, |batch| ResultMessage::Batch { epoch, batch })
                }
                ResultMessage::EpochComplete { epoch } if garbage == Garbage::NotAsked && Self::more(&left, &given) => {
                    Fate::Comes(ResultMessage::EpochComplete { epoch: epoch + 1 })
                }
                other => Fate::Comes(other),
            });
            Ok(DeliveryStream { schema, messages })
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let (garbage, left, given) = (self.garbage, Arc::clone(&self.left), Arc::clone(&self.given));
            Ok(match self.drive.open(plan).await? {
                OpenReply::Whole(stream) => OpenReply::Whole(stream),
                OpenReply::Session(session) => {
                    let messages = fated(session.messages, move |message| match message {
                        Message::Batch { epoch, number, rung, batch } => {
                            Self::rows(garbage, || Self::more(&left, &given), batch, |batch| Message::Batch { epoch, number, rung, batch })
                        }
                        Message::Up(Up::EpochDone(mut end)) if garbage == Garbage::NotAsked && Self::more(&left, &given) => {
                            end.slices.push(SliceId(77_777));
                            Fate::Comes(Message::Up(Up::EpochDone(end)))
                        }
                        other => Fate::Comes(other),
                    });
                    OpenReply::Session(Session { messages, ..session })
                }
            })
        })
    }
}

const DRIVES: usize = 4;

/// The drive that sends garbage.
const AT: usize = 1;

struct Fleet {
    stores: Vec<Arc<MemoryStore>>,
    redundancy: &'static str,
}

impl Fleet {
    /// A fleet with `lab.t`, and its answers.
    async fn filled(redundancy: &'static str) -> (Self, Vec<Vec<String>>) {
        let fleet = Self { stores: (0..DRIVES).map(|_| Arc::default()).collect(), redundancy };
        let host = fleet.host(AdaptiveMode::AsNeeded, None).await;
        let rows = batches(16, 1000);
        let mut writer = host.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
        writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
        writer.commit().await.unwrap();
        let mut whole = Vec::new();
        for sql in QUERIES {
            whole.push(answer(&host, sql).await.unwrap().0);
        }
        assert!(whole[0].len() == 4 && whole[1].len() > 1000, "{whole:?}");
        (fleet, whole)
    }

    /// A host over these drives. With `garbage`, drive `AT` sends that kind, as often as the counter says.
    async fn host(&self, moving: AdaptiveMode, garbage: Option<(Garbage, &Arc<AtomicUsize>, &Arc<AtomicUsize>)>) -> Host {
        let drives = self.stores.iter().enumerate().map(|(n, store)| {
            let drive = small_drive(n, Arc::clone(store) as _);
            match garbage {
                Some((garbage, left, given)) if n == AT => {
                    Arc::new(Garbling { drive, garbage, left: Arc::clone(left), given: Arc::clone(given) }) as Arc<dyn Cse>
                }
                _ => drive as Arc<dyn Cse>,
            }
        });
        let limits = Limits { pause: 0.01, ..Limits::default() };
        let mut options = HostOptions { moving, redundancy: self.redundancy.parse().unwrap(), limits, threads: 2, ..HostOptions::default() };
        options.slices.target_bytes = 8 << 10;
        Host::join(drives.collect(), options, Founding::EmptyDrives).await.unwrap().0
    }
}

const QUERIES: [&str; 2] = [
    "SELECT grp, count(*), sum(n), round(avg(x), 6), min(name) FROM lab.t WHERE n > -50 GROUP BY grp ORDER BY grp",
    "SELECT id, name FROM lab.t WHERE n % 5 = 3",
];

async fn answer(host: &Host, sql: &str) -> Result<(Vec<String>, Receipt)> {
    let query = host.sql(sql, &QueryOptions::default()).await?;
    let receipt = query.receipt.clone();
    let mut rows = lines(&query.collect().await?);
    rows.sort();
    Ok((rows, receipt.receipt()))
}

const ALL: [Garbage; 6] = [Garbage::OtherColumns, Garbage::OtherValues, Garbage::CutStates, Garbage::Undecodable, Garbage::NotAsked, Garbage::CutOff];

/// Each kind of garbage that applies to such a query, with the query and its answer.
fn cases<'a>(states: bool, whole: &'a [Vec<String>]) -> impl Iterator<Item = (Garbage, &'static str, &'a Vec<String>)> {
    let queries = QUERIES.into_iter().zip(whole).enumerate();
    let cases = queries.flat_map(|(at, (sql, whole))| ALL.into_iter().map(move |garbage| (at, garbage, sql, whole)));
    // Only aggregates that run at drives have states.
    let fits = move |(at, garbage, ..): &(usize, Garbage, &'static str, &'a Vec<String>)| *garbage != Garbage::CutStates || (states && *at == 0);
    cases.filter(fits).map(|(_, garbage, sql, whole)| (garbage, sql, whole))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_take_over_from_a_drive_with_corrupt_replies() {
    for redundancy in ["replicas:2", "ec:2+1"] {
        let (fleet, whole) = Fleet::filled(redundancy).await;
        for policy in [Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter)] {
            for (garbage, sql, whole) in cases(policy == Policy::Static(PushdownLevel::Full), &whole) {
                let what = format!("{redundancy}, {policy:?}, {garbage:?}: {sql}");
                let (left, given) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::default());
                let host = fleet.host(AdaptiveMode::Always(policy), Some((garbage, &left, &given))).await;
                let (rows, receipt) = answer(&host, sql).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
                assert_eq!(&rows, whole, "{what}");
                assert!(given.load(Ordering::SeqCst) > 0, "{what}: there was none");
                for (n, drive) in receipt.drives.iter().enumerate() {
                    let told = drive.served_by_fallback.as_ref().is_some_and(|why| why.contains("drive-1") && why.contains(garbage.says()));
                    assert!(if n == AT { told } else { drive.served_by_fallback.is_none() }, "{what}: {drive:?}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_reply_to_an_undivided_plan_fails_over_too() {
    for redundancy in ["replicas:2", "ec:2+1"] {
        let (fleet, whole) = Fleet::filled(redundancy).await;
        for (garbage, sql, whole) in cases(true, &whole) {
            let what = format!("{redundancy}, {garbage:?}: {sql}");
            let (left, given) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::default());
            let host = fleet.host(AdaptiveMode::Never, Some((garbage, &left, &given))).await;
            let (rows, receipt) = answer(&host, sql).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            assert_eq!(&rows, whole, "{what}");
            assert!(given.load(Ordering::SeqCst) > 0, "{what}: there was none");
            let served_by_fallback: Vec<_> =
                receipt.drives.iter().filter(|drive| drive.served_by_fallback.is_some()).map(|drive| drive.name.as_str()).collect();
            assert_eq!(served_by_fallback, ["drive-1"], "{what}");
        }
    }
}

/// One corrupt reply is retried and changes no answer. A drive that goes on sending them fails the query by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_reply_without_redundancy_is_retried_then_named() {
    let (fleet, whole) = Fleet::filled("none").await;
    for policy in [Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter)] {
        for (garbage, sql, whole) in cases(policy == Policy::Static(PushdownLevel::Full), &whole) {
            let what = format!("{policy:?}, {garbage:?}: {sql}");
            let (left, given) = (Arc::new(AtomicUsize::new(1)), Arc::default());
            let host = fleet.host(AdaptiveMode::Always(policy), Some((garbage, &left, &given))).await;
            let (rows, receipt) = answer(&host, sql).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            assert_eq!((&rows, given.load(Ordering::SeqCst)), (whole, 1), "{what}");
            assert!(receipt.drives.iter().all(|drive| drive.served_by_fallback.is_none()), "{what}: {receipt}");
            // And without end.
            left.store(usize::MAX, Ordering::SeqCst);
            let error = answer(&host, sql).await.unwrap_err();
            let kind = if garbage == Garbage::CutOff { Kind::Unavailable } else { Kind::Corrupt };
            assert_eq!(error.kind(), kind, "{what}: {}", error.report());
            assert!(error.report().contains("drive-1") && error.report().contains(garbage.says()), "{what}: {}", error.report());
            assert!(given.load(Ordering::SeqCst) > 3, "{what}: it is asked again before it is given up");
        }
    }
}
