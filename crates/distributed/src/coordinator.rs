//! Spreads a query over workers, watches them, and runs the query again without those that are lost.
//!
//! The coordinator sends the statement to each worker, compares the digests of their stages with its own, and runs the
//! last part of the plan itself. Reading pulls: what that part asks of a stage makes a worker run its task, which asks
//! other workers in turn. Meanwhile each worker must answer a beat within [`SpreadOptions::silence`].
//!
//! A worker that is lost costs the query one more run, as a whole, on the workers that are left, or on this host alone.
//! That needs that no row was handed on, so the first [`HELD`] bytes of a result wait until the query ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::physical_plan::ExecutionPlan;
use futures::future::{BoxFuture, join_all};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use skytether_api::receipt::{Receipt, ReceiptHandle, ReceiptSource, StageReceipt};
use skytether_api::statement::{Query, QueryOptions, Statement};
use skytether_api::values::Values;
use skytether_common::{Detail, Error, Kind, Result};
use skytether_device::size::batch_bytes;
use skytether_exec::profile::Collector;
use skytether_exec::scan::DriveScanExec;
use skytether_host::{FleetService, Host};
use skytether_plan::error::from_datafusion;
use skytether_query::planner::Planned;
use skytether_runtime::within;
use skytether_transport::Credentials;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::one_host::unsteady_name;
use crate::part::{Planners, QueryLinks, digest};
use crate::peer::{Peer, Peers};
use crate::stage_read::Links;
use crate::stages::Stages;
use crate::wire::{BEAT, BEGIN, Begin, Begun, END, Ended, MOST_PARTITIONS, Named, Progress};
use crate::worker::scalars;

/// Bytes of a result that wait until the query ends, so that it can be run again.
pub const HELD: u64 = 4 << 20;

/// The time between two beats.
const BEAT_EVERY: Duration = Duration::from_millis(500);

/// How long the plan of a worker may take, and its figures at the end.
const PLANNING: Duration = Duration::from_secs(60);
const FIGURES: Duration = Duration::from_secs(10);

/// How often a worker that is lost is asked.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// How a host spreads queries.
#[derive(Debug, Clone)]
pub struct SpreadOptions {
    /// The addresses of the workers; without any the host works alone.
    pub workers: Vec<String>,
    /// What this host shows to them.
    pub credentials: Credentials,
    /// After this time without an answer a worker is lost.
    pub silence: Duration,
    /// After this time in which no worker and no part of the plan did anything, the query runs again on this host.
    pub progress: Duration,
    /// A query whose drives send fewer rows stays on this host.
    pub min_rows: u64,
}

impl Default for SpreadOptions {
    fn default() -> Self {
        Self {
            workers: Vec::new(),
            credentials: Credentials::default(),
            silence: Duration::from_secs(10),
            progress: Duration::from_secs(300),
            min_rows: 100_000,
        }
    }
}

/// A host that spreads its queries over workers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Coordinator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    planners: Planners,
    options: SpreadOptions,
    peers: Peers,
    /// The workers that are lost. Each is asked now and then, and taken off the list when it answers.
    lost: Mutex<BTreeSet<String>>,
}

/// What a client asked.
#[derive(Clone)]
struct Asked {
    statement: Statement,
    values: Values,
    options: QueryOptions,
}

/// A query on several hosts that has not begun.
struct Spread {
    planned: Planned,
    stages: Vec<(usize, String)>,
    links: Arc<QueryLinks>,
    query: Uuid,
}

impl Coordinator {
    /// A coordinator of queries to `host`.
    #[must_use]
    pub fn new(host: Host, options: SpreadOptions) -> Self {
        let peers = Peers::new(options.credentials.clone());
        Self(Arc::new(Inner { planners: Planners::new(host), options, peers, lost: Mutex::default() }))
    }

    /// The stages of a query as text; `None` where it stays on this host.
    ///
    /// # Errors
    /// As [`FleetService::ask_with`].
    pub async fn described(&self, statement: &Statement, options: &QueryOptions) -> Result<Option<String>> {
        if unsteady_name(statement).is_some() {
            return Ok(None);
        }
        let asked = Asked { statement: statement.clone(), values: Values::default(), options: options.clone() };
        let (links, planned) = self.planned(&asked, &self.0.options.workers, Uuid::nil()).await?;
        let stages = stages(&planned, &links)?;
        Ok((!stages.stages.is_empty() && self.is_worth_it(&planned)).then(|| stages.described()))
    }

    /// Runs a query, on workers where that is worth it.
    ///
    /// # Errors
    /// As [`FleetService::ask_with`].
    pub fn ask<'a>(&'a self, statement: &'a Statement, values: &'a Values, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        let asked = Asked { statement: statement.clone(), values: values.clone(), options: options.clone() };
        Box::pin(async move {
            let told = Arc::new(SpreadReceipt::default());
            let begun = self.begin(&asked, self.candidates(), &told).await?;
            let Some(spread) = begun else {
                let query = self.alone(&asked).await?;
                told.is(&query.receipt);
                return Ok(Query { receipt: ReceiptHandle::new(told), ..query });
            };
            let (send, receive) = mpsc::channel(2);
            let (schema, receipt) = (spread.planned.physical.schema(), ReceiptHandle::new(Arc::clone(&told) as _));
            let run = Run { coordinator: self.clone(), asked, told, send, schema: Arc::clone(&schema), waits: AtomicBool::new(false) };
            let task = AbortOnDropHandle::new(tokio::spawn(run.run_to_end(spread)));
            let rows = stream::unfold((receive, task), |(mut receive, task)| async move { receive.recv().await.map(|batch| (batch, (receive, task))) });
            Ok(Query { schema, stream: rows.boxed(), receipt })
        })
    }

    async fn alone(&self, asked: &Asked) -> Result<Query> {
        self.0.planners.host().ask_with(&asked.statement, &asked.values, &asked.options).await
    }

    /// The workers that are not known to be lost.
    fn candidates(&self) -> Vec<String> {
        let lost = self.0.lost.lock();
        self.0.options.workers.iter().filter(|url| !lost.contains(*url)).cloned().collect()
    }

    /// Queries do without the worker until it answers again.
    fn lose(&self, url: &str) {
        if self.0.lost.lock().insert(url.to_owned()) {
            tokio::spawn(until_it_answers(Arc::downgrade(&self.0), url.to_owned()));
        }
    }

    async fn planned(&self, asked: &Asked, workers: &[String], query: Uuid) -> Result<(Arc<QueryLinks>, Planned)> {
        let links = QueryLinks::new(query, &self.0.peers, workers, None);
        let planner = self.0.planners.of(self.partitions(workers.len()));
        Ok((links, planner.plan_asked(&asked.statement, &asked.options, scalars(&asked.values)?).await?))
    }

    fn partitions(&self, workers: usize) -> usize {
        (workers * self.0.planners.host().options().threads).clamp(1, MOST_PARTITIONS)
    }

    fn is_worth_it(&self, planned: &Planned) -> bool {
        expected_rows(planned.physical.as_ref()) >= self.0.options.min_rows
    }

    /// Plans a query on `workers`, and has each of them plan its part. Workers that do not answer are left out. `None`
    /// where the query is to run on this host alone.
    async fn begin(&self, asked: &Asked, mut workers: Vec<String>, told: &SpreadReceipt) -> Result<Option<Spread>> {
        if let Some(name) = unsteady_name(&asked.statement) {
            told.note(format!("the query ran on this host alone: {name} may have another value on each host, or at each call"));
            return Ok(None);
        }
        while !workers.is_empty() {
            let query = Uuid::new_v4();
            let (links, mut planned) = self.planned(asked, &workers, query).await?;
            let cut = stages(&planned, &links)?;
            if cut.stages.is_empty() || !self.is_worth_it(&planned) {
                return Ok(None);
            }
            let own = digest(&cut);
            let partitions = self.partitions(workers.len());
            let silence = self.0.options.silence;
            let answers = links.workers().iter().enumerate().map(|(at, peer)| {
                let message = Begin::new(query, &asked.statement, &asked.values, &asked.options, &workers);
                let message = message.map(|message| Begin { partitions, own: at, ..message });
                async move {
                    // Long before a plan can be late.
                    alive(peer, query, silence).await?;
                    within(PLANNING, peer.url(), "plan its part of a query", peer.act::<Begun>(BEGIN, &message?)).await
                }
            });
            let answers = join_all(answers).await;
            let mut kept = Vec::new();
            let mut differs = None;
            for (url, answer) in workers.iter().zip(&answers) {
                match answer {
                    Ok(begun) => {
                        kept.push(url.clone());
                        if begun.digest != own {
                            differs = Some(url.clone());
                        }
                    }
                    Err(e) if e.kind() == Kind::Unavailable => {
                        self.lose(url);
                        told.note(format!("{url} is left out: {}", e.report()));
                    }
                    // A worker that can't plan what this host could: it has other drives, or another version.
                    Err(e) => differs = Some(format!("{url} ({})", e.report())),
                }
            }
            if let Some(url) = differs {
                end(&links);
                told.note(format!("the query ran on this host alone: {url} planned it otherwise, as happens while data sets change"));
                return Ok(None);
            }
            if kept.len() == workers.len() {
                planned.physical = cut.root;
                let titles = cut.stages.iter().map(|stage| (stage.number, stage.title())).collect();
                return Ok(Some(Spread { planned, stages: titles, links, query }));
            }
            end(&links);
            workers = kept;
        }
        if !self.0.options.workers.is_empty() {
            told.note("the query ran on this host alone: no worker answers".to_owned());
        }
        Ok(None)
    }
}

/// Takes a worker off the list of the lost ones when it answers.
async fn until_it_answers(inner: Weak<Inner>, url: String) {
    loop {
        tokio::time::sleep(ASK_AGAIN).await;
        let Some(inner) = inner.upgrade() else { return };
        if alive(&inner.peers.get(&url), Uuid::nil(), inner.options.silence).await.is_ok() {
            inner.lost.lock().remove(&url);
            tracing::info!("the worker at {url} answers again");
            return;
        }
    }
}

fn stages(planned: &Planned, links: &Arc<QueryLinks>) -> Result<Stages> {
    Stages::of(&planned.physical, links.workers().len(), &(Arc::clone(links) as Arc<dyn Links>)).map_err(from_datafusion)
}

fn expected_rows(plan: &dyn ExecutionPlan) -> u64 {
    match plan.downcast_ref::<DriveScanExec>() {
        Some(scan) => scan.expected_rows(),
        None => plan.children().into_iter().map(|child| expected_rows(child.as_ref())).fold(0, u64::saturating_add),
    }
}

/// Whether the worker answers, and how far it is.
async fn alive(peer: &Arc<Peer>, query: Uuid, silence: Duration) -> Result<Progress> {
    match tokio::time::timeout(silence, peer.act::<Progress>(BEAT, &Named { query })).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::unavailable(format!("{} has not answered for {:.1} s: it hangs, or its network does", peer.url(), silence.as_secs_f64()))),
    }
}

/// Tells all workers that the query is over, without waiting for them.
fn end(links: &Arc<QueryLinks>) {
    // Where the runtime is gone, so are the connections.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    for peer in links.workers() {
        let (peer, query) = (Arc::clone(peer), links.query());
        runtime.spawn(async move { tokio::time::timeout(FIGURES, peer.act::<Ended>(END, &Named { query })).await });
    }
}

/// A query under way, with its reader.
struct Run {
    coordinator: Coordinator,
    asked: Asked,
    told: Arc<SpreadReceipt>,
    send: mpsc::Sender<Result<RecordBatch>>,
    schema: SchemaRef,
    /// Whether the reader has to take rows before anything can go on.
    waits: AtomicBool,
}

/// Why the watch over a query ended it.
enum Halt {
    /// These workers are lost, each with the reason.
    Lost(Vec<(String, String)>),
    /// Nothing moved.
    Stalled(String),
}

/// Why an attempt ended early.
enum Failed {
    /// The reader has left.
    Left,
    /// These workers are lost; no row was handed on.
    Lost(Vec<(String, String)>),
    /// The workers answer and the query does not work with them, for this reason; no row was handed on.
    Alone(String),
    /// Anything else.
    Error(Error),
}

impl Run {
    async fn run_to_end(self, spread: Spread) {
        let lost = match self.attempt(spread).await {
            Ok(()) | Err(Failed::Left) => return,
            Err(Failed::Error(e)) => return self.fail(e).await,
            Err(Failed::Alone(why)) => return self.again_alone(&why).await,
            Err(Failed::Lost(lost)) => lost,
        };
        for (url, why) in &lost {
            self.coordinator.lose(url);
            self.told.note(format!("the query ran again without {url}: {why}"));
        }
        let again = self.coordinator.candidates().into_iter().filter(|url| lost.iter().all(|(gone, _)| gone != url)).collect();
        match self.coordinator.begin(&self.asked, again, &self.told).await {
            Ok(Some(spread)) if spread.planned.physical.schema() != self.schema => {
                end(&spread.links);
                self.fail(changed()).await;
            }
            Ok(Some(spread)) => match self.attempt(spread).await {
                Ok(()) | Err(Failed::Left) => {}
                Err(Failed::Error(e)) => self.fail(e).await,
                Err(Failed::Alone(why)) => self.again_alone(&why).await,
                Err(Failed::Lost(lost)) => {
                    let texts: Vec<String> = lost.into_iter().map(|(url, why)| format!("{url}: {why}")).collect();
                    self.fail(Error::unavailable(format!("the query ran again, and lost workers again: {}; ask again", texts.join("; ")))).await;
                }
            },
            Ok(None) => self.alone().await,
            Err(e) => self.fail(e).await,
        }
    }

    async fn fail(&self, error: Error) {
        // The reader may have left.
        let _ = self.send.send(Err(error)).await;
    }

    async fn again_alone(&self, why: &str) {
        self.told.note(format!("the query ran again on this host alone: {why}"));
        self.alone().await;
    }

    async fn alone(&self) {
        let mut query = match self.coordinator.alone(&self.asked).await {
            Ok(query) if query.schema == self.schema => query,
            Ok(_) => return self.fail(changed()).await,
            Err(e) => return self.fail(e).await,
        };
        self.told.is(&query.receipt);
        while let Some(batch) = query.stream.next().await {
            if self.send.send(batch).await.is_err() {
                return;
            }
        }
    }

    /// Runs the query once.
    async fn attempt(&self, spread: Spread) -> Result<(), Failed> {
        let Spread { planned, stages, links, query } = spread;
        let guard = EndGuard(Arc::clone(&links));
        let collector = Arc::clone(planned.collector());
        let mut running = self.coordinator.0.planners.host().planner().run(planned).map_err(Failed::Error)?;
        self.told.is(&running.receipt);
        let (mut held, mut bytes, mut handed_on) = (Vec::new(), 0, false);
        let mut watch = Box::pin(self.watch(&links, query, &collector));
        loop {
            let next = tokio::select! {
                next = running.stream.next() => next,
                halt = &mut watch => return Err(self.halted(halt, handed_on)),
                () = self.send.closed() => return Err(Failed::Left),
            };
            match next {
                Some(Ok(batch)) => {
                    bytes += batch_bytes(&batch);
                    held.push(batch);
                    if bytes > HELD || handed_on {
                        handed_on = true;
                        for batch in held.drain(..) {
                            self.hand_on(batch, &mut watch).await?;
                        }
                    }
                }
                Some(Err(e)) => {
                    // Whose fault it is shows who answers.
                    let silence = self.coordinator.0.options.silence;
                    let lost = self.silent(&links, query, silence).await;
                    return Err(match lost.is_empty() {
                        // This host may have more memory than a worker.
                        true if !handed_on && (e.kind() == Kind::Unavailable || is_of_memory(&e)) => Failed::Alone(e.report()),
                        true => Failed::Error(e),
                        false => self.halted(Halt::Lost(lost), handed_on),
                    });
                }
                None => break,
            }
        }
        drop(watch);
        self.finish(&links, query, &stages, &collector).await;
        drop(guard);
        for batch in held {
            self.send.send(Ok(batch)).await.map_err(|_| Failed::Left)?;
        }
        Ok(())
    }

    async fn hand_on(&self, batch: RecordBatch, watch: &mut (impl Future<Output = Halt> + Unpin)) -> Result<(), Failed> {
        self.waits.store(true, Ordering::Relaxed);
        let done = tokio::select! {
            sent = self.send.send(Ok(batch)) => sent.map_err(|_| Failed::Left),
            halt = watch => Err(self.halted(halt, true)),
        };
        self.waits.store(false, Ordering::Relaxed);
        done
    }

    fn halted(&self, halt: Halt, handed_on: bool) -> Failed {
        let lost = match halt {
            Halt::Lost(lost) if !handed_on => return Failed::Lost(lost),
            Halt::Lost(lost) => lost,
            Halt::Stalled(why) if !handed_on => return Failed::Alone(why),
            Halt::Stalled(why) => {
                return Failed::Error(Error::unavailable(format!("{why}, and part of the result was handed on already: ask again")));
            }
        };
        for (url, _) in &lost {
            self.coordinator.lose(url);
        }
        let texts: Vec<String> = lost.into_iter().map(|(url, why)| format!("{url} was lost: {why}")).collect();
        let text = format!("{}. Part of the result was handed on already, so the query can't run again by itself: ask again", texts.join("; "));
        Failed::Error(Error::unavailable(text))
    }

    /// The workers that do not answer now, or have no part of the query.
    async fn silent(&self, links: &Arc<QueryLinks>, query: Uuid, silence: Duration) -> Vec<(String, String)> {
        let asked = links.workers().iter().map(|peer| async move {
            match alive(peer, query, silence).await {
                Ok(told) if told.known => None,
                Ok(_) => Some((peer.url().to_owned(), "it was started again".to_owned())),
                Err(e) if e.kind() == Kind::Unavailable => Some((peer.url().to_owned(), e.report())),
                Err(_) => None,
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Ready when workers are lost, or nothing moves although the reader takes all rows.
    async fn watch(&self, links: &Arc<QueryLinks>, query: Uuid, collector: &Arc<Collector>) -> Halt {
        let SpreadOptions { silence, progress, .. } = self.coordinator.0.options;
        let (mut last, mut since) = (0, Instant::now());
        loop {
            tokio::time::sleep(BEAT_EVERY).await;
            let answers = join_all(links.workers().iter().map(|peer| alive(peer, query, silence))).await;
            let (mut lost, mut done) = (Vec::new(), host_work(&collector.receipt()));
            for (peer, answer) in links.workers().iter().zip(answers) {
                match answer {
                    Ok(told) if told.known => done = done.wrapping_add(told.done),
                    Ok(_) => lost.push((peer.url().to_owned(), "it was started again".to_owned())),
                    Err(e) => lost.push((peer.url().to_owned(), e.report())),
                }
            }
            if !lost.is_empty() {
                return Halt::Lost(lost);
            }
            if done != last || self.waits.load(Ordering::Relaxed) {
                (last, since) = (done, Instant::now());
            } else if since.elapsed() > progress {
                return Halt::Stalled(format!("no part of the query did anything for {} s", progress.as_secs()));
            }
        }
    }

    /// Ends the parts, and adds their figures to the receipt.
    async fn finish(&self, links: &Arc<QueryLinks>, query: Uuid, stages: &[(usize, String)], collector: &Arc<Collector>) {
        let asked = links.workers().iter().map(|peer| async move { tokio::time::timeout(FIGURES, peer.act::<Ended>(END, &Named { query })).await });
        let mut told: Vec<StageReceipt> = stages
            .iter()
            .map(|(number, title)| StageReceipt { stage: u32::try_from(*number).unwrap_or(u32::MAX), title: title.clone(), tasks: Vec::new() })
            .collect();
        for (peer, ended) in links.workers().iter().zip(join_all(asked).await) {
            let Some(ended) = ended.ok().and_then(Result::ok).filter(|ended| ended.known) else {
                self.told.note(format!("{} did not tell its figures, which the receipt lacks", peer.url()));
                continue;
            };
            for (scan, annotations) in ended.scans.into_iter().enumerate() {
                for annotation in annotations {
                    collector.begin(scan, annotation);
                }
            }
            for (stage, task) in ended.tasks {
                if let Some(stage) = stages.iter().position(|(number, _)| *number == stage).and_then(|at| told.get_mut(at)) {
                    stage.tasks.push(task);
                }
            }
        }
        self.told.stages(told);
    }
}

/// Whether a host's memory was spent, its disk and the drives aside.
fn is_of_memory(error: &Error) -> bool {
    matches!(error.detail(), Some(Detail::MemoryExhausted { .. }))
}

fn changed() -> Error {
    Error::unavailable("the data sets of the query changed while it ran again: ask again")
}

/// A figure that grows with what this host's operators do.
fn host_work(receipt: &Receipt) -> u64 {
    receipt.host.iter().map(|operator| operator.note.rows_out.unwrap_or(0).wrapping_add((operator.note.seconds * 1e9) as u64)).fold(0, u64::wrapping_add)
}

/// Tells the workers that the query is over, however it ends.
struct EndGuard(Arc<QueryLinks>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        end(&self.0);
    }
}

/// The receipt of a query that may run twice.
#[derive(Debug, Default)]
struct SpreadReceipt(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    run: Option<ReceiptHandle>,
    stages: Vec<StageReceipt>,
    notes: Vec<String>,
}

impl SpreadReceipt {
    /// The receipt of the run that counts.
    fn is(&self, run: &ReceiptHandle) {
        let mut state = self.0.lock();
        state.run = Some(run.clone());
        state.stages.clear();
    }

    fn stages(&self, stages: Vec<StageReceipt>) {
        self.0.lock().stages = stages;
    }

    fn note(&self, note: String) {
        tracing::warn!("{note}");
        self.0.lock().notes.push(note);
    }
}

impl ReceiptSource for SpreadReceipt {
    fn receipt(&self) -> Receipt {
        let state = self.0.lock();
        let run = state.run.as_ref().map(ReceiptHandle::receipt).unwrap_or_default();
        Receipt { stages: state.stages.clone(), workers: state.notes.clone(), ..run }
    }
}
