//! State of the Flight SQL service: prepared statements, within a bound, and the queries that run.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow_flight::FlightData;
use futures::Stream;
use futures::stream::BoxStream;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Error, Result};
use tokio::sync::oneshot;
use tonic::Status;
use uuid::Uuid;

use skytether_api::statement::Statement;
use skytether_api::values::Values;

/// How much may be remembered of prepared statements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) statements: usize,
    /// Bytes of their texts and of the values bound to them.
    pub(crate) bytes: usize,
    /// How long a statement is remembered without use.
    pub(crate) idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { statements: 1024, bytes: 64 << 20, idle: Duration::from_secs(1800) }
    }
}

struct PreparedStatement {
    asked: Statement,
    values: Values,
    bytes: usize,
    used: Instant,
}

/// The prepared statements of all clients.
pub(crate) struct Prepared {
    limits: Limits,
    known: Mutex<HashMap<Uuid, PreparedStatement>>,
}

impl Prepared {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, known: Mutex::default() }
    }

    /// The statements that are not forgotten by `now`.
    fn current(&self, now: Instant) -> MutexGuard<'_, HashMap<Uuid, PreparedStatement>> {
        let mut known = self.known.lock();
        known.retain(|_, s| now.saturating_duration_since(s.used) < self.limits.idle);
        known
    }

    fn room(&self, held: usize, more: usize) -> Result<()> {
        if held.saturating_add(more) > self.limits.bytes {
            return Err(Error::exhausted(format!(
                "prepared statements and their values would take more than {} bytes on this host: close some, or wait until idle ones are forgotten",
                self.limits.bytes
            )));
        }
        Ok(())
    }

    /// Remembers a statement and returns its handle.
    pub(crate) fn add(&self, asked: Statement, now: Instant) -> Result<Uuid> {
        let mut known = self.current(now);
        if known.len() >= self.limits.statements {
            return Err(Error::exhausted(format!(
                "this host already keeps {} prepared statements: close some, or wait until idle ones are forgotten",
                known.len()
            )));
        }
        self.room(known.values().map(|s| s.bytes).sum(), asked.len())?;
        let handle = Uuid::new_v4();
        let bytes = asked.len();
        known.insert(handle, PreparedStatement { asked, values: Values::default(), bytes, used: now });
        Ok(handle)
    }

    /// Binds `values`, which take `bytes`, in place of those before.
    pub(crate) fn bind(&self, handle: &[u8], values: Values, bytes: usize, now: Instant) -> Result<()> {
        let mut known = self.current(now);
        let held: usize = known.values().map(|s| s.bytes).sum();
        let statement = find(&mut known, handle)?;
        let new = statement.asked.len().saturating_add(bytes);
        self.room(held - statement.bytes, new)?;
        (statement.values, statement.bytes, statement.used) = (values, new, now);
        Ok(())
    }

    /// What a statement asks, and its values.
    pub(crate) fn get(&self, handle: &[u8], now: Instant) -> Result<(Statement, Values)> {
        let mut known = self.current(now);
        let statement = find(&mut known, handle)?;
        statement.used = now;
        Ok((statement.asked.clone(), statement.values.clone()))
    }

    /// Forgets a statement; one that is forgotten already is no error.
    pub(crate) fn close(&self, handle: &[u8], now: Instant) {
        if let Ok(id) = Uuid::from_slice(handle) {
            self.current(now).remove(&id);
        }
    }
}

fn find<'a>(known: &'a mut HashMap<Uuid, PreparedStatement>, handle: &[u8]) -> Result<&'a mut PreparedStatement> {
    Uuid::from_slice(handle).ok().and_then(|id| known.get_mut(&id)).ok_or_else(|| {
        Error::not_found("there is no prepared statement of this handle: it was closed, idle for too long, or made before the host started; prepare it again")
    })
}

type Senders = BTreeMap<(Uuid, Uuid), oneshot::Sender<()>>;

/// The queries that run, so that they can be cancelled.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<Senders>>);

impl Running {
    fn senders(&self) -> MutexGuard<'_, Senders> {
        self.0.lock()
    }

    /// Says that a query of `id` begins.
    pub(crate) fn begin(&self, id: Uuid) -> Run {
        let (send, cancelled) = oneshot::channel();
        let key = (id, Uuid::new_v4());
        self.senders().insert(key, send);
        Run { running: self.clone(), key, cancelled }
    }

    /// Stops all queries of `id`; whether there was one.
    pub(crate) fn cancel(&self, id: Uuid) -> bool {
        let mut senders = self.senders();
        let keys: Vec<_> = senders.range((id, Uuid::nil())..=(id, Uuid::max())).map(|(k, _)| *k).collect();
        let mut any = false;
        for key in keys {
            any |= senders.remove(&key).is_some_and(|send| send.send(()).is_ok());
        }
        any
    }
}

/// A running query; dropping this ends its entry.
pub(crate) struct Run {
    running: Running,
    key: (Uuid, Uuid),
    cancelled: oneshot::Receiver<()>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.running.senders().remove(&self.key);
    }
}

impl Run {
    /// What `work` says, unless the query is cancelled before.
    pub(crate) async fn unless_cancelled<T>(&mut self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        tokio::select! {
            done = work => done,
            _ = &mut self.cancelled => Err(cancelled()),
        }
    }

    /// `messages`, until the query is cancelled.
    pub(crate) fn over(self, messages: BoxStream<'static, Result<FlightData, Status>>) -> Cancellable {
        Cancellable { run: Some(self), messages: Some(messages) }
    }
}

fn cancelled() -> Status {
    Status::cancelled("the query was cancelled")
}

/// The answer of a query that can be cancelled.
pub(crate) struct Cancellable {
    run: Option<Run>,
    messages: Option<BoxStream<'static, Result<FlightData, Status>>>,
}

impl Stream for Cancellable {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(run) = &mut self.run
            && Pin::new(&mut run.cancelled).poll(cx).is_ready()
        {
            // Dropping the stream stops the drives.
            (self.run, self.messages) = (None, None);
            return Poll::Ready(Some(Err(cancelled())));
        }
        let Some(messages) = &mut self.messages else { return Poll::Ready(None) };
        let next = messages.as_mut().poll_next(cx);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            (self.run, self.messages) = (None, None);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use futures::StreamExt;
    use skytether_common::Kind;

    use super::*;

    const LIMITS: Limits = Limits { statements: 3, bytes: 20, idle: Duration::from_secs(10) };

    fn value(number: i64) -> Values {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![number]));
        Values::new(RecordBatch::try_from_iter([("0", column)]).unwrap()).unwrap()
    }

    fn sql(text: &str) -> Statement {
        Statement::Sql(text.into())
    }

    #[test]
    fn prepared_statements_are_bounded_in_number_bytes_and_time() {
        let now = Instant::now();
        let prepared = Prepared::new(LIMITS);
        let first = prepared.add(sql("12345"), now).unwrap();
        prepared.add(sql("12345"), now).unwrap();
        assert_eq!(prepared.add(sql(&"x".repeat(11)), now).unwrap_err().kind(), Kind::Exhausted);
        prepared.add(sql("12345"), now).unwrap();
        assert_eq!(prepared.add(sql("1"), now).unwrap_err().kind(), Kind::Exhausted);
        // Values count, and take the place of those before.
        prepared.bind(first.as_bytes(), value(1), 5, now).unwrap();
        prepared.bind(first.as_bytes(), value(2), 5, now).unwrap();
        assert_eq!(prepared.bind(first.as_bytes(), value(3), 6, now).unwrap_err().kind(), Kind::Exhausted);
        assert_eq!(prepared.get(first.as_bytes(), now).unwrap().1, value(2));
        // Use keeps a statement, idleness does not.
        let later = now + Duration::from_secs(6);
        prepared.get(first.as_bytes(), later).unwrap();
        let latest = now + Duration::from_secs(12);
        assert!(prepared.get(first.as_bytes(), latest).is_ok());
        prepared.add(sql("1"), latest).unwrap();
        prepared.close(first.as_bytes(), latest);
        assert_eq!(prepared.get(first.as_bytes(), latest).unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn unknown_handles_are_not_found() {
        let prepared = Prepared::new(LIMITS);
        for handle in [&b""[..], b"abc", &[7; 16], &vec![0; 1 << 20]] {
            prepared.close(handle, Instant::now());
            assert_eq!(prepared.get(handle, Instant::now()).unwrap_err().kind(), Kind::NotFound);
        }
    }

    #[tokio::test]
    async fn a_cancelled_stream_says_so_and_ends() {
        let running = Running::default();
        let id = Uuid::new_v4();
        let mut waiting = running.begin(id).over(futures::stream::pending().boxed());
        let other = running.begin(Uuid::new_v4());
        assert!(running.cancel(id));
        assert_eq!(waiting.next().await.unwrap().unwrap_err().code(), tonic::Code::Cancelled);
        assert!(waiting.next().await.is_none());
        assert!(!running.cancel(id));
        assert_eq!(running.senders().len(), 1);
        drop(other);
        assert!(running.senders().is_empty());
    }
}
