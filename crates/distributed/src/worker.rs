//! The parts of queries that a host runs for other hosts, and the calls about them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use bytes::Bytes;
use datafusion::common::ScalarValue;
use futures::StreamExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_api::values::Values;
use skytether_common::{Error, Result};
use skytether_device::{Annotation, ResultMessage};
use skytether_flight_drive::deliveries::DeliveryEncoder;
use skytether_flight_drive::frames;
use skytether_flight_drive::status::tell;
use skytether_host::Host;
use skytether_transport::{Credentials, Endpoint};
use tokio::sync::mpsc;
use tonic::Status;
use uuid::Uuid;

use crate::part::{Part, Planners, QueryLinks, ended};
use crate::peer::Peers;
use crate::wire::{BEAT, BEGIN, Begin, Begun, END, Ended, KEYS, MOST_PARTITIONS, Named, NamedJoin, Progress, ReadTicket, ToldKeys};

/// How long a part lives whose coordinator is silent.
const SILENCE: Duration = Duration::from_secs(60);

/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Messages of an answer that wait for a slow reader.
const BACKLOG: usize = 4;

/// The parts of queries that a worker has, at most.
const MOST_PARTS: usize = 1024;

/// The figures of parts that have ended, at most: how many, and their bytes.
const MOST_FIGURES: (usize, usize) = (MOST_PARTS, 16 << 20);

/// The messages of an answer.
pub type Messages = mpsc::Receiver<Result<arrow_flight::FlightData, Status>>;

/// The values of a query as DataFusion has them.
///
/// # Errors
/// Invalid for a value that DataFusion has no type for.
pub(crate) fn scalars(values: &Values) -> Result<Vec<ScalarValue>> {
    let scalar = |column: &ArrayRef| ScalarValue::try_from_array(column, 0).map_err(|e| Error::invalid("a parameter's value can't be taken").with_source(e));
    values.columns().iter().map(scalar).collect()
}

/// A host as a worker of other hosts.
#[derive(Debug)]
pub struct Worker {
    planners: Planners,
    peers: Peers,
    credentials: Credentials,
    parts: Mutex<HashMap<Uuid, Arc<Part>>>,
    /// What parts did that have ended. Only locked with the parts.
    ended: Mutex<Figures>,
    /// Whether a task watches the parts. Only changed with the parts locked.
    watched: AtomicBool,
}

/// What parts did, the newest last. A call that ends a part may be repeated, where its answer is lost.
#[derive(Debug, Default)]
struct Figures {
    kept: VecDeque<(Uuid, Instant, Bytes)>,
    bytes: usize,
}

impl Figures {
    fn keep(&mut self, query: Uuid, figures: Bytes) {
        self.bytes += figures.len();
        self.kept.push_back((query, Instant::now(), figures));
        let (most, bytes) = MOST_FIGURES;
        while self.kept.len() > most || self.bytes > bytes {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, _, figures)) = self.kept.pop_front() {
            self.bytes -= figures.len();
        }
    }

    /// Drops those of parts that ended before `since`.
    fn drop_before(&mut self, since: Instant) {
        while self.kept.front().is_some_and(|(_, ended, _)| *ended < since) {
            self.drop_oldest();
        }
    }

    fn of(&self, query: Uuid) -> Option<Bytes> {
        self.kept.iter().rev().find(|(of, ..)| *of == query).map(|(_, _, figures)| figures.clone())
    }
}

impl Worker {
    /// `host` as a worker, which shows `credentials` to other workers.
    #[must_use]
    pub fn new(host: Host, credentials: Credentials) -> Arc<Self> {
        let peers = Peers::new(credentials.clone());
        Arc::new(Self { planners: Planners::new(host), peers, credentials, parts: Mutex::default(), ended: Mutex::default(), watched: AtomicBool::new(false) })
    }

    /// Does what the action `name` asks for.
    pub fn act<'a>(self: &'a Arc<Self>, name: &'a str, body: &'a Bytes) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            match name {
                BEGIN => frames::encode_json(&self.begin(&frames::decode_json("a worker's part", body)?).await?),
                BEAT => {
                    let Named { query } = frames::decode_json("a question about a part", body)?;
                    let part = self.parts.lock().get(&query).cloned();
                    if let Some(part) = &part {
                        part.touch();
                    }
                    frames::encode_json(&Progress { known: part.is_some(), done: part.map_or(0, |part| part.progress()) })
                }
                END => {
                    let Named { query } = frames::decode_json("the end of a part", body)?;
                    self.end(query)
                }
                KEYS => {
                    let NamedJoin { query, join } = frames::decode_json("a question for keys", body)?;
                    let part = self.parts.lock().get(&query).cloned().ok_or_else(ended)?;
                    let told = part.keys(join)?;
                    // A part that ends meanwhile is not kept by this.
                    drop(part);
                    frames::encode_json(&ToldKeys::new(&told.await)?)
                }
                other => Err(Error::unsupported(format!("a worker does not know the action {other:?}: run the same version on all hosts"))),
            }
        })
    }

    /// Refuses to connect to the worker at `address` where that could give this worker's token away.
    fn check_address(&self, address: &str) -> Result<()> {
        let at: Endpoint = address.parse()?;
        if !self.credentials.may_go_to(&at) {
            return Err(Error::invalid(format!(
                "{at}: this worker shows other workers a token, so they need TLS; write grpc+tls://, and start the workers with --tls-ca FILE"
            )));
        }
        Ok(())
    }

    fn keep(self: &Arc<Self>, query: Uuid, part: Arc<Part>) -> Result<()> {
        let mut parts = self.parts.lock();
        has_room(&parts)?;
        parts.insert(query, part);
        if !self.watched.swap(true, Ordering::Relaxed) {
            tokio::spawn(watch(Arc::downgrade(self)));
        }
        Ok(())
    }

    /// Ends the part of `query`, and gives its figures as often as they are asked for within [`SILENCE`].
    fn end(&self, query: Uuid) -> Result<Bytes> {
        let part = self.parts.lock().get(&query).cloned();
        let figures = part.map(|part| frames::encode_json(&part.figures())).transpose()?;
        let (mut parts, mut ended) = (self.parts.lock(), self.ended.lock());
        let removed = parts.remove(&query);
        if let (Some(_), Some(figures)) = (&removed, figures) {
            ended.keep(query, figures);
        }
        let figures = ended.of(query);
        drop((ended, parts));
        // A part ends its tasks where it goes, which is nothing to hold locks for.
        drop(removed);
        figures.map_or_else(|| frames::encode_json(&Ended::default()), Ok)
    }

    async fn begin(self: &Arc<Self>, asked: &Begin) -> Result<Begun> {
        if asked.workers.is_empty() || asked.partitions == 0 || asked.partitions > MOST_PARTITIONS {
            let (workers, partitions) = (asked.workers.len(), asked.partitions);
            return Err(Error::invalid(format!("a query on {workers} workers in {partitions} partitions: there are 1 to {MOST_PARTITIONS} partitions")));
        }
        for (at, address) in asked.workers.iter().enumerate() {
            if at != asked.own {
                self.check_address(address)?;
            }
        }
        // Before the work of planning, too.
        has_room(&self.parts.lock())?;
        let links = QueryLinks::new(asked.query, &self.peers, &asked.workers, Some(asked.own));
        let planner = self.planners.of(asked.partitions);
        let planned = planner.plan_asked(&asked.asked()?, &asked.options, scalars(&asked.values()?)?).await?;
        let part = Part::new(planned, &links, asked.own)?;
        let digest = part.digest().to_owned();
        self.keep(asked.query, part)?;
        Ok(Begun { digest })
    }

    /// The rows that a ticket names, as messages.
    ///
    /// # Errors
    /// Invalid for a ticket of another form; `Unavailable` for a query that this worker has no part of.
    pub fn read(&self, ticket: &Bytes) -> Result<Messages> {
        let asked: ReadTicket = frames::decode_json("a ticket", ticket)?;
        let part = self.parts.lock().get(&asked.stage.query).cloned().ok_or_else(ended)?;
        let schema = part.schema(asked.stage.stage)?;
        let mut rows = part.read(asked.source())?;
        // The rows end with the part: what they come from is the part's.
        let part = Arc::downgrade(&part);
        let (send, receive) = mpsc::channel(BACKLOG);
        tokio::spawn(async move {
            let (mut encoder, first) = DeliveryEncoder::new(&schema);
            let work = async {
                if send.send(Ok(first)).await.is_err() {
                    return Ok(());
                }
                let mut count = 0;
                while let Some(batch) = rows.next().await {
                    let batch = batch?;
                    count += batch.num_rows() as u64;
                    for message in encoder.encode(ResultMessage::Batch { epoch: 0, batch })? {
                        if send.send(Ok(message)).await.is_err() {
                            return Ok(());
                        }
                    }
                }
                if part.upgrade().is_none() {
                    return Err(ended());
                }
                for message in encoder.encode(ResultMessage::Done(Annotation { rows_out: count, ..Annotation::default() }))? {
                    let _ = send.send(Ok(message)).await;
                }
                Ok(())
            };
            tell(&send, work).await;
        });
        Ok(receive)
    }
}

fn has_room(parts: &HashMap<Uuid, Arc<Part>>) -> Result<()> {
    if parts.len() < MOST_PARTS {
        return Ok(());
    }
    Err(Error::exhausted(format!("this worker has parts of {MOST_PARTS} queries already: ask again when some have ended")))
}

/// Ends parts whose coordinator is silent, until there is none.
async fn watch(worker: Weak<Worker>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(worker) = worker.upgrade() else { return };
        let now = Instant::now();
        let mut parts = worker.parts.lock();
        parts.retain(|query, part| {
            let alive = now.saturating_duration_since(part.heard()) < SILENCE;
            if !alive {
                tracing::warn!(%query, "ended a part of a query: the host that asked is silent");
            }
            alive
        });
        let mut ended = worker.ended.lock();
        if let Some(since) = now.checked_sub(SILENCE) {
            ended.drop_before(since);
        }
        if parts.is_empty() && ended.kept.is_empty() {
            worker.watched.store(false, Ordering::Relaxed);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_ended_parts_are_bounded() {
        let (mut figures, id) = (Figures::default(), Uuid::from_u128);
        let begun = Instant::now();
        for part in 0..3 {
            figures.keep(id(part), vec![part as u8; 6 << 20].into());
        }
        assert_eq!([0, 1, 2].map(|part| figures.of(id(part)).is_some()), [false, true, true]);
        for part in 3..3 + MOST_PARTS as u128 {
            figures.keep(id(part), vec![7].into());
        }
        assert_eq!((figures.kept.len(), figures.bytes, figures.of(id(2))), (MOST_PARTS, MOST_PARTS, None));
        figures.drop_before(begun);
        assert_eq!(figures.of(id(3)).unwrap(), vec![7]);
        figures.drop_before(Instant::now() + LOOK);
        assert_eq!((figures.kept.len(), figures.bytes), (0, 0));
    }
}
